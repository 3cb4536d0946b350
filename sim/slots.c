/* SPDX-License-Identifier: Apache-2.0 */
#include "slots.h"

#include <stdlib.h>
#include <string.h>

#define SIMILARITY 0.10 /* share of the prompt above which a slot is taken for what it holds */
#define KEEP       0.50 /* share of what a slot holds below which it is saved */
#define RESTORE    0.25 /* share of a saved sequence that must be of use */

struct sequence {
        uint64_t *keys; /* of the prompt's blocks */
        uint32_t count, room;
        uint32_t prompt_tokens; /* of the keys; what is held beyond is an answer that nobody can name */
        uint32_t tokens;
};

struct slot {
        struct sequence held;
        uint64_t used; /* order of last use; 0: never */
        bool busy, void_when_done;
        bool copied;          /* memory has all of it too, */
        uint64_t copied_when; /* as long as nothing has left memory since */
};

struct sim_slots {
        struct slot *slots;
        uint32_t count, busy, block_tokens;
        uint64_t memory_tokens, clock, dropped, left;
        struct sequence *saved; /* in the order of saving */
        uint32_t saved_count, saved_room;
        uint64_t saved_tokens;
};

struct prompt {
        const uint64_t *keys;
        uint32_t count, tokens;
};

/* Where a prompt would go, and what it would find there. */
struct place {
        uint32_t slot, found;
        uint32_t saved; /* index of the sequence that comes back, UINT32_MAX: none */
        bool save;
};

struct sim_slots *sim_slots_new(uint32_t count, uint32_t block_tokens, uint64_t memory_tokens)
{
        struct sim_slots *slots = calloc(1, sizeof(*slots));

        if (!slots)
                return NULL;
        slots->slots = calloc(count, sizeof(*slots->slots));
        slots->count = count;
        slots->block_tokens = block_tokens;
        slots->memory_tokens = memory_tokens;
        if (!slots->slots) {
                free(slots);
                return NULL;
        }
        return slots;
}

static void saved_clear(struct sim_slots *slots)
{
        for (uint32_t i = 0; i < slots->saved_count; i++)
                free(slots->saved[i].keys);
        slots->saved_count = 0;
        slots->saved_tokens = 0;
}

void sim_slots_free(struct sim_slots *slots)
{
        if (!slots)
                return;
        saved_clear(slots);
        for (uint32_t i = 0; i < slots->count; i++)
                free(slots->slots[i].held.keys);
        free(slots->saved);
        free(slots->slots);
        free(slots);
}

/* ---- what sequences have in common -------------------------------------------------------------------- */

static uint32_t least(uint32_t a, uint32_t b)
{
        return a < b ? a : b;
}

/* Equal keys mean equal prefixes, so the last common one can be bisected. */
static uint32_t common_keys(const uint64_t *a, uint32_t a_count, const uint64_t *b, uint32_t b_count)
{
        uint32_t low = 0, high = least(a_count, b_count);

        if (high && a[0] != b[0])
                return 0;
        while (low < high) {
                uint32_t middle = low + (high - low + 1) / 2;

                if (a[middle - 1] == b[middle - 1])
                        low = middle;
                else
                        high = middle - 1;
        }
        return low;
}

static uint32_t tokens_of(const struct sim_slots *slots, uint32_t keys, uint32_t most)
{
        uint64_t tokens = (uint64_t)keys * slots->block_tokens;

        return tokens < most ? (uint32_t)tokens : most;
}

static uint32_t common_tokens(const struct sim_slots *slots, const struct sequence *sequence,
                              const struct prompt *prompt)
{
        uint32_t keys = common_keys(sequence->keys, sequence->count, prompt->keys, prompt->count);

        return tokens_of(slots, keys, least(sequence->prompt_tokens, prompt->tokens));
}

/* ---- memory ------------------------------------------------------------------------------------------- */

