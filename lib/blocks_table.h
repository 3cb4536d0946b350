/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash tables of the block index, from 64-bit hashes to numbers, that a thread may read while another changes
 * them.
 *
 *     extent  | line | line | ... 32 |      a line is 64 bytes: eight items {hash 32, more of it 4, number 27}
 *                 └──► line of the reserve  when there are more than eight: the last place is a link to it
 *
 * Linear hashing: lines 0..count-1 are in use, every few insertions divide one line and every few removals
 * join two, so that no step is long and memory follows the content. An item has the low half of its hash,
 * which tells its line among any number of lines, so nobody has to be asked for it when its line is divided;
 * what the line does not tell and four bits more are what items are told apart by: in a table of n items a
 * search for what is not there finds something about once in 2^36/n times.
 *
 * One thread changes a table. Others may walk it: all they read is atomic and nothing that they can reach is
 * given back to the system, so they see items or miss them, and whoever walks must look at what the number
 * stands for. `changes` tells a walk that found nothing whether a line was on the move.
 */
#ifndef KVROUTE_LIB_BLOCKS_TABLE_H
#define KVROUTE_LIB_BLOCKS_TABLE_H

#include <stdatomic.h>
#ifdef __SSE2__
#include <immintrin.h>
#define KVR__LINE_VECTORS
#endif
/* What the thread that changes tables may use of the processor: 2 AVX2, 3 AVX-512F; see blocks_form.h. */
#ifndef KVR__LINE_FORM
#define KVR__LINE_FORM 0
#endif
/* The thread sanitizer is to see what readers rely on. */
#ifdef __SANITIZE_THREAD__
#define KVR__ATOMIC_ONLY
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVR__ATOMIC_ONLY
#endif
#endif

#include "pool.h"

#define KVR__PLACES       8
#define KVR__LINK_PLACE   (KVR__PLACES - 1)
#define KVR__EXTENT_SHIFT 5
#define KVR__EXTENT_LINES (1U << KVR__EXTENT_SHIFT)
#define KVR__LINES_FIRST  8U
/*
 * Items, per two lines, beyond which a line more is divided off. Lines that are yet to be divided have up to
 * twice as many as the others, and each look into one that is too full is a cache miss more: with 9 for all tables
 * the index takes in two thirds as many blocks a second. The table of keys has one item for all holders of a
 * block, so more is spent on it.
 */
#define KVR__FILL_LANES  7
#define KVR__FILL_KEYS   6
#define KVR__LINES_MAX   (1U << 28)
#define KVR__CHAIN_LINES 16 /* lines that follow one another in one place; more is no room */
/* The low half of an item. */
#define KVR__NUMBER_MAX 0x07ffffffU
#define KVR__ITEM_MORE  0x78000000U
#define KVR__ITEM_LINK  0x80000000U

struct kvr__places {
        _Atomic uint64_t items[KVR__PLACES];
};

/* Lines for the tables of one index. */
struct kvr__lines {
        struct kvr__pool extents, reserve;
        struct kvr__places *extent_free; /* first of each free list */
        uint32_t reserve_free;
        uint32_t extents_free, reserves_free;
};

typedef _Atomic(struct kvr__places *) kvr__extent;

struct kvr__blocks_table {
        struct kvr__lines *lines;
        kvr__extent *extents;
        uint32_t extent_room;
        bool fixed;    /* others read it: `extents` must not move */
        uint32_t fill; /* KVR__FILL_... */
        uint32_t items;
        uint32_t full, spare;      /* with more items a line is divided, with fewer two are joined */
        _Atomic uint32_t count;    /* lines in use; 0 or at least KVR__LINES_FIRST */
        _Atomic uint32_t changes;  /* odd while a line is divided or two are joined */
        _Atomic uint32_t changing; /* the lower of the two */
};

KVR_MUST_USE bool kvr__lines_init(struct kvr__lines *lines, struct kvr__budget *budget, size_t segment_bytes);
void kvr__lines_fini(struct kvr__lines *lines);

/* An empty table takes no memory. */
void kvr__blocks_table_init(struct kvr__blocks_table *table, struct kvr__lines *lines);
/* For readers: at most `extents` extents, whose directory is made now. */
KVR_MUST_USE bool kvr__blocks_table_init_fixed(struct kvr__blocks_table *table, struct kvr__lines *lines,
                                               uint32_t extents);
