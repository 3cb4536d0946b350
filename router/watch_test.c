/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define S    ((uint64_t)1000000000)
#define LOOK S /* the time between two looks in these tests */

static const struct watch_limits limits = {.hold_ns = 10 * S, .stale_ns = 10 * S, .down_ns = 30 * S};

#define BIT(alarm) (1u << (alarm))

/* ---- the fleet ---- */

struct fleet {
        struct watch watch;
        struct watch_fleet_sample sums;
        uint64_t now_ns;
        unsigned raised, cleared; /* how often */
};

static void fleet_look(struct fleet *f)
{
        f->now_ns += LOOK;
        unsigned changed = watch_fleet(&f->watch, &f->sums, &limits, f->now_ns);

        for (unsigned i = 0; i < WATCH_COUNT; i++) {
                if (!(changed & BIT(i)))
                        continue;
                if (f->watch.states[i].raised)
                        f->raised++;
                else
                        f->cleared++;
                assert_int_equal(f->watch.states[i].since_ns, f->now_ns);
        }
}

/*
 * One second with ten prompts of 1000 tokens, of which `found` matched; all report, on average, `hit` tokens.
 */
static void fleet_second(struct fleet *f, unsigned found, unsigned hit)
{
        f->sums.lookups += 10;
        f->sums.lookups_without_match += 10 - found;
        f->sums.prompt_tokens += 10000;
        f->sums.predicted_tokens += found * 800;
        f->sums.observed_tokens += 10 * hit;
        fleet_look(f);
}

static bool no_match(const struct fleet *f)
{
        return f->watch.states[WATCH_NO_MATCH].raised;
}

static void hits_that_nobody_predicts_raise_no_match(void **state)
{
        struct fleet f = {0};
        unsigned seconds = 0;

        (void)state;
        for (; !no_match(&f) && seconds < 1000; seconds++)
                fleet_second(&f, 0, 500);
        /* Three windows of a hundred look-ups, and the look that opens the first. */
        assert_in_range(seconds, 30, 34);
        for (unsigned i = 0; i < 100; i++)
                fleet_second(&f, 0, 500);
        assert_true(no_match(&f));
        assert_int_equal(f.raised, 1);
        assert_int_equal(f.cleared, 0);
}

static void unique_prompts_raise_nothing(void **state)
{
        struct fleet f = {0};

        (void)state;
        for (unsigned i = 0; i < 1000; i++)
                fleet_second(&f, 0, 120); /* what a chat template puts first is always there */
        assert_int_equal(f.raised, 0);
}

static void a_fleet_that_reports_nothing_raises_no_match_never(void **state)
{
        struct fleet f = {0};

        (void)state;
        for (unsigned i = 0; i < 1000; i++) {
                f.sums.unobserved_tokens += 10000;
                fleet_second(&f, 0, 0);
        }
        assert_int_equal(f.raised, 0);
}

static void an_idle_fleet_raises_nothing_and_keeps_what_it_has(void **state)
{
        struct fleet f = {0};

        (void)state;
        for (unsigned i = 0; i < 1000; i++)
                fleet_look(&f);
        assert_int_equal(f.raised, 0);
        for (unsigned i = 0; i < 60; i++)
                fleet_second(&f, 0, 500);
        assert_true(no_match(&f));
        for (unsigned i = 0; i < 10000; i++)
                fleet_look(&f);
        assert_true(no_match(&f));
        assert_int_equal(f.cleared, 0);
}

/*
 * A router that starts before warm engines: conversations are strangers once, and known at their second turn.
 */
static void a_cold_start_raises_nothing(void **state)
{
        struct fleet f = {0};

        (void)state;
        for (unsigned i = 0; i < 20; i++)
                fleet_second(&f, 0, 800);
        for (unsigned i = 0; i < 100; i++)
                fleet_second(&f, 5, 800);
        assert_int_equal(f.raised, 0);
}

static void a_burst_is_no_evidence(void **state)
{
        struct fleet f = {0};

        (void)state;
        fleet_look(&f);
        /* A thousand look-ups within a second, then nothing more: one window, not three. */
        for (unsigned i = 0; i < 100; i++) {
                f.sums.lookups += 10;
                f.sums.lookups_without_match += 10;
                f.sums.prompt_tokens += 10000;
                f.sums.observed_tokens += 5000;
        }
        for (unsigned i = 0; i < 1000; i++)
                fleet_look(&f);
        assert_int_equal(f.raised, 0);
}

