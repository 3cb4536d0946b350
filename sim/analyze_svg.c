/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze_svg.h"

#include <math.h>
#include <stdio.h>

#define WIDTH  560.0
#define HEIGHT 300.0
#define LEFT   68.0 /* margins */
#define RIGHT  16.0
#define TOP    14.0
#define BOTTOM 46.0
#define TICKS  6 /* about so many on a linear axis */

void sim_html_text(struct sim_buf *buf, const char *text)
{
        for (; *text; text++) {
                switch (*text) {
                case '<':
                        sim_buf_puts(buf, "&lt;");
                        break;
                case '>':
                        sim_buf_puts(buf, "&gt;");
                        break;
                case '&':
                        sim_buf_puts(buf, "&amp;");
                        break;
                case '"':
                        sim_buf_puts(buf, "&quot;");
                        break;
                default:
                        sim_buf_add(buf, text, 1);
                }
        }
}

void sim_plot_number(double value, char *ret, size_t size)
{
        static const char *const units[] = {"", " k", " M", " G", " T"};
        unsigned unit = 0;

        while (value >= 999.5 && unit < 4) {
                value /= 1000;
                unit++;
        }
        snprintf(ret, size, "%.3g%s", value, units[unit]);
}

/* ---- places ------------------------------------------------------------------------------------------- */

static double share_of(double value, double min, double max, bool log_axis)
{
        if (log_axis)
                return log(fmax(value, min / 2) / min) / log(max / min);
        return (value - min) / (max - min);
}

static double x_of(const struct sim_plot *plot, double x)
{
        return LEFT + share_of(x, plot->x_min, plot->x_max, plot->x_log) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct sim_plot *plot, double y)
{
        return HEIGHT - BOTTOM - share_of(y, plot->y_min, plot->y_max, plot->y_log) * (HEIGHT - TOP - BOTTOM);
}

