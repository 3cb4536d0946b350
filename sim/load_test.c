/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load generator against a mock engine on the same loop: what it reports must be what the engine counted.
 */
#include "load.h"
#include "mock.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <yyjson.h>

#include <cmocka.h>

struct fixture {
        struct net_loop loop;
        struct sockaddr_storage addr;
        struct sim_mock *mock;
        bool mock_closed, load_done;
        uint32_t progress;
        struct sim_result result;
};

static int setup(void **state)
{
        struct fixture *f = calloc(1, sizeof(*f));
        struct sim_mock_options options;
        int error = 0;

        if (!f || net_loop_init(&f->loop) || net_resolve("127.0.0.1", 0, &f->addr))
                return -1;
        sim_mock_defaults(&options);
        options.speed = 1000;
        f->mock = sim_mock_new(&f->loop, &f->addr, &options, &error);
        *state = f;
        return f->mock ? 0 : -1;
}

static void on_closed(void *ctx)
{
        ((struct fixture *)ctx)->mock_closed = true;
}

static int teardown(void **state)
{
        struct fixture *f = *state;

        sim_result_fini(&f->result);
        sim_mock_close(f->mock, on_closed, f);
        while (!f->mock_closed)
                uv_run(&f->loop.uv, UV_RUN_ONCE);
        net_loop_fini(&f->loop);
        assert_int_equal(f->loop.conn_count, 0);
        free(f);
        return 0;
}

static void on_progress(void *ctx, uint32_t done, uint32_t total)
{
        struct fixture *f = ctx;

        assert_true(done <= total);
        f->progress = done;
}

static void on_done(void *ctx)
{
        struct fixture *f = ctx;

        assert_false(f->load_done);
        f->load_done = true;
}

static const struct sim_workload_options base = {
        .kind = SIM_WORKLOAD_MULTI_TURN,
        .requests = 60,
        .groups = 2,
        .prefix_tokens = 64,
        .question_tokens = 8,
        .output_tokens = 16,
        .turns = 3,
        .turn_gap_s = 0.005,
        .seed = 5,
        .speed = 1,
        .model = "mock",
        .stream = true,
};

/* Runs a load to its end, or stops it once `stop_after` requests have ended. */
static struct sim_result *run(struct fixture *f, const struct sim_workload_options *wo, uint32_t concurrency,
                              uint32_t stop_after)
{
        struct sim_workload *workload = sim_workload_new(wo);
        struct sim_load_options options = {
                .loop = &f->loop,
                .workload = workload,
                .addr = f->addr,
                .host = "mock",
                .target = "/v1/chat/completions",
                .concurrency = concurrency,
                .timeout_ms = 20000,
                .time_scale = 1,
                .on_progress = on_progress,
                .on_done = on_done,
                .ctx = f,
        };
        struct sim_load *load;

        assert_non_null(workload);
        load = sim_load_start(&options);
        assert_non_null(load);
        while (!f->load_done && (!stop_after || f->progress < stop_after)) {
                uv_run(&f->loop.uv, UV_RUN_ONCE);
                if (concurrency)
                        assert_true(sim_load_in_flight(load) <= concurrency);
        }
        if (stop_after)
                sim_load_stop(load);
        assert_true(f->load_done);
        f->result = *sim_load_result(load);
        *sim_load_result(load) = (struct sim_result){0};
        sim_load_free(load);
        sim_workload_free(workload);
        return &f->result;
}

static void on_get_done(void *ctx, enum net_request_error error, unsigned status, struct kvr_slice body)
{
        struct sim_buf *buf = ctx;

        assert_int_equal(error, NET_REQUEST_OK);
        assert_int_equal(status, 200);
        sim_buf_add(buf, body.data, body.len);
}

