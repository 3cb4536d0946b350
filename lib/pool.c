/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LINE_BYTES 64
#define HUGE_BYTES (2U << 20)

bool kvr__pool_init(struct kvr__pool *pool, struct kvr__budget *budget, size_t item_bytes,
                    size_t segment_bytes, bool vital)
{
        uint32_t shift = 4;

        while (shift < 20 && (item_bytes << (shift + 1)) <= segment_bytes)
                shift++;
        *pool = (struct kvr__pool){
                .budget = budget,
                .item_bytes = (uint32_t)item_bytes,
                .shift = shift,
                .fresh = 1,
                .vital = vital,
        };
        uint64_t max = budget->bytes_max / (item_bytes << shift) + 1;
        uint64_t numbers = UINT32_MAX >> shift;

        pool->segment_max = (uint32_t)(max < numbers ? max : numbers);
        pool->segments = calloc(pool->segment_max, sizeof(*pool->segments));
        if (!pool->segments)
                return false;
        budget->bytes += pool->segment_max * sizeof(*pool->segments);
        return true;
}

void kvr__pool_fini(struct kvr__pool *pool)
{
        for (uint32_t i = 0; i < pool->segment_count; i++)
                free(pool->segments[i]);
        free(pool->segments);
        *pool = (struct kvr__pool){0};
}

/* Where access is random, most of its time would go into the translation of small pages. */
void *kvr__pages_new(uint64_t bytes)
{
        void *pages;

        if (posix_memalign(&pages, bytes < HUGE_BYTES ? LINE_BYTES : HUGE_BYTES, bytes))
                return NULL;
#ifdef MADV_HUGEPAGE
        if (bytes >= HUGE_BYTES)
                (void)madvise(pages, bytes, MADV_HUGEPAGE);
#endif
        return pages;
}

bool kvr__pool_grow(struct kvr__pool *pool)
{
        struct kvr__budget *budget = pool->budget;
        uint64_t bytes = (uint64_t)pool->item_bytes << pool->shift;
        uint64_t limit = pool->vital ? budget->bytes_max : budget->bytes_main;

        if (pool->segment_count == pool->segment_max || budget->bytes + bytes > limit)
                return false;
        unsigned char *segment = kvr__pages_new(bytes);

        if (!segment)
                return false;
        pool->segments[pool->segment_count++] = segment;
        budget->bytes += bytes;
        return true;
}

uint32_t kvr__pool_take_slowly(struct kvr__pool *pool)
{
        uint32_t number = pool->free_head;

        if (number) {
                memcpy(&pool->free_head, kvr__pool_at(pool, number), sizeof(pool->free_head));
                pool->free_count--;
                return number;
        }
        if (pool->fresh >= kvr__pool_room(pool) && !kvr__pool_grow(pool))
                return 0;
        return pool->fresh++;
}

void kvr__pool_give(struct kvr__pool *pool, uint32_t number)
{
        memcpy(kvr__pool_at(pool, number), &pool->free_head, sizeof(pool->free_head));
        pool->free_head = number;
        pool->free_count++;
}
