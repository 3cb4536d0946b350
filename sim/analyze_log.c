/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze_log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define FIRST_ROWS 1024u

/* What the windows need of a line. */
struct served {
        double time_s, computed;
        uint32_t replica;
};

struct reader {
        const char *path;
        const struct sim_trace_options *stretch;
        const struct sim_cost *cost;
        struct sim_log *log;
        struct served *rows;
        uint32_t row_count, row_cap;
        double begin_s; /* of the log; 0: not known yet */
        char *message;
        size_t message_size;
};

bool sim_log_is(const char *path)
{
        char line[512];
        gzFile file = gzopen(path, "rb");
        bool is;

        if (!file)
                return false;
        is = gzgets(file, line, sizeof(line)) && sim_access_is(line, strlen(line));
        gzclose(file);
        return is;
}

/* ---- one line ----------------------------------------------------------------------------------------- */

/* SIM_LOG_REPLICAS_MAX: too many. */
static uint32_t find_replica(struct sim_log *log, const char *name)
{
        uint32_t i = 0;

        while (i < log->replica_count && strcmp(log->replicas[i].name, name) != 0)
                i++;
        if (i < log->replica_count || i == SIM_LOG_REPLICAS_MAX)
                return i;
        snprintf(log->replicas[log->replica_count++].name, SIM_ACCESS_NAME_MAX, "%s", name);
        return i;
}

static bool keep(struct reader *reader, double time_s, uint32_t replica, double computed)
{
        if (reader->row_count == reader->row_cap) {
                uint32_t cap = reader->row_cap ? reader->row_cap * 2 : FIRST_ROWS;
                struct served *rows =
                        cap <= SIM_TRACE_ROWS_MAX ? realloc(reader->rows, cap * sizeof(*rows)) : NULL;

                if (!rows)
                        return false;
                reader->rows = rows;
                reader->row_cap = cap;
        }
        reader->rows[reader->row_count++] = (struct served){time_s, computed, replica};
        return true;
}

static double seconds_of(const struct reader *reader, double prompt, double cached)
{
        return sim_cost_prefill_ms(reader->cost, prompt - cached, prompt) / 1e3;
}

static const char *take_answer(struct reader *reader, const struct sim_access_line *line)
{
        struct sim_log *log = reader->log;
        double prompt = line->prompt, predicted = fmin(fmax(line->predicted, 0), prompt);
        bool observed = line->observed >= 0;
        double won = fmin(observed ? line->observed : predicted, prompt);
        double held = fmax(predicted, won), best = fmin(fmax(line->best, held), prompt);
        uint32_t replica = find_replica(log, line->name);

        if (replica == SIM_LOG_REPLICAS_MAX)
                return "too many replicas";
        if (!keep(reader, line->end_s, replica, prompt - won))
                return "too many lines for the memory";
        log->replicas[replica].requests++;
        log->replicas[replica].computed_tokens += prompt - won;
        log->requests++;
        log->prompt_tokens += prompt;
        log->predicted_tokens += predicted;
        log->observed_tokens += observed ? won : 0;
        log->unobserved_prompt_tokens += observed ? 0 : prompt;
        log->hits += won > 0;
        log->won += won;
        log->staleness += held - won;
        log->placement += best - held;
        log->workload += prompt - best;
        log->none_s += seconds_of(reader, prompt, 0);
        log->now_s += seconds_of(reader, prompt, won);
        log->best_s += seconds_of(reader, prompt, best);
        log->prefix_bins[sim_account_bin(won)]++;
        if (line->ttft_s >= 0)
                sim_samples_add(&log->ttft, line->ttft_s);
        sim_samples_add(&log->queue, fmax(line->queue_s, 0));
        return NULL;
}

static const char *take_line(void *ctx, const struct sim_access_line *line)
{
        struct reader *reader = ctx;
        struct sim_log *log = reader->log;
        double at_s;

        if (reader->begin_s <= 0)
                reader->begin_s = line->end_s;
        at_s = line->end_s - reader->begin_s;
        if (at_s < reader->stretch->from_s || (reader->stretch->to_s > 0 && at_s >= reader->stretch->to_s))
                return NULL;
        log->lines++;
        log->first_s = log->lines <= 1 ? line->end_s : fmin(log->first_s, line->end_s);
        log->last_s = fmax(log->last_s, line->end_s);
        if (line->answered && line->prompt > 0 && line->replica)
                return take_answer(reader, line);
        /* What was answered without a replica, like the list of models, is neither. */
        if (!line->answered)
                log->failed++;
        return NULL;
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
        const struct served *x = a, *y = b;

        return (x->time_s > y->time_s) - (x->time_s < y->time_s);
}

