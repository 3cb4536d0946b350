/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests and the benchmark of the block index: an engine's events made from numbered blocks.
 *
 * A text is a row of numbers, one per block; block i of it has TEXT_BLOCK_TOKENS ids made from its number, so
 * texts that begin with the same numbers share blocks.
 */
#ifndef KVROUTE_LIB_BLOCKS_TEST_UTIL_H
#define KVROUTE_LIB_BLOCKS_TEST_UTIL_H

#include <stdlib.h>
#include <string.h>

#include "blocks.h"

#define TEXT_BLOCK_TOKENS 16
#define TEXT_BLOCKS_MAX   1024

struct text {
        uint32_t count;
        uint32_t ids[TEXT_BLOCKS_MAX * TEXT_BLOCK_TOKENS];
        uint64_t keys[TEXT_BLOCKS_MAX];
        uint64_t handles[TEXT_BLOCKS_MAX]; /* as one engine would name them */
};

static inline uint64_t text_mix(uint64_t x)
{
        x += 0x9e3779b97f4a7c15ULL;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
        x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
        return x ^ x >> 31;
}

static inline void text_init(struct text *text)
{
        text->count = 0;
}

static inline void text_add(struct text *text, uint64_t number)
{
        uint32_t *ids = text->ids + (size_t)text->count * TEXT_BLOCK_TOKENS;
        uint64_t before = text->count ? text->keys[text->count - 1]
                                      : kvr__chain_root((struct kvr_slice){0}, (struct kvr_slice){0},
                                                        TEXT_BLOCK_TOKENS);

        for (uint32_t i = 0; i < TEXT_BLOCK_TOKENS; i++)
                ids[i] = (uint32_t)(text_mix(number * TEXT_BLOCK_TOKENS + i) & 0x1ffff);
        text->keys[text->count] = kvr__chain_next(before, ids, TEXT_BLOCK_TOKENS, 0);
        text->handles[text->count] = text_mix(text->keys[text->count]);
        text->count++;
}

/* `count` blocks, the first with this number. */
static inline void text_of(struct text *text, uint64_t number, uint32_t count)
{
        text_init(text);
        for (uint32_t i = 0; i < count; i++)
                text_add(text, number + i);
}

/* The event that stores blocks [from, to) of a text. */
static inline struct kvr_blocks_stored text_event(const struct text *text, uint32_t from, uint32_t to)
{
        return (struct kvr_blocks_stored){
                .hashes = text->handles + from,
                .count = to - from,
                .has_parent = from > 0,
                .parent = from ? text->handles[from - 1] : 0,
                .tokens = text->ids + (size_t)from * TEXT_BLOCK_TOKENS,
                .token_count = (to - from) * TEXT_BLOCK_TOKENS,
                .block_tokens = TEXT_BLOCK_TOKENS,
        };
}

static inline void text_store(struct kvr__blocks *blocks, uint16_t lane, const struct text *text,
                              uint32_t from, uint32_t to, struct kvr_events_account *account)
{
        struct kvr_blocks_stored stored = text_event(text, from, to);

        kvr__blocks_store(blocks, lane, &stored, account);
}

/* Removes [from, to), the last first. */
static inline void text_remove(struct kvr__blocks *blocks, uint16_t lane, const struct text *text,
                               uint32_t from, uint32_t to, struct kvr_events_account *account)
{
        uint64_t hashes[TEXT_BLOCKS_MAX];

        for (uint32_t i = from; i < to; i++)
                hashes[to - 1 - i] = text->handles[i];
        kvr__blocks_remove(blocks, lane, hashes, to - from, account);
}

static inline uint32_t text_depth(const struct kvr__blocks *blocks, uint16_t lane, const struct text *text)
{
        static const uint32_t unset = 0xdeadU;
        uint32_t depths[(KVR__BLOCK_LANES_MAX)];
        uint64_t want[KVR__BLOCK_LANE_WORDS] = {0};
        struct kvr__chain chain = {text->keys, text->count};

        want[lane / 64] = 1ULL << (lane % 64);
        depths[lane] = unset;
        kvr__blocks_depths(blocks, &chain, want, lane / 64 + 1U, depths);
        return depths[lane];
}

#endif
