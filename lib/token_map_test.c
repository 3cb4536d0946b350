/* SPDX-License-Identifier: Apache-2.0 */
#include "token_map.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "brain_test.h"
#include "token_learn.h"

#define SIZE 16

/* ---- the map by itself ---- */

static uint64_t key_of(uint64_t chain, uint32_t block)
{
        return brain_mix(chain << 32 | block) | 1;
}

static void keys_of(uint64_t chain, uint32_t from, uint32_t to, uint64_t *ret)
{
        for (uint32_t i = from; i < to; i++)
                ret[i] = key_of(chain, i);
}

static void test_records(void **state)
{
        struct kvr__token_map *map = kvr__token_map_new(1 << 20);
        uint64_t keys[300], got[300], base;

        (void)state;
        keys_of(1, 0, 100, keys);
        uint64_t first = kvr__token_map_append(map, 0, 0, keys, 100, 0);

        keys_of(2, 0, 300, keys);
        uint64_t second = kvr__token_map_append(map, first, 60, keys + 60, 240, 77);

        assert_true(first && second > first);
        assert_int_equal(kvr__token_map_blocks(map, first), 100);
        assert_int_equal(kvr__token_map_blocks(map, second), 300);
        kvr__token_map_chain(map, second, 300, got, &base);
        assert_int_equal(base, 77);
        for (uint32_t i = 0; i < 300; i++)
                assert_int_equal(got[i], key_of(i < 60 ? 1 : 2, i));
        /* A part of it, which may lie in the first one alone. */
        memset(got, 0xff, sizeof(got));
        kvr__token_map_chain(map, second, 40, got, NULL);
        for (uint32_t i = 0; i < 40; i++)
                assert_int_equal(got[i], key_of(1, i));
        assert_int_equal(got[40], UINT64_MAX);
        /* More than there is. */
        kvr__token_map_chain(map, first, 102, got, &base);
        assert_int_equal(base, 0);
        assert_int_equal(got[99], key_of(1, 99));
        assert_int_equal(got[100] | got[101], 0);
        assert_int_equal(kvr__token_map_blocks(map, 0), 0);
        kvr__token_map_chain(map, 0, 10, got, NULL);
        for (int i = 0; i < 10; i++)
                assert_int_equal(got[i], 0);
        kvr__token_map_free(map);
}

/* The ring overwrites the oldest; what is gone is seen to be gone, and never taken for something else. */
static void test_ring(void **state)
{
        struct kvr__token_map *map = kvr__token_map_new(KVR__MAP_BYTES_MIN);
        uint64_t keys[64], got[64], places[400];

        (void)state;
        for (uint32_t i = 0; i < 400; i++) {
                uint64_t parent = i % 4 ? places[i - 1] : 0;
                uint32_t from = i % 4 * 10;

                keys_of(i, from, from + 20, keys);
                places[i] = kvr__token_map_append(map, parent, from, keys + from, 20, 0);
                assert_true(places[i] != 0);
                kvr__token_map_put(map, brain_mix(i),
                                   &(struct kvr__mapped){.place = places[i], .blocks = from + 20});
        }
        unsigned alive = 0, gaps = 0;

        for (uint32_t i = 0; i < 400; i++) {
                struct kvr__mapped mapped;

                if (!kvr__token_map_get(map, brain_mix(i), &mapped)) {
                        assert_int_equal(kvr__token_map_blocks(map, places[i]), 0);
                        assert_true(kvr__token_map_old(map, places[i]));
                        continue;
                }
                alive++;
                kvr__token_map_chain(map, mapped.place, mapped.blocks, got, NULL);
                for (uint32_t b = 0; b < mapped.blocks; b++) {
                        uint32_t record = i / 4 * 4 + (b / 10 < i % 4 ? b / 10 : i % 4);

                        if (got[b])
                                assert_int_equal(got[b], key_of(record, b));
                        else
                                gaps++;
                }
        }
        assert_in_range(alive, 100, 300);
        /* At most one family is partly overwritten. */
        assert_true(gaps <= 30);
        /* As much as there can be, and more. */
        uint32_t room = kvr__token_map_room(map);
        uint64_t *long_one = calloc(room + 1, sizeof(*long_one));

        assert_true(kvr__token_map_append(map, 0, 0, long_one, room, 0) != 0);
        assert_int_equal(kvr__token_map_append(map, 0, 0, long_one, room + 1, 0), 0);
        /* A parent that is gone. */
        assert_int_equal(kvr__token_map_append(map, places[0], 5, long_one, 1, 0), 0);
        free(long_one);
        kvr__token_map_free(map);
}

