/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `kvroute report`: a report on a live router, worked out of its admin API's answers, and the forms in which
 * it is told. The report on a trace is analyze.h's.
 *
 *     pages of the API ──► figures (report_read.c) ──► verdict, words (report_words.c) ──► text, JSON, page
 *
 * No I/O but report_main.c's. Names come from clients and engines: they are escaped where they are written.
 */
#ifndef KVROUTE_SIM_REPORT_H
#define KVROUTE_SIM_REPORT_H

#include "buf.h"
#include "verdict.h"

#include <kvroute/ledger.h>
#include <yyjson.h>

/* The paths that are asked, in this order. */
#define SIM_LIVE_PAGE_LIST(X)                               \
        X(SIM_LIVE_CONFIG, "/kvroute/config")               \
        X(SIM_LIVE_REPLICAS, "/kvroute/replicas")           \
        X(SIM_LIVE_ALARMS, "/kvroute/alarms")               \
        X(SIM_LIVE_ALL, "/kvroute/ledger?by=all")           \
        X(SIM_LIVE_WORKLOAD, "/kvroute/ledger?by=workload") \
        X(SIM_LIVE_FAMILY, "/kvroute/ledger?by=family")     \
        X(SIM_LIVE_REPLICA, "/kvroute/ledger?by=replica")   \
        X(SIM_LIVE_VIRTUAL, "/kvroute/ledger?by=virtual")
enum sim_live_page {
#define SIM_LIVE_PAGE(code, path) code,
        SIM_LIVE_PAGE_LIST(SIM_LIVE_PAGE)
#undef SIM_LIVE_PAGE
                SIM_LIVE_PAGES
};
const char *sim_live_path(enum sim_live_page page);

#define SIM_LIVE_RULES_MAX 8

/* Simulated replicas can be this many points of reuse off (docs/ledger.md): no more than marginal below. */
#define SIM_LIVE_POINTS_SURE 0.03

/* Strings are borrowed from the pages. Unknown numbers are NAN everywhere. */
struct sim_live_account {
        const char *name;  /* the configuration's for a family, where it has one */
        const char *id;    /* a family's own; else as name */
        bool present;      /* a replica that has not been removed */
        double covered_s;  /* what the sums are over */
        double max_length; /* a family's beginning, tokens */
        struct kvr_ledger_sums sums;
        double shared_tokens[KVR_LEDGER_LOG_BUCKETS], reuse_ms[KVR_LEDGER_LOG_BUCKETS]; /* over life */
};

struct sim_live_accounts {
        struct sim_live_account *items; /* those with a request in the window, most prompt tokens first */
        size_t count;
};

/* The rule in force, or one that simulated replicas followed. */
struct sim_live_rule {
        const char *id, *name, *what; /* "prefix_hash", "prefix hash", what it does */
        double reused;                /* share of the prompt tokens */
        double computed;              /* prompt tokens that were left to compute, were its prompts ours */
        double avoided_s;
        double requests_max_mean, computed_max_mean, hot_max_mean; /* over life; hot: p95 of 10 s windows */
        double busiest; /* tokens that its busiest replica computed */
};

struct sim_live_verdict {
        bool judged;        /* else `why_not` */
        bool shadow;        /* of kv as --shadow measured it, beside another policy in force */
        bool mirror;        /* and that one too: only copies of requests were seen, nothing is a fact */
        bool blind;         /* the policy in force does not look at what is cached */
        const char *policy; /* in force */
        char why_not[200];
        enum sim_verdict by_work, by_load;
        bool idle;                     /* nothing queues: no verdict by load */
        unsigned next, least, calmest; /* rules: the next simpler, that computes least, whose busiest does */
        double work_gain, work_gain_next; /* share of what that rule computes that is not needed */
        double points;                    /* of reuse more than `least` */
        double load_gain; /* more traffic until the busiest replica is full than with `calmest` */
        double token_s;   /* of a replica for one token */
        double busy;      /* share of the time that replicas prefill */
        double even_work_month, even_load_month; /* replica-hours that routing may cost a month */
        double saved_replicas;
};

