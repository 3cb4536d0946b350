/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hit rate as a function of cache size, in one pass: a histogram of stack distances (Mattson 1970) over a
 * sample of prefixes chosen by a hash of their keys (SHARDS, Waldspurger 2015).
 *
 *     position   0   1   2   3   4   5   6     each sampled prefix lies at the position of its last use
 *     tokens     9   .   4   7   .   2   5     distance of the one at 2: 4 + 7 + 2 + 5, over the sampled share
 *
 * Caches at least as large as the distance have it.
 *
 * The sums come from a Fenwick tree over the positions. When the table of prefixes is full, either the oldest
 * goes, if its distance is beyond the largest cache of interest, or the sampled share is halved; so the table
 * stays small, and its cost with it, however long the stream. Owner: whoever holds the ledger's lock.
 */
#ifndef KVROUTE_LIB_LEDGER_STACK_H
#define KVROUTE_LIB_LEDGER_STACK_H

#include "kvroute/ledger.h"

#define KVR__STACK_POSITIONS (2 * KVR_LEDGER_CURVE_KEYS)
#define KVR__STACK_DISTANCES 192 /* four for each doubling */
#define KVR__STACK_SLOTS     13  /* of five minutes: the last hour */
#define KVR__STACK_NS        300000000000ULL

struct kvr__stack_key {
        uint64_t key;
        uint32_t next; /* in its chain, or among the free ones; 0 none */
        uint32_t position;
        uint32_t tokens;
};

/*
 * Figures of prompts of some time, in two parts: what somebody in the fleet still held, and the rest. How much
 * there was of each is known exactly, and the sample says how it is spread within each: so a few busy prefixes
 * that the sample has, or has not, do less harm.
 */
#define KVR__STACK_PARTS 2
struct kvr__stack_part {
        double distances[KVR__STACK_DISTANCES]; /* tokens found again, by distance, already scaled by the
                                                   share */
        double never;                           /* tokens not found, likewise */
        double exact;                           /* tokens of all prompts, sampled or not */
};

struct kvr__stack {
        uint64_t tokens_max;
        uint64_t limit;       /* keys whose hash is below are sampled; 2^32: all */
        uint32_t count, free; /* keys held; head of the free ones */
        uint32_t top, bottom; /* next position; nothing lies below this one */
        uint64_t held;        /* tokens in the tree */
        struct kvr__stack_key keys[KVR_LEDGER_CURVE_KEYS + 1]; /* number 0 is nobody */
        uint32_t heads[KVR_LEDGER_CURVE_KEYS];
        uint64_t tree[KVR__STACK_POSITIONS + 1];
        uint32_t owners[KVR__STACK_POSITIONS]; /* number of the key at a position, 0 none */
        struct kvr__stack_part life[KVR__STACK_PARTS];
        struct {
                uint64_t stamp; /* number of the interval plus one */
                struct kvr__stack_part parts[KVR__STACK_PARTS];
        } recent[KVR__STACK_SLOTS];
        uint32_t sampled[KVR_POINTS_MAX], numbers[KVR_POINTS_MAX]; /* of the prompt at hand */
};

/* NULL when out of memory; to be freed with free(). */
KVR_MUST_USE struct kvr__stack *kvr__stack_new(uint64_t tokens_max);
/* One prompt, of which somebody held the first `known` points; its tokens are `tokens_per_unit` times the units
 * of the points. */
void kvr__stack_book(struct kvr__stack *stack, const struct kvr_point *points, uint32_t count, uint32_t known,
                     double tokens_per_unit, uint64_t now_ns);
/* Over life, or over the last hour. */
void kvr__stack_read(const struct kvr__stack *stack, bool recent, uint64_t now_ns,
                     struct kvr_ledger_curve *ret);

#endif
