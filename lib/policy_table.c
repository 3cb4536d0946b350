/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "policy.h"

static const struct kvr__policy policies[] = {
        {"kv", "soonest start, with what a recomputation costs those who wait (default)", kvr__choose_kv,
         false},
        {"round_robin", "each in turn", kvr__choose_round_robin, false},
        {"random", "any, with equal chance", kvr__choose_random, false},
        {"least_requests", "fewest requests in flight", kvr__choose_least_requests, false},
        {"least_tokens", "fewest uncached prompt tokens sent and not yet prefilled", kvr__choose_least_tokens,
         false},
        {"power_of_two", "the less busy of two random ones", kvr__choose_power_of_two, false},
        {"consistent_hash", "by session key or first part of the prompt, load at most 1.25 times the mean",
         kvr__choose_consistent_hash, true},
        {"longest_prefix", "longest match if it covers half of the prompt, else the shortest queue",
         kvr__choose_longest_prefix, false},
};

#define POLICY_COUNT (sizeof(policies) / sizeof(policies[0]))

size_t kvr_policy_count(void)
{
        return POLICY_COUNT;
}

const char *kvr_policy_name(size_t number)
{
        return number < POLICY_COUNT ? policies[number].name : NULL;
}

const char *kvr_policy_help(size_t number)
{
        return number < POLICY_COUNT ? policies[number].help : NULL;
}

const struct kvr__policy *kvr__policy_at(size_t number)
{
        return number < POLICY_COUNT ? &policies[number] : NULL;
}

const struct kvr__policy *kvr__policy_find(const char *name)
{
        for (size_t i = 0; i < POLICY_COUNT; i++)
                if (strcmp(policies[i].name, name) == 0)
                        return &policies[i];
        return NULL;
}
