/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the ledger: a cache of prefixes that is played out, as plain as can be. */
#ifndef KVROUTE_LIB_LEDGER_PLAYED_TEST_H
#define KVROUTE_LIB_LEDGER_PLAYED_TEST_H

#include "brain_test.h"

#define PLAYED_KEYS (1U << 18)

/* A cache of prefixes, as plain as can be: an order of use with numbers that rise, the least one goes. */
struct played {
        uint64_t capacity, held;
        uint64_t hits, tokens;
        uint32_t count;
        uint64_t keys[PLAYED_KEYS]; /* open addressing; dropped ones stay as places */
        uint32_t weights[PLAYED_KEYS];
        bool inside[PLAYED_KEYS];
        uint32_t older[PLAYED_KEYS], newer[PLAYED_KEYS]; /* place plus one */
        uint32_t oldest, newest;
};

static inline uint32_t played_place(struct played *cache, uint64_t key)
{
        uint32_t at = (uint32_t)brain_mix(key) & (PLAYED_KEYS - 1);

        while (cache->keys[at] && cache->keys[at] != key)
                at = (at + 1) & (PLAYED_KEYS - 1);
        if (!cache->keys[at]) {
                brain_must(++cache->count < PLAYED_KEYS * 3 / 4);
                cache->keys[at] = key;
        }
        return at;
}

static inline void played_unlink(struct played *cache, uint32_t at)
{
        uint32_t older = cache->older[at], newer = cache->newer[at];

        *(older ? &cache->newer[older - 1] : &cache->oldest) = newer;
        *(newer ? &cache->older[newer - 1] : &cache->newest) = older;
        cache->inside[at] = false;
        cache->held -= cache->weights[at];
}

/* Returns the leading points that it had. */
static inline uint32_t played_use(struct played *cache, const struct kvr_point *points, uint32_t count)
{
        uint32_t had = 0;

        while (had < count && cache->inside[played_place(cache, points[had].key)])
                had++;
        cache->tokens += points[count - 1].end;
        cache->hits += had ? points[had - 1].end : 0;
        for (uint32_t i = count; i-- > 0;) {
                uint32_t at = played_place(cache, points[i].key);

                if (cache->inside[at])
                        played_unlink(cache, at);
                cache->weights[at] = points[i].end - (i ? points[i - 1].end : 0);
                cache->older[at] = cache->newest;
                cache->newer[at] = 0;
                *(cache->newest ? &cache->newer[cache->newest - 1] : &cache->oldest) = at + 1;
                cache->newest = at + 1;
                cache->inside[at] = true;
                cache->held += cache->weights[at];
        }
        while (cache->held > cache->capacity)
                played_unlink(cache, cache->oldest - 1);
        return had;
}

#endif
