/* SPDX-License-Identifier: Apache-2.0 */
/* What the process asks of its operating system: clock, chance, cores, descriptors, its supervisor. Any
 * thread. */
#ifndef KVROUTE_ROUTER_HOST_H
#define KVROUTE_ROUTER_HOST_H

#include <stdatomic.h>

#include "log.h"

/* For struct kvr_env; ctx is not used. */
uint64_t host_now_ns(void *ctx);
/*
 * Until it is called with 0, the calling thread's host_now_ns is `now_ns`: what one event causes happens at one
 * time, which is read once. To be held for the microseconds that an event takes, never across events.
 */
void host_hold_time(uint64_t now_ns);
uint64_t host_random64(void *ctx);
/*
 * Chance that a seed decides: equal seeds of the same `who` give equal numbers, one after the other over all
 * threads. Routers that work together share a seed, and must not choose alike.
 */
struct host_chance {
        atomic_ullong state;
};
void host_chance_init(struct host_chance *chance, uint64_t seed, const char *who);
/* For struct kvr_env; ctx is a struct host_chance. */
uint64_t host_chance64(void *ctx);

/* "READY=1" and the like to systemd, where that is who started us. */
void host_notify(const char *message);
/*
 * A connection of a client and one to a replica each take a descriptor: asks for as many as we may have.
 * Returns how many clients there is room for.
 */
unsigned host_room_for_connections(struct logger *log, uint64_t connections);
/* Those this process may run on, which in a container can be fewer than the machine has. */
unsigned host_cores(void);

#endif
