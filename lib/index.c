/* SPDX-License-Identifier: Apache-2.0 */
#include "index.h"

#include <stdlib.h>
#include <string.h>

#include "index_int.h"

#define LANES_FIRST      16
#define SEGMENT_MIN      4096
#define SEGMENT_MAX      (8U << 20)
#define SEGMENTS_PER_CAP 64 /* a pool grows by this part of the cap */

/* ---- life ---- */

struct kvr__index *kvr__index_new(uint64_t bytes_max)
{
        struct kvr__index *index = calloc(1, sizeof(*index));

        if (!index)
                return NULL;
        uint64_t wish = bytes_max / SEGMENTS_PER_CAP;
        size_t segment = wish < SEGMENT_MIN ? SEGMENT_MIN : wish > SEGMENT_MAX ? SEGMENT_MAX : (size_t)wish;
        struct kvr__budget *budget = &index->budget;

        budget->bytes_max = bytes_max;
        /* What is left is room to list three nodes of four, should chains ever be broken up that much. */
        budget->bytes_main = bytes_max / 16 * 13;
        budget->bytes = sizeof(*index);
        /* Sets, notes and tables are small beside what they belong to, and must not lock up. */
        if (!kvr__pool_init(&index->nodes, budget, sizeof(struct node), segment, false) ||
            !kvr__pool_init(&index->pairs, budget, sizeof(struct pair), segment, false) ||
            !kvr__pool_init(&index->chunks, budget, sizeof(struct chunk), segment / 4, true) ||
            !kvr__pool_init(&index->notes, budget, sizeof(struct kvr__note), segment / 4, true) ||
            !kvr__table_init(&index->by_key, budget, segment, true, &kvr__node_items, index) ||
            !kvr__table_init(&index->by_holder, budget, segment, true, &kvr__pair_items, index)) {
                kvr__index_free(index);
                return NULL;
        }
        index->closed_head = KVR__NO_LANE;
        index->victim = KVR__NO_LANE;
        return index;
}

void kvr__index_free(struct kvr__index *index)
{
        if (!index)
                return;
        for (uint32_t i = 0; i < index->lane_room; i++)
                free(index->lanes[i].lost);
        free(index->lanes);
        kvr__pool_fini(&index->nodes);
        kvr__pool_fini(&index->pairs);
        kvr__pool_fini(&index->chunks);
        kvr__pool_fini(&index->notes);
        kvr__table_fini(&index->by_key);
        kvr__table_fini(&index->by_holder);
        free(index);
}

struct kvr__budget *kvr__index_budget(struct kvr__index *index)
{
        return &index->budget;
}

/* ---- lanes ---- */

static bool lanes_extend(struct kvr__index *index)
{
        uint32_t room = index->lane_room ? index->lane_room * 2 : LANES_FIRST;
        uint64_t bytes = (room - index->lane_room) * sizeof(struct lane);

        if (room > KVR__LANES_MAX || index->budget.bytes + bytes > index->budget.bytes_max)
                return false;
        struct lane *lanes = realloc(index->lanes, room * sizeof(*lanes));

        if (!lanes)
                return false;
        memset(lanes + index->lane_room, 0, (size_t)bytes);
        index->lanes = lanes;
        index->lane_room = room;
        index->budget.bytes += bytes;
        return true;
}

bool kvr__lane_open(struct kvr__index *index, uint16_t *ret_lane)
{
        uint32_t at = 0;

        /* The lowest free number keeps the sets short. */
        while (at < index->lane_room && index->lanes[at].state != LANE_FREE)
                at++;
        if (at == index->lane_room && !lanes_extend(index))
                return false;
        index->lanes[at] = (struct lane){.state = LANE_OPEN, .lost = index->lanes[at].lost};
        if (index->lanes[at].lost)
                memset(index->lanes[at].lost, 0, LOST_PLACES * sizeof(uint16_t));
        index->lanes_open++;
        *ret_lane = (uint16_t)at;
        return true;
}

void kvr__lane_close(struct kvr__index *index, uint16_t number)
{
        struct lane *lane = &index->lanes[number];

        index->lanes_open--;
        if (index->victim == number)
                index->victim_left = 0;
        if (!lane->pairs) {
                lane->state = LANE_FREE;
                return;
        }
        lane->state = LANE_CLOSED;
        lane->next_closed = index->closed_head;
        index->closed_head = number;
        index->closed_pairs += lane->pairs;
        index->lanes_closed++;
}

