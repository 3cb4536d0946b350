/* SPDX-License-Identifier: Apache-2.0 */
#include "workload.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool admit(struct workload_names *names, const char *name)
{
        return workload_admit(names, (struct kvr_slice){name, strlen(name)});
}

static void test_the_first_ones_are_taken(void **state)
{
        struct workload_names names = {.names = {NULL}};
        char name[24];

        (void)state;
        for (int round = 0; round < 2; round++) {
                for (int i = 0; i < WORKLOAD_NAMES_MAX + 10; i++) {
                        snprintf(name, sizeof name, "name-%d", i);
                        assert_int_equal(admit(&names, name), i < WORKLOAD_NAMES_MAX);
                }
        }
        assert_false(admit(&names, "name-"));
        assert_false(workload_admit(&names, (struct kvr_slice){"name-11", 5}));
        assert_true(workload_admit(&names, (struct kvr_slice){"name-11", 6}));
        workload_names_fini(&names);
        assert_true(admit(&names, "name-"));
        workload_names_fini(&names);
}

struct racer {
        struct workload_names *names;
        unsigned taken;
};

/* Every thread comes with the same names, all at once. */
static void *race(void *arg)
{
        struct racer *racer = arg;
        char name[24];

        for (int i = 0; i < WORKLOAD_NAMES_MAX; i++) {
                snprintf(name, sizeof name, "name-%d", i);
                racer->taken += admit(racer->names, name);
        }
        return NULL;
}

static void test_no_name_takes_two_places(void **state)
{
        struct workload_names names = {.names = {NULL}};
        struct racer racers[4];
        pthread_t threads[4];

        (void)state;
        for (int i = 0; i < 4; i++) {
                racers[i] = (struct racer){&names, 0};
                assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
        }
        for (int i = 0; i < 4; i++) {
                assert_int_equal(pthread_join(threads[i], NULL), 0);
                assert_int_equal(racers[i].taken, WORKLOAD_NAMES_MAX);
        }
        assert_false(admit(&names, "one more"));
        workload_names_fini(&names);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_the_first_ones_are_taken),
                cmocka_unit_test(test_no_name_takes_two_places),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
