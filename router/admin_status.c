/* SPDX-License-Identifier: Apache-2.0 */
/* GET /metrics, /kvroute/config, /kvroute/alarms: what the router knows of itself. */
#include "admin_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

double admin_trust(const struct kvr_replica_info *info)
{
        /* It begins at 1, which says nothing until a prediction was checked. */
        return isfinite(info->prediction_error) ? info->trust : NAN;
}

/* What predictions were worth there. Sums of the library: the whole value is set at each scrape. */
static void sums_of_replica(struct metrics *metrics, unsigned thread, const char *name,
                            const struct kvr_replica_info *info)
{
        set_gauge(metrics, thread, METRIC_REPLICA_TRUST, name, admin_trust(info));
        set_gauge(metrics, thread, METRIC_REPLICA_RESETS, name, (double)info->resets);
        set_gauge(metrics, thread, METRIC_REPLICA_PROMPT, name, (double)info->prompt_tokens);
        set_gauge(metrics, thread, METRIC_REPLICA_PREDICTED, name, (double)info->predicted_tokens);
        set_gauge(metrics, thread, METRIC_REPLICA_OVERPREDICTED, name, (double)info->overpredicted_tokens);
        set_gauge(metrics, thread, METRIC_REPLICA_OBSERVED, name, (double)info->observed_tokens);
        set_gauge(metrics, thread, METRIC_REPLICA_UNOBSERVED, name, (double)info->unobserved_tokens);
}

static void gauge_replica(struct admin *admin, struct target *target, uint64_t now)
{
        struct proxy *proxy = admin->options.proxy;
        struct metrics *metrics = proxy->metrics;
        unsigned thread = proxy->worker_count;
        struct kvr_replica_info info;
        struct control_view view;
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
        set_gauge(metrics, thread, METRIC_REPLICA_LOAD_KNOWN, name,
                  control_view(admin->options.control, target, &view) && view.load_expected ? view.load_known
                                                                                            : NAN);
        sums_of_replica(metrics, thread, name, &info);
}

/* What engines say they hold, and what is known of prompts in tokens. */
static void gauge_events(struct kvr_router *router, struct metrics *metrics, unsigned thread)
{
        struct kvr_events_info info;

        kvr_router_events_info(router, &info);
        set_gauge(metrics, thread, METRIC_EVENT_INDEX_BYTES, NULL, (double)info.bytes);
        set_gauge(metrics, thread, METRIC_EVENT_INDEX_BYTES_MAX, NULL, (double)info.bytes_max);
        set_gauge(metrics, thread, METRIC_EVENT_INDEX_BLOCKS, NULL, (double)info.blocks);
        set_gauge(metrics, thread, METRIC_EVENT_INDEX_HOLDERS, NULL, (double)info.holders);
        set_gauge(metrics, thread, METRIC_TOKEN_MAP_BYTES, NULL, (double)info.map_bytes);
        set_gauge(metrics, thread, METRIC_TOKEN_MAP_BYTES_MAX, NULL, (double)info.map_bytes_max);
        set_gauge(metrics, thread, METRIC_TOKEN_MAP_POINTS, NULL, (double)info.map_points);
        set_gauge(metrics, thread, METRIC_TOKEN_MAP_LOOKUPS, "hit", (double)info.map_hits);
        set_gauge(metrics, thread, METRIC_TOKEN_MAP_LOOKUPS, "miss", (double)info.map_misses);
}

void admin_metrics(struct admin *admin, struct net_exchange *exchange)
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
        set_gauge(metrics, thread, METRIC_INDEX_LOOKUPS, NULL, (double)index.lookups);
        set_gauge(metrics, thread, METRIC_INDEX_LOOKUPS_EMPTY, NULL, (double)index.lookups_without_match);
        set_gauge(metrics, thread, METRIC_INDEX_PARTIAL, NULL, (double)index.partial);
        gauge_events(proxy->router, metrics, thread);
        set_gauge(metrics, thread, METRIC_QUEUE_REQUESTS, NULL, (double)atomic_load(&proxy->queued));
        set_gauge(metrics, thread, METRIC_CONNECTIONS, NULL, (double)atomic_load(&proxy->connections));
        set_gauge(metrics, thread, METRIC_BODY_BYTES, NULL, (double)atomic_load(&proxy->body_bytes));
        admin_shadow_metrics(proxy);
        if (proxy->capture) {
                struct capture_counts counts;

                capture_counts(proxy->capture, &counts);
                set_gauge(metrics, thread, METRIC_CAPTURE_LINES, NULL, (double)counts.lines);
                set_gauge(metrics, thread, METRIC_CAPTURE_DROPPED, NULL, (double)counts.dropped);
        }
        admin_ledger_metrics(proxy);
        text = metrics_write(metrics, &len);
        if (text)
                net_respond(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", "",
                            (struct kvr_slice){text, len});
        else
                admin_respond_error(exchange, 503, "no_memory", "out of memory");
        free(text);
}

void admin_config(struct admin *admin, struct net_exchange *exchange)
{
        char *json = config_to_json(atomic_load(&admin->options.proxy->config));

        if (json)
                net_respond(exchange, 200, "application/json", "", (struct kvr_slice){json, strlen(json)});
        else
                admin_respond_error(exchange, 503, "no_memory", "out of memory");
        free(json);
}

static void add_alarm(void *ctx, const struct control_alarm *alarm)
{
        struct text *out = ctx;
        uint64_t now = uv_hrtime();

        text_addf(out, "%s{\"alarm\":\"%s\"", out->len && out->data[out->len - 1] == '[' ? "" : ",",
                  alarm->name);
        if (alarm->replica)
                admin_add_string(out, "replica", alarm->replica);
        else
                text_adds(out, ",\"replica\":null");
        admin_add_number(out, "for_s", now > alarm->since_ns ? (double)(now - alarm->since_ns) / 1e9 : 0);
        admin_add_string(out, "text", alarm->text);
        text_add(out, "}", 1);
}

void admin_alarms(struct admin *admin, struct net_exchange *exchange)
{
        struct text json = {0};

        text_adds(&json, "{\"alarms\":[");
        control_alarms(admin->options.control, NULL, add_alarm, &json);
        text_adds(&json, "]}");
        admin_respond_json(exchange, 200, &json);
}
