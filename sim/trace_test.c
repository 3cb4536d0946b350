/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

static char path[64];

static const char *write_file(const char *text, bool gz)
{
        int fd;

        snprintf(path, sizeof(path), "/tmp/kvroute-trace-test-XXXXXX");
        fd = mkstemp(path);
        assert_true(fd >= 0);
        if (gz) {
                gzFile file = gzdopen(fd, "wb");

                assert_non_null(file);
                assert_int_equal(gzwrite(file, text, (unsigned)strlen(text)), strlen(text));
                assert_int_equal(gzclose(file), Z_OK);
        } else {
                assert_int_equal(write(fd, text, strlen(text)), strlen(text));
                close(fd);
        }
        return path;
}

static bool read_text(const char *text, bool gz, struct sim_trace_options options, struct sim_trace *ret,
                      char *message)
{
        bool good = sim_trace_read(write_file(text, gz), &options, ret, message, 256);

        unlink(path);
        return good;
}

/* The message behind the file's name. */
static void expect_error(const char *text, struct sim_trace_options options, const char *what)
{
        struct sim_trace trace;
        char message[256] = "";

        assert_false(read_text(text, false, options, &trace, message));
        assert_memory_equal(message, path, strlen(path));
        assert_string_equal(message + strlen(path), what);
}

#define ROW(time, in, out, ids)                                                                              \
        "{\"timestamp\":" #time ",\"input_length\":" #in ",\"output_length\":" #out ",\"hash_ids\":" ids "}" \
        "\n"

static const char sample[] = ROW(3000, 600, 10, "[1,2]")
        ROW(0, 1024, 20, "[1,7]") "\n" ROW(3000, 512, 0, "[9]") ROW(1500, 1025, 5, "[1,7,8]");

static void rows_are_sorted_by_time_and_keep_their_ids(void **state)
{
        for (int gz = 0; gz < 2; gz++) {
                struct sim_trace t;
                char message[256] = "";

                (void)state;
                assert_true(read_text(sample, gz, (struct sim_trace_options){0}, &t, message));
                assert_int_equal(t.block_tokens, 512);
                assert_int_equal(t.row_count, 4);
                assert_true(t.rows[0].time_s == 0 && t.rows[1].time_s == 1.5 && t.rows[3].time_s == 3);
                assert_int_equal(t.rows[1].input_tokens, 1025);
                assert_int_equal(t.rows[1].output_tokens, 5);
                assert_int_equal(t.rows[1].id_count, 3);
                assert_int_equal(sim_trace_ids(&t, 1)[1], 7);
                assert_int_equal(t.rows[2].input_tokens, 600); /* ties in the order of the file */
                assert_int_equal(sim_trace_ids(&t, 3)[0], 9);
                sim_trace_fini(&t);
        }
}

static void a_stretch_is_cut_out_and_rebased(void **state)
{
        struct sim_trace t;
        char message[256] = "";

        (void)state;
        assert_true(
                read_text(sample, false, (struct sim_trace_options){.from_s = 1, .to_s = 3}, &t, message));
        assert_int_equal(t.row_count, 1);
        assert_true(t.rows[0].time_s == 0.5);
        assert_int_equal(sim_trace_ids(&t, 0)[2], 8);
        sim_trace_fini(&t);
        expect_error(sample, (struct sim_trace_options){.from_s = 9},
                     ": no rows in the chosen stretch of time");
}

static void the_block_size_is_found_out(void **state)
{
        struct sim_trace t;
        char message[256] = "";

        (void)state;
        assert_true(read_text(ROW(0, 100, 1, "[1,2]") ROW(1, 64, 1, "[1]"), false,
                              (struct sim_trace_options){0}, &t, message));
        assert_int_equal(t.block_tokens, 64);
        sim_trace_fini(&t);
        assert_true(read_text(ROW(0, 100, 1, "[1]"), false, (struct sim_trace_options){.block_tokens = 100},
                              &t, message));
        assert_int_equal(t.block_tokens, 100);
        sim_trace_fini(&t);
        expect_error(ROW(0, 512, 1, "[1]") "\n" ROW(0, 513, 1, "[1]"),
                     (struct sim_trace_options){.block_tokens = 512},
                     ":3: 513 tokens in blocks of 512 are not 1 hash_ids");
}

static void bad_lines_are_named(void **state)
{
        static const struct sim_trace_options any = {0};

        (void)state;
        expect_error(ROW(0, 1, 1, "[1]") "{\"timestamp\": 1,\n", any,
                     ":2: not JSON (at byte 17: unexpected end of data)");
        expect_error(ROW(0, 1, 1, "[1]") ROW(0, 1, 1, "[1]") "[1]\n", any, ":3: not a JSON object");
        expect_error(ROW(-1, 1, 1, "[1]"), any, ":1: timestamp is not a number of milliseconds");
        expect_error("{\"input_length\":1}", any, ":1: timestamp is not a number of milliseconds");
        expect_error(ROW(0, 0, 1, "[1]"), any, ":1: input_length is not a positive number of tokens");
        expect_error(ROW(0, 1, "x", "[1]"), any, ":1: output_length is not a number of tokens");
        expect_error(ROW(0, 1, 1, "[]"), any, ":1: hash_ids is not a non-empty array");
        expect_error(ROW(0, 1, 1, "7"), any, ":1: hash_ids is not a non-empty array");
        expect_error(ROW(0, 1, 1, "[1.5]"), any, ":1: hash_ids has an element that is not a whole number");
        expect_error("", any, ": no rows");
}

static void what_cannot_be_read_is_named(void **state)
{
        struct sim_trace t;
        struct sim_trace_options any = {0};
        char message[256] = "";
        FILE *file;
        long size;

        (void)state;
        assert_false(sim_trace_read("/nonexistent/x.jsonl", &any, &t, message, sizeof(message)));
        assert_string_equal(message, "/nonexistent/x.jsonl: cannot open the file");
        /* A gzip file that was cut. */
        write_file(sample, true);
        file = fopen(path, "rb");
        assert_non_null(file);
        fseek(file, 0, SEEK_END);
        size = ftell(file);
        fclose(file);
        assert_int_equal(truncate(path, size - 12), 0);
        assert_false(sim_trace_read(path, &any, &t, message, sizeof(message)));
        unlink(path);
        assert_memory_equal(message, path, strlen(path));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(rows_are_sorted_by_time_and_keep_their_ids),
                cmocka_unit_test(a_stretch_is_cut_out_and_rebased),
                cmocka_unit_test(the_block_size_is_found_out),
                cmocka_unit_test(bad_lines_are_named),
                cmocka_unit_test(what_cannot_be_read_is_named),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
