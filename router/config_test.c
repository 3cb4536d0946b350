/* SPDX-License-Identifier: Apache-2.0 */
#include "config_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <yyjson.h>

struct args {
        const char *argv[16];
        const char *environment[8];
};

static enum config_result load(const struct args *args, struct router_config **ret, struct config_error *err)
{
        struct config_input input = {0};

        while (args->argv[input.argc])
                input.argc++;
        input.argv = (char *const *)(uintptr_t)args->argv;
        input.environment = (char *const *)(uintptr_t)args->environment;
        return config_load(&input, ret, err);
}

#define LOAD(...)          must_load(&(struct args){__VA_ARGS__})
#define REFUSED(text, ...) must_refuse(text, &(struct args){__VA_ARGS__})

static struct router_config *must_load(const struct args *args)
{
        struct router_config *config = NULL;
        struct config_error err = {"?"};

        if (load(args, &config, &err) != CONFIG_OK)
                fail_msg("%s", err.message);
        return config;
}

static void must_refuse(const char *text, const struct args *args)
{
        struct router_config *config = NULL;
        struct config_error err = {"?"};

        assert_int_equal(load(args, &config, &err), CONFIG_ERROR);
        assert_null(config);
        if (strncmp(err.message, text, strlen(text)) != 0)
                fail_msg("\"%s\" does not begin with \"%s\"", err.message, text);
}

static void test_defaults(void **state)
{
        (void)state;
        struct router_config *c = LOAD(.argv = {NULL});

        assert_int_equal(c->listen.count, 1);
        assert_string_equal(c->listen.items[0].host, "127.0.0.1");
        assert_int_equal(c->listen.items[0].port, 8080);
        assert_int_equal(c->admin.port, 8081);
        assert_string_equal(c->policy, "kv");
        assert_int_equal(c->threads, 0);
        assert_int_equal(c->index_memory_bytes, 512 << 20);
        assert_int_equal(c->max_body_bytes, 64 << 20);
        assert_int_equal(c->head_timeout_ms, 10000);
        assert_int_equal(c->connect_timeout_ms, 2000);
        assert_int_equal(c->first_byte_timeout_ms, 0);
        assert_int_equal(c->idle_timeout_ms, 300000);
        assert_int_equal(c->drain_timeout_ms, 30000);
        assert_int_equal(c->health_interval_ms, 2000);
        assert_int_equal(c->metrics_interval_ms, 1000);
        assert_int_equal(c->session_headers.count, 1);
        assert_string_equal(c->session_headers.items[0], "x-session-id");
        assert_string_equal(c->access_log, "off");
        assert_int_equal(c->log_level, 2);
        assert_true(c->hold_head && !c->inject_usage && !c->allow_engine_admin);
        assert_false(c->seed_given);
        assert_int_equal(c->replicas.count, 0);
        assert_int_equal(c->shutdown_delay_ms, 0);
        assert_int_equal(c->resolve_interval_ms, 10000);
        assert_int_equal(c->warnings.count, 1);
        assert_non_null(strstr(c->warnings.items[0], "no replica is configured"));
        config_free(c);
        c = LOAD(.argv = {"http://a:1"});
        assert_int_equal(c->warnings.count, 0);
        config_free(c);
        config_free(NULL);
}

static void test_flags(void **state)
{
        (void)state;
        struct router_config *c =
                LOAD(.argv = {"http://a:1", "--listen", "0.0.0.0:0", "--listen=[::1]:9", "--policy",
                              "round_robin", "--hold-head", "off", "--inject-usage", "--heartbeat=15s",
                              "--replica", "http://b:2,name=b", "--seed=00ff", "http://c:3"});

        assert_int_equal(c->listen.count, 2);
        assert_string_equal(c->listen.items[0].host, "0.0.0.0");
        assert_int_equal(c->listen.items[0].port, 0);
        assert_string_equal(c->listen.items[1].host, "::1");
        assert_string_equal(c->policy, "round_robin");
        assert_true(!c->hold_head && c->inject_usage);
        assert_int_equal(c->heartbeat_ms, 15000);
        assert_int_equal(c->replicas.count, 3);
        assert_string_equal(c->replicas.items[0].name, "a:1");
        assert_string_equal(c->replicas.items[1].name, "b");
        assert_string_equal(c->replicas.items[2].name, "c:3");
        assert_true(c->seed_given && c->seed_value == 0xff);
        config_free(c);

        c = LOAD(.argv = {"--admin", "off", "--idle-timeout=off", "--threads", "cores", "--", "http://a:1"});
        assert_true(c->admin.off);
        assert_int_equal(c->idle_timeout_ms, 0);
        assert_int_equal(c->threads, 0);
        assert_int_equal(c->replicas.count, 1);
        config_free(c);
        /* the last one counts */
        c = LOAD(.argv = {"--retries=1", "--retries=5"});
        assert_int_equal(c->retries, 5);
        config_free(c);
        /* a switch followed by a URL is on */
        c = LOAD(.argv = {"--inject-usage", "http://a:1"});
        assert_true(c->inject_usage);
        assert_int_equal(c->replicas.count, 1);
        config_free(c);
}

