/* SPDX-License-Identifier: Apache-2.0 */
/* The small tables: pools, owners, models, tickets, and the sums behind load and speed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "brain_test.h"
#include "fleet.h"
#include "models.h"
#include "owners.h"
#include "pool.h"
#include "ticket.h"

static void assert_near(double a, double b, double off)
{
        if (!(fabs(a - b) <= off))
                fail_msg("%.12g is not %.12g", a, b);
}

/* ---- pools ---- */

static void pool_grows_to_its_budget(void **state)
{
        struct kvr__budget budget = {.bytes_max = 64 << 10, .bytes_main = 48 << 10};
        struct kvr__pool pool, vital;
        uint32_t count = 0, number;

        (void)state;
        assert_true(kvr__pool_init(&pool, &budget, 20, 4096, false));
        assert_true(kvr__pool_init(&vital, &budget, 16, 4096, true));
        while ((number = kvr__pool_take(&pool)) != 0) {
                assert_int_equal(number, ++count);
                memset(kvr__pool_at(&pool, number), 0xff, 20);
                assert_true(budget.bytes <= budget.bytes_main);
        }
        assert_in_range(count, 2000, (48 << 10) / 20);
        assert_false(kvr__pool_ready(&pool));
        /* Vital ones find room where ordinary ones no longer do. */
        assert_int_equal(kvr__pool_take(&vital), 1);
        while (kvr__pool_take(&vital))
                ;
        assert_in_range(budget.bytes, (60 << 10) - 4096, 64 << 10);
        /* The last one given back is the first to be used again. */
        kvr__pool_give(&pool, 7);
        kvr__pool_give(&pool, 9);
        assert_true(kvr__pool_ready(&pool));
        assert_int_equal(kvr__pool_take(&pool), 9);
        assert_int_equal(kvr__pool_take(&pool), 7);
        assert_int_equal(kvr__pool_take(&pool), 0);
        kvr__pool_fini(&pool);
        kvr__pool_fini(&vital);
}

/* ---- owners ---- */

static void owners_keep_the_latest(void **state)
{
        struct kvr__owners owners;

        (void)state;
        kvr__owners_init(&owners, 8);
        assert_null(kvr__owners_get(&owners, 1));
        for (uint64_t k = 1; k <= 8; k++)
                kvr__owners_put(&owners, k, 100 + k, k);
        /* Putting again makes it the latest. */
        kvr__owners_put(&owners, 1, 500, 9);
        kvr__owners_put(&owners, 9, 109, 10);
        assert_null(kvr__owners_get(&owners, 2));
        assert_int_equal(kvr__owners_get(&owners, 1)->replica, 500);
        assert_int_equal(kvr__owners_get(&owners, 1)->at_ns, 9);
        for (uint64_t k = 3; k <= 9; k++)
                assert_int_equal(kvr__owners_get(&owners, k)->replica, 100 + k);
        kvr__owners_fini(&owners);
        assert_null(kvr__owners_get(&owners, 1));
}

static void owners_agree_with_a_plain_list(void **state)
{
        enum { ROOM = 16, KEYS = 40 };
        struct kvr__owners owners;
        uint64_t put[KEYS] = {0}, value[KEYS] = {0}, random = 3;

        (void)state;
        kvr__owners_init(&owners, ROOM);
        for (uint64_t step = 1; step < 20000; step++) {
                uint64_t chance = brain_mix(random++), key = chance % KEYS;

                kvr__owners_put(&owners, key + 1000, chance, step);
                put[key] = step;
                value[key] = chance;
                for (uint64_t k = 0; k < KEYS; k++) {
                        uint32_t later = 0;

                        for (uint64_t other = 0; other < KEYS; other++)
                                later += put[other] > put[k];
                        const struct kvr__owner *owner = kvr__owners_get(&owners, k + 1000);

                        assert_int_equal(owner != NULL, put[k] && later < ROOM);
                        assert_true(!owner || owner->replica == value[k]);
                }
        }
        kvr__owners_fini(&owners);
}

/* ---- models ---- */

