/* SPDX-License-Identifier: Apache-2.0 */
/* What a request says of itself: names, paths, model, hints, limits, streaming, places for insertion, status
 * texts. */
#include "lib/error.h"
#include "lib/prompt_fields.h"
#include "lib/prompt_test_util.h"

static struct kvr_parser *parser;
static struct kvr_prompt prompt;
static struct kvr_error err;

static int setup(void **state)
{
        (void)state;
        parser = kvr_parser_new();
        return parser ? 0 : -1;
}

static int teardown(void **state)
{
        (void)state;
        kvr_parser_free(parser);
        return 0;
}

static enum kvr_status read_body(enum kvr_api api, const char *body)
{
        memset(&err, 0, sizeof(err));
        return kvr_prompt_parse(parser, api, slice_of(body), NULL, &prompt, &err);
}

static void read_ok(enum kvr_api api, const char *body)
{
        if (read_body(api, body))
                fail_msg("%s: %s", err.message, body);
}

static void assert_slice(struct kvr_slice slice, const char *text)
{
        if (slice.len != strlen(text) || memcmp(slice.data, text, slice.len) != 0)
                fail_msg("'%.*s' is not '%s'", (int)slice.len, slice.data, text);
}

static void test_paths(void **state)
{
        static const struct {
                const char *path;
                enum kvr_api api;
        } cases[] = {
                {"/v1/chat/completions", KVR_API_CHAT},
                {"/chat/completions", KVR_API_CHAT},
                {"/v1/completions", KVR_API_COMPLETIONS},
                {"/completions", KVR_API_LLAMACPP},
                {"/completion", KVR_API_LLAMACPP},
                {"/v1/responses", KVR_API_RESPONSES},
                {"/responses", KVR_API_RESPONSES},
                {"/v1/messages", KVR_API_MESSAGES},
                {"/messages", KVR_API_MESSAGES},
                {"/v1/embeddings", KVR_API_EMBEDDINGS},
                {"/embeddings", KVR_API_EMBEDDINGS},
                {"/generate", KVR_API_SGLANG},
                {"", KVR_API_OTHER},
                {"/", KVR_API_OTHER},
                {"/v1/chat/completions/", KVR_API_OTHER},
                {"/v1/messages/count_tokens", KVR_API_OTHER},
                {"/v1/responses/resp_1", KVR_API_OTHER},
                {"/v1/audio/transcriptions", KVR_API_OTHER},
                {"/V1/chat/completions", KVR_API_OTHER},
                {"/v1/generate", KVR_API_OTHER},
                {"/v1/completion", KVR_API_OTHER},
                {"/v1/chat/completion", KVR_API_OTHER},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
                if (kvr_api_of_path(slice_of(cases[i].path)) != cases[i].api)
                        fail_msg("%s", cases[i].path);
        assert_int_equal(kvr_api_of_path((struct kvr_slice){0}), KVR_API_OTHER);
}

static void test_names(void **state)
{
        (void)state;
        assert_string_equal(kvr_api_name(KVR_API_OTHER), "other");
        assert_string_equal(kvr_api_name(KVR_API_CHAT), "chat");
        assert_string_equal(kvr_api_name(KVR_API_COMPLETIONS), "completions");
        assert_string_equal(kvr_api_name(KVR_API_RESPONSES), "responses");
        assert_string_equal(kvr_api_name(KVR_API_MESSAGES), "messages");
        assert_string_equal(kvr_api_name(KVR_API_EMBEDDINGS), "embeddings");
        assert_string_equal(kvr_api_name(KVR_API_LLAMACPP), "llamacpp");
        assert_string_equal(kvr_api_name(KVR_API_SGLANG), "sglang");
        assert_string_equal(kvr_api_name((enum kvr_api)99), "unknown");
        assert_int_equal(read_body((enum kvr_api)99, "{}"), KVR_E_ARGUMENT);
}

static void test_status_texts(void **state)
{
        (void)state;
        assert_string_equal(kvr_status_name(KVR_OK), "ok");
        assert_string_equal(kvr_status_name(KVR_E_REQUEST), "invalid_request");
        assert_string_equal(kvr_status_name(KVR_E_BUSY), "busy");
        assert_string_equal(kvr_status_name((enum kvr_status)999), "unknown");
        assert_string_equal(kvr_status_text(KVR_E_NO_MODEL), "no replica serves this model");
        assert_non_null(kvr_status_text((enum kvr_status)999));
}

static void test_error_set(void **state)
{
        struct kvr_error e = {0};
        char lengthy[400];

        (void)state;
        memset(lengthy, 'x', sizeof(lengthy));
        lengthy[sizeof(lengthy) - 1] = 0;
        assert_int_equal(kvr__error_set(NULL, KVR_E_LIMIT, 1, "f", "m"), KVR_E_LIMIT);
        assert_int_equal(kvr__error_set(&e, KVR_E_LIMIT, 5, "f", "%d of %s", 3, "n"), KVR_E_LIMIT);
        assert_int_equal(e.status, KVR_E_LIMIT);
        assert_int_equal(e.offset, 5);
        assert_string_equal(e.field, "f");
        assert_string_equal(e.message, "3 of n");
        kvr__error_set(&e, KVR_E_JSON, 0, NULL, "%s", lengthy);
        assert_string_equal(e.field, "");
        assert_int_equal(strlen(e.message), sizeof(e.message) - 1);
        kvr__error_set(&e, KVR_E_JSON, 0, lengthy, "m");
        assert_int_equal(strlen(e.field), sizeof(e.field) - 1);
}

static void test_every_field_is_found(void **state)
{
        struct kvr__field_map map;

        (void)state;
        kvr__field_map_init(&map);
        for (unsigned i = 0; i < KVR__FIELD_COUNT; i++) {
                const char *name = kvr__field_name((enum kvr__field)i);
                unsigned apis = 0;
                char other[64];

                assert_true(strlen(name) <= KVR__FIELD_NAME_MAX);
                for (unsigned api = 0; api <= KVR_API_SGLANG; api++) {
                        enum kvr__field found = kvr__field_find(&map, (enum kvr_api)api, name, strlen(name));

                        assert_true(found == i || found == KVR__FIELD_COUNT);
                        apis += found == i;
                }
                assert_true(apis > 0);
                snprintf(other, sizeof(other), "%s_", name);
                assert_int_equal(kvr__field_find(&map, KVR_API_CHAT, other, strlen(other)), KVR__FIELD_COUNT);
                assert_int_equal(kvr__field_find(&map, KVR_API_CHAT, name, 0), KVR__FIELD_COUNT);
        }
}

static void test_defaults(void **state)
{
        (void)state;
        read_ok(KVR_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
        assert_int_equal(prompt.api, KVR_API_CHAT);
        assert_int_equal(prompt.unit, KVR_UNIT_BYTES);
        assert_int_equal(prompt.model.len, 0);
        assert_int_equal(prompt.hint.len, 0);
        assert_int_equal(prompt.previous_id.len, 0);
        assert_int_equal(prompt.max_tokens, 0);
        assert_int_equal(prompt.prompt_count, 1);
        assert_int_equal(prompt.choices, 1);
        assert_false(prompt.stream);
        assert_false(prompt.usage_asked);
        assert_false(prompt.has_stream_options);
        assert_int_equal(prompt.stream_options_insert, 0);
        assert_int_equal(prompt.body_insert, 1);
        assert_false(prompt.body_empty_object);
        assert_int_equal(prompt.priority, 0);
        assert_int_equal(prompt.point_count, 1);
        assert_ptr_not_equal(prompt.points, NULL);
}

static void test_model(void **state)
{
        (void)state;
        read_ok(KVR_API_CHAT, "{\"model\":\"a/b\"}");
        assert_slice(prompt.model, "a/b");
        read_ok(KVR_API_CHAT, "{\"model\":\"a\\/\\u0062\\n\\\"\"}");
        assert_slice(prompt.model, "a/b\n\"");
        read_ok(KVR_API_CHAT, "{\"model\":null}");
        assert_int_equal(prompt.model.len, 0);
        read_ok(KVR_API_CHAT, "{\"model\":\"\"}");
        assert_int_equal(prompt.model.len, 0);
        read_ok(KVR_API_OTHER, "{\"model\":\"m\",\"stream\":true}");
        assert_slice(prompt.model, "m");
        assert_true(prompt.stream);
        assert_int_equal(prompt.point_count, 0);
        read_ok(KVR_API_OTHER, "{\"model\":5}");
        assert_int_equal(prompt.model.len, 0);
}

static void test_hints(void **state)
{
        (void)state;
        read_ok(KVR_API_CHAT, "{\"user\":\"u\",\"session_id\":\"s\",\"prompt_cache_key\":\"p\"}");
        assert_slice(prompt.hint, "p");
        read_ok(KVR_API_CHAT, "{\"user\":\"u\",\"session_id\":\"s\\t\",\"prompt_cache_key\":\"\"}");
        assert_slice(prompt.hint, "s\t");
        read_ok(KVR_API_CHAT, "{\"user\":\"u\",\"session_id\":7}");
        assert_slice(prompt.hint, "u");
        read_ok(KVR_API_MESSAGES, "{\"metadata\":{\"user_id\":\"m\",\"x\":1},\"user\":\"u\"}");
        assert_slice(prompt.hint, "m");
        read_ok(KVR_API_MESSAGES, "{\"metadata\":[1]}");
        assert_int_equal(prompt.hint.len, 0);
        read_ok(KVR_API_CHAT, "{\"metadata\":{\"user_id\":\"m\"}}");
        assert_int_equal(prompt.hint.len, 0);
        read_ok(KVR_API_SGLANG, "{\"text\":\"x\",\"session_params\":{\"id\":\"sess\"}}");
        assert_slice(prompt.hint, "sess");
        assert_int_equal(prompt.point_count, 0);
        read_ok(KVR_API_OTHER, "{\"session_id\":\"s\"}");
        assert_slice(prompt.hint, "s");
}

static void test_previous(void **state)
{
        (void)state;
        read_ok(KVR_API_RESPONSES, "{\"input\":\"x\",\"previous_response_id\":\"r1\"}");
        assert_slice(prompt.previous_id, "r1");
        read_ok(KVR_API_RESPONSES, "{\"input\":\"x\",\"conversation\":\"c1\"}");
        assert_slice(prompt.previous_id, "c1");
        read_ok(KVR_API_RESPONSES, "{\"input\":\"x\",\"conversation\":{\"id\":\"c\\u0032\"}}");
        assert_slice(prompt.previous_id, "c2");
        read_ok(KVR_API_RESPONSES,
                "{\"input\":\"x\",\"conversation\":\"c1\",\"previous_response_id\":\"r1\"}");
        assert_slice(prompt.previous_id, "r1");
        read_ok(KVR_API_CHAT, "{\"messages\":[{}],\"previous_response_id\":\"r1\"}");
        assert_int_equal(prompt.previous_id.len, 0);
}

static void test_limits(void **state)
{
        static const struct {
                enum kvr_api api;
                const char *body;
                uint32_t max_tokens, choices;
                int32_t priority;
        } cases[] = {
                {KVR_API_CHAT, "{\"max_tokens\":5,\"n\":3,\"priority\":-2}", 5, 3, -2},
                {KVR_API_CHAT, "{\"max_tokens\":5,\"max_completion_tokens\":6}", 6, 1, 0},
                {KVR_API_CHAT, "{\"max_tokens\":5,\"max_completion_tokens\":null,\"n\":null}", 5, 1, 0},
                {KVR_API_CHAT, "{\"max_tokens\":1e3,\"n\":2.0}", 1000, 2, 0},
                {KVR_API_CHAT, "{\"max_tokens\":-5,\"n\":0,\"priority\":\"x\"}", 0, 1, 0},
                {KVR_API_CHAT, "{\"max_tokens\":99999999999999999999,\"n\":-1,\"priority\":1e99}", UINT32_MAX,
                 1, INT32_MAX},
                {KVR_API_CHAT, "{\"max_tokens\":1e400,\"priority\":-99999999999}", UINT32_MAX, 1, INT32_MIN},
                {KVR_API_CHAT, "{\"max_tokens\":\"5\",\"n\":[2]}", 0, 1, 0},
                {KVR_API_CHAT, "{\"max_tokens\":0.00000000000000000000000000000000000000000000000000001}", 0,
                 1, 0},
                {KVR_API_RESPONSES, "{\"max_output_tokens\":7,\"max_tokens\":5,\"n\":3}", 7, 1, 0},
                {KVR_API_LLAMACPP, "{\"n_predict\":9}", 9, 1, 0},
                {KVR_API_LLAMACPP, "{\"n_predict\":-1}", 0, 1, 0},
                {KVR_API_SGLANG, "{\"sampling_params\":{\"max_new_tokens\":11,\"n\":2}}", 11, 2, 0},
                {KVR_API_SGLANG, "{\"sampling_params\":[{\"max_new_tokens\":11}]}", 0, 1, 0},
                {KVR_API_MESSAGES, "{\"max_tokens\":12,\"n\":4}", 12, 1, 0},
                {KVR_API_COMPLETIONS, "{\"max_tokens\":13,\"n\":4}", 13, 4, 0},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                read_ok(cases[i].api, cases[i].body);
                if (prompt.max_tokens != cases[i].max_tokens || prompt.choices != cases[i].choices ||
                    prompt.priority != cases[i].priority)
                        fail_msg("%u %u %d: %s", prompt.max_tokens, prompt.choices, prompt.priority,
                                 cases[i].body);
        }
}

static void test_streaming(void **state)
{
        static const struct {
                const char *body;
                bool stream, asked, has, empty;
                uint32_t insert; /* into stream_options */
        } cases[] = {
                {"{\"stream\":true}", true, false, false, false, 0},
                {"{\"stream\":false}", false, false, false, false, 0},
                {"{\"stream\":1}", true, false, false, false, 0},
                {"{\"stream\":\"true\"}", true, false, false, false, 0},
                {"{\"stream\":0}", false, false, false, false, 0},
                {"{\"stream\":null,\"stream_options\":null}", false, false, false, false, 0},
                {"{\"stream_options\":{}}", false, false, true, true, 19},
                {"{\"stream_options\": { \"x\":1}}", false, false, true, false, 20},
                {"{\"stream_options\":{\"include_usage\":true}}", false, true, true, false, 19},
                {"{\"stream_options\":{\"include_usage\":false}}", false, false, true, false, 19},
                {"{\"stream_options\":{\"include_usage\":null}}", false, false, true, false, 19},
                {"{\"stream_options\":{\"x\":{\"include_usage\":true}}}", false, false, true, false, 19},
                {"{\"stream_options\":5}", false, false, true, false, 0},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                read_ok(KVR_API_CHAT, cases[i].body);
                if (prompt.stream != cases[i].stream || prompt.usage_asked != cases[i].asked ||
                    prompt.has_stream_options != cases[i].has ||
                    prompt.stream_options_empty != cases[i].empty ||
                    prompt.stream_options_insert != cases[i].insert)
                        fail_msg("%s", cases[i].body);
                if (cases[i].insert)
                        assert_int_equal(cases[i].body[cases[i].insert - 1], '{');
        }
}

/* Where a host that wants usage must write `true` over what the client wrote. */
static void test_usage_denied(void **state)
{
        static const struct {
                const char *body;
                uint32_t options_null, denied;
        } cases[] = {
                {"{\"stream\":true}", 0, 0},
                {"{\"stream_options\":null}", 18, 0},
                {"{\"stream_options\":{}}", 0, 0},
                {"{\"stream_options\":{\"include_usage\":true}}", 0, 0},
                {"{\"stream_options\":{\"include_usage\":false}}", 0, 35},
                {"{\"stream_options\":{\"include_usage\": null}}", 0, 36},
                {"{\"stream_options\":{\"include_usage\":\"no\"}}", 0, 0},
                {"{\"stream_options\":[null]}", 0, 0},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                read_ok(KVR_API_CHAT, cases[i].body);
                if (prompt.stream_options_null != cases[i].options_null ||
                    prompt.usage_denied != cases[i].denied)
                        fail_msg("%u %u: %s", prompt.stream_options_null, prompt.usage_denied, cases[i].body);
                if (prompt.stream_options_null)
                        assert_memory_equal(cases[i].body + prompt.stream_options_null, "null", 4);
        }
}

static void test_places_for_insertion(void **state)
{
        (void)state;
        read_ok(KVR_API_CHAT, " \n{ }");
        assert_int_equal(prompt.body_insert, 3);
        assert_true(prompt.body_empty_object);
        read_ok(KVR_API_CHAT, "\xEF\xBB\xBF{\"a\":1}");
        assert_int_equal(prompt.body_insert, 4);
        assert_false(prompt.body_empty_object);
}

static void test_prompt_counts(void **state)
{
        static const struct {
                enum kvr_api api;
                const char *body;
                uint32_t count;
                bool keyed;
                enum kvr_unit unit;
        } cases[] = {
                {KVR_API_COMPLETIONS, "{\"prompt\":\"a\"}", 1, true, KVR_UNIT_BYTES},
                {KVR_API_COMPLETIONS, "{\"prompt\":[\"a\"]}", 1, true, KVR_UNIT_BYTES},
                {KVR_API_COMPLETIONS, "{\"prompt\":[\"a\",\"b\",\"c\"]}", 3, true, KVR_UNIT_BYTES},
                {KVR_API_COMPLETIONS, "{\"prompt\":[1,2,3]}", 1, true, KVR_UNIT_TOKENS},
                {KVR_API_COMPLETIONS, "{\"prompt\":[[1,2],[3]]}", 2, true, KVR_UNIT_TOKENS},
                {KVR_API_COMPLETIONS, "{\"prompt\":[[1,\"a\"],\"b\"]}", 2, true, KVR_UNIT_BYTES},
                {KVR_API_COMPLETIONS, "{\"prompt\":[\"b\",[1,2]]}", 2, true, KVR_UNIT_BYTES},
                {KVR_API_COMPLETIONS, "{\"prompt\":[1,\"a\",2]}", 1, true, KVR_UNIT_BYTES},
                {KVR_API_COMPLETIONS, "{\"prompt\":[]}", 0, false, KVR_UNIT_BYTES},
                {KVR_API_EMBEDDINGS, "{\"input\":[[1,2],[3]]}", 2, true, KVR_UNIT_TOKENS},
                {KVR_API_SGLANG, "{\"text\":[\"a\",\"b\"]}", 2, true, KVR_UNIT_BYTES},
                {KVR_API_SGLANG, "{\"input_ids\":[[1],[2]]}", 2, true, KVR_UNIT_TOKENS},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                read_ok(cases[i].api, cases[i].body);
                if (prompt.prompt_count != cases[i].count || (prompt.point_count > 0) != cases[i].keyed ||
                    prompt.unit != cases[i].unit)
                        fail_msg("%u %u %d: %s", prompt.prompt_count, prompt.point_count, (int)prompt.unit,
                                 cases[i].body);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_paths),
                cmocka_unit_test(test_names),
                cmocka_unit_test(test_status_texts),
                cmocka_unit_test(test_error_set),
                cmocka_unit_test(test_every_field_is_found),
                cmocka_unit_test(test_defaults),
                cmocka_unit_test(test_model),
                cmocka_unit_test(test_hints),
                cmocka_unit_test(test_previous),
                cmocka_unit_test(test_limits),
                cmocka_unit_test(test_streaming),
                cmocka_unit_test(test_usage_denied),
                cmocka_unit_test(test_places_for_insertion),
                cmocka_unit_test(test_prompt_counts),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, setup, teardown);
}
