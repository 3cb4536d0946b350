/* SPDX-License-Identifier: Apache-2.0 */
/* The mock engine's other endpoints: health, models, metrics, tokenizing, cache reset. */
#include "mock_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

const double mock_ttft_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,  0.75,    1,
                                   2.5,   5,     7.5,  10,   20,   40,   80,   160, 640,  2560, INFINITY};
const double mock_itl_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                  0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80,  INFINITY};
const double mock_e2e_bounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
                                  30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680, INFINITY};

void mock_observe(struct mock_histogram *histogram, const double *bounds, double value)
{
        size_t i = 0;

        while (value > bounds[i])
                i++;
        histogram->counts[i]++;
        histogram->count++;
        histogram->sum += value;
}

/* ---- metrics ------------------------------------------------------------------------------------------ */

struct page {
        struct sim_mock *mock;
        struct sim_buf *buf;
};

static void label(struct sim_buf *buf, const char *text)
{
        for (; *text; text++) {
                if (*text == '\\' || *text == '"')
                        sim_buf_puts(buf, "\\");
                sim_buf_add(buf, text, 1);
        }
}

static void head(const struct page *page, const char *name, const char *type, const char *help)
{
        sim_buf_printf(page->buf, "# HELP vllm:%s %s\n# TYPE vllm:%s %s\n", name, help, name, type);
}

/* `more` is ",name=\"value\"..." or "". */
static void row(const struct page *page, const char *name, const char *more, double value)
{
        sim_buf_printf(page->buf, "vllm:%s{engine=\"0\",model_name=\"", name);
        label(page->buf, page->mock->base_model);
        sim_buf_printf(page->buf, "\"%s} ", more);
        /* Whole numbers as Python prints floats. */
        sim_buf_printf(page->buf, fabs(value) < 1e15 && floor(value) >= value ? "%.1f\n" : "%.17g\n", value);
}

static void single(const struct page *page, const char *name, const char *type, const char *help,
                   double value)
{
        head(page, name, type, help);
        row(page, name, "", value);
}

static void histogram(const struct page *page, const char *name, const char *help,
                      const struct mock_histogram *h, const double *bounds)
{
        char series[96], more[48];
        uint64_t sum = 0;

        head(page, name, "histogram", help);
        snprintf(series, sizeof(series), "%s_bucket", name);
        for (size_t i = 0;; i++) {
                sum += h->counts[i];
                if (isinf(bounds[i]))
                        snprintf(more, sizeof(more), ",le=\"+Inf\"");
                else
                        snprintf(more, sizeof(more),
                                 floor(bounds[i]) >= bounds[i] ? ",le=\"%.1f\"" : ",le=\"%g\"", bounds[i]);
                row(page, series, more, (double)sum);
                if (isinf(bounds[i]))
                        break;
        }
        snprintf(series, sizeof(series), "%s_count", name);
        row(page, series, "", (double)h->count);
        snprintf(series, sizeof(series), "%s_sum", name);
        row(page, series, "", h->sum);
}

static void load(const struct page *page)
{
        const struct sim_engine *engine = page->mock->engine;
        double waiting = sim_engine_waiting(engine);

        single(page, "num_requests_running", "gauge", "Requests in the running batch.",
               sim_engine_running(engine));
        single(page, "num_requests_waiting", "gauge", "Requests that wait to be admitted.", waiting);
        head(page, "num_requests_waiting_by_reason", "gauge", "Waiting requests by what they wait for.");
        row(page, "num_requests_waiting_by_reason", ",reason=\"capacity\"", waiting);
        row(page, "num_requests_waiting_by_reason", ",reason=\"deferred\"", 0);
        head(page, "engine_sleep_state", "gauge", "Whether the engine sleeps.");
        row(page, "engine_sleep_state", ",sleep_state=\"awake\"", 1);
        single(page, "kv_cache_usage_perc", "gauge", "Share of the KV cache that is referenced, 0 to 1.",
               sim_engine_usage(engine));
}

