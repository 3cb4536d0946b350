/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration as a whole: what only all of it together can tell, questions to it, and `kvroute check`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config_int.h"

static struct kvr_slice slice(const char *text)
{
        return (struct kvr_slice){text, strlen(text)};
}

/* ---- checks ----------------------------------------------------------------------------------------- */

static bool check_policy(struct config_builder *b)
{
        const char *names[64], *policy = b->config->policy;
        size_t count = kvr_policy_count();
        char list[512] = "";

        if (count > sizeof names / sizeof *names)
                count = sizeof names / sizeof *names;
        for (size_t i = 0; i < count; i++) {
                names[i] = kvr_policy_name(i);
                if (strcmp(names[i], policy) == 0)
                        return true;
                size_t used = strlen(list);
                snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
        }
        const char *near = words_nearest(slice(policy), names, count);
        if (near)
                return config_fail(b, config_place(b, "policy"), "\"%s\" is no policy; did you mean %s?",
                                   policy, near);
        return config_fail(b, config_place(b, "policy"), "\"%s\" is no policy; there are %s", policy, list);
}

/*
 * Beside what simpler rules does kv stand? Whoever just says --shadow means the simplest; whoever runs kv has
 * nothing to compare it with, and must be told rather than routed in another way.
 */
static bool check_shadow(struct config_builder *b)
{
        struct router_config *c = b->config;
        const struct option_row *policy = options_find(slice("policy"));

        if (c->shadow == CONFIG_SHADOW_OFF)
                return true;
        if (b->source[config_row(policy)] == SOURCE_DEFAULT) {
                config_free_field(c, policy);
                c->policy = config_copy_text(b, slice("round_robin"), "policy");
                if (!c->policy)
                        return false;
        }
        if (strcmp(c->policy, "kv") == 0)
                return config_fail(
                        b, config_place(b, "shadow"),
                        "measures what the policy kv would gain over another, and the policy is kv; "
                        "choose the one to compare with, as --policy round_robin, or leave --policy "
                        "out for that");
        if (!c->ledger)
                return config_fail(b, config_place(b, "shadow"), "needs the ledger; leave out --ledger off");
        if (c->index_memory_bytes < CONFIG_SHADOW_INDEX_MIN)
                return config_fail(
                        b, config_place(b, "index-memory"),
                        "half of it is the shadow's, and each half needs 1MiB; write 2MiB or more");
        if (c->shadow != CONFIG_SHADOW_MIRROR)
                return true;
        if (c->replicas.count == 0)
                return config_fail(
                        b, config_place(b, "shadow"),
                        "mirror needs replicas to imagine, which are never contacted; as --replica "
                        "http://r1:8000,capacity-tokens=500000 for each");
        for (size_t i = 0; i < c->replicas.count; i++)
                if (!c->replicas.items[i].capacity_tokens)
                        return config_warn(
                                b,
                                "shadow mirror: replica %s has no capacity-tokens, so its cache is taken "
                                "to be without limit and hit rates come out too high",
                                c->replicas.items[i].name);
        return true;
}

static bool check_seed(struct config_builder *b)
{
        const char *text = b->config->seed;
        uint64_t seed = 0;
        size_t len = strlen(text);

        if (strcmp(text, "random") == 0)
                return true;
        for (size_t i = 0; i < len; i++) {
                char c = text[i];
                int digit = c >= '0' && c <= '9'                     ? c - '0'
                            : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                     : -1;

                if (digit < 0 || i >= 16)
                        len = 0;
                else
                        seed = seed << 4 | (uint64_t)digit;
        }
        if (len == 0)
                return config_fail(b, config_place(b, "seed"), "\"%s\" is not 1 to 16 hex digits, nor random",
                                   text);
        b->config->seed_given = true;
        b->config->seed_value = seed;
        return true;
}

/* Open addressing, so that thousands of replicas do not cost millions of comparisons. slots: a power of two,
 * zeroed. */
