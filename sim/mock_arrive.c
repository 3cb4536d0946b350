/* SPDX-License-Identifier: Apache-2.0 */
/* How a generating request begins in the mock engine: recorded, delayed if so asked, parsed, planned,
 * submitted. */
#include "mock_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include "words.h"

static void make_id(struct mock_request *request)
{
        const struct http1_field *field = http1_find(net_exchange_head(request->exchange), "x-request-id");
        struct sim_mock *mock = request->mock;
        size_t len = field ? field->value.len : 0;

        if (len && len < 65) {
                for (size_t i = 0; i < len; i++) {
                        unsigned char c = (unsigned char)field->value.data[i];

                        if (c < 0x21 || c > 0x7e || c == '"' || c == '\\')
                                len = 0;
                }
        }
        if (len && len < 65)
                snprintf(request->id, sizeof(request->id), "%.*s", (int)len, field->value.data);
        else
                snprintf(request->id, sizeof(request->id), "%016llx",
                         (unsigned long long)sim_mix64(++mock->ids + (uint64_t)mock->epoch_ns));
}

static char *headers_json(const struct http1_head *head)
{
        struct sim_buf buf = {0};

        sim_buf_puts(&buf, "[");
        for (uint32_t i = 0; i < head->field_count; i++) {
                sim_buf_puts(&buf, i ? ",[" : "[");
                sim_buf_json(&buf, head->fields[i].name);
                sim_buf_puts(&buf, ",");
                sim_buf_json(&buf, head->fields[i].value);
                sim_buf_puts(&buf, "]");
        }
        sim_buf_add(&buf, "]", 2); /* with its end mark */
        if (buf.failed)
                sim_buf_fini(&buf);
        return buf.data;
}

static void record_arrival(struct mock_request *request)
{
        const struct http1_head *head = net_exchange_head(request->exchange);
        struct sim_record *record =
                sim_records_add(&request->mock->records, net_exchange_body(request->exchange));

        request->record = record->number;
        record->arrival_s = mock_wall_s(request->mock);
        record->connection = net_exchange_conn_number(request->exchange);
        record->target = strndup(head->target.data, head->target.len);
        record->headers = headers_json(head);
}

/* Puts the tokens of the conversation that this request continues in front of its own. */
static bool continue_conversation(struct mock_request *request)
{
        struct kvr_slice id = request->parsed.previous_id;
        const struct mock_stored *stored = id.len ? mock_stored_find(request->mock, id) : NULL;
        struct sim_tokens *own = &request->parsed.tokens, all = {0};
        char message[160];

        if (id.len == 0)
                return true;
        if (!stored) {
                snprintf(message, sizeof(message), "Response with id '%.*s' not found.",
                         id.len > 80 ? 80 : (int)id.len, id.data);
                mock_refuse_request(request, 404, "invalid_request_error", "previous_response_id", message);
                return false;
        }
        for (size_t i = 0; i < stored->count; i++)
                sim_tokens_add(&all, stored->ids[i]);
        sim_tokens_add(&all, SIM_TOKEN_END);
        for (size_t i = 1; i < own->len; i++) /* without its own beginning */
                sim_tokens_add(&all, own->ids[i]);
        all.failed = all.failed || own->failed;
        sim_tokens_fini(own);
        *own = all;
        return true;
}

/* Settles the length of the answer, makes its tokens, and fills what the answer says of itself. */
static bool plan(struct mock_request *request)
{
        struct sim_mock *mock = request->mock;
        struct sim_request *parsed = &request->parsed;
        struct sim_answer *answer = &request->answer;
        uint64_t room = (uint64_t)mock->options.engine.capacity_blocks * mock->options.engine.block_tokens;
        char message[320];

        room = room < mock->options.max_model_len ? room : mock->options.max_model_len;
        request->prompt_len = (uint32_t)parsed->tokens.len;
        if (request->prompt_len >= room) {
                snprintf(message, sizeof(message),
                         "This model's maximum context length is %llu tokens. However, your prompt contains "
                         "at least %u input "
                         "tokens, which exceeds this limit even without any output tokens. Please reduce the "
                         "length of the "
                         "input prompt. (parameter=input_tokens, value=%u)",
                         (unsigned long long)room, request->prompt_len, request->prompt_len);
                mock_refuse_request(request, 400, "BadRequestError", "input_tokens", message);
                return false;
        }
        room -= request->prompt_len;
        answer->limited = parsed->max_tokens >= 0;
        request->planned =
                answer->limited
                        ? (uint32_t)(parsed->max_tokens < (int64_t)room ? parsed->max_tokens : (int64_t)room)
                        : mock->options.output_tokens;
        if (request->planned > room)
                request->planned = (uint32_t)room;
        request->seed = XXH3_64bits(parsed->tokens.ids, parsed->tokens.len * sizeof(uint32_t));
        for (uint32_t i = 0; i < request->planned; i++)
                sim_tokens_text(&parsed->tokens,
                                (struct kvr_slice){mock_word_of(request, i), SIM_WORD_BYTES});
        answer->prompt_tokens = request->prompt_len + parsed->other_tokens;
        answer->prompt_ids = parsed->tokens.ids;
        answer->prompt_id_count = request->prompt_len;
        answer->output_ids = parsed->tokens.ids + request->prompt_len;
        return true;
}

/* Its model, unless that is the base model. */
static struct kvr_slice adapter_of(const struct mock_request *request)
{
        struct kvr_slice model = request->parsed.model;

