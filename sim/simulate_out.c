/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of results as a table for people, as JSON, and as CSV. */
#include "simulate.h"
#include "stats.h"

#include <math.h>
#include <stdio.h>

#define WORD_WIDTH_MAX 40

static const struct column {
        const char *name; /* in JSON; "a.b" is member b of object a. In CSV '.' is '_' */
        const char *head; /* in the table; NULL: not shown */
        int digits;       /* behind the point */
        size_t offset;
} columns[] = {
#define COLUMN(field, json, text, decimals)                           \
        {                                                             \
                .name = (json), .head = (text), .digits = (decimals), \
                .offset = offsetof(struct sim_simulate_row, field)    \
        }
        COLUMN(load, "load", "load", 2),
        COLUMN(speed, "speed", "speed", 2),
        COLUMN(requests, "requests", NULL, 0),
        COLUMN(rejected, "rejected", "reject", 0),
        COLUMN(failed, "failed", "failed", 0),
        COLUMN(retried, "retried", NULL, 0),
        COLUMN(hit_rate, "hit_rate", "hit", 4),
        COLUMN(block_hit_rate, "block_hit_rate", "blocks", 4),
        COLUMN(request_hit_rate, "request_hit_rate", NULL, 4),
        COLUMN(predicted_hit_rate, "predicted_hit_rate", "pred", 4),
        COLUMN(ttft_mean, "ttft_s.mean", "TTFT s", 2),
        COLUMN(ttft_p50, "ttft_s.p50", "p50", 2),
        COLUMN(ttft_p90, "ttft_s.p90", "p90", 2),
        COLUMN(ttft_p99, "ttft_s.p99", "p99", 2),
        COLUMN(tpot_mean, "tpot_s.mean", "TPOT s", 4),
        COLUMN(tpot_p99, "tpot_s.p99", "p99", 3),
        COLUMN(e2e_mean, "e2e_s.mean", "E2E s", 2),
        COLUMN(e2e_p50, "e2e_s.p50", NULL, 2),
        COLUMN(e2e_p90, "e2e_s.p90", NULL, 2),
        COLUMN(e2e_p99, "e2e_s.p99", "p99", 1),
        COLUMN(max_over_mean, "max_over_mean", "req m/m", 2),
        COLUMN(cv, "cv", NULL, 2),
        COLUMN(work_max_over_mean, "work_max_over_mean", "work m/m", 2),
        COLUMN(work_cv, "work_cv", NULL, 2),
        COLUMN(hot_p95, "work_max_over_mean_10s_p95", "10s p95", 2),
        COLUMN(busy_mean, "busy.mean", "busy", 2),
        COLUMN(busy_max, "busy.max", "max", 2),
        COLUMN(dropped, "evicted_blocks", NULL, 0),
        COLUMN(preempted, "preempted", "preempt", 0),
        COLUMN(messages, "events.messages", NULL, 0),
        COLUMN(messages_lost, "events.lost", "ev lost", 0),
        COLUMN(messages_replayed, "events.replayed", NULL, 0),
        COLUMN(gaps, "events.gaps", NULL, 0),
        COLUMN(replays, "events.replays", NULL, 0),
        COLUMN(clears, "events.clears", NULL, 0),
        COLUMN(restarts, "events.restarts", NULL, 0),
        COLUMN(untrusted, "events.untrusted", "untrust", 4),
        COLUMN(overpredicted, "overpredicted", "over", 4),
        COLUMN(reuse_s, "reuse_s", "reuse s", 1),
        COLUMN(capacity, "capacity", "capacity", 2),
#undef COLUMN
};

#define COLUMN_COUNT (sizeof(columns) / sizeof(columns[0]))

static double figure(const struct sim_simulate_row *row, const struct column *column)
{
        return *(const double *)(const void *)((const char *)row + column->offset);
}

void sim_simulate_row_init(struct sim_simulate_row *row)
{
        *row = (struct sim_simulate_row){0};
        for (size_t i = 0; i < COLUMN_COUNT; i++)
                *(double *)(void *)((char *)row + columns[i].offset) = (double)NAN;
}