static void test_help(void **state)
{
        (void)state;
        struct router_config *config = NULL;
        struct config_error err;

        assert_int_equal(load(&(struct args){.argv = {"--help"}}, &config, &err), CONFIG_HELP);
        assert_int_equal(load(&(struct args){.argv = {"http://a:1", "-h"}}, &config, &err), CONFIG_HELP);
        assert_int_equal(load(&(struct args){.argv = {"--version"}}, &config, &err), CONFIG_VERSION);
}

static void test_refused_flags(void **state)
{
        (void)state;
        REFUSED("--polcy: no such option; did you mean --policy?", .argv = {"--polcy=kv"});
        REFUSED("--polic: no such option; did you mean --policy?", .argv = {"--polic", "kv"});
        REFUSED("--frobnicate: no such option; see kvroute serve --help", .argv = {"--frobnicate"});
        REFUSED("-x: no such option", .argv = {"-x"});
        REFUSED("--max-body: a value is missing", .argv = {"--max-body"});
        REFUSED("--max-body: \"64MB\" is not a size like", .argv = {"--max-body", "64MB"});
        REFUSED("--max-body: \"8GiB\" is out of range; write 1KiB to", .argv = {"--max-body=8GiB"});
        REFUSED("--head-timeout: \"10\" is not a time like 500ms, 10s, 5m or 1h, nor off",
                .argv = {"--head-timeout", "10"});
        REFUSED("--connect-timeout: \"off\" is not a time", .argv = {"--connect-timeout", "off"});
        REFUSED("--threads: \"many\" is not a whole number, nor cores", .argv = {"--threads=many"});
        REFUSED("--hold-head: \"maybe\" is not on or off", .argv = {"--hold-head=maybe"});
        REFUSED("--hold-head: \"maybe\" is not on or off", .argv = {"--hold-head", "maybe"});
        REFUSED("--log-level: \"verbose\" is not one of error, warn, info, debug",
                .argv = {"--log-level=verbose"});
        REFUSED("--listen: \"8080\" is not HOST:PORT; write", .argv = {"--listen=8080"});
        REFUSED("--listen: \"a:b\" is not HOST:PORT", .argv = {"--listen=a:b"});
        REFUSED("--listen: \"::1:80\" is not HOST:PORT", .argv = {"--listen=::1:80"});
        REFUSED("--listen: \"off\" is not HOST:PORT", .argv = {"--listen=off"});
        REFUSED("--admin: \"none\" is not HOST:PORT; write 127.0.0.1:8080, [::1]:8080 or :8080, or off",
                .argv = {"--admin=none"});
        REFUSED("--replica: \"b:2\" is not a replica's URL; write http://HOST:PORT", .argv = {"b:2"});
        REFUSED("--replica: \"off\" is not a replica's URL", .argv = {"off"});
        REFUSED("--alias: \"x\" is not NAME=TARGET", .argv = {"--alias=x"});
        REFUSED("--policy: \"round-robin\" is no policy; did you mean round_robin?",
                .argv = {"--policy=round-robin"});
        REFUSED("--policy: \"zzz\" is no policy; there are ", .argv = {"--policy=zzz"});
        REFUSED("--seed: \"xyz\" is not 1 to 16 hex digits", .argv = {"--seed=xyz"});
        REFUSED("--seed: \"11111111111111111\" is not", .argv = {"--seed=11111111111111111"});
        REFUSED("replicas: two are called \"a:1\"", .argv = {"http://a:1", "http://a:1"});
        REFUSED("alias: \"x\" leads to \"y\", which is an alias", .argv = {"--alias=x=y", "--alias=y=z"});
        REFUSED("--alias: \"x\" is given twice", .argv = {"--alias=x=y", "--alias=x=z"});
        REFUSED("--session-header: \"a b\" is not a header's name", .argv = {"--session-header=a b"});
        REFUSED("--listen: 127.0.0.1:1 is given twice",
                .argv = {"--listen=127.0.0.1:1", "--listen=127.0.0.1:1"});
        REFUSED("--admin: 127.0.0.1:1 is a client listener",
                .argv = {"--listen=127.0.0.1:1", "--admin=127.0.0.1:1"});
        REFUSED("--tenant-salt: has no effect without --api-key", .argv = {"--tenant-salt"});
        REFUSED("replicas: a:1 has auth=replace but no key", .argv = {"http://a:1,auth=replace"});
        REFUSED("--max-body: is larger than body-memory", .argv = {"--max-body=2GiB", "--body-memory=1GiB"});
        REFUSED("--config: cannot read /nonexistent/x.yaml: ", .argv = {"--config=/nonexistent/x.yaml"});
        REFUSED("--config: cannot read /tmp: not a regular file", .argv = {"--config=/tmp"});
}

