/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A generating request in the mock engine:
 *
 *     arrives ──► (delay_head, hang) ──► parsed, submitted, head sent ──► tokens ──► end
 *        └ cut at request   └ status        └ 400, 404, 503   └ cut at head  └ stall, cut, error
 *
 * `ready` counts what the engine model produced, `sent` what the client got of it; mock_push() is the
 * only place where the second follows the first, and so the only one where faults in mid-stream strike.
 */
#include "mock_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include "words.h"

/* ---- helpers ------------------------------------------------------------------------------------------ */

bool mock_space(const struct sim_mock *mock, struct kvr_slice model, struct kvr_slice salt, uint64_t *ret)
{
        const char *at = mock->options.models;
        bool first = true;

        if (model.len == 0) {
                *ret = sim_space_key(sim_slice(mock->base_model), salt);
                return true;
        }
        for (; *at; first = false) {
                size_t len = strcspn(at, ",");

                if (len == model.len && memcmp(at, model.data, len) == 0) {
                        *ret = sim_space_key(first ? sim_slice(mock->base_model) : model, salt);
                        return true;
                }
                at += len + (at[len] == ',');
        }
        return false;
}

uint64_t *mock_keys(struct sim_mock *mock, size_t count)
{
        if (mock->keys_cap < count || !mock->keys) {
                size_t cap = mock->keys_cap ? mock->keys_cap : 1024;
                uint64_t *keys;

                while (cap < count)
                        cap *= 2;
                keys = realloc(mock->keys, cap * sizeof(*keys));
                if (!keys)
                        return NULL;
                mock->keys = keys;
                mock->keys_cap = cap;
        }
        return mock->keys;
}

void mock_stored_clear(struct sim_mock *mock)
{
        for (size_t i = 0; i < MOCK_STORED_MAX; i++) {
                free(mock->stored[i].ids);
                free(mock->stored[i].document);
        }
        memset(mock->stored, 0, MOCK_STORED_MAX * sizeof(*mock->stored));
}

const struct mock_stored *mock_stored_find(const struct sim_mock *mock, struct kvr_slice id)
{
        for (size_t i = 0; mock->stored && i < MOCK_STORED_MAX; i++) {
                if (mock->stored[i].id[0] && sim_slice_is(id, mock->stored[i].id))
                        return &mock->stored[i];
        }
        return NULL;
}

/* Remembers a finished Responses answer; running out of memory only forgets it. */
static void store(struct mock_request *request)
{
        struct sim_mock *mock = request->mock;
        struct mock_stored *slot;
        const struct sim_tokens *tokens = &request->parsed.tokens;
        struct sim_buf document = {0};

        if (!mock->stored || request->parsed.api != SIM_API_RESPONSES || !request->parsed.store)
                return;
        slot = &mock->stored[mock->stored_count++ % MOCK_STORED_MAX];
        free(slot->ids);
        free(slot->document);
        *slot = (struct mock_stored){0};
        slot->ids = malloc(tokens->len * sizeof(*tokens->ids));
        sim_answer_whole(&document, &request->answer);
        if (!slot->ids || document.failed) {
                sim_buf_fini(&document);
                return;
        }
        memcpy(slot->ids, tokens->ids, tokens->len * sizeof(*tokens->ids));
        slot->count = tokens->len;
        slot->document = document.data;
        slot->document_len = document.len;
        snprintf(slot->id, sizeof(slot->id), "resp_%.*s", MOCK_ID_MAX - 6, request->id);
}

struct sim_record *mock_record_of(struct mock_request *request)
{
        return sim_records_get(&request->mock->records, request->record);
}

static void request_free(struct mock_request *request)
{
        request->prev->next = request->next;
        request->next->prev = request->prev;
        if (request->job)
                sim_engine_abort(request->mock->engine, request->job);
        sim_request_fini(&request->parsed);
        sim_buf_fini(&request->answer.text);
        free(request->fault);
        free(request->model_json);
        free(request);
}

struct net_exchange *mock_request_end(struct mock_request *request, enum sim_record_state state,
                                      unsigned status)
{
        struct net_exchange *exchange = request->exchange;

        net_exchange_set_user(exchange, NULL);
        sim_records_end(&request->mock->records, request->record, state, status, mock_wall_s(request->mock));
        request_free(request);
        return exchange;
}

void mock_infer_gone(struct mock_request *request)
{
        (void)mock_request_end(request, SIM_RECORD_ABORTED, 0);
}

void mock_refuse_request(struct mock_request *request, unsigned status, const char *type, const char *param,
                         const char *message)
{
        struct sim_mock *mock = request->mock;
        struct sim_buf *buf = &mock->buf;
        enum sim_api api = request->parsed.api;

        sim_buf_reset(buf);
        sim_answer_error(buf, api, status, type, param, message);
        mock_respond(mock, mock_request_end(request, SIM_RECORD_REFUSED, status), status, buf);
}

/* ---- faults ------------------------------------------------------------------------------------------- */

struct sim_fault *mock_pick_fault(struct sim_mock *mock)
{
        struct sim_fault *fault, *set = &mock->fault;

