/* SPDX-License-Identifier: Apache-2.0 */
/* Settlement: the books, tokens, failed tries, accounts. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "brain_serve_test.h"
#include "router_int.h"

/* ---- books ---- */

static void assert_books_empty(void)
{
        for (uint32_t i = 0; i < fleet.count; i++) {
                struct kvr_replica_info info = brain_info(&fleet, i);

                assert_int_equal(info.in_flight, 0);
                assert_int_equal(info.prefilling, 0);
                assert_int_equal(info.uncached_tokens_booked, 0);
        }
}

static void books_follow_one_request(void **state)
{
        (void)state;
        up(1, (struct kvr_replica_spec){0});
        struct kvr_request request = text(1, 4000);
        struct kvr_decision decision;
        struct kvr_ticket *ticket = brain_send(&fleet, &request, &decision);
        struct kvr_replica_info info = brain_info(&fleet, 0);

        assert_int_equal(decision.prompt_tokens, 1000);
        assert_int_equal(decision.match_tokens, 0);
        assert_int_equal(info.in_flight, 1);
        assert_int_equal(info.prefilling, 1);
        assert_int_equal(info.uncached_tokens_booked, 1000);
        assert_int_equal(info.decisions, 1);
        fleet.env.now_ns += BRAIN_MS(200);
        kvr_ticket_first_token(ticket);
        fleet.env.now_ns += BRAIN_MS(50);
        kvr_ticket_first_token(ticket);
        info = brain_info(&fleet, 0);
        assert_int_equal(info.in_flight, 1);
        assert_int_equal(info.prefilling, 0);
        assert_int_equal(info.uncached_tokens_booked, 0);
        fleet.env.now_ns += BRAIN_MS(750);
        struct kvr_outcome outcome = {
                .end = KVR_END_FINISHED, .prompt_tokens = 1100, .cached_tokens = 0, .completion_tokens = 5};
        struct kvr_settlement settlement;

        kvr_ticket_settle(ticket, &outcome, &settlement);
        assert_int_equal(settlement.replica, fleet.ids[0]);
        assert_int_equal(settlement.prompt_tokens, 1100);
        assert_int_equal(settlement.predicted_tokens, 0);
        assert_near(settlement.ttft_s, 0.2, 1e-9);
        assert_near(settlement.total_s, 1.0, 1e-9);
        assert_books_empty();
        info = brain_info(&fleet, 0);
        assert_int_equal(info.prompt_tokens, 1100);
        assert_int_equal(info.observed_tokens, 0);
        assert_int_equal(info.unobserved_tokens, 0);
        assert_near(info.prefill_tokens_per_second, 5000, 1e-6);
}

/* Every way out, in random order, with replicas that come and go in between: at rest all is exactly zero. */
static void books_are_zero_at_rest(void **state)
{
        enum { OPEN = 200, STEPS = 20000 };
        struct kvr_ticket *tickets[OPEN] = {0};
        uint64_t random = 17;
        char name[16];

        (void)state;
        up(6, (struct kvr_replica_spec){.slots = 2, .cache = KVR_CACHE_SLOTS});
        for (int i = 0; i < 2; i++)
                brain_add(&fleet, (struct kvr_replica_spec){.block_tokens = 32, .capacity_tokens = 30000});
        for (int step = 0; step < STEPS; step++) {
                uint64_t chance = brain_mix(random++);
                struct kvr_ticket **ticket = &tickets[(chance >> 8) % OPEN];
                uint32_t at = (uint32_t)(chance >> 16) % fleet.count;

                fleet.env.now_ns += chance % BRAIN_MS(3);
                if (chance % 512 == 0) {
                        assert_int_equal(kvr_replica_remove(fleet.router, fleet.ids[at]), KVR_OK);
                        snprintf(name, sizeof(name), "x%d", step);
                        struct kvr_replica_spec spec = {.name = name, .cache = (chance >> 30) & 1};

                        assert_int_equal(kvr_replica_add(fleet.router, &spec, &fleet.ids[at], NULL), KVR_OK);
                        kvr_replica_set_state(fleet.router, fleet.ids[at], KVR_READY);
                        continue;
                }
                if (chance % 256 == 1)
                        kvr_replica_forget(fleet.router, fleet.ids[at]);
                if (chance % 256 == 2) {
                        struct kvr_replica_spec spec = {.cache = (chance >> 30) & 1,
                                                        .slots = (uint32_t)(chance >> 32) % 5};

                        assert_int_equal(kvr_replica_configure(fleet.router, fleet.ids[at], &spec), KVR_OK);
                }
                if (!*ticket) {
                        struct kvr_request request =
                                text((chance >> 40) % 50, 500 + (chance >> 50) % 4 * 2000);

                        if (chance >> 60 == 0)
                                request.prompt = NULL;
                        *ticket = brain_send(&fleet, &request, NULL);
                        continue;
                }
                if (chance >> 63)
                        kvr_ticket_first_token(*ticket);
                if (chance >> 62 & 1) {
                        brain_end(*ticket, (enum kvr_end)((chance >> 24) % 4),
                                  (int64_t)(chance >> 26 & 4095) - 1, (int64_t)(chance >> 38 & 1023) - 1,
                                  (int64_t)(chance >> 48 & 63) - 1);
                        *ticket = NULL;
                }
        }
        for (int i = 0; i < OPEN; i++)
                if (tickets[i])
                        brain_end(tickets[i], KVR_END_CLIENT, -1, -1, -1);
        assert_books_empty();
}

