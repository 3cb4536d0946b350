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

struct sums {
        uint64_t nodes, listed, holders, notes, pairs;
};

static bool node_check(const struct kvr__index *index, uint32_t number, struct sums *sums)
{
        const struct node *node = node_at(index, number);
        uint32_t count = holders_count(index, node);

        if (!count)
                return false;
        if (!(node->size & NODE_SHARED) && pair_at(index, node->holder)->node != number)
                return false;
        sums->nodes++;
        sums->listed += (node->size & NODE_LISTED) != 0;
        sums->holders += count;
        sums->notes += node->note != 0;
        return true;
}

static bool listed_check(const struct kvr__index *index, uint32_t number, struct sums *sums)
{
        (void)sums;
        return node_at(index, number)->size & NODE_LISTED;
}

static bool nodes_check(const struct kvr__index *index, struct sums *sums)
{
        for (uint32_t number = 1; number < index->nodes.fresh; number++)
                if ((node_at(index, number)->size & NODE_LIVE) && !node_check(index, number, sums))
                        return false;
        return sums->nodes == index->node_count && sums->listed == index->by_key.items &&
               sums->nodes + index->nodes_free + 1 == index->nodes.fresh;
}

static bool pair_check(const struct kvr__index *index, uint32_t number, struct sums *sums)
{
        const struct pair *pair = pair_at(index, number);

        sums->pairs++;
        return pair->lane != KVR__NO_LANE && (node_at(index, pair->node)->size & NODE_SHARED);
}

/* Every item in the line it belongs to, without gaps, and as many as are counted. */
static bool table_check(const struct kvr__index *index, const struct kvr__table *table,
                        bool (*item_check)(const struct kvr__index *, uint32_t, struct sums *),
                        struct sums *sums)
{
        uint32_t items = 0;

        for (uint32_t at = 0; at < table->count; at++) {
                const struct kvr__line *first = kvr__pool_at(&table->lines, at), *line = first;
                bool ended = false;

                for (uint32_t i = 0;; i++) {
                        if (i == KVR__LINE_ITEMS) {
                                if (!line->more)
                                        break;
                                line = kvr__pool_at(&table->reserve, line->more);
                                if (!line->numbers[0])
                                        return false;
                                i = 0;
                        }
                        uint32_t number = line->numbers[i];

                        if (!number) {
                                ended = true;
                                continue;
                        }
                        uint32_t hash = table->ask->hash_of(table->ctx, number);

                        if (ended || line->tags[i] != hash >> 16 || kvr__table_line(table, hash) != first)
                                return false;
                        if (++items > table->items || !item_check(index, number, sums))
                                return false;
                }
        }
        return items == table->items;
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
                if (!(node->size & NODE_LIVE) || kvr__pair_find(index, pair->node, (uint16_t)number, 0) != at)
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
        struct sums sums = {0};

        return nodes_check(index, &sums) && table_check(index, &index->by_key, listed_check, &sums) &&
               table_check(index, &index->by_holder, pair_check, &sums) &&
               sums.holders == index->pair_count && sums.notes == index->note_count;
}
