/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What engines tell of their caches, on its way to the routers: a message per step in which something was stored
 * or given away, numbered by its engine from 0, of which the engine keeps the last ones for a replay. Each router
 * gets each of them a while later, in order, or not at all. What it makes of them is in des_streams.c.
 */
#include "des_events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RNG_STREAM 0x65766e74u

static uint64_t in_ns(double seconds)
{
        return (uint64_t)(seconds * 1e9 + 0.5);
}

/* ---- life --------------------------------------------------------------------------------------------- */

bool sim__des_events_init(struct sim__des *des)
{
        const struct sim_des_options *options = des->options;
        struct sim__des_events *events = calloc(1, sizeof(*events));
        size_t streams = (size_t)options->replicas * options->routers;

        des->events = events;
        if (!events)
                return sim__des_no_memory(des);
        events->rng = sim_rng_for(options->seed, RNG_STREAM, 0);
        events->next_tick_ns = des->now_ns + ENGINE_STREAM_TICK_NS;
        events->sources = calloc(options->replicas, sizeof(*events->sources));
        events->streams = calloc(streams, sizeof(*events->streams));
        events->tokens =
                malloc((size_t)SIM__DES_BLOCKS_AT_ONCE * des->trace->block_tokens * sizeof(*events->tokens));
        if (!events->sources || !events->streams || !events->tokens)
                return sim__des_no_memory(des);
        for (uint32_t at = 0; at < options->routers; at++) {
                for (uint32_t i = 0; i < options->replicas; i++) {
                        if (!sim__des_stream_init(des, at, i))
                                return false;
                }
        }
        return true;
}

void sim__des_message_drop(struct sim__des_message *message)
{
        if (message && --message->holders == 0)
                free(message);
}

static void kept_clear(struct sim__des_source *source)
{
        for (uint32_t i = 0; i < source->kept_count; i++)
                sim__des_message_drop(source->kept[(source->kept_first + i) % source->kept_room]);
        source->kept_first = source->kept_count = 0;
}

void sim__des_events_fini(struct sim__des *des)
{
        struct sim__des_events *events = des->events;
        uint32_t replicas = des->options->replicas;
        size_t streams = (size_t)replicas * des->options->routers;

        if (!events)
                return;
        for (uint32_t i = 0; i < events->count; i++)
                sim__des_message_drop(events->heap[i].message);
        for (size_t i = 0; events->streams && i < streams; i++)
                sim__des_stream_fini(&events->streams[i]);
        for (uint32_t i = 0; events->sources && i < replicas; i++) {
                kept_clear(&events->sources[i]);
                free(events->sources[i].kept);
        }
        free(events->heap);
        free(events->sources);
        free(events->streams);
        free(events->tokens);
        free(events);
        des->events = NULL;
}

/* ---- on its way --------------------------------------------------------------------------------------- */

static bool before(const struct sim__des_delivery *a, const struct sim__des_delivery *b)
{
        if (a->due_ns != b->due_ns)
                return a->due_ns < b->due_ns;
        if (a->replica != b->replica)
                return a->replica < b->replica;
        return a->order < b->order;
}

static bool push(struct sim__des *des, struct sim__des_delivery delivery)
{
        struct sim__des_events *events = des->events;
        uint32_t at;

        if (events->count == events->room) {
                uint32_t room = events->room ? events->room * 2 : 1024;
                struct sim__des_delivery *grown = realloc(events->heap, room * sizeof(*grown));

                if (!grown)
                        return sim__des_no_memory(des);
                events->heap = grown;
                events->room = room;
        }
        delivery.order = events->order++;
        for (at = events->count++; at && before(&delivery, &events->heap[(at - 1) / 2]); at = (at - 1) / 2)
                events->heap[at] = events->heap[(at - 1) / 2];
        events->heap[at] = delivery;
        return true;
}

