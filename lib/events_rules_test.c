/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of docs/events.md, one by one, on a single engine. */
#include "kvroute/events.h"

#include "events_world_test.h"

static void test_evicted(void **state)
{
        struct world *world = world_of_one();
        struct chat first, other;
        uint32_t hit;

        (void)state;
        chat_said(world, &first, 1, 4000);
        uint32_t tokens = prompt_tokens(world, &first);

        assert_int_equal(predicted(world, &first), whole_hit(tokens));
        /* Evictions take the tail first, then the rest; history would go on believing in all of it. */
        uint32_t before = whole_hit(tokens);
        unsigned partly = 0;

        for (uint64_t i = 0; i < 40 && before; i++) {
                chat_said(world, &other, 100 + i, 4000);
                chat_end(&other);
                uint32_t now = predicted(world, &first);

                partly += now && now < before;
                assert_true(now <= before);
                before = now;
        }
        assert_int_equal(before, 0);
        assert_true(partly >= 1);
        say(world, &first, &hit);
        assert_int_equal(hit, 0);
        chat_end(&first);
        world_free(world);
}

/* AllBlocksCleared, a restart with other hashes, and a removal (field reports 14, 23, 27, 28). */
static void test_cleared(void **state)
{
        struct world *world = world_of_one();
        struct kvr_router *router = world->fleet.router;
        struct toy_engine *engine = world->engines[0];
        struct kvr_events_account account = {0};
        struct chat chat;
        uint32_t hit;

        (void)state;
        chat_said(world, &chat, 1, 4000);
        uint32_t tokens = prompt_tokens(world, &chat);

        assert_int_equal(predicted(world, &chat), whole_hit(tokens));
        assert_true(info_of(world, 0).event_blocks >= tokens / 16);
        toy_clear(engine, 77);
        assert_int_equal(kvr_events_cleared(router, engine->id, &account), KVR_OK);
        assert_int_equal(account.cleared, 1);
        assert_int_equal(predicted(world, &chat), 0);
        assert_int_equal(info_of(world, 0).event_blocks, 0);
        /* The new run's blocks have other hashes and are found all the same. */
        say(world, &chat, &hit);
        assert_int_equal(hit, 0);
        free(chat.texts[--chat.count]);
        world->fleet.env.now_ns += BRAIN_S(60);
        assert_int_equal(predicted(world, &chat), whole_hit(tokens));
        /* The host notices late what the events have said: nothing that came since is lost. */
        assert_int_equal(kvr_events_cleared(router, engine->id, NULL), KVR_OK);
        toy_clear(engine, 79);
        say(world, &chat, &hit);
        free(chat.texts[--chat.count]);
        world->fleet.env.now_ns += BRAIN_S(20);
        assert_int_equal(kvr_replica_forget(router, engine->id), KVR_OK);
        assert_int_equal(predicted(world, &chat), whole_hit(tokens));
        world->fleet.env.now_ns += BRAIN_S(60);
        /* The host found out about a restart by itself. */
        assert_int_equal(kvr_replica_forget(router, engine->id), KVR_OK);
        assert_int_equal(predicted(world, &chat), 0);
        toy_clear(engine, 78);
        say(world, &chat, &hit);
        free(chat.texts[--chat.count]);
        world->fleet.env.now_ns += BRAIN_S(60);
        assert_int_equal(predicted(world, &chat), whole_hit(tokens));
        /* It leaves, and comes back empty while its old events are still on their way. */
        uint32_t one = 1;
        uint64_t hash = 5;
        struct kvr_blocks_stored late = {
                .hashes = &hash, .count = 1, .tokens = &one, .token_count = 1, .block_tokens = 1};

        assert_int_equal(kvr_replica_remove(router, engine->id), KVR_OK);
        assert_int_equal(kvr_events_stored(router, engine->id, &late, NULL), KVR_E_NOT_FOUND);
        assert_int_equal(kvr_events_removed(router, engine->id, &hash, 1, KVR_TIER_GPU, NULL),
                         KVR_E_NOT_FOUND);
        assert_int_equal(kvr_events_cleared(router, engine->id, NULL), KVR_E_NOT_FOUND);
        assert_int_equal(kvr_events_trust(router, engine->id, true), KVR_E_NOT_FOUND);
        world->fleet.count = 0;
        kvr_replica_id again = brain_add(&world->fleet, (struct kvr_replica_spec){.block_tokens = 16});

        assert_int_equal(kvr_events_trust(router, again, true), KVR_OK);
        assert_int_equal(kvr_events_stored(router, engine->id, &late, NULL), KVR_E_NOT_FOUND);
        assert_int_equal(predicted(world, &chat), 0);
        assert_int_equal(info_of(world, 0).event_blocks, 0);
        chat_end(&chat);
        world_free(world);
}

