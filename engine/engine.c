/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rows.h"

#define JSON_BODY_MAX (16 * 1024 * 1024)

static const struct engine_traits *const rows[ENGINE_KIND_COUNT] = {
        [ENGINE_AUTO] = &engine_row_openai,       [ENGINE_VLLM] = &engine_row_vllm,
        [ENGINE_SGLANG] = &engine_row_sglang,     [ENGINE_LLAMACPP] = &engine_row_llamacpp,
        [ENGINE_TRTLLM] = &engine_row_trtllm,     [ENGINE_TGI] = &engine_row_tgi,
        [ENGINE_LMDEPLOY] = &engine_row_lmdeploy, [ENGINE_OLLAMA] = &engine_row_ollama,
        [ENGINE_OPENAI] = &engine_row_openai,
};

const struct engine_traits *engine_traits(enum engine_kind kind)
{
        return (unsigned)kind < ENGINE_KIND_COUNT ? rows[kind] : &engine_row_openai;
}

const char *engine_kind_name(enum engine_kind kind)
{
        return kind == ENGINE_AUTO ? "auto" : engine_traits(kind)->name;
}

bool engine_kind_parse(struct kvr_slice name, enum engine_kind *ret_kind)
{
        for (unsigned kind = 0; kind < ENGINE_KIND_COUNT; kind++) {
                const char *text = engine_kind_name((enum engine_kind)kind);

                if (name.len == strlen(text) && memcmp(name.data, text, name.len) == 0) {
                        *ret_kind = (enum engine_kind)kind;
                        return true;
                }
        }
        return false;
}

/* ---- health ----------------------------------------------------------------------------------------- */

const char *engine_health_name(enum engine_health health)
{
        switch (health) {
        case ENGINE_HEALTH_READY:
                return "ready";
        case ENGINE_HEALTH_LOADING:
                return "loading";
        case ENGINE_HEALTH_DRAINING:
                return "draining";
        case ENGINE_HEALTH_DOWN:
                return "down";
        case ENGINE_HEALTH_NEXT:
                return "next";
        }
        return "unknown";
}

bool engine_text_has(struct kvr_slice text, const char *words)
{
        return text.len > 0 && memmem(text.data, text.len, words, strlen(words)) != NULL;
}

enum engine_health engine_judge_default(const char *path, unsigned status, struct kvr_slice body)
{
        (void)path;
        if (status == 404 || status == 405 || status == 501)
                return ENGINE_HEALTH_NEXT;
        if (status == 503 && (engine_text_has(body, "oading") || engine_text_has(body, "tarting")))
                return ENGINE_HEALTH_LOADING;
        if (status >= 200 && status < 300)
                return ENGINE_HEALTH_READY;
        /* It wants a key or a pause, so it is there; whether it serves, traffic will tell. */
        if (status == 401 || status == 403 || status == 429)
                return ENGINE_HEALTH_READY;
        return ENGINE_HEALTH_DOWN;
}

enum engine_health engine_judge_health(enum engine_kind kind, const char *path, unsigned status,
                                       struct kvr_slice body)
{
        const struct engine_traits *row = engine_traits(kind);

        if (status == 0)
                return ENGINE_HEALTH_DOWN;
        return row->judge_health ? row->judge_health(path, status, body)
                                 : engine_judge_default(path, status, body);
}

/* ---- load ------------------------------------------------------------------------------------------- */

static void rank_init(struct engine_rank_load *r, int rank)
{
        *r = (struct engine_rank_load){
                .rank = rank,
                .running = -1,
                .waiting = -1,
                .kv_usage = -1,
                .waiting_tokens = -1,
                .capacity_tokens = -1,
        };
}

void engine_load_init(struct engine_load *load)
{
        load->rank_count = 0;
        rank_init(&load->sum, -1);
        load->block_tokens = load->max_running = load->slots = load->n_ctx = -1;
        load->prefix_caching = load->cache_report = load->sleeping = load->measured_unix_s = -1;
}

static struct engine_rank_load *find_rank(struct engine_load *load, int rank)
{
        for (uint32_t i = 0; i < load->rank_count; i++)
                if (load->ranks[i].rank == rank)
                        return &load->ranks[i];
        return NULL;
}

struct engine_rank_load *engine_load_rank(struct engine_load *page, int rank)
{
        if (rank < 0)
                return &page->sum;
        struct engine_rank_load *r = find_rank(page, rank);
        if (r)
                return r;
        if (page->rank_count == ENGINE_RANKS_MAX)
                return &page->sum;
        r = &page->ranks[page->rank_count++];
        rank_init(r, rank);
        return r;
}

