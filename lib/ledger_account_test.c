/* SPDX-License-Identifier: Apache-2.0 */
/* Windows against sums over a list of everything booked, the table of accounts, and spreads of known samples.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "brain_test.h"
#include "ledger_account.h"
#include "ledger_balance.h"

#define BOOKINGS 4000

struct booked {
        uint64_t at_ns, tokens;
};

static struct booked list[BOOKINGS];
static struct kvr__account account, other;

static void book(struct kvr__account *to, uint64_t at_ns, uint64_t tokens)
{
        struct kvr__booking booking = {
                .sums = {.requests = 1, .computed = 1, .prompt_tokens = tokens, .avoided_ns = 3},
                .computed = true,
                .shared_bucket = 2};

        kvr__account_book(to, &booking, at_ns);
}

/* Everything booked since the start of the step that lies `steps` before the current one. */
static struct kvr_ledger_sums sum_since(uint32_t count, uint64_t now_ns, uint64_t step_ns, uint64_t steps)
{
        struct kvr_ledger_sums sums = {0};
        uint64_t now = now_ns / step_ns, from = now > steps ? (now - steps) * step_ns : 0;

        for (uint32_t i = 0; i < count; i++) {
                if (list[i].at_ns < from)
                        continue;
                sums.requests++;
                sums.computed++;
                sums.prompt_tokens += list[i].tokens;
                sums.avoided_ns += 3;
        }
        return sums;
}

static void check(struct kvr__account *of, uint32_t count, uint64_t now_ns)
{
        struct kvr_ledger_account ret;
        struct kvr_ledger_sums expected[KVR_LEDGER_WINDOWS] = {
                sum_since(count, now_ns, 1, now_ns),
                sum_since(count, now_ns, BRAIN_S(5), 12),
                sum_since(count, now_ns, BRAIN_S(60), 10),
                sum_since(count, now_ns, BRAIN_S(300), 12),
        };

        kvr__account_read(of, now_ns, &ret);
        for (int w = 0; w < KVR_LEDGER_WINDOWS; w++)
                assert_memory_equal(&ret.sums[w], &expected[w], sizeof(expected[w]));
}

/* Gaps from nothing to more than the longest window. */
static uint64_t gap_ns(uint32_t i)
{
        uint64_t chance = brain_mix(i);

        return chance % 400 == 0  ? BRAIN_S(5000) + chance % BRAIN_S(900)
               : chance % 60 == 0 ? BRAIN_S(90) + chance % BRAIN_S(400)
               : chance % 10 == 0 ? chance % BRAIN_S(20)
                                  : chance % BRAIN_MS(900);
}

static void test_windows_are_exact(void **state)
{
        uint64_t now_ns = BRAIN_S(1000);

        (void)state;
        memset(&account, 0, sizeof(account));
        for (uint32_t i = 0; i < BOOKINGS; i++) {
                now_ns += gap_ns(i);
                list[i] = (struct booked){now_ns, brain_mix(i * 3 + 1) % 100000};
                book(&account, now_ns, list[i].tokens);
                if (i % 7 == 0) {
                        now_ns += gap_ns(i * 5 + 2) * (i % 2);
                        check(&account, i + 1, now_ns);
                }
        }
}

/* Two accounts folded are one account of all. */
static void test_fold(void **state)
{
        uint64_t now_ns = BRAIN_S(77);

        (void)state;
        memset(&account, 0, sizeof(account));
        memset(&other, 0, sizeof(other));
        for (uint32_t i = 0; i < 600; i++) {
                now_ns += gap_ns(i);
                list[i] = (struct booked){now_ns, i};
                book(brain_mix(i) % 3 ? &account : &other, now_ns, i);
                if (i % 97 == 96) {
                        kvr__account_fold(&account, &other, now_ns);
                        memset(&other, 0, sizeof(other));
                        check(&account, i + 1, now_ns);
                }
        }
        assert_int_equal(account.shared[2] + other.shared[2], 600);
}

