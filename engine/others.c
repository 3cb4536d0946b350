/* SPDX-License-Identifier: Apache-2.0 */
/* Engines whose row is short: TGI, LMDeploy, Ollama, and anything else that speaks OpenAI's API. */
#include "rows.h"

#include <string.h>

/* ---- TGI ---- */

static bool parse_tgi_info(struct kvr_slice body, struct engine_load *page)
{
        yyjson_doc *doc = engine_json_read(body);
        yyjson_val *root = yyjson_doc_get_root(doc);
        bool ok = yyjson_is_obj(root);
        double batch = engine_json_number(root, "max_batch_total_tokens");
        double requests = engine_json_number(root, "max_concurrent_requests");

        if (batch > 0)
                page->sum.capacity_tokens = batch;
        if (requests >= 1)
                page->max_running = requests; /* it answers 429 beyond */
        engine_figure_set(&page->n_ctx, engine_json_number(root, "max_total_tokens"));
        yyjson_doc_free(doc);
        return ok;
}

static bool parse_tgi(const char *path, struct kvr_slice body, struct engine_load *page)
{
        struct prom_reader reader;
        struct prom_sample s;

        if (strcmp(path, "/info") == 0)
                return parse_tgi_info(body, page);
        prom_init(&reader, body);
        while (prom_next(&reader, &s)) {
                if (prom_is(s.name, "tgi_queue_size"))
                        engine_figure_set(&page->sum.waiting, s.value);
                else if (prom_is(s.name, "tgi_batch_current_size"))
                        engine_figure_set(&page->sum.running, s.value);
        }
        return true;
}

const struct engine_traits engine_row_tgi = {
        .kind = ENGINE_TGI,
        .name = "tgi",
        .title = "TGI",
        .cache = KVR_CACHE_BLOCKS,
        .report = ENGINE_REPORT_NEVER,
        .report_responses = ENGINE_REPORT_NEVER,
        .health_paths = {"/health", "/info"},
        .polls = {{"/metrics", 0, 1, 4 * 1024 * 1024}, {"/info", 1, 0, 1024 * 1024}},
        .parse_load = parse_tgi,
        .notes = "It never tells how much of a prompt came from its cache: hits are predicted, not measured.",
};

/* ---- LMDeploy --------------------------------------------------------------------------------------- */

static bool parse_lmdeploy(const char *path, struct kvr_slice body, struct engine_load *page)
{
        struct prom_reader reader;
        struct prom_sample s;

        (void)path;
        prom_init(&reader, body);
        while (prom_next(&reader, &s)) {
                if (prom_is(s.name, "lmdeploy:num_requests_running"))
                        engine_figure_add(&page->sum.running, s.value);
                else if (prom_is(s.name, "lmdeploy:num_requests_waiting"))
                        engine_figure_add(&page->sum.waiting, s.value);
                else if (prom_is(s.name, "lmdeploy:gpu_cache_usage_perc"))
                        engine_figure_max(&page->sum.kv_usage, s.value);
        }
        return true;
}

const struct engine_traits engine_row_lmdeploy = {
        .kind = ENGINE_LMDEPLOY,
        .name = "lmdeploy",
        .title = "LMDeploy",
        .cache = KVR_CACHE_BLOCKS,
        .block_tokens_default = 64,
        .idle_close_s = 5,
        .report = ENGINE_REPORT_ALWAYS,
        .report_responses = ENGINE_REPORT_NEVER, /* a fixed 0 */
        .health_paths = {"/health"},
        .polls = {{"/metrics", 0, 1, 4 * 1024 * 1024}},
        .parse_load = parse_lmdeploy,
        .notes = "Its prefix cache is off by default: start it with --enable-prefix-caching, and with its "
                 "metrics on.",
};

/* ---- Ollama ----------------------------------------------------------------------------------------- */

const struct engine_traits engine_row_ollama = {
        .kind = ENGINE_OLLAMA,
        .name = "ollama",
        .title = "Ollama",
        .cache = KVR_CACHE_SLOTS,
        .block_tokens_default = 1,
        .slots_default = 1,
        .report = ENGINE_REPORT_NEVER, /* 0 or absent, whatever happened */
        .report_responses = ENGINE_REPORT_NEVER,
        .health_paths = {"/api/version", "/v1/models"},
        .notes = "It tells neither load nor cached tokens, and forgets its cache when a model is unloaded "
                 "(OLLAMA_KEEP_ALIVE). Set slots to OLLAMA_NUM_PARALLEL.",
};

/* ---- anything else ---------------------------------------------------------------------------------- */

const struct engine_traits engine_row_openai = {
        .kind = ENGINE_OPENAI,
        .name = "openai",
        .title = "OpenAI-compatible",
        .cache = KVR_CACHE_BLOCKS,
        .report = ENGINE_REPORT_GUESS,
        .report_responses = ENGINE_REPORT_GUESS,
        .health_paths = {"/v1/models", "/health"},
        .notes = "Nothing is known of its load: routing uses what it sent there itself. If it is one of the "
                 "engines "
                 "above behind a gateway, say so with the replica's engine key.",
};
