/* SPDX-License-Identifier: Apache-2.0 */
/* What a request says of itself besides the prompt: model, hints, limits, streaming. */
#include "lib/prompt_parser.h"

#include <math.h>
#include <string.h>

#define NUMBER_MAX 40 /* bytes of a number that are looked at */

/* Any JSON number, as a double; NAN when absent or no number. */
static double number_of(const struct kvr_parser *parser, uint32_t token)
{
        char room[NUMBER_MAX + 1];
        struct kvr_slice text;

        if (!token || kvr__json_type(&parser->json, token) != KVR__JSON_NUMBER)
                return NAN;
        text = kvr__json_text(&parser->json, token);
        if (text.len > NUMBER_MAX)
                return NAN;
        memcpy(room, text.data, text.len);
        room[text.len] = 0;
        return strtod(room, NULL);
}

/* At least 0, cut at UINT32_MAX; `otherwise` when absent, negative or no number. */
static uint32_t count_of(const struct kvr_parser *parser, uint32_t token, uint32_t otherwise)
{
        double number = number_of(parser, token);

        if (isnan(number) || number < 0)
                return otherwise;
        return number >= UINT32_MAX ? UINT32_MAX : (uint32_t)number;
}

static int32_t priority_of(const struct kvr_parser *parser, uint32_t token)
{
        double number = number_of(parser, token);

        if (isnan(number))
                return 0;
        return number >= INT32_MAX ? INT32_MAX : number <= INT32_MIN ? INT32_MIN : (int32_t)number;
}

/* True for true and for what Python servers take for it: 1 and "true". */
static bool is_true(struct kvr_parser *parser, uint32_t token)
{
        if (!token)
                return false;
        if (kvr__json_bool(&parser->json, token) == 1)
                return true;
        return number_of(parser, token) == 1 || KVR__STRING_IS(parser, token, "true");
}

static bool is_object(const struct kvr_parser *parser, uint32_t token)
{
        return token && kvr__json_type(&parser->json, token) == KVR__JSON_OBJECT;
}

static uint32_t behind_brace(const struct kvr_parser *parser, uint32_t object)
{
        return kvr__json_offset(&parser->json, object) + 1;
}

static bool is_empty(const struct kvr_parser *parser, uint32_t object)
{
        return kvr__json_end(&parser->json, object) == object + 1;
}

/* A member of the object in `field`, 0 if there is none. */
static enum kvr_status member_of(struct kvr_parser *parser, enum kvr__field field, struct kvr__name name,
                                 uint32_t *ret_token)
{
        struct kvr__path path = {.name = kvr__field_name(field)};

        *ret_token = 0;
        if (!is_object(parser, parser->field[field]))
                return KVR_OK;
        return kvr__members(parser, parser->field[field], &path, &name, 1, ret_token);
}

/* A string that is not empty; others leave *ret alone. */
static enum kvr_status take_string(struct kvr_parser *parser, uint32_t token, struct kvr_slice *ret)
{
        struct kvr_slice text;

        if (!token || !kvr__json_is_string(&parser->json, token))
                return KVR_OK;
        if (!kvr__decoded(parser, token, &text))
                return KVR_E_NOMEM;
        if (text.len)
                *ret = text;
        return KVR_OK;
}

static enum kvr_status read_model(struct kvr_parser *parser, struct kvr_prompt *ret)
{
        uint32_t token = parser->field[KVR__FIELD_MODEL];

        if (!kvr__given(parser, token))
                return KVR_OK;
        if (!kvr__json_is_string(&parser->json, token) && parser->api != KVR_API_OTHER)
                return kvr__wrong_type(parser, &(struct kvr__path){.name = "model"}, token, "a string");
        return take_string(parser, token, &ret->model);
}

static enum kvr_status read_hint(struct kvr_parser *parser, struct kvr_prompt *ret)
{
        uint32_t tokens[] = {parser->field[KVR__FIELD_PROMPT_CACHE_KEY], parser->field[KVR__FIELD_SESSION_ID],
                             parser->field[KVR__FIELD_USER], 0, 0};
        enum kvr_status status =
                member_of(parser, KVR__FIELD_METADATA, (struct kvr__name)KVR__NAME("user_id"), &tokens[3]);

