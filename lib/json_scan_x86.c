/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/json_scan_x86.h"

#ifdef KVR__SCAN_X86

#include <immintrin.h>
#include <string.h>

/* Keeps a value in its kind of register: compilers like to bounce masks between kinds and to rebuild
 * constants. */
#define IN_REGISTER(x) __asm__("" : "+r"(x))
#define IN_VECTOR(x)   __asm__("" : "+v"(x))

/*
 * The bytes that a backslash before them escapes, from the bits of the backslashes. In a run of backslashes
 * every second one is itself escaped, and the byte behind the run is when the run's length is odd. Runs that
 * start on an even bit and on an odd bit are told apart by what a carry does to them: adding the starts to
 * the runs leaves one bit behind each. *carry is 1 when the block's first byte is escaped, and becomes that
 * of the next block.
 */
static inline __attribute__((always_inline)) uint64_t escaped_bytes(uint64_t slashes, uint64_t *carry)
{
        const uint64_t odd_bits = 0xAAAAAAAAAAAAAAAAull;
        uint64_t escaping = slashes, behind, odd_starts, sum;

        if (__builtin_expect(*carry != 0, 0)) {
                escaping &= ~1ull; /* an escaped backslash at the start does not begin a run */
                behind = escaping << 1 | 1;
                /* This must stay a branch, foretold rightly nearly always: as arithmetic each block waits for
                 * the last. */
                __asm__ volatile("" : "+r"(behind));
        } else {
                behind = escaping << 1;
        }
        odd_starts = escaping & odd_bits & ~behind;
        *carry = (uint64_t)__builtin_add_overflow(odd_starts, escaping, &sum);
        /* `sum` has the runs with even starts as they were, and in place of those with odd starts the bit
         * behind. */
        return (~odd_bits ^ sum << 1) & behind;
}

/* Bytes of what is not UTF-8 were seen; whether they are the string's is not known yet. */
#define SUSPECT 0x80000000u

/*
 * The last bytes of the data, too few for a block. A backslash or the first bytes of a character may stand
 * before `pos` without what belongs to them, so this begins with them.
 */
static struct kvr__scan scan_tail(const unsigned char *data, uint32_t start, uint32_t pos, uint32_t len,
                                  uint32_t flags, uint64_t carry)
{
        struct kvr__scan scan;
        uint32_t from = pos;

        if (carry) {
                from--;
        } else if (pos > start && data[pos - 1] >= 0x80) {
                from--;
                while (from > start && pos - from < 4 && data[from] >> 6 == 2)
                        from--;
                /* Continuation bytes of nothing. What is before them may be escaped, so leave it alone. */
                if (data[from] < 0x80)
                        from++;
        }
        scan = kvr__scan_portable(data, from, len);
        scan.flags |= flags & ~SUSPECT;
        if ((flags & SUSPECT) && !(scan.flags & KVR__SCAN_ERROR) &&
            !kvr__utf8_valid(data + start, scan.end - start))
                scan.flags |= KVR__SCAN_BAD_UTF8;
        return scan;
}

/* ---- SSE2: every x86-64 has it ---- */

struct sse2_block {
        __m128i v[4];
};

struct sse2_tables {
        char none;
};

/* No byte shuffle, so no vector check of UTF-8: only where to start with the plain one. */
struct sse2_utf8 {
        uint32_t first; /* offset of the first byte that is not ASCII, when `seen` */
        unsigned seen;
};

static inline __m128i sse2_is(__m128i v, char c)
{
        return _mm_cmpeq_epi8(v, _mm_set1_epi8(c));
}

static inline __m128i sse2_is_control(__m128i v)
{
        return _mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(0x1F)), v);
}

/* Signed: bytes that are not ASCII are below zero. */
static inline __m128i sse2_is_odd(__m128i v)
{
        return _mm_cmplt_epi8(v, _mm_set1_epi8(0x20));
}

