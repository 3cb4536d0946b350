/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger behind a router: the hit account, by workload, model and replica, against what the engines
 * counted. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "ledger_int.h"
#include "ledger_test_util.h"

static struct ledger_fleet fleet;

static void up(uint32_t replicas)
{
        ledger_fleet_up(&fleet, "kv", replicas, (struct kvr_replica_spec){.block_tokens = 16}, NULL);
}

static struct kvr_request request_of(const struct kvr_prompt *prompt, const char *workload)
{
        return (struct kvr_request){
                .prompt = prompt, .model = brain_slice("m"), .workload = brain_slice(workload)};
}

/* One request, answered like that. */
static struct kvr_decision serve(const struct kvr_request *request, enum kvr_end end, int64_t prompt,
                                 int64_t cached)
{
        struct kvr_decision decision;
        struct kvr_ticket *ticket = brain_send(&fleet.brain, request, &decision);

        fleet.brain.env.now_ns += BRAIN_MS(100);
        if (end == KVR_END_FINISHED)
                kvr_ticket_first_token(ticket);
        brain_end(ticket, end, prompt, cached, 10);
        return decision;
}

static void splits(const struct kvr_ledger_sums *sums)
{
        assert_int_equal(sums->won_tokens + sums->placement_tokens + sums->staleness_tokens +
                                 sums->workload_tokens,
                         sums->prompt_tokens);
}

/* ---- the hit account ---- */

struct split {
        uint32_t prompt, best, predicted;
        int64_t cached;
        uint64_t won, placement, staleness, workload, surplus;
};

static void test_split(void **state)
{
        static const struct split cases[] = {
                /* prompt best pred   cached  won   placement staleness workload surplus */
                {1000, 800, 800, 800, 800, 0, 0, 200, 0},     {1000, 800, 500, 500, 500, 300, 0, 200, 0},
                {1000, 800, 500, 200, 200, 300, 300, 200, 0}, {1000, 800, 500, 600, 600, 200, 0, 200, 100},
                {1000, 800, 500, 900, 900, 0, 0, 100, 400},   {1000, 0, 0, 0, 0, 0, 0, 1000, 0},
                {1000, 800, 500, -1, 500, 300, 0, 200, 0},    {1000, 999, 999, 1000, 1000, 0, 0, 0, 1},
        };
        uint64_t candidates[KVR__SLOT_WORDS] = {1};

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                const struct split *c = &cases[i];

                up(1);
                struct kvr__ledger_entry entry = {
                        .ledger = fleet.ledger,
                        .now_ns = ledger_now(&fleet),
                        .sent_ns = ledger_now(&fleet),
                        .replica = fleet.brain.ids[0],
                        .twin = {.token_s = 0.001, .block_tokens = 100},
                        .computed = true,
                        .prompt = c->prompt,
                        .best = c->best,
                        .predicted = c->predicted,
                        .cached = c->cached,
                        .candidates = candidates,
                };

                kvr__ledger_book(&entry);
                struct kvr_ledger_sums sums = ledger_life(&fleet, KVR_LEDGER_ALL, "all");

                splits(&sums);
                assert_int_equal(sums.won_tokens, c->won);
                assert_int_equal(sums.placement_tokens, c->placement);
                assert_int_equal(sums.staleness_tokens, c->staleness);
                assert_int_equal(sums.workload_tokens, c->workload);
                assert_int_equal(sums.surplus_tokens, c->surplus);
                assert_int_equal(sums.avoided_ns, c->won * 1000000);
                assert_int_equal(sums.untimed_tokens, 0);
                assert_int_equal(sums.observed, c->cached >= 0);
                assert_int_equal(sums.unobserved_prompt_tokens, c->cached < 0 ? c->prompt : 0);
                assert_int_equal(sums.won_unobserved_tokens, c->cached < 0 ? c->won : 0);
                assert_int_equal(sums.prompt_blocks, c->cached < 0 ? 0 : 10);
                assert_int_equal(sums.hit_blocks, c->cached < 0 ? 0 : c->cached / 100);
                if (c->cached < 0) {
                        assert_true(isnan(kvr_ledger_hit_tokens(&sums)));
                        assert_true(isnan(kvr_ledger_hit_blocks(&sums)) &&
                                    isnan(kvr_ledger_hit_requests(&sums)));
                } else {
                        assert_true(fabs(kvr_ledger_hit_tokens(&sums) - (double)c->cached / c->prompt) <
                                    1e-12);
                        assert_true(fabs(kvr_ledger_hit_requests(&sums) - (c->cached > 0)) < 1e-12);
                }
                ledger_fleet_down(&fleet);
        }
}

