/* SPDX-License-Identifier: Apache-2.0 */
/* The rungs: who stands for each, what each costs to run, and the runs that measure them. */
#include "analyze.h"
#include "des.h"
#include "simulate.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET_S        10.0
#define TARGET_STEP_S   5.0  /* a raised target is a multiple of this */
#define PLOT_OVER       20.0 /* a plot ends at so many times the target */
#define STATE_COUNTER   8.0  /* bytes */
#define BYTES_PER_TOKEN 4.0  /* of English text, for the size of a body */

static const struct sim_rung_kind kinds[] = {
        {
                .id = "L0",
                .name = "round robin",
                .what = "each replica in turn",
                .cpu = SIM_CPU_RELAY,
                .processes = "any proxy",
                .failures = "none of its own; a slow replica gets as much as the others",
                .staleness = "nothing to go stale",
        },
        {
                .id = "L1",
                .name = "least loaded",
                .what = "whoever has the least to do",
                .cpu = SIM_CPU_RELAY,
                .processes = "any proxy with counters of open requests",
                .failures = "several routers count only their own requests",
                .staleness = "none for one router",
        },
        {
                .id = "L2",
                .name = "prefix hash",
                .what = "prompts that begin alike go to one replica, by a hash, and nothing is remembered",
                .cpu = SIM_CPU_READ,
                .processes = "a proxy that reads bodies",
                .failures =
                        "a popular beginning overruns its replica; a change of the fleet moves most homes",
                .staleness = "nothing to go stale",
        },
        {
                .id = "L3",
                .name = "bounded hash",
                .what = "the same, but a replica with over 1.25 times its share is passed over",
                .cpu = SIM_CPU_READ,
                .processes = "a proxy that reads bodies and counts open requests",
                .failures = "under load it scatters what belongs together",
                .staleness = "none for one router",
        },
        {
                .id = "L4",
                .name = "router-side history",
                .what = "the router remembers what it sent where, and weighs what is cached against the "
                        "queue",
                .cpu = SIM_CPU_DECIDE,
                .processes = "one router process",
                .failures = "begins empty after a restart; each of several routers knows only what it sent",
                .staleness = "until the next answer that tells how much was cached",
        },
        {
                .id = "L5",
                .name = "engine events",
                .what = "engines tell which blocks they keep and drop, so the router knows instead of "
                        "guessing",
                .cpu = SIM_CPU_DECIDE,
                .processes = "one router process and an event stream per replica",
                .failures = "lost or late events, engines without them, block hashes that do not agree",
                .staleness = "the delay of the stream, until a gap is noticed",
        },
};

const struct sim_rung_kind *sim_rung_kind(enum sim_rung rung)
{
        return &kinds[rung];
}

/* bench/proxy/run.py on 2026-11-30, two cores: nginx, kvroute round_robin, kvroute kv. Runs differ by a third. */
static const struct {
        double bytes, us[SIM_CPU_DECIDE + 1];
} measured[] = {
        {300, {23, 33, 33}},     {8e3, {22, 36, 36}},      {32e3, {26, 47, 46}},
        {128e3, {52, 118, 118}}, {512e3, {434, 550, 500}},
};

double sim_rung_cpu_us(enum sim_rung_cpu cpu, double prompt_bytes)
{
        size_t last = sizeof(measured) / sizeof(measured[0]) - 1, at = 0;
        double share;

        if (prompt_bytes <= measured[0].bytes)
                return measured[0].us[cpu];
        while (at + 1 < last && prompt_bytes > measured[at + 1].bytes)
                at++;
        share = (prompt_bytes - measured[at].bytes) / (measured[at + 1].bytes - measured[at].bytes);
        return measured[at].us[cpu] + share * (measured[at + 1].us[cpu] - measured[at].us[cpu]);
}

/* ---- who stands for a rung ---------------------------------------------------------------------------- */

/*
 * Of several for one rung the one that carries more is taken: a rung is not to lose by a rule that does not
 * suit it. The last is not measured again: events tell the router what it knows already in a model where
 * nothing is lost and one router sees all, so with them it decides as from its history.
 */
