/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a replica may get requests: health checks, trials of those that failed, those that hang. */
#include "control_int.h"

#include <stdio.h>

#define KNOW_WITHIN_MS   3000 /* a healthy replica gets requests after this long, known or not */
#define NOT_READY_MS     500  /* health interval while a replica is not ready, unless the option is shorter */
#define TRIAL_TIMEOUT_MS 10000 /* for one token */
#define MS               ((uint64_t)1000000)

/* ---- health ---- */

static void count_probe(struct probe *probe, const char *result)
{
        const struct control_options *options = &probe->control->options;
        struct kvr_slice labels[2] = {{probe_name(probe), strlen(probe_name(probe))},
                                      {result, strlen(result)}};

        metrics_add(options->metrics, options->metrics_thread,
                    metrics_series(options->metrics, options->metrics_thread, METRIC_PROBES, labels), 1);
}

void probe_health(struct probe *probe, uint64_t now_ms)
{
        const struct router_config *config = probe->control->config;
        bool ready = atomic_load(&probe->target->shown_state) == KVR_READY;
        uint64_t interval = !ready && config->health_interval_ms > NOT_READY_MS ? NOT_READY_MS
                                                                                : config->health_interval_ms;
        const char *path = probe_traits(probe)->health_paths[probe->health_path];

        probe->jobs[JOB_HEALTH].due_ms = now_ms + interval;
        probe_send(probe, JOB_HEALTH, "GET", path, (struct kvr_slice){NULL, 0},
                   (uint32_t)config->health_timeout_ms, 65536);
}

/*
 * Before a replica gets its first request it is worth a moment to learn what it is: engine, models, size and
 * kind of its cache. Not for ever: a page that hangs must not keep it out.
 */
static bool is_known(struct probe *probe, uint64_t now_ms)
{
        bool polled =
                probe->round > 0 || probe->load_error[0] || probe->control->config->metrics_interval_ms == 0;

        if (atomic_load(&probe->target->shown_state) != KVR_STARTING)
                return true;
        if (!probe->healthy_since_ms)
                probe->healthy_since_ms = now_ms;
        return (probe->detected && probe->models_read && polled) ||
               now_ms - probe->healthy_since_ms >= KNOW_WITHIN_MS;
}

static void withhold(struct probe *probe)
{
        target_withhold(probe->control->options.fleet, probe->target, "it serves no model", probe->no_models);
        log_say(probe->control->options.log, LOG_WARN, probe->target->url, "replica %s: gets no requests: %s",
                probe_name(probe), probe->no_models);
}

void probe_health_done(struct probe *probe, enum net_request_error error, unsigned status,
                       struct kvr_slice body, uint64_t now_ms)
{
        struct fleet *fleet = probe->control->options.fleet;
        const struct engine_traits *traits = probe_traits(probe);
        enum engine_health health =
                engine_judge_health(traits->kind, traits->health_paths[probe->health_path], status, body);
        char why[128];

        if (health == ENGINE_HEALTH_NEXT && probe->health_path + 1 < ENGINE_HEALTH_PATHS_MAX &&
            traits->health_paths[probe->health_path + 1]) {
                probe->health_path++;
                probe->jobs[JOB_HEALTH].due_ms = now_ms;
                return;
        }
        if (health == ENGINE_HEALTH_READY) {
                count_probe(probe, "ready");
                if (probe_serves_nothing(probe))
                        withhold(probe);
                else if (is_known(probe, now_ms))
                        target_probe_ok(fleet, probe->target);
                else
                        probe->jobs[JOB_HEALTH].due_ms = now_ms; /* ask again with the next tick */
                return;
        }
        count_probe(probe, status == 0 ? "error" : engine_health_name(health));
        if (status == 0)
                snprintf(why, sizeof why, "%s: %s", traits->health_paths[probe->health_path],
                         error == NET_REQUEST_CONNECT ? "connection refused" : net_request_error_text(error));
        else
                snprintf(why, sizeof why, "%s answered %u", traits->health_paths[probe->health_path], status);
        target_probe_failed(fleet, probe->target, error == NET_REQUEST_CONNECT,
                            health == ENGINE_HEALTH_LOADING || health == ENGINE_HEALTH_DRAINING, why,
                            uv_hrtime());
        if (error == NET_REQUEST_CONNECT && probe->detected && probe->target->spec.engine == ENGINE_AUTO) {
                /* Another engine, or another version, may come back there. */
                probe->detected = probe->models_read = false;
                engine_detect_init(&probe->detect);
        }
        log_say(probe->control->options.log, LOG_WARN, probe->target->url,
                "replica %s: health check of %s failed: %s", probe_name(probe), probe->target->url, why);
}

