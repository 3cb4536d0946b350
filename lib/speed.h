/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a replica takes to prefill a token.
 *
 *     seconds
 *        |                    * slow replica: 1.6 times the rule, whatever its mix of prompts
 *        |          *    . - '
 *        |     . - '           the rule of all replicas that serve the model:
 *        |. - '                    time = a + b E + c C + d E C   of E uncached tokens behind C cached ones
 *        +------------------------ uncached tokens
 *
 * Seconds over tokens alone would make whoever got the longest prompts look fastest, because every first token also
 * takes a fixed while; and whoever serves the turns of long conversations would look slowest, because each token
 * attends to all that is cached before it. The fastest-looking one gets the next. So the rule (its form is Preble's,
 * arXiv 2407.00023) is fitted over all replicas of a model, and a replica's speed is the rule's, times how much longer
 * than the rule says its own prompts took. Owner: whoever holds the router's lock. All zero is the empty value.
 */
#ifndef KVROUTE_LIB_SPEED_H
#define KVROUTE_LIB_SPEED_H

#include "kvroute/base.h"

#define KVR__SPEED_TERMS 3 /* E, C and E C: what time depends on besides the number of prompts */

struct kvr__rule {
        double overhead_s;
        double slope[KVR__SPEED_TERMS]; /* seconds per unit of each term */
};

/* Fading sums over the first tokens of a model: how many, seconds, their squares, terms, and products of terms and
 * seconds. */
struct kvr__curve {
        double n, t, tt;
        double x[KVR__SPEED_TERMS], xt[KVR__SPEED_TERMS], xx[KVR__SPEED_TERMS][KVR__SPEED_TERMS];
        struct kvr__rule rule; /* what they come to; fitted anew every few samples, as every decision asks */
        uint32_t samples;
};

/* Fading sums over the first tokens of a replica. */
struct kvr__speed {
        double n, t, x[KVR__SPEED_TERMS];
        double rr; /* squared differences from what was expected of it */
        uint32_t samples;
};

/* `uncached` tokens behind `cached` ones took `seconds`. Ignores tiny ones, bounds outliers. */
void kvr__speed_learn(struct kvr__curve *curve, struct kvr__speed *speed, double uncached, double cached,
                      double seconds);
/*
 * Seconds per uncached token, behind as many cached ones as usual; 0 until something is known. Any two replicas are
 * comparable that were asked with one curve.
 */
double kvr__speed_token_s(const struct kvr__curve *curve, const struct kvr__speed *speed);

#endif
