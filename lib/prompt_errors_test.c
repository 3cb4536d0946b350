/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies that are refused, with the field that is to blame, and bodies that are let through without keys. */
#include "lib/prompt_test_util.h"

static struct kvr_parser *parser;

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

static void test_refused(void **state)
{
        static const struct {
                enum kvr_api api;
                const char *body, *field;
        } cases[] = {
                /* twice */
                {KVR_API_CHAT, "{\"model\":\"a\",\"model\":\"a\"}", "model"},
                {KVR_API_CHAT, "{\"model\":\"a\",\"mod\\u0065l\":\"a\"}", "model"},
                {KVR_API_CHAT, "{\"model\":null,\"model\":\"a\"}", "model"},
                {KVR_API_CHAT, "{\"messages\":[],\"messages\":[]}", "messages"},
                {KVR_API_CHAT, "{\"stream\":true,\"stream\":true}", "stream"},
                {KVR_API_CHAT, "{\"cache_salt\":\"a\",\"cache_salt\":\"b\"}", "cache_salt"},
                {KVR_API_CHAT, "{\"tools\":[],\"x\":1,\"tools\":[]}", "tools"},
                {KVR_API_CHAT, "{\"user\":\"a\",\"user\":\"b\"}", "user"},
                {KVR_API_CHAT, "{\"stream_options\":{\"include_usage\":true,\"include_usage\":true}}",
                 "stream_options.include_usage"},
                {KVR_API_CHAT, "{\"messages\":[{},{\"role\":\"a\",\"role\":\"a\"}]}", "messages[1].role"},
                {KVR_API_CHAT, "{\"messages\":[{\"content\":\"a\",\"c\\u006fntent\":\"a\"}]}",
                 "messages[0].content"},
                {KVR_API_CHAT, "{\"messages\":[{\"tool_calls\":[],\"tool_calls\":[]}]}",
                 "messages[0].tool_calls"},
                {KVR_API_CHAT, "{\"messages\":[{\"content\":[\"\",{\"text\":\"a\",\"text\":\"b\"}]}]}",
                 "messages[0].content[1].text"},
                {KVR_API_CHAT, "{\"messages\":[{\"content\":[{\"type\":\"a\",\"type\":\"b\"}]}]}",
                 "messages[0].content[0].type"},
                {KVR_API_CHAT, "{\"messages\":[],\"thinking\":{\"type\":\"a\",\"type\":\"b\"}}",
                 "thinking.type"},
                {KVR_API_MESSAGES, "{\"metadata\":{\"user_id\":\"a\",\"user_id\":\"b\"}}",
                 "metadata.user_id"},
                {KVR_API_MESSAGES, "{\"system\":\"a\",\"system\":\"b\"}", "system"},
                {KVR_API_MESSAGES,
                 "{\"messages\":[{\"content\":[{\"type\":\"tool_result\",\"content\":\"a\",\"content\":\"b\"}"
                 "]}]}",
                 "messages[0].content[0].content"},
                {KVR_API_RESPONSES, "{\"input\":\"a\",\"input\":\"b\"}", "input"},
                {KVR_API_RESPONSES, "{\"conversation\":{\"id\":\"a\",\"id\":\"b\"}}", "conversation.id"},
                {KVR_API_RESPONSES, "{\"input\":[{\"type\":\"x\",\"output\":\"a\",\"output\":\"b\"}]}",
                 "input[0].output"},
                {KVR_API_RESPONSES, "{\"input\":[{\"role\":\"x\",\"content\":\"a\",\"content\":\"b\"}]}",
                 "input[0].content"},
                {KVR_API_LLAMACPP, "{\"prompt\":{\"prompt_string\":\"a\",\"prompt_string\":\"b\"}}",
                 "prompt.prompt_string"},
                {KVR_API_LLAMACPP, "{\"prompt\":[{\"prompt_string\":\"a\",\"prompt_string\":\"b\"}]}",
                 "prompt[0].prompt_string"},
                {KVR_API_SGLANG, "{\"sampling_params\":{\"n\":1,\"n\":1}}", "sampling_params.n"},
                /* wrong types that no engine takes */
                {KVR_API_CHAT, "{\"model\":5}", "model"},
                {KVR_API_CHAT, "{\"model\":[\"a\"]}", "model"},
                {KVR_API_CHAT, "{\"messages\":\"hello\"}", "messages"},
                {KVR_API_CHAT, "{\"messages\":{}}", "messages"},
                {KVR_API_CHAT, "{\"messages\":5}", "messages"},
                {KVR_API_CHAT, "{\"messages\":[\"hello\"]}", "messages[0]"},
                {KVR_API_CHAT, "{\"messages\":[{},null]}", "messages[1]"},
                {KVR_API_CHAT, "{\"messages\":[{\"role\":5}]}", "messages[0].role"},
                {KVR_API_CHAT, "{\"messages\":[{\"content\":5}]}", "messages[0].content"},
                {KVR_API_CHAT, "{\"messages\":[{\"content\":true}]}", "messages[0].content"},
                {KVR_API_CHAT, "{\"messages\":[{\"content\":{\"a\":1}}]}", "messages[0].content"},
                {KVR_API_CHAT, "{\"messages\":[{\"content\":[5]}]}", "messages[0].content[0]"},
                {KVR_API_CHAT, "{\"messages\":[{\"content\":[\"a\",null]}]}", "messages[0].content[1]"},
                {KVR_API_CHAT, "{\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":5}]}]}",
                 "messages[0].content[0].text"},
                {KVR_API_CHAT, "{\"messages\":[],\"tools\":{}}", "tools"},
                {KVR_API_CHAT, "{\"messages\":[],\"tools\":\"x\"}", "tools"},
                {KVR_API_MESSAGES, "{\"messages\":[],\"system\":5}", "system"},
                {KVR_API_MESSAGES, "{\"messages\":[],\"system\":[{\"type\":\"text\",\"text\":{}}]}",
                 "system[0].text"},
                {KVR_API_MESSAGES,
                 "{\"messages\":[{\"content\":[{\"type\":\"tool_result\",\"content\":5}]}]}",
                 "messages[0].content[0].content"},
                {KVR_API_RESPONSES, "{\"input\":5}", "input"},
                {KVR_API_RESPONSES, "{\"input\":{}}", "input"},
                {KVR_API_RESPONSES, "{\"input\":[\"a\"]}", "input[0]"},
                {KVR_API_RESPONSES, "{\"input\":[{\"role\":\"user\",\"content\":5}]}", "input[0].content"},
                {KVR_API_RESPONSES, "{\"input\":[{\"type\":\"function_call_output\",\"output\":5}]}",
                 "input[0].output"},
                {KVR_API_COMPLETIONS, "{\"prompt\":5}", "prompt"},
                {KVR_API_COMPLETIONS, "{\"prompt\":true}", "prompt"},
                {KVR_API_EMBEDDINGS, "{\"input\":false}", "input"},
                {KVR_API_EMBEDDINGS, "{\"messages\":5}", "messages"},
                {KVR_API_SGLANG, "{\"text\":5}", "text"},
                {KVR_API_SGLANG, "{\"input_ids\":5}", "input_ids"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct parsed parsed = parse(parser, cases[i].api, cases[i].body);

                if (parsed.status != KVR_E_REQUEST || strcmp(parsed.err.field, cases[i].field) != 0)
                        fail_msg("status %d field '%s' message '%s': %s", (int)parsed.status,
                                 parsed.err.field, parsed.err.message, cases[i].body);
                assert_int_equal(parsed.err.status, KVR_E_REQUEST);
                assert_non_null(strstr(parsed.err.message, cases[i].field));
                assert_true(parsed.err.offset > 0 && parsed.err.offset < strlen(cases[i].body));
                free_parsed(&parsed);
        }
}

