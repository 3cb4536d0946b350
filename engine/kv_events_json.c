/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The events that TensorRT-LLM gives out over HTTP:
 *
 *     [{"event_id": 7, "data": {"type": "stored", "parent_hash": 1, "blocks": [{"block_hash": 2,
 *       "tokens": [{"token_id": 5, "token_extra_id": 0}, ...], "cache_level": 0}]}, "window_size": 4096}, ...]
 */
#include <stdlib.h>
#include <xxhash.h>
#include <yyjson.h>

#include "kv_events_int.h"

struct reader {
        struct engine_event_decoder *decoder;
        struct engine_event_view *view;
        engine_event_fn *fn;
        void *ctx;
        int64_t number; /* of the event */
};

static void give_useless(const struct reader *reader, enum engine_event_kind kind, enum engine_event_why why)
{
        kv_events_give_useless(kind, why, reader->number, reader->fn, reader->ctx);
}

static bool json_hash(yyjson_val *value, uint64_t *ret)
{
        if (yyjson_is_uint(value))
                *ret = yyjson_get_uint(value);
        else if (yyjson_is_sint(value))
                *ret = (uint64_t)yyjson_get_sint(value);
        else if (yyjson_is_str(value))
                *ret = kv_events_hash_text((struct kvr_slice){yyjson_get_str(value), yyjson_get_len(value)});
        else
                return false;
        return true;
}

static bool json_token(yyjson_val *value, uint32_t *ret)
{
        uint64_t id;

        if (yyjson_is_obj(value))
                value = yyjson_obj_get(value, "token_id");
        if (yyjson_is_uint(value))
                id = yyjson_get_uint(value);
        else if (!yyjson_is_str(value) ||
                 !kv_events_decimal((struct kvr_slice){yyjson_get_str(value), yyjson_get_len(value)}, &id))
                return false;
        *ret = (uint32_t)id;
        return id <= UINT32_MAX;
}

/* What else than tokens a block stands for, 0 for nothing. Its form varies, so its text is hashed. */
static uint64_t json_extra(yyjson_val *block)
{
        yyjson_val *keys = yyjson_obj_get(block, "mm_keys");
        size_t len;
        char *text;
        uint64_t hash;

        if (!keys || yyjson_is_null(keys) || yyjson_get_len(keys) == 0)
                return 0;
        text = yyjson_val_write(keys, 0, &len);
        if (!text)
                return 1; /* of no prompt that is looked for */
        hash = XXH3_64bits(text, len);
        free(text);
        return hash ? hash : 1;
}

/* An adapter or a salt, which are told as numbers only: a namespace of its own. */
static bool in_namespace(yyjson_val *block)
{
        static const char *const names[] = {"cache_salt_id", "cache_salt", "lora_id", "lora_task_id"};

        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
                yyjson_val *value = yyjson_obj_get(block, names[i]);

                if (value && !yyjson_is_null(value))
                        return true;
        }
        return false;
}

/* Tokens of a block, always a power of two; one that is not full is reusable in part, and then stored again. */
static bool is_full(struct engine_event_view *view, size_t tokens)
{
        if (tokens == 0 || (tokens & (tokens - 1)) != 0 || tokens > KVR_BLOCK_TOKENS_MAX)
                return false;
        if (tokens > view->block_tokens)
                view->block_tokens = (uint32_t)tokens;
        return tokens == view->block_tokens;
}

static bool add_block(struct engine_event_decoder *decoder, yyjson_val *block, uint32_t number,
                      uint32_t block_tokens)
{
        yyjson_val *token;
        size_t i, max;
        uint32_t *at = decoder->tokens + (size_t)number * block_tokens;

        if (!json_hash(yyjson_obj_get(block, "block_hash"), &decoder->hashes[number]))
                return false;
        decoder->extra[number] = json_extra(block);
        yyjson_arr_foreach(yyjson_obj_get(block, "tokens"), i, max, token)
        {
                if (!json_token(token, at + i))
                        return false;
        }
        return true;
}

static enum engine_event_why room_for(struct engine_event_decoder *decoder, size_t blocks,
                                      size_t block_tokens)
{
        if (blocks > ENGINE_EVENT_HASHES_MAX || blocks * block_tokens > ENGINE_EVENT_TOKENS_MAX)
                return ENGINE_EVENT_LIMIT;
        return kv_events_room64(&decoder->hashes, &decoder->hash_cap, blocks) &&
                               kv_events_room64(&decoder->extra, &decoder->extra_cap, blocks) &&
                               kv_events_room32(&decoder->tokens, &decoder->token_cap, blocks * block_tokens)
                       ? ENGINE_EVENT_FINE
                       : ENGINE_EVENT_MEMORY;
}

/* The full blocks at the beginning; what follows one that is not full cannot be told apart from it. */
static enum engine_event_why read_blocks(const struct reader *reader, yyjson_val *blocks,
                                         struct kvr_blocks_stored *ret)
{
        struct engine_event_decoder *decoder = reader->decoder;
        enum engine_event_why why = ENGINE_EVENT_FINE;
        yyjson_val *block;
        size_t i, max;

