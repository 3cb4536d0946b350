/* SPDX-License-Identifier: Apache-2.0 */
/* Events that do not fit what the engine does, or what it was said to be. */
#include "kvroute/events.h"

#include "events_world_test.h"

enum trouble { NO_EVENTS, OTHER_TEMPLATE, NO_ADAPTER, NO_TOKENIZER, LOST_REMOVALS };

/* One chat again and again, with something wrong between engine and router. */
static void trouble_run(struct world *world, enum trouble trouble, uint32_t requests)
{
        struct toy_engine *engine = world->engines[0];
        uint32_t hit;

        for (uint32_t i = 0; i < requests; i++) {
                struct chat chat;
                struct kvr_prompt prompt;

                chat_begin(world, &chat, 1, 4000);
                chat.adapter = trouble == NO_ADAPTER ? "lora-a" : "";
                if (trouble == OTHER_TEMPLATE || trouble == NO_ADAPTER) {
                        /* The host learns what its tokenizer says, which is not what the engine runs. */
                        struct kvr_request request = request_of(world, &chat, &prompt);
                        struct kvr_outline *outline = kvr_outline_new(
                                &prompt, request.model, brain_slice(chat.adapter), (struct kvr_slice){0});

                        world->lag = 1000000;
                        if (trouble == OTHER_TEMPLATE)
                                world->ids.ids[0] = 17;
                        assert_int_equal(kvr_tokens_learn(world->fleet.router, outline, world->ids.ids,
                                                          world->ids.count),
                                         KVR_OK);
                        kvr_outline_free(outline);
                        chat.adapter = "";
                }
                if (trouble == NO_TOKENIZER)
                        world->lag = 1000000;
                if (trouble == NO_EVENTS)
                        engine->router = NULL;
                if (trouble == LOST_REMOVALS) {
                        engine->router = NULL;
                        toy_clear(engine, i);
                }
                say(world, &chat, &hit);
                world->fleet.env.now_ns += BRAIN_S(60);
                chat_end(&chat);
        }
        engine->router = world->fleet.router;
        world->lag = 0;
}

static void test_canary(void **state)
{
        static const struct {
                enum trouble trouble;
                enum kvr_canary verdict;
                enum kvr_residency residency;
        } cases[] = {
                {NO_EVENTS, KVR_CANARY_SILENT, KVR_BY_HISTORY},
                {OTHER_TEMPLATE, KVR_CANARY_TEMPLATE, KVR_BY_HISTORY},
                {NO_ADAPTER, KVR_CANARY_NAMESPACE, KVR_BY_HISTORY},
                {NO_TOKENIZER, KVR_CANARY_NO_TOKENS, KVR_BY_EVENTS},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct world *world = world_of_one();

                trouble_run(world, cases[i].trouble, 30);
                struct kvr_replica_info info = info_of(world, 0);

                if (info.canary != cases[i].verdict)
                        fail_msg("%s instead of %s", kvr_canary_name(info.canary),
                                 kvr_canary_name(cases[i].verdict));
                assert_int_equal(info.residency, cases[i].residency);
                assert_true(info.events_missed >= 8);
                assert_true(info.events_trusted);
                world_free(world);
        }
}

/* Removals that were lost: events say much and the engine nothing. History is followed until it fits again. */
static void test_stale(void **state)
{
        struct world *world = world_of_one();
        struct chat chat;
        uint32_t hit;

        (void)state;
        chat_said(world, &chat, 1, 4000);
        chat_end(&chat);
        trouble_run(world, LOST_REMOVALS, 10);
        struct kvr_replica_info info = info_of(world, 0);

        assert_int_equal(info.canary, KVR_CANARY_STALE);
        assert_int_equal(info.residency, KVR_BY_HISTORY);
        /* All is told again from here on. */
        toy_clear(world->engines[0], 99);
        for (int i = 0; i < 12; i++) {
                chat_begin(world, &chat, 1, 4000);
                say(world, &chat, &hit);
                world->fleet.env.now_ns += BRAIN_S(60);
                chat_end(&chat);
        }
        info = info_of(world, 0);
        assert_int_equal(info.canary, KVR_CANARY_OK);
        assert_int_equal(info.residency, KVR_BY_EVENTS);
        assert_true(info.events_matched >= 4);
        world_free(world);
}

/* The engine's blocks are not as long as was told: theirs count (field report 13). */
static void test_other_block_size(void **state)
{
        static const uint32_t sixty_four[ENGINES_MAX] = {64};
        struct world *world = world_new(1, NULL, sixty_four, 64000);
        struct chat chat;

        (void)state;
        toy_free(world->engines[0]);
        world->engines[0] = toy_new(world->fleet.router, world->fleet.ids[0], 16, 4000);
        chat_said(world, &chat, 1, 4000);
        assert_int_equal(info_of(world, 0).event_block_tokens, 16);
        /* It was learned for the size told; the next time it is learned for the real one. */
        chat_end(&chat);
        chat_said(world, &chat, 1, 4000);
        assert_int_equal(predicted(world, &chat), whole_hit(prompt_tokens(world, &chat)));
        chat_end(&chat);
        world_free(world);
}

/* What the engine says of its blocks elsewhere is good until its first event: so the first prompt of all is
 * tokenized for them already. */
static void test_told_block_size(void **state)
{
        static const uint32_t assumed[ENGINES_MAX] = {32};
        struct world *world = world_new(1, NULL, assumed, 64000);
        struct kvr_router *router = world->fleet.router;
        struct kvr_replica_spec told = {.block_tokens = 16};
        struct chat chat;

        (void)state;
        toy_free(world->engines[0]);
        world->engines[0] = toy_new(router, world->fleet.ids[0], 16, 4000);
        assert_int_equal(kvr_replica_configure(router, world->fleet.ids[0], &told), KVR_OK);
        assert_int_equal(info_of(world, 0).event_block_tokens, 16);
        chat_said(world, &chat, 1, 4000);
        assert_int_equal(world->learned, 1);
        assert_int_equal(info_of(world, 0).event_block_tokens, 16);
        struct kvr_prompt prompt;
        struct kvr_request request = request_of(world, &chat, &prompt);

        assert_false(kvr_tokens_wanted(router, &request));
        assert_int_equal(predicted(world, &chat), whole_hit(prompt_tokens(world, &chat)));
        /* Now that events have shown it nothing else is believed. */
        told.block_tokens = 64;
        assert_int_equal(kvr_replica_configure(router, world->fleet.ids[0], &told), KVR_OK);
        assert_int_equal(info_of(world, 0).event_block_tokens, 16);
        assert_int_equal(predicted(world, &chat), whole_hit(prompt_tokens(world, &chat)));
        /* A size that is not told changes nothing. */
        told.block_tokens = 0;
        assert_int_equal(kvr_replica_configure(router, world->fleet.ids[0], &told), KVR_OK);
        assert_int_equal(info_of(world, 0).event_block_tokens, 16);
        chat_end(&chat);
        world_free(world);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_canary),
                cmocka_unit_test(test_stale),
                cmocka_unit_test(test_other_block_size),
                cmocka_unit_test(test_told_block_size),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
