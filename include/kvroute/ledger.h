/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: what became of the prompts, by workload, family, model and replica, and what other rules would
 * have made of them.
 *
 *     kvr_ledger_new ──► kvr_router_set_ledger ──► (traffic) ──► kvr_ledger_account, _balance, ...
 *
 * It is fed by the settlement of every ticket of the router it is set to, after the router's own lock is given
 * back. All of its memory is taken by kvr_ledger_new, every table has a limit, and it knows keys, lengths and
 * times, never text. All functions may be called from any thread; each takes one lock of the ledger's own for
 * a few microseconds (kvr_ledger_curve some tens). Times are nanoseconds of the router's clock, tokens are the
 * engine's where it counted and estimates else. docs/ledger.md tells what the figures mean and how far to
 * trust them.
 *
 * Two words are kept apart everywhere: *predicted* is what kvroute believed to be cached on the chosen
 * replica, *observed* what the engine reported. A request whose engine reports nothing is *unobserved*: it
 * counts in neither hits nor misses of what was observed.
 */
#ifndef KVROUTE_LEDGER_H
#define KVROUTE_LEDGER_H

#include "base.h"
#include "router.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVR_LEDGER_REPLICAS_MAX  512   /* replicas with an account; later ones are booked under "(other)" */
#define KVR_LEDGER_WORKLOADS_MAX 64    /* names with an account each, "(none)" and "(other)" included */
#define KVR_LEDGER_MODELS_MAX    64    /* likewise */
#define KVR_LEDGER_FAMILIES_MAX  128   /* the busiest ones, "(none)" and "(other)" included */
#define KVR_LEDGER_BRANCHES      4     /* different continuations that make a shared prefix a family */
#define KVR_LEDGER_SIGHTS_MAX    16384 /* ends and forks of prompts that are remembered by key and time */
#define KVR_LEDGER_CURVE_KEYS    32768 /* prefixes that the stack-distance curve samples at most */
#define KVR_LEDGER_DETAIL_RATE   1000  /* default of kvr_ledger_settings.detail_rate */
#define KVR_LEDGER_VIRTUAL_RUNS  32768 /* default of kvr_ledger_settings.virtual_runs */
#define KVR_LEDGER_LAYOUTS_MAX   4096  /* shapes of conversations that are remembered to find spoilers */
#define KVR_LEDGER_SPOILERS_MAX  64    /* places where conversations part that are counted */
#define KVR_LEDGER_SPOILER_COUNT 3     /* a place is reported from so many times on */
#define KVR_LEDGER_LOG_BUCKETS   26    /* of a histogram: 0, then [2^(n-1), 2^n), the last one open */
#define KVR_LEDGER_CURVE_POINTS  89    /* four for each doubling of the cache from 2^10 to 2^32 tokens */

struct kvr_ledger;

struct kvr_ledger_settings {
        bool without_counterfactual; /* no virtual fleets: saves their memory and most of the time */
        /* Runs of up to ten points that each of the three virtual fleets can hold in all; 0:
         * KVR_LEDGER_VIRTUAL_RUNS; rounded up to a power of two, at most 2^24. 68 bytes each, three times. */
        uint32_t virtual_runs;
        /* With more requests a second than this the virtual fleets, the curve and the search for spoilers pause, as
         * what they cost would count there; 0: KVR_LEDGER_DETAIL_RATE. They go on when ten seconds in a row had less
         * than half of it. Accounts never pause. */
        uint32_t detail_rate;
        /* The curve does not look at caches larger than this; 0: 2^28 tokens. A larger figure means fewer
         * samples. */
        uint64_t curve_tokens;
};

/* Borrows settings (NULL: all defaults). KVR_E_ARGUMENT, KVR_E_NOMEM. Free it with kvr_ledger_free when no
 * router is set to it and all tickets of those that were are settled. */
KVR_PUBLIC KVR_MUST_USE enum kvr_status kvr_ledger_new(const struct kvr_ledger_settings *settings,
                                                       struct kvr_ledger **ret, struct kvr_error *err);
KVR_PUBLIC void kvr_ledger_free(struct kvr_ledger *ledger); /* NULL is fine */
/* All that it allocated, in bytes; does not change. */
KVR_PUBLIC uint64_t kvr_ledger_bytes(const struct kvr_ledger *ledger);

/* From now on what the router decides is booked there; NULL: nowhere. Tickets that are out are settled where
 * they were decided. Replicas that the router has or gets are made known to the ledger. One ledger takes one
 * router. */
KVR_PUBLIC void kvr_router_set_ledger(struct kvr_router *router, struct kvr_ledger *ledger);

/*
 * For a second router that decides the same requests and sees no answers, to tell what its policy would gain:
 * takes over what `from` has learned of engines rather than of what they hold. Of models: tokens per byte,
 * prefill speed, whether generated answers come back as hits. Of replicas with the same name: speed, and the size
 * of the cache where it was learned. Overwrites; call it every second or so. KVR_E_NOMEM changes nothing.
 */
KVR_PUBLIC enum kvr_status kvr_router_adopt(struct kvr_router *router, struct kvr_router *from);

