/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The account of a router that ran, from its access log (kvroute serve --access-log): what was predicted,
 * what the engines reported, what another replica held. A log has no keys, so nothing can be played again:
 * there is no ladder, and a verdict only by work and only as a bound.
 */
#ifndef KVROUTE_SIM_ANALYZE_LOG_H
#define KVROUTE_SIM_ANALYZE_LOG_H

#include "access_log.h"
#include "analyze.h"
#include "replay_windows.h"

#define SIM_LOG_REPLICAS_MAX 1024u

struct sim_log_replica {
        char name[SIM_ACCESS_NAME_MAX];
        double requests, computed_tokens;
};

struct sim_log {
        const char *name; /* borrowed */
        double lines;
        double failed;          /* no answer, or refused */
        double requests;        /* answered, with a known prompt; everything below is of these */
        double first_s, last_s; /* when the first and the last answer ended, in seconds since 1970 */
        double prompt_tokens, observed_tokens, predicted_tokens;
        double unobserved_prompt_tokens; /* of requests whose engine did not tell */
        double hits;                     /* requests with any token from a cache */
        /* tokens, as in docs/ledger.md; they sum to prompt_tokens */
        double won, staleness, placement, workload;
        /* prefill seconds by the preset: without a cache, as it was, with each request's best match, and when
         * whoever holds it is met once in so many times as there are replicas */
        double none_s, now_s, best_s, blind_s;
        struct sim_samples ttft, queue;
        double prefix_bins[SIM_ACCOUNT_BINS]; /* requests by tokens from a cache */
        struct sim_log_replica *replicas;
        uint32_t replica_count;
        struct sim_rung_spread by_requests, by_work;
        double gain; /* share of prefill seconds that cache-aware routing takes off, at most */
        enum sim_verdict by_work_verdict;
};

/* Whether the first line looks like one of an access log. */
bool sim_log_is(const char *path);
/*
 * From and to as in the trace options, counted from the first line. False: message says why, nothing to free.
 */
KVR_MUST_USE bool sim_log_read(const char *path, const char *name, const struct sim_trace_options *stretch,
                               const struct sim_cost *cost, struct sim_log *ret, char *message,
                               size_t message_size);
void sim_log_fini(struct sim_log *log);

void sim_log_text(struct sim_log *log, struct sim_buf *buf);
void sim_log_json(struct sim_log *log, struct sim_buf *buf);

#endif
