/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The YAML file: a map of options, `replicas` and `workloads`. Read event by event, so that every complaint
 * has a line and a column; what is not understood is refused at the spot, so nothing deep is ever walked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "config_int.h"

#define SHOW(slice) (int)((slice).len < 200 ? (slice).len : 200), (slice).data

struct reader {
        struct config_builder *b;
        yaml_parser_t parser;
        yaml_event_t event; /* the one to look at */
        bool have_event;
        const char *name;
        bool broken;        /* not YAML: nothing can be read behind this */
        unsigned depth;     /* lists and maps around the event */
        unsigned top_nodes; /* of the map of options, the event included: keys have odd numbers */
        bool seen[CONFIG_OPTIONS_MAX];
        bool workloads_seen;
};

/* A scalar, copied out of its event. */
struct scalar {
        char *text;
        size_t len;
        bool plain; /* written without quotes */
        yaml_mark_t at;
};

static bool fail_at(struct reader *r, yaml_mark_t at, const char *message)
{
        char place[CONFIG_PLACE_MAX];

        snprintf(place, sizeof place, "%.400s:%zu:%zu", r->name, at.line + 1, at.column + 1);
        config_fail(r->b, place, "%s", message);
        return false;
}

/* "file:3:5: max-body", as the place of complaints about a value. */
static void place_of(const struct reader *r, yaml_mark_t at, const char *key, char *ret, size_t size)
{
        snprintf(ret, size, "%.300s:%zu:%zu: %.100s", r->name, at.line + 1, at.column + 1, key);
}

static bool opens(yaml_event_type_t type)
{
        return type == YAML_MAPPING_START_EVENT || type == YAML_SEQUENCE_START_EVENT;
}

static bool next(struct reader *r)
{
        if (r->have_event) {
                r->depth += opens(r->event.type);
                yaml_event_delete(&r->event);
        }
        r->have_event = false;
        if (!yaml_parser_parse(&r->parser, &r->event)) {
                yaml_mark_t at = r->parser.problem_mark;
                char message[300];

                snprintf(message, sizeof message, "not YAML: %s",
                         r->parser.problem ? r->parser.problem : "out of memory");
                r->broken = true;
                return fail_at(r, at, message);
        }
        r->have_event = true;
        if (r->event.type == YAML_MAPPING_END_EVENT || r->event.type == YAML_SEQUENCE_END_EVENT)
                r->depth--;
        else if (r->depth == 1)
                r->top_nodes++;
        if (r->event.type == YAML_ALIAS_EVENT)
                return fail_at(r, r->event.start_mark,
                               "aliases (*name) are not supported; write the value again");
        return true;
}

static bool take_scalar(struct reader *r, const char *what, struct scalar *ret)
{
        char message[200];

        if (r->event.type != YAML_SCALAR_EVENT) {
                snprintf(message, sizeof message, "%.100s must be a single value, not a %s", what,
                         r->event.type == YAML_SEQUENCE_START_EVENT ? "list" : "map");
                return fail_at(r, r->event.start_mark, message);
        }
        ret->len = r->event.data.scalar.length;
        ret->plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        ret->at = r->event.start_mark;
        ret->text = malloc(ret->len + 1);
        if (!ret->text)
                return fail_at(r, ret->at, "out of memory");
        memcpy(ret->text, r->event.data.scalar.value, ret->len);
        ret->text[ret->len] = 0;
        if (!next(r)) {
                config_wipe_free(ret->text, ret->len);
                ret->text = NULL;
                return false;
        }
        return true;
}

static void drop(struct scalar *s)
{
        config_wipe_free(s->text, s->text ? s->len : 0);
        s->text = NULL;
}

static struct kvr_slice slice_of(const struct scalar *s)
{
        return (struct kvr_slice){s->text, s->len};
}

static bool is_null(const struct scalar *s)
{
        return s->plain && (s->len == 0 || strcmp(s->text, "~") == 0 || strcmp(s->text, "null") == 0);
}

/* A key: a scalar, not seen before in this map. */
static bool take_key(struct reader *r, struct scalar *ret)
{
        return take_scalar(r, "a key", ret);
}

static bool twice(struct reader *r, const struct scalar *key)
{
        char message[200];

        snprintf(message, sizeof message, "\"%.100s\" is there twice; keep one", key->text);
        return fail_at(r, key->at, message);
}

static bool take_value(struct reader *r, const char *what, struct scalar *ret)
{
        char message[200];

        if (!take_scalar(r, what, ret))
                return false;
        if (!is_null(ret))
                return true;
        snprintf(message, sizeof message, "%.100s has no value; write one or leave the key out", what);
        fail_at(r, ret->at, message);
        drop(ret);
        return false;
}

