/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rung of the ladder of routing rules, played through a trace: the caches and the queue of the reference
 * model (replay.h), decided by one of its rules or by the router's own brain, which is told what a proxy
 * would tell it: the request, its first token, the tokens that were cached. Beside the figures of the
 * reference model it prices each hit with the preset, because a late token costs more than an early one, and
 * counts who had to wait.
 */
#ifndef KVROUTE_SIM_ANALYZE_RUN_H
#define KVROUTE_SIM_ANALYZE_RUN_H

#include "cost.h"
#include "replay.h"

struct sim_rung_options {
        const char *brain;           /* a policy of the router; NULL: `rule` decides */
        enum sim_replay_policy rule; /* one with a queue */
        uint32_t replicas, capacity_blocks;
        double load;  /* at speed 1: work offered, were nothing cached, over what replicas can do; > 0 */
        double speed; /* arrivals come so many times faster; > 0 */
        const struct sim_cost *cost;
        /* > 0: a run whose 90th percentile is bound to be above this ends early, with `over` set */
        double ttft_limit_s;
        bool spread_idle; /* of those with equal backlogs the one that has done least, instead of the first */
};

struct sim_rung_spread {
        double max_over_mean, cv, jain,
                hot_p95; /* hot_p95: of windows, see replay_windows.h; NAN without any */
};

struct sim_rung_result {
        bool over; /* ended early: nothing below is set */
        double token_hit, block_hit, request_hit;
        double hit_tokens, prompt_tokens;
        double none_s,
                saved_s; /* prefill seconds of one replica: were nothing cached, and what hits took off */
        double ttft_mean, ttft_p50, ttft_p90, ttft_p99;
        double busy_mean, busy_max;
        double own_p90;       /* of the requests' own computation, without any wait */
        double waited;        /* share of requests that found their replica busy */
        double predicted_off; /* of a brain: tokens its predictions were wrong by, over prompt tokens */
        struct sim_rung_spread requests, work; /* over replicas: of requests, and of blocks computed */
        double state_bytes;                    /* of the brain's index at the end; 0 for a rule */
};

/* Prefill seconds of the whole trace on one replica, prompts alone and nothing cached. */
double sim_rung_work_s(const struct sim_trace *trace, const struct sim_cost *cost);

/*
 * Deterministic. ret_share gets options->replicas shares, or is NULL. False: message says why (out of memory,
 * or what the brain said).
 */
KVR_MUST_USE bool sim_rung_run(const struct sim_replay *replay, const struct sim_rung_options *options,
                               double *ret_share, struct sim_rung_result *ret, char *message,
                               size_t message_size);

/* Limits of the search below, in units of load. */
#define SIM_RUNG_LOAD_MIN 0.25
#define SIM_RUNG_LOAD_MAX 16.0

/*
 * The greatest speed-up of the arrivals at which the 90th percentile of the time to first token is at most
 * ttft_s: nine bisections of the logarithm of the load between the limits above, as sim_replay_capacity does
 * it. *ret_speed 0: even the least load is too much. *ret_open: nothing that was tried was too much, so it is
 * the highest tried and no measure of what would be. options->speed is ignored. *progress grows by
 * SIM_RUNG_CAPACITY_RUNS.
 */
#define SIM_RUNG_CAPACITY_RUNS 10u
KVR_MUST_USE bool sim_rung_capacity(const struct sim_replay *replay, const struct sim_rung_options *options,
                                    double ttft_s, _Atomic uint64_t *progress, double *ret_speed,
                                    bool *ret_open, char *message, size_t message_size);

#endif
