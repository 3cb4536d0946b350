/* SPDX-License-Identifier: Apache-2.0 */
#include "target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "config.h"
#include "proto/text.h"

bool fleet_init(struct fleet *fleet, struct kvr_router *router, const struct health_limits *limits)
{
        memset(fleet, 0, sizeof *fleet);
        fleet->router = router;
        fleet->limits = *limits;
        fleet->current = calloc(1, sizeof *fleet->current);
        if (!fleet->current)
                return false;
        atomic_init(&fleet->current->refs, 1);
        pthread_mutex_init(&fleet->lock, NULL);
        return true;
}

struct target *target_ref(struct target *target)
{
        atomic_fetch_add_explicit(&target->refs, 1, memory_order_relaxed);
        return target;
}

void target_unref(struct target *target)
{
        /* Release pairs with the acquire of whoever frees: all uses happen before. */
        if (atomic_fetch_sub_explicit(&target->refs, 1, memory_order_acq_rel) != 1)
                return;
        pthread_mutex_destroy(&target->lock);
        replica_spec_fini(&target->spec);
        engine_models_free(target->models);
        free(target->url);
        free(target->key);
        free(target);
}

void fleet_snapshot_unref(struct fleet_snapshot *snapshot)
{
        if (!snapshot || atomic_fetch_sub_explicit(&snapshot->refs, 1, memory_order_acq_rel) != 1)
                return;
        for (size_t i = 0; i < snapshot->count; i++)
                target_unref(snapshot->targets[i]);
        free(snapshot);
}

void fleet_fini(struct fleet *fleet)
{
        fleet_snapshot_unref(fleet->current);
        fleet->current = NULL;
        pthread_mutex_destroy(&fleet->lock);
}

struct fleet_snapshot *fleet_snapshot(struct fleet *fleet)
{
        struct fleet_snapshot *snapshot;

        pthread_mutex_lock(&fleet->lock);
        snapshot = fleet->current;
        atomic_fetch_add_explicit(&snapshot->refs, 1, memory_order_relaxed);
        pthread_mutex_unlock(&fleet->lock);
        return snapshot;
}

void fleet_refresh(struct fleet *fleet, struct fleet_snapshot **held)
{
        if (*held && (*held)->version == atomic_load_explicit(&fleet->version, memory_order_acquire))
                return;
        fleet_snapshot_unref(*held);
        *held = fleet_snapshot(fleet);
}

struct target *fleet_snapshot_find(const struct fleet_snapshot *snapshot, kvr_replica_id id)
{
        for (size_t i = 0; i < snapshot->count; i++) {
                if (snapshot->targets[i]->id == id)
                        return snapshot->targets[i];
        }
        return NULL;
}

struct target *fleet_snapshot_named(const struct fleet_snapshot *snapshot, const char *name)
{
        for (size_t i = 0; i < snapshot->count; i++) {
                if (strcmp(snapshot->targets[i]->spec.name, name) == 0)
                        return snapshot->targets[i];
        }
        return NULL;
}

/* Publishes a copy of the current set with `added` at its end and `removed` left out; either may be NULL. */
static bool publish(struct fleet *fleet, struct target *added, struct target *removed)
{
        struct fleet_snapshot *old = fleet->current;
        struct fleet_snapshot *new = calloc(1, sizeof *new + (old->count + 1) * sizeof *new->targets);

        if (!new)
                return false;
        atomic_init(&new->refs, 1);
        new->version = old->version + 1;
        for (size_t i = 0; i < old->count; i++) {
                if (old->targets[i] != removed)
                        new->targets[new->count++] = target_ref(old->targets[i]);
        }
        if (added)
                new->targets[new->count++] = target_ref(added);
        fleet->current = new;
        atomic_store_explicit(&fleet->version, new->version, memory_order_release);
        fleet_snapshot_unref(old);
        return true;
}

static enum kvr_status fail(struct kvr_error *err, enum kvr_status status, const char *name, const char *why)
{
        if (err) {
                memset(err, 0, sizeof *err);
                err->status = status;
                snprintf(err->message, sizeof err->message, "replica %s: %s", name, why);
        }
        return status;
}