/* Gives back all lines, one after the other, and the directory. */
void kvr__blocks_table_fini(struct kvr__blocks_table *table);

/* Puts a number, 1 to KVR__NUMBER_MAX, into the place of this hash, where no such item is. False when there is
 * no room. */
KVR_MUST_USE bool kvr__blocks_table_put(struct kvr__blocks_table *table, uint64_t hash, uint32_t number);
/* Gives an empty table its first lines. False when there is no room. */
KVR_MUST_USE bool kvr__blocks_table_begin(struct kvr__blocks_table *table);
/* Divides a line when there are more items than lines are made for. */
void kvr__blocks_table_divide(struct kvr__blocks_table *table);
/* Takes out the item at this place, found by a walk with this hash. Places found before are void then. */
void kvr__blocks_table_remove(struct kvr__blocks_table *table, uint64_t hash, _Atomic uint64_t *place);
/* What is left to do when an item was taken out of a place of `line`, or of a line that follows it. */
void kvr__blocks_table_tidy(struct kvr__blocks_table *table, struct kvr__places *line, bool follows);

/* Takes the last line out of a table that nobody searches any more: its items, up to KVR__PLACES_TAKEN. Call
 * while there are lines. */
#define KVR__PLACES_TAKEN (KVR__CHAIN_LINES * KVR__PLACES)
uint32_t kvr__blocks_table_pop(struct kvr__blocks_table *table, uint64_t *ret_items);

/* Checks the count and that every item is in its line; shows `each` (or NULL) all items, and adds lines found
 * in use to *extents and *reserve. */
bool kvr__blocks_table_check(const struct kvr__blocks_table *table,
                             void (*each)(void *ctx, uint32_t number, uint32_t hash_low), void *ctx,
                             uint64_t *extents, uint64_t *reserve);

/* ---- items ---- */

static inline bool kvr__is_link(uint64_t item)
{
        return item & KVR__ITEM_LINK;
}

static inline uint32_t kvr__item_number(uint64_t item)
{
        return (uint32_t)item & KVR__NUMBER_MAX;
}

static inline uint32_t kvr__item_hash(uint64_t item)
{
        return (uint32_t)(item >> 32);
}

/* An item without its number: what there is to find of a hash. */
static inline uint64_t kvr__item_of(uint64_t hash)
{
        return hash << 32 | (hash >> 32 & KVR__ITEM_MORE);
}

/* As much of the hash as an item keeps. */
static inline uint64_t kvr__item_hash_of(uint64_t want)
{
        return want >> 32 | (want & KVR__ITEM_MORE) << 32;
}

/* ---- lines ---- */

static inline struct kvr__places *kvr__reserve_at(const struct kvr__lines *lines, uint64_t link)
{
        uint32_t number = (uint32_t)link & ~KVR__ITEM_LINK;
        const struct kvr__pool *pool = &lines->reserve;

        return (struct kvr__places *)(void *)pool->segments[number >> pool->shift] +
               (number & ((1U << pool->shift) - 1));
}

static inline struct kvr__places *kvr__line_at(const struct kvr__blocks_table *table, uint32_t at)
{
        return atomic_load_explicit(&table->extents[at >> KVR__EXTENT_SHIFT], memory_order_acquire) +
               (at & (KVR__EXTENT_LINES - 1));
}

/* Where a hash belongs among `count` lines. */
static inline uint32_t kvr__line_of(uint32_t count, uint32_t hash)
{
        uint32_t half = 0x80000000U >> __builtin_clz(count - 1), at = hash & (2 * half - 1);

        return at < count ? at : at & (half - 1);
}

/* The line of that hash; NULL when there are none. */
static inline struct kvr__places *kvr__blocks_table_line(const struct kvr__blocks_table *table, uint64_t hash)
{
        uint32_t count = atomic_load_explicit(&table->count, memory_order_acquire);

        return count ? kvr__line_at(table, kvr__line_of(count, (uint32_t)hash)) : NULL;
}

/* For one of many lines: into the second-level cache, which waits for more of them at a time than the first. */
#define KVR__PREFETCH_MANY(at) __builtin_prefetch(at, 0, 2)

KVR__PREFETCHER void kvr__blocks_table_prefetch(const struct kvr__blocks_table *table, uint64_t hash)
{
        __builtin_prefetch(kvr__blocks_table_line(table, hash));
}

