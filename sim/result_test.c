/* SPDX-License-Identifier: Apache-2.0 */
/* Answers as a load generator reads them, and what is made of them. */
#include "reply.h"
#include "result.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static struct sim_buf recording(const char *name)
{
        struct sim_buf buf = {0};
        char path[512], *room;
        FILE *file;

        snprintf(path, sizeof(path), "%s/vllm/%s", TEST_DATA, name);
        file = fopen(path, "rb");
        assert_non_null(file);
        room = sim_buf_room(&buf, 65536);
        assert_non_null(room);
        buf.len = fread(room, 1, 65536, file);
        fclose(file);
        return buf;
}

/* Feeds in pieces of `step` bytes. */
static struct sim_reply read_reply(struct kvr_slice bytes, bool stream, size_t step)
{
        struct sim_reply reply;

        sim_reply_init(&reply, stream, true);
        for (size_t i = 0; i < bytes.len; i += step)
                sim_reply_feed(&reply, bytes.data + i, bytes.len - i < step ? bytes.len - i : step);
        sim_reply_end(&reply);
        return reply;
}

static void expect_reply(const char *name, bool stream, uint32_t pieces, const char *text, int64_t prompt,
                         int64_t cached, int64_t completion, bool finished, bool error)
{
        static const size_t steps[] = {1, 7, 100000};
        struct sim_buf buf = recording(name);

        for (size_t i = 0; i < 3; i++) {
                struct sim_reply reply = read_reply(sim_buf_slice(&buf), stream, steps[i]);

                assert_int_equal(reply.pieces, pieces);
                assert_int_equal(reply.text.len, strlen(text));
                assert_memory_equal(reply.text.data, text, strlen(text));
                assert_int_equal(reply.prompt_tokens, prompt);
                assert_int_equal(reply.cached_tokens, cached);
                assert_int_equal(reply.completion_tokens, completion);
                assert_int_equal(reply.finished, finished);
                assert_int_equal(reply.error, error);
                sim_reply_fini(&reply);
        }
        sim_buf_fini(&buf);
}

static void recordings_are_understood(void **state)
{
        (void)state;
        expect_reply("chat-stream-usage-2.sse", true, 8, "- - - - ", 1272, 1248, 8, true, false);
        expect_reply("completion-stream-usage-2.sse", true, 8, "- - - - ", 1232, 1216, 8, true, false);
        expect_reply("chat-stream-continuous.sse", true, 3, "- -", 1272, 1248, 3, true, false);
        expect_reply("chat-1.json", false, 1, "\xef\xbf\xbd- - - -", 1281, 0, 8, true, false);
        expect_reply("completion-1.json", false, 1, "\xef\xbf\xbd- - - -", 1233, 1216, 8, true, false);
        /* Ended with [DONE], and yet it failed. */
        expect_reply("chat-stream-engine-died.sse", true, 3, "9d\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdR", -1,
                     -1, -1, true, true);
}

static void cut_and_broken_answers_are_seen(void **state)
{
        struct sim_buf buf = recording("chat-stream-usage-2.sse");
        struct sim_reply reply;

        (void)state;
        buf.len = 700; /* in the middle of the third event */
        reply = read_reply(sim_buf_slice(&buf), true, 64);
        assert_false(reply.finished);
        sim_reply_fini(&reply);
        reply = read_reply(sim_slice("data: {\"choices\":[\n\n"), true, 64);
        assert_true(reply.error);
        sim_reply_fini(&reply);
        reply = read_reply(sim_slice("<html>"), false, 64);
        assert_true(reply.error && !reply.finished);
        sim_reply_fini(&reply);
        /* Comments, other fields, CRLF and missing blanks are no harm. */
        reply = read_reply(
                sim_slice(": ping\r\nevent: x\r\ndata:{\"choices\":[{\"delta\":{\"content\":\"a\"},"
                          "\"finish_reason\":\"stop\"}]}\r\n\r\ndata: [DONE]\r\n\r\n"),
                true, 5);
        assert_true(reply.finished && !reply.error);
        assert_int_equal(reply.pieces, 1);
        sim_reply_fini(&reply);
        sim_buf_fini(&buf);
}

static struct sim_outcome outcome(unsigned status, double ttft, int64_t prompt, int64_t cached,
                                  int64_t predicted, const char *replica)
{
        return (struct sim_outcome){
                .status = status,
                .ttft_s = ttft,
                .e2e_s = 2 * ttft,
                .prompt_tokens = prompt,
                .cached_tokens = cached,
                .completion_tokens = 10,
                .predicted_tokens = predicted,
                .replica = sim_slice(replica),
        };
}

