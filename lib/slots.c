/* SPDX-License-Identifier: Apache-2.0 */
#include "slots.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SIMILARITY        0.10 /* share of the prompt above which a slot is chosen for its content */
#define KEEP_OR_SAVE      0.50 /* share of a slot's content below which it is saved first */
#define RESTORE           0.25 /* share of a saved sequence that must be of use */
#define SAVED_PER_SLOT    8
#define SEQUENCE_KEYS_MIN 32
#define ALIKE             0.5  /* share of the most that a slot has */
#define COPIES_MAX        32   /* sequences of idle slots that one start copies */
#define COPYING_NOT       (-3) /* so many copies that were not there, and none that was: it does not copy */

/* One cached sequence. */
struct sequence {
        uint64_t *keys;
        uint32_t count, room;
        uint32_t answer;
        double tokens; /* prompt and answer */
        bool copy;     /* saved while its slot kept it */
};

struct slot {
        struct sequence held;
        uint32_t found; /* points that were there when the running prompt came */
        bool busy;
        bool copied;   /* host memory has all of it too */
        uint64_t used; /* order of last use */
};

struct kvr__slots {
        struct kvr__budget *budget;
        struct slot *slots;
        struct sequence *saved; /* oldest first */
        uint32_t count, saved_count, saved_max;
        uint64_t capacity_tokens, clock;
        int copying; /* 1: a copy was found; else less the copies that were not there */
};

/* ---- sequences ---- */

/* Leading points in common, at least `known` of which the caller has seen to be. */
static uint32_t common_points(const uint64_t *keys, uint32_t count, const struct kvr__slots_ask *ask,
                              uint32_t known)
{
        uint32_t low = known, high = count < ask->count ? count : ask->count;

        while (low < high) {
                uint32_t middle = low + (high - low + 1) / 2;

                if (keys[middle - 1] == ask->points[middle - 1].key)
                        low = middle;
                else
                        high = middle - 1;
        }
        return low;
}

/* Common points if they are more than `best`, else `best`. Mostly one comparison. */
static uint32_t common_above(const struct sequence *sequence, const struct kvr__slots_ask *ask, uint32_t best)
{
        if (sequence->count <= best || ask->count <= best || sequence->keys[best] != ask->points[best].key)
                return best;
        return common_points(sequence->keys, sequence->count, ask, best + 1);
}

static uint32_t common_sequences(const struct sequence *a, const struct sequence *b)
{
        uint32_t low = 0, high = a->count < b->count ? a->count : b->count;

        while (low < high) {
                uint32_t middle = low + (high - low + 1) / 2;

                if (a->keys[middle - 1] == b->keys[middle - 1])
                        low = middle;
                else
                        high = middle - 1;
        }
        return low;
}

static double tokens_of(const struct kvr__slots_ask *ask, uint32_t points)
{
        return points ? (double)ask->points[points - 1].end * ask->tokens_per_unit : 0;
}

/*
 * Tokens of a sequence that a prompt with so many common points finds: the answer too if it goes on after it.
 */
static double usable_tokens(const struct sequence *sequence, const struct kvr__slots_ask *ask,
                            uint32_t common)
{
        double tokens = tokens_of(ask, common), all = tokens_of(ask, ask->count);

        if (common && common == sequence->count && common < ask->count)
                tokens += sequence->answer;
        return tokens < all ? tokens : all;
}

static bool sequence_reserve(struct kvr__budget *budget, struct sequence *sequence, uint32_t count)
{
        uint32_t room = sequence->room ? sequence->room : SEQUENCE_KEYS_MIN;

        if (count <= sequence->room)
                return true;
        while (room < count)
                room *= 2;
        uint64_t bytes = (uint64_t)(room - sequence->room) * sizeof(*sequence->keys);

        if (budget->bytes + bytes > budget->bytes_max)
                return false;
        uint64_t *keys = realloc(sequence->keys, room * sizeof(*keys));

        if (!keys)
                return false;
        budget->bytes += bytes;
        sequence->keys = keys;
        sequence->room = room;
        return true;
}