static void matches_clear_no_match_at_once_and_a_few_do_not(void **state)
{
        struct fleet f = {0};

        (void)state;
        for (unsigned i = 0; i < 60; i++)
                fleet_second(&f, 0, 500);
        /* Between the two thresholds it stays: two of a hundred. */
        for (unsigned i = 0; i < 400; i++)
                fleet_second(&f, i % 10 == 0 ? 2 : 0, 500);
        assert_true(no_match(&f));
        for (unsigned i = 0; i < 25; i++)
                fleet_second(&f, 6, 500);
        assert_false(no_match(&f));
        assert_int_equal(f.raised, 1);
        assert_int_equal(f.cleared, 1);
}

static void two_bad_windows_and_a_better_one_are_no_alarm(void **state)
{
        struct fleet f = {0};

        (void)state;
        for (unsigned round = 0; round < 50; round++) {
                for (unsigned i = 0; i < 20; i++)
                        fleet_second(&f, 0, 500);
                for (unsigned i = 0; i < 10; i++)
                        fleet_second(&f, 3, 500);
        }
        assert_int_equal(f.raised, 0);
}

static void prompts_that_cannot_be_read_raise_their_alarm(void **state)
{
        struct fleet f = {0};

        (void)state;
        for (unsigned i = 0; i < 100; i++) { /* one in eleven: no alarm */
                f.sums.unread++;
                fleet_second(&f, 9, 500);
        }
        assert_int_equal(f.raised, 0);
        for (unsigned i = 0; i < 30; i++) {
                f.sums.unread += 10;
                fleet_look(&f);
        }
        assert_true(f.watch.states[WATCH_UNREAD_PROMPTS].raised);
        for (unsigned i = 0; i < 30; i++)
                fleet_second(&f, 9, 500);
        assert_false(f.watch.states[WATCH_UNREAD_PROMPTS].raised);
        assert_int_equal(f.raised, 1);
        assert_int_equal(f.cleared, 1);
}

/* ---- one replica ---- */

struct replica {
        struct watch watch;
        struct watch_replica_sample sample;
        uint64_t now_ns;
        unsigned raised[WATCH_COUNT], cleared[WATCH_COUNT];
        bool polled; /* its load page answers */
};

static struct replica replica(void)
{
        return (struct replica){
                .sample = {.ready = true, .load_expected = true, .can_report = true, .trust = 1},
                .now_ns = 1000 * S,
                .polled = true,
        };
}

static void replica_look(struct replica *r)
{
        r->now_ns += LOOK;
        if (r->polled)
                r->sample.load_at_ns = r->now_ns;
        unsigned changed = watch_replica(&r->watch, &r->sample, &limits, r->now_ns);

        for (unsigned i = 0; i < WATCH_COUNT; i++) {
                if (changed & BIT(i) && r->watch.states[i].raised)
                        r->raised[i]++;
                else if (changed & BIT(i))
                        r->cleared[i]++;
        }
}

static unsigned alarms_of(const struct replica *r)
{
        unsigned raised = 0;

        for (unsigned i = 0; i < WATCH_COUNT; i++)
                raised |= r->watch.states[i].raised ? BIT(i) : 0;
        return raised;
}

/* One second with two prompts of 1000 tokens, whose answers tell the cached count or not. */
static void replica_second(struct replica *r, bool told)
{
        r->sample.decisions += 2;
        r->sample.prompt_tokens += 2000;
        r->sample.unobserved_tokens += told ? 0 : 2000;
        replica_look(r);
}

