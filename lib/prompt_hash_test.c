/* SPDX-License-Identifier: Apache-2.0 */
/* Our ways to XXH3 give what the packaged library gives, at every length around the borders of its forms. */
#include "lib/prompt_hash.h"
#include "lib/prompt_test_util.h"

#include <xxhash.h>

#define LENGTH_MAX 5000

static void test_same_as_the_library(void **state)
{
        static const uint64_t seeds[] = {0, 1, 42, UINT64_MAX};
        unsigned char bytes[LENGTH_MAX];
        uint64_t rng = 2;

        (void)state;
        for (size_t i = 0; i < sizeof(bytes); i++)
                bytes[i] = (unsigned char)chance(&rng);
        for (size_t s = 0; s < sizeof(seeds) / sizeof(seeds[0]); s++) {
                struct kvr__hash hash;

                kvr__hash_init(&hash, seeds[s]);
                /* With the CPU's widest form, and with all narrower ones. */
                for (int form = (int)hash.form; form >= KVR__HASH_ANY_CPU; form--) {
                        hash.form = (enum kvr__hash_form)form;
                        for (size_t len = 0; len <= LENGTH_MAX; len += len < 600 ? 1 : 97) {
                                XXH128_hash_t wide = XXH3_128bits_withSeed(bytes, len, seeds[s]);
                                struct kvr__digest digest = kvr__hash128(&hash, bytes, len);

                                assert_true(kvr__hash64(&hash, bytes, len) ==
                                            XXH3_64bits_withSeed(bytes, len, seeds[s]));
                                assert_true(digest.low == wide.low64 && digest.high == wide.high64);
                        }
                }
        }
}

static void test_links_and_numbers(void **state)
{
        static const char text[] = "a piece of a prompt";
        unsigned char bytes[16];
        struct kvr__hash hash;
        uint64_t piece, numbers[2];

        (void)state;
        kvr__hash_init(&hash, 5);
        piece = XXH3_64bits_withSeed(text, strlen(text), 5) + 3;
        for (unsigned b = 0; b < 8; b++) {
                bytes[b] = (unsigned char)(0x1122334455667788ull >> 8 * b);
                bytes[8 + b] = (unsigned char)(piece >> 8 * b);
        }
        assert_true(kvr__hash_link(&hash, 0x1122334455667788ull, text, strlen(text), 3) ==
                    XXH3_64bits_withSeed(bytes, sizeof(bytes), 5));
        numbers[0] = 0x1122334455667788ull;
        numbers[1] = piece;
        assert_true(kvr__hash_numbers(&hash, numbers, 2) == XXH3_64bits_withSeed(bytes, sizeof(bytes), 5));
        assert_true(kvr__hash_numbers(&hash, numbers, 1) == XXH3_64bits_withSeed(bytes, 8, 5));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_same_as_the_library),
                cmocka_unit_test(test_links_and_numbers),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
