/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small HTTP/1.1 server for what is not the proxy's hot path: the admin listener and the mock engine.
 * Requests come whole (head and body, bounded); answers are whole or streamed. Keep-alive, pipelining one
 * at a time, HEAD, 100-continue.
 */
#ifndef KVROUTE_NET_SERVER_H
#define KVROUTE_NET_SERVER_H

#include "conn.h"
#include "proto/http1.h"

struct net_server;
struct net_exchange; /* one request and its answer; lives until the handler ends it or on_gone returns */

struct net_server_options {
        size_t body_bytes_max;    /* 413 beyond */
        uint32_t idle_timeout_ms; /* keep-alive connections idle longer are closed; 0: never */
        uint32_t head_timeout_ms; /* a request head must be complete after; 0: never */
        /* A complete request. Answer now or later, exactly once per exchange. */
        void (*on_request)(void *ctx, struct net_exchange *exchange);
        /*
         * The client left before the answer ended (a half-close counts, as engines have it), or the
         * server cut it (net_server_close, net_server_drop_all): drop every reference. Not called after
         * net_respond/net_stream_end. Never from inside a net_respond or net_stream_... call of the same
         * exchange.
         */
        void (*on_gone)(void *ctx, struct net_exchange *exchange);
        void *ctx;
};

/* addr as net_listen. NULL on failure with *ret_error set (uv code). */
KVR_MUST_USE struct net_server *net_server_new(struct net_loop *loop, struct sockaddr_storage *addr,
                                               const struct net_server_options *options, int *ret_error);
/* Stops accepting and closes every connection (running answers are cut), calls on_closed when nothing is
 * left. */
void net_server_close(struct net_server *server, void (*on_closed)(void *ctx), void *ctx);
/* Cuts every connection but keeps listening (a mock that restarts in place). */
void net_server_drop_all(struct net_server *server);

const struct http1_head *net_exchange_head(const struct net_exchange *exchange);
struct kvr_slice net_exchange_body(const struct net_exchange *exchange);
struct net_loop *net_exchange_loop(const struct net_exchange *exchange);
void net_exchange_set_user(struct net_exchange *exchange, void *user);
void *net_exchange_user(const struct net_exchange *exchange);
uint64_t net_exchange_conn_number(const struct net_exchange *exchange); /* of the connection, from 1 */

/* Whole answer. `headers` is "Name: value\r\n"... or "". Content-Length is added. Ends the exchange. */
void net_respond(struct net_exchange *exchange, unsigned status, const char *content_type,
                 const char *headers, struct kvr_slice body);
/* Chunked answer: begin, any number of chunks, end. A chunk is one write. */
void net_stream_begin(struct net_exchange *exchange, unsigned status, const char *content_type,
                      const char *headers);
void net_stream_chunk(struct net_exchange *exchange, struct kvr_slice data);
void net_stream_end(struct net_exchange *exchange);
size_t net_stream_pending(const struct net_exchange *exchange); /* bytes the client has not taken yet */
/* Faults of a mock. Both end the exchange; on_gone is not called. */
void net_exchange_abort(struct net_exchange *exchange); /* resets the connection */
/* Writes bytes as they are (may be none) and closes with a FIN, wherever the answer stands. */
void net_exchange_cut(struct net_exchange *exchange, struct kvr_slice raw);

#endif
