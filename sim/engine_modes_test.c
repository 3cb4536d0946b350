/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's other ways: slots in place of blocks, steps taken together, changes written down. */
#include "engine.h"
#include "rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK    16u
#define MS       1000000u
#define REQUESTS 400u
#define KEYS_MAX 256u

/* 10 ms a step with prefill, 1 ms per new token, 0.5 ms per context token; 4 ms a decode step, 2 ms each. */
static const struct sim_cost plain = {.name = "plain", .a = 10, .b = 1, .c = 0.5, .e = 4, .f = 2};

static struct sim_engine *engine_with(struct sim_engine_options options)
{
        struct sim_engine *engine;

        options.block_tokens = BLOCK;
        options.max_running = options.max_running ? options.max_running : 64;
        options.step_tokens = options.step_tokens ? options.step_tokens : 2048;
        engine = sim_engine_new(&options);
        assert_non_null(engine);
        return engine;
}

/* Of `prompt` tokens the first `shared` blocks are everybody's; the last block may be partial. */
static void submit(struct sim_engine *engine, uint64_t now_ns, uintptr_t tag, uint32_t shared, uint64_t own,
                   uint32_t prompt, uint32_t output, bool partial)
{
        uint64_t keys[KEYS_MAX];
        struct sim_submit s = {
                .tag = (void *)tag,
                .prompt_tokens = prompt,
                .output_tokens = output,
                .keys = keys,
                .key_count = (prompt + (partial ? BLOCK - 1 : 0)) / BLOCK,
        };
        struct sim_job *job;

        assert_true(s.key_count <= KEYS_MAX);
        for (uint32_t i = 0; i < s.key_count; i++)
                keys[i] = sim_mix64((i < shared ? 0 : own) * 1000 + i + 1) | 1;
        assert_int_equal(sim_engine_submit(engine, now_ns, &s, &job), KVR_OK);
}

static struct sim_event next(struct sim_engine *engine)
{
        struct sim_event event = {0};

        assert_true(sim_engine_next(engine, SIM_NEVER, &event));
        return event;
}

/* ---- slots -------------------------------------------------------------------------------------------- */

static void of_four_at_once_one_finds_the_prompt(void **state)
{
        struct sim_engine *engine =
                engine_with((struct sim_engine_options){.capacity_blocks = 4000, .slots = 4, .cost = plain});
        uint64_t now_ns = 0;

        (void)state;
        /* One alone, then four together, then four again. */
        for (uint32_t round = 0; round < 3; round++) {
                uint32_t count = round ? 4 : 1, found = 0;

                for (uint32_t i = 0; i < count; i++)
                        submit(engine, now_ns, i, 64, 7, 1000, 2, true);
                for (uint32_t ended = 0; ended < count;) {
                        struct sim_event event = next(engine);

                        now_ns = event.at_ns;
                        ended += event.kind == SIM_EVENT_END;
                        if (event.kind == SIM_EVENT_START)
                                found += event.cached_tokens;
                }
                assert_int_equal(found, round == 0 ? 0 : round == 1 ? 999 : 4 * 999);
        }
        sim_engine_free(engine);
}

static void more_than_the_slots_wait(void **state)
{
        struct sim_engine *engine =
                engine_with((struct sim_engine_options){.capacity_blocks = 400, .slots = 2, .cost = plain});
        struct sim_event event;

        (void)state;
        for (uintptr_t i = 0; i < 3; i++)
                submit(engine, 0, i, 0, i + 1, 100, 1 + (uint32_t)i, true);
        assert_int_equal(next(engine).kind, SIM_EVENT_START);
        assert_int_equal(next(engine).kind, SIM_EVENT_START);
        assert_int_equal(sim_engine_running(engine), 2);
        assert_int_equal(sim_engine_waiting(engine), 1);
        /* The third one starts when the first one has ended: 10 + 200 ms, one chunk each in one step. */
        do
                event = next(engine);
        while (event.kind != SIM_EVENT_START);
        assert_int_equal((uintptr_t)event.tag, 2);
        assert_int_equal(event.at_ns, 210 * MS);
        while (sim_engine_next(engine, SIM_NEVER, &event))
                ;
        assert_true(sim_engine_usage(engine) == 0);
        /* Each slot holds prompt and answer but for its last token: what was computed. */
        assert_int_equal(sim_engine_cached_blocks(engine), (101 + 102) / BLOCK);
        assert_true(sim_engine_flush(engine));
        assert_int_equal(sim_engine_cached_blocks(engine), 0);
        sim_engine_free(engine);
}

