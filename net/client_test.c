/* SPDX-License-Identifier: Apache-2.0 */
/* The client over loopback against a peer that answers with bytes the test writes out. */
#include "client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct result {
        bool done;
        enum net_request_error error;
        unsigned status, heads;
        char body[4096];
        size_t body_len;
        char chunks[4096];
        size_t chunks_len;
        struct fixture *fixture;
        struct net_request *cancel_at_chunk;
};

struct fixture {
        struct net_loop loop;
        struct net_listener listener;
        struct sockaddr_storage addr;
        struct net_client *client;
        bool listener_closed;
        struct net_conn *peer; /* the latest accepted connection */
        unsigned accepted, peer_ends;
        char got[8192]; /* what the peer received */
        size_t got_len;
        const char *answer; /* sent for each request head that ends */
        bool close_after;   /* the peer closes behind it */
};

static void peer_on_data(struct net_conn *conn, char *data, size_t len)
{
        struct fixture *f = conn->owner;

        assert_true(f->got_len + len < sizeof(f->got));
        memcpy(f->got + f->got_len, data, len);
        f->got_len += len;
        f->got[f->got_len] = 0;
        if (f->answer && f->got_len >= 4 && strstr(f->got, "\r\n\r\n")) {
                uv_buf_t buf = uv_buf_init((char *)(uintptr_t)f->answer, (unsigned)strlen(f->answer));

                if (buf.len)
                        assert_int_equal(net_write(conn, &buf, 1), 0);
                if (f->close_after) {
                        f->peer = NULL;
                        net_close(conn);
                }
        }
}

static void peer_on_end(struct net_conn *conn, int error)
{
        struct fixture *f = conn->owner;

        (void)error;
        f->peer_ends++;
        if (f->peer == conn)
                f->peer = NULL;
        net_close(conn);
}

static const struct net_ops peer_ops = {.on_data = peer_on_data, .on_end = peer_on_end};

static void on_accept(struct net_listener *listener, struct net_conn *conn)
{
        struct fixture *f = listener->owner;

        f->accepted++;
        f->peer = conn;
        conn->ops = &peer_ops;
        conn->owner = f;
        net_read_start(conn);
}

static void on_listener_closed(struct net_listener *listener)
{
        ((struct fixture *)listener->owner)->listener_closed = true;
}

static int setup(void **state)
{
        struct fixture *f = calloc(1, sizeof(*f));

        if (!f || net_loop_init(&f->loop) || net_resolve("127.0.0.1", 0, &f->addr) ||
            net_listen(&f->listener, &f->loop, &f->addr, on_accept, f))
                return -1;
        f->client = net_client_new(&f->loop, 2, 0);
        *state = f;
        return f->client ? 0 : -1;
}

static int teardown(void **state)
{
        struct fixture *f = *state;

        net_client_free(f->client);
        if (f->peer)
                net_close(f->peer);
        if (!f->listener_closed)
                net_listener_close(&f->listener, on_listener_closed);
        net_loop_fini(&f->loop);
        assert_int_equal(f->loop.conn_count, 0);
        free(f);
        return 0;
}

static void on_head(void *ctx, const struct http1_head *head)
{
        struct result *r = ctx;

        r->heads++;
        r->status = head->status;
}

static void on_chunk(void *ctx, const char *data, size_t len)
{
        struct result *r = ctx;

        assert_true(r->chunks_len + len <= sizeof(r->chunks));
        memcpy(r->chunks + r->chunks_len, data, len);
        r->chunks_len += len;
        if (r->cancel_at_chunk)
                net_request_cancel(r->cancel_at_chunk);
}

static void on_done(void *ctx, enum net_request_error error, unsigned status, struct kvr_slice body)
{
        struct result *r = ctx;

        assert_false(r->done);
        r->done = true;
        r->error = error;
        r->status = status;
        assert_true(body.len <= sizeof(r->body));
        if (body.len)
                memcpy(r->body, body.data, body.len);
        r->body_len = body.len;
}

static struct net_request *send_one(struct fixture *f, struct result *r, const char *method, const char *body,
                                    uint32_t timeout_ms, bool again)
{
        struct net_request_spec spec = {
                .addr = (struct sockaddr *)&f->addr,
                .host = "h:1",
                .method = method,
                .target = "/x?y=1",
                .headers = "a: b\r\n",
                .body = {.data = body, .len = strlen(body)},
                .timeout_ms = timeout_ms,
                .again = again,
                .body_bytes_max = sizeof(r->body),
                .on_head = on_head,
                .on_chunk = on_chunk,
                .on_done = on_done,
                .ctx = r,
        };
        struct net_request *q;

        memset(r, 0, sizeof(*r));
        f->got_len = 0;
        q = net_request_send(f->client, &spec);
        assert_non_null(q);
        assert_false(r->done);
        return q;
}

