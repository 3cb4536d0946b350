/* SPDX-License-Identifier: Apache-2.0 */
/* From defaults, file, environment and command line to one configuration. */
#include "config.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_int.h"

#define FLAGS_MAX    16384 /* options and arguments of one command line */
#define CODE_FIRST   1000  /* getopt_long's code of the table's first row */
#define CODE_HELP    500
#define CODE_VERSION 501

struct flag {
        const struct option_row *option;
        struct kvr_slice value;
};

struct flags {
        struct flag *items;
        size_t count;
        bool help, version;
};

static struct kvr_slice slice(const char *text)
{
        return (struct kvr_slice){text, strlen(text)};
}

/* ---- command line ----------------------------------------------------------------------------------- */

static bool add_flag(struct config_builder *b, struct flags *flags, const struct option_row *option,
                     const char *value)
{
        if (flags->count == FLAGS_MAX)
                return config_fail(b, "", "more than %d arguments; use a file (--config)", FLAGS_MAX);
        if ((flags->count & (flags->count - 1)) == 0) {
                size_t cap = flags->count ? 2 * flags->count : 1;
                struct flag *items = realloc(flags->items, cap * sizeof *items);

                if (!items)
                        return config_no_memory(b, "");
                flags->items = items;
        }
        flags->items[flags->count++] = (struct flag){option, slice(value)};
        return true;
}

static bool unknown_flag(struct config_builder *b, const char *word)
{
        struct kvr_slice name = {word + strspn(word, "-"), 0};

        name.len = strcspn(name.data, "=");
        int shown = (int)(name.data - word) + (int)(name.len < 100 ? name.len : 100);
        const char *near = options_nearest(name);
        if (near)
                return config_fail(b, "", "%.*s: no such option; did you mean --%s?", shown, word, near);
        return config_fail(b, "", "%.*s: no such option; see kvroute serve --help", shown, word);
}

/* getopt_long takes any unique beginning of a name; with the next version that may be another option's. */
static bool is_abbreviated(const char *word, const struct option_row *option)
{
        size_t len = strlen(word) > 2 ? strcspn(word + 2, "=") : 0;

        return len != strlen(option->name) || memcmp(word + 2, option->name, len) != 0;
}

/* The value of a switch as a word of its own: --hold-head off */
static bool is_switch_word(const char *word)
{
        const char *why;
        bool unused;

        return option_parse_bool(slice(word), &unused, &why);
}

/* --shadow, --shadow mirror: the next word is its value where it can be one. */
static bool take_bare_choice(struct config_builder *b, struct flags *flags, const struct option_row *option,
                             char *const *argv, int argc)
{
        unsigned unused;

        if (optind < argc && value_choice(slice(argv[optind]), option->argument, &unused))
                return add_flag(b, flags, option, argv[optind++]);
        return add_flag(b, flags, option, "on");
}

/* word: the element of argv the option stands in. */
static bool take_flag(struct config_builder *b, struct flags *flags, int code, const char *word,
                      char *const *argv, int argc)
{
        size_t count;
        const struct option_row *table = options_table(&count);

        if (code == CODE_HELP || code == CODE_VERSION) {
                flags->help |= code == CODE_HELP;
                flags->version |= code == CODE_VERSION;
                return true;
        }
        if (code == ':')
                return config_fail(b, "", "%.100s: a value is missing", word);
        if (code < CODE_FIRST || (size_t)(code - CODE_FIRST) >= count)
                return unknown_flag(b, word);
        const struct option_row *option = &table[code - CODE_FIRST];
        if (is_abbreviated(word, option))
                return unknown_flag(b, word);
        if (!option_is_bare(option) || optarg)
                return add_flag(b, flags, option, optarg);
        if (option->type == OPT_CHOICE)
                return take_bare_choice(b, flags, option, argv, argc);
        /* What is no replica's URL either was meant as a value: better refused as such. */
        if (optind < argc && argv[optind][0] != '-' &&
            (is_switch_word(argv[optind]) || !strpbrk(argv[optind], ":/")))
                return add_flag(b, flags, option, argv[optind++]);
        return add_flag(b, flags, option, "on");
}

/* getopt's table from ours, to free(). */
static struct option *long_options(void)
{
        size_t count, n = 0;
        const struct option_row *table = options_table(&count);
        struct option *into = calloc(count + 3, sizeof *into);