static void spread_of(const struct sim_log *log, bool of_work, struct sim_rung_spread *ret)
{
        double sum = 0, most = 0, squares = 0, mean;

        for (uint32_t i = 0; i < log->replica_count; i++) {
                double figure = of_work ? log->replicas[i].computed_tokens : log->replicas[i].requests;

                sum += figure;
                most = fmax(most, figure);
                squares += figure * figure;
        }
        mean = sum / log->replica_count;
        ret->max_over_mean = mean > 0 ? most / mean : 0;
        ret->cv = mean > 0 ? sqrt(fmax(0, squares / log->replica_count - mean * mean)) / mean : 0;
        ret->jain = 1 / (1 + ret->cv * ret->cv);
}

static bool take_windows(struct reader *reader)
{
        struct sim_log *log = reader->log;
        struct sim_windows requests, work;
        bool good = sim_windows_init(&requests, log->replica_count);

        good = sim_windows_init(&work, log->replica_count) && good && reader->rows;
        if (good)
                qsort(reader->rows, reader->row_count, sizeof(*reader->rows), by_time);
        for (uint32_t i = 0; good && i < reader->row_count; i++) {
                const struct served *row = &reader->rows[i];

                sim_windows_add(&requests, row->time_s, row->replica, 1);
                sim_windows_add(&work, row->time_s, row->replica, row->computed);
        }
        if (good) {
                log->by_requests.hot_p95 = sim_windows_p95(&requests);
                log->by_work.hot_p95 = sim_windows_p95(&work);
        }
        sim_windows_fini(&requests);
        sim_windows_fini(&work);
        return good;
}

/*
 * A bound: all best matches taken, against a router that meets each beginning's holder once in R times. What
 * several replicas hold is met more often than that, and the best match may be worth less than a short queue.
 */
static void judge(struct sim_log *log)
{
        log->gain = log->blind_s > 0 ? (log->blind_s - log->best_s) / log->blind_s : 0;
        log->by_work_verdict = log->gain >= SIM_VERDICT_WORK_YES    ? SIM_VERDICT_YES
                               : log->gain >= SIM_VERDICT_WORK_SOME ? SIM_VERDICT_MARGINAL
                                                                    : SIM_VERDICT_NO;
}

static bool finish(struct reader *reader)
{
        struct sim_log *log = reader->log;

        if (log->requests <= 0) {
                snprintf(reader->message, reader->message_size, "%s: no answered requests%s", reader->path,
                         reader->begin_s > 0 && log->lines <= 0 ? " in the chosen stretch of time" : "");
                return false;
        }
        spread_of(log, false, &log->by_requests);
        spread_of(log, true, &log->by_work);
        if (!take_windows(reader)) {
                snprintf(reader->message, reader->message_size, "out of memory");
                return false;
        }
        /*
         * Priced linearly between nothing and the best: t(n - p, n) is linear in p but for its least value.
         */
        log->blind_s = log->none_s - (log->none_s - log->best_s) / log->replica_count;
        judge(log);
        return true;
}

bool sim_log_read(const char *path, const char *name, const struct sim_trace_options *stretch,
                  const struct sim_cost *cost, struct sim_log *ret, char *message, size_t message_size)
{
        struct sim_log log = {.name = name};
        struct reader reader = {
                .path = path,
                .stretch = stretch,
                .cost = cost,
                .log = &log,
                .message = message,
                .message_size = message_size,
        };
        bool good;

        log.replicas = calloc(SIM_LOG_REPLICAS_MAX, sizeof(*log.replicas));
        snprintf(message, message_size, "%s: out of memory", path);
        good = log.replicas && sim_access_read(path, take_line, &reader, message, message_size) &&
               finish(&reader);
        free(reader.rows);
        if (good)
                *ret = log;
        else
                sim_log_fini(&log);
        return good;
}

void sim_log_fini(struct sim_log *log)
{
        free(log->replicas);
        log->replicas = NULL;
        sim_samples_fini(&log->ttft);
        sim_samples_fini(&log->queue);
}
