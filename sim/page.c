/* SPDX-License-Identifier: Apache-2.0 */
#include "page.h"

#include <math.h>
#include <stdio.h>

#define BIN_SHOWN 0.004 /* of the highest; less cannot be seen */
#define LABELLED  8u    /* so many bins have a label each, else every other one */
#define LABEL_MAX 48

static const char head[] = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                           "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
                           "<title>";

static const char style[] =
        "</title><style>"
        ":root{--ink:#1c2430;--soft:#5b6675;--line:#dde2e8;--paper:#fff;--back:#f4f6f8;--yes:#0b7a4b;--some:#"
        "a35b00;"
        "--no:#4b5563}"
        "*{box-sizing:border-box}body{margin:0;background:var(--back);color:var(--ink);"
        "font:15px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,sans-serif}"
        "main{max-width:1180px;margin:0 auto;padding:24px 20px 60px}"
        "h1{font-size:1.1rem;font-weight:600;color:var(--soft);margin:0}"
        "h2{font-size:1.05rem;margin:0 0 2px}h3{font-size:.95rem;margin:0}"
        "section{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:18px 20px;"
        "margin:16px 0}"
        ".verdict{border-left:8px solid var(--no)}.verdict.v2{border-left-color:var(--yes)}"
        ".verdict.v1{border-left-color:var(--some)}"
        ".big{font-size:1.75rem;line-height:1.25;font-weight:700;margin:6px 0 12px}"
        ".big.v2{color:var(--yes)}.big.v1{color:var(--some)}"
        ".pill{display:inline-block;padding:1px 10px;border-radius:99px;color:#fff;background:var(--no);"
        "font-size:.85rem;font-weight:600;white-space:nowrap}.pill.v2{background:var(--yes)}"
        ".pill.v1{background:var(--some)}"
        ".short{font-size:1.08rem;margin:0 0 12px;max-width:85ch}ul{margin:10px 0 "
        "0;padding-left:20px}li{margin:5px 0;max-width:95ch}"
        ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:12px;margin:16px 0}"
        ".tile{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:12px 16px}"
        ".tile b{display:block;font-size:1.35rem;line-height:1.3;white-space:nowrap}.tile "
        "span{color:var(--soft);font-size:.88rem}"
        ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}"
        ".plots section{margin:0}.note{color:var(--soft);font-size:.88rem;margin:2px 0 8px}"
        "svg{width:100%;height:auto;display:block}"
        ".t{font-size:11px;fill:var(--soft)}.l{font-size:12px;fill:var(--ink)}.m{text-anchor:middle}"
        ".e{text-anchor:end}.g{stroke:var(--line);fill:none}.a{stroke:var(--soft);fill:none}"
        ".d{stroke:var(--ink);fill:none;stroke-dasharray:4 4;opacity:.6}"
        ".s{fill:none;stroke-width:2;stroke-linejoin:round}.w{stroke-width:3.5}.h{stroke-dasharray:6 4}"
        ".c0{stroke:#9aa3ad}.c1{stroke:#555e69}.c2{stroke:#e0a100}.c3{stroke:#c8501e}.c4{stroke:#0b62b0}"
        ".c5{stroke:#12936a}.c6{stroke:#7b4fb3}"
        ".f0{fill:#9aa3ad}.f1{fill:#555e69}.f2{fill:#e0a100}.f3{fill:#c8501e}.f4{fill:#0b62b0}.f5{fill:#"
        "12936a}"
        ".f6{fill:#7b4fb3}"
        ".legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:.85rem;color:var(--soft);margin:4px 0 "
        "6px}"
        ".legend svg{display:inline-block;width:22px;height:10px;margin-right:5px;vertical-align:middle}"
        ".wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.88rem}"
        "th,td{padding:6px 8px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}"
        "th{color:var(--soft);font-weight:600;white-space:normal;vertical-align:bottom}td:first-child,th:"
        "first-child{text-align:left}"
        ".ops td,.ops th{text-align:left;white-space:normal;vertical-align:top}tr.us{background:#eef4fb}"
        "svg.parts{width:100%;min-width:90px;height:12px;border-radius:3px}"
        ".cards td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:150px;max-width:320px}"
        ".pills{display:flex;flex-wrap:wrap;gap:6px 20px}"
        ".alarms{border-left:8px solid #b42318}.alarms "
        "h2{color:#b42318}.calm{padding-top:12px;padding-bottom:6px}"
        "@media(max-width:640px){main{padding:12px 10px 40px}section{padding:14px 12px}.big{font-size:1.4rem}"
        ".t{font-size:15px}.l{font-size:15px}"
        "table.cards,.cards tbody,.cards tr,.cards td{display:block;width:100%}.cards thead{display:none}"
        ".cards tr{border-bottom:2px solid var(--line);padding:8px 0}.cards td{border:0;padding:2px "
        "0;white-space:normal}"
        ".cards td:first-child{font-weight:600;overflow-wrap:anywhere}"
        ".cards td[data-label]{display:flex;justify-content:space-between;gap:12px}"
        ".cards td[data-label]::before{content:attr(data-label);color:var(--soft)}.cards td.full{padding:6px "
        "0}}"
        "@media print{body{background:#fff}section,.tile{break-inside:avoid}}"
        "</style></head><body><main>";

