/* SPDX-License-Identifier: Apache-2.0 */
/*
 *     CONNECTING ──► SENT ──► (head, body) ──► DONE          a kept connection goes back to `idle`
 *         └────────────┴──────────┴──────────► DONE (error)
 *
 * Time limits: one timer for the whole client, set to the earliest limit. Most requests end long before
 * theirs, so a timer that fires usually only finds the next limit.
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES_FIRST 1024
#define HEADER_BYTES_MAX (64 * 1024) /* request line and fields that we write */

struct idle_conn {
        struct idle_conn *prev, *next;
        struct net_client *client;
        struct net_conn *conn;
        struct sockaddr_storage addr;
        uint64_t due_ms;
};

struct net_request {
        struct net_request *prev, *next;
        struct net_client *client;
        struct net_conn *conn; /* NULL: none yet, or lost */
        struct net_request_spec spec;
        struct sockaddr_storage addr;
        char *out; /* request line and fields */
        size_t out_len;
        uint64_t due_ms; /* UINT64_MAX: none */
        unsigned depth;  /* callbacks on the stack */
        bool ended;      /* unlinked; freed when depth is 0 */
        bool reused;     /* the connection had served before */
        bool retryable;  /* a lost kept connection may be tried again */
        bool heard;      /* something came back */
        bool head_done;
        bool too_large;
        bool failed_early; /* no connection could be made: told from the timer */
        struct http1_parser parser;
        struct http1_head head;
        char *in;
        size_t in_len, in_cap;
        char *body;
        size_t body_len, body_cap;
};

struct net_client {
        struct net_loop *loop;
        uv_timer_t timer;
        uint64_t timer_due_ms; /* UINT64_MAX: not running */
        unsigned idle_max, idle_count;
        uint32_t idle_timeout_ms;
        struct net_request requests; /* sentinel */
        struct idle_conn idle;       /* sentinel; most recently used first */
};

const char *net_request_error_text(enum net_request_error error)
{
        switch (error) {
        case NET_REQUEST_OK:
                return "ok";
        case NET_REQUEST_CONNECT:
                return "cannot connect";
        case NET_REQUEST_TIMEOUT:
                return "timed out";
        case NET_REQUEST_CLOSED:
                return "connection closed before the answer ended";
        case NET_REQUEST_PROTOCOL:
                return "the answer is not HTTP";
        case NET_REQUEST_TOO_LARGE:
                return "the answer is over the size limit";
        }
        return "unknown";
}

static void on_timer(uv_timer_t *timer);

static void timer_until(struct net_client *client, uint64_t due_ms)
{
        uint64_t now = net_now_ms(client->loop);

        if (due_ms >= client->timer_due_ms)
                return;
        client->timer_due_ms = due_ms;
        (void)uv_timer_start(&client->timer, on_timer, due_ms > now ? due_ms - now : 0, 0);
}

/* ---- kept connections --------------------------------------------------------------------------------- */

static void idle_drop(struct idle_conn *idle)
{
        idle->prev->next = idle->next;
        idle->next->prev = idle->prev;
        idle->client->idle_count--;
        if (idle->conn)
                net_close(idle->conn);
        free(idle);
}

static bool same_addr(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
        if (a->ss_family != b->ss_family)
                return false;
        if (a->ss_family == AF_INET) {
                const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;

                return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
        }
        const struct sockaddr_in6 *x = (const void *)a, *y = (const void *)b;

        return x->sin6_port == y->sin6_port && x->sin6_scope_id == y->sin6_scope_id &&
               memcmp(&x->sin6_addr, &y->sin6_addr, sizeof(x->sin6_addr)) == 0;
}

static struct net_conn *idle_take(struct net_client *client, const struct sockaddr_storage *addr)
{
        struct idle_conn *idle = client->idle.next;

        while (idle != &client->idle) {
                struct idle_conn *after = idle->next;

                if (same_addr(&idle->addr, addr)) {
                        struct net_conn *conn = idle->conn;

                        if (!net_stale(conn)) {
                                idle->conn = NULL;
                                idle_drop(idle);
                                return conn;
                        }
                        idle_drop(idle);
                }
                idle = after;
        }
        return NULL;
}

static const struct net_ops idle_ops;

