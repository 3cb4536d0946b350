/* SPDX-License-Identifier: Apache-2.0 */
/* What a request says of itself: prompt, model, session, workload, owner of a previous response. */
#include "identify.h"

#include <string.h>

#include "decode.h"
#include "edit.h"
#include "engine/paths.h"

struct kvr_slice identify_body(const struct exchange *exchange)
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

static struct kvr_slice alias_target(void *ctx, struct kvr_slice model)
{
        return config_alias_target(ctx, model);
}

enum kvr_api identify_api(struct kvr_slice path)
{
        enum kvr_api api = kvr_api_of_path(path);
        char plain[ENGINE_PATH_ROOM];
        size_t len;

        if (api != KVR_API_OTHER || !engine_path_normalise(path, plain, &len))
                return api;
        return kvr_api_of_path((struct kvr_slice){plain, len});
}

enum kvr_status identify_prompt(const struct identify_source *source, struct kvr_parser *parser,
                                struct kvr_prompt *ret, struct kvr_error *err)
{
        const struct router_config *config = source->config;
        struct kvr_prompt_options options = {
                .seed = source->seed,
                .ignore = config->ignore_set,
                .resolve_model = config->aliases.count ? alias_target : NULL,
                .resolve_ctx = (void *)(uintptr_t)config,
        };

        if (config->tenant_salt) {
                edit_salt_of_key(source->client_key, source->seed, source->salt);
                options.salt = (struct kvr_slice){source->salt, IDENTIFY_SALT - 1};
        }
        return kvr_prompt_parse(parser, source->api, source->body, &options, ret, err);
}

enum kvr_status identify_again(struct exchange *exchange, struct kvr_prompt *ret, struct kvr_error *err)
{
        const struct router_config *config = exchange->worker->config;
        struct identify_source source = {
                .config = config,
                .seed = exchange->worker->proxy->seed,
                .client_key = config->tenant_salt ? exchange_client_key(exchange) : KVR_SLICE(""),
                .api = exchange->api,
                .body = identify_body(exchange),
                .salt = exchange->tenant_salt,
        };

        return identify_prompt(&source, exchange->worker->parser, ret, err);
}

static bool looks_like_json(const struct exchange *exchange)
{
        struct kvr_slice body = identify_body(exchange);

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
        struct kvr_slice real = config_alias_target(config, prompt->model);

        copy_slice(exchange->model, sizeof exchange->model, prompt->model);
        copy_slice(exchange->real_model, sizeof exchange->real_model, real);
        exchange->stream = prompt->stream;
        exchange->several = prompt->choices > 1 || prompt->prompt_count > 1;
        if (exchange->priority == 0)
                exchange->priority = prompt->priority;
        if (exchange->affinity_key_len == 0 && prompt->hint.len) {
                exchange->affinity_key_len = prompt->hint.len < sizeof exchange->affinity
                                                     ? prompt->hint.len
                                                     : sizeof exchange->affinity;
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

void identify_workload(struct exchange *exchange)
{
        const char *name;

        if (exchange->workload[0])
                return;
        name = config_workload(exchange->worker->config, exchange->path,
                               (struct kvr_slice){exchange->model, strlen(exchange->model)},
                               exchange_client_key(exchange), header_of, exchange);
        snprintf(exchange->workload, sizeof exchange->workload, "%s", name ? name : WORKLOAD_DEFAULT);
}

/* "/v1/responses/resp_123/cancel" -> the replica that made resp_123. */
void identify_adapter(const struct fleet_snapshot *fleet, struct kvr_request *request)
{
        if (request->prompt && request->prompt->id_count && fleet_has_adapter(fleet, request->model))
                request->adapter = request->model;
}

void identify_owner(struct exchange *exchange)
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

bool identify_decode(struct exchange *exchange)
{
        const struct router_config *config = exchange->worker->config;
        enum decode_result result;

        if (exchange->encoding == DECODE_IDENTITY || exchange->encoding == DECODE_UNKNOWN ||
            exchange->body.len == 0)
                return false;
        result = decode_body((enum decode_coding)exchange->encoding, text_slice(&exchange->body),
                             config->max_body_bytes, &exchange->decoded);
        switch (result) {
        case DECODE_OK:
                /* What is to be salted must be sent as it was read. */
                exchange->send_decoded = config->forward_decoded || config->tenant_salt;
                return false;
        case DECODE_BAD: /* the engine's to judge: it may know the coding better */
                text_clear(&exchange->decoded);
                return false;
        case DECODE_TOO_LARGE:
                reply_error(exchange, 413, "body_too_large",
                            "the body decodes to more than the limit (max-body)", 0);
                return true;
        case DECODE_NOMEM:
                break;
        }
        reply_error(exchange, 503, "overloaded", "no memory to decode the body", 1);
        return true;
}

static void count_unkeyed(struct exchange *exchange, enum kvr_status status, const struct kvr_error *err)
{
        struct kvr_slice label = slice_of(kvr_status_name(status));

        worker_count(exchange->worker, METRIC_UNKEYED, &label, 1);
        log_say(exchange->worker->proxy->log, LOG_DEBUG, NULL, "request %s is routed by load only: %s",
                exchange->request_id, err->message);
}

enum kvr_status identify(struct exchange *exchange, struct kvr_prompt *ret, bool *ret_keyed,
                         struct kvr_error *err)
{
        bool readable = exchange->encoding == DECODE_IDENTITY || exchange->decoded.len;
        enum kvr_status status;

        *ret_keyed = false;
        if (exchange->api == KVR_API_OTHER && !looks_like_json(exchange)) {
                edit_multipart_model(exchange);
                return KVR_OK;
        }
        status = readable ? identify_again(exchange, ret, err) : KVR_E_LIMIT;
        if (status == KVR_OK) {
                keep_prompt(exchange, ret);
                *ret_keyed = exchange->api != KVR_API_OTHER;
                return KVR_OK;
        }
        if (status == KVR_E_NOMEM || (status == KVR_E_JSON && exchange->api != KVR_API_OTHER))
                return status;
        /* What cannot be read cannot be salted, and would reach the cache that all tenants share. */
        if (exchange->worker->config->tenant_salt && exchange->api != KVR_API_OTHER)
                return status;
        /* Odd, but for the engine to judge: it goes there untouched and by load, and is counted. */
        if (exchange->api != KVR_API_OTHER)
                count_unkeyed(exchange, status, err);
        exchange->api = KVR_API_OTHER;
        return KVR_OK;
}
