/* SPDX-License-Identifier: Apache-2.0 */
#include "index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "brain_test.h"
#include "index_int.h"

#define MEMORY (64U << 20)

/* ---- an oracle: per lane the keys it holds, most recent first, in a plain array ---- */

#define ORACLE_KEYS 4096

struct oracle_lane {
        uint64_t keys[ORACLE_KEYS];
        uint16_t marks[ORACLE_KEYS];
        uint32_t sizes[ORACLE_KEYS];
        uint32_t count;
        bool open;
};

static uint32_t oracle_place(const struct oracle_lane *lane, uint64_t key)
{
        uint32_t i = 0;

        while (i < lane->count && lane->keys[i] != key)
                i++;
        return i;
}

static void oracle_take(struct oracle_lane *lane, uint32_t at)
{
        lane->count--;
        memmove(&lane->keys[at], &lane->keys[at + 1], (lane->count - at) * sizeof(lane->keys[0]));
        memmove(&lane->marks[at], &lane->marks[at + 1], (lane->count - at) * sizeof(lane->marks[0]));
        memmove(&lane->sizes[at], &lane->sizes[at + 1], (lane->count - at) * sizeof(lane->sizes[0]));
}

static void oracle_touch(struct oracle_lane *lane, const struct brain_prompt *p, uint16_t mark)
{
        for (uint32_t i = p->count; i-- > 0;) {
                uint32_t at = oracle_place(lane, p->points[i].key);
                uint16_t keep = mark;

                if (at < lane->count) {
                        oracle_take(lane, at);
                        keep = 0;
                }
                assert_true(lane->count < ORACLE_KEYS);
                memmove(&lane->keys[1], &lane->keys[0], lane->count * sizeof(lane->keys[0]));
                memmove(&lane->marks[1], &lane->marks[0], lane->count * sizeof(lane->marks[0]));
                memmove(&lane->sizes[1], &lane->sizes[0], lane->count * sizeof(lane->sizes[0]));
                lane->keys[0] = p->points[i].key;
                lane->marks[0] = keep;
                lane->sizes[0] = p->points[i].end - (i ? p->points[i - 1].end : 0);
                lane->count++;
        }
}

static uint64_t oracle_tokens(const struct oracle_lane *lane)
{
        uint64_t tokens = 0;

        for (uint32_t i = 0; i < lane->count; i++)
                tokens += lane->sizes[i];
        return tokens;
}

static uint32_t oracle_depth(const struct oracle_lane *lane, const struct brain_prompt *p)
{
        uint32_t depth = 0;

        while (depth < p->count && oracle_place(lane, p->points[depth].key) < lane->count)
                depth++;
        return depth;
}

/* ---- helpers ---- */

static struct kvr__path path;
static uint32_t depths[KVR__LANES_MAX];

static uint32_t depth_of(struct kvr__index *index, const struct brain_prompt *p, uint16_t lane)
{
        uint64_t want[KVR__LANE_WORDS] = {0};

        want[lane / 64] = 1ULL << (lane % 64);
        depths[lane] = UINT32_MAX;
        kvr__index_find(index, p->points, p->count, &path);
        kvr__index_depths(index, &path, want, lane / 64 + 1, depths);
        return depths[lane];
}

static uint32_t touch_marked(struct kvr__index *index, const struct brain_prompt *p, uint16_t lane,
                             uint16_t mark)
{
        struct kvr__touch touch = {.lane = lane, .owner = mark, .tokens_per_unit = 1};

        touch.held = depth_of(index, p, lane);
        return kvr__index_touch(index, &path, p->points, p->count, &touch);
}

static uint32_t touch(struct kvr__index *index, const struct brain_prompt *p, uint16_t lane)
{
        return touch_marked(index, p, lane, 0);
}

static uint16_t lane_new(struct kvr__index *index)
{
        uint16_t lane;

        assert_true(kvr__lane_open(index, &lane));
        return lane;
}

/* A prompt from a small world of texts, so that prompts share beginnings of all lengths. */
static void random_prompt(struct brain_prompt *p, uint64_t *random)
{
        brain_prompt_init(p);
        for (int i = 0; i < 4; i++) {
                uint64_t chance = brain_mix((*random)++);

                brain_message(p, chance % (i == 0 ? 2 : 4), 100 + (chance >> 8) % 3 * 500);
                if (chance >> 16 & 1)
                        break;
        }
}

