/* SPDX-License-Identifier: Apache-2.0 */
/* A host without sockets: it applies what it is told to, holds back what it is told to, and keeps the account. */
#include "kv_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define S         1000000000ULL
#define BATCHES   4096
#define HELD_MAX  64
#define NO_REPLAY false

/* Each batch has one block of its own; some remove the block of the batch before. */
struct engine {
        uint64_t life; /* of the process */
        uint64_t published;
        uint64_t buffer; /* batches kept for replay */
        bool answers;
};

struct host {
        struct engine_stream stream;
        struct engine engine;
        uint64_t now;
        uint64_t applied[BATCHES]; /* life << 32 | seq, since the last clear */
        size_t applied_count;
        uint64_t held[HELD_MAX];
        size_t held_count;
        uint64_t asked_from; /* UINT64_MAX: no replay asked for */
        unsigned clears, logs;
};

static uint64_t print_of(const struct host *host, uint64_t seq)
{
        return (host->engine.life << 32) + seq * 7 + 3;
}

static void obey(struct host *host, const struct engine_stream_todo *todo, uint64_t seq);

static void feed_held(struct host *host)
{
        uint64_t held[HELD_MAX];
        size_t count = host->held_count;

        memcpy(held, host->held, sizeof held);
        host->held_count = 0;
        for (size_t i = 0; i < count; i++) {
                struct engine_stream_todo todo =
                        engine_stream_held(&host->stream, held[i], print_of(host, held[i]), host->now);

                obey(host, &todo, held[i]);
        }
}

static void obey(struct host *host, const struct engine_stream_todo *todo, uint64_t seq)
{
        if (todo->drop_held)
                host->held_count = 0;
        if (todo->clear) {
                host->applied_count = 0;
                host->clears++;
        }
        if (todo->apply)
                host->applied[host->applied_count++] = host->engine.life << 32 | seq;
        if (todo->hold)
                host->held[host->held_count++] = seq;
        if (todo->replay)
                host->asked_from = todo->from;
        if (todo->end_replay) {
                host->asked_from = UINT64_MAX;
                feed_held(host);
        }
        host->logs += todo->log != NULL;
        assert_true(host->held_count == 0 || host->stream.state == ENGINE_STREAM_REPLAYING);
        assert_false(todo->replay && todo->end_replay);
}

static void begin(struct host *host, bool has_replay)
{
        struct engine_stream_options options = {
                .has_replay = has_replay, .relearn_ns = 30 * S, .check_ns = 15 * S};

        memset(host, 0, sizeof *host);
        host->engine = (struct engine){.life = 1, .buffer = 1000, .answers = true};
        host->asked_from = UINT64_MAX;
        host->now = 100 * S;
        engine_stream_init(&host->stream, &options);
        assert_int_equal(host->stream.state, ENGINE_STREAM_OFF);
        assert_false(host->stream.trusted);
}

static void tick(struct host *host, uint64_t ns)
{
        struct engine_stream_todo todo;

        host->now += ns;
        todo = engine_stream_tick(&host->stream, host->now);
        obey(host, &todo, 0);
}

static void reply(struct host *host, uint64_t seq)
{
        struct engine_stream_todo todo =
                engine_stream_replayed(&host->stream, seq, print_of(host, seq), host->now);

        obey(host, &todo, seq);
}

/* The engine answers replays until none is asked for any more; a new one ends the old one. */
static void serve_replays(struct host *host)
{
        while (host->asked_from != UINT64_MAX && host->engine.answers) {
                uint64_t from = host->asked_from, last = host->engine.published;
                uint64_t oldest = last > host->engine.buffer ? last - host->engine.buffer : 0;
                struct engine_stream_todo todo;

                host->asked_from = UINT64_MAX - 1;
                for (uint64_t seq = from > oldest ? from : oldest; seq < last; seq++) {
                        reply(host, seq);
                        if (host->asked_from != UINT64_MAX - 1)
                                break;
                }
                if (host->asked_from != UINT64_MAX - 1)
                        continue;
                todo = engine_stream_replay_end(&host->stream, true, host->now);
                obey(host, &todo, 0);
        }
}

static void hear(struct host *host, uint64_t seq)
{
        struct engine_stream_todo todo =
                engine_stream_batch(&host->stream, seq, print_of(host, seq), host->now);

        obey(host, &todo, seq);
}

/* Published and heard; or lost on the way. */
static void publish(struct host *host, unsigned count, bool heard)
{
        for (unsigned i = 0; i < count; i++) {
                uint64_t seq = host->engine.published++;

                if (heard)
                        hear(host, seq);
        }
}

static void open(struct host *host)
{
        struct engine_stream_todo todo = engine_stream_opened(&host->stream, host->now);

        obey(host, &todo, 0);
}

static void lose(struct host *host)
{
        struct engine_stream_todo todo = engine_stream_lost(&host->stream, host->now);

        obey(host, &todo, 0);
        assert_int_equal(host->held_count, 0);
}

