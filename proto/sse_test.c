/* SPDX-License-Identifier: Apache-2.0 */
#include "sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Kinds of all events as letters: c d e(arly) u D(one) E(rror); an upper T follows the first token. */
struct seen {
        char kinds[256];
        size_t count;
        char names[1024];
};

static void note(struct seen *seen, const struct sse_event *ev)
{
        static const char letters[] = "cdeuDE";

        assert_true(seen->count + 2 < sizeof seen->kinds);
        seen->kinds[seen->count++] = letters[ev->kind];
        if (ev->first_token)
                seen->kinds[seen->count++] = 'T';
        seen->kinds[seen->count] = 0;
        size_t used = strlen(seen->names);
        snprintf(seen->names + used, sizeof seen->names - used, ";%.*s", (int)ev->name.len, ev->name.data);
}

/* Feeds text in pieces of `step` bytes, each in its own exactly sized allocation. */
static void scan(const char *text, size_t len, size_t step, struct seen *seen, size_t *ends, size_t *ret_ends)
{
        struct sse_scanner s;
        size_t n = 0;

        memset(&s, 0xff, sizeof s);
        sse_init(&s);
        *seen = (struct seen){0};
        for (size_t at = 0; at < len; at += step) {
                size_t piece = len - at < step ? len - at : step, pos = 0;
                char *copy = malloc(piece);
                struct sse_event ev;

                assert_non_null(copy);
                memcpy(copy, text + at, piece);
                while (sse_next(&s, copy, piece, &pos, &ev)) {
                        assert_true(ev.end == pos && ev.end <= piece && ev.start <= ev.end);
                        if (ev.carried)
                                assert_int_equal(ev.start, 0);
                        if (ends)
                                ends[n] = at + ev.end;
                        n++;
                        note(seen, &ev);
                }
                assert_int_equal(pos, piece);
                free(copy);
        }
        if (ret_ends)
                *ret_ends = n;
        assert_int_equal(s.events, n);
}

/* The kinds must not depend on how the bytes are split. */
static void expect_names(const char *text, const char *kinds, const char *names)
{
        size_t len = strlen(text);

        for (size_t step = 1; step <= len; step = step < 40 ? step + 1 : step * 2) {
                struct seen seen;

                scan(text, len, step, &seen, NULL, NULL);
                assert_string_equal(seen.kinds, kinds);
                if (names)
                        assert_string_equal(seen.names, names);
        }
        struct seen seen;
        scan(text, len, len, &seen, NULL, NULL);
        assert_string_equal(seen.kinds, kinds);
}

static void expect(const char *text, const char *kinds)
{
        expect_names(text, kinds, NULL);
}

#define CHUNK                                                                                      \
        "{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{" \
        "\"content\":\"x\"}}]}"
#define USAGE "{\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":1272,\"completion_tokens\":8}}"

static void test_kinds(void **state)
{
        (void)state;
        expect("data: " CHUNK "\n\ndata: " CHUNK "\n\ndata: " USAGE "\n\ndata: [DONE]\n\n", "dTduD");
        expect(": ping\n\n:\n\ndata: " CHUNK "\n\n", "ccdT");
        expect("id: 7\nretry: 100\n\n", "c");
        expect("\n\n\n", "ccc");
        expect("data: [DONE]", "");
        expect("data:[DONE]\n\n", "D");
        expect("data: \n\n", "dT");
}

static void test_line_ends(void **state)
{
        (void)state;
        expect("data: a\r\n\r\ndata: b\r\n\r\n", "dTd");
        expect("data: a\r\n\ndata: b\n\r\n", "dTd");
        expect("data: a\r\r\n\r\n", "dT");
        expect("data: a\n\r\r\n\n", "dT"); /* a line of one CR more than its end is no blank line */
        expect("data: a\rdata: b\r\r", "");
}

static void test_errors(void **state)
{
        (void)state;
        expect("data: {\"error\": {\"message\": \"x\", \"code\": 500}}\n\ndata: [DONE]\n\n", "ED");
        expect("data: { \"error\" : \"x\"}\n\n", "E");
        expect("data: {\"object\":\"error\",\"message\":\"m\"}\n\n", "E");
        expect("event: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n", "E");
        expect("data: {\"type\":\"error\",\"error\":{}}\n\n", "E");
        expect("error: {\"code\":500}\n\n", "E");
        expect("event: response.failed\ndata: {}\n\n", "E");
        expect("data: {\"type\":\"response.failed\",\"response\":{}}\n\n", "E");
        expect("event: error\n\n", "E");
        /* not errors */
        expect("data: {\"error\":null,\"text\":\"\"}\n\n", "dT");
        expect("data: {\"id\":1,\"error\":null}\n\n", "dT");
        expect("data: {\"text\":\"{\\\"error\\\":1}\"}\n\n", "dT");
}

