/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_events.h"

#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

#include "kv_events_int.h"

const char *engine_event_why_name(enum engine_event_why why)
{
        static const char *const names[ENGINE_EVENT_WHYS] = {[ENGINE_EVENT_FINE] = "fine",
#define WHY_NAME(code, name) [ENGINE_EVENT_##code] = (name),
                                                             ENGINE_EVENT_WHY_LIST(WHY_NAME)
#undef WHY_NAME
        };

        return names[why];
}

struct engine_event_decoder *engine_event_decoder_new(void)
{
        return calloc(1, sizeof(struct engine_event_decoder));
}

void engine_event_decoder_free(struct engine_event_decoder *decoder)
{
        if (!decoder)
                return;
        free(decoder->hashes);
        free(decoder->extra);
        free(decoder->tokens);
        free(decoder);
}

/* ---- what both decoders use ---- */

static bool grow(void **array, size_t *cap, size_t count, size_t size)
{
        size_t want = *cap ? *cap : 256;
        void *bigger;

        if (count <= *cap)
                return true;
        while (want < count)
                want *= 2;
        /* The content is not wanted: not realloc, which would copy it. */
        bigger = malloc(want * size);
        if (!bigger)
                return false;
        free(*array);
        *array = bigger;
        *cap = want;
        return true;
}

bool kv_events_room64(uint64_t **array, size_t *cap, size_t count)
{
        void *raw = *array;
        bool ok = grow(&raw, cap, count, sizeof **array);

        *array = raw;
        return ok;
}

bool kv_events_room32(uint32_t **array, size_t *cap, size_t count)
{
        void *raw = *array;
        bool ok = grow(&raw, cap, count, sizeof **array);

        *array = raw;
        return ok;
}

bool kv_events_decimal(struct kvr_slice text, uint64_t *ret)
{
        uint64_t value = 0;

        if (text.len == 0 || text.len > 18)
                return false;
        for (size_t i = 0; i < text.len; i++) {
                if (text.data[i] < '0' || text.data[i] > '9')
                        return false;
                value = value * 10 + (uint64_t)(text.data[i] - '0');
        }
        *ret = value;
        return true;
}

uint64_t kv_events_hash_bytes(struct kvr_slice bytes)
{
        uint64_t value = 0;

        if (bytes.len < 8)
                return XXH3_64bits(bytes.data, bytes.len);
        for (size_t i = bytes.len - 8; i < bytes.len; i++)
                value = value << 8 | (uint8_t)bytes.data[i];
        return value;
}

uint64_t kv_events_hash_text(struct kvr_slice text)
{
        return XXH3_64bits(text.data, text.len);
}

void kv_events_give_stored(const struct kvr_blocks_stored *stored, int64_t number, engine_event_fn *fn,
                           void *ctx)
{
        struct engine_event event = {
                .kind = ENGINE_EVENT_STORED, .stored = *stored, .tier = stored->tier, .number = number};
        struct kvr_blocks_stored *part = &event.stored;

        for (uint32_t done = 0; done < stored->count; done += part->count) {
                uint32_t left = stored->count - done;

                part->count = left < KVR_EVENT_BLOCKS_MAX ? left : KVR_EVENT_BLOCKS_MAX;
                part->hashes = stored->hashes + done;
                part->tokens = stored->tokens + (size_t)done * stored->block_tokens;
                part->token_count = part->count * stored->block_tokens;
                part->extra = stored->extra ? stored->extra + done : NULL;
                if (done > 0) {
                        part->has_parent = true;
                        part->parent = stored->hashes[done - 1];
                }
                fn(ctx, &event);
        }
}

void kv_events_give_removed(const uint64_t *hashes, uint32_t count, enum kvr_tier tier, int64_t number,
                            engine_event_fn *fn, void *ctx)
{
        struct engine_event event = {.kind = ENGINE_EVENT_REMOVED, .tier = tier, .number = number};

        for (uint32_t done = 0; done < count; done += event.count) {
                uint32_t left = count - done;

                event.hashes = hashes + done;
                event.count = left < KVR_EVENT_BLOCKS_MAX ? left : KVR_EVENT_BLOCKS_MAX;
                fn(ctx, &event);
        }
}

void kv_events_give_useless(enum engine_event_kind kind, enum engine_event_why why, int64_t number,
                            engine_event_fn *fn, void *ctx)
{
        struct engine_event event = {.kind = kind, .why = why, .number = number};

        fn(ctx, &event);
}

/* ---- arrays of an event ---- */

