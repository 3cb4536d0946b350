/* SPDX-License-Identifier: Apache-2.0 */
/* The default policy in the situations that users report. Times are virtual. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "brain_test.h"

static struct brain_fleet fleet;
static struct brain_prompt p;

static void up(uint32_t count)
{
        brain_fleet_up(&fleet, NULL, count, (struct kvr_replica_spec){.block_tokens = 16});
}

static int down(void **state)
{
        (void)state;
        kvr_router_free(fleet.router);
        fleet.router = NULL;
        return 0;
}

static void assert_near(double a, double b, double off)
{
        if (!(fabs(a - b) <= off))
                fail_msg("%.12g is not %.12g", a, b);
}

static uint32_t most(const uint32_t *counts, uint32_t n)
{
        uint32_t most = 0;

        for (uint32_t i = 0; i < n; i++)
                most = counts[i] > most ? counts[i] : most;
        return most;
}

static struct kvr_request text(uint64_t number, uint64_t bytes)
{
        return (struct kvr_request){.prompt = brain_prompt_of(&p, number, bytes)};
}

/* Puts `n` unique prompts of that size on one replica, without an answer so far. */
static void occupy(uint32_t replica, uint64_t first_text, uint64_t bytes, int n, struct kvr_ticket **ret)
{
        for (int i = 0; i < n; i++) {
                struct kvr_request request = text(first_text + (uint64_t)i, bytes);

                request.pinned = fleet.ids[replica];
                ret[i] = brain_send(&fleet, &request, NULL);
        }
}

/* ---- ties and idle fleets ---- */

static void unique_prompts_one_at_a_time_spread(void **state)
{
        uint32_t counts[4] = {0};

        (void)state;
        up(4);
        for (uint64_t i = 0; i < 200; i++) {
                struct kvr_request request = text(1000 + i, 3000);

                counts[brain_serve(&fleet, &request, NULL)]++;
        }
        assert_true(most(counts, 4) <= 60);
}

static void conversation_stays(void **state)
{
        uint32_t home = 0;

        (void)state;
        up(4);
        for (uint64_t other = 0; other < 5; other++) {
                struct kvr_request request = text(500 + other, 4000);

                brain_serve(&fleet, &request, NULL);
        }
        for (uint64_t turns = 1; turns <= 10; turns++) {
                struct kvr_decision decision;

                brain_prompt_init(&p);
                for (uint64_t m = 0; m < turns; m++)
                        brain_message(&p, 10 + m, 1500);
                struct kvr_request request = {.prompt = brain_prompt_done(&p)};
                uint32_t at = brain_serve(&fleet, &request, &decision);

                if (turns == 1) {
                        home = at;
                        continue;
                }
                assert_int_equal(at, home);
                assert_int_equal(decision.reason, KVR_REASON_HIT);
                assert_true(decision.match_tokens + 400 > decision.prompt_tokens * (turns - 1) / turns);
        }
}

static void five_conversations_move_at_most_once(void **state)
{
        uint32_t homes[5], moves[5] = {0};

        (void)state;
        up(4);
        for (uint64_t turns = 1; turns <= 20; turns++)
                for (uint64_t c = 0; c < 5; c++) {
                        brain_prompt_init(&p);
                        for (uint64_t m = 0; m < turns; m++)
                                brain_message(&p, 100 * c + m, 800);
                        struct kvr_request request = {.prompt = brain_prompt_done(&p)};
                        uint32_t at = brain_serve(&fleet, &request, NULL);

                        if (turns > 1)
                                moves[c] += at != homes[c];
                        homes[c] = at;
                }
        assert_true(most(moves, 5) <= 1);
}

static void session_key_holds_what_text_does_not(void **state)
{
        static const char *const keys[] = {"s0", "s1", "s2", "s3", "s4"};
        uint32_t homes[5], moves[5] = {0};

        (void)state;
        up(4);
        for (uint64_t turns = 1; turns <= 20; turns++)
                for (uint64_t c = 0; c < 5; c++) {
                        /* Differs from the first byte on each time. */
                        struct kvr_request request = text(100 * c + turns, 800 * turns);
                        struct kvr_decision decision;

                        request.affinity = brain_slice(keys[c]);
                        uint32_t at = brain_serve(&fleet, &request, &decision);

                        if (turns > 1) {
                                moves[c] += at != homes[c];
                                assert_int_equal(decision.reason, KVR_REASON_AFFINITY);
                        }
                        homes[c] = at;
                }
        assert_int_equal(most(moves, 5), 0);
}

