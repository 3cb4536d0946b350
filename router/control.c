/* SPDX-License-Identifier: Apache-2.0 */
#include "control.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/detect.h"
#include "net/client.h"
#include "proto/text.h"

#define TICK_MS          20
#define MODELS_EVERY_MS  10000
#define SETUP_AGAIN_MS   1000
#define KNOW_WITHIN_MS   3000 /* a healthy replica gets requests after this long, known or not */
#define NOT_READY_MS     500  /* health interval while a replica is not ready, unless the option is shorter */
#define TRIAL_TIMEOUT_MS 10000 /* for one token */
#define POLL_TIMEOUT_MS  5000
#define GROUPS           4 /* groups of polled pages of one engine */
#define MS               ((uint64_t)1000000)

/* What a request is for; at most one of each per replica runs. */
enum job {
        JOB_SETUP,
        JOB_HEALTH,
        JOB_LOAD,
        JOB_TRIAL,
        JOB_COUNT,
};

struct probe;

struct probe_job {
        struct probe *probe;
        struct net_request *request; /* NULL: idle */
        uint64_t due_ms;
        struct text body;
        char server[64]; /* value of the Server field */
};

struct probe {
        struct control *control;
        struct target *target;
        struct probe *next;
        bool gone;
        struct probe_job jobs[JOB_COUNT];
        struct engine_detect detect;
        bool detected, models_read;
        uint64_t healthy_since_ms; /* of the first good answer */
        unsigned health_path;
        /* load */
        struct engine_load load;
        uint8_t page[GROUPS];    /* index into polls of the one in use, per group */
        bool group_dead[GROUPS]; /* no page of the group works there */
        unsigned group;          /* being polled in this round */
        unsigned round;
        uint64_t poll_start_ns;
        bool load_known;
        char load_error[96];
        bool suspect;                 /* the running trial decides whether it hangs */
        bool trial_by_chat;           /* it has no /v1/completions */
        struct kvr_replica_spec told; /* what the library was told last */
};

/* A removed replica whose answers still run. */
struct leaving {
        struct target *target;
        uint64_t due_ms; /* UINT64_MAX: no limit */
        struct leaving *next;
};

struct control {
        struct leaving *leaving;
        struct control_options options;
        const struct router_config *config;
        struct net_client *client;
        struct fleet_snapshot *fleet;
        struct probe *probes;
        uv_timer_t tick;
};

static const struct engine_traits *traits_of(const struct probe *probe)
{
        return engine_traits((enum engine_kind)atomic_load(&probe->target->engine));
}

static const char *name_of(const struct probe *probe)
{
        return probe->target->spec.name;
}

/* ---- requests
 * ----------------------------------------------------------------------------------------------------- */

static void job_done(void *ctx, enum net_request_error error, unsigned status, struct kvr_slice body);

static void job_head(void *ctx, const struct http1_head *head)
{
        struct probe_job *job = ctx;
        const struct http1_field *field = http1_find(head, "server");

        if (field)
                snprintf(job->server, sizeof job->server, "%.*s", (int)field->value.len, field->value.data);
}

static void job_send(struct probe *probe, enum job number, const char *method, const char *path,
                     struct kvr_slice body, uint32_t timeout_ms, size_t body_max)
{
        struct probe_job *job = &probe->jobs[number];
        const struct target *target = probe->target;
        char path_text[REPLICA_PREFIX_MAX + 128], headers[REPLICA_SECRET_MAX + 128];
        struct net_request_spec spec = {
                .addr = (const struct sockaddr *)&target->addr,
                .host = target->spec.authority,
                .method = method,
                .target = path_text,
                .headers = headers,
                .body = body,
                .timeout_ms = timeout_ms,
                .body_bytes_max = body_max,
                .on_head = job_head,
                .on_done = job_done,
                .ctx = job,
        };

        snprintf(path_text, sizeof path_text, "%s%s", target->spec.prefix, path);
        snprintf(headers, sizeof headers, "%s%s%s%s", target->key ? "Authorization: Bearer " : "",
                 target->key ? target->key : "", target->key ? "\r\n" : "",
                 body.len ? "Content-Type: application/json\r\n" : "");
        job->server[0] = '\0';
        job->request = net_request_send(probe->control->client, &spec);
}

/* ---- set-up: engine and models
 * ------------------------------------------------------------------------------------ */

