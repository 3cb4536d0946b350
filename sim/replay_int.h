/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caches of all replicas in one table. A bit per (id, replica) tells who holds what; a log per replica
 * holds its touches in order, of which only the last one of each id counts:
 *
 *     log of r   [ 7][ 3][ 9][ 7][ 2] ...      `last[r][id]` is the place (from 1) of the last touch
 *                  ^stale       ^counts
 *
 * Dropping the least recent id is a walk from the log's tail over stale places. That is cheaper than a linked
 * list: touches write in order, and a touch that repeats costs no more than a first one.
 */
#ifndef KVROUTE_SIM_REPLAY_INT_H
#define KVROUTE_SIM_REPLAY_INT_H

#include "replay.h"
#include "replay_windows.h"

struct sim_replay {
        const struct sim_trace *trace;
        uint32_t *ids; /* as trace->ids, numbered */
        uint32_t distinct;
        uint32_t longest; /* ids of a row */
};

struct sim__replay_log {
        uint32_t *ids, *last;
        uint32_t tail, head, count;
};

struct sim__replay_caches {
        uint32_t replicas, distinct, capacity, log_cap;
        uint32_t words;    /* of holders per id */
        uint64_t *holders; /* bit r of holders[id * words + r / 64] */
        struct sim__replay_log *logs;
        uint64_t dropped;
};

KVR_MUST_USE bool sim__replay_caches_init(struct sim__replay_caches *caches, const struct sim_replay *replay,
                                          uint32_t replicas, uint32_t capacity);
void sim__replay_caches_fini(struct sim__replay_caches *caches);
void sim__replay_caches_touch(struct sim__replay_caches *caches, uint32_t replica, const uint32_t *ids,
                              uint32_t count);
uint64_t sim__replay_caches_resident(const struct sim__replay_caches *caches);

static inline bool sim__replay_holds(const struct sim__replay_caches *caches, uint32_t id, uint32_t replica)
{
        return caches->holders[(size_t)id * caches->words + replica / 64] >> (replica % 64) & 1;
}

/* How many leading ids the replica holds, by bisection. */
static inline uint32_t sim__replay_match(const struct sim__replay_caches *caches, uint32_t replica,
                                         const uint32_t *ids, uint32_t count)
{
        uint32_t low = 1, high = count - 1;

        if (!sim__replay_holds(caches, ids[0], replica))
                return 0;
        if (sim__replay_holds(caches, ids[count - 1], replica))
                return count;
        while (low < high) {
                uint32_t middle = (low + high) / 2;

                if (sim__replay_holds(caches, ids[middle], replica))
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

/* One replica's sums, and what a rule may look at. */
struct sim__replay_server {
        uint64_t work;     /* blocks computed so far */
        uint64_t requests; /* ever */
        uint32_t match;    /* of the prompt in question */
        uint32_t waiting;  /* requests not finished */
        double backlog_s;  /* until it is idle */
        double free_s;     /* when it is idle */
        double busy_s;
        double recent_s;      /* work sent here, fading within a minute; for rules that ask for it */
        uint32_t first, last; /* row numbers from 1 of those not finished, oldest first; 0 none */
};

struct sim__replay_run {
        const struct sim_replay *replay;
        const struct sim_replay_options *options;
        struct sim__replay_caches caches;
        struct sim__replay_server *servers;
        struct sim_windows windows;
        uint32_t replicas;
        uint64_t hit_blocks, hit_tokens, blocks, tokens, hit_requests;
        /* with a queue */
        double rate, speed, now_s;
        double *finish_s; /* per row */
        double *ttft_s;   /* per row */
        uint32_t *next;   /* per row, in its server's list */
        double recent_at_s;
        struct sim__replay_toll *toll;   /* of that rule only */
        struct sim__replay_brain *brain; /* of that rule only */
};

/* The number of the replica that the rule takes for a row; run->replicas when it has no memory for that. */
uint32_t sim__replay_choose(struct sim__replay_run *run, uint32_t row);

/* ---- replay_run.c; the analyser's rungs count the same way ---- */
/* From the first to the last arrival, at least a millisecond. */
double sim__replay_span_s(const struct sim_trace *trace);
void sim__replay_sort(double *figures, uint32_t count);
/* Of sorted figures, the one at place floor(p x count). */
double sim__replay_percentile(const double *sorted, uint32_t count, double p);

#endif
