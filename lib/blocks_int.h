/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the block index; see blocks.h for the idea. Included by blocks*.c and their tests only.
 *
 * How a reader knows that what it reads belongs together, without a lock:
 *
 *     node   key | bits | more | state: word 7, turn 25
 *                  64 lanes of the set: those of `word`; the others in chunks, `more`
 *
 *     reader   state   key == mine?   bits, chunks   state as before?  ──► held at that moment
 *
 * A place for 64 lanes, be it in a node or in a chunk, is empty before it is given to another key or word, and
 * the `turn` of the node it was in goes up between the two. Loads are acquiring and stores releasing, so that
 * whoever sees bits of the next owner sees the turn too. Nodes, chunks and lines are used again but never
 * freed while the index lives: memory that was once an index stays readable.
 */
#ifndef KVROUTE_LIB_BLOCKS_INT_H
#define KVROUTE_LIB_BLOCKS_INT_H

#include "blocks.h"
#include "blocks_table.h"

#define BLOCK_CHUNK_WORDS  3
#define BLOCK_CHUNKS_MAX   (KVR__BLOCK_LANE_WORDS / BLOCK_CHUNK_WORDS + 1)
#define BLOCK_WORD_BITS    7
#define BLOCK_WORD_MASK    ((1U << BLOCK_WORD_BITS) - 1)
#define BLOCK_TURN         (1U << BLOCK_WORD_BITS)
#define BLOCK_NODES_MAX    0x03ffffffU
#define BLOCK_COPIED       0x04000000U /* of a handle's number: there is more than one copy */
#define BLOCK_LANE_GROUP   64
#define BLOCK_GROUP        16 /* blocks that are at one stage together */
#define BLOCK_RECLAIM_STEP 64 /* entries of closed lanes that a store or removal clears away */
#define BLOCK_NO_LANE      UINT16_MAX

_Static_assert(KVR__BLOCK_LANE_WORDS <= 1 << BLOCK_WORD_BITS, "a word's number fits");

struct block_node {
        _Atomic uint64_t key;  /* of a free one: next free; keys are above that */
        _Atomic uint64_t bits; /* holders among the lanes of the word */
        _Atomic uint32_t more; /* chunk */
        _Atomic uint32_t state;
};

/* Empty places have no bits, whatever their word says. */
struct block_chunk {
        _Atomic uint64_t bits[BLOCK_CHUNK_WORDS];
        _Atomic uint32_t next;
        _Atomic uint32_t words; /* eight bits each */
};

enum block_lane_state { BLOCK_LANE_FREE, BLOCK_LANE_OPEN, BLOCK_LANE_CLOSED };

struct block_lane {
        struct kvr__blocks_table handles; /* node and BLOCK_COPIED */
        uint16_t state;
        uint16_t next; /* free or closed lane, in the order they became that */
};

/* First in, first out. */
struct block_lane_queue {
        uint16_t head, tail;
        uint32_t count;
};

struct kvr__blocks {
        const struct kvr__block_form *form;
        struct kvr__budget budget;
        struct kvr__pool nodes, chunks;
        struct kvr__lines lines;
        struct kvr__blocks_table by_key;
        struct kvr__blocks_table copies;  /* (lane, handle) ──► copies beyond the first */
        struct kvr__blocks_table aliases; /* (lane, node) ──► handles of it beyond the first */
        uint32_t node_free, nodes_free;
        _Atomic uint32_t nodes_end; /* numbers below were handed out at least once */
        uint32_t chunk_free, chunks_free;
        uint64_t salts[2];
        struct block_lane *lanes[KVR__BLOCK_LANES_MAX / BLOCK_LANE_GROUP];
        uint32_t lanes_used;
        struct block_lane_queue free, closed;
        uint64_t holders; /* handles of open lanes */
        _Atomic uint64_t open[KVR__BLOCK_LANE_WORDS];
        /* what kvr__blocks_stats reads from another thread */
        _Atomic uint64_t bytes_told, nodes_told, holders_told;
};

static inline struct block_lane *block_lane_at(const struct kvr__blocks *blocks, uint16_t lane)
{
        return &blocks->lanes[lane / BLOCK_LANE_GROUP][lane % BLOCK_LANE_GROUP];
}

static inline struct block_node *block_node_at(const struct kvr__blocks *blocks, uint32_t number)
{
        const struct kvr__pool *nodes = &blocks->nodes;

        return (struct block_node *)nodes->segments[number >> nodes->shift] +
               (number & ((1U << nodes->shift) - 1));
}

static inline uint64_t block_node_key(const struct kvr__blocks *blocks, uint32_t number)
{
        return atomic_load_explicit(&block_node_at(blocks, number)->key, memory_order_relaxed);
}

static inline struct block_chunk *block_chunk_at(const struct kvr__blocks *blocks, uint32_t number)
{
        return kvr__pool_at(&blocks->chunks, number);
}

static inline uint32_t block_words_get(uint32_t words, uint32_t place)
{
        return words >> 8 * place & 0xff;
}

