/* SPDX-License-Identifier: Apache-2.0 */
#include "request.h"

#include <stdio.h>
#include <stdlib.h>
#include <yyjson.h>

#define CHOICES_MAX 128

static struct kvr_slice str_of(yyjson_val *value)
{
        return yyjson_is_str(value) ? (struct kvr_slice){yyjson_get_str(value), yyjson_get_len(value)}
                                    : (struct kvr_slice){0};
}

/* vLLM takes the last of several members with one name; yyjson_obj_get gives the first. */
static yyjson_val *member(yyjson_val *object, const char *name)
{
        yyjson_obj_iter iter;
        yyjson_val *key, *found = NULL;

        if (!yyjson_is_obj(object))
                return NULL;
        iter = yyjson_obj_iter_with(object);
        while ((key = yyjson_obj_iter_next(&iter))) {
                if (yyjson_equals_str(key, name))
                        found = yyjson_obj_iter_get_val(key);
        }
        return found;
}

static bool fail(struct sim_request_error *error, unsigned status, const char *type, const char *param,
                 const char *message)
{
        error->status = status;
        error->type = type;
        error->param = param;
        snprintf(error->message, sizeof(error->message), "%s", message);
        return false;
}

static void text_of_json(struct sim_tokens *tokens, yyjson_val *value)
{
        size_t len = 0;
        char *text = yyjson_val_write(value, 0, &len);

        if (!text) {
                tokens->failed = true;
                return;
        }
        sim_tokens_text(tokens, (struct kvr_slice){text, len});
        free(text);
}

/* The source of an image part in the forms of the four APIs. */
static struct kvr_slice image_of(yyjson_val *part)
{
        yyjson_val *image = member(part, "image_url"), *source = member(part, "source");

        if (yyjson_is_obj(image))
                image = member(image, "url");
        if (yyjson_is_str(image))
                return str_of(image);
        if (yyjson_is_str(member(source, "data")))
                return str_of(member(source, "data"));
        return str_of(member(source, "url"));
}

static void content(struct sim_tokens *tokens, yyjson_val *value)
{
        yyjson_arr_iter iter;
        yyjson_val *part;

        if (yyjson_is_str(value)) {
                sim_tokens_text(tokens, str_of(value));
                return;
        }
        if (!yyjson_is_arr(value)) {
                if (value && !yyjson_is_null(value))
                        text_of_json(tokens, value);
                return;
        }
        iter = yyjson_arr_iter_with(value);
        while ((part = yyjson_arr_iter_next(&iter))) {
                struct kvr_slice image = image_of(part);

                if (yyjson_is_str(part))
                        sim_tokens_text(tokens, str_of(part));
                else if (yyjson_is_str(member(part, "text")))
                        sim_tokens_text(tokens, str_of(member(part, "text")));
                else if (image.data)
                        sim_tokens_image(tokens, image);
                else
                        text_of_json(tokens, part);
        }
}

static uint32_t role_of(yyjson_val *role)
{
        struct kvr_slice name = str_of(role);

        if (sim_slice_is(name, "system") || sim_slice_is(name, "developer"))
                return SIM_TOKEN_SYSTEM;
        if (sim_slice_is(name, "user"))
                return SIM_TOKEN_USER;
        if (sim_slice_is(name, "assistant"))
                return SIM_TOKEN_ASSISTANT;
        if (sim_slice_is(name, "tool") || sim_slice_is(name, "function"))
                return SIM_TOKEN_TOOL;
        return SIM_TOKEN_OTHER_ROLE;
}

static void message(struct sim_tokens *tokens, yyjson_val *value)
{
        yyjson_val *calls = member(value, "tool_calls");

        sim_tokens_add(tokens, role_of(member(value, "role")));
        if (member(value, "role") || member(value, "content"))
                content(tokens, member(value, "content"));
        else
                text_of_json(tokens,
                             value); /* a function call or its output, as the Responses API has them */
        if (yyjson_is_arr(calls) && yyjson_arr_size(calls)) {
                sim_tokens_add(tokens, SIM_TOKEN_CALL);
                text_of_json(tokens, calls);
        }
        sim_tokens_add(tokens, SIM_TOKEN_END);
}

static void system_text(struct sim_tokens *tokens, yyjson_val *value)
{
        if (!value || yyjson_is_null(value))
                return;
        sim_tokens_add(tokens, SIM_TOKEN_SYSTEM);
        content(tokens, value);
        sim_tokens_add(tokens, SIM_TOKEN_END);
}