uint64_t kvr__lane_tokens(const struct kvr__index *index, uint16_t lane)
{
        return index->lanes[lane].tokens;
}

uint32_t kvr__lane_pairs(const struct kvr__index *index, uint16_t lane)
{
        return index->lanes[lane].pairs;
}

static uint16_t lost_print(uint64_t key)
{
        return (uint16_t)(key >> 16 | 1);
}

bool kvr__lane_lost(const struct kvr__index *index, uint16_t number, uint64_t key, bool *ret_sampled)
{
        const uint16_t *lost = index->lanes[number].lost;

        *ret_sampled = LOST_SAMPLE(key);
        return *ret_sampled && lost && lost[(key >> 40) % LOST_PLACES] == lost_print(key);
}

/*
 * Notes an evicted key, so that a later answer from cache shows that the engine holds more than we assumed.
 */
static void lost_note(struct kvr__index *index, struct lane *lane, uint64_t key)
{
        if (!LOST_SAMPLE(key))
                return;
        if (!lane->lost) {
                uint64_t bytes = LOST_PLACES * sizeof(uint16_t);

                if (index->budget.bytes + bytes > index->budget.bytes_max)
                        return;
                lane->lost = calloc(LOST_PLACES, sizeof(uint16_t));
                if (!lane->lost)
                        return;
                index->budget.bytes += bytes;
        }
        lane->lost[(key >> 40) % LOST_PLACES] = lost_print(key);
}

/* ---- order of a lane ---- */

static void order_unlink(struct kvr__index *index, struct lane *lane, uint32_t first, uint32_t last)
{
        uint32_t before = pair_at(index, first)->prev, after = pair_at(index, last)->next;

        if (before)
                pair_at(index, before)->next = after;
        else
                lane->head = after;
        if (after)
                pair_at(index, after)->prev = before;
        else
                lane->tail = before;
}

/* Puts the run first..last behind `cursor`, or foremost when that is 0. */
static void order_link(struct kvr__index *index, struct lane *lane, uint32_t first, uint32_t last,
                       uint32_t cursor)
{
        uint32_t after = cursor ? pair_at(index, cursor)->next : lane->head;

        pair_at(index, first)->prev = cursor;
        pair_at(index, last)->next = after;
        if (cursor)
                pair_at(index, cursor)->next = first;
        else
                lane->head = first;
        if (after)
                pair_at(index, after)->prev = last;
        else
                lane->tail = last;
}

static void order_move(struct kvr__index *index, struct lane *lane, uint32_t first, uint32_t last,
                       uint32_t cursor)
{
        if (first == cursor || pair_at(index, first)->prev == cursor)
                return;
        order_unlink(index, lane, first, last);
        order_link(index, lane, first, last, cursor);
}

/* ---- letting go ---- */

static void pair_drop(struct kvr__index *index, uint32_t number)
{
        struct pair *pair = pair_at(index, number);
        struct lane *lane = &index->lanes[pair->lane];

        order_unlink(index, lane, number, number);
        lane->pairs--;
        lane->tokens -= node_at(index, pair->node)->size & NODE_SIZE;
        index->pair_count--;
        if (lane->state == LANE_CLOSED)
                index->closed_pairs--;
        kvr__holder_drop(index, number);
        pair->lane = KVR__NO_LANE;
        kvr__pool_give(&index->pairs, number);
}

/* Evictions come in rows: asks for the memory that the next ones will touch, each step one further away. */
KVR__PREFETCHER void victims_prefetch(const struct kvr__index *index, const struct lane *lane)
{
        const struct pair *pair = pair_at(index, lane->tail);

        for (int ahead = 1; ahead <= 6 && pair->prev; ahead++) {
                pair = pair_at(index, pair->prev);
                if (ahead == 3 && (node_at(index, pair->node)->size & NODE_LISTED))
                        kvr__table_prefetch(&index->by_key, key_hash(node_at(index, pair->node)->key));
                if (ahead < 6)
                        continue;
                __builtin_prefetch(node_at(index, pair->node), 1);
                if (pair->prev)
                        __builtin_prefetch(pair_at(index, pair->prev), 1);
        }
}

static void tail_evict(struct kvr__index *index, struct lane *lane)
{
        const struct pair *tail = pair_at(index, lane->tail);

        victims_prefetch(index, lane);
        lost_note(index, lane, node_at(index, tail->node)->key);
        pair_drop(index, lane->tail);
        index->evictions++;
}

