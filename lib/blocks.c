/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks.h"

#include <stdlib.h>
#include <string.h>

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
                return kvr__blocks_table_put_at(table, &spot, hash, 1);
        if (kvr__item_number(item) < KVR__NUMBER_MAX)
                atomic_store_explicit(place, item + 1, memory_order_relaxed);
        return true;
}

/* False when nothing was counted; else *ret_left is what is left. */
static bool count_down(struct kvr__blocks_table *table, uint64_t hash, uint32_t *ret_left)
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
               count_down(&blocks->aliases, block_lane_hash(blocks, lane, 0, node), &left);
}

void kvr__block_handle_end(struct kvr__blocks *blocks, uint16_t lane, uint32_t handle_low, uint32_t handle)
{
        if (counts_end(blocks, lane, handle_low, handle))
                return;
        if (kvr__block_holder_drop(blocks, handle & ~BLOCK_COPIED, lane))
                kvr__block_node_drop(blocks, handle & ~BLOCK_COPIED);
}

/* False when more than this lane and this line of the table of keys have to do with it; nothing is done then. */
static inline bool node_end_quickly(struct kvr__blocks *blocks, uint16_t lane, uint32_t number,
                                    uint64_t key_hash, struct kvr__places *line)
{
        struct block_node *node = block_node_at(blocks, number);
        uint64_t only = 1ULL << (lane % 64), item = kvr__item_of(key_hash) | number;
        uint32_t word = atomic_load_explicit(&node->state, memory_order_relaxed) & BLOCK_WORD_MASK, room;

        if (word != lane / 64U || atomic_load_explicit(&node->bits, memory_order_relaxed) != only ||
            atomic_load_explicit(&node->more, memory_order_relaxed))
                return false;
        uint32_t hits = kvr__line_hits_own(line, (uint32_t)key_hash, &room);

        if (!hits)
                return false;
        _Atomic uint64_t *place = &line->items[__builtin_ctz(hits)];

        if (atomic_load_explicit(place, memory_order_relaxed) != item)
                return false;
        atomic_store_explicit(&node->bits, 0, memory_order_release);
        kvr__blocks_table_take(&blocks->by_key, line, place);
        kvr__block_node_give(blocks, number);
        return true;
}

/* ---- removing ---- */

/* As groups of blocks to store, but with one stage more: it is the node that tells whether the table of keys
 * will be needed. */
struct removal {
        uint32_t count;
        uint32_t handle_changes, key_changes; /* of the tables, when the lines were found */
        uint64_t hashes[BLOCK_GROUP];
        struct kvr__places *lines[BLOCK_GROUP];
        _Atomic uint64_t *places[BLOCK_GROUP]; /* of the handles; NULL: not found */
        uint64_t items[BLOCK_GROUP];
        uint64_t key_hashes[BLOCK_GROUP];
        struct kvr__places *key_lines[BLOCK_GROUP]; /* NULL: not asked for */
};

struct remove {
        struct kvr__blocks *blocks;
        struct kvr__blocks_table *handles;
        const uint64_t *hashes;
        uint32_t left;
        struct kvr_events_account *account;
        uint16_t lane;
};

static void removal_prepare(struct remove *remove, struct removal *group)
{
        struct kvr__aim aim = kvr__aim_of(remove->handles);

        group->count = remove->left < BLOCK_GROUP ? remove->left : BLOCK_GROUP;
        group->handle_changes = kvr__blocks_table_changes(remove->handles);
        remove->left -= group->count;
        for (uint32_t i = 0; i < group->count; i++) {
                group->hashes[i] = block_handle_hash(remove->blocks, *remove->hashes++);
                group->lines[i] = kvr__aim_line(&aim, group->hashes[i]);
                KVR__PREFETCH_MANY(group->lines[i]);
        }
}

static void removal_touch(const struct remove *remove, struct removal *group)
{
        struct kvr__blocks_spot spot;

        for (uint32_t i = 0; i < group->count; i++) {
                group->places[i] = kvr__blocks_table_find_in(remove->handles, group->lines[i],
                                                             group->hashes[i], &group->items[i], &spot);
                if (group->places[i])
                        __builtin_prefetch(block_node_at(remove->blocks, block_handle_node(group->items[i])),
                                           1);
        }
}

