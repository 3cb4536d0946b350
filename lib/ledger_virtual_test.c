/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counterfactual against the fact: what the ledger says of other rules, while one is in force, and what
 * those rules get when they really route the same arrivals.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "ledger_int.h"
#include "ledger_played_test.h"
#include "ledger_test_util.h"

#define REPLICAS     8
#define BLOCK        16
#define OPEN         512    /* requests in flight, at most */
#define PREFILL      8000.0 /* tokens a second of an engine, one prompt after the other */
#define PER_TOKEN    4      /* bytes */
#define CLOSE_ENOUGH 0.02

static struct ledger_fleet fleet;
static struct played *engines[REPLICAS];
static struct kvr_ticket *open[OPEN];
static struct kvr_outcome outcomes[OPEN];
static uint64_t first_ns[OPEN], end_ns[OPEN], busy_ns[REPLICAS];

struct mix {
        uint32_t requests, groups, conversations, system_bytes;
        uint32_t unique_in; /* one of so many has a prompt of its own */
        uint64_t capacity_tokens;
};

static void prompt_of(const struct mix *mix, uint32_t i)
{
        struct brain_prompt *p = &fleet.prompt;
        uint64_t chance = brain_mix(i + 77);

        brain_prompt_init(p);
        if (i % mix->unique_in == 0) {
                brain_message(p, 1ULL << 40 | i, 500 + chance % 8000);
                return;
        }
        uint64_t group = (uint64_t)(pow((double)(chance >> 11) / (double)(1ULL << 53), 2) * mix->groups);
        uint64_t conversation = chance % mix->conversations, turn = i / (mix->requests / 8);

        brain_message(p, group, mix->system_bytes / 2 + group * 997 % mix->system_bytes);
        for (uint64_t t = 0; t <= turn; t++)
                brain_message(p, group << 32 | conversation << 8 | t, 300 + (conversation + t) * 131 % 1700);
}

static void event(uint32_t at)
{
        if (first_ns[at]) {
                kvr_ticket_first_token(open[at]);
                first_ns[at] = 0;
                return;
        }
        kvr_ticket_settle(open[at], &outcomes[at], NULL);
        open[at] = NULL;
}

/* What happens until then, in order. */
static void pass(uint64_t until_ns)
{
        for (;;) {
                uint64_t next_ns = until_ns;
                uint32_t next = OPEN;

                for (uint32_t i = 0; i < OPEN; i++) {
                        uint64_t at_ns = first_ns[i] ? first_ns[i] : end_ns[i];

                        if (open[i] && at_ns < next_ns) {
                                next_ns = at_ns;
                                next = i;
                        }
                }
                if (next_ns > fleet.brain.env.now_ns)
                        fleet.brain.env.now_ns = next_ns;
                if (next == OPEN)
                        return;
                event(next);
        }
}

static void arrive(void)
{
        const struct kvr_prompt *prompt = brain_prompt_done(&fleet.prompt);
        struct kvr_request request = {.prompt = prompt, .model = brain_slice("m")};
        struct kvr_decision decision;
        uint32_t at = 0, tokens = prompt->units / PER_TOKEN;
        uint64_t now_ns = fleet.brain.env.now_ns;

        while (open[at])
                brain_must(++at < OPEN);
        open[at] = brain_send(&fleet.brain, &request, &decision);
        uint32_t number = brain_number(&fleet.brain, decision.replica);
        uint32_t had = played_use(engines[number], prompt->points, prompt->point_count);
        uint32_t cached = had ? prompt->points[had - 1].end / PER_TOKEN : 0;

        cached = cached < tokens ? cached : tokens - 1;
        cached -= cached % BLOCK;
        outcomes[at] = (struct kvr_outcome){
                .end = KVR_END_FINISHED,
                .prompt_tokens = tokens,
                .cached_tokens = cached,
                .completion_tokens = 10,
        };
        busy_ns[number] = busy_ns[number] > now_ns ? busy_ns[number] : now_ns;
        busy_ns[number] += (uint64_t)((tokens - cached) / PREFILL * 1e9);
        first_ns[at] = busy_ns[number] + 1;
        end_ns[at] = first_ns[at] + BRAIN_MS(300);
        /* As fast as the fleet could take it without any cache. */
        pass(now_ns + (uint64_t)(tokens / (PREFILL * REPLICAS) * 1e9));
}

