/* SPDX-License-Identifier: Apache-2.0 */
#include "past.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "brain_test.h"

#define POINTS 800u
#define SIZE   10u /* tokens between two points */

static struct kvr_point points[POINTS];
static uint32_t tokens[POINTS];

static void prompt(uint64_t number)
{
        for (uint32_t i = 0; i < POINTS; i++) {
                points[i] = (struct kvr_point){.key = brain_mix(number * POINTS + i + 1), .end = i + 1};
                tokens[i] = (i + 1) * SIZE;
        }
}

static double share(const struct kvr__loss *loss)
{
        return loss->lost / loss->asked;
}

static struct kvr__past *past_new(void)
{
        struct kvr__past *past = calloc(1, sizeof(*past));

        assert_non_null(past);
        return past;
}

static void only_what_came_before_and_is_gone_is_lost(void **state)
{
        struct kvr__past *past = past_new();
        struct kvr__loss loss = {0};

        (void)state;
        prompt(1);
        kvr__past_pass(past, &loss, 0, points, tokens, POINTS, 0);
        /* One point in eight is looked at. */
        assert_true(loss.asked > POINTS * SIZE / 8.0 * 0.6 && loss.asked < POINTS * SIZE / 8.0 * 1.4);
        assert_true(loss.lost == 0);
        kvr__past_pass(past, &loss, 0, points, tokens, POINTS, POINTS);
        assert_true(loss.lost == 0); /* all held */
        kvr__past_pass(past, &loss, 0, points, tokens, POINTS, POINTS / 2);
        assert_true(fabs(share(&loss) - 0.5) < 0.15);
        kvr__past_pass(past, &loss, 0, points, tokens, POINTS, 0);
        assert_true(share(&loss) == 1);
        prompt(2);
        kvr__past_pass(past, &loss, 0, points, tokens, POINTS, 0);
        assert_true(loss.lost == 0); /* news */
        free(past);
}

static void sums_fade(void **state)
{
        struct kvr__past *past = past_new();
        struct kvr__loss loss = {.asked = 1000, .lost = 1000};

        (void)state;
        prompt(3);
        kvr__past_pass(past, &loss, 0.5, points, tokens, POINTS, 0);
        assert_true(loss.lost == 500);
        assert_true(loss.asked > 500);
        kvr__past_pass(past, &loss, 0.5, points, tokens, 0, 0);
        assert_true(loss.lost == 250);
        free(past);
}

static void old_points_are_forgotten_some_time(void **state)
{
        struct kvr__past *past = past_new();
        struct kvr__loss loss = {0};

        (void)state;
        prompt(4);
        kvr__past_pass(past, &loss, 0, points, tokens, POINTS, 0);
        /* Sixteen tables full of news. */
        for (uint64_t i = 0; i < 16u * 8 * KVR__PAST_PLACES / POINTS; i++) {
                prompt(100 + i);
                kvr__past_pass(past, &loss, 0, points, tokens, POINTS, 0);
                assert_true(loss.lost == 0);
        }
        prompt(4);
        kvr__past_pass(past, &loss, 0, points, tokens, POINTS, 0);
        assert_true(loss.lost == 0);
        free(past);
}

static void starved_is_steep_about_one_half(void **state)
{
        struct kvr__loss none = {0}, few = {.asked = 100, .lost = 10}, half = {.asked = 100, .lost = 50},
                         most = {.asked = 100, .lost = 90}, all = {.asked = 100, .lost = 100};

        (void)state;
        assert_true(kvr__loss_starved(&none) == 0);
        assert_true(fabs(kvr__loss_starved(&few) - 1.0 / 82) < 1e-12);
        assert_true(kvr__loss_starved(&half) == 0.5);
        assert_true(fabs(kvr__loss_starved(&most) - 81.0 / 82) < 1e-12);
        assert_true(kvr__loss_starved(&all) == 1);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(only_what_came_before_and_is_gone_is_lost),
                cmocka_unit_test(sums_fade),
                cmocka_unit_test(old_points_are_forgotten_some_time),
                cmocka_unit_test(starved_is_steep_about_one_half),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
