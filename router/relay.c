/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The answer's way back. Each read from the replica is one write to the client, at once; while the client has
 * not taken it, the replica is not read. Bodies are re-framed (chunked, length, or close), so trailers and
 * chunk extensions end here.
 *
 * What the client sees, and what a failure then means:
 *
 *     nothing          the head is held back until the first body byte (of SSE: the first event): another
 * replica is tried comments only    a heartbeat sent head and comments: another replica is tried, errors
 * become events a part           committed: the connection is cut without the body's end, so that nobody
 * takes it for whole
 */
#include "proxy.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "host.h"

#define RETRY_AFTER_MAX_S 3600 /* a replica's wish beyond that is cut */
#define IDLE_RACE_MS \
        250 /* a reused connection that ends so soon and without a word was closed as idle; later, the request
               may have been worked on */

/* ---- writing to the client ---- */

void relay_arm_heartbeat(struct exchange *exchange)
{
        if (exchange->worker->config->heartbeat_ms && !exchange->http10)
                net_deadline_arm(&exchange->worker->deadlines, &exchange->heartbeat, DEADLINE_HEARTBEAT);
}

/*
 * The client does not take more for now: stop reading the replica, and do not wait for the client for ever.
 */
static void wait_for_client(struct exchange *exchange)
{
        struct worker *worker = exchange->worker;

        if (exchange->upstream) {
                net_read_stop(exchange->upstream->conn);
                net_deadline_disarm(&exchange->upstream->deadline);
        }
        net_deadline_arm(&worker->deadlines, &exchange->client->deadline, DEADLINE_CLIENT_IDLE);
}

void relay_resume(struct exchange *exchange)
{
        net_deadline_disarm(&exchange->client->deadline);
        if (!exchange->upstream ||
            (exchange->state != EXCHANGE_RELAYING && exchange->state != EXCHANGE_TUNNEL))
                return;
        net_deadline_arm(&exchange->worker->deadlines, &exchange->upstream->deadline, DEADLINE_IDLE);
        net_read_start(exchange->upstream->conn);
}

/* Head (if held), framing and data in one write. */
bool relay_write(struct exchange *exchange, struct kvr_slice data, bool last)
{
        static const char crlf[] = "\r\n", end[] = "0\r\n\r\n";
        char size_line[24];
        uv_buf_t bufs[5];
        unsigned count = 0;
        bool chunked = exchange->framing == FRAME_CHUNKED;

        if (exchange->framing == FRAME_NONE)
                data.len = 0;
        if (exchange->head_held) {
                bufs[count++] = uv_buf_init(exchange->answer_head.data, (unsigned)exchange->answer_head.len);
                exchange->head_held = false;
                exchange->head_sent = true;
        }
        if (data.len) {
                if (chunked) {
                        size_t len = text_hex(size_line, data.len, 1);

                        memcpy(size_line + len, crlf, 2);
                        bufs[count++] = uv_buf_init(size_line, (unsigned)len + 2);
                }
                bufs[count++] = uv_buf_init((char *)(uintptr_t)data.data, (unsigned)data.len);
                if (chunked)
                        bufs[count++] = uv_buf_init((char *)(uintptr_t)crlf, 2);
                exchange->body_out += data.len;
        }
        if (last && chunked)
                bufs[count++] = uv_buf_init((char *)(uintptr_t)end, 5);
        if (count == 0)
                return true;
        if (net_write(exchange->client->conn, bufs, count)) {
                exchange_abort(exchange);
                return false;
        }
        if (exchange->heartbeat.next)
                relay_arm_heartbeat(exchange);
        if (net_pending(exchange->client->conn))
                wait_for_client(exchange);
        return true;
}

bool relay_probe_client(struct exchange *exchange)
{
        static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n", zero[] = "0";
        uv_buf_t buf;

        if (exchange->http10)
                return false;
        if (!exchange->head_sent)
                buf = uv_buf_init((char *)(uintptr_t)interim, sizeof interim - 1);
        else if (exchange->framing == FRAME_CHUNKED)
                buf = uv_buf_init((char *)(uintptr_t)zero, 1);
        else
                return false;
        return net_write(exchange->client->conn, &buf, 1) == 0;
}

