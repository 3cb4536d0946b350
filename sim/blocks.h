/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix cache of an engine as vLLM has it: a pool of blocks that are handed out, named by the key of
 * the prefix that they end, and stay findable after their request has ended until the memory is handed
 * out again.
 *
 *     free queue   [no key] [no key] [tail of A] [head of A] [tail of B] ...      next victim first
 *     in use       blocks with references > 0, not in the queue
 *     map          key ──► the blocks that carry it (there may be several copies of one key)
 *
 *  1. A block is in the free queue exactly when nothing refers to it.
 *  2. A key in the map belongs to a block whose memory was not handed out since; matching it takes it out
 *     of the queue.
 *  3. A request's blocks are freed tail first, so that a prefix outlives what follows it. Blocks without
 *     a key go to the front: there is nothing in them to lose.
 *  4. No copies are merged: two requests that compute one prefix at once leave two blocks with one key.
 */
#ifndef KVROUTE_SIM_BLOCKS_H
#define KVROUTE_SIM_BLOCKS_H

#include <kvroute/base.h>

#define SIM_BLOCKS_MAX (1u << 26)

struct sim_blocks;

/* `count` blocks, 1 .. SIM_BLOCKS_MAX. NULL when out of memory. */
KVR_MUST_USE struct sim_blocks *sim_blocks_new(uint32_t count);
void sim_blocks_free(struct sim_blocks *blocks);

/* How many of the first `count` keys (a chain, first block first) are findable in a row. */
uint32_t sim_blocks_match(const struct sim_blocks *blocks, const uint64_t *keys, uint32_t count);
/*
 * Takes one reference on each of the `hits` first keys (they must match) and hands out `fresh` more
 * blocks, all or nothing. ret_ids gets hits + fresh block numbers in order. False: not enough free
 * blocks, nothing was changed.
 */
KVR_MUST_USE bool sim_blocks_take(struct sim_blocks *blocks, const uint64_t *keys, uint32_t hits,
                                  uint32_t fresh, uint32_t *ret_ids);
/* Makes a block in use findable under `key` (not 0). */
void sim_blocks_name(struct sim_blocks *blocks, uint32_t id, uint64_t key);
/* Tells of every block whose key is gone because its memory was handed out again: not of a flush. */
void sim_blocks_watch(struct sim_blocks *blocks, void (*gone)(void *ctx, uint64_t key), void *ctx);
/* Drops one reference from each block; ids in order from the head of the request. */
void sim_blocks_release(struct sim_blocks *blocks, const uint32_t *ids, uint32_t count);
/* Forgets every key. Blocks in use stay in use. */
void sim_blocks_flush(struct sim_blocks *blocks);

uint32_t sim_blocks_count(const struct sim_blocks *blocks);
uint32_t sim_blocks_in_use(const struct sim_blocks *blocks);
uint32_t sim_blocks_named(const struct sim_blocks *blocks); /* blocks with a key, copies counted */
uint64_t sim_blocks_evictions(
        const struct sim_blocks *blocks); /* named blocks handed out again since the start */

#endif
