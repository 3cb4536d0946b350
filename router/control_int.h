/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the control side share:
 *
 *   control.c        the tick, requests to replicas, replicas that come and go
 *   control_resolve.c the addresses behind host names
 *   control_setup.c  which engine a replica runs, its models
 *   control_health.c health checks, trials, stalls
 *   control_load.c   what its engine says of its load
 *   control_events.c where its KV cache events come from
 *   control_watch.c  alarms: what has quietly stopped to work
 *
 * Everything here belongs to the control thread.
 */
#ifndef KVROUTE_ROUTER_CONTROL_INT_H
#define KVROUTE_ROUTER_CONTROL_INT_H

#include "control.h"
#include "engine/detect.h"
#include "net/client.h"
#include "proto/text.h"
#include "watch.h"

#define PROBE_POLL_TIMEOUT_MS 5000
#define PROBE_GROUPS          4 /* groups of polled pages of one engine */

/* What a request is for; at most one of each per replica runs. */
enum job {
        JOB_SETUP,
        JOB_HEALTH,
        JOB_LOAD,
        JOB_TRIAL,
        JOB_EVENTS, /* where they are, or the events themselves */
        JOB_COUNT,
};

struct probe;
struct lookup; /* control_resolve.c */

struct probe_job {
        struct probe *probe;
        struct net_request *request; /* NULL: idle */
        uint64_t due_ms;
        struct text body;
        char server[64]; /* value of the Server field */
};

struct probe {
        struct control *control;
        struct target *target;
        struct probe *next;
        bool gone;
        struct lookup *lookup;     /* of its host name, under way; or NULL */
        uint64_t resolve_due_ms;   /* the next one */
        uint64_t resolve_soon_ms;  /* not before, even if a connection failed */
        unsigned resolve_failures; /* in a row */
        bool resolved;             /* it has an address */
        bool said_several;
        struct probe_job jobs[JOB_COUNT];
        struct engine_detect detect;
        bool detected, models_read;
        char models_version[ENGINE_VERSION_MAX]; /* of the engine, when its models were read last */
        char no_models[160];       /* why it must not get requests although it is healthy, or empty */
        uint64_t healthy_since_ms; /* of the first good answer */
        unsigned health_path;
        /* load */
        struct engine_load load;
        uint8_t page[PROBE_GROUPS];    /* index into polls of the one in use, per group */
        bool group_dead[PROBE_GROUPS]; /* no page of the group works there */
        unsigned group;                /* being polled in this round */
        unsigned round;
        uint64_t poll_start_ns;
        uint64_t load_at_ns; /* start of the last poll that told the load; 0: none since the engine was found
                              */
        bool load_known;
        char load_error[96];
        bool suspect;                 /* the running trial decides whether it hangs */
        bool trial_by_chat;           /* it has no /v1/completions */
        struct kvr_replica_spec told; /* what the library was told last */
        struct watch watch;
        /* events */
        bool events_followed;
        struct events_source events_source;
        unsigned restarts_passed, clears_passed; /* of the target's counts, told to the event thread */
        uint64_t events_show_ms;
        char events_why[EVENTS_ERROR_MAX]; /* why they are not followed, or empty */
};

/* A removed replica whose answers still run. */
struct leaving {
        struct target *target;
        uint64_t due_ms; /* UINT64_MAX: no limit */
        struct leaving *next;
};

struct control {
        struct leaving *leaving;
        struct control_options options;
        const struct router_config *config;
        struct net_client *client;
        struct fleet_snapshot *fleet;
        struct probe *probes;
        struct lookup *lookups; /* under way */
        unsigned lookup_count;
        struct watch watch;
        struct adapters_side *adapters; /* NULL: none */
        bool was_ready;                 /* some replica, at some time */
        uint64_t watch_due_ms;
        uv_timer_t tick;
};

static inline const struct engine_traits *probe_traits(const struct probe *probe)
{
        return engine_traits((enum engine_kind)atomic_load(&probe->target->engine));
}

static inline const char *probe_name(const struct probe *probe)
{
        return probe->target->spec.name;
}

/* ---- control.c ---- */
/* Sends the request of one job; its answer comes to the function of that job below. body is borrowed. */
void probe_send(struct probe *probe, enum job number, const char *method, const char *path,
                struct kvr_slice body, uint32_t timeout_ms, size_t body_max);

/* Another process is there now: what runs is cancelled, and everything is asked again. */
void probe_begin_anew(struct probe *probe);

/* ---- control_resolve.c ---- */
/* Asks for the addresses that are due. */
void control_resolve(struct control *control, uint64_t now_ms);
/* Nobody waits for it any more. */
void probe_drop_lookup(struct probe *probe);
void control_drop_lookups(struct control *control);

/* ---- control_setup.c ---- */
/* The next question of finding out what it is. */
void probe_setup(struct probe *probe, uint64_t now_ms);
void probe_setup_done(struct probe *probe, unsigned status, struct kvr_slice body, uint64_t now_ms);
/* Healthy, and yet of no use: its model list is empty, or not where its kind has it (probe->no_models). */
bool probe_serves_nothing(const struct probe *probe);
/* Tells the library what is configured or known of the cache, if that is news. */
void probe_tell_library(struct probe *probe);

/* ---- control_health.c ---- */
void probe_health(struct probe *probe, uint64_t now_ms);
void probe_health_done(struct probe *probe, enum net_request_error error, unsigned status,
                       struct kvr_slice body, uint64_t now_ms);
bool probe_trial_due(struct probe *probe);
void probe_trial(struct probe *probe);
void probe_trial_done(struct probe *probe, enum net_request_error error, unsigned status);
/* Starts a trial where requests wait for too long. */
void probe_look_for_stall(struct probe *probe);

/* ---- control_load.c ---- */
/* Begins anew: another engine, or another run of it, is there now. */
void probe_start_polling(struct probe *probe);
void probe_load(struct probe *probe, uint64_t now_ms);
void probe_load_done(struct probe *probe, enum net_request_error error, unsigned status,
                     struct kvr_slice body, uint64_t now_ms);
/* What the engine said of this replica: of its rank, where it is one; else the sum over all. */
const struct engine_rank_load *probe_rank_load(const struct probe *probe);
/* Its engine tells its load somewhere, and we ask. */
bool probe_load_expected(const struct probe *probe);

/* ---- control_events.c ---- */
void probe_events(struct probe *probe, uint64_t now_ms);
void probe_events_done(struct probe *probe, enum net_request_error error, unsigned status,
                       struct kvr_slice body, uint64_t now_ms);
/* The replica is gone. */
void probe_events_gone(struct probe *probe);
/* It is to tell its cache by events: it is configured so, or says itself that it does. */
bool probe_events_expected(const struct probe *probe);
/* And somebody relies on it: it is configured so, or has told some. */
bool probe_events_promised(const struct probe *probe, const struct events_view *view);
/* False: it is not followed (yet). */
bool probe_events_view(const struct probe *probe, struct events_view *ret);
/* What is wrong with its events, "" for nothing. */
void probe_events_text(const struct probe *probe, char *ret, size_t size);

/* ---- control_watch.c ---- */
/* Looks at everything, when it is time to. */
void control_watch(struct control *control, uint64_t now_ms);
/* The replica is gone, and so are its alarms. */
void control_watch_drop(struct probe *probe);

#endif
