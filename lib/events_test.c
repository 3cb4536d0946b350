/* SPDX-License-Identifier: Apache-2.0 */
/* Predictions against what toy engines really find, over many requests; memory; threads. */
#include "kvroute/events.h"

#include <pthread.h>
#include <stdatomic.h>

#include "events_world_test.h"

/* ---- cases ---- */

/* Chats and evictions; the tokenizer answers with the request. */
static void test_chats(void **state)
{
        struct world *world = world_new(4, NULL, sixteen, 48000);

        (void)state;
        traffic(world, 1200, 60, 8, NULL);
        uint64_t evictions = 0;

        for (int i = 0; i < 4; i++)
                evictions += world->engines[i]->evictions;
        assert_true(evictions > 1000);
        assert_true(world->hits > world->requests / 2);
        assert_near_share(world, 0.99);
        world_free(world);
}

/* Four times as many chats as fit, and a tokenizer that answers after forty other requests. */
static void test_late_tokenizer(void **state)
{
        struct world *world = world_new(4, NULL, sixteen, 32000);

        (void)state;
        world->lag = 40;
        traffic(world, 1500, 150, 8, NULL);
        assert_near_share(world, 0.99);
        world_free(world);
}

static void dress_names(struct world *world, struct chat *chat)
{
        static const char *const salts[] = {"", "", "blue", "green"};

        chat->salt = salts[chance(world, 4)];
        if (chance(world, 3) == 0)
                chat->adapter = chat->model = chance(world, 2) ? "lora-a" : "lora-b";
}

/* Adapters and salts keep caches apart, on engines with blocks of two sizes. */
static void test_namespaces(void **state)
{
        static const uint32_t sizes[ENGINES_MAX] = {16, 32, 16, 64};
        struct world *world = world_new(4, NULL, sizes, 64000);

        (void)state;
        traffic(world, 1200, 60, 4, dress_names);
        assert_near_share(world, 0.99);
        world_free(world);
}

/* SGLang's default: every token is a block, and predictions are held to the token. */
static void test_pages_of_one(void **state)
{
        static const uint32_t sizes[ENGINES_MAX] = {1, 1, 1, 1};
        struct world *world = world_new(4, NULL, sizes, 48000);

        (void)state;
        traffic(world, 500, 30, 6, NULL);
        assert_near_share(world, 0.97);
        world_free(world);
}

/* ---- memory ---- */

static void test_small_memory(void **state)
{
        struct kvr_settings settings = {
                .index_memory_bytes = 1 << 20, .block_memory_bytes = 1 << 20, .token_map_bytes = 64 << 10};
        struct world *world = world_new(4, &settings, sixteen, 640000);
        struct kvr_events_info info;

        (void)state;
        traffic(world, 1800, 400, 8, NULL);
        kvr_router_events_info(world->fleet.router, &info);
        assert_true(info.bytes <= info.bytes_max);
        assert_true(info.map_bytes <= info.map_bytes_max);
        assert_int_equal(info.bytes_max, 1 << 20);
        assert_int_equal(info.map_bytes_max, 64 << 10);
        uint64_t refused = 0;

        for (int i = 0; i < 4; i++)
                refused += world->engines[i]->account.refused;
        assert_true(refused > 0);
        /* Too little, never too much: what is not known is not promised. */
        assert_true(world->predicted_tokens < world->hit_tokens + world->hit_tokens / 20);
        world_free(world);
        settings = (struct kvr_settings){.token_map_bytes = 1000};
        struct brain_env env = {0};
        struct kvr_env of_env = brain_env_of(&env);
        struct kvr_router *router;
        struct kvr_error err;

        assert_int_equal(kvr_router_new(&settings, &of_env, &router, &err), KVR_E_ARGUMENT);
        assert_string_equal(err.field, "token_map_bytes");
        settings = (struct kvr_settings){.block_memory_bytes = 1000};
        assert_int_equal(kvr_router_new(&settings, &of_env, &router, &err), KVR_E_ARGUMENT);
        assert_string_equal(err.field, "block_memory_bytes");
}

/* ---- threads ---- */

#define STRESS_CHATS    6
#define STRESS_ROUNDS   400
#define STRESS_DECIDERS 2

struct stress {
        struct world *world;
        struct chat chats[STRESS_CHATS];
        struct toy_ids *ids[STRESS_CHATS];
        _Atomic bool stop;
        _Atomic uint64_t decided, overcounted;
};

/* Decides, learns tokens when they are wanted, settles. */
static void *stress_decide(void *ctx)
{
        struct stress *stress = ctx;
        struct kvr_router *router = stress->world->fleet.router;
        struct kvr_parser *parser = kvr_parser_new();
        char *body = malloc(TOY_BODY_MAX);

        brain_must(parser && body);
        for (uint64_t i = 0; !atomic_load(&stress->stop); i++) {
                struct toy_message messages[2 * TURNS_MAX + 2];
                struct chat *chat = &stress->chats[i % STRESS_CHATS];
                uint32_t count = messages_of(chat, messages), tokens = stress->ids[i % STRESS_CHATS]->count;
                struct kvr_prompt prompt;
                struct kvr_ticket *ticket;
                struct kvr_decision decision;

                brain_must(kvr_prompt_parse(parser, KVR_API_CHAT,
                                            toy_body(body, messages, count, chat->model, chat->salt), NULL,
                                            &prompt, NULL) == KVR_OK);
                struct kvr_request request = {.prompt = &prompt, .model = brain_slice(chat->model)};

                brain_must(kvr_decide(router, &request, &decision, &ticket, NULL) == KVR_OK);
                if (decision.match_tokens >= decision.prompt_tokens)
                        atomic_fetch_add(&stress->overcounted, 1);
                if (kvr_tokens_wanted(router, &request)) {
                        struct kvr_outline *outline = kvr_outline_new(
                                &prompt, request.model, (struct kvr_slice){0}, brain_slice(chat->salt));

                        brain_must(outline &&
                                   kvr_tokens_learn(router, outline, stress->ids[i % STRESS_CHATS]->ids,
                                                    tokens) == KVR_OK);
                        kvr_outline_free(outline);
                }
                if (i % 3)
                        kvr_ticket_first_token(ticket);
                brain_end(ticket, i % 5 ? KVR_END_FINISHED : KVR_END_FAILED, tokens, decision.match_tokens,
                          5);
                if (i % 50 == 0)
                        kvr_tokens_forget(router, request.model);
                atomic_fetch_add(&stress->decided, 1);
        }
        kvr_parser_free(parser);
        free(body);
        return NULL;
}