        if (!into)
                return NULL;
        for (size_t i = 0; i < count; i++)
                if (table[i].name)
                        into[n++] = (struct option){table[i].name,
                                                    option_is_bare(&table[i]) ? optional_argument
                                                                              : required_argument,
                                                    NULL, CODE_FIRST + (int)i};
        into[n++] = (struct option){"help", no_argument, NULL, CODE_HELP};
        into[n++] = (struct option){"version", no_argument, NULL, CODE_VERSION};
        return into;
}

/*
 * Borrows argv; values point into it. getopt_long keeps its state in globals: it gets a fresh start (optind =
 * 0), and this must be called from one thread only.
 */
static bool parse_flags(struct config_builder *b, const struct config_input *input, struct flags *flags)
{
        const struct option_row *replica = options_find(slice("replica"));
        char program[] = "kvroute", **argv = calloc((size_t)input->argc + 2, sizeof *argv);
        struct option *options = long_options();
        int argc = input->argc + 1, code, before;
        bool ok = argv && options;

        if (!ok) {
                config_no_memory(b, "");
                goto out;
        }
        argv[0] = program;
        for (int i = 0; i < input->argc; i++)
                argv[i + 1] = input->argv[i];
        optind = 0;
        opterr = 0;
        /* "-": arguments that are no options come in their place, as code 1; ":": a missing value is told
         * apart */
        while (ok) {
                before = optind > 0 ? optind : 1;
                code = getopt_long(argc, argv, "-:h", options, NULL);
                if (code == -1)
                        break;
                if (code == 1)
                        ok = add_flag(b, flags, replica, optarg);
                else
                        ok = take_flag(b, flags, code == 'h' ? CODE_HELP : code, argv[before], argv, argc);
        }
        for (int i = optind; ok && i < argc; i++)
                ok = add_flag(b, flags, replica, argv[i]);
out:
        free(options);
        free(argv);
        return ok;
}

static bool apply_flags(struct config_builder *b, const struct flags *flags)
{
        for (size_t i = 0; i < flags->count; i++) {
                char place[CONFIG_PLACE_MAX];

                snprintf(place, sizeof place, "--%s", flags->items[i].option->name);
                if (!config_set(b, flags->items[i].option, SOURCE_FLAG, flags->items[i].value, place))
                        return false;
        }
        return true;
}

/* ---- environment ------------------------------------------------------------------------------------ */

static void environment_name(const struct option_row *option, char *ret, size_t size)
{
        snprintf(ret, size, "KVROUTE_%s", option->name);
        for (char *c = ret; *c; c++)
                *c = *c == '-' ? '_' : (char)(*c >= 'a' && *c <= 'z' ? *c & ~0x20 : *c);
}

static const struct option_row *environment_option(struct kvr_slice name)
{
        size_t count;
        const struct option_row *table = options_table(&count);
        char want[96];

        for (size_t i = 0; i < count; i++) {
                if (!table[i].name)
                        continue;
                environment_name(&table[i], want, sizeof want);
                if (name.len == strlen(want) && memcmp(name.data, want, name.len) == 0)
                        return &table[i];
        }
        return NULL;
}

/* Kubernetes puts variables of its own there for a service called kvroute, so only likely slips are worth a
 * word. */
