/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "test_data.h"

static struct kvr_slice slice(const char *text)
{
        return (struct kvr_slice){text, strlen(text)};
}

static bool load_file(enum engine_kind kind, const char *path, const char *name, struct engine_load *load)
{
        struct kvr_slice text = test_data_read(name);
        bool ok = engine_parse_load(kind, path, text, load);

        test_data_free(text);
        return ok;
}

static void test_kinds(void **state)
{
        (void)state;
        for (unsigned kind = 0; kind < ENGINE_KIND_COUNT; kind++) {
                enum engine_kind back = ENGINE_KIND_COUNT;

                assert_true(engine_kind_parse(slice(engine_kind_name((enum engine_kind)kind)), &back));
                assert_int_equal(back, kind);
                if (kind != ENGINE_AUTO)
                        assert_int_equal(engine_traits((enum engine_kind)kind)->kind, kind);
                assert_non_null(engine_traits((enum engine_kind)kind)->health_paths[0]);
                assert_non_null(engine_traits((enum engine_kind)kind)->notes);
        }
        enum engine_kind untouched = ENGINE_TGI;
        assert_false(engine_kind_parse(slice("vLLM"), &untouched));
        assert_int_equal(untouched, ENGINE_TGI);
        assert_int_equal(engine_traits((enum engine_kind)99)->kind, ENGINE_OPENAI);
}

static void test_vllm_page(void **state)
{
        (void)state;
        struct engine_load load;

        engine_load_init(&load);
        assert_true(load_file(ENGINE_VLLM, "/metrics", "vllm/metrics.txt", &load));
        assert_true(load.sum.running == 0 && load.sum.waiting == 0 && load.sum.kv_usage == 0);
        assert_true(load.sum.capacity_tokens == 32031);
        assert_true(load.block_tokens == 32);
        assert_true(load.prefix_caching == 1);
        assert_true(load.sleeping == 0);
        assert_int_equal(load.rank_count, 1);
        assert_int_equal(load.ranks[0].rank, 0);
        /* what the page does not tell stays unknown */
        assert_true(load.sum.waiting_tokens == -1 && load.max_running == -1 && load.slots == -1);
}

static void test_vllm_ranks(void **state)
{
        (void)state;
        const char *page = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n"
                           "vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 5.0\n"
                           "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 1.0\n"
                           "vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 0.0\n"
                           "vllm:num_requests_waiting_by_reason{engine=\"1\",reason=\"capacity\"} 7\n"
                           "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.5\n"
                           "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m\"} 0.25\n"
                           "vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"100\"} 1\n"
                           "vllm:cache_config_info{engine=\"1\",block_size=\"16\",num_gpu_blocks=\"50\","
                           "enable_prefix_caching=\"False\"} 1\n"
                           "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\n"
                           "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"weights_offloaded\"} 1\n";
        struct engine_load load;

        engine_load_init(&load);
        assert_true(engine_parse_load(ENGINE_VLLM, "/metrics", slice(page), &load));
        assert_true(load.sum.running == 8 && load.sum.waiting == 1 && load.sum.kv_usage == 0.375);
        assert_true(load.sum.capacity_tokens == 2400);
        assert_int_equal(load.rank_count, 2);
        assert_true(load.ranks[1].rank == 1 && load.ranks[1].running == 5 &&
                    load.ranks[1].capacity_tokens == 800);
        assert_true(load.prefix_caching == 0 && load.sleeping == 1 && load.block_tokens == 16);
        /* a second page replaces what it tells, does not add to it, and leaves the rest */
        assert_true(engine_parse_load(ENGINE_VLLM, "/metrics",
                                      slice("vllm:num_requests_running{engine=\"1\"} 1\n"
                                            "vllm:gpu_cache_usage_perc{engine=\"1\"} 1\n"),
                                      &load));
        assert_true(load.sum.running == 1 && load.sum.waiting == 1 && load.ranks[1].kv_usage == 1);
        assert_int_equal(load.rank_count, 2);
}

