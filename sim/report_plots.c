/* SPDX-License-Identifier: Apache-2.0 */
/* The pictures of a report on a live router. */
#include "page.h"
#include "report.h"

#include <math.h>
#include <stdio.h>

#define LABEL_MAX     96
#define NAMES_COLUMNS 56u /* characters of all names under bars together */
#define BARS_NAMED    8u  /* so many bars have names */
#define BARS_SHOWN    64u /* replicas in a plot */
#define SUBJECTS_MAX  8u  /* workloads in a plot */

/* ---- names -------------------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 character at text, 1 for what is none. */
static size_t character(const char *text)
{
        unsigned char first = (unsigned char)*text;
        size_t len = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 1;

        for (size_t i = 1; i < len; i++) {
                if (((unsigned char)text[i] & 0xc0) != 0x80)
                        return 1;
        }
        return len;
}

/* What fits under one of so many bars. */
static void short_name(const char *name, unsigned bars, char *ret, size_t size)
{
        unsigned room = NAMES_COLUMNS / (bars ? bars : 1);
        size_t len = 0;

        for (unsigned columns = 0; name[len]; columns++) {
                if (columns + 1 >= room && name[len + character(name + len)]) {
                        snprintf(ret, size, "%.*s…", (int)len, name);
                        return;
                }
                len += character(name + len);
        }
        snprintf(ret, size, "%s", name);
}

/* ---- plots -------------------------------------------------------------------------------------------- */

static void plot_rules(const struct sim_live *live, struct sim_buf *buf)
{
        double most = fmax(live->fact.reused, isnan(live->ideal) ? 0 : live->ideal);
        struct sim_plot plot = {
                .buf = buf,
                .title = "Share of the prompt tokens reused, by rule",
                .x_label = "rule",
                .y_label = "prompt tokens reused",
                .x_plain = true,
                .x_max = live->rule_count + 1,
                .x_unit = "",
                .y_unit = " %",
        };

        for (unsigned i = 0; i < live->rule_count; i++)
                most = fmax(most, live->rules[i].reused);
        plot.y_max = fmax(5, fmin(110, 115 * most));
        sim_page_section(buf, "Against simpler rules",
                         "The same requests: cache-aware (blue), and on simulated replicas of the same size "
                         "under simpler rules. Dashed: what a cache without limit would reuse.");
        sim_plot_begin(&plot);
        for (unsigned i = 0; i <= live->rule_count; i++) {
                const struct sim_live_rule *rule = i ? &live->rules[i - 1] : &live->fact;
                char label[LABEL_MAX];

                snprintf(label, sizeof label, "%.1f %%", 100 * rule->reused);
                sim_plot_bar(&plot, i + 0.18, i + 0.82, 100 * rule->reused, i ? 0 : SIM_PAGE_COLOUR,
                             rule->name);
                sim_plot_value(&plot, i + 0.18, i + 0.82, 100 * rule->reused, label);
        }
        if (isfinite(live->ideal))
                sim_plot_level(&plot, 100 * live->ideal, "");
        sim_plot_end(&plot);
        sim_page_section_end(buf);
}

