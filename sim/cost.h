/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long one step of an inference engine takes. A step computes chunks of prompts (prefill) and one
 * token for each request that already answers (decode):
 *
 *     step = max(a if any prefill, e if any decode)                       one pass over the weights
 *          + sum over chunks of  b E + c C + d E C   + q (sum of E)^2      E new tokens on top of C earlier
 * ones
 *          + f B + g K + h u + i u^2                                      B decoding requests with K tokens
 * of context
 *
 * in milliseconds, where u is the share of the KV cache in use. The first two lines with one chunk are
 * the form t(E, C) that the published Preble fits have; it prices a cached prefix as what it is: context
 * without work.
 */
#ifndef KVROUTE_SIM_COST_H
#define KVROUTE_SIM_COST_H

#include <kvroute/base.h>

/* Coefficients in milliseconds (per token, per token pair, ...); names as in the formula above. */
struct sim_cost {
        const char *name, *help;
        double a, b, c, d, q;
        double prefill_min; /* a step with prefill takes at least this long */
        double e, f, g, h, i;
        double decode_min;
};

/* What one step computes. */
struct sim_step {
        uint32_t chunks;       /* prefill chunks */
        double new_tokens;     /* sum of E */
        double context_tokens; /* sum of C */
        double cross;          /* sum of E C */
        uint32_t decodes;      /* B */
        double decode_context; /* K */
        double usage;          /* u, 0..1 */
};

/* Milliseconds of one step; 0 for an empty one. */
double sim_cost_step_ms(const struct sim_cost *cost, const struct sim_step *step);
/*
 * Milliseconds of a step that only decodes, as sim_cost_step_ms has them to the last bit, for loops over many of
 * them: what does not change with the context is worked out before.
 */
struct sim_cost_decode {
        double base, least, batch, usage, usage2, g;
};
void sim_cost_decode_init(const struct sim_cost *cost, const struct sim_step *step,
                          struct sim_cost_decode *ret);
static inline double sim_cost_decode_ms(const struct sim_cost_decode *decode, double context)
{
        double ms = decode->batch + decode->g * context + decode->usage + decode->usage2;

        return decode->base + (ms > decode->least ? ms : decode->least);
}

/* Milliseconds to prefill `new_tokens` on top of `context` alone, in one chunk: t(E, C). */
double sim_cost_prefill_ms(const struct sim_cost *cost, double new_tokens, double context);

/* The presets by number (0 is the default one), NULL past the end, and by name, NULL if unknown. */
const struct sim_cost *sim_cost_preset(size_t number);
const struct sim_cost *sim_cost_find(const char *name);

#endif
