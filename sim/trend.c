/* SPDX-License-Identifier: Apache-2.0 */
#include "trend.h"

#include <math.h>
#include <stddef.h>

#define FIRST_WIDTH_S 0x1p-10
#define PARTS         8
#define PART_MIN      5    /* values in each part */
#define ERRORS_SURE   3.0  /* standard errors; with eight parts one stable run in a hundred is beyond */
#define SLOPE_MIN     0.02 /* the share of the load that is not served: less is a busy spell */
#define RISE_OF_MEAN  0.5  /* what grows from nothing rises by 1.2 of its mean over the last three quarters */

static void double_width(struct sim_trend *trend)
{
        for (size_t i = 0; i < SIM_TREND_BINS / 2; i++) {
                trend->count[i] = trend->count[2 * i] + trend->count[2 * i + 1];
                trend->sum[i] = trend->sum[2 * i] + trend->sum[2 * i + 1];
        }
        for (size_t i = SIM_TREND_BINS / 2; i < SIM_TREND_BINS; i++) {
                trend->count[i] = 0;
                trend->sum[i] = 0;
        }
        trend->width_s *= 2;
}

void sim_trend_add(struct sim_trend *trend, double at_s, double value)
{
        size_t bin;

        if (!isfinite(at_s) || !isfinite(value))
                return;
        if (trend->width_s <= 0)
                trend->width_s = FIRST_WIDTH_S;
        while (at_s >= trend->width_s * SIM_TREND_BINS)
                double_width(trend);
        bin = at_s > 0 ? (size_t)(at_s / trend->width_s) : 0;
        bin = bin < SIM_TREND_BINS ? bin : SIM_TREND_BINS - 1;
        trend->count[bin]++;
        trend->sum[bin] += value;
}

struct part {
        double count, sum, time; /* time: sum of the values' times */
};

/* Fills the parts from the bins; false if one of them has too little. */
static bool take_parts(const struct sim_trend *trend, size_t from, size_t bins, struct part *parts)
{
        for (size_t i = 0; i < bins; i++) {
                struct part *part = &parts[i * PARTS / bins];
                double count = (double)trend->count[from + i];

                part->count += count;
                part->sum += trend->sum[from + i];
                part->time += count * ((double)(from + i) + 0.5) * trend->width_s;
        }
        for (size_t i = 0; i < PARTS; i++) {
                if (parts[i].count < PART_MIN)
                        return false;
        }
        return true;
}

bool sim_trend_growth(const struct sim_trend *trend, struct sim_growth *ret)
{
        struct part parts[PARTS] = {0};
        double count = 0, time = 0, value = 0, spread = 0, both = 0, off = 0;
        struct sim_growth growth;
        size_t end = SIM_TREND_BINS, from;

        while (end > 0 && trend->count[end - 1] == 0)
                end--;
        from = end / 4;
        if (end - from < PARTS || !take_parts(trend, from, end - from, parts))
                return false;
        for (size_t i = 0; i < PARTS; i++) {
                count += parts[i].count;
                time += parts[i].time;
                value += parts[i].sum;
        }
        time /= count;
        value /= count;
        /* A part weighs as much as it has values. */
        for (size_t i = 0; i < PARTS; i++) {
                double dt = parts[i].time / parts[i].count - time;

                spread += parts[i].count * dt * dt;
                both += parts[i].count * dt * (parts[i].sum / parts[i].count - value);
        }
        growth.slope = both / spread;
        for (size_t i = 0; i < PARTS; i++) {
                double line = value + growth.slope * (parts[i].time / parts[i].count - time);

                off += parts[i].count * pow(parts[i].sum / parts[i].count - line, 2);
        }
        growth.error = sqrt(off / (PARTS - 2) / spread);
        growth.from_s = (double)from * trend->width_s;
        growth.to_s = (double)end * trend->width_s;
        growth.mean = value;
        growth.growing = growth.slope > SLOPE_MIN && growth.slope > ERRORS_SURE * growth.error &&
                         growth.slope * (growth.to_s - growth.from_s) > RISE_OF_MEAN * value;
        *ret = growth;
        return true;
}