static void ratios_follow_the_text(void **state)
{
        static struct kvr__models models;

        (void)state;
        kvr__models_init(&models, 0.25);
        struct kvr__model *model = kvr__models_get(&models, 5);

        assert_near(kvr__model_ratio(&models, model), 0.25, 0);
        assert_near(kvr__model_ratio(&models, NULL), 0.25, 0);
        kvr__model_learn(model, 300, 1000);
        kvr__model_learn(model, 5000, 9000);
        assert_near(kvr__model_ratio(&models, model), 0.53, 1e-12);
        kvr__model_learn(model, 100000, 1000);
        kvr__model_learn(model, 1, 100000);
        kvr__model_learn(model, 7, 0);
        assert_near(kvr__model_ratio(&models, model), 0.53, 1e-12);
        /* Another kind of text takes over in time. */
        for (int i = 0; i < 200; i++)
                kvr__model_learn(model, 200000, 1000000);
        assert_near(kvr__model_ratio(&models, model), 0.2, 0.001);
        assert_ptr_equal(kvr__models_find(&models, 5), model);
        assert_null(kvr__models_find(&models, 6));
}

/* One engine that lies of one answer must not turn all hits away. */
static void answers_beyond_belief_count_little(void **state)
{
        static struct kvr__models models;

        (void)state;
        kvr__models_init(&models, 0.25);
        struct kvr__model *model = kvr__models_get(&models, 5);

        kvr__model_learn_length(model, 1e15);
        assert_near(model->answer_tokens, 4096, 0);
        model->answer_tokens = 200;
        kvr__model_learn_length(model, 1e15);
        assert_near(model->answer_tokens, 200 + 1400 / 128.0, 1e-9);
        for (int i = 0; i < 10000; i++)
                kvr__model_learn_length(model, 1e15);
        assert_near(model->answer_tokens, 131072, 0);
        for (int i = 0; i < 2000; i++)
                kvr__model_learn_length(model, 200);
        assert_near(model->answer_tokens, 200, 1);
}

static void the_model_used_longest_ago_makes_room(void **state)
{
        static struct kvr__models models;

        (void)state;
        kvr__models_init(&models, 0.25);
        for (uint64_t i = 0; i < 100000; i++) {
                kvr__models_get(&models, 77)->seen++;
                kvr__models_get(&models, brain_mix(i));
        }
        assert_int_equal(kvr__models_find(&models, 77)->seen, 100001);
        assert_non_null(kvr__models_find(&models, brain_mix(99999)));
        /* The key 0 is a key like any other. */
        kvr__models_get(&models, 0)->seen = 9;
        assert_int_equal(kvr__models_find(&models, 0)->seen, 9);
}

/* ---- tickets ---- */

static void tickets_come_back(void **state)
{
        struct kvr__tickets tickets = {0};
        static struct kvr_point points[KVR_POINTS_MAX];
        struct kvr_ticket *seen[100];

        (void)state;
        assert_null(kvr__tickets_take(&tickets));
        for (int i = 0; i < 100; i++) {
                seen[i] = kvr__tickets_take(&tickets);
                if (!seen[i]) {
                        struct kvr__ticket_slab *slab = kvr__ticket_slab_new();

                        assert_non_null(slab);
                        kvr__tickets_add(&tickets, slab);
                        seen[i] = kvr__tickets_take(&tickets);
                }
                for (int j = 0; j < i; j++)
                        assert_ptr_not_equal(seen[i], seen[j]);
                points[i].key = (uint64_t)i + 1;
                assert_true(
                        kvr__ticket_set_points(seen[i], points, i % 2 ? (uint32_t)i + 1 : KVR_POINTS_MAX));
                assert_int_equal(seen[i]->points[i].key, i + 1);
        }
        assert_int_equal(tickets.out, 100);
        for (int i = 0; i < 100; i++) {
                kvr__ticket_trim(seen[i]);
                assert_true(seen[i]->point_room <= KVR__TICKET_POINTS_KEPT);
                kvr__tickets_give(&tickets, seen[i]);
        }
        assert_int_equal(tickets.out, 0);
        assert_ptr_equal(kvr__tickets_take(&tickets), seen[99]);
        kvr__tickets_fini(&tickets);
}

/* ---- load ---- */

