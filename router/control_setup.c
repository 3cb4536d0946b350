/* SPDX-License-Identifier: Apache-2.0 */
/* What a replica is: its engine and its models, and what the library is told of it. */
#include "control_int.h"

#include <kvroute/events.h>
#include <stdio.h>
#include <string.h>

#define MODELS_EVERY_MS 10000
#define SETUP_AGAIN_MS  1000

void probe_tell_library(struct probe *probe)
{
        const struct engine_traits *traits = probe_traits(probe);
        const struct replica_spec *wanted = &probe->target->spec;
        const struct engine_load *load = &probe->load;
        double capacity = probe_rank_load(probe)->capacity_tokens;
        struct kvr_replica_spec spec = {
                .name = wanted->name,
                .cache = wanted->slots ? KVR_CACHE_SLOTS : traits->cache,
                .block_tokens = wanted->block_tokens     ? wanted->block_tokens
                                : load->block_tokens > 0 ? (uint32_t)load->block_tokens
                                                         : traits->block_tokens_default,
                .capacity_tokens = wanted->capacity_tokens ? wanted->capacity_tokens
                                   : capacity > 0          ? (uint64_t)capacity
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
        shadow_replica_configure(probe->control->options.fleet->shadow, probe->target->id, &spec);
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
        log_say(probe->control->options.log, LOG_INFO, NULL, "replica %s: engine %s%s%s", probe_name(probe),
                engine_kind_name(kind), probe->detect.version[0] ? " " : "", probe->detect.version);
        probe_start_polling(probe);
        probe_tell_library(probe);
}

bool probe_serves_nothing(const struct probe *probe)
{
        /* An unknown engine may be a gateway that lists nothing and serves whatever it is asked for. */
        return probe->no_models[0] && probe->detected && probe_traits(probe)->kind != ENGINE_OPENAI;
}

/* An engine without models answers health checks, and refuses every request. */
static void no_models(struct probe *probe, const char *why)
{
        snprintf(probe->no_models, sizeof probe->no_models, "%s", why);
}

/* Its kind always has a list, so the URL is wrong, or something in front of it hides the list. */
static void no_list(struct probe *probe, unsigned status)
{
        const struct engine_traits *traits = probe_traits(probe);
        char why[sizeof probe->no_models];

        if (status != 404 || probe->target->spec.model_count || probe->target->models ||
            traits->kind == ENGINE_OPENAI || traits->kind == ENGINE_TGI)
                return;
        snprintf(why, sizeof why,
                 "%.40s/v1/models answered 404, where %.20s has its list of models: is the URL right?",
                 probe->target->spec.prefix, traits->title);
        no_models(probe, why);
}

/*
 * Another model behind a name that was known, or another version of the engine, may make other tokens of the
 * same text: what was learned of prompts for it is void.
 */
static void forget_tokens(struct probe *probe, const struct engine_models *before,
                          const struct engine_models *now)
{
        bool upgraded = strcmp(probe->models_version, probe->detect.version) != 0;

        memcpy(probe->models_version, probe->detect.version, sizeof probe->models_version);
        for (size_t i = 0; before && i < now->count; i++) {
                const struct engine_model *model = &now->items[i];
                const struct engine_model *old = engine_models_find(before, model->id);

                if (old && (upgraded || old->root.len != model->root.len ||
                            (old->root.len && memcmp(old->root.data, model->root.data, old->root.len) != 0)))
                        kvr_tokens_forget(probe->control->options.fleet->router, model->id);
        }
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
                log_say(probe->control->options.log, LOG_WARN, probe_name(probe),
                        "replica %s: its model list cannot be read: %s", probe_name(probe), err.message);
                return;
        }
        probe->models_read = true;
        if (models->count == 0)
                no_models(probe, "its model list (/v1/models) is empty");
        else
                probe->no_models[0] = '\0';
        for (size_t i = 0; i < models->count; i++)
                names[i] = models->items[i].id;
        if (kvr_replica_set_models(probe->control->options.fleet->router, target->id, names, models->count) !=
                    KVR_OK ||
            shadow_replica_set_models(probe->control->options.fleet->shadow, target->id, names,
                                      models->count) != KVR_OK)
                probe->models_read = false;
        forget_tokens(probe, target->models, models);
        pthread_mutex_lock(&target->lock);
        engine_models_free(target->models);
        target->models = models;
        pthread_mutex_unlock(&target->lock);
}

void probe_setup(struct probe *probe, uint64_t now_ms)
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
        probe_send(probe, JOB_SETUP, "GET", path, (struct kvr_slice){NULL, 0}, PROBE_POLL_TIMEOUT_MS,
                   ENGINE_MODELS_BODY_MAX);
}

void probe_setup_done(struct probe *probe, unsigned status, struct kvr_slice body, uint64_t now_ms)
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
                        job->due_ms = !probe->models_read   ? now_ms
                                      : probe->no_models[0] ? now_ms + SETUP_AGAIN_MS
                                                            : now_ms + MODELS_EVERY_MS;
                } else if (!probe->detect.failed) {
                        job->due_ms = now_ms; /* the next path at once */
                }
                return;
        }
        if (status == 200)
                models_found(probe, body);
        else if (status && status != 503)
                probe->models_read = true; /* it has no list: any model may be asked for */
        no_list(probe, status);
        job->due_ms =
                now_ms + (probe->models_read && !probe->no_models[0] ? MODELS_EVERY_MS : SETUP_AGAIN_MS);
}
