/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule `toll` in its plain form, on true figures: what kvroute's own policy `kv` comes from, and what it
 * is measured against in the reference model. docs/policy.md explains it.
 */
#ifndef KVROUTE_SIM_REPLAY_TOLL_H
#define KVROUTE_SIM_REPLAY_TOLL_H

#include "replay_int.h"

/* 24 bytes per distinct id, for toll_count 8 per row. NULL: out of memory. */
KVR_MUST_USE struct sim__replay_toll *sim__replay_toll_new(const struct sim__replay_run *run);
void sim__replay_toll_free(struct sim__replay_toll *toll);
/* The servers' matches are filled in, `longest` is the greatest of them. Chooses and remembers. */
uint32_t sim__replay_toll_choose(struct sim__replay_run *run, uint32_t row, uint32_t longest);

#endif
