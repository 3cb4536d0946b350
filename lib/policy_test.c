/* SPDX-License-Identifier: Apache-2.0 */
/* The policies that `kv` is compared with. */
#include "policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "brain_test.h"

static struct brain_fleet fleet;
static struct brain_prompt p;

static int down(void **state)
{
        (void)state;
        kvr_router_free(fleet.router);
        fleet.router = NULL;
        return 0;
}

static void up(const char *policy, uint32_t count)
{
        struct kvr_settings settings = {.policy = policy};

        brain_fleet_up(&fleet, &settings, count, (struct kvr_replica_spec){0});
}

static struct kvr_request text(uint64_t number, uint64_t bytes)
{
        return (struct kvr_request){.prompt = brain_prompt_of(&p, number, bytes)};
}

static uint32_t send(const struct kvr_request *request, struct kvr_ticket **ret)
{
        struct kvr_decision decision;

        *ret = brain_send(&fleet, request, &decision);
        return brain_number(&fleet, decision.replica);
}

static struct kvr_ticket *send_to(uint32_t number, uint64_t first_text, uint64_t bytes)
{
        struct kvr_request request = text(first_text, bytes);

        request.pinned = fleet.ids[number];
        return brain_send(&fleet, &request, NULL);
}

static void round_robin_takes_turns(void **state)
{
        struct kvr_request request = text(1, 4000);

        (void)state;
        up("round_robin", 3);
        for (uint32_t i = 0; i < 12; i++)
                assert_int_equal(brain_serve(&fleet, &request, NULL), i % 3);
}

static void random_is_even(void **state)
{
        uint32_t counts[4] = {0};
        struct kvr_request request = text(1, 400);

        (void)state;
        up("random", 4);
        for (int i = 0; i < 4000; i++)
                counts[brain_serve(&fleet, &request, NULL)]++;
        for (int i = 0; i < 4; i++)
                assert_in_range(counts[i], 900, 1100);
}

static void least_requests_counts_requests(void **state)
{
        struct kvr_ticket *ticket;

        (void)state;
        up("least_requests", 3);
        send_to(0, 1, 400);
        send_to(0, 2, 400);
        send_to(1, 3, 400000);
        send_to(2, 4, 400);
        send_to(2, 5, 400);
        struct kvr_request request = text(6, 4000);

        assert_int_equal(send(&request, &ticket), 1);
        /* Among equals the least recent work. */
        assert_int_not_equal(send(&request, &ticket), 1);
}

static void least_tokens_counts_tokens(void **state)
{
        struct kvr_ticket *ticket, *large;

        (void)state;
        up("least_tokens", 2);
        large = send_to(0, 1, 400000);
        for (uint64_t i = 0; i < 10; i++)
                send_to(1, 10 + i, 400);
        struct kvr_request request = text(6, 400);

        assert_int_equal(send(&request, &ticket), 1);
        kvr_ticket_first_token(large);
        assert_int_equal(send(&request, &ticket), 0);
}

static void power_of_two_avoids_the_busier(void **state)
{
        uint32_t counts[3] = {0};

        (void)state;
        up("power_of_two", 3);
        for (uint64_t i = 0; i < 10; i++)
                send_to(0, 10 + i, 400);
        struct kvr_request request = text(1, 400);

        for (int i = 0; i < 300; i++)
                counts[brain_serve(&fleet, &request, NULL)]++;
        /* Any two include an idle one. */
        assert_int_equal(counts[0], 0);
        assert_in_range(counts[1], 100, 200);
        /* Alone there is no choice. */
        kvr_replica_set_state(fleet.router, fleet.ids[1], KVR_DRAINING);
        kvr_replica_set_state(fleet.router, fleet.ids[2], KVR_DRAINING);
        assert_int_equal(brain_serve(&fleet, &request, NULL), 0);
}

static void consistent_hash_keeps_keys(void **state)
{
        enum { KEYS = 300 };
        uint32_t homes[KEYS], counts[5] = {0}, moved = 0;
        struct kvr_decision decision;
        char key[16];

        (void)state;
        up("consistent_hash", 5);
        for (int round = 0; round < 2; round++)
                for (int k = 0; k < KEYS; k++) {
                        struct kvr_request request = text(1000 + (uint64_t)k * 2 + (uint64_t)round, 400);

                        snprintf(key, sizeof(key), "s%d", k);
                        request.affinity = brain_slice(key);
                        uint32_t at = brain_serve(&fleet, &request, &decision);

                        assert_int_equal(decision.reason, KVR_REASON_AFFINITY);
                        assert_true(round == 0 || at == homes[k]);
                        homes[k] = at;
                        counts[at] += !round;
                }
        for (int i = 0; i < 5; i++)
                assert_in_range(counts[i], 40, 80);
        /* Only the keys of one that goes are moved. */
        kvr_replica_set_state(fleet.router, fleet.ids[2], KVR_DOWN);
        for (int k = 0; k < KEYS; k++) {
                struct kvr_request request = text(1, 400);

                snprintf(key, sizeof(key), "s%d", k);
                request.affinity = brain_slice(key);
                uint32_t at = brain_serve(&fleet, &request, NULL);

                assert_int_not_equal(at, 2);
                moved += at != homes[k];
        }
        assert_int_equal(moved, counts[2]);
}