void engine_figure_set(double *figure, double v)
{
        if (isfinite(v) && v >= 0)
                *figure = v;
}

void engine_figure_add(double *figure, double v)
{
        if (isfinite(v) && v >= 0)
                *figure = *figure < 0 ? v : *figure + v;
}

void engine_figure_max(double *figure, double v)
{
        if (isfinite(v) && v >= 0 && v > *figure)
                *figure = v;
}

static bool rank_known(const struct engine_rank_load *r)
{
        return r->running >= 0 || r->waiting >= 0 || r->kv_usage >= 0 || r->waiting_tokens >= 0 ||
               r->capacity_tokens >= 0;
}

bool engine_load_finish(struct engine_load *page)
{
        unsigned usages = page->sum.kv_usage >= 0;

        for (uint32_t i = 0; i < page->rank_count; i++) {
                const struct engine_rank_load *r = &page->ranks[i];

                engine_figure_add(&page->sum.running, r->running);
                engine_figure_add(&page->sum.waiting, r->waiting);
                engine_figure_add(&page->sum.waiting_tokens, r->waiting_tokens);
                engine_figure_add(&page->sum.capacity_tokens, r->capacity_tokens);
                engine_figure_add(&page->sum.kv_usage, r->kv_usage);
                usages += r->kv_usage >= 0;
        }
        if (usages > 1)
                page->sum.kv_usage /= usages;
        return rank_known(&page->sum) || page->block_tokens >= 0 || page->max_running >= 0 ||
               page->slots >= 0 || page->n_ctx >= 0 || page->prefix_caching >= 0 || page->cache_report >= 0 ||
               page->sleeping >= 0;
}

static void merge_rank(struct engine_rank_load *into, const struct engine_rank_load *from)
{
        engine_figure_set(&into->running, from->running);
        engine_figure_set(&into->waiting, from->waiting);
        engine_figure_set(&into->kv_usage, from->kv_usage);
        engine_figure_set(&into->waiting_tokens, from->waiting_tokens);
        engine_figure_set(&into->capacity_tokens, from->capacity_tokens);
}

void engine_load_merge(struct engine_load *into, const struct engine_load *page)
{
        merge_rank(&into->sum, &page->sum);
        for (uint32_t i = 0; i < page->rank_count; i++) {
                struct engine_rank_load *r = engine_load_rank(into, page->ranks[i].rank);

                if (r != &into->sum)
                        merge_rank(r, &page->ranks[i]);
        }
        engine_figure_set(&into->block_tokens, page->block_tokens);
        engine_figure_set(&into->max_running, page->max_running);
        engine_figure_set(&into->slots, page->slots);
        engine_figure_set(&into->n_ctx, page->n_ctx);
        engine_figure_set(&into->prefix_caching, page->prefix_caching);
        engine_figure_set(&into->cache_report, page->cache_report);
        engine_figure_set(&into->sleeping, page->sleeping);
        engine_figure_set(&into->measured_unix_s, page->measured_unix_s);
}

bool engine_parse_load(enum engine_kind kind, const char *path, struct kvr_slice body,
                       struct engine_load *load)
{
        const struct engine_traits *row = engine_traits(kind);
        struct engine_load page;

        engine_load_init(&page);
        if (!row->parse_load || !row->parse_load(path, body, &page) || !engine_load_finish(&page))
                return false;
        engine_load_merge(load, &page);
        return true;
}

/* ---- helpers of the rows ---------------------------------------------------------------------------- */

int engine_rank_of(const struct prom_sample *sample, const char *label)
{
        double n = prom_label_number(sample, label);

        return n >= 0 && n < 65536 && n == floor(n) ? (int)n : -1;
}

double engine_json_number(yyjson_val *object, const char *key)
{
        yyjson_val *val = yyjson_obj_get(object, key);

        return yyjson_is_num(val) ? yyjson_get_num(val) : -1;
}

double engine_json_bool(yyjson_val *object, const char *key)
{
        yyjson_val *val = yyjson_obj_get(object, key);

        return yyjson_is_bool(val) ? (yyjson_get_bool(val) ? 1 : 0) : -1;
}

yyjson_doc *engine_json_read(struct kvr_slice body)
{
        if (body.len == 0 || body.len > JSON_BODY_MAX)
                return NULL;
        return yyjson_read(body.data, body.len, 0);
}
