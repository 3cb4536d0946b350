/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a load generator sends: sessions of one or more turns, when they begin, and the body of each
 * request. Everything follows from the options and the seed; item n does not depend on how many items
 * there are, nor on what was asked before.
 *
 *     shared_prefix   one turn: system prompt of its group, question of its own
 *     multi_turn      several turns: system prompt of its group, questions, and the answers that really came
 *     unique          one turn, nothing in common with any other
 *     trace           rows of a Mooncake trace: text made from block ids, so that equal ids give equal text
 */
#ifndef KVROUTE_SIM_WORKLOAD_H
#define KVROUTE_SIM_WORKLOAD_H

#include "buf.h"
#include "trace.h"

enum sim_workload_kind {
        SIM_WORKLOAD_SHARED_PREFIX,
        SIM_WORKLOAD_MULTI_TURN,
        SIM_WORKLOAD_UNIQUE,
        SIM_WORKLOAD_TRACE,
};

struct sim_workload_options {
        enum sim_workload_kind kind;
        uint32_t requests;        /* in total; of a trace: at most */
        double rate;              /* requests per second; 0: no times, everything begins at 0 (closed loop) */
        uint32_t groups;          /* that share a system prompt */
        double zipf;              /* group g is chosen with a weight of 1 / (g + 1)^zipf; 0: all alike */
        uint32_t prefix_tokens;   /* of the system prompt */
        uint32_t question_tokens; /* of each question */
        uint32_t output_tokens;   /* asked for; 0 with a trace: what the row says */
        double spread;            /* 0..1: lengths of questions and answers lie in length * (1 +- spread) */
        uint32_t turns;
        double turn_gap_s; /* mean time from the beginning of one turn to the next; drawn from 0 to twice that
                            */
        uint64_t seed;
        const struct sim_trace *trace; /* kept */
        double speed;                  /* the trace's clock runs this much faster */
        const char *model;             /* kept */
        bool stream;
        bool completions; /* /v1/completions instead of chat */
};

struct sim_session {
        double start_s;
        uint32_t turns;
        uint32_t group; /* of a trace: the row */
};

struct sim_workload;

KVR_MUST_USE struct sim_workload *sim_workload_new(
        const struct sim_workload_options *options); /* NULL: no memory */
void sim_workload_free(struct sim_workload *workload);
const struct sim_workload_options *sim_workload_options(const struct sim_workload *workload);
uint32_t sim_workload_requests(const struct sim_workload *workload); /* turns of all sessions */
uint32_t sim_workload_session_count(const struct sim_workload *workload);
const struct sim_session *sim_workload_session(const struct sim_workload *workload, uint32_t session);
/* When a turn is due, in seconds since the start of the load; it cannot go out before the previous answer is
 * there. */
double sim_workload_turn_s(const struct sim_workload *workload, uint32_t session, uint32_t turn);
uint32_t sim_workload_output_tokens(const struct sim_workload *workload, uint32_t session, uint32_t turn);
/* Appends the JSON body. `answers`: those of turns 0 .. turn - 1. */
void sim_workload_body(const struct sim_workload *workload, uint32_t session, uint32_t turn,
                       const struct kvr_slice *answers, struct sim_buf *buf);

#endif
