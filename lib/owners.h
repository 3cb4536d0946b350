/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounded memory of who served what: session key to replica, response id to replica. Keys are 64-bit
 * hashes. When it is full the entry that was put longest ago goes. Owner: whoever holds the router's lock.
 */
#ifndef KVROUTE_LIB_OWNERS_H
#define KVROUTE_LIB_OWNERS_H

#include "kvroute/base.h"

struct kvr__owner {
        uint64_t key;
        uint64_t replica;
        uint64_t at_ns;
        uint32_t chain;      /* next in the same bucket, by number + 1 */
        uint32_t prev, next; /* order of putting, by number + 1; prev is later */
};

struct kvr__owners {
        struct kvr__owner *entries; /* NULL until first used */
        uint32_t *buckets;
        uint32_t room, count;
        uint32_t head, tail;
};

/* `room` must be a power of two. All memory is taken at the first put, about 44 bytes an entry. */
void kvr__owners_init(struct kvr__owners *owners, uint32_t room);
void kvr__owners_fini(struct kvr__owners *owners);
/* Sets or replaces, and makes it the latest. Forgets it silently when out of memory: it is advice. */
void kvr__owners_put(struct kvr__owners *owners, uint64_t key, uint64_t replica, uint64_t now_ns);
/* The entry or NULL; valid until the next put. */
const struct kvr__owner *kvr__owners_get(const struct kvr__owners *owners, uint64_t key);

#endif
