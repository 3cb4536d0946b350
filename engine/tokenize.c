/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenize.h"

#include <stdlib.h>
#include <string.h>

#include "kvroute/events.h"
#include "rows.h"

#define HAS(set, tokenizer) ((set)&1U << (tokenizer))

/* A request being turned into a question. */
struct draft {
        yyjson_doc *source;
        yyjson_val *request;
        yyjson_mut_doc *doc;
        yyjson_mut_val *root;
        bool failed; /* out of memory */
};

/* ---- members ---- */

static yyjson_val *member(const struct draft *draft, const char *key)
{
        return yyjson_obj_get(draft->request, key);
}

static void put(struct draft *draft, const char *key, yyjson_mut_val *value)
{
        yyjson_mut_val *name = yyjson_mut_str(draft->doc, key);

        if (!value || !name || !yyjson_mut_obj_put(draft->root, name, value))
                draft->failed = true;
}

static void copy(struct draft *draft, const char *key)
{
        yyjson_val *value = member(draft, key);

        if (value)
                put(draft, key, yyjson_val_mut_copy(draft->doc, value));
}

static void put_model(struct draft *draft, struct kvr_slice model)
{
        if (model.len)
                put(draft, "model", yyjson_mut_strncpy(draft->doc, model.data, model.len));
        else
                copy(draft, "model");
}

/* ---- prompts that are one text ---- */

/* The prompt when it is a single string, alone or in an array. */
static yyjson_val *single_text(yyjson_val *prompt)
{
        if (yyjson_is_arr(prompt) && yyjson_arr_size(prompt) == 1)
                prompt = yyjson_arr_get_first(prompt);
        return yyjson_is_str(prompt) ? prompt : NULL;
}

static bool draft_text(struct draft *draft, const char *key)
{
        yyjson_val *text = single_text(member(draft, key));

        if (!text)
                return false;
        put(draft, "prompt", yyjson_val_mut_copy(draft->doc, text));
        copy(draft, "add_special_tokens");
        return true;
}

/* ---- chats ---- */

/* What an engine's /tokenize takes of a chat besides messages and model. */
static const char *const vllm_chat[] = {
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
        "media_io_kwargs",
        "mm_processor_kwargs",
        NULL,
};
static const char *const sglang_chat[] = {
        "tools", "tool_choice", "reasoning_effort", "continue_final_message", "chat_template_kwargs", NULL,
};

/* Members that change the prompt and that vLLM's /tokenize does not know: only render gets them right. */
static bool beyond_vllm_tokenize(const struct draft *draft)
{
        yyjson_val *choice = member(draft, "tool_choice");

        return member(draft, "documents") || yyjson_is_str(member(draft, "reasoning_effort")) ||
               (choice && !yyjson_is_null(choice) && !yyjson_equals_str(choice, "auto"));
}

static bool draft_chat(struct draft *draft, enum engine_kind kind)
{
        const char *const *names = kind == ENGINE_SGLANG ? sglang_chat : vllm_chat;

        if (!yyjson_is_arr(member(draft, "messages")))
                return false;
        copy(draft, "messages");
        for (; *names; names++)
                copy(draft, *names);
        return true;
}

/* ---- other forms of chats, as far as they are plain text ---- */

static bool is_text_part(yyjson_val *part)
{
        yyjson_val *type = yyjson_obj_get(part, "type");

        return yyjson_is_str(yyjson_obj_get(part, "text")) &&
               (yyjson_equals_str(type, "text") || yyjson_equals_str(type, "input_text") ||
                yyjson_equals_str(type, "output_text"));
}

/* A string as it is, text parts joined by line ends as the engines do it. NULL: there is more than text. */
static yyjson_mut_val *plain_content(struct draft *draft, yyjson_val *content)
{
        size_t index, count, len = 0;
        yyjson_val *part;

        if (yyjson_is_str(content))
                return yyjson_val_mut_copy(draft->doc, content);
        if (!yyjson_is_arr(content) || yyjson_arr_size(content) == 0)
                return NULL;
        yyjson_arr_foreach(content, index, count, part)
        {
                if (!is_text_part(part))
                        return NULL;
                len += yyjson_get_len(yyjson_obj_get(part, "text")) + 1;
        }
        char *text = malloc(len), *at = text;

        if (!text) {
                draft->failed = true;
                return NULL;
        }
        yyjson_arr_foreach(content, index, count, part)
        {
                yyjson_val *piece = yyjson_obj_get(part, "text");

                memcpy(at, yyjson_get_str(piece), yyjson_get_len(piece));
                at += yyjson_get_len(piece);
                *at++ = '\n';
        }
        yyjson_mut_val *value = yyjson_mut_strncpy(draft->doc, text, len - 1);

        free(text);
        draft->failed |= !value;
        return value;
}

