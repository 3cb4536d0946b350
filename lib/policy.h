/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy turns candidates into a choice. To add one: a file policy_NAME.c with one `choose` function, and
 * one line in policy_table.c.
 */
#ifndef KVROUTE_LIB_POLICY_H
#define KVROUTE_LIB_POLICY_H

#include "kvroute/router.h"

#include "fleet.h"

#define KVR__FORKS_MAX 128 /* forks of one prompt that are looked at, the deepest ones */

/* A replica that may be chosen now. */
struct kvr__candidate {
        struct kvr__replica *replica;
        uint32_t points;              /* leading points of the prompt that it has */
        uint32_t base_tokens;         /* the tokens of these, as its engine would count a hit */
        uint32_t full_tokens;         /* the same with generated answers in between */
        uint32_t match_tokens;        /* the same as far as the replica is trusted: what counts */
        uint16_t slot_rank;           /* where a replica with slots has it: see struct kvr__slots_match */
        bool slot_copy;               /* that is a copy of what a slot had when it was idle */
        bool by_events;               /* the match comes from events and young predictions */
        uint32_t event_tokens;        /* what its events alone say, in tokens */
        double token_s;               /* seconds to prefill a token: learned, or the mean of the others */
        double wait_s;                /* before the prefill could start */
        double queue;                 /* the same counted in requests: kvr__load_queue */
        uint32_t due_tokens;          /* set by a policy that has copies due there: what counts as present */
        uint32_t young_tokens;        /* what was sent there just now */
        uint32_t likely_tokens;       /* what a slot may have, while all are busy */
        double own_s, toll_s, cost_s; /* filled by policies that price, NAN otherwise */
        uint32_t next;                /* number of the next holder, plus 1; 0: this is the last */
};

/* A point at which prompts went different ways. */
struct kvr__fork {
        uint32_t point;
        double visits, exits; /* faded numbers of requests that passed, that left here */
        double regret_s;      /* see struct kvr__note */
};

/* What one policy remembers between decisions. */
struct kvr__policy_state {
        uint64_t turn;
};

struct kvr__view {
        struct kvr__candidate *candidates;
        uint32_t count;         /* at least 1 */
        uint32_t holders;       /* number of the first one that has any of it, plus 1; 0: none has */
        uint32_t prompt_tokens; /* at least 1 */
        const uint32_t *tokens; /* of the prefix up to each point */
        const struct kvr_point *points;
        uint32_t point_count;
        const struct kvr__fork *forks; /* rising */
        uint32_t fork_count;           /* at most KVR__FORKS_MAX */
        double seen;                   /* requests for this model, the clock of the forks' visits */
        double span;                   /* requests over which visits fade */
        double token_s;                /* mean over the candidates */
        double log_flight;             /* mean over the candidates of ln(1 + requests in flight) */
        uint64_t now_ns;
        uint64_t newest_ns; /* when the last candidate to come up did */
        double starved;     /* 0 .. 1: what caches drop comes again, see past.h */
        double home_yield;  /* share of what was unknown of a prompt that its home turned out to have */
        uint32_t home;      /* set by a policy that has homes: the candidate; `count` if none */
        uint64_t affinity;  /* hash of the session key, 0 without */
        uint32_t owner;     /* the candidate that last served that session; `count` if none */
        bool by_session;    /* set by the policy: the session decided */
        uint32_t regretted; /* set by the policy: a fork with a new regret_s; fork_count if none */
        double regret_s;
        const struct kvr_env *env;
        struct kvr__policy_state *state;
};

struct kvr__policy {
        const char *name, *help;
        /* The number of the chosen candidate. */
        uint32_t (*choose)(struct kvr__view *view);
        bool by_key; /* it goes by a hash, not by what is cached */
};

/* The number that a replica draws for a key; the highest one wins. Replicas that come and go move only their
 * own keys. */
static inline uint64_t kvr__draw_of(uint64_t key, uint64_t name_hash)
{
        uint64_t x = key ^ name_hash;

        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
        x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
        return x ^ x >> 31;
}

static inline uint64_t kvr__draw(uint64_t key, const struct kvr__replica *replica)
{
        return kvr__draw_of(key, replica->name_hash);
}

const struct kvr__policy *kvr__policy_find(const char *name);
const struct kvr__policy *kvr__policy_at(size_t number);

/* Is a match of so many tokens worth speaking of for this prompt? */
static inline bool kvr__view_useful(const struct kvr__view *view, uint32_t tokens)
{
        return tokens >= 16 && tokens >= view->prompt_tokens / 20;
}

/* Least of a figure; ties go to the least recent work, then to the lowest number. */
struct kvr__least {
        uint32_t at;
        double figure, work;
};
static inline void kvr__least_try(struct kvr__least *least, uint32_t at, double figure, double work)
{
        double near = 1e-12 + 1e-12 * (figure > 0 ? figure : 0);

        if (figure > least->figure + near)
                return;
        if (figure > least->figure - near && work >= least->work)
                return;
        *least = (struct kvr__least){at, figure, work};
}
#define KVR__LEAST_NONE ((struct kvr__least){0, __builtin_inf(), __builtin_inf()})

uint32_t kvr__choose_kv(struct kvr__view *view);
uint32_t kvr__choose_round_robin(struct kvr__view *view);
uint32_t kvr__choose_random(struct kvr__view *view);
uint32_t kvr__choose_least_requests(struct kvr__view *view);
uint32_t kvr__choose_least_tokens(struct kvr__view *view);
uint32_t kvr__choose_power_of_two(struct kvr__view *view);
uint32_t kvr__choose_consistent_hash(struct kvr__view *view);
uint32_t kvr__choose_longest_prefix(struct kvr__view *view);

#endif