static void consistent_hash_goes_by_the_beginning_and_bounds_load(void **state)
{
        uint32_t counts[4] = {0};
        struct kvr_ticket *ticket;

        (void)state;
        up("consistent_hash", 4);
        uint32_t home = UINT32_MAX;

        for (uint64_t i = 0; i < 20; i++) {
                brain_prompt_init(&p);
                brain_message(&p, 1, 1000);
                brain_message(&p, 100 + i, 1000);
                struct kvr_request request = {.prompt = brain_prompt_done(&p)};
                uint32_t at = brain_serve(&fleet, &request, NULL);

                assert_true(home == UINT32_MAX || at == home);
                home = at;
        }
        for (int i = 0; i < 40; i++) {
                struct kvr_request request = text(1, 1000);

                counts[send(&request, &ticket)]++;
        }
        /* 1.25 times the mean of 10, and one more for rounding. */
        for (int i = 0; i < 4; i++)
                assert_true(counts[i] <= 13);
        /* Nothing to hash: by load. */
        struct kvr_request request = {0};

        for (int i = 0; i < 20; i++)
                counts[send(&request, &ticket)]++;
        for (int i = 0; i < 4; i++)
                assert_int_equal(counts[i], 15);
}

static void longest_prefix_wants_half(void **state)
{
        struct kvr_ticket *ticket;

        (void)state;
        up("longest_prefix", 3);
        ticket = send_to(1, 1, 4000);
        brain_end(ticket, KVR_END_FINISHED, 1000, 0, 0);
        for (uint64_t i = 0; i < 20; i++)
                send_to(1, 100 + i, 4000);
        /* Busy or not: more than half is cached there. */
        brain_prompt_init(&p);
        brain_message(&p, 1, 4000);
        brain_message(&p, 2, 3000);
        struct kvr_request request = {.prompt = brain_prompt_done(&p)};

        assert_int_equal(send(&request, &ticket), 1);
        /* Less than half does not count. */
        brain_prompt_init(&p);
        brain_message(&p, 1, 4000);
        brain_message(&p, 3, 9000);
        request = (struct kvr_request){.prompt = brain_prompt_done(&p)};
        assert_int_not_equal(send(&request, &ticket), 1);
}

static void ties_go_to_the_least_recent_work(void **state)
{
        struct kvr__least least = KVR__LEAST_NONE;

        (void)state;
        kvr__least_try(&least, 0, 1.0, 5);
        kvr__least_try(&least, 1, 1.0 + 1e-13, 3);
        kvr__least_try(&least, 2, 1.0, 3);
        assert_int_equal(least.at, 1);
        kvr__least_try(&least, 3, 0.9, 100);
        assert_int_equal(least.at, 3);
        kvr__least_try(&least, 4, 0.95, 0);
        assert_int_equal(least.at, 3);
        least = KVR__LEAST_NONE;
        kvr__least_try(&least, 7, 0, 0);
        assert_int_equal(least.at, 7);
}

static void policies_can_be_changed_on_the_way(void **state)
{
        struct kvr_error err = {0};
        struct kvr_request request = text(1, 4000);

        (void)state;
        up(NULL, 3);
        uint32_t home = brain_serve(&fleet, &request, NULL);

        assert_int_equal(brain_serve(&fleet, &request, NULL), home);
        assert_int_equal(kvr_router_set_policy(fleet.router, "nonsense", &err), KVR_E_NOT_FOUND);
        assert_string_equal(err.field, "policy");
        assert_int_equal(brain_serve(&fleet, &request, NULL), home);
        assert_int_equal(kvr_router_set_policy(fleet.router, "round_robin", NULL), KVR_OK);
        for (uint32_t i = 0; i < 3; i++)
                assert_int_equal(brain_serve(&fleet, &request, NULL), i);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_teardown(round_robin_takes_turns, down),
                cmocka_unit_test_teardown(random_is_even, down),
                cmocka_unit_test_teardown(least_requests_counts_requests, down),
                cmocka_unit_test_teardown(least_tokens_counts_tokens, down),
                cmocka_unit_test_teardown(power_of_two_avoids_the_busier, down),
                cmocka_unit_test_teardown(consistent_hash_keeps_keys, down),
                cmocka_unit_test_teardown(consistent_hash_goes_by_the_beginning_and_bounds_load, down),
                cmocka_unit_test_teardown(longest_prefix_wants_half, down),
                cmocka_unit_test(ties_go_to_the_least_recent_work),
                cmocka_unit_test_teardown(policies_can_be_changed_on_the_way, down),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
