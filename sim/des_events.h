/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the engines' events in a simulated fleet:
 *
 *     engine ─step─► message ─┬─ late, or lost ─► stream of a router ─► its library     des_events.c
 *                             └─ kept ◄─ replay ─┘    (the proxy's own machine)         des_streams.c
 */
#ifndef KVROUTE_SIM_DES_EVENTS_H
#define KVROUTE_SIM_DES_EVENTS_H

#include "des_int.h"
#include "rng.h"

#include <engine/kv_stream.h>

#define SIM__DES_BLOCKS_AT_ONCE 64u
#define SIM__DES_RELEARN_S      30.0 /* as events-relearn of the proxy */

struct sim__des_message {
        uint64_t at_ns;  /* when it was told */
        uint64_t number; /* of its engine, since its start */
        uint64_t life;   /* which of its engine's */
        uint64_t print;  /* equal for equal messages only */
        uint32_t holders, count;
        struct sim_change changes[];
};

/* On its way to one router: a message, or the answer to a question for a replay. */
struct sim__des_delivery {
        uint64_t due_ns, order;
        struct sim__des_message *message; /* NULL: an answer */
        uint32_t router, replica;
        uint64_t question, from, life;
};

/* An engine as it publishes. */
struct sim__des_source {
        uint64_t next_number, life; /* of the process: restarts so far */
        uint64_t ended_ns;          /* of the one before */
        uint64_t broken_order;      /* messages before never arrive */
        struct sim__des_message **kept;
        uint32_t kept_first, kept_count, kept_room;
        bool down;
};

/* One router's view of one engine's messages. */
struct sim__des_stream {
        struct engine_stream machine;
        struct sim__des_message **held; /* back until a replay is over */
        uint32_t held_count, held_room;
        uint64_t question; /* number of the last one; older answers are of no use */
        bool told_trusted;
        uint64_t since_ns, untrusted_ns; /* of told_trusted; sum until then */
};

struct sim__des_events {
        struct sim__des_delivery *heap;
        uint32_t count, room;
        uint64_t order, next_tick_ns;
        struct sim__des_source *sources; /* by replica */
        struct sim__des_stream *streams; /* by router and replica */
        struct sim_rng rng;
        uint64_t hashes[SIM__DES_BLOCKS_AT_ONCE];
        uint32_t *tokens; /* of so many blocks */
};

void sim__des_message_drop(struct sim__des_message *message);
/* Asks the engine for all from this number on; an earlier question is given up. False: out of memory, as for all
 * below. */
KVR_MUST_USE bool sim__des_events_ask(struct sim__des *des, uint32_t router, uint32_t replica, uint64_t from);

struct sim__des_stream *sim__des_stream_of(const struct sim__des *des, uint32_t router, uint32_t replica);
KVR_MUST_USE bool sim__des_stream_init(struct sim__des *des, uint32_t router, uint32_t replica);
void sim__des_stream_fini(struct sim__des_stream *stream);
KVR_MUST_USE bool sim__des_stream_live(struct sim__des *des, uint32_t router, uint32_t replica,
                                       struct sim__des_message *message);
KVR_MUST_USE bool sim__des_stream_replayed(struct sim__des *des, uint32_t router, uint32_t replica,
                                           const struct sim__des_message *message);
KVR_MUST_USE bool sim__des_stream_replay_end(struct sim__des *des, uint32_t router, uint32_t replica);
KVR_MUST_USE bool sim__des_stream_tick(struct sim__des *des, uint32_t router, uint32_t replica);
/* The connection broke and is refused, as a process that dies does. */
KVR_MUST_USE bool sim__des_stream_lost(struct sim__des *des, uint32_t router, uint32_t replica);
KVR_MUST_USE bool sim__des_stream_opened(struct sim__des *des, uint32_t router, uint32_t replica);

#endif
