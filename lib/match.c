/* SPDX-License-Identifier: Apache-2.0 */
/* How long a prompt is in tokens, and how much of it each candidate has. */
#include <math.h>
#include <string.h>

#include "router_int.h"

#define TRUST_FULL    0.5  /* matches of a replica count in full while this share of predictions comes true */
#define ANSWER_EXCESS 1.25 /* generated tokens may be so many times the estimate for the answer's text */
#define ANSWER_YIELD  0.5  /* answers are counted on while this share of them is found again */
#define ANSWER_SLACK  16   /* tokens of the template around an answer */

/* ---- the prompt in tokens ---- */

static uint32_t to_tokens(double tokens)
{
        return tokens < 0 ? 0 : tokens < UINT32_MAX ? (uint32_t)(tokens + 0.5) : UINT32_MAX;
}

/* Tokens up to each point, a straight line between points whose tokens were counted, the model's ratio after
 * them. */
static void tokens_measure(struct kvr_router *router, const struct kvr__query *query, double ratio)
{
        const struct kvr_point *points = query->points;
        uint32_t *tokens = router->tokens, at = 0;
        double end = 0, sum = 0;

        for (uint32_t i = 0; !query->by_tokens && i < router->path.noted_count; i++) {
                uint32_t point = router->path.noted[i];
                const struct kvr__note *note = kvr__index_note(router->index, &router->path, point);

                if (!note->tokens || note->tokens < sum || points[point].end <= end)
                        continue;
                double slope = (note->tokens - sum) / (points[point].end - end);

                for (; at <= point; at++)
                        tokens[at] = to_tokens(sum + (points[at].end - end) * slope);
                end = points[point].end;
                sum = note->tokens;
        }
        if (query->by_tokens)
                ratio = 1;
        for (; at < query->point_count; at++)
                tokens[at] = to_tokens(sum + (points[at].end - end) * ratio);
}

void kvr__prompt_measure(struct kvr_router *router, const struct kvr__query *query,
                         struct kvr__choice *choice)
{
        double ratio = kvr__model_ratio(&router->models, choice->model);

        router->path.known = router->path.noted_count = 0;
        if (query->point_count) {
                kvr__index_find(router->index, query->points, query->point_count, &router->path);
                tokens_measure(router, query, ratio);
                kvr__look_measure(router, query, choice);
                choice->prompt_tokens = router->tokens[query->point_count - 1];
        } else {
                choice->prompt_tokens = to_tokens(query->units * (query->by_tokens ? 1 : ratio));
        }
        if (query->units && !choice->prompt_tokens)
                choice->prompt_tokens = 1;
        choice->charge_tokens = choice->prompt_tokens ? choice->prompt_tokens : KVR__UNKNOWN_TOKENS;
}

/* ---- matches ---- */

uint32_t kvr__hit_tokens(uint32_t block_tokens, double tokens, uint32_t prompt_tokens)
{
        if (tokens > prompt_tokens - 1.0)
                tokens = prompt_tokens - 1.0;
        uint32_t whole = tokens > 0 ? (uint32_t)tokens : 0;

        return block_tokens > 1 ? whole - whole % block_tokens : whole;
}

uint32_t kvr__trusted_tokens(const struct kvr__replica *replica, uint32_t tokens)
{
        return replica->trust < TRUST_FULL ? (uint32_t)(tokens * replica->trust / TRUST_FULL) : tokens;
}

/* Ends of messages are told from points of the grid by their place: steps of the grid are multiples of its
 * first one. */
uint32_t kvr__message_end(const struct kvr__query *query, uint32_t point)
{
        uint32_t grid = query->by_tokens ? KVR_GRID_MIN_TOKENS : KVR_GRID_MIN_BYTES;

        while (point + 1 < query->point_count && query->points[point].end % grid == 0)
                point++;
        return point;
}

double kvr__answer_tokens(const struct kvr_router *router, const struct kvr__query *query,
                          const struct kvr__choice *choice, uint32_t points, double answer)
{
        if (answer <= 0 || !choice->model || choice->model->answer_yield < ANSWER_YIELD)
                return 0;
        double room = (double)router->tokens[kvr__message_end(query, points)] - router->tokens[points - 1];

        /* Much more was generated than came back: the beginning of it, reasoning, was left out. */
        return answer > room * ANSWER_EXCESS + ANSWER_SLACK ? 0 : fmin(answer, room);
}

