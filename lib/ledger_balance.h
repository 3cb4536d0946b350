/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How evenly requests and computed tokens fall on the replicas of a fleet, over life and in windows of ten
 * seconds.
 *
 * Over life a hot minute and a cold one cancel out; a window that is twice as full on one replica is a queue
 * that somebody stood in. So of every ended window with enough requests the max/mean is kept, for an hour. A
 * replica counts where it was a candidate of some decision, whether it got anything or not. Owner: whoever
 * holds the ledger's lock.
 */
#ifndef KVROUTE_LIB_LEDGER_BALANCE_H
#define KVROUTE_LIB_LEDGER_BALANCE_H

#include "kvroute/ledger.h"

#define KVR__BALANCE_NS       10000000000ULL
#define KVR__BALANCE_WINDOWS  360 /* an hour */
#define KVR__BALANCE_REQUESTS 4   /* per candidate in a window; with fewer, max/mean is mostly chance */
#define KVR__SLOT_WORDS       (KVR_LEDGER_REPLICAS_MAX / 64)
#define KVR__NO_SLOT_BIT      UINT16_MAX /* a replica without a number in the ledger */

struct kvr__balance {
        uint64_t requests[KVR_LEDGER_REPLICAS_MAX], tokens[KVR_LEDGER_REPLICAS_MAX];
        uint64_t seen[KVR__SLOT_WORDS];
        /* the window that is running */
        uint64_t window; /* its number */
        uint64_t window_requests[KVR_LEDGER_REPLICAS_MAX], window_tokens[KVR_LEDGER_REPLICAS_MAX];
        uint64_t window_seen[KVR__SLOT_WORDS];
        /* ended ones */
        struct {
                uint64_t stamp; /* number plus one */
                float requests, tokens;
        } ended[KVR__BALANCE_WINDOWS];
};

/* `slot` is one of the candidates. */
void kvr__balance_book(struct kvr__balance *balance, uint32_t slot, uint64_t tokens,
                       const uint64_t *candidates, uint64_t now_ns);
/* The slot gets another replica. */
void kvr__balance_clear(struct kvr__balance *balance, uint32_t slot);
void kvr__balance_read(struct kvr__balance *balance, uint64_t now_ns, struct kvr_ledger_balance *ret);

#endif
