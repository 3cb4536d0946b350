/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The section "shadow" of GET /kvroute/ledger, and its metrics: what kv would have gained (shadow.h,
 * docs/shadow.md). Sums are over the same requests on both sides; "accounts" put the windows of both ledgers side
 * by side, by workload too.
 */
#include "admin_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const window_names[KVR_LEDGER_WINDOWS] = {"life", "1m", "10m", "1h"};

static void add_integer(struct text *out, const char *key, uint64_t value)
{
        text_addf(out, ",\"%s\":%llu", key, (unsigned long long)value);
}

/* ,"key":{ but for the brace, which takes the place of the first member's comma: see close_object. */
static size_t open_object(struct text *out, const char *key)
{
        text_addf(out, ",\"%s\":", key);
        return out->len;
}

static void close_object(struct text *out, size_t at)
{
        text_add(out, "}", 1);
        if (!out->failed)
                out->data[at] = '{';
}

/* A number that may be below zero, or null. */
static void add_signed(struct text *out, const char *key, double value)
{
        if (isfinite(value))
                text_addf(out, ",\"%s\":%.9g", key, value);
        else
                text_addf(out, ",\"%s\":null", key);
}

static double seconds(uint64_t ns)
{
        return (double)ns / 1e9;
}

static void add_ttft(struct text *out, const char *key, const struct shadow_ttft *ttft)
{
        size_t at = open_object(out, key);

        admin_add_number(out, "mean", ttft->mean_s);
        admin_add_number(out, "p50", ttft->p50_s);
        admin_add_number(out, "p90", ttft->p90_s);
        close_object(out, at);
}

static void add_spread(struct text *out, const char *key, const struct kvr_ledger_spread *spread)
{
        size_t at = open_object(out, key);

        admin_add_number(out, "max_mean", spread->max_mean);
        admin_add_number(out, "cv", spread->cv);
        admin_add_number(out, "jain", spread->jain);
        admin_add_number(out, "p95_max_mean", spread->p95_max_mean);
        close_object(out, at);
}

static void add_balance(struct text *out, struct kvr_ledger *ledger, uint64_t now_ns)
{
        struct kvr_ledger_balance balance;
        size_t at;

        if (kvr_ledger_balance(ledger, NULL, now_ns, &balance) != KVR_OK)
                return;
        at = open_object(out, "balance");
        add_spread(out, "requests", &balance.requests);
        add_spread(out, "computed_tokens", &balance.computed_tokens);
        close_object(out, at);
}

static void add_side(struct text *out, const struct shadow_figures *figures, const struct shadow_side *side)
{
        admin_add_number(out, "hit_rate", shadow_hit_rate(figures, side));
        add_integer(out, "predicted_tokens", side->predicted_tokens);
        add_integer(out, "avoided_tokens", side->won_tokens);
        admin_add_number(out, "avoided_s", seconds(side->avoided_ns));
        add_integer(out, "untimed_tokens", side->untimed_tokens);
        add_ttft(out, "ttft_s", &side->ttft);
}

/* What the queues leave out (network, the fixed part of a prefill) is on both sides the same. */
static double calibrated_ttft_s(const struct shadow_figures *figures)
{
        double seconds_off = figures->ttft_observed.mean_s - figures->actual.ttft.mean_s;

        return fmax(0, figures->kv.ttft.mean_s + seconds_off);
}

static void add_kv(struct text *out, struct shadow *shadow, const struct shadow_figures *figures,
                   uint64_t now_ns)
{
        text_adds(out, ",\"kv\":{\"policy\":\"kv\"");
        add_side(out, figures, &figures->kv);
        admin_add_number(out, "hit_rate_calibrated", shadow_hit_rate_calibrated(figures));
        admin_add_number(out, "ttft_calibrated_s",
                         isnan(figures->ttft_observed.mean_s) ? NAN : calibrated_ttft_s(figures));
        add_balance(out, shadow_ledger(shadow), now_ns);
        text_add(out, "}", 1);
}

