/* SPDX-License-Identifier: Apache-2.0 */
#include "slots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "brain_test.h"

static struct kvr__budget budget;

static int setup(void **state)
{
        (void)state;
        budget = (struct kvr__budget){.bytes_max = 16U << 20, .bytes_main = 16U << 20};
        return 0;
}

static struct kvr__slots_ask ask_of(const struct brain_prompt *p)
{
        return (struct kvr__slots_ask){p->points, p->count, 0.25, 0};
}

static const struct brain_prompt *text_of(struct brain_prompt *p, uint64_t number, uint64_t bytes)
{
        brain_prompt_of(p, number, bytes);
        return p;
}

static uint32_t match(const struct kvr__slots *slots, const struct brain_prompt *p)
{
        struct kvr__slots_ask ask = ask_of(p);
        struct kvr__slots_match found;

        kvr__slots_match(slots, &ask, &found);
        return found.points;
}

static uint32_t rank_of(const struct kvr__slots *slots, const struct brain_prompt *p)
{
        struct kvr__slots_ask ask = ask_of(p);
        struct kvr__slots_match found;

        kvr__slots_match(slots, &ask, &found);
        return found.rank;
}

static uint32_t start(struct kvr__slots *slots, const struct brain_prompt *p)
{
        struct kvr__slots_ask ask = ask_of(p);

        return kvr__slots_start(slots, &ask);
}

/* A whole request; tells how many points it found. */
static uint32_t serve(struct kvr__slots *slots, const struct brain_prompt *p)
{
        uint32_t found = match(slots, p), slot = start(slots, p);

        assert_int_not_equal(slot, KVR__NO_SLOT);
        kvr__slots_finish(slots, slot, 10);
        return found;
}

/* Two texts, of which the first `common` bytes are alike. */
static void pair_make(struct brain_prompt *a, struct brain_prompt *b, uint64_t common, uint64_t rest)
{
        brain_prompt_init(a);
        if (common)
                brain_message(a, 1, common);
        *b = *a;
        brain_message(a, 2, rest);
        brain_message(b, 3, rest);
}

static void slots_share_nothing(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 4, 0);
        static struct brain_prompt p;

        (void)state;
        brain_prompt_of(&p, 1, 12000);
        serve(slots, &p);
        /* Of four at once one hits, the others find nothing. */
        assert_int_equal(match(slots, &p), p.count);
        assert_int_not_equal(start(slots, &p), KVR__NO_SLOT);
        for (int i = 0; i < 3; i++) {
                assert_int_equal(match(slots, &p), 0);
                assert_int_not_equal(start(slots, &p), KVR__NO_SLOT);
        }
        /* All busy: nobody can start. */
        assert_int_equal(start(slots, &p), KVR__NO_SLOT);
        for (uint32_t i = 0; i < 4; i++)
                kvr__slots_finish(slots, i, 0);
        for (int i = 0; i < 4; i++) {
                assert_int_equal(match(slots, &p), p.count);
                assert_int_not_equal(start(slots, &p), KVR__NO_SLOT);
        }
        kvr__slots_free(slots);
        assert_int_equal(budget.bytes, 0);
}

static void memory_brings_whole_prompts_back(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 4, 0);
        static struct brain_prompt p;

        (void)state;
        for (uint64_t i = 0; i < 8; i++)
                assert_int_equal(serve(slots, text_of(&p, i, 12000)), 0);
        for (int round = 0; round < 2; round++)
                for (uint64_t i = 0; i < 8; i++) {
                        brain_prompt_of(&p, i, 12000);
                        assert_int_equal(serve(slots, &p), p.count);
                }
        assert_int_equal(kvr__slots_sequences(slots), 8);
        kvr__slots_free(slots);
        assert_int_equal(budget.bytes, 0);
}

/* Prompts with the first 8,000 bytes in common. */
static const struct brain_prompt *sibling(struct brain_prompt *p, uint64_t number)
{
        brain_prompt_init(p);
        brain_message(p, 1, 8000);
        brain_message(p, 100 + number, 800);
        return p;
}