static void tell_library(struct probe *probe)
{
        const struct engine_traits *traits = traits_of(probe);
        const struct replica_spec *wanted = &probe->target->spec;
        const struct engine_load *load = &probe->load;
        struct kvr_replica_spec spec = {
                .name = wanted->name,
                .cache = wanted->slots ? KVR_CACHE_SLOTS : traits->cache,
                .block_tokens = wanted->block_tokens     ? wanted->block_tokens
                                : load->block_tokens > 0 ? (uint32_t)load->block_tokens
                                                         : traits->block_tokens_default,
                .capacity_tokens = wanted->capacity_tokens         ? wanted->capacity_tokens
                                   : load->sum.capacity_tokens > 0 ? (uint64_t)load->sum.capacity_tokens
                                                                   : 0,
                .slots = wanted->slots     ? wanted->slots
                         : load->slots > 0 ? (uint32_t)load->slots
                                           : 0,
                .max_running = wanted->max_running,
        };

        if (memcmp(&spec, &probe->told, sizeof spec) == 0)
                return;
        probe->told = spec;
        kvr_replica_configure(probe->control->options.fleet->router, probe->target->id, &spec);
}

static void start_polling(struct probe *probe)
{
        memset(probe->page, 0, sizeof probe->page);
        memset(probe->group_dead, 0, sizeof probe->group_dead);
        for (unsigned i = ENGINE_POLLS_MAX; i-- > 0;) {
                const struct engine_poll *poll = &traits_of(probe)->polls[i];

                if (poll->path)
                        probe->page[poll->group % GROUPS] = (uint8_t)i;
        }
        probe->group = 0;
        probe->round = 0;
        probe->health_path = 0;
        probe->load_known = false;
        engine_load_init(&probe->load);
        probe->jobs[JOB_LOAD].due_ms = 0;
}

static void engine_found(struct probe *probe)
{
        struct target *target = probe->target;
        enum engine_kind kind = target->spec.engine != ENGINE_AUTO ? target->spec.engine : probe->detect.kind;
        bool news = !probe->detected || atomic_load(&target->engine) != (int)kind;

        probe->detected = true;
        atomic_store(&target->engine, (int)kind);
        if (!news)
                return;
        log_say(probe->control->options.log, LOG_INFO, NULL, "replica %s: engine %s%s%s", name_of(probe),
                engine_kind_name(kind), probe->detect.version[0] ? " " : "", probe->detect.version);
        start_polling(probe);
        tell_library(probe);
}

static void models_found(struct probe *probe, struct kvr_slice body)
{
        struct target *target = probe->target;
        struct engine_models *models = NULL;
        struct kvr_slice names[ENGINE_MODELS_MAX];
        struct kvr_error err = {0};

        if (target->spec.model_count) { /* the configuration names them, whatever the engine calls them */
                probe->models_read = true;
                return;
        }
        if (engine_models_parse(body, &models, &err) != KVR_OK) {
                log_say(probe->control->options.log, LOG_WARN, name_of(probe),
                        "replica %s: its model list cannot be read: %s", name_of(probe), err.message);
                return;
        }
        probe->models_read = true;
        for (size_t i = 0; i < models->count; i++)
                names[i] = models->items[i].id;
        if (kvr_replica_set_models(probe->control->options.fleet->router, target->id, names, models->count) !=
            KVR_OK)
                probe->models_read = false;
        pthread_mutex_lock(&target->lock);
        engine_models_free(target->models);
        target->models = models;
        pthread_mutex_unlock(&target->lock);
}

static void setup_next(struct probe *probe, uint64_t now_ms)
{
        struct probe_job *job = &probe->jobs[JOB_SETUP];
        const char *path = probe->detected ? "/v1/models" : engine_detect_next_path(&probe->detect);

        if (!probe->detected && probe->target->spec.engine != ENGINE_AUTO) {
                engine_found(probe);
                path = "/v1/models";
        }
        if (!path) { /* a detection that failed: begin anew */
                engine_detect_init(&probe->detect);
                path = engine_detect_next_path(&probe->detect);
        }
        job->due_ms = now_ms + SETUP_AGAIN_MS;
        job_send(probe, JOB_SETUP, "GET", path, (struct kvr_slice){NULL, 0}, POLL_TIMEOUT_MS,
                 ENGINE_MODELS_BODY_MAX);
}

static void setup_done(struct probe *probe, unsigned status, struct kvr_slice body, uint64_t now_ms)
{
        struct probe_job *job = &probe->jobs[JOB_SETUP];
        struct kvr_slice server = {job->server, strlen(job->server)};

        if (!probe->detected) {
                bool model_list = probe->detect.kind == ENGINE_AUTO && status == 200 &&
                                  strcmp(engine_detect_next_path(&probe->detect), "/v1/models") == 0;

                engine_detect_feed(&probe->detect, status, server, body);
                if (model_list)
                        models_found(probe, body);
                if (probe->detect.kind != ENGINE_AUTO) {
                        engine_found(probe);
                        job->due_ms = probe->models_read ? now_ms + MODELS_EVERY_MS : now_ms;
                } else if (!probe->detect.failed) {
                        job->due_ms = now_ms; /* the next path at once */
                }
                return;
        }
        if (status == 200)
                models_found(probe, body);
        else if (status && status != 503)
                probe->models_read = true; /* it has no list: any model may be asked for */
        job->due_ms = now_ms + (probe->models_read ? MODELS_EVERY_MS : SETUP_AGAIN_MS);
}