static bool expect(struct reader *r, yaml_event_type_t type, const char *message)
{
        if (r->event.type != type)
                return fail_at(r, r->event.start_mark, message);
        return next(r);
}

/* ---- replicas --------------------------------------------------------------------------------------- */

static bool set_models(struct reader *r, struct replica_spec *spec)
{
        char why[400];
        struct scalar value;

        while (r->event.type != YAML_SEQUENCE_END_EVENT) {
                if (!take_value(r, "models", &value))
                        return false;
                bool ok = replica_spec_add_model(spec, slice_of(&value), why, sizeof why) ||
                          fail_at(r, value.at, why);
                drop(&value);
                if (!ok)
                        return false;
        }
        return next(r);
}

static bool set_replica_key(struct reader *r, struct replica_spec *spec, const struct scalar *key)
{
        struct scalar value;
        char why[400];

        if (strcmp(key->text, "models") == 0 && r->event.type == YAML_SEQUENCE_START_EVENT)
                return next(r) && set_models(r, spec);
        if (!take_value(r, key->text, &value))
                return false;
        bool ok = replica_spec_set(spec, slice_of(key), slice_of(&value), why, sizeof why);
        if (!ok) {
                /* a wrong key is to be pointed at, else the value */
                bool known = strcmp(key->text, "url") == 0;
                size_t count;
                const struct replica_key *keys = replica_keys(&count);

                for (size_t i = 0; i < count; i++)
                        known |= strcmp(key->text, keys[i].name) == 0;
                fail_at(r, known ? value.at : key->at, why);
        }
        drop(&value);
        return ok;
}

/* Which of the known keys it is, to find doubles; -1 for others (which are refused anyway). */
static int replica_key_number(const char *key)
{
        size_t count;
        const struct replica_key *keys = replica_keys(&count);

        for (size_t i = 0; i < count; i++)
                if (strcmp(key, keys[i].name) == 0)
                        return (int)i;
        return strcmp(key, "url") == 0 ? (int)count : -1;
}

static bool read_replica_map(struct reader *r, struct replica_spec *spec)
{
        yaml_mark_t at = r->event.start_mark;
        uint64_t seen = 0;
        char why[400];
        struct scalar key;

        if (!next(r))
                return false;
        while (r->event.type != YAML_MAPPING_END_EVENT) {
                if (!take_key(r, &key))
                        return false;
                int number = replica_key_number(key.text);
                bool ok = number < 0 || !(seen & 1ull << number) || twice(r, &key);

                if (number >= 0)
                        seen |= 1ull << number;
                ok = ok && set_replica_key(r, spec, &key);
                drop(&key);
                if (!ok)
                        return false;
        }
        if (!next(r))
                return false;
        return replica_spec_finish(spec, why, sizeof why) || fail_at(r, at, why);
}

static bool read_replica(struct reader *r)
{
        struct replica_spec spec;
        struct scalar value;
        char place[CONFIG_PLACE_MAX], why[400];
        yaml_mark_t at = r->event.start_mark;
        bool ok;

        place_of(r, at, "replicas", place, sizeof place);
        replica_spec_init(&spec);
        if (r->event.type == YAML_MAPPING_START_EVENT) {
                ok = read_replica_map(r, &spec);
        } else if (take_value(r, "a replica", &value)) {
                ok = replica_spec_parse(&spec, slice_of(&value), why, sizeof why) ||
                     fail_at(r, value.at, why);
                drop(&value);
        } else {
                ok = false;
        }
        if (ok)
                return config_add_replica(r->b, SOURCE_FILE, &spec, place);
        replica_spec_fini(&spec);
        return false;
}

/* ---- workloads -------------------------------------------------------------------------------------- */

static bool read_header_rule(struct reader *r, struct config_workload *w)
{
        struct scalar name, value;

        if (r->event.type != YAML_MAPPING_START_EVENT)
                return fail_at(r, r->event.start_mark,
                               "header must be a map of one name to its value, as { x-team: search }");
        if (!next(r))
                return false;
        if (!take_key(r, &name))
                return false;
        for (size_t i = 0; i < name.len; i++)
                if (name.text[i] >= 'A' && name.text[i] <= 'Z')
                        name.text[i] = (char)(name.text[i] | 0x20);
        w->header_name = name.text;
        if (name.len == 0 || strlen(name.text) != name.len)
                return fail_at(r, name.at, "a header's name is missing");
        if (!take_scalar(r, "header", &value))
                return false;
        if (is_null(&value))
                drop(&value); /* any value */
        w->header_value = value.text;
        return expect(r, YAML_MAPPING_END_EVENT, "a rule takes one header only; write several rules");
}

static bool set_workload_text(struct reader *r, const struct scalar *key, char **into)
{
        struct scalar value;

        if (*into)
                return twice(r, key);
        if (!take_value(r, key->text, &value))
                return false;
        *into = value.text;
        if (value.len == 0 || strlen(value.text) != value.len)
                return fail_at(r, value.at, "the value is empty or holds a zero byte");
        return true;
}