/* What failed has neither hit nor missed; what the engine does not tell is unknown. */
static void test_unknown_is_not_zero(void **state)
{
        struct brain_prompt *p = &fleet.prompt;

        (void)state;
        up(2);
        struct kvr_request request = request_of(brain_prompt_of(p, 1, 8000), "w");

        serve(&request, KVR_END_FAILED, -1, -1);
        serve(&request, KVR_END_REFUSED, -1, -1);
        serve(&request, KVR_END_CLIENT, -1, -1);
        struct kvr_ledger_sums sums = ledger_life(&fleet, KVR_LEDGER_WORKLOAD, "w");

        assert_int_equal(sums.requests, 3);
        assert_int_equal(sums.computed, 0);
        assert_int_equal(sums.prompt_tokens, 0);
        serve(&request, KVR_END_FINISHED, 2000, -1);
        serve(&request, KVR_END_FINISHED, 2000, -1);
        sums = ledger_life(&fleet, KVR_LEDGER_WORKLOAD, "w");
        assert_int_equal(sums.computed, 2);
        assert_int_equal(sums.observed, 0);
        assert_int_equal(sums.observed_tokens, 0);
        assert_int_equal(sums.unobserved_prompt_tokens, 4000);
        assert_int_equal(sums.predicted_tokens, 1984);
        assert_int_equal(sums.won_unobserved_tokens, 1984);
        assert_true(isnan(kvr_ledger_hit_tokens(&sums)));
        serve(&request, KVR_END_FINISHED, 2000, 1000);
        sums = ledger_life(&fleet, KVR_LEDGER_WORKLOAD, "w");
        assert_true(fabs(kvr_ledger_hit_tokens(&sums) - 0.5) < 1e-12);
        assert_int_equal(sums.staleness_tokens, 984);
        splits(&sums);
        ledger_fleet_down(&fleet);
}

/* Another replica has it and is busy: given up for load, by name. */
static void test_placement(void **state)
{
        struct brain_prompt *p = &fleet.prompt;

        (void)state;
        up(2);
        struct kvr_request request = request_of(brain_prompt_of(p, 1, 8000), "w");
        kvr_replica_id holder = serve(&request, KVR_END_FINISHED, 2000, 0).replica;

        /* The holder is told to be half dead under its queue. */
        struct kvr_load_report report = {.at_ns = ledger_now(&fleet),
                                         .running = 100,
                                         .waiting = 400,
                                         .kv_usage = 1,
                                         .waiting_tokens = 4000000};

        assert_int_equal(kvr_replica_report(fleet.brain.router, holder, &report), KVR_OK);
        assert_true(serve(&request, KVR_END_FINISHED, 2000, 0).replica != holder);
        struct kvr_ledger_sums sums = ledger_life(&fleet, KVR_LEDGER_ALL, "all");

        splits(&sums);
        assert_int_equal(sums.placement_tokens, 1984);
        assert_int_equal(sums.workload_tokens, 2000 + 16);
        assert_int_equal(sums.staleness_tokens, 0);
        assert_int_equal(sums.best_tokens, 1984);
        assert_int_equal(sums.predicted_tokens, 0);
        ledger_fleet_down(&fleet);
}

/* ---- three workloads, and engines that count for themselves ---- */

struct counted {
        uint64_t requests, prompt, cached;
};

