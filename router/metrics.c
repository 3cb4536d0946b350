/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "proto/text.h"

/*
 * Every series owns a run of cells: one for a counter, one per bucket plus the infinite one plus the sum for
 * a histogram. Each thread has its own copy of all cells, in chunks that it allocates when it first counts
 * there, so a thread writes only its own memory and a scrape reads everybody's:
 *
 *     series  0        1            2 ...        global[]  one double per series: gauges, and counters kept
 * elsewhere cells   |c|  |b b b b b s|  |c| thread 0 chunk 0 ──────────────┐  thread 1 chunk 0 ─────────┐ ...
 *
 * Gauges have no cells. A series is made under the lock and never changes or goes away afterwards; readers
 * see it once `count` includes it.
 */
#define CHUNK_CELLS  512
#define CACHE_SLOTS  1024 /* per thread, direct mapped */
#define LABELS_SLOTS 64   /* the same, of label values */
#define CELLS_MAX    24   /* of one series */

static const double buckets_ttft[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};
static const double buckets_duration[] = {0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
static const double buckets_decision[] = {5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 1e-2};

#define TYPE_COUNTER   METRIC_COUNTER
#define TYPE_GAUGE     METRIC_GAUGE
#define TYPE_HISTOGRAM METRIC_HISTOGRAM
#define SET_NONE       NULL, 0
#define SET_TTFT       buckets_ttft, sizeof buckets_ttft / sizeof *buckets_ttft
#define SET_DURATION   buckets_duration, sizeof buckets_duration / sizeof *buckets_duration
#define SET_DECISION   buckets_decision, sizeof buckets_decision / sizeof *buckets_decision

static const struct metric_info infos[METRIC_COUNT] = {
#define METRIC(id, name, type, buckets, labels, help) \
        [METRIC_##id] = {name, TYPE_##type, labels, help, SET_##buckets},
#include "metrics.def"
#undef METRIC
};

struct series {
        enum metric_id id;
        uint64_t hash;
        uint32_t cell, cell_count;
        struct kvr_slice values[METRICS_LABELS_MAX];
        atomic_bool used; /* an "other" series is shown only when something is in it */
};

struct cache_slot {
        uint64_t hash;
        uint32_t series; /* number + 1; 0: empty */
};

struct metrics_labels {
        size_t key_len;                                         /* 0: empty */
        char key[METRICS_LABELS_MAX * (METRICS_VALUE_MAX + 1)]; /* each value with its length in front */
        uint32_t series[METRIC_COUNT];                          /* number + 1; 0: not looked up yet */
};

struct thread {
        _Alignas(64) _Atomic(_Atomic uint64_t *) *chunks;
        struct cache_slot cache[CACHE_SLOTS];
        struct metrics_labels labels[LABELS_SLOTS];
};

struct metrics {
        pthread_mutex_t lock; /* makes series */
        unsigned thread_count;
        uint32_t series_max; /* without the "other" ones, which are the first METRIC_COUNT */
        uint32_t chunk_count;
        struct series *series;
        _Atomic uint32_t count;
        uint32_t cells;
        uint32_t *table; /* hash -> number + 1 */
        uint32_t table_mask;
        _Atomic uint64_t *global; /* bits of a double */
        struct thread *threads;
        uint8_t label_counts[METRIC_COUNT];
};

const struct metric_info *metric_info(enum metric_id id)
{
        return &infos[id];
}

static unsigned label_count(enum metric_id id)
{
        const char *labels = infos[id].labels;
        unsigned n = *labels != 0;

        for (; *labels; labels++)
                n += *labels == ',';
        return n;
}

static uint64_t bits_of(double value)
{
        uint64_t bits;

        memcpy(&bits, &value, sizeof bits);
        return bits;
}

static double double_of(uint64_t bits)
{
        double value;

        memcpy(&value, &bits, sizeof value);
        return value;
}

/* ---- making series ---------------------------------------------------------------------------------- */

static uint64_t hash_of(enum metric_id id, const struct kvr_slice *values, unsigned count)
{
        uint64_t hash = (uint64_t)id + 1;

        for (unsigned i = 0; i < count; i++)
                hash = XXH3_64bits_withSeed(values[i].data, values[i].len, hash);
        return hash;
}

static bool same(const struct series *s, enum metric_id id, uint64_t hash, const struct kvr_slice *values,
                 unsigned count)
{
        if (s->hash != hash || s->id != id)
                return false;
        for (unsigned i = 0; i < count; i++)
                if (s->values[i].len != values[i].len ||
                    (values[i].len > 0 && memcmp(s->values[i].data, values[i].data, values[i].len) != 0))
                        return false;
        return true;
}

static bool copy_values(struct series *s, const struct kvr_slice *values, unsigned count)
{
        size_t total = 0;

        for (unsigned i = 0; i < count; i++)
                total += values[i].len;
        if (total == 0)
                return true;
        char *text = malloc(total);
        if (!text)
                return false;
        for (unsigned i = 0; i < count; i++) {
                if (values[i].len > 0)
                        memcpy(text, values[i].data, values[i].len);
                s->values[i] = (struct kvr_slice){text, values[i].len};
                text += values[i].len;
        }
        return true;
}

static uint32_t cells_of(enum metric_id id)
{
        switch (infos[id].type) {
        case METRIC_COUNTER:
                return 1;
        case METRIC_HISTOGRAM:
                return (uint32_t)infos[id].bucket_count + 2;
        default:
                return 0;
        }
}

/* Caller holds the lock, or is the only one. There is room. */
static bool add_series(struct metrics *m, enum metric_id id, uint64_t hash, const struct kvr_slice *values,
                       unsigned count, bool used)
{
        uint32_t n = atomic_load_explicit(&m->count, memory_order_relaxed), cells = cells_of(id);
        struct series *s = &m->series[n];

        if (!copy_values(s, values, count))
                return false;
        /* A run lies within one chunk. */
        if (m->cells % CHUNK_CELLS + cells > CHUNK_CELLS)
                m->cells += CHUNK_CELLS - m->cells % CHUNK_CELLS;
        s->id = id;
        s->hash = hash;
        s->cell = m->cells;
        s->cell_count = cells;
        m->cells += cells;
        atomic_init(&s->used, used);
        atomic_init(&m->global[n], bits_of(infos[id].type == METRIC_GAUGE ? NAN : 0));
        /* pairs with the acquire load of whoever walks over the series */
        atomic_store_explicit(&m->count, n + 1, memory_order_release);
        return true;
}

static uint32_t *table_slot(const struct metrics *m, enum metric_id id, uint64_t hash,
                            const struct kvr_slice *values, unsigned count)
{
        uint32_t i = (uint32_t)hash & m->table_mask;

        while (m->table[i] != 0 && !same(&m->series[m->table[i] - 1], id, hash, values, count))
                i = (i + 1) & m->table_mask;
        return &m->table[i];
}

/* ---- life ------------------------------------------------------------------------------------------- */

static bool init_other(struct metrics *m)
{
        static const struct kvr_slice other = {"other", 5};

        for (unsigned id = 0; id < METRIC_COUNT; id++) {
                struct kvr_slice values[METRICS_LABELS_MAX] = {other, other, other, other};
                unsigned labels = label_count((enum metric_id)id);
                bool shown = labels == 0;

                if (!add_series(m, (enum metric_id)id, 0, values, labels, shown))
                        return false;
        }
        return true;
}

static bool init_tables(struct metrics *m)
{
        uint32_t all = m->series_max + METRIC_COUNT, size = 64;

        while (size < 2 * all)
                size *= 2;
        m->table_mask = size - 1;
        m->chunk_count = all * CELLS_MAX / CHUNK_CELLS + 1;
        m->table = calloc(size, sizeof *m->table);
        m->series = calloc(all, sizeof *m->series);
        m->global = calloc(all, sizeof *m->global);
        m->threads = aligned_alloc(_Alignof(struct thread), m->thread_count * sizeof *m->threads);
        if (m->threads)
                memset(m->threads, 0, m->thread_count * sizeof *m->threads);
        if (!m->table || !m->series || !m->global || !m->threads)
                return false;
        for (unsigned t = 0; t < m->thread_count; t++) {
                m->threads[t].chunks = calloc(m->chunk_count, sizeof *m->threads[t].chunks);
                if (!m->threads[t].chunks)
                        return false;
        }
        return true;
}

struct metrics *metrics_new(unsigned threads, uint32_t max_series)
{
        struct metrics *m = calloc(1, sizeof *m);

        if (!m)
                return NULL;
        m->thread_count = threads > 0 ? threads : 1;
        m->series_max = max_series;
        for (unsigned id = 0; id < METRIC_COUNT; id++)
                m->label_counts[id] = (uint8_t)label_count((enum metric_id)id);
        if (pthread_mutex_init(&m->lock, NULL) != 0) {
                free(m);
                return NULL;
        }
        if (!init_tables(m) || !init_other(m)) {
                metrics_free(m);
                return NULL;
        }
        return m;
}

void metrics_free(struct metrics *m)
{
        if (!m)
                return;
        uint32_t count = atomic_load(&m->count);

        for (unsigned t = 0; m->threads && t < m->thread_count; t++) {
                for (uint32_t c = 0; m->threads[t].chunks && c < m->chunk_count; c++)
                        free((void *)atomic_load(&m->threads[t].chunks[c]));
                free(m->threads[t].chunks);
        }
        for (uint32_t i = 0; m->series && i < count; i++)
                free((char *)(uintptr_t)m->series[i].values[0].data);
        free(m->threads);
        free((void *)m->global);
        free(m->series);
        free(m->table);
        pthread_mutex_destroy(&m->lock);
        free(m);
}

/* ---- finding series --------------------------------------------------------------------------------- */

/* Length of the UTF-8 sequence at text, 0 if it is none. */
static size_t utf8_len(const unsigned char *text, size_t len)
{
        size_t n = text[0] < 0x80   ? 1
                   : text[0] < 0xc2 ? 0
                   : text[0] < 0xe0 ? 2
                   : text[0] < 0xf0 ? 3
                   : text[0] < 0xf5 ? 4
                                    : 0;

        if (n == 0 || n > len)
                return 0;
        for (size_t i = 1; i < n; i++)
                if ((text[i] & 0xc0) != 0x80)
                        return 0;
        if ((n == 3 && ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] > 0x9f))) ||
            (n == 4 && ((text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] > 0x8f))))
                return 0;
        return n;
}

