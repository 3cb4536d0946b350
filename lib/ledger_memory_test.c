/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the ledger: all of it is asked for when it is made, what it says it takes is what it takes, and
 * running out of it anywhere is a clean error. The test is linked so that the library's calls of the
 * allocator come here first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "alloc_test.h"
#include "ledger_test_util.h"

static unsigned calls;    /* of the allocator */
static unsigned fails_at; /* the call that fails; 0 none */
static size_t asked;      /* bytes */

static bool alloc_admit(size_t size)
{
        calls++;
        asked += size;
        return calls != fails_at;
}

static void test_stated_memory(void **state)
{
        const struct kvr_ledger_settings settings[] = {
                {0}, {.without_counterfactual = true}, {.virtual_runs = 100000}, {.virtual_runs = 1}};

        (void)state;
        for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
                struct kvr_ledger *ledger;

                asked = 0;
                assert_int_equal(kvr_ledger_new(&settings[i], &ledger, NULL), KVR_OK);
                assert_int_equal(asked, kvr_ledger_bytes(ledger));
                print_message("# %.1f MB\n", (double)asked / 1e6);
                assert_true(asked < 40000000);
                kvr_ledger_free(ledger);
        }
}

static void test_out_of_memory(void **state)
{
        struct kvr_ledger *ledger = NULL;
        struct kvr_error err;
        unsigned needed;

        (void)state;
        calls = 0;
        assert_int_equal(kvr_ledger_new(NULL, &ledger, NULL), KVR_OK);
        needed = calls;
        kvr_ledger_free(ledger);
        ledger = NULL;
        assert_true(needed > 5);
        for (fails_at = 1; fails_at <= needed; fails_at++) {
                calls = 0;
                assert_int_equal(kvr_ledger_new(NULL, &ledger, &err), KVR_E_NOMEM);
                assert_null(ledger);
                assert_int_equal(err.status, KVR_E_NOMEM);
        }
        fails_at = 0;
}

/* New prompts, families, names, replicas' pressure: nothing is asked for. The router's own tables are warm by
 * then. */
static void test_none_per_request(void **state)
{
        static struct ledger_fleet fleet;
        struct kvr_ledger_account account;
        struct kvr_ledger_curve curve;
        struct kvr_ledger_balance balance;
        char name[16];
        uint32_t cursor = 0;

        (void)state;
        brain_fleet_up(&fleet.brain, &(struct kvr_settings){.index_memory_bytes = 1 << 20}, 4,
                       (struct kvr_replica_spec){.block_tokens = 16, .capacity_tokens = 20000});
        assert_int_equal(
                kvr_ledger_new(&(struct kvr_ledger_settings){.virtual_runs = 2048}, &fleet.ledger, NULL),
                KVR_OK);
        for (uint64_t i = 0; i < 6000; i++) {
                if (i == 2000) {
                        kvr_router_set_ledger(fleet.brain.router, fleet.ledger);
                        calls = 0;
                }
                brain_prompt_init(&fleet.prompt);
                brain_message(&fleet.prompt, i % 300, 900);
                brain_message(&fleet.prompt, i, 200 + i % 13 * 1000);
                snprintf(name, sizeof(name), "w%u", (unsigned)(i % 100));
                struct kvr_request request = {.prompt = brain_prompt_done(&fleet.prompt),
                                              .model = brain_slice("m"),
                                              .workload = brain_slice(name)};

                brain_serve(&fleet.brain, &request, NULL);
                fleet.brain.env.now_ns += BRAIN_MS(400);
        }
        while (kvr_ledger_account(fleet.ledger, KVR_LEDGER_FAMILY, ledger_now(&fleet), &cursor, &account))
                assert_true(account.sums[KVR_LEDGER_LIFE].requests > 0);
        kvr_ledger_curve(fleet.ledger, KVR_LEDGER_HOUR, ledger_now(&fleet), &curve);
        assert_int_equal(kvr_ledger_balance(fleet.ledger, NULL, ledger_now(&fleet), &balance), KVR_OK);
        assert_int_equal(calls, 0);
        ledger_fleet_down(&fleet);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_stated_memory),
                cmocka_unit_test(test_out_of_memory),
                cmocka_unit_test(test_none_per_request),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
