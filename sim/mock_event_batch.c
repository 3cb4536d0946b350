/* SPDX-License-Identifier: Apache-2.0 */
#include "mock_event_batch.h"

#include "proto/msgpack.h"

#define DIGEST_BYTES 32

void mock_batch_begin(struct text *out, double unix_time, uint32_t events)
{
        msgpack_write_array(out, 3);
        msgpack_write_float(out, unix_time);
        msgpack_write_array(out, events);
}

void mock_batch_end(struct text *out, uint32_t rank)
{
        msgpack_write_uint(out, rank);
}

/* A digest ends in the number that would stand for it. */
static void write_hash(struct text *out, const struct mock_event_format *format, uint64_t hash)
{
        uint8_t digest[DIGEST_BYTES];

        if (!format->bytes) {
                msgpack_write_uint(out, hash);
                return;
        }
        for (unsigned i = 0; i < DIGEST_BYTES; i++)
                digest[i] = (uint8_t)(hash >> 8 * (7 - i % 8));
        msgpack_write_bin(out, digest, sizeof digest);
}

static void write_hashes(struct text *out, const struct mock_event_format *format,
                         const struct mock_event *event)
{
        msgpack_write_array(out, event->count);
        for (uint32_t i = 0; i < event->count; i++)
                write_hash(out, format, event->hashes[i]);
}

static void write_text_or_nil(struct text *out, struct kvr_slice text)
{
        if (text.len)
                msgpack_write_str(out, text);
        else
                msgpack_write_nil(out);
}

/* What else went into each block's hash: the adapter in all, the salt in the first of a prompt. */
static void write_extra_keys(struct text *out, const struct mock_event *event)
{
        msgpack_write_array(out, event->count);
        for (uint32_t i = 0; i < event->count; i++) {
                bool salted = event->salt.len && i == 0 && !event->has_parent;
                uint32_t keys = 0u + (event->adapter.len > 0) + salted;

                if (keys == 0) {
                        msgpack_write_nil(out);
                        continue;
                }
                msgpack_write_array(out, keys);
                if (event->adapter.len)
                        msgpack_write_str(out, event->adapter);
                if (salted)
                        msgpack_write_str(out, event->salt);
        }
}

static void name_field(struct text *out, const struct mock_event_format *format, const char *name)
{
        if (!format->arrays)
                msgpack_write_strs(out, name);
}

static void open_event(struct text *out, const struct mock_event_format *format, uint32_t fields,
                       const char *tag)
{
        if (format->arrays)
                msgpack_write_array(out, fields);
        else
                msgpack_write_map(out, fields);
        name_field(out, format, "type");
        msgpack_write_strs(out, tag);
}

static void write_stored(struct text *out, const struct mock_event_format *format,
                         const struct mock_event *event)
{
        open_event(out, format, format->arrays ? 9 : 11, "BlockStored");
        name_field(out, format, "block_hashes");
        write_hashes(out, format, event);
        name_field(out, format, "parent_block_hash");
        if (event->has_parent)
                write_hash(out, format, event->parent);
        else
                msgpack_write_nil(out);
        name_field(out, format, "token_ids");
        msgpack_write_array(out, event->count * event->block_tokens);
        for (uint32_t i = 0; i < event->count * event->block_tokens; i++)
                msgpack_write_uint(out, event->tokens[i]);
        name_field(out, format, "block_size");
        msgpack_write_uint(out, event->block_tokens);
        name_field(out, format, "lora_id");
        if (event->adapter.len)
                msgpack_write_uint(out, 1);
        else
                msgpack_write_nil(out);
        name_field(out, format, "medium");
        msgpack_write_strs(out, "GPU");
        name_field(out, format, "lora_name");
        write_text_or_nil(out, event->adapter);
        name_field(out, format, "extra_keys");
        write_extra_keys(out, event);
        if (format->arrays)
                return;
        msgpack_write_strs(out, "group_idx");
        msgpack_write_uint(out, 0);
        msgpack_write_strs(out, "kv_cache_spec_kind");
        msgpack_write_strs(out, "full_attention");
}

static void write_removed(struct text *out, const struct mock_event_format *format,
                          const struct mock_event *event)
{
        open_event(out, format, format->arrays ? 3 : 4, "BlockRemoved");
        name_field(out, format, "block_hashes");
        write_hashes(out, format, event);
        name_field(out, format, "medium");
        msgpack_write_strs(out, "GPU");
        if (format->arrays)
                return;
        msgpack_write_strs(out, "group_idx");
        msgpack_write_uint(out, 0);
}

void mock_batch_event(struct text *out, const struct mock_event_format *format,
                      const struct mock_event *event)
{
        switch (event->kind) {
        case MOCK_EVENT_STORED:
                write_stored(out, format, event);
                break;
        case MOCK_EVENT_REMOVED:
                write_removed(out, format, event);
                break;
        case MOCK_EVENT_CLEARED:
                open_event(out, format, 1, "AllBlocksCleared");
                break;
        }
}
