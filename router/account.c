/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a request: settlement, access log, metrics, and everything given back. Once per exchange. */
#include "proxy.h"

#include "adapters.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "edit.h"
#include "engine/paths.h"
#include "host.h"

#define KEY_ID_DIGITS 8
#define KEY_ID_SEED   0x6b65795f69640a01ull /* so that no id is the beginning of a tenant's salt */

void count_waiting(struct exchange *exchange, bool waiting)
{
        struct target *target = exchange->replica;

        if (exchange->counted_waiting == waiting || !target)
                return;
        exchange->counted_waiting = waiting;
        if (!waiting)
                atomic_fetch_sub_explicit(&target->waiting, 1, memory_order_relaxed);
        else if (atomic_fetch_add_explicit(&target->waiting, 1, memory_order_relaxed) == 0)
                atomic_store_explicit(&target->waiting_since_ns, exchange->sent_ns, memory_order_relaxed);
}

void exchange_release_replica(struct exchange *exchange)
{
        if (!exchange->replica)
                return;
        count_waiting(exchange, false);
        atomic_fetch_sub_explicit(&exchange->replica->streams, 1, memory_order_relaxed);
        target_unref(exchange->replica);
        exchange->replica = NULL;
}

static void read_usage(struct exchange *exchange, struct usage *ret)
{
        *ret = (struct usage){.prompt_tokens = -1, .cached_tokens = -1, .completion_tokens = -1};
        if (!exchange->tapped)
                return;
        usage_tap_result(&exchange->tap,
                         atomic_load_explicit(&exchange->replica->reports_cached, memory_order_relaxed), ret);
        if (ret->report_proved)
                atomic_store_explicit(&exchange->replica->reports_cached, true, memory_order_relaxed);
}

static void settle(struct exchange *exchange, enum kvr_end end, const struct usage *usage,
                   struct kvr_settlement *ret)
{
        struct proxy *proxy = exchange->worker->proxy;
        struct kvr_outcome outcome = {
                .end = end,
                .prompt_tokens = usage->prompt_tokens,
                .cached_tokens = usage->cached_tokens,
                .completion_tokens = usage->completion_tokens,
        };

        if (exchange->api == KVR_API_RESPONSES && usage->id[0])
                outcome.response_id = slice_of(usage->id);
        kvr_ticket_settle(exchange->ticket, &outcome, ret);
        exchange->ticket = NULL;
        /* Room came free: whoever waits in a queue looks again. */
        if (atomic_load_explicit(&proxy->queued, memory_order_relaxed)) {
                for (unsigned i = 0; i < proxy->worker_count; i++)
                        worker_wake(&proxy->workers[i]);
        }
}

void exchange_settle(struct exchange *exchange, enum kvr_end end)
{
        struct usage usage = {.prompt_tokens = -1, .cached_tokens = -1, .completion_tokens = -1};

        if (exchange->ticket)
                settle(exchange, end, &usage, NULL);
}

/* ---- access log ---- */

static void add_string(struct text *out, const char *key, struct kvr_slice value)
{
        text_addf(out, ",\"%s\":\"", key);
        text_add_json(out, value);
        text_add(out, "\"", 1);
}

static void add_count(struct text *out, const char *key, int64_t value)
{
        if (value < 0)
                text_addf(out, ",\"%s\":null", key);
        else
                text_addf(out, ",\"%s\":%lld", key, (long long)value);
}

static void add_seconds(struct text *out, const char *key, uint64_t from_ns, uint64_t to_ns)
{
        if (from_ns == 0 || to_ns < from_ns)
                text_addf(out, ",\"%s\":null", key);
        else
                text_addf(out, ",\"%s\":%.6f", key, (double)(to_ns - from_ns) / 1e9);
}

static const char *end_name(enum kvr_end end)
{
        static const char *const names[] = {"finished", "client", "failed", "refused"};

        return names[end];
}

/* Tells one client key from another without telling any: the same id for the same key and seed. */
static void add_key_id(struct text *out, struct exchange *exchange)
{
        struct kvr_slice key = exchange_client_key(exchange);
        char hash[33];

        if (key.len == 0) {
                text_adds(out, ",\"key_id\":null");
                return;
        }
        edit_salt_of_key(key, exchange->worker->proxy->seed ^ KEY_ID_SEED, hash);
        add_string(out, "key_id", (struct kvr_slice){hash, KEY_ID_DIGITS});
}

