/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's side: heads and bodies of requests in, and the watch for clients that leave.
 *
 * A client that closed and one that only closed its sending half both look like a FIN. The first must stop
 * the engine at once, the second is legal HTTP and waits for its answer. So after a FIN something harmless is
 * sent (an interim 100 response before the head, a leading zero of the next chunk size after it): who is gone
 * answers with a reset. Where nothing harmless can be sent, a FIN counts as gone.
 */
#include "proxy.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "decode.h"
#include "identify.h"
#include "tenant.h"

#define HEAD_READ_BYTES \
        (16 * 1024) /* what of a body comes with the head is copied; the rest is read into place */
#define BODY_AT_ONCE_BYTES ((size_t)1024 * 1024) /* room made for an announced body before its bytes come */
#define FIN_PROBES_MAX     600                   /* of FIN_PROBE_MS: then a half-closed client is let go */
#define FIN_PROBE_AGAIN    20 /* a probe is repeated every so many looks, resets can get lost */

static void client_run(struct client *client, char *data, size_t len);

void client_close(struct client *client)
{
        struct worker *worker = client->worker;

        if (client->closed)
                return;
        client->closed = true;
        net_deadline_disarm(&client->deadline);
        net_deadline_disarm(&client->fin_probe);
        client->prev->next = client->next;
        client->next->prev = client->prev;
        net_close(client->conn);
        text_free(&client->input);
        atomic_fetch_sub_explicit(&worker->proxy->connections, 1, memory_order_relaxed);
        if (!client->running)
                free(client);
}

/* Asked of the kernel at once: later the client may be gone. */
static void keep_address(struct client *client)
{
        struct sockaddr_storage addr;
        int len = sizeof addr;

        if (uv_tcp_getpeername(&client->conn->tcp, (struct sockaddr *)&addr, &len))
                return;
        if (addr.ss_family == AF_INET6)
                uv_ip6_name((const struct sockaddr_in6 *)&addr, client->address, sizeof client->address);
        else
                uv_ip4_name((const struct sockaddr_in *)&addr, client->address, sizeof client->address);
}

void client_accept(struct worker *worker, struct net_conn *conn)
{
        struct proxy *proxy = worker->proxy;
        struct client *client = NULL;
        unsigned before = atomic_fetch_add_explicit(&proxy->connections, 1, memory_order_relaxed);

        if (before < proxy->connections_max && !worker->stopping)
                client = calloc(1, sizeof *client);
        if (!client) {
                atomic_fetch_sub_explicit(&proxy->connections, 1, memory_order_relaxed);
                worker_count(worker, METRIC_CONNECTIONS_REFUSED, NULL, 1);
                net_close(conn);
                return;
        }
        client->conn = conn;
        client->worker = worker;
        client->input.limit = CLIENT_INPUT_MAX;
        if (proxy->access_fd >= 0)
                keep_address(client);
        client->next = worker->clients.next;
        client->prev = &worker->clients;
        worker->clients.next->prev = client;
        worker->clients.next = client;
        conn->ops = &client_ops;
        conn->owner = client;
        net_deadline_arm(&worker->deadlines, &client->deadline, DEADLINE_KEEP_ALIVE);
        net_read_start(conn);
}

/* ---- head ---- */

static bool id_is_fine(struct kvr_slice id)
{
        if (id.len == 0 || id.len > REQUEST_ID_MAX)
                return false;
        for (size_t i = 0; i < id.len; i++) {
                unsigned char byte = (unsigned char)id.data[i];

                if (byte <= 0x20 || byte >= 0x7F || byte == '"' || byte == '\\')
                        return false;
        }
        return true;
}

static void make_request_id(struct exchange *exchange, const struct http1_head *head)
{
        const struct http1_field *field = http1_find(head, "x-request-id");
        struct proxy *proxy = exchange->worker->proxy;
        char *at;

        if (field && id_is_fine(field->value)) {
                memcpy(exchange->request_id, field->value.data, field->value.len);
                exchange->request_id[field->value.len] = '\0';
                return;
        }
        /*
         * "req-<prefix>-<number>" without printf, which would cost a tenth of what a small request does here.
         */
        at = exchange->request_id;
        memcpy(at, "req-", 4);
        at += 4;
        at += text_hex(at, proxy->id_prefix, 16);
        *at++ = '-';
        at += text_hex(at, atomic_fetch_add_explicit(&proxy->id_counter, 1, memory_order_relaxed), 8);
        *at = '\0';
}

