/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated vLLM over HTTP: the engine model of engine.h behind vLLM's endpoints, with faults on
 * demand. Several can live on one loop. Owner thread only.
 */
#ifndef KVROUTE_SIM_MOCK_H
#define KVROUTE_SIM_MOCK_H

#include "engine.h"
#include "fault.h"
#include "mock_events.h"
#include "net/conn.h"

struct sim_mock;

struct sim_mock_options {
        struct sim_engine_options engine;
        double speed;               /* virtual seconds per second of the wall clock */
        const char *models;         /* names separated by commas: the base model, then adapters; borrowed */
        uint32_t max_model_len;     /* tokens of prompt and answer */
        uint32_t output_tokens;     /* of an answer whose request gives no limit */
        uint32_t stream_interval;   /* tokens per streamed chunk, after the first */
        bool prompt_tokens_details; /* report cached tokens in usage */
        bool store_responses;       /* Responses can be continued and fetched by id */
        uint32_t keep_alive_ms;     /* idle connections are closed after; 0: never */
        size_t body_bytes_max;
        struct mock_events_options events; /* endpoint NULL or empty: it publishes none */
        uint32_t record_max;
        bool record_bodies;
};

/* What `kvroute mock` does without options. */
void sim_mock_defaults(struct sim_mock_options *options);
/*
 * *addr as net_listen, but a port on which somebody listens is UV_EADDRINUSE. NULL with *ret_error (uv code).
 * Options are copied, strings borrowed.
 */
KVR_MUST_USE struct sim_mock *sim_mock_new(struct net_loop *loop, struct sockaddr_storage *addr,
                                           const struct sim_mock_options *options, int *ret_error);
/* Closes all connections and frees; on_closed (may be NULL) comes when nothing is left on the loop. */
void sim_mock_close(struct sim_mock *mock, void (*on_closed)(void *ctx), void *ctx);
/* Sets the faults, as POST /mock/fault does. */
void sim_mock_set_fault(struct sim_mock *mock, const struct sim_fault *fault);
/* An empty engine on the same address; running requests are cut, and connections refused for down_ms. */
void sim_mock_restart(struct sim_mock *mock, uint32_t down_ms);

#endif
