/* SPDX-License-Identifier: Apache-2.0 */
/* From a complete request to a replica: prompt, decision, queue, connection, sending, further tries. */
#include "proxy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "decode.h"
#include "edit.h"

#define NS_PER_S      1000000000ull
#define QUEUE_TRIES   64 /* queued requests looked at in one go */
#define KNOWN_MODELS  16 /* named in a 404 */

/* ---- the prompt --------------------------------------------------------------------------------------------------- */

static struct kvr_slice resolve_alias(void *ctx, struct kvr_slice model)
{
        const struct router_config *config = ctx;

        for (size_t i = 0; i < config->aliases.count; i++) {
                const struct config_alias *alias = &config->aliases.items[i];

                if (strlen(alias->name) == model.len && memcmp(alias->name, model.data, model.len) == 0)
                        return (struct kvr_slice){alias->target, strlen(alias->target)};
        }
        return model;
}

/* The body as text: decoded where it came compressed (empty if that failed). */
static struct kvr_slice plain_body(const struct exchange *exchange)
{
        return text_slice(exchange->encoding == DECODE_IDENTITY ? &exchange->body : &exchange->decoded);
}

static void copy_slice(char *ret, size_t size, struct kvr_slice from)
{
        size_t len = from.len < size - 1 ? from.len : size - 1;

        if (len)
                memcpy(ret, from.data, len);
        ret[len] = '\0';
}

/* A salt per client key, so that tenants share no cache: its hash, as the key itself must not travel. */
static void tenant_salt(const struct exchange *exchange, char ret[33])
{
        struct kvr_slice key = exchange_client_key(exchange);

        edit_hash_hex(key, exchange->worker->proxy->seed, ret);
}

/*
 * Reads the prompt from the body into the worker's parser, where it stays until the next request is read: a retry and a
 * queued request read it again, which costs less than keeping it for all.
 */
static enum kvr_status read_prompt(struct exchange *exchange, struct kvr_prompt *ret, struct kvr_error *err)
{
        const struct router_config *config = exchange->worker->config;
        struct kvr_slice body = plain_body(exchange);
        char salt[33];
        struct kvr_prompt_options options = {
                .seed = exchange->worker->proxy->seed,
                .resolve_model = config->aliases.count ? resolve_alias : NULL,
                .resolve_ctx = (void *)(uintptr_t)config,
        };

        if (config->tenant_salt) {
                tenant_salt(exchange, salt);
                options.salt = (struct kvr_slice){salt, 32};
        }
        return kvr_prompt_parse(exchange->worker->parser, exchange->api, body, &options, ret, err);
}

static bool looks_like_json(const struct exchange *exchange)
{
        struct kvr_slice body = plain_body(exchange);

        for (size_t i = 0; i < body.len; i++) {
                char byte = body.data[i];

                if (byte != ' ' && byte != '\t' && byte != '\r' && byte != '\n')
                        return byte == '{';
        }
        return false;
}

/* What is read once and kept: names, hints, the edits that documented options ask for. */
static void keep_prompt(struct exchange *exchange, const struct kvr_prompt *prompt)
{
        const struct router_config *config = exchange->worker->config;
        struct kvr_slice real = resolve_alias((void *)(uintptr_t)config, prompt->model);

        copy_slice(exchange->model, sizeof exchange->model, prompt->model);
        copy_slice(exchange->real_model, sizeof exchange->real_model, real);
        exchange->stream = prompt->stream;
        exchange->several = prompt->choices > 1 || prompt->prompt_count > 1;
        if (exchange->priority == 0)
                exchange->priority = prompt->priority;
        if (exchange->affinity_key_len == 0 && prompt->hint.len) {
                exchange->affinity_key_len =
                        prompt->hint.len < sizeof exchange->affinity ? prompt->hint.len : sizeof exchange->affinity;
                memcpy(exchange->affinity, prompt->hint.data, exchange->affinity_key_len);
        }
        if (prompt->previous_id.len)
                exchange->pinned = kvr_response_owner(exchange->worker->proxy->router, prompt->previous_id);
        if (exchange->encoding == DECODE_IDENTITY || exchange->send_decoded)
                edit_plan(exchange, prompt);
}

