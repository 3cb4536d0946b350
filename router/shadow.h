/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the policy kv would have gained, measured beside another one that really routes (docs/shadow.md).
 *
 *     request ──┬─► real brain (round_robin, ...) ──► replica ──► answer ──┐ sizes, end
 *               └─► shadow brain (kv) ──► virtual replica ─────────────────┴──► both sides booked together
 *
 * The shadow is a second router with policy kv and a ledger of its own. It knows the same replicas, and decides
 * the same requests when the real one does. Its fleet is virtual: each replica is one queue that computes
 * uncached tokens at the speed that was really learned of it (until it was, requests take as long as in fact).
 * First tokens and ends come when that queue says so; nothing is observed there, so what it holds is what the shadow's own history predicts, in a cache of the
 * size that the real one was told or has learned. The real side is put through the same kind of queue, so
 * that estimate stands beside estimate, and what was really measured beside both.
 *
 * As a mirror (shadow_mirror) neither side is real: copies of requests come in and nothing goes on.
 *
 * Time passes when it is called: events that are due are played first, each at its own time. One lock; any
 * thread. All functions take NULL for the shadow and do nothing then.
 */
#ifndef KVROUTE_ROUTER_SHADOW_H
#define KVROUTE_ROUTER_SHADOW_H

#include <kvroute/kvroute.h>
#include <kvroute/ledger.h>
#include <stdatomic.h>

#define SHADOW_FLIGHTS_MAX 65536 /* requests on their way on the virtual fleet; more are not taken */
#define SHADOW_BACKLOG_NS \
        60000000000ull /* a virtual queue is never longer: nothing may drift away for ever */
#define SHADOW_LAG_NS      30000000000ull /* nor is a request kept there so long after its real end */
#define SHADOW_TTFT_BOUNDS 96             /* of the histogram: 1 ms, and four to each doubling */

/* A clock that shows the time of the event being played, else that of the base. */
struct shadow_clock {
        struct kvr_env base;
        atomic_ullong event_ns; /* 0: none */
};
void shadow_clock_init(struct shadow_clock *clock, const struct kvr_env *base);
/* Keeps the clock. */
struct kvr_env shadow_clock_env(struct shadow_clock *clock);

struct shadow_options {
        struct shadow_clock *clock; /* kept; as a mirror also the clock of `real` */
        struct kvr_router *real;    /* kept */
        uint64_t index_memory_bytes;
        double prefill_speed; /* tokens a second until a replica's is learned */
        double tokens_per_byte;
        bool mirror;
};

struct shadow;
struct shadow_flight; /* a request between decision and end */

/* Gives a shadow to free with shadow_free. */
KVR_MUST_USE enum kvr_status shadow_new(const struct shadow_options *options, struct shadow **ret,
                                        struct kvr_error *err);
/* Every flight was ended; before the real router is freed. */
void shadow_free(struct shadow *shadow);

/* ---- the fleet: what the real router is told of its replicas, told again; ids are the real ones ---- */
KVR_MUST_USE enum kvr_status shadow_replica_add(struct shadow *shadow, kvr_replica_id id,
                                                const struct kvr_replica_spec *spec, struct kvr_error *err);
void shadow_replica_remove(struct shadow *shadow, kvr_replica_id id);
void shadow_replica_configure(struct shadow *shadow, kvr_replica_id id, const struct kvr_replica_spec *spec);
/* KVR_OK also for an id that is not known; KVR_E_NOMEM, KVR_E_LIMIT. */
KVR_MUST_USE enum kvr_status shadow_replica_set_models(struct shadow *shadow, kvr_replica_id id,
                                                       const struct kvr_slice *models, size_t count);
void shadow_replica_set_state(struct shadow *shadow, kvr_replica_id id, enum kvr_state state);
void shadow_replica_forget(struct shadow *shadow, kvr_replica_id id);
void shadow_replica_pause(struct shadow *shadow, kvr_replica_id id, uint64_t until_ns);
/* Only the part of the load that is not this router's own is passed on: the rest sits elsewhere there. */
void shadow_replica_report(struct shadow *shadow, kvr_replica_id id, const struct kvr_load_report *report);