/* As measured on a server: of two at once the second finds its beginning only if a prompt came in between. */
static void idle_slots_are_copied_when_a_prompt_starts(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 4, 0);
        static struct brain_prompt p;

        (void)state;
        serve(slots, sibling(&p, 1));
        uint32_t common = match(slots, sibling(&p, 2)), a = start(slots, &p);

        assert_int_equal(p.points[common - 1].end, 8000);
        assert_int_equal(match(slots, sibling(&p, 3)), 0);
        uint32_t b = start(slots, &p);

        kvr__slots_finish(slots, a, 10);
        kvr__slots_finish(slots, b, 10);
        serve(slots, text_of(&p, 9, 4000));
        assert_int_equal(kvr__slots_sequences(slots), 3);
        for (uint64_t i = 4; i < 7; i++) {
                struct kvr__slots_ask ask = ask_of(sibling(&p, i));
                struct kvr__slots_match found;

                kvr__slots_match(slots, &ask, &found);
                assert_int_equal(found.points, common);
                assert_int_equal(found.copy, i == 6); /* both slots are busy by then */
                assert_int_not_equal(start(slots, &p), KVR__NO_SLOT);
        }
        kvr__slots_free(slots);
        assert_int_equal(budget.bytes, 0);
}

/* Two siblings in slots, and a copy of each. */
static struct kvr__slots *with_copies(void)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 4, 0);
        static struct brain_prompt p;

        serve(slots, sibling(&p, 1));
        uint32_t a = start(slots, sibling(&p, 2)), b = start(slots, sibling(&p, 3));

        kvr__slots_finish(slots, a, 10);
        kvr__slots_finish(slots, b, 10);
        serve(slots, text_of(&p, 9, 4000));
        start(slots, sibling(&p, 4));
        start(slots, sibling(&p, 5));
        return slots;
}

static void a_server_that_makes_no_copies_is_found_out(void **state)
{
        struct kvr__slots *slots = with_copies();
        static struct brain_prompt p;
        uint32_t saved = kvr__slots_sequences(slots);

        (void)state;
        sibling(&p, 6);
        for (int i = 0; i < 3; i++) {
                assert_true(match(slots, &p) > 0);
                kvr__slots_learn_gone(slots, rank_of(slots, &p), true);
        }
        assert_int_equal(match(slots, &p), 0);
        assert_true(kvr__slots_sequences(slots) < saved);
        /* What is in slots is there, and what they lose is saved as before. */
        assert_true(match(slots, text_of(&p, 9, 4000)) > 0);
        for (uint64_t i = 10; i < 14; i++)
                serve(slots, text_of(&p, i, 4000));
        assert_true(match(slots, text_of(&p, 9, 4000)) > 0);
        kvr__slots_free(slots);
        assert_int_equal(budget.bytes, 0);
}

static void one_copy_that_is_found_proves_them(void **state)
{
        struct kvr__slots *slots = with_copies();
        static struct brain_prompt p;

        (void)state;
        sibling(&p, 6);
        kvr__slots_learn_gone(slots, rank_of(slots, &p), true);
        kvr__slots_learn_copied(slots);
        /* From then on a copy that is gone tells of a small memory. */
        uint32_t rank = rank_of(slots, &p);

        assert_true(rank > 0);
        kvr__slots_learn_gone(slots, rank, true);
        assert_true(rank_of(slots, &p) < rank);
        kvr__slots_free(slots);
        assert_int_equal(budget.bytes, 0);
}

/* No memory for a copy: what is in the slot is saved when it has to go, as without copies. */
static void what_could_not_be_copied_is_saved_later(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 2, 0);
        static struct brain_prompt p;

        (void)state;
        serve(slots, text_of(&p, 1, 4000));
        budget.bytes_max =
                budget.bytes + 32 * sizeof(uint64_t); /* for the second slot's keys, not for a copy */
        serve(slots, text_of(&p, 2, 4000));
        assert_int_equal(match(slots, &p), p.count);
        assert_int_equal(match(slots, text_of(&p, 1, 4000)), p.count);
        serve(slots, text_of(&p, 3, 4000));
        assert_int_equal(match(slots, text_of(&p, 1, 4000)), p.count);
        kvr__slots_free(slots);
        assert_int_equal(budget.bytes, 0);
}

