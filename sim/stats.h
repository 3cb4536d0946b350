/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples of a quantity: exact mean, and percentiles by linear interpolation between the closest ranks
 * (of n sorted values the p-th lies at position p (n - 1)). Beyond SIM_SAMPLES_MAX values a uniform
 * sample of all is kept.
 */
#ifndef KVROUTE_SIM_STATS_H
#define KVROUTE_SIM_STATS_H

#include "buf.h"

#define SIM_SAMPLES_MAX (1u << 20)

/* All zero is empty. */
struct sim_samples {
        double *values;
        size_t kept, cap;
        uint64_t seen;
        double sum;
        uint64_t random; /* state of the choice of what is kept */
        bool sorted;
        bool failed; /* out of memory: percentiles are of the values kept so far */
};

void sim_samples_fini(struct sim_samples *samples);
void sim_samples_add(struct sim_samples *samples, double value);
double sim_samples_mean(const struct sim_samples *samples);           /* NAN without any */
double sim_samples_percentile(struct sim_samples *samples, double p); /* p in 0..1; NAN without any */
/* {"mean":..,"p50":..,"p90":..,"p99":..}, null for unknown. */
void sim_samples_json(struct sim_samples *samples, struct sim_buf *buf);
/* A JSON number, null for NAN. */
void sim_number_json(struct sim_buf *buf, double value);

#endif