/* ---- tests ---- */

static void depth_is_the_common_prefix(void **state)
{
        struct kvr__index *index = kvr__index_new(MEMORY);
        static struct brain_prompt a, b;
        uint16_t one = lane_new(index), two = lane_new(index);

        (void)state;
        brain_prompt_init(&a);
        brain_message(&a, 1, 4000);
        brain_message(&a, 2, 4000);
        brain_prompt_init(&b);
        brain_message(&b, 1, 4000);
        uint32_t common = b.count;

        brain_message(&b, 3, 4000);
        assert_int_equal(touch(index, &a, one), a.count);
        assert_int_equal(depth_of(index, &a, one), a.count);
        assert_int_equal(depth_of(index, &b, one), common);
        assert_int_equal(depth_of(index, &a, two), 0);
        assert_int_equal(touch(index, &b, two), b.count);
        assert_int_equal(depth_of(index, &a, two), common);
        assert_int_equal(kvr__lane_tokens(index, one), 8000);
        assert_int_equal(kvr__lane_pairs(index, one), a.count);
        assert_true(kvr__index_check(index));
        kvr__index_free(index);
}

static void second_half_alone_is_no_match(void **state)
{
        struct kvr__index *index = kvr__index_new(MEMORY);
        static struct brain_prompt x, y, yx;
        uint16_t a = lane_new(index), b = lane_new(index), c = lane_new(index);

        (void)state;
        brain_prompt_of(&x, 1, 4000);
        brain_prompt_of(&y, 2, 4000);
        touch(index, &x, a);
        touch(index, &y, b);
        brain_prompt_init(&yx);
        brain_message(&yx, 2, 4000);
        brain_message(&yx, 1, 4000);
        assert_int_equal(depth_of(index, &yx, a), 0);
        assert_int_equal(depth_of(index, &yx, b), y.count);
        brain_prompt_init(&x);
        brain_text(&x, 2, 2000);
        touch(index, &x, c);
        assert_true(depth_of(index, &yx, c) < y.count);
        assert_true(depth_of(index, &yx, c) > 0);
        kvr__index_free(index);
}

static void all_lanes_are_matched_at_once(void **state)
{
        enum { LANES = 200 };
        struct kvr__index *index = kvr__index_new(MEMORY);
        static struct brain_prompt p;
        uint64_t want[KVR__LANE_WORDS] = {0};
        uint32_t expected[LANES];

        (void)state;
        brain_prompt_of(&p, 1, 300000);
        uint32_t count = p.count;

        for (uint32_t i = 0; i < LANES; i++) {
                uint16_t lane = lane_new(index);

                assert_int_equal(lane, i);
                expected[i] = (uint32_t)(brain_mix(i) % (count + 1));
                p.count = expected[i];
                assert_int_equal(touch(index, &p, lane), expected[i]);
                /* Not asked for: must be left alone. */
                if (i % 7 != 3)
                        want[i / 64] |= 1ULL << (i % 64);
                depths[i] = 12345;
        }
        p.count = count;
        kvr__index_find(index, p.points, p.count, &path);
        kvr__index_depths(index, &path, want, LANES / 64 + 1, depths);
        for (uint32_t i = 0; i < LANES; i++)
                assert_int_equal(depths[i], i % 7 == 3 ? 12345 : expected[i]);
        assert_true(kvr__index_check(index));
        kvr__index_free(index);
}

static void tails_go_first(void **state)
{
        struct kvr__index *index = kvr__index_new(MEMORY);
        static struct brain_prompt a, b;
        uint16_t lane = lane_new(index);

        (void)state;
        brain_prompt_of(&a, 1, 5000);
        brain_prompt_of(&b, 2, 5000);
        touch(index, &a, lane);
        touch(index, &b, lane);
        kvr__lane_shrink(index, lane, 7000, UINT32_MAX);
        assert_int_equal(depth_of(index, &b, lane), b.count);
        uint32_t left = depth_of(index, &a, lane);

        assert_true(left > 0 && left < a.count);
        assert_int_equal(a.points[left - 1].end, kvr__lane_tokens(index, lane) - 5000);
        /* Bounded work: no more pairs than asked for. */
        uint32_t pairs = kvr__lane_pairs(index, lane);

        kvr__lane_shrink(index, lane, 0, 3);
        assert_int_equal(kvr__lane_pairs(index, lane), pairs - 3);
        assert_true(kvr__index_check(index));
        kvr__index_free(index);
}

