/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/prompt_ignore.h"
#include "lib/error.h"

#include <string.h>

static const char *const api_names[] = {
        [KVR_API_OTHER] = "other",
        [KVR_API_CHAT] = "chat",
        [KVR_API_COMPLETIONS] = "completions",
        [KVR_API_RESPONSES] = "responses",
        [KVR_API_MESSAGES] = "messages",
        [KVR_API_EMBEDDINGS] = "embeddings",
        [KVR_API_LLAMACPP] = "llamacpp",
        [KVR_API_SGLANG] = "sglang",
};

struct api_path {
        const char *path;
        enum kvr_api api;
};

static const struct api_path api_paths[] = {
        {"/v1/chat/completions", KVR_API_CHAT},   {"/chat/completions", KVR_API_CHAT},
        {"/v1/completions", KVR_API_COMPLETIONS}, {"/completions", KVR_API_LLAMACPP},
        {"/completion", KVR_API_LLAMACPP},        {"/v1/responses", KVR_API_RESPONSES},
        {"/responses", KVR_API_RESPONSES},        {"/v1/messages", KVR_API_MESSAGES},
        {"/messages", KVR_API_MESSAGES},          {"/v1/embeddings", KVR_API_EMBEDDINGS},
        {"/embeddings", KVR_API_EMBEDDINGS},      {"/generate", KVR_API_SGLANG},
};

enum kvr_api kvr_api_of_path(struct kvr_slice path)
{
        for (size_t i = 0; i < sizeof(api_paths) / sizeof(api_paths[0]); i++)
                if (strlen(api_paths[i].path) == path.len && !memcmp(api_paths[i].path, path.data, path.len))
                        return api_paths[i].api;
        return KVR_API_OTHER;
}

const char *kvr_api_name(enum kvr_api api)
{
        return (size_t)api < sizeof(api_names) / sizeof(api_names[0]) ? api_names[api] : "unknown";
}

struct kvr_parser *kvr_parser_new(void)
{
        struct kvr_parser *parser = calloc(1, sizeof(*parser));

        if (!parser)
                return NULL;
        parser->json.scan = kvr__scanner_at(kvr__scanner_count() - 1)->scan;
        parser->stream.points = parser->points;
        kvr__hash_init(&parser->hash, 0);
        parser->text.hash = &parser->hash;
        kvr__recall_init(&parser->recall);
        kvr__field_map_init(&parser->fields);
        return parser;
}

void kvr_parser_free(struct kvr_parser *parser)
{
        if (!parser)
                return;
        kvr__json_fini(&parser->json);
        kvr__stream_fini(&parser->stream);
        kvr__recall_fini(&parser->recall);
        kvr__buffer_fini(&parser->scratch);
        kvr__buffer_fini(&parser->keys);
        kvr__buffer_fini(&parser->strings);
        free(parser->ids);
        free(parser);
}

/* Tokens of the members that are read. */
static enum kvr_status find_fields(struct kvr_parser *parser)
{
        const struct kvr__json *json = &parser->json;
        uint32_t end = kvr__json_end(json, 0);

        memset(parser->field, 0, sizeof(parser->field));
        for (uint32_t key = 1; key < end; key = kvr__json_next(json, key + 1)) {
                char room[6 * KVR__FIELD_NAME_MAX];
                struct kvr_slice name = kvr__key(parser, key, room);
                enum kvr__field field = kvr__field_find(&parser->fields, parser->api, name.data, name.len);

                if (field == KVR__FIELD_COUNT)
                        continue;
                if (parser->field[field])
                        return kvr__wrong_twice(parser, &(struct kvr__path){.name = kvr__field_name(field)},
                                                key);
                parser->field[field] = key + 1;
        }
        return KVR_OK;
}

/*
 * Keys of one request form must not be met by another's: templates and conversions differ. Texts for
 * generation are the same prompt whatever path they come by.
 */
static uint64_t first_link(const struct kvr_parser *parser, uint64_t space)
{
        enum kvr_api form = parser->api;

        if (form == KVR_API_LLAMACPP || form == KVR_API_SGLANG)
                form = KVR_API_COMPLETIONS;
        return kvr__hash_numbers(&parser->hash, (const uint64_t[]){space, form}, 2);
}

/* SGLang's prompt is in one of two fields. */
static enum kvr_status write_generate(struct kvr_parser *parser, struct kvr_prompt *ret)
{
        bool text = kvr__given(parser, parser->field[KVR__FIELD_TEXT]);
        bool ids = kvr__given(parser, parser->field[KVR__FIELD_INPUT_IDS]);

        if (kvr__given(parser, parser->field[KVR__FIELD_INPUT_EMBEDS]) ||
            kvr__given(parser, parser->field[KVR__FIELD_SESSION_PARAMS]) || (text && ids))
                parser->unkeyed = true;
        return kvr__text_write(parser, ids && !text ? KVR__FIELD_INPUT_IDS : KVR__FIELD_TEXT, &ret->unit,
                               &ret->prompt_count);
}

static enum kvr_status write_prompt(struct kvr_parser *parser, struct kvr_prompt *ret)
{
        bool chat = kvr__given(parser, parser->field[KVR__FIELD_MESSAGES]);

        switch (parser->api) {
        case KVR_API_CHAT:
        case KVR_API_MESSAGES:
                return kvr__chat_write(parser);
        case KVR_API_RESPONSES:
                return kvr__responses_write(parser);
        case KVR_API_EMBEDDINGS:
                if (chat)
                        return kvr__chat_write(parser);
                return kvr__text_write(parser, KVR__FIELD_INPUT, &ret->unit, &ret->prompt_count);
        case KVR_API_COMPLETIONS:
        case KVR_API_LLAMACPP:
                if (kvr__given(parser, parser->field[KVR__FIELD_PROMPT_EMBEDS]))
                        parser->unkeyed = true;
                return kvr__text_write(parser, KVR__FIELD_PROMPT, &ret->unit, &ret->prompt_count);
        case KVR_API_SGLANG:
                return write_generate(parser, ret);
        case KVR_API_OTHER:
                break;
        }
        parser->unkeyed = true;
        return KVR_OK;
}

