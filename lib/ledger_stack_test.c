/* SPDX-License-Identifier: Apache-2.0 */
/* The stack-distance curve against caches that are played out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "ledger_played_test.h"
#include "ledger_stack.h"

#define CURVE_TOKENS (1ULL << 28)

static struct played *caches[5]; /* the last one has room for all: what somebody held */
static bool held_by_some;        /* known is what the second cache held, not what was ever seen */

static struct brain_prompt p;
static struct kvr__stack *stack;

/* A mix: groups of unequal popularity with system prompts, conversations that go on, and prompts of no use.
 */
static void stream(uint32_t requests, uint32_t groups, uint32_t conversations)
{
        uint64_t chance = 99;

        for (uint32_t i = 0; i < requests; i++) {
                chance = brain_mix(chance);
                double u = (double)(chance >> 11) / (double)(1ULL << 53);
                uint64_t group = (uint64_t)(pow(u, 3) * groups);
                uint64_t conversation = (chance >> 13) % conversations;

                brain_prompt_init(&p);
                if (i % 5 == 0) {
                        brain_message(&p, 1000000 + i, 300 + chance % 3000);
                } else {
                        brain_message(&p, group, 1000 + group * 10 % 5000);
                        for (uint64_t turn = 0; turn <= i * 4ULL / requests; turn++)
                                brain_message(&p, group << 32 | conversation << 8 | turn, 200 + chance % 7);
                }
                brain_prompt_done(&p);
                uint32_t some = 0;

                for (int c = 0; c < 4; c++) {
                        uint32_t had = played_use(caches[c], p.points, p.count);

                        some = c == 1 ? had : some;
                }
                uint32_t all = played_use(caches[4], p.points, p.count);

                kvr__stack_book(stack, p.points, p.count, held_by_some ? some : all, 1, i * BRAIN_MS(10));
        }
}

static int up(void **state)
{
        (void)state;
        for (int c = 0; c < 5; c++) {
                caches[c] = calloc(1, sizeof(*caches[c]));
                brain_must(caches[c] != NULL);
        }
        caches[4]->capacity = UINT64_MAX;
        held_by_some = false;
        stack = kvr__stack_new(CURVE_TOKENS);
        brain_must(stack != NULL);
        return 0;
}

static int down(void **state)
{
        (void)state;
        for (int c = 0; c < 5; c++)
                free(caches[c]);
        free(stack);
        return 0;
}

static void sizes_set(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
        const uint64_t sizes[4] = {a, b, c, d};

        for (int i = 0; i < 4; i++)
                caches[i]->capacity = sizes[i];
}

static double at_size(const struct kvr_ledger_curve *curve, uint64_t size)
{
        for (uint32_t i = 0; i < KVR_LEDGER_CURVE_POINTS; i++)
                if (curve->cache_tokens[i] == size)
                        return curve->hit_rate[i];
        abort();
}

/* Largest difference over the four sizes. */
static double error_of(const struct kvr_ledger_curve *curve)
{
        double worst = 0;

        for (int c = 0; c < 4; c++) {
                double played = (double)caches[c]->hits / (double)caches[c]->tokens;

                worst = fmax(worst, fabs(played - at_size(curve, caches[c]->capacity)));
        }
        return worst;
}

static void test_exact_while_all_is_sampled(void **state)
{
        struct kvr_ledger_curve curve;

        (void)state;
        sizes_set(1 << 12, 1 << 14, 5 << 14, 1 << 20);
        stream(2000, 40, 6);
        kvr__stack_read(stack, false, 0, &curve);
        assert_true(curve.sample_rate >= 1);
        assert_true(curve.prompt_tokens == caches[0]->tokens);
        assert_true(error_of(&curve) < 1e-9);
        /* The caches differ, or the test would say little. */
        assert_true(at_size(&curve, 1 << 20) - at_size(&curve, 1 << 12) > 0.2);
        assert_true(curve.ideal >= at_size(&curve, 1 << 20));
}

static void test_sampled_within_a_point(void **state)
{
        struct kvr_ledger_curve curve;

        (void)state;
        sizes_set(1 << 17, 1 << 19, 1 << 21, 1 << 23);
        stream(40000, 3000, 3);
        kvr__stack_read(stack, false, 0, &curve);
        assert_true(curve.sample_rate < 0.3);
        assert_true(curve.sampled_keys <= KVR_LEDGER_CURVE_KEYS);
        print_message("# share %.4f, %u keys, largest error %.4f\n", curve.sample_rate, curve.sampled_keys,
                      error_of(&curve));
        assert_true(error_of(&curve) < 0.01);
        assert_true(at_size(&curve, 1 << 23) - at_size(&curve, 1 << 17) > 0.15);
}