/* Without trust history counts; events are taken in all the same, and count at once when it comes back. */
static void test_trust(void **state)
{
        struct world *world = world_of_one();
        struct kvr_router *router = world->fleet.router;
        struct toy_engine *engine = world->engines[0];
        struct chat chat;

        (void)state;
        chat_said(world, &chat, 1, 4000);
        uint32_t tokens = prompt_tokens(world, &chat);

        assert_int_equal(info_of(world, 0).residency, KVR_BY_EVENTS);
        /* It loses everything, and says so while nobody listens. */
        while (engine->used)
                toy_evict(engine);
        assert_int_equal(predicted(world, &chat), 0);
        assert_int_equal(kvr_events_trust(router, engine->id, false), KVR_OK);
        assert_int_equal(info_of(world, 0).residency, KVR_BY_HISTORY);
        assert_true(predicted(world, &chat) >= whole_hit(tokens) - 16);
        assert_int_equal(kvr_events_trust(router, engine->id, true), KVR_OK);
        assert_int_equal(predicted(world, &chat), 0);
        kvr_events_stop(router, engine->id);
        assert_int_equal(info_of(world, 0).residency, KVR_BY_HISTORY);
        assert_true(predicted(world, &chat) >= whole_hit(tokens) - 16);
        /* Our view is blank; what was sent there is still known. */
        assert_int_equal(kvr_events_trust(router, engine->id, true), KVR_OK);
        assert_int_equal(kvr_events_lost(router, engine->id, NULL), KVR_OK);
        assert_int_equal(predicted(world, &chat), 0);
        assert_int_equal(kvr_events_trust(router, engine->id, false), KVR_OK);
        assert_true(predicted(world, &chat) >= whole_hit(tokens) - 16);
        assert_int_equal(kvr_events_lost(router, 12345, NULL), KVR_E_NOT_FOUND);
        chat_end(&chat);
        world_free(world);
}

/* A burst of one new prefix is kept together before any event; what failed or was long ago is not believed. */
static void test_young(void **state)
{
        struct world *world = world_of_one();
        struct chat chat;
        struct kvr_prompt prompt;
        struct kvr_decision decision;

        (void)state;
        chat_said(world, &chat, 1, 4000);
        chat_end(&chat);
        chat_begin(world, &chat, 2, 6000);
        /* Its tokens are known, and nobody has it. */
        struct kvr_request request = request_of(world, &chat, &prompt);
        struct kvr_outline *outline =
                kvr_outline_new(&prompt, request.model, (struct kvr_slice){0}, (struct kvr_slice){0});
        uint32_t tokens = world->ids.count;

        assert_int_equal(kvr_tokens_learn(world->fleet.router, outline, world->ids.ids, tokens), KVR_OK);
        kvr_outline_free(outline);
        assert_int_equal(predicted(world, &chat), 0);
        request = request_of(world, &chat, &prompt);
        struct kvr_ticket *ticket = brain_send(&world->fleet, &request, &decision);

        assert_int_equal(decision.match_tokens, 0);
        assert_int_equal(decision.prompt_tokens, tokens);
        assert_int_equal(predicted(world, &chat), whole_hit(tokens));
        /* It failed before it was computed. */
        brain_end(ticket, KVR_END_FAILED, -1, -1, -1);
        assert_int_equal(predicted(world, &chat), 0);
        request = request_of(world, &chat, &prompt);
        ticket = brain_send(&world->fleet, &request, &decision);
        world->fleet.env.now_ns += BRAIN_MS(900);
        kvr_ticket_first_token(ticket);
        brain_end(ticket, KVR_END_FINISHED, tokens, 0, 10);
        /* Computed: believed for as long as its events may take, but not for ever. */
        assert_int_equal(predicted(world, &chat), whole_hit(tokens));
        world->fleet.env.now_ns += BRAIN_S(60);
        assert_int_equal(predicted(world, &chat), 0);
        chat_end(&chat);
        world_free(world);
}

