/* SPDX-License-Identifier: Apache-2.0 */
/* The engine model against cases computed by hand. Blocks of 16 tokens unless said. */
#include "blocks.h"
#include "engine.h"
#include "rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS                           1000000u
#define assert_near(a, b, tolerance) assert_true(fabs((a) - (b)) <= (tolerance))

/* A plain cost: 10 ms a step with prefill, 1 ms per new token, 0.5 ms per context token; 4 ms a decode step,
 * 2 ms each. */
static const struct sim_cost plain = {.name = "plain", .a = 10, .b = 1, .c = 0.5, .e = 4, .f = 2};

static struct sim_engine *engine_with(uint32_t blocks, uint32_t running, uint32_t step_tokens)
{
        struct sim_engine_options options = {
                .block_tokens = 16,
                .capacity_blocks = blocks,
                .max_running = running,
                .step_tokens = step_tokens,
                .cost = plain,
        };
        struct sim_engine *engine = sim_engine_new(&options);

        assert_non_null(engine);
        return engine;
}

/*
 * Keys of a chain: prompts with equal `name` share their blocks up to `fork`, where `branch` begins to count.
 */
static void chain(uint64_t *keys, uint32_t count, uint64_t name, uint32_t fork, uint64_t branch)
{
        for (uint32_t i = 0; i < count; i++)
                keys[i] = sim_mix64(name * 1000 + (i < fork ? 0 : branch * 100000) + i + 1);
}

static struct sim_job *submit(struct sim_engine *engine, uint64_t now_ns, uintptr_t tag, const uint64_t *keys,
                              uint32_t prompt, uint32_t output)
{
        struct sim_job *job = NULL;
        struct sim_submit s = {
                .tag = (void *)tag,
                .prompt_tokens = prompt,
                .output_tokens = output,
                .keys = keys,
                .key_count = (prompt + output) / 16,
        };

        assert_int_equal(sim_engine_submit(engine, now_ns, &s, &job), KVR_OK);
        assert_non_null(job);
        return job;
}

static void expect(struct sim_engine *engine, enum sim_event_kind kind, uint64_t at_ms, uintptr_t tag,
                   uint32_t cached)
{
        struct sim_event event;

        assert_true(sim_engine_next(engine, SIM_NEVER, &event));
        assert_int_equal(event.kind, kind);
        assert_int_equal((uintptr_t)event.tag, tag);
        assert_int_equal(event.at_ns / MS, at_ms);
        assert_int_equal(event.at_ns % MS, 0);
        assert_int_equal(event.cached_tokens, cached);
}

static void expect_idle(struct sim_engine *engine)
{
        struct sim_event event;

        assert_false(sim_engine_next(engine, SIM_NEVER, &event));
        assert_int_equal(sim_engine_next_ns(engine), SIM_NEVER);
        assert_true(sim_engine_usage(engine) == 0);
}

/* Runs one request from now to its end, returns its hit tokens. */
static uint32_t run(struct sim_engine *engine, uint64_t name, uint32_t fork, uint64_t branch, uint32_t prompt,
                    uint32_t output)
{
        uint64_t keys[64];
        struct sim_event event = {0};

        chain(keys, 64, name, fork, branch);
        submit(engine, 0, 1, keys, prompt, output);
        while (sim_engine_next(engine, SIM_NEVER, &event))
                ;
        assert_int_equal(event.kind, SIM_EVENT_END);
        return event.cached_tokens;
}

static void hits_are_whole_blocks_and_never_the_last_token(void **state)
{
        struct sim_engine *engine = engine_with(100, 8, 2048);

        (void)state;
        assert_int_equal(run(engine, 1, 64, 0, 40, 1), 0); /* two whole blocks are stored */
        assert_int_equal(run(engine, 1, 64, 0, 40, 1), 32);
        assert_int_equal(run(engine, 1, 64, 0, 33, 1), 32);
        assert_int_equal(run(engine, 1, 64, 0, 32, 1),
                         16); /* exact multiple: the last block is computed again */
        assert_int_equal(run(engine, 1, 64, 0, 17, 1), 16);
        assert_int_equal(run(engine, 1, 64, 0, 16, 1), 0);
        assert_int_equal(run(engine, 1, 1, 7, 40, 1), 16); /* forks behind the first block */
        assert_int_equal(run(engine, 2, 64, 0, 40, 1), 0);
        sim_engine_free(engine);
}

