/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_free(struct text *text)
{
        free(text->data);
        *text = (struct text){.limit = text->limit};
}

char *text_room(struct text *text, size_t more)
{
        size_t cap = text->cap ? text->cap : 256;
        char *data;

        if (text->failed || more > SIZE_MAX / 2 - text->len ||
            (text->limit && text->len + more > text->limit)) {
                text->failed = true;
                return NULL;
        }
        if (text->cap - text->len >= more && text->data)
                return text->data + text->len;
        while (cap - text->len < more)
                cap *= 2;
        data = realloc(text->data, cap);
        if (!data) {
                text->failed = true;
                return NULL;
        }
        text->data = data;
        text->cap = cap;
        return data + text->len;
}

void text_add_slowly(struct text *text, const char *data, size_t len)
{
        char *room = len ? text_room(text, len) : NULL;

        if (!room)
                return;
        memcpy(room, data, len);
        text->len += len;
}

void text_addu(struct text *text, uint64_t number)
{
        char digits[20];
        size_t at = sizeof digits;

        do
                digits[--at] = (char)('0' + number % 10);
        while (number /= 10);
        text_add(text, digits + at, sizeof digits - at);
}

size_t text_hex(char ret[16], uint64_t number, size_t width)
{
        static const char digits[] = "0123456789abcdef";
        size_t len = width;

        while (len < 16 && number >> (4 * len))
                len++;
        for (size_t i = len; i-- > 0; number >>= 4)
                ret[i] = digits[number & 15];
        return len;
}

void text_addf(struct text *text, const char *format, ...)
{
        va_list args;
        int len;
        char *room;

        va_start(args, format);
        len = vsnprintf(NULL, 0, format, args);
        va_end(args);
        room = len < 0 ? NULL : text_room(text, (size_t)len + 1);
        if (!room)
                return;
        va_start(args, format);
        (void)vsnprintf(room, (size_t)len + 1, format, args);
        va_end(args);
        text->len += (size_t)len;
}

/* Length of the valid UTF-8 sequence at `at`, 0 if there is none. */
static size_t utf8_len(const unsigned char *at, size_t left)
{
        static const struct {
                unsigned char first, last, second_low, second_high;
                size_t len;
        } forms[] = {
                {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3},
                {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
                {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
        };

        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
                if (*at < forms[i].first || *at > forms[i].last)
                        continue;
                if (left < forms[i].len || at[1] < forms[i].second_low || at[1] > forms[i].second_high)
                        return 0;
                for (size_t k = 2; k < forms[i].len; k++) {
                        if ((at[k] & 0xC0) != 0x80)
                                return 0;
                }
                return forms[i].len;
        }
        return 0;
}

void text_add_json(struct text *text, struct kvr_slice bytes)
{
        const unsigned char *at = (const unsigned char *)bytes.data, *end;

        if (!bytes.len) /* nothing may lie nowhere */
                return;
        end = at + bytes.len;
        while (at < end) {
                const unsigned char *plain = at;
                size_t len;

                while (at < end && *at >= 0x20 && *at < 0x7F && *at != '"' && *at != '\\')
                        at++;
                text_add(text, (const char *)plain, (size_t)(at - plain));
                if (at == end)
                        return;
                len = *at >= 0x80 ? utf8_len(at, (size_t)(end - at)) : 0;
                if (len) {
                        text_add(text, (const char *)at, len);
                        at += len;
                        continue;
                }
                if (*at == '"' || *at == '\\') {
                        char escaped[2] = {'\\', (char)*at};

                        text_add(text, escaped, 2);
                } else if (*at >= 0x80) {
                        text_adds(text, "\\ufffd");
                } else {
                        text_addf(text, "\\u%04x", *at);
                }
                at++;
        }
}

void text_drop(struct text *text, size_t count)
{
        if (count >= text->len) {
                text->len = 0;
                return;
        }
        memmove(text->data, text->data + count, text->len - count);
        text->len -= count;
}

const char *text_string(struct text *text)
{
        char *room = text_room(text, 1);

        if (!room)
                return "";
        *room = '\0';
        return text->data;
}
