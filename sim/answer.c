/* SPDX-License-Identifier: Apache-2.0 */
#include "answer.h"

#include <inttypes.h>
#include <math.h>

/* Tokens that the engine stored anew as whole blocks. */
static uint32_t created_tokens(const struct sim_answer *a)
{
        uint32_t whole = a->block_tokens ? a->prompt_tokens / a->block_tokens * a->block_tokens : 0;

        return whole > a->cached_tokens ? whole - a->cached_tokens : 0;
}

static uint32_t completion_tokens(const struct sim_answer *a)
{
        return a->output_tokens * a->choices;
}

static const char *finish_reason(const struct sim_answer *a)
{
        return a->limited ? "length" : "stop";
}

static void ids_add(struct sim_buf *buf, const uint32_t *ids, size_t count)
{
        sim_buf_puts(buf, "[");
        for (size_t i = 0; i < count; i++)
                sim_buf_printf(buf, "%s%" PRIu32, i ? "," : "", ids[i]);
        sim_buf_puts(buf, "]");
}

static void prompt_ids_add(struct sim_buf *buf, const struct sim_answer *a)
{
        if (a->token_ids)
                ids_add(buf, a->prompt_ids, a->prompt_id_count);
        else
                sim_buf_puts(buf, "null");
}

/* The ids of the last `count` tokens. */
static void output_ids_add(struct sim_buf *buf, const struct sim_answer *a, uint32_t count)
{
        if (a->token_ids)
                ids_add(buf, a->output_ids + (a->output_tokens - count), count);
        else
                sim_buf_puts(buf, "null");
}

static void head_add(struct sim_buf *buf, const struct sim_answer *a, bool chunk)
{
        bool chat = a->api == SIM_API_CHAT;

        sim_buf_printf(
                buf, "{\"id\":\"%s-%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":%s,\"choices\":[",
                chat ? "chatcmpl" : "cmpl", a->id,
                !chat   ? "text_completion"
                : chunk ? "chat.completion.chunk"
                        : "chat.completion",
                a->created, a->model_json);
}

static void usage_add(struct sim_buf *buf, const struct sim_answer *a)
{
        sim_buf_printf(buf, "\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,\"completion_tokens\":%u",
                       a->prompt_tokens, a->prompt_tokens + completion_tokens(a), completion_tokens(a));
}

static void usage_whole_add(struct sim_buf *buf, const struct sim_answer *a)
{
        usage_add(buf, a);
        sim_buf_puts(buf, ",\"prompt_tokens_details\":");
        if (!a->details)
                sim_buf_puts(buf, "null");
        else if (a->api == SIM_API_CHAT)
                sim_buf_printf(
                        buf, "{\"cached_tokens\":%u,\"created_cache_tokens\":%u,\"multimodal_tokens\":null}",
                        a->cached_tokens, created_tokens(a));
        else
                sim_buf_printf(
                        buf,
                        "{\"cached_tokens\":%u,\"created_cache_tokens\":null,\"multimodal_tokens\":null}",
                        a->cached_tokens);
        sim_buf_puts(buf, ",\"completion_tokens_details\":null}");
}

static void usage_running_add(struct sim_buf *buf, const struct sim_answer *a)
{
        if (!a->continuous)
                return;
        sim_buf_puts(buf, ",");
        usage_add(buf, a);
        sim_buf_puts(buf, ",\"completion_tokens_details\":null}");
}

/* ---- chat and completions ----------------------------------------------------------------------------- */

static void openai_first(struct sim_buf *buf, const struct sim_answer *a)
{
        for (uint32_t i = 0; a->api == SIM_API_CHAT && i < a->choices; i++) {
                struct sim_answer before = *a; /* its running usage counts no token yet */

                before.output_tokens = 0;
                sim_buf_puts(buf, "data: ");
                head_add(buf, a, true);
                sim_buf_printf(
                        buf,
                        "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                        "\"finish_reason\":null}]",
                        i);
                usage_running_add(buf, &before);
                sim_buf_puts(buf, ",\"prompt_token_ids\":");
                prompt_ids_add(buf, a);
                sim_buf_puts(buf, ",\"prompt_text\":null}\n\n");
        }
}