__attribute__((cold)) static void log_access(struct exchange *exchange, enum kvr_end end,
                                             const struct usage *usage,
                                             const struct kvr_settlement *settlement, uint64_t now_ns)
{
        struct proxy *proxy = exchange->worker->proxy;
        struct text *out = &exchange->worker->scratch;
        const struct target *target = exchange->replica;
        struct timespec at;
        struct tm tm;
        char stamp[40];

        clock_gettime(CLOCK_REALTIME, &at);
        gmtime_r(&at.tv_sec, &tm);
        strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
        text_clear(out);
        text_addf(out, "{\"time\":\"%s.%03ldZ\"", stamp, at.tv_nsec / 1000000);
        add_string(out, "request_id", slice_of(exchange->request_id));
        add_string(out, "client", slice_of(exchange->client->address));
        add_key_id(out, exchange);
        add_string(out, "method", slice_of(exchange->method));
        add_string(out, "path", exchange->path);
        add_count(out, "status", exchange->status ? exchange->status : -1);
        add_string(out, "end", slice_of(end_name(end)));
        if (exchange->own_code)
                add_string(out, "code", slice_of(exchange->own_code));
        add_string(out, "model", slice_of(exchange->model));
        add_string(out, "workload", slice_of(exchange->workload[0] ? exchange->workload : WORKLOAD_DEFAULT));
        if (target) {
                add_string(out, "replica", slice_of(target->spec.name));
                add_string(out, "reason", slice_of(kvr_reason_name(exchange->decision.reason)));
        }
        add_count(out, "tries", exchange->tries);
        add_count(out, "prompt_tokens",
                  usage->prompt_tokens >= 0 ? usage->prompt_tokens
                  : settlement              ? (int64_t)settlement->prompt_tokens
                                            : -1);
        add_count(out, "predicted_tokens", settlement ? (int64_t)exchange->decision.match_tokens : -1);
        add_count(out, "best_match_tokens", settlement ? (int64_t)exchange->decision.best_match_tokens : -1);
        add_count(out, "observed_tokens", usage->cached_tokens);
        add_count(out, "completion_tokens", usage->completion_tokens);
        text_addf(out, ",\"stream\":%s", exchange->stream ? "true" : "false");
        add_seconds(out, "queue_s", exchange->queued_ns, exchange->queued_ns ? exchange->routed_ns : 0);
        add_seconds(out, "ttft_s", exchange->start_ns, exchange->first_token_ns);
        add_seconds(out, "total_s", exchange->start_ns, now_ns);
        add_count(out, "request_bytes", (int64_t)exchange->body.len);
        add_count(out, "response_bytes", (int64_t)exchange->body_out);
        text_add(out, "}\n", 2);
        /* One write per line, in append mode: lines of several threads do not mix. */
        if (!out->failed && write(proxy->access_fd, out->data, out->len) < 0)
                log_say(proxy->log, LOG_WARN, "access-log", "the access log cannot be written: %s",
                        strerror(errno));
}

/* ---- metrics ---- */

static struct kvr_slice status_label(unsigned status, char code[3])
{
        code[0] = (char)('0' + status / 100 % 10);
        code[1] = (char)('0' + status / 10 % 10);
        code[2] = (char)('0' + status % 10);
        return status ? (struct kvr_slice){code, 3} : slice_of("0");
}

/* The series of this exchange's labels. */
struct counts {
        struct worker *worker;
        struct metrics_labels *labels;
};

static void count(const struct counts *counts, enum metric_id id, uint64_t n)
{
        struct metrics *metrics = counts->worker->proxy->metrics;
        unsigned thread = counts->worker->number;

        metrics_add(metrics, thread, metrics_series_of(metrics, thread, counts->labels, id), n);
}

static void observe(const struct counts *counts, enum metric_id id, uint64_t from_ns, uint64_t to_ns)
{
        struct metrics *metrics = counts->worker->proxy->metrics;
        unsigned thread = counts->worker->number;

        metrics_observe(metrics, thread, metrics_series_of(metrics, thread, counts->labels, id),
                        (double)(to_ns - from_ns) / 1e9);
}

