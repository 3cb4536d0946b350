/* SPDX-License-Identifier: Apache-2.0 */
/* Requests on the virtual fleet: decided, played, ended. */
#include "shadow_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ADOPT_NS   1000000000ull /* between two looks at what the real router has learned */
#define HEAP_FIRST 256

/* ---- the clock ---- */

static uint64_t clock_now(void *ctx)
{
        struct shadow_clock *clock = ctx;
        uint64_t event_ns = atomic_load_explicit(&clock->event_ns, memory_order_relaxed);

        return event_ns ? event_ns : clock->base.now_ns(clock->base.ctx);
}

static uint64_t clock_random(void *ctx)
{
        struct shadow_clock *clock = ctx;

        return clock->base.random64(clock->base.ctx);
}

void shadow_clock_init(struct shadow_clock *clock, const struct kvr_env *base)
{
        clock->base = *base;
        atomic_init(&clock->event_ns, 0);
}

struct kvr_env shadow_clock_env(struct shadow_clock *clock)
{
        return (struct kvr_env){clock_now, clock_random, clock};
}

static void clock_set(struct shadow *shadow, uint64_t at_ns)
{
        if (at_ns > shadow->now_ns)
                shadow->now_ns = at_ns;
        atomic_store_explicit(&shadow->options.clock->event_ns, shadow->now_ns, memory_order_relaxed);
}

/* ---- what is due: legs in a heap by time ---- */

static void heap_put(struct shadow *shadow, size_t place, struct shadow_leg *leg)
{
        shadow->heap[place] = leg;
        leg->place = place;
}

static void heap_up(struct shadow *shadow, size_t place)
{
        struct shadow_leg *leg = shadow->heap[place];

        for (; place > 1 && shadow->heap[place / 2]->at_ns > leg->at_ns; place /= 2)
                heap_put(shadow, place, shadow->heap[place / 2]);
        heap_put(shadow, place, leg);
}

static void heap_down(struct shadow *shadow, size_t place)
{
        struct shadow_leg *leg = shadow->heap[place];

        for (;;) {
                size_t child = 2 * place;

                if (child < shadow->heap_count && shadow->heap[child + 1]->at_ns < shadow->heap[child]->at_ns)
                        child++;
                if (child > shadow->heap_count || shadow->heap[child]->at_ns >= leg->at_ns)
                        break;
                heap_put(shadow, place, shadow->heap[child]);
                place = child;
        }
        heap_put(shadow, place, leg);
}

/* Room for both legs of one more flight. */
static bool heap_room(struct shadow *shadow)
{
        size_t needed = 1 + SHADOW_ROLES * ((size_t)shadow->flight_count + 1);
        size_t room = shadow->heap_room ? 2 * shadow->heap_room : HEAP_FIRST;
        struct shadow_leg **heap;

        if (needed <= shadow->heap_room)
                return true;
        heap = realloc(shadow->heap, room * sizeof(struct shadow_leg *));
        if (!heap)
                return false;
        shadow->heap = heap;
        shadow->heap_room = room;
        return true;
}

static void heap_add(struct shadow *shadow, struct shadow_leg *leg, uint64_t at_ns)
{
        leg->at_ns = at_ns;
        shadow->heap[++shadow->heap_count] = leg;
        heap_up(shadow, shadow->heap_count);
}

static void heap_remove(struct shadow *shadow, struct shadow_leg *leg)
{
        size_t place = leg->place;
        struct shadow_leg *last;

        if (!place)
                return;
        leg->place = 0;
        last = shadow->heap[shadow->heap_count--];
        if (last == leg)
                return;
        heap_put(shadow, place, last);
        heap_up(shadow, place);
        heap_down(shadow, last->place);
}

/* ---- flights ---- */

static struct shadow_flight *flight_new(struct shadow *shadow)
{
        struct shadow_flight *flight = NULL;

        if (shadow->flight_count < SHADOW_FLIGHTS_MAX && heap_room(shadow))
                flight = calloc(1, sizeof *flight);
        if (!flight) {
                shadow->sums.figures.dropped++;
                return NULL;
        }
        for (int role = 0; role < SHADOW_ROLES; role++)
                flight->legs[role].flight = flight;
        flight->next = &shadow->flights;
        flight->prev = shadow->flights.prev;
        flight->prev->next = flight;
        shadow->flights.prev = flight;
        shadow->flight_count++;
        return flight;
}

static void flight_free(struct shadow *shadow, struct shadow_flight *flight)
{
        flight->prev->next = flight->next;
        flight->next->prev = flight->prev;
        shadow->flight_count--;
        free(flight);
}

