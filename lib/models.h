/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is learned per model: tokens per unit of the canonical stream, requests seen, and whether answers come
 * back. A bounded table keyed by a hash of the model's name; the least recently used of a few places is given
 * up when needed. Owner: whoever holds the router's lock.
 */
#ifndef KVROUTE_LIB_MODELS_H
#define KVROUTE_LIB_MODELS_H

#include "kvroute/base.h"

#include "past.h"
#include "speed.h"

#define KVR__MODELS 512

struct kvr__model {
        uint64_t key; /* 0: free place */
        uint64_t used;
        double tokens, units;    /* sums over settled prompts, halved now and then so that they follow */
        double answer_yield;     /* share of generated tokens that the next turn found cached: 1 until known
                                    otherwise */
        double answer_tokens;    /* of an answer, running mean; 0 until known */
        struct kvr__curve curve; /* of first tokens over all replicas */
        uint32_t seen;           /* requests, from 1; the clock by which notes fade */
        struct kvr__loss loss;   /* of what its prompts asked for */
};

struct kvr__models {
        struct kvr__model places[KVR__MODELS];
        uint64_t clock;
        double default_ratio;
};

void kvr__models_init(struct kvr__models *models, double default_ratio);
/* Finds or makes the entry; never NULL. Valid until the next call. */
struct kvr__model *kvr__models_get(struct kvr__models *models, uint64_t key);
/* Finds it or NULL. */
const struct kvr__model *kvr__models_find(const struct kvr__models *models, uint64_t key);
double kvr__model_ratio(const struct kvr__models *models, const struct kvr__model *model);
/* A settled prompt of so many units had so many tokens. Ignores what no text can be (images, say). */
void kvr__model_learn(struct kvr__model *model, uint32_t tokens, uint32_t units);
/* An answer had so many tokens. */
void kvr__model_learn_length(struct kvr__model *model, double tokens);
/* `credited` generated tokens were predicted to be cached, `found` of them were. */
void kvr__model_learn_answer(struct kvr__model *model, double credited, double found);

#endif