/* The list that a replica's configuration gives, in the form that engines answer. */
static bool configured_models(struct target *target)
{
        struct text json = {0};
        enum kvr_status status;

        if (target->spec.model_count == 0)
                return true;
        text_adds(&json, "{\"object\":\"list\",\"data\":[");
        for (size_t i = 0; i < target->spec.model_count; i++) {
                text_adds(&json, i ? ",{\"id\":\"" : "{\"id\":\"");
                text_add_json(&json,
                              (struct kvr_slice){target->spec.models[i], strlen(target->spec.models[i])});
                text_adds(&json, "\",\"object\":\"model\",\"owned_by\":\"kvroute\"}");
        }
        text_adds(&json, "]}");
        status = json.failed ? KVR_E_NOMEM : engine_models_parse(text_slice(&json), &target->models, NULL);
        text_free(&json);
        return status == KVR_OK;
}

/* An address that is written out is there at once. */
static void begin_address(struct target *target)
{
        const struct replica_spec *spec = &target->spec;

        if (uv_ip4_addr(spec->host, spec->port, (struct sockaddr_in *)&target->addr) == 0 ||
            uv_ip6_addr(spec->host, spec->port, (struct sockaddr_in6 *)&target->addr) == 0) {
                target->has_addr = true;
                return;
        }
        memset(&target->addr, 0, sizeof target->addr);
        target->named = true;
        target->health.why = "its host name is being resolved";
}

static struct target *target_new(const struct replica_spec *spec, enum replica_auth auth, const char *key)
{
        struct target *target = calloc(1, sizeof *target);
        size_t url_size = strlen(spec->authority) + strlen(spec->prefix) + sizeof "http://";

        if (!target)
                return NULL;
        atomic_init(&target->refs, 1);
        pthread_mutex_init(&target->lock, NULL);
        health_init(&target->health);
        replica_spec_init(&target->spec);
        atomic_init(&target->engine, (int)spec->engine);
        atomic_init(&target->shown_state, KVR_STARTING);
        target->auth = auth;
        target->url = malloc(url_size);
        target->key = key ? strdup(key) : NULL;
        if (!replica_spec_copy(spec, &target->spec) || !target->url || (key && !target->key) ||
            !configured_models(target)) {
                target_unref(target);
                return NULL;
        }
        snprintf(target->url, url_size, "http://%s%s", spec->authority, spec->prefix);
        begin_address(target);
        return target;
}

static enum kvr_status register_replica(struct fleet *fleet, struct target *target, struct kvr_error *err)
{
        const struct replica_spec *spec = &target->spec;
        const struct engine_traits *traits = engine_traits(spec->engine);
        struct kvr_replica_spec lib = {
                .name = spec->name,
                .cache = spec->slots ? KVR_CACHE_SLOTS : traits->cache,
                .block_tokens = spec->block_tokens ? spec->block_tokens : traits->block_tokens_default,
                .capacity_tokens = spec->capacity_tokens,
                .slots = spec->slots,
                .max_running = spec->max_running,
        };
        struct kvr_slice models[REPLICA_MODELS_MAX];
        enum kvr_status status = kvr_replica_add(fleet->router, &lib, &target->id, err);

        if (status != KVR_OK)
                return status;
        status = shadow_replica_add(fleet->shadow, target->id, &lib, err);
        if (status != KVR_OK) {
                kvr_replica_remove(fleet->router, target->id);
                return fail(err, status, spec->name, "the shadow has no room for it");
        }
        if (spec->model_count == 0)
                return KVR_OK;
        for (size_t i = 0; i < spec->model_count; i++)
                models[i] = (struct kvr_slice){spec->models[i], strlen(spec->models[i])};
        status = kvr_replica_set_models(fleet->router, target->id, models, spec->model_count);
        if (status == KVR_OK)
                status = shadow_replica_set_models(fleet->shadow, target->id, models, spec->model_count);
        if (status != KVR_OK) {
                shadow_replica_remove(fleet->shadow, target->id);
                kvr_replica_remove(fleet->router, target->id);
                return fail(err, status, spec->name, "its models cannot be set");
        }
        return KVR_OK;
}