/* One multiplication with both halves of the product: every bit of the result hangs on every bit of x. */
static inline uint64_t block_mix(uint64_t x, uint64_t salt, uint64_t factor)
{
        __extension__ typedef unsigned __int128 wide;
        wide product = (wide)(x ^ salt) * factor;

        return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint32_t block_handle_node(uint64_t item)
{
        return kvr__item_number(item) & ~BLOCK_COPIED;
}

static inline uint64_t block_key_hash(const struct kvr__blocks *blocks, uint64_t key)
{
        return block_mix(key, blocks->salts[0], blocks->salts[1]);
}

/* Engines may number their blocks 1, 2, 3: both multiplications are needed here. */
static inline uint64_t block_handle_hash(const struct kvr__blocks *blocks, uint64_t handle)
{
        return block_mix(block_mix(handle, blocks->salts[0], blocks->salts[1]), blocks->salts[1],
                         0x9e3779b97f4a7c15ULL);
}

/* What is to be found in the tables of handles. */
static inline uint64_t block_handle_want(const struct kvr__blocks *blocks, uint64_t handle)
{
        return kvr__item_of(block_handle_hash(blocks, handle));
}

/* Of a thing of a lane: low half of the handle's hash and node, or node alone. */
static inline uint64_t block_lane_hash(const struct kvr__blocks *blocks, uint16_t lane, uint32_t low,
                                       uint32_t node)
{
        return block_mix(block_key_hash(blocks, (uint64_t)low << 32 | node) + lane, blocks->salts[0],
                         0x9e3779b97f4a7c15ULL);
}

/* Smaller numbers are no keys. */
static inline bool block_key_is(uint64_t key)
{
        return key >> 32;
}

/* Keys of `count` blocks that follow a key, of `tokens` each; `extra` one per block or NULL. Returns the last. */
uint64_t kvr__chain_run(uint64_t key, const uint32_t *ids, uint32_t tokens, uint32_t count,
                        const uint64_t *extra, uint64_t *ret_keys);

/* ---- what a lane holds (blocks.c) ---- */

bool kvr__block_lane_is_open(const struct kvr__blocks *blocks, uint16_t lane);
/* A handle was taken out of the lane's table: what it stood for is held by the lane no longer. `hash_low`: low
 * half of the handle's hash. */
void kvr__block_handle_end(struct kvr__blocks *blocks, uint16_t lane, uint32_t hash_low, uint32_t handle);
/* One less of what `copies` or `aliases` count. False when nothing was counted; else *ret_left is what is left. */
bool kvr__block_count_down(struct kvr__blocks_table *table, uint64_t hash, uint32_t *ret_left);
/* One more of what `copies` or `aliases` count. False when there is no room. */
KVR_MUST_USE bool kvr__block_count_up(struct kvr__blocks_table *table, uint64_t hash);
/* After changes: lets other threads know the figures. */
void kvr__blocks_figures_tell(struct kvr__blocks *blocks);

/* ---- nodes (blocks_node.c) ---- */

/* For the writer. The number of the node with that key, or 0. */
uint32_t kvr__block_node_find(const struct kvr__blocks *blocks, uint64_t key, uint64_t hash);
/* A node that was never used; 0 when there is no room. */
uint32_t kvr__block_node_fresh(struct kvr__blocks *blocks);
/* A node that this lane holds, not in the table of keys yet; 0 when there is no room. */
static inline uint32_t kvr__block_node_new(struct kvr__blocks *blocks, uint64_t key, uint16_t lane)
{
        uint32_t number = blocks->node_free;
        struct block_node *node;

        if (number) {
                node = block_node_at(blocks, number);
                blocks->node_free = (uint32_t)atomic_load_explicit(&node->key, memory_order_relaxed);
                blocks->nodes_free--;
        } else {
                number = kvr__block_node_fresh(blocks);
                if (!number)
                        return 0;
                node = block_node_at(blocks, number);
        }
        uint32_t turns = atomic_load_explicit(&node->state, memory_order_relaxed) & ~BLOCK_WORD_MASK;

        /* The key is no longer there, the turn goes up, then there may be bits again. */
        atomic_store_explicit(&node->state, (turns + BLOCK_TURN) | lane / 64U, memory_order_release);
        atomic_store_explicit(&node->bits, 1ULL << (lane % 64), memory_order_release);
        atomic_store_explicit(&node->more, 0, memory_order_release);
        atomic_store_explicit(&node->key, key, memory_order_release);
        return number;
}
/* Gives a node back that is not in the table. */
static inline void kvr__block_node_give(struct kvr__blocks *blocks, uint32_t number)
{
        /* In the place of the key, and no key is that small: a reader that was here before must not take it
         * for a chunk. */
        atomic_store_explicit(&block_node_at(blocks, number)->key, blocks->node_free, memory_order_release);
        blocks->node_free = number;
        blocks->nodes_free++;
}
/* Gives a node without holders back. */
void kvr__block_node_drop(struct kvr__blocks *blocks, uint32_t number);

enum block_holder { BLOCK_HOLDER_NEW, BLOCK_HOLDER_KNOWN, BLOCK_HOLDER_NO_ROOM };
enum block_holder kvr__block_holder_add(struct kvr__blocks *blocks, uint32_t number, uint16_t lane);
/* True when the node has no holders any more. */
bool kvr__block_holder_drop(struct kvr__blocks *blocks, uint32_t number, uint16_t lane);
bool kvr__block_holder_is(const struct kvr__blocks *blocks, uint32_t number, uint16_t lane);

/* For readers. ret = set ∩ holders of the node; false when the node is, or meanwhile became, another key's. */
bool kvr__block_node_meet(const struct kvr__blocks *blocks, uint32_t number, uint64_t key,
                          const uint64_t *set, uint32_t words, uint64_t *ret);

#endif