static void idle_put(struct net_client *client, struct net_conn *conn, const struct sockaddr_storage *addr)
{
        struct idle_conn *idle = client->idle_count < client->idle_max ? malloc(sizeof(*idle)) : NULL;

        if (!idle) {
                net_close(conn);
                return;
        }
        net_read_stop(conn);
        idle->client = client;
        idle->conn = conn;
        idle->addr = *addr;
        idle->due_ms =
                client->idle_timeout_ms ? net_now_ms(client->loop) + client->idle_timeout_ms : UINT64_MAX;
        idle->prev = &client->idle;
        idle->next = client->idle.next;
        idle->prev->next = idle->next->prev = idle;
        client->idle_count++;
        conn->ops = &idle_ops;
        conn->owner = idle;
        timer_until(client, idle->due_ms);
}

static void idle_on_data(struct net_conn *conn, char *data, size_t len)
{
        (void)data;
        (void)len;
        idle_drop(conn->owner);
}

static void idle_on_end(struct net_conn *conn, int error)
{
        (void)error;
        idle_drop(conn->owner);
}

static const struct net_ops idle_ops = {.on_data = idle_on_data, .on_end = idle_on_end};

/* ---- requests ----------------------------------------------------------------------------------------- */

static void request_free(struct net_request *request)
{
        free(request->out);
        free(request->in);
        free(request->body);
        free(request);
}

static void request_unlink(struct net_request *request)
{
        request->ended = true;
        request->prev->next = request->next;
        request->next->prev = request->prev;
}

static void request_leave(struct net_request *request)
{
        if (--request->depth == 0 && request->ended)
                request_free(request);
}

static void request_done(struct net_request *request, enum net_request_error error)
{
        struct kvr_slice body = {.data = request->body, .len = request->body_len};

        if (request->ended)
                return;
        request_unlink(request);
        if (request->conn)
                net_close(request->conn);
        request->conn = NULL;
        request->depth++;
        request->spec.on_done(request->spec.ctx, error, request->head_done ? request->head.status : 0, body);
        request_leave(request);
}

static bool request_connect(struct net_request *request);

static void request_lost(struct net_request *request, enum net_request_error error)
{
        if (request->reused && !request->heard && request->retryable) {
                net_close(request->conn);
                request->conn = NULL;
                request->retryable = false;
                if (request_connect(request))
                        return;
                error = NET_REQUEST_CONNECT;
        }
        request_done(request, error);
}

static void request_write(struct net_request *request)
{
        const struct net_request_spec *spec = &request->spec;
        uv_buf_t bufs[2] = {
                uv_buf_init(request->out, (unsigned)request->out_len),
                uv_buf_init((char *)(uintptr_t)spec->body.data, (unsigned)spec->body.len),
        };

        net_read_start(request->conn);
        if (net_write(request->conn, bufs, spec->body.len ? 2 : 1) < 0)
                request_lost(request, NET_REQUEST_CLOSED);
}

static void on_connect(struct net_conn *conn, int error)
{
        struct net_request *request = conn->owner;

        if (error)
                request_done(request, NET_REQUEST_CONNECT);
        else
                request_write(request);
}

/* The answer is complete: keep the connection before the callback, so that the next request can have it at
 * once. */
static void request_finish(struct net_request *request, bool keep)
{
        struct net_conn *conn = request->conn;

        if (keep && !request->spec.fresh && request->head.keep_alive && net_pending(conn) == 0) {
                request->conn = NULL;
                idle_put(request->client, conn, &request->addr);
        }
        request_done(request, request->too_large ? NET_REQUEST_TOO_LARGE : NET_REQUEST_OK);
}

static void on_body_bytes(void *ctx, const char *data, size_t len)
{
        struct net_request *request = ctx;

        if (request->ended || request->too_large)
                return;
        if (request->spec.on_chunk)
                request->spec.on_chunk(request->spec.ctx, data, len);
        if (request->ended || request->spec.body_bytes_max == 0)
                return;
        if (len > request->spec.body_bytes_max - request->body_len) {
                request->too_large = true;
                return;
        }
        if (request->body_cap - request->body_len < len) {
                size_t cap = request->body_cap ? request->body_cap : HEAD_BYTES_FIRST;
                char *body;

                while (cap - request->body_len < len)
                        cap *= 2;
                body = realloc(request->body, cap);
                if (!body) {
                        request->too_large = true;
                        return;
                }
                request->body = body;
                request->body_cap = cap;
        }
        memcpy(request->body + request->body_len, data, len);
        request->body_len += len;
}

