/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

static bool parse_prometheus(struct kvr_slice body, struct engine_load *page)
{
        struct prom_reader reader;
        struct prom_sample s;
        double blocks = -1;

        prom_init(&reader, body);
        while (prom_next(&reader, &s)) {
                if (prom_is(s.name, "trtllm_num_requests_running"))
                        engine_figure_add(&page->sum.running, s.value);
                else if (prom_is(s.name, "trtllm_num_requests_waiting"))
                        engine_figure_add(&page->sum.waiting, s.value);
                else if (prom_is(s.name, "trtllm_kv_cache_utilization"))
                        engine_figure_max(&page->sum.kv_usage, s.value);
                else if (prom_is(s.name, "trtllm_kv_cache_max_blocks"))
                        engine_figure_max(&blocks, s.value);
                else if (prom_is(s.name, "trtllm_kv_cache_tokens_per_block") && s.value >= 1)
                        engine_figure_set(&page->block_tokens, s.value);
                else if (prom_is(s.name, "trtllm_max_num_active_requests") && s.value >= 1)
                        engine_figure_set(&page->max_running, s.value);
        }
        if (blocks > 0 && page->block_tokens > 0)
                page->sum.capacity_tokens = blocks * page->block_tokens;
        return true;
}

/* /metrics: the iterations since somebody last read it. The newest counts; an empty list tells nothing. */
static bool parse_iterations(struct kvr_slice body, struct engine_load *page)
{
        yyjson_doc *doc = engine_json_read(body);
        yyjson_val *last = yyjson_arr_get_last(yyjson_doc_get_root(doc));
        yyjson_val *kv = yyjson_obj_get(last, "kvCacheStats");
        double blocks = engine_json_number(kv, "maxNumBlocks"),
               used = engine_json_number(kv, "usedNumBlocks");
        bool ok = last != NULL;

        engine_figure_set(&page->sum.running, engine_json_number(last, "numActiveRequests"));
        engine_figure_set(&page->sum.waiting, engine_json_number(last, "numQueuedRequests"));
        if (engine_json_number(last, "maxNumActiveRequests") >= 1)
                page->max_running = engine_json_number(last, "maxNumActiveRequests");
        if (engine_json_number(kv, "tokensPerBlock") >= 1)
                page->block_tokens = engine_json_number(kv, "tokensPerBlock");
        if (blocks > 0) {
                if (used >= 0)
                        page->sum.kv_usage = used / blocks;
                if (page->block_tokens > 0)
                        page->sum.capacity_tokens = blocks * page->block_tokens;
        }
        yyjson_doc_free(doc);
        return ok;
}

static bool parse_load(const char *path, struct kvr_slice body, struct engine_load *page)
{
        (void)path;
        /* The same path is Prometheus text behind some gateways: go by the first byte. */
        size_t i = 0;
        while (i < body.len && (body.data[i] == ' ' || body.data[i] == '\n' || body.data[i] == '\r'))
                i++;
        if (i < body.len && body.data[i] == '[')
                return parse_iterations(body, page);
        return parse_prometheus(body, page);
}

const struct engine_traits engine_row_trtllm = {
        .kind = ENGINE_TRTLLM,
        .name = "trtllm",
        .title = "TensorRT-LLM",
        .cache = KVR_CACHE_BLOCKS,
        .block_tokens_default = 1, /* blocks of 32, but a block is reused in part too */
        .idle_close_s = 5,
        .rejects_unknown_fields = true,
        .report = ENGINE_REPORT_ALWAYS,
        .report_responses = ENGINE_REPORT_GUESS,
        .health_paths = {"/health"},
        /*
         * Reading /metrics takes the figures away from whoever else reads it, so the other one comes first.
         */
        .polls = {{"/prometheus/metrics", 0, 1, 4 * 1024 * 1024}, {"/metrics", 0, 1, 16 * 1024 * 1024}},
        .parse_load = parse_load,
        .notes = "Switch return_perf_metrics on (/prometheus/metrics), or enable_iter_perf_stats (/metrics, "
                 "which gives "
                 "each figure to one reader only). It refuses request fields it does not know: nothing is "
                 "added but the salt of a tenant (tenant-salt).",
};
