/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fleet in virtual time: the requests of a trace, the router's own brain (the functions of libkvroute that
 * serve), and engines (engine.h, the model behind `kvroute mock`).
 *
 *     trace ──arrival──► choose ──► engine: queue, batches, chunks, cache ──► first token, end ──► settle
 *                          ▲                                                        │
 *                          └── load reports, every report_s ◄───────────────────────┘
 *
 * Everything that happens has a time in nanoseconds. What happens at one instant is done in this order:
 * engines (lowest number first), engines' messages, load reports, replicas that are lost, that come back, that
 * restart, arrivals (order of the trace). Chance comes from the seed, so equal options give equal results,
 * whatever runs beside them.
 */
#ifndef KVROUTE_SIM_DES_H
#define KVROUTE_SIM_DES_H

#include "cost.h"
#include "des_rules.h"
#include "replay.h"
#include "slots.h"
#include "stats.h"
#include "trace.h"

#include <stdatomic.h>

#define SIM_DES_REPLICAS_MAX   1024u
#define SIM_DES_ROUTERS_MAX    64u
#define SIM_DES_CAPACITY_MAX   (1u << 24) /* blocks of one cache */
#define SIM_DES_REPORTS_MAX    10000u     /* on their way to the routers at a time */
#define SIM_DES_BUFFER_DEFAULT 10000u     /* messages: vLLM's buffer_steps */

/* What became of a row. */
struct sim_des_record {
        double arrival_s;     /* after the first arrival, in virtual time */
        double ttft_s, e2e_s; /* NAN: rejected or failed */
        uint32_t replica, predicted, cached;
};

/*
 * A replica is lost with all that it computes and holds, and comes back empty. Routers know at once. A restart
 * takes no time, and routers are not told: they find out by what the engine says, if it says anything.
 */
struct sim_des_outage {
        uint32_t replica;
        double from_s, to_s; /* virtual time after the first arrival; to_s 0: for good */
        bool restart;        /* at from_s; to_s is not used */
};

struct sim_des_options {
        const char *policy;              /* one of kvr_policy_name or sim_des_rule_name */
        const struct sim_replay *replay; /* of the trace; needed by rules and the oracle, else NULL */
        uint32_t replicas;
        uint32_t routers; /* request i is decided by router i mod routers; each knows its own only. Rules have
                             one */
        uint32_t capacity_blocks; /* of each engine, in blocks of the trace */
        double speed;             /* arrivals come so many times faster */
        struct sim_cost cost;
        const double
                *speeds; /* of replicas, repeated over the fleet; rules of other routers know only cost */
        uint32_t speed_count; /* 0: all 1 */
        double processors; /* that all replicas share: of more that compute at once each is slower; 0: its own */
        uint32_t step_tokens, max_running;
        uint32_t slots; /* of each engine, which is then a llama.cpp server; 0: blocks as in vLLM */
        uint32_t slot_memory_blocks; /* with slots: what its host memory holds, in blocks of the trace */
        double report_s;             /* between two load reports of an engine; 0: none */
        double report_delay_s;       /* from when a report is true to when routers have it */
        bool events; /* routers go by what engines say they hold; not with slots, rules, token_ids */
        bool oracle; /* they know what engines hold at that very moment; the same, and not with events */
        double events_delay_s;  /* from the end of a step to when routers hear what it stored and gave away */
        double events_lost;     /* share of these messages that a router does not get */
        double events_replay_s; /* from when it asks for what is missing to when it has it; 0: it cannot */
        double events_relearn_s; /* without a fault, then an untrusted engine's events are trusted; 0: 30 s */
        uint32_t events_buffer;  /* messages that an engine keeps; 0: SIM_DES_BUFFER_DEFAULT */
        bool token_ids; /* prompts go through the parser as a body of token ids, as they would in the proxy */
        bool sessions;  /* the router is told the session */
        bool closed_loop; /* a session's next request waits for the answer, then for the trace's pause */
        const struct sim_des_outage *outages; /* not with rules */
        uint32_t outage_count;
        uint64_t seed;
        struct sim_des_record *records; /* one per row, filled in; NULL: not wanted */
};

struct sim_des_result {
        uint64_t requests, rejected; /* finished; too large for an engine */
        uint64_t failed, retried; /* lost with their replica, or nowhere to go; sent again to another one */
        uint64_t prompt_tokens, cached_tokens, predicted_tokens;
        uint64_t blocks, cached_blocks, hits; /* whole blocks of prompts; requests with a hit */
        struct sim_samples ttft, tpot, e2e;   /* seconds; tpot per request, of its tokens behind the first */
        double request_max_over_mean, request_cv;  /* over replicas, of requests ... */
        double work_max_over_mean, work_cv;        /* ... and of prompt tokens computed */
        double hot_p95;                            /* of the same, see replay_windows.h; NAN without any */
        double busy_mean, busy_max;                /* share of the time to the last end */
        uint64_t evicted_blocks, preempted, steps; /* with slots: sequences lost instead of blocks */
        uint64_t overpredicted;        /* requests that were promised a block or more too much ... */
        uint64_t overpredicted_tokens; /* ... and how much */
        /* Of events, over all routers and engines: messages, holes found, replays asked for, views that were thrown
         * away, restarts that were noticed, and the share of time in which events were not trusted. */
        uint64_t messages, messages_lost, messages_replayed;
        uint64_t gaps, replays, clears, restarts_seen;
        double untrusted;
        double end_s; /* when the last answer ended, after the first arrival */
};

/*
 * Seconds of prefill that the trace asks of each replica, if nothing were cached, per second of the trace at
 * its own pace: the load at speed 1 of a fleet of that strength (sim_des_strength; equal replicas: their number).
 * Prompts are computed alone, in chunks of step_tokens.
 */
double sim_des_load(const struct sim_trace *trace, const struct sim_cost *cost, uint32_t step_tokens,
                    double strength);

/* What a fleet can do, in replicas as fast as cost says: see speeds, speed_count and processors. */
double sim_des_strength(const double *speeds, uint32_t speed_count, uint32_t replicas, double processors);

/*
 * With token_ids token j of a block is (id * block_tokens + j) modulo 2^31; the model is called "m".
 *
 * Runs a trace to the end of its last answer; *progress grows by one per row. False: message says why. *ret
 * is to be freed with sim_des_result_fini.
 *
 * Memory: 72 bytes per row and 24 per finished request; per block of capacity and replica 40 bytes in the
 * engine and at most 256 in the router's index (32 MiB at least, 4 GiB at most).
 */
KVR_MUST_USE bool sim_des_run(const struct sim_trace *trace, const struct sim_des_options *options,
                              _Atomic uint64_t *progress, struct sim_des_result *ret, char *message,
                              size_t message_size);
void sim_des_result_fini(struct sim_des_result *result);

#endif
