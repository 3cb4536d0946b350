/* SPDX-License-Identifier: Apache-2.0 */
#include "mock_events.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <yyjson.h>
#include <zmq.h>

#define ENDPOINT_MAX 256
#define NAME_MAX_    64
#define SERVE_MS     5 /* how often replay requests are looked for */
#define SENT_MAX     (64 * 1024 * 1024)

/* A block that was submitted: what its key stands for. */
struct known_block {
        uint64_t key;
        char adapter[NAME_MAX_], salt[NAME_MAX_];
        uint32_t next; /* in the bucket, 1 + index; 0: none */
};

struct kept_batch {
        uint64_t seq;
        char *bytes;
        size_t len;
};

struct waiting_change {
        struct sim_change change;
        bool clear;
};

struct mock_events {
        struct mock_events_options options;
        char endpoint[ENDPOINT_MAX], replay[ENDPOINT_MAX], topic[ENDPOINT_MAX]; /* as they are */
        uint32_t block_tokens;
        void *zmq, *pub, *router;
        bool bound; /* the publisher is; else it connects */
        uv_timer_t timer;
        uint64_t down_until_ms; /* 0: up */
        /* blocks known, oldest overwritten */
        struct known_block *blocks;
        uint32_t *tokens, *buckets;
        uint32_t block_cap, block_next, bucket_mask;
        /* not sent yet */
        struct waiting_change *waiting;
        size_t waiting_count, waiting_cap;
        /* sent */
        struct kept_batch *kept; /* ring by number */
        uint64_t seq, oldest;
        uint64_t published, replays, dropped;
        /* what goes wrong */
        uint32_t rank;    /* that batches say they are of */
        uint32_t drop;    /* batches that get a number and are not sent */
        uint32_t repeat;  /* batches sent twice */
        bool stopped;     /* nothing is published */
        bool replay_mute; /* replay requests are not answered */
        bool replay_old;  /* replies without the topic frame */
        struct text out;
};

/* ---- sockets ---- */

static bool is_bound(const char *endpoint)
{
        return strchr(endpoint, '*') || strstr(endpoint, "::") || strncmp(endpoint, "ipc://", 6) == 0;
}

/* The port number raised, where there is one. */
static bool raise_port(const char *endpoint, uint32_t plus, char ret[ENDPOINT_MAX])
{
        const char *colon = strrchr(endpoint, ':');
        char *end;
        unsigned long port;

        if (strlen(endpoint) >= ENDPOINT_MAX - 8)
                return false;
        snprintf(ret, ENDPOINT_MAX, "%s", endpoint);
        if (!colon || plus == 0 || colon[1] < '0' || colon[1] > '9')
                return true;
        port = strtoul(colon + 1, &end, 10) + plus;
        if (*end || port > 65535)
                return false;
        snprintf(ret + (colon - endpoint), ENDPOINT_MAX - (size_t)(colon - endpoint), ":%lu", port);
        return true;
}

static void *open_socket(struct mock_events *events, int type, char endpoint[ENDPOINT_MAX])
{
        void *socket = zmq_socket(events->zmq, type);
        int linger = 0, most = 100000;
        size_t len = ENDPOINT_MAX;

        if (!socket)
                return NULL;
        (void)zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
        (void)zmq_setsockopt(socket, ZMQ_SNDHWM, &most, sizeof most);
        if ((type == ZMQ_ROUTER || events->bound ? zmq_bind : zmq_connect)(socket, endpoint) != 0) {
                (void)zmq_close(socket);
                return NULL;
        }
        /* A port that the system chose stays the same after a restart. */
        (void)zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &len);
        return socket;
}

static bool open_sockets(struct mock_events *events)
{
        if (!events->pub)
                events->pub = open_socket(events, ZMQ_PUB, events->endpoint);
        if (events->pub && events->replay[0] && !events->router)
                events->router = open_socket(events, ZMQ_ROUTER, events->replay);
        return events->pub && (events->router || !events->replay[0]);
}

static void close_sockets(struct mock_events *events)
{
        if (events->pub)
                (void)zmq_close(events->pub);
        if (events->router)
                (void)zmq_close(events->router);
        events->pub = events->router = NULL;
}

/* ---- sending ---- */

