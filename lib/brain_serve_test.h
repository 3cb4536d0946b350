/* SPDX-License-Identifier: Apache-2.0 */
/* One fleet and one prompt for a test program whose cases serve requests and look at what was learned from
 * them. */
#ifndef KVROUTE_LIB_BRAIN_SERVE_TEST_H
#define KVROUTE_LIB_BRAIN_SERVE_TEST_H

#include "brain_test.h"

static struct brain_fleet fleet;
static struct brain_prompt p;

static int down(void **state)
{
        (void)state;
        kvr_router_free(fleet.router);
        fleet.router = NULL;
        return 0;
}

static void up(uint32_t count, struct kvr_replica_spec spec)
{
        brain_fleet_up(&fleet, NULL, count, spec);
}

static void assert_near(double a, double b, double off)
{
        if (!(fabs(a - b) <= off))
                fail_msg("%.12g is not %.12g", a, b);
}

static struct kvr_request text(uint64_t number, uint64_t bytes)
{
        return (struct kvr_request){.prompt = brain_prompt_of(&p, number, bytes)};
}

static struct kvr_decision explain(const struct kvr_request *request)
{
        struct kvr_decision decision;
        size_t count;

        assert_int_equal(kvr_explain(fleet.router, request, &decision, NULL, 0, &count, NULL), KVR_OK);
        return decision;
}

/* Predicted match of that text on the only or chosen replica. */
static uint32_t predict(uint64_t number, uint64_t bytes)
{
        struct kvr_request request = text(number, bytes);

        return explain(&request).match_tokens;
}

static struct kvr_decision serve_as(const struct kvr_request *request, int64_t prompt, int64_t cached,
                                    int64_t answer)
{
        struct kvr_decision decision;
        struct kvr_ticket *ticket = brain_send(&fleet, request, &decision);

        fleet.env.now_ns += BRAIN_MS(100);
        kvr_ticket_first_token(ticket);
        brain_end(ticket, KVR_END_FINISHED, prompt, cached, answer);
        return decision;
}

#endif