static void half_in_common_overwrites_the_tail(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 1, 0);
        static struct brain_prompt a, b;

        (void)state;
        pair_make(&a, &b, 8000, 4000);
        serve(slots, &a);
        uint32_t common = serve(slots, &b);

        assert_true(common > 0 && common < a.count);
        assert_int_equal(a.points[common - 1].end, 8000);
        assert_int_equal(match(slots, &a), common);
        kvr__slots_free(slots);
}

static void a_tenth_in_common_saves_first(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 1, 0);
        static struct brain_prompt a, b;

        (void)state;
        pair_make(&a, &b, 1800, 10200);
        serve(slots, &a);
        uint32_t common = serve(slots, &b);

        assert_int_equal(a.points[common - 1].end, 1800);
        /* The original was saved and comes back whole. */
        assert_int_equal(serve(slots, &a), a.count);
        assert_int_equal(serve(slots, &b), b.count);
        kvr__slots_free(slots);
}

static void little_in_common_does_not_choose_a_slot(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 2, 0);
        static struct brain_prompt a, b;

        (void)state;
        pair_make(&a, &b, 500, 11500);
        serve(slots, &a);
        /* Less than a tenth: the slot not used for the longest time takes it, which is the empty one. */
        assert_int_equal(match(slots, &b), 0);
        uint32_t slot = start(slots, &b);

        kvr__slots_finish(slots, slot, 0);
        assert_int_equal(match(slots, &a), a.count);
        assert_int_equal(match(slots, &b), b.count);
        kvr__slots_free(slots);
}

/* A prompt that has to wait finds what the slots had that were free before its turn came: the longer, the more. */
static void while_all_are_busy_what_slots_have_is_likely(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 4, 0);
        static struct brain_prompt a, b, c, other;
        struct kvr__slots_match found;

        (void)state;
        pair_make(&a, &b, 8000, 2000);
        c = a;
        brain_message(&c, 77, 1000);
        text_of(&other, 9, 10000);
        struct kvr__slots_ask ask = ask_of(&c);

        assert_int_not_equal(start(slots, &a), KVR__NO_SLOT);
        assert_int_not_equal(start(slots, &b), KVR__NO_SLOT);
        assert_int_not_equal(start(slots, &other), KVR__NO_SLOT);
        kvr__slots_match(slots, &ask, &found);
        assert_int_equal(found.likely, 0); /* one is idle: that one it gets */
        uint32_t last = start(slots, &other);

        kvr__slots_match(slots, &ask, &found);
        assert_int_equal(found.points, 0);
        /* All of a (2,500 tokens), the first 2,000 of b, nothing of the others: half of four slots have most of it. The next
         * one to be free is such a one, or the one after it, and so on. */
        assert_in_range(found.likely, 2500 * (1 - 0.75 * 0.75) - 80, 2500 * (1 - 0.75 * 0.75) + 80);
        ask.waiting = 1;
        kvr__slots_match(slots, &ask, &found);
        assert_in_range(found.likely, 2500 * (1 - 0.5 * 0.5) - 80, 2500 * (1 - 0.5 * 0.5) + 80);
        for (ask.waiting = 3; ask.waiting < 100; ask.waiting += 50) {
                kvr__slots_match(slots, &ask, &found);
                assert_in_range(found.likely, 2500 - 80, 2500); /* all of them */
        }
        kvr__slots_finish(slots, last, 0);
        kvr__slots_match(slots, &ask, &found);
        assert_int_equal(found.likely, 0);
        kvr__slots_free(slots);
}

