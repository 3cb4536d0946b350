/* SPDX-License-Identifier: Apache-2.0 */
#include "find.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Every needle at every place of texts of every small length, each in its own exactly sized allocation. */
static void test_every_place(void **state)
{
        (void)state;
        static const char *const needles[] = {"ab", "\"usage\":", "\"a\"", "aaaaaaaaaaaaaaaaaaaab"};

        for (size_t n = 0; n < sizeof needles / sizeof *needles; n++) {
                size_t needle_len = strlen(needles[n]);

                for (size_t len = 1; len < 80; len++) {
                        char *text = malloc(len);

                        assert_non_null(text);
                        memset(text, 'x', len);
                        assert_null(find_text(text, len, needles[n], needle_len));
                        for (size_t at = 0; at + needle_len <= len; at++) {
                                memset(text, 'x', len);
                                memcpy(text + at, needles[n], needle_len);
                                assert_ptr_equal(find_text(text, len, needles[n], needle_len), text + at);
                                assert_null(find_text(text, at + needle_len - 1, needles[n], needle_len));
                        }
                        free(text);
                }
        }
}

/* Against the C library, on texts of few letters, where nearly everything almost fits. */
static void test_against_memmem(void **state)
{
        (void)state;
        uint64_t seed = 1;

        for (unsigned round = 0; round < 20000; round++) {
                char text[200], needle[8];
                size_t len, needle_len;

                seed = seed * 6364136223846793005u + 1442695040888963407u;
                len = seed >> 40 & 127;
                needle_len = 2 + (seed >> 50 & 3);
                for (size_t i = 0; i < len + needle_len; i++) {
                        seed = seed * 6364136223846793005u + 1442695040888963407u;
                        char c = "ab"[seed >> 60 & 1];
                        if (i < len)
                                text[i] = c;
                        else
                                needle[i - len] = c;
                }
                assert_ptr_equal(find_text(text, len, needle, needle_len),
                                 memmem(text, len, needle, needle_len));
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_every_place),
                cmocka_unit_test(test_against_memmem),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