/* For who looks for many hashes: where the lines of a table are, until one is divided or two are joined. Not to be
 * asked of a table without lines (count 0). */
struct kvr__aim {
        const kvr__extent *extents;
        uint32_t count, mask;
};

static inline struct kvr__aim kvr__aim_of(const struct kvr__blocks_table *table)
{
        uint32_t count = atomic_load_explicit(&table->count, memory_order_acquire);

        return (struct kvr__aim){table->extents, count, UINT32_MAX >> __builtin_clz(count - 1)};
}

static inline struct kvr__places *kvr__aim_line(const struct kvr__aim *aim, uint64_t hash)
{
        uint32_t at = (uint32_t)hash & aim->mask, half = at & aim->mask >> 1;

        at = at < aim->count ? at : half;
        return atomic_load_explicit(&aim->extents[at >> KVR__EXTENT_SHIFT], memory_order_acquire) +
               (at & (KVR__EXTENT_LINES - 1));
}

/* Lines found by the aim are no longer right when this changes. */
static inline uint32_t kvr__blocks_table_changes(const struct kvr__blocks_table *table)
{
        return atomic_load_explicit(&table->changes, memory_order_relaxed);
}

/* A line that was asked for is there now: asks for the one that follows it, if any. */
KVR__PREFETCHER void kvr__line_prefetch_more(const struct kvr__lines *lines, const struct kvr__places *line)
{
        uint64_t last = atomic_load_explicit(&line->items[KVR__LINK_PLACE], memory_order_acquire);

        if (kvr__is_link(last))
                __builtin_prefetch(kvr__reserve_at(lines, last));
}

/* ---- walking ---- */

/* All items that may have this hash: begin, then next until it gives NULL. */
struct kvr__blocks_walk {
        const struct kvr__lines *lines;
        struct kvr__places *line;
        uint64_t want; /* the item, without its number */
        uint32_t hits; /* places of the line still to be given */
        uint32_t left; /* lines that may follow: links that are changed meanwhile could lead in a circle */
        uint32_t at;   /* number of the first line */
        bool own;      /* by the thread that changes the table */
        uint64_t item; /* of the place given last */
};

#ifdef KVR__LINE_VECTORS
/* All items of a line, halves apart. */
struct kvr__line_halves {
        __m128i high[2], low[2];
};

static inline struct kvr__line_halves kvr__line_halves_of(const struct kvr__places *line)
{
        const __m128 *v = (const __m128 *)(const void *)line->items;

        return (struct kvr__line_halves){
                {_mm_castps_si128(_mm_shuffle_ps(v[0], v[1], 0xdd)),
                 _mm_castps_si128(_mm_shuffle_ps(v[2], v[3], 0xdd))},
                {_mm_castps_si128(_mm_shuffle_ps(v[0], v[1], 0x88)),
                 _mm_castps_si128(_mm_shuffle_ps(v[2], v[3], 0x88))},
        };
}

static inline __m128i kvr__halves_same(const __m128i *halves, uint32_t wanted)
{
        __m128i all = _mm_set1_epi32((int)wanted);

        return _mm_packs_epi32(_mm_cmpeq_epi32(halves[0], all), _mm_cmpeq_epi32(halves[1], all));
}
#endif

/*
 * Places with this half of the hash, for readers. What is found has to be looked at again: vectors are no
 * atomic loads, even if the processor does not read an aligned item in two parts.
 */
static inline uint32_t kvr__line_hits(const struct kvr__places *line, uint32_t hash)
{
#if defined(KVR__LINE_VECTORS) && !defined(KVR__ATOMIC_ONLY)
        struct kvr__line_halves halves = kvr__line_halves_of(line);
        __m128i same = kvr__halves_same(halves.high, hash);

        atomic_signal_fence(memory_order_acquire);
        return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(same, _mm_setzero_si128()));
#else
        uint32_t hits = 0;

        for (uint32_t i = 0; i < KVR__PLACES; i++) {
                uint64_t item = atomic_load_explicit(&line->items[i], memory_order_acquire);

                hits |= (uint32_t)(kvr__item_hash(item) == hash) << i;
        }
        return hits;
#endif
}