/* The canonical stream from end to end, and its points. */
static enum kvr_status write_stream(struct kvr_parser *parser, struct kvr_prompt *ret)
{
        enum kvr_status status;

        kvr__stream_start(&parser->stream, &parser->hash, first_link(parser, ret->space), KVR_UNIT_BYTES);
        status = kvr__settings_write(parser);
        if (!status)
                status = write_prompt(parser, ret);
        if (status)
                return status;
        if (ret->unit == KVR_UNIT_BYTES)
                kvr__settings_write_behind(parser);
        if (!kvr__stream_finish(&parser->stream))
                return KVR_E_NOMEM;
        /* What only some JSON readers take is not worth a promise. */
        if (parser->json.flags & (KVR__JSON_BAD_UTF8 | KVR__JSON_NOT_FINITE))
                parser->unkeyed = true;
        if (parser->unkeyed) {
                ret->unit = KVR_UNIT_BYTES;
                return KVR_OK;
        }
        ret->points = parser->points;
        ret->point_count = parser->stream.point_count;
        ret->units = ret->point_count ? parser->points[ret->point_count - 1].end : 0;
        ret->mappable = !parser->unmappable && parser->stream.media_left == KVR_MEDIA_COUNTED_MAX;
        /* Nothing is behind the text: no setting that the template has there. */
        if (parser->text.bytes.len && parser->text.start + parser->text.bytes.len == parser->stream.pos)
                ret->text = &parser->text;
        ret->ids = parser->id_count ? parser->ids : NULL;
        ret->id_count = parser->id_count;
        return KVR_OK;
}

static enum kvr_status read_json(struct kvr_parser *parser, struct kvr_slice body)
{
        const struct kvr__recall_entry *known = parser->recall.known;
        size_t offset;
        enum kvr_status status;

        if (known)
                status = kvr__json_read_on(&parser->json, body, &known->state, kvr__recall_tokens(known),
                                           &offset);
        else
                status = kvr__json_read(&parser->json, body, &offset);
        switch (status) {
        case KVR_OK:
                break;
        case KVR_E_NOMEM:
                return status;
        case KVR_E_LIMIT:
                if (body.len > KVR_BODY_MAX)
                        return kvr__error_set(parser->err, status, 0, NULL,
                                              "a body of %zu bytes is above the limit of %u", body.len,
                                              KVR_BODY_MAX);
                return kvr__error_set(parser->err, status, offset, NULL, "nested deeper than %d levels",
                                      KVR_JSON_DEPTH_MAX);
        default:
                return kvr__error_set(parser->err, status, offset, NULL, "not valid JSON from byte %zu on",
                                      offset);
        }
        if (kvr__json_type(&parser->json, 0) != KVR__JSON_OBJECT)
                return kvr__error_set(parser->err, KVR_E_JSON, 0, NULL, "the body must be a JSON object");
        return KVR_OK;
}

enum kvr_status kvr_prompt_parse(struct kvr_parser *parser, enum kvr_api api, struct kvr_slice body,
                                 const struct kvr_prompt_options *options, struct kvr_prompt *ret_prompt,
                                 struct kvr_error *err)
{
        static const struct kvr_prompt_options none = {0};
        struct kvr_prompt prompt = {.api = api, .prompt_count = 1, .choices = 1};
        enum kvr_status status;

        if ((unsigned)api > KVR_API_SGLANG)
                return kvr__error_set(err, KVR_E_ARGUMENT, 0, NULL, "no such request form");
        if (!options)
                options = &none;
        if (options->seed != parser->hash.seed) {
                kvr__hash_init(&parser->hash, options->seed);
                kvr__recall_clear(&parser->recall);
        }
        parser->api = api;
        parser->err = err;
        parser->unkeyed = false;
        parser->unmappable = false;
        parser->id_count = 0;
        parser->text.bytes.len = 0;
        parser->strings.len = 0;
        parser->length = (uint32_t)body.len;
        /* Paths without a rule carry anything, JSON or not. */
        if (api == KVR_API_OTHER)
                parser->err = NULL;
        kvr__recall_begin(&parser->recall, &parser->hash, api, body);
        status = read_json(parser, body);
        if (!status && parser->recall.plan_count)
                kvr__recall_read(&parser->recall, &parser->json);
        if (!status)
                status = find_fields(parser);
        if (!status)
                status = kvr__request_read(parser, options, &prompt);
        if (!status && options->ignore && !prompt.hint.len &&
            !kvr__ignore_hint(parser, options->ignore, &prompt))
                status = KVR_E_NOMEM;
        if (!status && api != KVR_API_OTHER)
                status = write_stream(parser, &prompt);
        if (!status && !parser->unkeyed && parser->recall.plan_count)
                kvr__recall_commit(&parser->recall, &parser->json, parser->points);
        if (status && status != KVR_E_NOMEM && api == KVR_API_OTHER) {
                prompt = (struct kvr_prompt){.api = api, .prompt_count = 1, .choices = 1};
                status = KVR_OK;
        }
        if (status == KVR_E_NOMEM)
                return kvr__error_set(err, status, 0, NULL, "out of memory for a body of %zu bytes",
                                      body.len);
        if (!status)
                *ret_prompt = prompt;
        return status;
}
