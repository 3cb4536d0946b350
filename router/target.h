/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The replicas as the program knows them: where they are, how to talk to them, how they are doing. One
 * `struct target` per replica, counted references, shared by all threads; `struct fleet` is the set of them.
 *
 * Threads: a worker works on an immutable snapshot and looks once per request whether there is a newer one
 * (one atomic load). Fields of a target above the line are fixed when it is made; below it they are atomics
 * or guarded by its lock.
 */
#ifndef KVROUTE_ROUTER_TARGET_H
#define KVROUTE_ROUTER_TARGET_H

#include <kvroute/router.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

#include "engine/models.h"
#include "health.h"
#include "replica_spec.h"
#include "shadow.h"

struct target {
        kvr_replica_id id;
        struct replica_spec spec; /* as configured */
        char *url;                /* for people: scheme, authority, prefix */
        bool named;               /* its host is a name, which the control thread resolves again and again */
        enum replica_auth auth;   /* never AUTO */
        char *key;                /* with REPLICA_AUTH_REPLACE, and for probes; NULL: none */
        /* ---- may change while it is in use ---- */
        atomic_int engine;          /* enum engine_kind: as configured, else as detected */
        atomic_bool reports_cached; /* its answers are known to tell cached tokens */
        atomic_uint refs;
        atomic_uint addr_version; /* raised with each new address; connections of older ones are not reused */
        atomic_bool resolve_wanted; /* a connection failed: its name may stand for another address now */
        bool by_api; /* added by the admin API, not by the configuration; control thread only */
        atomic_bool removed;
        atomic_bool abandoned; /* removed, and its time to drain is over */
        atomic_uint restarts;  /* times its process was seen to be another one */
        atomic_uint clears;    /* times its cache was emptied through this router */
        atomic_uint streams;   /* exchanges that use it now */
        atomic_uint waiting;   /* requests sent there without a byte of answer */
        atomic_ullong waiting_since_ns, last_byte_ns;
        atomic_ullong stalled_ns; /* when it was last found hanging: requests sent before, without a byte,
                                     should move */
        atomic_ullong stray_ms;   /* when it last sent bytes nobody asked for (net_now_ms), 0: never */
        atomic_bool well;         /* ready and without a failure: another good answer changes nothing */
        atomic_int shown_state;   /* enum kvr_state as last told to the library: a cheap look for workers */
        pthread_mutex_t lock;
        struct health health;         /* under lock */
        struct engine_models *models; /* under lock: its last /v1/models answer, or NULL */
        char health_error[160];       /* under lock: why the last probe failed, or "" */
        bool has_addr;                /* under lock */
        struct sockaddr_storage addr; /* under lock; valid with has_addr */
        char resolve_error[128];      /* under lock: why its name was not resolved the last time, or "" */
};

struct fleet_snapshot {
        atomic_uint refs;
        uint64_t version;
        size_t count;
        struct target *targets[]; /* in order of addition */
};

struct fleet {
        struct kvr_router *router;
        struct shadow *shadow; /* told the same as the router; NULL: none */
        struct health_limits limits;
        pthread_mutex_t lock; /* of `current` */
        struct fleet_snapshot *current;
        atomic_ullong version;
        void (*on_state)(void *ctx, struct target *target, enum kvr_state from, enum kvr_state to,
                         const char *why);
        void *ctx;
};

KVR_MUST_USE bool fleet_init(struct fleet *fleet, struct kvr_router *router,
                             const struct health_limits *limits);
void fleet_fini(struct fleet *fleet); /* every snapshot given back before */

/*
 * Makes a target, adds it to the library and publishes it. auth and key (borrowed, may be NULL) are what the
 * configuration says for it. A host that is a name gets its address later (control_resolve.c). Control thread
 * only.
 */
KVR_MUST_USE enum kvr_status fleet_add(struct fleet *fleet, const struct replica_spec *spec,
                                       enum replica_auth auth, const char *key, bool by_api,
                                       struct kvr_error *err);
/* Whether that is its name, or that of the URL of which it is one rank. */
bool target_is_called(const struct target *target, const char *name);
/*
 * Nothing new goes there at once; running streams end as they would. The name of a URL with several ranks
 * removes them all. false: no such name.
 */
bool fleet_remove(struct fleet *fleet, const char *name);

/* The current snapshot, with a reference for the caller. */
struct fleet_snapshot *fleet_snapshot(struct fleet *fleet);
void fleet_snapshot_unref(struct fleet_snapshot *snapshot);
/* Replaces *held (may be NULL) by the current one if that is newer. */
void fleet_refresh(struct fleet *fleet, struct fleet_snapshot **held);
struct target *fleet_snapshot_find(const struct fleet_snapshot *snapshot, kvr_replica_id id);
/* The one of that name, or NULL. */
struct target *fleet_snapshot_named(const struct fleet_snapshot *snapshot, const char *name);

/* Whether some replica may get requests. */
bool fleet_is_ready(const struct fleet_snapshot *snapshot);
/* The union of the replicas' model lists, aliases included. Gives JSON text to free(). */
struct router_config;
KVR_MUST_USE enum kvr_status fleet_merge_models(const struct fleet_snapshot *snapshot,
                                                const struct router_config *config, char **ret_json,
                                                size_t *ret_len);
/* Whether it is an adapter of another model, by the replicas' lists. */
bool fleet_has_adapter(const struct fleet_snapshot *snapshot, struct kvr_slice model);
/* Appends the models known in the fleet, each once, at most `max` of them: " a, b, ...". */
struct text;
void fleet_list_models(const struct fleet_snapshot *snapshot, struct text *ret, size_t max);

struct target *target_ref(struct target *target);
void target_unref(struct target *target);

/* Health events; each tells the library about a changed state. Any thread. */
void target_probe_ok(struct fleet *fleet, struct target *target);
void target_probe_failed(struct fleet *fleet, struct target *target, bool refused, bool starting,
                         const char *why, uint64_t now_ns);
void target_traffic_ok(struct fleet *fleet, struct target *target);
void target_traffic_failed(struct fleet *fleet, struct target *target, enum health_failure failure,
                           uint64_t now_ns);
void target_tick(struct fleet *fleet, struct target *target, uint64_t now_ns);
void target_drain(struct fleet *fleet, struct target *target, bool draining);
/* It answers probes, but something says that it cannot serve: why is a constant, detail is copied. */
void target_withhold(struct fleet *fleet, struct target *target, const char *why, const char *detail);

/*
 * Where to connect to. False: its name has not been resolved yet. ret_version (may be NULL) tells this
 * address from those before and after it. Any thread.
 */
KVR_MUST_USE bool target_address(struct target *target, struct sockaddr_storage *ret, unsigned *ret_version);
/*
 * Its name stands for this address now; a new one means another process: what was believed of the cache is
 * void, and its health begins anew. Returns whether it is new. Control thread only.
 */
bool target_set_address(struct fleet *fleet, struct target *target, const struct sockaddr_storage *addr);
/* Its name cannot be resolved: the last address stays in use; without one it is down. Control thread only. */
void target_unresolved(struct fleet *fleet, struct target *target, const char *error);
/*
 * Target and header fields of a request of the router's own, as net_request_send wants them; text_free both.
 * `credentials` are rendered fields that stand in place of its key; NULL: its key. False: out of memory.
 */
struct text;
KVR_MUST_USE bool target_request(const struct target *target, const char *path, const char *credentials,
                                 bool has_body, struct text *ret_path, struct text *ret_headers);
/* "10.0.0.11:8000", "[::1]:8000" */
void target_address_text(const struct sockaddr_storage *addr, char *ret, size_t size);

#endif
