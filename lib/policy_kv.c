/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv: the replica on which the request costs least, in seconds:
 *
 *     cost = wait + own prefill + toll
 *     own  = speed of the replica * (prompt - match), a copy that is due counting as a match
 *     toll = (G - 1) * mean speed * (prompt - match), a copy that is allowed counting as a match
 *
 * G is the geometric mean over the candidates of 1 + requests in flight. A second of prefill is paid by this
 * request and by those who wait, and G - 1 is how many those are on an average replica: on an idle fleet the
 * rule just looks for the soonest start, on a busy one it hardly ever recomputes what somebody holds.
 *
 * A prefix at which prompts part (a trunk) deserves copies in proportion to the demand for it. As long as it
 * has fewer, a copy is free; up to twice as many it costs only the request's own time. Without this a popular
 * prefix would jam its holders, G would grow, and copying would look ever dearer. The mean is geometric
 * because one idle replica keeps that low. A prefix that fewer share gets another copy when the want of it has cost
 * its requests as much as that would.
 *
 * Where caches are starved (most of what prompts ask for was asked for before and is gone) waits are counted
 * in requests rather than in seconds. Replicas of equal seconds differ then: one serves many that find their
 * prompt there, another few that find nothing. A prompt that finds nothing either is better sent to the
 * latter, where it drops less that will be missed and delays fewer.
 */
#include <math.h>

#include "policy.h"

#define FORK_EXITS    4    /* fewer departures are a session that grows, not a shared prefix */
#define SHARE_DUE     1.0  /* copies up to this part of the demand are free */
#define SHARE_ALLOWED 2.0  /* and up to this one cost no toll */
#define SHARE_TRUNK   0.5  /* demand from which on a common beginning is one of many, not a session's own */
#define SEEN_MIN      8    /* requests per replica before demand is measured against less than that */
#define SPEED_ALIKE   0.15 /* learned speeds that differ by less are no reason to prefer a replica */
#define SPEED_NOISE_S 0.01 /* nor by less than that over a whole prompt: first tokens jitter as much */
#define SESSION_NOISE_S \
        0.005 /* costs that differ by less are equal where a session is known: first tokens jitter by as \
                 much */
#define STARVED_MIN   1e-3 /* less says nothing */
#define ALIKE_TOKENS  16   /* so many tokens do not make a match longer */
#define MEDIAN_SAMPLE 64   /* replicas that a median is taken of */
#define SESSION_WORTH 0.5  /* share of its unknown rest that a session's last replica is hoped to have */

/* How many have the points up to each fork, and beyond the one before: one look at each holder, whatever the forks. */
static void copies_count(const struct kvr__view *view, uint32_t *ret)
{
        for (uint32_t i = 0; i < view->fork_count; i++)
                ret[i] = 0;
        for (uint32_t i = view->holders; i; i = view->candidates[i - 1].next) {
                uint32_t points = view->candidates[i - 1].points, low = 0, high = view->fork_count;

                while (low < high) {
                        uint32_t middle = (low + high) / 2;

                        if (view->forks[middle].point < points)
                                low = middle + 1;
                        else
                                high = middle;
                }
                if (low)
                        ret[low - 1]++;
        }
}

/* The part of the prompt that many have in common. */
struct trunk {
        uint32_t due, allowed; /* leading tokens of which a copy is due, or allowed */
        uint32_t points;       /* its length, whatever copies there are */
};

static struct trunk trunk_find(const struct kvr__view *view)
{
        double seen = fmax(fmin(view->seen, view->span), (double)SEEN_MIN * view->count);
        struct trunk trunk = {0};
        uint32_t ends[KVR__FORKS_MAX], copies = 0;

        copies_count(view, ends);
        for (uint32_t i = view->fork_count; i-- > 0 && !trunk.due;) {
                const struct kvr__fork *fork = &view->forks[i];

                copies += ends[i];
                if (fork->exits < FORK_EXITS)
                        continue;
                double share = view->count * fork->visits / seen;
                uint32_t tokens = view->tokens[fork->point];

                if (share >= SHARE_TRUNK && !trunk.points)
                        trunk.points = fork->point + 1;
                if (!copies)
                        continue;
                if (copies < SHARE_DUE * share)
                        trunk.due = tokens;
                if (copies < SHARE_ALLOWED * share && !trunk.allowed)
                        trunk.allowed = tokens;
        }
        return trunk;
}

/*
 * Where several routers send to one fleet, each knows but a part of what the replicas hold. All agree without
 * talking on a home for every family of prompts: the replica that draws the highest number for the first
 * point behind the trunk. How much of the unknown part of prompts is found there is learned, and homes are
 * preferred just as much: not at all where this router knows everything.
 */
