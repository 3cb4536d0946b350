/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory: none is asked for in the steady state, it stays within a multiple of the body, and running out of
 * it at any place is a clean error. The test is linked so that the library's calls of the allocator come here
 * first.
 */
#include "lib/prompt_test_util.h"
#include "lib/alloc_test.h"

static unsigned calls;      /* of the allocator */
static size_t largest;      /* size asked for */
static unsigned fail_after; /* the call that fails; 0 none */

static bool alloc_admit(size_t size)
{
        calls++;
        if (size > largest)
                largest = size;
        return !fail_after || calls != fail_after;
}

/* Bodies that use every buffer: tokens, carry, transcoding, keys, decoded strings. */
static struct text make_body(int number)
{
        struct text body = {0};

        put_string(&body,
                   "{\"model\":\"a\\u0062\\n\",\"user\":\"u\\t\",\"cache_salt\":\"s\\n\",\"tools\":[{"
                   "\"type\": \"function\","
                   "\"functi\\u006fn\":{\"name\":\"f\",\"parameters\":{\"a\": [1,2,3]}}}],\"messages\":[");
        for (int m = 0; m < 20; m++) {
                put_format(&body, "%s{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"",
                           m ? "," : "");
                for (int i = 0; i < 100 * (number % 5 + 1); i++)
                        put_format(&body, "%s %d\\u00e9\\n", m % 2 ? "\\/" : "text", i * number);
                put_string(&body, "\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"http:\\/\\/a\"}}]}");
        }
        put_string(&body, "]}");
        return body;
}

static void test_steady_state_asks_for_nothing(void **state)
{
        struct kvr_parser *parser = kvr_parser_new();
        struct text bodies[10];
        struct kvr_prompt prompt;

        (void)state;
        assert_non_null(parser);
        for (int i = 0; i < 10; i++)
                bodies[i] = make_body(i);
        for (int round = 0; round < 5; round++) {
                calls = 0;
                for (int i = 0; i < 10; i++)
                        assert_int_equal(kvr_prompt_parse(parser, KVR_API_CHAT,
                                                          (struct kvr_slice){bodies[i].data, bodies[i].len},
                                                          NULL, &prompt, NULL),
                                         KVR_OK);
                if (round == 0)
                        assert_true(calls > 0); /* the counter counts */
                else if (round > 1) /* in the second, bodies are met again: there is something to remember */
                        assert_int_equal(calls, 0);
        }
        for (int i = 0; i < 10; i++)
                free_text(&bodies[i]);
        kvr_parser_free(parser);
}

static void test_memory_is_bounded_by_the_body(void **state)
{
        static const char *const units[] = {"[],", "1,", "\"\\u00e9\",", "{\"\":0},",
                                            "\"aaaaaaaaaaaaaaaaaaaaaaaaaa\","};

        (void)state;
        for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
                struct kvr_parser *parser = kvr_parser_new();
                struct text body = {0};
                struct kvr_prompt prompt;

                assert_non_null(parser);
                put_string(&body, "{\"messages\":[{\"role\":\"user\",\"tool_calls\":[");
                while (body.len < 2000000)
                        put_string(&body, units[u]);
                put_string(&body, "0]}]}");
                largest = 0;
                assert_int_equal(kvr_prompt_parse(parser, KVR_API_CHAT,
                                                  (struct kvr_slice){body.data, body.len}, NULL, &prompt,
                                                  NULL),
                                 KVR_OK);
                /* The tokens are the largest piece: 16 bytes for 3 of text at most, and room to grow. */
                assert_true(largest <= body.len * 11);
                kvr_parser_free(parser);
                free_text(&body);
        }
}

static void test_running_out_at_every_place(void **state)
{
        struct text body = make_body(3);
        unsigned needed;
        struct kvr_parser *parser;
        struct kvr_prompt prompt;
        struct kvr_prompt whole;

        (void)state;
        calls = 0;
        parser = kvr_parser_new();
        assert_non_null(parser);
        assert_int_equal(kvr_prompt_parse(parser, KVR_API_CHAT, (struct kvr_slice){body.data, body.len}, NULL,
                                          &whole, NULL),
                         KVR_OK);
        needed = calls;
        assert_true(needed >= 5);
        for (unsigned at = 1; at <= needed; at++) {
                struct kvr_parser *other;
                struct kvr_error err = {0};

                calls = 0;
                fail_after = at;
                other = kvr_parser_new();
                if (at == 1) {
                        assert_null(other);
                        fail_after = 0;
                        continue;
                }
                assert_non_null(other);
                assert_int_equal(kvr_prompt_parse(other, KVR_API_CHAT,
                                                  (struct kvr_slice){body.data, body.len}, NULL, &prompt,
                                                  &err),
                                 KVR_E_NOMEM);
                fail_after = 0;
                assert_int_equal(err.status, KVR_E_NOMEM);
                assert_true(err.message[0] != 0);
                /* The parser is good for another try. */
                assert_int_equal(kvr_prompt_parse(other, KVR_API_CHAT,
                                                  (struct kvr_slice){body.data, body.len}, NULL, &prompt,
                                                  &err),
                                 KVR_OK);
                assert_int_equal(prompt.point_count, whole.point_count);
                assert_memory_equal(prompt.points, whole.points, whole.point_count * sizeof(*whole.points));
                kvr_parser_free(other);
        }
        kvr_parser_free(parser);
        kvr_parser_free(NULL);
        free_text(&body);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_steady_state_asks_for_nothing),
                cmocka_unit_test(test_memory_is_bounded_by_the_body),
                cmocka_unit_test(test_running_out_at_every_place),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
