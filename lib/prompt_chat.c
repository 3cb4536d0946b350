/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: chat completions, Anthropic's messages, and the message items of responses. */
#include "lib/prompt_canon.h"

#include <string.h>

/* ---- content ---- */

enum part_member { PART_TYPE, PART_TEXT, PART_CONTENT, PART_MEMBERS };
static const struct kvr__name part_names[PART_MEMBERS] = {
        [PART_TYPE] = KVR__NAME("type"),
        [PART_TEXT] = KVR__NAME("text"),
        [PART_CONTENT] = KVR__NAME("content"),
};

/* Parts that are no media: their strings are part of the prompt as they are. Text parts are here for want of
 * a text. */
static const struct kvr__name plain_parts[] = {
        KVR__NAME("tool_use"),     KVR__NAME("server_tool_use"),   KVR__NAME("mcp_tool_use"),
        KVR__NAME("thinking"),     KVR__NAME("redacted_thinking"), KVR__NAME("reasoning_text"),
        KVR__NAME("summary_text"), KVR__NAME("refusal"),           KVR__NAME("text"),
        KVR__NAME("input_text"),   KVR__NAME("output_text"),
};

static bool is_text_part(struct kvr_parser *parser, const uint32_t *member)
{
        if (!kvr__given(parser, member[PART_TEXT]))
                return false;
        return !kvr__given(parser, member[PART_TYPE]) || KVR__STRING_IS(parser, member[PART_TYPE], "text") ||
               KVR__STRING_IS(parser, member[PART_TYPE], "input_text") ||
               KVR__STRING_IS(parser, member[PART_TYPE], "output_text");
}

static bool is_plain_part(struct kvr_parser *parser, uint32_t type)
{
        for (size_t i = 0; i < sizeof(plain_parts) / sizeof(plain_parts[0]); i++)
                if (kvr__string_is(parser, type, plain_parts[i].text, plain_parts[i].len))
                        return true;
        return false;
}

static void put_text(struct kvr_parser *parser, uint32_t token)
{
        kvr__stream_text(&parser->stream);
        kvr__canon_text(parser, token);
}

static enum kvr_status put_result(struct kvr_parser *parser, uint32_t token, const uint32_t *member,
                                  const struct kvr__path *path)
{
        static const struct kvr__canon_rule rule = {.skip = {"content", "cache_control"}};
        struct kvr__path inside = {.up = path, .name = "content"};
        enum kvr_status status;

        kvr__stream_tag(&parser->stream, KVR__TAG_RESULT);
        kvr__canon_sorted(parser, token, &rule);
        status = kvr__content_write(parser, member[PART_CONTENT], &inside, true);
        kvr__stream_tag(&parser->stream, KVR__TAG_RESULT_END);
        return status;
}

static enum kvr_status put_part(struct kvr_parser *parser, uint32_t token, const struct kvr__path *path,
                                bool in_result)
{
        static const struct kvr__canon_rule plain = {.skip = {"cache_control"}};
        static const struct kvr__canon_rule media = {.skip = {"cache_control"}, .sub = "*", .digest = true};
        uint32_t member[PART_MEMBERS];
        enum kvr_status status;

        if (kvr__json_is_string(&parser->json, token)) {
                put_text(parser, token);
                return KVR_OK;
        }
        if (kvr__json_type(&parser->json, token) != KVR__JSON_OBJECT)
                return kvr__wrong_type(parser, path, token, "an object or a string");
        status = kvr__members(parser, token, path, part_names, PART_MEMBERS, member);
        if (status)
                return status;
        if (is_text_part(parser, member)) {
                struct kvr__path text = {.up = path, .name = "text"};

                if (!kvr__json_is_string(&parser->json, member[PART_TEXT]))
                        return kvr__wrong_type(parser, &text, member[PART_TEXT], "a string");
                put_text(parser, member[PART_TEXT]);
        } else if (!in_result && KVR__STRING_IS(parser, member[PART_TYPE], "tool_result")) {
                return put_result(parser, token, member, path);
        } else if (is_plain_part(parser, member[PART_TYPE])) {
                kvr__stream_tag(&parser->stream, KVR__TAG_PART);
                kvr__canon_sorted(parser, token, &plain);
        } else {
                kvr__stream_tag(&parser->stream, KVR__TAG_MEDIA);
                kvr__canon_sorted(parser, token, &media);
                kvr__stream_media(&parser->stream);
        }
        return KVR_OK;
}

