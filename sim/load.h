/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends a workload to one HTTP origin and measures. Any number of requests at a time on one thread.
 *
 * Open loop (concurrency 0): each request has its intended time, and every latency counts from it, not from
 * the moment at which the generator got round to sending: a stalled server cannot hide its stall by slowing
 * the generator down. The intended time of a later turn is its planned one or the end of the answer before
 * it, whichever is later.
 *
 * Closed loop: `concurrency` users, each with one request at a time, each going through sessions in order;
 * latencies count from the sending, as there is no other time.
 */
#ifndef KVROUTE_SIM_LOAD_H
#define KVROUTE_SIM_LOAD_H

#include "net/client.h"
#include "result.h"
#include "workload.h"

struct sim_load;

struct sim_load_options {
        struct net_loop *loop;
        const struct sim_workload *workload; /* kept */
        struct sockaddr_storage addr;
        const char *host;     /* Host field; kept */
        const char *target;   /* "/v1/chat/completions"; kept */
        const char *headers;  /* more fields, "Name: value\r\n"..., or NULL; kept */
        uint32_t concurrency; /* 0: open loop */
        uint32_t timeout_ms;  /* of one request; 0: none */
        double time_scale;    /* reported seconds per second of the wall clock; 1 but for time-lapse */
        void (*on_progress)(void *ctx, uint32_t done, uint32_t total); /* optional, after each request */
        void (*on_done)(void *ctx);                                    /* all answered, or stopped */
        void *ctx;
};

/* Starts at once. NULL when out of memory. */
KVR_MUST_USE struct sim_load *sim_load_start(const struct sim_load_options *options);
/* Sends nothing more and drops what is under way; on_done comes from inside this call if it had not come. */
void sim_load_stop(struct sim_load *load);
/* Valid until sim_load_free. */
struct sim_result *sim_load_result(struct sim_load *load);
uint32_t sim_load_in_flight(const struct sim_load *load);
void sim_load_free(struct sim_load *load); /* run the loop afterwards, so that its handles close */

#endif