static void conversation(struct sim_tokens *tokens, yyjson_val *root, yyjson_val *system,
                         yyjson_val *messages)
{
        yyjson_val *tools = member(root, "tools"), *item;
        yyjson_arr_iter iter;

        sim_tokens_add(tokens, SIM_TOKEN_BEGIN);
        if (yyjson_is_arr(tools) && yyjson_arr_size(tools)) {
                sim_tokens_add(tokens, SIM_TOKEN_TOOLS);
                text_of_json(tokens, tools);
                sim_tokens_add(tokens, SIM_TOKEN_END);
        }
        system_text(tokens, system);
        if (yyjson_is_str(messages)) { /* Responses: input is a string */
                sim_tokens_add(tokens, SIM_TOKEN_USER);
                sim_tokens_text(tokens, str_of(messages));
                sim_tokens_add(tokens, SIM_TOKEN_END);
        } else if (yyjson_is_arr(messages)) {
                iter = yyjson_arr_iter_with(messages);
                while ((item = yyjson_arr_iter_next(&iter)))
                        message(tokens, item);
        }
        sim_tokens_add(tokens, SIM_TOKEN_ASSISTANT);
}

static bool ids(struct sim_tokens *tokens, yyjson_val *array)
{
        yyjson_arr_iter iter = yyjson_arr_iter_with(array);
        yyjson_val *item;

        while ((item = yyjson_arr_iter_next(&iter))) {
                if (!yyjson_is_uint(item) || yyjson_get_uint(item) > INT32_MAX)
                        return false;
                sim_tokens_add(tokens, (uint32_t)yyjson_get_uint(item));
        }
        return true;
}

/* A string, token ids, or several of either: the first is computed, the others are counted. */
static bool prompt(struct sim_request *request, yyjson_val *value, struct sim_request_error *error)
{
        yyjson_val *first = yyjson_is_arr(value) ? yyjson_arr_get_first(value) : NULL;
        bool good = true;

        if (yyjson_is_str(value)) {
                sim_tokens_text(&request->tokens, str_of(value));
        } else if (yyjson_is_num(first)) {
                good = ids(&request->tokens, value);
        } else if (yyjson_is_str(first) || yyjson_is_arr(first)) {
                struct sim_tokens other = {0};
                yyjson_arr_iter iter = yyjson_arr_iter_with(value);
                yyjson_val *item;

                while (good && (item = yyjson_arr_iter_next(&iter))) {
                        struct sim_tokens *to = item == first ? &request->tokens : &other;

                        if (yyjson_is_str(item))
                                sim_tokens_text(to, str_of(item));
                        else
                                good = yyjson_is_arr(item) && ids(to, item);
                }
                request->other_tokens = (uint32_t)other.len;
                request->choices *= (uint32_t)yyjson_arr_size(value);
                sim_tokens_fini(&other);
        } else {
                good = false;
        }
        return good ||
               fail(error, 400, "BadRequestError", "prompt",
                    "prompt must be a string, an array of strings, token ids, or an array of token ids");
}

static bool number(yyjson_val *value, int64_t min, int64_t *ret)
{
        if (!value || yyjson_is_null(value))
                return true;
        if (!yyjson_is_int(value) || yyjson_get_sint(value) < min)
                return false;
        *ret = yyjson_get_sint(value);
        return true;
}

static bool limits(struct sim_request *request, yyjson_val *root, struct sim_request_error *error)
{
        static const char *const names[] = {"max_tokens", "max_completion_tokens", "max_output_tokens"};
        yyjson_val *options = member(root, "stream_options");
        int64_t choices = 1;

        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
                if (!number(member(root, names[i]), 1, &request->max_tokens))
                        return fail(error, 400, "BadRequestError", names[i],
                                    "the token limit must be a positive integer");
        }
        if (!number(member(root, "n"), 1, &choices) || choices > CHOICES_MAX)
                return fail(error, 400, "BadRequestError", "n", "n must be an integer from 1 to 128");
        request->choices = (uint32_t)choices;
        request->stream = yyjson_is_true(member(root, "stream"));
        if (yyjson_is_obj(options) && !request->stream)
                return fail(error, 400, "BadRequestError", "stream_options",
                            "Stream options can only be defined when `stream=True`.");
        request->include_usage = yyjson_is_true(member(options, "include_usage"));
        request->continuous =
                request->include_usage && yyjson_is_true(member(options, "continuous_usage_stats"));
        request->token_ids = yyjson_is_true(member(root, "return_token_ids"));
        request->store = !yyjson_is_false(member(root, "store"));
        request->temperature =
                yyjson_is_num(member(root, "temperature")) ? yyjson_get_num(member(root, "temperature")) : 1;
        request->top_p = yyjson_is_num(member(root, "top_p")) ? yyjson_get_num(member(root, "top_p")) : 1;
        return true;
}

