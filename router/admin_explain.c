/* SPDX-License-Identifier: Apache-2.0 */
/* POST /kvroute/explain: what would become of this request, and why. Sends nothing. */
#include "admin_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "identify.h"

#define CANDIDATES_MAX 1024

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

/* Of the paths whose prompts are read, those that people know; docs/admin.md names them all. */
static const char known_paths[] =
        "/v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /v1/embeddings, "
        "/completion, /generate";

static void refuse_path(struct net_exchange *exchange, struct kvr_slice path)
{
        char message[512];

        snprintf(message, sizeof message, "path=%.*s is not a path whose prompts are read; these are: %s",
                 (int)(path.len < 200 ? path.len : 200), path.data, known_paths);
        admin_respond_error(exchange, 400, "invalid_request", message);
}

void admin_explain_usage(struct net_exchange *exchange)
{
        const struct http1_field *host = http1_find(net_exchange_head(exchange), "host");
        char message[512];

        snprintf(message, sizeof message,
                 "POST a request's body, as: curl 'http://%.*s/kvroute/explain?path=/v1/chat/completions' "
                 "-H 'Content-Type: application/json' "
                 "-d '{\"model\":\"NAME\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'",
                 host && host->value.len < 100 ? (int)host->value.len : 14,
                 host && host->value.len < 100 ? host->value.data : "127.0.0.1:8081");
        admin_respond_error(exchange, 405, "method_not_allowed", message);
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
                text_addf(json, "\",\"match_tokens\":%u,\"due_tokens\":%u", candidates[i].match_tokens,
                          candidates[i].due_tokens);
                admin_add_number(json, "wait_s", candidates[i].wait_s);
                admin_add_number(json, "own_s", candidates[i].own_s);
                admin_add_number(json, "toll_s", candidates[i].toll_s);
                admin_add_number(json, "cost_s", candidates[i].cost_s);
                text_add(json, "}", 1);
        }
        text_addf(json, "],\"chosen\":\"%s\",\"reason\":\"%s\",\"match_tokens\":%u}",
                  replica_name(fleet, decision->replica), kvr_reason_name(decision->reason),
                  decision->match_tokens);
}

/*
 * The key of the client that is asked about, where tenants are told apart by it. With an admin token the
 * Authorization field is the asker's own, and the client's key comes as x-api-key.
 */
static struct kvr_slice client_key(const struct http1_head *head, const struct router_config *config)
{
        const struct http1_field *field = *config->admin_token ? NULL : http1_find(head, "authorization");

        if (field && field->value.len > 7 && strncasecmp(field->value.data, "bearer ", 7) == 0)
                return (struct kvr_slice){field->value.data + 7, field->value.len - 7};
        field = http1_find(head, "x-api-key");
        return field ? field->value : KVR_SLICE("");
}

/* As the serving path has it: a session field, else what the body hints at. */
static struct kvr_slice affinity_of(const struct http1_head *head, const struct router_config *config,
                                    const struct kvr_prompt *prompt, size_t max)
{
        struct kvr_slice key = prompt->hint;

        for (size_t i = 0; i < config->session_headers.count; i++) {
                const struct http1_field *field = http1_find(head, config->session_headers.items[i]);

                if (field && field->value.len) {
                        key = field->value;
                        break;
                }
        }
        if (key.len > max)
                key.len = max;
        return key;
}

static enum kvr_status ask(struct admin *admin, struct net_exchange *exchange, enum kvr_api api,
                           const struct fleet_snapshot *fleet, struct kvr_prompt *prompt,
                           struct kvr_decision *ret_decision, struct kvr_candidate *ret_candidates,
                           size_t *ret_count, struct kvr_error *err)
{
        struct proxy *proxy = admin->options.proxy;
        const struct router_config *config = atomic_load(&proxy->config);
        const struct http1_head *head = net_exchange_head(exchange);
        char salt[IDENTIFY_SALT];
        struct identify_source source = {
                .config = config,
                .seed = proxy->seed,
                .client_key = client_key(head, config),
                .api = api,
                .body = net_exchange_body(exchange),
                .salt = salt,
        };
        struct kvr_request request = {.prompt = prompt, .last_resort = true};
        enum kvr_status status = identify_prompt(&source, admin->parser, prompt, err);

        if (status != KVR_OK)
                return status;
        request.model = config_alias_target(config, prompt->model);
        identify_adapter(fleet, &request);
        request.affinity = affinity_of(head, config, prompt, sizeof((struct exchange *)0)->affinity);
        request.pinned = kvr_response_owner(proxy->router, prompt->previous_id);
        return kvr_explain(proxy->router, &request, ret_decision, ret_candidates, CANDIDATES_MAX, ret_count,
                           err);
}

void admin_explain(struct admin *admin, struct net_exchange *exchange)
{
        struct proxy *proxy = admin->options.proxy;
        struct kvr_candidate *candidates = calloc(CANDIDATES_MAX, sizeof *candidates);
        struct kvr_prompt prompt;
        struct kvr_decision decision = {0};
        struct kvr_error err = {0};
        struct fleet_snapshot *fleet = NULL;
        struct text json = {0};
        size_t count = 0;
        enum kvr_status status;
        char path[256];
        size_t path_len = unescape(query_path(net_exchange_head(exchange)->query), path, sizeof path);
        struct kvr_slice asked = {path, path_len};

        if (identify_api(asked) == KVR_API_OTHER) {
                free(candidates);
                refuse_path(exchange, asked);
                return;
        }
        if (!candidates) {
                admin_respond_error(exchange, 503, "no_memory", "out of memory");
                return;
        }
        fleet = fleet_snapshot(proxy->fleet);
        status = ask(admin, exchange, identify_api(asked), fleet, &prompt, &decision, candidates, &count,
                     &err);
        if (status == KVR_OK) {
                write_explanation(&json, &prompt, fleet, &decision, candidates,
                                  count < CANDIDATES_MAX ? count : CANDIDATES_MAX);
                admin_respond_json(exchange, 200, &json);
        } else {
                admin_respond_error(exchange,
                                    status == KVR_E_NO_MODEL                             ? 404
                                    : status == KVR_E_NO_REPLICA || status == KVR_E_BUSY ? 503
                                                                                         : 400,
                                    kvr_status_name(status),
                                    err.message[0] ? err.message : kvr_status_text(status));
        }
        fleet_snapshot_unref(fleet);
        free(candidates);
}
