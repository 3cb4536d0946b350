/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVROUTE_ROUTER_IDENTIFY_H
#define KVROUTE_ROUTER_IDENTIFY_H

#include "proxy.h"

/* Decodes a compressed body for reading. True: the request was answered with an error. */
bool identify_decode(struct exchange *exchange);
/*
 * Reads what the body tells and keeps it in the exchange. KVR_OK: *ret holds the prompt if there is one at
 * all
 * (*ret_keyed); it stays in the worker's parser until the next request is read. KVR_E_JSON, KVR_E_NOMEM:
 * refuse it.
 */
KVR_MUST_USE enum kvr_status identify(struct exchange *exchange, struct kvr_prompt *ret, bool *ret_keyed,
                                      struct kvr_error *err);
/* The prompt once more, for a retry or a queued request: reading it again costs less than keeping it for all.
 */
KVR_MUST_USE enum kvr_status identify_again(struct exchange *exchange, struct kvr_prompt *ret,
                                            struct kvr_error *err);
/* "/v1/responses/resp_123/cancel" goes to the replica that made resp_123. */
void identify_owner(struct exchange *exchange);
/* Names the workload by the configured rules, unless the client named it. */
void identify_workload(struct exchange *exchange);

#endif
