/* SPDX-License-Identifier: Apache-2.0 */
/* A report on a live router for a terminal, and as JSON. */
#include "analyze.h"
#include "report.h"

#include <math.h>
#include <stdio.h>

#define NAME_COLUMNS 24
#define ROWS_SHOWN   12u /* of workloads, and of families */

/* ---- text --------------------------------------------------------------------------------------------- */

static void plain(void *ctx, const char *text)
{
        sim_buf_puts(ctx, text);
}

/* Names come from clients: what is no printable ASCII is shown as '?'. */
static void name_cell(struct sim_buf *buf, const char *name)
{
        unsigned column = 0;

        sim_buf_puts(buf, "  ");
        for (; *name && column < NAME_COLUMNS; name++, column++)
                sim_buf_add(buf, (unsigned char)*name >= 0x20 && (unsigned char)*name < 0x7f ? name : "?", 1);
        for (; column < NAME_COLUMNS; column++)
                sim_buf_puts(buf, " ");
}

static void cell(struct sim_buf *buf, int width, int decimals, double value, const char *unit)
{
        char text[48] = "unknown";

        if (isfinite(value))
                snprintf(text, sizeof text, "%.*f%s", decimals, value, unit);
        sim_buf_printf(buf, " %*s", width, text);
}

static void rule_line(struct sim_buf *buf, const struct sim_live_rule *rule)
{
        char avoided[32];

        sim_live_seconds(rule->avoided_s, avoided, sizeof avoided);
        name_cell(buf, rule->name);
        cell(buf, 9, 1, 100 * rule->reused, " %");
        cell(buf, 16, 0, rule->computed, "");
        sim_buf_printf(buf, " %12s", avoided);
        cell(buf, 13, 2, rule->computed_max_mean, "x");
        cell(buf, 13, 2, rule->hot_max_mean, "x");
        sim_buf_puts(buf, "\n");
}

static void rules(const struct sim_live *live, struct sim_buf *buf)
{
        sim_buf_printf(buf, "\n  %-*s %9s %16s %12s %13s %13s\n", NAME_COLUMNS, "rule", "reused",
                       "left to compute", "time avoided", "busiest/mean", "within 10 s");
        rule_line(buf, &live->fact);
        for (unsigned i = 0; i < live->rule_count; i++)
                rule_line(buf, &live->rules[i]);
}

static void account_line(struct sim_buf *buf, const struct sim_live_account *account)
{
        const struct kvr_ledger_sums *sums = &account->sums;

        name_cell(buf, account->name);
        sim_buf_printf(buf, " %9llu %12llu", (unsigned long long)sums->requests,
                       (unsigned long long)sums->prompt_tokens);
        cell(buf, 9, 1, 100 * sim_live_share(sums->won_tokens, sums->prompt_tokens), " %");
        cell(buf, 9, 1, 100 * sim_live_share(sums->placement_tokens, sums->prompt_tokens), " %");
        cell(buf, 9, 1, 100 * sim_live_share(sums->staleness_tokens, sums->prompt_tokens), " %");
        cell(buf, 9, 1, 100 * sim_live_share(sums->workload_tokens, sums->prompt_tokens), " %");
        cell(buf, 10, 1, 100 * sim_live_predicted(sums), " %");
        cell(buf, 9, 1, 100 * sim_live_observed(sums), " %");
        sim_buf_puts(buf, "\n");
}

static void accounts(struct sim_buf *buf, const char *what, const struct sim_live_accounts *list, size_t max)
{
        size_t shown = list->count < max ? list->count : max;

        if (!shown)
                return;
        sim_buf_printf(buf, "\n  %-*s %9s %12s %9s %9s %9s %9s %10s %9s\n", NAME_COLUMNS, what, "requests",
                       "prompt", "reused", "elsewhere", "gone", "new", "predicted", "observed");
        for (size_t i = 0; i < shown; i++)
                account_line(buf, &list->items[i]);
        if (shown < list->count)
                sim_buf_printf(buf, "  and %zu more\n", list->count - shown);
}

void sim_live_text(const struct sim_live *live, struct sim_buf *buf)
{
        char span[64];

        sim_live_span(live, span, sizeof span);
        sim_buf_printf(buf, "Is cache-aware routing worth it at %s? ", live->url);
        sim_live_headline(live, buf);
        sim_buf_puts(buf, ".\n");
        sim_live_short(live, plain, buf);
        sim_buf_puts(buf, "\n\n");
        sim_live_reasons(live, sim_report_wrap, buf);
        rules(live, buf);
        accounts(buf, "workload", &live->workloads, ROWS_SHOWN);
        accounts(buf, "family", &live->families, ROWS_SHOWN);
        accounts(buf, "replica", &live->replicas, live->replicas.count);
}

/* ---- JSON --------------------------------------------------------------------------------------------- */

static void put_string(struct sim_buf *buf, const char *key, const char *text)
{
        sim_buf_printf(buf, "\"%s\":", key);
        sim_buf_json(buf, sim_slice(text));
}

/* Behind another member. */
static void put_number(struct sim_buf *buf, const char *key, double value)
{
        if (isfinite(value))
                sim_buf_printf(buf, ",\"%s\":%.10g", key, value);
        else
                sim_buf_printf(buf, ",\"%s\":null", key);
}

static void put_sentence(void *ctx, const char *text)
{
        struct sim_buf *buf = ctx;

        if (buf->len && buf->data[buf->len - 1] != '[')
                sim_buf_puts(buf, ",");
        sim_buf_json(buf, sim_slice(text));
}

static const char *verdict_name(const struct sim_live_verdict *v, enum sim_verdict verdict)
{
        return v->judged ? sim_verdict_name(verdict) : "unknown";
}

