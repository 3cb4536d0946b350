/* SPDX-License-Identifier: Apache-2.0 */
/* What is learned from answers: sizes, losses, trust, speeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "brain_serve_test.h"

/* ---- observations ---- */

static void unknown_is_not_zero(void **state)
{
        (void)state;
        up(1, (struct kvr_replica_spec){0});
        for (int i = 0; i < 20; i++) {
                struct kvr_request request = text(1, 8000);

                serve_as(&request, 2000, -1, 10);
        }
        struct kvr_replica_info info = brain_info(&fleet, 0);

        assert_int_equal(predict(1, 8000), 1999);
        assert_int_equal(info.unobserved_tokens, 40000);
        assert_int_equal(info.observed_tokens, 0);
        assert_true(isnan(info.prediction_error));
        /* With several choices or prompts the engine's count says nothing of hits. */
        struct kvr_request request = text(1, 8000);

        p.prompt.choices = 4;
        serve_as(&request, 2000, 0, 10);
        p.prompt.choices = 1;
        p.prompt.prompt_count = 2;
        serve_as(&request, 2000, 0, 10);
        p.prompt.prompt_count = 1;
        info = brain_info(&fleet, 0);
        assert_int_equal(info.unobserved_tokens, 44000);
        assert_true(isnan(info.prediction_error));
        assert_near(info.trust, 1, 1e-12);
        assert_int_equal(predict(1, 8000), 1999);
}

/* An engine that is an LRU of `capacity` tokens of equal prompts, seen through a fleet of one. */
struct engine {
        uint64_t texts[4096];
        uint32_t count, room;
};

static bool engine_hit(struct engine *engine, uint64_t number)
{
        uint32_t at = 0;

        while (at < engine->count && engine->texts[at] != number)
                at++;
        bool hit = at < engine->count;

        if (!hit && engine->count < engine->room)
                engine->count++;
        at = hit ? at : engine->count - 1;
        for (; at > 0; at--)
                engine->texts[at] = engine->texts[at - 1];
        engine->texts[0] = number;
        return hit;
}

static void engine_serve(struct engine *engine, uint64_t number)
{
        struct kvr_request request = text(number, 8000);

        serve_as(&request, 2000, engine_hit(engine, number) ? 1999 : 0, 0);
}

static void size_is_learned_from_shortfalls(void **state)
{
        static struct engine engine;
        uint64_t random = 5;

        (void)state;
        engine = (struct engine){.room = 100};
        up(1, (struct kvr_replica_spec){0});
        assert_int_equal(brain_info(&fleet, 0).capacity_tokens, 0);
        for (int i = 0; i < 6000; i++) {
                uint64_t chance = brain_mix(random++);

                /* Now and then the same again, which keeps runs of misses short. */
                engine_serve(&engine, chance % 300);
                engine_serve(&engine, chance % 300);
        }
        struct kvr_replica_info info = brain_info(&fleet, 0);

        print_message("# learned %llu of 200000 tokens, error %.3f\n",
                      (unsigned long long)info.capacity_tokens, info.prediction_error);
        assert_true(info.capacity_learned);
        assert_in_range(info.capacity_tokens, 120000, 320000);
        assert_true(info.prediction_error < 0.2);
        assert_int_equal(info.resets, 0);
}

/* Far more prompts than fit: nearly every repeat misses, in long runs. */
static void thrashing_is_not_taken_for_restarts(void **state)
{
        static struct engine engine;
        uint64_t random = 5;

        (void)state;
        engine = (struct engine){.room = 30};
        up(1, (struct kvr_replica_spec){0});
        for (int i = 0; i < 3000; i++)
                engine_serve(&engine, brain_mix(random++) % 300);
        struct kvr_replica_info info = brain_info(&fleet, 0);

        print_message("# thrashing: learned %llu of 60000 tokens, %llu resets, error %.3f\n",
                      (unsigned long long)info.capacity_tokens, (unsigned long long)info.resets,
                      info.prediction_error);
        assert_true(info.resets <= 10);
        assert_in_range(info.capacity_tokens, 20000, 120000);
        assert_true(info.prediction_error < 0.2);
}

static void size_told_too_small_grows(void **state)
{
        static struct engine engine;
        uint64_t random = 5, before, predicted;

        (void)state;
        engine = (struct engine){.room = 200};
        up(1, (struct kvr_replica_spec){.capacity_tokens = 40000});
        for (uint64_t i = 0; i < 4000; i++)
                engine_serve(&engine, brain_mix(random++) % 100);
        struct kvr_replica_info info = brain_info(&fleet, 0);

        before = info.observed_tokens;
        predicted = info.predicted_tokens;
        for (uint64_t i = 0; i < 1000; i++)
                engine_serve(&engine, brain_mix(random++) % 100);
        info = brain_info(&fleet, 0);
        print_message("# grew to %llu\n", (unsigned long long)info.capacity_tokens);
        assert_true(info.capacity_tokens >= 180000);
        assert_true(info.capacity_learned);
        /* Nearly all of the repeats are foreseen now. */
        assert_true((double)(info.predicted_tokens - predicted) >
                    0.9 * (double)(info.observed_tokens - before));
}