static void session_key_expires_and_yields(void **state)
{
        struct kvr_ticket *tickets[8];
        struct kvr_decision decision;
        struct kvr_request request;

        (void)state;
        up(2);
        request = text(1, 4000);
        request.affinity = brain_slice("me");
        uint32_t home = brain_serve(&fleet, &request, NULL);

        /* Not if its replica has much more to do, */
        occupy(home, 100, 8000, 8, tickets);
        request = text(2, 4000);
        request.affinity = brain_slice("me");
        assert_int_not_equal(brain_serve(&fleet, &request, &decision), home);
        for (int i = 0; i < 8; i++)
                brain_end(tickets[i], KVR_END_CLIENT, -1, -1, -1);
        /* nor against a real match elsewhere, */
        struct kvr_request held = text(3, 8000);

        held.pinned = fleet.ids[home];
        brain_serve(&fleet, &held, NULL);
        request = text(3, 8000);
        request.affinity = brain_slice("me");
        assert_int_equal(brain_serve(&fleet, &request, &decision), home);
        assert_int_equal(decision.reason, KVR_REASON_HIT);
        /* nor after an hour. */
        fleet.env.now_ns += BRAIN_S(3700);
        request = text(4, 4000);
        request.affinity = brain_slice("me");
        brain_serve(&fleet, &request, &decision);
        assert_int_equal(decision.reason, KVR_REASON_LOAD);
}

static void unknown_prompts_spread(void **state)
{
        uint32_t counts[4] = {0};

        (void)state;
        up(4);
        for (int i = 0; i < 50; i++) {
                struct kvr_request request = {0};
                struct kvr_decision decision;

                brain_send(&fleet, &request, &decision);
                counts[brain_number(&fleet, decision.replica)]++;
                assert_int_equal(decision.prompt_tokens, 0);
                assert_int_equal(decision.reason, KVR_REASON_LOAD);
        }
        assert_true(most(counts, 4) <= 13);
}

/* ---- load ---- */

static void miss_goes_by_load_not_by_cache(void **state)
{
        struct kvr_ticket *tickets[20];
        uint32_t reached = 0;

        (void)state;
        up(2);
        struct kvr_request request = text(1, 200000);

        request.pinned = fleet.ids[1];
        brain_serve(&fleet, &request, NULL);
        occupy(0, 100, 400, 20, tickets);
        /* Streaming, slowly. */
        for (int i = 0; i < 20; i++) {
                fleet.env.now_ns += BRAIN_MS(5);
                kvr_ticket_first_token(tickets[i]);
        }
        for (uint64_t i = 0; i < 20; i++) {
                request = text(200 + i, 400);
                reached += brain_serve(&fleet, &request, NULL) == 1;
        }
        assert_true(reached >= 18);
}

static void one_busy_replica_leaves_the_others_their_prefixes(void **state)
{
        struct kvr_ticket *tickets[30];

        (void)state;
        up(3);
        struct kvr_request request = text(1, 4000);

        request.pinned = fleet.ids[1];
        brain_serve(&fleet, &request, NULL);
        occupy(0, 100, 4000, 30, tickets);
        brain_prompt_init(&p);
        brain_message(&p, 1, 4000);
        brain_message(&p, 2, 1000);
        request = (struct kvr_request){.prompt = brain_prompt_done(&p)};
        assert_int_equal(brain_serve(&fleet, &request, NULL), 1);
}

static void headers_held_prompts_spread_evenly(void **state)
{
        uint32_t counts[3] = {0};

        (void)state;
        up(3);
        for (uint64_t i = 0; i < 12; i++) {
                struct kvr_request request = text(100 + i, 3000);
                struct kvr_decision decision;

                brain_send(&fleet, &request, &decision);
                counts[brain_number(&fleet, decision.replica)]++;
                fleet.env.now_ns += BRAIN_MS(80);
        }
        for (int i = 0; i < 3; i++)
                assert_in_range(counts[i], 3, 5);
}

