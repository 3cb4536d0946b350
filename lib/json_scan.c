/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/json_scan.h"
#include "lib/json_scan_x86.h"

#include <stdbool.h>
#include <string.h>

#if defined(__SSE2__) && !defined(KVR_NO_SIMD)
#include <emmintrin.h>
#endif

/* ---- UTF-8 ---- */

/* Length of the valid character at `pos`, 0 if there is none. By the table of well-formed sequences
 * (Unicode 3.9). */
static size_t utf8_char(const unsigned char *data, size_t pos, size_t len)
{
        unsigned char c = data[pos];
        unsigned char low = 0x80, high = 0xBF;
        size_t tail = c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;

        if (c < 0x80)
                return 1;
        if (c < 0xC2 || c > 0xF4 || len - pos <= tail)
                return 0;
        if (c == 0xE0)
                low = 0xA0; /* shorter forms exist */
        else if (c == 0xED)
                high = 0x9F; /* surrogates */
        else if (c == 0xF0)
                low = 0x90;
        else if (c == 0xF4)
                high = 0x8F; /* beyond U+10FFFF */
        if (data[pos + 1] < low || data[pos + 1] > high)
                return 0;
        for (size_t i = 2; i <= tail; i++)
                if (data[pos + i] < 0x80 || data[pos + i] > 0xBF)
                        return 0;
        return tail + 1;
}

int kvr__utf8_valid(const unsigned char *data, size_t len)
{
        size_t pos = 0;

        while (pos < len) {
                uint64_t word;
                size_t step;

                if (len - pos >= sizeof(word)) {
                        memcpy(&word, data + pos, sizeof(word));
                        if (!(word & 0x8080808080808080ull)) {
                                pos += sizeof(word);
                                continue;
                        }
                }
                step = utf8_char(data, pos, len);
                if (!step)
                        return 0;
                pos += step;
        }
        return 1;
}

/* ---- escapes ---- */

