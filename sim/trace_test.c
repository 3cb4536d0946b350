/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

/* cmocka compares floats only. */
#define assert_near(a, b, within) assert_true(fabs((a) - (b)) <= (within))

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

static void usual_and_unusual_spellings_mean_the_same(void **state)
{
        /* The first is read by the scanner, the others by the library. */
        static const char *const lines[] = {
                "{\"timestamp\": 2500, \"session\": \"a\", \"input_length\": 700, \"output_length\": 3, "
                "\"hash_ids\": [5, 6]}\n",
                "{\"timestamp\": 2.5e3, \"session\": \"a\", \"input_length\": 700, \"output_length\": 3, "
                "\"hash_ids\": [5, 6]}\n",
                " { \"hash_ids\" : [ 5,6 "
                "],\"x\":{\"hash_ids\":[1]},\"output_length\":3,\"session\":\"\\u0061\",\t"
                "\"input_length\":700,\"timestamp\":2500.0 } \r\n",
                "{\"timestamp\":2500,\"session\":\"a\",\"input_length\":700,\"output_length\":3,\"hash_ids\":"
                "[5,6],"
                "\"hash_ids\":[7,8],\"delay\":-1}",
        };

        for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
                struct sim_trace t;
                char message[256] = "";
                bool good = read_text(lines[i], false, (struct sim_trace_options){0}, &t, message);

                (void)state;
                assert_string_equal(message, "");
                assert_true(good);
                assert_int_equal(t.row_count, 1);
                assert_true(t.rows[0].time_s == 2.5);
                assert_int_equal(t.rows[0].input_tokens, 700);
                assert_int_equal(t.rows[0].output_tokens, 3);
                assert_int_equal(t.rows[0].session, 1);
                assert_int_equal(t.session_count, 1);
                assert_int_equal(t.rows[0].id_count, 2);
                assert_int_equal(t.id_count, 2);
                assert_int_equal(sim_trace_ids(&t, 0)[0], 5);
                assert_int_equal(sim_trace_ids(&t, 0)[1], 6);
                sim_trace_fini(&t);
        }
}

static void ids_may_have_64_bits_and_a_sign(void **state)
{
        struct sim_trace t;
        char message[256] = "";

        (void)state;
        assert_true(read_text(ROW(0, 600, 1, "[18446744073709551615,-2]"), false,
                              (struct sim_trace_options){0}, &t, message));
        assert_true(sim_trace_ids(&t, 0)[0] == UINT64_MAX && sim_trace_ids(&t, 0)[1] == UINT64_MAX - 1);
        sim_trace_fini(&t);
}

static void sessions_are_numbered(void **state)
{
        static char text[60000];
        struct sim_trace t;
        char message[256] = "";
        size_t len = 0;

        (void)state;
        for (int i = 0; i < 600; i++)
                len += (size_t)snprintf(text + len, sizeof(text) - len,
                                        "{\"timestamp\":%d,\"session\":\"s%d\",\"input_length\":1,"
                                        "\"output_length\":1,\"hash_ids\":[%d]}\n",
                                        i, i % 300, i);
        assert_true(read_text(text, false, (struct sim_trace_options){0}, &t, message));
        assert_int_equal(t.session_count, 300);
        for (uint32_t i = 0; i < 600; i++)
                assert_int_equal(t.rows[i].session, i % 300 + 1);
        sim_trace_fini(&t);
}

static void bailian_counts_seconds_and_chains_its_turns(void **state)
{
#define CHAT(id, parent, time, ids)                                                \
        "{\"chat_id\":" #id ",\"parent_chat_id\":" #parent ",\"timestamp\":" #time \
        ",\"input_length\":20,\"output_length\":3,\"type\":\"text\",\"turn\":1,\"hash_ids\":" ids "}\n"
        static const char text[] = CHAT(7, -1, 1.5, "[1,2]") CHAT(8, -1, 2, "[3,4]")
                CHAT(9, 7, 61.25, "[1,5]") CHAT(10, 9, 70, "[1,6]") CHAT(11, 5, 71, "[7,8]");
        static const uint32_t sessions[] = {1, 2, 1, 1, 3};
        struct sim_trace t;
        char message[256] = "";

        (void)state;
        assert_true(read_text(text, false, (struct sim_trace_options){0}, &t, message));
        assert_int_equal(t.block_tokens, 16);
        assert_int_equal(t.row_count, 5);
        assert_true(t.rows[0].time_s == 1.5 && t.rows[2].time_s == 61.25);
        for (uint32_t i = 0; i < 5; i++)
                assert_int_equal(t.rows[i].session, sessions[i]);
        assert_int_equal(t.session_count, 3);
        sim_trace_fini(&t);
}