static void sequence_fini(struct kvr__budget *budget, struct sequence *sequence)
{
        budget->bytes -= (uint64_t)sequence->room * sizeof(*sequence->keys);
        free(sequence->keys);
        *sequence = (struct sequence){0};
}

static void sequence_clear(struct sequence *sequence)
{
        sequence->count = 0;
        sequence->answer = 0;
        sequence->tokens = 0;
}

/* Holds the prompt afterwards; with memory spent only as much of it as fits. */
static void sequence_set(struct kvr__budget *budget, struct sequence *sequence,
                         const struct kvr__slots_ask *ask)
{
        uint32_t count = ask->count;

        if (!sequence_reserve(budget, sequence, count))
                count = sequence->room;
        for (uint32_t i = 0; i < count; i++)
                sequence->keys[i] = ask->points[i].key;
        sequence->count = count;
        sequence->answer = 0;
        sequence->tokens = tokens_of(ask, count);
}

/* ---- life ---- */

struct kvr__slots *kvr__slots_new(struct kvr__budget *budget, uint32_t count, uint64_t capacity_tokens)
{
        count = count ? count : KVR__SLOTS_DEFAULT;
        count = count < KVR__SLOTS_MAX ? count : KVR__SLOTS_MAX;
        uint64_t bytes = sizeof(struct kvr__slots) + count * sizeof(struct slot) +
                         KVR__SAVED_MAX * sizeof(struct sequence);

        if (budget->bytes + bytes > budget->bytes_max)
                return NULL;
        struct kvr__slots *slots = calloc(1, sizeof(*slots));

        if (!slots)
                return NULL;
        slots->slots = calloc(count, sizeof(*slots->slots));
        slots->saved = calloc(KVR__SAVED_MAX, sizeof(*slots->saved));
        if (!slots->slots || !slots->saved) {
                free(slots->slots);
                free(slots->saved);
                free(slots);
                return NULL;
        }
        budget->bytes += bytes;
        slots->budget = budget;
        slots->count = count;
        kvr__slots_set_capacity(slots, capacity_tokens);
        return slots;
}

void kvr__slots_free(struct kvr__slots *slots)
{
        if (!slots)
                return;
        for (uint32_t i = 0; i < slots->count; i++)
                sequence_fini(slots->budget, &slots->slots[i].held);
        for (uint32_t i = 0; i < KVR__SAVED_MAX; i++)
                sequence_fini(slots->budget, &slots->saved[i]);
        slots->budget->bytes -= sizeof(struct kvr__slots) + slots->count * sizeof(struct slot) +
                                KVR__SAVED_MAX * sizeof(struct sequence);
        free(slots->slots);
        free(slots->saved);
        free(slots);
}

uint32_t kvr__slots_count(const struct kvr__slots *slots)
{
        return slots->count;
}

void kvr__slots_set_capacity(struct kvr__slots *slots, uint64_t capacity_tokens)
{
        uint32_t max = slots->count * SAVED_PER_SLOT;

        slots->capacity_tokens = capacity_tokens;
        slots->saved_max = capacity_tokens || max > KVR__SAVED_MAX ? KVR__SAVED_MAX : max;
}

/* ---- host memory ---- */

/* Takes entry `at` out of the list; its memory stays at the end for the next one. */
static struct sequence *saved_drop(struct kvr__slots *slots, uint32_t at)
{
        struct sequence gone = slots->saved[at];

        slots->saved_count--;
        memmove(&slots->saved[at], &slots->saved[at + 1], (slots->saved_count - at) * sizeof(gone));
        slots->saved[slots->saved_count] = gone;
        return &slots->saved[slots->saved_count];
}

/* An entry is gone: so is the copy of what idle slots have of it. */
static struct sequence *saved_lose(struct kvr__slots *slots, uint32_t at)
{
        const struct sequence *saved = &slots->saved[at];