static void a_healthy_replica_has_no_alarms_busy_or_idle(void **state)
{
        struct replica r = replica();

        (void)state;
        for (unsigned i = 0; i < 500; i++) {
                replica_second(&r, true);
                r.sample.trust_known = true;
        }
        for (unsigned i = 0; i < 500; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
        for (unsigned i = 0; i < WATCH_COUNT; i++)
                assert_int_equal(r.raised[i], 0);
}

/* Two prompts of 1000 tokens, of which so many were cached and so many were predicted. */
static void replica_match(struct replica *r, unsigned hits, unsigned predicted)
{
        r->sample.observed_tokens += 2 * hits;
        r->sample.predicted_tokens += 2 * predicted;
        replica_second(r, true);
}

static void a_replica_can_be_blind_alone(void **state)
{
        struct replica r = replica();
        unsigned seconds = 0;

        (void)state;
        while (alarms_of(&r) == 0 && seconds++ < 1000)
                replica_match(&r, 500, 2);
        assert_int_equal(alarms_of(&r), BIT(WATCH_NO_MATCH));
        assert_in_range(seconds, 150, 153); /* three windows of a hundred decisions */
        for (unsigned i = 0; i < 60; i++)
                replica_match(&r, 500, 450);
        assert_int_equal(alarms_of(&r), 0);
        assert_int_equal(r.raised[WATCH_NO_MATCH], 1);
        for (unsigned i = 0; i < 1000; i++)
                replica_match(&r, 60, 0); /* nothing to be found */
        assert_int_equal(r.raised[WATCH_NO_MATCH], 1);
}

static void what_the_fleet_says_already_is_not_said_of_each_replica(void **state)
{
        struct replica r = replica();

        (void)state;
        r.sample.match_explained = true;
        for (unsigned i = 0; i < 1000; i++)
                replica_match(&r, 500, 0);
        assert_int_equal(r.raised[WATCH_NO_MATCH], 0);
        r.sample.match_explained = false;
        for (unsigned i = 0; i < 50; i++)
                replica_match(&r, 500, 500);
        assert_int_equal(r.raised[WATCH_NO_MATCH], 0);
}

static void silence_about_the_cache_raises_unreported(void **state)
{
        struct replica r = replica();
        unsigned seconds = 0;

        (void)state;
        while (alarms_of(&r) == 0 && seconds++ < 100)
                replica_second(&r, false);
        assert_int_equal(alarms_of(&r), BIT(WATCH_UNREPORTED));
        assert_in_range(seconds, 10, 12);
        for (unsigned i = 0; i < 100; i++)
                replica_second(&r, i % 4 == 0); /* a quarter tells: in between */
        assert_int_equal(alarms_of(&r), BIT(WATCH_UNREPORTED));
        for (unsigned i = 0; i < 24; i++)
                replica_second(&r, true);
        assert_int_equal(alarms_of(&r), 0);
        assert_int_equal(r.raised[WATCH_UNREPORTED], 1);
        assert_int_equal(r.cleared[WATCH_UNREPORTED], 1);
}

static void few_answers_or_few_tokens_prove_no_silence(void **state)
{
        struct replica r = replica();

        (void)state;
        for (unsigned i = 0; i < WATCH_REPORT_DECISIONS - 1; i++) {
                r.sample.decisions++;
                r.sample.prompt_tokens += 100000;
                r.sample.unobserved_tokens += 100000;
                for (unsigned k = 0; k < 60; k++)
                        replica_look(&r);
        }
        assert_int_equal(alarms_of(&r), 0);
        r = replica();
        for (unsigned i = 0; i < 1000; i++) {
                r.sample.decisions++;
                r.sample.prompt_tokens += 4;
                r.sample.unobserved_tokens += 4;
                replica_look(&r);
        }
        assert_int_equal(alarms_of(&r), 0);
}

static void an_engine_that_never_tells_is_no_alarm(void **state)
{
        struct replica r = replica();

        (void)state;
        for (unsigned i = 0; i < 50; i++)
                replica_second(&r, false);
        assert_int_equal(alarms_of(&r), BIT(WATCH_UNREPORTED));
        r.sample.can_report = false; /* it turned out to be Ollama */
        for (unsigned i = 0; i < 50; i++)
                replica_second(&r, false);
        assert_int_equal(alarms_of(&r), 0);
}

static void lost_trust_raises_its_alarm_and_regained_trust_clears_it(void **state)
{
        struct replica r = replica();
        unsigned seconds = 0;

        (void)state;
        r.sample.trust_known = true;
        while (alarms_of(&r) == 0 && seconds++ < 100) {
                r.sample.trust *= 0.875; /* as the library learns from an answer of which nothing came true */
                r.sample.decisions++;
                replica_look(&r);
        }
        assert_int_equal(alarms_of(&r), BIT(WATCH_PREDICTIONS_FAIL));
        /* Eight to get below 0.35, eight more to be sure, ten seconds to hold. */
        assert_in_range(seconds, 24, 27);
        r.sample.trust = 0.5;
        for (unsigned i = 0; i < 100; i++)
                replica_second(&r, true);
        assert_int_equal(alarms_of(&r), BIT(WATCH_PREDICTIONS_FAIL));
        r.sample.trust = 0.8;
        for (unsigned i = 0; i < 11; i++)
                replica_second(&r, true);
        assert_int_equal(alarms_of(&r), 0);
        assert_int_equal(r.raised[WATCH_PREDICTIONS_FAIL], 1);
}

static void a_restart_alone_is_no_failure_of_predictions(void **state)
{
        struct replica r = replica();

        (void)state;
        r.sample.trust_known = true;
        for (unsigned restart = 0; restart < 20; restart++) {
                for (unsigned i = 0; i < 4; i++) {
                        r.sample.trust *= 0.875;
                        replica_second(&r, true);
                }
                for (unsigned i = 0; i < 60; i++) {
                        r.sample.trust += (1 - r.sample.trust) * 0.125;
                        replica_second(&r, true);
                }
        }
        assert_int_equal(r.raised[WATCH_PREDICTIONS_FAIL], 0);
}

static void low_trust_without_traffic_is_no_news(void **state)
{
        struct replica r = replica();

        (void)state;
        r.sample.trust_known = true;
        r.sample.trust = 0.1;
        r.sample.decisions = 1000;
        for (unsigned i = 0; i < 1000; i++)
                replica_look(&r);
        /* It was that low when the watch began: nothing has happened since. */
        r.sample.decisions += WATCH_TRUST_DECISIONS - 1;
        for (unsigned i = 0; i < 1000; i++)
                replica_look(&r);
        assert_int_equal(r.raised[WATCH_PREDICTIONS_FAIL], 0);
        r.sample.trust_known = false;
        for (unsigned i = 0; i < 100; i++)
                replica_second(&r, true);
        assert_int_equal(r.raised[WATCH_PREDICTIONS_FAIL], 0);
}

static void a_load_page_that_never_works_is_missing(void **state)
{
        struct replica r = replica();
        unsigned seconds = 0;

        (void)state;
        r.polled = false;
        while (alarms_of(&r) == 0 && seconds++ < 100)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_LOAD_MISSING));
        assert_int_equal(seconds, 11);
        r.polled = true;
        for (unsigned i = 0; i < 11; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
        assert_int_equal(r.raised[WATCH_LOAD_STALE], 0);
}

