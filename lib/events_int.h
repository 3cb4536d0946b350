/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of what engine events add to the router. One struct, made when the first replica tells by events:
 *
 *     events.c        event ──► writers' lock ──► block index          which lanes belong to whom
 *     events_unknown.c  blocks told of and not known any more          is that view as good as whole?
 *     token_ask.c     tokens of a prompt ──► token map                 which prompts are worth asking about
 *     events_look.c   prompt ──► map ──► index ──► struct kvr__look    before the router's lock, no lock at all
 *     events_match.c  look, young predictions, history ──► match       under the router's lock
 *     young.c         what was sent there just now
 *     canary.c        do the events explain what the engine reports?
 *
 * Locks: the writers' lock may be held when the router's is taken, never the other way round; the lock of the
 * token map's writer is held alone.
 */
#ifndef KVROUTE_LIB_EVENTS_INT_H
#define KVROUTE_LIB_EVENTS_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "kvroute/events.h"

#include "blocks.h"
#include "fleet.h"
#include "token_map.h"

#define KVR__EVENT_SIZES 4 /* block sizes of one fleet; replicas with yet another one go by history */
#define KVR__NO_SIZE     UINT8_MAX
#define KVR__QUESTIONS   4096 /* prompts whose tokens may be asked for at a time */

/* One replica's place in the block index. */
struct kvr__event_source {
        kvr_replica_id id;         /* 0: free */
        uint16_t lanes[KVR_TIERS]; /* KVR__NO_LANE where there is none yet */
        uint32_t block_tokens;     /* 0: no event and nothing told yet */
        bool size_seen;            /* an event had it: it is not only what was told */
        uint8_t size;              /* number of that size, KVR__NO_SIZE: none */
        uint64_t cleared_ns;       /* when it said last that all is gone; 0 never */
};

/* Lanes whose blocks have one size, GPU ones only. */
struct kvr__event_size {
        uint32_t users;                /* writers' lock */
        _Atomic uint32_t block_tokens; /* 0: not in use */
        _Atomic uint32_t words;        /* of `lanes` that may have bits */
        _Atomic uint64_t lanes[KVR__BLOCK_LANE_WORDS];
};

/* A prompt whose tokens are being asked for. */
struct kvr__question {
        _Atomic uint64_t key; /* of its last point; 0: free */
        _Atomic uint64_t at_ns;
};

struct kvr__look;

struct kvr__events {
        pthread_mutex_t lock;       /* writers of the block index; sources, sizes */
        pthread_mutex_t learn_lock; /* writer of the token map */
        struct kvr__blocks *blocks;
        struct kvr__token_map *map;
        struct kvr__event_source *sources; /* by place of the replica */
        uint32_t source_room;
        struct kvr__event_size sizes[KVR__EVENT_SIZES];
        /* By GPU lane: the replica's other lanes, CPU in the low half, DISK in the high one. */
        _Atomic uint32_t lower[KVR__BLOCK_LANES_MAX];
        _Atomic uint32_t held[KVR__BLOCK_LANES_MAX]; /* blocks by lane */
        /*
         * By GPU lane: blocks of which the engine told, and that we do not know (any more). It tells of each but once:
         * they, and all that is computed on top of them, stay unknown until it drops them.
         */
        _Atomic uint32_t unknown[KVR__BLOCK_LANES_MAX];
        _Atomic uint32_t trusted; /* replicas that are, so told by the host */
        _Atomic uint64_t map_hits, map_misses;
        struct kvr__question questions[KVR__QUESTIONS];
        struct kvr__look *looks; /* free ones; router's lock */
};

/* ---- life: events.c ---- */

/* NULL: no replica has ever told by events. Any thread. */
struct kvr__events *kvr__events_of(const struct kvr_router *router);
void kvr__events_free(struct kvr__events *events);
/* The replica is gone from the fleet. Without the router's lock, as the next one. */
void kvr__events_leave(struct kvr_router *router, kvr_replica_id id);
/* The host found out that its cache is empty. What events said of it is void unless they said so themselves just
 * before. */
void kvr__events_forget(struct kvr_router *router, kvr_replica_id id);
/* The size of its blocks was told otherwise: good until an event shows it, so that prompts before that are
 * tokenized too. Without the router's lock. */
void kvr__events_size(struct kvr_router *router, kvr_replica_id id, uint32_t block_tokens);

/* ---- blocks that are not known: events_unknown.c ---- */

