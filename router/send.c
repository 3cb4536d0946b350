/* SPDX-License-Identifier: Apache-2.0 */
/* A request on its way to the chosen replica: connection, head, body, and the end of a try that failed. */
#include "proxy.h"

#include <stdlib.h>
#include <string.h>

#include "edit.h"

static void add_line(struct text *head, const char *name, const char *value)
{
        text_adds(head, name);
        text_add(head, ": ", 2);
        text_adds(head, value);
        text_add(head, "\r\n", 2);
}

/* Which of the data-parallel ranks behind the port is to take it. */
static void add_rank(struct text *head, const struct target *target)
{
        const char *name = engine_traits((enum engine_kind)atomic_load(&target->engine))->rank_header;

        if (!name)
                return;
        text_adds(head, name);
        text_add(head, ": ", 2);
        text_addu(head, (uint64_t)target->spec.rank);
        text_add(head, "\r\n", 2);
}

static void build_head(struct exchange *exchange)
{
        const struct target *target = exchange->replica;
        struct text *head = &exchange->request_head;
        size_t length = edit_body_length(exchange);

        text_clear(head);
        text_adds(head, exchange->method);
        text_add(head, " ", 1);
        text_adds(head, target->spec.prefix);
        text_add_slice(head, text_slice(&exchange->target));
        text_adds(head, " HTTP/1.1\r\nHost: ");
        text_adds(head, target->spec.authority);
        text_add(head, "\r\n", 2);
        text_add_slice(head, text_slice(&exchange->fields));
        if (target->auth == REPLICA_AUTH_PASS)
                text_add_slice(head, text_slice(&exchange->credentials));
        else if (target->auth == REPLICA_AUTH_REPLACE && target->key)
                text_addf(head, "Authorization: Bearer %s\r\n", target->key);
        add_line(head, "x-request-id", exchange->request_id);
        if (target->spec.rank < 0)
                text_add_slice(head, text_slice(&exchange->rank_fields));
        else
                add_rank(head, target);
        if (exchange->content_encoding[0] && !exchange->send_decoded)
                add_line(head, "Content-Encoding", exchange->content_encoding);
        if (exchange->upgrade)
                text_addf(head, "Connection: Upgrade\r\nUpgrade: %s\r\n", exchange->upgrade_to);
        if (length || strcmp(exchange->method, "POST") == 0 || strcmp(exchange->method, "PUT") == 0 ||
            strcmp(exchange->method, "PATCH") == 0) {
                text_adds(head, "Content-Length: ");
                text_addu(head, length);
                text_add(head, "\r\n", 2);
        }
        text_add(head, "\r\n", 2);
}

static void send_request(struct exchange *exchange)
{
        struct worker *worker = exchange->worker;
        struct upstream *upstream = exchange->upstream;
        uv_buf_t bufs[2 + 2 * BODY_EDITS_MAX];
        unsigned count;

        build_head(exchange);
        if (exchange->request_head.failed || exchange->edit_text.failed) {
                route_failed(exchange, FAIL_OWN, false, 503, "overloaded", "no memory to send the request");
                return;
        }
        exchange->state = EXCHANGE_WAITING;
        exchange->reached = true;
        exchange->heard = false;
        upstream->sent_ms = net_now_ms(&worker->loop);
        upstream->requests++;
        http1_init(&exchange->answer_parser, HTTP1_RESPONSE);
        exchange->answer_parser.head_request = exchange->head_request;
        bufs[0] = uv_buf_init(exchange->request_head.data, (unsigned)exchange->request_head.len);
        count = 1 + edit_body_pieces(exchange, bufs + 1);
        count_waiting(exchange, true);
        if (exchange->stream)
                relay_arm_heartbeat(exchange);
        net_deadline_arm(&worker->deadlines, &upstream->deadline, DEADLINE_FIRST_BYTE);
        net_read_start(upstream->conn);
        if (net_write_ref(upstream->conn, bufs, count)) {
                if (upstream->requests > 1)
                        route_again(exchange);
                else
                        route_failed(exchange, FAIL_RESET, true, 502, "upstream_error",
                                     "the replica closed the connection");
        }
}

static bool connect_to(struct exchange *exchange, const struct sockaddr_storage *addr, unsigned addr_version)
{
        struct worker *worker = exchange->worker;
        struct target *target = exchange->replica;
        struct upstream *upstream = calloc(1, sizeof *upstream);

        if (!upstream)
                return false;
        upstream->worker = worker;
        upstream->addr_version = addr_version;
        upstream->conn = net_connect(&worker->loop, (const struct sockaddr *)addr, &upstream_ops, upstream);
        if (!upstream->conn) {
                free(upstream);
                return false;
        }
        upstream->target = target_ref(target);
        upstream->exchange = exchange;
        exchange->upstream = upstream;
        exchange->state = EXCHANGE_CONNECTING;
        net_deadline_arm(&worker->deadlines, &upstream->deadline, DEADLINE_CONNECT);
        return true;
}

/* We are out of descriptors or memory: no replica is to blame and none would help. */
static void no_connection(struct exchange *exchange)
{
        route_failed(exchange, FAIL_OWN, false, 503, "overloaded",
                     "the router has no descriptor or memory left for a connection to the replica");
}

