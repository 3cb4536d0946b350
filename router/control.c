/* SPDX-License-Identifier: Apache-2.0 */
#include "control_int.h"

#include "adapters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK_MS 20

/* ---- requests ---- */

static void job_done(void *ctx, enum net_request_error error, unsigned status, struct kvr_slice body);

static void job_head(void *ctx, const struct http1_head *head)
{
        struct probe_job *job = ctx;
        const struct http1_field *field = http1_find(head, "server");

        if (field)
                snprintf(job->server, sizeof job->server, "%.*s", (int)field->value.len, field->value.data);
}

void probe_send(struct probe *probe, enum job number, const char *method, const char *path,
                struct kvr_slice body, uint32_t timeout_ms, size_t body_max)
{
        struct probe_job *job = &probe->jobs[number];
        struct target *target = probe->target;
        struct text lines = {0}, headers = {0};
        struct sockaddr_storage addr;
        struct net_request_spec spec = {
                .addr = (const struct sockaddr *)&addr,
                .host = target->spec.authority,
                .method = method,
                .body = body,
                .timeout_ms = timeout_ms,
                .body_bytes_max = body_max,
                .on_head = job_head,
                .on_done = job_done,
                .ctx = job,
        };

        if (!target_address(target, &addr, NULL))
                return;
        job->server[0] = '\0';
        if (target_request(target, path, NULL, body.len > 0, &lines, &headers)) {
                spec.target = text_string(&lines);
                spec.headers = text_string(&headers);
                job->request = net_request_send(probe->control->client, &spec);
        }
        text_free(&lines);
        text_free(&headers);
}

/* ---- the tick ---- */

static void job_done(void *ctx, enum net_request_error error, unsigned status, struct kvr_slice body)
{
        struct probe_job *job = ctx;
        struct probe *probe = job->probe;
        uint64_t now_ms = net_now_ms(probe->control->options.loop);

        job->request = NULL;
        if (probe->gone)
                return;
        if (error == NET_REQUEST_CONNECT || (error == NET_REQUEST_TIMEOUT && status == 0))
                atomic_store(&probe->target->resolve_wanted, true);
        switch ((enum job)(job - probe->jobs)) {
        case JOB_SETUP:
                probe_setup_done(probe,
                                 error == NET_REQUEST_OK || error == NET_REQUEST_TOO_LARGE ? status : 0, body,
                                 now_ms);
                break;
        case JOB_HEALTH:
                probe_health_done(probe, error, error == NET_REQUEST_OK ? status : 0, body, now_ms);
                break;
        case JOB_LOAD:
                probe_load_done(probe, error, status, body, now_ms);
                break;
        case JOB_TRIAL:
                probe_trial_done(probe, error, status);
                break;
        case JOB_EVENTS:
                probe_events_done(probe, error, status, body, now_ms);
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

        if (probe->control->options.imagined) {
                target_probe_ok(probe->control->options.fleet, probe->target);
                return;
        }
        if (probe->target->named && !probe->resolved)
                return; /* there is nobody to ask */
        if (idle_and_due(probe, JOB_HEALTH, now_ms))
                probe_health(probe, now_ms);
        if (idle_and_due(probe, JOB_SETUP, now_ms) && (!down || probe_serves_nothing(probe)))
                probe_setup(probe, now_ms);
        if (idle_and_due(probe, JOB_LOAD, now_ms) && probe->detected && !down &&
            probe->control->config->metrics_interval_ms)
                probe_load(probe, now_ms);
        probe_events(probe, now_ms);
        if (!probe->jobs[JOB_TRIAL].request && probe_trial_due(probe))
                probe_trial(probe);
        probe_look_for_stall(probe);
}

void probe_begin_anew(struct probe *probe)
{
        for (unsigned i = 0; i < JOB_COUNT; i++) {
                struct probe_job *job = &probe->jobs[i];

                if (job->request)
                        net_request_cancel(job->request);
                job->request = NULL;
                job->due_ms = 0;
        }
        probe->detected = probe->models_read = probe->suspect = false;
        probe->healthy_since_ms = 0;
        probe->load_error[0] = probe->no_models[0] = '\0';
        engine_detect_init(&probe->detect);
        probe_start_polling(probe);
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
        probe_drop_lookup(probe);
        probe_events_gone(probe);
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
                control_watch_drop(probe);
                metrics_drop_replica(control->options.metrics,
                                     (struct kvr_slice){probe_name(probe), strlen(probe_name(probe))});
                probe_free(probe);
        }
}

static void on_tick(uv_timer_t *timer)
{
        struct control *control = timer->data;
        uint64_t now_ms = net_now_ms(control->options.loop);

        follow_fleet(control);
        leaving_step(control, now_ms);
        if (!control->options.imagined)
                control_resolve(control, now_ms);
        for (struct probe *probe = control->probes; probe; probe = probe->next)
                probe_step(probe, now_ms);
        if (control->adapters && adapters_step(control->adapters, now_ms))
                for (struct probe *probe = control->probes; probe; probe = probe->next)
                        probe->jobs[JOB_SETUP].due_ms = 0; /* their lists of models have changed */
        if (control->options.tokens)
                tokens_step(control->options.tokens, now_ms);
        control_watch(control, now_ms);
}

struct control *control_new(const struct control_options *options, const struct router_config *config)
{
        struct control *control = calloc(1, sizeof *control);

        if (!control)
                return NULL;
        control->options = *options;
        control->config = config;
        control->client = net_client_new(options->loop, 2, 3000);
        if (control->client && options->adapters)
                control->adapters = adapters_side_new(options->adapters, options);
        if (!control->client || (options->adapters && !control->adapters)) {
                net_client_free(control->client);
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

unsigned control_running(const struct control *control)
{
        unsigned count = 0;

        for (const struct probe *probe = control->probes; probe; probe = probe->next)
                count += atomic_load(&probe->target->streams);
        for (const struct leaving *leaving = control->leaving; leaving; leaving = leaving->next)
                count += atomic_load(&leaving->target->streams);
        return count;
}

bool control_view(const struct control *control, const struct target *target, struct control_view *ret)
{
        const struct probe *probe = probe_of(control, target);

        if (!probe)
                return false;
        *ret = (struct control_view){
                .engine = (enum engine_kind)atomic_load(&target->engine),
                .detected = probe->detected,
                .load_expected = probe_load_expected(probe),
                .load_known = probe->load_known,
                .prefix_caching = probe->load.prefix_caching,
        };
        snprintf(ret->version, sizeof ret->version, "%s", probe->detect.version);
        snprintf(ret->load_error, sizeof ret->load_error, "%s", probe->load_error);
        ret->events_expected = probe_events_expected(probe);
        ret->events_followed = probe_events_view(probe, &ret->events);
        probe_events_text(probe, ret->events_text, sizeof ret->events_text);
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
        control_drop_lookups(control);
        adapters_side_free(control->adapters);
        net_client_free(control->client);
        fleet_snapshot_unref(control->fleet);
        uv_close((uv_handle_t *)&control->tick, on_tick_closed);
}
