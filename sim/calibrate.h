/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cost model from what a router saw: the access log has for each request how long its prompt was, how much
 * of it the engine found in its cache, when the first token came and when the last.
 *
 *     first token:  t = sum over chunks of  a + b E + c C + d E C      E computed on top of C
 *     the others:   t = sum over steps of   e + f B + g K              B answers at once with K tokens of
 * context
 *
 * Both are sums over the log's lines of known figures times unknown factors, so the factors are those with
 * the least squares of relative errors, none below 0; lines that no factors explain (a pause, a swap) are
 * put aside. The first line is fitted to prompts beside which the replica did nothing else, the second one to
 * answers beside which it computed no prompt.
 */
#ifndef KVROUTE_SIM_CALIBRATE_H
#define KVROUTE_SIM_CALIBRATE_H

#include "buf.h"
#include "cost.h"

#define SIM_CALIBRATE_LINES_MAX 4000000u
#define SIM_CALIBRATE_LINES_MIN 20u /* of each kind */

struct sim_calibration {
        struct sim_cost cost;
        double lines;                          /* of the log */
        double prompts, answers;               /* fitted to */
        double prompt_error, answer_error;     /* |measured - fitted| / measured, the median over lines ... */
        double prompt_error90, answer_error90; /* ... and the 90th percentile */
        bool batch;                            /* some answers ran beside others; else f is 0 and part of e */
};

/*
 * step_tokens: the engines' token budget of a step, by which prompts were cut into chunks. False: message says
 * why, be it a file that cannot be read or one in which things differ too little to be told apart.
 */
KVR_MUST_USE bool sim_calibrate(const char *path, uint32_t step_tokens, struct sim_calibration *ret,
                                char *message, size_t message_size);

void sim_calibration_text(const struct sim_calibration *fit, const char *path, struct sim_buf *buf);
void sim_calibration_json(const struct sim_calibration *fit, struct sim_buf *buf);

#endif