static void an_exact_multiple_leaves_a_second_copy(void **state)
{
        struct sim_engine *engine = engine_with(100, 8, 2048);

        (void)state;
        run(engine, 1, 64, 0, 32, 1);
        assert_int_equal(sim_engine_cached_blocks(engine), 2);
        run(engine, 1, 64, 0, 32, 1);
        assert_int_equal(sim_engine_cached_blocks(engine), 3);
        sim_engine_free(engine);
}

static void answers_are_cached_but_their_last_token(void **state)
{
        struct sim_engine *engine = engine_with(100, 8, 2048);

        (void)state;
        /* 20 + 12 = 32 tokens, of which 31 are computed: one whole block. With 13 it is two. */
        run(engine, 1, 64, 0, 20, 12);
        assert_int_equal(sim_engine_cached_blocks(engine), 1);
        run(engine, 2, 64, 0, 20, 13);
        assert_int_equal(sim_engine_cached_blocks(engine), 3);
        assert_int_equal(run(engine, 2, 64, 0, 50, 1), 32); /* the next turn of that conversation */
        sim_engine_free(engine);
}

static void eviction_takes_the_oldest_tail_first(void **state)
{
        struct sim_engine *engine = engine_with(6, 8, 2048);
        uint64_t a[64], b[64];

        (void)state;
        chain(a, 64, 1, 64, 0);
        chain(b, 64, 2, 64, 0);
        run(engine, 1, 64, 0, 40, 1); /* blocks A0 A1 and one without a key */
        run(engine, 2, 64, 0, 40, 1); /* B0 B1, and the keyless one again or a fresh one */
        assert_int_equal(sim_engine_match(engine, a, 2, 1000), 32);
        assert_int_equal(sim_engine_match(engine, b, 2, 1000), 32);
        assert_int_equal(sim_engine_evictions(engine), 0);
        /* 3 blocks: the two without keys, then the tail of A, which is older than B. */
        run(engine, 3, 64, 0, 40, 1);
        assert_int_equal(sim_engine_evictions(engine), 1);
        assert_int_equal(sim_engine_match(engine, a, 2, 1000), 16);
        assert_int_equal(sim_engine_match(engine, b, 2, 1000), 32);
        /* Using A makes B the oldest; A1 is written again into the keyless block, its last token needs one
         * more: B1 goes. */
        assert_int_equal(run(engine, 1, 64, 0, 40, 1), 16);
        assert_int_equal(sim_engine_match(engine, a, 2, 1000), 32);
        assert_int_equal(sim_engine_match(engine, b, 2, 1000), 16);
        sim_engine_free(engine);
}

static void blocks_in_use_are_not_evicted(void **state)
{
        struct sim_blocks *pool = sim_blocks_new(3);
        uint64_t keys[] = {11, 12, 13};
        uint32_t one[3], two[3];

        (void)state;
        assert_non_null(pool);
        assert_true(sim_blocks_take(pool, NULL, 0, 2, one));
        sim_blocks_name(pool, one[0], 11);
        sim_blocks_name(pool, one[1], 12);
        assert_int_equal(sim_blocks_match(pool, keys, 3), 2);
        assert_false(sim_blocks_take(pool, keys, 2, 2, two)); /* only one is free */
        assert_int_equal(sim_blocks_in_use(pool), 2);
        assert_true(sim_blocks_take(pool, keys, 2, 1, two)); /* a second reference on both */
        assert_int_equal(two[0], one[0]);
        assert_int_equal(two[1], one[1]);
        sim_blocks_release(pool, one, 2);
        assert_int_equal(sim_blocks_in_use(pool), 3);
        sim_blocks_release(pool, two, 3);
        assert_int_equal(sim_blocks_in_use(pool), 0);
        /* Hits that are idle count against what is free: 2 hits leave 1. */
        assert_false(sim_blocks_take(pool, keys, 2, 2, two));
        assert_int_equal(sim_blocks_match(pool, keys, 3), 2);
        sim_blocks_flush(pool);
        assert_int_equal(sim_blocks_match(pool, keys, 3), 0);
        assert_int_equal(sim_blocks_named(pool), 0);
        sim_blocks_free(pool);
}