static void a_slot_has_its_part_of_the_context(void **state)
{
        struct sim_engine *engine =
                engine_with((struct sim_engine_options){.capacity_blocks = 400, .slots = 4, .cost = plain});
        uint64_t keys[KEYS_MAX] = {1};
        struct sim_submit s = {.prompt_tokens = 1590, .output_tokens = 11, .keys = keys, .key_count = 100};
        struct sim_job *job;

        (void)state;
        assert_int_equal(sim_engine_submit(engine, 0, &s, &job), KVR_E_LIMIT);
        s.output_tokens = 10;
        assert_int_equal(sim_engine_submit(engine, 0, &s, &job), KVR_OK);
        sim_engine_restart(engine, 0);
        assert_int_equal(sim_engine_waiting(engine), 0);
        sim_engine_free(engine);
}

static void slots_hold_what_an_aborted_request_computed(void **state)
{
        struct sim_engine *engine = engine_with((struct sim_engine_options){
                .capacity_blocks = 400, .slots = 1, .step_tokens = 64, .cost = plain});
        uint64_t keys[KEYS_MAX];
        struct sim_submit s = {.prompt_tokens = 160, .output_tokens = 1, .keys = keys, .key_count = 10};
        struct sim_event event;
        struct sim_job *job;

        (void)state;
        for (uint32_t i = 0; i < 10; i++)
                keys[i] = i + 1;
        assert_int_equal(sim_engine_submit(engine, 0, &s, &job), KVR_OK);
        assert_false(
                !sim_engine_next(engine, 74 * MS, &event)); /* its start; the first step is over at 74 ms */
        assert_false(sim_engine_next(engine, 74 * MS, &event));
        sim_engine_abort(engine, job); /* the second step goes on to its end */
        assert_false(sim_engine_next(engine, 1000 * MS, &event));
        assert_int_equal(sim_engine_match(engine, keys, 10, 160), 128);
        sim_engine_free(engine);
}

/* ---- steps taken together ----------------------------------------------------------------------------- */

struct told {
        uint64_t start_ns, first_ns, end_ns;
        uint32_t cached;
};

/* The same requests at the same times, with many steps of one kind between them, and counters now and then. */
static void run_all(struct sim_engine_options options, struct told *told,
                    struct sim_engine_counters *ret_counters, uint64_t *ret_busy_between)
{
        struct sim_engine *engine = engine_with(options);
        struct sim_rng rng = sim_rng_for(11, 2, 3);
        uint64_t now_ns = 0, between = 0;
        uint32_t sent = 0;
        struct sim_event event;

        while (sent < REQUESTS || sim_engine_next_ns(engine) != SIM_NEVER) {
                uint64_t until_ns = SIM_NEVER;

                if (sent < REQUESTS) {
                        now_ns += (uint64_t)(sim_rng_exp(&rng, 400) * MS);
                        until_ns = now_ns;
                }
                while (sim_engine_next(engine, until_ns, &event)) {
                        struct told *one = &told[(uintptr_t)event.tag];

                        one->cached = event.cached_tokens;
                        if (event.kind == SIM_EVENT_START)
                                one->start_ns = event.at_ns;
                        if (event.kind == SIM_EVENT_TOKEN && event.token == 0)
                                one->first_ns = event.at_ns;
                        if (event.kind == SIM_EVENT_END)
                                one->end_ns = event.at_ns;
                }
                if (sent == REQUESTS)
                        continue;
                sim_engine_catch_up(engine, now_ns);
                sim_engine_counters(engine, ret_counters);
                between += ret_counters->busy_ns * (sent + 1) + ret_counters->steps +
                           ret_counters->output_tokens;
                submit(engine, now_ns, sent, sim_rng_below(&rng, 12), sent + 1, 20 + sim_rng_below(&rng, 900),
                       1 + sim_rng_below(&rng, 120), options.slots > 0);
                sent++;
        }
        sim_engine_counters(engine, ret_counters);
        *ret_busy_between = between;
        sim_engine_free(engine);
}

