/* SPDX-License-Identifier: Apache-2.0 */
/* A report for a terminal. */
#include "analyze.h"

#include <math.h>
#include <stdio.h>

#define WRAP      100
#define BAR_WIDTH 40
#define BIN_SHOWN 0.0005 /* of all; what is less would be shown as 0.0 % */

void sim_report_wrap(void *ctx, const char *text)
{
        struct sim_buf *buf = ctx;
        size_t column = 1;

        sim_buf_puts(buf, "-");
        while (*text) {
                size_t len = strcspn(text, " ");

                if (text[len] && text[len + 1] == '%')
                        len += 1 + strcspn(text + len + 1, " ");
                if (column + 1 + len > WRAP) {
                        sim_buf_puts(buf, "\n ");
                        column = 1;
                }
                sim_buf_puts(buf, " ");
                sim_buf_add(buf, text, len);
                column += 1 + len;
                text += len + (text[len] == ' ');
        }
        sim_buf_puts(buf, "\n");
}

static void figure(struct sim_buf *buf, int decimals, double value, int width)
{
        char text[48];

        if (isnan(value))
                snprintf(text, sizeof(text), "-");
        else if (isinf(value))
                snprintf(text, sizeof(text), "inf");
        else
                snprintf(text, sizeof(text), "%.*f", decimals, value);
        sim_buf_printf(buf, "  %*s", width, text);
}

/* ---- the account -------------------------------------------------------------------------------------- */

/* Bars for the bins from the first to the last that has anything; unit goes behind a bin's upper edge. */
static void histogram(struct sim_buf *buf, const char *title, const char *none, const char *unit,
                      const double *bins)
{
        unsigned first = SIM_ACCOUNT_BINS, last = 0;
        double most = 0, sum = 0;

        for (unsigned i = 0; i < SIM_ACCOUNT_BINS; i++) {
                if (bins[i] <= 0)
                        continue;
                first = i < first ? i : first;
                last = i;
                sum += bins[i];
                most = fmax(most, bins[i]);
        }
        if (sum <= 0)
                return;
        sim_buf_printf(buf, "\n%s\n", title);
        for (unsigned i = first; i <= last; i++) {
                char label[32];

                if (bins[i] < BIN_SHOWN * sum)
                        continue;
                if (i == 0)
                        snprintf(label, sizeof(label), "%s", none);
                else
                        snprintf(label, sizeof(label), "< %.0f %s", exp2(i), unit);
                sim_buf_printf(buf, "  %16s %5.1f %%  ", label, 100 * bins[i] / sum);
                for (int bar = 0; bar < (int)lround(BAR_WIDTH * bins[i] / most); bar++)
                        sim_buf_puts(buf, "#");
                sim_buf_puts(buf, "\n");
        }
}

static void curve(const struct sim_report *report, struct sim_buf *buf)
{
        const struct sim_account *account = &report->account;
        double fleet = (double)report->capacity_blocks * report->replicas;

        if (account->matched_tokens <= 0)
                return;
        sim_buf_puts(buf, "\nhit rate of one cache for all\n");
        for (int step = -4; step <= 3; step++) {
                double blocks = floor(fleet * exp2(2.0 * step));

                if (blocks < 1 || (step > 0 && blocks > 4 * account->distinct_blocks))
                        continue;
                sim_buf_printf(buf, "  %12.0f tokens  %5.1f %%%s\n", blocks * report->block_tokens,
                               100 * sim_account_token_hit(account, (uint64_t)blocks),
                               step == 0 ? "  this fleet's" : "");
        }
        sim_buf_printf(buf, "  %12s         %5.1f %%\n", "unlimited", 100 * report->ideal_hit);
}