struct sim_live {
        /* given by the caller */
        yyjson_doc *pages[SIM_LIVE_PAGES];
        const char *url, *window; /* "1m", "10m", "1h", "life" */
        double price;             /* of a replica-hour; 0: not given */
        int64_t made_at;          /* seconds since 1970 */
        /* read from the pages */
        struct sim_live_account all;
        struct sim_live_accounts workloads, families, replicas;
        /* fact: what is judged, kv in force or in the shadow; rules: what is simpler. */
        struct sim_live_rule fact, rules[SIM_LIVE_RULES_MAX];
        unsigned rule_count;
        double replica_count;                  /* that were candidates */
        double capacity;                       /* tokens of the replicas that tell */
        double capacity_known, capacity_asked; /* replicas */
        double curve_x[KVR_LEDGER_CURVE_POINTS], curve_y[KVR_LEDGER_CURVE_POINTS];
        unsigned curve_count;
        /* The curve, `ideal` and `pooled` are of this time, for none is kept of a shorter one than an hour. */
        const char *curve_window;
        bool curve_apart;    /* other requests were in it than in `window` */
        double curve_reused; /* share of the prompt tokens in that time, as `fact` has it of `window` */
        double ideal;        /* with a cache without limit */
        /*
         * Share of the prompt tokens that was reused although no earlier prompt here had it: answers that engines
         * keep, and what was cached before the router began. Simulated replicas have neither, so it is left out of
         * `fact` (and of the policy in force beside a shadow).
         */
        double surplus;
        double pooled;   /* with one as large as the fleet's */
        double left_out; /* requests that simulated replicas did not see */
        struct sim_live_verdict verdict;
};

enum sim_live_status {
        SIM_LIVE_OK,
        SIM_LIVE_OFF,   /* the ledger is switched off */
        SIM_LIVE_FEW,   /* not enough requests yet */
        SIM_LIVE_NOMEM, /* or the pages are not what they should be */
};

/*
 * Everything from the pages and what the caller gave. Unless SIM_LIVE_OK, message says why; free it all the same
 * with sim_live_fini. requests_min: with a known prompt, in the window.
 */
KVR_MUST_USE enum sim_live_status sim_live_read(struct sim_live *live, uint64_t requests_min, char *message,
                                                size_t size);
void sim_live_fini(struct sim_live *live);

/* Predicted and observed over the same requests, those whose engine told; NAN: none did. */
double sim_live_predicted(const struct kvr_ledger_sums *sums);
double sim_live_observed(const struct kvr_ledger_sums *sums);
static inline double sim_live_share(uint64_t part, uint64_t whole)
{
        return whole ? (double)part / (double)whole : __builtin_nan("");
}

/* Fills in the verdict; called by sim_live_read. */
void sim_live_judge(struct sim_live *live);

/* ---- words -------------------------------------------------------------------------------------------- */

typedef void (*sim_live_sentence)(void *ctx, const char *text);
/* "in the last hour", "since the router began" */
void sim_live_span(const struct sim_live *live, char *ret, size_t size);
/* "It is justified by work, ..." */
void sim_live_headline(const struct sim_live *live, struct sim_buf *buf);
void sim_live_short(const struct sim_live *live, sim_live_sentence sentence, void *ctx);
void sim_live_reasons(const struct sim_live *live, sim_live_sentence sentence, void *ctx);
/* A duration for people: "850 ms", "12.3 s", "4.5 h"; "unknown" for NAN. */
void sim_live_seconds(double seconds, char *ret, size_t size);

/* ---- forms -------------------------------------------------------------------------------------------- */

void sim_live_text(const struct sim_live *live, struct sim_buf *buf);
void sim_live_json(const struct sim_live *live, struct sim_buf *buf);
/* The pictures of a page. */
void sim_live_plots(const struct sim_live *live, struct sim_buf *buf);
void sim_live_html(const struct sim_live *live, struct sim_buf *buf);

#endif
