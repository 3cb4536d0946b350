/* SPDX-License-Identifier: Apache-2.0 */
/* What is believed when events were missed, and what is believed of prompts that wait in front of a small cache. */
#include "kvroute/events.h"

#include "events_world_test.h"

/* An engine tells of a block once. After a loss its old blocks are unknown until it drops them: until then history
 * knows more of them than the events, from then on the events are right again. */
static void test_unknown_until_dropped(void **state)
{
        struct world *world = world_of_one();
        struct toy_engine *engine = world->engines[0];
        struct chat old, fresh;
        uint32_t hit;

        (void)state;
        chat_said(world, &old, 1, 4000);
        uint32_t tokens = prompt_tokens(world, &old);

        assert_int_equal(predicted(world, &old), whole_hit(tokens));
        assert_int_equal(kvr_events_lost(world->fleet.router, engine->id, NULL), KVR_OK);
        /* The engine has it still, and it is sent there and found. */
        assert_true(predicted(world, &old) >= whole_hit(tokens) - 16);
        say(world, &old, &hit);
        assert_true(hit >= whole_hit(tokens) - 16);
        free(old.texts[--old.count]);
        /* What comes from now on is known by events. */
        chat_said(world, &fresh, 2, 2000);
        assert_int_equal(predicted(world, &fresh), whole_hit(prompt_tokens(world, &fresh)));
        assert_int_equal(info_of(world, 0).canary, KVR_CANARY_OK);
        /* All that was told before and after is dropped: nothing is unknown any more, and history is silent. */
        while (engine->used)
                toy_evict(engine);
        assert_int_equal(predicted(world, &old), 0);
        assert_int_equal(predicted(world, &fresh), 0);
        chat_end(&old);
        chat_end(&fresh);
        world_free(world);
}

/* Losses one after the other add up: what the second one made us forget is as unknown as what the first one did. */
static void test_losses_add_up(void **state)
{
        struct world *world = world_of_one();
        struct toy_engine *engine = world->engines[0];
        struct chat chats[2];

        (void)state;
        for (uint32_t i = 0; i < 2; i++) {
                chat_said(world, &chats[i], 1 + i, 4000);
                assert_int_equal(kvr_events_lost(world->fleet.router, engine->id, NULL), KVR_OK);
        }
        for (uint32_t i = 0; i < 2; i++)
                assert_true(predicted(world, &chats[i]) >= whole_hit(prompt_tokens(world, &chats[i])) - 16);
        /* The engine's own word that all is gone leaves nothing unknown. */
        toy_clear(engine, 5);
        assert_int_equal(kvr_events_cleared(world->fleet.router, engine->id, NULL), KVR_OK);
        for (uint32_t i = 0; i < 2; i++) {
                assert_int_equal(predicted(world, &chats[i]), 0);
                chat_end(&chats[i]);
        }
        world_free(world);
}

/* Prompts wait in front of a cache that holds a few of them: by the time of the last one the first has been displaced,
 * however young the prediction is. */
static void test_queue_longer_than_the_cache(void **state)
{
        enum { WAITING = 12 };
        static const uint32_t sizes[ENGINES_MAX] = {16};
        struct world *world = world_new(1, NULL, sizes, 4000);
        struct chat chats[WAITING];
        struct kvr_ticket *tickets[WAITING];

        (void)state;
        for (uint32_t i = 0; i < WAITING; i++) {
                struct kvr_prompt prompt;
                struct kvr_decision decision;

                chat_begin(world, &chats[i], 100 + i, 4000);
                struct kvr_request request = request_of(world, &chats[i], &prompt);

                tickets[i] = brain_send(&world->fleet, &request, &decision);
                assert_true(decision.match_tokens < 200);
                world->fleet.env.now_ns += BRAIN_MS(10);
                assert_true(predicted(world, &chats[i]) > prompt_tokens(world, &chats[i]) * 9 / 10);
        }
        assert_true(prompt_tokens(world, &chats[0]) * WAITING > 2 * 4000);
        assert_true(predicted(world, &chats[0]) < 200);
        for (uint32_t i = 0; i < WAITING; i++) {
                brain_end(tickets[i], KVR_END_FINISHED, prompt_tokens(world, &chats[i]), 0, 1);
                chat_end(&chats[i]);
        }
        world_free(world);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_unknown_until_dropped),
                cmocka_unit_test(test_losses_add_up),
                cmocka_unit_test(test_queue_longer_than_the_cache),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
