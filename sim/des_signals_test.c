/* SPDX-License-Identifier: Apache-2.0 */
/* What routers get to know, and when: llama.cpp's slots, old load reports, engine events, sub-agents. */
#include "des.h"
#include "rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* cmocka compares floats only. */
#define assert_near(a, b, within) assert_true(fabs((a) - (b)) <= (within))

#define BLOCK 512u
#define ROWS  2048u
#define IDS   32768u

static struct made {
        struct sim_trace_row rows[ROWS];
        uint64_t ids[IDS];
        struct sim_trace trace;
        struct sim_des_record records[ROWS];
} * made;

static int set_up(void **state)
{
        (void)state;
        made = calloc(1, sizeof(*made));
        if (!made)
                return -1;
        made->trace = (struct sim_trace){.rows = made->rows, .ids = made->ids, .block_tokens = BLOCK};
        return 0;
}

static int tear_down(void **state)
{
        (void)state;
        free(made);
        return 0;
}

static struct sim_trace_row *add(double time_s, uint32_t input_tokens, uint32_t output_tokens,
                                 uint64_t first_id)
{
        struct sim_trace *trace = &made->trace;
        struct sim_trace_row *row = &made->rows[trace->row_count++];

        *row = (struct sim_trace_row){
                .time_s = time_s,
                .input_tokens = input_tokens,
                .output_tokens = output_tokens,
                .id_count = (input_tokens + BLOCK - 1) / BLOCK,
                .first_id = trace->id_count,
        };
        assert_true(trace->row_count <= ROWS && trace->id_count + row->id_count <= IDS);
        for (uint32_t i = 0; i < row->id_count; i++)
                made->ids[trace->id_count++] = first_id + i;
        return row;
}

static struct sim_trace_row *add_turn(double time_s, uint32_t session, uint32_t parent, float pause_s)
{
        struct sim_trace_row *row = add(time_s, 100, 2, 1000 * made->trace.row_count);

        row->session = session;
        row->parent = parent;
        row->pause_s = pause_s;
        if (session > made->trace.session_count)
                made->trace.session_count = session;
        return row;
}

static struct sim_des_options usual(const char *policy, uint32_t replicas)
{
        return (struct sim_des_options){
                .policy = policy,
                .replicas = replicas,
                .routers = 1,
                .capacity_blocks = 1000,
                .speed = 1,
                .cost = *sim_cost_preset(0),
                .step_tokens = 2048,
                .max_running = 256,
                .report_s = 1,
                .seed = 1,
                .records = made->records,
        };
}

static struct sim_des_result simulated(struct sim_des_options options)
{
        _Atomic uint64_t progress = 0;
        struct sim_des_result result;
        char message[256] = "";

        if (!sim_des_run(&made->trace, &options, &progress, &result, message, sizeof(message)))
                fail_msg("%s", message);
        assert_int_equal(result.requests + result.rejected + result.failed, made->trace.row_count);
        return result;
}

/* Groups with a common beginning each, in a shuffled order, `gap_s` apart. */
static void add_groups(uint32_t count, double gap_s)
{
        struct sim_rng rng = sim_rng_for(7, 1, 1);

        for (uint32_t i = 0; i < count; i++) {
                uint32_t group = sim_rng_below(&rng, 12);
                const struct sim_trace_row *row = add(i * gap_s, 7 * BLOCK + 200, 20, group * 100);

                made->ids[row->first_id + 6] = 100000 + 2 * i; /* the tail is its own */
                made->ids[row->first_id + 7] = 100001 + 2 * i;
        }
}

/* ---- slots -------------------------------------------------------------------------------------------- */

/* Four at once over one resident prompt of 3000 tokens: one finds it, three compute it. Then all hold it. */
static void slots_share_nothing(void **state)
{
        struct sim_des_options options = usual("kv", 1);
        struct sim_des_result result;

        (void)state;
        for (uint32_t round = 0; round < 3; round++) {
                for (uint32_t i = 0; i < (round ? 4 : 1); i++)
                        add(60 * round, 3000, 2, 1);
        }
        options.slots = 4;
        result = simulated(options);
        assert_int_equal(result.cached_tokens, 2999 + 4 * 2999);
        assert_int_equal(result.hits, 5);
        sim_des_result_fini(&result);
        options.slots = 0; /* in blocks it is there for all */
        result = simulated(options);
        assert_int_equal(result.cached_tokens, 8 * 2560);
        sim_des_result_fini(&result);
}

