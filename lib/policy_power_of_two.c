/* SPDX-License-Identifier: Apache-2.0 */
#include "policy.h"

uint32_t kvr__choose_power_of_two(struct kvr__view *view)
{
        uint64_t chance = view->env->random64(view->env->ctx);
        uint32_t a = (uint32_t)((chance & UINT32_MAX) % view->count);

        if (view->count == 1)
                return a;
        uint32_t b = (uint32_t)((a + 1 + (chance >> 32) % (view->count - 1)) % view->count);

        return view->candidates[b].replica->in_flight < view->candidates[a].replica->in_flight ? b : a;
}
