/* SPDX-License-Identifier: Apache-2.0 */
#include "value.h"

#include <string.h>

#define NEAREST_MAX 64 /* bytes of a word that is compared for a suggestion */

bool value_choice(struct kvr_slice text, const char *words, unsigned *ret)
{
        for (unsigned i = 0; *words; i++) {
                size_t len = strcspn(words, "|");

                if (text.len == len && memcmp(text.data, words, len) == 0) {
                        *ret = i;
                        return true;
                }
                words += len + (words[len] == '|');
        }
        return false;
}

bool value_bool(struct kvr_slice text, bool *ret)
{
        unsigned number;

        if (!value_choice(text, "on|true|yes|1|off|false|no|0", &number))
                return false;
        *ret = number < 4;
        return true;
}

bool value_leading_count(struct kvr_slice text, uint64_t *ret, size_t *ret_len)
{
        uint64_t n = 0;
        size_t i = 0;

        for (; i < text.len && text.data[i] >= '0' && text.data[i] <= '9'; i++)
                if (__builtin_mul_overflow(n, 10, &n) ||
                    __builtin_add_overflow(n, (uint64_t)(text.data[i] - '0'), &n))
                        return false;
        if (!i)
                return false;
        *ret = n;
        *ret_len = i;
        return true;
}

bool value_count(struct kvr_slice text, uint64_t *ret)
{
        uint64_t n;
        size_t len;

        if (!value_leading_count(text, &n, &len) || len != text.len)
                return false;
        *ret = n;
        return true;
}

static unsigned least(unsigned a, unsigned b, unsigned c)
{
        unsigned ab = a < b ? a : b;

        return ab < c ? ab : c;
}

/* Edits (insert, delete, replace) between two short words. */
static unsigned edits_between(struct kvr_slice a, const char *b)
{
        unsigned row[NEAREST_MAX + 1];
        size_t b_len = strlen(b);

        if (a.len > NEAREST_MAX || b_len > NEAREST_MAX)
                return NEAREST_MAX;
        for (size_t j = 0; j <= b_len; j++)
                row[j] = (unsigned)j;
        for (size_t i = 1; i <= a.len; i++) {
                unsigned diagonal = row[0];

                row[0] = (unsigned)i;
                for (size_t j = 1; j <= b_len; j++) {
                        unsigned above = row[j];

                        row[j] = least(above + 1, row[j - 1] + 1, diagonal + (a.data[i - 1] != b[j - 1]));
                        diagonal = above;
                }
        }
        return row[b_len];
}

void value_offer(struct value_nearest *best, struct kvr_slice written, const char *candidate)
{
        unsigned edits = edits_between(written, candidate);
        size_t len = strlen(candidate);

        /* "timeout" is nearer to "idle-timeout" than counting edits says, but so it is to five others: no guess. */
        if (edits <= 2 + len / 8 && edits < len && (!best->word || edits < best->edits))
                *best = (struct value_nearest){candidate, edits};
}