static const char *first_double(const struct config_replicas *list, const char **slots, size_t size)
{
        for (size_t i = 0; i < list->count; i++) {
                const char *name = list->items[i].name;
                uint64_t hash = 14695981039346656037ull;

                for (const char *c = name; *c; c++)
                        hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
                size_t at = (size_t)(hash ^ hash >> 32) & (size - 1);
                while (slots[at] && strcmp(slots[at], name) != 0)
                        at = (at + 1) & (size - 1);
                if (slots[at])
                        return name;
                slots[at] = name;
        }
        return NULL;
}

static bool check_replicas(struct config_builder *b)
{
        const struct config_replicas *list = &b->config->replicas;
        size_t size = 16;

        while (size < 2 * list->count)
                size *= 2;
        const char **slots = calloc(size, sizeof *slots);
        if (!slots)
                return config_no_memory(b, "replicas");
        const char *twice = first_double(list, slots, size);
        free(slots);
        if (twice)
                return config_fail(b, "replicas", "two are called \"%s\"; give each its own name", twice);
        for (size_t i = 0; i < list->count; i++)
                if (config_replica_auth(b->config, &list->items[i]) == REPLICA_AUTH_REPLACE &&
                    !config_replica_key(b->config, &list->items[i]))
                        return config_fail(
                                b, "replicas",
                                "%s has auth=replace but no key; give it an api-key, or set --upstream-key",
                                list->items[i].name);
        return true;
}

static bool check_aliases(struct config_builder *b)
{
        const struct config_aliases *list = &b->config->aliases;

        for (size_t i = 0; i < list->count; i++)
                for (size_t k = 0; k < list->count; k++) {
                        if (i > k && strcmp(list->items[i].name, list->items[k].name) == 0)
                                return config_fail(b, config_place(b, "alias"), "\"%s\" is given twice",
                                                   list->items[i].name);
                        if (strcmp(list->items[i].target, list->items[k].name) == 0)
                                return config_fail(
                                        b, "alias",
                                        "\"%s\" leads to \"%s\", which is an alias itself; name the model",
                                        list->items[i].name, list->items[i].target);
                }
        return true;
}

/* An account's own name: "family-" and 8 hex digits. */
static bool is_family(const char *id)
{
        static const char prefix[] = "family-";

        return strncmp(id, prefix, sizeof prefix - 1) == 0 && strlen(id) == sizeof prefix - 1 + 8 &&
               strspn(id + sizeof prefix - 1, "0123456789abcdef") == 8;
}

static bool check_families(struct config_builder *b)
{
        const struct config_aliases *list = &b->config->families;

        for (size_t i = 0; i < list->count; i++) {
                if (!is_family(list->items[i].target))
                        return config_fail(
                                b, config_place(b, "family"),
                                "\"%s\" is no family; write its name in GET /kvroute/ledger?by=family, as "
                                "family-3f9a1c20",
                                list->items[i].target);
                for (size_t k = 0; k < i; k++)
                        if (strcmp(list->items[i].target, list->items[k].target) == 0)
                                return config_fail(b, config_place(b, "family"),
                                                   "%s has two names, %s and %s", list->items[i].target,
                                                   list->items[k].name, list->items[i].name);
        }
        if (list->count && !b->config->seed_given)
                return config_warn(b,
                                   "family: with a random seed no family has the same name after a restart; "
                                   "give --seed a fixed one");
        return true;
}

const char *config_family(const struct router_config *config, const char *id)
{
        for (size_t i = 0; i < config->families.count; i++) {
                if (strcmp(config->families.items[i].target, id) == 0)
                        return config->families.items[i].name;
        }
        return NULL;
}

