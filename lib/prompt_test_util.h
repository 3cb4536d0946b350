/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of prompt identity: parsing into one's own copy, chance, and writing a document in another
 * spelling. */
#ifndef KVROUTE_LIB_PROMPT_TEST_UTIL_H
#define KVROUTE_LIB_PROMPT_TEST_UTIL_H

#include "kvroute/prompt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include <cmocka.h>

/* splitmix64 */
static inline uint64_t chance(uint64_t *state)
{
        uint64_t z = (*state += 0x9E3779B97F4A7C15ull);

        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
}

/* ---- growing text ---- */

struct text {
        char *data;
        size_t len, capacity;
};

static inline void put_bytes(struct text *text, const char *bytes, size_t len)
{
        if (text->len + len + 1 > text->capacity) {
                text->capacity = (text->len + len + 1) * 2;
                text->data = realloc(text->data, text->capacity);
                assert_non_null(text->data);
        }
        memcpy(text->data + text->len, bytes, len);
        text->len += len;
        text->data[text->len] = 0;
}

static inline void put_string(struct text *text, const char *string)
{
        put_bytes(text, string, strlen(string));
}

static inline void put_format(struct text *text, const char *format, ...) KVR_PRINTF(2, 3);
static inline void put_format(struct text *text, const char *format, ...)
{
        char room[4096];
        va_list args;
        int len;

        va_start(args, format);
        len = vsnprintf(room, sizeof(room), format, args);
        va_end(args);
        assert_true(len >= 0 && (size_t)len < sizeof(room));
        put_bytes(text, room, (size_t)len);
}

static inline void free_text(struct text *text)
{
        free(text->data);
        *text = (struct text){0};
}

static inline struct kvr_slice slice_of(const char *string)
{
        return (struct kvr_slice){string, strlen(string)};
}

/* ---- parsing ---- */

struct parsed {
        enum kvr_status status;
        struct kvr_error err;
        struct kvr_prompt prompt; /* its slices lie in the parser: good until the next call */
        struct kvr_point *points; /* a copy */
};

/* One parser for all: reuse is part of what is tested. */
static inline struct parsed parse_with(struct kvr_parser *parser, enum kvr_api api, struct kvr_slice body,
                                       const struct kvr_prompt_options *options)
{
        struct parsed parsed = {0};
        /* A copy of exactly this size, so that sanitizers see a read beyond it. */
        char *exact = malloc(body.len ? body.len : 1);
        size_t bytes;

        assert_non_null(exact);
        if (body.len)
                memcpy(exact, body.data, body.len);
        parsed.status = kvr_prompt_parse(parser, api, (struct kvr_slice){exact, body.len}, options,
                                         &parsed.prompt, &parsed.err);
        bytes = parsed.prompt.point_count * sizeof(struct kvr_point);
        parsed.points = malloc(bytes ? bytes : 1);
        assert_non_null(parsed.points);
        if (bytes)
                memcpy(parsed.points, parsed.prompt.points, bytes);
        /* Slices into the copy die with it. */
        if (parsed.prompt.model.data >= exact && parsed.prompt.model.data < exact + body.len)
                parsed.prompt.model = (struct kvr_slice){0};
        parsed.prompt.hint = (struct kvr_slice){0};
        parsed.prompt.previous_id = (struct kvr_slice){0};
        free(exact);
        return parsed;
}

static inline struct parsed parse(struct kvr_parser *parser, enum kvr_api api, const char *body)
{
        static const struct kvr_prompt_options options = {.seed = 7};

        return parse_with(parser, api, slice_of(body), &options);
}

static inline void free_parsed(struct parsed *parsed)
{
        free(parsed->points);
        parsed->points = NULL;
}

/* Points that both have, from the start. */
static inline uint32_t common_points(const struct parsed *a, const struct parsed *b)
{
        uint32_t i = 0;

        while (i < a->prompt.point_count && i < b->prompt.point_count &&
               a->points[i].key == b->points[i].key && a->points[i].end == b->points[i].end)
                i++;
        return i;
}

static inline uint64_t last_key(const struct parsed *parsed)
{
        assert_true(parsed->prompt.point_count > 0);
        return parsed->points[parsed->prompt.point_count - 1].key;
}

/* What holds for every prompt. */
static inline void check_points(const struct parsed *parsed)
{
        uint32_t before = 0;

        assert_true(parsed->prompt.point_count <= KVR_POINTS_MAX);
        for (uint32_t i = 0; i < parsed->prompt.point_count; i++) {
                assert_true(parsed->points[i].key != 0);
                assert_true(parsed->points[i].end > before);
                before = parsed->points[i].end;
        }
        assert_int_equal(parsed->prompt.units, before);
}

/* ---- other spellings ---- */

/* Members below these keys are prompt text as written: their order may not change. */
static inline bool order_counts_below(const char *key)
{
        static const char *const keys[] = {"parameters", "input_schema",           "arguments", "input",
                                           "output",     "chat_template_kwargs",   "lora",      "documents",
                                           "functions",  "previous_input_messages"};

        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
                if (key && !strcmp(key, keys[i]))
                        return true;
        return false;
}