static void expect_the_same(struct sim_engine_options options)
{
        struct told *one = calloc(REQUESTS, sizeof(*one)), *other = calloc(REQUESTS, sizeof(*other));
        struct sim_engine_counters one_sums, other_sums;
        uint64_t one_between, other_between;

        assert_non_null(one);
        assert_non_null(other);
        run_all(options, one, &one_sums, &one_between);
        options.quiet = true;
        run_all(options, other, &other_sums, &other_between);
        assert_memory_equal(one, other, REQUESTS * sizeof(*one));
        assert_memory_equal(&one_sums, &other_sums, sizeof(one_sums));
        assert_int_equal(one_between, other_between);
        assert_int_equal(one_sums.finished, REQUESTS);
        free(one);
        free(other);
}

static void steps_taken_together_change_nothing(void **state)
{
        struct sim_cost dynamo = *sim_cost_find("dynamo"), h100 = *sim_cost_find("llama3-70b-h100");

        (void)state;
        expect_the_same((struct sim_engine_options){.capacity_blocks = 4000, .cost = h100});
        expect_the_same((struct sim_engine_options){.capacity_blocks = 4000, .cost = dynamo});
        expect_the_same((struct sim_engine_options){.capacity_blocks = 80, .cost = h100}); /* preempts */
        expect_the_same((struct sim_engine_options){.capacity_blocks = 4000, .max_running = 3, .cost = h100});
        expect_the_same(
                (struct sim_engine_options){.capacity_blocks = 4000, .step_tokens = 32, .cost = h100});
        expect_the_same((struct sim_engine_options){
                .capacity_blocks = 400, .slots = 4, .slot_memory_tokens = 4000, .cost = h100});
        expect_the_same((struct sim_engine_options){
                .capacity_blocks = 400, .slots = 4, .slot_memory_tokens = 4000, .cost = dynamo});
}

/* ---- changes ------------------------------------------------------------------------------------------ */

/* Who follows the changes knows the cache: how many copies of each key there are. */
static void changes_tell_what_is_cached(void **state)
{
        struct sim_engine *engine = engine_with((struct sim_engine_options){
                .capacity_blocks = 60, .changes = true, .quiet = true, .cost = plain});
        struct sim_rng rng = sim_rng_for(3, 2, 1);
        uint64_t known[4096] = {0}, now_ns = 0;
        uint32_t copies[4096] = {0}, count = 0, total = 0, removed = 0, orphans = 0;
        struct sim_event event;

        (void)state;
        for (uint32_t i = 0; i < 120; i++) {
                const struct sim_change *changes;
                uint64_t before_ns = 0;
                bool lost;

                submit(engine, now_ns, 1, 1 + sim_rng_below(&rng, 6), i % 9 + 1,
                       40 + sim_rng_below(&rng, 200), 1 + sim_rng_below(&rng, 40), false);
                if (i % 3 == 0)
                        submit(engine, now_ns, 1, 5, i + 100, 90, 3, false);
                while (sim_engine_next(engine, SIM_NEVER, &event))
                        now_ns = event.at_ns;
                for (uint32_t n = sim_engine_changes(engine, &changes, &lost), at = 0; at < n; at++) {
                        uint32_t place = 0, parent = 0;

                        assert_true(changes[at].at_ns >= before_ns && changes[at].at_ns <= now_ns);
                        before_ns = changes[at].at_ns;
                        while (place < count && known[place] != changes[at].key)
                                place++;
                        while (parent < count && known[parent] != changes[at].parent)
                                parent++;
                        assert_true(place < 4095);
                        if (place == count)
                                known[count++] = changes[at].key;
                        if (changes[at].removed) {
                                assert_true(copies[place] > 0);
                                copies[place]--;
                                total--;
                                removed++;
                        } else {
                                copies[place]++;
                                total++;
                                orphans += changes[at].parent && (parent == count || !copies[parent]);
                        }
                }
                assert_false(lost);
                assert_int_equal(total, sim_engine_cached_blocks(engine));
        }
        assert_true(removed > 100);
        assert_int_equal(orphans, 0);
        assert_int_equal(removed, sim_engine_evictions(engine));
        sim_engine_free(engine);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(of_four_at_once_one_finds_the_prompt),
                cmocka_unit_test(more_than_the_slots_wait),
                cmocka_unit_test(a_slot_has_its_part_of_the_context),
                cmocka_unit_test(slots_hold_what_an_aborted_request_computed),
                cmocka_unit_test(steps_taken_together_change_nothing),
                cmocka_unit_test(changes_tell_what_is_cached),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
