/* SPDX-License-Identifier: Apache-2.0 */
/* What the router answers itself: health, the merged model list, and errors in the shape that client
 * libraries read. */
#include "proxy.h"

#include <stdlib.h>
#include <string.h>

#include "engine/paths.h"

static const struct {
        unsigned status;
        const char *phrase, *openai_type, *anthropic_type;
} statuses[] = {
        {200, "OK", "", ""},
        {400, "Bad Request", "invalid_request_error", "invalid_request_error"},
        {401, "Unauthorized", "authentication_error", "authentication_error"},
        {403, "Forbidden", "permission_error", "permission_error"},
        {404, "Not Found", "invalid_request_error", "not_found_error"},
        {405, "Method Not Allowed", "invalid_request_error", "invalid_request_error"},
        {408, "Request Timeout", "invalid_request_error", "invalid_request_error"},
        {413, "Content Too Large", "invalid_request_error", "request_too_large"},
        {429, "Too Many Requests", "rate_limit_error", "rate_limit_error"},
        {431, "Request Header Fields Too Large", "invalid_request_error", "invalid_request_error"},
        {500, "Internal Server Error", "server_error", "api_error"},
        {502, "Bad Gateway", "server_error", "api_error"},
        {503, "Service Unavailable", "server_error", "overloaded_error"},
        {504, "Gateway Timeout", "server_error", "timeout_error"},
};

static size_t status_row(unsigned status)
{
        for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
                if (statuses[i].status == status)
                        return i;
        }
        return status >= 500 ? 10 : 1;
}

const char *reply_reason_phrase(unsigned status)
{
        return statuses[status_row(status)].phrase;
}

static bool is_anthropic(const struct exchange *exchange)
{
        static const char path[] = "/v1/messages";

        return exchange && exchange->path.len >= sizeof path - 1 &&
               memcmp(exchange->path.data, path, sizeof path - 1) == 0;
}

static void error_json(const struct exchange *exchange, struct text *out, unsigned status, const char *code,
                       const char *message, const char *field)
{
        size_t row = status_row(status);

        if (is_anthropic(exchange))
                text_addf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"",
                          statuses[row].anthropic_type);
        else
                text_adds(out, "{\"error\":{\"message\":\"");
        text_add_json(out, (struct kvr_slice){message, strlen(message)});
        if (is_anthropic(exchange)) {
                text_addf(out, "\",\"code\":\"%s\"}}", code);
                return;
        }
        text_addf(out, "\",\"type\":\"%s\",\"param\":", statuses[row].openai_type);
        if (field && *field) {
                text_add(out, "\"", 1);
                text_add_json(out, (struct kvr_slice){field, strlen(field)});
                text_add(out, "\"", 1);
        } else {
                text_adds(out, "null");
        }
        text_addf(out, ",\"code\":\"%s\"}}", code);
}

static void write_answer(struct exchange *exchange, unsigned status, const char *content_type,
                         struct kvr_slice body, uint64_t retry_after_s)
{
        struct text *head = &exchange->answer_head;
        uv_buf_t bufs[2];

        text_clear(head);
        text_addf(head, "HTTP/1.1 %u %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n", status,
                  reply_reason_phrase(status), content_type, body.len);
        if (retry_after_s)
                text_addf(head, "Retry-After: %llu\r\n", (unsigned long long)retry_after_s);
        if (!exchange->keep_alive)
                text_adds(head, "Connection: close\r\n");
        else if (exchange->http10)
                text_adds(head, "Connection: keep-alive\r\n");
        relay_own_fields(exchange, head);
        text_add(head, "\r\n", 2);
        bufs[0] = uv_buf_init(head->data, (unsigned)head->len);
        bufs[1] = uv_buf_init((char *)(uintptr_t)body.data, exchange->head_request ? 0 : (unsigned)body.len);
        exchange->head_sent = true;
        exchange->status = (uint16_t)status;
        exchange->body_out += bufs[1].len;
        if (head->failed || net_write(exchange->client->conn, bufs, bufs[1].len ? 2 : 1)) {
                exchange_abort(exchange);
                return;
        }
        exchange_end(exchange, status < 400 ? KVR_END_FINISHED : KVR_END_REFUSED);
}

/* The head went out with a heartbeat: the error becomes an event and the stream ends properly. */
static void error_event(struct exchange *exchange, struct kvr_slice json)
{
        struct text *out = &exchange->worker->scratch2;

        text_clear(out);
        if (is_anthropic(exchange))
                text_adds(out, "event: error\n");
        text_adds(out, "data: ");
        text_add_slice(out, json);
        text_adds(out, "\n\n");
        exchange->status = 200;
        exchange->keep_alive = false;
        if (relay_write(exchange, text_slice(out), true))
                exchange_end(exchange, KVR_END_REFUSED);
}

static void answer_error(struct exchange *exchange, unsigned status, const char *code, const char *message,
                         const char *field, uint64_t retry_after_s)
{
        struct text json = {0};

        exchange->own_code = code;
        error_json(exchange, &json, status, code, message, field);
        if (exchange->early_head)
                error_event(exchange, text_slice(&json));
        else
                write_answer(exchange, status, "application/json", text_slice(&json), retry_after_s);
        text_free(&json);
}

