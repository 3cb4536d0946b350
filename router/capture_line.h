/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request as one line of a capture: the layout of Mooncake's traces, with an id per block of the prompt.
 *
 *     points  key 1 ...... key 2 ... key 3 .............. key 4        where the prompt's keys lie, in bytes
 *     tokens  0          130       200                 400            the same places in tokens
 *     blocks  [ 64 ][ 64 ][ 64 ][ 64 ][ 64 ][ 64 ][16]                 the id of a block is that of the first
 *                                                                     key that covers it, and its number
 *
 * Two prompts that agree up to a key agree in all blocks before it, if that key lies at the same token in both.
 * So where a key lies is settled by the first prompt that had it and remembered for the others, in a table of
 * bounded size. Ids are hashed under a secret. Owner thread only.
 */
#ifndef KVROUTE_ROUTER_CAPTURE_LINE_H
#define KVROUTE_ROUTER_CAPTURE_LINE_H

#include <kvroute/prompt.h>
#include <kvroute/router.h>

#include "proto/text.h"
#include "siphash.h"

#define CAPTURE_PLACES     262144 /* keys whose place is remembered; 16 bytes each */
#define CAPTURE_BLOCKS_MAX 262144 /* blocks of one prompt; larger ones are not captured */
#define CAPTURE_ID_BITS    53     /* so that programs that read numbers as doubles read ids */

/* What is kept of a request. Texts are names, not prompts. */
struct capture_facts {
        uint64_t arrived_ms, unix_ms; /* since the router's start, since 1970 */
        uint32_t input_tokens, output_tokens;
        bool input_exact, output_exact;
        int64_t cached_tokens; /* -1: not told */
        int64_t ttft_ms;       /* -1: no token came */
        int64_t total_ms;
        const char *end; /* "finished", "client", ... */
        const char *model, *workload;
        uint64_t session; /* hash of the session key; 0: none */
};

struct capture_lines;

KVR_MUST_USE struct capture_lines *capture_lines_new(const struct siphash_key *key,
                                                     uint32_t block_tokens); /* NULL: out of memory */
void capture_lines_free(struct capture_lines *lines);
/*
 * Appends a line, '\n' included. points: at least one. False: nothing was added (too large, or no memory; the
 * text is as it was).
 */
KVR_MUST_USE bool capture_line_add(struct capture_lines *lines, const struct kvr_point *points,
                                   uint32_t count, const struct capture_facts *facts, uint64_t dropped,
                                   struct text *ret);
/* Which id a session's name gets; never 0. */
uint64_t capture_session(const struct siphash_key *key, struct kvr_slice name);

#endif
