/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What watches over the replicas, on the control thread's loop: finds out which engine each one is, reads its
 * models, capacity and load, probes its health, tries those that failed, notices those that hang. It speaks
 * to the rest only through target_* and kvr_replica_*.
 *
 * Per replica, all timed by one tick:
 *
 *     set-up   detect the engine, read /v1/models     until done, after each restart, and again every
 *                                                     MODELS_EVERY_MS
 *     health   the engine's health path               every health-interval, faster while it is not ready
 *     load     the engine's pages                     every metrics-interval
 *     trial    one token of inference                 while it is down because requests failed there
 *     stall    no clock of its own: bytes seen against requests waiting
 *     resolve  its host name, if it is one         every resolve-interval, and after failed connections
 *     watch    alarms (watch.h)                       every metrics-interval
 */
#ifndef KVROUTE_ROUTER_CONTROL_H
#define KVROUTE_ROUTER_CONTROL_H

#include "config.h"
#include "events.h"
#include "log.h"
#include "metrics.h"
#include "net/conn.h"
#include "target.h"
#include "tokens.h"

struct control;

struct control_options {
        struct net_loop *loop; /* kept */
        struct fleet *fleet;   /* kept */
        struct events *events; /* kept; NULL: engines' events are not listened to */
        struct metrics *metrics;
        struct logger *log;
        struct tokens *tokens;     /* kept; NULL: none */
        struct adapters *adapters; /* kept; NULL: none */
        unsigned metrics_thread;   /* number to count under */
        bool imagined;             /* the replicas are no engines: none is contacted, all are ready */
        /* A replica hangs (target->stalled_ns) or must be left (target->abandoned): requests there should
         * move. */
        void (*on_leave)(void *ctx);
        void *ctx;
};

KVR_MUST_USE struct control *control_new(const struct control_options *options,
                                         const struct router_config *config);
/* Takes new intervals from now on; config is kept until the next call. */
void control_set_config(struct control *control, const struct router_config *config);
/* The load report's age and engine text for status pages, false if the replica is not watched. */
struct control_view {
        enum engine_kind engine;
        char version[64];
        bool detected;
        bool load_expected;    /* it has a load page, and is polled */
        bool load_known;       /* that was understood at the last poll */
        double prefix_caching; /* 1 on, 0 off, as the engine says; negative: unknown */
        char load_error[96];   /* why load is not known, or empty */
        bool events_expected;  /* it is configured to tell its cache by events */
        bool events_followed;
        struct events_view events; /* events_followed */
        char events_text[256];     /* what is wrong with them, or empty */
};
/* Answers that run, at replicas and at those that were removed. */
unsigned control_running(const struct control *control);
bool control_view(const struct control *control, const struct target *target, struct control_view *ret);

#define CONTROL_ALARM_TEXT 512 /* bytes of an alarm's text */

/* An alarm that is raised now. */
struct control_alarm {
        const char *name;    /* constant */
        const char *replica; /* NULL: of the whole fleet */
        uint64_t since_ns;
        char text[CONTROL_ALARM_TEXT]; /* what is wrong, why that may be, what to do */
};
/*
 * Calls each() for the raised alarms of one replica, or of the fleet and all replicas where target is NULL.
 */
void control_alarms(const struct control *control, const struct target *target,
                    void (*each)(void *ctx, const struct control_alarm *alarm), void *ctx);
/*
 * Whether the system is still looking a name up, which cannot be cancelled: whoever waits for the loop's end
 * waits for a name server that may never answer.
 */
bool control_is_resolving(const struct control *control);
void control_free(struct control *control); /* cancels what runs */

#endif
