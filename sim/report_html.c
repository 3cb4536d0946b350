/* SPDX-License-Identifier: Apache-2.0 */
/* A report on a live router as one page: the verdict first, in words, then pictures, then the tables. */
#include "page.h"
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LABEL_MAX  96
#define ROWS_SHOWN 40u /* of a table */

/* What became of a prompt's tokens, as bars and legends show it. */
enum part { PART_WON, PART_PLACEMENT, PART_STALENESS, PART_WORKLOAD, PARTS };
static const struct {
        const char *name, *text;
        unsigned colour;
} parts[PARTS] = {
        {"reused", "reused: was still cached, no work", 5},
        {"elsewhere",
         "held elsewhere: another replica had it, passed over for load or by a policy that does not look", 2},
        {"gone", "expected, but gone: the engine had dropped it", 3},
        {"new", "new: no replica had it", 0},
};

static double part_of(const struct kvr_ledger_sums *sums, enum part part)
{
        const uint64_t tokens[PARTS] = {sums->won_tokens, sums->placement_tokens, sums->staleness_tokens,
                                        sums->workload_tokens};

        return sim_live_share(tokens[part], sums->prompt_tokens);
}

/* ---- the verdict -------------------------------------------------------------------------------------- */

static void verdict(const struct sim_live *live, struct sim_buf *buf)
{
        const struct sim_live_verdict *v = &live->verdict;
        int best = !v->judged ? 0 : (int)(v->by_work > v->by_load ? v->by_work : v->by_load);

        sim_buf_printf(buf, "<section class=\"verdict v%d\"><h1>Is cache-aware routing worth it at ", best);
        sim_html_text(buf, live->url);
        sim_buf_printf(buf, "?</h1><p class=\"big v%d\">", best);
        sim_live_headline(live, buf);
        sim_buf_puts(buf, ".</p><p class=\"short\">");
        sim_live_short(live, sim_page_plain, buf);
        sim_buf_puts(buf, "</p>");
        if (v->judged) {
                sim_buf_puts(buf, "<div class=\"pills\"><span>Less prefill work: ");
                sim_page_verdict(buf, v->by_work);
                sim_buf_puts(buf, "</span><span>More load on the same replicas: ");
                if (v->idle)
                        sim_page_pill(buf, SIM_VERDICT_NO, "no verdict: nothing queues");
                else
                        sim_page_verdict(buf, v->by_load);
                sim_buf_puts(buf, "</span></div>");
        }
        sim_buf_puts(buf, "<ul>");
        sim_live_reasons(live, sim_page_item, buf);
        sim_buf_puts(buf, "</ul></section>");
}

static void alarms(const struct sim_live *live, struct sim_buf *buf)
{
        yyjson_val *list = yyjson_obj_get(yyjson_doc_get_root(live->pages[SIM_LIVE_ALARMS]), "alarms"),
                   *alarm;
        size_t i, max;

        if (!yyjson_arr_size(list)) {
                sim_buf_puts(buf,
                             "<section class=\"calm\"><h2>Alarms</h2><p class=\"note\">None: matching, the "
                             "engines' reports and load figures work.</p></section>");
                return;
        }
        sim_buf_puts(buf, "<section class=\"alarms\"><h2>Alarms</h2><ul>");
        yyjson_arr_foreach(list, i, max, alarm)
        {
                const char *name = yyjson_get_str(yyjson_obj_get(alarm, "alarm"));
                const char *replica = yyjson_get_str(yyjson_obj_get(alarm, "replica"));
                const char *text = yyjson_get_str(yyjson_obj_get(alarm, "text"));
                char since[32];

                sim_live_seconds(yyjson_get_num(yyjson_obj_get(alarm, "for_s")), since, sizeof since);
                sim_buf_puts(buf, "<li><b>");
                sim_html_text(buf, name ? name : "?");
                sim_buf_puts(buf, "</b> · ");
                sim_html_text(buf, replica ? replica : "whole fleet");
                sim_buf_printf(buf, " · for %s<br>", since);
                sim_html_text(buf, text ? text : "");
                sim_buf_puts(buf, "</li>");
        }
        sim_buf_puts(buf, "</ul></section>");
}

