/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of llama.cpp's slots, case by case. Blocks of 10 tokens. */
#include "slots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define BLOCK 10u

static struct sim_slots *with(uint32_t count, uint64_t memory_tokens)
{
        struct sim_slots *slots = sim_slots_new(count, BLOCK, memory_tokens);

        assert_non_null(slots);
        return slots;
}

/* A prompt of `tokens` tokens, of which the first `shared` blocks are those of family `name`. */
static uint32_t make(uint64_t *keys, uint64_t name, uint32_t shared, uint64_t own, uint32_t tokens)
{
        uint32_t count = (tokens + BLOCK - 1) / BLOCK;

        for (uint32_t i = 0; i < count; i++)
                keys[i] = (i < shared ? name : own) * 1000 + i + 1;
        return count;
}

static uint32_t start(struct sim_slots *slots, uint64_t name, uint32_t shared, uint64_t own, uint32_t tokens,
                      uint32_t *ret_slot)
{
        uint64_t keys[64];
        uint32_t count = make(keys, name, shared, own, tokens), found = UINT32_MAX;
        uint32_t would = sim_slots_match(slots, keys, count, tokens);

        assert_true(sim_slots_start(slots, keys, count, tokens, ret_slot, &found));
        assert_int_equal(found, would);
        return found;
}

/* One prompt from beginning to end, without an answer; what it found. */
static uint32_t serve(struct sim_slots *slots, uint64_t name, uint32_t shared, uint64_t own, uint32_t tokens)
{
        uint32_t slot, found = start(slots, name, shared, own, tokens, &slot);

        sim_slots_finish(slots, slot, tokens);
        return found;
}

static void the_last_token_is_always_computed(void **state)
{
        struct sim_slots *slots = with(4, 0);

        (void)state;
        assert_int_equal(serve(slots, 1, 64, 0, 300), 0);
        assert_int_equal(serve(slots, 1, 64, 0, 300), 299);
        assert_int_equal(serve(slots, 1, 64, 0, 305), 300);
        assert_int_equal(sim_slots_busy(slots), 0);
        sim_slots_free(slots);
}

static void slots_share_nothing(void **state)
{
        struct sim_slots *slots = with(4, 0);
        uint32_t slot[4];
        uint64_t keys[64];
        uint32_t unused;

        (void)state;
        serve(slots, 1, 64, 0, 300);
        for (uint32_t i = 0; i < 4; i++)
                assert_int_equal(start(slots, 1, 30, 10 + i, 400, &slot[i]), i ? 0 : 300);
        assert_int_equal(sim_slots_busy(slots), 4);
        assert_false(sim_slots_start(slots, keys, make(keys, 1, 64, 0, 300), 300, &unused, &unused));
        for (uint32_t i = 0; i < 4; i++) {
                for (uint32_t j = 0; j < i; j++)
                        assert_int_not_equal(slot[i], slot[j]);
        }
        for (uint32_t i = 0; i < 4; i++)
                sim_slots_finish(slots, slot[i], 400);
        /* Now all four hold it. */
        for (uint32_t i = 0; i < 4; i++)
                assert_true(start(slots, 1, 30, 20 + i, 400, &slot[i]) == 300);
        sim_slots_free(slots);
}

static void a_tenth_of_the_prompt_decides(void **state)
{
        struct sim_slots *slots = with(2, 0);
        uint32_t slot;

        (void)state;
        serve(slots, 1, 64, 0, 100); /* slot 0 */
        serve(slots, 2, 64, 0, 100); /* slot 1 */
        /* A tenth is not enough: the older one is taken, though it has nothing. */
        assert_int_equal(start(slots, 2, 1, 3, 100, &slot), 0);
        assert_int_equal(slot, 0);
        sim_slots_finish(slots, slot, 100);
        /* Two tenths are, though the other one is older. */
        serve(slots, 2, 64, 0, 100);
        assert_int_equal(start(slots, 2, 2, 4, 100, &slot), 20);
        assert_int_equal(slot, 1);
        sim_slots_free(slots);
}

