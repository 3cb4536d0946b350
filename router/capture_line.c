/* SPDX-License-Identifier: Apache-2.0 */
#include "capture_line.h"

#include <stdlib.h>
#include <string.h>

#define WAYS           4                   /* places that a key may have in the table */
#define SESSION_DOMAIN 0x6e6f6973736573ull /* so that no session's hash is a block's */

struct place {
        uint64_t key; /* 0: free */
        uint32_t tokens;
        uint32_t used; /* number of the last line that had it, in the low bits */
};

struct capture_lines {
        struct siphash_key key;
        uint32_t block_tokens;
        uint32_t line; /* number, for `used` */
        struct place *places;
        uint32_t tokens[KVR_POINTS_MAX]; /* of the line at hand: where its points lie */
};

struct capture_lines *capture_lines_new(const struct siphash_key *key, uint32_t block_tokens)
{
        struct capture_lines *lines = calloc(1, sizeof *lines);

        if (!lines)
                return NULL;
        lines->key = *key;
        lines->block_tokens = block_tokens;
        lines->places = calloc(CAPTURE_PLACES, sizeof *lines->places);
        if (!lines->places) {
                free(lines);
                return NULL;
        }
        return lines;
}

void capture_lines_free(struct capture_lines *lines)
{
        if (!lines)
                return;
        free(lines->places);
        free(lines);
}

uint64_t capture_session(const struct siphash_key *key, struct kvr_slice name)
{
        uint64_t hash = siphash_pair(key, siphash(key, name.data, name.len), SESSION_DOMAIN);

        return hash | !hash;
}

/* ---- where keys lie ---- */

static struct place *set_of(struct capture_lines *lines, uint64_t key)
{
        return &lines->places[(key ^ key >> 32) % (CAPTURE_PLACES / WAYS) * WAYS];
}

static uint32_t place_find(struct capture_lines *lines, uint64_t key)
{
        struct place *set = set_of(lines, key);

        for (unsigned i = 0; i < WAYS; i++) {
                if (set[i].key != key)
                        continue;
                set[i].used = lines->line;
                return set[i].tokens;
        }
        return 0;
}

static void place_put(struct capture_lines *lines, uint64_t key, uint32_t tokens)
{
        struct place *set = set_of(lines, key), *oldest = set;

        for (unsigned i = 1; i < WAYS; i++)
                if (lines->line - set[i].used > lines->line - oldest->used)
                        oldest = &set[i];
        *oldest = (struct place){key, tokens, lines->line};
}

/* Points first .. last - 1 lie between two places in proportion to their ends. */
static void spread(struct capture_lines *lines, const struct kvr_point *points, uint32_t first, uint32_t last)
{
        double from_units = first ? points[first - 1].end : 0, from = first ? lines->tokens[first - 1] : 0;
        double units = points[last].end - from_units, tokens = lines->tokens[last] - from;

        for (uint32_t i = first; i < last; i++) {
                double at = from + tokens * (points[i].end - from_units) / units;

                lines->tokens[i] = at >= 1 ? (uint32_t)at : 1;
                place_put(lines, points[i].key, lines->tokens[i]);
        }
}

/* Fills lines->tokens, rising up to the whole prompt at the last point. */
static void places_fill(struct capture_lines *lines, const struct kvr_point *points, uint32_t count,
                        uint32_t prompt)
{
        uint32_t cap = prompt, next = 0;

        for (uint32_t i = 0; i < count; i++)
                lines->tokens[i] = place_find(lines, points[i].key);
        if (!lines->tokens[count - 1])
                place_put(lines, points[count - 1].key, prompt);
        lines->tokens[count - 1] = prompt;
        /* Engines count a shared beginning alike, estimates may not: the prompt at hand has the last word. */
        for (uint32_t i = count; i-- > 0;) {
                if (!lines->tokens[i])
                        continue;
                cap = lines->tokens[i] < cap ? lines->tokens[i] : cap;
                lines->tokens[i] = cap;
        }
        for (uint32_t i = 0; i < count; i++) {
                if (!lines->tokens[i])
                        continue;
                spread(lines, points, next, i);
                next = i + 1;
        }
}

/* ---- the line ---- */

static void add_number(struct text *out, const char *key, uint64_t value)
{
        text_adds(out, ",\"");
        text_adds(out, key);
        text_adds(out, "\":");
        text_addu(out, value);
}

static void add_string(struct text *out, const char *key, const char *value)
{
        text_adds(out, ",\"");
        text_adds(out, key);
        text_adds(out, "\":\"");
        text_add_json(out, (struct kvr_slice){value, strlen(value)});
        text_add(out, "\"", 1);
}

static void add_ids(struct capture_lines *lines, const struct kvr_point *points, uint32_t prompt,
                    struct text *out)
{
        uint32_t block = lines->block_tokens, blocks = (prompt - 1) / block + 1, point = 0;

        text_adds(out, ",\"hash_ids\":[");
        for (uint32_t i = 0; i < blocks; i++) {
                uint64_t end = (uint64_t)(i + 1) * block;

                if (end > prompt)
                        end = prompt;
                while (lines->tokens[point] < end)
                        point++;
                if (i)
                        text_add(out, ",", 1);
                /* A block that is not whole is another than the whole one in its place. */
                text_addu(out,
                          siphash_pair(&lines->key, points[point].key, (uint64_t)i << 32 | (end % block)) >>
                                  (64 - CAPTURE_ID_BITS));
        }
        text_add(out, "]", 1);
}

static void add_facts(const struct capture_facts *facts, uint64_t dropped, struct text *out)
{
        char session[16];

        if (facts->session) {
                text_adds(out, ",\"session\":\"");
                text_add(out, session, text_hex(session, facts->session, 16));
                text_add(out, "\"", 1);
        }
        add_string(out, "workload", facts->workload);
        add_string(out, "model", facts->model);
        add_string(out, "end", facts->end);
        add_number(out, "input_exact", facts->input_exact);
        add_number(out, "output_exact", facts->output_exact);
        if (facts->cached_tokens >= 0)
                add_number(out, "cached_tokens", (uint64_t)facts->cached_tokens);
        if (facts->ttft_ms >= 0)
                add_number(out, "ttft_ms", (uint64_t)facts->ttft_ms);
        if (facts->total_ms >= 0)
                add_number(out, "total_ms", (uint64_t)facts->total_ms);
        add_number(out, "unix_ms", facts->unix_ms);
        add_number(out, "dropped", dropped);
}

bool capture_line_add(struct capture_lines *lines, const struct kvr_point *points, uint32_t count,
                      const struct capture_facts *facts, uint64_t dropped, struct text *ret)
{
        uint32_t prompt = facts->input_tokens;
        size_t before = ret->len;

        if (!count || count > KVR_POINTS_MAX || !prompt ||
            (prompt - 1) / lines->block_tokens >= CAPTURE_BLOCKS_MAX)
                return false;
        lines->line++;
        places_fill(lines, points, count, prompt);
        text_adds(ret, "{\"timestamp\":");
        text_addu(ret, facts->arrived_ms);
        add_number(ret, "input_length", prompt);
        add_number(ret, "output_length", facts->output_tokens);
        add_ids(lines, points, prompt, ret);
        add_facts(facts, dropped, ret);
        text_add(ret, "}\n", 2);
        if (!ret->failed)
                return true;
        ret->failed = false;
        ret->len = before;
        return false;
}