static void a_load_page_that_vanishes_is_stale_until_it_is_back_for_good(void **state)
{
        struct replica r = replica();
        unsigned seconds = 0;

        (void)state;
        for (unsigned i = 0; i < 100; i++)
                replica_look(&r);
        r.polled = false;
        while (alarms_of(&r) == 0 && seconds++ < 100)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_LOAD_STALE));
        assert_in_range(seconds, 15, 17);
        for (unsigned i = 0; i < 10; i++) { /* one answer in 13 seconds is not back for good */
                r.polled = true;
                replica_look(&r);
                r.polled = false;
                for (unsigned k = 0; k < 12; k++)
                        replica_look(&r);
        }
        assert_int_equal(alarms_of(&r), BIT(WATCH_LOAD_STALE));
        r.polled = true;
        for (unsigned i = 0; i < 11; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
        assert_int_equal(r.raised[WATCH_LOAD_STALE], 1);
        assert_int_equal(r.cleared[WATCH_LOAD_STALE], 1);
}

static void nothing_is_missing_where_nothing_is_asked(void **state)
{
        struct replica r = replica();

        (void)state;
        r.polled = false;
        r.sample.load_expected = false; /* no such page, or metrics-interval off */
        for (unsigned i = 0; i < 1000; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
        r.sample.load_expected = true;
        r.sample.ready = false; /* down: that says enough */
        for (unsigned i = 0; i < 1000; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
        r.sample.load_at_ns = 900 * S; /* up again, the old figures are from before */
        r.sample.ready = true;
        replica_look(&r);
        r.polled = true;
        for (unsigned i = 0; i < 100; i++)
                replica_look(&r);
        assert_int_equal(r.raised[WATCH_LOAD_STALE] + r.raised[WATCH_LOAD_MISSING], 0);
}

static void a_cache_that_is_off_is_said_and_unknown_is_not_off(void **state)
{
        struct replica r = replica();

        (void)state;
        for (unsigned i = 0; i < 100; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
        r.sample.caching = WATCH_NO;
        for (unsigned i = 0; i < 11; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_CACHE_OFF));
        r.sample.caching = WATCH_UNKNOWN;
        for (unsigned i = 0; i < 100; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_CACHE_OFF));
        r.sample.caching = WATCH_YES;
        for (unsigned i = 0; i < 11; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
}

static void a_condition_that_comes_and_goes_raises_nothing(void **state)
{
        struct replica r = replica();

        (void)state;
        for (unsigned i = 0; i < 1000; i++) {
                r.sample.caching = i % 10 < 9 ? WATCH_NO : WATCH_YES;
                replica_look(&r);
        }
        assert_int_equal(r.raised[WATCH_CACHE_OFF], 0);
}

static void a_fleet_without_a_ready_replica_raises_no_replica(void **state)
{
        struct fleet f = {0};

        (void)state;
        for (unsigned i = 0; i < 1000; i++)
                fleet_look(&f); /* starting, for as long as it takes */
        assert_int_equal(f.raised, 0);
        f.sums.ready = WATCH_YES;
        fleet_look(&f);
        f.sums.ready = WATCH_NO;
        for (unsigned i = 0; i < 10; i++)
                fleet_look(&f);
        assert_false(f.watch.states[WATCH_NO_REPLICA].raised);
        fleet_look(&f);
        assert_true(f.watch.states[WATCH_NO_REPLICA].raised);
        f.sums.ready = WATCH_UNKNOWN;
        for (unsigned i = 0; i < 100; i++)
                fleet_look(&f);
        assert_true(f.watch.states[WATCH_NO_REPLICA].raised);
        f.sums.ready = WATCH_YES;
        for (unsigned i = 0; i < 11; i++)
                fleet_look(&f);
        assert_false(f.watch.states[WATCH_NO_REPLICA].raised);
        assert_int_equal(f.raised, 1);
        assert_int_equal(f.cleared, 1);
}

static unsigned looks_until(struct watch *watch, struct watch_replica_sample *sample, uint64_t *now_ns,
                            bool raised)
{
        unsigned looks = 0;

        while (watch->states[WATCH_REPLICA_DOWN].raised != raised && looks < 1000) {
                *now_ns += LOOK;
                (void)watch_replica(watch, sample, &limits, *now_ns);
                looks++;
        }
        return looks;
}

static void a_replica_that_stays_down_raises_its_alarm(void **state)
{
        struct watch watch = {0};
        struct watch_replica_sample sample = {.down = WATCH_UNKNOWN};
        uint64_t now_ns = 0;

        (void)state;
        assert_int_equal(looks_until(&watch, &sample, &now_ns, true), 1000); /* starting */
        sample.down = WATCH_YES;
        assert_int_equal(looks_until(&watch, &sample, &now_ns, true), 31);
        sample.down = WATCH_NO;
        assert_int_equal(looks_until(&watch, &sample, &now_ns, false), 11);
        /* A restart is over before that. */
        for (unsigned i = 0; i < 100; i++) {
                sample.down = i % 25 == 0 ? WATCH_NO : WATCH_YES;
                now_ns += LOOK;
                assert_int_equal(watch_replica(&watch, &sample, &limits, now_ns), 0);
        }
}

/* ---- events ---- */

static struct replica telling_replica(void)
{
        struct replica r = replica();

        r.sample.events_expected = r.sample.events_trusted = true;
        r.sample.events_heard = 1;
        replica_look(&r);
        return r;
}

static void prompts_without_events_raise_silence_and_one_event_ends_it(void **state)
{
        struct replica r = telling_replica();
        unsigned seconds = 0;

        (void)state;
        for (unsigned i = 0; i < 100; i++) {
                r.sample.events_heard++;
                replica_second(&r, true);
        }
        assert_int_equal(alarms_of(&r), 0);
        while (alarms_of(&r) == 0 && seconds++ < 100)
                replica_second(&r, true);
        assert_int_equal(alarms_of(&r), BIT(WATCH_EVENTS_SILENT));
        assert_in_range(seconds, 9, 12);
        for (unsigned i = 0; i < 100; i++)
                replica_look(&r); /* idle: still unsolved */
        assert_int_equal(alarms_of(&r), BIT(WATCH_EVENTS_SILENT));
        r.sample.events_heard++;
        replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
}

static void events_that_never_come_raise_silence(void **state)
{
        struct replica r = replica();

        (void)state;
        r.sample.events_expected = true;
        for (unsigned i = 0; i < 60; i++)
                replica_second(&r, true);
        assert_int_equal(alarms_of(&r), BIT(WATCH_EVENTS_SILENT));
}

static void nothing_new_needs_no_events(void **state)
{
        struct replica r = telling_replica();

        (void)state;
        for (unsigned i = 0; i < 500; i++) {
                r.sample.observed_tokens += 2000; /* all of it was cached */
                r.sample.predicted_tokens += 2000;
                replica_second(&r, true);
        }
        assert_int_equal(alarms_of(&r), 0);
        for (unsigned i = 0; i < 500; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
}

static void a_deaf_subscription_is_silence_at_once(void **state)
{
        struct replica r = telling_replica();

        (void)state;
        r.sample.events_deaf = true;
        replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_EVENTS_SILENT));
}

static void distrust_that_lasts_and_mismatch_raise_theirs(void **state)
{
        struct replica r = telling_replica();

        (void)state;
        r.sample.events_trusted = false;
        for (unsigned i = 0; i < 20; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0); /* it may be learning anew */
        for (unsigned i = 0; i < 100; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_EVENTS_UNTRUSTED));
        r.sample.events_trusted = true;
        replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
        r.sample.events_unmatched = true;
        for (unsigned i = 0; i < 30; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_EVENTS_UNMATCHED));
        r.sample.events_unmatched = false;
        for (unsigned i = 0; i < 30; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
}