static const struct candidate {
        enum sim_rung rung;
        const char *name, *brain;
        enum sim_replay_policy rule;
} candidates[] = {
        {SIM_RUNG_TURNS, "rr", NULL, SIM_REPLAY_RR},
        {SIM_RUNG_LOAD, "ll", NULL, SIM_REPLAY_LL},
        {SIM_RUNG_HASH, "hash2", NULL, SIM_REPLAY_HASH2},
        {SIM_RUNG_BOUNDED, "chwbl", NULL, SIM_REPLAY_CHWBL},
        {SIM_RUNG_HISTORY, "kv", "kv", SIM_REPLAY_POLICIES},
        {SIM_RUNG_EVENTS, "lpm50", NULL, SIM_REPLAY_LPM50},
        {SIM_RUNG_EVENTS, "cost_t", NULL, SIM_REPLAY_COST_T},
        {SIM_RUNG_EVENTS, "kv", "kv", SIM_REPLAY_POLICIES},
};

#define CANDIDATES ((uint32_t)(sizeof(candidates) / sizeof(candidates[0])))
#define MEASURED   (CANDIDATES - 1)
#define HISTORY    4u /* the candidate that the last one is like */

struct measured_rung {
        struct sim_rung_result at_pace;
        double *share;
        double capacity, alone_p90;
        bool open;
};

struct work {
        const struct sim_analyze_options *options;
        const struct sim_replay *replay;
        struct sim_report *report;
        struct measured_rung rungs[CANDIDATES];
        const struct candidate *chosen[SIM_RUNGS];
        char messages[CANDIDATES][160]; /* a task has its own */
};

static struct sim_rung_options how_of(const struct work *work, const struct candidate *candidate)
{
        return (struct sim_rung_options){
                .brain = candidate->brain,
                .rule = candidate->rule,
                .replicas = work->report->replicas,
                .capacity_blocks = work->report->capacity_blocks,
                .load = work->report->load,
                .speed = 1,
                .cost = work->options->cost,
        };
}

/* ---- tasks -------------------------------------------------------------------------------------------- */

/*
 * At its own pace, and at the least load that the search below tries: what is late there is late on any
 * fleet.
 */
static bool run_pace(void *ctx, uint32_t number, _Atomic uint64_t *progress)
{
        struct work *work = ctx;
        struct measured_rung *rung = &work->rungs[number];
        struct sim_rung_options how = how_of(work, &candidates[number]);
        struct sim_rung_result alone;
        char *message = work->messages[number];
        size_t size = sizeof(work->messages[number]);

        bool good = sim_rung_run(work->replay, &how, rung->share, &rung->at_pace, message, size);

        /* Where hardly anybody waits the rule is mostly about ties. */
        if (good && candidates[number].rung == SIM_RUNG_LOAD && sim_verdict_idle(&rung->at_pace)) {
                how.spread_idle = true;
                good = sim_rung_run(work->replay, &how, rung->share, &rung->at_pace, message, size);
        }

        how.speed = SIM_RUNG_LOAD_MIN / work->report->load;
        good = good && sim_rung_run(work->replay, &how, NULL, &alone, message, size);
        if (good)
                rung->alone_p90 = alone.ttft_p90;
        atomic_fetch_add(progress, 1);
        return good;
}

static bool run_capacity(void *ctx, uint32_t number, _Atomic uint64_t *progress)
{
        struct work *work = ctx;
        struct sim_rung_options how = how_of(work, &candidates[number]);
        struct measured_rung *rung = &work->rungs[number];

        return sim_rung_capacity(work->replay, &how, work->report->ttft_target_s, progress, &rung->capacity,
                                 &rung->open, work->messages[number], sizeof(work->messages[number]));
}