static void count_tokens(const struct counts *counts, const struct exchange *exchange,
                         const struct usage *usage, const struct kvr_settlement *settlement)
{
        uint64_t prompt =
                usage->prompt_tokens >= 0 ? (uint64_t)usage->prompt_tokens : settlement->prompt_tokens;

        count(counts, METRIC_PROMPT_TOKENS, prompt);
        count(counts, METRIC_PREDICTED_CACHED, exchange->decision.match_tokens);
        if (usage->cached_tokens >= 0)
                count(counts, METRIC_OBSERVED_CACHED, (uint64_t)usage->cached_tokens);
        /* Also at 0: a hit rate needs it as the other side of a subtraction. */
        count(counts, METRIC_UNOBSERVED_PROMPT, usage->cached_tokens >= 0 ? 0 : prompt);
        if (usage->completion_tokens > 0)
                count(counts, METRIC_COMPLETION_TOKENS, (uint64_t)usage->completion_tokens);
}

static struct counts counts_of(const struct exchange *exchange, enum kvr_end end, bool settled)
{
        struct worker *worker = exchange->worker;
        /* A name nobody serves is the client's invention: it must not become a label. */
        bool known = settled || exchange->replica;
        char code[3];
        const struct kvr_slice values[METRICS_LABELS_MAX] = {
                known ? slice_of(exchange->real_model) : slice_of(""),
                exchange->workload[0] ? slice_of(exchange->workload) : slice_of(WORKLOAD_DEFAULT),
                exchange->replica ? slice_of(exchange->replica->spec.name) : slice_of(""),
                status_label(end == KVR_END_CLIENT && exchange->status == 0 ? 499 : exchange->status, code),
        };

        return (struct counts){worker, metrics_labels(worker->proxy->metrics, worker->number, values)};
}

static void count_reason(struct worker *worker, enum kvr_reason reason)
{
        struct metrics *metrics = worker->proxy->metrics;
        metrics_series_id *series = &worker->reasons[reason];

        if (!*series) {
                struct kvr_slice name = slice_of(kvr_reason_name(reason));

                *series = metrics_series(metrics, worker->number, METRIC_DECISIONS, &name) + 1;
        }
        metrics_add(metrics, worker->number, *series - 1, 1);
}

static void count_exchange(struct exchange *exchange, enum kvr_end end, const struct usage *usage,
                           const struct kvr_settlement *settlement, uint64_t now_ns)
{
        struct counts counts = counts_of(exchange, end, settlement != NULL);
        struct worker *worker = exchange->worker;

        count(&counts, METRIC_REQUESTS, 1);
        observe(&counts, METRIC_REQUEST_DURATION, exchange->start_ns, now_ns);
        if (exchange->first_token_ns)
                observe(&counts, METRIC_TTFT, exchange->start_ns, exchange->first_token_ns);
        if (settlement && end == KVR_END_FINISHED && exchange->status < 300)
                count_tokens(&counts, exchange, usage, settlement);
        if (settlement)
                count_reason(worker, exchange->decision.reason);
        if (exchange->own_code) {
                struct kvr_slice own = slice_of(exchange->own_code);

                worker_count(worker, METRIC_REJECTIONS, &own, 1);
        }
        if (end == KVR_END_CLIENT) {
                struct kvr_slice phase = slice_of(exchange->state == EXCHANGE_QUEUED ? "queued"
                                                  : exchange->state == EXCHANGE_BODY ? "body"
                                                  : exchange->first_token_ns         ? "after first token"
                                                                                     : "before first token");

                worker_count(worker, METRIC_CLIENT_CLOSED, &phase, 1);
        }
}

/* ---- the end ---- */

static void cache_emptied(struct exchange *exchange, struct target *target)
{
        struct proxy *proxy = exchange->worker->proxy;

        kvr_replica_forget(proxy->router, target->id);
        shadow_replica_forget(proxy->shadow, target->id);
        atomic_fetch_add(&target->clears, 1);
}

/* An administrative request passed on (allow-engine-admin) has emptied the cache without an event: that of all the
 * ranks behind its address. */
