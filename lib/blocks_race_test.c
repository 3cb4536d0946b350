/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers beside a writer, for the thread sanitizer and against an oracle: whatever depth a reader is told, the
 * lane held that many blocks of the text at some moment of the call.
 *
 * Each lane holds parts of a forest, four trunks of which each has four branches; a text is a trunk and a
 * branch. Trunks and branches grow and shrink at their ends, lanes are closed and opened, and a lane of
 * passers-by makes the tables grow and shrink and nodes change hands.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include <cmocka.h>

#include "blocks_test_util.h"

#define LANES    6
#define IDLE     150 /* lanes between those, so that sets have several words */
#define TRUNKS   4
#define BRANCHES 4
#define PART     30 /* blocks of a trunk and of a branch */
#define TEXTS    (TRUNKS * BRANCHES)
#define READERS  6 /* more than cores: one that is interrupted in the middle sees the most changes */
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define STEPS 6000
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define STEPS 6000
#endif
#ifndef STEPS
#define STEPS 30000
#endif
#define HISTORY 64
#define PASSERS 400

struct place {
        _Atomic uint32_t lane;
        _Atomic uint32_t turns[TEXTS];         /* changes so far */
        _Atomic uint32_t most[TEXTS][HISTORY]; /* blocks held before or after the change, whichever is more */
        uint32_t trunks[TRUNKS], branches[TEXTS]; /* the writer's own view */
};

struct race {
        struct kvr__blocks *blocks;
        struct text texts[TEXTS];
        struct place places[LANES];
        _Atomic bool done;
        _Atomic uint64_t looked, exact, wrong;
        uint64_t random;
};

static uint32_t depth_of(const struct place *place, uint32_t text)
{
        uint32_t trunk = place->trunks[text / BRANCHES];

        return trunk < PART ? trunk : PART + place->branches[text];
}

/* Says what the lane may hold from now on; the last word on it stays in the history. */
static void tell(struct place *place, uint32_t text, uint32_t most)
{
        uint32_t turn = atomic_load(&place->turns[text]) + 1;

        atomic_store(&place->most[text][turn % HISTORY], most);
        atomic_store(&place->turns[text], turn);
}

static void tell_all(struct place *place, const uint32_t *before)
{
        for (uint32_t text = 0; text < TEXTS; text++) {
                uint32_t now = depth_of(place, text);

                if (now != before[text])
                        tell(place, text, now > before[text] ? now : before[text]);
        }
}

static void settle_all(struct place *place, const uint32_t *before)
{
        for (uint32_t text = 0; text < TEXTS; text++)
                if (depth_of(place, text) != before[text])
                        tell(place, text, depth_of(place, text));
}

/* Moves the end of a trunk or a branch of one lane. */
static void place_change(struct race *race, struct place *place)
{
        uint64_t draw = text_mix(race->random++);
        uint32_t text = (uint32_t)(draw % TEXTS), trunk = text / BRANCHES, before[TEXTS];
        uint32_t to = (uint32_t)((draw >> 8) % (PART + 1)), from;
        struct kvr_events_account account = {0};
        bool bare = true;

        for (uint32_t i = 0; i < TEXTS; i++)
                before[i] = depth_of(place, i);
        for (uint32_t i = trunk * BRANCHES; i < (trunk + 1) * BRANCHES; i++)
                bare &= place->branches[i] == 0;
        if (place->trunks[trunk] == PART && (!bare || draw >> 16 & 1)) {
                from = PART + place->branches[text];
                place->branches[text] = to;
                to += PART;
        } else {
                from = place->trunks[trunk];
                to = draw >> 17 & 1 ? PART : to;
                place->trunks[trunk] = to;
        }
        tell_all(place, before);
        uint16_t lane = (uint16_t)atomic_load(&place->lane);

        if (to > from)
                text_store(race->blocks, lane, &race->texts[text], from, to, &account);
        else
                text_remove(race->blocks, lane, &race->texts[text], to, from, &account);
        settle_all(place, before);
}

static void place_clear(struct race *race, struct place *place)
{
        uint32_t before[TEXTS];
        uint16_t lane;

        for (uint32_t i = 0; i < TEXTS; i++)
                before[i] = depth_of(place, i);
        kvr__blocks_lane_close(race->blocks, (uint16_t)atomic_load(&place->lane));
        memset(place->trunks, 0, sizeof(place->trunks));
        memset(place->branches, 0, sizeof(place->branches));
        settle_all(place, before);
        if (kvr__blocks_lane_open(race->blocks, &lane))
                atomic_store(&place->lane, lane);
        else
                atomic_fetch_add(&race->wrong, 1);
}

