/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups in the cache index: the known part of a chain, and how much of it each lane holds. */
#include <string.h>

#include "index_int.h"

#define SPLIT_DEPTH 14 /* halvings of the longest chain, and one */

/* The node of the point behind the one whose node is `before`, if it lies there; else 0. */
static uint32_t node_behind(const struct kvr__index *index, uint32_t before, uint64_t key)
{
        uint32_t guess = before + 1;

        return guess < index->nodes.fresh && kvr__node_is(index, guess, key) ? guess : 0;
}

/* Looks `count` keys up with their cache misses overlapping. Returns how many leading ones are known. */
static uint32_t find_batch(const struct kvr__index *index, const struct kvr_point *points, uint32_t count,
                           uint32_t *ret_nodes)
{
        for (uint32_t i = 0; i < count; i++)
                kvr__table_prefetch(&index->by_key, key_hash(points[i].key));
        for (uint32_t i = 0; i < count; i++) {
                struct kvr__table_walk walk = kvr__table_begin(&index->by_key, key_hash(points[i].key));

                ret_nodes[i] = kvr__table_next(&index->by_key, &walk);
                if (ret_nodes[i])
                        __builtin_prefetch(node_at(index, ret_nodes[i]));
        }
        for (uint32_t i = 0; i < count; i++) {
                /* The first with the tag is nearly always the one. */
                if (!ret_nodes[i] || node_at(index, ret_nodes[i])->key != points[i].key)
                        ret_nodes[i] = kvr__node_find(index, points[i].key);
                if (!ret_nodes[i] && i)
                        ret_nodes[i] = node_behind(index, ret_nodes[i - 1], points[i].key);
                if (!ret_nodes[i])
                        return i;
        }
        return count;
}

/* How many of the points are those of the nodes that lie one after the other from `first` on. */
static uint32_t find_run(const struct kvr__index *index, uint32_t first, const struct kvr_point *points,
                         uint32_t count, uint32_t *ret_nodes)
{
        uint32_t segment = 1U << index->nodes.shift, most = segment - (first & (segment - 1)), same = 0;

        if (first >= index->nodes.fresh)
                return 0;
        most = most < index->nodes.fresh - first ? most : index->nodes.fresh - first;
        most = most < count ? most : count;
        const struct node *nodes = node_at(index, first);

        while (same < most && nodes[same].key == points[same].key && (nodes[same].size & NODE_LIVE)) {
                /* One in four: there are three to a cache line. */
                if (same % 4 == 0 && same + FIND_AHEAD < most)
                        __builtin_prefetch(nodes + same + FIND_AHEAD);
                ret_nodes[same] = first + same;
                same++;
        }
        return same;
}

void kvr__index_find(const struct kvr__index *index, const struct kvr_point *points, uint32_t count,
                     struct kvr__path *ret_path)
{
        uint32_t known = 0, batch = 1, noted = 0;

        while (known < count) {
                uint32_t run = known ? find_run(index, ret_path->nodes[known - 1] + 1, points + known,
                                                count - known, ret_path->nodes + known)
                                     : 0;

                if (run) {
                        known += run;
                        batch = 1;
                        continue;
                }
                uint32_t left = count - known, ask = batch < left ? batch : left;
                uint32_t got = find_batch(index, points + known, ask, ret_path->nodes + known);

                known += got;
                if (got < ask)
                        break;
                batch = batch < FIND_BATCH ? batch * 2 : FIND_BATCH;
        }
        for (uint32_t i = 0; i < known; i++)
                if (node_at(index, ret_path->nodes[i])->note)
                        ret_path->noted[noted++] = (uint16_t)i;
        ret_path->known = known;
        ret_path->noted_count = noted;
}

/* ret = set ∩ holders of the node; tells whether that is all of the set, none, or some. */
enum part { PART_NONE, PART_SOME, PART_ALL };

static enum part set_meet(const struct kvr__index *index, uint32_t number, const uint64_t *set,
                          uint32_t words, uint64_t *ret)
{
        const struct node *node = node_at(index, number);
        uint64_t some = 0, missing = 0;

        memset(ret, 0, words * sizeof(*ret));
        if (!(node->size & NODE_SHARED)) {
                uint16_t lane = pair_at(index, node->holder)->lane;

                if (lane / 64 < words)
                        ret[lane / 64] = set[lane / 64] & 1ULL << (lane % 64);
        } else {
                for (uint32_t at = node->holder; at; at = chunk_at(index, at)->next) {
                        const struct chunk *chunk = chunk_at(index, at);

                        if (chunk->word < words)
                                ret[chunk->word] = set[chunk->word] & chunk->bits;
                }
        }
        for (uint32_t w = 0; w < words; w++) {
                some |= ret[w];
                missing |= set[w] & ~ret[w];
        }
        return !some ? PART_NONE : missing ? PART_SOME : PART_ALL;
}

