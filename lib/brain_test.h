/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests, fuzzers and benchmarks of the router's brain: a clock that is turned by hand, chance
 * from a seed, and prompts made of numbered parts instead of text.
 */
#ifndef KVROUTE_LIB_BRAIN_TEST_H
#define KVROUTE_LIB_BRAIN_TEST_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvroute/router.h"

struct brain_env {
        uint64_t now_ns;
        uint64_t random;
};

static inline uint64_t brain_mix(uint64_t x)
{
        x += 0x9e3779b97f4a7c15ULL;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
        x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
        return x ^ x >> 31;
}

static inline uint64_t brain_now(void *ctx)
{
        return __atomic_load_n(&((struct brain_env *)ctx)->now_ns, __ATOMIC_RELAXED);
}

static inline uint64_t brain_random(void *ctx)
{
        return brain_mix(__atomic_add_fetch(&((struct brain_env *)ctx)->random, 1, __ATOMIC_RELAXED));
}

static inline struct kvr_env brain_env_of(struct brain_env *env)
{
        return (struct kvr_env){brain_now, brain_random, env};
}

#define BRAIN_MS(n) ((uint64_t)(n)*1000000)
#define BRAIN_S(n)  ((uint64_t)(n)*1000000000)

/* A prompt under construction: the points and ends a parser would give for text of these sizes. */
struct brain_prompt {
        struct kvr_point points[KVR_POINTS_MAX];
        uint32_t count;
        uint64_t key;
        uint64_t next_grid;
        uint64_t length;
        struct kvr_prompt prompt;
};

static inline void brain_prompt_init(struct brain_prompt *p)
{
        p->count = 0;
        p->key = 1;
        p->length = 0;
        p->next_grid = KVR_GRID_MIN_BYTES;
        p->prompt = (struct kvr_prompt){.api = KVR_API_CHAT, .prompt_count = 1, .choices = 1, .space = 7};
}

static inline void brain_point(struct brain_prompt *p, uint64_t end)
{
        if (p->count && p->points[p->count - 1].end == end)
                return;
        p->points[p->count++] = (struct kvr_point){.key = p->key | !p->key, .end = (uint32_t)end};
}

/* The grid position behind `pos`: steps are powers of two, at most 1/32 of the depth or the least one. */
static inline uint64_t brain_grid(uint64_t pos)
{
        uint64_t step = KVR_GRID_MIN_BYTES;

        while (step * 2 <= pos / 32)
                step *= 2;
        return (pos / step + 1) * step;
}

/* Appends `bytes` bytes of text number `text`, without closing a message. */
static inline void brain_text(struct brain_prompt *p, uint64_t text, uint64_t bytes)
{
        uint64_t end = p->length + bytes, done = 0;

        while (p->next_grid <= end) {
                done += p->next_grid - p->length;
                p->length = p->next_grid;
                p->key = brain_mix(p->key ^ brain_mix(text ^ done << 20));
                brain_point(p, p->length);
                p->next_grid = brain_grid(p->length);
        }
        p->key = brain_mix(p->key ^ brain_mix(text ^ bytes << 20));
        p->length = end;
}

static inline void brain_message(struct brain_prompt *p, uint64_t text, uint64_t bytes)
{
        brain_text(p, text, bytes);
        brain_point(p, p->length);
}

static inline const struct kvr_prompt *brain_prompt_done(struct brain_prompt *p)
{
        brain_point(p, p->length);
        p->prompt.points = p->points;
        p->prompt.point_count = p->count;
        p->prompt.units = (uint32_t)p->length;
        return &p->prompt;
}

static inline const struct kvr_prompt *brain_prompt_of(struct brain_prompt *p, uint64_t text, uint64_t bytes)
{
        brain_prompt_init(p);
        brain_message(p, text, bytes);
        return brain_prompt_done(p);
}

static inline struct kvr_slice brain_slice(const char *text)
{
        return (struct kvr_slice){text, strlen(text)};
}

/* ---- a router with a fleet r0, r1, ... ---- */

#define BRAIN_REPLICAS 64

struct brain_fleet {
        struct brain_env env;
        struct kvr_router *router;
        kvr_replica_id ids[BRAIN_REPLICAS];
        uint32_t count;
};

static inline void brain_must(bool so)
{
        if (!so)
                abort();
}

static inline kvr_replica_id brain_add(struct brain_fleet *fleet, struct kvr_replica_spec spec)
{
        char name[16] = {'r', (char)('0' + fleet->count / 10), (char)('0' + fleet->count % 10), 0};
        kvr_replica_id id;

        spec.name = spec.name ? spec.name : name;
        brain_must(kvr_replica_add(fleet->router, &spec, &id, NULL) == KVR_OK);
        brain_must(kvr_replica_set_state(fleet->router, id, KVR_READY) == KVR_OK);
        fleet->ids[fleet->count++] = id;
        return id;
}

/* `count` replicas of that kind, long past their first minute. */
static inline void brain_fleet_up(struct brain_fleet *fleet, const struct kvr_settings *settings,
                                  uint32_t count, struct kvr_replica_spec spec)
{
        *fleet = (struct brain_fleet){.env = {.now_ns = BRAIN_S(1000), .random = 1}};
        struct kvr_env env = brain_env_of(&fleet->env);

        brain_must(kvr_router_new(settings, &env, &fleet->router, NULL) == KVR_OK);
        for (uint32_t i = 0; i < count; i++)
                brain_add(fleet, spec);
        fleet->env.now_ns += BRAIN_S(120);
}

static inline uint32_t brain_number(const struct brain_fleet *fleet, kvr_replica_id id)
{
        for (uint32_t i = 0; i < fleet->count; i++)
                if (fleet->ids[i] == id)
                        return i;
        abort();
}

static inline struct kvr_ticket *brain_send(struct brain_fleet *fleet, const struct kvr_request *request,
                                            struct kvr_decision *ret)
{
        struct kvr_decision decision;
        struct kvr_ticket *ticket;

        brain_must(kvr_decide(fleet->router, request, ret ? ret : &decision, &ticket, NULL) == KVR_OK);
        return ticket;
}

static inline void brain_end(struct kvr_ticket *ticket, enum kvr_end end, int64_t prompt, int64_t cached,
                             int64_t completion)
{
        struct kvr_outcome outcome = {.end = end,
                                      .prompt_tokens = prompt,
                                      .cached_tokens = cached,
                                      .completion_tokens = completion};

        kvr_ticket_settle(ticket, &outcome, NULL);
}

/* One request by itself on the fleet, answered as predicted after 100 ms. Returns the replica's number. */
static inline uint32_t brain_serve(struct brain_fleet *fleet, const struct kvr_request *request,
                                   struct kvr_decision *ret)
{
        struct kvr_decision decision;
        struct kvr_ticket *ticket = brain_send(fleet, request, &decision);

        fleet->env.now_ns += BRAIN_MS(50);
        kvr_ticket_first_token(ticket);
        fleet->env.now_ns += BRAIN_MS(50);
        brain_end(ticket, KVR_END_FINISHED, decision.prompt_tokens, decision.match_tokens, 20);
        if (ret)
                *ret = decision;
        return brain_number(fleet, decision.replica);
}

static inline struct kvr_replica_info brain_info(struct brain_fleet *fleet, uint32_t number)
{
        struct kvr_replica_info info;

        brain_must(kvr_replica_info(fleet->router, fleet->ids[number], &info) == KVR_OK);
        return info;
}

#endif