static enum shadow_role role_of(const struct shadow_leg *leg)
{
        return leg == &leg->flight->legs[SHADOW_KV] ? SHADOW_KV : SHADOW_ACTUAL;
}

static void leg_end(struct shadow *shadow, struct shadow_leg *leg, enum kvr_end end)
{
        struct kvr_outcome outcome = leg->flight->outcome;

        heap_remove(shadow, leg);
        if (leg->ticket) {
                outcome.end = end;
                kvr_ticket_settle(leg->ticket, &outcome, NULL);
                leg->ticket = NULL;
        }
        if (leg->slot)
                shadow__slot_leave(shadow, leg->slot, role_of(leg));
        leg->slot = NULL;
}

static void flight_drop(struct shadow *shadow, struct shadow_flight *flight)
{
        if (flight->ended && !flight->legs[SHADOW_KV].slot && !flight->legs[SHADOW_ACTUAL].slot)
                flight_free(shadow, flight);
}

/* It is decided where it goes: puts it in the queue there. */
static void leg_begin(struct shadow *shadow, struct shadow_leg *leg, struct shadow_slot *slot,
                      const struct kvr_decision *decision, struct kvr_ticket *ticket)
{
        enum shadow_role role = role_of(leg);
        uint32_t prompt = decision->prompt_tokens, match = decision->match_tokens;

        shadow__slot_look(shadow, slot);
        shadow__slot_use(slot, role);
        leg->slot = slot;
        leg->ticket = ticket;
        leg->prompt_tokens = prompt;
        leg->match_tokens = match;
        leg->decided_ns = shadow->now_ns;
        leg->untimed = shadow__slot_token_s(shadow, slot) <= 0;
        if (leg->untimed)
                return;
        leg->first_ns = shadow__slot_queue(shadow, slot, role, prompt > match ? prompt - match : 0);
        if (ticket)
                heap_add(shadow, leg, leg->first_ns);
}

/* Its real end is known and its virtual first token was: it ends when its answer is generated. */
static void leg_finish(struct shadow *shadow, struct shadow_leg *leg)
{
        uint64_t end_ns = leg->first_ns + leg->flight->decode_ns;

        if (end_ns > shadow->now_ns + SHADOW_LAG_NS)
                end_ns = shadow->now_ns + SHADOW_LAG_NS;
        if (end_ns > shadow->now_ns)
                heap_add(shadow, leg, end_ns);
        else
                leg_end(shadow, leg, KVR_END_FINISHED);
}

/* Due is its first token, or else its end. */
static void leg_due(struct shadow *shadow, struct shadow_leg *leg)
{
        heap_remove(shadow, leg);
        if (leg->first_token) {
                leg_end(shadow, leg, KVR_END_FINISHED);
        } else {
                leg->first_token = true;
                kvr_ticket_first_token(leg->ticket);
                if (leg->flight->ended)
                        leg_finish(shadow, leg);
        }
        flight_drop(shadow, leg->flight);
}

/* Takes the lock and plays what is due by now; the clock stays there until leave(). */
static void enter(struct shadow *shadow, uint64_t now_ns)
{
        pthread_mutex_lock(&shadow->lock);
        while (shadow->heap_count && shadow->heap[1]->at_ns <= now_ns) {
                clock_set(shadow, shadow->heap[1]->at_ns);
                leg_due(shadow, shadow->heap[1]);
        }
        clock_set(shadow, now_ns);
}

/* Gives the lock back; now and then takes over what the real router has learned, with neither lock held. */
static void leave(struct shadow *shadow)
{
        bool adopt = !shadow->options.mirror && shadow->now_ns >= shadow->adopted_ns + ADOPT_NS;

        if (adopt)
                shadow->adopted_ns = shadow->now_ns;
        atomic_store_explicit(&shadow->options.clock->event_ns, 0, memory_order_relaxed);
        pthread_mutex_unlock(&shadow->lock);
        if (adopt)
                (void)kvr_router_adopt(shadow->brain, shadow->options.real); /* else a second later */
}

/* ---- decisions ---- */

static bool decide(struct kvr_router *router, const struct kvr_request *request, struct kvr_slice previous_id,
                   struct kvr_decision *ret, struct kvr_ticket **ret_ticket)
{
        struct kvr_request own = *request;
        enum kvr_status status;

        /* Which replica failed, or made an earlier answer, is another story here. */
        own.tried_count = 0;
        own.pinned = previous_id.len ? kvr_response_owner(router, previous_id) : 0;
        own.last_resort = false;
        status = kvr_decide(router, &own, ret, ret_ticket, NULL);
        if (status == KVR_E_NO_REPLICA) {
                own.last_resort = true;
                status = kvr_decide(router, &own, ret, ret_ticket, NULL);
        }
        return status == KVR_OK;
}

