/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of a configuration, and what frees it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_int.h"

#define SHOW(slice) (int)((slice).len < 200 ? (slice).len : 200), (slice).data

static void *field(struct config_builder *b, const struct option_row *option)
{
        return (char *)b->config + option->offset;
}

/* The array, moved where it has room for one element more; NULL: out of memory, and the old one is still
 * there. */
static void *grown(struct config_builder *b, void *items, size_t count, size_t size, const char *place)
{
        if (count > 0 && (count & (count - 1)) != 0)
                return items;
        void *more = realloc(items, (count > 0 ? 2 * count : 1) * size);

        if (!more)
                config_no_memory(b, place);
        return more;
}

bool config_add_string(struct config_builder *b, struct config_strings *list, char *text, const char *place)
{
        char **items = text ? grown(b, list->items, list->count, sizeof *items, place) : NULL;

        if (!items) {
                free(text);
                return false;
        }
        list->items = items;
        list->items[list->count++] = text;
        return true;
}

bool config_warn(struct config_builder *b, const char *format, ...)
{
        char text[512];
        va_list args;

        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        return config_add_string(b, &b->config->warnings,
                                 config_copy_text(b, (struct kvr_slice){text, strlen(text)}, ""), "");
}

void config_free_strings(struct config_strings *list, bool secret)
{
        for (size_t i = 0; i < list->count; i++)
                config_wipe_free(list->items[i], secret ? strlen(list->items[i]) : 0);
        free(list->items);
        *list = (struct config_strings){0};
}

void config_free_field(struct router_config *config, const struct option_row *option)
{
        void *at = (char *)config + option->offset;

        switch (option->type) {
        case OPT_STRING:
        case OPT_SECRET: {
                char **text = at;

                config_wipe_free(*text, *text && option->type == OPT_SECRET ? strlen(*text) : 0);
                *text = NULL;
                break;
        }
        case OPT_STRINGS:
        case OPT_SECRETS:
                config_free_strings(at, option->type == OPT_SECRETS);
                break;
        case OPT_ENDPOINTS: {
                struct config_endpoints *list = at;

                free(list->items);
                *list = (struct config_endpoints){0};
                break;
        }
        case OPT_REPLICAS: {
                struct config_replicas *list = at;

                for (size_t i = 0; i < list->count; i++)
                        replica_spec_fini(&list->items[i]);
                free(list->items);
                *list = (struct config_replicas){0};
                break;
        }
        case OPT_ALIASES: {
                struct config_aliases *list = at;

                for (size_t i = 0; i < list->count; i++) {
                        free(list->items[i].name);
                        free(list->items[i].target);
                }
                free(list->items);
                *list = (struct config_aliases){0};
                break;
        }
        default:
                break;
        }
}

bool config_is_overridden(const struct config_builder *b, const struct option_row *option,
                          enum config_source source)
{
        return b->source[config_row(option)] > source;
}

void config_begin_list(struct config_builder *b, const struct option_row *option, enum config_source source)
{
        if (b->source[config_row(option)] < source) {
                config_free_field(b->config, option);
                b->source[config_row(option)] = (uint8_t)source;
        }
}

static bool room_in_list(struct config_builder *b, const struct option_row *option, size_t count,
                         const char *place)
{
        if ((double)count < option->max)
                return true;
        return config_fail(b, place, "more than %.0f values", option->max);
}

static bool add_rank(struct config_builder *b, const struct option_row *option,
                     const struct replica_spec *spec, uint32_t rank, const char *place)
{
        struct config_replicas *list = &b->config->replicas;
        char why[KVR_NAME_MAX + 128];

        if (!room_in_list(b, option, list->count, place))
                return false;
        struct replica_spec *items = grown(b, list->items, list->count, sizeof *items, place);

        if (!items)
                return false;
        list->items = items;
        if (!replica_spec_rank(spec, rank, &list->items[list->count], why, sizeof why))
                return config_fail(b, place, "%s", why);
        list->count++;
        return true;
}

bool config_add_replica(struct config_builder *b, enum config_source source, struct replica_spec *spec,
                        const char *place)
{
        const struct option_row *option = options_find((struct kvr_slice){"replica", 7});
        bool ok = true;

        if (spec->api_key) {
                char *plain =
                        config_secret(b, (struct kvr_slice){spec->api_key, strlen(spec->api_key)}, place);

                config_wipe_free(spec->api_key, strlen(spec->api_key));
                spec->api_key = plain;
                ok = plain != NULL;
        }
        if (ok && !config_is_overridden(b, option, source)) {
                config_begin_list(b, option, source);
                for (uint32_t rank = 0; ok && rank < spec->ranks; rank++)
                        ok = add_rank(b, option, spec, rank, place);
        }
        replica_spec_fini(spec);
        return ok;
}

static bool valid_model(struct kvr_slice name)
{
        return name.len > 0 && name.len < KVR_NAME_MAX && !memchr(name.data, 0, name.len);
}

