/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"
#include "trace_int.h"

#include "access_log.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>
#include <zlib.h>

#define READ_BYTES  (256u * 1024)
#define FIRST_ROWS  1024u
#define FIRST_IDS   65536u
#define FIRST_NAMES 256u
#define MADE        "synthetic:"

/* Sizes that published traces use, the most common first. */
static const uint32_t block_sizes[] = {512, 64, 16, 128, 256, 32, 1024};

struct lines {
        gzFile file;
        char *data;
        size_t at, len, cap; /* bytes at .. len are not handed out yet */
        bool ended;
};

bool sim__trace_fail(struct sim__trace_reader *reader, const char *what)
{
        snprintf(reader->message, reader->message_size, "%s:%llu: %s", reader->path,
                 (unsigned long long)reader->line_number, what);
        return false;
}

/* ---- lines -------------------------------------------------------------------------------------------- */

/*
 * More bytes behind those there are, up to a capacity of `most`; false: failed. At the end of the file `ended`
 * is set.
 */
static bool fill(struct sim__trace_reader *reader, struct lines *lines, size_t most)
{
        int got, error = Z_OK;

        if (lines->at) {
                memmove(lines->data, lines->data + lines->at, lines->len - lines->at);
                lines->len -= lines->at;
                lines->at = 0;
        }
        if (lines->cap - lines->len < READ_BYTES + 1) {
                size_t cap = lines->cap ? lines->cap * 2 : 2 * (size_t)READ_BYTES;
                char *data = cap <= most ? realloc(lines->data, cap) : NULL;

                if (!data)
                        return sim__trace_fail(reader, "the line is too long");
                lines->data = data;
                lines->cap = cap;
        }
        got = gzread(lines->file, lines->data + lines->len, READ_BYTES);
        if (got > 0) {
                lines->len += (size_t)got;
                return true;
        }
        (void)gzerror(lines->file, &error);
        if (got < 0 || (error != Z_OK && error != Z_STREAM_END)) {
                const char *why = gzerror(lines->file, &error);

                return sim__trace_fail(reader, error == Z_ERRNO ? "cannot read" : why);
        }
        lines->ended = true;
        return true;
}

/* 1: a line, without its end but with a '\n' behind it; 0: end of file; -1: failed. */
static int next_line(struct sim__trace_reader *reader, struct lines *lines, char **ret, size_t *ret_len)
{
        size_t seen = 0;

        reader->line_number++;
        for (;;) {
                char *start = lines->data + lines->at;
                size_t have = lines->len - lines->at;
                char *end = have > seen ? memchr(start + seen, '\n', have - seen) : NULL;

                if (!end && lines->ended && have) {
                        end = start + have; /* the last line has no end of its own; there is room for one */
                        *end = '\n';
                        lines->len++;
                }
                if (end) {
                        *ret = start;
                        *ret_len = (size_t)(end - start);
                        lines->at += *ret_len + 1;
                        return 1;
                }
                if (lines->ended)
                        return 0;
                seen = have;
                if (!fill(reader, lines, 2 * (size_t)SIM_TRACE_LINE_MAX))
                        return -1;
        }
}

/* ---- rows --------------------------------------------------------------------------------------------- */

static bool reserve_rows(struct sim__trace_reader *reader)
{
        struct sim_trace *trace = reader->trace;
        size_t cap = reader->row_cap ? reader->row_cap * 2 : FIRST_ROWS;
        struct sim_trace_row *rows;
        uint32_t *lines;

        if (cap > SIM_TRACE_ROWS_MAX)
                return sim__trace_fail(reader, "the trace has too many rows");
        rows = realloc(trace->rows, cap * sizeof(*rows));
        if (rows)
                trace->rows = rows;
        lines = rows ? realloc(reader->line_of_row, cap * sizeof(*lines)) : NULL;
        if (!lines)
                return sim__trace_fail(reader, "out of memory");
        reader->line_of_row = lines;
        reader->row_cap = cap;
        return true;
}

