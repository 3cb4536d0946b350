/* SPDX-License-Identifier: Apache-2.0 */
#include "owners.h"

#include <stdlib.h>

/* Numbers are stored plus one: zeroed memory is an empty table. */

void kvr__owners_init(struct kvr__owners *owners, uint32_t room)
{
        *owners = (struct kvr__owners){.room = room};
}

void kvr__owners_fini(struct kvr__owners *owners)
{
        free(owners->entries);
        free(owners->buckets);
        *owners = (struct kvr__owners){.room = owners->room};
}

static uint32_t *bucket_of(const struct kvr__owners *owners, uint64_t key)
{
        return &owners->buckets[((key * 0x9e3779b97f4a7c15ULL) >> 32) & (owners->room - 1)];
}

static uint32_t entry_find(const struct kvr__owners *owners, uint64_t key)
{
        if (!owners->entries)
                return 0;
        uint32_t at = *bucket_of(owners, key);

        while (at && owners->entries[at - 1].key != key)
                at = owners->entries[at - 1].chain;
        return at;
}

static void order_unlink(struct kvr__owners *owners, const struct kvr__owner *entry)
{
        if (entry->prev)
                owners->entries[entry->prev - 1].next = entry->next;
        else
                owners->head = entry->next;
        if (entry->next)
                owners->entries[entry->next - 1].prev = entry->prev;
        else
                owners->tail = entry->prev;
}

static void order_push(struct kvr__owners *owners, uint32_t at)
{
        struct kvr__owner *entry = &owners->entries[at - 1];

        entry->prev = 0;
        entry->next = owners->head;
        if (owners->head)
                owners->entries[owners->head - 1].prev = at;
        else
                owners->tail = at;
        owners->head = at;
}

static uint32_t oldest_take(struct kvr__owners *owners)
{
        uint32_t at = owners->tail;
        struct kvr__owner *entry = &owners->entries[at - 1];
        uint32_t *link = bucket_of(owners, entry->key);

        while (*link != at)
                link = &owners->entries[*link - 1].chain;
        *link = entry->chain;
        order_unlink(owners, entry);
        return at;
}

static bool memory_take(struct kvr__owners *owners)
{
        owners->entries = calloc(owners->room, sizeof(*owners->entries));
        owners->buckets = calloc(owners->room, sizeof(*owners->buckets));
        if (owners->entries && owners->buckets)
                return true;
        free(owners->entries);
        free(owners->buckets);
        owners->entries = NULL;
        owners->buckets = NULL;
        return false;
}

void kvr__owners_put(struct kvr__owners *owners, uint64_t key, uint64_t replica, uint64_t now_ns)
{
        if (!owners->entries && !memory_take(owners))
                return;
        uint32_t at = entry_find(owners, key);

        if (at) {
                order_unlink(owners, &owners->entries[at - 1]);
        } else {
                at = owners->count < owners->room ? ++owners->count : oldest_take(owners);
                uint32_t *bucket = bucket_of(owners, key);

                owners->entries[at - 1] = (struct kvr__owner){.key = key, .chain = *bucket};
                *bucket = at;
        }
        owners->entries[at - 1].replica = replica;
        owners->entries[at - 1].at_ns = now_ns;
        order_push(owners, at);
}

const struct kvr__owner *kvr__owners_get(const struct kvr__owners *owners, uint64_t key)
{
        uint32_t at = entry_find(owners, key);

        return at ? &owners->entries[at - 1] : NULL;
}
