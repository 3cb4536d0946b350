/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One router's view of one engine's events. What is to be done about what came, or did not, is decided by the
 * proxy's own machine (engine/kv_stream.h); here is what the event thread of the proxy does with its answers.
 */
#include "des_events.h"

#include <kvroute/events.h>
#include <stdlib.h>
#include <string.h>

struct sim__des_stream *sim__des_stream_of(const struct sim__des *des, uint32_t router, uint32_t replica)
{
        return &des->events->streams[(size_t)router * des->options->replicas + replica];
}

void sim__des_block_tokens(uint64_t key, uint32_t count, uint32_t *ret)
{
        for (uint32_t i = 0; i < count; i++)
                ret[i] = i == 0 ? (uint32_t)key : i == 1 ? (uint32_t)(key >> 32) : 0;
}

/* ---- into the library --------------------------------------------------------------------------------- */

/* Blocks that follow one another are told as one run, as engines do. */
static uint32_t apply_stored(const struct sim__des *des, uint32_t router, uint32_t replica,
                             const struct sim_change *changes, uint32_t most)
{
        struct sim__des_events *events = des->events;
        uint32_t block = des->trace->block_tokens, count = 0;
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
        } while (count < most && count < SIM__DES_BLOCKS_AT_ONCE && !changes[count].removed &&
                 changes[count].parent == changes[count - 1].key);
        stored.count = count;
        stored.token_count = count * block;
        (void)kvr_events_stored(des->routers[router].brain, des->routers[router].replicas[replica], &stored,
                                NULL);
        return count;
}

static void apply(const struct sim__des *des, uint32_t router, uint32_t replica,
                  const struct sim__des_message *message)
{
        for (uint32_t i = 0; i < message->count;) {
                const struct sim_change *change = &message->changes[i];

                if (change->removed) {
                        (void)kvr_events_removed(des->routers[router].brain,
                                                 des->routers[router].replicas[replica], &change->key, 1,
                                                 KVR_TIER_GPU, NULL);
                        i++;
                } else {
                        i += apply_stored(des, router, replica, change, message->count - i);
                }
        }
}

static bool tell_trust(struct sim__des *des, uint32_t router, uint32_t replica)
{
        struct sim__des_stream *stream = sim__des_stream_of(des, router, replica);

        if (stream->machine.trusted == stream->told_trusted)
                return true;
        if (!stream->told_trusted)
                stream->untrusted_ns += des->now_ns - stream->since_ns;
        stream->since_ns = des->now_ns;
        stream->told_trusted = stream->machine.trusted;
        return kvr_events_trust(des->routers[router].brain, des->routers[router].replicas[replica],
                                stream->told_trusted) == KVR_OK ||
               sim__des_no_memory(des);
}

/* ---- messages held back ------------------------------------------------------------------------------- */

static void drop_held(struct sim__des_stream *stream)
{
        for (uint32_t i = 0; i < stream->held_count; i++)
                sim__des_message_drop(stream->held[i]);
        stream->held_count = 0;
}

static bool hold(const struct sim__des *des, struct sim__des_stream *stream, struct sim__des_message *message)
{
        if (stream->held_count == stream->held_room) {
                uint32_t room = stream->held_room ? stream->held_room * 2 : 16;
                struct sim__des_message **grown =
                        realloc(stream->held, room * sizeof(struct sim__des_message *));

                if (!grown)
                        return sim__des_no_memory(des);
                stream->held = grown;
                stream->held_room = room;
        }
        stream->held[stream->held_count++] = message;
        message->holders++;
        return true;
}

static bool obey(struct sim__des *des, uint32_t router, uint32_t replica,
                 const struct engine_stream_todo *todo, const struct sim__des_message *applied,
                 struct sim__des_message *held);

/* Each may lead to another replay; then the rest is held again, in order. */
static bool tell_held(struct sim__des *des, uint32_t router, uint32_t replica)
{
        struct sim__des_stream *stream = sim__des_stream_of(des, router, replica);
        struct sim__des_message **held = stream->held;
        uint32_t count = stream->held_count;
        bool good = true;

        stream->held = NULL;
        stream->held_count = stream->held_room = 0;
        for (uint32_t i = 0; i < count; i++) {
                struct sim__des_message *message = held[i];

                if (good) {
                        struct engine_stream_todo todo = engine_stream_held(&stream->machine, message->number,
                                                                            message->print, des->now_ns);

                        good = obey(des, router, replica, &todo, message, message);
                }
                sim__des_message_drop(message);
        }
        free(held);
        return good;
}

/* ---- obeying ------------------------------------------------------------------------------------------ */

static bool obey(struct sim__des *des, uint32_t router, uint32_t replica,
                 const struct engine_stream_todo *todo, const struct sim__des_message *applied,
                 struct sim__des_message *held)
{
        struct sim__des_stream *stream = sim__des_stream_of(des, router, replica);
        struct kvr_router *brain = des->routers[router].brain;
        kvr_replica_id id = des->routers[router].replicas[replica];
        bool good = true;

