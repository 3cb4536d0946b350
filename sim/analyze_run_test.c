/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* cmocka compares floats only. */
#define assert_near(a, b, within) assert_true(fabs((a) - (b)) <= (within))

#define REPLICAS 8u
#define CAPACITY 400u

struct fixture {
        struct sim_trace trace;
        struct sim_replay *replay;
};

static void load(struct fixture *fixture, const char *path)
{
        struct sim_trace_options how = {0};
        char message[256];

        if (!sim_trace_read(path, &how, &fixture->trace, message, sizeof(message)))
                fail_msg("%s", message);
        fixture->replay = sim_replay_new(&fixture->trace);
        assert_non_null(fixture->replay);
}

static void unload(struct fixture *fixture)
{
        sim_replay_free(fixture->replay);
        sim_trace_fini(&fixture->trace);
}

static struct sim_rung_options options(const char *brain, enum sim_replay_policy rule)
{
        return (struct sim_rung_options){
                .brain = brain,
                .rule = rule,
                .replicas = REPLICAS,
                .capacity_blocks = CAPACITY,
                .load = 1,
                .speed = 1,
                .cost = sim_cost_preset(0),
        };
}

static struct sim_rung_result run(const struct fixture *fixture, const struct sim_rung_options *how,
                                  double *ret_share)
{
        struct sim_rung_result result;
        char message[256];

        if (!sim_rung_run(fixture->replay, how, ret_share, &result, message, sizeof(message)))
                fail_msg("%s", message);
        return result;
}

/* The queue here and the one of the reference model are the same, to the last digit. */
static void rules_are_those_of_the_reference_model(void **state)
{
        static const enum sim_replay_policy rules[] = {SIM_REPLAY_RR,    SIM_REPLAY_LL,    SIM_REPLAY_HASH2,
                                                       SIM_REPLAY_CHWBL, SIM_REPLAY_LPM50, SIM_REPLAY_COST_T};
        static const char *const names[] = {"conversation", "synthetic", "agents"};

        (void)state;
        for (unsigned file = 0; file < 3; file++) {
                struct fixture fixture;
                char path[512];

                snprintf(path, sizeof(path), "%s/traces/%s.jsonl.gz", TEST_DATA, names[file]);
                load(&fixture, path);
                for (unsigned i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
                        struct sim_rung_options how = options(NULL, rules[i]);
                        struct sim_replay_options same = {
                                .policy = rules[i],
                                .replicas = REPLICAS,
                                .capacity_blocks = CAPACITY,
                                .load = 1,
                        };
                        struct sim_rung_result result = run(&fixture, &how, NULL);
                        struct sim_replay_result wanted, at_capacity;
                        _Atomic uint64_t progress = 0;
                        double speed, wanted_speed;
                        bool open;
                        char message[256];

                        assert_true(sim_replay_run(fixture.replay, &same, &wanted));
                        assert_near(result.block_hit, wanted.block_hit, 0);
                        assert_near(result.token_hit, wanted.token_hit, 0);
                        assert_near(result.request_hit, wanted.request_hit, 0);
                        assert_near(result.ttft_mean, wanted.ttft_mean, 0);
                        assert_near(result.ttft_p50, wanted.ttft_p50, 0);
                        assert_near(result.ttft_p90, wanted.ttft_p90, 0);
                        assert_near(result.ttft_p99, wanted.ttft_p99, 0);
                        assert_near(result.work.max_over_mean, wanted.work_max_over_mean, 0);
                        assert_near(result.work.cv, wanted.work_cv, 0);
                        assert_near(result.work.hot_p95, wanted.hot_p95, 0);
                        assert_near(result.requests.max_over_mean, wanted.request_max_over_mean, 0);
                        assert_near(result.busy_max, wanted.busy_max, 1e-12);
                        assert_true(sim_rung_capacity(fixture.replay, &how, 20, &progress, &speed, &open,
                                                      message, sizeof(message)));
                        assert_true(
                                sim_replay_capacity(fixture.replay, &same, 20, &wanted_speed, &at_capacity));
                        assert_near(speed, wanted_speed, 0);
                        /* The highest that nine bisections can try. */
                        assert_true(open == (speed * 1.01 > SIM_RUNG_LOAD_MAX));
                        assert_int_equal(atomic_load(&progress), SIM_RUNG_CAPACITY_RUNS);
                }
                unload(&fixture);
        }
}

/*
 * A hit of the first p tokens takes b p + d p n milliseconds off a prompt of n, with the Preble form's b and
 * d.
 */
