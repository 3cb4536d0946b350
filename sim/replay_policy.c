/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the reference model. */
#include "replay_brain.h"
#include "replay_int.h"
#include "replay_toll.h"
#include "rng.h"

#include <math.h>
#include <string.h>

#define GOLDEN      UINT64_C(0x9e3779b97f4a7c15)
#define BOUND       1.25 /* chwbl: of the mean number of requests */
#define GUARD_APART 64   /* guarded: more requests apart than this ... */
#define GUARD_RATIO 1.5  /* ... and by this factor is unbalanced */
#define GUARD_MATCH 0.3  /* share of the prompt from which a match decides */
#define RECENT_S    60.0 /* in which recent work fades */
#define TIE_S       1e-12

static const struct {
        const char *name, *help;
        bool plain, queue;
} policies[] = {
#define SIM_REPLAY_ROW(id, policy, without, with, text) \
        {.name = (policy), .help = (text), .plain = (without), .queue = (with)},
        SIM_REPLAY_POLICY_LIST(SIM_REPLAY_ROW)
#undef SIM_REPLAY_ROW
};

const char *sim_replay_policy_name(enum sim_replay_policy policy)
{
        return policies[policy].name;
}

const char *sim_replay_policy_help(enum sim_replay_policy policy)
{
        return policies[policy].help;
}

bool sim_replay_policy_fits(enum sim_replay_policy policy, bool queue)
{
        return queue ? policies[policy].queue : policies[policy].plain;
}

bool sim_replay_policy_find(const char *name, enum sim_replay_policy *ret)
{
        for (unsigned i = 0; i < SIM_REPLAY_POLICIES; i++) {
                if (strcmp(policies[i].name, name) == 0) {
                        *ret = (enum sim_replay_policy)i;
                        return true;
                }
        }
        return false;
}

/* ---- pieces of rules ---------------------------------------------------------------------------------- */

static uint32_t least_work(const struct sim__replay_run *run)
{
        uint32_t best = 0;

        for (uint32_t i = 1; i < run->replicas; i++) {
                if (run->servers[i].work < run->servers[best].work)
                        best = i;
        }
        return best;
}

static uint32_t least_backlog(const struct sim__replay_run *run)
{
        uint32_t best = 0;

        for (uint32_t i = 1; i < run->replicas; i++) {
                if (run->servers[i].backlog_s < run->servers[best].backlog_s)
                        best = i;
        }
        return best;
}

static uint32_t least_waiting(const struct sim__replay_run *run)
{
        uint32_t best = 0;

        for (uint32_t i = 1; i < run->replicas; i++) {
                if (run->servers[i].waiting < run->servers[best].waiting)
                        best = i;
        }
        return best;
}

static uint32_t least_loaded(const struct sim__replay_run *run)
{
        return run->options->load > 0 ? least_backlog(run) : least_work(run);
}

/* Fills in all matches, gives the longest. */
static uint32_t match_all(struct sim__replay_run *run, const uint32_t *ids, uint32_t count)
{
        uint32_t longest = 0;

        for (uint32_t i = 0; i < run->replicas; i++) {
                uint32_t match = sim__replay_match(&run->caches, i, ids, count);

                run->servers[i].match = match;
                longest = match > longest ? match : longest;
        }
        return longest;
}

/* Of the replicas with the longest match the one with the least of something. */
enum tie { TIE_WORK, TIE_BACKLOG, TIE_WAITING };

static double tie_of(const struct sim__replay_server *server, enum tie tie)
{
        switch (tie) {
        case TIE_WORK:
                return (double)server->work;
        case TIE_BACKLOG:
                return server->backlog_s;
        case TIE_WAITING:
                break;
        }
        return server->waiting;
}

static uint32_t longest_match(const struct sim__replay_run *run, uint32_t longest, enum tie tie)
{
        uint32_t best = run->replicas;
        double least = INFINITY;

        for (uint32_t i = 0; i < run->replicas; i++) {
                double figure = tie_of(&run->servers[i], tie);

                if (run->servers[i].match == longest && figure < least) {
                        best = i;
                        least = figure;
                }
        }
        return best;
}

/* ---- rules -------------------------------------------------------------------------------------------- */

static uint32_t by_hash(const struct sim__replay_run *run, uint32_t row)
{
        const uint64_t *ids = sim_trace_ids(run->replay->trace, row);
        uint64_t id = ids[run->replay->trace->rows[row].id_count > 1 ? 1 : 0];

        return (uint32_t)(sim_mix64(id + GOLDEN) % run->replicas);
}

static uint32_t by_bounded_hash(const struct sim__replay_run *run, uint32_t row)
{
        uint32_t home = by_hash(run, row);
        uint64_t all = 0;
        double bound;

        for (uint32_t i = 0; i < run->replicas; i++)
                all += run->servers[i].waiting;
        bound = ceil(BOUND * (double)(all + 1) / run->replicas);
        for (uint32_t i = 0; i < run->replicas; i++) {
                uint32_t at = (home + i) % run->replicas;

                if (run->servers[at].waiting + 1.0 <= bound)
                        return at;
        }
        return least_waiting(run);
}

static uint32_t by_cost(const struct sim__replay_run *run, uint32_t count)
{
        uint32_t best = 0;
        uint64_t least = UINT64_MAX;

        for (uint32_t i = 0; i < run->replicas; i++) {
                uint64_t cost = run->servers[i].work + count - run->servers[i].match;

                if (cost < least) {
                        best = i;
                        least = cost;
                }
        }
        return best;
}

static double own_tokens(const struct sim__replay_run *run, uint32_t count, uint32_t i)
{
        return (double)((uint64_t)run->replay->trace->block_tokens * (count - run->servers[i].match));
}

