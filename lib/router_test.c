/* SPDX-License-Identifier: Apache-2.0 */
/* The router's interface: fleet, states, refusals, reasons, threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#include <pthread.h>

#include "brain_test.h"

/* Fifty times slower under the thread sanitizer, and nothing in it is about threads. */
#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

static struct brain_fleet fleet;
static struct brain_prompt p;

static int down(void **state)
{
        (void)state;
        kvr_router_free(fleet.router);
        fleet.router = NULL;
        return 0;
}

static void up(uint32_t count, struct kvr_replica_spec spec)
{
        brain_fleet_up(&fleet, NULL, count, spec);
}

static struct kvr_request text(uint64_t number, uint64_t bytes)
{
        return (struct kvr_request){.prompt = brain_prompt_of(&p, number, bytes)};
}

static enum kvr_status decide(const struct kvr_request *request, struct kvr_decision *decision)
{
        struct kvr_ticket *ticket;
        enum kvr_status status = kvr_decide(fleet.router, request, decision, &ticket, NULL);

        if (status == KVR_OK)
                brain_end(ticket, KVR_END_CLIENT, -1, -1, -1);
        return status;
}

static void state_set(uint32_t number, enum kvr_state state)
{
        assert_int_equal(kvr_replica_set_state(fleet.router, fleet.ids[number], state), KVR_OK);
}

/* ---- making ---- */

static void settings_are_checked(void **state)
{
        struct brain_env env = {.now_ns = 1};
        struct kvr_env e = brain_env_of(&env);
        struct kvr_router *router = NULL;
        struct kvr_error err = {0};
        struct kvr_settings settings = {.index_memory_bytes = 1000};

        (void)state;
        assert_int_equal(kvr_router_new(&settings, &e, &router, &err), KVR_E_ARGUMENT);
        assert_int_equal(err.status, KVR_E_ARGUMENT);
        assert_string_equal(err.field, "index_memory_bytes");
        settings = (struct kvr_settings){.default_tokens_per_byte = NAN};
        assert_int_equal(kvr_router_new(&settings, &e, &router, &err), KVR_E_ARGUMENT);
        settings = (struct kvr_settings){.default_prefill_tokens_per_second = -1};
        assert_int_equal(kvr_router_new(&settings, &e, &router, &err), KVR_E_ARGUMENT);
        settings = (struct kvr_settings){.policy = "luck"};
        assert_int_equal(kvr_router_new(&settings, &e, &router, &err), KVR_E_NOT_FOUND);
        assert_non_null(strstr(err.message, "luck"));
        assert_null(router);
        settings = (struct kvr_settings){.policy = "random", .index_memory_bytes = 1 << 20};
        assert_int_equal(kvr_router_new(&settings, &e, &router, NULL), KVR_OK);
        kvr_router_free(router);
        kvr_router_free(NULL);
}

static void specs_are_checked(void **state)
{
        char name[KVR_NAME_MAX + 1];
        kvr_replica_id id = 77;
        struct kvr_error err = {0};

        (void)state;
        up(1, (struct kvr_replica_spec){0});
        struct kvr_replica_spec spec = {.name = "r00"};

        assert_int_equal(kvr_replica_add(fleet.router, &spec, &id, &err), KVR_E_EXISTS);
        assert_non_null(strstr(err.message, "r00"));
        spec = (struct kvr_replica_spec){.name = ""};
        assert_int_equal(kvr_replica_add(fleet.router, &spec, &id, NULL), KVR_E_ARGUMENT);
        memset(name, 'x', sizeof(name));
        name[KVR_NAME_MAX] = 0;
        spec.name = name;
        assert_int_equal(kvr_replica_add(fleet.router, &spec, &id, NULL), KVR_E_LIMIT);
        name[KVR_NAME_MAX - 1] = 0;
        spec.slots = 100000;
        assert_int_equal(kvr_replica_add(fleet.router, &spec, &id, NULL), KVR_E_LIMIT);
        spec = (struct kvr_replica_spec){.name = "z", .cache = (enum kvr_cache_kind)9};
        assert_int_equal(kvr_replica_add(fleet.router, &spec, &id, NULL), KVR_E_ARGUMENT);
        assert_int_equal(id, 77);
        spec = (struct kvr_replica_spec){.name = name};
        assert_int_equal(kvr_replica_add(fleet.router, &spec, &id, NULL), KVR_OK);
        fleet.ids[fleet.count++] = id;
        assert_string_equal(brain_info(&fleet, 1).name, name);
        assert_int_equal(brain_info(&fleet, 1).state, KVR_STARTING);
}