        if (!sim_fault_active(set) || set->count == 0)
                return NULL;
        if (set->skip) {
                set->skip--;
                return NULL;
        }
        fault = malloc(sizeof(*fault));
        if (!fault)
                return NULL;
        *fault = *set;
        if (set->count != SIM_FAULT_NEVER)
                set->count--;
        return fault;
}

void mock_wait_for(struct mock_request *request, enum mock_wait wait, uint32_t ms)
{
        request->wait = wait;
        request->due_ms = wait == MOCK_WAIT_EVER ? UINT64_MAX : net_now_ms(request->mock->loop) + ms;
        mock_pump(request->mock);
}

void mock_cut(struct mock_request *request)
{
        static const char head[] =
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4096\r\n\r\n";
        static const char half[] = "1000\r\ndata: {\"id\":\"cmpl-";
        enum sim_cut how = request->fault->cut;
        bool headless = request->fault->cut_at != SIM_CUT_AT_REQUEST && !request->parsed.stream;
        bool began = request->began;
        struct net_exchange *exchange = mock_request_end(request, SIM_RECORD_CUT, 0);
        struct kvr_slice raw = {0};

        if (headless) /* a whole answer's head, of which the body never comes */
                raw = sim_slice(head);
        else if (began && how == SIM_CUT_MID_CHUNK)
                raw = sim_slice(half);
        if (how == SIM_CUT_RESET)
                net_exchange_abort(exchange);
        else
                net_exchange_cut(exchange, raw);
}

void mock_answer_status(struct mock_request *request)
{
        struct sim_mock *mock = request->mock;
        const struct sim_fault *fault = request->fault;
        struct sim_buf *buf = &mock->buf;
        unsigned status = fault->status;
        char headers[96] = MOCK_SERVER;

        if (fault->retry_after != SIM_FAULT_NEVER)
                snprintf(headers, sizeof(headers), MOCK_SERVER "retry-after: %u\r\n", fault->retry_after);
        sim_buf_reset(buf);
        if (fault->body[0])
                sim_buf_puts(buf, fault->body);
        else
                sim_answer_error(buf, request->parsed.api, status,
                                 status < 500 ? "BadRequestError" : "InternalServerError", NULL,
                                 "a fault that was asked for");
        net_respond(mock_request_end(request, SIM_RECORD_REFUSED, status), status, MOCK_JSON, headers,
                    sim_buf_slice(buf));
}

/* ---- tokens ------------------------------------------------------------------------------------------- */

static void finish(struct mock_request *request)
{
        struct sim_mock *mock = request->mock;
        struct sim_buf *buf = &mock->buf;
        bool stream = request->parsed.stream;
        struct net_exchange *exchange;

        store(request);
        sim_buf_reset(buf);
        if (stream)
                sim_answer_end(buf, &request->answer);
        else
                sim_answer_whole(buf, &request->answer);
        mock_observe(&mock->e2e, mock_e2e_bounds, (double)(uv_hrtime() - request->arrival_ns) * 1e-9);
        exchange = mock_request_end(request, SIM_RECORD_FINISHED, 200);
        if (!stream) {
                mock_respond(mock, exchange, 200, buf);
                return;
        }
        net_stream_chunk(exchange, sim_buf_slice(buf));
        net_stream_end(exchange);
}

/* The engine behind the stream dies: an error event and a clean end, or a cut, as the API has it. */
static void die(struct mock_request *request)
{
        struct sim_buf *buf = &request->mock->buf;
        bool stream = request->parsed.stream, clean;
        struct net_exchange *exchange;

        if (!stream) {
                mock_refuse_request(request, 500, "InternalServerError", NULL,
                                    "EngineCore encountered an issue.");
                return;
        }
        sim_buf_reset(buf);
        clean = sim_answer_died(buf, &request->answer);
        exchange = mock_request_end(request, SIM_RECORD_CUT, 0);
        net_stream_chunk(exchange, sim_buf_slice(buf));
        if (clean)
                net_stream_end(exchange);
        else
                net_exchange_cut(exchange, (struct kvr_slice){0});
}

/* True if a fault strikes at this point: the request waits or is gone. */
static bool strikes(struct mock_request *request, uint32_t at)
{
        const struct sim_fault *fault = request->fault;

        if (!fault)
                return false;
        if (fault->cut != SIM_CUT_NONE && fault->cut_at == SIM_CUT_AT_TOKENS &&
            at >= fault->cut_after_tokens) {
                mock_cut(request);
                return true;
        }
        if (at >= fault->error_after_tokens) {
                die(request);
                return true;
        }
        if (at >= fault->stall_after_tokens && !request->stalled) {
                request->stalled = true;
                mock_wait_for(request, fault->stall_ms ? MOCK_WAIT_STALL : MOCK_WAIT_EVER, fault->stall_ms);
                return true;
        }
        return false;
}

