/* SPDX-License-Identifier: Apache-2.0 */
/* The last requests as they ended, for who looks at the router right now: where each went, and why. */
#ifndef KVROUTE_ROUTER_DECISIONS_H
#define KVROUTE_ROUTER_DECISIONS_H

#include <kvroute/router.h>

#include "proto/text.h"

#define DECISIONS_KEPT 64

/* One request. Names are borrowed during decisions_add, longer ones are cut to KVR_NAME_MAX - 1 bytes. */
struct decision_note {
        uint64_t at_ns; /* when it ended */
        const char *model, *workload, *replica;
        enum kvr_reason reason;
        uint32_t prompt_tokens, predicted_tokens, best_tokens, due_tokens;
        double wait_s, own_s, toll_s; /* NAN: the policy has no such figure */
        int64_t observed_tokens;      /* -1: the engine did not tell */
        unsigned status;              /* HTTP; 0: the client left before there was one */
};

struct decisions;

KVR_MUST_USE struct decisions *decisions_new(void); /* NULL: out of memory */
void decisions_free(struct decisions *decisions);
/* Any thread. Never waits: while another thread is at it the note is dropped, for it is one of many. */
void decisions_add(struct decisions *decisions, const struct decision_note *note);
/* {"decisions":[...]}, the last one first. Any thread. */
void decisions_json(struct decisions *decisions, uint64_t now_ns, struct text *ret);

#endif
