/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growing byte buffer. Out of memory and over-limit are states, not crashes: once `failed` is set nothing
 * more is added, and the caller looks once at the end. All zero is empty and without limit.
 */
#ifndef KVROUTE_TEXT_H
#define KVROUTE_TEXT_H

#include <kvroute/base.h>
#include <stdarg.h>
#include <string.h>

struct text {
        char *data; /* not terminated unless text_string made it so */
        size_t len, cap;
        size_t limit; /* bytes; 0: none */
        bool failed;
};

void text_free(struct text *text);
static inline void text_clear(struct text *text)
{
        text->len = 0;
        text->failed = false;
}
/* Room for `more` bytes behind len; returns where they go, NULL on failure. The caller adds to len. */
char *text_room(struct text *text, size_t more);
/* text_add where there is no room, or a limit to look at. Cold: rare, and callers keep it out of their way. */
__attribute__((cold)) void text_add_slowly(struct text *text, const char *data, size_t len);
/* Inline: a head is put together from some eighty small pieces, most of a length known when it compiles. */
static inline void text_add(struct text *text, const char *data, size_t len)
{
        if (len && text->cap - text->len >= len && !text->failed && !text->limit) {
                memcpy(text->data + text->len, data, len);
                text->len += len;
        } else {
                text_add_slowly(text, data, len);
        }
}
static inline void text_adds(struct text *text, const char *string)
{
        text_add(text, string, strlen(string));
}
static inline void text_add_slice(struct text *text, struct kvr_slice slice)
{
        text_add(text, slice.data, slice.len);
}
void text_addu(struct text *text, uint64_t number);
/* Lower-case hexadecimal digits, padded with zeros to `width` (1 to 16); returns how many. Not terminated. */
size_t text_hex(char ret[16], uint64_t number, size_t width);
void text_addf(struct text *text, const char *format, ...) KVR_PRINTF(2, 3);
/* As the inside of a JSON string: quotes, backslashes and control bytes escaped, invalid UTF-8 replaced. */
void text_add_json(struct text *text, struct kvr_slice bytes);
/* Drops `count` bytes at the front. */
void text_drop(struct text *text, size_t count);
/* The content as a terminated string; "" when it failed. */
const char *text_string(struct text *text);
static inline struct kvr_slice text_slice(const struct text *text)
{
        return (struct kvr_slice){text->data, text->len};
}

#define KVR_SLICE(literal) ((struct kvr_slice){literal, sizeof(literal) - 1})

#endif
