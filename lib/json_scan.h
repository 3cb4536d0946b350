/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loop of reading JSON: from behind an opening quote to the closing one, checking escapes, control
 * characters and UTF-8 on the way.
 *
 * A string is *canonical* when its escapes are the shortest ones and the only ones JSON demands:
 *     \" \\ \b \f \n \r \t, and \u00xx (lower case) for the other control characters; everything else is raw
 * UTF-8. Every text has exactly one canonical spelling, and it holds no byte below 0x20. Most clients write
 * it anyway, so most strings can be hashed where they lie.
 */
#ifndef KVROUTE_LIB_JSON_SCAN_H
#define KVROUTE_LIB_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>

enum {
        KVR__SCAN_ERROR =
                1, /* `end` is the offset of the byte that cannot stand there (or the length of the data) */
        KVR__SCAN_REWRITE = 2,  /* not canonical: kvr__json_canonical makes it so */
        KVR__SCAN_BAD_UTF8 = 4, /* raw bytes that are not UTF-8 */
        KVR__SCAN_LONE = 8,     /* a \u escape of half a surrogate pair */
};

struct kvr__scan {
        uint32_t end; /* offset of the closing quote */
        uint32_t flags;
};

/* Reads `data` from `pos` (the byte behind the opening quote), never at or beyond `len`. Any thread. */
typedef struct kvr__scan (*kvr__scan_fn)(const unsigned char *data, uint32_t pos, uint32_t len);

struct kvr__scanner {
        const char *name; /* "portable", "sse2", "avx2", "avx512" */
        kvr__scan_fn scan;
};

/* The scanners this CPU can run, slowest first: at least one. For choosing the last, and for testing all. */
size_t kvr__scanner_count(void);
const struct kvr__scanner *kvr__scanner_at(size_t number);

/*
 * The two texts a string body stands for: `length` bytes that a scanner accepted, without the quotes. Both
 * write at most `length` bytes to `ret` and return how many. A lone surrogate becomes the three bytes UTF-8
 * would give its number.
 */
uint32_t kvr__json_canonical(const char *body, uint32_t length, char *ret);
uint32_t kvr__json_decode(const char *body, uint32_t length, char *ret);

/* True when the bytes are valid UTF-8. */
int kvr__utf8_valid(const unsigned char *data, size_t len);

/* For scanners only: the one that needs no vectors. */
struct kvr__scan kvr__scan_portable(const unsigned char *data, uint32_t pos, uint32_t len);

/*
 * For scanners only. Takes the escape whose backslash is at `pos`, and all that follow it without a gap.
 * Returns the offset behind them; on an error adds KVR__SCAN_ERROR and returns the offset of the bad byte.
 */
uint32_t kvr__scan_escapes(const unsigned char *data, uint32_t pos, uint32_t len, uint32_t *flags);

#endif
