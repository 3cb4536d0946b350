/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of `kvroute analyze` share: a report per trace, made of the account (analyze_account.h), the
 * ladder of routing rules (analyze_run.h) and a verdict per rung, and the forms in which it is told.
 *
 *     trace ──► account ──────────────────────────────┐
 *       └─────► own pace, capacity, per rung ──► verdicts ──► words, table, JSON, page
 */
#ifndef KVROUTE_SIM_ANALYZE_H
#define KVROUTE_SIM_ANALYZE_H

#include "analyze_account.h"
#include "analyze_run.h"
#include "buf.h"
#include "verdict.h"

#define SIM_ANALYZE_SHARES_MAX 1024u /* replicas */

/* ---- the rungs ---------------------------------------------------------------------------------------- */

/* From simple to elaborate. */
enum sim_rung {
        SIM_RUNG_TURNS,
        SIM_RUNG_LOAD,
        SIM_RUNG_HASH,
        SIM_RUNG_BOUNDED,
        SIM_RUNG_HISTORY,
        SIM_RUNG_EVENTS,
        SIM_RUNGS,
};

/* What reads a prompt costs more than what does not: which row of the benchmark a rung is priced by. */
enum sim_rung_cpu { SIM_CPU_RELAY, SIM_CPU_READ, SIM_CPU_DECIDE };

struct sim_rung_kind {
        const char *id, *name; /* "L0", "round robin" */
        const char *what;      /* a sentence for people who never heard of it */
        enum sim_rung_cpu cpu;
        const char *processes, *failures, *staleness;
};
const struct sim_rung_kind *sim_rung_kind(enum sim_rung rung);

/*
 * Microseconds of processor time per request of that many prompt bytes, between the sizes that
 * bench/proxy/run.py measured on the machine of docs/benchmarks.md.
 */
double sim_rung_cpu_us(enum sim_rung_cpu cpu, double prompt_bytes);

/* ---- verdicts ----------------------------------------------------------------------------------------- */

struct sim_rung_row {
        const char *policy; /* the rule or policy that stands for the rung */
        struct sim_rung_result at_pace;
        double share[SIM_ANALYZE_SHARES_MAX]; /* of the work, per replica */
        double capacity;                      /* times the trace's pace; 0: below what was tried */
        bool capacity_open; /* it is the highest that was tried, and the truth may be above */
        double state_bytes, cpu_us;
        /* against simpler rungs; NAN on the lowest */
        double work_gain; /* share of the next simpler rung's prefill hours that is not needed any more */
        double work_gain_best; /* the same against the one of all simpler rungs that computes least */
        double capacity_gain;  /* over the next simpler; INFINITY when that has none, NAN when neither has */
        double capacity_gain_best; /* over the greatest of the simpler ones */
        enum sim_verdict by_work, by_latency;
        double saved_replicas;  /* fewer at the trace's pace and target than next simpler rung; NAN unknown */
        double even_work_month; /* replica-hours that routing may cost a month until it eats the work saved */
        double even_latency_month; /* the same of the replicas saved; NAN unknown */
};

/*
 * Fills in everything "against simpler rungs". idle: nothing queues at the trace's pace, so no verdict by
 * latency is given (SIM_VERDICT_NO). span_s, replicas: of the trace and the fleet.
 */
void sim_verdict_make(struct sim_rung_row *rows, bool idle, double span_s, uint32_t replicas);
/* Whether the least loaded rule finds nothing to wait for. */
bool sim_verdict_idle(const struct sim_rung_result *least_loaded);
/* The recommended rung: the highest that is justified, else the lowest. */
enum sim_rung sim_verdict_recommended(const struct sim_rung_row *rows);

/* ---- the report --------------------------------------------------------------------------------------- */

#define SIM_ANALYZE_SIZES  5u /* fleets' cache sizes that a page shows: a quarter to four times the given */
#define SIM_ANALYZE_SPEEDS 8u

/* For a page only. */
struct sim_analyze_plots {
        bool made;
        double sizes[SIM_ANALYZE_SIZES]; /* tokens per replica */
        double hit[SIM_RUNGS][SIM_ANALYZE_SIZES];
        double speeds[SIM_ANALYZE_SPEEDS];
        double p90[SIM_RUNGS][SIM_ANALYZE_SPEEDS]; /* INFINITY: off the page */
};

struct sim_report {
        const char *trace, *preset; /* borrowed */
        uint32_t block_tokens, replicas, capacity_blocks;
        double load; /* of the trace at its own pace, were nothing cached; or as given */
        bool load_given;
        double work_hours; /* prefill of the trace, nothing cached, in replica-hours */
        double ttft_target_s;
        bool target_raised; /* 10 s are out of reach even for an idle fleet of this kind */
        bool idle;          /* nothing queues */
        double price;       /* of a replica-hour; 0: not given */
        struct sim_account account;
        double ideal_hit, pooled_hit; /* by tokens; block rates are in the account's curve */
        struct sim_rung_row rungs[SIM_RUNGS];
        struct sim_analyze_plots plots;
};

/* The headline: what kvroute is out of the box, against what is simpler. */
#define SIM_RUNG_HEADLINE SIM_RUNG_HISTORY

struct sim_analyze_options {
        uint32_t replicas;
        uint64_t capacity_tokens; /* of a replica */
        double load;              /* 0: the trace's own, by the preset */
        double ttft_target_s;     /* 0: 10 s, or more where an idle fleet needs more */
        double price;
        const struct sim_cost *cost;
        uint32_t threads;
        bool plots, quiet;
};

/*
 * All of it for one trace, with progress on stderr. The trace must outlive the report. False: message says
 * why, and nothing is to be freed.
 */
KVR_MUST_USE bool sim_report_make(const struct sim_trace *trace, const char *name,
                                  const struct sim_analyze_options *options, struct sim_report *ret,
                                  char *message, size_t message_size);
void sim_report_fini(struct sim_report *report);

/* ---- forms -------------------------------------------------------------------------------------------- */

/* "Marginal over a hash by work, justified by tail latency." and the like: one line. */
void sim_report_headline(const struct sim_report *report, struct sim_buf *buf);
typedef void (*sim_report_sentence)(void *ctx, const char *text);
/* What follows from it, in one sentence for people who decide. */
void sim_report_short(const struct sim_report *report, sim_report_sentence sentence, void *ctx);
/* The reasons, a few sentences. */
void sim_report_reasons(const struct sim_report *report, sim_report_sentence sentence, void *ctx);
/*
 * A sentence of a list for a terminal: ctx is a struct sim_buf. Breaks at blanks, but not before a percent
 * sign.
 */
void sim_report_wrap(void *ctx, const char *text);
void sim_report_text(const struct sim_report *report, struct sim_buf *buf);
void sim_report_json(const struct sim_report *report, struct sim_buf *buf);
/* One page for all of them, self-contained. */
void sim_report_html(const struct sim_report *reports, size_t count, struct sim_buf *buf);

#endif
