/* SPDX-License-Identifier: Apache-2.0 */
#include "stats.h"
#include "rng.h"

#include <math.h>
#include <stdlib.h>

void sim_samples_fini(struct sim_samples *samples)
{
        free(samples->values);
        *samples = (struct sim_samples){0};
}

static bool grow(struct sim_samples *samples)
{
        size_t cap = samples->cap ? samples->cap * 2 : 1024;
        double *values = realloc(samples->values, cap * sizeof(*values));

        if (!values) {
                samples->failed = true;
                return false;
        }
        samples->values = values;
        samples->cap = cap;
        return true;
}

void sim_samples_add(struct sim_samples *samples, double value)
{
        struct sim_rng rng = {samples->random};
        uint64_t at;

        samples->seen++;
        samples->sum += value;
        samples->sorted = false;
        if (samples->kept < SIM_SAMPLES_MAX) {
                if (samples->kept < samples->cap || grow(samples))
                        samples->values[samples->kept++] = value;
                return;
        }
        /* Algorithm R: the n-th value replaces a kept one with chance kept / n. */
        at = (uint64_t)(sim_rng_unit(&rng) * (double)samples->seen);
        samples->random = rng.state;
        if (at < samples->kept)
                samples->values[at] = value;
}

double sim_samples_mean(const struct sim_samples *samples)
{
        return samples->seen ? samples->sum / (double)samples->seen : (double)NAN;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

double sim_samples_percentile(struct sim_samples *samples, double p)
{
        double position, below;
        size_t i;

        if (samples->kept == 0)
                return (double)NAN;
        if (!samples->sorted) {
                qsort(samples->values, samples->kept, sizeof(*samples->values), compare);
                samples->sorted = true;
        }
        position = p * (double)(samples->kept - 1);
        below = floor(position);
        i = (size_t)below;
        if (i + 1 >= samples->kept)
                return samples->values[samples->kept - 1];
        return samples->values[i] + (samples->values[i + 1] - samples->values[i]) * (position - below);
}

void sim_number_json(struct sim_buf *buf, double value)
{
        if (isfinite(value))
                sim_buf_printf(buf, "%.9g", value);
        else
                sim_buf_puts(buf, "null");
}

void sim_samples_json(struct sim_samples *samples, struct sim_buf *buf)
{
        static const double points[] = {0.5, 0.9, 0.99};
        static const char *const names[] = {"p50", "p90", "p99"};

        sim_buf_puts(buf, "{\"mean\":");
        sim_number_json(buf, sim_samples_mean(samples));
        for (size_t i = 0; i < 3; i++) {
                sim_buf_printf(buf, ",\"%s\":", names[i]);
                sim_number_json(buf, sim_samples_percentile(samples, points[i]));
        }
        sim_buf_puts(buf, "}");
}
