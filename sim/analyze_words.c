/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict in words, from the figures of a report. */
#include "analyze.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

#define SENTENCE_MAX  640
#define NOTHING_SHARE 0.01 /* an ideal hit rate below this is nothing in common */

static const struct sim_rung_row *headline_of(const struct sim_report *report)
{
        return &report->rungs[SIM_RUNG_HEADLINE];
}

void sim_report_headline(const struct sim_report *report, struct sim_buf *buf)
{
        const struct sim_rung_row *row = headline_of(report);
        const char *work = sim_verdict_name(row->by_work), *latency = sim_verdict_name(row->by_latency);

        if (row->by_work == row->by_latency)
                sim_buf_puts(buf, work);
        else if (report->idle)
                sim_buf_printf(
                        buf,
                        "%s over a hash by work, and nothing queues that a verdict by latency could rest on",
                        work);
        else
                sim_buf_printf(buf, "%s over a hash by work, %s by tail latency", work, latency);
}

static void say(sim_report_sentence sentence, void *ctx, const char *format, ...) KVR_PRINTF(3, 4);

static void say(sim_report_sentence sentence, void *ctx, const char *format, ...)
{
        char text[SENTENCE_MAX];
        va_list args;

        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        sentence(ctx, text);
}

static double percent(double share)
{
        return 100 * share;
}

static void say_common(const struct sim_report *report, sim_report_sentence sentence, void *ctx)
{
        const struct sim_rung_row *row = headline_of(report), *turns = &report->rungs[SIM_RUNG_TURNS];
        double policy = row->at_pace.token_hit;

        if (report->ideal_hit < NOTHING_SHARE) {
                say(sentence, ctx,
                    "The prompts have nothing in common that a cache could reuse: %.1f %% of their tokens at "
                    "best, with "
                    "unlimited memory. No routing can change that.",
                    percent(report->ideal_hit));
                return;
        }
        say(sentence, ctx,
            "At best %.1f %% of the prompt tokens can be reused, %.1f %% with the memory of the fleet (%u) "
            "in "
            "one piece. Round robin reaches %.1f %%, cache-aware routing %.1f %%.",
            percent(report->ideal_hit), percent(report->pooled_hit), report->replicas,
            percent(turns->at_pace.token_hit), percent(policy));
        say(sentence, ctx,
            "Beyond that, more memory could add up to %.1f points, and even better routing up to %.1f.",
            percent(report->ideal_hit - report->pooled_hit), percent(fmax(0, report->pooled_hit - policy)));
}

static void say_work(const struct sim_report *report, sim_report_sentence sentence, void *ctx)
{
        const struct sim_rung_row *row = headline_of(report), *next = row - 1;
        double now = (row->at_pace.none_s - row->at_pace.saved_s) / 3600;
        double before = (next->at_pace.none_s - next->at_pace.saved_s) / 3600;
        double all = row->at_pace.none_s / 3600;

        if (report->ideal_hit < NOTHING_SHARE)
                return;
        say(sentence, ctx,
            "Work: of %.2f replica-hours of prefill a bounded hash leaves %.2f, cache-aware routing %.2f, "
            "%.1f %% %s: %s.",
            all, before, now, percent(fabs(row->work_gain)), row->work_gain < 0 ? "more" : "less",
            sim_verdict_name(row->by_work));
        if (row->work_gain >= SIM_VERDICT_WORK_SOME && row->work_gain_best < SIM_VERDICT_WORK_SOME)
                say(sentence, ctx,
                    "A still simpler rule computes about as little: for the work alone that rule would do.");
}

static enum sim_rung fastest_simpler(const struct sim_report *report)
{
        unsigned best = 0;

        for (unsigned i = 1; i < SIM_RUNG_HEADLINE; i++) {
                if (report->rungs[i].capacity > report->rungs[best].capacity)
                        best = i;
        }
        return (enum sim_rung)best;
}

