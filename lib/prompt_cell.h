/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the points of a prompt that is one text. A text that grows begins with a whole earlier prompt, whose
 * last point lies inside of a cell of the grid and is none of the longer prompt's:
 *
 *     earlier   ─────┼─────┼──|           | its end
 *     longer    ─────┼─────┼──.──┼────┼──|
 *                          └──┘ a cell, and the bytes in it that the earlier one had too
 *
 * Who knows that something ended so many bytes into a cell can ask here for the key that it had.
 */
#ifndef KVROUTE_LIB_PROMPT_CELL_H
#define KVROUTE_LIB_PROMPT_CELL_H

#include "kvroute/prompt.h"
#include "lib/prompt_hash.h"

/* The text that a prompt ends with, all that lies behind its settings. */
struct kvr_prompt_text {
        const struct kvr__hash *hash;
        struct kvr_slice bytes; /* canonical */
        uint32_t start;         /* its place in the stream */
        uint64_t chain;         /* of the stream in front of it */
};

/* What follows a cut of the stream in such a text. */
struct kvr__cell {
        const struct kvr__hash *hash;
        uint64_t chain;         /* of all before it, so its name */
        uint32_t start;         /* place in the stream */
        struct kvr_slice bytes; /* up to the prompt's end */
};

/* The cell behind the first `points` points. False when no text is there, as in chats. The prompt's parser and body
 * must be as they were when it was parsed. */
bool kvr__cell_behind(const struct kvr_prompt *prompt, uint32_t points, struct kvr__cell *ret);

/* Key of the last point of a prompt that ends `len` bytes into the cell: no more than are there, and in front of
 * the next place of the grid. */
uint64_t kvr__cell_end_key(const struct kvr__cell *cell, uint32_t len);

#endif
