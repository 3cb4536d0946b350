/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The brain: which replica should serve this request, what it probably has cached, and what became of it.
 *
 *     kvr_decide ──► ticket ──► kvr_ticket_first_token ──► kvr_ticket_settle
 *        │ match, price, choose and book at once   │ prefill load released   │ the rest released, outcome
 * booked, │                                         │ speed learned           │ cache state corrected
 *
 * Every ticket is settled exactly once, on every way out. All functions may be called from any thread; calls
 * that touch one router take one short internal lock. Names are hashed and prompts copied without it, and a
 * warm router allocates nothing; only the tables of the cache index grow under it, a piece of bounded size at
 * a time. Equal calls in equal order with an equal environment give equal answers. docs/routing.md tells how
 * a decision is taken.
 */
#ifndef KVROUTE_ROUTER_H
#define KVROUTE_ROUTER_H

#include "base.h"
#include "prompt.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVR_REPLICAS_MAX           4096 /* replicas of one router at a time */
#define KVR_MODELS_PER_REPLICA_MAX 256
#define KVR_NAME_MAX               128 /* bytes of a replica or model name, terminator included */
#define KVR_TRIED_MAX              8   /* replicas one request may exclude */

struct kvr_router;
struct kvr_ticket;

/* A replica's handle. Never reused: a replica that is removed and added again gets a new one. 0 is no
 * replica. */
typedef uint64_t kvr_replica_id;

struct kvr_settings {
        const char *policy; /* "kv" when NULL; see kvr_policy_count and kvr_policy_name */
        /*
         * Hard cap of the cache index, tables included; 0: 512 MiB; at least 1 MiB. About 16 bytes per
         * (prefix, replica) and 30 per prefix. Session keys and response ids lie outside it, 3 MB each when
         * used.
         */
        uint64_t index_memory_bytes;
        double default_prefill_tokens_per_second; /* until a replica's speed is learned; 0: 8000 */
        double default_tokens_per_byte;           /* until a model's ratio is learned; 0: 0.25 */
        uint32_t queue_wait_hint_ms; /* retry_after for KVR_E_BUSY when no replica told one; 0: 1000 */
        /*
         * Hard caps of what engine events need (events.h), taken when the first replica tells by events: the
         * block index (0: as much as index_memory_bytes) and the map from text to tokens (0: an eighth of
         * it). At least 1 MiB and 64 KiB.
         */
        uint64_t block_memory_bytes, token_map_bytes;
};

/* Borrows settings (NULL: all defaults) and env, keeps env->ctx. Gives a router to free with kvr_router_free
 * (all tickets settled before). */
KVR_PUBLIC KVR_MUST_USE enum kvr_status kvr_router_new(const struct kvr_settings *settings,
                                                       const struct kvr_env *env, struct kvr_router **ret,
                                                       struct kvr_error *err);
KVR_PUBLIC void kvr_router_free(struct kvr_router *router);

/* The policies that exist, by number 0 .. count-1. */
KVR_PUBLIC size_t kvr_policy_count(void);
KVR_PUBLIC const char *kvr_policy_name(size_t number);
KVR_PUBLIC const char *kvr_policy_help(size_t number); /* one line */
KVR_PUBLIC KVR_MUST_USE enum kvr_status kvr_router_set_policy(struct kvr_router *router, const char *name,
                                                              struct kvr_error *err);

/* ---- fleet
 * ---------------------------------------------------------------------------------------------------- */

/* How an engine keeps prefixes. */
enum kvr_cache_kind {
        KVR_CACHE_BLOCKS, /* a pool of blocks shared by all requests, LRU (vLLM, SGLang, TensorRT-LLM,
                             unknown) */
        KVR_CACHE_SLOTS,  /* one sequence per slot plus whole sequences kept in RAM (llama.cpp) */
};

/* Whether new requests may go there. The host decides (probes, traffic, operator); the library obeys. */
enum kvr_state {
        KVR_STARTING, /* not seen healthy yet: as DOWN */
        KVR_READY,
        KVR_TRIAL, /* half-open: at most one request at a time */
        KVR_DOWN,  /* only tried when no READY or TRIAL candidate is left untried (kvr_request.last_resort) */
        KVR_DRAINING, /* nothing new, ever */
};
KVR_PUBLIC const char *kvr_state_name(enum kvr_state state);