static void without_events_none_are_missed(void **state)
{
        struct replica r = replica();

        (void)state;
        for (unsigned i = 0; i < 200; i++)
                replica_second(&r, true);
        assert_int_equal(alarms_of(&r), 0);
}

static void blocks_without_room_raise_an_alarm_until_there_is_some(void **state)
{
        struct replica r = telling_replica();

        (void)state;
        for (unsigned i = 0; i < 20; i++) {
                r.sample.events_stored += 100;
                replica_look(&r);
        }
        assert_int_equal(alarms_of(&r), 0);
        r.sample.events_refused++;
        replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_EVENTS_FULL));
        /* Nothing comes: nothing is better. */
        for (unsigned i = 0; i < 100; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_EVENTS_FULL));
        /* Some of each event finds room, and some does not. */
        for (unsigned i = 0; i < 100; i++) {
                r.sample.events_stored += 100;
                r.sample.events_refused += i % 5 == 0;
                replica_look(&r);
        }
        assert_int_equal(alarms_of(&r), BIT(WATCH_EVENTS_FULL));
        r.sample.events_stored++;
        unsigned looks = 0;

        for (; alarms_of(&r) && looks < 100; looks++)
                replica_look(&r);
        assert_in_range(looks, 5, 11);
        /* A stream that is made anew counts from zero, and nothing was refused. */
        struct replica before = r;

        r.sample.events_refused = r.sample.events_stored = 0;
        for (unsigned i = 0; i < 20; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
        r.sample.events_refused = 1;
        replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_EVENTS_FULL));
        r = before;
        /* Where events are not wanted any more nothing is missed. */
        r.sample.events_refused++;
        replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_EVENTS_FULL));
        r.sample.events_expected = false;
        for (unsigned i = 0; i < 20; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
}