static bool hash_of(const struct msgpack_item *item, uint64_t *ret)
{
        switch (item->type) {
        case MSGPACK_UINT:
                *ret = item->u;
                return true;
        case MSGPACK_INT:
                *ret = (uint64_t)item->i;
                return true;
        case MSGPACK_BIN:
                *ret = kv_events_hash_bytes(item->bytes);
                return true;
        case MSGPACK_STR:
                *ret = kv_events_hash_text(item->bytes);
                return true;
        default:
                return false;
        }
}

static enum engine_event_why begin_array(struct msgpack_cursor *cursor, uint32_t max, uint32_t *ret_count)
{
        struct msgpack_item item;

        *ret_count = 0;
        if (!cursor->at)
                return ENGINE_EVENT_FINE; /* absent: of length 0 */
        if (!msgpack_next(cursor, &item) || (item.type != MSGPACK_ARRAY && item.type != MSGPACK_NIL))
                return ENGINE_EVENT_TYPE;
        if (item.type == MSGPACK_NIL)
                return ENGINE_EVENT_FINE;
        *ret_count = item.count;
        return item.count <= max ? ENGINE_EVENT_FINE : ENGINE_EVENT_LIMIT;
}

static enum engine_event_why read_hashes(struct engine_event_decoder *decoder, struct msgpack_cursor cursor,
                                         uint32_t *ret_count)
{
        enum engine_event_why why = begin_array(&cursor, ENGINE_EVENT_HASHES_MAX, ret_count);
        struct msgpack_item item;

        if (why != ENGINE_EVENT_FINE)
                return why;
        if (!kv_events_room64(&decoder->hashes, &decoder->hash_cap, *ret_count))
                return ENGINE_EVENT_MEMORY;
        for (uint32_t i = 0; i < *ret_count; i++) {
                if (!msgpack_next(&cursor, &item) || !hash_of(&item, &decoder->hashes[i]))
                        return ENGINE_EVENT_TYPE;
        }
        return ENGINE_EVENT_FINE;
}

static bool token_of(const struct msgpack_item *item, uint32_t *ret)
{
        uint64_t value = item->u;

        if (item->type == MSGPACK_STR ? !kv_events_decimal(item->bytes, &value) : item->type != MSGPACK_UINT)
                return false;
        *ret = (uint32_t)value;
        return value <= UINT32_MAX;
}

static enum engine_event_why read_tokens(struct engine_event_decoder *decoder, struct msgpack_cursor cursor,
                                         uint32_t *ret_count)
{
        enum engine_event_why why = begin_array(&cursor, ENGINE_EVENT_TOKENS_MAX, ret_count);
        struct msgpack_item item;

        if (why != ENGINE_EVENT_FINE)
                return why;
        if (!kv_events_room32(&decoder->tokens, &decoder->token_cap, *ret_count))
                return ENGINE_EVENT_MEMORY;
        for (uint32_t i = 0; i < *ret_count; i++) {
                if (!msgpack_next(&cursor, &item) || !token_of(&item, &decoder->tokens[i]))
                        return ENGINE_EVENT_TYPE;
        }
        return ENGINE_EVENT_FINE;
}

/* ---- events ---- */

/* Where it lies. Old versions do not say: then on the GPU. */
static bool tier_of(struct kvr_slice medium, enum kvr_tier *ret)
{
        static const struct {
                const char *name;
                enum kvr_tier tier;
        } media[] = {{"GPU", KVR_TIER_GPU},      {"CPU", KVR_TIER_CPU},   {"CPU_PINNED", KVR_TIER_CPU},
                     {"STORAGE", KVR_TIER_DISK}, {"DISK", KVR_TIER_DISK}, {"EXTERNAL", KVR_TIER_DISK}};

        *ret = KVR_TIER_GPU;
        if (medium.len == 0)
                return true;
        for (size_t i = 0; i < sizeof media / sizeof *media; i++) {
                if (kv_events_is(medium, media[i].name)) {
                        *ret = media[i].tier;
                        return true;
                }
        }
        return false;
}

static bool is_full_attention(const struct kv_event_fields *fields)
{
        static const char *const kinds[] = {"full_attention", "mla_attention", "sink_full_attention"};

        if (fields->kind.len == 0)
                return !fields->has_window && (!fields->has_group || fields->group == 0);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
                if (kv_events_is(fields->kind, kinds[i]))
                        return true;
        }
        return false;
}

/* Layers whose blocks say how much of a prompt can be reused. */
static bool stored_in_group(struct engine_event_view *view, const struct kv_event_fields *fields)
{
        if (!is_full_attention(fields))
                return false;
        if (!fields->has_group)
                return true;
        if (view->group < 0)
                view->group = (int32_t)fields->group;
        return view->group == fields->group;
}

static bool removed_in_group(const struct engine_event_view *view, const struct kv_event_fields *fields)
{
        if (!fields->has_group)
                return true;
        return view->group < 0 ? fields->group == 0 : view->group == fields->group;
}