static struct kvr_slice header_of(void *ctx, const char *name)
{
        struct kvr_slice value = exchange_field(&((struct exchange *)ctx)->fields, name);

        return value.data ? value : exchange_field(&((struct exchange *)ctx)->credentials, name);
}

static void name_workload(struct exchange *exchange)
{
        const char *name;

        if (exchange->workload[0])
                return;
        name = config_workload(exchange->worker->config, exchange->path,
                               (struct kvr_slice){exchange->model, strlen(exchange->model)},
                               exchange_client_key(exchange), header_of, exchange);
        snprintf(exchange->workload, sizeof exchange->workload, "%s", name ? name : "");
}

/* "/v1/responses/resp_123/cancel" -> the replica that made resp_123. */
static void pin_by_path(struct exchange *exchange)
{
        static const char prefix[] = "/v1/responses/";
        struct kvr_slice id = exchange->path;
        const char *slash;

        if (id.len <= sizeof prefix - 1 || memcmp(id.data, prefix, sizeof prefix - 1) != 0)
                return;
        id.data += sizeof prefix - 1;
        id.len -= sizeof prefix - 1;
        slash = memchr(id.data, '/', id.len);
        if (slash)
                id.len = (size_t)(slash - id.data);
        exchange->pinned = kvr_response_owner(exchange->worker->proxy->router, id);
}

/* True: the request was answered with an error. */
static bool decode_failed(struct exchange *exchange)
{
        const struct router_config *config = exchange->worker->config;
        enum decode_result result;

        if (exchange->encoding == DECODE_IDENTITY || exchange->encoding == DECODE_UNKNOWN || exchange->body.len == 0)
                return false;
        result = decode_body((enum decode_coding)exchange->encoding, text_slice(&exchange->body), config->max_body_bytes,
                             &exchange->decoded);
        switch (result) {
        case DECODE_OK:
                exchange->send_decoded = config->forward_decoded;
                return false;
        case DECODE_BAD: /* the engine's to judge: it may know the coding better */
                text_clear(&exchange->decoded);
                return false;
        case DECODE_TOO_LARGE:
                reply_error(exchange, 413, "body_too_large", "the body decodes to more than the limit (max-body)", 0);
                return true;
        case DECODE_NOMEM:
                break;
        }
        reply_error(exchange, 503, "overloaded", "no memory to decode the body", 1);
        return true;
}

static void refuse_prompt(struct exchange *exchange, enum kvr_status status, const struct kvr_error *err)
{
        if (status == KVR_E_NOMEM)
                reply_error(exchange, 503, "overloaded", "no memory to read the body", 1);
        else
                reply_error_field(exchange, 400, "invalid_json", err->message, err->field);
}

static void count_unkeyed(struct exchange *exchange, enum kvr_status status, const struct kvr_error *err)
{
        struct proxy *proxy = exchange->worker->proxy;
        struct kvr_slice label = {kvr_status_name(status), strlen(kvr_status_name(status))};

        metrics_add(proxy->metrics, exchange->worker->number,
                    metrics_series(proxy->metrics, exchange->worker->number, METRIC_UNKEYED, &label), 1);
        log_say(proxy->log, LOG_DEBUG, NULL, "request %s is routed by load only: %s", exchange->request_id, err->message);
}

/* Reads what the body tells. KVR_OK: *ret holds the prompt, if there is one at all (*ret_keyed). */
static enum kvr_status begin_prompt(struct exchange *exchange, struct kvr_prompt *ret, bool *ret_keyed,
                                    struct kvr_error *err)
{
        bool readable = exchange->encoding == DECODE_IDENTITY || exchange->decoded.len;
        enum kvr_status status;

