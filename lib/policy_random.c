/* SPDX-License-Identifier: Apache-2.0 */
#include "policy.h"

uint32_t kvr__choose_random(struct kvr__view *view)
{
        return (uint32_t)(view->env->random64(view->env->ctx) % view->count);
}
