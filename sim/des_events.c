/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What engines tell of their caches, on its way to the routers: a message per step in which something was stored
 * or given away, numbered by its engine. Each router gets each of them a while later, in order, or not at all.
 * It notices by the next number that one is missing, asks for it, and takes nothing from that engine until it
 * has it; without replay it goes on as if nothing had been.
 */
#include "des_int.h"
#include "rng.h"

#include <kvroute/events.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS_AT_ONCE 64u
#define RNG_STREAM     0x65766e74u

struct message {
        uint64_t number; /* of its engine, since its start */
        uint32_t replica, life;
        uint32_t holders; /* routers that may still want it */
        uint32_t count;
        struct sim_change changes[];
};

/* A message on its way to one router. */
struct delivery {
        uint64_t due_ns, order;
        struct message *message;
        uint32_t router;
        bool replayed;
};

/* One router's view of one engine's messages. */
struct stream {
        uint64_t expected;     /* number of the next one */
        uint64_t caught_up_ns; /* what was missing is there then; later messages wait for it */
        struct message **lost;
        uint32_t lost_count, lost_room;
};

struct sim__des_events {
        struct delivery *heap;
        uint32_t count, room;
        uint64_t order;
        uint64_t *numbers;      /* by replica: of its next message */
        uint32_t *lives;        /* by replica: restarts so far */
        struct stream *streams; /* by router and replica */
        struct sim_rng rng;
        uint64_t hashes[BLOCKS_AT_ONCE];
        uint32_t *tokens; /* of so many blocks */
};

void sim__des_block_tokens(uint64_t key, uint32_t count, uint32_t *ret)
{
        for (uint32_t i = 0; i < count; i++)
                ret[i] = i == 0 ? (uint32_t)key : i == 1 ? (uint32_t)(key >> 32) : 0;
}

static bool no_memory(const struct sim__des *des)
{
        snprintf(des->message, des->message_size, "out of memory");
        return false;
}

bool sim__des_events_init(struct sim__des *des)
{
        const struct sim_des_options *options = des->options;
        struct sim__des_events *events = calloc(1, sizeof(*events));
        size_t streams = (size_t)options->replicas * options->routers;

        des->events = events;
        if (!events)
                return no_memory(des);
        events->numbers = calloc(options->replicas, sizeof(*events->numbers));
        events->lives = calloc(options->replicas, sizeof(*events->lives));
        events->streams = calloc(streams, sizeof(*events->streams));
        events->tokens = malloc((size_t)BLOCKS_AT_ONCE * des->trace->block_tokens * sizeof(*events->tokens));
        events->rng = sim_rng_for(options->seed, RNG_STREAM, 0);
        if (!events->numbers || !events->lives || !events->streams || !events->tokens)
                return no_memory(des);
        for (uint32_t at = 0; at < options->routers; at++) {
                for (uint32_t i = 0; i < options->replicas; i++) {
                        if (kvr_events_trust(des->routers[at].brain, des->routers[at].replicas[i], true) !=
                            KVR_OK)
                                return no_memory(des);
                }
        }
        return true;
}

static void let_go(struct message *message)
{
        if (--message->holders == 0)
                free(message);
}

static void lost_clear(struct stream *stream)
{
        for (uint32_t i = 0; i < stream->lost_count; i++)
                let_go(stream->lost[i]);
        stream->lost_count = 0;
}

void sim__des_events_fini(struct sim__des *des)
{
        struct sim__des_events *events = des->events;
        size_t streams = (size_t)des->options->replicas * des->options->routers;

        if (!events)
                return;
        for (uint32_t i = 0; i < events->count; i++)
                let_go(events->heap[i].message);
        for (size_t i = 0; events->streams && i < streams; i++) {
                lost_clear(&events->streams[i]);
                free(events->streams[i].lost);
        }
        free(events->heap);
        free(events->numbers);
        free(events->lives);
        free(events->streams);
        free(events->tokens);
        free(events);
        des->events = NULL;
}

/* ---- on its way --------------------------------------------------------------------------------------- */

