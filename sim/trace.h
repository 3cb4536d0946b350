/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces: who asked for how much, when, and what the prompts have in common. Plain or gzip; which of the
 * forms a file has is told from its first line:
 *
 *   JSON Lines    the Mooncake layout: `timestamp` (ms), `input_length`, `output_length` (tokens) and
 *                 `hash_ids`, one id per block of the prompt; an id stands for the whole prefix up to its
 *                 block. `session` (a string) is taken when it is there, other members are ignored. With
 *                 `chat_id` it is Bailian's layout: `timestamp` in seconds, `parent_chat_id` the turn before.
 *   sessions      Weka's captures of Claude Code: JSON objects {"id", "block_size", "hash_id_scope",
 *                 "requests":[{"t", "in", "out", "hash_ids", ...}]} (kv-cache-tester), each one a session; one
 *                 after the other in a file, in an array, or a directory of such files. `t` is in seconds from
 *                 the session's start; sessions begin at random, session_gap_s apart on average. An entry of
 *                 type "subagent" has `requests` of its own, which are a session of their own. hash_ids cover
 *                 whole blocks or the last, partial one too; unless the scope is "global" they mean nothing to
 *                 other sessions.
 *   access log    of kvroute serve. It has no keys, so who shared what is a guess: a request begins with as
 *                 many tokens as its engine reported or as its router knew somewhere, and they are those of an
 *                 earlier request of the same model, workload and key whose prompt and answer are just long
 *                 enough.
 *   lengths       CSV with a head line that names columns for time, prompt and answer (Azure's
 *                 TIMESTAMP,ContextTokens,GeneratedTokens, and a few other names). Prompts share nothing.
 *   session table CSV with one line per session (session, start_s, requests, first_input, last_input,
 *                 span_s and, if present, tool_tokens). The requests are made up: evenly spaced, of
 *                 evenly growing length, each beginning with the one before; sessions with tool
 *                 definitions of one size share their whole blocks.
 *
 * Instead of a file, synthetic:KEY=NUMBER,... makes a trace up: sessions arrive at random, `rate` requests a
 * second in all, each with one of `groups` prefixes of `prefix` tokens (group n as often as 1/n^zipf). A turn
 * adds `question` tokens, the answer `output`; lengths vary by up to a share of `spread`; a session has
 * `turns`, `gap` seconds apart on average. The same numbers and `seed` make the same trace.
 *
 * Memory: 40 bytes a row and 8 bytes an id, 4 more a row while reading; capacity grows by doubling. JSON
 * sessions are read a file at a time, 64 MiB at most, and take five to ten times their size for the time.
 */
#ifndef KVROUTE_SIM_TRACE_H
#define KVROUTE_SIM_TRACE_H

#include <kvroute/base.h>

#define SIM_TRACE_LINE_MAX   (16u * 1024 * 1024)
#define SIM_TRACE_ROWS_MAX   (16u * 1024 * 1024)
#define SIM_TRACE_IDS_MAX    (1u << 28)          /* 2 GiB of them */
#define SIM_TRACE_TOKENS_MAX INT32_MAX           /* of one prompt or answer */
#define SIM_TRACE_NO_PAUSE   1e-9f               /* a pause that is known to be none */
#define SIM_TRACE_FILE_MAX   (64u * 1024 * 1024) /* of JSON sessions, unpacked */
#define SIM_TRACE_FILES_MAX  65536u              /* in a directory */
#define SIM_TRACE_MADE_BLOCK_TOKENS \
        64u /* of made-up traces, unless told otherwise: fine enough for short prompts */
#define SIM_TRACE_BLOCK_TOKENS 512u /* of traces that have lengths only, unless told otherwise */

struct sim_trace_row {
        double time_s;
        uint32_t input_tokens, output_tokens;
        uint32_t id_count;
        uint32_t session; /* number from 1, in order of appearance; 0: none */
        uint32_t parent;  /* the session that this one was begun by; 0: none */
        float pause_s;    /* that the user took between the answer before it and this request; 0: not known */
        uint64_t first_id; /* index into sim_trace.ids */
};

struct sim_trace {
        struct sim_trace_row *rows; /* by time; rows of one time in the order of the file */
        uint32_t row_count;
        uint32_t session_count;
        uint64_t *ids;
        uint64_t id_count;
        uint32_t block_tokens;
};

struct sim_trace_options {
        uint32_t block_tokens; /* 0: found out from the rows */
        double from_s, to_s;   /* rows outside are left out; to_s 0: to the end */
        double session_gap_s;  /* between the beginnings of JSON sessions, on average; 0: 20 s */
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