/* Eight prompts over four slots: with memory for them all come back. */
static void memory_brings_prompts_back(void **state)
{
        struct sim_des_options options = usual("kv", 1);
        struct sim_des_result result;

        (void)state;
        for (uint32_t i = 0; i < 16; i++)
                add(60 * i, 3000, 2, 100 * (i % 8));
        options.slots = 4;
        options.slot_memory_blocks = 100;
        result = simulated(options);
        assert_int_equal(result.cached_tokens, 8 * 2999);
        sim_des_result_fini(&result);
        options.slot_memory_blocks = 0;
        result = simulated(options);
        assert_int_equal(result.cached_tokens, 0);
        sim_des_result_fini(&result);
}

/* What the router expects of slots is what there is, where it sees all that happens. */
static void the_router_follows_slots(void **state)
{
        struct sim_des_options options = usual("kv", 3);
        struct sim_des_result result;

        (void)state;
        add_groups(600, 0.6);
        options.slots = 4;
        options.slot_memory_blocks = 40;
        result = simulated(options);
        assert_true((double)result.cached_tokens > 0.5 * (double)result.prompt_tokens);
        assert_near((double)result.predicted_tokens, (double)result.cached_tokens,
                    0.1 * (double)result.cached_tokens);
        sim_des_result_fini(&result);
}

/* ---- load reports ------------------------------------------------------------------------------------- */

static double mean_ttft(struct sim_des_options options)
{
        struct sim_des_result result = simulated(options);
        double mean = sim_samples_mean(&result.ttft);

        sim_des_result_fini(&result);
        return mean;
}

/* Four routers that see a quarter each need the engines' reports, and old ones are worth less. */
static void old_reports_are_worth_less(void **state)
{
        struct sim_des_options options = usual("kv", 4);
        double none, fresh, old, never;

        (void)state;
        for (uint32_t i = 0; i < 1200; i++)
                add(i * 0.15, 700 + (i * 7919) % 5000, 20, 10 * i);
        options.routers = 4;
        options.report_s = 0;
        none = mean_ttft(options);
        options.report_s = 0.1;
        fresh = mean_ttft(options);
        options.report_delay_s = 3;
        old = mean_ttft(options);
        options.report_delay_s = 900; /* none arrives before the end */
        never = mean_ttft(options);
        assert_true(never == none);
        assert_true(fresh < none);
        assert_true(old > fresh);
}

/* ---- events ------------------------------------------------------------------------------------------- */

static struct sim_des_options with_events(uint32_t routers)
{
        struct sim_des_options options = usual("kv", 4);

        options.routers = routers;
        options.capacity_blocks = 200;
        options.events = true;
        options.events_replay_s = 0.01;
        return options;
}

/* A router that sees a quarter of the requests knows all of the caches, be the events a little late or some of
 * them lost and asked for again. Lost for good they are missed. */
static void routers_with_events_know_what_others_did(void **state)
{
        struct sim_des_options options = with_events(4);
        struct sim_des_result own, all, late, lost, gone;

        (void)state;
        add_groups(1200, 0.5);
        options.events = false;
        own = simulated(options);
        options.events = true;
        all = simulated(options);
        options.events_delay_s = 0.2;
        late = simulated(options);
        options.events_lost = 0.2;
        lost = simulated(options);
        options.events_replay_s = 0;
        gone = simulated(options);
        assert_true(all.cached_tokens > own.cached_tokens);
        assert_near((double)all.predicted_tokens, (double)all.cached_tokens,
                    0.01 * (double)all.cached_tokens);
        assert_near((double)late.cached_tokens, (double)all.cached_tokens, 0.03 * (double)all.cached_tokens);
        assert_near((double)lost.cached_tokens, (double)all.cached_tokens, 0.03 * (double)all.cached_tokens);
        assert_near((double)lost.predicted_tokens, (double)lost.cached_tokens,
                    0.02 * (double)lost.cached_tokens);
        /* Nobody can say what was missed: they go by what they sent, as without events. */
        assert_true(gone.untrusted > 0.9 && gone.clears > 100 && gone.gaps == gone.clears);
        assert_near((double)gone.cached_tokens, (double)own.cached_tokens, 0.03 * (double)own.cached_tokens);
        assert_true(all.untrusted < 0.001 && all.gaps == 0 && all.clears == 0 && lost.gaps > 100);
        assert_int_equal(lost.clears, 0);
        assert_true(all.messages > 1000 && all.messages_lost == 0 && all.messages_replayed == 0);
        assert_near((double)lost.messages_lost, 0.2 * (double)lost.messages, 0.02 * (double)lost.messages);
        /* A replay has those on their way, too; and nobody asks for those that nothing came behind. */
        assert_true(lost.messages_replayed + 100 > lost.messages_lost &&
                    lost.messages_replayed < lost.messages / 2);
        assert_int_equal(gone.messages_replayed, 0);
        sim_des_result_fini(&own);
        sim_des_result_fini(&all);
        sim_des_result_fini(&late);
        sim_des_result_fini(&lost);
        sim_des_result_fini(&gone);
}

