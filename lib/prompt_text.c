/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prompts that are text or token ids: completions, embeddings, llama.cpp's /completion, SGLang's /generate.
 */
#include "lib/prompt_canon.h"

#include <string.h>

#define ID_DIGITS_MAX 10
#define IDS_AT_ONCE   64

/* What the elements of an array are. */
struct kinds {
        uint32_t count, numbers, strings, others;
};

static struct kinds kinds_of(const struct kvr__json *json, uint32_t array)
{
        struct kinds kinds = {0};
        uint32_t end = kvr__json_end(json, array);

        for (uint32_t one = array + 1; one < end; one = kvr__json_next(json, one)) {
                enum kvr__json_type type = kvr__json_type(json, one);

                kinds.count++;
                if (type == KVR__JSON_NUMBER)
                        kinds.numbers++;
                else if (type == KVR__JSON_STRING || type == KVR__JSON_STRING_X)
                        kinds.strings++;
                else
                        kinds.others++;
        }
        return kinds;
}

/* kinds_of for what is nearly always asked of long arrays. */
static bool all_numbers(const struct kvr__json *json, uint32_t array)
{
        uint32_t end = kvr__json_end(json, array);
        uint32_t others = 0;

        for (uint32_t token = array + 1; token < end; token++)
                others |= json->tokens[token].head ^ (uint32_t)KVR__JSON_NUMBER << 29;
        return end > array + 1 && others >> 29 == 0;
}

/* A token id: a plain integer of 32 bits. */
static bool read_id(const struct kvr__json *json, uint32_t token, uint32_t *ret)
{
        struct kvr_slice text = kvr__json_text(json, token);
        uint64_t id = 0;

        if (text.len > ID_DIGITS_MAX)
                return false;
        for (size_t i = 0; i < text.len; i++) {
                unsigned digit = (unsigned char)text.data[i] - (unsigned)'0';

                if (digit > 9)
                        return false;
                id = id * 10 + digit;
        }
        *ret = (uint32_t)id;
        return id <= UINT32_MAX;
}

/*
 * read_id for up to eight digits with eight bytes to read: without a loop, as lengths change from id to id.
 */
static inline bool read_short_id(const char *text, uint32_t len, uint32_t *ret)
{
        uint64_t word;

        memcpy(&word, text, sizeof(word));
        /* The digits to the upper end; zeros stand in front of them. */
        word = (word ^ 0x3030303030303030ull) << (64 - 8 * len);
        if (((word + 0x7676767676767676ull) | word) & 0x8080808080808080ull)
                return false;
        /* Pairs of digits, then two pairs of pairs at once. */
        word = word * 10 + (word >> 8);
        *ret = (uint32_t)(((word & 0x000000FF000000FFull) * 0x000F424000000064ull +
                           (word >> 16 & 0x000000FF000000FFull) * 0x0000271000000001ull) >>
                          32);
        return true;
}

static inline bool read_any_id(const struct kvr_parser *parser, uint32_t token, uint32_t *ret)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        uint32_t offset = kvr__json_offset(&parser->json, token);
        uint32_t len = parser->json.tokens[token].arg;

        if (len <= 8 && parser->length - offset >= 8)
                return read_short_id(parser->json.text + offset, len, ret);
#endif
        return read_id(&parser->json, token, ret);
}

/* Keeps ids for those who match by them. Without the memory they are just not kept. */
static void keep_ids(struct kvr_parser *parser, const uint32_t *ids, uint32_t count)
{
        uint32_t have = parser->id_count;

        if (count > KVR_PROMPT_IDS_MAX - have)
                count = KVR_PROMPT_IDS_MAX - have;
        if (!count || have + count > parser->id_room)
                return;
        memcpy(parser->ids + have, ids, count * sizeof(*ids));
        parser->id_count = have + count;
}

static void ids_reserve(struct kvr_parser *parser, uint32_t count)
{
        if (count > KVR_PROMPT_IDS_MAX)
                count = KVR_PROMPT_IDS_MAX;
        if (count <= parser->id_room)
                return;
        uint32_t *ids = realloc(parser->ids, count * sizeof(*ids));

        if (!ids)
                return;
        parser->ids = ids;
        parser->id_room = count;
}

/* Ids get a stream of their own unit, which follows the settings written so far. */
static void put_ids(struct kvr_parser *parser, uint32_t array, enum kvr_unit *ret_unit)
{
        struct kvr__stream *stream = &parser->stream;
        uint32_t end = kvr__json_end(&parser->json, array);
        uint32_t ids[IDS_AT_ONCE];
        uint32_t count = 0;

        if (!kvr__stream_finish(stream))
                return;
        kvr__stream_start(
                stream, &parser->hash,
                kvr__hash_numbers(&parser->hash, (const uint64_t[]){stream->chain, KVR_UNIT_TOKENS}, 2),
                KVR_UNIT_TOKENS);
        *ret_unit = KVR_UNIT_TOKENS;
        ids_reserve(parser, end - array - 1);
        for (uint32_t token = array + 1; token < end; token++) {
                if (!read_any_id(parser, token, &ids[count])) {
                        parser->unkeyed = true;
                        return;
                }
                if (++count == IDS_AT_ONCE) {
                        kvr__stream_ids(stream, ids, count);
                        keep_ids(parser, ids, count);
                        count = 0;
                }
        }
        kvr__stream_ids(stream, ids, count);
        keep_ids(parser, ids, count);
}

