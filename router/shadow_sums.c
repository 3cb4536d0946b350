/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides' figures, over the same requests. */
#include <math.h>

#include "shadow_int.h"

#define FIRST_BOUND_S   0.001
#define BOUNDS_A_DOUBLE 4.0

/* ---- times ---- */

void shadow__histogram_add(struct shadow_histogram *histogram, double seconds)
{
        double number = seconds > FIRST_BOUND_S ? ceil(log2(seconds / FIRST_BOUND_S) * BOUNDS_A_DOUBLE) : 0;

        histogram->counts[number < SHADOW_TTFT_BOUNDS ? (unsigned)number : SHADOW_TTFT_BOUNDS]++;
        histogram->count++;
        histogram->sum_s += seconds;
}

/* The bound that this share of the values stays within. */
static double within(const struct shadow_histogram *histogram, double share)
{
        double wanted = share * (double)histogram->count, seen = 0;

        for (unsigned i = 0; i < SHADOW_TTFT_BOUNDS; i++) {
                seen += (double)histogram->counts[i];
                if (seen >= wanted)
                        return FIRST_BOUND_S * exp2(i / BOUNDS_A_DOUBLE);
        }
        return NAN;
}

static struct shadow_ttft times_of(const struct shadow_histogram *histogram)
{
        if (!histogram->count)
                return (struct shadow_ttft){NAN, NAN, NAN};
        return (struct shadow_ttft){histogram->sum_s / (double)histogram->count, within(histogram, 0.5),
                                    within(histogram, 0.9)};
}

/* ---- sums ---- */

static uint32_t below(uint32_t tokens, uint32_t prompt)
{
        return tokens < prompt ? tokens : prompt - 1;
}

static void side_add(const struct shadow *shadow, struct shadow_side *side, const struct shadow_slot *slot,
                     uint32_t predicted, uint64_t won)
{
        double token_s = slot ? shadow__slot_token_s(shadow, slot) : 0;

        side->predicted_tokens += predicted;
        side->won_tokens += won;
        if (token_s > 0)
                side->avoided_ns += (uint64_t)((double)won * token_s * 1e9);
        else
                side->untimed_tokens += won;
}

static double waited_s(const struct shadow_leg *leg)
{
        return (double)(leg->first_ns - leg->decided_ns) / 1e9;
}

void shadow__sums_add(struct shadow *shadow, const struct shadow_flight *flight,
                      const struct shadow_outcome *outcome)
{
        struct shadow_figures *figures = &shadow->sums.figures;
        const struct shadow_leg *kv = &flight->legs[SHADOW_KV], *actual = &flight->legs[SHADOW_ACTUAL];
        uint32_t prompt = outcome->prompt_tokens;
        uint64_t won, kv_won = below(kv->match_tokens, prompt), predicted = below(outcome->predicted, prompt);

        figures->requests++;
        figures->prompt_tokens += prompt;
        won = predicted;
        if (outcome->cached_tokens >= 0) {
                won = (uint64_t)outcome->cached_tokens < prompt ? (uint64_t)outcome->cached_tokens : prompt;
                figures->observed++;
                figures->observed_prompt_tokens += prompt;
                figures->observed_predicted_tokens += predicted;
                figures->observed_tokens += won;
        }
        side_add(shadow, &figures->kv, kv->slot, (uint32_t)kv_won, kv_won);
        side_add(shadow, &figures->actual, actual->slot, (uint32_t)predicted, won);
        if (kv->untimed || actual->untimed ||
            (!shadow->options.mirror && (outcome->retried || !(outcome->ttft_s >= 0))))
                return;
        figures->timed++;
        shadow__histogram_add(&shadow->sums.kv, waited_s(kv));
        shadow__histogram_add(&shadow->sums.actual, waited_s(actual));
        if (!shadow->options.mirror)
                shadow__histogram_add(&shadow->sums.observed, outcome->ttft_s);
}

/* ---- asked for ---- */

void shadow_figures(struct shadow *shadow, uint64_t now_ns, struct shadow_figures *ret)
{
        if (!shadow) {
                *ret = (struct shadow_figures){0};
                return;
        }
        shadow_tick(shadow, now_ns);
        pthread_mutex_lock(&shadow->lock);
        *ret = shadow->sums.figures;
        ret->mirror = shadow->options.mirror;
        ret->kv.ttft = times_of(&shadow->sums.kv);
        ret->actual.ttft = times_of(&shadow->sums.actual);
        ret->ttft_observed = times_of(&shadow->sums.observed);
        ret->in_flight = shadow->flight_count;
        ret->bytes = kvr_ledger_bytes(shadow->ledger) + shadow->flight_count * sizeof(struct shadow_flight) +
                     shadow->heap_room * sizeof(struct shadow_leg *);
        pthread_mutex_unlock(&shadow->lock);
        kvr_router_index_info(shadow->brain, &ret->index);
}

double shadow_hit_rate(const struct shadow_figures *figures, const struct shadow_side *side)
{
        return figures->prompt_tokens ? (double)side->won_tokens / (double)figures->prompt_tokens : NAN;
}

double shadow_hit_rate_calibrated(const struct shadow_figures *figures)
{
        double rate = shadow_hit_rate(figures, &figures->kv);

        if (!figures->observed_predicted_tokens)
                return NAN;
        rate *= (double)figures->observed_tokens / (double)figures->observed_predicted_tokens;
        return rate < 1 ? rate : 1;
}