        *ret_keyed = false;
        if (exchange->api == KVR_API_OTHER && !looks_like_json(exchange)) {
                edit_multipart_model(exchange);
                return KVR_OK;
        }
        status = readable ? read_prompt(exchange, ret, err) : KVR_E_LIMIT;
        if (status == KVR_OK) {
                keep_prompt(exchange, ret);
                *ret_keyed = exchange->api != KVR_API_OTHER;
                return KVR_OK;
        }
        if (status == KVR_E_NOMEM || (status == KVR_E_JSON && exchange->api != KVR_API_OTHER))
                return status;
        /* Odd, but for the engine to judge: it goes there untouched and by load, and is counted. */
        if (exchange->api != KVR_API_OTHER)
                count_unkeyed(exchange, status, err);
        exchange->api = KVR_API_OTHER;
        return KVR_OK;
}

static void route_with(struct exchange *exchange, const struct kvr_prompt *prompt);

void route_begin(struct exchange *exchange)
{
        struct kvr_prompt prompt;
        struct kvr_error err = {0};
        enum kvr_status status;
        bool keyed;

        if (atomic_load_explicit(&exchange->worker->proxy->draining, memory_order_relaxed)) {
                exchange->keep_alive = false;
                reply_error(exchange, 503, "draining", "the router is shutting down", 1);
                return;
        }
        if (decode_failed(exchange))
                return;
        exchange->decision_start_ns = uv_hrtime();
        status = begin_prompt(exchange, &prompt, &keyed, &err);
        if (status != KVR_OK) {
                refuse_prompt(exchange, status, &err);
                return;
        }
        pin_by_path(exchange);
        name_workload(exchange);
        route_with(exchange, keyed ? &prompt : NULL);
}

/* ---- the decision ------------------------------------------------------------------------------------------------- */

static void fill_request(struct exchange *exchange, struct kvr_request *ret)
{
        memset(ret, 0, sizeof *ret);
        ret->model = (struct kvr_slice){exchange->real_model, strlen(exchange->real_model)};
        ret->affinity = (struct kvr_slice){exchange->affinity, exchange->affinity_key_len};
        ret->pinned = exchange->pinned;
        ret->tried_count = exchange->tried_count;
        memcpy(ret->tried, exchange->tried, sizeof ret->tried);
}

static void add_tried(struct exchange *exchange, kvr_replica_id id)
{
        if (exchange->tried_count < KVR_TRIED_MAX)
                exchange->tried[exchange->tried_count++] = id;
}

bool route_has_other(struct exchange *exchange)
{
        struct kvr_request request;
        struct kvr_decision decision;
        size_t count;

        if (exchange->tries > exchange->worker->config->retries || exchange->tried_count >= KVR_TRIED_MAX)
                return false;
        fill_request(exchange, &request);
        request.tried[request.tried_count++] = exchange->decision.replica;
        request.pinned = 0;
        return kvr_explain(exchange->worker->proxy->router, &request, &decision, NULL, 0, &count, NULL) == KVR_OK;
}

static void refuse_unknown_model(struct exchange *exchange)
{
        struct text *message = &exchange->worker->scratch;

        text_clear(message);
        text_addf(message, "no replica serves the model \"%.100s\"; known:", exchange->model);
        fleet_list_models(exchange->worker->fleet, message, KNOWN_MODELS);
        reply_error_field(exchange, 404, "model_not_found", text_string(message), "model");
}

static void refuse_no_replica(struct exchange *exchange)
{
        if (exchange->fail_status && exchange->reached) {
                reply_error(exchange, exchange->fail_status, exchange->fail_code, exchange->fail_message, 0);
                return;
        }
        reply_error(exchange, 503, "no_replica", exchange->fail_status
                            ? "no replica takes connections at the moment"
                            : "no replica is ready; see /kvroute/replicas on the admin listener", 1);
}

static uint64_t seconds_up(uint64_t ns)
{
        return ns ? (ns + NS_PER_S - 1) / NS_PER_S : 1;
}