#if KVR__LINE_FORM == 2
static inline uint32_t kvr__places_same(__m256i low, __m256i high, __m256i wanted)
{
        __m256i first = _mm256_cmpeq_epi64(low, wanted), last = _mm256_cmpeq_epi64(high, wanted);

        return (uint32_t)(_mm256_movemask_pd(_mm256_castsi256_pd(first)) |
                          _mm256_movemask_pd(_mm256_castsi256_pd(last)) << 4);
}
#endif

/* The same for the thread that changes the line, which may read it as it likes: places that may be `want`'s, and
 * the free ones. */
static inline uint32_t kvr__line_hits_own(const struct kvr__places *line, uint64_t want, uint32_t *ret_room)
{
#if KVR__LINE_FORM == 3
        __m512i items = _mm512_load_si512((const void *)line->items);
        __m512i named = _mm512_and_si512(items, _mm512_set1_epi64(~(long long)KVR__NUMBER_MAX));

        *ret_room = _mm512_testn_epi64_mask(items, items);
        return _mm512_cmpeq_epi64_mask(named, _mm512_set1_epi64((long long)want));
#elif KVR__LINE_FORM == 2
        const __m256i *items = (const __m256i *)(const void *)line->items;
        __m256i low = _mm256_load_si256(items), high = _mm256_load_si256(items + 1);
        __m256i name = _mm256_set1_epi64x(~(long long)KVR__NUMBER_MAX);

        *ret_room = kvr__places_same(low, high, _mm256_setzero_si256());
        return kvr__places_same(_mm256_and_si256(low, name), _mm256_and_si256(high, name),
                                _mm256_set1_epi64x((long long)want));
#elif defined(KVR__LINE_VECTORS)
        struct kvr__line_halves halves = kvr__line_halves_of(line);
        __m128i same = kvr__halves_same(halves.high, kvr__item_hash(want));
        __m128i empty = kvr__halves_same(halves.low, 0);
        uint32_t both = (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(same, empty));

        *ret_room = both >> 8;
        return both & 0xff;
#else
        *ret_room = 0;
        for (uint32_t i = 0; i < KVR__PLACES; i++)
                *ret_room |= (uint32_t)(atomic_load_explicit(&line->items[i], memory_order_relaxed) == 0)
                             << i;
        return kvr__line_hits(line, kvr__item_hash(want));
#endif
}

static inline __attribute__((always_inline)) struct kvr__blocks_walk kvr__blocks_walk_at(
        const struct kvr__blocks_table *table, uint64_t hash, bool own)
{
        struct kvr__blocks_walk walk = {.lines = table->lines, .want = kvr__item_of(hash), .own = own};
        uint32_t count = atomic_load_explicit(&table->count, memory_order_acquire), room;

        if (!count)
                return walk;
        walk.at = kvr__line_of(count, (uint32_t)hash);
        walk.line = kvr__line_at(table, walk.at);
        walk.hits = own ? kvr__line_hits_own(walk.line, walk.want, &room)
                        : kvr__line_hits(walk.line, (uint32_t)hash);
        walk.left = KVR__CHAIN_LINES;
        return walk;
}

/* For readers. */
static inline __attribute__((always_inline)) struct kvr__blocks_walk kvr__blocks_walk_begin(
        const struct kvr__blocks_table *table, uint64_t hash)
{
        return kvr__blocks_walk_at(table, hash, false);
}

/* For the thread that changes the table. */
static inline __attribute__((always_inline)) struct kvr__blocks_walk kvr__blocks_walk_own(
        const struct kvr__blocks_table *table, uint64_t hash)
{
        return kvr__blocks_walk_at(table, hash, true);
}

static inline __attribute__((always_inline)) _Atomic uint64_t *kvr__blocks_walk_next(
        struct kvr__blocks_walk *walk)
{
        uint32_t room;

        for (;;) {
                while (walk->hits) {
                        _Atomic uint64_t *place = &walk->line->items[__builtin_ctz(walk->hits)];

                        walk->hits &= walk->hits - 1;
                        walk->item = atomic_load_explicit(place, memory_order_acquire);
                        /* Looked at again as a whole: it may have changed, or be a link. */
                        if ((walk->item & ~(uint64_t)KVR__NUMBER_MAX) == walk->want &&
                            kvr__item_number(walk->item))
                                return place;
                }
                if (!walk->line || !walk->left--)
                        return NULL;
                uint64_t last =
                        atomic_load_explicit(&walk->line->items[KVR__LINK_PLACE], memory_order_acquire);

                if (!kvr__is_link(last)) {
                        walk->line = NULL;
                        return NULL;
                }
                walk->line = kvr__reserve_at(walk->lines, last);
                walk->hits = walk->own ? kvr__line_hits_own(walk->line, walk->want, &room)
                                       : kvr__line_hits(walk->line, kvr__item_hash(walk->want));
        }
}