static inline __m128i sse2_is_short(__m128i v)
{
        __m128i a = _mm_or_si128(sse2_is(v, '\\'), sse2_is(v, 'b'));
        __m128i b = _mm_or_si128(sse2_is(v, 'f'), sse2_is(v, 'n'));
        __m128i c = _mm_or_si128(sse2_is(v, 'r'), sse2_is(v, 't'));

        return _mm_or_si128(_mm_or_si128(a, b), c);
}

static inline uint64_t sse2_bits(__m128i a, __m128i b, __m128i c, __m128i d)
{
        return (uint64_t)(uint32_t)_mm_movemask_epi8(a) | (uint64_t)(uint32_t)_mm_movemask_epi8(b) << 16 |
               (uint64_t)(uint32_t)_mm_movemask_epi8(c) << 32 |
               (uint64_t)(uint32_t)_mm_movemask_epi8(d) << 48;
}

#define SSE2_EACH(block, f) sse2_bits(f((block)->v[0]), f((block)->v[1]), f((block)->v[2]), f((block)->v[3]))
#define SSE2_QUOTE(x)       sse2_is(x, '"')
#define SSE2_SLASH(x)       sse2_is(x, '\\')
#define SSE2_SELF(x)        (x)

static inline void sse2_load(struct sse2_block *block, const unsigned char *src)
{
        for (int i = 0; i < 4; i++)
                block->v[i] = _mm_loadu_si128((const __m128i *)(const void *)(src + 16 * i));
}

static inline void sse2_utf8_block(struct sse2_utf8 *state, const struct sse2_block *block, uint32_t pos)
{
        if (!state->seen) {
                uint64_t high = SSE2_EACH(block, SSE2_SELF);

                if (high) {
                        state->seen = 1;
                        state->first = pos + (uint32_t)__builtin_ctzll(high);
                }
        }
}

static inline int sse2_utf8_bad(const struct sse2_utf8 *state, const unsigned char *data, uint32_t end)
{
        return state->seen && state->first < end && !kvr__utf8_valid(data + state->first, end - state->first);
}

#define SCAN_NAME kvr__scan_sse2
#define SCAN_TARGET
#define SCAN_BLOCK                             sse2_block
#define SCAN_LOAD(block, src)                  sse2_load(block, src)
#define SCAN_TABLES                            sse2_tables
#define SCAN_TABLES_INIT(tables)               (void)(tables)
#define SCAN_QUOTES(block, tables)             SSE2_EACH(block, SSE2_QUOTE)
#define SCAN_SLASHES(block, tables)            SSE2_EACH(block, SSE2_SLASH)
#define SCAN_ODD(block, tables)                SSE2_EACH(block, sse2_is_odd)
#define SCAN_CONTROLS(block, tables)           SSE2_EACH(block, sse2_is_control)
#define SCAN_SHORT(block, tables)              SSE2_EACH(block, sse2_is_short)
#define SCAN_UTF8                              sse2_utf8
#define SCAN_UTF8_BLOCK(state, block, pos)     sse2_utf8_block(state, block, pos)
#define SCAN_UTF8_RESET(state)                 (void)(state)
#define SCAN_UTF8_BAD(state, data, start, end) ((void)(start), sse2_utf8_bad(state, data, end))
#define SCAN_UTF8_BLOCKS                       1
#include "lib/json_scan_loop.h"

/* ---- AVX2 ---- */

#define AVX2 __attribute__((target("avx2,bmi,bmi2")))

struct avx2_block {
        __m256i v[2];
};

struct avx2_utf8 {
        __m256i before; /* the 32 bytes before the block, if they were checked; else zeros */
        __m256i errors; /* not zero: something was wrong since the start, perhaps behind the closing quote */
};

struct avx2_tables {
        __m256i quote, slash, space, letters, nibble;
};

/* A 16-entry table in both halves. */
#define avx2_table(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))

static inline AVX2 __m256i avx2_high_nibble(__m256i v)
{
        return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(0x0F));
}