static struct sim__des_delivery pop(struct sim__des_events *events)
{
        struct sim__des_delivery first = events->heap[0], last = events->heap[--events->count];
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

/* The engine's buffer of what it may be asked for again. */
static bool keep(struct sim__des *des, struct sim__des_source *source, struct sim__des_message *message)
{
        uint32_t most = des->options->events_buffer ? des->options->events_buffer : SIM_DES_BUFFER_DEFAULT;
        bool full = source->kept_count > 0 && source->kept_count == source->kept_room;

        if (!source->kept || (full && source->kept_room < most)) {
                uint32_t room = source->kept_room ? source->kept_room * 2 : 256;
                struct sim__des_message **grown;

                room = room < most ? room : most;
                grown = malloc(room * sizeof(struct sim__des_message *));
                if (!grown)
                        return sim__des_no_memory(des);
                for (uint32_t i = 0; i < source->kept_count; i++)
                        grown[i] = source->kept[(source->kept_first + i) % source->kept_room];
                free(source->kept);
                source->kept = grown;
                source->kept_room = room;
                source->kept_first = 0;
        } else if (full) {
                sim__des_message_drop(source->kept[source->kept_first]);
                source->kept_first = (source->kept_first + 1) % source->kept_room;
                source->kept_count--;
        }
        source->kept[(source->kept_first + source->kept_count++) % source->kept_room] = message;
        message->holders++;
        return true;
}

static bool send(struct sim__des *des, uint32_t replica, const struct sim_change *changes, uint32_t count)
{
        const struct sim_des_options *options = des->options;
        struct sim__des_events *events = des->events;
        struct sim__des_source *source = &events->sources[replica];
        struct sim__des_message *message = malloc(sizeof(*message) + count * sizeof(*changes));
        bool good;

        if (!message)
                return sim__des_no_memory(des);
        *message = (struct sim__des_message){
                .at_ns = changes->at_ns,
                .number = source->next_number++,
                .life = source->life,
                .print = sim_mix64((uint64_t)source->life << 40 ^ (uint64_t)replica << 52 ^
                                   source->next_number),
                .holders = 1, /* ourselves, until all have it */
                .count = count,
        };
        memcpy(message->changes, changes, count * sizeof(*changes));
        good = keep(des, source, message);
        for (uint32_t at = 0; good && at < options->routers; at++) {
                struct sim__des_delivery delivery = {
                        .due_ns = message->at_ns + in_ns(options->events_delay_s),
                        .message = message,
                        .router = at,
                        .replica = replica,
                };

                des->result.messages++;
                if (options->events_lost > 0 && sim_rng_unit(&events->rng) < options->events_lost) {
                        des->result.messages_lost++;
                        continue;
                }
                good = push(des, delivery);
                message->holders += good;
        }
        sim__des_message_drop(message);
        return good;
}

/* What one step changed is one message, told at its end. */
bool sim__des_events_collect(struct sim__des *des, uint32_t replica)
{
        const struct sim_change *changes;
        uint32_t count, first = 0;
        bool lost;

        if (!des->events)
                return true;
        count = sim_engine_changes(des->engines[replica], &changes, &lost);
        if (lost)
                return sim__des_no_memory(des);
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

bool sim__des_events_ask(struct sim__des *des, uint32_t router, uint32_t replica, uint64_t from)
{
        struct sim__des_stream *stream = sim__des_stream_of(des, router, replica);
        struct sim__des_delivery answer = {
                .due_ns = des->now_ns + in_ns(des->options->events_replay_s),
                .router = router,
                .replica = replica,
                .question = ++stream->question,
                .from = from,
                .life = des->events->sources[replica].life,
        };

        return push(des, answer);
}

/* ---- there -------------------------------------------------------------------------------------------- */

/* What the engine had told, and still knew, half way between the question and now. */
static bool answer_take(struct sim__des *des, const struct sim__des_delivery *answer)
{
        const struct sim__des_source *source = &des->events->sources[answer->replica];
        struct sim__des_stream *stream = sim__des_stream_of(des, answer->router, answer->replica);
        uint64_t read_ns = des->now_ns - in_ns(des->options->events_replay_s / 2);

        /* The question was given up, or the process that got it is gone. */
        if (stream->question != answer->question || source->life != answer->life || source->down)
                return true;
        for (uint32_t i = 0; i < source->kept_count; i++) {
                const struct sim__des_message *message =
                        source->kept[(source->kept_first + i) % source->kept_room];

                if (message->number < answer->from)
                        continue;
                if (message->at_ns > read_ns)
                        break;
                if (!sim__des_stream_replayed(des, answer->router, answer->replica, message))
                        return false;
                if (stream->question != answer->question)
                        return true;
        }
        return sim__des_stream_replay_end(des, answer->router, answer->replica);
}

static bool tick(struct sim__des *des)
{
        des->now_ns = des->events->next_tick_ns;
        des->events->next_tick_ns += ENGINE_STREAM_TICK_NS;
        for (uint32_t at = 0; at < des->options->routers; at++) {
                for (uint32_t i = 0; i < des->options->replicas; i++) {
                        if (!sim__des_stream_tick(des, at, i))
                                return false;
                }
        }
        return true;
}

/* Not what was on its way when the connection broke, nor what a process would have told that ended before. */
static bool arrives(const struct sim__des_source *source, const struct sim__des_delivery *delivery)
{
        const struct sim__des_message *message = delivery->message;

        return delivery->order >= source->broken_order &&
               (message->life == source->life || message->at_ns <= source->ended_ns);
}

uint64_t sim__des_events_next_ns(const struct sim__des *des)
{
        const struct sim__des_events *events = des->events;

        if (!events)
                return SIM_NEVER;
        return events->count && events->heap[0].due_ns < events->next_tick_ns ? events->heap[0].due_ns
                                                                              : events->next_tick_ns;
}

bool sim__des_events_deliver(struct sim__des *des)
{
        struct sim__des_events *events = des->events;
        struct sim__des_delivery delivery;
        bool good = true;

        if (!events->count || events->heap[0].due_ns >= events->next_tick_ns)
                return tick(des);
        delivery = pop(events);
        des->now_ns = delivery.due_ns;
        if (!delivery.message)
                return answer_take(des, &delivery);
        if (arrives(&events->sources[delivery.replica], &delivery))
                good = sim__des_stream_live(des, delivery.router, delivery.replica, delivery.message);
        sim__des_message_drop(delivery.message);
        return good;
}

/* ---- engines that go and come ------------------------------------------------------------------------- */

static void begin_anew(struct sim__des_source *source, uint64_t now_ns)
{
        source->life++;
        source->ended_ns = now_ns;
        source->next_number = 0;
        kept_clear(source);
}

void sim__des_events_restart(struct sim__des *des, uint32_t replica)
{
        if (des->events)
                begin_anew(&des->events->sources[replica], des->now_ns);
}

bool sim__des_events_down(struct sim__des *des, uint32_t replica)
{
        struct sim__des_events *events = des->events;

        if (!events)
                return true;
        begin_anew(&events->sources[replica], des->now_ns);
        events->sources[replica].down = true;
        events->sources[replica].broken_order = events->order;
        for (uint32_t at = 0; at < des->options->routers; at++) {
                if (!sim__des_stream_lost(des, at, replica))
                        return false;
        }
        return true;
}

bool sim__des_events_up(struct sim__des *des, uint32_t replica)
{
        if (!des->events)
                return true;
        des->events->sources[replica].down = false;
        for (uint32_t at = 0; at < des->options->routers; at++) {
                if (!sim__des_stream_opened(des, at, replica))
                        return false;
        }
        return true;
}
