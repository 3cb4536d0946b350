/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a llama.cpp server has cached: one sequence per slot, and whole sequences kept in host memory.
 *
 *     slots   | 0 busy: S1 | 1 idle: S2 | 2 idle: S3 | 3 idle: - |   a request lands on exactly one idle slot
 *     memory  | S4 (oldest) | S5 | S6 | S2 | S3 |                    what a slot is about to lose is saved here
 *
 * A request goes to the idle slot that shares more than a tenth of the prompt, the one that shares most; else
 * to the idle slot not used for the longest time. If it keeps less than half of what the slot holds, the old
 * content is saved first and a saved sequence that fits better comes back instead, if at least a quarter of
 * it is of use. If it keeps half or more, the differing tail is overwritten and lost. Slots share nothing
 * with each other, and a busy one serves nobody. But once a prompt has its slot, whatever idle slots hold is copied
 * to memory (--cache-idle-slots, which is on wherever there is such memory), and found there while they are busy.
 *
 * Sequences are compared by their points: the same key at the same index means the same text up to there.
 * Owner: whoever holds the router's lock. Memory is counted in the budget given.
 */
#ifndef KVROUTE_LIB_SLOTS_H
#define KVROUTE_LIB_SLOTS_H

#include "kvroute/prompt.h"

#include "pool.h"

#define KVR__SLOTS_MAX     1024 /* of one replica */
#define KVR__SLOTS_DEFAULT 4
#define KVR__SAVED_MAX     256 /* sequences in host memory that are followed */
#define KVR__NO_SLOT       UINT32_MAX

struct kvr__slots;

/* A prompt as the slot rules need it. */
struct kvr__slots_ask {
        const struct kvr_point *points;
        uint32_t count;
        double tokens_per_unit;
        uint32_t waiting; /* requests that wait for a slot already; only kvr__slots_match looks at it */
};

struct kvr__slots_match {
        uint32_t points; /* leading points found where the prompt would land */
        uint32_t answer; /* generated tokens that follow them there, if the prompt goes on beyond */
        uint32_t likely; /* tokens that a slot has on an average, when all are busy; else 0 */
        uint16_t rank;   /* 0: in the slot itself; n: in the sequence that was saved n-th last */
        bool copy;       /* that one is a copy of what an idle slot had */
};

/* `count` 0: 4. `capacity_tokens` 0: unknown, then 8 saved sequences per slot. NULL when out of memory or
 * budget. */
KVR_MUST_USE struct kvr__slots *kvr__slots_new(struct kvr__budget *budget, uint32_t count,
                                               uint64_t capacity_tokens);
void kvr__slots_free(struct kvr__slots *slots);
uint32_t kvr__slots_count(const struct kvr__slots *slots);
void kvr__slots_set_capacity(struct kvr__slots *slots, uint64_t capacity_tokens);

void kvr__slots_match(const struct kvr__slots *slots, const struct kvr__slots_ask *ask,
                      struct kvr__slots_match *ret);
/* The prompt starts: its slot, now busy and holding it, or KVR__NO_SLOT when all are busy. */
uint32_t kvr__slots_start(struct kvr__slots *slots, const struct kvr__slots_ask *ask);
/* The slot is idle again, with `answer` generated tokens (0 unknown) behind the prompt. */
void kvr__slots_finish(struct kvr__slots *slots, uint32_t slot, uint32_t answer);
/* The same when the prompt was not computed: only what it found there is left. */
void kvr__slots_abort(struct kvr__slots *slots, uint32_t slot);
/*
 * How much the memory holds is only told by what is found there. A sequence that was saved `rank`-th last had
 * gone: so have all that were saved before it, and so few will be followed from now on. Or one was found that
 * was given up: more will be. Copies of idle slots that are not there, before one was ever found, tell of a server
 * that does not make any: after a few none will be expected.
 */
void kvr__slots_learn_gone(struct kvr__slots *slots, uint32_t rank, bool copy);
void kvr__slots_learn_copied(struct kvr__slots *slots);
void kvr__slots_learn_more(struct kvr__slots *slots);
/* Everything is gone; busy slots stay busy. */
void kvr__slots_clear(struct kvr__slots *slots);
uint64_t kvr__slots_tokens(const struct kvr__slots *slots);
uint32_t kvr__slots_sequences(const struct kvr__slots *slots);

#endif