static void test_replicas_required(void **state)
{
        (void)state;
        struct config_input input = {.replicas_required = true};
        struct router_config *config = NULL;
        struct config_error err;

        assert_int_equal(config_load(&input, &config, &err), CONFIG_ERROR);
        assert_non_null(strstr(err.message, "give at least one URL"));
}

static void test_environment(void **state)
{
        (void)state;
        struct router_config *c =
                LOAD(.argv = {"--retries=7"},
                     .environment = {"KVROUTE_MAX_BODY=1MiB", "KVROUTE_RETRIES=1",
                                     "KVROUTE_REPLICA=http://a:1  http://b:2 ", "KVROUTE_ADMIN=", "OTHER=1"});
        assert_int_equal(c->max_body_bytes, 1 << 20);
        assert_int_equal(c->retries, 7);
        assert_int_equal(c->replicas.count, 2);
        assert_int_equal(c->admin.port, 8081);
        config_free(c);
        REFUSED("KVROUTE_MAX_BODY: \"x\" is not a size", .environment = {"KVROUTE_MAX_BODY=x"});
        REFUSED("KVROUTE_REPLICA: \"b\" is not a replica's URL",
                .environment = {"KVROUTE_REPLICA=http://a:1 b"});
        /* flags win over it as a whole list */
        c = LOAD(.argv = {"http://c:3"}, .environment = {"KVROUTE_REPLICA=http://a:1 http://b:2"});
        assert_int_equal(c->replicas.count, 1);
        assert_string_equal(c->replicas.items[0].name, "c:3");
        config_free(c);
        /* slips are pointed out, what Kubernetes and test harnesses set is not */
        c = LOAD(.argv = {"http://a:1"},
                 .environment = {"KVROUTE_POLCY=random", "KVROUTE_BIN=/x", "KVROUTE_SERVICE_HOST=10.0.0.1",
                                 "KVROUTE_PORT_8080_TCP_ADDR=10.0.0.1"});
        assert_int_equal(c->warnings.count, 1);
        assert_string_equal(c->warnings.items[0], "environment variable KVROUTE_POLCY is no option and was "
                                                  "ignored; did you mean KVROUTE_POLICY?");
        config_free(c);
}

/* ---- YAML -------------------------------------------------------------------------------------------- */

static struct router_config *yaml(const char *text)
{
        struct router_config *config = NULL;
        struct config_error err = {"?"};
        size_t len = strlen(text);
        char *copy = malloc(len + 1);

        assert_non_null(copy);
        memcpy(copy, text, len + 1);
        if (config_parse_yaml("k.yaml", (struct kvr_slice){copy, len}, &config, &err) != CONFIG_OK)
                fail_msg("%s", err.message);
        free(copy);
        return config;
}

static void yaml_refused(const char *text, const char *want)
{
        struct router_config *config = NULL;
        struct config_error err = {"?"};

        if (config_parse_yaml("k.yaml", (struct kvr_slice){text, strlen(text)}, &config, &err) !=
            CONFIG_ERROR)
                fail_msg("taken: %s", text);
        if (strncmp(err.message, want, strlen(want)) != 0)
                fail_msg("\"%s\" does not begin with \"%s\"", err.message, want);
}

