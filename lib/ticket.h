/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A routed request between decision and settlement. Tickets and the copies of their prompts' points come from
 * a pool, so that a warm router allocates nothing per request.
 */
#ifndef KVROUTE_LIB_TICKET_H
#define KVROUTE_LIB_TICKET_H

#include "kvroute/ledger.h"
#include "kvroute/router.h"

#define KVR__TICKET_POINTS      32  /* kept in the ticket itself */
#define KVR__TICKET_POINTS_KEPT 512 /* a larger copy is freed at settlement, not pooled */

struct kvr__replica;

struct kvr_ticket {
        struct kvr_router *router;
        struct kvr_ticket *next_free;
        struct kvr_ticket *prev, *next; /* requests of the replica without a first token, oldest first */
        struct kvr_ticket *next_deferred;
        struct kvr__replica *replica;
        uint32_t epoch; /* of the replica at decision */
        uint16_t mark;  /* of the index entries it made */
        bool at_home;   /* sent to the home of its prompt */
        bool first_token, learned, deferred, measurable, trial, by_tokens;
        enum kvr_reason reason;
        uint64_t model;
        uint64_t sent_ns, first_ns;
        uint64_t slot_ns; /* when it had a slot, as far as we know; 0 it has none */
        double busy_s;    /* from when the replica could have begun to the first token */
        uint32_t slot, slots_epoch;
        uint32_t units;
        uint32_t prompt_tokens;  /* 0 unknown */
        uint32_t match_tokens;   /* predicted */
        uint32_t full_tokens;    /* the same had the replica been trusted in full */
        uint32_t base_tokens;    /* of these, without answers of earlier turns */
        uint32_t match_points;   /* leading points they come from */
        uint16_t slot_rank;      /* see struct kvr__slots_match */
        bool slot_copy;          /* that is a copy of what a slot had when it was idle */
        bool by_events, watched; /* its match came from events; it has a place in the block index */
        uint32_t event_tokens;   /* what its events alone said */
        uint32_t event_blocks;   /* leading blocks whose keys were known */
        uint64_t event_base;     /* see struct kvr__look_size */
        uint32_t young_tokens;   /* predicted because of what was sent there just before */
        uint32_t young_held;     /* leading points that were held by young predictions then */
        uint32_t best_tokens;
        uint32_t booked_tokens;
        uint32_t weight;   /* in its replica's queue: KVR__WEIGHT, and as much again if all of it is cached */
        uint32_t held;     /* leading points held when it was decided, where it went */
        uint32_t inserted; /* leading points held right after */
        uint32_t fork;     /* leading points known to anybody before; 0 none */
        /* Nodes in the index of the last point inserted and of the fork; 0 none. */
        uint32_t end_node, fork_node;
        /* for the ledger, NULL when there was none */
        struct kvr_ledger *ledger;
        bool entered;                   /* its names have their accounts */
        uint64_t named_model, workload; /* hashes of names, 0 without */
        uint64_t turn;                  /* number of the decision */
        uint64_t candidates[KVR_LEDGER_REPLICAS_MAX / 64];
        uint16_t ledger_slot; /* of its replica */
        uint32_t point_count, point_room;
        struct kvr_point *points; /* own_points or an allocation */
        struct kvr_point own_points[KVR__TICKET_POINTS];
};

struct kvr__ticket_slab;

/* Owner: whoever holds the router's lock. */
struct kvr__tickets {
        struct kvr_ticket *free;
        struct kvr__ticket_slab *slabs;
        uint32_t out; /* taken and not given back */
};

/* NULL when the pool is empty: make a slab without the lock and add it. */
struct kvr_ticket *kvr__tickets_take(struct kvr__tickets *tickets);
void kvr__tickets_give(struct kvr__tickets *tickets, struct kvr_ticket *ticket);
KVR_MUST_USE struct kvr__ticket_slab *kvr__ticket_slab_new(void); /* any thread; NULL when out of memory */
void kvr__tickets_add(struct kvr__tickets *tickets, struct kvr__ticket_slab *slab);
void kvr__tickets_fini(struct kvr__tickets *tickets);

/* Copies the points into the ticket. The ticket's holder, without the lock. False when out of memory. */
KVR_MUST_USE bool kvr__ticket_set_points(struct kvr_ticket *ticket, const struct kvr_point *points,
                                         uint32_t count);
/* Lets go of a large copy. The ticket's holder, without the lock. */
void kvr__ticket_trim(struct kvr_ticket *ticket);

#endif