/* The same where the fleet is small and most of what was seen is evicted everywhere. */
static void test_sampled_in_a_small_fleet(void **state)
{
        struct kvr_ledger_curve curve;

        (void)state;
        held_by_some = true;
        sizes_set(1 << 17, 1 << 19, 1 << 21, 1 << 23);
        stream(40000, 3000, 3);
        kvr__stack_read(stack, false, 0, &curve);
        assert_true(curve.sample_rate < 0.3);
        print_message("# share %.4f, %u keys, largest error %.4f\n", curve.sample_rate, curve.sampled_keys,
                      error_of(&curve));
        assert_true(error_of(&curve) < 0.01);
}

/* One system prompt before everything: few prefixes carry most of the hits, and the sample has some of them or none. */
static void test_one_busy_prefix(void **state)
{
        struct kvr_ledger_curve curve;
        uint64_t hits = 0, tokens = 0;

        (void)state;
        for (uint64_t trunk = 0; trunk < 4; trunk++)
                for (uint64_t i = 0; i < 20000; i++) {
                        brain_prompt_init(&p);
                        brain_message(&p, trunk, 4096);
                        uint32_t known = i ? p.count : 0;

                        brain_message(&p, 1000 + trunk * 100000 + i, 4096);
                        brain_prompt_done(&p);
                        kvr__stack_book(stack, p.points, p.count, known, 1, 0);
                        hits += i ? 4096 : 0;
                        tokens += p.length;
                }
        kvr__stack_read(stack, false, 0, &curve);
        assert_true(curve.sample_rate < 0.1);
        assert_true(fabs(curve.ideal - (double)hits / (double)tokens) < 1e-3);
        assert_true(fabs(at_size(&curve, 1 << 14) - (double)hits / (double)tokens) < 1e-3);
}

static void test_curve_rises(void **state)
{
        struct kvr_ledger_curve curve;

        (void)state;
        kvr__stack_read(stack, false, 0, &curve);
        assert_true(isnan(curve.hit_rate[0]) && isnan(curve.ideal));
        sizes_set(1 << 17, 1 << 19, 1 << 21, 1 << 23);
        stream(3000, 300, 3);
        kvr__stack_read(stack, false, 0, &curve);
        for (uint32_t i = 1; i < KVR_LEDGER_CURVE_POINTS && curve.cache_tokens[i] <= CURVE_TOKENS; i++) {
                assert_true(curve.cache_tokens[i] > curve.cache_tokens[i - 1]);
                assert_true(curve.hit_rate[i] >= curve.hit_rate[i - 1]);
        }
        assert_true(isnan(curve.hit_rate[KVR_LEDGER_CURVE_POINTS - 1]));
}

/* An hour with reuse, then hours without. */
static void test_recent(void **state)
{
        struct kvr_ledger_curve life, recent;

        (void)state;
        for (uint64_t minute = 0; minute < 600; minute++) {
                brain_prompt_of(&p, minute < 60 ? 1 : minute, 4096);
                kvr__stack_book(stack, p.points, p.count, minute && minute < 60 ? p.count : 0, 0.25,
                                minute * BRAIN_S(60));
                if (minute != 59)
                        continue;
                kvr__stack_read(stack, true, minute * BRAIN_S(60), &recent);
                assert_true(fabs(recent.ideal - 59.0 / 60) < 1e-9);
        }
        kvr__stack_read(stack, false, 599 * BRAIN_S(60), &life);
        kvr__stack_read(stack, true, 599 * BRAIN_S(60), &recent);
        assert_true(fabs(life.ideal - 59.0 / 600) < 1e-9);
        assert_true(recent.ideal <= 0 && recent.prompt_tokens == 65 * 1024);
        kvr__stack_read(stack, true, 1000 * BRAIN_S(60), &recent);
        assert_true(isnan(recent.ideal) && recent.prompt_tokens == 0);
}

/* A stream that never ends: the share stops falling when the samples reach back far enough. */
static void test_share_has_a_floor(void **state)
{
        struct kvr_ledger_curve curve;

        (void)state;
        stack->tokens_max = 1 << 22;
        for (uint64_t i = 0; i < 30000; i++) {
                brain_prompt_of(&p, i, 16384);
                kvr__stack_book(stack, p.points, p.count, 0, 0.25, 0);
        }
        kvr__stack_read(stack, false, 0, &curve);
        /* 2^22 tokens are 1,024 prompts of 64 points: a quarter of them fits, so the share need not go below.
         */
        assert_true(curve.sample_rate >= 0.124);
        assert_true(curve.ideal < 1e-9);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_exact_while_all_is_sampled, up, down),
                cmocka_unit_test_setup_teardown(test_sampled_within_a_point, up, down),
                cmocka_unit_test_setup_teardown(test_sampled_in_a_small_fleet, up, down),
                cmocka_unit_test_setup_teardown(test_one_busy_prefix, up, down),
                cmocka_unit_test_setup_teardown(test_curve_rises, up, down),
                cmocka_unit_test_setup_teardown(test_recent, up, down),
                cmocka_unit_test_setup_teardown(test_share_has_a_floor, up, down),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