static bool warn_unknown(struct config_builder *b, struct kvr_slice name)
{
        char lower[80], near_name[96];
        size_t len = name.len - 8;

        if (len == 0 || len >= sizeof lower)
                return true;
        for (size_t i = 0; i < len; i++) {
                char c = name.data[8 + i];

                lower[i] = c == '_' ? '-' : (char)(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
        }
        const char *near = options_nearest((struct kvr_slice){lower, len});
        if (!near || (len == 3 && memcmp(lower, "bin", 3) == 0))
                return true;
        environment_name(options_find(slice(near)), near_name, sizeof near_name);
        return config_warn(b, "environment variable %.*s is no option and was ignored; did you mean %s?",
                           (int)name.len, name.data, near_name);
}

/* Values of lists are separated by white space. */
static bool set_from_environment(struct config_builder *b, const struct option_row *option, const char *name,
                                 struct kvr_slice value)
{
        if (!option_is_list(option))
                return config_set(b, option, SOURCE_ENVIRONMENT, value, name);
        while (value.len > 0) {
                size_t n = 0;

                while (n < value.len && (unsigned char)value.data[n] > ' ')
                        n++;
                if (n > 0 &&
                    !config_set(b, option, SOURCE_ENVIRONMENT, (struct kvr_slice){value.data, n}, name))
                        return false;
                n += n < value.len;
                value.data += n;
                value.len -= n;
        }
        return true;
}

static bool apply_environment(struct config_builder *b)
{
        for (char *const *entry = b->environment; entry && *entry; entry++) {
                char place[CONFIG_PLACE_MAX];
                struct kvr_slice name = {*entry, strcspn(*entry, "=")};

                if (strncmp(*entry, "KVROUTE_", 8) != 0 || (*entry)[name.len] != '=')
                        continue;
                const struct option_row *option = environment_option(name);
                if (!option) {
                        if (!warn_unknown(b, name))
                                return false;
                        continue;
                }
                environment_name(option, place, sizeof place);
                /* Set but empty is how people unset a variable in a service file. */
                struct kvr_slice value = slice(*entry + name.len + 1);
                if (value.len > 0 && !set_from_environment(b, option, place, value))
                        return false;
        }
        return true;
}

/* ---- the whole -------------------------------------------------------------------------------------- */

/* Which file: a flag's, else the environment's. NULL: none. */
static const char *file_name(const struct config_builder *b, const struct flags *flags)
{
        const struct option_row *option = options_find(slice("config"));
        const char *name = NULL;

        for (char *const *entry = b->environment; entry && *entry; entry++)
                if (strncmp(*entry, "KVROUTE_CONFIG=", 15) == 0 && (*entry)[15])
                        name = *entry + 15;
        for (size_t i = 0; i < flags->count; i++)
                if (flags->items[i].option == option)
                        name = flags->items[i].value.data;
        return name && *name ? name : NULL;
}

static bool apply_file(struct config_builder *b, const char *name)
{
        size_t len;
        char *text = config_read_file(b, name, "--config", CONFIG_FILE_BYTES_MAX, &len);
        bool ok = text && config_read_yaml(b, name, (struct kvr_slice){text, len});

        config_wipe_free(text, text ? len : 0);
        return ok;
}

void config_strings_free(struct config_strings *strings)
{
        config_free_strings(strings, false);
}

/* The mistake that ended the reading is among the others. */
static void note_last(struct config_builder *b)
{
        size_t count = b->errors ? b->errors->count : 0;

        if (b->errors && (count == 0 || strcmp(b->errors->items[count - 1], b->err->message) != 0))
                (void)!config_go_on(b);
}

enum config_result config_load(const struct config_input *input, struct router_config **ret,
                               struct config_error *err)
{
        struct config_builder b = {.environment = input->environment, .err = err, .errors = input->errors};
        struct flags flags = {0};
        enum config_result result = CONFIG_ERROR;

        if (!parse_flags(&b, input, &flags))
                goto out;
        if (flags.help || flags.version) {
                result = flags.help ? CONFIG_HELP : CONFIG_VERSION;
                goto out;
        }
        if (!config_builder_init(&b))
                goto out;
        const char *file = file_name(&b, &flags);
        if (file && !apply_file(&b, file) && !config_go_on(&b))
                goto out;
        if (!apply_environment(&b) || !apply_flags(&b, &flags) || !config_check_whole(&b) ||
            (b.errors && b.errors->count))
                goto out;
        if (input->replicas_required && b.config->replicas.count == 0) {
                config_fail(&b, "",
                            "no replica: give at least one URL, as kvroute serve http://127.0.0.1:8000");
                goto out;
        }
        *ret = b.config;
        b.config = NULL;
        result = CONFIG_OK;
out:
        if (result == CONFIG_ERROR)
                note_last(&b);
        config_free(b.config);
        free(flags.items);
        return result;
}

enum config_result config_parse_yaml(const char *name, struct kvr_slice text, struct router_config **ret,
                                     struct config_error *err)
{
        struct config_builder b = {.err = err};

        if (!config_builder_init(&b) || !config_read_yaml(&b, name, text) || !config_check_whole(&b)) {
                config_free(b.config);
                return CONFIG_ERROR;
        }
        *ret = b.config;
        return CONFIG_OK;
}