/* ---- accounts ---- */

/*
 * Sums over settled tickets. All but `requests` are over the computed ones: a first token came or they
 * finished, and the size of the prompt is known. Matches are as told at decision, but less than the prompt.
 *
 * The hit account splits every prompt: won + placement + staleness + workload = prompt. With p the prompt,
 * b the best match over the candidates, m that of the chosen one, o what was observed (m where nothing was):
 *
 *     won       = o
 *     staleness = max(0, m - o)           we thought it was there
 *     placement = max(0, b - max(m, o))   another replica held it; passed over for load, or unseen
 *     workload  = p - max(b, m, o)        nobody held it: nothing to reuse, or evicted everywhere
 */
#define KVR_LEDGER_SUM_LIST(X)                                                                 \
        X(requests) /* all tickets, failed ones included */                                    \
        X(computed) /* of these, computed with a known prompt */                               \
        X(observed) /* of these, the engine told what was cached */                            \
        X(prompt_tokens)                                                                       \
        X(best_tokens)      /* best match over the candidates */                               \
        X(predicted_tokens) /* match on the chosen one */                                      \
        X(observed_tokens)                                                                     \
        X(unobserved_prompt_tokens) /* prompts of computed requests that are not observed */   \
        X(won_tokens)                                                                          \
        X(won_unobserved_tokens) /* of these, predicted only */                                \
        X(placement_tokens)                                                                    \
        X(staleness_tokens)                                                                    \
        X(workload_tokens)                                                                     \
        X(surplus_tokens)  /* observed beyond predicted */                                     \
        X(hit_requests)    /* observed with at least one token */                              \
        X(prompt_blocks)   /* whole blocks of observed prompts, of the replica's block size */ \
        X(hit_blocks)      /* of these, hit */                                                 \
        X(reused_requests) /* they began like a prompt that somebody still held */             \
        X(avoided_ns)      /* replica time: won tokens at the replica's learned speed */       \
        X(untimed_tokens)  /* won tokens of replicas whose speed is not known yet */
struct kvr_ledger_sums {
#define KVR_LEDGER_SUM_FIELD(name) uint64_t name;
        KVR_LEDGER_SUM_LIST(KVR_LEDGER_SUM_FIELD)
#undef KVR_LEDGER_SUM_FIELD
};
#define KVR_LEDGER_SUMS (sizeof(struct kvr_ledger_sums) / sizeof(uint64_t))

/* Hit rates of what was observed, by tokens, blocks and requests; NAN where nothing was. Any thread, no lock.
 */
KVR_PUBLIC double kvr_ledger_hit_tokens(const struct kvr_ledger_sums *sums);
KVR_PUBLIC double kvr_ledger_hit_blocks(const struct kvr_ledger_sums *sums);
KVR_PUBLIC double kvr_ledger_hit_requests(const struct kvr_ledger_sums *sums);

enum kvr_ledger_by {
        KVR_LEDGER_ALL,      /* one account of everything, named "all" */
        KVR_LEDGER_WORKLOAD, /* by kvr_request.workload */
        KVR_LEDGER_FAMILY,   /* by shared beginning, "family-" and 8 hex digits */
        KVR_LEDGER_MODEL,    /* by kvr_request.model */
        KVR_LEDGER_REPLICA,  /* "(other)": those without an account of their own, and those long gone */
        /*
         * The counterfactual: the same requests on a virtual fleet of the same replicas under another rule,
         * named by it (round_robin, least_tokens, prefix_hash). Only requests, computed, prompt_tokens,
         * predicted_tokens, won_tokens, avoided_ns and untimed_tokens are filled.
         */
        KVR_LEDGER_VIRTUAL,
};
/* "all", "workload", ...; "unknown" for what is none. Never NULL. */
KVR_PUBLIC const char *kvr_ledger_by_name(enum kvr_ledger_by by);

/* A window reaches back by its length, and to the beginning of the bucket it falls in (5 s, 1 min and 5 min).
 */
enum kvr_ledger_window { KVR_LEDGER_LIFE, KVR_LEDGER_MINUTE, KVR_LEDGER_TEN_MINUTES, KVR_LEDGER_HOUR };
#define KVR_LEDGER_WINDOWS 4

struct kvr_ledger_account {
        char name[KVR_NAME_MAX]; /* may be any bytes a client sent; cut to fit, terminated */
        kvr_replica_id replica;  /* KVR_LEDGER_REPLICA: its handle, else 0 */
        bool present;            /* KVR_LEDGER_REPLICA: it has not been removed */
        uint64_t last_ns;        /* when it was last booked; 0 never */
        struct kvr_ledger_sums sums[KVR_LEDGER_WINDOWS]; /* by enum kvr_ledger_window */
        double covered_s[KVR_LEDGER_WINDOWS]; /* seconds that the sums are over: at most since the first
                                                 booking */
        double family_tokens; /* KVR_LEDGER_FAMILY: length of the shared beginning, else NAN */
        /*
         * Of computed requests, over life: how much of the prompt somebody held already, in tokens; and how
         * long ago that beginning was last used, in milliseconds. Buckets as KVR_LEDGER_LOG_BUCKETS says.
         */
        uint64_t shared_tokens[KVR_LEDGER_LOG_BUCKETS];
        uint64_t reuse_ms[KVR_LEDGER_LOG_BUCKETS];
        uint64_t reuse_unknown; /* reused, but the time of the last use is not remembered */
};

