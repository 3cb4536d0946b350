/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze_log.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* cmocka compares floats only. */
#define assert_near(a, b, within) assert_true(fabs((a) - (b)) <= (within))

#define HEAD(second) \
        "{\"time\":\"2026-02-28T23:59:" second "Z\",\"request_id\":\"req-1\",\"end\":\"finished\","

static const char log_text[] =
        HEAD("50.000") "\"status\":200,\"replica\":\"a\",\"prompt_tokens\":1000,\"predicted_tokens\":0,"
                       "\"best_match_tokens\":0,\"observed_tokens\":0,\"queue_s\":null,\"ttft_s\":0.5}\n"
        /* Predicted 800, found 600 there: 200 were stale; another replica had 900. */
        HEAD("51.500") "\"status\":200,\"replica\":\"b\",\"prompt_tokens\":1000,\"predicted_tokens\":800,"
                       "\"best_match_tokens\":900,\"observed_tokens\":600,\"queue_s\":2,\"ttft_s\":0.25}\n"
        /* Not told: counted as predicted. */
        HEAD("52.000") "\"status\":200,\"replica\":\"a\",\"prompt_tokens\":500,\"predicted_tokens\":400,"
                       "\"best_match_tokens\":400,\"observed_tokens\":null,\"queue_s\":null,\"ttft_s\":null}"
                       "\n"
        /* Neither computed nor failed, and then failed. */
        HEAD("53.000") "\"status\":200,\"prompt_tokens\":null,\"predicted_tokens\":null}\n" HEAD(
                "59.000") "\"status\":503,\"replica\":\"a\",\"prompt_tokens\":700,\"predicted_tokens\":null}"
                          "\n";

static void write_file(char path[], const char *text)
{
        int fd = mkstemp(path);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
        close(fd);
}

static void an_account_by_hand(void **state)
{
        char path[] = "/tmp/kvroute-log-test-XXXXXX", message[256];
        struct sim_trace_options all = {0};
        const struct sim_cost *cost = sim_cost_preset(0);
        struct sim_log log;
        double none, now, best;

        (void)state;
        write_file(path, log_text);
        assert_true(sim_log_is(path));
        if (!sim_log_read(path, "x", &all, cost, &log, message, sizeof(message)))
                fail_msg("%s", message);
        assert_near(log.lines, 5, 0);
        assert_near(log.requests, 3, 0);
        assert_near(log.failed, 1, 0);
        assert_near(log.last_s - log.first_s, 9, 1e-6);
        assert_near(log.prompt_tokens, 2500, 0);
        assert_near(log.observed_tokens, 600, 0);
        assert_near(log.predicted_tokens, 1200, 0);
        assert_near(log.unobserved_prompt_tokens, 500, 0);
        assert_near(log.won, 1000, 0);
        assert_near(log.staleness, 200, 0);
        assert_near(log.placement, 100, 0);
        assert_near(log.workload, 1200, 0);
        assert_near(log.hits, 2, 0);
        assert_int_equal(log.replica_count, 2);
        assert_string_equal(log.replicas[0].name, "a");
        assert_near(log.replicas[0].computed_tokens, 1100, 0);
        assert_near(log.by_requests.max_over_mean, 2 / 1.5, 1e-12);
        assert_near(sim_samples_percentile(&log.ttft, 0.5), 0.375, 1e-12);
        none = 2 * sim_cost_prefill_ms(cost, 1000, 1000) + sim_cost_prefill_ms(cost, 500, 500);
        now = sim_cost_prefill_ms(cost, 1000, 1000) + sim_cost_prefill_ms(cost, 400, 1000) +
              sim_cost_prefill_ms(cost, 100, 500);
        best = sim_cost_prefill_ms(cost, 1000, 1000) + sim_cost_prefill_ms(cost, 100, 1000) +
               sim_cost_prefill_ms(cost, 100, 500);
        assert_near(log.none_s, none / 1e3, 1e-9);
        assert_near(log.now_s, now / 1e3, 1e-9);
        assert_near(log.best_s, best / 1e3, 1e-9);
        assert_near(log.blind_s, (none + best) / 2e3, 1e-9);
        assert_near(log.gain, 1 - 2 * best / (none + best), 1e-9);
        assert_int_equal(log.by_work_verdict, SIM_VERDICT_YES);
        sim_log_fini(&log);
        unlink(path);
}

static void a_stretch_of_it(void **state)
{
        char path[] = "/tmp/kvroute-log-test-XXXXXX", message[256];
        struct sim_trace_options some = {.from_s = 1, .to_s = 2}, none = {.from_s = 100};
        struct sim_log log;

        (void)state;
        write_file(path, log_text);
        assert_true(sim_log_read(path, "x", &some, sim_cost_preset(0), &log, message, sizeof(message)));
        assert_near(log.requests, 1, 0);
        assert_near(log.won, 600, 0);
        sim_log_fini(&log);
        assert_false(sim_log_read(path, "x", &none, sim_cost_preset(0), &log, message, sizeof(message)));
        assert_non_null(strstr(message, "stretch"));
        unlink(path);
}

static void bad_lines_are_named(void **state)
{
        static const char *const texts[] = {
                HEAD("50.000") "\"status\":200}\n{\"time\":\"yesterday\"}\n",
                HEAD("50.000") "\"status\":200}\nnothing\n",
                HEAD("50.000") "\"status\":200}\n[1]\n",
        };

        (void)state;
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
                char path[] = "/tmp/kvroute-log-test-XXXXXX", message[256];
                struct sim_trace_options all = {0};
                struct sim_log log;

                write_file(path, texts[i]);
                assert_false(
                        sim_log_read(path, "x", &all, sim_cost_preset(0), &log, message, sizeof(message)));
                assert_non_null(strstr(message, ":2: not a line"));
                unlink(path);
        }
}

static void traces_are_no_logs(void **state)
{
        (void)state;
        assert_false(sim_log_is(TEST_DATA "/traces/conversation.jsonl.gz"));
        assert_false(sim_log_is(TEST_DATA "/traces/lengths.csv.gz"));
        assert_false(sim_log_is("synthetic:requests=10"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(an_account_by_hand),
                cmocka_unit_test(a_stretch_of_it),
                cmocka_unit_test(bad_lines_are_named),
                cmocka_unit_test(traces_are_no_logs),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
