/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exchange is its connection: one object, reused for each request on it.
 *
 *            ┌──────────────────────────────────────────────┐ keep-alive
 *            ▼                                              │
 *     READ_HEAD ──► READ_BODY ──► HANDLING ──► STREAMING ──►┤
 *         │             │            └──────(net_respond)──►┤
 *         └──(refused)──┴──► LINGER ──► dead                └──► FLUSH ──► dead
 *
 * Bytes that come while a request is answered belong to the next one and wait in `next`; reading goes on
 * so that a client that leaves is noticed, and stops only when `next` is full.
 */
#include "server.h"
#include "deadline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define NEXT_BYTES_MAX (64 * 1024) /* bytes of pipelined requests kept while one is answered */
#define LINGER_MS      2000        /* how long a refused client may go on sending before it is cut */
#define FIRST_BYTES    2048

enum state {
        READ_HEAD,
        READ_BODY,
        HANDLING,
        STREAMING,
        FLUSH,
        LINGER,
};

struct bytes {
        char *data;
        size_t len, cap;
};

struct net_exchange {
        struct net_server *server;
        struct net_conn *conn;
        struct net_exchange *prev, *next_one;
        struct net_deadline deadline;
        uint64_t number;
        void *user;
        enum state state;
        unsigned depth; /* callbacks of this exchange on the stack: then it is freed later */
        bool dead;      /* closed and unlinked */
        bool broken;    /* writing failed: the handler is told from the sweep, not from inside its own call */
        bool closes;    /* the connection ends with this answer */
        bool framed;    /* the stream is chunked (not for HTTP/1.0) */
        bool no_content; /* HEAD */
        struct bytes in; /* the head; spans of `head` point into it */
        struct bytes body;
        struct bytes next;
        struct http1_parser parser;
        struct http1_head head;
};

struct net_server {
        struct net_loop *loop;
        struct net_server_options options;
        struct net_listener listener;
        struct net_deadlines deadlines;
        uint8_t kind_head, kind_idle, kind_linger;
        uv_timer_t sweep;
        bool sweeping;
        struct net_exchange list; /* sentinel */
        uint64_t conn_count;
        unsigned handles; /* still open */
        void (*on_closed)(void *ctx);
        void *closed_ctx;
};

static int bytes_add(struct bytes *bytes, const char *data, size_t len)
{
        if (bytes->cap - bytes->len < len) {
                size_t cap = bytes->cap ? bytes->cap : FIRST_BYTES;
                char *grown;

                while (cap - bytes->len < len)
                        cap *= 2;
                grown = realloc(bytes->data, cap);
                if (!grown)
                        return UV_ENOMEM;
                bytes->data = grown;
                bytes->cap = cap;
        }
        memcpy(bytes->data + bytes->len, data, len);
        bytes->len += len;
        return 0;
}

static void exchange_free(struct net_exchange *x)
{
        free(x->in.data);
        free(x->body.data);
        free(x->next.data);
        free(x);
}

/* The one way a connection ends. `tell`: a running request's handler is told that its client is gone. */
static void exchange_kill(struct net_exchange *x, bool tell)
{
        struct net_server *server = x->server;
        bool running = x->state == HANDLING || x->state == STREAMING;

        if (x->dead)
                return;
        x->dead = true;
        x->prev->next_one = x->next_one;
        x->next_one->prev = x->prev;
        net_deadline_disarm(&x->deadline);
        net_close(x->conn);
        x->conn = NULL;
        if (running && tell) {
                x->depth++;
                server->options.on_gone(server->options.ctx, x);
                x->depth--;
        }
        if (x->depth == 0)
                exchange_free(x);
}

static void on_sweep(uv_timer_t *timer)
{
        struct net_server *server = timer->data;
        struct net_exchange *x = server->list.next_one;

        server->sweeping = false;
        while (x != &server->list) {
                struct net_exchange *after = x->next_one;

                /* on_gone may end others, `after` too: then begin again. */
                if (x->broken) {
                        exchange_kill(x, true);
                        after = server->list.next_one;
                }
                x = after;
        }
}

static void exchange_break(struct net_exchange *x)
{
        x->broken = true;
        if (!x->server->sweeping) {
                x->server->sweeping = true;
                (void)uv_timer_start(&x->server->sweep, on_sweep, 0, 0);
        }
}

static void exchange_write(struct net_exchange *x, const uv_buf_t *bufs, unsigned count)
{
        if (!x->broken && net_write(x->conn, bufs, count) < 0)
                exchange_break(x);
}

