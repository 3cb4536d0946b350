/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of options.def as data, and the parsers of its value types. No I/O, no global state; any thread.
 */
#ifndef KVROUTE_OPTIONS_H
#define KVROUTE_OPTIONS_H

#include "proto/value.h"

enum option_type {
        OPT_BOOL,   /* on, off, true, false, yes, no, 1, 0 */
        OPT_COUNT,  /* whole number */
        OPT_NUMBER, /* decimal number */
        OPT_MILLIS, /* 1500ms, 10s, 5m, 1h; 0 */
        OPT_BYTES,  /* 65536, 64KiB, 1MiB, 2GiB */
        OPT_STRING,
        OPT_CHOICE,    /* one of the words of `argument`, stored as its number from 0 */
        OPT_SECRET,    /* the value itself, env:NAME, or file:PATH; never shown */
        OPT_ENDPOINT,  /* host:port, [v6]:port, :port */
        OPT_ENDPOINTS, /* lists, repeatable: */
        OPT_STRINGS,
        OPT_SECRETS, /* file: one per line */
        OPT_REPLICAS,
        OPT_ALIASES,
};

enum option_flags {
        O_OFF = 1,     /* `off` is allowed: 0 */
        O_AUTO = 2,    /* the default is a word that stands for 0: found out at start */
        O_RESTART = 4, /* a reload cannot change it */
        O_NOFILE = 8,  /* not a key of the YAML file */
        O_BARE = 16,   /* a CHOICE that without a value is `on` */
};

struct option_row {
        const char *name; /* "max-body"; NULL in a row that starts a group */
        enum option_type type;
        unsigned flags;
        double min, max;
        const char *fallback; /* the default, as a user writes it */
        const char *argument;
        const char *help; /* of a group row: its title */
        size_t offset;    /* of the field in struct router_config */
};

/* All rows in order, group rows included. */
const struct option_row *options_table(size_t *ret_count);
/* By name ("max-body"), NULL if there is none. */
const struct option_row *options_find(struct kvr_slice name);
bool option_is_list(const struct option_row *option);
/* Whether it may stand on the command line without a value, which is `on` then. */
bool option_is_bare(const struct option_row *option);
/* The option name nearest to a misspelt one, NULL if none is near. */
const char *options_nearest(struct kvr_slice name);
/* The same over any list of words. */
const char *words_nearest(struct kvr_slice word, const char *const *words, size_t count);

/*
 * Value parsers: false leaves *ret untouched and *ret_why at a constant text that says what is allowed
 * ("a time like 500ms, 10s, 5m or 1h").
 */
bool option_parse_bool(struct kvr_slice text, bool *ret, const char **ret_why);
bool option_parse_count(struct kvr_slice text, uint64_t *ret, const char **ret_why);
bool option_parse_number(struct kvr_slice text, double *ret, const char **ret_why);
bool option_parse_millis(struct kvr_slice text, uint64_t *ret, const char **ret_why);
bool option_parse_bytes(struct kvr_slice text, uint64_t *ret, const char **ret_why);

/* "5m", "1500ms", "64MiB": the shortest exact form. Always terminated. */
void option_format_millis(uint64_t ms, char *ret, size_t size);
void option_format_bytes(uint64_t bytes, char *ret, size_t size);

#endif