/* A sum that the engine kept. */
static uint64_t engine_sum(struct fixture *f, const char *name)
{
        struct net_client *client = net_client_new(&f->loop, 0, 0);
        struct sim_buf buf = {0};
        struct net_request_spec spec = {
                .addr = (struct sockaddr *)&f->addr,
                .host = "mock",
                .method = "GET",
                .target = "/mock/requests",
                .body_bytes_max = 1 << 22,
                .on_done = on_get_done,
                .ctx = &buf,
        };
        yyjson_doc *doc;
        uint64_t value;

        assert_non_null(client);
        assert_non_null(net_request_send(client, &spec));
        while (buf.len == 0)
                uv_run(&f->loop.uv, UV_RUN_ONCE);
        doc = yyjson_read(buf.data, buf.len, 0);
        value = yyjson_get_uint(yyjson_obj_get(yyjson_doc_get_root(doc), name));
        yyjson_doc_free(doc);
        sim_buf_fini(&buf);
        net_client_free(client);
        return value;
}

static void expect_engine_agrees(struct fixture *f, const struct sim_result *r)
{
        assert_int_equal(r->requests, engine_sum(f, "requests"));
        assert_int_equal(r->prompt_tokens, engine_sum(f, "prompt_tokens"));
        assert_int_equal(r->observed_cached_tokens, engine_sum(f, "cached_tokens"));
        assert_int_equal(r->completion_tokens, engine_sum(f, "output_tokens"));
}

static void a_closed_loop_of_one_has_computable_hits(void **state)
{
        struct fixture *f = *state;
        struct sim_workload_options wo = base;
        struct sim_result *r;
        uint64_t prompt = 0, cached = 0;

        wo.requests = 3; /* one session of three turns */
        r = run(f, &wo, 1, 0);
        /* Turn k: 1 + (1 + 64 + 1) + k * (1 + 8 + 1 + 1 + 16 + 1) + (1 + 8 + 1) + 1 tokens. */
        for (uint64_t k = 0; k < 3; k++)
                prompt += 78 + 28 * k;
        /* The next turn finds what was computed of the one before: prompt and answer less its last token,
         * whole blocks. */
        for (uint64_t k = 1; k < 3; k++)
                cached += (78 + 28 * (k - 1) + 16 - 1) / 16 * 16;
        assert_int_equal(r->requests, 3);
        assert_int_equal(r->errors, 0);
        assert_int_equal(r->prompt_tokens, prompt);
        assert_int_equal(r->observed_cached_tokens, cached);
        assert_int_equal(r->completion_tokens, 48);
        assert_int_equal(r->ttft.seen, 3);
        assert_int_equal(r->itl.seen, 45);
        assert_int_equal(r->late.seen, 0);
        assert_true(r->trend.width_s <=
                    0); /* a load that waits for its server has no queue that could grow */
        expect_engine_agrees(f, r);
}

static void many_users_are_counted_right(void **state)
{
        struct fixture *f = *state;
        struct sim_result *r = run(f, &base, 7, 0);

        assert_int_equal(r->requests, 60);
        assert_int_equal(r->errors + r->rejected, 0);
        assert_int_equal(f->progress, 60);
        assert_int_equal(r->e2e.seen, 60);
        assert_true(r->observed_cached_tokens > 0);
        assert_true(isnan(sim_result_max_over_mean(r, 0))); /* no router told a replica */
        expect_engine_agrees(f, r);
}

static void open_loop_sends_all_turns(void **state)
{
        struct fixture *f = *state;
        struct sim_workload_options wo = base;
        struct sim_result *r;

        wo.rate = 2000;
        r = run(f, &wo, 0, 0);
        assert_int_equal(r->requests, 60);
        assert_int_equal(r->errors, 0);
        assert_int_equal(r->late.seen, 60);
        assert_true(sim_samples_percentile(&r->late, 0) >= 0);
        assert_true(r->duration_s > 0);
        expect_engine_agrees(f, r);
}

/* Coordinated omission: an engine that stands still for 100 ms delays every request that was meant for that
 * time. */
static void latency_counts_from_the_intended_time(void **state)
{
        struct fixture *f = *state;
        struct sim_workload_options wo = base;
        struct sim_fault fault;
        struct sim_result *r;

        wo.kind = SIM_WORKLOAD_UNIQUE;
        wo.rate = 1000; /* 60 requests within some 60 ms */
        sim_fault_init(&fault);
        fault.delay_head_ms = 100;
        sim_mock_set_fault(f->mock, &fault);
        r = run(f, &wo, 0, 0);
        assert_int_equal(r->errors, 0);
        assert_true(sim_samples_percentile(&r->ttft, 0) >= 0.09);
        assert_true(r->trend.width_s > 0);
        /* The same in a closed loop of one waits for each answer, so that one by one they take 60 times as
         * long. */
        assert_true(r->duration_s < 3);
}