/*
 * The letters of short escapes, found by the bits 1 to 4 of each: entry i of the table is the one letter
 * whose bits are i. The quote and b have the same bits, so the quote is left out; the loop knows the quotes
 * anyway.
 */
#define SHORT_LETTERS -1, 'b', -1, 'f', -1, -1, -1, 'n', -1, 'r', 't', -1, -1, -1, '\\', 0

static inline AVX2 void avx2_tables_init(struct avx2_tables *tables)
{
        tables->quote = _mm256_set1_epi8('"');
        tables->slash = _mm256_set1_epi8('\\');
        tables->space = _mm256_set1_epi8(0x20);
        tables->letters = _mm256_broadcastsi128_si256(_mm_setr_epi8(SHORT_LETTERS));
        tables->nibble = _mm256_set1_epi8(0x0F);
        IN_VECTOR(tables->quote);
        IN_VECTOR(tables->slash);
        IN_VECTOR(tables->space);
        IN_VECTOR(tables->letters);
        IN_VECTOR(tables->nibble);
}

static inline AVX2 uint64_t avx2_bits(__m256i a, __m256i b)
{
        return (uint64_t)(uint32_t)_mm256_movemask_epi8(a) | (uint64_t)(uint32_t)_mm256_movemask_epi8(b)
                                                                     << 32;
}

static inline AVX2 void avx2_load(struct avx2_block *block, const unsigned char *src)
{
        block->v[0] = _mm256_loadu_si256((const __m256i *)(const void *)src);
        block->v[1] = _mm256_loadu_si256((const __m256i *)(const void *)(src + 32));
}

static inline AVX2 uint64_t avx2_equal(const struct avx2_block *block, __m256i to)
{
        return avx2_bits(_mm256_cmpeq_epi8(block->v[0], to), _mm256_cmpeq_epi8(block->v[1], to));
}

/* Signed: bytes that are not ASCII are below zero. */
static inline AVX2 uint64_t avx2_odd(const struct avx2_block *block, const struct avx2_tables *tables)
{
        return avx2_bits(_mm256_cmpgt_epi8(tables->space, block->v[0]),
                         _mm256_cmpgt_epi8(tables->space, block->v[1]));
}

static inline AVX2 uint64_t avx2_controls(const struct avx2_block *block, const struct avx2_tables *tables)
{
        return avx2_odd(block, tables) & ~avx2_bits(block->v[0], block->v[1]);
}

static inline AVX2 uint64_t avx2_short(const struct avx2_block *block, const struct avx2_tables *tables)
{
        __m256i same[2];

        for (int i = 0; i < 2; i++) {
                __m256i bits = _mm256_and_si256(_mm256_srli_epi16(block->v[i], 1), tables->nibble);

                same[i] = _mm256_cmpeq_epi8(_mm256_shuffle_epi8(tables->letters, bits), block->v[i]);
        }
        return avx2_bits(same[0], same[1]);
}

/*
 * UTF-8 by table (after Keiser and Lemire, "Validating UTF-8 in less than one instruction per byte", 2021).
 * Every wrong pair of neighbouring bytes shows in three nibbles: both of the first byte and the upper one of
 * the second. Each nibble value has the set of errors it can take part in; what is in all three sets is an
 * error. Two continuation bytes in a row are one too, unless a lead byte of three or four stands two or three
 * bytes before; that is settled afterwards.
 */
enum {
        SHORT = 1,       /* lead byte, then no continuation */
        LONG = 2,        /* ASCII, then a continuation */
        OVER3 = 4,       /* E0 80..9F: would fit in two bytes */
        BIG = 8,         /* F4 90..BF, F5..FF 90..BF: above U+10FFFF */
        SURROGATE = 16,  /* ED A0..BF */
        OVER2 = 32,      /* C0, C1 and a continuation: would fit in one byte */
        OVER4_BIG8 = 64, /* F0 80..8F: would fit in three bytes; F5..FF 80..8F: above U+10FFFF */
        TWO = 128,       /* continuation after continuation */
        ANY = SHORT | LONG | TWO,
};