/* Scrapers refuse a whole page for one byte that is not UTF-8. */
static struct kvr_slice clean(struct kvr_slice value, char *buf)
{
        size_t out = 0, i = 0;

        while (i < value.len) {
                size_t n = utf8_len((const unsigned char *)value.data + i, value.len - i);

                if (out + (n ? n : 1) > METRICS_VALUE_MAX)
                        break;
                if (n == 0) {
                        buf[out++] = '?';
                        i++;
                        continue;
                }
                memcpy(buf + out, value.data + i, n);
                out += n;
                i += n;
        }
        return (struct kvr_slice){buf, out};
}

/* The last quarter is for gauges: they are about replicas, which operators name, and nothing replaces them. */
static uint32_t series_limit(const struct metrics *m, enum metric_id id)
{
        uint32_t kept = infos[id].type == METRIC_GAUGE ? 0 : m->series_max / 4;

        return m->series_max - kept + METRIC_COUNT;
}

static uint32_t find_or_add(struct metrics *m, enum metric_id id, const struct kvr_slice *values,
                            unsigned count)
{
        uint64_t hash = hash_of(id, values, count);
        uint32_t found = id; /* the series "other" */

        pthread_mutex_lock(&m->lock);
        uint32_t *slot = table_slot(m, id, hash, values, count);
        uint32_t n = atomic_load_explicit(&m->count, memory_order_relaxed);

        if (*slot != 0) {
                found = *slot - 1;
        } else if (n < series_limit(m, id) && add_series(m, id, hash, values, count, true)) {
                *slot = n + 1;
                found = n;
        } else {
                _Atomic uint64_t *lost = &m->global[METRIC_SERIES_OTHER];

                atomic_store(lost, bits_of(double_of(atomic_load(lost)) + 1));
                atomic_store(&m->series[id].used, true);
        }
        pthread_mutex_unlock(&m->lock);
        return found;
}

