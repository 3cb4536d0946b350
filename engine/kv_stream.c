/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_stream.h"

#include <string.h>

const char *engine_stream_state_name(enum engine_stream_state state)
{
        static const char *const names[] = {
                [ENGINE_STREAM_OFF] = "off",
                [ENGINE_STREAM_REPLAYING] = "replaying",
                [ENGINE_STREAM_LIVE] = "live",
                [ENGINE_STREAM_RELEARNING] = "relearning",
        };

        return names[state];
}

void engine_stream_init(struct engine_stream *stream, const struct engine_stream_options *options)
{
        *stream = (struct engine_stream){.options = *options};
}

static void enter(struct engine_stream *stream, enum engine_stream_state state, uint64_t now_ns)
{
        stream->state = state;
        stream->since_ns = now_ns;
}

/* ---- what batches were ---- */

static void remember(struct engine_stream *stream, uint64_t seq, uint64_t print)
{
        stream->prints[seq % ENGINE_STREAM_PRINTS] = print ? print : 1;
}

static bool is_the_same(const struct engine_stream *stream, uint64_t seq, uint64_t print)
{
        return seq < stream->next && stream->next - seq <= ENGINE_STREAM_PRINTS &&
               stream->prints[seq % ENGINE_STREAM_PRINTS] == (print ? print : 1);
}

/* ---- pieces of transitions ---- */

static void apply(struct engine_stream *stream, uint64_t seq, uint64_t print, struct engine_stream_todo *todo)
{
        todo->apply = true;
        stream->known = true;
        stream->next = seq + 1;
        stream->counters.batches++;
        remember(stream, seq, print);
}

static void clear(struct engine_stream *stream, struct engine_stream_todo *todo)
{
        todo->clear = true;
        stream->complete = false;
        stream->trusted = false;
        stream->counters.clears++;
}

/* Live or relearning, as what is known allows. */
static void settle(struct engine_stream *stream, uint64_t now_ns)
{
        enum engine_stream_state state = stream->complete ? ENGINE_STREAM_LIVE : ENGINE_STREAM_RELEARNING;

        stream->checking = false;
        if (stream->state != state)
                enter(stream, state, now_ns);
        stream->trusted = stream->complete && !stream->deaf;
}

static void begin_replay(struct engine_stream *stream, uint64_t now_ns, struct engine_stream_todo *todo)
{
        if (stream->state != ENGINE_STREAM_REPLAYING) {
                enter(stream, ENGINE_STREAM_REPLAYING, now_ns);
                stream->holding = false;
                stream->tries = 0;
                stream->found = 0;
        }
        stream->tries++;
        stream->anchored = stream->known && stream->next > 0;
        stream->replied = false;
        stream->progress_ns = now_ns;
        stream->counters.replays++;
        todo->replay = true;
        todo->end_replay = false;
        todo->from = stream->anchored ? stream->next - 1 : 0;
}

/* Another process is there now: nothing of what it was is left, and its numbers begin anew. */
static void begin_anew(struct engine_stream *stream, struct engine_stream_todo *todo)
{
        clear(stream, todo);
        todo->emptied = true;
        stream->counters.restarts++;
        stream->known = false;
        stream->next = 0;
        stream->checking = stream->unproven = false;
        memset(stream->prints, 0, sizeof stream->prints);
}

static void hold(struct engine_stream *stream, uint64_t seq, struct engine_stream_todo *todo)
{
        todo->hold = true;
        if (!stream->holding)
                stream->held_first = seq;
        stream->holding = true;
        stream->held_last = seq;
}

/* ---- the connection ---- */

struct engine_stream_todo engine_stream_opened(struct engine_stream *stream, uint64_t now_ns)
{
        struct engine_stream_todo todo = {0};

        if (stream->state != ENGINE_STREAM_OFF) {
                todo.drop_held = stream->state == ENGINE_STREAM_REPLAYING; /* they come again by the replay */
                enter(stream, ENGINE_STREAM_OFF, now_ns);
        }
        stream->unproven = stream->known;
        if (stream->options.has_replay)
                begin_replay(stream, now_ns, &todo);
        else
                settle(stream, now_ns);
        return todo;
}

struct engine_stream_todo engine_stream_lost(struct engine_stream *stream, uint64_t now_ns)
{
        struct engine_stream_todo todo = {0};

        if (stream->state == ENGINE_STREAM_OFF)
                return todo;
        todo.drop_held = stream->state == ENGINE_STREAM_REPLAYING;
        todo.end_replay = todo.drop_held;
        todo.log = "the connection for events was lost";
        stream->checking = false;
        enter(stream, ENGINE_STREAM_OFF, now_ns);
        return todo;
}

/* ---- live batches ---- */

static void restart_by_number(struct engine_stream *stream, uint64_t seq, uint64_t print, uint64_t now_ns,
                              struct engine_stream_todo *todo)
{
        begin_anew(stream, todo);
        todo->log = "its event numbers began anew: it has restarted, and what it held is forgotten";
        if (seq > 0 && stream->options.has_replay) {
                enter(stream, ENGINE_STREAM_OFF, now_ns);
                begin_replay(stream, now_ns, todo);
                hold(stream, seq, todo);
                return;
        }
        apply(stream, seq, print, todo);
        stream->complete = seq == 0;
        settle(stream, now_ns);
}