/* The account of a GPU lane, in blocks; with the writers' lock. It stops at UINT32_MAX and at 0. */
void kvr__unknown_open(struct kvr__events *events, uint16_t lane); /* nothing yet */
void kvr__unknown_add(struct kvr__events *events, uint16_t lane, uint64_t blocks);
void kvr__unknown_drop(struct kvr__events *events, uint16_t lane, uint64_t blocks);
/* What will be unknown when the view is thrown away while the engine keeps its cache: all that it holds. */
uint64_t kvr__unknown_after_loss(const struct kvr__events *events, uint16_t lane);
/* Some of what it holds is not known since events were missed, so what the view lacks may be there all the same. With
 * the router's lock. */
bool kvr__events_partial(const struct kvr_router *router, const struct kvr__replica *replica);

/* ---- before the lock: events_look.c ---- */

/* What the map and the index know of one prompt, for one block size. */
struct kvr__look_size {
        uint32_t block_tokens; /* 0: nobody has such blocks */
        uint32_t blocks;       /* leading ones that the map, or the prompt itself, tells the keys of */
        uint32_t points;       /* leading points of the prompt that they belong to */
        uint32_t end;          /* units up to where they are known: the last of these, or an end behind it */
        uint32_t tokens;       /* up to there */
        enum kvr__mapped_by by;
        uint64_t base; /* key of the first block without adapter and salt, 0: it has neither */
};

/* Leading blocks that the replica with this GPU lane holds. */
struct kvr__look_depth {
        uint32_t gpu, cpu, disk; /* those behind the ones before, each */
};

struct kvr__look {
        struct kvr__look *next_free;
        struct kvr__look_size sizes[KVR__EVENT_SIZES];
        uint64_t *keys;
        uint32_t key_room;
        uint64_t want[KVR__BLOCK_LANE_WORDS];
        uint32_t depths[KVR__BLOCK_LANES_MAX]; /* room for one call */
        struct kvr__look_depth lanes[KVR__BLOCK_LANES_MAX];
};

struct kvr__query;

/* Looks the prompt up; NULL when events have no say in it, or memory is short. Give it back afterwards.
 * `counted`: it is one of the decisions that are counted. */
struct kvr__look *kvr__look_take(struct kvr_router *router, const struct kvr__query *query, bool counted);
void kvr__look_give(struct kvr_router *router, struct kvr__look *look); /* with the router's lock */
void kvr__look_free(struct kvr__look *look);

/* ---- with the router's lock ---- */

struct kvr__candidate;
struct kvr__choice;
struct kvr_ticket;

/* events_match.c: corrects what the prompt's points are taken to have in tokens. */
void kvr__look_measure(struct kvr_router *router, const struct kvr__query *query, struct kvr__choice *choice);
/* The match of a replica that tells by events; fills all but what depends on history alone. False: it does
 * not, or is not believed; what the events say is in candidate->event_tokens all the same. */
bool kvr__event_match(struct kvr_router *router, const struct kvr__query *query,
                      const struct kvr__choice *choice, struct kvr__candidate *candidate);

/* young.c. Lanes of what was sent just now; -> struct kvr__young in fleet.h. */
void kvr__young_open(struct kvr_router *router, struct kvr__replica *replica);
void kvr__young_close(struct kvr_router *router, struct kvr__replica *replica);
/* All of it is void. */
void kvr__young_drop(struct kvr_router *router, struct kvr__replica *replica);
/* Leading points of the prompt, given the depths of all lanes. */
uint32_t kvr__young_points(const struct kvr_router *router, const struct kvr__replica *replica,
                           uint64_t now_ns);
/* The ticket's prompt goes there now. */
void kvr__young_book(struct kvr_router *router, struct kvr_ticket *ticket, double tokens_per_unit);
/* It never got as far as that. */
void kvr__young_withdraw(struct kvr_router *router, const struct kvr_ticket *ticket);
void kvr__young_first_token(struct kvr__replica *replica, const struct kvr_ticket *ticket);

/* events.c: it leaves the fleet. */
void kvr__events_untrust(struct kvr_router *router, struct kvr__replica *replica);
/* Blocks that its events say it holds, on all tiers. */
uint64_t kvr__events_held(const struct kvr_router *router, const struct kvr__replica *replica);

/* canary.c: an engine reported hits for a ticket of a replica that has a place in the block index. */
void kvr__canary_learn(struct kvr_router *router, const struct kvr_ticket *ticket, double found);
void kvr__canary_reset(struct kvr__replica *replica);

#endif
