/* SPDX-License-Identifier: Apache-2.0 */
#include "admin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yyjson.h>

#define BODY_MAX       (64 * 1024 * 1024) /* of an explained request */
#define IDLE_MS        60000
#define HEAD_MS        10000
#define CANDIDATES_MAX 1024

struct admin {
        struct admin_options options;
        struct net_server *server;
        struct kvr_parser *parser;
};

/* ---- JSON helpers
 * ------------------------------------------------------------------------------------------------- */

static void add_number(struct text *out, const char *key, double value)
{
        if (!isfinite(value) || value < 0) /* unknown is not zero */
                text_addf(out, ",\"%s\":null", key);
        else
                text_addf(out, ",\"%s\":%.9g", key, value);
}

static void add_string(struct text *out, const char *key, const char *value)
{
        text_addf(out, ",\"%s\":\"", key);
        text_add_json(out, (struct kvr_slice){value, strlen(value)});
        text_add(out, "\"", 1);
}

static void respond_json(struct net_exchange *exchange, unsigned status, struct text *json)
{
        if (json->failed)
                net_respond(exchange, 503, "text/plain", "", KVR_SLICE("out of memory\n"));
        else
                net_respond(exchange, status, "application/json", "", text_slice(json));
        text_free(json);
}

static void respond_error(struct net_exchange *exchange, unsigned status, const char *code,
                          const char *message)
{
        struct text json = {0};

        text_adds(&json, "{\"error\":{\"message\":\"");
        text_add_json(&json, (struct kvr_slice){message, strlen(message)});
        text_addf(&json, "\",\"type\":\"%s\",\"param\":null,\"code\":\"%s\"}}",
                  status < 500 ? "invalid_request_error" : "server_error", code);
        respond_json(exchange, status, &json);
}

/* ---- replicas
 * ----------------------------------------------------------------------------------------------------- */

static void add_models(struct text *out, struct target *target)
{
        bool first = true;

        text_adds(out, ",\"models\":[");
        pthread_mutex_lock(&target->lock);
        for (size_t i = 0; target->models && i < target->models->count; i++, first = false) {
                text_adds(out, first ? "\"" : ",\"");
                text_add_json(out, target->models->items[i].id);
                text_add(out, "\"", 1);
        }
        pthread_mutex_unlock(&target->lock);
        text_add(out, "]", 1);
}

static void add_health(struct text *out, struct target *target)
{
        pthread_mutex_lock(&target->lock);
        if (target->health.state != KVR_READY)
                add_string(out, "why", target->health.why);
        if (target->health_error[0])
                add_string(out, "error", target->health_error);
        pthread_mutex_unlock(&target->lock);
}

static void add_replica(struct admin *admin, struct text *out, struct target *target)
{
        struct kvr_replica_info info;
        struct control_view view = {0};
        uint64_t now = uv_hrtime();

        if (kvr_replica_info(admin->options.proxy->router, target->id, &info) != KVR_OK)
                return;
        (void)control_view(admin->options.control, target, &view);
        if (out->data[out->len - 1] != '[')
                text_add(out, ",", 1);
        text_adds(out, "{\"name\":\"");
        text_add_json(out, (struct kvr_slice){info.name, strlen(info.name)});
        text_add(out, "\"", 1);
        add_string(out, "url", target->url);
        add_string(out, "engine", view.detected ? engine_kind_name(view.engine) : "auto");
        add_string(out, "engine_version", view.version);
        add_models(out, target);
        add_string(out, "state", kvr_state_name(info.state));
        add_health(out, target);
        add_number(out, "in_flight", info.in_flight);
        add_number(out, "prefilling", info.prefilling);
        add_number(out, "uncached_tokens_booked", (double)info.uncached_tokens_booked);
        add_number(out, "running", info.load.running);
        add_number(out, "waiting", info.load.waiting);
        add_number(out, "kv_usage", info.load.kv_usage);
        add_number(out, "load_age_s",
                   info.load.at_ns && now >= info.load.at_ns ? (double)(now - info.load.at_ns) / 1e9 : NAN);
        if (view.load_error[0])
                add_string(out, "load_error", view.load_error);
        add_number(out, "capacity_tokens", info.capacity_tokens ? (double)info.capacity_tokens : NAN);
        text_addf(out, ",\"capacity_learned\":%s", info.capacity_learned ? "true" : "false");
        add_number(out, "cached_tokens", (double)info.cached_tokens);
        add_string(out, "cache", info.cache == KVR_CACHE_SLOTS ? "slots" : "blocks");
        add_string(out, "residency", "history");
        add_number(out, "prefill_tokens_per_second", info.prefill_tokens_per_second);
        add_number(out, "prediction_error", info.prediction_error);
        add_number(out, "paused_s",
                   info.paused_until_ns > now ? (double)(info.paused_until_ns - now) / 1e9 : 0);
        add_number(out, "decisions", (double)info.decisions);
        add_number(out, "prompt_tokens", (double)info.prompt_tokens);
        add_number(out, "predicted_tokens", (double)info.predicted_tokens);
        add_number(out, "observed_tokens", (double)info.observed_tokens);
        add_number(out, "unobserved_tokens", (double)info.unobserved_tokens);
        text_add(out, "}", 1);
}