/* Runs prompts on the engines: stores and removals; now and then everything goes. */
static void *stress_engines(void *ctx)
{
        struct stress *stress = ctx;
        struct world *world = stress->world;

        for (uint64_t i = 0; i < STRESS_ROUNDS || atomic_load(&stress->decided) < STRESS_ROUNDS; i++) {
                struct toy_engine *engine = world->engines[i % 2];
                const struct toy_ids *ids = stress->ids[brain_mix(i) % STRESS_CHATS];

                toy_run(engine, ids, ids->count, "", stress->chats[brain_mix(i) % STRESS_CHATS].salt);
                if (i % 67 == 0) {
                        toy_clear(engine, i);
                        brain_must(kvr_events_cleared(engine->router, engine->id, NULL) == KVR_OK);
                }
                __atomic_add_fetch(&world->fleet.env.now_ns, BRAIN_MS(100), __ATOMIC_RELAXED);
        }
        atomic_store(&stress->stop, true);
        return NULL;
}

/* Replicas that come, tell a little, and go; trust that is lost and comes back. */
static void *stress_fleet(void *ctx)
{
        struct stress *stress = ctx;
        struct world *world = stress->world;
        struct kvr_router *router = world->fleet.router;

        for (uint64_t i = 0; !atomic_load(&stress->stop); i++) {
                struct kvr_replica_spec spec = {.name = "guest", .block_tokens = 32};
                struct kvr_replica_info infos[8];
                struct kvr_events_info info;
                kvr_replica_id id;
                uint64_t hashes[2] = {i, i + 1};
                uint32_t tokens[64] = {(uint32_t)i};
                struct kvr_blocks_stored stored = {.hashes = hashes,
                                                   .count = 2,
                                                   .tokens = tokens,
                                                   .token_count = 64,
                                                   .block_tokens = 32,
                                                   .tier = (enum kvr_tier)(i % KVR_TIERS)};

                brain_must(kvr_replica_add(router, &spec, &id, NULL) == KVR_OK);
                brain_must(kvr_events_trust(router, id, true) == KVR_OK);
                brain_must(kvr_events_stored(router, id, &stored, NULL) == KVR_OK);
                brain_must(kvr_replica_set_state(router, id, KVR_READY) == KVR_OK);
                brain_must(kvr_router_replicas(router, infos, 8) == 3);
                kvr_router_events_info(router, &info);
                brain_must(kvr_events_trust(router, world->fleet.ids[1], i % 2) == KVR_OK);
                brain_must(kvr_replica_set_state(router, id, KVR_DRAINING) == KVR_OK);
                if (i % 2)
                        kvr_events_stop(router, id);
                brain_must(kvr_replica_remove(router, id) == KVR_OK);
                brain_must(kvr_events_stored(router, id, &stored, NULL) == KVR_E_NOT_FOUND);
        }
        return NULL;
}

static void test_threads(void **state)
{
        struct world *world = world_new(2, NULL, sixteen, 9600);
        struct stress *stress = calloc(1, sizeof(*stress));
        pthread_t threads[STRESS_DECIDERS + 2];

        (void)state;
        brain_must(stress != NULL);
        stress->world = world;
        for (uint64_t i = 0; i < STRESS_CHATS; i++) {
                struct kvr_prompt prompt;

                chat_begin(world, &stress->chats[i], i % 2, 3000 + i * 1000);
                stress->chats[i].salt = i == 5 ? "salt" : "";
                (void)request_of(world, &stress->chats[i], &prompt);
                stress->ids[i] = malloc(sizeof(struct toy_ids));
                brain_must(stress->ids[i] != NULL);
                *stress->ids[i] = world->ids;
        }
        for (int i = 0; i < STRESS_DECIDERS; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, stress_decide, stress), 0);
        assert_int_equal(pthread_create(&threads[STRESS_DECIDERS], NULL, stress_engines, stress), 0);
        assert_int_equal(pthread_create(&threads[STRESS_DECIDERS + 1], NULL, stress_fleet, stress), 0);
        for (int i = 0; i < STRESS_DECIDERS + 2; i++)
                pthread_join(threads[i], NULL);
        assert_int_equal(atomic_load(&stress->overcounted), 0);
        /* At rest the index says what the engines hold. */
        assert_int_equal(kvr_events_trust(world->fleet.router, world->fleet.ids[1], true), KVR_OK);
        for (int i = 0; i < 2; i++)
                assert_int_equal(info_of(world, (uint32_t)i).event_blocks, world->engines[i]->used);
        for (int i = 0; i < STRESS_CHATS; i++) {
                free(stress->ids[i]);
                chat_end(&stress->chats[i]);
        }
        free(stress);
        world_free(world);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_chats),        cmocka_unit_test(test_late_tokenizer),
                cmocka_unit_test(test_namespaces),   cmocka_unit_test(test_pages_of_one),
                cmocka_unit_test(test_small_memory), cmocka_unit_test(test_threads),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