/* Value of a hexadecimal digit plus one; 0 for other bytes. */
static const unsigned char hex_values[256] = {
        ['0'] = 1,  ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,  ['6'] = 7,  ['7'] = 8,
        ['8'] = 9,  ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
        ['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16,
};

static inline int hex_digit(unsigned char c)
{
        return hex_values[c] - 1;
}

/* The number in the four hex digits at `p`, or -1. */
static inline int hex4(const unsigned char *p)
{
        int a = hex_digit(p[0]), b = hex_digit(p[1]), c = hex_digit(p[2]), d = hex_digit(p[3]);

        return (a | b | c | d) < 0 ? -1 : a << 12 | b << 8 | c << 4 | d;
}

/* The letter of the two-byte escape that stands for a control character, 0 if it has none. */
static inline char short_escape(uint32_t c)
{
        switch (c) {
        case '\b':
                return 'b';
        case '\f':
                return 'f';
        case '\n':
                return 'n';
        case '\r':
                return 'r';
        case '\t':
                return 't';
        default:
                return 0;
        }
}

static inline int is_high_surrogate(int v)
{
        return v >= 0xD800 && v <= 0xDBFF;
}

static inline int is_low_surrogate(int v)
{
        return v >= 0xDC00 && v <= 0xDFFF;
}

/* The \u escape at `pos` (its backslash). As kvr__scan_escapes, for one. */
static uint32_t scan_unicode(const unsigned char *data, uint32_t pos, uint32_t len, uint32_t *flags)
{
        int v, w;

        v = len - pos >= 6 ? hex4(data + pos + 2) : -1;
        if (v < 0) {
                uint32_t i = pos + 2;

                while (i < len && i < pos + 6 && hex_digit(data[i]) >= 0)
                        i++;
                *flags |= KVR__SCAN_ERROR;
                return i < len ? i : len;
        }
        /* Digits are '0' to '9' or letters; bit 5 tells lower case from upper case letters. */
        if (v >= 0x20 || short_escape((uint32_t)v) || (data[pos + 5] >= 'A' && data[pos + 5] <= 'F'))
                *flags |= KVR__SCAN_REWRITE;
        if (is_low_surrogate(v)) {
                *flags |= KVR__SCAN_LONE;
        } else if (is_high_surrogate(v)) {
                w = len - pos >= 12 && data[pos + 6] == '\\' && data[pos + 7] == 'u' ? hex4(data + pos + 8)
                                                                                     : -1;
                if (is_low_surrogate(w))
                        return pos + 12;
                *flags |= KVR__SCAN_LONE;
        }
        return pos + 6;
}

uint32_t kvr__scan_escapes(const unsigned char *data, uint32_t pos, uint32_t len, uint32_t *flags)
{
        while (pos < len && data[pos] == '\\') {
                if (pos + 1 >= len) {
                        *flags |= KVR__SCAN_ERROR;
                        return len;
                }
                switch (data[pos + 1]) {
                case '/':
                        *flags |= KVR__SCAN_REWRITE;
                        pos += 2;
                        break;
                case '"':
                case '\\':
                case 'b':
                case 'f':
                case 'n':
                case 'r':
                case 't':
                        pos += 2;
                        break;
                case 'u':
                        pos = scan_unicode(data, pos, len, flags);
                        if (*flags & KVR__SCAN_ERROR)
                                return pos;
                        break;
                default:
                        *flags |= KVR__SCAN_ERROR;
                        return pos + 1;
                }
        }
        return pos;
}

static inline uint32_t put_utf8(uint32_t v, char *ret)
{
        if (v < 0x80) {
                ret[0] = (char)v;
                return 1;
        }
        if (v < 0x800) {
                ret[0] = (char)(0xC0 | v >> 6);
                ret[1] = (char)(0x80 | (v & 0x3F));
                return 2;
        }
        if (v < 0x10000) {
                ret[0] = (char)(0xE0 | v >> 12);
                ret[1] = (char)(0x80 | (v >> 6 & 0x3F));
                ret[2] = (char)(0x80 | (v & 0x3F));
                return 3;
        }
        ret[0] = (char)(0xF0 | v >> 18);
        ret[1] = (char)(0x80 | (v >> 12 & 0x3F));
        ret[2] = (char)(0x80 | (v >> 6 & 0x3F));
        ret[3] = (char)(0x80 | (v & 0x3F));
        return 4;
}

/* The character of the escape at `p` (accepted before, so complete); *ret_len is the length of the escape. */
static inline uint32_t escaped_char(const unsigned char *p, const unsigned char *end, uint32_t *ret_len)
{
        int v, w;

        *ret_len = 2;
        switch (p[1]) {
        case 'b':
                return '\b';
        case 'f':
                return '\f';
        case 'n':
                return '\n';
        case 'r':
                return '\r';
        case 't':
                return '\t';
        case 'u':
                break;
        default:
                return p[1];
        }
        *ret_len = 6;
        v = hex4(p + 2);
        if (is_high_surrogate(v) && end - p >= 12 && p[6] == '\\' && p[7] == 'u') {
                w = hex4(p + 8);
                if (is_low_surrogate(w)) {
                        *ret_len = 12;
                        return 0x10000u + ((uint32_t)(v & 0x3FF) << 10 | (uint32_t)(w & 0x3FF));
                }
        }
        return (uint32_t)v;
}

/* One character in its canonical spelling. */
static inline uint32_t put_canonical(uint32_t v, char *ret)
{
        static const char digits[] = "0123456789abcdef";
        char letter;

        if (v >= 0x20 && v != '"' && v != '\\')
                return put_utf8(v, ret);
        letter = v >= 0x20 ? (char)v : short_escape(v);
        ret[0] = '\\';
        if (letter) {
                ret[1] = letter;
                return 2;
        }
        memcpy(ret + 1, "u00", 3);
        ret[4] = digits[v >> 4];
        ret[5] = digits[v & 15];
        return 6;
}

typedef uint32_t (*put_fn)(uint32_t v, char *ret);

/*
 * Copies up to a backslash or the end. Where 16 bytes are read 16 are written, which is within the room: what
 * is written is never ahead of what is read.
 */
static inline size_t copy_run(const unsigned char *p, const unsigned char *end, char *out)
{
        const unsigned char *start = p;

#if defined(__SSE2__) && !defined(KVR_NO_SIMD)
        while (end - p >= 16) {
                __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
                int found = _mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_set1_epi8('\\')));

                _mm_storeu_si128((__m128i *)(void *)out, v);
                if (found)
                        return (size_t)(p - start) + (size_t)__builtin_ctz((unsigned)found);
                p += 16;
                out += 16;
        }
