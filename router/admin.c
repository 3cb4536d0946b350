/* SPDX-License-Identifier: Apache-2.0 */
#include "admin_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BODY_MAX (64 * 1024 * 1024) /* of an explained request */
#define IDLE_MS  60000
#define HEAD_MS  10000

/* ---- JSON helpers ---- */

void admin_add_number(struct text *out, const char *key, double value)
{
        if (!isfinite(value) || value < 0) /* unknown is not zero */
                text_addf(out, ",\"%s\":null", key);
        else
                text_addf(out, ",\"%s\":%.9g", key, value);
}

void admin_add_string(struct text *out, const char *key, const char *value)
{
        text_addf(out, ",\"%s\":\"", key);
        text_add_json(out, (struct kvr_slice){value, strlen(value)});
        text_add(out, "\"", 1);
}

void admin_respond_json(struct net_exchange *exchange, unsigned status, struct text *json)
{
        if (json->failed)
                net_respond(exchange, 503, "text/plain", "", KVR_SLICE("out of memory\n"));
        else
                net_respond(exchange, status, "application/json", "", text_slice(json));
        text_free(json);
}

void admin_respond_error(struct net_exchange *exchange, unsigned status, const char *code,
                         const char *message)
{
        struct text json = {0};

        text_adds(&json, "{\"error\":{\"message\":\"");
        text_add_json(&json, (struct kvr_slice){message, strlen(message)});
        text_addf(&json, "\",\"type\":\"%s\",\"param\":null,\"code\":\"%s\"}}",
                  status < 500 ? "invalid_request_error" : "server_error", code);
        admin_respond_json(exchange, status, &json);
}

/* ---- dispatch ---- */

static bool is(struct kvr_slice slice, const char *text)
{
        return slice.len == strlen(text) && memcmp(slice.data, text, slice.len) == 0;
}

static bool token_is_right(struct admin *admin, const struct http1_head *head)
{
        const struct router_config *config = atomic_load(&admin->options.proxy->config);
        const struct http1_field *field = http1_find(head, "authorization");

        if (!*config->admin_token)
                return true;
        return field && field->value.len > 7 && strncasecmp(field->value.data, "bearer ", 7) == 0 &&
               config_same_secret((struct kvr_slice){field->value.data + 7, field->value.len - 7},
                                  config->admin_token);
}

static void respond_ready(struct admin *admin, struct net_exchange *exchange)
{
        struct fleet_snapshot *fleet = fleet_snapshot(admin->options.proxy->fleet);
        bool ready = fleet_is_ready(fleet) && !atomic_load(&admin->options.proxy->draining);

        fleet_snapshot_unref(fleet);
        net_respond(exchange, ready ? 200 : 503, "text/plain", "",
                    ready ? KVR_SLICE("ready\n") : KVR_SLICE("no replica is ready\n"));
}

static const char replicas_path[] = "/kvroute/replicas/";

static void on_replica_path(struct admin *admin, struct net_exchange *exchange, struct kvr_slice method,
                            struct kvr_slice rest)
{
        const char *slash = memchr(rest.data, '/', rest.len);
        struct kvr_slice name = {rest.data, slash ? (size_t)(slash - rest.data) : rest.len};
        struct kvr_slice verb = {slash ? slash + 1 : NULL, slash ? rest.len - name.len - 1 : 0};

        if (is(method, "DELETE") && !slash)
                admin_remove_replica(admin, exchange, name);
        else if (is(method, "POST") && (is(verb, "drain") || is(verb, "undrain")))
                admin_drain_replica(admin, exchange, name, is(verb, "drain"));
        else
                admin_respond_error(exchange, 405, "method_not_allowed",
                                    "DELETE NAME, POST NAME/drain or POST NAME/undrain");
}

static void on_request(void *ctx, struct net_exchange *exchange)
{
        struct admin *admin = ctx;
        const struct http1_head *head = net_exchange_head(exchange);
        struct kvr_slice method = head->method, path = head->path;
        bool get = is(method, "GET") || is(method, "HEAD");

        if (get && is(path, "/healthz")) {
                net_respond(exchange, 200, "text/plain", "", KVR_SLICE("ok\n"));
        } else if (get && is(path, "/readyz")) {
                respond_ready(admin, exchange);
        } else if (!token_is_right(admin, head)) {
                admin_respond_error(exchange, 401, "unauthorized",
                                    "the admin token is needed: Authorization: Bearer ... (admin-token)");
        } else if (get && is(path, "/metrics")) {
                admin_metrics(admin, exchange);
        } else if (get && is(path, "/kvroute/replicas")) {
                admin_list_replicas(admin, exchange);
        } else if (is(method, "POST") && is(path, "/kvroute/replicas")) {
                admin_add_replica(admin, exchange);
        } else if (path.len > sizeof replicas_path - 1 &&
                   memcmp(path.data, replicas_path, sizeof replicas_path - 1) == 0) {
                on_replica_path(admin, exchange, method,
                                (struct kvr_slice){path.data + sizeof replicas_path - 1,
                                                   path.len - (sizeof replicas_path - 1)});
        } else if (is(path, "/kvroute/replicas")) {
                admin_respond_error(exchange, 405, "method_not_allowed",
                                    "GET lists replicas, POST {\"url\":...} adds one");
        } else if (is(method, "POST") && is(path, "/kvroute/explain")) {
                admin_explain(admin, exchange);
        } else if (get && is(path, "/kvroute/config")) {
                admin_config(admin, exchange);
        } else if (get && is(path, "/kvroute/ledger")) {
                admin_ledger(admin, exchange);
        } else if (get && is(path, "/kvroute/alarms")) {
                admin_alarms(admin, exchange);
        } else {
                admin_respond_error(exchange, 404, "not_found",
                                    "paths: /metrics, /healthz, /readyz, /kvroute/replicas, /kvroute/alarms, "
                                    "/kvroute/explain, /kvroute/config, /kvroute/ledger");
        }
}

static void on_gone(void *ctx, struct net_exchange *exchange)
{
        (void)ctx;
        (void)exchange; /* every answer is given at once: nothing waits */
}

struct admin *admin_new(const struct admin_options *options, struct sockaddr_storage *addr, int *ret_error)
{
        struct admin *admin = calloc(1, sizeof *admin);
        struct net_server_options server = {
                .body_bytes_max = BODY_MAX,
                .idle_timeout_ms = IDLE_MS,
                .head_timeout_ms = HEAD_MS,
                .on_request = on_request,
                .on_gone = on_gone,
        };

        *ret_error = UV_ENOMEM;
        if (!admin)
                return NULL;
        admin->options = *options;
        server.ctx = admin;
        admin->parser = kvr_parser_new();
        if (admin->parser)
                admin->server = net_server_new(options->loop, addr, &server, ret_error);
        if (!admin->server) {
                kvr_parser_free(admin->parser);
                free(admin);
                return NULL;
        }
        return admin;
}

static void on_closed(void *ctx)
{
        struct admin *admin = ctx;

        kvr_parser_free(admin->parser);
        free(admin);
}

void admin_close(struct admin *admin)
{
        if (admin)
                net_server_close(admin->server, on_closed, admin);
}
