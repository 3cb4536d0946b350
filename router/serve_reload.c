/* SPDX-License-Identifier: Apache-2.0 */
/* SIGHUP: the configuration anew, and the replicas that it names. */
#include "serve_int.h"

#include <stdlib.h>
#include <string.h>

extern char **environ;

bool serve_keep_config(struct server *server, struct router_config *config)
{
        struct kept_config *kept = calloc(1, sizeof *kept);

        if (!kept)
                return false;
        kept->config = config;
        kept->next = server->configs;
        server->configs = kept;
        return true;
}

void serve_say_warnings(struct server *server, const struct router_config *config)
{
        for (size_t i = 0; i < config->warnings.count; i++)
                log_say(server->proxy.log, LOG_WARN, NULL, "%s", config->warnings.items[i]);
}

bool serve_add_replica(struct server *server, const struct router_config *config,
                       const struct replica_spec *spec, struct kvr_error *err)
{
        return fleet_add(&server->fleet, spec, config_replica_auth(config, spec),
                         config_replica_key(config, spec), err) == KVR_OK;
}

static const struct replica_spec *find_spec(const struct router_config *config, const char *name)
{
        for (size_t i = 0; i < config->replicas.count; i++) {
                if (strcmp(config->replicas.items[i].name, name) == 0)
                        return &config->replicas.items[i];
        }
        return NULL;
}

static bool stays(const struct router_config *before, const struct replica_spec *old,
                  const struct router_config *after, const struct replica_spec *fresh)
{
        return replica_spec_equal(old, fresh) &&
               config_replica_auth(before, old) == config_replica_auth(after, fresh);
}

/* Replicas that the admin API added are not in either list and stay. */
static void reload_replicas(struct server *server, const struct router_config *before,
                            const struct router_config *after)
{
        for (size_t i = 0; i < before->replicas.count; i++) {
                const struct replica_spec *old = &before->replicas.items[i];
                const struct replica_spec *fresh = find_spec(after, old->name);

                if (!(fresh && stays(before, old, after, fresh)) && fleet_remove(&server->fleet, old->name))
                        log_say(server->proxy.log, LOG_INFO, NULL,
                                "replica %s: %s by the reload, its running answers end", old->name,
                                fresh ? "replaced" : "removed");
        }
        for (size_t i = 0; i < after->replicas.count; i++) {
                const struct replica_spec *fresh = &after->replicas.items[i];
                const struct replica_spec *old = find_spec(before, fresh->name);
                struct kvr_error err = {0};

                if (old && stays(before, old, after, fresh))
                        continue;
                if (serve_add_replica(server, after, fresh, &err))
                        log_say(server->proxy.log, LOG_INFO, NULL, "replica %s: added by the reload",
                                fresh->name);
                else
                        log_say(server->proxy.log, LOG_ERROR, NULL, "reload: %s", err.message);
        }
}

static void count_reload(struct server *server, const char *result)
{
        struct metrics *metrics = server->proxy.metrics;
        unsigned thread = server->proxy.worker_count;
        struct kvr_slice label = {result, strlen(result)};

        metrics_add(metrics, thread, metrics_series(metrics, thread, METRIC_CONFIG_RELOADS, &label), 1);
}

void serve_reload(struct server *server)
{
        const struct router_config *before = atomic_load(&server->proxy.config);
        struct config_input input = {server->argc, server->argv, environ, false};
        struct router_config *after = NULL;
        struct config_error config_error = {0};
        struct kvr_error err = {0};
        char restart[256];

        if (config_load(&input, &after, &config_error) != CONFIG_OK) {
                log_say(server->proxy.log, LOG_ERROR, NULL, "reload refused, the old configuration stays: %s",
                        config_error.message);
                count_reload(server, "error");
                return;
        }
        if (kvr_router_set_policy(server->router, after->policy, &err) != KVR_OK ||
            !serve_keep_config(server, after)) {
                log_say(server->proxy.log, LOG_ERROR, NULL, "reload refused, the old configuration stays: %s",
                        err.message);
                config_free(after);
                count_reload(server, "error");
                return;
        }
        config_restart_needed(before, after, restart, sizeof restart);
        if (restart[0])
                log_say(server->proxy.log, LOG_WARN, NULL,
                        "reload: these options need a restart to change: %s", restart);
        serve_say_warnings(server, after);
        reload_replicas(server, before, after);
        log_set_level(server->proxy.log, (enum log_level)after->log_level);
        atomic_store_explicit(&server->proxy.config, after, memory_order_release);
        control_set_config(server->control, after);
        serve_wake(server);
        count_reload(server, "ok");
        log_say(server->proxy.log, LOG_INFO, NULL,
                "configuration reloaded, policy %s, %zu replicas configured", after->policy,
                after->replicas.count);
}
