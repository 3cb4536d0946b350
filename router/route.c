/* SPDX-License-Identifier: Apache-2.0 */
/* From a complete request to a replica: decision, queue, and what to answer when there is none. */
#include "adapters.h"
#include "explain_log.h"
#include "identify.h"
#include "tenant.h"

#include <kvroute/events.h>
#include <string.h>

#define NS_PER_S     1000000000ull
#define QUEUE_TRIES  64 /* queued requests looked at in one go */
#define KNOWN_MODELS 16 /* named in a 404 */

/* What a copy of a request cannot tell: how long its answer is and how long that takes, at most. */
#define MIRROR_TOKENS   256
#define MIRROR_TOKEN_NS 25000000

static void fill_request(struct exchange *exchange, struct kvr_request *ret)
{
        memset(ret, 0, sizeof *ret);
        ret->model = (struct kvr_slice){exchange->real_model, strlen(exchange->real_model)};
        ret->affinity = (struct kvr_slice){exchange->affinity, exchange->affinity_key_len};
        ret->pinned = exchange->pinned;
        ret->workload = slice_of(exchange->workload);
        ret->tried_count = exchange->tried_count;
        memcpy(ret->tried, exchange->tried, sizeof ret->tried);
}

void route_add_tried(struct exchange *exchange, kvr_replica_id id)
{
        if (exchange->tried_count < KVR_TRIED_MAX)
                exchange->tried[exchange->tried_count++] = id;
}

bool route_has_other(struct exchange *exchange)
{
        struct kvr_request request;
        struct kvr_decision decision;
        size_t count;

        if (exchange->tries > exchange->worker->config->retries || exchange->tried_count >= KVR_TRIED_MAX)
                return false;
        fill_request(exchange, &request);
        request.tried[request.tried_count++] = exchange->decision.replica;
        request.pinned = 0;
        return kvr_explain(exchange->worker->proxy->router, &request, &decision, NULL, 0, &count, NULL) ==
               KVR_OK;
}

static void refuse_unknown_model(struct exchange *exchange)
{
        struct text *message = &exchange->worker->scratch;

        text_clear(message);
        text_addf(message, "no replica serves the model \"%.100s\"; known:", exchange->model);
        fleet_list_models(exchange->worker->fleet, message, KNOWN_MODELS);
        reply_error_field(exchange, 404, "model_not_found", text_string(message), "model");
}

void route_refuse(struct exchange *exchange)
{
        if (exchange->fail_status && exchange->reached) {
                reply_error(exchange, exchange->fail_status, exchange->fail_code, exchange->fail_message, 0);
                return;
        }
        reply_error(exchange, 503, "no_replica",
                    exchange->fail_status
                            ? "no replica takes connections at the moment"
                            : "no replica is ready; see /kvroute/replicas on the admin listener",
                    1);
}

static uint64_t seconds_up(uint64_t ns)
{
        return ns ? (ns + NS_PER_S - 1) / NS_PER_S : 1;
}

static void queue_insert(struct exchange *exchange)
{
        struct worker *worker = exchange->worker;
        struct exchange *at = worker->queue.queue_prev;

        while (at != &worker->queue && at->priority > exchange->priority)
                at = at->queue_prev;
        exchange->queue_prev = at;
        exchange->queue_next = at->queue_next;
        at->queue_next->queue_prev = exchange;
        at->queue_next = exchange;
        worker->queue_len++;
        if (worker->queue_len == 1)
                net_deadline_arm(&worker->deadlines, &worker->tick, DEADLINE_TICK);
}

void queue_remove(struct exchange *exchange)
{
        if (!exchange->queue_next)
                return;
        exchange->queue_prev->queue_next = exchange->queue_next;
        exchange->queue_next->queue_prev = exchange->queue_prev;
        exchange->queue_prev = exchange->queue_next = NULL;
        exchange->worker->queue_len--;
        atomic_fetch_sub(&exchange->worker->proxy->queued, 1);
        worker_observe(exchange->worker, METRIC_QUEUE_SECONDS, NULL,
                       (double)(uv_hrtime() - exchange->queued_ns) / 1e9);
}

