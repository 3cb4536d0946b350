/* SPDX-License-Identifier: Apache-2.0 */
/* How many blocks of a replica its events told of, and are not known all the same. */
#include "router_int.h"

#define UNKNOWN_SHARE 0.05 /* of what a replica holds: with less its view is as good as whole */

void kvr__unknown_open(struct kvr__events *events, uint16_t lane)
{
        atomic_store_explicit(&events->unknown[lane], 0, memory_order_relaxed);
}

uint64_t kvr__unknown_after_loss(const struct kvr__events *events, uint16_t lane)
{
        return (uint64_t)atomic_load_explicit(&events->held[lane], memory_order_relaxed) +
               atomic_load_explicit(&events->unknown[lane], memory_order_relaxed);
}

void kvr__unknown_add(struct kvr__events *events, uint16_t lane, uint64_t blocks)
{
        uint64_t sum = blocks + atomic_load_explicit(&events->unknown[lane], memory_order_relaxed);

        atomic_store_explicit(&events->unknown[lane], sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX,
                              memory_order_relaxed);
}

void kvr__unknown_drop(struct kvr__events *events, uint16_t lane, uint64_t blocks)
{
        uint32_t unknown = atomic_load_explicit(&events->unknown[lane], memory_order_relaxed);

        atomic_store_explicit(&events->unknown[lane], blocks < unknown ? unknown - (uint32_t)blocks : 0,
                              memory_order_relaxed);
}

bool kvr__events_partial(const struct kvr_router *router, const struct kvr__replica *replica)
{
        struct kvr__events *events = kvr__events_of(router);
        uint16_t lane = replica->event_lane;

        if (!events || lane == KVR__NO_LANE)
                return false;
        double unknown = atomic_load_explicit(&events->unknown[lane], memory_order_relaxed);
        double held = atomic_load_explicit(&events->held[lane], memory_order_relaxed);

        return unknown > UNKNOWN_SHARE * (held + unknown);
}
