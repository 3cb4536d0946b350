/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where in a cell of text earlier prompts ended (prompt_cell.h), kept in the token map: a longer prompt looks at
 * these places, and at no others, for a prompt that it begins with.
 */
#ifndef KVROUTE_LIB_TOKEN_ENDS_H
#define KVROUTE_LIB_TOKEN_ENDS_H

#include "token_map.h"

#define KVR__ENDS_MAX 8 /* of one cell; the oldest goes */

/* Of which cell, for whom. */
struct kvr__ends_of {
        uint64_t cell; /* its name */
        uint32_t block_tokens;
        uint64_t model;
};

/* Readers' rules of the map. Bytes into the cell, the newest end first; returns how many. */
uint32_t kvr__token_ends_get(const struct kvr__token_map *map, const struct kvr__ends_of *of,
                             uint32_t ret_lengths[KVR__ENDS_MAX]);
/* Writers' rules. `place`: of that prompt's record; they are forgotten together. */
void kvr__token_ends_put(struct kvr__token_map *map, const struct kvr__ends_of *of, uint32_t length,
                         uint64_t place);

#endif