#define B(x) ((char)(x))

#define UTF8_FIRST_HIGH                                                                                \
        LONG, LONG, LONG, LONG, LONG, LONG, LONG, LONG, B(TWO), B(TWO), B(TWO), B(TWO), SHORT | OVER2, \
                SHORT, SHORT | OVER3 | SURROGATE, SHORT | BIG | OVER4_BIG8
#define UTF8_FIRST_LOW                                                                                       \
        B(ANY | OVER3 | OVER2 | OVER4_BIG8), B(ANY | OVER2), B(ANY), B(ANY), B(ANY | BIG),                   \
                B(ANY | BIG | OVER4_BIG8), B(ANY | BIG | OVER4_BIG8), B(ANY | BIG | OVER4_BIG8),             \
                B(ANY | BIG | OVER4_BIG8), B(ANY | BIG | OVER4_BIG8), B(ANY | BIG | OVER4_BIG8),             \
                B(ANY | BIG | OVER4_BIG8), B(ANY | BIG | OVER4_BIG8), B(ANY | BIG | OVER4_BIG8 | SURROGATE), \
                B(ANY | BIG | OVER4_BIG8), B(ANY | BIG | OVER4_BIG8)
#define UTF8_SECOND_HIGH                                                                                    \
        SHORT, SHORT, SHORT, SHORT, SHORT, SHORT, SHORT, SHORT, B(LONG | OVER2 | TWO | OVER3 | OVER4_BIG8), \
                B(LONG | OVER2 | TWO | OVER3 | BIG), B(LONG | OVER2 | TWO | SURROGATE | BIG),               \
                B(LONG | OVER2 | TWO | SURROGATE | BIG), SHORT, SHORT, SHORT, SHORT

static inline AVX2 __m256i avx2_utf8_errors(__m256i v, __m256i before)
{
        const __m256i first_high = avx2_table(UTF8_FIRST_HIGH);
        const __m256i first_low = avx2_table(UTF8_FIRST_LOW);
        const __m256i second_high = avx2_table(UTF8_SECOND_HIGH);
        __m256i seam = _mm256_permute2x128_si256(before, v, 0x21);
        __m256i prev1 = _mm256_alignr_epi8(v, seam, 15);
        __m256i prev2 = _mm256_alignr_epi8(v, seam, 14);
        __m256i prev3 = _mm256_alignr_epi8(v, seam, 13);
        __m256i sets = _mm256_and_si256(
                _mm256_shuffle_epi8(first_high, avx2_high_nibble(prev1)),
                _mm256_and_si256(
                        _mm256_shuffle_epi8(first_low, _mm256_and_si256(prev1, _mm256_set1_epi8(0x0F))),
                        _mm256_shuffle_epi8(second_high, avx2_high_nibble(v))));
        /* The upper bit is left where the byte must be the third or fourth of its character. */
        __m256i third = _mm256_subs_epu8(prev2, _mm256_set1_epi8(B(0xE0 - 0x80)));
        __m256i fourth = _mm256_subs_epu8(prev3, _mm256_set1_epi8(B(0xF0 - 0x80)));
        __m256i must = _mm256_and_si256(_mm256_or_si256(third, fourth), _mm256_set1_epi8(B(0x80)));

        return _mm256_xor_si256(must, sets);
}

static inline AVX2 void avx2_utf8_block(struct avx2_utf8 *state, const struct avx2_block *block)
{
        __m256i errors = _mm256_or_si256(avx2_utf8_errors(block->v[0], state->before),
                                         avx2_utf8_errors(block->v[1], block->v[0]));

        state->errors = _mm256_or_si256(state->errors, errors);
        state->before = block->v[1];
}

static inline AVX2 int avx2_utf8_bad(const struct avx2_utf8 *state, const unsigned char *data, uint32_t start,
                                     uint32_t end)
{
        /* The last block went beyond the string, so a fault may not be this string's: look again. */
        return !_mm256_testz_si256(state->errors, state->errors) &&
               !kvr__utf8_valid(data + start, end - start);
}

