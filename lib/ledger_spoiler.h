/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cache spoilers: an early spot that changes with every request, a clock or a counter, and makes everything
 * behind it new to the cache.
 *
 *     turn 5   |sys........*......|user|assistant.....|user..|
 *     turn 6   |sys........*......|user|assistant.....|user..|assistant...|user|
 *                          ▲       └── same lengths ─────────┘
 *                          └ differs, and with it all keys behind
 *
 * Keys are chained, so they cannot tell that texts agree again behind a difference. Lengths of messages can:
 * a prompt that leaves known ground in its first half is compared by the lengths of the messages behind that
 * place, and by the length of the message it lies in, with earlier ones that left at the same place. Either
 * it goes on where an earlier one ended, with other keys, or it has a long message of the same length and
 * then other messages. Texts of equal length by chance do happen: so the lengths of a conversation must say
 * enough between them, and not be a shape that others have too; the length of one message must be that of a good
 * part of all that part there, not just of some; and places are counted, not believed at once. Owner: whoever
 * holds the ledger's lock.
 */
#ifndef KVROUTE_LIB_LEDGER_SPOILER_H
#define KVROUTE_LIB_LEDGER_SPOILER_H

#include "kvroute/ledger.h"

struct kvr__layout {
        uint64_t print;   /* fingerprint of place and lengths; 0 free */
        uint32_t end_key; /* lower half of the key at the last of these lengths */
        uint32_t tail;    /* of the lengths behind, folded to 32 bits */
        /* of a message: how often it came again with other text, and place.seen when it came first */
        uint32_t hits, first_seen;
        bool common; /* prompts of this shape end differently */
};

#define KVR__PLACES_SEEN 256u

/* How many long messages parted at a place. */
struct kvr__place {
        uint64_t place; /* 0: free */
        uint32_t seen, weight;
};

struct kvr__spoiler {
        uint64_t family; /* key of the family's trunk, 0 none */
        uint32_t from, to;
        bool by_tokens;
        uint64_t count, tokens, last_ns; /* count 0: free */
};

struct kvr__spoilers {
        struct kvr__layout layouts[KVR_LEDGER_LAYOUTS_MAX];
        struct kvr__spoiler places[KVR_LEDGER_SPOILERS_MAX];
        struct kvr__place seen[KVR__PLACES_SEEN];
};

struct kvr__layout_ask {
        const struct kvr_point *points;
        uint32_t count, known;
        bool by_tokens;
        double tokens_per_unit;
        uint64_t model, family, now_ns;
};

void kvr__spoilers_see(struct kvr__spoilers *spoilers, const struct kvr__layout_ask *ask);

#endif
