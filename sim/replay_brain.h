/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference model with the router's own brain (libkvroute, policy kv) in place of a rule: what the policy
 * is worth with all that a router has to learn and guess, in a model where the rule itself is known.
 *
 * The brain has its history of what it sent, its books, and what it is told when a prompt is computed: the
 * first token, the end, and how much was cached. Speeds are learned. Nothing is answered, so first token and
 * end are one instant.
 */
#ifndef KVROUTE_SIM_REPLAY_BRAIN_H
#define KVROUTE_SIM_REPLAY_BRAIN_H

#include "replay_int.h"

/* NULL: out of memory. The index has at most 256 bytes per block of capacity and replica. */
KVR_MUST_USE struct sim__replay_brain *sim__replay_brain_new(const struct sim__replay_run *run);
void sim__replay_brain_free(struct sim__replay_brain *brain);
/* The servers' matches are filled in. run->replicas: it could not decide. */
uint32_t sim__replay_brain_choose(struct sim__replay_run *run, uint32_t row);

#endif
