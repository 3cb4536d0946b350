/* SPDX-License-Identifier: Apache-2.0 */
/* A run under way, for the files of des. */
#ifndef KVROUTE_SIM_DES_INT_H
#define KVROUTE_SIM_DES_INT_H

#include "des.h"
#include "engine.h"
#include "replay_windows.h"

#include <kvroute/router.h>

#define SIM__DES_START_NS UINT64_C(1000000000000) /* clocks do not begin at 0 */
#define SIM__DES_NOWHERE  UINT32_MAX

/* A row on its way. */
struct sim__des_request {
        uint64_t arrival_ns, first_ns; /* 0: no first token yet */
        struct kvr_ticket *ticket;
        uint32_t row, replica, predicted, cached;
        bool in_flight;
        uint8_t tried_count;
        uint16_t tried[KVR_TRIED_MAX]; /* replicas that were lost under it */
};

/* Rows that wait for their session's turn to end are in a heap by time; the others come in the trace's order.
 */
struct sim__des_due {
        uint64_t at_ns;
        uint32_t row;
};

struct sim__des_arrivals {
        struct sim__des_due *heap;
        uint32_t count;
        uint32_t next_row; /* of those that are not in the heap */
        uint32_t *next_of; /* per row: the next row of its session + 1 */
        bool *later;       /* per row: it follows another one of its session */
        uint32_t left;     /* rows that have not come yet */
};

struct sim__des_router {
        struct kvr_router *brain;
        kvr_replica_id *replicas; /* by number */
};

struct sim__des {
        const struct sim_trace *trace;
        const struct sim_des_options *options;
        struct sim__des_arrivals arrivals;
        uint64_t now_ns, random;
        struct sim_engine **engines;
        uint64_t *next_ns;               /* when each engine has something to tell */
        struct sim__des_router *routers; /* NULL: a rule decides */
        struct sim__des_rules *rules;
        struct sim__des_request *requests; /* by row */
        uint64_t *sent, *keys;
        struct sim_engine_counters *before; /* sums of each engine up to its last restart */
        struct kvr_point *points;
        struct kvr_parser *parser; /* with token_ids */
        struct sim_buf body;
        struct sim_windows windows;
        struct sim_des_result result;
        char *message;
        size_t message_size;
};

/* False: out of memory. */
KVR_MUST_USE bool sim__des_arrivals_init(struct sim__des *des);
void sim__des_arrivals_fini(struct sim__des_arrivals *arrivals);
/* When the next row comes; SIM_NEVER: none, or none before some answer. */
uint64_t sim__des_arrivals_next_ns(const struct sim__des *des);
/* The next row that is due by now; false: none. */
bool sim__des_arrivals_take(struct sim__des *des, uint32_t *ret_row);
/* A row has its answer, or never will: its session may go on. */
void sim__des_arrivals_answered(struct sim__des *des, uint32_t row);

/* Routers that know the fleet. False: the message is set. */
KVR_MUST_USE bool sim__des_brain_init(struct sim__des *des);
void sim__des_brain_fini(struct sim__des *des);
/* The rest only when there are routers. Chooses and books: sets replica (or SIM__DES_NOWHERE), ticket and
 * prediction. */
KVR_MUST_USE bool sim__des_brain_choose(struct sim__des *des, struct sim__des_request *request);
void sim__des_brain_settle(const struct sim__des *des, struct sim__des_request *request, enum kvr_end end);
/* A replica is gone, or back with an empty cache. */
void sim__des_brain_change(const struct sim__des *des, uint32_t replica, bool up);
/* All engines' load, to all routers. */
void sim__des_brain_report(struct sim__des *des);

/* The key under which engines and routers know a block. Never 0. */
uint64_t sim__des_key(uint64_t id);

#endif