        for (uint32_t i = 0; i < slots->count; i++) {
                struct slot *slot = &slots->slots[i];

                if (slot->copied && common_sequences(saved, &slot->held) == slot->held.count)
                        slot->copied = false;
        }
        return saved_drop(slots, at);
}

static void saved_trim(struct kvr__slots *slots)
{
        if (slots->capacity_tokens)
                while (slots->saved_count && kvr__slots_tokens(slots) > slots->capacity_tokens)
                        saved_lose(slots, 0);
}

/*
 * A place at the end of the list for what a slot has; entries that it contains make way. NULL when the list has it
 * already, or takes nothing.
 */
static struct sequence *saved_place(struct kvr__slots *slots, const struct sequence *held)
{
        if (!held->count || !slots->saved_max)
                return NULL;
        for (uint32_t i = slots->saved_count; i-- > 0;) {
                const struct sequence *saved = &slots->saved[i];
                uint32_t common = common_sequences(saved, held);

                if (common == held->count && saved->count > common)
                        return NULL;
                if (common == saved->count)
                        saved_drop(slots, i);
        }
        if (slots->saved_count == slots->saved_max)
                saved_lose(slots, 0);
        return &slots->saved[slots->saved_count];
}

/* Moves the slot's content into the list unless that has it already. */
static void slot_save(struct kvr__slots *slots, struct slot *slot)
{
        struct sequence *held = &slot->held, *place = slot->copied ? NULL : saved_place(slots, held);

        /* What was a copy is all there is now, whatever the server does with idle slots. */
        for (uint32_t i = 0; slot->copied && i < slots->saved_count; i++)
                if (common_sequences(&slots->saved[i], held) == held->count)
                        slots->saved[i].copy = false;
        slot->copied = false;
        if (place) {
                /* Exchange the memory: the place at the end of the list has a spare one. */
                struct sequence spare = *place;

                *place = *held;
                place->copy = false;
                *held = spare;
                slots->saved_count++;
        }
        sequence_clear(held);
        saved_trim(slots);
}

/* What idle slots have goes into the list too whenever a prompt starts. */
static void idle_copy(struct kvr__slots *slots)
{
        uint32_t copies = 0;

        for (uint32_t i = 0; i < slots->count && copies < COPIES_MAX && slots->copying > COPYING_NOT; i++) {
                struct slot *slot = &slots->slots[i];

                if (slot->busy || slot->copied || !slot->held.count)
                        continue;
                struct sequence *place = saved_place(slots, &slot->held);

                copies++;
                /* Without memory for a copy it stays to be moved. */
                slot->copied = !place || sequence_reserve(slots->budget, place, slot->held.count);
                if (!place || !slot->copied)
                        continue;
                memcpy(place->keys, slot->held.keys, slot->held.count * sizeof(*place->keys));
                place->count = slot->held.count;
                place->answer = slot->held.answer;
                place->tokens = slot->held.tokens;
                place->copy = true;
                slots->saved_count++;
        }
        saved_trim(slots);
}

/* Memory that nobody needs now waits behind the list for the next sequence that is saved. */
static void spare_keep(struct kvr__slots *slots, struct sequence *spare)
{
        if (slots->saved_count == KVR__SAVED_MAX || slots->saved[slots->saved_count].keys) {
                sequence_fini(slots->budget, spare);
                return;
        }
        sequence_clear(spare);
        slots->saved[slots->saved_count] = *spare;
}

/*
 * The saved sequence that serves the prompt better than what the slot has (`have` points of `held`), or none.
 */
static uint32_t saved_best(const struct kvr__slots *slots, const struct kvr__slots_ask *ask, uint32_t have,
                           double keep, uint32_t *ret_common)
{
        uint32_t best = slots->saved_count;

        for (uint32_t i = 0; i < slots->saved_count; i++) {
                const struct sequence *saved = &slots->saved[i];
                uint32_t common = common_above(saved, ask, have);

                if (common == have)
                        continue;
                double kept = usable_tokens(saved, ask, common) / (saved->tokens > 0 ? saved->tokens : 1);

                if (kept < RESTORE || kept <= keep)
                        continue;
                best = i;
                have = common;
                keep = kept;
        }
        *ret_common = have;
        return best;
}

