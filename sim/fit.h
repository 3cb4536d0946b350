/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Factors that explain measured figures: y = sum over columns of factor x figure, with the least squares of
 * relative errors (what is measured as 10 ms must be met ten times as closely as 100 ms), and no factor
 * below 0. Lines far outside what the others agree on are left out, in a few rounds.
 */
#ifndef KVROUTE_SIM_FIT_H
#define KVROUTE_SIM_FIT_H

#include <kvroute/base.h>

#define SIM_FIT_COLUMNS_MAX 4u
#define SIM_FIT_NO_MEMORY   UINT32_MAX

/* Zero but for columns is empty. */
struct sim_fit {
        uint32_t columns;
        double *lines; /* columns figures each, then y */
        uint32_t count, room;
};

void sim_fit_fini(struct sim_fit *fit);
/* y must be above 0. False: out of memory. */
KVR_MUST_USE bool sim_fit_add(struct sim_fit *fit, const double *figures, double y);
/*
 * False: *ret_lack is the first column that differs too little from what is made of those before it, or
 * SIM_FIT_NO_MEMORY.
 */
KVR_MUST_USE bool sim_fit_solve(const struct sim_fit *fit, double *ret_factors, uint32_t *ret_lack);
/* Of |y - fitted| / y over all lines, those left out too. NAN when out of memory, or without lines. */
void sim_fit_errors(const struct sim_fit *fit, const double *factors, double *ret_p50, double *ret_p90);

#endif
