/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text for made-up prompts and answers: common English words of three letters, each with a blank behind
 * it. So a word is four bytes, one token of the mock engine, and about one token of a real tokenizer as
 * well.
 */
#ifndef KVROUTE_SIM_WORDS_H
#define KVROUTE_SIM_WORDS_H

#include "buf.h"
#include "rng.h"

#define SIM_WORD_BYTES 4

/* The word of that number (any number): four bytes, the last a blank. */
const char *sim_word(uint64_t number);
/* Appends `count` words drawn from rng. The same generator state gives the same text; a shorter one is a
 * prefix of it. */
void sim_words_add(struct sim_buf *buf, struct sim_rng *rng, uint32_t count);

#endif