static void copies_of_a_key_go_one_by_one(void **state)
{
        struct sim_blocks *pool = sim_blocks_new(2);
        uint64_t key = 5;
        uint32_t ids[2], id;

        (void)state;
        assert_true(sim_blocks_take(pool, NULL, 0, 2, ids));
        sim_blocks_name(pool, ids[0], key);
        sim_blocks_name(pool, ids[1], key);
        sim_blocks_release(pool, ids, 2);
        assert_true(sim_blocks_take(pool, NULL, 0, 1, &id));
        assert_int_equal(sim_blocks_evictions(pool), 1);
        assert_int_equal(sim_blocks_match(pool, &key, 1), 1);
        assert_true(sim_blocks_take(pool, NULL, 0, 1, &id));
        assert_int_equal(sim_blocks_evictions(pool), 2);
        assert_int_equal(sim_blocks_match(pool, &key, 1), 0);
        sim_blocks_free(pool);
}

static void a_lone_request_takes_what_the_formula_says(void **state)
{
        struct sim_engine *engine = engine_with(100, 8, 2048);
        uint64_t keys[64];

        (void)state;
        chain(keys, 64, 1, 64, 0);
        submit(engine, 5 * MS, 1, keys, 40, 3);
        expect(engine, SIM_EVENT_START, 5, 1, 0);
        expect(engine, SIM_EVENT_TOKEN, 5 + 10 + 40, 1, 0); /* a + b E */
        expect(engine, SIM_EVENT_TOKEN, 55 + 4 + 2, 1, 0);  /* e + f */
        expect(engine, SIM_EVENT_TOKEN, 61 + 6, 1, 0);
        expect(engine, SIM_EVENT_END, 67, 1, 0);
        submit(engine, 100 * MS, 2, keys, 40, 1);
        expect(engine, SIM_EVENT_START, 100, 2, 32);
        expect(engine, SIM_EVENT_TOKEN, 100 + 10 + 8 + 16, 2, 32); /* a + b 8 + c 32 */
        expect(engine, SIM_EVENT_END, 134, 2, 32);
        expect_idle(engine);
        sim_engine_free(engine);
}

static void long_prompts_come_in_chunks_within_the_budget(void **state)
{
        struct sim_engine *engine = engine_with(100, 8, 64);
        uint64_t a[64], b[64];
        struct sim_engine_counters counters;

        (void)state;
        chain(a, 64, 1, 64, 0);
        chain(b, 64, 2, 64, 0);
        submit(engine, 0, 1, a, 100, 2);
        submit(engine, 0, 2, b, 20, 2);
        expect(engine, SIM_EVENT_START, 0, 1, 0);
        /* Step 1: 64 tokens of the first: 10 + 64. */
        expect(engine, SIM_EVENT_START, 74, 2, 0);
        /* Step 2: the other 36 on 64 (10 + 36 + 32) and all 20 of the second: + 20. */
        expect(engine, SIM_EVENT_TOKEN, 74 + 98, 1, 0);
        expect(engine, SIM_EVENT_TOKEN, 172, 2, 0);
        /* Step 3: two decodes: 4 + 2 * 2. */
        expect(engine, SIM_EVENT_TOKEN, 180, 1, 0);
        expect(engine, SIM_EVENT_END, 180, 1, 0);
        expect(engine, SIM_EVENT_TOKEN, 180, 2, 0);
        expect(engine, SIM_EVENT_END, 180, 2, 0);
        expect_idle(engine);
        sim_engine_counters(engine, &counters);
        assert_int_equal(counters.steps, 3);
        assert_int_equal(counters.prompt_tokens, 120);
        assert_int_equal(counters.computed_tokens, 120);
        assert_int_equal(counters.output_tokens, 4);
        assert_int_equal(counters.finished, 2);
        assert_int_equal(counters.busy_ns, 180ull * MS);
        sim_engine_free(engine);
}