static void test_yaml(void **state)
{
        (void)state;
        struct router_config *c = yaml("# a comment\n"
                                       "listen: 0.0.0.0:8080\n"
                                       "policy: kv\n"
                                       "max-body: 1MiB\n"
                                       "hold-head: false\n"
                                       "retries: 3\n"
                                       "session-header: [X-Session-Id, x-conversation]\n"
                                       "alias: { fast: small, smart: 'big' }\n"
                                       "replicas:\n"
                                       "  - { url: http://10.0.0.11:8000, name: gpu-a, engine: vllm }\n"
                                       "  - url: http://10.0.0.12:8000\n"
                                       "    models: [a+b, c]\n"
                                       "    max-running: 8\n"
                                       "  - http://10.0.0.13:8000,name=gpu-c\n"
                                       "workloads:\n"
                                       "  - { name: agents, path: /v1/messages }\n"
                                       "  - { name: rag, header: { X-Team: search } }\n"
                                       "  - { name: any-team, header: { x-team: } , model: 'big*' }\n");
        assert_string_equal(c->listen.items[0].host, "0.0.0.0");
        assert_int_equal(c->max_body_bytes, 1 << 20);
        assert_false(c->hold_head);
        assert_int_equal(c->retries, 3);
        assert_int_equal(c->session_headers.count, 2);
        assert_string_equal(c->session_headers.items[0], "x-session-id");
        assert_int_equal(c->aliases.count, 2);
        assert_string_equal(c->aliases.items[1].name, "smart");
        assert_string_equal(c->aliases.items[1].target, "big");
        assert_int_equal(c->replicas.count, 3);
        assert_string_equal(c->replicas.items[0].name, "gpu-a");
        assert_int_equal(c->replicas.items[0].engine, ENGINE_VLLM);
        assert_string_equal(c->replicas.items[1].name, "10.0.0.12:8000");
        assert_int_equal(c->replicas.items[1].model_count, 2);
        assert_string_equal(c->replicas.items[1].models[0], "a+b");
        assert_int_equal(c->replicas.items[1].max_running, 8);
        assert_string_equal(c->replicas.items[2].name, "gpu-c");
        assert_int_equal(c->workload_count, 3);
        assert_string_equal(c->workloads[1].header_name, "x-team");
        assert_string_equal(c->workloads[1].header_value, "search");
        assert_null(c->workloads[2].header_value);
        config_free(c);

        c = yaml("listen: [127.0.0.1:1, 127.0.0.1:2]\n");
        assert_int_equal(c->listen.count, 2);
        config_free(c);
        c = yaml("");
        assert_int_equal(c->replicas.count, 0);
        config_free(c);
        c = yaml("# only a comment\n---\n");
        config_free(c);
        c = yaml("replicas: []\nsession-header: []\n");
        assert_int_equal(c->session_headers.count, 0);
        config_free(c);
}

