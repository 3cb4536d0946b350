/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

/*
 * One page holds every data-parallel rank, by label `engine`. What the figures mean: kv_cache_usage_perc
 * counts referenced blocks only, so an idle engine with a full cache says 0; cache_config_info has the
 * cache's shape as labels.
 */
static void read_cache_config(const struct prom_sample *s, struct engine_load *page)
{
        struct engine_rank_load *r = engine_load_rank(page, engine_rank_of(s, "engine"));
        double block = prom_label_number(s, "block_size");
        double unit = prom_label_number(s, "prefix_match_unit");
        double tokens = prom_label_number(s, "kv_cache_size_tokens");
        double blocks = prom_label_number(s, "num_gpu_blocks");
        struct kvr_slice caching = prom_label(s, "enable_prefix_caching");

        /* Blocks times size overstates hybrid models: only where the engine does not tell better. */
        if (tokens <= 0 && blocks > 0 && block > 0)
                tokens = blocks * block;
        if (tokens > 0)
                engine_figure_max(&r->capacity_tokens, tokens);
        if (block > 0)
                page->block_tokens = unit > 0 ? unit : block;
        if (prom_is(caching, "True"))
                page->prefix_caching = 1;
        else if (prom_is(caching, "False"))
                page->prefix_caching = 0;
}

static void read_sample(const struct prom_sample *s, struct engine_load *page)
{
        struct engine_rank_load *r;

        if (prom_is(s->name, "vllm:cache_config_info")) {
                read_cache_config(s, page);
                return;
        }
        if (prom_is(s->name, "vllm:num_requests_running")) {
                r = engine_load_rank(page, engine_rank_of(s, "engine"));
                engine_figure_add(&r->running, s->value);
        } else if (prom_is(s->name, "vllm:num_requests_waiting")) {
                r = engine_load_rank(page, engine_rank_of(s, "engine"));
                engine_figure_add(&r->waiting, s->value);
        } else if (prom_is(s->name, "vllm:kv_cache_usage_perc") ||
                   prom_is(s->name, "vllm:gpu_cache_usage_perc")) {
                r = engine_load_rank(page, engine_rank_of(s, "engine"));
                engine_figure_max(&r->kv_usage, s->value);
        } else if (prom_is(s->name, "vllm:engine_sleep_state")) {
                bool awake = prom_is(prom_label(s, "sleep_state"), "awake");

                if (awake)
                        engine_figure_max(&page->sleeping, 0);
                else if (s->value > 0)
                        page->sleeping = 1;
        }
}

static bool parse_load(const char *path, struct kvr_slice body, struct engine_load *page)
{
        struct prom_reader reader;
        struct prom_sample sample;

        (void)path;
        prom_init(&reader, body);
        while (prom_next(&reader, &sample))
                if (sample.name.len > 5 && sample.name.data[4] == ':')
                        read_sample(&sample, page);
        return true;
}

const struct engine_traits engine_row_vllm = {
        .kind = ENGINE_VLLM,
        .name = "vllm",
        .title = "vLLM",
        .cache = KVR_CACHE_BLOCKS,
        .block_tokens_default = 16,
        .idle_close_s = 5,
        .head_before_prefill = true,
        .rank_header = "X-data-parallel-rank",
        .report = ENGINE_REPORT_FLAG,
        .report_responses = ENGINE_REPORT_FLAG_ZERO,
        .health_paths = {"/health"},
        .polls = {{"/metrics", 0, 1, 8 * 1024 * 1024}},
        .parse_load = parse_load,
        .notes = "Start it with --enable-prompt-tokens-details, or its answers do not tell how much of a "
                 "prompt came "
                 "from the cache.",
};
