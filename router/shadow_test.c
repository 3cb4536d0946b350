/* SPDX-License-Identifier: Apache-2.0 */
/* The shadow with a clock that is turned by hand: both sides' figures, times of the virtual fleet, nothing left over. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "lib/brain_test.h"
#include "shadow.h"

#define REPLICAS 3
#define SPEED    10000.0 /* tokens a second of the pretended engines */

static struct brain_fleet real; /* routes in turn */
static struct shadow_clock shadow_time;
static struct shadow *shadow;
static struct brain_prompt prompt;

static void up_with(struct kvr_replica_spec spec, bool mirror)
{
        struct kvr_settings settings = {.policy = "round_robin"};
        struct shadow_options options = {.clock = &shadow_time,
                                         .index_memory_bytes = 1 << 24,
                                         .prefill_speed = 8000,
                                         .mirror = mirror};
        struct kvr_env base = brain_env_of(&real.env);

        real = (struct brain_fleet){.env = {.now_ns = BRAIN_S(1000), .random = 1}};
        shadow_clock_init(&shadow_time, &base);
        struct kvr_env env = mirror ? shadow_clock_env(&shadow_time) : base;

        brain_must(kvr_router_new(&settings, &env, &real.router, NULL) == KVR_OK);
        options.real = real.router;
        brain_must(shadow_new(&options, &shadow, NULL) == KVR_OK);
        for (uint32_t i = 0; i < REPLICAS; i++) {
                kvr_replica_id id = brain_add(&real, spec);
                char name[8] = {'v', (char)('0' + i)};
                struct kvr_replica_spec named = spec;

                named.name = name;
                brain_must(shadow_replica_add(shadow, id, &named, NULL) == KVR_OK);
                shadow_replica_set_state(shadow, id, KVR_READY);
        }
        real.env.now_ns += BRAIN_S(120);
}

static void up(void)
{
        up_with((struct kvr_replica_spec){.block_tokens = 16}, false);
}

static void down(void)
{
        shadow_free(shadow);
        kvr_router_free(real.router);
}

static struct shadow_figures figures(void)
{
        struct shadow_figures figures;

        shadow_figures(shadow, real.env.now_ns, &figures);
        return figures;
}

static void nothing_booked(void)
{
        assert_int_equal(figures().in_flight, 0);
        for (uint32_t i = 0; i < real.count; i++) {
                uint32_t flights;
                uint64_t tokens;

                if (!shadow_booked(shadow, real.ids[i], &flights, &tokens))
                        continue;
                assert_int_equal(flights, 0);
                assert_int_equal(tokens, 0);
        }
}

/* A request on its way. */
struct trip {
        struct kvr_ticket *ticket;
        struct shadow_flight *flight;
        struct kvr_decision decision;
        uint32_t tokens, uncached;
};

static struct trip depart(uint64_t text, uint64_t bytes)
{
        struct kvr_request request = {.prompt = brain_prompt_of(&prompt, text, bytes),
                                      .model = brain_slice("m")};
        struct trip trip = {.tokens = (uint32_t)(bytes / 4)};

        trip.ticket = brain_send(&real, &request, &trip.decision);
        trip.flight =
                shadow_begin(shadow, &request, (struct kvr_slice){NULL, 0}, &trip.decision, real.env.now_ns);
        trip.uncached = trip.tokens - trip.decision.match_tokens;
        return trip;
}

static void first_token(struct trip *trip)
{
        kvr_ticket_first_token(trip->ticket);
        shadow_first_token(shadow, trip->flight, real.env.now_ns);
}

static void arrive(struct trip *trip, enum kvr_end end, int64_t cached, bool computed)
{
        struct shadow_outcome outcome = {
                .end = end,
                .computed = computed,
                .prompt_tokens = trip->tokens,
                .prompt_counted = true,
                .predicted = trip->decision.match_tokens,
                .cached_tokens = cached,
                .completion_tokens = 10,
                .ttft_s = computed ? trip->uncached / SPEED : (double)NAN,
                .decode_ns = BRAIN_MS(20),
        };

        brain_end(trip->ticket, end, trip->tokens, cached, 10);
        shadow_end(shadow, trip->flight, &outcome, real.env.now_ns);
}

