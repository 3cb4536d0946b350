/* SPDX-License-Identifier: Apache-2.0 */
#include "speed.h"

#include <math.h>
#include <string.h>

#define TERMS    KVR__SPEED_TERMS
#define UNCACHED 0
#define CACHED   1
#define PRODUCT  2

#define TOKENS_MIN 16 /* what fewer tokens take says nothing */
#define CURVE_KEEP (1 - 1.0 / 512)
#define SPEED_KEEP (1 - 1.0 / 128)
#define FIT_ALWAYS 64 /* samples; from then on the rule is fitted every */
#define FIT_EVERY  16
#define SETTLED    8 /* samples: of a model, until outliers are bounded; of a replica, that the rule ekes out */
#define OUTLIER    8.0  /* times longer or shorter than expected */
#define SPREAD_MIN 0.25 /* of a term, relative to its mean, for its slope to be told from an overhead */
#define RIDGE      0.02 /* added to each variance: terms that rise and fall together share what both explain */
#define RIDGE_MIN  1e-6 /* of it where they leave nothing unexplained */
#define JITTER_S   0.01 /* first tokens come so much earlier or later for no reason */
#define EVEN_OUT   0.9  /* less than 1, so that rule and replicas cannot drift apart together */
#define DOUBT      2.0  /* standard errors within which a replica is like the others */
#define SLOPE_MIN  0.1  /* of the mean seconds per token: tokens never cost nothing */

/* ---- fitting ---- */

/* Solves the symmetric system of the terms in `used` by elimination; positive definite thanks to the ridge. */
static void solve(const double s[TERMS][TERMS], const double r[TERMS], const bool used[TERMS], double ridge,
                  double ret[TERMS])
{
        double a[TERMS][TERMS + 1];

        for (int i = 0; i < TERMS; i++) {
                for (int j = 0; j < TERMS; j++)
                        a[i][j] = used[i] && used[j] ? s[i][j] : 0;
                a[i][i] = used[i] ? s[i][i] * (1 + ridge) : 1;
                a[i][TERMS] = used[i] ? r[i] : 0;
        }
        for (int k = 0; k < TERMS; k++)
                for (int i = k + 1; i < TERMS; i++) {
                        double factor = a[i][k] / a[k][k];

                        for (int j = k; j <= TERMS; j++)
                                a[i][j] -= factor * a[k][j];
                }
        for (int i = TERMS - 1; i >= 0; i--) {
                ret[i] = a[i][TERMS];
                for (int j = i + 1; j < TERMS; j++)
                        ret[i] -= a[i][j] * ret[j];
                ret[i] /= a[i][i];
        }
}

/* Least squares over the terms in `used`, none of which can save time. Returns the share of the variance `v` of
 * seconds that is left unexplained. */
static double slopes_solve(const double s[TERMS][TERMS], const double r[TERMS], double v,
                           const double x[TERMS], const bool usable[TERMS], double ridge, double ret[TERMS])
{
        double explained = 0, varying = 0;
        bool used[TERMS];
        int worst;

        memcpy(used, usable, sizeof(used));
        do {
                worst = -1;
                solve(s, r, used, ridge, ret);
                for (int i = 0; i < TERMS; i++)
                        if (used[i] && ret[i] < 0 && (worst < 0 || ret[i] * x[i] < ret[worst] * x[worst]))
                                worst = i;
                if (worst >= 0)
                        used[worst] = false;
        } while (worst >= 0);
        for (int i = 0; i < TERMS; i++) {
                explained += ret[i] * r[i];
                for (int j = 0; j < TERMS; j++)
                        varying += ret[i] * s[i][j] * ret[j];
        }
        if (explained <= 0 || varying <= 0 || v <= 0)
                return 1;
        /* The ridge makes all too small. Their proportions stay; so stretched they explain most. */
        for (int i = 0; i < TERMS; i++)
                ret[i] *= explained / varying;
        return fmin(1, fmax(0, 1 - explained * explained / varying / v));
}

/*
 * Over the terms that vary enough to tell. Waits are sums of many prompts, in which a bias does not average out, and
 * a ridge is one: it is as large as what the terms leave unexplained.
 */
static void slopes_fit(const struct kvr__curve *curve, double ret[TERMS])
{
        double v = curve->tt / curve->n - curve->t * curve->t / curve->n / curve->n, s[TERMS][TERMS],
               r[TERMS];
        bool used[TERMS];

        for (int i = 0; i < TERMS; i++) {
                double mean = curve->x[i] / curve->n;

                for (int j = 0; j < TERMS; j++)
                        s[i][j] = curve->xx[i][j] / curve->n - mean * curve->x[j] / curve->n;
                r[i] = curve->xt[i] / curve->n - mean * curve->t / curve->n;
                used[i] = s[i][i] > SPREAD_MIN * SPREAD_MIN * mean * mean;
        }
        double rest = slopes_solve(s, r, v, curve->x, used, RIDGE, ret);

        (void)slopes_solve(s, r, v, curve->x, used, fmax(RIDGE * rest, RIDGE_MIN), ret);
}

