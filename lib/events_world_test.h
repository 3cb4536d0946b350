/* SPDX-License-Identifier: Apache-2.0 */
/* A fleet of toy engines, chats that are held with it, and the tokenizer's answers. */
#ifndef KVROUTE_LIB_EVENTS_WORLD_TEST_H
#define KVROUTE_LIB_EVENTS_WORLD_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "events_toy_test.h"
#include "router_int.h"

#define ENGINES_MAX 4
#define TURNS_MAX   8
#define QUEUE_MAX   256

static const uint32_t sixteen[ENGINES_MAX] = {16, 16, 16, 16};

/* ---- a fleet of toys and what is said to it ---- */

struct chat {
        uint64_t seed;
        const char *model, *adapter, *salt;
        char *texts[2 * TURNS_MAX + 2]; /* system, user, assistant, user, ... */
        uint32_t count;
};

struct question {
        struct kvr_outline *outline;
        struct toy_ids *ids;
        uint64_t due; /* request number */
};

struct world {
        struct brain_fleet fleet;
        struct toy_engine *engines[ENGINES_MAX];
        struct kvr_parser *parser;
        struct toy_ids ids;
        char *body;
        uint64_t random;
        uint64_t requests, near, hits, hit_tokens, predicted_tokens, asked, learned;
        uint32_t lag; /* requests until the tokenizer answers */
        struct question queue[QUEUE_MAX];
        uint32_t queued;
};

static inline struct world *world_new(uint32_t count, const struct kvr_settings *settings,
                                      const uint32_t *sizes, uint32_t tokens)
{
        struct world *world = calloc(1, sizeof(*world));

        brain_must(world);
        brain_fleet_up(&world->fleet, settings, 0, (struct kvr_replica_spec){0});
        world->parser = kvr_parser_new();
        world->body = malloc(TOY_BODY_MAX);
        brain_must(world->parser && world->body);
        for (uint32_t i = 0; i < count; i++) {
                kvr_replica_id id = brain_add(&world->fleet, (struct kvr_replica_spec){
                                                                     .capacity_tokens = tokens,
                                                                     .block_tokens = sizes[i],
                                                             });

                world->engines[i] = toy_new(world->fleet.router, id, sizes[i], tokens / sizes[i]);
                assert_int_equal(kvr_events_trust(world->fleet.router, id, true), KVR_OK);
        }
        world->fleet.env.now_ns += BRAIN_S(120);
        return world;
}

static inline void world_free(struct world *world)
{
        for (uint32_t i = 0; i < world->queued; i++) {
                kvr_outline_free(world->queue[i].outline);
                free(world->queue[i].ids);
        }
        for (int i = 0; i < ENGINES_MAX; i++)
                if (world->engines[i])
                        toy_free(world->engines[i]);
        kvr_parser_free(world->parser);
        kvr_router_free(world->fleet.router);
        free(world->body);
        free(world);
}

static inline uint64_t chance(struct world *world, uint64_t below)
{
        return brain_mix(++world->random) % below;
}

static inline char *text_of(uint64_t seed, size_t bytes)
{
        char *text = malloc(bytes + 1);

        brain_must(text);
        toy_text(seed, bytes, text);
        return text;
}

static inline void chat_begin(struct world *world, struct chat *chat, uint64_t system, size_t bytes)
{
        *chat = (struct chat){.seed = chance(world, UINT32_MAX), .model = "m", .adapter = "", .salt = ""};
        chat->texts[chat->count++] = text_of(system, bytes);
        chat->texts[chat->count++] = text_of(chat->seed, 40 + chance(world, 600));
}

static inline void chat_end(struct chat *chat)
{
        for (uint32_t i = 0; i < chat->count; i++)
                free(chat->texts[i]);
        chat->count = 0;
}

static inline uint32_t messages_of(const struct chat *chat, struct toy_message *ret)
{
        for (uint32_t i = 0; i < chat->count; i++)
                ret[i] = (struct toy_message){i == 0  ? "system"
                                              : i % 2 ? "user"
                                                      : "assistant",
                                              chat->texts[i]};
        return chat->count;
}

static inline void questions_answer(struct world *world)
{
        for (uint32_t i = 0; i < world->queued;) {
                struct question *question = &world->queue[i];

                if (question->due > world->requests) {
                        i++;
                        continue;
                }
                assert_int_equal(kvr_tokens_learn(world->fleet.router, question->outline, question->ids->ids,
                                                  question->ids->count),
                                 KVR_OK);
                world->learned++;
                kvr_outline_free(question->outline);
                free(question->ids);
                *question = world->queue[--world->queued];
        }
}

static inline void question_ask(struct world *world, const struct kvr_request *request,
                                const struct chat *chat)
{
        if (!kvr_tokens_wanted(world->fleet.router, request))
                return;
        world->asked++;
        /* As from any tokenizer that has too much to do. */
        struct kvr_outline *outline = kvr_outline_new(request->prompt, request->model,
                                                      brain_slice(chat->adapter), brain_slice(chat->salt));

        brain_must(outline != NULL);
        if (world->queued == QUEUE_MAX) {
                kvr_tokens_drop(world->fleet.router, outline);
                kvr_outline_free(outline);
                return;
        }
        struct question *question = &world->queue[world->queued++];

        *question = (struct question){outline, malloc(sizeof(*question->ids)), world->requests + world->lag};
        brain_must(question->ids != NULL);
        question->ids->count = world->ids.count;
        memcpy(question->ids->ids, world->ids.ids, world->ids.count * sizeof(uint32_t));
}

static inline struct kvr_request request_of(struct world *world, const struct chat *chat,
                                            struct kvr_prompt *ret)
{
        struct toy_message messages[2 * TURNS_MAX + 2];
        uint32_t count = messages_of(chat, messages);
        struct kvr_error err;