/* ---- the choice of a slot ---- */

struct landing {
        uint32_t slot;   /* KVR__NO_SLOT: all busy */
        uint32_t common; /* points of the slot's own content */
        bool save;       /* the content is saved, and something may come back */
        double keep;
};

static struct landing landing_find(const struct kvr__slots *slots, const struct kvr__slots_ask *ask)
{
        struct landing landing = {.slot = KVR__NO_SLOT, .save = true};
        uint32_t oldest = KVR__NO_SLOT, best = 0;

        for (uint32_t i = 0; i < slots->count; i++) {
                const struct slot *slot = &slots->slots[i];

                if (slot->busy)
                        continue;
                if (oldest == KVR__NO_SLOT || slot->used < slots->slots[oldest].used)
                        oldest = i;
                uint32_t common = common_above(&slot->held, ask, best);

                if (common > best) {
                        best = common;
                        landing.slot = i;
                }
        }
        double all = tokens_of(ask, ask->count);

        if (landing.slot != KVR__NO_SLOT &&
            usable_tokens(&slots->slots[landing.slot].held, ask, best) > SIMILARITY * all) {
                const struct sequence *held = &slots->slots[landing.slot].held;

                landing.common = best;
                landing.keep = usable_tokens(held, ask, best) / (held->tokens > 0 ? held->tokens : 1);
                landing.save = landing.keep < KEEP_OR_SAVE;
                return landing;
        }
        landing.slot = oldest;
        if (oldest == KVR__NO_SLOT)
                return landing;
        const struct sequence *held = &slots->slots[oldest].held;

        landing.common = common_above(held, ask, 0);
        landing.keep = usable_tokens(held, ask, landing.common) / (held->tokens > 0 ? held->tokens : 1);
        return landing;
}

/*
 * All slots are busy. Once it is the prompt's turn, as many slots have been free as wait before it, and one more. What
 * those held is then in a slot or in memory, so it finds most of what any of them has of it: the most that a slot has,
 * times the chance that at least one of those that have about as much was among them.
 */
static uint32_t likely_tokens(const struct kvr__slots *slots, const struct kvr__slots_ask *ask)
{
        double most = 0, turned = fmin(1, (ask->waiting + 1.0) / slots->count);
        uint32_t alike = 0;

        for (uint32_t i = 0; i < slots->count; i++) {
                const struct sequence *held = &slots->slots[i].held;
                double tokens = usable_tokens(held, ask, common_above(held, ask, 0));

                if (tokens > most) {
                        alike = tokens * ALIKE > most ? 1 : alike + 1;
                        most = tokens;
                } else {
                        alike += tokens > most * ALIKE;
                }
        }
        return (uint32_t)(most * (1 - pow(1 - turned, alike)));
}

void kvr__slots_match(const struct kvr__slots *slots, const struct kvr__slots_ask *ask,
                      struct kvr__slots_match *ret)
{
        struct landing landing = landing_find(slots, ask);
        const struct sequence *source = NULL;
        uint32_t common = landing.common;

        ret->rank = 0;
        ret->copy = false;
        ret->likely = landing.slot == KVR__NO_SLOT ? likely_tokens(slots, ask) : 0;
        if (landing.slot != KVR__NO_SLOT)
                source = &slots->slots[landing.slot].held;
        if (landing.save) {
                uint32_t best = saved_best(slots, ask, landing.common, landing.keep, &common);

                if (best < slots->saved_count) {
                        source = &slots->saved[best];
                        ret->rank = (uint16_t)(slots->saved_count - best);
                        ret->copy = source->copy;
                }
        }
        ret->points = common;
        ret->answer = source && common && common == source->count && common < ask->count ? source->answer : 0;
}

