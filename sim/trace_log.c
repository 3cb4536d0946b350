/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of an access log. It has no keys, but how much of each prompt was known: that much is taken from an
 * earlier request. Arrivals, lengths and how much could be reused are real; who shared it with whom is a guess.
 */
#include "access_log.h"
#include "trace_int.h"

#include <math.h>
#include <stdlib.h>

#define TOTAL_S_MAX 604800.0
#define EARLIER     512u /* lines that are looked back */

struct earlier {
        uint64_t client;
        double start_s, prompt, all; /* tokens of the prompt, and of prompt and answer */
        uint64_t first_id;
        uint32_t id_count;
};

struct sim__trace_log {
        struct earlier ring[EARLIER];
        uint64_t count;
};

static uint32_t block_of(const struct sim__trace_reader *reader)
{
        return reader->options->block_tokens ? reader->options->block_tokens : SIM_TRACE_MADE_BLOCK_TOKENS;
}

/*
 * The request whose text the known tokens are: of the same client, sent before, and just long enough. That
 * finds a conversation's last turn, whose prompt and answer make the next prompt's beginning.
 */
static const struct earlier *find(const struct sim__trace_log *log, const struct sim_access_line *line,
                                  double start_s, double known)
{
        uint64_t last = log->count > EARLIER ? log->count - EARLIER : 0;
        const struct earlier *best = NULL;

        for (uint64_t i = log->count; i-- > last;) {
                const struct earlier *one = &log->ring[i % EARLIER];

                if (one->client == line->client && one->all >= known && one->start_s <= start_s &&
                    (!best || one->all < best->all))
                        best = one;
        }
        return best;
}

static bool add(struct sim__trace_reader *reader, const struct sim_access_line *line, double start_s)
{
        struct sim__trace_log *log = reader->log;
        struct sim_trace *trace = reader->trace;
        double known = fmin(fmax(line->best, line->observed), line->prompt);
        const struct earlier *source = known > 0 ? find(log, line, start_s, known) : NULL;
        uint32_t block = block_of(reader), shared = 0;
        struct sim_trace_row row = {
                .time_s = start_s,
                .input_tokens = (uint32_t)line->prompt,
                .output_tokens = line->completion > 0 ? (uint32_t)line->completion : 0,
                .first_id = trace->id_count,
        };
        uint64_t *ids;

        row.id_count = (row.input_tokens - 1) / block + 1;
        if (!sim__trace_reserve(reader, row.id_count))
                return false;
        ids = trace->ids + trace->id_count;
        if (source) {
                shared = (uint32_t)(fmin(known, source->prompt) / block);
                for (uint32_t i = 0; i < shared && i < row.id_count; i++)
                        ids[i] = trace->ids[source->first_id + i];
        }
        for (uint32_t i = shared; i < row.id_count; i++)
                ids[i] = reader->unique++;
        log->ring[log->count++ % EARLIER] = (struct earlier){
                .client = line->client,
                .start_s = start_s,
                .prompt = line->prompt,
                .all = line->prompt + fmax(line->completion, 0),
                .first_id = row.first_id,
                .id_count = row.id_count,
        };
        reader->line_of_row[trace->row_count] = (uint32_t)reader->line_number;
        trace->rows[trace->row_count++] = row;
        trace->id_count += row.id_count;
        return true;
}

bool sim__trace_log_line(struct sim__trace_reader *reader, const char *line, size_t len)
{
        struct sim_access_line parsed;

        if (len > SIM_ACCESS_LINE_MAX)
                return sim__trace_fail(reader, "the line is too long");
        if (!sim_access_parse(line, len, &parsed))
                return sim__trace_fail(reader, "not a line of an access log");
        if (!reader->log)
                reader->log = calloc(1, sizeof(*reader->log));
        if (!reader->log)
                return sim__trace_fail(reader, "out of memory");
        if (!parsed.answered || parsed.prompt < 1 || !parsed.replica || parsed.total_s < 0)
                return true;
        if (parsed.prompt > SIM_TRACE_TOKENS_MAX || parsed.completion > SIM_TRACE_TOKENS_MAX)
                return sim__trace_fail(reader, "more tokens than a prompt or an answer can have");
        if (parsed.total_s > TOTAL_S_MAX)
                return sim__trace_fail(reader, "an answer that took more than a week");
        reader->seen++;
        return add(reader, &parsed, parsed.end_s - parsed.total_s);
}

void sim__trace_log_end(struct sim__trace_reader *reader)
{
        const struct sim_trace_options *options = reader->options;
        struct sim_trace *trace = reader->trace;
        double first_s = INFINITY;
        uint32_t kept = 0;

        for (uint32_t i = 0; i < trace->row_count; i++)
                first_s = fmin(first_s, trace->rows[i].time_s);
        for (uint32_t i = 0; i < trace->row_count; i++) {
                struct sim_trace_row row = trace->rows[i];

                row.time_s -= first_s;
                if (row.time_s < options->from_s || (options->to_s > 0 && row.time_s >= options->to_s))
                        continue;
                row.time_s -= options->from_s;
                trace->rows[kept++] = row;
        }
        trace->row_count = kept;
}
