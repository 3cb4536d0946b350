/* SPDX-License-Identifier: Apache-2.0 */
#include "msgpack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct msgpack_item one(const void *bytes, size_t len)
{
        struct msgpack_cursor cursor = msgpack_begin((struct kvr_slice){bytes, len});
        struct msgpack_item item;

        assert_true(msgpack_next(&cursor, &item));
        assert_ptr_equal(cursor.at, cursor.end);
        return item;
}

#define ONE(bytes) one(bytes, sizeof(bytes) - 1)

static void test_every_form(void **state)
{
        (void)state;
        assert_int_equal(ONE("\xc0").type, MSGPACK_NIL);
        assert_false(ONE("\xc2").yes);
        assert_true(ONE("\xc3").yes);
        assert_int_equal(ONE("\x7f").u, 127);
        assert_int_equal(ONE("\xcc\xff").u, 255);
        assert_int_equal(ONE("\xcd\x01\x00").u, 256);
        assert_int_equal(ONE("\xce\x01\x00\x00\x00").u, 1 << 24);
        assert_true(ONE("\xcf\xff\xff\xff\xff\xff\xff\xff\xff").u == UINT64_MAX);
        assert_int_equal(ONE("\xff").i, -1);
        assert_int_equal(ONE("\xe0").i, -32);
        assert_int_equal(ONE("\xd0\x80").i, -128);
        assert_int_equal(ONE("\xd1\x80\x00").i, -32768);
        assert_int_equal(ONE("\xd2\x80\x00\x00\x00").i, INT32_MIN);
        assert_true(ONE("\xd3\x80\x00\x00\x00\x00\x00\x00\x00").i == INT64_MIN);
        assert_int_equal(ONE("\xd3\x00\x00\x00\x00\x00\x00\x00\x07").type, MSGPACK_UINT);
        assert_int_equal(ONE("\xd0\x07").u, 7);
        assert_true(ONE("\xca\x3f\x00\x00\x00").f == 0.5);
        assert_true(ONE("\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00").f == 0.5);
        assert_true(msgpack_is(&(struct msgpack_item){.type = MSGPACK_STR, .bytes = {"abc", 3}}, "abc"));
        assert_int_equal(ONE("\xa3"
                             "abc")
                                 .bytes.len,
                         3);
        assert_int_equal(ONE("\xd9\x01x").type, MSGPACK_STR);
        assert_int_equal(ONE("\xda\x00\x01x").type, MSGPACK_STR);
        assert_int_equal(ONE("\xdb\x00\x00\x00\x01x").bytes.data[0], 'x');
        assert_int_equal(ONE("\xc4\x01x").type, MSGPACK_BIN);
        assert_int_equal(ONE("\xc5\x00\x01x").type, MSGPACK_BIN);
        assert_int_equal(ONE("\xc6\x00\x00\x00\x01x").type, MSGPACK_BIN);
        assert_int_equal(ONE("\xd4\x01x").type, MSGPACK_EXT);
        assert_int_equal(ONE("\xd8\x01"
                             "0123456789abcdef")
                                 .bytes.len,
                         17);
        assert_int_equal(ONE("\xc7\x02\x01xy").type, MSGPACK_EXT);
        assert_int_equal(ONE("\x90").count, 0);
        assert_int_equal(ONE("\x80").type, MSGPACK_MAP);
}

static bool reads(const void *bytes, size_t len)
{
        struct msgpack_cursor cursor = msgpack_begin((struct kvr_slice){bytes, len});
        struct msgpack_item item;
        bool read = msgpack_next(&cursor, &item);

        assert_true(read || cursor.at == bytes);
        return read;
}

static void test_lies_are_refused(void **state)
{
        (void)state;
        assert_false(reads("", 0));
        assert_false(reads("\xc1", 1));
        /* More items, or longer strings, than there are bytes. */
        assert_false(reads("\xdd\xff\xff\xff\xff", 5));
        assert_false(reads("\xdf\xff\xff\xff\xff\x00", 6));
        assert_false(reads("\x91", 1));
        assert_false(reads("\x81\x01", 2));
        assert_true(reads("\x81\x01\x02", 3));
        assert_false(reads("\xdb\xff\xff\xff\xff", 5));
        assert_false(reads("\xc6\x00\x00\x00\x02x", 6));
        assert_false(reads("\xc9\xff\xff\xff\xff\x01", 6));
}