static void a_tokenizer_that_only_fails_raises_its_alarm_until_it_answers(void **state)
{
        struct replica r = telling_replica();
        unsigned looks = 0;

        (void)state;
        /* Now and then one fails, or many in a row and then none. */
        for (unsigned i = 0; i < 100; i++) {
                r.sample.untokenized += 2;
                r.sample.tokenized += i % 5 == 0;
                replica_look(&r);
        }
        assert_int_equal(alarms_of(&r), 0);
        r.sample.tokenized++;
        r.sample.untokenized += WATCH_TOKENIZER_FAILURES - 1;
        replica_look(&r);
        r.sample.untokenized += WATCH_TOKENIZER_FAILURES - 1;
        for (unsigned i = 0; i < 100; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
        r.sample.untokenized++;
        for (; alarms_of(&r) == 0 && looks < 100; looks++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_TOKENIZER_FAILS));
        assert_int_equal(looks, 11);
        for (unsigned i = 0; i < 100; i++)
                replica_look(&r); /* nobody asks it any more: still unsolved */
        assert_int_equal(alarms_of(&r), BIT(WATCH_TOKENIZER_FAILS));
        r.sample.tokenized++;
        replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
        /* Where events are not wanted any more nothing is missed. */
        r.sample.untokenized += 100;
        for (unsigned i = 0; i < 20; i++)
                replica_look(&r);
        assert_int_equal(alarms_of(&r), BIT(WATCH_TOKENIZER_FAILS));
        r.sample.events_expected = false;
        replica_look(&r);
        assert_int_equal(alarms_of(&r), 0);
}

