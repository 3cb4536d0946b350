/* SPDX-License-Identifier: Apache-2.0 */
/* The fields of one event in msgpack, by place (older engines) or by name. */
#include "kv_events_int.h"

bool kv_events_read_text(struct msgpack_cursor *cursor, struct kvr_slice *ret)
{
        struct msgpack_item item;

        if (!msgpack_next(cursor, &item))
                return false;
        if (item.type == MSGPACK_NIL) {
                *ret = (struct kvr_slice){0};
                return true;
        }
        *ret = item.bytes;
        return (item.type == MSGPACK_STR || item.type == MSGPACK_BIN) &&
               item.bytes.len <= ENGINE_EVENT_NAME_MAX;
}

bool kv_events_read_uint(struct msgpack_cursor *cursor, uint64_t *ret, bool *ret_has)
{
        struct msgpack_item item;

        if (!msgpack_next(cursor, &item))
                return false;
        *ret_has = item.type == MSGPACK_UINT;
        *ret = item.u;
        return item.type == MSGPACK_UINT || item.type == MSGPACK_NIL;
}

static bool read_group(struct msgpack_cursor *cursor, struct kv_event_fields *fields)
{
        uint64_t value;

        if (!kv_events_read_uint(cursor, &value, &fields->has_group) ||
            (fields->has_group && value > INT32_MAX))
                return false;
        fields->group = (int64_t)value;
        return true;
}

bool kv_events_read_later(struct msgpack_cursor *cursor, struct msgpack_cursor *ret)
{
        *ret = *cursor;
        if (!msgpack_skip(cursor))
                return false;
        ret->end = cursor->at;
        return true;
}

/* One field by the number it has in the array form of BlockStored. False: not of its type. */
static bool read_stored_field(struct msgpack_cursor *cursor, unsigned place, struct kv_event_fields *fields)
{
        uint64_t unused;

        switch (place) {
        case 1:
                return kv_events_read_later(cursor, &fields->hashes);
        case 2:
                return kv_events_read_later(cursor, &fields->parent);
        case 3:
                return kv_events_read_later(cursor, &fields->tokens);
        case 4:
                return kv_events_read_uint(cursor, &fields->block_size, &fields->has_block_size);
        case 5:
                return kv_events_read_uint(cursor, &fields->adapter_id, &fields->has_adapter_id);
        case 6:
                return kv_events_read_text(cursor, &fields->medium);
        case 7:
                return kv_events_read_text(cursor, &fields->adapter);
        case 8:
                return kv_events_read_later(cursor, &fields->extra_keys);
        case 9:
                return read_group(cursor, fields);
        case 10:
                return kv_events_read_text(cursor, &fields->kind);
        case 11:
                return kv_events_read_uint(cursor, &unused, &fields->has_window);
        default:
                return msgpack_skip(cursor);
        }
}

static bool read_removed_field(struct msgpack_cursor *cursor, unsigned place, struct kv_event_fields *fields)
{
        switch (place) {
        case 1:
                return kv_events_read_later(cursor, &fields->hashes);
        case 2:
                return kv_events_read_text(cursor, &fields->medium);
        case 3:
                return read_group(cursor, fields);
        default:
                return msgpack_skip(cursor);
        }
}

static bool read_named_field(struct msgpack_cursor *cursor, const struct msgpack_item *name,
                             struct kv_event_fields *fields)
{
        static const char *const by_place[] = {"block_hashes",
                                               "parent_block_hash",
                                               "token_ids",
                                               "block_size",
                                               "lora_id",
                                               "medium",
                                               "lora_name",
                                               "extra_keys",
                                               "group_idx",
                                               "kv_cache_spec_kind",
                                               "kv_cache_spec_sliding_window"};

        for (unsigned i = 0; i < sizeof by_place / sizeof *by_place; i++) {
                if (msgpack_is(name, by_place[i]))
                        return read_stored_field(cursor, i + 1, fields);
        }
        if (msgpack_is(name, "type"))
                return kv_events_read_text(cursor, &fields->tag);
        if (msgpack_is(name, "cache_salt"))
                return kv_events_read_text(cursor, &fields->salt);
        if (msgpack_is(name, "locality"))
                return kv_events_read_text(cursor, &fields->locality);
        return msgpack_skip(cursor);
}

static bool read_pairs(struct msgpack_cursor *cursor, uint32_t pairs, struct kv_event_fields *fields)
{
        struct msgpack_item name;

        for (uint32_t i = 0; i < pairs; i++) {
                if (!msgpack_next(cursor, &name) || name.type != MSGPACK_STR ||
                    !read_named_field(cursor, &name, fields))
                        return false;
        }
        return true;
}

/* The element behind `medium` of the array form: the name of an adapter at vLLM, at SGLang a map of what is new. */
static bool read_eighth(struct msgpack_cursor *cursor, struct kv_event_fields *fields)
{
        struct msgpack_cursor at = *cursor;
        struct msgpack_item item;

        if (!msgpack_next(&at, &item) || item.type != MSGPACK_MAP)
                return kv_events_read_text(cursor, &fields->adapter);
        *cursor = at;
        return read_pairs(cursor, item.count, fields);
}

bool kv_events_is(struct kvr_slice tag, const char *word)
{
        return tag.len == strlen(word) && memcmp(tag.data, word, tag.len) == 0;
}

static bool read_elements(struct msgpack_cursor *cursor, uint32_t count, struct kv_event_fields *fields)
{
        bool stored, removed;

        if (count == 0 || !kv_events_read_text(cursor, &fields->tag))
                return false;
        stored = kv_events_is(fields->tag, "BlockStored");
        removed = kv_events_is(fields->tag, "BlockRemoved");
        for (unsigned place = 1; place < count; place++) {
                bool ok = stored && place == 7 ? read_eighth(cursor, fields)
                          : stored             ? read_stored_field(cursor, place, fields)
                          : removed            ? read_removed_field(cursor, place, fields)
                                               : msgpack_skip(cursor);

                if (!ok)
                        return false;
        }
        return true;
}

bool kv_events_read_fields(struct msgpack_cursor *cursor, struct kv_event_fields *fields)
{
        struct msgpack_item item;

        if (!msgpack_next(cursor, &item))
                return false;
        if (item.type == MSGPACK_MAP)
                return read_pairs(cursor, item.count, fields) && fields->tag.len > 0;
        return item.type == MSGPACK_ARRAY && read_elements(cursor, item.count, fields) && fields->tag.len > 0;
}