static bool set_workload_secret(struct reader *r, const struct scalar *key, char **into)
{
        char place[CONFIG_PLACE_MAX];
        struct scalar value;

        if (*into)
                return twice(r, key);
        if (!take_value(r, key->text, &value))
                return false;
        place_of(r, value.at, key->text, place, sizeof place);
        *into = config_secret(r->b, slice_of(&value), place);
        drop(&value);
        return *into != NULL;
}

static bool set_workload_key(struct reader *r, struct config_workload *w, const struct scalar *key)
{
        static const char *const words[] = {"name", "path", "header", "model", "api-key"};
        char message[200];

        if (strcmp(key->text, "name") == 0)
                return set_workload_text(r, key, &w->name);
        if (strcmp(key->text, "path") == 0)
                return set_workload_text(r, key, &w->path);
        if (strcmp(key->text, "model") == 0)
                return set_workload_text(r, key, &w->model);
        if (strcmp(key->text, "api-key") == 0)
                return set_workload_secret(r, key, &w->api_key);
        if (strcmp(key->text, "header") == 0)
                return w->header_name ? twice(r, key) : read_header_rule(r, w);
        const char *near = words_nearest(slice_of(key), words, sizeof words / sizeof *words);
        snprintf(message, sizeof message, "\"%.100s\" is not a workload's key%s%s%s", key->text,
                 near ? "; did you mean " : "; write name, path, header, model or api-key", near ? near : "",
                 near ? "?" : "");
        return fail_at(r, key->at, message);
}

static bool read_workload(struct reader *r)
{
        struct router_config *config = r->b->config;
        yaml_mark_t at = r->event.start_mark;
        struct scalar key;

        if (r->event.type != YAML_MAPPING_START_EVENT)
                return fail_at(r, at, "a workload must be a map, as { name: agents, path: /v1/messages }");
        if (config->workload_count == CONFIG_WORKLOADS_MAX)
                return fail_at(r, at, "more workloads than the limit of 256");
        struct config_workload *w = &config->workloads[config->workload_count++];
        if (!next(r))
                return false;
        while (r->event.type != YAML_MAPPING_END_EVENT) {
                if (!take_key(r, &key))
                        return false;
                bool ok = set_workload_key(r, w, &key);

                drop(&key);
                if (!ok)
                        return false;
        }
        if (!w->name || strlen(w->name) >= KVR_NAME_MAX)
                return fail_at(r, at, "a workload needs a name of at most 127 bytes");
        if (!w->path && !w->header_name && !w->model && !w->api_key)
                return fail_at(r, at, "a workload needs a rule: path, header, model or api-key");
        return next(r);
}

/* ---- the map of options ----------------------------------------------------------------------------- */

static bool read_list(struct reader *r, bool (*read_one)(struct reader *r), const char *message)
{
        if (r->event.type != YAML_SEQUENCE_START_EVENT)
                return fail_at(r, r->event.start_mark, message);
        if (!next(r))
                return false;
        while (r->event.type != YAML_SEQUENCE_END_EVENT)
                if (!read_one(r))
                        return false;
        return next(r);
}

static bool read_workloads(struct reader *r)
{
        r->b->config->workloads = calloc(CONFIG_WORKLOADS_MAX, sizeof *r->b->config->workloads);
        if (!r->b->config->workloads)
                return fail_at(r, r->event.start_mark, "out of memory");
        return read_list(r, read_workload, "workloads must be a list of maps");
}

static bool read_one_value(struct reader *r, const struct option_row *option)
{
        char place[CONFIG_PLACE_MAX];
        struct scalar value;

        if (!take_value(r, option->name, &value))
                return false;
        place_of(r, value.at, option->name, place, sizeof place);
        bool ok = config_set(r->b, option, SOURCE_FILE, slice_of(&value), place);
        drop(&value);
        return ok;
}

/* NAME: TARGET pairs */
static bool read_alias_map(struct reader *r, const struct option_row *option)
{
        char place[CONFIG_PLACE_MAX];
        struct scalar name, target;

        if (!next(r))
                return false;
        while (r->event.type != YAML_MAPPING_END_EVENT) {
                if (!take_key(r, &name))
                        return false;
                bool ok = take_value(r, name.text, &target);

                if (ok) {
                        place_of(r, name.at, option->name, place, sizeof place);
                        ok = config_add_alias(r->b, option, SOURCE_FILE, slice_of(&name), slice_of(&target),
                                              place);
                        drop(&target);
                }
                drop(&name);
                if (!ok)
                        return false;
        }
        return next(r);
}

