/* SPDX-License-Identifier: Apache-2.0 */
#include "token_ends.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_newest_first(void **state)
{
        struct kvr__token_map *map = kvr__token_map_new(KVR__MAP_BYTES_MIN);
        struct kvr__ends_of of = {.cell = 77, .block_tokens = 16, .model = 5};
        uint64_t key = 1, place;
        uint32_t lengths[KVR__ENDS_MAX];

        (void)state;
        assert_non_null(map);
        place = kvr__token_map_append(map, 0, 0, &key, 1, 0);
        assert_int_not_equal(place, 0);
        assert_int_equal(kvr__token_ends_get(map, &of, lengths), 0);
        for (uint32_t i = 1; i <= 20; i++) {
                kvr__token_ends_put(map, &of, 100 * i, place);
                uint32_t count = kvr__token_ends_get(map, &of, lengths);

                assert_int_equal(count, i < KVR__ENDS_MAX ? i : KVR__ENDS_MAX);
                for (uint32_t n = 0; n < count; n++)
                        assert_int_equal(lengths[n], 100 * (i - n));
        }
        /* One that is there comes to the front. */
        kvr__token_ends_put(map, &of, 1500, place);
        assert_int_equal(kvr__token_ends_get(map, &of, lengths), KVR__ENDS_MAX);
        assert_int_equal(lengths[0], 1500);
        assert_int_equal(lengths[1], 2000);
        assert_int_equal(lengths[5], 1600);
        assert_int_equal(lengths[6], 1400);
        assert_int_equal(lengths[7], 1300);
        struct kvr__ends_of others[] = {{78, 16, 5}, {77, 32, 5}};

        for (int i = 0; i < 2; i++)
                assert_int_equal(kvr__token_ends_get(map, &others[i], lengths), 0);
        kvr__token_map_forget(map, 5);
        assert_int_equal(kvr__token_ends_get(map, &of, lengths), 0);
        kvr__token_map_free(map);
}

/* They go with the record they were learned with. */
static void test_overwritten(void **state)
{
        struct kvr__token_map *map = kvr__token_map_new(KVR__MAP_BYTES_MIN);
        struct kvr__ends_of of = {.cell = 77, .block_tokens = 16, .model = 5};
        uint64_t keys[64] = {0};
        uint32_t lengths[KVR__ENDS_MAX];

        (void)state;
        assert_non_null(map);
        kvr__token_ends_put(map, &of, 9, kvr__token_map_append(map, 0, 0, keys, 64, 0));
        assert_int_equal(kvr__token_ends_get(map, &of, lengths), 1);
        for (int i = 0; i < 200; i++)
                (void)kvr__token_map_append(map, 0, 0, keys, 64, 0);
        assert_int_equal(kvr__token_ends_get(map, &of, lengths), 0);
        kvr__token_map_free(map);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_newest_first),
                cmocka_unit_test(test_overwritten),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
