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
        bool in_flight, waits; /* waits: nothing of it was computed yet */
        uint8_t tried_count;
        uint16_t tried[KVR_TRIED_MAX]; /* replicas that were lost under it */
};

/*
 * Rows whose user waits for answers first are in a heap by time once those are there; the others come in the
 * trace's order.
 */
struct sim__des_due {
        uint64_t at_ns;
        uint32_t row;
};

struct sim__des_arrivals {
        struct sim__des_due *heap;
        uint32_t count;
        uint32_t next_row; /* of those that are not in the heap */
        uint32_t *waits;   /* per row: answers that it waits for; NULL: nothing waits */
        bool *later;       /* per row: it waits, or has waited, for another one */
        uint32_t *edge_of; /* per row: the first edge to a row that waits for it, + 1 */
        struct sim__des_edge {
                uint32_t row, next;
        } * edges;
        uint32_t edge_count;
        uint32_t left; /* rows that have not come yet */
};

/* What all engines said of their load at one time, on its way to the routers. */
struct sim__des_report {
        uint64_t at_ns;
        struct sim__des_load {
                double running, waiting, usage;
        } of[]; /* by replica */
};

/* Reports under way, oldest first, in a ring. */
struct sim__des_reports {
        struct sim__des_report **ring;
        uint32_t head, count, room;
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
        double *slow;                    /* of each engine, see struct sim_engine_options */
        struct sim__des_router *routers; /* NULL: a rule decides */
        struct sim__des_rules *rules;
        struct sim__des_request *requests; /* by row */
        uint64_t *sent;
        uint64_t *keys;                     /* room for those of one prompt */
        struct sim_engine_counters *before; /* sums of each engine up to its last restart */
        struct kvr_point *points;
        struct kvr_parser *parser; /* with token_ids */
        struct sim_buf body;
        struct sim_windows windows;
        struct sim__des_reports reports;
        struct sim__des_events *events;
        struct sim__des_oracle *oracle;
        uint32_t *prompt_ids; /* with events or an oracle: of the row that is being sent */
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
/* Measures all engines' load now; routers get it report_delay_s later. False: out of memory. */
KVR_MUST_USE bool sim__des_brain_measure(struct sim__des *des);
/* When the oldest report under way arrives, SIM_NEVER: none is. */
uint64_t sim__des_brain_report_ns(const struct sim__des *des);
/* It arrives. */
void sim__des_brain_report(struct sim__des *des);

/* Says so in the message. False. */
bool sim__des_no_memory(const struct sim__des *des);

/* ---- engine events (des_events.c): only with options->events ---- */

/* False: the message is set. */
KVR_MUST_USE bool sim__des_events_init(struct sim__des *des);
void sim__des_events_fini(struct sim__des *des);
/* Takes what the engine has to tell since the last time. False: the message is set. */
KVR_MUST_USE bool sim__des_events_collect(struct sim__des *des, uint32_t replica);
/* When a router hears something next, SIM_NEVER: nothing is on its way. */
uint64_t sim__des_events_next_ns(const struct sim__des *des);
/* It hears it. False: the message is set. */
KVR_MUST_USE bool sim__des_events_deliver(struct sim__des *des);
/* The engine's process is another one from now on, and routers are not told. */
void sim__des_events_restart(struct sim__des *des, uint32_t replica);
/* It has gone, and the connection with it; it is there again. False: the message is set. */
KVR_MUST_USE bool sim__des_events_down(struct sim__des *des, uint32_t replica);
KVR_MUST_USE bool sim__des_events_up(struct sim__des *des, uint32_t replica);
/* Adds what the streams counted to the result. */
void sim__des_events_result(struct sim__des *des);
/* The tokens that the events have for a block; one that is not whole has as many as there are. */
void sim__des_block_tokens(uint64_t key, uint32_t count, uint32_t *ret);

/* ---- a router that knows all (des_oracle.c): only with options->oracle ---- */

/* False: out of memory. */
KVR_MUST_USE bool sim__des_oracle_init(struct sim__des *des);
void sim__des_oracle_fini(struct sim__des *des);
/* Tells a router what each engine has of this row's prompt now. False: out of memory. */
KVR_MUST_USE bool sim__des_oracle_tell(struct sim__des *des, uint32_t router, uint32_t row);
/* The request waits at its replica, or no longer. */
void sim__des_oracle_wait(struct sim__des *des, const struct sim__des_request *request, bool waits);

/* The key under which engines and routers know a block. Never 0. */
uint64_t sim__des_key(uint64_t id);

#endif