/* "1.22 times", or "at least 64 times" where the search ended before the fleet did. */
static const char *times_of(const struct sim_rung_row *row, char *ret, size_t size)
{
        snprintf(ret, size, row->capacity_open ? "at least %.4g times" : "%.2f times", row->capacity);
        return ret;
}

static void say_capacity_gain(const struct sim_report *report, sim_report_sentence sentence, void *ctx)
{
        const struct sim_rung_row *row = headline_of(report);
        enum sim_rung best = fastest_simpler(report);
        const struct sim_rung_row *simpler = &report->rungs[best];
        char here[48], there[48];

        times_of(row, here, sizeof(here));
        times_of(simpler, there, sizeof(there));
        if (simpler->capacity <= 0)
                say(sentence, ctx,
                    "Latency: with the 90th percentile of the time to first token within %.4g s the fleet "
                    "carries %s this traffic; no simpler rule keeps that at any pace that was tried: %s.",
                    report->ttft_target_s, here, sim_verdict_name(row->by_latency));
        else if (row->capacity_open && simpler->capacity_open)
                say(sentence, ctx,
                    "Latency: with the 90th percentile of the time to first token within %.4g s the fleet "
                    "carries %s this traffic, the most that was tried, and with a simpler rule (%s) too. "
                    "What lies above was not measured, so nothing speaks for a step up: %s.",
                    report->ttft_target_s, here, sim_rung_kind(best)->name,
                    sim_verdict_name(row->by_latency));
        else
                say(sentence, ctx,
                    "Latency: with the 90th percentile of the time to first token within %.4g s the fleet "
                    "carries %s this traffic%s; the best simpler rule (%s) carries %s%s, so it is %s%+.0f "
                    "%%: %s.",
                    report->ttft_target_s, here, row->capacity_open ? ", the most that was tried" : "",
                    sim_rung_kind(best)->name, there,
                    simpler->capacity_open ? ", the most that was tried" : "",
                    row->capacity_open       ? "at least "
                    : simpler->capacity_open ? "at most "
                                             : "",
                    percent(row->capacity_gain_best), sim_verdict_name(row->by_latency));
}

static void say_capacity(const struct sim_report *report, sim_report_sentence sentence, void *ctx)
{
        const struct sim_rung_row *row = headline_of(report);

        if (row->capacity <= 0) {
                say(sentence, ctx,
                    "Latency: cache-aware routing does not keep the 90th percentile of the time to first "
                    "token within "
                    "%.4g s at any pace that was tried: not justified by latency on this hardware.",
                    report->ttft_target_s);
                return;
        }
        say_capacity_gain(report, sentence, ctx);
        if (row->capacity < 1)
                say(sentence, ctx,
                    "These %u replicas are too few for the traffic: at its pace about %.0f would be needed "
                    "even with "
                    "cache-aware routing.",
                    report->replicas, ceil(report->replicas / row->capacity));
}

static void say_latency(const struct sim_report *report, sim_report_sentence sentence, void *ctx)
{
        const struct sim_rung_result *loaded = &report->rungs[SIM_RUNG_LOAD].at_pace;

        if (report->idle) {
                say(sentence, ctx,
                    "Latency: at this pace hardly anything queues (replicas are %.1f %% busy, and %.1f %% of "
                    "requests "
                    "wait under the least loaded rule). An idle fleet says nothing about routing: no verdict "
                    "by "
                    "latency. --load asks what would be under load.",
                    percent(loaded->busy_mean), percent(loaded->waited));
                return;
        }
        if (report->target_raised)
                say(sentence, ctx,
                    "One prompt in ten takes a replica of this kind more than 5 s even when idle, so the "
                    "target is "
                    "%.4g s instead of 10 s.",
                    report->ttft_target_s);
        say_capacity(report, sentence, ctx);
}

