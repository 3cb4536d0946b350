/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One account of the ledger: sums over life and over sliding windows, and a bounded table of accounts by key.
 *
 *     now ──► 5 s buckets (13)     booked straight into the current one
 *               └─ when it ends ──► 1 min buckets (11)     5 min buckets (13)
 *
 * A window is the sum of its buckets, whole numbers all of them, so that it is exact for the time it says it
 * covers. Buckets carry the number of their interval and are cleared when they are used again: nothing runs
 * when nothing happens. Owner: whoever holds the ledger's lock.
 */
#ifndef KVROUTE_LIB_LEDGER_ACCOUNT_H
#define KVROUTE_LIB_LEDGER_ACCOUNT_H

#include "kvroute/ledger.h"

#define KVR__FINE_NS      5000000000ULL
#define KVR__MIDDLE_NS    60000000000ULL
#define KVR__COARSE_NS    300000000000ULL
#define KVR__FINE_SLOTS   13
#define KVR__MIDDLE_SLOTS 11
#define KVR__COARSE_SLOTS 13

struct kvr__bucket {
        uint64_t stamp; /* number of its interval plus one; 0 empty */
        struct kvr_ledger_sums sums;
};

struct kvr__account {
        uint64_t key;
        char name[KVR_NAME_MAX];
        uint64_t first_ns, last_ns; /* of the clock that only rises; 0 never booked */
        uint64_t fine; /* number of the current fine interval; older ones are in the coarser buckets too */
        struct kvr_ledger_sums life;
        struct kvr__bucket fines[KVR__FINE_SLOTS], middles[KVR__MIDDLE_SLOTS], coarses[KVR__COARSE_SLOTS];
        uint64_t shared[KVR_LEDGER_LOG_BUCKETS], reuse[KVR_LEDGER_LOG_BUCKETS], reuse_unknown;
};

/* What one settlement adds. */
struct kvr__booking {
        struct kvr_ledger_sums sums;
        bool computed;
        bool reuse_known;
        uint32_t shared_bucket,
                reuse_bucket; /* the latter when something was shared and its last use is known */
};

void kvr__account_book(struct kvr__account *account, const struct kvr__booking *booking, uint64_t now_ns);
/* Adds all of `from`, windows included. */
void kvr__account_fold(struct kvr__account *account, struct kvr__account *from, uint64_t now_ns);
void kvr__account_read(struct kvr__account *account, uint64_t now_ns, struct kvr_ledger_account *ret);
/* Histogram bucket of a figure: 0 for 0, n for 2^(n-1) .. 2^n - 1, at most the last one. */
uint32_t kvr__log_bucket(uint64_t figure);

/* ---- accounts by key ---- */

#define KVR__ACCOUNT_NONE  0 /* requests without a name */
#define KVR__ACCOUNT_OTHER 1 /* requests whose name has no account, or no longer */
#define KVR__ACCOUNT_OWN   2 /* first one with a name */

/* The first two are always there. Numbers stay until the account is given up. */
struct kvr__accounts {
        struct kvr__account *items;
        uint16_t *places; /* numbers of items by key, open addressing; 0 free */
        uint32_t count, max, mask;
};

KVR_MUST_USE bool kvr__accounts_init(struct kvr__accounts *accounts, uint32_t max, uint64_t *bytes);
void kvr__accounts_fini(struct kvr__accounts *accounts);
/* Its number; KVR__ACCOUNT_NONE for key 0, KVR__ACCOUNT_OTHER when there is none. */
uint32_t kvr__accounts_find(const struct kvr__accounts *accounts, uint64_t key);
/* The same, but makes it where there is room, giving up one that was idle for an hour. */
uint32_t kvr__accounts_make(struct kvr__accounts *accounts, uint64_t key, struct kvr_slice name,
                            uint64_t now_ns);
/* Item `number` becomes the account of another key; what it has goes to "(other)". */
void kvr__accounts_replace(struct kvr__accounts *accounts, uint32_t number, uint64_t key,
                           struct kvr_slice name, uint64_t now_ns);

#endif