static void test_yaml_refused(void **state)
{
        (void)state;
        static const char *const rows[][2] = {
                {"polcy: kv\n", "k.yaml:1:1: \"polcy\" is no option; did you mean policy?"},
                {"policy: kv\nreplcas: []\n", "k.yaml:2:1: \"replcas\" is no option; did you mean replica"},
                {"policy: kv\n  \nmax-body: 1MiB\npolicy: kv\n", "k.yaml:4:1: \"policy\" is there twice"},
                {"replica: http://a:1\nreplicas: []\n", "k.yaml:2:1: \"replicas\" is there twice"},
                {"max-body: 64MB\n", "k.yaml:1:11: max-body: \"64MB\" is not a size like"},
                {"policy: [kv]\n", "k.yaml:1:9: policy must be a single value, not a list"},
                {"policy: {a: b}\n", "k.yaml:1:9: policy must be a single value, not a map"},
                {"policy:\n", "k.yaml:1:8: policy has no value"},
                {"policy: ~\n", "k.yaml:1:9: policy has no value"},
                {"config: x\n", "k.yaml:1:1: this option cannot be set in the file"},
                {"- a\n", "k.yaml:1:1: the file must be a map"},
                {"a\n", "k.yaml:1:1: the file must be a map"},
                {"policy: kv\n--- \npolicy: kv\n", "k.yaml:2:1: a second document"},
                {"policy: &x kv\nadmin-token: *x\n", "k.yaml:2:14: aliases (*name) are not supported"},
                {"policy: 'kv\n", "k.yaml:2:1: not YAML: "},
                {"replicas:\n  - { url: http://a:1, nme: x }\n",
                 "k.yaml:2:24: \"nme\" is not a replica's key; did you mean name?"},
                {"replicas:\n  - { url: http://a:1, engine: vLLM }\n",
                 "k.yaml:2:32: engine: \"vLLM\" is not known"},
                {"replicas:\n  - { url: http://a:1, url: http://b:1 }\n",
                 "k.yaml:2:24: \"url\" is there twice"},
                {"replicas:\n  - { name: x }\n", "k.yaml:2:5: a replica needs a url"},
                {"replicas:\n  - https://a:1\n", "k.yaml:2:5: \"https://a:1\": https to replicas"},
                {"replicas:\n  - { url: http://a:1, events: a:5557 }\n", "k.yaml:2:32: events: "},
                {"replicas:\n  - [a]\n", "k.yaml:2:5: a replica must be a single value"},
                {"workloads: 3\n", "k.yaml:1:12: workloads must be a list"},
                {"workloads: [3]\n", "k.yaml:1:13: a workload must be a map"},
                {"workloads:\n  - { name: a }\n", "k.yaml:2:5: a workload needs a rule"},
                {"workloads:\n  - { path: /x }\n", "k.yaml:2:5: a workload needs a name"},
                {"workloads:\n  - { name: a, pth: /x }\n",
                 "k.yaml:2:16: \"pth\" is not a workload's key; did you mean path?"},
                {"workloads:\n  - { name: a, header: { a: b, c: d } }\n",
                 "k.yaml:2:32: a rule takes one header"},
                {"workloads:\n  - { name: a, name: b }\n", "k.yaml:2:16: \"name\" is there twice"},
                {"workloads: []\nworkloads: []\n", "k.yaml:2:1: \"workloads\" is there twice"},
                {"alias: [x]\n", "k.yaml:1:9: alias: \"x\" is not NAME=TARGET"},
                {"? [a]\n: b\n", "k.yaml:1:3: a key must be a single value"},
                {"\xff", "k.yaml:1:1: not YAML: "},
                {"listen: []\n", "listen: no listener is left"},
        };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                yaml_refused(rows[i][0], rows[i][1]);
}

static char *write_file(const char *text)
{
        char *path = strdup("/tmp/kvroute-config-test-XXXXXX");
        int fd = mkstemp(path);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, strlen(text)), strlen(text));
        close(fd);
        return path;
}

static void test_sources(void **state)
{
        (void)state;
        char *path = write_file("retries: 1\npolicy: random\nmax-body: 2MiB\nreplicas: "
                                "[http://file:1]\nlisten: [127.0.0.1:1]\n");
        char env[128];
        snprintf(env, sizeof env, "KVROUTE_CONFIG=%s", path);
        struct router_config *c =
                LOAD(.argv = {"--retries=3", "http://flag:1"},
                     .environment = {env, "KVROUTE_RETRIES=2", "KVROUTE_POLICY=least_requests"});

        assert_int_equal(c->retries, 3);
        assert_string_equal(c->policy, "least_requests");
        assert_int_equal(c->max_body_bytes, 2 << 20);
        assert_int_equal(c->replicas.count, 1);
        assert_string_equal(c->replicas.items[0].host, "flag");
        assert_int_equal(c->listen.items[0].port, 1);

        /* the file alone has changed: that is a reload */
        FILE *file = fopen(path, "w");
        fputs("retries: 8\npolicy: kv\nmax-body: 3MiB\nlisten: [127.0.0.1:2]\nindex-memory: 1GiB\n", file);
        fclose(file);
        struct router_config *after =
                LOAD(.argv = {"--retries=3", "http://flag:1"},
                     .environment = {env, "KVROUTE_RETRIES=2", "KVROUTE_POLICY=least_requests"});
        char names[256];
        assert_int_equal(after->retries, 3);
        assert_int_equal(after->max_body_bytes, 3 << 20);
        config_restart_needed(c, after, names, sizeof names);
        assert_string_equal(names, "listen, index-memory");
        config_restart_needed(c, c, names, sizeof names);
        assert_string_equal(names, "");
        config_restart_needed(c, after, names, 4);
        assert_true(strlen(names) < 4);
        config_free(after);
        config_free(c);
        /* a file is checked even where flags win */
        file = fopen(path, "w");
        fputs("max-body: 3MB\n", file);
        fclose(file);
        char want[128];
        snprintf(want, sizeof want, "%s:1:11: max-body: \"3MB\" is not a size", path);
        REFUSED(want, .argv = {"--config", path, "--max-body=1MiB"});
        unlink(path);
        free(path);
}