enum kvr_status kvr__content_write(struct kvr_parser *parser, uint32_t token, const struct kvr__path *path,
                                   bool in_result)
{
        const struct kvr__json *json = &parser->json;
        struct kvr__path element = {.up = path};
        uint32_t end;

        if (!kvr__given(parser, token))
                return KVR_OK;
        if (kvr__json_is_string(json, token)) {
                put_text(parser, token);
                return KVR_OK;
        }
        if (kvr__json_type(json, token) != KVR__JSON_ARRAY)
                return kvr__wrong_type(parser, path, token, "a string or an array");
        end = kvr__json_end(json, token);
        if (end == token + 1)
                kvr__stream_tag(&parser->stream, KVR__TAG_EMPTY);
        for (uint32_t part = token + 1; part < end; part = kvr__json_next(json, part)) {
                enum kvr_status status = put_part(parser, part, &element, in_result);

                if (status)
                        return status;
                element.index++;
        }
        return KVR_OK;
}

/* ---- messages ---- */

enum message_member {
        ROLE,
        CONTENT,
        TOOL_CALLS,
        TOOL_CALL_ID,
        NAME,
        REASONING,
        REASONING_CONTENT,
        THINKING,
        REFUSAL,
        AUDIO,
        FUNCTION_CALL,
        PARTIAL,
        PREFIX,
        MESSAGE_MEMBERS,
};
static const struct kvr__name message_names[MESSAGE_MEMBERS] = {
        [ROLE] = KVR__NAME("role"),
        [CONTENT] = KVR__NAME("content"),
        [TOOL_CALLS] = KVR__NAME("tool_calls"),
        [TOOL_CALL_ID] = KVR__NAME("tool_call_id"),
        [NAME] = KVR__NAME("name"),
        [REASONING] = KVR__NAME("reasoning"),
        [REASONING_CONTENT] = KVR__NAME("reasoning_content"),
        [THINKING] = KVR__NAME("thinking"),
        [REFUSAL] = KVR__NAME("refusal"),
        [AUDIO] = KVR__NAME("audio"),
        [FUNCTION_CALL] = KVR__NAME("function_call"),
        [PARTIAL] = KVR__NAME("partial"),
        [PREFIX] = KVR__NAME("prefix"),
};

/* What is told besides role and content, in front of the content and behind it, each with a letter of its
 * own. */
struct side {
        enum message_member member;
        char letter;
};
static const struct side before_content[] = {
        {NAME, 'n'}, {TOOL_CALL_ID, 'i'}, {REASONING, 'r'}, {REASONING_CONTENT, 'c'}, {THINKING, 't'},
};
static const struct side behind_content[] = {
        {REFUSAL, 'f'}, {AUDIO, 'a'}, {FUNCTION_CALL, 'F'}, {PARTIAL, 'p'}, {PREFIX, 'x'},
};

static void put_field(struct kvr_parser *parser, char letter, uint32_t token)
{
        static const struct kvr__canon_rule call = {.skip = {"index"}, .sub = "function"};

        kvr__stream_tag(&parser->stream, KVR__TAG_FIELD);
        kvr__stream_copy(&parser->stream, &letter, 1);
        kvr__canon_sorted(parser, token, &call);
}

static void put_sides(struct kvr_parser *parser, const uint32_t *member, const struct side *sides,
                      size_t count)
{
        for (size_t i = 0; i < count; i++)
                if (kvr__given(parser, member[sides[i].member]))
                        put_field(parser, sides[i].letter, member[sides[i].member]);
}

/* Most messages are a role and a content. */
static bool has_sides(const uint32_t *member)
{
        uint32_t any = 0;

        for (size_t i = CONTENT + 1; i < MESSAGE_MEMBERS; i++)
                any |= member[i];
        return any != 0;
}