static uv_buf_t buf_of(const char *data, size_t len)
{
        return uv_buf_init((char *)(uintptr_t)data, (unsigned)len);
}

static const char *reason_of(unsigned status)
{
        static const struct {
                unsigned status;
                const char *text;
        } reasons[] = {
                {200, "OK"},
                {201, "Created"},
                {202, "Accepted"},
                {204, "No Content"},
                {302, "Found"},
                {304, "Not Modified"},
                {307, "Temporary Redirect"},
                {400, "Bad Request"},
                {401, "Unauthorized"},
                {403, "Forbidden"},
                {404, "Not Found"},
                {405, "Method Not Allowed"},
                {408, "Request Timeout"},
                {409, "Conflict"},
                {411, "Length Required"},
                {413, "Content Too Large"},
                {415, "Unsupported Media Type"},
                {422, "Unprocessable Content"},
                {429, "Too Many Requests"},
                {431, "Request Header Fields Too Large"},
                {500, "Internal Server Error"},
                {501, "Not Implemented"},
                {502, "Bad Gateway"},
                {503, "Service Unavailable"},
                {504, "Gateway Timeout"},
        };

        for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
                if (reasons[i].status == status)
                        return reasons[i].text;
        }
        return "Unknown";
}

/* `length` < 0: a stream. `body` is sent with the head in one write. */
static void write_head(struct net_exchange *x, unsigned status, const char *content_type, const char *headers,
                       int64_t length, struct kvr_slice body)
{
        char line[128], framing[96];
        uv_buf_t bufs[8];
        unsigned count = 0;
        int line_len = snprintf(line, sizeof(line), "HTTP/1.1 %u %s\r\n", status, reason_of(status)),
            framing_len;
        const char *connection = x->closes            ? "connection: close\r\n"
                                 : x->head.minor == 0 ? "connection: keep-alive\r\n"
                                                      : "";

        if (length >= 0 && (status == 204 || status == 304))
                framing_len = snprintf(framing, sizeof(framing), "%s\r\n", connection);
        else if (length >= 0)
                framing_len = snprintf(framing, sizeof(framing), "content-length: %lld\r\n%s\r\n",
                                       (long long)length, connection);
        else
                framing_len = snprintf(framing, sizeof(framing), "%s%s\r\n",
                                       x->framed ? "transfer-encoding: chunked\r\n" : "", connection);
        bufs[count++] = buf_of(line, (size_t)line_len);
        if (content_type) {
                bufs[count++] = buf_of("content-type: ", 14);
                bufs[count++] = buf_of(content_type, strlen(content_type));
                bufs[count++] = buf_of("\r\n", 2);
        }
        if (headers && *headers)
                bufs[count++] = buf_of(headers, strlen(headers));
        bufs[count++] = buf_of(framing, (size_t)framing_len);
        if (body.len)
                bufs[count++] = buf_of(body.data, body.len);
        exchange_write(x, bufs, count);
}

static void linger(struct net_exchange *x)
{
        x->state = LINGER;
        net_read_start(x->conn);
        net_deadline_arm(&x->server->deadlines, &x->deadline, x->server->kind_linger);
}

/*
 * The server's own refusal of a request that was not read to its end. The connection is read on for a
 * while: closing with unread input would make the kernel send a reset, and the client might never see
 * why.
 */
static void refuse(struct net_exchange *x, unsigned status, const char *code, const char *message)
{
        char body[384];
        int len = snprintf(body, sizeof(body),
                           "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\",\"param\":null,"
                           "\"code\":\"%s\"}}",
                           message, code);
        struct kvr_slice slice = {.data = body, .len = (size_t)len};

        x->closes = true;
        x->state = FLUSH;
        write_head(x, status, "application/json", NULL, (int64_t)slice.len,
                   x->no_content ? (struct kvr_slice){0} : slice);
        if (x->broken)
                exchange_kill(x, false);
        else
                linger(x);
}

static void dispatch(struct net_exchange *x)
{
        x->state = HANDLING;
        net_deadline_disarm(&x->deadline);
        x->server->options.on_request(x->server->options.ctx, x);
}

static void on_body_bytes(void *ctx, const char *data, size_t len)
{
        struct net_exchange *x = ctx;

        if (x->broken || x->body.len + len > x->server->options.body_bytes_max)
                x->body.len = SIZE_MAX; /* too large; seen after the parser returned */
        else if (x->body.len != SIZE_MAX && bytes_add(&x->body, data, len))
                x->broken = true;
}