/* With values as they may be exposed. */
__attribute__((cold)) static uint32_t find_or_add_clean(struct metrics *m, enum metric_id id,
                                                        const struct kvr_slice *values, unsigned count)
{
        struct kvr_slice cleaned[METRICS_LABELS_MAX];
        char buf[METRICS_LABELS_MAX][METRICS_VALUE_MAX];

        for (unsigned i = 0; i < count; i++)
                cleaned[i] = clean(values[i], buf[i]);
        return find_or_add(m, id, cleaned, count);
}

metrics_series_id metrics_series(struct metrics *m, unsigned thread, enum metric_id id,
                                 const struct kvr_slice *values)
{
        unsigned count = m->label_counts[id];

        if (count == 0)
                return (metrics_series_id)id;
        uint64_t hash = hash_of(id, values, count);
        struct cache_slot *slot = &m->threads[thread].cache[hash % CACHE_SLOTS];

        if (slot->series != 0 && slot->hash == hash &&
            same(&m->series[slot->series - 1], id, hash, values, count))
                return slot->series - 1;
        *slot = (struct cache_slot){hash, find_or_add_clean(m, id, values, count) + 1};
        return slot->series - 1;
}

struct metrics_labels *metrics_labels(struct metrics *m, unsigned thread,
                                      const struct kvr_slice values[METRICS_LABELS_MAX])
{
        char key[sizeof((struct metrics_labels *)NULL)->key];
        struct metrics_labels *labels;
        size_t len = 0;

        for (unsigned i = 0; i < METRICS_LABELS_MAX; i++) {
                size_t n = values[i].len;

                /* Longer ones are cut between two characters, as metrics_series does. */
                for (n = n < METRICS_VALUE_MAX ? n : METRICS_VALUE_MAX;
                     n && n < values[i].len && ((unsigned char)values[i].data[n] & 0xC0) == 0x80;)
                        n--;

                key[len++] = (char)n;
                if (n)
                        memcpy(key + len, values[i].data, n);
                len += n;
        }
        /* Two places each, so that two sets that meet in one do not take turns there. */
        const uint64_t hash = XXH3_64bits(key, len);
        struct metrics_labels *second = &m->threads[thread].labels[(hash >> 32) % LABELS_SLOTS];

        labels = &m->threads[thread].labels[hash % LABELS_SLOTS];
        if (labels->key_len != len || memcmp(labels->key, key, len) != 0) {
                if (second->key_len == len && memcmp(second->key, key, len) == 0)
                        return second;
                if (labels->key_len && !second->key_len)
                        labels = second;
                memset(labels->series, 0, sizeof labels->series);
                memcpy(labels->key, key, len);
                labels->key_len = len;
        }
        return labels;
}

