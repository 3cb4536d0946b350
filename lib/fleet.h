/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replicas: what we sent there, what they said of themselves, and what was learned of their speed and
 * honesty.
 *
 * Load is booked in whole tokens and requests, so that the books are exactly zero at rest. Seconds are
 * derived from them with the replica's speed of the moment:
 *
 *     wait = speed * (uncached tokens of own requests without a first token
 *                     - what the head one must have done by now
 *                     + a small charge per own request that decodes
 *                     + tokens that others queued there, by the last report)
 *
 * Owner: whoever holds the router's lock.
 */
#ifndef KVROUTE_LIB_FLEET_H
#define KVROUTE_LIB_FLEET_H

#include <stddef.h>

#include "kvroute/router.h"

#include "index.h"
#include "slots.h"
#include "speed.h"

#define KVR__REPORT_LIFE_NS 10000000000ULL /* an older report says nothing any more */
#define KVR__RAMP_NS        30000000000ULL /* how long a newcomer is spared */
#define KVR__UNKNOWN_TOKENS 256            /* what a prompt of unknown size counts as */
#define KVR__REQUEST_TOKENS 8              /* work of a request that decodes, or whose prompt is there */
#define KVR__WEIGHT         256            /* of a request in a queue that is counted in requests */
#define KVR__CAPACITY_MAX   1e15           /* tokens; as good as no limit, and still whole in a double */

/* Predictions that live for a moment: where prompts were sent whose blocks no event has told of yet. */
struct kvr__young {
        uint16_t lanes[2]; /* of the cache index: the one that is filled, and the one before; KVR__NO_LANE */
        uint64_t since_ns[2]; /* when each was begun */
        double first_token_s; /* running mean of this replica */
};

/* How well a replica's events explain what it reports. */
struct kvr__canary_state {
        enum kvr_canary verdict;
        bool doubted;  /* history is followed instead */
        uint32_t run;  /* contradictions since the last agreement */
        uint32_t good; /* agreements since the last contradiction */
        uint64_t matched, missed;
};

#define KVR__LINE 64 /* bytes of the processor's cache; a replica begins with one */

/*
 * In a fleet of a thousand the time of a decision is mostly the time to fetch the replicas. What is asked of all of
 * them comes first, in two lines of the processor's cache up to the time of the report; what the report said and what
 * others have there follow in the third. Speed and the hash of the name are asked too, and lie further behind.
 */
struct kvr__replica {
        kvr_replica_id id;
        uint64_t *models; /* hashes, sorted; NULL: any */
        struct kvr__slots *slots;
        uint64_t paused_until_ns;
        enum kvr_state state;
        uint32_t model_count, max_running;
        uint32_t in_flight, prefilling, trials; /* trials: sent while half-open */
        uint32_t block_tokens;
        uint16_t lane;
        uint16_t event_lane; /* GPU blocks; KVR__NO_LANE: it does not tell by events */

        uint64_t booked_tokens;
        struct kvr_ticket *prefill_head;
        uint64_t first_token_ns; /* the last one that came from here */
        double log_flight;       /* ln(1 + in_flight) */
        double work;             /* recent tokens sent here, see kvr__fleet_work */
        uint64_t ready_since_ns;
        struct kvr_load_report report;

        /* load, the rest */
        double foreign_waiting, foreign_tokens, foreign_flight; /* at the last report; NAN unknown */
        uint64_t booked_weight;                                 /* of the prefilling ones */
        struct kvr_ticket *prefill_tail;
        double mean_uncached, mean_total_s; /* of our requests; 0 until known */
        double mean_slot_s;                 /* how long they keep a slot; 0 until known */
        uint64_t decided_ns;
        /* The most of each since the last report: it was measured at some moment in between. */
        uint32_t peak_flight, peak_prefilling;
        uint64_t peak_booked;

        char name[KVR_NAME_MAX];
        uint64_t name_hash;
        enum kvr_cache_kind cache;
        bool removed;
        uint32_t place;       /* in the fleet's table */
        uint16_t ledger_slot; /* its number in the router's ledger */