static void a_mixed_step_pays_for_the_weights_once(void **state)
{
        struct sim_engine *engine = engine_with(100, 8, 2048);
        uint64_t a[64], b[64];

        (void)state;
        chain(a, 64, 1, 64, 0);
        chain(b, 64, 2, 64, 0);
        submit(engine, 0, 1, a, 20, 3);
        expect(engine, SIM_EVENT_START, 0, 1, 0);
        submit(engine, 1 * MS, 2, b, 30, 1); /* comes during the first step, is admitted to the second */
        expect(engine, SIM_EVENT_TOKEN, 30, 1, 0);
        expect(engine, SIM_EVENT_START, 30, 2, 0);
        expect(engine, SIM_EVENT_TOKEN, 30 + 10 + 30 + 2, 1, 0); /* max(a, e) + b 30 + f */
        expect(engine, SIM_EVENT_TOKEN, 72, 2, 0);
        expect(engine, SIM_EVENT_END, 72, 2, 0);
        expect(engine, SIM_EVENT_TOKEN, 78, 1, 0);
        expect(engine, SIM_EVENT_END, 78, 1, 0);
        expect_idle(engine);
        sim_engine_free(engine);
}

static void cold_twins_are_computed_once(void **state)
{
        struct sim_engine *engine = engine_with(100, 8, 2048);
        uint64_t keys[64];

        (void)state;
        chain(keys, 64, 1, 64, 0);
        for (uintptr_t i = 1; i <= 3; i++)
                submit(engine, 0, i, keys, 40, 1);
        expect(engine, SIM_EVENT_START, 0, 1, 0);
        expect(engine, SIM_EVENT_START, 0, 2, 32);
        expect(engine, SIM_EVENT_START, 0, 3, 32);
        /* 10 + 40 + 2 * (8 + 16) */
        expect(engine, SIM_EVENT_TOKEN, 98, 1, 0);
        expect(engine, SIM_EVENT_END, 98, 1, 0);
        sim_engine_free(engine);
}

static void max_running_and_the_queue(void **state)
{
        struct sim_engine_options options = {
                .block_tokens = 16,
                .capacity_blocks = 100,
                .max_running = 1,
                .max_waiting = 1,
                .step_tokens = 2048,
                .cost = plain,
        };
        struct sim_engine *engine = sim_engine_new(&options);
        struct sim_submit third = {.prompt_tokens = 20, .output_tokens = 1};
        struct sim_job *job;
        uint64_t a[64], b[64];
        struct sim_engine_counters counters;

        (void)state;
        assert_non_null(engine);
        chain(a, 64, 1, 64, 0);
        chain(b, 64, 2, 64, 0);
        submit(engine, 0, 1, a, 20, 1);
        expect(engine, SIM_EVENT_START, 0, 1, 0);
        submit(engine, 0, 2, b, 20, 1);
        assert_int_equal(sim_engine_running(engine), 1);
        assert_int_equal(sim_engine_waiting(engine), 1);
        assert_int_equal(sim_engine_pending_tokens(engine), 40);
        assert_int_equal(sim_engine_submit(engine, 0, &third, &job), KVR_E_BUSY);
        expect(engine, SIM_EVENT_TOKEN, 30, 1, 0);
        expect(engine, SIM_EVENT_END, 30, 1, 0);
        expect(engine, SIM_EVENT_START, 30, 2, 0);
        expect(engine, SIM_EVENT_TOKEN, 60, 2, 0);
        expect(engine, SIM_EVENT_END, 60, 2, 0);
        expect_idle(engine);
        sim_engine_counters(engine, &counters);
        assert_int_equal(counters.refused, 1);
        assert_int_equal(counters.submitted, 2);
        third.output_tokens = 1581; /* 1,601 tokens of 1,600 */
        assert_int_equal(sim_engine_submit(engine, 60 * MS, &third, &job), KVR_E_LIMIT);
        third.output_tokens = 1580;
        assert_int_equal(sim_engine_submit(engine, 60 * MS, &third, &job), KVR_OK);
        sim_engine_free(engine);
}

