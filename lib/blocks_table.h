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
#include <emmintrin.h>
#endif

#include "pool.h"

#define KVR__PLACES       8
#define KVR__LINK_PLACE   (KVR__PLACES - 1)
#define KVR__EXTENT_SHIFT 5
#define KVR__EXTENT_LINES (1U << KVR__EXTENT_SHIFT)
#define KVR__LINES_FIRST  8U
/* Items for which a line more is divided off. */
#define KVR__LINE_FILL(lines) ((uint64_t)(lines)*9 / 2)
#define KVR__LINES_MAX        (1U << 28)
#define KVR__CHAIN_LINES      16 /* lines that follow one another in one place; more is no room */
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
        bool fixed; /* others read it: `extents` must not move */
        uint32_t items;
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
/* Divides a line when there are more items than lines are made for. */
void kvr__blocks_table_divide(struct kvr__blocks_table *table);
/* Takes out the item at this place, found by a walk with this hash. Places found before are void then. */
void kvr__blocks_table_remove(struct kvr__blocks_table *table, uint64_t hash, _Atomic uint64_t *place);

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

/* An item without its number. */
static inline uint64_t kvr__item_of(uint64_t hash)
{
        return hash << 32 | (hash >> 32 & KVR__ITEM_MORE);
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

KVR__PREFETCHER void kvr__blocks_table_prefetch(const struct kvr__blocks_table *table, uint64_t hash)
{
        __builtin_prefetch(kvr__blocks_table_line(table, hash));
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

/* Places with this half of the hash. */
static inline uint32_t kvr__line_hits(const struct kvr__places *line, uint32_t hash)
{
        uint32_t hits = 0;

        for (uint32_t i = 0; i < KVR__PLACES; i++) {
                uint64_t item = atomic_load_explicit(&line->items[i], memory_order_acquire);

                hits |= (uint32_t)(kvr__item_hash(item) == hash) << i;
        }
        return hits;
}

/* The same for the thread that changes the line, which may read it as it likes; and the free places. */
static inline uint32_t kvr__line_hits_own(const struct kvr__places *line, uint32_t hash, uint32_t *ret_room)
{
#ifdef __SSE2__
        const __m128 *v = (const __m128 *)(const void *)line->items;
        __m128i high0 = _mm_castps_si128(_mm_shuffle_ps(v[0], v[1], 0xdd));
        __m128i high1 = _mm_castps_si128(_mm_shuffle_ps(v[2], v[3], 0xdd));
        __m128i low0 = _mm_castps_si128(_mm_shuffle_ps(v[0], v[1], 0x88));
        __m128i low1 = _mm_castps_si128(_mm_shuffle_ps(v[2], v[3], 0x88));
        __m128i wanted = _mm_set1_epi32((int)hash), zero = _mm_setzero_si128();
        __m128i same = _mm_packs_epi32(_mm_cmpeq_epi32(high0, wanted), _mm_cmpeq_epi32(high1, wanted));
        __m128i empty = _mm_packs_epi32(_mm_cmpeq_epi32(low0, zero), _mm_cmpeq_epi32(low1, zero));
        uint32_t both = (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(same, empty));

        *ret_room = both >> 8;
        return both & 0xff;
#else
        *ret_room = 0;
        for (uint32_t i = 0; i < KVR__PLACES; i++)
                *ret_room |= (uint32_t)(atomic_load_explicit(&line->items[i], memory_order_relaxed) == 0)
                             << i;
        return kvr__line_hits(line, hash);
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
        walk.hits = own ? kvr__line_hits_own(walk.line, (uint32_t)hash, &room)
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
                walk->hits = walk->own ? kvr__line_hits_own(walk->line, kvr__item_hash(walk->want), &room)
                                       : kvr__line_hits(walk->line, kvr__item_hash(walk->want));
        }
}

/* Where an item that was not found is to be put, with the table unchanged since. */
struct kvr__blocks_spot {
        struct kvr__places *line;
        uint32_t room; /* free places of the line */
};

/* For the thread that changes the table: the place of an item, as a walk finds it first, or NULL. Mostly one
 * line tells. */
static inline __attribute__((always_inline)) _Atomic uint64_t *kvr__blocks_table_find(
        const struct kvr__blocks_table *table, uint64_t hash, uint64_t *ret_item,
        struct kvr__blocks_spot *ret_spot)
{
        struct kvr__places *line = kvr__blocks_table_line(table, hash);

        ret_spot->line = line;
        ret_spot->room = 0;
        if (!line ||
            (!kvr__line_hits_own(line, (uint32_t)hash, &ret_spot->room) &&
             !kvr__is_link(atomic_load_explicit(&line->items[KVR__LINK_PLACE], memory_order_relaxed))))
                return NULL;
        struct kvr__blocks_walk walk = kvr__blocks_walk_own(table, hash);
        _Atomic uint64_t *place = kvr__blocks_walk_next(&walk);

        *ret_item = walk.item;
        return place;
}

KVR_MUST_USE static inline bool kvr__blocks_table_put_at(struct kvr__blocks_table *table,
                                                         const struct kvr__blocks_spot *spot, uint64_t hash,
                                                         uint32_t number)
{
        if (!spot->room)
                return kvr__blocks_table_put(table, hash, number);
        atomic_store_explicit(&spot->line->items[__builtin_ctz(spot->room)], kvr__item_of(hash) | number,
                              memory_order_release);
        if (++table->items > KVR__LINE_FILL(atomic_load_explicit(&table->count, memory_order_relaxed)))
                kvr__blocks_table_divide(table);
        return true;
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
