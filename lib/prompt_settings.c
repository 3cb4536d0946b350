/* SPDX-License-Identifier: Apache-2.0 */
/* What a request tells the chat template or the tokenizer besides the messages. */
#include "lib/prompt_canon.h"

#include <string.h>

enum how {
        AS_WRITTEN,
        SORTED, /* an object whose member order says nothing */
        TYPE,   /* only its member "type" */
        EFFORT, /* only its member "effort" */
        ID,     /* a string, or an object of which only "id" counts */
        CHOICE, /* sorted; "auto" says nothing */
        MEDIA,  /* long strings as digests; each element is a medium */
};

struct setting {
        enum kvr__field field;
        enum how how;
        uint32_t apis;
};

/* In this order, in front of the tools. Fields that a request form does not read are absent there. */
static const struct setting settings[] = {
        {KVR__FIELD_CHAT_TEMPLATE, AS_WRITTEN, KVR__IN_ALL},
        {KVR__FIELD_CHAT_TEMPLATE_KWARGS, SORTED, KVR__IN_ALL},
        {KVR__FIELD_DOCUMENTS, AS_WRITTEN, KVR__IN_ALL},
        {KVR__FIELD_REASONING_EFFORT, AS_WRITTEN, KVR__IN_ALL},
        {KVR__FIELD_REASONING, SORTED, KVR__IN_C},
        {KVR__FIELD_REASONING, EFFORT, KVR__IN_R},
        {KVR__FIELD_THINKING, TYPE, KVR__IN_ALL},
        {KVR__FIELD_ENABLE_THINKING, AS_WRITTEN, KVR__IN_ALL},
        {KVR__FIELD_OUTPUT_CONFIG, EFFORT, KVR__IN_ALL},
        {KVR__FIELD_TOOL_CHOICE, CHOICE, KVR__IN_ALL},
        {KVR__FIELD_FUNCTION_CALL, CHOICE, KVR__IN_ALL},
        {KVR__FIELD_PARALLEL_TOOL_CALLS, AS_WRITTEN, KVR__IN_ALL},
        {KVR__FIELD_FUNCTIONS, AS_WRITTEN, KVR__IN_ALL},
        {KVR__FIELD_ADD_SPECIAL_TOKENS, AS_WRITTEN, KVR__IN_ALL},
        {KVR__FIELD_TRUNCATE_PROMPT_TOKENS, AS_WRITTEN, KVR__IN_ALL},
        {KVR__FIELD_MM_PROCESSOR_KWARGS, SORTED, KVR__IN_ALL},
        {KVR__FIELD_MEDIA_IO_KWARGS, SORTED, KVR__IN_ALL},
        {KVR__FIELD_PROMPT, SORTED, KVR__IN_R},
        {KVR__FIELD_PREVIOUS_RESPONSE_ID, AS_WRITTEN, KVR__IN_ALL},
        {KVR__FIELD_CONVERSATION, ID, KVR__IN_ALL},
        {KVR__FIELD_PREVIOUS_INPUT_MESSAGES, AS_WRITTEN, KVR__IN_ALL},
        {KVR__FIELD_IMAGE_DATA, MEDIA, KVR__IN_ALL},
        {KVR__FIELD_VIDEO_DATA, MEDIA, KVR__IN_ALL},
        {KVR__FIELD_AUDIO_DATA, MEDIA, KVR__IN_ALL},
};

static void put_name(struct kvr_parser *parser, enum kvr__tag tag, enum kvr__field field)
{
        const char *name = kvr__field_name(field);

        kvr__stream_tag(&parser->stream, tag);
        kvr__stream_lend(&parser->stream, name, (uint32_t)strlen(name));
}

static bool is_empty_container(const struct kvr__json *json, uint32_t token)
{
        return kvr__json_is_container(json, token) && kvr__json_end(json, token) == token + 1;
}

