/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How uneven the work is at a time. Sums over a whole run hide a replica that is overrun now and idle later, so
 * this looks at windows of ten seconds: in each the busiest replica's work over the mean, and of all windows with
 * work the 95th percentile.
 */
#ifndef KVROUTE_SIM_REPLAY_WINDOWS_H
#define KVROUTE_SIM_REPLAY_WINDOWS_H

#include "stats.h"

#define SIM_WINDOW_S 10.0

struct sim_windows {
        double *sums; /* of the window under way, by replica */
        uint32_t replicas;
        double begin_s;
        bool open; /* a window is under way */
        struct sim_samples ratios;
};

KVR_MUST_USE bool sim_windows_init(struct sim_windows *windows, uint32_t replicas); /* false: out of memory */
void sim_windows_fini(struct sim_windows *windows);
/* Times never go back. */
void sim_windows_add(struct sim_windows *windows, double time_s, uint32_t replica, double work);
/* Ends the last window; NAN without any work. */
double sim_windows_p95(struct sim_windows *windows);

#endif
