/* SPDX-License-Identifier: Apache-2.0 */
/* Against the values that the authors of SipHash published for the key 00 01 ... 0f and inputs 00 01 02 ... */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "siphash.h"

static const struct siphash_key key = {0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull};

static void test_published_values(void **state)
{
        static const struct {
                size_t len;
                uint64_t hash;
        } cases[] = {
                {0, 0x726fdb47dd0e0e31ull}, {1, 0x74f839c593dc67fdull},  {7, 0xab0200f58b01d137ull},
                {8, 0x93f5f5799a932462ull}, {15, 0xa129ca6149be45e5ull}, {16, 0x3f2acc7f57c29bdbull},
        };
        unsigned char input[16];

        (void)state;
        for (unsigned i = 0; i < sizeof input; i++)
                input[i] = (unsigned char)i;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
                assert_true(siphash(&key, input, cases[i].len) == cases[i].hash);
        assert_true(siphash_pair(&key, key.low, key.high) == siphash(&key, input, 16));
}

static void test_keys_matter(void **state)
{
        struct siphash_key other = key;

        (void)state;
        other.high ^= 1;
        assert_true(siphash_pair(&key, 1, 2) != siphash_pair(&other, 1, 2));
        assert_true(siphash_pair(&key, 1, 2) != siphash_pair(&key, 2, 1));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_published_values),
                cmocka_unit_test(test_keys_matter),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
