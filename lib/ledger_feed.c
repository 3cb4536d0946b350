/* SPDX-License-Identifier: Apache-2.0 */
/* From the router's tickets to the ledger's entries. */
#include <math.h>
#include <string.h>

#include "ledger_int.h"
#include "router_int.h"

#define ENTERED_NS 60000000000ULL /* far less than an account may be idle */

void kvr__ledger_fleet_add(struct kvr_router *router, struct kvr__replica *replica)
{
        replica->ledger_slot = router->ledger ? kvr__ledger_replica_add(router->ledger, replica->id,
                                                                        replica->name, replica->name_hash)
                                              : KVR__NO_SLOT_BIT;
}

void kvr__ledger_fleet_remove(struct kvr_router *router, const struct kvr__replica *replica)
{
        if (router->ledger)
                kvr__ledger_replica_remove(router->ledger, replica->id, replica->ledger_slot);
}

void kvr_router_set_ledger(struct kvr_router *router, struct kvr_ledger *ledger)
{
        kvr__router_lock(router);
        if (router->ledger != ledger) {
                memset(router->entered, 0, sizeof(router->entered));
                for (uint32_t i = 0; i < router->fleet.count; i++)
                        kvr__ledger_fleet_remove(router, router->fleet.order[i]);
                router->ledger = ledger;
                for (uint32_t i = 0; i < router->fleet.count; i++)
                        kvr__ledger_fleet_add(router, router->fleet.order[i]);
        }
        kvr__router_unlock(router);
}

/* Were these names entered lately? They are now. */
static bool names_seen(struct kvr_router *router, uint64_t workload, uint64_t model, uint64_t now_ns)
{
        struct kvr__entered *entered = &router->entered[(workload ^ model) % KVR__ENTERED];

        if (entered->workload == workload && entered->model == model && now_ns < entered->until_ns)
                return true;
        *entered = (struct kvr__entered){workload, model, now_ns + ENTERED_NS};
        return false;
}

void kvr__ledger_ticket_book(struct kvr_router *router, const struct kvr__query *query,
                             const struct kvr__choice *choice, struct kvr_ticket *ticket)
{
        ticket->ledger = router->ledger;
        if (!router->ledger)
                return;
        ticket->named_model = query->model;
        ticket->workload = query->request->workload.len ? kvr__hash(query->request->workload, 0) : 0;
        ticket->turn = router->ledger_turn++;
        ticket->entered = names_seen(router, ticket->workload, ticket->named_model, query->now_ns);
        ticket->ledger_slot = ticket->replica->ledger_slot;
        for (uint32_t i = 0; i < choice->count; i++) {
                uint16_t slot = router->candidates[i].replica->ledger_slot;

                if (slot != KVR__NO_SLOT_BIT)
                        ticket->candidates[slot / 64] |= 1ULL << slot % 64;
        }
}

void kvr__ledger_ticket_enter(const struct kvr__query *query, const struct kvr_ticket *ticket)
{
        if (ticket->ledger && !ticket->entered)
                kvr__ledger_enter(ticket->ledger, ticket->workload, query->request->workload,
                                  ticket->named_model, query->request->model, ticket->sent_ns);
}

static uint32_t below(uint32_t tokens, uint32_t prompt)
{
        return tokens < prompt ? tokens : prompt - 1;
}

void kvr__ledger_entry_fill(struct kvr_router *router, const struct kvr_ticket *ticket, uint64_t now_ns,
                            bool computed, double prompt, double cached, struct kvr__ledger_entry *ret)
{
        const struct kvr__replica *replica = ticket->replica;
        const struct kvr__model *model = kvr__models_find(&router->models, replica->model);
        double token_s = model ? kvr__speed_token_s(&model->curve, &replica->speed) : 0;

        *ret = (struct kvr__ledger_entry){
                .ledger = ticket->ledger,
                .sent_ns = ticket->sent_ns,
                .now_ns = now_ns,
                .workload = ticket->workload,
                .model = ticket->named_model,
                .turn = ticket->turn,
                .replica = replica->id,
                .slot = ticket->ledger_slot,
                .twin = {.name_hash = replica->name_hash,
                         .capacity = replica->capacity,
                         .token_s = token_s,
                         .block_tokens = replica->block_tokens,
                         .epoch = replica->epoch},
                .computed = computed && prompt >= 1,
                .cached = cached >= 0 ? (int64_t)cached : -1,
                .by_tokens = ticket->by_tokens,
                .units = ticket->units,
                .point_count = ticket->units ? ticket->point_count : 0,
                .known = ticket->fork,
                .points = ticket->points,
                .candidates = ticket->candidates,
        };
        if (!ret->computed)
                return;
        ret->prompt = (uint32_t)prompt;
        ret->predicted = below(ticket->match_tokens, ret->prompt);
        ret->best = below(ticket->best_tokens, ret->prompt);
}
