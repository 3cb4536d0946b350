/* SPDX-License-Identifier: Apache-2.0 */
/* Families that are found against families that were sent, over a router. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "ledger_test_util.h"

#define GROUPS_MAX 200

static struct ledger_fleet fleet;

static void up(uint32_t replicas)
{
        ledger_fleet_up(&fleet, "kv", replicas, (struct kvr_replica_spec){.block_tokens = 16},
                        &(struct kvr_ledger_settings){.without_counterfactual = true});
}

static void send(void)
{
        struct kvr_request request = {.prompt = brain_prompt_done(&fleet.prompt), .model = brain_slice("m")};

        brain_serve(&fleet.brain, &request, NULL);
        fleet.brain.env.now_ns += BRAIN_MS(100);
}

static uint32_t families(void)
{
        struct kvr_ledger_info info;

        kvr_ledger_info(fleet.ledger, &info);
        return info.families;
}

static char names[GROUPS_MAX][KVR_NAME_MAX];
static uint64_t requests[GROUPS_MAX];
static double shared[GROUPS_MAX];

static uint32_t family_names(void)
{
        struct kvr_ledger_account account;
        uint32_t cursor = 0, count = 0;

        while (kvr_ledger_account(fleet.ledger, KVR_LEDGER_FAMILY, ledger_now(&fleet), &cursor, &account)) {
                if (strncmp(account.name, "family-", 7))
                        continue;
                assert_int_equal(strlen(account.name), 15);
                assert_true(account.family_tokens > 0);
                shared[count] = account.family_tokens;
                requests[count] = account.sums[KVR_LEDGER_LIFE].requests;
                memcpy(names[count++], account.name, KVR_NAME_MAX);
        }
        return count;
}

/* An optional common beginning, a system prompt per group, a conversation. */
static void chat(uint64_t common_bytes, uint64_t group, uint64_t system_bytes, uint64_t conversation,
                 uint64_t turns)
{
        brain_prompt_init(&fleet.prompt);
        if (common_bytes)
                brain_text(&fleet.prompt, 7, common_bytes);
        if (system_bytes)
                brain_message(&fleet.prompt, 1000 + group, system_bytes);
        for (uint64_t turn = 0; turn <= turns; turn++) {
                uint64_t text = brain_mix(group * 1000003 + conversation * 101 + turn);

                if (turn)
                        brain_message(&fleet.prompt, text + 1, 200 + text % 900); /* the answer */
                brain_message(&fleet.prompt, text, 60 + text % 700);
        }
        send();
}

static void groups_send(uint32_t groups, uint64_t common_bytes, uint32_t conversations, uint32_t turns)
{
        /* Conversations of all groups side by side, each going on with every round. */
        for (uint32_t turn = 0; turn < turns; turn++)
                for (uint32_t conversation = 0; conversation < conversations; conversation++)
                        for (uint32_t i = 0; i < groups; i++) {
                                uint32_t group = (i * 7 + conversation) % groups;

                                chat(common_bytes, group, 2000 + group * 37, conversation * 1000 + i, turn);
                        }
}

static void test_groups(void **state)
{
        static const uint32_t counts[] = {1, 3, 50};

        (void)state;
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
                up(4);
                groups_send(counts[i], 0, 20, 1);
                assert_int_equal(families(), counts[i]);
                assert_int_equal(family_names(), counts[i]);
                ledger_fleet_down(&fleet);
        }
}

static void test_turns(void **state)
{
        (void)state;
        for (uint32_t groups = 1; groups <= 9; groups += 4) {
                up(4);
                groups_send(groups, 0, 16, 6);
                assert_int_equal(families(), groups);
                ledger_fleet_down(&fleet);
        }
}

static void test_common_beginning(void **state)
{
        static const uint32_t counts[] = {1, 3, 12, 50};

        (void)state;
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
                up(4);
                groups_send(counts[i], 1536, 16, 2);
                assert_int_equal(families(), counts[i]);
                ledger_fleet_down(&fleet);
        }
}

static void test_nothing_shared(void **state)
{
        (void)state;
        up(4);
        for (uint64_t i = 0; i < 500; i++) {
                brain_prompt_of(&fleet.prompt, 5000 + i, 1000 + i * 7);
                send();
        }
        assert_int_equal(families(), 0);
        /* Conversations that share nothing with each other are no families either. */
        for (uint64_t conversation = 0; conversation < 40; conversation++)
                for (uint64_t turn = 0; turn < 12; turn++)
                        chat(0, 900000 + conversation, 0, conversation, turn);
        assert_int_equal(families(), 0);
        assert_int_equal(ledger_life(&fleet, KVR_LEDGER_FAMILY, "(none)").requests, 500 + 40 * 12);
        ledger_fleet_down(&fleet);
}

/* Names depend on the keys alone, and tokens are the system prompt's. */
static void test_names(void **state)
{
        char first[KVR_NAME_MAX];

        (void)state;
        up(3);
        for (uint64_t i = 0; i < 30; i++)
                chat(0, 4, 6000, i, 0);
        assert_int_equal(family_names(), 1);
        memcpy(first, names[0], sizeof(first));
        /* 6,000 bytes at the default of a quarter token a byte. */
        assert_true(fabs(shared[0] - 1500) < 30);
        /* The first ones came before there was a family. */
        assert_int_equal(requests[0], 30 - (KVR_LEDGER_BRANCHES - 1));
        ledger_fleet_down(&fleet);
        up(5);
        for (uint64_t i = 0; i < 10; i++)
                chat(0, 9, 3000, 100 + i, 0);
        for (uint64_t i = 0; i < 10; i++)
                chat(0, 4, 6000, 200 + i, 0);
        assert_int_equal(family_names(), 2);
        assert_true(!strcmp(names[0], first) || !strcmp(names[1], first));
        assert_string_not_equal(names[0], names[1]);
        ledger_fleet_down(&fleet);
}