static void every_alarm_has_a_name(void **state)
{
        (void)state;
        for (unsigned i = 0; i < WATCH_COUNT; i++)
                assert_true(watch_alarm_name((enum watch_alarm)i)[0] != '\0');
        assert_string_equal(watch_alarm_name(WATCH_NO_MATCH), "no_match");
        assert_string_equal(watch_alarm_name(WATCH_LOAD_STALE), "load_stale");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(hits_that_nobody_predicts_raise_no_match),
                cmocka_unit_test(unique_prompts_raise_nothing),
                cmocka_unit_test(a_fleet_that_reports_nothing_raises_no_match_never),
                cmocka_unit_test(an_idle_fleet_raises_nothing_and_keeps_what_it_has),
                cmocka_unit_test(a_cold_start_raises_nothing),
                cmocka_unit_test(a_burst_is_no_evidence),
                cmocka_unit_test(matches_clear_no_match_at_once_and_a_few_do_not),
                cmocka_unit_test(two_bad_windows_and_a_better_one_are_no_alarm),
                cmocka_unit_test(prompts_that_cannot_be_read_raise_their_alarm),
                cmocka_unit_test(a_healthy_replica_has_no_alarms_busy_or_idle),
                cmocka_unit_test(a_replica_can_be_blind_alone),
                cmocka_unit_test(what_the_fleet_says_already_is_not_said_of_each_replica),
                cmocka_unit_test(silence_about_the_cache_raises_unreported),
                cmocka_unit_test(few_answers_or_few_tokens_prove_no_silence),
                cmocka_unit_test(an_engine_that_never_tells_is_no_alarm),
                cmocka_unit_test(lost_trust_raises_its_alarm_and_regained_trust_clears_it),
                cmocka_unit_test(a_restart_alone_is_no_failure_of_predictions),
                cmocka_unit_test(low_trust_without_traffic_is_no_news),
                cmocka_unit_test(a_load_page_that_never_works_is_missing),
                cmocka_unit_test(a_load_page_that_vanishes_is_stale_until_it_is_back_for_good),
                cmocka_unit_test(nothing_is_missing_where_nothing_is_asked),
                cmocka_unit_test(a_cache_that_is_off_is_said_and_unknown_is_not_off),
                cmocka_unit_test(a_condition_that_comes_and_goes_raises_nothing),
                cmocka_unit_test(a_fleet_without_a_ready_replica_raises_no_replica),
                cmocka_unit_test(a_replica_that_stays_down_raises_its_alarm),
                cmocka_unit_test(prompts_without_events_raise_silence_and_one_event_ends_it),
                cmocka_unit_test(events_that_never_come_raise_silence),
                cmocka_unit_test(nothing_new_needs_no_events),
                cmocka_unit_test(a_deaf_subscription_is_silence_at_once),
                cmocka_unit_test(distrust_that_lasts_and_mismatch_raise_theirs),
                cmocka_unit_test(without_events_none_are_missed),
                cmocka_unit_test(blocks_without_room_raise_an_alarm_until_there_is_some),
                cmocka_unit_test(a_tokenizer_that_only_fails_raises_its_alarm_until_it_answers),
                cmocka_unit_test(every_alarm_has_a_name),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
