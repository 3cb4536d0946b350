/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVROUTE_ROUTER_IDENTIFY_H
#define KVROUTE_ROUTER_IDENTIFY_H

#include "proxy.h"

/*
 * The request form of a path, however it is spelt: engines decode and tidy paths too, and a prompt must not
 * be missed for it.
 */
enum kvr_api identify_api(struct kvr_slice path);

#define IDENTIFY_SALT 33 /* 32 hex digits, terminated */

/* All that the keys of a prompt depend on. Everything is borrowed. */
struct identify_source {
        const struct router_config *config;
        uint64_t seed;
        struct kvr_slice client_key; /* what the client authenticated with; only read with tenant-salt */
        enum kvr_api api;
        struct kvr_slice body; /* decoded */
        char *salt;            /* IDENTIFY_SALT bytes for the tenant's, which the prompt then refers to */
};
/*
 * Reads a prompt as the serving path does: the same source gives the same keys. *ret lives in the parser, its
 * salt where the source says.
 */
KVR_MUST_USE enum kvr_status identify_prompt(const struct identify_source *source, struct kvr_parser *parser,
                                             struct kvr_prompt *ret, struct kvr_error *err);

/* Decodes a compressed body for reading. True: the request was answered with an error. */
bool identify_decode(struct exchange *exchange);
/*
 * Reads what the body tells and keeps it in the exchange. KVR_OK: *ret holds the prompt if there is one at
 * all
 * (*ret_keyed); it stays in the worker's parser until the next request is read. Anything else: refuse it
 * (KVR_E_REQUEST and KVR_E_LIMIT only with tenant-salt, else such a body is the engine's to judge).
 */
KVR_MUST_USE enum kvr_status identify(struct exchange *exchange, struct kvr_prompt *ret, bool *ret_keyed,
                                      struct kvr_error *err);
/* The body as text: decoded where it came compressed (empty if that failed). */
struct kvr_slice identify_body(const struct exchange *exchange);
/*
 * The prompt once more, for a retry or a queued request: reading it again costs less than keeping it for all.
 */
KVR_MUST_USE enum kvr_status identify_again(struct exchange *exchange, struct kvr_prompt *ret,
                                            struct kvr_error *err);
/* Token ids do not tell whether a model's name is an adapter's: then the fleet does. */
void identify_adapter(const struct fleet_snapshot *fleet, struct kvr_request *request);
/* "/v1/responses/resp_123/cancel" goes to the replica that made resp_123. */
void identify_owner(struct exchange *exchange);
/* Names the workload by the configured rules, unless the client named it. */
void identify_workload(struct exchange *exchange);

#endif