static void evicted_keys_are_remembered_for_a_while(void **state)
{
        struct kvr__index *index = kvr__index_new(MEMORY);
        static struct brain_prompt a;
        uint16_t lane = lane_new(index);
        uint32_t sampled = 0;

        (void)state;
        brain_prompt_of(&a, 1, 50000);
        touch(index, &a, lane);
        for (uint32_t i = 0; i < a.count; i++) {
                bool is;

                assert_false(kvr__lane_lost(index, lane, a.points[i].key, &is));
        }
        kvr__lane_shrink(index, lane, 0, UINT32_MAX);
        for (uint32_t i = 0; i < a.count; i++) {
                bool is, lost = kvr__lane_lost(index, lane, a.points[i].key, &is);

                assert_int_equal(lost, is);
                sampled += is;
        }
        assert_true(sampled > 0);
        /* A new life of the lane remembers nothing. */
        kvr__lane_close(index, lane);
        assert_int_equal(lane_new(index), lane);
        for (uint32_t i = 0; i < a.count; i++) {
                bool is;

                assert_false(kvr__lane_lost(index, lane, a.points[i].key, &is));
        }
        kvr__index_free(index);
}

static void closing_a_lane_costs_nothing_now(void **state)
{
        struct kvr__index *index = kvr__index_new(MEMORY);
        struct kvr__index_stats stats;
        static struct brain_prompt p;
        uint16_t lane = lane_new(index), other = lane_new(index), fresh;
        uint64_t pairs = 0;

        (void)state;
        for (uint64_t i = 0; i < 1000; i++) {
                brain_prompt_of(&p, i, 4000);
                touch(index, &p, lane);
                pairs += p.count;
        }
        touch(index, &p, other);
        kvr__lane_close(index, lane);
        kvr__index_stats(index, &stats);
        assert_int_equal(stats.pairs_closed, pairs);
        fresh = lane_new(index);
        assert_int_not_equal(fresh, lane);
        assert_int_equal(depth_of(index, &p, fresh), 0);
        assert_int_equal(depth_of(index, &p, other), p.count);
        /* Reclaimed in bounded steps; the number comes back at the end. */
        for (uint64_t left = pairs; left > 0; left -= left < 64 ? left : 64) {
                kvr__index_stats(index, &stats);
                assert_int_equal(stats.pairs_closed, left);
                assert_true(stats.pairs_closed == left);
                kvr__index_reclaim(index, 64);
        }
        assert_true(kvr__index_check(index));
        assert_int_equal(lane_new(index), lane);
        assert_int_equal(depth_of(index, &p, lane), 0);
        kvr__index_free(index);
}

static void marks_decide_what_a_failed_request_takes_along(void **state)
{
        struct kvr__index *index = kvr__index_new(MEMORY);
        static struct brain_prompt a, b;
        uint16_t lane = lane_new(index);

        (void)state;
        brain_prompt_init(&a);
        brain_message(&a, 1, 2000);
        uint32_t common = a.count;

        b = a;
        brain_message(&a, 2, 2000);
        brain_message(&b, 3, 2000);
        touch_marked(index, &a, lane, 11);
        /* A second request took the common part over: it stays. */
        touch_marked(index, &b, lane, 12);
        kvr__index_remove(index, &path, lane, a.points, 0, a.count, 11);
        assert_int_equal(depth_of(index, &a, lane), common);
        assert_int_equal(depth_of(index, &b, lane), b.count);
        kvr__index_remove(index, &path, lane, b.points, 0, b.count, 12);
        assert_int_equal(depth_of(index, &b, lane), common);
        assert_true(kvr__index_check(index));
        kvr__index_free(index);
}

