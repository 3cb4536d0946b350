/* SPDX-License-Identifier: Apache-2.0 */
/* GET, POST and DELETE of /kvroute/replicas, and the alarms. */
#include "admin_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

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

static void add_address(struct text *out, struct target *target)
{
        struct sockaddr_storage addr;
        char text[80];

        if (!target_address(target, &addr, NULL)) {
                text_adds(out, ",\"address\":null");
                return;
        }
        target_address_text(&addr, text, sizeof text);
        admin_add_string(out, "address", text);
}

static void add_health(struct text *out, struct target *target)
{
        pthread_mutex_lock(&target->lock);
        if (target->health.state != KVR_READY)
                admin_add_string(out, "why", target->health.why);
        if (target->health_error[0])
                admin_add_string(out, "error", target->health_error);
        if (target->resolve_error[0])
                admin_add_string(out, "resolve_error", target->resolve_error);
        pthread_mutex_unlock(&target->lock);
}

/* true, false, or null for a figure that is negative or none. */
static void add_flag(struct text *out, const char *key, double figure)
{
        text_addf(out, ",\"%s\":%s", key, figure > 0 ? "true" : figure >= 0 ? "false" : "null");
}

static void add_alarm_name(void *ctx, const struct control_alarm *alarm)
{
        struct text *out = ctx;

        text_addf(out, "%s\"%s\"", out->len && out->data[out->len - 1] == '[' ? "" : ",", alarm->name);
}

static void add_alarms(struct admin *admin, struct text *out, struct target *target)
{
        text_adds(out, ",\"alarms\":[");
        control_alarms(admin->options.control, target, add_alarm_name, out);
        text_add(out, "]", 1);
}

