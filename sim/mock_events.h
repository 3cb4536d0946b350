/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mock engine's publisher of KV cache events, as vLLM's: PUB and ROUTER sockets of ZeroMQ, a number per
 * batch, the last batches kept for replay. And what goes wrong with such a publisher, on demand
 * (POST /mock/events, docs/mock.md). Owner thread only.
 *
 *     blocks stored and evicted ──► waiting, until their step ends ──► a batch: kept, and sent (or not)
 *     cache reset ──► waiting, for the next step that changes something, as in vLLM
 */
#ifndef KVROUTE_SIM_MOCK_EVENTS_H
#define KVROUTE_SIM_MOCK_EVENTS_H

#include "buf.h"
#include "engine.h"
#include "mock_event_batch.h"
#include "net/conn.h"

struct mock_events;

struct mock_events_options {
        const char *
                endpoint; /* NULL or empty: no events. Bound if it has an asterisk or is ipc://, else connected to */
        const char *replay; /* likewise; always bound */
        const char *topic;
        struct mock_event_format format;
        uint32_t buffer;    /* batches kept */
        uint32_t port_plus; /* added to both ports */
};

/* NULL: *ret_why tells (a constant, or the system's text). Options are copied. */
KVR_MUST_USE struct mock_events *mock_events_new(struct net_loop *loop,
                                                 const struct mock_events_options *options,
                                                 uint32_t block_tokens, uint32_t capacity_blocks,
                                                 const char **ret_why);
void mock_events_close(struct mock_events *events); /* frees it when the loop has let go */

/* The tokens behind the keys of a prompt that is submitted. */
void mock_events_learn(struct mock_events *events, const uint64_t *keys, uint32_t count, const uint32_t *ids,
                       struct kvr_slice adapter, struct kvr_slice salt);
/* What the model's cache did, as it tells it. */
void mock_events_take(struct mock_events *events, struct sim_engine *engine);
/* Sends what is due by now, on the model's clock. */
void mock_events_publish(struct mock_events *events, uint64_t now_ns);
/* The cache was reset: told with the next batch. */
void mock_events_reset(struct mock_events *events);
/* A new process: numbers from 0, nothing kept, connections broken, gone for down_ms. */
void mock_events_restart(struct mock_events *events, uint32_t down_ms);

/* POST /mock/events. False with a sentence in message. */
KVR_MUST_USE bool mock_events_order(struct mock_events *events, struct kvr_slice json, char *message,
                                    size_t size);
void mock_events_write(const struct mock_events *events, struct sim_buf *buf);
/* GET /kv_event_sources. */
void mock_events_sources(const struct mock_events *events, struct sim_buf *buf);

#endif