static void unknown_ids_are_refused_everywhere(void **state)
{
        struct kvr_load_report report = {0};
        struct kvr_replica_spec spec = {0};
        struct kvr_replica_info info;

        (void)state;
        up(2, (struct kvr_replica_spec){0});
        kvr_replica_id gone = fleet.ids[0], ids[] = {gone, 0, 12345678, UINT64_MAX, gone + (1 << 20)};

        kvr_replica_remove(fleet.router, gone);
        for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
                assert_int_equal(kvr_replica_remove(fleet.router, ids[i]), KVR_E_NOT_FOUND);
                assert_int_equal(kvr_replica_forget(fleet.router, ids[i]), KVR_E_NOT_FOUND);
                assert_int_equal(kvr_replica_set_state(fleet.router, ids[i], KVR_READY), KVR_E_NOT_FOUND);
                assert_int_equal(kvr_replica_pause(fleet.router, ids[i], 1), KVR_E_NOT_FOUND);
                assert_int_equal(kvr_replica_report(fleet.router, ids[i], &report), KVR_E_NOT_FOUND);
                assert_int_equal(kvr_replica_configure(fleet.router, ids[i], &spec), KVR_E_NOT_FOUND);
                assert_int_equal(kvr_replica_set_models(fleet.router, ids[i], NULL, 0), KVR_E_NOT_FOUND);
                assert_int_equal(kvr_replica_info(fleet.router, ids[i], &info), KVR_E_NOT_FOUND);
        }
        assert_int_equal(kvr_router_replicas(fleet.router, &info, 1), 1);
        assert_int_equal(info.id, fleet.ids[1]);
}

static void as_many_replicas_as_promised(void **state)
{
        enum { ROUNDS = 3 };
        kvr_replica_id *ids = calloc(KVR_REPLICAS_MAX, sizeof(*ids));
        char name[16];

        (void)state;
        brain_fleet_up(&fleet, NULL, 0, (struct kvr_replica_spec){0});
        for (int round = 0; round < ROUNDS; round++) {
                struct kvr_replica_spec spec = {.name = name};
                kvr_replica_id id;

                for (uint32_t i = 0; i < KVR_REPLICAS_MAX; i++) {
                        snprintf(name, sizeof(name), "n%u", i);
                        assert_int_equal(kvr_replica_add(fleet.router, &spec, &ids[i], NULL), KVR_OK);
                        kvr_replica_set_state(fleet.router, ids[i], KVR_READY);
                }
                snprintf(name, sizeof(name), "more");
                assert_int_equal(kvr_replica_add(fleet.router, &spec, &id, NULL), KVR_E_LIMIT);
                struct kvr_request request = text(1, 4000);
                struct kvr_decision decision;

                assert_int_equal(decide(&request, &decision), KVR_OK);
                assert_int_equal(decision.candidate_count, KVR_REPLICAS_MAX);
                for (uint32_t i = 0; i < KVR_REPLICAS_MAX; i++)
                        assert_int_equal(kvr_replica_remove(fleet.router, ids[i]), KVR_OK);
        }
        free(ids);
}