struct kvr_replica_spec {
        const char *name; /* unique, at most KVR_NAME_MAX - 1 bytes; copied */
        enum kvr_cache_kind cache;
        uint32_t block_tokens;    /* size of the engine's cache blocks; 0 unknown: 1 (predictions are not
                                     rounded) */
        uint64_t capacity_tokens; /* what its cache holds; 0 unknown: learned from observations */
        uint32_t slots;           /* KVR_CACHE_SLOTS: parallel sequences; 0 unknown: 4 */
        uint32_t max_running;     /* requests in flight beyond which it counts as full; 0: no limit */
};

KVR_PUBLIC KVR_MUST_USE enum kvr_status kvr_replica_add(struct kvr_router *router,
                                                        const struct kvr_replica_spec *spec,
                                                        kvr_replica_id *ret_id, struct kvr_error *err);
/* O(1) on the spot: its cache entries are void at once and reclaimed later. Running tickets settle as usual.
 */
KVR_PUBLIC enum kvr_status kvr_replica_remove(struct kvr_router *router, kvr_replica_id id);
/* Everything it cached is gone (restart, flush). O(1) on the spot. Load stays booked. */
KVR_PUBLIC enum kvr_status kvr_replica_forget(struct kvr_router *router, kvr_replica_id id);
KVR_PUBLIC enum kvr_status kvr_replica_set_state(struct kvr_router *router, kvr_replica_id id,
                                                 enum kvr_state state);
/*
 * Updates what the engine told of itself. A 0 leaves what is known as it is, except for max_running. The name
 * is not changed; spec->name may be NULL. A new capacity replaces what was learned; telling the same again
 * does not.
 */
KVR_PUBLIC enum kvr_status kvr_replica_configure(struct kvr_router *router, kvr_replica_id id,
                                                 const struct kvr_replica_spec *spec);
/* The models it serves, copied; count 0: any model (not known yet). */
KVR_PUBLIC KVR_MUST_USE enum kvr_status kvr_replica_set_models(struct kvr_router *router, kvr_replica_id id,
                                                               const struct kvr_slice *models, size_t count);
/* Nothing new before `until_ns` (the replica's Retry-After). A later call replaces an earlier one; 0 lifts
 * it. */
KVR_PUBLIC enum kvr_status kvr_replica_pause(struct kvr_router *router, kvr_replica_id id, uint64_t until_ns);

/* What an engine said about its load. A negative or NAN figure is unknown, which is not zero. */
struct kvr_load_report {
        uint64_t at_ns;        /* when it was measured (env clock) */
        double running;        /* requests in the batch */
        double waiting;        /* requests queued in the engine */
        double kv_usage;       /* referenced share of the KV cache, 0..1 */
        double waiting_tokens; /* uncached prompt tokens queued in the engine */
};
KVR_PUBLIC enum kvr_status kvr_replica_report(struct kvr_router *router, kvr_replica_id id,
                                              const struct kvr_load_report *report);

/* What matches of a replica come from at the moment. */
enum kvr_residency {
        KVR_BY_HISTORY, /* what was sent there */
        KVR_BY_EVENTS,  /* what it says it holds */
};

/* Do its events explain the hits it reports? If not, the likeliest cause. The names are for labels. */
#define KVR_CANARY_LIST(X)                                                                                  \
        X(KVR_CANARY_OK, "ok")                 /* or nothing to tell by yet */                              \
        X(KVR_CANARY_SILENT, "silent")         /* it reports hits; its events hold nothing */               \
        X(KVR_CANARY_NO_TOKENS, "no_tokens")   /* it reports hits; no tokenizer told tokens of prompts */   \
        X(KVR_CANARY_BLOCK_SIZE, "block_size") /* no match; its events have another block size than told */ \
        X(KVR_CANARY_NAMESPACE, "namespace")   /* no match; it holds them for another adapter or salt */    \
        X(KVR_CANARY_TEMPLATE, "template")     /* no match; it holds other tokens: template, special ids */ \
        X(KVR_CANARY_STALE, "stale")           /* its events say it holds them; it had computed them anew */
enum kvr_canary {
#define KVR_CANARY_ENUM(code, name) code,
        KVR_CANARY_LIST(KVR_CANARY_ENUM)
#undef KVR_CANARY_ENUM
};
KVR_PUBLIC const char *kvr_canary_name(enum kvr_canary canary);