static inline void put_space(struct text *ret, uint64_t *rng)
{
        static const char spaces[] = " \n\t\r";

        while (chance(rng) % 3 == 0)
                put_bytes(ret, spaces + chance(rng) % 4, 1);
}

static inline void put_u(struct text *ret, unsigned unit, uint64_t *rng)
{
        put_format(ret, chance(rng) % 2 ? "\\u%04x" : "\\u%04X", unit);
}

/* One string, each character raw or in one of its escapes, by chance. */
static inline void respell_string(struct text *ret, const char *s, size_t len, uint64_t *rng,
                                  unsigned escapes)
{
        put_string(ret, "\"");
        for (size_t i = 0; i < len;) {
                unsigned char c = (unsigned char)s[i];
                size_t size = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
                uint32_t v = c < 0x80 ? c : c < 0xE0 ? c & 0x1Fu : c < 0xF0 ? c & 0x0Fu : c & 0x07u;
                bool must = c < 0x20 || c == '"' || c == '\\';
                static const char shorts[] = "\b\f\n\r\t\"\\/", letters[] = "bfnrt\"\\/";
                const char *at = c ? memchr(shorts, c, 8) : NULL;

                for (size_t k = 1; k < size; k++)
                        v = v << 6 | ((unsigned char)s[i + k] & 0x3Fu);
                if (at && (must || (escapes && chance(rng) % 2)) && !(escapes && chance(rng) % 4 == 0)) {
                        put_format(ret, "\\%c", letters[at - shorts]);
                } else if (!must && (!escapes || chance(rng) % 4)) {
                        put_bytes(ret, s + i, size);
                } else if (v >= 0x10000) {
                        put_u(ret, 0xD800 + ((v - 0x10000) >> 10), rng);
                        put_u(ret, 0xDC00 + ((v - 0x10000) & 0x3FF), rng);
                } else {
                        put_u(ret, v, rng);
                }
                i += size;
        }
        put_string(ret, "\"");
}

enum { SPELL_SPACES = 1, SPELL_ESCAPES = 2, SPELL_ORDER = 4 };

static inline void respell(struct text *ret, yyjson_val *val, uint64_t *rng, unsigned how, bool fixed);

static inline void respell_object(struct text *ret, yyjson_val *val, uint64_t *rng, unsigned how, bool fixed)
{
        size_t count = yyjson_obj_size(val);
        size_t *order = calloc(count + 1, sizeof(*order));
        yyjson_val **keys = calloc(count + 1, sizeof(yyjson_val *)), *key, *value;
        size_t i, max;

        assert_non_null(order);
        assert_non_null(keys);
        yyjson_obj_foreach(val, i, max, key, value)
        {
                order[i] = i;
                keys[i] = key;
        }
        for (i = count; !fixed && (how & SPELL_ORDER) && i > 1; i--) {
                size_t j = chance(rng) % i, swap = order[i - 1];

                order[i - 1] = order[j];
                order[j] = swap;
        }
        put_string(ret, "{");
        for (i = 0; i < count; i++) {
                key = keys[order[i]];
                value = yyjson_obj_iter_get_val(key);
                if (i)
                        put_string(ret, ",");
                if (how & SPELL_SPACES)
                        put_space(ret, rng);
                respell_string(ret, yyjson_get_str(key), yyjson_get_len(key), rng, how & SPELL_ESCAPES);
                if (how & SPELL_SPACES)
                        put_space(ret, rng);
                put_string(ret, ":");
                respell(ret, value, rng, how, fixed || order_counts_below(yyjson_get_str(key)));
        }
        put_string(ret, "}");
        free(order);
        free(keys);
}

/* Appends the value in another spelling. Read the document with YYJSON_READ_NUMBER_AS_RAW. */
static inline void respell(struct text *ret, yyjson_val *val, uint64_t *rng, unsigned how, bool fixed)
{
        size_t i, max;
        yyjson_val *one;

        if (how & SPELL_SPACES)
                put_space(ret, rng);
        switch (yyjson_get_type(val)) {
        case YYJSON_TYPE_NULL:
                put_string(ret, "null");
                break;
        case YYJSON_TYPE_BOOL:
                put_string(ret, yyjson_get_bool(val) ? "true" : "false");
                break;
        case YYJSON_TYPE_RAW:
                put_bytes(ret, yyjson_get_raw(val), yyjson_get_len(val));
                break;
        case YYJSON_TYPE_STR:
                respell_string(ret, yyjson_get_str(val), yyjson_get_len(val), rng, how & SPELL_ESCAPES);
                break;
        case YYJSON_TYPE_ARR:
                put_string(ret, "[");
                yyjson_arr_foreach(val, i, max, one)
                {
                        if (i)
                                put_string(ret, ",");
                        respell(ret, one, rng, how, fixed);
                }
                put_string(ret, "]");
                break;
        case YYJSON_TYPE_OBJ:
                respell_object(ret, val, rng, how, fixed);
                break;
        default:
                fail();
        }
        if (how & SPELL_SPACES)
                put_space(ret, rng);
}

#endif