static uint32_t home_find(const struct kvr__view *view, const struct trunk *trunk)
{
        uint64_t best_draw = 0;
        uint32_t best = view->count;

        if (!view->point_count || view->home_yield <= 0)
                return best;
        uint32_t point = trunk->points < view->point_count ? trunk->points : view->point_count - 1;

        for (uint32_t i = 0; i < view->count; i++) {
                uint64_t number = kvr__draw(view->points[point].key, view->candidates[i].replica);

                if (best == view->count || number > best_draw) {
                        best = i;
                        best_draw = number;
                }
        }
        return best;
}

/* Median of a few figures, which are reordered. */
static double median_of(double *figures, uint32_t count)
{
        for (uint32_t i = 1; i < count; i++) {
                double figure = figures[i];
                uint32_t at = i;

                for (; at > 0 && figures[at - 1] > figure; at--)
                        figures[at] = figures[at - 1];
                figures[at] = figure;
        }
        return figures[count / 2];
}

/*
 * A replica that has just come up looks idle, and its first requests are slow. It counts as busy as the
 * median of the others on top of its own load, less and less so during its first half minute: it gets about
 * its share, not everything. When all are new, as after a start, nobody is spared.
 */
static void newcomers_spare(struct kvr__view *view)
{
        double figures[MEDIAN_SAMPLE];
        uint32_t grown = 0, met = 0, n = 0;

        if (view->now_ns >= view->newest_ns + KVR__RAMP_NS)
                return;
        for (uint32_t i = 0; i < view->count; i++)
                grown += kvr__load_ramp(view->candidates[i].replica, view->now_ns) <= 0;
        if (!grown || grown == view->count)
                return;
        uint32_t step = (grown + MEDIAN_SAMPLE - 1) / MEDIAN_SAMPLE;

        for (uint32_t i = 0; i < view->count; i++)
                if (kvr__load_ramp(view->candidates[i].replica, view->now_ns) <= 0 && met++ % step == 0)
                        figures[n++] = view->candidates[i].wait_s;
        double median = n ? median_of(figures, n) : 0;

        for (uint32_t i = 0; i < view->count; i++)
                view->candidates[i].wait_s +=
                        kvr__load_ramp(view->candidates[i].replica, view->now_ns) * median;
}

/* Waits in requests, as far as caches are starved: all of them together are as long as before. */
static void waits_count(struct kvr__view *view)
{
        double wait_s = 0, queue_s = 0;

        if (view->starved < STARVED_MIN)
                return;
        for (uint32_t i = 0; i < view->count; i++) {
                wait_s += view->candidates[i].wait_s;
                queue_s += view->candidates[i].queue * view->candidates[i].token_s;
        }
        if (queue_s <= 0)
                return;
        for (uint32_t i = 0; i < view->count; i++) {
                struct kvr__candidate *candidate = &view->candidates[i];
                double counted_s = candidate->queue * candidate->token_s * wait_s / queue_s;

                candidate->wait_s += view->starved * (counted_s - candidate->wait_s);
        }
}

/* Tokens of the prompt that would have to be computed, given how many count as present. */
static double missing(const struct kvr__view *view, uint32_t match, uint32_t present)
{
        uint32_t have = match > present ? match : present;

        return have < view->prompt_tokens ? view->prompt_tokens - have : 0;
}

/*
 * Ties are common: an idle fleet, a new prompt. Speeds are learned and never quite equal, so replicas of
 * nearly the speed of the cheapest one are compared as if they had just that; otherwise whichever was
 * measured fastest would get everything. Ties go to the least recent work.
 */
static uint32_t ties_resolve(const struct kvr__view *view, const struct kvr__least *least)
{
        double token_s = view->candidates[least->at].token_s;
        struct kvr__least best = *least;

        for (uint32_t i = 0; i < view->count; i++) {
                const struct kvr__candidate *candidate = &view->candidates[i];

                if (candidate->token_s == token_s) { /* most often, and without a division */
                        kvr__least_try(&best, i, candidate->cost_s, candidate->replica->work);
                        continue;
                }
                double ratio = token_s / candidate->token_s;
                double apart_s = fabs(token_s - candidate->token_s) * view->prompt_tokens;

                if ((ratio < 1 - SPEED_ALIKE || ratio > 1 + SPEED_ALIKE) && apart_s > SPEED_NOISE_S)
                        continue;
                kvr__least_try(&best, i, (candidate->wait_s + candidate->own_s) * ratio + candidate->toll_s,
                               candidate->replica->work);
        }
        return best.at;
}

static void price_set(struct kvr__candidate *candidate, double own_s, double toll_s)
{
        candidate->own_s = own_s;
        candidate->toll_s = toll_s;
        candidate->cost_s = candidate->wait_s + own_s + toll_s;
}

/* Prices a candidate that has something of the prompt, or is its home. */
static void holder_price(const struct kvr__view *view, const struct trunk *trunk, double toll_s,
                         struct kvr__candidate *candidate, bool home)
{
        uint32_t match = candidate->match_tokens > candidate->likely_tokens ? candidate->match_tokens
                                                                            : candidate->likely_tokens;
        bool at_home = home && match >= trunk->allowed && candidate->replica->tells_cached;
        double hope = at_home ? 1 - view->home_yield : 1;

