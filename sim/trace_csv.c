/* SPDX-License-Identifier: Apache-2.0 */
/* Rows in CSV: lengths alone, or one line per session. */
#include "trace_int.h"
#include "rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SESSION_REQUESTS_MAX 100000u
/* Not in the file: about the mean of coding agents' answers. */
#define SESSION_OUTPUT 400u

#define ID_OWN    0u /* kinds of made-up ids */
#define ID_SHARED 1u

enum column {
        COLUMN_OTHER,
        COLUMN_TIME,
        COLUMN_INPUT,
        COLUMN_OUTPUT,
        COLUMN_SESSION,
        COLUMN_START,
        COLUMN_REQUESTS,
        COLUMN_FIRST_INPUT,
        COLUMN_LAST_INPUT,
        COLUMN_SPAN,
        COLUMN_TOOLS,
        COLUMN_COUNT,
};

static const struct {
        const char *name;
        enum column column;
} heads[] = {
        {"TIMESTAMP", COLUMN_TIME},
        {"Timestamp", COLUMN_TIME},
        {"timestamp", COLUMN_TIME},
        {"ContextTokens", COLUMN_INPUT},
        {"Request tokens", COLUMN_INPUT},
        {"input_length", COLUMN_INPUT},
        {"input_tokens", COLUMN_INPUT},
        {"GeneratedTokens", COLUMN_OUTPUT},
        {"Response tokens", COLUMN_OUTPUT},
        {"output_length", COLUMN_OUTPUT},
        {"output_tokens", COLUMN_OUTPUT},
        {"session", COLUMN_SESSION},
        {"start_s", COLUMN_START},
        {"requests", COLUMN_REQUESTS},
        {"first_input", COLUMN_FIRST_INPUT},
        {"last_input", COLUMN_LAST_INPUT},
        {"span_s", COLUMN_SPAN},
        {"tool_tokens", COLUMN_TOOLS},
};

/* The fields of one line, by meaning. */
struct fields {
        struct kvr_slice of[COLUMN_COUNT];
};

static struct kvr_slice trim(const char *data, size_t len)
{
        while (len && (*data == ' ' || *data == '\t' || *data == '"')) {
                data++;
                len--;
        }
        while (len && (data[len - 1] == ' ' || data[len - 1] == '\t' || data[len - 1] == '\r' ||
                       data[len - 1] == '"'))
                len--;
        return (struct kvr_slice){data, len};
}

/* The next field of a line; quotes are taken off, a comma within them is not supported. */
static bool next_field(const char **at, const char *end, struct kvr_slice *ret)
{
        const char *comma;

        if (*at > end)
                return false;
        comma = memchr(*at, ',', (size_t)(end - *at));
        comma = comma ? comma : end;
        *ret = trim(*at, (size_t)(comma - *at));
        *at = comma + 1;
        return true;
}

static bool has(const struct sim__trace_reader *reader, enum column column)
{
        return memchr(reader->column_of, (int)column, reader->column_count) != NULL;
}

bool sim__trace_csv_head(struct sim__trace_reader *reader, const char *line, size_t len)
{
        const char *at = line, *end = line + len;
        struct kvr_slice name;

        if (len >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0)
                at += 3;
        while (next_field(&at, end, &name)) {
                uint8_t column = COLUMN_OTHER;

                for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
                        if (strlen(heads[i].name) == name.len &&
                            memcmp(heads[i].name, name.data, name.len) == 0)
                                column = (uint8_t)heads[i].column;
                }
                if (reader->column_count == SIM__TRACE_COLUMNS_MAX)
                        return sim__trace_fail(reader, "too many columns");
                if (column != COLUMN_OTHER && has(reader, column))
                        return sim__trace_fail(reader, "two columns mean the same");
                reader->column_of[reader->column_count++] = column;
        }
        if (has(reader, COLUMN_TIME) && has(reader, COLUMN_INPUT) && has(reader, COLUMN_OUTPUT))
                reader->form = SIM__TRACE_LENGTHS;
        else if (has(reader, COLUMN_SESSION) && has(reader, COLUMN_START) && has(reader, COLUMN_REQUESTS) &&
                 has(reader, COLUMN_FIRST_INPUT) && has(reader, COLUMN_LAST_INPUT) &&
                 has(reader, COLUMN_SPAN))
                reader->form = SIM__TRACE_SESSIONS;
        else
                return sim__trace_fail(reader,
                                       "neither JSON nor the head of a known CSV form (columns such as "
                                       "TIMESTAMP,ContextTokens,GeneratedTokens)");
        return true;
}