static void restart(struct host *host)
{
        host->engine.life++;
        host->engine.published = 0;
}

/* Exactly batches first .. last of the present life were applied since the last clear, in order. */
static void check_applied(const struct host *host, uint64_t first, uint64_t last)
{
        assert_int_equal(host->applied_count, last - first + 1);
        for (size_t i = 0; i < host->applied_count; i++)
                assert_int_equal(host->applied[i], host->engine.life << 32 | (first + i));
}

static void check_state(const struct host *host, enum engine_stream_state state, bool trusted)
{
        assert_string_equal(engine_stream_state_name(host->stream.state), engine_stream_state_name(state));
        assert_int_equal(host->stream.trusted, trusted);
}

static void live_after(struct host *host, unsigned batches)
{
        begin(host, true);
        open(host);
        serve_replays(host);
        publish(host, batches, true);
        check_state(host, ENGINE_STREAM_LIVE, true);
}

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
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);
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
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true); /* nothing published: nothing cached */
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
        tick(&host, 1 * S);
        check_state(&host, ENGINE_STREAM_LIVE, true);
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
        publish(&host, 2, false);
        publish(&host, 1, true);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        check_applied(&host, 2, 2);
        tick(&host, 30 * S);
        check_state(&host, ENGINE_STREAM_LIVE, true);

        begin(&host, NO_REPLAY);
        open(&host);
        publish(&host, 1, true);
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
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 0, 0);
}

/* ---- gaps ---- */

static void test_gap_is_replayed(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 4);
        publish(&host, 3, false);
        publish(&host, 1, true);
        check_state(&host, ENGINE_STREAM_REPLAYING, true); /* for a moment still */
        assert_int_equal(host.asked_from, 3); /* the last known one proves that it is the same process */
        publish(&host, 1, true);
        check_applied(&host, 0, 3);
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);
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
        publish(&host, 2, false);
        publish(&host, 1, true);
        assert_int_equal(host.asked_from, 0);
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 0, 2);
}

static void test_gap_too_old(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 4);
        host.engine.buffer = 5;
        publish(&host, 20, false);
        publish(&host, 1, true);
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        check_applied(&host, 20, 24); /* what came before the hole is forgotten */
        assert_int_equal(host.clears, 1);
        assert_int_equal(host.stream.counters.too_old, 1);
        assert_int_equal(host.stream.counters.lost, 16);
        publish(&host, 2, true);
        tick(&host, 30 * S);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 20, 26);
}

static void test_gap_without_replay(void **state)
{
        (void)state;
        struct host host;

        begin(&host, NO_REPLAY);
        open(&host);
        publish(&host, 3, true);
        publish(&host, 2, false);
        publish(&host, 1, true);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        check_applied(&host, 5, 5);
        assert_int_equal(host.stream.counters.lost, 2);
        tick(&host, 20 * S);
        publish(&host, 1, false);
        publish(&host, 1, true); /* another one: the time begins anew */
        tick(&host, 20 * S);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        tick(&host, 10 * S);
        check_state(&host, ENGINE_STREAM_LIVE, true);
}

static void test_replay_is_silent(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 4);
        host.engine.answers = false;
        publish(&host, 1, false);
        publish(&host, 2, true);
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
        tick(&host, 30 * S);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        tick(&host, 60 * S); /* it does not answer, so it is not asked in vain every some seconds */
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 4, 4);
}

/* Replies come slowly, yet come: no time-out. */
static void test_slow_replay(void **state)
{
        (void)state;
        struct host host;
        struct engine_stream_todo todo;

        live_after(&host, 2);
        publish(&host, 5, false);
        publish(&host, 1, true);
        for (uint64_t seq = 1; seq < 8; seq++) {
                tick(&host, 4 * S);
                reply(&host, seq);
        }
        todo = engine_stream_replay_end(&host.stream, true, host.now);
        obey(&host, &todo, 0);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 0, 7);
}

/* A replay that itself has a hole. */
static void test_hole_in_the_replay(void **state)
{
        (void)state;
        struct host host;
        struct engine_stream_todo todo;

        live_after(&host, 4);
        publish(&host, 4, false);
        publish(&host, 1, true);
        reply(&host, 3);
        reply(&host, 4);
        reply(&host, 7);
        reply(&host, 8);
        todo = engine_stream_replay_end(&host.stream, true, host.now);
        obey(&host, &todo, 0);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        check_applied(&host, 7, 8);
        assert_int_equal(host.stream.counters.lost, 2);
}