/* Of the engine's next life, while the replay is of the last one: what is held is of no use either. */
static void restart_while_replaying(struct engine_stream *stream, uint64_t seq, uint64_t now_ns,
                                    struct engine_stream_todo *todo)
{
        begin_anew(stream, todo);
        todo->log = "its event numbers began anew during a replay: it has restarted";
        todo->drop_held = true;
        enter(stream, ENGINE_STREAM_OFF, now_ns);
        begin_replay(stream, now_ns, todo);
        hold(stream, seq, todo);
}

static void gap(struct engine_stream *stream, uint64_t seq, uint64_t print, uint64_t now_ns,
                struct engine_stream_todo *todo)
{
        stream->counters.gaps++;
        if (stream->options.has_replay) {
                begin_replay(stream, now_ns, todo);
                hold(stream, seq, todo);
                return;
        }
        stream->counters.lost += seq - stream->next;
        clear(stream, todo);
        todo->log = "events were lost, and it offers no replay: what it holds is learned anew";
        apply(stream, seq, print, todo);
        enter(stream, ENGINE_STREAM_RELEARNING, now_ns);
}

struct engine_stream_todo engine_stream_batch(struct engine_stream *stream, uint64_t seq, uint64_t print,
                                              uint64_t now_ns)
{
        struct engine_stream_todo todo = {0};

        if (stream->state == ENGINE_STREAM_OFF)
                todo = engine_stream_opened(stream, now_ns); /* the news of that may come behind */
        stream->heard_ns = now_ns;
        stream->deaf = false;
        stream->deaf_checks = 0;
        if (stream->state == ENGINE_STREAM_REPLAYING) {
                if (stream->holding && seq <= stream->held_last)
                        restart_while_replaying(stream, seq, now_ns, &todo);
                else
                        hold(stream, seq, &todo);
                return todo;
        }
        if (!stream->known) {
                /* The first one there ever was, or the first one we hear. */
                stream->complete = seq == 0;
                apply(stream, seq, print, &todo);
                settle(stream, now_ns);
        } else if (seq == stream->next) {
                apply(stream, seq, print, &todo);
                settle(stream, now_ns);
        } else if (seq > stream->next) {
                gap(stream, seq, print, now_ns, &todo);
        } else if (is_the_same(stream, seq, print)) {
                stream->counters.duplicates++;
        } else {
                restart_by_number(stream, seq, print, now_ns, &todo);
        }
        return todo;
}

struct engine_stream_todo engine_stream_held(struct engine_stream *stream, uint64_t seq, uint64_t print,
                                             uint64_t now_ns)
{
        struct engine_stream_todo todo = {0};

        if (stream->state != ENGINE_STREAM_REPLAYING && stream->known && seq < stream->next) {
                stream->counters.duplicates++;
                return todo;
        }
        return engine_stream_batch(stream, seq, print, now_ns);
}

/* ---- the replay ---- */

static void hole(struct engine_stream *stream, uint64_t seq, struct engine_stream_todo *todo)
{
        stream->counters.lost += seq - stream->next;
        stream->next = seq;
        clear(stream, todo);
        todo->log = "the replay has not all that was lost: what it holds is learned anew";
}

/* False: it is not to be applied. */
static bool first_reply(struct engine_stream *stream, uint64_t seq, uint64_t print, uint64_t now_ns,
                        struct engine_stream_todo *todo)
{
        stream->replied = true;
        if (!stream->anchored) {
                /* From the engine's start, if that is still there. Old stores may be missing, no removal is. */
                stream->complete = seq == 0;
                stream->trusted &= stream->complete;
                stream->known = true;
                stream->next = seq;
                return true;
        }
        if (seq >= stream->next) {
                stream->counters.too_old++;
                hole(stream, seq, todo);
                return true;
        }
        if (seq == stream->next - 1 && !is_the_same(stream, seq, print)) {
                begin_anew(stream, todo);
                todo->log = "its last batch is not the one it was: it has restarted, and what it held is "
                            "forgotten";
                begin_replay(stream, now_ns, todo);
        }
        return false;
}

struct engine_stream_todo engine_stream_replayed(struct engine_stream *stream, uint64_t seq, uint64_t print,
                                                 uint64_t now_ns)
{
        struct engine_stream_todo todo = {0};

        if (stream->state != ENGINE_STREAM_REPLAYING)
                return todo;
        stream->progress_ns = now_ns;
        if (!stream->replied && !first_reply(stream, seq, print, now_ns, &todo))
                return todo;
        if (seq < stream->next)
                return todo; /* more than was asked for */
        if (seq > stream->next)
                hole(stream, seq, &todo);
        stream->found++;
        apply(stream, seq, print, &todo);
        return todo;
}