static void tiles(const struct sim_live *live, struct sim_buf *buf)
{
        const struct sim_live_verdict *v = &live->verdict;
        const struct kvr_ledger_sums *sums = &live->all.sums;
        char value[LABEL_MAX], what[2 * LABEL_MAX], tokens[32], span[64];

        sim_live_span(live, span, sizeof span);
        sim_buf_puts(buf, "<div class=\"tiles\">");
        snprintf(value, sizeof value, "%.1f %%", 100 * sim_live_share(sums->won_tokens, sums->prompt_tokens));
        sim_plot_number((double)sums->prompt_tokens, tokens, sizeof tokens);
        snprintf(what, sizeof what, "of %s prompt tokens %s %s%s", tokens,
                 v->mirror ? "that would have been reused" : "reused", span,
                 v->mirror ? ", as predicted" : "");
        sim_page_tile(buf, value, what);
        if (live->rule_count) {
                snprintf(value, sizeof value, "%+.1f points", 100 * v->points);
                snprintf(what, sizeof what, "of reuse against %s, the simpler rule that computes least",
                         live->rules[v->least].name);
                sim_page_tile(buf, value, what);
        }
        sim_live_seconds((double)sums->avoided_ns / 1e9, value, sizeof value);
        if (sums->won_tokens && !sums->avoided_ns)
                snprintf(value, sizeof value, "unknown");
        sim_page_tile(buf, value,
                      v->mirror ? "of replica time that would not have been needed, as predicted"
                                : "of replica time that was not needed");
        if (v->judged && isfinite(v->even_work_month)) {
                snprintf(value, sizeof value, live->price > 0 ? "%.2f" : "%.2f h",
                         v->even_work_month * (live->price > 0 ? live->price : 1));
                sim_page_tile(
                        buf, value,
                        live->price > 0
                                ? "a month: what the router may cost more before it eats the work it saves"
                                : "replica-hours a month: what the router may cost more before it eats the "
                                  "work it saves");
        }
        snprintf(value, sizeof value, "%llu", (unsigned long long)sums->requests);
        snprintf(what, sizeof what,
                 v->mirror ? "copies of requests, for %.0f replicas, policy %s"
                           : "requests to %.0f replicas, policy %s",
                 live->replica_count, live->verdict.policy);
        sim_page_tile(buf, value, what);
        sim_buf_puts(buf, "</div>");
}

/* ---- tables ------------------------------------------------------------------------------------------- */

/* Cells name their column for narrow screens, where each row is a block. */
static void cell(struct sim_buf *buf, const char *column, const char *text)
{
        sim_buf_printf(buf, "<td data-label=\"%s\">", column);
        sim_html_text(buf, text);
        sim_buf_puts(buf, "</td>");
}

static void number_cell(struct sim_buf *buf, const char *column, int decimals, double value, const char *unit)
{
        char text[48] = "unknown";

        if (isfinite(value))
                snprintf(text, sizeof text, "%.*f%s", decimals, value, unit);
        cell(buf, column, text);
}

static void count_cell(struct sim_buf *buf, const char *column, double value)
{
        char text[32] = "unknown";

        if (isfinite(value))
                sim_plot_number(value, text, sizeof text);
        cell(buf, column, text);
}

static void time_cell(struct sim_buf *buf, const char *column, double seconds)
{
        char text[32];

        sim_live_seconds(seconds, text, sizeof text);
        cell(buf, column, text);
}

static void account_bar(struct sim_buf *buf, const struct kvr_ledger_sums *sums)
{
        double at = 0;

        sim_buf_puts(buf, "<svg class=\"parts\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" "
                          "aria-hidden=\"true\">");
        for (int part = 0; part < PARTS && sums->prompt_tokens; part++) {
                double wide = 100 * part_of(sums, (enum part)part);

                if (wide > 0)
                        sim_buf_printf(buf, "<rect class=\"f%u\" x=\"%.2f\" width=\"%.2f\" height=\"10\"/>",
                                       parts[part].colour, at, wide);
                at += wide;
        }
        sim_buf_puts(buf, "</svg>");
}

static void account_row(struct sim_buf *buf, const struct sim_live_account *account, bool family)
{
        const struct kvr_ledger_sums *sums = &account->sums;
        bool untimed = sums->won_tokens && sums->untimed_tokens >= sums->won_tokens;

        sim_buf_puts(buf, "<tr><td title=\"");
        sim_html_text(buf, account->id);
        sim_buf_puts(buf, "\">");
        sim_html_text(buf, account->name);
        sim_buf_puts(buf, "</td>");
        count_cell(buf, "requests", (double)sums->requests);
        count_cell(buf, "prompt tokens", (double)sums->prompt_tokens);
        sim_buf_puts(buf, "<td class=\"full\">");
        account_bar(buf, sums);
        sim_buf_puts(buf, "</td>");
        for (int part = 0; part < PARTS; part++)
                number_cell(buf, parts[part].name, 1, 100 * part_of(sums, (enum part)part), " %");
        number_cell(buf, "predicted", 1, 100 * sim_live_predicted(sums), " %");
        number_cell(buf, "observed", 1, 100 * sim_live_observed(sums), " %");
        time_cell(buf, "time avoided", untimed ? NAN : (double)sums->avoided_ns / 1e9);
        if (family && account->id[0] == '(')
                cell(buf, "shared beginning", "none");
        else if (family)
                count_cell(buf, "shared beginning", account->max_length);
        sim_buf_puts(buf, "</tr>");
}

