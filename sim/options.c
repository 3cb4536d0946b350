/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"
#include "proto/value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define HELP_COLUMN 32
#define HELP_WIDTH  100

bool sim_parse_number(const char *text, double *ret)
{
        char *end;
        double value;

        if (!*text || strspn(text, "+-.0123456789eE") != strlen(text))
                return false;
        value = strtod(text, &end);
        if (*end || !isfinite(value))
                return false;
        *ret = value;
        return true;
}

bool sim_parse_count(const char *text, uint64_t *ret)
{
        return value_count(sim_slice(text), ret);
}

/* A number with one of the unit words behind it. */
static bool with_unit(const char *text, const char *const *units, const double *factors, size_t count,
                      double *ret)
{
        size_t len = strspn(text, "0123456789.");
        char digits[32];
        double value;

        if (len == 0 || len >= sizeof(digits))
                return false;
        memcpy(digits, text, len);
        digits[len] = 0;
        if (!sim_parse_number(digits, &value))
                return false;
        for (size_t i = 0; i < count; i++) {
                if (strcmp(text + len, units[i]) == 0) {
                        *ret = value * factors[i];
                        return true;
                }
        }
        return false;
}

bool sim_parse_seconds(const char *text, double *ret)
{
        static const char *const units[] = {"ms", "s", "m", "h"};
        static const double factors[] = {1e-3, 1, 60, 3600};

        if (strcmp(text, "0") == 0) {
                *ret = 0;
                return true;
        }
        return with_unit(text, units, factors, 4, ret);
}

bool sim_parse_size(const char *text, uint64_t *ret)
{
        static const char *const units[] = {"", "KiB", "MiB", "GiB"};
        static const double factors[] = {1, 1024, 1048576, 1073741824};
        double value;

        if (!with_unit(text, units, factors, 4, &value) || value > 0x1p53)
                return false;
        *ret = (uint64_t)value;
        return true;
}

bool sim_parse_endpoint(const char *text, char *ret_host, size_t host_size, uint16_t *ret_port)
{
        const char *colon = strrchr(text, ':'), *host = text;
        size_t len = colon ? (size_t)(colon - text) : 0;
        uint64_t port;

        if (!colon || !sim_parse_count(colon + 1, &port) || port > 65535)
                return false;
        if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
                host++;
                len -= 2;
        } else if (memchr(text, ':', len)) {
                return false; /* an IPv6 address without brackets */
        }
        if (len >= host_size)
                return false;
        if (len == 0) {
                snprintf(ret_host, host_size, "0.0.0.0");
        } else {
                memcpy(ret_host, host, len);
                ret_host[len] = 0;
        }
        *ret_port = (uint16_t)port;
        return true;
}

/* What a value of this type looks like, for messages. */
static const char *form_of(const struct sim_option *option)
{
        switch (option->type) {
        case SIM_OPT_FLAG:
                return "on or off";
        case SIM_OPT_COUNT:
                return "a whole number";
        case SIM_OPT_NUMBER:
                return "a number";
        case SIM_OPT_SECONDS:
                return "a time like 500ms, 10s, 5m or 1h";
        case SIM_OPT_SIZE:
                return "a size like 65536, 64KiB, 1MiB or 2GiB";
        case SIM_OPT_CHOICE:
                return option->argument;
        case SIM_OPT_STRING:
        case SIM_OPT_GROUP:
                break;
        }
        return "text";
}

static bool store(const struct sim_option *option, const char *text, void *fields)
{
        char *at = (char *)fields + option->offset;
        double number = 0;
        uint64_t count = 0;
        unsigned number_of_word;

        switch (option->type) {
        case SIM_OPT_FLAG:
                return value_bool(sim_slice(text), (bool *)at);
        case SIM_OPT_STRING:
                *(const char **)(void *)at = *text ? text : NULL;
                return true;
        case SIM_OPT_CHOICE:
                if (!value_choice(sim_slice(text), option->argument, &number_of_word))
                        return false;
                *(const char **)(void *)at = text;
                return true;
        case SIM_OPT_COUNT:
        case SIM_OPT_SIZE:
                if (!(option->type == SIM_OPT_SIZE ? sim_parse_size(text, &count)
                                                   : sim_parse_count(text, &count)))
                        return false;
                *(uint64_t *)(void *)at = count;
                return (double)count >= option->min && (double)count <= option->max;
        case SIM_OPT_NUMBER:
        case SIM_OPT_SECONDS:
                if (!(option->type == SIM_OPT_SECONDS ? sim_parse_seconds(text, &number)
                                                      : sim_parse_number(text, &number)))
                        return false;
                *(double *)(void *)at = number;
                return number >= option->min && number <= option->max;
        case SIM_OPT_GROUP:
                break;
        }
        return false;
}

