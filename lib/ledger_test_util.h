/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the ledger: a fleet with a ledger, and look-ups by name. */
#ifndef KVROUTE_LIB_LEDGER_TEST_UTIL_H
#define KVROUTE_LIB_LEDGER_TEST_UTIL_H

#include "kvroute/ledger.h"

#include "brain_test.h"

struct ledger_fleet {
        struct brain_fleet brain;
        struct kvr_ledger *ledger;
        struct brain_prompt prompt;
};

static inline void ledger_fleet_up(struct ledger_fleet *fleet, const char *policy, uint32_t count,
                                   struct kvr_replica_spec spec, const struct kvr_ledger_settings *settings)
{
        struct kvr_settings router = {.policy = policy};

        brain_fleet_up(&fleet->brain, &router, count, spec);
        brain_must(kvr_ledger_new(settings, &fleet->ledger, NULL) == KVR_OK);
        kvr_router_set_ledger(fleet->brain.router, fleet->ledger);
}

static inline void ledger_fleet_down(struct ledger_fleet *fleet)
{
        kvr_router_free(fleet->brain.router);
        kvr_ledger_free(fleet->ledger);
}

static inline uint64_t ledger_now(const struct ledger_fleet *fleet)
{
        return fleet->brain.env.now_ns;
}

/* The account of that name; false when there is none. */
static inline bool ledger_find(const struct ledger_fleet *fleet, enum kvr_ledger_by by, const char *name,
                               struct kvr_ledger_account *ret)
{
        uint32_t cursor = 0;

        while (kvr_ledger_account(fleet->ledger, by, ledger_now(fleet), &cursor, ret))
                if (!strcmp(ret->name, name))
                        return true;
        return false;
}

static inline struct kvr_ledger_sums ledger_life(const struct ledger_fleet *fleet, enum kvr_ledger_by by,
                                                 const char *name)
{
        struct kvr_ledger_account account;

        brain_must(ledger_find(fleet, by, name, &account));
        return account.sums[KVR_LEDGER_LIFE];
}

/* Field by field, over all accounts of a kind. */
static inline struct kvr_ledger_sums ledger_total(const struct ledger_fleet *fleet, enum kvr_ledger_by by)
{
        struct kvr_ledger_account account;
        struct kvr_ledger_sums sums = {0};
        uint32_t cursor = 0;

        while (kvr_ledger_account(fleet->ledger, by, ledger_now(fleet), &cursor, &account)) {
#define LEDGER_ADD(name) sums.name += account.sums[KVR_LEDGER_LIFE].name;
                KVR_LEDGER_SUM_LIST(LEDGER_ADD)
#undef LEDGER_ADD
        }
        return sums;
}

#endif
