/* SPDX-License-Identifier: Apache-2.0 */
/* Logs of engines whose cost model is known: the fit must give it back. */
#include "calibrate.h"
#include "engine.h"
#include "rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define STEP   2048u
#define BLOCK  16u
#define BEGIN  1772359200.0 /* 2026-03-01T10:00:00Z */
#define OUTPUT 40u

static char path[64];

static FILE *open_log(void)
{
        int fd;

        snprintf(path, sizeof(path), "/tmp/kvroute-calibrate-test-XXXXXX");
        fd = mkstemp(path);
        assert_true(fd >= 0);
        return fdopen(fd, "w");
}

struct seen {
        double start_s, first_s, end_s;
        uint32_t prompt, cached, output;
};

static void write_line(FILE *file, const char *replica, const struct seen *seen)
{
        double end_s = BEGIN + seen->end_s;
        time_t whole = (time_t)end_s;
        char stamp[40];
        struct tm tm;

        gmtime_r(&whole, &tm);
        strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
        fprintf(file,
                "{\"time\":\"%s.%03dZ\",\"request_id\":\"r\",\"status\":200,\"end\":\"finished\",\"model\":"
                "\"m\","
                "\"replica\":\"%s\",\"prompt_tokens\":%u,\"completion_tokens\":%u,\"observed_tokens\":%u,"
                "\"stream\":true,\"queue_s\":null,\"ttft_s\":%.6f,\"total_s\":%.6f}\n",
                stamp, (int)((end_s - (double)whole) * 1e3), replica, seen->prompt, seen->output,
                seen->cached, seen->first_s - seen->start_s, seen->end_s - seen->start_s);
}

/* Runs the engine until it is idle; requests' tags are their places in `seen`. */
static void run(struct sim_engine *engine)
{
        struct sim_event event;

        while (sim_engine_next(engine, SIM_NEVER, &event)) {
                struct seen *seen = event.tag;
                double at_s = (double)event.at_ns * 1e-9;

                seen->cached = event.cached_tokens;
                if (event.kind == SIM_EVENT_TOKEN && event.token == 0)
                        seen->first_s = at_s;
                if (event.kind == SIM_EVENT_END)
                        seen->end_s = at_s;
        }
}

static void submit(struct sim_engine *engine, struct seen *seen, double at_s, uint64_t name, uint32_t shared,
                   uint32_t own, uint32_t output)
{
        static uint64_t keys[65536 / BLOCK];
        struct sim_submit submit = {.tag = seen, .keys = keys};
        struct sim_job *job;

        *seen = (struct seen){.start_s = at_s, .prompt = shared + own, .output = output};
        submit.prompt_tokens = seen->prompt;
        submit.output_tokens = output;
        submit.key_count = seen->prompt / BLOCK;
        assert_true(submit.key_count < sizeof(keys) / sizeof(keys[0]));
        for (uint32_t i = 0; i < submit.key_count; i++)
                keys[i] = i < shared / BLOCK ? i + 1 : sim_mix64(name * 100000 + i) | UINT64_C(1) << 40;
        assert_int_equal(sim_engine_submit(engine, (uint64_t)(at_s * 1e9 + 0.5), &submit, &job), KVR_OK);
}

static struct sim_engine *engine_with(const struct sim_cost *cost)
{
        struct sim_engine_options options = {
                .block_tokens = BLOCK,
                .capacity_blocks = 65536,
                .max_running = 256,
                .step_tokens = STEP,
                .cost = *cost,
        };
        struct sim_engine *engine = sim_engine_new(&options);

        assert_non_null(engine);
        return engine;
}

/*
 * `alone` requests one after the other with prompts of many kinds; then `rounds` of answers side by side, of
 * prompts that arrive together: behind their own prompts only decoding is left.
 */
static void write_log(const struct sim_cost *cost, uint32_t alone, uint32_t rounds, uint32_t shared_max,
                      uint32_t own_max)
{
        struct sim_engine *engine = engine_with(cost);
        struct sim_rng rng = sim_rng_for(5, 1, 1);
        FILE *file = open_log();
        struct seen seen[8];
        double at_s = 1;
        uint64_t name = 1;

        for (uint32_t i = 0; i < alone; i++) {
                uint32_t shared = i && sim_rng_below(&rng, 2) ? sim_rng_below(&rng, shared_max + 1) : 0;
                uint32_t own = own_max > 1 ? 20 + sim_rng_below(&rng, own_max) : 500;

                /* The first one leaves what the others share. */
                submit(engine, seen, at_s, name++, i ? shared : shared_max, own, OUTPUT + i % 50);
                run(engine);
                write_line(file, "a", seen);
                at_s = seen->end_s + 0.01;
        }
        for (uint32_t i = 0; i < rounds; i++) {
                uint32_t count = 2 + i % 6;

                for (uint32_t j = 0; j < count; j++)
                        submit(engine, &seen[j], at_s, name++, 0, 100, 150);
                run(engine);
                for (uint32_t j = 0; j < count; j++)
                        write_line(file, "a", &seen[j]);
                at_s = seen[0].end_s + 0.01;
        }
        assert_int_equal(fclose(file), 0);
        sim_engine_free(engine);
}

static bool calibrate(uint32_t step_tokens, struct sim_calibration *ret, char *message)
{
        bool good = sim_calibrate(path, step_tokens, ret, message, 512);

        unlink(path);
        return good;
}