/* ---- head ---- */

void relay_own_fields(struct exchange *exchange, struct text *head)
{
        text_adds(head, "x-request-id: ");
        text_adds(head, exchange->request_id);
        text_add(head, "\r\n", 2);
        if (!exchange->replica || !exchange->worker->config->answer_headers)
                return;
        text_adds(head, "x-kvroute-replica: ");
        text_adds(head, exchange->replica->spec.name);
        text_adds(head, "\r\nx-kvroute-match-tokens: ");
        text_addu(head, exchange->decision.match_tokens);
        text_adds(head, "\r\nx-kvroute-reason: ");
        text_adds(head, kvr_reason_name(exchange->decision.reason));
        text_add(head, "\r\n", 2);
}

/* Seconds of a Retry-After field, as a number or a date; 0 if there is none or it is past. */
static uint64_t retry_after_s(const struct http1_head *head)
{
        const struct http1_field *field = http1_find(head, "retry-after");
        char text[64];
        struct tm tm = {0};
        uint64_t seconds = 0;
        time_t at;

        if (!field || field->value.len == 0 || field->value.len >= sizeof text)
                return 0;
        memcpy(text, field->value.data, field->value.len);
        text[field->value.len] = '\0';
        if (text[0] >= '0' && text[0] <= '9') {
                for (const char *digit = text; *digit >= '0' && *digit <= '9' && seconds < RETRY_AFTER_MAX_S;
                     digit++)
                        seconds = seconds * 10 + (uint64_t)(*digit - '0');
        } else if (strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm)) {
                at = timegm(&tm);
                seconds = at > time(NULL) ? (uint64_t)(at - time(NULL)) : 0;
        }
        return seconds < RETRY_AFTER_MAX_S ? seconds : RETRY_AFTER_MAX_S;
}

/* When every replica asked for a pause, the client is told the shortest. 0: leave what the replica said. */
static uint64_t shortest_pause_s(struct exchange *exchange)
{
        struct kvr_request request = {
                .model = {exchange->real_model, strlen(exchange->real_model)},
        };
        struct kvr_decision decision = {0};
        size_t count;

        if (kvr_explain(exchange->worker->proxy->router, &request, &decision, NULL, 0, &count, NULL) !=
            KVR_E_BUSY)
                return 0;
        return (decision.retry_after_ns + 999999999) / 1000000000;
}

static bool is_sse(const struct http1_head *head)
{
        const struct http1_field *field = http1_find(head, "content-type");
        static const char type[] = "text/event-stream";

        return field && field->value.len >= sizeof type - 1 &&
               strncasecmp(field->value.data, type, sizeof type - 1) == 0;
}

static void choose_framing(struct exchange *exchange, const struct http1_head *head)
{
        if (head->no_body)
                exchange->framing = FRAME_NONE;
        else if (head->content_length >= 0 && !(exchange->sse && exchange->usage_injected))
                exchange->framing = FRAME_LENGTH;
        else if (!exchange->http10)
                exchange->framing = FRAME_CHUNKED;
        else
                exchange->framing = FRAME_CLOSE;
        if (exchange->framing == FRAME_CLOSE)
                exchange->keep_alive = false;
}

static void render_head(struct exchange *exchange, const struct http1_head *head, uint64_t retry_s)
{
        struct text *out = &exchange->answer_head;

        text_clear(out);
        text_adds(out, "HTTP/1.1 ");
        text_addu(out, head->status);
        text_add(out, " ", 1);
        text_add_slice(out, head->reason);
        text_add(out, "\r\n", 2);
        for (uint32_t i = 0; i < head->field_count; i++) {
                struct kvr_slice name = head->fields[i].name;

                if (http1_hop_by_hop(head, name) || http1_is(name, "content-length") ||
                    http1_is(name, "x-request-id") ||
                    (name.len > 10 && strncasecmp(name.data, "x-kvroute-", 10) == 0) ||
                    (retry_s && http1_is(name, "retry-after")))
                        continue;
                text_add_slice(out, name);
                text_add(out, ": ", 2);
                text_add_slice(out, head->fields[i].value);
                text_add(out, "\r\n", 2);
        }
        if (retry_s)
                text_addf(out, "Retry-After: %llu\r\n", (unsigned long long)retry_s);
        if (exchange->framing == FRAME_CHUNKED) {
                text_adds(out, "Transfer-Encoding: chunked\r\n");
        } else if (head->content_length >= 0) {
                text_adds(out, "Content-Length: ");
                text_addu(out, (uint64_t)head->content_length);
                text_add(out, "\r\n", 2);
        }
        if (exchange->sse && !http1_find(head, "x-accel-buffering"))
                text_adds(out, "X-Accel-Buffering: no\r\n"); /* for proxies in front of us */
        if (!exchange->keep_alive)
                text_adds(out, "Connection: close\r\n");
        else if (exchange->http10)
                text_adds(out, "Connection: keep-alive\r\n");
        relay_own_fields(exchange, out);
        text_add(out, "\r\n", 2);
}