static void openai_token(struct sim_buf *buf, const struct sim_answer *a, struct kvr_slice piece,
                         uint32_t count, bool last)
{
        bool chat = a->api == SIM_API_CHAT;

        for (uint32_t i = 0; i < a->choices; i++) {
                sim_buf_puts(buf, "data: ");
                head_add(buf, a, true);
                sim_buf_printf(buf,
                               chat ? "{\"index\":%u,\"delta\":{\"content\":" : "{\"index\":%u,\"text\":", i);
                sim_buf_json(buf, piece);
                sim_buf_printf(buf, "%s,\"logprobs\":null,\"finish_reason\":", chat ? "}" : "");
                if (last)
                        sim_buf_printf(buf, "\"%s\"", finish_reason(a));
                else
                        sim_buf_puts(buf, "null");
                if (!chat || last)
                        sim_buf_puts(buf, ",\"stop_reason\":null");
                if (!chat) {
                        sim_buf_puts(buf, ",\"prompt_token_ids\":");
                        if (a->output_tokens == count)
                                prompt_ids_add(buf, a);
                        else
                                sim_buf_puts(buf, "null");
                }
                sim_buf_puts(buf, ",\"token_ids\":");
                output_ids_add(buf, a, count);
                sim_buf_puts(buf, "}]");
                usage_running_add(buf, a);
                sim_buf_puts(buf, "}\n\n");
        }
}

static void openai_end(struct sim_buf *buf, const struct sim_answer *a)
{
        if (a->include_usage) {
                sim_buf_puts(buf, "data: ");
                head_add(buf, a, true);
                sim_buf_puts(buf, "],");
                usage_add(buf, a);
                if (a->details && a->api == SIM_API_CHAT)
                        sim_buf_printf(buf,
                                       ",\"prompt_tokens_details\":{\"cached_tokens\":%u,\"created_cache_"
                                       "tokens\":%u}",
                                       a->cached_tokens, created_tokens(a));
                else if (a->details)
                        sim_buf_printf(buf, ",\"prompt_tokens_details\":{\"cached_tokens\":%u}",
                                       a->cached_tokens);
                sim_buf_puts(buf, "},\"system_fingerprint\":\"" SIM_FINGERPRINT "\"}\n\n");
        }
        sim_buf_puts(buf, "data: [DONE]\n\n");
}

static void chat_whole(struct sim_buf *buf, const struct sim_answer *a)
{
        head_add(buf, a, false);
        for (uint32_t i = 0; i < a->choices; i++) {
                sim_buf_printf(buf, "%s{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":",
                               i ? "," : "", i);
                sim_buf_json(buf, sim_buf_slice(&a->text));
                sim_buf_printf(
                        buf,
                        ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,"
                        "\"reasoning\":null},\"logprobs\":null,\"finish_reason\":\"%s\",\"stop_reason\":null,"
                        "\"token_ids\":",
                        finish_reason(a));
                output_ids_add(buf, a, a->output_tokens);
                sim_buf_puts(buf, ",\"routed_experts\":null}");
        }
        sim_buf_puts(buf, "],\"service_tier\":null,\"system_fingerprint\":\"" SIM_FINGERPRINT "\",");
        usage_whole_add(buf, a);
        sim_buf_puts(buf, ",\"prompt_logprobs\":null,\"prompt_token_ids\":");
        prompt_ids_add(buf, a);
        sim_buf_puts(buf, ",\"prompt_text\":null,\"kv_transfer_params\":null,\"ec_transfer_params\":null,"
                          "\"metrics\":null}");
}

static void completions_whole(struct sim_buf *buf, const struct sim_answer *a)
{
        head_add(buf, a, false);
        for (uint32_t i = 0; i < a->choices; i++) {
                sim_buf_printf(buf, "%s{\"index\":%u,\"text\":", i ? "," : "", i);
                sim_buf_json(buf, sim_buf_slice(&a->text));
                sim_buf_printf(
                        buf,
                        ",\"logprobs\":null,\"finish_reason\":\"%s\",\"stop_reason\":null,\"token_ids\":",
                        finish_reason(a));
                output_ids_add(buf, a, a->output_tokens);
                sim_buf_puts(buf, ",\"prompt_logprobs\":null,\"prompt_token_ids\":");
                prompt_ids_add(buf, a);
                sim_buf_puts(buf, ",\"routed_experts\":null}");
        }
        sim_buf_puts(buf, "],\"service_tier\":null,\"system_fingerprint\":\"" SIM_FINGERPRINT "\",");
        usage_whole_add(buf, a);
        sim_buf_puts(buf, ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}");
}

/* ---- Anthropic messages ------------------------------------------------------------------------------- */