static void take_body(struct net_request *request, const char *data, size_t len)
{
        size_t used = 0;
        enum http1_result result = http1_body(&request->parser, data, len, on_body_bytes, request, &used);

        if (request->ended)
                return;
        if (request->too_large)
                request_done(request, NET_REQUEST_TOO_LARGE);
        else if (result == HTTP1_DONE)
                request_finish(request, used == len); /* bytes behind an answer: nothing to build on */
        else if (result != HTTP1_MORE)
                request_done(request, NET_REQUEST_PROTOCOL);
}

static bool in_add(struct net_request *request, const char *data, size_t len)
{
        if (request->in_cap - request->in_len < len) {
                size_t cap = request->in_cap ? request->in_cap : HEAD_BYTES_FIRST;
                char *in;

                while (cap - request->in_len < len)
                        cap *= 2;
                in = realloc(request->in, cap);
                if (!in)
                        return false;
                request->in = in;
                request->in_cap = cap;
        }
        memcpy(request->in + request->in_len, data, len);
        request->in_len += len;
        return true;
}

static void parser_begin(struct net_request *request)
{
        http1_init(&request->parser, HTTP1_RESPONSE);
        request->parser.head_request = strcmp(request->spec.method, "HEAD") == 0;
}

static void take_head(struct net_request *request, const char *data, size_t len)
{
        size_t used = 0;

        if (!in_add(request, data, len)) {
                request_done(request, NET_REQUEST_TOO_LARGE);
                return;
        }
        for (;;) {
                switch (http1_head(&request->parser, request->in, request->in_len, &request->head, &used)) {
                case HTTP1_MORE:
                        return;
                case HTTP1_BAD:
                case HTTP1_TOO_LARGE:
                        request_done(request, NET_REQUEST_PROTOCOL);
                        return;
                case HTTP1_DONE:
                        break;
                }
                if (request->head.status / 100 != 1 || request->head.status == 101)
                        break;
                /* An interim answer (100, 103): the real one follows. */
                request->in_len -= used;
                memmove(request->in, request->in + used, request->in_len);
                parser_begin(request);
        }
        request->head_done = true;
        if (request->spec.on_head)
                request->spec.on_head(request->spec.ctx, &request->head);
        if (!request->ended)
                take_body(request, request->in + used, request->in_len - used);
}

static void on_data(struct net_conn *conn, char *data, size_t len)
{
        struct net_request *request = conn->owner;

        request->heard = true;
        request->depth++;
        if (request->head_done)
                take_body(request, data, len);
        else
                take_head(request, data, len);
        request_leave(request);
}

static void on_end(struct net_conn *conn, int error)
{
        struct net_request *request = conn->owner;

        if (error == 0 && request->head_done && http1_eof(&request->parser))
                request_finish(request, false);
        else
                request_lost(request, NET_REQUEST_CLOSED);
}

static const struct net_ops request_ops = {.on_data = on_data, .on_end = on_end, .on_connect = on_connect};

static bool request_connect(struct net_request *request)
{
        parser_begin(request);
        request->reused = false;
        request->conn = net_connect(request->client->loop, (const struct sockaddr *)&request->addr,
                                    &request_ops, request);
        return request->conn != NULL;
}

static void on_timer(uv_timer_t *timer)
{
        struct net_client *client = timer->data;
        uint64_t now = net_now_ms(client->loop), due = UINT64_MAX;

        client->timer_due_ms = UINT64_MAX;
        for (struct net_request *request = client->requests.next; request != &client->requests;) {
                if (request->due_ms <= now) {
                        request_done(request,
                                     request->failed_early ? NET_REQUEST_CONNECT : NET_REQUEST_TIMEOUT);
                        request = client->requests.next; /* a callback may have ended any of them */
                        due = UINT64_MAX;
                        continue;
                }
                due = request->due_ms < due ? request->due_ms : due;
                request = request->next;
        }
        for (struct idle_conn *idle = client->idle.next; idle != &client->idle;) {
                struct idle_conn *after = idle->next;

                if (idle->due_ms <= now)
                        idle_drop(idle);
                else
                        due = idle->due_ms < due ? idle->due_ms : due;
                idle = after;
        }
        timer_until(client, due);
}

