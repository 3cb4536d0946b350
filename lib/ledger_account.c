/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger_account.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define IDLE_NS       3600000000000ULL /* an account unused for so long may be given up for a new name */
#define LOAD_RECIPROC 4                /* places per account */

/* Sums are whole numbers of one size and nothing else. */
static void sums_add(struct kvr_ledger_sums *restrict sums, const struct kvr_ledger_sums *restrict more)
{
        uint64_t *restrict to = (uint64_t *)sums;
        const uint64_t *restrict from = (const uint64_t *)more;

        for (size_t i = 0; i < KVR_LEDGER_SUMS; i++)
                to[i] += from[i];
}

uint32_t kvr__log_bucket(uint64_t figure)
{
        uint32_t bits = figure ? 64 - (uint32_t)__builtin_clzll(figure) : 0;

        return bits < KVR_LEDGER_LOG_BUCKETS ? bits : KVR_LEDGER_LOG_BUCKETS - 1;
}

/* ---- buckets ---- */

static struct kvr_ledger_sums *bucket(struct kvr__bucket *slots, uint32_t count, uint64_t number)
{
        struct kvr__bucket *slot = &slots[number % count];

        if (slot->stamp != number + 1) {
                slot->stamp = number + 1;
                slot->sums = (struct kvr_ledger_sums){0};
        }
        return &slot->sums;
}

/* The current fine bucket; ended ones go into the coarser ones. Time that runs backwards stands still. */
static struct kvr_ledger_sums *current(struct kvr__account *account, uint64_t now_ns)
{
        uint64_t fine = now_ns / KVR__FINE_NS;

        if (fine > account->fine) {
                const struct kvr__bucket *ended = &account->fines[account->fine % KVR__FINE_SLOTS];
                uint64_t at_ns = account->fine * KVR__FINE_NS;

                if (ended->stamp == account->fine + 1) {
                        sums_add(bucket(account->middles, KVR__MIDDLE_SLOTS, at_ns / KVR__MIDDLE_NS),
                                 &ended->sums);
                        sums_add(bucket(account->coarses, KVR__COARSE_SLOTS, at_ns / KVR__COARSE_NS),
                                 &ended->sums);
                }
                account->fine = fine;
        }
        return bucket(account->fines, KVR__FINE_SLOTS, account->fine);
}

/* All of the last `count` intervals, the current one included. */
static void window_sum(const struct kvr__bucket *slots, uint32_t count, uint64_t number,
                       struct kvr_ledger_sums *sums)
{
        for (uint32_t i = 0; i < count; i++)
                if (slots[i].stamp && slots[i].stamp + count > number + 1)
                        sums_add(sums, &slots[i].sums);
}

void kvr__account_book(struct kvr__account *account, const struct kvr__booking *booking, uint64_t now_ns)
{
        sums_add(current(account, now_ns), &booking->sums);
        sums_add(&account->life, &booking->sums);
        if (!account->last_ns)
                account->first_ns = now_ns;
        if (now_ns > account->last_ns)
                account->last_ns = now_ns;
        if (!booking->computed)
                return;
        account->shared[booking->shared_bucket]++;
        if (booking->reuse_known)
                account->reuse[booking->reuse_bucket]++;
        else
                account->reuse_unknown += booking->shared_bucket > 0;
}

static void slots_fold(struct kvr__bucket *slots, const struct kvr__bucket *from, uint32_t count)
{
        for (uint32_t i = 0; i < count; i++) {
                if (from[i].stamp < slots[i].stamp || !from[i].stamp)
                        continue;
                if (from[i].stamp > slots[i].stamp)
                        slots[i] = from[i];
                else
                        sums_add(&slots[i].sums, &from[i].sums);
        }
}

void kvr__account_fold(struct kvr__account *account, struct kvr__account *from, uint64_t now_ns)
{
        uint64_t latest = account->fine > from->fine ? account->fine : from->fine;

        if (!from->last_ns)
                return;
        /* Both to one interval, so that what ended for one has ended for the other. */
        if (now_ns < latest * KVR__FINE_NS)
                now_ns = latest * KVR__FINE_NS;
        current(account, now_ns);
        current(from, now_ns);
        slots_fold(account->fines, from->fines, KVR__FINE_SLOTS);
        slots_fold(account->middles, from->middles, KVR__MIDDLE_SLOTS);
        slots_fold(account->coarses, from->coarses, KVR__COARSE_SLOTS);
        sums_add(&account->life, &from->life);
        for (uint32_t i = 0; i < KVR_LEDGER_LOG_BUCKETS; i++) {
                account->shared[i] += from->shared[i];
                account->reuse[i] += from->reuse[i];
        }
        account->reuse_unknown += from->reuse_unknown;
        if (!account->last_ns || from->first_ns < account->first_ns)
                account->first_ns = from->first_ns;
        if (from->last_ns > account->last_ns)
                account->last_ns = from->last_ns;
}

static double covered_s(const struct kvr__account *account, uint64_t now_ns, uint64_t window_ns,
                        uint64_t step_ns)
{
        uint64_t life_ns = account->last_ns && now_ns > account->first_ns ? now_ns - account->first_ns : 0;
        uint64_t window = window_ns + now_ns % step_ns;

        return (double)(window < life_ns ? window : life_ns) / 1e9;
}