static bool check_ignore(struct config_builder *b)
{
        const struct config_strings *list = &b->config->ignore;
        struct kvr_slice patterns[KVR_IGNORE_PATTERNS_MAX];
        struct kvr_error err;
        size_t count = 0;

        for (; count < list->count && count < KVR_IGNORE_PATTERNS_MAX; count++)
                patterns[count] = slice(list->items[count]);
        if (!count || kvr_ignore_new(patterns, count, &b->config->ignore_set, &err) == KVR_OK)
                return true;
        return config_fail(b, config_place(b, "ignore"), "%s", err.message);
}

static bool is_token(const char *text)
{
        for (const char *c = text; *c; c++)
                if (*c <= ' ' || *c >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", *c))
                        return false;
        return *text != 0;
}

static bool check_headers(struct config_builder *b)
{
        struct config_strings *list = &b->config->session_headers;

        for (size_t i = 0; i < list->count; i++) {
                if (!is_token(list->items[i]))
                        return config_fail(b, config_place(b, "session-header"),
                                           "\"%s\" is not a header's name", list->items[i]);
                for (char *c = list->items[i]; *c; c++)
                        if (*c >= 'A' && *c <= 'Z')
                                *c = (char)(*c | 0x20);
        }
        for (size_t i = 0; i < b->config->workload_count; i++)
                if (b->config->workloads[i].header_name && !is_token(b->config->workloads[i].header_name))
                        return config_fail(b, "workloads", "\"%s\" is not a header's name",
                                           b->config->workloads[i].header_name);
        return true;
}

static bool same_endpoint(const struct config_endpoint *a, const struct config_endpoint *b)
{
        return a->port != 0 && a->port == b->port && strcmp(a->host, b->host) == 0;
}

static bool is_loopback(const struct config_endpoint *e)
{
        return strncmp(e->host, "127.", 4) == 0 || strcmp(e->host, "::1") == 0 ||
               strcmp(e->host, "localhost") == 0;
}

static bool check_listeners(struct config_builder *b)
{
        const struct router_config *c = b->config;

        if (c->listen.count == 0 && !(b->errors && b->errors->count)) /* else it was told why */
                return config_fail(b, config_place(b, "listen"),
                                   "no listener is left; write at least one HOST:PORT");
        for (size_t i = 0; i < c->listen.count; i++) {
                for (size_t k = 0; k < i; k++)
                        if (same_endpoint(&c->listen.items[i], &c->listen.items[k]))
                                return config_fail(b, config_place(b, "listen"), "%s:%u is given twice",
                                                   c->listen.items[i].host,
                                                   (unsigned)c->listen.items[i].port);
                if (!c->admin.off && same_endpoint(&c->listen.items[i], &c->admin))
                        return config_fail(b, config_place(b, "admin"),
                                           "%s:%u is a client listener as well; give it a port of its own",
                                           c->admin.host, (unsigned)c->admin.port);
        }
        if (!c->admin.off && !is_loopback(&c->admin) && !*c->admin_token)
                return config_warn(
                        b,
                        "the admin listener on %s:%u is open to everybody who reaches it; set --admin-token",
                        *c->admin.host ? c->admin.host : "*", (unsigned)c->admin.port);
        return true;
}

static bool warn_no_replicas(struct config_builder *b)
{
        if (b->config->replicas.count)
                return true;
        return config_warn(b,
                           "no replica is configured, so requests get 503: give serve a URL (kvroute serve "
                           "http://127.0.0.1:8000), list replicas in the file, or POST {\"url\":...} to "
                           "/kvroute/replicas of the admin listener%s",
                           b->config->admin.off ? " (which is off)" : "");
}

static bool check_salt(struct config_builder *b)
{
        if (b->config->tenant_salt && b->config->api_keys.count == 0)
                return config_fail(b, config_place(b, "tenant-salt"),
                                   "has no effect without --api-key: tenants are told apart by their keys");
        return true;
}

static bool check_bodies(struct config_builder *b)
{
        if (b->config->max_body_bytes > b->config->body_memory_bytes)
                return config_fail(b, config_place(b, "max-body"),
                                   "is larger than body-memory, so such a body could never be taken");
        return true;
}

bool config_check_whole(struct config_builder *b)
{
        static bool (*const checks[])(struct config_builder *) = {
                check_shadow,   check_policy,  check_seed,      check_aliases, check_families, check_ignore,
                check_replicas, check_headers, check_listeners, check_salt,    check_bodies,
        };
        const struct router_config *c = b->config;

        for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
                if (!checks[i](b) && !config_go_on(b))
                        return false;
        }
        if (c->pool_idle_ms >= 5000 &&
            !config_warn(b, "pool-idle of 5s or more: most engines close idle connections after 5s"))
                return false;
        return warn_no_replicas(b);
}

