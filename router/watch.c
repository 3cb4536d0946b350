/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

enum verdict {
        UNSURE, /* not enough, or in between: stays as it is */
        GOOD,
        BAD,
};

const char *watch_alarm_name(enum watch_alarm alarm)
{
        static const char *const names[WATCH_COUNT] = {
#define WATCH_NAME(code, name) [code] = (name),
                WATCH_ALARM_LIST(WATCH_NAME)
#undef WATCH_NAME
        };

        return names[alarm];
}

/* ---- raising and clearing ---- */

static unsigned set(struct watch *watch, enum watch_alarm alarm, bool raised, uint64_t now_ns)
{
        struct watch_state *state = &watch->states[alarm];

        state->leaning = false;
        if (state->raised == raised)
                return 0;
        state->raised = raised;
        state->since_ns = now_ns;
        return 1u << alarm;
}

/* A condition: changes the alarm when the verdict has been against it for hold_ns without a break. */
static unsigned hold(struct watch *watch, enum watch_alarm alarm, enum verdict verdict, uint64_t hold_ns,
                     uint64_t now_ns)
{
        struct watch_state *state = &watch->states[alarm];

        if (verdict == UNSURE || (verdict == BAD) == state->raised) {
                state->leaning = false;
                return 0;
        }
        if (!state->leaning) {
                state->leaning = true;
                state->leaning_ns = now_ns;
        }
        if (now_ns - state->leaning_ns < hold_ns)
                return 0;
        return set(watch, alarm, verdict == BAD, now_ns);
}

/* A closed window: bad ones must come in a row, a good one is enough. */
static unsigned judge(struct watch *watch, struct watch_window *window, enum watch_alarm alarm,
                      enum verdict verdict, unsigned windows, uint64_t now_ns)
{
        window->open = false;
        window->bad = verdict == BAD ? window->bad + 1 : 0;
        if (verdict == GOOD)
                return set(watch, alarm, false, now_ns);
        return window->bad >= windows ? set(watch, alarm, true, now_ns) : 0;
}

static bool window_lasts(const struct watch_window *window, const struct watch_limits *limits,
                         uint64_t now_ns)
{
        return now_ns - window->start_ns < limits->hold_ns;
}

/* ---- matching ---- */

/* What a window says about matching. */
struct matching {
        double requests, found; /* share of them, or of their tokens, that found something */
        double told, hits;      /* tokens that answers told about, and those of them that were cached */
        double predicted;
};

static enum verdict match_verdict(const struct matching *m)
{
        if (m->found > WATCH_MATCH_GOOD)
                return GOOD;
        if (m->told <= 0)
                return UNSURE;
        if (m->hits < WATCH_MATCH_HITS * m->told || m->hits < WATCH_MATCH_TOKENS * m->requests)
                return GOOD; /* there is nothing to be found: every prompt is new */
        return m->found <= WATCH_MATCH_BAD && m->predicted < WATCH_MATCH_MISSED * m->hits ? BAD : UNSURE;
}

/* ---- the fleet ---- */

static void open_fleet(struct watch_window *window, const struct watch_fleet_sample *sample, uint64_t now_ns)
{
        if (window->open)
                return;
        window->open = true;
        window->start_ns = now_ns;
        window->base.fleet = *sample;
}

static enum verdict match_of_fleet(const struct watch_fleet_sample *from, const struct watch_fleet_sample *to)
{
        double lookups = (double)(to->lookups - from->lookups);
        double prompt = (double)(to->prompt_tokens - from->prompt_tokens);
        struct matching m = {
                .requests = lookups,
                .found = (lookups - (double)(to->lookups_without_match - from->lookups_without_match)) /
                         lookups,
                .told = prompt - (double)(to->unobserved_tokens - from->unobserved_tokens),
                .hits = (double)(to->observed_tokens - from->observed_tokens),
                .predicted = (double)(to->predicted_tokens - from->predicted_tokens),
        };

        return match_verdict(&m);
}

