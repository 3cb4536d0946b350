/* SPDX-License-Identifier: Apache-2.0 */
/* What the demo's parts share: demo_main.c sets up and runs, demo_out.c tells the results. */
#ifndef KVROUTE_SIM_DEMO_INT_H
#define KVROUTE_SIM_DEMO_INT_H

#include "fleet.h"
#include "result.h"
#include "workload.h"

#define DEMO_POLICIES_MAX 32

struct demo_arguments {
        const char *policies, *preset, *program;
        uint64_t replicas, requests, groups, prefix_tokens, question_tokens, output_tokens, turns, seed,
                capacity_blocks, step_tokens;
        double rate, zipf, spread, turn_gap, speed;
        bool quick, overload, json, progress;
};

struct demo_row {
        char policy[64];
        struct sim_result result;
        struct sim_cpu load, engines, router;
        double wall_s;
};

struct demo {
        struct demo_arguments arguments;
        struct sim_mock_options mock;
        struct sim_workload *workload;
        struct demo_row rows[DEMO_POLICIES_MAX];
        size_t row_count;
        char message[1024];
};

/* What a busy machine did to the times: the worst of the rows, wall-clock seconds. NAN: unknown. */
struct demo_busy {
        double late_s;     /* by which requests were sent late, mean */
        double late_p99_s; /* and the 99th percentile */
        double waited_s;   /* for a processor, per request: generator, engines and router together */
        double used;       /* processors in use by these three */
        bool too_busy;
};

/* Each is for a table on stdout, which is flushed, as the progress goes to stderr meanwhile. */
void demo_print_head(const struct demo *demo);
void demo_print_row(struct demo_row *row, uint64_t replicas);
/* Under the table: whose queue grew, and which row is best. */
void demo_print_end(struct demo *demo);
void demo_print_json(struct demo *demo);

/*
 * `processors`: of this machine. Too busy: requests went out late, or the wait for processors is a tenth of
 * what the best policy's first token takes.
 */
void demo_busy(struct demo *demo, double processors, struct demo_busy *ret);

#endif
