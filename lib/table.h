/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table of item numbers that costs one cache line per look-up, insertion and removal, wherever the
 * items lie.
 *
 *     line 0   | number x 10 | tag x 10 | more |        a bucket is one line of 64 bytes
 *     line 1   | number x 10 | tag x 10 | more | ──► a line from the reserve, when ten are not enough
 *
 * Linear hashing: lines 0..count-1 are in use, and an insertion may split one of them, so that the table
 * grows with its content in steps of bounded cost and is never rebuilt. Tags are the upper half of the hash,
 * so that a look-up goes to an item only if it is most likely the one, and a large table is split without
 * going to the items at all.
 *
 * Items lie without gaps from the first place of a bucket on.
 *
 * It knows nothing of the items but their numbers (never 0) and hashes. Owner: whoever owns what it is part
 * of.
 */
#ifndef KVROUTE_LIB_TABLE_H
#define KVROUTE_LIB_TABLE_H

#include "pool.h"

#define KVR__LINE_ITEMS 10

struct kvr__line {
        uint32_t numbers[KVR__LINE_ITEMS]; /* 0: free */
        uint16_t tags[KVR__LINE_ITEMS];
        uint32_t more; /* line of the reserve, or 0 */
};

/* What a table asks about its items, and only while it is small. */
struct kvr__table_items {
        uint32_t (*hash_of)(const void *ctx, uint32_t number);
        /* hash_of will be asked soon. */
        void (*prefetch)(const void *ctx, uint32_t number);
};

struct kvr__table {
        struct kvr__pool lines, reserve;
        uint32_t count; /* lines in use */
        uint32_t mask;  /* count rounded up to a power of two, minus one */
        uint32_t items;
        const struct kvr__table_items *ask;
        const void *ctx;
};

/* `ask` and `ctx` are kept. False when out of memory or budget. */
KVR_MUST_USE bool kvr__table_init(struct kvr__table *table, struct kvr__budget *budget, size_t segment_bytes,
                                  bool vital, const struct kvr__table_items *ask, const void *ctx);
void kvr__table_fini(struct kvr__table *table);
/* The item must not be in it. False when there is no room. */
KVR_MUST_USE bool kvr__table_insert(struct kvr__table *table, uint32_t hash, uint32_t number);
/* The item must be in it. */
void kvr__table_remove(struct kvr__table *table, uint32_t hash, uint32_t number);

static inline struct kvr__line *kvr__table_line(const struct kvr__table *table, uint32_t hash)
{
        uint32_t at = hash & table->mask;

        if (at >= table->count)
                at &= table->mask >> 1;
        return kvr__pool_at(&table->lines, at);
}

KVR__PREFETCHER void kvr__table_prefetch(const struct kvr__table *table, uint32_t hash)
{
        __builtin_prefetch(kvr__table_line(table, hash), 1);
}

/* The items that may have this hash, one after the other: begin, then next until it gives 0. */
struct kvr__table_walk {
        const struct kvr__line *line;
        uint32_t at;
        uint16_t tag;
};

static inline struct kvr__table_walk kvr__table_begin(const struct kvr__table *table, uint32_t hash)
{
        return (struct kvr__table_walk){kvr__table_line(table, hash), 0, (uint16_t)(hash >> 16)};
}

static inline uint32_t kvr__table_next(const struct kvr__table *table, struct kvr__table_walk *walk)
{
        for (;;) {
                for (; walk->at < KVR__LINE_ITEMS; walk->at++)
                        if (walk->line->tags[walk->at] == walk->tag && walk->line->numbers[walk->at])
                                return walk->line->numbers[walk->at++];
                if (!walk->line->more)
                        return 0;
                walk->line = kvr__pool_at(&table->reserve, walk->line->more);
                walk->at = 0;
        }
}

#endif
