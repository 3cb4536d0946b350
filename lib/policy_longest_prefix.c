/* SPDX-License-Identifier: Apache-2.0 */
/* The longest match if it covers half of the prompt, else the least wait; equal matches go to the least wait
 * too. */
#include "policy.h"

uint32_t kvr__choose_longest_prefix(struct kvr__view *view)
{
        struct kvr__least least = KVR__LEAST_NONE;
        uint32_t longest = 0;

        for (uint32_t i = 0; i < view->count; i++)
                if (view->candidates[i].match_tokens > longest)
                        longest = view->candidates[i].match_tokens;
        if (longest < view->prompt_tokens / 2.0)
                longest = 0;
        for (uint32_t i = 0; i < view->count; i++) {
                const struct kvr__candidate *candidate = &view->candidates[i];

                if (candidate->match_tokens >= longest)
                        kvr__least_try(&least, i, candidate->wait_s, candidate->replica->work);
        }
        return least.at;
}
