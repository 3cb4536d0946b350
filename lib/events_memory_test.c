/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of what events add: a warm router decides without asking for any, and running out of it at any place is
 * a clean error after which everything still works. Linked so that calls of the allocator come here first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "alloc_test.h"
#include "events_toy_test.h"

static bool counting;
static unsigned calls;      /* of the allocator, while counting */
static unsigned fail_first; /* the first call that fails; 0 none */

static bool alloc_admit(size_t size)
{
        (void)size;
        if (!counting)
                return true;
        calls++;
        return !fail_first || calls < fail_first;
}

static struct brain_fleet fleet;
static struct toy_ids ids;
static char body[TOY_BODY_MAX];
static char text[8192];

struct round {
        struct kvr_parser *parser;
        struct kvr_prompt prompt;
        struct kvr_request request;
};

static void round_init(struct round *round, uint64_t seed)
{
        struct toy_message messages[] = {{"system", text}, {"user", "what is it"}};

        toy_text(seed, 6000, text);
        toy_render(&ids, messages, 2);
        brain_must(kvr_prompt_parse(round->parser, KVR_API_CHAT, toy_body(body, messages, 2, "m", ""), NULL,
                                    &round->prompt, NULL) == KVR_OK);
        round->request = (struct kvr_request){.prompt = &round->prompt, .model = brain_slice("m")};
}

/* Trust, events, a decision and what is learned after it, as far as memory allows. True when all went well. */
static bool round_run(const struct round *round)
{
        kvr_replica_id id = fleet.ids[0];
        uint64_t hashes[64];
        struct kvr_decision decision;
        struct kvr_ticket *ticket;
        bool done = kvr_events_trust(fleet.router, id, true) == KVR_OK;

        for (uint64_t i = 0; i < 64; i++)
                hashes[i] = brain_mix(ids.ids[i]) + i;
        struct kvr_blocks_stored stored = {
                .hashes = hashes, .count = 64, .tokens = ids.ids, .token_count = 1024, .block_tokens = 16};
        struct kvr_events_account account = {0};
        enum kvr_status status = kvr_events_stored(fleet.router, id, &stored, &account);

        assert_true(status == KVR_OK || status == KVR_E_NOMEM);
        done &= status == KVR_OK && !account.refused;
        status = kvr_decide(fleet.router, &round->request, &decision, &ticket, NULL);
        assert_true(status == KVR_OK || status == KVR_E_NOMEM);
        done &= status == KVR_OK;
        if (status == KVR_OK)
                brain_end(ticket, KVR_END_FINISHED, ids.count, 0, 5);
        if (kvr_tokens_wanted(fleet.router, &round->request)) {
                struct kvr_outline *outline = kvr_outline_new(&round->prompt, round->request.model,
                                                              (struct kvr_slice){0}, (struct kvr_slice){0});

                status = outline ? kvr_tokens_learn(fleet.router, outline, ids.ids, ids.count) : KVR_E_NOMEM;
                assert_true(status == KVR_OK || status == KVR_E_NOMEM);
                done &= status == KVR_OK;
                kvr_outline_free(outline);
        }
        return done;
}

static void fleet_up(void)
{
        struct kvr_settings settings = {
                .index_memory_bytes = 4 << 20, .block_memory_bytes = 4 << 20, .token_map_bytes = 1 << 20};

        brain_fleet_up(&fleet, &settings, 1, (struct kvr_replica_spec){.block_tokens = 16});
}

static void test_out_of_memory(void **state)
{
        struct round round = {.parser = kvr_parser_new()};
        unsigned failed = 0;

        (void)state;
        round_init(&round, 1);
        for (fail_first = 1;; fail_first++) {
                struct kvr_decision decision;
                size_t count;

                fleet_up();
                calls = 0;
                counting = true;
                bool done = round_run(&round);

                counting = false;
                if (done && calls < fail_first) {
                        kvr_router_free(fleet.router);
                        break;
                }
                failed += !done;
                /* There is memory again, and what was lost on the way is not missed for long. */
                fleet.env.now_ns += BRAIN_S(600);
                (void)round_run(&round);
                fleet.env.now_ns += BRAIN_S(600);
                assert_true(round_run(&round));
                fleet.env.now_ns += BRAIN_S(600);
                assert_int_equal(kvr_explain(fleet.router, &round.request, &decision, NULL, 0, &count, NULL),
                                 KVR_OK);
                if (decision.match_tokens != 1024)
                        fail_msg("place %u: %u tokens", fail_first, decision.match_tokens);
                kvr_router_free(fleet.router);
        }
        assert_true(failed >= 10);
        print_message("# %u places where memory can run out, %u noticed\n", fail_first - 1, failed);
        fail_first = 0;
        kvr_parser_free(round.parser);
}

static void test_warm(void **state)
{
        struct round round = {.parser = kvr_parser_new()};

        (void)state;
        fleet_up();
        for (uint64_t i = 0; i < 300; i++) {
                struct kvr_decision decision;
                struct kvr_ticket *ticket;

                round_init(&round, i % 20);
                (void)round_run(&round);
                fleet.env.now_ns += BRAIN_MS(300);
                if (i < 200)
                        continue;
                calls = 0;
                counting = true;
                brain_must(kvr_decide(fleet.router, &round.request, &decision, &ticket, NULL) == KVR_OK);
                (void)kvr_tokens_wanted(fleet.router, &round.request);
                kvr_ticket_first_token(ticket);
                brain_end(ticket, KVR_END_FINISHED, ids.count, 1024, 5);
                counting = false;
                assert_int_equal(calls, 0);
        }
        kvr_router_free(fleet.router);
        kvr_parser_free(round.parser);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_out_of_memory),
                cmocka_unit_test(test_warm),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
