/* SPDX-License-Identifier: Apache-2.0 */
/* What became of a ticket: books closed, prediction compared, beliefs corrected. */
#include <math.h>

#include "router_int.h"

#define ERROR_STEP          (1.0 / 16)
#define TRUST_STEP          (1.0 / 8)
#define STAY_STEP           (1.0 / 16)
#define SPEED_SAMPLES_EAGER 4    /* until then it is learned at the first token, on predicted figures */
#define SIZE_STEP           0.02 /* a shortfall takes this part off the capacity, */
#define SIZE_GROW           0.04 /* a hit on what had been given up adds this: rare, but sure */
#define SIZE_FIRST          1.5  /* the first guess, in what we believe is held */
#define SIZE_CUT            0.7  /* left of a capacity that runs of misses prove too large */
#define CAPACITY_MIN        1024.0
#define SLIP_TOKENS         64.0  /* a prediction may be off by so much, */
#define SLIP_SHARE          0.125 /* or by this part of it, before it says something about the cache */
#define SURPRISE_KEEP       0.998 /* forgotten over some hundreds of requests */
#define SURPRISES_TELL      4
#define HOME_FIRST          0.5
#define HOME_OFF            0.02 /* less is noise */
#define HOME_UP             0.02
#define HOME_DOWN           0.005
#define HOME_TOKENS         256.0 /* an unknown part so long, */
#define HOME_SHARE          0.125 /* and at least this part of the prompt, says something about homes */
#define TELLING_TOKENS      128.0 /* shorter predictions say nothing */
#define MISS_TOKENS         256.0 /* a prediction at least so long of which */
#define MISS_SHARE          0.1   /* less than this part came true is a miss; */
#define MISSES_RESET        4     /* so many in a row, and the replica must have lost everything, */
#define AGAIN_SOON          64    /* unless that was concluded only so many predictions ago */

/* ---- first token ---- */

static void speed_learn(struct kvr_ticket *ticket, double uncached, double cached)
{
        struct kvr__model *model = kvr__models_get(&ticket->router->models, ticket->model);

        kvr__speed_learn(&model->curve, &ticket->replica->speed, uncached, cached, ticket->busy_s);
        ticket->replica->model = ticket->model;
}

static void first_token(struct kvr_ticket *ticket, uint64_t now_ns)
{
        struct kvr__replica *replica = ticket->replica;

        if (!kvr__load_first_token(replica, ticket, now_ns))
                return;
        kvr__young_first_token(replica, ticket);
        /* Where hits are told, the speed is better learned at settlement from what was really computed. */
        if (ticket->prompt_tokens &&
            (!replica->tells_cached || replica->speed.samples < SPEED_SAMPLES_EAGER)) {
                speed_learn(ticket, ticket->prompt_tokens - ticket->match_tokens, ticket->match_tokens);
                ticket->learned = true;
        }
}

void kvr_ticket_first_token(struct kvr_ticket *ticket)
{
        struct kvr_router *router = ticket->router;
        uint64_t now_ns = kvr__router_now(router);

        kvr__router_lock(router);
        first_token(ticket, now_ns);
        kvr__router_unlock(router);
}

/* ---- settlement ---- */

/* The figures of one settlement; tokens are -1 where unknown. */
struct result {
        const struct kvr_outcome *outcome;
        uint64_t now_ns;
        bool computed; /* the engine has at least prefilled the prompt */
        double prompt; /* counted, else estimated; 0 unknown */
        double cached;
        uint32_t predicted; /* as the client was told, but less than the prompt */
};

static struct result result_make(const struct kvr_ticket *ticket, const struct kvr_outcome *outcome,
                                 uint64_t now_ns)
{
        struct result result = {.outcome = outcome, .now_ns = now_ns, .cached = -1};

        result.computed = ticket->first_token || outcome->end == KVR_END_FINISHED;
        result.prompt = outcome->prompt_tokens > 0 ? (double)outcome->prompt_tokens : ticket->prompt_tokens;
        if (result.prompt > UINT32_MAX)
                result.prompt = UINT32_MAX;
        result.predicted = ticket->match_tokens;
        if (result.predicted && result.predicted >= result.prompt)
                result.predicted = (uint32_t)result.prompt - 1;
        if (ticket->measurable && outcome->cached_tokens >= 0)
                result.cached = (double)outcome->cached_tokens < result.prompt
                                        ? (double)outcome->cached_tokens
                                        : result.prompt;
        return result;
}