void reply_error(struct exchange *exchange, unsigned status, const char *code, const char *message,
                 uint64_t retry_after_s)
{
        answer_error(exchange, status, code, message, NULL, retry_after_s);
}

void reply_error_field(struct exchange *exchange, unsigned status, const char *code, const char *message,
                       const char *field)
{
        answer_error(exchange, status, code, message, field, 0);
}

void reply_body(struct exchange *exchange, unsigned status, const char *content_type, struct kvr_slice body)
{
        write_answer(exchange, status, content_type, body, 0);
}

void reply_bad_head(struct client *client, unsigned status, const char *code, const char *message)
{
        struct worker *worker = client->worker;
        struct kvr_slice label = {code, strlen(code)};
        struct text json = {0}, out = {0};
        uv_buf_t buf;

        error_json(NULL, &json, status, code, message, NULL);
        text_addf(&out,
                  "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: "
                  "close\r\n\r\n",
                  status, reply_reason_phrase(status), json.len);
        text_add_slice(&out, text_slice(&json));
        buf = uv_buf_init(out.data, (unsigned)out.len);
        worker_count(worker, METRIC_REJECTIONS, &label, 1);
        client->linger = true;
        if (out.failed || net_write(client->conn, &buf, 1))
                client_close(client);
        else
                client_answered(client, false);
        text_free(&json);
        text_free(&out);
}

/* ---- local answers ---- */

static bool path_is(const struct exchange *exchange, const char *path)
{
        return exchange->path.len == strlen(path) &&
               memcmp(exchange->path.data, path, exchange->path.len) == 0;
}

static bool reading(const struct exchange *exchange)
{
        return strcmp(exchange->method, "GET") == 0 || exchange->head_request;
}

bool reply_health(struct exchange *exchange)
{
        struct worker *worker = exchange->worker;
        bool ready, stopping;

        if (exchange->api != KVR_API_OTHER) /* the path of an API is none of these */
                return false;
        if (!path_is(exchange, "/healthz") && !path_is(exchange, "/readyz"))
                return false;
        if (!reading(exchange)) {
                reply_error(exchange, 405, "method_not_allowed", "this path answers GET and HEAD", 0);
                return true;
        }
        if (path_is(exchange, "/healthz")) {
                reply_body(exchange, 200, "text/plain", KVR_SLICE("ok\n"));
                return true;
        }
        fleet_refresh(worker->proxy->fleet, &worker->fleet);
        stopping = atomic_load(&worker->proxy->draining) || atomic_load(&worker->proxy->unready);
        ready = !stopping && fleet_is_ready(worker->fleet);
        reply_body(exchange, ready ? 200 : 503, "text/plain",
                   ready      ? KVR_SLICE("ready\n")
                   : stopping ? KVR_SLICE("shutting down\n")
                              : KVR_SLICE("no replica is ready\n"));
        return true;
}

static void reply_models(struct exchange *exchange)
{
        struct worker *worker = exchange->worker;
        char *json = NULL;
        size_t len = 0;

        fleet_refresh(worker->proxy->fleet, &worker->fleet);
        if (fleet_merge_models(worker->fleet, worker->config, &json, &len) == KVR_OK)
                reply_body(exchange, 200, "application/json", (struct kvr_slice){json, len});
        else
                reply_error(exchange, 503, "overloaded", "no memory for the model list", 1);
        free(json);
}

/* Some engines have a page of their own at /: it must not pass for the router's. */
static void reply_root(struct exchange *exchange)
{
        static const char json[] = "{\"name\":\"kvroute\",\"version\":\"" KVROUTE_VERSION "\",\"paths\":{"
                                   "\"/v1/...\":\"the engines' API\","
                                   "\"/v1/models\":\"the models of all replicas\","
                                   "\"/healthz\":\"200: the router runs\","
                                   "\"/readyz\":\"200: a replica is ready\"},"
                                   "\"admin\":\"the dashboard, metrics and the admin API have a listener of "
                                   "their own (--admin)\"}\n";

        reply_body(exchange, 200, "application/json", (struct kvr_slice){json, sizeof json - 1});
}

bool reply_local(struct exchange *exchange)
{
        struct kvr_slice method = {exchange->method, strlen(exchange->method)};
        const struct router_config *config = exchange->worker->config;

        /* The path of a known API, letter by letter, with POST: none of what follows, and most of the
         * traffic. */
        if (exchange->api != KVR_API_OTHER)
                return false;
        if (reading(exchange) && (path_is(exchange, "/v1/models") || path_is(exchange, "/models"))) {
                reply_models(exchange);
                return true;
        }
        if (reading(exchange) && path_is(exchange, "/")) {
                reply_root(exchange);
                return true;
        }
        if (exchange->path.len >= 8 && memcmp(exchange->path.data, "/kvroute", 8) == 0) {
                reply_error(exchange, 404, "not_found", "the admin API has a listener of its own (--admin)",
                            0);
                return true;
        }
        if (!config->allow_engine_admin && engine_path_is_admin(method, exchange->path)) {
                reply_error(exchange, 403, "forbidden",
                            "administrative paths of engines are not forwarded (allow-engine-admin)", 0);
                return true;
        }
        return false;
}