static void wait_is_tokens_less_what_must_be_done(void **state)
{
        struct kvr__replica *replica = kvr__replica_new("r");
        struct kvr_ticket a = {.booked_tokens = 1000, .sent_ns = BRAIN_S(10)};
        struct kvr_ticket b = {.booked_tokens = 500, .sent_ns = BRAIN_S(10)};
        const double token_s = 0.001;

        (void)state;
        kvr__load_book(replica, &a);
        kvr__load_book(replica, &b);
        /* Of prompts that are computed nothing but their tokens counts. */
        assert_near(kvr__load_wait(replica, token_s, BRAIN_S(10)), 1.5, 1e-9);
        assert_near(kvr__load_wait(replica, token_s, BRAIN_MS(10400)), 1.1, 1e-9);
        assert_near(kvr__load_wait(replica, token_s, BRAIN_S(11)), 0.5, 1e-9);
        /* Overdue: our figures are wrong, it counts again, but not more than before. */
        assert_near(kvr__load_wait(replica, token_s, BRAIN_MS(11200)), 0.7, 1e-9);
        assert_near(kvr__load_wait(replica, token_s, BRAIN_S(100)), 1.5, 1e-9);
        /* The second starts when the first is through. */
        assert_true(kvr__load_first_token(replica, &a, BRAIN_S(100)));
        assert_false(kvr__load_first_token(replica, &a, BRAIN_S(101)));
        assert_near(a.busy_s, 90, 1e-9);
        assert_near(kvr__load_wait(replica, token_s, BRAIN_MS(100100)), 0.4 + KVR__REQUEST_TOKENS * token_s,
                    1e-9);
        kvr__load_release(replica, &a);
        assert_true(kvr__load_first_token(replica, &b, BRAIN_MS(100500)));
        assert_near(b.busy_s, 0.5, 1e-9);
        assert_near(kvr__load_wait(replica, token_s, BRAIN_S(200)), KVR__REQUEST_TOKENS * token_s, 1e-9);
        kvr__load_release(replica, &b);
        assert_near(kvr__load_wait(replica, token_s, BRAIN_S(200)), 0, 0);
        assert_near(kvr__load_log_flight(replica, BRAIN_S(200)), 0, 0);
        kvr__replica_free(replica);
}

static void speed_is_a_mean_of_large_samples(void **state)
{
        struct kvr__curve curve = {0};
        struct kvr__speed speed = {0};

        (void)state;
        kvr__speed_learn(&curve, &speed, 10, 0, 100);
        kvr__speed_learn(&curve, &speed, 100, 0, 0);
        assert_near(kvr__speed_token_s(&curve, &speed), 0, 0);
        kvr__speed_learn(&curve, &speed, 1000, 0, 0.5);
        assert_near(kvr__speed_token_s(&curve, &speed), 0.0005, 1e-12);
        for (int i = 0; i < 5000; i++)
                kvr__speed_learn(&curve, &speed, 1000, 0, 0.1);
        assert_near(kvr__speed_token_s(&curve, &speed), 0.0001, 1e-6);
        /* An outlier counts as at most eight times the usual, and one alone proves little. */
        kvr__speed_learn(&curve, &speed, 1000, 0, 1000);
        assert_near(kvr__speed_token_s(&curve, &speed), 0.0001, 0.0001 * 8 / 128);
}

/*
 * Where time is nothing but uncached tokens, it is learned without a bias, although cached tokens rise with them
 * and could explain a part: waits are sums of many prompts, in which a bias does not average out.
 */
static void exact_times_are_learned_exactly(void **state)
{
        struct kvr__curve curve = {0};
        struct kvr__speed speed = {0};

        (void)state;
        for (uint64_t i = 0; i < 1000; i++) {
                double turn = (double)(brain_mix(i) % 1000), uncached = 500 + 20 * turn;
                double cached = 10 * turn + (double)(brain_mix(i + 5000) % 5000);

                kvr__speed_learn(&curve, &speed, uncached, cached, uncached * 0.0002);
        }
        assert_near(kvr__speed_token_s(&curve, &speed), 0.0002, 0.0002 * 0.005);
}

