/* SPDX-License-Identifier: Apache-2.0 */
/* One router learns from answers, another takes it over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "brain_test.h"
#include "kvroute/ledger.h"

#define REPLICAS 3

static struct brain_fleet teacher, pupil;
static struct brain_prompt prompt;

static void up(void)
{
        struct kvr_replica_spec spec = {.block_tokens = 16};

        brain_fleet_up(&teacher, NULL, REPLICAS, spec);
        brain_fleet_up(&pupil, NULL, REPLICAS, spec);
}

static void down(void)
{
        kvr_router_free(teacher.router);
        kvr_router_free(pupil.router);
}

static struct kvr_replica_info info_of(const struct brain_fleet *fleet, uint32_t number)
{
        struct kvr_replica_info info;

        assert_int_equal(kvr_replica_info(fleet->router, fleet->ids[number], &info), KVR_OK);
        return info;
}

/* Texts that nobody has, 8 KB of 3,000 tokens each, whose first token takes a second and a half. */
static void teach(uint64_t first, uint32_t count, int64_t cached)
{
        for (uint64_t i = first; i < first + count; i++) {
                struct kvr_request request = {.prompt = brain_prompt_of(&prompt, i, 8000),
                                              .model = brain_slice("m")};
                struct kvr_ticket *ticket = brain_send(&teacher, &request, NULL);

                teacher.env.now_ns += BRAIN_MS(1500);
                kvr_ticket_first_token(ticket);
                brain_end(ticket, KVR_END_FINISHED, 3000, cached, 10);
        }
}

static void test_sizes_and_speeds(void **state)
{
        struct kvr_request request = {.prompt = brain_prompt_of(&prompt, 9999, 8000),
                                      .model = brain_slice("m")};
        struct kvr_decision decision;
        size_t count;

        (void)state;
        up();
        assert_int_equal(kvr_explain(pupil.router, &request, &decision, NULL, 0, &count, NULL), KVR_OK);
        assert_in_range(decision.prompt_tokens, 1900, 2100); /* a quarter of the bytes */
        teach(0, 60, 0);
        assert_int_equal(kvr_router_adopt(pupil.router, teacher.router), KVR_OK);
        (void)brain_prompt_of(&prompt, 9999, 8000);
        assert_int_equal(kvr_explain(pupil.router, &request, &decision, NULL, 0, &count, NULL), KVR_OK);
        assert_in_range(decision.prompt_tokens, 2950, 3050);
        assert_int_equal(decision.match_tokens, 0); /* what engines hold is not taken over */
        for (uint32_t i = 0; i < REPLICAS; i++) {
                double theirs = info_of(&teacher, i).prefill_tokens_per_second;

                assert_true(theirs > 1900 && theirs < 2100);
                assert_true(info_of(&pupil, i).prefill_tokens_per_second == theirs);
        }
        down();
}

/* Predictions that fall short make the teacher think less of a cache's size. */
static void test_learned_capacity(void **state)
{
        (void)state;
        up();
        teach(0, 30, 0);
        for (uint32_t i = 0; i < 4; i++)
                teach(0, 30, 1500);
        for (uint32_t i = 0; i < REPLICAS; i++) {
                struct kvr_replica_info theirs = info_of(&teacher, i);

                assert_true(theirs.capacity_learned && theirs.capacity_tokens);
                assert_int_equal(info_of(&pupil, i).capacity_tokens, 0);
        }
        assert_int_equal(kvr_router_adopt(pupil.router, teacher.router), KVR_OK);
        for (uint32_t i = 0; i < REPLICAS; i++)
                assert_int_equal(info_of(&pupil, i).capacity_tokens, info_of(&teacher, i).capacity_tokens);
        down();
}

/* Replicas are told apart by name, whatever their order; those that one side lacks do not matter. */
static void test_other_fleets(void **state)
{
        struct brain_fleet other = {.env = {.now_ns = BRAIN_S(1000), .random = 1}};
        struct kvr_env env = brain_env_of(&other.env);

        (void)state;
        up();
        teach(0, 60, 0);
        assert_int_equal(kvr_router_new(NULL, &env, &other.router, NULL), KVR_OK);
        brain_add(&other, (struct kvr_replica_spec){.name = "stranger"});
        brain_add(&other, (struct kvr_replica_spec){.name = "r01"});
        assert_int_equal(kvr_router_adopt(other.router, teacher.router), KVR_OK);
        assert_true(isnan(info_of(&other, 0).prefill_tokens_per_second));
        assert_true(info_of(&other, 1).prefill_tokens_per_second ==
                    info_of(&teacher, 1).prefill_tokens_per_second);
        kvr_router_free(other.router);
        down();
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_sizes_and_speeds),
                cmocka_unit_test(test_learned_capacity),
                cmocka_unit_test(test_other_fleets),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