static void test_covered(void **state)
{
        struct kvr_ledger_account ret;

        (void)state;
        memset(&account, 0, sizeof(account));
        kvr__account_read(&account, BRAIN_S(50), &ret);
        assert_true(ret.covered_s[KVR_LEDGER_LIFE] <= 0 && ret.last_ns == 0);
        book(&account, BRAIN_S(100), 5);
        kvr__account_read(&account, BRAIN_S(130), &ret);
        for (int w = 0; w < KVR_LEDGER_WINDOWS; w++)
                assert_true(fabs(ret.covered_s[w] - 30) < 1e-9);
        kvr__account_read(&account, BRAIN_S(100000) + BRAIN_S(3), &ret);
        assert_true(fabs(ret.covered_s[KVR_LEDGER_LIFE] - 99903) < 1e-9);
        assert_true(fabs(ret.covered_s[KVR_LEDGER_MINUTE] - 63) < 1e-9);
        assert_true(fabs(ret.covered_s[KVR_LEDGER_TEN_MINUTES] - 600 - 100003 % 60) < 1e-9);
        assert_true(fabs(ret.covered_s[KVR_LEDGER_HOUR] - 3600 - 100003 % 300) < 1e-9);
        assert_int_equal(ret.sums[KVR_LEDGER_HOUR].requests, 0);
        assert_int_equal(ret.sums[KVR_LEDGER_LIFE].requests, 1);
}

static void test_clock_that_goes_back(void **state)
{
        struct kvr_ledger_account ret;

        (void)state;
        memset(&account, 0, sizeof(account));
        book(&account, BRAIN_S(100), 5);
        book(&account, BRAIN_S(20), 7);
        kvr__account_read(&account, BRAIN_S(10), &ret);
        assert_int_equal(ret.sums[KVR_LEDGER_MINUTE].prompt_tokens, 12);
        assert_int_equal(ret.last_ns, BRAIN_S(100));
}

static void test_log_bucket(void **state)
{
        (void)state;
        assert_int_equal(kvr__log_bucket(0), 0);
        assert_int_equal(kvr__log_bucket(1), 1);
        assert_int_equal(kvr__log_bucket(2), 2);
        assert_int_equal(kvr__log_bucket(3), 2);
        assert_int_equal(kvr__log_bucket(4), 3);
        assert_int_equal(kvr__log_bucket(UINT64_MAX), KVR_LEDGER_LOG_BUCKETS - 1);
}

static void test_table(void **state)
{
        struct kvr__accounts accounts = {0};
        uint64_t bytes = 0, now_ns = BRAIN_S(1);

        (void)state;
        assert_true(kvr__accounts_init(&accounts, 8, &bytes));
        assert_true(bytes >= 8 * sizeof(struct kvr__account));
        assert_int_equal(kvr__accounts_make(&accounts, 0, brain_slice("x"), now_ns), KVR__ACCOUNT_NONE);
        /* Keys that fall on one place. */
        for (uint64_t i = 1; i <= 6; i++)
                assert_int_equal(kvr__accounts_make(&accounts, i << 32, brain_slice("name"), now_ns), i + 1);
        for (uint64_t i = 1; i <= 6; i++) {
                assert_int_equal(kvr__accounts_find(&accounts, i << 32), i + 1);
                book(&accounts.items[i + 1], now_ns + i, i);
        }
        /* Full, and all of them in use. */
        assert_int_equal(kvr__accounts_make(&accounts, 99, brain_slice("late"), now_ns), KVR__ACCOUNT_OTHER);
        assert_int_equal(kvr__accounts_find(&accounts, 99), KVR__ACCOUNT_OTHER);
        /* An hour later the one that was idle longest goes, and its figures stay. */
        assert_int_equal(kvr__accounts_make(&accounts, 99, brain_slice("late"), now_ns + BRAIN_S(3600) + 1),
                         2);
        assert_string_equal(accounts.items[2].name, "late");
        assert_int_equal(accounts.items[2].life.requests, 0);
        assert_int_equal(accounts.items[KVR__ACCOUNT_OTHER].life.prompt_tokens, 1);
        assert_int_equal(kvr__accounts_find(&accounts, 1ULL << 32), KVR__ACCOUNT_OTHER);
        for (uint64_t i = 2; i <= 6; i++)
                assert_int_equal(kvr__accounts_find(&accounts, i << 32), i + 1);
        kvr__accounts_fini(&accounts);
}

/* ---- balance ---- */

static struct kvr__balance balance;

