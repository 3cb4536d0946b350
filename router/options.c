/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"

#define NEAREST_MAX 64 /* bytes of a word that is compared for a suggestion */

static const struct option_row table[] = {
#define GROUP(title) {.help = (title)},
#define OPTION(field, row_name, row_type, row_min, row_max, row_fallback, row_flags, row_argument, row_help) \
        {.name = (row_name),                                                                                 \
         .type = OPT_##row_type,                                                                             \
         .flags = (row_flags),                                                                               \
         .min = (row_min),                                                                                   \
         .max = (row_max),                                                                                   \
         .fallback = (row_fallback),                                                                         \
         .argument = (row_argument),                                                                         \
         .help = (row_help),                                                                                 \
         .offset = offsetof(struct router_config, field)},
#include "options.def"
#undef OPTION
#undef GROUP
};

const struct option_row *options_table(size_t *ret_count)
{
        *ret_count = sizeof table / sizeof *table;
        return table;
}

static bool is_word(struct kvr_slice text, const char *word)
{
        return text.len == strlen(word) && memcmp(text.data, word, text.len) == 0;
}

const struct option_row *options_find(struct kvr_slice name)
{
        for (size_t i = 0; i < sizeof table / sizeof *table; i++)
                if (table[i].name && is_word(name, table[i].name))
                        return &table[i];
        return NULL;
}

bool option_is_list(const struct option_row *option)
{
        return option->type >= OPT_ENDPOINTS;
}

bool option_is_bare(const struct option_row *option)
{
        return option->type == OPT_BOOL || (option->flags & O_BARE);
}

/* ---- suggestions ------------------------------------------------------------------------------------ */

static unsigned least(unsigned a, unsigned b, unsigned c)
{
        unsigned ab = a < b ? a : b;

        return ab < c ? ab : c;
}

/* Edits (insert, delete, replace) between two short words. */
static unsigned distance(struct kvr_slice a, const char *b)
{
        unsigned row[NEAREST_MAX + 1];
        size_t b_len = strlen(b);

        if (a.len > NEAREST_MAX || b_len > NEAREST_MAX)
                return NEAREST_MAX;
        for (size_t j = 0; j <= b_len; j++)
                row[j] = (unsigned)j;
        for (size_t i = 1; i <= a.len; i++) {
                unsigned diagonal = row[0];

                row[0] = (unsigned)i;
                for (size_t j = 1; j <= b_len; j++) {
                        unsigned above = row[j];

                        row[j] = least(above + 1, row[j - 1] + 1, diagonal + (a.data[i - 1] != b[j - 1]));
                        diagonal = above;
                }
        }
        return row[b_len];
}

struct nearest {
        const char *word;
        unsigned distance;
};

static void consider(struct nearest *best, struct kvr_slice word, const char *candidate)
{
        unsigned d = distance(word, candidate);
        size_t len = strlen(candidate);

        /* "timeout" is nearer to "idle-timeout" than counting edits says, but so it is to five others: no
         * guess. */
        if (d < best->distance && d <= 2 + len / 8 && d < len)
                *best = (struct nearest){candidate, d};
}

const char *options_nearest(struct kvr_slice name)
{
        struct nearest best = {NULL, NEAREST_MAX};

        for (size_t i = 0; i < sizeof table / sizeof *table; i++)
                if (table[i].name)
                        consider(&best, name, table[i].name);
        return best.word;
}

const char *words_nearest(struct kvr_slice word, const char *const *words, size_t count)
{
        struct nearest best = {NULL, NEAREST_MAX};

        for (size_t i = 0; i < count; i++)
                consider(&best, word, words[i]);
        return best.word;
}

/* ---- values ----------------------------------------------------------------------------------------- */

bool option_parse_bool(struct kvr_slice text, bool *ret, const char **ret_why)
{
        static const char *const words[] = {"on", "true", "yes", "1", "off", "false", "no", "0"};

        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
                if (is_word(text, words[i])) {
                        *ret = i < 4;
                        return true;
                }
        *ret_why = "on or off";
        return false;
}

