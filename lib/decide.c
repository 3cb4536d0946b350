/* SPDX-License-Identifier: Apache-2.0 */
/* From a request to a booked ticket: candidates, matches, choice, books. docs/routing.md tells the story. */
#include <math.h>
#include <string.h>

#include "error.h"
#include "router_int.h"

#define NOTABLE_SHARE  20 /* another match is notably longer by more than a twentieth of the prompt */
#define NOTABLE_TOKENS 16
#define SPAN_REPLICA   64  /* visits fade over this many requests per replica */
#define EXPLORE_EVICT  256 /* pairs that one decision evicts for capacity beyond twice its own points */

static struct kvr__query query_make(const struct kvr_router *router, const struct kvr_request *request)
{
        const struct kvr_prompt *prompt = request->prompt;
        struct kvr__query query = {.request = request, .now_ns = kvr__router_now(router)};
        struct kvr_slice session = request->affinity;

        if (request->model.len)
                query.model = query.memory = kvr__hash(request->model, 0);
        if (prompt) {
                query.points = prompt->points;
                query.point_count =
                        prompt->point_count < KVR__CHAIN_LIMIT ? prompt->point_count : KVR__CHAIN_LIMIT;
                query.units = query.point_count ? prompt->points[query.point_count - 1].end : prompt->units;
                query.point_count = query.units ? query.point_count : 0;
                query.by_tokens = prompt->unit == KVR_UNIT_TOKENS;
                if (!query.memory)
                        query.memory = prompt->space;
                if (!session.len)
                        session = prompt->hint;
        }
        if (session.len)
                query.session = kvr__hash(session, query.memory);
        return query;
}

/* ---- candidates ---- */

static bool was_tried(const struct kvr_request *request, kvr_replica_id id)
{
        for (uint32_t i = 0; i < request->tried_count && i < KVR_TRIED_MAX; i++)
                if (request->tried[i] == id)
                        return true;
        return false;
}

/*
 * Another field is one that candidate_put must set too: else it is what the last decision left there. The row has a
 * value for each, since what is short of one does not compile; the size tells of a type that has changed.
 */
_Static_assert(sizeof(void *) != 8 || sizeof((struct kvr__candidate){NULL, 0, 0, 0, 0, 0, false, false, 0, 0,
                                                                     0, 0, 0, 0, 0, 0, 0, 0, 0}) == 104,
               "candidate_put sets every field of a candidate");

static void candidate_put(struct kvr_router *router, struct kvr__choice *choice, struct kvr__replica *replica)
{
        struct kvr__candidate *candidate = &router->candidates[choice->count++];

        /* Field by field, and all of them: a whole literal is cleared by a string instruction, which takes as
         * long as all the rest of this. */
        candidate->replica = replica;
        candidate->points = candidate->base_tokens = candidate->full_tokens = candidate->match_tokens = 0;
        candidate->slot_rank = 0;
        candidate->by_events = candidate->slot_copy = false;
        candidate->event_tokens = candidate->due_tokens = candidate->young_tokens = candidate->likely_tokens =
                candidate->next = 0;
        candidate->token_s = candidate->wait_s = candidate->queue = 0;
        candidate->own_s = candidate->toll_s = candidate->cost_s = NAN;
}

/* 0: it may be sent a request now; else how long to leave it alone. */
static uint64_t replica_rest_ns(const struct kvr_router *router, const struct kvr__replica *replica,
                                uint64_t now_ns)
{
        if (replica->paused_until_ns > now_ns)
                return replica->paused_until_ns - now_ns;
        if (replica->max_running && replica->in_flight >= replica->max_running)
                return router->busy_hint_ns;
        return 0;
}