static bool read_option(struct reader *r, const struct option_row *option)
{
        if (!option_is_list(option))
                return read_one_value(r, option);
        config_begin_list(r->b, option, SOURCE_FILE);
        if (option->type == OPT_ALIASES && r->event.type == YAML_MAPPING_START_EVENT)
                return read_alias_map(r, option);
        if (r->event.type != YAML_SEQUENCE_START_EVENT)
                return option->type == OPT_REPLICAS ? read_replica(r) : read_one_value(r, option);
        if (!next(r))
                return false;
        while (r->event.type != YAML_SEQUENCE_END_EVENT)
                if (!(option->type == OPT_REPLICAS ? read_replica(r) : read_one_value(r, option)))
                        return false;
        return next(r);
}

static bool unknown_key(struct reader *r, const struct scalar *key)
{
        static const char *const more[] = {"replicas", "workloads", "families"};
        const char *near = options_nearest(slice_of(key));
        char message[256];

        if (!near)
                near = words_nearest(slice_of(key), more, sizeof more / sizeof *more);
        if (near)
                snprintf(message, sizeof message, "\"%.100s\" is no option; did you mean %s?", key->text,
                         near);
        else
                snprintf(message, sizeof message, "\"%.100s\" is no option; see kvroute serve --help",
                         key->text);
        return fail_at(r, key->at, message);
}

/* Lists of things may be written in the plural. */
static const struct option_row *find_option(const struct scalar *key)
{
        static const struct {
                const char *plural, *name;
        } plurals[] = {{"replicas", "replica"}, {"families", "family"}};

        for (size_t i = 0; i < sizeof plurals / sizeof *plurals; i++)
                if (strcmp(key->text, plurals[i].plural) == 0)
                        return options_find((struct kvr_slice){plurals[i].name, strlen(plurals[i].name)});
        return options_find(slice_of(key));
}

static bool read_entry(struct reader *r, const struct scalar *key)
{
        if (strcmp(key->text, "workloads") == 0) {
                if (r->workloads_seen)
                        return twice(r, key);
                r->workloads_seen = true;
                return read_workloads(r);
        }
        const struct option_row *option = find_option(key);

        if (!option || strlen(key->text) != key->len)
                return unknown_key(r, key);
        if (option->flags & O_NOFILE)
                return fail_at(r, key->at, "this option cannot be set in the file; give it as a flag");
        if (r->seen[config_row(option)])
                return twice(r, key);
        r->seen[config_row(option)] = true;
        return read_option(r, option);
}

/*
 * An option was wrong, somewhere inside: on to the key behind it, or to the end of the map. Other mistakes met
 * on the way (aliases) are those of the same option.
 */
static bool skip_entry(struct reader *r)
{
        if (r->broken || !config_go_on(r->b))
                return false;
        while (!r->broken) {
                bool end =
                        r->event.type == YAML_MAPPING_END_EVENT || r->event.type == YAML_SEQUENCE_END_EVENT;

                if (r->depth == 0 || (r->depth == 1 && !end && r->top_nodes % 2 == 1))
                        return true;
                (void)!next(r);
        }
        return false;
}

static bool read_document(struct reader *r)
{
        struct scalar key;

        /* an empty file, or one of comments only */
        if (r->event.type == YAML_STREAM_END_EVENT)
                return true;
        if (!expect(r, YAML_DOCUMENT_START_EVENT, "not a YAML document"))
                return false;
        if (r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.length == 0) {
                if (!next(r))
                        return false;
        } else {
                if (!expect(r, YAML_MAPPING_START_EVENT,
                            "the file must be a map of options, as `listen: 127.0.0.1:8080`"))
                        return false;
                while (r->event.type != YAML_MAPPING_END_EVENT) {
                        bool ok = take_key(r, &key);

                        if (ok) {
                                ok = read_entry(r, &key);
                                drop(&key);
                        }
                        if (!ok && !skip_entry(r))
                                return false;
                }
                if (!next(r))
                        return false;
        }
        if (!expect(r, YAML_DOCUMENT_END_EVENT, "something follows the map of options"))
                return false;
        if (r->event.type != YAML_STREAM_END_EVENT)
                return fail_at(r, r->event.start_mark, "a second document follows; the file must hold one");
        return true;
}

bool config_read_yaml(struct config_builder *b, const char *name, struct kvr_slice text)
{
        struct reader r = {.b = b, .name = name};

        if (!yaml_parser_initialize(&r.parser))
                return config_fail(b, name, "out of memory");
        yaml_parser_set_input_string(&r.parser, (const unsigned char *)text.data, text.len);
        yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
        bool ok = next(&r);
        if (ok)
                ok = expect(&r, YAML_STREAM_START_EVENT, "not YAML") && read_document(&r);
        if (r.have_event)
                yaml_event_delete(&r.event);
        yaml_parser_delete(&r.parser);
        return ok;
}