static void eight_prompts_over_four_slots_come_back_from_memory(void **state)
{
        struct sim_slots *slots = with(4, 100000);

        (void)state;
        for (uint64_t name = 1; name <= 8; name++)
                assert_int_equal(serve(slots, name, 64, 0, 300), 0);
        /* 5 to 7 are in idle slots too; 8 will be copied when the next prompt has its slot. */
        assert_int_equal(sim_slots_saved(slots), 7);
        for (uint64_t name = 1; name <= 8; name++)
                assert_int_equal(serve(slots, name, 64, 0, 300), 299);
        assert_int_equal(sim_slots_saved(slots), 7);
        assert_int_equal(sim_slots_tokens(slots), 7 * 300 + 4 * 300);
        sim_slots_free(slots);
}

static void without_memory_they_do_not(void **state)
{
        struct sim_slots *slots = with(4, 0);

        (void)state;
        for (uint64_t name = 1; name <= 8; name++)
                serve(slots, name, 64, 0, 300);
        for (uint64_t name = 1; name <= 8; name++)
                assert_int_equal(serve(slots, name, 64, 0, 300), 0);
        assert_int_equal(sim_slots_saved(slots), 0);
        sim_slots_free(slots);
}

static void half_in_common_overwrites_what_differs(void **state)
{
        struct sim_slots *slots = with(1, 100000);

        (void)state;
        serve(slots, 1, 64, 0, 300);
        assert_int_equal(serve(slots, 1, 15, 2, 300), 150); /* half is kept: nothing is saved */
        assert_int_equal(sim_slots_saved(slots), 0);
        assert_int_equal(serve(slots, 1, 64, 0, 300), 150);
        sim_slots_free(slots);

        slots = with(1, 100000);
        serve(slots, 1, 64, 0, 300);
        assert_int_equal(serve(slots, 1, 5, 2, 300), 50); /* less: the first one is saved */
        assert_int_equal(sim_slots_saved(slots), 1);
        assert_int_equal(serve(slots, 1, 64, 0, 300), 299);
        sim_slots_free(slots);
}

static void a_quarter_of_a_saved_one_must_be_of_use(void **state)
{
        struct sim_slots *slots = with(1, 100000);

        (void)state;
        serve(slots, 1, 64, 0, 400);
        serve(slots, 2, 64, 0, 100);                       /* 1 is saved */
        assert_int_equal(serve(slots, 1, 9, 3, 100), 0);   /* 90 of 400 */
        assert_int_equal(serve(slots, 1, 10, 4, 110), 90); /* the slot's own 90 of 100: nothing comes back */
        serve(slots, 5, 64, 0, 100);
        assert_int_equal(serve(slots, 1, 10, 6, 150), 100);
        sim_slots_free(slots);
}

static void the_first_saved_goes_first(void **state)
{
        struct sim_slots *slots = with(1, 450);

        (void)state;
        serve(slots, 1, 64, 0, 200);
        serve(slots, 2, 64, 0, 200);
        serve(slots, 3, 64, 0, 200); /* saved: 1, 2 */
        assert_int_equal(sim_slots_saved(slots), 2);
        serve(slots, 4, 64, 0, 600); /* saved: 2, 3 */
        assert_int_equal(sim_slots_dropped(slots), 1);
        assert_int_equal(serve(slots, 1, 64, 0, 200), 0); /* saved: 4 alone, larger than all memory */
        assert_int_equal(sim_slots_saved(slots), 1);
        assert_int_equal(sim_slots_dropped(slots), 3);
        assert_int_equal(serve(slots, 4, 64, 0, 600), 599);
        sim_slots_free(slots);
}

static void memory_holds_nothing_twice(void **state)
{
        struct sim_slots *slots = with(1, 100000);

        (void)state;
        serve(slots, 1, 64, 0, 100);
        serve(slots, 2, 64, 0, 100); /* saved: 1 */
        serve(slots, 1, 64, 0, 300); /* back, goes on; saved: 2 */
        serve(slots, 3, 64, 0, 100); /* saved: 2, 1 with 300 */
        assert_int_equal(sim_slots_saved(slots), 2);
        assert_int_equal(sim_slots_tokens(slots), 100 + 300 + 100);
        assert_int_equal(serve(slots, 1, 64, 0, 300), 299);
        sim_slots_free(slots);
}