/* Everything that is down, or half-open and on trial: better tried than refused. */
static void last_resort_collect(struct kvr_router *router, const struct kvr__query *query,
                                struct kvr__choice *choice)
{
        for (uint32_t i = 0; i < router->fleet.count; i++) {
                struct kvr__replica *replica = router->fleet.order[i];

                if (replica->state == KVR_DRAINING || was_tried(query->request, replica->id) ||
                    !kvr__replica_serves(replica, query->model))
                        continue;
                uint64_t rest_ns = replica_rest_ns(router, replica, query->now_ns);

                if (!rest_ns)
                        candidate_put(router, choice, replica);
                else if (!choice->retry_after_ns || rest_ns < choice->retry_after_ns)
                        choice->retry_after_ns = rest_ns;
        }
        choice->last_resort = choice->count > 0;
}

static void candidates_collect(struct kvr_router *router, const struct kvr__query *query,
                               struct kvr__choice *choice)
{
        uint32_t serving = 0, up = 0, on_trial = 0;

        choice->count = 0;
        choice->retry_after_ns = 0;
        for (uint32_t i = 0; i < router->fleet.count; i++) {
                struct kvr__replica *replica = router->fleet.order[i];

                if (!kvr__replica_serves(replica, query->model))
                        continue;
                serving++;
                if ((replica->state != KVR_READY && replica->state != KVR_TRIAL) ||
                    (query->request->tried_count && was_tried(query->request, replica->id)))
                        continue;
                up++;
                uint64_t rest_ns = replica_rest_ns(router, replica, query->now_ns);

                if (!rest_ns && replica->state == KVR_TRIAL && replica->trials) {
                        on_trial++;
                        rest_ns = router->busy_hint_ns;
                }
                if (!rest_ns)
                        candidate_put(router, choice, replica);
                else if (!choice->retry_after_ns || rest_ns < choice->retry_after_ns)
                        choice->retry_after_ns = rest_ns;
        }
        if (!choice->count && up == on_trial && query->request->last_resort)
                last_resort_collect(router, query, choice);
        if (choice->count)
                choice->status = KVR_OK;
        else if (router->fleet.count && !serving)
                choice->status = KVR_E_NO_MODEL;
        else
                choice->status = choice->retry_after_ns ? KVR_E_BUSY : KVR_E_NO_REPLICA;
}

/* ---- the view ---- */

static void forks_collect(struct kvr_router *router, struct kvr__view *view)
{
        uint32_t first =
                router->path.noted_count > KVR__FORKS_MAX ? router->path.noted_count - KVR__FORKS_MAX : 0;

        for (uint32_t i = first; i < router->path.noted_count; i++) {
                uint32_t point = router->path.noted[i];
                const struct kvr__note *note = kvr__index_note(router->index, &router->path, point);

                if (note->exits <= 0)
                        continue;
                double fade = exp(-(view->seen - note->seen) / view->span);

                router->forks[view->fork_count++] = (struct kvr__fork){
                        point, note->visits * fade, note->exits * fade, note->regret_s * fade};
        }
        view->forks = router->forks;
        view->regretted = view->fork_count;
}

static uint32_t owner_find(const struct kvr_router *router, const struct kvr__query *query,
                           const struct kvr__choice *choice)
{
        const struct kvr__owner *owner =
                query->session ? kvr__owners_get(&router->sessions, query->session) : NULL;

        if (!owner || query->now_ns > owner->at_ns + KVR__SESSION_LIFE_NS)
                return choice->count;
        for (uint32_t i = 0; i < choice->count; i++)
                if (router->candidates[i].replica->id == owner->replica)
                        return i;
        return choice->count;
}

static void view_fill(struct kvr_router *router, const struct kvr__query *query, struct kvr__choice *choice)
{
        choice->view = (struct kvr__view){
                .candidates = router->candidates,
                .count = choice->count,
                .holders = choice->holders,
                .prompt_tokens = choice->charge_tokens,
                .tokens = router->tokens,
                .points = query->points,
                .point_count = query->point_count,
                .seen = choice->model ? choice->model->seen : 1,
                .span = (double)SPAN_REPLICA * choice->count,
                .now_ns = query->now_ns,
                .starved = choice->model ? kvr__loss_starved(&choice->model->loss) : 0,
                .home_yield = router->home_yield,
                .home = choice->count,
                .affinity = query->session,
                .owner = owner_find(router, query, choice),
                .env = &router->env,
        };
        kvr__speeds_fill(router, choice);
        kvr__loads_fill(&choice->view, choice->model ? choice->model->answer_tokens : 0);
        forks_collect(router, &choice->view);
}

