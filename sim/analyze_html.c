/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A report as one page: the verdict first, in words, then pictures, then the tables. No script, nothing
 * loaded.
 */
#include "analyze.h"
#include "analyze_svg.h"
#include "page.h"

#include <math.h>
#include <stdio.h>

#define CURVE_POINTS 80
#define LABEL_MAX    96
#define TTFT_DECADES 2.5 /* of the plot of times, below its upper edge */

/* ---- the verdict -------------------------------------------------------------------------------------- */

static void verdict(const struct sim_report *report, struct sim_buf *buf)
{
        const struct sim_rung_row *row = &report->rungs[SIM_RUNG_HEADLINE];
        enum sim_verdict best = row->by_work > row->by_latency ? row->by_work : row->by_latency;

        sim_buf_printf(buf, "<section class=\"verdict v%d\"><h1>Is cache-aware routing worth it for ",
                       (int)best);
        sim_html_text(buf, report->trace);
        sim_buf_printf(buf, "?</h1><p class=\"big v%d\">It is ", (int)best);
        sim_report_headline(report, buf);
        sim_buf_puts(buf, ".</p><p class=\"short\">");
        sim_report_short(report, sim_page_plain, buf);
        sim_buf_puts(buf, "</p><div>Less prefill work: ");
        sim_page_verdict(buf, row->by_work);
        sim_buf_puts(buf, " &nbsp; More load at the same latency: ");
        if (report->idle)
                sim_buf_puts(buf, "<span class=\"pill\">no verdict: nothing queues</span>");
        else
                sim_page_verdict(buf, row->by_latency);
        sim_buf_puts(buf, "</div><ul>");
        sim_report_reasons(report, sim_page_item, buf);
        sim_buf_puts(buf, "</ul></section>");
}

static void duration(double seconds, char *ret, size_t size)
{
        if (seconds < 100)
                snprintf(ret, size, "%.2f s", seconds);
        else if (seconds < 1000)
                snprintf(ret, size, "%.0f s", seconds);
        else
                snprintf(ret, size, "%.1f h", seconds / 3600);
}

/* Before the search's ceiling, which is no measured capacity. */
static const char *at_least(const struct sim_rung_row *row)
{
        return row->capacity_open ? "≥ " : "";
}

static void tiles(const struct sim_report *report, struct sim_buf *buf)
{
        const struct sim_rung_row *row = &report->rungs[SIM_RUNG_HEADLINE], *turns = &report->rungs[0];
        const struct sim_account *account = &report->account;
        char value[LABEL_MAX], what[2 * LABEL_MAX], before[32], after[32];

        sim_buf_puts(buf, "<div class=\"tiles\">");
        snprintf(value, sizeof(value), "%.1f → %.1f %%", 100 * turns->at_pace.token_hit,
                 100 * row->at_pace.token_hit);
        sim_page_tile(buf, value, "prompt tokens from cache: round robin → cache-aware");
        sim_plot_number((turns->at_pace.none_s - turns->at_pace.saved_s) / 3600, before, sizeof(before));
        sim_plot_number((row->at_pace.none_s - row->at_pace.saved_s) / 3600, after, sizeof(after));
        snprintf(value, sizeof(value), "%s → %s h", before, after);
        snprintf(what, sizeof(what), "replica-hours of prefill, of %.2f without a cache", report->work_hours);
        sim_page_tile(buf, value, what);
        duration(turns->at_pace.ttft_p90, before, sizeof(before));
        duration(row->at_pace.ttft_p90, after, sizeof(after));
        snprintf(value, sizeof(value), "%s → %s", before, after);
        sim_page_tile(buf, value, "90th percentile of the time to first token, at the trace's pace");
        snprintf(value, sizeof(value), "%s%.3g× → %s%.3g×", at_least(turns), turns->capacity, at_least(row),
                 row->capacity);
        snprintf(what, sizeof(what), "this traffic, carried within %.4g s%s", report->ttft_target_s,
                 row->capacity_open ? " (≥: the most that was tried)" : "");
        sim_page_tile(buf, value, what);
        sim_plot_number(account->prompt_tokens, before, sizeof(before));
        snprintf(value, sizeof(value), "%.0f", account->requests);
        snprintf(what, sizeof(what), "requests with %s prompt tokens in %.2f h; %u replicas, %s", before,
                 account->span_s / 3600, report->replicas, report->preset);
        sim_page_tile(buf, value, what);
        sim_buf_puts(buf, "</div>");
}