/* A status that says: not here, not now. True: another replica was tried, the exchange moved on. */
__attribute__((cold)) static bool pushed_back(struct exchange *exchange, const struct http1_head *head,
                                              uint64_t *ret_retry_s)
{
        struct proxy *proxy = exchange->worker->proxy;
        uint64_t wish_s = retry_after_s(head), shortest_s;

        if (wish_s) {
                uint64_t until_ns = uv_hrtime() + wish_s * 1000000000;

                kvr_replica_pause(proxy->router, exchange->replica->id, until_ns);
                shadow_replica_pause(proxy->shadow, exchange->replica->id, until_ns);
        }
        if (route_has_other(exchange)) {
                route_failed(exchange, FAIL_PUSHBACK, true, head->status, "overloaded",
                             "the replica is overloaded");
                return true;
        }
        shortest_s = shortest_pause_s(exchange);
        *ret_retry_s = shortest_s && shortest_s < wish_s ? shortest_s : 0;
        return false;
}

/* True: the exchange moved on to another replica. */
static bool judge_status(struct exchange *exchange, const struct http1_head *head, uint64_t *ret_retry_s)
{
        switch (head->status) {
        case 429:
        case 503:
                return pushed_back(exchange, head, ret_retry_s);
        case 502:
        case 504:
                if (route_has_other(exchange)) {
                        route_failed(exchange, FAIL_STATUS, true, head->status, "upstream_error",
                                     "the replica answered with a gateway error");
                        return true;
                }
                __attribute__((fallthrough));
        case 500:
                count_failure(exchange, FAIL_STATUS);
                return false;
        default:
                return false;
        }
}

/* After an early head only an event can tell. The exchange is over. */
__attribute__((cold)) static void error_after_early_head(struct exchange *exchange,
                                                         const struct http1_head *head)
{
        char message[64];

        snprintf(message, sizeof message, "the replica answered with status %u", head->status);
        target_traffic_ok(exchange->worker->proxy->fleet, exchange->replica);
        reply_error(exchange, head->status, "upstream_error", message, 0);
}

/* What the client sent before it knew of the tunnel belongs to it. False: the exchange is over. */
static bool tunnel_send_early(struct exchange *exchange)
{
        struct client *client = exchange->client;
        uv_buf_t early = uv_buf_init(client->input.data, (unsigned)client->input.len);

        if (client->input.failed || (early.len && net_write(exchange->upstream->conn, &early, 1))) {
                exchange_abort(exchange);
                return false;
        }
        text_clear(&client->input);
        /* It may have been stopped for the length of this; else on_drain goes on. */
        if (net_pending(exchange->upstream->conn))
                net_read_stop(client->conn);
        else
                net_read_start(client->conn);
        return true;
}

__attribute__((cold)) static bool tunnel_begin(struct exchange *exchange, const struct http1_head *head)
{
        exchange->status = head->status;
        exchange->state = EXCHANGE_TUNNEL;
        exchange->framing = FRAME_LENGTH; /* bytes as they are */
        exchange->keep_alive = false;
        text_clear(&exchange->answer_head);
        text_addf(&exchange->answer_head, "HTTP/1.1 101 Switching Protocols\r\n");
        for (uint32_t i = 0; i < head->field_count; i++) {
                text_add_slice(&exchange->answer_head, head->fields[i].name);
                text_add(&exchange->answer_head, ": ", 2);
                text_add_slice(&exchange->answer_head, head->fields[i].value);
                text_add(&exchange->answer_head, "\r\n", 2);
        }
        relay_own_fields(exchange, &exchange->answer_head);
        text_add(&exchange->answer_head, "\r\n", 2);
        exchange->head_held = true;
        exchange->committed = true;
        net_deadline_disarm(&exchange->upstream->deadline);
        return relay_write(exchange, (struct kvr_slice){NULL, 0}, false) && tunnel_send_early(exchange);
}