static void assert_within(double found, double wanted, double share)
{
        if (!(fabs(found - wanted) <= share * fabs(wanted)))
                fail_msg("%.9g is not within %g of %.9g", found, share, wanted);
}

static void presets_come_back(void **state)
{
        static const char *const names[] = {"llama3-70b-h100", "llama3-70b-a100"};

        (void)state;
        for (size_t i = 0; i < 2; i++) {
                const struct sim_cost *cost = sim_cost_find(names[i]);
                struct sim_calibration fit;
                char message[512] = "";

                write_log(cost, 150, 60, 20000, 6000);
                if (!calibrate(STEP, &fit, message))
                        fail_msg("%s", message);
                assert_within(fit.cost.a, cost->a, 0.01);
                assert_within(fit.cost.b, cost->b, 0.01);
                assert_within(fit.cost.c, cost->c, 0.01);
                assert_within(fit.cost.d, cost->d, 0.01);
                assert_true(fit.batch);
                assert_within(fit.cost.e, cost->e, 0.01);
                assert_within(fit.cost.f, cost->f, 0.05);
                assert_within(fit.cost.g, cost->g, 0.02);
                assert_true(fit.prompt_error90 < 0.01 && fit.answer_error90 < 0.01);
                assert_true(fit.prompts >= 150 && fit.answers >= 150);
                assert_true(fit.cost.q == 0 && fit.cost.h == 0 && fit.cost.prefill_min == 0);
        }
}

/* Nothing ran side by side: then one more answer costs what it costs within the first. */
static void alone_f_is_part_of_e(void **state)
{
        const struct sim_cost *cost = sim_cost_find("llama3-70b-h100");
        struct sim_calibration fit;
        struct sim_buf buf = {0};
        char message[512] = "";

        (void)state;
        write_log(cost, 100, 0, 20000, 6000);
        assert_true(calibrate(STEP, &fit, message));
        assert_false(fit.batch);
        assert_within(fit.cost.e, cost->e + cost->f, 0.005);
        assert_true(fit.cost.f == 0);
        sim_calibration_text(&fit, "the.log", &buf);
        sim_buf_add(&buf, "", 1);
        assert_non_null(strstr(buf.data, "calibrated from the.log, 100 lines\n"));
        assert_non_null(strstr(buf.data, "no two answers at once"));
        assert_non_null(strstr(buf.data, "--cost a=18.6"));
        sim_buf_fini(&buf);
}

/* A few lines that nothing explains: a replica that was stopped for a while. */
static void what_nothing_explains_is_put_aside(void **state)
{
        const struct sim_cost *cost = sim_cost_find("llama3-70b-h100");
        struct sim_calibration fit;
        char message[512] = "";
        FILE *file;

        (void)state;
        write_log(cost, 150, 0, 20000, 6000);
        file = fopen(path, "a");
        assert_non_null(file);
        for (uint32_t i = 0; i < 8; i++) {
                struct seen seen = {.start_s = 9000 + 100 * i, .prompt = 600, .cached = 0, .output = 20};

                seen.first_s = seen.start_s + 5 + i;
                seen.end_s = seen.first_s + 30;
                write_line(file, "a", &seen);
        }
        fclose(file);
        assert_true(calibrate(STEP, &fit, message));
        assert_within(fit.cost.a, cost->a, 0.02);
        assert_within(fit.cost.b, cost->b, 0.02);
        assert_within(fit.cost.e, cost->e, 0.02);
        assert_true(fit.prompts == 158);
}

static void expect_refusal(const char *what)
{
        struct sim_calibration fit;
        char message[512] = "";

        assert_false(calibrate(STEP, &fit, message));
        assert_memory_equal(message, path, strlen(path));
        if (!strstr(message, what))
                fail_msg("%s", message);
}

static void too_little_spread_is_refused(void **state)
{
        const struct sim_cost *cost = sim_cost_find("llama3-70b-h100");

        (void)state;
        write_log(cost, 19, 0, 20000, 6000);
        expect_refusal(
                ": too little to calibrate with: of 19 requests 19 are streamed prompts with a known number "
                "of cached tokens beside which their replica did nothing else; 20 are needed");
        write_log(cost, 60, 0, 20000, 1); /* but for the first all compute 500 tokens */
        expect_refusal("cached and computed tokens do not differ independently");
        write_log(cost, 60, 0, 0, 1);
        expect_refusal(
                "how many tokens engines had to compute differs too little, so that the time of a step and "
                "of a token (a, b) cannot be told apart");
        write_log(cost, 60, 0, 0, 1500);
        expect_refusal("how many tokens were cached differs too little");
}

static void bad_logs_are_named(void **state)
{
        struct sim_calibration fit;
        char message[512] = "";

        (void)state;
        assert_false(sim_calibrate("/nonexistent", STEP, &fit, message, sizeof(message)));
        assert_string_equal(message, "/nonexistent: cannot open the file");
        write_log(sim_cost_find("llama3-70b-h100"), 3, 0, 100, 100);
        FILE *file = fopen(path, "a");
        fputs("{}\n", file);
        fclose(file);
        expect_refusal(":4: not a line of an access log");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(presets_come_back),
                cmocka_unit_test(alone_f_is_part_of_e),
                cmocka_unit_test(what_nothing_explains_is_put_aside),
                cmocka_unit_test(too_little_spread_is_refused),
                cmocka_unit_test(bad_logs_are_named),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
