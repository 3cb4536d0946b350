/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shadow against the fact, in time that is counted and not lived through: engines with small caches and a queue
 * each serve the same arrivals once in turn, with the shadow beside, and once as kv routes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "lib/brain_test.h"
#include "shadow.h"

#define ENGINES      4
#define SPEED        8000.0 /* tokens a second */
#define OVERHEAD_NS  BRAIN_MS(5)
#define ANSWER_NS    BRAIN_MS(60)
#define CACHE_TOKENS 14400u
#define CACHE_POINTS (2048u + KVR_POINTS_MAX)
#define CLIENTS_MAX  6
#define REQUESTS     480
#define GROUPS       12
#define TALKS        40
#define TURN_BYTES   1600

/* ---- an engine: points of prompts, least recently used ones go ---- */

struct held {
        uint64_t key, used;
        uint32_t tokens; /* behind the point before it */
};

struct engine {
        struct held held[CACHE_POINTS];
        uint32_t count, tokens;
        uint64_t uses, free_ns; /* when its queue is empty */
};

static struct held *find(struct engine *engine, uint64_t key)
{
        for (uint32_t i = 0; i < engine->count; i++)
                if (engine->held[i].key == key)
                        return &engine->held[i];
        return NULL;
}

static uint32_t held_tokens(struct engine *engine, const struct kvr_prompt *prompt)
{
        uint32_t tokens = 0;

        for (uint32_t i = 0; i < prompt->point_count && find(engine, prompt->points[i].key); i++)
                tokens = prompt->points[i].end / 4;
        return tokens;
}

static void evict(struct engine *engine)
{
        while (engine->tokens > CACHE_TOKENS || engine->count > CACHE_POINTS - KVR_POINTS_MAX) {
                struct held *oldest = engine->held;

                for (uint32_t i = 1; i < engine->count; i++)
                        oldest = engine->held[i].used < oldest->used ? &engine->held[i] : oldest;
                engine->tokens -= oldest->tokens;
                *oldest = engine->held[--engine->count];
        }
}

/* Of one prompt the end goes first. */
static void keep(struct engine *engine, const struct kvr_prompt *prompt)
{
        uint64_t use = ++engine->uses * KVR_POINTS_MAX;

        for (uint32_t i = 0; i < prompt->point_count; i++) {
                struct held *held = find(engine, prompt->points[i].key);

                if (!held) {
                        held = &engine->held[engine->count++];
                        *held = (struct held){.key = prompt->points[i].key,
                                              .tokens = prompt->points[i].end / 4 -
                                                        (i ? prompt->points[i - 1].end / 4 : 0)};
                        engine->tokens += held->tokens;
                }
                held->used = use + KVR_POINTS_MAX - i;
        }
        evict(engine);
}

/* ---- the arrivals: questions behind shared beginnings, some far more popular, and conversations ---- */

struct arrival {
        uint64_t first, second; /* numbers of texts: what is shared, and the question; or a conversation */
        uint32_t turns;         /* 0: a question */
};

static void make_arrivals(struct arrival *ret)
{
        uint64_t chance = 42;
        uint32_t talks[TALKS] = {0};

        for (uint32_t i = 0; i < REQUESTS; i++) {
                uint64_t drawn = brain_mix(++chance);
                uint32_t talk = (uint32_t)(drawn % TALKS), group = 0;

                if (i % 3 == 0) {
                        ret[i] = (struct arrival){.first = 1000 + talk, .turns = ++talks[talk]};
                        continue;
                }
                while (group < GROUPS - 1 && brain_mix(++chance) % 10 >= 3)
                        group++;
                ret[i] = (struct arrival){.first = 1 + group, .second = 100000 + i};
        }
}

static const struct kvr_prompt *prompt_of(struct brain_prompt *p, const struct arrival *arrival)
{
        brain_prompt_init(p);
        brain_message(p, arrival->first, arrival->turns ? TURN_BYTES : 6000);
        for (uint32_t turn = 1; turn < arrival->turns; turn++)
                brain_message(p, arrival->first * 100 + turn, TURN_BYTES);
        if (!arrival->turns)
                brain_message(p, arrival->second, 400);
        return brain_prompt_done(p);
}

/* ---- a run ---- */

struct client {
        struct kvr_ticket *ticket; /* NULL: idle */
        struct shadow_flight *flight;
        struct kvr_decision decision;
        uint32_t tokens, cached;
        uint64_t sent_ns, first_ns, end_ns;
        bool first_seen;
};

struct run {
        struct brain_fleet fleet;
        struct shadow_clock clock;
        struct shadow *shadow; /* NULL: none */
        struct engine engines[ENGINES];
        struct client clients[CLIENTS_MAX];
        struct brain_prompt prompt;
        double prompt_tokens, cached_tokens;
};

static void up(struct run *run, const char *policy, bool with_shadow)
{
        const struct kvr_replica_spec spec = {.block_tokens = 16, .capacity_tokens = CACHE_TOKENS};
        struct kvr_settings settings = {.policy = policy};
        struct shadow_options options = {
                .clock = &run->clock, .index_memory_bytes = 1 << 24, .prefill_speed = 8000};
        struct kvr_env env = brain_env_of(&run->fleet.env);

        run->fleet.env = (struct brain_env){.now_ns = BRAIN_S(1000), .random = 1};
        brain_must(kvr_router_new(&settings, &env, &run->fleet.router, NULL) == KVR_OK);
        shadow_clock_init(&run->clock, &env);
        options.real = run->fleet.router;
        if (with_shadow)
                brain_must(shadow_new(&options, &run->shadow, NULL) == KVR_OK);
        for (uint32_t i = 0; i < ENGINES; i++) {
                kvr_replica_id id = brain_add(&run->fleet, spec);
                const char name[] = {'v', (char)('0' + i), 0};
                struct kvr_replica_spec named = spec;

                named.name = name;
                if (!with_shadow)
                        continue;
                brain_must(shadow_replica_add(run->shadow, id, &named, NULL) == KVR_OK);
                shadow_replica_set_state(run->shadow, id, KVR_READY);
        }
        run->fleet.env.now_ns += BRAIN_S(120);
}

