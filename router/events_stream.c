/* SPDX-License-Identifier: Apache-2.0 */
/* One replica's stream: what the machine says to do with what came, done. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "events_int.h"

#define TRUST_LINES 16 /* changes of a stream's trust that are logged in a minute */

void stream_fail(struct stream *stream, const char *what, const char *why)
{
        snprintf(stream->own.error, sizeof stream->own.error, "%s: %s", what, why);
        stream->dirty = true;
        log_say(stream->events->options.log, LOG_WARN, stream->name, "replica %s: events: %s", stream->name,
                stream->own.error);
}

/* Whoever can write to the port must not be able to fill the log: the same thing of the same stream is one message. */
static void say(const struct stream *stream, enum log_level level, const char *text)
{
        char key[KVR_NAME_MAX + 160];

        snprintf(key, sizeof key, "%s %s", stream->name, text);
        log_say(stream->events->options.log, level, key, "replica %s: %s", stream->name, text);
}

/* ---- into the library ---- */

/* The last word must be the right one, so that each change is said, as long as there are not too many of them. */
static void say_trust(struct stream *stream, bool trusted)
{
        char key[KVR_NAME_MAX + 32];

        snprintf(key, sizeof key, "%s trust %u", stream->name, stream->trust_changes++ % TRUST_LINES);
        log_say(stream->events->options.log, LOG_INFO, key,
                trusted ? "replica %s: its events are trusted: hits are predicted from them"
                        : "replica %s: its events are not trusted: hits are predicted from what was sent "
                          "there",
                stream->name);
}

static void tell_trust(struct stream *stream)
{
        bool trusted = stream->machine.trusted;
        enum kvr_status status;

        if (trusted == stream->told_trusted)
                return;
        status = kvr_events_trust(stream->events->options.router, stream->id, trusted);
        if (status == KVR_OK || status == KVR_E_NOT_FOUND) {
                stream->told_trusted = trusted;
                if (status == KVR_OK)
                        say_trust(stream, trusted);
        } else if (!stream->said_no_room) {
                stream->said_no_room = true;
                stream_fail(stream, "no place in the index for its events", kvr_status_text(status));
        }
}

static void tell_gone(struct stream *stream)
{
        if (stream->gone_count)
                (void)kvr_events_removed(stream->events->options.router, stream->id, stream->gone,
                                         stream->gone_count, stream->gone_tier, &stream->own.account);
        stream->gone_count = 0;
}

static void take_removed(struct stream *stream, const struct engine_event *event)
{
        if (event->tier != stream->gone_tier || event->count > EVENTS_JOIN_MAX - stream->gone_count)
                tell_gone(stream);
        if (event->count > EVENTS_JOIN_MAX) {
                (void)kvr_events_removed(stream->events->options.router, stream->id, event->hashes,
                                         event->count, event->tier, &stream->own.account);
                return;
        }
        stream->gone_tier = event->tier;
        if (event->count)
                memcpy(stream->gone + stream->gone_count, event->hashes, event->count * sizeof *stream->gone);
        stream->gone_count += event->count;
}

/* After a gap the engine may well hold what it held: what was sent there is still a guess. */
static void tell_clear(struct stream *stream, const struct engine_stream_todo *todo)
{
        struct kvr_router *router = stream->events->options.router;

        tell_gone(stream);
        if (todo->emptied)
                (void)kvr_events_cleared(router, stream->id, &stream->own.account);
        else
                (void)kvr_events_lost(router, stream->id, &stream->own.account);
}

static void take_event(void *ctx, const struct engine_event *event)
{
        struct stream *stream = ctx;
        struct kvr_router *router = stream->events->options.router;
        struct events_view *own = &stream->own;

        switch (event->kind) {
        case ENGINE_EVENT_STORED:
                own->stored++;
                own->block_tokens = event->stored.block_tokens;
                tell_gone(stream); /* what was removed may be stored again */
                (void)kvr_events_stored(router, stream->id, &event->stored, &own->account);
                break;
        case ENGINE_EVENT_REMOVED:
                own->removed++;
                take_removed(stream, event);
                break;
        case ENGINE_EVENT_CLEARED:
                own->cleared++;
                tell_gone(stream);
                (void)kvr_events_cleared(router, stream->id, &own->account);
                break;
        case ENGINE_EVENT_IGNORED:
        case ENGINE_EVENT_BAD:
                own->why[event->why]++;
                break;
        }
}