static void first_token_after_removal_is_harmless(void **state)
{
        (void)state;
        up(1, (struct kvr_replica_spec){0});
        struct kvr_request request = text(1, 4000);
        struct kvr_ticket *ticket = brain_send(&fleet, &request, NULL);

        assert_int_equal(kvr_replica_remove(fleet.router, fleet.ids[0]), KVR_OK);
        assert_int_equal(kvr_replica_remove(fleet.router, fleet.ids[0]), KVR_E_NOT_FOUND);
        kvr_ticket_first_token(ticket);
        brain_end(ticket, KVR_END_FINISHED, 1000, 0, 10);
        assert_int_equal(kvr_router_replicas(fleet.router, NULL, 0), 0);
}

/* ---- tokens ---- */

static void ratio_is_learned(void **state)
{
        (void)state;
        up(1, (struct kvr_replica_spec){0});
        for (uint64_t i = 0; i < 5; i++) {
                struct kvr_request request = text(i, 10000);

                serve_as(&request, 4000, 0, 1);
        }
        struct kvr_request request = text(99, 20000);

        assert_int_equal(explain(&request).prompt_tokens, 8000);
        /* Another model is another matter, */
        request.model = brain_slice("other");
        assert_int_equal(explain(&request).prompt_tokens, 5000);
        /* what no text can be is ignored, */
        request = text(100, 1000);
        serve_as(&request, 100000, 0, 1);
        request = text(99, 20000);
        assert_int_equal(explain(&request).prompt_tokens, 8000);
        /* and token ids need no ratio. */
        p.prompt.unit = KVR_UNIT_TOKENS;
        assert_int_equal(explain(&request).prompt_tokens, 20000);
}

static void counted_prompts_are_known_exactly(void **state)
{
        (void)state;
        up(1, (struct kvr_replica_spec){0});
        struct kvr_request request = text(1, 8000);

        serve_as(&request, 1234, 0, 0);
        struct kvr_request other = text(2, 8000);

        serve_as(&other, 2800, 0, 0);
        request = text(1, 8000);
        struct kvr_decision decision = explain(&request);

        assert_int_equal(decision.prompt_tokens, 1234);
        assert_int_equal(decision.match_tokens, 1233);
        /* The next turn starts from the count: its new part is estimated by the ratio. */
        brain_prompt_init(&p);
        brain_message(&p, 1, 8000);
        brain_message(&p, 5, 4000);
        request = (struct kvr_request){.prompt = brain_prompt_done(&p)};
        decision = explain(&request);
        assert_int_equal(decision.match_tokens, 1234);
        assert_int_equal(decision.prompt_tokens, 1234 + (4000 * (1234 + 2800) + 8000) / 16000);
}

static void matches_are_whole_blocks(void **state)
{
        (void)state;
        up(1, (struct kvr_replica_spec){.block_tokens = 64});
        struct kvr_request request = text(1, 4096);

        serve_as(&request, 1024, 0, 0);
        /* A whole prompt never hits whole: the last token has to be computed. */
        assert_int_equal(predict(1, 4096), 960);
        brain_prompt_init(&p);
        brain_message(&p, 1, 4096);
        brain_message(&p, 2, 400);
        request = (struct kvr_request){.prompt = brain_prompt_done(&p)};
        assert_int_equal(explain(&request).match_tokens, 1024);
}