        return model.len == 0 || sim_slice_is(model, request->mock->base_model) ? (struct kvr_slice){0}
                                                                                : model;
}

static bool submit(struct mock_request *request, uint64_t space)
{
        struct sim_mock *mock = request->mock;
        const struct sim_tokens *tokens = &request->parsed.tokens;
        uint32_t block = mock->options.engine.block_tokens;
        uint64_t *keys = mock_keys(mock, tokens->len / block + 1);
        struct sim_submit order = {
                .tag = request,
                .prompt_tokens = request->prompt_len,
                .output_tokens = request->planned,
                .keys = keys,
        };
        enum kvr_status status = KVR_E_NOMEM;

        if (keys && !tokens->failed) {
                order.key_count = sim_block_keys(space, tokens->ids, tokens->len, block, keys);
                if (mock->events)
                        mock_events_learn(mock->events, keys, order.key_count, tokens->ids,
                                          adapter_of(request), request->parsed.salt);
                mock_pump(mock); /* the model must have come to now */
                status = sim_engine_submit(mock->engine, mock_virtual_ns(mock), &order, &request->job);
        }
        switch (status) {
        case KVR_OK:
                return true;
        case KVR_E_BUSY:
                mock_refuse_request(request, 503, "ServiceUnavailableError", NULL, "Service Unavailable");
                return false;
        default:
                mock_refuse_request(request, 500, "InternalServerError", NULL, "out of memory");
                return false;
        }
}

static void answer_init(struct mock_request *request, struct sim_buf *model_json)
{
        struct sim_mock *mock = request->mock;
        const struct sim_request *parsed = &request->parsed;

        sim_buf_json(model_json, parsed->model.len ? parsed->model : sim_slice(mock->base_model));
        sim_buf_add(model_json, "", 1);
        request->answer = (struct sim_answer){
                .api = parsed->api,
                .id = request->id,
                .created = mock->started + (int64_t)mock_wall_s(mock),
                .include_usage = parsed->include_usage,
                .continuous = parsed->continuous,
                .details = mock->options.prompt_tokens_details,
                .token_ids = parsed->token_ids,
                .choices = parsed->choices,
                .block_tokens = mock->options.engine.block_tokens,
                .max_output_tokens = parsed->max_tokens,
                .temperature = parsed->temperature,
                .top_p = parsed->top_p,
        };
}

static void begin_answer(struct mock_request *request)
{
        struct sim_mock *mock = request->mock;
        struct sim_record *record = mock_record_of(request);

        if (record) {
                record->prompt_tokens = request->answer.prompt_tokens;
                record->stream = request->parsed.stream;
        }
        if (request->parsed.stream) {
                net_stream_begin(request->exchange, 200, "text/event-stream; charset=utf-8", MOCK_SERVER);
                request->began = true;
                sim_buf_reset(&mock->buf);
                sim_answer_begin(&mock->buf, &request->answer);
                net_stream_chunk(request->exchange, sim_buf_slice(&mock->buf));
        }
        if (request->fault && request->fault->cut != SIM_CUT_NONE &&
            request->fault->cut_at == SIM_CUT_AT_HEAD)
                mock_cut(request);
        mock_pump(mock);
}

void mock_proceed(struct mock_request *request)
{
        struct sim_mock *mock = request->mock;
        struct sim_request_error error;
        struct sim_buf model = {0};
        enum sim_api api = request->parsed.api;
        uint64_t space;
        char message[200];

        if (request->fault && request->fault->status) {
                mock_answer_status(request);
                return;
        }
        if (!sim_request_parse(&request->parsed, api, net_exchange_body(request->exchange), &error)) {
                request->parsed.api = api;
                mock_refuse_request(request, error.status, error.type, error.param, error.message);
                return;
        }
        if (!mock_space(mock, request->parsed.model, request->parsed.salt, &space)) {
                snprintf(message, sizeof(message), "The model `%.*s` does not exist.",
                         request->parsed.model.len > 128 ? 128 : (int)request->parsed.model.len,
                         request->parsed.model.data);
                mock_refuse_request(request, 404, "NotFoundError", "model", message);
                return;
        }
        answer_init(request, &model);
        request->model_json = model.data;
        request->answer.model_json = model.data;
        if (continue_conversation(request) && plan(request) && submit(request, space))
                begin_answer(request);
}

void mock_infer(struct sim_mock *mock, struct net_exchange *exchange, enum sim_api api)
{
        struct mock_request *request = calloc(1, sizeof(*request));

        if (!request) {
                net_exchange_abort(exchange);
                return;
        }
        request->mock = mock;
        request->exchange = exchange;
        request->parsed.api = api;
        request->due_ms = UINT64_MAX;
        request->arrival_ns = uv_hrtime();
        request->prev = mock->requests.prev;
        request->next = &mock->requests;
        request->prev->next = request->next->prev = request;
        net_exchange_set_user(exchange, request);
        make_id(request);
        record_arrival(request);
        request->fault = mock_pick_fault(mock);
        if (request->fault && request->fault->cut != SIM_CUT_NONE &&
            request->fault->cut_at == SIM_CUT_AT_REQUEST)
                mock_cut(request);
        else if (request->fault && request->fault->hang)
                mock_wait_for(request, MOCK_WAIT_EVER, 0);
        else if (request->fault && request->fault->delay_head_ms)
                mock_wait_for(request, MOCK_WAIT_HEAD, request->fault->delay_head_ms);
        else
                mock_proceed(request);
}
