/* SPDX-License-Identifier: Apache-2.0 */
/* The block index under random events, against a plain model that is asked after each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "blocks_form.h"
#include "blocks_int.h"
#include "blocks_test_util.h"

#define MEMORY  (32U << 20)
#define NOTHING ((struct kvr_slice){0})

static uint16_t lane_new(struct kvr__blocks *blocks)
{
        uint16_t lane;

        assert_true(kvr__blocks_lane_open(blocks, &lane));
        return lane;
}

enum { MODEL_LANES = 70, MODEL_ENTRIES = 1500, MODEL_KEEP = 400 };

struct model_entry {
        uint64_t handle, key;
        uint32_t copies;
};

struct model_lane {
        uint16_t lane;
        uint32_t count;
        struct model_entry entries[MODEL_ENTRIES];
};

struct model {
        struct kvr__blocks *blocks;
        struct model_lane *lanes;
        struct kvr_events_account expected, account;
        uint64_t random;
};

static uint64_t chance(struct model *model)
{
        return text_mix(model->random++);
}

static struct model_entry *model_find(struct model_lane *lane, uint64_t handle)
{
        for (uint32_t i = 0; i < lane->count; i++)
                if (lane->entries[i].handle == handle)
                        return &lane->entries[i];
        return NULL;
}

static bool model_holds(const struct model_lane *lane, uint64_t key)
{
        for (uint32_t i = 0; i < lane->count; i++)
                if (lane->entries[i].key == key)
                        return true;
        return false;
}

/* A text from a small world, so that texts share beginnings of all lengths. */
static void model_text(struct model *model, struct text *text)
{
        uint64_t shape = chance(model);
        uint32_t parts = 1 + (uint32_t)(shape % 3), seed = (uint32_t)(shape >> 8) % 3;

        text_init(text);
        for (uint32_t part = 0; part < parts; part++) {
                uint32_t length = 1 + (uint32_t)(chance(model) % (part ? 12 : 8));

                for (uint32_t i = 0; i < length; i++)
                        text_add(text, seed * 1000 + part * 100 + i);
                seed = (uint32_t)(chance(model) % 4);
        }
}

static void model_store(struct model *model, struct model_lane *lane)
{
        static struct text text;
        struct model_entry *parent;

        model_text(model, &text);
        uint32_t from = (uint32_t)(chance(model) % text.count), to = text.count;
        uint64_t key = from ? 0 : kvr__chain_root(NOTHING, NOTHING, TEXT_BLOCK_TOKENS);

        if (chance(model) % 2)
                from = 0, key = kvr__chain_root(NOTHING, NOTHING, TEXT_BLOCK_TOKENS);
        /* Now and then the engine uses another name for a block, or one name for two. */
        for (uint32_t i = 0; i < to; i++) {
                if (chance(model) % 40 == 0)
                        text.handles[i] += chance(model) % 2;
                if (chance(model) % 200 == 0)
                        text.handles[i] = 5;
        }
        text_store(model->blocks, lane->lane, &text, from, to, &model->account);
        if (from) {
                parent = model_find(lane, text.handles[from - 1]);
                if (!parent) {
                        model->expected.orphans += to - from;
                        return;
                }
                key = parent->key;
        }
        for (uint32_t i = from; i < to; i++) {
                struct model_entry *entry = model_find(lane, text.handles[i]);

                key = kvr__chain_next(key, text.ids + (size_t)i * TEXT_BLOCK_TOKENS, TEXT_BLOCK_TOKENS, 0);
                if (entry && entry->key == key) {
                        entry->copies++;
                        model->expected.repeated++;
                        continue;
                }
                if (entry)
                        model->expected.removed++;
                else
                        entry = &lane->entries[lane->count++];
                assert_true(lane->count < MODEL_ENTRIES);
                *entry = (struct model_entry){text.handles[i], key, 1};
                model->expected.stored++;
        }
}

