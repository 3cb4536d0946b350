/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines of mock, bench and demo. Each command has one table: name, type, argument, bounds,
 * default and help; the parser, the defaults and --help come from it.
 */
#ifndef KVROUTE_SIM_OPTIONS_H
#define KVROUTE_SIM_OPTIONS_H

#include "buf.h"

enum sim_option_type {
        SIM_OPT_FLAG,    /* bool: --name, --no-name, --name=on|off */
        SIM_OPT_COUNT,   /* uint64_t */
        SIM_OPT_NUMBER,  /* double */
        SIM_OPT_SECONDS, /* double, in seconds; 500ms, 10s, 5m, 1h */
        SIM_OPT_SIZE,    /* uint64_t, in bytes; 65536, 64KiB, 1MiB, 2GiB */
        SIM_OPT_STRING,  /* const char *, into argv or the table; NULL when the default is "" */
        SIM_OPT_CHOICE,  /* const char *: one of the words in `argument`, separated by | */
        SIM_OPT_GROUP,   /* not an option: `help` is a heading */
};

struct sim_option {
        const char *name; /* without the dashes */
        enum sim_option_type type;
        size_t offset;        /* of the field in the command's struct */
        double min, max;      /* of numbers, in the field's unit */
        const char *argument; /* what --help calls the value */
        const char *fallback; /* the default as a user would write it; "" none */
        const char *help;
};

#define SIM_OPTION(struct_type, field, option_name, option_type, lowest, highest, word, standard, text) \
        {                                                                                               \
                .name = (option_name), .type = (option_type), .offset = offsetof(struct_type, field),   \
                .min = (lowest), .max = (highest), .argument = (word), .fallback = (standard),          \
                .help = (text)                                                                          \
        }
#define SIM_OPTION_GROUP(title)                        \
        {                                              \
                .type = SIM_OPT_GROUP, .help = (title) \
        }

struct sim_command {
        const char *name;      /* "mock" */
        const char *arguments; /* "URL" or "" */
        const char *summary;   /* one sentence */
        const char *examples;  /* printed as it is, or NULL */
        const struct sim_option *options;
        size_t option_count;
        unsigned positional_min, positional_max;
};

enum sim_parse_result {
        SIM_PARSE_OK,
        SIM_PARSE_HELP, /* --help: printed to stdout, exit 0 */
        SIM_PARSE_USAGE /* ret_message says option, value and fix; exit 2 */
};

#define SIM_POSITIONAL_MAX 8

/*
 * argv[0] is the command's name. Fills `fields` (all of the table: defaults, then the command line) and
 * up to positional_max arguments without dashes. message gets a sentence with SIM_PARSE_USAGE.
 */
KVR_MUST_USE enum sim_parse_result sim_options_parse(const struct sim_command *command, int argc, char **argv,
                                                     void *fields, const char **ret_positional,
                                                     unsigned *ret_positional_count, char *ret_message,
                                                     size_t message_size);
/* The --help page. */
void sim_options_help(const struct sim_command *command, struct sim_buf *buf);
/* As sim_options_parse, and prints what is to be printed; returns -1 to go on, else the exit status. */
KVR_MUST_USE int sim_options_main(const struct sim_command *command, int argc, char **argv, void *fields,
                                  const char **ret_positional, unsigned *ret_positional_count);
/* Complains on stderr as the parser does ("kvroute NAME: ...") and returns 2. */
KVR_MUST_USE int sim_usage_error(const struct sim_command *command, const char *format, ...) KVR_PRINTF(2, 3);

/* Value parsers; false leaves *ret alone. */
bool sim_parse_seconds(const char *text, double *ret);
bool sim_parse_size(const char *text, uint64_t *ret);
bool sim_parse_count(const char *text, uint64_t *ret);
bool sim_parse_number(const char *text, double *ret);
/* "HOST:PORT", "[V6]:PORT": copies the host, terminated. */
bool sim_parse_endpoint(const char *text, char *ret_host, size_t host_size, uint16_t *ret_port);

#endif
