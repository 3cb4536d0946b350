/* SPDX-License-Identifier: Apache-2.0 */
/* What a load measured, and how it is told: JSON in the fixed form of `kvroute bench --json`, and tables for
 * people. */
#ifndef KVROUTE_SIM_RESULT_H
#define KVROUTE_SIM_RESULT_H

#include "stats.h"
#include "trend.h"

#define SIM_REPLICAS_MAX 4096
#define SIM_SHARE_BINS   5

/* One finished request. Negative numbers: unknown. */
struct sim_outcome {
        unsigned status; /* 0: no answer */
        bool broken;     /* the answer was cut, or held an error */
        double ttft_s;   /* NAN: unknown */
        double e2e_s;
        int64_t prompt_tokens, cached_tokens, completion_tokens;
        int64_t predicted_tokens; /* x-kvroute-match-tokens */
        struct kvr_slice replica; /* x-kvroute-replica; empty: unknown */
};

struct sim_replica_share {
        char *name;
        uint64_t requests;
        uint64_t observed_requests, observed_prompt_tokens, observed_cached_tokens; /* answers that told */
};

/* Requests by the share of the prompt that was predicted to be cached: none, up to a quarter, ..., over three
 * quarters. */
struct sim_share_bin {
        uint64_t requests, prompt_tokens, predicted_tokens, observed_tokens;
        double error_tokens; /* sum of |predicted - observed| */
};

struct sim_result {
        uint64_t requests, errors, rejected; /* rejected: 429 and 503, not counted as errors */
        double duration_s;
        struct sim_samples ttft, itl, e2e;
        struct sim_samples late; /* open loop: sent after the intended time, wall-clock seconds */
        struct sim_trend
                trend; /* open loop: time to first token (no stream: whole answer) by intended time */
        uint64_t prompt_requests, prompt_tokens; /* answers that told the length of their prompt */
        uint64_t completion_tokens;
        uint64_t observed_requests, observed_prompt_tokens, observed_cached_tokens; /* answers that told */
        uint64_t unobserved_requests, unobserved_prompt_tokens;
        uint64_t predicted_requests, predicted_tokens;
        uint64_t predicted_prompt_tokens; /* of predicted requests that told their prompt's length, ... */
        uint64_t predicted_known_tokens;  /* ... and what was predicted for these */
        struct sim_share_bin bins[SIM_SHARE_BINS]; /* requests that have both figures */
        struct sim_replica_share *replicas;
        size_t replica_count;
        char first_error[256]; /* what the first failed request said */
};

void sim_result_fini(struct sim_result *result);
void sim_result_add(struct sim_result *result, const struct sim_outcome *outcome);
void sim_result_itl(struct sim_result *result, double seconds);
/* NAN: nothing was observed. */
double sim_result_hit_rate(const struct sim_result *result);
/* Whether latency still rose over the run: the load is more than the server takes. False: cannot be told. */
KVR_MUST_USE bool sim_result_growth(const struct sim_result *result, struct sim_growth *ret);
/* Requests of the busiest replica over the mean; NAN without replicas. `count` 0: of those seen. */
double sim_result_max_over_mean(const struct sim_result *result, size_t count);
/* The members of the JSON object, without braces: demo puts the policy in front. */
void sim_result_json(struct sim_result *result, struct sim_buf *buf);
/* The report of bench for people. */
void sim_result_text(struct sim_result *result, struct sim_buf *buf);

#endif