/* One by itself, as an engine would serve it that has what was predicted. */
static void serve(uint64_t text, uint64_t bytes)
{
        struct trip trip = depart(text, bytes);

        real.env.now_ns += (uint64_t)(trip.uncached / SPEED * 1e9);
        first_token(&trip);
        real.env.now_ns += BRAIN_MS(20);
        arrive(&trip, KVR_END_FINISHED, trip.decision.match_tokens, true);
        real.env.now_ns += BRAIN_MS(500);
}

/* Six texts again and again: in turn each is computed three times, by kv once. */
static void test_what_kv_would_have_gained(void **state)
{
        struct shadow_figures f;

        (void)state;
        up();
        for (int round = 0; round < 10; round++)
                for (uint64_t text = 0; text < 7; text++) /* 7 and 3 have nothing in common */
                        serve(text, 8000);
        f = figures();
        assert_int_equal(f.requests, 70);
        assert_int_equal(f.prompt_tokens, 70 * 2000);
        assert_true(shadow_hit_rate(&f, &f.kv) > 0.85 && shadow_hit_rate(&f, &f.kv) < 0.95);
        assert_true(shadow_hit_rate(&f, &f.actual) > 0.65 && shadow_hit_rate(&f, &f.actual) < 0.75);
        assert_int_equal(f.actual.won_tokens, f.observed_tokens);
        assert_int_equal(f.observed, 70);
        assert_true(fabs(shadow_hit_rate_calibrated(&f) - shadow_hit_rate(&f, &f.kv)) < 0.01);
        /* Time: the queues' and the engines' are the same where nothing queues, and kv computes less. */
        assert_true(f.timed > 55);
        assert_true(fabs(f.actual.ttft.mean_s / f.ttft_observed.mean_s - 1) < 0.2);
        assert_true(f.kv.ttft.mean_s < 0.6 * f.actual.ttft.mean_s);
        assert_true(f.kv.avoided_ns > f.actual.avoided_ns);
        assert_true(fabs((double)f.kv.avoided_ns / 1e9 -
                         (double)(f.kv.won_tokens - f.kv.untimed_tokens) / SPEED) <
                    0.1 * (double)f.kv.avoided_ns / 1e9);
        nothing_booked();
        down();
}

/* Until a speed is known the virtual first token is the real one; then it is the queue's. */
static void test_times_of_the_virtual_fleet(void **state)
{
        struct trip trips[4];
        uint32_t flights;
        uint64_t tokens, booked = 0;

        (void)state;
        up();
        trips[0] = depart(100, 8000);
        real.env.now_ns += BRAIN_MS(200);
        assert_int_equal(figures().in_flight, 1);
        first_token(&trips[0]);
        arrive(&trips[0], KVR_END_FINISHED, 0, true);
        real.env.now_ns += BRAIN_MS(20);
        nothing_booked();
        for (uint64_t i = 0; i < 30; i++)
                serve(i, 8000);
        /* Four texts at once of 2,000 tokens each: two of them share a queue. */
        for (uint64_t i = 0; i < 4; i++)
                trips[i] = depart(200 + i, 8000);
        for (uint32_t i = 0; i < REPLICAS; i++) {
                assert_true(shadow_booked(shadow, real.ids[i], &flights, &tokens));
                booked += tokens;
        }
        assert_int_equal(booked, 4 * 2000);
        real.env.now_ns += BRAIN_MS(220); /* the first of each queue is done, the second is not */
        shadow_tick(shadow, real.env.now_ns);
        booked = 0;
        for (uint32_t i = 0; i < REPLICAS; i++) {
                assert_true(shadow_booked(shadow, real.ids[i], &flights, &tokens));
                booked += tokens;
        }
        assert_int_equal(booked, 2000);
        for (int i = 0; i < 4; i++) {
                first_token(&trips[i]);
                arrive(&trips[i], KVR_END_FINISHED, 0, true);
        }
        assert_int_equal(figures().in_flight, 1); /* it ends when its own queue has computed it */
        real.env.now_ns += BRAIN_MS(300);
        nothing_booked();
        down();
}

