/* SPDX-License-Identifier: Apache-2.0 */
/* The rule by hand, and the library against it, in the reference model. */
#include "replay.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define assert_near(a, b, within) assert_true(fabs((a) - (b)) <= (within))

#define BLOCK 512u
#define ROWS  160u
#define IDS   1024u

struct made {
        struct sim_trace_row rows[ROWS];
        uint64_t ids[IDS];
        struct sim_trace trace;
};

static void begin(struct made *made)
{
        *made = (struct made){.trace = {.block_tokens = BLOCK}};
        made->trace.rows = made->rows;
        made->trace.ids = made->ids;
}

/* A prompt of `count` blocks that begin with id `first`. */
static void add(struct made *made, double time_s, uint64_t first, uint32_t count)
{
        struct sim_trace *trace = &made->trace;

        assert_true(trace->row_count < ROWS && trace->id_count + count <= IDS);
        made->rows[trace->row_count++] = (struct sim_trace_row){
                .time_s = time_s,
                .input_tokens = count * BLOCK,
                .output_tokens = 1,
                .id_count = count,
                .first_id = trace->id_count,
        };
        for (uint32_t i = 0; i < count; i++)
                made->ids[trace->id_count++] = first + i;
}

static struct sim_replay_result replay(const struct sim_trace *trace, struct sim_replay_options options)
{
        struct sim_replay *made = sim_replay_new(trace);
        struct sim_replay_result result;

        assert_non_null(made);
        assert_true(sim_replay_run(made, &options, &result));
        sim_replay_free(made);
        return result;
}

/*
 * A second per block. The first replica holds a prompt of four blocks and is busy for another 5.5 s, the second
 * is idle: waiting costs 5.5 s, computing anew 4 s, and 1.66 s more that it costs the one who waits.
 */
static void the_toll_is_what_others_pay(void **state)
{
        struct made made;
        struct sim_replay_options options = {.replicas = 2, .capacity_blocks = 100, .load = 1};

        (void)state;
        begin(&made);
        add(&made, 0, 100, 4);
        add(&made, 4, 200, 5);     /* to the second, with less work lately */
        add(&made, 9.001, 300, 6); /* to the first */
        add(&made, 9.5, 100, 4);
        add(&made, 20, 400, 40 - 4 - 5 - 6 - 4); /* 40 blocks in 20 s on two replicas */
        options.policy = SIM_REPLAY_COST_T_WORK;
        struct sim_replay_result myopic = replay(&made.trace, options);

        assert_near(myopic.rate, BLOCK, 1e-9);
        assert_near(myopic.block_hit, 0, 1e-12);
        options.policy = SIM_REPLAY_TOLL;
        assert_near(replay(&made.trace, options).block_hit, 4.0 / 40, 1e-12);
        options.policy = SIM_REPLAY_KV;
        assert_near(replay(&made.trace, options).block_hit, 4.0 / 40, 1e-12);
}

static void ties_go_to_the_least_recent_work(void **state)
{
        struct made made;
        struct sim_replay_options options = {
                .policy = SIM_REPLAY_TOLL, .replicas = 4, .capacity_blocks = 100, .load = 0.1};

        (void)state;
        begin(&made);
        for (uint32_t i = 0; i < 32; i++)
                add(&made, i * 5.0, i * 10, 2);
        assert_near(replay(&made.trace, options).request_max_over_mean, 1, 1e-12);
        options.policy = SIM_REPLAY_LL;
        assert_near(replay(&made.trace, options).request_max_over_mean, 4, 1e-12);
        options.policy = SIM_REPLAY_COST_T_WORK;
        assert_near(replay(&made.trace, options).request_max_over_mean, 1, 1e-12);
}