/* What some engine might take is passed on, without keys: the model and the rest are known all the same. */
static void test_let_through_without_keys(void **state)
{
        static const struct {
                enum kvr_api api;
                const char *body;
        } cases[] = {
                {KVR_API_CHAT, "{\"model\":\"m\"}"},
                {KVR_API_CHAT, "{\"model\":\"m\",\"messages\":null}"},
                {KVR_API_CHAT, "{\"model\":\"m\",\"messages\":[]}"},
                {KVR_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"content\":\"x\"}],\"temperature\":NaN}"},
                {KVR_API_CHAT,
                 "{\"model\":\"m\",\"messages\":[{\"content\":\"x\"}],\"temperature\":-Infinity}"},
                {KVR_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"content\":\"\xFF\"}]}"},
                {KVR_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"content\":\"x\"}],\"unknown\":\"\xC3\"}"},
                {KVR_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"content\":\"x\"}],\"cache_salt\":5}"},
                {KVR_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"content\":\"x\"}],\"extra_key\":{}}"},
                {KVR_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"content\":\"x\"}],\"lora_path\":[]}"},
                {KVR_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"content\":\"x\"}],\"lora_path\":[5]}"},
                {KVR_API_RESPONSES, "{\"model\":\"m\"}"},
                {KVR_API_RESPONSES, "{\"model\":\"m\",\"input\":\"x\",\"conversation\":{}}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\"}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":null}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[]}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[[]]}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[null]}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[true,2]}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[1,null]}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[1,2.0]}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[1,-2]}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[1,4294967296]}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[1,99999999999999999999]}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[[[1]]]}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":{}}"},
                {KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"x\",\"prompt_embeds\":\"AAAA\"}"},
                {KVR_API_LLAMACPP,
                 "{\"model\":\"m\",\"prompt\":{\"prompt_string\":\"a\",\"multimodal_data\":\"x\"}}"},
                {KVR_API_LLAMACPP, "{\"model\":\"m\",\"prompt\":{\"prompt_string\":[1]}}"},
                {KVR_API_SGLANG, "{\"model\":\"m\"}"},
                {KVR_API_SGLANG, "{\"model\":\"m\",\"text\":\"a\",\"input_ids\":[1]}"},
                {KVR_API_SGLANG, "{\"model\":\"m\",\"input_embeds\":[[0.5]]}"},
                {KVR_API_OTHER, "{\"model\":\"m\",\"messages\":5,\"prompt\":true}"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct kvr_prompt prompt;
                struct kvr_error err = {0};

                if (kvr_prompt_parse(parser, cases[i].api, slice_of(cases[i].body), NULL, &prompt, &err))
                        fail_msg("%s: %s", err.message, cases[i].body);
                if (prompt.point_count || prompt.units)
                        fail_msg("keyed: %s", cases[i].body);
                assert_int_equal(prompt.model.len, 1);
                assert_memory_equal(prompt.model.data, "m", 1);
                assert_int_equal(prompt.unit, KVR_UNIT_BYTES);
        }
}

