/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the router still does what it is there for. Nothing breaks when matching finds nothing, when an
 * engine keeps silent about its cache or when its load page is gone: requests are answered as before, only
 * slower. So somebody has to look, and to say so. Pure: counters and times in, named alarms out.
 *
 * Two kinds of evidence:
 *
 *     a condition   (load page gone, cache off)   must hold for hold_ns to raise an alarm, and be away as
 *                                                 long to clear it
 *     traffic       (hits, reports)               is judged in windows; a window closes when it has seen
 *                                                 enough and lasted for hold_ns. No traffic, no verdict: an
 *                                                 idle router raises nothing and forgets nothing.
 *
 * Between the figures that raise an alarm and those that clear it lies a gap where it stays as it is.
 * docs/alarms.md tells people what to do about each.
 */
#ifndef KVROUTE_ROUTER_WATCH_H
#define KVROUTE_ROUTER_WATCH_H

#include <kvroute/base.h>

/* The names are those of kvroute_alarm{alarm} and of GET /kvroute/alarms. */
#define WATCH_ALARM_LIST(X)                                                                                  \
        X(WATCH_NO_REPLICA, "no_replica")     /* fleet: none is ready */                                     \
        X(WATCH_REPLICA_DOWN, "replica_down") /* it has been down for long */                                \
        X(WATCH_NO_MATCH, "no_match") /* fleet and replica: nothing is ever found, engines report hits */    \
        X(WATCH_UNREAD_PROMPTS, "unread_prompts")       /* fleet: most prompts cannot be read */             \
        X(WATCH_PREDICTIONS_FAIL, "predictions_fail")   /* what is predicted there does not come true */     \
        X(WATCH_UNREPORTED, "cached_tokens_unreported") /* its answers do not tell cached tokens */          \
        X(WATCH_CACHE_OFF, "prefix_caching_off")        /* the engine says so itself */                      \
        X(WATCH_LOAD_MISSING, "load_missing")           /* its engine has a load page, which never worked */ \
        X(WATCH_LOAD_STALE, "load_stale")               /* it worked, and does no more */                    \
        X(WATCH_EVENTS_SILENT, "events_silent")         /* none come, although it computes prompts */        \
        X(WATCH_EVENTS_UNTRUSTED, "events_untrusted")   /* they come, and cannot be relied on */             \
        X(WATCH_EVENTS_UNMATCHED, "events_unmatched")   /* they do not explain the hits it reports */        \
        X(WATCH_EVENTS_FULL, "events_full")         /* they tell of more blocks than there is memory for */  \
        X(WATCH_TOKENIZER_FAILS, "tokenizer_fails") /* prompts cannot be matched with its events */
enum watch_alarm {
#define WATCH_ENUM(code, name) code,
        WATCH_ALARM_LIST(WATCH_ENUM)
#undef WATCH_ENUM
                WATCH_COUNT
};
const char *watch_alarm_name(enum watch_alarm alarm);

/* no_match: a window of so many look-ups (of one replica: decisions), */
#define WATCH_MATCH_LOOKUPS 100
#define WATCH_MATCH_WINDOWS 3    /* so many of them in a row, */
#define WATCH_MATCH_BAD     0.01 /* with at most this share that found something (of one replica: tokens), */
#define WATCH_MATCH_HITS    0.1  /* while at least this share of the tokens that are told about was cached, */
#define WATCH_MATCH_TOKENS  128  /* so many per request (what a chat template puts first is always there), */
#define WATCH_MATCH_MISSED  0.25 /* and less than this part of that was predicted. */
#define WATCH_MATCH_GOOD    0.02 /* More finds than this, or fewer hits, clear it. */

/* unread_prompts: a window of so many prompts, of which so large a share could not be read */
#define WATCH_UNREAD_PROMPTS_SEEN 50
#define WATCH_UNREAD_BAD          0.5
#define WATCH_UNREAD_GOOD         0.25

/* predictions_fail: trust (kvr_replica_info) below BAD for hold_ns and so many decisions; above GOOD again */
#define WATCH_TRUST_BAD       0.35 /* a restart without a sign costs 0.41 of 1: that alone is no alarm */
#define WATCH_TRUST_GOOD      0.7
#define WATCH_TRUST_DECISIONS 8