/* Equal replicas, one with long prompts and one with short ones, and one that is half as fast. */
static void overhead_is_no_slowness(void **state)
{
        struct kvr__curve curve = {0};
        struct kvr__speed speeds[3] = {{0}};

        (void)state;
        for (uint64_t i = 0; i < 2000; i++) {
                double chance = (double)(brain_mix(i) % 1000) / 1000;
                double sizes[3] = {4000 + 4000 * chance, 100 + 400 * chance, 1000 + 3000 * chance};

                for (int r = 0; r < 3; r++)
                        kvr__speed_learn(&curve, &speeds[r], sizes[r], 0,
                                         (0.05 + sizes[r] * 0.0001) * (r == 2 ? 2 : 1));
        }
        double token_s[3];

        for (int r = 0; r < 3; r++)
                token_s[r] = kvr__speed_token_s(&curve, &speeds[r]);
        assert_near(token_s[1] / token_s[0], 1, 0.25);
        assert_near(token_s[2] / token_s[0], 2, 0.35);
        assert_near(token_s[0], 0.0001, 0.000025);
        /* A constant time is all overhead: next to nothing per token, but the same for both. */
        struct kvr__curve flat = {0};
        struct kvr__speed a = {0}, b = {0};

        for (int i = 0; i < 100; i++) {
                kvr__speed_learn(&flat, &a, 5000 + i, 0, 0.1);
                kvr__speed_learn(&flat, &b, 100 + i, 0, 0.1);
        }
        assert_near(kvr__speed_token_s(&flat, &b) / kvr__speed_token_s(&flat, &a), 1, 0.2);
        assert_true(kvr__speed_token_s(&flat, &a) < 0.00001);
}

static double preble_70b_s(double uncached, double cached)
{
        return 0.0187 + 7.988e-5 * uncached + 2.685e-6 * cached + 7.443e-10 * uncached * cached;
}

/* Equal replicas, one with new prompts, one with the turns of long conversations; and one that is half as fast. */
static void context_is_no_slowness(void **state)
{
        struct kvr__curve curve = {0};
        struct kvr__speed fresh = {0}, deep = {0}, slow = {0};

        (void)state;
        for (uint64_t i = 0; i < 6000; i++) {
                double uncached = 300 + 0.9 * (double)(brain_mix(i) % 1000);
                double cached = 40000 + 80 * (double)(brain_mix(i + 7777) % 1000);
                bool new = brain_mix(i + 99999) % 2;

                kvr__speed_learn(&curve, &fresh, 10 * uncached, 0, preble_70b_s(10 * uncached, 0));
                kvr__speed_learn(&curve, &deep, uncached, cached, preble_70b_s(uncached, cached));
                if (new)
                        kvr__speed_learn(&curve, &slow, 10 * uncached, 0, 2 * preble_70b_s(10 * uncached, 0));
                else
                        kvr__speed_learn(&curve, &slow, uncached, cached, 2 * preble_70b_s(uncached, cached));
        }
        assert_near(kvr__speed_token_s(&curve, &deep) / kvr__speed_token_s(&curve, &fresh), 1, 0.1);
        assert_near(kvr__speed_token_s(&curve, &slow) / kvr__speed_token_s(&curve, &fresh), 2, 0.3);
        /* Behind the usual context. */
        assert_near(kvr__speed_token_s(&curve, &fresh), 7.988e-5 + 7.443e-10 * 40000, 2e-5);
}

/* Equal replicas whose first tokens come early and late by chance, as they do where requests share steps. */
static void chance_is_no_slowness(void **state)
{
        struct kvr__curve curve = {0};
        struct kvr__speed speeds[8] = {{0}};
        unsigned alike = 0, looks = 0;

        (void)state;
        for (uint64_t i = 0; i < 4000; i++) {
                for (uint64_t r = 0; r < 8; r++) {
                        double luck = (double)(brain_mix(i * 8 + r) % 1000) / 1000;

                        /* From a third to three times as long. */
                        kvr__speed_learn(&curve, &speeds[r], 2000, 0, 0.2 * pow(3, 2 * luck - 1));
                }
                for (uint64_t r = 1; i > 500 && r < 8; r++) {
                        double ratio = kvr__speed_token_s(&curve, &speeds[r]) /
                                       kvr__speed_token_s(&curve, &speeds[0]);

                        alike += fabs(ratio - 1) < 0.02;
                        looks++;
                }
        }
        assert_true(alike > looks * 85 / 100);
}