static void test_not_json(void **state)
{
        static const struct {
                const char *body;
                size_t offset;
        } cases[] = {{"", 0},
                     {"[]", 0},
                     {"\"x\"", 0},
                     {"null", 0},
                     {"{\"model\":\"m\"", 12},
                     {"{}}", 2},
                     {"{\"a\":01}", 6},
                     {"{\"a\":\"\n\"}", 6},
                     {"not json", 1},
                     {"\xFF\xFE{", 0}};

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct parsed parsed = parse(parser, KVR_API_CHAT, cases[i].body);

                assert_int_equal(parsed.status, KVR_E_JSON);
                assert_int_equal(parsed.err.status, KVR_E_JSON);
                assert_int_equal(parsed.err.offset, cases[i].offset);
                assert_true(parsed.err.message[0] != 0);
                free_parsed(&parsed);
                /* On a path without a rule nothing is asked of the body. */
                parsed = parse(parser, KVR_API_OTHER, cases[i].body);
                assert_int_equal(parsed.status, KVR_OK);
                assert_int_equal(parsed.err.status, KVR_OK);
                assert_int_equal(parsed.prompt.prompt_count, 1);
                assert_int_equal(parsed.prompt.choices, 1);
                assert_int_equal(parsed.prompt.point_count, 0);
                free_parsed(&parsed);
        }
}