/* A check that found what never came by itself. */
static void note_check(struct engine_stream *stream, struct engine_stream_todo *todo)
{
        if (!stream->checking || stream->holding)
                return;
        if (stream->found == 0) {
                stream->deaf_checks = 0;
                return;
        }
        stream->counters.unheard += stream->found;
        if (++stream->deaf_checks < ENGINE_STREAM_DEAF_CHECKS || stream->deaf)
                return;
        stream->deaf = true;
        todo->log = "its replay has events that the subscription does not hear: is the topic right?";
}

static void end_without_answer(struct engine_stream *stream, struct engine_stream_todo *todo)
{
        stream->counters.replays_failed++;
        stream->answers = false;
        todo->log = "the replay was not answered";
        if (!stream->known) {
                stream->complete = false;
        } else if (stream->unproven) {
                begin_anew(stream, todo);
        } else if (stream->holding && stream->held_first > stream->next) {
                hole(stream, stream->held_first, todo);
        }
}

static void end_with_answer(struct engine_stream *stream, uint64_t now_ns, struct engine_stream_todo *todo)
{
        if (stream->anchored && !stream->replied) {
                begin_anew(stream, todo);
                todo->log = "it does not know its last batch any more: it has restarted";
                begin_replay(stream, now_ns, todo);
                return;
        }
        stream->answers = true;
        stream->unproven = false;
        if (!stream->known) {
                /* It has published nothing yet: nothing is cached. */
                stream->known = stream->complete = true;
                stream->next = 0;
        }
        if (!stream->holding || stream->held_first <= stream->next)
                return;
        if (stream->tries < ENGINE_STREAM_REPLAY_TRIES) {
                begin_replay(stream, now_ns, todo);
                return;
        }
        hole(stream, stream->held_first, todo);
}

struct engine_stream_todo engine_stream_replay_end(struct engine_stream *stream, bool answered,
                                                   uint64_t now_ns)
{
        struct engine_stream_todo todo = {0};

        if (stream->state != ENGINE_STREAM_REPLAYING)
                return todo;
        if (answered)
                end_with_answer(stream, now_ns, &todo);
        else
                end_without_answer(stream, &todo);
        if (todo.replay)
                return todo;
        note_check(stream, &todo);
        todo.end_replay = true;
        settle(stream, now_ns);
        return todo;
}

/* ---- other signs ---- */

struct engine_stream_todo engine_stream_unreadable(struct engine_stream *stream, uint64_t now_ns)
{
        struct engine_stream_todo todo = {0};

        stream->counters.lost++;
        clear(stream, &todo);
        todo.log = "a batch of events could not be used: what it holds is learned anew";
        if (stream->state == ENGINE_STREAM_LIVE || stream->state == ENGINE_STREAM_RELEARNING)
                enter(stream, ENGINE_STREAM_RELEARNING, now_ns);
        return todo;
}

struct engine_stream_todo engine_stream_restarted(struct engine_stream *stream, uint64_t now_ns)
{
        struct engine_stream_todo todo = {0};

        begin_anew(stream, &todo);
        todo.drop_held = stream->state == ENGINE_STREAM_REPLAYING;
        if (stream->state == ENGINE_STREAM_OFF)
                return todo;
        enter(stream, ENGINE_STREAM_OFF, now_ns);
        if (stream->options.has_replay)
                begin_replay(stream, now_ns, &todo);
        else
                settle(stream, now_ns);
        return todo;
}

struct engine_stream_todo engine_stream_cleared(struct engine_stream *stream)
{
        struct engine_stream_todo todo = {.clear = true, .emptied = true};

        /* Nothing is missed: it is known to hold nothing. */
        stream->counters.clears++;
        return todo;
}

/* ---- time ---- */

static bool is_quiet(const struct engine_stream *stream, uint64_t now_ns)
{
        uint64_t last = stream->heard_ns > stream->since_ns ? stream->heard_ns : stream->since_ns;

        return stream->answers && stream->options.check_ns && now_ns - last >= stream->options.check_ns;
}

struct engine_stream_todo engine_stream_tick(struct engine_stream *stream, uint64_t now_ns)
{
        struct engine_stream_todo todo = {0};
        uint64_t age_ns = now_ns - stream->since_ns;

        switch (stream->state) {
        case ENGINE_STREAM_OFF:
                stream->trusted &= age_ns < ENGINE_STREAM_OFF_TRUST_NS;
                break;
        case ENGINE_STREAM_REPLAYING:
                stream->trusted &= age_ns < ENGINE_STREAM_REPLAY_TRUST_NS;
                if (now_ns - stream->progress_ns >= ENGINE_STREAM_REPLAY_LIMIT_NS)
                        return engine_stream_replay_end(stream, false, now_ns);
                break;
        case ENGINE_STREAM_RELEARNING:
                if (stream->known && age_ns >= stream->options.relearn_ns) {
                        stream->complete = true;
                        settle(stream, now_ns);
                        todo.log = "its events ran without a fault for a while: they are trusted";
                }
                break;
        case ENGINE_STREAM_LIVE:
                if (is_quiet(stream, now_ns)) {
                        begin_replay(stream, now_ns, &todo);
                        stream->checking = true;
                }
                break;
        }
        return todo;
}
