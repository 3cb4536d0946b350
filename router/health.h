/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a replica may get requests, judged by its traffic first and by probes second. Pure: events and
 * times in, state out; the caller holds whatever lock protects the struct.
 *
 *                  probe ok                        fall × probe failure without recent traffic,
 *     STARTING ───────────────► READY ──────────── fall × traffic failure in a row, or a stall ──┐
 *                                 ▲ ▲                                                            ▼
 *        one request (or probe    │ └──────── rise × probe ok, when probes took it down ─────── DOWN ◄─┐
 *        inference) answered      │                                                              │     │
 * trial failed: TRIAL ◄──── back-off over and it cannot be probed by inference ──┘     │ back-off doubles
 *                                 └────────────────────────────────────────────────────────────────────┘
 *
 * An engine that answers health checks while its requests fail or hang is taken down by traffic, and health
 * answers alone never bring it back: only an answered request does. DRAINING is set and lifted by the
 * operator and beats all others.
 */
#ifndef KVROUTE_ROUTER_HEALTH_H
#define KVROUTE_ROUTER_HEALTH_H

#include <kvroute/router.h>

#define HEALTH_BACKOFF_FIRST_MS 500
#define HEALTH_BACKOFF_MAX_MS   4000

struct health_limits {
        unsigned fall;             /* failures in a row that take it down */
        unsigned rise;             /* good probes in a row that bring it back */
        uint64_t proof_of_life_ns; /* bytes from it within this time outweigh failing probes */
};

struct health {
        enum kvr_state state;
        bool draining;
        bool by_traffic;       /* why it is DOWN */
        bool refused_since_ok; /* its port refused connections: the process was gone, and with it the cache */
        unsigned failures;     /* traffic, in a row */
        unsigned probe_failures, probe_successes;
        uint64_t retry_at_ns;
        uint64_t backoff_ms;
        const char *why; /* constant text: the last reason for going down */
};

enum health_failure {
        HEALTH_REFUSED, /* connection refused or unreachable */
        HEALTH_RESET,   /* closed or reset before or during an answer */
        HEALTH_TIMEOUT, /* connect or first-byte limit */
        HEALTH_ERROR,   /* 5xx other than back-pressure */
        HEALTH_STALL,   /* requests wait there and nothing comes */
};
const char *health_failure_name(enum health_failure failure);

void health_init(struct health *health);

/* Each returns true if the state changed. */
bool health_probe_ok(struct health *health, const struct health_limits *limits);
/* starting: the engine itself says that it is not ready yet (503 while loading): no failure, but no readiness
 * either. */
bool health_probe_failed(struct health *health, const struct health_limits *limits, bool refused,
                         bool starting, uint64_t last_byte_ns, uint64_t now_ns);
bool health_traffic_ok(struct health *health);
bool health_traffic_failed(struct health *health, const struct health_limits *limits,
                           enum health_failure failure, uint64_t now_ns);
/* Time passes: DOWN by traffic becomes TRIAL when its back-off is over. */
bool health_tick(struct health *health, uint64_t now_ns);
bool health_drain(struct health *health, bool draining);
/* It has no address: nothing can be sent there, whatever was known before. */
bool health_lost(struct health *health, const char *why);
/* It has its first address. */
bool health_found(struct health *health, const char *why);
/*
 * Another process is there now (another address): everything begins anew, but what the operator said, and
 * that it is down: two addresses that take turns must not look like one that is just starting.
 */
bool health_begin_anew(struct health *health, const char *why);
/* It answers, and must not get requests all the same. */
bool health_withhold(struct health *health, const char *why);

/* What the library should be told: DRAINING beats the rest. */
enum kvr_state health_state(const struct health *health);
/* True once after the process was gone: its cache must be forgotten. */
bool health_take_restart(struct health *health);

#endif