/* One replica as the router sees it, for status pages. Unknown doubles are NAN. */
struct kvr_replica_info {
        kvr_replica_id id;
        char name[KVR_NAME_MAX];
        enum kvr_state state;
        enum kvr_cache_kind cache;
        uint32_t in_flight;              /* our requests there, not finished */
        uint32_t prefilling;             /* of these, without a first token */
        uint64_t uncached_tokens_booked; /* of these, the uncached prompt tokens; 256 for a prompt of unknown
                                            size */
        uint64_t capacity_tokens;        /* told or learned; 0 unknown */
        bool capacity_learned;
        uint64_t cached_tokens;           /* what we believe it holds */
        double prefill_tokens_per_second; /* learned; NAN until then */
        struct kvr_load_report load; /* the last report; fields NAN when unknown or older than the limit */
        uint64_t paused_until_ns;
        uint64_t decisions; /* tickets ever booked */
        uint64_t prompt_tokens, predicted_tokens, observed_tokens,
                unobserved_tokens;     /* sums over settled tickets */
        uint64_t overpredicted_tokens; /* sum of predicted - observed where positive: staleness */
        double prediction_error;       /* running mean of |predicted - observed| / prompt; NAN until known */
        double trust;    /* running mean of observed / predicted, at most 1; below 1/2 matches count less */
        uint64_t resets; /* times it was found to have lost its cache without a sign */
        /* Engine events (events.h). By history although trusted: they were contradicted too often, see canary
         */
        enum kvr_residency residency;
        bool events_trusted;         /* as kvr_events_trust said last */
        uint32_t event_block_tokens; /* size of the blocks its events tell of; 0: none yet */
        uint64_t event_blocks;       /* that it says it holds, all tiers */
        uint64_t events_matched;     /* answers whose cached tokens were what the events said, */
        uint64_t events_missed;      /* and where one was nothing and the other much */
        enum kvr_canary canary;
};
/* Fills up to `max` entries in order of addition, returns how many replicas there are. */
KVR_PUBLIC size_t kvr_router_replicas(struct kvr_router *router, struct kvr_replica_info *ret, size_t max);
KVR_PUBLIC KVR_MUST_USE enum kvr_status kvr_replica_info(struct kvr_router *router, kvr_replica_id id,
                                                         struct kvr_replica_info *ret);

/* ---- decisions
 * ------------------------------------------------------------------------------------------------- */

struct kvr_request {
        const struct kvr_prompt *prompt; /* borrows; NULL: nothing known, by load only */
        struct kvr_slice model;          /* resolved name; empty: any replica */
        struct kvr_slice adapter; /* LoRA adapter as engines' events name it, for prompts of token ids; empty:
                                     the prompt's own, else the base model */
        struct kvr_slice affinity; /* session key; used when the text says too little; may be empty */
        kvr_replica_id pinned;     /* the owner of a previous response: ahead of any prefix; 0 none */
        kvr_replica_id tried[KVR_TRIED_MAX]; /* never chosen again */
        uint32_t tried_count;
        bool last_resort;          /* DOWN replicas may be tried when nothing better is left */
        struct kvr_slice workload; /* the name its account in the ledger goes by (ledger.h); may be empty */
};

/* Why a replica was chosen. The names are those of the x-kvroute-reason header. */
#define KVR_REASON_LIST(X)                                                                               \
        X(KVR_REASON_HIT, "hit")           /* it holds a useful part of the prompt */                    \
        X(KVR_REASON_LOAD, "load")         /* nothing useful cached anywhere: least work */              \
        X(KVR_REASON_SPREAD, "spread")     /* another one holds more, but waiting there costs more */    \
        X(KVR_REASON_AFFINITY, "affinity") /* session key, hash, or owner of the previous response */    \
        X(KVR_REASON_QUEUE, "queue")       /* it waited in the router's queue first (set by the host) */ \
        X(KVR_REASON_RETRY, "retry")       /* an earlier try failed */                                   \
        X(KVR_REASON_ONLY, "only")         /* the only candidate */
enum kvr_reason {
#define KVR_REASON_ENUM(code, name) code,
        KVR_REASON_LIST(KVR_REASON_ENUM)
#undef KVR_REASON_ENUM
};
KVR_PUBLIC const char *kvr_reason_name(enum kvr_reason reason);

/* One candidate of a decision, as the policy saw it. Costs in seconds; NAN where the policy does not price.
 */
struct kvr_candidate {
        kvr_replica_id replica;
        uint32_t match_tokens;
        uint32_t due_tokens; /* leading tokens that count as present because a copy is due there; 0 none */
        double wait_s, own_s, toll_s, cost_s;
};

struct kvr_decision {
        kvr_replica_id replica;
        enum kvr_reason reason;
        uint32_t prompt_tokens;     /* estimate; exact when the prompt came as ids */
        uint32_t match_tokens;      /* predicted on the chosen replica; at most prompt_tokens - 1 */
        uint32_t best_match_tokens; /* best over all candidates */
        uint32_t due_tokens;        /* of the chosen one, as in struct kvr_candidate; so are the next */
        double wait_s, own_s, toll_s;
        uint32_t candidate_count;
        uint64_t retry_after_ns; /* KVR_E_BUSY: the shortest wait any candidate asked for */
};