static void burst_spreads_although_reports_stand_still(void **state)
{
        uint32_t counts[8] = {0};

        (void)state;
        up(8);
        for (int i = 0; i < 8; i++) {
                struct kvr_load_report report = {fleet.env.now_ns, 0, 0, 0.1, 0};

                assert_int_equal(kvr_replica_report(fleet.router, fleet.ids[i], &report), KVR_OK);
        }
        for (uint64_t i = 0; i < 64; i++) {
                struct kvr_request request = text(100 + i, 2000);
                struct kvr_decision decision;

                brain_send(&fleet, &request, &decision);
                counts[brain_number(&fleet, decision.replica)]++;
        }
        assert_true(most(counts, 8) <= 9);
}

static void long_prompt_weighs_more_until_its_first_token(void **state)
{
        struct kvr_ticket *a[1], *b[2], *probes[10];
        uint32_t to_b = 0;

        (void)state;
        up(2);
        occupy(0, 100, 400000, 1, a);
        occupy(1, 200, 400, 2, b);
        for (uint64_t i = 0; i < 10; i++) {
                struct kvr_request request = text(300 + i, 400);
                struct kvr_decision decision;

                probes[i] = brain_send(&fleet, &request, &decision);
                to_b += brain_number(&fleet, decision.replica) == 1;
        }
        assert_int_equal(to_b, 10);
        for (int i = 0; i < 10; i++)
                brain_end(probes[i], KVR_END_CLIENT, -1, -1, -1);
        /* From then on a request is a request. */
        fleet.env.now_ns += BRAIN_S(13);
        kvr_ticket_first_token(a[0]);
        kvr_ticket_first_token(b[0]);
        kvr_ticket_first_token(b[1]);
        struct kvr_request request = text(400, 400);
        struct kvr_decision decision;

        brain_send(&fleet, &request, &decision);
        assert_int_equal(brain_number(&fleet, decision.replica), 0);
        assert_int_equal(brain_info(&fleet, 1).uncached_tokens_booked, 0);
}

static void foreign_queue_counts(void **state)
{
        (void)state;
        up(2);
        struct kvr_load_report report = {fleet.env.now_ns, 8, 12, 0.5, -1};

        kvr_replica_report(fleet.router, fleet.ids[0], &report);
        for (uint64_t i = 0; i < 5; i++) {
                struct kvr_request request = text(i + 10, 2000);

                assert_int_equal(brain_serve(&fleet, &request, NULL), 1);
        }
        /* Our own waiting ones are not foreign: the report came while they waited. */
        struct kvr_ticket *tickets[12];

        report = (struct kvr_load_report){fleet.env.now_ns, NAN, NAN, NAN, NAN};
        kvr_replica_report(fleet.router, fleet.ids[0], &report);
        occupy(0, 100, 2000, 12, tickets);
        report = (struct kvr_load_report){fleet.env.now_ns, 0, 12, 0.5, -1};
        kvr_replica_report(fleet.router, fleet.ids[0], &report);
        for (int i = 0; i < 12; i++)
                brain_end(tickets[i], KVR_END_CLIENT, -1, -1, -1);
        struct kvr_request request = text(50, 2000);
        struct kvr_candidate candidates[2];
        struct kvr_decision decision;
        size_t count;

        assert_int_equal(kvr_explain(fleet.router, &request, &decision, candidates, 2, &count, NULL), KVR_OK);
        assert_near(candidates[0].wait_s, 0, 1e-12);
}

static void old_or_missing_figures_are_unknown(void **state)
{
        (void)state;
        up(2);
        struct kvr_load_report report = {fleet.env.now_ns, 8, 12, 0.99, 50000};

        kvr_replica_report(fleet.router, fleet.ids[0], &report);
        assert_true(brain_info(&fleet, 0).load.waiting == 12);
        fleet.env.now_ns += BRAIN_S(11);
        assert_true(isnan(brain_info(&fleet, 0).load.waiting));
        uint32_t counts[2] = {0};

        for (uint64_t i = 0; i < 10; i++) {
                struct kvr_request request = text(i + 10, 2000);

                counts[brain_serve(&fleet, &request, NULL)]++;
        }
        assert_int_equal(counts[0], 5);
        /* A report that omits the queue says nothing good either: equal to one without report. */
        report = (struct kvr_load_report){fleet.env.now_ns, -1, -1, NAN, NAN};
        kvr_replica_report(fleet.router, fleet.ids[0], &report);
        assert_true(isnan(brain_info(&fleet, 0).load.waiting));
        for (uint64_t i = 0; i < 10; i++) {
                struct kvr_request request = text(i + 30, 2000);

                counts[brain_serve(&fleet, &request, NULL)]++;
        }
        assert_int_equal(counts[0], 10);
}

