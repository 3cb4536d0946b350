/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the mock engine remembers of the requests it got: sums over all of them, and the last ones one by
 * one, so that a test can compare what was sent with what arrived.
 */
#ifndef KVROUTE_SIM_RECORD_H
#define KVROUTE_SIM_RECORD_H

#include "buf.h"

enum sim_record_state {
        SIM_RECORD_WAITING,  /* delayed, queued or computed; no token yet */
        SIM_RECORD_RUNNING,  /* tokens came */
        SIM_RECORD_FINISHED, /* answered to its end */
        SIM_RECORD_REFUSED,  /* answered with an error status */
        SIM_RECORD_ABORTED,  /* the client left */
        SIM_RECORD_CUT,      /* a fault ended it */
};

struct sim_record {
        uint64_t number;                        /* from 1; 0: free slot */
        double arrival_s, first_token_s, end_s; /* wall clock since the mock's start; negative: not yet */
        uint64_t connection;
        enum sim_record_state state;
        uint32_t status; /* of the answer, 0 none yet */
        bool stream;
        uint32_t prompt_tokens, cached_tokens, output_tokens;
        uint64_t body_hash; /* XXH3 of the body's bytes */
        size_t body_len;
        char *target; /* owned strings: method and target, fields as a JSON array, and the body if kept */
        char *headers;
        char *body;
};

struct sim_record_sums {
        uint64_t requests, finished, refused, aborted, cut;
        uint64_t prompt_tokens, cached_tokens, output_tokens;
};

struct sim_records {
        struct sim_record *slots;
        uint32_t max;
        bool keep_bodies;
        struct sim_record_sums sums;
};

/* max: how many are remembered one by one, at least 1. */
KVR_MUST_USE bool sim_records_init(struct sim_records *records, uint32_t max, bool keep_bodies);
void sim_records_fini(struct sim_records *records);
void sim_records_clear(struct sim_records *records);
/* A new record over the oldest one, state WAITING, times unset. Never NULL. */
struct sim_record *sim_records_add(struct sim_records *records, struct kvr_slice body);
/* NULL if it is forgotten. */
struct sim_record *sim_records_get(struct sim_records *records, uint64_t number);
/* Ends a record and counts it; further calls for the same one do nothing. */
void sim_records_end(struct sim_records *records, uint64_t number, enum sim_record_state state,
                     uint32_t status, double end_s);
/* {"requests":n,...,"list":[...]}: records after number `since`; with headers and bodies if `full`. */
void sim_records_write(const struct sim_records *records, uint64_t since, bool full, struct sim_buf *buf);

#endif
