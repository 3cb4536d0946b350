/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "blocks_int.h"
#include "blocks_test_util.h"

#define MEMORY (32U << 20)
#define SALT   7

static struct text a, b, c;

static uint16_t lane_new(struct kvr__blocks *blocks)
{
        uint16_t lane;

        assert_true(kvr__blocks_lane_open(blocks, &lane));
        return lane;
}

static struct kvr__blocks *blocks_new(void)
{
        struct kvr__blocks *blocks = kvr__blocks_new(MEMORY, SALT);

        assert_non_null(blocks);
        return blocks;
}

static void blocks_end(struct kvr__blocks *blocks)
{
        assert_true(kvr__blocks_check(blocks));
        kvr__blocks_free(blocks);
}

#define SLICE(text) ((struct kvr_slice){text, sizeof(text) - 1})
#define NOTHING     ((struct kvr_slice){0})

/* ---- keys ---- */

static void keys_tell_namespaces_apart(void **state)
{
        const uint64_t roots[] = {
                kvr__chain_root(NOTHING, NOTHING, 16),        kvr__chain_root(NOTHING, NOTHING, 32),
                kvr__chain_root(SLICE("a"), NOTHING, 16),     kvr__chain_root(NOTHING, SLICE("a"), 16),
                kvr__chain_root(SLICE("ab"), SLICE("c"), 16), kvr__chain_root(SLICE("a"), SLICE("bc"), 16),
                kvr__chain_root(SLICE("abc"), NOTHING, 16),
        };

        (void)state;
        for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
                assert_true(roots[i] >> 32);
                for (size_t j = 0; j < i; j++)
                        assert_true(roots[i] != roots[j]);
        }
        assert_true(roots[0] == kvr__chain_root(NOTHING, NOTHING, 16));
}

static void keys_stand_for_all_before(void **state)
{
        static const uint32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        uint64_t root = kvr__chain_root(NOTHING, NOTHING, 4);
        uint64_t one = kvr__chain_next(root, ids, 4, 0), two = kvr__chain_next(one, ids + 4, 4, 0);

        (void)state;
        assert_true(two != kvr__chain_next(root, ids + 4, 4, 0));
        assert_true(one != kvr__chain_next(root, ids, 4, 99));
        assert_true(kvr__chain_next(root, ids, 4, 98) != kvr__chain_next(root, ids, 4, 99));
        assert_true(one != kvr__chain_next(root, ids, 3, 0));
        /* blocks so large that the hash takes its other form */
        assert_true(kvr__chain_next(root, a.ids, 128, 0) != kvr__chain_next(root, a.ids, 127, 0));
}

/* ---- storing and matching ---- */

static void depth_is_the_common_prefix(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        uint16_t one = lane_new(blocks), two = lane_new(blocks);
        struct kvr_events_account account = {0};

        (void)state;
        text_of(&a, 1, 300);
        text_of(&b, 1, 100);
        for (uint32_t i = 0; i < 50; i++)
                text_add(&b, 7000 + i);
        text_store(blocks, one, &a, 0, 300, &account);
        assert_int_equal(account.stored, 300);
        assert_int_equal(text_depth(blocks, one, &a), 300);
        assert_int_equal(text_depth(blocks, one, &b), 100);
        assert_int_equal(text_depth(blocks, two, &a), 0);
        text_store(blocks, two, &b, 0, 120, &account);
        text_store(blocks, two, &b, 120, 150, &account);
        assert_int_equal(account.stored, 450);
        assert_int_equal(text_depth(blocks, two, &b), 150);
        assert_int_equal(text_depth(blocks, two, &a), 100);
        assert_int_equal(kvr__blocks_lane_count(blocks, two), 150);
        struct kvr__blocks_stats stats;

        kvr__blocks_stats(blocks, &stats);
        assert_int_equal(stats.nodes, 350);
        assert_int_equal(stats.holders, 450);
        blocks_end(blocks);
}

static void second_half_alone_is_no_match(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        uint16_t x = lane_new(blocks), y = lane_new(blocks), half = lane_new(blocks);
        struct kvr_events_account account = {0};

        (void)state;
        text_of(&a, 1, 40);
        text_of(&b, 500, 40);
        text_of(&c, 500, 40);
        for (uint32_t i = 0; i < 40; i++)
                text_add(&c, 1 + i);
        text_store(blocks, x, &a, 0, 40, &account);
        text_store(blocks, y, &b, 0, 40, &account);
        text_store(blocks, half, &b, 0, 20, &account);
        assert_int_equal(text_depth(blocks, x, &c), 0);
        assert_int_equal(text_depth(blocks, y, &c), 40);
        assert_int_equal(text_depth(blocks, half, &c), 20);
        blocks_end(blocks);
}

