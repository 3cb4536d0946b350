/* SPDX-License-Identifier: Apache-2.0 */
/* First connections, gaps and their replays, silence. */
#include "kv_stream_test_util.h"

/* ---- starting ---- */

static void test_first_connect_replays_from_0(void **state)
{
        (void)state;
        struct host host;

        begin(&host, true);
        publish(&host, 5, false);
        open(&host);
        check_state(&host, ENGINE_STREAM_REPLAYING, false);
        assert_int_equal(host.asked_from, 0);
        publish(&host, 2, true); /* before the answer: held back */
        assert_int_equal(host.applied_count, 0);
        assert_int_equal(host.held_count, 2);
        live_by_replays(&host);
        check_applied(&host, 0, 6);
        assert_int_equal(host.stream.counters.duplicates, 2); /* the held ones were in the replay */
        publish(&host, 3, true);
        check_applied(&host, 0, 9);
        assert_int_equal(host.stream.counters.gaps, 0);
        assert_int_equal(host.stream.counters.batches, 10);
}

static void test_engine_without_history(void **state)
{
        (void)state;
        struct host host;

        begin(&host, true);
        open(&host);
        live_by_replays(&host); /* nothing published: nothing cached */
        publish(&host, 1, true);
        check_applied(&host, 0, 0);
}

/* A buffer that no longer has the beginning misses stores, no removals: used, and trusted later. */
static void test_first_connect_to_an_old_engine(void **state)
{
        (void)state;
        struct host host;

        begin(&host, true);
        host.engine.buffer = 10;
        publish(&host, 100, false);
        open(&host);
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        check_applied(&host, 90, 99);
        publish(&host, 1, true);
        check_applied(&host, 90, 100);
        tick(&host, 29 * S);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        live_after_ns(&host, 1 * S);
        assert_int_equal(host.stream.counters.lost, 0);
}

static void test_first_connect_without_replay(void **state)
{
        (void)state;
        struct host host;

        begin(&host, NO_REPLAY);
        open(&host);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        tick(&host, 60 * S);
        check_state(&host, ENGINE_STREAM_RELEARNING, false); /* nothing heard: nothing known */
        miss(&host, 2, 1);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        check_applied(&host, 2, 2);
        live_after_ns(&host, 30 * S);

        heard_without_replay(&host, 1);
        check_state(&host, ENGINE_STREAM_LIVE, true); /* from its very beginning */
}

static void test_data_before_the_news_of_the_connection(void **state)
{
        (void)state;
        struct host host;

        begin(&host, true);
        publish(&host, 1, true);
        check_state(&host, ENGINE_STREAM_REPLAYING, false);
        assert_int_equal(host.asked_from, 0);
        open(&host);
        live_by_replays(&host);
        check_applied(&host, 0, 0);
}

/* ---- gaps ---- */

static void test_gap_is_replayed(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 4);
        miss(&host, 3, 1);
        check_state(&host, ENGINE_STREAM_REPLAYING, true); /* for a moment still */
        assert_int_equal(host.asked_from, 3); /* the last known one proves that it is the same process */
        publish(&host, 1, true);
        check_applied(&host, 0, 3);
        live_by_replays(&host);
        check_applied(&host, 0, 8);
        assert_int_equal(host.stream.counters.gaps, 1);
        assert_int_equal(host.stream.counters.lost, 0);
        assert_int_equal(host.clears, 0);
}

static void test_gap_at_the_very_beginning(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 0);
        miss(&host, 2, 1);
        assert_int_equal(host.asked_from, 0);
        live_by_replays(&host);
        check_applied(&host, 0, 2);
}

static void test_gap_too_old(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 4);
        host.engine.buffer = 5;
        miss(&host, 20, 1);
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        check_applied(&host, 20, 24); /* what came before the hole is forgotten */
        assert_int_equal(host.clears, 1);
        assert_int_equal(host.stream.counters.too_old, 1);
        assert_int_equal(host.stream.counters.lost, 16);
        publish(&host, 2, true);
        live_after_ns(&host, 30 * S);
        check_applied(&host, 20, 26);
}

static void test_gap_without_replay(void **state)
{
        (void)state;
        struct host host;

        heard_without_replay(&host, 3);
        miss(&host, 2, 1);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        check_applied(&host, 5, 5);
        assert_int_equal(host.stream.counters.lost, 2);
        tick(&host, 20 * S);
        miss(&host, 1, 1); /* another one: the time begins anew */
        tick(&host, 20 * S);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        live_after_ns(&host, 10 * S);
}

static void test_replay_is_silent(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 4);
        host.engine.answers = false;
        miss(&host, 1, 2);
        tick(&host, 2 * S);
        check_state(&host, ENGINE_STREAM_REPLAYING, true);
        tick(&host, 1 * S);
        check_state(&host, ENGINE_STREAM_REPLAYING, false);
        tick(&host, 2 * S);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        check_applied(&host, 5, 6);
        assert_int_equal(host.stream.counters.replays_failed, 1);
        assert_int_equal(host.stream.counters.lost, 1);
        assert_int_equal(host.asked_from, UINT64_MAX);
}