        if (!status)
                status = member_of(parser, KVR__FIELD_SESSION_PARAMS, (struct kvr__name)KVR__NAME("id"),
                                   &tokens[4]);
        for (size_t i = 0; !status && !ret->hint.len && i < sizeof(tokens) / sizeof(tokens[0]); i++)
                status = take_string(parser, tokens[i], &ret->hint);
        return status;
}

static enum kvr_status read_previous(struct kvr_parser *parser, struct kvr_prompt *ret)
{
        uint32_t conversation = parser->field[KVR__FIELD_CONVERSATION];
        enum kvr_status status =
                take_string(parser, parser->field[KVR__FIELD_PREVIOUS_RESPONSE_ID], &ret->previous_id);

        if (!status && is_object(parser, conversation))
                status = member_of(parser, KVR__FIELD_CONVERSATION, (struct kvr__name)KVR__NAME("id"),
                                   &conversation);
        if (!status && !ret->previous_id.len)
                status = take_string(parser, conversation, &ret->previous_id);
        return status;
}

static enum kvr_status read_stream(struct kvr_parser *parser, struct kvr_prompt *ret)
{
        uint32_t options = parser->field[KVR__FIELD_STREAM_OPTIONS];
        uint32_t usage;
        enum kvr_status status = member_of(parser, KVR__FIELD_STREAM_OPTIONS,
                                           (struct kvr__name)KVR__NAME("include_usage"), &usage);

        if (status)
                return status;
        ret->stream = is_true(parser, parser->field[KVR__FIELD_STREAM]);
        ret->usage_asked = is_true(parser, usage);
        ret->has_stream_options = kvr__given(parser, options);
        if (options && kvr__json_type(&parser->json, options) == KVR__JSON_LITERAL &&
            !ret->has_stream_options)
                ret->stream_options_null = kvr__json_offset(&parser->json, options);
        if (usage && !ret->usage_asked && kvr__json_type(&parser->json, usage) == KVR__JSON_LITERAL)
                ret->usage_denied = kvr__json_offset(&parser->json, usage);
        if (is_object(parser, options)) {
                ret->stream_options_insert = behind_brace(parser, options);
                ret->stream_options_empty = is_empty(parser, options);
        }
        return KVR_OK;
}

static enum kvr_status read_limits(struct kvr_parser *parser, struct kvr_prompt *ret)
{
        static const enum kvr__field limits[] = {KVR__FIELD_MAX_COMPLETION_TOKENS,
                                                 KVR__FIELD_MAX_OUTPUT_TOKENS, KVR__FIELD_N_PREDICT,
                                                 KVR__FIELD_MAX_TOKENS};
        uint32_t token, choices;
        enum kvr_status status = member_of(parser, KVR__FIELD_SAMPLING_PARAMS,
                                           (struct kvr__name)KVR__NAME("max_new_tokens"), &token);

        if (!status)
                status = member_of(parser, KVR__FIELD_SAMPLING_PARAMS, (struct kvr__name)KVR__NAME("n"),
                                   &choices);
        if (status)
                return status;
        ret->max_tokens = count_of(parser, token, 0);
        for (size_t i = 0; !ret->max_tokens && i < sizeof(limits) / sizeof(limits[0]); i++)
                ret->max_tokens = count_of(parser, parser->field[limits[i]], 0);
        ret->choices = count_of(parser, choices ? choices : parser->field[KVR__FIELD_N], 1);
        if (!ret->choices)
                ret->choices = 1;
        ret->priority = priority_of(parser, parser->field[KVR__FIELD_PRIORITY]);
        return KVR_OK;
}

enum kvr_status kvr__request_read(struct kvr_parser *parser, const struct kvr_prompt_options *options,
                                  struct kvr_prompt *ret)
{
        enum kvr_status status = read_model(parser, ret);

        ret->prompt_count = 1;
        ret->body_insert = behind_brace(parser, 0);
        ret->body_empty_object = is_empty(parser, 0);
        if (!status)
                status = read_hint(parser, ret);
        if (!status)
                status = read_previous(parser, ret);
        if (!status)
                status = read_stream(parser, ret);
        if (!status)
                status = read_limits(parser, ret);
        if (!status)
                status = kvr__space(parser, options, ret->model, ret);
        return status;
}