static void queue_insert(struct exchange *exchange)
{
        struct worker *worker = exchange->worker;
        struct exchange *at = worker->queue.queue_prev;

        while (at != &worker->queue && at->priority > exchange->priority)
                at = at->queue_prev;
        exchange->queue_prev = at;
        exchange->queue_next = at->queue_next;
        at->queue_next->queue_prev = exchange;
        at->queue_next = exchange;
        worker->queue_len++;
        if (worker->queue_len == 1)
                net_deadline_arm(&worker->deadlines, &worker->tick, DEADLINE_TICK);
}

void queue_remove(struct exchange *exchange)
{
        if (!exchange->queue_next)
                return;
        exchange->queue_prev->queue_next = exchange->queue_next;
        exchange->queue_next->queue_prev = exchange->queue_prev;
        exchange->queue_prev = exchange->queue_next = NULL;
        exchange->worker->queue_len--;
        atomic_fetch_sub(&exchange->worker->proxy->queued, 1);
        metrics_observe(exchange->worker->proxy->metrics, exchange->worker->number,
                        metrics_series(exchange->worker->proxy->metrics, exchange->worker->number, METRIC_QUEUE_SECONDS,
                                       NULL),
                        (double)(uv_hrtime() - exchange->queued_ns) / 1e9);
}

/* Every candidate is full or asked for a pause: wait here for a while, or say at once how long it will take. */
static void wait_or_refuse(struct exchange *exchange, uint64_t retry_after_ns)
{
        struct worker *worker = exchange->worker;
        const struct router_config *config = worker->config;
        uint64_t now = uv_hrtime(), limit_ns = config->queue_timeout_ms * 1000000;

        if (exchange->queued_ns == 0) {
                bool hopeless = limit_ns && retry_after_ns > limit_ns;

                if (hopeless || atomic_fetch_add(&worker->proxy->queued, 1) >= config->queue_requests) {
                        if (!hopeless)
                                atomic_fetch_sub(&worker->proxy->queued, 1);
                        reply_error(exchange, 429, "overloaded", "every replica is at its limit or asked for a pause",
                                    seconds_up(retry_after_ns));
                        return;
                }
                exchange->queued_ns = now;
                exchange->queue_due_ns = limit_ns ? now + limit_ns : UINT64_MAX;
        } else {
                atomic_fetch_add(&worker->proxy->queued, 1);
        }
        exchange->state = EXCHANGE_QUEUED;
        queue_insert(exchange);
}

static bool connect_to(struct exchange *exchange);

/* We are out of descriptors or memory: no replica is to blame and none would help. */
static void no_connection(struct exchange *exchange)
{
        route_failed(exchange, FAIL_OWN, false, 503, "overloaded",
                     "the router has no descriptor or memory left for a connection to the replica");
}

static void decided(struct exchange *exchange)
{
        struct worker *worker = exchange->worker;
        struct target *target = fleet_snapshot_find(worker->fleet, exchange->decision.replica);

        exchange->tries++;
        if (!target) {
                /* Removed or added between our look at the fleet and the decision. */
                fleet_snapshot_unref(worker->fleet);
                worker->fleet = fleet_snapshot(worker->proxy->fleet);
                target = fleet_snapshot_find(worker->fleet, exchange->decision.replica);
        }
        if (!target) {
                exchange_settle(exchange, KVR_END_FAILED);
                add_tried(exchange, exchange->decision.replica);
                route_try(exchange);
                return;
        }
        exchange->replica = target_ref(target);
        atomic_fetch_add_explicit(&target->streams, 1, memory_order_relaxed);
        if (exchange->queued_ns && exchange->tries == 1)
                exchange->decision.reason = KVR_REASON_QUEUE;
        exchange->fresh_only = false;
        if (!connect_to(exchange))
                no_connection(exchange);
}

