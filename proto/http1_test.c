/* SPDX-License-Identifier: Apache-2.0 */
#include "http1.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct text {
        char data[4096];
        size_t len;
        unsigned pieces;
};

static void collect(void *ctx, const char *data, size_t len)
{
        struct text *text = ctx;

        assert_true(text->len + len <= sizeof text->data);
        memcpy(text->data + text->len, data, len);
        text->len += len;
        text->pieces++;
}

/* Parses one message from all prefixes of `bytes`, as if they came one byte at a time, then in one piece. */
static enum http1_result parse(enum http1_kind kind, const char *bytes, struct http1_head *head,
                               struct text *body, size_t *used)
{
        struct http1_parser parser;
        size_t len = strlen(bytes), head_used = 0, body_used = 0;
        enum http1_result result;

        *body = (struct text){0};
        http1_init(&parser, kind);
        result = http1_head(&parser, bytes, len, head, &head_used);
        if (result != HTTP1_DONE)
                return result;
        result = http1_body(&parser, bytes + head_used, len - head_used, collect, body, &body_used);
        *used = head_used + body_used;
        return result;
}

static void request_with_length(void **state)
{
        struct http1_head head;
        struct text body;
        size_t used;

        (void)state;
        assert_int_equal(parse(HTTP1_REQUEST,
                               "POST /v1/chat/completions?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5 "
                               "\r\nX-A:  b\t\r\n\r\nhelloGET /",
                               &head, &body, &used),
                         HTTP1_DONE);
        assert_memory_equal(head.method.data, "POST", head.method.len);
        assert_int_equal(head.path.len, strlen("/v1/chat/completions"));
        assert_int_equal(head.query.len, 3);
        assert_int_equal(head.content_length, 5);
        assert_true(head.keep_alive);
        assert_int_equal(body.len, 5);
        assert_memory_equal(body.data, "hello", 5);
        assert_int_equal(http1_find(&head, "x-a")->value.len, 1);
        assert_int_equal(used, strlen("POST /v1/chat/completions?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: "
                                      "5 \r\nX-A:  b\t\r\n\r\nhello"));
}

static void byte_by_byte(void **state)
{
        static const char bytes[] = "\r\nPOST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                                    "3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nTrailer: t\r\n\r\nrest";
        struct http1_parser parser;
        struct http1_head head;
        struct text body = {0};
        size_t at = 0, used = 0;
        enum http1_result result = HTTP1_MORE;

        (void)state;
        http1_init(&parser, HTTP1_REQUEST);
        for (size_t len = 1; len < sizeof bytes; len++) {
                result = http1_head(&parser, bytes, len, &head, &used);
                if (result != HTTP1_MORE)
                        break;
        }
        assert_int_equal(result, HTTP1_DONE);
        assert_true(head.chunked);
        assert_int_equal(head.content_length, -1);
        for (at = used; at < sizeof bytes - 1; at++) {
                result = http1_body(&parser, bytes + at, 1, collect, &body, &used);
                if (result != HTTP1_MORE)
                        break;
        }
        assert_int_equal(result, HTTP1_DONE);
        assert_int_equal(body.len, 7);
        assert_memory_equal(body.data, "abcdefg", 7);
        assert_string_equal(bytes + at + used, "rest");
}

static void smuggling_is_refused(void **state)
{
        static const char *const requests[] = {
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: "
                "chunked\r\n\r\n0\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc",
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc",
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: "
                "chunked\r\n\r\n0\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
                "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\n\r\n",
                "GET / HTTP/1.1\nHost: x\n\n",
                "GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
                "GET / HTTP/1.1\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: x\r\nA\x01: b\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: x\r\nA: b\x01\r\n\r\n",
                "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
                "GET / HTTP/3.1\r\nHost: x\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello",
        };
        struct http1_head head;
        struct text body;
        size_t used;

        (void)state;
        for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
                enum http1_result result = parse(HTTP1_REQUEST, requests[i], &head, &body, &used);

                if (result != HTTP1_BAD)
                        fail_msg("request %zu was taken (%d): %s", i, (int)result, requests[i]);
        }
}

static void limits_at_their_edge(void **state)
{
        static char big[HTTP1_HEAD_BYTES_MAX + 64];
        struct http1_parser parser;
        struct http1_head head;
        size_t used, at;

        (void)state;
        memset(big, 'a', sizeof big);
        memcpy(big, "GET / HTTP/1.1\r\nHost: x\r\nA: ", 28);
        memcpy(big + HTTP1_HEAD_BYTES_MAX - 4, "\r\n\r\n", 4);
        http1_init(&parser, HTTP1_REQUEST);
        assert_int_equal(http1_head(&parser, big, HTTP1_HEAD_BYTES_MAX, &head, &used), HTTP1_DONE);
        memset(big + HTTP1_HEAD_BYTES_MAX - 4, 'a', 4);
        http1_init(&parser, HTTP1_REQUEST);
        assert_int_equal(http1_head(&parser, big, HTTP1_HEAD_BYTES_MAX - 1, &head, &used), HTTP1_MORE);
        assert_int_equal(http1_head(&parser, big, HTTP1_HEAD_BYTES_MAX, &head, &used), HTTP1_TOO_LARGE);

        for (unsigned fields = HTTP1_FIELDS_MAX; fields <= HTTP1_FIELDS_MAX + 1; fields++) {
                at = 16;
                memcpy(big, "GET / HTTP/1.1\r\n", 16);
                memcpy(big + at, "Host: x\r\n", 9);
                at += 9;
                for (unsigned i = 1; i < fields; i++, at += 6)
                        memcpy(big + at, "A: b\r\n", 6);
                memcpy(big + at, "\r\n", 2);
                http1_init(&parser, HTTP1_REQUEST);
                assert_int_equal(http1_head(&parser, big, at + 2, &head, &used),
                                 fields <= HTTP1_FIELDS_MAX ? HTTP1_DONE : HTTP1_TOO_LARGE);
        }
}