static bool reserve_ids(struct sim__trace_reader *reader, uint64_t ids)
{
        struct sim_trace *trace = reader->trace;
        size_t cap = reader->id_cap ? reader->id_cap : FIRST_IDS;
        uint64_t *grown;

        if (ids > SIM_TRACE_IDS_MAX || trace->id_count + ids > SIM_TRACE_IDS_MAX)
                return sim__trace_fail(reader, "the trace has too many blocks");
        while (cap - trace->id_count < ids)
                cap *= 2;
        grown = realloc(trace->ids, cap * sizeof(*grown));
        if (!grown)
                return sim__trace_fail(reader, "out of memory");
        trace->ids = grown;
        reader->id_cap = cap;
        return true;
}

bool sim__trace_reserve(struct sim__trace_reader *reader, uint64_t ids)
{
        if (reader->trace->row_count == reader->row_cap && !reserve_rows(reader))
                return false;
        return reader->id_cap - reader->trace->id_count >= ids || reserve_ids(reader, ids);
}

void sim__trace_add(struct sim__trace_reader *reader, struct sim_trace_row *row)
{
        const struct sim_trace_options *options = reader->options;
        struct sim_trace *trace = reader->trace;

        reader->seen++;
        if (row->time_s < options->from_s || (options->to_s > 0 && row->time_s >= options->to_s))
                return;
        row->time_s -= options->from_s;
        row->first_id = trace->id_count;
        trace->id_count += row->id_count;
        reader->line_of_row[trace->row_count] = (uint32_t)reader->line_number;
        trace->rows[trace->row_count++] = *row;
}

/* ---- names of sessions -------------------------------------------------------------------------------- */

static bool names_grow(struct sim__trace_names *names)
{
        uint32_t size = names->hashes ? (names->mask + 1) * 2 : FIRST_NAMES;
        struct sim__trace_names grown = {
                .hashes = calloc(size, sizeof(*grown.hashes)),
                .numbers = calloc(size, sizeof(*grown.numbers)),
                .mask = size - 1,
                .count = names->count,
                .sessions = names->sessions,
        };

        if (!grown.hashes || !grown.numbers) {
                free(grown.hashes);
                free(grown.numbers);
                return false;
        }
        for (uint32_t i = 0; names->hashes && i <= names->mask; i++) {
                uint32_t at = (uint32_t)names->hashes[i] & grown.mask;

                if (!names->hashes[i])
                        continue;
                while (grown.hashes[at])
                        at = (at + 1) & grown.mask;
                grown.hashes[at] = names->hashes[i];
                grown.numbers[at] = names->numbers[i];
        }
        free(names->hashes);
        free(names->numbers);
        *names = grown;
        return true;
}

uint32_t sim__trace_session(struct sim__trace_reader *reader, const char *name, size_t len, uint32_t number)
{
        struct sim__trace_names *names = &reader->names;
        uint64_t hash = XXH3_64bits(name, len);
        uint32_t at;

        hash |= hash == 0;
        if ((!names->hashes || names->count >= names->mask / 2) && !names_grow(names))
                return 0;
        for (at = (uint32_t)hash & names->mask; names->hashes[at]; at = (at + 1) & names->mask) {
                if (names->hashes[at] == hash)
                        return names->numbers[at];
        }
        names->hashes[at] = hash;
        names->count++;
        names->numbers[at] = number ? number : ++names->sessions;
        return names->numbers[at];
}

/* ---- block size --------------------------------------------------------------------------------------- */

static bool fits(const struct sim_trace_row *row, uint32_t block)
{
        return (row->input_tokens + (uint64_t)block - 1) / block == row->id_count;
}

/* The least size that every row agrees with, 0 if there is none. */
static uint32_t common_block(const struct sim_trace *trace)
{
        uint64_t least = 1, most = UINT32_MAX;

        for (uint32_t i = 0; i < trace->row_count; i++) {
                const struct sim_trace_row *row = &trace->rows[i];
                uint64_t low = (row->input_tokens + (uint64_t)row->id_count - 1) / row->id_count;

                least = low > least ? low : least;
                if (row->id_count > 1) {
                        uint64_t high = (row->input_tokens - 1) / (row->id_count - 1);

                        most = high < most ? high : most;
                }
        }
        return least <= most ? (uint32_t)least : 0;
}