#define SCAN_NAME                              kvr__scan_avx2
#define SCAN_TARGET                            AVX2
#define SCAN_BLOCK                             avx2_block
#define SCAN_LOAD(block, src)                  avx2_load(block, src)
#define SCAN_TABLES                            avx2_tables
#define SCAN_TABLES_INIT(tables)               avx2_tables_init(tables)
#define SCAN_QUOTES(block, tables)             avx2_equal(block, (tables)->quote)
#define SCAN_SLASHES(block, tables)            avx2_equal(block, (tables)->slash)
#define SCAN_ODD(block, tables)                avx2_odd(block, tables)
#define SCAN_CONTROLS(block, tables)           avx2_controls(block, tables)
#define SCAN_SHORT(block, tables)              avx2_short(block, tables)
#define SCAN_UTF8                              avx2_utf8
#define SCAN_UTF8_BLOCK(state, block, pos)     ((void)(pos), avx2_utf8_block(state, block))
#define SCAN_UTF8_RESET(state)                 ((state)->before = _mm256_setzero_si256())
#define SCAN_UTF8_BAD(state, data, start, end) avx2_utf8_bad(state, data, start, end)
#define SCAN_UTF8_BLOCKS                       32
#include "lib/json_scan_loop.h"

/* ---- AVX-512: comparisons give the bits at once ---- */

#define AVX512 __attribute__((target("avx2,bmi,bmi2,avx512f,avx512bw,avx512vl")))

struct avx512_block {
        __m512i v;
};

struct avx512_tables {
        __m512i quote, slash, space, letters, nibble;
        __m512i first_high, first_low, second_high, third, fourth, top; /* for UTF-8 */
};

/* A 16-entry table in all four quarters. */
#define avx512_table(...) _mm512_broadcast_i32x4(_mm_setr_epi8(__VA_ARGS__))

static inline AVX512 void avx512_tables_init(struct avx512_tables *tables)
{
        tables->quote = _mm512_set1_epi8('"');
        tables->slash = _mm512_set1_epi8('\\');
        tables->space = _mm512_set1_epi8(0x20);
        tables->letters = avx512_table(SHORT_LETTERS);
        tables->nibble = _mm512_set1_epi8(0x0F);
        tables->first_high = avx512_table(UTF8_FIRST_HIGH);
        tables->first_low = avx512_table(UTF8_FIRST_LOW);
        tables->second_high = avx512_table(UTF8_SECOND_HIGH);
        tables->third = _mm512_set1_epi8(B(0xE0 - 0x80));
        tables->fourth = _mm512_set1_epi8(B(0xF0 - 0x80));
        tables->top = _mm512_set1_epi8(B(0x80));
        IN_VECTOR(tables->quote);
        IN_VECTOR(tables->slash);
        IN_VECTOR(tables->space);
        IN_VECTOR(tables->letters);
        IN_VECTOR(tables->nibble);
        IN_VECTOR(tables->first_high);
        IN_VECTOR(tables->first_low);
        IN_VECTOR(tables->second_high);
        IN_VECTOR(tables->third);
        IN_VECTOR(tables->fourth);
        IN_VECTOR(tables->top);
}

static inline AVX512 uint64_t avx512_equal(const struct avx512_block *block, __m512i to)
{
        uint64_t bits = _mm512_cmpeq_epi8_mask(block->v, to);

        IN_REGISTER(bits);
        return bits;
}

static inline AVX512 uint64_t avx512_odd(const struct avx512_block *block, const struct avx512_tables *tables)
{
        uint64_t bits = _mm512_cmplt_epi8_mask(block->v, tables->space);

        IN_REGISTER(bits);
        return bits;
}

static inline AVX512 uint64_t avx512_short(const struct avx512_block *block,
                                           const struct avx512_tables *tables)
{
        __m512i bits = _mm512_and_si512(_mm512_srli_epi16(block->v, 1), tables->nibble);

        return avx512_equal(block, _mm512_shuffle_epi8(tables->letters, bits));
}

