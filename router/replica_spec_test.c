/* SPDX-License-Identifier: Apache-2.0 */
#include "replica_spec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct replica_spec parse(const char *text)
{
        struct replica_spec spec;
        char why[256] = "";
        size_t len = strlen(text);
        char *copy = malloc(len + 1); /* exactly sized and not terminated within len */

        assert_non_null(copy);
        memcpy(copy, text, len + 1);
        replica_spec_init(&spec);
        if (!replica_spec_parse(&spec, (struct kvr_slice){copy, len}, why, sizeof why))
                fail_msg("%s: %s", text, why);
        free(copy);
        return spec;
}

static void test_urls(void **state)
{
        (void)state;
        static const struct {
                const char *text, *host;
                unsigned port;
                const char *prefix, *authority, *name;
        } rows[] = {
                {"http://10.0.0.11:8000", "10.0.0.11", 8000, "", "10.0.0.11:8000", "10.0.0.11:8000"},
                {"http://gpu-a", "gpu-a", 80, "", "gpu-a:80", "gpu-a:80"},
                {"HTTP://gpu_a.example:1/", "gpu_a.example", 1, "", "gpu_a.example:1", "gpu_a.example:1"},
                {"http://[::1]:8000", "::1", 8000, "", "[::1]:8000", "[::1]:8000"},
                {"http://[fe80::1%eth0]", "fe80::1%eth0", 80, "", "[fe80::1%eth0]:80", "[fe80::1%eth0]:80"},
                {"http://a:65535/llm/", "a", 65535, "/llm", "a:65535", "a:65535/llm"},
                {"http://a:1/v1/llm", "a", 1, "/v1/llm", "a:1", "a:1/v1/llm"},
                {"http://a:1/b/c%20d", "a", 1, "/b/c%20d", "a:1", "a:1/b/c%20d"},
        };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                struct replica_spec spec = parse(rows[i].text);

                assert_string_equal(spec.host, rows[i].host);
                assert_int_equal(spec.port, rows[i].port);
                assert_string_equal(spec.prefix, rows[i].prefix);
                assert_string_equal(spec.authority, rows[i].authority);
                assert_string_equal(spec.name, rows[i].name);
                assert_int_equal(spec.engine, ENGINE_AUTO);
                assert_int_equal(spec.auth, REPLICA_AUTH_AUTO);
                replica_spec_fini(&spec);
        }
}

static void test_events(void **state)
{
        (void)state;
        struct replica_spec spec = parse(
                                    "http://a:1,events=tcp://*:5557,replay=tcp://b:5558,events-topic=kv@"),
                            other;

        assert_int_equal(spec.events, REPLICA_EVENTS_CONNECT);
        assert_string_equal(spec.events_endpoint, "tcp://*:5557");
        assert_string_equal(spec.replay_endpoint, "tcp://b:5558");
        assert_string_equal(spec.events_topic, "kv@");
        assert_true(replica_spec_copy(&spec, &other));
        assert_true(replica_spec_equal(&spec, &other));
        other.replay_endpoint[6] = 'c';
        assert_false(replica_spec_equal(&spec, &other)); /* a reload must follow it */
        replica_spec_fini(&other);
        replica_spec_fini(&spec);
        spec = parse("http://a:1,events=bind:tcp://0.0.0.0:6000");
        assert_int_equal(spec.events, REPLICA_EVENTS_BIND);
        assert_string_equal(spec.events_endpoint, "tcp://0.0.0.0:6000");
        replica_spec_fini(&spec);
        spec = parse("http://a:1,events=auto");
        assert_int_equal(spec.events, REPLICA_EVENTS_AUTO);
        replica_spec_fini(&spec);
        spec = parse("http://a:1,events=poll,replay=off");
        assert_int_equal(spec.events, REPLICA_EVENTS_POLL);
        replica_spec_fini(&spec);
        spec = parse("http://a:1,events=off");
        assert_int_equal(spec.events, REPLICA_EVENTS_OFF);
        replica_spec_fini(&spec);
        spec = parse("http://a:1");
        assert_int_equal(spec.events, REPLICA_EVENTS_OFFERED);
        replica_spec_fini(&spec);
        spec = parse("http://a:1,events=offered");
        assert_int_equal(spec.events, REPLICA_EVENTS_OFFERED);
        replica_spec_fini(&spec);
}

