/* SPDX-License-Identifier: Apache-2.0 */
/* What the ledger tells. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ledger_int.h"

const char *kvr_ledger_by_name(enum kvr_ledger_by by)
{
        switch (by) {
        case KVR_LEDGER_ALL:
                return "all";
        case KVR_LEDGER_WORKLOAD:
                return "workload";
        case KVR_LEDGER_FAMILY:
                return "family";
        case KVR_LEDGER_MODEL:
                return "model";
        case KVR_LEDGER_REPLICA:
                return "replica";
        case KVR_LEDGER_VIRTUAL:
                return "virtual";
        }
        return "unknown";
}

static double share(uint64_t part, uint64_t whole)
{
        return whole ? (double)part / (double)whole : NAN;
}

double kvr_ledger_hit_tokens(const struct kvr_ledger_sums *sums)
{
        return share(sums->observed_tokens, sums->prompt_tokens - sums->unobserved_prompt_tokens);
}

double kvr_ledger_hit_blocks(const struct kvr_ledger_sums *sums)
{
        return share(sums->hit_blocks, sums->prompt_blocks);
}

double kvr_ledger_hit_requests(const struct kvr_ledger_sums *sums)
{
        return share(sums->hit_requests, sums->observed);
}

/* ---- accounts ---- */

/* How many places there are to look at; some are empty. */
static uint32_t places(const struct kvr_ledger *ledger, enum kvr_ledger_by by)
{
        switch (by) {
        case KVR_LEDGER_ALL:
                return 1;
        case KVR_LEDGER_WORKLOAD:
                return ledger->workloads.count;
        case KVR_LEDGER_FAMILY:
                return ledger->families.accounts.count;
        case KVR_LEDGER_MODEL:
                return ledger->models.count;
        case KVR_LEDGER_REPLICA:
                return KVR_LEDGER_REPLICAS_MAX + 1;
        case KVR_LEDGER_VIRTUAL:
                return ledger->virtuals ? KVR__VIRTUALS : 0;
        }
        return 0;
}

static struct kvr__account *account_at(struct kvr_ledger *ledger, enum kvr_ledger_by by, uint32_t at)
{
        switch (by) {
        case KVR_LEDGER_WORKLOAD:
                return &ledger->workloads.items[at];
        case KVR_LEDGER_FAMILY:
                return &ledger->families.accounts.items[at];
        case KVR_LEDGER_MODEL:
                return &ledger->models.items[at];
        case KVR_LEDGER_REPLICA:
                return at < KVR_LEDGER_REPLICAS_MAX ? &ledger->replicas[at] : &ledger->others;
        case KVR_LEDGER_VIRTUAL:
                return &ledger->virtuals->fleets[at].account;
        default:
                return &ledger->all;
        }
}

static bool is_listed(const struct kvr_ledger *ledger, enum kvr_ledger_by by, uint32_t at,
                      const struct kvr__account *account)
{
        if (by == KVR_LEDGER_ALL || by == KVR_LEDGER_VIRTUAL || account->life.requests)
                return true;
        return by == KVR_LEDGER_REPLICA && at < KVR_LEDGER_REPLICAS_MAX && kvr__ledger_present(ledger, at);
}

bool kvr_ledger_account(struct kvr_ledger *ledger, enum kvr_ledger_by by, uint64_t now_ns, uint32_t *cursor,
                        struct kvr_ledger_account *ret)
{
        bool found = false;

        kvr__ledger_lock(ledger);
        for (uint32_t count = places(ledger, by); !found && *cursor < count; (*cursor)++) {
                struct kvr__account *account = account_at(ledger, by, *cursor);

                if (!is_listed(ledger, by, *cursor, account))
                        continue;
                found = true;
                kvr__account_read(account, now_ns, ret);
                if (by == KVR_LEDGER_FAMILY && *cursor >= KVR__ACCOUNT_OWN)
                        ret->family_tokens = ledger->families.families[*cursor].shared_tokens;
                if (by == KVR_LEDGER_REPLICA && *cursor < KVR_LEDGER_REPLICAS_MAX) {
                        ret->replica = ledger->slots[*cursor].id;
                        ret->present = kvr__ledger_present(ledger, *cursor);
                }
        }
        kvr__ledger_unlock(ledger);
        return found;
}