static void account_text(const struct sim_report *report, struct sim_buf *buf)
{
        const struct sim_account *a = &report->account;
        double policy = report->rungs[SIM_RUNG_HEADLINE].at_pace.token_hit;

        sim_buf_printf(buf, "\nrequests %.0f in %.0f s (%.2f/s), ", a->requests, a->span_s,
                       a->requests / fmax(a->span_s, 1e-3));
        if (a->sessions > 0)
                sim_buf_printf(buf, "sessions %.0f, ", a->sessions);
        sim_buf_printf(buf,
                       "prompt tokens %.0f: mean %.0f p50 %.0f p90 %.0f p99 %.0f\n"
                       "blocks of %u tokens: %.0f, distinct %.0f\n",
                       a->prompt_tokens, a->input_mean, a->input_p50, a->input_p90, a->input_p99,
                       report->block_tokens, a->blocks, a->distinct_blocks);
        sim_buf_printf(buf,
                       "fleet: %u replicas x %.0f tokens of cache, %s; prefill work without a cache %.2f "
                       "replica-hours, "
                       "load %.3f%s\n",
                       report->replicas, (double)report->capacity_blocks * report->block_tokens,
                       report->preset, report->work_hours, report->load,
                       report->load_given ? " (given)" : "");
        sim_buf_printf(buf,
                       "hit rate by tokens: ideal %.4f >= pooled %.4f >= cache-aware %.4f; lost to capacity "
                       "%.4f, to "
                       "routing %.4f; locality efficiency %.3f\n",
                       report->ideal_hit, report->pooled_hit, policy, report->ideal_hit - report->pooled_hit,
                       report->pooled_hit - policy, report->pooled_hit > 0 ? policy / report->pooled_hit : 1);
        if (a->matched_tokens <= 0)
                return;
        sim_buf_printf(buf,
                       "          by blocks: ideal %.4f >= pooled %.4f; by requests (any hit): ideal %.4f\n"
                       "matched tokens (no limit): p10 %.0f p25 %.0f p50 %.0f p75 %.0f p90 %.0f p99 %.0f\n",
                       a->matched_blocks / a->blocks,
                       sim_account_block_hit(a, (uint64_t)report->capacity_blocks * report->replicas),
                       a->matched_requests / a->requests, a->matched_p10, a->matched_p25, a->matched_p50,
                       a->matched_p75, a->matched_p90, a->matched_p99);
        if (!isnan(a->in_session_tokens))
                sim_buf_printf(buf,
                               "hits from the own session %.1f %%, from others %.1f %%; mean of the "
                               "sessions' ideal hit rates %.4f\n",
                               100 * a->in_session_tokens / a->matched_tokens,
                               100 * a->cross_session_tokens / a->matched_tokens, a->session_hit);
        sim_buf_printf(buf,
                       "hits of the busiest 1, 10, 100 blocks: %.1f, %.1f, %.1f %%; reuse after p50 %.1f s, "
                       "p90 %.1f s",
                       100 * a->top_share[0], 100 * a->top_share[1], 100 * a->top_share[2], a->gap_p50_s,
                       a->gap_p90_s);
        if (!isnan(a->zipf))
                sim_buf_printf(buf, "; Zipf slope %.2f", a->zipf);
        sim_buf_puts(buf, "\n");
        histogram(buf, "shared prefix (requests by tokens that were seen before)", "none", "tokens",
                  a->prefix_bins);
        histogram(buf, "reuse (hit blocks by time since their last use)", "< 1 s", "s", a->gap_bins);
        curve(report, buf);
}

/* ---- the ladder --------------------------------------------------------------------------------------- */

/* Of the search's ceiling it is said that it is one. */
static void capacity(struct sim_buf *buf, const struct sim_rung_row *row)
{
        char text[48];

        snprintf(text, sizeof(text), "%s%.3f", row->capacity_open ? ">=" : "", row->capacity);
        sim_buf_printf(buf, "  %9s", text);
}

static void ladder_figures(const struct sim_report *report, struct sim_buf *buf)
{
        sim_buf_printf(buf, "\n%-24s %-6s  %6s  %6s  %6s  %9s  %8s  %8s  %8s  %8s  %9s  %-13s  %-13s\n",
                       "rung", "rule", "hit", "blocks", "req", "saved Mt", "saved h", "TTFT p50", "TTFT p90",
                       "TTFT p99", "capacity", "by work", "by latency");
        for (unsigned i = 0; i < SIM_RUNGS; i++) {
                const struct sim_rung_row *row = &report->rungs[i];
                const struct sim_rung_result *at = &row->at_pace;
                const struct sim_rung_kind *kind = sim_rung_kind((enum sim_rung)i);

                sim_buf_printf(buf, "%-2s %-21s %-6s", kind->id, kind->name, row->policy);
                figure(buf, 4, at->token_hit, 6);
                figure(buf, 4, at->block_hit, 6);
                figure(buf, 4, at->request_hit, 6);
                figure(buf, 2, at->hit_tokens / 1e6, 9);
                figure(buf, 2, at->saved_s / 3600, 8);
                figure(buf, 2, at->ttft_p50, 8);
                figure(buf, 2, at->ttft_p90, 8);
                figure(buf, 2, at->ttft_p99, 8);
                capacity(buf, row);
                sim_buf_printf(buf, "  %-13s  %-13s\n", i ? sim_verdict_name(row->by_work) : "-",
                               !i             ? "-"
                               : report->idle ? "- (idle)"
                                              : sim_verdict_name(row->by_latency));
        }
        sim_buf_printf(
                buf,
                "capacity: times the trace's pace with p90 of TTFT within %.4g s (>=: the highest tried); "
                "verdicts against simpler rungs; saved against no cache at all\n",
                report->ttft_target_s);
}

