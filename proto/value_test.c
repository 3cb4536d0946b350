/* SPDX-License-Identifier: Apache-2.0 */
#include "value.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct kvr_slice slice(const char *text)
{
        return (struct kvr_slice){text, strlen(text)};
}

static void test_bool(void **state)
{
        static const char *const yes[] = {"on", "true", "yes", "1"},
                                 *const no[] = {"off", "false", "no", "0"}, *const bad[] = {"",        "On",
                                                                                            "o",       "onn",
                                                                                            "on|true", "2",
                                                                                            "tru"};
        bool value;

        (void)state;
        for (size_t i = 0; i < 4; i++) {
                value = false;
                assert_true(value_bool(slice(yes[i]), &value) && value);
                assert_true(value_bool(slice(no[i]), &value) && !value);
        }
        value = true;
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
                assert_true(!value_bool(slice(bad[i]), &value) && value);
}

static void test_count(void **state)
{
        static const char *const bad[] = {"",
                                          " 1",
                                          "1 ",
                                          "+1",
                                          "-1",
                                          "1.0",
                                          "1e3",
                                          "0x10",
                                          "18446744073709551616",
                                          "99999999999999999999999"};
        uint64_t value = 7;
        size_t len = 0;

        (void)state;
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
                assert_false(value_count(slice(bad[i]), &value));
                assert_int_equal(value, 7);
        }
        assert_true(value_count(slice("0"), &value));
        assert_int_equal(value, 0);
        assert_true(value_count(slice("18446744073709551615"), &value));
        assert_true(value == UINT64_MAX);
        assert_true(value_leading_count(slice("0012MiB"), &value, &len));
        assert_int_equal(value, 12);
        assert_int_equal(len, 4);
        assert_false(value_leading_count(slice("MiB"), &value, &len));
}

static void test_choice(void **state)
{
        unsigned number = 9;

        (void)state;
        assert_true(value_choice(slice("a"), "a|bc|d", &number));
        assert_int_equal(number, 0);
        assert_true(value_choice(slice("bc"), "a|bc|d", &number));
        assert_int_equal(number, 1);
        assert_true(value_choice(slice("d"), "a|bc|d", &number));
        assert_int_equal(number, 2);
        assert_false(value_choice(slice("b"), "a|bc|d", &number));
        assert_false(value_choice(slice("a|bc"), "a|bc|d", &number));
        assert_false(value_choice(slice(""), "a|bc|d", &number));
        assert_int_equal(number, 2);
}

static const char *nearest(const char *written)
{
        static const char *const words[] = {"replicas", "replay", "rate", "idle-timeout", "x"};
        struct value_nearest best = {0};

        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
                value_offer(&best, slice(written), words[i]);
        return best.word;
}

static void test_what_was_meant(void **state)
{
        char longest[200];

        (void)state;
        assert_string_equal(nearest("replica"), "replicas");
        assert_string_equal(nearest("replicsa"), "replicas");
        assert_string_equal(nearest("relay"), "replay");
        assert_string_equal(nearest("rat"), "rate");
        assert_null(nearest("timeout"));
        assert_null(nearest("completely-else"));
        assert_null(nearest("y")); /* a word is not meant by what has nothing of it */
        memset(longest, 'a', sizeof longest - 1);
        longest[sizeof longest - 1] = 0;
        assert_null(nearest(longest));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_bool),
                cmocka_unit_test(test_count),
                cmocka_unit_test(test_choice),
                cmocka_unit_test(test_what_was_meant),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