static void test_keys(void **state)
{
        (void)state;
        struct replica_spec spec =
                parse("http://a:1,name=gpu-a,engine=sglang,models=small+org/big:x,max-running=64,"
                      "capacity-tokens=4000000000,block-tokens=16,slots=4,auth=strip,events=off,ranks=1");

        assert_string_equal(spec.name, "gpu-a");
        assert_int_equal(spec.engine, ENGINE_SGLANG);
        assert_int_equal(spec.model_count, 2);
        assert_string_equal(spec.models[0], "small");
        assert_string_equal(spec.models[1], "org/big:x");
        assert_int_equal(spec.max_running, 64);
        assert_true(spec.capacity_tokens == 4000000000ull);
        assert_int_equal(spec.block_tokens, 16);
        assert_int_equal(spec.slots, 4);
        assert_int_equal(spec.auth, REPLICA_AUTH_STRIP);

        struct replica_spec copy;
        assert_true(replica_spec_copy(&spec, &copy));
        assert_true(replica_spec_equal(&spec, &copy));
        copy.max_running++;
        assert_false(replica_spec_equal(&spec, &copy));
        copy.max_running--;
        free(copy.models[1]);
        copy.models[1] = strdup("other");
        assert_false(replica_spec_equal(&spec, &copy));
        replica_spec_fini(&copy);
        replica_spec_fini(&copy);
        replica_spec_fini(&spec);

        spec = parse("http://a:1,api-key=sk-1");
        assert_int_equal(spec.auth, REPLICA_AUTH_REPLACE);
        assert_string_equal(spec.api_key, "sk-1");
        replica_spec_fini(&spec);
}