static void caches_emptied(struct exchange *exchange)
{
        const struct fleet_snapshot *fleet = exchange->worker->fleet;
        struct target *replica = exchange->replica;

        cache_emptied(exchange, replica);
        for (size_t i = 0; fleet && replica->spec.rank >= 0 && i < fleet->count; i++) {
                struct target *target = fleet->targets[i];

                if (target != replica && strcmp(target->spec.group, replica->spec.group) == 0)
                        cache_emptied(exchange, target);
        }
}

static void judge_replica(struct exchange *exchange, enum kvr_end end)
{
        struct fleet *fleet = exchange->worker->proxy->fleet;

        if (exchange->error_event)
                count_failure(exchange, FAIL_STREAM);
        else if (end == KVR_END_FINISHED && exchange->status < 500)
                target_traffic_ok(fleet, exchange->replica);
        if (exchange->api == KVR_API_OTHER && end == KVR_END_FINISHED && exchange->status < 300 &&
            engine_path_clears_cache(exchange->path))
                caches_emptied(exchange);
}

static void give_back(struct exchange *exchange)
{
        struct proxy *proxy = exchange->worker->proxy;

        queue_remove(exchange);
        adapters_leave(exchange);
        net_deadline_disarm(&exchange->heartbeat);
        if (exchange->upstream) {
                upstream_close(exchange->upstream);
                exchange->upstream = NULL;
        }
        exchange_release_replica(exchange);
        if (exchange->body_reserved)
                atomic_fetch_sub(&proxy->body_bytes, exchange->body_reserved);
        exchange->body_reserved = 0;
}

/* What became of the request, to the shadow's brain as well. */
static void end_shadow(struct exchange *exchange, enum kvr_end end)
{
        const struct usage *usage = &exchange->usage;
        const struct kvr_settlement *settlement = exchange->booked ? &exchange->settlement : NULL;
        uint64_t now_ns = uv_hrtime();
        struct shadow_outcome outcome = {
                .end = end,
                .computed = settlement && (exchange->first_token_ns || end == KVR_END_FINISHED),
                .retried = exchange->tries > 1,
                .prompt_tokens = usage->prompt_tokens > 0 ? (uint32_t)usage->prompt_tokens
                                 : settlement             ? settlement->prompt_tokens
                                                          : 0,
                .prompt_counted = usage->prompt_tokens > 0,
                .predicted = exchange->decision.match_tokens,
                .cached_tokens = usage->cached_tokens,
                .completion_tokens = usage->completion_tokens,
                .ttft_s = settlement ? settlement->ttft_s : (double)NAN,
                .decode_ns = exchange->first_token_ns ? now_ns - exchange->first_token_ns : 0,
        };

        if (exchange->api == KVR_API_RESPONSES && usage->id[0])
                outcome.response_id = slice_of(usage->id);
        shadow_end(exchange->worker->proxy->shadow, exchange->shadow, &outcome, now_ns);
        exchange->shadow = NULL;
}

void exchange_book(struct exchange *exchange, enum kvr_end end)
{
        bool refused = end == KVR_END_FINISHED && exchange->status >= 400;

        read_usage(exchange, &exchange->usage);
        if (!exchange->ticket)
                return;
        judge_replica(exchange, end);
        settle(exchange, refused ? KVR_END_REFUSED : end, &exchange->usage, &exchange->settlement);
        exchange->booked = true;
        if (exchange->shadow)
                end_shadow(exchange, refused ? KVR_END_REFUSED : end);
}

/* Those that reached a replica: the others have nothing to tell about routing. */
static void note_decision(const struct exchange *exchange, const struct kvr_settlement *settlement,
                          uint64_t now_ns)
{
        const struct kvr_decision *decision = &exchange->decision;
        const struct decision_note note = {
                .at_ns = now_ns,
                .model = exchange->model,
                .workload = exchange->workload,
                .replica = exchange->replica->spec.name,
                .reason = decision->reason,
                .prompt_tokens = exchange->usage.prompt_tokens >= 0 ? (uint32_t)exchange->usage.prompt_tokens
                                                                    : settlement->prompt_tokens,
                .predicted_tokens = decision->match_tokens,
                .best_tokens = decision->best_match_tokens,
                .due_tokens = decision->due_tokens,
                .wait_s = decision->wait_s,
                .own_s = decision->own_s,
                .toll_s = decision->toll_s,
                .observed_tokens = exchange->usage.cached_tokens,
                .status = exchange->status,
        };

        decisions_add(exchange->worker->proxy->decisions, &note);
}

