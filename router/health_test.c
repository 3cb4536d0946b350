/* SPDX-License-Identifier: Apache-2.0 */
#include "health.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define MS ((uint64_t)1000000)

static const struct health_limits limits = {.fall = 3, .rise = 2, .proof_of_life_ns = 6000 * MS};

static struct health ready(void)
{
        struct health health;

        health_init(&health);
        assert_int_equal(health_state(&health), KVR_STARTING);
        assert_true(health_probe_ok(&health, &limits));
        assert_int_equal(health_state(&health), KVR_READY);
        return health;
}

static void starting_needs_one_good_probe(void **state)
{
        struct health health;

        (void)state;
        health_init(&health);
        for (int i = 0; i < 10; i++)
                assert_false(health_probe_failed(&health, &limits, true, false, 0, 0));
        assert_int_equal(health_state(&health), KVR_STARTING);
        assert_true(health_probe_ok(&health, &limits));
        assert_false(health_take_restart(&health)); /* it never had a cache */
}

static void one_slow_probe_changes_nothing(void **state)
{
        struct health health = ready();

        (void)state;
        assert_false(health_probe_failed(&health, &limits, false, false, 0, 100 * MS));
        assert_false(health_probe_failed(&health, &limits, false, false, 0, 200 * MS));
        assert_int_equal(health_state(&health), KVR_READY);
        assert_true(health_probe_failed(&health, &limits, false, false, 0, 300 * MS));
        assert_int_equal(health_state(&health), KVR_DOWN);
        assert_false(health_probe_ok(&health, &limits));
        assert_true(health_probe_ok(&health, &limits));
        assert_int_equal(health_state(&health), KVR_READY);
        assert_false(health_take_restart(&health)); /* slow, not gone: its cache is kept */
}

static void tokens_outweigh_probes(void **state)
{
        struct health health = ready();

        (void)state;
        for (int i = 0; i < 10; i++)
                assert_false(health_probe_failed(&health, &limits, false, false, 95 * MS, 100 * MS));
        assert_int_equal(health_state(&health), KVR_READY);
        /* A closed port is no slow answer. */
        for (int i = 0; i < 3; i++)
                health_probe_failed(&health, &limits, true, false, 95 * MS, 100 * MS);
        assert_int_equal(health_state(&health), KVR_DOWN);
        health_probe_ok(&health, &limits);
        health_probe_ok(&health, &limits);
        assert_int_equal(health_state(&health), KVR_READY);
        assert_true(health_take_restart(&health));
        assert_false(health_take_restart(&health));
}

static void an_engine_that_says_no_is_believed(void **state)
{
        struct health health = ready();

        (void)state;
        assert_true(health_probe_failed(&health, &limits, false, true, 0, 0));
        assert_int_equal(health_state(&health), KVR_DOWN);
}

static void health_answers_do_not_heal_failing_traffic(void **state)
{
        struct health health = ready();

        (void)state;
        assert_false(health_traffic_failed(&health, &limits, HEALTH_RESET, 1000 * MS));
        assert_false(health_traffic_failed(&health, &limits, HEALTH_RESET, 1001 * MS));
        assert_true(health_traffic_failed(&health, &limits, HEALTH_RESET, 1002 * MS));
        assert_int_equal(health_state(&health), KVR_DOWN);
        for (int i = 0; i < 10; i++)
                assert_false(health_probe_ok(&health, &limits));
        assert_int_equal(health_state(&health), KVR_DOWN);

        /* Back-off, then a trial; a failed one doubles it, up to the limit. */
        uint64_t now = 1002 * MS, wait = HEALTH_BACKOFF_FIRST_MS;

        for (int i = 0; i < 6; i++) {
                assert_false(health_tick(&health, now + wait * MS - 1));
                assert_true(health_tick(&health, now + wait * MS));
                assert_int_equal(health_state(&health), KVR_TRIAL);
                now += wait * MS;
                assert_true(health_traffic_failed(&health, &limits, HEALTH_TIMEOUT, now));
                wait = wait * 2 > HEALTH_BACKOFF_MAX_MS ? HEALTH_BACKOFF_MAX_MS : wait * 2;
        }
        assert_true(health_tick(&health, now + wait * MS));
        assert_true(health_traffic_ok(&health));
        assert_int_equal(health_state(&health), KVR_READY);
        assert_int_equal(health.backoff_ms, HEALTH_BACKOFF_FIRST_MS);
}

static void failures_count_in_a_row_only(void **state)
{
        struct health health = ready();

        (void)state;
        for (int i = 0; i < 20; i++) {
                health_traffic_failed(&health, &limits, HEALTH_ERROR, 0);
                health_traffic_failed(&health, &limits, HEALTH_ERROR, 0);
                health_traffic_ok(&health);
        }
        assert_int_equal(health_state(&health), KVR_READY);
        assert_true(health_traffic_failed(&health, &limits, HEALTH_STALL,
                                          0)); /* a stall was long enough in itself */
}

