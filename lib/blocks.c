/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks.h"

#include <stdlib.h>
#include <string.h>

#include "blocks_form.h"
#include "blocks_int.h"

#define SEGMENT_MIN      8192
#define SEGMENT_MAX      (4U << 20)
#define SEGMENTS_PER_CAP 64   /* a pool grows by this part of the cap */
#define BYTES_PER_EXTENT 5120 /* an extent of the table of keys, its nodes and their handles take more */
#define RECLAIM_OPEN     4096 /* BLOCK_RECLAIM_STEP, when all lanes' numbers are taken */

/* ---- life ---- */

static void queue_put(struct kvr__blocks *blocks, struct block_lane_queue *queue, uint16_t lane)
{
        block_lane_at(blocks, lane)->next = BLOCK_NO_LANE;
        if (queue->count++)
                block_lane_at(blocks, queue->tail)->next = lane;
        else
                queue->head = lane;
        queue->tail = lane;
}

static uint16_t queue_take(struct kvr__blocks *blocks, struct block_lane_queue *queue)
{
        uint16_t lane = queue->head;

        queue->head = block_lane_at(blocks, lane)->next;
        queue->count--;
        return lane;
}

/* What changed, for those who ask from another thread. */
void kvr__blocks_figures_tell(struct kvr__blocks *blocks)
{
        atomic_store_explicit(&blocks->bytes_told, blocks->budget.bytes, memory_order_relaxed);
        atomic_store_explicit(&blocks->nodes_told, blocks->by_key.items, memory_order_relaxed);
        atomic_store_explicit(&blocks->holders_told, blocks->holders, memory_order_relaxed);
}

struct kvr__blocks *kvr__blocks_new(uint64_t bytes_max, uint64_t salt)
{
        struct kvr__blocks *blocks = calloc(1, sizeof(*blocks));

        if (!blocks)
                return NULL;
        uint64_t wish = bytes_max / SEGMENTS_PER_CAP;
        size_t segment = wish < SEGMENT_MIN ? SEGMENT_MIN : wish > SEGMENT_MAX ? SEGMENT_MAX : (size_t)wish;
        struct kvr__budget *budget = &blocks->budget;
        uint64_t extents = bytes_max / BYTES_PER_EXTENT + 1;

        /* Lines of the reserve and sets are small beside what they belong to: with room for them, what was
         * removed at the cap can be stored anew, wherever in the tables it falls. */
        *budget = (struct kvr__budget){sizeof(*blocks), bytes_max, bytes_max - bytes_max / 16};
        blocks->salts[0] = block_mix(salt, 0, 0x9e3779b97f4a7c15ULL);
        blocks->salts[1] = block_mix(salt, 0x2545f4914f6cdd1dULL, 0xd6e8feb86659fd93ULL) | 1;
        blocks->form = kvr__block_form_best();
        blocks->free.head = blocks->closed.head = BLOCK_NO_LANE;
        kvr__blocks_table_init(&blocks->copies, &blocks->lines);
        kvr__blocks_table_init(&blocks->aliases, &blocks->lines);
        if (!kvr__pool_init(&blocks->nodes, budget, sizeof(struct block_node), segment, false) ||
            !kvr__pool_init(&blocks->chunks, budget, sizeof(struct block_chunk), segment / 4, true) ||
            !kvr__lines_init(&blocks->lines, budget, segment) ||
            !kvr__blocks_table_init_fixed(&blocks->by_key, &blocks->lines,
                                          extents > UINT32_MAX ? UINT32_MAX : (uint32_t)extents)) {
                kvr__blocks_free(blocks);
                return NULL;
        }
        kvr__blocks_figures_tell(blocks);
        return blocks;
}

void kvr__blocks_free(struct kvr__blocks *blocks)
{
        if (!blocks)
                return;
        for (uint32_t lane = 0; lane < blocks->lanes_used; lane++)
                free(block_lane_at(blocks, (uint16_t)lane)->handles.extents);
        for (size_t i = 0; i < sizeof(blocks->lanes) / sizeof(blocks->lanes[0]); i++)
                free(blocks->lanes[i]);
        free(blocks->by_key.extents);
        free(blocks->copies.extents);
        free(blocks->aliases.extents);
        kvr__lines_fini(&blocks->lines);
        kvr__pool_fini(&blocks->nodes);
        kvr__pool_fini(&blocks->chunks);
        free(blocks);
}