static void run(const char *policy, const struct mix *mix, const struct kvr_ledger_settings *settings)
{
        struct kvr_replica_spec spec = {.block_tokens = BLOCK, .capacity_tokens = mix->capacity_tokens};

        ledger_fleet_up(&fleet, policy, REPLICAS, spec, settings);
        for (uint32_t i = 0; i < REPLICAS; i++) {
                engines[i] = calloc(1, sizeof(*engines[i]));
                brain_must(engines[i] != NULL);
                busy_ns[i] = 0;
                engines[i]->capacity = mix->capacity_tokens * PER_TOKEN;
        }
        for (uint32_t i = 0; i < mix->requests; i++) {
                prompt_of(mix, i);
                arrive();
        }
        pass(fleet.brain.env.now_ns + BRAIN_S(3600));
}

static void end(void)
{
        for (uint32_t i = 0; i < REPLICAS; i++)
                free(engines[i]);
        ledger_fleet_down(&fleet);
}

struct figures {
        double hit, max_mean;
};

static struct figures virtual_figures(const char *name)
{
        struct kvr_ledger_sums sums = ledger_life(&fleet, KVR_LEDGER_VIRTUAL, name);
        struct kvr_ledger_balance balance;

        assert_int_equal(kvr_ledger_balance(fleet.ledger, name, ledger_now(&fleet), &balance), KVR_OK);
        assert_int_equal(balance.replicas, REPLICAS);
        return (struct figures){(double)sums.won_tokens / (double)sums.prompt_tokens,
                                balance.computed_tokens.max_mean};
}

static struct figures real_figures(void)
{
        struct kvr_ledger_sums sums = ledger_life(&fleet, KVR_LEDGER_ALL, "all");
        struct kvr_ledger_balance balance;

        assert_int_equal(kvr_ledger_balance(fleet.ledger, NULL, ledger_now(&fleet), &balance), KVR_OK);
        assert_int_equal(balance.replicas, REPLICAS);
        assert_int_equal(sums.observed, sums.computed);
        return (struct figures){kvr_ledger_hit_tokens(&sums), balance.computed_tokens.max_mean};
}

static const struct mix mixes[] = {
        {6000, 60, 6, 6000, 6, 60000},    /* short conversations, some pressure */
        {6000, 24, 40, 12000, 10, 40000}, /* heavy pressure */
        {4000, 12, 4, 3000, 2, 10000000}, /* all fits */
        {2400, 8, 6, 120000, 8, 400000},  /* long system prompts: hundreds of points */
};
#define MIXES (sizeof(mixes) / sizeof(mixes[0]))

/* The rule in force and its virtual fleet see the same. */
static void agree(const char *policy, const char *name, double hit, double max_mean)
{
        for (size_t i = 0; i < MIXES; i++) {
                struct figures told, had;

                run("kv", &mixes[i], NULL);
                told = virtual_figures(name);
                end();
                run(policy, &mixes[i], NULL);
                had = real_figures();
                end();
                print_message("# mix %zu, %s: hit %.4f told, %.4f real; max/mean %.3f told, %.3f real\n", i,
                              name, told.hit, had.hit, told.max_mean, had.max_mean);
                assert_true(fabs(told.hit - had.hit) < hit);
                assert_true(fabs(told.max_mean - had.max_mean) < max_mean);
        }
}

static void test_round_robin(void **state)
{
        (void)state;
        agree("round_robin", "round_robin", CLOSE_ENOUGH, 0.06);
}

/* The virtual queue drains by a learned speed and takes requests as they settle, the real one as they come: hits agree
 * roughly, not every choice. */
static void test_least_tokens(void **state)
{
        (void)state;
        agree("least_tokens", "least_tokens", 0.04, 0.15);
}