static double ratio(uint64_t a, uint64_t b)
{
        return b ? (double)a / (double)b : NAN;
}

static void add_actual(struct text *out, const struct proxy *proxy, const struct shadow_figures *figures,
                       uint64_t now_ns)
{
        const struct router_config *config = atomic_load(&proxy->config);

        text_addf(out, ",\"actual\":{\"policy\":\"%s\"", config->policy);
        add_side(out, figures, &figures->actual);
        admin_add_number(out, "hit_rate_predicted",
                         ratio(figures->actual.predicted_tokens, figures->prompt_tokens));
        admin_add_number(out, "hit_rate_observed",
                         ratio(figures->observed_tokens, figures->observed_prompt_tokens));
        add_integer(out, "observed_requests", figures->observed);
        add_integer(out, "observed_prompt_tokens", figures->observed_prompt_tokens);
        add_integer(out, "observed_tokens", figures->observed_tokens);
        admin_add_number(out, "observed_over_predicted",
                         ratio(figures->observed_tokens, figures->observed_predicted_tokens));
        add_ttft(out, "ttft_observed_s", &figures->ttft_observed);
        if (proxy->ledger)
                add_balance(out, proxy->ledger, now_ns);
        text_add(out, "}", 1);
}

static void add_gain(struct text *out, const struct shadow_figures *figures)
{
        const struct shadow_side *kv = &figures->kv, *actual = &figures->actual;
        size_t at = open_object(out, "gain");

        add_signed(out, "hit_rate", shadow_hit_rate(figures, kv) - shadow_hit_rate(figures, actual));
        add_signed(out, "avoided_tokens", (double)kv->won_tokens - (double)actual->won_tokens);
        add_signed(out, "avoided_s", seconds(kv->avoided_ns) - seconds(actual->avoided_ns));
        add_signed(out, "ttft_mean_s", actual->ttft.mean_s - kv->ttft.mean_s);
        close_object(out, at);
}

/* ---- accounts of both ledgers ---- */

static const struct kvr_ledger_account *named(const struct kvr_ledger_account *list, size_t count,
                                              const char *name)
{
        for (size_t i = 0; i < count; i++)
                if (strcmp(list[i].name, name) == 0)
                        return &list[i];
        return NULL;
}

static void add_window(struct text *out, const char *name, const struct kvr_ledger_sums *kv,
                       const struct kvr_ledger_sums *actual)
{
        text_addf(out, "\"%s\":{\"requests\":%llu", name, (unsigned long long)kv->computed);
        add_integer(out, "prompt_tokens", kv->prompt_tokens);
        admin_add_number(out, "kv_hit_rate", ratio(kv->won_tokens, kv->prompt_tokens));
        add_integer(out, "kv_avoided_tokens", kv->won_tokens);
        admin_add_number(out, "kv_avoided_s", seconds(kv->avoided_ns));
        admin_add_number(out, "actual_hit_rate", ratio(actual->won_tokens, actual->prompt_tokens));
        add_integer(out, "actual_avoided_tokens", actual->won_tokens);
        admin_add_number(out, "actual_avoided_s", seconds(actual->avoided_ns));
        text_add(out, "}", 1);
}

static void add_account(struct text *out, const struct kvr_ledger_account *kv,
                        const struct kvr_ledger_account *actual)
{
        static const struct kvr_ledger_sums none = {0};

        text_adds(out, "{\"name\":\"");
        text_add_json(out, (struct kvr_slice){kv->name, strlen(kv->name)});
        text_adds(out, "\",\"windows\":{");
        for (unsigned window = 0; window < KVR_LEDGER_WINDOWS; window++) {
                text_adds(out, window ? "," : "");
                add_window(out, window_names[window], &kv->sums[window],
                           actual ? &actual->sums[window] : &none);
        }
        text_adds(out, "}}");
}

