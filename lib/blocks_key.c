/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of blocks. The hash of a block's own ids does not wait for the key before it, only the short link does:
 * of blocks that follow one another the processor works on several at once.
 *
 * Numbers are hashed as they lie in memory, since keys do not leave the process.
 */
#include "blocks_int.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define ODD          0x9e3779b97f4a7c15ULL
#define USUAL_TOKENS 16

/* Of three numbers of which two are hashes: as XXH3 mixes, but no more than is needed here, since the next block
 * waits for it. */
static inline uint64_t link_of(uint64_t key, uint64_t ids, uint64_t rest)
{
        return block_mix(block_mix(key, 0xa0761d6478bd642fULL, ids ^ 0xe7037ed1a0b428dbULL), rest, ODD);
}

/* A number that small would be taken for a free node's. */
static inline uint64_t key_of(uint64_t hash)
{
        return block_key_is(hash) ? hash : hash | 1ULL << 32;
}

uint64_t kvr__chain_root(struct kvr_slice adapter, struct kvr_slice salt, uint32_t block_tokens)
{
        const uint64_t frame[] = {
                block_tokens,
                adapter.len,
                adapter.len ? XXH3_64bits(adapter.data, adapter.len) : 0,
                salt.len,
                salt.len ? XXH3_64bits(salt.data, salt.len) : 0,
        };

        return key_of(XXH3_64bits(frame, sizeof(frame)));
}

static inline __attribute__((always_inline)) uint64_t run_of(uint64_t key, const uint32_t *ids,
                                                             uint32_t tokens, uint32_t count,
                                                             const uint64_t *extra, uint64_t *ret_keys)
{
        uint64_t size = tokens * ODD;

        for (uint32_t i = 0; i < count; i++, ids += tokens) {
                uint64_t hash = XXH3_64bits(ids, tokens * sizeof(*ids));

                key = key_of(link_of(key, hash, size + (extra ? extra[i] : 0)));
                ret_keys[i] = key;
        }
        return key;
}

/* For the size that is most usual the compiler knows what hashing comes to. */
__attribute__((flatten)) uint64_t kvr__chain_run(uint64_t key, const uint32_t *ids, uint32_t tokens,
                                                 uint32_t count, const uint64_t *extra, uint64_t *ret_keys)
{
        if (tokens == USUAL_TOKENS && !extra)
                return run_of(key, ids, USUAL_TOKENS, count, NULL, ret_keys);
        return run_of(key, ids, tokens, count, extra, ret_keys);
}

uint64_t kvr__chain_next(uint64_t key, const uint32_t *tokens, uint32_t count, uint64_t extra)
{
        uint64_t next;

        return kvr__chain_run(key, tokens, count, 1, &extra, &next);
}
