/* SPDX-License-Identifier: Apache-2.0 */
/* From requests to lines in a file: what is kept, what is dropped, and that the last line tells how much. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "capture.h"

static char dir[64], path[96];

static int up(void **state)
{
        (void)state;
        snprintf(dir, sizeof dir, "/tmp/capture_test.XXXXXX");
        if (!mkdtemp(dir))
                return -1;
        snprintf(path, sizeof path, "%s/file", dir);
        return 0;
}

static int down(void **state)
{
        (void)state;
        (void)unlink(path);
        return rmdir(dir);
}

static struct capture *open_capture(void)
{
        struct capture_options options = {
                .path = path,
                .file_bytes = 1 << 30,
                .files = 2,
                .block_tokens = 64,
                .key = {1, 2},
                .start_ns = log_now_ns(NULL),
        };
        char why[128];
        struct capture *capture = capture_new(&options, why, sizeof why);

        assert_non_null(capture);
        return capture;
}

static const char *file_text(void)
{
        static char text[65536];
        FILE *file = fopen(path, "r");
        size_t len;

        assert_non_null(file);
        len = fread(text, 1, sizeof text - 1, file);
        text[len] = '\0';
        fclose(file);
        return text;
}

static unsigned line_count(const char *text)
{
        unsigned count = 0;

        for (; *text; text++)
                count += *text == '\n';
        return count;
}

static struct capture_facts facts_of(uint32_t tokens)
{
        return (struct capture_facts){.input_tokens = tokens,
                                      .input_exact = true,
                                      .output_tokens = 5,
                                      .cached_tokens = 64,
                                      .ttft_ms = 3,
                                      .total_ms = 9,
                                      .end = "finished",
                                      .model = "m",
                                      .workload = "agents"};
}

static void test_a_line_for_a_request(void **state)
{
        const struct kvr_point points[] = {{5, 256}, {6, 800}};
        const struct kvr_prompt prompt = {.points = points, .point_count = 2, .units = 800},
                                bare = {.units = 800};
        struct capture *capture = open_capture();
        struct capture_facts facts = facts_of(200);
        struct capture_counts counts;
        const char *text;

        (void)state;
        assert_null(capture_begin(capture, &bare, KVR_SLICE(""), log_now_ns(NULL)));
        capture_end(capture, capture_begin(capture, &prompt, KVR_SLICE("alice"), log_now_ns(NULL)), &facts);
        capture_forget(capture, capture_begin(capture, &prompt, KVR_SLICE(""), log_now_ns(NULL)));
        capture_forget(capture, NULL);
        capture_counts(capture, &counts);
        assert_int_equal(counts.dropped, 0);
        capture_free(capture);
        text = file_text();
        assert_int_equal(line_count(text), 1);
        assert_non_null(strstr(text, "\"input_length\":200,\"output_length\":5,\"hash_ids\":["));
        assert_non_null(strstr(text, "\"workload\":\"agents\",\"model\":\"m\",\"end\":\"finished\""));
        assert_non_null(
                strstr(text, "\"input_exact\":1,\"output_exact\":0,\"cached_tokens\":64,\"ttft_ms\":3"));
        assert_non_null(strstr(text, "\"session\":\""));
        assert_null(strstr(text, "alice"));
        assert_non_null(strstr(text, "\"dropped\":0}\n"));
}

/* Requests under way fill the memory: others are dropped, and the file's last line says so. */
static void test_memory_is_bounded(void **state)
{
        static struct kvr_point points[KVR_POINTS_MAX];
        struct kvr_prompt prompt = {.points = points, .point_count = KVR_POINTS_MAX};
        size_t most = CAPTURE_MEMORY_MAX / (KVR_POINTS_MAX * sizeof *points), count = 0;
        struct capture *capture = open_capture();
        struct capture_entry **entries = calloc(most + 1, sizeof(struct capture_entry *));
        struct capture_facts facts = facts_of(200);
        struct capture_counts counts;
        const char *last;

        (void)state;
        assert_non_null(entries);
        for (uint32_t i = 0; i < KVR_POINTS_MAX; i++)
                points[i] = (struct kvr_point){i + 1, 32 * (i + 1)};
        while (count <= most && (entries[count] = capture_begin(capture, &prompt, KVR_SLICE(""), 0)))
                count++;
        assert_true(count > most / 2 && count < most);
        for (int i = 0; i < 9; i++)
                assert_null(capture_begin(capture, &prompt, KVR_SLICE(""), 0));
        capture_counts(capture, &counts);
        assert_int_equal(counts.dropped, 10);
        while (count > 1)
                capture_forget(capture, entries[--count]);
        capture_end(capture, entries[0], &facts);
        capture_free(capture);
        last = file_text();
        assert_int_equal(line_count(last), 1);
        assert_non_null(strstr(last, "\"dropped\":10}\n"));
        free(entries);
}

static void test_seeds_make_secrets(void **state)
{
        struct siphash_key a = capture_key(true, 7, NULL, NULL), b = capture_key(true, 7, NULL, NULL),
                           c = capture_key(true, 8, NULL, NULL);

        (void)state;
        assert_true(a.low == b.low && a.high == b.high);
        assert_true(a.low != c.low && a.high != c.high && a.low != a.high);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_a_line_for_a_request, up, down),
                cmocka_unit_test_setup_teardown(test_memory_is_bounded, up, down),
                cmocka_unit_test(test_seeds_make_secrets),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