static void silent_restart_is_noticed(void **state)
{
        (void)state;
        up(1, (struct kvr_replica_spec){.capacity_tokens = 1000000});
        for (uint64_t i = 0; i < 40; i++) {
                struct kvr_request request = text(i, 8000);

                serve_as(&request, 2000, 0, 0);
        }
        assert_near(brain_info(&fleet, 0).prediction_error, 0, 1e-9);
        /* It restarts; nobody tells. */
        uint32_t wrong = 0;
        double worst = 0;

        for (uint64_t i = 0; i < 10; i++) {
                struct kvr_request request = text(i, 8000);
                struct kvr_decision decision = serve_as(&request, 2000, 0, 0);
                struct kvr_replica_info info = brain_info(&fleet, 0);

                wrong += decision.match_tokens > 0;
                worst = info.prediction_error > worst ? info.prediction_error : worst;
        }
        assert_int_equal(wrong, 4);
        assert_true(worst > 0.1);
        struct kvr_replica_info info = brain_info(&fleet, 0);

        assert_int_equal(info.resets, 1);
        assert_int_equal(info.overpredicted_tokens, 4 * 1999);
        /* That was no news of its size. */
        assert_int_equal(info.capacity_tokens, 1000000);
        /* What was computed since is there, the prompt that brought the news included. */
        for (uint64_t i = 3; i < 10; i++)
                assert_int_equal(predict(i, 8000), 1999);
        assert_int_equal(predict(20, 8000), 0);
}

/*
 * Two routers before one fleet, each sees every other turn of a conversation: they agree on homes without
 * talking. Returns the share of later turns that found what the other router had sent.
 */
static double shared_fleet_hits(bool told)
{
        enum { REPLICAS = 4, SESSIONS = 400, TURNS = 6, TOKENS = 500 };
        static struct brain_fleet routers[2];
        static uint32_t held[REPLICAS][SESSIONS]; /* turns that an engine has seen */
        uint32_t found = 0, later = 0;

        memset(held, 0, sizeof(held));
        for (int i = 0; i < 2; i++)
                brain_fleet_up(&routers[i], NULL, REPLICAS, (struct kvr_replica_spec){0});
        for (uint32_t first = 0; first < SESSIONS; first += 8)
                for (uint32_t turn = 1; turn <= TURNS; turn++)
                        for (uint32_t s = first; s < first + 8; s++) {
                                struct brain_fleet *router = &routers[(s + turn) % 2];

                                uint64_t chance = brain_mix(s * 10 + turn);

                                /*
                                 * Traffic of its own keeps a router from deciding just as the other one does.
                                 */
                                for (uint64_t own = chance % 3; own > 0; own--) {
                                        struct kvr_request other =
                                                text(chance + own, 400 + (chance >> 8) % 8000);

                                        brain_serve(router, &other, NULL);
                                }
                                struct kvr_decision decision;

                                brain_prompt_init(&p);
                                for (uint32_t t = 0; t < turn; t++)
                                        brain_message(&p, s * 100 + t, TOKENS * 4);
                                struct kvr_request request = {.prompt = brain_prompt_done(&p)};
                                struct kvr_ticket *ticket = brain_send(router, &request, &decision);
                                uint32_t *have = &held[brain_number(router, decision.replica)][s];
                                uint32_t prompt = turn * TOKENS, cached = *have * TOKENS;

                                if (turn > 1) {
                                        later++;
                                        found += *have == turn - 1;
                                }
                                *have = turn;
                                routers[0].env.now_ns += BRAIN_MS(100);
                                routers[1].env.now_ns += BRAIN_MS(100);
                                kvr_ticket_first_token(ticket);
                                int64_t found_tokens = cached < prompt ? cached : prompt - 1;

                                brain_end(ticket, KVR_END_FINISHED, prompt, told ? found_tokens : -1, -1);
                        }
        for (int i = 0; i < 2; i++)
                kvr_router_free(routers[i].router);
        return (double)found / later;
}

static void routers_agree_on_homes_without_talking(void **state)
{
        (void)state;
        double told = shared_fleet_hits(true), silent = shared_fleet_hits(false);

        print_message(
                "# two routers: %.2f of later turns found the other's work, %.2f where engines are silent\n",
                told, silent);
        assert_true(told > 0.8);
        assert_true(silent < 0.6);
}

/* An engine whose cache is switched off: trust goes, and the reasons say so. */
static void engine_without_cache_loses_its_credit(void **state)
{
        (void)state;
        up(2, (struct kvr_replica_spec){0});
        for (uint64_t i = 0; i < 60; i++) {
                struct kvr_request request = text(i % 4, 8000);

                serve_as(&request, 2000, 0, 0);
        }
        assert_true(brain_info(&fleet, 0).trust < 0.2);
        struct kvr_request request = text(1, 8000);

        assert_true(explain(&request).match_tokens < 700);
}