static void test_secrets(void **state)
{
        (void)state;
        char *path = write_file("# keys of the teams\nsk-one\n  sk-two \r\n\n");
        char from_file[128];
        snprintf(from_file, sizeof from_file, "--api-key=file:%s", path);
        struct router_config *c =
                LOAD(.argv = {from_file, "--api-key=sk-three", "--admin-token=env:TOKEN",
                              "http://a:1,api-key=env:UP", "http://b:1", "http://c:1,auth=pass"},
                     .environment = {"TOKEN=t0p", "UP=up-key", "TOKENX=wrong"});

        assert_int_equal(c->api_keys.count, 3);
        assert_string_equal(c->api_keys.items[0], "sk-one");
        assert_string_equal(c->api_keys.items[1], "sk-two");
        assert_string_equal(c->api_keys.items[2], "sk-three");
        assert_string_equal(c->admin_token, "t0p");
        assert_string_equal(config_replica_key(c, &c->replicas.items[0]), "up-key");
        assert_int_equal(config_replica_auth(c, &c->replicas.items[0]), REPLICA_AUTH_REPLACE);
        /* the router's own keys stay with it */
        assert_int_equal(config_replica_auth(c, &c->replicas.items[1]), REPLICA_AUTH_STRIP);
        assert_int_equal(config_replica_auth(c, &c->replicas.items[2]), REPLICA_AUTH_PASS);
        assert_null(config_replica_key(c, &c->replicas.items[1]));

        char *json = config_to_json(c);
        assert_non_null(json);
        assert_null(strstr(json, "sk-"));
        assert_null(strstr(json, "t0p"));
        assert_null(strstr(json, "up-key"));
        yyjson_doc *doc = yyjson_read(json, strlen(json), 0);
        assert_non_null(doc);
        yyjson_val *root = yyjson_doc_get_root(doc);
        assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "admin-token")), "***");
        assert_int_equal(yyjson_arr_size(yyjson_obj_get(root, "api-key")), 3);
        assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "max-body")), "64MiB");
        assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "first-byte-timeout")), "off");
        assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "threads")), "cores");
        assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "log-level")), "info");
        assert_string_equal(yyjson_get_str(yyjson_arr_get_first(yyjson_obj_get(root, "listen"))),
                            "127.0.0.1:8080");
        assert_int_equal(yyjson_get_int(yyjson_obj_get(root, "retries")), 2);
        assert_true(yyjson_get_bool(yyjson_obj_get(root, "hold-head")));
        yyjson_val *replica = yyjson_arr_get_first(yyjson_obj_get(root, "replicas"));
        assert_string_equal(yyjson_get_str(yyjson_obj_get(replica, "url")), "http://a:1");
        assert_string_equal(yyjson_get_str(yyjson_obj_get(replica, "api-key")), "***");
        yyjson_doc_free(doc);
        free(json);
        config_free(c);
        unlink(path);

        REFUSED("--admin-token: environment variable NOPE is not set", .argv = {"--admin-token=env:NOPE"});
        REFUSED("--api-key: the secret must be 1 to 4096 printable characters without space (value not "
                "shown)",
                .argv = {"--api-key=two words"});
        REFUSED("--api-key: cannot read ", .argv = {from_file});
        REFUSED("--replica: environment variable X is not set", .argv = {"http://a:1,api-key=env:X"});
        free(path);
}

static struct kvr_slice no_header(void *ctx, const char *name)
{
        (void)ctx;
        (void)name;
        return (struct kvr_slice){0};
}

static struct kvr_slice team_header(void *ctx, const char *name)
{
        if (strcmp(name, "x-team") == 0)
                return (struct kvr_slice){ctx, strlen(ctx)};
        return (struct kvr_slice){0};
}