enum kvr_status fleet_add(struct fleet *fleet, const struct replica_spec *spec, enum replica_auth auth,
                          const char *key, bool by_api, struct kvr_error *err)
{
        struct target *target = target_new(spec, auth, key);
        enum kvr_status status;

        if (!target)
                return fail(err, KVR_E_NOMEM, spec->name, "out of memory");
        target->by_api = by_api;
        status = register_replica(fleet, target, err);
        if (status != KVR_OK) {
                target_unref(target);
                return status;
        }
        pthread_mutex_lock(&fleet->lock);
        if (!publish(fleet, target, NULL)) {
                shadow_replica_remove(fleet->shadow, target->id);
                kvr_replica_remove(fleet->router, target->id);
                status = fail(err, KVR_E_NOMEM, spec->name, "out of memory");
        }
        pthread_mutex_unlock(&fleet->lock);
        target_unref(target);
        return status;
}

bool target_is_called(const struct target *target, const char *name)
{
        return strcmp(target->spec.name, name) == 0 ||
               (target->spec.group[0] && strcmp(target->spec.group, name) == 0);
}

/* With the fleet's lock. False when out of memory. */
static bool remove_one(struct fleet *fleet, struct target *target)
{
        bool done;

        target_ref(target);
        done = publish(fleet, NULL, target);
        if (done) {
                atomic_store(&target->removed, true);
                kvr_replica_remove(fleet->router, target->id);
                shadow_replica_remove(fleet->shadow, target->id);
        }
        target_unref(target);
        return done;
}

bool fleet_remove(struct fleet *fleet, const char *name)
{
        bool done = false, more = true;

        pthread_mutex_lock(&fleet->lock);
        while (more) {
                struct target *found = NULL;

                for (size_t i = 0; i < fleet->current->count && !found; i++)
                        if (target_is_called(fleet->current->targets[i], name))
                                found = fleet->current->targets[i];
                more = found && remove_one(fleet, found);
                done |= more;
        }
        pthread_mutex_unlock(&fleet->lock);
        return done;
}

bool fleet_is_ready(const struct fleet_snapshot *snapshot)
{
        for (size_t i = 0; i < snapshot->count; i++) {
                int state = atomic_load(&snapshot->targets[i]->shown_state);

                if (state == KVR_READY || state == KVR_TRIAL)
                        return true;
        }
        return false;
}

enum kvr_status fleet_merge_models(const struct fleet_snapshot *snapshot, const struct router_config *config,
                                   char **ret_json, size_t *ret_len)
{
        const struct engine_models **lists = calloc(snapshot->count + 1, sizeof *lists);
        struct engine_alias *aliases = calloc(config->aliases.count + 1, sizeof *aliases);
        enum kvr_status status = KVR_E_NOMEM;

        if (lists && aliases) {
                for (size_t i = 0; i < config->aliases.count; i++) {
                        const struct config_alias *alias = &config->aliases.items[i];

                        aliases[i].name = (struct kvr_slice){alias->name, strlen(alias->name)};
                        aliases[i].target = (struct kvr_slice){alias->target, strlen(alias->target)};
                }
                /* The lists are read under their locks, always taken in the same order. */
                for (size_t i = 0; i < snapshot->count; i++) {
                        pthread_mutex_lock(&snapshot->targets[i]->lock);
                        lists[i] = snapshot->targets[i]->models;
                }
                status = engine_models_merge(lists, snapshot->count, aliases, config->aliases.count, ret_json,
                                             ret_len);
                for (size_t i = 0; i < snapshot->count; i++)
                        pthread_mutex_unlock(&snapshot->targets[i]->lock);
        }
        free(lists);
        free(aliases);
        return status;
}

static bool listed(const struct text *list, size_t start, struct kvr_slice id)
{
        struct text needle = {0};
        bool found;

        text_add(&needle, " ", 1);
        text_add_slice(&needle, id);
        text_add(&needle, ",", 1);
        found = needle.failed || memmem(list->data + start, list->len - start, needle.data, needle.len);
        text_free(&needle);
        return found;
}

