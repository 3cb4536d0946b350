/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze_account.h"

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

struct made {
        struct sim_trace_row rows[16];
        uint64_t ids[64];
        struct sim_trace trace;
};

static void add(struct made *made, double time_s, uint32_t tokens, uint32_t session, const uint64_t *ids,
                uint32_t count)
{
        struct sim_trace *trace = &made->trace;

        assert_true(trace->row_count < 16 && trace->id_count + count <= 64);
        made->rows[trace->row_count++] = (struct sim_trace_row){
                .time_s = time_s,
                .input_tokens = tokens,
                .output_tokens = 10,
                .id_count = count,
                .session = session,
                .first_id = trace->id_count,
        };
        memcpy(made->ids + trace->id_count, ids, count * sizeof(*ids));
        trace->id_count += count;
        trace->session_count = session > trace->session_count ? session : trace->session_count;
}

#define ADD(made, time_s, tokens, session, ...)                             \
        add(made, time_s, tokens, session, (const uint64_t[]){__VA_ARGS__}, \
            sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

static void made_init(struct made *made)
{
        *made = (struct made){0};
        made->trace = (struct sim_trace){.rows = made->rows, .ids = made->ids, .block_tokens = BLOCK};
}

static struct sim_account account_of(const struct sim_trace *trace)
{
        struct sim_replay *replay = sim_replay_new(trace);
        struct sim_account account;

        assert_non_null(replay);
        assert_true(sim_account_make(replay, &account));
        sim_replay_free(replay);
        return account;
}

static void read_trace(const char *name, uint32_t block_tokens, struct sim_trace *ret)
{
        struct sim_trace_options how = {.block_tokens = block_tokens};
        char path[512], message[256];

        snprintf(path, sizeof(path), "%s%s", strchr(name, ':') ? "" : TEST_DATA "/traces/", name);
        if (!sim_trace_read(path, &how, ret, message, sizeof(message)))
                fail_msg("%s", message);
}

static void a_trace_by_hand(void **state)
{
        struct made made;
        struct sim_account account;

        (void)state;
        made_init(&made);
        ADD(&made, 0, 1500, 1, 1, 2, 3);
        ADD(&made, 2, 1000, 2, 7, 8);
        ADD(&made, 5, 1200, 1, 1, 2,
            4); /* 1 and 2 of its own session, 1024 tokens; 4 and 5 distinct blocks ago */
        ADD(&made, 9, 1500, 2, 1, 2,
            3); /* of the other's: 1 and 2 at distance 1 and 2, 3 of 476 tokens at 6 */
        ADD(&made, 10, 300, 3, 9);
        account = account_of(&made.trace);
        assert_near(account.requests, 5, 0);
        assert_near(account.sessions, 3, 0);
        assert_near(account.span_s, 10, 0);
        assert_near(account.prompt_tokens, 5500, 0);
        assert_near(account.blocks, 12, 0);
        assert_near(account.distinct_blocks, 7, 0);
        assert_near(account.matched_tokens, 1024 + 1500, 0);
        assert_near(account.matched_blocks, 5, 0);
        assert_near(account.matched_requests, 2, 0);
        assert_near(account.in_session_tokens, 1024, 0);
        assert_near(account.session_hit, (1024.0 / 2700 + 1500.0 / 2500 + 0) / 3, 1e-12);
        assert_near(account.cross_session_tokens, 1500, 0);
        /* Of 5 sorted values (0, 0, 0, 1024, 1500) the p-th is number floor(5 p). */
        assert_near(account.matched_p50, 0, 0);
        assert_near(account.matched_p75, 1024, 0);
        assert_near(account.matched_p90, 1500, 0);
        assert_near(account.prefix_bins[0], 3, 0);
        assert_near(account.prefix_bins[11], 2, 0); /* 1024 up to below 2048 */
        assert_near(account.gap_bins[3], 4, 0);     /* 4 and 5 s: 4 up to below 8 */
        assert_near(account.gap_bins[4], 1, 0);     /* 9 s */
        assert_near(account.gap_p50_s, 5, 0);
        assert_near(account.top_share[0], 2.0 / 5, 1e-12);
        assert_near(account.top_share[1], 1, 1e-12);
        assert_true(isnan(account.zipf));
        /* The curve, worked out with pencil and paper: see the distances above. */
        assert_near(account.curve_tokens[0], 0, 0);
        assert_near(account.curve_tokens[1], 512, 0);
        assert_near(account.curve_tokens[2], 1024, 0);
        assert_near(account.curve_tokens[3], 1536, 0);
        assert_near(account.curve_tokens[4], 2048, 0);
        assert_near(account.curve_tokens[5], 2048, 0);
        assert_near(account.curve_tokens[6], 2524, 0);
        assert_near(sim_account_token_hit(&account, UINT64_MAX), 2524.0 / 5500, 1e-12);
        sim_account_fini(&account);
}

/* One cache that is really played out, of every size that makes a difference. */
static void the_curve_is_that_of_caches_played_out(void **state)
{
        static const struct {
                const char *name;
                uint32_t block_tokens;
        } traces[] = {
                {"conversation.jsonl.gz", 0},
                {"agents.jsonl.gz", 0},
                {"synthetic.jsonl.gz", 0},
                {"sessions.csv.gz", 0},
                {"lengths.csv.gz", 0},
                {"synthetic:requests=3000,groups=30,zipf=1.1,prefix=700,turns=3", 16},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(traces) / sizeof(traces[0]); i++) {
                struct sim_trace trace;
                struct sim_replay *replay;
                struct sim_account account;
                struct sim_replay_result result;

                read_trace(traces[i].name, traces[i].block_tokens, &trace);
                replay = sim_replay_new(&trace);
                assert_non_null(replay);
                assert_true(sim_account_make(replay, &account));
                for (uint32_t size = 1; size < 4 * sim_replay_distinct(replay); size += 1 + size * 2 / 3) {
                        struct sim_replay_options how = {
                                .policy = SIM_REPLAY_POOLED, .replicas = 1, .capacity_blocks = size};

                        assert_true(sim_replay_run(replay, &how, &result));
                        assert_near(sim_account_token_hit(&account, size), result.token_hit, 1e-12);
                        assert_near(sim_account_block_hit(&account, size), result.block_hit, 1e-12);
                }
                sim_account_fini(&account);
                sim_replay_free(replay);
                sim_trace_fini(&trace);
        }
}

static void sums_agree(void **state)
{
        struct sim_trace trace;
        struct sim_account account;
        double requests = 0, hits = 0;

        (void)state;
        read_trace("agents.jsonl.gz", 0, &trace);
        account = account_of(&trace);
        for (unsigned i = 0; i < SIM_ACCOUNT_BINS; i++) {
                requests += account.prefix_bins[i];
                hits += account.gap_bins[i];
        }
        assert_near(requests, trace.row_count, 0);
        assert_near(hits, account.matched_blocks, 0);
        assert_near(account.in_session_tokens + account.cross_session_tokens, account.matched_tokens, 0.5);
        /* The source scopes ids by session. */
        assert_near(account.cross_session_tokens, 0, 0);
        assert_true(account.matched_p10 <= account.matched_p50 && account.matched_p50 <= account.matched_p99);
        sim_account_fini(&account);
        sim_trace_fini(&trace);
}

static void nothing_in_common(void **state)
{
        struct sim_trace trace;
        struct sim_account account;

        (void)state;
        read_trace("lengths.csv.gz", 0, &trace);
        account = account_of(&trace);
        assert_near(account.matched_tokens, 0, 0);
        assert_near(account.prefix_bins[0], trace.row_count, 0);
        assert_true(isnan(account.gap_p50_s));
        assert_true(isnan(account.top_share[2]));
        assert_true(isnan(account.in_session_tokens));
        sim_account_fini(&account);
        sim_trace_fini(&trace);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_trace_by_hand),
                cmocka_unit_test(the_curve_is_that_of_caches_played_out),
                cmocka_unit_test(sums_agree),
                cmocka_unit_test(nothing_in_common),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