static void test_depth(void **state)
{
        struct kvr__token_map *map = kvr__token_map_new(1 << 20);
        uint64_t key = 5, place = 0;
        uint32_t depth = 0;

        (void)state;
        for (;; depth++) {
                uint64_t next = kvr__token_map_append(map, place, depth, &key, 1, 0);

                if (!next)
                        break;
                place = next;
        }
        assert_int_equal(depth, KVR__MAP_DEPTH_MAX);
        uint64_t got[KVR__MAP_DEPTH_MAX];

        kvr__token_map_chain(map, place, depth, got, NULL);
        for (uint32_t i = 0; i < depth; i++)
                assert_int_equal(got[i], 5);
        kvr__token_map_free(map);
}

static void test_slots(void **state)
{
        struct kvr__token_map *map = kvr__token_map_new(1 << 20);
        struct kvr__token_map_stats stats;
        struct kvr__mapped mapped = {.blocks = 3, .tokens = 50, .by = KVR__MAPPED_COUNT}, got;
        uint64_t keys[3] = {1, 2, 3};

        (void)state;
        mapped.place = kvr__token_map_append(map, 0, 0, keys, 3, 0);
        uint64_t key = kvr__token_map_key(map, 99, 16, 7);

        assert_int_equal(key, kvr__token_map_key(map, 99, 16, 7));
        assert_int_not_equal(key, kvr__token_map_key(map, 99, 32, 7));
        assert_false(kvr__token_map_get(map, key, &got));
        kvr__token_map_put(map, key, &mapped);
        assert_true(kvr__token_map_get(map, key, &got));
        assert_int_equal(got.place, mapped.place);
        assert_int_equal(got.blocks, 3);
        assert_int_equal(got.tokens, 50);
        assert_int_equal(got.by, KVR__MAPPED_COUNT);
        mapped.blocks = 2;
        kvr__token_map_put(map, key, &mapped);
        assert_true(kvr__token_map_get(map, key, &got));
        assert_int_equal(got.blocks, 2);
        kvr__token_map_stats(map, &stats);
        assert_int_equal(stats.points, 1);
        assert_true(stats.bytes <= stats.bytes_max && stats.bytes > stats.bytes_max * 9 / 10);
        /* Another model's key stays, this one's is a new one. */
        uint64_t other = kvr__token_map_key(map, 99, 16, 8);

        kvr__token_map_forget(map, 7);
        assert_int_equal(other, kvr__token_map_key(map, 99, 16, 8));
        assert_int_not_equal(key, kvr__token_map_key(map, 99, 16, 7));
        /* Far more than there are places. */
        for (uint64_t i = 0; i < 100000; i++)
                kvr__token_map_put(map, brain_mix(i), &mapped);
        kvr__token_map_stats(map, &stats);
        assert_true(stats.points <= (1 << 20) / 2 / 32);
        assert_true(kvr__token_map_get(map, brain_mix(99999), &got));
        kvr__token_map_free(map);
}

/* ---- learning ---- */

/* A prompt by its parts: each has text of some bytes and tokens of its own. */
struct part {
        uint64_t text;
        uint32_t bytes, tokens;
};

struct made {
        struct kvr_point points[256];
        uint32_t point_count;
        uint32_t ids[4096];
        uint32_t tokens;
        uint64_t keys[256];
        uint32_t ends[16]; /* point of each part's end */
        uint32_t end_tokens[16];
};

static void make(struct made *made, const struct part *parts, uint32_t count)
{
        uint64_t chain = 1;
        uint32_t at = 0;

        made->point_count = made->tokens = 0;
        for (uint32_t p = 0; p < count; p++) {
                uint32_t end = at + parts[p].bytes;

                for (uint32_t t = 0; t < parts[p].tokens; t++)
                        made->ids[made->tokens++] = (uint32_t)brain_mix(parts[p].text << 20 | t);
                while (at < end) {
                        uint32_t next = (at / 256 + 1) * 256;

                        next = next < end ? next : end;
                        chain = brain_mix(chain ^ brain_mix(parts[p].text) ^ (next - at));
                        at = next;
                        made->points[made->point_count++] = (struct kvr_point){.key = chain | 1, .end = at};
                }
                made->ends[p] = made->point_count - 1;
                made->end_tokens[p] = made->tokens;
        }
        uint64_t key = 9;

        for (uint32_t b = 0; b < made->tokens / SIZE; b++) {
                for (uint32_t t = 0; t < SIZE; t++)
                        key = brain_mix(key ^ made->ids[b * SIZE + t]);
                made->keys[b] = key;
        }
}

