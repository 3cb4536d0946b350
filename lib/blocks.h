/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block index: which blocks of token ids the engines say they hold.
 *
 *     key of a block = hash of (key of the block before it, XXH3 of its token ids, its extra keys)
 *
 *     by key      key ──► node {key, set of lanes that hold it}       one per block, whoever holds it
 *     by handle   (lane, engine's hash) ──► node, copies              how a lane names its blocks
 *
 * *lane*: one tier of one replica (rank) between two times it lost everything. Closing one is O(1): its
 * entries are invisible at once and reclaimed a few at a time by later changes; its number comes back when
 * they are gone, those that became free first before others.
 *
 * Writers: one at a time, as the caller sees to. Readers: any number of threads, no lock, never blocked by a
 * writer; what changes under them they may miss, but what they report as held was held at some moment of the
 * call. Memory, tables included, stays below a cap; at the cap stores are refused and counted.
 *
 * Memory: a block has a node of 24 bytes and some 21 in the table of keys, and each lane that holds it some 18
 * for its handle.
 *
 * A handle keeps 36 bits of its engine's hash. In a lane of n blocks a new one is taken for another about once
 * in 2^36/n times, and that other one is given up: of 300,000 blocks, one is missing.
 */
#ifndef KVROUTE_LIB_BLOCKS_H
#define KVROUTE_LIB_BLOCKS_H

#include "kvroute/events.h"

#define KVR__BLOCK_LANES_MAX  8192
#define KVR__BLOCK_LANE_WORDS (KVR__BLOCK_LANES_MAX / 64)

struct kvr__blocks;

/* NULL when out of memory. `bytes_max` at least 1 MiB. `salt`: by chance; whoever knows it can choose engine
 * hashes that all fall into one place of a table. It changes no answer. */
KVR_MUST_USE struct kvr__blocks *kvr__blocks_new(uint64_t bytes_max, uint64_t salt);
void kvr__blocks_free(struct kvr__blocks *blocks);

/* ---- keys ---- */

/* The key that a prompt's first block is chained to. Never 0. Blocks of different sizes never share keys. */
uint64_t kvr__chain_root(struct kvr_slice adapter, struct kvr_slice salt, uint32_t block_tokens);
/* The key of the next block; `extra` 0 when it has no extra keys. Never 0. */
uint64_t kvr__chain_next(uint64_t key, const uint32_t *tokens, uint32_t count, uint64_t extra);

/* ---- writers ---- */

/* False when out of memory or lanes. An event of a lane that is not open changes nothing. */
KVR_MUST_USE bool kvr__blocks_lane_open(struct kvr__blocks *blocks, uint16_t *ret_lane);
void kvr__blocks_lane_close(struct kvr__blocks *blocks, uint16_t lane);
/*
 * Adds to *account: each block is stored, repeated, an orphan, or refused. An event of another block size than
 * the lane's earlier ones is chained by its own size. A hash that is held and means another chain now is given
 * up (`removed`, copies and all) and stored anew. When one block is refused, so are those after it. Events of
 * hundreds of blocks cost least: cache misses of blocks that come together overlap.
 */
void kvr__blocks_store(struct kvr__blocks *blocks, uint16_t lane, const struct kvr_blocks_stored *stored,
                       struct kvr_events_account *account);
void kvr__blocks_remove(struct kvr__blocks *blocks, uint16_t lane, const uint64_t *hashes, uint32_t count,
                        struct kvr_events_account *account);
/* Clears up to `max` entries of closed lanes. Stores and removals do some of it by themselves. */
void kvr__blocks_reclaim(struct kvr__blocks *blocks, uint32_t max);
/* Hashes that an open lane holds; 0 for others. */
uint64_t kvr__blocks_lane_count(const struct kvr__blocks *blocks, uint16_t lane);

/* ---- readers, from any thread ---- */

/* Keys of leading blocks of one prompt, first to last; where a key is not known (a gap) it is 0. No key is
 * below 2^32. */
struct kvr__chain {
        const uint64_t *keys;
        uint32_t count;
};
/*
 * For every lane of `want` (the first `words` words of a set) the number of leading blocks it holds, in
 * ret_depth[lane]; other places are left alone. Long chains are divided, not walked: a lane that holds a block
 * is taken to hold those before it, as engines give tails away first. The 16 or so blocks before the end of
 * what is reported were all looked at, and before that every sixteenth (in chains of more than 512, every
 * 256th, and so on). A gap is credited when a block after it is held. Uses 40 KiB of stack.
 */
void kvr__blocks_depths(const struct kvr__blocks *blocks, const struct kvr__chain *chain,
                        const uint64_t *want, uint32_t words, uint32_t *ret_depth);

struct kvr__blocks_stats {
        uint64_t bytes, bytes_max, nodes, holders;
};
void kvr__blocks_stats(const struct kvr__blocks *blocks, struct kvr__blocks_stats *ret);
/* Checks every link and count, with no reader or writer about; for tests. Slow. */
bool kvr__blocks_check(const struct kvr__blocks *blocks);

#endif
