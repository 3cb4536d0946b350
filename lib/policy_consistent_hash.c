/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rendezvous hashing with a bound on load: every replica draws a number from the key and its own name, and
 * the highest one that is not above 1.25 times the mean number of requests takes it. Replicas that come and
 * go move only their own keys.
 */
#include "policy.h"

#define LOAD_BOUND 1.25

uint32_t kvr__choose_consistent_hash(struct kvr__view *view)
{
        uint64_t key = view->affinity, best_draw = 0, flight = 1;
        uint32_t best = view->count;

        if (!key && view->point_count)
                key = view->points[view->point_count > 1].key;
        if (!key)
                return kvr__choose_least_requests(view);
        for (uint32_t i = 0; i < view->count; i++)
                flight += view->candidates[i].replica->in_flight;
        double bound = LOAD_BOUND * (double)flight / view->count;

        for (uint32_t i = 0; i < view->count; i++) {
                const struct kvr__replica *replica = view->candidates[i].replica;
                uint64_t number = kvr__draw(key, replica);

                /* At or below the mean is always allowed, or nobody might be. */
                if (replica->in_flight && replica->in_flight + 1 > bound)
                        continue;
                if (best == view->count || number > best_draw) {
                        best = i;
                        best_draw = number;
                }
        }
        return best < view->count ? best : kvr__choose_least_requests(view);
}
