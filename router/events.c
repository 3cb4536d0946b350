/* SPDX-License-Identifier: Apache-2.0 */
#include "events.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "events_int.h"

#define ZMQ_SOCKETS_MAX 65535

/* ---- calls from other threads ---- */

static void wake(struct events *events)
{
        uint64_t one = 1;

        (void)!write(events->wake, &one, sizeof one);
}

static bool tell(struct events *events, enum events_what what, kvr_replica_id id, const char *name,
                 const struct events_source *source, struct kvr_slice bytes)
{
        struct events_command *command = malloc(sizeof *command + bytes.len);
        bool room;

        if (!command)
                return false;
        command->what = what;
        command->id = id;
        command->next = NULL;
        command->len = bytes.len;
        snprintf(command->name, sizeof command->name, "%s", name ? name : "");
        command->source = source ? *source : (struct events_source){.mode = EVENTS_OFF};
        if (bytes.len)
                memcpy(command->bytes, bytes.data, bytes.len);
        pthread_mutex_lock(&events->lock);
        room = what != EVENTS_POLLED || events->polled < EVENTS_POLLED_MAX;
        if (room) {
                events->polled += what == EVENTS_POLLED;
                *events->commands_end = command;
                events->commands_end = &command->next;
        }
        pthread_mutex_unlock(&events->lock);
        if (room)
                wake(events);
        else
                free(command);
        return room;
}

bool events_follow(struct events *events, kvr_replica_id id, const char *name,
                   const struct events_source *source)
{
        return tell(events, EVENTS_FOLLOW, id, name, source, (struct kvr_slice){0});
}

void events_drop(struct events *events, kvr_replica_id id)
{
        (void)tell(events, EVENTS_DROP, id, NULL, NULL, (struct kvr_slice){0});
}

void events_restarted(struct events *events, kvr_replica_id id)
{
        (void)tell(events, EVENTS_RESTARTED, id, NULL, NULL, (struct kvr_slice){0});
}

void events_cleared(struct events *events, kvr_replica_id id)
{
        (void)tell(events, EVENTS_CLEARED, id, NULL, NULL, (struct kvr_slice){0});
}

void events_polled(struct events *events, kvr_replica_id id, struct kvr_slice body)
{
        (void)tell(events, EVENTS_POLLED, id, NULL, NULL, body);
}

static struct stream *stream_of(struct events *events, kvr_replica_id id)
{
        struct stream *stream = events->streams;

        while (stream && stream->id != id)
                stream = stream->next;
        return stream;
}

bool events_view(struct events *events, kvr_replica_id id, struct events_view *ret)
{
        const struct stream *stream;

        pthread_mutex_lock(&events->lock);
        stream = stream_of(events, id);
        if (stream)
                *ret = stream->shown;
        pthread_mutex_unlock(&events->lock);
        return stream != NULL;
}

/* ---- what they want, done ---- */

static void show(struct stream *stream)
{
        const struct engine_stream *machine = &stream->machine;

        stream->own.state = machine->state;
        stream->own.trusted = machine->trusted;
        stream->own.deaf = machine->deaf;
        stream->own.next = machine->next;
        stream->own.heard_ns = machine->heard_ns;
        stream->own.counters = machine->counters;
        pthread_mutex_lock(&stream->events->lock);
        stream->shown = stream->own;
        pthread_mutex_unlock(&stream->events->lock);
        stream->dirty = false;
}

static void stream_remove(struct events *events, struct stream *stream)
{
        struct stream **at = &events->streams;

        while (*at != stream)
                at = &(*at)->next;
        pthread_mutex_lock(&events->lock);
        *at = stream->next;
        pthread_mutex_unlock(&events->lock);
        events->stream_count--;
        stream_end(stream);
        free(stream);
}

static void follow(struct events *events, const struct events_command *command, uint64_t now_ns)
{
        struct stream *stream = stream_of(events, command->id);

        if (stream)
                stream_remove(events, stream);
        stream = calloc(1, sizeof *stream);
        if (!stream)
                return;
        stream->events = events;
        stream->id = command->id;
        stream->own.source = command->source;
        memcpy(stream->name, command->name, sizeof stream->name);
        stream_begin(stream, now_ns);
        pthread_mutex_lock(&events->lock);
        stream->next = events->streams;
        events->streams = stream;
        pthread_mutex_unlock(&events->lock);
        events->stream_count++;
        show(stream);
}

static void do_command(struct events *events, const struct events_command *command, uint64_t now_ns)
{
        struct stream *stream = stream_of(events, command->id);
        struct engine_stream_todo todo;

        if (command->what == EVENTS_FOLLOW) {
                follow(events, command, now_ns);
                return;
        }
        if (!stream)
                return;
        switch (command->what) {
        case EVENTS_DROP:
                stream_remove(events, stream);
                return;
        case EVENTS_POLLED:
                stream_polled(stream, (struct kvr_slice){command->bytes, command->len}, now_ns);
                return;
        case EVENTS_RESTARTED:
                todo = engine_stream_restarted(&stream->machine, now_ns);
                break;
        default:
                /* Whoever says so has had the library forget it already (kvr_replica_forget): doing it again would
                 * take what was stored since. */
                todo = engine_stream_cleared(&stream->machine);
                todo.clear = false;
                break;
        }
        stream_obey(stream, &todo, 0, (struct kvr_slice){0}, now_ns);
}