static void give_up(struct kvr_ticket *ticket)
{
        const struct kvr_outcome failed = {KVR_END_FAILED, -1, -1, -1, {NULL, 0}};

        kvr_ticket_settle(ticket, &failed, NULL);
}

/* The shadow's own decision; false: none, and it is counted. */
static bool decide_kv(struct shadow *shadow, struct shadow_flight *flight, const struct kvr_request *request,
                      struct kvr_slice previous_id)
{
        struct kvr_decision decision;
        struct kvr_ticket *ticket;
        struct shadow_slot *slot;

        if (!decide(shadow->brain, request, previous_id, &decision, &ticket)) {
                shadow->sums.figures.undecided++;
                return false;
        }
        slot = shadow__slot_virt(shadow, decision.replica);
        leg_begin(shadow, &flight->legs[SHADOW_KV], slot, &decision, ticket);
        return true;
}

struct shadow_flight *shadow_begin(struct shadow *shadow, const struct kvr_request *request,
                                   struct kvr_slice previous_id, const struct kvr_decision *actual,
                                   uint64_t now_ns)
{
        struct shadow_flight *flight = NULL;
        struct shadow_slot *slot;

        if (!shadow)
                return NULL;
        enter(shadow, now_ns);
        slot = shadow__slot_real(shadow, actual->replica);
        if (!slot)
                shadow->sums.figures.undecided++; /* it was added or removed this very moment */
        else
                flight = flight_new(shadow);
        if (flight && !decide_kv(shadow, flight, request, previous_id)) {
                flight_free(shadow, flight);
                flight = NULL;
        }
        if (flight)
                leg_begin(shadow, &flight->legs[SHADOW_ACTUAL], slot, actual, NULL);
        leave(shadow);
        return flight;
}

/* Both sides are decided, and what a copy cannot tell is left unknown. */
static void mirror_begin(struct shadow *shadow, struct shadow_flight *flight, uint64_t decode_ns)
{
        const struct shadow_leg *actual = &flight->legs[SHADOW_ACTUAL];
        const struct shadow_outcome outcome = {
                .end = KVR_END_FINISHED,
                .computed = true,
                .prompt_tokens = actual->prompt_tokens,
                .predicted = actual->match_tokens,
                .cached_tokens = -1,
                .completion_tokens = -1,
                .ttft_s = NAN,
        };

        flight->ended = true;
        flight->decode_ns = decode_ns;
        flight->outcome = (struct kvr_outcome){KVR_END_FINISHED, -1, -1, -1, {NULL, 0}};
        if (outcome.prompt_tokens)
                shadow__sums_add(shadow, flight, &outcome);
}

uint32_t shadow_mirror(struct shadow *shadow, const struct kvr_request *request, struct kvr_slice previous_id,
                       uint64_t decode_ns, uint64_t now_ns)
{
        struct shadow_flight *flight;
        struct kvr_decision decision;
        struct kvr_ticket *ticket;
        uint32_t prompt = 0;

        if (!shadow)
                return 0;
        enter(shadow, now_ns);
        flight = flight_new(shadow);
        if (flight && !decide(shadow->options.real, request, previous_id, &decision, &ticket)) {
                shadow->sums.figures.undecided++;
                flight_free(shadow, flight);
        } else if (flight) {
                struct shadow_slot *slot = shadow__slot_real(shadow, decision.replica);

                if (slot && decide_kv(shadow, flight, request, previous_id)) {
                        leg_begin(shadow, &flight->legs[SHADOW_ACTUAL], slot, &decision, ticket);
                        mirror_begin(shadow, flight, decode_ns);
                        prompt = decision.prompt_tokens;
                } else {
                        give_up(ticket);
                        flight_free(shadow, flight);
                }
        }
        leave(shadow);
        return prompt;
}

void shadow_first_token(struct shadow *shadow, struct shadow_flight *flight, uint64_t now_ns)
{
        struct shadow_leg *leg;

        if (!shadow || !flight)
                return;
        enter(shadow, now_ns);
        leg = &flight->legs[SHADOW_KV];
        if (leg->untimed && !leg->first_token) {
                leg->first_ns = shadow->now_ns;
                leg_due(shadow, leg);
        }
        leave(shadow);
}

/* ---- the end ---- */