/* Forgetting again and again, with something to forget each time and no decision to reclaim it in between. */
static void forgetting_is_cheap_and_never_runs_out(void **state)
{
        struct kvr_settings settings = {.index_memory_bytes = 16 << 20};
        struct kvr_index_info info, early;

        (void)state;
        brain_fleet_up(&fleet, &settings, 2, (struct kvr_replica_spec){0});
        for (uint64_t i = 0; i < 20000; i++) {
                struct kvr_request request = text(i % 7, 4000);

                request.pinned = fleet.ids[i & 1];
                brain_serve(&fleet, &request, NULL);
                assert_int_not_equal(brain_info(&fleet, i & 1).cached_tokens, 0);
                assert_int_equal(kvr_replica_forget(fleet.router, fleet.ids[i & 1]), KVR_OK);
                assert_int_equal(brain_info(&fleet, i & 1).cached_tokens, 0);
                if (i == 1000)
                        kvr_router_index_info(fleet.router, &early);
        }
        kvr_router_index_info(fleet.router, &info);
        assert_int_equal(info.entries, 0);
        /* What was forgotten is used again. */
        assert_int_equal(info.bytes, early.bytes);
}

/* ---- who may be tried ---- */

static void nobody_and_no_model(void **state)
{
        struct kvr_decision decision;

        (void)state;
        brain_fleet_up(&fleet, NULL, 0, (struct kvr_replica_spec){0});
        struct kvr_request request = text(1, 1000);
        struct kvr_error err = {0};
        struct kvr_ticket *ticket = NULL;

        request.model = brain_slice("a");
        assert_int_equal(kvr_decide(fleet.router, &request, &decision, &ticket, &err), KVR_E_NO_REPLICA);
        assert_null(ticket);
        assert_int_equal(err.status, KVR_E_NO_REPLICA);
        brain_add(&fleet, (struct kvr_replica_spec){0});
        brain_add(&fleet, (struct kvr_replica_spec){0});
        struct kvr_slice models[] = {brain_slice("b"), brain_slice("c")};

        /* Not known yet: any. */
        assert_int_equal(decide(&request, &decision), KVR_OK);
        assert_int_equal(kvr_replica_set_models(fleet.router, fleet.ids[0], models, 2), KVR_OK);
        assert_int_equal(kvr_replica_set_models(fleet.router, fleet.ids[1], models, 1), KVR_OK);
        assert_int_equal(decide(&request, &decision), KVR_E_NO_MODEL);
        request.model = brain_slice("c");
        assert_int_equal(decide(&request, &decision), KVR_OK);
        assert_int_equal(decision.replica, fleet.ids[0]);
        assert_int_equal(decision.reason, KVR_REASON_ONLY);
        request.model = brain_slice("b");
        assert_int_equal(decide(&request, &decision), KVR_OK);
        assert_int_equal(decision.candidate_count, 2);
        request.model = (struct kvr_slice){0};
        assert_int_equal(decide(&request, &decision), KVR_OK);
        /* It serves the model, but may not be used: that is another answer. */
        state_set(0, KVR_DRAINING);
        request.model = brain_slice("c");
        assert_int_equal(decide(&request, &decision), KVR_E_NO_REPLICA);
        struct kvr_slice many[KVR_MODELS_PER_REPLICA_MAX + 1] = {{0}};

        assert_int_equal(
                kvr_replica_set_models(fleet.router, fleet.ids[0], many, KVR_MODELS_PER_REPLICA_MAX + 1),
                KVR_E_LIMIT);
}