/* False: it is to end. */
static bool do_commands(struct events *events)
{
        struct events_command *command;
        bool stopping;
        uint64_t unused;

        (void)!read(events->wake, &unused, sizeof unused);
        pthread_mutex_lock(&events->lock);
        command = events->commands;
        events->commands = NULL;
        events->commands_end = &events->commands;
        events->polled = 0;
        stopping = events->stopping;
        pthread_mutex_unlock(&events->lock);
        while (command) {
                struct events_command *next = command->next;

                if (!stopping)
                        do_command(events, command, log_now_ns(NULL));
                free(command);
                command = next;
        }
        return !stopping;
}

/* ---- waiting ---- */

static bool room_for_items(struct events *events)
{
        size_t want = 1 + 3 * (size_t)events->stream_count;
        zmq_pollitem_t *items;
        struct stream **owners;

        if (want <= events->item_cap)
                return true;
        want *= 2;
        items = realloc(events->items, want * sizeof *items);
        if (!items)
                return false;
        events->items = items;
        owners = realloc(events->owners, want * sizeof(*owners));
        if (!owners)
                return false;
        events->owners = owners;
        events->item_cap = want;
        return true;
}

static void add_item(struct events *events, size_t *count, struct stream *stream, void *socket)
{
        if (!socket)
                return;
        events->items[*count] = (zmq_pollitem_t){.socket = socket, .events = ZMQ_POLLIN};
        events->owners[(*count)++] = stream;
}

/* Everything of one stream that has something. */
static bool read_stream(struct stream *stream, uint64_t now_ns)
{
        bool more = stream_read_monitor(stream, now_ns);

        more |= stream_read_dealer(stream, now_ns);
        more |= stream_read_sub(stream, now_ns);
        return more;
}

static bool turn(struct events *events, bool more)
{
        size_t count = 0;
        bool again = false;
        struct stream *last = NULL;

        if (!room_for_items(events)) {
                struct timespec pause = {.tv_nsec = EVENTS_TICK_MS * 1000000L};

                (void)nanosleep(&pause, NULL);
                return false;
        }
        events->items[count] = (zmq_pollitem_t){.fd = events->wake, .events = ZMQ_POLLIN};
        events->owners[count++] = NULL;
        for (struct stream *stream = events->streams; stream; stream = stream->next) {
                add_item(events, &count, stream, stream->monitor);
                add_item(events, &count, stream, stream->dealer);
                add_item(events, &count, stream, stream->sub);
        }
        (void)zmq_poll(events->items, (int)count, more ? 0 : events->streams ? EVENTS_TICK_MS : -1);
        for (size_t i = 1; i < count; i++) {
                struct stream *stream = events->owners[i];

                if (!(events->items[i].revents & ZMQ_POLLIN) || stream == last)
                        continue;
                again |= read_stream(stream, log_now_ns(NULL));
                last = stream;
        }
        return again;
}

static void *run(void *ctx)
{
        struct events *events = ctx;
        uint64_t tick_ns = 0;
        bool more = false;

        while (do_commands(events)) {
                uint64_t now_ns;

                more = turn(events, more);
                now_ns = log_now_ns(NULL);
                for (struct stream *stream = events->streams; stream; stream = stream->next) {
                        if (now_ns - tick_ns >= EVENTS_TICK_MS * 1000000ULL)
                                stream_tick(stream, now_ns);
                        if (stream->dirty)
                                show(stream);
                }
                if (now_ns - tick_ns >= EVENTS_TICK_MS * 1000000ULL)
                        tick_ns = now_ns;
        }
        while (events->streams)
                stream_remove(events, events->streams);
        return NULL;
}

/* ---- life ---- */

static void destroy(struct events *events)
{
        if (events->zmq)
                (void)zmq_ctx_term(events->zmq);
        if (events->wake >= 0)
                close(events->wake);
        engine_event_decoder_free(events->decoder);
        pthread_mutex_destroy(&events->lock);
        free(events->items);
        free(events->owners);
        free(events);
}

struct events *events_new(const struct events_options *options)
{
        struct events *events = calloc(1, sizeof *events);

        if (!events)
                return NULL;
        events->options = *options;
        events->commands_end = &events->commands;
        (void)pthread_mutex_init(&events->lock, NULL);
        events->decoder = engine_event_decoder_new();
        events->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        events->zmq = zmq_ctx_new();
        if (events->zmq) {
                (void)zmq_ctx_set(events->zmq, ZMQ_MAX_SOCKETS, ZMQ_SOCKETS_MAX);
                (void)zmq_ctx_set(events->zmq, ZMQ_BLOCKY, 0);
        }
        if (!events->decoder || events->wake < 0 || !events->zmq ||
            pthread_create(&events->thread, NULL, run, events) != 0) {
                destroy(events);
                return NULL;
        }
        return events;
}

void events_free(struct events *events)
{
        struct events_command *command;

        if (!events)
                return;
        pthread_mutex_lock(&events->lock);
        events->stopping = true;
        pthread_mutex_unlock(&events->lock);
        wake(events);
        (void)pthread_join(events->thread, NULL);
        while ((command = events->commands)) {
                events->commands = command->next;
                free(command);
        }
        destroy(events);
}
