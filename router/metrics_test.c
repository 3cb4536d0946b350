/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/prom.h"

static struct kvr_slice slice(const char *text)
{
        return (struct kvr_slice){text, strlen(text)};
}

static metrics_series_id series(struct metrics *m, unsigned thread, enum metric_id id, const char *a,
                                const char *b, const char *c, const char *d)
{
        struct kvr_slice values[] = {slice(a), slice(b), slice(c), slice(d)};

        return metrics_series(m, thread, id, values);
}

/* Whether the exposition has exactly this line. */
static bool has_line(struct metrics *m, const char *line)
{
        size_t len;
        char *text = metrics_write(m, &len);

        assert_non_null(text);
        assert_int_equal(strlen(text), len);
        const char *at = text;
        size_t n = strlen(line);
        bool found = false;
        while ((at = strstr(at, line)) != NULL) {
                found |= (at == text || at[-1] == '\n') && at[n] == '\n';
                at += n;
        }
        free(text);
        return found;
}

static void test_counters_add_up_over_threads(void **state)
{
        (void)state;
        struct metrics *m = metrics_new(3, 100);
        metrics_series_id a = series(m, 0, METRIC_REQUESTS, "m", "w", "r1", "200");

        assert_int_equal(series(m, 1, METRIC_REQUESTS, "m", "w", "r1", "200"), a);
        assert_int_not_equal(series(m, 1, METRIC_REQUESTS, "m", "w", "r1", "20"), a);
        assert_int_not_equal(series(m, 1, METRIC_REQUESTS, "m", "wr1", "", "200"), a);
        metrics_add(m, 0, a, 2);
        metrics_add(m, 1, a, 3);
        metrics_add(m, 2, a, 4);
        assert_true(metrics_value(m, a) == 9);
        assert_true(has_line(
                m, "kvroute_requests_total{model=\"m\",workload=\"w\",replica=\"r1\",code=\"200\"} 9"));
        assert_true(has_line(m, "# TYPE kvroute_requests_total counter"));
        /* a counter kept elsewhere */
        metrics_set(m, METRIC_INDEX_EVICTIONS, 1234567890123);
        assert_true(has_line(m, "kvroute_index_evictions_total 1234567890123"));
        metrics_free(m);
}

static void test_gauges(void **state)
{
        (void)state;
        struct metrics *m = metrics_new(1, 100);
        metrics_series_id up = series(m, 0, METRIC_REPLICA_UP, "a", "", "", "");
        metrics_series_id usage = series(m, 0, METRIC_REPLICA_KV_USAGE, "a", "", "", "");
        metrics_series_id other = series(m, 0, METRIC_REPLICA_UP, "b", "", "", "");

        assert_false(has_line(m, "kvroute_replica_up{replica=\"a\"} 0"));
        metrics_set(m, up, 1);
        metrics_set(m, usage, 0.1);
        metrics_set(m, other, 0);
        assert_true(has_line(m, "kvroute_replica_up{replica=\"a\"} 1"));
        assert_true(has_line(m, "kvroute_replica_kv_usage_ratio{replica=\"a\"} 0.1"));
        metrics_drop_replica(m, slice("a"));
        assert_false(has_line(m, "kvroute_replica_up{replica=\"a\"} 1"));
        assert_false(has_line(m, "kvroute_replica_kv_usage_ratio{replica=\"a\"} 0.1"));
        assert_true(has_line(m, "kvroute_replica_up{replica=\"b\"} 0"));
        metrics_set(m, METRIC_INDEX_BYTES, 536870912);
        assert_true(has_line(m, "kvroute_index_bytes 536870912"));
        metrics_free(m);
}

