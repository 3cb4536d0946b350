/* SPDX-License-Identifier: Apache-2.0 */
/* Picking members out of objects, and saying where in the body something is wrong. */
#include "lib/prompt_parser.h"
#include "lib/error.h"

#include <stdio.h>
#include <string.h>

#define PATH_DEPTH_MAX 8

/* "messages[3].content[1].text"; what does not fit is cut. */
static void write_path(const struct kvr__path *path, char *ret, size_t size)
{
        const struct kvr__path *steps[PATH_DEPTH_MAX] = {NULL};
        size_t count = 0, len = 0;

        for (; path && count < PATH_DEPTH_MAX; path = path->up)
                steps[count++] = path;
        ret[0] = 0;
        while (count-- && len < size) {
                int wrote = steps[count]->name ? snprintf(ret + len, size - len, "%s%s", len ? "." : "",
                                                          steps[count]->name)
                                               : snprintf(ret + len, size - len, "[%u]", steps[count]->index);

                len += wrote > 0 ? (size_t)wrote : 0;
        }
}

static size_t place_of(const struct kvr_parser *parser, uint32_t token)
{
        return token ? kvr__json_offset(&parser->json, token) : 0;
}

enum kvr_status kvr__wrong_type(struct kvr_parser *parser, const struct kvr__path *path, uint32_t token,
                                const char *what)
{
        char field[sizeof(parser->err->field)];

        write_path(path, field, sizeof(field));
        return kvr__error_set(parser->err, KVR_E_REQUEST, place_of(parser, token), field, "%s must be %s",
                              field, what);
}

enum kvr_status kvr__wrong_twice(struct kvr_parser *parser, const struct kvr__path *path, uint32_t token)
{
        char field[sizeof(parser->err->field)];

        write_path(path, field, sizeof(field));
        return kvr__error_set(parser->err, KVR_E_REQUEST, place_of(parser, token), field,
                              "%s is there twice; engines differ in which one they take", field);
}

struct kvr_slice kvr__key(const struct kvr_parser *parser, uint32_t token, char room[6 * KVR__FIELD_NAME_MAX])
{
        struct kvr_slice raw = kvr__json_text(&parser->json, token);

        if (kvr__json_type(&parser->json, token) == KVR__JSON_STRING)
                return raw.len <= KVR__FIELD_NAME_MAX ? raw : (struct kvr_slice){room, 0};
        if (raw.len > 6 * KVR__FIELD_NAME_MAX)
                return (struct kvr_slice){room, 0};
        return (struct kvr_slice){room, kvr__json_canonical(raw.data, (uint32_t)raw.len, room)};
}

enum kvr_status kvr__members(struct kvr_parser *parser, uint32_t object, const struct kvr__path *path,
                             const struct kvr__name *names, size_t count, uint32_t *ret_tokens)
{
        const struct kvr__json *json = &parser->json;
        uint32_t end = kvr__json_end(json, object);

        memset(ret_tokens, 0, count * sizeof(*ret_tokens));
        for (uint32_t key = object + 1; key < end; key = kvr__json_next(json, key + 1)) {
                char room[6 * KVR__FIELD_NAME_MAX];
                struct kvr_slice name = kvr__key(parser, key, room);

                for (size_t i = 0; name.len && i < count; i++) {
                        if (names[i].len != name.len || names[i].text[0] != name.data[0] ||
                            memcmp(names[i].text, name.data, name.len) != 0)
                                continue;
                        if (ret_tokens[i])
                                return kvr__wrong_twice(
                                        parser, &(struct kvr__path){.up = path, .name = names[i].text}, key);
                        ret_tokens[i] = key + 1;
                        break;
                }
        }
        return KVR_OK;
}

bool kvr__string_is(struct kvr_parser *parser, uint32_t token, const char *text, size_t len)
{
        char room[6 * KVR__FIELD_NAME_MAX];
        struct kvr_slice value;

        if (!token || !kvr__json_is_string(&parser->json, token))
                return false;
        value = kvr__key(parser, token, room);
        return value.len == len && !memcmp(value.data, text, len);
}

bool kvr__decoded(struct kvr_parser *parser, uint32_t token, struct kvr_slice *ret)
{
        struct kvr_slice raw = kvr__json_text(&parser->json, token);
        struct kvr__buffer *strings = &parser->strings;

        if (raw.len && memchr(raw.data, '\\', raw.len)) {
                char *room;

                /* Room for all strings of the body at once, so that none of them moves later. */
                if (!strings->len && !kvr__buffer_reserve(strings, parser->length))
                        return false;
                room = strings->data + strings->len;
                raw.len = kvr__json_decode(raw.data, (uint32_t)raw.len, room);
                raw.data = room;
                strings->len += (uint32_t)raw.len;
        }
        *ret = raw;
        return true;
}
