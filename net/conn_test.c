/* SPDX-License-Identifier: Apache-2.0 */
/* Connections and deadlines over loopback, both ends in this process on one loop. */
#include "conn.h"
#include "deadline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct end {
        struct net_conn *conn;
        size_t got;
        uint64_t sum;
        int ends, drains, connects, moves, last_error;
        bool close_on_data;
        bool enough_on_data;
        size_t buffer; /* bytes that on_alloc gives, 0: those of the loop */
        char room[8];
};

static void on_data(struct net_conn *conn, char *data, size_t len)
{
        struct end *end = conn->owner;

        end->got += len;
        for (size_t i = 0; i < len; i++)
                end->sum = end->sum * 31 + (unsigned char)data[i];
        if (end->enough_on_data)
                net_read_enough(conn);
        if (end->close_on_data) {
                end->conn = NULL;
                net_close(conn);
        }
}

static void on_end(struct net_conn *conn, int error)
{
        struct end *end = conn->owner;

        end->ends++;
        end->last_error = error;
}

static void on_drain(struct net_conn *conn)
{
        ((struct end *)conn->owner)->drains++;
}

static void on_connect(struct net_conn *conn, int error)
{
        struct end *end = conn->owner;

        end->connects++;
        end->last_error = error;
}

static void on_moved(struct net_conn *conn)
{
        ((struct end *)conn->owner)->moves++;
}

static void on_alloc(struct net_conn *conn, char **ret_data, size_t *ret_len)
{
        struct end *end = conn->owner;

        *ret_data = end->room;
        *ret_len = end->buffer;
}

static const struct net_ops ops = {.on_data = on_data,
                                   .on_alloc = on_alloc,
                                   .on_end = on_end,
                                   .on_drain = on_drain,
                                   .on_connect = on_connect,
                                   .on_moved = on_moved};

struct pair {
        struct net_loop loop;
        struct net_listener listener;
        struct end client, server;
};

static void on_accept(struct net_listener *listener, struct net_conn *conn)
{
        struct pair *pair = listener->owner;

        conn->ops = &ops;
        conn->owner = &pair->server;
        pair->server.conn = conn;
}

static void turn_until(struct pair *pair, bool (*done)(struct pair *))
{
        for (int i = 0; i < 100000 && !done(pair); i++)
                uv_run(&pair->loop.uv, UV_RUN_ONCE);
        assert_true(done(pair));
}

static bool linked(struct pair *pair)
{
        return pair->client.connects && pair->server.conn;
}

static int set_up(void **state)
{
        struct pair *pair = calloc(1, sizeof *pair);
        struct sockaddr_storage addr;

        assert_non_null(pair);
        assert_int_equal(net_loop_init(&pair->loop), 0);
        assert_int_equal(net_resolve("127.0.0.1", 0, &addr), 0);
        assert_int_equal(net_listen(&pair->listener, &pair->loop, &addr, on_accept, pair), 0);
        assert_int_not_equal(((struct sockaddr_in *)&addr)->sin_port, 0);
        pair->client.conn = net_connect(&pair->loop, (struct sockaddr *)&addr, &ops, &pair->client);
        assert_non_null(pair->client.conn);
        turn_until(pair, linked);
        *state = pair;
        return 0;
}

static int tear_down(void **state)
{
        struct pair *pair = *state;

        if (pair->client.conn)
                net_close(pair->client.conn);
        if (pair->server.conn)
                net_close(pair->server.conn);
        net_listener_close(&pair->listener, NULL);
        net_loop_fini(&pair->loop);
        assert_int_equal(pair->loop.conn_count, 0);
        free(pair);
        return 0;
}

#define BIG ((size_t)8 * 1024 * 1024)

static bool all_there(struct pair *pair)
{
        return pair->server.got == BIG;
}

static bool drained(struct pair *pair)
{
        return pair->client.drains > 0;
}

/* More than socket buffers hold: the rest is kept, in order, and on_drain tells when it is gone. */
static void big_writes_arrive_whole(void **state)
{
        struct pair *pair = *state;
        char *data = malloc(BIG);
        uint64_t sum = 0;

        assert_non_null(data);
        for (size_t i = 0; i < BIG; i++) {
                data[i] = (char)(i * 2654435761u >> 13);
                sum = sum * 31 + (unsigned char)data[i];
        }
        for (int by_reference = 0; by_reference < 2; by_reference++) {
                uv_buf_t bufs[3] = {uv_buf_init(data, 1000), uv_buf_init(data + 1000, 1),
                                    uv_buf_init(data + 1001, (unsigned)(BIG - 1001))};

                pair->server.got = 0;
                pair->server.sum = 0;
                pair->client.drains = 0;
                assert_int_equal(by_reference ? net_write_ref(pair->client.conn, bufs, 3)
                                              : net_write(pair->client.conn, bufs, 3),
                                 0);
                assert_true(net_pending(pair->client.conn) > 0);
                if (!by_reference) { /* order is kept behind what waits */
                        uv_buf_t none = uv_buf_init(data, 0);

                        assert_int_equal(net_write(pair->client.conn, &none, 1), 0);
                }
                net_read_start(pair->server.conn);
                turn_until(pair, all_there);
                assert_true(pair->server.sum == sum);
                turn_until(pair, drained);
                assert_int_equal(net_pending(pair->client.conn), 0);
        }
        free(data);
}