/* ---- the choice ---- */

/* Of those that are down, the one bothered least: never the one that happens to hold the prefix, again and
 * again. */
static uint32_t last_resort_choose(const struct kvr__view *view)
{
        uint32_t best = 0;

        for (uint32_t i = 1; i < view->count; i++) {
                const struct kvr__replica *a = view->candidates[i].replica,
                                          *b = view->candidates[best].replica;

                if (a->in_flight < b->in_flight ||
                    (a->in_flight == b->in_flight && a->decided_ns < b->decided_ns))
                        best = i;
        }
        return best;
}

static uint32_t pinned_find(const struct kvr__view *view, kvr_replica_id pinned)
{
        for (uint32_t i = 0; pinned && i < view->count; i++)
                if (view->candidates[i].replica->id == pinned)
                        return i;
        return view->count;
}

static enum kvr_reason reason_of(const struct kvr_router *router, const struct kvr_request *request,
                                 const struct kvr__choice *choice, uint32_t best_tokens)
{
        const struct kvr__view *view = &choice->view;
        uint32_t match = view->candidates[choice->chosen].match_tokens;
        uint32_t notable = view->prompt_tokens / NOTABLE_SHARE;

        if (request->tried_count)
                return KVR_REASON_RETRY;
        if (request->pinned && view->candidates[choice->chosen].replica->id == request->pinned)
                return KVR_REASON_AFFINITY;
        if (view->count == 1)
                return KVR_REASON_ONLY;
        if ((router->policy->by_key && !choice->last_resort) || view->by_session)
                return KVR_REASON_AFFINITY;
        if (best_tokens > match + (notable > NOTABLE_TOKENS ? notable : NOTABLE_TOKENS))
                return KVR_REASON_SPREAD;
        return kvr__view_useful(view, match) ? KVR_REASON_HIT : KVR_REASON_LOAD;
}

static void choose(struct kvr_router *router, const struct kvr__query *query, struct kvr__choice *choice,
                   struct kvr__policy_state *state, struct kvr_decision *ret)
{
        struct kvr__view *view = &choice->view;
        uint32_t best = 0;

        candidates_collect(router, query, choice);
        if (choice->status != KVR_OK)
                return;
        choice->model = kvr__models_find(&router->models, query->memory);
        kvr__prompt_measure(router, query, choice);
        kvr__candidates_match(router, query, choice);
        view_fill(router, query, choice);
        view->state = state;
        choice->chosen = choice->last_resort ? last_resort_choose(view) : router->policy->choose(view);
        uint32_t pinned = pinned_find(view, query->request->pinned);

        if (pinned < view->count)
                choice->chosen = pinned;
        for (uint32_t i = view->holders; i; i = view->candidates[i - 1].next)
                if (view->candidates[i - 1].match_tokens > best)
                        best = view->candidates[i - 1].match_tokens;
        *ret = (struct kvr_decision){
                .replica = view->candidates[choice->chosen].replica->id,
                .reason = reason_of(router, query->request, choice, best),
                .prompt_tokens = choice->prompt_tokens,
                .match_tokens = view->candidates[choice->chosen].match_tokens,
                .best_match_tokens = best,
                .due_tokens = view->candidates[choice->chosen].due_tokens,
                .wait_s = view->candidates[choice->chosen].wait_s,
                .own_s = view->candidates[choice->chosen].own_s,
                .toll_s = view->candidates[choice->chosen].toll_s,
                .candidate_count = choice->count,
        };
}

/* ---- booking ---- */

