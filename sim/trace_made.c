/* SPDX-License-Identifier: Apache-2.0 */
/* Traces that are made up from a few numbers. */
#include "trace_int.h"
#include "options.h"
#include "rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS_MAX 1000000u

#define STREAM_SESSION 1u /* kinds of chance */
#define STREAM_GROUP   2u
#define STREAM_OWN     3u
#define STREAM_TAIL    4u

struct made {
        double requests, rate, groups, zipf, prefix, question, output, turns, gap, spread, seed;
};

static const struct key {
        const char *name;
        double standard, min, max;
        bool whole;
        size_t offset;
} keys[] = {
#define KEY(field, fallback, least, most, is_whole)                                                         \
        {                                                                                                   \
                .name = #field, .standard = (fallback), .min = (least), .max = (most), .whole = (is_whole), \
                .offset = offsetof(struct made, field)                                                      \
        }
        KEY(requests, 2000, 1, SIM_TRACE_ROWS_MAX, true),
        KEY(rate, 10, 1e-6, 1e9, false),
        KEY(groups, 64, 1, GROUPS_MAX, true),
        KEY(zipf, 0, 0, 10, false),
        KEY(prefix, 2048, 0, 1e8, true),
        KEY(question, 128, 1, 1e8, true),
        KEY(output, 256, 1, 1e8, true),
        KEY(turns, 1, 1, 100000, true),
        KEY(gap, 10, 0, 1e6, false),
        KEY(spread, 0, 0, 1, false),
        KEY(seed, 1, 0, 0x1p53, true),
#undef KEY
};

#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

static bool complain(struct sim__trace_reader *reader, const char *what, const char *word)
{
        snprintf(reader->message, reader->message_size, "%s: %s%s%s", reader->path, word, *word ? ": " : "",
                 what);
        return false;
}

static bool take_key(struct sim__trace_reader *reader, struct made *made, const char *word)
{
        const char *equals = strchr(word, '=');
        char why[160];

        for (size_t i = 0; equals && i < KEY_COUNT; i++) {
                const struct key *key = &keys[i];
                double value;

                if (strlen(key->name) != (size_t)(equals - word) ||
                    memcmp(key->name, word, (size_t)(equals - word)) != 0)
                        continue;
                if (!sim_parse_number(equals + 1, &value) || value < key->min || value > key->max ||
                    (key->whole && value != floor(value))) {
                        snprintf(why, sizeof(why), "not a %snumber from %g to %g", key->whole ? "whole " : "",
                                 key->min, key->max);
                        return complain(reader, why, word);
                }
                *(double *)(void *)((char *)made + key->offset) = value;
                return true;
        }
        return complain(
                reader,
                "not one of requests, rate, groups, zipf, prefix, question, output, turns, gap, spread or "
                "seed with =NUMBER",
                word);
}

static bool take_keys(struct sim__trace_reader *reader, const char *text, struct made *made)
{
        for (size_t i = 0; i < KEY_COUNT; i++)
                *(double *)(void *)((char *)made + keys[i].offset) = keys[i].standard;
        while (*text) {
                size_t len = strcspn(text, ",");
                char word[64];

                if (len >= sizeof(word))
                        return complain(reader, "too long", "");
                memcpy(word, text, len);
                word[len] = 0;
                if (!take_key(reader, made, word))
                        return false;
                text += len + (text[len] == ',');
        }
        return true;
}

/* Sums of 1 / n^zipf up to each group. */
static double *shares_make(const struct made *made)
{
        double *shares = malloc((size_t)made->groups * sizeof(*shares)), sum = 0;

        for (size_t i = 0; shares && i < (size_t)made->groups; i++) {
                sum += pow((double)i + 1, -made->zipf);
                shares[i] = sum;
        }
        return shares;
}

static uint32_t group_draw(const double *shares, uint32_t count, struct sim_rng *rng)
{
        double at = sim_rng_unit(rng) * shares[count - 1];
        uint32_t low = 0, high = count - 1;

        while (low < high) {
                uint32_t middle = (low + high) / 2;

                if (shares[middle] > at)
                        high = middle;
                else
                        low = middle + 1;
        }
        return low;
}

static double vary(double length, double spread, struct sim_rng *rng)
{
        return fmax(1, floor(length * (1 + spread * (2 * sim_rng_unit(rng) - 1)) + 0.5));
}

/* The id of a block by what is in it: nothing but the group's prefix, the session's past, or an unfinished end. */
static uint64_t block_id(const struct made *made, uint32_t group, uint32_t session, uint32_t turn,
                         uint64_t block, uint32_t size, double tokens)
{
        double end = (double)(block + 1) * size;
        struct sim_rng rng;

        if (end <= made->prefix)
                rng = sim_rng_for((uint64_t)made->seed + STREAM_GROUP, group, block);
        else if (end <= tokens)
                rng = sim_rng_for((uint64_t)made->seed + STREAM_OWN, session, block);
        else
                rng = sim_rng_for((uint64_t)made->seed + STREAM_TAIL, session, turn);
        return sim_rng_next(&rng);
}

static bool add_row(struct sim__trace_reader *reader, const struct made *made, uint32_t group,
                    uint32_t session, uint32_t turn, struct sim_trace_row *row, double tokens)
{
        uint32_t size =
                reader->options->block_tokens ? reader->options->block_tokens : SIM_TRACE_MADE_BLOCK_TOKENS;
        uint64_t *ids;

        if (tokens > SIM_TRACE_TOKENS_MAX)
                return complain(reader, "a prompt grows beyond what a trace may have", "");
        row->input_tokens = (uint32_t)tokens;
        row->id_count = (uint32_t)((row->input_tokens + (uint64_t)size - 1) / size);
        row->session = session + 1;
        if (!sim__trace_reserve(reader, row->id_count))
                return false;
        ids = reader->trace->ids + reader->trace->id_count;
        for (uint32_t i = 0; i < row->id_count; i++)
                ids[i] = block_id(made, group, session, turn, i, size, tokens);
        sim__trace_add(reader, row);
        return true;
}

bool sim__trace_made(struct sim__trace_reader *reader, const char *text)
{
        struct made made;
        struct sim_rng arrivals;
        double *shares, now_s = 0;
        uint32_t done = 0, session = 0;
        bool good;

        good = take_keys(reader, text, &made);
        shares = good ? shares_make(&made) : NULL;
        if (good && !shares)
                return complain(reader, "out of memory", "");
        arrivals = sim_rng_for((uint64_t)made.seed, 0, 0);
        for (; good && done < (uint32_t)made.requests; session++) {
                struct sim_rng rng = sim_rng_for((uint64_t)made.seed, STREAM_SESSION, session);
                uint32_t group = group_draw(shares, (uint32_t)made.groups, &rng);
                double tokens = made.prefix, at_s = now_s += sim_rng_exp(&arrivals, made.turns / made.rate);

                for (uint32_t turn = 0; good && turn < (uint32_t)made.turns && done < (uint32_t)made.requests;
                     turn++, done++) {
                        double output = vary(made.output, made.spread, &rng);
                        struct sim_trace_row row = {.time_s = at_s, .output_tokens = (uint32_t)output};

                        tokens += vary(made.question, made.spread, &rng);
                        good = add_row(reader, &made, group, session, turn, &row, tokens);
                        tokens += output;
                        at_s += sim_rng_exp(&rng, made.gap);
                }
        }
        reader->trace->session_count = session;
        free(shares);
        return good;
}