static void oldest_goes_from_memory(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 1, 9100);
        static struct brain_prompt p;

        (void)state;
        /* 3,000 tokens each and 10 generated: the slot and two saved ones fit. */
        for (uint64_t i = 0; i < 4; i++)
                serve(slots, text_of(&p, i, 12000));
        assert_int_equal(kvr__slots_sequences(slots), 3);
        assert_int_equal(kvr__slots_tokens(slots), 9030);
        brain_prompt_of(&p, 0, 12000);
        assert_int_equal(match(slots, &p), 0);
        brain_prompt_of(&p, 1, 12000);
        assert_int_equal(match(slots, &p), p.count);
        kvr__slots_free(slots);
}

static void unknown_memory_is_eight_sequences_a_slot(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 2, 0);
        static struct brain_prompt p;

        (void)state;
        for (uint64_t i = 0; i < 100; i++)
                serve(slots, text_of(&p, i, 4000));
        assert_int_equal(kvr__slots_sequences(slots),
                         17); /* one of the 16 saved is a copy of what the idle slot has */
        for (uint64_t i = 0; i < 100; i++) {
                brain_prompt_of(&p, i, 4000);
                assert_int_equal(match(slots, &p), i < 83 ? 0 : p.count);
        }
        kvr__slots_free(slots);
}

static void memory_is_as_large_as_what_is_found_there(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 1, 0);
        static struct brain_prompt p;

        (void)state;
        for (uint64_t i = 0; i < 8; i++)
                serve(slots, text_of(&p, i, 12000));
        /* 7 in the slot, 6 to 0 in memory, the latest first. */
        for (uint64_t i = 0; i < 8; i++)
                assert_int_equal(rank_of(slots, text_of(&p, i, 12000)), 7 - i);
        /* 3 was gone: so were those before it. */
        kvr__slots_learn_gone(slots, 4, false);
        assert_int_equal(kvr__slots_sequences(slots), 4);
        for (uint64_t i = 0; i < 8; i++)
                assert_int_equal(match(slots, text_of(&p, i, 12000)) > 0, i >= 4);
        for (uint64_t i = 10; i < 20; i++)
                serve(slots, text_of(&p, i, 12000));
        assert_int_equal(kvr__slots_sequences(slots), 4);
        kvr__slots_learn_more(slots);
        for (uint64_t i = 20; i < 30; i++)
                serve(slots, text_of(&p, i, 12000));
        assert_int_equal(kvr__slots_sequences(slots), 5);
        /* No memory at all. */
        kvr__slots_learn_gone(slots, 1, false);
        serve(slots, text_of(&p, 40, 12000));
        serve(slots, text_of(&p, 41, 12000));
        assert_int_equal(kvr__slots_sequences(slots), 1);
        assert_int_equal(match(slots, &p), p.count);
        kvr__slots_free(slots);
        assert_int_equal(budget.bytes, 0);
}

static void answers_count_for_the_next_turn(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 1, 0);
        static struct brain_prompt a, b;
        struct kvr__slots_match found;

        (void)state;
        brain_prompt_init(&a);
        brain_message(&a, 1, 4000);
        b = a;
        brain_message(&b, 2, 1000);
        uint32_t slot = start(slots, &a);

        kvr__slots_finish(slots, slot, 123);
        struct kvr__slots_ask ask = ask_of(&b);

        kvr__slots_match(slots, &ask, &found);
        assert_int_equal(found.points, a.count);
        assert_int_equal(found.answer, 123);
        ask = ask_of(&a);
        kvr__slots_match(slots, &ask, &found);
        assert_int_equal(found.points, a.count);
        assert_int_equal(found.answer, 0);
        kvr__slots_free(slots);
}

static void a_prompt_that_was_not_computed_leaves_what_it_found(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 1, 0);
        static struct brain_prompt a, b;

        (void)state;
        pair_make(&a, &b, 8000, 4000);
        serve(slots, &a);
        uint32_t common = match(slots, &b), slot = start(slots, &b);

        kvr__slots_abort(slots, slot);
        assert_int_equal(match(slots, &b), common);
        assert_int_equal(match(slots, &a), common);
        kvr__slots_clear(slots);
        assert_int_equal(match(slots, &b), 0);
        assert_int_equal(kvr__slots_tokens(slots), 0);
        /* Numbers that were never slots are ignored. */
        kvr__slots_finish(slots, 99, 1);
        kvr__slots_abort(slots, 99);
        kvr__slots_free(slots);
}