static void test_histogram(void **state)
{
        (void)state;
        struct metrics *m = metrics_new(2, 100);
        metrics_series_id s = series(m, 0, METRIC_TTFT, "m", "w", "", "");

        metrics_observe(m, 0, s, 0.005); /* a bound belongs to its bucket */
        metrics_observe(m, 1, s, 0.0051);
        metrics_observe(m, 1, s, 1000);
        metrics_observe(m, 1, s, -1);
        metrics_observe(m, 1, s, NAN);
        assert_true(metrics_value(m, s) == 3);
        assert_true(has_line(
                m, "kvroute_time_to_first_token_seconds_bucket{model=\"m\",workload=\"w\",le=\"0.005\"} 1"));
        assert_true(has_line(
                m, "kvroute_time_to_first_token_seconds_bucket{model=\"m\",workload=\"w\",le=\"0.01\"} 2"));
        assert_true(has_line(
                m, "kvroute_time_to_first_token_seconds_bucket{model=\"m\",workload=\"w\",le=\"120\"} 2"));
        assert_true(has_line(
                m, "kvroute_time_to_first_token_seconds_bucket{model=\"m\",workload=\"w\",le=\"+Inf\"} 3"));
        assert_true(
                has_line(m, "kvroute_time_to_first_token_seconds_sum{model=\"m\",workload=\"w\"} 1000.0101"));
        assert_true(has_line(m, "kvroute_time_to_first_token_seconds_count{model=\"m\",workload=\"w\"} 3"));
        /* without labels, there from the start */
        assert_true(has_line(m, "kvroute_decision_seconds_bucket{le=\"5e-06\"} 0"));
        assert_true(has_line(m, "kvroute_decision_seconds_count 0"));
        metrics_free(m);
}

static void test_values_are_escaped_and_cleaned(void **state)
{
        (void)state;
        struct metrics *m = metrics_new(1, 100);

        metrics_add(m, 0, series(m, 0, METRIC_RETRIES, "a\"b\\c\nd", "", "", ""), 1);
        assert_true(has_line(m, "kvroute_retries_total{replica=\"a\\\"b\\\\c\\nd\"} 1"));
        metrics_add(m, 0,
                    series(m, 0, METRIC_RETRIES, "caf\xc3\xa9 \xff\xc0\x80\xed\xa0\x80 \xe2\x82", "", "", ""),
                    1);
        assert_true(has_line(m, "kvroute_retries_total{replica=\"caf\xc3\xa9 ?????? ??\"} 1"));
        char text[300];
        memset(text, 'x', sizeof text);
        struct kvr_slice long_value = {text, sizeof text};
        metrics_add(m, 0, metrics_series(m, 0, METRIC_RETRIES, &long_value), 1);
        assert_int_equal(metrics_series(m, 0, METRIC_RETRIES, &(struct kvr_slice){text, METRICS_VALUE_MAX}),
                         metrics_series(m, 0, METRIC_RETRIES, &long_value));
        /* Cut between two characters, also by a set of labels. */
        memcpy(text + METRICS_VALUE_MAX - 1, "\xc3\xa9", 2);
        struct kvr_slice values[METRICS_LABELS_MAX] = {long_value};
        assert_int_equal(metrics_series_of(m, 0, metrics_labels(m, 0, values), METRIC_RETRIES),
                         metrics_series(m, 0, METRIC_RETRIES, &long_value));
        metrics_free(m);
}

static void test_full_table(void **state)
{
        (void)state;
        struct metrics *m = metrics_new(1, 12);
        struct metrics_labels *labels;
        struct kvr_slice values[METRICS_LABELS_MAX] = {{"a", 1}};

        for (int i = 0; i < 25; i++) {
                char name[20];

                snprintf(name, sizeof name, "r%d", i);
                metrics_add(m, 0, series(m, 0, METRIC_RETRIES, name, "", "", ""), 1);
                metrics_observe(m, 0, series(m, 0, METRIC_TTFT, name, "w", "", ""), 1);
        }
        /* Nine of twelve: the last quarter is for gauges. */
        assert_true(has_line(m, "kvroute_retries_total{replica=\"r4\"} 1"));
        assert_true(has_line(m, "kvroute_retries_total{replica=\"other\"} 20"));
        assert_true(has_line(
                m, "kvroute_time_to_first_token_seconds_count{model=\"other\",workload=\"other\"} 21"));
        assert_true(has_line(m, "kvroute_metrics_series_overflow_total 41"));
        for (int i = 0; i < 5; i++) {
                char name[20];

                snprintf(name, sizeof name, "g%d", i);
                metrics_set(m, series(m, 0, METRIC_REPLICA_UP, name, "", "", ""), i + 1);
        }
        assert_true(has_line(m, "kvroute_replica_up{replica=\"g2\"} 3"));
        /* A gauge has no "other": it would be the value of whoever wrote last. */
        assert_false(has_line(m, "kvroute_replica_up{replica=\"other\"} 5"));
        /* A set of labels leads to the same series. */
        labels = metrics_labels(m, 0, values);
        assert_int_equal(metrics_series_of(m, 0, labels, METRIC_RETRIES), METRIC_RETRIES);
        metrics_free(m);
}