static void last_resort_success_brings_it_back(void **state)
{
        struct health health = ready();

        (void)state;
        for (int i = 0; i < 3; i++)
                health_traffic_failed(&health, &limits, HEALTH_REFUSED, 0);
        assert_int_equal(health_state(&health), KVR_DOWN);
        assert_true(health_traffic_ok(&health));
        assert_int_equal(health_state(&health), KVR_READY);
        assert_true(health_take_restart(&health));
}

static void a_restarted_process_returns_by_its_probes(void **state)
{
        struct health health = ready();

        (void)state;
        for (int i = 0; i < 3; i++)
                health_traffic_failed(&health, &limits, HEALTH_REFUSED, 0);
        assert_false(health_probe_ok(&health, &limits));
        assert_true(health_probe_ok(&health, &limits)); /* it was gone, so nothing is left of what hung */
        assert_true(health_take_restart(&health));
}

static void draining_beats_everything(void **state)
{
        struct health health = ready();

        (void)state;
        assert_true(health_drain(&health, true));
        assert_int_equal(health_state(&health), KVR_DRAINING);
        assert_false(health_probe_ok(&health, &limits));
        for (int i = 0; i < 3; i++)
                assert_false(health_traffic_failed(&health, &limits, HEALTH_RESET, 0));
        assert_int_equal(health_state(&health), KVR_DRAINING);
        assert_true(health_drain(&health, false));
        assert_int_equal(health_state(&health), KVR_DOWN);
}

static void without_an_address_it_is_down_and_with_one_it_starts(void **state)
{
        struct health health;

        (void)state;
        health_init(&health);
        assert_true(health_lost(&health, "no address"));
        assert_int_equal(health_state(&health), KVR_DOWN);
        assert_string_equal(health.why, "no address");
        assert_false(health_lost(&health, "no address"));
        assert_true(health_found(&health, "new"));
        assert_int_equal(health_state(&health), KVR_STARTING);
        assert_true(health_probe_ok(&health, &limits));
        assert_int_equal(health_state(&health), KVR_READY);
}

static void another_process_begins_anew_unless_it_is_down_there_too(void **state)
{
        struct health health = ready();

        (void)state;
        health_traffic_failed(&health, &limits, HEALTH_RESET, 0);
        assert_true(health_begin_anew(&health, "moved"));
        assert_int_equal(health_state(&health), KVR_STARTING);
        assert_int_equal(health.failures, 0);
        health_probe_ok(&health, &limits);
        for (int i = 0; i < 3; i++)
                health_traffic_failed(&health, &limits, HEALTH_REFUSED, 0);
        assert_false(health_begin_anew(&health, "moved"));
        assert_int_equal(health_state(&health), KVR_DOWN);
        assert_string_equal(health.why, "connections are refused");
        assert_false(health_probe_ok(&health, &limits));
        assert_true(health_probe_ok(&health, &limits)); /* probes are enough: it is not the one that failed */
        assert_int_equal(health_state(&health), KVR_READY);
        health_drain(&health, true);
        assert_false(health_begin_anew(&health, "moved"));
        assert_int_equal(health_state(&health), KVR_DRAINING);
}

static void what_answers_and_cannot_serve_is_withheld(void **state)
{
        struct health health;

        (void)state;
        health_init(&health);
        assert_false(health_withhold(&health, "no model"));
        assert_int_equal(health_state(&health), KVR_STARTING);
        assert_true(health_probe_ok(&health, &limits));
        assert_true(health_withhold(&health, "no model"));
        assert_int_equal(health_state(&health), KVR_DOWN);
        assert_string_equal(health.why, "no model");
        assert_false(health_tick(&health, 1ull << 60)); /* no trial: a request would not heal it */
        health_probe_ok(&health, &limits);
        assert_true(health_probe_ok(&health, &limits));
        assert_int_equal(health_state(&health), KVR_READY);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(starting_needs_one_good_probe),
                cmocka_unit_test(one_slow_probe_changes_nothing),
                cmocka_unit_test(tokens_outweigh_probes),
                cmocka_unit_test(an_engine_that_says_no_is_believed),
                cmocka_unit_test(health_answers_do_not_heal_failing_traffic),
                cmocka_unit_test(failures_count_in_a_row_only),
                cmocka_unit_test(last_resort_success_brings_it_back),
                cmocka_unit_test(a_restarted_process_returns_by_its_probes),
                cmocka_unit_test(draining_beats_everything),
                cmocka_unit_test(without_an_address_it_is_down_and_with_one_it_starts),
                cmocka_unit_test(another_process_begins_anew_unless_it_is_down_there_too),
                cmocka_unit_test(what_answers_and_cannot_serve_is_withheld),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
