/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the block index: the cap is hard, what is given back is used again, churn of any kind leaves it
 * flat, and running out of memory at any place is a refusal after which all still works. Linked so that calls
 * of the allocator come here first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "alloc_test.h"
#include "blocks_int.h"
#include "blocks_test_util.h"

static unsigned calls, fail_at; /* calls of the allocator; the first that fails, 0 none */

static bool alloc_admit(size_t size)
{
        (void)size;
        calls++;
        return !fail_at || calls < fail_at;
}

static struct text text;

static uint64_t bytes_of(const struct kvr__blocks *blocks)
{
        struct kvr__blocks_stats stats;

        kvr__blocks_stats(blocks, &stats);
        assert_true(stats.bytes <= stats.bytes_max);
        return stats.bytes;
}

static uint16_t lane_new(struct kvr__blocks *blocks)
{
        uint16_t lane;

        assert_true(kvr__blocks_lane_open(blocks, &lane));
        return lane;
}

/* Stores texts of 100 blocks until one is refused in part. Returns the blocks that were taken in. */
static uint64_t fill(struct kvr__blocks *blocks, uint16_t lane, uint64_t number)
{
        struct kvr_events_account account = {0};
        uint64_t before = 0;

        for (; !account.refused; number += 100) {
                text_of(&text, number, 100);
                text_store(blocks, lane, &text, 0, 100, &account);
                assert_true(account.stored - before + account.refused == 100);
                assert_int_equal(text_depth(blocks, lane, &text), account.stored - before);
                before = account.stored;
                bytes_of(blocks);
        }
        /* Among so many names two may be taken for one. */
        assert_in_range(account.removed, 0, 1 + account.stored / 50000);
        assert_int_equal(kvr__blocks_lane_count(blocks, lane), account.stored - account.removed);
        return account.stored;
}

static void the_cap_is_hard(void **state)
{
        static const uint64_t caps[] = {1U << 20, (1U << 20) + 12345, 3U << 20, 16U << 20};

        (void)state;
        for (size_t i = 0; i < sizeof(caps) / sizeof(caps[0]); i++) {
                struct kvr__blocks *blocks = kvr__blocks_new(caps[i], i);
                struct kvr_events_account account = {0};
                uint16_t one = lane_new(blocks), two = lane_new(blocks);
                uint64_t first = fill(blocks, one, 1);

                assert_true(bytes_of(blocks) > caps[i] / 2);
                assert_true(kvr__blocks_check(blocks));
                /* in the fill at a cap this small, as far as whole segments allow */
                assert_true((double)caps[i] / (double)first < 110);
                /* the other lane is refused too, wholly or nearly; what was there stays */
                text_of(&text, 77777777, 100);
                text_store(blocks, two, &text, 0, 100, &account);
                assert_int_equal(account.stored + account.refused, 100);
                assert_true(account.refused > 0);
                text_of(&text, 1, 100);
                assert_int_equal(text_depth(blocks, one, &text), 100);
                assert_true(kvr__blocks_check(blocks));
                /* what is removed makes room again */
                memset(&account, 0, sizeof(account));
                text_remove(blocks, one, &text, 0, 100, &account);
                text_of(&text, 88888888, 50);
                text_store(blocks, one, &text, 0, 50, &account);
                assert_int_equal(account.removed, 100);
                assert_int_equal(account.stored, 50);
                /* and so does a lane that closes */
                kvr__blocks_lane_close(blocks, one);
                kvr__blocks_lane_close(blocks, two);
                kvr__blocks_reclaim(blocks, UINT32_MAX);
                assert_true(kvr__blocks_check(blocks));
                uint64_t again = fill(blocks, lane_new(blocks), 5000000);

                assert_true(again * 10 > first * 9);
                assert_true(kvr__blocks_check(blocks));
                kvr__blocks_free(blocks);
        }
}

/* At the cap everything that needs room is refused, not only new blocks. */
static void copies_and_names_are_refused_at_the_cap(void **state)
{
        struct kvr__blocks *blocks = kvr__blocks_new(1U << 20, 1);
        struct kvr_events_account account = {0};
        uint16_t lane = lane_new(blocks);
        uint64_t held = fill(blocks, lane, 1), copies = 0;

        (void)state;
        for (uint64_t number = 1; number + 100 < held; number += 100) {
                text_of(&text, number, 100);
                text_store(blocks, lane, &text, 0, 100, &account);
                for (uint32_t i = 0; i < 100; i++)
                        text.handles[i] ^= 1;
                text_store(blocks, lane, &text, 0, 100, &account);
        }
        assert_true(account.refused > 0);
        copies = account.repeated;
        assert_true(kvr__blocks_check(blocks));
        memset(&account, 0, sizeof(account));
        for (uint64_t number = 1; number + 100 < held; number += 100) {
                text_of(&text, number, 100);
                for (uint32_t pass = 0; pass < 2; pass++)
                        text_remove(blocks, lane, &text, 0, 100, &account);
        }
        assert_int_equal(account.copies_removed, copies);
        assert_true(kvr__blocks_check(blocks));
        kvr__blocks_free(blocks);
}

