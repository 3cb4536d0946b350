/* SPDX-License-Identifier: Apache-2.0 */
/* The command's inside: what was asked for (simulate_main.c) and the grid that it makes (simulate_cells.c). */
#ifndef KVROUTE_SIM_SIMULATE_INT_H
#define KVROUTE_SIM_SIMULATE_INT_H

#include "calibrate.h"
#include "des.h"
#include "replay.h"
#include "simulate.h"

#define FILES_MAX    8
#define POLICIES_MAX 32
#define OUTAGES_MAX  64
#define POLICY_LEN   64

struct arguments {
        const char *policies, *replicas, *capacities, *loads, *speeds, *from, *to, *preset, *prompts, *down,
                *restart, *requests;
        const char *cost, *calibrate, *index;
        uint64_t block_tokens, threads, step_tokens, max_running, routers, seed, slots, slot_memory;
        double spread, ttft_target, report_interval, report_delay, session_gap;
        double events_delay, events_lost, events_replay, events_relearn;
        uint64_t events_buffer;
        double told, processors;
        bool reference, sessions, closed_loop, json, csv, progress;
};

struct file {
        struct sim_trace trace;
        struct sim_replay *replay;
};

/* One row to compute. */
struct cell {
        uint32_t file, replicas, capacity_blocks;
        double load; /* 0: no queue, or the trace's own pace */
        const char *policy;
};

struct simulate {
        struct arguments arguments;
        const char *paths[FILES_MAX];
        unsigned path_count;
        struct file files[FILES_MAX];
        char policies[POLICIES_MAX][POLICY_LEN];
        struct sim_cost cost;
        struct sim_calibration fit; /* with --calibrate */
        uint32_t replicas[SIM_SIMULATE_LIST_MAX], capacities[SIM_SIMULATE_LIST_MAX];
        double loads[SIM_SIMULATE_LIST_MAX], speeds[SIM_SIMULATE_LIST_MAX];
        uint32_t policy_count, replica_count, capacity_count, load_count, speed_count;
        double from_s, to_s;
        struct cell *cells;
        struct sim_simulate_row *rows;
        uint32_t cell_count;
        struct sim_des_record *records; /* with --requests */
        struct sim_des_outage outages[OUTAGES_MAX];
        uint32_t outage_count;
};

uint64_t sim__simulate_cells(const struct simulate *simulate);
/* All say -1 to go on, else the exit status, having told why. */
KVR_MUST_USE int sim__simulate_files_read(struct simulate *simulate);
/* One row of results for each cell of the grid. */
KVR_MUST_USE int sim__simulate_run(struct simulate *simulate);

#endif