static void test_three_workloads(void **state)
{
        static const char *const names[] = {"chat", "rag", "batch"};
        struct counted by_workload[3] = {{0}}, by_replica[4] = {{0}};
        struct brain_prompt *p = &fleet.prompt;

        (void)state;
        up(4);
        for (uint64_t i = 0; i < 3000; i++) {
                uint64_t chance = brain_mix(i), kind = chance % 3, conversation = chance / 3 % 20;

                brain_prompt_init(p);
                if (kind == 0) {
                        brain_message(p, 1, 3000);
                        for (uint64_t turn = 0; turn <= i / 400; turn++)
                                brain_message(p, 100 + conversation * 50 + turn, 500 + conversation * 13);
                } else if (kind == 1) {
                        brain_message(p, 2, 1500);
                        brain_message(p, 5000 + chance / 99 % 40, 9000);
                        brain_message(p, 100000 + i, 120);
                } else {
                        brain_message(p, 1000000 + i, 4000);
                }
                struct kvr_request request = request_of(brain_prompt_done(p), names[kind]);
                struct kvr_decision decision;
                struct kvr_ticket *ticket = brain_send(&fleet.brain, &request, &decision);
                uint32_t prompt = (uint32_t)p->length / 4 + 3,
                         replica = brain_number(&fleet.brain, decision.replica);
                uint32_t cached =
                        decision.match_tokens > 100 ? decision.match_tokens - (i % 5 == 0) * 16U : 0;

                fleet.brain.env.now_ns += BRAIN_MS(20);
                kvr_ticket_first_token(ticket);
                brain_end(ticket, KVR_END_FINISHED, prompt, cached, 10);
                struct counted *counts[] = {&by_workload[kind], &by_replica[replica]};

                for (int c = 0; c < 2; c++) {
                        counts[c]->requests++;
                        counts[c]->prompt += prompt;
                        counts[c]->cached += cached;
                }
        }
        for (int i = 0; i < 3; i++) {
                struct kvr_ledger_sums sums = ledger_life(&fleet, KVR_LEDGER_WORKLOAD, names[i]);

                splits(&sums);
                assert_int_equal(sums.requests, by_workload[i].requests);
                assert_int_equal(sums.prompt_tokens, by_workload[i].prompt);
                assert_int_equal(sums.observed_tokens, by_workload[i].cached);
                assert_true(fabs((double)sums.predicted_tokens - (double)sums.observed_tokens) <=
                            0.02 * (double)sums.prompt_tokens);
        }
        struct kvr_ledger_account account;
        uint32_t cursor = 0, count = 0;

        while (kvr_ledger_account(fleet.ledger, KVR_LEDGER_REPLICA, ledger_now(&fleet), &cursor, &account)) {
                uint32_t number = brain_number(&fleet.brain, account.replica);

                count++;
                assert_true(account.present);
                assert_int_equal(account.sums[0].requests, by_replica[number].requests);
                assert_int_equal(account.sums[0].observed_tokens, by_replica[number].cached);
        }
        assert_int_equal(count, 4);
        /* However it is cut, it is the same whole. */
        struct kvr_ledger_sums all = ledger_life(&fleet, KVR_LEDGER_ALL, "all");

        for (int by = KVR_LEDGER_WORKLOAD; by <= KVR_LEDGER_REPLICA; by++) {
                struct kvr_ledger_sums total = ledger_total(&fleet, (enum kvr_ledger_by)by);

                assert_memory_equal(&total, &all, sizeof(all));
        }
        assert_int_equal(ledger_life(&fleet, KVR_LEDGER_MODEL, "m").requests, 3000);
        assert_true(all.avoided_ns > 0);
        ledger_fleet_down(&fleet);
}

/* ---- names and replicas ---- */

static void test_names(void **state)
{
        struct brain_prompt *p = &fleet.prompt;
        char long_name[400];
        struct kvr_ledger_account account;

        (void)state;
        up(1);
        struct kvr_request request = {.prompt = brain_prompt_of(p, 1, 2000)};

        serve(&request, KVR_END_FINISHED, 500, 0);
        assert_int_equal(ledger_life(&fleet, KVR_LEDGER_WORKLOAD, "(none)").requests, 1);
        assert_int_equal(ledger_life(&fleet, KVR_LEDGER_MODEL, "(none)").requests, 1);
        memset(long_name, 'x', sizeof(long_name));
        request.workload = (struct kvr_slice){long_name, sizeof(long_name)};
        serve(&request, KVR_END_FINISHED, 500, 0);
        long_name[KVR_NAME_MAX - 1] = 0;
        assert_int_equal(ledger_life(&fleet, KVR_LEDGER_WORKLOAD, long_name).requests, 1);
        /* Somebody who makes up a name for every request does not push out those in use. */
        for (uint32_t i = 0; i < 1000; i++) {
                request.workload = (struct kvr_slice){(const char *)&i, sizeof(i)};
                serve(&request, KVR_END_FINISHED, 500, 0);
        }
        assert_int_equal(ledger_life(&fleet, KVR_LEDGER_WORKLOAD, long_name).requests, 1);
        assert_int_equal(ledger_life(&fleet, KVR_LEDGER_WORKLOAD, "(other)").requests,
                         1000 - (KVR_LEDGER_WORKLOADS_MAX - 3));
        assert_int_equal(ledger_total(&fleet, KVR_LEDGER_WORKLOAD).requests, 1002);
        assert_false(ledger_find(&fleet, KVR_LEDGER_WORKLOAD, "never", &account));
        ledger_fleet_down(&fleet);
}

