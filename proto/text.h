/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growing byte buffer. Out of memory and over-limit are states, not crashes: once `failed` is set nothing
 * more is added, and the caller looks once at the end. All zero is empty and without limit.
 */
#ifndef KVROUTE_TEXT_H
#define KVROUTE_TEXT_H

#include <kvroute/base.h>
#include <stdarg.h>

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
void text_add(struct text *text, const char *data, size_t len);
void text_adds(struct text *text, const char *string);
void text_add_slice(struct text *text, struct kvr_slice slice);
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