/* ---- plots -------------------------------------------------------------------------------------------- */

static const char *stroke_of(unsigned rung)
{
        return rung == SIM_RUNG_HEADLINE ? "w" : rung == SIM_RUNG_EVENTS ? "h" : "";
}

static void legend(struct sim_buf *buf, const char *curve)
{
        char text[LABEL_MAX];

        sim_buf_puts(buf, "<div class=\"legend\">");
        for (unsigned i = 0; i < SIM_RUNGS; i++) {
                const struct sim_rung_kind *kind = sim_rung_kind((enum sim_rung)i);

                snprintf(text, sizeof(text), "%s %s", kind->id, kind->name);
                sim_page_key_line(buf, i, stroke_of(i), text);
        }
        if (curve)
                sim_page_key_line(buf, SIM_PAGE_COLOUR_CURVE, "", curve);
        sim_buf_puts(buf, "</div>");
}

static void plot_sizes(const struct sim_report *report, struct sim_buf *buf)
{
        const struct sim_account *account = &report->account;
        const struct sim_analyze_plots *plots = &report->plots;
        double replicas = report->replicas,
               fleet = (double)report->capacity_blocks * report->block_tokens * replicas;
        double x[CURVE_POINTS], y[CURVE_POINTS], most = report->ideal_hit;
        struct sim_plot plot = {
                .buf = buf,
                .title = "Hit rate by cache size",
                .x_label = "cache of all replicas together, tokens",
                .y_label = "prompt tokens from cache",
                .x_min = fleet / 64,
                .x_max = fleet * 8,
                .x_log = true,
                .x_unit = "",
                .y_unit = " %",
        };

        for (unsigned i = 0; i < CURVE_POINTS; i++) {
                x[i] = plot.x_min * pow(plot.x_max / plot.x_min, i / (CURVE_POINTS - 1.0));
                y[i] = 100 * sim_account_token_hit(account, (uint64_t)(x[i] / report->block_tokens));
                most = fmax(most, y[i] / 100);
        }
        plot.y_max = fmax(5, fmin(100, 110 * most));
        sim_buf_puts(
                buf,
                "<section><h2>Would more memory do it, or better routing?</h2><p class=\"note\">The purple "
                "line is one cache of that size for everybody, the most that routing can reach. The lines "
                "below are what each rule reaches.</p>");
        legend(buf, "one cache for all");
        sim_plot_begin(&plot);
        sim_plot_mark(&plot, fleet, "today");
        sim_plot_line(&plot, x, y, CURVE_POINTS, SIM_PAGE_COLOUR_CURVE, "");
        for (unsigned rung = 0; rung < SIM_RUNGS; rung++) {
                for (unsigned i = 0; i < SIM_ANALYZE_SIZES; i++) {
                        x[i] = plots->sizes[i] * replicas;
                        y[i] = 100 * plots->hit[rung][i];
                }
                sim_plot_line(&plot, x, y, SIM_ANALYZE_SIZES, rung, stroke_of(rung));
                sim_plot_dot(&plot, fleet, 100 * report->rungs[rung].at_pace.token_hit, rung);
        }
        sim_plot_end(&plot);
        sim_buf_puts(buf, "</section>");
}