static void late_news_of_an_old_life_is_void(void **state)
{
        (void)state;
        up(1, (struct kvr_replica_spec){0});
        struct kvr_request request = text(1, 4000);
        struct kvr_ticket *ticket = brain_send(&fleet, &request, NULL);

        kvr_ticket_first_token(ticket);
        assert_int_equal(kvr_replica_forget(fleet.router, fleet.ids[0]), KVR_OK);
        assert_int_equal(explain(&request).match_tokens, 0);
        brain_end(ticket, KVR_END_FINISHED, 1000, 0, 100);
        assert_int_equal(explain(&request).match_tokens, 0);
        /* Nor does a failure of then take away what was sent since. */
        ticket = brain_send(&fleet, &request, NULL);
        kvr_replica_forget(fleet.router, fleet.ids[0]);
        serve_as(&request, 1000, 0, 0);
        brain_end(ticket, KVR_END_FAILED, -1, -1, -1);
        assert_int_equal(explain(&request).match_tokens, 999);
}

static void readded_replica_starts_empty(void **state)
{
        (void)state;
        up(2, (struct kvr_replica_spec){.name = NULL});
        for (uint64_t i = 0; i < 50; i++) {
                struct kvr_request request = text(i, 4000);

                request.pinned = fleet.ids[0];
                serve_as(&request, 1000, 0, 0);
        }
        struct kvr_request request = text(3, 4000);

        request.pinned = fleet.ids[0];
        struct kvr_ticket *late = brain_send(&fleet, &request, NULL);
        kvr_replica_id old = fleet.ids[0];

        assert_int_equal(kvr_replica_remove(fleet.router, old), KVR_OK);
        struct kvr_replica_spec spec = {.name = "r00"};

        assert_int_equal(kvr_replica_add(fleet.router, &spec, &fleet.ids[0], NULL), KVR_OK);
        assert_int_not_equal(fleet.ids[0], old);
        kvr_replica_set_state(fleet.router, fleet.ids[0], KVR_READY);
        kvr_ticket_first_token(late);
        brain_end(late, KVR_END_FINISHED, 1000, 999, 10);
        for (uint64_t i = 0; i < 50; i++)
                assert_int_equal(predict(i, 4000), 0);
        assert_int_equal(brain_info(&fleet, 0).in_flight, 0);
}

/* ---- speeds ---- */

static void speed_is_learned_behind_a_queue(void **state)
{
        struct kvr_ticket *tickets[10];

        (void)state;
        up(1, (struct kvr_replica_spec){0});
        for (uint64_t i = 0; i < 10; i++) {
                struct kvr_request request = text(i, 8000);

                tickets[i] = brain_send(&fleet, &request, NULL);
        }
        /* 2,000 tokens take 0.2 s each, one after the other, whatever the first waited for. */
        for (int i = 0; i < 10; i++) {
                fleet.env.now_ns += BRAIN_MS(200);
                kvr_ticket_first_token(tickets[i]);
                brain_end(tickets[i], KVR_END_FINISHED, 2000, -1, 10);
        }
        assert_near(brain_info(&fleet, 0).prefill_tokens_per_second, 10000, 1e-6);
        /* One that took a hundred times as long is bounded, tiny ones count for nothing. */
        struct kvr_request request = text(50, 8000);
        struct kvr_ticket *ticket = brain_send(&fleet, &request, NULL);

        fleet.env.now_ns += BRAIN_S(20);
        kvr_ticket_first_token(ticket);
        brain_end(ticket, KVR_END_FINISHED, 2000, -1, 10);
        assert_true(brain_info(&fleet, 0).prefill_tokens_per_second > 5000);
        double speed = brain_info(&fleet, 0).prefill_tokens_per_second;

        request = text(51, 40);
        ticket = brain_send(&fleet, &request, NULL);
        fleet.env.now_ns += BRAIN_S(5);
        kvr_ticket_first_token(ticket);
        brain_end(ticket, KVR_END_FINISHED, 10, -1, 10);
        assert_near(brain_info(&fleet, 0).prefill_tokens_per_second, speed, 1e-9);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_teardown(unknown_is_not_zero, down),
                cmocka_unit_test_teardown(size_is_learned_from_shortfalls, down),
                cmocka_unit_test_teardown(thrashing_is_not_taken_for_restarts, down),
                cmocka_unit_test_teardown(size_told_too_small_grows, down),
                cmocka_unit_test_teardown(silent_restart_is_noticed, down),
                cmocka_unit_test(routers_agree_on_homes_without_talking),
                cmocka_unit_test_teardown(engine_without_cache_loses_its_credit, down),
                cmocka_unit_test_teardown(late_news_of_an_old_life_is_void, down),
                cmocka_unit_test_teardown(readded_replica_starts_empty, down),
                cmocka_unit_test_teardown(speed_is_learned_behind_a_queue, down),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