static void reader_check(struct race *race, uint32_t text, const uint32_t *lanes, const uint32_t *turns,
                         const uint32_t *depths)
{
        for (uint32_t i = 0; i < LANES; i++) {
                struct place *place = &race->places[i];
                uint32_t now = atomic_load(&place->turns[text]), most = 0;

                if (now - turns[i] > HISTORY - 4 || lanes[i] != atomic_load(&place->lane))
                        continue;
                for (uint32_t turn = turns[i]; turn != now + 1; turn++) {
                        uint32_t told = atomic_load(&place->most[text][turn % HISTORY]);

                        most = told > most ? told : most;
                }
                if (atomic_load(&place->turns[text]) - turns[i] > HISTORY - 4)
                        continue;
                atomic_fetch_add(&race->looked, 1);
                if (depths[lanes[i]] > most)
                        atomic_fetch_add(&race->wrong, 1);
                if (now == turns[i] && depths[lanes[i]] == most)
                        atomic_fetch_add(&race->exact, 1);
        }
}

static void *reader_run(void *arg)
{
        struct race *race = arg;
        uint64_t random = (uint64_t)(uintptr_t)&race;

        while (!atomic_load(&race->done)) {
                uint32_t text = (uint32_t)(text_mix(random++) % TEXTS);
                uint32_t lanes[LANES], turns[LANES], depths[KVR__BLOCK_LANES_MAX], words = 1;
                uint64_t want[KVR__BLOCK_LANE_WORDS] = {0};
                struct kvr__chain chain = {race->texts[text].keys, race->texts[text].count};
                struct kvr__blocks_stats stats;

                for (uint32_t i = 0; i < LANES; i++) {
                        turns[i] = atomic_load(&race->places[i].turns[text]);
                        lanes[i] = atomic_load(&race->places[i].lane);
                        want[lanes[i] / 64] |= 1ULL << (lanes[i] % 64);
                        words = lanes[i] / 64 + 1 > words ? lanes[i] / 64 + 1 : words;
                }
                kvr__blocks_depths(race->blocks, &chain, want, words, depths);
                reader_check(race, text, lanes, turns, depths);
                kvr__blocks_stats(race->blocks, &stats);
                if (stats.bytes > stats.bytes_max)
                        atomic_fetch_add(&race->wrong, 1);
        }
        return NULL;
}

static void passers_pass(struct race *race, uint16_t lane, struct text *text, uint64_t number)
{
        struct kvr_events_account account = {0};

        if (number)
                text_remove(race->blocks, lane, text, 0, PASSERS, &account);
        text_of(text, 1000000 + number * PASSERS, PASSERS);
        text_store(race->blocks, lane, text, 0, PASSERS, &account);
}

static void race_setup(struct race *race, uint16_t *ret_passers)
{
        struct kvr_events_account account = {0};
        uint16_t lane;

        race->blocks = kvr__blocks_new(8U << 20, 3);
        assert_non_null(race->blocks);
        for (uint32_t i = 0; i < TEXTS; i++) {
                text_of(&race->texts[i], i / BRANCHES * 1000, PART);
                for (uint32_t at = 0; at < PART; at++)
                        text_add(&race->texts[i], 10000 + i * 100 + at);
        }
        for (uint32_t i = 0; i < LANES; i++) {
                assert_true(kvr__blocks_lane_open(race->blocks, &lane));
                atomic_store(&race->places[i].lane, lane);
                for (uint32_t idle = 0; idle < IDLE; idle++) {
                        assert_true(kvr__blocks_lane_open(race->blocks, &lane));
                        if (idle % 40 == 0)
                                text_store(race->blocks, lane, &race->texts[i], 0, PART, &account);
                }
        }
        assert_true(kvr__blocks_lane_open(race->blocks, ret_passers));
}

static void readers_never_see_too_much(void **state)
{
        static struct race race;
        static struct text passers;
        pthread_t threads[READERS];
        uint16_t lane;

        (void)state;
        race_setup(&race, &lane);
        for (uint32_t i = 0; i < READERS; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, reader_run, &race), 0);
        for (uint32_t step = 0; step < STEPS; step++) {
                struct place *place = &race.places[text_mix(race.random++) % LANES];

                if (step % 50 == 0)
                        passers_pass(&race, lane, &passers, step / 50);
                if (step % 97 == 0)
                        place_clear(&race, place);
                else
                        place_change(&race, place);
        }
        /* A writer that is at rest is seen exactly; on one core the readers may not have run before. */
        for (uint64_t seen = atomic_load(&race.exact); atomic_load(&race.exact) < seen + 1000;)
                sched_yield();
        atomic_store(&race.done, true);
        for (uint32_t i = 0; i < READERS; i++)
                pthread_join(threads[i], NULL);
        assert_int_equal(atomic_load(&race.wrong), 0);
        assert_true(atomic_load(&race.exact) * 10 > atomic_load(&race.looked) * 8);
        assert_true(kvr__blocks_check(race.blocks));
        kvr__blocks_free(race.blocks);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(readers_never_see_too_much),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