/* At most KVR_LEDGER_WORKLOADS_MAX of them; NULL when out of memory. */
static struct kvr_ledger_account *accounts_of(struct kvr_ledger *ledger, enum kvr_ledger_by by,
                                              uint64_t now_ns, size_t *ret_count)
{
        struct kvr_ledger_account *list = calloc(KVR_LEDGER_WORKLOADS_MAX, sizeof *list);
        uint32_t cursor = 0;

        *ret_count = 0;
        while (list && *ret_count < KVR_LEDGER_WORKLOADS_MAX &&
               kvr_ledger_account(ledger, by, now_ns, &cursor, &list[*ret_count]))
                ++*ret_count;
        return list;
}

static void add_accounts(struct text *out, struct kvr_ledger *kv, struct kvr_ledger *actual,
                         enum kvr_ledger_by by, uint64_t now_ns)
{
        size_t kv_count, actual_count;
        struct kvr_ledger_account *ours = accounts_of(kv, by, now_ns, &kv_count);
        struct kvr_ledger_account *theirs = accounts_of(actual, by, now_ns, &actual_count);

        text_addf(out, "\"%s\":[", kvr_ledger_by_name(by));
        if (!ours || !theirs)
                out->failed = true;
        for (size_t i = 0; ours && theirs && i < kv_count; i++) {
                text_adds(out, i ? "," : "");
                add_account(out, &ours[i], named(theirs, actual_count, ours[i].name));
        }
        text_add(out, "]", 1);
        free(ours);
        free(theirs);
}

/* ---- the section ---- */

void admin_add_shadow(const struct proxy *proxy, struct text *out, uint64_t now_ns)
{
        struct kvr_ledger *ledger = shadow_ledger(proxy->shadow);
        struct shadow_figures figures;

        if (!proxy->shadow) {
                text_adds(out, ",\"shadow\":null");
                return;
        }
        shadow_figures(proxy->shadow, now_ns, &figures);
        text_addf(out, ",\"shadow\":{\"mode\":\"%s\"", figures.mirror ? "mirror" : "on");
        add_integer(out, "requests", figures.requests);
        add_integer(out, "prompt_tokens", figures.prompt_tokens);
        add_kv(out, proxy->shadow, &figures, now_ns);
        add_actual(out, proxy, &figures, now_ns);
        add_gain(out, &figures);
        text_adds(out, ",\"accounts\":{");
        if (proxy->ledger) {
                add_accounts(out, ledger, proxy->ledger, KVR_LEDGER_ALL, now_ns);
                text_add(out, ",", 1);
                add_accounts(out, ledger, proxy->ledger, KVR_LEDGER_WORKLOAD, now_ns);
        }
        text_addf(out, "},\"in_flight\":%u", figures.in_flight);
        add_integer(out, "timed_requests", figures.timed);
        add_integer(out, "undecided_requests", figures.undecided);
        add_integer(out, "dropped_requests", figures.dropped);
        add_integer(out, "bytes", figures.bytes);
        add_integer(out, "index_bytes", figures.index.bytes);
        add_integer(out, "index_bytes_max", figures.index.bytes_max);
        add_integer(out, "index_entries", figures.index.entries);
        text_add(out, "}", 1);
}

void admin_shadow_metrics(const struct proxy *proxy)
{
        const struct router_config *config = atomic_load(&proxy->config);
        struct metrics *metrics = proxy->metrics;
        struct kvr_slice kv = KVR_SLICE("kv"), actual = slice_of(config->policy);
        struct shadow_figures figures;
        unsigned thread = proxy->worker_count;

        if (!proxy->shadow)
                return;
        shadow_figures(proxy->shadow, uv_hrtime(), &figures);
        metrics_set(metrics, metrics_series(metrics, thread, METRIC_SHADOW_PROMPT, NULL),
                    (double)figures.prompt_tokens);
        metrics_set(metrics, metrics_series(metrics, thread, METRIC_SHADOW_CACHED, &kv),
                    (double)figures.kv.won_tokens);
        metrics_set(metrics, metrics_series(metrics, thread, METRIC_SHADOW_CACHED, &actual),
                    (double)figures.actual.won_tokens);
}
