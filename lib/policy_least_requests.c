/* SPDX-License-Identifier: Apache-2.0 */
#include "policy.h"

uint32_t kvr__choose_least_requests(struct kvr__view *view)
{
        struct kvr__least least = KVR__LEAST_NONE;

        for (uint32_t i = 0; i < view->count; i++) {
                const struct kvr__replica *replica = view->candidates[i].replica;

                kvr__least_try(&least, i, replica->in_flight, replica->work);
        }
        return least.at;
}