/* Reasons that can be seen before the arrays are read. */
static enum engine_event_why why_ignored(const struct kv_event_fields *fields, bool in_group,
                                         enum kvr_tier *ret_tier)
{
        if (fields->locality.len > 0 && !kv_events_is(fields->locality, "LOCAL"))
                return ENGINE_EVENT_REMOTE;
        if (!tier_of(fields->medium, ret_tier))
                return ENGINE_EVENT_MEDIUM;
        return in_group ? ENGINE_EVENT_FINE : ENGINE_EVENT_GROUP;
}

/* An adapter that is told by number only must not pass for the base model. */
static void adapter_of(struct kv_event_fields *fields, char room[24])
{
        char *at = room + 23;

        if (fields->adapter.len > 0 || !fields->has_adapter_id)
                return;
        for (uint64_t id = fields->adapter_id, more = 1; more; more = id /= 10)
                *--at = (char)('0' + id % 10);
        *--at = '#';
        fields->adapter = (struct kvr_slice){at, (size_t)(room + 23 - at)};
}

static enum engine_event_why read_stored(struct engine_event_decoder *decoder, struct engine_event_view *view,
                                         struct kv_event_fields *fields, struct kvr_blocks_stored *ret)
{
        enum engine_event_why why = why_ignored(fields, stored_in_group(view, fields), &ret->tier);
        struct msgpack_item parent = {.type = MSGPACK_NIL};
        bool any_extra = false;

        if (why != ENGINE_EVENT_FINE)
                return why;
        why = read_hashes(decoder, fields->hashes, &ret->count);
        if (why == ENGINE_EVENT_FINE)
                why = read_tokens(decoder, fields->tokens, &ret->token_count);
        if (why != ENGINE_EVENT_FINE)
                return why;
        if (ret->count == 0)
                return ENGINE_EVENT_EMPTY;
        if (fields->block_size == 0 || ret->token_count == 0)
                return ret->tier == KVR_TIER_GPU ? ENGINE_EVENT_LENGTH : ENGINE_EVENT_OFFLOAD;
        if (fields->block_size > KVR_BLOCK_TOKENS_MAX)
                return ENGINE_EVENT_LIMIT;
        if (ret->token_count != ret->count * fields->block_size)
                return ENGINE_EVENT_LENGTH;
        if (fields->parent.at && !msgpack_next(&fields->parent, &parent))
                return ENGINE_EVENT_TYPE;
        ret->has_parent = parent.type != MSGPACK_NIL;
        if (ret->has_parent && !hash_of(&parent, &ret->parent))
                return ENGINE_EVENT_TYPE;
        ret->block_tokens = (uint32_t)fields->block_size;
        ret->adapter = fields->adapter;
        ret->salt = fields->salt;
        if (fields->extra_keys.at)
                why = kv_events_read_keys(decoder, fields->extra_keys, ret->count, ret->adapter,
                                          !ret->has_parent, &ret->salt, &any_extra);
        if (ret->salt.len > ENGINE_EVENT_NAME_MAX)
                return ENGINE_EVENT_LIMIT;
        ret->hashes = decoder->hashes;
        ret->tokens = decoder->tokens;
        ret->extra = any_extra ? decoder->extra : NULL;
        return why;
}

static bool is_bad(enum engine_event_why why)
{
        return why == ENGINE_EVENT_TYPE || why == ENGINE_EVENT_LIMIT || why == ENGINE_EVENT_MEMORY;
}

/* The cursor is behind the event afterwards, whatever it was. False: not even that can be found. */
static bool decode_event(struct engine_event_decoder *decoder, struct engine_event_view *view,
                         struct msgpack_cursor *cursor, engine_event_fn *fn, void *ctx)
{
        struct msgpack_cursor event = *cursor;
        struct kv_event_fields fields = {0};
        struct kvr_blocks_stored stored = {0};
        enum engine_event_why why = ENGINE_EVENT_TAG;
        enum kvr_tier tier;
        uint32_t count;
        char adapter_room[24];

