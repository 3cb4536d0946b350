/* SPDX-License-Identifier: Apache-2.0 */
/* Between the config_*.c files only. */
#ifndef KVROUTE_CONFIG_INT_H
#define KVROUTE_CONFIG_INT_H

#include "config.h"

#define CONFIG_OPTIONS_MAX 96
#define CONFIG_PLACE_MAX   512

/* Later ones win. A list given by a later source replaces the whole list of an earlier one. */
enum config_source {
        SOURCE_DEFAULT,
        SOURCE_FILE,
        SOURCE_ENVIRONMENT,
        SOURCE_FLAG,
};

/* A configuration in the making. */
struct config_builder {
        struct router_config *config;
        char *const *environment; /* for env: values; may be NULL */
        struct config_error *err;
        struct config_strings *errors;      /* NULL, or where mistakes are gathered */
        uint8_t source[CONFIG_OPTIONS_MAX]; /* of each row of the table: who set it */
        char place[CONFIG_OPTIONS_MAX]
                  [CONFIG_PLACE_MAX]; /* and where, for checks that come when all is read */
};

/* Fills the error and returns false. place: "--max-body", "kvroute.yaml:3:5". */
bool config_fail(struct config_builder *b, const char *place, const char *format, ...) KVR_PRINTF(3, 4);

/*
 * Something failed, and the error is filled. True: it was put to the others, and reading may go on.
 */
KVR_MUST_USE bool config_go_on(struct config_builder *b);

/* Where an option was set ("--policy", "kvroute.yaml:3:5"), its name if it has its default. */
const char *config_place(const struct config_builder *b, const char *name);

/* Gives the options their defaults. False: out of memory. */
KVR_MUST_USE bool config_builder_init(struct config_builder *b);

/* The row's number in the table. */
size_t config_row(const struct option_row *option);

/*
 * Sets one value, or adds it to a list. Values of a lower source than the one that has set it are checked and
 * dropped: so a file is checked whole even where flags win.
 */
KVR_MUST_USE bool config_set(struct config_builder *b, const struct option_row *option,
                             enum config_source source, struct kvr_slice value, const char *place);
/* Takes the spec (its contents are the list's or freed). */
KVR_MUST_USE bool config_add_replica(struct config_builder *b, enum config_source source,
                                     struct replica_spec *spec, const char *place);
/* To a list of pairs (OPT_ALIASES). */
KVR_MUST_USE bool config_add_alias(struct config_builder *b, const struct option_row *option,
                                   enum config_source source, struct kvr_slice name, struct kvr_slice target,
                                   const char *place);
/* Empties a list that an earlier source has filled; call before the first value of a source, also of an empty
 * list. */
void config_begin_list(struct config_builder *b, const struct option_row *option, enum config_source source);
/* A list the current source must not touch, because a later one has set it. */
bool config_is_overridden(const struct config_builder *b, const struct option_row *option,
                          enum config_source source);

/* Terminated copy to free(); NULL: the error is filled. */
KVR_MUST_USE char *config_copy_text(struct config_builder *b, struct kvr_slice value, const char *place);
/* Takes text (NULL: fails). */
KVR_MUST_USE bool config_add_string(struct config_builder *b, struct config_strings *list, char *text,
                                    const char *place);
void config_free_strings(struct config_strings *list, bool secret);
/* What a field owns; the field is empty afterwards. */
void config_free_field(struct router_config *config, const struct option_row *option);
/* Overwrites len bytes and frees; NULL is fine. */
void config_wipe_free(char *text, size_t len);
bool config_no_memory(struct config_builder *b, const char *place);
KVR_MUST_USE bool config_parse_endpoint(struct config_builder *b, const struct option_row *option,
                                        struct kvr_slice value, const char *place,
                                        struct config_endpoint *ret);
/* One or, from a file, several secrets. */
KVR_MUST_USE bool config_add_secrets(struct config_builder *b, struct config_strings *list,
                                     struct kvr_slice value, const char *place);
/* The list part of config_set. */
KVR_MUST_USE bool config_add_to_list(struct config_builder *b, const struct option_row *option,
                                     enum config_source source, struct kvr_slice value, const char *place);
/* value, env:NAME or file:PATH (first line) as plain text to free(); NULL: the error is filled. */
KVR_MUST_USE char *config_secret(struct config_builder *b, struct kvr_slice value, const char *place);

KVR_MUST_USE bool config_warn(struct config_builder *b, const char *format, ...) KVR_PRINTF(2, 3);

/* The YAML file over what is there. */
KVR_MUST_USE bool config_read_yaml(struct config_builder *b, const char *name, struct kvr_slice text);
/* A whole file, at most max bytes: terminated text to free(). NULL: the error is filled. */
KVR_MUST_USE char *config_read_file(struct config_builder *b, const char *path, const char *place, size_t max,
                                    size_t *ret_len);

/* What only the whole can tell: names that exist, values that exclude each other. */
KVR_MUST_USE bool config_check_whole(struct config_builder *b);

#endif
