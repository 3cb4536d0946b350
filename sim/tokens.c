/* SPDX-License-Identifier: Apache-2.0 */
#include "tokens.h"
#include "rng.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define ID_RANGE 0x7fffff00u /* ids stay below 2^31, as clients expect of a vocabulary */

void sim_tokens_fini(struct sim_tokens *tokens)
{
        free(tokens->ids);
        *tokens = (struct sim_tokens){0};
}

static bool reserve(struct sim_tokens *tokens, size_t count)
{
        size_t cap = tokens->cap ? tokens->cap : 256;
        uint32_t *ids;

        if (tokens->failed)
                return false;
        if (tokens->cap - tokens->len >= count)
                return true;
        if (count > SIM_TOKENS_MAX || tokens->len > SIM_TOKENS_MAX - count) {
                tokens->failed = true;
                return false;
        }
        while (cap < tokens->len + count)
                cap *= 2;
        ids = realloc(tokens->ids, cap * sizeof(*ids));
        if (!ids) {
                tokens->failed = true;
                return false;
        }
        tokens->ids = ids;
        tokens->cap = cap;
        return true;
}

void sim_tokens_add(struct sim_tokens *tokens, uint32_t id)
{
        if (reserve(tokens, 1))
                tokens->ids[tokens->len++] = id;
}

/* Pieces of different length never share an input of the hash. */
static uint32_t piece_id(const char *piece, size_t len)
{
        unsigned char bytes[8] = {0};
        uint64_t value;

        memcpy(bytes, piece, len);
        bytes[7] = (unsigned char)len;
        memcpy(&value, bytes, sizeof(value));
        return SIM_TOKEN_FIRST + (uint32_t)(((sim_mix64(value) >> 32) * ID_RANGE) >> 32);
}

void sim_tokens_text(struct sim_tokens *tokens, struct kvr_slice text)
{
        size_t count = (text.len + SIM_TOKEN_BYTES - 1) / SIM_TOKEN_BYTES;

        if (count == 0 || !reserve(tokens, count))
                return;
        for (size_t at = 0; at < text.len; at += SIM_TOKEN_BYTES) {
                size_t len = text.len - at < SIM_TOKEN_BYTES ? text.len - at : SIM_TOKEN_BYTES;

                tokens->ids[tokens->len++] = piece_id(text.data + at, len);
        }
}

void sim_tokens_image(struct sim_tokens *tokens, struct kvr_slice source)
{
        struct sim_rng rng = {.state = XXH3_64bits(source.data ? source.data : "", source.len)};

        if (!reserve(tokens, SIM_IMAGE_TOKENS))
                return;
        for (size_t i = 0; i < SIM_IMAGE_TOKENS; i++)
                tokens->ids[tokens->len++] = SIM_TOKEN_FIRST + sim_rng_below(&rng, ID_RANGE);
}

uint64_t sim_space_key(struct kvr_slice model, struct kvr_slice salt)
{
        uint64_t key = XXH3_64bits_withSeed(model.data ? model.data : "", model.len, 1);

        return XXH3_64bits_withSeed(salt.data ? salt.data : "", salt.len, key);
}

uint32_t sim_block_keys(uint64_t space, const uint32_t *ids, size_t count, uint32_t block_tokens,
                        uint64_t *ret_keys)
{
        uint32_t blocks = (uint32_t)(count / block_tokens);
        uint64_t key = space;

        for (uint32_t i = 0; i < blocks; i++) {
                key = XXH3_64bits_withSeed(ids + (size_t)i * block_tokens, block_tokens * sizeof(*ids), key);
                ret_keys[i] = key ? key : 1; /* 0 means "no key" in the pool */
        }
        return blocks;
}