static void teach(struct kvr__token_map *map, const struct made *made)
{
        struct kvr__lesson lesson = {
                .points = made->points,
                .point_count = made->point_count,
                .model = 7,
                .block_tokens = SIZE,
                .tokens = made->tokens,
                .keys = made->keys,
                .blocks = made->tokens / SIZE,
        };

        assert_true(kvr__token_learn(map, &lesson));
}

static struct kvr__mapped point_at(struct kvr__token_map *map, const struct made *made, uint32_t point)
{
        struct kvr__mapped mapped = {0};

        assert_true(
                kvr__token_map_get(map, kvr__token_map_key(map, made->points[point].key, SIZE, 7), &mapped));
        return mapped;
}

/* Whatever a point claims must be blocks of this prompt. */
static void assert_true_of(struct kvr__token_map *map, const struct made *made, uint32_t points)
{
        uint64_t got[256];

        for (uint32_t i = 0; i < points; i++) {
                struct kvr__mapped mapped = point_at(map, made, i);

                kvr__token_map_chain(map, mapped.place, mapped.blocks, got, NULL);
                assert_memory_equal(got, made->keys, mapped.blocks * sizeof(*got));
        }
}

static void test_whole(void **state)
{
        struct kvr__token_map *map = kvr__token_map_new(1 << 20);
        static struct made one, longer;
        static const struct part parts[] = {{1, 2000, 500}, {2, 1000, 250}, {3, 700, 200}};

        (void)state;
        make(&one, parts, 2);
        teach(map, &one);
        struct kvr__mapped last = point_at(map, &one, one.point_count - 1);

        assert_int_equal(last.tokens, 750);
        assert_int_equal(last.blocks, 750 / SIZE);
        assert_int_equal(last.by, KVR__MAPPED_COUNT);
        assert_true_of(map, &one, one.point_count);
        /* By its share of the text, on the safe side. */
        struct kvr__mapped middle = point_at(map, &one, one.ends[0]);

        assert_int_equal(middle.by, KVR__MAPPED_GUESS);
        assert_in_range(middle.blocks, 450 / SIZE, 500 / SIZE);
        /* What goes on from there keeps the exact one in the middle. */
        make(&longer, parts, 3);
        teach(map, &longer);
        middle = point_at(map, &longer, longer.ends[1]);
        assert_int_equal(middle.by, KVR__MAPPED_COUNT);
        assert_int_equal(middle.tokens, 750);
        assert_int_equal(point_at(map, &longer, longer.point_count - 1).blocks, 950 / SIZE);
        assert_true_of(map, &longer, longer.point_count);
        kvr__token_map_free(map);
}

/* Prompts that part: the share of the text is wrong by far, and what they have in common is found out. */
static void test_forks(void **state)
{
        struct kvr__token_map *map = kvr__token_map_new(1 << 20);
        static struct made made[3];
        /* The trunk has few bytes a token here, the rest many. */
        static const struct part parts[][2] = {{{1, 1000, 600}, {2, 2000, 100}},
                                               {{1, 1000, 600}, {3, 4000, 200}},
                                               {{1, 1000, 600}, {4, 1000, 50}}};

        (void)state;
        for (int i = 0; i < 3; i++)
                make(&made[i], parts[i], 2);
        teach(map, &made[0]);
        struct kvr__mapped trunk = point_at(map, &made[0], made[0].ends[0]);

        assert_true(trunk.blocks < 300 / SIZE);
        teach(map, &made[1]);
        trunk = point_at(map, &made[1], made[1].ends[0]);
        assert_int_equal(trunk.blocks, 600 / SIZE);
        assert_int_equal(trunk.by, KVR__MAPPED_FORK);
        teach(map, &made[2]);
        assert_int_equal(point_at(map, &made[2], made[2].ends[0]).blocks, 600 / SIZE);
        for (int i = 0; i < 3; i++)
                assert_true_of(map, &made[i], made[i].point_count);
        kvr__token_map_free(map);
}