/* Whatever becomes of a request, it leaves nothing; and what was not computed is not compared. */
static void test_every_end(void **state)
{
        static const enum kvr_end ends[] = {KVR_END_FINISHED, KVR_END_CLIENT, KVR_END_FAILED,
                                            KVR_END_REFUSED};
        struct shadow_figures f;

        (void)state;
        up();
        for (uint64_t i = 0; i < 20; i++)
                serve(i, 8000);
        for (unsigned i = 0; i < 4; i++) {
                for (int computed = 0; computed < 2; computed++) {
                        struct trip trip = depart(1000 + i, 4000);

                        real.env.now_ns += BRAIN_MS(10 + 200 * computed);
                        if (computed)
                                first_token(&trip);
                        arrive(&trip, ends[i], -1, computed);
                        real.env.now_ns += BRAIN_S(1);
                        nothing_booked();
                }
        }
        f = figures();
        assert_int_equal(f.requests, 24);
        assert_int_equal(f.observed, 20);
        assert_true(isfinite(shadow_hit_rate_calibrated(&f)) == (f.observed_predicted_tokens > 0));
        down();
}

/* A real answer ends long before the virtual queue would begin with it: it does not stay there for ever. */
static void test_no_drift(void **state)
{
        struct trip trip;

        (void)state;
        up();
        for (uint64_t i = 0; i < 20; i++)
                serve(i, 8000);
        for (uint64_t i = 0; i < 40;
             i++) { /* 40 seconds of work within a moment, as if engines were faster */
                trip = depart(500 + i, 120000);
                arrive(&trip, KVR_END_FINISHED, 0, true);
        }
        assert_true(figures().in_flight > 0);
        real.env.now_ns += SHADOW_LAG_NS + BRAIN_S(1);
        nothing_booked();
        down();
}

static void test_replicas_come_and_go(void **state)
{
        struct trip trip;
        kvr_replica_id id;

        (void)state;
        up();
        for (uint64_t i = 0; i < 20; i++)
                serve(i, 8000);
        /* Removed under a request, on both sides. */
        trip = depart(900, 8000);
        for (uint32_t i = 0; i < REPLICAS; i++) {
                (void)kvr_replica_remove(real.router, real.ids[i]);
                shadow_replica_remove(shadow, real.ids[i]);
        }
        arrive(&trip, KVR_END_FINISHED, 0, true);
        real.env.now_ns += BRAIN_S(1);
        nothing_booked();
        /* One that the shadow does not know, or has not up, is not taken, and counted. */
        id = brain_add(&real, (struct kvr_replica_spec){.name = "late"});
        trip = depart(901, 8000);
        assert_null(trip.flight);
        assert_int_equal(figures().undecided, 1);
        arrive(&trip, KVR_END_FINISHED, 0, true);
        assert_int_equal(shadow_replica_add(shadow, id, &(struct kvr_replica_spec){.name = "late"}, NULL),
                         KVR_OK);
        trip = depart(902, 8000);
        assert_non_null(trip.flight); /* nothing better is there than one that is not up */
        arrive(&trip, KVR_END_FINISHED, 0, true);
        real.env.now_ns += BRAIN_S(1);
        nothing_booked();
        down();
}

/* The engine sees our requests where they really are; the shadow must not take them for somebody else's. */
static void test_own_load_is_not_foreign(void **state)
{
        struct kvr_load_report report = {.running = 6, .waiting = 0, .kv_usage = 0.5, .waiting_tokens = NAN};
        struct trip trips[6];
        unsigned chosen[2] = {0};

        (void)state;
        up();
        for (uint64_t i = 0; i < 30; i++)
                serve(i, 8000);
        for (int others = 0; others < 2; others++) {
                for (int i = 0; i < 6; i++)
                        trips[i] = depart((uint64_t)(2000 + 10 * others + i), 400);
                real.env.now_ns += BRAIN_MS(100);
                /* Two of ours are on each. The first replica has 60 more at the second look. */
                for (uint32_t i = 0; i < REPLICAS; i++) {
                        report.at_ns = real.env.now_ns;
                        report.running = 2 + (others && i == 0 ? 60 : 0);
                        report.waiting = others && i == 0 ? 50 : 0;
                        shadow_replica_report(shadow, real.ids[i], &report);
                }
                for (int i = 0; i < 6; i++)
                        arrive(&trips[i], KVR_END_FINISHED, 0, true);
                real.env.now_ns += BRAIN_S(1);
                for (uint64_t i = 0; i < 12; i++) {
                        struct trip trip = depart(3000 + 100 * (uint64_t)others + i, 4000);
                        uint32_t flights;
                        uint64_t tokens;

                        assert_true(shadow_booked(shadow, real.ids[0], &flights, &tokens));
                        chosen[others] += flights;
                        real.env.now_ns += BRAIN_MS(200);
                        first_token(&trip);
                        arrive(&trip, KVR_END_FINISHED, 0, true);
                        real.env.now_ns += BRAIN_MS(100);
                }
        }
        assert_in_range(chosen[0], 3, 5); /* its third of twelve */
        assert_int_equal(chosen[1], 0);
        nothing_booked();
        down();
}