/* The replica's head is complete. False: the exchange moved on or is over. */
static bool take_head(struct exchange *exchange, const struct http1_head *head)
{
        struct worker *worker = exchange->worker;
        uint64_t retry_s = 0;

        exchange->head_read = true;
        exchange->answer_keep_alive =
                head->keep_alive && (head->chunked || head->content_length >= 0 || head->no_body);
        exchange->sse = is_sse(head) && !head->no_body;
        if (head->status == 101 && exchange->upgrade)
                return tunnel_begin(exchange, head);
        if (judge_status(exchange, head, &retry_s))
                return false;
        if (exchange->early_head && (head->status != 200 || !is_sse(head))) {
                error_after_early_head(exchange, head);
                return false;
        }
        exchange->state = EXCHANGE_RELAYING;
        exchange->status = head->status;
        usage_tap_again(&exchange->tap, (enum engine_kind)atomic_load(&exchange->replica->engine),
                        exchange->api, exchange->several);
        exchange->tapped = exchange->api != KVR_API_OTHER && head->status == 200;
        sse_init(&exchange->scanner);
        if (exchange->early_head)
                return true;
        choose_framing(exchange, head);
        render_head(exchange, head, retry_s);
        if (exchange->answer_head.failed) {
                route_failed(exchange, FAIL_OWN, false, 503, "overloaded", "no memory for the answer");
                return false;
        }
        exchange->head_held = true;
        if (!exchange->sse || !worker->config->hold_head)
                net_deadline_arm(&worker->deadlines, &exchange->upstream->deadline, DEADLINE_IDLE);
        return true;
}

/* ---- body ---- */

/* An error the client caused would meet the same answer elsewhere. */
static bool is_clients_fault(struct kvr_slice data)
{
        static const char key[] = "\"code\":";
        const char *at = memmem(data.data, data.len, key, sizeof key - 1), *end = data.data + data.len;

        if (!at)
                return false;
        for (at += sizeof key - 1; at < end && *at == ' '; at++)
                ;
        return end - at >= 3 && *at == '4';
}

struct delivery {
        struct exchange *exchange;
        struct text *out; /* NULL: the bytes pass as they are */
        bool died;        /* the first event is an error of the engine's own */
};

static void saw_first_token(struct exchange *exchange)
{
        if (exchange->first_token_ns)
                return;
        exchange->first_token_ns = exchange->heard_ns;
        kvr_ticket_first_token(exchange->ticket);
        shadow_first_token(exchange->worker->proxy->shadow, exchange->shadow, exchange->first_token_ns);
}

/* Returns whether the event passes on to the client. */
static bool on_event(void *ctx, const struct sse_event *event)
{
        struct delivery *delivery = ctx;
        struct exchange *exchange = delivery->exchange;

        if (event->first_token)
                saw_first_token(exchange);
        if (event->kind == SSE_ERROR) {
                if (!exchange->committed && exchange->scanner.data_events == 0 &&
                    !is_clients_fault(event->data))
                        delivery->died = true;
                exchange->error_event = true;
        }
        return !(event->kind == SSE_USAGE && exchange->usage_injected);
}

static void on_passing(void *ctx, const char *data, size_t len)
{
        text_add(((struct delivery *)ctx)->out, data, len);
}