/* ---- for people --------------------------------------------------------------------------------------- */

static int word_width(const struct sim_simulate_row *rows, size_t count, bool trace, const char *head)
{
        size_t width = strlen(head);

        for (size_t i = 0; i < count; i++) {
                size_t len = strlen(trace ? rows[i].trace : rows[i].policy);

                width = len > width ? len : width;
        }
        return width > WORD_WIDTH_MAX ? WORD_WIDTH_MAX : (int)width;
}

/* As wide as the widest figure; 0: no row has one. */
static int figure_width(const struct sim_simulate_row *rows, size_t count, const struct column *column)
{
        int width = 0;

        for (size_t i = 0; i < count; i++) {
                double value = figure(&rows[i], column);
                int len = isnan(value) ? 0 : snprintf(NULL, 0, "%.*f", column->digits, value);

                width = len > width ? len : width;
        }
        if (width && column->head && (int)strlen(column->head) > width)
                width = (int)strlen(column->head);
        return column->head ? width : 0;
}

static bool several_traces(const struct sim_simulate_row *rows, size_t count)
{
        for (size_t i = 1; i < count; i++) {
                if (strcmp(rows[i].trace, rows[0].trace) != 0)
                        return true;
        }
        return false;
}

static void add_size(struct sim_buf *buf, const struct sim_simulate_row *row)
{
        if (row->capacity_blocks)
                sim_buf_printf(buf, " %8u %8u", row->replicas, row->capacity_blocks);
        else
                sim_buf_printf(buf, " %8u %8s", row->replicas, "inf");
}

static void print_table(const struct sim_simulate_row *rows, size_t count, struct sim_buf *buf)
{
        int widths[COLUMN_COUNT], trace = word_width(rows, count, true, "trace"),
                                  policy = word_width(rows, count, false, "policy");
        bool named = several_traces(rows, count);

        if (named)
                sim_buf_printf(buf, "%-*s  ", trace, "trace");
        sim_buf_printf(buf, "%-*s %8s %8s", policy, "policy", "replicas", "blocks");
        for (size_t i = 0; i < COLUMN_COUNT; i++) {
                widths[i] = figure_width(rows, count, &columns[i]);
                if (widths[i])
                        sim_buf_printf(buf, " %*s", widths[i], columns[i].head);
        }
        sim_buf_puts(buf, "\n");
        for (size_t at = 0; at < count; at++) {
                if (named)
                        sim_buf_printf(buf, "%-*.*s  ", trace, trace, rows[at].trace);
                sim_buf_printf(buf, "%-*.*s", policy, policy, rows[at].policy);
                add_size(buf, &rows[at]);
                for (size_t i = 0; i < COLUMN_COUNT; i++) {
                        double value = figure(&rows[at], &columns[i]);

                        if (widths[i] && isnan(value))
                                sim_buf_printf(buf, " %*s", widths[i], "-");
                        else if (widths[i])
                                sim_buf_printf(buf, " %*.*f", widths[i], columns[i].digits, value);
                }
                sim_buf_puts(buf, "\n");
        }
}

/* ---- for programs ------------------------------------------------------------------------------------- */

/* Members of one object stand together in the table of columns. */
static void print_json_row(const struct sim_simulate_row *row, struct sim_buf *buf)
{
        const char *object = "";
        size_t object_len = 0;

        sim_buf_puts(buf, "{\"trace\":");
        sim_buf_json(buf, sim_slice(row->trace));
        sim_buf_puts(buf, ",\"policy\":");
        sim_buf_json(buf, sim_slice(row->policy));
        sim_buf_printf(buf, ",\"replicas\":%u,\"capacity_blocks\":", row->replicas);
        if (row->capacity_blocks)
                sim_buf_printf(buf, "%u", row->capacity_blocks);
        else
                sim_buf_puts(buf, "null");
        sim_buf_printf(buf, ",\"block_tokens\":%u", row->block_tokens);
        for (size_t i = 0; i < COLUMN_COUNT; i++) {
                const char *name = columns[i].name, *dot = strchr(name, '.');
                size_t len = dot ? (size_t)(dot - name) : 0;
                bool same = len && len == object_len && strncmp(name, object, len) == 0;

                if (object_len && !same)
                        sim_buf_puts(buf, "}");
                sim_buf_puts(buf, ",");
                if (len && !same)
                        sim_buf_printf(buf, "\"%.*s\":{", (int)len, name);
                object = name;
                object_len = len;
                sim_buf_printf(buf, "\"%s\":", dot ? dot + 1 : name);
                sim_number_json(buf, figure(row, &columns[i]));
        }
        sim_buf_puts(buf, object_len ? "}}" : "}");
}

