/* SPDX-License-Identifier: Apache-2.0 */
/* SIGHUP: the configuration anew, and the replicas that it names. */
#include "serve_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
                         config_replica_key(config, spec), false, err) == KVR_OK;
}

/* ---- the fleet that a configuration asks for ---- */

/* What a reload does to one replica of the new configuration. */
enum step {
        STEP_KEEP,    /* it is there as written */
        STEP_ADOPT,   /* the admin API has added the very same */
        STEP_ADD,     /* nobody has this name */
        STEP_REPLACE, /* it is there, written otherwise */
        STEP_REFUSE,  /* the admin API has added another one of this name */
};

static bool same_key(const char *a, const char *b)
{
        return a == b || (a && b && strcmp(a, b) == 0);
}

static enum step step_of(const struct fleet_snapshot *fleet, const struct router_config *config,
                         const struct replica_spec *spec)
{
        const struct target *there = fleet_snapshot_named(fleet, spec->name);
        bool same;

        if (!there)
                return STEP_ADD;
        same = replica_spec_equal(&there->spec, spec) && there->auth == config_replica_auth(config, spec) &&
               same_key(there->key, config_replica_key(config, spec));
        if (there->by_api)
                return same ? STEP_ADOPT : STEP_REFUSE;
        return same ? STEP_KEEP : STEP_REPLACE;
}

static bool is_configured(const struct router_config *config, const char *name)
{
        for (size_t i = 0; i < config->replicas.count; i++) {
                if (strcmp(config->replicas.items[i].name, name) == 0)
                        return true;
        }
        return false;
}

static bool refuse(struct kvr_error *err, enum kvr_status status, const char *name, const char *why)
{
        err->status = status;
        snprintf(err->message, sizeof err->message, "replica %s: %s", name, why);
        return false;
}

/* What can be told before anything is touched. */
static bool may_follow(const struct fleet_snapshot *fleet, const struct router_config *config,
                       struct kvr_error *err)
{
        size_t count = config->replicas.count;

        for (size_t i = 0; i < config->replicas.count; i++) {
                if (step_of(fleet, config, &config->replicas.items[i]) == STEP_REFUSE)
                        return refuse(err, KVR_E_EXISTS, config->replicas.items[i].name,
                                      "the admin API has added another one of this name; remove that one, or "
                                      "choose another name");
        }
        for (size_t i = 0; i < fleet->count; i++)
                count += fleet->targets[i]->by_api && !is_configured(config, fleet->targets[i]->spec.name);
        if (count > KVR_REPLICAS_MAX && config->replicas.count)
                return refuse(err, KVR_E_LIMIT, config->replicas.items[config->replicas.count - 1].name,
                              "too many, with those that the admin API has added");
        return true;
}

static void say_replica(struct server *server, const char *name, const char *what)
{
        log_say(server->proxy.log, LOG_INFO, NULL, "replica %s: %s", name, what);
}

/* New names first: they alone can fail for want of room, and can be taken back without a trace. */
static bool add_new(struct server *server, const struct fleet_snapshot *fleet,
                    const struct router_config *config, struct kvr_error *err)
{
        const struct config_replicas *list = &config->replicas;

        for (size_t i = 0; i < list->count; i++) {
                if (step_of(fleet, config, &list->items[i]) != STEP_ADD ||
                    serve_add_replica(server, config, &list->items[i], err))
                        continue;
                while (i-- > 0) {
                        if (step_of(fleet, config, &list->items[i]) == STEP_ADD)
                                (void)fleet_remove(&server->fleet, list->items[i].name);
                }
                return false;
        }
        return true;
}

/* The old one out and the new one in; if that fails, the old one comes back, with an empty cache. */
static bool replace(struct server *server, const struct router_config *config,
                    const struct replica_spec *spec, const struct target *old, struct kvr_error *err)
{
        struct kvr_error again = {0};

        if (!fleet_remove(&server->fleet, spec->name))
                return refuse(err, KVR_E_NOMEM, spec->name, "out of memory");
        if (serve_add_replica(server, config, spec, err))
                return true;
        if (fleet_add(&server->fleet, &old->spec, old->auth, old->key, false, &again) != KVR_OK)
                log_say(server->proxy.log, LOG_ERROR, NULL, "reload: %s", again.message);
        return false;
}