void kvr__index_reclaim(struct kvr__index *index, uint32_t max)
{
        while (index->closed_head != KVR__NO_LANE) {
                struct lane *lane = &index->lanes[index->closed_head];

                for (; lane->pairs && max; max--)
                        pair_drop(index, lane->tail);
                if (lane->pairs)
                        return;
                lane->state = LANE_FREE;
                index->closed_head = lane->next_closed;
                index->lanes_closed--;
        }
}

void kvr__lane_shrink(struct kvr__index *index, uint16_t number, uint64_t tokens, uint32_t max)
{
        struct lane *lane = &index->lanes[number];

        for (; lane->tokens > tokens && lane->pairs && max; max--)
                tail_evict(index, lane);
}

/* The lane that makes room for `asking`: itself unless it is below average, so that a newcomer gets its
 * share. */
static struct lane *victim_choose(struct kvr__index *index, uint16_t asking, uint32_t cursor)
{
        struct lane *own = &index->lanes[asking];
        uint64_t open_pairs = index->pair_count - index->closed_pairs;

        if (own->pairs && own->tail != cursor && (uint64_t)own->pairs * index->lanes_open >= open_pairs)
                return own;
        if (!index->victim_left || !index->lanes[index->victim].pairs) {
                index->victim = asking;
                for (uint32_t i = 0; i < index->lane_room; i++)
                        if (index->lanes[i].state == LANE_OPEN &&
                            index->lanes[i].pairs > index->lanes[index->victim].pairs)
                                index->victim = (uint16_t)i;
                index->victim_left = VICTIM_LIFETIME;
        }
        index->victim_left--;
        struct lane *victim = &index->lanes[index->victim];

        return victim->pairs && victim->tail != cursor ? victim : NULL;
}

static bool room_is_there(struct kvr__index *index, uint32_t count)
{
        while (kvr__nodes_ready(index) < count)
                if (!kvr__pool_grow(&index->nodes))
                        return false;
        while (kvr__pool_free(&index->pairs) < count)
                if (!kvr__pool_grow(&index->pairs))
                        return false;
        return true;
}

/* What one call may do to make room for what it inserts. */
struct room {
        uint16_t lane;       /* that asks */
        uint32_t cursor;     /* its pair that must stay */
        struct lane *victim; /* stays the same as long as it can: what it gives up is in order then */
        uint32_t left;       /* evictions that are still allowed */
};

/* Lets go of one pair. False when nothing can be evicted, or no more may be. */
static bool room_step(struct kvr__index *index, struct room *room)
{
        if (!room->left)
                return false;
        room->left--;
        if (index->closed_head != KVR__NO_LANE) {
                kvr__index_reclaim(index, 1);
                return true;
        }
        if (!room->victim || !room->victim->pairs || room->victim->tail == room->cursor)
                room->victim = victim_choose(index, room->lane, room->cursor);
        if (!room->victim)
                return false;
        tail_evict(index, room->victim);
        return true;
}

/* Makes sure of so many free nodes and free pairs. */
static bool room_make(struct kvr__index *index, struct room *room, uint32_t count)
{
        while (!room_is_there(index, count))
                if (!room_step(index, room))
                        return false;
        return true;
}

/*
 * For so many new points at once, since a chain that is evicted from its end on leaves a run of nodes in their order; and
 * for the slack, of which no call has to make more than it needs itself.
 */
static void room_ahead(struct kvr__index *index, struct room *room, uint32_t count)
{
        uint32_t goal = count + index->nodes.fresh / NODES_SLACK;

        if (!room_make(index, room, count))
                return;
        for (uint32_t i = 0; i < count && kvr__nodes_ready(index) < goal; i++)
                if (!kvr__pool_grow(&index->nodes) && !room_step(index, room))
                        return;
}

/* ---- touching ---- */

/* Moves the held part of a chain to the front, whole runs at a time. Returns how many points were really
 * held. */
static uint32_t touch_held(struct kvr__index *index, const struct kvr__path *path,
                           const struct kvr__touch *touch, uint32_t *ret_cursor)
{
        struct lane *lane = &index->lanes[touch->lane];
        uint32_t cursor = 0, first = 0, last = 0, i;

        for (i = 0; i < touch->held; i++) {
                uint32_t number = kvr__pair_find(index, path->nodes[i], touch->lane, last + 1);

                if (!number)
                        break;
                struct pair *pair = pair_at(index, number);

                if (pair->owner)
                        pair->owner = 0;
                if (first && pair_at(index, last)->next == number && number != cursor) {
                        last = number;
                        continue;
                }
                if (first) {
                        order_move(index, lane, first, last, cursor);
                        cursor = last;
                }
                first = last = number;
        }
        if (first) {
                order_move(index, lane, first, last, cursor);
                cursor = last;
        }
        *ret_cursor = cursor;
        return i;
}