static unsigned watch_lookups(struct watch *watch, const struct watch_fleet_sample *sample,
                              const struct watch_limits *limits, uint64_t now_ns)
{
        struct watch_window *window = &watch->match;
        unsigned changed = 0;

        open_fleet(window, sample, now_ns);
        if (sample->lookups - window->base.fleet.lookups >= WATCH_MATCH_LOOKUPS &&
            !window_lasts(window, limits, now_ns)) {
                changed = judge(watch, window, WATCH_NO_MATCH, match_of_fleet(&window->base.fleet, sample),
                                WATCH_MATCH_WINDOWS, now_ns);
                open_fleet(window, sample, now_ns);
        }
        return changed;
}

static unsigned watch_unread(struct watch *watch, const struct watch_fleet_sample *sample,
                             const struct watch_limits *limits, uint64_t now_ns)
{
        struct watch_window *window = &watch->unread;
        unsigned changed = 0;

        open_fleet(window, sample, now_ns);
        double unread = (double)(sample->unread - window->base.fleet.unread);
        double all = unread + (double)(sample->lookups - window->base.fleet.lookups);

        if (all >= WATCH_UNREAD_PROMPTS_SEEN && !window_lasts(window, limits, now_ns)) {
                enum verdict verdict = unread > WATCH_UNREAD_BAD * all    ? BAD
                                       : unread < WATCH_UNREAD_GOOD * all ? GOOD
                                                                          : UNSURE;

                changed = judge(watch, window, WATCH_UNREAD_PROMPTS, verdict, 1, now_ns);
                open_fleet(window, sample, now_ns);
        }
        return changed;
}

static enum verdict flag_verdict(enum watch_flag flag, enum watch_flag bad)
{
        return flag == WATCH_UNKNOWN ? UNSURE : flag == bad ? BAD : GOOD;
}

unsigned watch_fleet(struct watch *watch, const struct watch_fleet_sample *sample,
                     const struct watch_limits *limits, uint64_t now_ns)
{
        return watch_lookups(watch, sample, limits, now_ns) | watch_unread(watch, sample, limits, now_ns) |
               hold(watch, WATCH_NO_REPLICA, flag_verdict(sample->ready, WATCH_NO), limits->hold_ns, now_ns);
}

/* ---- one replica ---- */

static void open_replica(struct watch_window *window, const struct watch_replica_sample *sample,
                         uint64_t now_ns)
{
        if (window->open)
                return;
        window->open = true;
        window->start_ns = now_ns;
        window->base.replica = *sample;
}

static enum verdict match_of_replica(const struct watch_replica_sample *from,
                                     const struct watch_replica_sample *to)
{
        double prompt = (double)(to->prompt_tokens - from->prompt_tokens);
        struct matching m = {
                .requests = (double)(to->decisions - from->decisions),
                .told = prompt - (double)(to->unobserved_tokens - from->unobserved_tokens),
                .hits = (double)(to->observed_tokens - from->observed_tokens),
                .predicted = (double)(to->predicted_tokens - from->predicted_tokens),
        };

        m.found = prompt > 0 ? m.predicted / prompt : 0;
        return match_verdict(&m);
}

/* One replica may be blind where the fleet as a whole is not. */
static unsigned watch_match(struct watch *watch, const struct watch_replica_sample *sample,
                            const struct watch_limits *limits, uint64_t now_ns)
{
        struct watch_window *window = &watch->match;
        unsigned changed = 0;

        if (sample->match_explained || watch->states[WATCH_PREDICTIONS_FAIL].raised)
                window->open = false;
        open_replica(window, sample, now_ns);
        if (sample->decisions - window->base.replica.decisions >= WATCH_MATCH_LOOKUPS &&
            !window_lasts(window, limits, now_ns)) {
                changed = judge(watch, window, WATCH_NO_MATCH,
                                match_of_replica(&window->base.replica, sample), WATCH_MATCH_WINDOWS, now_ns);
                open_replica(window, sample, now_ns);
        }
        return changed;
}