/* A subscription that hears nothing: what is found by asking for it now and then shows that, and history takes over.
 * Where nothing can be asked for nothing is known. */
static void all_lost_is_as_never_told(void **state)
{
        struct sim_des_options options = with_events(2);
        struct sim_des_result result, own;

        (void)state;
        add_groups(300, 1);
        options.events_lost = 1;
        result = simulated(options);
        assert_int_equal(result.messages_lost, result.messages);
        assert_true(result.messages_replayed > 0 && result.untrusted > 0.8);
        sim_des_result_fini(&result);
        options.events_replay_s = 0;
        result = simulated(options);
        assert_int_equal(result.messages_replayed, 0);
        assert_near(result.untrusted, 1, 1e-9);
        options.events = false;
        own = simulated(options);
        assert_int_equal(result.cached_tokens, own.cached_tokens);
        assert_int_equal(result.predicted_tokens, own.predicted_tokens);
        sim_des_result_fini(&result);
        sim_des_result_fini(&own);
}

/* What an engine no longer has when it is asked for is lost for good. */
static void a_short_buffer_is_not_enough(void **state)
{
        struct sim_des_options options = with_events(1);
        struct sim_des_result enough, less;

        (void)state;
        add_groups(900, 0.1);
        options.events_lost = 0.2;
        options.events_replay_s = 2;
        enough = simulated(options);
        options.events_buffer = 1;
        less = simulated(options);
        assert_true(enough.gaps > 10 && enough.clears == 0);
        assert_true(less.clears > 10);
        assert_true(less.untrusted > enough.untrusted + 0.2);
        sim_des_result_fini(&enough);
        sim_des_result_fini(&less);
}

/* An engine that was lost comes back empty, and what it had told before is void. */
static void a_restart_voids_what_was_told(void **state)
{
        struct sim_des_options options = with_events(2);
        struct sim_des_outage outages[] = {{.replica = 1, .from_s = 100, .to_s = 101},
                                           {.replica = 2, .from_s = 200, .to_s = 210}};
        struct sim_des_result result;

        (void)state;
        add_groups(600, 0.5);
        options.events_delay_s = 0.5;
        options.events_lost = 0.1;
        options.outages = outages;
        options.outage_count = 2;
        result = simulated(options);
        assert_near((double)result.predicted_tokens, (double)result.cached_tokens,
                    0.02 * (double)result.cached_tokens);
        sim_des_result_fini(&result);
}

/* Nobody says that an engine has restarted but its messages, which begin anew. By history it is not known at all. */
static void a_restart_shows_by_the_numbers(void **state)
{
        struct sim_des_options options = with_events(2);
        struct sim_des_outage outages[] = {{.replica = 1, .from_s = 100, .restart = true},
                                           {.replica = 2, .from_s = 200, .restart = true}};
        struct sim_des_result told, lossy, untold;
        uint64_t before;

        (void)state;
        add_groups(600, 0.5);
        options.outages = outages;
        options.outage_count = 2;
        told = simulated(options);
        assert_int_equal(told.restarts_seen, 2 * 2);
        assert_int_equal(told.clears, 2 * 2);
        before = told.overpredicted;
        options.events_delay_s = 0.5;
        options.events_lost = 0.1;
        lossy = simulated(options);
        /* One may be seen twice: a late message of the old process after the first sign of the new one. */
        assert_in_range(lossy.restarts_seen, 2 * 2, 2 * 4);
        options.events = false;
        untold = simulated(options);
        assert_int_equal(untold.restarts_seen, 0);
        assert_true(untold.overpredicted > before && untold.overpredicted_tokens > 0);
        assert_near((double)lossy.cached_tokens, (double)told.cached_tokens,
                    0.03 * (double)told.cached_tokens);
        sim_des_result_fini(&told);
        sim_des_result_fini(&lossy);
        sim_des_result_fini(&untold);
}