static void send_one(struct run *run, struct client *client, const struct arrival *arrival)
{
        const struct kvr_prompt *prompt = prompt_of(&run->prompt, arrival);
        struct kvr_request request = {.prompt = prompt, .model = brain_slice("m")};
        uint64_t now_ns = run->fleet.env.now_ns;
        struct engine *engine;

        *client = (struct client){.tokens = prompt->units / 4, .sent_ns = now_ns};
        client->ticket = brain_send(&run->fleet, &request, &client->decision);
        if (run->shadow)
                client->flight = shadow_begin(run->shadow, &request, (struct kvr_slice){NULL, 0},
                                              &client->decision, now_ns);
        engine = &run->engines[brain_number(&run->fleet, client->decision.replica)];
        client->cached = held_tokens(engine, prompt);
        keep(engine, prompt);
        if (engine->free_ns < now_ns)
                engine->free_ns = now_ns;
        engine->free_ns += OVERHEAD_NS + (uint64_t)((client->tokens - client->cached) / SPEED * 1e9);
        client->first_ns = engine->free_ns;
        client->end_ns = engine->free_ns + ANSWER_NS;
}

static void end_one(struct run *run, struct client *client)
{
        struct shadow_outcome outcome = {
                .end = KVR_END_FINISHED,
                .computed = true,
                .prompt_tokens = client->tokens,
                .prompt_counted = true,
                .predicted = client->decision.match_tokens,
                .cached_tokens = client->cached,
                .completion_tokens = 8,
                .ttft_s = (double)(client->first_ns - client->sent_ns) / 1e9,
                .decode_ns = ANSWER_NS,
        };

        brain_end(client->ticket, KVR_END_FINISHED, client->tokens, client->cached, 8);
        if (run->shadow)
                shadow_end(run->shadow, client->flight, &outcome, run->fleet.env.now_ns);
        run->prompt_tokens += client->tokens;
        run->cached_tokens += client->cached;
        client->ticket = NULL;
}

static uint64_t next_ns(const struct client *client)
{
        return !client->ticket ? UINT64_MAX : client->first_seen ? client->end_ns : client->first_ns;
}

/* What happens next does; returns false when nothing is on its way. */
static bool step(struct run *run)
{
        struct client *next = run->clients;

        for (uint32_t i = 1; i < CLIENTS_MAX; i++)
                next = next_ns(&run->clients[i]) < next_ns(next) ? &run->clients[i] : next;
        if (!next->ticket)
                return false;
        run->fleet.env.now_ns = next_ns(next);
        if (next->first_seen) {
                end_one(run, next);
                return true;
        }
        next->first_seen = true;
        kvr_ticket_first_token(next->ticket);
        if (run->shadow)
                shadow_first_token(run->shadow, next->flight, run->fleet.env.now_ns);
        return true;
}

static void play(struct run *run, const struct arrival *arrivals, uint32_t clients)
{
        for (uint32_t next = 0; next < REQUESTS;) {
                uint32_t idle = 0;

                while (idle < clients && run->clients[idle].ticket)
                        idle++;
                if (idle < clients)
                        send_one(run, &run->clients[idle], &arrivals[next++]);
                else
                        (void)step(run);
        }
        while (step(run))
                ;
}

static struct run *run_of(const char *policy, bool with_shadow, const struct arrival *arrivals,
                          uint32_t clients, struct shadow_figures *ret)
{
        struct run *run = calloc(1, sizeof *run);

        brain_must(run);
        up(run, policy, with_shadow);
        play(run, arrivals, clients);
        if (with_shadow)
                shadow_figures(run->shadow, run->fleet.env.now_ns + BRAIN_S(60), ret);
        shadow_free(run->shadow);
        kvr_router_free(run->fleet.router);
        return run;
}

static void test_what_kv_would_reuse_is_what_it_reuses(void **state)
{
        static const uint32_t clients[] = {1, CLIENTS_MAX};
        struct arrival *arrivals = calloc(REQUESTS, sizeof *arrivals);

        (void)state;
        brain_must(arrivals);
        make_arrivals(arrivals);
        for (size_t i = 0; i < sizeof clients / sizeof *clients; i++) {
                struct shadow_figures f;
                struct run *beside = run_of("round_robin", true, arrivals, clients[i], &f);
                struct run *really = run_of("kv", false, arrivals, clients[i], NULL);
                double told = shadow_hit_rate(&f, &f.kv);
                double fact = really->cached_tokens / really->prompt_tokens;
                double in_turn = beside->cached_tokens / beside->prompt_tokens;

                print_message("# %u clients: kv %.4f, told %.4f; in turn %.4f\n", clients[i], fact, told,
                              in_turn);
                assert_int_equal(f.requests, REQUESTS);
                assert_int_equal(f.in_flight, 0);
                assert_true((double)f.prompt_tokens == really->prompt_tokens);
                assert_true(fabs(told - fact) < 0.02);
                assert_true(fabs(shadow_hit_rate(&f, &f.actual) - in_turn) < 1e-9);
                /* The caches hold a part of what is asked for, and the choice matters. */
                assert_true(fact > in_turn + 0.1 && fact < 0.9);
                free(beside);
                free(really);
        }
        free(arrivals);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_what_kv_would_reuse_is_what_it_reuses),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