/* What its events do, or null where none are configured. */
static void add_events(struct text *out, const struct control_view *view, const struct kvr_replica_info *info,
                       uint64_t now)
{
        const struct events_view *events = &view->events;
        const struct engine_stream_counters *counters = &events->counters;

        if (!view->events_expected) {
                text_adds(out, ",\"events\":null");
                return;
        }
        text_addf(out, ",\"events\":{\"state\":\"%s\",\"trusted\":%s,\"connected\":%s",
                  view->events_followed ? engine_stream_state_name(events->state) : "off",
                  events->trusted ? "true" : "false", events->connected ? "true" : "false");
        admin_add_string(out, "why", view->events_text);
        admin_add_string(out, "canary", kvr_canary_name(info->canary));
        if (view->events_followed) {
                admin_add_string(out, "endpoint", events->source.events);
                admin_add_string(out, "replay", events->source.replay);
                admin_add_string(out, "topic", events->source.topic);
                admin_add_number(out, "rank", events->source.rank);
                admin_add_number(out, "seq", events->next ? (double)(events->next - 1) : NAN);
                admin_add_number(out, "heard_s",
                                 events->heard_ns && now >= events->heard_ns
                                         ? (double)(now - events->heard_ns) / 1e9
                                         : NAN);
                admin_add_number(out, "age_s", events->age_s < 0 ? 0 : events->age_s);
                admin_add_number(out, "block_tokens",
                                 events->block_tokens ? (double)events->block_tokens : NAN);
                admin_add_number(out, "blocks", (double)info->event_blocks);
                admin_add_number(out, "batches", (double)counters->batches);
                admin_add_number(out, "gaps", (double)counters->gaps);
                admin_add_number(out, "lost", (double)counters->lost);
                admin_add_number(out, "duplicates", (double)counters->duplicates);
                admin_add_number(out, "replays", (double)counters->replays);
                admin_add_number(out, "replays_failed", (double)counters->replays_failed);
                admin_add_number(out, "too_old", (double)counters->too_old);
                admin_add_number(out, "restarts", (double)counters->restarts);
                admin_add_number(out, "clears", (double)counters->clears);
                admin_add_number(out, "unheard", (double)counters->unheard);
                admin_add_number(out, "malformed", (double)events->malformed);
                admin_add_number(out, "unreadable", (double)events->unreadable);
                admin_add_number(out, "stored", (double)events->stored);
                admin_add_number(out, "removed", (double)events->removed);
                admin_add_number(out, "cleared", (double)events->cleared);
                admin_add_number(out, "orphans", (double)events->account.orphans);
                admin_add_number(out, "refused", (double)events->account.refused);
        }
        text_add(out, "}", 1);
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
        admin_add_string(out, "url", target->url);
        add_address(out, target);
        admin_add_string(out, "origin", target->by_api ? "api" : "config");
        admin_add_string(out, "engine", view.detected ? engine_kind_name(view.engine) : "auto");
        admin_add_string(out, "engine_version", view.version);
        add_models(out, target);
        admin_add_string(out, "state", kvr_state_name(info.state));
        add_health(out, target);
        admin_add_number(out, "in_flight", info.in_flight);
        admin_add_number(out, "prefilling", info.prefilling);
        admin_add_number(out, "uncached_tokens_booked", (double)info.uncached_tokens_booked);
        admin_add_number(out, "running", info.load.running);
        admin_add_number(out, "waiting", info.load.waiting);
        admin_add_number(out, "kv_usage", info.load.kv_usage);
        admin_add_number(out, "load_age_s",
                         info.load.at_ns && now >= info.load.at_ns ? (double)(now - info.load.at_ns) / 1e9
                                                                   : NAN);
        add_flag(out, "load_known", view.load_expected ? view.load_known : NAN);
        if (view.load_error[0])
                admin_add_string(out, "load_error", view.load_error);
        admin_add_number(out, "capacity_tokens", info.capacity_tokens ? (double)info.capacity_tokens : NAN);
        text_addf(out, ",\"capacity_learned\":%s", info.capacity_learned ? "true" : "false");
        admin_add_number(out, "cached_tokens", (double)info.cached_tokens);
        admin_add_string(out, "cache", info.cache == KVR_CACHE_SLOTS ? "slots" : "blocks");
        add_flag(out, "prefix_caching", view.detected ? view.prefix_caching : NAN);
        admin_add_string(out, "residency", info.residency == KVR_BY_EVENTS ? "events" : "history");
        add_events(out, &view, &info, now);
        admin_add_number(out, "prefill_tokens_per_second", info.prefill_tokens_per_second);
        admin_add_number(out, "prediction_error", info.prediction_error);
        admin_add_number(out, "trust", admin_trust(&info));
        admin_add_number(out, "resets", (double)info.resets);
        admin_add_number(out, "paused_s",
                         info.paused_until_ns > now ? (double)(info.paused_until_ns - now) / 1e9 : 0);
        admin_add_number(out, "decisions", (double)info.decisions);
        admin_add_number(out, "prompt_tokens", (double)info.prompt_tokens);
        admin_add_number(out, "predicted_tokens", (double)info.predicted_tokens);
        admin_add_number(out, "observed_tokens", (double)info.observed_tokens);
        admin_add_number(out, "overpredicted_tokens", (double)info.overpredicted_tokens);
        admin_add_number(out, "unobserved_tokens", (double)info.unobserved_tokens);
        admin_add_number(out, "unobserved_share",
                         info.prompt_tokens ? (double)info.unobserved_tokens / (double)info.prompt_tokens
                                            : NAN);
        add_alarms(admin, out, target);
        text_add(out, "}", 1);
}

