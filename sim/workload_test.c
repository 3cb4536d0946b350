/* SPDX-License-Identifier: Apache-2.0 */
#include "workload.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct sim_workload_options base = {
        .kind = SIM_WORKLOAD_SHARED_PREFIX,
        .requests = 1000,
        .rate = 50,
        .groups = 8,
        .prefix_tokens = 20,
        .question_tokens = 5,
        .output_tokens = 7,
        .turns = 3,
        .turn_gap_s = 2,
        .seed = 42,
        .speed = 1,
        .model = "m",
};

static struct sim_workload *make(const struct sim_workload_options *options)
{
        struct sim_workload *w = sim_workload_new(options);

        assert_non_null(w);
        return w;
}

static struct sim_buf body(const struct sim_workload *w, uint32_t session, uint32_t turn,
                           const struct kvr_slice *answers)
{
        struct sim_buf buf = {0};

        sim_workload_body(w, session, turn, answers, &buf);
        sim_buf_add(&buf, "", 1);
        assert_false(buf.failed);
        return buf;
}

static void equal_seeds_give_equal_requests(void **state)
{
        struct sim_workload_options more = base, other = base;
        struct sim_workload *a = make(&base), *b, *c;

        (void)state;
        more.requests = 5000; /* an item does not depend on how many there are */
        other.seed = 43;
        b = make(&more);
        c = make(&other);
        for (uint32_t i = 0; i < 1000; i += 37) {
                struct sim_buf x = body(a, i, 0, NULL), y = body(b, i, 0, NULL), z = body(c, i, 0, NULL);

                assert_string_equal(x.data, y.data);
                assert_string_not_equal(x.data, z.data);
                assert_true(sim_workload_session(a, i)->start_s == sim_workload_session(b, i)->start_s);
                sim_buf_fini(&x);
                sim_buf_fini(&y);
                sim_buf_fini(&z);
        }
        sim_workload_free(a);
        sim_workload_free(b);
        sim_workload_free(c);
}