static void all_lanes_are_matched_at_once(void **state)
{
        enum { LANES = 200 };
        struct kvr__blocks *blocks = blocks_new();
        struct kvr_events_account account = {0};
        uint64_t want[KVR__BLOCK_LANE_WORDS] = {0};
        uint32_t depths[KVR__BLOCK_LANES_MAX], expected[LANES];

        (void)state;
        text_of(&a, 1, 900);
        for (uint32_t i = 0; i < LANES; i++) {
                expected[i] = (uint32_t)(text_mix(i) % 901);
                text_store(blocks, lane_new(blocks), &a, 0, expected[i], &account);
                if (i % 3)
                        want[i / 64] |= 1ULL << (i % 64);
        }
        for (uint32_t count = 0; count <= 900; count += count < 70 ? 1 : 83) {
                struct kvr__chain chain = {a.keys, count};

                memset(depths, 0xff, sizeof(depths));
                kvr__blocks_depths(blocks, &chain, want, (LANES + 63) / 64, depths);
                for (uint32_t i = 0; i < LANES; i++) {
                        uint32_t right = expected[i] < count ? expected[i] : count;

                        assert_int_equal(depths[i], i % 3 ? right : UINT32_MAX);
                }
        }
        blocks_end(blocks);
}

/* What lies between two known keys is taken for held when what follows is, and ends nothing by itself. */
static void gaps_are_passed_over(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        struct kvr_events_account account = {0};
        uint16_t lane = lane_new(blocks);
        static uint64_t keys[TEXT_BLOCKS_MAX];

        (void)state;
        text_of(&a, 1, 700);
        text_store(blocks, lane, &a, 0, 500, &account);
        for (uint32_t seed = 0; seed < 50; seed++) {
                uint32_t last = 0, from = (uint32_t)(text_mix(seed) % 700),
                         gap = (uint32_t)(text_mix(seed + 100) % 300);

                memcpy(keys, a.keys, sizeof(keys));
                for (uint32_t i = from; i < from + gap && i < 700; i++)
                        keys[i] = 0;
                for (uint32_t i = 0; i < 700; i++)
                        if (text_mix(seed << 20 | i) % 100 < seed * 2)
                                keys[i] = 0;
                for (uint32_t i = 0; i < 500; i++)
                        if (keys[i])
                                last = i + 1;
                uint64_t want = 1;
                uint32_t depth = UINT32_MAX;
                struct kvr__chain chain = {keys, 700};

                assert_int_equal(lane, 0);
                kvr__blocks_depths(blocks, &chain, &want, 1, &depth);
                assert_int_equal(depth, last);
        }
        memset(keys, 0, sizeof(keys));
        uint64_t want = 1;
        uint32_t depth = UINT32_MAX;
        struct kvr__chain chain = {keys, TEXT_BLOCKS_MAX};

        kvr__blocks_depths(blocks, &chain, &want, 1, &depth);
        assert_int_equal(depth, 0);
        blocks_end(blocks);
}

/* An engine that gives blocks away out of the middle: not credited where steps or the walk at the end meet
 * the hole. */
static void holes_are_not_credited(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        struct kvr_events_account account = {0};
        uint16_t lane = lane_new(blocks);

        (void)state;
        text_of(&a, 1, 512);
        text_store(blocks, lane, &a, 0, 512, &account);
        text_remove(blocks, lane, &a, 100, 116, &account);
        assert_int_equal(text_depth(blocks, lane, &a), 100);
        /* near the end of what is held, one missing block is seen */
        text_remove(blocks, lane, &a, 20, 512, &account);
        text_remove(blocks, lane, &a, 15, 16, &account);
        assert_int_equal(account.unknown, 16);
        assert_int_equal(text_depth(blocks, lane, &a), 15);
        text_of(&b, 1, 30);
        assert_int_equal(text_depth(blocks, lane, &b), 15);
        blocks_end(blocks);
}