static bool before(const struct delivery *a, const struct delivery *b)
{
        if (a->due_ns != b->due_ns)
                return a->due_ns < b->due_ns;
        if (a->message->replica != b->message->replica)
                return a->message->replica < b->message->replica;
        /* Of one engine by number: what was missing before what came behind it. */
        if (a->message->number != b->message->number)
                return a->message->number < b->message->number;
        return a->order < b->order;
}

static bool push(struct sim__des *des, struct delivery delivery)
{
        struct sim__des_events *events = des->events;
        uint32_t at;

        if (events->count == events->room) {
                uint32_t room = events->room ? events->room * 2 : 1024;
                struct delivery *grown = realloc(events->heap, room * sizeof(*grown));

                if (!grown)
                        return no_memory(des);
                events->heap = grown;
                events->room = room;
        }
        delivery.order = events->order++;
        for (at = events->count++; at && before(&delivery, &events->heap[(at - 1) / 2]); at = (at - 1) / 2)
                events->heap[at] = events->heap[(at - 1) / 2];
        events->heap[at] = delivery;
        return true;
}

static struct delivery pop(struct sim__des_events *events)
{
        struct delivery first = events->heap[0], last = events->heap[--events->count];
        uint32_t at = 0, child;

        while ((child = 2 * at + 1) < events->count) {
                if (child + 1 < events->count && before(&events->heap[child + 1], &events->heap[child]))
                        child++;
                if (!before(&events->heap[child], &last))
                        break;
                events->heap[at] = events->heap[child];
                at = child;
        }
        events->heap[at] = last;
        return first;
}

uint64_t sim__des_events_next_ns(const struct sim__des *des)
{
        return des->events && des->events->count ? des->events->heap[0].due_ns : SIM_NEVER;
}

static struct stream *stream_of(const struct sim__des *des, uint32_t router, uint32_t replica)
{
        return &des->events->streams[(size_t)router * des->options->replicas + replica];
}

/* Kept for a replay, if there is any. */
static bool lose(struct sim__des *des, struct message *message, uint32_t router)
{
        struct stream *stream = stream_of(des, router, message->replica);

        des->result.messages_lost++;
        if (des->options->events_replay_s <= 0)
                return true;
        if (stream->lost_count == stream->lost_room) {
                uint32_t room = stream->lost_room ? stream->lost_room * 2 : 16;
                struct message **grown = realloc(stream->lost, room * sizeof(*grown));

                if (!grown)
                        return no_memory(des);
                stream->lost = grown;
                stream->lost_room = room;
        }
        stream->lost[stream->lost_count++] = message;
        message->holders++;
        return true;
}

static bool send(struct sim__des *des, uint32_t replica, const struct sim_change *changes, uint32_t count)
{
        const struct sim_des_options *options = des->options;
        struct sim__des_events *events = des->events;
        struct message *message = malloc(sizeof(*message) + count * sizeof(*changes));
        uint64_t due_ns = changes->at_ns + (uint64_t)(options->events_delay_s * 1e9 + 0.5);
        bool good = true;

        if (!message)
                return no_memory(des);
        *message = (struct message){
                .number = events->numbers[replica]++,
                .replica = replica,
                .life = events->lives[replica],
                .holders = 1, /* ourselves, until all have it */
                .count = count,
        };
        memcpy(message->changes, changes, count * sizeof(*changes));
        for (uint32_t at = 0; good && at < options->routers; at++) {
                des->result.messages++;
                if (options->events_lost > 0 && sim_rng_unit(&events->rng) < options->events_lost) {
                        good = lose(des, message, at);
                } else {
                        good = push(des,
                                    (struct delivery){.due_ns = due_ns, .message = message, .router = at});
                        message->holders += good;
                }
        }
        let_go(message);
        return good;
}

/* What one step changed is one message. */
bool sim__des_events_collect(struct sim__des *des, uint32_t replica)
{
        const struct sim_change *changes;
        uint32_t count, first = 0;
        bool lost;

        if (!des->events)
                return true;
        count = sim_engine_changes(des->engines[replica], &changes, &lost);
        if (lost)
                return no_memory(des);
        while (first < count) {
                uint32_t end = first + 1;

                while (end < count && changes[end].at_ns == changes[first].at_ns)
                        end++;
                if (!send(des, replica, changes + first, end - first))
                        return false;
                first = end;
        }
        return true;
}

