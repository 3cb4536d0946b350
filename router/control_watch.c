/* SPDX-License-Identifier: Apache-2.0 */
/* Alarms: feeds the watch with what the library and the probes know, and says what it finds. */
#include "control_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LOOK_DEFAULT_MS 1000  /* between two looks where no metrics-interval says so */
#define LOOK_MAX_MS     10000 /* however rarely load is polled */
#define HOLD_LOOKS      10    /* what lasts for so many looks is no hiccup */
#define DOWN_LOOKS      30    /* a replica that is down for so many does not just restart */
#define CACHE_FULL      0.8   /* of a replica's capacity: entries go for want of it */
#define TRUST_NONE      0.05  /* nothing at all of what is predicted comes true */
#define MS              ((uint64_t)1000000)

/* ---- what to do about it ---- */

static void add(char *text, size_t size, const char *piece)
{
        size_t len = strlen(text);

        snprintf(text + len, size - len, "%s", piece);
}

/* Some replica is believed to hold all that it can. */
static bool some_cache_is_full(const struct control *control)
{
        for (const struct probe *probe = control->probes; probe; probe = probe->next) {
                struct kvr_replica_info info;

                if (kvr_replica_info(control->options.fleet->router, probe->target->id, &info) == KVR_OK &&
                    info.capacity_tokens &&
                    (double)info.cached_tokens > CACHE_FULL * (double)info.capacity_tokens)
                        return true;
        }
        return false;
}

static void tell_no_match(const struct control *control, bool of_replica, char *ret, size_t size)
{
        struct kvr_index_info index;

        kvr_router_index_info(control->options.fleet->router, &index);
        add(ret, size,
            of_replica ? "nothing is ever predicted to be cached there, while it reports hits. "
                       : "look-ups find nothing, while engines report hits. ");
        if (index.evictions <= index.entries) /* not even once has its content been replaced */
                add(ret, size,
                    "Likely: requests differ in what the router's key covers and the engine's does not "
                    "(model name, tools, cache_salt), or other routers fill these caches (give all the same "
                    "seed)");
        else if (some_cache_is_full(control))
                add(ret, size,
                    "Entries are dropped before they are asked for again, because replicas are believed to "
                    "hold no more: tell how much they hold by capacity-tokens");
        else
                add(ret, size,
                    "Entries are dropped before they are asked for again, because the index may not grow: "
                    "raise index-memory");
}

static void tell_predictions(const struct probe *probe, const struct kvr_replica_info *info, char *ret,
                             size_t size)
{
        add(ret, size, "what is predicted to be cached there does not come true. ");
        if (probe->load.prefix_caching == 0)
                add(ret, size, "The engine says that its prefix cache is off");
        else if (info->observed_tokens == 0 || info->trust < TRUST_NONE)
                add(ret, size,
                    "It reports 0 each time: its prefix cache is off or was given up, or it does not report "
                    "what it has");
        else
                add(ret, size,
                    "Likely: its cache is emptied by restarts or shared with other clients, capacity-tokens "
                    "is too large, or its chat template changes the beginning of prompts (a date, a "
                    "request's id)");
}

static void tell_unreported(const struct probe *probe, const struct kvr_replica_info *info, char *ret,
                            size_t size)
{
        const struct engine_traits *traits = probe_traits(probe);
        bool some = info->observed_tokens > 0 || atomic_load(&probe->target->reports_cached);
        bool inject = probe->control->config->inject_usage && !traits->rejects_unknown_fields;

        add(ret, size, "its answers do not tell how much of a prompt was cached, so hits are not measured. ");
        if (some)
                add(ret, size, "Some do; streams");
        else if (traits->kind == ENGINE_VLLM)
                add(ret, size, "Start vLLM with --enable-prompt-tokens-details; streams");
        else if (traits->kind == ENGINE_SGLANG)
                add(ret, size, "Start SGLang with --enable-cache-report; streams");
        else if (traits->report == ENGINE_REPORT_GUESS)
                add(ret, size,
                    "Its kind is not known: if it is one of docs/engines.md, say so with the replica's key "
                    "engine; streams");
        else
                add(ret, size,
                    "This engine tells as a rule: its version is old, or something in front of it takes the "
                    "counts away; streams");
        add(ret, size,
            inject ? " may lack them too"
                   : " tell only if the client asks for usage, or with inject-usage on");
}