/* ---- the rest ---- */

enum kvr_status kvr_ledger_balance(struct kvr_ledger *ledger, const char *name, uint64_t now_ns,
                                   struct kvr_ledger_balance *ret)
{
        struct kvr__balance *balance = name ? NULL : &ledger->balance;

        for (uint32_t i = 0; name && ledger->virtuals && i < KVR__VIRTUALS; i++)
                if (strcmp(name, kvr__virtual_name(i)) == 0)
                        balance = &ledger->virtuals->fleets[i].balance;
        if (!balance)
                return KVR_E_NOT_FOUND;
        kvr__ledger_lock(ledger);
        kvr__balance_read(balance, now_ns, ret);
        kvr__ledger_unlock(ledger);
        return KVR_OK;
}

void kvr_ledger_curve(struct kvr_ledger *ledger, enum kvr_ledger_window window, uint64_t now_ns,
                      struct kvr_ledger_curve *ret)
{
        kvr__ledger_lock(ledger);
        kvr__stack_read(ledger->stack, window != KVR_LEDGER_LIFE, now_ns, ret);
        kvr__ledger_unlock(ledger);
}

static int spoiler_compare(const void *a, const void *b)
{
        const struct kvr__spoiler *x = a, *y = b;

        if (x->count != y->count)
                return x->count < y->count ? 1 : -1;
        return x->last_ns < y->last_ns ? 1 : x->last_ns > y->last_ns ? -1 : 0;
}

size_t kvr_ledger_spoilers(struct kvr_ledger *ledger, struct kvr_ledger_spoiler *ret, size_t max)
{
        struct kvr__spoiler found[KVR_LEDGER_SPOILERS_MAX] = {0};
        size_t count = 0;

        kvr__ledger_lock(ledger);
        for (uint32_t i = 0; i < KVR_LEDGER_SPOILERS_MAX; i++)
                if (ledger->spoilers.places[i].count >= KVR_LEDGER_SPOILER_COUNT)
                        found[count++] = ledger->spoilers.places[i];
        qsort(found, count, sizeof(*found), spoiler_compare);
        for (size_t i = 0; i < count && i < max; i++) {
                const struct kvr__accounts *accounts = &ledger->families.accounts;

                ret[i] = (struct kvr_ledger_spoiler){
                        .unit = found[i].by_tokens ? KVR_UNIT_TOKENS : KVR_UNIT_BYTES,
                        .from = found[i].from,
                        .to = found[i].to,
                        .count = found[i].count,
                        .tokens = found[i].tokens,
                        .last_ns = found[i].last_ns,
                };
                memcpy(ret[i].family, accounts->items[kvr__accounts_find(accounts, found[i].family)].name,
                       sizeof(ret[i].family));
        }
        kvr__ledger_unlock(ledger);
        return count;
}

void kvr_ledger_info(struct kvr_ledger *ledger, struct kvr_ledger_info *ret)
{
        kvr__ledger_lock(ledger);
        *ret = (struct kvr_ledger_info){
                .bytes = ledger->bytes,
                .entries = ledger->entries,
                .families_given_up = ledger->families.given_up,
                .counterfactual = ledger->virtuals != NULL,
                .detail_paused = ledger->pause.paused,
                .detail_left_out = ledger->pause.left_out,
        };
        for (uint32_t i = KVR__ACCOUNT_OWN; i < ledger->families.accounts.count; i++)
                ret->families += ledger->families.accounts.items[i].key != 0;
        for (uint32_t i = 0; ledger->virtuals && i < KVR__VIRTUALS; i++) {
                ret->virtual_runs[i] = ledger->virtuals->fleets[i].count;
                ret->virtual_crowded[i] = ledger->virtuals->fleets[i].crowded;
                ret->virtual_runs_max = ledger->virtuals->fleets[i].mask + 1ULL;
        }
        kvr__ledger_unlock(ledger);
}
