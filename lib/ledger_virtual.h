/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counterfactual: the same requests on virtual fleets of the same replicas, routed by simpler rules.
 *
 *     request ──┬─► real fleet      what kvroute did, what the engines said
 *               ├─► round_robin     in turn over the request's candidates
 *               ├─► least_tokens    least uncached tokens in a queue that drains at the learned speed
 *               └─► prefix_hash     by the key that consistent_hash goes by, without bound on load
 *
 * Each virtual replica is an LRU of prefixes with the capacity of its real one, in all points of the prompts.
 * To be cheap it holds them by runs: up to ten points that follow each other and were used together, in one
 * line of memory, and each knows the run that came behind it the last time.
 *
 *     p q r s t|u v w x y z      a run is found by its first point; the others are compared
 *                                a prompt that parts within a run splits it; one that goes on fills it up
 *
 * Owner: whoever holds the ledger's lock.
 */
#ifndef KVROUTE_LIB_LEDGER_VIRTUAL_H
#define KVROUTE_LIB_LEDGER_VIRTUAL_H

#include "kvroute/ledger.h"

#include "ledger_account.h"
#include "ledger_balance.h"

enum kvr__virtual_rule { KVR__VIRTUAL_ROUND_ROBIN, KVR__VIRTUAL_LEAST_TOKENS, KVR__VIRTUAL_PREFIX_HASH };
#define KVR__VIRTUALS 3

/* A real replica, as the virtual fleets need to know it. */
struct kvr__twin {
        uint64_t name_hash;
        double capacity; /* tokens; 0 unknown: no limit */
        double token_s;  /* learned; 0 unknown */
        uint32_t block_tokens, epoch;
};

#define KVR__RUN_POINTS 10 /* so that a run is a line of 64 bytes */

struct kvr__run {
        uint32_t tags[KVR__RUN_POINTS]; /* lower halves of keys: one wrong match in billions does no harm */
        uint32_t next;                  /* in its chain, or among the free ones; 0 none */
        uint32_t older, newer;          /* in the order of use on its replica; 0 none */
        uint32_t follow;                /* came behind it the last time; to be checked, or 0 */
        uint32_t tokens;
        uint16_t slot;
        uint16_t count; /* 0: free */
};

struct kvr__virtual_replica {
        uint32_t oldest, newest;
        uint64_t tokens;
        double backlog, work; /* uncached tokens queued; recent ones, fading: both as of at_ns */
        uint64_t at_ns;
};

struct kvr__virtual {
        enum kvr__virtual_rule rule;
        struct kvr__run *runs; /* number 0 is nobody */
        uint32_t *heads;       /* as many as runs */
        uint32_t mask, fresh, free, count;
        uint64_t crowded;
        struct kvr__virtual_replica replicas[KVR_LEDGER_REPLICAS_MAX];
        struct kvr__account account;
        struct kvr__balance balance;
};

/* The prompt at hand on one replica of one fleet. */
struct kvr__walk {
        uint32_t slot;
        uint32_t points; /* leading ones that the replica has */
        uint32_t guess;  /* the run that may be next; 0 none */
        uint32_t count;  /* runs that the prompt passes, */
        uint32_t runs[KVR_POINTS_MAX];
        unsigned char inside[KVR_POINTS_MAX]; /* points of each; fewer than it has: they part there */
};

struct kvr__virtuals {
        struct kvr__virtual fleets[KVR__VIRTUALS];
        struct kvr__twin twins[KVR_LEDGER_REPLICAS_MAX];
        double token_s; /* the last one learned anywhere; 0 none yet */
        struct kvr__walk walks[KVR__VIRTUALS];
};

/* A settled, computed prompt. */
struct kvr__arrival {
        const struct kvr_point *points;
        uint32_t count;
        uint32_t prompt_tokens;
        double tokens_per_unit;
        const uint64_t *candidates; /* slots, KVR__SLOT_WORDS words; at least one */
        uint64_t at_ns, now_ns;     /* when it was decided; when it was settled */
        uint64_t turn;              /* number of the decision: settlements come in another order */
};

/* The name of the rule; NULL when there is none of that number. */
const char *kvr__virtual_name(uint32_t number);
/* NULL when out of memory. `runs_max` is a power of two. */
KVR_MUST_USE struct kvr__virtuals *kvr__virtuals_new(uint32_t runs_max, uint64_t *bytes);
void kvr__virtuals_free(struct kvr__virtuals *virtuals);
void kvr__virtuals_see(struct kvr__virtuals *virtuals, const struct kvr__arrival *arrival);
/* The replica of that slot has lost its cache, in all fleets. */
void kvr__virtuals_forget(struct kvr__virtuals *virtuals, uint32_t slot);
/* The slot gets another replica. */
void kvr__virtuals_clear(struct kvr__virtuals *virtuals, uint32_t slot);

#endif
