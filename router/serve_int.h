/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the serve command share:
 *
 *   serve.c        start, end
 *   serve_stop.c   the signals that ask for the end, and the way there
 *   serve_reload.c configurations that follow the first
 *   serve_shadow.c the shadow: made, ticked, spoken of
 *   host.c         what is asked of the operating system on the way
 */
#ifndef KVROUTE_ROUTER_SERVE_INT_H
#define KVROUTE_ROUTER_SERVE_INT_H

#include "admin.h"
#include "control.h"
#include "host.h"
#include "proxy.h"

/* A configuration that was once in force: kept until the end, as any thread may still be reading it. */
struct kept_config {
        struct router_config *config;
        struct kept_config *next;
};

struct server {
        int argc;
        char *const *argv;
        struct net_loop loop; /* of the control thread, which is the main one */
        struct kvr_router *router;
        struct shadow_clock clock; /* of the shadow, as a mirror also of the router */
        struct host_chance chance; /* with a seed */
        struct fleet fleet;
        struct proxy proxy;
        struct events *events;
        struct control *control;
        struct admin *admin;
        struct kept_config *configs;
        uv_signal_t term, interrupt, hangup;
        uv_timer_t drain_timer, delay_timer, shadow_timer, families_timer;
        uint64_t shadow_said; /* requests of the shadow when it was last spoken of */
        unsigned shadow_ticks;
        unsigned stop_signals;
        const char *access_log; /* as it was at the start: another one needs a restart */
        char ready[512];
};

/* ---- serve.c ---- */
/* A descriptor, or -1 with errno. */
int serve_open_access_log(const char *path);
/* Has all workers look at what is new. */
void serve_wake(struct server *server);

/* ---- serve_shadow.c ---- */
/* The real router's clock and chance. */
struct kvr_env serve_env(struct server *server, const struct router_config *config);
/* Bytes of the real router's index; the rest is the shadow's. */
uint64_t serve_index_bytes(const struct router_config *config);
/* Makes it if it is wanted; after the router. */
KVR_MUST_USE enum kvr_status serve_make_shadow(struct server *server, const struct router_config *config,
                                               struct kvr_error *err);
/* Its timer, on the control thread's loop. */
void serve_watch_shadow(struct server *server);
/* What it has found, at the end. */
void serve_unwatch_shadow(struct server *server);

/* ---- serve_stop.c ---- */
void serve_watch_stop(struct server *server);
void serve_unwatch_stop(struct server *server);
/* When every worker has ended: what was cut. */
void serve_say_stopped(struct server *server);

/* ---- serve_reload.c ---- */
/* Takes config; false when out of memory. */
KVR_MUST_USE bool serve_keep_config(struct server *server, struct router_config *config);
void serve_say_warnings(struct server *server, const struct router_config *config);
KVR_MUST_USE bool serve_add_replica(struct server *server, const struct router_config *config,
                                    const struct replica_spec *spec, struct kvr_error *err);
/* Reads the configuration anew; where it is wrong the old one stays, and it is said why. */
void serve_reload(struct server *server);

#endif
