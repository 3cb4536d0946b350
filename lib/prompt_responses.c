/* SPDX-License-Identifier: Apache-2.0 */
/* The input of the responses API: instructions, then a text or a list of items. */
#include "lib/prompt_canon.h"

enum item_member { TYPE, ROLE, OUTPUT, ITEM_MEMBERS };
static const struct kvr__name item_names[ITEM_MEMBERS] = {
        [TYPE] = KVR__NAME("type"),
        [ROLE] = KVR__NAME("role"),
        [OUTPUT] = KVR__NAME("output"),
};

/* A call, its output, a reasoning item, ...: anything but a message. */
static enum kvr_status put_item(struct kvr_parser *parser, uint32_t token, const uint32_t *member,
                                const struct kvr__path *path)
{
        /*
         * Ids of items are the server's bookkeeping; the ids that tie calls and outputs together are call_id.
         */
        static const struct kvr__canon_rule item = {.skip = {"id", "status", "output"}};
        static const struct kvr__canon_rule reference = {.skip = {"status"}};
        struct kvr__path output = {.up = path, .name = "output"};
        enum kvr_status status = KVR_OK;

        kvr__stream_tag(&parser->stream, KVR__TAG_ITEM);
        if (KVR__STRING_IS(parser, member[TYPE], "item_reference")) {
                kvr__canon_sorted(parser, token, &reference);
        } else {
                kvr__canon_sorted(parser, token, &item);
                if (kvr__given(parser, member[OUTPUT]) &&
                    kvr__json_type(&parser->json, member[OUTPUT]) == KVR__JSON_OBJECT) {
                        kvr__stream_tag(&parser->stream, KVR__TAG_VALUE);
                        kvr__canon_value(parser, member[OUTPUT], false);
                } else {
                        status = kvr__content_write(parser, member[OUTPUT], &output, true);
                }
        }
        kvr__stream_end(&parser->stream, KVR__CUT_MESSAGE);
        return status;
}

static enum kvr_status put_input_item(struct kvr_parser *parser, uint32_t token, const struct kvr__path *path)
{
        uint32_t member[ITEM_MEMBERS];
        enum kvr_status status;

        if (kvr__json_type(&parser->json, token) != KVR__JSON_OBJECT)
                return kvr__wrong_type(parser, path, token, "an object");
        status = kvr__members(parser, token, path, item_names, ITEM_MEMBERS, member);
        if (status)
                return status;
        if (KVR__STRING_IS(parser, member[TYPE], "message") ||
            (!kvr__given(parser, member[TYPE]) && kvr__given(parser, member[ROLE])))
                return kvr__message_write(parser, token, path);
        return put_item(parser, token, member, path);
}

static enum kvr_status put_input(struct kvr_parser *parser, uint32_t token)
{
        const struct kvr__json *json = &parser->json;
        struct kvr__path list = {.name = kvr__field_name(KVR__FIELD_INPUT)};
        struct kvr__path element = {.up = &list};
        enum kvr_status status = KVR_OK;

        if (kvr__json_is_string(json, token)) {
                /* Short for one user message. */
                return kvr__system_write(parser, KVR__FIELD_INPUT, "\"user\"");
        }
        if (kvr__json_type(json, token) != KVR__JSON_ARRAY)
                return kvr__wrong_type(parser, &list, token, "a string or an array");
        for (uint32_t one = token + 1; !status && one < kvr__json_end(json, token);
             one = kvr__json_next(json, one)) {
                status = put_input_item(parser, one, &element);
                element.index++;
        }
        return status;
}

/* Instructions are a string everywhere; whatever else is given stands for itself. */
static enum kvr_status put_instructions(struct kvr_parser *parser)
{
        uint32_t token = parser->field[KVR__FIELD_INSTRUCTIONS];

        if (!kvr__given(parser, token) || kvr__json_is_string(&parser->json, token))
                return kvr__system_write(parser, KVR__FIELD_INSTRUCTIONS, "\"system\"");
        kvr__stream_tag(&parser->stream, KVR__TAG_MESSAGE);
        kvr__stream_tag(&parser->stream, KVR__TAG_VALUE);
        kvr__canon_value(parser, token, false);
        kvr__stream_end(&parser->stream, KVR__CUT_MESSAGE);
        return KVR_OK;
}

enum kvr_status kvr__responses_write(struct kvr_parser *parser)
{
        uint32_t input = parser->field[KVR__FIELD_INPUT];
        enum kvr_status status = kvr__tools_write(parser);

        if (!status)
                status = put_instructions(parser);
        if (!status && kvr__given(parser, input))
                status = put_input(parser, input);
        return status;
}