/* ---- capture ---- */

/* About as many as the engine made, where it does not tell: events of a stream, or a quarter of the bytes. */
static uint32_t output_guess(const struct exchange *exchange)
{
        uint64_t guess = exchange->sse ? exchange->scanner.data_events : exchange->body_in / 4;

        return guess < INT32_MAX ? (uint32_t)guess : INT32_MAX;
}

static int64_t millis(uint64_t from_ns, uint64_t to_ns)
{
        return from_ns && to_ns >= from_ns ? (int64_t)((to_ns - from_ns) / 1000000) : -1;
}

void account_capture(struct exchange *exchange, const char *end, uint32_t input_tokens,
                     uint32_t output_tokens)
{
        struct capture *capture = exchange->worker->proxy->capture;
        const struct usage *usage = &exchange->usage;
        /* The counts of several prompts or answers are not those of the one whose keys are kept. */
        bool counted = exchange->booked && !exchange->several;
        struct capture_facts facts = {
                .input_tokens = input_tokens,
                .output_tokens = output_tokens,
                .cached_tokens = exchange->booked ? usage->cached_tokens : -1,
                .ttft_ms = millis(exchange->start_ns, exchange->first_token_ns),
                .total_ms = exchange->booked ? millis(exchange->start_ns, uv_hrtime()) : -1,
                .end = end,
                .model = exchange->real_model,
                .workload = exchange->workload,
        };

        if (!exchange->capture)
                return;
        if (counted && usage->prompt_tokens > 0 && usage->prompt_tokens <= INT32_MAX) {
                facts.input_tokens = (uint32_t)usage->prompt_tokens;
                facts.input_exact = true;
        }
        if (counted && usage->completion_tokens >= 0 && usage->completion_tokens <= INT32_MAX) {
                facts.output_tokens = (uint32_t)usage->completion_tokens;
                facts.output_exact = true;
        }
        if (facts.input_tokens)
                capture_end(capture, exchange->capture, &facts);
        else
                capture_forget(capture, exchange->capture);
        exchange->capture = NULL;
}

static void end_capture(struct exchange *exchange, enum kvr_end end, const struct kvr_settlement *settlement)
{
        bool computed =
                settlement && exchange->status < 400 && (exchange->first_token_ns || end == KVR_END_FINISHED);

        account_capture(exchange, end_name(end), computed ? settlement->prompt_tokens : 0,
                        output_guess(exchange));
}

static void account(struct exchange *exchange, enum kvr_end end)
{
        struct proxy *proxy = exchange->worker->proxy;
        const struct kvr_settlement *settlement;
        uint64_t now_ns = host_now_ns(NULL);

        if (!exchange->booked)
                exchange_book(exchange, end);
        if (exchange->shadow) /* no replica has served it */
                end_shadow(exchange, end == KVR_END_FINISHED ? KVR_END_FAILED : end);
        settlement = exchange->booked ? &exchange->settlement : NULL;
        count_exchange(exchange, end, &exchange->usage, settlement, now_ns);
        if (exchange->capture)
                end_capture(exchange, end, settlement);
        if (settlement && exchange->replica)
                note_decision(exchange, settlement, now_ns);
        if (proxy->access_fd >= 0)
                log_access(exchange, end, &exchange->usage, settlement, now_ns);
}

void exchange_end(struct exchange *exchange, enum kvr_end end)
{
        struct client *client = exchange->client;
        bool cut = exchange->cut, keep_alive = exchange->keep_alive && exchange->state != EXCHANGE_TUNNEL;

        account(exchange, end);
        give_back(exchange);
        client->exchange = NULL;
        exchange_free(exchange);
        if (cut)
                client_close(client);
        else
                client_answered(client, keep_alive);
}

void exchange_abort(struct exchange *exchange)
{
        struct client *client = exchange->client;

        account(exchange, KVR_END_CLIENT);
        give_back(exchange);
        client->exchange = NULL;
        exchange_free(exchange);
        client_close(client);
}
