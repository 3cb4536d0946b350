/* SPDX-License-Identifier: Apache-2.0 */
/* Traces that are JSON sessions, and those made from an access log. */
#include "trace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* cmocka compares floats only. */
#define assert_near(a, b, within) assert_true(fabs((a) - (b)) <= (within))

static char path[64];

static void write_text(const char *name, const char *text)
{
        FILE *file = fopen(name, "w");

        assert_non_null(file);
        assert_int_equal(fputs(text, file) < 0, 0);
        assert_int_equal(fclose(file), 0);
}

static bool read_text(const char *text, struct sim_trace_options options, struct sim_trace *ret,
                      char *message)
{
        int fd;
        bool good;

        snprintf(path, sizeof(path), "/tmp/kvroute-trace-test-XXXXXX");
        fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        write_text(path, text);
        good = sim_trace_read(path, &options, ret, message, 256);
        unlink(path);
        return good;
}

static struct sim_trace read_good(const char *text, struct sim_trace_options options)
{
        struct sim_trace trace;
        char message[256] = "";

        if (!read_text(text, options, &trace, message))
                fail_msg("%s", message);
        return trace;
}

static void expect_error(const char *text, struct sim_trace_options options, const char *what)
{
        struct sim_trace trace;
        char message[256] = "";

        assert_false(read_text(text, options, &trace, message));
        assert_string_equal(message + strlen(path), what);
}

/* The JSON library has words of its own for what it finds. */
static void expect_error_like(const char *text, struct sim_trace_options options, const char *what)
{
        struct sim_trace trace;
        char message[256] = "";

        assert_false(read_text(text, options, &trace, message));
        assert_memory_equal(message + strlen(path), what, strlen(what));
}

static uint64_t id_of(const struct sim_trace *trace, uint32_t row, uint32_t block)
{
        assert_true(row < trace->row_count && block < trace->rows[row].id_count);
        return sim_trace_ids(trace, row)[block];
}

static uint32_t common(const struct sim_trace *trace, uint32_t a, uint32_t b)
{
        uint32_t n = 0;

        while (n < trace->rows[a].id_count && n < trace->rows[b].id_count &&
               id_of(trace, a, n) == id_of(trace, b, n))
                n++;
        return n;
}

/* ---- sessions ----------------------------------------------------------------------------------------- */

static const char one_session[] =
        "{\"id\":\"a\",\"models\":[\"m\"],\"block_size\":64,\"tool_tokens\":100,\"system_tokens\":20,\n"
        " \"requests\":[\n"
        "  {\"t\":0,\"type\":\"s\",\"in\":200,\"out\":10,\"hash_ids\":[1,2,3],\"stop\":\"\"},\n"
        "  {\"t\":7.5,\"type\":\"n\",\"in\":320,\"out\":20,\"hash_ids\":[1,2,3,4,5]},\n"
        "  {\"t\":9,\"type\":\"n\",\"in\":0,\"out\":0,\"hash_ids\":[]},\n"
        "  {\"t\":20,\"type\":\"n\",\"in\":320,\"hash_ids\":[1,2,8,4,5]}]}\n";

static void a_session_is_read(void **state)
{
        struct sim_trace t = read_good(one_session, (struct sim_trace_options){0});

        (void)state;
        assert_int_equal(t.row_count, 3); /* an empty prompt is none */
        assert_int_equal(t.block_tokens, 64);
        assert_int_equal(t.session_count, 1);
        assert_near(t.rows[1].time_s - t.rows[0].time_s, 7.5, 1e-9);
        assert_int_equal(t.rows[0].input_tokens, 200);
        assert_int_equal(t.rows[0].output_tokens, 10);
        assert_int_equal(t.rows[2].output_tokens, 0);
        assert_int_equal(t.rows[0].id_count, 4); /* the tail has no id: it is nobody else's */
        assert_int_equal(common(&t, 0, 1), 3);
        /* An id stands for its block; ours stand for everything before, too. */
        assert_int_equal(common(&t, 1, 2), 2);
        assert_true(id_of(&t, 1, 3) != id_of(&t, 2, 3));
        assert_int_equal(t.rows[2].session, 1);
        assert_int_equal(t.rows[2].parent, 0);
        assert_true(t.rows[1].pause_s == 0);
        sim_trace_fini(&t);
}