static void hits_are_priced_by_the_preset(void **state)
{
        struct sim_trace_row rows[] = {
                {.time_s = 0, .input_tokens = 2048, .id_count = 4, .first_id = 0},
                {.time_s = 1000, .input_tokens = 2048, .id_count = 4, .first_id = 4},
        };
        uint64_t ids[] = {1, 2, 3, 4, 1, 2, 3, 5};
        struct fixture fixture = {
                .trace = {.rows = rows, .row_count = 2, .ids = ids, .id_count = 8, .block_tokens = 512}};
        const struct sim_cost *cost = sim_cost_preset(0);
        struct sim_rung_options how = options(NULL, SIM_REPLAY_LPM50);
        struct sim_rung_result result;
        double none_ms = cost->a + (cost->b + cost->c) * 2048 + cost->d * 2048 * 2048;
        double share[REPLICAS];

        (void)state;
        fixture.replay = sim_replay_new(&fixture.trace);
        assert_non_null(fixture.replay);
        result = run(&fixture, &how, share);
        assert_near(result.none_s, 2 * none_ms / 1e3, 1e-9);
        assert_near(result.saved_s, (cost->b * 1536 + cost->d * 1536 * 2048) / 1e3, 1e-9);
        assert_near(sim_rung_work_s(&fixture.trace, cost), result.none_s, 1e-9);
        assert_near(result.hit_tokens, 1536, 0);
        assert_near(result.waited, 0.5, 0); /* the first takes 4000 s, see below */
        assert_near(share[0], 1, 1e-12);
        assert_near(result.work.jain, 1.0 / REPLICAS, 1e-12);
        /* 8 blocks of work in 1000 s over 8 replicas: 512 tokens take a replica 1000 s. */
        assert_near(result.own_p90, 4000, 1e-6);
        sim_replay_free(fixture.replay);
}

static void the_brain_decides_too(void **state)
{
        struct fixture fixture;
        struct sim_rung_options how = options("kv", SIM_REPLAY_POLICIES);
        struct sim_rung_options turns = options(NULL, SIM_REPLAY_RR);
        struct sim_rung_result first, again, blind;
        double share[REPLICAS], sum = 0;

        (void)state;
        load(&fixture, "synthetic:requests=4000,groups=24,prefix=4096,turns=2,rate=20");
        how.capacity_blocks = turns.capacity_blocks = 1000;
        first = run(&fixture, &how, share);
        again = run(&fixture, &how, NULL);
        blind = run(&fixture, &turns, NULL);
        assert_near(first.token_hit, again.token_hit, 0);
        assert_near(first.saved_s, again.saved_s, 0);
        assert_near(first.ttft_mean, again.ttft_mean, 0);
        assert_near(first.ttft_p99, again.ttft_p99, 0);
        assert_near(first.work.cv, again.work.cv, 0);
        assert_near(first.predicted_off, again.predicted_off, 0);
        /*
         * Twenty-four prefixes of 64 blocks fit the fleet when each is in one place, and no replica holds
         * half.
         */
        assert_true(first.token_hit > 0.9);
        assert_true(blind.token_hit < first.token_hit - 0.2);
        assert_true(first.ttft_p90 < blind.ttft_p90);
        assert_true(first.work.max_over_mean < 1.2);
        assert_true(first.state_bytes > 0);
        assert_true(first.predicted_off < 0.02);
        for (unsigned i = 0; i < REPLICAS; i++)
                sum += share[i];
        assert_near(sum, 1, 1e-9);
        unload(&fixture);
}

static void a_run_ends_early_exactly_when_it_is_over(void **state)
{
        struct fixture fixture;

        (void)state;
        load(&fixture, TEST_DATA "/traces/conversation.jsonl.gz");
        for (unsigned i = 0; i < 2; i++) {
                struct sim_rung_options how =
                        options(i ? "kv" : NULL, i ? SIM_REPLAY_POLICIES : SIM_REPLAY_LL);
                double p90 = run(&fixture, &how, NULL).ttft_p90;

                how.ttft_limit_s = p90;
                assert_false(run(&fixture, &how, NULL).over);
                how.ttft_limit_s = p90 * (1 - 1e-9);
                assert_true(run(&fixture, &how, NULL).over);
        }
        unload(&fixture);
}

static void a_policy_that_does_not_exist_is_told(void **state)
{
        struct fixture fixture;
        struct sim_rung_options how = options("no_such", SIM_REPLAY_POLICIES);
        struct sim_rung_result result;
        char message[256] = "";

        (void)state;
        load(&fixture, TEST_DATA "/traces/lengths.csv.gz");
        assert_false(sim_rung_run(fixture.replay, &how, NULL, &result, message, sizeof(message)));
        assert_non_null(strstr(message, "no_such"));
        unload(&fixture);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(rules_are_those_of_the_reference_model),
                cmocka_unit_test(hits_are_priced_by_the_preset),
                cmocka_unit_test(the_brain_decides_too),
                cmocka_unit_test(a_run_ends_early_exactly_when_it_is_over),
                cmocka_unit_test(a_policy_that_does_not_exist_is_told),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