/* Every candidate is full or asked for a pause: wait here, or say at once how long it will take. */
static void wait_or_refuse(struct exchange *exchange, uint64_t retry_after_ns)
{
        struct worker *worker = exchange->worker;
        const struct router_config *config = worker->config;
        uint64_t now = uv_hrtime(), limit_ns = config->queue_timeout_ms * 1000000;

        if (exchange->queued_ns == 0) {
                bool hopeless = limit_ns && retry_after_ns > limit_ns;

                if (hopeless || atomic_fetch_add(&worker->proxy->queued, 1) >= config->queue_requests) {
                        if (!hopeless)
                                atomic_fetch_sub(&worker->proxy->queued, 1);
                        reply_error(exchange, 429, "overloaded",
                                    "every replica is at its limit or asked for a pause",
                                    seconds_up(retry_after_ns));
                        return;
                }
                exchange->queued_ns = now;
                exchange->queue_due_ns = limit_ns ? now + limit_ns : UINT64_MAX;
        } else {
                atomic_fetch_add(&worker->proxy->queued, 1);
        }
        exchange->state = EXCHANGE_QUEUED;
        queue_insert(exchange);
}

static void decided(struct exchange *exchange)
{
        struct worker *worker = exchange->worker;
        struct target *target = fleet_snapshot_find(worker->fleet, exchange->decision.replica);

        exchange->tries++;
        if (!target) {
                /* Removed or added between our look at the fleet and the decision. */
                fleet_snapshot_unref(worker->fleet);
                worker->fleet = fleet_snapshot(worker->proxy->fleet);
                target = fleet_snapshot_find(worker->fleet, exchange->decision.replica);
        }
        if (!target) {
                exchange_settle(exchange, KVR_END_FAILED);
                route_add_tried(exchange, exchange->decision.replica);
                route_try(exchange);
                return;
        }
        exchange->replica = target_ref(target);
        atomic_fetch_add_explicit(&target->streams, 1, memory_order_relaxed);
        if (exchange->queued_ns && exchange->tries == 1)
                exchange->decision.reason = KVR_REASON_QUEUE;
        send_begin(exchange);
}

static void begin_capture(struct exchange *exchange, const struct kvr_request *request)
{
        struct capture *capture = exchange->worker->proxy->capture;

        if (capture && request->prompt && !exchange->capture)
                exchange->capture =
                        capture_begin(capture, request->prompt, request->affinity, exchange->start_ns);
}

/* For who measures: what the policy kv would do with it, what is kept of it. Once, whatever tries follow. */
static void measure(struct exchange *exchange, const struct kvr_request *request)
{
        const struct kvr_prompt *prompt = request->prompt;

        begin_capture(exchange, request);
        exchange->shadow =
                shadow_begin(exchange->worker->proxy->shadow, request,
                             prompt ? prompt->previous_id : KVR_SLICE(""), &exchange->decision, uv_hrtime());
}

/* A copy of a request that somebody else serves: it is only looked at. */
static void take_mirrored(struct exchange *exchange, const struct kvr_request *request)
{
        const struct kvr_prompt *prompt = request->prompt;
        uint64_t tokens = MIRROR_TOKENS;

        if (prompt && prompt->max_tokens && prompt->max_tokens < tokens)
                tokens = prompt->max_tokens;
        if (prompt) {
                uint32_t size = shadow_mirror(exchange->worker->proxy->shadow, request, prompt->previous_id,
                                              tokens * MIRROR_TOKEN_NS, uv_hrtime());

                begin_capture(exchange, request);
                account_capture(exchange, "mirrored", size, (uint32_t)tokens);
        }
        reply_body(exchange, 200, "application/json", KVR_SLICE("{}"));
}

/*
 * Engines tell what they hold in tokens; what this prompt is in tokens is asked for in the background. Here
 * only a copy is made, of a prompt that nobody asked for yet.
 */
static void offer_tokens(struct exchange *exchange, const struct kvr_request *request)
{
        struct proxy *proxy = exchange->worker->proxy;
        struct tokens_prompt prompt = {
                .prompt = request->prompt,
                .api = exchange->api,
                .body = identify_body(exchange),
                .model = request->model,
                .salt = request->prompt->salt,
                .metrics_thread = exchange->worker->number,
        };

        if (!kvr_tokens_wanted(proxy->router, request))
                return;
        if (fleet_has_adapter(exchange->worker->fleet, request->model))
                prompt.adapter = request->model;
        tokens_offer(proxy->tokens, &prompt);
}

static void refuse_prompt(struct exchange *exchange, enum kvr_status status, const struct kvr_error *err)
{
        if (status == KVR_E_NOMEM)
                reply_error(exchange, 503, "overloaded", "no memory to read the body", 1);
        else
                reply_error_field(exchange, 400, kvr_status_name(status), err->message, err->field);
}

