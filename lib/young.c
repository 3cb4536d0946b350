/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Young predictions: between a decision and the events for it lie the queue and the prefill. What was sent to
 * a replica counts as held for a moment, in two lanes of the cache index of which the older one is closed
 * every few seconds.
 */
#include <math.h>

#include "router_int.h"

#define PERIOD_MIN_NS 1000000000ULL  /* a lane is filled for so long, */
#define PERIOD_MAX_NS 30000000000ULL /* at most so long, */
#define PERIOD_FIRSTS 2              /* and for so many times of what first tokens take */
#define FIRST_STEP    (1.0 / 8)

static uint64_t period_ns(const struct kvr__replica *replica)
{
        double wish = replica->young.first_token_s * PERIOD_FIRSTS * 1e9;

        return wish > PERIOD_MIN_NS ? wish < PERIOD_MAX_NS ? (uint64_t)wish : PERIOD_MAX_NS : PERIOD_MIN_NS;
}

static void lane_close(struct kvr_router *router, uint16_t *lane)
{
        if (*lane != KVR__NO_LANE)
                kvr__lane_close(router->index, *lane);
        *lane = KVR__NO_LANE;
}

void kvr__young_open(struct kvr_router *router, struct kvr__replica *replica)
{
        if (replica->young.lanes[0] == KVR__NO_LANE &&
            !kvr__lane_open(router->index, &replica->young.lanes[0]))
                replica->young.lanes[0] = KVR__NO_LANE;
        replica->young.since_ns[0] = kvr__router_now(router);
}

void kvr__young_close(struct kvr_router *router, struct kvr__replica *replica)
{
        lane_close(router, &replica->young.lanes[0]);
        lane_close(router, &replica->young.lanes[1]);
}

void kvr__young_drop(struct kvr_router *router, struct kvr__replica *replica)
{
        kvr__young_close(router, replica);
        kvr__young_open(router, replica);
}

static void rotate(struct kvr_router *router, struct kvr__replica *replica)
{
        struct kvr__young *young = &replica->young;

        lane_close(router, &young->lanes[1]);
        young->lanes[1] = young->lanes[0];
        young->since_ns[1] = young->since_ns[0];
        young->lanes[0] = KVR__NO_LANE;
        kvr__young_open(router, replica);
}

uint32_t kvr__young_points(const struct kvr_router *router, const struct kvr__replica *replica,
                           uint64_t now_ns)
{
        const struct kvr__young *young = &replica->young;
        uint64_t life_ns = 2 * period_ns(replica);
        uint32_t points = 0;

        for (int i = 0; i < 2; i++) {
                uint16_t lane = young->lanes[i];

                if (lane != KVR__NO_LANE && now_ns < young->since_ns[i] + life_ns &&
                    router->depth[lane] > points)
                        points = router->depth[lane];
        }
        return points;
}

void kvr__young_book(struct kvr_router *router, struct kvr_ticket *ticket, double tokens_per_unit)
{
        struct kvr__replica *replica = ticket->replica;
        struct kvr__young *young = &replica->young;
        bool fresh = young->lanes[0] == KVR__NO_LANE;

        if (fresh) {
                kvr__young_open(router, replica);
        } else if (ticket->sent_ns >= young->since_ns[0] + period_ns(replica)) {
                rotate(router, replica);
                fresh = true;
        }
        if (young->lanes[0] == KVR__NO_LANE)
                return;
        struct kvr__touch touch = {
                .lane = young->lanes[0],
                .owner = ticket->mark,
                .held = fresh ? 0 : router->depth[young->lanes[0]],
                .tokens_per_unit = tokens_per_unit,
        };

        /* Where there was no room for all of it there, no more than that is looked at here. */
        if (touch.held > ticket->inserted)
                touch.held = ticket->inserted;
        ticket->young_held = touch.held;
        /* History was touched just before, which noted the nodes of all that is there now. */
        router->path.known = ticket->inserted;
        (void)kvr__index_touch(router->index, &router->path, ticket->points, ticket->inserted, &touch);
}

void kvr__young_withdraw(struct kvr_router *router, const struct kvr_ticket *ticket)
{
        const struct kvr__young *young = &ticket->replica->young;

        for (int i = 0; i < 2; i++)
                if (young->lanes[i] != KVR__NO_LANE)
                        kvr__index_remove(router->index, &router->path, young->lanes[i], ticket->points,
                                          ticket->young_held, ticket->inserted, ticket->mark);
}

void kvr__young_first_token(struct kvr__replica *replica, const struct kvr_ticket *ticket)
{
        double took_s =
                ticket->first_ns > ticket->sent_ns ? (double)(ticket->first_ns - ticket->sent_ns) / 1e9 : 0;
        double *mean_s = &replica->young.first_token_s;

        *mean_s += *mean_s > 0 ? (took_s - *mean_s) * FIRST_STEP : took_s;
}