static void test_responses_stream(void **state)
{
        (void)state;
        expect_names("event: response.created\ndata: {\"response\":{\"usage\":null,\"error\":null}}\n\n"
                     "event: response.in_progress\ndata: {}\n\n"
                     "event: response.output_item.added\ndata: {}\n\n"
                     "event: response.content_part.added\ndata: {}\n\n"
                     "event: response.output_text.delta\ndata: {}\n\n"
                     "event: response.output_text.delta\ndata: {}\n\n"
                     "event: response.completed\ndata: {\"choices\":[],\"usage\":{}}\n\n",
                     "eedddTdd",
                     ";response.created;response.in_progress;response.output_item.added;response.content_"
                     "part.added;"
                     "response.output_text.delta;response.output_text.delta;response.completed");
        /* without names */
        expect("data: {\"type\":\"response.created\",\"response\":{}}\n\n"
               "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n",
               "edT");
        /* reasoning and tool arguments are tokens too */
        expect("event: response.queued\ndata: {}\n\nevent: response.function_call_arguments.delta\ndata: "
               "{}\n\n",
               "edT");
}

static void test_anthropic_stream(void **state)
{
        (void)state;
        expect("event: ping\ndata: {\"type\": \"ping\"}\n\nevent: message_start\ndata: "
               "{\"type\":\"message_start\"}\n\n"
               "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
               "edTd");
}

static void test_prompt_progress(void **state)
{
        (void)state;
        expect("data: {\"choices\":[{\"delta\":{}}],\"prompt_progress\":{\"total\":9}}\n\ndata: " CHUNK
               "\n\n",
               "edT");
        expect("data: {\"text\":\"\\\"prompt_progress\\\":\"}\n\n", "dT");
}

static void test_usage_chunk(void **state)
{
        (void)state;
        expect("data: {\"choices\": [ ], \"usage\": {\"a\":1}}\n\n", "u");
        /* empty choices alone (content filter results), usage beside a choice, usage null */
        expect("data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n", "dT");
        expect("data: {\"choices\":[{\"index\":0}],\"usage\":{\"a\":1}}\n\n", "dT");
        expect("data: {\"choices\":[],\"usage\":null}\n\n", "dT");
        /* text that quotes one */
        expect("data: {\"choices\":[{\"text\":\"\\\"choices\\\":[],\\\"usage\\\":{\"}]}\n\n", "dT");
}

static void test_event_order_of_lines(void **state)
{
        (void)state;
        expect_names("data: {}\nevent: response.created\n\n", "e", ";response.created");
        expect("data: line one\ndata: line two\n\n", "dT");
        char text[4000];
        memset(text, 'n', sizeof text);
        memcpy(text, "event: ", 7);
        memcpy(text + 3000, "\ndata: x\n\n", 11);
        expect(text, "dT"); /* a long name is cut, not overrun */
}

static void test_offsets(void **state)
{
        (void)state;
        const char *text = "data: a\n\n: c\n\ndata: b\r\n\r\nx";
        size_t ends[8], n;
        struct seen seen;

        for (size_t step = 1; step <= strlen(text); step++) {
                scan(text, strlen(text), step, &seen, ends, &n);
                assert_int_equal(n, 3);
                assert_int_equal(ends[0], 9);
                assert_int_equal(ends[1], 14);
                assert_int_equal(ends[2], 25);
        }
}

static void test_boundary(void **state)
{
        (void)state;
        struct sse_scanner s;
        struct sse_event ev;
        size_t pos = 0;

        sse_init(&s);
        assert_true(sse_at_boundary(&s));
        assert_false(sse_next(&s, "data: x\n", 8, &pos, &ev));
        assert_false(sse_at_boundary(&s));
        pos = 0;
        assert_true(sse_next(&s, "\n", 1, &pos, &ev));
        assert_true(ev.carried);
        assert_int_equal(ev.end, 1);
        assert_int_equal(ev.data.len, 1);
        assert_memory_equal(ev.data.data, "x", 1);
        assert_true(sse_at_boundary(&s));
        assert_true(s.first_token_seen);
}