        candidate->due_tokens = match < trunk->due ? trunk->due : 0;
        price_set(candidate, candidate->token_s * missing(view, match, trunk->due) * hope,
                  toll_s * missing(view, match, trunk->allowed) * hope);
}

/* Those who have nothing of the prompt differ in their waits and speeds only, and they are many. */
static void others_price(const struct kvr__view *view, const struct trunk *trunk, double toll_s)
{
        double own = missing(view, 0, trunk->due);

        toll_s *= missing(view, 0, trunk->allowed);
        for (uint32_t i = 0; i < view->count; i++) {
                struct kvr__candidate *candidate = &view->candidates[i];

                candidate->due_tokens = trunk->due;
                price_set(candidate, candidate->token_s * own, toll_s);
        }
}

/* The last point at which many part, whatever copies of the prompt up to there there are; fork_count if none. */
static uint32_t last_fork(const struct kvr__view *view)
{
        for (uint32_t i = view->fork_count; i-- > 0;)
                if (view->forks[i].exits >= FORK_EXITS)
                        return i;
        return view->fork_count;
}

/*
 * Rent or buy. A prefix that is shared by too few for a copy to be due keeps all of them waiting for its holder
 * while others have less to do: each time it is a little, and a copy costs more. What they have lost that way is
 * summed up for the prefix, and when the sum has reached what a copy costs, one is made. So nobody loses much
 * more than the price of a copy before there is one, whatever comes later. Where caches are starved a copy costs
 * more than its work, for it drops what will be missed. `cost_s`: the least that it costs without another copy.
 */
static uint32_t copy_consider(struct kvr__view *view, double toll_s, double cost_s, uint32_t chosen)
{
        uint32_t fork = last_fork(view), best = view->count;
        double least_s = cost_s;

        if (fork == view->fork_count)
                return chosen;
        uint32_t present = view->tokens[view->forks[fork].point];

        if (view->candidates[chosen].match_tokens < present)
                return chosen;
        double tokens = missing(view, 0, present); /* for whoever has less than that */

        for (uint32_t i = 0; i < view->count; i++) {
                const struct kvr__candidate *other = &view->candidates[i];
                double with_s = other->wait_s + other->token_s * tokens + toll_s * tokens;

                if (other->match_tokens < present && with_s < least_s) {
                        least_s = with_s;
                        best = i;
                }
        }
        if (best == view->count)
                return chosen;
        view->regretted = fork;
        view->regret_s = view->forks[fork].regret_s + cost_s - least_s;
        struct kvr__candidate *copy = &view->candidates[best];

        if (view->regret_s * (1 - view->starved) < copy->cost_s - least_s)
                return chosen;
        view->regret_s = 0;
        copy->due_tokens = present;
        price_set(copy, copy->token_s * tokens, toll_s * tokens);
        return best;
}

uint32_t kvr__choose_kv(struct kvr__view *view)
{
        double toll_s = expm1(view->log_flight) * view->token_s; /* per token */
        struct kvr__least least = KVR__LEAST_NONE;
        struct trunk trunk = trunk_find(view);
        uint32_t best_match = 0;

        view->home = home_find(view, &trunk);
        waits_count(view);
        newcomers_spare(view);
        others_price(view, &trunk, toll_s);
        if (view->home < view->count)
                holder_price(view, &trunk, toll_s, &view->candidates[view->home], true);
        for (uint32_t i = view->holders; i; i = view->candidates[i - 1].next) {
                struct kvr__candidate *candidate = &view->candidates[i - 1];

                holder_price(view, &trunk, toll_s, candidate, i - 1 == view->home);
                if (candidate->match_tokens > best_match)
                        best_match = candidate->match_tokens;
        }
        for (uint32_t i = 0; i < view->count; i++)
                kvr__least_try(&least, i, view->candidates[i].cost_s, view->candidates[i].replica->work);
        least.at = ties_resolve(view, &least);
        uint32_t copy = copy_consider(view, toll_s, least.figure, least.at);

        if (copy != least.at || view->owner == view->count)
                return copy;
        /*
         * Nothing is known of most of the prompt, but of the session: its last replica may have what the text
         * does not show. Otherwise the session only decides between equals.
         */
        const struct kvr__candidate *owner = &view->candidates[view->owner];
        double rest = missing(view, best_match, 0), slack = SESSION_NOISE_S;

        /* A longer match elsewhere is not given up for the sake of a session. */
        if (missing(view, owner->match_tokens, 0) >
            missing(view, view->candidates[least.at].match_tokens, 0) + ALIKE_TOKENS)
                slack = 1e-9;

        if (rest > view->prompt_tokens / 2.0)
                slack += SESSION_WORTH * owner->token_s * rest;
        if (owner->cost_s > least.figure + slack)
                return least.at;
        view->by_session = !kvr__view_useful(view, owner->match_tokens);
        return view->owner;
}