static void plot_times(const struct sim_report *report, struct sim_buf *buf)
{
        const struct sim_analyze_plots *plots = &report->plots;
        char label[LABEL_MAX];
        struct sim_plot plot = {
                .buf = buf,
                .title = "90th percentile of the time to first token by load, per rule",
                .x_label = "traffic, times the trace's",
                .y_label = "p90 of time to first token",
                .x_min = 0,
                .x_max = plots->speeds[SIM_ANALYZE_SPEEDS - 1],
                .y_max = 5 * report->ttft_target_s,
                .y_log = true,
                .x_unit = "×",
                .y_unit = " s",
        };

        plot.y_min = plot.y_max / pow(10, TTFT_DECADES);
        snprintf(label, sizeof(label), "target %.4g s", report->ttft_target_s);
        sim_buf_puts(
                buf,
                "<section><h2>How much traffic does the fleet carry?</h2><p class=\"note\">Each rule holds "
                "the target up to where its line crosses it; further right is better.</p>");
        legend(buf, NULL);
        sim_plot_begin(&plot);
        sim_plot_level(&plot, report->ttft_target_s, label);
        if (plot.x_max > 1)
                sim_plot_mark(&plot, 1, "today");
        for (unsigned rung = 0; rung < SIM_RUNGS; rung++)
                sim_plot_line(&plot, plots->speeds, plots->p90[rung], SIM_ANALYZE_SPEEDS, rung,
                              stroke_of(rung));
        sim_plot_end(&plot);
        sim_buf_puts(buf, "</section>");
}

static void plot_spread(const struct sim_report *report, struct sim_buf *buf)
{
        double most = 1;
        struct sim_plot plot = {
                .buf = buf,
                .title = "Prefill work of each replica over the mean, per rule",
                .x_label = "replicas of each rule, busiest first",
                .y_label = "work over the mean",
                .x_plain = true,
                .x_max = SIM_RUNGS,
                .x_unit = "",
                .y_unit = "×",
        };

        for (unsigned rung = 0; rung < SIM_RUNGS; rung++)
                most = fmax(most, report->rungs[rung].at_pace.work.max_over_mean);
        plot.y_max = 1.1 * most;
        sim_buf_puts(
                buf,
                "<section><h2>Is the work spread evenly?</h2><p class=\"note\">A bar is a replica; at 1 all "
                "do the same. Sums over the whole trace; the table has ten-second windows.</p>");
        sim_plot_begin(&plot);
        for (unsigned rung = 0; rung < SIM_RUNGS; rung++) {
                const double *share = report->rungs[rung].share;
                double before = INFINITY, step = 0.8 / report->replicas;
                uint32_t drawn = 0;

                /* By falling share, equal ones together. */
                while (drawn < report->replicas) {
                        double next = -1;
                        uint32_t equal = 0;

                        for (uint32_t i = 0; i < report->replicas; i++)
                                next = share[i] < before ? fmax(next, share[i]) : next;
                        for (uint32_t i = 0; i < report->replicas; i++)
                                equal += share[i] <= next && share[i] >= next;
                        for (; equal; equal--, drawn++)
                                sim_plot_bar(&plot, rung + 0.1 + step * drawn,
                                             rung + 0.1 + step * (drawn + 0.85), next * report->replicas,
                                             rung, NULL);
                        before = next;
                        if (next < 0)
                                break;
                }
                sim_plot_bar(&plot, rung, rung + 1, 0, rung, sim_rung_kind((enum sim_rung)rung)->id);
        }
        sim_plot_level(&plot, 1, "");
        sim_plot_end(&plot);
        sim_buf_puts(buf, "</section>");
}

