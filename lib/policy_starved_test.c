/* SPDX-License-Identifier: Apache-2.0 */
/* The default policy where caches are far too small for what comes again. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "brain_test.h"
#include "router_int.h"

#define CACHE_TOKENS 4096
#define LONG_BYTES   8000 /* 2,000 tokens */
#define SHORT_BYTES  1000

static struct brain_fleet fleet;
static struct brain_prompt p;

static int up(void **state)
{
        (void)state;
        brain_fleet_up(&fleet, NULL, 2,
                       (struct kvr_replica_spec){.block_tokens = 16, .capacity_tokens = CACHE_TOKENS});
        return 0;
}

static int down(void **state)
{
        (void)state;
        kvr_router_free(fleet.router);
        fleet.router = NULL;
        return 0;
}

static struct kvr_request text(uint64_t number, uint64_t bytes)
{
        return (struct kvr_request){.prompt = brain_prompt_of(&p, number, bytes)};
}

static double starved(void)
{
        const struct kvr__model *model = kvr__models_find(&fleet.router->models, 7);

        assert_non_null(model);
        return kvr__loss_starved(&model->loss);
}

/* So many prompts in turn, each one whole rounds later again. */
static void rounds(uint64_t prompts, int count)
{
        for (int round = 0; round < count; round++)
                for (uint64_t i = 0; i < prompts; i++) {
                        struct kvr_request request = text(100 + i, LONG_BYTES);

                        brain_serve(&fleet, &request, NULL);
                }
}

static void occupy(uint32_t replica, uint64_t number, uint64_t bytes)
{
        struct kvr_request request = text(number, bytes);

        request.pinned = fleet.ids[replica];
        brain_send(&fleet, &request, NULL);
}

/* One long prompt waits on the first replica, three short ones on the second. */
static void queues_make(void)
{
        occupy(0, 9000, LONG_BYTES);
        for (uint64_t i = 0; i < 3; i++)
                occupy(1, 9001 + i, SHORT_BYTES);
}

static void explain(struct kvr_candidate candidates[2], struct kvr_decision *ret)
{
        struct kvr_request request = text(9999, LONG_BYTES);
        size_t count;

        assert_int_equal(kvr_explain(fleet.router, &request, ret, candidates, 2, &count, NULL), KVR_OK);
        assert_int_equal(count, 2);
}

static void seconds_count_where_caches_hold_what_comes_again(void **state)
{
        struct kvr_candidate candidates[2];
        struct kvr_decision decision;

        (void)state;
        rounds(2, 20);
        assert_true(starved() < 0.01);
        queues_make();
        explain(candidates, &decision);
        assert_int_equal(decision.replica, fleet.ids[1]);
        assert_true(candidates[0].wait_s > 2 * candidates[1].wait_s);
}

static void requests_count_where_they_do_not(void **state)
{
        struct kvr_candidate candidates[2];
        struct kvr_decision decision;

        (void)state;
        rounds(12, 20);
        assert_true(starved() > 0.9);
        queues_make();
        explain(candidates, &decision);
        assert_int_equal(decision.replica, fleet.ids[0]);
        assert_true(candidates[1].wait_s > 2 * candidates[0].wait_s);

        /* All together they are as long as before. */
        double all_s = 0;

        for (uint32_t i = 0; i < 2; i++)
                all_s += kvr__load_wait(fleet.router->candidates[i].replica,
                                        fleet.router->candidates[i].token_s, fleet.env.now_ns);
        assert_true(fabs(candidates[0].wait_s + candidates[1].wait_s - all_s) < 1e-9 * all_s);
}

static void an_idle_fleet_is_as_ever(void **state)
{
        struct kvr_candidate candidates[2];
        struct kvr_decision decision;

        (void)state;
        rounds(12, 20);
        explain(candidates, &decision);
        assert_true(candidates[0].wait_s == 0 && candidates[1].wait_s == 0);
        for (uint32_t i = 0; i < 2; i++)
                assert_int_equal(brain_info(&fleet, i).uncached_tokens_booked, 0);
}

static void queues_are_empty_at_rest(void **state)
{
        (void)state;
        rounds(3, 5);
        for (uint32_t i = 0; i < 2; i++) {
                assert_true(fleet.router->fleet.order[i]->booked_weight == 0);
                assert_true(kvr__load_queue(fleet.router->fleet.order[i], fleet.env.now_ns) == 0);
        }
        occupy(0, 5, SHORT_BYTES);
        assert_true(kvr__load_queue(fleet.router->fleet.order[0], fleet.env.now_ns) == 1);
}

static void a_cached_prompt_counts_twice(void **state)
{
        (void)state;
        rounds(1, 2);
        struct kvr_request request = text(100, LONG_BYTES);
        struct kvr_decision decision;

        brain_send(&fleet, &request, &decision);
        assert_int_equal(decision.reason, KVR_REASON_HIT);
        double queue = kvr__load_queue(fleet.router->fleet.order[brain_number(&fleet, decision.replica)],
                                       fleet.env.now_ns);

        assert_true(queue > 1.95 && queue <= 2);
}

/* Two of six equal prompts find all slots busy, again and again: nothing is lost. */
static void a_busy_slot_has_not_lost_its_prompt(void **state)
{
        (void)state;
        brain_fleet_up(&fleet, NULL, 2, (struct kvr_replica_spec){.cache = KVR_CACHE_SLOTS, .slots = 2});
        for (int i = 0; i < 50; i++) {
                struct kvr_ticket *tickets[6];
                struct kvr_decision decisions[6];

                for (int k = 0; k < 6; k++) {
                        struct kvr_request request = text(1, LONG_BYTES);

                        tickets[k] = brain_send(&fleet, &request, &decisions[k]);
                }
                fleet.env.now_ns += BRAIN_MS(100);
                for (int k = 0; k < 6; k++) {
                        kvr_ticket_first_token(tickets[k]);
                        brain_end(tickets[k], KVR_END_FINISHED, decisions[k].prompt_tokens,
                                  decisions[k].match_tokens, 20);
                }
        }
        assert_true(starved() == 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(seconds_count_where_caches_hold_what_comes_again, up, down),
                cmocka_unit_test_setup_teardown(requests_count_where_they_do_not, up, down),
                cmocka_unit_test_setup_teardown(an_idle_fleet_is_as_ever, up, down),
                cmocka_unit_test_setup_teardown(queues_are_empty_at_rest, up, down),
                cmocka_unit_test_setup_teardown(a_cached_prompt_counts_twice, up, down),
                cmocka_unit_test_teardown(a_busy_slot_has_not_lost_its_prompt, down),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
