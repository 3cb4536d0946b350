/* SPDX-License-Identifier: Apache-2.0 */
/* Does every link and count of the cache index agree with every other? For tests and fuzzers. */
#include "index_int.h"

static uint32_t holders_count(const struct kvr__index *index, const struct node *node)
{
        uint32_t count = 0;

        if (!(node->size & NODE_SHARED))
                return node->holder ? 1 : 0;
        for (uint32_t at = node->holder; at; at = chunk_at(index, at)->next)
                count += (uint32_t)__builtin_popcountll(chunk_at(index, at)->bits);
        return count < 2 ? 0 : count; /* a set of one should have become a plain holder */
}

static bool nodes_check(const struct kvr__index *index)
{
        uint64_t nodes = 0, holders = 0, notes = 0;

        for (uint32_t b = 0; b < index->by_key.count; b++) {
                uint32_t before = 0;

                for (uint32_t number = *(uint32_t *)kvr__pool_at(&index->by_key.pool, b); number;) {
                        const struct node *node = node_at(index, number);
                        uint32_t count = holders_count(index, node);

                        if (!(node->size & NODE_LIVE) || !count || ++nodes > index->node_count)
                                return false;
                        if (bucket_of(&index->by_key, key_hash(node->key)) !=
                            (uint32_t *)kvr__pool_at(&index->by_key.pool, b))
                                return false;
                        if (!(node->size & NODE_SHARED) && pair_at(index, node->holder)->node != number)
                                return false;
                        if (node->back != before)
                                return false;
                        before = number;
                        holders += count;
                        notes += node->note != 0;
                        number = node->chain;
                }
        }
        return nodes == index->node_count && holders == index->pair_count && notes == index->note_count;
}

static bool lane_check(const struct kvr__index *index, uint32_t number)
{
        const struct lane *lane = &index->lanes[number];
        uint32_t prev = 0, pairs = 0;
        uint64_t tokens = 0;

        for (uint32_t at = lane->head; at; at = pair_at(index, at)->next) {
                const struct pair *pair = pair_at(index, at);
                const struct node *node = node_at(index, pair->node);

                if (pair->lane != number || pair->prev != prev || ++pairs > lane->pairs)
                        return false;
                if (!(node->size & NODE_LIVE) ||
                    kvr__pair_find(index, pair->node, (uint16_t)number, 0) != at)
                        return false;
                tokens += node->size & NODE_SIZE;
                prev = at;
        }
        return lane->tail == prev && lane->pairs == pairs && lane->tokens == tokens;
}

bool kvr__index_check(const struct kvr__index *index)
{
        uint64_t pairs = 0, closed = 0;
        uint32_t open = 0, lanes_closed = 0;

        for (uint32_t i = 0; i < index->lane_room; i++) {
                if (!lane_check(index, i))
                        return false;
                pairs += index->lanes[i].pairs;
                if (index->lanes[i].state == LANE_CLOSED) {
                        closed += index->lanes[i].pairs;
                        lanes_closed++;
                }
                open += index->lanes[i].state == LANE_OPEN;
        }
        if (open != index->lanes_open || lanes_closed != index->lanes_closed)
                return false;
        if (pairs != index->pair_count || closed != index->closed_pairs)
                return false;
        if (index->budget.bytes > index->budget.bytes_max)
                return false;
        return nodes_check(index);
}