/* ---- requests ---- */

/*
 * A request that the real router has just decided for the first time. Borrows all. NULL: it is not taken, and
 * counted so. What is not NULL is ended once with shadow_end.
 */
struct shadow_flight *shadow_begin(struct shadow *shadow, const struct kvr_request *request,
                                   struct kvr_slice previous_id, const struct kvr_decision *actual,
                                   uint64_t now_ns);

/* Its answer has begun in fact. */
void shadow_first_token(struct shadow *shadow, struct shadow_flight *flight, uint64_t now_ns);

/* What became of it in fact. */
struct shadow_outcome {
        enum kvr_end end;
        bool computed;             /* a first token came, or it finished */
        bool retried;              /* its times say nothing of one replica */
        uint32_t prompt_tokens;    /* counted, else estimated; 0 unknown */
        bool prompt_counted;       /* the engine told */
        uint32_t predicted;        /* on the replica that served it */
        int64_t cached_tokens;     /* -1 unknown */
        int64_t completion_tokens; /* -1 unknown */
        double ttft_s;             /* NAN: none */
        uint64_t decode_ns;        /* from the first token to the end */
        struct kvr_slice response_id;
};
/* Takes the flight. */
void shadow_end(struct shadow *shadow, struct shadow_flight *flight, const struct shadow_outcome *outcome,
                uint64_t now_ns);

/*
 * A copy of a request: both routers decide it, both fleets are virtual, its answer takes decode_ns. Returns the
 * tokens that its prompt is estimated to have; 0: unknown, or it was not taken.
 */
uint32_t shadow_mirror(struct shadow *shadow, const struct kvr_request *request, struct kvr_slice previous_id,
                       uint64_t decode_ns, uint64_t now_ns);

/* Plays what is due. Call it some times a second: at rest nobody else does. */
void shadow_tick(struct shadow *shadow, uint64_t now_ns);

/* ---- figures ---- */

/* Seconds to the first token: sum, and the value that half and nine tenths stay within; NAN without any. */
struct shadow_ttft {
        double mean_s, p50_s, p90_s;
};

struct shadow_side {
        uint64_t predicted_tokens;
        uint64_t won_tokens;     /* observed where engines told, else predicted */
        uint64_t avoided_ns;     /* replica time: won tokens at the speed learned of the replica */
        uint64_t untimed_tokens; /* won where no speed was known yet */
        struct shadow_ttft ttft; /* by the queues */
};

/* Sums since the start over requests that were computed, with a prompt of known size, decided by both sides. */
struct shadow_figures {
        bool mirror;
        uint64_t requests, prompt_tokens;
        struct shadow_side kv, actual;
        /* of the actual side: requests whose engine told what was cached */
        uint64_t observed, observed_prompt_tokens, observed_predicted_tokens, observed_tokens;
        uint64_t timed;                   /* requests behind the times */
        struct shadow_ttft ttft_observed; /* all NAN as a mirror */
        uint32_t in_flight;               /* on the virtual fleet now */
        uint64_t undecided;               /* not taken: no virtual replica had room or was up */
        uint64_t dropped;                 /* not taken: SHADOW_FLIGHTS_MAX, out of memory */
        struct kvr_index_info index;
        uint64_t bytes; /* of ledger and flights; the index comes on top */
};
void shadow_figures(struct shadow *shadow, uint64_t now_ns, struct shadow_figures *ret);
/* Hit rate of a side over prompt_tokens; NAN without any. */
double shadow_hit_rate(const struct shadow_figures *figures, const struct shadow_side *side);
/* The same of kv, times what observed over predicted was on the actual side; NAN where nothing was observed. */
double shadow_hit_rate_calibrated(const struct shadow_figures *figures);

/* The accounts of the shadow's own brain; its windows and workloads are those of the real ledger. */
struct kvr_ledger *shadow_ledger(struct shadow *shadow);
/* Requests and tokens booked on the virtual replica that stands for a real one; for tests of what is left. */
bool shadow_booked(struct shadow *shadow, kvr_replica_id id, uint32_t *ret_flights, uint64_t *ret_tokens);

#endif