static struct net_request *request(struct fixture *f, struct result *r, const char *method, const char *body,
                                   uint32_t timeout_ms)
{
        return send_one(f, r, method, body, timeout_ms, false);
}

static void finish(struct fixture *f, struct result *r)
{
        while (!r->done)
                uv_run(&f->loop.uv, UV_RUN_ONCE);
}

static void assert_body(const struct result *r, const char *text)
{
        assert_int_equal(r->error, NET_REQUEST_OK);
        assert_int_equal(r->body_len, strlen(text));
        assert_memory_equal(r->body, text, r->body_len);
        assert_int_equal(r->chunks_len, r->body_len);
        assert_memory_equal(r->chunks, text, r->body_len);
}

static void requests_look_so_and_reuse_one_connection(void **state)
{
        struct fixture *f = *state;
        struct result r;

        f->answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        request(f, &r, "GET", "", 0);
        finish(f, &r);
        assert_body(&r, "hello");
        assert_int_equal(r.status, 200);
        assert_string_equal(f->got, "GET /x?y=1 HTTP/1.1\r\nhost: h:1\r\na: b\r\n\r\n");
        request(f, &r, "POST", "body", 0);
        finish(f, &r);
        assert_string_equal(f->got,
                            "POST /x?y=1 HTTP/1.1\r\nhost: h:1\r\ncontent-length: 4\r\na: b\r\n\r\nbody");
        assert_int_equal(f->accepted, 1);
}

static void chunked_answers_and_interim_ones_are_read(void **state)
{
        struct fixture *f = *state;
        struct result r;

        f->answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
                    "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: "
                    "chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        request(f, &r, "GET", "", 0);
        finish(f, &r);
        assert_body(&r, "abcde");
        assert_int_equal(r.status, 404);
        assert_int_equal(r.heads, 1);
}

static void an_answer_may_end_with_the_connection(void **state)
{
        struct fixture *f = *state;
        struct result r;

        f->answer = "HTTP/1.1 200 OK\r\n\r\nall of it";
        f->close_after = true;
        request(f, &r, "GET", "", 0);
        /* The peer closes with unread input only if we send more: this close is a FIN. */
        finish(f, &r);
        assert_body(&r, "all of it");
}

static void head_has_no_body(void **state)
{
        struct fixture *f = *state;
        struct result r;

        f->answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        request(f, &r, "HEAD", "", 0);
        finish(f, &r);
        assert_body(&r, "");
}

static void refusal_is_told_later(void **state)
{
        struct fixture *f = *state;
        struct result r;

        net_listener_close(&f->listener, on_listener_closed);
        while (!f->listener_closed)
                uv_run(&f->loop.uv, UV_RUN_ONCE);
        request(f, &r, "GET", "", 0);
        finish(f, &r);
        assert_int_equal(r.error, NET_REQUEST_CONNECT);
        assert_int_equal(r.status, 0);
}

static void silence_times_out(void **state)
{
        struct fixture *f = *state;
        struct result slow, slower;

        request(f, &slower, "GET", "", 60);
        request(f, &slow, "GET", "", 20);
        finish(f, &slow);
        assert_int_equal(slow.error, NET_REQUEST_TIMEOUT);
        assert_false(slower.done);
        finish(f, &slower);
        assert_int_equal(slower.error, NET_REQUEST_TIMEOUT);
}

static void a_cut_answer_is_an_error(void **state)
{
        struct fixture *f = *state;
        struct result r;

        f->answer = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello";
        f->close_after = true;
        request(f, &r, "GET", "", 0);
        finish(f, &r);
        assert_int_equal(r.error, NET_REQUEST_CLOSED);
        assert_int_equal(r.status, 200);
        assert_int_equal(r.chunks_len, 5);

        f->answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
        request(f, &r, "GET", "", 0);
        finish(f, &r);
        assert_int_equal(r.error, NET_REQUEST_CLOSED);

        f->answer = "";
        request(f, &r, "GET", "", 0);
        finish(f, &r);
        assert_int_equal(r.error, NET_REQUEST_CLOSED);
        assert_int_equal(r.status, 0);
}

static void what_is_not_http_is_an_error(void **state)
{
        struct fixture *f = *state;
        struct result r;

        f->answer = "SSH-2.0-OpenSSH\r\n\r\n";
        request(f, &r, "GET", "", 0);
        finish(f, &r);
        assert_int_equal(r.error, NET_REQUEST_PROTOCOL);
}