/* ---- there -------------------------------------------------------------------------------------------- */

/* Blocks that follow one another are told as one run, as engines do. */
static uint32_t apply_stored(const struct sim__des *des, const struct sim__des_router *router,
                             const struct message *message, uint32_t first)
{
        struct sim__des_events *events = des->events;
        uint32_t block = des->trace->block_tokens, count = 0;
        const struct sim_change *changes = message->changes + first;
        struct kvr_blocks_stored stored = {
                .hashes = events->hashes,
                .has_parent = changes->parent != 0,
                .parent = changes->parent,
                .tokens = events->tokens,
                .block_tokens = block,
                .tier = KVR_TIER_GPU,
        };

        do {
                events->hashes[count] = changes[count].key;
                sim__des_block_tokens(changes[count].key, block, events->tokens + (size_t)count * block);
                count++;
        } while (first + count < message->count && count < BLOCKS_AT_ONCE && !changes[count].removed &&
                 changes[count].parent == changes[count - 1].key);
        stored.count = count;
        stored.token_count = count * block;
        (void)kvr_events_stored(router->brain, router->replicas[message->replica], &stored, NULL);
        return count;
}

static void apply(const struct sim__des *des, uint32_t number, const struct message *message)
{
        const struct sim__des_router *router = &des->routers[number];

        for (uint32_t i = 0; i < message->count;) {
                const struct sim_change *change = &message->changes[i];

                if (change->removed) {
                        (void)kvr_events_removed(router->brain, router->replicas[message->replica],
                                                 &change->key, 1, KVR_TIER_GPU, NULL);
                        i++;
                } else {
                        i += apply_stored(des, router, message, i);
                }
        }
}

static void forget_first(struct stream *stream, uint32_t count)
{
        stream->lost_count -= count;
        memmove(stream->lost, stream->lost + count, stream->lost_count * sizeof(*stream->lost));
}

/* Some are missing before this one: they are asked for, and this one waits with all that follow. */
static bool ask_again(struct sim__des *des, struct stream *stream, const struct delivery *late)
{
        uint64_t due_ns = des->now_ns + (uint64_t)(des->options->events_replay_s * 1e9 + 0.5);
        uint32_t asked = 0;

        for (; asked < stream->lost_count && stream->lost[asked]->number < late->message->number; asked++) {
                struct delivery again = {.due_ns = due_ns,
                                         .message = stream->lost[asked],
                                         .router = late->router,
                                         .replayed = true};

                if (!push(des, again)) {
                        forget_first(stream, asked);
                        return false;
                }
        }
        if (asked)
                forget_first(stream, asked);
        stream->caught_up_ns = due_ns;
        return true;
}

bool sim__des_events_deliver(struct sim__des *des)
{
        struct delivery delivery = pop(des->events);
        struct message *message = delivery.message;
        struct stream *stream = stream_of(des, delivery.router, message->replica);
        bool void_now = message->life != des->events->lives[message->replica];

        des->now_ns = delivery.due_ns;
        if (!void_now && message->number > stream->expected && des->options->events_replay_s > 0) {
                if ((stream->caught_up_ns > des->now_ns || ask_again(des, stream, &delivery))) {
                        delivery.due_ns = stream->caught_up_ns;
                        if (push(des, delivery))
                                return true;
                }
                let_go(message);
                return false;
        }
        if (!void_now) {
                des->result.messages_replayed += delivery.replayed;
                apply(des, delivery.router, message);
                stream->expected = message->number + 1;
        }
        let_go(message);
        return true;
}

void sim__des_events_restart(struct sim__des *des, uint32_t replica)
{
        struct sim__des_events *events = des->events;

        if (!events)
                return;
        events->lives[replica]++;
        events->numbers[replica] = 0;
        for (uint32_t at = 0; at < des->options->routers; at++) {
                struct stream *stream = stream_of(des, at, replica);

                stream->expected = 0;
                stream->caught_up_ns = 0;
                lost_clear(stream);
        }
}