static void test_refused(void **state)
{
        (void)state;
        /* what is wrong, and what the message must say about the fix */
        static const char *const rows[][2] = {
                {"", "http://HOST:PORT"},
                {"10.0.0.1:8000", "http://HOST:PORT"},
                {"https://a:1", "end TLS in front"},
                {"http://a:1/v1", "\"http://a:1/v1\" ends in /v1; did you mean http://a:1?"},
                {"http://a:1/v1/,name=x", "\"http://a:1/v1/\" ends in /v1; did you mean http://a:1?"},
                {"http://a/llm/v1", "did you mean http://a/llm?"},
                {"tcp://a:1", "http://HOST:PORT"},
                {"http://", "http://HOST:PORT"},
                {"http://:80", "http://HOST:PORT"},
                {"http://a:0", "http://HOST:PORT"},
                {"http://a:65536", "http://HOST:PORT"},
                {"http://a:x", "http://HOST:PORT"},
                {"http://a:", "http://HOST:PORT"},
                {"http://a b:1", "http://HOST:PORT"},
                {"http://::1:8000", "http://HOST:PORT"},
                {"http://[::1", "http://HOST:PORT"},
                {"http://[::1]x", "http://HOST:PORT"},
                {"http://user:pw@a:1", "api-key"},
                {"http://a:1/x?y=1", "without query"},
                {"http://a:1/x y", "plain path"},
                {"http://a:1,", "KEY=VALUE"},
                {"http://a:1,name", "KEY=VALUE"},
                {"http://a:1,nme=x", "did you mean name"},
                {"http://a:1,frobnicate=x", "not a replica's key"},
                {"http://a:1,name=", "name"},
                {"http://a:1,name=a b", "name"},
                {"http://a:1,name=a,name=b", "twice"},
                {"http://a:1,engine=vLLM", "vllm, sglang"},
                {"http://a:1,models=", "models"},
                {"http://a:1,models=a++b", "models"},
                {"http://a:1,models=a+a", "twice"},
                {"http://a:1,max-running=-1", "whole number"},
                {"http://a:1,max-running=9999999999", "whole number"},
                {"http://a:1,auth=bearer", "pass, strip or replace"},
                {"http://a:1,events=a:5557", "write tcp://HOST:PORT or ipc://PATH"},
                {"http://a:1,events=tcp://a", "write tcp://HOST:PORT or ipc://PATH"},
                {"http://a:1,events=bind:tcp://*:0", "write tcp://HOST:PORT or ipc://PATH"},
                {"http://a:1,events=", "write tcp://HOST:PORT or ipc://PATH"},
                {"http://a:1,events=auto,replay=5558", "write tcp://HOST:PORT or ipc://PATH"},
                {"http://a:1,replay=tcp://a:5558", "means nothing without events"},
                {"http://a:1,events-topic=kv", "means nothing without events"},
                {"http://a:1,ranks=0", "from 1 to 64"},
                {"http://a:1,ranks=65", "from 1 to 64"},
                {"http://a:1,ranks=x", "from 1 to 64"},
                {"http://a:1,engine=llamacpp,ranks=2", "llama.cpp has none"},
                {"http://a:1,api-key=a\nb", "printable"},
        };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                struct replica_spec spec;
                char why[512] = "";

                replica_spec_init(&spec);
                if (replica_spec_parse(&spec, (struct kvr_slice){rows[i][0], strlen(rows[i][0])}, why,
                                       sizeof why))
                        fail_msg("%s is taken", rows[i][0]);
                if (!strstr(why, rows[i][1]))
                        fail_msg("%s: \"%s\" does not say \"%s\"", rows[i][0], why, rows[i][1]);
                replica_spec_fini(&spec);
        }
        struct replica_spec spec;
        char why[64];
        replica_spec_init(&spec);
        assert_false(replica_spec_finish(&spec, why, sizeof why));
        /* a secret never comes back in a message */
        char text[5000] = "http://a:1,api-key=topsecret";
        memset(text + strlen(text), 'x', 4200);
        char long_why[512] = "";
        assert_false(
                replica_spec_parse(&spec, (struct kvr_slice){text, strlen(text)}, long_why, sizeof long_why));
        assert_null(strstr(long_why, "topsecret"));
        replica_spec_fini(&spec);
}

static void test_ranks(void **state)
{
        (void)state;
        struct replica_spec spec = parse("http://a:1,name=gpu-a,engine=vllm,ranks=64,models=m"), one;
        char why[512] = "";

        assert_int_equal(spec.ranks, 64);
        assert_int_equal(spec.rank, -1);
        assert_true(replica_spec_rank(&spec, 63, &one, why, sizeof why));
        assert_string_equal(one.name, "gpu-a.dp63");
        assert_string_equal(one.group, "gpu-a");
        assert_int_equal(one.rank, 63);
        assert_string_equal(one.models[0], "m");
        assert_false(replica_spec_equal(&spec, &one));
        replica_spec_fini(&one);
        /* a name that leaves no room for the number is told, not cut */
        memset(spec.name, 'x', sizeof spec.name - 1);
        assert_false(replica_spec_rank(&spec, 0, &one, why, sizeof why));
        assert_non_null(strstr(why, "no room"));
        replica_spec_fini(&spec);
        spec = parse("http://a:1,name=gpu-a,ranks=1");
        assert_true(replica_spec_rank(&spec, 0, &one, why, sizeof why));
        assert_string_equal(one.name, "gpu-a");
        assert_int_equal(one.rank, -1);
        assert_true(replica_spec_equal(&spec, &one));
        replica_spec_fini(&one);
        replica_spec_fini(&spec);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_urls),  cmocka_unit_test(test_events),  cmocka_unit_test(test_keys),
                cmocka_unit_test(test_ranks), cmocka_unit_test(test_refused),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