static void list_replicas(struct admin *admin, struct net_exchange *exchange)
{
        struct fleet_snapshot *fleet = fleet_snapshot(admin->options.proxy->fleet);
        struct text json = {0};

        text_adds(&json, "[");
        for (size_t i = 0; i < fleet->count && !json.failed; i++)
                add_replica(admin, &json, fleet->targets[i]);
        text_adds(&json, "]");
        fleet_snapshot_unref(fleet);
        respond_json(exchange, 200, &json);
}

/* A member of the posted object becomes a key of the replica's description, whatever JSON type it has. */
static bool set_key(struct replica_spec *spec, yyjson_val *key, yyjson_val *value, char *why, size_t why_size)
{
        struct kvr_slice name = {yyjson_get_str(key), yyjson_get_len(key)}, text;
        char number[32];

        if (yyjson_is_str(value)) {
                text = (struct kvr_slice){yyjson_get_str(value), yyjson_get_len(value)};
        } else if (yyjson_is_uint(value)) {
                snprintf(number, sizeof number, "%llu", (unsigned long long)yyjson_get_uint(value));
                text = (struct kvr_slice){number, strlen(number)};
        } else {
                snprintf(why, why_size, "%.*s: a string or a whole number is needed", (int)name.len,
                         name.data);
                return false;
        }
        if (name.len == 3 && memcmp(name.data, "url", 3) == 0)
                return replica_spec_set_url(spec, text, why, why_size);
        return replica_spec_set(spec, name, text, why, why_size);
}

static bool read_spec(struct kvr_slice body, struct replica_spec *spec, char *why, size_t why_size)
{
        yyjson_doc *doc = yyjson_read(body.data ? body.data : "", body.len, 0);
        yyjson_val *root = doc ? yyjson_doc_get_root(doc) : NULL, *key;
        yyjson_obj_iter iter;
        bool fine = yyjson_is_obj(root) && yyjson_obj_get(root, "url");

        if (!fine)
                snprintf(why, why_size, "a JSON object with \"url\" is needed");
        else
                yyjson_obj_iter_init(root, &iter);
        while (fine && (key = yyjson_obj_iter_next(&iter)))
                fine = set_key(spec, key, yyjson_obj_iter_get_val(key), why, why_size);
        yyjson_doc_free(doc);
        return fine && replica_spec_finish(spec, why, why_size);
}

static void add_by_request(struct admin *admin, struct net_exchange *exchange)
{
        struct proxy *proxy = admin->options.proxy;
        const struct router_config *config = atomic_load(&proxy->config);
        struct replica_spec spec;
        struct kvr_error err = {0};
        char why[256] = "";
        struct text json = {0};

        replica_spec_init(&spec);
        if (!read_spec(net_exchange_body(exchange), &spec, why, sizeof why)) {
                respond_error(exchange, 400, "invalid_request", why);
        } else {
                enum kvr_status status = fleet_add(proxy->fleet, &spec, config_replica_auth(config, &spec),
                                                   config_replica_key(config, &spec), &err);

                if (status == KVR_OK) {
                        text_adds(&json, "{\"name\":\"");
                        text_add_json(&json, (struct kvr_slice){spec.name, strlen(spec.name)});
                        text_adds(&json, "\",\"state\":\"starting\"}");
                        log_say(proxy->log, LOG_INFO, NULL, "replica %s: added by the admin API", spec.name);
                        respond_json(exchange, 201, &json);
                } else {
                        respond_error(exchange,
                                      status == KVR_E_EXISTS  ? 409
                                      : status == KVR_E_NOMEM ? 503
                                                              : 400,
                                      kvr_status_name(status), err.message);
                }
        }
        replica_spec_fini(&spec);
}

