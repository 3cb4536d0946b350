/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the router: what router.c (life and fleet), decide.c (choice and booking) and settle.c (outcome)
 * share. Everything but `lock` and `env` is read and written with the lock held.
 */
#ifndef KVROUTE_LIB_ROUTER_INT_H
#define KVROUTE_LIB_ROUTER_INT_H

#include <pthread.h>

#include "kvroute/router.h"

#include "events_int.h"
#include "fleet.h"
#include "index.h"
#include "ledger_int.h"
#include "models.h"
#include "owners.h"
#include "past.h"
#include "policy.h"
#include "ticket.h"

#define KVR__OWNERS_MAX      65536
#define KVR__SESSION_LIFE_NS 3600000000000ULL /* a session key unused for an hour means nothing any more */
#define KVR__REASONS         (KVR_REASON_ONLY + 1)
#define KVR__ENTERED         16 /* a power of two */

struct kvr_router {
        pthread_mutex_t lock;
        struct kvr_env env;
        double default_token_s;
        uint64_t busy_hint_ns;
        const struct kvr__policy *policy;
        struct kvr__policy_state policy_state;

        struct kvr__index *index;
        struct kvr__fleet fleet;
        struct kvr__models models;
        struct kvr__owners sessions, responses;
        struct kvr__tickets tickets;
        struct kvr__past past;
        uint16_t mark;
        double home_yield;                    /* see struct kvr__view */
        double surprises;                     /* hits on what was never sent there, faded */
        _Atomic(struct kvr__events *) events; /* NULL until a replica tells by events; never changed after */
        uint64_t block_memory_bytes, token_map_bytes;
        struct kvr_ledger *ledger; /* the host's; NULL: none */
        uint64_t ledger_turn;      /* decisions that were booked for it */
        /* Names that have their accounts there, so that the ledger's lock is not taken for them at every decision. */
        struct kvr__entered {
                uint64_t workload, model; /* hashes */
                uint64_t until_ns; /* then they are entered again: accounts that nobody uses are given up */
        } entered[KVR__ENTERED];

        uint64_t lookups, lookups_without_match, partial; /* see struct kvr_index_info */
        struct kvr_reason_account accounts[KVR__REASONS];

        /* Room for one decision at a time. */
        struct kvr__candidate *candidates; /* as many as the fleet has room for */
        uint32_t candidate_room;
        struct kvr__path path;
        uint32_t tokens[KVR__CHAIN_LIMIT];
        struct kvr__fork forks[KVR__FORKS_MAX];
        uint64_t want[KVR__LANE_WORDS];
        uint32_t depth[KVR__LANES_MAX];
};

static inline void kvr__router_lock(struct kvr_router *router)
{
        pthread_mutex_lock(&router->lock);
}

static inline void kvr__router_unlock(struct kvr_router *router)
{
        pthread_mutex_unlock(&router->lock);
}

static inline uint64_t kvr__router_now(const struct kvr_router *router)
{
        return router->env.now_ns(router->env.ctx);
}

/* A request with what can be worked out without the lock. */
struct kvr__query {
        const struct kvr_request *request;
        const struct kvr_point *points;
        uint32_t point_count;
        uint32_t units;
        bool by_tokens;  /* units are token ids */
        uint64_t model;  /* 0: any replica */
        uint64_t memory; /* what ratios and counts are learned under */
        uint64_t session;
        uint64_t now_ns;
        struct kvr__look *look; /* what events say of the prompt; NULL: nothing */
};

/* What the locked part found out. */
struct kvr__choice {
        enum kvr_status status;
        uint32_t count, chosen;
        uint32_t holders;       /* see struct kvr__view */
        uint32_t prompt_tokens; /* 0 unknown */
        uint32_t charge_tokens; /* the same, or what an unknown prompt counts as */
        uint64_t retry_after_ns;
        bool last_resort;
        const struct kvr__model *model;
        struct kvr__view view;
};

/* Fills the path, router->tokens and the prompt's tokens in the choice. */
void kvr__prompt_measure(struct kvr_router *router, const struct kvr__query *query,
                         struct kvr__choice *choice);
/* Fills points and tokens of all candidates. */
void kvr__candidates_match(struct kvr_router *router, const struct kvr__query *query,
                           struct kvr__choice *choice);

/* load.c: fills token_s of the view and of all its candidates, s; one that is not known counts as the mean. */
void kvr__speeds_fill(const struct kvr_router *router, struct kvr__choice *choice);
/* load.c: fills wait_s of all candidates, queue where the view is starved, and what the view says of their load; speeds
 * and matches come before. answer_tokens: of a whole answer on average, 0 unknown. */
void kvr__loads_fill(struct kvr__view *view, double answer_tokens);

uint64_t kvr__hash(struct kvr_slice bytes, uint64_t seed); /* never 0 */

/* As an engine counts hits: whole blocks (of `block_tokens`, 0 unknown), and never the whole prompt. */
uint32_t kvr__hit_tokens(uint32_t block_tokens, double tokens, uint32_t prompt_tokens);
/* What counts of a match, as far as the replica is trusted. */
uint32_t kvr__trusted_tokens(const struct kvr__replica *replica, uint32_t tokens);
/* The point that ends the message of this one. */
uint32_t kvr__message_end(const struct kvr__query *query, uint32_t point);
/* The answer that may follow `points` leading points there: its tokens as far as they can be in this prompt. */
double kvr__answer_tokens(const struct kvr_router *router, const struct kvr__query *query,
                          const struct kvr__choice *choice, uint32_t points, double answer);

/* What a replica cached is gone. O(1) but for a full table of lanes. */
void kvr__router_forget(struct kvr_router *router, struct kvr__replica *replica);
/* The slot rules for a request that was decided, or that a free slot lets start. */
void kvr__slots_enter(struct kvr__replica *replica, struct kvr_ticket *ticket);
void kvr__slots_leave(struct kvr__replica *replica, struct kvr_ticket *ticket, bool computed, uint32_t answer,
                      uint64_t now_ns);

#endif
