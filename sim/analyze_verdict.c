/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a rung is worth its step. Two questions, judged apart:
 *
 *   work      prefill hours at the trace's pace, against the next simpler rung. A gain that a still simpler
 *             rung has too is no gain of this one; if that rung cannot carry the load, it is marginal, not
 *             nothing.
 *   latency   load at the target, against the greatest that any simpler rung carries.
 */
#include "analyze.h"

#include <math.h>

const char *sim_verdict_name(enum sim_verdict verdict)
{
        static const char *const names[] = {"not justified", "marginal", "justified"};

        return names[verdict];
}

static enum sim_verdict level(double gain, double some, double enough)
{
        /* Not a number is no gain. */
        return gain >= enough ? SIM_VERDICT_YES : gain >= some ? SIM_VERDICT_MARGINAL : SIM_VERDICT_NO;
}

bool sim_verdict_idle(const struct sim_rung_result *least_loaded)
{
        if (least_loaded->busy_mean < SIM_VERDICT_IDLE_BUSY)
                return true;
        return least_loaded->busy_mean < SIM_VERDICT_IDLE_CALM &&
               least_loaded->waited < SIM_VERDICT_IDLE_WAITED;
}

static double hours(const struct sim_rung_row *row)
{
        return (row->at_pace.none_s - row->at_pace.saved_s) / 3600;
}

static double less_by(double hours_before, double hours_now)
{
        return hours_before > 0 ? (hours_before - hours_now) / hours_before : 0;
}

static double more_by(double before, double now)
{
        if (before > 0)
                return now / before - 1;
        return now > 0 ? (double)INFINITY : (double)NAN;
}

enum sim_verdict sim_verdict_work(double next_gain, double best_gain, double more)
{
        enum sim_verdict next = level(next_gain, SIM_VERDICT_WORK_SOME, SIM_VERDICT_WORK_YES);
        enum sim_verdict best = level(best_gain, SIM_VERDICT_WORK_SOME, SIM_VERDICT_WORK_YES);

        if (best >= next)
                return next;
        if (best == SIM_VERDICT_MARGINAL)
                return SIM_VERDICT_MARGINAL;
        return more >= SIM_VERDICT_CAPACITY_SOME ? SIM_VERDICT_MARGINAL : SIM_VERDICT_NO;
}

enum sim_verdict sim_verdict_load(double gain)
{
        return level(gain, SIM_VERDICT_CAPACITY_SOME, SIM_VERDICT_CAPACITY_YES);
}

static void judge(struct sim_rung_row *rows, unsigned rung, bool idle, double span_s, uint32_t replicas)
{
        struct sim_rung_row *row = &rows[rung];
        const struct sim_rung_row *next = row - 1, *least = rows, *fastest = rows;
        double month = SIM_VERDICT_HOURS * 3600 / fmax(span_s, 1e-3);

        for (unsigned i = 1; i < rung; i++) {
                least = hours(&rows[i]) < hours(least) ? &rows[i] : least;
                fastest = rows[i].capacity > fastest->capacity ? &rows[i] : fastest;
        }
        row->work_gain = less_by(hours(next), hours(row));
        row->work_gain_best = less_by(hours(least), hours(row));
        row->capacity_gain = more_by(next->capacity, row->capacity);
        row->capacity_gain_best = more_by(fastest->capacity, row->capacity);
        row->by_work = sim_verdict_work(row->work_gain, row->work_gain_best,
                                        more_by(least->capacity, row->capacity));
        row->by_latency = idle ? SIM_VERDICT_NO : sim_verdict_load(row->capacity_gain_best);
        row->even_work_month = fmax(0, hours(next) - hours(row)) * month;
        row->saved_replicas = next->capacity > 0 && row->capacity > 0 && !idle
                                      ? replicas / next->capacity - replicas / row->capacity
                                      : (double)NAN;
        row->even_latency_month = fmax(0, row->saved_replicas) * SIM_VERDICT_HOURS;
        if (isnan(row->saved_replicas))
                row->even_latency_month = (double)NAN;
}

void sim_verdict_make(struct sim_rung_row *rows, bool idle, double span_s, uint32_t replicas)
{
        rows[0].work_gain = rows[0].work_gain_best = (double)NAN;
        rows[0].capacity_gain = rows[0].capacity_gain_best = (double)NAN;
        rows[0].saved_replicas = rows[0].even_work_month = rows[0].even_latency_month = (double)NAN;
        rows[0].by_work = rows[0].by_latency = SIM_VERDICT_NO;
        for (unsigned i = 1; i < SIM_RUNGS; i++)
                judge(rows, i, idle, span_s, replicas);
}

enum sim_rung sim_verdict_recommended(const struct sim_rung_row *rows)
{
        unsigned best = 0;

        for (unsigned i = 1; i < SIM_RUNGS; i++) {
                if (rows[i].by_work == SIM_VERDICT_YES || rows[i].by_latency == SIM_VERDICT_YES)
                        best = i;
        }
        return (enum sim_rung)best;
}
