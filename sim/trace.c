/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>
#include <zlib.h>

#define FIRST_LINE 4096
#define READ_BYTES (128 * 1024)

/* Sizes that published traces use, the most common first. */
static const uint32_t block_sizes[] = {512, 64, 16, 128, 256, 32, 1024};

struct reader {
        const char *path;
        gzFile file;
        char *line;
        size_t len, cap;
        uint64_t line_number;
        bool first_seen;
        struct sim_trace *trace;
        size_t row_cap, id_cap;
        uint32_t *line_of_row; /* for messages about a row found bad later */
        char *message;
        size_t message_size;
};

static bool fail(struct reader *reader, const char *what)
{
        snprintf(reader->message, reader->message_size, "%s:%llu: %s", reader->path,
                 (unsigned long long)reader->line_number, what);
        return false;
}

/* 1: a line, without its end; 0: end of file; -1: failed. */
static int next_line(struct reader *reader)
{
        reader->len = 0;
        reader->line_number++;
        for (;;) {
                size_t room = reader->cap - reader->len;
                int error = 0;

                if (room < 2) {
                        size_t cap = reader->cap ? reader->cap * 2 : FIRST_LINE;
                        char *line = cap <= SIM_TRACE_LINE_MAX ? realloc(reader->line, cap) : NULL;

                        if (!line)
                                return fail(reader, "the line is too long") ? 0 : -1;
                        reader->line = line;
                        reader->cap = cap;
                        continue;
                }
                if (!gzgets(reader->file, reader->line + reader->len, (int)room)) {
                        const char *why = gzerror(reader->file, &error);

                        if (error != Z_OK && error != Z_STREAM_END)
                                return fail(reader, error == Z_ERRNO ? "cannot read" : why) ? 0 : -1;
                        return reader->len ? 1 : 0;
                }
                reader->len += strlen(reader->line + reader->len);
                if (reader->len && reader->line[reader->len - 1] == '\n') {
                        reader->line[--reader->len] = 0;
                        return 1;
                }
        }
}

static bool reserve(struct reader *reader, uint64_t ids)
{
        struct sim_trace *trace = reader->trace;

        if (trace->row_count == reader->row_cap) {
                size_t cap = reader->row_cap ? reader->row_cap * 2 : 1024;
                struct sim_trace_row *rows;
                uint32_t *lines;

                if (cap > SIM_TRACE_ROWS_MAX)
                        return fail(reader, "the trace has too many rows");
                rows = realloc(trace->rows, cap * sizeof(*rows));
                if (rows)
                        trace->rows = rows;
                lines = rows ? realloc(reader->line_of_row, cap * sizeof(*lines)) : NULL;
                if (!lines)
                        return fail(reader, "out of memory");
                reader->line_of_row = lines;
                reader->row_cap = cap;
        }
        if (reader->id_cap - trace->id_count < ids) {
                size_t cap = reader->id_cap ? reader->id_cap : 65536;
                uint64_t *grown;

                while (cap - trace->id_count < ids)
                        cap *= 2;
                grown = realloc(trace->ids, cap * sizeof(*grown));
                if (!grown)
                        return fail(reader, "out of memory");
                trace->ids = grown;
                reader->id_cap = cap;
        }
        return true;
}

static bool tokens(yyjson_val *root, const char *name, uint32_t *ret)
{
        yyjson_val *value = yyjson_obj_get(root, name);

        if (!yyjson_is_uint(value) || yyjson_get_uint(value) > INT32_MAX)
                return false;
        *ret = (uint32_t)yyjson_get_uint(value);
        return true;
}

static bool take_ids(struct reader *reader, yyjson_val *array, struct sim_trace_row *row)
{
        struct sim_trace *trace = reader->trace;
        yyjson_arr_iter iter = yyjson_arr_iter_with(array);
        yyjson_val *id;

        row->first_id = trace->id_count;
        row->id_count = (uint32_t)yyjson_arr_size(array);
        while ((id = yyjson_arr_iter_next(&iter))) {
                if (!yyjson_is_int(id))
                        return fail(reader, "hash_ids has an element that is not a whole number");
                trace->ids[trace->id_count++] = yyjson_get_uint(id);
        }
        return true;
}