void admin_list_replicas(struct admin *admin, struct net_exchange *exchange)
{
        struct fleet_snapshot *fleet = fleet_snapshot(admin->options.proxy->fleet);
        struct text json = {0};

        text_adds(&json, "[");
        for (size_t i = 0; i < fleet->count && !json.failed; i++)
                add_replica(admin, &json, fleet->targets[i]);
        text_adds(&json, "]");
        fleet_snapshot_unref(fleet);
        admin_respond_json(exchange, 200, &json);
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

/* All ranks of the URL, or none. */
static enum kvr_status add_ranks(struct proxy *proxy, const struct router_config *config,
                                 const struct replica_spec *spec, struct kvr_error *err)
{
        char names[REPLICA_RANKS_MAX][KVR_NAME_MAX];
        enum kvr_status status = KVR_OK;
        uint32_t added = 0;

        while (added < spec->ranks && status == KVR_OK) {
                struct replica_spec one;

                if (!replica_spec_rank(spec, added, &one, err->message, sizeof err->message)) {
                        status = KVR_E_ARGUMENT;
                        break;
                }
                status = fleet_add(proxy->fleet, &one, config_replica_auth(config, &one),
                                   config_replica_key(config, &one), true, err);
                memcpy(names[added], one.name, sizeof one.name);
                added += status == KVR_OK;
                replica_spec_fini(&one);
        }
        while (status != KVR_OK && added > 0)
                (void)fleet_remove(proxy->fleet, names[--added]);
        return status;
}

void admin_add_replica(struct admin *admin, struct net_exchange *exchange)
{
        struct proxy *proxy = admin->options.proxy;
        const struct router_config *config = atomic_load(&proxy->config);
        struct replica_spec spec;
        struct kvr_error err = {0};
        char why[256] = "";
        struct text json = {0};

        replica_spec_init(&spec);
        if (!read_spec(net_exchange_body(exchange), &spec, why, sizeof why)) {
                admin_respond_error(exchange, 400, "invalid_request", why);
        } else {
                enum kvr_status status = add_ranks(proxy, config, &spec, &err);

                if (status == KVR_OK) {
                        text_adds(&json, "{\"name\":\"");
                        text_add_json(&json, (struct kvr_slice){spec.name, strlen(spec.name)});
                        text_adds(&json, "\",\"state\":\"starting\"}");
                        log_say(proxy->log, LOG_INFO, NULL, "replica %s: added by the admin API", spec.name);
                        admin_respond_json(exchange, 201, &json);
                } else {
                        admin_respond_error(exchange,
                                            status == KVR_E_EXISTS  ? 409
                                            : status == KVR_E_NOMEM ? 503
                                                                    : 400,
                                            kvr_status_name(status), err.message);
                }
        }
        replica_spec_fini(&spec);
}

void admin_remove_replica(struct admin *admin, struct net_exchange *exchange, struct kvr_slice name)
{
        struct proxy *proxy = admin->options.proxy;
        char text[KVR_NAME_MAX];

        snprintf(text, sizeof text, "%.*s", (int)name.len, name.data);
        if (name.len >= sizeof text || !fleet_remove(proxy->fleet, text)) {
                admin_respond_error(exchange, 404, "not_found", "no replica has this name");
                return;
        }
        log_say(proxy->log, LOG_INFO, NULL, "replica %s: removed by the admin API, its running answers end",
                text);
        net_respond(exchange, 200, "application/json", "", KVR_SLICE("{\"removed\":true}"));
}

/* POST /kvroute/replicas/NAME/drain, and /undrain. */
void admin_drain_replica(struct admin *admin, struct net_exchange *exchange, struct kvr_slice name,
                         bool draining)
{
        struct fleet_snapshot *fleet = fleet_snapshot(admin->options.proxy->fleet);
        bool found = false;
        char text[KVR_NAME_MAX];

        snprintf(text, sizeof text, "%.*s", (int)name.len, name.data);
        for (size_t i = 0; i < fleet->count; i++) {
                struct target *target = fleet->targets[i];

                if (name.len < sizeof text && target_is_called(target, text)) {
                        target_drain(admin->options.proxy->fleet, target, draining);
                        found = true;
                }
        }
        fleet_snapshot_unref(fleet);
        if (found)
                net_respond(exchange, 200, "application/json", "",
                            draining ? KVR_SLICE("{\"draining\":true}") : KVR_SLICE("{\"draining\":false}"));
        else
                admin_respond_error(exchange, 404, "not_found", "no replica has this name");
}