static void remove_by_request(struct admin *admin, struct net_exchange *exchange, struct kvr_slice name)
{
        struct proxy *proxy = admin->options.proxy;
        char text[KVR_NAME_MAX];

        snprintf(text, sizeof text, "%.*s", (int)name.len, name.data);
        if (name.len >= sizeof text || !fleet_remove(proxy->fleet, text)) {
                respond_error(exchange, 404, "not_found", "no replica has this name");
                return;
        }
        log_say(proxy->log, LOG_INFO, NULL, "replica %s: removed by the admin API, its running answers end",
                text);
        net_respond(exchange, 200, "application/json", "", KVR_SLICE("{\"removed\":true}"));
}

/* POST /kvroute/replicas/NAME/drain, and /undrain. */
static void drain_by_request(struct admin *admin, struct net_exchange *exchange, struct kvr_slice name,
                             bool draining)
{
        struct fleet_snapshot *fleet = fleet_snapshot(admin->options.proxy->fleet);
        bool found = false;

        for (size_t i = 0; i < fleet->count; i++) {
                struct target *target = fleet->targets[i];

                if (strlen(target->spec.name) == name.len &&
                    memcmp(target->spec.name, name.data, name.len) == 0) {
                        target_drain(admin->options.proxy->fleet, target, draining);
                        found = true;
                }
        }
        fleet_snapshot_unref(fleet);
        if (found)
                net_respond(exchange, 200, "application/json", "",
                            draining ? KVR_SLICE("{\"draining\":true}") : KVR_SLICE("{\"draining\":false}"));
        else
                respond_error(exchange, 404, "not_found", "no replica has this name");
}

/* ---- explain
 * ------------------------------------------------------------------------------------------------------ */

static struct kvr_slice query_path(struct kvr_slice query)
{
        static const char key[] = "path=";

        for (size_t at = 0; at + sizeof key - 1 <= query.len;) {
                const char *end = memchr(query.data + at, '&', query.len - at);
                size_t len = end ? (size_t)(end - query.data) - at : query.len - at;

                if (len >= sizeof key - 1 && memcmp(query.data + at, key, sizeof key - 1) == 0)
                        return (struct kvr_slice){query.data + at + sizeof key - 1, len - (sizeof key - 1)};
                at += len + 1;
        }
        return KVR_SLICE("/v1/chat/completions");
}

/* %2F in a query value. */
static size_t unescape(struct kvr_slice in, char *ret, size_t size)
{
        size_t len = 0;

        for (size_t i = 0; i < in.len && len < size; i++) {
                if (in.data[i] == '%' && i + 2 < in.len && strncasecmp(in.data + i + 1, "2f", 2) == 0) {
                        ret[len++] = '/';
                        i += 2;
                } else {
                        ret[len++] = in.data[i];
                }
        }
        return len;
}

static const char *replica_name(const struct fleet_snapshot *fleet, kvr_replica_id id)
{
        struct target *target = fleet_snapshot_find(fleet, id);

        return target ? target->spec.name : "";
}

static void write_explanation(struct text *json, const struct kvr_prompt *prompt,
                              const struct fleet_snapshot *fleet, const struct kvr_decision *decision,
                              const struct kvr_candidate *candidates, size_t count)
{
        text_addf(json, "{\"namespace\":\"%016llx\",\"model\":\"", (unsigned long long)prompt->space);
        text_add_json(json, prompt->model);
        text_addf(json, "\",\"unit\":\"%s\",\"units\":%u,\"keys\":[",
                  prompt->unit == KVR_UNIT_TOKENS ? "tokens" : "bytes", prompt->units);
        for (uint32_t i = 0; i < prompt->point_count; i++)
                text_addf(json, "%s\"%016llx\"", i ? "," : "", (unsigned long long)prompt->points[i].key);
        text_addf(json, "],\"prompt_tokens\":%u,\"candidates\":[", decision->prompt_tokens);
        for (size_t i = 0; i < count; i++) {
                text_adds(json, i ? ",{\"replica\":\"" : "{\"replica\":\"");
                text_adds(json, replica_name(fleet, candidates[i].replica));
                text_addf(json, "\",\"match_tokens\":%u", candidates[i].match_tokens);
                add_number(json, "wait_s", candidates[i].wait_s);
                add_number(json, "own_s", candidates[i].own_s);
                add_number(json, "toll_s", candidates[i].toll_s);
                add_number(json, "cost_s", candidates[i].cost_s);
                text_add(json, "}", 1);
        }
        text_addf(json, "],\"chosen\":\"%s\",\"reason\":\"%s\",\"match_tokens\":%u}",
                  replica_name(fleet, decision->replica), kvr_reason_name(decision->reason),
                  decision->match_tokens);
}

static struct kvr_slice alias_target(void *ctx, struct kvr_slice model)
{
        return config_alias_target(ctx, model);
}