static void test_pages_without_anything(void **state)
{
        (void)state;
        static const char *const pages[] = {"",
                                            "{}",
                                            "[]",
                                            "null",
                                            "<html>Not Found</html>",
                                            "{\"loads\":[]}",
                                            "{\"loads\":[1,null,{}]}",
                                            "vllm:num_requests_running NaN\n",
                                            "up 1\n",
                                            "{\"detail\":\"Not Found\"}",
                                            "[[[[",
                                            "\xff\xfe"};

        for (unsigned kind = 0; kind < ENGINE_KIND_COUNT; kind++) {
                const struct engine_traits *row = engine_traits((enum engine_kind)kind);

                for (unsigned p = 0; p < ENGINE_POLLS_MAX && row->polls[p].path; p++)
                        for (unsigned i = 0; i < sizeof pages / sizeof *pages; i++) {
                                struct engine_load load, before;

                                memset(&load, 0, sizeof load);
                                engine_load_init(&load);
                                load.sum.running = 4;
                                before = load;
                                assert_false(engine_parse_load((enum engine_kind)kind, row->polls[p].path,
                                                               slice(pages[i]), &load));
                                assert_memory_equal(&load, &before, sizeof load);
                        }
        }
}

static void test_sglang_pages(void **state)
{
        (void)state;
        struct engine_load load;

        engine_load_init(&load);
        assert_true(load_file(ENGINE_SGLANG, "/server_info", "sglang/server_info.json", &load));
        assert_true(load.block_tokens == 16 && load.sum.capacity_tokens == 640 && load.max_running == 16);
        assert_true(load.prefix_caching == 1 && load.cache_report == 1 && load.n_ctx == -1);
        assert_true(load_file(ENGINE_SGLANG, "/v1/loads", "sglang/loads.json", &load));
        assert_true(load.sum.running == 0 && load.sum.waiting == 0 && load.sum.waiting_tokens == 0);
        assert_true(load.sum.capacity_tokens == 640 && load.max_running == 16);
        assert_true(load.measured_unix_s == 1796074012.35714);
        assert_int_equal(load.rank_count, 1);

        engine_load_init(&load);
        assert_true(load_file(ENGINE_SGLANG, "/metrics", "sglang/metrics.txt", &load));
        assert_true(load.sum.running == 0 && load.sum.waiting == 0 && load.sum.kv_usage == 0);
        assert_true(load.sum.capacity_tokens == 640 && load.block_tokens == 16 && load.n_ctx == 32768);
}

static void test_sglang_ranks(void **state)
{
        (void)state;
        struct engine_load load;

        engine_load_init(&load);
        assert_true(engine_parse_load(
                ENGINE_SGLANG, "/v1/loads",
                slice("{\"loads\":[{\"dp_rank\":0,\"num_running_reqs\":2,\"num_waiting_reqs\":1,\"token_"
                      "usage\":0.5,"
                      "\"max_total_num_tokens\":100,\"max_running_requests\":8,\"num_waiting_uncached_"
                      "tokens\":77},"
                      "{\"dp_rank\":1,\"num_running_reqs\":4,\"num_waiting_reqs\":0,\"token_usage\":0.1,"
                      "\"max_total_num_tokens\":100,\"max_running_requests\":8,\"num_waiting_uncached_"
                      "tokens\":0}]}"),
                &load));
        assert_true(load.sum.running == 6 && load.sum.waiting == 1 && load.sum.waiting_tokens == 77);
        assert_true(load.sum.kv_usage > 0.299 && load.sum.kv_usage < 0.301);
        assert_true(load.max_running == 16 && load.sum.capacity_tokens == 200 && load.rank_count == 2);

        /* the older page: running and waiting in one number */
        engine_load_init(&load);
        assert_true(engine_parse_load(
                ENGINE_SGLANG, "/get_load",
                slice("[{\"dp_rank\":0,\"num_reqs\":5,\"num_waiting_reqs\":2,\"num_tokens\":9}]"), &load));
        assert_true(load.sum.running == 3 && load.sum.waiting == 2);

        /* tensor ranks repeat the figures of their data-parallel rank */
        engine_load_init(&load);
        assert_true(engine_parse_load(ENGINE_SGLANG, "/metrics",
                                      slice("sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 3\n"
                                            "sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"1\"} 3\n"
                                            "sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"2\"} 4\n"
                                            "sglang:evicted_tokens_total{dp_rank=\"9\"} 4\n"),
                                      &load));
        assert_true(load.sum.running == 7 && load.sum.waiting == -1 && load.rank_count == 2);
}