static struct kvr__rule rule_fit(const struct kvr__curve *curve)
{
        struct kvr__rule rule = {0};
        double explained = 0, mean = curve->t / curve->x[UNCACHED];

        slopes_fit(curve, rule.slope);
        /* Where prompts are all of one length an uncached token costs its share of the time that is left. */
        for (int i = UNCACHED + 1; i < TERMS; i++)
                explained += rule.slope[i] * curve->x[i];
        if (rule.slope[UNCACHED] <= 0)
                rule.slope[UNCACHED] = (curve->t - explained) / curve->x[UNCACHED];
        if (!(rule.slope[UNCACHED] > SLOPE_MIN * mean))
                rule.slope[UNCACHED] = SLOPE_MIN * mean;
        explained += rule.slope[UNCACHED] * curve->x[UNCACHED];
        /* No overhead below nothing. */
        for (int i = 0; i < TERMS && explained > curve->t; i++)
                rule.slope[i] *= curve->t / explained;
        rule.overhead_s = explained < curve->t ? (curve->t - explained) / curve->n : 0;
        return rule;
}

static double expected_s(const struct kvr__rule *rule, double n, const double x[TERMS])
{
        double sum = rule->overhead_s * n;

        for (int i = 0; i < TERMS; i++)
                sum += rule->slope[i] * x[i];
        return sum;
}

/* ---- replicas ---- */

/* How many times longer than the rule says a replica takes. */
static double slowness(const struct kvr__curve *curve, const struct kvr__speed *speed,
                       const struct kvr__rule *rule)
{
        double expected = expected_s(rule, speed->n, speed->x);
        /* Short prompts and quick answers show little of it: that much of every first token is doubt. */
        double doubt = speed->n * (rule->overhead_s > JITTER_S ? rule->overhead_s : JITTER_S);
        /* The first few samples of a replica are eked out with the rule itself. */
        double eke = speed->samples < SETTLED ? (SETTLED - speed->samples) * 0.5 * curve->t / curve->n : 0;

        double ratio = (speed->t + doubt + eke) / (expected + doubt + eke);
        /* What chance alone would make of it: only more than that says something about the replica. */
        double noise = DOUBT * DOUBT * speed->rr, excess = (ratio - 1) * (expected + doubt + eke);

        return excess * excess > noise ? 1 + (ratio - 1) * (1 - noise / (excess * excess)) : 1;
}

double kvr__speed_token_s(const struct kvr__curve *curve, const struct kvr__speed *speed)
{
        if (curve->n <= 0)
                return speed->x[UNCACHED] > 0 ? speed->t / speed->x[UNCACHED] : 0;
        if (!speed->samples)
                return 0;
        const struct kvr__rule *rule = &curve->rule;
        double token_s = rule->slope[UNCACHED] + rule->slope[PRODUCT] * curve->x[CACHED] / curve->n;

        return token_s * slowness(curve, speed, rule);
}

void kvr__speed_learn(struct kvr__curve *curve, struct kvr__speed *speed, double uncached, double cached,
                      double seconds)
{
        const double x[TERMS] = {uncached, cached, uncached * cached};

        if (uncached < TOKENS_MIN || cached < 0 || seconds <= 0)
                return;
        double even = seconds, off = 0;

        /* Of a replica's first prompts too: one slow token among few is chance, until more say the same. */
        if (curve->samples >= SETTLED) {
                double slow = slowness(curve, speed, &curve->rule);
                double expected = slow * expected_s(&curve->rule, 1, x);

                seconds = fmin(fmax(seconds, expected / OUTLIER), expected * OUTLIER);
                /* As a replica of ordinary speed would have taken: or a slow one with short prompts bends the rule. */
                even = slow == 1 ? seconds : seconds / pow(slow, EVEN_OUT);
                off = seconds - expected;
        }
        curve->n = curve->n * CURVE_KEEP + 1;
        curve->t = curve->t * CURVE_KEEP + even;
        curve->tt = curve->tt * CURVE_KEEP + even * even;
        speed->n = speed->n * SPEED_KEEP + 1;
        speed->t = speed->t * SPEED_KEEP + seconds;
        speed->rr = speed->rr * SPEED_KEEP + off * off;
        for (int i = 0; i < TERMS; i++) {
                curve->x[i] = curve->x[i] * CURVE_KEEP + x[i];
                curve->xt[i] = curve->xt[i] * CURVE_KEEP + x[i] * even;
                speed->x[i] = speed->x[i] * SPEED_KEEP + x[i];
                for (int j = 0; j < TERMS; j++)
                        curve->xx[i][j] = curve->xx[i][j] * CURVE_KEEP + x[i] * x[j];
        }
        if (speed->samples < UINT32_MAX)
                speed->samples++;
        if (curve->samples++ < FIT_ALWAYS || curve->samples % FIT_EVERY == 0)
                curve->rule = rule_fit(curve);
}
