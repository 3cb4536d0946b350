/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of the Prometheus text format (version 0.0.4, and what OpenMetrics adds as far as it can be
 * skipped): walks over the samples of one page without allocation. Lenient: a line that is not a sample is
 * skipped and counted.
 *
 *     struct prom_reader r;
 *     struct prom_sample s;
 *     prom_init(&r, body);
 *     while (prom_next(&r, &s))
 *             if (prom_is(s.name, "vllm:num_requests_running")) ...
 */
#ifndef KVROUTE_PROM_H
#define KVROUTE_PROM_H

#include <kvroute/base.h>

#define PROM_LINE_MAX   (64 * 1024) /* longer lines are skipped */
#define PROM_LABELS_MAX 128         /* of one sample; a line with more is skipped */

struct prom_label {
        struct kvr_slice name;
        struct kvr_slice value; /* as written: escapes \\ \" \n are not undone (see prom_unescape) */
};

struct prom_sample {
        struct kvr_slice name;
        double value; /* may be NAN or infinite */
        uint32_t label_count;
        struct prom_label labels[PROM_LABELS_MAX];
};

struct prom_reader {
        struct kvr_slice rest;
        uint64_t samples, skipped; /* so far */
};

/* Borrows page until the last prom_next. Slices of samples point into it. */
void prom_init(struct prom_reader *reader, struct kvr_slice page);
/* False at the end of the page. */
bool prom_next(struct prom_reader *reader, struct prom_sample *ret_sample);

bool prom_is(struct kvr_slice name, const char *text);
/* The label's value, or an empty slice with data NULL. */
struct kvr_slice prom_label(const struct prom_sample *sample, const char *name);
/* A label's value as a number: -1 if absent, not a decimal number, negative, or over 2^53. */
double prom_label_number(const struct prom_sample *sample, const char *name);
/* Copies with escapes undone, always terminated; false if it did not fit (then it is cut). */
bool prom_unescape(struct kvr_slice value, char *ret, size_t size);

#endif