static void model_remove(struct model *model, struct model_lane *lane)
{
        uint64_t hashes[64];
        uint32_t count = 0, most = lane->count > MODEL_KEEP ? 64 : 1 + (uint32_t)(chance(model) % 20);

        while (count < most) {
                struct model_entry *entry = NULL;

                if (lane->count && chance(model) % 16)
                        entry = &lane->entries[lane->count - 1 - chance(model) % lane->count / 2];
                hashes[count++] = entry ? entry->handle : chance(model);
                if (!entry) {
                        model->expected.unknown++;
                } else if (entry->copies > 1) {
                        entry->copies--;
                        model->expected.copies_removed++;
                } else {
                        *entry = lane->entries[--lane->count];
                        model->expected.removed++;
                }
        }
        kvr__blocks_remove(model->blocks, lane->lane, hashes, count, &model->account);
}

static void model_compare(struct model *model)
{
        static struct text text;
        uint64_t want[KVR__BLOCK_LANE_WORDS] = {0};
        uint32_t depths[KVR__BLOCK_LANES_MAX], words = 1;

        model_text(model, &text);
        for (uint32_t i = 0; i < MODEL_LANES; i++) {
                uint16_t lane = model->lanes[i].lane;

                want[lane / 64] |= 1ULL << (lane % 64);
                words = lane / 64U + 1 > words ? lane / 64U + 1 : words;
                depths[lane] = UINT32_MAX;
        }
        struct kvr__chain chain = {text.keys, text.count};

        kvr__blocks_depths(model->blocks, &chain, want, words, depths);
        assert_true(text.count <= 32); /* all of it is walked then, holes and all */
        for (uint32_t i = 0; i < MODEL_LANES; i++) {
                const struct model_lane *lane = &model->lanes[i];
                uint32_t depth = 0;

                while (depth < text.count && model_holds(lane, text.keys[depth]))
                        depth++;
                assert_int_equal(depths[lane->lane], depth);
        }
        assert_memory_equal(&model->account, &model->expected, sizeof(model->account));
}

static void model_run(const struct kvr__block_form *form, uint64_t seed, uint32_t steps, uint64_t bytes)
{
        struct model model = {.blocks = kvr__blocks_new(bytes, seed), .random = seed << 40};
        uint64_t held = 0;

        model.lanes = calloc(MODEL_LANES, sizeof(*model.lanes));
        assert_non_null(model.blocks);
        assert_non_null(model.lanes);
        model.blocks->form = form;
        for (uint32_t i = 0; i < MODEL_LANES; i++)
                model.lanes[i].lane = lane_new(model.blocks);
        for (uint32_t step = 0; step < steps; step++) {
                struct model_lane *lane = &model.lanes[chance(&model) % MODEL_LANES];
                uint64_t what = chance(&model) % 1000;

                if (what < 4) {
                        kvr__blocks_lane_close(model.blocks, lane->lane);
                        if (what < 2)
                                kvr__blocks_reclaim(model.blocks, (uint32_t)(chance(&model) % 300));
                        lane->lane = lane_new(model.blocks);
                        lane->count = 0;
                } else if (what < 400 || lane->count > MODEL_KEEP) {
                        model_remove(&model, lane);
                } else {
                        model_store(&model, lane);
                }
                assert_int_equal(kvr__blocks_lane_count(model.blocks, lane->lane), lane->count);
                model_compare(&model);
                if (step % 500 == 0)
                        assert_true(kvr__blocks_check(model.blocks));
        }
        for (uint32_t i = 0; i < MODEL_LANES; i++)
                held += model.lanes[i].count;
        struct kvr__blocks_stats stats;

        kvr__blocks_stats(model.blocks, &stats);
        assert_int_equal(stats.holders, held);
        free(model.lanes);
        assert_true(kvr__blocks_check(model.blocks));
        kvr__blocks_free(model.blocks);
}

static void agrees_with_a_plain_model(void **state)
{
        (void)state;
        for (uint32_t number = 0; kvr__block_form_at(number); number++)
                for (uint64_t seed = 1; seed < 4; seed++)
                        model_run(kvr__block_form_at(number), seed, 4000, MEMORY);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(agrees_with_a_plain_model),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