static void text_at(const struct sim_plot *plot, double x, double y, const char *class, const char *text)
{
        sim_buf_printf(plot->buf, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
        sim_html_text(plot->buf, text);
        sim_buf_puts(plot->buf, "</text>");
}

/* ---- axes --------------------------------------------------------------------------------------------- */

static void x_tick(const struct sim_plot *plot, double at)
{
        char number[32], label[48];

        sim_plot_number(at, number, sizeof(number));
        snprintf(label, sizeof(label), "%s%s", number, plot->x_unit);
        text_at(plot, x_of(plot, at), HEIGHT - BOTTOM + 16, "t m", label);
}

static void y_tick(const struct sim_plot *plot, double at)
{
        char number[32], label[48];

        sim_plot_number(at, number, sizeof(number));
        snprintf(label, sizeof(label), "%s%s", number, plot->y_unit);
        sim_buf_printf(plot->buf, "<path class=\"g\" d=\"M%.1f %.1fH%.1f\"/>", LEFT, y_of(plot, at),
                       WIDTH - RIGHT);
        text_at(plot, LEFT - 6, y_of(plot, at) + 4, "t e", label);
}

static double round_step(double span)
{
        double raw = span / TICKS, power = pow(10, floor(log10(raw))), digit = raw / power;

        return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

static void log_ticks(const struct sim_plot *plot, double min, double max,
                      void (*tick)(const struct sim_plot *, double))
{
        static const double digits[] = {1, 2, 3, 5};
        double decades = log10(max / min);

        for (int exponent = (int)floor(log10(min)); exponent <= (int)ceil(log10(max)); exponent++) {
                for (unsigned i = 0; i < sizeof(digits) / sizeof(digits[0]); i++) {
                        double at = digits[i] * pow(10, exponent);
                        /* 1, 2, 5 where there is room, else 1, 3, else 1 */
                        bool wanted = i == 0 || (decades <= 4 && decades > 2 && i == 2) ||
                                      (decades <= 2 && (i == 1 || i == 3));

                        if (wanted && at >= min * (1 - 1e-9) && at <= max * (1 + 1e-9))
                                tick(plot, at);
                }
        }
}

static void ticks(const struct sim_plot *plot, double min, double max, bool log_axis,
                  void (*tick)(const struct sim_plot *, double))
{
        double step;

        if (log_axis) {
                log_ticks(plot, min, max, tick);
                return;
        }
        step = round_step(max - min);
        for (int i = (int)ceil(min / step - 1e-9); i * step <= max * (1 + 1e-9); i++)
                tick(plot, i * step);
}

void sim_plot_begin(const struct sim_plot *plot)
{
        sim_buf_printf(plot->buf, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
        sim_html_text(plot->buf, plot->title);
        sim_buf_puts(plot->buf, "\">");
        ticks(plot, plot->y_min, plot->y_max, plot->y_log, y_tick);
        if (!plot->x_plain)
                ticks(plot, plot->x_min, plot->x_max, plot->x_log, x_tick);
        sim_buf_printf(plot->buf, "<path class=\"a\" d=\"M%.1f %.1fV%.1fH%.1f\"/>", LEFT, TOP,
                       HEIGHT - BOTTOM, WIDTH - RIGHT);
        text_at(plot, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "l m", plot->x_label);
        sim_buf_printf(plot->buf, "<g transform=\"translate(13 %.1f) rotate(-90)\">",
                       (TOP + HEIGHT - BOTTOM) / 2);
        text_at(plot, 0, 0, "l m", plot->y_label);
        sim_buf_puts(plot->buf, "</g>");
}

void sim_plot_end(const struct sim_plot *plot)
{
        sim_buf_puts(plot->buf, "</svg>");
}

/* ---- what is drawn ------------------------------------------------------------------------------------ */

void sim_plot_line(const struct sim_plot *plot, const double *x, const double *y, size_t count,
                   unsigned colour, const char *extra)
{
        bool drawing = false;

        sim_buf_printf(plot->buf, "<path class=\"s c%u %s\" d=\"", colour, extra);
        for (size_t i = 0; i < count; i++) {
                double height = isfinite(y[i]) ? y[i] : plot->y_max * 4;
                double at = fmin(fmax(y_of(plot, height), TOP), HEIGHT - BOTTOM);

                if (height > plot->y_max && i && isfinite(y[i - 1]) && y[i - 1] <= plot->y_max) {
                        /* where it leaves the plot */
                        double from_y = y_of(plot, y[i - 1]), to_y = y_of(plot, height);
                        double part = from_y > to_y ? (from_y - TOP) / (from_y - to_y) : 0;
                        double from_x = x_of(plot, x[i - 1]), to_x = x_of(plot, x[i]);

                        sim_buf_printf(plot->buf, "L%.1f %.1f", from_x + part * (to_x - from_x), TOP);
                }
                if (height > plot->y_max) {
                        drawing = false;
                        continue;
                }
                sim_buf_printf(plot->buf, "%c%.1f %.1f", drawing ? 'L' : 'M', x_of(plot, x[i]), at);
                drawing = true;
        }
        sim_buf_puts(plot->buf, "\"/>");
}

void sim_plot_dot(const struct sim_plot *plot, double x, double y, unsigned colour)
{
        sim_buf_printf(plot->buf, "<circle class=\"f%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", colour,
                       x_of(plot, x), y_of(plot, y));
}

void sim_plot_level(const struct sim_plot *plot, double y, const char *label)
{
        sim_buf_printf(plot->buf, "<path class=\"d\" d=\"M%.1f %.1fH%.1f\"/>", LEFT, y_of(plot, y),
                       WIDTH - RIGHT);
        text_at(plot, LEFT + 6, y_of(plot, y) - 5, "t", label);
}

void sim_plot_mark(const struct sim_plot *plot, double x, const char *label)
{
        sim_buf_printf(plot->buf, "<path class=\"d\" d=\"M%.1f %.1fV%.1f\"/>", x_of(plot, x), TOP,
                       HEIGHT - BOTTOM);
        text_at(plot, x_of(plot, x) - 5, TOP + 10, "t e", label);
}

void sim_plot_bar(const struct sim_plot *plot, double x, double x_end, double y, unsigned colour,
                  const char *label)
{
        double left = x_of(plot, x), right = x_of(plot, x_end), top = fmax(y_of(plot, y), TOP);

        if (HEIGHT - BOTTOM - top >= 0.05)
                sim_buf_printf(plot->buf,
                               "<rect class=\"f%u\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
                               colour, left, top, right - left, HEIGHT - BOTTOM - top);
        if (label)
                text_at(plot, (left + right) / 2, HEIGHT - BOTTOM + 16, "t m", label);
}

void sim_plot_value(const struct sim_plot *plot, double x, double x_end, double y, const char *text)
{
        text_at(plot, (x_of(plot, x) + x_of(plot, x_end)) / 2, fmax(y_of(plot, y), TOP) - 5, "l m", text);
}