/* A prefix of all is copied everywhere, one prompt at a time, as soon as four have parted behind it. */
static void a_shared_beginning_gets_its_copies(void **state)
{
        struct made made;
        struct sim_replay_options options = {
                .policy = SIM_REPLAY_TOLL, .replicas = 4, .capacity_blocks = 100, .load = 0.05};

        (void)state;
        begin(&made);
        for (uint32_t i = 0; i < 160; i++) {
                add(&made, i * 10.0, 1, 6);
                /* The last block is its own. */
                made.ids[made.trace.id_count - 1] = 1000 + i;
        }
        struct sim_replay_result toll = replay(&made.trace, options);

        assert_true(toll.request_max_over_mean < 1.4);
        assert_near(toll.block_hit * 960, 160 * 5 - 4 * 5, 1e-6); /* each replica computes it once */
        options.policy = SIM_REPLAY_COST_T_WORK;
        assert_near(replay(&made.trace, options).request_max_over_mean, 4, 1e-12);
}

static void made_up(struct sim_trace *ret)
{
        struct sim_trace_options options = {0};
        char message[256];

        if (!sim_trace_read("synthetic:requests=6000,groups=40,zipf=1,prefix=1024,turns=6,gap=5,question=256",
                            &options, ret, message, sizeof(message)))
                fail_msg("%s", message);
}

static void the_library_does_as_the_rule(void **state)
{
        struct sim_trace trace;
        struct sim_replay_options options = {.replicas = 8, .capacity_blocks = 4000, .load = 2};

        (void)state;
        made_up(&trace);
        options.policy = SIM_REPLAY_TOLL;
        struct sim_replay_result toll = replay(&trace, options);

        options.policy = SIM_REPLAY_KV;
        struct sim_replay_result kv = replay(&trace, options);

        assert_near(kv.ttft_mean / toll.ttft_mean, 1, 0.05);
        assert_near(kv.token_hit / toll.token_hit, 1, 0.05);
        options.policy = SIM_REPLAY_LL;
        assert_true(replay(&trace, options).ttft_mean > 1.2 * kv.ttft_mean);
        sim_trace_fini(&trace);
}

static void equal_runs_are_equal(void **state)
{
        struct sim_trace trace;
        struct sim_replay_options options = {.policy = SIM_REPLAY_KV,
                                             .replicas = 5,
                                             .capacity_blocks = 500,
                                             .load = 1.5,
                                             .routers = 3,
                                             .report_s = 1};

        (void)state;
        made_up(&trace);
        struct sim_replay_result a = replay(&trace, options), b = replay(&trace, options);

        assert_true(a.ttft_mean == b.ttft_mean && a.block_hit == b.block_hit && a.ttft_p99 == b.ttft_p99);
        options.routers = 1;
        assert_true(replay(&trace, options).ttft_mean < a.ttft_mean);
        sim_trace_fini(&trace);
}

/* Rule 5 does nothing where caches hold what comes again, and helps where they are far too small. */
static void starved_caches_are_counted_in_requests(void **state)
{
        struct sim_trace trace;
        struct sim_trace_options how = {0};
        char message[256];
        struct sim_replay_options options = {.replicas = 4, .capacity_blocks = 4000, .load = 1.3};
        double mean[2][2];

        (void)state;
        if (!sim_trace_read("synthetic:requests=8000,groups=1,prefix=64,turns=30,gap=20,question=512,spread="
                            "0.9,rate=3",
                            &how, &trace, message, sizeof(message)))
                fail_msg("%s", message);
        for (int small = 0; small < 2; small++) {
                options.capacity_blocks = small ? 1200 : 40000;
                for (int count = 0; count < 2; count++) {
                        options.policy = count ? SIM_REPLAY_TOLL_COUNT : SIM_REPLAY_TOLL;
                        mean[small][count] = replay(&trace, options).ttft_mean;
                }
        }
        assert_near(mean[0][1] / mean[0][0], 1, 0.02);
        assert_true(mean[1][1] < 0.95 * mean[1][0]);
        sim_trace_fini(&trace);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_toll_is_what_others_pay),
                cmocka_unit_test(ties_go_to_the_least_recent_work),
                cmocka_unit_test(a_shared_beginning_gets_its_copies),
                cmocka_unit_test(the_library_does_as_the_rule),
                cmocka_unit_test(equal_runs_are_equal),
                cmocka_unit_test(starved_caches_are_counted_in_requests),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
