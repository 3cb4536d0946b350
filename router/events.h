/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV cache events of engines, from their ZeroMQ sockets into the library. One thread owns all sockets:
 *
 *     engine ──PUB──► SUB ──► engine/kv_stream.h: in order? ──► engine/kv_events.h: decode ──► kvr_events_*
 *     engine ◄─ROUTER──── DEALER  "again from number n on" (a socket per replay, so that no late answer of one
 *                                  can be taken for one of the next)
 *     control thread ──── JSON that was polled (TensorRT-LLM) ──► the same way
 *
 * Whatever comes in is bounded: bytes of a message (libzmq closes the connection beyond), messages that wait,
 * batches held back during a replay. Nothing that arrives can stop the thread.
 *
 * Calls may come from any thread, and take effect soon after. A replica's stream goes on until events_drop,
 * which must come before its number is given to kvr_replica_remove or may come after: the library refuses
 * events of a replica that is gone.
 */
#ifndef KVROUTE_ROUTER_EVENTS_H
#define KVROUTE_ROUTER_EVENTS_H

#include <kvroute/events.h>

#include "engine/kv_discover.h"
#include "engine/kv_events.h"
#include "engine/kv_stream.h"
#include "log.h"

#define EVENTS_ERROR_MAX  200
#define EVENTS_HELD_BYTES (64U << 20) /* of batches held back during one replay */
#define EVENTS_HELD_MAX   16384       /* and their number */
#define EVENTS_WAITING_MAX \
        4096                 /* messages that wait in a socket; more are dropped, and had again by replay */
#define EVENTS_POLLED_MAX 64 /* polled answers that wait to be taken in */
#define EVENTS_TICK_MS    ((long)(ENGINE_STREAM_TICK_NS / 1000000))
#define EVENTS_REOPEN_NS  5000000000ULL /* without a connection: the socket is made anew */
#define EVENTS_BURST      64            /* messages of one socket before the others get their turn */

enum events_mode {
        EVENTS_OFF,
        EVENTS_CONNECT, /* to the engine's socket */
        EVENTS_BIND,    /* the engine connects to ours */
        EVENTS_POLL,    /* POST /kv_cache_events */
};

struct events_source {
        enum events_mode mode;
        char events[ENGINE_KV_ENDPOINT_MAX]; /* CONNECT, BIND */
        char replay[ENGINE_KV_ENDPOINT_MAX]; /* empty: none */
        char topic[ENGINE_KV_TOPIC_MAX];     /* batches of topics that begin so; empty: all */
        int32_t rank;                        /* for status pages; -1: none */
};

struct events_options {
        struct kvr_router *router;
        struct logger *log;
        uint64_t relearn_ns; /* see engine_stream_options */
};

struct events;

KVR_MUST_USE struct events *events_new(const struct events_options *options);
void events_free(struct events *events); /* waits for the thread. NULL is fine */

/* Begins, or begins anew with another source. The name is for messages. False: out of memory. */
bool events_follow(struct events *events, kvr_replica_id id, const char *name,
                   const struct events_source *source);
void events_drop(struct events *events, kvr_replica_id id);
/*
 * Its process was seen to end, or its cache was emptied through this router; both after kvr_replica_forget. Fine for
 * one that is not followed.
 */
void events_restarted(struct events *events, kvr_replica_id id);
void events_cleared(struct events *events, kvr_replica_id id);
/* An answer that was polled, copied. */
void events_polled(struct events *events, kvr_replica_id id, struct kvr_slice body);

/* One stream as it is, for status pages and metrics. */
struct events_view {
        struct events_source source;
        enum engine_stream_state state;
        bool connected, trusted, deaf;
        uint64_t next;                  /* number of the batch that is due */
        uint64_t followed_ns, heard_ns; /* since when; when the last batch came by itself, 0: never */
        double age_s;                   /* the last batch's own time against now; NAN unknown */
        struct engine_stream_counters counters;
        struct kvr_events_account account;
        uint64_t stored, removed, cleared; /* events */
        uint64_t why[ENGINE_EVENT_WHYS];   /* events ignored and bad, by reason */
        uint64_t malformed;                /* messages that are no batch */
        uint64_t unreadable;               /* batches that could not be decoded */
        uint64_t foreign;                  /* batches of another rank, */
        int32_t foreign_rank;              /* and which: of the last batch, -1 if that was right */
        uint64_t held_dropped;             /* batches that were too much to hold back */
        uint32_t block_tokens;             /* of the last blocks stored; 0: none */
        char error[EVENTS_ERROR_MAX];      /* what is wrong, or empty */
};
/* False: it is not followed. */
bool events_view(struct events *events, kvr_replica_id id, struct events_view *ret);

#endif
