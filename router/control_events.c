/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which replicas tell their KV cache by events, and where: as configured (events=tcp://..., bind:..., poll),
 * or with events=auto as the engine says, else by the rule of ports. Where nothing is configured the engine is
 * asked too, and listened to if it says that it publishes on its own host; if not, nothing is tried and nothing
 * said. Tells the event thread, and shows what it has.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "control_int.h"

#define ASK_AGAIN_MS  10000 /* an engine that said nothing useful is asked again */
#define ASK_RARELY_MS 60000 /* one that is followed: its ports may be others now */
#define SHOW_MS       500   /* metrics are set so often */
#define SILENT_NS     10000000000ULL
#define BODY_MAX      (1 << 20)

static struct events *events_of(const struct probe *probe)
{
        return probe->control->options.events;
}

static uint32_t rank_of(const struct probe *probe)
{
        return probe->target->spec.rank > 0 ? (uint32_t)probe->target->spec.rank : 0;
}

/* Nobody asked for them. */
static bool is_offered(const struct probe *probe)
{
        return probe->target->spec.events == REPLICA_EVENTS_OFFERED;
}

static void cannot(struct probe *probe, const char *why)
{
        if (strcmp(probe->events_why, why) == 0)
                return;
        snprintf(probe->events_why, sizeof probe->events_why, "%s", why);
        log_say(probe->control->options.log, is_offered(probe) ? LOG_INFO : LOG_WARN, probe->target->url,
                "replica %s: no events: %s", probe_name(probe), why);
}

static void stop_following(struct probe *probe)
{
        if (probe->events_followed)
                events_drop(events_of(probe), probe->target->id);
        probe->events_followed = false;
}

/* Another replica that is followed at the same place: one of the two is not what is told of there. */
static const struct probe *follower_of(const struct probe *probe, const struct events_source *source)
{
        for (const struct probe *other = probe->control->probes; other; other = other->next) {
                if (other != probe && other->events_followed && source->mode == EVENTS_CONNECT &&
                    other->events_source.mode == EVENTS_CONNECT &&
                    strcmp(other->events_source.events, source->events) == 0 &&
                    strcmp(other->events_source.topic, source->topic) == 0)
                        return other;
        }
        return NULL;
}

static void follow(struct probe *probe, const struct events_source *source)
{
        struct control *control = probe->control;
        const struct probe *other = follower_of(probe, source);
        char why[EVENTS_ERROR_MAX];

        if (other) {
                snprintf(why, sizeof why,
                         "%.60s is where replica %.50s publishes: say events=tcp://HOST:PORT for each",
                         source->events, probe_name(other));
                if (is_offered(probe))
                        stop_following(probe);
                cannot(probe, why);
                if (is_offered(probe))
                        return;
        } else {
                probe->events_why[0] = '\0';
        }
        if (probe->events_followed && memcmp(source, &probe->events_source, sizeof *source) == 0)
                return;
        if (!events_follow(control->options.events, probe->target->id, probe_name(probe), source))
                return;
        probe->events_followed = true;
        probe->events_source = *source;
        log_say(control->options.log, LOG_INFO, NULL, "replica %s: events %s %s%s%s%s%s", probe_name(probe),
                source->mode == EVENTS_POLL   ? "by POST /kv_cache_events"
                : source->mode == EVENTS_BIND ? "are awaited on"
                                              : "from",
                source->events, source->replay[0] ? ", replay from " : "", source->replay,
                source->topic[0] ? ", topic " : "", source->topic);
}

/* Endpoints as the engine, or the user, wrote them. `add`: ranks still to be added to the ports. */
static void follow_endpoints(struct probe *probe, enum events_mode mode, const char *events,
                             const char *replay, const char *topic, uint32_t add)
{
        const struct replica_spec *spec = &probe->target->spec;
        struct events_source source;
        char why[EVENTS_ERROR_MAX + ENGINE_KV_ENDPOINT_MAX];

        memset(&source, 0, sizeof source); /* compared as a whole later */
        source.mode = mode;
        source.rank = spec->rank;
        snprintf(source.topic, sizeof source.topic, "%s", spec->events_topic[0] ? spec->events_topic : topic);
        /* A socket of ours is bound where it says; the engine's is where the engine is. */
        if (!engine_kv_endpoint(events, mode == EVENTS_BIND ? "*" : spec->host, add, source.events) ||
            (replay[0] && !engine_kv_endpoint(replay, spec->host, add, source.replay))) {
                snprintf(why, sizeof why, "\"%s\"%s%s%s: not tcp://HOST:PORT or ipc://PATH", events,
                         replay[0] ? ", \"" : "", replay, replay[0] ? "\"" : "");
                cannot(probe, why);
                return;
        }
        follow(probe, &source);
}

static void follow_configured(struct probe *probe)
{
        const struct replica_spec *spec = &probe->target->spec;
        struct events_source poll;

        if (spec->events == REPLICA_EVENTS_POLL) {
                memset(&poll, 0, sizeof poll);
                poll.mode = EVENTS_POLL;
                poll.rank = spec->rank;
                follow(probe, &poll);
                return;
        }
        follow_endpoints(probe, spec->events == REPLICA_EVENTS_BIND ? EVENTS_BIND : EVENTS_CONNECT,
                         spec->events_endpoint, spec->replay_endpoint, "", rank_of(probe));
}

/* It has none, as far as it tells. */
static void none_there(struct probe *probe, const char *why)
{
        stop_following(probe);
        if (is_offered(probe))
                probe->events_why[0] = '\0';
        else
                cannot(probe, why);
}

static void follow_found(struct probe *probe, const struct engine_kv_source *source)
{
        const struct replica_spec *spec = &probe->target->spec;
        char why[EVENTS_ERROR_MAX] = "";

        if (source->ranks > 1 && spec->rank < 0)
                snprintf(why, sizeof why,
                         "it has %u data-parallel ranks, each with a cache of its own: say ranks=%u",
                         source->ranks, source->ranks);
        else if (is_offered(probe)) {
                /* What an engine says must not by itself make this router connect anywhere. */
                const char *far = !engine_kv_same_host(source->events, spec->host) ? source->events
                                  : source->replay[0] && !engine_kv_same_host(source->replay, spec->host)
                                          ? source->replay
                                          : NULL;

                if (far)
                        snprintf(why, sizeof why,
                                 "it publishes at %.80s, which is not its own host: say events=auto if that "
                                 "is right",
                                 far);
        }
        if (why[0]) {
                stop_following(probe);
                cannot(probe, why);
                return;
        }
        follow_endpoints(probe, EVENTS_CONNECT, source->events,
                         spec->replay_endpoint[0] ? spec->replay_endpoint : source->replay, source->topic, 0);
}

static void follow_rule(struct probe *probe)
{
        struct engine_kv_source source;
        const char *replay = probe->target->spec.replay_endpoint;

        engine_kv_guess(rank_of(probe), &source);
        follow_endpoints(probe, EVENTS_CONNECT, source.events, replay[0] ? replay : source.replay, "", 0);
}

void probe_events_done(struct probe *probe, enum net_request_error error, unsigned status,
                       struct kvr_slice body, uint64_t now_ms)
{
        struct engine_kv_source source;
        enum engine_kv_answer answer = ENGINE_KV_UNKNOWN;
        char why[160];

        if (probe->target->spec.events == REPLICA_EVENTS_POLL) {
                if (error == NET_REQUEST_OK && status == 200) {
                        events_polled(events_of(probe), probe->target->id, body);
                        probe->events_why[0] = '\0';
                } else {
                        snprintf(why, sizeof why, "POST /kv_cache_events: %s %u",
                                 error == NET_REQUEST_OK ? "status" : net_request_error_text(error), status);
                        cannot(probe, why);
                }
                return;
        }
        probe->jobs[JOB_EVENTS].due_ms = now_ms + ASK_AGAIN_MS;
        if (error != NET_REQUEST_OK || status >= 500 || status == 0)
                return;
        if (status == 200)
                answer = engine_kv_read(probe_traits(probe)->kind, body, rank_of(probe), &source);
        switch (answer) {
        case ENGINE_KV_FOUND:
                probe->jobs[JOB_EVENTS].due_ms = now_ms + ASK_RARELY_MS;
                follow_found(probe, &source);
                return;
        case ENGINE_KV_OFF:
                none_there(probe, "it says that it publishes none (start it with --kv-events-config)");
                return;
        case ENGINE_KV_NO_RANK:
                none_there(probe, "it has no such data-parallel rank");
                return;
        case ENGINE_KV_UNKNOWN:
                probe->jobs[JOB_EVENTS].due_ms = now_ms + ASK_RARELY_MS;
                if (is_offered(probe))
                        none_there(probe, "");
                else
                        follow_rule(probe);
                return;
        }
}

/* Asks the engine, where it can be asked. */
static void discover(struct probe *probe, uint64_t now_ms)
{
        const struct engine_traits *traits = probe_traits(probe);
        const char *path = engine_kv_path(traits->kind);

        if (!probe->detected)
                return;
        probe->jobs[JOB_EVENTS].due_ms = now_ms + ASK_RARELY_MS;
        if (!path && is_offered(probe))
                none_there(probe, "");
        else if (path)
                probe_send(probe, JOB_EVENTS, "GET", path, (struct kvr_slice){NULL, 0}, PROBE_POLL_TIMEOUT_MS,
                           BODY_MAX);
        else if (traits->kind == ENGINE_TRTLLM || traits->kind == ENGINE_OPENAI)
                follow_rule(probe);
        else
                cannot(probe, "this kind of engine publishes none");
}

/* What was seen of its process and its cache elsewhere. */
static void pass_signs(struct probe *probe)
{
        unsigned restarts = atomic_load(&probe->target->restarts),
                 clears = atomic_load(&probe->target->clears);

        if (!probe->events_followed) {
                probe->restarts_passed = restarts;
                probe->clears_passed = clears;
                return;
        }
        if (restarts != probe->restarts_passed) {
                events_restarted(events_of(probe), probe->target->id);
                probe->jobs[JOB_EVENTS].due_ms = 0; /* its ports may be others now */
        } else if (clears != probe->clears_passed) {
                events_cleared(events_of(probe), probe->target->id);
        }
        probe->restarts_passed = restarts;
        probe->clears_passed = clears;
}

/* ---- metrics ---- */

static void set_value(struct probe *probe, enum metric_id id, const char *label, double value)
{
        const struct control_options *options = &probe->control->options;
        const char *name = probe_name(probe);
        struct kvr_slice labels[2] = {{name, strlen(name)}, {label, label ? strlen(label) : 0}};

        metrics_set(options->metrics, metrics_series(options->metrics, options->metrics_thread, id, labels),
                    value);
}

static void show_metrics(struct probe *probe, const struct events_view *view)
{
        const struct kvr_events_account *account = &view->account;
        const struct engine_stream_counters *counters = &view->counters;
        uint64_t ignored = 0, bad = 0;

        for (unsigned why = 1; why < ENGINE_EVENT_WHYS; why++) {
                bool is_bad =
                        why == ENGINE_EVENT_TYPE || why == ENGINE_EVENT_LIMIT || why == ENGINE_EVENT_MEMORY;

                *(is_bad ? &bad : &ignored) += view->why[why];
                if (view->why[why])
                        set_value(probe, METRIC_EVENTS_USELESS,
                                  engine_event_why_name((enum engine_event_why)why), (double)view->why[why]);
        }
        set_value(probe, METRIC_EVENTS, "stored", (double)view->stored);
        set_value(probe, METRIC_EVENTS, "removed", (double)view->removed);
        set_value(probe, METRIC_EVENTS, "cleared", (double)view->cleared);
        set_value(probe, METRIC_EVENTS, "ignored", (double)ignored);
        set_value(probe, METRIC_EVENTS, "bad", (double)bad);
        set_value(probe, METRIC_EVENT_BLOCKS, "stored", (double)account->stored);
        set_value(probe, METRIC_EVENT_BLOCKS, "repeated", (double)account->repeated);
        set_value(probe, METRIC_EVENT_BLOCKS, "removed", (double)account->removed);
        set_value(probe, METRIC_EVENT_BLOCKS, "copy_removed", (double)account->copies_removed);
        set_value(probe, METRIC_EVENT_BLOCKS, "unknown", (double)account->unknown);
        set_value(probe, METRIC_EVENT_BLOCKS, "orphan", (double)account->orphans);
        set_value(probe, METRIC_EVENT_BLOCKS, "refused", (double)account->refused);
        set_value(probe, METRIC_EVENT_BATCHES, "applied", (double)counters->batches);
        set_value(probe, METRIC_EVENT_BATCHES, "duplicate", (double)counters->duplicates);
        set_value(probe, METRIC_EVENT_BATCHES, "lost", (double)counters->lost);
        set_value(probe, METRIC_EVENT_BATCHES, "unheard", (double)counters->unheard);
        set_value(probe, METRIC_EVENT_BATCHES, "unreadable", (double)view->unreadable);
        set_value(probe, METRIC_EVENT_BATCHES, "malformed", (double)view->malformed);
        set_value(probe, METRIC_EVENT_GAPS, NULL, (double)counters->gaps);
        set_value(probe, METRIC_EVENT_REPLAYS, "asked", (double)counters->replays);
        set_value(probe, METRIC_EVENT_REPLAYS, "unanswered", (double)counters->replays_failed);
        set_value(probe, METRIC_EVENT_REPLAYS, "too_old", (double)counters->too_old);
        set_value(probe, METRIC_EVENT_RESTARTS, NULL, (double)counters->restarts);
        set_value(probe, METRIC_EVENT_CLEARS, NULL, (double)counters->clears);
        set_value(probe, METRIC_EVENT_TRUSTED, NULL, view->trusted);
        set_value(probe, METRIC_EVENT_CONNECTED, NULL, view->connected);
}

/* ---- for the others ---- */

void probe_events(struct probe *probe, uint64_t now_ms)
{
        const struct replica_spec *spec = &probe->target->spec;
        struct events_view view;

        if (spec->events == REPLICA_EVENTS_OFF || !events_of(probe))
                return;
        pass_signs(probe);
        bool asked = spec->events == REPLICA_EVENTS_AUTO || is_offered(probe);

        if (!asked && !probe->events_followed)
                follow_configured(probe);
        if (!probe->jobs[JOB_EVENTS].request && now_ms >= probe->jobs[JOB_EVENTS].due_ms &&
            atomic_load(&probe->target->shown_state) != KVR_DOWN) {
                if (asked) {
                        discover(probe, now_ms);
                } else if (spec->events == REPLICA_EVENTS_POLL) {
                        uint64_t every_ms = probe->control->config->metrics_interval_ms;

                        probe->jobs[JOB_EVENTS].due_ms = now_ms + (every_ms ? every_ms : 1000);
                        probe_send(probe, JOB_EVENTS, "POST", "/kv_cache_events", (struct kvr_slice){NULL, 0},
                                   PROBE_POLL_TIMEOUT_MS, ENGINE_EVENT_BATCH_MAX);
                }
        }
        if (now_ms < probe->events_show_ms || !events_view(events_of(probe), probe->target->id, &view))
                return;
        probe->events_show_ms = now_ms + SHOW_MS;
        show_metrics(probe, &view);
}

void probe_events_gone(struct probe *probe)
{
        if (events_of(probe))
                stop_following(probe);
}

bool probe_events_expected(const struct probe *probe)
{
        return probe->target->spec.events != REPLICA_EVENTS_OFF && events_of(probe) != NULL &&
               (!is_offered(probe) || probe->events_followed || probe->events_why[0]);
}

bool probe_events_promised(const struct probe *probe, const struct events_view *view)
{
        return probe_events_expected(probe) && (!is_offered(probe) || view->heard_ns);
}

bool probe_events_view(const struct probe *probe, struct events_view *ret)
{
        return probe_events_expected(probe) && events_view(events_of(probe), probe->target->id, ret);
}

void probe_events_text(const struct probe *probe, char *ret, size_t size)
{
        struct events_view view;
        uint64_t now_ns = log_now_ns(NULL), last;

        ret[0] = '\0';
        if (!probe_events_expected(probe))
                return;
        if (!probe_events_view(probe, &view)) {
                snprintf(ret, size, "%s",
                         probe->events_why[0] ? probe->events_why : "not found out yet where it publishes");
                return;
        }
        last = view.heard_ns ? view.heard_ns : view.followed_ns;
        if (view.error[0])
                snprintf(ret, size, "%s", view.error);
        else if (probe->events_why[0])
                snprintf(ret, size, "%s", probe->events_why);
        else if (now_ns - last >= SILENT_NS || view.deaf)
                snprintf(ret, size, "no events from %s for %.0f s%s", probe_name(probe),
                         (double)(now_ns - last) / 1e9,
                         view.deaf ? "; its replay has some, so the topic or the address is not that of its "
                                     "publisher"
                         : !view.connected ? "; not connected"
                         : !view.heard_ns  ? "; connected, and none has ever come"
                                           : "");
        else if (!view.connected && view.heard_ns)
                snprintf(ret, size, "not connected any more; the last came %.0f s ago",
                         (double)(now_ns - last) / 1e9);
        else if (view.foreign_rank >= 0)
                snprintf(ret, size, "its events are those of rank %d, not %d", (int)view.foreign_rank,
                         (int)view.source.rank);
}