static void the_youngest_gives_way_when_blocks_run_out(void **state)
{
        struct sim_engine *engine = engine_with(4, 8, 2048);
        uint64_t a[64], b[64];
        struct sim_event event;
        struct sim_engine_counters counters;
        uint64_t end[3] = {0};
        uint32_t tokens[3] = {0};

        (void)state;
        chain(a, 64, 1, 64, 0);
        chain(b, 64, 2, 64, 0);
        /* Each needs 2 blocks for its prompt and a third for its 13th token: 6 of 4. */
        submit(engine, 0, 1, a, 20, 20);
        submit(engine, 0, 2, b, 20, 20);
        while (sim_engine_next(engine, SIM_NEVER, &event)) {
                uintptr_t tag = (uintptr_t)event.tag;

                if (event.kind == SIM_EVENT_TOKEN)
                        assert_int_equal(event.token, tokens[tag]++);
                if (event.kind == SIM_EVENT_END)
                        end[tag] = event.at_ns;
        }
        sim_engine_counters(engine, &counters);
        assert_int_equal(counters.preempted, 1);
        assert_int_equal(tokens[1], 20);
        assert_int_equal(tokens[2], 20);
        assert_true(end[1] < end[2]);
        assert_int_equal(counters.prompt_tokens, 40); /* counted at the first admission only */
        assert_true(counters.computed_tokens > 40);
        expect_idle(engine);
        sim_engine_free(engine);
}

static void aborts_free_blocks_and_give_no_event(void **state)
{
        struct sim_engine *engine = engine_with(100, 1, 64);
        uint64_t a[64], b[64];
        struct sim_job *running, *waiting;
        struct sim_event event;
        struct sim_engine_counters counters;

        (void)state;
        chain(a, 64, 1, 64, 0);
        chain(b, 64, 2, 64, 0);
        running = submit(engine, 0, 1, a, 200, 5);
        expect(engine, SIM_EVENT_START, 0, 1, 0);
        waiting = submit(engine, 0, 2, b, 20, 1);
        sim_engine_abort(engine, waiting);
        assert_int_equal(sim_engine_waiting(engine), 0);
        sim_engine_abort(engine, running); /* in the first chunk of 64: it is computed and stays cached */
        assert_int_equal(sim_engine_running(engine), 0);
        assert_true(sim_engine_usage(engine) > 0);
        assert_false(sim_engine_next(engine, SIM_NEVER, &event));
        assert_true(sim_engine_usage(engine) == 0);
        assert_int_equal(sim_engine_match(engine, a, 12, 200), 64);
        sim_engine_counters(engine, &counters);
        assert_int_equal(counters.aborted, 2);
        assert_int_equal(counters.finished, 0);

        /* Between its last token and its end, too. */
        running = submit(engine, 1000 * MS, 3, b, 20, 1);
        expect(engine, SIM_EVENT_START, 1000, 3, 0);
        expect(engine, SIM_EVENT_TOKEN, 1030, 3, 0);
        sim_engine_abort(engine, running);
        expect_idle(engine);
        sim_engine_free(engine);
}