static void apply_batch(struct stream *stream, struct kvr_slice payload, uint64_t now_ns)
{
        struct engine_event_batch batch;
        const char *why = "";
        bool whole = engine_events_decode(stream->events->decoder, &stream->decoder_view, payload, &batch,
                                          take_event, stream, &why);

        tell_gone(stream);
        if (whole) {
                stream->own.age_s = (double)log_unix_time_ms(NULL) / 1000 - batch.at_s;
                bool foreign = stream->own.source.rank >= 0 && batch.rank >= 0 &&
                               batch.rank != stream->own.source.rank;

                stream->own.foreign_rank = foreign ? batch.rank : -1;
                /* Ranks of several machines may be numbered through: that is no reason not to believe them. */
                if (foreign && stream->own.foreign++ == 0)
                        log_say(stream->events->options.log, LOG_WARN, NULL,
                                "replica %s: its events are those of rank %d, not %d", stream->name,
                                (int)batch.rank, (int)stream->own.source.rank);
                return;
        }
        stream->own.unreadable++;
        log_say(stream->events->options.log, LOG_WARN, stream->name,
                "replica %s: a batch of events cannot be read: %s", stream->name, why);
        struct engine_stream_todo todo = engine_stream_unreadable(&stream->machine, now_ns);
        stream_obey(stream, &todo, 0, (struct kvr_slice){0}, now_ns);
}

/* ---- batches held back ---- */

static void drop_held(struct stream *stream)
{
        while (stream->held) {
                struct held_batch *batch = stream->held;

                stream->held = batch->next;
                free(batch);
        }
        stream->held_end = &stream->held;
        stream->held_bytes = stream->held_count = 0;
}

static void hold(struct stream *stream, uint64_t seq, struct kvr_slice payload)
{
        struct held_batch *batch = NULL;

        /* What is dropped here shows as a gap later, which asks for a replay. */
        if (stream->held_count < EVENTS_HELD_MAX && payload.len <= EVENTS_HELD_BYTES - stream->held_bytes)
                batch = malloc(sizeof *batch + payload.len);
        if (!batch) {
                stream->own.held_dropped++;
                return;
        }
        batch->seq = seq;
        batch->len = payload.len;
        batch->next = NULL;
        if (payload.len)
                memcpy(batch->bytes, payload.data, payload.len);
        *stream->held_end = batch;
        stream->held_end = &batch->next;
        stream->held_bytes += payload.len;
        stream->held_count++;
}

static uint64_t print_of(struct kvr_slice payload)
{
        return XXH3_64bits(payload.data, payload.len);
}

/* Each may lead to another replay; then the rest is held again, in order. */
static void tell_held(struct stream *stream, uint64_t now_ns)
{
        struct held_batch *batch = stream->held;

        stream->held = NULL;
        stream->held_end = &stream->held;
        stream->held_bytes = stream->held_count = 0;
        while (batch) {
                struct held_batch *next = batch->next;
                struct kvr_slice payload = {batch->bytes, batch->len};
                struct engine_stream_todo todo =
                        engine_stream_held(&stream->machine, batch->seq, print_of(payload), now_ns);

                stream_obey(stream, &todo, batch->seq, payload, now_ns);
                free(batch);
                batch = next;
        }
}

/* ---- obeying ---- */

void stream_obey(struct stream *stream, const struct engine_stream_todo *todo, uint64_t seq,
                 struct kvr_slice payload, uint64_t now_ns)
{
        stream->dirty = true;
        if (todo->log)
                say(stream, LOG_WARN, todo->log);
        if (todo->drop_held)
                drop_held(stream);
        if (todo->clear)
                tell_clear(stream, todo);
        if (todo->apply)
                apply_batch(stream, payload, now_ns);
        if (todo->hold)
                hold(stream, seq, payload);
        if (todo->replay)
                stream_ask_replay(stream, todo->from);
        if (todo->end_replay) {
                stream_close_replay(stream);
                tell_held(stream, now_ns);
        }
        tell_trust(stream);
}

void stream_live(struct stream *stream, uint64_t seq, struct kvr_slice payload, uint64_t now_ns)
{
        struct engine_stream_todo todo =
                engine_stream_batch(&stream->machine, seq, print_of(payload), now_ns);

        stream->own.connected = true;
        stream_obey(stream, &todo, seq, payload, now_ns);
}