static void tell_cache_off(const struct probe *probe, char *ret, size_t size)
{
        const struct engine_traits *traits = probe_traits(probe);

        add(ret, size, traits->title);
        add(ret, size, " says that its prefix cache is off: nothing is ever reused there.");
        if (traits->kind == ENGINE_VLLM)
                add(ret, size, " Start it without --no-enable-prefix-caching");
        else if (traits->kind == ENGINE_SGLANG)
                add(ret, size, " Start it without --disable-radix-cache");
}

static void tell_load(const struct probe *probe, bool stale, char *ret, size_t size)
{
        uint64_t now_ns = uv_hrtime();
        size_t len;

        if (stale && probe->load_at_ns && now_ns > probe->load_at_ns)
                snprintf(ret, size, "its figures of load are %.0f s old",
                         (double)(now_ns - probe->load_at_ns) / 1e9);
        else
                snprintf(ret, size, "its load is unknown");
        len = strlen(ret);
        snprintf(ret + len, size - len, " (%s): only what this router sent itself counts.",
                 probe->load_error[0] ? probe->load_error : "no answer");
        switch (probe_traits(probe)->kind) {
        case ENGINE_LLAMACPP:
                add(ret, size, " Start llama.cpp with --metrics");
                break;
        case ENGINE_SGLANG:
                add(ret, size, " Start SGLang with --enable-metrics");
                break;
        case ENGINE_TRTLLM:
                add(ret, size, " Switch return_perf_metrics on");
                break;
        default:
                add(ret, size,
                    " Is its page of metrics switched off, or hidden by something in front of it?");
        }
}

static void tell_down(const struct probe *probe, char *ret, size_t size)
{
        struct target *target = probe->target;

        pthread_mutex_lock(&target->lock);
        snprintf(ret, size, "it is down: %s%s%s%s", target->health.why, target->health_error[0] ? " (" : "",
                 target->health_error, target->health_error[0] ? ")" : "");
        if (target->resolve_error[0])
                snprintf(ret + strlen(ret), size - strlen(ret), " (%s)", target->resolve_error);
        pthread_mutex_unlock(&target->lock);
        add(ret, size,
            ". Start it again, or take it out of the configuration (DELETE /kvroute/replicas/NAME until "
            "then)");
}

static void tell_no_replica(const struct control *control, char *ret, size_t size)
{
        const struct probe *probe = control->probes;
        unsigned count = 0;

        if (!probe) {
                add(ret, size,
                    "there is no replica: requests get 503. Give serve its URL, or POST {\"url\":...} to "
                    "/kvroute/replicas");
                return;
        }
        for (; probe; probe = probe->next)
                count++;
        snprintf(ret, size,
                 "none of the replicas (%u) is ready: requests are tried all the same, or get 503. "
                 "GET /kvroute/replicas tells why of each",
                 count);
}

static void tell_canary(enum kvr_canary canary, char *ret, size_t size)
{
        static const char *const causes[] = {
                [KVR_CANARY_SILENT] =
                        "its events hold nothing: another engine's publisher, or another topic?",
                [KVR_CANARY_NO_TOKENS] =
                        "no tokenizer told the tokens of prompts: is /tokenize served there?",
                [KVR_CANARY_BLOCK_SIZE] = "its events have another block size than block-tokens says",
                [KVR_CANARY_NAMESPACE] = "its events are for another adapter or cache_salt",
                [KVR_CANARY_TEMPLATE] =
                        "its tokens are others than /tokenize gave: a chat template or its arguments differ",
                [KVR_CANARY_STALE] = "it had computed anew what its events say it holds",
        };
        const char *cause = canary < sizeof causes / sizeof *causes ? causes[canary] : NULL;

        add(ret, size, "what its events say is not what it reports: ");
        add(ret, size, cause ? cause : "see GET /kvroute/replicas");
}