static void memory_spent_shortens_what_is_followed(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 2, 0);
        static struct brain_prompt p;

        (void)state;
        budget.bytes_max = budget.bytes + 600;
        brain_prompt_of(&p, 1, 64000);
        serve(slots, &p);
        assert_true(budget.bytes <= budget.bytes_max);
        assert_true(match(slots, &p) <= 64);
        for (uint64_t i = 0; i < 20; i++)
                serve(slots, text_of(&p, i, 64000));
        assert_true(budget.bytes <= budget.bytes_max);
        kvr__slots_free(slots);
        assert_int_equal(budget.bytes, 0);
        assert_null(kvr__slots_new(&(struct kvr__budget){0}, 2, 0));
}

static void random_use_keeps_its_books(void **state)
{
        struct kvr__slots *slots = kvr__slots_new(&budget, 3, 20000);
        static struct brain_prompt p;
        bool busy[3] = {false};
        uint64_t random = 3;

        (void)state;
        for (int step = 0; step < 20000; step++) {
                uint64_t chance = brain_mix(random++);
                uint32_t slot = (uint32_t)(chance >> 8) % 3;

                brain_prompt_init(&p);
                brain_message(&p, chance >> 16 & 1, 1000 + (chance >> 17 & 3) * 1000);
                brain_message(&p, chance >> 20 & 3, 2000);
                if (chance & 1) {
                        uint32_t found = match(slots, &p), got = start(slots, &p);

                        assert_true(found <= p.count);
                        assert_int_equal(got == KVR__NO_SLOT, busy[0] && busy[1] && busy[2]);
                        if (got != KVR__NO_SLOT) {
                                assert_false(busy[got]);
                                busy[got] = true;
                        }
                } else if (busy[slot]) {
                        busy[slot] = false;
                        if (chance & 2)
                                kvr__slots_finish(slots, slot, 50);
                        else
                                kvr__slots_abort(slots, slot);
                }
                if ((chance >> 30) % 500 == 0)
                        kvr__slots_clear(slots);
                assert_true(kvr__slots_sequences(slots) <= 3 + KVR__SAVED_MAX);
                assert_true(budget.bytes <= budget.bytes_max);
        }
        kvr__slots_free(slots);
        assert_int_equal(budget.bytes, 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(slots_share_nothing, setup),
                cmocka_unit_test_setup(memory_brings_whole_prompts_back, setup),
                cmocka_unit_test_setup(idle_slots_are_copied_when_a_prompt_starts, setup),
                cmocka_unit_test_setup(a_server_that_makes_no_copies_is_found_out, setup),
                cmocka_unit_test_setup(one_copy_that_is_found_proves_them, setup),
                cmocka_unit_test_setup(what_could_not_be_copied_is_saved_later, setup),
                cmocka_unit_test_setup(half_in_common_overwrites_the_tail, setup),
                cmocka_unit_test_setup(a_tenth_in_common_saves_first, setup),
                cmocka_unit_test_setup(little_in_common_does_not_choose_a_slot, setup),
                cmocka_unit_test_setup(while_all_are_busy_what_slots_have_is_likely, setup),
                cmocka_unit_test_setup(oldest_goes_from_memory, setup),
                cmocka_unit_test_setup(unknown_memory_is_eight_sequences_a_slot, setup),
                cmocka_unit_test_setup(memory_is_as_large_as_what_is_found_there, setup),
                cmocka_unit_test_setup(answers_count_for_the_next_turn, setup),
                cmocka_unit_test_setup(a_prompt_that_was_not_computed_leaves_what_it_found, setup),
                cmocka_unit_test_setup(memory_spent_shortens_what_is_followed, setup),
                cmocka_unit_test_setup(random_use_keeps_its_books, setup),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