static void small_blocks_make_large_ones(void **state)
{
        struct sim_trace t = read_good(one_session, (struct sim_trace_options){.block_tokens = 128});

        (void)state;
        assert_int_equal(t.block_tokens, 128);
        assert_int_equal(t.rows[0].id_count, 2); /* 200 tokens, three blocks of 64: one of 128 is whole */
        assert_int_equal(t.rows[1].id_count, 3); /* 320 are two and a half, known to the end */
        assert_int_equal(common(&t, 0, 1), 1);
        assert_int_equal(common(&t, 1, 2), 1);
        sim_trace_fini(&t);
        expect_error(one_session, (struct sim_trace_options){.block_tokens = 100},
                     ":1: blocks of 100 tokens cannot be made of blocks of 64");
}

static void sessions_follow_one_another_and_share_nothing(void **state)
{
        static const char text[] =
                "{\"requests\":[{\"t\":0,\"in\":128,\"out\":1,\"hash_ids\":[1,2]}]}"
                "{\"requests\":[{\"t\":0,\"in\":128,\"out\":1,\"hash_ids\":[1,2]}]}\n"
                "[{\"hash_id_scope\":\"global\",\"requests\":[{\"t\":0,\"in\":128,\"out\":1,"
                "\"hash_ids\":[1,2]}]},\n{\"hash_id_scope\":\"global\",\"requests\":[{\"t\":0,"
                "\"in\":192,\"out\":1,\"hash_ids\":[1,2,3]}]}]";
        struct sim_trace t = read_good(text, (struct sim_trace_options){0});
        struct sim_trace slow = read_good(text, (struct sim_trace_options){.session_gap_s = 200});

        (void)state;
        assert_int_equal(t.row_count, 4);
        assert_int_equal(t.session_count, 4);
        assert_true(t.rows[0].time_s == 0);
        for (uint32_t i = 1; i < 4; i++) {
                assert_true(t.rows[i].time_s > t.rows[i - 1].time_s);
                assert_near(slow.rows[i].time_s, 10 * t.rows[i].time_s, 1e-9);
        }
        assert_int_equal(common(&t, 0, 1), 0);
        assert_int_equal(common(&t, 1, 2), 0);
        assert_int_equal(common(&t, 2, 3), 2); /* what is global is so in all sessions */
        sim_trace_fini(&t);
        sim_trace_fini(&slow);
}

static void sub_agents_are_sessions_of_their_own(void **state)
{
        /* The first agent's times count from its own start, as in older captures, the second one's do not. */
        static const char text[] =
                "{\"requests\":[{\"t\":1,\"in\":64,\"out\":1,\"hash_ids\":[1],\"api_time\":2},"
                "{\"t\":10,\"type\":\"subagent\",\"requests\":["
                "{\"t\":0.5,\"in\":64,\"out\":1,\"hash_ids\":[7],\"api_time\":1.5},"
                "{\"t\":3,\"in\":128,\"out\":1,\"hash_ids\":[7,8],\"think_time\":0.25,\"api_time\":1}]},"
                "{\"t\":10,\"type\":\"subagent\",\"requests\":[{\"t\":11,\"in\":64,\"out\":1,\"hash_ids\":[9]"
                ","
                "\"api_time\":4}]},"
                "{\"t\":20,\"in\":128,\"out\":1,\"hash_ids\":[1,2]}]}";
        struct sim_trace t = read_good(text, (struct sim_trace_options){0});
        static const double times[] = {1, 10.5, 11, 13, 20}, pauses[] = {0, 7.5, 8, 0.25, 5};
        static const uint32_t sessions[] = {1, 2, 3, 2, 1}, parents[] = {0, 1, 1, 1, 0};

        (void)state;
        assert_int_equal(t.row_count, 5);
        for (uint32_t i = 0; i < 5; i++) {
                assert_near(t.rows[i].time_s, times[i], 1e-9);
                assert_near((double)t.rows[i].pause_s, pauses[i], 1e-6);
                assert_int_equal(t.rows[i].session, sessions[i]);
                assert_int_equal(t.rows[i].parent, parents[i]);
        }
        assert_int_equal(common(&t, 1, 3), 1); /* ids are the session's, whoever in it uses them */
        sim_trace_fini(&t);
}

static void a_known_pause_of_nothing_is_known(void **state)
{
        struct sim_trace t = read_good("{\"requests\":[{\"t\":0,\"in\":1,\"out\":1,\"api_time\":5},"
                                       "{\"t\":4,\"in\":1,\"out\":1},{\"t\":9,\"in\":1,\"out\":1}]}",
                                       (struct sim_trace_options){0});

        (void)state;
        assert_true(t.rows[1].pause_s > 0 && t.rows[1].pause_s < 1e-6f);
        assert_true(t.rows[2].pause_s == 0); /* of the one before it nothing is known */
        sim_trace_fini(&t);
}