/*
 * Copies the account at *cursor (0 at first) and moves the cursor on; false at the end. Each account is of
 * one moment, the walk is not: an account that is made or given up meanwhile may be missed. Accounts that
 * were never booked are left out, virtual and replica ones are not.
 */
KVR_PUBLIC bool kvr_ledger_account(struct kvr_ledger *ledger, enum kvr_ledger_by by, uint64_t now_ns,
                                   uint32_t *cursor, struct kvr_ledger_account *ret);

/* ---- distribution over replicas ---- */

/* Of a sample over n replicas: max/mean (1 .. n), coefficient of variation (0 ..), Jain's index 1/(1 + CV^2).
 */
struct kvr_ledger_spread {
        double max_mean, cv, jain; /* NAN without requests */
        double p95_max_mean;       /* over the ended 10 s windows of the last hour; NAN without */
};
struct kvr_ledger_balance {
        uint32_t replicas; /* that were candidates of a decision since they were added */
        uint32_t windows;  /* behind p95: those with at least 4 requests per candidate of theirs */
        struct kvr_ledger_spread requests, computed_tokens;
};
/* The real fleet, or with a virtual account's name ("round_robin") that fleet. KVR_E_NOT_FOUND: no such name,
 * or switched off. */
KVR_PUBLIC KVR_MUST_USE enum kvr_status kvr_ledger_balance(struct kvr_ledger *ledger, const char *name,
                                                           uint64_t now_ns, struct kvr_ledger_balance *ret);

/* ---- hit rate as a function of cache size ---- */

/*
 * Token hit rate that one LRU cache of so many tokens would have had on the requests so far, from stack
 * distances (Mattson and others 1970) over a sample of prefixes by key hash of at most KVR_LEDGER_CURVE_KEYS
 * (SHARDS, Waldspurger and others 2015), with the correction of the first bucket (SHARDS-adj) for the part of
 * prompts that somebody held. Granular to points; the last token of a prompt counts as a hit here.
 * Exact while sample_rate is 1.
 */
struct kvr_ledger_curve {
        uint64_t cache_tokens[KVR_LEDGER_CURVE_POINTS];
        double hit_rate[KVR_LEDGER_CURVE_POINTS]; /* NAN without requests or beyond tokens_max */
        double ideal;                             /* with a cache of tokens_max; NAN without requests */
        double sample_rate;                       /* share of prefixes that is looked at now */
        uint32_t sampled_keys;                    /* held now */
        uint64_t tokens_max; /* distances beyond it count as never seen; kvr_ledger_settings.curve_tokens */
        uint64_t prompt_tokens;
};
/* KVR_LEDGER_LIFE, or any other window for the last hour. */
KVR_PUBLIC void kvr_ledger_curve(struct kvr_ledger *ledger, enum kvr_ledger_window window, uint64_t now_ns,
                                 struct kvr_ledger_curve *ret);

/* ---- cache spoilers ---- */

/*
 * A place where conversations part although they look the same behind it. From keys and lengths alone: a
 * prompt that left everything known early and yet has an earlier prompt's sequence of message lengths, or the
 * same length of a long message, behind that place. The place is between the two offsets, in units of the
 * canonical prompt.
 */
struct kvr_ledger_spoiler {
        char family[KVR_NAME_MAX]; /* account it was seen in */
        enum kvr_unit unit;
        uint32_t from, to; /* agreed up to `from`, differed at `to` */
        uint64_t count;    /* prompts that parted here */
        uint64_t tokens;   /* prompt tokens behind the place, in all: what it may have cost */
        uint64_t last_ns;
};
/* Fills up to `max`, most frequent first; returns how many there are. Reported from KVR_LEDGER_SPOILER_COUNT
 * on. */
KVR_PUBLIC size_t kvr_ledger_spoilers(struct kvr_ledger *ledger, struct kvr_ledger_spoiler *ret, size_t max);

/* ---- health of the ledger itself ---- */

struct kvr_ledger_info {
        uint64_t bytes;
        uint64_t entries;                     /* settlements booked */
        uint32_t families, families_given_up; /* listed now; replaced by busier ones since start */
        bool counterfactual;
        bool detail_paused;        /* there are too many requests a second now (detail_rate) */
        uint64_t detail_left_out;  /* requests that virtual fleets, curve and spoilers did not see for that */
        uint64_t virtual_runs[3];  /* held now by each virtual fleet */
        uint64_t virtual_runs_max; /* limit of each */
        uint64_t virtual_crowded[3]; /* dropped for that limit before the replica was full: figures are too
                                        low */
};
KVR_PUBLIC void kvr_ledger_info(struct kvr_ledger *ledger, struct kvr_ledger_info *ret);

#ifdef __cplusplus
}
#endif

#endif