struct avx512_utf8 {
        __m512i errors; /* as in struct avx2_utf8 */
};

/* Where the three bytes before the block can be read too: at the start of the data that is a copy. */
static inline AVX512 const unsigned char *with_before(const unsigned char *data, uint32_t pos,
                                                      unsigned char room[3 + 64])
{
        if (__builtin_expect(pos >= 3, 1))
                return data + pos;
        memset(room, 0, 3);
        memcpy(room + 3 - pos, data, pos + 64);
        return room + 3;
}

/* avx2_utf8_errors, of the 64 bytes at `p`. */
static inline AVX512 __m512i avx512_utf8_errors(const unsigned char *p, __m512i v,
                                                const struct avx512_tables *tables)
{
        __m512i prev1 = _mm512_loadu_si512((const void *)(p - 1));
        __m512i prev2 = _mm512_loadu_si512((const void *)(p - 2));
        __m512i prev3 = _mm512_loadu_si512((const void *)(p - 3));
        __m512i high1 = _mm512_and_si512(_mm512_srli_epi16(prev1, 4), tables->nibble);
        __m512i high2 = _mm512_and_si512(_mm512_srli_epi16(v, 4), tables->nibble);
        __m512i low1 = _mm512_and_si512(prev1, tables->nibble);
        __m512i sets = _mm512_and_si512(_mm512_shuffle_epi8(tables->first_high, high1),
                                        _mm512_and_si512(_mm512_shuffle_epi8(tables->first_low, low1),
                                                         _mm512_shuffle_epi8(tables->second_high, high2)));
        __m512i third = _mm512_subs_epu8(prev2, tables->third);
        __m512i fourth = _mm512_subs_epu8(prev3, tables->fourth);
        __m512i must = _mm512_and_si512(_mm512_or_si512(third, fourth), tables->top);

        return _mm512_xor_si512(must, sets);
}

static inline AVX512 void avx512_utf8_block(struct avx512_utf8 *state, __m512i v, const unsigned char *data,
                                            uint32_t pos, const struct avx512_tables *tables)
{
        unsigned char room[3 + 64];
        __m512i errors = avx512_utf8_errors(with_before(data, pos, room), v, tables);

        state->errors = _mm512_or_si512(state->errors, errors);
}

static inline AVX512 int avx512_utf8_bad(const struct avx512_utf8 *state, const unsigned char *data,
                                         uint32_t start, uint32_t end)
{
        return _mm512_test_epi8_mask(state->errors, state->errors) &&
               !kvr__utf8_valid(data + start, end - start);
}

#define SCAN_NAME                              kvr__scan_avx512
#define SCAN_TARGET                            AVX512
#define SCAN_BLOCK                             avx512_block
#define SCAN_LOAD(block, src)                  ((block)->v = _mm512_loadu_si512((const void *)(src)))
#define SCAN_TABLES                            avx512_tables
#define SCAN_TABLES_INIT(tables)               avx512_tables_init(tables)
#define SCAN_QUOTES(block, tables)             avx512_equal(block, (tables)->quote)
#define SCAN_SLASHES(block, tables)            avx512_equal(block, (tables)->slash)
#define SCAN_ODD(block, tables)                avx512_odd(block, tables)
#define SCAN_CONTROLS(block, tables)           _mm512_cmplt_epu8_mask((block)->v, (tables)->space)
#define SCAN_SHORT(block, tables)              avx512_short(block, tables)
#define SCAN_UTF8                              avx512_utf8
#define SCAN_UTF8_BLOCK(state, block, pos)     avx512_utf8_block(state, (block)->v, data, pos, &tables)
#define SCAN_UTF8_RESET(state)                 (void)(state)
#define SCAN_UTF8_BAD(state, data, start, end) avx512_utf8_bad(state, data, start, end)
#define SCAN_UTF8_BLOCKS                       32
#include "lib/json_scan_loop.h"

#endif
