/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizer, block keys and request parsing of the mock engine. */
#include "request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct sim_request parse(enum sim_api api, const char *body)
{
        struct sim_request request;
        struct sim_request_error error = {0};
        bool good = sim_request_parse(&request, api, sim_slice(body), &error);

        if (!good)
                fail_msg("%s", error.message);
        return request;
}

static struct sim_tokens text_tokens(const char *text)
{
        struct sim_tokens tokens = {0};

        sim_tokens_text(&tokens, sim_slice(text));
        return tokens;
}

static size_t common(const struct sim_tokens *a, const struct sim_tokens *b)
{
        size_t n = 0;

        while (n < a->len && n < b->len && a->ids[n] == b->ids[n])
                n++;
        return n;
}

static void text_is_cut_into_pieces_of_four_bytes(void **state)
{
        struct sim_tokens a = text_tokens("abcdefghij"), b = text_tokens("abcdefgh"),
                          c = text_tokens("abcdefgX"), d = {0};

        (void)state;
        assert_int_equal(a.len, 3);
        assert_int_equal(b.len, 2);
        assert_int_equal(common(&a, &b), 2);
        assert_int_equal(common(&a, &c), 1);
        for (size_t i = 0; i < a.len; i++)
                assert_in_range(a.ids[i], SIM_TOKEN_FIRST, INT32_MAX);
        /* Pieces of other lengths are other tokens, also with zero bytes in them. */
        sim_tokens_text(&d, (struct kvr_slice){"a\0", 2});
        sim_tokens_text(&d, (struct kvr_slice){"a", 1});
        assert_int_not_equal(d.ids[0], d.ids[1]);
        sim_tokens_fini(&a);
        sim_tokens_fini(&b);
        sim_tokens_fini(&c);
        sim_tokens_fini(&d);
}

static void keys_are_chained_and_separate_namespaces(void **state)
{
        struct sim_tokens a = text_tokens("0123456789abcdefghijklmnopqrstuv"),
                          b = text_tokens("0123456789abcdefghijklmnopqrstuX");
        uint64_t space = sim_space_key(sim_slice("m"), (struct kvr_slice){0}), ka[4], kb[4], other[4];

        (void)state;
        assert_int_equal(sim_block_keys(space, a.ids, a.len, 2, ka), 4);
        assert_int_equal(sim_block_keys(space, b.ids, b.len, 2, kb), 4);
        assert_memory_equal(ka, kb, 3 * sizeof(ka[0]));
        assert_true(ka[3] != kb[3]);
        assert_int_equal(sim_block_keys(space, a.ids, 7, 2, other), 3); /* whole blocks only */
        assert_int_equal(
                sim_block_keys(sim_space_key(sim_slice("n"), (struct kvr_slice){0}), a.ids, a.len, 2, other),
                4);
        assert_true(other[0] != ka[0]);
        assert_int_equal(
                sim_block_keys(sim_space_key(sim_slice("m"), sim_slice("s")), a.ids, a.len, 2, other), 4);
        assert_true(other[0] != ka[0]);
        /* Equal blocks at another depth have other keys. */
        sim_tokens_text(&a, sim_slice("0123456789abcdefghijklmnopqrstuv"));
        uint64_t twice[8];
        assert_int_equal(sim_block_keys(space, a.ids, a.len, 2, twice), 8);
        assert_true(twice[4] != twice[0]);
        sim_tokens_fini(&a);
        sim_tokens_fini(&b);
}