/* ---- lanes ---- */

/* A lane with a number that was never used. */
static bool lane_make(struct kvr__blocks *blocks, uint16_t *ret_lane)
{
        uint32_t lane = blocks->lanes_used;
        struct block_lane **group = &blocks->lanes[lane / BLOCK_LANE_GROUP];
        uint64_t bytes = BLOCK_LANE_GROUP * sizeof(**group);

        if (lane == KVR__BLOCK_LANES_MAX)
                return false;
        if (!*group) {
                if (blocks->budget.bytes + bytes > blocks->budget.bytes_max)
                        return false;
                *group = calloc(BLOCK_LANE_GROUP, sizeof(**group));
                if (!*group)
                        return false;
                blocks->budget.bytes += bytes;
        }
        blocks->lanes_used++;
        *ret_lane = (uint16_t)lane;
        kvr__blocks_table_init(&block_lane_at(blocks, *ret_lane)->handles, &blocks->lines);
        return true;
}

bool kvr__blocks_lane_open(struct kvr__blocks *blocks, uint16_t *ret_lane)
{
        uint16_t lane;

        if (!blocks->free.count && blocks->lanes_used == KVR__BLOCK_LANES_MAX)
                kvr__blocks_reclaim(blocks, RECLAIM_OPEN);
        if (blocks->free.count)
                lane = queue_take(blocks, &blocks->free);
        else if (!lane_make(blocks, &lane))
                return false;
        block_lane_at(blocks, lane)->state = BLOCK_LANE_OPEN;
        atomic_fetch_or_explicit(&blocks->open[lane / 64], 1ULL << (lane % 64), memory_order_release);
        kvr__blocks_figures_tell(blocks);
        *ret_lane = lane;
        return true;
}

bool kvr__block_lane_is_open(const struct kvr__blocks *blocks, uint16_t lane)
{
        return lane < blocks->lanes_used && block_lane_at(blocks, lane)->state == BLOCK_LANE_OPEN;
}

void kvr__blocks_lane_close(struct kvr__blocks *blocks, uint16_t lane)
{
        if (!kvr__block_lane_is_open(blocks, lane))
                return;
        struct block_lane *closed = block_lane_at(blocks, lane);

        atomic_fetch_and_explicit(&blocks->open[lane / 64], ~(1ULL << (lane % 64)), memory_order_release);
        closed->state = BLOCK_LANE_CLOSED;
        blocks->holders -= closed->handles.items;
        queue_put(blocks, &blocks->closed, lane);
        kvr__blocks_figures_tell(blocks);
}

uint64_t kvr__blocks_lane_count(const struct kvr__blocks *blocks, uint16_t lane)
{
        return kvr__block_lane_is_open(blocks, lane) ? block_lane_at(blocks, lane)->handles.items : 0;
}

/* ---- what is counted beyond one ---- */

bool kvr__block_count_up(struct kvr__blocks_table *table, uint64_t hash)
{
        struct kvr__blocks_spot spot;
        uint64_t item;
        _Atomic uint64_t *place = kvr__blocks_table_find(table, hash, &item, &spot);

        if (!place)
                return kvr__blocks_table_put_at(table, &spot, kvr__item_of(hash), 1);
        if (kvr__item_number(item) < KVR__NUMBER_MAX)
                atomic_store_explicit(place, item + 1, memory_order_relaxed);
        return true;
}

bool kvr__block_count_down(struct kvr__blocks_table *table, uint64_t hash, uint32_t *ret_left)
{
        struct kvr__blocks_spot spot;
        uint64_t item;
        _Atomic uint64_t *place = kvr__blocks_table_find(table, hash, &item, &spot);

        if (!place)
                return false;
        *ret_left = kvr__item_number(item) - 1;
        if (*ret_left)
                atomic_store_explicit(place, item - 1, memory_order_relaxed);
        else
                kvr__blocks_table_remove(table, hash, place);
        return true;
}