static size_t take_body(struct net_exchange *x, const char *data, size_t len)
{
        size_t used = 0;
        enum http1_result result = http1_body(&x->parser, data, len, on_body_bytes, x, &used);

        if (x->broken) { /* no memory: nothing sensible can be said */
                exchange_kill(x, false);
                return len;
        }
        if (x->body.len == SIZE_MAX) {
                x->body.len = 0;
                refuse(x, 413, "body_too_large", "the request body is over the limit");
                return len;
        }
        switch (result) {
        case HTTP1_DONE:
                dispatch(x);
                return used;
        case HTTP1_MORE:
                net_deadline_arm(&x->server->deadlines, &x->deadline, x->server->kind_idle);
                return len;
        case HTTP1_BAD:
        case HTTP1_TOO_LARGE:
                break;
        }
        refuse(x, 400, "invalid_request", "malformed body framing");
        return len;
}

/* The head is complete: what can be said before the body is read. */
static void begin_body(struct net_exchange *x)
{
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        uv_buf_t buf = buf_of(go_on, sizeof(go_on) - 1);

        x->state = READ_BODY;
        x->closes = !x->head.keep_alive;
        x->framed = x->head.minor >= 1;
        x->no_content = x->head.method.len == 4 && memcmp(x->head.method.data, "HEAD", 4) == 0;
        if (x->head.content_length > 0 &&
            (uint64_t)x->head.content_length > x->server->options.body_bytes_max) {
                refuse(x, 413, "body_too_large", "the request body is over the limit");
                return;
        }
        if (x->head.expect_continue && !x->parser.complete)
                exchange_write(x, &buf, 1);
        (void)take_body(x, "", 0);
}

static size_t take_head(struct net_exchange *x, const char *data, size_t len)
{
        size_t used = 0, excess;

        if (x->in.len == 0)
                net_deadline_arm(&x->server->deadlines, &x->deadline, x->server->kind_head);
        if (bytes_add(&x->in, data, len)) {
                exchange_kill(x, false);
                return len;
        }
        switch (http1_head(&x->parser, x->in.data, x->in.len, &x->head, &used)) {
        case HTTP1_MORE:
                return len;
        case HTTP1_DONE:
                excess = x->in.len - used;
                x->in.len = used;
                begin_body(x);
                return len - excess;
        case HTTP1_TOO_LARGE:
                refuse(x, 431, "header_too_large", "the request head is over the limit");
                return len;
        case HTTP1_BAD:
                break;
        }
        refuse(x, 400, "invalid_request", x->parser.error ? x->parser.error : "malformed request");
        return len;
}

static size_t keep_next(struct net_exchange *x, const char *data, size_t len)
{
        if (bytes_add(&x->next, data, len))
                exchange_break(x);
        else if (x->next.len >= NEXT_BYTES_MAX)
                net_read_stop(x->conn);
        return len;
}

static void consume(struct net_exchange *x, const char *data, size_t len)
{
        while (len && !x->dead) {
                size_t used = len;

                switch (x->state) {
                case READ_HEAD:
                        used = take_head(x, data, len);
                        break;
                case READ_BODY:
                        used = take_body(x, data, len);
                        break;
                case HANDLING:
                case STREAMING:
                        used = keep_next(x, data, len);
                        break;
                case FLUSH:
                case LINGER:
                        break;
                }
                data += used;
                len -= used;
        }
}

/* Requests that came in while another was answered. Caller holds a depth. */
static void consume_next(struct net_exchange *x)
{
        while (!x->dead && x->state == READ_HEAD && x->next.len) {
                struct bytes next = x->next;

                x->next = (struct bytes){0};
                consume(x, next.data, next.len);
                free(next.data);
        }
}

static void leave(struct net_exchange *x)
{
        x->depth--;
        if (x->dead && x->depth == 0)
                exchange_free(x);
}

static void on_data(struct net_conn *conn, char *data, size_t len)
{
        struct net_exchange *x = conn->owner;

        x->depth++;
        consume(x, data, len);
        consume_next(x);
        leave(x);
}

static void on_end(struct net_conn *conn, int error)
{
        (void)error; /* a client that will not send more and one that is gone are the same to an engine */
        exchange_kill(conn->owner, true);
}

