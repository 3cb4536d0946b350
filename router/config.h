/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The settings in force: flags over environment (KVROUTE_NAME) over YAML file over defaults, checked as a
 * whole. Built at start and again on SIGHUP; immutable afterwards, so any thread may read it while somebody
 * holds it.
 */
#ifndef KVROUTE_CONFIG_H
#define KVROUTE_CONFIG_H

#include <kvroute/prompt.h>

#include "options.h"
#include "replica_spec.h"

#define CONFIG_FILE_BYTES_MAX (4 * 1024 * 1024)
#define CONFIG_WORKLOADS_MAX  256
#define CONFIG_ERROR_MAX      1024

/* Words of the option `shadow`. */
enum config_shadow { CONFIG_SHADOW_OFF, CONFIG_SHADOW_ON, CONFIG_SHADOW_MIRROR };
#define CONFIG_SHADOW_INDEX_MIN (2 * 1024 * 1024) /* of index-memory, for two of them */

struct config_endpoint {
        char host[REPLICA_HOST_MAX]; /* without brackets; "" is every address */
        uint16_t port;
        bool off;
};
struct config_endpoints {
        struct config_endpoint *items;
        size_t count;
};
struct config_strings {
        char **items;
        size_t count;
};
struct config_alias {
        char *name, *target;
};
struct config_aliases {
        struct config_alias *items;
        size_t count;
};
struct config_replicas {
        struct replica_spec *items;
        size_t count;
};

/* A rule that names a workload: every condition that is given must hold; the first rule that fits wins. */
struct config_workload {
        char *name;
        char *path;         /* equal, or with a * at the end: beginning; NULL: any */
        char *header_name;  /* lower case; NULL: any */
        char *header_value; /* equal; NULL: present */
        char *model;        /* equal, or with a * at the end: beginning; NULL: any */
        char *api_key;      /* equal; NULL: any */
};

#define CONFIG_FAMILIES_MAX 128 /* names of families, a limit in options.def */

/* Fields of options.def, by type. */
#define CONFIG_FIELD_BOOL      bool
#define CONFIG_FIELD_COUNT     uint64_t
#define CONFIG_FIELD_NUMBER    double
#define CONFIG_FIELD_MILLIS    uint64_t
#define CONFIG_FIELD_BYTES     uint64_t
#define CONFIG_FIELD_STRING    char *
#define CONFIG_FIELD_CHOICE    unsigned
#define CONFIG_FIELD_SECRET    char *
#define CONFIG_FIELD_ENDPOINT  struct config_endpoint
#define CONFIG_FIELD_ENDPOINTS struct config_endpoints
#define CONFIG_FIELD_STRINGS   struct config_strings
#define CONFIG_FIELD_SECRETS   struct config_strings
#define CONFIG_FIELD_REPLICAS  struct config_replicas
#define CONFIG_FIELD_ALIASES   struct config_aliases

/*
 * 0 in a MILLIS field with `off` allowed means off. Strings are never NULL ("" when empty).
 * Few exist per process: the order of the table is worth more than the bytes between its fields.
 */
/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding) */
struct router_config {
#define GROUP(title)
#define OPTION(field, name, type, min, max, fallback, flags, argument, help) CONFIG_FIELD_##type field;
#include "options.def"
#undef OPTION
#undef GROUP
        /* not options, or made from them */
        struct config_workload *workloads; /* of the file */
        size_t workload_count;
        struct kvr_ignore *ignore_set; /* of the patterns in ignore; NULL: none */
        bool seed_given;
        uint64_t seed_value;            /* valid with seed_given; else draw one */
        struct config_strings warnings; /* for the log: say each once at start and reload */
};

enum config_result {
        CONFIG_OK,
        CONFIG_HELP,    /* --help was asked: print it and end with 0 */
        CONFIG_VERSION, /* --version */
        CONFIG_ERROR,   /* *err says why: end with 2 */
};

struct config_error {
        char message[CONFIG_ERROR_MAX]; /* "kvroute.yaml:3:5: ...", "--listen: ...": option or place, value
                                           and fix */
};

struct config_input {
        int argc; /* arguments behind `serve`; not changed */
        char *const *argv;
        char *const *environment; /* "NAME=value", NULL ends; NULL: none */
        bool replicas_required;   /* refuse a configuration without any */
        /*
         * NULL: reading ends with the first mistake. Else it goes on where it can, and all mistakes are here,
         * at least one after CONFIG_ERROR; the caller frees with config_strings_free.
         */
        struct config_strings *errors;
};
void config_strings_free(struct config_strings *strings);

/*
 * Reads everything. CONFIG_OK: gives *ret, to free with config_free. Main thread only (getopt_long); reads
 * files.
 */
KVR_MUST_USE enum config_result config_load(const struct config_input *input, struct router_config **ret,
                                            struct config_error *err);
void config_free(struct router_config *config); /* NULL is fine; wipes secrets */

/*
 * The YAML part alone: text over defaults, named `name` in errors. For `kvroute check`, tests and the fuzzer.
 * Opens only what file: values name.
 */
KVR_MUST_USE enum config_result config_parse_yaml(const char *name, struct kvr_slice text,
                                                  struct router_config **ret, struct config_error *err);

/* Compares in a time that does not tell where they differ. */
bool config_same_secret(struct kvr_slice given, const char *secret);

/* The model that a name stands for: an alias' target, else the name itself. Cost: the number of aliases. */
struct kvr_slice config_alias_target(const struct router_config *config, struct kvr_slice model);

/*
 * What a reload cannot change: names of options that differ between the two and need a restart, separated by
 * ", ". Empty if there are none. Always terminated.
 */
void config_restart_needed(const struct router_config *before, const struct router_config *after, char *ret,
                           size_t size);

/* The credentials policy that holds for a replica: never AUTO. */
enum replica_auth config_replica_auth(const struct router_config *config, const struct replica_spec *replica);
/* The key to send with REPLICA_AUTH_REPLACE, and with health checks and polls; NULL: none. */
const char *config_replica_key(const struct router_config *config, const struct replica_spec *replica);

/*
 * The name of the workload a request belongs to, NULL: none of the rules fits. header(ctx, name) gives a
 * request header's value (data NULL: absent).
 */
const char *config_workload(const struct router_config *config, struct kvr_slice path, struct kvr_slice model,
                            struct kvr_slice api_key, struct kvr_slice (*header)(void *ctx, const char *name),
                            void *ctx);

/* The name that the operator gave the family of the ledger that is called so there; NULL: none. */
const char *config_family(const struct router_config *config, const char *id);

/* Whether some rule has this name. */
bool config_has_workload(const struct router_config *config, struct kvr_slice name);

/* GET /kvroute/config: settings as one JSON object, secrets as "***". Gives text to free(); NULL: out of
 * memory. */
char *config_to_json(const struct router_config *config);

/* `kvroute check FILE`: argv without the program's name and the command. Returns the exit status. */
int config_check_main(int argc, char *const *argv);

#endif
