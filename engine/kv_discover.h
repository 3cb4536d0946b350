/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where an engine publishes its KV cache events, as it says itself: vLLM's GET /kv_event_sources, SGLang's GET
 * /server_info. And the rule where nothing is said: port 5557 for events, 5558 for their replay, both plus the
 * data-parallel rank. No I/O. Any thread.
 */
#ifndef KVROUTE_ENGINE_KV_DISCOVER_H
#define KVROUTE_ENGINE_KV_DISCOVER_H

#include "engine.h"

#define ENGINE_KV_ENDPOINT_MAX 280 /* bytes, with the end */
#define ENGINE_KV_TOPIC_MAX    256
#define ENGINE_KV_PORT         5557
#define ENGINE_KV_REPLAY_PORT  5558

struct engine_kv_source {
        char events[ENGINE_KV_ENDPOINT_MAX]; /* as the engine wrote it: the host may be an asterisk */
        char replay[ENGINE_KV_ENDPOINT_MAX]; /* empty: it has none */
        char topic[ENGINE_KV_TOPIC_MAX];
        uint32_t ranks; /* it knows of */
};

enum engine_kv_answer {
        ENGINE_KV_FOUND,
        ENGINE_KV_OFF,     /* it says that it publishes none */
        ENGINE_KV_NO_RANK, /* it has no such rank */
        ENGINE_KV_UNKNOWN, /* this says nothing about it */
};

/* The path to ask, NULL where the engine does not tell. */
const char *engine_kv_path(enum engine_kind kind);
/* What its answer says of one rank. */
enum engine_kv_answer engine_kv_read(enum engine_kind kind, struct kvr_slice body, uint32_t rank,
                                     struct engine_kv_source *ret);
/* The rule. */
void engine_kv_guess(uint32_t rank, struct engine_kv_source *ret);

/* Is this endpoint on the replica's host, as it is written there, or on whatever host it is? */
bool engine_kv_same_host(const char *endpoint, const char *host);

/*
 * An endpoint with the replica's host in the place of "*", "0.0.0.0", "[::]" or an empty one, and the rank
 * added to its port. False: it is none of tcp://HOST:PORT and ipc://PATH, or too long.
 */
KVR_MUST_USE bool engine_kv_endpoint(const char *text, const char *host, uint32_t rank,
                                     char ret[ENGINE_KV_ENDPOINT_MAX]);

#endif