static void keep_outcome(struct shadow_flight *flight, const struct shadow_outcome *outcome)
{
        size_t len = outcome->response_id.len;

        flight->outcome = (struct kvr_outcome){
                .end = outcome->end,
                .prompt_tokens = outcome->prompt_counted ? (int64_t)outcome->prompt_tokens : -1,
                .cached_tokens = -1, /* nobody has seen what the virtual replica had */
                .completion_tokens = outcome->completion_tokens,
        };
        flight->decode_ns = outcome->decode_ns;
        if (len && len <= sizeof flight->response_id) {
                memcpy(flight->response_id, outcome->response_id.data, len);
                flight->outcome.response_id = (struct kvr_slice){flight->response_id, len};
        }
}

static void end_kv(struct shadow *shadow, struct shadow_leg *leg, const struct shadow_outcome *outcome)
{
        /* Whoever left, left here as well; what a real engine has computed counts as computed. */
        if (outcome->end != KVR_END_FINISHED)
                leg_end(shadow, leg, outcome->computed ? KVR_END_FINISHED : outcome->end);
        else if (leg->first_token)
                leg_finish(shadow, leg);
        else if (leg->untimed || leg->at_ns > shadow->now_ns + SHADOW_LAG_NS)
                leg_end(shadow, leg, KVR_END_FINISHED);
}

void shadow_end(struct shadow *shadow, struct shadow_flight *flight, const struct shadow_outcome *outcome,
                uint64_t now_ns)
{
        if (!shadow || !flight)
                return;
        enter(shadow, now_ns);
        keep_outcome(flight, outcome);
        if (outcome->computed && outcome->prompt_tokens) {
                shadow__slot_look(shadow, flight->legs[SHADOW_ACTUAL].slot);
                shadow__sums_add(shadow, flight, outcome);
        }
        flight->ended = true;
        leg_end(shadow, &flight->legs[SHADOW_ACTUAL], outcome->end);
        end_kv(shadow, &flight->legs[SHADOW_KV], outcome);
        flight_drop(shadow, flight);
        leave(shadow);
}

void shadow_tick(struct shadow *shadow, uint64_t now_ns)
{
        if (!shadow)
                return;
        enter(shadow, now_ns);
        leave(shadow);
}

/* ---- life ---- */

struct kvr_ledger *shadow_ledger(struct shadow *shadow)
{
        return shadow ? shadow->ledger : NULL;
}

static enum kvr_status make_brain(struct shadow *shadow, struct kvr_error *err)
{
        const struct kvr_settings settings = {
                .policy = "kv",
                .index_memory_bytes = shadow->options.index_memory_bytes,
                .default_prefill_tokens_per_second = shadow->options.prefill_speed,
                .default_tokens_per_byte = shadow->options.tokens_per_byte,
                .queue_wait_hint_ms = 1,
        };
        const struct kvr_ledger_settings plain = {.without_counterfactual = true};
        struct kvr_env env = shadow_clock_env(shadow->options.clock);
        enum kvr_status status = kvr_router_new(&settings, &env, &shadow->brain, err);

        if (status == KVR_OK)
                status = kvr_ledger_new(&plain, &shadow->ledger, err);
        if (status == KVR_OK)
                kvr_router_set_ledger(shadow->brain, shadow->ledger);
        return status;
}

enum kvr_status shadow_new(const struct shadow_options *options, struct shadow **ret, struct kvr_error *err)
{
        struct shadow *shadow = calloc(1, sizeof *shadow);
        enum kvr_status status;

        if (!shadow)
                return KVR_E_NOMEM;
        shadow->options = *options;
        shadow->flights.next = shadow->flights.prev = &shadow->flights;
        status = make_brain(shadow, err);
        if (status == KVR_OK && pthread_mutex_init(&shadow->lock, NULL) == 0) {
                *ret = shadow;
                return KVR_OK;
        }
        kvr_router_free(shadow->brain);
        kvr_ledger_free(shadow->ledger);
        free(shadow);
        return status == KVR_OK ? KVR_E_NOMEM : status;
}

void shadow_free(struct shadow *shadow)
{
        if (!shadow)
                return;
        while (shadow->flights.next != &shadow->flights) {
                struct shadow_flight *flight = shadow->flights.next;

                for (int role = 0; role < SHADOW_ROLES; role++)
                        leg_end(shadow, &flight->legs[role], KVR_END_FAILED);
                flight_free(shadow, flight);
        }
        shadow__fleet_free(shadow);
        kvr_router_free(shadow->brain);
        kvr_ledger_free(shadow->ledger);
        pthread_mutex_destroy(&shadow->lock);
        free(shadow->heap);
        free(shadow);
}