/* The node of points[i], known before or made now; 0 when there is no room. */
static uint32_t touch_node(struct kvr__index *index, const struct kvr__path *path,
                           const struct kvr_point *points, uint32_t i, double tokens_per_unit)
{
        if (i < path->known) {
                const struct node *node = node_at(index, path->nodes[i]);

                /* Evictions for points before this one may have taken it. */
                if ((node->size & NODE_LIVE) && node->key == points[i].key)
                        return path->nodes[i];
        }
        double tokens = (double)(points[i].end - (i ? points[i - 1].end : 0)) * tokens_per_unit + 0.5;
        uint32_t size = tokens < 1 ? 1 : tokens > NODE_SIZE ? NODE_SIZE : (uint32_t)tokens;

        return kvr__node_make(index, points[i].key, size, i ? path->nodes[i - 1] : 0);
}

/* Behind `cursor`; 0 when there is no room. */
static uint32_t touch_insert(struct kvr__index *index, uint32_t node, const struct kvr__touch *touch,
                             uint32_t cursor)
{
        struct lane *lane = &index->lanes[touch->lane];
        uint32_t number = kvr__pool_take(&index->pairs);

        if (!number)
                return 0;
        struct pair *pair = pair_at(index, number);

        *pair = (struct pair){.node = node, .lane = touch->lane, .owner = touch->owner};
        if (!kvr__holder_add(index, number)) {
                pair->lane = KVR__NO_LANE;
                kvr__pool_give(&index->pairs, number);
                return 0;
        }
        order_link(index, lane, number, number, cursor);
        lane->pairs++;
        lane->tokens += node_at(index, node)->size & NODE_SIZE;
        index->pair_count++;
        return number;
}

/* Point i, of which this lane has nothing yet, behind `cursor`. Its pair; 0 when there is no room. */
static uint32_t touch_point(struct kvr__index *index, struct kvr__path *path, const struct kvr_point *points,
                            uint32_t i, const struct kvr__touch *touch, uint32_t cursor)
{
        uint32_t node = touch_node(index, path, points, i, touch->tokens_per_unit);

        if (!node)
                return 0;
        uint32_t number = kvr__pair_find(index, node, touch->lane, 0);

        if (number) {
                /* Only for points that are no chain: invariant P was never promised for those. */
                order_move(index, &index->lanes[touch->lane], number, number, cursor);
        } else {
                number = touch_insert(index, node, touch, cursor);
                if (!number && !node_at(index, node)->holder)
                        kvr__node_drop(index, node);
        }
        path->nodes[i] = node;
        return number;
}

uint32_t kvr__index_touch(struct kvr__index *index, struct kvr__path *path, const struct kvr_point *points,
                          uint32_t count, const struct kvr__touch *touch)
{
        uint32_t cursor, i = touch_held(index, path, touch, &cursor);
        struct room room = {.lane = touch->lane, .cursor = cursor, .left = ROOM_ATTEMPTS + 2 * (count - i)};

        if (i < count)
                room_ahead(index, &room, count - i);
        while (i < count && room_make(index, &room, 1)) {
                uint32_t number = touch_point(index, path, points, i, touch, cursor);

                if (number) {
                        room.cursor = cursor = number;
                        i++;
                } else if (!room_step(index, &room)) {
                        break; /* else there may be a place in the tables now */
                }
        }
        return i;
}

void kvr__index_remove(struct kvr__index *index, struct kvr__path *path, uint16_t lane,
                       const struct kvr_point *points, uint32_t from, uint32_t count, uint16_t owner)
{
        kvr__index_find(index, points, count, path);
        for (uint32_t i = path->known; i-- > from;) {
                uint32_t number = kvr__pair_find(index, path->nodes[i], lane, 0);

                if (number && pair_at(index, number)->owner == owner)
                        pair_drop(index, number);
        }
}

void kvr__index_stats(const struct kvr__index *index, struct kvr__index_stats *ret)
{
        *ret = (struct kvr__index_stats){
                .bytes = index->budget.bytes,
                .bytes_max = index->budget.bytes_max,
                .nodes = index->node_count,
                .pairs = index->pair_count,
                .pairs_closed = index->closed_pairs,
                .shared_pairs = index->by_holder.items,
                .notes = index->note_count,
                .evictions = index->evictions,
        };
}