static void full_cache_with_a_queue_is_avoided(void **state)
{
        struct kvr_ticket *tickets[6];
        uint32_t to_b = 0;

        (void)state;
        up(2);
        brain_prompt_init(&p);
        brain_message(&p, 1, 1000);
        struct kvr_request request = {.prompt = brain_prompt_done(&p), .pinned = fleet.ids[0]};

        brain_serve(&fleet, &request, NULL);
        occupy(0, 100, 2000, 2, tickets);
        occupy(1, 200, 2000, 4, tickets + 2);
        fleet.env.now_ns += BRAIN_MS(500);
        for (int i = 0; i < 6; i++)
                kvr_ticket_first_token(tickets[i]);
        struct kvr_load_report report = {fleet.env.now_ns, NAN, 5, 0.98, NAN};

        kvr_replica_report(fleet.router, fleet.ids[0], &report);
        for (uint64_t i = 0; i < 10; i++) {
                brain_prompt_init(&p);
                brain_message(&p, 1, 1000);
                brain_message(&p, 50 + i, 4000);
                request = (struct kvr_request){.prompt = brain_prompt_done(&p)};
                to_b += brain_serve(&fleet, &request, NULL) == 1;
        }
        assert_true(to_b >= 8);
}

/* ---- shared prefixes ---- */

/* A virtual replica: one prompt after the other, at the router's default speed. */
struct queue {
        struct kvr_ticket *tickets[4096];
        uint64_t done_ns[4096];
        int64_t prompt[4096], cached[4096];
        uint32_t head, tail;
        uint64_t free_ns;
};

static void queue_put(struct queue *queues, const struct kvr_request *request, struct kvr_decision *ret)
{
        struct kvr_ticket *ticket = brain_send(&fleet, request, ret);
        struct queue *queue = &queues[brain_number(&fleet, ret->replica)];
        uint64_t from = queue->free_ns > fleet.env.now_ns ? queue->free_ns : fleet.env.now_ns;

        queue->free_ns = from + (uint64_t)(ret->prompt_tokens - ret->match_tokens) * 125000;
        queue->tickets[queue->tail] = ticket;
        queue->prompt[queue->tail] = ret->prompt_tokens;
        queue->cached[queue->tail] = ret->match_tokens;
        queue->done_ns[queue->tail++] = queue->free_ns;
}

static void queues_run(struct queue *queues, uint32_t n, uint64_t until_ns)
{
        for (;;) {
                struct queue *next = NULL;

                for (uint32_t i = 0; i < n; i++)
                        if (queues[i].head < queues[i].tail &&
                            (!next || queues[i].done_ns[queues[i].head] < next->done_ns[next->head]))
                                next = &queues[i];
                if (!next || next->done_ns[next->head] > until_ns)
                        break;
                uint32_t at = next->head++;

                fleet.env.now_ns = next->done_ns[at];
                kvr_ticket_first_token(next->tickets[at]);
                brain_end(next->tickets[at], KVR_END_FINISHED, next->prompt[at], next->cached[at], 10);
        }
        fleet.env.now_ns = until_ns;
}

/* 40 users behind one preamble, one request in flight each: nobody gets 40 %, and second turns come home. */
static void shared_preamble_spreads_and_users_return(void **state)
{
        enum { USERS = 40 };
        struct queue *queues = calloc(4, sizeof(*queues));
        uint32_t homes[USERS], counts[4] = {0}, returned = 0;
        uint64_t at_ns;

        (void)state;
        up(4);
        at_ns = fleet.env.now_ns;
        for (int turn = 0; turn < 2; turn++) {
                for (uint64_t u = 0; u < USERS; u++) {
                        struct kvr_decision decision;

                        queues_run(queues, 4, at_ns += turn ? BRAIN_MS(40) : BRAIN_MS(20));
                        brain_prompt_init(&p);
                        brain_message(&p, 1, 8192);
                        brain_message(&p, 100 + u, 1024);
                        if (turn)
                                brain_message(&p, 200 + u, 1024);
                        struct kvr_request request = {.prompt = brain_prompt_done(&p)};

                        queue_put(queues, &request, &decision);
                        uint32_t at = brain_number(&fleet, decision.replica);

                        returned += turn && at == homes[u];
                        homes[u] = at;
                        counts[at] += !turn;
                }
                queues_run(queues, 4, at_ns += BRAIN_S(2));
        }
        print_message("# preamble: most %u of %d, %u returned\n", most(counts, 4), USERS, returned);
        assert_true(most(counts, 4) < 16);
        assert_int_equal(returned, USERS);
        free(queues);
}