/* Scrapers must be able to read all of it, with a HELP and a TYPE for each metric. */
static void test_page_is_readable(void **state)
{
        (void)state;
        struct metrics *m = metrics_new(1, 1000);
        size_t len;

        for (unsigned id = 0; id < METRIC_COUNT; id++) {
                metrics_series_id s = series(m, 0, (enum metric_id)id, "a", "b", "c", "d");

                metrics_add(m, 0, s, 1);
                metrics_observe(m, 0, s, 1);
                if (metric_info((enum metric_id)id)->type == METRIC_GAUGE)
                        metrics_set(m, s, 2.5);
                /* house rules of names */
                const char *name = metric_info((enum metric_id)id)->name;
                bool total = strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_total") == 0;
                assert_int_equal(total, metric_info((enum metric_id)id)->type == METRIC_COUNTER);
                assert_null(strchr(metric_info((enum metric_id)id)->help, '\n'));
                assert_null(strchr(metric_info((enum metric_id)id)->help, '\\'));
        }
        char *text = metrics_write(m, &len);
        struct prom_reader reader;
        struct prom_sample sample;
        prom_init(&reader, (struct kvr_slice){text, len});
        while (prom_next(&reader, &sample))
                assert_true(sample.name.len > 8 && memcmp(sample.name.data, "kvroute_", 8) == 0);
        assert_int_equal(reader.skipped, 0);
        assert_true(reader.samples > METRIC_COUNT);
        free(text);
        metrics_free(m);
}

struct worker {
        struct metrics *m;
        unsigned thread;
        pthread_t id;
};

#define ROUNDS 20000

static void *work(void *arg)
{
        struct worker *w = arg;

        for (unsigned i = 0; i < ROUNDS; i++) {
                char name[20];

                snprintf(name, sizeof name, "r%u", i % 50);
                metrics_add(w->m, w->thread, series(w->m, w->thread, METRIC_RETRIES, name, "", "", ""), 1);
                metrics_observe(w->m, w->thread, METRIC_DECISION, 1e-5);
        }
        return NULL;
}

static void test_threads(void **state)
{
        (void)state;
        struct metrics *m = metrics_new(4, 100);
        struct worker workers[4];
        double sum = 0;

        for (unsigned t = 0; t < 4; t++) {
                workers[t] = (struct worker){.m = m, .thread = t};
                assert_int_equal(pthread_create(&workers[t].id, NULL, work, &workers[t]), 0);
        }
        for (unsigned i = 0; i < 5; i++) {
                size_t len;

                free(metrics_write(m, &len));
        }
        for (unsigned t = 0; t < 4; t++)
                pthread_join(workers[t].id, NULL);
        for (unsigned i = 0; i < 50; i++) {
                char name[20];

                snprintf(name, sizeof name, "r%u", i);
                sum += metrics_value(m, series(m, 0, METRIC_RETRIES, name, "", "", ""));
        }
        assert_true(sum == 4 * ROUNDS);
        assert_true(metrics_value(m, METRIC_DECISION) == 4 * ROUNDS);
        metrics_free(m);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_counters_add_up_over_threads),
                cmocka_unit_test(test_gauges),
                cmocka_unit_test(test_histogram),
                cmocka_unit_test(test_values_are_escaped_and_cleaned),
                cmocka_unit_test(test_full_table),
                cmocka_unit_test(test_page_is_readable),
                cmocka_unit_test(test_threads),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