static void slots_advance(struct kvr__replica *replica, uint64_t now_ns)
{
        while (replica->deferred_head) {
                struct kvr_ticket *ticket = replica->deferred_head;
                /* Of one that was sent before all was forgotten nothing is believed, but it does take a slot.
                 */
                bool current = ticket->epoch == replica->epoch && ticket->units;
                struct kvr__slots_ask ask = {ticket->points, current ? ticket->point_count : 0,
                                             current ? (double)ticket->prompt_tokens / ticket->units : 0, 0};

                ticket->slot = kvr__slots_start(replica->slots, &ask);
                if (ticket->slot == KVR__NO_SLOT)
                        return;
                ticket->deferred = false;
                ticket->slot_ns = now_ns;
                replica->deferred_head = ticket->next_deferred;
                if (!replica->deferred_head)
                        replica->deferred_tail = NULL;
        }
}

static void deferred_unlink(struct kvr__replica *replica, struct kvr_ticket *ticket)
{
        struct kvr_ticket *before = NULL;

        for (struct kvr_ticket *at = replica->deferred_head; at != ticket; at = at->next_deferred)
                before = at;
        if (before)
                before->next_deferred = ticket->next_deferred;
        else
                replica->deferred_head = ticket->next_deferred;
        if (replica->deferred_tail == ticket)
                replica->deferred_tail = before;
        ticket->deferred = false;
}

void kvr__slots_leave(struct kvr__replica *replica, struct kvr_ticket *ticket, bool computed, uint32_t answer,
                      uint64_t now_ns)
{
        if (ticket->deferred)
                deferred_unlink(replica, ticket);
        if (!replica->slots || ticket->slot == KVR__NO_SLOT || ticket->slots_epoch != replica->slots_epoch)
                return;
        if (computed)
                kvr__slots_finish(replica->slots, ticket->slot, answer);
        else
                kvr__slots_abort(replica->slots, ticket->slot);
        slots_advance(replica, now_ns);
}

/* The engine counted the prompt: the next one that begins like this is estimated from here. */
static void tokens_learn(struct kvr_router *router, struct kvr_ticket *ticket, const struct result *result)
{
        struct kvr__model *model = kvr__models_get(&router->models, ticket->model);
        const struct kvr_outcome *outcome = result->outcome;
        uint32_t tokens = (uint32_t)result->prompt;

        if (!ticket->measurable || !ticket->units)
                return;
        if (outcome->prompt_tokens > 0 && !ticket->by_tokens)
                kvr__model_learn(model, tokens, ticket->units);
        if (!ticket->inserted || ticket->inserted < ticket->point_count)
                return;
        struct kvr__note *note = kvr__index_note_at(router->index, ticket->end_node,
                                                    ticket->points[ticket->point_count - 1].key, true);

        if (!note)
                return;
        if (outcome->prompt_tokens > 0) {
                note->tokens = tokens;
                note->exact = true;
        }
        if (outcome->completion_tokens > 0 && outcome->end == KVR_END_FINISHED) {
                int64_t answer = outcome->completion_tokens;

                note->answer = answer < UINT32_MAX ? (uint32_t)answer : UINT32_MAX;
                note->answer_lane = ticket->replica->lane;
        }
        /* The fork it left known ground at is where others will be measured: a share of this prompt's tokens.
         */
        if (outcome->prompt_tokens > 0 && ticket->fork && ticket->fork < ticket->point_count) {
                const struct kvr_point *fork = &ticket->points[ticket->fork - 1];

                note = kvr__index_note_at(router->index, ticket->fork_node, fork->key, false);
                if (note && !note->exact)
                        note->tokens = (uint32_t)(result->prompt * fork->end / ticket->units + 0.5);
        }
}

/* Was something of the surplus sent there earlier and dropped from the index since? */
static bool surplus_was_ours(struct kvr_router *router, const struct kvr_ticket *ticket, double until_units)
{
        for (uint32_t i = ticket->held; i < ticket->point_count && ticket->points[i].end <= until_units;
             i++) {
                bool sampled;

                if (kvr__lane_lost(router->index, ticket->replica->lane, ticket->points[i].key, &sampled))
                        return true;
        }
        return false;
}