/* History fills in where the map knows nothing, as long as events do not speak against it. */
static void test_no_tokenizer(void **state)
{
        struct world *world = world_of_one();
        struct chat chat;
        uint32_t hit;

        (void)state;
        world->lag = 1000000;
        chat_begin(world, &chat, 1, 4000);
        say(world, &chat, &hit);
        free(chat.texts[--chat.count]);
        world->fleet.env.now_ns += BRAIN_S(60);
        uint32_t tokens = prompt_tokens(world, &chat);

        assert_true(predicted(world, &chat) >= whole_hit(tokens) - 16);
        assert_int_equal(world->asked, 1);
        /* It is asked once and not again while the answer is out. */
        say(world, &chat, &hit);
        assert_int_equal(world->asked, 1);
        free(chat.texts[--chat.count]);
        /* The answer comes; from now on the events decide. */
        world->lag = 0;
        world->requests = 2000000;
        questions_answer(world);
        while (world->engines[0]->used)
                toy_evict(world->engines[0]);
        world->fleet.env.now_ns += BRAIN_S(60);
        assert_int_equal(predicted(world, &chat), 0);
        struct kvr_prompt prompt;
        struct kvr_request request = request_of(world, &chat, &prompt);

        assert_false(kvr_tokens_wanted(world->fleet.router, &request));
        /* The template changed. */
        kvr_tokens_forget(world->fleet.router, brain_slice("m"));
        request = request_of(world, &chat, &prompt);
        assert_true(kvr_tokens_wanted(world->fleet.router, &request));
        assert_false(kvr_tokens_wanted(world->fleet.router, &request));
        struct kvr_outline *outline =
                kvr_outline_new(&prompt, request.model, (struct kvr_slice){0}, (struct kvr_slice){0});

        kvr_tokens_drop(world->fleet.router, outline);
        kvr_outline_free(outline);
        assert_true(kvr_tokens_wanted(world->fleet.router, &request));
        chat_end(&chat);
        world_free(world);
}

/* A chat goes on while the tokenizer is silent: history speaks for the new turn until events speak against it. */
static void test_history_behind_the_map(void **state)
{
        struct world *world = world_of_one();
        struct chat chat;
        uint32_t hit;

        (void)state;
        chat_said(world, &chat, 1, 4000);
        uint32_t first = prompt_tokens(world, &chat);

        world->lag = 1000000;
        say(world, &chat, &hit);
        chat_go_on(world, &chat);
        say(world, &chat, &hit);
        free(chat.texts[--chat.count]);
        world->fleet.env.now_ns += BRAIN_S(60);
        uint32_t tokens = prompt_tokens(world, &chat);

        assert_true(tokens > first + 100);
        assert_in_range(predicted(world, &chat), whole_hit(tokens) - 32, whole_hit(tokens));
        /* The last block of the part that is mapped goes: so has all behind it. */
        struct kvr_prompt prompt;

        (void)request_of(world, &chat, &prompt);
        toy_run(world->engines[0], &world->ids, tokens, "", "");
        assert_int_equal(kvr_events_removed(world->fleet.router, world->fleet.ids[0],
                                            world->engines[0]->hashes + first / 16 - 1, 1, KVR_TIER_GPU,
                                            NULL),
                         KVR_OK);
        assert_int_equal(predicted(world, &chat), (first / 16 - 1) * 16);
        chat_end(&chat);
        world_free(world);
}