static void hot_prefix_load_is_even(void **state)
{
        enum { REPLICAS = 8, REQUESTS = 3000 };
        struct queue *queues = calloc(REPLICAS, sizeof(*queues));
        uint64_t at_ns, random = 99, slowest_ns = 0;
        uint32_t counts[REPLICAS];

        (void)state;
        up(REPLICAS);
        at_ns = fleet.env.now_ns;
        for (uint64_t i = 0; i < REQUESTS; i++) {
                uint64_t chance = brain_mix(random++);
                struct kvr_decision decision;

                /* About 75 % busy if the prefix were cached everywhere. */
                at_ns += BRAIN_MS(20) + chance % BRAIN_MS(20);
                queues_run(queues, REPLICAS, at_ns);
                brain_prompt_init(&p);
                if ((chance >> 32) % 10 < 7)
                        brain_message(&p, 1, 24000);
                brain_message(&p, 1000 + i, 2000 + (chance >> 40) % 8000);
                struct kvr_request request = {.prompt = brain_prompt_done(&p)};
                queue_put(queues, &request, &decision);
                const struct queue *queue = &queues[brain_number(&fleet, decision.replica)];

                if (i > 200 && queue->free_ns - at_ns > slowest_ns)
                        slowest_ns = queue->free_ns - at_ns;
        }
        queues_run(queues, REPLICAS, at_ns + BRAIN_S(1000));
        for (int i = 0; i < REPLICAS; i++)
                counts[i] = queues[i].tail;
        print_message("# hot prefix: most %u of mean %d, slowest %.2f s\n", most(counts, REPLICAS),
                      REQUESTS / REPLICAS, (double)slowest_ns / 1e9);
        assert_true(most(counts, REPLICAS) * REPLICAS <= REQUESTS * 120 / 100);
        assert_true(slowest_ns < BRAIN_S(4));
        for (uint32_t i = 0; i < REPLICAS; i++) {
                assert_int_equal(brain_info(&fleet, i).in_flight, 0);
                assert_int_equal(brain_info(&fleet, i).uncached_tokens_booked, 0);
        }
        free(queues);
}

/* Light traffic on one prefix: several replicas meet it before the rush. */
static void hot_prefix_is_copied_before_the_rush(void **state)
{
        uint32_t met[4] = {0}, replicas = 0;

        (void)state;
        up(4);
        for (uint64_t i = 0; i < 100; i++) {
                brain_prompt_init(&p);
                brain_message(&p, 1, 16000);
                brain_message(&p, 100 + i, 800);
                struct kvr_request request = {.prompt = brain_prompt_done(&p)};

                met[brain_serve(&fleet, &request, NULL)]++;
        }
        for (int i = 0; i < 4; i++)
                replicas += met[i] > 0;
        assert_int_equal(replicas, 4);
}

/* One of eight beginnings (2,000 tokens) with a tail of its own. */
static struct kvr_request behind(uint64_t group, uint64_t tail)
{
        brain_prompt_init(&p);
        brain_message(&p, 10 + group, 8000);
        brain_message(&p, 1000 + tail, 400);
        return (struct kvr_request){.prompt = brain_prompt_done(&p)};
}

/*
 * A quarter of a copy is due to each of eight beginnings on two replicas, so all stay where they are. But while others
 * keep that replica busy, its requests wait, and the other one does nothing.
 */
