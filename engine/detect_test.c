/* SPDX-License-Identifier: Apache-2.0 */
#include "detect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "test_data.h"

struct answer {
        const char *path;
        unsigned status;
        const char *server;
        const char *body;
};

static struct kvr_slice slice(const char *text)
{
        return (struct kvr_slice){text ? text : "", text ? strlen(text) : 0};
}

/* Plays a server that has these pages and 404 for all others. */
static struct engine_detect detect(const struct answer *answers, size_t count)
{
        struct engine_detect d;
        const char *path;
        unsigned steps = 0;

        engine_detect_init(&d);
        while ((path = engine_detect_next_path(&d)) != NULL) {
                struct answer answer = {path, 404, NULL, "{\"detail\":\"Not Found\"}"};

                assert_true(++steps <= ENGINE_DETECT_STEPS_MAX);
                for (size_t i = 0; i < count; i++)
                        if (strcmp(answers[i].path, path) == 0)
                                answer = answers[i];
                engine_detect_feed(&d, answer.status, slice(answer.server), slice(answer.body));
        }
        return d;
}

#define DETECT(...)                                  \
        detect((const struct answer[]){__VA_ARGS__}, \
               sizeof((const struct answer[]){__VA_ARGS__}) / sizeof(struct answer))

static void test_by_owner(void **state)
{
        (void)state;
        struct kvr_slice models = test_data_read("vllm/models.json");
        char *text = strndup(models.data, models.len);
        struct engine_detect d = DETECT({"/v1/models", 200, "uvicorn", text},
                                        {"/version", 200, "uvicorn", "{\"version\":\"0.32.0\"}"});

        assert_int_equal(d.kind, ENGINE_VLLM);
        assert_string_equal(d.version, "0.32.0");
        free(text);
        test_data_free(models);

        models = test_data_read("sglang/models.json");
        text = strndup(models.data, models.len);
        struct kvr_slice info = test_data_read("sglang/server_info.json");
        char *info_text = strndup(info.data, info.len);
        d = DETECT({"/v1/models", 200, "", text}, {"/server_info", 200, "", info_text});
        assert_int_equal(d.kind, ENGINE_SGLANG);
        assert_string_equal(d.version, "0.5.23");
        free(text);
        free(info_text);
        test_data_free(models);
        test_data_free(info);

        d = DETECT({"/v1/models", 200, "", "{\"data\":[{\"id\":\"m\",\"owned_by\":\"lmdeploy\"}]}"});
        assert_int_equal(d.kind, ENGINE_LMDEPLOY);
        /* no version page: decided all the same */
        d = DETECT({"/v1/models", 200, "", "{\"data\":[{\"id\":\"m\",\"owned_by\":\"tensorrt_llm\"}]}"});
        assert_int_equal(d.kind, ENGINE_TRTLLM);
        assert_string_equal(d.version, "");
}

static void test_by_server_header(void **state)
{
        (void)state;
        /* also while it loads its model */
        struct engine_detect d =
                DETECT({"/v1/models", 503, "llama.cpp", "{\"error\":{\"message\":\"Loading model\"}}"},
                       {"/props", 200, "llama.cpp", "{\"build_info\":\"b11669-abc\",\"total_slots\":4}"});
        assert_int_equal(d.kind, ENGINE_LLAMACPP);
        assert_string_equal(d.version, "b11669-abc");
}