static void put_verdict(const struct sim_live *live, struct sim_buf *buf)
{
        const struct sim_live_verdict *v = &live->verdict;
        struct sim_buf words = {0};

        sim_live_headline(live, &words);
        sim_buf_puts(&words, "");
        sim_buf_puts(buf, "\"verdict\":{");
        put_string(buf, "by_work", verdict_name(v, v->by_work));
        sim_buf_puts(buf, ",");
        put_string(buf, "by_load", verdict_name(v, v->by_load));
        sim_buf_puts(buf, ",\"words\":");
        sim_buf_json(buf, sim_buf_slice(&words));
        sim_buf_printf(buf, ",\"idle\":%s", v->idle ? "true" : "false");
        put_number(buf, "work_gain", v->work_gain);
        put_number(buf, "points", v->points);
        put_number(buf, "load_gain", v->load_gain);
        put_number(buf, "busy", v->busy);
        put_number(buf, "break_even_replica_hours_month_work", v->even_work_month);
        put_number(buf, "break_even_replica_hours_month_load", v->even_load_month);
        put_number(buf, "saved_replicas", v->saved_replicas);
        put_number(buf, "price", live->price > 0 ? live->price : NAN);
        sim_buf_puts(buf, ",\"reasons\":[");
        sim_live_short(live, put_sentence, buf);
        sim_live_reasons(live, put_sentence, buf);
        sim_buf_puts(buf, "]}");
        buf->failed |= words.failed;
        sim_buf_fini(&words);
}

static void put_rule(struct sim_buf *buf, const struct sim_live_rule *rule)
{
        sim_buf_puts(buf, "{");
        put_string(buf, "rule", rule->id);
        put_number(buf, "reused", rule->reused);
        put_number(buf, "computed_tokens", rule->computed);
        put_number(buf, "avoided_s", rule->avoided_s);
        put_number(buf, "requests_max_mean", rule->requests_max_mean);
        put_number(buf, "computed_max_mean", rule->computed_max_mean);
        put_number(buf, "computed_max_mean_p95", rule->hot_max_mean);
        sim_buf_puts(buf, "}");
}

static void put_account(struct sim_buf *buf, const struct sim_live_account *account)
{
        sim_buf_puts(buf, "{");
        put_string(buf, "name", account->name);
        sim_buf_puts(buf, ",");
        put_string(buf, "id", account->id);
        put_number(buf, "covered_s", account->covered_s);
#define PUT(name) put_number(buf, #name, (double)account->sums.name);
        KVR_LEDGER_SUM_LIST(PUT)
#undef PUT
        put_number(buf, "predicted_share", sim_live_predicted(&account->sums));
        put_number(buf, "observed_share", sim_live_observed(&account->sums));
        sim_buf_puts(buf, "}");
}

static void put_accounts(struct sim_buf *buf, const char *key, const struct sim_live_accounts *list)
{
        sim_buf_printf(buf, ",\"%s\":[", key);
        for (size_t i = 0; i < list->count; i++) {
                if (i)
                        sim_buf_puts(buf, ",");
                put_account(buf, &list->items[i]);
        }
        sim_buf_puts(buf, "]");
}

/* Up to the last bucket that has anything. */
static void put_bins(struct sim_buf *buf, const char *key, const double *bins)
{
        unsigned count = KVR_LEDGER_LOG_BUCKETS;

        while (count && bins[count - 1] <= 0)
                count--;
        sim_buf_printf(buf, ",\"%s\":[", key);
        for (unsigned i = 0; i < count; i++)
                sim_buf_printf(buf, "%s%.0f", i ? "," : "", bins[i]);
        sim_buf_puts(buf, "]");
}

void sim_live_json(const struct sim_live *live, struct sim_buf *buf)
{
        sim_buf_puts(buf, "{");
        put_string(buf, "url", live->url);
        sim_buf_puts(buf, ",");
        put_string(buf, "window", live->window);
        sim_buf_puts(buf, ",");
        put_string(buf, "policy", live->verdict.policy);
        sim_buf_printf(buf, ",\"shadow\":%s,\"mirror\":%s,", live->verdict.shadow ? "true" : "false",
                       live->verdict.mirror ? "true" : "false");
        put_verdict(live, buf);
        sim_buf_puts(buf, ",\"rules\":[");
        put_rule(buf, &live->fact);
        for (unsigned i = 0; i < live->rule_count; i++) {
                sim_buf_puts(buf, ",");
                put_rule(buf, &live->rules[i]);
        }
        sim_buf_puts(buf, "],\"all\":");
        put_account(buf, &live->all);
        put_accounts(buf, "workloads", &live->workloads);
        put_accounts(buf, "families", &live->families);
        put_accounts(buf, "replicas", &live->replicas);
        put_bins(buf, "shared_prefix_histogram", live->all.shared_tokens);
        put_bins(buf, "reuse_ms_histogram", live->all.reuse_ms);
        sim_buf_printf(buf, ",\"curve\":{\"window\":\"%s\",\"points\":[", live->curve_window);
        for (unsigned i = 0; i < live->curve_count; i++)
                sim_buf_printf(buf, "%s[%.0f,%.6g]", i ? "," : "", live->curve_x[i], live->curve_y[i]);
        sim_buf_puts(buf, "]");
        put_number(buf, "ideal", live->ideal);
        put_number(buf, "not_compared_share", live->surplus);
        put_number(buf, "fleet_tokens", live->capacity_known > 0 ? live->capacity : NAN);
        put_number(buf, "pooled", live->pooled);
        sim_buf_puts(buf, "}}\n");
}
