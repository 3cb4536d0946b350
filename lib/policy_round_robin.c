/* SPDX-License-Identifier: Apache-2.0 */
#include "policy.h"

uint32_t kvr__choose_round_robin(struct kvr__view *view)
{
        return (uint32_t)(view->state->turn++ % view->count);
}
