/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration in force as one JSON object, without its secrets. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "config_int.h"
#include "proto/text.h"

static void json_text(struct text *out, const char *text)
{
        text_adds(out, "\"");
        text_add_json(out, (struct kvr_slice){text, strlen(text)});
        text_adds(out, "\"");
}

static void json_endpoint(struct text *out, const struct config_endpoint *e)
{
        char text[REPLICA_HOST_MAX + 16];

        snprintf(text, sizeof text, strchr(e->host, ':') ? "[%s]:%u" : "%s:%u", e->host, (unsigned)e->port);
        json_text(out, e->off ? "off" : text);
}

/* As it would be written. */
static void json_events(struct text *out, const struct replica_spec *spec)
{
        static const char *const words[] = {
                [REPLICA_EVENTS_OFFERED] = "offered", [REPLICA_EVENTS_OFF] = "off",
                [REPLICA_EVENTS_AUTO] = "auto",       [REPLICA_EVENTS_CONNECT] = "",
                [REPLICA_EVENTS_BIND] = "bind:",      [REPLICA_EVENTS_POLL] = "poll",
        };

        text_addf(out, "\"%s", words[spec->events]);
        if (spec->events == REPLICA_EVENTS_CONNECT || spec->events == REPLICA_EVENTS_BIND)
                text_add_json(out, (struct kvr_slice){spec->events_endpoint, strlen(spec->events_endpoint)});
        text_add(out, "\"", 1);
}

static void json_replica(struct text *out, const struct replica_spec *spec)
{
        static const char *const auths[] = {"auto", "pass", "strip", "replace"};

        text_adds(out, "{\"name\":");
        json_text(out, spec->name);
        text_adds(out, ",\"url\":\"http://");
        text_add_json(out, (struct kvr_slice){spec->authority, strlen(spec->authority)});
        text_add_json(out, (struct kvr_slice){spec->prefix, strlen(spec->prefix)});
        text_addf(out, "\",\"engine\":\"%s\",\"auth\":\"%s\",\"api-key\":%s", engine_kind_name(spec->engine),
                  auths[spec->auth], spec->api_key ? "\"***\"" : "null");
        text_addf(out,
                  ",\"capacity-tokens\":%" PRIu64
                  ",\"block-tokens\":%u,\"max-running\":%u,\"slots\":%u,\"models\":[",
                  spec->capacity_tokens, (unsigned)spec->block_tokens, (unsigned)spec->max_running,
                  (unsigned)spec->slots);
        for (size_t i = 0; i < spec->model_count; i++) {
                text_adds(out, i ? "," : "");
                json_text(out, spec->models[i]);
        }
        text_adds(out, "],\"events\":");
        json_events(out, spec);
        text_adds(out, ",\"replay\":");
        json_text(out, spec->replay_endpoint[0] ? spec->replay_endpoint : "off");
        text_adds(out, ",\"events-topic\":");
        json_text(out, spec->events_topic);
        text_adds(out, "}");
}

static void json_number(struct text *out, const struct option_row *option, uint64_t n)
{
        char text[40];

        if (n == 0 && (option->flags & O_OFF)) {
                json_text(out, "off");
        } else if (n == 0 && (option->flags & O_AUTO)) {
                json_text(out, option->fallback);
        } else if (option->type == OPT_COUNT) {
                text_addu(out, n);
        } else {
                if (option->type == OPT_MILLIS)
                        option_format_millis(n, text, sizeof text);
                else
                        option_format_bytes(n, text, sizeof text);
                json_text(out, text);
        }
}

static void json_list(struct text *out, const struct option_row *option, const void *at)
{
        const struct config_endpoints *endpoints = at;
        const struct config_strings *strings = at;
        const struct config_replicas *replicas = at;
        const struct config_aliases *aliases = at;
        size_t count = option->type == OPT_ENDPOINTS  ? endpoints->count
                       : option->type == OPT_REPLICAS ? replicas->count
                       : option->type == OPT_ALIASES  ? aliases->count
                                                      : strings->count;

        text_adds(out, "[");
        for (size_t i = 0; i < count; i++) {
                text_adds(out, i ? "," : "");
                if (option->type == OPT_ENDPOINTS) {
                        json_endpoint(out, &endpoints->items[i]);
                } else if (option->type == OPT_REPLICAS) {
                        json_replica(out, &replicas->items[i]);
                } else if (option->type == OPT_ALIASES) {
                        text_adds(out, "{\"name\":");
                        json_text(out, aliases->items[i].name);
                        text_adds(out, ",\"target\":");
                        json_text(out, aliases->items[i].target);
                        text_adds(out, "}");
                } else {
                        json_text(out, option->type == OPT_SECRETS ? "***" : strings->items[i]);
                }
        }
        text_adds(out, "]");
}

static void json_choice(struct text *out, const char *words, unsigned number)
{
        for (; number > 0; number--)
                words += strcspn(words, "|") + 1;
        text_addf(out, "\"%.*s\"", (int)strcspn(words, "|"), words);
}

static void json_field(struct text *out, const struct option_row *option, const void *at)
{
        switch (option->type) {
        case OPT_BOOL:
                text_adds(out, *(const bool *)at ? "true" : "false");
                break;
        case OPT_CHOICE:
                json_choice(out, option->argument, *(const unsigned *)at);
                break;
        case OPT_NUMBER:
                text_addf(out, "%.15g", *(const double *)at);
                break;
        case OPT_STRING:
                json_text(out, *(char *const *)at);
                break;
        case OPT_SECRET:
                json_text(out, **(char *const *)at ? "***" : "");
                break;
        case OPT_ENDPOINT:
                json_endpoint(out, at);
                break;
        case OPT_COUNT:
        case OPT_MILLIS:
        case OPT_BYTES:
                json_number(out, option, *(const uint64_t *)at);
                break;
        default:
                json_list(out, option, at);
        }
}

static void json_member(struct text *out, const char *name, const char *value)
{
        if (!value)
                return;
        text_addf(out, ",\"%s\":", name);
        json_text(out, value);
}

static void json_workload(struct text *out, const struct config_workload *w)
{
        text_adds(out, "{\"name\":");
        json_text(out, w->name);
        json_member(out, "path", w->path);
        json_member(out, "model", w->model);
        json_member(out, "api-key", w->api_key ? "***" : NULL);
        if (w->header_name) {
                text_adds(out, ",\"header\":{");
                json_text(out, w->header_name);
                text_adds(out, ":");
                if (w->header_value)
                        json_text(out, w->header_value);
                else
                        text_adds(out, "null");
                text_adds(out, "}");
        }
        text_adds(out, "}");
}

char *config_to_json(const struct router_config *config)
{
        size_t count;
        const struct option_row *table = options_table(&count);
        struct text out = {0};

        text_adds(&out, "{");
        for (size_t i = 0; i < count; i++) {
                if (!table[i].name)
                        continue;
                json_text(&out, table[i].type == OPT_REPLICAS ? "replicas" : table[i].name);
                text_adds(&out, ":");
                json_field(&out, &table[i], (const char *)config + table[i].offset);
                text_adds(&out, ",");
        }
        text_adds(&out, "\"workloads\":[");
        for (size_t i = 0; i < config->workload_count; i++) {
                text_adds(&out, i ? "," : "");
                json_workload(&out, &config->workloads[i]);
        }
        text_adds(&out, "]}");
        text_string(&out);
        if (out.failed) {
                text_free(&out);
                return NULL;
        }
        return out.data;
}