/* An event beyond what is kept is judged by its beginning, split or not. */
static void test_long_event(void **state)
{
        (void)state;
        size_t len = 3 * SSE_KEEP_BYTES;
        char *text = malloc(len);

        assert_non_null(text);
        memset(text, 'a', len);
        memcpy(text, "event: response.created\ndata: ", 30);
        memcpy(text + len - 2, "\n\n", 2);
        for (size_t step = 1; step <= len; step *= 2) {
                struct seen seen;

                scan(text, len, step, &seen, NULL, NULL);
                assert_string_equal(seen.kinds, "e");
        }
        /* a usage chunk beyond the limit is not one: it could not be hidden any more */
        memcpy(text, "data: " USAGE, strlen("data: " USAGE));
        for (size_t step = 1; step <= 2 * len; step *= 2) {
                struct seen seen;

                scan(text, len, step, &seen, NULL, NULL);
                assert_string_equal(seen.kinds, "dT");
        }
        free(text);
}

struct sink {
        char data[64 * 1024];
        size_t len;
        struct seen seen;
};

static void sink_out(void *ctx, const char *data, size_t len)
{
        struct sink *sink = ctx;

        assert_true(len > 0 && sink->len + len <= sizeof sink->data);
        memcpy(sink->data + sink->len, data, len);
        sink->len += len;
}

static bool sink_event(void *ctx, const struct sse_event *event)
{
        struct sink *sink = ctx;

        note(&sink->seen, event);
        return event->kind != SSE_USAGE;
}

static void filter(const char *text, size_t len, size_t step, struct sink *sink)
{
        struct sse_scanner s;

        sse_init(&s);
        sink->len = 0;
        sink->seen = (struct seen){0};
        for (size_t at = 0; at < len; at += step) {
                size_t piece = len - at < step ? len - at : step;
                char *copy = malloc(piece);

                assert_non_null(copy);
                memcpy(copy, text + at, piece);
                sse_filter(&s, copy, piece, sink_event, sink_out, sink);
                free(copy);
        }
        sse_filter_end(&s, sink_out, sink);
}

static void test_filter_hides(void **state)
{
        (void)state;
        const char *text = "data: " USAGE "\n\ndata: " CHUNK "\n\n: c\n\ndata: " USAGE "\r\n\r\ndata: " USAGE
                           "\n\ndata: [DONE]\n\n";
        const char *rest = "data: " CHUNK "\n\n: c\n\ndata: [DONE]\n\n";
        struct sink *sink = malloc(sizeof *sink);

        assert_non_null(sink);
        for (size_t step = 1; step <= strlen(text); step++) {
                filter(text, strlen(text), step, sink);
                assert_string_equal(sink->seen.kinds, "udTcuuD");
                assert_int_equal(sink->len, strlen(rest));
                assert_memory_equal(sink->data, rest, sink->len);
        }
        free(sink);
}

static void test_filter_lets_all_through(void **state)
{
        (void)state;
        struct sink *sink = malloc(sizeof *sink);
        size_t len = 30000;
        char *text = malloc(len);

        assert_non_null(sink);
        assert_non_null(text);
        /* a cut stream, with long and short events; what is held back comes out at the end */
        memset(text, 'z', len);
        for (size_t i = 100; i < len; i += 37 * (1 + i % 400))
                memcpy(text + i, "\n\n", 2);
        for (size_t step = 1; step <= len; step = step * 3 + 1) {
                filter(text, len, step, sink);
                assert_int_equal(sink->len, len);
                assert_memory_equal(sink->data, text, len);
        }
        filter("data: x", 7, 3, sink);
        assert_int_equal(sink->len, 7);
        free(text);
        free(sink);
}

/* A whole event must leave with the read that completes it, not one read later. */
static void test_filter_does_not_delay(void **state)
{
        (void)state;
        struct sse_scanner s;
        struct sink *sink = calloc(1, sizeof *sink);

        assert_non_null(sink);
        sse_init(&s);
        sse_filter(&s, "data: x\n", 8, sink_event, sink_out, sink);
        assert_int_equal(sink->len, 0);
        sse_filter(&s, "\ndata", 5, sink_event, sink_out, sink);
        assert_int_equal(sink->len, 9);
        sse_filter(&s, ": y\n\n", 5, sink_event, sink_out, sink);
        assert_int_equal(sink->len, 18);
        assert_memory_equal(sink->data, "data: x\n\ndata: y\n\n", 18);
        free(sink);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_kinds),
                cmocka_unit_test(test_line_ends),
                cmocka_unit_test(test_errors),
                cmocka_unit_test(test_responses_stream),
                cmocka_unit_test(test_anthropic_stream),
                cmocka_unit_test(test_prompt_progress),
                cmocka_unit_test(test_usage_chunk),
                cmocka_unit_test(test_event_order_of_lines),
                cmocka_unit_test(test_offsets),
                cmocka_unit_test(test_boundary),
                cmocka_unit_test(test_long_event),
                cmocka_unit_test(test_filter_hides),
                cmocka_unit_test(test_filter_lets_all_through),
                cmocka_unit_test(test_filter_does_not_delay),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
