/* SPDX-License-Identifier: Apache-2.0 */
#include "access_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>
#include <yyjson.h>
#include <zlib.h>

#define BEGINS "{\"time\":\""
#define LATER  "\"request_id\":"

bool sim_access_is(const char *bytes, size_t len)
{
        const char *end = memchr(bytes, '\n', len);
        size_t line = end ? (size_t)(end - bytes) : len;

        if (line < sizeof(BEGINS) - 1 || memcmp(bytes, BEGINS, sizeof(BEGINS) - 1) != 0)
                return false;
        for (size_t at = 0; at + sizeof(LATER) - 1 <= line; at++) {
                if (memcmp(bytes + at, LATER, sizeof(LATER) - 1) == 0)
                        return true;
        }
        return false;
}

static double number(yyjson_val *root, const char *key)
{
        yyjson_val *value = yyjson_obj_get(root, key);
        double figure = yyjson_is_num(value) ? yyjson_get_num(value) : -1;

        return figure >= 0 && figure < 1e15 ? figure : -1;
}

/* So many digits, and the character behind them. */
static bool take_digits(const char **at, unsigned count, char end, int *ret)
{
        int value = 0;

        for (; count; count--, (*at)++) {
                if (**at < '0' || **at > '9')
                        return false;
                value = value * 10 + (**at - '0');
        }
        *ret = value;
        return *(*at)++ == end;
}

bool sim_access_time(const char *text, double *ret)
{
        struct tm tm = {0};
        int milliseconds;

        if (!text || !take_digits(&text, 4, '-', &tm.tm_year) || !take_digits(&text, 2, '-', &tm.tm_mon) ||
            !take_digits(&text, 2, 'T', &tm.tm_mday) || !take_digits(&text, 2, ':', &tm.tm_hour) ||
            !take_digits(&text, 2, ':', &tm.tm_min) || !take_digits(&text, 2, '.', &tm.tm_sec) ||
            !take_digits(&text, 3, 'Z', &milliseconds))
                return false;
        tm.tm_year -= 1900;
        tm.tm_mon--;
        *ret = (double)timegm(&tm) + milliseconds / 1e3;
        return true;
}

static uint64_t hash(yyjson_val *root, const char *key, uint64_t seed)
{
        yyjson_val *value = yyjson_obj_get(root, key);

        if (!yyjson_is_str(value) || yyjson_get_len(value) == 0)
                return seed;
        return XXH3_64bits_withSeed(yyjson_get_str(value), yyjson_get_len(value), seed) | 1;
}

bool sim_access_parse(const char *line, size_t len, struct sim_access_line *ret)
{
        yyjson_doc *doc = yyjson_read(line, len, 0);
        yyjson_val *root = yyjson_doc_get_root(doc);
        double status = number(root, "status");
        const char *end = yyjson_get_str(yyjson_obj_get(root, "end"));
        const char *name = yyjson_get_str(yyjson_obj_get(root, "replica"));
        bool good;

        *ret = (struct sim_access_line){
                .total_s = number(root, "total_s"),
                .ttft_s = number(root, "ttft_s"),
                .queue_s = number(root, "queue_s"),
                .prompt = number(root, "prompt_tokens"),
                .completion = number(root, "completion_tokens"),
                .predicted = number(root, "predicted_tokens"),
                .best = number(root, "best_match_tokens"),
                .observed = number(root, "observed_tokens"),
                .replica = hash(root, "replica", 0),
                .client = hash(root, "key_id", hash(root, "workload", hash(root, "model", 0))),
                .stream = yyjson_get_bool(yyjson_obj_get(root, "stream")),
                .answered = end && strcmp(end, "finished") == 0 && status >= 200 && status < 300,
        };
        snprintf(ret->name, sizeof(ret->name), "%s", name ? name : "");
        good = yyjson_is_obj(root) && end &&
               sim_access_time(yyjson_get_str(yyjson_obj_get(root, "time")), &ret->end_s);
        yyjson_doc_free(doc);
        return good;
}

/* NULL, or what is wrong with the line. */
static const char *take_line(char *line, struct sim_access_line *parsed, sim_access_each each, void *ctx)
{
        size_t len = strlen(line);

        if (len + 1 == SIM_ACCESS_LINE_MAX && line[len - 1] != '\n')
                return "the line is too long";
        if (line[0] == '\n' || !len)
                return NULL;
        if (!sim_access_parse(line, len, parsed))
                return "not a line of an access log";
        return each(ctx, parsed);
}

bool sim_access_read(const char *path, sim_access_each each, void *ctx, char *message, size_t message_size)
{
        gzFile file = gzopen(path, "rb");
        char *line = malloc(SIM_ACCESS_LINE_MAX);
        const char *wrong = !file ? "cannot open the file" : !line ? "out of memory" : NULL;
        unsigned long long number = 0;
        struct sim_access_line parsed;

        if (wrong)
                snprintf(message, message_size, "%s: %s", path, wrong);
        while (!wrong && gzgets(file, line, (int)SIM_ACCESS_LINE_MAX)) {
                number++;
                wrong = take_line(line, &parsed, each, ctx);
                if (wrong)
                        snprintf(message, message_size, "%s:%llu: %s", path, number, wrong);
        }
        free(line);
        if (file)
                gzclose(file);
        return !wrong;
}