static void route_with(struct exchange *exchange, const struct kvr_prompt *prompt)
{
        struct worker *worker = exchange->worker;
        struct kvr_request request;
        struct kvr_error err = {0};
        enum kvr_status status;

        exchange->state = EXCHANGE_READY;
        fleet_refresh(worker->proxy->fleet, &worker->fleet);
        fill_request(exchange, &request);
        request.prompt = prompt;
        if (worker->proxy->mirror) {
                take_mirrored(exchange, &request);
                return;
        }
        identify_adapter(worker->fleet, &request);
        explain_log(exchange, &request);
        status = kvr_decide(worker->proxy->router, &request, &exchange->decision, &exchange->ticket, &err);
        if (status == KVR_E_NO_REPLICA) {
                request.last_resort = true; /* a fleet that is all unhealthy is tried rather than refused */
                status = kvr_decide(worker->proxy->router, &request, &exchange->decision, &exchange->ticket,
                                    &err);
        }
        exchange->routed_ns = uv_hrtime();
        worker_observe(worker, METRIC_DECISION, NULL,
                       (double)(exchange->routed_ns - exchange->decision_start_ns) / 1e9);
        switch (status) {
        case KVR_OK:
                if (worker->proxy->tokens && prompt)
                        offer_tokens(exchange, &request);
                if (exchange->tries == 0)
                        measure(exchange, &request);
                decided(exchange);
                return;
        case KVR_E_BUSY:
                wait_or_refuse(exchange, exchange->decision.retry_after_ns);
                return;
        case KVR_E_NO_MODEL:
                refuse_unknown_model(exchange);
                return;
        case KVR_E_NO_REPLICA:
                route_refuse(exchange);
                return;
        default:
                reply_error(exchange, 503, "overloaded", kvr_status_text(status), 1);
        }
}

void route_begin(struct exchange *exchange)
{
        struct kvr_prompt prompt;
        struct kvr_error err = {0};
        enum kvr_status status;
        bool keyed;

        if (atomic_load_explicit(&exchange->worker->proxy->draining, memory_order_relaxed)) {
                exchange->keep_alive = false;
                reply_error(exchange, 503, "draining", "the router is shutting down", 1);
                return;
        }
        if (identify_decode(exchange) || tenant_refuses_body(exchange))
                return;
        if (adapters_takes(exchange)) {
                adapters_ask(exchange);
                return;
        }
        exchange->decision_start_ns = uv_hrtime();
        status = identify(exchange, &prompt, &keyed, &err);
        if (status != KVR_OK) {
                refuse_prompt(exchange, status, &err);
                return;
        }
        identify_owner(exchange);
        identify_workload(exchange);
        route_with(exchange, keyed ? &prompt : NULL);
}

void route_try(struct exchange *exchange)
{
        struct kvr_prompt prompt;
        struct kvr_error err = {0};
        bool keyed = exchange->api != KVR_API_OTHER;

        exchange->decision_start_ns = uv_hrtime();
        if (keyed && identify_again(exchange, &prompt, &err) != KVR_OK)
                keyed = false;
        route_with(exchange, keyed ? &prompt : NULL);
}

void queue_run(struct worker *worker)
{
        uint64_t now = uv_hrtime();
        unsigned looked = 0;

        for (struct exchange *at = worker->queue.queue_next, *next; at != &worker->queue; at = next) {
                struct kvr_request request;
                struct kvr_decision decision;
                enum kvr_status status;
                size_t count;

                next = at->queue_next;
                if (now >= at->queue_due_ns) {
                        queue_remove(at);
                        reply_error(at, 429, "overloaded",
                                    "every replica stayed at its limit or paused for the whole queue-timeout",
                                    1);
                        continue;
                }
                if (++looked > QUEUE_TRIES)
                        continue; /* only look for those whose time is over */
                fill_request(at, &request);
                /* First a cheap look without the prompt: reading it each time would cost more. */
                status = kvr_explain(worker->proxy->router, &request, &decision, NULL, 0, &count, NULL);
                if (status == KVR_E_BUSY || status == KVR_E_NO_REPLICA)
                        continue;
                queue_remove(at);
                route_try(at);
                /* Others may have come and gone meanwhile: begin anew with the next turn of the loop. */
                if (worker->queue_len)
                        net_deadline_arm(&worker->deadlines, &worker->tick, DEADLINE_TICK);
                next = worker->queue.queue_next;
                if (looked >= QUEUE_TRIES)
                        break;
        }
}
