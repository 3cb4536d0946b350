/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the prompts of a trace have in common, whoever routes them: one pass over the block ids.
 *
 * A block's stack distance is the number of distinct blocks used since its last use, itself included. An LRU
 * cache of N blocks has it exactly when the distance is at most N, so the sums over distances give the hit
 * rate of one cache of any size (Mattson and others, 1970). A prompt's blocks are used from the last to the
 * first, as in replay.h, so the curve is that of its rule `pooled` to the last digit. Distances are counted
 * in a Fenwick tree over the order of last uses.
 */
#ifndef KVROUTE_SIM_ANALYZE_ACCOUNT_H
#define KVROUTE_SIM_ANALYZE_ACCOUNT_H

#include "replay.h"

#define SIM_ACCOUNT_BINS 40u /* bin 0: none, or below 1; bin b: from 2^(b-1) to below 2^b */
#define SIM_ACCOUNT_TOP  3u  /* shares of the hits that the 1, 10 and 100 busiest blocks have */

struct sim_account {
        double requests, sessions, span_s;
        double prompt_tokens, output_tokens, blocks, distinct_blocks;
        double input_mean, input_p50, input_p90, input_p99;
        /* with a cache without limit */
        double matched_tokens, matched_blocks, matched_requests;
        double matched_p10, matched_p25, matched_p50, matched_p75, matched_p90,
                matched_p99; /* tokens of a request */
        double session_hit;  /* mean over sessions of their share of matched tokens; NAN without sessions */
        double in_session_tokens,
                cross_session_tokens;         /* by whose use the block was there; NAN without sessions */
        double gap_p50_s, gap_p90_s;          /* since a hit block's last use; NAN without hits */
        double top_share[SIM_ACCOUNT_TOP];    /* NAN without hits */
        double zipf;                          /* slope of log hits over log rank; NAN with under 10 blocks */
        double prefix_bins[SIM_ACCOUNT_BINS]; /* requests by matched tokens */
        double gap_bins[SIM_ACCOUNT_BINS];    /* hit blocks by seconds since the last use */
        /* tokens[d], blocks[d]: hits with a cache of d blocks; d up to distinct_blocks. Owned. */
        double *curve_tokens, *curve_blocks;
        uint32_t curve_count; /* distinct_blocks + 1 */
};

/*
 * Memory: 52 bytes per distinct block, 4 per row, 16 per session, and 8 for each of up to 2^20 hits. False:
 * out of memory, and nothing to free.
 */
KVR_MUST_USE bool sim_account_make(const struct sim_replay *replay, struct sim_account *ret);
void sim_account_fini(struct sim_account *account);

/* The bin of a figure below 2^63. */
uint32_t sim_account_bin(double figure);
/* Share of prompt tokens, of blocks, that one cache of so many blocks has. */
double sim_account_token_hit(const struct sim_account *account, uint64_t capacity_blocks);
double sim_account_block_hit(const struct sim_account *account, uint64_t capacity_blocks);

#endif