static void responses_end_as_they_say(void **state)
{
        struct http1_parser parser;
        struct http1_head head;
        struct text body;
        size_t used;

        (void)state;
        assert_int_equal(
                parse(HTTP1_RESPONSE, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", &head, &body, &used),
                HTTP1_DONE);
        assert_int_equal(head.status, 200);
        assert_int_equal(body.len, 2);
        assert_int_equal(parse(HTTP1_RESPONSE, "HTTP/1.1 204 No Content\r\n\r\n", &head, &body, &used),
                         HTTP1_DONE);
        assert_true(head.no_body);
        assert_int_equal(parse(HTTP1_RESPONSE, "HTTP/1.1 200 OK\r\n\r\nuntil the end", &head, &body, &used),
                         HTTP1_MORE);
        assert_int_equal(body.len, 13);

        /* Another protocol is told by its first bytes, without waiting for a head. */
        assert_int_equal(parse(HTTP1_RESPONSE, "SSH-2.0-OpenSSH_9\r\n", &head, &body, &used), HTTP1_BAD);
        assert_int_equal(parse(HTTP1_RESPONSE, "HT", &head, &body, &used), HTTP1_MORE);
        assert_int_equal(parse(HTTP1_RESPONSE, "HTTP/1.1 2", &head, &body, &used), HTTP1_MORE);

        static const char open[] = "HTTP/1.0 200 OK\r\n\r\nxy";
        body = (struct text){0};
        http1_init(&parser, HTTP1_RESPONSE);
        assert_int_equal(http1_head(&parser, open, sizeof open - 1, &head, &used), HTTP1_DONE);
        assert_false(head.keep_alive);
        assert_int_equal(http1_body(&parser, open + used, 2, collect, &body, &used), HTTP1_MORE);
        assert_true(http1_eof(&parser));

        assert_int_equal(
                parse(HTTP1_RESPONSE, "HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n", &head, &body, &used),
                HTTP1_BAD);
        assert_int_equal(parse(HTTP1_RESPONSE, "HTTP/1.1 200 O\x01K\r\n\r\n", &head, &body, &used),
                         HTTP1_BAD);

        static const char cut[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab";
        body = (struct text){0};
        http1_init(&parser, HTTP1_RESPONSE);
        assert_int_equal(http1_head(&parser, cut, sizeof cut - 1, &head, &used), HTTP1_DONE);
        assert_int_equal(http1_body(&parser, cut + used, sizeof cut - 1 - used, collect, &body, &used),
                         HTTP1_MORE);
        assert_int_equal(body.len, 2);
        assert_false(http1_eof(&parser));

        static const char head_only[] = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";
        http1_init(&parser, HTTP1_RESPONSE);
        parser.head_request = true;
        assert_int_equal(http1_head(&parser, head_only, sizeof head_only - 1, &head, &used), HTTP1_DONE);
        assert_int_equal(http1_body(&parser, NULL, 0, collect, &body, &used), HTTP1_DONE);
        assert_int_equal(head.content_length, 100);
}

static void hop_by_hop_fields(void **state)
{
        static const char bytes[] =
                "GET / HTTP/1.1\r\nHost: x\r\nConnection: x-mine , Close\r\nX-Mine: 1\r\nX-Other: 2\r\n"
                "Keep-Alive: 3\r\n\r\n";
        struct http1_head head;
        struct text body;
        size_t used;

        (void)state;
        assert_int_equal(parse(HTTP1_REQUEST, bytes, &head, &body, &used), HTTP1_DONE);
        assert_true(http1_hop_by_hop(&head, http1_find(&head, "x-mine")->name));
        assert_true(http1_hop_by_hop(&head, http1_find(&head, "keep-alive")->name));
        assert_false(http1_hop_by_hop(&head, http1_find(&head, "x-other")->name));
        assert_false(head.keep_alive);
}

static void upgrade_leaves_the_rest_alone(void **state)
{
        static const char bytes[] = "GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: "
                                    "websocket\r\n\r\n\x81\x01";
        struct http1_head head;
        struct text body;
        size_t used;

        (void)state;
        assert_int_equal(parse(HTTP1_REQUEST, bytes, &head, &body, &used), HTTP1_DONE);
        assert_true(head.upgrade);
        assert_int_equal(body.len, 0);
        assert_int_equal(used, sizeof bytes - 1 - 2);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(request_with_length),           cmocka_unit_test(byte_by_byte),
                cmocka_unit_test(smuggling_is_refused),          cmocka_unit_test(limits_at_their_edge),
                cmocka_unit_test(responses_end_as_they_say),     cmocka_unit_test(hop_by_hop_fields),
                cmocka_unit_test(upgrade_leaves_the_rest_alone),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
