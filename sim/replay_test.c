/* SPDX-License-Identifier: Apache-2.0 */
#include "replay.h"
#include "replay_figures.h"
#include "rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* cmocka compares floats only. */
#define assert_near(a, b, within) assert_true(fabs((a) - (b)) <= (within))

#define BLOCK 512u

/* ---- traces by hand ----------------------------------------------------------------------------------- */

struct made {
        struct sim_trace_row rows[4096];
        uint64_t ids[65536];
        struct sim_trace trace;
};

static struct made *made_new(void)
{
        struct made *made = calloc(1, sizeof(*made));

        assert_non_null(made);
        made->trace = (struct sim_trace){.rows = made->rows, .ids = made->ids, .block_tokens = BLOCK};
        return made;
}

static void made_add(struct made *made, double time_s, uint32_t input_tokens, const uint64_t *ids,
                     uint32_t count)
{
        struct sim_trace *trace = &made->trace;

        assert_true(trace->row_count < 4096 && trace->id_count + count <= 65536);
        made->rows[trace->row_count++] = (struct sim_trace_row){
                .time_s = time_s,
                .input_tokens = input_tokens,
                .output_tokens = 1,
                .id_count = count,
                .first_id = trace->id_count,
        };
        memcpy(made->ids + trace->id_count, ids, count * sizeof(*ids));
        trace->id_count += count;
}

