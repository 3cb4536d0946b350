/* SPDX-License-Identifier: Apache-2.0 */
#include "token_ends.h"

#include <string.h>

/* Two lengths in a slot of the map, where others have blocks and tokens. */
#define PER_SLOT 2
#define SLOTS    (KVR__ENDS_MAX / PER_SLOT)

static uint64_t slot_key(const struct kvr__token_map *map, const struct kvr__ends_of *of, uint32_t number)
{
        /* The cell's name is the key of the point before it, which has a slot of its own. */
        return kvr__token_map_key(map, of->cell ^ (number + 1) * 0x9e3779b97f4a7c15ULL, of->block_tokens,
                                  of->model);
}

uint32_t kvr__token_ends_get(const struct kvr__token_map *map, const struct kvr__ends_of *of,
                             uint32_t ret_lengths[KVR__ENDS_MAX])
{
        uint32_t count = 0;

        for (uint32_t i = 0; i < SLOTS; i++) {
                struct kvr__mapped slot;

                if (!kvr__token_map_get(map, slot_key(map, of, i), &slot))
                        break;
                ret_lengths[count++] = slot.blocks;
                if (!slot.tokens)
                        break;
                ret_lengths[count++] = slot.tokens;
        }
        return count;
}

void kvr__token_ends_put(struct kvr__token_map *map, const struct kvr__ends_of *of, uint32_t length,
                         uint64_t place)
{
        uint32_t known[KVR__ENDS_MAX], lengths[KVR__ENDS_MAX] = {length}, kept = 1;
        uint32_t count = kvr__token_ends_get(map, of, known);

        for (uint32_t i = 0; i < count && kept < KVR__ENDS_MAX; i++)
                if (known[i] != length)
                        lengths[kept++] = known[i];
        for (uint32_t i = 0; i * PER_SLOT < kept; i++)
                kvr__token_map_put(map, slot_key(map, of, i),
                                   &(struct kvr__mapped){.place = place,
                                                         .blocks = lengths[i * PER_SLOT],
                                                         .tokens = lengths[i * PER_SLOT + 1]});
}
