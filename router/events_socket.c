/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets of a stream: subscription, news of its connection, replay. */
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "events_int.h"

#define FRAMES_MAX     4
#define RECONNECT_MS   100
#define RECONNECT_MAX  3000
#define HEARTBEAT_MS   5000 /* a peer that vanished without a word is noticed */
#define HEARTBEAT_LOST 20000
#define MONITOR_EVENTS (ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_MONITOR_STOPPED)

static void set_int(void *socket, int option, int value)
{
        (void)zmq_setsockopt(socket, option, &value, sizeof value);
}

static void *new_socket(struct stream *stream, int type)
{
        void *socket = zmq_socket(stream->events->zmq, type);
        int64_t most = ENGINE_EVENT_BATCH_MAX;

        if (!socket)
                return NULL;
        set_int(socket, ZMQ_LINGER, 0);
        set_int(socket, ZMQ_IPV6, 1);
        set_int(socket, ZMQ_RCVHWM, EVENTS_WAITING_MAX);
        set_int(socket, ZMQ_RECONNECT_IVL, RECONNECT_MS);
        set_int(socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX);
        set_int(socket, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS);
        set_int(socket, ZMQ_HEARTBEAT_TIMEOUT, HEARTBEAT_LOST);
        (void)zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
        return socket;
}

static bool watch_connection(struct stream *stream)
{
        char name[64];

        snprintf(name, sizeof name, "inproc://events-%u", stream->events->monitors++);
        if (zmq_socket_monitor(stream->sub, name, MONITOR_EVENTS) != 0)
                return false;
        stream->monitor = zmq_socket(stream->events->zmq, ZMQ_PAIR);
        if (!stream->monitor)
                return false;
        set_int(stream->monitor, ZMQ_LINGER, 0);
        return zmq_connect(stream->monitor, name) == 0;
}

bool stream_open_sockets(struct stream *stream)
{
        const struct events_source *source = &stream->own.source;

        stream->sub = new_socket(stream, ZMQ_SUB);
        if (!stream->sub || !watch_connection(stream) ||
            zmq_setsockopt(stream->sub, ZMQ_SUBSCRIBE, source->topic, strlen(source->topic)) != 0) {
                stream_fail(stream, "no socket for events", zmq_strerror(zmq_errno()));
                return false;
        }
        if ((source->mode == EVENTS_BIND ? zmq_bind : zmq_connect)(stream->sub, source->events) != 0) {
                stream_fail(stream, source->events, zmq_strerror(zmq_errno()));
                return false;
        }
        return true;
}

static void close_socket(void **socket)
{
        if (*socket)
                (void)zmq_close(*socket);
        *socket = NULL;
}

void stream_close_replay(struct stream *stream)
{
        close_socket(&stream->dealer);
}

void stream_close_sockets(struct stream *stream)
{
        if (stream->sub)
                (void)zmq_socket_monitor(stream->sub, NULL, 0);
        close_socket(&stream->monitor);
        close_socket(&stream->sub);
        stream_close_replay(stream);
}

void stream_ask_replay(struct stream *stream, uint64_t from)
{
        uint8_t number[8];

        stream_close_replay(stream);
        stream->dealer = new_socket(stream, ZMQ_DEALER);
        for (unsigned i = 0; i < 8; i++)
                number[i] = (uint8_t)(from >> (56 - 8 * i));
        /* With an empty frame in front, as a REQ socket would: without it engines do not answer. */
        if (!stream->dealer || zmq_connect(stream->dealer, stream->own.source.replay) != 0 ||
            zmq_send(stream->dealer, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
            zmq_send(stream->dealer, number, sizeof number, ZMQ_DONTWAIT) < 0)
                stream_fail(stream, stream->own.source.replay, zmq_strerror(zmq_errno()));
}

/* ---- what comes ---- */

struct message {
        zmq_msg_t frames[FRAMES_MAX];
        unsigned count; /* of all frames; those beyond FRAMES_MAX are passed over */
};

static void message_close(struct message *message)
{
        for (unsigned i = 0; i < message->count && i < FRAMES_MAX; i++)
                (void)zmq_msg_close(&message->frames[i]);
}

/* All parts of one message are there, or none. False: none. */
static bool message_read(void *socket, struct message *message)
{
        zmq_msg_t frame;
        bool more = true;

        message->count = 0;
        while (more) {
                (void)zmq_msg_init(&frame);
                if (zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT) < 0) {
                        (void)zmq_msg_close(&frame);
                        message_close(message);
                        return false;
                }
                more = zmq_msg_more(&frame);
                if (message->count < FRAMES_MAX) {
                        (void)zmq_msg_init(&message->frames[message->count]);
                        (void)zmq_msg_move(&message->frames[message->count], &frame);
                }
                message->count++;
                (void)zmq_msg_close(&frame);
        }
        return true;
}