/* As measured on a server: of two at once the second finds its beginning only if a prompt came in between. */
static void what_idle_slots_hold_is_copied_when_a_prompt_starts(void **state)
{
        struct sim_slots *slots = with(4, 100000);
        uint32_t a, b, c;

        (void)state;
        serve(slots, 1, 64, 0, 300);
        assert_int_equal(start(slots, 1, 29, 2, 300, &a), 290);
        assert_int_equal(start(slots, 1, 29, 3, 300, &b), 0); /* the only slot that has it is busy */
        sim_slots_finish(slots, a, 300);
        sim_slots_finish(slots, b, 300);
        serve(slots, 9, 64, 0, 100); /* now memory has both */
        assert_int_equal(sim_slots_saved(slots), 2);
        assert_int_equal(start(slots, 1, 29, 4, 300, &a), 290);
        assert_int_equal(start(slots, 1, 29, 5, 300, &b), 290);
        assert_int_equal(start(slots, 1, 29, 6, 300, &c), 290); /* from memory: both slots are busy */
        assert_int_not_equal(c, a);
        assert_int_not_equal(c, b);
        sim_slots_free(slots);
}

/* A copy that memory had no room for is made again. */
static void a_lost_copy_is_made_again(void **state)
{
        struct sim_slots *slots = with(3, 650);
        uint32_t slot, other;

        (void)state;
        serve(slots, 1, 64, 0, 300);
        serve(slots, 2, 64, 0, 300); /* saved: 1 */
        serve(slots, 3, 64, 0, 300); /* saved: 1, 2 */
        assert_int_equal(sim_slots_saved(slots), 2);
        start(slots, 2, 64, 0, 300,
              &slot); /* saved: 2, 3, for 1 made room, and is copied anew in place of 2 */
        assert_int_equal(sim_slots_dropped(slots) > 0, 1);
        assert_int_equal(sim_slots_saved(slots), 2);
        assert_int_equal(start(slots, 4, 64, 0, 300, &other), 0);
        sim_slots_free(slots);
}

static void an_answer_counts_as_held(void **state)
{
        struct sim_slots *slots = with(1, 100000);
        uint32_t slot;

        (void)state;
        start(slots, 1, 64, 0, 100, &slot);
        sim_slots_finish(slots, slot, 250);                 /* 150 of them an answer */
        assert_int_equal(serve(slots, 1, 10, 2, 200), 100); /* 100 of 250 is less than half: saved */
        assert_int_equal(sim_slots_saved(slots), 1);
        sim_slots_free(slots);
}

static void what_was_not_computed_is_not_there(void **state)
{
        struct sim_slots *slots = with(1, 0);
        uint32_t slot;

        (void)state;
        start(slots, 1, 64, 0, 300, &slot);
        sim_slots_finish(slots, slot, 125);
        assert_int_equal(serve(slots, 1, 64, 0, 300), 125);
        start(slots, 1, 64, 0, 300, &slot);
        sim_slots_clear(slots);
        sim_slots_finish(slots, slot, 300);
        assert_int_equal(sim_slots_tokens(slots), 0);
        assert_int_equal(serve(slots, 1, 64, 0, 300), 0);
        sim_slots_free(slots);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_last_token_is_always_computed),
                cmocka_unit_test(slots_share_nothing),
                cmocka_unit_test(a_tenth_of_the_prompt_decides),
                cmocka_unit_test(eight_prompts_over_four_slots_come_back_from_memory),
                cmocka_unit_test(without_memory_they_do_not),
                cmocka_unit_test(half_in_common_overwrites_what_differs),
                cmocka_unit_test(a_quarter_of_a_saved_one_must_be_of_use),
                cmocka_unit_test(the_first_saved_goes_first),
                cmocka_unit_test(memory_holds_nothing_twice),
                cmocka_unit_test(what_idle_slots_hold_is_copied_when_a_prompt_starts),
                cmocka_unit_test(a_lost_copy_is_made_again),
                cmocka_unit_test(an_answer_counts_as_held),
                cmocka_unit_test(what_was_not_computed_is_not_there),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
