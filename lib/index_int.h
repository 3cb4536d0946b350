/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the cache index; see index.h for the idea. Included by index*.c and their tests only. */
#ifndef KVROUTE_LIB_INDEX_INT_H
#define KVROUTE_LIB_INDEX_INT_H

#include "index.h"
#include "table.h"

#define NODE_SHARED     0x80000000U /* holder is a set, not a pair */
#define NODE_LIVE       0x40000000U
#define NODE_LISTED     0x20000000U /* in the table; else it follows the node of the point before it */
#define NODE_SIZE       0x00ffffffU /* tokens between the point before and this one */
#define LOST_PLACES     2048        /* fingerprints of lost keys a lane remembers */
#define LOST_SAMPLE(k)  ((k) >> 61 == 0)
#define FIND_AHEAD      12 /* nodes between the one that is looked at and the one that is asked for */
#define FIND_BATCH      16 /* hash look-ups in flight at once */
#define RUN_BACK        64 /* free nodes that are looked at for the beginning of their run */
#define NODES_SLACK     16 /* one node in so many is kept free: the more, the longer the runs that are free */
#define ROOM_ATTEMPTS   64 /* evictions that one insertion may cause before it gives up */
#define VICTIM_LIFETIME 256 /* evictions until the longest lane is looked for again */

/* Four-byte alignment, so that a node has 20 bytes. */
typedef uint64_t node_key __attribute__((aligned(4)));

/* Items of a pool lend their first four bytes to its free list: no field that tells live from dead may be
 * first. */
struct node {
        uint32_t holder; /* pair, or first chunk of a set; of a free one: the next free one */
        node_key key;
        uint32_t size; /* NODE_SIZE and flags */
        uint32_t note; /* of a free one: the free one before it */
};

struct pair {
        uint32_t node;
        uint32_t prev, next; /* order of the lane: prev is more recent */
        uint16_t lane;       /* KVR__NO_LANE in a free one */
        uint16_t owner;
};

/* Sixty-four lanes of a set of holders. */
struct chunk {
        uint32_t next;
        uint16_t word;
        uint16_t unused;
        uint64_t bits;
};

enum lane_state { LANE_FREE, LANE_OPEN, LANE_CLOSED };

struct lane {
        uint32_t head, tail;
        uint32_t pairs;
        uint16_t state;
        uint16_t next_closed;
        uint64_t tokens;
        uint16_t *lost; /* LOST_PLACES fingerprints, or NULL until something was lost */
};

struct kvr__index {
        struct kvr__budget budget;
        struct kvr__pool nodes, pairs, chunks, notes;
        struct kvr__table by_key;    /* nodes that are listed */
        struct kvr__table by_holder; /* pairs of shared nodes */
        struct lane *lanes;
        uint32_t lane_room, lanes_open, lanes_closed;
        uint16_t closed_head;
        uint16_t victim; /* the longest lane when last looked for */
        uint32_t victim_left;
        uint32_t node_free, node_freed, nodes_free; /* free for longest, and since last; how many */
        uint64_t node_count, pair_count, closed_pairs, note_count, evictions;
};

/* As kvr__pool_at, but the compiler knows the size. */
static inline struct node *node_at(const struct kvr__index *index, uint32_t number)
{
        const struct kvr__pool *nodes = &index->nodes;

        return (struct node *)(void *)nodes->segments[number >> nodes->shift] +
               (number & ((1U << nodes->shift) - 1));
}

static inline struct pair *pair_at(const struct kvr__index *index, uint32_t number)
{
        const struct kvr__pool *pairs = &index->pairs;

        return (struct pair *)(void *)pairs->segments[number >> pairs->shift] +
               (number & ((1U << pairs->shift) - 1));
}

static inline struct chunk *chunk_at(const struct kvr__index *index, uint32_t number)
{
        return kvr__pool_at(&index->chunks, number);
}

static inline uint32_t key_hash(uint64_t key)
{
        return (uint32_t)((key * 0x9e3779b97f4a7c15ULL) >> 32);
}

static inline uint32_t holder_hash(uint32_t node, uint16_t lane)
{
        return (uint32_t)((((uint64_t)node << 16 | lane) * 0xd6e8feb86659fd93ULL) >> 32);
}

/* Does the node know this lane as a holder? */
bool kvr__node_has(const struct kvr__index *index, const struct node *node, uint16_t lane);
/* The pair of a node and a lane, or 0. `guess` is looked at first. */
uint32_t kvr__pair_find_shared(const struct kvr__index *index, uint32_t node, uint16_t lane);
static inline uint32_t kvr__pair_find(const struct kvr__index *index, uint32_t number, uint16_t lane,
                                      uint32_t guess)
{
        if (guess && guess < index->pairs.fresh) {
                const struct pair *pair = pair_at(index, guess);

                if (pair->lane == lane && pair->node == number)
                        return guess;
        }
        const struct node *node = node_at(index, number);

        if (node->size & NODE_SHARED)
                return kvr__pair_find_shared(index, number, lane);
        return node->holder && pair_at(index, node->holder)->lane == lane ? node->holder : 0;
}
/* Nodes and shared pairs, for their tables. */
extern const struct kvr__table_items kvr__node_items, kvr__pair_items;
/* Is it the node of that key? */
static inline bool kvr__node_is(const struct kvr__index *index, uint32_t number, uint64_t key)
{
        const struct node *node = node_at(index, number);

        return node->key == key && (node->size & NODE_LIVE);
}
/* Number of the listed node with that key, or 0. */
uint32_t kvr__node_find(const struct kvr__index *index, uint64_t key);
/* Room for so many nodes, without growing. */
static inline uint32_t kvr__nodes_ready(const struct kvr__index *index)
{
        return index->nodes_free + kvr__pool_free(&index->nodes);
}
/* A live node without holders, behind `before`, the node of the point before, or 0; 0 when there is no room. */
uint32_t kvr__node_make(struct kvr__index *index, uint64_t key, uint32_t size, uint32_t before);
void kvr__node_drop(struct kvr__index *index, uint32_t number);
/* Makes a pair a holder of its node; false when there is no room. */
bool kvr__holder_add_second(struct kvr__index *index, uint32_t pair);
static inline bool kvr__holder_add(struct kvr__index *index, uint32_t pair)
{
        struct node *node = node_at(index, pair_at(index, pair)->node);

        if (node->holder)
                return kvr__holder_add_second(index, pair);
        node->holder = pair;
        return true;
}
/* The reverse; a node without holders is dropped. */
void kvr__holder_drop(struct kvr__index *index, uint32_t pair);

#endif