        toy_render(&world->ids, messages, count);
        if (kvr_prompt_parse(world->parser, KVR_API_CHAT,
                             toy_body(world->body, messages, count, chat->model, chat->salt), NULL, ret,
                             &err))
                fail_msg("%s", err.message);
        return (struct kvr_request){.prompt = ret, .model = brain_slice(chat->model)};
}

/* One request as a chat stands, run and settled. The answer is added to the chat. */
static inline struct kvr_decision say(struct world *world, struct chat *chat, uint32_t *ret_hit)
{
        struct kvr_prompt prompt;
        struct kvr_request request = request_of(world, chat, &prompt);
        struct kvr_decision decision;
        struct kvr_ticket *ticket = brain_send(&world->fleet, &request, &decision);
        struct toy_engine *engine = world->engines[brain_number(&world->fleet, decision.replica)];
        uint32_t tokens = world->ids.count;
        char *answer = text_of(brain_mix(chat->seed + chat->count), 30 + chance(world, 700));

        question_ask(world, &request, chat);
        toy_tokenize(&world->ids, answer, strlen(answer));
        toy_put(&world->ids, TOY_END);
        uint32_t hit = toy_run(engine, &world->ids, tokens, chat->adapter, chat->salt);
        uint32_t off =
                hit > decision.match_tokens ? hit - decision.match_tokens : decision.match_tokens - hit;

        world->requests++;
        world->near += off <= engine->block_tokens;
        world->hits += hit > 0;
        world->hit_tokens += hit;
        world->predicted_tokens += decision.match_tokens;
        if (getenv("TOY_SHOW") && off > engine->block_tokens)
                print_message("# %llu: %u of %u tokens, predicted %u of %u, turn %u\n",
                              (unsigned long long)world->requests, hit, tokens, decision.match_tokens,
                              decision.prompt_tokens, chat->count);
        world->fleet.env.now_ns += BRAIN_MS(400);
        kvr_ticket_first_token(ticket);
        world->fleet.env.now_ns += BRAIN_MS(800);
        brain_end(ticket, KVR_END_FINISHED, tokens, hit, world->ids.count - tokens);
        questions_answer(world);
        if (chat->count + 2 <= 2 * TURNS_MAX)
                chat->texts[chat->count++] = answer;
        else
                free(answer);
        *ret_hit = hit;
        return decision;
}

static inline void chat_go_on(struct world *world, struct chat *chat)
{
        if (chat->count % 2)
                chat->texts[chat->count] =
                        text_of(brain_mix(chat->seed ^ chat->count), 40 + chance(world, 500));
        chat->count += chat->count % 2;
}

/* Requests of chats over some system prompts; what a chat is in is up to `dress`. */
static inline void traffic(struct world *world, uint32_t requests, uint32_t chats_open, uint32_t systems,
                           void (*dress)(struct world *world, struct chat *chat))
{
        struct chat *chats = calloc(chats_open, sizeof(*chats));
        uint32_t hit;

        brain_must(chats != NULL);
        for (uint32_t i = 0; i < requests; i++) {
                struct chat *chat = &chats[chance(world, chats_open)];

                if (chat->count + 1 >= 2 * TURNS_MAX)
                        chat_end(chat);
                if (!chat->count) {
                        uint64_t system = chance(world, systems);

                        chat_begin(world, chat, 7000 + system, 1500 + system * 377);
                        if (dress)
                                dress(world, chat);
                }
                say(world, chat, &hit);
                chat_go_on(world, chat);
        }
        for (uint32_t i = 0; i < chats_open; i++)
                chat_end(&chats[i]);
        free(chats);
}

static inline void assert_near_share(const struct world *world, double share)
{
        double is = (double)world->near / (double)world->requests;

        print_message("# %llu requests, %.2f %% within one block, %llu with hits, tokens %llu found %llu "
                      "predicted, "
                      "%llu prompts learned\n",
                      (unsigned long long)world->requests, is * 100, (unsigned long long)world->hits,
                      (unsigned long long)world->hit_tokens, (unsigned long long)world->predicted_tokens,
                      (unsigned long long)world->learned);
        if (is < share)
                fail_msg("only %.4f of the predictions are within one block", is);
}

/* ---- one engine, step by step ---- */

static inline struct world *world_of_one(void)
{
        return world_new(1, NULL, sixteen, 32000);
}

static inline struct kvr_replica_info info_of(struct world *world, uint32_t number)
{
        return brain_info(&world->fleet, number);
}

/* What would be predicted for the chat as it stands. */
static inline uint32_t predicted(struct world *world, const struct chat *chat)
{
        struct kvr_prompt prompt;
        struct kvr_request request = request_of(world, chat, &prompt);
        struct kvr_decision decision;
        size_t count;

        assert_int_equal(kvr_explain(world->fleet.router, &request, &decision, NULL, 0, &count, NULL),
                         KVR_OK);
        return decision.match_tokens;
}

static inline uint32_t prompt_tokens(struct world *world, const struct chat *chat)
{
        struct kvr_prompt prompt;

        (void)request_of(world, chat, &prompt);
        return world->ids.count;
}

/* A chat of one turn that was said once, without its answer. */
static inline void chat_said(struct world *world, struct chat *chat, uint64_t system, size_t bytes)
{
        uint32_t hit;

        chat_begin(world, chat, system, bytes);
        say(world, chat, &hit);
        free(chat->texts[--chat->count]);
        /* What was sent there just now is forgotten by then. */
        world->fleet.env.now_ns += BRAIN_S(60);
}

static inline uint32_t whole_hit(uint32_t tokens)
{
        return (tokens - 1) / 16 * 16;
}

#endif