static void saved_remove(struct sim_slots *slots, uint32_t index)
{
        slots->saved_tokens -= slots->saved[index].tokens;
        slots->saved_count--;
        memmove(&slots->saved[index], &slots->saved[index + 1],
                (slots->saved_count - index) * sizeof(*slots->saved));
}

/*
 * A copy of it goes to memory. What one sequence has behind its prompt, an answer, is taken to be in the longer
 * one too: that is how a conversation goes on. Without memory of our own it is lost, as if there were no room.
 */
static void save(struct sim_slots *slots, const struct sequence *held)
{
        struct prompt whole = {held->keys, held->count, held->prompt_tokens};
        struct sequence copy = *held;

        for (uint32_t i = 0; i < slots->saved_count;) {
                struct sequence *saved = &slots->saved[i];
                uint32_t common = common_tokens(slots, saved, &whole);

                if (common == held->prompt_tokens && saved->tokens >= held->tokens)
                        return;
                if (common == saved->prompt_tokens && held->tokens >= saved->tokens) {
                        free(saved->keys);
                        saved_remove(slots, i);
                } else {
                        i++;
                }
        }
        if (slots->saved_count == slots->saved_room) {
                uint32_t room = slots->saved_room ? slots->saved_room * 2 : 16;
                struct sequence *grown = realloc(slots->saved, room * sizeof(*grown));

                if (!grown)
                        return;
                slots->saved = grown;
                slots->saved_room = room;
        }
        copy.room = held->count;
        copy.keys = malloc(held->count * sizeof(*copy.keys));
        if (!copy.keys)
                return;
        memcpy(copy.keys, held->keys, held->count * sizeof(*copy.keys));
        slots->saved[slots->saved_count++] = copy;
        slots->saved_tokens += copy.tokens;
}

static void keep_within(struct sim_slots *slots)
{
        while (slots->saved_count > 1 && slots->saved_tokens > slots->memory_tokens) {
                free(slots->saved[0].keys);
                saved_remove(slots, 0);
                slots->dropped++;
                slots->left++;
        }
}

/* What idle slots hold, which they keep. */
static void save_idle(struct sim_slots *slots)
{
        for (uint32_t i = 0; slots->memory_tokens && i < slots->count; i++) {
                struct slot *slot = &slots->slots[i];

                if (slot->busy || !slot->held.tokens || (slot->copied && slot->copied_when == slots->left))
                        continue;
                save(slots, &slot->held);
                keep_within(slots);
                slot->copied = true;
                slot->copied_when = slots->left;
        }
}

/* ---- choice of a slot --------------------------------------------------------------------------------- */

static double share(uint32_t part, uint32_t whole)
{
        return whole ? (double)part / whole : 0;
}

/* A sequence in memory of which more is of use than of what the slot has. */
static void look_in_memory(const struct sim_slots *slots, const struct prompt *prompt, double kept,
                           struct place *place)
{
        for (uint32_t i = 0; i < slots->saved_count; i++) {
                const struct sequence *saved = &slots->saved[i];
                uint32_t common = common_tokens(slots, saved, prompt);

                if (share(common, saved->tokens) < RESTORE || common <= place->found ||
                    share(common, saved->tokens) <= kept)
                        continue;
                kept = share(common, saved->tokens);
                place->found = common;
                place->saved = i;
        }
}

static bool find_place(const struct sim_slots *slots, const struct prompt *prompt, struct place *ret)
{
        uint32_t best = UINT32_MAX, oldest = UINT32_MAX, most = 0;
        const struct sequence *held;

        for (uint32_t i = 0; i < slots->count; i++) {
                const struct slot *slot = &slots->slots[i];
                uint32_t common;

                if (slot->busy)
                        continue;
                if (oldest == UINT32_MAX || slot->used < slots->slots[oldest].used)
                        oldest = i;
                common = common_tokens(slots, &slot->held, prompt);
                if (common > most && share(common, prompt->tokens) > SIMILARITY) {
                        most = common;
                        best = i;
                }
        }
        if (oldest == UINT32_MAX)
                return false;
        *ret = (struct place){.slot = best == UINT32_MAX ? oldest : best, .saved = UINT32_MAX};
        held = &slots->slots[ret->slot].held;
        ret->found = common_tokens(slots, held, prompt);
        ret->save = slots->memory_tokens && (best == UINT32_MAX || share(ret->found, held->tokens) < KEEP);
        if (ret->save)
                look_in_memory(slots, prompt, share(ret->found, held->tokens), ret);
        ret->found = least(ret->found, prompt->tokens - 1);
        return true;
}

