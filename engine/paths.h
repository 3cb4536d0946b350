/* SPDX-License-Identifier: Apache-2.0 */
/* Paths of engines that change, drain or reveal their state: a public listener must not forward them. Any
 * thread. */
#ifndef KVROUTE_ENGINE_PATHS_H
#define KVROUTE_ENGINE_PATHS_H

#include <kvroute/base.h>

#define ENGINE_PATH_MAX  2048                  /* longer paths are refused outright */
#define ENGINE_PATH_ROOM (ENGINE_PATH_MAX + 1) /* of one in its plain spelling */

/*
 * The plain spelling of a path (without query), as a server may read it: "/a/b", lower case, percent encoding
 * undone (also twofold), without empty and dot segments, ;parameters, backslashes and slashes at the end. ret
 * is not terminated. False: it cannot be read safely (bad escapes, control bytes, too long, empty, dot
 * segments that leave the root).
 */
KVR_MUST_USE bool engine_path_normalise(struct kvr_slice path, char ret[ENGINE_PATH_ROOM], size_t *ret_len);

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
