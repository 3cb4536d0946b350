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

#define ODD 0x9e3779b97f4a7c15ULL

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

__attribute__((flatten)) uint64_t kvr__chain_run(uint64_t key, const uint32_t *ids, uint32_t tokens,
                                                 uint32_t count, const uint64_t *extra, uint64_t *ret_keys)
{
        uint64_t size = tokens * ODD;

        for (uint32_t i = 0; i < count; i++, ids += tokens) {
                const uint64_t link[] = {
                        key,
                        XXH3_64bits(ids, tokens * sizeof(*ids)),
                        size + (extra ? extra[i] : 0),
                };

                key = key_of(XXH3_64bits(link, sizeof(link)));
                ret_keys[i] = key;
        }
        return key;
}

uint64_t kvr__chain_next(uint64_t key, const uint32_t *tokens, uint32_t count, uint64_t extra)
{
        uint64_t next;

        return kvr__chain_run(key, tokens, count, 1, &extra, &next);
}