/* kv wins more than any of them, which is what the account is there to show. */
static void test_order(void **state)
{
        (void)state;
        run("kv", &mixes[0], NULL);
        double real = real_figures().hit, turn = virtual_figures("round_robin").hit;
        double hash = virtual_figures("prefix_hash").hit;

        print_message("# kv %.4f, round_robin %.4f, prefix_hash %.4f\n", real, turn, hash);
        assert_true(real > turn + 0.1);
        assert_true(hash > turn + 0.1);
        struct kvr_ledger_info info;

        kvr_ledger_info(fleet.ledger, &info);
        assert_true(info.counterfactual);
        for (int i = 0; i < 3; i++) {
                assert_true(info.virtual_runs[i] > 0 && info.virtual_runs[i] <= info.virtual_runs_max);
                assert_int_equal(info.virtual_crowded[i], 0);
        }
        end();
}

/* Whatever the size of the table, it stays within it, and tells when that cost hits. */
static void test_crowded(void **state)
{
        struct kvr_ledger_info info;

        (void)state;
        run("kv", &mixes[2], &(struct kvr_ledger_settings){.virtual_runs = 2000});
        kvr_ledger_info(fleet.ledger, &info);
        assert_int_equal(info.virtual_runs_max, 2048);
        for (int i = 0; i < 3; i++) {
                assert_true(info.virtual_runs[i] <= 2048);
                assert_true(info.virtual_crowded[i] > 0);
        }
        end();
}

static void test_switched_off(void **state)
{
        struct kvr_ledger_account account;
        struct kvr_ledger_balance balance;
        struct kvr_ledger_info info;
        uint32_t cursor = 0;
        uint64_t with;

        (void)state;
        struct mix small = {400, 8, 4, 2000, 5, 100000};

        run("kv", &small, NULL);
        with = kvr_ledger_bytes(fleet.ledger);
        end();
        run("kv", &small, &(struct kvr_ledger_settings){.without_counterfactual = true});
        assert_false(
                kvr_ledger_account(fleet.ledger, KVR_LEDGER_VIRTUAL, ledger_now(&fleet), &cursor, &account));
        assert_int_equal(kvr_ledger_balance(fleet.ledger, "round_robin", ledger_now(&fleet), &balance),
                         KVR_E_NOT_FOUND);
        kvr_ledger_info(fleet.ledger, &info);
        assert_false(info.counterfactual);
        assert_true(kvr_ledger_bytes(fleet.ledger) + KVR_LEDGER_VIRTUAL_RUNS * 3 * 68 < with);
        end();
}

/* On one replica every rule is the same, and the virtual cache is the played one to the token: forks within
 * runs, repeated and growing prompts, pressure. Points are 256 bytes apart, so that what goes are whole
 * points. */
static void test_cache_is_exact(void **state)
{
        struct played *cache = calloc(1, sizeof(*cache));
        uint64_t won = 0;

        (void)state;
        brain_must(cache != NULL);
        cache->capacity = 6000 * PER_TOKEN;
        ledger_fleet_up(&fleet, "kv", 1,
                        (struct kvr_replica_spec){.block_tokens = 1, .capacity_tokens = 6000}, NULL);
        for (uint64_t i = 0; i < 5000; i++) {
                struct brain_prompt *p = &fleet.prompt;
                uint64_t chance = brain_mix(i), group = chance % 3;

                brain_prompt_init(p);
                brain_text(p, group, 256 * (1 + (chance >> 8) % 20));
                if (chance >> 16 & 1)
                        brain_text(p, 10 + (chance >> 20) % 5, 256 * (1 + (chance >> 32) % 9));
                struct kvr_request request = {.prompt = brain_prompt_done(p), .model = brain_slice("m")};
                uint32_t had = played_use(cache, p->points, p->count);
                uint32_t tokens = had ? p->points[had - 1].end / PER_TOKEN : 0,
                         prompt = (uint32_t)p->length / PER_TOKEN;

                won += tokens < prompt ? tokens : prompt - 1;
                brain_serve(&fleet.brain, &request, NULL);
                for (uint32_t rule = 0; rule < 3; rule++)
                        assert_int_equal(
                                ledger_life(&fleet, KVR_LEDGER_VIRTUAL, kvr__virtual_name(rule)).won_tokens,
                                won);
        }
        /* Some was found and some was not. */
        struct kvr_ledger_sums sums = ledger_life(&fleet, KVR_LEDGER_VIRTUAL, "round_robin");

        assert_true(won > sums.prompt_tokens / 4 && won < sums.prompt_tokens * 19 / 20);
        free(cache);
        ledger_fleet_down(&fleet);
}