static void sums_keep_apart_what_must_be(void **state)
{
        struct sim_result r = {0};
        struct sim_outcome o = outcome(200, 0.5, 1000, 800, 900, "b");
        struct sim_buf buf = {0};

        (void)state;
        sim_result_add(&r, &o);
        o = outcome(200, 1.5, 1000, -1, -1, "a"); /* says nothing of hits */
        sim_result_add(&r, &o);
        o = outcome(200, 1, 1000, 0, 0, "b");
        sim_result_add(&r, &o);
        o = outcome(429, NAN, -1, -1, -1, "");
        sim_result_add(&r, &o);
        o = outcome(503, NAN, -1, -1, -1, "");
        sim_result_add(&r, &o);
        o = outcome(500, NAN, -1, -1, -1, "a");
        sim_result_add(&r, &o);
        o = outcome(200, 1, 1000, 1000, 1000, "a");
        o.broken = true;
        sim_result_add(&r, &o);
        r.duration_s = 4;
        sim_result_itl(&r, 0.25);
        assert_int_equal(r.requests, 7);
        assert_int_equal(r.rejected, 2);
        assert_int_equal(r.errors, 2);
        assert_int_equal(r.unobserved_prompt_tokens, 1000);
        assert_int_equal(r.observed_prompt_tokens, 2000);
        assert_true(fabs(sim_result_hit_rate(&r) - 0.4) < 1e-12);
        assert_int_equal(r.bins[4].requests, 1);
        assert_int_equal(r.bins[0].requests, 1);
        assert_true(fabs(r.bins[4].error_tokens - 100) < 1e-12);
        assert_true(fabs(sim_result_max_over_mean(&r, 0) - 2 / 1.5) < 1e-12);
        assert_true(fabs(sim_result_max_over_mean(&r, 4) - 2 / 0.75) < 1e-12);
        sim_result_json(&r, &buf);
        sim_buf_add(&buf, "", 1);
        assert_string_equal(
                buf.data,
                "\"requests\":7,\"errors\":2,\"rejected\":2,\"duration_s\":4,"
                "\"ttft_s\":{\"mean\":1,\"p50\":1,\"p90\":1.4,\"p99\":1.49},"
                "\"itl_s\":{\"mean\":0.25,\"p50\":0.25,\"p90\":0.25,\"p99\":0.25},"
                "\"e2e_s\":{\"mean\":2,\"p50\":2,\"p90\":2.8,\"p99\":2.98},"
                "\"prompt_tokens\":3000,\"observed_cached_tokens\":800,\"predicted_cached_tokens\":900,"
                "\"observed_hit_rate\":0.4,\"replicas\":{\"a\":1,\"b\":2},"
                "\"late_s\":{\"mean\":null,\"p50\":null,\"p90\":null,\"p99\":null},\"growth\":null");
        sim_buf_reset(&buf);
        sim_result_text(&r, &buf);
        sim_buf_add(&buf, "", 1);
        assert_non_null(strstr(buf.data, "3 answered, 2 errors, 2 rejected"));
        assert_non_null(strstr(buf.data, "40.0 %"));
        /* Replica a answered once and told nothing: unknown is no zero. */
        assert_non_null(
                strstr(buf.data, "\n  a                                       1    33.3%           -\n"));
        assert_non_null(
                strstr(buf.data, "\n  b                                       2    66.7%       40.0%\n"));
        sim_buf_fini(&buf);
        sim_result_fini(&r);
}

static void unknown_is_null_and_not_zero(void **state)
{
        struct sim_result r = {0};
        struct sim_outcome o = outcome(200, NAN, 10, -1, -1, "");
        struct sim_buf buf = {0};

        (void)state;
        o.e2e_s = 1;
        sim_result_add(&r, &o);
        sim_result_json(&r, &buf);
        sim_buf_add(&buf, "", 1);
        assert_non_null(strstr(buf.data, "\"ttft_s\":{\"mean\":null,"));
        assert_non_null(strstr(buf.data, "\"observed_cached_tokens\":null,\"predicted_cached_tokens\":null,"
                                         "\"observed_hit_rate\":null,\"replicas\":{}"));
        sim_buf_fini(&buf);
        sim_result_fini(&r);
}

static bool has(const struct sim_buf *buf, const char *line)
{
        return strstr(buf->data, line) != NULL;
}