/* Every first session's latency is in the trend, at the time it was meant to begin. What it says is trend_test's. */
static void first_tokens_make_a_trend(void **state)
{
        struct fixture *f = *state;
        struct sim_workload_options wo = base;
        struct sim_growth growth;
        struct sim_result *r;
        uint64_t counted = 0;

        wo.kind = SIM_WORKLOAD_UNIQUE;
        wo.requests = 300;
        wo.rate = 1000;
        r = run(f, &wo, 0, 0);
        assert_int_equal(r->errors, 0);
        for (size_t i = 0; i < SIM_TREND_BINS; i++)
                counted += r->trend.count[i];
        assert_int_equal(counted, 300);
        assert_true(sim_result_growth(r, &growth));
        assert_true(growth.to_s > 0.2 && growth.mean > 0);
}

static void failures_are_sorted(void **state)
{
        struct fixture *f = *state;
        struct sim_workload_options wo = base;
        struct sim_fault fault;
        struct sim_result *r;

        wo.kind = SIM_WORKLOAD_SHARED_PREFIX;
        sim_fault_init(&fault);
        fault.status = 503;
        fault.skip = 10;
        fault.count = 20;
        sim_mock_set_fault(f->mock, &fault);
        r = run(f, &wo, 1, 0);
        assert_int_equal(r->requests, 60);
        assert_int_equal(r->rejected, 20);
        assert_int_equal(r->errors, 0);
        assert_int_equal(r->e2e.seen, 40);
        assert_memory_equal(r->first_error, "status 503: {\"error\"", 20);
}

static void a_failed_turn_ends_its_session(void **state)
{
        struct fixture *f = *state;
        struct sim_workload_options wo = base;
        struct sim_fault fault;
        struct sim_result *r;

        sim_fault_init(&fault);
        fault.cut = SIM_CUT_RESET;
        fault.cut_at = SIM_CUT_AT_TOKENS;
        fault.cut_after_tokens = 3;
        fault.count = 1;
        sim_mock_set_fault(f->mock, &fault);
        r = run(f, &wo, 1, 0);
        assert_int_equal(r->requests, 58); /* the first of three turns failed, two were never sent */
        assert_int_equal(r->errors, 1);
        assert_string_equal(r->first_error, "connection closed before the answer ended, after the head");
}

static void a_stopped_load_keeps_what_it_has(void **state)
{
        struct fixture *f = *state;
        struct sim_result *r = run(f, &base, 4, 20);

        assert_in_range(r->requests, 20, 30);
        assert_int_equal(r->errors, 0);
}

static void without_streams_there_is_no_first_token(void **state)
{
        struct fixture *f = *state;
        struct sim_workload_options wo = base;
        struct sim_result *r;

        wo.stream = false;
        r = run(f, &wo, 4, 0);
        assert_int_equal(r->requests, 60);
        assert_int_equal(r->errors, 0);
        assert_int_equal(r->ttft.seen, 0);
        assert_int_equal(r->e2e.seen, 60);
        expect_engine_agrees(f, r);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(a_closed_loop_of_one_has_computable_hits, setup, teardown),
                cmocka_unit_test_setup_teardown(many_users_are_counted_right, setup, teardown),
                cmocka_unit_test_setup_teardown(open_loop_sends_all_turns, setup, teardown),
                cmocka_unit_test_setup_teardown(latency_counts_from_the_intended_time, setup, teardown),
                cmocka_unit_test_setup_teardown(first_tokens_make_a_trend, setup, teardown),
                cmocka_unit_test_setup_teardown(failures_are_sorted, setup, teardown),
                cmocka_unit_test_setup_teardown(a_failed_turn_ends_its_session, setup, teardown),
                cmocka_unit_test_setup_teardown(a_stopped_load_keeps_what_it_has, setup, teardown),
                cmocka_unit_test_setup_teardown(without_streams_there_is_no_first_token, setup, teardown),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
