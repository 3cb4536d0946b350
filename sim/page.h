/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts that the pages of `kvroute analyze` and `kvroute report` have in common: the frame with its style
 * sheet, the verdict's pills, tiles, histograms. Self-contained: no script, nothing loaded. Text that is
 * given is escaped, but for headings and notes, which are the program's own.
 */
#ifndef KVROUTE_SIM_PAGE_H
#define KVROUTE_SIM_PAGE_H

#include "analyze_svg.h"
#include "verdict.h"

#define SIM_PAGE_COLOUR       4u /* of what kvroute is or does, in every plot */
#define SIM_PAGE_COLOUR_CURVE 6u /* of one cache for all */

void sim_page_begin(struct sim_buf *buf, const char *title);
void sim_page_end(struct sim_buf *buf);

/* A section with a plot or a table: `heading` and `note` are HTML. */
void sim_page_section(struct sim_buf *buf, const char *heading, const char *note);
void sim_page_section_end(struct sim_buf *buf);

void sim_page_pill(struct sim_buf *buf, enum sim_verdict verdict, const char *text);
void sim_page_verdict(struct sim_buf *buf, enum sim_verdict verdict); /* its own name */
void sim_page_tile(struct sim_buf *buf, const char *value, const char *what);
/* Sentences, ctx is the struct sim_buf: an element of a list, and as it is. */
void sim_page_item(void *ctx, const char *text);
void sim_page_plain(void *ctx, const char *text);
/* An entry of a legend (a <div class="legend">): a line, or a box. */
void sim_page_key_line(struct sim_buf *buf, unsigned colour, const char *extra, const char *text);
void sim_page_key_box(struct sim_buf *buf, unsigned colour, const char *text);

/* A histogram in powers of two: bin 0, then [2^(n-1), 2^n). */
struct sim_page_bins {
        const char *heading, *note;    /* HTML */
        const char *none;              /* label of bin 0 */
        const char *nothing;           /* said instead of a picture where all bins are empty */
        const char *x_label, *y_label; /* of the picture */
        /* The label of a bin from its lower edge; NULL: as a count. */
        void (*label)(double edge, char *ret, size_t size);
        const double *bins;
        unsigned count;
};
void sim_page_bins(struct sim_buf *buf, const struct sim_page_bins *bins);

#endif
