/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces in the Mooncake layout: JSON Lines, plain or gzip, with `timestamp` (ms), `input_length`,
 * `output_length` (tokens) and `hash_ids`, one id per block of the prompt; an id stands for the whole
 * prefix up to its block. Other members are ignored.
 */
#ifndef KVROUTE_SIM_TRACE_H
#define KVROUTE_SIM_TRACE_H

#include <kvroute/base.h>

#define SIM_TRACE_LINE_MAX (16u * 1024 * 1024)
#define SIM_TRACE_ROWS_MAX (16u * 1024 * 1024)

struct sim_trace_row {
        double time_s;
        uint32_t input_tokens, output_tokens;
        uint32_t id_count;
        uint64_t first_id; /* index into sim_trace.ids */
};

struct sim_trace {
        struct sim_trace_row *rows; /* by time; rows of one time in the order of the file */
        uint32_t row_count;
        uint64_t *ids;
        uint64_t id_count;
        uint32_t block_tokens;
};

struct sim_trace_options {
        uint32_t block_tokens; /* 0: found out from the rows */
        double from_s, to_s;   /* rows outside are left out; to_s 0: to the end */
};

/*
 * Reads a file. On failure false, nothing to free, and message has one sentence that names file, line and
 * what is wrong. Times are rebased so that from_s is 0.
 */
KVR_MUST_USE bool sim_trace_read(const char *path, const struct sim_trace_options *options,
                                 struct sim_trace *ret, char *message, size_t message_size);
void sim_trace_fini(struct sim_trace *trace);

static inline const uint64_t *sim_trace_ids(const struct sim_trace *trace, uint32_t row)
{
        return trace->ids + trace->rows[row].first_id;
}

#endif