/* Digits at the start: how many, and their value. False if there are none or too many. */
static bool leading_number(struct kvr_slice text, uint64_t *ret, size_t *ret_len)
{
        uint64_t n = 0;
        size_t i = 0;

        for (; i < text.len && text.data[i] >= '0' && text.data[i] <= '9'; i++)
                if (__builtin_mul_overflow(n, 10, &n) ||
                    __builtin_add_overflow(n, (uint64_t)(text.data[i] - '0'), &n))
                        return false;
        *ret = n;
        *ret_len = i;
        return i > 0;
}

bool option_parse_count(struct kvr_slice text, uint64_t *ret, const char **ret_why)
{
        uint64_t n;
        size_t len;

        if (!leading_number(text, &n, &len) || len != text.len) {
                *ret_why = "a whole number";
                return false;
        }
        *ret = n;
        return true;
}

bool option_parse_number(struct kvr_slice text, double *ret, const char **ret_why)
{
        char copy[64], *end;

        *ret_why = "a number like 8000 or 0.25";
        if (text.len == 0 || text.len >= sizeof copy || (text.data[0] < '0' || text.data[0] > '9'))
                return false;
        memcpy(copy, text.data, text.len);
        copy[text.len] = 0;
        double value = strtod(copy, &end);
        if (*end != 0 || strlen(copy) != text.len || !isfinite(value) || strpbrk(copy, "xX"))
                return false;
        *ret = value;
        return true;
}

struct unit {
        const char *name;
        uint64_t factor;
};

static bool parse_units(struct kvr_slice text, const struct unit *units, size_t count, uint64_t *ret)
{
        uint64_t n;
        size_t len;

        if (!leading_number(text, &n, &len))
                return false;
        text.data += len;
        text.len -= len;
        for (size_t i = 0; i < count; i++)
                if (is_word(text, units[i].name))
                        return !__builtin_mul_overflow(n, units[i].factor, ret);
        return false;
}

static const struct unit times[] = {{"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
static const struct unit sizes[] = {
        {"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}, {"", 1}};

bool option_parse_millis(struct kvr_slice text, uint64_t *ret, const char **ret_why)
{
        uint64_t n;

        if (!parse_units(text, times, sizeof times / sizeof *times, &n) &&
            !(is_word(text, "0") && (n = 0, true))) {
                *ret_why = "a time like 500ms, 10s, 5m or 1h";
                return false;
        }
        *ret = n;
        return true;
}

bool option_parse_bytes(struct kvr_slice text, uint64_t *ret, const char **ret_why)
{
        uint64_t n;

        if (!parse_units(text, sizes, sizeof sizes / sizeof *sizes, &n)) {
                *ret_why = "a size like 65536, 64KiB, 1MiB or 2GiB";
                return false;
        }
        *ret = n;
        return true;
}

bool option_parse_choice(struct kvr_slice text, const char *words, unsigned *ret)
{
        for (unsigned i = 0; *words; i++) {
                size_t len = strcspn(words, "|");

                if (text.len == len && memcmp(text.data, words, len) == 0) {
                        *ret = i;
                        return true;
                }
                words += len + (words[len] == '|');
        }
        return false;
}

static void format_units(uint64_t n, const struct unit *units, size_t count, char *ret, size_t size)
{
        for (size_t i = 0; i < count; i++)
                if (n % units[i].factor == 0 && (n > 0 || i + 1 == count)) {
                        snprintf(ret, size, "%" PRIu64 "%s", n / units[i].factor, units[i].name);
                        return;
                }
}

void option_format_millis(uint64_t ms, char *ret, size_t size)
{
        format_units(ms, times, sizeof times / sizeof *times, ret, size);
}

void option_format_bytes(uint64_t bytes, char *ret, size_t size)
{
        format_units(bytes, sizes, sizeof sizes / sizeof *sizes, ret, size);
}
