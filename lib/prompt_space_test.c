/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces: no two of them meet, however their parts are moved about. */
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

static uint64_t space_of(const char *members, const struct kvr_prompt_options *options, uint64_t *ret_key)
{
        char body[400];
        struct parsed parsed;
        uint64_t space;

        snprintf(body, sizeof(body), "{%s\"prompt\":\"x\"}", members);
        parsed = parse_with(parser, KVR_API_COMPLETIONS, slice_of(body), options);
        if (parsed.status || !parsed.prompt.point_count)
                fail_msg("%s: %s", parsed.err.message, body);
        space = parsed.prompt.space;
        *ret_key = last_key(&parsed);
        free_parsed(&parsed);
        return space;
}

static void test_no_two_meet(void **state)
{
        static const char *const members[] = {
                "",
                "\"model\":\"a\",",
                "\"model\":\"b\",",
                "\"model\":\"ab\",",
                "\"model\":\"a:b\",",
                "\"cache_salt\":\"a\",",
                "\"cache_salt\":\"ab\",",
                "\"extra_key\":\"a\",",
                "\"extra_key\":\"\",",
                "\"lora_path\":\"a\",",
                "\"lora_path\":\"\",",
                "\"lora\":\"a\",",
                "\"lora\":[{\"id\":1,\"scale\":1}],",
                "\"lora\":[{\"id\":1,\"scale\":2}],",
                "\"model\":\"a\",\"cache_salt\":\"b\",",
                "\"model\":\"b\",\"cache_salt\":\"a\",",
                "\"model\":\"a\",\"extra_key\":\"b\",",
                "\"model\":\"a\",\"lora_path\":\"b\",",
                "\"cache_salt\":\"a\",\"extra_key\":\"b\",",
                "\"cache_salt\":\"b\",\"extra_key\":\"a\",",
                "\"cache_salt\":\"a\",\"lora_path\":\"b\",",
                "\"extra_key\":\"a\",\"lora_path\":\"b\",",
                "\"extra_key\":\"b\",\"lora_path\":\"a\",",
                "\"model\":\"a\",\"cache_salt\":\"a\",\"extra_key\":\"a\",\"lora_path\":\"a\",",
        };
        const size_t count = sizeof(members) / sizeof(members[0]);
        uint64_t spaces[sizeof(members) / sizeof(members[0])], keys[sizeof(members) / sizeof(members[0])];

        (void)state;
        for (size_t i = 0; i < count; i++) {
                spaces[i] = space_of(members[i], NULL, &keys[i]);
                for (size_t j = 0; j < i; j++)
                        if (spaces[i] == spaces[j] || keys[i] == keys[j])
                                fail_msg("%s and %s", members[i], members[j]);
        }
}

static void test_same_namespaces(void **state)
{
        static const struct {
                const char *one, *other;
        } cases[] = {
                {"",
                 "\"model\":null,\"cache_salt\":null,\"extra_key\":null,\"lora_path\":null,\"lora\":null,"},
                {"", "\"model\":\"\",\"cache_salt\":\"\","},
                {"\"model\":\"a/b\",", "\"model\":\"a\\/\\u0062\","},
                {"\"cache_salt\":\"\xC3\xA9\",", "\"cache_salt\":\"\\u00e9\","},
                {"\"lora_path\":\"x\",", "\"lora_path\":[\"x\",\"y\"],"},
                {"\"lora_path\":null,", "\"lora_path\":[null,\"y\"],"},
                {"\"extra_key\":\"x\",", "\"extra_key\":[\"x\"],"},
                {"\"lora\":[{\"id\":1,\"scale\":1}],", "\"lora\": [ { \"id\" : 1 , \"scale\" : 1 } ] ,"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                uint64_t a, b;

                assert_true(space_of(cases[i].one, NULL, &a) == space_of(cases[i].other, NULL, &b));
                assert_true(a == b);
        }
}

/* The host's salt takes the place of the client's, which then has no say. */
static void test_salt_of_the_host(void **state)
{
        struct kvr_prompt_options tenant_a = {.salt = slice_of("a")}, tenant_b = {.salt = slice_of("b")};
        uint64_t key;
        uint64_t a = space_of("", &tenant_a, &key);

        (void)state;
        assert_true(a != space_of("", &tenant_b, &key));
        assert_true(a != space_of("", NULL, &key));
        assert_true(a == space_of("\"cache_salt\":\"b\",", &tenant_a, &key));
        assert_true(a == space_of("\"cache_salt\":5,", &tenant_a, &key));
        /* What is sent on is the same as if the client had sent it. */
        assert_true(a == space_of("\"cache_salt\":\"a\",", NULL, &key));
}

static struct kvr_slice alias(void *ctx, struct kvr_slice model)
{
        (*(int *)ctx)++;
        return model.len == 5 && !memcmp(model.data, "short", 5) ? slice_of("org/long-name") : model;
}

static void test_aliases(void **state)
{
        int calls = 0;
        struct kvr_prompt_options options = {.resolve_model = alias, .resolve_ctx = &calls};
        uint64_t key, other;
        struct kvr_prompt prompt;

        (void)state;
        assert_true(space_of("\"model\":\"short\",", &options, &key) ==
                    space_of("\"model\":\"org/long-name\",", &options, &other));
        assert_true(key == other);
        assert_true(space_of("\"model\":\"shor\",", &options, &key) !=
                    space_of("\"model\":\"short\",", &options, &other));
        assert_int_equal(calls, 4);
        /* No model, nothing to resolve. */
        space_of("", &options, &key);
        assert_int_equal(calls, 4);
        /* The client's name is reported as it was. */
        assert_int_equal(kvr_prompt_parse(parser, KVR_API_COMPLETIONS,
                                          slice_of("{\"model\":\"short\",\"prompt\":\"x\"}"), &options,
                                          &prompt, NULL),
                         KVR_OK);
        assert_int_equal(prompt.model.len, 5);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_no_two_meet),
                cmocka_unit_test(test_same_namespaces),
                cmocka_unit_test(test_salt_of_the_host),
                cmocka_unit_test(test_aliases),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, setup, teardown);
}