static uint32_t by_cost_in_time(const struct sim__replay_run *run, uint32_t count)
{
        uint32_t best = 0;
        double least = INFINITY;

        for (uint32_t i = 0; i < run->replicas; i++) {
                double cost = run->servers[i].backlog_s + own_tokens(run, count, i) / run->rate;

                if (cost < least) {
                        best = i;
                        least = cost;
                }
        }
        return best;
}

static uint32_t by_guarded_match(struct sim__replay_run *run, uint32_t longest, uint32_t count)
{
        uint32_t most = 0, least = UINT32_MAX;

        for (uint32_t i = 0; i < run->replicas; i++) {
                uint32_t waiting = run->servers[i].waiting;

                most = waiting > most ? waiting : most;
                least = waiting < least ? waiting : least;
        }
        if (most - least > GUARD_APART && most > GUARD_RATIO * least)
                return least_waiting(run);
        return longest > GUARD_MATCH * count ? longest_match(run, longest, TIE_WAITING) : least_waiting(run);
}

static uint32_t by_product(const struct sim__replay_run *run, uint32_t count)
{
        uint32_t best = 0;
        double least = INFINITY;

        for (uint32_t i = 0; i < run->replicas; i++) {
                const struct sim__replay_server *server = &run->servers[i];
                double figure =
                        (server->backlog_s * run->rate + own_tokens(run, count, i)) * (server->waiting + 1.0);

                if (figure < least || (figure == least && server->waiting < run->servers[best].waiting)) {
                        best = i;
                        least = figure;
                }
        }
        return best;
}

/* ---- ties to the least recent work -------------------------------------------------------------------- */

/* Of all with the least of a figure, and at least so long a match. */
static uint32_t least_recent(const struct sim__replay_run *run, uint32_t match, uint32_t count, bool own)
{
        double least = INFINITY, figure;
        uint32_t best = run->replicas;

        for (unsigned pass = 0; pass < 2; pass++) {
                for (uint32_t i = 0; i < run->replicas; i++) {
                        const struct sim__replay_server *server = &run->servers[i];

                        if (server->match < match)
                                continue;
                        figure = server->backlog_s + (own ? own_tokens(run, count, i) / run->rate : 0);
                        if (pass == 0)
                                least = fmin(least, figure);
                        else if (figure <= least + TIE_S &&
                                 (best == run->replicas || server->recent_s < run->servers[best].recent_s))
                                best = i;
                }
        }
        return best;
}

static uint32_t by_recent_work(struct sim__replay_run *run, uint32_t longest, uint32_t count)
{
        bool own = run->options->policy == SIM_REPLAY_COST_T_WORK;
        double fade = exp(-(run->now_s - run->recent_at_s) / RECENT_S);
        uint32_t chosen;

        for (uint32_t i = 0; i < run->replicas; i++)
                run->servers[i].recent_s *= fade;
        run->recent_at_s = run->now_s;
        chosen = least_recent(run, !own && 2 * (uint64_t)longest >= count ? longest : 0, count, own);
        run->servers[chosen].recent_s += own_tokens(run, count, chosen) / run->rate;
        return chosen;
}

uint32_t sim__replay_choose(struct sim__replay_run *run, uint32_t row)
{
        const struct sim_trace_row *at = &run->replay->trace->rows[row];
        const uint32_t *ids = run->replay->ids + at->first_id;
        enum tie tie = run->options->load > 0 ? TIE_BACKLOG : TIE_WORK;
        uint32_t count = at->id_count, longest;

        switch (run->options->policy) {
        case SIM_REPLAY_RR:
                return row % run->replicas;
        case SIM_REPLAY_LL:
                return least_loaded(run);
        case SIM_REPLAY_HASH2:
                return by_hash(run, row);
        case SIM_REPLAY_CHWBL:
                return by_bounded_hash(run, row);
        case SIM_REPLAY_POOLED:
        case SIM_REPLAY_IDEAL:
        case SIM_REPLAY_POLICIES:
                return 0;
        case SIM_REPLAY_LPM:
        case SIM_REPLAY_LPM50:
        case SIM_REPLAY_COST:
        case SIM_REPLAY_COST_T:
        case SIM_REPLAY_GUARDED:
        case SIM_REPLAY_LMETRIC:
        case SIM_REPLAY_LPM50_WORK:
        case SIM_REPLAY_COST_T_WORK:
        case SIM_REPLAY_TOLL:
        case SIM_REPLAY_TOLL_HOME:
        case SIM_REPLAY_TOLL_COUNT:
        case SIM_REPLAY_KV:
                break;
        }
        longest = match_all(run, ids, count);
        switch (run->options->policy) {
        case SIM_REPLAY_LPM:
                return longest_match(run, longest, tie);
        case SIM_REPLAY_LPM50:
                return 2 * (uint64_t)longest >= count ? longest_match(run, longest, tie) : least_loaded(run);
        case SIM_REPLAY_COST:
                return by_cost(run, count);
        case SIM_REPLAY_COST_T:
                return by_cost_in_time(run, count);
        case SIM_REPLAY_LPM50_WORK:
        case SIM_REPLAY_COST_T_WORK:
                return by_recent_work(run, longest, count);
        case SIM_REPLAY_TOLL:
        case SIM_REPLAY_TOLL_HOME:
        case SIM_REPLAY_TOLL_COUNT:
                return sim__replay_toll_choose(run, row, longest);
        case SIM_REPLAY_KV:
                return sim__replay_brain_choose(run, row);
        case SIM_REPLAY_GUARDED:
                return by_guarded_match(run, longest, count);
        default:
                return by_product(run, count);
        }
}
