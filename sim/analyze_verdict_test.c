/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze.h"
#include "analyze_svg.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* cmocka compares floats only. */
#define assert_near(a, b, within) assert_true(fabs((a) - (b)) <= (within))

/* Rungs by the prefill hours that they leave of 100, and by what they carry. */
static struct sim_rung_row *rungs(const double hours[SIM_RUNGS], const double capacity[SIM_RUNGS])
{
        struct sim_rung_row *rows = calloc(SIM_RUNGS, sizeof(*rows));

        assert_non_null(rows);
        for (unsigned i = 0; i < SIM_RUNGS; i++) {
                rows[i].at_pace.none_s = 100 * 3600.0;
                rows[i].at_pace.saved_s = (100 - hours[i]) * 3600;
                rows[i].capacity = capacity[i];
        }
        return rows;
}

static void thresholds(void **state)
{
        const double hours[] = {100, 96, 91, 81, 80, 80};
        const double capacity[] = {1, 1.04, 1.06, 1.5, 1.2, 1.81};
        struct sim_rung_row *rows = rungs(hours, capacity);

        (void)state;
        sim_verdict_make(rows, false, 3600, 8);
        assert_true(isnan(rows[0].work_gain));
        assert_int_equal(rows[1].by_work, SIM_VERDICT_NO); /* 4 % */
        assert_int_equal(rows[1].by_latency, SIM_VERDICT_NO);
        assert_int_equal(rows[2].by_work, SIM_VERDICT_MARGINAL); /* 5.2 % */
        assert_int_equal(rows[2].by_latency, SIM_VERDICT_NO);    /* 1.9 % over the best below */
        assert_int_equal(rows[3].by_work, SIM_VERDICT_YES);      /* 11 % */
        assert_int_equal(rows[3].by_latency, SIM_VERDICT_YES);
        assert_int_equal(rows[4].by_latency, SIM_VERDICT_NO);  /* less than the rung below */
        assert_int_equal(rows[5].by_latency, SIM_VERDICT_YES); /* 20.7 % over L3, not over L4's 1.2 */
        assert_near(rows[5].capacity_gain, 1.81 / 1.2 - 1, 1e-12);
        assert_near(rows[5].capacity_gain_best, 1.81 / 1.5 - 1, 1e-12);
        free(rows);
}

/*
 * What a still simpler rung saves as well is no gain; if that one cannot carry the load, it is a marginal
 * one.
 */
static void work_that_a_simpler_rung_saves_too(void **state)
{
        const double hours[] = {100, 100, 60, 80, 61, 61};
        const double weak[] = {1, 2, 1.5, 2, 2.5, 2.5}, strong[] = {1, 2, 2.5, 2, 2.5, 2.5};
        struct sim_rung_row *rows = rungs(hours, weak);

        (void)state;
        sim_verdict_make(rows, false, 3600, 8);
        assert_near(rows[4].work_gain, 19.0 / 80, 1e-9);
        assert_int_equal(rows[4].by_work, SIM_VERDICT_MARGINAL);
        assert_int_equal(rows[3].by_work, SIM_VERDICT_NO);
        free(rows);
        rows = rungs(hours, strong);
        sim_verdict_make(rows, false, 3600, 8);
        assert_int_equal(rows[4].by_work, SIM_VERDICT_NO);
        assert_int_equal(rows[4].by_latency, SIM_VERDICT_NO);
        assert_int_equal(sim_verdict_recommended(rows), SIM_RUNG_HASH);
        free(rows);
}

static void an_idle_fleet_gives_no_verdict_by_latency(void **state)
{
        const double hours[] = {100, 100, 100, 100, 100, 100}, capacity[] = {1, 2, 4, 8, 16, 32};
        struct sim_rung_row *rows = rungs(hours, capacity);
        struct sim_rung_result loaded = {.busy_mean = 0.5, .waited = 0.3};

        (void)state;
        assert_false(sim_verdict_idle(&loaded));
        loaded.waited = 0.09; /* it is half busy all the same */
        assert_false(sim_verdict_idle(&loaded));
        loaded.busy_mean = 0.29;
        assert_true(sim_verdict_idle(&loaded));
        loaded = (struct sim_rung_result){.busy_mean = 0.09, .waited = 0.3};
        assert_true(sim_verdict_idle(&loaded));
        sim_verdict_make(rows, true, 3600, 8);
        for (unsigned i = 0; i < SIM_RUNGS; i++)
                assert_int_equal(rows[i].by_latency, SIM_VERDICT_NO);
        assert_int_equal(sim_verdict_recommended(rows), SIM_RUNG_TURNS);
        assert_true(isnan(rows[4].even_latency_month));
        free(rows);
}