static void counters(const struct page *page)
{
        struct sim_engine_counters c;

        sim_engine_counters(page->mock->engine, &c);
        single(page, "prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
               (double)c.prompt_tokens);
        single(page, "prefix_cache_hits_total", "counter", "Of these, tokens found.",
               (double)c.cached_tokens);
        single(page, "num_preemptions_total", "counter", "Requests that had to give way.",
               (double)c.preempted);
        single(page, "prompt_tokens_total", "counter", "Prompt tokens of admitted requests.",
               (double)c.prompt_tokens);
        head(page, "prompt_tokens_by_source_total", "counter", "Prompt tokens by where they came from.");
        row(page, "prompt_tokens_by_source_total", ",source=\"local_compute\"",
            (double)(c.prompt_tokens - c.cached_tokens));
        row(page, "prompt_tokens_by_source_total", ",source=\"local_cache_hit\"", (double)c.cached_tokens);
        row(page, "prompt_tokens_by_source_total", ",source=\"external_kv_transfer\"", 0);
        single(page, "prompt_tokens_cached_total", "counter", "Prompt tokens that came from the cache.",
               (double)c.cached_tokens);
        single(page, "generation_tokens_total", "counter", "Tokens generated.", (double)c.output_tokens);
        head(page, "request_success_total", "counter", "Requests that were answered to their end.");
        row(page, "request_success_total", ",finished_reason=\"length\"", (double)c.finished);
        head(page, "admission_rejections_total", "counter", "Requests refused because too many wait.");
        row(page, "admission_rejections_total", ",reason=\"max_num_queued_reqs\"", (double)c.refused);
}

void mock_metrics_write(struct sim_mock *mock, struct sim_buf *buf)
{
        const struct sim_engine_options *engine = &mock->options.engine;
        const struct page page = {mock, buf};

        load(&page);
        counters(&page);
        histogram(&page, "time_to_first_token_seconds", "Seconds to the first token.", &mock->ttft,
                  mock_ttft_bounds);
        histogram(&page, "inter_token_latency_seconds", "Seconds between tokens.", &mock->itl,
                  mock_itl_bounds);
        histogram(&page, "e2e_request_latency_seconds", "Seconds to the end of the answer.", &mock->e2e,
                  mock_e2e_bounds);
        histogram(&page, "request_queue_time_seconds", "Seconds before admission.", &mock->queue,
                  mock_e2e_bounds);
        head(&page, "cache_config_info", "gauge", "Shape of the KV cache, as labels.");
        /* vLLM counts its null block in num_gpu_blocks, and reports one token less than the product. */
        sim_buf_printf(buf,
                       "vllm:cache_config_info{block_size=\"%u\",cache_dtype=\"auto\",enable_prefix_caching="
                       "\"%s\",engine=\"0\","
                       "gpu_memory_utilization=\"0.92\",kv_cache_size_tokens=\"%" PRIu64
                       "\",num_gpu_blocks=\"%u\","
                       "prefix_caching_hash_algo=\"sha256\"} 1.0\n",
                       engine->block_tokens, engine->no_prefix_cache ? "False" : "True",
                       ((uint64_t)engine->capacity_blocks + 1) * engine->block_tokens - 1,
                       engine->capacity_blocks + 1);
}

/* ---- pages ---- */