static void plot_curve(const struct sim_live *live, struct sim_buf *buf)
{
        double fleet = live->capacity_known > 0 ? live->capacity : NAN, most = 0.05,
               y[KVR_LEDGER_CURVE_POINTS];
        unsigned last = 0;
        struct sim_plot plot = {
                .buf = buf,
                .title = "Hit rate by cache size",
                .x_label = "one cache of all replicas together, tokens",
                .y_label = "prompt tokens from cache",
                .x_log = true,
                .x_unit = "",
                .y_unit = " %",
        };

        sim_page_section(
                buf, "Would more memory do it, or better routing?",
                "The purple line is one cache of that size for everybody, the most that routing can reach; "
                "the dots are what each rule reaches with today's memory. A line that still rises behind "
                "<i>today</i> asks for memory, a dot far below it for routing.");
        if (live->curve_apart)
                sim_buf_puts(buf, "<p class=\"note\">The line is of the last hour, for none is kept of a "
                                  "shorter time; the dots are of the window.</p>");
        if (live->curve_count < 2) {
                sim_buf_puts(buf, "<p>Nothing is known of it yet.</p>");
                sim_page_section_end(buf);
                return;
        }
        for (unsigned i = 0; i < live->curve_count; i++) {
                y[i] = 100 * live->curve_y[i];
                most = fmax(most, live->curve_y[i]);
                /* Up to where nothing more is gained. */
                if (!last && live->curve_y[i] >= 0.999 * live->ideal)
                        last = i;
        }
        plot.x_min = live->curve_x[0];
        plot.x_max =
                fmax(live->curve_x[last ? last : live->curve_count - 1] * 4, isnan(fleet) ? 0 : fleet * 4);
        plot.x_max = fmin(plot.x_max, live->curve_x[live->curve_count - 1] * 4);
        plot.y_max = fmax(5, fmin(100, 110 * most));
        sim_buf_puts(buf, "<div class=\"legend\">");
        sim_page_key_line(buf, SIM_PAGE_COLOUR_CURVE, "", "one cache for all");
        sim_page_key_box(buf, SIM_PAGE_COLOUR, live->fact.name);
        for (unsigned i = 0; i < live->rule_count; i++)
                sim_page_key_box(buf, i % 4, live->rules[i].name);
        sim_buf_puts(buf, "</div>");
        sim_plot_begin(&plot);
        for (unsigned i = 0; i < live->curve_count && live->curve_x[i] <= plot.x_max; i++)
                last = i;
        sim_plot_line(&plot, live->curve_x, y, last + 1, SIM_PAGE_COLOUR_CURVE, "");
        if (isfinite(fleet) && fleet >= plot.x_min && fleet <= plot.x_max) {
                sim_plot_mark(&plot, fleet, "today");
                for (unsigned i = 0; i < live->rule_count; i++)
                        sim_plot_dot(&plot, fleet, 100 * live->rules[i].reused, i % 4);
                sim_plot_dot(&plot, fleet, 100 * live->fact.reused, SIM_PAGE_COLOUR);
        } else {
                sim_plot_level(&plot, 100 * live->fact.reused, live->fact.name);
        }
        sim_plot_end(&plot);
        sim_page_section_end(buf);
}

static void time_label(double ms, char *ret, size_t size)
{
        if (ms < 1000)
                snprintf(ret, size, "%.0f ms", ms);
        else if (ms < 60e3)
                snprintf(ret, size, "%.0f s", ms / 1000);
        else if (ms < 3600e3)
                snprintf(ret, size, "%.0f min", ms / 60e3);
        else
                snprintf(ret, size, "%.0f h", ms / 3600e3);
}

static void plot_bins(const struct sim_live *live, struct sim_buf *buf)
{
        sim_page_bins(
                buf,
                &(struct sim_page_bins){
                        .heading = "How much do prompts share?",
                        .note = "Requests by the tokens at their beginning that some replica still held; "
                                "since the router began.",
                        .none = "none",
                        .nothing = "Nothing was used twice.",
                        .x_label = "shared tokens, from",
                        .y_label = "requests",
                        .bins = live->all.shared_tokens,
                        .count = KVR_LEDGER_LOG_BUCKETS,
                });
        sim_page_bins(buf,
                      &(struct sim_page_bins){
                              .heading = "How soon is it used again?",
                              .note = "Reused beginnings by the time since their last use; since the router "
                                      "began.",
                              .none = "at once",
                              .nothing = "Nothing was used twice.",
                              .x_label = "time since the last use, from",
                              .y_label = "reused beginnings",
                              .label = time_label,
                              .bins = live->all.reuse_ms,
                              .count = KVR_LEDGER_LOG_BUCKETS,
                      });
}