static void test_replicas_come_and_go(void **state)
{
        struct brain_prompt *p = &fleet.prompt;
        struct kvr_ledger_account account;
        char name[16];

        (void)state;
        up(1);
        struct kvr_request request = request_of(brain_prompt_of(p, 1, 2000), "w");
        struct kvr_ticket *out = brain_send(&fleet.brain, &request, NULL);

        serve(&request, KVR_END_FINISHED, 500, 0);
        assert_int_equal(kvr_replica_remove(fleet.brain.router, fleet.brain.ids[0]), KVR_OK);
        assert_true(ledger_find(&fleet, KVR_LEDGER_REPLICA, "r00", &account));
        assert_false(account.present);
        assert_int_equal(account.sums[0].requests, 1);
        /* More than there are slots, one after the other. */
        for (uint32_t i = 0; i < KVR_LEDGER_REPLICAS_MAX + 20; i++) {
                kvr_replica_id id;

                snprintf(name, sizeof(name), "n%u", i);
                struct kvr_replica_spec spec = {.name = name};

                assert_int_equal(kvr_replica_add(fleet.brain.router, &spec, &id, NULL), KVR_OK);
                assert_int_equal(kvr_replica_set_state(fleet.brain.router, id, KVR_READY), KVR_OK);
                serve(&request, KVR_END_FINISHED, 500, 0);
                assert_int_equal(kvr_replica_remove(fleet.brain.router, id), KVR_OK);
        }
        /* The first one's ticket ends when its slot is somebody else's. */
        brain_end(out, KVR_END_FINISHED, 500, 0, 1);
        assert_int_equal(ledger_total(&fleet, KVR_LEDGER_REPLICA).requests, KVR_LEDGER_REPLICAS_MAX + 22);
        assert_true(ledger_find(&fleet, KVR_LEDGER_REPLICA, "(other)", &account));
        assert_true(account.sums[0].requests >= 21);
        uint32_t cursor = 0, count = 0;

        while (kvr_ledger_account(fleet.ledger, KVR_LEDGER_REPLICA, ledger_now(&fleet), &cursor, &account))
                if (account.name[0] == 'n') {
                        assert_int_equal(account.sums[0].requests, 1);
                        count++;
                }
        assert_int_equal(count, KVR_LEDGER_REPLICAS_MAX);
        ledger_fleet_down(&fleet);
}

/* A ticket that was decided over replicas that are gone when it ends does not bring them back. */
static void test_candidates_that_left(void **state)
{
        struct kvr_ledger_balance balance;
        struct kvr_decision decision;

        (void)state;
        up(3);
        struct kvr_request request = request_of(brain_prompt_of(&fleet.prompt, 1, 2000), "w");
        struct kvr_ticket *out = brain_send(&fleet.brain, &request, &decision);

        for (uint32_t i = 0; i < 3; i++)
                if (fleet.brain.ids[i] != decision.replica)
                        assert_int_equal(kvr_replica_remove(fleet.brain.router, fleet.brain.ids[i]), KVR_OK);
        brain_end(out, KVR_END_FINISHED, 500, 0, 1);
        assert_int_equal(kvr_ledger_balance(fleet.ledger, NULL, ledger_now(&fleet), &balance), KVR_OK);
        assert_int_equal(balance.replicas, 1);
        assert_int_equal(kvr_ledger_balance(fleet.ledger, "least_tokens", ledger_now(&fleet), &balance),
                         KVR_OK);
        assert_int_equal(balance.replicas, 1);
        ledger_fleet_down(&fleet);
}

/* More replicas than accounts at once. */
static void test_many_replicas(void **state)
{
        struct brain_prompt *p = &fleet.prompt;
        struct kvr_ledger_balance balance;

        (void)state;
        up(0);
        for (uint32_t i = 0; i < KVR_LEDGER_REPLICAS_MAX + 30; i++) {
                char name[16];
                kvr_replica_id id;

                snprintf(name, sizeof(name), "n%u", i);
                struct kvr_replica_spec spec = {.name = name};

                assert_int_equal(kvr_replica_add(fleet.brain.router, &spec, &id, NULL), KVR_OK);
                assert_int_equal(kvr_replica_set_state(fleet.brain.router, id, KVR_READY), KVR_OK);
        }
        for (uint64_t i = 0; i < 2000; i++) {
                struct kvr_request request = request_of(brain_prompt_of(p, i, 2000), "w");

                serve(&request, KVR_END_FINISHED, 500, 0);
        }
        assert_int_equal(ledger_total(&fleet, KVR_LEDGER_REPLICA).requests, 2000);
        assert_int_equal(kvr_ledger_balance(fleet.ledger, NULL, ledger_now(&fleet), &balance), KVR_OK);
        assert_int_equal(balance.replicas, KVR_LEDGER_REPLICAS_MAX);
        ledger_fleet_down(&fleet);
}

