/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the readers of the trace forms share. A form's function gets one line, adds rows, and says false
 * after sim__trace_fail.
 */
#ifndef KVROUTE_SIM_TRACE_INT_H
#define KVROUTE_SIM_TRACE_INT_H

#include "trace.h"

#define SIM__TRACE_COLUMNS_MAX 32

enum sim__trace_form {
        SIM__TRACE_UNKNOWN,
        SIM__TRACE_JSON,
        SIM__TRACE_WEKA,
        SIM__TRACE_LOG,
        SIM__TRACE_LENGTHS,
        SIM__TRACE_SESSIONS,
        SIM__TRACE_MADE,
};

/* Numbers for names, by hash: open addressing, at most half full. */
struct sim__trace_names {
        uint64_t *hashes; /* 0: free */
        uint32_t *numbers;
        uint32_t mask, count;
        uint32_t sessions; /* numbers given out */
};

struct sim__trace_reader {
        const char *path;
        const struct sim_trace_options *options;
        enum sim__trace_form form;
        uint64_t line_number, seen; /* rows, those outside the chosen time too */
        struct sim_trace *trace;
        size_t row_cap, id_cap;
        uint32_t *line_of_row; /* for messages about a row found bad later */
        struct sim__trace_names names;
        /* CSV */
        uint8_t column_of[SIM__TRACE_COLUMNS_MAX]; /* meaning of each column */
        uint32_t column_count;
        double base_s; /* wall-clock time of the first row */
        bool has_base;
        uint64_t unique;            /* next id that nobody else has */
        struct sim__trace_log *log; /* earlier lines of an access log */
        uint32_t block;             /* of JSON sessions; 0: none seen */
        double session_start_s;     /* of the last one */
        uint64_t session_random;
        char *message;
        size_t message_size;
};

/* Sets the message; false for the caller to return. */
bool sim__trace_fail(struct sim__trace_reader *reader, const char *what);
/* Room for one more row, and for so many ids behind those there are. */
KVR_MUST_USE bool sim__trace_reserve(struct sim__trace_reader *reader, uint64_t ids);
/*
 * Takes a row whose id_count ids stand behind those of the trace, unless it is outside the chosen time.
 * Room was reserved. row->time_s counts from the start of the trace.
 */
void sim__trace_add(struct sim__trace_reader *reader, struct sim_trace_row *row);
/* The session of a name: one it has, or else the given one, or with 0 a new one. 0 when out of memory. */
uint32_t sim__trace_session(struct sim__trace_reader *reader, const char *name, size_t len, uint32_t number);

/* All rows at once, from "KEY=VALUE,...". */
KVR_MUST_USE bool sim__trace_made(struct sim__trace_reader *reader, const char *text);
/* line[len] may be read and is '\n'. */
KVR_MUST_USE bool sim__trace_json_line(struct sim__trace_reader *reader, const char *line, size_t len);
/* Whether a file that begins so holds JSON sessions. */
bool sim__trace_weka_is(const char *bytes, size_t len);
/* All of a file. */
KVR_MUST_USE bool sim__trace_weka(struct sim__trace_reader *reader, const char *bytes, size_t len);
KVR_MUST_USE bool sim__trace_log_line(struct sim__trace_reader *reader, const char *line, size_t len);
/* Times count from the first request. */
void sim__trace_log_end(struct sim__trace_reader *reader);
/* The head of a CSV file: sets reader->form. */
KVR_MUST_USE bool sim__trace_csv_head(struct sim__trace_reader *reader, const char *line, size_t len);
KVR_MUST_USE bool sim__trace_csv_line(struct sim__trace_reader *reader, const char *line, size_t len);

#endif