#define ADD(made, time_s, tokens, ...)                                  \
        made_add(made, time_s, tokens, (const uint64_t[]){__VA_ARGS__}, \
                 sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

static struct sim_replay_result replay_made(struct made *made, struct sim_replay_options options)
{
        struct sim_replay *replay = sim_replay_new(&made->trace);
        struct sim_replay_result result;

        assert_non_null(replay);
        assert_true(sim_replay_run(replay, &options, &result));
        sim_replay_free(replay);
        return result;
}

static void hits_are_counted_in_three_ways(void **state)
{
        struct made *made = made_new();
        struct sim_replay_result result;

        (void)state;
        ADD(made, 0, 1500, 1, 2, 3);
        ADD(made, 1, 1400, 1, 2, 4);
        ADD(made, 2, 1500, 1, 2, 3); /* whole: 1500 of its tokens, not 1536 */
        ADD(made, 3, 100, 9);
        result = replay_made(made, (struct sim_replay_options){.policy = SIM_REPLAY_RR, .replicas = 1});
        assert_near(result.block_hit, 5.0 / 10, 1e-12);
        assert_near(result.token_hit, (1024.0 + 1500) / 4500, 1e-12);
        assert_near(result.request_hit, 2.0 / 4, 1e-12);
        assert_int_equal(result.resident, 5);
        assert_int_equal(result.dropped, 0);
        free(made);
}

static void what_a_block_builds_on_outlives_it(void **state)
{
        struct made *made = made_new();
        struct sim_replay_result result;

        (void)state;
        ADD(made, 0, 3 * BLOCK, 1, 2, 3);
        ADD(made, 1, 2 * BLOCK, 7, 8); /* a cache of 4 drops 3, the tail of the first */
        ADD(made, 2, 3 * BLOCK, 1, 2, 3);
        result = replay_made(made, (struct sim_replay_options){
                                           .policy = SIM_REPLAY_RR, .replicas = 1, .capacity_blocks = 4});
        assert_near(result.block_hit, 2.0 / 8, 1e-12);
        assert_int_equal(result.dropped, 2); /* 3, then 8 */
        assert_int_equal(result.resident, 4);
        free(made);
}

static void a_prompt_larger_than_the_cache_leaves_its_head(void **state)
{
        struct made *made = made_new();
        struct sim_replay_result result;

        (void)state;
        ADD(made, 0, 5 * BLOCK, 1, 2, 3, 4, 5);
        ADD(made, 1, 5 * BLOCK, 1, 2, 3, 4, 5);
        ADD(made, 2, 1 * BLOCK, 6);
        result = replay_made(made, (struct sim_replay_options){
                                           .policy = SIM_REPLAY_RR, .replicas = 1, .capacity_blocks = 3});
        assert_near(result.block_hit, 3.0 / 11, 1e-12);
        assert_int_equal(result.resident, 3);
        free(made);
}

static void the_queue_is_first_come_first_served(void **state)
{
        struct made *made = made_new();
        struct sim_replay_result result;

        (void)state;
        /* 6 blocks in 12 s at load 0.5: they take 6 s. */
        ADD(made, 0, 2 * BLOCK, 1, 2);
        ADD(made, 1, 2 * BLOCK, 3, 4);
        ADD(made, 12, 2 * BLOCK, 1, 2);
        result = replay_made(
                made, (struct sim_replay_options){.policy = SIM_REPLAY_RR, .replicas = 1, .load = 0.5});
        assert_near(result.rate, BLOCK, 1e-9);
        assert_near(result.ttft_mean, (2.0 + 3 + 0) / 3, 1e-9);
        assert_near(result.ttft_p50, 2, 1e-9);
        assert_near(result.ttft_p99, 3, 1e-9);
        assert_near(result.busy_mean, 4.0 / 12, 1e-9);
        free(made);
}

static void hot_spots_are_seen_in_windows(void **state)
{
        struct made *made = made_new();
        struct sim_replay_result result;

        (void)state;
        /* Round robin on two replicas: even in all, but each window of ten seconds has one of them. */
        for (uint32_t i = 0; i < 8; i++)
                ADD(made, i * 10.0 + 5, BLOCK, i);
        result = replay_made(made, (struct sim_replay_options){.policy = SIM_REPLAY_RR, .replicas = 2});
        assert_near(result.work_max_over_mean, 1, 1e-12);
        assert_near(result.hot_p95, 2, 1e-12);
        free(made);
        made = made_new();
        for (uint32_t i = 0; i < 8; i++)
                ADD(made, i * 5.0, BLOCK, i); /* two a window */
        result = replay_made(made, (struct sim_replay_options){.policy = SIM_REPLAY_RR, .replicas = 2});
        assert_near(result.hot_p95, 1, 1e-12);
        free(made);
}

/* ---- against the plainest program --------------------------------------------------------------------- */

/* A cache as a list of (id, time of last use): slow, and nothing like the one under test. */
struct plain_cache {
        uint64_t ids[8192], used[8192];
        uint32_t count;
};

static bool plain_has(const struct plain_cache *cache, uint64_t id)
{
        for (uint32_t i = 0; i < cache->count; i++) {
                if (cache->ids[i] == id)
                        return true;
        }
        return false;
}

static uint32_t plain_match(const struct plain_cache *cache, const uint64_t *ids, uint32_t count)
{
        uint32_t n = 0;

        while (n < count && plain_has(cache, ids[n]))
                n++;
        return n;
}

static void plain_touch(struct plain_cache *cache, const uint64_t *ids, uint32_t count, uint32_t capacity,
                        uint64_t *clock)
{
        for (uint32_t i = count; i-- > 0;) {
                uint32_t at = 0;

                while (at < cache->count && cache->ids[at] != ids[i])
                        at++;
                if (at == cache->count) {
                        assert_true(cache->count < 8192);
                        cache->ids[cache->count++] = ids[i];
                }
                cache->used[at] = ++*clock;
        }
        while (cache->count > capacity) {
                uint32_t oldest = 0;

                for (uint32_t i = 1; i < cache->count; i++) {
                        if (cache->used[i] < cache->used[oldest])
                                oldest = i;
                }
                cache->count--;
                cache->ids[oldest] = cache->ids[cache->count];
                cache->used[oldest] = cache->used[cache->count];
        }
}

/* Block hit of lpm50 or ll as the definitions say it. */
static double plain_run(const struct sim_trace *trace, uint32_t replicas, uint32_t capacity, bool by_match)
{
        struct plain_cache *caches = calloc(replicas, sizeof(*caches));
        uint64_t work[8] = {0}, clock = 0, hits = 0;

        assert_non_null(caches);
        for (uint32_t row = 0; row < trace->row_count; row++) {
                const uint64_t *ids = sim_trace_ids(trace, row);
                uint32_t count = trace->rows[row].id_count, match[8] = {0}, longest = 0, chosen = replicas;

                for (uint32_t i = 0; i < replicas; i++) {
                        match[i] = plain_match(&caches[i], ids, count);
                        longest = match[i] > longest ? match[i] : longest;
                }
                for (uint32_t i = 0; i < replicas; i++) {
                        if (by_match && longest * 2 >= count && match[i] < longest)
                                continue;
                        if (chosen == replicas || work[i] < work[chosen])
                                chosen = i;
                }
                hits += match[chosen];
                work[chosen] += count - match[chosen];
                plain_touch(&caches[chosen], ids, count, capacity, &clock);
        }
        free(caches);
        return (double)hits / (double)trace->id_count;
}

/* Prompts that share beginnings: each is one before, cut somewhere, and something new. */
static void made_random(struct made *made, uint64_t seed)
{
        struct sim_rng rng = sim_rng_for(seed, 1, 1);
        uint64_t next = 1, ids[32];

        for (uint32_t row = 0; row < 1500; row++) {
                uint32_t count = 0, fresh = 1 + sim_rng_below(&rng, 8);

                if (row && sim_rng_below(&rng, 10) < 8) {
                        uint32_t back = 1 + sim_rng_below(&rng, row < 60 ? row : 60);
                        const struct sim_trace_row *from = &made->rows[row - back];

                        count = sim_rng_below(&rng, from->id_count + 1);
                        count = count > 24 ? 24 : count;
                        memcpy(ids, made->ids + from->first_id, count * sizeof(ids[0]));
                }
                for (uint32_t i = 0; i < fresh; i++)
                        ids[count++] = next++ * UINT64_C(0x9e3779b97f4a7c15);
                made_add(made, row, count * BLOCK, ids, count);
        }
}

static void caches_agree_with_a_plain_list(void **state)
{
        static const uint32_t capacities[] = {5, 40, 200, 900};

        (void)state;
        for (uint64_t seed = 1; seed <= 2; seed++) {
                struct made *made = made_new();

                made_random(made, seed);
                for (size_t i = 0; i < sizeof(capacities) / sizeof(capacities[0]); i++) {
                        struct sim_replay_options options = {
                                .policy = SIM_REPLAY_LPM50, .replicas = 3, .capacity_blocks = capacities[i]};
                        struct sim_replay_result lpm50 = replay_made(made, options), ll;

                        options.policy = SIM_REPLAY_LL;
                        ll = replay_made(made, options);
                        assert_near(lpm50.block_hit, plain_run(&made->trace, 3, capacities[i], true), 1e-12);
                        assert_near(ll.block_hit, plain_run(&made->trace, 3, capacities[i], false), 1e-12);
                        assert_true(lpm50.resident <= 3 * (uint64_t)capacities[i]);
                }
                free(made);
        }
}

static void more_than_64_replicas_are_told_apart(void **state)
{
        struct made *made = made_new();
        struct sim_replay_options options = {
                .policy = SIM_REPLAY_RR, .replicas = 100, .capacity_blocks = 100000};
        struct sim_replay_result result;

        (void)state;
        for (uint32_t row = 0; row < 300; row++)
                ADD(made, row, 2 * BLOCK, 1, 2 + row % 100);
        result = replay_made(made, options);
        assert_near(result.block_hit, 2.0 / 3, 1e-12); /* the second and third turn hit */
        assert_int_equal(result.resident, 200);
        options.policy = SIM_REPLAY_LPM;
        result = replay_made(made, options);
        assert_near(result.request_max_over_mean, 100, 1e-9);
        free(made);
}

/* ---- against the figures of another program ------------------------------------------------------------ */

static void close_to(double value, double expected, const char *what, const struct replay_figures *figures)
{
        /* Six digits behind the point were written down. */
        if (fabs(value - expected) > 1e-6 + 1e-7 * fabs(expected))
                fail_msg("%s %s R=%u N=%u load %g: %s is %.7f, not %.7f", figures->trace, figures->policy,
                         figures->replicas, figures->capacity_blocks, figures->load, what, value, expected);
}

static void check_queue(const struct replay_figures *figures, const struct sim_replay *replay,
                        const struct sim_replay_options *options, const struct sim_replay_result *result)
{
        struct sim_replay_result at;
        double speed;

        close_to(result->ttft_mean, figures->ttft_mean, "mean", figures);
        close_to(result->ttft_p50, figures->ttft_p50, "p50", figures);
        close_to(result->ttft_p90, figures->ttft_p90, "p90", figures);
        close_to(result->ttft_p99, figures->ttft_p99, "p99", figures);
        assert_true(sim_replay_capacity(replay, options, 10, &speed, &at));
        close_to(speed, figures->capacity, "capacity", figures);
        assert_true(speed > 0 ? at.ttft_p90 <= 10 : at.ttft_p90 > 10);
}

static void check_figures(const struct replay_figures *figures, const struct sim_replay *replay)
{
        struct sim_replay_options options = {
                .replicas = figures->replicas,
                .capacity_blocks = figures->capacity_blocks,
                .load = figures->load,
        };
        struct sim_replay_result result;

        assert_true(sim_replay_policy_find(figures->policy, &options.policy));
        assert_true(sim_replay_policy_fits(options.policy, figures->load > 0));
        assert_true(sim_replay_run(replay, &options, &result));
        close_to(result.block_hit, figures->block_hit, "block hit", figures);
        close_to(result.request_max_over_mean, figures->request_max_over_mean, "max/mean", figures);
        if (figures->load > 0) {
                check_queue(figures, replay, &options, &result);
                return;
        }
        close_to(result.token_hit, figures->token_hit, "token hit", figures);
        close_to(result.request_hit, figures->request_hit, "request hit", figures);
        close_to(result.work_cv, figures->work_cv, "cv of work", figures);
        close_to((double)result.dropped, (double)figures->dropped, "dropped", figures);
}

static void figures_are_those_of_the_other_program(void **state)
{
        static const char *const names[] = {"conversation", "synthetic", "agents"};
        uint32_t seen = 0;

        (void)state;
        for (size_t i = 0; i < 3; i++) {
                struct sim_trace_options any = {0};
                char path[512], message[512];
                struct sim_replay *replay;
                struct sim_trace trace;

                snprintf(path, sizeof(path), "%s/traces/%s.jsonl.gz", TEST_DATA, names[i]);
                assert_true(sim_trace_read(path, &any, &trace, message, sizeof(message)));
                replay = sim_replay_new(&trace);
                assert_non_null(replay);
                for (size_t at = 0; at < sizeof(replay_figures) / sizeof(replay_figures[0]); at++) {
                        if (strcmp(replay_figures[at].trace, names[i]) != 0)
                                continue;
                        check_figures(&replay_figures[at], replay);
                        seen++;
                }
                sim_replay_free(replay);
                sim_trace_fini(&trace);
        }
        assert_int_equal(seen, sizeof(replay_figures) / sizeof(replay_figures[0]));
}

static void rules_are_found_by_name(void **state)
{
        enum sim_replay_policy policy = SIM_REPLAY_RR;

        (void)state;
        assert_true(sim_replay_policy_find("lmetric", &policy));
        assert_int_equal(policy, SIM_REPLAY_LMETRIC);
        assert_string_equal(sim_replay_policy_name(policy), "lmetric");
        assert_false(sim_replay_policy_fits(policy, false));
        assert_true(sim_replay_policy_fits(policy, true));
        assert_false(sim_replay_policy_find("", &policy));
        assert_false(sim_replay_policy_find("lmetrics", &policy));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(hits_are_counted_in_three_ways),
                cmocka_unit_test(what_a_block_builds_on_outlives_it),
                cmocka_unit_test(a_prompt_larger_than_the_cache_leaves_its_head),
                cmocka_unit_test(the_queue_is_first_come_first_served),
                cmocka_unit_test(hot_spots_are_seen_in_windows),
                cmocka_unit_test(caches_agree_with_a_plain_list),
                cmocka_unit_test(more_than_64_replicas_are_told_apart),
                cmocka_unit_test(figures_are_those_of_the_other_program),
                cmocka_unit_test(rules_are_found_by_name),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
