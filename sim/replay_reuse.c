/* SPDX-License-Identifier: Apache-2.0 */
/* How soon prefixes come again. */
#include "replay_int.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
        float x = *(const float *)a, y = *(const float *)b;

        return (x > y) - (x < y);
}

bool sim_replay_reuse(const struct sim_replay *replay, double *ret_s)
{
        const struct sim_trace *trace = replay->trace;
        size_t repeats = (size_t)trace->id_count - replay->distinct, count = 0;
        double *used_s = malloc((replay->distinct + 1) * sizeof(*used_s));
        float *gaps = malloc((repeats + 1) * sizeof(*gaps));

        if (!used_s || !gaps) {
                free(used_s);
                free(gaps);
                return false;
        }
        for (uint32_t i = 0; i < replay->distinct; i++)
                used_s[i] = (double)NAN;
        for (uint32_t row = 0; row < trace->row_count; row++) {
                const uint32_t *ids = replay->ids + trace->rows[row].first_id;

                for (uint32_t i = 0; i < trace->rows[row].id_count; i++) {
                        if (!isnan(used_s[ids[i]]))
                                gaps[count++] = (float)(trace->rows[row].time_s - used_s[ids[i]]);
                        used_s[ids[i]] = trace->rows[row].time_s;
                }
        }
        qsort(gaps, count, sizeof(*gaps), ascending);
        *ret_s = count ? (double)gaps[count / 2] : (double)NAN;
        free(used_s);
        free(gaps);
        return true;
}