static void namespaces_do_not_meet(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        struct kvr_events_account account = {0};
        uint16_t lane = lane_new(blocks);
        static const uint64_t pictures[4] = {0, 77, 0, 0};
        uint64_t keys[4], key;
        uint64_t want = 1;
        uint32_t depth;

        (void)state;
        text_of(&a, 1, 4);
        struct kvr_blocks_stored stored = text_event(&a, 0, 4);

        stored.adapter = SLICE("lora-a");
        stored.extra = pictures;
        kvr__blocks_store(blocks, lane, &stored, &account);
        assert_int_equal(account.stored, 4);
        assert_int_equal(text_depth(blocks, lane, &a), 0);
        key = kvr__chain_root(SLICE("lora-a"), NOTHING, TEXT_BLOCK_TOKENS);
        for (uint32_t i = 0; i < 4; i++)
                keys[i] = key =
                        kvr__chain_next(key, a.ids + i * TEXT_BLOCK_TOKENS, TEXT_BLOCK_TOKENS, pictures[i]);
        struct kvr__chain chain = {keys, 4};

        kvr__blocks_depths(blocks, &chain, &want, 1, &depth);
        assert_int_equal(depth, 4);
        /* the other picture */
        keys[1] = kvr__chain_next(keys[0], a.ids + TEXT_BLOCK_TOKENS, TEXT_BLOCK_TOKENS, 78);
        keys[2] = kvr__chain_next(keys[1], a.ids + 2 * TEXT_BLOCK_TOKENS, TEXT_BLOCK_TOKENS, 0);
        keys[3] = kvr__chain_next(keys[2], a.ids + 3 * TEXT_BLOCK_TOKENS, TEXT_BLOCK_TOKENS, 0);
        kvr__blocks_depths(blocks, &chain, &want, 1, &depth);
        assert_int_equal(depth, 1);
        blocks_end(blocks);
}

/* What a reader that found a node before it changed hands must be told. */
static void a_node_of_another_key_is_no_match(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        struct kvr_events_account account = {0};
        uint16_t lane = lane_new(blocks);
        uint64_t set = 1ULL << lane, ret = 0;

        (void)state;
        text_of(&a, 1, 1);
        text_of(&b, 500, 1);
        text_store(blocks, lane, &a, 0, 1, &account);
        uint32_t node = kvr__block_node_find(blocks, a.keys[0], block_key_hash(blocks, a.keys[0]));

        assert_true(kvr__block_node_meet(blocks, node, a.keys[0], &set, 1, &ret));
        assert_int_equal(ret, set);
        uint32_t before = block_node_at(blocks, node)->state;

        text_remove(blocks, lane, &a, 0, 1, &account);
        assert_false(kvr__block_node_meet(blocks, node, a.keys[0], &set, 1, &ret));
        text_store(blocks, lane, &b, 0, 1, &account);
        assert_int_equal(kvr__block_node_find(blocks, b.keys[0], block_key_hash(blocks, b.keys[0])), node);
        assert_false(kvr__block_node_meet(blocks, node, a.keys[0], &set, 1, &ret));
        assert_true(block_node_at(blocks, node)->state != before);
        blocks_end(blocks);
}

/* A place for 64 lanes that goes to others: the turn goes up, so that who read the old ones reads again. */
static void a_word_that_changes_takes_a_turn(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        struct kvr_events_account account = {0};
        uint16_t lanes[400];
        uint32_t before;

        (void)state;
        for (uint32_t i = 0; i < 400; i++)
                lanes[i] = lane_new(blocks);
        text_of(&a, 1, 1);
        for (uint32_t i = 0; i < 400; i += 64)
                text_store(blocks, lanes[i], &a, 0, 1, &account);
        struct block_node *node = block_node_at(
                blocks, kvr__block_node_find(blocks, a.keys[0], block_key_hash(blocks, a.keys[0])));

        /* in the node: lanes 0..63 go, 320..383 have a place already, 64 stays in a chunk; 384 comes */
        text_remove(blocks, lanes[0], &a, 0, 1, &account);
        text_remove(blocks, lanes[384], &a, 0, 1, &account);
        before = node->state;
        text_store(blocks, lanes[385], &a, 0, 1, &account);
        assert_true(node->state >> BLOCK_WORD_BITS != before >> BLOCK_WORD_BITS);
        assert_int_equal(node->state & BLOCK_WORD_MASK, 385 / 64);
        /* in a chunk */
        text_remove(blocks, lanes[64], &a, 0, 1, &account);
        before = node->state;
        text_store(blocks, lanes[1], &a, 0, 1, &account);
        assert_true(node->state != before);
        /* a chunk that becomes empty is taken out */
        for (uint32_t i = 128; i < 384; i += 64)
                text_remove(blocks, lanes[i], &a, 0, 1, &account);
        assert_int_equal(text_depth(blocks, lanes[1], &a), 1);
        assert_int_equal(text_depth(blocks, lanes[385], &a), 1);
        assert_int_equal(text_depth(blocks, lanes[384], &a), 0);
        text_remove(blocks, lanes[1], &a, 0, 1, &account);
        assert_int_equal(node->more, 0);
        blocks_end(blocks);
}

/* ---- handles ---- */

