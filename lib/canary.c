/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Do a replica's events explain what it reports? Where one side says nothing and the other much, again and
 * again, something between us and the engine is wrong for good, and history is the better guess until the two
 * agree again.
 */
#include <math.h>
#include <string.h>

#include "router_int.h"

#define TELLING_TOKENS 64.0  /* a match so long, */
#define TELLING_BLOCKS 2     /* and of so many blocks, says something */
#define NOTHING_SHARE  0.1   /* less than this part of it is as good as nothing */
#define SLIP_SHARE     0.125 /* a hit that is off by no more than this part agrees */
#define RUN_TELLS      8     /* contradictions in a row are a verdict */
#define GOOD_TELLS     4     /* agreements in a row lift it */

void kvr__canary_reset(struct kvr__replica *replica)
{
        struct kvr__canary_state *state = &replica->canary;

        state->verdict = KVR_CANARY_OK;
        state->doubted = false;
        state->run = state->good = 0;
}

/* Does the lane hold this first block? Borrows the room of a decision. */
static bool holds(struct kvr_router *router, uint16_t lane, uint64_t key)
{
        const struct kvr__events *events = atomic_load_explicit(&router->events, memory_order_acquire);
        struct kvr__chain chain = {&key, 1};
        uint32_t words = lane / 64 + 1U;

        memset(router->want, 0, words * sizeof(*router->want));
        router->want[lane / 64] = 1ULL << lane % 64;
        router->depth[lane] = 0;
        kvr__blocks_depths(events->blocks, &chain, router->want, words, router->depth);
        return router->depth[lane] > 0;
}

/* Why was there a hit where the events knew of none? */
static enum kvr_canary cause_of(struct kvr_router *router, const struct kvr_ticket *ticket)
{
        const struct kvr__events *events = atomic_load_explicit(&router->events, memory_order_acquire);
        const struct kvr__replica *replica = ticket->replica;
        uint16_t lane = replica->event_lane;

        if (!atomic_load_explicit(&events->held[lane], memory_order_relaxed))
                return KVR_CANARY_SILENT;
        if (!ticket->event_blocks)
                return KVR_CANARY_NO_TOKENS;
        if (replica->block_tokens && replica->block_tokens != replica->event_block_tokens)
                return KVR_CANARY_BLOCK_SIZE;
        if (ticket->event_base && holds(router, lane, ticket->event_base))
                return KVR_CANARY_NAMESPACE;
        return KVR_CANARY_TEMPLATE;
}

static void contradict(struct kvr__canary_state *state, enum kvr_canary cause)
{
        state->missed++;
        state->good = 0;
        if (++state->run < RUN_TELLS)
                return;
        state->verdict = cause;
        /* Without tokens there is no match by events either way, and history is followed anyway. */
        state->doubted = cause != KVR_CANARY_NO_TOKENS;
}

static void agree(struct kvr__canary_state *state)
{
        state->matched++;
        state->run = 0;
        if (state->verdict == KVR_CANARY_OK || ++state->good < GOOD_TELLS)
                return;
        state->verdict = KVR_CANARY_OK;
        state->doubted = false;
}

void kvr__canary_learn(struct kvr_router *router, const struct kvr_ticket *ticket, double found)
{
        struct kvr__replica *replica = ticket->replica;
        double said = ticket->event_tokens;

        if (replica->event_lane == KVR__NO_LANE || !replica->events_trusted)
                return;
        double block = replica->event_block_tokens;
        double telling = fmax(TELLING_TOKENS, TELLING_BLOCKS * block);

        if (said >= telling && found < said * NOTHING_SHARE)
                contradict(&replica->canary, KVR_CANARY_STALE);
        /* What was sent there just before may be computed by then, and told of later. */
        else if (found >= telling && said <= 0 && found > ticket->young_tokens + telling &&
                 !kvr__events_partial(router, replica))
                contradict(&replica->canary, cause_of(router, ticket));
        else if (said >= telling && fabs(found - said) <= fmax(TELLING_BLOCKS * block, SLIP_SHARE * said))
                agree(&replica->canary);
}