/* And the other way round: claims that were too long are cut. */
static void test_cut(void **state)
{
        struct kvr__token_map *map = kvr__token_map_new(1 << 20);
        static struct made made[3];
        static const struct part parts[][2] = {{{1, 2000, 100}, {2, 1000, 600}},
                                               {{1, 2000, 100}, {3, 1000, 400}},
                                               {{1, 2000, 100}, {4, 500, 300}}};

        (void)state;
        for (int i = 0; i < 3; i++)
                make(&made[i], parts[i], 2);
        teach(map, &made[0]);
        struct kvr__mapped trunk = point_at(map, &made[0], made[0].ends[0]);

        assert_true(trunk.blocks > 300 / SIZE);
        teach(map, &made[1]);
        trunk = point_at(map, &made[1], made[1].ends[0]);
        assert_int_equal(trunk.blocks, 100 / SIZE);
        assert_int_equal(trunk.by, KVR__MAPPED_FORK);
        assert_in_range(trunk.tokens, 100 / SIZE * SIZE, 100 / SIZE * SIZE + SIZE - 1);
        assert_true_of(map, &made[0], made[0].ends[0] + 1);
        assert_true_of(map, &made[1], made[1].point_count);
        teach(map, &made[2]);
        assert_int_equal(point_at(map, &made[2], made[2].ends[0]).blocks, 100 / SIZE);
        /* The first prompt's own end still has all of it. */
        struct kvr__mapped whole = point_at(map, &made[0], made[0].point_count - 1);
        uint64_t got[256];

        kvr__token_map_chain(map, whole.place, whole.blocks, got, NULL);
        assert_int_equal(whole.blocks, 700 / SIZE);
        assert_memory_equal(got, made[0].keys, 700 / SIZE * sizeof(*got));
        kvr__token_map_free(map);
}

/* The template renders an earlier turn otherwise than it was sent: what is really common is left. */
static void test_template_changes(void **state)
{
        struct kvr__token_map *map = kvr__token_map_new(1 << 20);
        static struct made one, next;
        static const struct part parts[] = {{1, 2000, 500}, {2, 1000, 250}, {3, 700, 200}};

        (void)state;
        make(&one, parts, 2);
        make(&next, parts, 3);
        /* The last forty tokens of the first prompt are not in the second one. */
        for (uint32_t t = 710; t < 750; t++)
                one.ids[t] = 1;
        uint64_t key = 9;

        for (uint32_t b = 0; b < one.tokens / SIZE; b++) {
                for (uint32_t t = 0; t < SIZE; t++)
                        key = brain_mix(key ^ one.ids[b * SIZE + t]);
                one.keys[b] = key;
        }
        teach(map, &one);
        teach(map, &next);
        struct kvr__mapped end = point_at(map, &next, next.ends[1]);

        assert_int_equal(end.blocks, 710 / SIZE);
        assert_int_equal(end.by, KVR__MAPPED_FORK);
        kvr__token_map_free(map);
}

/* A trunk that is in use stays, however much else comes. */
static void test_trunk_stays(void **state)
{
        struct kvr__token_map *map = kvr__token_map_new(KVR__MAP_BYTES_MIN);
        static struct made made;

        (void)state;
        for (uint64_t i = 0; i < 500; i++) {
                struct part parts[] = {{1, 2000, 500}, {100 + i, 600, 200}};

                make(&made, parts, 2);
                teach(map, &made);
                if (i < 2)
                        continue;
                struct kvr__mapped trunk = point_at(map, &made, made.ends[0]);

                assert_int_equal(trunk.blocks, 500 / SIZE);
                assert_true_of(map, &made, made.point_count);
        }
        kvr__token_map_free(map);
}

/* ---- marks ---- */

enum { BEGIN = 900001, END, LINE };

/* Messages of `words` tokens each in a template; points at their ends and at the tools' if there are some. */
static uint32_t chat_make(struct kvr_point *points, uint32_t *ids, uint32_t *ret_tokens, uint32_t *ret_ends,
                          const uint32_t *words, uint32_t count, bool own, bool tools)
{
        uint32_t at = 0, n = 0, point = 0;

        if (own) {
                ids[n++] = BEGIN;
                for (uint32_t i = 0; i < 20; i++)
                        ids[n++] = 5000 + i;
                ids[n++] = END;
                ids[n++] = LINE;
        }
        for (uint32_t m = 0; m < count; m++) {
                ids[n++] = BEGIN;
                if (m == 0 && tools) {
                        for (uint32_t i = 0; i < 100; i++)
                                ids[n++] = 7000 + i;
                        at += 411;
                        ret_ends[point] = 0;
                        points[point] = (struct kvr_point){.key = point + 1, .end = at};
                        point++;
                }
                for (uint32_t i = 0; i < words[m]; i++)
                        ids[n++] = (uint32_t)brain_mix(m << 16 | i) % 1000;
                at += words[m] * 4 + 5;
                at += at % 256 == 0;
                ids[n++] = END;
                ids[n++] = LINE;
                ret_ends[point] = n;
                points[point] = (struct kvr_point){.key = point + 1, .end = at};
                point++;
        }
        ids[n++] = BEGIN;
        ids[n++] = 4242;
        *ret_tokens = n;
        return point;
}

