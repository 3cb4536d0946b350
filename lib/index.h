/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache index from history: which prefix was sent where, as far as it should still be there.
 *
 * Two conversations that begin alike, on two replicas whose contents live in lanes 1 and 2:
 *
 *     node  a ── b ── c ── d          one node per key, whoever holds it
 *                └─── e ── f
 *     lane 1  a b c d                 one pair per (node, lane)
 *     lane 2  a b e f
 *
 *     order of lane 1, most recent first:  a b c d | older chains...
 *
 * *lane*: what one replica holds between two times it lost everything. Forgetting a replica closes its lane
 * and opens another; entries of a closed lane are invisible at once and reclaimed a few at a time by later
 * calls.
 *
 * Invariant P: who holds a point holds all points before it. Touching puts the points of a prompt to the
 * front of the lane's order with the first one foremost, and only tails are evicted, so a parent outlives its
 * children. Hence the holders of the points of a chain are nested sets, and the deepest point of every lane
 * is found by dividing the chain where the set changes, not by walking it.
 *
 * A node that one lane holds points straight at its pair; only nodes with several holders have a set (bitmaps
 * of 64 lanes) and have their pairs in a second table. Nodes are numbered in the order in which chains came,
 * so the next point of a prompt is mostly the next node. Such a node is found from the one before it, which
 * outlives it, and is not in the table of keys at all: that holds only where chains begin and part, or where no
 * neighbour was free (fewer than one node in eight once old chains make room for new ones).
 *
 * Memory: 20 bytes a node and 10 more in the table, 16 bytes a pair, for a shared one 10 more and the set. All of
 * it, tables included, stays below the cap given to kvr__index_new; at the cap the longest lane's tail makes
 * room. Owner: whoever holds the router's lock.
 */
#ifndef KVROUTE_LIB_INDEX_H
#define KVROUTE_LIB_INDEX_H

#include "kvroute/prompt.h"

#include "pool.h"

#define KVR__LANES_MAX    8192 /* open and not yet reclaimed ones */
#define KVR__NO_LANE      UINT16_MAX
#define KVR__LANE_WORDS   (KVR__LANES_MAX / 64)
#define KVR__CHAIN_LIMIT  KVR_POINTS_MAX
#define KVR__RECLAIM_STEP 64 /* pairs of closed lanes that one call may clear away */

/* What is known of a prefix beyond who holds it. Only ends of prompts and forks have one. */
struct kvr__note {
        float visits, exits;  /* requests that passed here, that left known ground here; faded */
        float regret_s;       /* what they waited for want of another copy up to here; faded */
        uint32_t seen;        /* request number of the model at which they were last faded */
        uint32_t tokens;      /* of the prefix; 0 unknown */
        uint32_t answer;      /* generated tokens that followed this prompt; 0 unknown */
        uint16_t answer_lane; /* where that was */
        bool exact;           /* tokens was counted by an engine, not interpolated */
};

struct kvr__index;

/* NULL when out of memory. `bytes_max` at least 1 MiB. */
KVR_MUST_USE struct kvr__index *kvr__index_new(uint64_t bytes_max);
void kvr__index_free(struct kvr__index *index);
struct kvr__budget *kvr__index_budget(struct kvr__index *index);

/* ---- lanes ---- */

/* False when out of memory or lanes. */
KVR_MUST_USE bool kvr__lane_open(struct kvr__index *index, uint16_t *ret_lane);
/* O(1). The number comes back into use when all its pairs are reclaimed. */
void kvr__lane_close(struct kvr__index *index, uint16_t lane);
uint64_t kvr__lane_tokens(const struct kvr__index *index, uint16_t lane);
uint32_t kvr__lane_pairs(const struct kvr__index *index, uint16_t lane);
/* Did this lane hold the key not too long ago, but no longer? Remembers a sample of one key in eight,
 * bounded. */
bool kvr__lane_lost(const struct kvr__index *index, uint16_t lane, uint64_t key, bool *ret_sampled);
/* Evicts from the tail until at most `tokens` remain, but at most `max` pairs per call. */
void kvr__lane_shrink(struct kvr__index *index, uint16_t lane, uint64_t tokens, uint32_t max);
/* Clears up to `max` pairs of closed lanes. */
void kvr__index_reclaim(struct kvr__index *index, uint32_t max);

/* ---- look-up ---- */

/* The leading points of one prompt that are known to anybody. Filled by kvr__index_find; void after any
 * change. */
struct kvr__path {
        uint32_t known;                   /* points with a node */
        uint32_t noted_count;             /* of these, with a note */
        uint32_t nodes[KVR__CHAIN_LIMIT]; /* node number of each known point */
        uint16_t noted[KVR__CHAIN_LIMIT]; /* indices of points with a note, rising */
};
void kvr__index_find(const struct kvr__index *index, const struct kvr_point *points, uint32_t count,
                     struct kvr__path *ret_path);
/*
 * For every lane of `want` (a set of KVR__LANE_WORDS words, of which the first `words` count) the number of
 * leading points it holds, in ret_depth[lane]; other places of ret_depth are left alone. Costs about
 * log2(points) steps per distinct answer, each over `words` words.
 */
void kvr__index_depths(const struct kvr__index *index, const struct kvr__path *path, const uint64_t *want,
                       uint32_t words, uint32_t *ret_depth);
/* The note of a known point, NULL if it has none. */
struct kvr__note *kvr__index_note(const struct kvr__index *index, const struct kvr__path *path,
                                  uint32_t point);
/* The same, made on demand; NULL when memory is spent. A new one is all zero. */
struct kvr__note *kvr__index_note_make(struct kvr__index *index, const struct kvr__path *path,
                                       uint32_t point);
/* The note of a key whose node was number `node` some time ago; NULL when it is that no more. Valid until the
 * next change. */
struct kvr__note *kvr__index_note_at(struct kvr__index *index, uint32_t node, uint64_t key, bool make);

/* ---- change ---- */

struct kvr__touch {
        uint16_t lane;
        uint16_t owner;         /* mark of whoever inserts; 0 nobody */
        uint32_t held;          /* leading points the lane holds: kvr__index_depths */
        double tokens_per_unit; /* sizes new nodes */
};
/*
 * Makes all points the most recent of the lane, the first foremost, and inserts what is missing. Marks of
 * points that were there are cleared: they belong to more than one request now. Returns how many leading
 * points are held afterwards; fewer than `count` only when memory is spent. Voids the path, except that nodes
 * of points below the returned count are updated in it.
 */
uint32_t kvr__index_touch(struct kvr__index *index, struct kvr__path *path, const struct kvr_point *points,
                          uint32_t count, const struct kvr__touch *touch);
/* Removes those of points[from..count) that the lane holds and that still bear the mark. Uses the path for
 * itself. */
void kvr__index_remove(struct kvr__index *index, struct kvr__path *path, uint16_t lane,
                       const struct kvr_point *points, uint32_t from, uint32_t count, uint16_t owner);

struct kvr__index_stats {
        uint64_t bytes, bytes_max;
        uint64_t nodes, pairs, pairs_closed, shared_pairs, notes; /* pairs includes closed ones */
        uint64_t evictions;
};
void kvr__index_stats(const struct kvr__index *index, struct kvr__index_stats *ret);
/* Checks every link and count; for tests. True when all is consistent. Slow. */
bool kvr__index_check(const struct kvr__index *index);

#endif