static struct kvr_request next_turn(uint64_t bytes)
{
        brain_prompt_init(&p);
        brain_message(&p, 1, 4000);
        brain_message(&p, 2, bytes);
        brain_message(&p, 3, 2000);
        return (struct kvr_request){.prompt = brain_prompt_done(&p)};
}

static void answers_are_credited_where_they_were_generated(void **state)
{
        struct kvr_candidate candidates[2];
        struct kvr_decision decision;
        size_t count;

        (void)state;
        up(2, (struct kvr_replica_spec){0});
        struct kvr_request request = text(1, 4000);

        request.pinned = fleet.ids[0];
        serve_as(&request, 1000, 0, 300);
        request = text(1, 4000);
        request.pinned = fleet.ids[1];
        serve_as(&request, 1000, 0, -1);
        request = next_turn(1200);
        assert_int_equal(kvr_explain(fleet.router, &request, &decision, candidates, 2, &count, NULL), KVR_OK);
        assert_int_equal(candidates[0].match_tokens, 1300);
        assert_int_equal(candidates[1].match_tokens, 1000);
        assert_int_equal(decision.replica, fleet.ids[0]);
}

/* Serves a first turn with `generated` tokens and predicts a second one with an answer of `bytes`. */
static struct kvr_decision second_turn(uint64_t number, int64_t generated, uint64_t bytes, int64_t prompt,
                                       int64_t cached)
{
        struct kvr_request request = text(number, 4000);

        serve_as(&request, 1000, 0, generated);
        brain_prompt_init(&p);
        brain_message(&p, number, 4000);
        brain_message(&p, 2, bytes);
        brain_message(&p, 3, 8000);
        request = (struct kvr_request){.prompt = brain_prompt_done(&p)};
        return serve_as(&request, prompt, cached, 100);
}

static void answers_that_do_not_come_back_are_not_credited(void **state)
{
        (void)state;
        up(1, (struct kvr_replica_spec){0});
        /* Never more than the answer's text can be. */
        assert_int_equal(second_turn(1, 320, 1260, 3315, 1300).match_tokens, 1315);
        /* A reasoning model: clients send back 50 of 900 generated tokens, and what came first is missing. */
        assert_int_equal(second_turn(2, 900, 200, 3050, 1000).match_tokens, 1000);
        /* Where answers come back changed, that is learned. */
        for (uint64_t i = 0; i < 20; i++)
                assert_int_equal(second_turn(1000 + i, 300, 1260, 3315, 1000).match_tokens,
                                 i < 6 ? 1300 : 1000);
        assert_int_equal(brain_info(&fleet, 0).resets, 0);
        assert_near(brain_info(&fleet, 0).trust, 1, 1e-9);
        assert_int_equal(brain_info(&fleet, 0).capacity_tokens, 0);
}

/* ---- failed tries ---- */

static void failed_tries_leave_nothing_behind(void **state)
{
        static const enum kvr_end ends[] = {KVR_END_CLIENT, KVR_END_FAILED, KVR_END_REFUSED};

        (void)state;
        up(1, (struct kvr_replica_spec){0});
        struct kvr_request request = text(1, 4000);

        serve_as(&request, 1000, 0, 0);
        for (int i = 0; i < 3; i++) {
                brain_prompt_init(&p);
                brain_message(&p, 1, 4000);
                brain_message(&p, 2, 4000);
                request = (struct kvr_request){.prompt = brain_prompt_done(&p)};
                struct kvr_ticket *ticket = brain_send(&fleet, &request, NULL);

                /* A sibling that comes meanwhile is to follow it, */
                assert_int_equal(explain(&request).match_tokens, 1999);
                brain_end(ticket, ends[i], -1, -1, -1);
                /* but nothing was computed after all. */
                assert_int_equal(explain(&request).match_tokens, 1000);
        }
        /* After the first token it was. */
        struct kvr_ticket *ticket = brain_send(&fleet, &request, NULL);

        kvr_ticket_first_token(ticket);
        brain_end(ticket, KVR_END_FAILED, -1, -1, -1);
        assert_int_equal(explain(&request).match_tokens, 1999);
}

