/* SPDX-License-Identifier: Apache-2.0 */
/* What a prompt has between its points: the keys of all prompts that it begins with. */
#include "prompt_cell.h"

#include "prompt_test_util.h"

#define TEXT_BYTES 40000

/* Text of letters that JSON can hold as they are, and every 50 bytes one with two spellings. */
static void text_make(struct text *ret, size_t bytes)
{
        uint64_t rng = 1;

        for (size_t i = 0; i < bytes; i++) {
                char c = (char)('a' + chance(&rng) % 26);

                put_bytes(ret, i % 50 == 49 ? "/" : &c, 1);
        }
}

static void body_make(struct text *ret, const char *head, const char *text, size_t len, bool escaped,
                      const char *tail)
{
        ret->len = 0;
        put_string(ret, head);
        for (size_t i = 0; i < len; i++) {
                if (escaped && text[i] == '/')
                        put_string(ret, "\\");
                put_bytes(ret, text + i, 1);
        }
        put_string(ret, tail);
}

static void prompt_read(struct kvr_parser *parser, enum kvr_api api, const struct text *body,
                        struct kvr_prompt *ret)
{
        struct kvr_error err;

        if (kvr_prompt_parse(parser, api, (struct kvr_slice){body->data, body->len}, NULL, ret, &err))
                fail_msg("%s", err.message);
        assert_true(ret->point_count > 0);
}

/* A longer prompt gives the last key of every shorter one, from whichever point in front of it is a cell's. */
static void test_ends(void **state)
{
        static const struct {
                const char *head;
                enum kvr_api api;
        } forms[] = {
                {"{\"model\":\"m\",\"prompt\":\"", KVR_API_COMPLETIONS},
                {"{\"add_special_tokens\":false,\"prompt\":\"", KVR_API_COMPLETIONS},
                {"{\"text\":\"", KVR_API_SGLANG},
                {"{\"prompt\":{\"prompt_string\":\"", KVR_API_LLAMACPP},
        };
        struct kvr_parser *parser = kvr_parser_new(), *other = kvr_parser_new();
        struct text text = {0}, body = {0}, whole = {0};
        uint64_t rng = 2;

        (void)state;
        assert_true(parser && other);
        text_make(&text, TEXT_BYTES);
        for (int i = 0; i < 400; i++) {
                const char *head = forms[i % 4].head, *tail = i % 4 == 3 ? "\"}}" : "\"}";
                /* Mostly short ones: there the cells are small. */
                size_t len = 1 + chance(&rng) % (i % 2 ? TEXT_BYTES - 1 : 1200);
                size_t more = len + 1 + chance(&rng) % (TEXT_BYTES - len);
                struct kvr_prompt before, prompt;
                struct kvr__cell cell;

                body_make(&body, head, text.data, len, i % 8 > 3, tail);
                prompt_read(parser, forms[i % 4].api, &body, &before);
                body_make(&whole, head, text.data, more, i % 3 == 0, tail);
                prompt_read(other, forms[i % 4].api, &whole, &prompt);
                uint32_t last = before.point_count - 1;

                if (last < prompt.point_count && prompt.points[last].end == before.points[last].end) {
                        /* It ended on the grid. */
                        assert_int_equal(prompt.points[last].key, before.points[last].key);
                        continue;
                }
                assert_true(kvr__cell_behind(&prompt, last, &cell));
                uint32_t into = before.points[last].end - cell.start;

                assert_true(into > 0 && into < cell.bytes.len);
                assert_int_equal(kvr__cell_end_key(&cell, into), before.points[last].key);
                assert_int_not_equal(kvr__cell_end_key(&cell, into - 1), before.points[last].key);
        }
        free_text(&text);
        free_text(&body);
        free_text(&whole);
        kvr_parser_free(parser);
        kvr_parser_free(other);
}

/* No text, or something behind it. */
static void test_none(void **state)
{
        static const struct {
                enum kvr_api api;
                const char *body;
                bool text;
        } cases[] = {
                {KVR_API_COMPLETIONS, "{\"prompt\":\"abc\"}", true},
                {KVR_API_COMPLETIONS, "{\"prompt\":[\"abc\",\"def\"]}", true}, /* the first one counts */
                {KVR_API_COMPLETIONS, "{\"prompt\":\"abc\",\"suffix\":\"def\"}", false},
                {KVR_API_COMPLETIONS, "{\"prompt\":\"\"}", false},
                {KVR_API_COMPLETIONS, "{\"prompt\":[1,2,3]}", false},
                {KVR_API_LLAMACPP, "{\"prompt\":[1,\"abc\"]}", false},
                {KVR_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"abc\"}]}", false},
                {KVR_API_RESPONSES, "{\"input\":\"abc\"}", false},
        };
        struct kvr_parser *parser = kvr_parser_new();

        (void)state;
        assert_non_null(parser);
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct kvr_prompt prompt;
                struct kvr_error err;
                struct kvr__cell cell;

                assert_int_equal(
                        kvr_prompt_parse(parser, cases[i].api, slice_of(cases[i].body), NULL, &prompt, &err),
                        KVR_OK);
                if (!prompt.text != !cases[i].text)
                        fail_msg("case %zu", i);
                assert_int_equal(kvr__cell_behind(&prompt, 0, &cell), cases[i].text);
                if (cases[i].text)
                        assert_false(kvr__cell_behind(&prompt, prompt.point_count, &cell));
        }
        kvr_parser_free(parser);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_ends),
                cmocka_unit_test(test_none),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