/*
 * Chooses and books in one step.
 * KVR_OK            *ret_decision and *ret_ticket are set; the ticket is the caller's until
 * kvr_ticket_settle. KVR_E_NO_MODEL    replicas exist, none serves the model KVR_E_NO_REPLICA  none may be
 * tried (none known, all tried, all draining, or all down and last_resort is false) KVR_E_BUSY        all
 * candidates are full (max_running) or paused; ret_decision->retry_after_ns is set KVR_E_NOMEM
 */
KVR_PUBLIC KVR_MUST_USE enum kvr_status kvr_decide(struct kvr_router *router,
                                                   const struct kvr_request *request,
                                                   struct kvr_decision *ret_decision,
                                                   struct kvr_ticket **ret_ticket, struct kvr_error *err);
/* The same without booking anything; fills up to `max` candidates, *ret_count tells how many there are. */
KVR_PUBLIC KVR_MUST_USE enum kvr_status kvr_explain(struct kvr_router *router,
                                                    const struct kvr_request *request,
                                                    struct kvr_decision *ret_decision,
                                                    struct kvr_candidate *ret_candidates, size_t max,
                                                    size_t *ret_count, struct kvr_error *err);

/* First data of the answer: prefill load released, prefill speed learned. Later calls do nothing. */
KVR_PUBLIC void kvr_ticket_first_token(struct kvr_ticket *ticket);

enum kvr_end {
        KVR_END_FINISHED, /* the engine answered */
        KVR_END_CLIENT, /* the client left. Like the next two: before the first token nothing counts as cached
                         */
        KVR_END_FAILED, /* connect error, reset, time-out, 5xx, broken stream */
        KVR_END_REFUSED, /* the engine pushed back (429, 503) or found fault with the request (4xx) */
};
struct kvr_outcome {
        enum kvr_end end;
        int64_t prompt_tokens;     /* -1 unknown */
        int64_t cached_tokens;     /* -1 unknown, which is not 0 */
        int64_t completion_tokens; /* -1 unknown */
        struct kvr_slice
                response_id; /* remembered: requests that name it as previous are pinned; may be empty */
};
/* What settlement booked, for logs and metrics. */
struct kvr_settlement {
        kvr_replica_id replica;
        uint32_t prompt_tokens,
                predicted_tokens; /* as estimated at decision, bounded by what was learned since */
        double ttft_s, total_s;   /* since the decision; ttft NAN when no token came */
};
/* Takes the ticket. Exactly once per ticket, also when its replica is gone. ret may be NULL. */
KVR_PUBLIC void kvr_ticket_settle(struct kvr_ticket *ticket, const struct kvr_outcome *outcome,
                                  struct kvr_settlement *ret);

/* The replica that gave this response id, 0 if unknown or gone. The table keeps the last 65,536 ids. */
KVR_PUBLIC kvr_replica_id kvr_response_owner(struct kvr_router *router, struct kvr_slice response_id);

/* ---- account
 * --------------------------------------------------------------------------------------------------- */

struct kvr_index_info {
        uint64_t bytes, bytes_max; /* allocated for cache state, and the cap */
        uint64_t entries;          /* (prefix, replica) pairs held */
        uint64_t evictions;        /* pairs dropped for a replica's capacity or for the cap, since start */
        uint64_t lookups, lookups_without_match; /* decisions with points; of these, with no match anywhere */
        uint64_t partial; /* prompts of which only a beginning was entered, for memory was spent */
};
KVR_PUBLIC void kvr_router_index_info(struct kvr_router *router, struct kvr_index_info *ret);

/*
 * Token sums per decision reason. Requests are all settled tickets; tokens are those of tickets that were
 * computed (a first token came, or they finished) and whose prompt is known: a refused or failed try has
 * neither hit nor missed.
 */
struct kvr_reason_account {
        uint64_t requests;
        uint64_t prompt_tokens;
        uint64_t best_tokens;              /* best match over the candidates */
        uint64_t predicted_tokens;         /* match on the chosen replica */
        uint64_t observed_tokens;          /* reported by the engine */
        uint64_t unobserved_prompt_tokens; /* prompt tokens of requests whose hits are unknown */
};
KVR_PUBLIC void kvr_router_account(struct kvr_router *router, enum kvr_reason reason,
                                   struct kvr_reason_account *ret);

#ifdef __cplusplus
}
#endif

#endif