static void an_uncommon_block_size_is_found_too(void **state)
{
        struct sim_trace t;
        char message[256] = "";

        (void)state;
        assert_true(read_text(ROW(0, 300, 1, "[1,2,3]") ROW(0, 400, 1, "[1,2,3,4]")
                                      ROW(0, 301, 1, "[1,2,3,5]"),
                              false, (struct sim_trace_options){0}, &t, message));
        assert_int_equal(t.block_tokens, 100);
        sim_trace_fini(&t);
        expect_error(
                ROW(0, 300, 1, "[1,2,3]") ROW(0, 300, 1, "[1,2,3,4]") ROW(0, 1000, 1, "[1]"),
                (struct sim_trace_options){0},
                ":2: 300 tokens in blocks of 128 are not 4 hash_ids; give the block size if it is another");
}

static void lengths_share_nothing(void **state)
{
        static const char azure[] = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                                    "2023-11-16 18:15:46.6805900,374,44\r\n"
                                    "2023-11-16 18:15:50.9951690,1025,109\r\n"
                                    "2023-11-17 00:00:00.0000000,1,0";
        struct sim_trace t;
        char message[256] = "";

        (void)state;
        assert_true(read_text(azure, true, (struct sim_trace_options){0}, &t, message));
        assert_int_equal(t.block_tokens, 512);
        assert_int_equal(t.row_count, 3);
        assert_true(t.rows[0].time_s == 0);
        assert_near(t.rows[1].time_s, 4.314579, 1e-6);
        assert_near(t.rows[2].time_s, 20653.31941, 1e-6);
        assert_int_equal(t.rows[1].input_tokens, 1025);
        assert_int_equal(t.rows[1].output_tokens, 109);
        assert_int_equal(t.rows[1].id_count, 3);
        assert_int_equal(t.id_count, 5);
        for (uint64_t i = 0; i < 5; i++)
                assert_int_equal(t.ids[i], i);
        sim_trace_fini(&t);
        /* Other names and orders, seconds instead of dates, a leap day, another block size. */
        assert_true(read_text("Response tokens,Request tokens,Model,Timestamp\n5,100,x,12.5\n6,64,y,13\n",
                              false, (struct sim_trace_options){.block_tokens = 64}, &t, message));
        assert_int_equal(t.rows[0].id_count, 2);
        assert_int_equal(t.rows[1].id_count, 1);
        assert_true(t.rows[1].time_s == 0.5);
        sim_trace_fini(&t);
        assert_true(read_text("timestamp,input_tokens,output_tokens\n2024-02-28T23:59:59Z,1,1\n"
                              "2024-03-01 00:00:00+00:00,1,1\n",
                              false, (struct sim_trace_options){0}, &t, message));
        assert_true(t.rows[1].time_s == 86401);
        sim_trace_fini(&t);
}

static void bad_tables_are_named(void **state)
{
#define AZURE "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        static const struct sim_trace_options any = {0};

        (void)state;
        expect_error("hello\n", any,
                     ":1: neither JSON nor the head of a known CSV form (columns such as "
                     "TIMESTAMP,ContextTokens,GeneratedTokens)");
        expect_error("TIMESTAMP,ContextTokens,input_length,GeneratedTokens\n", any,
                     ":1: two columns mean the same");
        expect_error(AZURE "1,2\n", any, ":2: 2 fields, the head has 3");
        expect_error(AZURE "1,2,3,\n", any, ":2: 4 fields, the head has 3");
        expect_error(AZURE "1,1,1\n\nx,1,1\n", any,
                     ":4: the time is neither a date with time nor a number of seconds");
        expect_error(AZURE "2023-13-01 00:00:00,1,1\n", any,
                     ":2: the time is neither a date with time nor a number of seconds");
        expect_error(AZURE "1,0,1\n", any, ":2: the prompt's length is not a positive number of tokens");
        expect_error(AZURE "1,99999999999,1\n", any,
                     ":2: the prompt's length is not a positive number of tokens");
        expect_error(AZURE "1,1,-1\n", any, ":2: the answer's length is not a number of tokens");
        expect_error(AZURE "5,1,1\n4,1,1\n", any, ":3: the time lies before that of the first row");
        expect_error(AZURE, any, ": no rows");
        expect_error("session,start_s,requests,first_input,last_input,span_s\ns,0,x,1,1,1\n", any,
                     ":2: requests is not a number");
        expect_error("session,start_s,requests,first_input,last_input,span_s\ns,0,1,1,0,1\n", any,
                     ":2: first_input and last_input are not positive numbers of tokens");
}

