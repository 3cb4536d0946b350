/* SPDX-License-Identifier: Apache-2.0 */
/* The server over loopback against a raw client on the same loop: what goes over the wire is written out
 * here. */
#include "server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct raw {
        struct net_conn *conn;
        char got[256 * 1024];
        size_t len;
        bool connected, ended;
        int end_error;
};

struct fixture {
        struct net_loop loop;
        struct net_server *server;
        struct sockaddr_storage addr;
        struct net_exchange *held; /* a request that is not answered yet */
        unsigned requests, gone;
        char last_target[128];
        char last_body[1 << 16];
        size_t last_body_len;
        bool closed;
        struct raw raw;
};

/* ---- server side -------------------------------------------------------------------------------------- */

static struct kvr_slice text(const char *s)
{
        return (struct kvr_slice){.data = s, .len = strlen(s)};
}

static bool is_path(struct net_exchange *x, const char *path)
{
        const struct http1_head *head = net_exchange_head(x);

        return head->path.len == strlen(path) && memcmp(head->path.data, path, head->path.len) == 0;
}

static void on_request(void *ctx, struct net_exchange *x)
{
        struct fixture *f = ctx;
        const struct http1_head *head = net_exchange_head(x);
        struct kvr_slice body = net_exchange_body(x);

        f->requests++;
        snprintf(f->last_target, sizeof(f->last_target), "%.*s", (int)head->target.len, head->target.data);
        assert_true(body.len < sizeof(f->last_body));
        if (body.len)
                memcpy(f->last_body, body.data, body.len);
        f->last_body_len = body.len;
        if (is_path(x, "/hold")) {
                f->held = x;
        } else if (is_path(x, "/stream")) {
                net_stream_begin(x, 200, "text/event-stream", "x-test: 1\r\n");
                net_stream_chunk(x, text("hello"));
                net_stream_chunk(x, text(" world, longer than fifteen"));
                net_stream_end(x);
        } else if (is_path(x, "/abort")) {
                net_exchange_abort(x);
        } else if (is_path(x, "/cut")) {
                net_stream_begin(x, 200, "text/plain", "");
                net_stream_chunk(x, text("half"));
                net_exchange_cut(x, text("20\r\nonly the begin"));
        } else {
                net_respond(x, 200, "text/plain", "x-test: 1\r\n", text("ok"));
        }
}

static void on_gone(void *ctx, struct net_exchange *x)
{
        struct fixture *f = ctx;

        f->gone++;
        if (f->held == x)
                f->held = NULL;
}

/* ---- client side -------------------------------------------------------------------------------------- */

static void raw_on_connect(struct net_conn *conn, int error)
{
        struct raw *raw = conn->owner;

        assert_int_equal(error, 0);
        raw->connected = true;
        net_read_start(conn);
}

static void raw_on_data(struct net_conn *conn, char *data, size_t len)
{
        struct raw *raw = conn->owner;

        assert_true(raw->len + len < sizeof(raw->got));
        memcpy(raw->got + raw->len, data, len);
        raw->len += len;
        raw->got[raw->len] = 0;
}

static void raw_on_end(struct net_conn *conn, int error)
{
        struct raw *raw = conn->owner;

        raw->ended = true;
        raw->end_error = error;
}

static const struct net_ops raw_ops = {
        .on_data = raw_on_data, .on_end = raw_on_end, .on_connect = raw_on_connect};

static void turn(struct fixture *f)
{
        uv_run(&f->loop.uv, UV_RUN_ONCE);
}

static void raw_open(struct fixture *f)
{
        memset(&f->raw, 0, sizeof(f->raw));
        f->raw.conn = net_connect(&f->loop, (struct sockaddr *)&f->addr, &raw_ops, &f->raw);
        assert_non_null(f->raw.conn);
        while (!f->raw.connected)
                turn(f);
}

static void raw_close(struct fixture *f)
{
        net_close(f->raw.conn);
        f->raw.conn = NULL;
}

static void raw_send(struct fixture *f, const char *data, size_t len)
{
        uv_buf_t buf = uv_buf_init((char *)(uintptr_t)data, (unsigned)len);

        assert_int_equal(net_write(f->raw.conn, &buf, 1), 0);
}

static void raw_puts(struct fixture *f, const char *s)
{
        raw_send(f, s, strlen(s));
}

static void expect_answer(struct fixture *f, const char *whole)
{
        while (f->raw.len < strlen(whole) && !f->raw.ended)
                turn(f);
        assert_string_equal(f->raw.got, whole);
        f->raw.len = 0;
        f->raw.got[0] = 0;
}

