/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An inference engine as a pure model in virtual time: no sockets, no clock, no chance. The mock engine
 * drives it with the wall clock, the simulator with its own; both see the same engine.
 *
 *     sim_engine_submit ──► waiting ──► running: prefill in chunks, then one token a step ──► SIM_EVENT_END
 *                              ▲            │
 *                              └─preempted──┘  (no block left for the next token)
 *
 * The rules are vLLM's (V1):
 *  1. Work goes in steps. A step has a budget of tokens: running requests first, in the order of their
 *     admission (one token each when they decode, a chunk when they still prefill), then waiting ones,
 *     first come first served, while budget, `max_running` and free blocks last.
 *  2. A request that is admitted reuses the longest findable run of whole blocks, at most prompt_tokens -
 *     1 of its tokens.
 *  3. A block gets its key when the step that fills it is put together: a twin admitted later, even in
 *     the same step, hits it. Generated tokens fill blocks too; the last one of an answer is never
 *     computed.
 *  4. A step takes the time that sim_cost_step_ms gives. A request whose last missing token was computed
 *     in it gets one token at its end.
 *  5. Without a block for its next token the youngest running request goes back to the head of the queue
 *     and begins anew.
 *
 * With `slots` the cache is that of a llama.cpp server instead (slots.h): a request takes an idle slot as soon as
 * there is one, reuses what it finds there, and leaves prompt and answer in it. Each slot has an equal part of the
 * cache to itself; nothing has to give way. In a step answers come first, then prompts in the order in which
 * they got their slots.
 *
 * With `quiet` the engine may be ahead of the host: sim_engine_next_ns is then the end of several steps. What is
 * told, and what is computed when, is the same.
 *
 * Time is in nanoseconds on the host's virtual clock and never goes back. Owner thread only. Cost:
 * O(running) a step.
 */
#ifndef KVROUTE_SIM_ENGINE_H
#define KVROUTE_SIM_ENGINE_H

#include "cost.h"

#define SIM_NEVER UINT64_MAX

struct sim_engine;
struct sim_job; /* a submitted request; void after its SIM_EVENT_END was returned, sim_engine_abort or
                   sim_engine_restart */

struct sim_engine_options {
        uint32_t block_tokens;
        uint32_t capacity_blocks; /* usable ones */
        uint32_t max_running;     /* requests in a step */
        uint32_t max_waiting;     /* more are refused; 0: no limit */
        uint32_t step_tokens;     /* token budget of a step */
        bool no_prefix_cache;
        uint32_t slots;              /* 0: blocks */
        uint64_t slot_memory_tokens; /* of sequences in host memory, with slots */
        bool changes;                /* what the cache stores and gives away is written down, without slots */
        bool quiet; /* of tokens only an answer's first is told: steps in which nothing else happens are taken
                       together, and cost next to nothing */
        struct sim_cost cost; /* copied */
        /*
         * A step that begins takes *slow times as long as cost says, for a slower machine, or one that is shared;
         * NULL: 1. Read at the beginning of steps. `apart`: it changes, so steps are not taken together.
         */
        const double *slow;
        bool apart;
};

struct sim_submit {
        void *tag;              /* comes back with every event */
        uint32_t prompt_tokens; /* at least 1 */
        uint32_t output_tokens; /* at least 1 */
        /*
         * Keys of the whole blocks, first to last (not 0; each stands for the prefix up to its end),
         * copied. May go on over the answer's blocks; blocks beyond key_count are never findable. With slots
         * they end with the prompt, with its last block even if that is not full.
         */
        const uint64_t *keys;
        uint32_t key_count;
};

enum sim_event_kind {
        SIM_EVENT_START, /* admitted for the first time; cached_tokens is known */
        SIM_EVENT_TOKEN, /* one token of the answer */
        SIM_EVENT_END,   /* behind the last token; the job is void */
};

struct sim_event {
        enum sim_event_kind kind;
        uint64_t at_ns;
        void *tag;
        uint32_t cached_tokens; /* prompt tokens that were not computed; all kinds */
        uint32_t token;         /* SIM_EVENT_TOKEN: number from 0 */
};

