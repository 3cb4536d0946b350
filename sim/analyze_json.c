/* SPDX-License-Identifier: Apache-2.0 */
/* A report for programs. Figures that are unknown, or without limit, are null. */
#include "analyze.h"

#include <math.h>

#define CURVE_POINTS 48

static void name(struct sim_buf *buf, const char *key)
{
        char last = buf->len ? buf->data[buf->len - 1] : '{';

        if (last != '{' && last != '[')
                sim_buf_puts(buf, ",");
        if (key) {
                sim_buf_json(buf, sim_slice(key));
                sim_buf_puts(buf, ":");
        }
}

static void number(struct sim_buf *buf, const char *key, double value)
{
        name(buf, key);
        if (isfinite(value))
                sim_buf_printf(buf, "%.10g", value);
        else
                sim_buf_puts(buf, "null");
}

static void string(struct sim_buf *buf, const char *key, const char *value)
{
        name(buf, key);
        sim_buf_json(buf, sim_slice(value));
}

static void boolean(struct sim_buf *buf, const char *key, bool value)
{
        name(buf, key);
        sim_buf_puts(buf, value ? "true" : "false");
}

static void open(struct sim_buf *buf, const char *key, char bracket)
{
        name(buf, key);
        sim_buf_add(buf, &bracket, 1);
}

static void shut(struct sim_buf *buf, char bracket)
{
        sim_buf_add(buf, &bracket, 1);
}

static void reason(void *ctx, const char *text)
{
        string(ctx, NULL, text);
}

static void verdict(const struct sim_report *report, struct sim_buf *buf)
{
        const struct sim_rung_row *row = &report->rungs[SIM_RUNG_HEADLINE];
        struct sim_buf words = {0};

        open(buf, "verdict", '{');
        string(buf, "by_work", sim_verdict_name(row->by_work));
        string(buf, "by_latency", sim_verdict_name(row->by_latency));
        string(buf, "rung", sim_rung_kind(SIM_RUNG_HEADLINE)->id);
        string(buf, "highest_justified", sim_rung_kind(sim_verdict_recommended(report->rungs))->id);
        sim_report_headline(report, &words);
        name(buf, "words");
        sim_buf_json(buf, sim_buf_slice(&words));
        buf->failed |= words.failed;
        sim_buf_fini(&words);
        boolean(buf, "idle", report->idle);
        open(buf, "reasons", '[');
        sim_report_short(report, reason, buf);
        sim_report_reasons(report, reason, buf);
        shut(buf, ']');
        shut(buf, '}');
}

/* [[upper edge, count], ...] of the bins that have any; the edge of the first is 1. */
static void bins(struct sim_buf *buf, const char *key, const double *counts)
{
        open(buf, key, '[');
        for (unsigned i = 0; i < SIM_ACCOUNT_BINS; i++) {
                if (counts[i] <= 0)
                        continue;
                open(buf, NULL, '[');
                number(buf, NULL, exp2(i));
                number(buf, NULL, counts[i]);
                shut(buf, ']');
        }
        shut(buf, ']');
}

static void curve(const struct sim_report *report, struct sim_buf *buf)
{
        const struct sim_account *account = &report->account;
        double before = 0;

        open(buf, "curve", '[');
        for (unsigned i = 0; i < CURVE_POINTS; i++) {
                double blocks = floor(pow(fmax(account->distinct_blocks, 1), (i + 1.0) / CURVE_POINTS));

                if (blocks <= before)
                        continue;
                before = blocks;
                open(buf, NULL, '[');
                number(buf, NULL, blocks * report->block_tokens);
                number(buf, NULL, sim_account_token_hit(account, (uint64_t)blocks));
                shut(buf, ']');
        }
        shut(buf, ']');
}

static void hit_rates(const struct sim_report *report, struct sim_buf *buf)
{
        const struct sim_account *a = &report->account;
        uint64_t fleet = (uint64_t)report->capacity_blocks * report->replicas;
        double policy = report->rungs[SIM_RUNG_HEADLINE].at_pace.token_hit;

        open(buf, "hit_rate", '{');
        number(buf, "ideal", report->ideal_hit);
        number(buf, "pooled", report->pooled_hit);
        number(buf, "policy", policy);
        number(buf, "ideal_blocks", a->matched_blocks / a->blocks);
        number(buf, "pooled_blocks", sim_account_block_hit(a, fleet));
        number(buf, "ideal_requests", a->matched_requests / a->requests);
        number(buf, "ideal_sessions", a->session_hit);
        shut(buf, '}');
        number(buf, "lost_to_capacity", report->ideal_hit - report->pooled_hit);
        number(buf, "lost_to_routing", report->pooled_hit - policy);
        number(buf, "locality_efficiency",
               report->pooled_hit > 0 ? policy / report->pooled_hit : (double)NAN);
}

