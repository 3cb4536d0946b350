/* SPDX-License-Identifier: Apache-2.0 */
#include "speed.h"

#include <math.h>

#define TOKENS_MIN 16 /* what fewer tokens take says nothing */
#define CURVE_KEEP (1 - 1.0 / 512)
#define SPEED_KEEP (1 - 1.0 / 64)
#define SETTLED    8    /* samples after which outliers are bounded; until then the line counts more */
#define OUTLIER    8.0  /* times longer or shorter than expected */
#define SPREAD_MIN 0.25 /* of sizes, relative to their mean, for a slope to be told from an overhead */
#define JITTER_S   0.01 /* first tokens come so much earlier or later for no reason */
#define EVEN_OUT   0.9  /* less than 1, so that line and replicas cannot drift apart together */
#define SLOPE_MIN  0.1  /* of the mean seconds per token: tokens never cost nothing */

struct line {
        double overhead_s, token_s;
};

static struct line line_of(const struct kvr__curve *curve)
{
        double size = curve->e / curve->n, time = curve->t / curve->n;
        double spread = curve->ee / curve->n - size * size, both = curve->et / curve->n - size * time;
        double mean = time / size, slope = mean;

        if (spread > SPREAD_MIN * SPREAD_MIN * size * size)
                slope = both / spread;
        slope = slope > mean ? mean : slope < SLOPE_MIN * mean ? SLOPE_MIN * mean : slope;
        return (struct line){time - slope * size, slope};
}

/* How many times longer than the line says a replica takes. */
static double slowness(const struct kvr__curve *curve, const struct kvr__speed *speed,
                       const struct line *line)
{
        double expected = line->overhead_s * speed->n + line->token_s * speed->e;
        /* Short prompts and quick answers show little of it: that much of every first token is doubt. */
        double doubt = speed->n * fmax(line->overhead_s, JITTER_S);
        /* The first few samples of a replica are eked out with the line itself. */
        double eke = speed->samples < SETTLED ? (SETTLED - speed->samples) * 0.5 * curve->t / curve->n : 0;

        return (speed->t + doubt + eke) / (expected + doubt + eke);
}

double kvr__speed_token_s(const struct kvr__curve *curve, const struct kvr__speed *speed)
{
        if (curve->n <= 0)
                return speed->e > 0 ? speed->t / speed->e : 0;
        if (!speed->samples)
                return 0;
        struct line line = line_of(curve);

        return line.token_s * slowness(curve, speed, &line);
}

/* Bounded by what the replica would be expected to take. */
static double outlier_bound(const struct kvr__curve *curve, const struct kvr__speed *speed, double uncached,
                            double seconds)
{
        struct line line = line_of(curve);
        double expected = line.overhead_s + uncached * kvr__speed_token_s(curve, speed);

        return seconds > expected * OUTLIER   ? expected * OUTLIER
               : seconds < expected / OUTLIER ? expected / OUTLIER
                                              : seconds;
}

void kvr__speed_learn(struct kvr__curve *curve, struct kvr__speed *speed, double uncached, double seconds)
{
        if (uncached < TOKENS_MIN || seconds <= 0)
                return;
        double even = seconds;

        if (speed->samples >= SETTLED && curve->n > 0) {
                struct line line = line_of(curve);

                seconds = outlier_bound(curve, speed, uncached, seconds);
                /* As a replica of ordinary speed would have taken: or a slow one with short prompts bends the
                 * line. */
                even = seconds / pow(slowness(curve, speed, &line), EVEN_OUT);
        }
        curve->n = curve->n * CURVE_KEEP + 1;
        curve->e = curve->e * CURVE_KEEP + uncached;
        curve->t = curve->t * CURVE_KEEP + even;
        curve->ee = curve->ee * CURVE_KEEP + uncached * uncached;
        curve->et = curve->et * CURVE_KEEP + uncached * even;
        speed->n = speed->n * SPEED_KEEP + 1;
        speed->e = speed->e * SPEED_KEEP + uncached;
        speed->t = speed->t * SPEED_KEEP + seconds;
        if (speed->samples < UINT32_MAX)
                speed->samples++;
}
