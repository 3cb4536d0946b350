/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families: prompts that share a beginning, found from keys alone.
 *
 *     system prompt ──┬── q1 ── a1 ── q2      a conversation goes on at its end: no branch
 *                     ├── q3
 *                     ├── q4 ── a4 ── q5
 *                     └── q6                  four continuations: the system prompt is a family
 *
 * Where a prompt leaves known ground it makes a branch, unless that is where an earlier prompt ended and
 * nobody went on yet. A place with KVR_LEDGER_BRANCHES continuations of its own becomes the *trunk* of a
 * family; a request belongs to the deepest trunk it passes. Continuations that have become families do not
 * count for the trunk above them, which is given up when too few others are left: a header that all groups
 * have in common is no family of its own.
 *
 * Ends and forks of prompts are remembered in a table of sights, by key. Owner: whoever holds the ledger's
 * lock.
 */
#ifndef KVROUTE_LIB_LEDGER_FAMILY_H
#define KVROUTE_LIB_LEDGER_FAMILY_H

#include "kvroute/ledger.h"

#include "ledger_account.h"

#define KVR__SIGHT_WAYS 4
#define KVR__FILTER_WORDS \
        128 /* 8,192 bits: most points of a prompt are told apart from trunks by one look \
             */

/* A place where a prompt ended or forked. */
struct kvr__sight {
        uint64_t key; /* 0 free */
        uint64_t used_ns;
        uint32_t exits;    /* branches made here beyond the first continuation */
        uint16_t children; /* families whose trunk lies behind this place, and behind no nearer one */
        bool end;          /* a prompt ended here and nobody has gone on */
        bool counted;      /* the trunk of a family that the fork above knows of */
};

struct kvr__family {
        uint64_t weight;      /* requests, halved now and then; a newcomer starts with its branches */
        double shared_tokens; /* running mean */
        uint32_t points;      /* the trunk's */
};

struct kvr__families {
        struct kvr__accounts accounts;                        /* keyed by the trunk's key */
        struct kvr__family families[KVR_LEDGER_FAMILIES_MAX]; /* by number of the account */
        uint64_t filter[KVR__FILTER_WORDS];                   /* keys that may be trunks */
        uint32_t points_max;                                  /* of the deepest trunk */
        uint32_t given_up;
        uint64_t seen; /* requests, the clock by which weights fade */
        struct kvr__sight *sights;
};

/* What a settled, computed prompt is seen by. */
struct kvr__sighting {
        const struct kvr_point *points;
        uint32_t count, known; /* leading points that somebody still held */
        double tokens_per_unit;
        uint64_t now_ns;
};

struct kvr__sighted {
        uint32_t family; /* number of the account */
        bool reuse_known;
        uint64_t reuse_ns; /* since the last use of what was known */
};

KVR_MUST_USE bool kvr__families_init(struct kvr__families *families, uint64_t *bytes);
void kvr__families_fini(struct kvr__families *families);
/* The end or fork of a prompt with this key is about to be seen. Reads nothing that ever changes. */
void kvr__families_prefetch(const struct kvr__families *families, uint64_t key);
void kvr__families_see(struct kvr__families *families, const struct kvr__sighting *sighting,
                       struct kvr__sighted *ret);

#endif