void stream_replayed(struct stream *stream, uint64_t seq, struct kvr_slice payload, uint64_t now_ns)
{
        struct engine_stream_todo todo =
                engine_stream_replayed(&stream->machine, seq, print_of(payload), now_ns);

        stream_obey(stream, &todo, seq, payload, now_ns);
}

/* ---- polled lists: each event is a batch of its own ---- */

struct polling {
        struct stream *stream;
        uint64_t now_ns;
};

static void take_numbered(void *ctx, const struct engine_event *event)
{
        struct polling *polling = ctx;
        struct stream *stream = polling->stream;
        struct engine_stream_todo todo;

        if (event->number < 0) {
                take_event(stream, event);
                return;
        }
        /* Large ones come in parts, of one number. */
        if (stream->machine.known && (uint64_t)event->number + 1 == stream->machine.next &&
            event->kind != ENGINE_EVENT_IGNORED && stream->machine.state != ENGINE_STREAM_OFF) {
                take_event(stream, event);
                return;
        }
        /* What was drained does not come again: a number seen before is another process's. */
        todo = engine_stream_batch(&stream->machine, (uint64_t)event->number, polling->now_ns,
                                   polling->now_ns);
        if (todo.apply) {
                if (todo.clear)
                        tell_clear(stream, &todo);
                take_event(stream, event);
                todo.clear = todo.apply = false;
        }
        stream_obey(stream, &todo, 0, (struct kvr_slice){0}, polling->now_ns);
}

void stream_polled(struct stream *stream, struct kvr_slice body, uint64_t now_ns)
{
        struct polling polling = {stream, now_ns};
        const char *why = "";

        stream->own.connected = true;
        if (engine_events_decode_json(stream->events->decoder, &stream->decoder_view, body, take_numbered,
                                      &polling, &why))
                stream->own.error[0] = '\0';
        else
                stream_fail(stream, "/kv_cache_events", why);
        tell_gone(stream);
        stream->dirty = true;
        tell_trust(stream);
}

/* ---- life ---- */

void stream_begin(struct stream *stream, uint64_t now_ns)
{
        struct engine_stream_options options = {.has_replay = stream->own.source.replay[0] != '\0' &&
                                                              stream->own.source.mode != EVENTS_POLL,
                                                .relearn_ns = stream->events->options.relearn_ns,
                                                .check_ns = ENGINE_STREAM_CHECK_NS};
        enum kvr_status status = kvr_events_trust(stream->events->options.router, stream->id, false);

        drop_held(stream);
        engine_stream_init(&stream->machine, &options);
        engine_event_view_init(&stream->decoder_view);
        stream->own.followed_ns = now_ns;
        stream->own.age_s = NAN;
        stream->own.foreign_rank = -1;
        stream->told_trusted = false;
        if (status != KVR_OK) {
                stream_fail(stream, "no place in the index for its events", kvr_status_text(status));
                return;
        }
        stream->placed = true;
        stream->opened_ns = now_ns;
        if (stream->own.source.mode == EVENTS_POLL)
                (void)engine_stream_opened(&stream->machine, now_ns);
        else if (!stream_open_sockets(stream))
                stream_close_sockets(stream);
}

void stream_end(struct stream *stream)
{
        stream_close_sockets(stream);
        drop_held(stream);
        kvr_events_stop(stream->events->options.router, stream->id);
}

/*
 * libzmq connects again by itself, but not after a peer has broken the protocol (another server on the port for a
 * while, a message beyond the limit).
 */
static void reopen(struct stream *stream, uint64_t now_ns)
{
        if (stream->own.source.mode != EVENTS_CONNECT || stream->machine.state != ENGINE_STREAM_OFF ||
            !stream->placed || now_ns - stream->machine.since_ns < EVENTS_REOPEN_NS ||
            now_ns - stream->opened_ns < EVENTS_REOPEN_NS)
                return;
        stream->opened_ns = now_ns;
        stream_close_sockets(stream);
        if (!stream_open_sockets(stream))
                stream_close_sockets(stream);
}

void stream_tick(struct stream *stream, uint64_t now_ns)
{
        reopen(stream, now_ns);

        struct engine_stream_todo todo = engine_stream_tick(&stream->machine, now_ns);
        bool idle = !todo.log && !todo.clear && !todo.replay && !todo.end_replay &&
                    stream->machine.trusted == stream->told_trusted;

        if (!idle)
                stream_obey(stream, &todo, 0, (struct kvr_slice){0}, now_ns);
}
