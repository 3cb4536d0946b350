/* SPDX-License-Identifier: Apache-2.0 */
/* Paths of engines that change, drain or reveal their state: a public listener must not forward them. Any
 * thread. */
#ifndef KVROUTE_ENGINE_PATHS_H
#define KVROUTE_ENGINE_PATHS_H

#include <kvroute/base.h>

#define ENGINE_PATH_MAX 2048 /* longer paths are refused outright */

/*
 * Whether a request (method, path without query) reaches an administrative endpoint of any known engine,
 * however it is spelt: case, repeated or trailing slashes, dot segments, percent encoding (also twofold),
 * ;parameters, backslashes, a /v1 or other prefix in front. Paths that cannot be read safely (bad escapes,
 * control bytes, too long, dot segments that leave the root) count as administrative too.
 */
bool engine_path_is_admin(struct kvr_slice method, struct kvr_slice path);

/*
 * Whether passing this request on empties or discards the replica's cache (flush, reset, sleep, weight
 * update): call kvr_replica_forget after forwarding it. Only meaningful where engine_path_is_admin is true.
 */
bool engine_path_clears_cache(struct kvr_slice path);

#endif