static void explain(struct admin *admin, struct net_exchange *exchange)
{
        struct proxy *proxy = admin->options.proxy;
        const struct router_config *config = atomic_load(&proxy->config);
        struct kvr_prompt_options options = {
                .seed = proxy->seed, .resolve_model = alias_target, .resolve_ctx = (void *)(uintptr_t)config};
        struct kvr_candidate *candidates = calloc(CANDIDATES_MAX, sizeof *candidates);
        struct kvr_request request = {.last_resort = true};
        struct kvr_prompt prompt;
        struct kvr_decision decision = {0};
        struct kvr_error err = {0};
        struct fleet_snapshot *fleet = NULL;
        struct text json = {0};
        char path[256];
        size_t count = 0,
               path_len = unescape(query_path(net_exchange_head(exchange)->query), path, sizeof path);
        enum kvr_status status;

        if (!candidates) {
                respond_error(exchange, 503, "no_memory", "out of memory");
                return;
        }
        status = kvr_prompt_parse(admin->parser, kvr_api_of_path((struct kvr_slice){path, path_len}),
                                  net_exchange_body(exchange), &options, &prompt, &err);
        if (status == KVR_OK) {
                request.prompt = &prompt;
                request.model = config_alias_target(config, prompt.model);
                request.affinity = prompt.hint;
                status = kvr_explain(proxy->router, &request, &decision, candidates, CANDIDATES_MAX, &count,
                                     &err);
        }
        if (status == KVR_OK) {
                fleet = fleet_snapshot(proxy->fleet);
                write_explanation(&json, &prompt, fleet, &decision, candidates,
                                  count < CANDIDATES_MAX ? count : CANDIDATES_MAX);
                fleet_snapshot_unref(fleet);
                respond_json(exchange, 200, &json);
        } else {
                respond_error(exchange,
                              status == KVR_E_NO_MODEL                             ? 404
                              : status == KVR_E_NO_REPLICA || status == KVR_E_BUSY ? 503
                                                                                   : 400,
                              kvr_status_name(status),
                              err.message[0] ? err.message : kvr_status_text(status));
        }
        free(candidates);
}

/* ---- metrics, configuration
 * --------------------------------------------------------------------------------------- */

static void set_gauge(struct metrics *metrics, unsigned thread, enum metric_id id, const char *label,
                      double value)
{
        struct kvr_slice labels = {label, label ? strlen(label) : 0};

        metrics_set(metrics, metrics_series(metrics, thread, id, label ? &labels : NULL), value);
}

static double known(double value)
{
        return value >= 0 ? value : NAN; /* also when it is NAN itself */
}

static void gauge_replica(struct admin *admin, struct target *target, uint64_t now)
{
        struct proxy *proxy = admin->options.proxy;
        struct metrics *metrics = proxy->metrics;
        unsigned thread = proxy->worker_count;
        struct kvr_replica_info info;
        const char *name = target->spec.name;

        if (kvr_replica_info(proxy->router, target->id, &info) != KVR_OK)
                return;
        set_gauge(metrics, thread, METRIC_REPLICA_UP, name,
                  info.state == KVR_READY || info.state == KVR_TRIAL);
        set_gauge(metrics, thread, METRIC_IN_FLIGHT, name, info.in_flight);
        set_gauge(metrics, thread, METRIC_REPLICA_KV_USAGE, name, known(info.load.kv_usage));
        set_gauge(metrics, thread, METRIC_REPLICA_RUNNING, name, known(info.load.running));
        set_gauge(metrics, thread, METRIC_REPLICA_WAITING, name, known(info.load.waiting));
        set_gauge(metrics, thread, METRIC_REPLICA_LOAD_AGE, name,
                  info.load.at_ns ? (double)(now - info.load.at_ns) / 1e9 : NAN);
        set_gauge(metrics, thread, METRIC_REPLICA_CAPACITY, name,
                  info.capacity_tokens ? (double)info.capacity_tokens : NAN);
        set_gauge(metrics, thread, METRIC_REPLICA_PREFILL, name, known(info.prefill_tokens_per_second));
}