/* An oracle is never wrong where nothing waits, be engines restarted or filled by other routers, and events that come at
 * once are as good. */
static void an_oracle_knows_all(void **state)
{
        struct sim_des_outage outage = {.replica = 0, .from_s = 150, .restart = true};
        struct sim_des_options options = with_events(3);
        struct sim_replay *replay;
        struct sim_des_result oracle, events;

        (void)state;
        add_groups(600, 1);
        replay = sim_replay_new(&made->trace);
        assert_non_null(replay);
        options.replay = replay;
        options.outages = &outage;
        options.outage_count = 1;
        events = simulated(options);
        options.events = false;
        options.oracle = true;
        oracle = simulated(options);
        assert_int_equal(oracle.predicted_tokens, oracle.cached_tokens);
        assert_int_equal(oracle.overpredicted, 0);
        assert_int_equal(oracle.messages, 0);
        assert_true((double)events.cached_tokens > 0.99 * (double)oracle.cached_tokens);
        sim_replay_free(replay);
        sim_des_result_fini(&oracle);
        sim_des_result_fini(&events);
}

static void events_repeat(void **state)
{
        struct sim_des_options options = with_events(3);
        struct sim_des_result a, b;

        (void)state;
        add_groups(400, 0.4);
        options.events_lost = 0.3;
        options.events_delay_s = 0.05;
        a = simulated(options);
        b = simulated(options);
        assert_true(sim_samples_mean(&a.ttft) == sim_samples_mean(&b.ttft));
        assert_int_equal(a.messages_replayed, b.messages_replayed);
        assert_int_equal(a.predicted_tokens, b.predicted_tokens);
        sim_des_result_fini(&a);
        sim_des_result_fini(&b);
}

/* ---- sub-agents --------------------------------------------------------------------------------------- */

static double ended_s(uint32_t row)
{
        return made->records[row].arrival_s + made->records[row].e2e_s;
}

static void a_session_waits_for_its_sub_agents(void **state)
{
        struct sim_des_options options = usual("round_robin", 3);
        struct sim_des_result result;

        (void)state;
        add_turn(0, 1, 0, 0);
        add_turn(5, 2, 1, 2); /* two agents, begun two and three seconds after the answer */
        add_turn(6, 3, 1, 3);
        add_turn(8, 2, 2, 4); /* the first one goes on */
        made->rows[3].parent = 1;
        add_turn(9, 1, 0, 1.5f); /* a second and a half after both are done */
        add_turn(20, 1, 0, 0);   /* pause not known: what the trace has between them, less the service */
        options.closed_loop = true;
        result = simulated(options);
        assert_near(made->records[1].arrival_s, ended_s(0) + 2, 1e-6);
        assert_near(made->records[2].arrival_s, ended_s(0) + 3, 1e-6);
        assert_near(made->records[3].arrival_s, ended_s(1) + 4, 1e-6);
        assert_true(ended_s(3) > ended_s(2));
        assert_near(made->records[4].arrival_s, ended_s(3) + 1.5, 1e-6);
        assert_near(made->records[5].arrival_s, made->records[4].arrival_s + 11, 0.1);
        sim_des_result_fini(&result);
        options.closed_loop = false; /* at the trace's own times */
        result = simulated(options);
        assert_near(made->records[4].arrival_s, 9, 1e-9);
        sim_des_result_fini(&result);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(slots_share_nothing),
                TEST(memory_brings_prompts_back),
                TEST(the_router_follows_slots),
                TEST(old_reports_are_worth_less),
                TEST(routers_with_events_know_what_others_did),
                TEST(all_lost_is_as_never_told),
                TEST(a_short_buffer_is_not_enough),
                TEST(a_restart_voids_what_was_told),
                TEST(a_restart_shows_by_the_numbers),
                TEST(an_oracle_knows_all),
                TEST(events_repeat),
                TEST(a_session_waits_for_its_sub_agents),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