static bool bounded(const struct sim_option *option)
{
        return option->type == SIM_OPT_COUNT || option->type == SIM_OPT_SIZE ||
               option->type == SIM_OPT_NUMBER || option->type == SIM_OPT_SECONDS;
}

static const char *nearest(const struct sim_command *command, const char *name)
{
        struct value_nearest best = {0};

        for (size_t i = 0; i < command->option_count; i++)
                if (command->options[i].type != SIM_OPT_GROUP)
                        value_offer(&best, sim_slice(name), command->options[i].name);
        return best.word;
}

static const struct sim_option *find(const struct sim_command *command, const char *name, size_t len)
{
        for (size_t i = 0; i < command->option_count; i++) {
                const struct sim_option *option = &command->options[i];

                if (option->type != SIM_OPT_GROUP && strlen(option->name) == len &&
                    memcmp(option->name, name, len) == 0)
                        return option;
        }
        return NULL;
}

static enum sim_parse_result bad_value(const struct sim_option *option, const char *value, char *message,
                                       size_t size)
{
        char bounds[96] = "", example[64] = "";

        if (bounded(option))
                snprintf(bounds, sizeof(bounds), " from %.10g to %.10g%s", option->min, option->max,
                         option->type == SIM_OPT_SECONDS ? " seconds" : "");
        if (*option->fallback)
                snprintf(example, sizeof(example), ", as in --%s %s", option->name, option->fallback);
        snprintf(message, size, "--%s: '%s' is not %s%s%s%s", option->name, value,
                 option->type == SIM_OPT_CHOICE ? "one of " : "", form_of(option), bounds, example);
        return SIM_PARSE_USAGE;
}

static enum sim_parse_result unknown(const struct sim_command *command, const char *arg, char *message,
                                     size_t size)
{
        char name[64];
        const char *near;

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(arg + 2, "="), arg + 2);
        near = nearest(command, strncmp(name, "no-", 3) == 0 ? name + 3 : name);
        if (near)
                snprintf(message, size, "unknown option --%s; did you mean --%s?", name, near);
        else
                snprintf(message, size, "unknown option --%s; kvroute %s --help lists them all", name,
                         command->name);
        return SIM_PARSE_USAGE;
}

/* One "--name", "--name=value", "--name value" or "--no-name"; *at moves over a separate value. */
static enum sim_parse_result take_option(const struct sim_command *command, int argc, char **argv, int *at,
                                         void *fields, char *message, size_t size)
{
        const char *name = argv[*at] + 2, *equals = strchr(name, '='), *value;
        size_t len = equals ? (size_t)(equals - name) : strlen(name);
        const struct sim_option *option = find(command, name, len);

        if (!option && strncmp(name, "no-", 3) == 0 && !equals) {
                option = find(command, name + 3, len - 3);
                if (option && option->type == SIM_OPT_FLAG)
                        return store(option, "off", fields) ? SIM_PARSE_OK : SIM_PARSE_USAGE;
                option = NULL;
        }
        if (!option)
                return unknown(command, argv[*at], message, size);
        if (equals) {
                value = equals + 1;
        } else if (option->type == SIM_OPT_FLAG) {
                value = "on";
        } else if (*at + 1 < argc) {
                value = argv[++*at];
        } else {
                snprintf(message, size, "--%s needs a value: %s", option->name, form_of(option));
                return SIM_PARSE_USAGE;
        }
        return store(option, value, fields) ? SIM_PARSE_OK : bad_value(option, value, message, size);
}