void kvr__slots_enter(struct kvr__replica *replica, struct kvr_ticket *ticket)
{
        struct kvr__slots_ask ask = {ticket->points, ticket->point_count,
                                     ticket->units ? (double)ticket->prompt_tokens / ticket->units : 0, 0};

        ticket->slots_epoch = replica->slots_epoch;
        ticket->slot = kvr__slots_start(replica->slots, &ask);
        ticket->deferred = ticket->slot == KVR__NO_SLOT;
        ticket->slot_ns = ticket->deferred ? 0 : ticket->sent_ns;
        if (!ticket->deferred)
                return;
        ticket->next_deferred = NULL;
        if (replica->deferred_tail)
                replica->deferred_tail->next_deferred = ticket;
        else
                replica->deferred_head = ticket;
        replica->deferred_tail = ticket;
}

/* One more request passed these points, and left known ground at the last of them. */
static void visits_count(struct kvr_router *router, const struct kvr__view *view, uint32_t seen)
{
        struct kvr__path *path = &router->path;

        for (uint32_t i = 0; i < path->noted_count; i++) {
                struct kvr__note *note = kvr__index_note(router->index, path, path->noted[i]);
                float fade = note->seen ? (float)exp(-((double)seen - note->seen) / view->span) : 1;

                note->visits = (note->seen ? note->visits * fade : 1) + 1;
                note->exits *= fade;
                note->regret_s *= fade;
                if (view->regretted < view->fork_count &&
                    view->forks[view->regretted].point == path->noted[i])
                        note->regret_s = (float)view->regret_s;
                note->seen = seen;
        }
        if (!path->known)
                return;
        bool noted = path->noted_count && path->noted[path->noted_count - 1] == path->known - 1;
        struct kvr__note *note = kvr__index_note_make(router->index, path, path->known - 1);

        if (!note)
                return;
        if (!noted) {
                /* Whoever made the node passed too. */
                note->visits = 2;
                note->seen = seen;
        }
        note->exits += 1;
}

/* Was this asked for before, and is it gone? */
static void loss_count(struct kvr_router *router, const struct kvr__query *query,
                       const struct kvr__choice *choice, struct kvr__model *model)
{
        uint32_t held = 0;

        for (uint32_t i = choice->holders; i; i = router->candidates[i - 1].next) {
                const struct kvr__candidate *candidate = &router->candidates[i - 1];
                /* A slot that is busy has its prompt still, only not for this request. */
                uint32_t points = candidate->replica->slots ? router->depth[candidate->replica->lane]
                                                            : candidate->points;

                held = points > held ? points : held;
        }
        kvr__past_pass(&router->past, &model->loss, exp(-1 / choice->view.span), query->points,
                       router->tokens, query->point_count, held);
}

static void residency_book(struct kvr_router *router, struct kvr__query *query,
                           const struct kvr__choice *choice, struct kvr_ticket *ticket)
{
        struct kvr__replica *replica = ticket->replica;
        struct kvr__touch touch = {
                .lane = replica->lane,
                .owner = ticket->mark,
                .held = router->depth[replica->lane],
                .tokens_per_unit = (double)choice->prompt_tokens / query->units,
        };

        ticket->held = touch.held;
        ticket->fork = router->path.known;
        ticket->inserted =
                kvr__index_touch(router->index, &router->path, ticket->points, ticket->point_count, &touch);
        router->partial += ticket->inserted < ticket->point_count;
        ticket->end_node = ticket->inserted ? router->path.nodes[ticket->inserted - 1] : 0;
        ticket->fork_node =
                ticket->fork && ticket->fork <= ticket->inserted ? router->path.nodes[ticket->fork - 1] : 0;
        if (query->look && replica->event_lane != KVR__NO_LANE)
                kvr__young_book(router, ticket, touch.tokens_per_unit);
        if (replica->capacity > 0)
                kvr__lane_shrink(router->index, replica->lane, (uint64_t)replica->capacity,
                                 2 * ticket->point_count + EXPLORE_EVICT);
}

