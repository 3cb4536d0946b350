/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plain reference model: routing rules judged by cache hits and by a queue, without an engine, without
 * the router, and without a number that could be tuned. Another program that follows these definitions
 * gives the same figures to the last digit.
 *
 *   order    rows by time, ties in file order, one at a time; a prompt's blocks are cached as soon as it
 *            is routed
 *   match    m(r): leading ids of the prompt that replica r holds
 *   cache    per replica an LRU set of `capacity` ids. After routing the prompt's ids are touched from last
 *            to first, then the least recent ids are dropped until the capacity is kept: what a block
 *            builds on outlives it, and m can be found by bisection
 *   work     L(r): blocks computed so far on r, the sum of (length - m)
 *
 * With a queue each replica is a server that computes block_tokens * (length - m) tokens at a fixed rate,
 * first come first served, and answers nothing; a rule sees W(r), the seconds until r is idle, and q(r),
 * the requests that have not finished there. The rate is such that without any cache the work offered
 * would be `load` times what the replicas can do.
 *
 * Ties go to the lowest number where the table says nothing else.
 */
#ifndef KVROUTE_SIM_REPLAY_H
#define KVROUTE_SIM_REPLAY_H

#include "trace.h"

#define SIM_REPLAY_REPLICAS_MAX 1024u
#define SIM_REPLAY_CAPACITY_MAX (1u << 28) /* blocks of a cache; 0 is one without limit */

/* name, works without a queue, works with one, what it does */
#define SIM_REPLAY_POLICY_LIST(X)                                                                       \
        X(RR, "rr", true, true, "request i to replica i mod R")                                         \
        X(LL, "ll", true, true, "least work; with a queue the least backlog")                           \
        X(HASH2, "hash2", true, true, "by the hash of the second block")                                \
        X(CHWBL, "chwbl", false, true, "hash2, going on while a replica has over 1.25 times its share") \
        X(LPM, "lpm", true, true, "longest match, then least work or backlog")                          \
        X(LPM50, "lpm50", true, true, "lpm if the match covers half of the prompt, else ll")            \
        X(LPM50_WORK, "lpm50+", false, true, "lpm50 with ties to the least recent work")                \
        X(COST, "cost", true, false, "least work with this prompt included")                            \
        X(COST_T, "cost_t", false, true, "soonest end of this prompt's computation")                    \
        X(COST_T_WORK, "cost_t+", false, true, "cost_t with ties to the least recent work")             \
        X(GUARDED, "guarded", false, true,                                                              \
          "lpm above 0.3, shortest queue otherwise or when 64 and 1.5 apart")                           \
        X(LMETRIC, "lmetric", false, true, "least product of tokens to compute and requests there")     \
        X(TOLL, "toll", false, true, "the rule of kv in its plain form")                                \
        X(TOLL_HOME, "toll_home", false, true, "toll with homes, whose worth is learned")               \
        X(TOLL_COUNT, "toll_count", false, true, "toll, waits in requests where caches are starved")    \
        X(KV, "kv", false, true, "kvroute's own policy, with its own books and its own index")          \
        X(POOLED, "pooled", true, false, "one cache as large as all together: a ceiling")               \
        X(IDEAL, "ideal", true, false, "one cache without limit: what the trace has in common")

enum sim_replay_policy {
#define SIM_REPLAY_ENUM(id, name, plain, queue, help) SIM_REPLAY_##id,
        SIM_REPLAY_POLICY_LIST(SIM_REPLAY_ENUM)
#undef SIM_REPLAY_ENUM
                SIM_REPLAY_POLICIES,
};

const char *sim_replay_policy_name(enum sim_replay_policy policy);
const char *sim_replay_policy_help(enum sim_replay_policy policy);
bool sim_replay_policy_fits(enum sim_replay_policy policy, bool queue);
bool sim_replay_policy_find(const char *name, enum sim_replay_policy *ret);

/*
 * A trace whose ids are numbered in the order of their first use. Immutable once made: any number of threads
 * may replay it at once. 4 bytes per id, and 12 bytes per distinct id while it is made.
 */
struct sim_replay;
/* Borrows the trace, which must outlive it. NULL: out of memory. */
KVR_MUST_USE struct sim_replay *sim_replay_new(const struct sim_trace *trace);
void sim_replay_free(struct sim_replay *replay);
uint32_t sim_replay_distinct(const struct sim_replay *replay);
/*
 * The median time between two uses of one block, over all uses but the first of each, at the trace's own pace; NAN:
 * none is used twice. 8 bytes per distinct id and 4 per id meanwhile. False: out of memory.
 */
KVR_MUST_USE bool sim_replay_reuse(const struct sim_replay *replay, double *ret_s);

struct sim_replay_options {
        enum sim_replay_policy policy;
        uint32_t replicas;
        uint32_t capacity_blocks; /* of each; 0: no limit */
        double load;              /* 0: no queue */
        double speed;             /* with a queue: arrivals come so many times faster; 0: 1 */
        /* kv only */
        uint32_t routers; /* row i is decided by router i mod routers; each knows its own only. 0: 1 */
        double told;      /* caches are said to be so many times as large as they are; 0: 1 */
        double report_s;  /* between two reports of requests running and waiting; 0: none */
};

struct sim_replay_result {
        double block_hit, token_hit, request_hit; /* shares of blocks, tokens, and of requests with a hit */
        double request_max_over_mean, request_cv; /* over replicas, of requests ... */
        double work_max_over_mean, work_cv;       /* ... and of blocks computed */
        double hot_p95;             /* of the blocks computed, see replay_windows.h; NAN without any */
        uint64_t dropped, resident; /* blocks evicted, and held at the end */
        /* with a queue */
        double rate;                                    /* tokens per second of one replica */
        double ttft_mean, ttft_p50, ttft_p90, ttft_p99; /* the p-th of n sorted values is number floor(p n) */
        double busy_mean, busy_max;                     /* of the trace's time */
};

/*
 * One replay. Memory: 8 bytes per distinct id and 64 replicas, 4 bytes per distinct id and replica, 16 bytes
 * per block of capacity and replica, 20 bytes per row. False: out of memory.
 */
KVR_MUST_USE bool sim_replay_run(const struct sim_replay *replay, const struct sim_replay_options *options,
                                 struct sim_replay_result *ret);

#define SIM_REPLAY_SPEED_MIN 0.25
#define SIM_REPLAY_SPEED_MAX 16.0

/*
 * The greatest speed-up of the arrivals, between the limits above and found by nine bisections of its
 * logarithm, at which the 90th percentile of the time to first token is at most ttft_s; *ret_speed 0 when
 * even the least is too fast. options->speed is ignored, ret is the run at that speed.
 */
KVR_MUST_USE bool sim_replay_capacity(const struct sim_replay *replay,
                                      const struct sim_replay_options *options, double ttft_s,
                                      double *ret_speed, struct sim_replay_result *ret);

#endif
