/* SPDX-License-Identifier: Apache-2.0 */
/* When the demo says that its machine was too busy. */
#include "demo_int.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

struct figures {
        double late_s, load_wait_s, engines_wait_s, router_wait_s, used_s;
};

/* Two policies of 100 requests; the better one answers after 100 ms of the engines, 10 on the wall. */
static struct demo_busy busy_with(const struct figures *f)
{
        struct demo *demo = calloc(1, sizeof(*demo));
        struct demo_busy busy;

        assert_non_null(demo);
        demo->arguments.speed = 10;
        demo->row_count = 2;
        for (size_t i = 0; i < 2; i++) {
                struct demo_row *row = &demo->rows[i];

                row->wall_s = 10;
                row->result.requests = 100;
                for (int n = 0; n < 100; n++) {
                        sim_samples_add(&row->result.ttft, i ? 0.8 : 0.1);
                        sim_samples_add(&row->result.late, i ? f->late_s : 0.0005);
                }
        }
        demo->rows[1].load = (struct sim_cpu){f->used_s / 2, f->load_wait_s};
        demo->rows[1].engines = (struct sim_cpu){f->used_s / 4, f->engines_wait_s};
        demo->rows[1].router = (struct sim_cpu){f->used_s / 4, f->router_wait_s};
        demo_busy(demo, 2, &busy);
        for (size_t i = 0; i < 2; i++)
                sim_result_fini(&demo->rows[i].result);
        free(demo);
        return busy;
}

static void an_idle_machine_is_fit(void **state)
{
        struct demo_busy busy = busy_with(&(struct figures){0.0006, 0.01, 0.02, 0.02, 2});

        (void)state;
        assert_false(busy.too_busy);
        assert_true(fabs(busy.late_s - 0.0006) < 1e-9);
        assert_true(fabs(busy.waited_s - 0.0005) < 1e-9);
        assert_true(fabs(busy.used - 0.2) < 1e-9);
}

static void each_sign_counts_alone(void **state)
{
        (void)state;
        assert_true(busy_with(&(struct figures){.late_s = 0.003}).too_busy);
        assert_true(busy_with(&(struct figures){.used_s = 16}).too_busy);
        /* A tenth of 10 ms is 1 ms for each of 100 requests. */
        assert_true(busy_with(&(struct figures){.load_wait_s = 0.11}).too_busy);
        assert_true(busy_with(&(struct figures){.engines_wait_s = 0.11}).too_busy);
        assert_true(busy_with(&(struct figures){.router_wait_s = 0.11}).too_busy);
        assert_true(busy_with(&(struct figures){0, 0.04, 0.04, 0.04, 0}).too_busy);
        assert_false(busy_with(&(struct figures){0, 0.03, 0.03, 0.03, 0}).too_busy);
}

/* A kernel without the count: the other signs are left. */
static void unknown_waits_are_no_zero_and_no_alarm(void **state)
{
        struct demo *demo = calloc(1, sizeof(*demo));
        struct demo_busy busy;

        (void)state;
        assert_non_null(demo);
        demo->arguments.speed = 10;
        demo->row_count = 1;
        demo->rows[0].result.requests = 10;
        demo->rows[0].router.waited_s = (double)NAN;
        demo_busy(demo, 2, &busy);
        assert_true(isnan(busy.waited_s) && isnan(busy.late_s));
        assert_false(busy.too_busy);
        sim_samples_add(&demo->rows[0].result.late, 0.05);
        demo_busy(demo, 2, &busy);
        assert_true(busy.too_busy);
        sim_result_fini(&demo->rows[0].result);
        free(demo);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(an_idle_machine_is_fit),
                cmocka_unit_test(each_sign_counts_alone),
                cmocka_unit_test(unknown_waits_are_no_zero_and_no_alarm),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