static void a_copy_is_made_when_its_price_has_been_waited(void **state)
{
        struct kvr_ticket *busy[1];
        struct kvr_decision decision;
        uint32_t stayed = 0;
        double waited_s = 0, price_s = 0;

        (void)state;
        up(2);
        for (uint64_t i = 0; i < 80; i++) {
                struct kvr_request request = behind(i % 8, i);

                request.pinned = fleet.ids[0];
                brain_serve(&fleet, &request, NULL);
        }
        for (uint64_t i = 0; i < 10; i++) {
                struct kvr_request request = behind(3, 200 + i);

                assert_int_equal(brain_serve(&fleet, &request, NULL), 0); /* nobody waits */
        }
        occupy(0, 100, 2400, 1, busy);
        for (uint64_t i = 0; i < 50; i++, stayed++) {
                struct kvr_request request = behind(3, 300 + i);
                struct kvr_candidate candidates[2];
                size_t count;

                assert_int_equal(kvr_explain(fleet.router, &request, &decision, candidates, 2, &count, NULL),
                                 KVR_OK);
                waited_s += candidates[0].cost_s;
                if (stayed == 0)
                        price_s = candidates[1].own_s + candidates[1].toll_s; /* with the tail */
                if (brain_serve(&fleet, &request, &decision) == 1)
                        break;
        }
        assert_int_equal(decision.reason, KVR_REASON_SPREAD);
        assert_true(decision.due_tokens > 1900 && decision.due_tokens <= 2000);
        assert_in_range(stayed, 3, 8);
        /* The tails cost the same here and there: what was waited is just about what the copy costs. */
        assert_true(waited_s > price_s * 0.8 && waited_s < price_s * 2);
        /* From then on there are two, and another beginning has to wait for its own. */
        struct kvr_request request = behind(3, 400);

        assert_int_equal(brain_serve(&fleet, &request, NULL), 1);
        request = behind(4, 401);
        assert_int_equal(brain_serve(&fleet, &request, NULL), 0);
}

/* ---- newcomers ---- */

static void newcomer_is_neither_starved_nor_flooded(void **state)
{
        struct kvr_ticket *tickets[30];
        uint32_t to_new = 0;

        (void)state;
        up(3);
        for (uint32_t r = 0; r < 3; r++)
                occupy(r, 100 * (r + 1), 4000, 10, tickets + 10 * r);
        brain_add(&fleet, (struct kvr_replica_spec){.block_tokens = 16});
        /* Ten seconds, two prompts a second; the old ones finish as many, the new one nothing yet. */
        for (uint64_t i = 0; i < 20; i++) {
                struct kvr_request request = text(1000 + i, 4000);
                struct kvr_decision decision;
                struct kvr_ticket *ticket = brain_send(&fleet, &request, &decision);
                uint32_t at = brain_number(&fleet, decision.replica);

                to_new += at == 3;
                if (at < 3) {
                        kvr_ticket_first_token(tickets[at * 10 + i % 10]);
                        brain_end(tickets[at * 10 + i % 10], KVR_END_FINISHED, 1000, 0, 10);
                        tickets[at * 10 + i % 10] = ticket;
                }
                fleet.env.now_ns += BRAIN_MS(500);
        }
        assert_in_range(to_new, 3, 9);
}

/* ---- speed ---- */

static void faster_replicas_get_more(void **state)
{
        uint32_t counts[2] = {0};
        struct kvr_ticket *tickets[1];

        (void)state;
        up(2);
        for (uint64_t i = 0; i < 20; i++)
                for (uint32_t r = 0; r < 2; r++) {
                        occupy(r, 100 + 2 * i + r, 8000, 1, tickets);
                        fleet.env.now_ns += BRAIN_MS(r ? 400 : 100);
                        kvr_ticket_first_token(tickets[0]);
                        brain_end(tickets[0], KVR_END_FINISHED, 2000, 0, 10);
                }
        assert_near(brain_info(&fleet, 0).prefill_tokens_per_second, 20000, 1500);
        assert_near(brain_info(&fleet, 1).prefill_tokens_per_second, 5000, 200);
        for (uint64_t i = 0; i < 40; i++) {
                struct kvr_request request = text(1000 + i, 8000);
                struct kvr_decision decision;

                brain_send(&fleet, &request, &decision);
                counts[brain_number(&fleet, decision.replica)]++;
        }
        assert_in_range(counts[0], 30, 34);
}

/* Speeds are measured, so never equal: that alone must not draw all new prompts of an idle fleet to one
 * replica. */
