/* SPDX-License-Identifier: Apache-2.0 */
#include "admin_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "admin_guard.h"

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

/* Answers if the request would change something (or costs much) and must not. */
static bool refused_by_guard(struct admin *admin, struct net_exchange *exchange)
{
        const struct router_config *config = atomic_load(&admin->options.proxy->config);
        struct admin_guard_source source = {
                .head = net_exchange_head(exchange),
                .has_body = net_exchange_body(exchange).len > 0,
                .token = *config->admin_token != '\0', /* then it was shown: token_is_right */
                .names = {config->admin.host, admin->host_name, admin->host_name_short},
        };

        switch (admin_guard(&source)) {
        case ADMIN_GUARD_FINE:
                return false;
        case ADMIN_GUARD_HOST:
                admin_respond_error(
                        exchange, 403, "forbidden",
                        "the name in the Host field is not known to be this router's, and names can be made "
                        "to stand for any address: use its address, localhost, or an admin-token");
                return true;
        case ADMIN_GUARD_ORIGIN:
                admin_respond_error(exchange, 403, "forbidden",
                                    "a page of another origin (the Origin field) must not do this");
                return true;
        case ADMIN_GUARD_TYPE:
                break;
        }
        admin_respond_error(
                exchange, 415, "unsupported_media_type",
                "send the body as Content-Type: application/json (curl -H 'Content-Type: application/json')");
        return true;
}

static void respond_ready(struct admin *admin, struct net_exchange *exchange)
{
        struct fleet_snapshot *fleet = fleet_snapshot(admin->options.proxy->fleet);
        const struct proxy *proxy = admin->options.proxy;
        bool stopping = atomic_load(&proxy->draining) || atomic_load(&proxy->unready);
        bool ready = !stopping && fleet_is_ready(fleet);

        fleet_snapshot_unref(fleet);
        net_respond(exchange, ready ? 200 : 503, "text/plain", "",
                    ready      ? KVR_SLICE("ready\n")
                    : stopping ? KVR_SLICE("shutting down\n")
                               : KVR_SLICE("no replica is ready\n"));
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

/* What everybody may read. True: answered. */
static bool answered_openly(struct admin *admin, struct net_exchange *exchange, struct kvr_slice path)
{
        if (is(path, "/healthz"))
                net_respond(exchange, 200, "text/plain", "", KVR_SLICE("ok\n"));
        else if (is(path, "/readyz"))
                respond_ready(admin, exchange);
        else
                return admin_page(exchange);
        return true;
}

static bool refused(struct admin *admin, struct net_exchange *exchange, bool get)
{
        if (token_is_right(admin, net_exchange_head(exchange)))
                return !get && refused_by_guard(admin, exchange);
        admin_respond_error(exchange, 401, "unauthorized",
                            http1_find(net_exchange_head(exchange), "authorization")
                                    ? "this is not the router's admin token (its option --admin-token, or "
                                      "KVROUTE_ADMIN_TOKEN): send Authorization: Bearer TOKEN"
                                    : "the admin token is needed (the router's option --admin-token, or "
                                      "KVROUTE_ADMIN_TOKEN): send Authorization: Bearer TOKEN");
        return true;
}

static void on_request(void *ctx, struct net_exchange *exchange)
{
        struct admin *admin = ctx;
        const struct http1_head *head = net_exchange_head(exchange);
        struct kvr_slice method = head->method, path = head->path;
        bool get = is(method, "GET") || is(method, "HEAD");

        if ((get && answered_openly(admin, exchange, path)) || refused(admin, exchange, get))
                return;
        if (get && is(path, "/metrics")) {
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
        } else if (is(path, "/kvroute/explain")) {
                admin_explain_usage(exchange);
        } else if (get && is(path, "/kvroute/config")) {
                admin_config(admin, exchange);
        } else if (get && is(path, "/kvroute/ledger")) {
                admin_ledger(admin, exchange);
        } else if (get && is(path, "/kvroute/alarms")) {
                admin_alarms(admin, exchange);
        } else if (get && is(path, "/kvroute/decisions")) {
                admin_decisions(admin, exchange);
        } else {
                admin_respond_error(
                        exchange, 404, "not_found",
                        "paths: / (the dashboard), /metrics, /healthz, /readyz, /kvroute/replicas, "
                        "/kvroute/alarms, /kvroute/decisions, /kvroute/explain, /kvroute/config, "
                        "/kvroute/ledger");
        }
}

static void on_gone(void *ctx, struct net_exchange *exchange)
{
        (void)ctx;
        (void)exchange; /* every answer is given at once: nothing waits */
}

/* What people call this machine, in full and up to the first dot. */
static void learn_names(struct admin *admin)
{
        if (gethostname(admin->host_name, sizeof admin->host_name - 1))
                admin->host_name[0] = '\0';
        memcpy(admin->host_name_short, admin->host_name, sizeof admin->host_name_short);
        admin->host_name_short[strcspn(admin->host_name_short, ".")] = '\0';
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
        learn_names(admin);
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
