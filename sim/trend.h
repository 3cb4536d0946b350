/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether latency, in seconds, rose over the time of a run: the mark of a load that is more than what serves
 * it, whose latencies say how long the run was and little else. Memory is fixed, whatever the number of values.
 */
#ifndef KVROUTE_SIM_TREND_H
#define KVROUTE_SIM_TREND_H

#include <kvroute/base.h>
#include <stdbool.h>
#include <stdint.h>

#define SIM_TREND_BINS 256 /* even */

/* All zero is empty. */
struct sim_trend {
        double width_s; /* of a bin; doubles when the time goes beyond the last one */
        uint64_t count[SIM_TREND_BINS];
        double sum[SIM_TREND_BINS];
};

struct sim_growth {
        double slope; /* seconds per second; asked for 10 % more than it serves, a queue has 0.1 */
        double error; /* standard error of the slope, from how far the eighths lie from the line */
        double from_s, to_s;
        double mean;
        bool growing; /* beyond chance, by more than half of the mean, and by 0.02 a second */
};

/* A latency that belongs to the time at_s since the start of the run. */
void sim_trend_add(struct sim_trend *trend, double at_s, double value);
/*
 * The straight line through the last three quarters of the time (the first one fills caches), by eighths of
 * them. False: too few values to tell.
 */
KVR_MUST_USE bool sim_trend_growth(const struct sim_trend *trend, struct sim_growth *ret);

#endif