static void sessions_grow_evenly_and_share_their_tools(void **state)
{
        static const char text[] =
                "session,start_s,requests,tool_tokens,system_tokens,first_input,last_input,span_s\n"
                "s1,10,3,1100,50,1300,3300,20\n"
                "s2,15,1,1100,50,1700,9999,20\n"
                "s3,15,1,600,50,1700,9999,20\n";
        const uint64_t *a, *b, *c, *d, *e;
        struct sim_trace t;
        char message[256] = "";

        (void)state;
        assert_true(read_text(text, false, (struct sim_trace_options){0}, &t, message));
        assert_int_equal(t.row_count, 5);
        assert_int_equal(t.session_count, 3);
        assert_true(t.rows[0].time_s == 10 && t.rows[3].time_s == 20 && t.rows[4].time_s == 30);
        assert_int_equal(t.rows[3].input_tokens, 2300);
        assert_int_equal(t.rows[4].input_tokens, 3300);
        assert_int_equal(t.rows[0].id_count, 3);
        assert_int_equal(t.rows[3].id_count, 5);
        a = sim_trace_ids(&t, 0);
        b = sim_trace_ids(&t, 3);
        c = sim_trace_ids(&t, 1);
        d = sim_trace_ids(&t, 2);
        e = sim_trace_ids(&t, 4);
        /* 1300 tokens are two whole blocks, both of the tools, and a tail that nobody shares. */
        assert_true(a[0] == b[0] && a[1] == b[1] && a[2] != b[2]);
        assert_true(b[2] == e[2] && b[3] == e[3] && b[4] != e[4]);
        assert_true(c[0] == a[0] && c[1] == a[1] && c[2] != b[2]);
        assert_true(d[0] != a[0] && d[1] != a[1]);
        sim_trace_fini(&t);
}

/* ---- made up -------------------------------------------------------------------------------------------- */

static bool make(const char *spec, struct sim_trace *ret, char *message)
{
        struct sim_trace_options any = {0};

        message[0] = 0;
        return sim_trace_read(spec, &any, ret, message, 256);
}

static void made_up_sessions_share_their_group_and_their_past(void **state)
{
        uint32_t of_session[3] = {0}, last[3] = {0};
        struct sim_trace t;
        char message[256];

        (void)state;
        assert_true(
                make("synthetic:requests=6,turns=2,groups=1,prefix=640,question=100,output=50,gap=1,rate=1",
                     &t, message));
        assert_int_equal(t.row_count, 6);
        assert_int_equal(t.session_count, 3);
        assert_int_equal(t.block_tokens, 64);
        for (uint32_t row = 0; row < 6; row++) {
                uint32_t session = t.rows[row].session - 1, turn;
                const uint64_t *ids = sim_trace_ids(&t, row);

                assert_in_range(session, 0, 2);
                turn = of_session[session]++;
                /* 640 + 100, then + 50 + 100. */
                assert_int_equal(t.rows[row].input_tokens, turn ? 890 : 740);
                assert_int_equal(t.rows[row].id_count, turn ? 14 : 12);
                assert_int_equal(t.rows[row].output_tokens, 50);
                assert_memory_equal(ids, sim_trace_ids(&t, 0), 10 * sizeof(*ids));
                if (turn) { /* block 10 is whole in both turns, block 11 only now */
                        assert_true(ids[10] == sim_trace_ids(&t, last[session])[10]);
                        assert_true(ids[11] != sim_trace_ids(&t, last[session])[11]);
                } else if (row) {
                        assert_true(ids[10] != sim_trace_ids(&t, 0)[10]);
                }
                last[session] = row;
                assert_true(row == 0 || t.rows[row].time_s >= t.rows[row - 1].time_s);
        }
        sim_trace_fini(&t);
}

static void made_up_traces_repeat_and_keep_their_rate(void **state)
{
        struct sim_trace a, b;
        char message[256];
        uint32_t first_groups = 0;

        (void)state;
        assert_true(make("synthetic:requests=5000,rate=20,groups=10,zipf=1,prefix=128,seed=4", &a, message));
        assert_true(make("synthetic:seed=4,requests=5000,rate=20,groups=10,zipf=1,prefix=128", &b, message));
        assert_int_equal(a.id_count, b.id_count);
        assert_memory_equal(a.ids, b.ids, a.id_count * sizeof(*a.ids));
        assert_memory_equal(a.rows, b.rows, a.row_count * sizeof(*a.rows));
        assert_near(a.rows[4999].time_s, 250, 15);
        /* The first group's share is 1 / (1 + 1/2 + ... + 1/10) = 0.341. Its id is the most frequent one. */
        for (uint32_t row = 0; row < 200; row++) {
                uint32_t same = 0;

                for (uint32_t i = 0; i < 5000; i++)
                        same += sim_trace_ids(&a, i)[0] == sim_trace_ids(&a, row)[0];
                first_groups = same > first_groups ? same : first_groups;
        }
        assert_near(first_groups / 5000.0, 0.341, 0.02);
        sim_trace_fini(&b);
        assert_true(make("synthetic:requests=5000,rate=20,groups=10,zipf=1,prefix=128,seed=5", &b, message));
        assert_true(b.rows[4999].time_s != a.rows[4999].time_s);
        sim_trace_fini(&a);
        sim_trace_fini(&b);
}

