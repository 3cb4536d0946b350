/* SPDX-License-Identifier: Apache-2.0 */
#include "http1_plain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const requests[] = {
        ("POST /v1/chat/completions?a=1&b=%20 HTTP/1.1\r\nHost: x:8080\r\nContent-Length: 12 \r\nX-A:  b "
         "c\r\n"
         "Connection: Keep-Alive\r\n\r\n{\"a\":\"bcde\"}"),
        "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST /a? HTTP/1.1\r\nUser-Agent: a/1 (b; c) \"d\"\r\nHost:x\r\nContent-Length: 0\r\n\r\n",
};

static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        "HTTP/1.1 503 Service  Unavailable \r\ncontent-length: 0\r\nRetry-After: 1\r\n\r\n",
};

static bool same(struct kvr_slice a, struct kvr_slice b)
{
        return a.len == b.len && (a.len == 0 || a.data == b.data);
}

/* What llhttp and the checks behind it make of the same bytes must be no less, and the same. */
static void compare(const char *bytes, size_t len, enum http1_kind kind)
{
        struct http1_head plain = {0}, full = {0};
        struct http1_parser parser;
        size_t plain_used = 0, used = 0;

        if (!http1_plain(bytes, len, kind, &plain, &plain_used))
                return;
        http1_init(&parser, kind);
        parser.no_plain = true;
        enum http1_result result = http1_head(&parser, bytes, len, &full, &used);

        if (result != HTTP1_DONE)
                fail_msg("taken as plain: %.*s", (int)len, bytes);
        assert_int_equal(used, plain_used);
        assert_int_equal(full.field_count, plain.field_count);
        for (uint32_t i = 0; i < full.field_count; i++) {
                assert_true(same(full.fields[i].name, plain.fields[i].name));
                assert_true(same(full.fields[i].value, plain.fields[i].value));
        }
        assert_true(same(full.method, plain.method) && same(full.target, plain.target));
        assert_true(same(full.path, plain.path) && same(full.query, plain.query));
        assert_true(same(full.reason, plain.reason));
        assert_int_equal(full.status, plain.status);
        assert_int_equal(full.minor, plain.minor);
        assert_int_equal(full.content_length, plain.content_length);
        assert_int_equal(full.chunked, plain.chunked);
        assert_int_equal(full.keep_alive, plain.keep_alive);
        assert_int_equal(full.expect_continue, plain.expect_continue);
        assert_int_equal(full.upgrade, plain.upgrade);
        assert_int_equal(full.no_body, plain.no_body);
        assert_int_equal(full.has_connection, plain.has_connection);
}

static void usual_heads_are_plain(void **state)
{
        struct http1_head head;
        size_t used;

        (void)state;
        for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
                assert_true(http1_plain(requests[i], strlen(requests[i]), HTTP1_REQUEST, &head, &used));
                compare(requests[i], strlen(requests[i]), HTTP1_REQUEST);
        }
        for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
                assert_true(http1_plain(answers[i], strlen(answers[i]), HTTP1_RESPONSE, &head, &used));
                compare(answers[i], strlen(answers[i]), HTTP1_RESPONSE);
        }
        assert_true(http1_plain(requests[0], strlen(requests[0]), HTTP1_REQUEST, &head, &used));
        assert_int_equal(head.content_length, 12);
        assert_int_equal(used, strlen(requests[0]) - 12);
        assert_true(head.has_connection && head.keep_alive);
        assert_memory_equal(head.path.data, "/v1/chat/completions", head.path.len);
        assert_memory_equal(head.query.data, "a=1&b=%20", head.query.len);
        assert_int_equal(head.fields[2].value.len, 3);
}

/* Everything that frames a message in another way, or that is not complete. */
static void other_heads_are_not(void **state)
{
        static const char *const others[] = {
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na",
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1234567890123456\r\n\r\na",
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, x-a\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
                "GET / HTTP/1.1\r\nA: b\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
                "GET / HTTP/1.0\r\nHost: x\r\n\r\n",
                "GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
                "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
                "\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        };
        static const char *const other_answers[] = {
                "HTTP/1.1 200 OK\r\n\r\n", /* ends with the connection */
                "HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
                "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        };
        struct http1_head head;
        size_t used;

        (void)state;
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
                if (http1_plain(others[i], strlen(others[i]), HTTP1_REQUEST, &head, &used))
                        fail_msg("taken: %s", others[i]);
        for (size_t i = 0; i < sizeof other_answers / sizeof *other_answers; i++)
                if (http1_plain(other_answers[i], strlen(other_answers[i]), HTTP1_RESPONSE, &head, &used))
                        fail_msg("taken: %s", other_answers[i]);
        for (size_t len = 0; len < strlen(requests[1]); len++)
                assert_false(http1_plain(requests[1], len, HTTP1_REQUEST, &head, &used));
}

/* Every byte of every head above, replaced by every byte there is; and left out. */
static void change_bytes(const char *text, enum http1_kind kind)
{
        size_t len = strlen(text);
        char bytes[512];

        assert_true(len < sizeof bytes);
        for (size_t at = 0; at < len; at++) {
                memcpy(bytes, text, len);
                for (unsigned byte = 0; byte < 256; byte++) {
                        bytes[at] = (char)byte;
                        compare(bytes, len, kind);
                }
                memmove(bytes + at, text + at + 1, len - at - 1);
                compare(bytes, len - 1, kind);
        }
}

static void changed_heads_mean_the_same(void **state)
{
        (void)state;
        for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
                change_bytes(requests[i], HTTP1_REQUEST);
        for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
                change_bytes(answers[i], HTTP1_RESPONSE);
}

static void count(void *ctx, const char *data, size_t len)
{
        (void)data;
        *(size_t *)ctx += len;
}

static void bodies_have_their_length(void **state)
{
        static const char bytes[] = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhelloGET /";
        struct http1_parser parser, moved;
        struct http1_head head;
        size_t used = 0, at, got = 0;

        (void)state;
        http1_init(&parser, HTTP1_REQUEST);
        assert_int_equal(http1_head(&parser, bytes, sizeof bytes - 1, &head, &at), HTTP1_DONE);
        assert_true(parser.plain);
        http1_move(&moved, &parser);
        assert_int_equal(http1_body(&moved, bytes + at, 0, count, &got, &used), HTTP1_MORE);
        assert_int_equal(http1_body(&moved, bytes + at, 2, count, &got, &used), HTTP1_MORE);
        assert_int_equal(used, 2);
        assert_false(http1_eof(&moved));
        assert_int_equal(http1_body(&moved, bytes + at + 2, sizeof bytes - 1 - at - 2, count, &got, &used),
                         HTTP1_DONE);
        assert_int_equal(used, 3);
        assert_int_equal(got, 5);
        assert_true(http1_eof(&moved));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(usual_heads_are_plain),
                cmocka_unit_test(other_heads_are_not),
                cmocka_unit_test(changed_heads_mean_the_same),
                cmocka_unit_test(bodies_have_their_length),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