#endif
        while (p < end && *p != '\\')
                *out++ = (char)*p++;
        return (size_t)(p - start);
}

static inline __attribute__((always_inline)) uint32_t rewrite(const char *body, uint32_t length, char *ret,
                                                              put_fn put, int keep_short)
{
        const unsigned char *p = (const unsigned char *)body;
        const unsigned char *end = p + length;
        char *out = ret;

        while (p < end) {
                size_t run = copy_run(p, end, out);

                out += run;
                p += run;
                while (p < end && *p == '\\') {
                        uint32_t used, v;

                        if (keep_short && p[1] != 'u' && p[1] != '/') {
                                memcpy(out, p, 2);
                                out += 2;
                                p += 2;
                                continue;
                        }
                        v = escaped_char(p, end, &used);
                        p += used;
                        out += put(v, out);
                }
        }
        return (uint32_t)(out - ret);
}

uint32_t kvr__json_canonical(const char *body, uint32_t length, char *ret)
{
        return rewrite(body, length, ret, put_canonical, 1);
}

uint32_t kvr__json_decode(const char *body, uint32_t length, char *ret)
{
        return rewrite(body, length, ret, put_utf8, 0);
}

/* ---- the scanner for any machine ---- */

/* Whether eight bytes are plain ASCII text: no quote, backslash, control character or upper bit. */
static inline bool is_plain_word(const unsigned char *p)
{
        const uint64_t ones = 0x0101010101010101ull, tops = 0x8080808080808080ull;
        uint64_t word, quote, slash;

        memcpy(&word, p, sizeof(word));
        quote = word ^ ones * '"';
        slash = word ^ ones * '\\';
        /* Subtracting takes a byte's upper bit from its neighbour or from below zero: it shows what is too
         * small. */
        return !(((quote - ones) | (slash - ones) | (word - ones * 0x20) | word) & tops);
}

struct kvr__scan kvr__scan_portable(const unsigned char *data, uint32_t pos, uint32_t len)
{
        uint32_t flags = 0;

        while (pos < len) {
                unsigned char c;

                while (len - pos >= 8 && is_plain_word(data + pos))
                        pos += 8;
                if (pos == len)
                        break;
                c = data[pos];
                if (c == '"')
                        return (struct kvr__scan){pos, flags};
                if (c == '\\') {
                        pos = kvr__scan_escapes(data, pos, len, &flags);
                        if (flags & KVR__SCAN_ERROR)
                                return (struct kvr__scan){pos, flags};
                } else if (c >= 0x80) {
                        uint32_t step = (uint32_t)utf8_char(data, pos, len);

                        if (!step)
                                flags |= KVR__SCAN_BAD_UTF8;
                        pos += step ? step : 1;
                } else if (c < 0x20) {
                        return (struct kvr__scan){pos, flags | KVR__SCAN_ERROR};
                } else {
                        pos++;
                }
        }
        return (struct kvr__scan){len, flags | KVR__SCAN_ERROR};
}

/* ---- choice ---- */

static const struct kvr__scanner scanners[] = {
        {"portable", kvr__scan_portable},
#ifdef KVR__SCAN_X86
        {"sse2", kvr__scan_sse2},
        {"avx2", kvr__scan_avx2},
        {"avx512", kvr__scan_avx512},
#endif
};

size_t kvr__scanner_count(void)
{
#ifdef KVR__SCAN_X86
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") ||
            !__builtin_cpu_supports("bmi2"))
                return 2;
        if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
                return 3;
#endif
        return sizeof(scanners) / sizeof(scanners[0]);
}

const struct kvr__scanner *kvr__scanner_at(size_t number)
{
        return &scanners[number];
}
