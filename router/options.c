/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"

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

const char *options_nearest(struct kvr_slice name)
{
        struct value_nearest best = {0};

        for (size_t i = 0; i < sizeof table / sizeof *table; i++)
                if (table[i].name)
                        value_offer(&best, name, table[i].name);
        return best.word;
}

const char *words_nearest(struct kvr_slice word, const char *const *words, size_t count)
{
        struct value_nearest best = {0};

        for (size_t i = 0; i < count; i++)
                value_offer(&best, word, words[i]);
        return best.word;
}

/* ---- values ----------------------------------------------------------------------------------------- */

bool option_parse_bool(struct kvr_slice text, bool *ret, const char **ret_why)
{
        if (value_bool(text, ret))
                return true;
        *ret_why = "on or off";
        return false;
}

bool option_parse_count(struct kvr_slice text, uint64_t *ret, const char **ret_why)
{
        if (value_count(text, ret))
                return true;
        *ret_why = "a whole number";
        return false;
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

        if (!value_leading_count(text, &n, &len))
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