/* ---- values ------------------------------------------------------------------------------------------- */

static bool take_count(struct kvr_slice text, uint64_t most, uint32_t *ret)
{
        uint64_t value = 0;

        if (text.len == 0 || text.len > 10)
                return false;
        for (size_t i = 0; i < text.len; i++) {
                if (text.data[i] < '0' || text.data[i] > '9')
                        return false;
                value = value * 10 + (uint64_t)(text.data[i] - '0');
        }
        if (value > most)
                return false;
        *ret = (uint32_t)value;
        return true;
}

/* Digits with at most one point. */
static bool take_seconds(struct kvr_slice text, double *ret)
{
        char copy[32];
        char *end;

        if (text.len == 0 || text.len >= sizeof(copy))
                return false;
        memcpy(copy, text.data, text.len);
        copy[text.len] = 0;
        if (strspn(copy, "0123456789.") != text.len)
                return false;
        *ret = strtod(copy, &end);
        return !*end && isfinite(*ret);
}

/* Days from 1970-01-01 to a date of the Gregorian calendar. */
static int64_t days(int64_t year, int64_t month, int64_t day)
{
        int64_t years = month <= 2 ? year - 1 : year, shifted = (month + 9) % 12;

        return years * 365 + years / 4 - years / 100 + years / 400 + (shifted * 153 + 2) / 5 + day - 719469;
}

/* "2023-11-16 18:15:46.6805900" and the like, an offset of 0 behind it, or seconds. */
static bool take_time(struct kvr_slice text, double *ret)
{
        static const char form[] = "dddd-dd-dd dd:dd:dd";
        static const unsigned char widths[] = {4, 2, 2, 2, 2, 2};
        uint32_t part[6];
        size_t at = 0, len = sizeof(form) - 1;
        double fraction = 0;

        if (text.len > 6 && memcmp(text.data + text.len - 6, "+00:00", 6) == 0)
                text.len -= 6;
        else if (text.len && text.data[text.len - 1] == 'Z')
                text.len--;
        if (text.len < len)
                return take_seconds(text, ret);
        for (size_t i = 0; i < len; i++) {
                bool digit = text.data[i] >= '0' && text.data[i] <= '9';

                if (form[i] == 'd' ? !digit : text.data[i] != form[i] && !(i == 10 && text.data[i] == 'T'))
                        return take_seconds(text, ret);
        }
        for (size_t i = 0; i < 6; at += widths[i] + 1, i++) {
                if (!take_count((struct kvr_slice){text.data + at, widths[i]}, 9999, &part[i]))
                        return false;
        }
        if (part[1] < 1 || part[1] > 12 || part[2] < 1 || part[2] > 31 || part[3] > 23 || part[4] > 59 ||
            part[5] > 60)
                return false;
        if (text.len > len && (text.data[len] != '.' ||
                               !take_seconds((struct kvr_slice){text.data + len, text.len - len}, &fraction)))
                return false;
        *ret = (double)(days(part[0], part[1], part[2]) * 86400 + part[3] * 3600 + part[4] * 60 + part[5]) +
               fraction;
        return true;
}

/* ---- rows --------------------------------------------------------------------------------------------- */

static uint32_t block_of(const struct sim__trace_reader *reader)
{
        return reader->options->block_tokens ? reader->options->block_tokens : SIM_TRACE_BLOCK_TOKENS;
}

static uint32_t blocks_for(uint32_t tokens, uint32_t block)
{
        return (uint32_t)((tokens + (uint64_t)block - 1) / block);
}

static bool lengths_line(struct sim__trace_reader *reader, const struct fields *fields)
{
        struct sim_trace_row row = {0};
        uint64_t *ids;

        if (!take_time(fields->of[COLUMN_TIME], &row.time_s))
                return sim__trace_fail(reader,
                                       "the time is neither a date with time nor a number of seconds");
        if (!take_count(fields->of[COLUMN_INPUT], SIM_TRACE_TOKENS_MAX, &row.input_tokens) ||
            row.input_tokens == 0)
                return sim__trace_fail(reader, "the prompt's length is not a positive number of tokens");
        if (!take_count(fields->of[COLUMN_OUTPUT], SIM_TRACE_TOKENS_MAX, &row.output_tokens))
                return sim__trace_fail(reader, "the answer's length is not a number of tokens");
        if (!reader->has_base) {
                reader->has_base = true;
                reader->base_s = row.time_s;
        }
        row.time_s -= reader->base_s;
        if (row.time_s < 0)
                return sim__trace_fail(reader, "the time lies before that of the first row");
        row.id_count = blocks_for(row.input_tokens, block_of(reader));
        if (!sim__trace_reserve(reader, row.id_count))
                return false;
        ids = reader->trace->ids + reader->trace->id_count;
        for (uint32_t i = 0; i < row.id_count; i++)
                ids[i] = reader->unique++;
        sim__trace_add(reader, &row);
        return true;
}