        if (todo->drop_held)
                drop_held(stream);
        if (todo->clear && todo->emptied)
                (void)kvr_events_cleared(brain, id, NULL);
        else if (todo->clear)
                (void)kvr_events_lost(brain, id, NULL);
        if (todo->apply && applied)
                apply(des, router, replica, applied);
        if (todo->hold && held)
                good = hold(des, stream, held);
        if (good && todo->replay)
                good = sim__des_events_ask(des, router, replica, todo->from);
        if (good && todo->end_replay) {
                stream->question++; /* an answer that comes after all is of no use */
                good = tell_held(des, router, replica);
        }
        return good && tell_trust(des, router, replica);
}

bool sim__des_stream_live(struct sim__des *des, uint32_t router, uint32_t replica,
                          struct sim__des_message *message)
{
        struct engine_stream_todo todo =
                engine_stream_batch(&sim__des_stream_of(des, router, replica)->machine, message->number,
                                    message->print, des->now_ns);

        return obey(des, router, replica, &todo, message, message);
}

bool sim__des_stream_replayed(struct sim__des *des, uint32_t router, uint32_t replica,
                              const struct sim__des_message *message)
{
        struct engine_stream_todo todo =
                engine_stream_replayed(&sim__des_stream_of(des, router, replica)->machine, message->number,
                                       message->print, des->now_ns);

        des->result.messages_replayed += todo.apply;
        return obey(des, router, replica, &todo, message, NULL);
}

bool sim__des_stream_replay_end(struct sim__des *des, uint32_t router, uint32_t replica)
{
        struct engine_stream_todo todo = engine_stream_replay_end(
                &sim__des_stream_of(des, router, replica)->machine, true, des->now_ns);

        return obey(des, router, replica, &todo, NULL, NULL);
}

bool sim__des_stream_tick(struct sim__des *des, uint32_t router, uint32_t replica)
{
        struct engine_stream_todo todo =
                engine_stream_tick(&sim__des_stream_of(des, router, replica)->machine, des->now_ns);

        return obey(des, router, replica, &todo, NULL, NULL);
}

bool sim__des_stream_lost(struct sim__des *des, uint32_t router, uint32_t replica)
{
        struct engine_stream *machine = &sim__des_stream_of(des, router, replica)->machine;
        struct engine_stream_todo todo = engine_stream_lost(machine, des->now_ns);

        if (!obey(des, router, replica, &todo, NULL, NULL))
                return false;
        todo = engine_stream_restarted(machine, des->now_ns);
        return obey(des, router, replica, &todo, NULL, NULL);
}

bool sim__des_stream_opened(struct sim__des *des, uint32_t router, uint32_t replica)
{
        struct engine_stream_todo todo =
                engine_stream_opened(&sim__des_stream_of(des, router, replica)->machine, des->now_ns);

        return obey(des, router, replica, &todo, NULL, NULL);
}

/* ---- life --------------------------------------------------------------------------------------------- */

bool sim__des_stream_init(struct sim__des *des, uint32_t router, uint32_t replica)
{
        const struct sim_des_options *options = des->options;
        struct sim__des_stream *stream = sim__des_stream_of(des, router, replica);
        double relearn_s = options->events_relearn_s > 0 ? options->events_relearn_s : SIM__DES_RELEARN_S;
        struct engine_stream_options how = {
                .has_replay = options->events_replay_s > 0,
                .relearn_ns = (uint64_t)(relearn_s * 1e9 + 0.5),
                .check_ns = ENGINE_STREAM_CHECK_NS,
        };

        engine_stream_init(&stream->machine, &how);
        stream->since_ns = des->now_ns;
        if (kvr_events_trust(des->routers[router].brain, des->routers[router].replicas[replica], false) !=
            KVR_OK)
                return sim__des_no_memory(des);
        return sim__des_stream_opened(des, router, replica);
}

void sim__des_stream_fini(struct sim__des_stream *stream)
{
        drop_held(stream);
        free(stream->held);
}

void sim__des_events_result(struct sim__des *des)
{
        size_t count = des->events ? (size_t)des->options->replicas * des->options->routers : 0;
        struct sim_des_result *result = &des->result;
        double span_ns = (double)(des->now_ns - SIM__DES_START_NS);

        for (size_t i = 0; i < count; i++) {
                const struct sim__des_stream *stream = &des->events->streams[i];
                const struct engine_stream_counters *counters = &stream->machine.counters;
                uint64_t untrusted_ns =
                        stream->untrusted_ns + (stream->told_trusted ? 0 : des->now_ns - stream->since_ns);

                result->gaps += counters->gaps;
                result->replays += counters->replays;
                result->clears += counters->clears;
                result->restarts_seen += counters->restarts;
                if (span_ns > 0)
                        result->untrusted += (double)untrusted_ns / span_ns / (double)count;
        }
}