/* More groups than families: the busy ones keep theirs, and nothing is lost. */
static void test_heavy_survive(void **state)
{
        const uint32_t heavy = 20, light = 180;
        uint64_t sent = 0;
        uint32_t found = 0;

        (void)state;
        up(2);
        for (uint32_t round = 0; round < 40; round++) {
                for (uint32_t group = 0; group < heavy; group++, sent++)
                        chat(0, group, 1500, round, 0);
                for (uint32_t i = 0; i < 20; i++, sent++) {
                        uint32_t group = heavy + (round * 20 + i) % light;

                        chat(0, group, 1500, 1000 + round * 20 + i, 0);
                }
        }
        for (uint32_t group = 0; group < heavy; group++) {
                for (uint32_t i = 0; i < 3; i++, sent++)
                        chat(0, group, 1500, 5000 + i, 0);
        }
        assert_true(families() <= KVR_LEDGER_FAMILIES_MAX - 2);
        family_names();
        for (uint32_t i = 0; i < families(); i++)
                found += requests[i] >= 40;
        assert_int_equal(found, heavy);
        struct kvr_ledger_sums all = ledger_life(&fleet, KVR_LEDGER_ALL, "all");
        struct kvr_ledger_sums sum = ledger_total(&fleet, KVR_LEDGER_FAMILY);

        assert_int_equal(all.requests, sent);
        assert_memory_equal(&all, &sum, sizeof(all));
        ledger_fleet_down(&fleet);
}

/* A conversation that goes on at its end is no branch; three continuations are too few, four are a family. */
static void test_branches(void **state)
{
        (void)state;
        up(1);
        brain_prompt_of(&fleet.prompt, 5, 3000);
        send();
        for (uint64_t branch = 1; branch <= KVR_LEDGER_BRANCHES; branch++) {
                assert_int_equal(families(), 0);
                brain_prompt_init(&fleet.prompt);
                brain_message(&fleet.prompt, 5, 3000);
                brain_message(&fleet.prompt, 100 + branch, 500);
                send();
                /* The same again is no other branch. */
                send();
        }
        assert_int_equal(families(), 1);
        ledger_fleet_down(&fleet);
}

/* A family within a family: the deepest one counts, and the outer one lives on by its own branches. */
static void test_nested(void **state)
{
        (void)state;
        up(1);
        for (uint64_t i = 0; i < 20; i++) {
                brain_prompt_init(&fleet.prompt);
                brain_message(&fleet.prompt, 5, 3000);
                brain_message(&fleet.prompt, 100 + i, 500);
                send();
                brain_prompt_init(&fleet.prompt);
                brain_message(&fleet.prompt, 5, 3000);
                brain_message(&fleet.prompt, 6, 3000);
                brain_message(&fleet.prompt, 100 + i, 500);
                send();
        }
        assert_int_equal(family_names(), 2);
        uint32_t inner = shared[0] > shared[1] ? 0 : 1;

        assert_true(fabs(shared[inner] - 1500) < 20 && fabs(shared[1 - inner] - 750) < 20);
        assert_int_equal(requests[inner], 20 - (KVR_LEDGER_BRANCHES - 1));
        assert_true(requests[1 - inner] >= 18 && requests[1 - inner] <= 22);
        ledger_fleet_down(&fleet);
}

/* More families of one size than there is room for do not push each other out in turn. */
static void test_no_thrashing(void **state)
{
        struct kvr_ledger_info info;

        (void)state;
        up(1);
        for (uint32_t round = 0; round < 30; round++)
                for (uint32_t group = 0; group < 180; group++)
                        chat(0, group, 1500, round, 0);
        kvr_ledger_info(fleet.ledger, &info);
        assert_int_equal(info.families, KVR_LEDGER_FAMILIES_MAX - 2);
        assert_int_equal(info.families_given_up, 0);
        ledger_fleet_down(&fleet);
}

/* How long a shared beginning is, and how long ago it was used. */
static void test_histograms(void **state)
{
        struct kvr_ledger_account account;

        (void)state;
        up(1);
        for (uint64_t i = 0; i < 20; i++) {
                chat(0, 1, 8192, i, 0);
                fleet.brain.env.now_ns += BRAIN_S(3) - BRAIN_MS(200);
        }
        assert_true(ledger_find(&fleet, KVR_LEDGER_ALL, "all", &account));
        /* 8,192 bytes are some 2,048 tokens. */
        assert_int_equal(account.shared_tokens[0], 1);
        assert_int_equal(account.shared_tokens[11] + account.shared_tokens[12], 19);
        /* The second one finds the fork unmarked, the others 3 s after the last: 2^11 .. 2^12 ms. */
        assert_int_equal(account.reuse_unknown, 1);
        assert_int_equal(account.reuse_ms[12], 18);
        ledger_fleet_down(&fleet);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_groups),
                cmocka_unit_test(test_turns),
                cmocka_unit_test(test_common_beginning),
                cmocka_unit_test(test_nothing_shared),
                cmocka_unit_test(test_names),
                cmocka_unit_test(test_heavy_survive),
                cmocka_unit_test(test_branches),
                cmocka_unit_test(test_nested),
                cmocka_unit_test(test_no_thrashing),
                cmocka_unit_test(test_histograms),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