void kvr__account_read(struct kvr__account *account, uint64_t now_ns, struct kvr_ledger_account *ret)
{
        *ret = (struct kvr_ledger_account){.last_ns = account->last_ns, .family_tokens = NAN};
        memcpy(ret->name, account->name, sizeof(ret->name));
        memcpy(ret->shared_tokens, account->shared, sizeof(ret->shared_tokens));
        memcpy(ret->reuse_ms, account->reuse, sizeof(ret->reuse_ms));
        ret->reuse_unknown = account->reuse_unknown;
        if (now_ns < account->last_ns)
                now_ns = account->last_ns;
        /* What is still in the fine bucket belongs to the coarser windows too. */
        const struct kvr_ledger_sums running = *current(account, now_ns);

        ret->sums[KVR_LEDGER_LIFE] = account->life;
        window_sum(account->fines, KVR__FINE_SLOTS, account->fine, &ret->sums[KVR_LEDGER_MINUTE]);
        window_sum(account->middles, KVR__MIDDLE_SLOTS, now_ns / KVR__MIDDLE_NS,
                   &ret->sums[KVR_LEDGER_TEN_MINUTES]);
        window_sum(account->coarses, KVR__COARSE_SLOTS, now_ns / KVR__COARSE_NS, &ret->sums[KVR_LEDGER_HOUR]);
        sums_add(&ret->sums[KVR_LEDGER_TEN_MINUTES], &running);
        sums_add(&ret->sums[KVR_LEDGER_HOUR], &running);
        ret->covered_s[KVR_LEDGER_LIFE] = covered_s(account, now_ns, UINT64_MAX / 2, 1);
        ret->covered_s[KVR_LEDGER_MINUTE] =
                covered_s(account, now_ns, (KVR__FINE_SLOTS - 1) * KVR__FINE_NS, KVR__FINE_NS);
        ret->covered_s[KVR_LEDGER_TEN_MINUTES] =
                covered_s(account, now_ns, (KVR__MIDDLE_SLOTS - 1) * KVR__MIDDLE_NS, KVR__MIDDLE_NS);
        ret->covered_s[KVR_LEDGER_HOUR] =
                covered_s(account, now_ns, (KVR__COARSE_SLOTS - 1) * KVR__COARSE_NS, KVR__COARSE_NS);
}

/* ---- accounts by key ---- */

static void account_open(struct kvr__account *account, uint64_t key, struct kvr_slice name)
{
        size_t len = name.len < KVR_NAME_MAX - 1 ? name.len : KVR_NAME_MAX - 1;

        memset(account, 0, sizeof(*account));
        account->key = key;
        if (len)
                memcpy(account->name, name.data, len);
}

static void place(struct kvr__accounts *accounts, uint32_t number)
{
        uint32_t at = (uint32_t)accounts->items[number].key & accounts->mask;

        while (accounts->places[at])
                at = (at + 1) & accounts->mask;
        accounts->places[at] = (uint16_t)number;
}

bool kvr__accounts_init(struct kvr__accounts *accounts, uint32_t max, uint64_t *bytes)
{
        uint32_t places = 1;

        while (places < max * LOAD_RECIPROC)
                places *= 2;
        accounts->items = calloc(max, sizeof(*accounts->items));
        accounts->places = calloc(places, sizeof(*accounts->places));
        if (!accounts->items || !accounts->places)
                return false;
        *bytes += max * sizeof(*accounts->items) + places * sizeof(*accounts->places);
        accounts->max = max;
        accounts->mask = places - 1;
        accounts->count = KVR__ACCOUNT_OWN;
        account_open(&accounts->items[KVR__ACCOUNT_NONE], 0, (struct kvr_slice){"(none)", 6});
        account_open(&accounts->items[KVR__ACCOUNT_OTHER], 0, (struct kvr_slice){"(other)", 7});
        return true;
}

void kvr__accounts_fini(struct kvr__accounts *accounts)
{
        free(accounts->items);
        free(accounts->places);
}

uint32_t kvr__accounts_find(const struct kvr__accounts *accounts, uint64_t key)
{
        if (!key)
                return KVR__ACCOUNT_NONE;
        for (uint32_t at = (uint32_t)key & accounts->mask; accounts->places[at];
             at = (at + 1) & accounts->mask)
                if (accounts->items[accounts->places[at]].key == key)
                        return accounts->places[at];
        return KVR__ACCOUNT_OTHER;
}

void kvr__accounts_replace(struct kvr__accounts *accounts, uint32_t number, uint64_t key,
                           struct kvr_slice name, uint64_t now_ns)
{
        kvr__account_fold(&accounts->items[KVR__ACCOUNT_OTHER], &accounts->items[number], now_ns);
        account_open(&accounts->items[number], key, name);
        memset(accounts->places, 0, (accounts->mask + 1) * sizeof(*accounts->places));
        for (uint32_t i = KVR__ACCOUNT_OWN; i < accounts->count; i++)
                if (accounts->items[i].key)
                        place(accounts, i);
}

uint32_t kvr__accounts_make(struct kvr__accounts *accounts, uint64_t key, struct kvr_slice name,
                            uint64_t now_ns)
{
        uint32_t number = kvr__accounts_find(accounts, key), oldest = KVR__ACCOUNT_OWN;

        if (number != KVR__ACCOUNT_OTHER)
                return number;
        if (accounts->count < accounts->max) {
                number = accounts->count++;
                account_open(&accounts->items[number], key, name);
                /* It counts as used from the start: its first booking is still to come. */
                accounts->items[number].last_ns = accounts->items[number].first_ns = now_ns;
                place(accounts, number);
                return number;
        }
        for (uint32_t i = KVR__ACCOUNT_OWN; i < accounts->count; i++)
                if (accounts->items[i].last_ns < accounts->items[oldest].last_ns)
                        oldest = i;
        if (accounts->items[oldest].last_ns + IDLE_NS > now_ns)
                return KVR__ACCOUNT_OTHER;
        kvr__accounts_replace(accounts, oldest, key, name, now_ns);
        accounts->items[oldest].last_ns = accounts->items[oldest].first_ns = now_ns;
        return oldest;
}