/* Looks at the events in data; *data becomes what passes on. */
static bool watch_events(struct exchange *exchange, struct kvr_slice *data)
{
        struct worker *worker = exchange->worker;
        struct delivery delivery = {exchange, NULL, false};
        struct sse_event event;
        size_t at = 0;

        if (exchange->usage_injected) {
                delivery.out = &worker->scratch;
                text_clear(delivery.out);
                sse_filter(&exchange->scanner, data->data, data->len, on_event, on_passing, &delivery);
                *data = text_slice(delivery.out);
        } else {
                while (sse_next(&exchange->scanner, data->data, data->len, &at, &event))
                        (void)on_event(&delivery, &event);
        }
        return !delivery.died;
}

/* Whether what is held may go: the first event is known, or there is too much to wait for it. */
static bool may_release(const struct exchange *exchange, bool last)
{
        return !exchange->sse || last || exchange->scanner.data_events > 0 || exchange->error_event ||
               exchange->held.len >= HELD_BYTES_MAX;
}

__attribute__((cold)) static void died_in_prefill(struct exchange *exchange)
{
        route_failed(exchange, FAIL_STREAM, true, 502, "upstream_error",
                     "the replica failed before the first byte of its answer");
}

/* Content of the answer. False: the exchange moved on or is over. */
static bool deliver(struct exchange *exchange, struct kvr_slice data, bool last)
{
        bool held = !exchange->committed;
        uint64_t events_before = exchange->scanner.data_events;

        exchange->body_in += data.len;
        if (exchange->tapped)
                usage_tap_feed(&exchange->tap, data.data, data.len);
        if (exchange->sse) {
                if (!watch_events(exchange, &data) && route_has_other(exchange)) {
                        died_in_prefill(exchange);
                        return false;
                }
        } else if (data.len && exchange->status < 400) { /* a refusal's words are no tokens */
                saw_first_token(exchange);
        }
        /* Comments come from an engine's front end even when the engine hangs: they prove nothing. */
        if (exchange->sse ? exchange->scanner.data_events != events_before : data.len > 0) {
                atomic_store_explicit(&exchange->replica->last_byte_ns, exchange->heard_ns,
                                      memory_order_relaxed);
                count_waiting(exchange, false);
        }
        if (last && exchange->sse && exchange->usage_injected) {
                struct delivery rest = {exchange, &exchange->worker->scratch, false};

                sse_filter_end(&exchange->scanner, on_passing, &rest);
                data = text_slice(
                        &exchange->worker->scratch); /* what passed before, and what was held back */
        }
        if (held && exchange->sse && exchange->worker->config->hold_head) {
                text_add_slice(&exchange->held, data);
                if (!may_release(exchange, last))
                        return true;
                if (last && exchange->scanner.events == 0 && exchange->held.len == 0 &&
                    exchange->status == 200) {
                        died_in_prefill(exchange); /* a stream that ended with nothing in it */
                        return false;
                }
                data = text_slice(&exchange->held);
        }
        if (data.len || last || exchange->head_held)
                exchange->committed = true;
        if (last)
                exchange_book(exchange, exchange->error_event ? KVR_END_FAILED : KVR_END_FINISHED);
        return relay_write(exchange, data, last);
}

static void answer_complete(struct exchange *exchange)
{
        struct upstream *upstream = exchange->upstream;
        const struct engine_traits *traits =
                engine_traits((enum engine_kind)atomic_load(&exchange->replica->engine));
        bool reusable = exchange->answer_keep_alive && net_pending(upstream->conn) == 0 &&
                        !(exchange->sse && traits->closes_after_stream);

        exchange->upstream = NULL;
        net_deadline_disarm(&upstream->deadline);
        net_read_stop(upstream->conn);
        upstream->exchange = NULL;
        if (reusable)
                pool_give(upstream);
        else
                upstream_close(upstream);
        exchange_end(exchange, exchange->error_event ? KVR_END_FAILED : KVR_END_FINISHED);
}

struct body_span {
        char *start;
        size_t len;
};

/* Pieces between chunk framing are moved together, in place: one write for all of them. */
static void on_span(void *ctx, const char *data, size_t len)
{
        struct body_span *span = ctx;

        if (span->len == 0)
                span->start = (char *)(uintptr_t)data;
        else if (span->start + span->len != data)
                memmove(span->start + span->len, data, len);
        span->len += len;
}

/*
 * The answer broke after the client saw a part of it: cut the connection, so that nobody takes it for whole.
 */