static void tried_ones_are_never_chosen_again(void **state)
{
        struct kvr_decision decision;

        (void)state;
        up(3, (struct kvr_replica_spec){0});
        struct kvr_request request = text(1, 8000);
        uint32_t holder = brain_serve(&fleet, &request, NULL);

        request.tried[0] = fleet.ids[holder];
        request.tried_count = 1;
        assert_int_equal(decide(&request, &decision), KVR_OK);
        assert_int_not_equal(decision.replica, fleet.ids[holder]);
        assert_int_equal(decision.reason, KVR_REASON_RETRY);
        request.tried[1] = decision.replica;
        request.tried_count = 2;
        assert_int_equal(decide(&request, &decision), KVR_OK);
        request.tried[2] = decision.replica;
        request.tried_count = 3;
        request.last_resort = true;
        assert_int_equal(decide(&request, &decision), KVR_E_NO_REPLICA);
        /* Pinned does not beat that. */
        request.tried_count = 1;
        request.pinned = fleet.ids[holder];
        assert_int_equal(decide(&request, &decision), KVR_OK);
        assert_int_not_equal(decision.replica, fleet.ids[holder]);
}

static void draining_gets_nothing_ever(void **state)
{
        struct kvr_decision decision;

        (void)state;
        up(1, (struct kvr_replica_spec){0});
        state_set(0, KVR_DRAINING);
        struct kvr_request request = text(1, 1000);

        request.last_resort = true;
        request.pinned = fleet.ids[0];
        assert_int_equal(decide(&request, &decision), KVR_E_NO_REPLICA);
}

static void what_is_down_is_the_last_resort(void **state)
{
        struct kvr_decision decision;

        (void)state;
        up(3, (struct kvr_replica_spec){0});
        struct kvr_request request = text(1, 8000);
        uint32_t holder = brain_serve(&fleet, &request, NULL);

        state_set(holder, KVR_DOWN);
        request.last_resort = true;
        assert_int_equal(decide(&request, &decision), KVR_OK);
        assert_int_not_equal(decision.replica, fleet.ids[holder]);
        for (uint32_t i = 0; i < 3; i++)
                state_set(i, i == 1 ? KVR_STARTING : KVR_DOWN);
        request.last_resort = false;
        assert_int_equal(decide(&request, &decision), KVR_E_NO_REPLICA);
        request.last_resort = true;
        /* In turn, whatever the cache says. */
        uint32_t counts[3] = {0};

        for (int i = 0; i < 30; i++) {
                fleet.env.now_ns += BRAIN_MS(10);
                assert_int_equal(decide(&request, &decision), KVR_OK);
                counts[brain_number(&fleet, decision.replica)]++;
        }
        for (int i = 0; i < 3; i++)
                assert_int_equal(counts[i], 10);
        /* A single one that is up comes first. */
        state_set(1, KVR_READY);
        assert_int_equal(decide(&request, &decision), KVR_OK);
        assert_int_equal(decision.replica, fleet.ids[1]);
        request.tried[0] = fleet.ids[1];
        request.tried_count = 1;
        assert_int_equal(decide(&request, &decision), KVR_OK);
        assert_int_not_equal(decision.replica, fleet.ids[1]);
}

static void a_trial_is_one_request(void **state)
{
        struct kvr_decision decision;

        (void)state;
        up(1, (struct kvr_replica_spec){0});
        struct kvr_request request = text(1, 1000);
        /* One from before does not count. */
        struct kvr_ticket *before = brain_send(&fleet, &request, NULL);

        state_set(0, KVR_TRIAL);
        struct kvr_ticket *trial = brain_send(&fleet, &request, NULL);

        assert_int_equal(decide(&request, &decision), KVR_E_BUSY);
        assert_int_equal(decision.retry_after_ns, BRAIN_S(1));
        /* Rather a second one than a refusal, if the host wants it so. */
        request.last_resort = true;
        assert_int_equal(decide(&request, &decision), KVR_OK);
        request.last_resort = false;
        brain_end(trial, KVR_END_FINISHED, -1, -1, -1);
        assert_int_equal(decide(&request, &decision), KVR_OK);
        brain_end(before, KVR_END_FINISHED, -1, -1, -1);
}