static void a_directory_is_read_in_the_order_of_names(void **state)
{
        char folder[] = "/tmp/kvroute-trace-test-XXXXXX", name[128];
        static const char *const names[] = {"b.json", "a.json", "notes.txt"};
        struct sim_trace_options options = {0};
        struct sim_trace t;
        char message[256] = "", text[128];

        (void)state;
        assert_non_null(mkdtemp(folder));
        assert_false(sim_trace_read(folder, &options, &t, message, sizeof(message)));
        assert_non_null(strstr(message, ": no .json and no .json.gz in the directory"));
        for (uint32_t i = 0; i < 3; i++) {
                snprintf(name, sizeof(name), "%s/%s", folder, names[i]);
                snprintf(text, sizeof(text), "{\"requests\":[{\"t\":0,\"in\":%u,\"out\":1}]}", 100 + i);
                write_text(name, i < 2 ? text : "not JSON at all");
        }
        assert_true(sim_trace_read(folder, &options, &t, message, sizeof(message)));
        assert_int_equal(t.row_count, 2);
        assert_int_equal(t.rows[0].input_tokens, 101);
        assert_int_equal(t.rows[1].input_tokens, 100);
        sim_trace_fini(&t);
        snprintf(name, sizeof(name), "%s/b.json", folder);
        write_text(name, "{\"requests\":[\n{\"t\":0,\n\"in\":}]}");
        assert_false(sim_trace_read(folder, &options, &t, message, sizeof(message)));
        assert_memory_equal(message, name, strlen(name));
        assert_memory_equal(message + strlen(name), ":3: not JSON (", 14);
        write_text(name, "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n");
        assert_false(sim_trace_read(folder, &options, &t, message, sizeof(message)));
        assert_non_null(strstr(message, "b.json:1: not a file of sessions"));
        for (uint32_t i = 0; i < 3; i++) {
                snprintf(name, sizeof(name), "%s/%s", folder, names[i]);
                unlink(name);
        }
        rmdir(folder);
}

static void bad_sessions_are_named(void **state)
{
        struct sim_trace_options any = {0};

        (void)state;
        expect_error("{\"requests\":7}", any, ":1: not a session: there is no array requests");
        expect_error("\n\n{\"requests\":[7]}", any, ":3: requests has an element that is not an object");
        expect_error("{\"requests\":[{\"in\":1}]}", any, ":1: t is not a number of seconds");
        expect_error("{\"requests\":[{\"t\":-1,\"in\":1}]}", any, ":1: t is not a number of seconds");
        expect_error("{\"requests\":[{\"t\":0}]}", any, ":1: in is not a number of tokens");
        expect_error("{\"requests\":[{\"t\":0,\"in\":1,\"out\":\"x\"}]}", any,
                     ":1: out is not a number of tokens");
        expect_error("{\"requests\":[{\"t\":0,\"in\":1,\"hash_ids\":1}]}", any,
                     ":1: hash_ids is not an array");
        expect_error("{\"requests\":[{\"t\":0,\"in\":64,\"hash_ids\":[1,2]}]}", any,
                     ":1: hash_ids has more elements than the prompt has blocks");
        expect_error("{\"requests\":[{\"t\":0,\"in\":64,\"hash_ids\":[1.5]}]}", any,
                     ":1: hash_ids has an element that is not a whole number");
        expect_error("{\"block_size\":0,\"requests\":[]}", any, ":1: block_size is not a number of tokens");
        expect_error("{\"requests\":[{\"t\":1,\"type\":\"subagent\",\"requests\":{}}]}", any,
                     ":1: requests is not an array");
        expect_error("{\"requests\":[]}", any, ": no rows");
        expect_error_like("{\"requests\":[]}\n{\"requests\":[]}\nx", any, ":3: not JSON (");
}

/* ---- access log --------------------------------------------------------------------------------------- */

#define LINE(time, total, key, prompt, best, observed, completion)                                         \
        "{\"time\":\"2026-03-01T10:00:" time "Z\",\"request_id\":\"r\",\"key_id\":" key                    \
        ",\"status\":200,\"end\":\"finished\",\"model\":\"m\",\"workload\":\"default\",\"replica\":\"a\"," \
        "\"prompt_tokens\":" #prompt ",\"completion_tokens\":" #completion ",\"predicted_tokens\":" #best  \
        ",\"best_match_tokens\":" #best ",\"observed_tokens\":" #observed                                  \
        ",\"stream\":true,\"queue_s\":null,"                                                               \
        "\"ttft_s\":0.5,\"total_s\":" #total "}\n"

