/* SPDX-License-Identifier: Apache-2.0 */
#include "trend.h"
#include "rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void a_line_is_found_exactly(void **state)
{
        struct sim_trend trend = {0};
        struct sim_growth growth;

        (void)state;
        /* In the middle of bins, whatever their width, so that binning loses nothing. */
        for (int i = 0; i < 240; i++)
                sim_trend_add(&trend, (i + 0.5) / 4, 3 + 0.25 * (i + 0.5) / 4);
        assert_true(sim_trend_growth(&trend, &growth));
        assert_true(fabs(growth.slope - 0.25) < 1e-9);
        assert_true(growth.error < 1e-9);
        assert_true(fabs(growth.from_s - 15) < 1e-9 && fabs(growth.to_s - 60) < 1e-9);
        assert_true(fabs(growth.mean - (3 + 0.25 * 37.5)) < 1e-9);
        assert_true(growth.growing);
}

static void nothing_lost_when_bins_widen(void **state)
{
        struct sim_trend trend = {0};
        struct sim_growth growth;
        uint64_t count = 0;
        double sum = 0;

        (void)state;
        for (int i = 0; i < 100000; i++)
                sim_trend_add(&trend, i * 0.1, i % 7);
        sim_trend_add(&trend, -1, 1000000); /* before the start belongs to the start */
        sim_trend_add(&trend, NAN, 1);      /* not a value */
        sim_trend_add(&trend, 1, INFINITY); /* not a value */
        for (int i = 0; i < SIM_TREND_BINS; i++) {
                count += trend.count[i];
                sum += trend.sum[i];
        }
        assert_int_equal(count, 100001);
        assert_true(fabs(sum - (14285 * 21 + 10 + 1000000)) < 1e-6);
        assert_true(trend.width_s * SIM_TREND_BINS > 10000 && trend.width_s * SIM_TREND_BINS <= 20000);
        assert_true(sim_trend_growth(&trend, &growth));
        assert_true(fabs(growth.mean - 3) < 0.01); /* the odd value at the start is not in it */
        assert_false(growth.growing);
}

/*
 * One server, Poisson arrivals, a first-come queue: waiting times as they really are, correlated. Returns how
 * many of 40 runs of 400 service times are called growing.
 */
static unsigned growing_of_40(double use)
{
        unsigned growing = 0;

        for (uint64_t seed = 0; seed < 40; seed++) {
                struct sim_rng rng = sim_rng_for(seed, 1, 2);
                struct sim_trend trend = {0};
                struct sim_growth growth;
                double now = 0, free_at = 0;

                while (now < 400) {
                        now += sim_rng_exp(&rng, 1 / use);
                        free_at = fmax(free_at, now) + sim_rng_unit(&rng) * 2;
                        sim_trend_add(&trend, now, free_at - now);
                }
                assert_true(sim_trend_growth(&trend, &growth));
                growing += growth.growing;
        }
        return growing;
}

static void overload_is_told_from_a_busy_queue(void **state)
{
        (void)state;
        assert_true(growing_of_40(0.5) <= 1);
        assert_true(growing_of_40(0.8) <= 4);
        assert_true(growing_of_40(1.3) >= 38);
        assert_int_equal(growing_of_40(1.6), 40);
}

static void few_values_tell_nothing(void **state)
{
        struct sim_trend trend = {0};
        struct sim_growth growth;

        (void)state;
        assert_false(sim_trend_growth(&trend, &growth));
        for (int i = 0; i < 30; i++)
                sim_trend_add(&trend, i, i);
        assert_false(sim_trend_growth(&trend, &growth));
        for (int i = 30; i < 90; i++)
                sim_trend_add(&trend, i, i);
        assert_true(sim_trend_growth(&trend, &growth));
        /* All at one moment: there is no time over which anything could rise. */
        trend = (struct sim_trend){0};
        for (int i = 0; i < 1000; i++)
                sim_trend_add(&trend, 0, i);
        assert_false(sim_trend_growth(&trend, &growth));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_line_is_found_exactly),
                cmocka_unit_test(nothing_lost_when_bins_widen),
                cmocka_unit_test(overload_is_told_from_a_busy_queue),
                cmocka_unit_test(few_values_tell_nothing),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