static void full_and_paused_ones_are_busy(void **state)
{
        struct kvr_decision decision;
        struct kvr_ticket *tickets[2];

        (void)state;
        up(2, (struct kvr_replica_spec){.max_running = 1});
        struct kvr_request request = text(1, 1000);

        tickets[0] = brain_send(&fleet, &request, NULL);
        tickets[1] = brain_send(&fleet, &request, &decision);
        assert_int_equal(decision.reason, KVR_REASON_ONLY);
        assert_int_equal(decide(&request, &decision), KVR_E_BUSY);
        assert_int_equal(decision.retry_after_ns, BRAIN_S(1));
        /* The shortest wait anybody asked for. */
        kvr_replica_pause(fleet.router, fleet.ids[0], fleet.env.now_ns + BRAIN_MS(300));
        kvr_replica_pause(fleet.router, fleet.ids[1], fleet.env.now_ns + BRAIN_MS(200));
        assert_int_equal(decide(&request, &decision), KVR_E_BUSY);
        assert_int_equal(decision.retry_after_ns, BRAIN_MS(200));
        brain_end(tickets[0], KVR_END_FINISHED, -1, -1, -1);
        brain_end(tickets[1], KVR_END_FINISHED, -1, -1, -1);
        assert_int_equal(decide(&request, &decision), KVR_E_BUSY);
        fleet.env.now_ns += BRAIN_MS(200);
        assert_int_equal(decide(&request, &decision), KVR_OK);
        assert_int_equal(decision.replica, fleet.ids[1]);
        kvr_replica_pause(fleet.router, fleet.ids[0], 0);
        assert_int_equal(decide(&request, &decision), KVR_OK);
        assert_int_equal(decision.candidate_count, 2);
        /* Being asked to wait is not being down: what is down stays alone. */
        state_set(1, KVR_DOWN);
        kvr_replica_pause(fleet.router, fleet.ids[0], fleet.env.now_ns + BRAIN_MS(300));
        request.last_resort = true;
        assert_int_equal(decide(&request, &decision), KVR_E_BUSY);
}

static void pinned_beats_everything(void **state)
{
        struct kvr_decision decision;

        (void)state;
        up(3, (struct kvr_replica_spec){.max_running = 40});
        struct kvr_request request = text(1, 80000);
        uint32_t holder = brain_serve(&fleet, &request, NULL), other = (holder + 1) % 3;
        struct kvr_ticket *tickets[40];

        for (uint64_t i = 0; i < 39; i++) {
                struct kvr_request load = text(100 + i, 8000);

                load.pinned = fleet.ids[other];
                tickets[i] = brain_send(&fleet, &load, &decision);
                assert_int_equal(decision.reason, KVR_REASON_AFFINITY);
        }
        request = text(1, 80000);
        request.pinned = fleet.ids[other];
        tickets[39] = brain_send(&fleet, &request, &decision);
        assert_int_equal(decision.replica, fleet.ids[other]);
        assert_int_equal(decision.reason, KVR_REASON_AFFINITY);
        assert_int_equal(decision.match_tokens, 0);
        assert_int_equal(decision.best_match_tokens, decision.prompt_tokens - 1);
        /* Unless it cannot be tried: full now. */
        assert_int_equal(decide(&request, &decision), KVR_OK);
        assert_int_not_equal(decision.replica, fleet.ids[other]);
        for (int i = 0; i < 40; i++)
                brain_end(tickets[i], KVR_END_CLIENT, -1, -1, -1);
}