static void bodies_look_so(void **state)
{
        struct sim_workload_options o = base;
        struct sim_workload *w;
        struct sim_buf b;
        size_t len;

        (void)state;
        o.prefix_tokens = 2;
        o.question_tokens = 1;
        o.stream = true;
        w = make(&o);
        b = body(w, 0, 0, NULL);
        len = strlen("{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"");
        assert_memory_equal(b.data, "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"",
                            len);
        assert_string_equal(b.data + len + 8 + strlen("\"},{\"role\":\"user\",\"content\":\"") + 4,
                            "\"}],\"max_tokens\":7,\"temperature\":0,\"stream\":true,"
                            "\"stream_options\":{\"include_usage\":true}}");
        sim_buf_fini(&b);
        sim_workload_free(w);
        o.stream = false;
        o.completions = true;
        w = make(&o);
        b = body(w, 0, 0, NULL);
        assert_memory_equal(b.data, "{\"model\":\"m\",\"prompt\":\"", 23);
        assert_string_equal(b.data + 23 + 12, "\",\"max_tokens\":7,\"temperature\":0}");
        sim_buf_fini(&b);
        sim_workload_free(w);
}

/* The system prompt begins at a fixed place of these bodies. */
#define SYSTEM_AT strlen("{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"")

static void groups_share_exactly_their_prefix(void **state)
{
        struct sim_workload *w = make(&base);
        uint32_t first = 0, same = 0, different = 0;
        struct sim_buf x = body(w, first, 0, NULL);

        (void)state;
        for (uint32_t i = 1; i < 200; i++) {
                struct sim_buf y = body(w, i, 0, NULL);
                bool equal = memcmp(x.data + SYSTEM_AT, y.data + SYSTEM_AT, 80) == 0;

                assert_int_equal(equal,
                                 sim_workload_session(w, i)->group == sim_workload_session(w, first)->group);
                assert_string_not_equal(x.data, y.data);
                same += equal;
                different += !equal;
                sim_buf_fini(&y);
        }
        assert_true(same > 5 && different > 100);
        sim_buf_fini(&x);
        sim_workload_free(w);
}

static void unique_prompts_share_nothing(void **state)
{
        struct sim_workload_options o = base;
        struct sim_workload *w;

        (void)state;
        o.kind = SIM_WORKLOAD_UNIQUE;
        w = make(&o);
        for (uint32_t i = 1; i < 100; i++) {
                struct sim_buf x = body(w, 0, 0, NULL), y = body(w, i, 0, NULL);

                assert_memory_not_equal(x.data + SYSTEM_AT, y.data + SYSTEM_AT, 40);
                sim_buf_fini(&x);
                sim_buf_fini(&y);
        }
        sim_workload_free(w);
}

static void arrivals_are_poisson(void **state)
{
        struct sim_workload_options o = base;
        struct sim_workload *w;
        double sum = 0, squares = 0;
        const uint32_t n = 20000;

        (void)state;
        o.requests = n + 1;
        w = make(&o);
        for (uint32_t i = 0; i < n; i++) {
                double gap = sim_workload_session(w, i + 1)->start_s - sim_workload_session(w, i)->start_s;

                assert_true(gap >= 0);
                sum += gap;
                squares += gap * gap;
        }
        /*
         * Mean 1/50 s; the standard deviation of an exponential is its mean. Three standard errors are 2 %.
         */
        assert_true(fabs(sum / n * 50 - 1) < 0.021);
        assert_true(fabs(sqrt(squares / n - (sum / n) * (sum / n)) * 50 - 1) < 0.04);
        sim_workload_free(w);
}

static void zipf_shares(void **state)
{
        struct sim_workload_options o = base;
        uint32_t counts[8] = {0};
        struct sim_workload *w;
        double weights = 0;

        (void)state;
        o.requests = 40000;
        o.zipf = 1;
        w = make(&o);
        for (uint32_t i = 0; i < o.requests; i++)
                counts[sim_workload_session(w, i)->group]++;
        for (uint32_t g = 0; g < 8; g++)
                weights += 1.0 / (g + 1);
        for (uint32_t g = 0; g < 8; g++)
                assert_true(fabs(counts[g] / 40000.0 - 1.0 / (g + 1) / weights) < 0.01);
        sim_workload_free(w);
}

static void turns_carry_the_answers(void **state)
{
        struct sim_workload_options o = base;
        static const char second[] =
                ",{\"role\":\"assistant\",\"content\":\"one \\\"1\\\"\"},{\"role\":\"user\"";
        const struct kvr_slice answers[] = {{"one \"1\"", 7}, {"two", 3}};
        struct sim_workload *w;
        struct sim_buf first, third;
        size_t len;

        (void)state;
        o.kind = SIM_WORKLOAD_MULTI_TURN;
        o.requests = 8; /* of three turns: the last session has two */
        w = make(&o);
        assert_int_equal(sim_workload_session_count(w), 3);
        assert_int_equal(sim_workload_requests(w), 8);
        assert_int_equal(sim_workload_session(w, 2)->turns, 2);
        first = body(w, 0, 0, NULL);
        third = body(w, 0, 2, answers);
        len = (size_t)(strstr(first.data, "\"}],") - first.data) + 2;
        assert_memory_equal(first.data, third.data, len);
        assert_memory_equal(third.data + len, second, strlen(second));
        assert_non_null(strstr(third.data, "{\"role\":\"assistant\",\"content\":\"two\"},"));
        assert_true(sim_workload_turn_s(w, 1, 0) == sim_workload_session(w, 1)->start_s);
        assert_true(sim_workload_turn_s(w, 1, 2) > sim_workload_turn_s(w, 1, 1));
        assert_true(sim_workload_turn_s(w, 1, 1) > sim_workload_turn_s(w, 1, 0));
        sim_buf_fini(&first);
        sim_buf_fini(&third);
        sim_workload_free(w);
}

static void lengths_vary_within_the_spread(void **state)
{
        struct sim_workload_options o = base;
        struct sim_workload *w;
        uint32_t low = UINT32_MAX, high = 0;
        double sum = 0;

        (void)state;
        o.output_tokens = 100;
        o.spread = 0.3;
        w = make(&o);
        for (uint32_t i = 0; i < 1000; i++) {
                uint32_t tokens = sim_workload_output_tokens(w, i, 0);

                low = tokens < low ? tokens : low;
                high = tokens > high ? tokens : high;
                sum += tokens;
        }
        assert_in_range(low, 70, 73);
        assert_in_range(high, 127, 130);
        assert_true(fabs(sum / 1000 - 100) < 2);
        sim_workload_free(w);
}

static void equal_ids_of_a_trace_give_equal_text(void **state)
{
        uint64_t ids[] = {5, 6, 5, 7, 5};
        struct sim_trace_row rows[] = {
                {.time_s = 0, .input_tokens = 6, .output_tokens = 9, .id_count = 2, .first_id = 0},
                {.time_s = 3, .input_tokens = 8, .output_tokens = 0, .id_count = 2, .first_id = 2},
                {.time_s = 4, .input_tokens = 3, .output_tokens = 1, .id_count = 1, .first_id = 4},
        };
        struct sim_trace trace = {.rows = rows, .row_count = 3, .ids = ids, .id_count = 5, .block_tokens = 4};
        struct sim_workload_options o = base;
        struct sim_workload *w;
        struct sim_buf a, b, c;
        const size_t at = strlen("{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"");

        (void)state;
        o.kind = SIM_WORKLOAD_TRACE;
        o.trace = &trace;
        o.output_tokens = 0;
        o.speed = 2;
        w = make(&o);
        assert_int_equal(sim_workload_requests(w), 3);
        assert_true(sim_workload_session(w, 1)->start_s == 1.5);
        assert_int_equal(sim_workload_output_tokens(w, 0, 0), 9);
        assert_int_equal(sim_workload_output_tokens(w, 1, 0), 1); /* engines refuse 0 */
        a = body(w, 0, 0, NULL);
        b = body(w, 1, 0, NULL);
        c = body(w, 2, 0, NULL);
        assert_memory_equal(a.data + at + 24, "\"}]", 3); /* 6 tokens of 4 bytes */
        assert_memory_equal(b.data + at + 32, "\"}]", 3);
        assert_memory_equal(c.data + at + 12, "\"}]", 3);
        assert_memory_equal(a.data + at, b.data + at, 16);
        assert_memory_not_equal(a.data + at + 16, b.data + at + 16, 8);
        assert_memory_equal(a.data + at, c.data + at, 12); /* a part of a block is its beginning */
        sim_buf_fini(&a);
        sim_buf_fini(&b);
        sim_buf_fini(&c);
        sim_workload_free(w);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(equal_seeds_give_equal_requests),
                cmocka_unit_test(bodies_look_so),
                cmocka_unit_test(groups_share_exactly_their_prefix),
                cmocka_unit_test(unique_prompts_share_nothing),
                cmocka_unit_test(arrivals_are_poisson),
                cmocka_unit_test(zipf_shares),
                cmocka_unit_test(turns_carry_the_answers),
                cmocka_unit_test(lengths_vary_within_the_spread),
                cmocka_unit_test(equal_ids_of_a_trace_give_equal_text),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