static void account(const struct sim_report *report, struct sim_buf *buf)
{
        const struct sim_account *a = &report->account;

        open(buf, "account", '{');
        number(buf, "requests", a->requests);
        number(buf, "sessions", a->sessions > 0 ? a->sessions : (double)NAN);
        number(buf, "span_s", a->span_s);
        number(buf, "prompt_tokens", a->prompt_tokens);
        number(buf, "output_tokens", a->output_tokens);
        number(buf, "blocks", a->blocks);
        number(buf, "distinct_blocks", a->distinct_blocks);
        number(buf, "block_tokens", report->block_tokens);
        hit_rates(report, buf);
        open(buf, "matched_tokens", '{');
        number(buf, "p10", a->matched_p10);
        number(buf, "p25", a->matched_p25);
        number(buf, "p50", a->matched_p50);
        number(buf, "p75", a->matched_p75);
        number(buf, "p90", a->matched_p90);
        number(buf, "p99", a->matched_p99);
        shut(buf, '}');
        number(buf, "in_session_tokens", a->in_session_tokens);
        number(buf, "cross_session_tokens", a->cross_session_tokens);
        open(buf, "top_block_hits", '{');
        number(buf, "1", a->top_share[0]);
        number(buf, "10", a->top_share[1]);
        number(buf, "100", a->top_share[2]);
        shut(buf, '}');
        number(buf, "zipf_slope", a->zipf);
        open(buf, "reuse_s", '{');
        number(buf, "p50", a->gap_p50_s);
        number(buf, "p90", a->gap_p90_s);
        shut(buf, '}');
        bins(buf, "shared_prefix_histogram", a->prefix_bins);
        bins(buf, "reuse_histogram", a->gap_bins);
        curve(report, buf);
        shut(buf, '}');
}

static void spread(struct sim_buf *buf, const char *key, const struct sim_rung_spread *of)
{
        open(buf, key, '{');
        number(buf, "max_over_mean", of->max_over_mean);
        number(buf, "cv", of->cv);
        number(buf, "jain", of->jain);
        number(buf, "max_over_mean_10s_p95", of->hot_p95);
        shut(buf, '}');
}

static void cost(const struct sim_rung_row *row, enum sim_rung rung, struct sim_buf *buf)
{
        const struct sim_rung_kind *kind = sim_rung_kind(rung);

        open(buf, "cost", '{');
        number(buf, "state_bytes", row->state_bytes);
        number(buf, "cpu_us_per_request", row->cpu_us);
        string(buf, "processes", kind->processes);
        string(buf, "failure_modes", kind->failures);
        string(buf, "staleness", kind->staleness);
        shut(buf, '}');
}

static void rung(const struct sim_report *report, unsigned i, struct sim_buf *buf)
{
        const struct sim_rung_row *row = &report->rungs[i];
        const struct sim_rung_kind *kind = sim_rung_kind((enum sim_rung)i);
        const struct sim_rung_result *at = &row->at_pace;

        open(buf, NULL, '{');
        string(buf, "rung", kind->id);
        string(buf, "name", kind->name);
        string(buf, "policy", row->policy);
        number(buf, "hit_rate", at->token_hit);
        number(buf, "block_hit_rate", at->block_hit);
        number(buf, "request_hit_rate", at->request_hit);
        number(buf, "avoided_tokens", at->hit_tokens);
        number(buf, "saved_replica_hours", at->saved_s / 3600);
        number(buf, "replica_hours", (at->none_s - at->saved_s) / 3600);
        number(buf, "capacity", row->capacity);
        boolean(buf, "capacity_at_least", row->capacity_open);
        open(buf, "ttft_s", '{');
        number(buf, "mean", at->ttft_mean);
        number(buf, "p50", at->ttft_p50);
        number(buf, "p90", at->ttft_p90);
        number(buf, "p99", at->ttft_p99);
        shut(buf, '}');
        spread(buf, "requests", &at->requests);
        spread(buf, "work", &at->work);
        number(buf, "busy", at->busy_mean);
        number(buf, "waited", at->waited);
        number(buf, "prediction_off", i == SIM_RUNG_HISTORY ? at->predicted_off : (double)NAN);
        name(buf, "by_work");
        sim_buf_json(buf, sim_slice(sim_verdict_name(row->by_work)));
        name(buf, "by_latency");
        sim_buf_json(buf, sim_slice(sim_verdict_name(row->by_latency)));
        number(buf, "work_gain", row->work_gain);
        number(buf, "work_gain_over_best", row->work_gain_best);
        number(buf, "capacity_gain", row->capacity_gain);
        number(buf, "capacity_gain_over_best", row->capacity_gain_best);
        number(buf, "saved_replicas", row->saved_replicas);
        number(buf, "break_even_replica_hours_month_work", row->even_work_month);
        number(buf, "break_even_replica_hours_month_latency", row->even_latency_month);
        if (report->price > 0) {
                number(buf, "break_even_month_work", row->even_work_month * report->price);
                number(buf, "break_even_month_latency", row->even_latency_month * report->price);
        }
        cost(row, (enum sim_rung)i, buf);
        shut(buf, '}');
}

void sim_report_json(const struct sim_report *report, struct sim_buf *buf)
{
        open(buf, NULL, '{');
        string(buf, "trace", report->trace);
        verdict(report, buf);
        open(buf, "fleet", '{');
        number(buf, "replicas", report->replicas);
        number(buf, "capacity_tokens", (double)report->capacity_blocks * report->block_tokens);
        string(buf, "preset", report->preset);
        number(buf, "load", report->load);
        number(buf, "replica_hours_without_cache", report->work_hours);
        number(buf, "ttft_target_s", report->ttft_target_s);
        number(buf, "price", report->price > 0 ? report->price : (double)NAN);
        shut(buf, '}');
        account(report, buf);
        open(buf, "ladder", '[');
        for (unsigned i = 0; i < SIM_RUNGS; i++)
                rung(report, i, buf);
        shut(buf, ']');
        shut(buf, '}');
}