static void explaining_changes_nothing(void **state)
{
        struct kvr_candidate candidates[4];
        struct kvr_decision a, b;
        size_t count;

        (void)state;
        for (size_t policy = 0; policy < kvr_policy_count(); policy++) {
                up(4, (struct kvr_replica_spec){0});
                assert_int_equal(kvr_router_set_policy(fleet.router, kvr_policy_name(policy), NULL), KVR_OK);
                struct kvr_request request = text(1, 8000);
                struct kvr_index_info before, after;

                request.affinity = brain_slice("s");
                kvr_router_index_info(fleet.router, &before);
                for (int i = 0; i < 3; i++)
                        assert_int_equal(kvr_explain(fleet.router, &request, &a, candidates, 2, &count, NULL),
                                         KVR_OK);
                assert_int_equal(count, 4);
                kvr_router_index_info(fleet.router, &after);
                assert_int_equal(after.entries, before.entries);
                assert_int_equal(after.lookups, before.lookups);
                for (uint32_t i = 0; i < 4; i++) {
                        assert_int_equal(brain_info(&fleet, i).in_flight, 0);
                        assert_int_equal(brain_info(&fleet, i).decisions, 0);
                }
                assert_int_equal(decide(&request, &b), KVR_OK);
                if (strcmp(kvr_policy_name(policy), "random") != 0 &&
                    strcmp(kvr_policy_name(policy), "power_of_two") != 0)
                        assert_int_equal(a.replica, b.replica);
                kvr_router_free(fleet.router);
        }
        fleet.router = NULL;
}

/* Equal calls with an equal environment give equal answers. */
static uint64_t story_hash(void)
{
        struct kvr_ticket *tickets[32] = {0};
        uint64_t random = 5, hash = 0;

        up(5, (struct kvr_replica_spec){.block_tokens = 16, .capacity_tokens = 50000});
        for (int step = 0; step < 4000; step++) {
                uint64_t chance = brain_mix(random++);
                struct kvr_ticket **ticket = &tickets[chance % 32];

                fleet.env.now_ns += chance % BRAIN_MS(20);
                if (!*ticket) {
                        struct kvr_request request = text((chance >> 8) % 60, 500 + (chance >> 20) % 4000);
                        struct kvr_decision decision;

                        *ticket = brain_send(&fleet, &request, &decision);
                        hash = brain_mix(hash ^ decision.replica ^ (uint64_t)decision.match_tokens << 32 ^
                                         (uint64_t)decision.reason << 60);
                } else if (chance >> 40 & 1) {
                        kvr_ticket_first_token(*ticket);
                } else {
                        brain_end(*ticket, (chance >> 41 & 7) ? KVR_END_FINISHED : KVR_END_FAILED,
                                  (int64_t)(chance >> 44) % 2000, (int64_t)(chance >> 20) % 300, 10);
                        *ticket = NULL;
                }
        }
        for (int i = 0; i < 32; i++)
                if (tickets[i])
                        brain_end(tickets[i], KVR_END_CLIENT, -1, -1, -1);
        kvr_router_free(fleet.router);
        fleet.router = NULL;
        return hash;
}

static void the_same_story_ends_the_same(void **state)
{
        (void)state;
        assert_true(story_hash() == story_hash());
}

/* ---- with the real parser ---- */

static struct kvr_decision serve_body(struct kvr_parser *parser, const char *body, int64_t prompt_tokens,
                                      int64_t answer)
{
        struct kvr_prompt_options options = {.seed = 1};
        struct kvr_prompt prompt;
        struct kvr_decision decision;

        assert_int_equal(kvr_prompt_parse(parser, KVR_API_CHAT, brain_slice(body), &options, &prompt, NULL),
                         KVR_OK);
        struct kvr_request request = {.prompt = &prompt, .model = prompt.model};
        struct kvr_ticket *ticket = brain_send(&fleet, &request, &decision);

        kvr_ticket_first_token(ticket);
        brain_end(ticket, KVR_END_FINISHED, prompt_tokens, -1, answer);
        return decision;
}

/*
 * The points of a first turn, its end included, are points of the second, and the answer comes back with it.
 */