static void models(struct sim_mock *mock, struct net_exchange *exchange)
{
        struct sim_buf *buf = &mock->buf;
        const char *at = mock->options.models;

        sim_buf_reset(buf);
        sim_buf_puts(buf, "{\"object\":\"list\",\"data\":[");
        for (bool first = true; *at; first = false) {
                struct kvr_slice name = {at, strcspn(at, ",")};

                sim_buf_puts(buf, first ? "{\"id\":" : ",{\"id\":");
                sim_buf_json(buf, name);
                sim_buf_printf(buf,
                               ",\"object\":\"model\",\"created\":%" PRId64
                               ",\"owned_by\":\"vllm\",\"root\":\"/models/",
                               mock->started);
                sim_buf_add(buf, name.data, name.len);
                sim_buf_puts(buf, "\",\"parent\":");
                if (first) {
                        sim_buf_printf(buf, "null,\"max_model_len\":%u", mock->options.max_model_len);
                } else {
                        sim_buf_json(buf, sim_slice(mock->base_model));
                        sim_buf_puts(buf, ",\"max_model_len\":null");
                }
                sim_buf_puts(buf, ",\"permission\":[{\"id\":\"modelperm-0000000000000000\",\"object\":"
                                  "\"model_permission\","
                                  "\"created\":");
                sim_buf_printf(buf, "%" PRId64, mock->started);
                sim_buf_puts(buf,
                             ",\"allow_create_engine\":false,\"allow_sampling\":true,\"allow_logprobs\":true,"
                             "\"allow_search_indices\":false,\"allow_view\":true,\"allow_fine_tuning\":false,"
                             "\"organization\":\"*\",\"group\":null,\"is_blocking\":false}]}");
                at += name.len + (at[name.len] == ',');
        }
        sim_buf_puts(buf, "]}");
        mock_respond(mock, exchange, 200, buf);
}

static void metrics(struct sim_mock *mock, struct net_exchange *exchange)
{
        struct sim_buf *buf = &mock->buf;

        mock_pump(mock);
        sim_buf_reset(buf);
        if (mock->fault.metrics == SIM_PROBE_FROZEN)
                sim_buf_add(buf, mock->frozen.data, mock->frozen.len);
        else
                mock_metrics_write(mock, buf);
        net_respond(exchange, buf->failed ? 500 : 200, "text/plain; version=0.0.4; charset=utf-8",
                    MOCK_SERVER, sim_buf_slice(buf));
}

static void tokenize(struct sim_mock *mock, struct net_exchange *exchange, bool only_count)
{
        struct sim_buf *buf = &mock->buf;
        struct sim_request request;
        struct sim_request_error error;

        sim_buf_reset(buf);
        if (!sim_request_parse_tokenize(&request, net_exchange_body(exchange), &error)) {
                sim_answer_error(buf, SIM_API_CHAT, error.status, error.type, error.param, error.message);
                mock_respond(mock, exchange, error.status, buf);
                return;
        }
        if (only_count) {
                sim_buf_printf(buf, "{\"input_tokens\":%zu}", request.tokens.len);
        } else {
                sim_buf_printf(buf, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", request.tokens.len,
                               mock->options.max_model_len);
                for (size_t i = 0; i < request.tokens.len; i++)
                        sim_buf_printf(buf, i ? ",%u" : "%u", request.tokens.ids[i]);
                sim_buf_puts(buf, "],\"token_strs\":null}");
        }
        sim_request_fini(&request);
        mock_respond(mock, exchange, 200, buf);
}

static void reset_prefix_cache(struct sim_mock *mock, struct net_exchange *exchange)
{
        bool done;

        mock_pump(mock);
        done = sim_engine_flush(mock->engine);
        if (done && mock->events)
                mock_events_reset(mock->events);
        sim_buf_reset(&mock->buf);
        sim_buf_printf(&mock->buf, "{\"success\":%s}", done ? "true" : "false");
        mock_respond(mock, exchange, 200, &mock->buf);
}

static void stored_response(struct sim_mock *mock, struct net_exchange *exchange, struct kvr_slice id)
{
        const struct mock_stored *stored = mock_stored_find(mock, id);
        char message[160];

        sim_buf_reset(&mock->buf);
        if (stored) {
                sim_buf_add(&mock->buf, stored->document, stored->document_len);
        } else {
                snprintf(message, sizeof(message), "Response with id '%.*s' not found.",
                         id.len > 80 ? 80 : (int)id.len, id.data);
                sim_answer_error(&mock->buf, SIM_API_RESPONSES, 404, "invalid_request_error", "response_id",
                                 message);
        }
        mock_respond(mock, exchange, stored ? 200 : 404, &mock->buf);
}