/* ---- responses, accounts ---- */

static void responses_know_their_owner(void **state)
{
        char id[32];

        (void)state;
        up(2, (struct kvr_replica_spec){0});
        struct kvr_request request = text(1, 4000);
        struct kvr_decision decision;
        struct kvr_ticket *ticket = brain_send(&fleet, &request, &decision);
        struct kvr_outcome outcome = {
                .end = KVR_END_FINISHED,
                .prompt_tokens = -1,
                .cached_tokens = -1,
                .completion_tokens = -1,
                .response_id = brain_slice("resp_1"),
        };

        kvr_ticket_settle(ticket, &outcome, NULL);
        assert_int_equal(kvr_response_owner(fleet.router, brain_slice("resp_1")), decision.replica);
        assert_int_equal(kvr_response_owner(fleet.router, brain_slice("resp_2")), 0);
        assert_int_equal(kvr_response_owner(fleet.router, (struct kvr_slice){0}), 0);
        /* The last 65,536 are kept. */
        for (int i = 0; i < 65536; i++) {
                request = (struct kvr_request){0};
                ticket = brain_send(&fleet, &request, NULL);
                snprintf(id, sizeof(id), "other_%d", i);
                outcome.response_id = brain_slice(id);
                kvr_ticket_settle(ticket, &outcome, NULL);
        }
        assert_int_equal(kvr_response_owner(fleet.router, brain_slice("resp_1")), 0);
        assert_int_not_equal(kvr_response_owner(fleet.router, brain_slice("other_0")), 0);
        assert_int_not_equal(kvr_response_owner(fleet.router, brain_slice("other_65535")), 0);
        kvr_replica_remove(fleet.router, fleet.ids[0]);
        kvr_replica_remove(fleet.router, fleet.ids[1]);
        assert_int_equal(kvr_response_owner(fleet.router, brain_slice("other_0")), 0);
}

/* Three faults of a workload look different in the sums: no reuse, spill by load, emptied cache. */
static void accounts_tell_why_hits_are_missing(void **state)
{
        struct kvr_reason_account load, hit, spread;

        (void)state;
        up(2, (struct kvr_replica_spec){0});
        for (uint64_t i = 0; i < 10; i++) {
                struct kvr_request request = text(i, 8000);

                serve_as(&request, 2000, 0, 0);
        }
        kvr_router_account(fleet.router, KVR_REASON_LOAD, &load);
        assert_int_equal(load.requests, 10);
        assert_int_equal(load.prompt_tokens, 20000);
        assert_int_equal(load.best_tokens, 0);
        assert_int_equal(load.observed_tokens, 0);
        /* Emptied behind our back: predicted, not observed. */
        for (uint64_t i = 0; i < 2; i++) {
                struct kvr_request request = text(i, 8000);

                serve_as(&request, 2000, 0, 0);
        }
        kvr_router_account(fleet.router, KVR_REASON_HIT, &hit);
        assert_int_equal(hit.requests, 2);
        assert_int_equal(hit.best_tokens, 2 * 1999);
        assert_int_equal(hit.predicted_tokens, 2 * 1999);
        assert_int_equal(hit.observed_tokens, 0);
        /* Driven away by load: best elsewhere, not predicted here. */
        struct kvr_request request = text(5, 8000);
        kvr_replica_id holder = explain(&request).replica;
        struct kvr_ticket *busy[20];

        for (uint64_t i = 0; i < 20; i++) {
                struct kvr_request other = text(100 + i, 40000);

                other.pinned = holder;
                busy[i] = brain_send(&fleet, &other, NULL);
        }
        request = text(5, 8000);
        struct kvr_decision decision = serve_as(&request, 2000, 0, 0);

        assert_int_not_equal(decision.replica, holder);
        assert_int_equal(decision.reason, KVR_REASON_SPREAD);
        kvr_router_account(fleet.router, KVR_REASON_SPREAD, &spread);
        assert_int_equal(spread.requests, 1);
        assert_int_equal(spread.best_tokens, 1999);
        assert_int_equal(spread.predicted_tokens, 0);
        /* Failed tries are requests, but hit and miss nothing; unknown hits are a sum of their own. */
        for (int i = 0; i < 20; i++)
                brain_end(busy[i], i ? KVR_END_FAILED : KVR_END_FINISHED, -1, -1, -1);
        struct kvr_reason_account affinity;

        kvr_router_account(fleet.router, KVR_REASON_AFFINITY, &affinity);
        assert_int_equal(affinity.requests, 20);
        assert_int_equal(affinity.prompt_tokens, 10000);
        assert_int_equal(affinity.unobserved_prompt_tokens, 10000);
}