static unsigned watch_trust(struct watch *watch, const struct watch_replica_sample *sample,
                            const struct watch_limits *limits, uint64_t now_ns)
{
        bool raised = watch->states[WATCH_PREDICTIONS_FAIL].raised;
        enum verdict verdict = !sample->trust_known               ? UNSURE
                               : sample->trust < WATCH_TRUST_BAD  ? BAD
                               : sample->trust > WATCH_TRUST_GOOD ? GOOD
                                                                  : UNSURE;

        /* Trust only moves with traffic: low and idle is no news. */
        if (verdict != BAD || !watch->looked)
                watch->doubt_decisions = sample->decisions;
        else if (!raised && sample->decisions - watch->doubt_decisions < WATCH_TRUST_DECISIONS)
                verdict = UNSURE;
        return hold(watch, WATCH_PREDICTIONS_FAIL, verdict, limits->hold_ns, now_ns);
}

static unsigned watch_report(struct watch *watch, const struct watch_replica_sample *sample,
                             const struct watch_limits *limits, uint64_t now_ns)
{
        struct watch_window *window = &watch->report;
        enum verdict verdict = UNSURE;

        open_replica(window, sample, now_ns);
        double tokens = (double)(sample->prompt_tokens - window->base.replica.prompt_tokens);
        double unknown = (double)(sample->unobserved_tokens - window->base.replica.unobserved_tokens);

        if (!sample->can_report) {
                window->open = false;
                return set(watch, WATCH_UNREPORTED, false, now_ns);
        }
        if (tokens < WATCH_REPORT_TOKENS || window_lasts(window, limits, now_ns) ||
            sample->decisions - window->base.replica.decisions < WATCH_REPORT_DECISIONS)
                return 0;
        if (unknown >= WATCH_REPORT_BAD * tokens)
                verdict = BAD;
        else if (unknown <= WATCH_REPORT_GOOD * tokens)
                verdict = GOOD;
        return judge(watch, window, WATCH_UNREPORTED, verdict, 1, now_ns);
}

static unsigned watch_load(struct watch *watch, const struct watch_replica_sample *sample,
                           const struct watch_limits *limits, uint64_t now_ns)
{
        enum verdict missing = GOOD, stale = GOOD;

        if (!sample->ready) {
                missing = stale = UNSURE; /* nobody asks a replica that is down */
        } else if (sample->load_expected && sample->load_at_ns == 0) {
                missing = BAD;
        } else if (sample->load_expected && now_ns > sample->load_at_ns) {
                uint64_t age_ns = now_ns - sample->load_at_ns;

                stale = age_ns > limits->stale_ns ? BAD : age_ns > limits->stale_ns / 2 ? UNSURE : GOOD;
        }
        return hold(watch, WATCH_LOAD_MISSING, missing, limits->hold_ns, now_ns) |
               /* The age of the figures is most of the wait already. */
               hold(watch, WATCH_LOAD_STALE, stale,
                    watch->states[WATCH_LOAD_STALE].raised ? limits->hold_ns : limits->hold_ns / 2, now_ns);
}

static uint64_t computed_tokens(const struct watch_replica_sample *sample)
{
        return sample->prompt_tokens > sample->observed_tokens
                       ? sample->prompt_tokens - sample->observed_tokens
                       : 0;
}

/* Prompts that were computed leave blocks behind, which it must tell of. Hits alone tell nothing. */
static enum verdict events_verdict(struct watch *watch, const struct watch_replica_sample *sample,
                                   const struct watch_limits *limits, uint64_t now_ns)
{
        bool heard = sample->events_heard != watch->events_heard;

        if (heard || !watch->looked) {
                watch->events_heard = sample->events_heard;
                watch->events_heard_ns = now_ns;
                watch->events_decisions = sample->decisions;
                watch->events_computed = computed_tokens(sample);
                return heard ? GOOD : UNSURE;
        }
        if (sample->events_deaf)
                return BAD;
        if (now_ns - watch->events_heard_ns < limits->hold_ns ||
            sample->decisions - watch->events_decisions < WATCH_EVENTS_DECISIONS ||
            computed_tokens(sample) - watch->events_computed < WATCH_EVENTS_TOKENS)
                return watch->states[WATCH_EVENTS_SILENT].raised ? UNSURE : GOOD;
        return BAD;
}