bool fleet_has_adapter(const struct fleet_snapshot *snapshot, struct kvr_slice model)
{
        bool known = false, adapter = false;

        /* The first list that has it tells; the others say the same, or the fleet is at odds with itself. */
        for (size_t i = 0; i < snapshot->count && !known && model.len; i++) {
                struct target *target = snapshot->targets[i];
                const struct engine_model *found;

                pthread_mutex_lock(&target->lock);
                found = target->models ? engine_models_find(target->models, model) : NULL;
                known = found != NULL;
                adapter = found && found->parent.len > 0;
                pthread_mutex_unlock(&target->lock);
        }
        return adapter;
}

void fleet_list_models(const struct fleet_snapshot *snapshot, struct text *ret, size_t max)
{
        size_t start = ret->len, count = 0;

        for (size_t i = 0; i < snapshot->count && count < max; i++) {
                struct target *target = snapshot->targets[i];

                pthread_mutex_lock(&target->lock);
                for (size_t k = 0; target->models && k < target->models->count && count < max; k++) {
                        struct kvr_slice id = target->models->items[k].id;

                        if (ret->len > start && listed(ret, start, id))
                                continue;
                        text_add(ret, " ", 1);
                        text_add_slice(ret, id);
                        text_add(ret, ",", 1);
                        count++;
                }
                pthread_mutex_unlock(&target->lock);
        }
        if (count == 0)
                text_adds(ret, " none yet");
        else if (!ret->failed)
                ret->len--; /* the last comma */
}

/* Tells the library and the log what the health machine says now. Caller holds target->lock. */
static void apply_state(struct fleet *fleet, struct target *target)
{
        enum kvr_state to = health_state(&target->health);
        enum kvr_state from = (enum kvr_state)atomic_exchange(&target->shown_state, (int)to);

        atomic_store_explicit(&target->well, false, memory_order_relaxed);
        if (health_take_restart(&target->health)) {
                kvr_replica_forget(fleet->router, target->id);
                shadow_replica_forget(fleet->shadow, target->id);
                atomic_fetch_add(&target->restarts, 1);
                atomic_store(&target->reports_cached, false); /* the flags may be others now */
        }
        if (from == to)
                return;
        kvr_replica_set_state(fleet->router, target->id, to);
        shadow_replica_set_state(fleet->shadow, target->id, to);
        if (fleet->on_state)
                fleet->on_state(fleet->ctx, target, from, to, target->health.why);
}

void target_probe_ok(struct fleet *fleet, struct target *target)
{
        pthread_mutex_lock(&target->lock);
        health_probe_ok(&target->health, &fleet->limits);
        target->health_error[0] = '\0';
        apply_state(fleet, target);
        pthread_mutex_unlock(&target->lock);
}

void target_probe_failed(struct fleet *fleet, struct target *target, bool refused, bool starting,
                         const char *why, uint64_t now_ns)
{
        pthread_mutex_lock(&target->lock);
        health_probe_failed(&target->health, &fleet->limits, refused, starting,
                            atomic_load_explicit(&target->last_byte_ns, memory_order_relaxed), now_ns);
        snprintf(target->health_error, sizeof target->health_error, "%s", why);
        apply_state(fleet, target);
        pthread_mutex_unlock(&target->lock);
}

void target_traffic_ok(struct fleet *fleet, struct target *target)
{
        if (atomic_load_explicit(&target->well, memory_order_relaxed))
                return; /* nearly every request */
        pthread_mutex_lock(&target->lock);
        health_traffic_ok(&target->health);
        apply_state(fleet, target);
        atomic_store_explicit(&target->well, health_state(&target->health) == KVR_READY,
                              memory_order_relaxed);
        pthread_mutex_unlock(&target->lock);
}

void target_traffic_failed(struct fleet *fleet, struct target *target, enum health_failure failure,
                           uint64_t now_ns)
{
        pthread_mutex_lock(&target->lock);
        health_traffic_failed(&target->health, &fleet->limits, failure, now_ns);
        apply_state(fleet, target);
        pthread_mutex_unlock(&target->lock);
}