static bool take_row(struct reader *reader, yyjson_val *root, const struct sim_trace_options *options)
{
        struct sim_trace *trace = reader->trace;
        struct sim_trace_row row = {0};
        yyjson_val *time = yyjson_obj_get(root, "timestamp"), *ids = yyjson_obj_get(root, "hash_ids");

        if (!yyjson_is_obj(root))
                return fail(reader, "not a JSON object");
        if (!yyjson_is_num(time) || yyjson_get_num(time) < 0)
                return fail(reader, "timestamp is not a number of milliseconds");
        if (!tokens(root, "input_length", &row.input_tokens) || row.input_tokens == 0)
                return fail(reader, "input_length is not a positive number of tokens");
        if (!tokens(root, "output_length", &row.output_tokens))
                return fail(reader, "output_length is not a number of tokens");
        if (!yyjson_is_arr(ids) || yyjson_arr_size(ids) == 0)
                return fail(reader, "hash_ids is not a non-empty array");
        row.time_s = yyjson_get_num(time) / 1000;
        if (row.time_s < options->from_s || (options->to_s > 0 && row.time_s >= options->to_s))
                return true;
        row.time_s -= options->from_s;
        if (!reserve(reader, yyjson_arr_size(ids)) || !take_ids(reader, ids, &row))
                return false;
        reader->line_of_row[trace->row_count] = (uint32_t)reader->line_number;
        trace->rows[trace->row_count++] = row;
        return true;
}

static bool read_rows(struct reader *reader, const struct sim_trace_options *options)
{
        int got;

        while ((got = next_line(reader)) > 0) {
                yyjson_read_err error;
                yyjson_doc *doc;
                bool good;
                char why[160];

                if (strspn(reader->line, " \t\r") == reader->len)
                        continue;
                doc = yyjson_read_opts(reader->line, reader->len, 0, NULL, &error);
                if (!doc) {
                        snprintf(why, sizeof(why), "not JSON (at byte %zu: %s)", error.pos + 1, error.msg);
                        return fail(reader, why);
                }
                good = take_row(reader, yyjson_doc_get_root(doc), options);
                yyjson_doc_free(doc);
                if (!good)
                        return false;
        }
        return got == 0;
}

static bool fits(const struct sim_trace_row *row, uint32_t block)
{
        return (row->input_tokens + (uint64_t)block - 1) / block == row->id_count;
}

/* The block size that every row agrees with. */
static bool settle_block(struct reader *reader, uint32_t wanted)
{
        struct sim_trace *trace = reader->trace;
        uint32_t best = wanted, best_rows = 0;
        char why[160];

        for (size_t i = 0; i < (wanted ? 1 : sizeof(block_sizes) / sizeof(block_sizes[0])); i++) {
                uint32_t block = wanted ? wanted : block_sizes[i], n = 0;

                while (n < trace->row_count && fits(&trace->rows[n], block))
                        n++;
                if (n == trace->row_count) {
                        trace->block_tokens = block;
                        return true;
                }
                if (n >= best_rows) {
                        best_rows = n;
                        best = block;
                }
        }
        reader->line_number = reader->line_of_row[best_rows];
        snprintf(why, sizeof(why), "%u tokens in blocks of %u are not %u hash_ids%s",
                 trace->rows[best_rows].input_tokens, best, trace->rows[best_rows].id_count,
                 wanted ? "" : "; give the block size if it is another");
        return fail(reader, why);
}

static int by_time(const void *a, const void *b)
{
        const struct sim_trace_row *x = a, *y = b;

        if (x->time_s < y->time_s || x->time_s > y->time_s)
                return x->time_s < y->time_s ? -1 : 1;
        return (x->first_id > y->first_id) -
               (x->first_id < y->first_id); /* ids lie in the order of the file */
}

bool sim_trace_read(const char *path, const struct sim_trace_options *options, struct sim_trace *ret,
                    char *message, size_t message_size)
{
        struct sim_trace trace = {0};
        struct reader reader = {
                .path = path, .trace = &trace, .message = message, .message_size = message_size};
        bool good;

        reader.file = gzopen(path, "rb");
        if (!reader.file) {
                snprintf(message, message_size, "%s: cannot open the file", path);
                return false;
        }
        (void)gzbuffer(reader.file, READ_BYTES);
        good = read_rows(&reader, options);
        if (good && trace.row_count == 0) {
                snprintf(message, message_size, "%s: no rows%s", path,
                         reader.line_number > 1 ? " in the chosen stretch of time" : "");
                good = false;
        }
        good = good && settle_block(&reader, options->block_tokens);
        gzclose(reader.file);
        free(reader.line);
        free(reader.line_of_row);
        if (!good) {
                sim_trace_fini(&trace);
                return false;
        }
        qsort(trace.rows, trace.row_count, sizeof(*trace.rows), by_time);
        *ret = trace;
        return true;
}

void sim_trace_fini(struct sim_trace *trace)
{
        free(trace->rows);
        free(trace->ids);
        *trace = (struct sim_trace){0};
}