static void messages_usage(struct sim_buf *buf, const struct sim_answer *a)
{
        if (a->details)
                sim_buf_printf(buf,
                               "\"usage\":{\"input_tokens\":%u,\"output_tokens\":%u,\"cache_creation_input_"
                               "tokens\":%u,"
                               "\"cache_read_input_tokens\":%u}",
                               a->prompt_tokens - a->cached_tokens - created_tokens(a), a->output_tokens,
                               created_tokens(a), a->cached_tokens);
        else
                sim_buf_printf(buf, "\"usage\":{\"input_tokens\":%u,\"output_tokens\":%u}", a->prompt_tokens,
                               a->output_tokens);
}

static const char *stop_reason(const struct sim_answer *a)
{
        return a->limited ? "max_tokens" : "end_turn";
}

static void messages_first(struct sim_buf *buf, const struct sim_answer *a)
{
        sim_buf_printf(
                buf,
                "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"chatcmpl-%s\","
                "\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":%s,\"stop_reason\":"
                "null,"
                "\"stop_sequence\":null,\"usage\":{\"input_tokens\":%u,\"output_tokens\":0}}}\n\n",
                a->id, a->model_json, a->prompt_tokens);
        sim_buf_puts(buf,
                     "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":"
                     "{\"type\":\"text\",\"text\":\"\"},\"index\":0}\n\n");
}

static void messages_token(struct sim_buf *buf, struct kvr_slice piece)
{
        sim_buf_puts(buf, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":"
                          "{\"type\":\"text_delta\",\"text\":");
        sim_buf_json(buf, piece);
        sim_buf_puts(buf, "},\"index\":0}\n\n");
}