static void plot_hot(const struct sim_report *report, struct sim_buf *buf)
{
        struct sim_plot plot = {
                .buf = buf,
                .title = "Busiest replica over the mean within ten seconds, 95th percentile, per rule",
                .x_label = "rule",
                .y_label = "busiest over the mean",
                .x_plain = true,
                .x_max = SIM_RUNGS,
                .y_max = 1.1 * report->replicas,
                .x_unit = "",
                .y_unit = "×",
        };

        sim_buf_puts(
                buf,
                "<section><h2>Are there hot spots?</h2><p class=\"note\">The busiest replica's work over the "
                "mean in windows of ten seconds, of 20 windows the worst. Where few requests come in ten "
                "seconds it is high for any rule.</p>");
        sim_plot_begin(&plot);
        for (unsigned rung = 0; rung < SIM_RUNGS; rung++) {
                double hot = report->rungs[rung].at_pace.work.hot_p95;

                sim_plot_bar(&plot, rung + 0.2, rung + 0.8, isnan(hot) ? 0 : hot, rung,
                             sim_rung_kind((enum sim_rung)rung)->id);
        }
        sim_plot_level(&plot, 1, "");
        sim_plot_end(&plot);
        sim_buf_puts(buf, "</section>");
}

/* ---- tables ------------------------------------------------------------------------------------------- */

static const char *row_class(unsigned rung)
{
        return rung == SIM_RUNG_HEADLINE ? " class=\"us\"" : "";
}

static void cell(struct sim_buf *buf, int decimals, double value, const char *unit)
{
        char text[48] = "–";

        if (isinf(value))
                snprintf(text, sizeof(text), "∞");
        else if (!isnan(value))
                snprintf(text, sizeof(text), "%.*f%s", decimals, value, unit);
        sim_buf_printf(buf, "<td>%s</td>", text);
}

static void time_cell(struct sim_buf *buf, double seconds)
{
        char text[32];

        duration(seconds, text, sizeof(text));
        sim_buf_printf(buf, "<td>%s</td>", text);
}

static void verdict_cells(const struct sim_report *report, const struct sim_rung_row *row,
                          struct sim_buf *buf)
{
        sim_buf_puts(buf, "<td>");
        if (row != report->rungs)
                sim_page_verdict(buf, row->by_work);
        sim_buf_puts(buf, "</td><td>");
        if (row != report->rungs && report->idle)
                sim_buf_puts(buf, "nothing queues");
        else if (row != report->rungs)
                sim_page_verdict(buf, row->by_latency);
        sim_buf_puts(buf, "</td>");
}

static void ladder(const struct sim_report *report, struct sim_buf *buf)
{
        sim_buf_puts(
                buf,
                "<section><h2>The ladder</h2><p class=\"note\">From simple to elaborate; every step has to "
                "earn its keep against what is simpler. Carries: times this traffic; ≥: the most that was "
                "tried. The blue row is kvroute as it comes.</p><div "
                "class=\"wide\"><table class=\"ladder\"><thead><tr><th>rung</th><th>by work</th><th>by "
                "latency</th><th>hit rate</th><th>tokens avoided</th><th>hours saved</th><th>carries</th>"
                "<th>TTFT p90</th><th>p99</th><th>work max/mean</th><th>in 10 s</th></tr>"
                "</thead><tbody>");
        for (unsigned i = 0; i < SIM_RUNGS; i++) {
                const struct sim_rung_row *row = &report->rungs[i];
                const struct sim_rung_result *at = &row->at_pace;
                const struct sim_rung_kind *kind = sim_rung_kind((enum sim_rung)i);
                char tokens[32];

                sim_plot_number(at->hit_tokens, tokens, sizeof(tokens));
                sim_buf_printf(buf, "<tr%s><td>%s %s</td>", row_class(i), kind->id, kind->name);
                verdict_cells(report, row, buf);
                cell(buf, 1, 100 * at->token_hit, " %");
                sim_buf_printf(buf, "<td>%s</td>", tokens);
                cell(buf, 2, at->saved_s / 3600, "");
                if (row->capacity > 0)
                        sim_buf_printf(buf, "<td>%s%.2f×</td>", at_least(row), row->capacity);
                else
                        sim_buf_puts(buf, "<td>too slow</td>");
                time_cell(buf, at->ttft_p90);
                time_cell(buf, at->ttft_p99);
                cell(buf, 2, at->work.max_over_mean, "");
                cell(buf, 2, at->work.hot_p95, "");
                sim_buf_puts(buf, "</tr>");
        }
        sim_buf_puts(buf, "</tbody></table></div></section>");
}