/* Whole prompts of any length go into a full index, and leave it in runs, so that the table of keys stays small. */
static void a_full_index_is_not_broken_up(void **state)
{
        enum { LANES = 5, PROMPTS = 12000, LATELY = 40 };
        struct kvr__index *index = kvr__index_new(1U << 20);
        static struct brain_prompt p;
        uint16_t lanes[LANES];

        (void)state;
        for (int i = 0; i < LANES; i++)
                lanes[i] = lane_new(index);
        for (uint64_t i = 0; i < PROMPTS; i++) {
                uint64_t chance = brain_mix(i);
                /* Some come again, with a turn more; some fail, and take along what they brought. */
                uint64_t text = chance % 4 || i < LATELY ? i : i - (chance >> 4) % LATELY;
                uint16_t lane = lanes[brain_mix(text) % LANES];

                brain_prompt_init(&p);
                brain_message(&p, text % 16, 2000);
                brain_message(&p, 100 + text, 500 + (uint32_t)(brain_mix(text) >> 8) % 60000);
                if (text != i)
                        brain_message(&p, 100 + i, 3000);
                uint64_t before = index->evictions;

                assert_int_equal(touch_marked(index, &p, lane, 5), p.count);
                assert_int_equal(depth_of(index, &p, lane), p.count);
                assert_true(index->evictions - before <= 2 * p.count + ROOM_ATTEMPTS);
                if (chance >> 20 & 1)
                        kvr__lane_shrink(index, lane, 100000, 20);
                if ((chance >> 21 & 7) == 0)
                        kvr__index_remove(index, &path, lane, p.points, 0, p.count, 5);
        }
        assert_true(index->evictions > 100000);
        assert_true(index->node_count > 15000);
        assert_true(index->by_key.items * 8 < index->node_count);
        assert_true(kvr__index_check(index));
        kvr__index_free(index);
}

/* Memory that went to long chains of one holder is no help to short ones that several share: those evict too. */
static void another_kind_of_prompt_does_not_stop_it(void **state)
{
        enum { LONG = 400, SHORT = 20000 };
        struct kvr__index *index = kvr__index_new(1U << 20);
        static struct brain_prompt p;
        uint16_t lanes[2] = {lane_new(index), lane_new(index)};
        uint32_t cut = 0, row = 0;

        (void)state;
        for (uint64_t i = 0; i < LONG; i++) {
                brain_prompt_of(&p, 1000 + i, 60000);
                assert_int_equal(touch(index, &p, lanes[i % 2]), p.count);
        }
        assert_true(index->evictions > 0);
        for (uint64_t i = 0; i < SHORT; i++) {
                uint64_t before = index->evictions;
                bool whole = true;

                brain_prompt_of(&p, 10000 + i, 1000);
                for (int lane = 0; lane < 2; lane++)
                        whole &= touch(index, &p, lanes[lane]) == p.count;
                cut += !whole;
                row = whole ? 0 : row + 1;
                assert_true(row < 100);
                assert_true(index->evictions - before <= 2 * (2 * p.count + ROOM_ATTEMPTS));
        }
        assert_true(cut * 10 < SHORT);
        assert_true(kvr__index_check(index));
        kvr__index_free(index);
}

/* Only where a chain begins, and where one parts from what was there, is a place of the table taken. */
static void chains_are_listed_where_they_begin_and_part(void **state)
{
        struct kvr__index *index = kvr__index_new(MEMORY);
        static struct brain_prompt a, b;
        uint16_t first = lane_new(index), second = lane_new(index);

        (void)state;
        brain_prompt_init(&a);
        brain_message(&a, 1, 2000);
        b = a;
        brain_message(&a, 2, 20000);
        brain_message(&b, 3, 20000);
        touch(index, &a, first);
        assert_int_equal(index->by_key.items, 1);
        touch(index, &b, first);
        assert_int_equal(index->by_key.items, 2);
        touch(index, &a, second);
        touch(index, &b, second);
        assert_int_equal(index->by_key.items, 2);
        /* What came back is one run again, whoever had which part of it. */
        kvr__lane_shrink(index, first, 0, UINT32_MAX);
        kvr__lane_shrink(index, second, 0, UINT32_MAX);
        touch(index, &b, second);
        assert_int_equal(index->by_key.items, 1);
        assert_int_equal(depth_of(index, &b, second), b.count);
        assert_true(kvr__index_check(index));
        kvr__index_free(index);
}