struct session {
        double start_s, span_s;
        uint32_t requests, first_input, last_input, tool_tokens;
        uint32_t number;
};

/* Whole blocks of the tools belong to all sessions with tools of that size, the rest to the session. A block
 * that is not full is nobody else's. */
static bool session_request(struct sim__trace_reader *reader, const struct session *session, uint32_t number)
{
        double part = session->requests > 1 ? (double)number / (session->requests - 1) : 0;
        double input = session->first_input + part * ((double)session->last_input - session->first_input);
        uint32_t block = block_of(reader), shared = session->tool_tokens / block;
        struct sim_trace_row row = {
                .time_s = session->start_s + part * session->span_s,
                .input_tokens = (uint32_t)(input + 0.5),
                .output_tokens = SESSION_OUTPUT,
                .session = session->number,
        };
        uint64_t *ids;

        row.id_count = blocks_for(row.input_tokens, block);
        if (!sim__trace_reserve(reader, row.id_count))
                return false;
        ids = reader->trace->ids + reader->trace->id_count;
        for (uint32_t i = 0; i < row.id_count; i++) {
                struct sim_rng rng;

                if (i == row.id_count - 1 && row.input_tokens % block) {
                        ids[i] = reader->unique++;
                        continue;
                }
                rng = i < shared ? sim_rng_for(ID_SHARED, session->tool_tokens, i)
                                 : sim_rng_for(ID_OWN, session->number, i);
                /* Above all unique ids, so that the two never meet. */
                ids[i] = sim_rng_next(&rng) | UINT64_C(1) << 63;
        }
        sim__trace_add(reader, &row);
        return true;
}

static bool sessions_line(struct sim__trace_reader *reader, const struct fields *fields)
{
        struct session session = {0};
        const struct kvr_slice *of = fields->of;

        if (of[COLUMN_SESSION].len == 0)
                return sim__trace_fail(reader, "session is empty");
        if (!take_seconds(of[COLUMN_START], &session.start_s))
                return sim__trace_fail(reader, "start_s is not a number of seconds");
        if (!take_seconds(of[COLUMN_SPAN], &session.span_s))
                return sim__trace_fail(reader, "span_s is not a number of seconds");
        if (!take_count(of[COLUMN_REQUESTS], SESSION_REQUESTS_MAX, &session.requests))
                return sim__trace_fail(reader, "requests is not a number");
        if (!take_count(of[COLUMN_FIRST_INPUT], SIM_TRACE_TOKENS_MAX, &session.first_input) ||
            !take_count(of[COLUMN_LAST_INPUT], SIM_TRACE_TOKENS_MAX, &session.last_input) ||
            session.first_input == 0 || session.last_input == 0)
                return sim__trace_fail(reader,
                                       "first_input and last_input are not positive numbers of tokens");
        if (of[COLUMN_TOOLS].len && !take_count(of[COLUMN_TOOLS], SIM_TRACE_TOKENS_MAX, &session.tool_tokens))
                return sim__trace_fail(reader, "tool_tokens is not a number of tokens");
        session.number = sim__trace_session(reader, of[COLUMN_SESSION].data, of[COLUMN_SESSION].len, 0);
        if (!session.number)
                return sim__trace_fail(reader, "out of memory");
        for (uint32_t i = 0; i < session.requests; i++) {
                if (!session_request(reader, &session, i))
                        return false;
        }
        return true;
}

bool sim__trace_csv_line(struct sim__trace_reader *reader, const char *line, size_t len)
{
        const char *at = line, *end = line + len;
        struct fields fields = {0};
        struct kvr_slice field;
        uint32_t count = 0;
        char why[96];

        while (next_field(&at, end, &field)) {
                if (count < reader->column_count)
                        fields.of[reader->column_of[count]] = field;
                count++;
        }
        if (count != reader->column_count) {
                snprintf(why, sizeof(why), "%u fields, the head has %u", count, reader->column_count);
                return sim__trace_fail(reader, why);
        }
        return reader->form == SIM__TRACE_LENGTHS ? lengths_line(reader, &fields)
                                                  : sessions_line(reader, &fields);
}
