/* SPDX-License-Identifier: Apache-2.0 */
#include "paths.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kvr_slice slice(const char *text)
{
        return (struct kvr_slice){text, strlen(text)};
}

static bool admin(const char *method, const char *path)
{
        /* exactly sized, so that a read beyond is seen */
        size_t len = strlen(path);
        char *copy = malloc(len ? len : 1);

        assert_non_null(copy);
        memcpy(copy, path, len);
        bool result = engine_path_is_admin(slice(method), (struct kvr_slice){copy, len});
        free(copy);
        return result;
}

static void test_what_clients_need_passes(void **state)
{
        (void)state;
        static const char *const get[] = {
                "/v1/models",       "/v1/models/org/sleep",
                "/v1/models/pause", "/v1/responses/resp_1",
                "/health",          "/props",
                "/lora-adapters",   "/version",
                "/model_info",      "/",
                "/v1/models/slots", "/api/tags",
                "/models",          "/v1/responses/flush_cache",
        };
        static const char *const post[] = {
                "/v1/chat/completions",
                "/v1/completions",
                "/v1/responses",
                "/v1/messages",
                "/v1/embeddings",
                "/tokenize",
                "/v1/rerank",
                "/generate",
                "/completion",
                "/v1/messages/count_tokens",
                "/v1/responses/r/cancel",
                "/api/chat",
                "/api/generate",
                "/infill",
                "/apply-template",
                "/v1/audio/transcriptions",
                "/v1/chat/completions/",
                "/v1/score",
                "/classify",
                "/open_session",
        };
        for (size_t i = 0; i < sizeof get / sizeof *get; i++)
                assert_false(admin("GET", get[i]));
        for (size_t i = 0; i < sizeof post / sizeof *post; i++)
                assert_false(admin("POST", post[i]));
}

static void test_admin_paths(void **state)
{
        (void)state;
        static const char *const paths[] = {
                "/reset_prefix_cache",
                "/reset_mm_cache",
                "/sleep",
                "/wake_up",
                "/is_sleeping",
                "/pause",
                "/resume",
                "/is_paused",
                "/collective_rpc",
                "/abort_requests",
                "/update_weights",
                "/v1/load_lora_adapter",
                "/v1/unload_lora_adapter",
                "/adapters",
                "/adapters/x",
                "/scale_elastic_ep",
                "/inference/v1/abort_requests",
                "/start_weight_update",
                "/finish_weight_update",
                "/shutdown_weight_transfer_engine",
                "/flush_cache",
                "/abort_request",
                "/pause_generation",
                "/continue_generation",
                "/load_lora_adapter",
                "/load_lora_adapter_from_tensors",
                "/unload_lora_adapter",
                "/release_memory_occupation",
                "/resume_memory_occupation",
                "/update_weights_from_disk",
                "/update_weights_from_ipc",
                "/hicache/storage-backend",
                "/hicache/storage-backend/clear",
                "/set_internal_state",
                "/server_info",
                "/get_server_info",
                "/slots",
                "/slots/0",
                "/props",
                "/lora-adapters",
                "/models/load",
                "/kv_cache_events",
                "/perf_metrics",
                "/distserve/x",
                "/wakeup",
                "/api/pull",
                "/api/delete",
                "/api/blobs/sha256:1",
                "/mock/fault",
                "/start_profile",
                "/freeze_gc",
                "/pd_role_switch",
                "/kv_event_sources",
        };
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
                if (!admin("POST", paths[i]))
                        fail_msg("%s passes", paths[i]);
        assert_true(admin("GET", "/flush_cache"));
        assert_true(admin("PUT", "/hicache/storage-backend"));
        assert_true(admin("DELETE", "/adapters/x"));
        assert_true(admin("get", "/props")); /* a method that is not GET is no reading */
}