static const char log_text[] = LINE("02.000", 1.5, "\"k\"", 640, 0, 0, 100)
        /* goes on after the first one and its answer; began before the line above ended */
        LINE("12.000", 1.0, "\"k\"", 900, 704, 736, 10)
        /* of another key: nobody it could share with, whatever it found */
        LINE("13.250", 1.0, "\"o\"", 500, 256, 256, 10)
        /* shares the first 256 tokens, which the shortest that is long enough has */
        LINE("14.000", 1.0, "\"k\"", 600, 256, null, 10) "{\"time\":\"2026-03-01T10:00:15.000Z\",\"request_"
                                                         "id\":\"r\",\"status\":503,\"end\":\"refused\"}\n";

static void requests_of_a_log_share_what_was_known(void **state)
{
        struct sim_trace t = read_good(log_text, (struct sim_trace_options){0});
        static const double times[] = {0, 10.5, 11.75, 12.5};

        (void)state;
        assert_int_equal(t.row_count, 4);
        assert_int_equal(t.block_tokens, 64);
        for (uint32_t i = 0; i < 4; i++)
                assert_near(t.rows[i].time_s, times[i], 1e-6);
        assert_int_equal(t.rows[0].id_count, 10);
        assert_int_equal(common(&t, 0, 1), 10); /* 736 tokens, of which 640 are a prompt we know */
        assert_int_equal(common(&t, 0, 2), 0);
        assert_int_equal(common(&t, 0, 3), 4);
        assert_int_equal(t.rows[1].output_tokens, 10);
        sim_trace_fini(&t);
        t = read_good(log_text, (struct sim_trace_options){.from_s = 11, .to_s = 12, .block_tokens = 16});
        assert_int_equal(t.row_count, 1);
        assert_near(t.rows[0].time_s, 0.75, 1e-6);
        assert_int_equal(t.rows[0].input_tokens, 500);
        assert_int_equal(t.block_tokens, 16);
        sim_trace_fini(&t);
}

static void bad_logs_are_named(void **state)
{
        struct sim_trace_options any = {0};

        (void)state;
        expect_error(LINE("02.000", 1.5, "null", 640, 0, 0, 100) "{}\n", any,
                     ":2: not a line of an access log");
        expect_error(LINE("02.000", 1.5, "null", 9000000000, 0, 0, 100), any,
                     ":1: more tokens than a prompt or an answer can have");
        expect_error("{\"time\":\"2026-03-01T10:00:15.000Z\",\"request_id\":\"r\",\"end\":\"refused\"}\n",
                     any, ": no rows");
}

/* ---- captures ----------------------------------------------------------------------------------------- */

/* What kvroute serve --capture writes, and members that nobody knows yet. */
static void what_else_a_capture_has_is_ignored(void **state)
{
        static const char text[] =
                "{\"timestamp\":1234,\"input_length\":130,\"output_length\":8,\"hash_ids\":[3552650304842777,"
                "3801331317110274,9],\"session\":\"9d3f01c2a87e4b65\",\"workload\":\"agents\",\"model\":"
                "\"llama\","
                "\"end\":\"finished\",\"input_exact\":1,\"output_exact\":1,\"cached_tokens\":64,\"ttft_ms\":"
                "41,"
                "\"total_ms\":388,\"unix_ms\":1796102580633,\"dropped\":0}\n"
                "{\"timestamp\":2234,\"input_length\":128,\"output_length\":0,\"hash_ids\":[3552650304842777,"
                "18446744073709551615],\"session\":\"9d3f01c2a87e4b65\",\"more\":{\"a\":[1,null,true]},"
                "\"ttft_ms\":1.5}\n";
        struct sim_trace t = read_good(text, (struct sim_trace_options){0});

        (void)state;
        assert_int_equal(t.row_count, 2);
        assert_int_equal(t.block_tokens, 64);
        assert_int_equal(common(&t, 0, 1), 1);
        assert_true(id_of(&t, 1, 1) == UINT64_MAX);
        assert_int_equal(t.rows[0].session, 1);
        assert_int_equal(t.rows[1].session, 1);
        sim_trace_fini(&t);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_session_is_read),
                cmocka_unit_test(small_blocks_make_large_ones),
                cmocka_unit_test(sessions_follow_one_another_and_share_nothing),
                cmocka_unit_test(sub_agents_are_sessions_of_their_own),
                cmocka_unit_test(a_known_pause_of_nothing_is_known),
                cmocka_unit_test(a_directory_is_read_in_the_order_of_names),
                cmocka_unit_test(bad_sessions_are_named),
                cmocka_unit_test(requests_of_a_log_share_what_was_known),
                cmocka_unit_test(bad_logs_are_named),
                cmocka_unit_test(what_else_a_capture_has_is_ignored),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