static void tell_events(const struct probe *probe, enum watch_alarm alarm,
                        const struct kvr_replica_info *info, char *ret, size_t size)
{
        struct events_view view = {0};
        char why[256];

        (void)probe_events_view(probe, &view);
        probe_events_text(probe, why, sizeof why);
        if (alarm == WATCH_EVENTS_UNMATCHED) {
                tell_canary(info->canary, ret, size);
        } else if (alarm == WATCH_EVENTS_UNTRUSTED) {
                add(ret, size, "its events were lost and could not be had again, or its connection is gone");
                add(ret, size, why[0] ? ": " : "");
                add(ret, size, why);
        } else {
                add(ret, size, why[0] ? why : "no events came, although prompts were computed there");
        }
        /* Silence alone does not make a stream untrusted: an engine may have nothing to say. */
        if (alarm == WATCH_EVENTS_SILENT && view.trusted && info->canary == KVR_CANARY_OK)
                add(ret, size,
                    ". What it has computed since is not seen, until its hits show that the events are not "
                    "all; then they are predicted from what was sent (docs/events.md)");
        else
                add(ret, size,
                    ". Until that is mended, hits there are predicted from what was sent (docs/events.md)");
}

/* False: it was never asked, or nobody asks. */
static bool tokenizer_view(const struct probe *probe, struct tokens_view *ret)
{
        const struct tokens *tokens = probe->control->options.tokens;

        return tokens && tokens_view(tokens, probe->target->id, ret);
}

static void tell_tokenizer(const struct probe *probe, char *ret, size_t size)
{
        struct tokens_view view = {0};

        (void)tokenizer_view(probe, &view);
        snprintf(ret, size,
                 "its tokenizer only fails (%s), so prompts of text cannot be matched with what its events "
                 "say: "
                 "hits are predicted from what was sent. Mend it, or say --tokenize off (docs/events.md)",
                 view.error[0] ? view.error : "no answer");
}

static void tell_full(const struct probe *probe, char *ret, size_t size)
{
        struct events_view view = {0};

        (void)probe_events_view(probe, &view);
        snprintf(ret, size,
                 "no room for %llu of the blocks that its events told of: hits on them are not seen. Raise "
                 "--event-memory (%llu MiB); if that is plenty, look for a replica whose events never remove "
                 "anything (kvroute_event_blocks_total)",
                 (unsigned long long)view.account.refused,
                 (unsigned long long)(probe->control->config->event_memory_bytes >> 20));
}

static void tell_of_replica(const struct probe *probe, enum watch_alarm alarm,
                            const struct kvr_replica_info *info, char *ret, size_t size)
{
        switch (alarm) {
        case WATCH_PREDICTIONS_FAIL:
                tell_predictions(probe, info, ret, size);
                break;
        case WATCH_UNREPORTED:
                tell_unreported(probe, info, ret, size);
                break;
        case WATCH_CACHE_OFF:
                tell_cache_off(probe, ret, size);
                break;
        case WATCH_REPLICA_DOWN:
                tell_down(probe, ret, size);
                break;
        case WATCH_LOAD_MISSING:
        case WATCH_LOAD_STALE:
                tell_load(probe, alarm == WATCH_LOAD_STALE, ret, size);
                break;
        case WATCH_EVENTS_SILENT:
        case WATCH_EVENTS_UNTRUSTED:
        case WATCH_EVENTS_UNMATCHED:
                tell_events(probe, alarm, info, ret, size);
                break;
        case WATCH_EVENTS_FULL:
                tell_full(probe, ret, size);
                break;
        case WATCH_TOKENIZER_FAILS:
                tell_tokenizer(probe, ret, size);
                break;
        default:
                tell_no_match(probe->control, true, ret, size);
        }
}

/* probe NULL: an alarm of the fleet. */
static void tell(const struct control *control, const struct probe *probe, enum watch_alarm alarm, char *ret,
                 size_t size)
{
        struct kvr_replica_info info;

        ret[0] = '\0';
        if (probe) {
                if (kvr_replica_info(control->options.fleet->router, probe->target->id, &info) == KVR_OK)
                        tell_of_replica(probe, alarm, &info, ret, size);
        } else if (alarm == WATCH_NO_MATCH) {
                tell_no_match(control, false, ret, size);
        } else if (alarm == WATCH_NO_REPLICA) {
                tell_no_replica(control, ret, size);
        } else {
                add(ret, size,
                    "most prompts cannot be read and are routed by load only; "
                    "kvroute_unkeyed_requests_total tells why, log-level debug tells which");
        }
}

/* ---- saying it ---- */

