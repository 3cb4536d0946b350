/* SPDX-License-Identifier: Apache-2.0 */
#include "stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define assert_near(a, b, tolerance) assert_true(fabs((a) - (b)) <= (tolerance))

static void percentiles_interpolate_between_ranks(void **state)
{
        static const double values[] = {15, 20, 35, 40, 50};
        struct sim_samples s = {0};

        (void)state;
        for (size_t i = 5; i-- > 0;)
                sim_samples_add(&s, values[i]);
        assert_near(sim_samples_mean(&s), 32, 1e-12);
        assert_near(sim_samples_percentile(&s, 0), 15, 1e-12);
        assert_near(sim_samples_percentile(&s, 0.5), 35, 1e-12);
        assert_near(sim_samples_percentile(&s, 0.9), 46, 1e-9);    /* position 3.6 */
        assert_near(sim_samples_percentile(&s, 0.4), 29, 1e-9);    /* position 1.6 */
        assert_near(sim_samples_percentile(&s, 0.99), 49.6, 1e-9); /* position 3.96 */
        assert_near(sim_samples_percentile(&s, 1), 50, 1e-12);
        sim_samples_add(&s, 5); /* after sorting, too */
        assert_near(sim_samples_percentile(&s, 0), 5, 1e-12);
        sim_samples_fini(&s);
}

static void few_and_none(void **state)
{
        struct sim_samples s = {0};
        struct sim_buf buf = {0};

        (void)state;
        assert_true(isnan(sim_samples_mean(&s)));
        assert_true(isnan(sim_samples_percentile(&s, 0.5)));
        sim_samples_json(&s, &buf);
        sim_buf_add(&buf, "", 1);
        assert_string_equal(buf.data, "{\"mean\":null,\"p50\":null,\"p90\":null,\"p99\":null}");
        sim_samples_add(&s, 0.25);
        sim_buf_reset(&buf);
        sim_samples_json(&s, &buf);
        sim_buf_add(&buf, "", 1);
        assert_string_equal(buf.data, "{\"mean\":0.25,\"p50\":0.25,\"p90\":0.25,\"p99\":0.25}");
        sim_buf_fini(&buf);
        sim_samples_fini(&s);
}

static void beyond_the_limit_a_fair_sample_stays(void **state)
{
        struct sim_samples s = {0};
        uint32_t n = 4 * SIM_SAMPLES_MAX;

        (void)state;
        for (uint32_t i = 0; i < n; i++)
                sim_samples_add(&s, i);
        assert_int_equal(s.seen, n);
        assert_int_equal(s.kept, SIM_SAMPLES_MAX);
        assert_near(sim_samples_mean(&s), (n - 1) / 2.0, 1e-3);
        assert_near(sim_samples_percentile(&s, 0.5) / n, 0.5, 0.005);
        assert_near(sim_samples_percentile(&s, 0.9) / n, 0.9, 0.005);
        sim_samples_fini(&s);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(percentiles_interpolate_between_ranks),
                cmocka_unit_test(few_and_none),
                cmocka_unit_test(beyond_the_limit_a_fair_sample_stays),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