static void expect_end(struct fixture *f)
{
        while (!f->raw.ended)
                turn(f);
}

static void start(struct fixture *f, uint32_t idle_ms, uint32_t head_ms)
{
        struct net_server_options options = {
                .body_bytes_max = 1000,
                .idle_timeout_ms = idle_ms,
                .head_timeout_ms = head_ms,
                .on_request = on_request,
                .on_gone = on_gone,
                .ctx = f,
        };
        int error = 0;

        assert_int_equal(net_resolve("127.0.0.1", 0, &f->addr), 0);
        f->server = net_server_new(&f->loop, &f->addr, &options, &error);
        assert_non_null(f->server);
}

static int setup(void **state)
{
        struct fixture *f = calloc(1, sizeof(*f));

        if (!f || net_loop_init(&f->loop))
                return -1;
        *state = f;
        return 0;
}

static void on_closed(void *ctx)
{
        ((struct fixture *)ctx)->closed = true;
}

static int teardown(void **state)
{
        struct fixture *f = *state;

        if (f->raw.conn)
                net_close(f->raw.conn);
        if (f->server)
                net_server_close(f->server, on_closed, f);
        while (f->server && !f->closed)
                turn(f);
        net_loop_fini(&f->loop);
        assert_int_equal(f->loop.conn_count, 0);
        free(f);
        return 0;
}

/* ---- tests -------------------------------------------------------------------------------------------- */

#define OK_ANSWER "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nx-test: 1\r\ncontent-length: 2\r\n\r\nok"

static void keep_alive_serves_many(void **state)
{
        struct fixture *f = *state;

        start(f, 0, 0);
        raw_open(f);
        for (int i = 0; i < 3; i++) {
                raw_puts(f, "GET /a?x=1 HTTP/1.1\r\nHost: h\r\n\r\n");
                expect_answer(f, OK_ANSWER);
        }
        assert_int_equal(f->requests, 3);
        assert_string_equal(f->last_target, "/a?x=1");
        assert_false(f->raw.ended);
}

static void connection_close_is_obeyed(void **state)
{
        struct fixture *f = *state;

        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        expect_end(f);
        assert_int_equal(f->raw.end_error, 0);
        assert_non_null(strstr(f->raw.got, "connection: close\r\n"));
        assert_non_null(strstr(f->raw.got, "\r\n\r\nok"));
}

static void head_has_length_but_no_body(void **state)
{
        struct fixture *f = *state;

        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "HEAD / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n");
        expect_answer(f, "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nx-test: 1\r\ncontent-length: "
                         "2\r\n\r\n" OK_ANSWER);
}

static void bodies_come_by_length_and_in_chunks(void **state)
{
        struct fixture *f = *state;

        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\nhello");
        turn(f);
        assert_int_equal(f->requests, 0);
        raw_puts(f, " world");
        expect_answer(f, OK_ANSWER);
        assert_int_equal(f->last_body_len, 11);
        assert_memory_equal(f->last_body, "hello world", 11);

        raw_puts(f, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
        turn(f);
        raw_puts(f, "4;ext=1\r\ndefg\r\n0\r\nTrailer: x\r\n\r\n");
        expect_answer(f, OK_ANSWER);
        assert_int_equal(f->last_body_len, 7);
        assert_memory_equal(f->last_body, "abcdefg", 7);
}

static void a_byte_at_a_time_is_the_same(void **state)
{
        struct fixture *f = *state;
        const char *request =
                "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n";

        start(f, 0, 0);
        raw_open(f);
        for (const char *p = request; *p; p++) {
                raw_send(f, p, 1);
                turn(f);
        }
        expect_answer(f, OK_ANSWER);
        assert_memory_equal(f->last_body, "ab", 2);
}

static void streams_are_chunked(void **state)
{
        struct fixture *f = *state;

        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
        expect_answer(f, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-test: 1\r\n"
                         "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n1b\r\n world, longer than "
                         "fifteen\r\n0\r\n\r\n");
        raw_puts(f, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        expect_answer(f, OK_ANSWER);
}

static void http_1_0_gets_no_chunks(void **state)
{
        struct fixture *f = *state;

        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "GET /stream HTTP/1.0\r\n\r\n");
        expect_end(f);
        assert_string_equal(f->raw.got, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-test: 1\r\n"
                                        "connection: close\r\n\r\nhello world, longer than fifteen");
}

static void pipelined_requests_wait_their_turn(void **state)
{
        struct fixture *f = *state;

        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"
                    "POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhiGET /c HTTP/1.1\r\nHost: "
                    "h\r\n\r\n");
        while (!f->held)
                turn(f);
        for (int i = 0; i < 3; i++)
                uv_run(&f->loop.uv, UV_RUN_NOWAIT);
        assert_int_equal(f->requests, 1);
        net_respond(f->held, 200, "text/plain", "", text("first"));
        expect_answer(
                f, "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nfirst" OK_ANSWER
                           OK_ANSWER);
        assert_int_equal(f->requests, 3);
        assert_string_equal(f->last_target, "/c");
}