static bool add_message(struct draft *draft, yyjson_mut_val *messages, const char *role, yyjson_val *content)
{
        yyjson_mut_val *message = yyjson_mut_arr_add_obj(draft->doc, messages);
        yyjson_mut_val *text = plain_content(draft, content);

        if (!text)
                return false;
        if (!message || !yyjson_mut_obj_add_strcpy(draft->doc, message, "role", role) ||
            !yyjson_mut_obj_add_val(draft->doc, message, "content", text))
                draft->failed = true;
        return true;
}

/*
 * Anthropic's and the Responses form become a chat as the engines make one of them. False where that is more
 * than text with roles.
 */
static bool draft_as_chat(struct draft *draft, const char *system_key, const char *turns_key)
{
        yyjson_val *system = member(draft, system_key), *turns = member(draft, turns_key), *turn;
        yyjson_val *tools = member(draft, "tools");
        yyjson_mut_val *messages = yyjson_mut_arr(draft->doc);
        size_t index, count;

        if (yyjson_arr_size(tools) > 0 || member(draft, "previous_response_id"))
                return false;
        if (system && !yyjson_is_null(system) && !add_message(draft, messages, "system", system))
                return false;
        put(draft, "messages", messages);
        if (yyjson_is_str(turns))
                return add_message(draft, messages, "user", turns);
        if (!yyjson_is_arr(turns))
                return false;
        yyjson_arr_foreach(turns, index, count, turn)
        {
                const char *role = yyjson_get_str(yyjson_obj_get(turn, "role"));

                if (!role || !add_message(draft, messages, role, yyjson_obj_get(turn, "content")))
                        return false;
        }
        return true;
}

/* ---- questions ---- */

static const char *render_path(enum engine_kind kind, enum kvr_api api)
{
        if (kind != ENGINE_VLLM)
                return NULL;
        switch (api) {
        case KVR_API_CHAT:
                return "/v1/chat/completions/render";
        case KVR_API_RESPONSES:
                return "/v1/responses/render";
        case KVR_API_MESSAGES:
                return "/v1/messages/render";
        default:
                return NULL;
        }
}

bool engine_tokenizes(enum engine_kind kind, enum kvr_api api)
{
        switch (kind) {
        case ENGINE_VLLM:
        case ENGINE_SGLANG:
                return api == KVR_API_CHAT || api == KVR_API_COMPLETIONS || api == KVR_API_RESPONSES ||
                       api == KVR_API_MESSAGES || (api == KVR_API_SGLANG && kind == ENGINE_SGLANG);
        case ENGINE_TRTLLM:
                return api == KVR_API_COMPLETIONS;
        default:
                return false;
        }
}

static bool draft_tokenize(struct draft *draft, enum engine_kind kind, enum kvr_api api)
{
        switch (api) {
        case KVR_API_CHAT:
                return (kind != ENGINE_VLLM || !beyond_vllm_tokenize(draft)) && draft_chat(draft, kind);
        case KVR_API_COMPLETIONS:
                return draft_text(draft, "prompt");
        case KVR_API_SGLANG:
                return draft_text(draft, "text");
        case KVR_API_MESSAGES:
                return draft_as_chat(draft, "system", "messages");
        case KVR_API_RESPONSES:
                return draft_as_chat(draft, "instructions", "input");
        default:
                return false;
        }
}

/* The whole request as it is. */
static void draft_render(struct draft *draft)
{
        size_t index, count;
        yyjson_val *key, *value;

        yyjson_obj_foreach(draft->request, index, count, key, value)
        {
                yyjson_mut_val *name = yyjson_val_mut_copy(draft->doc, key);
                yyjson_mut_val *content = yyjson_val_mut_copy(draft->doc, value);

                if (!name || !content || !yyjson_mut_obj_put(draft->root, name, content))
                        draft->failed = true;
        }
        put(draft, "stream", yyjson_mut_bool(draft->doc, false));
        if (member(draft, "stream_options"))
                put(draft, "stream_options", yyjson_mut_null(draft->doc));
}