/* ---- trials and stalls ---- */

/*
 * One token from a replica whose requests failed or that seems to hang: only an answer proves that it
 * answers. A busy engine may be silent for long (a big prefill, a long answer that is not streamed), so
 * silence alone is a suspicion.
 */
void probe_trial(struct probe *probe)
{
        struct probe_job *job = &probe->jobs[JOB_TRIAL];
        struct target *target = probe->target;
        uint64_t limit_ms = probe->control->config->stall_timeout_ms;
        uint32_t timeout_ms = limit_ms && limit_ms < TRIAL_TIMEOUT_MS ? (uint32_t)limit_ms : TRIAL_TIMEOUT_MS;

        text_clear(&job->body);
        text_adds(&job->body, "{\"model\":\"");
        pthread_mutex_lock(&target->lock);
        if (target->models && target->models->count)
                text_add_json(&job->body, target->models->items[0].id);
        else if (target->spec.model_count)
                text_add_json(&job->body,
                              (struct kvr_slice){target->spec.models[0], strlen(target->spec.models[0])});
        pthread_mutex_unlock(&target->lock);
        text_adds(&job->body,
                  probe->trial_by_chat
                          ? "\",\"messages\":[{\"role\":\"user\",\"content\":\"ping\"}],\"max_tokens\":1}"
                          : "\",\"prompt\":\"ping\",\"max_tokens\":1}");
        if (!job->body.failed)
                probe_send(probe, JOB_TRIAL, "POST",
                           probe->trial_by_chat ? "/v1/chat/completions" : "/v1/completions",
                           text_slice(&job->body), timeout_ms, 1 << 20);
}

static void stalled(struct probe *probe)
{
        struct target *target = probe->target;

        target_traffic_failed(probe->control->options.fleet, target, HEALTH_STALL, uv_hrtime());
        atomic_store(&target->stalled_ns, uv_hrtime());
        probe->control->options.on_leave(probe->control->options.ctx);
}

void probe_trial_done(struct probe *probe, enum net_request_error error, unsigned status)
{
        struct fleet *fleet = probe->control->options.fleet;
        struct target *target = probe->target;
        bool suspect = probe->suspect;

        probe->suspect = false;
        if (error == NET_REQUEST_OK && (status == 404 || status == 405 || status == 501)) {
                /* It lacks this API: ask by the other one next time; with neither, a client's request must
                 * do. */
                if (probe->trial_by_chat)
                        target_tick(fleet, target, uv_hrtime());
                probe->trial_by_chat = !probe->trial_by_chat;
        } else if (error == NET_REQUEST_OK && status < 500) {
                target_traffic_ok(fleet, target);
                atomic_store_explicit(&target->last_byte_ns, uv_hrtime(), memory_order_relaxed);
        } else if (suspect && error == NET_REQUEST_TIMEOUT) {
                stalled(probe);
        } else {
                target_traffic_failed(fleet, target,
                                      error == NET_REQUEST_OK        ? HEALTH_ERROR
                                      : error == NET_REQUEST_TIMEOUT ? HEALTH_STALL
                                      : error == NET_REQUEST_CONNECT ? HEALTH_REFUSED
                                                                     : HEALTH_RESET,
                                      uv_hrtime());
        }
}

bool probe_trial_due(struct probe *probe)
{
        struct target *target = probe->target;
        bool due;

        if (atomic_load(&target->shown_state) != KVR_DOWN)
                return false;
        pthread_mutex_lock(&target->lock);
        due = target->health.by_traffic && uv_hrtime() >= target->health.retry_at_ns;
        pthread_mutex_unlock(&target->lock);
        return due;
}

/* Requests wait there, and for the whole limit not a token came for any of them. */
static bool seems_to_hang(const struct probe *probe)
{
        const struct target *target = probe->target;
        uint64_t limit_ns = probe->control->config->stall_timeout_ms * MS, now = uv_hrtime();
        uint64_t since = atomic_load_explicit(&target->waiting_since_ns, memory_order_relaxed);
        uint64_t byte = atomic_load_explicit(&target->last_byte_ns, memory_order_relaxed);

        if (limit_ns == 0 || atomic_load_explicit(&target->waiting, memory_order_relaxed) == 0)
                return false;
        if (byte > since)
                since = byte;
        return now > since && now - since >= limit_ns;
}

void probe_look_for_stall(struct probe *probe)
{
        if (probe->jobs[JOB_TRIAL].request || !seems_to_hang(probe))
                return;
        probe->suspect = true;
        probe_trial(probe);
}