static void set_gauge(const struct control *control, const struct probe *probe, enum watch_alarm alarm,
                      double value)
{
        const struct control_options *options = &control->options;
        const char *name = watch_alarm_name(alarm), *replica = probe ? probe_name(probe) : "";
        struct kvr_slice labels[2] = {{name, strlen(name)}, {replica, strlen(replica)}};

        metrics_set(options->metrics,
                    metrics_series(options->metrics, options->metrics_thread, METRIC_ALARM, labels), value);
}

/* probe NULL: an alarm of the fleet. */
static void say(const struct control *control, const struct probe *probe, enum watch_alarm alarm, bool raised)
{
        struct logger *log = control->options.log;
        const char *name = watch_alarm_name(alarm);
        char key[KVR_NAME_MAX + 64], whom[KVR_NAME_MAX + 16] = "", text[CONTROL_ALARM_TEXT];

        if (probe)
                snprintf(whom, sizeof whom, "replica %s: ", probe_name(probe));
        snprintf(key, sizeof key, "%s %s", name, whom);
        set_gauge(control, probe, alarm, raised);
        if (!raised) {
                log_say(log, LOG_INFO, key, "%salarm %s is over", whom, name);
                return;
        }
        tell(control, probe, alarm, text, sizeof text);
        log_say(log, LOG_WARN, key, "%salarm %s: %s", whom, name, text);
}

static void say_changes(const struct control *control, const struct probe *probe, const struct watch *watch,
                        unsigned changed)
{
        for (unsigned i = 0; i < WATCH_COUNT; i++) {
                if (changed & 1u << i)
                        say(control, probe, (enum watch_alarm)i, watch->states[i].raised);
        }
}

/* ---- looking ---- */

/* Requests whose prompt the library could not read, as the workers count them. */
static uint64_t unread_prompts(const struct control *control)
{
        static const enum kvr_status reasons[] = {KVR_E_LIMIT, KVR_E_REQUEST};
        const struct control_options *options = &control->options;
        double sum = 0;

        for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
                const char *name = kvr_status_name(reasons[i]);
                struct kvr_slice label = {name, strlen(name)};

                sum += metrics_value(
                        options->metrics,
                        metrics_series(options->metrics, options->metrics_thread, METRIC_UNKEYED, &label));
        }
        return (uint64_t)sum;
}

/* Whether somebody serves. Until somebody did for the first time, those that start may take their time. */
static enum watch_flag fleet_readiness(struct control *control)
{
        bool starting = false;

        for (const struct probe *probe = control->probes; probe; probe = probe->next) {
                int state = atomic_load(&probe->target->shown_state);

                starting |= state == KVR_STARTING;
                if (state != KVR_READY && state != KVR_TRIAL)
                        continue;
                control->was_ready = true;
                return WATCH_YES;
        }
        return starting && !control->was_ready ? WATCH_UNKNOWN : WATCH_NO;
}

static enum watch_flag is_down(int state)
{
        /* On trial it is still what it was, and one more failure takes it down again. */
        return state == KVR_STARTING                     ? WATCH_UNKNOWN
               : state == KVR_DOWN || state == KVR_TRIAL ? WATCH_YES
                                                         : WATCH_NO;
}

static void look_at_fleet(struct control *control, const struct watch_limits *limits, uint64_t now_ns)
{
        static const enum kvr_reason reasons[] = {
#define REASON(code, name) code,
                KVR_REASON_LIST(REASON)
#undef REASON
        };
        struct kvr_router *router = control->options.fleet->router;
        struct watch_fleet_sample sample = {.ready = fleet_readiness(control),
                                            .unread = unread_prompts(control)};
        struct kvr_index_info index;

        kvr_router_index_info(router, &index);
        sample.lookups = index.lookups;
        sample.lookups_without_match = index.lookups_without_match;
        for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
                struct kvr_reason_account account;

                kvr_router_account(router, reasons[i], &account);
                sample.prompt_tokens += account.prompt_tokens;
                sample.unobserved_tokens += account.unobserved_prompt_tokens;
                sample.predicted_tokens += account.predicted_tokens;
                sample.observed_tokens += account.observed_tokens;
        }
        say_changes(control, NULL, &control->watch, watch_fleet(&control->watch, &sample, limits, now_ns));
}