uint32_t kvr__slots_start(struct kvr__slots *slots, const struct kvr__slots_ask *ask)
{
        struct landing landing = landing_find(slots, ask);

        if (landing.slot == KVR__NO_SLOT)
                return KVR__NO_SLOT;
        struct slot *slot = &slots->slots[landing.slot];
        uint32_t common = landing.common;

        if (landing.save) {
                uint32_t best = saved_best(slots, ask, landing.common, landing.keep, &common);

                if (best < slots->saved_count) {
                        struct sequence back = *saved_lose(slots, best);

                        slots->saved[slots->saved_count] = (struct sequence){0};
                        slot_save(slots, slot);
                        spare_keep(slots, &slot->held);
                        slot->held = back;
                } else {
                        slot_save(slots, slot);
                }
        }
        slot->busy = true;
        slot->copied = false;
        slot->found = common;
        slot->used = ++slots->clock;
        sequence_set(slots->budget, &slot->held, ask);
        idle_copy(slots);
        return landing.slot;
}

void kvr__slots_finish(struct kvr__slots *slots, uint32_t number, uint32_t answer)
{
        if (number >= slots->count)
                return;
        struct slot *slot = &slots->slots[number];

        slot->busy = false;
        slot->used = ++slots->clock;
        if (slot->held.count) {
                slot->held.answer = answer;
                slot->held.tokens += answer;
        }
        saved_trim(slots);
}

void kvr__slots_abort(struct kvr__slots *slots, uint32_t number)
{
        if (number >= slots->count)
                return;
        struct slot *slot = &slots->slots[number];
        struct sequence *held = &slot->held;

        slot->busy = false;
        if (slot->found < held->count) {
                held->tokens *= (double)slot->found / held->count;
                held->count = slot->found;
        }
}

/* The server does not copy what idle slots have: neither will we any more. */
static void copies_end(struct kvr__slots *slots)
{
        for (uint32_t i = slots->saved_count; i-- > 0;)
                if (slots->saved[i].copy)
                        saved_lose(slots, i);
}

void kvr__slots_learn_gone(struct kvr__slots *slots, uint32_t rank, bool copy)
{
        if (copy && slots->copying <= 0) {
                if (--slots->copying == COPYING_NOT)
                        copies_end(slots);
                return;
        }
        if (rank > slots->saved_max)
                return;
        slots->saved_max = rank - 1;
        while (slots->saved_count > slots->saved_max)
                saved_lose(slots, 0);
}

void kvr__slots_learn_copied(struct kvr__slots *slots)
{
        slots->copying = 1;
}

void kvr__slots_learn_more(struct kvr__slots *slots)
{
        uint32_t more = slots->saved_max + 1 + slots->saved_max / 8;

        slots->saved_max = more < KVR__SAVED_MAX ? more : KVR__SAVED_MAX;
}

void kvr__slots_clear(struct kvr__slots *slots)
{
        for (uint32_t i = 0; i < slots->count; i++) {
                sequence_clear(&slots->slots[i].held);
                slots->slots[i].found = 0;
                slots->slots[i].copied = false;
        }
        slots->copying = 0;
        while (slots->saved_count)
                sequence_clear(&slots->saved[--slots->saved_count]);
}

uint64_t kvr__slots_tokens(const struct kvr__slots *slots)
{
        double tokens = 0;

        for (uint32_t i = 0; i < slots->count; i++)
                tokens += slots->slots[i].copied ? 0 : slots->slots[i].held.tokens;
        for (uint32_t i = 0; i < slots->saved_count; i++)
                tokens += slots->saved[i].tokens;
        return (uint64_t)tokens;
}

uint32_t kvr__slots_sequences(const struct kvr__slots *slots)
{
        uint32_t count = slots->saved_count;

        for (uint32_t i = 0; i < slots->count; i++)
                count += slots->slots[i].held.count && !slots->slots[i].copied;
        return count;
}