static bool follow_config(struct server *server, const struct router_config *config, struct kvr_error *err)
{
        struct fleet_snapshot *fleet = fleet_snapshot(&server->fleet);
        bool ok = may_follow(fleet, config, err) && add_new(server, fleet, config, err);

        for (size_t i = 0; ok && i < config->replicas.count; i++) {
                const struct replica_spec *spec = &config->replicas.items[i];
                struct target *there = fleet_snapshot_named(fleet, spec->name);

                switch (step_of(fleet, config, spec)) {
                case STEP_ADD:
                        say_replica(server, spec->name, "added by the reload");
                        break;
                case STEP_REPLACE:
                        ok = replace(server, config, spec, there, err);
                        if (ok)
                                say_replica(server, spec->name,
                                            "replaced by the reload, its running answers end");
                        break;
                case STEP_ADOPT:
                        there->by_api = false;
                        say_replica(server, spec->name,
                                    "added by the admin API, belongs to the configuration from now on");
                        break;
                default:
                        break;
                }
        }
        for (size_t i = 0; ok && i < fleet->count; i++) {
                const struct target *target = fleet->targets[i];

                if (!target->by_api && !is_configured(config, target->spec.name) &&
                    fleet_remove(&server->fleet, target->spec.name))
                        say_replica(server, target->spec.name,
                                    "removed by the reload, its running answers end");
        }
        fleet_snapshot_unref(fleet);
        return ok;
}

/* ---- the access log ---- */

/* The descriptor stays the same, so no worker writes to a closed one. */
static void reopen_access_log(struct server *server)
{
        int fd;

        if (server->proxy.access_fd < 0 || server->proxy.access_fd == STDOUT_FILENO)
                return;
        fd = serve_open_access_log(server->access_log);
        if (fd < 0 || dup3(fd, server->proxy.access_fd, O_CLOEXEC) < 0)
                log_say(server->proxy.log, LOG_ERROR, NULL,
                        "the access log %s cannot be opened again, the old file stays in use: %s",
                        server->access_log, strerror(errno));
        else
                log_say(server->proxy.log, LOG_INFO, NULL, "the access log was opened again");
        if (fd >= 0)
                close(fd);
}

/* ---- the reload ---- */

static void count_reload(struct server *server, const char *result)
{
        struct metrics *metrics = server->proxy.metrics;
        unsigned thread = server->proxy.worker_count;
        struct kvr_slice label = {result, strlen(result)};

        metrics_add(metrics, thread, metrics_series(metrics, thread, METRIC_CONFIG_RELOADS, &label), 1);
}

static void say_refused(struct server *server, const char *why)
{
        log_say(server->proxy.log, LOG_ERROR, NULL, "reload refused, the old configuration stays: %s", why);
        count_reload(server, "error");
}

/* Puts all of it in force, or nothing. */
static bool enforce(struct server *server, const struct router_config *before, struct router_config *after,
                    struct kvr_error *err)
{
        struct kept_config *kept;
        struct kvr_error unused;

        if (kvr_router_set_policy(server->router, after->policy, err) != KVR_OK)
                return false;
        if (serve_keep_config(server, after)) {
                if (follow_config(server, after, err))
                        return true;
                kept = server->configs;
                server->configs = kept->next;
                free(kept);
        } else {
                snprintf(err->message, sizeof err->message, "out of memory");
        }
        (void)!kvr_router_set_policy(server->router, before->policy, &unused);
        return false;
}

void serve_reload(struct server *server)
{
        const struct router_config *before = atomic_load(&server->proxy.config);
        struct config_input input = {server->argc, server->argv, environ, false, NULL};
        struct router_config *after = NULL;
        struct config_error config_error = {0};
        struct kvr_error err = {0};
        char restart[256];

        /* Whoever rotates logs must not depend on what the file says meanwhile. */
        reopen_access_log(server);
        if (server->proxy.capture)
                capture_reopen(server->proxy.capture);
        if (config_load(&input, &after, &config_error) != CONFIG_OK) {
                say_refused(server, config_error.message);
                return;
        }
        /* The policy depends on it, so half of such a change would be another policy without a word. */
        if (before->shadow != after->shadow) {
                say_refused(server, "shadow is switched by a restart only");
                config_free(after);
                return;
        }
        if (!enforce(server, before, after, &err)) {
                say_refused(server, err.message);
                config_free(after);
                return;
        }
        config_restart_needed(before, after, restart, sizeof restart);
        if (restart[0])
                log_say(server->proxy.log, LOG_WARN, NULL,
                        "reload: these options need a restart to change: %s", restart);
        serve_say_warnings(server, after);
        if (server->proxy.capture)
                capture_set_limits(server->proxy.capture, after->capture_bytes,
                                   (unsigned)after->capture_files);
        log_set_level(server->proxy.log, (enum log_level)after->log_level);
        atomic_store_explicit(&server->proxy.config, after, memory_order_release);
        control_set_config(server->control, after);
        serve_wake(server);
        count_reload(server, "ok");
        log_say(server->proxy.log, LOG_INFO, NULL, "configuration reloaded, policy %s, %zu %s configured",
                after->policy, after->replicas.count, after->replicas.count == 1 ? "replica" : "replicas");
}