/* llama.cpp joins texts and ids to one prompt: [1, "What is", 29871]. */
static void put_mixed(struct kvr_parser *parser, uint32_t array)
{
        const struct kvr__json *json = &parser->json;
        uint32_t end = kvr__json_end(json, array);

        for (uint32_t one = array + 1; one < end; one++) {
                struct kvr_slice text = kvr__json_text(json, one);

                if (kvr__json_is_string(json, one)) {
                        kvr__stream_text(&parser->stream);
                        kvr__canon_text(parser, one);
                } else {
                        kvr__stream_tag(&parser->stream, KVR__TAG_IDS);
                        kvr__stream_lend(&parser->stream, text.data, (uint32_t)text.len);
                }
        }
}

/* One text, with nothing behind it. */
static void put_text(struct kvr_parser *parser, uint32_t token)
{
        struct kvr_prompt_text *text = &parser->text;

        kvr__stream_text(&parser->stream);
        text->chain = parser->stream.chain;
        text->start = parser->stream.pos;
        text->bytes = kvr__canon_text(parser, token);
}

/* llama.cpp: {"prompt_string": ..., "multimodal_data": [...]}. The media stand in front: markers in the text
 * tell where. */
static enum kvr_status put_object(struct kvr_parser *parser, uint32_t object, const struct kvr__path *path)
{
        static const struct kvr__name names[] = {KVR__NAME("prompt_string"), KVR__NAME("multimodal_data")};
        const struct kvr__json *json = &parser->json;
        uint32_t member[2];
        enum kvr_status status = kvr__members(parser, object, path, names, 2, member);

        if (status)
                return status;
        if (!member[0] || !kvr__json_is_string(json, member[0]) ||
            (kvr__given(parser, member[1]) && kvr__json_type(json, member[1]) != KVR__JSON_ARRAY)) {
                parser->unkeyed = true;
                return KVR_OK;
        }
        if (kvr__given(parser, member[1])) {
                uint32_t end = kvr__json_end(json, member[1]);

                for (uint32_t one = member[1] + 1; one < end; one = kvr__json_next(json, one)) {
                        kvr__stream_tag(&parser->stream, KVR__TAG_MEDIA);
                        kvr__canon_value(parser, one, true);
                        kvr__stream_media(&parser->stream);
                }
        }
        put_text(parser, member[0]);
        return KVR_OK;
}

/* One prompt, not a list of them. */
static enum kvr_status put_one(struct kvr_parser *parser, uint32_t token, const struct kvr__path *path,
                               enum kvr_unit *ret_unit)
{
        const struct kvr__json *json = &parser->json;

        switch (kvr__json_type(json, token)) {
        case KVR__JSON_STRING:
        case KVR__JSON_STRING_X:
                put_text(parser, token);
                return KVR_OK;
        case KVR__JSON_OBJECT:
                return put_object(parser, token, path);
        case KVR__JSON_ARRAY: {
                struct kinds kinds;

                if (all_numbers(json, token)) {
                        put_ids(parser, token, ret_unit);
                        return KVR_OK;
                }
                kinds = kinds_of(json, token);

                if (!kinds.count || kinds.others)
                        parser->unkeyed = true;
                else
                        put_mixed(parser, token);
                return KVR_OK;
        }
        default:
                parser->unkeyed = true;
                return KVR_OK;
        }
}

enum kvr_status kvr__text_write(struct kvr_parser *parser, enum kvr__field field, enum kvr_unit *ret_unit,
                                uint32_t *ret_count)
{
        const struct kvr__json *json = &parser->json;
        struct kvr__path path = {.name = kvr__field_name(field)};
        struct kvr__path first = {.up = &path};
        uint32_t token = parser->field[field];
        struct kinds kinds;

        if (!kvr__given(parser, token)) {
                parser->unkeyed = true;
                return KVR_OK;
        }
        if (!kvr__json_is_string(json, token) && !kvr__json_is_container(json, token))
                return kvr__wrong_type(parser, &path, token, "a string or an array");
        if (kvr__json_type(json, token) != KVR__JSON_ARRAY)
                return put_one(parser, token, &path, ret_unit);
        if (all_numbers(json, token))
                return put_one(parser, token, &path, ret_unit);
        kinds = kinds_of(json, token);
        /* Numbers alone, or numbers and strings, are one prompt; anything else is a list of prompts. */
        if (kinds.numbers && !kinds.others)
                return put_one(parser, token, &path, ret_unit);
        *ret_count = kinds.count;
        if (!kinds.count) {
                parser->unkeyed = true;
                return KVR_OK;
        }
        return put_one(parser, token + 1, &first, ret_unit);
}
