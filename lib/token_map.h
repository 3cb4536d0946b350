/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The token map: what the tokens of a text prefix are, as far as a tokenizer has told.
 *
 *     key of a text point ──► slot {record, leading blocks that the prefix is sure to have, tokens}
 *                                    │
 *     record  [block keys 40 .. 55] ─┘       one per tokenized prompt: what it has beyond the record
 *        └─parent─► [0 .. 62] of which 40    it branches from
 *
 * Only keys of whole blocks are kept (blocks.h), not the tokens. Slots lie in buckets of fixed size; records
 * follow one another in a ring that overwrites its oldest. A record is named by its place, the number of
 * words written before it since the beginning, so a place never comes back and an overwritten one is seen to
 * be one. Nothing is ever allocated or freed after the start, and there is nothing to trace or to sweep.
 *
 * Writers: one at a time, as the caller sees to. Readers: any number of threads, no lock. A reader copies and
 * then looks whether what it copied was overwritten meanwhile; if so, that part is not known (0).
 */
#ifndef KVROUTE_LIB_TOKEN_MAP_H
#define KVROUTE_LIB_TOKEN_MAP_H

#include "kvroute/base.h"

#define KVR__MAP_BYTES_MIN   (64U << 10)
#define KVR__MAP_BLOCKS_MAX  (256U << 10) /* leading blocks of one prompt that are kept */
#define KVR__MAP_DEPTH_MAX   32           /* records that one chain of keys may be spread over */
#define KVR__MAP_GENERATIONS 256

struct kvr__token_map;

/* How sure it is where a point lies in the tokens. */
enum kvr__mapped_by {
        KVR__MAPPED_GUESS, /* by its place in the text, on the safe side */
        KVR__MAPPED_FORK,  /* what two prompts that part behind it have in common */
        KVR__MAPPED_COUNT, /* a whole prompt ended there */
};

struct kvr__mapped {
        uint64_t place;  /* of the record */
        uint32_t blocks; /* leading blocks that the prefix is sure to have */
        uint32_t tokens; /* of the prefix; exact when counted */
        enum kvr__mapped_by by;
};

/* NULL when out of memory. `bytes_max` at least KVR__MAP_BYTES_MIN. All memory is taken here. */
KVR_MUST_USE struct kvr__token_map *kvr__token_map_new(uint64_t bytes_max);
void kvr__token_map_free(struct kvr__token_map *map);

/* ---- readers, from any thread ---- */

/* What slots go by: the point's key, the size of blocks, and the model with what was forgotten of it. */
uint64_t kvr__token_map_key(const struct kvr__token_map *map, uint64_t point, uint32_t block_tokens,
                            uint64_t model);
/* False when it is not known. */
bool kvr__token_map_get(const struct kvr__token_map *map, uint64_t key, struct kvr__mapped *ret);
/*
 * The keys of the first `blocks` blocks of the chain that ends in this record; 0 where they are not known any
 * more. ret_base, unless NULL: what was given to kvr__token_map_append.
 */
void kvr__token_map_chain(const struct kvr__token_map *map, uint64_t place, uint32_t blocks,
                          uint64_t *ret_keys, uint64_t *ret_base);
/* Blocks of the chain that ends in this record; 0: overwritten. */
uint32_t kvr__token_map_blocks(const struct kvr__token_map *map, uint64_t place);
/* Is what this record consists of in the older half of the ring? Then it had better be written anew. */
bool kvr__token_map_old(const struct kvr__token_map *map, uint64_t place);
/* Blocks that one record can have. */
uint32_t kvr__token_map_room(const struct kvr__token_map *map);
/* Asks for the slot's memory ahead of kvr__token_map_get. */
void kvr__token_map_prefetch(const struct kvr__token_map *map, uint64_t key);

/* ---- writers ---- */

/*
 * A record that has the first `from` blocks of `parent` (0: none) and these ones behind. `base`: key of the
 * first block had the prompt neither adapter nor salt; 0 if it has none. Gives its place, or 0: there is no
 * room for so many, or the parent is too deep or gone.
 */
uint64_t kvr__token_map_append(struct kvr__token_map *map, uint64_t parent, uint32_t from,
                               const uint64_t *keys, uint32_t count, uint64_t base);
/* Sets or replaces; the slot with the oldest record of its bucket goes. */
void kvr__token_map_put(struct kvr__token_map *map, uint64_t key, const struct kvr__mapped *mapped);
/* Nothing of that model is found any more. O(1). */
void kvr__token_map_forget(struct kvr__token_map *map, uint64_t model);

struct kvr__token_map_stats {
        uint64_t bytes, bytes_max, points;
};
void kvr__token_map_stats(const struct kvr__token_map *map, struct kvr__token_map_stats *ret);

#endif