        if (!msgpack_skip(cursor))
                return false;
        event.end = cursor->at;
        if (!kv_events_read_fields(&event, &fields)) {
                why = ENGINE_EVENT_TYPE;
        } else if (kv_events_is(fields.tag, "BlockStored")) {
                adapter_of(&fields, adapter_room);
                why = read_stored(decoder, view, &fields, &stored);
                if (why == ENGINE_EVENT_FINE)
                        kv_events_give_stored(&stored, -1, fn, ctx);
        } else if (kv_events_is(fields.tag, "BlockRemoved")) {
                why = why_ignored(&fields, removed_in_group(view, &fields), &tier);
                if (why == ENGINE_EVENT_FINE)
                        why = read_hashes(decoder, fields.hashes, &count);
                if (why == ENGINE_EVENT_FINE && count == 0)
                        why = ENGINE_EVENT_EMPTY;
                if (why == ENGINE_EVENT_FINE)
                        kv_events_give_removed(decoder->hashes, count, tier, -1, fn, ctx);
        } else if (kv_events_is(fields.tag, "AllBlocksCleared")) {
                why = ENGINE_EVENT_FINE;
                kv_events_give_useless(ENGINE_EVENT_CLEARED, why, -1, fn, ctx);
        }
        if (why != ENGINE_EVENT_FINE)
                kv_events_give_useless(is_bad(why) ? ENGINE_EVENT_BAD : ENGINE_EVENT_IGNORED, why, -1, fn,
                                       ctx);
        return true;
}

/* ---- batches ---- */

static bool read_time(struct msgpack_cursor *cursor, double *ret)
{
        struct msgpack_item item;

        if (!msgpack_next(cursor, &item))
                return false;
        *ret = item.type == MSGPACK_FLOAT ? item.f : item.type == MSGPACK_UINT ? (double)item.u : NAN;
        return item.type != MSGPACK_ARRAY && item.type != MSGPACK_MAP;
}

static bool read_rank(struct msgpack_cursor *cursor, int32_t *ret)
{
        uint64_t value;
        bool has;

        if (!kv_events_read_uint(cursor, &value, &has))
                return false;
        *ret = has && value <= INT32_MAX ? (int32_t)value : -1;
        return true;
}

/* Where the parts of a batch are; *events.at == NULL: it has none. */
static const char *open_map(struct msgpack_cursor *cursor, uint32_t pairs, struct engine_event_batch *batch,
                            struct msgpack_cursor *ret_events)
{
        struct msgpack_item name;

        for (uint32_t i = 0; i < pairs; i++) {
                bool ok;

                if (!msgpack_next(cursor, &name))
                        return "cut off";
                if (msgpack_is(&name, "ts"))
                        ok = read_time(cursor, &batch->at_s);
                else if (msgpack_is(&name, "events"))
                        ok = kv_events_read_later(cursor, ret_events);
                else if (msgpack_is(&name, "data_parallel_rank") || msgpack_is(&name, "attn_dp_rank"))
                        ok = read_rank(cursor, &batch->rank);
                else
                        ok = name.type == MSGPACK_STR && msgpack_skip(cursor);
                if (!ok)
                        return "a field is not of its type, or cut off";
        }
        return NULL;
}

static const char *open_array(struct msgpack_cursor *cursor, uint32_t count, struct engine_event_batch *batch,
                              struct msgpack_cursor *ret_events)
{
        if (count < 2)
                return "no batch: fewer than two elements";
        if (!read_time(cursor, &batch->at_s))
                return "its time is no number";
        if (!kv_events_read_later(cursor, ret_events))
                return "cut off";
        if (count > 2 && !read_rank(cursor, &batch->rank))
                return "its rank is no number";
        return NULL;
}

static const char *decode_batch(struct engine_event_decoder *decoder, struct engine_event_view *view,
                                struct msgpack_cursor cursor, struct engine_event_batch *batch,
                                engine_event_fn *fn, void *ctx)
{
        struct msgpack_cursor events = {0};
        struct msgpack_item item;
        const char *why;

        if (!msgpack_next(&cursor, &item))
                return "empty, or no msgpack";
        if (item.type == MSGPACK_MAP)
                why = open_map(&cursor, item.count, batch, &events);
        else if (item.type == MSGPACK_ARRAY)
                why = open_array(&cursor, item.count, batch, &events);
        else
                why = "neither an array nor a map";
        if (why)
                return why;
        if (!events.at || !msgpack_next(&events, &item) || item.type != MSGPACK_ARRAY)
                return "it has no list of events";
        if (item.count > ENGINE_EVENTS_MAX)
                return "too many events";
        for (uint32_t i = 0, count = item.count; i < count; i++) {
                if (!decode_event(decoder, view, &events, fn, ctx))
                        return "an event is cut off";
        }
        return NULL;
}

bool engine_events_decode(struct engine_event_decoder *decoder, struct engine_event_view *view,
                          struct kvr_slice payload, struct engine_event_batch *ret_batch, engine_event_fn *fn,
                          void *ctx, const char **ret_why)
{
        struct engine_event_batch batch = {.at_s = NAN, .rank = -1};
        const char *why = payload.len > ENGINE_EVENT_BATCH_MAX
                                  ? "too long"
                                  : decode_batch(decoder, view, msgpack_begin(payload), &batch, fn, ctx);

        if (why)
                *ret_why = why;
        else
                *ret_batch = batch;
        return why == NULL;
}