static struct kvr_slice frame_of(struct message *message, unsigned number)
{
        zmq_msg_t *frame = &message->frames[number];

        return (struct kvr_slice){zmq_msg_data(frame), zmq_msg_size(frame)};
}

static bool number_of(struct kvr_slice frame, uint64_t *ret)
{
        uint64_t value = 0;

        if (frame.len != 8)
                return false;
        for (size_t i = 0; i < 8; i++)
                value = value << 8 | (uint8_t)frame.data[i];
        *ret = value;
        return true;
}

bool stream_read_sub(struct stream *stream, uint64_t now_ns)
{
        struct message message;
        uint64_t seq;

        for (unsigned i = 0; i < EVENTS_BURST; i++) {
                if (!stream->sub || !message_read(stream->sub, &message))
                        return false;
                /* Topic, number, payload. The last number is the replay's end marker. */
                if (message.count == 3 && number_of(frame_of(&message, 1), &seq) && seq < UINT64_MAX)
                        stream_live(stream, seq, frame_of(&message, 2), now_ns);
                else
                        stream->own.malformed++;
                stream->dirty = true;
                message_close(&message);
        }
        return true;
}

/* Behind the empty frame: number and payload, or topic, number and payload. Numbers of only ones end it. */
static void read_reply(struct stream *stream, struct message *message, uint64_t now_ns)
{
        unsigned at = message->count == 3 ? 1 : 2;
        struct engine_stream_todo todo;
        uint64_t seq;

        if ((message->count != 3 && message->count != 4) || frame_of(message, 0).len > 0 ||
            !number_of(frame_of(message, at), &seq)) {
                stream->own.malformed++;
        } else if (seq == UINT64_MAX) {
                todo = engine_stream_replay_end(&stream->machine, true, now_ns);
                stream_obey(stream, &todo, 0, (struct kvr_slice){0}, now_ns);
        } else {
                stream_replayed(stream, seq, frame_of(message, at + 1), now_ns);
        }
}

bool stream_read_dealer(struct stream *stream, uint64_t now_ns)
{
        struct message message;

        for (unsigned i = 0; i < EVENTS_BURST; i++) {
                /* What it leads to may have closed it. */
                if (!stream->dealer || !message_read(stream->dealer, &message))
                        return false;
                read_reply(stream, &message, now_ns);
                stream->dirty = true;
                message_close(&message);
        }
        return true;
}

bool stream_read_monitor(struct stream *stream, uint64_t now_ns)
{
        struct message message;

        for (unsigned i = 0; i < EVENTS_BURST; i++) {
                struct engine_stream_todo todo;
                uint16_t event = 0;

                if (!stream->monitor || !message_read(stream->monitor, &message))
                        return false;
                if (frame_of(&message, 0).len >= sizeof event)
                        memcpy(&event, frame_of(&message, 0).data, sizeof event);
                message_close(&message);
                stream->dirty = true;
                if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
                        todo = engine_stream_opened(&stream->machine, now_ns);
                else if (event == ZMQ_EVENT_DISCONNECTED)
                        todo = engine_stream_lost(&stream->machine, now_ns);
                else
                        continue;
                stream->own.connected = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
                if (stream->own.connected)
                        stream->own.error[0] = '\0';
                stream_obey(stream, &todo, 0, (struct kvr_slice){0}, now_ns);
        }
        return true;
}
