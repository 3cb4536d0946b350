/* SPDX-License-Identifier: Apache-2.0 */
#include "decode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include <cmocka.h>

#define SIZE ((size_t)300 * 1000)

static char plain[SIZE], packed[SIZE];

static void fill(void)
{
        for (size_t i = 0; i < SIZE; i++)
                plain[i] = (char)('a' + (i * i >> 9) % 17);
}

static size_t pack(enum decode_coding coding, size_t len)
{
        z_stream stream = {.next_in = (Bytef *)plain,
                           .avail_in = (uInt)len,
                           .next_out = (Bytef *)packed,
                           .avail_out = SIZE};

        if (coding == DECODE_ZSTD)
                return ZSTD_compress(packed, SIZE, plain, len, 3);
        assert_int_equal(
                deflateInit2(&stream, 6, Z_DEFLATED, coding == DECODE_GZIP ? 31 : 15, 8, Z_DEFAULT_STRATEGY),
                Z_OK);
        assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
        deflateEnd(&stream);
        return SIZE - stream.avail_out;
}

static void round_trips_up_to_the_limit(void **state)
{
        static const enum decode_coding codings[] = {DECODE_GZIP, DECODE_DEFLATE, DECODE_ZSTD};

        (void)state;
        fill();
        for (size_t i = 0; i < 3; i++) {
                static const size_t lens[] = {0, 1, 65535, 65536, 65537, SIZE};

                for (size_t k = 0; k < sizeof lens / sizeof *lens; k++) {
                        size_t len = pack(codings[i], lens[k]);
                        struct text out = {0};

                        text_adds(&out, "x"); /* what is there already stays */
                        assert_int_equal(
                                decode_body(codings[i], (struct kvr_slice){packed, len}, lens[k], &out),
                                DECODE_OK);
                        assert_int_equal(out.len, 1 + lens[k]);
                        assert_memory_equal(out.data + 1, plain, lens[k]);
                        text_clear(&out);
                        if (lens[k])
                                assert_int_equal(decode_body(codings[i], (struct kvr_slice){packed, len},
                                                             lens[k] - 1, &out),
                                                 DECODE_TOO_LARGE);
                        text_clear(&out);
                        assert_int_equal(
                                decode_body(codings[i], (struct kvr_slice){packed, len - 1}, SIZE, &out),
                                DECODE_BAD);
                        text_clear(&out);
                        packed[len] = 'x';
                        assert_int_equal(
                                decode_body(codings[i], (struct kvr_slice){packed, len + 1}, SIZE, &out),
                                DECODE_BAD);
                        text_free(&out);
                }
        }
}

/* 64 MiB of zeros in a few kB: refused at the limit, without the memory. */
static void bombs_are_cut(void **state)
{
        size_t zeros_len = (size_t)64 * 1024 * 1024, len;
        char *zeros = calloc(1, zeros_len), *bomb = malloc(1 << 20);
        struct text out = {0};

        (void)state;
        assert_non_null(zeros);
        assert_non_null(bomb);
        len = ZSTD_compress(bomb, 1 << 20, zeros, zeros_len, 1);
        assert_false(ZSTD_isError(len));
        assert_int_equal(decode_body(DECODE_ZSTD, (struct kvr_slice){bomb, len}, 1 << 20, &out),
                         DECODE_TOO_LARGE);
        assert_true(out.cap <= 4u << 20);
        text_free(&out);
        free(zeros);
        free(bomb);
}

static void codings_by_header(void **state)
{
        static const struct {
                const char *fields;
                enum decode_coding coding;
        } cases[] = {
                {"", DECODE_IDENTITY},
                {"Content-Encoding: gzip\r\n", DECODE_GZIP},
                {"content-encoding: X-GZIP\r\n", DECODE_GZIP},
                {"Content-Encoding: zstd\r\n", DECODE_ZSTD},
                {"Content-Encoding: deflate\r\n", DECODE_DEFLATE},
                {"Content-Encoding: br\r\n", DECODE_UNKNOWN},
                {"Content-Encoding: gzip, zstd\r\n", DECODE_UNKNOWN},
                {"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n", DECODE_UNKNOWN},
        };

        (void)state;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                struct http1_parser parser;
                struct http1_head head;
                struct text request = {0};
                size_t used;

                text_addf(&request, "POST / HTTP/1.1\r\nHost: x\r\n%s\r\n", cases[i].fields);
                http1_init(&parser, HTTP1_REQUEST);
                assert_int_equal(http1_head(&parser, request.data, request.len, &head, &used), HTTP1_DONE);
                assert_int_equal(decode_coding_of(&head), cases[i].coding);
                text_free(&request);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(round_trips_up_to_the_limit),
                cmocka_unit_test(bombs_are_cut),
                cmocka_unit_test(codings_by_header),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