static void the_next_turn_has_the_last_one_as_prefix(void **state)
{
        /* The answer "the and " is two whole pieces: its tokens are those that the engine generated. */
        struct sim_request one =
                parse(SIM_API_CHAT, "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                                    "{\"role\":\"user\",\"content\":\"hello\"}]}");
        struct sim_request two =
                parse(SIM_API_CHAT, "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                                    "{\"role\":\"user\",\"content\":\"hello\"},"
                                    "{\"role\":\"assistant\",\"content\":\"the and \"},"
                                    "{\"role\":\"user\",\"content\":\"go on\"}]}");

        (void)state;
        sim_tokens_text(&one.tokens, sim_slice("the and "));
        assert_int_equal(one.tokens.len, 1 + (1 + 3 + 1) + (1 + 2 + 1) + 1 + 2);
        assert_int_equal(common(&one.tokens, &two.tokens), one.tokens.len);
        sim_request_fini(&one);
        sim_request_fini(&two);
}

static void all_apis_agree_on_a_conversation(void **state)
{
        struct sim_request chat = parse(
                SIM_API_CHAT, "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},"
                              "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hello\"}]}]}");
        struct sim_request messages =
                parse(SIM_API_MESSAGES, "{\"system\":[{\"type\":\"text\",\"text\":\"S\"}],\"messages\":"
                                        "[{\"role\":\"user\",\"content\":\"hello\"}],\"max_tokens\":3}");
        struct sim_request responses =
                parse(SIM_API_RESPONSES, "{\"instructions\":\"S\",\"input\":\"hello\"}");
        struct sim_request items =
                parse(SIM_API_RESPONSES, "{\"instructions\":\"S\",\"input\":[{\"role\":\"user\",\"content\":"
                                         "[{\"type\":\"input_text\",\"text\":\"hello\"}]}]}");

        (void)state;
        assert_int_equal(common(&chat.tokens, &messages.tokens), chat.tokens.len);
        assert_int_equal(chat.tokens.len, messages.tokens.len);
        assert_int_equal(common(&chat.tokens, &responses.tokens), chat.tokens.len);
        assert_int_equal(chat.tokens.len, responses.tokens.len);
        assert_int_equal(common(&chat.tokens, &items.tokens), chat.tokens.len);
        assert_int_equal(messages.max_tokens, 3);
        sim_request_fini(&chat);
        sim_request_fini(&messages);
        sim_request_fini(&responses);
        sim_request_fini(&items);
}

static void tools_and_images_count(void **state)
{
        static const char with_tools[] =
                "{\"tools\":[{\"name\":\"f\"}],\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}";
        static const char other_tools[] =
                "{\"tools\":[{\"name\":\"g\"}],\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}";
        static const char image[] =
                "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":"
                "{\"url\":\"http://x/1.png\"}},{\"type\":\"text\",\"text\":\"what?\"}]}]}";
        struct sim_request a = parse(SIM_API_CHAT, with_tools), b = parse(SIM_API_CHAT, other_tools),
                           c = parse(SIM_API_CHAT, image);

        (void)state;
        assert_true(common(&a.tokens, &b.tokens) < 6);
        assert_int_equal(c.tokens.len, 1 + 1 + SIM_IMAGE_TOKENS + 2 + 1 + 1);
        sim_request_fini(&a);
        sim_request_fini(&b);
        sim_request_fini(&c);
}

static void prompts_come_as_text_ids_and_lists(void **state)
{
        struct sim_request text = parse(SIM_API_COMPLETIONS, "{\"prompt\":\"abcdefgh\"}");
        struct sim_request ids = parse(SIM_API_COMPLETIONS, "{\"prompt\":[7,8,9]}");
        struct sim_request two = parse(SIM_API_COMPLETIONS, "{\"prompt\":[\"abcdefgh\",\"abcd\"],\"n\":3}");
        struct sim_request id_lists = parse(SIM_API_COMPLETIONS, "{\"prompt\":[[1,2],[3],[4]]}");

        (void)state;
        assert_int_equal(text.tokens.len, 2);
        assert_int_equal(text.choices, 1);
        assert_int_equal(ids.tokens.len, 3);
        assert_int_equal(ids.tokens.ids[2], 9);
        assert_int_equal(common(&text.tokens, &two.tokens), 2);
        assert_int_equal(two.tokens.len, 2);
        assert_int_equal(two.other_tokens, 1);
        assert_int_equal(two.choices, 6);
        assert_int_equal(id_lists.tokens.len, 2);
        assert_int_equal(id_lists.other_tokens, 2);
        sim_request_fini(&text);
        sim_request_fini(&ids);
        sim_request_fini(&two);
        sim_request_fini(&id_lists);
}

static void fields_are_read(void **state)
{
        struct sim_request r =
                parse(SIM_API_CHAT,
                      "{\"model\":\"m\",\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                      "\"continuous_usage_stats\":true},\"max_completion_tokens\":5,\"cache_salt\":\"s\","
                      "\"return_token_ids\":true,\"temperature\":0.5,\"model\":\"last\","
                      "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");

        (void)state;
        assert_true(
                sim_slice_is(r.model, "last")); /* of two members with one name the last counts, as in vLLM */
        assert_true(sim_slice_is(r.salt, "s"));
        assert_true(r.stream && r.include_usage && r.continuous && r.token_ids && r.store);
        assert_int_equal(r.max_tokens, 5);
        assert_true(r.temperature == 0.5 && r.top_p == 1);
        sim_request_fini(&r);
}

static void bad_bodies_are_refused(void **state)
{
        static const struct {
                enum sim_api api;
                const char *body, *param;
        } cases[] = {
                {SIM_API_CHAT, "", "body"},
                {SIM_API_CHAT, "{", "body"},
                {SIM_API_CHAT, "[]", "body"},
                {SIM_API_CHAT, "{} x", "body"},
                {SIM_API_CHAT, "{}", "messages"},
                {SIM_API_CHAT, "{\"messages\":[]}", "messages"},
                {SIM_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":0}",
                 "max_tokens"},
                {SIM_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":129}", "n"},
                {SIM_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream_options\":{}}",
                 "stream_options"},
                {SIM_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"cache_salt\":\"\"}",
                 "cache_salt"},
                {SIM_API_COMPLETIONS, "{\"prompt\":7}", "prompt"},
                {SIM_API_COMPLETIONS, "{\"prompt\":[1,-2]}", "prompt"},
                {SIM_API_COMPLETIONS, "{\"prompt\":[\"a\",7]}", "prompt"},
                {SIM_API_COMPLETIONS, "{\"prompt\":\"\"}", "prompt"},
                {SIM_API_RESPONSES, "{\"input\":7}", "input"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct sim_request request;
                struct sim_request_error error = {0};

                assert_false(sim_request_parse(&request, cases[i].api, sim_slice(cases[i].body), &error));
                assert_int_equal(error.status, 400);
                assert_string_equal(error.param, cases[i].param);
                assert_true(error.message[0] != 0);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(text_is_cut_into_pieces_of_four_bytes),
                cmocka_unit_test(keys_are_chained_and_separate_namespaces),
                cmocka_unit_test(the_next_turn_has_the_last_one_as_prefix),
                cmocka_unit_test(all_apis_agree_on_a_conversation),
                cmocka_unit_test(tools_and_images_count),
                cmocka_unit_test(prompts_come_as_text_ids_and_lists),
                cmocka_unit_test(fields_are_read),
                cmocka_unit_test(bad_bodies_are_refused),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