static void what_cannot_be_made_up_is_named(void **state)
{
        struct sim_trace t;
        char message[256];

        (void)state;
        assert_false(make("synthetic:rate=0", &t, message));
        assert_string_equal(message, "synthetic:rate=0: rate=0: not a number from 1e-06 to 1e+09");
        assert_false(make("synthetic:turns=1.5", &t, message));
        assert_string_equal(message, "synthetic:turns=1.5: turns=1.5: not a whole number from 1 to 100000");
        assert_false(make("synthetic:speed=1", &t, message));
        assert_non_null(strstr(message, "speed=1: not one of requests, rate, groups, "));
        assert_false(make("synthetic:turns", &t, message));
        assert_false(sim_trace_read("synthetic:requests=3000,turns=3000,output=1e8",
                                    &(struct sim_trace_options){.block_tokens = 1 << 20}, &t, message,
                                    sizeof(message)));
        assert_non_null(strstr(message, "a prompt grows beyond what a trace may have"));
}

static void long_lines_and_many_rows_pass_the_buffer(void **state)
{
        size_t cap = 3 << 20, len = 0;
        char *text = malloc(cap), message[256] = "";
        struct sim_trace t;

        (void)state;
        assert_non_null(text);
        /* Two lines longer than the reader's buffer, then many short ones. */
        for (int line = 0; line < 2; line++) {
                len += (size_t)snprintf(
                        text + len, cap - len,
                        "{\"timestamp\":%d,\"input_length\":%d,\"output_length\":1,\"hash_ids\":[", line,
                        16 * 90000);
                for (int i = 0; i < 90000; i++)
                        len += (size_t)snprintf(text + len, cap - len, "%s%d", i ? "," : "", i);
                len += (size_t)snprintf(text + len, cap - len, "]}\n");
        }
        for (int i = 0; i < 20000; i++)
                len += (size_t)snprintf(
                        text + len, cap - len,
                        "{\"timestamp\":%d,\"input_length\":1,\"output_length\":1,\"hash_ids\":[%d]}\n",
                        i + 2, i);
        assert_true(len < cap - 1);
        for (int gz = 0; gz < 2; gz++) {
                assert_true(read_text(text, gz, (struct sim_trace_options){0}, &t, message));
                assert_int_equal(t.row_count, 20002);
                assert_int_equal(t.block_tokens, 16);
                assert_int_equal(t.rows[1].id_count, 90000);
                assert_int_equal(sim_trace_ids(&t, 1)[89999], 89999);
                assert_int_equal(sim_trace_ids(&t, 20001)[0], 19999);
                sim_trace_fini(&t);
        }
        /* The number of a line far behind the buffer's size is right. */
        memcpy(text + len - 4, "x]}\n", 4);
        assert_false(read_text(text, false, (struct sim_trace_options){0}, &t, message));
        assert_non_null(strstr(message, ":20002: not JSON (at byte "));
        free(text);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(rows_are_sorted_by_time_and_keep_their_ids),
                cmocka_unit_test(a_stretch_is_cut_out_and_rebased),
                cmocka_unit_test(the_block_size_is_found_out),
                cmocka_unit_test(bad_lines_are_named),
                cmocka_unit_test(what_cannot_be_read_is_named),
                cmocka_unit_test(usual_and_unusual_spellings_mean_the_same),
                cmocka_unit_test(ids_may_have_64_bits_and_a_sign),
                cmocka_unit_test(sessions_are_numbered),
                cmocka_unit_test(bailian_counts_seconds_and_chains_its_turns),
                cmocka_unit_test(an_uncommon_block_size_is_found_too),
                cmocka_unit_test(lengths_share_nothing),
                cmocka_unit_test(bad_tables_are_named),
                cmocka_unit_test(sessions_grow_evenly_and_share_their_tools),
                cmocka_unit_test(made_up_sessions_share_their_group_and_their_past),
                cmocka_unit_test(made_up_traces_repeat_and_keep_their_rate),
                cmocka_unit_test(what_cannot_be_made_up_is_named),
                cmocka_unit_test(long_lines_and_many_rows_pass_the_buffer),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