/* A block became findable, or a copy of it is gone. vLLM tells so in its KV events, behind the step. */
struct sim_change {
        uint64_t at_ns;       /* end of the step in which it happened */
        uint64_t key, parent; /* of the block before it, 0: it begins a prompt; only when stored */
        bool removed;
};

/* Sums since the last restart. */
struct sim_engine_counters {
        uint64_t submitted, finished, aborted, refused, preempted;
        uint64_t steps, busy_ns;
        uint64_t prompt_tokens;   /* of requests that were admitted */
        uint64_t cached_tokens;   /* of these, not computed */
        uint64_t computed_tokens; /* prompt tokens computed, recomputation after preemption included */
        uint64_t output_tokens;
};

KVR_MUST_USE struct sim_engine *sim_engine_new(
        const struct sim_engine_options *options); /* NULL: no memory */
void sim_engine_free(struct sim_engine *engine);

/*
 * Hands in a request at now_ns, up to which the model has been run (sim_engine_next said false). KVR_OK:
 * *ret_job is set. KVR_E_LIMIT: prompt and answer can never fit the cache. KVR_E_BUSY: max_waiting.
 * KVR_E_NOMEM. Requests submitted at one instant share a step.
 */
KVR_MUST_USE enum kvr_status sim_engine_submit(struct sim_engine *engine, uint64_t now_ns,
                                               const struct sim_submit *submit, struct sim_job **ret_job);
/*
 * Changes since the last call, oldest first; they are forgotten with this call, and live until the next one of
 * any function of this engine. *ret_lost: memory was short, and some are missing.
 */
uint32_t sim_engine_changes(struct sim_engine *engine, const struct sim_change **ret, bool *ret_lost);
/* With `quiet`: takes back steps that begin later, so that counters and usage are those of now_ns. */
void sim_engine_catch_up(struct sim_engine *engine, uint64_t now_ns);
/* No more events for it; with `quiet`, catch up first. A step that it takes part in goes on to its end, and what that computes stays
 * cached. */
void sim_engine_abort(struct sim_engine *engine, struct sim_job *job);
/*
 * Runs the model up to until_ns and gives the next event that is due by then, in order of time; false: none.
 */
KVR_MUST_USE bool sim_engine_next(struct sim_engine *engine, uint64_t until_ns, struct sim_event *ret);
/* When the next event can come (the end of the running step or steps), SIM_NEVER when idle. */
uint64_t sim_engine_next_ns(struct sim_engine *engine);

/* Forgets all cached prefixes, as an engine's cache reset does: only when no block is in use, else false. */
bool sim_engine_flush(struct sim_engine *engine);
/* The same at any time: blocks in use stay in use, but cannot be found any more. */
void sim_engine_drop_cache(struct sim_engine *engine);
/* Begins anew: no requests, nothing cached, counters at 0. All jobs are void; their tags get no event. */
void sim_engine_restart(struct sim_engine *engine, uint64_t now_ns);

uint32_t sim_engine_running(const struct sim_engine *engine);
uint32_t sim_engine_waiting(const struct sim_engine *engine);
double sim_engine_usage(const struct sim_engine *engine); /* share of blocks in use, 0..1 */
/* Prompt tokens of waiting and running requests that are still to be computed (waiting ones without regard to
 * hits). */
uint64_t sim_engine_pending_tokens(const struct sim_engine *engine);
uint32_t sim_engine_cached_blocks(
        const struct sim_engine *engine); /* with slots: what they and memory hold */
/* Named blocks whose memory was handed out again; with slots: sequences that memory had no room for. */
uint64_t sim_engine_evictions(const struct sim_engine *engine);
void sim_engine_counters(const struct sim_engine *engine, struct sim_engine_counters *ret);
/* Tokens of this prompt that an admission now would reuse. For tests and oracles. */
uint32_t sim_engine_match(const struct sim_engine *engine, const uint64_t *keys, uint32_t key_count,
                          uint32_t prompt_tokens);

#endif
