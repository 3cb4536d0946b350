/* SPDX-License-Identifier: Apache-2.0 */
#include "usage_object.h"

#include <math.h>
#include <string.h>

#define FLAT_DIGITS_MAX 15 /* below ENGINE_COUNT_MAX */

static bool is_space(char c)
{
        return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static const char *skip_spaces(const char *at, const char *end)
{
        while (at < end && is_space(*at))
                at++;
        return at;
}

/* Bytes of which the names consist that matter here. */
static const bool in_name[256] = {['a' ... 'z'] = true, ['A' ... 'Z'] = true, ['0' ... '9'] = true,
                                  ['_'] = true,         ['-'] = true,         ['.'] = true};

/* "name": and what blanks are around it; behind it, or NULL. */
static const char *flat_name(const char *at, const char *end, struct engine_flat_member *member)
{
        if (at == end || *at != '"')
                return NULL;
        member->name = ++at;
        while (at < end && in_name[(unsigned char)*at])
                at++;
        if (at == end || *at != '"')
                return NULL;
        member->name_len = (uint32_t)(at - member->name);
        at = skip_spaces(at + 1, end);
        return at < end && *at == ':' ? skip_spaces(at + 1, end) : NULL;
}

/* A whole number or null; behind it, or NULL. */
static const char *flat_count(const char *at, const char *end, struct engine_flat_member *member)
{
        const char *first = at;

        member->count = 0;
        for (; at < end && *at >= '0' && *at <= '9'; at++) {
                if (at - first == FLAT_DIGITS_MAX)
                        return NULL;
                member->count = member->count * 10 + (*at - '0');
        }
        if (at > first)
                return *first == '0' && at - first > 1 ? NULL : at;
        if (end - at < 4 || memcmp(at, "null", 4) != 0)
                return NULL;
        member->count = -1;
        return at + 4;
}

/* What follows a value: commas and ends of objects. Behind it, or NULL; *of 0 and at the end: all is read. */
static const char *flat_behind(const char *at, const char *end, uint32_t *of, bool *ret_done)
{
        for (;;) {
                at = skip_spaces(at, end);
                if (at == end)
                        return NULL;
                if (*at == ',')
                        return skip_spaces(at + 1, end);
                if (*at++ != '}')
                        return NULL;
                if (*of == 0) {
                        *ret_done = true;
                        return at == end ? at : NULL;
                }
                *of = 0;
        }
}

/* False: it is not of this form. */
bool engine_flat_read(const char *text, size_t len, struct engine_flat *ret)
{
        const char *at = text, *end = text + len;
        bool done = false;
        uint32_t of = 0;

        ret->count = 0;
        if (len == 0 || *at != '{')
                return false;
        at = skip_spaces(at + 1, end);
        while (!done) {
                struct engine_flat_member *member = &ret->members[ret->count];

                if (ret->count == ENGINE_FLAT_MEMBERS_MAX)
                        return false;
                at = flat_name(at, end, member);
                if (!at)
                        return false;
                member->of = of;
                ret->count++;
                member->object = at < end && *at == '{';
                if (member->object) {
                        if (of)
                                return false;
                        of = ret->count;
                        member->count = -1;
                        at = skip_spaces(at + 1, end);
                        if (at == end || *at != '}')
                                continue;
                } else {
                        at = flat_count(at, end, member);
                        if (!at)
                                return false;
                }
                at = flat_behind(at, end, &of, &done);
                if (!at)
                        return false;
        }
        return true;
}

static const struct engine_flat_member *flat_find(struct engine_object object, const char *name)
{
        size_t len = strlen(name);

        for (uint32_t i = 0; i < object.flat->count; i++) {
                const struct engine_flat_member *member = &object.flat->members[i];

                if (member->of == object.of && member->name_len == len &&
                    memcmp(member->name, name, len) == 0)
                        return member;
        }
        return NULL;
}

struct engine_object engine_object_of(struct engine_object object, const char *name)
{
        const struct engine_flat_member *member;

        if (!object.flat)
                return (struct engine_object){.val = yyjson_obj_get(object.val, name)};
        member = flat_find(object, name);
        return member && member->object
                       ? (struct engine_object){NULL, object.flat,
                                                (uint32_t)(member - object.flat->members) + 1}
                       : (struct engine_object){0};
}

int64_t engine_object_count(struct engine_object object, const char *name)
{
        if (object.flat) {
                const struct engine_flat_member *member = flat_find(object, name);

                return member ? member->count : -1;
        }
        yyjson_val *val = yyjson_obj_get(object.val, name);

        if (yyjson_is_uint(val)) {
                uint64_t n = yyjson_get_uint(val);

                return n <= (uint64_t)ENGINE_COUNT_MAX ? (int64_t)n : -1;
        }
        if (yyjson_is_real(val)) {
                double d = yyjson_get_real(val);

                return d >= 0 && d <= (double)ENGINE_COUNT_MAX && d == floor(d) ? (int64_t)d : -1;
        }
        return -1;
}