void sim_page_begin(struct sim_buf *buf, const char *title)
{
        sim_buf_puts(buf, head);
        sim_html_text(buf, title);
        sim_buf_puts(buf, style);
}

void sim_page_end(struct sim_buf *buf)
{
        sim_buf_puts(buf, "</main></body></html>\n");
}

void sim_page_section(struct sim_buf *buf, const char *heading, const char *note)
{
        sim_buf_printf(buf, "<section><h2>%s</h2><p class=\"note\">%s</p>", heading, note);
}

void sim_page_section_end(struct sim_buf *buf)
{
        sim_buf_puts(buf, "</section>");
}

void sim_page_pill(struct sim_buf *buf, enum sim_verdict verdict, const char *text)
{
        sim_buf_printf(buf, "<span class=\"pill v%d\">%s</span>", (int)verdict, text);
}

void sim_page_verdict(struct sim_buf *buf, enum sim_verdict verdict)
{
        sim_page_pill(buf, verdict, sim_verdict_name(verdict));
}

void sim_page_tile(struct sim_buf *buf, const char *value, const char *what)
{
        sim_buf_puts(buf, "<div class=\"tile\"><b>");
        sim_html_text(buf, value);
        sim_buf_puts(buf, "</b><span>");
        sim_html_text(buf, what);
        sim_buf_puts(buf, "</span></div>");
}

void sim_page_item(void *ctx, const char *text)
{
        struct sim_buf *buf = ctx;

        sim_buf_puts(buf, "<li>");
        sim_html_text(buf, text);
        sim_buf_puts(buf, "</li>");
}

void sim_page_plain(void *ctx, const char *text)
{
        sim_html_text(ctx, text);
}

void sim_page_key_line(struct sim_buf *buf, unsigned colour, const char *extra, const char *text)
{
        sim_buf_printf(buf,
                       "<span><svg viewBox=\"0 0 22 10\" aria-hidden=\"true\"><path class=\"s c%u %s\" "
                       "d=\"M0 5H22\"/></svg>",
                       colour, extra);
        sim_html_text(buf, text);
        sim_buf_puts(buf, "</span>");
}

void sim_page_key_box(struct sim_buf *buf, unsigned colour, const char *text)
{
        sim_buf_printf(
                buf,
                "<span><svg viewBox=\"0 0 22 10\" aria-hidden=\"true\"><rect class=\"f%u\" width=\"22\" "
                "height=\"10\"/></svg>",
                colour);
        sim_html_text(buf, text);
        sim_buf_puts(buf, "</span>");
}

/* ---- histograms --------------------------------------------------------------------------------------- */

static void count_label(double edge, char *ret, size_t size)
{
        if (edge >= 1024)
                snprintf(ret, size, "%.0f k", edge / 1024);
        else
                snprintf(ret, size, "%.0f", edge);
}

static void bar(const struct sim_plot *plot, const struct sim_page_bins *bins, unsigned at, double share,
                bool labelled)
{
        char label[LABEL_MAX];

        if (at == 0)
                snprintf(label, sizeof(label), "%s", bins->none);
        else
                (bins->label ? bins->label : count_label)(exp2(at - 1.0), label, sizeof(label));
        sim_plot_bar(plot, at + 0.06, at + 0.94, 100 * share, SIM_PAGE_COLOUR,
                     at == 0 || labelled ? label : NULL);
}

static void bins_plot(struct sim_buf *buf, const struct sim_page_bins *bins, double sum, double most)
{
        struct sim_plot plot = {
                .buf = buf,
                .title = bins->heading,
                .x_label = bins->x_label,
                .y_label = bins->y_label,
                .y_max = 110 * most / sum,
                .x_plain = true,
                .x_unit = "",
                .y_unit = " %",
        };
        unsigned first = bins->count, last = 0;

        for (unsigned i = 0; i < bins->count; i++) {
                if (bins->bins[i] < BIN_SHOWN * most || bins->bins[i] <= 0)
                        continue;
                first = i < first ? i : first;
                last = i;
        }
        plot.x_min = first;
        plot.x_max = last + 1;
        sim_plot_begin(&plot);
        for (unsigned i = first; i <= last; i++)
                bar(&plot, bins, i, bins->bins[i] / sum, (last - i) % 2 == 0 || last - first < LABELLED);
        sim_plot_end(&plot);
}

void sim_page_bins(struct sim_buf *buf, const struct sim_page_bins *bins)
{
        double most = 0, sum = 0;

        for (unsigned i = 0; i < bins->count; i++) {
                sum += bins->bins[i];
                most = fmax(most, bins->bins[i]);
        }
        sim_page_section(buf, bins->heading, bins->note);
        if (sum > 0)
                bins_plot(buf, bins, sum, most);
        else
                sim_buf_printf(buf, "<p>%s</p>", bins->nothing);
        sim_page_section_end(buf);
}