static void number_bytes(uint64_t number, uint8_t ret[8])
{
        for (unsigned i = 0; i < 8; i++)
                ret[i] = (uint8_t)(number >> (56 - 8 * i));
}

static void send_frames(struct mock_events *events, uint64_t seq, const void *payload, size_t len)
{
        uint8_t number[8];

        if (!events->pub)
                return;
        number_bytes(seq, number);
        (void)zmq_send(events->pub, events->topic, strlen(events->topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
        (void)zmq_send(events->pub, number, sizeof number, ZMQ_SNDMORE | ZMQ_DONTWAIT);
        (void)zmq_send(events->pub, payload, len, ZMQ_DONTWAIT);
}

static void keep(struct mock_events *events)
{
        struct kept_batch *kept = &events->kept[events->seq % events->options.buffer];
        char *bytes = malloc(events->out.len ? events->out.len : 1);

        if (!bytes)
                return;
        free(kept->bytes);
        memcpy(bytes, events->out.data, events->out.len);
        *kept = (struct kept_batch){events->seq, bytes, events->out.len};
        if (events->seq - events->oldest >= events->options.buffer)
                events->oldest = events->seq - events->options.buffer + 1;
}

static void forget_kept(struct mock_events *events)
{
        for (uint32_t i = 0; i < events->options.buffer; i++) {
                free(events->kept[i].bytes);
                events->kept[i] = (struct kept_batch){0};
        }
}

/* What is in `out` is the next batch. */
static void send_batch(struct mock_events *events)
{
        if (events->out.failed || events->stopped)
                return;
        keep(events);
        if (events->drop) {
                events->drop--;
                events->dropped++;
        } else {
                send_frames(events, events->seq, events->out.data, events->out.len);
                if (events->repeat) {
                        events->repeat--;
                        send_frames(events, events->seq, events->out.data, events->out.len);
                }
        }
        events->seq++;
        events->published++;
}

static double unix_time(void)
{
        struct timespec now;

        (void)clock_gettime(CLOCK_REALTIME, &now);
        return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- replay ---- */

static void reply(struct mock_events *events, zmq_msg_t *identity, uint64_t seq, const void *payload,
                  size_t len, const char *topic)
{
        uint8_t number[8];
        zmq_msg_t copy;

        number_bytes(seq, number);
        (void)zmq_msg_init(&copy);
        (void)zmq_msg_copy(&copy, identity);
        if (zmq_msg_send(&copy, events->router, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
                (void)zmq_msg_close(&copy);
                return;
        }
        (void)zmq_send(events->router, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
        if (!events->replay_old)
                (void)zmq_send(events->router, topic, strlen(topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
        (void)zmq_send(events->router, number, sizeof number, ZMQ_SNDMORE | ZMQ_DONTWAIT);
        (void)zmq_send(events->router, payload, len, ZMQ_DONTWAIT);
}

static void replay(struct mock_events *events, zmq_msg_t *identity, uint64_t from)
{
        events->replays++;
        if (events->replay_mute)
                return;
        for (uint64_t seq = from > events->oldest ? from : events->oldest; seq < events->seq; seq++) {
                const struct kept_batch *kept = &events->kept[seq % events->options.buffer];

                if (kept->bytes && kept->seq == seq)
                        reply(events, identity, seq, kept->bytes, kept->len, events->topic);
        }
        reply(events, identity, UINT64_MAX, "", 0, "");
}

/* One request: the asker, an empty frame, a number of 8 bytes. False: there is none. */
static bool serve_one(struct mock_events *events)
{
        zmq_msg_t frames[3], frame;
        unsigned count = 0;
        bool more = true;
        uint64_t from = 0;

        while (more) {
                (void)zmq_msg_init(&frame);
                if (zmq_msg_recv(&frame, events->router, ZMQ_DONTWAIT) < 0) {
                        (void)zmq_msg_close(&frame);
                        break;
                }
                more = zmq_msg_more(&frame);
                if (count < 3) {
                        (void)zmq_msg_init(&frames[count]);
                        (void)zmq_msg_move(&frames[count], &frame);
                }
                count++;
                (void)zmq_msg_close(&frame);
        }
        if (count == 3 && zmq_msg_size(&frames[1]) == 0 && zmq_msg_size(&frames[2]) == 8) {
                const uint8_t *number = zmq_msg_data(&frames[2]);

                for (unsigned i = 0; i < 8; i++)
                        from = from << 8 | number[i];
                replay(events, &frames[0], from);
        }
        for (unsigned i = 0; i < count && i < 3; i++)
                (void)zmq_msg_close(&frames[i]);
        return count > 0;
}

static void on_timer(uv_timer_t *timer)
{
        struct mock_events *events = timer->data;

        if (events->down_until_ms && uv_now(timer->loop) < events->down_until_ms)
                return;
        /* The old socket's port may be taken for a moment still. */
        if (events->down_until_ms && !open_sockets(events))
                return;
        events->down_until_ms = 0;
        while (events->router && serve_one(events)) {
        }
}

/* ---- blocks ---- */

void mock_events_learn(struct mock_events *events, const uint64_t *keys, uint32_t count, const uint32_t *ids,
                       struct kvr_slice adapter, struct kvr_slice salt)
{
        for (uint32_t i = 0; i < count; i++) {
                uint32_t *bucket =
                        &events->buckets[(uint32_t)(keys[i] ^ keys[i] >> 32) & events->bucket_mask];
                uint32_t at = *bucket, number = events->block_next;
                struct known_block *block;

                while (at && events->blocks[at - 1].key != keys[i])
                        at = events->blocks[at - 1].next;
                if (at)
                        continue;
                block = &events->blocks[number];
                if (block->key) {
                        uint32_t *link = &events->buckets[(uint32_t)(block->key ^ block->key >> 32) &
                                                          events->bucket_mask];

                        while (*link != number + 1)
                                link = &events->blocks[*link - 1].next;
                        *link = block->next;
                }
                block->key = keys[i];
                snprintf(block->adapter, sizeof block->adapter, "%.*s",
                         (int)(adapter.len < 63 ? adapter.len : 63), adapter.len ? adapter.data : "");
                snprintf(block->salt, sizeof block->salt, "%.*s", (int)(salt.len < 63 ? salt.len : 63),
                         salt.len ? salt.data : "");
                block->next = *bucket;
                *bucket = number + 1;
                memcpy(events->tokens + (size_t)number * events->block_tokens,
                       ids + (size_t)i * events->block_tokens, events->block_tokens * sizeof *ids);
                events->block_next = (number + 1) % events->block_cap;
        }
}

static const struct known_block *find_block(const struct mock_events *events, uint64_t key)
{
        uint32_t at = events->buckets[(uint32_t)(key ^ key >> 32) & events->bucket_mask];

        while (at && events->blocks[at - 1].key != key)
                at = events->blocks[at - 1].next;
        return at ? &events->blocks[at - 1] : NULL;
}

static void wait(struct mock_events *events, const struct waiting_change *change)
{
        if (events->waiting_count == events->waiting_cap) {
                size_t cap = events->waiting_cap ? events->waiting_cap * 2 : 256;
                struct waiting_change *grown = realloc(events->waiting, cap * sizeof(*grown));

                if (!grown)
                        return;
                events->waiting = grown;
                events->waiting_cap = cap;
        }
        events->waiting[events->waiting_count++] = *change;
}

void mock_events_take(struct mock_events *events, struct sim_engine *engine)
{
        const struct sim_change *changes;
        bool lost;
        uint32_t count = sim_engine_changes(engine, &changes, &lost);

        for (uint32_t i = 0; i < count; i++)
                wait(events, &(struct waiting_change){.change = changes[i]});
}

void mock_events_reset(struct mock_events *events)
{
        wait(events, &(struct waiting_change){.clear = true});
}

/* ---- batches ---- */

/* How many of the changes from `at` on make one event: stored blocks that follow one another. */
static size_t run_of(const struct mock_events *events, size_t at, size_t end)
{
        const struct waiting_change *waiting = events->waiting;
        size_t to = at + 1;

        if (waiting[at].clear || waiting[at].change.removed)
                return 1;
        while (to < end && !waiting[to].clear && !waiting[to].change.removed &&
               waiting[to].change.parent == waiting[to - 1].change.key &&
               find_block(events, waiting[to].change.key))
                to++;
        return to - at;
}

static void write_run(struct mock_events *events, size_t at, size_t count)
{
        const struct waiting_change *waiting = &events->waiting[at];
        const struct known_block *block = find_block(events, waiting->change.key);
        uint64_t *hashes = malloc(count * sizeof *hashes);
        uint32_t *tokens = malloc(count * events->block_tokens * sizeof *tokens);
        struct mock_event event = {
                .kind = waiting->clear            ? MOCK_EVENT_CLEARED
                        : waiting->change.removed ? MOCK_EVENT_REMOVED
                                                  : MOCK_EVENT_STORED,
                .hashes = hashes,
                .count = (uint32_t)count,
                .has_parent = waiting->change.parent != 0,
                .parent = waiting->change.parent,
                .tokens = tokens,
                .block_tokens = events->block_tokens,
        };

        if (hashes && tokens) {
                for (size_t i = 0; i < count; i++)
                        hashes[i] = waiting[i].change.key;
                for (size_t i = 0; event.kind == MOCK_EVENT_STORED && i < count; i++)
                        memcpy(tokens + i * events->block_tokens,
                               events->tokens + (size_t)(find_block(events, hashes[i]) - events->blocks) *
                                                        events->block_tokens,
                               events->block_tokens * sizeof *tokens);
                if (event.kind == MOCK_EVENT_STORED) {
                        event.adapter = sim_slice(block->adapter);
                        event.salt = sim_slice(block->salt);
                }
                mock_batch_event(&events->out, &events->options.format, &event);
        }
        free(hashes);
        free(tokens);
}

/* An event whose tokens were forgotten is left out. */
static bool is_told(const struct mock_events *events, size_t at)
{
        const struct waiting_change *waiting = &events->waiting[at];

        return waiting->clear || waiting->change.removed || find_block(events, waiting->change.key);
}

static void write_batch(struct mock_events *events, size_t end)
{
        uint32_t count = 0;

        for (size_t at = 0; at < end; at += run_of(events, at, end))
                count += is_told(events, at);
        if (count == 0)
                return;
        text_clear(&events->out);
        mock_batch_begin(&events->out, unix_time(), count);
        for (size_t at = 0, run; at < end; at += run) {
                run = run_of(events, at, end);
                if (is_told(events, at))
                        write_run(events, at, run);
        }
        mock_batch_end(&events->out, events->rank);
        send_batch(events);
}

void mock_events_publish(struct mock_events *events, uint64_t now_ns)
{
        for (;;) {
                size_t at = 0, end;
                uint64_t at_ns;

                /* A clear waits for what follows it. */
                while (at < events->waiting_count && events->waiting[at].clear)
                        at++;
                if (at == events->waiting_count || events->waiting[at].change.at_ns > now_ns)
                        return;
                at_ns = events->waiting[at].change.at_ns;
                for (end = at; end < events->waiting_count && !events->waiting[end].clear &&
                               events->waiting[end].change.at_ns == at_ns;)
                        end++;
                write_batch(events, end);
                memmove(events->waiting, events->waiting + end,
                        (events->waiting_count - end) * sizeof *events->waiting);
                events->waiting_count -= end;
        }
}

/* ---- restart and orders ---- */

void mock_events_restart(struct mock_events *events, uint32_t down_ms)
{
        close_sockets(events);
        forget_kept(events);
        events->waiting_count = 0;
        events->seq = events->oldest = 0;
        events->down_until_ms = uv_now(events->timer.loop) + (down_ms ? down_ms : 1);
}

static int digit_of(char c)
{
        return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool hex_bytes(const char *hex, size_t len, struct text *out)
{
        text_clear(out);
        for (size_t i = 0; i + 1 < len; i += 2) {
                int high = digit_of(hex[i]), low = digit_of(hex[i + 1]);
                char c = (char)(high * 16 + low);

                if (high < 0 || low < 0)
                        return false;
                text_add(out, &c, 1);
        }
        return len % 2 == 0 && !out->failed;
}

/* Bytes of anybody's making: as the next batch, as a message without number, or just many. */
static bool send_foreign(struct mock_events *events, yyjson_val *value)
{
        uint64_t bytes = yyjson_is_uint(value) ? yyjson_get_uint(value) : 0;

        if (yyjson_is_str(value)) {
                if (!hex_bytes(yyjson_get_str(value), yyjson_get_len(value), &events->out))
                        return false;
        } else {
                text_clear(&events->out);
                if (bytes == 0 || bytes > SENT_MAX || !text_room(&events->out, (size_t)bytes))
                        return false;
                memset(events->out.data, 0x91, (size_t)bytes);
                events->out.len = (size_t)bytes;
        }
        send_batch(events);
        return true;
}

static bool set_number(yyjson_val *value, uint32_t *into)
{
        if (!yyjson_is_uint(value) || yyjson_get_uint(value) > UINT32_MAX)
                return false;
        *into = (uint32_t)yyjson_get_uint(value);
        return true;
}

static bool set_flag(yyjson_val *value, bool *into)
{
        if (!yyjson_is_bool(value))
                return false;
        *into = yyjson_get_bool(value);
        return true;
}

static bool send_garbage(struct mock_events *events, yyjson_val *value)
{
        if (!yyjson_is_str(value) || !hex_bytes(yyjson_get_str(value), yyjson_get_len(value), &events->out) ||
            !events->pub)
                return false;
        (void)zmq_send(events->pub, events->out.data, events->out.len, ZMQ_DONTWAIT);
        return true;
}

static bool set_topic(struct mock_events *events, yyjson_val *value)
{
        if (!yyjson_is_str(value) || yyjson_get_len(value) >= sizeof events->topic)
                return false;
        snprintf(events->topic, sizeof events->topic, "%s", yyjson_get_str(value));
        return true;
}

/* Batches kept for replay become `count` at most. */
static bool forget_old(struct mock_events *events, yyjson_val *value)
{
        uint64_t count = yyjson_get_uint(value);

        if (!yyjson_is_uint(value))
                return false;
        if (events->seq - events->oldest > count)
                events->oldest = events->seq - count;
        return true;
}

static bool clear_now(struct mock_events *events)
{
        const struct mock_event event = {.kind = MOCK_EVENT_CLEARED};

        text_clear(&events->out);
        mock_batch_begin(&events->out, unix_time(), 1);
        mock_batch_event(&events->out, &events->options.format, &event);
        mock_batch_end(&events->out, events->rank);
        send_batch(events);
        return true;
}

static bool obey(struct mock_events *events, const char *key, yyjson_val *value)
{
        if (strcmp(key, "drop") == 0)
                return set_number(value, &events->drop);
        if (strcmp(key, "repeat") == 0)
                return set_number(value, &events->repeat);
        if (strcmp(key, "rank") == 0)
                return set_number(value, &events->rank);
        if (strcmp(key, "stop") == 0)
                return set_flag(value, &events->stopped);
        if (strcmp(key, "replay_mute") == 0)
                return set_flag(value, &events->replay_mute);
        if (strcmp(key, "replay_old") == 0)
                return set_flag(value, &events->replay_old);
        if (strcmp(key, "keep") == 0)
                return forget_old(events, value);
        if (strcmp(key, "seq") == 0 && yyjson_is_uint(value)) {
                events->seq = events->oldest = yyjson_get_uint(value);
                return true;
        }
        if (strcmp(key, "topic") == 0)
                return set_topic(events, value);
        if (strcmp(key, "clear") == 0)
                return yyjson_is_true(value) && clear_now(events);
        if (strcmp(key, "batch") == 0)
                return send_foreign(events, value);
        if (strcmp(key, "message") == 0)
                return send_garbage(events, value);
        return false;
}

bool mock_events_order(struct mock_events *events, struct kvr_slice json, char *message, size_t size)
{
        yyjson_doc *doc = yyjson_read(json.data, json.len, 0);
        yyjson_val *root = yyjson_doc_get_root(doc), *key, *value;
        size_t i, max;
        bool ok = yyjson_is_obj(root);

        if (!ok)
                snprintf(message, size, "the body is not a JSON object");
        yyjson_obj_foreach(root, i, max, key, value)
        {
                if (ok && !obey(events, yyjson_get_str(key), value)) {
                        ok = false;
                        snprintf(message, size,
                                 "\"%.40s\" is not known here, or not of its type; there are drop, repeat, "
                                 "stop, keep, "
                                 "seq, topic, clear, batch, message, replay_mute, replay_old",
                                 yyjson_get_str(key));
                }
        }
        yyjson_doc_free(doc);
        return ok;
}

/* ---- pages ---- */

void mock_events_write(const struct mock_events *events, struct sim_buf *buf)
{
        sim_buf_printf(buf,
                       "{\"endpoint\":\"%s\",\"replay\":\"%s\",\"seq\":%" PRIu64 ",\"oldest\":%" PRIu64
                       ",\"published\":%" PRIu64 ",\"dropped\":%" PRIu64 ",\"replays\":%" PRIu64 "}\n",
                       events->endpoint, events->replay, events->seq, events->oldest, events->published,
                       events->dropped, events->replays);
}

void mock_events_sources(const struct mock_events *events, struct sim_buf *buf)
{
        sim_buf_printf(buf,
                       "{\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"%s\","
                       "\"replay_endpoint\":",
                       events->endpoint);
        sim_buf_printf(buf, events->replay[0] ? "\"%s\"" : "null%s", events->replay);
        sim_buf_printf(buf,
                       ",\"buffer_steps\":%u,\"hwm\":100000,\"max_queue_size\":100000,\"topic\":\"%s\"}}",
                       events->options.buffer, events->topic);
}

/* ---- life ---- */

static void mock_events_free(struct mock_events *events)
{
        close_sockets(events);
        if (events->zmq)
                (void)zmq_ctx_term(events->zmq);
        if (events->kept)
                forget_kept(events);
        free(events->kept);
        free(events->blocks);
        free(events->tokens);
        free(events->buckets);
        free(events->waiting);
        text_free(&events->out);
        free(events);
}

static bool make_tables(struct mock_events *events, uint32_t capacity_blocks)
{
        uint64_t cap = (uint64_t)capacity_blocks * 2 + 65536, buckets = 1;

        while (buckets < cap)
                buckets *= 2;
        if (cap >= UINT32_MAX)
                return false;
        events->block_cap = (uint32_t)cap;
        events->bucket_mask = (uint32_t)buckets - 1;
        events->blocks = calloc((size_t)cap, sizeof *events->blocks);
        events->tokens = calloc((size_t)cap * events->block_tokens, sizeof *events->tokens);
        events->buckets = calloc((size_t)buckets, sizeof *events->buckets);
        events->kept = calloc(events->options.buffer, sizeof *events->kept);
        return events->blocks && events->tokens && events->buckets && events->kept;
}

struct mock_events *mock_events_new(struct net_loop *loop, const struct mock_events_options *options,
                                    uint32_t block_tokens, uint32_t capacity_blocks, const char **ret_why)
{
        struct mock_events *events = calloc(1, sizeof *events);

        *ret_why = "out of memory";
        if (!events)
                return NULL;
        events->options = *options;
        events->block_tokens = block_tokens;
        events->options.buffer = options->buffer ? options->buffer : 1;
        snprintf(events->topic, sizeof events->topic, "%s", options->topic ? options->topic : "");
        events->zmq = zmq_ctx_new();
        if (!events->zmq || !make_tables(events, capacity_blocks))
                goto fail;
        if (!raise_port(options->endpoint, options->port_plus, events->endpoint) ||
            !raise_port(options->replay ? options->replay : "", options->port_plus, events->replay)) {
                *ret_why = "not an endpoint, as in tcp://127.0.0.1:5557 or tcp://*:5557";
                goto fail;
        }
        events->bound =
                is_bound(events->endpoint); /* asked once: a port given by the system replaces the asterisk */
        if (!open_sockets(events)) {
                *ret_why = zmq_strerror(zmq_errno());
                goto fail;
        }
        (void)uv_timer_init(&loop->uv, &events->timer);
        events->timer.data = events;
        (void)uv_timer_start(&events->timer, on_timer, SERVE_MS, SERVE_MS);
        uv_unref((uv_handle_t *)&events->timer);
        return events;
fail:
        mock_events_free(events);
        return NULL;
}

static void on_closed(uv_handle_t *handle)
{
        mock_events_free(handle->data);
}

void mock_events_close(struct mock_events *events)
{
        if (events)
                uv_close((uv_handle_t *)&events->timer, on_closed);
}