static void notes_live_and_die_with_their_node(void **state)
{
        struct kvr__index *index = kvr__index_new(MEMORY);
        struct kvr__index_stats stats;
        static struct brain_prompt p;
        uint16_t lane = lane_new(index);

        (void)state;
        brain_prompt_of(&p, 1, 4000);
        touch(index, &p, lane);
        uint32_t node = path.nodes[3];

        assert_null(kvr__index_note_at(index, node, p.points[3].key, false));
        assert_null(kvr__index_note_at(index, node, p.points[4].key, true));
        struct kvr__note *note = kvr__index_note_at(index, node, p.points[3].key, true);

        assert_non_null(note);
        assert_int_equal(note->answer_lane, KVR__NO_LANE);
        note->tokens = 77;
        kvr__index_find(index, p.points, p.count, &path);
        assert_int_equal(path.known, p.count);
        assert_int_equal(path.noted_count, 1);
        assert_int_equal(path.noted[0], 3);
        assert_int_equal(kvr__index_note(index, &path, 3)->tokens, 77);
        assert_null(kvr__index_note(index, &path, 2));
        kvr__lane_shrink(index, lane, 0, UINT32_MAX);
        kvr__index_stats(index, &stats);
        assert_int_equal(stats.notes, 0);
        assert_int_equal(stats.nodes, 0);
        assert_int_equal(stats.pairs, 0);
        kvr__index_free(index);
}

/* Random touches, removals, evictions, closings against the oracle. */
static void agrees_with_plain_arrays(void **state)
{
        enum { LANES = 6, STEPS = 6000 };
        struct kvr__index *index = kvr__index_new(MEMORY);
        struct oracle_lane *oracle = calloc(KVR__LANES_MAX, sizeof(*oracle));
        static struct brain_prompt p, probe;
        uint16_t lanes[LANES];
        uint64_t random = 42;

        (void)state;
        for (int i = 0; i < LANES; i++)
                lanes[i] = lane_new(index);
        for (int step = 0; step < STEPS; step++) {
                uint64_t chance = brain_mix(random++);
                uint32_t which = (uint32_t)(chance >> 8) % LANES;
                struct oracle_lane *lane = &oracle[lanes[which]];
                uint16_t mark = (uint16_t)(1 + (chance >> 40) % 3);

                random_prompt(&p, &random);
                switch (chance % 16) {
                case 0:
                        kvr__lane_close(index, lanes[which]);
                        lane->count = 0;
                        lanes[which] = lane_new(index);
                        oracle[lanes[which]].count = 0;
                        break;
                case 1:
                case 2: {
                        uint64_t tokens = (chance >> 20) % 20000;

                        kvr__lane_shrink(index, lanes[which], tokens, UINT32_MAX);
                        while (lane->count && oracle_tokens(lane) > tokens)
                                lane->count--;
                        break;
                }
                case 3:
                case 4: {
                        /* As the router does it: what one request made, from where it found nothing. */
                        uint32_t from = oracle_depth(lane, &p);

                        assert_int_equal(touch_marked(index, &p, lanes[which], 9), p.count);
                        oracle_touch(lane, &p, 9);
                        kvr__index_remove(index, &path, lanes[which], p.points, from, p.count, 9);
                        for (uint32_t i = from; i < p.count; i++)
                                oracle_take(lane, oracle_place(lane, p.points[i].key));
                        break;
                }
                case 5:
                        kvr__index_reclaim(index, (uint32_t)(chance >> 20) % 100);
                        break;
                default:
                        assert_int_equal(touch_marked(index, &p, lanes[which], mark), p.count);
                        oracle_touch(lane, &p, mark);
                        break;
                }
                random_prompt(&probe, &random);
                for (int i = 0; i < LANES; i++) {
                        const struct oracle_lane *told = &oracle[lanes[i]];

                        assert_int_equal(depth_of(index, &probe, lanes[i]), oracle_depth(told, &probe));
                        assert_int_equal(kvr__lane_pairs(index, lanes[i]), told->count);
                        assert_int_equal(kvr__lane_tokens(index, lanes[i]), oracle_tokens(told));
                }
                if (step % 97 == 0)
                        assert_true(kvr__index_check(index));
        }
        assert_true(kvr__index_check(index));
        free(oracle);
        kvr__index_free(index);
}

