/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token ids of prompts, learned in the background: what matches text with what engines say they hold
 * (kvroute/events.h). A request never waits for this. Its worker leaves a copy of the body here after the
 * decision, if the library wants its tokens; the control thread asks the engines' own tokenizers, idle ones
 * first, and tells the library what they said.
 *
 *     worker: tokens_offer ──► queue (bounded) ──► control thread: tokens_step ──► POST /tokenize
 *                                                          kvr_tokens_learn ◄── ids
 *
 * An engine is asked one thing at a time, and is left alone afterwards for some times as long as it took, so
 * that tokenizing takes at most a quarter of one of its threads.
 */
#ifndef KVROUTE_ROUTER_TOKENS_H
#define KVROUTE_ROUTER_TOKENS_H

#include <kvroute/kvroute.h>

#include "log.h"
#include "metrics.h"
#include "net/conn.h"
#include "target.h"

#define TOKENS_QUEUE_MAX   1024          /* prompts waiting */
#define TOKENS_BYTES_MAX   (64ULL << 20) /* of their bodies */
#define TOKENS_RUNNING_MAX 4             /* questions under way, in all */
#define TOKENS_TIMEOUT_MS  10000         /* of one question */
#define TOKENS_LIFE_MS     60000         /* a prompt that could not be asked for so long is dropped */
#define TOKENS_PATIENCE_MS 2000          /* so long an idle engine is waited for */
#define TOKENS_BUSY_S      0.25          /* an engine with so much prefill before it is not idle */
#define TOKENS_REST        3             /* times the duration of the last question */
#define TOKENS_REST_MS_MAX 5000
#define TOKENS_AGAIN_MS    600000 /* a path that was missing is tried again after */

struct tokens;

struct tokens_options {
        struct net_loop *loop; /* of the control thread; kept */
        struct kvr_router *router;
        struct fleet *fleet;
        struct metrics *metrics;
        unsigned metrics_thread; /* number that the control thread counts under */
        struct logger *log;
};

KVR_MUST_USE struct tokens *tokens_new(const struct tokens_options *options); /* NULL: out of memory */
/* Any thread but the control thread has stopped to offer. */
void tokens_free(struct tokens *tokens);

/* A prompt that kvr_tokens_wanted said yes to. All is borrowed for the call. */
struct tokens_prompt {
        const struct kvr_prompt *prompt;
        enum kvr_api api;
        struct kvr_slice body;          /* as JSON, decoded */
        struct kvr_slice model;         /* as the engines know it */
        struct kvr_slice adapter, salt; /* as in the engines' events; empty: none */
        unsigned metrics_thread;        /* number that the caller counts under */
};
/* Takes a copy if there is room. Any thread; does not block but for a short lock. */
void tokens_offer(struct tokens *tokens, const struct tokens_prompt *prompt);

/* Control thread, every tick: sends what may be sent. */
void tokens_step(struct tokens *tokens, uint64_t now_ms);

#define TOKENS_ERROR_MAX 120

/* How one replica's tokenizer does. Control thread. */
struct tokens_view {
        uint64_t learned, failed; /* answers that were of use, and questions without one; they never fall */
        char error[TOKENS_ERROR_MAX]; /* what became of the last one, or empty */
};
/* False: it was never asked. */
bool tokens_view(const struct tokens *tokens, kvr_replica_id id, struct tokens_view *ret);

#endif
