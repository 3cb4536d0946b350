/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery of one replica's (rank's) event stream, as a state machine without I/O: the host tells what came,
 * the machine says what to do. Batches bear numbers that rise by one; some are lost, engines restart in place,
 * and there is no snapshot to ask for, only the replay of the last batches (at some engines not even that).
 *
 *                  opened, there is a replay socket
 *      OFF ──────────────────────────────────────────► REPLAYING ◄───────────────────────────────┐
 *       ▲ │                                             │    │                                   │
 *       │ │ opened, no replay       nothing is missing  │    │ too old, a hole, no answer:       │
 *       │ │                                             ▼    │ clear                             │ gap, or quiet
 *       │ └──► RELEARNING ─────────────────────────►  LIVE   │                                   │ for long
 *       │        ▲  │  ▲   no fault for relearn_ns      │ │  │                                   │
 *       │        │  │  └────────────────────────────────┼─┼──┘                                   │
 *       │        │  └───────────────────────────────────┼─┼──────────────────────────────────────┤
 *       │        └──────────────────────────────────────┘ └──────────────────────────────────────┘
 *       │              gap without replay: clear
 *     lost (from everywhere)
 *
 *     number fell, and it is no repetition: restart. Clear; batch 0 makes it LIVE, another one REPLAYING from 0.
 *
 *  1. What is applied is applied in order, each batch once; `next` moves only past what was applied.
 *  2. A replay begins one batch before the first one that is missing. If that one comes back as it was, the
 *     engine is the same process still; if it is another one or is not there, it has restarted. Without a
 *     replay socket a process that comes back just at the number that is due passes for the old one.
 *  3. What may be missing is what counts: stores missed make hits unseen, removals missed promise hits that
 *     are gone. So whatever may have missed a removal clears everything.
 *  4. Trusted: LIVE. In REPLAYING as before it, but for REPLAY_TRUST at most; OFF as before for OFF_TRUST.
 *     RELEARNING is not: the cache holds what no event tells again.
 *  5. Silence is checked: a LIVE stream that was quiet for check_ns asks for a replay. If that has batches that
 *     never came by themselves, twice in a row, the subscription hears nothing (another topic, a broken path):
 *     `deaf`, not trusted, until one comes.
 */
#ifndef KVROUTE_ENGINE_KV_STREAM_H
#define KVROUTE_ENGINE_KV_STREAM_H

#include "kvroute/base.h"

#define ENGINE_STREAM_PRINTS          64            /* batches of which is remembered what they were */
#define ENGINE_STREAM_REPLAY_LIMIT_NS 5000000000ULL /* without any reply */
#define ENGINE_STREAM_REPLAY_TRUST_NS 3000000000ULL
#define ENGINE_STREAM_OFF_TRUST_NS    5000000000ULL
#define ENGINE_STREAM_REPLAY_TRIES    3 /* replays in a row for one hole */
#define ENGINE_STREAM_DEAF_CHECKS     2

enum engine_stream_state {
        ENGINE_STREAM_OFF,
        ENGINE_STREAM_REPLAYING,
        ENGINE_STREAM_LIVE,
        ENGINE_STREAM_RELEARNING,
};
const char *engine_stream_state_name(enum engine_stream_state state);

/* What the host has to do, in this order. All false: nothing. */
struct engine_stream_todo {
        bool drop_held;  /* forget the batches held back */
        bool clear;      /* forget what the replica holds */
        bool emptied;    /* with clear: the engine has lost it, not only our view of it */
        bool apply;      /* decode and apply the batch just told */
        bool hold;       /* keep the batch just told: it comes after the replay */
        bool replay;     /* end a replay that runs, and begin one from number `from` on */
        bool end_replay; /* it is over: tell the held batches again, oldest first */
        uint64_t from;
        const char *log; /* a line worth logging, or NULL */
};

#define ENGINE_STREAM_CHECK_NS UINT64_C(15000000000) /* usual check_ns */
#define ENGINE_STREAM_TICK_NS  UINT64_C(100000000)   /* between two calls of engine_stream_tick */

struct engine_stream_options {
        bool has_replay;     /* there is a replay socket */
        uint64_t relearn_ns; /* without a fault, then it is trusted again */
        uint64_t check_ns;   /* quiet for so long: look whether there is something. 0: never */
};

struct engine_stream_counters {
        uint64_t batches; /* applied */
        uint64_t duplicates, gaps, lost, replays, replays_failed, too_old, restarts, clears;
        uint64_t unheard; /* found by a replay, although nothing was known to be missing */
};

struct engine_stream {
        struct engine_stream_options options;
        enum engine_stream_state state;
        bool trusted, deaf;
        bool known;        /* `next` means something */
        bool complete;     /* what is known to be held is not missing old stores */
        uint64_t next;     /* number of the first batch not applied */
        uint64_t since_ns; /* of the state */
        uint64_t heard_ns; /* a live batch came; 0: never */
        struct engine_stream_counters counters;
        /* ---- of the replay ---- */
        bool anchored; /* it begins with a batch that is known */
        bool replied, checking, holding;
        bool unproven; /* since a reconnect nothing showed that it is the same process */
        bool answers;  /* the last replay was answered */
        unsigned tries, deaf_checks;
        uint64_t progress_ns, held_first, held_last, found;
        uint64_t prints[ENGINE_STREAM_PRINTS]; /* 0: not known */
};

void engine_stream_init(struct engine_stream *stream, const struct engine_stream_options *options);
/* The subscription is open (or open again after the connection was lost). */
struct engine_stream_todo engine_stream_opened(struct engine_stream *stream, uint64_t now_ns);
/* The connection was lost: no restart by itself. Held batches are dropped. */
struct engine_stream_todo engine_stream_lost(struct engine_stream *stream, uint64_t now_ns);
/*
 * A live batch. `print` is a hash of its payload, by which a repetition is told from
 * another batch of the same number.
 */
struct engine_stream_todo engine_stream_batch(struct engine_stream *stream, uint64_t seq, uint64_t print,
                                              uint64_t now_ns);
/* One that was held, told again after the replay: what the replay had already is passed over. */
struct engine_stream_todo engine_stream_held(struct engine_stream *stream, uint64_t seq, uint64_t print,
                                             uint64_t now_ns);
/* A reply of the replay, and its end. answered: the end marker came, not a time limit or an error. */
struct engine_stream_todo engine_stream_replayed(struct engine_stream *stream, uint64_t seq, uint64_t print,
                                                 uint64_t now_ns);
struct engine_stream_todo engine_stream_replay_end(struct engine_stream *stream, bool answered,
                                                   uint64_t now_ns);
/* The batch just applied could not be read, so what it told is lost; or held ones had to be dropped. */
struct engine_stream_todo engine_stream_unreadable(struct engine_stream *stream, uint64_t now_ns);
/* The engine was seen to restart by another sign (a refused connection, another address). */
struct engine_stream_todo engine_stream_restarted(struct engine_stream *stream, uint64_t now_ns);
/* Its cache was emptied on purpose, through this router. */
struct engine_stream_todo engine_stream_cleared(struct engine_stream *stream);
/* Time passes: call it some times a second. */
struct engine_stream_todo engine_stream_tick(struct engine_stream *stream, uint64_t now_ns);

#endif