static void test_by_page(void **state)
{
        (void)state;
        const char *list = "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"owned_by\":\"me\"}]}";
        struct engine_detect d;

        d = DETECT({"/v1/models", 200, "nginx", list}, {"/version", 200, "nginx", "{\"version\":\"0.30.0\"}"},
                   {"/metrics", 200, "nginx", "# HELP x\nvllm:num_requests_running{engine=\"0\"} 0\n"});
        assert_int_equal(d.kind, ENGINE_VLLM);
        assert_string_equal(d.version, "0.30.0");
        d = DETECT({"/v1/models", 200, "", list}, {"/version", 200, "", "{\"version\":\"1.2.0\"}"},
                   {"/metrics", 200, "", "[{\"iter\":1,\"kvCacheStats\":{}}]"});
        assert_int_equal(d.kind, ENGINE_TRTLLM);
        d = DETECT({"/v1/models", 200, "", list},
                   {"/get_server_info", 200, "", "{\"tokenizer_path\":\"x\",\"version\":\"0.4.1\"}"});
        assert_int_equal(d.kind, ENGINE_SGLANG);
        assert_string_equal(d.version, "0.4.1");
        d = DETECT({"/v1/models", 200, "", list},
                   {"/props", 200, "", "{\"build_info\":\"b1\",\"total_slots\":1}"});
        assert_int_equal(d.kind, ENGINE_LLAMACPP);
        d = DETECT({"/v1/models", 404, "", ""},
                   {"/info", 200, "", "{\"model_id\":\"m\",\"max_total_tokens\":4096}"});
        assert_int_equal(d.kind, ENGINE_TGI);
        d = DETECT({"/v1/models", 200, "", "{\"data\":[{\"id\":\"m\",\"owned_by\":\"library\"}]}"},
                   {"/api/version", 200, "", "{\"version\":\"0.9.1\"}"});
        assert_int_equal(d.kind, ENGINE_OLLAMA);
        assert_string_equal(d.version, "0.9.1");
        /* vLLM in dev mode has /server_info as well */
        d = DETECT({"/v1/models", 200, "", list}, {"/server_info", 200, "", "{\"vllm_config\":\"...\"}"},
                   {"/metrics", 200, "", "vllm:num_requests_running 0\n"});
        assert_int_equal(d.kind, ENGINE_VLLM);
        /* the Ollama-like pages of SGLang are no sign of Ollama */
        d = DETECT({"/v1/models", 200, "", list}, {"/api/tags", 200, "", "{\"models\":[]}"},
                   {"/metrics", 200, "", "sglang:num_running_reqs 0\n"});
        assert_int_equal(d.kind, ENGINE_SGLANG);
}

static void test_unknown(void **state)
{
        (void)state;
        struct engine_detect d = DETECT({"/v1/models", 200, "", "{\"data\":[]}"});
        assert_int_equal(d.kind, ENGINE_OPENAI);
        assert_false(d.failed);
        assert_false(d.unauthorized);
        d = DETECT({"/v1/models", 401, "", ""});
        assert_int_equal(d.kind, ENGINE_OPENAI);
        assert_true(d.unauthorized);
        d = DETECT({"/v1/models", 200, "", "not json"}, {"/props", 200, "", "{\"build_info\":7}"},
                   {"/info", 200, "", "[]"}, {"/api/version", 200, "", "\"version\""});
        assert_int_equal(d.kind, ENGINE_OPENAI);
}

static void test_no_connection(void **state)
{
        (void)state;
        struct engine_detect d = DETECT({"/v1/models", 0, NULL, NULL});
        assert_true(d.failed);
        assert_int_equal(d.kind, ENGINE_AUTO);
        /* a page that hangs later does not throw the rest away */
        d = DETECT({"/v1/models", 404, "", ""}, {"/server_info", 0, NULL, NULL},
                   {"/metrics", 200, "", "vllm:num_requests_running 0\n"});
        assert_int_equal(d.kind, ENGINE_VLLM);
        /* feeding after the end does nothing */
        engine_detect_feed(&d, 200, slice("llama.cpp"), slice("{}"));
        assert_int_equal(d.kind, ENGINE_VLLM);
}

static void test_version_is_clean(void **state)
{
        (void)state;
        struct engine_detect d =
                DETECT({"/v1/models", 200, "", "{\"data\":[{\"owned_by\":\"vllm\"}]}"},
                       {"/version", 200, "",
                        "{\"version\":\"a\\n\\u001b[1m\xc3\xa4"
                        "0123456789012345678901234567890123456789012345678901234567890123\"}"});
        assert_int_equal(strlen(d.version), ENGINE_VERSION_MAX - 1);
        assert_memory_equal(d.version, "a??[1m??0123", 12);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_by_owner),      cmocka_unit_test(test_by_server_header),
                cmocka_unit_test(test_by_page),       cmocka_unit_test(test_unknown),
                cmocka_unit_test(test_no_connection), cmocka_unit_test(test_version_is_clean),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
