/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the tokens of one whole prompt to what its points are sure to have: fills the token map.
 *
 * A tokenizer tells the tokens of a whole prompt, not where in them a piece of text ends. So a point in the
 * middle is first placed by its share of the text between two places that are known, and a little is taken
 * off. A second prompt that has the point in common shows better: what the two have in common in tokens is
 * what the point may stand for. More than that is cut; and where the two part right behind the point, it gets
 * just that much. A prompt that ended there is known by count.
 */
#ifndef KVROUTE_LIB_TOKEN_LEARN_H
#define KVROUTE_LIB_TOKEN_LEARN_H

#include "kvroute/prompt.h"

#include "token_map.h"

struct kvr__lesson {
        const struct kvr_point *points;
        uint32_t point_count; /* at least 1 */
        uint64_t model;
        uint32_t block_tokens;
        uint32_t tokens; /* of the whole prompt */
        /*
         * Tokens up to some of the points that are known otherwise, 0 where not; NULL: none. Advice: cut like
         * the rest when found wrong.
         */
        const uint32_t *marks;
        const uint64_t *keys; /* of its whole blocks */
        uint32_t blocks;
        uint64_t base; /* see kvr__token_map_append */
        /* The text ends so many bytes into this cell (token_ends.h); 0: that is not known. */
        uint64_t cell;
        uint32_t cell_bytes;
};

/* Writers' rules of the map. False when out of memory. */
KVR_MUST_USE bool kvr__token_learn(struct kvr__token_map *map, const struct kvr__lesson *lesson);

/*
 * Where messages end in the tokens. Chat templates close every message with the same special tokens: if two
 * ids follow one another once for every end among the points, at places that fit the text, the last time near
 * the prompt's end, ret_marks[i] gets the number of tokens up to and with those behind the message that ends at
 * point i; 0 elsewhere. `ids` are the prompt's. Returns how many were set.
 */
uint32_t kvr__token_marks(const struct kvr_point *points, uint32_t point_count, const uint32_t *ids,
                          uint32_t count, uint32_t *ret_marks);

#endif