static void route_with(struct exchange *exchange, const struct kvr_prompt *prompt)
{
        struct worker *worker = exchange->worker;
        struct kvr_request request;
        struct kvr_error err = {0};
        enum kvr_status status;

        exchange->state = EXCHANGE_READY;
        fleet_refresh(worker->proxy->fleet, &worker->fleet);
        fill_request(exchange, &request);
        request.prompt = prompt;
        status = kvr_decide(worker->proxy->router, &request, &exchange->decision, &exchange->ticket, &err);
        if (status == KVR_E_NO_REPLICA) {
                request.last_resort = true; /* a fleet that is all unhealthy is tried rather than refused */
                status = kvr_decide(worker->proxy->router, &request, &exchange->decision, &exchange->ticket, &err);
        }
        exchange->routed_ns = uv_hrtime();
        metrics_observe(worker->proxy->metrics, worker->number,
                        metrics_series(worker->proxy->metrics, worker->number, METRIC_DECISION, NULL),
                        (double)(exchange->routed_ns - exchange->decision_start_ns) / 1e9);
        switch (status) {
        case KVR_OK:
                decided(exchange);
                return;
        case KVR_E_BUSY:
                wait_or_refuse(exchange, exchange->decision.retry_after_ns);
                return;
        case KVR_E_NO_MODEL:
                refuse_unknown_model(exchange);
                return;
        case KVR_E_NO_REPLICA:
                refuse_no_replica(exchange);
                return;
        default:
                reply_error(exchange, 503, "overloaded", kvr_status_text(status), 1);
        }
}

void route_try(struct exchange *exchange)
{
        struct kvr_prompt prompt;
        struct kvr_error err = {0};
        bool keyed = exchange->api != KVR_API_OTHER;

        exchange->decision_start_ns = uv_hrtime();
        if (keyed && read_prompt(exchange, &prompt, &err) != KVR_OK)
                keyed = false;
        route_with(exchange, keyed ? &prompt : NULL);
}

void queue_run(struct worker *worker)
{
        uint64_t now = uv_hrtime();
        unsigned looked = 0;

        for (struct exchange *at = worker->queue.queue_next, *next; at != &worker->queue; at = next) {
                struct kvr_request request;
                struct kvr_decision decision;
                enum kvr_status status;
                size_t count;

                next = at->queue_next;
                if (now >= at->queue_due_ns) {
                        queue_remove(at);
                        reply_error(at, 429, "overloaded",
                                    "every replica stayed at its limit or paused for the whole queue-timeout", 1);
                        continue;
                }
                if (++looked > QUEUE_TRIES)
                        continue; /* only look for those whose time is over */
                fill_request(at, &request);
                /* A cheap look without the prompt first: reading it each time would cost more than it waits for. */
                status = kvr_explain(worker->proxy->router, &request, &decision, NULL, 0, &count, NULL);
                if (status == KVR_E_BUSY || status == KVR_E_NO_REPLICA)
                        continue;
                queue_remove(at);
                route_try(at);
                /* Others may have come and gone meanwhile: begin anew with the next turn of the loop. */
                if (worker->queue_len)
                        net_deadline_arm(&worker->deadlines, &worker->tick, DEADLINE_TICK);
                next = worker->queue.queue_next;
                if (looked >= QUEUE_TRIES)
                        break;
        }
}

/* ---- connection and sending --------------------------------------------------------------------------------------- */