/* After a reconnect that nothing vouches for: what it held may be gone. */
static void test_reconnect_to_a_silent_replay(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 4);
        host.engine.answers = false;
        lose(&host);
        open(&host);
        tick(&host, 5 * S);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        assert_int_equal(host.applied_count, 0);
        publish(&host, 1, true);
        live_after_ns(&host, 30 * S);
        live_after_ns(&host, 60 * S); /* it does not answer, so it is not asked in vain every some seconds */
        check_applied(&host, 4, 4);
}

/* Replies come slowly, yet come: no time-out. */
static void test_slow_replay(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 2);
        miss(&host, 5, 1);
        for (uint64_t seq = 1; seq < 8; seq++) {
                tick(&host, 4 * S);
                reply(&host, seq);
        }
        end_replay(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 0, 7);
}

/* A replay that itself has a hole. */
static void test_hole_in_the_replay(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 4);
        miss(&host, 4, 1);
        reply(&host, 3);
        reply(&host, 4);
        reply(&host, 7);
        reply(&host, 8);
        end_replay(&host);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        check_applied(&host, 7, 8);
        assert_int_equal(host.stream.counters.lost, 2);
}

/* It ends before what was heard first: asked again, but not for ever. */
static void test_replay_ends_too_soon(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 4);
        miss(&host, 4, 1);
        for (unsigned round = 0; round < ENGINE_STREAM_REPLAY_TRIES; round++) {
                assert_int_equal(host.asked_from, round == 0 ? 3 : 4);
                reply(&host, round == 0 ? 3 : 4);
                reply(&host, 4);
                end_replay(&host);
        }
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        check_applied(&host, 8, 8);
        assert_int_equal(host.stream.counters.lost, 3);
        assert_int_equal(host.stream.counters.replays, 1 + ENGINE_STREAM_REPLAY_TRIES);
}

static void test_repetitions(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 5);
        hear(&host, 4);
        hear(&host, 2);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 0, 4);
        assert_int_equal(host.stream.counters.duplicates, 2);
        assert_int_equal(host.stream.counters.restarts, 0);
}

/* ---- clearing, silence ---- */

static void test_cleared_and_unreadable(void **state)
{
        (void)state;
        struct host host;
        struct engine_stream_todo todo;

        live_after(&host, 5);
        todo = engine_stream_cleared(&host.stream);
        obey(&host, &todo, 0);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        assert_int_equal(host.applied_count, 0);
        publish(&host, 1, true);
        check_applied(&host, 5, 5);
        todo = engine_stream_unreadable(&host.stream, host.now);
        obey(&host, &todo, 0);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        assert_int_equal(host.applied_count, 0);
        publish(&host, 1, true);
        live_after_ns(&host, 30 * S);
}

static void test_silence_is_checked(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 5);
        tick(&host, 14 * S);
        assert_int_equal(host.asked_from, UINT64_MAX);
        tick(&host, 1 * S);
        assert_int_equal(host.asked_from, 4);
        check_state(&host, ENGINE_STREAM_REPLAYING, true);
        live_by_replays(&host); /* idle, as it should be */
        assert_false(host.stream.deaf);
        assert_int_equal(host.stream.counters.unheard, 0);
        /* An engine that restarted in silence is found this way too. */
        restart(&host);
        tick(&host, 15 * S);
        live_by_replays(&host);
        assert_int_equal(host.stream.counters.restarts, 1);
        assert_int_equal(host.applied_count, 0);
}

static void test_deaf_subscription(void **state)
{
        (void)state;
        struct host host;

        begin(&host, true);
        open(&host);
        serve_replays(&host);
        for (unsigned check = 1; check <= ENGINE_STREAM_DEAF_CHECKS; check++) {
                publish(&host, 3, false);
                tick(&host, 15 * S);
                serve_replays(&host);
                check_applied(&host, 0, 3 * check - 1);
                check_state(&host, ENGINE_STREAM_LIVE, check < ENGINE_STREAM_DEAF_CHECKS);
        }
        assert_true(host.stream.deaf);
        assert_int_equal(host.stream.counters.unheard, 3 * ENGINE_STREAM_DEAF_CHECKS);
        publish(&host, 1, true);
        assert_false(host.stream.deaf);
        check_state(&host, ENGINE_STREAM_LIVE, true);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_first_connect_replays_from_0),
                cmocka_unit_test(test_engine_without_history),
                cmocka_unit_test(test_first_connect_to_an_old_engine),
                cmocka_unit_test(test_first_connect_without_replay),
                cmocka_unit_test(test_data_before_the_news_of_the_connection),
                cmocka_unit_test(test_gap_is_replayed),
                cmocka_unit_test(test_gap_at_the_very_beginning),
                cmocka_unit_test(test_gap_too_old),
                cmocka_unit_test(test_gap_without_replay),
                cmocka_unit_test(test_replay_is_silent),
                cmocka_unit_test(test_reconnect_to_a_silent_replay),
                cmocka_unit_test(test_slow_replay),
                cmocka_unit_test(test_hole_in_the_replay),
                cmocka_unit_test(test_replay_ends_too_soon),
                cmocka_unit_test(test_repetitions),
                cmocka_unit_test(test_cleared_and_unreadable),
                cmocka_unit_test(test_silence_is_checked),
                cmocka_unit_test(test_deaf_subscription),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