struct net_client *net_client_new(struct net_loop *loop, unsigned idle_max, uint32_t idle_timeout_ms)
{
        struct net_client *client = calloc(1, sizeof(*client));

        if (!client)
                return NULL;
        client->loop = loop;
        client->idle_max = idle_max;
        client->idle_timeout_ms = idle_timeout_ms;
        client->timer_due_ms = UINT64_MAX;
        client->requests.prev = client->requests.next = &client->requests;
        client->idle.prev = client->idle.next = &client->idle;
        (void)uv_timer_init(&loop->uv, &client->timer);
        client->timer.data = client;
        return client;
}

static void on_timer_closed(uv_handle_t *handle)
{
        free(handle->data);
}

void net_client_free(struct net_client *client)
{
        if (!client)
                return;
        while (client->requests.next != &client->requests)
                net_request_cancel(client->requests.next);
        while (client->idle.next != &client->idle)
                idle_drop(client->idle.next);
        uv_close((uv_handle_t *)&client->timer, on_timer_closed);
}

/* Builds the request line and the fields. */
static bool request_compose(struct net_request *request)
{
        const struct net_request_spec *spec = &request->spec;
        const char *headers = spec->headers ? spec->headers : "";
        size_t max = strlen(spec->method) + strlen(spec->target) + strlen(spec->host) + strlen(headers) + 128;
        char length[48] = "";
        int len;

        if (max > HEADER_BYTES_MAX)
                return false;
        request->out = malloc(max);
        if (!request->out)
                return false;
        if (spec->body.len || strcmp(spec->method, "POST") == 0)
                snprintf(length, sizeof(length), "content-length: %zu\r\n", spec->body.len);
        len = snprintf(request->out, max, "%s %s HTTP/1.1\r\nhost: %s\r\n%s%s%s\r\n", spec->method,
                       spec->target, spec->host, length, headers, spec->fresh ? "connection: close\r\n" : "");
        request->out_len = (size_t)len;
        return len > 0 && (size_t)len < max;
}

static void request_start(struct net_request *request)
{
        struct net_conn *conn = request->spec.fresh ? NULL : idle_take(request->client, &request->addr);
        uv_buf_t bufs[2] = {
                uv_buf_init(request->out, (unsigned)request->out_len),
                uv_buf_init((char *)(uintptr_t)request->spec.body.data, (unsigned)request->spec.body.len),
        };

        if (conn) {
                parser_begin(request);
                request->reused = true;
                request->conn = conn;
                conn->ops = &request_ops;
                conn->owner = request;
                net_read_start(conn);
                if (net_write(conn, bufs, request->spec.body.len ? 2 : 1) == 0)
                        return;
                net_close(conn);
                request->conn = NULL;
        }
        if (!request_connect(request)) {
                request->failed_early = true;
                request->due_ms = net_now_ms(request->client->loop);
        }
}

struct net_request *net_request_send(struct net_client *client, const struct net_request_spec *spec)
{
        struct net_request *request = calloc(1, sizeof(*request));
        size_t addr_len =
                spec->addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);

        if (!request)
                return NULL;
        request->client = client;
        request->spec = *spec;
        memcpy(&request->addr, spec->addr, addr_len);
        request->retryable =
                spec->again || strcmp(spec->method, "GET") == 0 || strcmp(spec->method, "HEAD") == 0;
        request->due_ms = spec->timeout_ms ? net_now_ms(client->loop) + spec->timeout_ms : UINT64_MAX;
        if (!request_compose(request)) {
                request_free(request);
                return NULL;
        }
        request->prev = client->requests.prev;
        request->next = &client->requests;
        request->prev->next = request->next->prev = request;
        request_start(request);
        timer_until(client, request->due_ms);
        return request;
}

void net_request_cancel(struct net_request *request)
{
        if (request->ended)
                return;
        request_unlink(request);
        if (request->conn)
                net_close(request->conn);
        request->conn = NULL;
        if (request->depth == 0)
                request_free(request);
}
