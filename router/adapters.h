/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LoRA adapters that are loaded and unloaded through the router. One request is told to every replica, so that
 * none is left behind, and is remembered, so that one that restarts or comes later gets it too. They are worked off
 * one after the other, in the order in which they came.
 *
 *     worker: POST /v1/load_lora_adapter ──► adapters_ask ──► control thread: every replica is asked
 *     worker: adapters_answer ◄── all have answered ◄──────────────┘
 *
 * Only with allow-engine-admin, as every path that changes an engine.
 */
#ifndef KVROUTE_ROUTER_ADAPTERS_H
#define KVROUTE_ROUTER_ADAPTERS_H

#include "control.h"

#define ADAPTERS_MAX          1024    /* remembered; one more is loaded, and not remembered */
#define ADAPTERS_BODY_MAX     65536   /* bytes of a request */
#define ADAPTERS_TIMEOUT_MS   120000  /* an engine reads the weights before it answers */
#define ADAPTERS_AGAIN_MS     10000   /* between attempts at a replica that lacks one, */
#define ADAPTERS_AGAIN_MAX_MS 3600000 /* twice as long after each that it refused, up to this */
#define ADAPTERS_WAITING_MAX  64      /* requests that wait for others to be answered; one more gets a 503 */

struct adapters;
struct exchange;
struct worker;

KVR_MUST_USE struct adapters *adapters_new(void); /* NULL: out of memory */
void adapters_free(struct adapters *adapters);    /* all workers and the control side have ended */

/* ---- a worker's thread ---- */

/* Whether a request is one to load or unload an adapter. */
bool adapters_takes(const struct exchange *exchange);
/* Takes it over, or answers an error. */
void adapters_ask(struct exchange *exchange);
/* The exchange ends before its answer came. Does nothing if none is awaited. */
void adapters_leave(struct exchange *exchange);
/* Answers what has come back for this worker. */
void adapters_answer(struct worker *worker);

/* ---- the control thread ---- */

struct adapters_side; /* what control.c keeps */
KVR_MUST_USE struct adapters_side *adapters_side_new(struct adapters *adapters,
                                                     const struct control_options *options);
void adapters_side_free(struct adapters_side *side);
/* Every tick: sends what came, and what a replica is found to lack. True: read model lists anew. */
bool adapters_step(struct adapters_side *side, uint64_t now_ms);

#endif
