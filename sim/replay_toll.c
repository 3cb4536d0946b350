/* SPDX-License-Identifier: Apache-2.0 */
/*
 *     cost(r) = W(r) + c (n - max(m(r), due)) + (G - 1) c (n - max(m(r), allowed))
 *
 * n blocks of which r has m(r), c seconds each; G the geometric mean over the replicas of 1 + requests there.
 * `due` and `allowed` are the parts of the prompt that so many have in common that further copies are free,
 * or cost no toll.
 *
 * toll_count puts requests for seconds as far as caches are starved: with s the share of recent prompts that
 * was asked for before and is held by nobody any more,
 *
 *     starved = s^2 / (s^2 + (1 - s)^2),   W'(r) = (1 - starved) W(r) + starved q(r) sum W / sum q
 *
 * q(r) are the requests of r that have not finished, each with as much on top as the share of it that r held.
 */
#include "replay_toll.h"
#include "rng.h"

#include <math.h>
#include <stdlib.h>

#define SPAN       64   /* requests per replica over which visits fade */
#define SEEN_MIN   8    /* requests per replica before demand is measured against fewer */
#define FORK_EXITS 4    /* departures from which on a block is the end of a shared prefix */
#define FORGOTTEN  1e-6 /* visits, faded */
#define WORK_S     60.0 /* in which recent work fades */
#define TIE_S      1e-12
#define HOME_FIRST 0.5
#define HOME_STEP  (1.0 / 50)

struct block {
        double visits, exits; /* as of request number `seen` */
        uint32_t seen;
};

struct sim__replay_toll {
        struct block *blocks; /* by id */
        double *work;         /* per replica, recent seconds, as of now_s */
        double *cost;
        double now_s;
        double home_yield;
        double asked, lost; /* blocks of recent prompts, and those that came before and are gone */
        double *worth;      /* per row: 1 + the share of it that its replica held */
        double *queue;      /* per replica */
        uint32_t seen;
        uint32_t home;
};

struct sim__replay_toll *sim__replay_toll_new(const struct sim__replay_run *run)
{
        struct sim__replay_toll *toll = calloc(1, sizeof(*toll));

        if (!toll)
                return NULL;
        toll->blocks = calloc(run->replay->distinct, sizeof(*toll->blocks));
        toll->work = calloc(run->replicas, sizeof(*toll->work));
        toll->cost = calloc(run->replicas, sizeof(*toll->cost));
        if (run->options->policy == SIM_REPLAY_TOLL_COUNT) {
                toll->worth = calloc(run->replay->trace->row_count, sizeof(*toll->worth));
                toll->queue = calloc(run->replicas, sizeof(*toll->queue));
                if (!toll->worth || !toll->queue)
                        goto failed;
        }
        toll->home_yield = run->options->policy == SIM_REPLAY_TOLL_HOME ? HOME_FIRST : 0;
        if (toll->blocks && toll->work && toll->cost)
                return toll;
failed:
        sim__replay_toll_free(toll);
        return NULL;
}

void sim__replay_toll_free(struct sim__replay_toll *toll)
{
        if (!toll)
                return;
        free(toll->blocks);
        free(toll->work);
        free(toll->cost);
        free(toll->worth);
        free(toll->queue);
        free(toll);
}

/* ---- the trunk ---------------------------------------------------------------------------------------- */

static struct block *block_now(struct sim__replay_toll *toll, uint32_t replicas, uint32_t id)
{
        struct block *block = &toll->blocks[id];

        if (block->seen != toll->seen) {
                double fade = exp(-(double)(toll->seen - block->seen) / (SPAN * replicas));

                block->visits *= fade;
                block->exits *= fade;
                block->seen = toll->seen;
        }
        return block;
}

static uint32_t copies_of(const struct sim__replay_run *run, uint32_t at)
{
        uint32_t copies = 0;

        for (uint32_t i = 0; i < run->replicas; i++)
                copies += run->servers[i].match > at;
        return copies;
}

struct trunk {
        uint32_t due, allowed, length; /* in blocks */
};

static struct trunk trunk_of(struct sim__replay_run *run, const uint32_t *ids, uint32_t longest)
{
        struct sim__replay_toll *toll = run->toll;
        double seen = fmax(fmin(toll->seen, SPAN * run->replicas), SEEN_MIN * run->replicas);
        struct trunk trunk = {0};

        for (uint32_t i = 0; i < longest; i++) {
                const struct block *block = block_now(toll, run->replicas, ids[i]);
                double share = run->replicas * block->visits / seen;
                uint32_t copies;

                if (block->exits < FORK_EXITS)
                        continue;
                copies = copies_of(run, i);
                if (copies < share)
                        trunk.due = i + 1;
                if (copies < 2 * share)
                        trunk.allowed = i + 1;
                if (share >= 0.5)
                        trunk.length = i + 1;
        }
        return trunk;
}

/* ---- the choice --------------------------------------------------------------------------------------- */

/* The replica that draws the highest number for the family that a prompt belongs to. */
static uint32_t home_of(const struct sim__replay_run *run, uint64_t id)
{
        uint64_t most = 0;
        uint32_t best = 0;

        for (uint32_t i = 0; i < run->replicas; i++) {
                uint64_t number = sim_mix64(id ^ sim_mix64(i + 1));

                if (number >= most) {
                        most = number;
                        best = i;
                }
        }
        return best;
}