static void on_drain(struct net_conn *conn)
{
        struct net_exchange *x = conn->owner;

        if (x->state == FLUSH)
                exchange_kill(x, false);
}

static const struct net_ops conn_ops = {
        .on_data = on_data,
        .on_end = on_end,
        .on_drain = on_drain,
};

/* The answer is complete: the next request, or the end of the connection. The exchange may be gone
 * afterwards. */
static void finish_answer(struct net_exchange *x)
{
        if (x->broken) {
                x->state = FLUSH; /* the handler has ended it: nobody is to be told */
                exchange_kill(x, false);
                return;
        }
        if (x->closes) {
                x->state = FLUSH;
                if (net_pending(x->conn) == 0)
                        exchange_kill(x, false);
                else
                        net_deadline_arm(&x->server->deadlines, &x->deadline, x->server->kind_idle);
                return;
        }
        x->state = READ_HEAD;
        x->user = NULL;
        x->in.len = 0;
        if (x->body.cap >
            16 * NEXT_BYTES_MAX) { /* one huge body must not stay for the life of a connection */
                free(x->body.data);
                x->body = (struct bytes){0};
        }
        x->body.len = 0;
        http1_init(&x->parser, HTTP1_REQUEST);
        net_deadline_arm(&x->server->deadlines, &x->deadline, x->server->kind_idle);
        net_read_start(x->conn);
        if (x->depth == 0) {
                x->depth++;
                consume_next(x);
                leave(x);
        }
}

static struct net_exchange *exchange_of(struct net_deadline *deadline)
{
        return (struct net_exchange *)(void *)((char *)deadline - offsetof(struct net_exchange, deadline));
}

static void on_head_expired(struct net_deadline *deadline)
{
        struct net_exchange *x = exchange_of(deadline);

        if (x->in.len)
                refuse(x, 408, "invalid_request", "the request head did not come in time");
        else
                exchange_kill(x, false);
}

static void on_idle_expired(struct net_deadline *deadline)
{
        struct net_exchange *x = exchange_of(deadline);

        if (x->state == READ_BODY)
                refuse(x, 408, "invalid_request", "the request body did not come in time");
        else
                exchange_kill(x, false);
}

static void on_linger_expired(struct net_deadline *deadline)
{
        exchange_kill(exchange_of(deadline), false);
}

static void on_accept(struct net_listener *listener, struct net_conn *conn)
{
        struct net_server *server = listener->owner;
        struct net_exchange *x = calloc(1, sizeof(*x));

        if (!x) {
                net_close(conn);
                return;
        }
        x->server = server;
        x->conn = conn;
        x->number = ++server->conn_count;
        x->prev = server->list.prev;
        x->next_one = &server->list;
        x->prev->next_one = x;
        server->list.prev = x;
        http1_init(&x->parser, HTTP1_REQUEST);
        conn->ops = &conn_ops;
        conn->owner = x;
        net_deadline_arm(&server->deadlines, &x->deadline, server->kind_head);
        net_read_start(conn);
}

static void on_failed_closed(uv_handle_t *handle)
{
        free(handle->data);
}

static void on_failed_turn(uv_timer_t *timer)
{
        struct net_server *server = timer->data;

        if (--server->handles == 0)
                uv_close((uv_handle_t *)timer, on_failed_closed);
}

struct net_server *net_server_new(struct net_loop *loop, struct sockaddr_storage *addr,
                                  const struct net_server_options *options, int *ret_error)
{
        struct net_server *server = calloc(1, sizeof(*server));
        int error;

        if (!server) {
                *ret_error = UV_ENOMEM;
                return NULL;
        }
        server->loop = loop;
        server->options = *options;
        server->list.prev = server->list.next_one = &server->list;
        error = net_listen(&server->listener, loop, addr, on_accept, server);
        if (error) {
                /* libuv may hold the listener's handle for one more turn of the loop: the memory waits for
                 * two. */
                (void)uv_timer_init(&loop->uv, &server->sweep);
                server->sweep.data = server;
                server->handles = 2;
                (void)uv_timer_start(&server->sweep, on_failed_turn, 0, 1);
                *ret_error = error;
                return NULL;
        }
        net_deadlines_init(&server->deadlines, loop);
        server->kind_head = net_deadlines_kind(&server->deadlines, options->head_timeout_ms, on_head_expired);
        server->kind_idle = net_deadlines_kind(&server->deadlines, options->idle_timeout_ms, on_idle_expired);
        server->kind_linger = net_deadlines_kind(&server->deadlines, LINGER_MS, on_linger_expired);
        (void)uv_timer_init(&loop->uv, &server->sweep);
        server->sweep.data = server;
        server->handles = 3;
        return server;
}