static void capacity_shrink(struct kvr_router *router, struct kvr__replica *replica)
{
        double held = (double)kvr__lane_tokens(router->index, replica->lane);

        replica->capacity = replica->capacity > 0 ? replica->capacity * (1 - SIZE_STEP) : held * SIZE_FIRST;
        replica->capacity = fmax(replica->capacity, CAPACITY_MIN);
        replica->capacity_learned = true;
}

/*
 * Long predictions fail one after the other. The first time, the replica has restarted or was flushed without
 * anybody telling: all is forgotten. If it happens again soon, its cache is just much smaller than we think.
 */
static bool misses_conclude(struct kvr_router *router, struct kvr__replica *replica)
{
        bool again = replica->resets && replica->told < AGAIN_SOON;

        replica->misses = 0;
        replica->told = 0;
        if (again) {
                double held = (double)kvr__lane_tokens(router->index, replica->lane);
                double size = replica->capacity > 0 ? fmin(replica->capacity, held) : held;

                replica->capacity = fmax(size * SIZE_CUT, CAPACITY_MIN);
                replica->capacity_learned = true;
                return false;
        }
        replica->resets++;
        kvr__router_forget(router, replica);
        return true;
}

/* True when the replica was forgotten. */
static bool cache_learn(struct kvr_router *router, struct kvr_ticket *ticket, double expected, double found,
                        const struct result *result)
{
        struct kvr__replica *replica = ticket->replica;
        double slip = fmax(fmax(SLIP_TOKENS, 2.0 * replica->block_tokens), SLIP_SHARE * expected);

        if (expected >= fmax(MISS_TOKENS, 2.0 * replica->block_tokens)) {
                replica->told++;
                if (found < MISS_SHARE * expected)
                        return ++replica->misses == MISSES_RESET && misses_conclude(router, replica);
                /* So the misses before this one were no restart but evictions. */
                for (; replica->misses; replica->misses--)
                        if (!replica->slots)
                                capacity_shrink(router, replica);
        }
        if (replica->slots)
                return false;
        if (found + slip < expected) {
                capacity_shrink(router, replica);
        } else if (found > expected + slip && replica->capacity > 0 &&
                   surplus_was_ours(router, ticket, found / result->prompt * ticket->units)) {
                replica->capacity = fmin(replica->capacity * (1 + SIZE_GROW), KVR__CAPACITY_MAX);
                replica->capacity_learned = true;
        }
        return false;
}

/*
 * Of prompts that are mostly unknown here, how much did the replica have? Finding more than this router ever
 * sent there is a surprise. A lone router has none; after a few of them others must be sending to this fleet
 * too, and then it is worth meeting them at the prompts' homes. What homes are worth is learned from what
 * they have: quickly up and slowly down, for at a cold start nothing is found anywhere, and homes that are
 * given up find nothing more.
 */
static void home_learn(struct kvr_router *router, const struct kvr_ticket *ticket,
                       const struct result *result, double predicted)
{
        double rest = result->prompt - predicted, gain = result->cached - predicted;
        double slip = fmax(SLIP_TOKENS, ticket->replica->block_tokens);

        if (rest < fmax(HOME_TOKENS, HOME_SHARE * result->prompt) || !ticket->units)
                return;
        bool surprise = gain >= 2 * slip && rest > result->prompt / 2;

        if (gain < slip || surplus_was_ours(router, ticket, result->cached / result->prompt * ticket->units))
                gain = 0;
        gain = fmin(1, gain / rest);
        router->surprises = router->surprises * SURPRISE_KEEP + (surprise && gain > 0);
        if (router->surprises >= SURPRISES_TELL && router->home_yield < HOME_FIRST) {
                router->home_yield = HOME_FIRST;
                router->surprises = 0;
        }
        if (!ticket->at_home || router->home_yield <= 0)
                return;
        router->home_yield += (gain - router->home_yield) * (gain > router->home_yield ? HOME_UP : HOME_DOWN);
        if (router->home_yield < HOME_OFF)
                router->home_yield = 0;
}

/*
 * Replicas with slots: what was predicted from host memory and is not there, or was not and is, says how much
 * that holds, and nothing about honesty. True when that is all there is to learn.
 */