static bool client_ended(struct pair *pair)
{
        return pair->client.ends > 0;
}

static void close_is_seen_at_once_and_calls_nothing_back(void **state)
{
        struct pair *pair = *state;
        uv_buf_t hello = uv_buf_init((char *)"hello", 5);

        pair->server.close_on_data = true;
        net_read_start(pair->server.conn);
        net_read_start(pair->client.conn);
        assert_int_equal(net_write(pair->client.conn, &hello, 1), 0);
        turn_until(pair, client_ended);
        assert_int_equal(pair->server.got, 5);
        assert_int_equal(pair->server.ends, 0);
        assert_null(pair->server.conn);
        assert_true(net_stale(pair->client.conn));
}

static void stale_is_told_without_reading(void **state)
{
        struct pair *pair = *state;

        assert_false(net_stale(pair->client.conn));
        net_close(pair->server.conn);
        pair->server.conn = NULL;
        uv_run(&pair->loop.uv, UV_RUN_NOWAIT);
        assert_true(net_stale(pair->client.conn));
}

static bool server_ended(struct pair *pair)
{
        return pair->server.ends > 0;
}

/* Reading that is stopped and started again: what came meanwhile, bytes and the end, is there in full, and
 * only then. */
static void stopping_takes_nothing_from_the_socket(void **state)
{
        struct pair *pair = *state;
        uv_buf_t first = uv_buf_init((char *)"first", 5), second = uv_buf_init((char *)"second", 6);

        net_read_start(pair->server.conn);
        net_read_stop(pair->server.conn);
        net_read_start(pair->server.conn);
        assert_int_equal(net_write(pair->client.conn, &first, 1), 0);
        while (pair->server.got == 0)
                uv_run(&pair->loop.uv, UV_RUN_ONCE);
        net_read_stop(pair->server.conn);
        assert_false(net_stale(pair->server.conn));
        assert_int_equal(net_write(pair->client.conn, &second, 1), 0);
        net_close(pair->client.conn);
        pair->client.conn = NULL;
        for (int i = 0; i < 10; i++)
                uv_run(&pair->loop.uv, UV_RUN_NOWAIT);
        assert_int_equal(pair->server.got, 5);
        assert_int_equal(pair->server.ends, 0);
        assert_true(net_stale(pair->server.conn));
        net_read_start(pair->server.conn);
        turn_until(pair, server_ended);
        assert_int_equal(pair->server.got, 11);
        assert_int_equal(pair->server.last_error, 0);
}

static bool server_moved(struct pair *pair)
{
        return pair->server.moves > 0;
}

/* Bytes or an end that come while nobody reads are told once, and told apart. */
static void what_comes_while_nobody_reads_is_told(void **state)
{
        struct pair *pair = *state;
        uv_buf_t byte = uv_buf_init((char *)"x", 1);

        for (int round = 0; round < 2; round++) {
                pair->server.moves = 0;
                net_read_start(pair->server.conn);
                net_read_stop(pair->server.conn);
                assert_false(net_has_input(pair->server.conn));
                if (round == 0) {
                        assert_int_equal(net_write(pair->client.conn, &byte, 1), 0);
                } else {
                        net_close(pair->client.conn);
                        pair->client.conn = NULL;
                }
                turn_until(pair, server_moved);
                for (int i = 0; i < 10; i++)
                        uv_run(&pair->loop.uv, UV_RUN_NOWAIT);
                assert_int_equal(pair->server.moves, 1);
                assert_int_equal(pair->server.got, round);
                assert_int_equal(net_has_input(pair->server.conn), round == 0);
                assert_true(net_moved(pair->server.conn));
                if (round == 1)
                        break;
                net_read_start(pair->server.conn);
                while (pair->server.got == 0)
                        uv_run(&pair->loop.uv, UV_RUN_ONCE);
                assert_int_equal(pair->server.moves, 1);
        }
        assert_int_equal(pair->server.ends, 0);
}

static bool something_there(struct pair *pair)
{
        return pair->server.got > 0;
}

static bool ten_there(struct pair *pair)
{
        return pair->server.got == 10;
}

static bool ended(struct pair *pair)
{
        return pair->server.ends > 0;
}

/* A buffer that was filled is followed by another look at the socket, unless the owner has enough; the rest comes
 * with the next event, and so does the end. */