static void turns_of_a_conversation_meet(void **state)
{
        struct kvr_parser *parser = kvr_parser_new();
        char question[2000], answer[1201], body[6000];

        (void)state;
        up(3, (struct kvr_replica_spec){0});
        memset(question, 'q', sizeof(question) - 1);
        question[sizeof(question) - 1] = 0;
        memset(answer, 'a', sizeof(answer) - 1);
        answer[sizeof(answer) - 1] = 0;
        snprintf(body, sizeof(body),
                 "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                 "{\"role\":\"user\",\"content\":\"%s\"}]}",
                 question);
        struct kvr_decision first = serve_body(parser, body, 520, 300);

        assert_int_equal(first.match_tokens, 0);
        snprintf(body, sizeof(body),
                 "{ \"messages\": [{\"content\":\"Be brief.\",\"role\":\"system\"},"
                 "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"%s\"}]},"
                 "{\"role\":\"assistant\",\"content\":\"%s\"},"
                 "{\"role\":\"user\",\"content\":\"And %s\"}], \"model\": \"m\"}",
                 question, answer, question);
        struct kvr_decision second = serve_body(parser, body, 1350, 10);

        assert_int_equal(second.replica, first.replica);
        assert_int_equal(second.reason, KVR_REASON_HIT);
        assert_in_range(second.match_tokens, 820, 840);
        kvr_parser_free(parser);
}

/* ---- memory ---- */

static void a_million_distinct_prompts_stay_below_the_cap(void **state)
{
        enum { PROMPTS = UNDER_TSAN ? 100000 : 1000000, LAST = 100 };
        struct kvr_settings settings = {.index_memory_bytes = 4 << 20};
        struct kvr_index_info info;
        uint64_t settled = 0;

        (void)state;
        brain_fleet_up(&fleet, &settings, 4, (struct kvr_replica_spec){0});
        for (uint64_t i = 0; i < PROMPTS; i++) {
                struct kvr_request request = text(i, 256 * (1 + i % 4));

                brain_serve(&fleet, &request, NULL);
                if (i % 1000 == 0) {
                        kvr_router_index_info(fleet.router, &info);
                        assert_int_equal(info.bytes_max, 4 << 20);
                        assert_true(info.bytes <= info.bytes_max);
                        if (i > PROMPTS / 2)
                                assert_int_equal(info.bytes, settled);
                        settled = info.bytes;
                }
        }
        kvr_router_index_info(fleet.router, &info);
        assert_true(info.entries > 50000);
        assert_true(info.evictions > PROMPTS * 3 / 2);
        /* The last ones are still known. */
        for (uint64_t i = PROMPTS - LAST; i < PROMPTS; i++) {
                struct kvr_request request = text(i, 256 * (1 + i % 4));
                struct kvr_decision decision;

                brain_serve(&fleet, &request, &decision);
                assert_int_equal(decision.match_tokens, decision.prompt_tokens - 1);
        }
}

/* ---- threads ---- */

#define THREADS 4

struct worker {
        pthread_t thread;
        struct kvr_router *router;
        const kvr_replica_id *ids;
        struct brain_env *env;
        uint64_t seed;
        uint64_t decided;
};

static void *worker_run(void *arg)
{
        struct worker *worker = arg;
        struct brain_prompt *prompt = calloc(1, sizeof(*prompt));
        struct kvr_ticket *tickets[16] = {0};

        for (int step = 0; step < 4000; step++) {
                uint64_t chance = brain_mix(worker->seed++);
                struct kvr_ticket **ticket = &tickets[chance % 16];

                __atomic_add_fetch(&worker->env->now_ns, 100000, __ATOMIC_RELAXED);
                if (!*ticket) {
                        struct kvr_request request = {.prompt = brain_prompt_of(prompt, (chance >> 8) % 100,
                                                                                500 + (chance >> 20) % 9000)};
                        struct kvr_decision decision;

                        if (kvr_decide(worker->router, &request, &decision, ticket, NULL) != KVR_OK)
                                *ticket = NULL;
                        else
                                worker->decided++;
                } else if (chance >> 40 & 1) {
                        kvr_ticket_first_token(*ticket);
                } else {
                        brain_end(*ticket, KVR_END_FINISHED, (int64_t)(chance >> 44) % 2000,
                                  (int64_t)(chance >> 20) % 300, 10);
                        *ticket = NULL;
                }
                if (chance % 64 == 0)
                        kvr_replica_forget(worker->router, worker->ids[(chance >> 8) % 4]);
                if (chance % 64 == 1) {
                        struct kvr_load_report report = {brain_now(worker->env), 3, 1, 0.5, NAN};

                        kvr_replica_report(worker->router, worker->ids[(chance >> 8) % 4], &report);
                }
                if (chance % 64 == 2) {
                        struct kvr_replica_info info[4];

                        kvr_router_replicas(worker->router, info, 4);
                }
        }
        for (int i = 0; i < 16; i++)
                if (tickets[i])
                        brain_end(tickets[i], KVR_END_CLIENT, -1, -1, -1);
        free(prompt);
        return NULL;
}

static void threads_share_a_router(void **state)
{
        struct worker workers[THREADS];
        uint64_t decided = 0, booked = 0;

        (void)state;
        up(4, (struct kvr_replica_spec){.capacity_tokens = 50000});
        for (uint64_t i = 0; i < THREADS; i++) {
                workers[i] = (struct worker){
                        .router = fleet.router, .ids = fleet.ids, .env = &fleet.env, .seed = i << 32};
                assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
                pthread_join(workers[i].thread, NULL);
                decided += workers[i].decided;
        }
        for (uint32_t i = 0; i < 4; i++) {
                struct kvr_replica_info info = brain_info(&fleet, i);

                booked += info.decisions;
                assert_int_equal(info.in_flight, 0);
                assert_int_equal(info.prefilling, 0);
                assert_int_equal(info.uncached_tokens_booked, 0);
        }
        assert_true(booked == decided && decided > THREADS * 1000);
}

static void names_are_stable(void **state)
{
        (void)state;
        assert_string_equal(kvr_state_name(KVR_STARTING), "starting");
        assert_string_equal(kvr_state_name(KVR_DRAINING), "draining");
        assert_string_equal(kvr_reason_name(KVR_REASON_HIT), "hit");
        assert_string_equal(kvr_reason_name(KVR_REASON_ONLY), "only");
        assert_string_equal(kvr_reason_name((enum kvr_reason)99), "unknown");
        assert_string_equal(kvr_policy_name(0), "kv");
        for (size_t i = 0; i < kvr_policy_count(); i++)
                assert_true(strlen(kvr_policy_help(i)) > 10);
        assert_null(kvr_policy_name(kvr_policy_count()));
        assert_null(kvr_policy_help(kvr_policy_count()));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(settings_are_checked),
                cmocka_unit_test_teardown(specs_are_checked, down),
                cmocka_unit_test_teardown(unknown_ids_are_refused_everywhere, down),
                cmocka_unit_test_teardown(as_many_replicas_as_promised, down),
                cmocka_unit_test_teardown(forgetting_is_cheap_and_never_runs_out, down),
                cmocka_unit_test_teardown(nobody_and_no_model, down),
                cmocka_unit_test_teardown(tried_ones_are_never_chosen_again, down),
                cmocka_unit_test_teardown(draining_gets_nothing_ever, down),
                cmocka_unit_test_teardown(what_is_down_is_the_last_resort, down),
                cmocka_unit_test_teardown(a_trial_is_one_request, down),
                cmocka_unit_test_teardown(full_and_paused_ones_are_busy, down),
                cmocka_unit_test_teardown(pinned_beats_everything, down),
                cmocka_unit_test(explaining_changes_nothing),
                cmocka_unit_test(the_same_story_ends_the_same),
                cmocka_unit_test_teardown(turns_of_a_conversation_meet, down),
                cmocka_unit_test_teardown(a_million_distinct_prompts_stay_below_the_cap, down),
                cmocka_unit_test_teardown(threads_share_a_router, down),
                cmocka_unit_test(names_are_stable),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
