/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small HTTP/1.1 client for what is not the proxy's hot path: polling engines' health and metrics, the
 * bench command. One request per call, connections to one origin are pooled and reused (bounded); callbacks
 * on the loop's thread.
 */
#ifndef KVROUTE_NET_CLIENT_H
#define KVROUTE_NET_CLIENT_H

#include "conn.h"
#include "proto/http1.h"

struct net_client;  /* pool of connections, one per loop */
struct net_request; /* one request; void after on_done returned or net_request_cancel */

enum net_request_error {
        NET_REQUEST_OK,
        NET_REQUEST_CONNECT, /* refused, unreachable */
        NET_REQUEST_TIMEOUT,
        NET_REQUEST_CLOSED,   /* the peer closed or reset before the answer ended */
        NET_REQUEST_PROTOCOL, /* not HTTP */
        NET_REQUEST_TOO_LARGE /* body over body_bytes_max */
};
const char *net_request_error_text(enum net_request_error error);

struct net_request_spec {
        const struct sockaddr *addr;
        const char *host;      /* Host field */
        const char *method;    /* "GET" */
        const char *target;    /* "/metrics" */
        const char *headers;   /* "Name: value\r\n"... or NULL */
        struct kvr_slice body; /* borrowed until on_done */
        uint32_t timeout_ms;   /* whole request; 0 none */
        size_t body_bytes_max; /* gathered body; 0: not gathered, on_chunk only */
        bool fresh;            /* use a new connection and close it afterwards */
        bool again; /* a POST too is sent once more when a kept connection ended before a byte of the
                                  answer, although it may have been worked on; GET and HEAD always are */
        void (*on_head)(void *ctx, const struct http1_head *head); /* optional */
        void (*on_chunk)(void *ctx, const char *data, size_t len); /* optional: as it arrives */
        /* Always called once, unless cancelled. status 0 when no head came. body: what was gathered. */
        void (*on_done)(void *ctx, enum net_request_error error, unsigned status, struct kvr_slice body);
        void *ctx;
};

KVR_MUST_USE struct net_client *net_client_new(struct net_loop *loop, unsigned idle_max,
                                               uint32_t idle_timeout_ms);
void net_client_free(struct net_client *client); /* cancels what runs */
/* NULL when out of memory. on_done never comes from inside this call. */
KVR_MUST_USE struct net_request *net_request_send(struct net_client *client,
                                                  const struct net_request_spec *spec);
void net_request_cancel(struct net_request *request); /* closes its connection; no callback afterwards */

#endif