void target_tick(struct fleet *fleet, struct target *target, uint64_t now_ns)
{
        pthread_mutex_lock(&target->lock);
        health_tick(&target->health, now_ns);
        apply_state(fleet, target);
        pthread_mutex_unlock(&target->lock);
}

void target_drain(struct fleet *fleet, struct target *target, bool draining)
{
        pthread_mutex_lock(&target->lock);
        health_drain(&target->health, draining);
        apply_state(fleet, target);
        pthread_mutex_unlock(&target->lock);
}

void target_withhold(struct fleet *fleet, struct target *target, const char *why, const char *detail)
{
        pthread_mutex_lock(&target->lock);
        health_withhold(&target->health, why);
        snprintf(target->health_error, sizeof target->health_error, "%s", detail);
        apply_state(fleet, target);
        pthread_mutex_unlock(&target->lock);
}

/* ---- where it is ---- */

bool target_address(struct target *target, struct sockaddr_storage *ret, unsigned *ret_version)
{
        bool known;

        pthread_mutex_lock(&target->lock);
        known = target->has_addr;
        if (known) {
                *ret = target->addr;
                if (ret_version)
                        *ret_version = atomic_load_explicit(&target->addr_version, memory_order_relaxed);
        }
        pthread_mutex_unlock(&target->lock);
        return known;
}

bool target_set_address(struct fleet *fleet, struct target *target, const struct sockaddr_storage *addr)
{
        bool moved;

        pthread_mutex_lock(&target->lock);
        moved = !target->has_addr || memcmp(&target->addr, addr, sizeof *addr) != 0;
        target->resolve_error[0] = '\0';
        if (moved) {
                bool first = !target->has_addr;

                target->addr = *addr;
                target->has_addr = true;
                atomic_fetch_add_explicit(&target->addr_version, 1, memory_order_relaxed);
                target->health_error[0] = '\0';
                if (first) {
                        health_found(&target->health, "not probed yet");
                } else {
                        health_begin_anew(&target->health, "its address has changed");
                        kvr_replica_forget(fleet->router, target->id);
                        shadow_replica_forget(fleet->shadow, target->id);
                        atomic_fetch_add(&target->restarts, 1);
                }
                atomic_store(&target->reports_cached, false);
                apply_state(fleet, target);
        }
        pthread_mutex_unlock(&target->lock);
        return moved;
}

void target_unresolved(struct fleet *fleet, struct target *target, const char *error)
{
        pthread_mutex_lock(&target->lock);
        snprintf(target->resolve_error, sizeof target->resolve_error, "%s", error);
        if (!target->has_addr) {
                health_lost(&target->health, "its host name cannot be resolved");
                apply_state(fleet, target);
        }
        pthread_mutex_unlock(&target->lock);
}

bool target_request(const struct target *target, const char *path, const char *credentials, bool has_body,
                    struct text *ret_path, struct text *ret_headers)
{
        text_adds(ret_path, target->spec.prefix);
        text_adds(ret_path, path);
        if (credentials)
                text_adds(ret_headers, credentials);
        else if (target->key)
                text_addf(ret_headers, "Authorization: Bearer %s\r\n", target->key);
        if (has_body)
                text_adds(ret_headers, "Content-Type: application/json\r\n");
        (void)text_string(ret_path);
        (void)text_string(ret_headers);
        return !ret_path->failed && !ret_headers->failed;
}

void target_address_text(const struct sockaddr_storage *addr, char *ret, size_t size)
{
        char host[64] = "";

        if (addr->ss_family == AF_INET6) {
                uv_ip6_name((const struct sockaddr_in6 *)addr, host, sizeof host);
                snprintf(ret, size, "[%s]:%u", host, ntohs(((const struct sockaddr_in6 *)addr)->sin6_port));
        } else {
                uv_ip4_name((const struct sockaddr_in *)addr, host, sizeof host);
                snprintf(ret, size, "%s:%u", host, ntohs(((const struct sockaddr_in *)addr)->sin_port));
        }
}