static void test_a_mirror(void **state)
{
        struct kvr_request request = {.model = brain_slice("m")};
        struct shadow_figures f;

        (void)state;
        up_with((struct kvr_replica_spec){.block_tokens = 16, .capacity_tokens = 100000}, true);
        for (int round = 0; round < 10; round++) {
                for (uint64_t text = 0; text < 7; text++) {
                        request.prompt = brain_prompt_of(&prompt, text, 8000);
                        assert_int_equal(shadow_mirror(shadow, &request, (struct kvr_slice){NULL, 0},
                                                       BRAIN_MS(100), real.env.now_ns),
                                         2000);
                        real.env.now_ns += BRAIN_MS(400);
                }
        }
        f = figures();
        assert_true(f.mirror);
        assert_int_equal(f.requests, 70);
        assert_int_equal(f.observed, 0);
        assert_true(shadow_hit_rate(&f, &f.kv) > 0.85 && shadow_hit_rate(&f, &f.actual) < 0.75);
        assert_true(isnan(shadow_hit_rate_calibrated(&f)) && isnan(f.ttft_observed.mean_s));
        assert_int_equal(f.timed, 70);
        real.env.now_ns += BRAIN_S(1);
        nothing_booked();
        for (uint32_t i = 0; i < REPLICAS; i++) {
                struct kvr_replica_info info;

                assert_int_equal(kvr_replica_info(real.router, real.ids[i], &info), KVR_OK);
                assert_int_equal(info.in_flight, 0);
                assert_true(fabs(info.prefill_tokens_per_second / 8000 - 1) < 0.1); /* as it was told */
        }
        down();
}

/* Nothing is asked of what is not there. */
static void test_none(void **state)
{
        struct shadow_figures f;

        (void)state;
        assert_int_equal(shadow_replica_add(NULL, 1, NULL, NULL), KVR_OK);
        shadow_replica_remove(NULL, 1);
        shadow_replica_set_state(NULL, 1, KVR_READY);
        assert_null(shadow_begin(NULL, NULL, (struct kvr_slice){NULL, 0}, NULL, 0));
        shadow_first_token(NULL, NULL, 0);
        shadow_end(NULL, NULL, NULL, 0);
        shadow_tick(NULL, 0);
        assert_null(shadow_ledger(NULL));
        shadow_figures(NULL, 0, &f);
        assert_int_equal(f.requests, 0);
        shadow_free(NULL);
}

/* It ends while requests are on their way. */
static void test_freed_in_flight(void **state)
{
        struct kvr_request request = {.prompt = brain_prompt_of(&prompt, 1, 8000)};

        (void)state;
        up_with((struct kvr_replica_spec){.capacity_tokens = 100000}, true);
        (void)shadow_mirror(shadow, &request, (struct kvr_slice){NULL, 0}, BRAIN_S(100), real.env.now_ns);
        assert_int_equal(figures().in_flight, 1);
        down();
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_what_kv_would_have_gained),
                cmocka_unit_test(test_times_of_the_virtual_fleet),
                cmocka_unit_test(test_every_end),
                cmocka_unit_test(test_no_drift),
                cmocka_unit_test(test_replicas_come_and_go),
                cmocka_unit_test(test_own_load_is_not_foreign),
                cmocka_unit_test(test_a_mirror),
                cmocka_unit_test(test_none),
                cmocka_unit_test(test_freed_in_flight),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