static void test_tricks(void **state)
{
        (void)state;
        static const char *const paths[] = {
                "/Flush_Cache",
                "//flush_cache",
                "/flush_cache/",
                "/flush_cache//",
                "/./flush_cache",
                "/v1/../flush_cache",
                "/%66lush_cache",
                "/flush%5fcache",
                "/%2566lush_cache",
                "/flush_cache;x=1",
                "/;a/flush_cache",
                "/x/..;/flush_cache",
                "/v1/models/..%2f..%2fflush_cache",
                "/v1%2fflush_cache",
                "/%2fflush_cache",
                "\\flush_cache",
                "/x\\flush_cache",
                "/flush_cache%2f",
                "/v1/flush_cache",
                "/llm/flush_cache",
                "/a/b/flush_cache",
                "/v1/chat/%2e%2e/%2e%2e/sleep",
                "flush_cache",
                "/flush_cache%3fx",
                "/flush_cache%23",
                "/V1/LOAD_LORA_ADAPTER",
                "/openai/v1/load_lora_adapter",
        };
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
                if (!admin("POST", paths[i]))
                        fail_msg("%s passes", paths[i]);
}

static void test_unreadable_paths_are_refused(void **state)
{
        (void)state;
        static const char *const paths[] = {
                "/../x",  "/a/../../b", "/%",         "/%4",    "/%zz",     "/a%0ab",
                "/a%00b", "/%25%zz",    "/%25252541", "/a%7fb", "/%2525zz",
        };
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
                if (!admin("GET", paths[i]))
                        fail_msg("%s passes", paths[i]);
        char *longest = malloc(ENGINE_PATH_MAX + 2);

        assert_non_null(longest);
        memset(longest, 'a', ENGINE_PATH_MAX + 1);
        longest[0] = '/';
        longest[ENGINE_PATH_MAX + 1] = 0;
        assert_true(admin("GET", longest));
        longest[ENGINE_PATH_MAX] = 0;
        assert_false(admin("GET", longest));
        free(longest);
        assert_false(admin("GET", ""));
        assert_false(admin("GET", "/caf%c3%a9"));
}

static void test_clears_cache(void **state)
{
        (void)state;
        assert_true(engine_path_clears_cache(slice("/flush_cache")));
        assert_true(engine_path_clears_cache(slice("/reset_prefix_cache/")));
        assert_true(engine_path_clears_cache(slice("/sleep")));
        assert_true(engine_path_clears_cache(slice("/update_weights_from_disk")));
        assert_false(engine_path_clears_cache(slice("/abort_request")));
        assert_false(engine_path_clears_cache(slice("/v1/chat/completions")));
        assert_false(engine_path_clears_cache(slice("/server_info")));
}

static void test_one_spelling(void **state)
{
        (void)state;
        static const struct {
                const char *path, *plain;
        } cases[] = {
                {"/v1/chat/completions", "/v1/chat/completions"},
                {"//v1/./chat//completions/", "/v1/chat/completions"},
                {"/v1/chat/%63ompletions", "/v1/chat/completions"},
                {"/v1%2Fchat/%2563ompletions", "/v1/chat/completions"},
                {"/V1/x/../Chat/completions;a=b", "/v1/chat/completions"},
                {"/", "/"},
                {"/..", NULL},
                {"/%zz", NULL},
                {"/a%00", NULL},
                {"", NULL},
        };
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                char text[ENGINE_PATH_ROOM];
                size_t len = 0;
                bool plain = engine_path_normalise(slice(cases[i].path), text, &len);

                assert_int_equal(plain, cases[i].plain != NULL);
                if (!plain)
                        continue;
                assert_int_equal(len, strlen(cases[i].plain));
                assert_memory_equal(text, cases[i].plain, len);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_what_clients_need_passes),
                cmocka_unit_test(test_admin_paths),
                cmocka_unit_test(test_tricks),
                cmocka_unit_test(test_unreadable_paths_are_refused),
                cmocka_unit_test(test_clears_cache),
                cmocka_unit_test(test_one_spelling),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