static bool names(struct sim_request *request, yyjson_val *root, struct sim_request_error *error)
{
        yyjson_val *salt = member(root, "cache_salt");

        request->model = str_of(member(root, "model"));
        request->salt = str_of(salt);
        request->previous_id = str_of(member(root, "previous_response_id"));
        if (salt && !yyjson_is_null(salt) && request->salt.len == 0)
                return fail(error, 400, "BadRequestError", "cache_salt",
                            "cache_salt must be a non-empty string");
        return true;
}

static yyjson_val *read_body(struct sim_request *request, struct kvr_slice body,
                             struct sim_request_error *error)
{
        yyjson_read_err json_error;
        yyjson_doc *doc = yyjson_read_opts((char *)(uintptr_t)body.data, body.len, 0, NULL, &json_error);
        yyjson_val *root = yyjson_doc_get_root(doc);

        request->document = doc;
        if (!doc) {
                (void)fail(error, 400, "Bad Request", "body", "");
                snprintf(error->message, sizeof(error->message), "JSON decode error at byte %zu: %s",
                         json_error.pos, json_error.msg ? json_error.msg : "empty body");
                return NULL;
        }
        if (!yyjson_is_obj(root)) {
                (void)fail(error, 400, "Bad Request", "body", "the body must be a JSON object");
                return NULL;
        }
        return root;
}

static bool messages_given(yyjson_val *messages, const char *param, struct sim_request_error *error)
{
        if (yyjson_is_arr(messages) && yyjson_arr_size(messages))
                return true;
        return fail(error, 400, "BadRequestError", param, "a non-empty array of messages is required");
}

static bool prompt_of_api(struct sim_request *request, yyjson_val *root, struct sim_request_error *error)
{
        yyjson_val *input;

        switch (request->api) {
        case SIM_API_COMPLETIONS:
                return prompt(request, member(root, "prompt"), error);
        case SIM_API_CHAT:
                if (!messages_given(member(root, "messages"), "messages", error))
                        return false;
                conversation(&request->tokens, root, NULL, member(root, "messages"));
                return true;
        case SIM_API_MESSAGES:
                if (!messages_given(member(root, "messages"), "messages", error))
                        return false;
                conversation(&request->tokens, root, member(root, "system"), member(root, "messages"));
                return true;
        case SIM_API_RESPONSES:
                input = member(root, "input");
                if (!yyjson_is_str(input) && !messages_given(input, "input", error))
                        return false;
                conversation(&request->tokens, root, member(root, "instructions"), input);
                return true;
        }
        return false;
}

static bool checked(struct sim_request *request, bool good, struct sim_request_error *error)
{
        if (good && request->tokens.failed)
                good = fail(error, 400, "BadRequestError", NULL,
                            "the prompt is over the limit of the tokenizer");
        if (good && request->tokens.len == 0)
                good = fail(error, 400, "BadRequestError", "prompt", "the prompt is empty");
        if (!good)
                sim_request_fini(request);
        return good;
}

bool sim_request_parse(struct sim_request *ret, enum sim_api api, struct kvr_slice body,
                       struct sim_request_error *error)
{
        yyjson_val *root;
        bool good;

        *ret = (struct sim_request){.api = api, .max_tokens = -1, .choices = 1};
        root = read_body(ret, body, error);
        good = root && limits(ret, root, error) && names(ret, root, error) && prompt_of_api(ret, root, error);
        return checked(ret, good, error);
}

bool sim_request_parse_tokenize(struct sim_request *ret, struct kvr_slice body,
                                struct sim_request_error *error)
{
        yyjson_val *root;
        bool good;

        *ret = (struct sim_request){.api = SIM_API_CHAT, .max_tokens = -1, .choices = 1};
        root = read_body(ret, body, error);
        if (root && !member(root, "messages"))
                ret->api = SIM_API_COMPLETIONS;
        good = root && names(ret, root, error) && prompt_of_api(ret, root, error);
        return checked(ret, good, error);
}

void sim_request_fini(struct sim_request *request)
{
        sim_tokens_fini(&request->tokens);
        yyjson_doc_free(request->document);
        request->document = NULL;
}