/* The block size that every row agrees with. */
static bool settle_block(struct sim__trace_reader *reader, uint32_t wanted)
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
        trace->block_tokens = wanted ? 0 : common_block(trace);
        if (trace->block_tokens)
                return true;
        reader->line_number = reader->line_of_row[best_rows];
        snprintf(why, sizeof(why), "%u tokens in blocks of %u are not %u hash_ids%s",
                 trace->rows[best_rows].input_tokens, best, trace->rows[best_rows].id_count,
                 wanted ? "" : "; give the block size if it is another");
        return sim__trace_fail(reader, why);
}

/* ---- the whole file ----------------------------------------------------------------------------------- */

static bool read_line(struct sim__trace_reader *reader, const char *line, size_t len)
{
        size_t blanks = 0;

        while (blanks < len && (line[blanks] == ' ' || line[blanks] == '\t' || line[blanks] == '\r'))
                blanks++;
        if (blanks == len)
                return true;
        if (reader->form == SIM__TRACE_UNKNOWN) {
                /* Letters open a head line; everything else can only be meant as JSON. */
                char first = (char)(line[blanks] | 0x20);

                if ((first >= 'a' && first <= 'z') || line[blanks] == '"' || line[blanks] == '\xef')
                        return sim__trace_csv_head(reader, line, len);
                reader->form = SIM__TRACE_JSON;
        }
        if (reader->form == SIM__TRACE_JSON)
                return sim__trace_json_line(reader, line, len);
        if (reader->form == SIM__TRACE_LOG)
                return sim__trace_log_line(reader, line, len);
        return sim__trace_csv_line(reader, line, len);
}

static bool read_rows(struct sim__trace_reader *reader, struct lines *lines)
{
        char *line;
        size_t len;
        int got;

        while ((got = next_line(reader, lines, &line, &len)) > 0) {
                if (len > SIM_TRACE_LINE_MAX)
                        return sim__trace_fail(reader, "the line is too long");
                if (!read_line(reader, line, len))
                        return false;
        }
        return got == 0;
}

static int by_time(const void *a, const void *b)
{
        const struct sim_trace_row *x = a, *y = b;

        if (x->time_s < y->time_s || x->time_s > y->time_s)
                return x->time_s < y->time_s ? -1 : 1;
        return (x->first_id > y->first_id) -
               (x->first_id < y->first_id); /* ids lie in the order of the file */
}

static void sort(struct sim_trace *trace)
{
        for (uint32_t i = 1; i < trace->row_count; i++) {
                if (trace->rows[i].time_s < trace->rows[i - 1].time_s) {
                        qsort(trace->rows, trace->row_count, sizeof(*trace->rows), by_time);
                        return;
                }
        }
}

/* All of the file at once, behind what was read of it. */
static bool read_whole(struct sim__trace_reader *reader, struct lines *lines)
{
        while (!lines->ended) {
                if (lines->len > SIM_TRACE_FILE_MAX)
                        return sim__trace_fail(reader, "a file of sessions may have 64 MiB; split it");
                if (!fill(reader, lines, 2 * (size_t)SIM_TRACE_FILE_MAX))
                        return false;
        }
        reader->form = SIM__TRACE_WEKA;
        return sim__trace_weka(reader, lines->data, lines->len);
}

static bool read_file(struct sim__trace_reader *reader)
{
        struct lines lines = {.file = gzopen(reader->path, "rb")};
        bool good;

        if (!lines.file) {
                snprintf(reader->message, reader->message_size, "%s: cannot open the file", reader->path);
                return false;
        }
        (void)gzbuffer(lines.file, READ_BYTES);
        reader->line_number = 1;
        good = fill(reader, &lines, 2 * (size_t)SIM_TRACE_LINE_MAX);
        reader->line_number = good ? 0 : 1;
        if (good && sim_access_is(lines.data, lines.len))
                reader->form = SIM__TRACE_LOG;
        if (good && reader->form != SIM__TRACE_LOG && sim__trace_weka_is(lines.data, lines.len))
                good = read_whole(reader, &lines);
        else
                good = good && read_rows(reader, &lines);
        gzclose(lines.file);
        free(lines.data);
        return good;
}

