/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the decoder of KV cache events share:
 *
 *   kv_events.c        batches and events in msgpack
 *   kv_events_fields.c the fields of one
 *   kv_events_keys.c   the extra keys of its blocks
 *   kv_events_json.c   TensorRT-LLM's list
 */
#ifndef KVROUTE_ENGINE_KV_EVENTS_INT_H
#define KVROUTE_ENGINE_KV_EVENTS_INT_H

#include "kv_events.h"
#include "proto/msgpack.h"

struct engine_event_decoder {
        uint64_t *hashes, *extra;
        uint32_t *tokens;
        size_t hash_cap, extra_cap, token_cap;
};

/* Room for `count` of them; false: no memory. */
KVR_MUST_USE bool kv_events_room64(uint64_t **array, size_t *cap, size_t count);
KVR_MUST_USE bool kv_events_room32(uint32_t **array, size_t *cap, size_t count);

/* "12" as a number; false: anything else. */
bool kv_events_decimal(struct kvr_slice text, uint64_t *ret);
/* A hash given as bytes or text: for digests of 8 bytes and more their last 8 (what vLLM sends as a number). */
uint64_t kv_events_hash_bytes(struct kvr_slice bytes);
uint64_t kv_events_hash_text(struct kvr_slice text);

/* Gives a STORED or REMOVED event in parts that the library takes. */
void kv_events_give_stored(const struct kvr_blocks_stored *stored, int64_t number, engine_event_fn *fn,
                           void *ctx);
void kv_events_give_removed(const uint64_t *hashes, uint32_t count, enum kvr_tier tier, int64_t number,
                            engine_event_fn *fn, void *ctx);
void kv_events_give_useless(enum engine_event_kind kind, enum engine_event_why why, int64_t number,
                            engine_event_fn *fn, void *ctx);

/*
 * vLLM's extra keys at `keys`, one item per block: takes the salt of a prompt's first block out of them
 * (*ret_salt, only where `first`), and gives the hash of what is left for each block, 0 for nothing, in
 * decoder->extra (*ret_any: some is not 0).
 */
enum engine_event_why kv_events_read_keys(struct engine_event_decoder *decoder, struct msgpack_cursor keys,
                                          uint32_t blocks, struct kvr_slice adapter, bool first,
                                          struct kvr_slice *ret_salt, bool *ret_any);

/* ---- kv_events_fields.c ---- */

/* What was read of one event, in either form. Cursors stand at an item that was passed over, at == NULL: absent. */
struct kv_event_fields {
        struct kvr_slice tag, medium, adapter, salt, kind, locality;
        struct msgpack_cursor hashes, parent, tokens, extra_keys;
        uint64_t block_size, adapter_id;
        int64_t group;
        bool has_adapter_id, has_group, has_window, has_block_size;
};

/* Text or nil (empty); false: neither, or too long. */
bool kv_events_read_text(struct msgpack_cursor *cursor, struct kvr_slice *ret);
bool kv_events_read_uint(struct msgpack_cursor *cursor, uint64_t *ret, bool *ret_has);
/* Passes over an item, and gives the place. */
bool kv_events_read_later(struct msgpack_cursor *cursor, struct msgpack_cursor *ret);
bool kv_events_is(struct kvr_slice text, const char *word);
/* False: some field that is known is not of its type, or there is no tag. */
bool kv_events_read_fields(struct msgpack_cursor *cursor, struct kv_event_fields *fields);

#endif