static void test_marks(void **state)
{
        static const uint32_t words[] = {300, 40, 120, 33, 500};
        struct kvr_point points[8];
        static uint32_t ids[4096];
        uint32_t tokens, ends[8], marks[8];

        (void)state;
        for (int way = 0; way < 3; way++)
                for (uint32_t count = way == 2 ? 2 : 2; count <= 5; count++) {
                        uint32_t n = chat_make(points, ids, &tokens, ends, words, count, way == 1, way == 2);
                        uint32_t set = kvr__token_marks(points, n, ids, tokens, marks);

                        assert_int_equal(set, count - 1);
                        for (uint32_t i = 0; i + 1 < n; i++)
                                assert_int_equal(marks[i], ends[i]);
                        assert_int_equal(marks[n - 1], 0);
                }
        /* A text with no such pattern, one message, nothing at all. */
        for (uint32_t i = 0; i < 1000; i++)
                ids[i] = (uint32_t)brain_mix(i) % 5000;
        points[0].end = 1001;
        points[1].end = 4001;
        assert_int_equal(kvr__token_marks(points, 2, ids, 1000, marks), 0);
        assert_int_equal(marks[0] | marks[1], 0);
        assert_int_equal(kvr__token_marks(points, 1, ids, 1000, marks), 0);
        assert_int_equal(kvr__token_marks(points, 2, ids, 0, marks), 0);
        assert_int_equal(kvr__token_marks(points, 2, ids, 1, marks), 0);
}

/* ---- readers beside a writer ---- */

struct reading {
        struct kvr__token_map *map;
        _Atomic bool stop;
        _Atomic uint64_t found, gaps;
};

/* Every record is of one family, told by its length: a key of another would be a mix-up. */
static void *read_on(void *ctx)
{
        struct reading *reading = ctx;
        uint64_t got[64];

        for (uint64_t i = 0; !atomic_load(&reading->stop); i++) {
                struct kvr__mapped mapped;

                if (!kvr__token_map_get(reading->map, brain_mix(i % 64) | 1, &mapped))
                        continue;
                atomic_fetch_add_explicit(&reading->found, 1, memory_order_relaxed);
                kvr__token_map_chain(reading->map, mapped.place, mapped.blocks, got, NULL);
                for (uint32_t b = 0; b < mapped.blocks; b++) {
                        if (!got[b])
                                atomic_fetch_add_explicit(&reading->gaps, 1, memory_order_relaxed);
                        else if (got[b] != key_of(mapped.tokens, b))
                                return (void *)1;
                }
        }
        return NULL;
}

static void test_readers(void **state)
{
        struct reading reading = {.map = kvr__token_map_new(KVR__MAP_BYTES_MIN)};
        pthread_t threads[3];
        uint64_t keys[64];
        void *bad;

        (void)state;
        for (int i = 0; i < 3; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, read_on, &reading), 0);
        for (uint32_t i = 0; i < 60000; i++) {
                uint32_t family = i, half = 10 + i % 20, all = half + 1 + i % 30;

                keys_of(family, 0, all, keys);
                uint64_t parent = kvr__token_map_append(reading.map, 0, 0, keys, half, 0);
                uint64_t place = kvr__token_map_append(reading.map, parent, half, keys + half, all - half, 0);

                kvr__token_map_put(reading.map, brain_mix(i % 64) | 1,
                                   &(struct kvr__mapped){.place = place, .blocks = all, .tokens = family});
        }
        atomic_store(&reading.stop, true);
        for (int i = 0; i < 3; i++) {
                pthread_join(threads[i], &bad);
                assert_null(bad);
        }
        kvr__token_map_free(reading.map);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_records),     cmocka_unit_test(test_ring),
                cmocka_unit_test(test_depth),       cmocka_unit_test(test_slots),
                cmocka_unit_test(test_whole),       cmocka_unit_test(test_forks),
                cmocka_unit_test(test_cut),         cmocka_unit_test(test_template_changes),
                cmocka_unit_test(test_trunk_stays), cmocka_unit_test(test_marks),
                cmocka_unit_test(test_readers),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
