/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix cache of a llama.cpp server: one sequence per slot, and whole sequences in host memory. This is
 * the engine itself, what really is there; what a router believes of it is lib/slots.h and knows nothing of
 * this one.
 *
 *     slots   | 0 busy | 1 idle: S2 | 2 idle: S3 | 3 idle: - |      a request takes one idle slot
 *     memory  | S4 (first out) | S5 | S6 |
 *
 *  1. A request goes to the idle slot that has most of its prompt, if that is more than a tenth of the
 *     prompt; else to the idle slot that was not used for the longest time. Without an idle slot it waits.
 *  2. A slot that was taken for its age, or would keep less than half of what it holds, is saved to memory
 *     first, and if memory has a sequence of which more is of use, for the prompt and as a share of itself,
 *     and at least a quarter of it, that one moves into the slot.
 *  3. Otherwise what differs is overwritten and lost. Slots share nothing: what a busy one holds is of no
 *     use to anyone else.
 *  4. When a prompt has its slot, what idle ones hold is copied to memory, where the next prompt finds it
 *     even if that slot is busy then. (--cache-idle-slots; with --kv-unified it is moved, to the same effect.)
 *  5. Memory does not hold a sequence twice, nor the beginning of one that it holds. Beyond its size the
 *     sequence that was saved first goes; the last one stays whatever its size.
 *
 * Sequences are compared by the keys of blocks, so what two prompts have in common beyond their last common
 * block is not seen; a llama.cpp server would find it.
 */
#ifndef KVROUTE_SIM_SLOTS_H
#define KVROUTE_SIM_SLOTS_H

#include <kvroute/base.h>

#define SIM_SLOTS_MAX 1024u /* of one engine */

struct sim_slots;

/* `memory_tokens` 0: nothing is saved. NULL when out of memory. */
KVR_MUST_USE struct sim_slots *sim_slots_new(uint32_t count, uint32_t block_tokens, uint64_t memory_tokens);
void sim_slots_free(struct sim_slots *slots);

/* Tokens of the prompt that sim_slots_start would find now; 0 without an idle slot. */
uint32_t sim_slots_match(const struct sim_slots *slots, const uint64_t *keys, uint32_t key_count,
                         uint32_t prompt_tokens);
/*
 * The prompt takes a slot; *ret_found: tokens of it that are there, at most prompt_tokens - 1. Keys are
 * those of all blocks, the last one perhaps partial; copied. False: no slot is idle, or there was no memory.
 */
KVR_MUST_USE bool sim_slots_start(struct sim_slots *slots, const uint64_t *keys, uint32_t key_count,
                                  uint32_t prompt_tokens, uint32_t *ret_slot, uint32_t *ret_found);
/* The slot is idle again and holds `tokens` tokens: of the prompt, and behind it of the answer. */
void sim_slots_finish(struct sim_slots *slots, uint32_t slot, uint32_t tokens);
/* Nothing is held any more, in memory neither; busy slots stay busy, and hold nothing when they end. */
void sim_slots_clear(struct sim_slots *slots);

uint32_t sim_slots_busy(const struct sim_slots *slots);
uint32_t sim_slots_saved(const struct sim_slots *slots);   /* sequences in memory */
uint64_t sim_slots_tokens(const struct sim_slots *slots);  /* in idle slots and in memory, copies too */
uint64_t sim_slots_dropped(const struct sim_slots *slots); /* sequences that memory had no room for */

#endif