/* What the engine says to be all gone is gone from history too; what we missed is not. */
static void test_history_cleared(void **state)
{
        struct world *world = world_of_one();
        struct chat chat;

        (void)state;
        world->lag = 1000000;
        chat_said(world, &chat, 1, 4000);
        assert_true(predicted(world, &chat) > 900);
        assert_int_equal(kvr_events_lost(world->fleet.router, world->fleet.ids[0], NULL), KVR_OK);
        assert_true(predicted(world, &chat) > 900);
        assert_int_equal(kvr_events_cleared(world->fleet.router, world->fleet.ids[0], NULL), KVR_OK);
        assert_int_equal(predicted(world, &chat), 0);
        chat_end(&chat);
        world_free(world);
}

/* ---- other prompts ---- */

static struct kvr_request parsed(struct world *world, enum kvr_api api, const char *body,
                                 struct kvr_prompt *ret)
{
        struct kvr_error err;

        if (kvr_prompt_parse(world->parser, api, brain_slice(body), NULL, ret, &err))
                fail_msg("%s", err.message);
        return (struct kvr_request){.prompt = ret, .model = ret->model};
}

static uint32_t match_of(struct world *world, const struct kvr_request *request)
{
        struct kvr_decision decision;
        size_t count;

        assert_int_equal(kvr_explain(world->fleet.router, request, &decision, NULL, 0, &count, NULL), KVR_OK);
        return decision.match_tokens;
}

/* Prompts of token ids need no map; adapters and salts keep them apart (field reports 15, 24). */
static void test_ids(void **state)
{
        struct world *world = world_of_one();
        struct kvr_prompt prompt;
        size_t len = (size_t)snprintf(world->body, TOY_BODY_MAX, "{\"model\":\"m\",\"prompt\":[");

        (void)state;
        world->ids.count = 0;
        for (uint32_t i = 0; i < 1000; i++) {
                toy_put(&world->ids, (uint32_t)brain_mix(i) % 100000);
                len += (size_t)snprintf(world->body + len, TOY_BODY_MAX - len, "%s%u", i ? "," : "",
                                        world->ids.ids[i]);
        }
        snprintf(world->body + len, TOY_BODY_MAX - len, "]}");
        assert_int_equal(toy_run(world->engines[0], &world->ids, 1000, "", ""), 0);
        struct kvr_request request = parsed(world, KVR_API_COMPLETIONS, world->body, &prompt);

        assert_int_equal(prompt.id_count, 1000);
        assert_memory_equal(prompt.ids, world->ids.ids, 1000 * sizeof(uint32_t));
        assert_int_equal(match_of(world, &request), 992);
        assert_false(kvr_tokens_wanted(world->fleet.router, &request));
        request.adapter = brain_slice("lora-a");
        assert_int_equal(match_of(world, &request), 0);
        /* A salt of the host's own. */
        struct kvr_prompt_options options = {.salt = brain_slice("tenant")};
        struct kvr_error err;

        assert_int_equal(kvr_prompt_parse(world->parser, KVR_API_COMPLETIONS, brain_slice(world->body),
                                          &options, &prompt, &err),
                         KVR_OK);
        request.adapter = (struct kvr_slice){0};
        assert_int_equal(match_of(world, &request), 0);
        assert_int_equal(toy_run(world->engines[0], &world->ids, 1000, "", "tenant"), 0);
        assert_int_equal(match_of(world, &request), 992);
        /* What keeps caches apart at SGLang and is not in its events. */
        (void)parsed(world, KVR_API_SGLANG, "{\"text\":\"x\",\"lora_path\":\"a\"}", &prompt);
        assert_true(prompt.mappable);
        assert_int_equal(prompt.adapter.len, 1);
        (void)parsed(world, KVR_API_SGLANG, "{\"text\":\"x\",\"extra_key\":\"k\"}", &prompt);
        assert_false(prompt.mappable);
        /* Legal forms that say nothing of tokens. */
        static const char *const odd[] = {
                "{\"prompt\":[[1,2,3],[4,5]]}",
                "{\"prompt\":[\"a\",\"b\"]}",
                "{\"prompt\":[]}",
                "{\"prompt\":null}",
                "{\"prompt\":\"x\"}",
                "{\"prompt\":[1]}",
        };

        for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
                request = parsed(world, KVR_API_COMPLETIONS, odd[i], &prompt);
                assert_int_equal(match_of(world, &request), 0);
        }
        world_free(world);
}