/* ---- questions -------------------------------------------------------------------------------------- */

enum replica_auth config_replica_auth(const struct router_config *config, const struct replica_spec *replica)
{
        if (replica->auth != REPLICA_AUTH_AUTO)
                return replica->auth;
        if ((enum replica_auth)config->auth != REPLICA_AUTH_AUTO)
                return (enum replica_auth)config->auth;
        /* Keys that the router asks for are its own: no engine has any business with them. */
        return config->api_keys.count > 0 ? REPLICA_AUTH_STRIP : REPLICA_AUTH_PASS;
}

const char *config_replica_key(const struct router_config *config, const struct replica_spec *replica)
{
        if (replica->api_key)
                return replica->api_key;
        return *config->upstream_key ? config->upstream_key : NULL;
}

static bool pattern_fits(const char *pattern, struct kvr_slice text)
{
        size_t len = strlen(pattern);

        if (len > 0 && pattern[len - 1] == '*')
                return text.len >= len - 1 && memcmp(text.data, pattern, len - 1) == 0;
        return text.len == len && memcmp(text.data, pattern, len) == 0;
}

static bool workload_fits(const struct config_workload *w, struct kvr_slice path, struct kvr_slice model,
                          struct kvr_slice api_key, struct kvr_slice (*header)(void *ctx, const char *name),
                          void *ctx)
{
        if (w->path && !pattern_fits(w->path, path))
                return false;
        if (w->model && !pattern_fits(w->model, model))
                return false;
        if (w->api_key &&
            (strlen(w->api_key) != api_key.len || memcmp(w->api_key, api_key.data, api_key.len) != 0))
                return false;
        if (!w->header_name)
                return true;
        struct kvr_slice value = header(ctx, w->header_name);
        if (!value.data)
                return false;
        return !w->header_value ||
               (strlen(w->header_value) == value.len && memcmp(w->header_value, value.data, value.len) == 0);
}

struct kvr_slice config_alias_target(const struct router_config *config, struct kvr_slice model)
{
        for (size_t i = 0; i < config->aliases.count; i++) {
                const struct config_alias *alias = &config->aliases.items[i];

                if (strlen(alias->name) == model.len && memcmp(alias->name, model.data, model.len) == 0)
                        return (struct kvr_slice){alias->target, strlen(alias->target)};
        }
        return model;
}

const char *config_workload(const struct router_config *config, struct kvr_slice path, struct kvr_slice model,
                            struct kvr_slice api_key, struct kvr_slice (*header)(void *ctx, const char *name),
                            void *ctx)
{
        for (size_t i = 0; i < config->workload_count; i++)
                if (workload_fits(&config->workloads[i], path, model, api_key, header, ctx))
                        return config->workloads[i].name;
        return NULL;
}

bool config_has_workload(const struct router_config *config, struct kvr_slice name)
{
        for (size_t i = 0; i < config->workload_count; i++)
                if (strlen(config->workloads[i].name) == name.len &&
                    memcmp(config->workloads[i].name, name.data, name.len) == 0)
                        return true;
        return false;
}