static void test_llamacpp_pages(void **state)
{
        (void)state;
        struct engine_load load;

        engine_load_init(&load);
        assert_true(engine_parse_load(
                ENGINE_LLAMACPP, "/metrics",
                slice("# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 3\n"
                      "llamacpp:requests_deferred 2\n"),
                &load));
        assert_true(load.sum.running == 3 && load.sum.waiting == 2 && load.sum.kv_usage == -1);
        assert_true(
                engine_parse_load(ENGINE_LLAMACPP, "/props",
                                  slice("{\"total_slots\":4,\"default_generation_settings\":{\"n_ctx\":8192},"
                                        "\"build_info\":\"b11669-x\",\"is_sleeping\":false}"),
                                  &load));
        assert_true(load.slots == 4 && load.n_ctx == 8192 && load.max_running == 4 && load.sleeping == 0);
        engine_load_init(&load);
        assert_true(engine_parse_load(ENGINE_LLAMACPP, "/slots",
                                      slice("[{\"id\":0,\"n_ctx\":512,\"is_processing\":true},"
                                            "{\"id\":1,\"n_ctx\":512,\"is_processing\":false}]"),
                                      &load));
        assert_true(load.sum.running == 1 && load.sum.waiting == -1 && load.slots == 2 && load.n_ctx == 512);
}

static void test_trtllm_pages(void **state)
{
        (void)state;
        struct engine_load load;

        engine_load_init(&load);
        assert_true(engine_parse_load(
                ENGINE_TRTLLM, "/metrics",
                slice("[{\"iter\":1,\"numActiveRequests\":9},{\"iter\":2,\"numActiveRequests\":1,"
                      "\"numQueuedRequests\":4,\"maxNumActiveRequests\":2048,\"kvCacheStats\":{"
                      "\"maxNumBlocks\":100,\"usedNumBlocks\":25,\"tokensPerBlock\":32}}]"),
                &load));
        assert_true(load.sum.running == 1 && load.sum.waiting == 4 && load.sum.kv_usage == 0.25);
        assert_true(load.sum.capacity_tokens == 3200 && load.max_running == 2048 && load.block_tokens == 32);
        engine_load_init(&load);
        assert_true(engine_parse_load(ENGINE_TRTLLM, "/prometheus/metrics",
                                      slice("trtllm_num_requests_running{model_name=\"m\"} 2\n"
                                            "trtllm_num_requests_waiting{model_name=\"m\"} 3\n"
                                            "trtllm_kv_cache_utilization{model_name=\"m\"} 0.75\n"
                                            "trtllm_kv_cache_max_blocks{model_name=\"m\"} 10\n"
                                            "trtllm_kv_cache_tokens_per_block{model_name=\"m\"} 64\n"),
                                      &load));
        assert_true(load.sum.running == 2 && load.sum.waiting == 3 && load.sum.kv_usage == 0.75);
        assert_true(load.sum.capacity_tokens == 640);
        /* nothing happened since somebody else read it: the last figures stand, they are not 0 */
        assert_false(engine_parse_load(ENGINE_TRTLLM, "/metrics", slice("[]"), &load));
        assert_true(load.sum.running == 2);
}