/* The text before a picture may match, the picture and what follows never by tokens (field report 17). */
static void test_images(void **state)
{
        struct world *world = world_of_one();
        struct chat chat;
        struct kvr_prompt prompt;
        char *text = text_of(1, 4000);

        (void)state;
        chat_said(world, &chat, 1, 4000);
        snprintf(
                world->body, TOY_BODY_MAX,
                "{\"model\":\"m\",\"cache_salt\":\"\",\"messages\":[{\"role\":\"system\",\"content\":\"%s\"},"
                "{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"p\"}}]}]}",
                text);
        free(text);
        struct kvr_request request = parsed(world, KVR_API_CHAT, world->body, &prompt);

        assert_false(prompt.mappable);
        assert_false(kvr_tokens_wanted(world->fleet.router, &request));
        struct kvr_outline *outline =
                kvr_outline_new(&prompt, request.model, (struct kvr_slice){0}, (struct kvr_slice){0});

        assert_int_equal(kvr_tokens_learn(world->fleet.router, outline, world->ids.ids, 100), KVR_E_ARGUMENT);
        kvr_outline_free(outline);
        uint32_t match = match_of(world, &request);

        assert_true(match >= 900 && match <= 1100);
        while (world->engines[0]->used)
                toy_evict(world->engines[0]);
        assert_int_equal(match_of(world, &request), 0);
        chat_end(&chat);
        world_free(world);
}

/* What has gone to the host's memory or to disk counts, for less. */
static void test_tiers(void **state)
{
        struct world *world = world_of_one();
        struct toy_engine *engine = world->engines[0];
        struct kvr_router *router = world->fleet.router;
        struct chat chat;

        (void)state;
        chat_said(world, &chat, 1, 4000);
        struct kvr_prompt prompt;

        (void)request_of(world, &chat, &prompt);
        uint32_t tokens = world->ids.count, blocks = tokens / 16, quarter = blocks / 4;

        /* The engine's own names of the blocks. */
        toy_run(engine, &world->ids, tokens, "", "");
        /* An offloading connector told of hashes without tokens: what it drops does not leave the GPU. */
        struct kvr_events_account account = {0};

        assert_int_equal(
                kvr_events_removed(router, engine->id, engine->hashes, blocks, KVR_TIER_CPU, &account),
                KVR_OK);
        assert_int_equal(account.unknown, blocks);
        assert_int_equal(predicted(world, &chat), whole_hit(tokens));
        struct kvr_blocks_stored stored = {
                .hashes = engine->hashes,
                .count = blocks,
                .tokens = world->ids.ids,
                .token_count = blocks * 16,
                .block_tokens = 16,
                .tier = KVR_TIER_CPU,
        };

        assert_int_equal(kvr_events_stored(router, engine->id, &stored, NULL), KVR_OK);
        stored.tier = KVR_TIER_DISK;
        assert_int_equal(kvr_events_stored(router, engine->id, &stored, NULL), KVR_OK);
        assert_int_equal(predicted(world, &chat), whole_hit(tokens));
        /* The last quarter leaves memory, the last half the GPU. */
        assert_int_equal(kvr_events_removed(router, engine->id, engine->hashes + 3 * quarter,
                                            blocks - 3 * quarter, KVR_TIER_CPU, NULL),
                         KVR_OK);
        assert_int_equal(kvr_events_removed(router, engine->id, engine->hashes + 2 * quarter,
                                            blocks - 2 * quarter, KVR_TIER_GPU, NULL),
                         KVR_OK);
        uint32_t slow = quarter * 16, disk = (blocks - 3 * quarter) * 16;
        uint32_t worth = predicted(world, &chat);

        assert_in_range(worth, whole_hit(tokens) - slow / 5 - disk / 2 - 16,
                        whole_hit(tokens) - slow / 5 - disk / 2 + 16);
        /* Nothing is below any more. */
        assert_int_equal(kvr_events_removed(router, engine->id, engine->hashes, blocks, KVR_TIER_CPU, NULL),
                         KVR_OK);
        assert_int_equal(kvr_events_removed(router, engine->id, engine->hashes, blocks, KVR_TIER_DISK, NULL),
                         KVR_OK);
        assert_int_equal(predicted(world, &chat), 2 * quarter * 16);
        /* "All cleared" means all tiers. */
        stored.tier = KVR_TIER_CPU;
        assert_int_equal(kvr_events_stored(router, engine->id, &stored, NULL), KVR_OK);
        assert_true(predicted(world, &chat) > 2 * quarter * 16);
        assert_int_equal(kvr_events_cleared(router, engine->id, NULL), KVR_OK);
        assert_int_equal(predicted(world, &chat), 0);
        assert_int_equal(info_of(world, 0).event_blocks, 0);
        chat_end(&chat);
        world_free(world);
}

