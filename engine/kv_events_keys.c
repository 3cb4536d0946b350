/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The extra keys of vLLM's blocks: everything beside tokens that went into a block's hash. They come without
 * saying what they are, in the order adapter, images and the like ([identifier, offset]), salt (first block of
 * a prompt only), digest of prompt embeddings.
 */
#include "kv_events_int.h"

#include <xxhash.h>

static uint64_t mix(uint64_t hash, const void *bytes, size_t len, uint8_t kind)
{
        /* The kind frames it: a text and equal bytes, or two texts and their concatenation, must differ. */
        return XXH3_64bits_withSeed(bytes, len, hash ^ ((uint64_t)kind << 56) ^ len);
}

static uint64_t mix_item(uint64_t hash, const struct msgpack_item *item)
{
        switch (item->type) {
        case MSGPACK_STR:
        case MSGPACK_BIN:
        case MSGPACK_EXT:
                return mix(hash, item->bytes.data, item->bytes.len, (uint8_t)item->type);
        case MSGPACK_UINT:
        case MSGPACK_INT:
        case MSGPACK_FLOAT:
                return mix(hash, &item->u, sizeof item->u, (uint8_t)item->type);
        case MSGPACK_ARRAY:
        case MSGPACK_MAP:
                return mix(hash, &item->count, sizeof item->count, (uint8_t)item->type);
        case MSGPACK_BOOL:
                return mix(hash, &item->yes, sizeof item->yes, (uint8_t)item->type);
        case MSGPACK_NIL:
                break;
        }
        return mix(hash, NULL, 0, (uint8_t)item->type);
}

/* One key, with what it contains. */
static bool mix_key(struct msgpack_cursor *cursor, uint64_t *hash)
{
        struct msgpack_cursor end = *cursor;
        struct msgpack_item item;

        if (!msgpack_skip(&end))
                return false;
        while (cursor->at < end.at) {
                if (!msgpack_next(cursor, &item))
                        return false;
                *hash = mix_item(*hash, &item);
        }
        return true;
}

/* Where the salt is among a first block's keys: the last text that is not the adapter. */
static uint32_t find_salt(struct msgpack_cursor cursor, uint32_t count, uint32_t from, struct kvr_slice *ret)
{
        uint32_t found = UINT32_MAX;
        struct msgpack_item item;

        for (uint32_t i = 0; i < count; i++) {
                struct msgpack_cursor at = cursor;

                if (!msgpack_next(&at, &item) || !msgpack_skip(&cursor))
                        break;
                if (i >= from && item.type == MSGPACK_STR) {
                        found = i;
                        *ret = item.bytes;
                }
        }
        return found;
}

static bool same(struct kvr_slice a, struct kvr_slice b)
{
        return a.len == b.len && a.len > 0 && memcmp(a.data, b.data, a.len) == 0;
}

static enum engine_event_why read_block(struct msgpack_cursor *cursor, struct kvr_slice adapter,
                                        struct kvr_slice *salt, uint64_t *ret_hash)
{
        struct msgpack_item item;
        uint32_t from = 0, salt_at = UINT32_MAX;
        uint64_t hash = 0;
        bool any = false;

        if (!msgpack_next(cursor, &item))
                return ENGINE_EVENT_TYPE;
        *ret_hash = 0;
        if (item.type == MSGPACK_NIL)
                return ENGINE_EVENT_FINE;
        if (item.type != MSGPACK_ARRAY)
                return ENGINE_EVENT_TYPE;

        uint32_t count = item.count;
        struct msgpack_cursor peek = *cursor;

        if (count > 0 && msgpack_next(&peek, &item) && item.type == MSGPACK_STR && same(item.bytes, adapter))
                from = 1;
        if (salt)
                salt_at = find_salt(*cursor, count, from, salt);
        for (uint32_t i = 0; i < count; i++) {
                uint64_t unused = 0;
                bool counts = i >= from && i != salt_at;

                if (!mix_key(cursor, counts ? &hash : &unused))
                        return ENGINE_EVENT_TYPE;
                any |= counts;
        }
        if (any)
                *ret_hash = hash ? hash : 1;
        return ENGINE_EVENT_FINE;
}

enum engine_event_why kv_events_read_keys(struct engine_event_decoder *decoder, struct msgpack_cursor keys,
                                          uint32_t blocks, struct kvr_slice adapter, bool first,
                                          struct kvr_slice *ret_salt, bool *ret_any)
{
        struct msgpack_item item;

        *ret_any = false;
        if (!msgpack_next(&keys, &item))
                return ENGINE_EVENT_TYPE;
        if (item.type == MSGPACK_NIL || (item.type == MSGPACK_ARRAY && item.count == 0))
                return ENGINE_EVENT_FINE;
        if (item.type != MSGPACK_ARRAY || item.count != blocks)
                return ENGINE_EVENT_TYPE;
        if (!kv_events_room64(&decoder->extra, &decoder->extra_cap, blocks))
                return ENGINE_EVENT_MEMORY;
        for (uint32_t i = 0; i < blocks; i++) {
                enum engine_event_why why =
                        read_block(&keys, adapter, first && i == 0 ? ret_salt : NULL, &decoder->extra[i]);

                if (why != ENGINE_EVENT_FINE)
                        return why;
                *ret_any |= decoder->extra[i] != 0;
        }
        return ENGINE_EVENT_FINE;
}