static void test_other_pages(void **state)
{
        (void)state;
        struct engine_load load;

        engine_load_init(&load);
        assert_true(engine_parse_load(ENGINE_TGI, "/metrics",
                                      slice("tgi_queue_size 4\ntgi_batch_current_size 6\n"), &load));
        assert_true(engine_parse_load(ENGINE_TGI, "/info",
                                      slice("{\"max_total_tokens\":4096,\"max_batch_total_tokens\":99000,"
                                            "\"max_concurrent_requests\":128}"),
                                      &load));
        assert_true(load.sum.waiting == 4 && load.sum.running == 6 && load.sum.capacity_tokens == 99000);
        assert_true(load.max_running == 128 && load.n_ctx == 4096);
        engine_load_init(&load);
        assert_true(engine_parse_load(
                ENGINE_LMDEPLOY, "/metrics",
                slice("lmdeploy:num_requests_running{m=\"a\"} 1\nlmdeploy:num_requests_waiting 2\n"
                      "lmdeploy:gpu_cache_usage_perc 0.5\n"),
                &load));
        assert_true(load.sum.running == 1 && load.sum.waiting == 2 && load.sum.kv_usage == 0.5);
}

static void test_many_ranks(void **state)
{
        (void)state;
        static char page[64 * 1024];
        struct engine_load load;
        size_t len = 0;

        for (int i = 0; i < 200; i++)
                len += (size_t)snprintf(page + len, sizeof page - len,
                                        "vllm:num_requests_running{engine=\"%d\"} 1\n", i);
        engine_load_init(&load);
        assert_true(engine_parse_load(ENGINE_VLLM, "/metrics", (struct kvr_slice){page, len}, &load));
        assert_int_equal(load.rank_count, ENGINE_RANKS_MAX);
        assert_true(load.sum.running == 200);
}

static void test_health(void **state)
{
        (void)state;
        static const struct {
                enum engine_kind kind;
                unsigned status;
                const char *body;
                enum engine_health want;
        } rows[] = {
                {ENGINE_VLLM, 200, "", ENGINE_HEALTH_READY},
                {ENGINE_VLLM, 503, "", ENGINE_HEALTH_DOWN},
                {ENGINE_VLLM, 0, "", ENGINE_HEALTH_DOWN},
                {ENGINE_VLLM, 404, "", ENGINE_HEALTH_NEXT},
                {ENGINE_SGLANG, 503, "", ENGINE_HEALTH_DRAINING},
                {ENGINE_SGLANG, 503, "{\"status\":\"Starting\"}", ENGINE_HEALTH_LOADING},
                {ENGINE_SGLANG, 404, "", ENGINE_HEALTH_NEXT},
                {ENGINE_LLAMACPP, 503, "{\"error\":{\"message\":\"Loading model\"}}", ENGINE_HEALTH_LOADING},
                {ENGINE_LLAMACPP, 200, "{\"status\":\"ok\"}", ENGINE_HEALTH_READY},
                {ENGINE_OPENAI, 401, "", ENGINE_HEALTH_READY},
                {ENGINE_OPENAI, 500, "", ENGINE_HEALTH_DOWN},
                {ENGINE_OPENAI, 302, "", ENGINE_HEALTH_DOWN},
                {ENGINE_OPENAI, 503, "Loading", ENGINE_HEALTH_LOADING},
                {ENGINE_AUTO, 405, "", ENGINE_HEALTH_NEXT},
        };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                assert_int_equal(
                        engine_judge_health(rows[i].kind, "/health", rows[i].status, slice(rows[i].body)),
                        rows[i].want);
        assert_string_equal(engine_traits(ENGINE_SGLANG)->health_paths[0], "/ready");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_kinds),          cmocka_unit_test(test_vllm_page),
                cmocka_unit_test(test_vllm_ranks),     cmocka_unit_test(test_pages_without_anything),
                cmocka_unit_test(test_sglang_pages),   cmocka_unit_test(test_sglang_ranks),
                cmocka_unit_test(test_llamacpp_pages), cmocka_unit_test(test_trtllm_pages),
                cmocka_unit_test(test_other_pages),    cmocka_unit_test(test_many_ranks),
                cmocka_unit_test(test_health),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
