/* SPDX-License-Identifier: Apache-2.0 */
/* Is the block index consistent? For tests and fuzzing. */
#include "blocks_int.h"

struct sums {
        const struct kvr__blocks *blocks;
        uint16_t lane;
        uint64_t extents, reserve, chunks, holders, handles, aliases, copies;
        bool good;
};

static uint64_t list_length(const struct kvr__pool *pool, uint32_t first, uint32_t (*next)(const void *item))
{
        uint64_t length = 0;

        for (uint32_t at = first; at && length <= pool->fresh; at = next(kvr__pool_at(pool, at)))
                length++;
        return length;
}

static uint32_t node_next(const void *item)
{
        return (uint32_t)((const struct block_node *)item)->key;
}

static uint32_t chunk_next(const void *item)
{
        return ((const struct block_chunk *)item)->next;
}

static uint32_t line_next(const void *item)
{
        return (uint32_t)((const struct kvr__places *)item)->items[0] & ~KVR__ITEM_LINK;
}

/* Are the items that are in use and the free ones all that were ever handed out? */
static bool pool_whole(const struct kvr__pool *pool, uint32_t first, uint32_t free_count, uint64_t used,
                       uint32_t (*next)(const void *item))
{
        return pool->fresh - 1 == used + free_count && list_length(pool, first, next) == free_count;
}

/* No place of the same word twice, no chunk without bits. Adds up holders. */
static bool node_whole(const struct kvr__blocks *blocks, const struct block_node *node, struct sums *sums)
{
        uint8_t seen[1 << BLOCK_WORD_BITS] = {0};
        uint32_t length = 0;

        if (node->bits)
                seen[node->state & BLOCK_WORD_MASK]++;
        sums->holders += (uint32_t)__builtin_popcountll(node->bits);
        for (uint32_t at = node->more; at; at = block_chunk_at(blocks, at)->next) {
                const struct block_chunk *chunk = block_chunk_at(blocks, at);
                uint64_t bits = 0;

                if (length++ > BLOCK_CHUNKS_MAX)
                        return false;
                for (uint32_t i = 0; i < BLOCK_CHUNK_WORDS; i++) {
                        bits |= chunk->bits[i];
                        if (chunk->bits[i] && seen[block_words_get(chunk->words, i)]++)
                                return false;
                        sums->holders += (uint32_t)__builtin_popcountll(chunk->bits[i]);
                }
                if (!bits)
                        return false;
        }
        sums->chunks += length;
        return node->bits || node->more;
}

static void key_check(void *ctx, uint32_t number, uint32_t low)
{
        struct sums *sums = ctx;
        const struct block_node *node = block_node_at(sums->blocks, number);
        uint64_t hash = block_key_hash(sums->blocks, node->key);

        sums->good &= block_key_is(node->key) && (uint32_t)hash == low &&
                      kvr__block_node_find(sums->blocks, node->key, hash) == number &&
                      node_whole(sums->blocks, node, sums);
}

static bool counted(const struct kvr__blocks_table *table, uint64_t hash)
{
        struct kvr__blocks_walk walk = kvr__blocks_walk_begin(table, hash);

        return kvr__blocks_walk_next(&walk);
}

static void handle_check(void *ctx, uint32_t number, uint32_t low)
{
        struct sums *sums = ctx;
        uint32_t node = number & ~BLOCK_COPIED;

        sums->good &= block_key_is(block_node_at(sums->blocks, node)->key) &&
                      kvr__block_holder_is(sums->blocks, node, sums->lane);
        sums->handles++;
        if (!(number & BLOCK_COPIED))
                return;
        sums->copies++;
        sums->good &= counted(&sums->blocks->copies, block_lane_hash(sums->blocks, sums->lane, low, node));
}

static void alias_check(void *ctx, uint32_t number, uint32_t low)
{
        struct sums *sums = ctx;

        (void)low;
        sums->aliases += number;
}

static bool table_check(const struct kvr__blocks_table *table, struct sums *sums,
                        void (*each)(void *ctx, uint32_t number, uint32_t low))
{
        return kvr__blocks_table_check(table, each, sums, &sums->extents, &sums->reserve) && sums->good;
}

static uint64_t pool_bytes(const struct kvr__pool *pool)
{
        return pool->segment_max * sizeof(*pool->segments) +
               ((uint64_t)pool->segment_count * pool->item_bytes << pool->shift);
}

static uint64_t bytes_of(const struct kvr__blocks *blocks)
{
        uint64_t directories =
                blocks->by_key.extent_room + blocks->copies.extent_room + blocks->aliases.extent_room;
        uint64_t groups = (blocks->lanes_used + BLOCK_LANE_GROUP - 1) / BLOCK_LANE_GROUP;

        for (uint32_t i = 0; i < blocks->lanes_used; i++)
                directories += block_lane_at(blocks, (uint16_t)i)->handles.extent_room;
        return sizeof(*blocks) + groups * BLOCK_LANE_GROUP * sizeof(struct block_lane) +
               directories * sizeof(*blocks->by_key.extents) + pool_bytes(&blocks->nodes) +
               pool_bytes(&blocks->chunks) + pool_bytes(&blocks->lines.extents) +
               pool_bytes(&blocks->lines.reserve);
}

static bool lanes_check(const struct kvr__blocks *blocks, struct sums *sums)
{
        uint64_t held = 0, by_state[3] = {0};

        for (uint32_t i = 0; i < blocks->lanes_used; i++) {
                const struct block_lane *lane = block_lane_at(blocks, (uint16_t)i);
                bool open = blocks->open[i / 64] >> (i % 64) & 1;

                sums->lane = (uint16_t)i;
                if (!table_check(&lane->handles, sums, handle_check) ||
                    open != (lane->state == BLOCK_LANE_OPEN) ||
                    (lane->state == BLOCK_LANE_FREE && lane->handles.items))
                        return false;
                by_state[lane->state]++;
                held += open ? lane->handles.items : 0;
        }
        return held == blocks->holders && by_state[BLOCK_LANE_FREE] == blocks->free.count &&
               by_state[BLOCK_LANE_CLOSED] == blocks->closed.count;
}

bool kvr__blocks_check(const struct kvr__blocks *blocks)
{
        struct sums sums = {.blocks = blocks, .good = true};
        const struct kvr__lines *lines = &blocks->lines;

        return table_check(&blocks->by_key, &sums, key_check) && lanes_check(blocks, &sums) &&
               table_check(&blocks->aliases, &sums, alias_check) &&
               kvr__blocks_table_check(&blocks->copies, NULL, NULL, &sums.extents, &sums.reserve) &&
               sums.handles == sums.holders + sums.aliases && sums.copies == blocks->copies.items &&
               pool_whole(&blocks->nodes, blocks->node_free, blocks->nodes_free, blocks->by_key.items,
                          node_next) &&
               pool_whole(&blocks->chunks, blocks->chunk_free, blocks->chunks_free, sums.chunks,
                          chunk_next) &&
               lines->extents.fresh - 1 == sums.extents + lines->extents_free &&
               pool_whole(&lines->reserve, lines->reserve_free, lines->reserves_free, sums.reserve,
                          line_next) &&
               blocks->budget.bytes == bytes_of(blocks) && blocks->budget.bytes <= blocks->budget.bytes_max;
}