static bool run_plot(void *ctx, uint32_t number, _Atomic uint64_t *progress)
{
        struct work *work = ctx;
        struct sim_analyze_plots *plots = &work->report->plots;
        struct sim_rung_result result;

        for (uint32_t i = 0; i < SIM_ANALYZE_SIZES + SIM_ANALYZE_SPEEDS; i++) {
                struct sim_rung_options how = how_of(work, work->chosen[number]);
                bool of_size = i < SIM_ANALYZE_SIZES;
                uint32_t at = of_size ? i : i - SIM_ANALYZE_SIZES;

                if (of_size) {
                        how.capacity_blocks =
                                (uint32_t)fmax(1, plots->sizes[at] / work->report->block_tokens);
                } else {
                        how.speed = plots->speeds[at];
                        how.ttft_limit_s = PLOT_OVER * work->report->ttft_target_s;
                }
                if (!sim_rung_run(work->replay, &how, NULL, &result, work->messages[number],
                                  sizeof(work->messages[number])))
                        return false;
                if (of_size)
                        plots->hit[number][at] = result.token_hit;
                else
                        plots->p90[number][at] = result.over ? (double)INFINITY : result.ttft_p90;
                atomic_fetch_add(progress, 1);
        }
        return true;
}

static bool run_pool(struct work *work, sim_pool_task run, uint32_t tasks, uint32_t steps, const char *title,
                     char *message, size_t message_size)
{
        struct sim_pool pool = {
                .tasks = tasks,
                .threads = work->options->threads,
                .run = run,
                .ctx = work,
                .title = title,
                .total = (uint64_t)tasks * steps,
                .quiet = work->options->quiet,
        };

        if (sim_pool_run(&pool))
                return true;
        snprintf(message, message_size, "no thread could be made");
        for (uint32_t i = 0; i < tasks; i++) {
                if (work->messages[i][0])
                        snprintf(message, message_size, "%s: %s", candidates[i].name, work->messages[i]);
        }
        return false;
}

/* ---- the report --------------------------------------------------------------------------------------- */

/*
 * Ten seconds, unless one prompt in ten takes more than half of that under the best rule while hardly
 * anything else is going on: then no routing could keep it under load, and twice what that takes is asked
 * instead.
 */
static void set_target(struct work *work)
{
        struct sim_report *report = work->report;
        double alone_s = INFINITY, asked = work->options->ttft_target_s;

        for (uint32_t i = 0; i < MEASURED; i++)
                alone_s = fmin(alone_s, work->rungs[i].alone_p90);
        report->ttft_target_s = asked > 0 ? asked : TARGET_S;
        if (asked > 0 || 2 * alone_s <= TARGET_S)
                return;
        report->ttft_target_s = ceil(2 * alone_s / TARGET_STEP_S) * TARGET_STEP_S;
        report->target_raised = true;
}

static double state_of(const struct work *work, enum sim_rung rung)
{
        switch (rung) {
        case SIM_RUNG_TURNS:
                return STATE_COUNTER;
        case SIM_RUNG_HASH:
                return 0;
        case SIM_RUNG_LOAD:
        case SIM_RUNG_BOUNDED:
                return STATE_COUNTER * work->report->replicas;
        default: /* events fill the table that history fills */
                return work->rungs[HISTORY].at_pace.state_bytes;
        }
}

static void take_rungs(struct work *work)
{
        struct sim_report *report = work->report;
        double bytes = report->account.input_mean * BYTES_PER_TOKEN;

        for (uint32_t i = 0; i < CANDIDATES; i++) {
                struct sim_rung_row *row = &report->rungs[candidates[i].rung];
                const struct measured_rung *rung = &work->rungs[i];

                if (work->chosen[candidates[i].rung] && rung->capacity < row->capacity)
                        continue;
                work->chosen[candidates[i].rung] = &candidates[i];
                row->policy = candidates[i].name;
                row->at_pace = rung->at_pace;
                row->capacity = rung->capacity;
                row->capacity_open = rung->open;
                row->state_bytes = state_of(work, candidates[i].rung);
                row->cpu_us = sim_rung_cpu_us(kinds[candidates[i].rung].cpu, bytes);
                memcpy(row->share, rung->share, report->replicas * sizeof(*row->share));
        }
        report->idle = !report->load_given && sim_verdict_idle(&report->rungs[SIM_RUNG_LOAD].at_pace);
        sim_verdict_make(report->rungs, report->idle, report->account.span_s, report->replicas);
}