/* The order of use is one list both ways, its runs sum to what the replica holds, and all runs are somewhere. */
static void check_books(const struct kvr__virtual *virtual)
{
        uint32_t count = 0;

        for (uint32_t slot = 0; slot < KVR_LEDGER_REPLICAS_MAX; slot++) {
                const struct kvr__virtual_replica *replica = &virtual->replicas[slot];
                uint64_t tokens = 0;
                uint32_t older = 0;

                for (uint32_t at = replica->oldest; at; at = virtual->runs[at].newer) {
                        const struct kvr__run *run = &virtual->runs[at];

                        assert_true(run->count > 0 && run->count <= KVR__RUN_POINTS && run->slot == slot);
                        assert_int_equal(run->older, older);
                        tokens += run->tokens;
                        older = at;
                        count++;
                }
                assert_int_equal(replica->newest, older);
                assert_int_equal(replica->tokens, tokens);
        }
        assert_int_equal(virtual->count, count);
        for (uint32_t at = virtual->free; at; at = virtual->runs[at].next)
                count++;
        assert_int_equal(virtual->fresh, count);
}

/* Prompts that fork anywhere, replicas with and without a limit that lose their caches, come and go, and a table that is
 * too small for them. */
static void test_books_add_up(void **state)
{
        uint64_t chance = 7;

        (void)state;
        ledger_fleet_up(&fleet, "random", 5, (struct kvr_replica_spec){.capacity_tokens = 30000},
                        &(struct kvr_ledger_settings){.virtual_runs = 1024, .detail_rate = UINT32_MAX});
        brain_add(&fleet.brain, (struct kvr_replica_spec){.block_tokens = 32});
        for (uint32_t i = 0; i < 6000; i++) {
                brain_prompt_init(&fleet.prompt);
                for (uint32_t part = 0; part < 1 + i % 5; part++) {
                        chance = brain_mix(chance);
                        brain_text(&fleet.prompt, chance % (2 + part * 3), 64 + (chance >> 8) % 4 * 3000);
                        if (chance >> 40 & 1)
                                brain_point(&fleet.prompt, fleet.prompt.length);
                }
                struct kvr_request request = {.prompt = brain_prompt_done(&fleet.prompt)};

                brain_serve(&fleet.brain, &request, NULL);
                if (i % 701 == 700)
                        kvr_replica_forget(fleet.brain.router, fleet.brain.ids[i % 5]); /* may be gone */
                if (i % 2000 == 1999) {
                        brain_must(kvr_replica_remove(fleet.brain.router, fleet.brain.ids[i / 2000]) ==
                                   KVR_OK);
                        brain_add(&fleet.brain, (struct kvr_replica_spec){.capacity_tokens = 5000});
                }
                for (uint32_t rule = 0; i % 50 == 0 && rule < KVR__VIRTUALS; rule++)
                        check_books(&fleet.ledger->virtuals->fleets[rule]);
        }
        assert_true(fleet.ledger->virtuals->fleets[0].crowded > 0);
        ledger_fleet_down(&fleet);
}

/* A long prompt is worked off in time: it does not keep others away for ever. */
static void test_queues_drain(void **state)
{
        struct kvr_ledger_balance balance;

        (void)state;
        ledger_fleet_up(&fleet, "kv", 2, (struct kvr_replica_spec){.block_tokens = BLOCK}, NULL);
        for (uint64_t i = 0; i < 40; i++) {
                struct kvr_request request = {.prompt = brain_prompt_of(&fleet.prompt, i, i ? 4000 : 800000)};

                brain_serve(&fleet.brain, &request, NULL);
                fleet.brain.env.now_ns += BRAIN_S(i ? 1 : 7200);
        }
        assert_int_equal(kvr_ledger_balance(fleet.ledger, "least_tokens", ledger_now(&fleet), &balance),
                         KVR_OK);
        /* 40 requests over two: at most 24 on one of them. */
        assert_true(balance.requests.max_mean <= 1.2);
        ledger_fleet_down(&fleet);
}