static void expect_continue_is_answered(void **state)
{
        struct fixture *f = *state;

        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
        expect_answer(f, "HTTP/1.1 100 Continue\r\n\r\n");
        raw_puts(f, "hi");
        expect_answer(f, OK_ANSWER);
        assert_memory_equal(f->last_body, "hi", 2);
}

static void large_bodies_get_413(void **state)
{
        struct fixture *f = *state;
        char *filler = calloc(1, 3000);

        assert_non_null(filler);
        memset(filler, 'x', 2999);
        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3000\r\n\r\n");
        raw_send(f, filler, 2999);
        while (!strstr(f->raw.got, "body_too_large"))
                turn(f);
        assert_memory_equal(f->raw.got, "HTTP/1.1 413 Content Too Large\r\n", 32);
        raw_close(f);

        raw_open(f); /* the size shows only while the chunks come */
        raw_puts(f, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nbb7\r\n");
        raw_send(f, filler, 2999);
        while (!strstr(f->raw.got, "body_too_large"))
                turn(f);
        assert_memory_equal(f->raw.got, "HTTP/1.1 413 ", 13);
        assert_int_equal(f->requests, 0);
        free(filler);
}

static void a_body_at_the_limit_passes(void **state)
{
        struct fixture *f = *state;
        char filler[1000];

        memset(filler, 'y', sizeof(filler));
        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n");
        raw_send(f, filler, sizeof(filler));
        expect_answer(f, OK_ANSWER);
        assert_int_equal(f->last_body_len, 1000);
}

static void large_heads_get_431(void **state)
{
        struct fixture *f = *state;
        char *filler = malloc(70000);

        assert_non_null(filler);
        memset(filler, 'x', 70000);
        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "GET / HTTP/1.1\r\nHost: h\r\nX-Long: ");
        raw_send(f, filler, 70000);
        while (!strstr(f->raw.got, "header_too_large"))
                turn(f);
        assert_memory_equal(f->raw.got, "HTTP/1.1 431 ", 13);
        free(filler);
}

static void nonsense_gets_400(void **state)
{
        struct fixture *f = *state;

        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nTransfer-Encoding: "
                    "chunked\r\n\r\n0\r\n\r\n");
        while (!strstr(f->raw.got, "invalid_request"))
                turn(f);
        assert_memory_equal(f->raw.got, "HTTP/1.1 400 ", 13);
        assert_int_equal(f->requests, 0);
}

static void a_client_that_leaves_is_reported(void **state)
{
        struct fixture *f = *state;

        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
        while (!f->held)
                turn(f);
        raw_close(f);
        while (f->held)
                turn(f);
        assert_int_equal(f->gone, 1);

        raw_open(f); /* in mid-stream as well */
        raw_puts(f, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
        while (!f->held)
                turn(f);
        net_stream_begin(f->held, 200, "text/plain", "");
        net_stream_chunk(f->held, text("x"));
        raw_close(f);
        while (f->held)
                turn(f);
        assert_int_equal(f->gone, 2);
}

static void a_client_that_does_not_read_is_seen_in_pending(void **state)
{
        struct fixture *f = *state;
        char block[32768];

        memset(block, 'z', sizeof(block));
        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
        while (!f->held)
                turn(f);
        net_read_stop(f->raw.conn);
        net_stream_begin(f->held, 200, "text/plain", "");
        assert_int_equal(net_stream_pending(f->held), 0);
        for (int i = 0; i < 1000 && net_stream_pending(f->held) == 0; i++)
                net_stream_chunk(f->held, (struct kvr_slice){.data = block, .len = sizeof(block)});
        assert_true(net_stream_pending(f->held) > 0);
        raw_close(f);
        while (f->held)
                turn(f);
        assert_int_equal(f->gone, 1);
}

static void abort_resets_and_cut_closes(void **state)
{
        struct fixture *f = *state;

        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "GET /abort HTTP/1.1\r\nHost: h\r\n\r\n");
        expect_end(f);
        assert_int_equal(f->raw.end_error, UV_ECONNRESET);
        assert_int_equal(f->raw.len, 0);
        raw_close(f);

        raw_open(f);
        raw_puts(f, "GET /cut HTTP/1.1\r\nHost: h\r\n\r\n");
        expect_end(f);
        assert_int_equal(f->raw.end_error, 0);
        assert_non_null(strstr(f->raw.got, "4\r\nhalf\r\n20\r\nonly the begin"));
        assert_int_equal(f->gone, 0);
}