/* What events said, for the comparison with what the engine will report. */
static void events_book(const struct kvr__query *query, const struct kvr__candidate *chosen,
                        struct kvr_ticket *ticket)
{
        const struct kvr__replica *replica = chosen->replica;

        if (!query->look || replica->event_size == KVR__NO_SIZE || !replica->events_trusted)
                return;
        const struct kvr__look_size *size = &query->look->sizes[replica->event_size];

        ticket->watched = true;
        ticket->by_events = chosen->by_events;
        ticket->event_tokens = chosen->event_tokens;
        ticket->event_blocks = size->blocks;
        ticket->event_base = size->base;
        ticket->young_tokens = chosen->young_tokens;
}

static void book(struct kvr_router *router, struct kvr__query *query, const struct kvr__choice *choice,
                 const struct kvr_decision *decision, struct kvr_ticket *ticket)
{
        const struct kvr__candidate *chosen = &router->candidates[choice->chosen];
        struct kvr__replica *replica = chosen->replica;
        const struct kvr_prompt *prompt = query->request->prompt;
        struct kvr__model *model = kvr__models_get(&router->models, query->memory);
        uint32_t best = decision->best_match_tokens;

        model->seen++;
        if (++router->mark == 0)
                router->mark = 1;
        ticket->replica = replica;
        ticket->epoch = replica->epoch;
        ticket->mark = router->mark;
        ticket->reason = decision->reason;
        ticket->sent_ns = query->now_ns;
        ticket->model = query->memory;
        ticket->units = query->units;
        ticket->by_tokens = query->by_tokens;
        ticket->measurable = !prompt || (prompt->choices <= 1 && prompt->prompt_count <= 1);
        ticket->prompt_tokens = choice->prompt_tokens;
        ticket->match_tokens = chosen->match_tokens;
        ticket->full_tokens = chosen->full_tokens;
        ticket->base_tokens = chosen->base_tokens;
        ticket->match_points = chosen->points;
        ticket->slot_rank = chosen->slot_rank;
        ticket->slot_copy = chosen->slot_copy;
        events_book(query, chosen, ticket);
        ticket->best_tokens = best;
        ticket->booked_tokens = choice->charge_tokens - chosen->match_tokens;
        ticket->weight = KVR__WEIGHT +
                         (uint32_t)((uint64_t)KVR__WEIGHT * chosen->match_tokens / choice->charge_tokens);
        ticket->at_home = choice->chosen == choice->view.home;
        ticket->slot = KVR__NO_SLOT;
        ticket->trial = replica->state == KVR_TRIAL;
        replica->trials += ticket->trial;
        kvr__load_book(replica, ticket);
        kvr__fleet_work(&router->fleet, replica, fmax(ticket->booked_tokens, KVR__REQUEST_TOKENS),
                        query->now_ns);
        if (query->session)
                kvr__owners_put(&router->sessions, query->session, replica->id, query->now_ns);
        if (query->point_count) {
                router->lookups++;
                router->lookups_without_match += best == 0;
                visits_count(router, &choice->view, model->seen);
                loss_count(router, query, choice, model);
                residency_book(router, query, choice, ticket);
        }
        if (replica->slots)
                kvr__slots_enter(replica, ticket);
        kvr__ledger_ticket_book(router, query, choice, ticket);
}

/* ---- entry points ---- */

static enum kvr_status refuse(enum kvr_status status, struct kvr_error *err)
{
        switch (status) {
        case KVR_E_NO_MODEL:
                return kvr__error_set(err, status, 0, "model", "no replica serves this model");
        case KVR_E_NO_REPLICA:
                return kvr__error_set(err, status, 0, NULL, "no replica is left that could be tried");
        case KVR_E_BUSY:
                return kvr__error_set(err, status, 0, NULL,
                                      "every replica is at its limit or asked to be left alone");
        default:
                return kvr__error_set(err, status, 0, NULL, "no memory for a ticket");
        }
}

