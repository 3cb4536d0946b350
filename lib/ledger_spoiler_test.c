/* SPDX-License-Identifier: Apache-2.0 */
/* Cache spoilers, with bodies that go through the real parser and the real router. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "ledger_test_util.h"

#define BODY_MAX (1U << 18)

static struct ledger_fleet fleet;
static struct kvr_parser *parser;
static char body[BODY_MAX];
static size_t length;

static int up(void **state)
{
        (void)state;
        ledger_fleet_up(&fleet, "kv", 4, (struct kvr_replica_spec){.block_tokens = 16},
                        &(struct kvr_ledger_settings){.without_counterfactual = true});
        parser = kvr_parser_new();
        brain_must(parser != NULL);
        return 0;
}

static int down(void **state)
{
        (void)state;
        kvr_parser_free(parser);
        ledger_fleet_down(&fleet);
        return 0;
}

static KVR_PRINTF(1, 2) void add(const char *format, ...)
{
        va_list args;

        va_start(args, format);
        length += (size_t)vsnprintf(body + length, sizeof(body) - length, format, args);
        va_end(args);
        brain_must(length < sizeof(body));
}

/* Letters that depend on the number. */
static void add_text(uint64_t text, size_t bytes)
{
        uint64_t x = text;

        for (size_t i = 0; i < bytes; i++) {
                x = brain_mix(x);
                add("%c", (int)('a' + x % 26));
        }
}

static void begin(void)
{
        length = 0;
        add("{\"model\":\"m\",\"messages\":[");
}

static void message(const char *role, uint64_t text, size_t bytes)
{
        add("%s{\"role\":\"%s\",\"content\":\"", body[length - 1] == '[' ? "" : ",", role);
        add_text(text, bytes);
        add("\"}");
}

static void send(void)
{
        struct kvr_prompt prompt;

        add("]}");
        brain_must(kvr_prompt_parse(parser, KVR_API_CHAT, (struct kvr_slice){body, length}, NULL, &prompt,
                                    NULL) == KVR_OK);
        struct kvr_request request = {.prompt = &prompt, .model = prompt.model};

        brain_serve(&fleet.brain, &request, NULL);
        fleet.brain.env.now_ns += BRAIN_MS(50);
}

/* `spot` stands at byte `at` of a system prompt of `bytes` more. */
static void system_with(size_t at, const char *spot, size_t bytes, uint64_t text)
{
        add("%s{\"role\":\"system\",\"content\":\"", body[length - 1] == '[' ? "" : ",");
        add_text(text, at);
        add("%s", spot);
        add_text(text + 1, bytes);
        add("\"}");
}

static void turns(uint64_t conversation, uint32_t count)
{
        for (uint32_t turn = 0; turn <= count; turn++) {
                uint64_t text = brain_mix(conversation * 1000 + turn);

                if (turn)
                        message("assistant", text + 1, 300 + text % 600);
                message("user", text, 50 + text % 200);
        }
}

static size_t spoilers(struct kvr_ledger_spoiler *ret)
{
        return kvr_ledger_spoilers(fleet.ledger, ret, 4);
}

/* A counter at byte 80 and 30 kB of stable text behind it, 20 turns. */
static void test_counter_in_a_conversation(void **state)
{
        struct kvr_ledger_spoiler found[4];
        char spot[16];

        (void)state;
        for (uint32_t turn = 0; turn < 20; turn++) {
                snprintf(spot, sizeof(spot), "%u", 90 + turn);
                begin();
                system_with(80, spot, 30000, 5);
                turns(1, turn);
                send();
        }
        assert_int_equal(spoilers(found), 1);
        assert_int_equal(found[0].from, 0);
        assert_int_equal(found[0].to, KVR_GRID_MIN_BYTES);
        assert_int_equal(found[0].unit, KVR_UNIT_BYTES);
        assert_true(found[0].count >= 17);
        /* Each time some 7,500 tokens were lost. */
        assert_true(found[0].tokens >= 17 * 7500 && found[0].tokens < 20 * 20000);
}

/* A clock deep in a long system prompt, questions by themselves. */
static void test_clock_before_questions(void **state)
{
        struct kvr_ledger_spoiler found[4];
        char spot[16];

        (void)state;
        for (uint32_t i = 0; i < 50; i++) {
                snprintf(spot, sizeof(spot), "%02u:%02u:%02u", 10 + i / 20, i * 7 % 60, i * 13 % 60);
                begin();
                system_with(3000, spot, 9000, 5);
                message("user", 100 + i, 40 + i * 11 % 300);
                send();
        }
        assert_int_equal(spoilers(found), 1);
        assert_true(found[0].from <= 3000 && found[0].from > 2500);
        assert_true(found[0].to >= 3000 && found[0].to < 3500);
        assert_true(found[0].count >= 45);
        /* All of them share what is in front of the clock: that is a family, and the report names it. */
        assert_memory_equal(found[0].family, "family-", 7);
}