/* A failure leaves the result as it was. */
static void test_result_only_on_success(void **state)
{
        struct kvr_prompt prompt;
        struct kvr_prompt untouched;

        (void)state;
        memset(&prompt, 0x5A, sizeof(prompt));
        memcpy(&untouched, &prompt, sizeof(prompt));
        assert_int_equal(kvr_prompt_parse(parser, KVR_API_CHAT, slice_of("{"), NULL, &prompt, NULL),
                         KVR_E_JSON);
        assert_int_equal(
                kvr_prompt_parse(parser, KVR_API_CHAT, slice_of("{\"model\":1}"), NULL, &prompt, NULL),
                KVR_E_REQUEST);
        assert_memory_equal(&prompt, &untouched, sizeof(prompt));
}

static void test_nesting(void **state)
{
        (void)state;
        for (int depth = KVR_JSON_DEPTH_MAX; depth <= KVR_JSON_DEPTH_MAX + 1; depth++) {
                struct text body = {0};
                struct parsed parsed;

                /* The body and the list are two levels. */
                put_string(&body, "{\"messages\":[{\"tool_calls\":");
                for (int i = 3; i < depth; i++)
                        put_string(&body, i % 2 ? "[" : "{\"a\": ");
                put_string(&body, "1");
                for (int i = depth; i-- > 3;)
                        put_string(&body, i % 2 ? "]" : "}");
                put_string(&body, "}]}");
                parsed = parse(parser, KVR_API_CHAT, body.data);
                assert_int_equal(parsed.status, depth <= KVR_JSON_DEPTH_MAX ? KVR_OK : KVR_E_LIMIT);
                if (parsed.status)
                        assert_non_null(strstr(parsed.err.message, "512"));
                else
                        assert_true(parsed.prompt.point_count > 0);
                free_parsed(&parsed);
                free_text(&body);
        }
}

static void test_body_limit(void **state)
{
        struct kvr_prompt prompt;
        struct kvr_error err = {0};
        char byte = '{';

        (void)state;
        /* The length is refused before a byte is looked at. */
        assert_int_equal(kvr_prompt_parse(parser, KVR_API_CHAT,
                                          (struct kvr_slice){&byte, (size_t)KVR_BODY_MAX + 1}, NULL, &prompt,
                                          &err),
                         KVR_E_LIMIT);
        assert_int_equal(err.status, KVR_E_LIMIT);
        assert_int_equal(kvr_prompt_parse(parser, KVR_API_OTHER,
                                          (struct kvr_slice){&byte, (size_t)KVR_BODY_MAX + 1}, NULL, &prompt,
                                          &err),
                         KVR_OK);
}

/* Messages never quote what is in the prompt. */
static void test_errors_quote_nothing(void **state)
{
        static const char *const bodies[] = {
                "{\"messages\":[{\"role\":\"SECRET\",\"content\":[{\"text\":{\"SECRET\":1}}]}]}",
                "{\"messages\":[{\"SECRET\":1,\"content\":\"SECRET\",\"content\":\"SECRET\"}]}",
                "{\"SECRET\":\"SECRET",
                "{\"model\":{\"SECRET\":1}}",
        };

        (void)state;
        for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
                struct parsed parsed = parse(parser, KVR_API_CHAT, bodies[i]);

                assert_true(parsed.status != KVR_OK);
                assert_null(strstr(parsed.err.message, "SECRET"));
                assert_null(strstr(parsed.err.field, "SECRET"));
                free_parsed(&parsed);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_let_through_without_keys),
                cmocka_unit_test(test_not_json),
                cmocka_unit_test(test_result_only_on_success),
                cmocka_unit_test(test_nesting),
                cmocka_unit_test(test_body_limit),
                cmocka_unit_test(test_errors_quote_nothing),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, setup, teardown);
}