static void handle_closed(struct net_server *server)
{
        if (--server->handles > 0)
                return;
        if (server->on_closed)
                server->on_closed(server->closed_ctx);
        free(server);
}

static void on_listener_closed(struct net_listener *listener)
{
        handle_closed(listener->owner);
}

static void on_sweep_closed(uv_handle_t *handle)
{
        handle_closed(handle->data);
}

static void on_deadlines_closed(uv_handle_t *handle)
{
        handle_closed(
                (struct net_server *)(void *)((char *)handle - offsetof(struct net_server, deadlines.timer)));
}

void net_server_drop_all(struct net_server *server)
{
        while (server->list.next_one != &server->list)
                exchange_kill(server->list.next_one, true);
}

void net_server_close(struct net_server *server, void (*on_closed)(void *ctx), void *ctx)
{
        server->on_closed = on_closed;
        server->closed_ctx = ctx;
        net_server_drop_all(server);
        net_listener_close(&server->listener, on_listener_closed);
        uv_close((uv_handle_t *)&server->sweep, on_sweep_closed);
        /* Not net_deadlines_close: the timer lies in the server, whose memory has to wait for it. */
        uv_close((uv_handle_t *)&server->deadlines.timer, on_deadlines_closed);
}

const struct http1_head *net_exchange_head(const struct net_exchange *x)
{
        return &x->head;
}

struct kvr_slice net_exchange_body(const struct net_exchange *x)
{
        return (struct kvr_slice){.data = x->body.data, .len = x->body.len};
}

struct net_loop *net_exchange_loop(const struct net_exchange *x)
{
        return x->server->loop;
}

void net_exchange_set_user(struct net_exchange *x, void *user)
{
        x->user = user;
}

void *net_exchange_user(const struct net_exchange *x)
{
        return x->user;
}

uint64_t net_exchange_conn_number(const struct net_exchange *x)
{
        return x->number;
}

void net_respond(struct net_exchange *x, unsigned status, const char *content_type, const char *headers,
                 struct kvr_slice body)
{
        if (x->dead)
                return;
        write_head(x, status, content_type, headers, (int64_t)body.len,
                   x->no_content ? (struct kvr_slice){0} : body);
        finish_answer(x);
}

void net_stream_begin(struct net_exchange *x, unsigned status, const char *content_type, const char *headers)
{
        if (x->dead)
                return;
        x->state = STREAMING;
        if (!x->framed)
                x->closes = true; /* HTTP/1.0: the end of the connection is the end of the body */
        write_head(x, status, content_type, headers, -1, (struct kvr_slice){0});
}

void net_stream_chunk(struct net_exchange *x, struct kvr_slice data)
{
        char size[24];
        uv_buf_t bufs[3];
        int len = snprintf(size, sizeof(size), "%zx\r\n", data.len);

        if (x->dead || x->no_content || data.len == 0)
                return;
        bufs[0] = buf_of(size, (size_t)len);
        bufs[1] = buf_of(data.data, data.len);
        bufs[2] = buf_of("\r\n", 2);
        if (x->framed)
                exchange_write(x, bufs, 3);
        else
                exchange_write(x, bufs + 1, 1);
}

void net_stream_end(struct net_exchange *x)
{
        uv_buf_t last = buf_of("0\r\n\r\n", 5);

        if (x->dead)
                return;
        if (x->framed && !x->no_content)
                exchange_write(x, &last, 1);
        finish_answer(x);
}

size_t net_stream_pending(const struct net_exchange *x)
{
        return x->dead ? 0 : net_pending(x->conn);
}

void net_exchange_cut(struct net_exchange *x, struct kvr_slice raw)
{
        uv_buf_t buf = buf_of(raw.data, raw.len);

        if (x->dead)
                return;
        if (raw.len)
                exchange_write(x, &buf, 1);
        x->closes = true;
        finish_answer(x);
}

void net_exchange_abort(struct net_exchange *x)
{
        const struct linger none = {.l_onoff = 1, .l_linger = 0};
        uv_os_fd_t fd;

        if (x->dead)
                return;
        if (uv_fileno((const uv_handle_t *)&x->conn->tcp, &fd) == 0)
                (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
        exchange_kill(x, false);
}
