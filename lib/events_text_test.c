/* SPDX-License-Identifier: Apache-2.0 */
/* Plain text that grows: the matches of prompts without messages, to the block. */
#include "kvroute/events.h"

#include "events_world_test.h"

struct completion {
        struct kvr_prompt prompt;
        struct kvr_request request;
};

/* The request for the first `bytes` of a text, and its ids. `more`: further members of the body. */
static void completion_make(struct world *world, const char *text, size_t bytes, const char *more,
                            struct completion *ret)
{
        struct kvr_error err;
        size_t len = (size_t)snprintf(world->body, TOY_BODY_MAX, "{\"model\":\"m\"%s,\"prompt\":\"%.*s\"}",
                                      more, (int)bytes, text);

        brain_must(len < TOY_BODY_MAX);
        world->ids.count = 0;
        toy_tokenize(&world->ids, text, bytes);
        assert_int_equal(kvr_prompt_parse(world->parser, KVR_API_COMPLETIONS,
                                          (struct kvr_slice){world->body, len}, NULL, &ret->prompt, &err),
                         KVR_OK);
        ret->request = (struct kvr_request){.prompt = &ret->prompt, .model = ret->prompt.model};
}

/* Sends it; what was predicted. The engine runs it, its events and the tokenizer's answer come, time passes. */
static uint32_t complete(struct world *world, const char *text, size_t bytes, const char *more,
                         uint32_t *ret_cached)
{
        struct completion completion;
        struct kvr_decision decision;

        completion_make(world, text, bytes, more, &completion);
        struct kvr_ticket *ticket = brain_send(&world->fleet, &completion.request, &decision);
        bool wanted = kvr_tokens_wanted(world->fleet.router, &completion.request);
        struct kvr_outline *outline = kvr_outline_new(&completion.prompt, completion.request.model,
                                                      (struct kvr_slice){0}, completion.prompt.salt);
        char salt[32] = "";

        memcpy(salt, completion.prompt.salt.data ? completion.prompt.salt.data : "",
               completion.prompt.salt.len);
        *ret_cached = toy_run(world->engines[0], &world->ids, world->ids.count, "", salt);
        if (wanted)
                assert_int_equal(
                        kvr_tokens_learn(world->fleet.router, outline, world->ids.ids, world->ids.count),
                        KVR_OK);
        kvr_outline_free(outline);
        kvr_ticket_first_token(ticket);
        brain_end(ticket, KVR_END_FINISHED, world->ids.count, *ret_cached, 1);
        /* What was sent there just now is forgotten by then. */
        world->fleet.env.now_ns += BRAIN_S(60);
        return decision.match_tokens;
}

static void assert_block_off(uint32_t predicted, uint32_t cached)
{
        assert_in_range(predicted, cached > 16 ? cached - 16 : 0, cached + 16);
}

/* By little and by much, so that several ends lie in one cell and none in others; from the first byte on and far
 * behind, where cells are of 2 KB. */
static void test_grows(void **state)
{
        static const struct {
                size_t first, step, most;
        } cases[] = {
                {90, 37, 1400}, {700, 256, 6000}, {1, 100, 900}, {70000, 333, 76000}, {300, 5000, 60000}};

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct world *world = world_of_one();
                char *text = text_of(i, cases[i].most);
                uint32_t cached, known = 0;

                (void)complete(world, text, cases[i].first, "", &cached);
                for (size_t len = cases[i].first + cases[i].step; len <= cases[i].most;
                     len += cases[i].step) {
                        uint32_t told = complete(world, text, len, "", &cached);

                        assert_true(cached >= known);
                        known = cached;
                        assert_block_off(told, cached);
                }
                assert_true(known > cases[i].most / 6);
                free(text);
                world_free(world);
        }
}

/* Of several ends in one cell the longest that is a beginning counts, and none of another text. */
static void test_which(void **state)
{
        struct world *world = world_of_one();
        char *text = text_of(5, 2000), *fork = text_of(5, 2000);
        struct completion completion;
        struct kvr_decision decision;
        uint32_t cached;
        size_t count;

        (void)state;
        toy_text(6, 1000, fork + 850);
        for (int i = 0; i < 3; i++)
                (void)complete(world, text, (size_t)(800 + 60 * i), "", &cached);
        /* It parts from the last two behind byte 850. */
        completion_make(world, fork, 1400, "", &completion);
        assert_int_equal(
                kvr_explain(world->fleet.router, &completion.request, &decision, NULL, 0, &count, NULL),
                KVR_OK);
        toy_tokenize((world->ids.count = 0, &world->ids), text, 800);
        assert_int_equal(decision.match_tokens, world->ids.count / 16 * 16);
        /* Its tokens: exact up to there, the rest by the usual share. */
        world->ids.count = 0;
        toy_tokenize(&world->ids, fork, 1400);
        assert_in_range(decision.prompt_tokens, world->ids.count * 9 / 10, world->ids.count * 11 / 10);
        completion_make(world, text, 1000, "", &completion);
        assert_int_equal(
                kvr_explain(world->fleet.router, &completion.request, &decision, NULL, 0, &count, NULL),
                KVR_OK);
        world->ids.count = 0;
        toy_tokenize(&world->ids, text, 920);
        assert_int_equal(decision.match_tokens, world->ids.count / 16 * 16);
        /* Other namespaces. */
        (void)complete(world, text, 1000, ",\"cache_salt\":\"a\"", &cached);
        assert_int_equal(cached, 0);
        assert_int_equal(complete(world, text, 1005, ",\"cache_salt\":\"b\"", &cached), 0);
        assert_int_equal(cached, 0);
        uint32_t told = complete(world, text, 1010, ",\"cache_salt\":\"a\"", &cached);

        assert_block_off(told, cached);
        assert_true(cached > 200);
        kvr_tokens_forget(world->fleet.router, brain_slice("m"));
        completion_make(world, text, 1015, ",\"cache_salt\":\"a\"", &completion);
        assert_int_equal(
                kvr_explain(world->fleet.router, &completion.request, &decision, NULL, 0, &count, NULL),
                KVR_OK);
        /* By history: to the grid. */
        assert_in_range(decision.match_tokens, 150, 260);
        free(text);
        free(fork);
        world_free(world);
}

/* What the engine dropped is not promised because a prompt ended there once. */
static void test_evicted(void **state)
{
        struct world *world = world_of_one();
        char *text = text_of(9, 4000);
        uint32_t cached;

        (void)state;
        (void)complete(world, text, 3100, "", &cached);
        while (world->engines[0]->used > 40)
                toy_evict(world->engines[0]);
        uint32_t told = complete(world, text, 3300, "", &cached);

        assert_int_equal(cached, 40 * 16);
        assert_int_equal(told, cached);
        free(text);
        world_free(world);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_grows),
                cmocka_unit_test(test_which),
                cmocka_unit_test(test_evicted),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