static void messages_end(struct sim_buf *buf, const struct sim_answer *a)
{
        sim_buf_puts(buf,
                     "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n");
        sim_buf_printf(
                buf,
                "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"%s\","
                "\"stop_sequence\":null},",
                stop_reason(a));
        messages_usage(buf, a);
        sim_buf_puts(buf, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

static void messages_whole(struct sim_buf *buf, const struct sim_answer *a)
{
        sim_buf_printf(buf,
                       "{\"id\":\"chatcmpl-%s\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[{"
                       "\"type\":\"text\",\"text\":",
                       a->id);
        sim_buf_json(buf, sim_buf_slice(&a->text));
        sim_buf_printf(buf, "}],\"model\":%s,\"stop_reason\":\"%s\",", a->model_json, stop_reason(a));
        messages_usage(buf, a);
        sim_buf_puts(buf, "}");
}

/* ---- Responses ---------------------------------------------------------------------------------------- */

static void responses_message(struct sim_buf *buf, const struct sim_answer *a)
{
        sim_buf_printf(buf, "{\"id\":\"msg_%s\",\"content\":[{\"annotations\":[],\"text\":", a->id);
        sim_buf_json(buf, sim_buf_slice(&a->text));
        sim_buf_puts(buf, ",\"type\":\"output_text\",\"logprobs\":null}],\"role\":\"assistant\",\"status\":"
                          "\"completed\","
                          "\"type\":\"message\",\"phase\":null}");
}

/* A float as Python prints it: 1.0, 0.7. */
static void number_add(struct sim_buf *buf, double value)
{
        if (floor(value) < value)
                sim_buf_printf(buf, "%.15g", value);
        else
                sim_buf_printf(buf, "%.1f", value);
}

static void responses_document(struct sim_buf *buf, const struct sim_answer *a, bool done)
{
        sim_buf_printf(buf, "{\"id\":\"resp_%s\",\"created_at\":%" PRId64 ",\"incomplete_details\":%s,",
                       a->id, a->created, done && a->limited ? "{\"reason\":\"max_output_tokens\"}" : "null");
        sim_buf_printf(
                buf,
                "\"instructions\":null,\"metadata\":null,\"model\":%s,\"object\":\"response\",\"output\":[",
                a->model_json);
        if (done)
                responses_message(buf, a);
        sim_buf_puts(buf, "],\"parallel_tool_calls\":true,\"temperature\":");
        number_add(buf, a->temperature);
        sim_buf_puts(buf, ",\"tool_choice\":\"none\",\"tools\":[],\"top_p\":");
        number_add(buf, a->top_p);
        sim_buf_puts(buf, ",\"background\":false,\"max_output_tokens\":");
        if (a->max_output_tokens >= 0)
                sim_buf_printf(buf, "%" PRId64, a->max_output_tokens);
        else
                sim_buf_puts(buf, "null");
        sim_buf_printf(
                buf,
                ",\"max_tool_calls\":null,\"previous_response_id\":%s,\"prompt\":null,\"reasoning\":null,"
                "\"service_tier\":\"auto\",\"status\":\"%s\",\"text\":null,\"top_logprobs\":null,"
                "\"truncation\":\"disabled\",\"usage\":",
                a->previous_json ? a->previous_json : "null",
                !done        ? "in_progress"
                : a->limited ? "incomplete"
                             : "completed");
        if (!done)
                sim_buf_puts(buf, "null");
        else /* without the flag it says 0, which is not "unknown" */
                sim_buf_printf(
                        buf,
                        "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,\"cache_write_"
                        "tokens\":%u,"
                        "\"input_tokens_per_turn\":[],\"cached_tokens_per_turn\":[]},\"output_tokens\":%u,"
                        "\"output_tokens_details\":{\"reasoning_tokens\":0,\"tool_output_tokens\":0,"
                        "\"output_tokens_per_turn\":[],\"tool_output_tokens_per_turn\":[]},\"total_tokens\":%"
                        "u}",
                        a->prompt_tokens, a->details ? a->cached_tokens : 0,
                        a->details ? created_tokens(a) : 0, a->output_tokens,
                        a->prompt_tokens + a->output_tokens);
        sim_buf_puts(buf, ",\"user\":null,\"presence_penalty\":0.0,\"frequency_penalty\":0.0,\"kv_transfer_"
                          "params\":null,"
                          "\"ec_transfer_params\":null,\"input_messages\":null,\"output_messages\":null}");
}

/* The end that all events of this API have. */
static void responses_close(struct sim_buf *buf, struct sim_answer *a, const char *type)
{
        sim_buf_printf(buf, "\"sequence_number\":%u,\"type\":\"%s\"}\n\n", a->sequence++, type);
}

static void responses_begin(struct sim_buf *buf, struct sim_answer *a)
{
        static const char *const types[] = {"response.created", "response.in_progress"};

        for (size_t i = 0; i < 2; i++) {
                sim_buf_printf(buf, "event: %s\ndata: {\"response\":", types[i]);
                responses_document(buf, a, false);
                sim_buf_puts(buf, ",");
                responses_close(buf, a, types[i]);
        }
}

static void responses_first(struct sim_buf *buf, struct sim_answer *a)
{
        sim_buf_printf(
                buf,
                "event: response.output_item.added\ndata: {\"item\":{\"id\":\"msg_%s\",\"content\":[],"
                "\"role\":\"assistant\",\"status\":\"in_progress\",\"type\":\"message\",\"phase\":null},"
                "\"output_index\":0,",
                a->id);
        responses_close(buf, a, "response.output_item.added");
        sim_buf_printf(
                buf,
                "event: response.content_part.added\ndata: {\"content_index\":0,\"item_id\":\"msg_%s\","
                "\"output_index\":0,\"part\":{\"annotations\":[],\"text\":\"\",\"type\":\"output_text\","
                "\"logprobs\":[]},",
                a->id);
        responses_close(buf, a, "response.content_part.added");
}

static void responses_token(struct sim_buf *buf, struct sim_answer *a, struct kvr_slice piece)
{
        sim_buf_puts(buf, "event: response.output_text.delta\ndata: {\"content_index\":0,\"delta\":");
        sim_buf_json(buf, piece);
        sim_buf_printf(buf, ",\"item_id\":\"msg_%s\",\"logprobs\":[],\"output_index\":0,", a->id);
        responses_close(buf, a, "response.output_text.delta");
}

static void responses_end(struct sim_buf *buf, struct sim_answer *a)
{
        sim_buf_printf(buf,
                       "event: response.output_text.done\ndata: "
                       "{\"content_index\":0,\"item_id\":\"msg_%s\",\"logprobs\":[],"
                       "\"output_index\":0,\"sequence_number\":%u,\"text\":",
                       a->id, a->sequence++);
        sim_buf_json(buf, sim_buf_slice(&a->text));
        sim_buf_puts(buf, ",\"type\":\"response.output_text.done\"}\n\n");
        sim_buf_printf(buf,
                       "event: response.content_part.done\ndata: {\"content_index\":0,\"item_id\":\"msg_%s\","
                       "\"output_index\":0,\"part\":{\"annotations\":[],\"text\":",
                       a->id);
        sim_buf_json(buf, sim_buf_slice(&a->text));
        sim_buf_puts(buf, ",\"type\":\"output_text\",\"logprobs\":null},");
        responses_close(buf, a, "response.content_part.done");
        sim_buf_puts(buf, "event: response.output_item.done\ndata: {\"item\":");
        responses_message(buf, a);
        sim_buf_puts(buf, ",\"output_index\":0,");
        responses_close(buf, a, "response.output_item.done");
        sim_buf_puts(buf, "event: response.completed\ndata: {\"response\":");
        responses_document(buf, a, true);
        sim_buf_puts(buf, ",");
        responses_close(buf, a, "response.completed");
}

/* ---- all ---- */

void sim_answer_begin(struct sim_buf *buf, struct sim_answer *a)
{
        if (a->api == SIM_API_RESPONSES)
                responses_begin(buf, a);
}

void sim_answer_first(struct sim_buf *buf, struct sim_answer *a)
{
        switch (a->api) {
        case SIM_API_CHAT:
        case SIM_API_COMPLETIONS:
                openai_first(buf, a);
                break;
        case SIM_API_RESPONSES:
                responses_first(buf, a);
                break;
        case SIM_API_MESSAGES:
                messages_first(buf, a);
                break;
        }
}

void sim_answer_token(struct sim_buf *buf, struct sim_answer *a, struct kvr_slice piece, uint32_t count,
                      bool last)
{
        switch (a->api) {
        case SIM_API_CHAT:
        case SIM_API_COMPLETIONS:
                openai_token(buf, a, piece, count, last);
                break;
        case SIM_API_RESPONSES:
                responses_token(buf, a, piece);
                break;
        case SIM_API_MESSAGES:
                messages_token(buf, piece);
                break;
        }
}

void sim_answer_end(struct sim_buf *buf, struct sim_answer *a)
{
        switch (a->api) {
        case SIM_API_CHAT:
        case SIM_API_COMPLETIONS:
                openai_end(buf, a);
                break;
        case SIM_API_RESPONSES:
                responses_end(buf, a);
                break;
        case SIM_API_MESSAGES:
                messages_end(buf, a);
                break;
        }
}

void sim_answer_whole(struct sim_buf *buf, struct sim_answer *a)
{
        switch (a->api) {
        case SIM_API_CHAT:
                chat_whole(buf, a);
                break;
        case SIM_API_COMPLETIONS:
                completions_whole(buf, a);
                break;
        case SIM_API_RESPONSES:
                responses_document(buf, a, true);
                break;
        case SIM_API_MESSAGES:
                messages_whole(buf, a);
                break;
        }
}

#define DIED "EngineCore encountered an issue. See stack trace (above) for the root cause."

bool sim_answer_died(struct sim_buf *buf, const struct sim_answer *a)
{
        switch (a->api) {
        case SIM_API_CHAT:
        case SIM_API_COMPLETIONS:
                sim_buf_puts(buf, "data: {\"error\": {\"message\": \"" DIED
                                  "\", \"type\": \"InternalServerError\", "
                                  "\"param\": null, \"code\": 500}}\n\ndata: [DONE]\n\n");
                return true;
        case SIM_API_MESSAGES:
                sim_buf_puts(buf,
                             "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\","
                             "\"message\":\"" DIED "\"}}\n\n");
                return true;
        case SIM_API_RESPONSES:
                break;
        }
        return false;
}

void sim_answer_error(struct sim_buf *buf, enum sim_api api, unsigned status, const char *type,
                      const char *param, const char *message)
{
        if (api == SIM_API_MESSAGES) {
                sim_buf_puts(buf, "{\"type\":\"error\",\"error\":{\"type\":");
                sim_buf_json(buf, sim_slice(type));
                sim_buf_puts(buf, ",\"message\":");
                sim_buf_json(buf, sim_slice(message));
                sim_buf_puts(buf, "}}");
                return;
        }
        sim_buf_puts(buf, "{\"error\":{\"message\":");
        sim_buf_json(buf, sim_slice(message));
        sim_buf_puts(buf, ",\"type\":");
        sim_buf_json(buf, sim_slice(type));
        sim_buf_puts(buf, ",\"param\":");
        if (param)
                sim_buf_json(buf, sim_slice(param));
        else
                sim_buf_puts(buf, "null");
        sim_buf_printf(buf, ",\"code\":%u}}", status);
}
