/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include <string.h>

/* /v1/loads: one entry per rank, the scheduler's own snapshot between steps. */
static void read_load_entry(yyjson_val *entry, struct engine_load *page)
{
        double rank = engine_json_number(entry, "dp_rank");
        double reqs = engine_json_number(entry, "num_reqs"),
               waiting = engine_json_number(entry, "num_waiting_reqs");
        struct engine_rank_load *r = engine_load_rank(page, rank >= 0 && rank < 65536 ? (int)rank : -1);

        engine_figure_add(&r->running, engine_json_number(entry, "num_running_reqs"));
        /* The older /get_load gives running and waiting together. */
        if (reqs >= 0 && waiting >= 0 && r->running < 0)
                r->running = reqs > waiting ? reqs - waiting : 0;
        engine_figure_add(&r->waiting, waiting);
        engine_figure_add(&r->waiting_tokens, engine_json_number(entry, "num_waiting_uncached_tokens"));
        engine_figure_add(&r->capacity_tokens, engine_json_number(entry, "max_total_num_tokens"));
        engine_figure_max(&r->kv_usage, engine_json_number(entry, "token_usage"));
        engine_figure_add(&page->max_running, engine_json_number(entry, "max_running_requests"));
        engine_figure_max(&page->measured_unix_s, engine_json_number(entry, "timestamp"));
}

static bool parse_loads(struct kvr_slice body, struct engine_load *page)
{
        yyjson_doc *doc = engine_json_read(body);
        yyjson_val *root = yyjson_doc_get_root(doc);
        yyjson_val *list = yyjson_is_arr(root) ? root : yyjson_obj_get(root, "loads");
        yyjson_val *entry;
        size_t i, n;

        yyjson_arr_foreach(list, i, n, entry) if (yyjson_is_obj(entry)) read_load_entry(entry, page);
        if (!list && yyjson_is_obj(root))
                read_load_entry(root, page);
        bool ok = root != NULL;
        yyjson_doc_free(doc);
        return ok;
}

/* Tensor and pipeline ranks of one data-parallel rank may each repeat its figures: take the greatest, do not
 * add. */
static void read_sample(const struct prom_sample *s, struct engine_load *page)
{
        struct kvr_slice name = {s->name.data + 7, s->name.len - 7};
        struct engine_rank_load *r = engine_load_rank(page, engine_rank_of(s, "dp_rank"));

        if (prom_is(name, "num_running_reqs"))
                engine_figure_max(&r->running, s->value);
        else if (prom_is(name, "num_queue_reqs"))
                engine_figure_max(&r->waiting, s->value);
        else if (prom_is(name, "token_usage"))
                engine_figure_max(&r->kv_usage, s->value);
        else if (prom_is(name, "max_total_num_tokens"))
                engine_figure_max(&r->capacity_tokens, s->value);
        else if (prom_is(name, "page_size") && s->value >= 1)
                engine_figure_set(&page->block_tokens, s->value);
        else if (prom_is(name, "context_len"))
                engine_figure_set(&page->n_ctx, s->value);
        else if (prom_is(name, "cache_config_info") && prom_label_number(s, "page_size") >= 1)
                engine_figure_set(&page->block_tokens, prom_label_number(s, "page_size"));
}

static bool is_load_sample(struct kvr_slice name)
{
        /* Only names read above may open an entry for a rank. */
        static const char *const names[] = {"num_running_reqs",     "num_queue_reqs", "token_usage",
                                            "max_total_num_tokens", "page_size",      "context_len",
                                            "cache_config_info"};

        if (name.len <= 7 || memcmp(name.data, "sglang:", 7) != 0)
                return false;
        name.data += 7;
        name.len -= 7;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
                if (prom_is(name, names[i]))
                        return true;
        return false;
}

static bool parse_metrics(struct kvr_slice body, struct engine_load *page)
{
        struct prom_reader reader;
        struct prom_sample sample;

        prom_init(&reader, body);
        while (prom_next(&reader, &sample))
                if (is_load_sample(sample.name))
                        read_sample(&sample, page);
        return true;
}

static bool parse_server_info(struct kvr_slice body, struct engine_load *page)
{
        yyjson_doc *doc = engine_json_read(body);
        yyjson_val *root = yyjson_doc_get_root(doc);

        if (!yyjson_is_obj(root)) {
                yyjson_doc_free(doc);
                return false;
        }
        double ranks = engine_json_number(root, "dp_size");
        double tokens = engine_json_number(root, "max_total_num_tokens");
        double running = engine_json_number(root, "max_running_requests");
        double off = engine_json_bool(root, "disable_radix_cache");

        /* Both are per rank here. */
        if (ranks < 1)
                ranks = 1;
        if (tokens > 0)
                page->sum.capacity_tokens = tokens * ranks;
        if (running > 0)
                page->max_running = running * ranks;
        if (engine_json_number(root, "page_size") >= 1)
                page->block_tokens = engine_json_number(root, "page_size");
        if (off >= 0)
                page->prefix_caching = off > 0 ? 0 : 1;
        engine_figure_set(&page->cache_report, engine_json_bool(root, "enable_cache_report"));
        engine_figure_set(&page->n_ctx, engine_json_number(root, "context_length"));
        yyjson_doc_free(doc);
        return true;
}

static bool parse_load(const char *path, struct kvr_slice body, struct engine_load *page)
{
        if (strstr(path, "server_info"))
                return parse_server_info(body, page);
        if (strstr(path, "/metrics"))
                return parse_metrics(body, page);
        return parse_loads(body, page);
}

/*
 * /health would run a token through the model and wait for the scheduler: seconds behind a long prefill.
 * /ready answers at once, and says 503 as soon as the process was told to end, while it still finishes its
 * requests.
 */
static enum engine_health judge_health(const char *path, unsigned status, struct kvr_slice body)
{
        if (status == 503 && engine_judge_default(path, status, body) != ENGINE_HEALTH_LOADING)
                return ENGINE_HEALTH_DRAINING;
        return engine_judge_default(path, status, body);
}

const struct engine_traits engine_row_sglang = {
        .kind = ENGINE_SGLANG,
        .name = "sglang",
        .title = "SGLang",
        .cache = KVR_CACHE_BLOCKS,
        .block_tokens_default = 1,
        .idle_close_s = 5,
        .any_model = true,
        .rank_header = "X-Data-Parallel-Rank",
        .report = ENGINE_REPORT_FLAG,
        .report_responses = ENGINE_REPORT_ALWAYS,
        .health_paths = {"/ready", "/model_info", "/get_model_info"},
        .polls = {{"/v1/loads", 0, 1, 1024 * 1024},
                  {"/metrics", 0, 1, 8 * 1024 * 1024},
                  {"/get_load", 0, 1, 1024 * 1024},
                  {"/server_info", 1, 0, 4 * 1024 * 1024},
                  {"/get_server_info", 1, 0, 4 * 1024 * 1024}},
        .judge_health = judge_health,
        .parse_load = parse_load,
        .notes = "Start it with --enable-cache-report, or its answers do not tell how much of a prompt came "
                 "from the "
                 "cache (only /v1/responses and /generate always do).",
};