static void bodies_are_bounded(void **state)
{
        struct fixture *f = *state;
        struct result r;
        struct net_request_spec spec = {
                .addr = (struct sockaddr *)&f->addr,
                .host = "h",
                .method = "GET",
                .target = "/",
                .body_bytes_max = 4,
                .on_done = on_done,
                .ctx = &r,
        };

        memset(&r, 0, sizeof(r));
        f->answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_non_null(net_request_send(f->client, &spec));
        finish(f, &r);
        assert_int_equal(r.error, NET_REQUEST_TOO_LARGE);
        assert_int_equal(r.status, 200);
}

/* The peer closes when the next request arrives; the one after that is answered. */
static void lose_one(struct fixture *f, struct result *r, unsigned accepted)
{
        while (f->accepted < accepted && !r->done) {
                uv_run(&f->loop.uv, UV_RUN_ONCE);
                if (f->peer == NULL) {
                        f->answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                        f->close_after = false;
                        f->got_len = 0;
                }
        }
        finish(f, r);
}

static void a_lost_kept_connection_is_tried_again_if_that_is_allowed(void **state)
{
        struct fixture *f = *state;
        struct result r;

        f->answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        request(f, &r, "GET", "", 0);
        finish(f, &r);
        /* The peer closes only when the next request arrives: the race that a check beforehand cannot see. */
        f->answer = "";
        f->close_after = true;
        request(f, &r, "POST", "x", 0);
        finish(f, &r);
        assert_int_equal(r.error, NET_REQUEST_CLOSED);
        assert_int_equal(f->accepted, 1);

        f->answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        f->close_after = false;
        request(f, &r, "GET", "", 0);
        finish(f, &r);
        assert_int_equal(f->accepted, 2);
        f->answer = "";
        f->close_after = true;
        request(f, &r, "GET", "", 0);
        lose_one(f, &r, 3);
        assert_body(&r, "ok");
        assert_int_equal(f->accepted, 3);

        f->answer = "";
        f->close_after = true;
        send_one(f, &r, "POST", "x", 0, true);
        lose_one(f, &r, 4);
        assert_body(&r, "ok");
        assert_int_equal(f->accepted, 4);
        /* Once: a new connection that is lost is a failure. */
        f->answer = "";
        f->close_after = true;
        send_one(f, &r, "POST", "x", 0, true);
        finish(f, &r);
        assert_int_equal(r.error, NET_REQUEST_CLOSED);
        assert_int_equal(f->accepted, 5);
}

static void a_connection_closed_while_idle_is_not_used(void **state)
{
        struct fixture *f = *state;
        struct result r;

        f->answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        request(f, &r, "POST", "x", 0);
        finish(f, &r);
        net_close(f->peer);
        f->peer = NULL;
        for (int i = 0; i < 3; i++)
                uv_run(&f->loop.uv, UV_RUN_NOWAIT);
        request(f, &r, "POST", "x", 0);
        finish(f, &r);
        assert_body(&r, "ok");
        assert_int_equal(f->accepted, 2);
}

static void cancel_closes_without_a_callback(void **state)
{
        struct fixture *f = *state;
        struct result r;
        struct net_request *q = request(f, &r, "GET", "", 1000);

        while (f->got_len == 0)
                uv_run(&f->loop.uv, UV_RUN_ONCE);
        net_request_cancel(q);
        while (f->peer_ends == 0)
                uv_run(&f->loop.uv, UV_RUN_ONCE);
        assert_false(r.done);

        /* From inside its own callback too. */
        f->answer = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello";
        r.cancel_at_chunk = NULL;
        q = request(f, &r, "GET", "", 1000);
        r.cancel_at_chunk = q;
        while (f->peer_ends == 1)
                uv_run(&f->loop.uv, UV_RUN_ONCE);
        assert_int_equal(r.chunks_len, 5);
        assert_false(r.done);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(requests_look_so_and_reuse_one_connection, setup, teardown),
                cmocka_unit_test_setup_teardown(chunked_answers_and_interim_ones_are_read, setup, teardown),
                cmocka_unit_test_setup_teardown(an_answer_may_end_with_the_connection, setup, teardown),
                cmocka_unit_test_setup_teardown(head_has_no_body, setup, teardown),
                cmocka_unit_test_setup_teardown(refusal_is_told_later, setup, teardown),
                cmocka_unit_test_setup_teardown(silence_times_out, setup, teardown),
                cmocka_unit_test_setup_teardown(a_cut_answer_is_an_error, setup, teardown),
                cmocka_unit_test_setup_teardown(what_is_not_http_is_an_error, setup, teardown),
                cmocka_unit_test_setup_teardown(bodies_are_bounded, setup, teardown),
                cmocka_unit_test_setup_teardown(a_lost_kept_connection_is_tried_again_if_that_is_allowed,
                                                setup, teardown),
                cmocka_unit_test_setup_teardown(a_connection_closed_while_idle_is_not_used, setup, teardown),
                cmocka_unit_test_setup_teardown(cancel_closes_without_a_callback, setup, teardown),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