static void nearly_equal_speeds_share(void **state)
{
        uint32_t counts[4] = {0};
        struct kvr_ticket *tickets[1];

        (void)state;
        up(4);
        for (uint64_t i = 0; i < 40; i++)
                for (uint32_t r = 0; r < 4; r++) {
                        occupy(r, 100 + 4 * i + r, 8000, 1, tickets);
                        fleet.env.now_ns += BRAIN_MS(100 + 3 * r);
                        kvr_ticket_first_token(tickets[0]);
                        brain_end(tickets[0], KVR_END_FINISHED, 2000, 0, 10);
                }
        assert_true(brain_info(&fleet, 0).prefill_tokens_per_second >
                    brain_info(&fleet, 3).prefill_tokens_per_second * 1.05);
        for (uint64_t i = 0; i < 200; i++) {
                struct kvr_request request = text(1000 + i, 8000);
                struct kvr_decision decision;
                struct kvr_ticket *ticket = brain_send(&fleet, &request, &decision);
                uint32_t at = brain_number(&fleet, decision.replica);

                counts[at]++;
                fleet.env.now_ns += BRAIN_MS(100 + 3 * at);
                kvr_ticket_first_token(ticket);
                brain_end(ticket, KVR_END_FINISHED, 2000, 0, 10);
        }
        assert_true(most(counts, 4) <= 55);
}

/* Quick engines, one of which stutters for some milliseconds: no reason to leave what is cached there. */
static void jitter_does_not_move_a_conversation(void **state)
{
        struct kvr_ticket *tickets[1];

        (void)state;
        up(4);
        for (uint64_t i = 0; i < 10; i++)
                for (uint32_t r = 0; r < 3; r++) {
                        occupy(r, 100 + 4 * i + r, 600, 1, tickets);
                        fleet.env.now_ns += 500000;
                        kvr_ticket_first_token(tickets[0]);
                        brain_end(tickets[0], KVR_END_FINISHED, 150, 0, 10);
                }
        for (uint64_t turns = 1; turns <= 10; turns++) {
                struct kvr_decision decision;

                brain_prompt_init(&p);
                for (uint64_t m = 0; m < turns; m++)
                        brain_message(&p, 10 + m, 600);
                struct kvr_request request = {.prompt = brain_prompt_done(&p)};

                request.pinned = turns == 1 ? fleet.ids[3] : 0;
                struct kvr_ticket *ticket = brain_send(&fleet, &request, &decision);

                assert_int_equal(brain_number(&fleet, decision.replica), 3);
                fleet.env.now_ns += BRAIN_MS(8);
                kvr_ticket_first_token(ticket);
                brain_end(ticket, KVR_END_FINISHED, decision.prompt_tokens, decision.match_tokens, -1);
        }
}

/* What is cached where answers are generated is worth less by half a usual one for each, in proportion to the match. */
static void running_answers_make_a_match_worth_less(void **state)
{
        struct kvr_candidate candidates[2];
        struct kvr_decision decision;
        size_t count;

        (void)state;
        up(2);
        for (uint64_t i = 0; i < 20; i++) {
                struct kvr_request request = text(100 + i, 4000);
                struct kvr_ticket *ticket = brain_send(&fleet, &request, &decision);

                fleet.env.now_ns += BRAIN_MS(50);
                kvr_ticket_first_token(ticket);
                fleet.env.now_ns += BRAIN_S(5);
                brain_end(ticket, KVR_END_FINISHED, decision.prompt_tokens, 0, 1000);
        }
        struct kvr_request request = text(1, 4000);

        request.pinned = fleet.ids[0];
        struct kvr_ticket *ticket = brain_send(&fleet, &request, &decision);
        double token_s = 0;

        fleet.env.now_ns += BRAIN_MS(50);
        kvr_ticket_first_token(ticket);
        for (uint64_t number = 2; number-- > 0;) { /* a prompt of its own, then the very same one */
                request = text(number == 0 ? 1 : 2, 4000);
                assert_int_equal(kvr_explain(fleet.router, &request, &decision, candidates, 2, &count, NULL),
                                 KVR_OK);
                token_s = candidates[1].own_s / decision.prompt_tokens;
                double share = (double)candidates[0].match_tokens / decision.prompt_tokens;

                assert_true(number == 1 ? share == 0 : share > 0.9);
                assert_near(candidates[0].wait_s, (8 + 500 * share) * token_s, 1e-9);
                assert_near(candidates[1].wait_s, 0, 0);
        }
        brain_end(ticket, KVR_END_FINISHED, decision.prompt_tokens, 0, 1000);
}

