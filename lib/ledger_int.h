/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the ledger: what ledger.c (life, booking), ledger_read.c (reading) and ledger_feed.c (from a
 * router's ticket to an entry) share.
 *
 *     kvr_decide ── kvr__ledger_enter      names get their accounts
 *     kvr_ticket_settle
 *        │ with the router's lock:  kvr__ledger_entry_fill
 *        │ without it:              kvr__ledger_book
 *
 * Everything but `lock` is read and written with the lock held. It may be taken while the router's is held,
 * never the other way round.
 */
#ifndef KVROUTE_LIB_LEDGER_INT_H
#define KVROUTE_LIB_LEDGER_INT_H

#include <pthread.h>

#include "kvroute/ledger.h"

#include "ledger_account.h"
#include "ledger_balance.h"
#include "ledger_family.h"
#include "ledger_spoiler.h"
#include "ledger_stack.h"
#include "ledger_virtual.h"

/* A replica's place: its account and its bit in sets of candidates. */
struct kvr__ledger_slot {
        kvr_replica_id id; /* 0: never used */
};

/* Above a rate, something pauses. Whole seconds are counted; a second too many pauses at once. */
struct kvr__pause {
        uint32_t rate_max;
        uint64_t second; /* the one being counted */
        uint32_t count;  /* in it */
        uint32_t calm;   /* seconds in a row with less than half of rate_max */
        bool paused;
        uint64_t left_out;
};

struct kvr_ledger {
        pthread_mutex_t lock;
        uint64_t bytes;
        uint64_t entries;
        uint64_t latest_ns;              /* of all bookings */
        struct kvr__account all, others; /* others: replicas without a slot, or long gone */
        struct kvr__accounts workloads, models;
        struct kvr__families families;
        struct kvr__ledger_slot slots[KVR_LEDGER_REPLICAS_MAX];
        uint64_t present[KVR__SLOT_WORDS];                     /* of these, the ones whose replica is there */
        struct kvr__account replicas[KVR_LEDGER_REPLICAS_MAX]; /* by slot */
        struct kvr__balance balance;
        struct kvr__spoilers spoilers;
        struct kvr__stack *stack;
        struct kvr__virtuals *virtuals; /* NULL: switched off */
        struct kvr__pause pause;        /* of virtual fleets, curve and spoilers */
};

/* One settled ticket. */
struct kvr__ledger_entry {
        struct kvr_ledger *ledger; /* NULL: nothing to book */
        uint64_t sent_ns, now_ns;
        uint64_t workload, model; /* hashes of the names; 0 without */
        uint64_t turn;            /* number of the decision */
        kvr_replica_id replica;
        uint32_t slot; /* KVR__NO_SLOT_BIT: none */
        struct kvr__twin twin;
        bool computed;                    /* and the prompt's size is known: else only the request counts */
        uint32_t prompt, best, predicted; /* tokens */
        int64_t cached;                   /* -1 unknown */
        bool by_tokens;
        uint32_t units, point_count, known; /* known: leading points that somebody held */
        const struct kvr_point *points;     /* borrowed until it is booked */
        const uint64_t *candidates;         /* KVR__SLOT_WORDS words, likewise */
};

static inline bool kvr__ledger_present(const struct kvr_ledger *ledger, uint32_t slot)
{
        return ledger->present[slot / 64] >> slot % 64 & 1;
}

static inline void kvr__ledger_lock(struct kvr_ledger *ledger)
{
        pthread_mutex_lock(&ledger->lock);
}

static inline void kvr__ledger_unlock(struct kvr_ledger *ledger)
{
        pthread_mutex_unlock(&ledger->lock);
}

/* Makes accounts for names that have none. Hashes are 0 for empty names. */
void kvr__ledger_enter(struct kvr_ledger *ledger, uint64_t workload, struct kvr_slice workload_name,
                       uint64_t model, struct kvr_slice model_name, uint64_t now_ns);
void kvr__ledger_book(const struct kvr__ledger_entry *entry);
/* A prompt with these points will be booked soon. Any thread, without the lock. */
void kvr__ledger_prefetch(const struct kvr_ledger *ledger, const struct kvr_point *points, uint32_t count,
                          uint32_t known);
/* Its slot, KVR__NO_SLOT_BIT when all are taken. */
uint16_t kvr__ledger_replica_add(struct kvr_ledger *ledger, kvr_replica_id id, const char *name,
                                 uint64_t name_hash);
void kvr__ledger_replica_remove(struct kvr_ledger *ledger, kvr_replica_id id, uint16_t slot);

/* ---- ledger_feed.c: what the router calls; `ticket` is the caller's ---- */

struct kvr_router;
struct kvr__replica;
struct kvr__query;
struct kvr__choice;
struct kvr_ticket;

/* At decision, with the router's lock. */
void kvr__ledger_ticket_book(struct kvr_router *router, const struct kvr__query *query,
                             const struct kvr__choice *choice, struct kvr_ticket *ticket);
/* Right after, without. */
void kvr__ledger_ticket_enter(const struct kvr__query *query, const struct kvr_ticket *ticket);
/* At settlement, with the router's lock, as long as the replica is there. `prompt` and `cached` in tokens, 0
 * and -1 where unknown. */
void kvr__ledger_entry_fill(struct kvr_router *router, const struct kvr_ticket *ticket, uint64_t now_ns,
                            bool computed, double prompt, double cached, struct kvr__ledger_entry *ret);
/* With the router's lock. */
void kvr__ledger_fleet_add(struct kvr_router *router, struct kvr__replica *replica);
void kvr__ledger_fleet_remove(struct kvr_router *router, const struct kvr__replica *replica);

#endif
