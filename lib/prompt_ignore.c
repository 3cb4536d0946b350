/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/prompt_ignore.h"
#include "lib/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEX_MIN     8u /* shorter runs are words and numbers */
#define HEX_MAX     128u
#define UUID_BYTES  36u
#define PLACEHOLDER '\0' /* no JSON string has one */

/* ---- bytes -------------------------------------------------------------------------------------------- */

static bool is_digit(char c)
{
        return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
        return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

static bool is_word(char c)
{
        return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

static bool is_value(char c)
{
        return is_word(c) || c == '-' || c == '_' || c == '.' || c == '+';
}

/* Bytes from `at` on that a test holds for. */
static size_t run(struct kvr_slice text, size_t at, bool (*test)(char))
{
        size_t end = at;

        while (end < text.len && test(text.data[end]))
                end++;
        return end - at;
}

static bool byte_is(struct kvr_slice text, size_t at, const char *any)
{
        return at < text.len && text.data[at] && strchr(any, text.data[at]);
}

static bool ends_word(struct kvr_slice text, size_t at)
{
        return at >= text.len || !is_word(text.data[at]);
}

/* ---- what is left out: bytes of it at this place, 0 none ---------------------------------------------- */

/* 05:06, 5:06:07, 05:06:07.123, with Z, +01:00 or -0100 behind. */
static size_t clock_at(struct kvr_slice text, size_t at)
{
        size_t from = at, hours = run(text, at, is_digit);

        if (hours < 1 || hours > 2 || !byte_is(text, at + hours, ":") ||
            run(text, at + hours + 1, is_digit) != 2)
                return 0;
        at += hours + 3;
        if (byte_is(text, at, ":") && run(text, at + 1, is_digit) == 2) {
                at += 3;
                if (byte_is(text, at, ".,") && run(text, at + 1, is_digit))
                        at += 1 + run(text, at + 1, is_digit);
        }
        if (byte_is(text, at, "Zz"))
                return ends_word(text, at + 1) ? at + 1 - from : 0;
        if (byte_is(text, at, "+-") && run(text, at + 1, is_digit) == 4)
                at += 5;
        else if (byte_is(text, at, "+-") && run(text, at + 1, is_digit) == 2)
                at += 3 + (byte_is(text, at + 3, ":") && run(text, at + 4, is_digit) == 2 ? 3u : 0u);
        return ends_word(text, at) ? at - from : 0;
}

/* 2026-12-01, 2026/12/1 */
static size_t date_at(struct kvr_slice text, size_t at)
{
        size_t from = at, part;

        if (run(text, at, is_digit) != 4 || !byte_is(text, at + 4, "-/."))
                return 0;
        char separator = text.data[at + 4];

        at += 5;
        part = run(text, at, is_digit);
        if (part < 1 || part > 2 || at + part >= text.len || text.data[at + part] != separator)
                return 0;
        at += part + 1;
        part = run(text, at, is_digit);
        return part >= 1 && part <= 2 ? at + part - from : 0;
}

static size_t timestamp_at(struct kvr_slice text, size_t at)
{
        size_t date = date_at(text, at), digits, clock;

        if (date) {
                clock = byte_is(text, at + date, "Tt ") ? clock_at(text, at + date + 1) : 0;
                return clock ? date + 1 + clock : ends_word(text, at + date) ? date : 0;
        }
        /* Seconds or milliseconds since 1970, from 2001 to 2033. */
        digits = run(text, at, is_digit);
        if ((digits == 10 || digits == 13) && text.data[at] == '1' && ends_word(text, at + digits))
                return digits;
        return clock_at(text, at);
}

static size_t uuid_at(struct kvr_slice text, size_t at)
{
        if (at + UUID_BYTES > text.len || !ends_word(text, at + UUID_BYTES))
                return 0;
        for (size_t i = 0; i < UUID_BYTES; i++) {
                bool dash = i == 8 || i == 13 || i == 18 || i == 23;

                if (dash ? text.data[at + i] != '-' : !is_hex(text.data[at + i]))
                        return 0;
        }
        return UUID_BYTES;
}

static size_t hex_at(struct kvr_slice text, size_t at, size_t least)
{
        size_t len = run(text, at, is_hex);

        return len >= least && ends_word(text, at + len) ? len : 0;
}

/* *ret_keep: bytes in front of it that stay. `fresh`: no word goes on here. */
static size_t pattern_at(const struct kvr__ignore_pattern *pattern, struct kvr_slice text, size_t at,
                         bool fresh, size_t *ret_keep)
{
        *ret_keep = 0;
        switch (pattern->kind) {
        case KVR__IGNORE_TIMESTAMP:
                return fresh ? timestamp_at(text, at) : 0;
        case KVR__IGNORE_UUID:
                return fresh ? uuid_at(text, at) : 0;
        case KVR__IGNORE_HEX:
                return fresh ? hex_at(text, at, pattern->len) : 0;
        case KVR__IGNORE_NUMBER:
                return run(text, at, is_digit);
        case KVR__IGNORE_AFTER:
                if (text.len - at < pattern->len || memcmp(text.data + at, pattern->text, pattern->len) != 0)
                        return 0;
                *ret_keep = pattern->len;
                return run(text, at + pattern->len, is_value);
        }
        return 0;
}

/* An escape as JSON writes it is no part of the word behind it: \n2026-12-01. */
static size_t escape_at(struct kvr_slice text, size_t at)
{
        size_t len = at + 1 < text.len && text.data[at + 1] == 'u' ? 6 : 2;

        return at + len <= text.len ? len : text.len - at;
}

size_t kvr__ignore_mask(const struct kvr_ignore *ignore, struct kvr_slice text, char *ret)
{
        size_t at = 0, len = 0;
        bool fresh = true;

        while (at < text.len) {
                size_t drop = 0, keep = 0;

                if (text.data[at] == '\\') {
                        keep = escape_at(text, at);
                        memcpy(ret + len, text.data + at, keep);
                        len += keep;
                        at += keep;
                        fresh = true;
                        continue;
                }
                for (uint32_t i = 0;
                     ignore->begins[(unsigned char)text.data[at]] && !drop && i < ignore->count; i++)
                        drop = pattern_at(&ignore->patterns[i], text, at, fresh, &keep);
                if (drop) {
                        memcpy(ret + len, text.data + at, keep);
                        len += keep;
                        at += keep + drop;
                        ret[len++] = PLACEHOLDER;
                        fresh = true;
                        continue;
                }
                fresh = !is_word(text.data[at]);
                ret[len++] = text.data[at++];
        }
        return len;
}

/* ---- the beginning of a conversation ------------------------------------------------------------------ */

struct gathered {
        struct kvr_parser *parser;
        const struct kvr_ignore *ignore;
        uint32_t left; /* bytes of text still to be looked at */
        bool failed;
};

/* A string's text, and the mark of its end. */
static void gather_text(struct gathered *g, uint32_t token, uint32_t limit)
{
        struct kvr__buffer *room = &g->parser->scratch;
        struct kvr_slice text = kvr__json_text(&g->parser->json, token);

        if (g->failed || !g->left)
                return;
        limit = limit < g->left ? limit : g->left;
        if (text.len > limit)
                text.len = limit;
        if (!kvr__buffer_reserve(room, (uint32_t)text.len + 2)) {
                g->failed = true;
                return;
        }
        room->len += (uint32_t)kvr__ignore_mask(g->ignore, text, room->data + room->len);
        room->data[room->len++] = '"';
        g->left -= (uint32_t)text.len;
}

static uint32_t member(const struct gathered *g, uint32_t object, const char *name)
{
        const struct kvr__json *json = &g->parser->json;
        uint32_t end = kvr__json_end(json, object);

        for (uint32_t key = object + 1; key < end; key = kvr__json_next(json, key + 1)) {
                char room[6 * KVR__FIELD_NAME_MAX];
                struct kvr_slice have = kvr__key(g->parser, key, room);

                if (have.len == strlen(name) && memcmp(have.data, name, have.len) == 0)
                        return key + 1;
        }
        return 0;
}

/*
 * A string, or the texts of a list of parts. What else a part has may come and go between turns (marks of
 * where to cache), so it is left out.
 */
static void gather_content(struct gathered *g, uint32_t token)
{
        const struct kvr__json *json = &g->parser->json;

        if (!token)
                return;
        if (kvr__json_is_string(json, token)) {
                gather_text(g, token, KVR__IGNORE_BYTES);
                return;
        }
        if (kvr__json_type(json, token) != KVR__JSON_ARRAY)
                return;
        for (uint32_t part = token + 1; part < kvr__json_end(json, token);
             part = kvr__json_next(json, part)) {
                uint32_t text = kvr__json_type(json, part) == KVR__JSON_OBJECT ? member(g, part, "text") : 0;

                if (kvr__json_is_string(json, part))
                        gather_text(g, part, KVR__IGNORE_BYTES);
                else if (text && kvr__json_is_string(json, text))
                        gather_text(g, text, KVR__IGNORE_BYTES);
        }
}

/* Messages up to the first one of the user's. True: there was one. */
static bool gather_messages(struct gathered *g, uint32_t list)
{
        const struct kvr__json *json = &g->parser->json;

        if (!list || kvr__json_type(json, list) != KVR__JSON_ARRAY)
                return false;
        for (uint32_t item = list + 1; item < kvr__json_end(json, list); item = kvr__json_next(json, item)) {
                uint32_t role;

                if (kvr__json_type(json, item) != KVR__JSON_OBJECT)
                        continue;
                role = member(g, item, "role");
                gather_content(g, member(g, item, "content"));
                if (role && KVR__STRING_IS(g->parser, role, "user"))
                        return true;
        }
        return false;
}

/* A prompt that is one text is known by how it begins. */
static bool gather_plain(struct gathered *g, uint32_t token)
{
        if (!token || !kvr__json_is_string(&g->parser->json, token))
                return false;
        gather_text(g, token, KVR__IGNORE_TEXT_BYTES);
        return true;
}

static bool gather(struct gathered *g)
{
        const uint32_t *field = g->parser->field;

        switch (g->parser->api) {
        case KVR_API_CHAT:
        case KVR_API_MESSAGES:
                gather_content(g, field[KVR__FIELD_SYSTEM]);
                return gather_messages(g, field[KVR__FIELD_MESSAGES]);
        case KVR_API_RESPONSES:
                gather_content(g, field[KVR__FIELD_INSTRUCTIONS]);
                return gather_plain(g, field[KVR__FIELD_INPUT]) ||
                       gather_messages(g, field[KVR__FIELD_INPUT]);
        case KVR_API_COMPLETIONS:
        case KVR_API_LLAMACPP:
                return gather_plain(g, field[KVR__FIELD_PROMPT]);
        case KVR_API_SGLANG:
                return gather_plain(g, field[KVR__FIELD_TEXT]);
        case KVR_API_EMBEDDINGS: /* has no next turn */
        case KVR_API_OTHER:
                break;
        }
        return false;
}

bool kvr__ignore_hint(struct kvr_parser *parser, const struct kvr_ignore *ignore, struct kvr_prompt *ret)
{
        struct gathered g = {.parser = parser, .ignore = ignore, .left = KVR__IGNORE_BYTES};
        bool found;

        parser->scratch.len = 0;
        found = gather(&g);
        if (g.failed)
                return false;
        if (!found || !parser->scratch.len)
                return true;
        snprintf(parser->ignored, sizeof(parser->ignored), "ignore-%016llx",
                 (unsigned long long)kvr__hash64(&parser->hash, parser->scratch.data, parser->scratch.len));
        ret->hint = (struct kvr_slice){parser->ignored, strlen(parser->ignored)};
        return true;
}

/* ---- the set of patterns ------------------------------------------------------------------------------ */

static bool number_of(struct kvr_slice text, uint32_t *ret)
{
        *ret = 0;
        if (!text.len || text.len > 3 || run(text, 0, is_digit) != text.len)
                return false;
        for (size_t i = 0; i < text.len; i++)
                *ret = *ret * 10 + (uint32_t)(text.data[i] - '0');
        return true;
}

static bool is_name(struct kvr_slice text, const char *name)
{
        return text.len == strlen(name) && memcmp(text.data, name, text.len) == 0;
}

static bool begins_with(struct kvr_slice *text, const char *prefix)
{
        size_t len = strlen(prefix);

        if (text->len < len || memcmp(text->data, prefix, len) != 0)
                return false;
        text->data += len;
        text->len -= len;
        return true;
}

/* True: it is a pattern. */
static bool pattern_read(struct kvr_slice text, struct kvr__ignore_pattern *ret)
{
        *ret = (struct kvr__ignore_pattern){.kind = KVR__IGNORE_TIMESTAMP};
        if (is_name(text, "timestamp"))
                return true;
        if (is_name(text, "uuid")) {
                ret->kind = KVR__IGNORE_UUID;
                return true;
        }
        if (is_name(text, "number")) {
                ret->kind = KVR__IGNORE_NUMBER;
                return true;
        }
        if (begins_with(&text, "hex:")) {
                ret->kind = KVR__IGNORE_HEX;
                return number_of(text, &ret->len) && ret->len >= HEX_MIN && ret->len <= HEX_MAX;
        }
        ret->kind = KVR__IGNORE_AFTER;
        if (!begins_with(&text, "after:") || !text.len || text.len > KVR_IGNORE_TEXT_MAX ||
            text.data[0] == '\\')
                return false;
        memcpy(ret->text, text.data, text.len);
        ret->len = (uint32_t)text.len;
        return true;
}

enum kvr_status kvr_ignore_new(const struct kvr_slice *patterns, size_t count, struct kvr_ignore **ret,
                               struct kvr_error *err)
{
        struct kvr_ignore *ignore;

        if (count > KVR_IGNORE_PATTERNS_MAX)
                return kvr__error_set(err, KVR_E_ARGUMENT, 0, NULL, "more than %d patterns",
                                      KVR_IGNORE_PATTERNS_MAX);
        ignore = calloc(1, sizeof(*ignore));
        if (!ignore)
                return kvr__error_set(err, KVR_E_NOMEM, 0, NULL, "out of memory");
        for (; ignore->count < count; ignore->count++) {
                struct kvr__ignore_pattern *pattern = &ignore->patterns[ignore->count];
                struct kvr_slice text = patterns[ignore->count];

                if (!pattern_read(text, pattern)) {
                        free(ignore);
                        return kvr__error_set(
                                err, KVR_E_ARGUMENT, 0, NULL,
                                "\"%.*s\" is no pattern; write timestamp, uuid, number, hex:N (N digits "
                                "or more, %u to %u) or after:TEXT (at most %d bytes)",
                                (int)(text.len < 64 ? text.len : 64), text.data, HEX_MIN, HEX_MAX,
                                KVR_IGNORE_TEXT_MAX);
                }
                for (int c = 0; c < 256; c++)
                        ignore->begins[c] |=
                                pattern->kind == KVR__IGNORE_AFTER ? (char)c == pattern->text[0]
                                : pattern->kind == KVR__IGNORE_UUID || pattern->kind == KVR__IGNORE_HEX
                                        ? is_hex((char)c)
                                        : is_digit((char)c);
        }
        *ret = ignore;
        return KVR_OK;
}

void kvr_ignore_free(struct kvr_ignore *ignore)
{
        free(ignore);
}
