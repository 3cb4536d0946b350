/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the demo runs its load against: mock engines on a thread of this process, and the real router as a
 * child process of this very binary. Functions are for one thread, the fleet's own thread aside.
 */
#ifndef KVROUTE_SIM_FLEET_H
#define KVROUTE_SIM_FLEET_H

#include "mock.h"

#define SIM_FLEET_MAX 64

struct sim_fleet;

/*
 * Starts `count` mock engines on free ports of 127.0.0.1 and a thread that runs them. NULL: message says why.
 */
KVR_MUST_USE struct sim_fleet *sim_fleet_start(const struct sim_mock_options *options, uint32_t count,
                                               char *message, size_t message_size);
uint16_t sim_fleet_port(const struct sim_fleet *fleet, uint32_t number);
/* Processor time, and the wait for a processor; NAN: the system does not tell. */
struct sim_cpu {
        double used_s, waited_s;
};
/* Ends the thread and frees. *ret_cpu: what the engines took. */
void sim_fleet_stop(struct sim_fleet *fleet, struct sim_cpu *ret_cpu);

struct sim_router {
        int pid;    /* 0: none */
        int log_fd; /* its standard error */
        char url[256];
        char admin[256];
        uint64_t start_ns;
};

/*
 * Runs `program serve ARGS` (args: NULL at the end) and waits until it says that it is ready. False:
 * message says why, with the last lines of its log.
 */
KVR_MUST_USE bool sim_router_start(struct sim_router *router, const char *program, const char *const *args,
                                   char *message, size_t message_size);
/*
 * Ends it. *ret_cpu: what it took (not written if there was none). False: it had died before, and message
 * holds its last lines.
 */
bool sim_router_stop(struct sim_router *router, struct sim_cpu *ret_cpu, char *message, size_t message_size);

#endif