/* For prompts that /tokenize can only come near to, the exact way goes first. */
static bool render_goes_first(const struct draft *draft, enum kvr_api api)
{
        return api != KVR_API_CHAT || beyond_vllm_tokenize(draft);
}

static bool draft_make(struct draft *draft, enum engine_kind kind, enum kvr_api api, struct kvr_slice model,
                       unsigned lacking, struct engine_question *ret)
{
        const char *render = HAS(lacking, ENGINE_RENDER) ? NULL : render_path(kind, api);

        draft->doc = yyjson_mut_doc_new(NULL);
        draft->root = draft->doc ? yyjson_mut_obj(draft->doc) : NULL;
        if (!draft->root) {
                draft->failed = true;
                return true;
        }
        yyjson_mut_doc_set_root(draft->doc, draft->root);
        if (render && render_goes_first(draft, api)) {
                *ret = (struct engine_question){.tokenizer = ENGINE_RENDER, .path = render};
                draft_render(draft);
        } else {
                *ret = (struct engine_question){
                        .tokenizer = ENGINE_TOKENIZE,
                        .path = kind == ENGINE_TRTLLM ? "/_internal/tokenize" : "/tokenize",
                };
                if (HAS(lacking, ENGINE_TOKENIZE) || !draft_tokenize(draft, kind, api))
                        return false;
        }
        put_model(draft, model);
        return true;
}

enum kvr_status engine_tokenize_ask(enum engine_kind kind, enum kvr_api api, struct kvr_slice body,
                                    struct kvr_slice model, unsigned lacking, struct engine_question *ret)
{
        struct draft draft = {.source = yyjson_read(body.data, body.len, 0)};
        struct engine_question question;
        enum kvr_status status = KVR_OK;

        draft.request = yyjson_doc_get_root(draft.source);
        if (!yyjson_is_obj(draft.request))
                status = KVR_E_JSON;
        else if (!engine_tokenizes(kind, api) || !draft_make(&draft, kind, api, model, lacking, &question))
                status = KVR_E_NOT_FOUND;
        if (draft.failed) {
                status = KVR_E_NOMEM;
        } else if (status == KVR_OK) {
                question.body = yyjson_mut_write(draft.doc, 0, &question.len);
                if (question.body)
                        *ret = question;
                else
                        status = KVR_E_NOMEM;
        }
        yyjson_mut_doc_free(draft.doc);
        yyjson_doc_free(draft.source);
        return status;
}

/* ---- answers ---- */

/* {"tokens": [...]}, {"token_ids": [...]}, either in an array of one per prompt, or lists of lists. */
static yyjson_val *find_ids(yyjson_val *root)
{
        yyjson_val *ids;

        if (yyjson_is_arr(root))
                root = yyjson_arr_get_first(root);
        ids = yyjson_obj_get(root, "tokens");
        if (!ids)
                ids = yyjson_obj_get(root, "token_ids");
        if (yyjson_is_arr(yyjson_arr_get_first(ids)))
                ids = yyjson_arr_get_first(ids);
        return yyjson_is_arr(ids) && yyjson_arr_size(ids) > 0 ? ids : NULL;
}

static enum kvr_status take_ids(yyjson_val *list, uint32_t **ret_ids, uint32_t *ret_count)
{
        size_t index, count = yyjson_arr_size(list);
        yyjson_val *id;

        if (count > KVR_PROMPT_IDS_MAX)
                return KVR_E_LIMIT;
        uint32_t *ids = malloc(count * sizeof *ids);

        if (!ids)
                return KVR_E_NOMEM;
        yyjson_arr_foreach(list, index, count, id)
        {
                if (!yyjson_is_uint(id) || yyjson_get_uint(id) > UINT32_MAX) {
                        free(ids);
                        return KVR_E_REQUEST;
                }
                ids[index] = (uint32_t)yyjson_get_uint(id);
        }
        *ret_ids = ids;
        *ret_count = (uint32_t)count;
        return KVR_OK;
}

enum kvr_status engine_tokenize_read(struct kvr_slice body, uint32_t **ret_ids, uint32_t *ret_count)
{
        yyjson_doc *doc =
                body.len && body.len <= ENGINE_IDS_BODY_MAX ? yyjson_read(body.data, body.len, 0) : NULL;
        yyjson_val *list = find_ids(yyjson_doc_get_root(doc));
        enum kvr_status status = !doc ? KVR_E_JSON : KVR_E_REQUEST;

        if (list)
                status = take_ids(list, ret_ids, ret_count);
        yyjson_doc_free(doc);
        return status;
}
