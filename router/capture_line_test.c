/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a capture: what prompts share, and what they do not tell. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <yyjson.h>

#include "capture_line.h"

#define BLOCK   16
#define IDS_MAX 4096

static const struct siphash_key key = {1, 2};
static struct capture_lines *lines;

struct parsed {
        uint64_t ids[IDS_MAX];
        size_t count;
        uint64_t input, output, timestamp, dropped;
};

static int up(void **state)
{
        (void)state;
        lines = capture_lines_new(&key, BLOCK);
        return lines ? 0 : -1;
}

static int down(void **state)
{
        (void)state;
        capture_lines_free(lines);
        return 0;
}

static struct capture_facts facts_of(uint32_t tokens)
{
        return (struct capture_facts){
                .arrived_ms = 1234,
                .unix_ms = 1800000000123,
                .input_tokens = tokens,
                .output_tokens = 7,
                .cached_tokens = -1,
                .ttft_ms = -1,
                .total_ms = 15,
                .end = "finished",
                .model = "a \"model\"",
                .workload = "w",
        };
}

static uint64_t number(yyjson_val *root, const char *name)
{
        yyjson_val *value = yyjson_obj_get(root, name);

        assert_true(yyjson_is_uint(value));
        return yyjson_get_uint(value);
}

static struct parsed *line_of(const struct kvr_point *points, uint32_t count, uint32_t tokens)
{
        static struct parsed parsed;
        struct capture_facts facts = facts_of(tokens);
        struct text text = {0};
        yyjson_doc *doc;
        yyjson_val *root, *ids, *id;
        size_t at, max;

        assert_true(capture_line_add(lines, points, count, &facts, 42, &text));
        assert_int_equal(text.data[text.len - 1], '\n');
        doc = yyjson_read(text.data, text.len, 0);
        assert_non_null(doc);
        root = yyjson_doc_get_root(doc);
        parsed = (struct parsed){
                .input = number(root, "input_length"),
                .output = number(root, "output_length"),
                .timestamp = number(root, "timestamp"),
                .dropped = number(root, "dropped"),
        };
        assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "model")), "a \"model\"");
        ids = yyjson_obj_get(root, "hash_ids");
        yyjson_arr_foreach(ids, at, max, id)
        {
                assert_true(yyjson_is_uint(id) && yyjson_get_uint(id) >> CAPTURE_ID_BITS == 0);
                parsed.ids[parsed.count++] = yyjson_get_uint(id);
        }
        yyjson_doc_free(doc);
        text_free(&text);
        return &parsed;
}

static size_t shared(const struct parsed *a, const struct parsed *b)
{
        size_t n = 0;

        while (n < a->count && n < b->count && a->ids[n] == b->ids[n])
                n++;
        return n;
}

static void test_as_many_blocks_as_tokens_need(void **state)
{
        static const struct {
                uint32_t tokens, blocks;
        } cases[] = {{1, 1}, {16, 1}, {17, 2}, {160, 10}, {161, 11}};

        (void)state;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                const struct kvr_point points[] = {{.key = 100 + i, .end = 256},
                                                   {.key = 200 + i, .end = 300}};
                const struct parsed *line = line_of(points, 2, cases[i].tokens);

                assert_int_equal(line->count, cases[i].blocks);
                assert_int_equal(line->input, cases[i].tokens);
                assert_int_equal(line->output, 7);
                assert_int_equal(line->timestamp, 1234);
                assert_int_equal(line->dropped, 42);
                for (size_t a = 0; a < line->count; a++)
                        for (size_t b = 0; b < a; b++)
                                assert_true(line->ids[a] != line->ids[b]);
        }
}