static void print_json(const struct sim_simulate_row *rows, size_t count, struct sim_buf *buf)
{
        sim_buf_puts(buf, "{\"rows\":[");
        for (size_t i = 0; i < count; i++) {
                sim_buf_puts(buf, i ? ",\n" : "");
                print_json_row(&rows[i], buf);
        }
        sim_buf_puts(buf, "]}\n");
}

static void add_csv_word(struct sim_buf *buf, const char *word)
{
        if (!strpbrk(word, ",\"\r\n")) {
                sim_buf_puts(buf, word);
                return;
        }
        sim_buf_puts(buf, "\"");
        for (; *word; word++) {
                if (*word == '"')
                        sim_buf_puts(buf, "\"");
                sim_buf_add(buf, word, 1);
        }
        sim_buf_puts(buf, "\"");
}

static void print_csv(const struct sim_simulate_row *rows, size_t count, struct sim_buf *buf)
{
        sim_buf_puts(buf, "trace,policy,replicas,capacity_blocks,block_tokens");
        for (size_t i = 0; i < COLUMN_COUNT; i++) {
                const char *dot = strchr(columns[i].name, '.');
                size_t len = dot ? (size_t)(dot - columns[i].name) : strlen(columns[i].name);

                sim_buf_printf(buf, ",%.*s%s%s", (int)len, columns[i].name, dot ? "_" : "",
                               dot ? dot + 1 : "");
        }
        sim_buf_puts(buf, "\n");
        for (size_t at = 0; at < count; at++) {
                add_csv_word(buf, rows[at].trace);
                sim_buf_puts(buf, ",");
                add_csv_word(buf, rows[at].policy);
                sim_buf_printf(buf, ",%u,", rows[at].replicas);
                if (rows[at].capacity_blocks)
                        sim_buf_printf(buf, "%u", rows[at].capacity_blocks);
                sim_buf_printf(buf, ",%u", rows[at].block_tokens);
                for (size_t i = 0; i < COLUMN_COUNT; i++) {
                        double value = figure(&rows[at], &columns[i]);

                        if (isnan(value))
                                sim_buf_puts(buf, ",");
                        else
                                sim_buf_printf(buf, ",%.9g", value);
                }
                sim_buf_puts(buf, "\n");
        }
}

void sim_simulate_print(const struct sim_simulate_row *rows, size_t count, enum sim_simulate_form form,
                        struct sim_buf *buf)
{
        switch (form) {
        case SIM_SIMULATE_TABLE:
                print_table(rows, count, buf);
                break;
        case SIM_SIMULATE_JSON:
                print_json(rows, count, buf);
                break;
        case SIM_SIMULATE_CSV:
                print_csv(rows, count, buf);
                break;
        }
}

void sim_simulate_requests(const struct sim_trace *trace, const struct sim_des_record *records, FILE *file)
{
        fputs("arrival_s,session,prompt_tokens,output_tokens,replica,predicted_tokens,cached_tokens,ttft_s,"
              "e2e_s\n",
              file);
        for (uint32_t i = 0; i < trace->row_count; i++) {
                const struct sim_des_record *record = &records[i];
                const struct sim_trace_row *row = &trace->rows[i];

                fprintf(file, "%.9f,%u,%u,%u,%u,%u,%u,", record->arrival_s, row->session, row->input_tokens,
                        row->output_tokens, record->replica, record->predicted, record->cached);
                if (isnan(record->ttft_s))
                        fputs(",\n", file);
                else
                        fprintf(file, "%.9f,%.9f\n", record->ttft_s, record->e2e_s);
        }
}
