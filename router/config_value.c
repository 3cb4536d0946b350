/* SPDX-License-Identifier: Apache-2.0 */
/* From one text to one field of the configuration, by the type in the table. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_int.h"

#define SHOW(slice) (int)((slice).len < 200 ? (slice).len : 200), (slice).data

bool config_fail(struct config_builder *b, const char *place, const char *format, ...)
{
        va_list args;
        size_t n = 0;

        if (!b->err)
                return false;
        if (place && *place) {
                int len = snprintf(b->err->message, sizeof b->err->message, "%s: ", place);

                n = len < 0                                ? 0
                    : (size_t)len < sizeof b->err->message ? (size_t)len
                                                           : sizeof b->err->message - 1;
        }
        va_start(args, format);
        vsnprintf(b->err->message + n, sizeof b->err->message - n, format, args);
        va_end(args);
        return false;
}

bool config_go_on(struct config_builder *b)
{
        char **items, *copy;

        if (!b->errors)
                return false;
        items = realloc(b->errors->items, (b->errors->count + 1) * sizeof *items);
        if (!items)
                return false;
        b->errors->items = items;
        copy = strdup(b->err->message);
        if (!copy)
                return false;
        items[b->errors->count++] = copy;
        return true;
}

bool config_no_memory(struct config_builder *b, const char *place)
{
        return config_fail(b, place, "out of memory");
}

void config_wipe_free(char *text, size_t len)
{
        if (text)
                explicit_bzero(text, len);
        free(text);
}

size_t config_row(const struct option_row *option)
{
        size_t count;

        return (size_t)(option - options_table(&count));
}

/* ---- texts ------------------------------------------------------------------------------------------ */

char *config_copy_text(struct config_builder *b, struct kvr_slice value, const char *place)
{
        char *copy = malloc(value.len + 1);

        if (!copy) {
                config_no_memory(b, place);
                return NULL;
        }
        if (value.len > 0)
                memcpy(copy, value.data, value.len);
        copy[value.len] = 0;
        return copy;
}

/* ---- endpoints -------------------------------------------------------------------------------------- */

bool config_parse_endpoint(struct config_builder *b, const struct option_row *option, struct kvr_slice value,
                           const char *place, struct config_endpoint *ret)
{
        struct config_endpoint endpoint = {0};
        const char *colon = value.len > 0 ? memrchr(value.data, ':', value.len) : NULL, *unused;
        struct kvr_slice host = {value.data, colon ? (size_t)(colon - value.data) : 0};
        struct kvr_slice port = {colon ? colon + 1 : "", colon ? value.len - host.len - 1 : 0};
        uint64_t number;
        bool bracketed = host.len >= 2 && host.data[0] == '[' && host.data[host.len - 1] == ']';

        if ((option->flags & O_OFF) && value.len == 3 && memcmp(value.data, "off", 3) == 0) {
                ret->off = true;
                return true;
        }
        if (bracketed)
                host = (struct kvr_slice){host.data + 1, host.len - 2};
        bool ok = colon && option_parse_count(port, &number, &unused) && number <= 65535 &&
                  host.len < sizeof endpoint.host && !(host.len > 0 && memchr(host.data, 0, host.len)) &&
                  (bracketed || !(host.len > 0 && memchr(host.data, ':', host.len)));
        for (size_t i = 0; ok && i < host.len; i++)
                ok = host.data[i] > ' ' && host.data[i] < 0x7f && host.data[i] != '/';
        if (!ok)
                return config_fail(b, place,
                                   "\"%.*s\" is not HOST:PORT; write 127.0.0.1:8080, [::1]:8080 or :8080%s",
                                   SHOW(value), option->flags & O_OFF ? ", or off" : "");
        /* * is what many write for every address */
        if (host.len == 1 && host.data[0] == '*')
                host.len = 0;
        if (host.len > 0)
                memcpy(endpoint.host, host.data, host.len);
        endpoint.port = (uint16_t)number;
        *ret = endpoint;
        return true;
}

static void *field(struct config_builder *b, const struct option_row *option)
{
        return (char *)b->config + option->offset;
}

/* ---- single values ---------------------------------------------------------------------------------- */

static void format_bound(const struct option_row *option, double bound, char *ret, size_t size)
{
        if (option->type == OPT_MILLIS)
                option_format_millis((uint64_t)bound, ret, size);
        else if (option->type == OPT_BYTES)
                option_format_bytes((uint64_t)bound, ret, size);
        else
                snprintf(ret, size, "%.15g", bound);
}

static bool in_range(struct config_builder *b, const struct option_row *option, double n,
                     struct kvr_slice value, const char *place)
{
        char low[32], high[32];

        if (n >= option->min && n <= option->max)
                return true;
        format_bound(option, option->min, low, sizeof low);
        format_bound(option, option->max, high, sizeof high);
        return config_fail(b, place, "\"%.*s\" is out of range; write %s to %s%s", SHOW(value), low, high,
                           option->flags & O_OFF ? ", or off" : "");
}

