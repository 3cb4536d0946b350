/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that restart, connections that break, and everything in any order. */
#include "kv_stream_test_util.h"

/* ---- restarts ---- */

static void test_restart_from_0(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 5);
        restart(&host);
        publish(&host, 1, true);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 0, 0);
        assert_int_equal(host.clears, 1);
        assert_int_equal(host.stream.counters.restarts, 1);
}

static void test_restart_seen_late(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 5);
        restart(&host);
        miss(&host, 2, 1);
        check_state(&host, ENGINE_STREAM_REPLAYING, false);
        assert_int_equal(host.asked_from, 0);
        assert_int_equal(host.clears, 1);
        live_by_replays(&host);
        check_applied(&host, 0, 2);

        heard_without_replay(&host, 5);
        restart(&host);
        miss(&host, 2, 1);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        check_applied(&host, 2, 2);
        assert_int_equal(host.stream.counters.restarts, 1);
}

/* The same number as the one that is due, after a reconnect: only the replay shows that it is another process. */
static void test_restart_while_away(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 5);
        lose(&host);
        check_state(&host, ENGINE_STREAM_OFF, true);
        restart(&host);
        publish(&host, 5, false);
        open(&host);
        assert_int_equal(host.asked_from, 4);
        publish(&host, 1, true);
        live_by_replays(&host);
        check_applied(&host, 0, 5);
        assert_int_equal(host.stream.counters.restarts, 1);

        /* One that has published less than before, or nothing: it does not know the last batch. */
        for (unsigned published = 0; published < 3; published++) {
                live_after(&host, 5);
                lose(&host);
                restart(&host);
                publish(&host, published, false);
                open(&host);
                live_by_replays(&host);
                assert_int_equal(host.stream.counters.restarts, 1);
                assert_int_equal(host.applied_count, published);
        }
}

static void test_restart_during_a_replay(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 5);
        miss(&host, 2, 1);
        check_state(&host, ENGINE_STREAM_REPLAYING, true);
        restart(&host);
        publish(&host, 1, true);
        assert_int_equal(host.held_count, 1);
        assert_int_equal(host.asked_from, 0);
        live_by_replays(&host);
        check_applied(&host, 0, 0);
}

static void test_restart_by_another_sign(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 5);
        tell_restarted(&host);
        check_state(&host, ENGINE_STREAM_REPLAYING, false);
        assert_int_equal(host.applied_count, 0);
        assert_int_equal(host.asked_from, 0);
        live_by_replays(&host); /* a false alarm: everything comes back */
        check_applied(&host, 0, 4);

        heard_without_replay(&host, 3);
        tell_restarted(&host);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        assert_int_equal(host.applied_count, 0);

        live_after(&host, 5);
        lose(&host);
        tell_restarted(&host);
        check_state(&host, ENGINE_STREAM_OFF, false);
        assert_int_equal(host.asked_from, UINT64_MAX);
        restart(&host);
        open(&host);
        assert_int_equal(host.asked_from, 0);
        live_by_replays(&host);
}

/* ---- connections ---- */

static void test_reconnect_brings_what_was_missed(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 5);
        lose(&host);
        publish(&host, 3, false);
        tick(&host, 1 * S);
        open(&host);
        check_state(&host, ENGINE_STREAM_REPLAYING, true);
        live_by_replays(&host);
        check_applied(&host, 0, 7);
        assert_int_equal(host.clears, 0);
}

static void test_away_for_long(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 5);
        lose(&host);
        tick(&host, 4 * S);
        check_state(&host, ENGINE_STREAM_OFF, true);
        tick(&host, 1 * S);
        check_state(&host, ENGINE_STREAM_OFF, false);
        open(&host);
        check_state(&host, ENGINE_STREAM_REPLAYING, false);
        live_by_replays(&host);

        heard_without_replay(&host, 2);
        lose(&host);
        tick(&host, 9 * S);
        open(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true); /* the numbers will tell */
        publish(&host, 1, true);
        check_applied(&host, 0, 2);
}

static void test_lost_during_a_replay(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 5);
        miss(&host, 2, 2);
        lose(&host);
        check_state(&host, ENGINE_STREAM_OFF, true);
        assert_int_equal(host.asked_from, UINT64_MAX);
        open(&host);
        live_by_replays(&host);
        check_applied(&host, 0, 8);
        assert_int_equal(host.clears, 0);
}

/* Replies of a replay that is over, and ends of none. */
static void test_stray_replies(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 5);
        reply(&host, 3);
        reply(&host, 9);
        end_replay(&host);
        check_applied(&host, 0, 4);
        lose(&host);
        lose(&host);
        check_state(&host, ENGINE_STREAM_OFF, true);
}

/* ---- all of it ---- */

/* Whatever comes in whatever order: what is applied since the last clear is one run of one life, in order. */
static void test_any_order(void **state)
{
        (void)state;
        uint64_t seed = 1;

        for (unsigned round = 0; round < 3000; round++) {
                struct host host;

                begin(&host, round % 3 > 0);
                host.engine.buffer = round % 5 == 0 ? 3 : 1000;
                for (unsigned step = 0; step < 60; step++) {
                        seed = seed * 6364136223846793005u + 1442695040888963407u;
                        unsigned dice = seed >> 33 & 31;

                        if (dice < 12)
                                publish(&host, 1, host.stream.state != ENGINE_STREAM_OFF);
                        else if (dice < 14)
                                publish(&host, 1 + dice % 3, false);
                        else if (dice < 16)
                                lose(&host);
                        else if (dice < 20 && host.stream.state == ENGINE_STREAM_OFF)
                                open(&host);
                        else if (dice < 21) {
                                lose(&host); /* no process ends without that */
                                restart(&host);
                        } else if (dice < 26)
                                serve_replays(&host);
                        else
                                tick(&host, dice % 4 * S);
                        for (size_t i = 1; i < host.applied_count; i++) {
                                /* Without replay a new life that comes back just at the number due passes
                                 * for the old one. */
                                uint64_t mask = host.stream.options.has_replay ? UINT64_MAX : UINT32_MAX;

                                assert_int_equal(host.applied[i] & mask, (host.applied[i - 1] & mask) + 1);
                        }
                        assert_true(!host.stream.trusted || host.stream.complete);
                        assert_true(host.held_count < HELD_MAX - 4);
                }
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_restart_from_0),
                cmocka_unit_test(test_restart_seen_late),
                cmocka_unit_test(test_restart_while_away),
                cmocka_unit_test(test_restart_during_a_replay),
                cmocka_unit_test(test_restart_by_another_sign),
                cmocka_unit_test(test_reconnect_brings_what_was_missed),
                cmocka_unit_test(test_away_for_long),
                cmocka_unit_test(test_lost_during_a_replay),
                cmocka_unit_test(test_stray_replies),
                cmocka_unit_test(test_any_order),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