static void operations(const struct sim_report *report, struct sim_buf *buf)
{
        sim_buf_puts(
                buf,
                "<section><h2>What each rung costs to run</h2><p class=\"note\">Processor time as "
                "bench/proxy/run.py measured it on the machine of docs/benchmarks.md, at this trace's mean "
                "prompt; break-even: what the step may cost a month until it eats what it saves over the "
                "rung below.</p><div class=\"wide\"><table class=\"ops\"><thead><tr><th>rung</th><th>state"
                "</th><th>CPU a request</th><th>processes</th><th>what can fail</th><th>staleness</th><th>"
                "break-even a month, work / replicas</th></tr></thead><tbody>");
        for (unsigned i = 0; i < SIM_RUNGS; i++) {
                const struct sim_rung_row *row = &report->rungs[i];
                const struct sim_rung_kind *kind = sim_rung_kind((enum sim_rung)i);
                double unit = report->price > 0 ? report->price : 1;
                char state[32];

                sim_plot_number(row->state_bytes, state, sizeof(state));
                if (row->state_bytes < 1000)
                        snprintf(state, sizeof(state), "%.0f ", row->state_bytes);
                sim_buf_printf(buf,
                               "<tr%s><td>%s %s<br><small>%s</small></td><td>%sB</td><td>%.0f "
                               "µs%s</td><td>%s</td><td>%s"
                               "</td><td>%s</td><td>",
                               row_class(i), kind->id, kind->name, kind->what, state, row->cpu_us,
                               i == SIM_RUNG_EVENTS ? " + events" : "", kind->processes, kind->failures,
                               kind->staleness);
                if (i)
                        sim_buf_printf(buf, "%.0f", unit * row->even_work_month);
                if (i && !isnan(row->even_latency_month))
                        sim_buf_printf(buf, " / %.0f", unit * row->even_latency_month);
                sim_buf_printf(buf, "%s</td></tr>", !i ? "–" : report->price > 0 ? "" : " replica-hours");
        }
        sim_buf_puts(buf, "</tbody></table></div></section>");
}

static void page_of(const struct sim_report *report, struct sim_buf *buf)
{
        const struct sim_account *account = &report->account;

        verdict(report, buf);
        tiles(report, buf);
        sim_buf_puts(buf, "<div class=\"plots\">");
        if (report->plots.made) {
                plot_sizes(report, buf);
                plot_times(report, buf);
        }
        sim_page_bins(buf, &(struct sim_page_bins){
                                   .heading = "How much do prompts share?",
                                   .note = "Requests by the tokens at their beginning that were seen before.",
                                   .none = "none",
                                   .nothing = "Nothing was used twice.",
                                   .x_label = "tokens seen before, from",
                                   .y_label = "requests",
                                   .bins = account->prefix_bins,
                                   .count = SIM_ACCOUNT_BINS,
                           });
        sim_page_bins(buf, &(struct sim_page_bins){
                                   .heading = "How soon is it used again?",
                                   .note = "Reused blocks by the time since their last use.",
                                   .none = "0",
                                   .nothing = "Nothing was used twice.",
                                   .x_label = "seconds, from",
                                   .y_label = "reused blocks",
                                   .bins = account->gap_bins,
                                   .count = SIM_ACCOUNT_BINS,
                           });
        plot_spread(report, buf);
        plot_hot(report, buf);
        sim_buf_puts(buf, "</div>");
        ladder(report, buf);
        operations(report, buf);
}

void sim_report_html(const struct sim_report *reports, size_t count, struct sim_buf *buf)
{
        sim_page_begin(buf, "kvroute analyze");
        for (size_t i = 0; i < count; i++)
                page_of(&reports[i], buf);
        sim_page_end(buf);
}