/* Where an item that was not found is to be put, with the table unchanged since. */
struct kvr__blocks_spot {
        struct kvr__places *line;
        uint32_t room; /* free places of the line */
};

/* For the thread that changes the table: the place of an item, as a walk finds it first, or NULL. */
_Atomic uint64_t *kvr__blocks_table_find_slowly(const struct kvr__blocks_table *table, uint64_t hash,
                                                uint64_t *ret_item);

/* The same; `want`: kvr__item_of the hash, `line`: of this hash, NULL if the table has none. Mostly it tells all. */
static inline __attribute__((always_inline)) _Atomic uint64_t *kvr__blocks_table_find_in(
        const struct kvr__blocks_table *table, struct kvr__places *line, uint64_t want, uint64_t *ret_item,
        struct kvr__blocks_spot *ret_spot)
{
        ret_spot->line = line;
        ret_spot->room = 0;
        if (!line)
                return NULL;
        uint32_t hits = kvr__line_hits_own(line, want, &ret_spot->room);

        if (hits) {
                _Atomic uint64_t *place = &line->items[__builtin_ctz(hits)];
                uint64_t item = atomic_load_explicit(place, memory_order_relaxed);

                if ((item & ~(uint64_t)KVR__NUMBER_MAX) == want && kvr__item_number(item)) {
                        *ret_item = item;
                        return place;
                }
        } else if (!kvr__is_link(atomic_load_explicit(&line->items[KVR__LINK_PLACE], memory_order_relaxed))) {
                return NULL;
        }
        return kvr__blocks_table_find_slowly(table, kvr__item_hash_of(want), ret_item);
}

static inline __attribute__((always_inline)) _Atomic uint64_t *kvr__blocks_table_find(
        const struct kvr__blocks_table *table, uint64_t hash, uint64_t *ret_item,
        struct kvr__blocks_spot *ret_spot)
{
        return kvr__blocks_table_find_in(table, kvr__blocks_table_line(table, hash), kvr__item_of(hash),
                                         ret_item, ret_spot);
}

/* Puts an item into a free place of its line. */
static inline void kvr__blocks_table_put_free(struct kvr__blocks_table *table, _Atomic uint64_t *place,
                                              uint64_t want, uint32_t number)
{
        atomic_store_explicit(place, want | number, memory_order_release);
        if (++table->items > table->full)
                kvr__blocks_table_divide(table);
}

KVR_MUST_USE static inline bool kvr__blocks_table_put_at(struct kvr__blocks_table *table,
                                                         const struct kvr__blocks_spot *spot, uint64_t want,
                                                         uint32_t number)
{
        if (!spot->room)
                return kvr__blocks_table_put(table, kvr__item_hash_of(want), number);
        kvr__blocks_table_put_free(table, &spot->line->items[__builtin_ctz(spot->room)], want, number);
        return true;
}

/* Takes the item out of a place of the line of its hash, or of those that follow it. */
static inline void kvr__blocks_table_take(struct kvr__blocks_table *table, struct kvr__places *line,
                                          _Atomic uint64_t *place)
{
        bool follows = (uintptr_t)place - (uintptr_t)line >= sizeof(*line);

        atomic_store_explicit(place, 0, memory_order_release);
        table->items--;
        if (follows || table->items < table->spare)
                kvr__blocks_table_tidy(table, line, follows);
}

/* A reader found nothing in a walk from line `at`, begun when `changes` was `before`. Was anything on the move
 * that it could have missed? */
static inline bool kvr__blocks_table_moved(const struct kvr__blocks_table *table, uint32_t before,
                                           uint32_t at)
{
        uint32_t now = atomic_load_explicit(&table->changes, memory_order_acquire);
        uint32_t low = atomic_load_explicit(&table->changing, memory_order_relaxed), apart = at - low;

        if (now != before)
                return true;
        return now % 2 && (at == low || (apart > low && (apart & (apart - 1)) == 0));
}

#endif