/* ---- explanations ---- */

static void costs_add_up(void **state)
{
        struct kvr_candidate candidates[4];
        struct kvr_decision decision, explained;
        struct kvr_ticket *tickets[3];
        size_t count;

        (void)state;
        up(4);
        occupy(2, 100, 4000, 3, tickets);
        struct kvr_request request = text(1, 4000);

        request.pinned = fleet.ids[1];
        brain_serve(&fleet, &request, NULL);
        brain_prompt_init(&p);
        brain_message(&p, 1, 4000);
        brain_message(&p, 2, 4000);
        request = (struct kvr_request){.prompt = brain_prompt_done(&p)};
        for (int twice = 0; twice < 2; twice++) {
                assert_int_equal(kvr_explain(fleet.router, &request, &explained, candidates, 4, &count, NULL),
                                 KVR_OK);
                assert_int_equal(count, 4);
        }
        for (int i = 0; i < 4; i++) {
                assert_int_equal(candidates[i].replica, fleet.ids[i]);
                assert_near(candidates[i].cost_s,
                            candidates[i].wait_s + candidates[i].own_s + candidates[i].toll_s, 1e-9);
        }
        /* 1,000 tokens are cached on the second, in whole blocks; the first answer's 20 come on top. */
        assert_int_equal(candidates[1].match_tokens, 1008);
        assert_int_equal(candidates[0].match_tokens, 0);
        assert_near(candidates[0].own_s / candidates[1].own_s, 2000.0 / 992, 1e-9);
        /* 3 * 1000 tokens wait on the third. */
        assert_near(candidates[2].wait_s / candidates[0].own_s, 3000.0 / 2000, 1e-9);
        assert_near(candidates[0].wait_s, 0, 1e-12);
        assert_int_equal(explained.replica, fleet.ids[1]);
        brain_send(&fleet, &request, &decision);
        assert_int_equal(decision.replica, explained.replica);
        assert_int_equal(decision.match_tokens, explained.match_tokens);
        assert_int_equal(decision.reason, KVR_REASON_HIT);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_teardown(unique_prompts_one_at_a_time_spread, down),
                cmocka_unit_test_teardown(conversation_stays, down),
                cmocka_unit_test_teardown(five_conversations_move_at_most_once, down),
                cmocka_unit_test_teardown(session_key_holds_what_text_does_not, down),
                cmocka_unit_test_teardown(session_key_expires_and_yields, down),
                cmocka_unit_test_teardown(unknown_prompts_spread, down),
                cmocka_unit_test_teardown(miss_goes_by_load_not_by_cache, down),
                cmocka_unit_test_teardown(one_busy_replica_leaves_the_others_their_prefixes, down),
                cmocka_unit_test_teardown(headers_held_prompts_spread_evenly, down),
                cmocka_unit_test_teardown(burst_spreads_although_reports_stand_still, down),
                cmocka_unit_test_teardown(long_prompt_weighs_more_until_its_first_token, down),
                cmocka_unit_test_teardown(foreign_queue_counts, down),
                cmocka_unit_test_teardown(old_or_missing_figures_are_unknown, down),
                cmocka_unit_test_teardown(full_cache_with_a_queue_is_avoided, down),
                cmocka_unit_test_teardown(shared_preamble_spreads_and_users_return, down),
                cmocka_unit_test_teardown(hot_prefix_load_is_even, down),
                cmocka_unit_test_teardown(hot_prefix_is_copied_before_the_rush, down),
                cmocka_unit_test_teardown(a_copy_is_made_when_its_price_has_been_waited, down),
                cmocka_unit_test_teardown(newcomer_is_neither_starved_nor_flooded, down),
                cmocka_unit_test_teardown(faster_replicas_get_more, down),
                cmocka_unit_test_teardown(nearly_equal_speeds_share, down),
                cmocka_unit_test_teardown(jitter_does_not_move_a_conversation, down),
                cmocka_unit_test_teardown(running_answers_make_a_match_worth_less, down),
                cmocka_unit_test_teardown(costs_add_up, down),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