static const char *workload(const struct router_config *c, const char *path, const char *model,
                            const char *key, char *team)
{
        const char *name = config_workload(
                c, (struct kvr_slice){path, strlen(path)}, (struct kvr_slice){model, strlen(model)},
                (struct kvr_slice){key, strlen(key)}, team ? team_header : no_header, team);
        return name ? name : "-";
}

static void test_workloads(void **state)
{
        (void)state;
        struct router_config *c = yaml("workloads:\n"
                                       "  - { name: vip, api-key: sk-vip }\n"
                                       "  - { name: agents, path: /v1/messages }\n"
                                       "  - { name: rag, header: { x-team: search }, path: '/v1/*' }\n"
                                       "  - { name: teams, header: { x-team: } }\n"
                                       "  - { name: big, model: 'big-*' }\n");
        char search[] = "search", other[] = "other";

        assert_string_equal(workload(c, "/v1/messages", "m", "sk-vip", NULL), "vip");
        assert_string_equal(workload(c, "/v1/messages", "m", "sk-vipx", NULL), "agents");
        assert_string_equal(workload(c, "/v1/chat/completions", "m", "", search), "rag");
        assert_string_equal(workload(c, "/generate", "m", "", search), "teams");
        assert_string_equal(workload(c, "/v1/completions", "m", "", other), "teams");
        assert_string_equal(workload(c, "/v1/completions", "big-7b", "", NULL), "big");
        assert_string_equal(workload(c, "/v1/completions", "big", "", NULL), "-");
        config_free(c);
}

static void test_admin_warning(void **state)
{
        (void)state;
        struct router_config *c = LOAD(.argv = {"--admin=0.0.0.0:9000", "http://a:1"});

        assert_int_equal(c->warnings.count, 1);
        assert_non_null(strstr(c->warnings.items[0], "set --admin-token"));
        config_free(c);
        c = LOAD(.argv = {"--admin=0.0.0.0:9000", "--admin-token=x", "http://a:1"});
        assert_int_equal(c->warnings.count, 0);
        config_free(c);
}

/* All mistakes of one text, each with its place; cut behind any byte it must not go wrong, either. */
static void test_all_mistakes(void **state)
{
        (void)state;
        static const char text[] = "polcy: kv\n"
                                   "max-body: huge\n"
                                   "replicas:\n"
                                   "  - { url: http://a:1/v1, models: [a, b] }\n"
                                   "workloads:\n"
                                   "  - { name: a, header: { x: y, z: 1 } }\n"
                                   "retries: { a: [1, *x] }\n"
                                   "alias: { b: [c] }\n"
                                   "retries: 1\n"
                                   "seed: xyz\n";
        static const char *const expected[] = {
                ":1:1: ", ":2:11: ", ":4:12: ", ":6:32: ", ":7:10: ", ":8:13: ", ":9:1: ", ":10:7: "};

        for (size_t len = 0; len < sizeof text; len++) {
                struct config_error err = {""};
                struct config_strings errors = {0};
                struct config_builder b = {.err = &err, .errors = &errors};

                assert_true(config_builder_init(&b));
                bool ok = config_read_yaml(&b, "f", (struct kvr_slice){text, len}) || config_go_on(&b);

                assert_true(ok && (config_check_whole(&b) || errors.count));
                if (len == sizeof text - 1) {
                        assert_int_equal(errors.count, sizeof expected / sizeof *expected);
                        for (size_t i = 0; i < errors.count; i++)
                                if (strncmp(errors.items[i] + 1, expected[i], strlen(expected[i])) != 0)
                                        fail_msg("\"%s\" is not at %s", errors.items[i], expected[i]);
                }
                config_strings_free(&errors);
                config_free(b.config);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_defaults),
                cmocka_unit_test(test_flags),
                cmocka_unit_test(test_help),
                cmocka_unit_test(test_refused_flags),
                cmocka_unit_test(test_replicas_required),
                cmocka_unit_test(test_environment),
                cmocka_unit_test(test_yaml),
                cmocka_unit_test(test_yaml_refused),
                cmocka_unit_test(test_sources),
                cmocka_unit_test(test_secrets),
                cmocka_unit_test(test_workloads),
                cmocka_unit_test(test_admin_warning),
                cmocka_unit_test(test_all_mistakes),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
