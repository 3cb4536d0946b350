/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_windows.h"

#include <math.h>
#include <stdlib.h>

bool sim_windows_init(struct sim_windows *windows, uint32_t replicas)
{
        *windows = (struct sim_windows){.replicas = replicas};
        windows->sums = calloc(replicas + 1u, sizeof(*windows->sums));
        return windows->sums != NULL;
}

void sim_windows_fini(struct sim_windows *windows)
{
        free(windows->sums);
        windows->sums = NULL;
        sim_samples_fini(&windows->ratios);
}

static void window_end(struct sim_windows *windows)
{
        double sum = 0, most = 0;

        for (uint32_t i = 0; i < windows->replicas; i++) {
                sum += windows->sums[i];
                most = fmax(most, windows->sums[i]);
                windows->sums[i] = 0;
        }
        if (sum > 0)
                sim_samples_add(&windows->ratios, most * windows->replicas / sum);
        windows->open = false;
}

void sim_windows_add(struct sim_windows *windows, double time_s, uint32_t replica, double work)
{
        if (windows->open && time_s >= windows->begin_s + SIM_WINDOW_S)
                window_end(windows);
        if (!windows->open) {
                windows->begin_s = floor(time_s / SIM_WINDOW_S) * SIM_WINDOW_S;
                windows->open = true;
        }
        windows->sums[replica] += work;
}

double sim_windows_p95(struct sim_windows *windows)
{
        if (windows->open)
                window_end(windows);
        return sim_samples_percentile(&windows->ratios, 0.95);
}
