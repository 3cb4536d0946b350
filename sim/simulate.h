/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of `kvroute simulate` share: one row of results per cell of the grid, the pool that
 * computes cells on several threads, and the forms in which rows are printed. Which figures there are, and
 * what they are called in every form, is one table.
 */
#ifndef KVROUTE_SIM_SIMULATE_H
#define KVROUTE_SIM_SIMULATE_H

#include "buf.h"
#include "des.h"

#include <stdatomic.h>
#include <stdio.h>

/* Figures that a cell does not have are NAN. */
struct sim_simulate_row {
        const char *trace, *policy; /* borrowed */
        uint32_t replicas;
        uint32_t capacity_blocks; /* 0: without limit */
        uint32_t block_tokens;
        double load, speed;
        double requests, rejected, failed, retried;
        double hit_rate, block_hit_rate, request_hit_rate, predicted_hit_rate;
        double ttft_mean, ttft_p50, ttft_p90, ttft_p99;
        double tpot_mean, tpot_p99;
        double e2e_mean, e2e_p50, e2e_p90, e2e_p99;
        double max_over_mean, cv, work_max_over_mean, work_cv, hot_p95;
        double busy_mean, busy_max;
        double dropped, preempted;
        double overpredicted; /* share of requests that were promised a block or more too much */
        double messages, messages_lost, messages_replayed; /* of engine events */
        double gaps, replays, clears, restarts, untrusted;
        double reuse_s;  /* median time between two uses of a block, at the row's speed */
        double capacity; /* the greatest speed-up within the target, 0: below what was tried */
};

/* Sets all figures to NAN. */
void sim_simulate_row_init(struct sim_simulate_row *row);

enum sim_simulate_form { SIM_SIMULATE_TABLE, SIM_SIMULATE_JSON, SIM_SIMULATE_CSV };
/* A table shows the columns that some row has figures for; JSON has null, CSV an empty field, for the rest.
 */
void sim_simulate_print(const struct sim_simulate_row *rows, size_t count, enum sim_simulate_form form,
                        struct sim_buf *buf);

/* One line of CSV for each row of the trace, and a head. */
void sim_simulate_requests(const struct sim_trace *trace, const struct sim_des_record *records, FILE *file);

/* ---- pool --------------------------------------------------------------------------------------------- */

/*
 * Computes task `number`, adding to *progress as it goes. Called from any of the pool's threads, each number
 * once; tasks must not share what they write. False: failed.
 */
typedef bool (*sim_pool_task)(void *ctx, uint32_t number, _Atomic uint64_t *progress);

struct sim_pool {
        uint32_t tasks, threads;
        sim_pool_task run;
        void *ctx;
        const char *title;
        uint64_t total; /* what *progress comes to in the end */
        bool quiet;     /* no progress on stderr */
};

/* Runs all tasks; after a failure no new ones are begun. False: a task failed, or no thread could be made. */
KVR_MUST_USE bool sim_pool_run(const struct sim_pool *pool);

/* ---- lists on the command line ------------------------------------------------------------------------ */

#define SIM_SIMULATE_LIST_MAX 64

/* "8,16" into ret (SIM_SIMULATE_LIST_MAX), each from min to max; "inf" is 0 where `endless`. */
KVR_MUST_USE bool sim_simulate_counts(const char *text, uint32_t min, uint32_t max, bool endless,
                                      uint32_t *ret, uint32_t *ret_count);
KVR_MUST_USE bool sim_simulate_numbers(const char *text, double min, double max, double *ret,
                                       uint32_t *ret_count);
/* The first `len` bytes: "3@600-900", or "3@600" for good. */
KVR_MUST_USE bool sim_simulate_outage(const char *text, size_t len, struct sim_des_outage *ret);
/* The same of a restart: "3@600". */
KVR_MUST_USE bool sim_simulate_restart(const char *text, size_t len, struct sim_des_outage *ret);
/* "a=18.7,b=0.08": figures of a cost model by their names; the others stay. */
KVR_MUST_USE bool sim_simulate_cost(const char *text, struct sim_cost *cost);
/* "7200" or "2h" */
KVR_MUST_USE bool sim_simulate_seconds(const char *text, double *ret);

#endif