/* A counter in a short system prompt: only the conversation behind it can tell. */
static void test_short_message(void **state)
{
        struct kvr_ledger_spoiler found[4];
        char spot[16];

        (void)state;
        for (uint32_t turn = 0; turn < 12; turn++) {
                snprintf(spot, sizeof(spot), "%03u", turn);
                begin();
                system_with(80, spot, 200, 5);
                turns(1, turn);
                send();
        }
        assert_int_equal(spoilers(found), 1);
        assert_int_equal(found[0].from, 0);
        assert_true(found[0].count >= 8);
}

/* Lost and computed again, the same text is no spoiler; nor is what changes late. */
static void test_lost_or_late(void **state)
{
        struct kvr_ledger_spoiler found[4];
        char spot[16];

        (void)state;
        for (uint32_t turn = 0; turn < 12; turn++) {
                begin();
                system_with(80, "", 200, 5);
                turns(1, turn);
                send();
                for (uint32_t i = 0; i < fleet.brain.count; i++)
                        brain_must(kvr_replica_forget(fleet.brain.router, fleet.brain.ids[i]) == KVR_OK);
        }
        assert_int_equal(spoilers(found), 0);
        for (uint32_t turn = 0; turn < 12; turn++) {
                snprintf(spot, sizeof(spot), "%03u", turn);
                begin();
                message("system", 77, 20000);
                system_with(300, spot, 40, 5);
                turns(2, turn);
                send();
        }
        assert_int_equal(spoilers(found), 0);
}

/* Ordinary traffic: conversations, groups, equal lengths, prompts of no use. */
static void test_none_without(void **state)
{
        struct kvr_ledger_spoiler found[4];

        (void)state;
        for (uint32_t turn = 0; turn < 8; turn++)
                for (uint64_t conversation = 0; conversation < 30; conversation++) {
                        begin();
                        system_with(100, "", 5000, 7 + conversation % 3);
                        turns(conversation, turn);
                        send();
                }
        for (uint64_t i = 0; i < 200; i++) {
                /* Benchmarks: random text of one length. */
                begin();
                message("user", 10000 + i, 3000);
                send();
                begin();
                system_with(0, "", 2048, 500 + i % 2);
                message("user", 20000 + i, 2048);
                send();
                /* System prompts of random text, one length and one question's length. */
                begin();
                message("system", 30000 + i, 4000);
                message("user", 30000 + i, 128);
                send();
        }
        assert_int_equal(spoilers(found), 0);
}

/* Nothing of it is shared, whatever shape it has: random lengths, fixed ones, whole histories at once. */
static void test_unique_traffic_gives_none(void **state)
{
        struct kvr_ledger_spoiler found[4];

        (void)state;
        for (uint64_t i = 0; i < 6000; i++) {
                uint64_t r = brain_mix(i + 77), kind = r % 4;
                uint32_t messages = 1 + (uint32_t)(r >> 8) % 6;

                begin();
                for (uint32_t m = 0; m < messages; m++) {
                        uint64_t text = brain_mix(r + m);
                        /* anything, few sizes, one size, or a long text before short ones */
                        size_t bytes = kind == 0   ? 20 + text % 3000
                                       : kind == 1 ? 200 + text % 4 * 100
                                       : kind == 2 ? 700
                                       : m         ? 30 + text % 200
                                                   : 1100 + text % 2500;

                        message(m % 2 ? "assistant" : "user", text, bytes);
                }
                send();
        }
        assert_int_equal(spoilers(found), 0);
}

/* The same, behind a system prompt that all have in common, by replicas that lose their caches all the time. */
static void test_unique_conversations_give_none(void **state)
{
        struct kvr_ledger_spoiler found[4];

        (void)state;
        for (uint64_t i = 0; i < 3000; i++) {
                uint64_t conversation = i / 6 * 8 + i % 3, r = brain_mix(conversation);

                begin();
                message("system", 5, 900);
                for (uint32_t m = 0; m < 1 + 2 * (i % 6); m++)
                        message(m % 2 ? "assistant" : "user", brain_mix(r + m),
                                conversation % 2 ? 300 : 40 + (r >> m) % 900);
                send();
                for (uint32_t at = 0; i % 5 == 0 && at < fleet.brain.count; at++)
                        brain_must(kvr_replica_forget(fleet.brain.router, fleet.brain.ids[at]) == KVR_OK);
        }
        assert_int_equal(spoilers(found), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_counter_in_a_conversation, up, down),
                cmocka_unit_test_setup_teardown(test_clock_before_questions, up, down),
                cmocka_unit_test_setup_teardown(test_short_message, up, down),
                cmocka_unit_test_setup_teardown(test_lost_or_late, up, down),
                cmocka_unit_test_setup_teardown(test_none_without, up, down),
                cmocka_unit_test_setup_teardown(test_unique_traffic_gives_none, up, down),
                cmocka_unit_test_setup_teardown(test_unique_conversations_give_none, up, down),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