static void money(const struct sim_report *report, double hours, char *ret, size_t size)
{
        if (report->price > 0)
                snprintf(ret, size, "%.0f replica-hours, or %.2f at %.2f an hour,", hours,
                         hours * report->price, report->price);
        else
                snprintf(ret, size, "%.0f replica-hours", hours);
}

static void say_price(const struct sim_report *report, sim_report_sentence sentence, void *ctx)
{
        const struct sim_rung_row *row = headline_of(report);
        double replicas = isnan(row->even_latency_month) ? 0 : row->even_latency_month;
        char work[96], fleet[96];

        if (row->even_work_month < 0.5 && replicas < 0.5) {
                say(sentence, ctx,
                    "Break-even: there is nothing to save, so a router that costs anything more than a "
                    "simpler "
                    "one costs too much.");
                return;
        }
        money(report, row->even_work_month, work, sizeof(work));
        money(report, replicas, fleet, sizeof(fleet));
        if (isnan(row->even_latency_month))
                say(sentence, ctx,
                    "Break-even against a bounded hash: running the router may cost %s a month more before "
                    "it "
                    "eats the work it saves.",
                    work);
        else
                say(sentence, ctx,
                    "Break-even against a bounded hash: running the router may cost %s a month more before "
                    "it "
                    "eats the work it saves, and %s before it eats the %.2f replicas that the same traffic "
                    "needs "
                    "less.",
                    work, fleet, fmax(0, row->saved_replicas));
}

static void say_events(const struct sim_report *report, sim_report_sentence sentence, void *ctx)
{
        const struct sim_rung_row *row = &report->rungs[SIM_RUNG_EVENTS];

        if (report->ideal_hit < NOTHING_SHARE)
                return;
        say(sentence, ctx,
            "Engine events on top of that: %s by work, %s by latency. One router that sees all traffic was "
            "wrong by "
            "%.1f %% of the prompt tokens, which is all that exact knowledge could put right; several "
            "routers or "
            "engines that restart make it more.",
            sim_verdict_name(row->by_work), report->idle ? "no verdict" : sim_verdict_name(row->by_latency),
            percent(report->rungs[SIM_RUNG_HISTORY].at_pace.predicted_off));
}

void sim_report_short(const struct sim_report *report, sim_report_sentence sentence, void *ctx)
{
        const struct sim_rung_row *row = headline_of(report);
        const struct sim_rung_kind *best = sim_rung_kind(sim_verdict_recommended(report->rungs));

        if (row->by_latency == SIM_VERDICT_YES && isfinite(row->capacity_gain_best))
                say(sentence, ctx,
                    "With the same replicas this service can take %s%.0f %% more traffic before answers get "
                    "slow than "
                    "with the best simpler rule, or needs fewer replicas for the same traffic.",
                    row->capacity_open ? "at least " : "", percent(row->capacity_gain_best));
        else if (row->by_latency == SIM_VERDICT_YES)
                say(sentence, ctx,
                    "No simpler rule answers in time on this fleet, at any pace that was tried; cache-aware "
                    "routing "
                    "does.");
        else if (row->by_work == SIM_VERDICT_YES)
                say(sentence, ctx,
                    "It takes %.0f %% of the prefill work off the replicas that a bounded hash leaves.",
                    percent(row->work_gain));
        else if (row->by_work == SIM_VERDICT_MARGINAL || row->by_latency == SIM_VERDICT_MARGINAL)
                say(sentence, ctx,
                    "It gains something, but little: weigh it against what the router costs to run (%s is "
                    "the highest "
                    "rung that is clearly worth it).",
                    best->name);
        else
                say(sentence, ctx, "Something simpler does as well here: %s (%s) is enough.", best->name,
                    best->what);
}

void sim_report_reasons(const struct sim_report *report, sim_report_sentence sentence, void *ctx)
{
        say_common(report, sentence, ctx);
        say_work(report, sentence, ctx);
        say_latency(report, sentence, ctx);
        say_price(report, sentence, ctx);
        say_events(report, sentence, ctx);
}
