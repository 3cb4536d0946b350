/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mock engine's tokenizer and block keys. Text is cut into pieces of four bytes from its start (the
 * last one may be shorter), each piece is a token whose id is a hash of its bytes. So texts with an equal
 * prefix have equal tokens up to the piece in which they differ, an answer of whole pieces tokenizes to
 * the same ids when it comes back as history, and a text of n bytes has ceil(n / 4) tokens. Ids below
 * SIM_TOKEN_FIRST mark the structure of a chat.
 */
#ifndef KVROUTE_SIM_TOKENS_H
#define KVROUTE_SIM_TOKENS_H

#include <kvroute/base.h>

#define SIM_TOKEN_BYTES  4
#define SIM_TOKEN_FIRST  64                  /* first id that text can have */
#define SIM_TOKENS_MAX   (16u * 1024 * 1024) /* tokens of one prompt */
#define SIM_IMAGE_TOKENS 256                 /* an image, whatever its size */

enum sim_special {
        SIM_TOKEN_BEGIN = 1,
        SIM_TOKEN_SYSTEM,
        SIM_TOKEN_USER,
        SIM_TOKEN_ASSISTANT,
        SIM_TOKEN_TOOL,
        SIM_TOKEN_OTHER_ROLE,
        SIM_TOKEN_END,
        SIM_TOKEN_TOOLS,
        SIM_TOKEN_CALL,
};

/* All zero is empty. `failed` is set when memory or the limit ran out, and stays set. */
struct sim_tokens {
        uint32_t *ids;
        size_t len, cap;
        bool failed;
};

void sim_tokens_fini(struct sim_tokens *tokens);
void sim_tokens_add(struct sim_tokens *tokens, uint32_t id);
void sim_tokens_text(struct sim_tokens *tokens, struct kvr_slice text);
/* An image or another attachment: SIM_IMAGE_TOKENS ids that depend on `source` (its URL or data) only. */
void sim_tokens_image(struct sim_tokens *tokens, struct kvr_slice source);

/* Key of the namespace: model, adapter, salt. */
uint64_t sim_space_key(struct kvr_slice model, struct kvr_slice salt);
/* Chained keys of the whole blocks: ret_keys[i] stands for space and tokens 0 .. (i + 1) * block - 1. Returns
 * their number. */
uint32_t sim_block_keys(uint64_t space, const uint32_t *ids, size_t count, uint32_t block_tokens,
                        uint64_t *ret_keys);

#endif