        /* residency */
        uint32_t epoch;       /* rises when everything is forgotten; what older tickets find out is void */
        uint32_t slots_epoch; /* rises when the slots are made anew; older tickets have none of them */
        uint64_t capacity_told;
        struct kvr_ticket *deferred_head, *deferred_tail; /* waiting for a slot, oldest first */
        double capacity;                                  /* tokens, at most KVR__CAPACITY_MAX; 0 unknown */
        bool capacity_learned;
        uint32_t misses; /* long predictions that failed in a row */
        uint32_t told;   /* long predictions that were checked since the last reset */
        double trust;    /* share of predicted tokens that came true, running mean */

        /* learned */
        struct kvr__speed speed;
        uint64_t model; /* whose first token was the last to be timed: the curve that `speed` is read with */
        bool tells_cached;

        /* account */
        uint64_t decisions, prompt_tokens, predicted_tokens, observed_tokens, unobserved_tokens;
        uint64_t overpredicted_tokens, resets;
        double error;

        /* engine events: what the block index knows of it */
        uint8_t event_size;  /* number of its block size, see struct kvr__look */
        bool events_trusted; /* by the host */
        uint32_t event_block_tokens;
        struct kvr__young young;
        struct kvr__canary_state canary;
};

_Static_assert(offsetof(struct kvr__replica, report.at_ns) + sizeof(uint64_t) <= 2 * KVR__LINE,
               "the first two lines tell whether there is a report");

struct kvr__fleet {
        struct kvr__replica **order; /* in order of addition */
        uint32_t count, room;
        struct kvr__replica **places; /* by the low bits of an id; NULL is free */
        uint32_t place_count;
        uint64_t serial;
        uint64_t work_epoch_ns; /* work is counted in seconds of this moment, later ones weigh more */
};

void kvr__fleet_init(struct kvr__fleet *fleet);
/* Frees the replicas, removed ones with running tickets included. */
void kvr__fleet_fini(struct kvr__fleet *fleet);
/* Takes the replica on success and gives it an id. */
KVR_MUST_USE enum kvr_status kvr__fleet_add(struct kvr__fleet *fleet, struct kvr__replica *replica);
/* Out of the order; its place is kept until kvr__fleet_release finds it idle. */
void kvr__fleet_remove(struct kvr__fleet *fleet, struct kvr__replica *replica);
/* Frees a removed replica without requests in flight; does nothing otherwise. */
void kvr__fleet_release(struct kvr__fleet *fleet, struct kvr__replica *replica);
/* NULL when unknown or removed. */
struct kvr__replica *kvr__fleet_find(const struct kvr__fleet *fleet, kvr_replica_id id);
struct kvr__replica *kvr__fleet_find_name(const struct kvr__fleet *fleet, const char *name);
/* Adds tokens to a replica's recent work, which fades with a time constant of a minute. */
void kvr__fleet_work(struct kvr__fleet *fleet, struct kvr__replica *replica, double tokens, uint64_t now_ns);

KVR_MUST_USE struct kvr__replica *kvr__replica_new(const char *name);
void kvr__replica_free(struct kvr__replica *replica);
bool kvr__replica_serves(const struct kvr__replica *replica, uint64_t model);
void kvr__replica_set_state(struct kvr__replica *replica, enum kvr_state state, uint64_t now_ns);

/* ---- load ---- */

/* The books of one ticket: decision, first token (once; returns false when it was booked before), settlement.
 */
void kvr__load_book(struct kvr__replica *replica, struct kvr_ticket *ticket);
bool kvr__load_first_token(struct kvr__replica *replica, struct kvr_ticket *ticket, uint64_t now_ns);
void kvr__load_release(struct kvr__replica *replica, struct kvr_ticket *ticket);

void kvr__load_report(struct kvr__replica *replica, const struct kvr_load_report *report);
bool kvr__load_report_fresh(const struct kvr__replica *replica, uint64_t now_ns);
/* Seconds before the prefill of a new request would start; `token_s` is the replica's speed or a guess. */
double kvr__load_wait(const struct kvr__replica *replica, double token_s, uint64_t now_ns);
/* Requests there without a first token, those that find their prompt cached counting twice; others' too as
 * far as a fresh report tells. */
double kvr__load_queue(const struct kvr__replica *replica, uint64_t now_ns);
/* ln(1 + requests in flight there), other routers' ones included as far as a fresh report tells. */
double kvr__load_log_flight(const struct kvr__replica *replica, uint64_t now_ns);
/* Share of the ramp a newcomer still has before it: 1 just ready .. 0 grown up. */
double kvr__load_ramp(const struct kvr__replica *replica, uint64_t now_ns);

#endif