static void nobody_keeps_the_target(void **state)
{
        const double hours[] = {100, 100, 100, 100, 100, 100}, capacity[] = {0, 0, 0, 0, 0.5, 0};
        struct sim_rung_row *rows = rungs(hours, capacity);

        (void)state;
        sim_verdict_make(rows, false, 3600, 8);
        assert_int_equal(rows[1].by_latency, SIM_VERDICT_NO);
        assert_true(isnan(rows[1].capacity_gain));
        assert_int_equal(rows[4].by_latency, SIM_VERDICT_YES); /* the only one */
        assert_true(isinf(rows[4].capacity_gain));
        assert_true(isnan(rows[4].saved_replicas));
        assert_int_equal(rows[5].by_latency, SIM_VERDICT_NO);
        free(rows);
}

static void break_even(void **state)
{
        const double hours[] = {100, 100, 100, 80, 60, 60}, capacity[] = {1, 1, 1, 2, 4, 4};
        struct sim_rung_row *rows = rungs(hours, capacity);

        (void)state;
        sim_verdict_make(rows, false, 7200, 8);
        /* 20 hours less every two hours, 730 hours a month. */
        assert_near(rows[4].even_work_month, 20 / 2.0 * 730, 1e-6);
        /* The trace's pace needs 4 replicas with L3, 2 with L4. */
        assert_near(rows[4].saved_replicas, 2, 1e-12);
        assert_near(rows[4].even_latency_month, 2 * 730, 1e-9);
        free(rows);
}

static void processor_time_between_measured_sizes(void **state)
{
        (void)state;
        assert_near(sim_rung_cpu_us(SIM_CPU_RELAY, 8e3), 22, 1e-9);
        assert_near(sim_rung_cpu_us(SIM_CPU_RELAY, 20e3), 24, 1e-9);
        assert_near(sim_rung_cpu_us(SIM_CPU_DECIDE, 1), sim_rung_cpu_us(SIM_CPU_DECIDE, 300), 0);
        for (double bytes = 1000; bytes < 2e6; bytes *= 2)
                assert_true(sim_rung_cpu_us(SIM_CPU_READ, bytes) > sim_rung_cpu_us(SIM_CPU_RELAY, bytes));
        assert_true(sim_rung_cpu_us(SIM_CPU_DECIDE, 1e6) > sim_rung_cpu_us(SIM_CPU_DECIDE, 512e3));
}

static void numbers_and_text_for_the_page(void **state)
{
        struct sim_buf buf = {0};
        char number[32];

        (void)state;
        sim_plot_number(0, number, sizeof(number));
        assert_string_equal(number, "0");
        sim_plot_number(999, number, sizeof(number));
        assert_string_equal(number, "999");
        sim_plot_number(2048000, number, sizeof(number));
        assert_string_equal(number, "2.05 M");
        sim_html_text(&buf, "<a href=\"x\">&");
        sim_buf_add(&buf, "", 1);
        assert_string_equal(buf.data, "&lt;a href=&quot;x&quot;&gt;&amp;");
        sim_buf_fini(&buf);
}

static void collect(void *ctx, const char *text)
{
        sim_buf_puts(ctx, text);
        sim_buf_puts(ctx, "\n");
}

/* What is said of a service whose rungs leave those hours and carry so much, `open` of them without an end. */
static char *reasons_of(const double hours[SIM_RUNGS], const double capacity[SIM_RUNGS],
                        const bool open[SIM_RUNGS])
{
        struct sim_report *report = calloc(1, sizeof(*report));
        struct sim_rung_row *rows = rungs(hours, capacity);
        struct sim_buf buf = {0};

        assert_non_null(report);
        *report = (struct sim_report){
                .trace = "t", .replicas = 8, .ttft_target_s = 10, .ideal_hit = 0.5, .pooled_hit = 0.5};
        memcpy(report->rungs, rows, sizeof(report->rungs));
        for (unsigned i = 0; i < SIM_RUNGS; i++)
                report->rungs[i].capacity_open = open[i];
        sim_verdict_make(report->rungs, false, 3600, 8);
        sim_report_short(report, collect, &buf);
        sim_report_reasons(report, collect, &buf);
        sim_buf_add(&buf, "", 1);
        assert_false(buf.failed);
        free(report);
        free(rows);
        return buf.data;
}