/*
 * From a quarter of the pace, or of the least that some rung carries, to a little above what the best
 * carries.
 */
static void set_plots(struct work *work)
{
        struct sim_report *report = work->report;
        struct sim_analyze_plots *plots = &report->plots;
        double most = 0, low, high;

        for (unsigned i = 0; i < SIM_RUNGS; i++)
                most = fmax(most, report->rungs[i].capacity);
        high = most > 0 ? 1.15 * most : 1;
        low = fmin(0.25, high / 8);
        for (unsigned i = 0; i < SIM_ANALYZE_SPEEDS; i++)
                plots->speeds[i] = low * pow(high / low, i / (SIM_ANALYZE_SPEEDS - 1.0));
        for (unsigned i = 0; i < SIM_ANALYZE_SIZES; i++)
                plots->sizes[i] =
                        (double)report->capacity_blocks * report->block_tokens * exp2((double)i - 2);
        plots->made = true;
}

static bool measure(struct work *work, char *message, size_t message_size)
{
        if (!run_pool(work, run_pace, MEASURED, 1, "analyze: own pace", message, message_size))
                return false;
        set_target(work);
        if (!run_pool(work, run_capacity, MEASURED, SIM_RUNG_CAPACITY_RUNS, "analyze: capacity", message,
                      message_size))
                return false;
        work->rungs[MEASURED] = work->rungs[HISTORY];
        take_rungs(work);
        if (!work->options->plots)
                return true;
        set_plots(work);
        return run_pool(work, run_plot, SIM_RUNGS, SIM_ANALYZE_SIZES + SIM_ANALYZE_SPEEDS, "analyze: plots",
                        message, message_size);
}

static void set_up(struct work *work, const struct sim_trace *trace)
{
        struct sim_report *report = work->report;
        const struct sim_analyze_options *options = work->options;
        uint64_t pooled, blocks = options->capacity_tokens / trace->block_tokens;

        report->block_tokens = trace->block_tokens;
        report->replicas = options->replicas;
        report->capacity_blocks = blocks < 1                      ? 1
                                  : blocks > SIM_DES_CAPACITY_MAX ? SIM_DES_CAPACITY_MAX
                                                                  : (uint32_t)blocks;
        report->price = options->price;
        report->preset = options->cost->name;
        report->work_hours = sim_rung_work_s(trace, options->cost) / 3600;
        report->load_given = options->load > 0;
        report->load = report->load_given ? options->load
                                          : report->work_hours * 3600 / fmax(report->account.span_s, 1e-3) /
                                                    options->replicas;
        pooled = (uint64_t)report->capacity_blocks * options->replicas;
        report->pooled_hit = sim_account_token_hit(&report->account, pooled);
        report->ideal_hit = report->account.matched_tokens / report->account.prompt_tokens;
}

bool sim_report_make(const struct sim_trace *trace, const char *name,
                     const struct sim_analyze_options *options, struct sim_report *ret, char *message,
                     size_t message_size)
{
        struct sim_replay *replay = sim_replay_new(trace);
        struct sim_report *report = calloc(1, sizeof(*report));
        struct work *work = calloc(1, sizeof(*work));
        double *shares = calloc((size_t)MEASURED * options->replicas, sizeof(*shares));
        bool good = false;

        snprintf(message, message_size, "out of memory");
        if (replay && report && work && shares && sim_account_make(replay, &report->account)) {
                *work = (struct work){.options = options, .replay = replay, .report = report};
                for (uint32_t i = 0; i < MEASURED; i++)
                        work->rungs[i].share = shares + (size_t)i * options->replicas;
                report->trace = name;
                set_up(work, trace);
                good = measure(work, message, message_size);
                if (good)
                        *ret = *report;
                else
                        sim_account_fini(&report->account);
        }
        free(shares);
        free(work);
        free(report);
        sim_replay_free(replay);
        return good;
}

void sim_report_fini(struct sim_report *report)
{
        sim_account_fini(&report->account);
}
