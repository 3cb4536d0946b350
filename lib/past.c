/* SPDX-License-Identifier: Apache-2.0 */
#include "past.h"

/* Keys are hashes: three of their bits draw one point in eight, others give place and mark. */
#define SAMPLED(key) ((key) >> 61 == 0)
#define PLACE(key)   ((uint32_t)((key) >> 32) % KVR__PAST_PLACES)
#define MARK(key)    ((uint32_t)(key) | 1)

void kvr__past_pass(struct kvr__past *past, struct kvr__loss *loss, double keep,
                    const struct kvr_point *points, const uint32_t *tokens, uint32_t count, uint32_t held)
{
        uint64_t asked = 0, lost = 0;

        for (uint32_t i = 0; i < count; i++) {
                uint64_t key = points[i].key;

                if (!SAMPLED(key))
                        continue;
                uint32_t *mark = &past->marks[PLACE(key)], size = tokens[i] - (i ? tokens[i - 1] : 0);

                asked += size;
                if (i >= held && *mark == MARK(key))
                        lost += size;
                *mark = MARK(key);
        }
        loss->asked = loss->asked * keep + (double)asked;
        loss->lost = loss->lost * keep + (double)lost;
}

double kvr__loss_starved(const struct kvr__loss *loss)
{
        double lost = loss->lost, rest = loss->asked - loss->lost;

        return lost > 0 ? lost * lost / (lost * lost + rest * rest) : 0;
}