static bool memory_learn(struct kvr_ticket *ticket, double expected, double found)
{
        struct kvr__slots *slots = ticket->replica->slots;

        if (!slots || ticket->slots_epoch != ticket->replica->slots_epoch)
                return false;
        if (ticket->slot_rank && expected >= TELLING_TOKENS && found < expected / 2) {
                kvr__slots_learn_gone(slots, ticket->slot_rank, ticket->slot_copy);
                return true;
        }
        if (ticket->slot_copy && expected >= TELLING_TOKENS)
                kvr__slots_learn_copied(slots);
        if (found > expected + fmax(SLIP_TOKENS, SLIP_SHARE * expected) &&
            ticket->held > ticket->match_points)
                kvr__slots_learn_more(slots);
        return false;
}

/* What was sent there just before was not there: so much for what else was. This prompt is there now. */
static void young_learn(struct kvr_router *router, struct kvr_ticket *ticket, double expected,
                        const struct result *result)
{
        double slip = fmax(SLIP_TOKENS, 2.0 * ticket->replica->event_block_tokens);

        if (ticket->young_tokens <= ticket->event_tokens || result->cached + slip >= expected)
                return;
        kvr__young_drop(router, ticket->replica);
        router->path.known = 0;
        kvr__index_find(router->index, ticket->points, ticket->point_count, &router->path);
        kvr__young_book(router, ticket, result->prompt / ticket->units);
}

/* Compares what was found with what was predicted, and corrects what the prediction came from. */
static void observation_learn(struct kvr_router *router, struct kvr_ticket *ticket,
                              const struct result *result)
{
        struct kvr__replica *replica = ticket->replica;
        /* The tokens of a prompt are estimates at decision; only the share of it that is cached can be
         * compared. */
        double scale = ticket->prompt_tokens ? result->prompt / ticket->prompt_tokens : 1;
        double expected = ticket->base_tokens * scale;
        double credited = (ticket->full_tokens - ticket->base_tokens) * scale;

        replica->tells_cached = true;
        if (ticket->watched)
                kvr__canary_learn(router, ticket, result->cached);
        home_learn(router, ticket, result, ticket->full_tokens * scale);
        if (credited >= SLIP_TOKENS)
                kvr__model_learn_answer(kvr__models_get(&router->models, ticket->model), credited,
                                        result->cached - expected);
        if (memory_learn(ticket, expected, result->cached))
                return;
        if (expected >= TELLING_TOKENS)
                replica->trust += (fmin(1, result->cached / expected) - replica->trust) * TRUST_STEP;
        if (!ticket->point_count)
                return;
        if (ticket->by_events) {
                young_learn(router, ticket, expected, result);
                return;
        }
        if (cache_learn(router, ticket, expected, result->cached, result)) {
                /* This very prompt was computed after the loss. */
                struct kvr__touch touch = {.lane = replica->lane,
                                           .tokens_per_unit = result->prompt / ticket->units};

                router->path.known = 0;
                kvr__index_find(router->index, ticket->points, ticket->point_count, &router->path);
                kvr__index_touch(router->index, &router->path, ticket->points, ticket->point_count, &touch);
        }
}

static void residency_settle(struct kvr_router *router, struct kvr_ticket *ticket,
                             const struct result *result)
{
        struct kvr__replica *replica = ticket->replica;

        if (replica->removed || ticket->epoch != replica->epoch)
                return;
        if (!result->computed) {
                kvr__index_remove(router->index, &router->path, replica->lane, ticket->points, ticket->held,
                                  ticket->inserted, ticket->mark);
                kvr__young_withdraw(router, ticket);
                return;
        }
        tokens_learn(router, ticket, result);
        if (result->cached >= 0)
                observation_learn(router, ticket, result);
}

static void speed_settle(struct kvr_ticket *ticket, const struct result *result)
{
        double cached = result->cached >= 0 ? result->cached : ticket->match_tokens;

        if (ticket->first_token && !ticket->learned && result->prompt > 0)
                speed_learn(ticket, result->prompt - cached, cached);
}

static void account(struct kvr_router *router, const struct kvr_ticket *ticket, const struct result *result)
{
        struct kvr__replica *replica = ticket->replica;
        struct kvr_reason_account *reason = &router->accounts[ticket->reason];

        reason->requests++;
        /* What no engine has computed cannot have hit or missed. */
        if (!result->computed || result->prompt < 1)
                return;
        uint64_t prompt = (uint64_t)result->prompt,
                 cached = result->cached >= 0 ? (uint64_t)result->cached : 0;
        uint64_t best = ticket->best_tokens < prompt ? ticket->best_tokens : prompt - 1;

        reason->prompt_tokens += prompt;
        reason->best_tokens += best;
        reason->predicted_tokens += result->predicted;
        replica->prompt_tokens += prompt;
        replica->predicted_tokens += result->predicted;
        if (result->cached < 0) {
                reason->unobserved_prompt_tokens += prompt;
                replica->unobserved_tokens += prompt;
                return;
        }
        reason->observed_tokens += cached;
        replica->observed_tokens += cached;
        if (result->predicted > cached)
                replica->overpredicted_tokens += result->predicted - cached;
        double error = fabs((double)result->predicted - (double)cached) / result->prompt;

        replica->error =
                isnan(replica->error) ? error : replica->error + (error - replica->error) * ERROR_STEP;
}

