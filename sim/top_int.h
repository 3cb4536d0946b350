/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of top share: top.c reads the pages and writes the screen, top_shadow.c its lines of a shadow.
 * One thread.
 */
#ifndef KVROUTE_SIM_TOP_INT_H
#define KVROUTE_SIM_TOP_INT_H

#include "top.h"

#define TOP_CELL_MAX 64

/* A screen under way, for its lines. */
struct top_screen {
        const struct sim_top *top;
        const struct sim_top_look *look;
        struct sim_buf *out;
        unsigned column; /* used of the line */
};

/* A figure as it is shown. */
struct top_cell {
        char text[TOP_CELL_MAX];
};

/* ---- reading: top.c; of NULL, or of what is not there, nothing ---- */

yyjson_val *top_page(const struct sim_top *top, enum sim_top_page page); /* its root */
double top_number(yyjson_val *object, const char *key);                  /* NAN: unknown */
const char *top_string(yyjson_val *object, const char *key);             /* "": none */
yyjson_val *top_sums(yyjson_val *account, const char *window);

/* ---- figures: top.c; "?" when unknown ---- */

struct top_cell top_percent(double part, double whole);
struct top_cell top_seconds(double s);
struct top_cell top_factor(double x);

/* ---- lines: top.c; what a terminal would take as a command is shown as '?', what is too long is cut ---- */

void top_put(struct top_screen *s, const char *text);
void top_put_styled(struct top_screen *s, const char *code, const char *text);
/* A cell of `width` columns and a blank; names to the left, figures to the right. */
void top_put_name(struct top_screen *s, const char *name, unsigned width);
void top_put_cell(struct top_screen *s, struct top_cell cell, int width);
void top_end_line(struct top_screen *s);

/* ---- the shadow: top_shadow.c ---- */

yyjson_val *top_shadow(const struct sim_top *top); /* NULL: there is none */
/* Only copies of requests are seen: whatever is told of them is a prediction. */
bool top_is_mirror(const struct sim_top *top);
/* How it compares, and its row among the rules; nothing without one. */
void top_show_shadow(struct top_screen *s);
void top_show_shadow_rule(struct top_screen *s, unsigned width, const int *widths);

#endif