static int is_session_file(const struct dirent *entry)
{
        size_t len = strlen(entry->d_name);

        return (len > 5 && strcmp(entry->d_name + len - 5, ".json") == 0) ||
               (len > 8 && strcmp(entry->d_name + len - 8, ".json.gz") == 0);
}

/* The files of a directory, in the order of their names; all of them must be JSON sessions. */
static bool read_folder(struct sim__trace_reader *reader)
{
        const char *folder = reader->path;
        struct dirent **names = NULL;
        int count = scandir(folder, &names, is_session_file, alphasort);
        bool good = count > 0 && count <= (int)SIM_TRACE_FILES_MAX;
        char path[4096];

        if (!good)
                snprintf(reader->message, reader->message_size, "%s: %s", folder,
                         count > 0    ? "too many files"
                         : count == 0 ? "no .json and no .json.gz in the directory"
                                      : "cannot read the directory");
        for (int i = 0; i < count; i++) {
                if (good) {
                        int len = snprintf(path, sizeof(path), "%s/%s", folder, names[i]->d_name);

                        reader->path = path;
                        reader->form = SIM__TRACE_UNKNOWN;
                        good = len < (int)sizeof(path) && read_file(reader);
                        if (good && reader->form != SIM__TRACE_WEKA) {
                                reader->line_number = 1;
                                good = sim__trace_fail(
                                        reader, "not a file of sessions, as all in a directory must be");
                        }
                        reader->path = folder;
                }
                free(names[i]);
        }
        free(names);
        return good;
}

static bool read_path(struct sim__trace_reader *reader)
{
        struct stat about;

        if (stat(reader->path, &about) == 0 && S_ISDIR(about.st_mode))
                return read_folder(reader);
        return read_file(reader);
}

/* What the rows are checked against; 0: they tell. */
static uint32_t block_wanted(const struct sim__trace_reader *reader)
{
        if (reader->options->block_tokens || reader->form == SIM__TRACE_JSON)
                return reader->options->block_tokens;
        if (reader->form == SIM__TRACE_WEKA)
                return reader->block;
        return reader->form == SIM__TRACE_MADE || reader->form == SIM__TRACE_LOG ? SIM_TRACE_MADE_BLOCK_TOKENS
                                                                                 : SIM_TRACE_BLOCK_TOKENS;
}

bool sim_trace_read(const char *path, const struct sim_trace_options *options, struct sim_trace *ret,
                    char *message, size_t message_size)
{
        struct sim_trace trace = {0};
        struct sim__trace_reader reader = {
                .path = path,
                .options = options,
                .trace = &trace,
                .message = message,
                .message_size = message_size,
        };
        bool good;

        if (strncmp(path, MADE, sizeof(MADE) - 1) == 0) {
                reader.form = SIM__TRACE_MADE;
                good = sim__trace_made(&reader, path + sizeof(MADE) - 1);
        } else {
                good = read_path(&reader);
                trace.session_count = reader.names.sessions;
        }
        if (good && reader.form == SIM__TRACE_LOG)
                sim__trace_log_end(&reader);
        if (good && trace.row_count == 0) {
                snprintf(message, message_size, "%s: no rows%s", path,
                         reader.seen ? " in the chosen stretch of time" : "");
                good = false;
        }
        good = good && settle_block(&reader, block_wanted(&reader));
        free(reader.log);
        free(reader.line_of_row);
        free(reader.names.hashes);
        free(reader.names.numbers);
        if (!good) {
                sim_trace_fini(&trace);
                return false;
        }
        sort(&trace);
        *ret = trace;
        return true;
}

void sim_trace_fini(struct sim_trace *trace)
{
        free(trace->rows);
        free(trace->ids);
        *trace = (struct sim_trace){0};
}