static unsigned watch_events(struct watch *watch, const struct watch_replica_sample *sample,
                             const struct watch_limits *limits, uint64_t now_ns)
{
        enum verdict silent = GOOD, untrusted = GOOD, unmatched = GOOD;

        if (sample->events_expected) {
                silent = events_verdict(watch, sample, limits, now_ns);
                untrusted = !sample->ready || sample->events_heard == 0 ? UNSURE
                            : sample->events_trusted                    ? GOOD
                                                                        : BAD;
                unmatched = sample->events_unmatched ? BAD : GOOD;
        }
        /* Its hold is in the verdict already: events that come again clear it at once. */
        return hold(watch, WATCH_EVENTS_SILENT, silent, 0, now_ns) |
               hold(watch, WATCH_EVENTS_UNTRUSTED, untrusted, untrusted == BAD ? limits->down_ns : 0,
                    now_ns) |
               hold(watch, WATCH_EVENTS_UNMATCHED, unmatched, limits->hold_ns, now_ns);
}

/* One refusal is enough: what is not known stays unknown until it is stored again. Room is there when something is
 * stored and nothing refused. */
static unsigned watch_room(struct watch *watch, const struct watch_replica_sample *sample,
                           const struct watch_limits *limits, uint64_t now_ns)
{
        bool more = sample->events_refused > watch->refused;

        /* A stream that is made anew counts from zero. */
        if (more || sample->events_refused < watch->refused || sample->events_stored < watch->stored) {
                watch->refused = sample->events_refused;
                watch->stored = sample->events_stored;
        }
        if (more)
                return set(watch, WATCH_EVENTS_FULL, true, now_ns);
        bool room = !sample->events_expected || sample->events_stored != watch->stored;

        return hold(watch, WATCH_EVENTS_FULL, room ? GOOD : UNSURE, limits->hold_ns, now_ns);
}

/* Questions without any answer, for longer than a restart takes. One answer is enough to end it. */
static unsigned watch_tokenizer(struct watch *watch, const struct watch_replica_sample *sample,
                                const struct watch_limits *limits, uint64_t now_ns)
{
        bool raised = watch->states[WATCH_TOKENIZER_FAILS].raised;
        enum verdict verdict = raised ? UNSURE : GOOD;

        if (sample->tokenized != watch->tokenized || !watch->looked) {
                watch->tokenized = sample->tokenized;
                watch->untokenized = sample->untokenized;
                verdict = GOOD;
        } else if (!sample->events_expected) {
                verdict = GOOD;
        } else if (sample->untokenized - watch->untokenized >= WATCH_TOKENIZER_FAILURES) {
                verdict = BAD;
        }
        return hold(watch, WATCH_TOKENIZER_FAILS, verdict, verdict == BAD ? limits->hold_ns : 0, now_ns);
}

unsigned watch_replica(struct watch *watch, const struct watch_replica_sample *sample,
                       const struct watch_limits *limits, uint64_t now_ns)
{
        enum verdict off = sample->ready ? flag_verdict(sample->caching, WATCH_NO) : UNSURE;
        uint64_t down_ns = watch->states[WATCH_REPLICA_DOWN].raised ? limits->hold_ns : limits->down_ns;

        unsigned changed =
                watch_match(watch, sample, limits, now_ns) | watch_trust(watch, sample, limits, now_ns) |
                watch_report(watch, sample, limits, now_ns) | watch_load(watch, sample, limits, now_ns) |
                watch_events(watch, sample, limits, now_ns) | watch_room(watch, sample, limits, now_ns) |
                watch_tokenizer(watch, sample, limits, now_ns) |
                hold(watch, WATCH_CACHE_OFF, off, limits->hold_ns, now_ns) |
                hold(watch, WATCH_REPLICA_DOWN, flag_verdict(sample->down, WATCH_YES), down_ns, now_ns);

        watch->looked = true;
        return changed;
}