static void put_calls(struct kvr_parser *parser, uint32_t token)
{
        const struct kvr__json *json = &parser->json;

        if (!kvr__given(parser, token))
                return;
        if (kvr__json_type(json, token) != KVR__JSON_ARRAY) {
                put_field(parser, 'C', token);
                return;
        }
        for (uint32_t call = token + 1; call < kvr__json_end(json, token); call = kvr__json_next(json, call))
                put_field(parser, 'k', call);
}

static enum kvr_status put_role(struct kvr_parser *parser, uint32_t token, const struct kvr__path *path)
{
        struct kvr__path role = {.up = path, .name = "role"};

        kvr__stream_tag(&parser->stream, KVR__TAG_MESSAGE);
        if (!kvr__given(parser, token))
                return KVR_OK;
        if (!kvr__json_is_string(&parser->json, token))
                return kvr__wrong_type(parser, &role, token, "a string");
        kvr__canon_value(parser, token, false);
        return KVR_OK;
}

#define ROLE_SHORT 20 /* bytes of a role that are written with their tags at once */

/* What kvr__message_write does for a role and a content that are strings, in fewer steps. */
static void put_plain_message(struct kvr_parser *parser, uint32_t role, uint32_t content)
{
        struct kvr_slice name = kvr__json_text(&parser->json, role);
        char head[ROLE_SHORT + 4];

        if (kvr__json_type(&parser->json, role) == KVR__JSON_STRING && name.len <= ROLE_SHORT) {
                head[0] = KVR__TAG_MESSAGE;
                memcpy(head + 1, name.data - 1, name.len + 2); /* with its quotes */
                head[name.len + 3] = KVR__TAG_TEXT;
                kvr__stream_text_behind(&parser->stream, head, (uint32_t)name.len + 4);
        } else {
                kvr__stream_tag(&parser->stream, KVR__TAG_MESSAGE);
                kvr__canon_value(parser, role, false);
                kvr__stream_text(&parser->stream);
        }
        kvr__canon_text(parser, content);
        kvr__stream_end(&parser->stream, KVR__CUT_MESSAGE);
}

/* Most messages are {"role":R,"content":C} or the other way round, both strings: they are known by their
 * shape. */
static bool is_plain_message(const struct kvr__json *json, uint32_t token, uint32_t *ret_role,
                             uint32_t *ret_content)
{
        struct kvr_slice first, second;
        bool role_first;

        if (kvr__json_end(json, token) != token + 5 || kvr__json_type(json, token + 1) != KVR__JSON_STRING ||
            kvr__json_type(json, token + 2) != KVR__JSON_STRING ||
            kvr__json_type(json, token + 3) != KVR__JSON_STRING || !kvr__json_is_string(json, token + 4))
                return false;
        first = kvr__json_text(json, token + 1);
        second = kvr__json_text(json, token + 3);
        role_first = first.len == 4;
        if (first.len + second.len != 11 || memcmp(role_first ? first.data : second.data, "role", 4) != 0 ||
            memcmp(role_first ? second.data : first.data, "content", 7) != 0)
                return false;
        *ret_role = token + (role_first ? 2 : 4);
        *ret_content = token + (role_first ? 4 : 2);
        return true;
}

enum kvr_status kvr__message_write(struct kvr_parser *parser, uint32_t token, const struct kvr__path *path)
{
        struct kvr__path content = {.up = path, .name = "content"};
        uint32_t member[MESSAGE_MEMBERS] = {0};
        /* Anthropic's and the responses API's messages have no other members. */
        size_t known = parser->api == KVR_API_CHAT || parser->api == KVR_API_EMBEDDINGS ? MESSAGE_MEMBERS
                                                                                        : CONTENT + 1;
        bool sides;
        enum kvr_status status;