static bool field_equal(const struct router_config *a, const struct router_config *b,
                        const struct option_row *option)
{
        const char *at = (const char *)a + option->offset, *bt = (const char *)b + option->offset;

        switch (option->type) {
        case OPT_BOOL:
                return *(const bool *)at == *(const bool *)bt;
        case OPT_CHOICE:
                return *(const unsigned *)at == *(const unsigned *)bt;
        case OPT_NUMBER:
                return memcmp(at, bt, sizeof(double)) == 0;
        case OPT_STRING:
        case OPT_SECRET:
                return strcmp(*(char *const *)at, *(char *const *)bt) == 0;
        case OPT_ENDPOINT:
                return ((const struct config_endpoint *)at)->off ==
                               ((const struct config_endpoint *)bt)->off &&
                       ((const struct config_endpoint *)at)->port ==
                               ((const struct config_endpoint *)bt)->port &&
                       strcmp(((const struct config_endpoint *)at)->host,
                              ((const struct config_endpoint *)bt)->host) == 0;
        case OPT_ENDPOINTS: {
                const struct config_endpoints *x = (const struct config_endpoints *)at,
                                              *y = (const struct config_endpoints *)bt;

                if (x->count != y->count)
                        return false;
                for (size_t i = 0; i < x->count; i++)
                        if (x->items[i].port != y->items[i].port ||
                            strcmp(x->items[i].host, y->items[i].host) != 0)
                                return false;
                return true;
        }
        case OPT_COUNT:
        case OPT_MILLIS:
        case OPT_BYTES:
                return *(const uint64_t *)at == *(const uint64_t *)bt;
        default:
                return true; /* other lists can all be reloaded */
        }
}

void config_restart_needed(const struct router_config *before, const struct router_config *after, char *ret,
                           size_t size)
{
        size_t count, used = 0;
        const struct option_row *table = options_table(&count);

        ret[0] = 0;
        for (size_t i = 0; i < count; i++) {
                if (!table[i].name || !(table[i].flags & O_RESTART) || field_equal(before, after, &table[i]))
                        continue;
                int n = snprintf(ret + used, size - used, "%s%s", used ? ", " : "", table[i].name);

                used += n < 0 || (size_t)n >= size - used ? 0 : (size_t)n;
        }
}

/* ---- kvroute check ---------------------------------------------------------------------------------- */

int config_check_main(int argc, char *const *argv)
{
        char *args[2] = {(char[]){"--config"}, argc > 0 ? argv[0] : NULL};
        struct config_strings errors = {0};
        struct config_input input = {2, args, environ, false, &errors};
        struct router_config *config;
        struct config_error err;
        bool json = argc == 2 && strcmp(argv[1], "--json") == 0;

        if (argc == 1 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
                printf("Usage: kvroute check FILE [--json]\n\nReads a configuration as kvroute serve "
                       "--config FILE would, "
                       "with the environment over it, and says all that\nis wrong with it. --json prints the "
                       "settings in "
                       "force. Exit status: 0 it is fine, 2 it is not.\n");
                return 0;
        }
        if (argc < 1 || argc > 2 || (argc == 2 && !json) || argv[0][0] == '-') {
                fprintf(stderr, "kvroute: usage: kvroute check FILE [--json]\n");
                return 2;
        }
        if (config_load(&input, &config, &err) != CONFIG_OK) {
                for (size_t i = 0; i < errors.count; i++)
                        fprintf(stderr, "kvroute: %s\n", errors.items[i]);
                config_strings_free(&errors);
                return 2;
        }
        for (size_t i = 0; i < config->warnings.count; i++)
                fprintf(stderr, "kvroute: warning: %s\n", config->warnings.items[i]);
        char *text = json ? config_to_json(config) : NULL;
        if (json)
                printf("%s\n", text ? text : "null");
        else
                printf("%s: ok, policy %s, %zu %s, %zu %s\n", argv[0], config->policy, config->replicas.count,
                       config->replicas.count == 1 ? "replica" : "replicas", config->workload_count,
                       config->workload_count == 1 ? "workload" : "workloads");
        free(text);
        config_free(config);
        return 0;
}