static void removal_touch_keys(const struct remove *remove, struct removal *group)
{
        struct kvr__blocks *blocks = remove->blocks;
        struct kvr__aim aim = kvr__aim_of(&blocks->by_key);

        group->key_changes = kvr__blocks_table_changes(&blocks->by_key);
        for (uint32_t i = 0; i < group->count; i++) {
                group->key_lines[i] = NULL;
                if (!group->places[i])
                        continue;
                const struct block_node *node = block_node_at(blocks, block_handle_node(group->items[i]));
                uint64_t bits = atomic_load_explicit(&node->bits, memory_order_relaxed);

                /* The last holder's going takes the node out of its line. */
                if (bits & (bits - 1))
                        continue;
                uint64_t key = atomic_load_explicit(&node->key, memory_order_relaxed);

                group->key_hashes[i] = block_key_hash(blocks, key);
                group->key_lines[i] = kvr__aim_line(&aim, group->key_hashes[i]);
                KVR__PREFETCH_MANY(group->key_lines[i]);
        }
}

/* One copy is removed and the block stays. */
static bool copy_remove(const struct remove *remove, uint64_t hash, uint64_t item, _Atomic uint64_t *place)
{
        uint32_t left;

        if (!count_down(
                    &remove->blocks->copies,
                    block_lane_hash(remove->blocks, remove->lane, (uint32_t)hash, block_handle_node(item)),
                    &left))
                return false;
        if (!left)
                atomic_store_explicit(place, item & ~(uint64_t)BLOCK_COPIED, memory_order_relaxed);
        remove->account->copies_removed++;
        return true;
}

static inline void step_remove(const struct remove *remove, const struct removal *group, uint32_t i)
{
        struct kvr__blocks *blocks = remove->blocks;
        uint64_t hash = group->hashes[i], item = group->items[i];
        _Atomic uint64_t *place = group->places[i];
        struct kvr__places *line = group->lines[i], *key_line = group->key_lines[i];

        if (group->handle_changes != kvr__blocks_table_changes(remove->handles) || !place ||
            atomic_load_explicit(place, memory_order_relaxed) != item) {
                struct kvr__blocks_spot spot;

                line = kvr__blocks_table_line(remove->handles, hash);
                place = kvr__blocks_table_find_in(remove->handles, line, hash, &item, &spot);
                key_line = NULL;
        }
        if (!place) {
                remove->account->unknown++;
                return;
        }
        uint32_t handle = kvr__item_number(item);

        if (handle & BLOCK_COPIED && copy_remove(remove, hash, item, place))
                return;
        kvr__blocks_table_take(remove->handles, line, place);
        if (handle & BLOCK_COPIED || blocks->aliases.items || !key_line ||
            group->key_changes != kvr__blocks_table_changes(&blocks->by_key) ||
            !node_end_quickly(blocks, remove->lane, handle, group->key_hashes[i], key_line))
                kvr__block_handle_end(blocks, remove->lane, (uint32_t)hash, handle);
        blocks->holders--;
        remove->account->removed++;
}

void kvr__blocks_remove(struct kvr__blocks *blocks, uint16_t lane, const uint64_t *hashes, uint32_t count,
                        struct kvr_events_account *account)
{
        if (!kvr__block_lane_is_open(blocks, lane))
                return;
        struct remove remove = {blocks, &block_lane_at(blocks, lane)->handles, hashes, count, account, lane};
        struct removal groups[4];
        uint32_t now = 0;

        kvr__blocks_reclaim(blocks, BLOCK_RECLAIM_STEP);
        if (!remove.handles->items) {
                account->unknown += count;
                return;
        }
        removal_prepare(&remove, &groups[0]);
        removal_touch(&remove, &groups[0]);
        removal_prepare(&remove, &groups[1]);
        removal_touch_keys(&remove, &groups[0]);
        removal_touch(&remove, &groups[1]);
        removal_prepare(&remove, &groups[2]);
        while (groups[now].count) {
                removal_touch_keys(&remove, &groups[(now + 1) % 4]);
                removal_touch(&remove, &groups[(now + 2) % 4]);
                removal_prepare(&remove, &groups[(now + 3) % 4]);
                for (uint32_t i = 0; i < groups[now].count; i++)
                        step_remove(&remove, &groups[now], i);
                now = (now + 1) % 4;
        }
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