static enum watch_flag flag_of(double figure)
{
        return figure < 0 ? WATCH_UNKNOWN : figure > 0 ? WATCH_YES : WATCH_NO;
}

static void look_at_replica(struct probe *probe, const struct watch_limits *limits, uint64_t now_ns)
{
        const struct control *control = probe->control;
        int state = atomic_load(&probe->target->shown_state);
        struct kvr_replica_info info;
        struct events_view events = {0};
        struct tokens_view tokenizer = {0};

        if (kvr_replica_info(control->options.fleet->router, probe->target->id, &info) != KVR_OK)
                return;
        (void)probe_events_view(probe, &events);
        (void)tokenizer_view(probe, &tokenizer);
        struct watch_replica_sample sample = {
                .events_expected = probe_events_promised(probe, &events),
                .events_trusted = events.trusted,
                .events_deaf = events.deaf,
                .events_unmatched = info.canary != KVR_CANARY_OK,
                .events_heard = events.heard_ns,
                .events_stored = events.account.stored,
                .events_refused = events.account.refused,
                .tokenized = tokenizer.learned,
                .untokenized = tokenizer.failed,
                .down = is_down(state),
                .ready = state == KVR_READY || state == KVR_TRIAL,
                .load_expected = probe_load_expected(probe),
                .load_at_ns = probe->load_at_ns,
                .caching = flag_of(probe->load.prefix_caching),
                .can_report = probe->detected && probe_traits(probe)->report != ENGINE_REPORT_NEVER,
                .match_explained = control->watch.states[WATCH_NO_MATCH].raised,
                .trust_known = isfinite(info.prediction_error),
                .trust = info.trust,
                .decisions = info.decisions,
                .prompt_tokens = info.prompt_tokens,
                .unobserved_tokens = info.unobserved_tokens,
                .predicted_tokens = info.predicted_tokens,
                .observed_tokens = info.observed_tokens,
        };

        say_changes(control, probe, &probe->watch, watch_replica(&probe->watch, &sample, limits, now_ns));
}

void control_watch(struct control *control, uint64_t now_ms)
{
        uint64_t poll_ms =
                control->config->metrics_interval_ms ? control->config->metrics_interval_ms : LOOK_DEFAULT_MS;
        uint64_t look_ms = poll_ms < LOOK_MAX_MS ? poll_ms : LOOK_MAX_MS, now_ns = uv_hrtime();
        struct watch_limits limits = {.hold_ns = HOLD_LOOKS * look_ms * MS,
                                      .stale_ns = HOLD_LOOKS * poll_ms * MS,
                                      .down_ns = DOWN_LOOKS * look_ms * MS};

        if (now_ms < control->watch_due_ms)
                return;
        control->watch_due_ms = now_ms + look_ms;
        look_at_fleet(control, &limits, now_ns);
        for (struct probe *probe = control->probes; probe; probe = probe->next)
                look_at_replica(probe, &limits, now_ns);
}

void control_watch_drop(struct probe *probe)
{
        for (unsigned i = 0; i < WATCH_COUNT; i++) {
                if (probe->watch.states[i].since_ns)
                        set_gauge(probe->control, probe, (enum watch_alarm)i, NAN);
        }
}

/* ---- for the admin API ---- */

static void each_of(const struct control *control, const struct probe *probe, const struct watch *watch,
                    void (*each)(void *ctx, const struct control_alarm *alarm), void *ctx)
{
        for (unsigned i = 0; i < WATCH_COUNT; i++) {
                struct control_alarm alarm;

                if (!watch->states[i].raised)
                        continue;
                alarm.name = watch_alarm_name((enum watch_alarm)i);
                alarm.replica = probe ? probe_name(probe) : NULL;
                alarm.since_ns = watch->states[i].since_ns;
                tell(control, probe, (enum watch_alarm)i, alarm.text, sizeof alarm.text);
                each(ctx, &alarm);
        }
}

void control_alarms(const struct control *control, const struct target *target,
                    void (*each)(void *ctx, const struct control_alarm *alarm), void *ctx)
{
        if (!target)
                each_of(control, NULL, &control->watch, each, ctx);
        for (const struct probe *probe = control->probes; probe; probe = probe->next) {
                if (!target || probe->target == target)
                        each_of(control, probe, &probe->watch, each, ctx);
        }
}