static void put_media(struct kvr_parser *parser, enum kvr__field field, uint32_t token)
{
        const struct kvr__json *json = &parser->json;
        bool list = kvr__json_type(json, token) == KVR__JSON_ARRAY;
        uint32_t end = list ? kvr__json_end(json, token) : kvr__json_next(json, token);

        for (uint32_t one = list ? token + 1 : token; one < end; one = kvr__json_next(json, one)) {
                put_name(parser, KVR__TAG_MEDIA, field);
                kvr__canon_value(parser, one, true);
                kvr__stream_media(&parser->stream);
        }
}

/* For objects of which one member counts: that member's value, or 0. Other values stand for themselves. */
static enum kvr_status pick(struct kvr_parser *parser, const struct setting *setting, uint32_t *token)
{
        static const struct kvr__name type = KVR__NAME("type"), effort = KVR__NAME("effort"),
                                      id = KVR__NAME("id");
        const struct kvr__name *name = setting->how == TYPE     ? &type
                                       : setting->how == EFFORT ? &effort
                                       : setting->how == ID     ? &id
                                                                : NULL;
        struct kvr__path path = {.name = kvr__field_name(setting->field)};

        if (!name || kvr__json_type(&parser->json, *token) != KVR__JSON_OBJECT)
                return KVR_OK;
        return kvr__members(parser, *token, &path, name, 1, token);
}

static enum kvr_status put_setting(struct kvr_parser *parser, const struct setting *setting)
{
        static const struct kvr__canon_rule sorted = {0}, choice = {.sub = "function"};
        uint32_t token = parser->field[setting->field];
        enum kvr_status status;

        if (!kvr__given(parser, token) || (setting->how != ID && is_empty_container(&parser->json, token)))
                return KVR_OK;
        status = pick(parser, setting, &token);
        if (status)
                return status;
        if (!kvr__given(parser, token)) {
                /* A conversation without a name is a history that nobody can tell from another. */
                if (setting->how == ID)
                        parser->unkeyed = true;
                return KVR_OK;
        }
        if (setting->how == CHOICE && KVR__STRING_IS(parser, token, "auto"))
                return KVR_OK;
        if (setting->how == MEDIA) {
                put_media(parser, setting->field, token);
                return KVR_OK;
        }
        put_name(parser, KVR__TAG_SETTING, setting->field);
        kvr__canon_sorted(parser, token, setting->how == CHOICE ? &choice : &sorted);
        return KVR_OK;
}

/* As put_setting, where the order of an object's members counts. */
static void put_as_written(struct kvr_parser *parser, enum kvr__field field)
{
        uint32_t token = parser->field[field];

        if (!kvr__given(parser, token) || is_empty_container(&parser->json, token))
                return;
        put_name(parser, KVR__TAG_SETTING, field);
        kvr__canon_value(parser, token, false);
}

enum kvr_status kvr__settings_write(struct kvr_parser *parser)
{
        for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
                enum kvr_status status = KVR_OK;

                if (!parser->field[settings[i].field] || !(settings[i].apis & KVR__IN(parser->api)))
                        continue;
                if (settings[i].how == AS_WRITTEN)
                        put_as_written(parser, settings[i].field);
                else
                        status = put_setting(parser, &settings[i]);
                if (status)
                        return status;
        }
        return KVR_OK;
}

void kvr__settings_write_behind(struct kvr_parser *parser)
{
        const struct kvr__json *json = &parser->json;
        uint32_t generation = parser->field[KVR__FIELD_ADD_GENERATION_PROMPT];
        uint32_t go_on = parser->field[KVR__FIELD_CONTINUE_FINAL_MESSAGE];

        /* What the defaults say is not said. */
        if (generation && kvr__json_bool(json, generation) != 1)
                put_as_written(parser, KVR__FIELD_ADD_GENERATION_PROMPT);
        if (go_on && kvr__json_bool(json, go_on) != 0)
                put_as_written(parser, KVR__FIELD_CONTINUE_FINAL_MESSAGE);
        put_as_written(parser, KVR__FIELD_SUFFIX);
}