static void count_forget(struct kvr__blocks_table *table, uint64_t hash)
{
        struct kvr__blocks_spot spot;
        uint64_t item;
        _Atomic uint64_t *place = kvr__blocks_table_find(table, hash, &item, &spot);

        if (place)
                kvr__blocks_table_remove(table, hash, place);
}

/* ---- what a lane holds ---- */

/* One less in the counts of copies and of further handles. True: by another handle the lane holds the node still. */
static bool counts_end(struct kvr__blocks *blocks, uint16_t lane, uint32_t handle_low, uint32_t handle)
{
        uint32_t node = handle & ~BLOCK_COPIED, left;

        if (handle & BLOCK_COPIED)
                count_forget(&blocks->copies, block_lane_hash(blocks, lane, handle_low, node));
        return blocks->aliases.items &&
               kvr__block_count_down(&blocks->aliases, block_lane_hash(blocks, lane, 0, node), &left);
}

void kvr__block_handle_end(struct kvr__blocks *blocks, uint16_t lane, uint32_t handle_low, uint32_t handle)
{
        if (counts_end(blocks, lane, handle_low, handle))
                return;
        if (kvr__block_holder_drop(blocks, handle & ~BLOCK_COPIED, lane))
                kvr__block_node_drop(blocks, handle & ~BLOCK_COPIED);
}

/* ---- changes ---- */

void kvr__blocks_store(struct kvr__blocks *blocks, uint16_t lane, const struct kvr_blocks_stored *stored,
                       struct kvr_events_account *account)
{
        if (!kvr__block_lane_is_open(blocks, lane))
                return;
        kvr__blocks_reclaim(blocks, BLOCK_RECLAIM_STEP);
        blocks->form->store(blocks, lane, stored, account);
        kvr__blocks_figures_tell(blocks);
}

void kvr__blocks_remove(struct kvr__blocks *blocks, uint16_t lane, const uint64_t *hashes, uint32_t count,
                        struct kvr_events_account *account)
{
        if (!kvr__block_lane_is_open(blocks, lane))
                return;
        kvr__blocks_reclaim(blocks, BLOCK_RECLAIM_STEP);
        blocks->form->remove(blocks, lane, hashes, count, account);
        kvr__blocks_figures_tell(blocks);
}

/* ---- closed lanes ---- */

void kvr__blocks_reclaim(struct kvr__blocks *blocks, uint32_t max)
{
        uint64_t items[KVR__PLACES_TAKEN];
        uint32_t done = 0;

        if (!blocks->closed.count)
                return;
        while (done < max && blocks->closed.count) {
                uint16_t lane = blocks->closed.head;
                struct kvr__blocks_table *table = &block_lane_at(blocks, lane)->handles;
                uint32_t count = 0;

                if (atomic_load_explicit(&table->count, memory_order_relaxed)) {
                        count = kvr__blocks_table_pop(table, items);
                } else {
                        kvr__blocks_table_fini(table);
                        block_lane_at(blocks, queue_take(blocks, &blocks->closed))->state = BLOCK_LANE_FREE;
                        queue_put(blocks, &blocks->free, lane);
                }
                for (uint32_t i = 0; i < count; i++)
                        __builtin_prefetch(block_node_at(blocks, block_handle_node(items[i])), 1);
                for (uint32_t i = 0; i < count; i++)
                        kvr__block_handle_end(blocks, lane, kvr__item_hash(items[i]),
                                              kvr__item_number(items[i]));
                done += count ? count : 1;
        }
        kvr__blocks_figures_tell(blocks);
}

void kvr__blocks_stats(const struct kvr__blocks *blocks, struct kvr__blocks_stats *ret)
{
        *ret = (struct kvr__blocks_stats){
                .bytes = atomic_load_explicit(&blocks->bytes_told, memory_order_relaxed),
                .bytes_max = blocks->budget.bytes_max,
                .nodes = atomic_load_explicit(&blocks->nodes_told, memory_order_relaxed),
                .holders = atomic_load_explicit(&blocks->holders_told, memory_order_relaxed),
        };
}