metrics_series_id metrics_series_of(struct metrics *m, unsigned thread, struct metrics_labels *labels,
                                    enum metric_id id)
{
        struct kvr_slice values[METRICS_LABELS_MAX];
        const char *at = labels->key;

        if (labels->series[id])
                return labels->series[id] - 1;
        for (unsigned i = 0; i < METRICS_LABELS_MAX; i++) {
                values[i] = (struct kvr_slice){at + 1, (unsigned char)*at};
                at += 1 + values[i].len;
        }
        labels->series[id] = metrics_series(m, thread, id, values) + 1;
        return labels->series[id] - 1;
}

/* ---- counting --------------------------------------------------------------------------------------- */

/* The thread's own cells of a series; NULL when out of memory (then the count is lost). */
static _Atomic uint64_t *own_cells(struct metrics *m, unsigned thread, const struct series *s)
{
        _Atomic(_Atomic uint64_t *) *chunk = &m->threads[thread].chunks[s->cell / CHUNK_CELLS];
        _Atomic uint64_t *cells = atomic_load_explicit(chunk, memory_order_relaxed);

        if (!cells) {
                cells = calloc(CHUNK_CELLS, sizeof *cells);
                /* pairs with the acquire load in cell_sum */
                atomic_store_explicit(chunk, cells, memory_order_release);
        }
        return cells ? cells + s->cell % CHUNK_CELLS : NULL;
}