static void time_outs_close(void **state)
{
        struct fixture *f = *state;
        uint64_t began;

        start(f, 30, 60);
        raw_open(f);
        raw_puts(f, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        expect_answer(f, OK_ANSWER);
        uv_update_time(&f->loop.uv);
        began = net_now_ms(&f->loop);
        expect_end(f); /* idle after an answer */
        assert_int_equal(f->raw.end_error, 0);
        assert_in_range(net_now_ms(&f->loop) - began, 20, 5000);
        raw_close(f);

        raw_open(f); /* half a head */
        raw_puts(f, "GET / HTTP/1.1\r\nHo");
        while (!strstr(f->raw.got, "HTTP/1.1 408 "))
                turn(f);
        raw_close(f);

        raw_open(f); /* half a body */
        raw_puts(f, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
        while (!strstr(f->raw.got, "HTTP/1.1 408 "))
                turn(f);
        assert_int_equal(f->requests, 1);
        assert_int_equal(f->gone, 0);
}

static void dropping_all_tells_handlers_and_keeps_listening(void **state)
{
        struct fixture *f = *state;

        start(f, 0, 0);
        raw_open(f);
        raw_puts(f, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
        while (!f->held)
                turn(f);
        net_server_drop_all(f->server);
        assert_int_equal(f->gone, 1);
        assert_null(f->held);
        expect_end(f);
        raw_close(f);
        raw_open(f);
        raw_puts(f, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        expect_answer(f, OK_ANSWER);
}

static void a_taken_port_is_an_error(void **state)
{
        struct fixture *f = *state;
        struct net_server_options options = {.on_request = on_request, .on_gone = on_gone, .ctx = f};
        struct sockaddr_storage addr;
        int error = 0;

        assert_int_equal(net_resolve("192.0.2.1", 1, &addr), 0); /* an address that is not this machine's */
        assert_null(net_server_new(&f->loop, &addr, &options, &error));
        assert_int_equal(error, UV_EADDRNOTAVAIL);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(keep_alive_serves_many, setup, teardown),
                cmocka_unit_test_setup_teardown(connection_close_is_obeyed, setup, teardown),
                cmocka_unit_test_setup_teardown(head_has_length_but_no_body, setup, teardown),
                cmocka_unit_test_setup_teardown(bodies_come_by_length_and_in_chunks, setup, teardown),
                cmocka_unit_test_setup_teardown(a_byte_at_a_time_is_the_same, setup, teardown),
                cmocka_unit_test_setup_teardown(streams_are_chunked, setup, teardown),
                cmocka_unit_test_setup_teardown(http_1_0_gets_no_chunks, setup, teardown),
                cmocka_unit_test_setup_teardown(pipelined_requests_wait_their_turn, setup, teardown),
                cmocka_unit_test_setup_teardown(expect_continue_is_answered, setup, teardown),
                cmocka_unit_test_setup_teardown(large_bodies_get_413, setup, teardown),
                cmocka_unit_test_setup_teardown(a_body_at_the_limit_passes, setup, teardown),
                cmocka_unit_test_setup_teardown(large_heads_get_431, setup, teardown),
                cmocka_unit_test_setup_teardown(nonsense_gets_400, setup, teardown),
                cmocka_unit_test_setup_teardown(a_client_that_leaves_is_reported, setup, teardown),
                cmocka_unit_test_setup_teardown(a_client_that_does_not_read_is_seen_in_pending, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(abort_resets_and_cut_closes, setup, teardown),
                cmocka_unit_test_setup_teardown(time_outs_close, setup, teardown),
                cmocka_unit_test_setup_teardown(dropping_all_tells_handlers_and_keeps_listening, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(a_taken_port_is_an_error, setup, teardown),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