static void ladder_balance(const struct sim_report *report, struct sim_buf *buf)
{
        sim_buf_printf(buf, "\n%-24s  %-31s  %-31s  %6s  %6s\n", "over replicas",
                       "requests: m/m    CV   Jain  10s p95", "work:     m/m    CV   Jain  10s p95", "busy",
                       "waited");
        for (unsigned i = 0; i < SIM_RUNGS; i++) {
                const struct sim_rung_result *at = &report->rungs[i].at_pace;
                const struct sim_rung_kind *kind = sim_rung_kind((enum sim_rung)i);
                const struct sim_rung_spread *spreads[] = {&at->requests, &at->work};

                sim_buf_printf(buf, "%-2s %-21s", kind->id, kind->name);
                for (unsigned at_spread = 0; at_spread < 2; at_spread++) {
                        sim_buf_puts(buf, "     ");
                        figure(buf, 2, spreads[at_spread]->max_over_mean, 6);
                        figure(buf, 2, spreads[at_spread]->cv, 4);
                        figure(buf, 3, spreads[at_spread]->jain, 5);
                        figure(buf, 2, spreads[at_spread]->hot_p95, 7);
                }
                figure(buf, 3, at->busy_mean, 6);
                figure(buf, 3, at->waited, 6);
                sim_buf_puts(buf, "\n");
        }
}

static void ladder_cost(const struct sim_report *report, struct sim_buf *buf)
{
        sim_buf_puts(buf, "\nwhat a rung costs to run\n");
        for (unsigned i = 0; i < SIM_RUNGS; i++) {
                const struct sim_rung_row *row = &report->rungs[i];
                const struct sim_rung_kind *kind = sim_rung_kind((enum sim_rung)i);

                sim_buf_printf(buf, "%-2s %-20s  state %.0f bytes, %.0f us of processor a request%s\n",
                               kind->id, kind->name, row->state_bytes, row->cpu_us,
                               i == SIM_RUNG_EVENTS ? " and the events, which were not measured" : "");
                sim_buf_printf(buf, "   %-20s  %s; stale: %s\n", "", kind->processes, kind->staleness);
                sim_buf_printf(buf, "   %-20s  fails: %s\n", "", kind->failures);
                if (!i)
                        continue;
                sim_buf_printf(buf, "   %-20s  over the rung below: work", "");
                sim_buf_printf(buf, " %+.1f %%, capacity", -100 * row->work_gain + 0.0);
                if (isfinite(row->capacity_gain))
                        sim_buf_printf(buf, " %+.1f %%", 100 * row->capacity_gain);
                else
                        sim_buf_puts(buf, " unknown");
                sim_buf_printf(buf, "; may cost %.1f replica-hours a month for the work",
                               row->even_work_month);
                if (!isnan(row->even_latency_month))
                        sim_buf_printf(buf, ", %.1f for the replicas", row->even_latency_month);
                if (report->price > 0) {
                        sim_buf_printf(buf, " (%.2f", row->even_work_month * report->price);
                        if (!isnan(row->even_latency_month))
                                sim_buf_printf(buf, " and %.2f", row->even_latency_month * report->price);
                        sim_buf_printf(buf, " at %.2f)", report->price);
                }
                sim_buf_puts(buf, "\n");
        }
        sim_buf_puts(
                buf,
                "processor time: bench/proxy/run.py on the machine of docs/benchmarks.md (a proxy that does "
                "not read bodies: nginx),\n"
                "at this trace's mean prompt of 4 bytes a token\n");
}

void sim_report_text(const struct sim_report *report, struct sim_buf *buf)
{
        enum sim_rung best = sim_verdict_recommended(report->rungs);

        sim_buf_printf(buf, "%s\ncache-aware routing: ", report->trace);
        sim_report_headline(report, buf);
        sim_buf_puts(buf, "\n\n");
        sim_report_short(report, sim_report_wrap, buf);
        sim_report_reasons(report, sim_report_wrap, buf);
        sim_buf_printf(buf, "  highest rung that is justified: %s %s (%s)\n", sim_rung_kind(best)->id,
                       sim_rung_kind(best)->name, sim_rung_kind(best)->what);
        account_text(report, buf);
        ladder_figures(report, buf);
        ladder_balance(report, buf);
        ladder_cost(report, buf);
}