/* One writer per cell: no locked instruction is needed. */
static void bump(_Atomic uint64_t *cell, uint64_t n)
{
        atomic_store_explicit(cell, atomic_load_explicit(cell, memory_order_relaxed) + n,
                              memory_order_relaxed);
}

void metrics_add(struct metrics *m, unsigned thread, metrics_series_id series, uint64_t n)
{
        const struct series *s = &m->series[series];
        _Atomic uint64_t *cells = s->cell_count == 1 ? own_cells(m, thread, s) : NULL;

        if (cells)
                bump(cells, n);
}

void metrics_observe(struct metrics *m, unsigned thread, metrics_series_id series, double seconds)
{
        const struct series *s = &m->series[series];
        const struct metric_info *info = &infos[s->id];
        size_t i = 0;

        if (info->type != METRIC_HISTOGRAM || !(seconds >= 0) || seconds > 1e9)
                return;
        _Atomic uint64_t *cells = own_cells(m, thread, s);
        if (!cells)
                return;
        while (i < info->bucket_count && seconds > info->buckets[i])
                i++;
        bump(&cells[i], 1);
        bump(&cells[info->bucket_count + 1], (uint64_t)(seconds * 1e9 + 0.5));
}

void metrics_set(struct metrics *m, metrics_series_id series, double value)
{
        const struct metric_info *info = &infos[m->series[series].id];

        /* "other" would be the value of whoever wrote last. */
        if (series < METRIC_COUNT && info->type == METRIC_GAUGE && *info->labels)
                return;
        if (info->type != METRIC_HISTOGRAM)
                atomic_store_explicit(&m->global[series], bits_of(value), memory_order_relaxed);
}

void metrics_drop_replica(struct metrics *m, struct kvr_slice replica)
{
        uint32_t count = atomic_load_explicit(&m->count, memory_order_acquire);

        for (uint32_t i = METRIC_COUNT; i < count; i++) {
                const struct series *s = &m->series[i];

                if (infos[s->id].type == METRIC_GAUGE && strcmp(infos[s->id].labels, "replica") == 0 &&
                    s->values[0].len == replica.len &&
                    memcmp(s->values[0].data, replica.data, replica.len) == 0)
                        metrics_set(m, i, NAN);
        }
}

/* ---- reading ---------------------------------------------------------------------------------------- */

static uint64_t cell_sum(struct metrics *m, const struct series *s, uint32_t offset)
{
        uint64_t sum = 0;

        for (unsigned t = 0; t < m->thread_count; t++) {
                _Atomic uint64_t *cells = atomic_load_explicit(&m->threads[t].chunks[s->cell / CHUNK_CELLS],
                                                               memory_order_acquire);

                if (cells)
                        sum += atomic_load_explicit(cells + s->cell % CHUNK_CELLS + offset,
                                                    memory_order_relaxed);
        }
        return sum;
}

double metrics_value(struct metrics *m, metrics_series_id series)
{
        const struct series *s = &m->series[series];
        double value = double_of(atomic_load_explicit(&m->global[series], memory_order_relaxed));

        if (infos[s->id].type == METRIC_COUNTER)
                return value + (double)cell_sum(m, s, 0);
        if (infos[s->id].type == METRIC_HISTOGRAM)
                for (uint32_t i = 0; i + 1 < s->cell_count; i++)
                        value += (double)cell_sum(m, s, i);
        return value;
}