static void enough_is_one_read_an_event(void **state)
{
        struct pair *pair = *state;
        uv_buf_t ten = uv_buf_init((char *)(uintptr_t) "0123456789", 10);

        pair->server.buffer = 5;
        net_read_start(pair->server.conn);
        assert_int_equal(net_write(pair->client.conn, &ten, 1), 0);
        turn_until(pair, something_there);
        assert_int_equal(pair->server.got, 10);

        pair->server.got = 0;
        pair->server.enough_on_data = true;
        assert_int_equal(net_write(pair->client.conn, &ten, 1), 0);
        turn_until(pair, something_there);
        assert_int_equal(pair->server.got, 5);
        turn_until(pair, ten_there);

        net_close(pair->client.conn);
        pair->client.conn = NULL;
        turn_until(pair, ended);
        assert_int_equal(pair->server.last_error, 0);
}

/* Nobody reads when the look is left out: what came then is told as ever. */
static void enough_and_stop_is_a_stop(void **state)
{
        struct pair *pair = *state;
        uv_buf_t ten = uv_buf_init((char *)(uintptr_t) "0123456789", 10);

        pair->server.buffer = 5;
        pair->server.enough_on_data = true;
        net_read_start(pair->server.conn);
        assert_int_equal(net_write(pair->client.conn, &ten, 1), 0);
        turn_until(pair, something_there);
        net_read_stop(pair->server.conn);
        for (int i = 0; i < 5; i++)
                uv_run(&pair->loop.uv, UV_RUN_NOWAIT);
        assert_int_equal(pair->server.got, 5);
        assert_int_equal(pair->server.moves, 1);
        net_read_start(pair->server.conn);
        turn_until(pair, ten_there);
}

static void refused_connections_are_reported_later(void **state)
{
        struct pair *pair = *state;
        struct sockaddr_storage addr;
        struct net_listener gone;
        struct end end = {0};
        struct net_conn *conn;

        /* A port that was free a moment ago. */
        assert_int_equal(net_resolve("127.0.0.1", 0, &addr), 0);
        assert_int_equal(net_listen(&gone, &pair->loop, &addr, on_accept, pair), 0);
        net_listener_close(&gone, NULL);
        uv_run(&pair->loop.uv, UV_RUN_NOWAIT);
        conn = net_connect(&pair->loop, (struct sockaddr *)&addr, &ops, &end);
        assert_non_null(conn);
        assert_int_equal(end.connects, 0);
        for (int i = 0; i < 1000 && !end.connects; i++)
                uv_run(&pair->loop.uv, UV_RUN_ONCE);
        assert_int_equal(end.connects, 1);
        assert_int_equal(end.last_error, UV_ECONNREFUSED);
        net_close(conn);
}

static unsigned expired_count;
static struct net_deadline *expired[8];

static void on_expired(struct net_deadline *deadline)
{
        expired[expired_count++] = deadline;
}

static void deadlines_expire_in_order(void **state)
{
        struct pair *pair = *state;
        struct net_deadlines deadlines;
        struct net_deadline a = {0}, b = {0}, c = {0}, off = {0};
        uint8_t fast, slow, never;

        expired_count = 0;
        net_deadlines_init(&deadlines, &pair->loop);
        slow = net_deadlines_kind(&deadlines, 30, on_expired);
        fast = net_deadlines_kind(&deadlines, 1, on_expired);
        never = net_deadlines_kind(&deadlines, 0, on_expired);
        net_deadline_arm(&deadlines, &a, slow);
        net_deadline_arm(&deadlines, &b, slow);
        net_deadline_arm(&deadlines, &c, fast);
        net_deadline_arm(&deadlines, &off, never);
        assert_null(off.next);
        net_deadline_disarm(&b);
        net_deadline_disarm(&b);
        while (expired_count < 2)
                uv_run(&pair->loop.uv, UV_RUN_ONCE);
        assert_ptr_equal(expired[0], &c);
        assert_ptr_equal(expired[1], &a);
        assert_null(a.next);
        assert_int_equal(deadlines.timer_due_ms, 0);
        net_deadlines_close(&deadlines);
        uv_run(&pair->loop.uv, UV_RUN_NOWAIT); /* the timer must be closed before its memory goes */
}

int main(void)
{
#define WITH_PAIR(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
        const struct CMUnitTest tests[] = {
                WITH_PAIR(big_writes_arrive_whole),
                WITH_PAIR(close_is_seen_at_once_and_calls_nothing_back),
                WITH_PAIR(stale_is_told_without_reading),
                WITH_PAIR(stopping_takes_nothing_from_the_socket),
                WITH_PAIR(what_comes_while_nobody_reads_is_told),
                WITH_PAIR(enough_is_one_read_an_event),
                WITH_PAIR(enough_and_stop_is_a_stop),
                WITH_PAIR(refused_connections_are_reported_later),
                WITH_PAIR(deadlines_expire_in_order),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
