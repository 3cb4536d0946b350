/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_discover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static enum engine_kv_answer read_file(enum engine_kind kind, const char *name, uint32_t rank,
                                       struct engine_kv_source *ret)
{
        static char text[1 << 16];
        char path[512];
        size_t len;

        snprintf(path, sizeof path, TEST_DATA "/events/%s", name);
        FILE *file = fopen(path, "rb");

        assert_non_null(file);
        len = fread(text, 1, sizeof text, file);
        fclose(file);
        return engine_kv_read(kind, (struct kvr_slice){text, len}, rank, ret);
}

static enum engine_kv_answer read_text(enum engine_kind kind, const char *text, uint32_t rank,
                                       struct engine_kv_source *ret)
{
        return engine_kv_read(kind, (struct kvr_slice){text, strlen(text)}, rank, ret);
}

static void test_recorded(void **state)
{
        (void)state;
        struct engine_kv_source source;

        assert_int_equal(read_file(ENGINE_VLLM, "vllm/kv_event_sources.json", 0, &source), ENGINE_KV_FOUND);
        assert_string_equal(source.events, "tcp://*:10302");
        assert_string_equal(source.replay, "tcp://*:11302");
        assert_string_equal(source.topic, "");
        assert_int_equal(source.ranks, 1);
        assert_int_equal(read_file(ENGINE_VLLM, "vllm/kv_event_sources.json", 1, &source), ENGINE_KV_NO_RANK);
        assert_int_equal(read_file(ENGINE_SGLANG, "sglang/server_info.json", 0, &source), ENGINE_KV_FOUND);
        assert_string_equal(source.events, "tcp://*:10502");
        assert_string_equal(source.replay, "tcp://*:11502");
        assert_string_equal(engine_kv_path(ENGINE_VLLM), "/kv_event_sources");
        assert_string_equal(engine_kv_path(ENGINE_SGLANG), "/server_info");
        assert_null(engine_kv_path(ENGINE_LLAMACPP));
}

static void test_variants(void **state)
{
        (void)state;
        struct engine_kv_source source;

        assert_int_equal(read_text(ENGINE_SGLANG, "{\"kv_events\":null}", 0, &source), ENGINE_KV_OFF);
        assert_int_equal(read_text(ENGINE_SGLANG, "{\"version\":\"0.5\"}", 0, &source), ENGINE_KV_UNKNOWN);
        assert_int_equal(
                read_text(
                        ENGINE_SGLANG,
                        "{\"kv_events\":{\"endpoint_host\":\"h\",\"endpoint_port_base\":7000,\"topic\":\"t\","
                        "\"dp_size\":4}}",
                        3, &source),
                ENGINE_KV_FOUND);
        assert_string_equal(source.events, "tcp://h:7003");
        assert_string_equal(source.replay, "");
        assert_string_equal(source.topic, "t");
        assert_int_equal(source.ranks, 4);
        assert_int_equal(
                read_text(ENGINE_SGLANG, "{\"kv_events\":{\"endpoint_port_base\":7000}}", 1, &source),
                ENGINE_KV_NO_RANK);
        assert_int_equal(read_text(ENGINE_VLLM, "{}", 0, &source), ENGINE_KV_OFF);
        assert_int_equal(read_text(ENGINE_VLLM, "{\"0\":{\"publisher\":\"null\",\"endpoint\":\"tcp://*:1\"}}",
                                   0, &source),
                         ENGINE_KV_OFF);
        assert_int_equal(read_text(ENGINE_VLLM,
                                   "{\"0\":{\"enable_kv_cache_events\":true,\"endpoint\":\"tcp://*:1\","
                                   "\"replay_endpoint\":null}}",
                                   0, &source),
                         ENGINE_KV_FOUND);
        assert_string_equal(source.replay, "");
        assert_int_equal(read_text(ENGINE_VLLM, "[]", 0, &source), ENGINE_KV_UNKNOWN);
        assert_int_equal(read_text(ENGINE_VLLM, "", 0, &source), ENGINE_KV_UNKNOWN);
        engine_kv_guess(2, &source);
        assert_string_equal(source.events, "tcp://*:5559");
        assert_string_equal(source.replay, "tcp://*:5560");
}

static void test_endpoints(void **state)
{
        (void)state;
        static const struct {
                const char *text, *host;
                uint32_t rank;
                const char *want; /* NULL: refused */
        } cases[] = {
                {"tcp://*:5557", "10.0.0.1", 0, "tcp://10.0.0.1:5557"},
                {"tcp://0.0.0.0:5557", "gpu-a", 1, "tcp://gpu-a:5558"},
                {"tcp://[::]:5557", "::1", 0, "tcp://[::1]:5557"},
                {"tcp://:::5557", "h", 0, "tcp://h:5557"},
                {"tcp://other:5557", "10.0.0.1", 3, "tcp://other:5560"},
                {"tcp://[fe80::1]:5557", "h", 0, "tcp://[fe80::1]:5557"},
                {"ipc:///run/kv", "h", 0, "ipc:///run/kv"},
                {"ipc:///run/kv", "h", 1, "ipc:///run/kv_dp1"},
                {"tcp://*:65535", "h", 1, NULL},
                {"tcp://*:0", "h", 0, NULL},
                {"tcp://*", "h", 0, NULL},
                {"tcp://*:", "h", 0, NULL},
                {"tcp://*:5557x", "h", 0, NULL},
                {"tcp://a b:1", "h", 0, NULL},
                {"tcp://eth0;h:1", "h", 0, NULL},
                {"udp://h:1", "h", 0, NULL},
                {"h:5557", "h", 0, NULL},
                {"ipc://", "h", 0, NULL},
                {"", "h", 0, NULL},
        };

        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                char got[ENGINE_KV_ENDPOINT_MAX];
                bool ok = engine_kv_endpoint(cases[i].text, cases[i].host, cases[i].rank, got);

                assert_int_equal(ok, cases[i].want != NULL);
                if (ok)
                        assert_string_equal(got, cases[i].want);
        }
}

static void test_same_host(void **state)
{
        (void)state;
        static const struct {
                const char *endpoint, *host;
                bool same;
        } cases[] = {
                {"tcp://*:5557", "10.0.0.1", true},
                {"tcp://0.0.0.0:5557", "gpu-a", true},
                {"tcp://[::]:5557", "::1", true},
                {"tcp://gpu-a:5557", "gpu-a", true},
                {"tcp://[fe80::1]:5557", "fe80::1", true},
                {"tcp://gpu-b:5557", "gpu-a", false},
                {"tcp://gpu-a.evil:5557", "gpu-a", false},
                {"tcp://gpu:5557", "gpu-a", false},
                {"tcp://127.0.0.1:5557", "10.0.0.1", false},
                {"tcp://gpu-a", "gpu-a", false},
                {"ipc:///run/kv", "gpu-a", false},
                {"tcp:/", "", false},
                {"", "", false},
        };

        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
                if (engine_kv_same_host(cases[i].endpoint, cases[i].host) != cases[i].same)
                        fail_msg("%s and %s", cases[i].endpoint, cases[i].host);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_recorded),
                cmocka_unit_test(test_variants),
                cmocka_unit_test(test_endpoints),
                cmocka_unit_test(test_same_host),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