/* An endpoint that a fault can break. True: it did. */
static bool broken(struct net_exchange *exchange, enum sim_probe probe)
{
        if (probe == SIM_PROBE_ERROR)
                net_respond(exchange, 503, NULL, MOCK_SERVER, (struct kvr_slice){0});
        return probe == SIM_PROBE_ERROR || probe == SIM_PROBE_HANG;
}

static void plain(struct net_exchange *exchange, const char *json)
{
        net_respond(exchange, 200, *json ? MOCK_JSON : NULL, MOCK_SERVER, sim_slice(json));
}

static bool get_page(struct sim_mock *mock, struct net_exchange *exchange, struct kvr_slice path)
{
        static const char responses[] = "/v1/responses/";
        size_t prefix = sizeof(responses) - 1;

        if (sim_slice_is(path, "/health") || sim_slice_is(path, "/ping")) {
                if (!broken(exchange, mock->fault.health))
                        plain(exchange, "");
        } else if (sim_slice_is(path, "/v1/models")) {
                if (!broken(exchange, mock->fault.models))
                        models(mock, exchange);
        } else if (sim_slice_is(path, "/metrics")) {
                if (!broken(exchange, mock->fault.metrics))
                        metrics(mock, exchange);
        } else if (sim_slice_is(path, "/version")) {
                plain(exchange, "{\"version\":\"0.32.0\"}");
        } else if (mock->events && sim_slice_is(path, "/kv_event_sources")) {
                sim_buf_reset(&mock->buf);
                mock_events_sources(mock->events, &mock->buf);
                mock_respond(mock, exchange, 200, &mock->buf);
        } else if (sim_slice_is(path, "/load")) {
                plain(exchange, "{\"server_load\":0}");
        } else if (path.len > prefix && memcmp(path.data, responses, prefix) == 0) {
                stored_response(mock, exchange, (struct kvr_slice){path.data + prefix, path.len - prefix});
        } else {
                return false;
        }
        return true;
}

static bool post_page(struct sim_mock *mock, struct net_exchange *exchange, struct kvr_slice path)
{
        if (sim_slice_is(path, "/tokenize"))
                tokenize(mock, exchange, false);
        else if (sim_slice_is(path, "/v1/messages/count_tokens"))
                tokenize(mock, exchange, true);
        else if (sim_slice_is(path, "/reset_prefix_cache"))
                reset_prefix_cache(mock, exchange);
        else
                return false;
        return true;
}

bool mock_pages(struct sim_mock *mock, struct net_exchange *exchange)
{
        static const char *const get_paths[] = {"/health",  "/ping",    "/v1/models",
                                                "/metrics", "/version", "/load"};
        static const char *const post_paths[] = {"/tokenize", "/v1/messages/count_tokens",
                                                 "/reset_prefix_cache"};
        const struct http1_head *head_in = net_exchange_head(exchange);
        bool get = sim_slice_is(head_in->method, "GET"), post = sim_slice_is(head_in->method, "POST"),
             known = false;

        if ((get && get_page(mock, exchange, head_in->path)) ||
            (post && post_page(mock, exchange, head_in->path)))
                return true;
        for (size_t i = 0; i < sizeof(get_paths) / sizeof(get_paths[0]); i++)
                known = known || sim_slice_is(head_in->path, get_paths[i]);
        for (size_t i = 0; i < sizeof(post_paths) / sizeof(post_paths[0]); i++)
                known = known || sim_slice_is(head_in->path, post_paths[i]);
        if (known)
                net_respond(exchange, 405, MOCK_JSON, MOCK_SERVER,
                            sim_slice("{\"detail\":\"Method Not Allowed\"}"));
        return known;
}