static void candidate_match(struct kvr_router *router, const struct kvr__query *query,
                            const struct kvr__choice *choice, struct kvr__candidate *candidate)
{
        struct kvr__replica *replica = candidate->replica;
        double answer = 0;

        if (query->look && kvr__event_match(router, query, choice, candidate))
                return;
        candidate->points = router->depth[replica->lane];
        if (replica->slots) {
                struct kvr__slots_match match;
                uint32_t count = kvr__slots_count(replica->slots);
                uint32_t waiting = replica->in_flight > count ? replica->in_flight - count : 0;
                struct kvr__slots_ask ask = {query->points, query->point_count,
                                             (double)choice->prompt_tokens / query->units, waiting};

                kvr__slots_match(replica->slots, &ask, &match);
                candidate->points = match.points;
                candidate->slot_rank = match.rank;
                candidate->slot_copy = match.copy;
                candidate->likely_tokens = kvr__trusted_tokens(
                        replica, kvr__hit_tokens(replica->block_tokens, match.likely, choice->prompt_tokens));
                answer = match.answer;
        } else if (candidate->points && candidate->points < query->point_count) {
                const struct kvr__note *note =
                        kvr__index_note(router->index, &router->path, candidate->points - 1);

                if (note && note->answer_lane == replica->lane)
                        answer = note->answer;
        }
        if (!candidate->points)
                return;
        double tokens = router->tokens[candidate->points - 1];

        candidate->base_tokens = kvr__hit_tokens(replica->block_tokens, tokens, choice->prompt_tokens);
        candidate->full_tokens = candidate->base_tokens;
        answer = kvr__answer_tokens(router, query, choice, candidate->points, answer);
        if (answer > 0)
                candidate->full_tokens =
                        kvr__hit_tokens(replica->block_tokens, tokens + answer, choice->prompt_tokens);
        candidate->match_tokens = kvr__trusted_tokens(replica, candidate->full_tokens);
}

static void lane_want(struct kvr_router *router, uint16_t lane, uint32_t *words)
{
        if (lane == KVR__NO_LANE)
                return;
        while (*words <= lane / 64U)
                router->want[(*words)++] = 0;
        router->want[lane / 64] |= 1ULL << (lane % 64);
        router->depth[lane] = 0;
}

/* Most are empty most of the time, and every lane costs. */
static void young_want(struct kvr_router *router, uint16_t lane, uint32_t *words)
{
        if (lane == KVR__NO_LANE)
                return;
        if (kvr__lane_pairs(router->index, lane))
                lane_want(router, lane, words);
        else
                router->depth[lane] = 0;
}

/* Most hold nothing of a prompt, and whoever asks for holders should not have to look at them. */
static bool holds_any(const struct kvr_router *router, const struct kvr__candidate *candidate)
{
        const struct kvr__replica *replica = candidate->replica;

        return candidate->points || candidate->match_tokens || candidate->likely_tokens ||
               (replica->slots && router->depth[replica->lane]);
}

void kvr__candidates_match(struct kvr_router *router, const struct kvr__query *query,
                           struct kvr__choice *choice)
{
        uint32_t words = 0;

        if (!query->point_count)
                return;
        for (uint32_t i = 0; i < choice->count; i++) {
                const struct kvr__replica *replica = router->candidates[i].replica;

                lane_want(router, replica->lane, &words);
                for (int n = 0; query->look && n < 2; n++)
                        young_want(router, replica->young.lanes[n], &words);
        }
        if (router->path.known)
                kvr__index_depths(router->index, &router->path, router->want, words, router->depth);
        for (uint32_t i = choice->count; i-- > 0;) {
                struct kvr__candidate *candidate = &router->candidates[i];

                candidate_match(router, query, choice, candidate);
                if (!holds_any(router, candidate))
                        continue;
                candidate->next = choice->holders;
                choice->holders = i + 1;
        }
}