/* ---- slots ---- */

static void llama_fleet_is_predicted_by_slots(void **state)
{
        static const struct kvr_replica_spec spec = {
                .cache = KVR_CACHE_SLOTS, .slots = 1, .capacity_tokens = 2100};
        uint64_t last[3][2] = {{0}};
        uint32_t hits = 0, wrong = 0;

        (void)state;
        up(3, spec);
        /* Each holds the last two prompts; five conversations take turns. */
        for (uint64_t turn = 0; turn < 20; turn++)
                for (uint64_t c = 0; c < 5; c++) {
                        struct kvr_request request = text(1 + c, 4000);
                        struct kvr_decision decision;
                        struct kvr_ticket *ticket = brain_send(&fleet, &request, &decision);
                        uint64_t *held = last[brain_number(&fleet, decision.replica)];
                        bool hit = held[0] == 1 + c || held[1] == 1 + c;

                        if (held[0] != 1 + c) {
                                held[1] = held[0];
                                held[0] = 1 + c;
                        }
                        hits += hit;
                        wrong += hit != (decision.match_tokens == 999);
                        fleet.env.now_ns += BRAIN_MS(100);
                        kvr_ticket_first_token(ticket);
                        brain_end(ticket, KVR_END_FINISHED, 1000, hit ? 999 : 0, 1);
                }
        print_message("# slots: %u hits, %u wrong\n", hits, wrong);
        assert_true(hits >= 90);
        assert_int_equal(wrong, 0);
}

/* The same, but nobody told how little the memory holds. */
static void memory_of_a_llama_is_learned(void **state)
{
        static const struct kvr_replica_spec spec = {.cache = KVR_CACHE_SLOTS, .slots = 2};
        uint64_t last[3][2] = {{0}};
        uint32_t hits = 0, wrong = 0;

        (void)state;
        up(3, spec);
        /* All conversations begin at one place. */
        for (uint64_t c = 0; c < 5; c++) {
                struct kvr_request request = text(1 + c, 4000);

                request.pinned = fleet.ids[0];
                serve_as(&request, 1000, 0, 1);
                last[0][1] = last[0][0];
                last[0][0] = 1 + c;
        }
        for (uint64_t turn = 0; turn < 40; turn++)
                for (uint64_t c = 0; c < 5; c++) {
                        struct kvr_request request = text(1 + c, 4000);
                        struct kvr_decision decision = explain(&request);
                        uint64_t *held = last[brain_number(&fleet, decision.replica)];
                        bool hit = held[0] == 1 + c || held[1] == 1 + c;

                        if (held[0] != 1 + c) {
                                held[1] = held[0];
                                held[0] = 1 + c;
                        }
                        hits += hit;
                        wrong += hit != (decision.match_tokens == 999);
                        serve_as(&request, 1000, hit ? 999 : 0, 1);
                }
        print_message("# slots, memory unknown: %u hits of 200, %u wrong\n", hits, wrong);
        assert_true(hits >= 180);
        assert_true(wrong <= 15);
        for (uint32_t i = 0; i < 3; i++)
                assert_true(brain_info(&fleet, i).trust > 0.9);
}

static void requests_wait_for_a_slot_in_order(void **state)
{
        struct kvr_ticket *tickets[4];

        (void)state;
        up(1, (struct kvr_replica_spec){.cache = KVR_CACHE_SLOTS, .slots = 1});
        for (uint64_t i = 0; i < 4; i++) {
                struct kvr_request request = text(i, 4000);

                tickets[i] = brain_send(&fleet, &request, NULL);
        }
        /* 1 leaves while it waits, 0 and 2 are served: then 3 has the slot, and 0 and 2 are in memory. */
        brain_end(tickets[1], KVR_END_CLIENT, -1, -1, -1);
        brain_end(tickets[0], KVR_END_FINISHED, 1000, 0, 0);
        brain_end(tickets[2], KVR_END_FINISHED, 1000, 0, 0);
        brain_end(tickets[3], KVR_END_FINISHED, 1000, 0, 0);
        assert_int_equal(predict(0, 4000), 999);
        assert_int_equal(predict(1, 4000), 0);
        assert_int_equal(predict(2, 4000), 999);
        assert_int_equal(predict(3, 4000), 999);
        assert_books_empty();
}