static void depth_assign(const uint64_t *set, uint32_t words, uint32_t depth, uint32_t *ret_depth)
{
        for (uint32_t w = 0; w < words; w++)
                for (uint64_t bits = set[w]; bits; bits &= bits - 1)
                        ret_depth[w * 64 + (uint32_t)__builtin_ctzll(bits)] = depth;
}

/*
 * Everyone in `set` holds at least `low` and at most `high` points. Holders of a deeper point hold all before
 * it, so a stretch at whose end the set is still whole need not be looked into. `level` rooms of words below
 * `room` are free.
 */
static void depth_split(const struct kvr__index *index, const struct kvr__path *path, uint64_t *set,
                        uint32_t words, uint32_t low, uint32_t high, uint64_t *room, uint32_t *ret_depth)
{
        while (low < high) {
                uint32_t middle = low + (high - low + 1) / 2;
                enum part part = set_meet(index, path->nodes[middle - 1], set, words, room);

                if (part == PART_NONE) {
                        high = middle - 1;
                } else if (part == PART_ALL) {
                        low = middle;
                } else {
                        for (uint32_t w = 0; w < words; w++)
                                set[w] &= ~room[w];
                        depth_split(index, path, room, words, middle, high, room + words, ret_depth);
                        high = middle - 1;
                }
        }
        depth_assign(set, words, low, ret_depth);
}

/* Which of the first 64 lanes hold a node. */
static uint64_t holders_first(const struct kvr__index *index, uint32_t number)
{
        const struct node *node = node_at(index, number);

        if (!(node->size & NODE_SHARED)) {
                uint16_t lane = pair_at(index, node->holder)->lane;

                return lane < 64 ? 1ULL << lane : 0;
        }
        for (uint32_t at = node->holder; at; at = chunk_at(index, at)->next)
                if (chunk_at(index, at)->word == 0)
                        return chunk_at(index, at)->bits;
        return 0;
}

/* depth_split for sets of one word, which is what all but very large fleets have. */
static void depth_split_first(const struct kvr__index *index, const struct kvr__path *path, uint64_t set,
                              uint32_t low, uint32_t high, uint32_t *ret_depth)
{
        while (low < high) {
                uint32_t middle = low + (high - low + 1) / 2;
                uint64_t some = set & holders_first(index, path->nodes[middle - 1]);

                if (some == set) {
                        low = middle;
                        continue;
                }
                if (some)
                        depth_split_first(index, path, some, middle, high, ret_depth);
                set &= ~some;
                high = middle - 1;
        }
        depth_assign(&set, 1, low, ret_depth);
}

/* Apart, so that the usual case does not walk over so much stack. */
__attribute__((noinline)) static void depths_of_many(const struct kvr__index *index,
                                                     const struct kvr__path *path, const uint64_t *want,
                                                     uint32_t words, uint32_t *ret_depth)
{
        uint64_t rooms[(SPLIT_DEPTH + 1) * KVR__LANE_WORDS];

        memcpy(rooms, want, words * sizeof(*want));
        depth_split(index, path, rooms, words, 0, path->known, rooms + words, ret_depth);
}

void kvr__index_depths(const struct kvr__index *index, const struct kvr__path *path, const uint64_t *want,
                       uint32_t words, uint32_t *ret_depth)
{
        if (words == 1)
                depth_split_first(index, path, *want, 0, path->known, ret_depth);
        else
                depths_of_many(index, path, want, words, ret_depth);
}

/* ---- notes ---- */

struct kvr__note *kvr__index_note(const struct kvr__index *index, const struct kvr__path *path,
                                  uint32_t point)
{
        uint32_t note = node_at(index, path->nodes[point])->note;

        return note ? kvr__pool_at(&index->notes, note) : NULL;
}

static struct kvr__note *note_make(struct kvr__index *index, struct node *node)
{
        /* A sixteenth of the budget at most: they are advice, and entries are what advice is about. */
        if (!node->note && !kvr__pool_ready(&index->notes) &&
            (uint64_t)kvr__pool_room(&index->notes) * sizeof(struct kvr__note) > index->budget.bytes_max / 16)
                return NULL;
        if (!node->note) {
                node->note = kvr__pool_take(&index->notes);
                if (!node->note)
                        return NULL;
                struct kvr__note *note = kvr__pool_at(&index->notes, node->note);

                *note = (struct kvr__note){.answer_lane = KVR__NO_LANE};
                index->note_count++;
        }
        return kvr__pool_at(&index->notes, node->note);
}

struct kvr__note *kvr__index_note_make(struct kvr__index *index, const struct kvr__path *path, uint32_t point)
{
        return note_make(index, node_at(index, path->nodes[point]));
}

struct kvr__note *kvr__index_note_at(struct kvr__index *index, uint32_t number, uint64_t key, bool make)
{
        if (!number || number >= index->nodes.fresh || !kvr__node_is(index, number, key))
                return NULL;
        struct node *node = node_at(index, number);

        return node->note || make ? note_make(index, node) : NULL;
}
