/* SPDX-License-Identifier: Apache-2.0 */
#include "wait.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static void lines_are_understood(void **state)
{
        (void)state;
        assert_true(fabs(sim_wait_parse_s("128739841 2500000000 1034\n") - 2.5) < 1e-9);
        assert_true(fabs(sim_wait_parse_s("0 0 0") - 0) < 1e-9);
        assert_true(isnan(sim_wait_parse_s("12\n")));
        assert_true(isnan(sim_wait_parse_s("")));
        assert_true(isnan(sim_wait_parse_s("a b c")));
}

static void who_is_gone_has_no_figure(void **state)
{
        (void)state;
        assert_true(isnan(sim_wait_process_s(0x7fffffff)));
}

struct rival {
        atomic_bool stop, ready;
};

static void *run_rival(void *arg)
{
        struct rival *rival = arg;

        atomic_store(&rival->ready, true);
        while (!atomic_load(&rival->stop))
                ;
        return NULL;
}

/* Two threads that never rest on one processor: each waits while the other runs. */
static void a_rival_on_the_same_processor_is_waited_for(void **state)
{
        struct rival rival = {false, false};
        double before = sim_wait_thread_s(), whole = sim_wait_process_s(getpid()), now = 0;
        cpu_set_t all, one;
        pthread_t thread;

        (void)state;
        if (isnan(before)) /* a kernel without the count */
                skip();
        assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
        CPU_ZERO(&one);
        for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
                if (CPU_ISSET(i, &all))
                        CPU_SET(i, &one);
        }
        assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
        assert_int_equal(pthread_create(&thread, NULL, run_rival, &rival), 0);
        while (!atomic_load(&rival.ready))
                sched_yield();
        while (now - before < 0.05)
                now = sim_wait_thread_s();
        assert_true(sim_wait_process_s(getpid()) - whole >= now - before);
        atomic_store(&rival.stop, true);
        pthread_join(thread, NULL);
        assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(lines_are_understood),
                cmocka_unit_test(who_is_gone_has_no_figure),
                cmocka_unit_test(a_rival_on_the_same_processor_is_waited_for),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