        yyjson_arr_foreach(blocks, i, max, block)
        {
                size_t tokens = yyjson_arr_size(yyjson_obj_get(block, "tokens"));

                if (!is_full(reader->view, tokens) || (i > 0 && tokens != ret->block_tokens) ||
                    in_namespace(block))
                        return ret->count            ? ENGINE_EVENT_FINE
                               : in_namespace(block) ? ENGINE_EVENT_GROUP
                                                     : ENGINE_EVENT_PARTIAL;
                ret->block_tokens = (uint32_t)tokens;
                if (i == 0)
                        why = room_for(decoder, yyjson_arr_size(blocks), tokens);
                if (why != ENGINE_EVENT_FINE)
                        return why;
                if (!add_block(decoder, block, ret->count, ret->block_tokens))
                        return ENGINE_EVENT_TYPE;
                ret->count++;
        }
        return ret->count ? ENGINE_EVENT_FINE : ENGINE_EVENT_EMPTY;
}

static enum engine_event_why read_stored(const struct reader *reader, yyjson_val *data)
{
        struct kvr_blocks_stored stored = {.tier = KVR_TIER_GPU};
        yyjson_val *parent = yyjson_obj_get(data, "parent_hash"), *blocks = yyjson_obj_get(data, "blocks");
        enum engine_event_why why;
        bool any = false;

        if (!yyjson_is_arr(blocks))
                return ENGINE_EVENT_TYPE;
        stored.has_parent = parent && !yyjson_is_null(parent);
        if (stored.has_parent && !json_hash(parent, &stored.parent))
                return ENGINE_EVENT_TYPE;
        why = read_blocks(reader, blocks, &stored);
        if (why != ENGINE_EVENT_FINE)
                return why;
        for (uint32_t i = 0; i < stored.count; i++)
                any |= reader->decoder->extra[i] != 0;
        stored.hashes = reader->decoder->hashes;
        stored.tokens = reader->decoder->tokens;
        stored.token_count = stored.count * stored.block_tokens;
        stored.extra = any ? reader->decoder->extra : NULL;
        kv_events_give_stored(&stored, reader->number, reader->fn, reader->ctx);
        return ENGINE_EVENT_FINE;
}

static enum engine_event_why read_removed(const struct reader *reader, yyjson_val *data)
{
        struct engine_event_decoder *decoder = reader->decoder;
        yyjson_val *hashes = yyjson_obj_get(data, "block_hashes"), *hash;
        size_t i, max, count = yyjson_arr_size(hashes);

        if (!yyjson_is_arr(hashes))
                return ENGINE_EVENT_TYPE;
        if (count == 0)
                return ENGINE_EVENT_EMPTY;
        if (count > ENGINE_EVENT_HASHES_MAX)
                return ENGINE_EVENT_LIMIT;
        if (!kv_events_room64(&decoder->hashes, &decoder->hash_cap, count))
                return ENGINE_EVENT_MEMORY;
        yyjson_arr_foreach(hashes, i, max, hash)
        {
                if (!json_hash(hash, &decoder->hashes[i]))
                        return ENGINE_EVENT_TYPE;
        }
        kv_events_give_removed(decoder->hashes, (uint32_t)count, KVR_TIER_GPU, reader->number, reader->fn,
                               reader->ctx);
        return ENGINE_EVENT_FINE;
}

/* Models with sliding windows tell of each window: the largest is that of full attention. */
static bool in_largest_window(struct engine_event_view *view, yyjson_val *event)
{
        yyjson_val *window = yyjson_obj_get(event, "window_size");
        int64_t size;

        if (!yyjson_is_int(window))
                return true;
        size = yyjson_get_sint(window);
        if (size > view->window)
                view->window = size;
        return size == view->window;
}

static void read_event(struct reader *reader, yyjson_val *event)
{
        yyjson_val *data = yyjson_obj_get(event, "data"), *id = yyjson_obj_get(event, "event_id");
        yyjson_val *type = yyjson_obj_get(data, "type");
        enum engine_event_why why = ENGINE_EVENT_TAG;
        bool bad;

        reader->number = yyjson_is_int(id) ? yyjson_get_sint(id) : -1;
        if (reader->number < -1)
                reader->number = -1;
        if (!in_largest_window(reader->view, event))
                why = ENGINE_EVENT_GROUP;
        else if (!yyjson_is_str(type))
                why = ENGINE_EVENT_TYPE;
        else if (yyjson_equals_str(type, "stored"))
                why = read_stored(reader, data);
        else if (yyjson_equals_str(type, "removed"))
                why = read_removed(reader, data);
        bad = why == ENGINE_EVENT_TYPE || why == ENGINE_EVENT_LIMIT || why == ENGINE_EVENT_MEMORY;
        if (why == ENGINE_EVENT_FINE)
                return;
        give_useless(reader, bad ? ENGINE_EVENT_BAD : ENGINE_EVENT_IGNORED, why);
}

bool engine_events_decode_json(struct engine_event_decoder *decoder, struct engine_event_view *view,
                               struct kvr_slice body, engine_event_fn *fn, void *ctx, const char **ret_why)
{
        struct reader reader = {.decoder = decoder, .view = view, .fn = fn, .ctx = ctx};
        yyjson_doc *doc = body.len <= ENGINE_EVENT_BATCH_MAX ? yyjson_read(body.data, body.len, 0) : NULL;
        yyjson_val *root = yyjson_doc_get_root(doc), *event;
        size_t i, max;
        bool ok = yyjson_is_arr(root) && yyjson_arr_size(root) <= ENGINE_EVENTS_MAX;

        if (!ok)
                *ret_why = body.len > ENGINE_EVENT_BATCH_MAX ? "too long"
                           : !doc                            ? "no JSON"
                           : yyjson_is_arr(root)             ? "too many events"
                                                             : "no list of events";
        else
                yyjson_arr_foreach(root, i, max, event) read_event(&reader, event);
        yyjson_doc_free(doc);
        return ok;
}