enum sim_parse_result sim_options_parse(const struct sim_command *command, int argc, char **argv,
                                        void *fields, const char **ret_positional,
                                        unsigned *ret_positional_count, char *message, size_t size)
{
        unsigned count = 0;
        bool only_arguments = false;

        for (size_t i = 0; i < command->option_count; i++) {
                const struct sim_option *option = &command->options[i];

                if (option->type != SIM_OPT_GROUP && !store(option, option->fallback, fields))
                        return bad_value(option, option->fallback, message, size);
        }
        for (int i = 1; i < argc; i++) {
                enum sim_parse_result result;

                if (!only_arguments && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0))
                        return SIM_PARSE_HELP;
                if (!only_arguments && strcmp(argv[i], "--") == 0) {
                        only_arguments = true;
                } else if (!only_arguments && strncmp(argv[i], "--", 2) == 0) {
                        result = take_option(command, argc, argv, &i, fields, message, size);
                        if (result != SIM_PARSE_OK)
                                return result;
                } else if (!only_arguments && argv[i][0] == '-' && argv[i][1]) {
                        snprintf(message, size, "unknown option %s; options begin with two dashes", argv[i]);
                        return SIM_PARSE_USAGE;
                } else if (count < command->positional_max) {
                        ret_positional[count++] = argv[i];
                } else {
                        snprintf(message, size,
                                 "'%s' is one argument too many; usage: kvroute %s [OPTIONS] %s", argv[i],
                                 command->name, command->arguments);
                        return SIM_PARSE_USAGE;
                }
        }
        if (count < command->positional_min) {
                snprintf(message, size, "an argument is missing; usage: kvroute %s [OPTIONS] %s",
                         command->name, command->arguments);
                return SIM_PARSE_USAGE;
        }
        *ret_positional_count = count;
        return SIM_PARSE_OK;
}

/* `text` broken into lines behind the column; `at` is where the cursor is. */
static void wrap(struct sim_buf *buf, const char *text, size_t at)
{
        if (at + 2 > HELP_COLUMN) {
                sim_buf_puts(buf, "\n");
                at = 0;
        }
        sim_buf_printf(buf, "%*s", (int)(HELP_COLUMN - at), "");
        at = HELP_COLUMN;
        while (*text) {
                size_t word = strcspn(text, " ");

                if (at > HELP_COLUMN && at + 1 + word > HELP_WIDTH) {
                        sim_buf_printf(buf, "\n%*s", HELP_COLUMN, "");
                        at = HELP_COLUMN;
                } else if (at > HELP_COLUMN) {
                        sim_buf_puts(buf, " ");
                        at++;
                }
                sim_buf_add(buf, text, word);
                at += word;
                text += word + (text[word] == ' ');
        }
        sim_buf_puts(buf, "\n");
}

void sim_options_help(const struct sim_command *command, struct sim_buf *buf)
{
        sim_buf_printf(buf, "Usage: kvroute %s [OPTIONS]%s%s\n\n%s\n", command->name,
                       *command->arguments ? " " : "", command->arguments, command->summary);
        for (size_t i = 0; i < command->option_count; i++) {
                const struct sim_option *option = &command->options[i];
                size_t start = buf->len;
                char help[640];

                if (option->type == SIM_OPT_GROUP) {
                        sim_buf_printf(buf, "\n%s:\n", option->help);
                        continue;
                }
                if (option->type == SIM_OPT_FLAG)
                        sim_buf_printf(buf, "  --%s%s", strcmp(option->fallback, "on") == 0 ? "[no-]" : "",
                                       option->name);
                else
                        sim_buf_printf(buf, "  --%s %s", option->name, option->argument);
                if (option->type != SIM_OPT_FLAG && *option->fallback)
                        snprintf(help, sizeof(help), "%s (default: %s)", option->help, option->fallback);
                else
                        snprintf(help, sizeof(help), "%s", option->help);
                wrap(buf, help, buf->len - start);
        }
        sim_buf_puts(buf, "  --help");
        wrap(buf, "this page", 8);
        if (command->examples)
                sim_buf_printf(buf, "\nExamples:\n%s", command->examples);
}

int sim_options_main(const struct sim_command *command, int argc, char **argv, void *fields,
                     const char **ret_positional, unsigned *ret_positional_count)
{
        char message[512] = "";
        struct sim_buf page = {0};

        switch (sim_options_parse(command, argc, argv, fields, ret_positional, ret_positional_count, message,
                                  sizeof(message))) {
        case SIM_PARSE_OK:
                return -1;
        case SIM_PARSE_HELP:
                sim_options_help(command, &page);
                fwrite(page.data, 1, page.len, stdout);
                sim_buf_fini(&page);
                return 0;
        case SIM_PARSE_USAGE:
                break;
        }
        return sim_usage_error(command, "%s", message);
}

int sim_usage_error(const struct sim_command *command, const char *format, ...)
{
        va_list args;

        fprintf(stderr, "kvroute %s: ", command->name);
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fputc('\n', stderr);
        return 2;
}