static void settlement_fill(const struct kvr_ticket *ticket, const struct result *result,
                            struct kvr_settlement *ret)
{
        *ret = (struct kvr_settlement){
                .replica = ticket->replica->id,
                .prompt_tokens = (uint32_t)result->prompt,
                .predicted_tokens = result->predicted,
                .ttft_s = ticket->first_token ? (double)(ticket->first_ns - ticket->sent_ns) / 1e9 : NAN,
                .total_s = result->now_ns > ticket->sent_ns ? (double)(result->now_ns - ticket->sent_ns) / 1e9
                                                            : 0,
        };
}

static void settle(struct kvr_router *router, struct kvr_ticket *ticket, const struct result *result,
                   uint64_t response, struct kvr_settlement *ret, struct kvr__ledger_entry *entry)
{
        struct kvr__replica *replica = ticket->replica;
        const struct kvr_outcome *outcome = result->outcome;
        int64_t answer = outcome->completion_tokens;

        kvr__load_release(replica, ticket);
        replica->trials -= ticket->trial;
        residency_settle(router, ticket, result);
        kvr__slots_leave(replica, ticket, result->computed,
                         answer > 0 && answer < UINT32_MAX ? (uint32_t)answer : 0, result->now_ns);
        speed_settle(ticket, result);
        if (outcome->end == KVR_END_FINISHED) {
                double stay_s = (double)(result->now_ns - ticket->sent_ns) / 1e9;

                replica->mean_total_s +=
                        replica->mean_total_s > 0 ? (stay_s - replica->mean_total_s) * STAY_STEP : stay_s;
                if (ticket->slot_ns) {
                        /* Another settlement may have given it the slot after this one read the clock. */
                        uint64_t since_ns =
                                ticket->slot_ns < result->now_ns ? ticket->slot_ns : result->now_ns;
                        double slot_s = (double)(result->now_ns - since_ns) / 1e9;

                        replica->mean_slot_s += replica->mean_slot_s > 0
                                                        ? (slot_s - replica->mean_slot_s) * STAY_STEP
                                                        : slot_s;
                }
                if (answer > 0)
                        kvr__model_learn_length(kvr__models_get(&router->models, ticket->model),
                                                (double)answer);
        }
        account(router, ticket, result);
        if (response && outcome->end == KVR_END_FINISHED && !replica->removed)
                kvr__owners_put(&router->responses, response, replica->id, result->now_ns);
        if (ret)
                settlement_fill(ticket, result, ret);
        if (ticket->ledger)
                kvr__ledger_entry_fill(router, ticket, result->now_ns, result->computed, result->prompt,
                                       result->cached, entry);
        kvr__fleet_release(&router->fleet, replica);
}

void kvr_ticket_settle(struct kvr_ticket *ticket, const struct kvr_outcome *outcome,
                       struct kvr_settlement *ret)
{
        struct kvr_router *router = ticket->router;
        uint64_t now_ns = kvr__router_now(router);
        uint64_t response = outcome->response_id.len ? kvr__hash(outcome->response_id, 0) : 0;

        if (ticket->ledger)
                kvr__ledger_prefetch(ticket->ledger, ticket->points, ticket->point_count, ticket->fork);
        kvr__router_lock(router);
        if (now_ns < ticket->sent_ns)
                now_ns = ticket->sent_ns;
        struct result result = result_make(ticket, outcome, now_ns);
        struct kvr__ledger_entry entry;

        settle(router, ticket, &result, response, ret, &entry);
        kvr__router_unlock(router);
        if (ticket->ledger)
                kvr__ledger_book(&entry);
        kvr__ticket_trim(ticket);
        kvr__router_lock(router);
        kvr__tickets_give(&router->tickets, ticket);
        kvr__router_unlock(router);
}