static void write_value(struct text *out, struct kvr_slice value)
{
        text_add(out, "\"", 1);
        for (size_t i = 0; i < value.len; i++) {
                char c = value.data[i];

                if (c == '\\' || c == '"')
                        text_add(out, "\\", 1);
                if (c == '\n')
                        text_add(out, "\\n", 2);
                else
                        text_add(out, &c, 1);
        }
        text_add(out, "\"", 1);
}

/* kvroute_NAME[SUFFIX]{labels[,le="..."]} and a space */
static void write_name(struct text *out, const struct series *s, const char *suffix, const char *le)
{
        const char *label = infos[s->id].labels;
        bool open = false;

        text_addf(out, "kvroute_%s%s", infos[s->id].name, suffix);
        for (unsigned i = 0; *label; i++) {
                size_t len = strcspn(label, ",");

                text_add(out, open ? "," : "{", 1);
                open = true;
                text_add(out, label, len);
                text_add(out, "=", 1);
                write_value(out, s->values[i]);
                label += len + (label[len] == ',');
        }
        if (le)
                text_addf(out, "%sle=\"%s\"", open ? "," : "{", le);
        text_add(out, open || le ? "} " : " ", open || le ? 2 : 1);
}

static void write_number(struct text *out, double value)
{
        char text[40];

        snprintf(text, sizeof text, "%.15g", value);
        if (strtod(text, NULL) != value)
                snprintf(text, sizeof text, "%.17g", value);
        text_addf(out, "%s\n", isinf(value) ? (value < 0 ? "-Inf" : "+Inf") : text);
}

static void write_histogram(struct metrics *m, struct text *out, const struct series *s)
{
        const struct metric_info *info = &infos[s->id];
        uint64_t total = 0;
        char le[40];

        for (size_t i = 0; i <= info->bucket_count; i++) {
                total += cell_sum(m, s, (uint32_t)i);
                if (i < info->bucket_count)
                        snprintf(le, sizeof le, "%g", info->buckets[i]);
                write_name(out, s, "_bucket", i < info->bucket_count ? le : "+Inf");
                text_addf(out, "%" PRIu64 "\n", total);
        }
        write_name(out, s, "_sum", NULL);
        write_number(out, (double)cell_sum(m, s, s->cell_count - 1) / 1e9);
        write_name(out, s, "_count", NULL);
        text_addf(out, "%" PRIu64 "\n", total);
}

static void write_series(struct metrics *m, struct text *out, uint32_t number)
{
        const struct series *s = &m->series[number];
        double global = double_of(atomic_load_explicit(&m->global[number], memory_order_relaxed));

        if (infos[s->id].type == METRIC_HISTOGRAM) {
                write_histogram(m, out, s);
        } else if (infos[s->id].type == METRIC_COUNTER) {
                write_name(out, s, "", NULL);
                if (global > 0)
                        write_number(out, global + (double)cell_sum(m, s, 0));
                else
                        text_addf(out, "%" PRIu64 "\n", cell_sum(m, s, 0));
        } else if (!isnan(global)) {
                write_name(out, s, "", NULL);
                write_number(out, global);
        }
}

char *metrics_write(struct metrics *m, size_t *ret_len)
{
        static const char *const types[] = {"counter", "gauge", "histogram"};
        uint32_t count = atomic_load_explicit(&m->count, memory_order_acquire);
        struct text out = {0};

        for (unsigned id = 0; id < METRIC_COUNT; id++) {
                text_addf(&out, "# HELP kvroute_%s %s\n# TYPE kvroute_%s %s\n", infos[id].name,
                          infos[id].help, infos[id].name, types[infos[id].type]);
                for (uint32_t i = 0; i < count; i++)
                        if (m->series[i].id == id &&
                            atomic_load_explicit(&m->series[i].used, memory_order_relaxed))
                                write_series(m, &out, i);
        }
        text_string(&out);
        if (out.failed) {
                text_free(&out);
                return NULL;
        }
        *ret_len = out.len;
        return out.data;
}
