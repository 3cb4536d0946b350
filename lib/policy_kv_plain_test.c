/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy looks at holders apart from the many who hold nothing, counts copies for all forks at once, and leaves out
 * what cannot matter. It must come to the very choice, bit by bit the very costs, of the rule as it is written: every
 * candidate priced alike, one after the other.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "brain_test.h"
#include "policy.h"

#define REPLICAS 200
#define POINTS   64
#define ROUNDS   20000

struct world {
        struct brain_env env; /* for chance */
        struct kvr__replica *replicas[REPLICAS];
        struct kvr__candidate candidates[REPLICAS], plain[REPLICAS];
        struct kvr__fork forks[POINTS];
        struct kvr_point points[POINTS];
        uint32_t tokens[POINTS];
};

static uint64_t draw(struct world *world, uint64_t below)
{
        return brain_random(&world->env) % below;
}

static double chance(struct world *world)
{
        return (double)draw(world, 1 << 20) / (1 << 20);
}

/* ---- the rule as it is written ---- */

static double uncached(const struct kvr__view *view, uint32_t match, uint32_t present)
{
        double have = match > present ? match : present;

        return have < view->prompt_tokens ? view->prompt_tokens - have : 0;
}

struct plain {
        uint32_t due, allowed, points, home;
};

static void plain_trunk(const struct kvr__view *view, struct plain *ret)
{
        double seen = fmax(fmin(view->seen, view->span), 8.0 * view->count);

        for (uint32_t f = 0; f < view->fork_count; f++) {
                const struct kvr__fork *fork = &view->forks[f];
                double share = view->count * fork->visits / seen;
                uint32_t copies = 0;

                for (uint32_t i = 0; i < view->count; i++)
                        copies += view->candidates[i].points > fork->point;
                if (fork->exits < 4)
                        continue;
                if (share >= 0.5)
                        ret->points = fork->point + 1;
                if (copies && copies < share)
                        ret->due = view->tokens[fork->point];
                if (copies && copies < 2 * share)
                        ret->allowed = view->tokens[fork->point];
        }
}

static uint32_t plain_home(const struct kvr__view *view, const struct plain *plain)
{
        uint32_t point = plain->points < view->point_count ? plain->points : view->point_count - 1;
        uint32_t home = 0;

        if (!view->point_count || view->home_yield <= 0)
                return view->count;
        for (uint32_t i = 1; i < view->count; i++)
                if (kvr__draw(view->points[point].key, view->candidates[i].replica) >
                    kvr__draw(view->points[point].key, view->candidates[home].replica))
                        home = i;
        return home;
}

static void plain_starved(struct kvr__view *view)
{
        double wait_s = 0, queue_s = 0;

        for (uint32_t i = 0; i < view->count; i++) {
                wait_s += view->candidates[i].wait_s;
                queue_s += view->candidates[i].queue * view->candidates[i].token_s;
        }
        for (uint32_t i = 0; view->starved >= 1e-3 && queue_s > 0 && i < view->count; i++) {
                struct kvr__candidate *c = &view->candidates[i];

                c->wait_s += view->starved * (c->queue * c->token_s * wait_s / queue_s - c->wait_s);
        }
}