/* It ends before what was heard first: asked again, but not for ever. */
static void test_replay_ends_too_soon(void **state)
{
        (void)state;
        struct host host;
        struct engine_stream_todo todo;

        live_after(&host, 4);
        publish(&host, 4, false);
        publish(&host, 1, true);
        for (unsigned round = 0; round < ENGINE_STREAM_REPLAY_TRIES; round++) {
                assert_int_equal(host.asked_from, round == 0 ? 3 : 4);
                reply(&host, round == 0 ? 3 : 4);
                reply(&host, 4);
                todo = engine_stream_replay_end(&host.stream, true, host.now);
                obey(&host, &todo, 0);
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
        publish(&host, 2, false);
        publish(&host, 1, true);
        check_state(&host, ENGINE_STREAM_REPLAYING, false);
        assert_int_equal(host.asked_from, 0);
        assert_int_equal(host.clears, 1);
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 0, 2);

        begin(&host, NO_REPLAY);
        open(&host);
        publish(&host, 5, true);
        restart(&host);
        publish(&host, 2, false);
        publish(&host, 1, true);
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
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 0, 5);
        assert_int_equal(host.stream.counters.restarts, 1);

        /* One that has published less than before, or nothing: it does not know the last batch. */
        for (unsigned published = 0; published < 3; published++) {
                live_after(&host, 5);
                lose(&host);
                restart(&host);
                publish(&host, published, false);
                open(&host);
                serve_replays(&host);
                check_state(&host, ENGINE_STREAM_LIVE, true);
                assert_int_equal(host.stream.counters.restarts, 1);
                assert_int_equal(host.applied_count, published);
        }
}

static void test_restart_during_a_replay(void **state)
{
        (void)state;
        struct host host;

        live_after(&host, 5);
        publish(&host, 2, false);
        publish(&host, 1, true);
        check_state(&host, ENGINE_STREAM_REPLAYING, true);
        restart(&host);
        publish(&host, 1, true);
        assert_int_equal(host.held_count, 1);
        assert_int_equal(host.asked_from, 0);
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 0, 0);
}

static void test_restart_by_another_sign(void **state)
{
        (void)state;
        struct host host;
        struct engine_stream_todo todo;

        live_after(&host, 5);
        todo = engine_stream_restarted(&host.stream, host.now);
        obey(&host, &todo, 0);
        check_state(&host, ENGINE_STREAM_REPLAYING, false);
        assert_int_equal(host.applied_count, 0);
        assert_int_equal(host.asked_from, 0);
        serve_replays(&host); /* a false alarm: everything comes back */
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 0, 4);

        begin(&host, NO_REPLAY);
        open(&host);
        publish(&host, 3, true);
        todo = engine_stream_restarted(&host.stream, host.now);
        obey(&host, &todo, 0);
        check_state(&host, ENGINE_STREAM_RELEARNING, false);
        assert_int_equal(host.applied_count, 0);

        live_after(&host, 5);
        lose(&host);
        todo = engine_stream_restarted(&host.stream, host.now);
        obey(&host, &todo, 0);
        check_state(&host, ENGINE_STREAM_OFF, false);
        assert_int_equal(host.asked_from, UINT64_MAX);
        restart(&host);
        open(&host);
        assert_int_equal(host.asked_from, 0);
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);
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
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);
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
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);

        begin(&host, NO_REPLAY);
        open(&host);
        publish(&host, 2, true);
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
        publish(&host, 2, false);
        publish(&host, 2, true);
        lose(&host);
        check_state(&host, ENGINE_STREAM_OFF, true);
        assert_int_equal(host.asked_from, UINT64_MAX);
        open(&host);
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);
        check_applied(&host, 0, 8);
        assert_int_equal(host.clears, 0);
}

/* Replies of a replay that is over, and ends of none. */
static void test_stray_replies(void **state)
{
        (void)state;
        struct host host;
        struct engine_stream_todo todo;

        live_after(&host, 5);
        reply(&host, 3);
        reply(&host, 9);
        todo = engine_stream_replay_end(&host.stream, true, host.now);
        obey(&host, &todo, 0);
        check_applied(&host, 0, 4);
        lose(&host);
        lose(&host);
        check_state(&host, ENGINE_STREAM_OFF, true);
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
        tick(&host, 30 * S);
        check_state(&host, ENGINE_STREAM_LIVE, true);
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
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true); /* idle, as it should be */
        assert_false(host.stream.deaf);
        assert_int_equal(host.stream.counters.unheard, 0);
        /* An engine that restarted in silence is found this way too. */
        restart(&host);
        tick(&host, 15 * S);
        serve_replays(&host);
        check_state(&host, ENGINE_STREAM_LIVE, true);
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
                cmocka_unit_test(test_restart_from_0),
                cmocka_unit_test(test_restart_seen_late),
                cmocka_unit_test(test_restart_while_away),
                cmocka_unit_test(test_restart_during_a_replay),
                cmocka_unit_test(test_restart_by_another_sign),
                cmocka_unit_test(test_reconnect_brings_what_was_missed),
                cmocka_unit_test(test_away_for_long),
                cmocka_unit_test(test_lost_during_a_replay),
                cmocka_unit_test(test_stray_replies),
                cmocka_unit_test(test_cleared_and_unreadable),
                cmocka_unit_test(test_silence_is_checked),
                cmocka_unit_test(test_deaf_subscription),
                cmocka_unit_test(test_any_order),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