__attribute__((cold)) static void broken(struct exchange *exchange, enum failure failure)
{
        struct proxy *proxy = exchange->worker->proxy;

        count_failure(exchange, failure);
        log_say(proxy->log, LOG_WARN, exchange->replica->spec.name,
                "replica %s: an answer broke off after %llu bytes (request %s)", exchange->replica->spec.name,
                (unsigned long long)exchange->body_in, exchange->request_id);
        exchange->cut = true;
        exchange->keep_alive = false;
        exchange_end(exchange, KVR_END_FAILED);
}

void relay_cut(struct exchange *exchange, const char *why)
{
        if (exchange->committed)
                broken(exchange, FAIL_OWN);
        else
                route_failed(exchange, FAIL_OWN, true, 503, "no_replica", why);
}

static void body_bytes(struct exchange *exchange, char *data, size_t len)
{
        struct worker *worker = exchange->worker;
        struct body_span span = {data, 0};
        size_t used = 0;
        enum http1_result result = http1_body(&exchange->answer_parser, data, len, on_span, &span, &used);

        if (result == HTTP1_BAD) {
                if (exchange->committed)
                        broken(exchange, FAIL_PROTOCOL);
                else
                        route_failed(exchange, FAIL_PROTOCOL, true, 502, "upstream_error",
                                     "the replica does not speak HTTP");
                return;
        }
        if (used < len) { /* bytes nobody asked for */
                exchange->answer_keep_alive = false;
                pool_distrust(worker, exchange->replica);
        }
        if (result == HTTP1_DONE) {
                if (deliver(exchange, (struct kvr_slice){span.start, span.len}, true))
                        answer_complete(exchange);
                return;
        }
        if (span.len && !deliver(exchange, (struct kvr_slice){span.start, span.len}, false))
                return;
        if (exchange->body_in && !net_pending(exchange->client->conn))
                net_deadline_arm(&worker->deadlines, &exchange->upstream->deadline, DEADLINE_IDLE);
        /* Not held by policy, but no body byte came with the head: send it alone. */
        if (exchange->head_held && !(exchange->sse && worker->config->hold_head) && exchange->body_in == 0)
                (void)relay_write(exchange, (struct kvr_slice){NULL, 0}, false);
}

static void head_bytes(struct exchange *exchange, char *data, size_t len)
{
        struct http1_head *head = &exchange->worker->head;
        bool kept = exchange->answer_input.len > 0;
        enum http1_result result;
        size_t used = 0;

        exchange->heard = true;
        if (kept) {
                text_add(&exchange->answer_input, data, len);
                data = exchange->answer_input.data;
                len = exchange->answer_input.len;
        }
        for (;;) {
                result = http1_head(&exchange->answer_parser, data, len, head, &used);
                if (result != HTTP1_DONE || head->status / 100 != 1 || head->status == 101)
                        break;
                /* Interim answers are between us and the replica. */
                http1_init(&exchange->answer_parser, HTTP1_RESPONSE);
                exchange->answer_parser.head_request = exchange->head_request;
                data += used;
                len -= used;
        }
        if (result == HTTP1_MORE && !exchange->answer_input.failed) {
                if (!kept)
                        text_add(&exchange->answer_input, data, len);
                else
                        text_drop(&exchange->answer_input, exchange->answer_input.len - len);
                return;
        }
        if (result != HTTP1_DONE) {
                route_failed(exchange, FAIL_PROTOCOL, true, 502, "upstream_error",
                             "the replica does not speak HTTP");
                return;
        }
        if (!take_head(exchange, head))
                return;
        if (exchange->state == EXCHANGE_TUNNEL) {
                if (len > used)
                        (void)relay_write(exchange, (struct kvr_slice){data + used, len - used}, false);
                return;
        }
        body_bytes(exchange, data + used, len - used);
}

/* ---- events of the connection to the replica ---- */

static void on_connect(struct net_conn *conn, int error)
{
        route_connected(conn->owner, error);
}

