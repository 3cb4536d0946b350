/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plots as inline SVG: axes with round ticks, lines, bars. Colours are classes (c0, c1, ...) that the page's
 * style sheet defines. Nothing refers to anything outside the page.
 */
#ifndef KVROUTE_SIM_ANALYZE_SVG_H
#define KVROUTE_SIM_ANALYZE_SVG_H

#include "buf.h"

/* The lower bound of a logarithmic axis is above 0; bounds differ. */
struct sim_plot {
        struct sim_buf *buf;
        const char *title; /* read aloud in place of the picture */
        const char *x_label, *y_label;
        double x_min, x_max, y_min, y_max;
        bool x_log, y_log;
        const char *x_unit, *y_unit; /* behind each tick's number: "%", " s"; "" none */
        bool x_plain;                /* no ticks: the caller labels what is there */
};

void sim_plot_begin(const struct sim_plot *plot);
/*
 * Through the points, as far as they lie in bounds: a line that leaves the plot ends at its edge. Points that
 * are not finite are above the upper edge. `extra` are more classes.
 */
void sim_plot_line(const struct sim_plot *plot, const double *x, const double *y, size_t count,
                   unsigned colour, const char *extra);
void sim_plot_dot(const struct sim_plot *plot, double x, double y, unsigned colour);
/* A level, or a place on the x axis, with a label. */
void sim_plot_level(const struct sim_plot *plot, double y, const char *label);
void sim_plot_mark(const struct sim_plot *plot, double x, const char *label);
/* From x to x_end, as high as y; the label below, and none when NULL. */
void sim_plot_bar(const struct sim_plot *plot, double x, double x_end, double y, unsigned colour,
                  const char *label);
/* A figure above a bar of these bounds. */
void sim_plot_value(const struct sim_plot *plot, double x, double x_end, double y, const char *text);
void sim_plot_end(const struct sim_plot *plot);

/* 1500 as "1.5 k", 2048000 as "2.05 M": three digits, of what is not below 0. */
void sim_plot_number(double value, char *ret, size_t size);
/* Text with <, >, & and quotes escaped, fit for element and attribute. */
void sim_html_text(struct sim_buf *buf, const char *text);

#endif