/* ---- health
 * ------------------------------------------------------------------------------------------------------- */

static void count_probe(struct probe *probe, const char *result)
{
        const struct control_options *options = &probe->control->options;
        struct kvr_slice labels[2] = {{name_of(probe), strlen(name_of(probe))}, {result, strlen(result)}};

        metrics_add(options->metrics, options->metrics_thread,
                    metrics_series(options->metrics, options->metrics_thread, METRIC_PROBES, labels), 1);
}

static void health_send(struct probe *probe, uint64_t now_ms)
{
        const struct router_config *config = probe->control->config;
        bool ready = atomic_load(&probe->target->shown_state) == KVR_READY;
        uint64_t interval = !ready && config->health_interval_ms > NOT_READY_MS ? NOT_READY_MS
                                                                                : config->health_interval_ms;
        const char *path = traits_of(probe)->health_paths[probe->health_path];

        probe->jobs[JOB_HEALTH].due_ms = now_ms + interval;
        job_send(probe, JOB_HEALTH, "GET", path, (struct kvr_slice){NULL, 0},
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

static void health_done(struct probe *probe, enum net_request_error error, unsigned status,
                        struct kvr_slice body, uint64_t now_ms)
{
        struct fleet *fleet = probe->control->options.fleet;
        const struct engine_traits *traits = traits_of(probe);
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
                if (is_known(probe, now_ms))
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
                "replica %s: health check of %s failed: %s", name_of(probe), probe->target->url, why);
}

/* ---- load
 * ---------------------------------------------------------------------------------------------------------
 */

static void report_load(struct probe *probe)
{
        struct kvr_load_report report = {
                .at_ns = probe->poll_start_ns,
                .running = probe->load.sum.running,
                .waiting = probe->load.sum.waiting,
                .kv_usage = probe->load.sum.kv_usage,
                .waiting_tokens = probe->load.sum.waiting_tokens,
        };

        kvr_replica_report(probe->control->options.fleet->router, probe->target->id, &report);
        if (probe->load.cache_report > 0)
                atomic_store(&probe->target->reports_cached, true);
        tell_library(probe);
}

/* The next page due in this round, NULL when the round is over. */
static const struct engine_poll *load_page(struct probe *probe)
{
        const struct engine_traits *traits = traits_of(probe);

        for (; probe->group < GROUPS; probe->group++) {
                const struct engine_poll *poll = &traits->polls[probe->page[probe->group]];

                if (!poll->path || poll->group != probe->group || probe->group_dead[probe->group])
                        continue;
                if (probe->round == 0 || (poll->every && probe->round % poll->every == 0))
                        return poll;
        }
        return NULL;
}

static void load_send(struct probe *probe, uint64_t now_ms)
{
        const struct engine_poll *poll = load_page(probe);

        if (!poll) {
                probe->group = 0;
                probe->round++;
                probe->jobs[JOB_LOAD].due_ms = now_ms + probe->control->config->metrics_interval_ms;
                return;
        }
        if (probe->group == 0)
                probe->poll_start_ns = uv_hrtime();
        job_send(probe, JOB_LOAD, "GET", poll->path, (struct kvr_slice){NULL, 0}, POLL_TIMEOUT_MS,
                 poll->body_bytes_max);
}

static void load_missing(struct probe *probe, const struct engine_poll *poll, unsigned status)
{
        const struct engine_traits *traits = traits_of(probe);

        for (unsigned i = probe->page[probe->group] + 1u; i < ENGINE_POLLS_MAX; i++) {
                if (traits->polls[i].path && traits->polls[i].group == poll->group) {
                        probe->page[probe->group] = (uint8_t)i;
                        return;
                }
        }
        probe->group_dead[probe->group] = true;
        if (poll->group == 0) {
                probe->load_known = false;
                snprintf(probe->load_error, sizeof probe->load_error, "no load page (%s answered %u)",
                         poll->path, status);
                log_say(probe->control->options.log, LOG_WARN, NULL,
                        "replica %s: %s answers %u, so its load is unknown and only what the router sent "
                        "itself counts. %s",
                        name_of(probe), poll->path, status, traits->notes ? traits->notes : "");
        }
}

static void load_done(struct probe *probe, enum net_request_error error, unsigned status,
                      struct kvr_slice body, uint64_t now_ms)
{
        const struct engine_traits *traits = traits_of(probe);
        const struct engine_poll *poll = &traits->polls[probe->page[probe->group % GROUPS]];

        probe->jobs[JOB_LOAD].due_ms = now_ms;
        if (error != NET_REQUEST_OK) {
                probe->load_known = false;
                snprintf(probe->load_error, sizeof probe->load_error, "%.60s: %s", poll->path,
                         net_request_error_text(error));
                probe->jobs[JOB_LOAD].due_ms = now_ms + probe->control->config->metrics_interval_ms;
                probe->group = 0;
                return;
        }
        if (status == 404 || status == 405 || status == 501) {
                load_missing(probe, poll, status);
                return;
        }
        if (status == 200 && engine_parse_load(traits->kind, poll->path, body, &probe->load)) {
                if (poll->group == 0) {
                        probe->load_known = true;
                        probe->load_error[0] = '\0';
                }
                report_load(probe);
        } else if (poll->group == 0) {
                probe->load_known = false;
                snprintf(probe->load_error, sizeof probe->load_error,
                         status == 200 ? "%.60s has no figures that are understood" : "%.60s answered %u",
                         poll->path, status);
                log_say(probe->control->options.log, LOG_WARN, name_of(probe), "replica %s: load unknown: %s",
                        name_of(probe), probe->load_error);
        }
        probe->group++;
}

/* ---- trials and stalls
 * -------------------------------------------------------------------------------------------- */

/*
 * One token from a replica whose requests failed or that seems to hang: only an answer proves that it
 * answers. A busy engine may be silent for long (a big prefill, a long answer that is not streamed), so
 * silence alone is a suspicion.
 */
static void trial_send(struct probe *probe)
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
                job_send(probe, JOB_TRIAL, "POST",
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

static void trial_done(struct probe *probe, enum net_request_error error, unsigned status)
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

static bool trial_due(struct probe *probe)
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

static void look_for_stall(struct probe *probe)
{
        if (probe->jobs[JOB_TRIAL].request || !seems_to_hang(probe))
                return;
        probe->suspect = true;
        trial_send(probe);
}

/* ---- the tick
 * ----------------------------------------------------------------------------------------------------- */

static void job_done(void *ctx, enum net_request_error error, unsigned status, struct kvr_slice body)
{
        struct probe_job *job = ctx;
        struct probe *probe = job->probe;
        uint64_t now_ms = net_now_ms(probe->control->options.loop);

        job->request = NULL;
        if (probe->gone)
                return;
        switch ((enum job)(job - probe->jobs)) {
        case JOB_SETUP:
                setup_done(probe, error == NET_REQUEST_OK || error == NET_REQUEST_TOO_LARGE ? status : 0,
                           body, now_ms);
                break;
        case JOB_HEALTH:
                health_done(probe, error, error == NET_REQUEST_OK ? status : 0, body, now_ms);
                break;
        case JOB_LOAD:
                load_done(probe, error, status, body, now_ms);
                break;
        case JOB_TRIAL:
                trial_done(probe, error, status);
                break;
        case JOB_COUNT:
                break;
        }
}

static bool idle_and_due(const struct probe *probe, enum job number, uint64_t now_ms)
{
        return !probe->jobs[number].request && now_ms >= probe->jobs[number].due_ms;
}

static void probe_step(struct probe *probe, uint64_t now_ms)
{
        bool down = atomic_load(&probe->target->shown_state) == KVR_DOWN;

        if (idle_and_due(probe, JOB_HEALTH, now_ms))
                health_send(probe, now_ms);
        if (idle_and_due(probe, JOB_SETUP, now_ms) && !down)
                setup_next(probe, now_ms);
        if (idle_and_due(probe, JOB_LOAD, now_ms) && probe->detected && !down &&
            probe->control->config->metrics_interval_ms)
                load_send(probe, now_ms);
        if (!probe->jobs[JOB_TRIAL].request && trial_due(probe))
                trial_send(probe);
        look_for_stall(probe);
}

static struct probe *probe_of(const struct control *control, const struct target *target)
{
        struct probe *probe = control->probes;

        while (probe && probe->target != target)
                probe = probe->next;
        return probe;
}

static void probe_add(struct control *control, struct target *target)
{
        struct probe *probe = calloc(1, sizeof *probe);

        if (!probe)
                return; /* the next tick tries again */
        probe->control = control;
        probe->target = target_ref(target);
        for (unsigned i = 0; i < JOB_COUNT; i++)
                probe->jobs[i].probe = probe;
        engine_detect_init(&probe->detect);
        engine_load_init(&probe->load);
        probe->next = control->probes;
        control->probes = probe;
}

static void probe_free(struct probe *probe)
{
        for (unsigned i = 0; i < JOB_COUNT; i++) {
                if (probe->jobs[i].request)
                        net_request_cancel(probe->jobs[i].request);
                text_free(&probe->jobs[i].body);
        }
        target_unref(probe->target);
        free(probe);
}

static void leaving_add(struct control *control, struct target *target)
{
        uint64_t limit_ms = control->config->drain_timeout_ms;
        struct leaving *leaving = calloc(1, sizeof *leaving);

        if (!leaving)
                return; /* then its answers end by themselves */
        leaving->target = target_ref(target);
        leaving->due_ms = limit_ms ? net_now_ms(control->options.loop) + limit_ms : UINT64_MAX;
        leaving->next = control->leaving;
        control->leaving = leaving;
}

static void leaving_step(struct control *control, uint64_t now_ms)
{
        for (struct leaving **at = &control->leaving; *at;) {
                struct leaving *leaving = *at;
                struct target *target = leaving->target;
                bool over = now_ms >= leaving->due_ms;

                if (!over && atomic_load(&target->streams)) {
                        at = &leaving->next;
                        continue;
                }
                if (atomic_load(&target->streams)) {
                        log_say(control->options.log, LOG_WARN, NULL,
                                "replica %s: the drain-timeout is over, its running answers are cut",
                                target->spec.name);
                        atomic_store(&target->abandoned, true);
                        control->options.on_leave(control->options.ctx);
                }
                *at = leaving->next;
                target_unref(target);
                free(leaving);
        }
}

static void follow_fleet(struct control *control)
{
        fleet_refresh(control->options.fleet, &control->fleet);
        for (size_t i = 0; i < control->fleet->count; i++) {
                if (!probe_of(control, control->fleet->targets[i]))
                        probe_add(control, control->fleet->targets[i]);
        }
        for (struct probe **at = &control->probes; *at;) {
                struct probe *probe = *at;

                if (!atomic_load(&probe->target->removed)) {
                        at = &probe->next;
                        continue;
                }
                *at = probe->next;
                leaving_add(control, probe->target);
                metrics_drop_replica(control->options.metrics,
                                     (struct kvr_slice){name_of(probe), strlen(name_of(probe))});
                probe_free(probe);
        }
}

static void on_tick(uv_timer_t *timer)
{
        struct control *control = timer->data;
        uint64_t now_ms = net_now_ms(control->options.loop);

        follow_fleet(control);
        leaving_step(control, now_ms);
        for (struct probe *probe = control->probes; probe; probe = probe->next)
                probe_step(probe, now_ms);
}

struct control *control_new(const struct control_options *options, const struct router_config *config)
{
        struct control *control = calloc(1, sizeof *control);

        if (!control)
                return NULL;
        control->options = *options;
        control->config = config;
        control->client = net_client_new(options->loop, 2, 3000);
        if (!control->client) {
                free(control);
                return NULL;
        }
        (void)uv_timer_init(&options->loop->uv, &control->tick);
        control->tick.data = control;
        (void)uv_timer_start(&control->tick, on_tick, 0, TICK_MS);
        return control;
}

void control_set_config(struct control *control, const struct router_config *config)
{
        control->config = config;
}

bool control_view(const struct control *control, const struct target *target, struct control_view *ret)
{
        const struct probe *probe = probe_of(control, target);

        if (!probe)
                return false;
        *ret = (struct control_view){
                .engine = (enum engine_kind)atomic_load(&target->engine),
                .detected = probe->detected,
                .load_known = probe->load_known,
        };
        snprintf(ret->version, sizeof ret->version, "%s", probe->detect.version);
        snprintf(ret->load_error, sizeof ret->load_error, "%s", probe->load_error);
        return true;
}

static void on_tick_closed(uv_handle_t *handle)
{
        free(handle->data);
}

void control_free(struct control *control)
{
        if (!control)
                return;
        while (control->leaving) {
                struct leaving *leaving = control->leaving;

                control->leaving = leaving->next;
                target_unref(leaving->target);
                free(leaving);
        }
        while (control->probes) {
                struct probe *probe = control->probes;

                control->probes = probe->next;
                probe_free(probe);
        }
        net_client_free(control->client);
        fleet_snapshot_unref(control->fleet);
        uv_close((uv_handle_t *)&control->tick, on_tick_closed);
}