static void accounts(struct sim_buf *buf, const char *what, const char *heading, const char *note,
                     const struct sim_live_accounts *list)
{
        bool family = strcmp(what, "family") == 0;

        sim_page_section(buf, heading, note);
        sim_buf_puts(buf, "<div class=\"legend\">");
        for (int part = 0; part < PARTS; part++)
                sim_page_key_box(buf, parts[part].colour, parts[part].text);
        sim_buf_printf(
                buf,
                "</div><div class=\"wide\"><table class=\"cards\"><thead><tr><th>%s</th><th>requests</th><th>"
                "prompt tokens</th><th class=\"full\">what became of them</th><th>reused</th><th>"
                "elsewhere</th><th>gone</th><th>new</th><th>predicted</th><th>observed</th><th>time "
                "avoided</th>%s</tr>"
                "</thead><tbody>",
                what, family ? "<th>shared beginning</th>" : "");
        for (size_t i = 0; i < list->count && i < ROWS_SHOWN; i++)
                account_row(buf, &list->items[i], family);
        sim_buf_puts(buf, "</tbody></table></div>");
        if (list->count > ROWS_SHOWN)
                sim_buf_printf(buf, "<p class=\"note\">And %zu more.</p>", list->count - ROWS_SHOWN);
        sim_page_section_end(buf);
}

static void rule_row(struct sim_buf *buf, const struct sim_live_rule *rule, bool fact)
{
        sim_buf_puts(buf, fact ? "<tr class=\"us\"><td>" : "<tr><td>");
        sim_html_text(buf, rule->name);
        sim_buf_puts(buf, "<br><small>");
        sim_html_text(buf, rule->what);
        sim_buf_puts(buf, "</small></td>");
        number_cell(buf, "reused", 1, 100 * rule->reused, " %");
        count_cell(buf, "left to compute", rule->computed);
        time_cell(buf, "time avoided", rule->avoided_s);
        number_cell(buf, "busiest / mean, requests", 2, rule->requests_max_mean, "×");
        number_cell(buf, "busiest / mean, computed tokens", 2, rule->computed_max_mean, "×");
        number_cell(buf, "the same within 10 s", 2, rule->hot_max_mean, "×");
        sim_buf_puts(buf, "</tr>");
}

static void rules(const struct sim_live *live, struct sim_buf *buf)
{
        sim_page_section(buf, "The rules in figures",
                         "From simple to elaborate; the blue row is cache-aware routing. Busiest over mean "
                         "is since the "
                         "router began; within 10 s: of 20 such windows the worst.");
        sim_buf_puts(buf,
                     "<div class=\"wide\"><table "
                     "class=\"cards\"><thead><tr><th>rule</th><th>reused</th><th>left to "
                     "compute</th><th>time avoided</th><th>busiest / mean, requests</th><th>busiest / mean, "
                     "computed tokens</th><th>the same within 10 s</th></tr></thead><tbody>");
        for (unsigned i = 0; i < live->rule_count; i++)
                rule_row(buf, &live->rules[i], false);
        rule_row(buf, &live->fact, true);
        sim_buf_puts(buf, "</tbody></table></div>");
        sim_page_section_end(buf);
}

