/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the stream: an engine that publishes, and a host without sockets, which applies what it is told
 * to, holds back what it is told to, and keeps the account.
 */
#ifndef KVROUTE_ENGINE_KV_STREAM_TEST_UTIL_H
#define KVROUTE_ENGINE_KV_STREAM_TEST_UTIL_H

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

static inline uint64_t print_of(const struct host *host, uint64_t seq)
{
        return (host->engine.life << 32) + seq * 7 + 3;
}

static inline void obey(struct host *host, const struct engine_stream_todo *todo, uint64_t seq);

static inline void feed_held(struct host *host)
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

static inline void obey(struct host *host, const struct engine_stream_todo *todo, uint64_t seq)
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

static inline void begin(struct host *host, bool has_replay)
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

static inline void tick(struct host *host, uint64_t ns)
{
        struct engine_stream_todo todo;

        host->now += ns;
        todo = engine_stream_tick(&host->stream, host->now);
        obey(host, &todo, 0);
}

static inline void reply(struct host *host, uint64_t seq)
{
        struct engine_stream_todo todo =
                engine_stream_replayed(&host->stream, seq, print_of(host, seq), host->now);

        obey(host, &todo, seq);
}

/* The engine answers replays until none is asked for any more; a new one ends the old one. */
static inline void serve_replays(struct host *host)
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

static inline void hear(struct host *host, uint64_t seq)
{
        struct engine_stream_todo todo =
                engine_stream_batch(&host->stream, seq, print_of(host, seq), host->now);

        obey(host, &todo, seq);
}

/* Published and heard; or lost on the way. */
static inline void publish(struct host *host, unsigned count, bool heard)
{
        for (unsigned i = 0; i < count; i++) {
                uint64_t seq = host->engine.published++;

                if (heard)
                        hear(host, seq);
        }
}

static inline void open(struct host *host)
{
        struct engine_stream_todo todo = engine_stream_opened(&host->stream, host->now);

        obey(host, &todo, 0);
}

static inline void lose(struct host *host)
{
        struct engine_stream_todo todo = engine_stream_lost(&host->stream, host->now);

        obey(host, &todo, 0);
        assert_int_equal(host->held_count, 0);
}

static inline void restart(struct host *host)
{
        host->engine.life++;
        host->engine.published = 0;
}

/* Exactly batches first .. last of the present life were applied since the last clear, in order. */
static inline void check_applied(const struct host *host, uint64_t first, uint64_t last)
{
        assert_int_equal(host->applied_count, last - first + 1);
        for (size_t i = 0; i < host->applied_count; i++)
                assert_int_equal(host->applied[i], host->engine.life << 32 | (first + i));
}

static inline void check_state(const struct host *host, enum engine_stream_state state, bool trusted)
{
        assert_string_equal(engine_stream_state_name(host->stream.state), engine_stream_state_name(state));
        assert_int_equal(host->stream.trusted, trusted);
}

static inline void live_after(struct host *host, unsigned batches)
{
        begin(host, true);
        open(host);
        serve_replays(host);
        publish(host, batches, true);
        check_state(host, ENGINE_STREAM_LIVE, true);
}

/* Lives without a replay socket, and has heard so many. */
static inline void heard_without_replay(struct host *host, unsigned batches)
{
        begin(host, NO_REPLAY);
        open(host);
        publish(host, batches, true);
}

/* Some are lost on the way, and the next ones show it. */
static inline void miss(struct host *host, unsigned lost, unsigned heard)
{
        publish(host, lost, false);
        publish(host, heard, true);
}

static inline void live_by_replays(struct host *host)
{
        serve_replays(host);
        check_state(host, ENGINE_STREAM_LIVE, true);
}

static inline void live_after_ns(struct host *host, uint64_t ns)
{
        tick(host, ns);
        check_state(host, ENGINE_STREAM_LIVE, true);
}

static inline void end_replay(struct host *host)
{
        struct engine_stream_todo todo = engine_stream_replay_end(&host->stream, true, host->now);

        obey(host, &todo, 0);
}

/* Somebody else saw its process end. */
static inline void tell_restarted(struct host *host)
{
        struct engine_stream_todo todo = engine_stream_restarted(&host->stream, host->now);

        obey(host, &todo, 0);
}

#endif
