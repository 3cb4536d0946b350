/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a replica takes to prefill a token.
 *
 *     seconds
 *        |                    * slow replica: 1.6 times the line, whatever its mix of prompts
 *        |          *    . - '
 *        |     . - '                  the line of all replicas that serve the model: overhead + seconds per
 * token
 *        |. - '
 *        +------------------------ uncached tokens
 *
 * Seconds over tokens alone would make whoever got the longest prompts look fastest, because every first
 * token also takes a fixed while, and the fastest-looking one gets the next. So a line is fitted over all
 * replicas of a model, and a replica's speed is the slope of it times how much longer than the line says its
 * own prompts took. Owner: whoever holds the router's lock. All zero is the empty value.
 */
#ifndef KVROUTE_LIB_SPEED_H
#define KVROUTE_LIB_SPEED_H

#include "kvroute/base.h"

/* Fading sums over the first tokens of a model: how many, tokens, seconds, and products. */
struct kvr__curve {
        double n, e, t, ee, et;
};

/* Fading sums over the first tokens of a replica. */
struct kvr__speed {
        double n, e, t;
        uint32_t samples;
};

/* `uncached` tokens took `seconds`. Ignores tiny ones, bounds outliers. */
void kvr__speed_learn(struct kvr__curve *curve, struct kvr__speed *speed, double uncached, double seconds);
/* Seconds per token; 0 until something is known. Any two replicas are comparable that were asked with one
 * curve. */
double kvr__speed_token_s(const struct kvr__curve *curve, const struct kvr__speed *speed);

#endif
