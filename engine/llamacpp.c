/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include <string.h>

static bool parse_metrics(struct kvr_slice body, struct engine_load *page)
{
        struct prom_reader reader;
        struct prom_sample s;

        prom_init(&reader, body);
        while (prom_next(&reader, &s)) {
                if (prom_is(s.name, "llamacpp:requests_processing"))
                        engine_figure_set(&page->sum.running, s.value);
                else if (prom_is(s.name, "llamacpp:requests_deferred"))
                        engine_figure_set(&page->sum.waiting, s.value);
                else if (prom_is(s.name, "llamacpp:kv_cache_usage_ratio"))
                        engine_figure_set(&page->sum.kv_usage, s.value);
        }
        return true;
}

/* Without --metrics: the slots at work. How many requests are deferred stays unknown. */
static bool parse_slots(struct kvr_slice body, struct engine_load *page)
{
        yyjson_doc *doc = engine_json_read(body);
        yyjson_val *root = yyjson_doc_get_root(doc), *slot;
        bool ok = yyjson_is_arr(root);
        double busy = 0;
        size_t i, n;

        yyjson_arr_foreach(root, i, n, slot)
        {
                busy += engine_json_bool(slot, "is_processing") > 0;
                engine_figure_max(&page->n_ctx, engine_json_number(slot, "n_ctx"));
        }
        if (ok && yyjson_arr_size(root) > 0) {
                page->sum.running = busy;
                page->slots = (double)yyjson_arr_size(root);
        }
        yyjson_doc_free(doc);
        return ok;
}

static bool parse_props(struct kvr_slice body, struct engine_load *page)
{
        yyjson_doc *doc = engine_json_read(body);
        yyjson_val *root = yyjson_doc_get_root(doc);
        double slots = engine_json_number(root, "total_slots");
        bool ok = yyjson_is_obj(root);

        if (slots >= 1) {
                page->slots = slots;
                page->max_running = slots; /* more than that are deferred inside */
        }
        engine_figure_set(&page->n_ctx,
                          engine_json_number(yyjson_obj_get(root, "default_generation_settings"), "n_ctx"));
        engine_figure_set(&page->sleeping, engine_json_bool(root, "is_sleeping"));
        yyjson_doc_free(doc);
        return ok;
}

static bool parse_load(const char *path, struct kvr_slice body, struct engine_load *page)
{
        if (strstr(path, "/props"))
                return parse_props(body, page);
        if (strstr(path, "/slots"))
                return parse_slots(body, page);
        return parse_metrics(body, page);
}

/* 503 has one meaning here: the model is still being loaded. */
static enum engine_health judge_health(const char *path, unsigned status, struct kvr_slice body)
{
        return status == 503 ? ENGINE_HEALTH_LOADING : engine_judge_default(path, status, body);
}

const struct engine_traits engine_row_llamacpp = {
        .kind = ENGINE_LLAMACPP,
        .name = "llamacpp",
        .title = "llama.cpp",
        .cache = KVR_CACHE_SLOTS,
        .block_tokens_default = 1,
        .idle_close_s = 5,
        .requests_per_connection = 100,
        .closes_after_stream = true,
        .prefill_survives_close = true,
        .head_before_prefill = true,
        .slots_default = 4,
        .report = ENGINE_REPORT_ALWAYS,
        .report_responses = ENGINE_REPORT_ALWAYS,
        .health_paths = {"/health"},
        .polls = {{"/metrics", 0, 1, 1024 * 1024},
                  {"/slots", 0, 1, 16 * 1024 * 1024},
                  {"/props", 1, 30, 1024 * 1024}},
        .judge_health = judge_health,
        .parse_load = parse_load,
        .notes = "Start it with --metrics, or only the number of busy slots is known. Each slot holds one "
                 "sequence and "
                 "slots share nothing, so a burst of one new prefix is computed once per slot.",
};
