/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the event thread share:
 *
 *   events.c         the thread, what it is told to do, waiting
 *   events_stream.c  one replica's stream: what comes, and what becomes of it
 *   events_socket.c  its sockets
 *
 * All belongs to the event thread, except where it says "lock".
 */
#ifndef KVROUTE_ROUTER_EVENTS_INT_H
#define KVROUTE_ROUTER_EVENTS_INT_H

#include <pthread.h>
#include <zmq.h>

#include "events.h"

struct held_batch {
        uint64_t seq;
        size_t len;
        struct held_batch *next;
        char bytes[];
};

/* Hashes of removals that reach the library in one call: engines name one at a time, and a call with one block costs
 * the index many times what a block in a longer call costs (docs/benchmarks.md). */
#define EVENTS_JOIN_MAX 256

struct stream {
        struct events *events;
        struct stream *next;
        kvr_replica_id id;
        char name[KVR_NAME_MAX];
        void *sub, *monitor, *dealer; /* NULL: none */
        struct engine_stream machine;
        struct engine_event_view decoder_view;
        struct held_batch *held, **held_end;
        size_t held_bytes;
        unsigned held_count;
        bool told_trusted, said_no_room, dirty;
        unsigned trust_changes;
        bool placed;        /* it has its place in the library */
        uint64_t opened_ns; /* when its socket was made */
        enum kvr_tier gone_tier;
        uint32_t gone_count;
        uint64_t gone[EVENTS_JOIN_MAX]; /* removed, in order, and not told yet; none between batches */
        struct events_view own;
        struct events_view shown; /* lock */
};

/* What another thread wants. */
struct events_command {
        enum events_what { EVENTS_FOLLOW, EVENTS_DROP, EVENTS_RESTARTED, EVENTS_CLEARED, EVENTS_POLLED } what;
        kvr_replica_id id;
        char name[KVR_NAME_MAX];
        struct events_source source;
        size_t len;
        struct events_command *next;
        char bytes[];
};

struct events {
        struct events_options options;
        void *zmq;
        int wake; /* eventfd */
        pthread_t thread;
        pthread_mutex_t lock;
        struct events_command *commands, **commands_end; /* lock */
        unsigned polled;                                 /* lock: commands that hold an answer */
        bool stopping;                                   /* lock */
        struct stream *streams; /* changed by the event thread alone, under the lock */
        unsigned stream_count, monitors;
        struct engine_event_decoder *decoder;
        zmq_pollitem_t *items;
        struct stream **owners; /* of the items */
        size_t item_cap;
};

/* ---- events_stream.c ---- */
void stream_begin(struct stream *stream, uint64_t now_ns);
/* Gives back its place in the library, and its sockets. */
void stream_end(struct stream *stream);
void stream_obey(struct stream *stream, const struct engine_stream_todo *todo, uint64_t seq,
                 struct kvr_slice payload, uint64_t now_ns);
void stream_live(struct stream *stream, uint64_t seq, struct kvr_slice payload, uint64_t now_ns);
void stream_replayed(struct stream *stream, uint64_t seq, struct kvr_slice payload, uint64_t now_ns);
void stream_polled(struct stream *stream, struct kvr_slice body, uint64_t now_ns);
void stream_tick(struct stream *stream, uint64_t now_ns);
void stream_fail(struct stream *stream, const char *what, const char *why);

/* ---- events_socket.c ---- */
bool stream_open_sockets(struct stream *stream);
void stream_close_sockets(struct stream *stream);
void stream_ask_replay(struct stream *stream, uint64_t from);
void stream_close_replay(struct stream *stream);
/* What waits in each, up to a burst; true: there may be more. */
bool stream_read_monitor(struct stream *stream, uint64_t now_ns);
bool stream_read_sub(struct stream *stream, uint64_t now_ns);
bool stream_read_dealer(struct stream *stream, uint64_t now_ns);

#endif
