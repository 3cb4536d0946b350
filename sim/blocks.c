/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks.h"
#include "rng.h"

#include <stdlib.h>
#include <string.h>

#define NIL UINT32_MAX

struct block {
        uint64_t key; /* 0: none */
        uint32_t references;
        uint32_t prev, next;  /* free queue */
        uint32_t same_bucket; /* map chain */
};

struct sim_blocks {
        struct block *blocks; /* count of them, then the sentinel of the free queue */
        uint32_t *buckets;
        uint32_t count, mask;
        uint32_t free_count, named;
        uint64_t evictions;
        void (*gone)(void *ctx, uint64_t key); /* or NULL */
        void *ctx;
};

struct sim_blocks *sim_blocks_new(uint32_t count)
{
        struct sim_blocks *pool = calloc(1, sizeof(*pool));
        uint32_t size = 16;

        if (!pool)
                return NULL;
        while (size / 2 < count) /* short chains: every block that is handed out leaves one */
                size *= 2;
        pool->blocks = calloc((size_t)count + 1, sizeof(*pool->blocks));
        pool->buckets = malloc(size * sizeof(*pool->buckets));
        if (!pool->blocks || !pool->buckets) {
                sim_blocks_free(pool);
                return NULL;
        }
        pool->count = pool->free_count = count;
        pool->mask = size - 1;
        memset(pool->buckets, 0xff, size * sizeof(*pool->buckets));
        for (uint32_t id = 0; id <= count; id++) {
                pool->blocks[id].prev = id == 0 ? count : id - 1;
                pool->blocks[id].next = id == count ? 0 : id + 1;
        }
        return pool;
}

void sim_blocks_free(struct sim_blocks *pool)
{
        if (!pool)
                return;
        free(pool->blocks);
        free(pool->buckets);
        free(pool);
}

static void queue_unlink(struct sim_blocks *pool, uint32_t id)
{
        struct block *block = &pool->blocks[id];

        pool->blocks[block->prev].next = block->next;
        pool->blocks[block->next].prev = block->prev;
        pool->free_count--;
}

static void queue_insert(struct sim_blocks *pool, uint32_t id, uint32_t before)
{
        struct block *block = &pool->blocks[id];

        block->next = before;
        block->prev = pool->blocks[before].prev;
        pool->blocks[block->prev].next = id;
        pool->blocks[before].prev = id;
        pool->free_count++;
}

static uint32_t *bucket_of(const struct sim_blocks *pool, uint64_t key)
{
        return &pool->buckets[(uint32_t)sim_mix64(key) & pool->mask];
}

/* The longest-named copy is found first: the chain is in order of naming. */
static uint32_t find(const struct sim_blocks *pool, uint64_t key)
{
        uint32_t id = *bucket_of(pool, key), found = NIL;

        for (; id != NIL; id = pool->blocks[id].same_bucket) {
                if (pool->blocks[id].key == key)
                        found = id;
        }
        return found;
}

static void unname(struct sim_blocks *pool, uint32_t id)
{
        struct block *block = &pool->blocks[id];
        uint32_t *at = bucket_of(pool, block->key);

        while (*at != id)
                at = &pool->blocks[*at].same_bucket;
        *at = block->same_bucket;
        block->key = 0;
        pool->named--;
}

uint32_t sim_blocks_match(const struct sim_blocks *pool, const uint64_t *keys, uint32_t count)
{
        uint32_t n = 0;

        while (n < count && find(pool, keys[n]) != NIL)
                n++;
        return n;
}

bool sim_blocks_take(struct sim_blocks *pool, const uint64_t *keys, uint32_t hits, uint32_t fresh,
                     uint32_t *ret_ids)
{
        uint32_t idle_hits = 0;

        for (uint32_t i = 0; i < hits; i++) {
                ret_ids[i] = find(pool, keys[i]);
                if (ret_ids[i] == NIL)
                        return false;
                idle_hits += pool->blocks[ret_ids[i]].references == 0;
        }
        if (pool->free_count - idle_hits < fresh)
                return false;
        for (uint32_t i = 0; i < hits; i++) {
                if (pool->blocks[ret_ids[i]].references++ == 0)
                        queue_unlink(pool, ret_ids[i]);
        }
        /* Where their keys are listed is somewhere else each time: fetched all at once, it is waited for once. */
        for (uint32_t i = 0, id = pool->blocks[pool->count].next; i < fresh; i++) {
                ret_ids[hits + i] = id;
                if (pool->blocks[id].key)
                        __builtin_prefetch(bucket_of(pool, pool->blocks[id].key));
                id = pool->blocks[id].next;
        }
        for (uint32_t i = 0; i < fresh; i++) {
                uint32_t id = ret_ids[hits + i];

                queue_unlink(pool, id);
                if (pool->blocks[id].key) {
                        if (pool->gone)
                                pool->gone(pool->ctx, pool->blocks[id].key);
                        unname(pool, id);
                        pool->evictions++;
                }
                pool->blocks[id].references = 1;
        }
        return true;
}

void sim_blocks_name(struct sim_blocks *pool, uint32_t id, uint64_t key)
{
        struct block *block = &pool->blocks[id];
        uint32_t *bucket = bucket_of(pool, key);

        if (block->key)
                unname(pool, id);
        block->key = key;
        block->same_bucket = *bucket;
        *bucket = id;
        pool->named++;
}

void sim_blocks_release(struct sim_blocks *pool, const uint32_t *ids, uint32_t count)
{
        for (uint32_t i = count; i-- > 0;) {
                struct block *block = &pool->blocks[ids[i]];

                if (--block->references > 0)
                        continue;
                queue_insert(pool, ids[i], block->key ? pool->count : pool->blocks[pool->count].next);
        }
}

void sim_blocks_watch(struct sim_blocks *pool, void (*gone)(void *ctx, uint64_t key), void *ctx)
{
        pool->gone = gone;
        pool->ctx = ctx;
}

void sim_blocks_flush(struct sim_blocks *pool)
{
        for (uint32_t id = 0; id < pool->count; id++)
                pool->blocks[id].key = 0;
        memset(pool->buckets, 0xff, ((size_t)pool->mask + 1) * sizeof(*pool->buckets));
        pool->named = 0;
}

uint32_t sim_blocks_count(const struct sim_blocks *pool)
{
        return pool->count;
}

uint32_t sim_blocks_in_use(const struct sim_blocks *pool)
{
        return pool->count - pool->free_count;
}

uint32_t sim_blocks_named(const struct sim_blocks *pool)
{
        return pool->named;
}

uint64_t sim_blocks_evictions(const struct sim_blocks *pool)
{
        return pool->evictions;
}