/* A blank ticket with the request's points, both without the lock where something has to be allocated or
 * copied. */
static struct kvr_ticket *ticket_take(struct kvr_router *router, const struct kvr__query *query)
{
        struct kvr_ticket *ticket;

        kvr__router_lock(router);
        ticket = kvr__tickets_take(&router->tickets);
        kvr__router_unlock(router);
        if (!ticket) {
                struct kvr__ticket_slab *slab = kvr__ticket_slab_new();

                if (!slab)
                        return NULL;
                kvr__router_lock(router);
                kvr__tickets_add(&router->tickets, slab);
                ticket = kvr__tickets_take(&router->tickets);
                kvr__router_unlock(router);
        }
        *ticket = (struct kvr_ticket){
                .router = router,
                .points = ticket->points,
                .point_room = ticket->point_room,
        };
        if (kvr__ticket_set_points(ticket, query->points, query->point_count))
                return ticket;
        kvr__router_lock(router);
        kvr__tickets_give(&router->tickets, ticket);
        kvr__router_unlock(router);
        return NULL;
}

enum kvr_status kvr_decide(struct kvr_router *router, const struct kvr_request *request,
                           struct kvr_decision *ret_decision, struct kvr_ticket **ret_ticket,
                           struct kvr_error *err)
{
        struct kvr__query query = query_make(router, request);
        struct kvr__choice choice = {0};
        struct kvr_ticket *ticket = ticket_take(router, &query);

        if (!ticket)
                return refuse(KVR_E_NOMEM, err);
        query.look = kvr__look_take(router, &query, true);
        kvr__router_lock(router);
        /* Before the look-up, which it would void. Young predictions of as many points are closed again soon. */
        kvr__index_reclaim(router->index, KVR__RECLAIM_STEP + (query.look ? 2 * query.point_count : 0));
        choose(router, &query, &choice, &router->policy_state, ret_decision);
        if (choice.status == KVR_OK) {
                book(router, &query, &choice, ret_decision, ticket);
                *ret_ticket = ticket;
        } else {
                kvr__tickets_give(&router->tickets, ticket);
        }
        kvr__look_give(router, query.look);
        kvr__router_unlock(router);
        if (choice.status == KVR_OK) {
                kvr__ledger_ticket_enter(&query, ticket);
                return KVR_OK;
        }
        if (choice.status == KVR_E_BUSY)
                ret_decision->retry_after_ns = choice.retry_after_ns;
        return refuse(choice.status, err);
}

enum kvr_status kvr_explain(struct kvr_router *router, const struct kvr_request *request,
                            struct kvr_decision *ret_decision, struct kvr_candidate *ret_candidates,
                            size_t max, size_t *ret_count, struct kvr_error *err)
{
        struct kvr__query query = query_make(router, request);
        struct kvr__choice choice = {0};

        query.look = kvr__look_take(router, &query, false);
        kvr__router_lock(router);
        struct kvr__policy_state state = router->policy_state;

        choose(router, &query, &choice, &state, ret_decision);
        if (choice.status == KVR_OK) {
                for (size_t i = 0; i < choice.count && i < max; i++) {
                        const struct kvr__candidate *candidate = &router->candidates[i];

                        ret_candidates[i] = (struct kvr_candidate){
                                .replica = candidate->replica->id,
                                .match_tokens = candidate->match_tokens,
                                .due_tokens = candidate->due_tokens,
                                .wait_s = candidate->wait_s,
                                .own_s = candidate->own_s,
                                .toll_s = candidate->toll_s,
                                .cost_s = candidate->cost_s,
                        };
                }
                *ret_count = choice.count;
        }
        kvr__look_give(router, query.look);
        kvr__router_unlock(router);
        if (choice.status == KVR_OK)
                return KVR_OK;
        if (choice.status == KVR_E_BUSY)
                ret_decision->retry_after_ns = choice.retry_after_ns;
        return refuse(choice.status, err);
}