bool config_add_alias(struct config_builder *b, const struct option_row *option, enum config_source source,
                      struct kvr_slice name, struct kvr_slice target, const char *place)
{
        struct config_aliases *list = field(b, option);
        struct config_alias alias;

        if (!valid_model(name) || !valid_model(target))
                return config_fail(b, place, "%s is %s, both of 1 to %d bytes", option->name,
                                   option->argument, KVR_NAME_MAX - 1);
        if (config_is_overridden(b, option, source))
                return true;
        config_begin_list(b, option, source);
        if (!room_in_list(b, option, list->count, place))
                return false;
        struct config_alias *items = grown(b, list->items, list->count, sizeof *items, place);
        if (!items)
                return false;
        list->items = items;
        alias.name = config_copy_text(b, name, place);
        alias.target = config_copy_text(b, target, place);
        if (!alias.name || !alias.target) {
                free(alias.name);
                free(alias.target);
                return false;
        }
        list->items[list->count++] = alias;
        return true;
}

static bool add_spec(struct config_builder *b, enum config_source source, struct kvr_slice value,
                     const char *place)
{
        struct replica_spec spec;
        char why[512];

        replica_spec_init(&spec);
        if (!replica_spec_parse(&spec, value, why, sizeof why)) {
                replica_spec_fini(&spec);
                return config_fail(b, place, "%s", why);
        }
        return config_add_replica(b, source, &spec, place);
}

static bool add_endpoint(struct config_builder *b, const struct option_row *option, enum config_source source,
                         const struct config_endpoint *endpoint, const char *place)
{
        struct config_endpoints *list = field(b, option);

        config_begin_list(b, option, source);
        if (!room_in_list(b, option, list->count, place))
                return false;
        struct config_endpoint *items = grown(b, list->items, list->count, sizeof *items, place);
        if (!items)
                return false;
        list->items = items;
        list->items[list->count++] = *endpoint;
        return true;
}

bool config_add_to_list(struct config_builder *b, const struct option_row *option, enum config_source source,
                        struct kvr_slice value, const char *place)
{
        void *at = field(b, option);
        struct config_strings dropped = {0}, *strings = at;
        struct config_endpoint endpoint = {0};
        const char *equals = value.len > 0 ? memchr(value.data, '=', value.len) : NULL;
        bool keep = !config_is_overridden(b, option, source), ok;

        switch (option->type) {
        case OPT_REPLICAS:
                return add_spec(b, source, value, place);
        case OPT_ALIASES:
                if (!equals)
                        return config_fail(b, place, "\"%.*s\" is not %s", SHOW(value), option->argument);
                return config_add_alias(
                        b, option, source, (struct kvr_slice){value.data, (size_t)(equals - value.data)},
                        (struct kvr_slice){equals + 1, value.len - (size_t)(equals - value.data) - 1}, place);
        case OPT_ENDPOINTS:
                return config_parse_endpoint(b, option, value, place, &endpoint) &&
                       (!keep || add_endpoint(b, option, source, &endpoint, place));
        default:
                if (keep)
                        config_begin_list(b, option, source);
                else
                        strings = &dropped;
                if (option->type == OPT_SECRETS)
                        ok = config_add_secrets(b, strings, value, place);
                else
                        ok = room_in_list(b, option, strings->count, place) &&
                             config_add_string(b, strings, config_copy_text(b, value, place), place);
                config_free_strings(&dropped, true);
                return ok;
        }
}

/* ---- life ------------------------------------------------------------------------------------------- */

bool config_builder_init(struct config_builder *b)
{
        size_t count;
        const struct option_row *table = options_table(&count);

        _Static_assert(sizeof(struct router_config) < 65536, "a configuration is small");
        b->config = calloc(1, sizeof *b->config);
        if (!b->config)
                return config_no_memory(b, "");
        for (size_t i = 0; i < count; i++) {
                struct kvr_slice value = {table[i].fallback,
                                          table[i].fallback ? strlen(table[i].fallback) : 0};

                if (!table[i].name || (option_is_list(&table[i]) && value.len == 0))
                        continue;
                if (!config_set(b, &table[i], SOURCE_DEFAULT, value, table[i].name))
                        return false;
        }
        return true;
}

static void free_workload(struct config_workload *w)
{
        free(w->name);
        free(w->path);
        free(w->header_name);
        free(w->header_value);
        free(w->model);
        config_wipe_free(w->api_key, w->api_key ? strlen(w->api_key) : 0);
}

void config_free(struct router_config *config)
{
        size_t count;
        const struct option_row *table = options_table(&count);

        if (!config)
                return;
        for (size_t i = 0; i < count; i++)
                if (table[i].name)
                        config_free_field(config, &table[i]);
        for (size_t i = 0; i < config->workload_count; i++)
                free_workload(&config->workloads[i]);
        free(config->workloads);
        config_free_strings(&config->warnings, false);
        kvr_ignore_free(config->ignore_set);
        free(config);
}