/* vLLM: a second physical block with the same hash, each removed on its own. */
static void copies_are_counted(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        uint16_t lane = lane_new(blocks), other = lane_new(blocks);
        struct kvr_events_account account = {0};

        (void)state;
        text_of(&a, 1, 10);
        text_store(blocks, lane, &a, 0, 10, &account);
        text_store(blocks, other, &a, 0, 10, &account);
        for (int i = 0; i < 5; i++)
                text_store(blocks, lane, &a, 9, 10, &account);
        assert_int_equal(account.stored, 20);
        assert_int_equal(account.repeated, 5);
        assert_true(kvr__blocks_check(blocks));
        for (uint32_t i = 0; i < 5; i++) {
                text_remove(blocks, lane, &a, 9, 10, &account);
                assert_int_equal(account.copies_removed, i + 1);
                assert_int_equal(text_depth(blocks, lane, &a), 10);
        }
        text_remove(blocks, lane, &a, 9, 10, &account);
        assert_int_equal(account.removed, 1);
        assert_int_equal(text_depth(blocks, lane, &a), 9);
        assert_int_equal(text_depth(blocks, other, &a), 10);
        text_remove(blocks, lane, &a, 9, 10, &account);
        assert_int_equal(account.unknown, 1);
        blocks_end(blocks);
}

static void one_block_under_two_names(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        uint16_t lane = lane_new(blocks);
        struct kvr_events_account account = {0};

        (void)state;
        text_of(&a, 1, 3);
        text_of(&b, 1, 3);
        for (uint32_t i = 0; i < 3; i++)
                b.handles[i] += 1000;
        text_store(blocks, lane, &a, 0, 3, &account);
        text_store(blocks, lane, &b, 0, 3, &account);
        text_store(blocks, lane, &b, 0, 3, &account);
        assert_int_equal(account.stored, 6);
        assert_int_equal(account.repeated, 3);
        assert_int_equal(kvr__blocks_lane_count(blocks, lane), 6);
        assert_true(kvr__blocks_check(blocks));
        text_remove(blocks, lane, &a, 0, 3, &account);
        assert_int_equal(text_depth(blocks, lane, &a), 3);
        text_remove(blocks, lane, &b, 0, 3, &account);
        assert_int_equal(text_depth(blocks, lane, &a), 3);
        text_remove(blocks, lane, &b, 0, 3, &account);
        assert_int_equal(text_depth(blocks, lane, &a), 0);
        assert_int_equal(account.removed, 6);
        blocks_end(blocks);
}

/* Engines' own hashes mean nothing between lanes, and may be as small as they like. */
static void names_are_the_lanes_own(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        uint16_t one = lane_new(blocks), two = lane_new(blocks);
        struct kvr_events_account account = {0};

        (void)state;
        text_of(&a, 1, 400);
        text_of(&b, 5000, 400);
        for (uint32_t i = 0; i < 400; i++)
                a.handles[i] = b.handles[i] = i;
        text_store(blocks, one, &a, 0, 400, &account);
        text_store(blocks, two, &b, 0, 400, &account);
        assert_int_equal(account.stored, 800);
        assert_int_equal(text_depth(blocks, one, &a), 400);
        assert_int_equal(text_depth(blocks, two, &b), 400);
        assert_int_equal(text_depth(blocks, two, &a), 0);
        blocks_end(blocks);
}

/* The same name for another chain: the engine began anew and nobody noticed, or its hashes collide. */
static void a_name_taken_over_means_the_new_block(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        uint16_t lane = lane_new(blocks);
        struct kvr_events_account account = {0};

        (void)state;
        text_of(&a, 1, 20);
        text_of(&b, 5000, 20);
        memcpy(b.handles, a.handles, sizeof(b.handles));
        text_store(blocks, lane, &a, 0, 20, &account);
        text_store(blocks, lane, &a, 0, 20, &account);
        text_store(blocks, lane, &b, 0, 15, &account);
        assert_int_equal(account.stored, 35);
        assert_int_equal(account.removed, 15);
        assert_int_equal(text_depth(blocks, lane, &b), 15);
        assert_int_equal(text_depth(blocks, lane, &a), 0);
        assert_int_equal(kvr__blocks_lane_count(blocks, lane), 20);
        /* the copies of the old one went with it */
        text_remove(blocks, lane, &b, 0, 15, &account);
        assert_int_equal(account.removed, 30);
        assert_int_equal(account.copies_removed, 0);
        blocks_end(blocks);
}

