/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside engine/ only: small JSON objects of token counts.
 *
 * What nearly all engines write as usage is an object of whole numbers, of null, and of objects of these. It
 * is read here, at a fifth of what a parser's start and end cost; whatever else is in it leaves the whole of
 * it to yyjson. Both readings are asked in the same way.
 */
#ifndef KVROUTE_ENGINE_USAGE_OBJECT_H
#define KVROUTE_ENGINE_USAGE_OBJECT_H

#include <kvroute/base.h>
#include <yyjson.h>

#define ENGINE_COUNT_MAX        (1ll << 50)
#define ENGINE_FLAT_MEMBERS_MAX 24

struct engine_flat_member {
        const char *name;
        uint32_t name_len;
        uint32_t of;   /* the object it is in: 0 the outer one, else the number of its member + 1 */
        bool object;   /* else a number or null */
        int64_t count; /* -1: null */
};

struct engine_flat {
        uint32_t count;
        struct engine_flat_member members[ENGINE_FLAT_MEMBERS_MAX];
};

/* An object of either reading; all zero: none. */
struct engine_object {
        yyjson_val *val;
        const struct engine_flat *flat;
        uint32_t of;
};

/* False: there is more in it than such members. Borrows the text. */
KVR_MUST_USE bool engine_flat_read(const char *text, size_t len, struct engine_flat *ret);
/* The member that is an object; none if there is no such one. */
struct engine_object engine_object_of(struct engine_object object, const char *name);
/* A token count: a whole number in range, else -1. */
int64_t engine_object_count(struct engine_object object, const char *name);

#endif