/* A trace header is passed on as it is or, when it is not one (W3C Trace Context, level 1), not at all. */
static bool traceparent_is_valid(struct kvr_slice value)
{
        static const char form[] = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
        bool trace = false, span = false;

        if (value.len < sizeof form - 1 || memcmp(value.data, "ff", 2) == 0 ||
            (value.len > sizeof form - 1 &&
             (memcmp(value.data, "00", 2) == 0 || value.data[sizeof form - 1] != '-')))
                return false;
        for (size_t i = 0; i < sizeof form - 1; i++) {
                char byte = value.data[i];

                if (form[i] == '-') {
                        if (byte != '-')
                                return false;
                        continue;
                }
                if (!((byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f')))
                        return false;
                trace |= i >= 3 && i < 35 && byte != '0';
                span |= i >= 36 && i < 52 && byte != '0';
        }
        return trace && span;
}

static void add_field(struct text *text, const struct http1_field *field)
{
        text_add_slice(text, field->name);
        text_add(text, ": ", 2);
        text_add_slice(text, field->value);
        text_add(text, "\r\n", 2);
}

/* Renders what goes on to a replica, whichever it will be. */
static void keep_fields(struct exchange *exchange, const struct http1_head *head)
{
        for (uint32_t i = 0; i < head->field_count; i++) {
                const struct http1_field *field = &head->fields[i];
                struct kvr_slice name = field->name;

                if (http1_hop_by_hop(head, name) || http1_is(name, "host") ||
                    http1_is(name, "content-length") || http1_is(name, "content-encoding") ||
                    http1_is(name, "x-request-id"))
                        continue;
                if (http1_is(name, "authorization") || http1_is(name, "x-api-key")) {
                        add_field(&exchange->credentials, field);
                        continue;
                }
                if (http1_is(name, "x-data-parallel-rank")) {
                        add_field(&exchange->rank_fields, field);
                        continue;
                }
                if (http1_is(name, "traceparent") && !traceparent_is_valid(field->value))
                        continue;
                add_field(&exchange->fields, field);
        }
}

static void copy_value(char *ret, size_t size, const struct http1_field *field)
{
        if (field)
                snprintf(ret, size, "%.*s", (int)field->value.len, field->value.data);
}

static void keep_affinity(struct exchange *exchange, const struct http1_head *head)
{
        const struct config_strings *names = &exchange->worker->config->session_headers;

        for (size_t i = 0; i < names->count; i++) {
                const struct http1_field *field = http1_find(head, names->items[i]);

                if (!field || field->value.len == 0)
                        continue;
                /* A longer key counts by its beginning: it is a hint, no identity. */
                exchange->affinity_key_len = field->value.len < sizeof exchange->affinity
                                                     ? field->value.len
                                                     : sizeof exchange->affinity;
                memcpy(exchange->affinity, field->value.data, exchange->affinity_key_len);
                return;
        }
}

struct kvr_slice exchange_client_key(const struct exchange *exchange)
{
        struct kvr_slice value = exchange_field(&exchange->credentials, "authorization");

        if (value.len > 7 && strncasecmp(value.data, "bearer ", 7) == 0)
                return (struct kvr_slice){value.data + 7, value.len - 7};
        return exchange_field(&exchange->credentials, "x-api-key");
}

/* The value of a field in rendered lines; data NULL: absent. */
struct kvr_slice exchange_field(const struct text *lines, const char *name)
{
        size_t name_len = strlen(name);

        for (size_t at = 0; at + name_len + 2 < lines->len;) {
                const char *line = lines->data + at;
                const char *end = memchr(line, '\n', lines->len - at);
                size_t len = (size_t)(end - line) - 1;

                if (len >= name_len + 2 && line[name_len] == ':' && strncasecmp(line, name, name_len) == 0)
                        return (struct kvr_slice){line + name_len + 2, len - name_len - 2};
                at += len + 2;
        }
        return (struct kvr_slice){NULL, 0};
}

static bool key_is_known(const struct router_config *config, struct kvr_slice key)
{
        bool known = false;

        for (size_t i = 0; i < config->api_keys.count; i++)
                known |= config_same_secret(key, config->api_keys.items[i]);
        return known;
}

static bool is_exactly(struct kvr_slice text, const char *string)
{
        return text.len == strlen(string) && memcmp(text.data, string, text.len) == 0;
}

static bool workload_is_fine(struct exchange *exchange, struct kvr_slice name)
{
        return is_exactly(name, "default") || is_exactly(name, WORKLOAD_OTHER) ||
               config_has_workload(exchange->worker->config, name) ||
               workload_admit(&exchange->worker->proxy->workloads, name);
}

/* Only for who may come in at all: names stay for good, and there are not many of them. */
static void keep_workload(struct exchange *exchange, const struct http1_head *head)
{
        const struct http1_field *field = http1_find(head, "x-kvroute-workload");

        /* Names given by rules follow in route.c, when the model is known. */
        if (!field || !id_is_fine(field->value) || field->value.len >= sizeof exchange->workload)
                return;
        if (workload_is_fine(exchange, field->value))
                memcpy(exchange->workload, field->value.data, field->value.len);
        else
                memcpy(exchange->workload, WORKLOAD_OTHER, sizeof WORKLOAD_OTHER);
}

static void keep_priority(struct exchange *exchange, const struct http1_head *head)
{
        const struct http1_field *field = http1_find(head, "x-kvroute-priority");
        int sign = 1, value = 0;
        size_t i = 0;

        if (!field || field->value.len == 0 || field->value.len > 8)
                return;
        if (field->value.data[0] == '-') {
                sign = -1;
                i = 1;
        }
        for (; i < field->value.len; i++) {
                if (field->value.data[i] < '0' || field->value.data[i] > '9')
                        return;
                value = value * 10 + (field->value.data[i] - '0');
        }
        exchange->priority = sign * value;
}

static bool keep_head(struct exchange *exchange, struct http1_head *head)
{
        struct kvr_slice target = head->target;
        size_t path_at = 0;

        /* Absolute form (RFC 9112 3.2.2): the path is what counts. */
        if (target.len && target.data[0] != '/') {
                const char *scheme = memmem(target.data, target.len, "://", 3);
                const char *path =
                        scheme ? memchr(scheme + 3, '/', target.len - (size_t)(scheme + 3 - target.data))
                               : NULL;

                if (path)
                        target = (struct kvr_slice){path, target.len - (size_t)(path - target.data)};
                else if (!(target.len == 1 && target.data[0] == '*'))
                        return false;
        }
        text_add_slice(&exchange->target, target);
        if (exchange->target.failed || head->method.len >= sizeof exchange->method)
                return false;
        while (path_at < exchange->target.len && exchange->target.data[path_at] != '?')
                path_at++;
        exchange->path = (struct kvr_slice){exchange->target.data, path_at};
        memcpy(exchange->method, head->method.data, head->method.len);
        exchange->method[head->method.len] = '\0';
        exchange->head_request = strcmp(exchange->method, "HEAD") == 0;
        exchange->http10 = head->minor == 0;
        exchange->keep_alive = head->keep_alive;
        /* Java clients offer HTTP/2 with each request and do without it. A tunnel of it would pass by us. */
        exchange->upgrade = head->upgrade && !http1_list_has(head, "upgrade", "h2c");
        if (exchange->upgrade)
                copy_value(exchange->upgrade_to, sizeof exchange->upgrade_to, http1_find(head, "upgrade"));
        copy_value(exchange->content_encoding, sizeof exchange->content_encoding,
                   http1_find(head, "content-encoding"));
        exchange->body_chunked = head->chunked;
        exchange->expects = head->expect_continue;
        exchange->encoding = (uint8_t)decode_coding_of(head);
        exchange->api = strcmp(exchange->method, "POST") == 0 ? identify_api(exchange->path) : KVR_API_OTHER;
        make_request_id(exchange, head);
        keep_fields(exchange, head);
        keep_affinity(exchange, head);
        keep_priority(exchange, head);
        return !exchange->fields.failed && !exchange->credentials.failed && !exchange->rank_fields.failed;
}

/* Checks that need no body. True: an answer was given. */
static bool refused_by_head(struct exchange *exchange, const struct http1_head *head)
{
        const struct router_config *config = exchange->worker->config;

        if (exchange->api == KVR_API_OTHER &&
            (strcmp(exchange->method, "CONNECT") == 0 || strcmp(exchange->method, "TRACE") == 0)) {
                reply_error(exchange, 405, "method_not_allowed", "this method is not forwarded", 0);
                return true;
        }
        if (head->content_length > 0 && (uint64_t)head->content_length > config->max_body_bytes) {
                char message[128], limit[40];

                option_format_bytes(config->max_body_bytes, limit, sizeof limit);
                snprintf(message, sizeof message, "the body has %lld bytes, the limit (max-body) is %s",
                         (long long)head->content_length, limit);
                reply_error(exchange, 413, "body_too_large", message, 0);
                return true;
        }
        if (reply_health(exchange))
                return true;
        if (config->api_keys.count && !key_is_known(config, exchange_client_key(exchange))) {
                reply_error(exchange, 401, "unauthorized",
                            "a valid API key is needed: send it as Authorization: Bearer or x-api-key", 0);
                return true;
        }
        keep_workload(exchange, head);
        return tenant_refuses_head(exchange) || reply_local(exchange);
}

/* The router stops before the request is complete. */
void client_refuse_draining(struct client *client)
{
        client->exchange->keep_alive = false;
        reply_error(client->exchange, 503, "draining", "the router is shutting down", 1);
}

/* ---- body ---- */

/* Makes room for `more` bytes of body within the budget of all bodies; once that failed it stays so. */
static bool body_room(struct exchange *exchange, size_t more)
{
        struct proxy *proxy = exchange->worker->proxy;
        size_t need = exchange->body.len + more, grown = 0;

        if (exchange->body_over)
                return false;
        /* Booked as the buffer grows: by doubling. */
        if (need > exchange->body_reserved) {
                size_t wanted = exchange->body_reserved ? exchange->body_reserved : 256;

                while (wanted < need)
                        wanted *= 2;
                grown = wanted - exchange->body_reserved;
        }
        if (grown && atomic_fetch_add(&proxy->body_bytes, grown) + grown >
                             exchange->worker->config->body_memory_bytes) {
                atomic_fetch_sub(&proxy->body_bytes, grown);
                exchange->body_over = true;
                return false;
        }
        exchange->body_reserved += grown;
        return text_room(&exchange->body, more) != NULL;
}

__attribute__((cold)) static void body_refused(struct exchange *exchange)
{
        exchange->keep_alive = false;
        reply_error(exchange, 503, "overloaded",
                    "the bodies in flight fill the memory set aside for them (body-memory)", 1);
}

static void body_done(struct exchange *exchange)
{
        exchange->state = EXCHANGE_READY;
        net_deadline_disarm(&exchange->client->deadline);
        route_begin(exchange);
}

struct body_sink {
        struct exchange *exchange;
        bool too_large, no_room;
};

static void on_body_span(void *ctx, const char *data, size_t len)
{
        struct body_sink *sink = ctx;
        struct exchange *exchange = sink->exchange;

        if (exchange->body.len + len > exchange->worker->config->max_body_bytes)
                sink->too_large = true;
        else if (sink->too_large || sink->no_room || !body_room(exchange, len))
                sink->no_room = true;
        else
                text_add(&exchange->body, data, len);
}

/*
 * Takes bytes of a chunked body; returns how many belonged to it, -1 when the exchange ended with an error.
 */
static ssize_t chunked_body(struct exchange *exchange, const char *data, size_t len)
{
        struct body_sink sink = {exchange, false, false};
        size_t used = 0;
        enum http1_result result = http1_body(&exchange->body_parser, data, len, on_body_span, &sink, &used);

        if (result == HTTP1_BAD || sink.too_large || sink.no_room) {
                exchange->keep_alive = false;
                if (result == HTTP1_BAD)
                        reply_error(exchange, 400, "invalid_request", "the chunked body is malformed", 0);
                else if (sink.too_large)
                        reply_error(exchange, 413, "body_too_large",
                                    "the chunked body is over the limit (max-body)", 0);
                else
                        body_refused(exchange);
                return -1;
        }
        if (result == HTTP1_DONE)
                exchange->body_left = 0;
        return (ssize_t)used;
}

/* Takes bytes of the body from data; returns how many belonged to it. The exchange may be gone afterwards. */
static size_t body_feed(struct client *client, char *data, size_t len)
{
        struct exchange *exchange = client->exchange;
        size_t take = len;

        if (exchange->body_chunked) {
                ssize_t used = chunked_body(exchange, data, len);

                if (used < 0)
                        return len;
                take = (size_t)used;
        } else {
                bool in_place = data == exchange->body.data + exchange->body.len && !exchange->body.failed;

                if ((uint64_t)take > (uint64_t)exchange->body_left)
                        take = (size_t)exchange->body_left;
                if (in_place) {
                        exchange->body.len += take;
                        if (take == (uint64_t)exchange->body_left)
                                net_read_enough(client->conn);
                } else if (body_room(exchange, take)) {
                        text_add(&exchange->body, data, take);
                } else {
                        body_refused(exchange);
                        return len;
                }
                exchange->body_left -= (int64_t)take;
        }
        if (exchange->body_left == 0)
                body_done(exchange);
        else
                net_deadline_arm(&client->worker->deadlines, &client->deadline, DEADLINE_CLIENT_IDLE);
        return take;
}

static void body_begin(struct exchange *exchange, const struct http1_parser *parser,
                       const struct http1_head *head)
{
        struct client *client = exchange->client;
        size_t at_once;

        exchange->state = EXCHANGE_BODY;
        if (head->chunked)
                http1_move(&exchange->body_parser, parser);
        exchange->body_left = head->chunked ? INT64_MAX : head->content_length > 0 ? head->content_length : 0;
        if (exchange->body_left == 0) {
                body_done(exchange);
                return;
        }
        at_once = head->chunked || (uint64_t)head->content_length > BODY_AT_ONCE_BYTES
                          ? BODY_AT_ONCE_BYTES / 16
                          : (size_t)head->content_length;
        if (!body_room(exchange, at_once)) {
                body_refused(exchange);
                return;
        }
        net_deadline_arm(&client->worker->deadlines, &client->deadline, DEADLINE_CLIENT_IDLE);
}

__attribute__((cold)) static void send_continue(struct exchange *exchange)
{
        uv_buf_t line = uv_buf_init((char *)(uintptr_t) "HTTP/1.1 100 Continue\r\n\r\n", 25);

        /* If this fails the connection's end is reported right after. */
        (void)!net_write(exchange->client->conn, &line, 1);
}

/* A head is complete: `parser` parsed it into worker->head. */
static void request_begin(struct client *client, struct http1_parser *parser, bool body_follows)
{
        struct worker *worker = client->worker;
        struct http1_head *head = &worker->head;
        struct exchange *exchange = exchange_new(worker);

        if (!exchange) {
                client_close(client);
                return;
        }
        client->exchange = exchange;
        client->state = CLIENT_BUSY;
        net_deadline_disarm(&client->deadline);
        exchange->client = client;
        exchange->start_ns = uv_hrtime();
        /*
         * What is answered without its body leaves the body unread, so the connection cannot be used again.
         */
        client->linger = head->chunked || head->content_length > 0;
        if (!keep_head(exchange, head)) {
                exchange->keep_alive = false;
                client->linger = true;
                reply_error(exchange, 400, "invalid_request", "the request line cannot be understood", 0);
                return;
        }
        exchange->keep_alive = head->keep_alive && !client->linger;
        if (refused_by_head(exchange, head))
                return;
        exchange->keep_alive = head->keep_alive;
        if (exchange->expects && !body_follows && client->linger)
                send_continue(exchange);
        body_begin(exchange, parser, head);
}

/* Looks for a head at data. Returns the bytes it took, 0 if the head is not complete yet. */
static size_t head_feed(struct client *client, char *data, size_t len)
{
        struct http1_parser parser;
        size_t used = 0;

        http1_init(&parser, HTTP1_REQUEST);
        switch (http1_head(&parser, data, len, &client->worker->head, &used)) {
        case HTTP1_MORE:
                return 0;
        case HTTP1_BAD:
                reply_bad_head(client, 400, "invalid_request", parser.error);
                return len;
        case HTTP1_TOO_LARGE:
                reply_bad_head(client, 431, "header_too_large", parser.error);
                return len;
        case HTTP1_DONE:
                break;
        }
        if (used > client->worker->config->head_bytes) {
                reply_bad_head(client, 431, "header_too_large", "the head is over the limit (head-bytes)");
                return len;
        }
        request_begin(client, &parser, used < len);
        return used;
}

static size_t tunnel_feed(struct client *client, char *data, size_t len)
{
        struct exchange *exchange = client->exchange;
        uv_buf_t buf = uv_buf_init(data, (unsigned)len);

        if (net_write(exchange->upstream->conn, &buf, 1))
                exchange_abort(exchange);
        else if (net_pending(exchange->upstream->conn))
                net_read_stop(client->conn);
        return len;
}

/* One step with what came; returns the bytes taken. */
static size_t client_step(struct client *client, char *data, size_t len)
{
        struct exchange *exchange = client->exchange;
        size_t used;

        switch (client->state) {
        case CLIENT_IDLE:
                used = head_feed(client, data, len);
                if (used)
                        return used;
                text_add(&client->input, data, len);
                if (client->input.failed || client->input.len > client->worker->config->head_bytes)
                        reply_bad_head(client, 431, "header_too_large",
                                       "the head is over the limit (head-bytes)");
                else if (client->deadline.kind != DEADLINE_HEAD || !client->deadline.next)
                        net_deadline_arm(&client->worker->deadlines, &client->deadline, DEADLINE_HEAD);
                return len;
        case CLIENT_BUSY:
                if (exchange->state == EXCHANGE_BODY)
                        return body_feed(client, data, len);
                if (exchange->state == EXCHANGE_TUNNEL)
                        return tunnel_feed(client, data, len);
                /* Pipelined: kept for later, up to a limit; beyond it we stop listening until the answer is
                 * out. */
                text_add(&client->input, data, len);
                if (client->input.failed || client->input.len > HTTP1_HEAD_BYTES_MAX)
                        net_read_stop(client->conn);
                return len;
        case CLIENT_CLOSING:
                break;
        }
        return len;
}

/*
 * Works through what came from the client, request by request: a loop and no recursion, since a client may
 * pipeline thousands of requests that are answered on the spot. Whatever closes the client meanwhile leaves
 * its memory to us.
 */
static void client_run(struct client *client, char *data, size_t len)
{
        struct text moved = {0};

        client->running = true;
        while (!client->closed) {
                if (client->state == CLIENT_IDLE && client->input.len) {
                        /* A head must be contiguous, and must stay in place while its request begins. */
                        text_add(&client->input, data, len);
                        text_free(&moved);
                        moved = client->input;
                        client->input = (struct text){.limit = CLIENT_INPUT_MAX, .failed = moved.failed};
                        data = moved.data;
                        len = moved.len;
                }
                if (len == 0)
                        break;
                size_t used = client_step(client, data, len);

                data += used;
                len -= used;
                if (client->state == CLIENT_IDLE && len == 0)
                        break;
        }
        text_free(&moved);
        client->running = false;
        if (client->closed)
                free(client);
}

/* All is written: close, but give a client that still sends the time to read our answer. */
static void close_gently(struct client *client)
{
        if (!client->linger || client->fin) {
                client_close(client);
                return;
        }
        net_shutdown(client->conn);
        net_read_start(client->conn);
}

void client_answered(struct client *client, bool keep_alive)
{
        struct worker *worker = client->worker;

        client->exchange = NULL;
        net_deadline_disarm(&client->fin_probe);
        if (!keep_alive || client->fin || worker->stopping || client->input.failed) {
                client->state = CLIENT_CLOSING;
                net_deadline_arm(&worker->deadlines, &client->deadline, DEADLINE_LINGER);
                if (net_pending(client->conn) == 0)
                        close_gently(client);
                return;
        }
        client->state = CLIENT_IDLE;
        client->linger = false;
        net_deadline_arm(&worker->deadlines, &client->deadline, DEADLINE_KEEP_ALIVE);
        net_read_start(client->conn);
        if (client->input.len && !client->running)
                client_run(client, NULL, 0);
}

/* ---- events ---- */

static void on_data(struct net_conn *conn, char *data, size_t len)
{
        client_run(conn->owner, data, len);
}

static void on_alloc(struct net_conn *conn, char **ret_data, size_t *ret_len)
{
        struct client *client = conn->owner;
        struct exchange *exchange = client->exchange;
        size_t room;

        if (client->state == CLIENT_IDLE) {
                *ret_data = conn->loop->read_buf;
                *ret_len = HEAD_READ_BYTES;
                return;
        }
        if (!exchange || exchange->state != EXCHANGE_BODY || exchange->body_chunked)
                return;
        if (exchange->body.cap == exchange->body.len && !body_room(exchange, 1))
                return; /* body_feed will meet the same and answer */
        room = exchange->body.cap - exchange->body.len;
        if (room > (uint64_t)exchange->body_left)
                room = (size_t)exchange->body_left;
        *ret_data = exchange->body.data + exchange->body.len;
        *ret_len = room;
}

static void on_end(struct net_conn *conn, int error)
{
        struct client *client = conn->owner;
        struct exchange *exchange = client->exchange;

        if (!exchange) {
                client_close(client);
                return;
        }
        client->fin = true;
        if (error || exchange->state == EXCHANGE_BODY || exchange->state == EXCHANGE_TUNNEL ||
            !relay_probe_client(exchange)) {
                exchange_abort(exchange);
                return;
        }
        net_deadline_arm(&client->worker->deadlines, &client->fin_probe, DEADLINE_FIN_PROBE);
}

void client_on_fin_probe(struct net_deadline *deadline)
{
        struct client *client = (struct client *)((char *)deadline - offsetof(struct client, fin_probe));

        if (!client->exchange)
                return;
        if (net_dead(client->conn) || ++client->fin_probes > FIN_PROBES_MAX ||
            (client->fin_probes % FIN_PROBE_AGAIN == 0 && !relay_probe_client(client->exchange))) {
                exchange_abort(client->exchange);
                return;
        }
        net_deadline_arm(&client->worker->deadlines, &client->fin_probe, DEADLINE_FIN_PROBE);
}

static void on_drain(struct net_conn *conn)
{
        struct client *client = conn->owner;

        if (client->state == CLIENT_CLOSING)
                close_gently(client);
        else if (client->exchange)
                relay_resume(client->exchange);
}

void client_on_deadline(struct net_deadline *deadline)
{
        struct client *client = (struct client *)((char *)deadline - offsetof(struct client, deadline));

        if (client->exchange && client->exchange->state == EXCHANGE_BODY) {
                client->exchange->keep_alive = false;
                reply_error(client->exchange, 408, "invalid_request",
                            "the body stopped arriving (idle-timeout)", 0);
                return;
        }
        if (client->state == CLIENT_IDLE && client->input.len) {
                reply_bad_head(client, 408, "invalid_request",
                               "the request head took too long (head-timeout)");
                return;
        }
        if (client->exchange)
                exchange_abort(client->exchange);
        else
                client_close(client);
}

const struct net_ops client_ops = {
        .on_data = on_data,
        .on_end = on_end,
        .on_drain = on_drain,
        .on_alloc = on_alloc,
};