static void what_waited_through_a_loss_is_not_believed(void **state)
{
        struct kvr_ticket *tickets[2];

        (void)state;
        up(1, (struct kvr_replica_spec){.cache = KVR_CACHE_SLOTS, .slots = 1});
        for (uint64_t i = 0; i < 2; i++) {
                struct kvr_request request = text(i, 4000);

                tickets[i] = brain_send(&fleet, &request, NULL);
        }
        kvr_replica_forget(fleet.router, fleet.ids[0]);
        brain_end(tickets[0], KVR_END_FINISHED, 1000, 0, 0);
        brain_end(tickets[1], KVR_END_FINISHED, 1000, 0, 0);
        assert_int_equal(predict(0, 4000), 0);
        assert_int_equal(predict(1, 4000), 0);
        assert_books_empty();
}

/* How long a slot is kept does not include the wait for it, of which it is the measure. */
static void a_slot_is_kept_from_when_it_was_free(void **state)
{
        struct kvr_ticket *tickets[3];

        (void)state;
        up(1, (struct kvr_replica_spec){.cache = KVR_CACHE_SLOTS, .slots = 1});
        for (uint64_t i = 0; i < 3; i++) {
                struct kvr_request request = text(i, 400);

                tickets[i] = brain_send(&fleet, &request, NULL);
        }
        struct kvr__replica *replica = fleet.router->fleet.order[0];

        for (int i = 0; i < 3; i++) {
                fleet.env.now_ns += BRAIN_S(10);
                /* Those in front of a new one, and it: each has the slot for ten seconds, once that was seen. */
                if (i)
                        assert_true(fabs(kvr__load_wait(replica, 1e-6, fleet.env.now_ns) - 10.0 * (3 - i)) <
                                    1e-6);
                brain_end(tickets[i], KVR_END_FINISHED, 100, 0, 0);
                assert_true(fabs(replica->mean_slot_s - 10) < 1e-6);
        }
        assert_true(replica->mean_total_s > 10.5);
        /* Where there is more to compute than the slots' turn tells, that is what they wait for. */
        for (uint64_t i = 0; i < 3; i++) {
                struct kvr_request request = text(10 + i, 4000000);

                tickets[i] = brain_send(&fleet, &request, NULL);
        }
        assert_true(kvr__load_wait(replica, 1e-3, fleet.env.now_ns) > 1000);
        for (int i = 0; i < 3; i++)
                brain_end(tickets[i], KVR_END_CLIENT, -1, -1, -1);
        assert_books_empty();
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_teardown(books_follow_one_request, down),
                cmocka_unit_test_teardown(books_are_zero_at_rest, down),
                cmocka_unit_test_teardown(first_token_after_removal_is_harmless, down),
                cmocka_unit_test_teardown(ratio_is_learned, down),
                cmocka_unit_test_teardown(counted_prompts_are_known_exactly, down),
                cmocka_unit_test_teardown(matches_are_whole_blocks, down),
                cmocka_unit_test_teardown(answers_are_credited_where_they_were_generated, down),
                cmocka_unit_test_teardown(answers_that_do_not_come_back_are_not_credited, down),
                cmocka_unit_test_teardown(failed_tries_leave_nothing_behind, down),
                cmocka_unit_test_teardown(responses_know_their_owner, down),
                cmocka_unit_test_teardown(accounts_tell_why_hits_are_missing, down),
                cmocka_unit_test_teardown(llama_fleet_is_predicted_by_slots, down),
                cmocka_unit_test_teardown(a_slot_is_kept_from_when_it_was_free, down),
                cmocka_unit_test_teardown(memory_of_a_llama_is_learned, down),
                cmocka_unit_test_teardown(requests_wait_for_a_slot_in_order, down),
                cmocka_unit_test_teardown(what_waited_through_a_loss_is_not_believed, down),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
