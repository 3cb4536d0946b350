/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the shadow share:
 *
 *   shadow.c       requests: decided, played on the virtual fleet, ended
 *   shadow_fleet.c the virtual replicas, and what is passed on of the real ones
 *   shadow_sums.c  both sides' figures
 *
 * Everything here is read and written with the shadow's lock held.
 */
#ifndef KVROUTE_ROUTER_SHADOW_INT_H
#define KVROUTE_ROUTER_SHADOW_INT_H

#include <pthread.h>

#include "shadow.h"

enum shadow_role { SHADOW_KV, SHADOW_ACTUAL, SHADOW_ROLES };

/* A replica, as both sides have it. */
struct shadow_slot {
        kvr_replica_id real, virt;
        bool present;   /* not removed */
        uint32_t users; /* legs that point here */
        double token_s; /* learned of the real one; 0 unknown */
        uint64_t looked_ns, resets;
        uint64_t free_ns[SHADOW_ROLES]; /* when the virtual queue has computed all that it was sent */
        uint32_t flight[SHADOW_ROLES],
                peak[SHADOW_ROLES]; /* requests there; the most since the last report */
};

/* One side of a request. */
struct shadow_leg {
        struct shadow_flight *flight;
        struct shadow_slot *slot;  /* NULL: over */
        struct kvr_ticket *ticket; /* NULL: an estimate only, or settled */
        uint64_t decided_ns, first_ns, at_ns;
        size_t place; /* in the heap, from 1; 0: not in it */
        bool first_token;
        bool untimed; /* nobody knows its speed yet: the first token comes when the real one does */
        uint32_t prompt_tokens, match_tokens;
};

struct shadow_flight {
        struct shadow_flight *prev, *next;
        struct shadow_leg legs[SHADOW_ROLES];
        bool ended; /* what follows is known */
        struct kvr_outcome outcome;
        uint64_t decode_ns;
        char response_id[128];
};

struct shadow_histogram {
        uint64_t counts[SHADOW_TTFT_BOUNDS + 1];
        uint64_t count;
        double sum_s;
};

struct shadow_sums {
        struct shadow_figures figures; /* its counters; the rest is filled when asked for */
        struct shadow_histogram kv, actual, observed;
};

struct shadow {
        pthread_mutex_t lock;
        struct shadow_options options;
        struct kvr_router *brain;
        struct kvr_ledger *ledger;
        uint64_t now_ns; /* never goes back */
        uint64_t adopted_ns;
        struct shadow_slot **slots;
        size_t slot_count, slot_room;
        struct shadow_leg **heap; /* by at_ns, the first at 1 */
        size_t heap_count, heap_room;
        struct shadow_flight flights; /* list head */
        uint32_t flight_count;
        struct shadow_sums sums;
};

/* ---- shadow_fleet.c ---- */
struct shadow_slot *shadow__slot_real(struct shadow *shadow, kvr_replica_id id);
struct shadow_slot *shadow__slot_virt(struct shadow *shadow, kvr_replica_id id);
/* Looks what the real router has learned of it, if that was long ago. */
void shadow__slot_look(struct shadow *shadow, struct shadow_slot *slot);
/* Seconds per uncached token; 0: not known yet. */
double shadow__slot_token_s(const struct shadow *shadow, const struct shadow_slot *slot);
void shadow__slot_use(struct shadow_slot *slot, enum shadow_role role);
void shadow__slot_leave(struct shadow *shadow, struct shadow_slot *slot, enum shadow_role role);
/* When a prompt with so many uncached tokens has its first token there; books it. Its speed is known. */
uint64_t shadow__slot_queue(struct shadow *shadow, struct shadow_slot *slot, enum shadow_role role,
                            uint32_t uncached);
void shadow__fleet_free(struct shadow *shadow);

/* ---- shadow_sums.c ---- */
void shadow__histogram_add(struct shadow_histogram *histogram, double seconds);
/* Books a computed request with a prompt of known size on both sides. */
void shadow__sums_add(struct shadow *shadow, const struct shadow_flight *flight,
                      const struct shadow_outcome *outcome);

#endif