static void orphans_are_dropped(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        uint16_t lane = lane_new(blocks), other = lane_new(blocks);
        struct kvr_events_account account = {0};

        (void)state;
        text_of(&a, 1, 20);
        text_store(blocks, other, &a, 0, 20, &account);
        text_store(blocks, lane, &a, 10, 20, &account);
        assert_int_equal(account.orphans, 10);
        assert_int_equal(kvr__blocks_lane_count(blocks, lane), 0);
        struct kvr_blocks_stored stored = text_event(&a, 0, 10);

        /* ids that do not fit the hashes: nobody can say what those blocks are */
        stored.token_count--;
        kvr__blocks_store(blocks, lane, &stored, &account);
        stored.block_tokens = 0;
        stored.token_count = 0;
        kvr__blocks_store(blocks, lane, &stored, &account);
        assert_int_equal(account.orphans, 30);
        stored = text_event(&a, 0, 0);
        kvr__blocks_store(blocks, lane, &stored, &account);
        assert_int_equal(account.stored, 20);
        blocks_end(blocks);
}

/* ---- lanes ---- */

static void a_closed_lane_is_empty_at_once(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        uint16_t lane = lane_new(blocks), other = lane_new(blocks), next;
        struct kvr_events_account account = {0};
        struct kvr__blocks_stats stats;

        (void)state;
        text_of(&a, 1, 500);
        text_store(blocks, lane, &a, 0, 500, &account);
        text_store(blocks, lane, &a, 100, 200, &account);
        text_store(blocks, other, &a, 0, 50, &account);
        kvr__blocks_lane_close(blocks, lane);
        assert_int_equal(text_depth(blocks, lane, &a), 0);
        assert_int_equal(kvr__blocks_lane_count(blocks, lane), 0);
        kvr__blocks_stats(blocks, &stats);
        assert_int_equal(stats.holders, 50);
        assert_true(kvr__blocks_check(blocks));
        /* its number does not come back before its entries are gone */
        kvr__blocks_reclaim(blocks, 100);
        next = lane_new(blocks);
        assert_int_not_equal(next, lane);
        assert_true(kvr__blocks_check(blocks));
        kvr__blocks_reclaim(blocks, 10000);
        kvr__blocks_stats(blocks, &stats);
        assert_int_equal(stats.nodes, 50);
        next = lane_new(blocks);
        assert_int_equal(next, lane);
        assert_int_equal(text_depth(blocks, next, &a), 0);
        /* events of a lane that is gone change nothing */
        kvr__blocks_lane_close(blocks, next);
        kvr__blocks_lane_close(blocks, next);
        kvr__blocks_lane_close(blocks, 5000);
        memset(&account, 0, sizeof(account));
        text_store(blocks, next, &a, 0, 10, &account);
        text_remove(blocks, next, &a, 0, 10, &account);
        static const struct kvr_events_account none;

        assert_memory_equal(&account, &none, sizeof(account));
        blocks_end(blocks);
}

static void stores_and_removals_reclaim(void **state)
{
        struct kvr__blocks *blocks = blocks_new();
        uint16_t lane = lane_new(blocks), other = lane_new(blocks);
        struct kvr_events_account account = {0};
        struct kvr__blocks_stats stats;

        (void)state;
        text_of(&a, 1, 1000);
        text_of(&b, 7000, 2);
        text_store(blocks, lane, &a, 0, 1000, &account);
        kvr__blocks_lane_close(blocks, lane);
        for (int i = 0; i < 20; i++) {
                text_store(blocks, other, &b, 0, 2, &account);
                text_remove(blocks, other, &b, 0, 2, &account);
        }
        kvr__blocks_stats(blocks, &stats);
        assert_int_equal(stats.nodes, 0);
        blocks_end(blocks);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(keys_tell_namespaces_apart),
                cmocka_unit_test(keys_stand_for_all_before),
                cmocka_unit_test(depth_is_the_common_prefix),
                cmocka_unit_test(second_half_alone_is_no_match),
                cmocka_unit_test(all_lanes_are_matched_at_once),
                cmocka_unit_test(gaps_are_passed_over),
                cmocka_unit_test(holes_are_not_credited),
                cmocka_unit_test(namespaces_do_not_meet),
                cmocka_unit_test(a_node_of_another_key_is_no_match),
                cmocka_unit_test(a_word_that_changes_takes_a_turn),
                cmocka_unit_test(copies_are_counted),
                cmocka_unit_test(one_block_under_two_names),
                cmocka_unit_test(names_are_the_lanes_own),
                cmocka_unit_test(a_name_taken_over_means_the_new_block),
                cmocka_unit_test(orphans_are_dropped),
                cmocka_unit_test(a_closed_lane_is_empty_at_once),
                cmocka_unit_test(stores_and_removals_reclaim),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
