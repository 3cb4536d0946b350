/* SPDX-License-Identifier: Apache-2.0 */
/* One line of the access log of kvroute serve (docs/configuration.md), as simulations need it. */
#ifndef KVROUTE_SIM_ACCESS_LOG_H
#define KVROUTE_SIM_ACCESS_LOG_H

#include <kvroute/base.h>

#define SIM_ACCESS_LINE_MAX 65536u

/* Figures that the line does not have are -1. */
struct sim_access_line {
        double end_s; /* since 1970, in milliseconds */
        double total_s, ttft_s, queue_s;
        double prompt, completion, predicted, best, observed; /* tokens */
        uint64_t replica;                                     /* hash of its name; 0: nobody answered */
        uint64_t client; /* hash of model, workload and key: who may share what */
        bool stream;
        bool answered; /* to the end, with a 2xx */
};

/* Whether a file that begins with these bytes is an access log. */
bool sim_access_is(const char *bytes, size_t len);
/* False: not a line of an access log. *ret is written in any case. */
KVR_MUST_USE bool sim_access_parse(const char *line, size_t len, struct sim_access_line *ret);

/* "2026-02-28T23:59:50.123Z" in seconds since 1970; NULL is none. */
bool sim_access_time(const char *text, double *ret);

#endif