/* An engine of 2,000 blocks that sees only new prompts, and a fleet whose lanes come and go. */
static void memory_is_flat_with_unique_prompts(void **state)
{
        struct kvr__blocks *blocks = kvr__blocks_new(8U << 20, 1);
        uint16_t lane = lane_new(blocks);
        struct kvr_events_account account = {0};
        uint64_t bytes = 0;

        (void)state;
        for (uint64_t round = 0; round < 3000; round++) {
                if (round >= 20) {
                        text_of(&text, (round - 20) * 100, 100);
                        text_remove(blocks, lane, &text, 0, 100, &account);
                }
                text_of(&text, round * 100, 100);
                text_store(blocks, lane, &text, 0, 100, &account);
                if (round == 100)
                        bytes = bytes_of(blocks);
                assert_true(round < 100 || bytes_of(blocks) == bytes);
        }
        assert_int_equal(account.stored, 300000);
        assert_int_equal(account.removed, 298000);
        assert_int_equal(account.refused, 0);
        assert_true(kvr__blocks_check(blocks));
        kvr__blocks_free(blocks);
}

static void memory_is_flat_under_replica_churn(void **state)
{
        enum { LIVE = 20 };
        struct kvr__blocks *blocks = kvr__blocks_new(8U << 20, 1);
        struct kvr_events_account account = {0};
        uint16_t lanes[LIVE], highest = 0;
        uint64_t bytes = 0;

        (void)state;
        for (uint32_t round = 0; round < 10000; round++) {
                uint16_t *lane = &lanes[round % LIVE];

                if (round >= LIVE)
                        kvr__blocks_lane_close(blocks, *lane);
                *lane = lane_new(blocks);
                highest = *lane > highest ? *lane : highest;
                /* a system prompt that all share, and something of its own; no more than is reclaimed */
                text_of(&text, 1, 20);
                text_add(&text, 1000 + round);
                text_store(blocks, *lane, &text, 0, 21, &account);
                text_store(blocks, *lane, &text, 5, 10, &account);
                assert_int_equal(text_depth(blocks, *lane, &text), 21);
                if (round == 200)
                        bytes = bytes_of(blocks);
                assert_true(round < 200 || bytes_of(blocks) == bytes);
        }
        assert_true(highest < 2 * LIVE);
        assert_int_equal(account.refused, 0);
        assert_true(kvr__blocks_check(blocks));
        kvr__blocks_free(blocks);
}

static void all_lanes_at_once(void **state)
{
        struct kvr__blocks *blocks = kvr__blocks_new(64U << 20, 1);
        static uint32_t depths[KVR__BLOCK_LANES_MAX];
        uint64_t want[KVR__BLOCK_LANE_WORDS];
        struct kvr_events_account account = {0};
        uint16_t lane;

        (void)state;
        text_of(&text, 1, 40);
        for (uint32_t i = 0; i < KVR__BLOCK_LANES_MAX; i++)
                text_store(blocks, lane_new(blocks), &text, 0, i % 41, &account);
        assert_false(kvr__blocks_lane_open(blocks, &lane));
        assert_true(kvr__blocks_check(blocks));
        memset(want, 0xff, sizeof(want));
        memset(depths, 0xff, sizeof(depths));
        struct kvr__chain chain = {text.keys, text.count};

        kvr__blocks_depths(blocks, &chain, want, KVR__BLOCK_LANE_WORDS, depths);
        for (uint32_t i = 0; i < KVR__BLOCK_LANES_MAX; i++)
                assert_int_equal(depths[i], i % 41);
        /* a long chain, so that all levels of steps have sets of full width */
        text_of(&text, 1, 1000);
        chain = (struct kvr__chain){text.keys, text.count};
        kvr__blocks_depths(blocks, &chain, want, KVR__BLOCK_LANE_WORDS, depths);
        for (uint32_t i = 0; i < KVR__BLOCK_LANES_MAX; i++)
                assert_int_equal(depths[i], i % 41);
        /* with all numbers taken, one comes back as soon as it is closed */
        kvr__blocks_lane_close(blocks, 4321);
        assert_true(kvr__blocks_lane_open(blocks, &lane));
        assert_int_equal(lane, 4321);
        assert_int_equal(text_depth(blocks, lane, &text), 0);
        for (uint32_t i = 0; i < KVR__BLOCK_LANES_MAX; i++)
                kvr__blocks_lane_close(blocks, (uint16_t)i);
        kvr__blocks_reclaim(blocks, UINT32_MAX);
        struct kvr__blocks_stats stats;

        kvr__blocks_stats(blocks, &stats);
        assert_int_equal(stats.nodes, 0);
        assert_int_equal(stats.holders, 0);
        assert_true(kvr__blocks_check(blocks));
        kvr__blocks_free(blocks);
}

