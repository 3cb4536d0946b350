/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void grows_and_drops(void **state)
{
        struct text text = {0};

        (void)state;
        for (int i = 0; i < 1000; i++)
                text_addf(&text, "%d,", i);
        text_addu(&text, 0);
        text_addu(&text, UINT64_MAX);
        assert_int_equal(text.len, 10 * 2 + 90 * 3 + 900 * 4 + 21);
        assert_memory_equal(text.data + text.len - 21, "018446744073709551615", 21);
        text_drop(&text, text.len - 3);
        assert_string_equal(text_string(&text), "615");
        text_drop(&text, 100);
        assert_string_equal(text_string(&text), "");
        text_free(&text);
}

static void limit_is_a_state(void **state)
{
        struct text text = {.limit = 5};

        (void)state;
        text_adds(&text, "12345");
        assert_false(text.failed);
        text_adds(&text, "6");
        assert_true(text.failed);
        text_adds(&text, "");
        assert_int_equal(text.len, 5);
        text_clear(&text);
        assert_false(text.failed);
        text_free(&text);
        assert_int_equal(text.limit, 5);
}

static void json_is_always_valid(void **state)
{
        static const struct {
                struct kvr_slice in;
                const char *out;
        } cases[] = {
                {KVR_SLICE("plain"), "plain"},
                {KVR_SLICE("a\"b\\c\nd"), "a\\\"b\\\\c\\u000ad"},
                {KVR_SLICE("\x7f"), "\\u007f"},
                {KVR_SLICE("gr\xc3\xbc\xc3\x9f\xf0\x9f\x98\x80"), "gr\xc3\xbc\xc3\x9f\xf0\x9f\x98\x80"},
                {KVR_SLICE("\xc3"), "\\ufffd"},
                {KVR_SLICE("\xff\xc0\x80"), "\\ufffd\\ufffd\\ufffd"},
                {KVR_SLICE("\xed\xa0\x80"), "\\ufffd\\ufffd\\ufffd"}, /* a surrogate */
                {KVR_SLICE("\xf4\x90\x80\x80"), "\\ufffd\\ufffd\\ufffd\\ufffd"},
                {{"\0", 1}, "\\u0000"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                struct text text = {0};

                text_add_json(&text, cases[i].in);
                assert_string_equal(text_string(&text), cases[i].out);
                text_free(&text);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(grows_and_drops),
                cmocka_unit_test(limit_is_a_state),
                cmocka_unit_test(json_is_always_valid),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