static void add_line(struct text *head, const char *name, const char *value)
{
        text_adds(head, name);
        text_add(head, ": ", 2);
        text_adds(head, value);
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
        if (exchange->request_head.failed) {
                route_failed(exchange, FAIL_OWN, false, 503, "overloaded", "no memory to send the request");
                return;
        }
        exchange->state = EXCHANGE_WAITING;
        exchange->reached = true;
        exchange->sent_ns = uv_hrtime();
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

static bool connect_to(struct exchange *exchange)
{
        struct worker *worker = exchange->worker;
        struct target *target = exchange->replica;
        struct upstream *upstream = exchange->fresh_only ? NULL : pool_take(worker, target);

        count_connection(worker, target, upstream ? "reused" : "new");
        if (upstream) {
                upstream->exchange = exchange;
                exchange->upstream = upstream;
                send_request(exchange);
                return true;
        }
        upstream = calloc(1, sizeof *upstream);
        if (!upstream)
                return false;
        upstream->worker = worker;
        upstream->conn = net_connect(&worker->loop, (const struct sockaddr *)&target->addr, &upstream_ops, upstream);
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

void route_connected(struct upstream *upstream, int error)
{
        struct exchange *exchange = upstream->exchange;

        net_deadline_disarm(&upstream->deadline);
        if (error)
                route_failed(exchange, FAIL_CONNECT, true, 502, "upstream_error", "the replica refuses connections");
        else
                send_request(exchange);
}

void route_on_connect_deadline(struct net_deadline *deadline)
{
        struct upstream *upstream = (struct upstream *)((char *)deadline - offsetof(struct upstream, deadline));

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
        exchange->body_in = exchange->first_byte_ns = exchange->first_token_ns = 0;
        usage_tap_fini(&exchange->tap);
        exchange->tapped = false;
}

void route_again(struct exchange *exchange)
{
        drop_upstream(exchange);
        exchange->fresh_only = true;
        if (!connect_to(exchange))
                no_connection(exchange);
}

void count_failure(struct exchange *exchange, enum failure failure)
{
        static const struct {
                const char *name;
                int health; /* enum health_failure, -1: none */
        } kinds[] = {
                [FAIL_CONNECT] = {"connect", HEALTH_REFUSED}, [FAIL_RESET] = {"reset", HEALTH_RESET},
                [FAIL_TIMEOUT] = {"timeout", HEALTH_TIMEOUT}, [FAIL_PROTOCOL] = {"protocol", HEALTH_ERROR},
                [FAIL_STATUS] = {"status", HEALTH_ERROR},     [FAIL_STREAM] = {"stream", HEALTH_ERROR},
                [FAIL_STALL] = {"timeout", HEALTH_STALL},     [FAIL_PUSHBACK] = {"overloaded", -1},
                [FAIL_OWN] = {NULL, -1},
        };
        struct worker *worker = exchange->worker;
        struct proxy *proxy = worker->proxy;
        const char *replica = exchange->replica->spec.name;
        struct kvr_slice labels[2] = {{replica, strlen(replica)}};

        if (kinds[failure].health >= 0)
                target_traffic_failed(proxy->fleet, exchange->replica, (enum health_failure)kinds[failure].health, uv_hrtime());
        if (!kinds[failure].name)
                return;
        labels[1] = (struct kvr_slice){kinds[failure].name, strlen(kinds[failure].name)};
        metrics_add(proxy->metrics, worker->number,
                    metrics_series(proxy->metrics, worker->number, METRIC_UPSTREAM_ERRORS, labels), 1);
}

void route_failed(struct exchange *exchange, enum failure failure, bool retryable, unsigned status, const char *code,
                  const char *message)
{
        struct worker *worker = exchange->worker;
        struct proxy *proxy = worker->proxy;
        struct target *target = exchange->replica;
        struct kvr_slice label = {target->spec.name, strlen(target->spec.name)};

        count_failure(exchange, failure);
        log_say(proxy->log, LOG_WARN, target->spec.name, "replica %s: %s", target->spec.name, message);
        drop_upstream(exchange);
        exchange_settle(exchange, failure == FAIL_PUSHBACK ? KVR_END_REFUSED : KVR_END_FAILED);
        add_tried(exchange, target->id);
        exchange_release_replica(exchange);
        exchange->fail_status = status;
        exchange->fail_code = code;
        exchange->fail_message = message;
        if (retryable && exchange->tries <= worker->config->retries && exchange->tried_count < KVR_TRIED_MAX) {
                metrics_add(proxy->metrics, worker->number,
                            metrics_series(proxy->metrics, worker->number, METRIC_RETRIES, &label), 1);
                route_try(exchange);
                return;
        }
        refuse_no_replica(exchange);
}
