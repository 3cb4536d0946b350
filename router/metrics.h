/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters, gauges and histograms of metrics.def. Counting is per thread, without locks or shared cache
 * lines; a scrape adds the threads up. A series is a metric with one set of label values; it is looked up
 * once per (model, workload,
 * ...) through a small cache of the calling thread and then counted by number.
 *
 *     series = metrics_series(m, thread, METRIC_REQUESTS, labels);
 *     metrics_add(m, thread, series, 1);
 *
 * thread: 0 .. threads - 1, each used by one thread only, except that metrics_set and metrics_write take
 * none.
 */
#ifndef KVROUTE_METRICS_H
#define KVROUTE_METRICS_H

#include <kvroute/base.h>

#define METRICS_LABELS_MAX 4
#define METRICS_VALUE_MAX  128 /* bytes of a label value; longer ones are cut */

enum metric_id {
#define METRIC(id, name, type, buckets, labels, help) METRIC_##id,
#include "metrics.def"
#undef METRIC
        METRIC_COUNT
};

enum metric_type {
        METRIC_COUNTER,
        METRIC_GAUGE,
        METRIC_HISTOGRAM,
};

/* One row of the table, for docs and tests. */
struct metric_info {
        const char *name; /* without kvroute_ */
        enum metric_type type;
        const char *labels; /* "replica,kind" */
        const char *help;
        const double *buckets; /* upper bounds in seconds, rising, without the infinite one */
        size_t bucket_count;
};
const struct metric_info *metric_info(enum metric_id id);

struct metrics;

/* A series' number. Always valid to count with: when the table is full it is the metric's series "other". */
typedef uint32_t metrics_series_id;

/* threads: how many counting threads; max_series: label sets kept. NULL when out of memory. */
KVR_MUST_USE struct metrics *metrics_new(unsigned threads, uint32_t max_series);
void metrics_free(struct metrics *metrics);

/*
 * The series with these label values, in the order of the row's labels (NULL for a metric without). Values
 * are copied; bytes that are not UTF-8 become '?'. A hit in the thread's cache takes tens of nanoseconds; a
 * miss takes a lock.
 */
metrics_series_id metrics_series(struct metrics *metrics, unsigned thread, enum metric_id id,
                                 const struct kvr_slice *values);

/*
 * Label values that several metrics have in common, each taking as many from the front as it has labels. For
 * who counts in many series at once: the values are looked up once, and what follows is an array access.
 * Valid until the thread's next call of metrics_labels.
 */
struct metrics_labels;
struct metrics_labels *metrics_labels(struct metrics *metrics, unsigned thread,
                                      const struct kvr_slice values[METRICS_LABELS_MAX]);
metrics_series_id metrics_series_of(struct metrics *metrics, unsigned thread, struct metrics_labels *labels,
                                    enum metric_id id);

/* Counter. */
void metrics_add(struct metrics *metrics, unsigned thread, metrics_series_id series, uint64_t n);
/* Histogram, in seconds; negative and NAN are ignored. */
void metrics_observe(struct metrics *metrics, unsigned thread, metrics_series_id series, double seconds);
/* Gauge, or a counter that is kept elsewhere: the whole value. NAN takes a gauge out of the exposition. Any
 * thread. */
void metrics_set(struct metrics *metrics, metrics_series_id series, double value);

/*
 * Takes all gauges out whose label `replica` has this value (a removed replica). Counters stay. Any thread.
 */
void metrics_drop_replica(struct metrics *metrics, struct kvr_slice replica);

/* The sum over all threads now: a counter's or gauge's value, a histogram's count. For tests and the
 * dashboard. */
double metrics_value(struct metrics *metrics, metrics_series_id series);

/* Prometheus text of everything. Gives text to free() (terminated); NULL: out of memory. Any thread. */
KVR_MUST_USE char *metrics_write(struct metrics *metrics, size_t *ret_len);

#endif
