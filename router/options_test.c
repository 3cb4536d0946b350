/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kvr_slice slice(const char *text)
{
        return (struct kvr_slice){text, strlen(text)};
}

static void test_times(void **state)
{
        (void)state;
        static const struct {
                const char *text;
                int64_t want; /* -1: refused */
        } rows[] = {{"0", 0},
                    {"1ms", 1},
                    {"1500ms", 1500},
                    {"10s", 10000},
                    {"5m", 300000},
                    {"2h", 7200000},
                    {"10", -1},
                    {"", -1},
                    {"s", -1},
                    {"1.5s", -1},
                    {"-1s", -1},
                    {"1 s", -1},
                    {"1S", -1},
                    {"1min", -1},
                    {"1d", -1},
                    {"off", -1},
                    {"1sx", -1},
                    {"99999999999999999999s", -1},
                    {"9999999999999999h", -1}};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                uint64_t ms = 77;
                const char *why = NULL;
                bool ok = option_parse_millis(slice(rows[i].text), &ms, &why);

                assert_int_equal(ok, rows[i].want >= 0);
                assert_int_equal(ms, ok ? (uint64_t)rows[i].want : 77);
                assert_int_equal(why != NULL, !ok);
        }
}

static void test_sizes(void **state)
{
        (void)state;
        static const struct {
                const char *text;
                int64_t want;
        } rows[] = {{"0", 0},
                    {"65536", 65536},
                    {"1KiB", 1024},
                    {"64MiB", 67108864},
                    {"2GiB", 2147483648},
                    {"1TiB", 1ll << 40},
                    {"64MB", -1},
                    {"64M", -1},
                    {"1kib", -1},
                    {"", -1},
                    {"MiB", -1},
                    {"1.5MiB", -1},
                    {"18446744073709551615KiB", -1}};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                uint64_t bytes = 77;
                const char *why = NULL;
                bool ok = option_parse_bytes(slice(rows[i].text), &bytes, &why);

                assert_int_equal(ok, rows[i].want >= 0);
                assert_int_equal(bytes, ok ? (uint64_t)rows[i].want : 77);
        }
}

static void test_numbers(void **state)
{
        (void)state;
        const char *why;
        double real = 7;
        uint64_t n = 7;
        bool flag = false;
        unsigned word = 9;

        assert_true(option_parse_number(slice("0.25"), &real, &why) && real == 0.25);
        assert_true(option_parse_number(slice("8e3"), &real, &why) && real == 8000);
        assert_false(option_parse_number(slice("0x10"), &real, &why));
        assert_false(option_parse_number(slice("nan"), &real, &why));
        assert_false(option_parse_number(slice("-1"), &real, &why));
        assert_false(option_parse_number(slice("1,5"), &real, &why));
        assert_false(option_parse_number(slice("1e999"), &real, &why));
        assert_false(option_parse_number((struct kvr_slice){"1\0002", 3}, &real, &why));
        assert_true(real == 8000);
        assert_true(option_parse_count(slice("18446744073709551615"), &n, &why) && n == UINT64_MAX);
        assert_false(option_parse_count(slice("18446744073709551616"), &n, &why));
        assert_false(option_parse_count(slice("+1"), &n, &why));
        assert_false(option_parse_count(slice(""), &n, &why));
        assert_true(option_parse_bool(slice("yes"), &flag, &why) && flag);
        assert_true(option_parse_bool(slice("off"), &flag, &why) && !flag);
        assert_false(option_parse_bool(slice("On"), &flag, &why));
        assert_true(value_choice(slice("warn"), "error|warn|info", &word) && word == 1);
        assert_true(value_choice(slice("info"), "error|warn|info", &word) && word == 2);
        assert_false(value_choice(slice(""), "error|warn", &word));
        assert_false(value_choice(slice("err"), "error|warn", &word));
        assert_false(value_choice(slice("error|warn"), "error|warn", &word));
}

static void test_formats(void **state)
{
        (void)state;
        static const struct {
                uint64_t n;
                const char *time, *size;
        } rows[] = {{0, "0ms", "0"},
                    {1500, "1500ms", "1500"},
                    {10000, "10s", "10000"},
                    {300000, "5m", "300000"},
                    {7200000, "2h", "7200000"},
                    {67108864, "67108864ms", "64MiB"},
                    {65536, "65536ms", "64KiB"}};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                char text[32];

                option_format_millis(rows[i].n, text, sizeof text);
                assert_string_equal(text, rows[i].time);
                option_format_bytes(rows[i].n, text, sizeof text);
                assert_string_equal(text, rows[i].size);
        }
}

static void test_nearest(void **state)
{
        (void)state;
        assert_string_equal(options_nearest(slice("polcy")), "policy");
        assert_string_equal(options_nearest(slice("index_memory")), "index-memory");
        assert_string_equal(options_nearest(slice("session-headers")), "session-header");
        assert_null(options_nearest(slice("frobnicate")));
        assert_null(options_nearest(slice("")));
        assert_null(options_nearest(
                slice("an-option-name-that-is-far-longer-than-any-option-could-ever-be-in-here")));
}

/* The rules of the table itself: names unique, help there, defaults within the bounds. */
static void test_table(void **state)
{
        (void)state;
        size_t count, groups = 0;
        const struct option_row *table = options_table(&count);

        for (size_t i = 0; i < count; i++) {
                const struct option_row *o = &table[i];
                const char *why;
                uint64_t n = 0;

                assert_non_null(o->help);
                if (!o->name) {
                        groups++;
                        continue;
                }
                assert_ptr_equal(options_find(slice(o->name)), o);
                assert_true(strlen(o->help) > 10);
                assert_true(strspn(o->name, "abcdefghijklmnopqrstuvwxyz-") == strlen(o->name));
                assert_true(*o->argument);
                assert_true(o->help[strlen(o->help) - 1] != '.');
                if (o->type == OPT_MILLIS && strcmp(o->fallback, "off") != 0)
                        assert_true(option_parse_millis(slice(o->fallback), &n, &why) &&
                                    (double)n >= o->min && (double)n <= o->max);
                if (o->type == OPT_BYTES)
                        assert_true(option_parse_bytes(slice(o->fallback), &n, &why) && (double)n >= o->min &&
                                    (double)n <= o->max);
        }
        assert_true(groups >= 5);
        assert_null(options_find(slice("Listening")));
        assert_null(options_find(slice("")));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_times),   cmocka_unit_test(test_sizes),
                cmocka_unit_test(test_numbers), cmocka_unit_test(test_formats),
                cmocka_unit_test(test_nearest), cmocka_unit_test(test_table),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