static void an_engine_that_tells_nothing_has_no_zeros(void **state)
{
        struct sim_result r = {0};
        struct sim_outcome o = outcome(200, NAN, -1, -1, 64, "a");
        struct sim_buf buf = {0};

        (void)state;
        o.e2e_s = 1;
        sim_result_add(&r, &o);
        o = outcome(200, NAN, -1, 16, -1, "b"); /* cached tokens of a prompt of unknown length: no share */
        o.e2e_s = 1;
        sim_result_add(&r, &o);
        sim_result_json(&r, &buf);
        sim_buf_add(&buf, "", 1);
        assert_true(has(&buf, "\"prompt_tokens\":null,\"observed_cached_tokens\":null,"
                              "\"predicted_cached_tokens\":64,\"observed_hit_rate\":null"));
        sim_buf_reset(&buf);
        sim_result_text(&r, &buf);
        sim_buf_add(&buf, "", 1);
        assert_true(has(&buf, "Requests 2 in 0.0 s (-/s): 2 answered"));
        assert_true(has(&buf, "\n  time to first token           -        -        -        -\n"));
        assert_true(has(&buf, "\nPrompt tokens                       -\n"));
        assert_true(
                has(&buf, "\n  unknown                           -   in 2 answers that do not tell (vLLM"));
        assert_true(has(&buf, "\n  predicted by router              64   -\n"));
        assert_true(has(&buf, "\n  a                                       1    50.0%           -\n"));
        assert_true(has(&buf, "\n  b                                       1    50.0%           -\n"));
        assert_false(has(&buf, " 0.0%"));
        sim_buf_fini(&buf);
        sim_result_fini(&r);
}

static void nothing_answered_is_not_a_measurement(void **state)
{
        struct sim_result r = {0};
        struct sim_outcome o = outcome(0, NAN, -1, -1, -1, "");
        struct sim_buf buf = {0};

        (void)state;
        sim_result_add(&r, &o);
        sim_result_json(&r, &buf);
        sim_buf_add(&buf, "", 1);
        assert_true(has(&buf, "\"prompt_tokens\":null"));
        sim_buf_reset(&buf);
        sim_result_text(&r, &buf);
        sim_buf_add(&buf, "", 1);
        assert_false(has(&buf, "Prompt tokens"));
        assert_true(has(&buf, "\n  whole answer                  -        -        -        -\n"));
        sim_buf_fini(&buf);
        sim_result_fini(&r);
}

static void an_overload_is_said(void **state)
{
        struct sim_result r = {0};
        struct sim_outcome o = outcome(200, 1, 100, 0, 0, "a");
        struct sim_buf buf = {0};

        (void)state;
        sim_result_add(&r, &o);
        for (int i = 0; i < 400; i++)
                sim_trend_add(&r.trend, i * 0.1, i * 0.025);
        sim_result_json(&r, &buf);
        sim_buf_add(&buf, "", 1);
        assert_true(has(&buf, "\"growth\":{\"slope\":0.2"));
        assert_true(has(&buf, "\"growing\":true}"));
        sim_buf_reset(&buf);
        sim_result_text(&r, &buf);
        sim_buf_add(&buf, "", 1);
        assert_true(has(&buf, "still rose by 250 ms per second"));
        r.trend = (struct sim_trend){0};
        for (int i = 0; i < 400; i++)
                sim_trend_add(&r.trend, i * 0.1, 1 + i % 3);
        sim_buf_reset(&buf);
        sim_result_json(&r, &buf);
        sim_result_text(&r, &buf);
        sim_buf_add(&buf, "", 1);
        assert_true(has(&buf, "\"growing\":false}"));
        assert_false(has(&buf, "still rose"));
        sim_buf_fini(&buf);
        sim_result_fini(&r);
}

static void shares_fall_into_their_bins(void **state)
{
        static const struct {
                int64_t predicted;
                size_t bin;
        } cases[] = {{0, 0}, {1, 1}, {250, 1}, {251, 2}, {500, 2}, {750, 3}, {751, 4}, {1000, 4}};

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct sim_result r = {0};
                struct sim_outcome o = outcome(200, 1, 1000, 0, cases[i].predicted, "x");

                sim_result_add(&r, &o);
                assert_int_equal(r.bins[cases[i].bin].requests, 1);
                sim_result_fini(&r);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(recordings_are_understood),
                cmocka_unit_test(cut_and_broken_answers_are_seen),
                cmocka_unit_test(sums_keep_apart_what_must_be),
                cmocka_unit_test(unknown_is_null_and_not_zero),
                cmocka_unit_test(an_engine_that_tells_nothing_has_no_zeros),
                cmocka_unit_test(nothing_answered_is_not_a_measurement),
                cmocka_unit_test(an_overload_is_said),
                cmocka_unit_test(shares_fall_into_their_bins),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