/* The highest pace that is tried is not the most that a fleet carries. */
static void the_end_of_the_search_is_no_measured_capacity(void **state)
{
        const double hours[] = {100, 100, 60, 80, 61, 61};
        const double above[] = {2, 2, 2, 32, 63.5, 63.5}, equal[] = {2, 2, 63.5, 63.5, 63.5, 63.5};
        const bool last[] = {false, false, false, false, true, true},
                   most[] = {false, false, true, true, true, true};
        const bool none[SIM_RUNGS] = {false};
        char *text;

        (void)state;
        text = reasons_of(hours, above, last);
        assert_non_null(strstr(text, "can take at least 98 % more traffic"));
        assert_non_null(strstr(text,
                               "carries at least 63.5 times this traffic, the most that was tried; the best "
                               "simpler rule (bounded hash) carries 32.00 times, so it is at least +98 %"));
        free(text);
        text = reasons_of(hours, equal, most);
        assert_non_null(strstr(text,
                               "carries at least 63.5 times this traffic, the most that was tried, and with "
                               "a simpler rule (prefix hash) too."));
        assert_non_null(strstr(text, "nothing speaks for a step up: not justified"));
        free(text);
        text = reasons_of(hours, above, none);
        assert_non_null(strstr(text, "carries 63.50 times this traffic; the best simpler rule (bounded hash) "
                                     "carries 32.00 times, so it is +98 %"));
        assert_null(strstr(text, "at least"));
        free(text);
}

/* Who computes as little and carries as much is not said to carry less. */
static void equal_capacities_are_not_told_apart(void **state)
{
        const double hours[] = {100, 100, 60, 80, 61, 61}, equal[] = {2, 2, 2, 2, 2, 2};
        const bool none[SIM_RUNGS] = {false};
        char *text = reasons_of(hours, equal, none);

        (void)state;
        assert_non_null(strstr(text,
                               "A still simpler rule computes about as little: for the work alone that rule "
                               "would do."));
        assert_non_null(strstr(text, "(round robin) carries 2.00 times, so it is +0 %: not justified"));
        assert_null(strstr(text, "cannot carry"));
        free(text);
}

static void the_end_of_the_search_is_marked_in_every_form(void **state)
{
        struct sim_report *report = calloc(1, sizeof(*report));
        struct sim_buf buf = {0};
        double nothing = 0;

        (void)state;
        assert_non_null(report);
        *report = (struct sim_report){.trace = "t", .preset = "p", .replicas = 8, .ttft_target_s = 10};
        report->account.curve_tokens = report->account.curve_blocks = &nothing;
        report->account.curve_count = 1;
        for (unsigned i = 0; i < SIM_RUNGS; i++) {
                report->rungs[i].policy = "rule";
                report->rungs[i].capacity = 63.5;
                report->rungs[i].capacity_open = i == SIM_RUNG_HEADLINE;
        }
        sim_verdict_make(report->rungs, false, 3600, 8);
        sim_report_text(report, &buf);
        sim_report_json(report, &buf);
        sim_report_html(report, 1, &buf);
        sim_buf_add(&buf, "", 1);
        assert_false(buf.failed);
        assert_non_null(strstr(buf.data, "   >=63.500"));
        assert_non_null(strstr(buf.data, "     63.500"));
        assert_non_null(strstr(buf.data, "\"capacity\":63.5,\"capacity_at_least\":true"));
        assert_non_null(strstr(buf.data, "\"capacity\":63.5,\"capacity_at_least\":false"));
        assert_non_null(strstr(buf.data, "<td>≥ 63.50×</td>"));
        assert_non_null(strstr(buf.data, "<td>63.50×</td>"));
        assert_non_null(strstr(buf.data, "63.5× → ≥ 63.5×"));
        sim_buf_fini(&buf);
        free(report);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(thresholds),
                cmocka_unit_test(work_that_a_simpler_rung_saves_too),
                cmocka_unit_test(an_idle_fleet_gives_no_verdict_by_latency),
                cmocka_unit_test(nobody_keeps_the_target),
                cmocka_unit_test(break_even),
                cmocka_unit_test(the_end_of_the_search_is_no_measured_capacity),
                cmocka_unit_test(equal_capacities_are_not_told_apart),
                cmocka_unit_test(the_end_of_the_search_is_marked_in_every_form),
                cmocka_unit_test(processor_time_between_measured_sizes),
                cmocka_unit_test(numbers_and_text_for_the_page),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