/* How many tokens go out next, without jumping over the point of a fault. */
static uint32_t next_count(const struct mock_request *request)
{
        const struct sim_fault *fault = request->fault;
        uint32_t have = request->ready - request->sent, interval = request->mock->options.stream_interval;
        uint32_t points[3] = {UINT32_MAX, UINT32_MAX, UINT32_MAX};

        if (request->sent == 0)
                interval = 1;
        if (fault) {
                points[0] = fault->cut != SIM_CUT_NONE && fault->cut_at == SIM_CUT_AT_TOKENS
                                    ? fault->cut_after_tokens
                                    : UINT32_MAX;
                points[1] = fault->error_after_tokens;
                points[2] = fault->stall_after_tokens;
        }
        for (size_t i = 0; i < 3; i++) {
                if (points[i] > request->sent && points[i] - request->sent < interval)
                        interval = points[i] - request->sent;
        }
        if (have < interval && !request->engine_done)
                return 0;
        return have < interval ? have : interval;
}

const char *mock_word_of(const struct mock_request *request, uint32_t token)
{
        return sim_word(sim_mix64(request->seed + token));
}

/* The text of `count` more tokens; returns where it begins in answer.text. */
static size_t add_text(struct mock_request *request, uint32_t count)
{
        struct sim_answer *answer = &request->answer;
        size_t from = answer->text.len;

        for (uint32_t i = 0; i < count; i++)
                sim_buf_add(&answer->text, mock_word_of(request, request->sent + i), SIM_WORD_BYTES);
        request->sent += count;
        answer->output_tokens = request->sent;
        return from;
}

static void push_whole(struct mock_request *request)
{
        if (strikes(request, request->ready) || !request->engine_done)
                return;
        add_text(request, request->ready - request->sent);
        finish(request);
}

void mock_push(struct mock_request *request)
{
        struct sim_mock *mock = request->mock;

        if (request->wait != MOCK_WAIT_NOTHING)
                return;
        if (!request->parsed.stream) {
                push_whole(request);
                return;
        }
        for (;;) {
                uint32_t count;
                size_t from;
                bool last;

                if (request->sent == request->planned) {
                        finish(request);
                        return;
                }
                if (request->ready == 0 || strikes(request, request->sent))
                        return;
                count = next_count(request);
                if (count == 0)
                        return;
                sim_buf_reset(&mock->buf);
                if (request->sent == 0)
                        sim_answer_first(&mock->buf, &request->answer);
                from = add_text(request, count);
                last = request->sent == request->planned;
                sim_answer_token(
                        &mock->buf, &request->answer,
                        (struct kvr_slice){request->answer.text.data + from, request->answer.text.len - from},
                        count, last);
                net_stream_chunk(request->exchange, sim_buf_slice(&mock->buf));
                if (request->fault && request->fault->chunk_delay_ms && !last) {
                        mock_wait_for(request, MOCK_WAIT_CHUNK, request->fault->chunk_delay_ms);
                        return;
                }
        }
}

static void on_start(struct mock_request *request, const struct sim_event *event)
{
        struct sim_mock *mock = request->mock;
        struct sim_record *record = mock_record_of(request);
        double waited_s = (double)event->at_ns / mock->options.speed * 1e-9 -
                          (double)(request->arrival_ns - mock->epoch_ns) * 1e-9;

        request->answer.cached_tokens = event->cached_tokens;
        mock->records.sums.prompt_tokens += request->answer.prompt_tokens;
        mock->records.sums.cached_tokens += event->cached_tokens;
        mock_observe(&mock->queue, mock_e2e_bounds, waited_s > 0 ? waited_s : 0);
        if (record)
                record->cached_tokens = event->cached_tokens;
}

static void on_token(struct mock_request *request, const struct sim_event *event)
{
        struct sim_mock *mock = request->mock;
        struct sim_record *record = mock_record_of(request);

        request->ready++;
        mock->records.sums.output_tokens++;
        if (record)
                record->output_tokens = request->ready;
        if (request->ready == 1) {
                double now_s = mock_wall_s(mock);

                mock_observe(&mock->ttft, mock_ttft_bounds,
                             now_s - (double)(request->arrival_ns - mock->epoch_ns) * 1e-9);
                if (record) {
                        record->first_token_s = now_s;
                        record->state = SIM_RECORD_RUNNING;
                }
        } else {
                mock_observe(&mock->itl, mock_itl_bounds,
                             (double)(event->at_ns - request->token_ns) / mock->options.speed * 1e-9);
        }
        request->token_ns = event->at_ns;
}

void mock_infer_event(struct sim_mock *mock, const struct sim_event *event)
{
        struct mock_request *request = event->tag;

        (void)mock;
        switch (event->kind) {
        case SIM_EVENT_START:
                on_start(request, event);
                return;
        case SIM_EVENT_TOKEN:
                on_token(request, event);
                /* The last token goes out with the end that follows it at the same instant. */
                if (request->ready < request->planned)
                        mock_push(request);
                return;
        case SIM_EVENT_END:
                request->job = NULL;
                request->engine_done = true;
                mock_push(request);
                return;
        }
}

void mock_infer_due(struct mock_request *request)
{
        enum mock_wait wait = request->wait;

        request->wait = MOCK_WAIT_NOTHING;
        if (wait == MOCK_WAIT_HEAD)
                mock_proceed(request);
        else
                mock_push(request);
}