/* cached_tokens_unreported: a window of so many decisions and prompt tokens, of which so large a share is
 * unknown */
#define WATCH_REPORT_DECISIONS 10
#define WATCH_REPORT_TOKENS    5000
#define WATCH_REPORT_BAD       0.9
#define WATCH_REPORT_GOOD      0.5

/* events_silent: so many requests, and prompt tokens that were computed for them, since the last event */
#define WATCH_EVENTS_DECISIONS 10
#define WATCH_EVENTS_TOKENS    2000

/* tokenizer_fails: so many questions since the last answer */
#define WATCH_TOKENIZER_FAILURES 5

struct watch_limits {
        uint64_t hold_ns;  /* a condition must hold, and a window last, for so long */
        uint64_t stale_ns; /* figures of load older than this are stale */
        uint64_t down_ns;  /* a replica that is down for so long does not come back by itself */
};

enum watch_flag { /* what is known of something; what an engine said of itself */
                  WATCH_UNKNOWN,
                  WATCH_NO,
                  WATCH_YES,
};

/* Sums since the start, none of which ever falls. */
struct watch_fleet_sample {
        enum watch_flag ready;                   /* some replica may get requests; unknown: still starting */
        uint64_t lookups, lookups_without_match; /* kvr_index_info */
        uint64_t unread;                         /* requests to known APIs whose prompt could not be read */
        uint64_t prompt_tokens, unobserved_tokens, predicted_tokens, observed_tokens; /* kvr_reason_account */
};

struct watch_replica_sample {
        enum watch_flag down;    /* unknown: still starting */
        bool ready;              /* it gets requests; otherwise only traffic is judged */
        bool load_expected;      /* its engine has a load page, and polling is on */
        uint64_t load_at_ns;     /* when that page was last understood; 0: never */
        enum watch_flag caching; /* whether it caches prefixes at all */
        bool can_report;         /* its engine can tell cached tokens */
        bool match_explained;    /* the fleet's no_match is raised already */
        bool trust_known;        /* predictions there have been checked */
        double trust;            /* kvr_replica_info */
        bool events_expected;    /* it is to tell its cache by events */
        bool events_trusted, events_deaf;
        bool events_unmatched; /* what they say is not what it reports */
        uint64_t events_heard; /* when the last one came, by any clock; 0: never */
        uint64_t events_stored,
                events_refused; /* blocks they told of, with and without room for them; sums */
        uint64_t tokenized,
                untokenized; /* prompts that its tokenizer told the tokens of, and did not; sums */
        uint64_t decisions;  /* sums, which never fall */
        uint64_t prompt_tokens, unobserved_tokens, predicted_tokens, observed_tokens;
};

struct watch_state {
        bool raised;
        uint64_t since_ns;   /* of its last change */
        bool leaning;        /* the evidence speaks for the other state, */
        uint64_t leaning_ns; /* since then */
};

struct watch_window {
        bool open;
        uint64_t start_ns;
        union {
                struct watch_fleet_sample fleet;
                struct watch_replica_sample replica;
        } base;
        unsigned bad; /* bad ones in a row */
};

/* One for the fleet, and one for each replica. All zero is a new one. */
struct watch {
        struct watch_state states[WATCH_COUNT];
        struct watch_window match, unread, report;
        bool looked;              /* at least once */
        uint64_t doubt_decisions; /* when its trust fell, or when the watch began */
        uint64_t events_heard, events_heard_ns, events_decisions, events_computed; /* as of the last event */
        uint64_t stored, refused;        /* as of the last refusal */
        uint64_t tokenized, untokenized; /* as of the tokenizer's last answer */
};

/* Looks once. Returns the alarms that changed, as bits 1 << enum watch_alarm. now_ns never falls. */
unsigned watch_fleet(struct watch *watch, const struct watch_fleet_sample *sample,
                     const struct watch_limits *limits, uint64_t now_ns);
unsigned watch_replica(struct watch *watch, const struct watch_replica_sample *sample,
                       const struct watch_limits *limits, uint64_t now_ns);

#endif
