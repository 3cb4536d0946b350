/* SPDX-License-Identifier: Apache-2.0 */
#include "prom.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kvr_slice slice(const char *text)
{
        return (struct kvr_slice){text, strlen(text)};
}

static void check_slice(struct kvr_slice got, const char *want)
{
        assert_int_equal(got.len, strlen(want));
        assert_memory_equal(got.data, want, got.len);
}

static void test_samples(void **state)
{
        (void)state;
        struct prom_reader r;
        struct prom_sample s;

        prom_init(&r,
                  slice("# HELP a text {\n# TYPE a gauge\n\na 1\n  b{} 2.5 1700000000\r\n"
                        "vllm:x_total{engine=\"0\",model_name=\"a \\\"b\\\\ c\\n\"} 1.7960680445093737e+09\n"
                        "h_bucket { le = \"+Inf\" , } +Inf # {trace_id=\"x\"} 0.5\nn NaN\nlast 7"));
        assert_true(prom_next(&r, &s));
        check_slice(s.name, "a");
        assert_true(s.value == 1 && s.label_count == 0);
        assert_true(prom_next(&r, &s));
        check_slice(s.name, "b");
        assert_true(s.value == 2.5 && s.label_count == 0);
        assert_true(prom_next(&r, &s));
        assert_true(prom_is(s.name, "vllm:x_total"));
        assert_int_equal(s.label_count, 2);
        check_slice(prom_label(&s, "engine"), "0");
        check_slice(prom_label(&s, "model_name"), "a \\\"b\\\\ c\\n");
        assert_null(prom_label(&s, "absent").data);
        char text[32];
        assert_true(prom_unescape(prom_label(&s, "model_name"), text, sizeof text));
        assert_string_equal(text, "a \"b\\ c\n");
        assert_false(prom_unescape(prom_label(&s, "model_name"), text, 4));
        assert_string_equal(text, "a \"");
        assert_true(s.value == 1.7960680445093737e+09);
        assert_true(prom_next(&r, &s));
        check_slice(prom_label(&s, "le"), "+Inf");
        assert_true(isinf(s.value));
        assert_true(prom_next(&r, &s));
        assert_true(isnan(s.value));
        assert_true(prom_next(&r, &s));
        check_slice(s.name, "last");
        assert_true(s.value == 7);
        assert_false(prom_next(&r, &s));
        assert_int_equal(r.samples, 6);
        assert_int_equal(r.skipped, 0);
}

static void test_bad_lines_are_skipped(void **state)
{
        (void)state;
        static const char *const bad[] = {
                "1a 2",
                "a",
                "a{x=\"1\" 2",
                "a{x=1} 2",
                "a{x=\"1} 2",
                "a{x=\"1\"y=\"2\"} 2",
                "a{=\"1\"} 2",
                "a{x} 2",
                "a b",
                "a 1x",
                "{\"a\"} 1",
                "a{x=\"\\",
                "-",
                "a{x=\"1\",,} 1",
                "a 00000000000000000000000000000000000000000000000000000000000000000001",
        };
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
                char page[256] = "";
                struct prom_reader r;
                struct prom_sample s;

                snprintf(page, sizeof page, "%s\ngood 1\n", bad[i]);
                prom_init(&r, slice(page));
                assert_true(prom_next(&r, &s));
                check_slice(s.name, "good");
                assert_false(prom_next(&r, &s));
                assert_int_equal(r.skipped, 1);
        }
}

static void test_limits(void **state)
{
        (void)state;
        size_t size = PROM_LINE_MAX + 100;
        char *page = malloc(size);
        struct prom_reader r;
        struct prom_sample s;

        /* one label more than fits */
        assert_non_null(page);
        for (unsigned labels = PROM_LABELS_MAX; labels <= PROM_LABELS_MAX + 1; labels++) {
                size_t at = 2;

                memcpy(page, "a{", 2);
                for (unsigned i = 0; i < labels; i++, at += 6)
                        memcpy(page + at, "x=\"1\",", 6);
                memcpy(page + at, "} 1\n", 4);
                prom_init(&r, (struct kvr_slice){page, at + 4});
                assert_int_equal(prom_next(&r, &s), labels == PROM_LABELS_MAX);
        }
        memset(page, 'a', size);
        memcpy(page + size - 2, " 1", 2);
        prom_init(&r, (struct kvr_slice){page, size});
        assert_false(prom_next(&r, &s));
        assert_int_equal(r.skipped, 1);
        free(page);
}

static void test_label_number(void **state)
{
        (void)state;
        static const struct {
                const char *text;
                double want;
        } rows[] = {{"32031", 32031},
                    {"0", 0},
                    {"16.5", 16.5},
                    {"None", -1},
                    {"", -1},
                    {"-3", -1},
                    {" 4", -1},
                    {"1e3", -1},
                    {"0x10", -1},
                    {"nan", -1},
                    {"9007199254740993000", -1},
                    {"1.2.3", -1},
                    {"True", -1}};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                struct prom_sample s = {.label_count = 1};

                s.labels[0].name = slice("x");
                s.labels[0].value = slice(rows[i].text);
                assert_true(prom_label_number(&s, "x") == rows[i].want);
                assert_true(prom_label_number(&s, "y") == -1);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_samples),
                cmocka_unit_test(test_bad_lines_are_skipped),
                cmocka_unit_test(test_limits),
                cmocka_unit_test(test_label_number),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
