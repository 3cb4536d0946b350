/* SPDX-License-Identifier: Apache-2.0 */
#include "prom.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_MAX 64 /* characters of a number */

void prom_init(struct prom_reader *reader, struct kvr_slice page)
{
        *reader = (struct prom_reader){.rest = page};
}

static void take(struct kvr_slice *text, size_t n)
{
        text->data += n;
        text->len -= n;
}

static void skip_space(struct kvr_slice *text)
{
        while (text->len > 0 && (*text->data == ' ' || *text->data == '\t'))
                take(text, 1);
}

static bool accept(struct kvr_slice *text, char c)
{
        if (text->len == 0 || *text->data != c)
                return false;
        take(text, 1);
        return true;
}

static bool name_char(char c, bool first)
{
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':' ||
               (!first && c >= '0' && c <= '9');
}

static bool take_name(struct kvr_slice *text, struct kvr_slice *ret)
{
        size_t n = 0;

        while (n < text->len && name_char(text->data[n], n == 0))
                n++;
        *ret = (struct kvr_slice){text->data, n};
        take(text, n);
        return n > 0;
}

/* A value in quotes; the quotes are taken, the escapes stay. */
static bool take_quoted(struct kvr_slice *text, struct kvr_slice *ret)
{
        size_t n = 0;

        if (!accept(text, '"'))
                return false;
        while (n < text->len && text->data[n] != '"')
                n += text->data[n] == '\\' ? 2 : 1;
        if (n >= text->len)
                return false;
        *ret = (struct kvr_slice){text->data, n};
        take(text, n + 1);
        return true;
}

static bool take_labels(struct kvr_slice *text, struct prom_sample *sample)
{
        for (;;) {
                struct prom_label label;

                skip_space(text);
                if (accept(text, '}'))
                        return true;
                if (sample->label_count == PROM_LABELS_MAX || !take_name(text, &label.name))
                        return false;
                skip_space(text);
                if (!accept(text, '='))
                        return false;
                skip_space(text);
                if (!take_quoted(text, &label.value))
                        return false;
                sample->labels[sample->label_count++] = label;
                skip_space(text);
                if (!accept(text, ',') && (text->len == 0 || *text->data != '}'))
                        return false;
        }
}

static bool parse_number(struct kvr_slice token, double *ret)
{
        char copy[VALUE_MAX + 1], *end;

        if (token.len == 0 || token.len > VALUE_MAX || memchr(token.data, 0, token.len))
                return false;
        memcpy(copy, token.data, token.len);
        copy[token.len] = 0;
        *ret = strtod(copy, &end);
        return *end == 0;
}

static bool take_value(struct kvr_slice *text, double *ret)
{
        size_t n = 0;

        while (n < text->len && text->data[n] != ' ' && text->data[n] != '\t')
                n++;
        struct kvr_slice token = {text->data, n};
        take(text, n);
        return parse_number(token, ret);
}

/* name [ { labels } ] value [ timestamp ] [ # exemplar ]; what follows the value is not looked at. */
static bool parse_line(struct kvr_slice line, struct prom_sample *ret)
{
        ret->label_count = 0;
        if (!take_name(&line, &ret->name))
                return false;
        skip_space(&line);
        if (accept(&line, '{') && !take_labels(&line, ret))
                return false;
        skip_space(&line);
        return take_value(&line, &ret->value);
}

bool prom_next(struct prom_reader *reader, struct prom_sample *ret_sample)
{
        struct kvr_slice *rest = &reader->rest;

        while (rest->len > 0) {
                const char *nl = memchr(rest->data, '\n', rest->len);
                struct kvr_slice line = {rest->data, nl ? (size_t)(nl - rest->data) : rest->len};

                take(rest, nl ? line.len + 1 : line.len);
                if (line.len > 0 && line.data[line.len - 1] == '\r')
                        line.len--;
                skip_space(&line);
                if (line.len == 0 || *line.data == '#')
                        continue;
                if (line.len <= PROM_LINE_MAX && parse_line(line, ret_sample)) {
                        reader->samples++;
                        return true;
                }
                reader->skipped++;
        }
        return false;
}

bool prom_is(struct kvr_slice name, const char *text)
{
        return name.len == strlen(text) && memcmp(name.data, text, name.len) == 0;
}

struct kvr_slice prom_label(const struct prom_sample *sample, const char *name)
{
        for (uint32_t i = 0; i < sample->label_count; i++)
                if (prom_is(sample->labels[i].name, name))
                        return sample->labels[i].value;
        return (struct kvr_slice){0};
}

double prom_label_number(const struct prom_sample *sample, const char *name)
{
        struct kvr_slice text = prom_label(sample, name);
        double value;

        /* strtod would also take " 1", "0x1p3" and "nan" */
        for (size_t i = 0; i < text.len; i++)
                if ((text.data[i] < '0' || text.data[i] > '9') && text.data[i] != '.')
                        return -1;
        if (!parse_number(text, &value) || value > 9007199254740992.0)
                return -1;
        return value;
}

bool prom_unescape(struct kvr_slice value, char *ret, size_t size)
{
        size_t out = 0;

        for (size_t i = 0; i < value.len; i++) {
                char c = value.data[i];

                if (out + 1 >= size) {
                        if (size > 0)
                                ret[out] = 0;
                        return false;
                }
                if (c == '\\' && i + 1 < value.len) {
                        c = value.data[++i];
                        if (c == 'n')
                                c = '\n';
                }
                ret[out++] = c;
        }
        if (size == 0)
                return false;
        ret[out] = 0;
        return true;
}