/* At the cap: bytes stay below it, everything stays consistent, and the latest prompts are still found. */
static void the_cap_holds(void **state)
{
        enum { LANES = 3, PROMPTS = 20000 };
        struct kvr__index *index = kvr__index_new(1U << 20);
        struct kvr__index_stats stats;
        static struct brain_prompt p;
        uint16_t lanes[LANES];

        (void)state;
        for (int i = 0; i < LANES; i++)
                lanes[i] = lane_new(index);
        for (uint64_t i = 0; i < PROMPTS; i++) {
                /* Lane 0 comes first and would have everything. */
                uint16_t lane = lanes[i < PROMPTS / 2 ? 0 : brain_mix(i) % LANES];

                brain_prompt_init(&p);
                brain_message(&p, brain_mix(i) % 8, 1000 + i % 3 * 500);
                brain_message(&p, 100 + i, 1000);
                assert_int_equal(touch(index, &p, lane), p.count);
                assert_int_equal(depth_of(index, &p, lane), p.count);
                if (i % 512 == 0) {
                        kvr__index_stats(index, &stats);
                        assert_true(stats.bytes <= 1U << 20);
                        assert_true(kvr__index_check(index));
                }
        }
        kvr__index_stats(index, &stats);
        assert_true(stats.evictions > PROMPTS);
        assert_true(stats.pairs > 10000);
        /* Newcomers got their share from the first one. */
        for (int i = 0; i < LANES; i++)
                assert_true(kvr__lane_pairs(index, lanes[i]) * (2 * LANES) > stats.pairs);
        kvr__index_free(index);
}

/* A prompt that alone is larger than the cap is held as far as it goes, from the front. */
static void a_chain_beyond_the_cap_is_cut_at_its_end(void **state)
{
        struct kvr__index *index = kvr__index_new(1U << 20);
        static struct brain_prompt p;
        uint16_t lane = lane_new(index);
        uint32_t held = KVR_POINTS_MAX;

        (void)state;
        for (uint64_t round = 0; round < 20; round++) {
                p.count = KVR_POINTS_MAX;
                for (uint32_t i = 0; i < KVR_POINTS_MAX; i++)
                        p.points[i] = (struct kvr_point){brain_mix(round << 32 | i) | 1, i * 10 + 10};
                held = touch(index, &p, lane);
                assert_int_equal(depth_of(index, &p, lane), held);
                assert_true(kvr__index_check(index));
        }
        assert_int_equal(held, KVR_POINTS_MAX);
        kvr__index_free(index);
}

/* Points that are no chain, as a careless caller might make them, do no harm. */
static void nonsense_does_no_harm(void **state)
{
        struct kvr__index *index = kvr__index_new(MEMORY);
        static struct brain_prompt p;
        uint16_t lanes[2] = {lane_new(index), lane_new(index)};
        uint64_t random = 7;

        (void)state;
        for (int step = 0; step < 3000; step++) {
                uint64_t chance = brain_mix(random++);
                uint16_t lane = lanes[chance & 1];

                p.count = 1 + (uint32_t)(chance >> 8) % 12;
                for (uint32_t i = 0; i < p.count; i++)
                        p.points[i] = (struct kvr_point){1 + brain_mix(random++) % 10, i + 1};
                touch_marked(index, &p, lane, 5);
                if (chance >> 20 & 1)
                        kvr__index_remove(index, &path, lane, p.points, 0, p.count, 5);
                if ((chance >> 21 & 7) == 0)
                        kvr__lane_shrink(index, lane, 3, UINT32_MAX);
        }
        kvr__lane_shrink(index, lanes[0], 0, UINT32_MAX);
        kvr__lane_shrink(index, lanes[1], 0, UINT32_MAX);
        struct kvr__index_stats stats;

        kvr__index_stats(index, &stats);
        assert_int_equal(stats.pairs, 0);
        assert_int_equal(stats.nodes, 0);
        kvr__index_free(index);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(depth_is_the_common_prefix),
                cmocka_unit_test(second_half_alone_is_no_match),
                cmocka_unit_test(all_lanes_are_matched_at_once),
                cmocka_unit_test(tails_go_first),
                cmocka_unit_test(evicted_keys_are_remembered_for_a_while),
                cmocka_unit_test(closing_a_lane_costs_nothing_now),
                cmocka_unit_test(marks_decide_what_a_failed_request_takes_along),
                cmocka_unit_test(a_full_index_is_not_broken_up),
                cmocka_unit_test(another_kind_of_prompt_does_not_stop_it),
                cmocka_unit_test(chains_are_listed_where_they_begin_and_part),
                cmocka_unit_test(notes_live_and_die_with_their_node),
                cmocka_unit_test(agrees_with_plain_arrays),
                cmocka_unit_test(the_cap_holds),
                cmocka_unit_test(a_chain_beyond_the_cap_is_cut_at_its_end),
                cmocka_unit_test(nonsense_does_no_harm),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