/* Requests and computed tokens of each replica, over the mean. */
static void plot_replicas(const struct sim_live *live, struct sim_buf *buf)
{
        size_t count = live->replicas.count < BARS_SHOWN ? live->replicas.count : BARS_SHOWN;
        double requests = 0, computed = 0, most = 1;
        struct sim_plot plot = {
                .buf = buf,
                .title = "Requests and computed tokens of each replica over the mean",
                .x_label = count <= BARS_NAMED ? "replica" : "replicas, most prompt tokens first",
                .y_label = "over the mean",
                .x_plain = true,
                .x_max = (double)count,
                .x_unit = "",
                .y_unit = "×",
        };

        sim_page_section(
                buf, "Is the work spread evenly?",
                "At 1 all replicas do the same. Few requests with much work, or the other way round, is what "
                "cache-aware routing looks like; one tall orange bar is a hot spot.");
        for (size_t i = 0; i < live->replicas.count; i++) {
                const struct kvr_ledger_sums *sums = &live->replicas.items[i].sums;

                requests += (double)sums->requests;
                computed += (double)(sums->prompt_tokens - sums->won_tokens);
        }
        if (!count || requests <= 0) {
                sim_buf_puts(buf, "<p>No request yet.</p>");
                sim_page_section_end(buf);
                return;
        }
        requests /= (double)live->replicas.count;
        computed = fmax(computed, 1) / (double)live->replicas.count;
        for (size_t i = 0; i < count; i++) {
                const struct kvr_ledger_sums *sums = &live->replicas.items[i].sums;

                most = fmax(most, fmax((double)sums->requests / requests,
                                       (double)(sums->prompt_tokens - sums->won_tokens) / computed));
        }
        plot.y_max = 1.15 * most;
        sim_buf_puts(buf, "<div class=\"legend\">");
        sim_page_key_box(buf, SIM_PAGE_COLOUR, "requests");
        sim_page_key_box(buf, 3, "computed tokens");
        sim_buf_puts(buf, "</div>");
        sim_plot_begin(&plot);
        for (size_t i = 0; i < count; i++) {
                const struct sim_live_account *account = &live->replicas.items[i];
                double at = (double)i, new = (double)(account->sums.prompt_tokens - account->sums.won_tokens);
                char label[LABEL_MAX];

                short_name(account->name, (unsigned)count, label, sizeof label);
                sim_plot_bar(&plot, at + 0.12, at + 0.49, (double)account->sums.requests / requests,
                             SIM_PAGE_COLOUR, NULL);
                sim_plot_bar(&plot, at + 0.51, at + 0.88, new / computed, 3, NULL);
                sim_plot_bar(&plot, at, at + 1, 0, 3, count <= BARS_NAMED ? label : NULL);
        }
        sim_plot_level(&plot, 1, "");
        sim_plot_end(&plot);
        sim_page_section_end(buf);
}

static void plot_truth(const struct sim_live *live, struct sim_buf *buf)
{
        unsigned told = 0, bars;
        struct sim_plot plot = {
                .buf = buf,
                .title = "Share of the prompts predicted and reported to be cached, by workload",
                .x_label = "workload, most prompt tokens first",
                .y_label = "of the prompt tokens",
                .x_plain = true,
                .y_max = 100,
                .x_unit = "",
                .y_unit = " %",
        };

        for (size_t i = 0; i < live->workloads.count && told < SUBJECTS_MAX; i++)
                told += isnan(sim_live_observed(&live->workloads.items[i].sums)) ? 0 : 1;
        plot.x_max = told;
        sim_page_section(
                buf, "Does what is predicted come true?",
                "What the router thought to be cached, and what the engines reported, over the requests "
                "whose engine told. Where the green bar is lower, caches are smaller or emptied more often "
                "than thought.");
        if (!told) {
                sim_buf_puts(buf, "<p>No engine told what it had cached: unknown.</p>");
                sim_page_section_end(buf);
                return;
        }
        sim_buf_puts(buf, "<div class=\"legend\">");
        sim_page_key_box(buf, 2, "predicted");
        sim_page_key_box(buf, 5, "observed");
        sim_buf_puts(buf, "</div>");
        sim_plot_begin(&plot);
        bars = told;
        told = 0;
        for (size_t i = 0; i < live->workloads.count && told < SUBJECTS_MAX; i++) {
                const struct sim_live_account *account = &live->workloads.items[i];
                char label[LABEL_MAX];

                if (isnan(sim_live_observed(&account->sums)))
                        continue;
                short_name(account->name, bars, label, sizeof label);
                sim_plot_bar(&plot, told + 0.12, told + 0.49, 100 * sim_live_predicted(&account->sums), 2,
                             NULL);
                sim_plot_bar(&plot, told + 0.51, told + 0.88, 100 * sim_live_observed(&account->sums), 5,
                             NULL);
                sim_plot_bar(&plot, told, told + 1.0, 0, 5, label);
                told++;
        }
        sim_plot_end(&plot);
        sim_page_section_end(buf);
}

void sim_live_plots(const struct sim_live *live, struct sim_buf *buf)
{
        sim_buf_puts(buf, "<div class=\"plots\">");
        if (live->rule_count)
                plot_rules(live, buf);
        plot_curve(live, buf);
        plot_truth(live, buf);
        plot_replicas(live, buf);
        plot_bins(live, buf);
        sim_buf_puts(buf, "</div>");
}