static void write_metrics(struct admin *admin, struct net_exchange *exchange)
{
        struct proxy *proxy = admin->options.proxy;
        struct metrics *metrics = proxy->metrics;
        struct fleet_snapshot *fleet = fleet_snapshot(proxy->fleet);
        unsigned thread = proxy->worker_count;
        struct kvr_index_info index;
        uint64_t now = uv_hrtime();
        size_t len = 0;
        char *text;

        for (size_t i = 0; i < fleet->count; i++)
                gauge_replica(admin, fleet->targets[i], now);
        fleet_snapshot_unref(fleet);
        kvr_router_index_info(proxy->router, &index);
        set_gauge(metrics, thread, METRIC_INDEX_BYTES, NULL, (double)index.bytes);
        set_gauge(metrics, thread, METRIC_INDEX_BYTES_MAX, NULL, (double)index.bytes_max);
        set_gauge(metrics, thread, METRIC_INDEX_ENTRIES, NULL, (double)index.entries);
        set_gauge(metrics, thread, METRIC_INDEX_EVICTIONS, NULL, (double)index.evictions);
        set_gauge(metrics, thread, METRIC_QUEUE_REQUESTS, NULL, (double)atomic_load(&proxy->queued));
        set_gauge(metrics, thread, METRIC_CONNECTIONS, NULL, (double)atomic_load(&proxy->connections));
        set_gauge(metrics, thread, METRIC_BODY_BYTES, NULL, (double)atomic_load(&proxy->body_bytes));
        text = metrics_write(metrics, &len);
        if (text)
                net_respond(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", "",
                            (struct kvr_slice){text, len});
        else
                respond_error(exchange, 503, "no_memory", "out of memory");
        free(text);
}

static void write_config(struct admin *admin, struct net_exchange *exchange)
{
        char *json = config_to_json(atomic_load(&admin->options.proxy->config));

        if (json)
                net_respond(exchange, 200, "application/json", "", (struct kvr_slice){json, strlen(json)});
        else
                respond_error(exchange, 503, "no_memory", "out of memory");
        free(json);
}

static void write_account(struct admin *admin, struct net_exchange *exchange)
{
        static const enum kvr_reason reasons[] = {
#define REASON(code, name) code,
                KVR_REASON_LIST(REASON)
#undef REASON
        };
        struct text json = {0};

        text_adds(&json, "{\"reasons\":[");
        for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
                struct kvr_reason_account account;

                kvr_router_account(admin->options.proxy->router, reasons[i], &account);
                text_addf(
                        &json,
                        "%s{\"reason\":\"%s\",\"requests\":%llu,\"prompt_tokens\":%llu,\"best_tokens\":%llu,"
                        "\"predicted_tokens\":%llu,\"observed_tokens\":%llu,\"unobserved_prompt_tokens\":%"
                        "llu}",
                        i ? "," : "", kvr_reason_name(reasons[i]), (unsigned long long)account.requests,
                        (unsigned long long)account.prompt_tokens, (unsigned long long)account.best_tokens,
                        (unsigned long long)account.predicted_tokens,
                        (unsigned long long)account.observed_tokens,
                        (unsigned long long)account.unobserved_prompt_tokens);
        }
        text_adds(&json, "]}");
        respond_json(exchange, 200, &json);
}

/* ---- dispatch
 * ----------------------------------------------------------------------------------------------------- */

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
                remove_by_request(admin, exchange, name);
        else if (is(method, "POST") && (is(verb, "drain") || is(verb, "undrain")))
                drain_by_request(admin, exchange, name, is(verb, "drain"));
        else
                respond_error(exchange, 405, "method_not_allowed",
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
                respond_error(exchange, 401, "unauthorized",
                              "the admin token is needed: Authorization: Bearer ... (admin-token)");
        } else if (get && is(path, "/metrics")) {
                write_metrics(admin, exchange);
        } else if (get && is(path, "/kvroute/replicas")) {
                list_replicas(admin, exchange);
        } else if (is(method, "POST") && is(path, "/kvroute/replicas")) {
                add_by_request(admin, exchange);
        } else if (path.len > sizeof replicas_path - 1 &&
                   memcmp(path.data, replicas_path, sizeof replicas_path - 1) == 0) {
                on_replica_path(admin, exchange, method,
                                (struct kvr_slice){path.data + sizeof replicas_path - 1,
                                                   path.len - (sizeof replicas_path - 1)});
        } else if (is(path, "/kvroute/replicas")) {
                respond_error(exchange, 405, "method_not_allowed",
                              "GET lists replicas, POST {\"url\":...} adds one");
        } else if (is(method, "POST") && is(path, "/kvroute/explain")) {
                explain(admin, exchange);
        } else if (get && is(path, "/kvroute/config")) {
                write_config(admin, exchange);
        } else if (get && is(path, "/kvroute/ledger")) {
                write_account(admin, exchange);
        } else {
                respond_error(exchange, 404, "not_found",
                              "paths: /metrics, /healthz, /readyz, /kvroute/replicas, /kvroute/explain, "
                              "/kvroute/config, "
                              "/kvroute/ledger");
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