uint32_t sim_slots_match(const struct sim_slots *slots, const uint64_t *keys, uint32_t key_count,
                         uint32_t prompt_tokens)
{
        struct prompt prompt = {keys, key_count, prompt_tokens};
        struct place place;

        return find_place(slots, &prompt, &place) ? place.found : 0;
}

bool sim_slots_start(struct sim_slots *slots, const uint64_t *keys, uint32_t key_count,
                     uint32_t prompt_tokens, uint32_t *ret_slot, uint32_t *ret_found)
{
        struct prompt prompt = {keys, key_count, prompt_tokens};
        struct sequence *held;
        struct place place;
        struct slot *slot;

        if (!find_place(slots, &prompt, &place))
                return false;
        slot = &slots->slots[place.slot];
        held = &slot->held;
        if (held->room < key_count) {
                uint64_t *grown = realloc(held->keys, key_count * sizeof(*grown));

                if (!grown)
                        return false;
                held->keys = grown;
                held->room = key_count;
        }
        if (place.saved != UINT32_MAX) {
                /* What comes back need not be copied: the prompt overwrites what it has not in common. */
                free(slots->saved[place.saved].keys);
                saved_remove(slots, place.saved);
                slots->left++;
        }
        if (place.save && held->tokens) {
                save(slots, held);
                keep_within(slots);
        }
        if (key_count)
                memcpy(held->keys, keys, key_count * sizeof(*keys));
        held->count = key_count;
        held->prompt_tokens = held->tokens = prompt_tokens;
        slot->busy = true;
        slot->copied = slot->void_when_done = false;
        slots->busy++;
        save_idle(slots);
        *ret_slot = place.slot;
        *ret_found = place.found;
        return true;
}

void sim_slots_finish(struct sim_slots *slots, uint32_t number, uint32_t tokens)
{
        struct slot *slot = &slots->slots[number];
        struct sequence *held = &slot->held;

        held->tokens = slot->void_when_done ? 0 : tokens;
        held->prompt_tokens = least(held->prompt_tokens, held->tokens);
        held->count =
                least(held->count, (uint32_t)((held->prompt_tokens + (uint64_t)slots->block_tokens - 1) /
                                              slots->block_tokens));
        slot->busy = false;
        slot->used = ++slots->clock;
        slots->busy--;
}

void sim_slots_clear(struct sim_slots *slots)
{
        saved_clear(slots);
        for (uint32_t i = 0; i < slots->count; i++) {
                struct slot *slot = &slots->slots[i];

                slot->void_when_done = slot->busy;
                if (!slot->busy)
                        slot->held.count = slot->held.prompt_tokens = slot->held.tokens = 0;
        }
}

uint32_t sim_slots_busy(const struct sim_slots *slots)
{
        return slots->busy;
}

uint32_t sim_slots_saved(const struct sim_slots *slots)
{
        return slots->saved_count;
}

uint64_t sim_slots_tokens(const struct sim_slots *slots)
{
        uint64_t tokens = slots->saved_tokens;

        for (uint32_t i = 0; i < slots->count; i++)
                tokens += slots->slots[i].busy ? 0 : slots->slots[i].held.tokens;
        return tokens;
}

uint64_t sim_slots_dropped(const struct sim_slots *slots)
{
        return slots->dropped;
}