        if (kvr__json_type(&parser->json, token) != KVR__JSON_OBJECT)
                return kvr__wrong_type(parser, path, token, "an object");
        if (is_plain_message(&parser->json, token, &member[ROLE], &member[CONTENT])) {
                put_plain_message(parser, member[ROLE], member[CONTENT]);
                return KVR_OK;
        }
        status = kvr__members(parser, token, path, message_names, known, member);
        if (status)
                return status;
        status = put_role(parser, member[ROLE], path);
        if (status)
                return status;
        sides = has_sides(member);
        if (sides)
                put_sides(parser, member, before_content, sizeof(before_content) / sizeof(before_content[0]));
        status = kvr__content_write(parser, member[CONTENT], &content, false);
        if (status)
                return status;
        if (sides) {
                put_calls(parser, member[TOOL_CALLS]);
                put_sides(parser, member, behind_content, sizeof(behind_content) / sizeof(behind_content[0]));
        }
        kvr__stream_end(&parser->stream, KVR__CUT_MESSAGE);
        return KVR_OK;
}

enum kvr_status kvr__system_write(struct kvr_parser *parser, enum kvr__field field, const char *role)
{
        struct kvr__path path = {.name = kvr__field_name(field)};
        enum kvr_status status;

        if (!kvr__given(parser, parser->field[field]))
                return KVR_OK;
        kvr__stream_tag(&parser->stream, KVR__TAG_MESSAGE);
        kvr__stream_lend(&parser->stream, role, (uint32_t)strlen(role));
        status = kvr__content_write(parser, parser->field[field], &path, false);
        kvr__stream_end(&parser->stream, KVR__CUT_MESSAGE);
        return status;
}

enum kvr_status kvr__tools_write(struct kvr_parser *parser)
{
        static const struct kvr__canon_rule openai = {.sub = "function"};
        static const struct kvr__canon_rule anthropic = {.skip = {"cache_control"}};
        const struct kvr__json *json = &parser->json;
        struct kvr__path path = {.name = kvr__field_name(KVR__FIELD_TOOLS)};
        uint32_t token = parser->field[KVR__FIELD_TOOLS];
        uint32_t end;

        if (!kvr__given(parser, token))
                return KVR_OK;
        if (kvr__json_type(json, token) != KVR__JSON_ARRAY)
                return kvr__wrong_type(parser, &path, token, "an array");
        end = kvr__json_end(json, token);
        if (end == token + 1)
                return KVR_OK;
        for (uint32_t tool = token + 1; tool < end; tool = kvr__json_next(json, tool)) {
                kvr__stream_tag(&parser->stream, KVR__TAG_TOOL);
                kvr__canon_sorted(parser, tool, parser->api == KVR_API_MESSAGES ? &anthropic : &openai);
        }
        kvr__stream_end(&parser->stream, KVR__CUT_TOOLS);
        return KVR_OK;
}

enum kvr_status kvr__chat_write(struct kvr_parser *parser)
{
        const struct kvr__json *json = &parser->json;
        struct kvr__path list = {.name = kvr__field_name(KVR__FIELD_MESSAGES)};
        struct kvr__path element = {.up = &list};
        uint32_t token = parser->field[KVR__FIELD_MESSAGES];
        uint32_t one, next, end;
        enum kvr_status status;

        if (!kvr__given(parser, token)) {
                parser->unkeyed = true; /* the engine says best what is missing */
                return KVR_OK;
        }
        if (kvr__json_type(json, token) != KVR__JSON_ARRAY)
                return kvr__wrong_type(parser, &list, token, "an array");
        status = kvr__tools_write(parser);
        if (status)
                return status;
        status = kvr__system_write(parser, KVR__FIELD_SYSTEM, "\"system\"");
        if (status)
                return status;
        one = token + 1;
        end = kvr__json_end(json, token);
        kvr__recall_messages(&parser->recall, &parser->stream, token, &one, &element.index);
        for (; one < end; one = next) {
                next = kvr__json_next(json, one);
                kvr__recall_pass(&parser->recall, &parser->stream, one, element.index, next);
                status = kvr__message_write(parser, one, &element);
                if (status)
                        return status;
                element.index++;
        }
        kvr__recall_pass(&parser->recall, &parser->stream, end, element.index, UINT32_MAX);
        return KVR_OK;
}
