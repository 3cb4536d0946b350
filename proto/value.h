/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words and whole numbers as people write them, in options, configurations and files: what the command lines of both
 * halves of the program have in common. Parsers take all of the text or nothing; false leaves *ret alone.
 */
#ifndef KVROUTE_PROTO_VALUE_H
#define KVROUTE_PROTO_VALUE_H

#include <kvroute/base.h>

/* on, true, yes, 1; off, false, no, 0 */
bool value_bool(struct kvr_slice text, bool *ret);
/* Digits alone. */
bool value_count(struct kvr_slice text, uint64_t *ret);
/* Digits at the start: their value, and how many they are. */
bool value_leading_count(struct kvr_slice text, uint64_t *ret, size_t *ret_len);
/* Number of the word in "a|b|c", from 0. */
bool value_choice(struct kvr_slice text, const char *words, unsigned *ret);

/* The word that somebody may have meant: begin with all zero, and offer one after the other. */
struct value_nearest {
        const char *word; /* NULL: none is near */
        unsigned edits;
};
void value_offer(struct value_nearest *best, struct kvr_slice written, const char *candidate);

#endif