/*
 * A replica whose very first answer came late, for whatever reason, is not slow for it; one that stays slow is known to
 * be within its first dozen.
 */
static void a_slow_start_is_chance(void **state)
{
        (void)state;
        for (int stays = 0; stays < 2; stays++) {
                struct kvr__curve curve = {0};
                struct kvr__speed fast = {0}, late = {0};
                double ratio = 0, most = 0;

                for (int i = 0; i < 12; i++)
                        kvr__speed_learn(&curve, &fast, 2000, 0, 0.5);
                for (int i = 0; i < 12; i++) {
                        kvr__speed_learn(&curve, &fast, 2000, 0, 0.5);
                        kvr__speed_learn(&curve, &late, 2000, 0, i == 0 || stays ? 1.6 : 0.5);
                        ratio = kvr__speed_token_s(&curve, &late) / kvr__speed_token_s(&curve, &fast);
                        most = fmax(most, ratio);
                }
                assert_true(stays ? ratio > 2 : most < 1.2);
        }
}

static void ramp_begins_when_ready(void **state)
{
        struct kvr__replica *replica = kvr__replica_new("r");

        (void)state;
        kvr__replica_set_state(replica, KVR_READY, BRAIN_S(100));
        assert_near(kvr__load_ramp(replica, BRAIN_S(100)), 1, 0);
        assert_near(kvr__load_ramp(replica, BRAIN_S(115)), 0.5, 1e-9);
        assert_near(kvr__load_ramp(replica, BRAIN_S(130)), 0, 0);
        /* A breaker's trial and a drain that was taken back are no new life. */
        kvr__replica_set_state(replica, KVR_DRAINING, BRAIN_S(200));
        kvr__replica_set_state(replica, KVR_READY, BRAIN_S(201));
        assert_near(kvr__load_ramp(replica, BRAIN_S(201)), 0, 0);
        kvr__replica_set_state(replica, KVR_DOWN, BRAIN_S(300));
        kvr__replica_set_state(replica, KVR_TRIAL, BRAIN_S(310));
        kvr__replica_set_state(replica, KVR_READY, BRAIN_S(311));
        assert_near(kvr__load_ramp(replica, BRAIN_S(325)), 0.5, 1e-9);
        kvr__replica_free(replica);
}

static void recent_work_fades(void **state)
{
        struct kvr__fleet list;
        struct kvr__replica *a = kvr__replica_new("a"), *b = kvr__replica_new("b");

        (void)state;
        kvr__fleet_init(&list);
        assert_int_equal(kvr__fleet_add(&list, a), KVR_OK);
        assert_int_equal(kvr__fleet_add(&list, b), KVR_OK);
        kvr__fleet_work(&list, a, 10, BRAIN_S(1000));
        kvr__fleet_work(&list, b, 4, BRAIN_S(1060));
        assert_near(b->work / a->work, 0.4 * exp(1), 1e-9);
        /* Long after, the sums start anew without changing their order or their ratio. */
        kvr__fleet_work(&list, b, 0, BRAIN_S(10000));
        assert_near(b->work / a->work, 0.4 * exp(1), 1e-9);
        assert_true(a->work < 1e-30);
        kvr__fleet_work(&list, a, 1, BRAIN_S(10000));
        assert_near(a->work, 1, 1e-9);
        kvr__fleet_fini(&list);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(pool_grows_to_its_budget),
                cmocka_unit_test(owners_keep_the_latest),
                cmocka_unit_test(owners_agree_with_a_plain_list),
                cmocka_unit_test(ratios_follow_the_text),
                cmocka_unit_test(answers_beyond_belief_count_little),
                cmocka_unit_test(the_model_used_longest_ago_makes_room),
                cmocka_unit_test(tickets_come_back),
                cmocka_unit_test(wait_is_tokens_less_what_must_be_done),
                cmocka_unit_test(speed_is_a_mean_of_large_samples),
                cmocka_unit_test(exact_times_are_learned_exactly),
                cmocka_unit_test(overhead_is_no_slowness),
                cmocka_unit_test(context_is_no_slowness),
                cmocka_unit_test(chance_is_no_slowness),
                cmocka_unit_test(a_slow_start_is_chance),
                cmocka_unit_test(ramp_begins_when_ready),
                cmocka_unit_test(recent_work_fades),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
