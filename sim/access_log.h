/* SPDX-License-Identifier: Apache-2.0 */
/* The access log of kvroute serve (docs/configuration.md), as simulations and accounts need it. */
#ifndef KVROUTE_SIM_ACCESS_LOG_H
#define KVROUTE_SIM_ACCESS_LOG_H

#include <kvroute/base.h>

#define SIM_ACCESS_LINE_MAX 65536u
#define SIM_ACCESS_NAME_MAX 128u

/* Figures that the line does not have are -1. */
struct sim_access_line {
        double end_s; /* since 1970, in milliseconds */
        double total_s, ttft_s, queue_s;
        double prompt, completion, predicted, best, observed; /* tokens */
        uint64_t replica;                                     /* hash of its name; 0: nobody answered */
        char name[SIM_ACCESS_NAME_MAX];                       /* of the replica, cut if longer */
        uint64_t client; /* hash of model, workload and key: who may share what */
        bool stream;
        bool answered; /* to the end, with a 2xx */
};

/* Whether a file that begins with these bytes is an access log. */
bool sim_access_is(const char *bytes, size_t len);
/* False: not a line of an access log. *ret is written in any case. */
KVR_MUST_USE bool sim_access_parse(const char *line, size_t len, struct sim_access_line *ret);

/* Called for each line; NULL to go on, or what is wrong. */
typedef const char *(*sim_access_each)(void *ctx, const struct sim_access_line *line);
/* A whole file, gzip or not. False: message says which line is wrong, and why. */
KVR_MUST_USE bool sim_access_read(const char *path, sim_access_each each, void *ctx, char *message,
                                  size_t message_size);

/* "2026-02-28T23:59:50.123Z" in seconds since 1970; NULL is none. */
bool sim_access_time(const char *text, double *ret);

#endif