/* A replica that lost its cache has lost it in the virtual fleets too; one that left is not asked. */
static void test_fleet_changes(void **state)
{
        struct kvr_ledger_sums before, after;

        (void)state;
        ledger_fleet_up(&fleet, "kv", 1, (struct kvr_replica_spec){.block_tokens = BLOCK}, NULL);
        struct kvr_request request = {.prompt = brain_prompt_of(&fleet.prompt, 3, 8000)};

        brain_serve(&fleet.brain, &request, NULL);
        brain_serve(&fleet.brain, &request, NULL);
        before = ledger_life(&fleet, KVR_LEDGER_VIRTUAL, "round_robin");
        assert_int_equal(before.won_tokens, 1984); /* 1,999 in whole blocks */
        assert_int_equal(kvr_replica_forget(fleet.brain.router, fleet.brain.ids[0]), KVR_OK);
        brain_serve(&fleet.brain, &request, NULL);
        after = ledger_life(&fleet, KVR_LEDGER_VIRTUAL, "round_robin");
        assert_int_equal(after.won_tokens, before.won_tokens);
        brain_add(&fleet.brain, (struct kvr_replica_spec){.block_tokens = BLOCK});
        assert_int_equal(kvr_replica_remove(fleet.brain.router, fleet.brain.ids[0]), KVR_OK);
        brain_serve(&fleet.brain, &request, NULL);
        before = ledger_life(&fleet, KVR_LEDGER_VIRTUAL, "round_robin");
        assert_int_equal(after.won_tokens, before.won_tokens);
        brain_serve(&fleet.brain, &request, NULL);
        after = ledger_life(&fleet, KVR_LEDGER_VIRTUAL, "round_robin");
        assert_int_equal(after.won_tokens, before.won_tokens + 1984);
        ledger_fleet_down(&fleet);
}

static void serve_within_a_second(uint32_t count)
{
        struct kvr_request request = {.prompt = brain_prompt_of(&fleet.prompt, 3, 8000)};

        fleet.brain.env.now_ns = (fleet.brain.env.now_ns / BRAIN_S(1) + 1) * BRAIN_S(1);
        for (uint32_t i = 0; i < count; i++)
                brain_serve(&fleet.brain, &request, NULL);
}

static void assert_pause(bool paused, uint64_t seen, uint64_t left_out)
{
        struct kvr_ledger_info info;

        kvr_ledger_info(fleet.ledger, &info);
        assert_int_equal(info.detail_paused, paused);
        assert_int_equal(info.detail_left_out, left_out);
        assert_int_equal(ledger_life(&fleet, KVR_LEDGER_VIRTUAL, "round_robin").requests, seen);
        assert_int_equal(ledger_life(&fleet, KVR_LEDGER_ALL, "all").requests, seen + left_out);
}

/* Where requests are so many that their cost counts, the virtual fleets pause; the accounts go on. */
static void test_pause(void **state)
{
        (void)state;
        ledger_fleet_up(&fleet, "kv", 2, (struct kvr_replica_spec){.block_tokens = BLOCK},
                        &(struct kvr_ledger_settings){.detail_rate = 6});
        serve_within_a_second(6);
        assert_pause(false, 6, 0);
        serve_within_a_second(7);
        assert_pause(true, 12, 1);
        /* Half of the rate is not calm, less is, ten times in a row. */
        serve_within_a_second(3);
        assert_pause(true, 12, 4);
        for (int i = 0; i < 10; i++)
                serve_within_a_second(2);
        assert_pause(true, 12, 24);
        serve_within_a_second(2);
        assert_pause(false, 14, 24);
        /* Seconds without a request are calm, too. */
        serve_within_a_second(8);
        assert_pause(true, 20, 26);
        fleet.brain.env.now_ns += BRAIN_S(12);
        serve_within_a_second(1);
        assert_pause(false, 21, 26);
        ledger_fleet_down(&fleet);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_round_robin),    cmocka_unit_test(test_least_tokens),
                cmocka_unit_test(test_cache_is_exact), cmocka_unit_test(test_books_add_up),
                cmocka_unit_test(test_queues_drain),   cmocka_unit_test(test_order),
                cmocka_unit_test(test_crowded),        cmocka_unit_test(test_switched_off),
                cmocka_unit_test(test_fleet_changes),  cmocka_unit_test(test_pause),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