/* A lane that was large and has become small gives its lines to others. */
static void tables_shrink(void **state)
{
        struct kvr__blocks *blocks = kvr__blocks_new(4U << 20, 1);
        struct kvr_events_account account = {0};
        uint16_t one = lane_new(blocks), two = lane_new(blocks);
        uint64_t first = fill(blocks, one, 1);

        (void)state;
        for (uint64_t number = 1; kvr__blocks_lane_count(blocks, one); number += 100) {
                text_of(&text, number, 100);
                text_remove(blocks, one, &text, 0, 100, &account);
        }
        assert_int_equal(account.removed, first);
        assert_true(kvr__blocks_check(blocks));
        uint64_t again = fill(blocks, two, 9000000);
        assert_true(again * 10 > first * 9);
        kvr__blocks_free(blocks);
}

/* Every allocation fails once, in turn. */
static void running_out_of_memory_is_a_refusal(void **state)
{
        (void)state;
        for (unsigned at = 1;; at++) {
                struct kvr_events_account account = {0};
                uint16_t lanes[2];

                calls = 0;
                fail_at = at;
                struct kvr__blocks *blocks = kvr__blocks_new(4U << 20, 1);

                if (!blocks)
                        continue;
                bool opened =
                        kvr__blocks_lane_open(blocks, &lanes[0]) && kvr__blocks_lane_open(blocks, &lanes[1]);

                for (uint64_t number = 0; opened && number < 3000; number += 300) {
                        text_of(&text, number, 300);
                        text_store(blocks, lanes[0], &text, 0, 300, &account);
                        text_store(blocks, lanes[1], &text, 0, 200, &account);
                        text_store(blocks, lanes[1], &text, 0, 200, &account);
                }
                unsigned needed = calls;

                fail_at = 0;
                assert_true(kvr__blocks_check(blocks));
                if (opened) {
                        memset(&account, 0, sizeof(account));
                        text_of(&text, 50000, 300);
                        text_store(blocks, lanes[1], &text, 0, 300, &account);
                        assert_int_equal(account.stored, 300);
                        assert_int_equal(text_depth(blocks, lanes[1], &text), 300);
                        assert_true(kvr__blocks_check(blocks));
                }
                kvr__blocks_free(blocks);
                if (needed < at)
                        break;
        }
}

/* Names chosen by someone who knows the salt: a place takes no more than it is made for, then refuses. */
static void names_that_collide_are_refused(void **state)
{
        struct kvr__blocks *blocks = kvr__blocks_new(8U << 20, 1);
        struct kvr_events_account account = {0};
        uint16_t lane = lane_new(blocks);
        uint64_t handle = 0;

        (void)state;
        for (uint32_t round = 0; round < 4; round++) {
                text_of(&text, 1 + round * 1000, 100);
                for (uint32_t i = 0; i < 100; i++) {
                        while ((uint32_t)block_handle_hash(blocks, ++handle) % 16384)
                                ;
                        text.handles[i] = handle;
                }
                text_store(blocks, lane, &text, 0, 100, &account);
        }
        assert_int_equal(account.stored + account.refused, 400);
        assert_in_range(account.stored, KVR__CHAIN_LINES * (KVR__PLACES - 1),
                        3 * KVR__CHAIN_LINES * KVR__PLACES);
        assert_true(kvr__blocks_check(blocks));
        kvr__blocks_free(blocks);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_cap_is_hard),
                cmocka_unit_test(copies_and_names_are_refused_at_the_cap),
                cmocka_unit_test(memory_is_flat_with_unique_prompts),
                cmocka_unit_test(memory_is_flat_under_replica_churn),
                cmocka_unit_test(all_lanes_at_once),
                cmocka_unit_test(tables_shrink),
                cmocka_unit_test(running_out_of_memory_is_a_refusal),
                cmocka_unit_test(names_that_collide_are_refused),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
