/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the router: a warm one asks for none, and running out of it at any place is a clean error after
 * which everything still works. The test is linked so that the library's calls of the allocator come here
 * first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "alloc_test.h"
#include "brain_test.h"
#include "router_int.h"

static unsigned calls;      /* of the allocator */
static unsigned fail_first; /* the first call that fails; 0 none */
static unsigned fail_count; /* how many fail from there on */

static bool alloc_admit(size_t size)
{
        (void)size;
        calls++;
        return !fail_first || calls < fail_first || calls - fail_first >= fail_count;
}

static struct brain_env env;
static struct brain_prompt p;

static enum kvr_status replica_up(struct kvr_router *router, const char *name, enum kvr_cache_kind cache)
{
        struct kvr_replica_spec spec = {.name = name, .cache = cache, .capacity_tokens = 20000};
        struct kvr_slice models[] = {brain_slice("m"), brain_slice("n")};
        kvr_replica_id id;
        enum kvr_status status = kvr_replica_add(router, &spec, &id, NULL);

        if (status != KVR_OK)
                return status;
        brain_must(kvr_replica_set_state(router, id, KVR_READY) == KVR_OK);
        return kvr_replica_set_models(router, id, models, 2);
}

/* Requests of all sizes with every kind of end; counts those that were refused for memory. */
static unsigned traffic(struct kvr_router *router, unsigned requests)
{
        struct kvr_ticket *open[8] = {0};
        unsigned refused = 0;

        for (uint64_t i = 0; i < requests; i++) {
                uint64_t chance = brain_mix(i);
                struct kvr_ticket **ticket = &open[i % 8];
                struct kvr_outcome outcome = {
                        .end = (enum kvr_end)(chance % 4),
                        .prompt_tokens = 1000,
                        .cached_tokens = (int64_t)(chance >> 8) % 900,
                        .completion_tokens = 20,
                        .response_id = brain_slice("resp"),
                };
                struct kvr_decision decision;

                env.now_ns += BRAIN_MS(5);
                if (*ticket) {
                        if (chance >> 40 & 1)
                                kvr_ticket_first_token(*ticket);
                        kvr_ticket_settle(*ticket, &outcome, NULL);
                        *ticket = NULL;
                }
                brain_prompt_init(&p);
                brain_message(&p, chance % 7, 1000);
                brain_message(&p, chance % 97, 1000 + (chance >> 20) % 4 * 20000);
                struct kvr_request request = {.prompt = brain_prompt_done(&p),
                                              .model = brain_slice("m"),
                                              .affinity = brain_slice("s")};
                enum kvr_status status = kvr_decide(router, &request, &decision, ticket, NULL);

                if (status == KVR_OK)
                        continue;
                assert_int_equal(status, KVR_E_NOMEM);
                *ticket = NULL;
                refused++;
        }
        for (int i = 0; i < 8; i++)
                if (open[i])
                        brain_end(open[i], KVR_END_CLIENT, -1, -1, -1);
        return refused;
}

static void at_rest(struct kvr_router *router)
{
        struct kvr_replica_info infos[4];
        size_t count = kvr_router_replicas(router, infos, 4);

        for (size_t i = 0; i < count; i++) {
                assert_int_equal(infos[i].in_flight, 0);
                assert_int_equal(infos[i].uncached_tokens_booked, 0);
        }
        assert_int_equal(router->tickets.out, 0);
        assert_true(kvr__index_check(router->index));
}

static void a_warm_router_asks_for_nothing(void **state)
{
        struct kvr_settings settings = {.index_memory_bytes = 1 << 20};
        struct kvr_env e = brain_env_of(&env);
        struct kvr_router *router;

        (void)state;
        fail_first = 0;
        env = (struct brain_env){.now_ns = BRAIN_S(1000)};
        assert_int_equal(kvr_router_new(&settings, &e, &router, NULL), KVR_OK);
        assert_int_equal(replica_up(router, "a", KVR_CACHE_BLOCKS), KVR_OK);
        assert_int_equal(replica_up(router, "b", KVR_CACHE_SLOTS), KVR_OK);
        /* Until the index is full and every buffer has met the largest prompt. */
        traffic(router, 40000);
        calls = 0;
        traffic(router, 2000);
        assert_int_equal(calls, 0);
        at_rest(router);
        kvr_router_free(router);
}

/* The n-th call of the allocator fails, for every n, alone and with all that follow for a while. */
static void running_out_anywhere_is_survived(void **state)
{
        struct kvr_settings settings = {.index_memory_bytes = 1 << 20};
        struct kvr_env e = brain_env_of(&env);
        unsigned refused = 0, starts = 0;
        uint64_t partial = 0;

        (void)state;
        for (unsigned count = 1; count <= 10; count += 9) {
                bool failed = true;

                for (unsigned n = 1; failed && n < 1000; n++) {
                        struct kvr_router *router = NULL;
                        enum kvr_status status;

                        env = (struct brain_env){.now_ns = BRAIN_S(1000)};
                        calls = 0;
                        fail_first = n;
                        fail_count = count;
                        status = kvr_router_new(&settings, &e, &router, NULL);
                        if (status != KVR_OK) {
                                assert_int_equal(status, KVR_E_NOMEM);
                                assert_null(router);
                                continue;
                        }
                        starts++;
                        if (replica_up(router, "a", KVR_CACHE_BLOCKS) == KVR_OK)
                                replica_up(router, "b", KVR_CACHE_SLOTS);
                        if (kvr_router_replicas(router, NULL, 0) > 0)
                                refused += traffic(router, 120);
                        at_rest(router);
                        failed = calls >= n;
                        /* Memory is back. */
                        fail_first = 0;
                        assert_int_equal(replica_up(router, "c", KVR_CACHE_BLOCKS), KVR_OK);
                        assert_int_equal(traffic(router, 40), 0);
                        at_rest(router);
                        struct kvr_index_info info;

                        kvr_router_index_info(router, &info);
                        assert_true(info.partial <= info.lookups);
                        partial += info.partial;
                        kvr_router_free(router);
                }
                assert_false(failed);
        }
        assert_true(refused > 0);
        /* What could not be entered was counted. */
        assert_true(partial > 0);
        assert_true(starts > 20);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_warm_router_asks_for_nothing),
                cmocka_unit_test(running_out_anywhere_is_survived),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
