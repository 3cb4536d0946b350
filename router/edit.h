/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What documented options change in a request body on its way to a replica: the alias' target as model, the
 * usage wish in streams, the tenant's salt. The client's bytes stay as they are; edits name ranges of them
 * and what stands instead.
 */
#ifndef KVROUTE_ROUTER_EDIT_H
#define KVROUTE_ROUTER_EDIT_H

#include "proxy.h"

/* Decides which edits this request needs; the prompt must have been read from exchange->body. */
void edit_plan(struct exchange *exchange, const struct kvr_prompt *prompt);
/* Length of the body as it will be sent. */
size_t edit_body_length(const struct exchange *exchange);
/* Fills at most 1 + 2 * BODY_EDITS_MAX pieces that make up that body; returns their number. */
unsigned edit_body_pieces(const struct exchange *exchange, uv_buf_t *ret);
/* Takes the model's name from a multipart form, where there is one. */
void edit_multipart_model(struct exchange *exchange);
/*
 * A salt per client key, so that tenants share no cache: 32 hex digits of a keyed hash, as the key itself
 * must not travel.
 */
void edit_salt_of_key(struct kvr_slice key, uint64_t seed, char ret[33]);

#endif