static bool wrong_form(struct config_builder *b, const struct option_row *option, struct kvr_slice value,
                       const char *what, const char *place)
{
        return config_fail(b, place, "\"%.*s\" is not %s%s%s%s", SHOW(value), what,
                           option->flags & O_OFF ? ", nor off" : "", option->flags & O_AUTO ? ", nor " : "",
                           option->flags & O_AUTO ? option->fallback : "");
}

/* `off`, or the word that stands for "find out". */
static bool is_zero_word(const struct option_row *option, struct kvr_slice value)
{
        if ((option->flags & O_OFF) && value.len == 3 && memcmp(value.data, "off", 3) == 0)
                return true;
        return (option->flags & O_AUTO) && value.len == strlen(option->fallback) &&
               memcmp(value.data, option->fallback, value.len) == 0;
}

static bool parse_number(struct config_builder *b, const struct option_row *option, struct kvr_slice value,
                         const char *place, uint64_t *ret)
{
        const char *what = "";
        bool ok;

        if (is_zero_word(option, value)) {
                *ret = 0;
                return true;
        }
        if (option->type == OPT_MILLIS)
                ok = option_parse_millis(value, ret, &what);
        else if (option->type == OPT_BYTES)
                ok = option_parse_bytes(value, ret, &what);
        else
                ok = option_parse_count(value, ret, &what);
        if (!ok)
                return wrong_form(b, option, value, what, place);
        return in_range(b, option, (double)*ret, value, place);
}

static bool parse_choice(struct config_builder *b, const struct option_row *option, struct kvr_slice value,
                         const char *place, unsigned *ret)
{
        char words[128];
        size_t n = 0;

        if (value_choice(value, option->argument, ret))
                return true;
        for (const char *c = option->argument; *c && n + 3 < sizeof words; c++) {
                words[n++] = *c == '|' ? ',' : *c;
                if (*c == '|')
                        words[n++] = ' ';
        }
        words[n] = 0;
        return config_fail(b, place, "\"%.*s\" is not one of %s", SHOW(value), words);
}

static bool set_text(struct config_builder *b, const struct option_row *option, struct kvr_slice value,
                     bool keep, const char *place)
{
        char **into = field(b, option), *text;

        if (option->type == OPT_SECRET) {
                text = value.len > 0 ? config_secret(b, value, place) : config_copy_text(b, value, place);
        } else {
                if (value.len > 0 && memchr(value.data, 0, value.len))
                        return config_fail(b, place, "the value holds a zero byte");
                if ((double)value.len < option->min || (double)value.len > option->max)
                        return config_fail(b, place, "\"%.*s\" has %zu characters; %.0f to %.0f are allowed",
                                           SHOW(value), value.len, option->min, option->max);
                text = config_copy_text(b, value, place);
        }
        if (!text)
                return false;
        if (!keep) {
                config_wipe_free(text, strlen(text));
                return true;
        }
        config_free_field(b->config, option);
        *into = text;
        return true;
}

const char *config_place(const struct config_builder *b, const char *name)
{
        const struct option_row *option = options_find((struct kvr_slice){name, strlen(name)});
        const char *place = option ? b->place[config_row(option)] : "";

        return *place ? place : name;
}

bool config_set(struct config_builder *b, const struct option_row *option, enum config_source source,
                struct kvr_slice value, const char *place)
{
        bool keep = !config_is_overridden(b, option, source);
        void *into = field(b, option);
        const char *what = "";
        struct config_endpoint endpoint = {0};
        uint64_t number = 0;
        unsigned word = 0;
        bool flag = false, ok = true;
        double real = 0;

        if (keep)
                snprintf(b->place[config_row(option)], CONFIG_PLACE_MAX, "%s", place);
        if (option_is_list(option))
                return config_add_to_list(b, option, source, value, place);
        switch (option->type) {
        case OPT_BOOL:
                ok = option_parse_bool(value, &flag, &what) || wrong_form(b, option, value, what, place);
                if (ok && keep)
                        *(bool *)into = flag;
                break;
        case OPT_COUNT:
        case OPT_MILLIS:
        case OPT_BYTES:
                ok = parse_number(b, option, value, place, &number);
                if (ok && keep)
                        *(uint64_t *)into = number;
                break;
        case OPT_NUMBER:
                ok = (option_parse_number(value, &real, &what) ||
                      wrong_form(b, option, value, what, place)) &&
                     in_range(b, option, real, value, place);
                if (ok && keep)
                        *(double *)into = real;
                break;
        case OPT_CHOICE:
                ok = parse_choice(b, option, value, place, &word);
                if (ok && keep)
                        *(unsigned *)into = word;
                break;
        case OPT_ENDPOINT:
                ok = config_parse_endpoint(b, option, value, place, &endpoint);
                if (ok && keep)
                        *(struct config_endpoint *)into = endpoint;
                break;
        default:
                ok = set_text(b, option, value, keep, place);
        }
        if (ok && keep)
                b->source[config_row(option)] = (uint8_t)source;
        return ok;
}