static void flush_needs_an_idle_engine_and_restart_does_not(void **state)
{
        struct sim_engine *engine = engine_with(100, 8, 2048);
        uint64_t a[64];
        struct sim_engine_counters counters;

        (void)state;
        chain(a, 64, 1, 64, 0);
        submit(engine, 0, 1, a, 40, 2);
        expect(engine, SIM_EVENT_START, 0, 1, 0);
        assert_false(sim_engine_flush(engine));
        assert_int_equal(sim_engine_match(engine, a, 2, 100), 32);
        sim_engine_restart(engine, 7 * MS);
        expect_idle(engine);
        assert_int_equal(sim_engine_match(engine, a, 2, 100), 0);
        sim_engine_counters(engine, &counters);
        assert_int_equal(counters.submitted, 0);
        submit(engine, 7 * MS, 2, a, 40, 1);
        expect(engine, SIM_EVENT_START, 7, 2, 0);
        expect(engine, SIM_EVENT_TOKEN, 57, 2, 0);
        expect(engine, SIM_EVENT_END, 57, 2, 0);
        assert_true(sim_engine_flush(engine));
        assert_int_equal(sim_engine_match(engine, a, 2, 100), 0);
        sim_engine_free(engine);
}

static void until_is_obeyed(void **state)
{
        struct sim_engine *engine = engine_with(100, 8, 2048);
        uint64_t a[64];
        struct sim_event event;

        (void)state;
        chain(a, 64, 1, 64, 0);
        submit(engine, 0, 1, a, 40, 1);
        assert_int_equal(sim_engine_next_ns(engine), 0);
        expect(engine, SIM_EVENT_START, 0, 1, 0);
        assert_int_equal(sim_engine_next_ns(engine), 50ull * MS);
        assert_false(sim_engine_next(engine, 50 * MS - 1, &event));
        assert_true(sim_engine_next(engine, 50 * MS, &event));
        assert_int_equal(event.kind, SIM_EVENT_TOKEN);
        sim_engine_free(engine);
}

static void without_a_prefix_cache_nothing_hits(void **state)
{
        struct sim_engine_options options = {
                .block_tokens = 16,
                .capacity_blocks = 100,
                .max_running = 8,
                .step_tokens = 2048,
                .no_prefix_cache = true,
                .cost = plain,
        };
        struct sim_engine *engine = sim_engine_new(&options);

        (void)state;
        assert_non_null(engine);
        assert_int_equal(run(engine, 1, 64, 0, 40, 1), 0);
        assert_int_equal(run(engine, 1, 64, 0, 40, 1), 0);
        assert_int_equal(sim_engine_cached_blocks(engine), 0);
        sim_engine_free(engine);
}

static void published_fits_are_reproduced(void **state)
{
        const struct sim_cost *h100 = sim_cost_find("llama3-70b-h100"), *dynamo = sim_cost_find("dynamo");
        struct sim_step decode = {.decodes = 3, .decode_context = 1000, .usage = 0.5};

        (void)state;
        assert_non_null(h100);
        assert_non_null(dynamo);
        assert_ptr_equal(sim_cost_preset(0), h100);
        assert_null(sim_cost_find("unheard-of"));
        /* 18.667 + 79.88 + 5.37 + 1.4886 for 1,000 new tokens on 2,000 */
        assert_near(sim_cost_prefill_ms(h100, 1000, 2000), 105.4056, 1e-3);
        /* In chunks the context terms grow, the rest adds up: two of 500 on 0 and 500. */
        assert_near(sim_cost_prefill_ms(h100, 500, 0), 58.607, 1e-3);
        assert_near(sim_cost_prefill_ms(h100, 500, 500), 58.607 + 1.3425 + 0.186075, 1e-3);
        /* 4.209989e-7 T^2 + 1.518344e-2 T + 16.50142 at 4,000 */
        assert_near(sim_cost_prefill_ms(dynamo, 4000, 999), 6.7359824 + 60.73376 + 16.50142, 1e-3);
        /* -25.74 / 4 + 54.01 / 2 + 5.74 */
        assert_near(sim_cost_step_ms(dynamo, &decode), 26.31, 1e-3);
        assert_near(sim_cost_step_ms(h100, &decode), 18 + 0.12 + 0.049, 1e-3);
        assert_near(sim_cost_prefill_ms(sim_cost_find("mistral-7b-a6000"), 10, 0), 22, 1e-3);
        assert_near(sim_cost_prefill_ms(sim_cost_find("mistral-7b-a6000"), 400, 0), 43.2 + 4.21 + 0.159,
                    1e-3);
        assert_near(sim_cost_step_ms(h100, &(struct sim_step){0}), 0, 1e-9);
}

