/* SPDX-License-Identifier: Apache-2.0 */
/* The parser's inside, shared by the prompt_*.c files. */
#ifndef KVROUTE_LIB_PROMPT_PARSER_H
#define KVROUTE_LIB_PROMPT_PARSER_H

#include "lib/json.h"
#include "lib/prompt_cell.h"
#include "lib/prompt_fields.h"
#include "lib/prompt_hash.h"
#include "lib/prompt_recall.h"
#include "lib/prompt_stream.h"

struct kvr_parser {
        struct kvr__json json;
        struct kvr__stream stream;
        struct kvr__hash hash;
        struct kvr__recall recall;
        struct kvr__field_map fields;
        struct kvr__buffer scratch; /* one string in canonical spelling, until the next one */
        struct kvr__buffer keys;    /* object keys in canonical spelling, while their object is written */
        struct kvr__buffer strings; /* decoded strings of the result, and namespace values while hashed */
        struct kvr_point points[KVR_POINTS_MAX];
        char ignored[24]; /* the hint that was made (prompt_ignore.h) */
        uint32_t *ids;    /* of a prompt that came as ids */
        uint32_t id_count, id_room;
        struct kvr_prompt_text text; /* of a prompt that came as one; no bytes: it did not */

        /* of the request being read */
        enum kvr_api api;
        uint32_t field[KVR__FIELD_COUNT]; /* token of the value; 0: absent */
        struct kvr_error *err;
        uint32_t length; /* of the body */
        bool unkeyed;    /* the prompt cannot be keyed; route by load */
        bool unmappable; /* what keeps caches apart is not all told by engines' events */
};

/* Where in the body, for errors: "messages" [3] "content" [1] "text", innermost first. Lives on the stack. */
struct kvr__path {
        const struct kvr__path *up;
        const char *name; /* NULL: an element */
        uint32_t index;
};

/* Fills the caller's error: at `path` there is something that must be `what`, or a member twice.
 * KVR_E_REQUEST. */
KVR_MUST_USE enum kvr_status kvr__wrong_type(struct kvr_parser *parser, const struct kvr__path *path,
                                             uint32_t token, const char *what);
KVR_MUST_USE enum kvr_status kvr__wrong_twice(struct kvr_parser *parser, const struct kvr__path *path,
                                              uint32_t token);

/* A value that is there and not null. */
static inline bool kvr__given(const struct kvr_parser *parser, uint32_t token)
{
        return token && !kvr__json_is_null(&parser->json, token);
}

/* Names of members to pick out of an object. */
struct kvr__name {
        const char *text;
        uint32_t len;
};
#define KVR__NAME(text)                \
        {                              \
                text, sizeof(text) - 1 \
        }
#define KVR__NAMES_MAX 16

/*
 * Looks up `count` members of an object: ret_tokens[i] is the value's token or 0. Any of them there twice is
 * KVR_E_REQUEST. Keys are compared decoded.
 */
KVR_MUST_USE enum kvr_status kvr__members(struct kvr_parser *parser, uint32_t object,
                                          const struct kvr__path *path, const struct kvr__name *names,
                                          size_t count, uint32_t *ret_tokens);

/* True when the string token has this text (no escapes in `text`). */
bool kvr__string_is(struct kvr_parser *parser, uint32_t token, const char *text, size_t len);
#define KVR__STRING_IS(parser, token, literal) kvr__string_is(parser, token, literal, sizeof(literal) - 1)

/*
 * A key in canonical spelling if it is at most KVR__FIELD_NAME_MAX bytes then; else the empty slice. `room`
 * holds keys that are spelled otherwise.
 */
struct kvr_slice kvr__key(const struct kvr_parser *parser, uint32_t token,
                          char room[6 * KVR__FIELD_NAME_MAX]);

/*
 * The text of a string token. It lies in the body or, when it has escapes, in parser->strings until the next
 * request. False when out of memory.
 */
KVR_MUST_USE bool kvr__decoded(struct kvr_parser *parser, uint32_t token, struct kvr_slice *ret);

/* ---- what the request says of itself (prompt_request.c) ---- */

/* Fills everything of *ret but the points. */
KVR_MUST_USE enum kvr_status kvr__request_read(struct kvr_parser *parser,
                                               const struct kvr_prompt_options *options,
                                               struct kvr_prompt *ret);
/* prompt_space.c: ret->space and the names it is made of. Sets parser->unkeyed when a value has a form that
 * no rule covers. */
KVR_MUST_USE enum kvr_status kvr__space(struct kvr_parser *parser, const struct kvr_prompt_options *options,
                                        struct kvr_slice model, struct kvr_prompt *ret);

/* ---- the prompt, into the stream (started) ---- */

/* prompt_chat.c: messages of chat completions, Anthropic, embeddings. */
KVR_MUST_USE enum kvr_status kvr__chat_write(struct kvr_parser *parser);
/* Tools with their end, as one array of objects. */
KVR_MUST_USE enum kvr_status kvr__tools_write(struct kvr_parser *parser);
/* A message with the content given as text or parts; role is a literal of ours. For system prompts outside
 * the list. */
KVR_MUST_USE enum kvr_status kvr__system_write(struct kvr_parser *parser, enum kvr__field field,
                                               const char *role);
KVR_MUST_USE enum kvr_status kvr__message_write(struct kvr_parser *parser, uint32_t token,
                                                const struct kvr__path *path);
KVR_MUST_USE enum kvr_status kvr__content_write(struct kvr_parser *parser, uint32_t token,
                                                const struct kvr__path *path, bool in_result);
/* prompt_responses.c */
KVR_MUST_USE enum kvr_status kvr__responses_write(struct kvr_parser *parser);

/* prompt_settings.c: what feeds the template, in front of the prompt and behind it. */
KVR_MUST_USE enum kvr_status kvr__settings_write(struct kvr_parser *parser);
void kvr__settings_write_behind(struct kvr_parser *parser);

/*
 * prompt_text.c: the text or ids of a field that holds a prompt or several, of which the first counts. Ids
 * begin a stream of their own unit and set *ret_unit; a list sets *ret_count to the number of prompts.
 */
KVR_MUST_USE enum kvr_status kvr__text_write(struct kvr_parser *parser, enum kvr__field field,
                                             enum kvr_unit *ret_unit, uint32_t *ret_count);

#endif