static void on_data(struct net_conn *conn, char *data, size_t len)
{
        struct upstream *upstream = conn->owner;
        struct exchange *exchange = upstream->exchange;

        if (exchange->state == EXCHANGE_TUNNEL) {
                (void)relay_write(exchange, (struct kvr_slice){data, len}, false);
                return;
        }
        exchange->heard_ns = uv_hrtime();
        host_hold_time(exchange->heard_ns);
        if (!exchange->head_read)
                head_bytes(exchange, data, len);
        else
                body_bytes(exchange, data, len);
        host_hold_time(0);
}

/* The replica closed the idle connection just as we used it: no failure, and it does not know the request. */
static bool is_idle_race(const struct upstream *upstream)
{
        return upstream->requests > 1 && !upstream->exchange->heard &&
               net_now_ms(&upstream->worker->loop) - upstream->sent_ms <= IDLE_RACE_MS;
}

static void on_end(struct net_conn *conn, int error)
{
        struct upstream *upstream = conn->owner;
        struct exchange *exchange = upstream->exchange;

        if (exchange->state == EXCHANGE_TUNNEL) {
                exchange_end(exchange, KVR_END_FINISHED);
                return;
        }
        if (!exchange->head_read) {
                if (is_idle_race(upstream))
                        route_again(exchange);
                else
                        route_failed(exchange, exchange->answer_input.len ? FAIL_PROTOCOL : FAIL_RESET, true,
                                     502, "upstream_error",
                                     "the replica closed the connection before it answered");
                return;
        }
        if (error == 0 && http1_eof(&exchange->answer_parser)) {
                exchange->answer_keep_alive = false;
                if (deliver(exchange, (struct kvr_slice){NULL, 0}, true))
                        answer_complete(exchange);
                return;
        }
        if (exchange->committed)
                broken(exchange, FAIL_STREAM);
        else
                route_failed(exchange, FAIL_RESET, true, 502, "upstream_error",
                             "the replica closed the connection before the first byte of its answer");
}

static void on_moved(struct net_conn *conn)
{
        pool_moved(conn->owner);
}

static void on_drain(struct net_conn *conn)
{
        struct upstream *upstream = conn->owner;

        /* The request is out. In a tunnel the client may be read again. */
        if (upstream->exchange && upstream->exchange->state == EXCHANGE_TUNNEL)
                net_read_start(upstream->exchange->client->conn);
}

void relay_on_deadline(struct net_deadline *deadline)
{
        struct upstream *upstream =
                (struct upstream *)((char *)deadline - offsetof(struct upstream, deadline));
        struct exchange *exchange = upstream->exchange;

        if (exchange->committed) {
                broken(exchange, FAIL_TIMEOUT);
                return;
        }
        /* The replica may be computing this very prompt: another try would compute it twice. */
        route_failed(exchange, FAIL_TIMEOUT, false, 504, "upstream_timeout",
                     deadline->kind == DEADLINE_FIRST_BYTE ? "no answer within the first-byte-timeout"
                                                           : "the answer stopped (idle-timeout)");
}

/* A quiet stream gets a comment, if need be with a head that commits to 200. */
void relay_on_heartbeat(struct net_deadline *deadline)
{
        static const char comment[] = ": waiting\n\n";
        struct exchange *exchange =
                (struct exchange *)((char *)deadline - offsetof(struct exchange, heartbeat));
        bool between = exchange->head_read ? exchange->sse && sse_at_boundary(&exchange->scanner) : true;

        relay_arm_heartbeat(exchange);
        if (!between || net_pending(exchange->client->conn) || (exchange->head_held && exchange->held.len))
                return;
        if (!exchange->head_sent && !exchange->head_held) {
                exchange->framing = FRAME_CHUNKED;
                text_clear(&exchange->answer_head);
                text_adds(&exchange->answer_head, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                                  "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
                                                  "Transfer-Encoding: chunked\r\n");
                relay_own_fields(exchange, &exchange->answer_head);
                text_add(&exchange->answer_head, "\r\n", 2);
                exchange->head_held = true;
        }
        if (!exchange->head_sent)
                exchange->early_head = true;
        (void)relay_write(exchange, (struct kvr_slice){comment, sizeof comment - 1}, false);
}

const struct net_ops upstream_ops = {
        .on_data = on_data,
        .on_end = on_end,
        .on_moved = on_moved,
        .on_drain = on_drain,
        .on_connect = on_connect,
};