static uint32_t least_cost(const struct sim__replay_run *run)
{
        const struct sim__replay_toll *toll = run->toll;
        double least = INFINITY;
        uint32_t best = run->replicas;

        for (uint32_t i = 0; i < run->replicas; i++)
                least = fmin(least, toll->cost[i]);
        for (uint32_t i = 0; i < run->replicas; i++) {
                if (toll->cost[i] <= least + TIE_S &&
                    (best == run->replicas || toll->work[i] < toll->work[best]))
                        best = i;
        }
        return best;
}

/* Sets how long each replica counts as busy. */
static void waits_fill(struct sim__replay_run *run)
{
        struct sim__replay_toll *toll = run->toll;
        double lost = toll->lost, rest = toll->asked - toll->lost, backlog_s = 0, queue = 0, starved;

        for (uint32_t i = 0; i < run->replicas; i++)
                toll->cost[i] = run->servers[i].backlog_s;
        if (!toll->worth || lost <= 0)
                return;
        starved = lost * lost / (lost * lost + rest * rest);
        for (uint32_t i = 0; i < run->replicas; i++) {
                toll->queue[i] = 0;
                for (uint32_t row = run->servers[i].first; row; row = run->next[row - 1])
                        toll->queue[i] += toll->worth[row - 1];
                queue += toll->queue[i];
                backlog_s += run->servers[i].backlog_s;
        }
        for (uint32_t i = 0; i < run->replicas && queue > 0; i++)
                toll->cost[i] += starved * (toll->queue[i] * backlog_s / queue - toll->cost[i]);
}

static void costs_fill(struct sim__replay_run *run, uint32_t count, const struct trunk *trunk)
{
        struct sim__replay_toll *toll = run->toll;
        double block_s = run->replay->trace->block_tokens / run->rate, logs = 0, others;

        for (uint32_t i = 0; i < run->replicas; i++)
                logs += log1p(run->servers[i].waiting);
        others = expm1(logs / run->replicas);
        waits_fill(run);
        for (uint32_t i = 0; i < run->replicas; i++) {
                uint32_t match = run->servers[i].match;
                double hope = i == toll->home && match >= trunk->allowed ? 1 - toll->home_yield : 1;
                uint32_t own = count - (match > trunk->due ? match : trunk->due);
                uint32_t tolled = count - (match > trunk->allowed ? match : trunk->allowed);

                toll->cost[i] += block_s * own * hope + others * block_s * tolled * hope;
        }
}

/* How much of the prompt was asked for before, by anybody, and is nowhere? */
static void loss_count(struct sim__replay_run *run, uint32_t row, const uint32_t *ids, uint32_t count,
                       uint32_t longest, uint32_t chosen)
{
        struct sim__replay_toll *toll = run->toll;
        double keep = exp(-1.0 / (SPAN * run->replicas));
        uint32_t known = longest;

        while (known < count && toll->blocks[ids[known]].visits > FORGOTTEN)
                known++;
        toll->asked = toll->asked * keep + count;
        toll->lost = toll->lost * keep + (known - longest);
        toll->worth[row] = 1 + (double)run->servers[chosen].match / count;
}

static void remember(struct sim__replay_run *run, const uint32_t *ids, uint32_t count, uint32_t longest,
                     uint32_t chosen)
{
        struct sim__replay_toll *toll = run->toll;
        uint32_t missing = count - run->servers[chosen].match;

        for (uint32_t i = 0; i < count; i++)
                block_now(toll, run->replicas, ids[i])->visits += 1;
        if (longest)
                toll->blocks[ids[longest - 1]].exits += 1;
        toll->work[chosen] += run->replay->trace->block_tokens / run->rate * missing;
        /* The index is exact: homes never have more than was known. */
        if (missing && chosen == toll->home)
                toll->home_yield -= toll->home_yield * HOME_STEP;
}

uint32_t sim__replay_toll_choose(struct sim__replay_run *run, uint32_t row, uint32_t longest)
{
        struct sim__replay_toll *toll = run->toll;
        const struct sim_trace_row *at = &run->replay->trace->rows[row];
        const uint32_t *ids = run->replay->ids + at->first_id;
        double fade = exp(-(run->now_s - toll->now_s) / WORK_S);
        struct trunk trunk;
        uint32_t chosen;

        toll->now_s = run->now_s;
        for (uint32_t i = 0; i < run->replicas; i++)
                toll->work[i] *= fade;
        trunk = trunk_of(run, ids, longest);
        toll->home = run->replicas;
        if (run->options->policy == SIM_REPLAY_TOLL_HOME)
                toll->home = home_of(
                        run,
                        sim_trace_ids(run->replay->trace,
                                      row)[trunk.length < at->id_count ? trunk.length : at->id_count - 1]);
        costs_fill(run, at->id_count, &trunk);
        chosen = least_cost(run);
        toll->seen++;
        if (toll->worth)
                loss_count(run, row, ids, at->id_count, longest, chosen);
        remember(run, ids, at->id_count, longest, chosen);
        return chosen;
}
