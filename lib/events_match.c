/* SPDX-License-Identifier: Apache-2.0 */
/* What a replica that tells by events has of a prompt. docs/events.md tells the rules. */
#include <math.h>

#include "router_int.h"

#define CPU_WORTH  0.8 /* a block in the host's memory saves this part of computing it, */
#define DISK_WORTH 0.5 /* one on disk this */

/* ---- tokens of the prompt ---- */

/* So many tokens are taken to lie before this place, which is behind `point` points and not behind another. */
static double tokens_at(const struct kvr_router *router, const struct kvr__query *query, uint32_t point,
                        uint32_t end)
{
        uint32_t from = point ? query->points[point - 1].end : 0;
        double before = point ? router->tokens[point - 1] : 0;

        if (point == query->point_count)
                return before;
        return before + (router->tokens[point] - before) * (end - from) / (query->points[point].end - from);
}

/* Up to `end`, which lies in front of `point` or on it, there are so many tokens: those from there on lie as much
 * further, those before are at most as many. */
static void tokens_shift(struct kvr_router *router, const struct kvr__query *query, uint32_t point,
                         uint32_t end, double tokens)
{
        double by = tokens - tokens_at(router, query, point, end);

        for (uint32_t i = point; i-- > 0 && router->tokens[i] > tokens;)
                router->tokens[i] = (uint32_t)tokens;
        for (uint32_t i = point; i < query->point_count; i++) {
                double moved = fmax(router->tokens[i] + by, 0);

                router->tokens[i] = moved < UINT32_MAX ? (uint32_t)(moved + 0.5) : UINT32_MAX;
        }
}

/* The answer that follows an earlier prompt has as many tokens as the engine generated. */
static void answer_shift(struct kvr_router *router, const struct kvr__query *query,
                         const struct kvr__choice *choice, uint32_t points)
{
        if (!points || points > router->path.known || points >= query->point_count)
                return;
        const struct kvr__note *note = kvr__index_note(router->index, &router->path, points - 1);
        uint32_t end = kvr__message_end(query, points);

        if (!note || !note->answer || end + 1 >= query->point_count ||
            kvr__answer_tokens(router, query, choice, points, note->answer) <= 0)
                return;
        tokens_shift(router, query, end, query->points[end].end,
                     (double)router->tokens[points - 1] + note->answer);
}

void kvr__look_measure(struct kvr_router *router, const struct kvr__query *query, struct kvr__choice *choice)
{
        const struct kvr__look_size *best = NULL;

        if (!query->look || query->by_tokens)
                return;
        for (int i = 0; i < KVR__EVENT_SIZES; i++) {
                const struct kvr__look_size *size = &query->look->sizes[i];

                if (size->end && (!best || size->end > best->end))
                        best = size;
        }
        if (!best)
                return;
        bool at_point = best->points && best->end == query->points[best->points - 1].end;

        tokens_shift(router, query, best->points - at_point, best->end, best->tokens);
        if (at_point && best->by == KVR__MAPPED_COUNT)
                answer_shift(router, query, choice, best->points);
}

/* ---- matches ---- */

/* Leading points that lie within so many tokens, at most `most`. */
static uint32_t points_within(const struct kvr_router *router, uint32_t most, double tokens)
{
        uint32_t low = 0, high = most;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (router->tokens[middle] <= tokens)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

/* The replica's answer to an earlier prompt that ends with these points, if it is in this prompt. */
static double answer_of(const struct kvr_router *router, const struct kvr__query *query,
                        const struct kvr__choice *choice, const struct kvr__replica *replica, uint32_t points)
{
        if (!points || points > router->path.known || points >= query->point_count)
                return 0;
        const struct kvr__note *note = kvr__index_note(router->index, &router->path, points - 1);

        if (!note || note->answer_lane != replica->lane || note->answer < 2)
                return 0;
        /* The last token that is generated is never fed back, so it is not in the cache. */
        return kvr__answer_tokens(router, query, choice, points, note->answer) > 0 ? note->answer - 1.0 : 0;
}

bool kvr__event_match(struct kvr_router *router, const struct kvr__query *query,
                      const struct kvr__choice *choice, struct kvr__candidate *candidate)
{
        const struct kvr__replica *replica = candidate->replica;
        const struct kvr__look *look = query->look;
        uint16_t lane = replica->event_lane;

        if (!look || lane == KVR__NO_LANE || !replica->events_trusted ||
            replica->event_size == KVR__NO_SIZE || !(look->want[lane / 64] & 1ULL << lane % 64))
                return false;
        const struct kvr__look_size *size = &look->sizes[replica->event_size];
        const struct kvr__look_depth *depth = &look->lanes[lane];
        uint32_t block = size->block_tokens, held = depth->gpu + depth->cpu + depth->disk;
        uint32_t history = router->depth[replica->lane];
        uint32_t young = kvr__young_points(router, replica, query->now_ns);

        /* Not what the prompts behind it in the queue will have displaced: history is as large as the cache. */
        young = young < history ? young : history;
        double tokens = (double)held * block, answer = 0;
        /* It has all that can be told of the prompt: nothing speaks against what history says of the rest. */
        bool all = held >= size->blocks;

        candidate->event_tokens = kvr__hit_tokens(block, tokens, choice->prompt_tokens);
        if (young)
                candidate->young_tokens =
                        kvr__hit_tokens(block, router->tokens[young - 1], choice->prompt_tokens);
        if (replica->canary.doubted)
                return false;
        /* Blocks that no event tells again may be there: history knows more of them. */
        if (history && kvr__events_partial(router, replica) &&
            router->tokens[history - 1] >= fmax(tokens, young ? router->tokens[young - 1] : 0))
                return false;
        candidate->points = all ? size->points : points_within(router, size->points, tokens);
        if (all && history >= size->points) {
                answer = answer_of(router, query, choice, replica, history);
                if (history > size->points) {
                        tokens = fmax(tokens, router->tokens[history - 1]);
                        candidate->points = history;
                }
        }
        if (young && router->tokens[young - 1] > tokens) {
                tokens = router->tokens[young - 1];
                candidate->points = young;
        }
        candidate->by_events = true;
        candidate->base_tokens = kvr__hit_tokens(block, tokens, choice->prompt_tokens);
        if (answer > 0)
                tokens = fmax(tokens, router->tokens[history - 1] + answer);
        candidate->full_tokens = kvr__hit_tokens(block, tokens, choice->prompt_tokens);
        /* Reading it back takes time, which is as good as computing a part of it. */
        double slow = block * (depth->cpu * (1 - CPU_WORTH) + depth->disk * (1 - DISK_WORTH));
        double worth = candidate->full_tokens - slow;

        candidate->match_tokens = kvr__trusted_tokens(replica, worth > 0 ? (uint32_t)worth : 0);
        return true;
}