static void count_reused(struct worker *worker, struct upstream *upstream)
{
        struct metrics *metrics = worker->proxy->metrics;

        if (!upstream->reused) {
                struct kvr_slice labels[2] = {slice_of(upstream->target->spec.name), slice_of("reused")};

                upstream->reused = metrics_series(metrics, worker->number, METRIC_POOL_REUSED, labels) + 1;
        }
        metrics_add(metrics, worker->number, upstream->reused - 1, 1);
}

void send_begin(struct exchange *exchange)
{
        struct worker *worker = exchange->worker;
        struct target *target = exchange->replica;
        struct upstream *upstream = exchange->fresh_only ? NULL : pool_take(worker, target);
        struct sockaddr_storage addr;
        unsigned addr_version = 0;

        if (upstream) {
                count_reused(worker, upstream);
                upstream->exchange = exchange;
                exchange->upstream = upstream;
                exchange->sent_ns = exchange->routed_ns; /* just now */
                send_request(exchange);
                return;
        }
        if (!target_address(target, &addr, &addr_version)) {
                route_failed(exchange, FAIL_NAME, true, 503, "no_replica",
                             "its host name cannot be resolved");
                return;
        }
        count_connection(worker, target, "new");
        if (!connect_to(exchange, &addr, addr_version))
                no_connection(exchange);
}

void route_connected(struct upstream *upstream, int error)
{
        struct exchange *exchange = upstream->exchange;

        net_deadline_disarm(&upstream->deadline);
        if (error) {
                route_failed(exchange, FAIL_CONNECT, true, 502, "upstream_error",
                             "the replica refuses connections");
                return;
        }
        exchange->sent_ns = uv_hrtime();
        send_request(exchange);
}

void route_on_connect_deadline(struct net_deadline *deadline)
{
        struct upstream *upstream =
                (struct upstream *)((char *)deadline - offsetof(struct upstream, deadline));

        route_failed(upstream->exchange, FAIL_CONNECT, true, 504, "upstream_timeout",
                     "the replica does not take connections (connect-timeout)");
}

static void drop_upstream(struct exchange *exchange)
{
        count_waiting(exchange, false);
        if (exchange->upstream) {
                upstream_close(exchange->upstream);
                exchange->upstream = NULL;
        }
        text_clear(&exchange->answer_input);
        text_clear(&exchange->answer_head);
        text_clear(&exchange->held);
        exchange->head_read = exchange->head_held = exchange->error_event = exchange->sse = false;
        exchange->body_in = exchange->first_token_ns = 0;
        usage_tap_fini(&exchange->tap);
        exchange->tapped = false;
}

void route_again(struct exchange *exchange)
{
        drop_upstream(exchange);
        exchange->fresh_only = true;
        send_begin(exchange);
}

void count_failure(struct exchange *exchange, enum failure failure)
{
        static const struct {
                const char *name;
                int health; /* enum health_failure, -1: none */
        } kinds[] = {
                [FAIL_CONNECT] = {"connect", HEALTH_REFUSED},
                [FAIL_RESET] = {"reset", HEALTH_RESET},
                [FAIL_TIMEOUT] = {"timeout", HEALTH_TIMEOUT},
                [FAIL_PROTOCOL] = {"protocol", HEALTH_ERROR},
                [FAIL_STATUS] = {"status", HEALTH_ERROR},
                [FAIL_STREAM] = {"stream", HEALTH_ERROR},
                [FAIL_STALL] = {"timeout", HEALTH_STALL},
                [FAIL_PUSHBACK] = {"overloaded", -1},
                [FAIL_OWN] = {NULL, -1},
                [FAIL_NAME] = {"connect", -1},
        };
        struct target *target = exchange->replica;
        struct kvr_slice labels[2] = {slice_of(target->spec.name)};
        /* What happens on a connection to where the replica was says nothing of where it is. */
        bool current = !exchange->upstream || upstream_is_current(exchange->upstream);

        if (failure == FAIL_CONNECT && target->named)
                atomic_store(&target->resolve_wanted, true);
        if (kinds[failure].health >= 0 && current)
                target_traffic_failed(exchange->worker->proxy->fleet, target,
                                      (enum health_failure)kinds[failure].health, uv_hrtime());
        if (!kinds[failure].name)
                return;
        labels[1] = slice_of(kinds[failure].name);
        worker_count(exchange->worker, METRIC_UPSTREAM_ERRORS, labels, 1);
}

void route_failed(struct exchange *exchange, enum failure failure, bool retryable, unsigned status,
                  const char *code, const char *message)
{
        struct worker *worker = exchange->worker;
        struct target *target = exchange->replica;
        struct kvr_slice label = slice_of(target->spec.name);
        char key[KVR_NAME_MAX + 128];

        count_failure(exchange, failure);
        snprintf(key, sizeof key, "%s %s", target->spec.name, message);
        log_say(worker->proxy->log, LOG_WARN, key, "replica %s: %s", target->spec.name, message);
        drop_upstream(exchange);
        exchange_settle(exchange, failure == FAIL_PUSHBACK ? KVR_END_REFUSED : KVR_END_FAILED);
        route_add_tried(exchange, target->id);
        exchange_release_replica(exchange);
        exchange->fail_status = status;
        exchange->fail_code = code;
        exchange->fail_message = message;
        if (retryable && exchange->tries <= worker->config->retries &&
            exchange->tried_count < KVR_TRIED_MAX) {
                worker_count(worker, METRIC_RETRIES, &label, 1);
                route_try(exchange);
                return;
        }
        route_refuse(exchange);
}