static void reasons(const struct sim_live *live, struct sim_buf *buf)
{
        yyjson_val *list = yyjson_obj_get(yyjson_doc_get_root(live->pages[SIM_LIVE_ALL]), "reasons"), *reason;
        double total = 0;
        size_t i, max;

        yyjson_arr_foreach(list, i, max, reason)
        {
                total += yyjson_get_num(yyjson_obj_get(reason, "requests"));
        }
        if (total <= 0)
                return;
        sim_page_section(buf, "Why requests went where they went", "Since the router began.");
        sim_buf_puts(buf, "<div class=\"wide\"><table "
                          "class=\"cards\"><thead><tr><th>reason</th><th>requests</th><th>share"
                          "</th><th>predicted there</th><th>best anywhere</th></tr></thead><tbody>");
        yyjson_arr_foreach(list, i, max, reason)
        {
                double requests = yyjson_get_num(yyjson_obj_get(reason, "requests"));
                double prompt = yyjson_get_num(yyjson_obj_get(reason, "prompt_tokens"));
                const char *name = yyjson_get_str(yyjson_obj_get(reason, "reason"));

                if (requests <= 0)
                        continue;
                sim_buf_puts(buf, "<tr><td>");
                sim_html_text(buf, name ? name : "?");
                sim_buf_puts(buf, "</td>");
                count_cell(buf, "requests", requests);
                number_cell(buf, "share", 1, 100 * requests / total, " %");
                number_cell(buf, "predicted there", 1,
                            100 * yyjson_get_num(yyjson_obj_get(reason, "predicted_tokens")) / prompt, " %");
                number_cell(buf, "best anywhere", 1,
                            100 * yyjson_get_num(yyjson_obj_get(reason, "best_tokens")) / prompt, " %");
                sim_buf_puts(buf, "</tr>");
        }
        sim_buf_puts(buf, "</tbody></table></div>");
        sim_page_section_end(buf);
}

static void spoilers(const struct sim_live *live, struct sim_buf *buf)
{
        yyjson_val *list = yyjson_obj_get(yyjson_doc_get_root(live->pages[SIM_LIVE_ALL]), "spoilers"), *spot;
        size_t i, max;

        if (!yyjson_arr_size(list))
                return;
        sim_page_section(
                buf, "Cache spoilers",
                "A clock, a counter or an id near the top of a prompt makes everything behind it new. Where "
                "that seems to happen:");
        sim_buf_puts(
                buf,
                "<div class=\"wide\"><table class=\"cards\"><thead><tr><th>family</th><th>prompts part at"
                "</th><th>times</th><th>tokens behind, in all</th></tr></thead><tbody>");
        yyjson_arr_foreach(list, i, max, spot)
        {
                const char *family = yyjson_get_str(yyjson_obj_get(spot, "label"));
                const char *unit = yyjson_get_str(yyjson_obj_get(spot, "unit"));
                char place[LABEL_MAX];

                if (!family)
                        family = yyjson_get_str(yyjson_obj_get(spot, "family"));
                snprintf(place, sizeof place, "%.20s %llu to %llu", unit ? unit : "",
                         (unsigned long long)yyjson_get_uint(yyjson_obj_get(spot, "from")),
                         (unsigned long long)yyjson_get_uint(yyjson_obj_get(spot, "to")));
                sim_buf_puts(buf, "<tr><td>");
                sim_html_text(buf, family ? family : "?");
                sim_buf_puts(buf, "</td>");
                cell(buf, "prompts part at", place);
                count_cell(buf, "times", yyjson_get_num(yyjson_obj_get(spot, "count")));
                count_cell(buf, "tokens behind, in all", yyjson_get_num(yyjson_obj_get(spot, "tokens")));
                sim_buf_puts(buf, "</tr>");
        }
        sim_buf_puts(buf, "</tbody></table></div>");
        sim_page_section_end(buf);
}

static void footer(const struct sim_live *live, struct sim_buf *buf)
{
        time_t made = (time_t)live->made_at;
        struct tm parts_of_time;
        char when[40] = "", span[64];

        if (gmtime_r(&made, &parts_of_time))
                strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", &parts_of_time);
        sim_live_span(live, span, sizeof span);
        sim_buf_printf(buf, "<p class=\"note\">Made by kvroute report on %s from ", when);
        sim_html_text(buf, live->url);
        sim_buf_printf(
                buf,
                "; figures are of what happened %s, unless they say otherwise. What engines do not tell is "
                "unknown, and never counted as 0. A verdict by work needs 5 %% (marginal) or 10 %% "
                "(justified) "
                "less to compute than with the simpler rules; one by load 5 %% or 20 %% more traffic until "
                "the "
                "busiest replica is full.</p>",
                span);
}

void sim_live_html(const struct sim_live *live, struct sim_buf *buf)
{
        sim_page_begin(buf, "kvroute report");
        verdict(live, buf);
        tiles(live, buf);
        alarms(live, buf);
        sim_live_plots(live, buf);
        accounts(buf, "workload", "What became of the prompts, by workload",
                 "As the configuration or the header x-kvroute-workload names them.", &live->workloads);
        accounts(buf, "family", "By family",
                 "Found by the router itself: prompts that share a beginning. (none) are those that share "
                 "none.",
                 &live->families);
        if (live->rule_count)
                rules(live, buf);
        reasons(live, buf);
        spoilers(live, buf);
        footer(live, buf);
        sim_page_end(buf);
}