/* A ledger that is set late, changed and taken away; tickets end where they began. */
static void test_set(void **state)
{
        struct kvr_ledger *second;
        struct kvr_ledger_info info;

        (void)state;
        up(2);
        struct kvr_request request = request_of(brain_prompt_of(&fleet.prompt, 1, 2000), "w");
        struct kvr_ticket *out = brain_send(&fleet.brain, &request, NULL);

        assert_int_equal(kvr_ledger_new(NULL, &second, NULL), KVR_OK);
        kvr_router_set_ledger(fleet.brain.router, second);
        serve(&request, KVR_END_FINISHED, 500, 0);
        brain_end(out, KVR_END_FINISHED, 500, 0, 1);
        kvr_router_set_ledger(fleet.brain.router, NULL);
        serve(&request, KVR_END_FINISHED, 500, 0);
        assert_int_equal(ledger_life(&fleet, KVR_LEDGER_ALL, "all").requests, 1);
        kvr_ledger_info(second, &info);
        assert_int_equal(info.entries, 1);
        assert_int_equal(info.bytes, kvr_ledger_bytes(second));
        kvr_ledger_free(second);
        ledger_fleet_down(&fleet);
}

static void test_arguments(void **state)
{
        struct kvr_ledger *ledger = NULL;
        struct kvr_error err;

        (void)state;
        assert_int_equal(
                kvr_ledger_new(&(struct kvr_ledger_settings){.virtual_runs = UINT32_MAX}, &ledger, &err),
                KVR_E_ARGUMENT);
        assert_string_equal(err.field, "virtual_runs");
        assert_int_equal(kvr_ledger_new(&(struct kvr_ledger_settings){.curve_tokens = 5}, &ledger, &err),
                         KVR_E_ARGUMENT);
        assert_string_equal(err.field, "curve_tokens");
        assert_null(ledger);
        assert_string_equal(kvr_ledger_by_name(KVR_LEDGER_FAMILY), "family");
        assert_string_equal(kvr_ledger_by_name((enum kvr_ledger_by)99), "unknown");
        kvr_ledger_free(NULL);
}

/* ---- threads ---- */

#define THREADS 4
#define EACH    3000

static void *work(void *arg)
{
        struct brain_prompt *p = arg;

        for (uint64_t i = 0; i < EACH; i++) {
                struct kvr_request request = request_of(brain_prompt_of(p, i % 40, 3000 + i % 7 * 400), "w");
                struct kvr_ticket *ticket = brain_send(&fleet.brain, &request, NULL);

                kvr_ticket_first_token(ticket);
                brain_end(ticket, KVR_END_FINISHED, 1000, 10, 1);
                __atomic_add_fetch(&fleet.brain.env.now_ns, BRAIN_MS(1), __ATOMIC_RELAXED);
        }
        return NULL;
}

static void test_threads(void **state)
{
        static struct brain_prompt prompts[THREADS];
        struct kvr_ledger_curve curve;
        struct kvr_ledger_spoiler spoilers[2];
        pthread_t threads[THREADS];

        (void)state;
        up(4);
        for (int i = 0; i < THREADS; i++)
                brain_must(pthread_create(&threads[i], NULL, work, &prompts[i]) == 0);
        for (int i = 0; i < 100; i++) {
                struct kvr_ledger_account account;
                uint32_t cursor = 0;

                while (kvr_ledger_account(fleet.ledger, KVR_LEDGER_FAMILY, BRAIN_S(2000), &cursor, &account))
                        splits(&account.sums[KVR_LEDGER_LIFE]);
                kvr_ledger_curve(fleet.ledger, KVR_LEDGER_HOUR, BRAIN_S(2000), &curve);
                kvr_ledger_spoilers(fleet.ledger, spoilers, 2);
        }
        for (int i = 0; i < THREADS; i++)
                pthread_join(threads[i], NULL);
        struct kvr_ledger_sums all = ledger_life(&fleet, KVR_LEDGER_ALL, "all");

        assert_int_equal(all.requests, THREADS * EACH);
        assert_int_equal(all.observed_tokens, THREADS * EACH * 10);
        ledger_fleet_down(&fleet);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_split),
                cmocka_unit_test(test_unknown_is_not_zero),
                cmocka_unit_test(test_placement),
                cmocka_unit_test(test_three_workloads),
                cmocka_unit_test(test_names),
                cmocka_unit_test(test_replicas_come_and_go),
                cmocka_unit_test(test_candidates_that_left),
                cmocka_unit_test(test_many_replicas),
                cmocka_unit_test(test_set),
                cmocka_unit_test(test_arguments),
                cmocka_unit_test(test_threads),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
