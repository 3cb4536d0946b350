/* SPDX-License-Identifier: Apache-2.0 */
#include "find.h"

#include <string.h>

typedef unsigned char block __attribute__((vector_size(16)));

static block load(const char *at)
{
        block b;

        memcpy(&b, at, sizeof b);
        return b;
}

static const char *find_plain(const char *text, size_t len, const char *needle, size_t needle_len)
{
        for (size_t i = 0; i + needle_len <= len; i++)
                if (text[i] == needle[0] && memcmp(text + i, needle, needle_len) == 0)
                        return text + i;
        return NULL;
}

/* Whether any of the 16 lanes is set. */
static bool any(block hits)
{
        uint64_t halves[2];

        memcpy(halves, &hits, sizeof halves);
        return (halves[0] | halves[1]) != 0;
}

const char *find_text(const char *text, size_t len, const char *needle, size_t needle_len)
{
        const size_t last = needle_len - 1, middle = needle_len / 2;
        size_t i = 0;
        block first_byte, middle_byte, last_byte;

        if (needle_len < 2 || len < needle_len)
                return NULL;
        memset(&first_byte, needle[0], sizeof first_byte);
        memset(&middle_byte, needle[middle], sizeof middle_byte);
        memset(&last_byte, needle[last], sizeof last_byte);
        /*
         * Sixteen starting points at a time: those where three bytes fit are looked at whole. Two would not
         * do: JSON is full of keys as long as "usage".
         */
        for (; i + last + sizeof(block) <= len; i += sizeof(block)) {
                block hits = (block)((load(text + i) == first_byte) & (load(text + i + last) == last_byte) &
                                     (load(text + i + middle) == middle_byte));

                if (any(hits)) {
                        const char *found = find_plain(text + i, sizeof(block) + last, needle, needle_len);

                        if (found)
                                return found;
                }
        }
        return find_plain(text + i, len - i, needle, needle_len);
}
