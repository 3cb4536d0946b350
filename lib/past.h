/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was asked for before. Where a prompt's beginning was asked for lately and nobody holds it any more,
 * caches are starved: what they drop is what comes next. How much of all prompts that is tells whether a
 * replica's queue is rather a matter of seconds or of requests (policy_kv.c).
 *
 * Fingerprints of one point in eight, in a table in which newer ones replace older ones: about the last
 * quarter of a million distinct points. Owner: whoever holds the router's lock.
 */
#ifndef KVROUTE_LIB_PAST_H
#define KVROUTE_LIB_PAST_H

#include "kvroute/prompt.h"

#define KVR__PAST_PLACES 32768u

struct kvr__past {
        uint32_t marks[KVR__PAST_PLACES]; /* 0: free */
};

/* Sums over recent requests of a model, in sampled tokens. */
struct kvr__loss {
        double asked; /* of prompts */
        double lost;  /* of these, asked for before and held by nobody */
};

/*
 * One more prompt, whose first `held` points somebody holds; tokens[i] is the length up to point i. Remembers
 * its points, adds it to `loss`, of which `keep` (below 1) is kept.
 */
void kvr__past_pass(struct kvr__past *past, struct kvr__loss *loss, double keep,
                    const struct kvr_point *points, const uint32_t *tokens, uint32_t count, uint32_t held);

/* 0 nothing is lost .. 1 all is: steep about one half, so that a few losses, which any cache has, weigh
 * little. */
double kvr__loss_starved(const struct kvr__loss *loss);

#endif