/* Random load: whatever happens, what goes in comes out once, and nothing is left in use. */
static void random_load_leaves_nothing_behind(void **state)
{
        struct sim_engine *engine = engine_with(40, 6, 100);
        struct sim_rng rng = sim_rng_for(1, 2, 3);
        struct sim_job *jobs[2000] = {0};
        uint32_t tokens[2000] = {0}, wanted[2000] = {0}, ended = 0, aborted = 0;
        uint64_t keys[64], now = 0;
        struct sim_engine_counters counters;
        struct sim_event event;

        (void)state;
        for (uintptr_t i = 0; i < 2000; i++) {
                now += (uint64_t)(sim_rng_exp(&rng, 60) * MS);
                while (sim_engine_next(engine, now, &event)) {
                        uintptr_t tag = (uintptr_t)event.tag;

                        assert_non_null(jobs[tag]);
                        assert_true(event.at_ns <= now);
                        if (event.kind == SIM_EVENT_TOKEN)
                                tokens[tag]++;
                        if (event.kind == SIM_EVENT_END) {
                                assert_int_equal(tokens[tag], wanted[tag]);
                                jobs[tag] = NULL;
                                ended++;
                        }
                }
                assert_true(sim_engine_usage(engine) <= 1);
                chain(keys, 64, sim_rng_below(&rng, 5), sim_rng_below(&rng, 12), i);
                wanted[i] = 1 + sim_rng_below(&rng, 60);
                jobs[i] = submit(engine, now, i, keys, 1 + sim_rng_below(&rng, 300), wanted[i]);
                if (i > 10 && sim_rng_below(&rng, 10) == 0) {
                        uint32_t victim = (uint32_t)i - sim_rng_below(&rng, 10);

                        if (jobs[victim]) {
                                sim_engine_abort(engine, jobs[victim]);
                                jobs[victim] = NULL;
                                aborted++;
                        }
                }
        }
        while (sim_engine_next(engine, SIM_NEVER, &event))
                ended += event.kind == SIM_EVENT_END;
        sim_engine_counters(engine, &counters);
        assert_int_equal(ended + aborted, 2000);
        assert_int_equal(counters.finished, ended);
        assert_int_equal(counters.aborted, aborted);
        assert_true(aborted > 50);
        assert_true(counters.preempted > 0);
        assert_true(counters.cached_tokens > 0);
        assert_true(sim_engine_usage(engine) == 0);
        assert_int_equal(sim_engine_pending_tokens(engine), 0);
        sim_engine_free(engine);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(hits_are_whole_blocks_and_never_the_last_token),
                cmocka_unit_test(an_exact_multiple_leaves_a_second_copy),
                cmocka_unit_test(answers_are_cached_but_their_last_token),
                cmocka_unit_test(eviction_takes_the_oldest_tail_first),
                cmocka_unit_test(blocks_in_use_are_not_evicted),
                cmocka_unit_test(copies_of_a_key_go_one_by_one),
                cmocka_unit_test(a_lone_request_takes_what_the_formula_says),
                cmocka_unit_test(long_prompts_come_in_chunks_within_the_budget),
                cmocka_unit_test(a_mixed_step_pays_for_the_weights_once),
                cmocka_unit_test(cold_twins_are_computed_once),
                cmocka_unit_test(max_running_and_the_queue),
                cmocka_unit_test(the_youngest_gives_way_when_blocks_run_out),
                cmocka_unit_test(aborts_free_blocks_and_give_no_event),
                cmocka_unit_test(flush_needs_an_idle_engine_and_restart_does_not),
                cmocka_unit_test(until_is_obeyed),
                cmocka_unit_test(without_a_prefix_cache_nothing_hits),
                cmocka_unit_test(published_fits_are_reproduced),
                cmocka_unit_test(random_load_leaves_nothing_behind),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