static void test_spread(void **state)
{
        const uint64_t candidates[KVR__SLOT_WORDS] = {0xf, 0, 0, 0, 0, 0, 0, 1};
        struct kvr_ledger_balance ret;

        (void)state;
        memset(&balance, 0, sizeof(balance));
        kvr__balance_read(&balance, BRAIN_S(1), &ret);
        assert_true(ret.replicas == 0 && isnan(ret.requests.max_mean) && isnan(ret.requests.p95_max_mean));
        /* Five replicas with 4, 3, 2, 1 and no requests; tokens 10 times as many. */
        for (uint32_t slot = 0; slot < 4; slot++)
                for (uint32_t i = slot; i < 4; i++)
                        kvr__balance_book(&balance, slot, 10, candidates, BRAIN_S(1));
        kvr__balance_read(&balance, BRAIN_S(1), &ret);
        assert_int_equal(ret.replicas, 5);
        assert_true(fabs(ret.requests.max_mean - 2) < 1e-12);
        assert_true(fabs(ret.requests.cv - sqrt(2) / 2) < 1e-12);
        assert_true(fabs(ret.requests.jain - 1 / 1.5) < 1e-12);
        assert_true(fabs(ret.computed_tokens.jain - ret.requests.jain) < 1e-12);
        /* One goes: the others' spread. */
        kvr__balance_clear(&balance, 0);
        kvr__balance_read(&balance, BRAIN_S(1), &ret);
        assert_int_equal(ret.replicas, 4);
        assert_true(fabs(ret.requests.max_mean - 2) < 1e-12);
}

static void test_windows_of_ten_seconds(void **state)
{
        const uint64_t candidates[KVR__SLOT_WORDS] = {3};
        struct kvr_ledger_balance ret;

        (void)state;
        memset(&balance, 0, sizeof(balance));
        /* A hundred windows, each on one replica, then the other: even over life, as uneven as can be in
         * each. */
        for (uint64_t window = 0; window < 100; window++)
                for (uint32_t i = 0; i < 10; i++)
                        kvr__balance_book(&balance, window % 2, 7, candidates, window * KVR__BALANCE_NS + i);
        kvr__balance_read(&balance, 100 * KVR__BALANCE_NS, &ret);
        assert_int_equal(ret.windows, 100);
        assert_true(fabs(ret.requests.max_mean - 1) < 1e-12);
        assert_true(fabs(ret.requests.p95_max_mean - 2) < 1e-6);
        assert_true(fabs(ret.computed_tokens.p95_max_mean - 2) < 1e-6);
        /* Windows with few requests say nothing. */
        for (uint64_t window = 100; window < 200; window++)
                for (uint32_t i = 0; i < 2 * KVR__BALANCE_REQUESTS - 1; i++)
                        kvr__balance_book(&balance, i % 2, 7, candidates, window * KVR__BALANCE_NS + i);
        kvr__balance_read(&balance, 200 * KVR__BALANCE_NS, &ret);
        assert_int_equal(ret.windows, 100);
        /* After an hour they are forgotten: of 94 even and 6 uneven ones the p95 is uneven, of 96 and 4 it is
         * not. */
        for (uint64_t window = 1000; window < 1100; window++)
                for (uint32_t i = 0; i < 10; i++)
                        kvr__balance_book(&balance, window < 1006 ? 0 : i % 2, 7, candidates,
                                          window * KVR__BALANCE_NS + i);
        kvr__balance_read(&balance, 1100 * KVR__BALANCE_NS, &ret);
        assert_int_equal(ret.windows, 100);
        assert_true(fabs(ret.requests.p95_max_mean - 2) < 1e-6);
        for (uint64_t window = 1100; window < 1150; window++)
                for (uint32_t i = 0; i < 10; i++)
                        kvr__balance_book(&balance, i % 2, 7, candidates, window * KVR__BALANCE_NS + i);
        kvr__balance_read(&balance, 1150 * KVR__BALANCE_NS, &ret);
        assert_int_equal(ret.windows, 150);
        assert_true(fabs(ret.requests.p95_max_mean - 1) < 1e-6);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_windows_are_exact),
                cmocka_unit_test(test_fold),
                cmocka_unit_test(test_covered),
                cmocka_unit_test(test_clock_that_goes_back),
                cmocka_unit_test(test_log_bucket),
                cmocka_unit_test(test_table),
                cmocka_unit_test(test_spread),
                cmocka_unit_test(test_windows_of_ten_seconds),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