/* Bounds of the interface. */
static void test_arguments(void **state)
{
        struct world *world = world_of_one();
        struct kvr_router *router = world->fleet.router;
        kvr_replica_id id = world->fleet.ids[0];
        uint64_t hash = 1;
        uint32_t token = 1;
        struct kvr_blocks_stored stored = {
                .hashes = &hash, .count = 1, .tokens = &token, .token_count = 1, .block_tokens = 1};

        (void)state;
        stored.token_count = 2;
        assert_int_equal(kvr_events_stored(router, id, &stored, NULL), KVR_E_ARGUMENT);
        stored = (struct kvr_blocks_stored){.count = 1, .block_tokens = 0};
        assert_int_equal(kvr_events_stored(router, id, &stored, NULL), KVR_E_ARGUMENT);
        stored = (struct kvr_blocks_stored){.count = KVR_EVENT_BLOCKS_MAX + 1, .block_tokens = 1};
        assert_int_equal(kvr_events_stored(router, id, &stored, NULL), KVR_E_LIMIT);
        stored = (struct kvr_blocks_stored){
                .count = 1, .token_count = 1, .block_tokens = 1, .tier = (enum kvr_tier)7};
        assert_int_equal(kvr_events_stored(router, id, &stored, NULL), KVR_E_ARGUMENT);
        assert_int_equal(kvr_events_removed(router, id, NULL, KVR_EVENT_BLOCKS_MAX + 1, KVR_TIER_GPU, NULL),
                         KVR_E_LIMIT);
        assert_int_equal(kvr_events_removed(router, id, &hash, 1, (enum kvr_tier)7, NULL), KVR_E_ARGUMENT);
        struct kvr_events_account account = {0};

        assert_int_equal(kvr_events_removed(router, id, &hash, 1, KVR_TIER_DISK, &account), KVR_OK);
        assert_int_equal(account.unknown, 1);
        stored = (struct kvr_blocks_stored){.hashes = &hash,
                                            .count = 1,
                                            .tokens = &token,
                                            .token_count = 1,
                                            .block_tokens = 1,
                                            .has_parent = true};
        assert_int_equal(kvr_events_stored(router, id, &stored, &account), KVR_OK);
        assert_int_equal(account.orphans, 1);
        assert_int_equal(kvr_events_trust(router, 12345, true), KVR_E_NOT_FOUND);
        kvr_events_stop(router, 12345);
        world_free(world);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_evicted),         cmocka_unit_test(test_cleared),
                cmocka_unit_test(test_trust),           cmocka_unit_test(test_young),
                cmocka_unit_test(test_no_tokenizer),    cmocka_unit_test(test_history_behind_the_map),
                cmocka_unit_test(test_history_cleared), cmocka_unit_test(test_ids),
                cmocka_unit_test(test_images),          cmocka_unit_test(test_tiers),
                cmocka_unit_test(test_arguments),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