/* 640 bytes in common are 160 tokens of the first; the others must agree although they have more tokens a byte. */
static void test_a_shared_beginning_is_shared(void **state)
{
        const struct kvr_point first[] = {{1, 256}, {2, 512}, {3, 640}, {4, 1280}};
        const struct kvr_point second[] = {{1, 256}, {2, 512}, {3, 640}, {5, 1000}};
        const struct kvr_point third[] = {{1, 256}, {2, 512}, {6, 700}};
        struct parsed a = *line_of(first, 4, 320), b = *line_of(second, 4, 340), c = *line_of(third, 3, 200);

        (void)state;
        assert_int_equal(a.count, 20);
        assert_int_equal(shared(&a, &b), 160 / BLOCK);
        assert_int_equal(shared(&a, &c), 128 / BLOCK);
        assert_int_equal(shared(&b, &c), 128 / BLOCK);
        /* The same once more is the same. */
        assert_int_equal(shared(&a, line_of(first, 4, 320)), 20);
}

/* A conversation that goes on: all whole blocks of the earlier turn, not the part of one at its end. */
static void test_a_conversation_goes_on(void **state)
{
        const struct kvr_point turn[] = {{11, 256}, {12, 400}};
        const struct kvr_point next[] = {{11, 256}, {12, 400}, {13, 512}, {14, 800}};
        struct parsed a = *line_of(turn, 2, 100), b = *line_of(next, 4, 200);

        (void)state;
        assert_int_equal(a.count, 7);
        assert_int_equal(shared(&a, &b), 6);
}

/* Estimates may contradict: whatever is remembered, a line has as many ids as its tokens need. */
static void test_contradictions(void **state)
{
        const struct kvr_point first[] = {{21, 1000}, {22, 2000}, {23, 3000}};
        const struct kvr_point second[] = {{21, 1000}, {22, 2000}, {24, 2100}};

        (void)state;
        assert_int_equal(line_of(first, 3, 3000)->count, 188);
        assert_int_equal(line_of(second, 3, 500)->count, 32);
        assert_int_equal(line_of(first, 3, 10)->count, 1);
        assert_int_equal(line_of(first, 3, 3000)->count, 188);
}

static void test_secrets_make_ids(void **state)
{
        const struct siphash_key other = {1, 3};
        const struct kvr_point points[] = {{31, 256}, {32, 512}};
        struct parsed a = *line_of(points, 2, 128);
        struct capture_lines *mine = lines;
        const struct parsed *b;

        (void)state;
        lines = capture_lines_new(&other, BLOCK);
        b = line_of(points, 2, 128);
        assert_int_equal(a.count, b->count);
        for (size_t i = 0; i < a.count; i++)
                assert_true(a.ids[i] != b->ids[i]);
        capture_lines_free(lines);
        lines = mine;
        assert_true(capture_session(&key, KVR_SLICE("alice")) != capture_session(&other, KVR_SLICE("alice")));
        assert_true(capture_session(&key, KVR_SLICE("alice")) == capture_session(&key, KVR_SLICE("alice")));
}

static void test_what_is_too_large_adds_nothing(void **state)
{
        const struct kvr_point point = {41, 300};
        struct capture_facts facts = facts_of(0);
        struct text text = {.limit = 64};

        (void)state;
        assert_false(capture_line_add(lines, &point, 1, &facts, 0, &text));
        facts.input_tokens = CAPTURE_BLOCKS_MAX * BLOCK + 1;
        assert_false(capture_line_add(lines, &point, 1, &facts, 0, &text));
        facts.input_tokens = 1000; /* longer than the text may be */
        assert_false(capture_line_add(lines, &point, 1, &facts, 0, &text));
        assert_int_equal(text.len, 0);
        assert_false(text.failed);
        text_free(&text);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_as_many_blocks_as_tokens_need, up, down),
                cmocka_unit_test_setup_teardown(test_a_shared_beginning_is_shared, up, down),
                cmocka_unit_test_setup_teardown(test_a_conversation_goes_on, up, down),
                cmocka_unit_test_setup_teardown(test_contradictions, up, down),
                cmocka_unit_test_setup_teardown(test_secrets_make_ids, up, down),
                cmocka_unit_test_setup_teardown(test_what_is_too_large_adds_nothing, up, down),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
