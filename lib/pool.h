/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the cache index: pools of equal items, addressed by 32-bit numbers, under one common budget in
 * bytes.
 *
 *     segment 0            segment 1            (segment 2 when somebody needs it)
 *     |.|1|2|3|4|5|6|7|    |8|9|a|b|...|
 *      ^ number 0 is nobody
 *
 * A pool grows by one segment of fixed size at a time, so that growing never copies and takes bounded time,
 * and it never shrinks. When the budget is spent kvr__pool_take gives 0 and the caller must let go of
 * something first. Owner: whoever holds the lock of the object the pool is part of.
 */
#ifndef KVROUTE_LIB_POOL_H
#define KVROUTE_LIB_POOL_H

#include "kvroute/base.h"

/* Bytes that several pools share. `bytes` counts what was allocated, used or not. */
struct kvr__budget {
        uint64_t bytes;
        uint64_t bytes_max;
        uint64_t bytes_main; /* ordinary pools stop here, so that small vital ones find room when all is full
                              */
};

struct kvr__pool {
        unsigned char **segments;
        struct kvr__budget *budget;
        uint32_t segment_count, segment_max;
        uint32_t item_bytes;
        uint32_t shift; /* a segment holds 1 << shift items */
        uint32_t fresh; /* items below were handed out at least once */
        uint32_t free_head, free_count;
        bool vital; /* may use the budget up to bytes_max */
};

/* True for success, false when out of memory. `segment_bytes` is a wish, rounded down to a power of two of
 * items. */
KVR_MUST_USE bool kvr__pool_init(struct kvr__pool *pool, struct kvr__budget *budget, size_t item_bytes,
                                 size_t segment_bytes, bool vital);
void kvr__pool_fini(struct kvr__pool *pool);

/*
 * Memory that is accessed here and there, aligned to cache lines, with undefined content, so that none of it is
 * touched before it is used; large ones ask for huge pages. Ends with free(). NULL: none.
 */
KVR_MUST_USE void *kvr__pages_new(uint64_t bytes);

/* Grows by one segment; false when budget or memory is spent. */
KVR_MUST_USE bool kvr__pool_grow(struct kvr__pool *pool);

/* A function that only prefetches has no effect in gcc's eyes, and calls of it vanish unless it is always
 * inlined. */
#define KVR__PREFETCHER static inline __attribute__((always_inline))

static inline void *kvr__pool_at(const struct kvr__pool *pool, uint32_t number)
{
        return pool->segments[number >> pool->shift] +
               (size_t)(number & ((1U << pool->shift) - 1)) * pool->item_bytes;
}

static inline uint32_t kvr__pool_room(const struct kvr__pool *pool)
{
        return pool->segment_count << pool->shift;
}

/* An item with arbitrary content, or 0. The last one given back comes first: chains that die leave runs to
 * reuse. */
KVR_MUST_USE uint32_t kvr__pool_take_slowly(struct kvr__pool *pool);
static inline uint32_t kvr__pool_take(struct kvr__pool *pool)
{
        return pool->free_head || pool->fresh >= kvr__pool_room(pool) ? kvr__pool_take_slowly(pool)
                                                                      : pool->fresh++;
}
void kvr__pool_give(struct kvr__pool *pool, uint32_t number);

/* How many can be taken before a new segment is needed. */
static inline uint32_t kvr__pool_free(const struct kvr__pool *pool)
{
        uint32_t room = kvr__pool_room(pool);

        return pool->free_count + (room > pool->fresh ? room - pool->fresh : 0);
}

/* True when the next take needs no new segment. */
static inline bool kvr__pool_ready(const struct kvr__pool *pool)
{
        return pool->free_head != 0 || pool->fresh < kvr__pool_room(pool);
}

#endif