static void test_writer_and_reader_agree(void **state)
{
        (void)state;
        static const uint64_t unsigneds[] = {0,     127,   128,        255,        256,
                                             65535, 65536, UINT32_MAX, 1ull << 32, UINT64_MAX};
        static const int64_t signeds[] = {
                -1, -32, -33, -128, -129, -32768, -32769, INT32_MIN, (int64_t)INT32_MIN - 1, INT64_MIN};
        static const size_t lengths[] = {0, 1, 31, 32, 255, 256, 65535, 65536};

        for (size_t i = 0; i < sizeof unsigneds / sizeof *unsigneds; i++) {
                struct text out = {0};
                struct msgpack_item item;

                msgpack_write_uint(&out, unsigneds[i]);
                item = one(out.data, out.len);
                assert_int_equal(item.type, MSGPACK_UINT);
                assert_true(item.u == unsigneds[i]);
                text_clear(&out);
                msgpack_write_int(&out, signeds[i]);
                item = one(out.data, out.len);
                assert_int_equal(item.type, MSGPACK_INT);
                assert_true(item.i == signeds[i]);
                text_free(&out);
        }
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                struct text out = {0};
                char *bytes = calloc(1, lengths[i] + 1);
                struct msgpack_cursor cursor;

                assert_non_null(bytes);
                msgpack_write_str(&out, (struct kvr_slice){bytes, lengths[i]});
                assert_int_equal(one(out.data, out.len).bytes.len, lengths[i]);
                text_clear(&out);
                msgpack_write_bin(&out, bytes, (uint32_t)lengths[i]);
                assert_int_equal(one(out.data, out.len).bytes.len, lengths[i]);
                text_clear(&out);
                msgpack_write_array(&out, (uint32_t)lengths[i]);
                for (size_t n = 0; n < lengths[i]; n++)
                        msgpack_write_nil(&out);
                msgpack_write_map(&out, (uint32_t)lengths[i]);
                for (size_t n = 0; n < 2 * lengths[i]; n++)
                        msgpack_write_float(&out, 1);
                cursor = msgpack_begin(text_slice(&out));
                assert_true(msgpack_skip(&cursor));
                assert_true(msgpack_skip(&cursor));
                assert_ptr_equal(cursor.at, cursor.end);
                text_free(&out);
                free(bytes);
        }
}

/* A million arrays in one another: skipped without a stack of them. */
static void test_deep_nesting(void **state)
{
        (void)state;
        size_t depth = 1000000;
        char *bytes = malloc(depth + 1);
        struct msgpack_cursor cursor;

        assert_non_null(bytes);
        memset(bytes, '\x91', depth);
        bytes[depth] = 7;
        cursor = msgpack_begin((struct kvr_slice){bytes, depth + 1});
        assert_true(msgpack_skip(&cursor));
        assert_ptr_equal(cursor.at, cursor.end);
        cursor = msgpack_begin((struct kvr_slice){bytes, depth});
        assert_false(msgpack_skip(&cursor));
        free(bytes);
}

/* Sums of counts larger than the bytes, although each count alone is not: refused soon. */
static void test_counts_that_add_up(void **state)
{
        (void)state;
        size_t len = 65536 * 3;
        char *bytes = malloc(len);
        struct msgpack_cursor cursor;

        assert_non_null(bytes);
        for (size_t i = 0; i + 3 <= len; i += 3)
                memcpy(bytes + i, "\xdc\x7f\xff", 3);
        cursor = msgpack_begin((struct kvr_slice){bytes, len});
        assert_false(msgpack_skip(&cursor));
        free(bytes);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_every_form),
                cmocka_unit_test(test_lies_are_refused),
                cmocka_unit_test(test_writer_and_reader_agree),
                cmocka_unit_test(test_deep_nesting),
                cmocka_unit_test(test_counts_that_add_up),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