static int by_size(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static void plain_newcomers(struct kvr__view *view)
{
        double figures[REPLICAS];
        uint32_t grown = 0, n = 0, met = 0;

        for (uint32_t i = 0; i < view->count; i++)
                grown += kvr__load_ramp(view->candidates[i].replica, view->now_ns) <= 0;
        if (!grown)
                return;
        for (uint32_t i = 0; i < view->count; i++)
                if (kvr__load_ramp(view->candidates[i].replica, view->now_ns) <= 0 &&
                    met++ % ((grown + 63) / 64) == 0)
                        figures[n++] = view->candidates[i].wait_s;
        qsort(figures, n, sizeof(*figures), by_size);
        for (uint32_t i = 0; i < view->count; i++)
                view->candidates[i].wait_s +=
                        kvr__load_ramp(view->candidates[i].replica, view->now_ns) * figures[n / 2];
}

/* Least cost, ties by work; then once more as if all of about that speed had just that one. */
static uint32_t plain_least(const struct kvr__view *view, double *ret_cost)
{
        struct kvr__least least = KVR__LEAST_NONE;

        for (uint32_t i = 0; i < view->count; i++)
                kvr__least_try(&least, i, view->candidates[i].cost_s, view->candidates[i].replica->work);
        double token_s = view->candidates[least.at].token_s;

        *ret_cost = least.figure;
        for (uint32_t i = 0; i < view->count; i++) {
                const struct kvr__candidate *c = &view->candidates[i];
                double ratio = token_s / c->token_s;
                bool alike = ratio >= 0.85 && ratio <= 1.15;

                if (alike || fabs(token_s - c->token_s) * view->prompt_tokens <= 0.01)
                        kvr__least_try(&least, i, (c->wait_s + c->own_s) * ratio + c->toll_s,
                                       c->replica->work);
        }
        return least.at;
}

/* Another copy of the shared beginning, if it has been missed enough. */
static uint32_t plain_copy(struct kvr__view *view, double toll_s, double cost_s, uint32_t chosen)
{
        const struct kvr__candidate *c = view->candidates;
        double costs[REPLICAS], price;
        uint32_t fork = view->fork_count, best = chosen, tokens;

        for (uint32_t f = 0; f < view->fork_count; f++)
                fork = view->forks[f].exits >= 4 ? f : fork;
        if (fork == view->fork_count)
                return chosen;
        tokens = view->tokens[view->forks[fork].point];
        if (c[chosen].match_tokens < tokens)
                return chosen;
        for (uint32_t i = 0; i < view->count; i++)
                costs[i] = c[i].wait_s + c[i].token_s * uncached(view, c[i].match_tokens, tokens) +
                           toll_s * uncached(view, c[i].match_tokens, tokens);
        costs[chosen] = cost_s;
        for (uint32_t i = 0; i < view->count; i++)
                best = c[i].match_tokens < tokens && costs[i] < costs[best] ? i : best;
        if (best == chosen)
                return chosen;
        price = c[best].cost_s - costs[best];
        view->regretted = fork;
        view->regret_s = view->forks[fork].regret_s + costs[chosen] - costs[best];
        if (view->regret_s * (1 - view->starved) < price)
                return chosen;
        view->regret_s = 0;
        view->candidates[best].due_tokens = tokens;
        view->candidates[best].own_s = c[best].token_s * uncached(view, c[best].match_tokens, tokens);
        view->candidates[best].toll_s = toll_s * uncached(view, c[best].match_tokens, tokens);
        view->candidates[best].cost_s = costs[best];
        return best;
}

static uint32_t plain_choose(struct kvr__view *view)
{
        struct plain plain = {0};
        double others = expm1(view->log_flight), cost_s, slack;
        uint32_t longest = 0;

        plain_trunk(view, &plain);
        view->home = plain_home(view, &plain);
        plain_starved(view);
        plain_newcomers(view);
        for (uint32_t i = 0; i < view->count; i++) {
                struct kvr__candidate *c = &view->candidates[i];
                bool hoped = i == view->home && c->match_tokens >= plain.allowed && c->replica->tells_cached;
                double hope = hoped ? 1 - view->home_yield : 1;

                c->due_tokens = c->match_tokens < plain.due ? plain.due : 0;
                c->own_s = c->token_s * uncached(view, c->match_tokens, plain.due) * hope;
                c->toll_s = others * view->token_s * uncached(view, c->match_tokens, plain.allowed) * hope;
                c->cost_s = c->wait_s + c->own_s + c->toll_s;
                longest = c->match_tokens > longest ? c->match_tokens : longest;
        }
        uint32_t chosen = plain_least(view, &cost_s),
                 copy = plain_copy(view, others * view->token_s, cost_s, chosen);

        if (copy != chosen)
                return copy;
        if (view->owner == view->count)
                return chosen;
        const struct kvr__candidate *owner = &view->candidates[view->owner];
        double rest = uncached(view, longest, 0);

        slack = uncached(view, owner->match_tokens, 0) >
                                uncached(view, view->candidates[chosen].match_tokens, 0) + 16
                        ? 1e-9
                        : 0.005;
        slack += rest > view->prompt_tokens / 2.0 ? 0.5 * owner->token_s * rest : 0;
        return owner->cost_s > cost_s + slack ? chosen : view->owner;
}

/* ---- at random ---- */

static void forks_draw(struct world *world, struct kvr__view *view)
{
        for (uint32_t point = 0; point < view->point_count; point++)
                if (draw(world, 4) == 0)
                        world->forks[view->fork_count++] =
                                (struct kvr__fork){point, chance(world) * 500, (double)draw(world, 12),
                                                   draw(world, 2) ? 0 : chance(world)};
        view->forks = world->forks;
}

static void candidates_draw(struct world *world, struct kvr__view *view)
{
        bool equal = draw(world, 2), idle = draw(world, 4) == 0, fresh = draw(world, 3) == 0;
        uint64_t rare = 1 + draw(world, 8);

        for (uint32_t i = view->count; i-- > 0;) {
                struct kvr__candidate *c = &world->candidates[i];

                *c = (struct kvr__candidate){.replica = world->replicas[i]};
                c->replica->work = (double)draw(world, 5) * 100;
                c->replica->tells_cached = draw(world, 2);
                c->replica->ready_since_ns =
                        view->now_ns - BRAIN_S(fresh && draw(world, 4) == 0 ? draw(world, 40) : 100);
                if (c->replica->ready_since_ns > view->newest_ns)
                        view->newest_ns = c->replica->ready_since_ns;
                c->token_s = equal ? 1e-4 : 1e-4 * (1 + chance(world) * (double)draw(world, 3));
                c->wait_s = idle ? 0 : (double)draw(world, 20) * (draw(world, 2) ? 0.1 : chance(world));
                c->queue = (double)draw(world, 10);
                view->token_s += c->token_s / view->count;
                if (!view->point_count || draw(world, rare))
                        continue;
                c->points = (uint32_t)draw(world, view->point_count + 1);
                c->match_tokens = c->points ? view->tokens[c->points - 1] : 0;
                if (draw(world, 10) == 0) /* not trusted */
                        c->match_tokens /= 2;
                if (!c->points)
                        continue;
                c->next = view->holders;
                view->holders = i + 1;
        }
        view->candidates = world->candidates;
}

static void view_draw(struct world *world, struct kvr__view *view)
{
        *view = (struct kvr__view){
                .count = 1 + (uint32_t)draw(world, draw(world, 3) ? 12 : REPLICAS),
                .point_count = (uint32_t)draw(world, POINTS),
                .tokens = world->tokens,
                .points = world->points,
                .seen = (double)draw(world, 5000),
                .log_flight = chance(world) * (double)draw(world, 4),
                .now_ns = BRAIN_S(1000),
                .starved = draw(world, 2) ? 0 : chance(world),
                .home_yield = draw(world, 2) ? 0 : chance(world),
        };
        view->span = 64.0 * view->count;
        view->prompt_tokens = view->point_count ? 0 : 256;
        for (uint32_t i = 0; i < view->point_count; i++) {
                view->prompt_tokens += 1 + (uint32_t)draw(world, 512);
                world->tokens[i] = view->prompt_tokens;
                world->points[i] = (struct kvr_point){.key = brain_random(&world->env), .end = i + 1};
        }
        forks_draw(world, view);
        candidates_draw(world, view);
        view->owner = draw(world, 3) ? view->count : (uint32_t)draw(world, view->count);
        view->home = view->count;
        view->regretted = view->fork_count;
}

static void it_chooses_what_the_plain_rule_chooses(void **state)
{
        static struct world world;
        uint32_t by_price = 0, due = 0, homes = 0, missed = 0, bought = 0;

        (void)state;
        world.env = (struct brain_env){.now_ns = BRAIN_S(1000), .random = 11};
        for (uint32_t i = 0; i < REPLICAS; i++) {
                char name[16];

                snprintf(name, sizeof(name), "r%u", i);
                world.replicas[i] = kvr__replica_new(name);
                assert_non_null(world.replicas[i]);
                world.replicas[i]->name_hash = brain_mix(i);
        }
        for (uint32_t round = 0; round < ROUNDS; round++) {
                struct kvr__view view, plain;

                view_draw(&world, &view);
                plain = view;
                memcpy(world.plain, world.candidates, sizeof(world.plain));
                plain.candidates = world.plain;
                uint32_t expected = plain_choose(&plain), chosen = kvr__choose_kv(&view);

                assert_int_equal(chosen, expected);
                assert_int_equal(view.home, plain.home);
                assert_int_equal(view.regretted, plain.regretted);
                assert_memory_equal(&view.regret_s, &plain.regret_s, sizeof(double));
                for (uint32_t i = 0; i < view.count; i++) {
                        const struct kvr__candidate *a = &world.candidates[i], *b = &world.plain[i];

                        assert_int_equal(a->due_tokens, b->due_tokens);
                        assert_memory_equal(&a->wait_s, &b->wait_s, sizeof(double));
                        assert_memory_equal(&a->own_s, &b->own_s, sizeof(double));
                        assert_memory_equal(&a->toll_s, &b->toll_s, sizeof(double));
                        assert_memory_equal(&a->cost_s, &b->cost_s, sizeof(double));
                }
                by_price += world.candidates[chosen].match_tokens == 0;
                due += world.candidates[chosen].due_tokens > 0;
                homes += chosen == view.home;
                missed += view.regret_s > 0;
                bought += view.regretted < view.fork_count && view.regret_s <= 0;
        }
        /* Or it would not have been tried. */
        assert_true(by_price > ROUNDS / 10 && by_price < ROUNDS * 9 / 10 && due > ROUNDS / 100 &&
                    homes > ROUNDS / 100 && missed > ROUNDS / 200 && bought > ROUNDS / 500);
        for (uint32_t i = 0; i < REPLICAS; i++)
                kvr__replica_free(world.replicas[i]);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(it_chooses_what_the_plain_rule_chooses),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
