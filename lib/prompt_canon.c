/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/prompt_canon.h"

#include <string.h>

/* A string token in canonical spelling. *ret_stays: it lies in the body, else in the scratch buffer. */
static struct kvr_slice canonical(struct kvr_parser *parser, uint32_t token, bool *ret_stays)
{
        struct kvr_slice raw = kvr__json_text(&parser->json, token);

        *ret_stays = kvr__json_type(&parser->json, token) == KVR__JSON_STRING;
        if (*ret_stays)
                return raw;
        parser->scratch.len = 0;
        if (!kvr__buffer_reserve(&parser->scratch, (uint32_t)raw.len)) {
                parser->stream.failed = true;
                return (struct kvr_slice){0};
        }
        return (struct kvr_slice){parser->scratch.data,
                                  kvr__json_canonical(raw.data, (uint32_t)raw.len, parser->scratch.data)};
}

struct kvr_slice kvr__canon_text(struct kvr_parser *parser, uint32_t token)
{
        bool stays;
        struct kvr_slice text = canonical(parser, token, &stays);

        if (stays)
                kvr__stream_lend(&parser->stream, text.data, (uint32_t)text.len);
        else
                kvr__stream_copy(&parser->stream, text.data, (uint32_t)text.len);
        return text;
}

static void put_char(struct kvr_parser *parser, char c)
{
        kvr__stream_byte(&parser->stream, c);
}

static void put_digest(struct kvr_parser *parser, struct kvr_slice text)
{
        struct kvr__digest digest = kvr__hash128(&parser->hash, text.data, text.len);
        char bytes[16];

        for (unsigned i = 0; i < 8; i++) {
                bytes[i] = (char)(digest.low >> 8 * i);
                bytes[8 + i] = (char)(digest.high >> 8 * i);
        }
        kvr__stream_tag(&parser->stream, KVR__TAG_DIGEST);
        kvr__stream_copy(&parser->stream, bytes, sizeof(bytes));
}

/* A value that is no container. */
static void put_scalar(struct kvr_parser *parser, uint32_t token, bool digest)
{
        struct kvr_slice text;
        bool stays = true;

        if (!kvr__json_is_string(&parser->json, token)) {
                text = kvr__json_text(&parser->json, token);
                kvr__stream_lend(&parser->stream, text.data, (uint32_t)text.len);
                return;
        }
        text = canonical(parser, token, &stays);
        if (digest && text.len > KVR__DIGEST_ABOVE) {
                put_digest(parser, text);
        } else if (stays) {
                kvr__stream_lend(&parser->stream, text.data - 1,
                                 (uint32_t)text.len + 2); /* with its quotes */
        } else {
                put_char(parser, '"');
                kvr__stream_copy(&parser->stream, text.data, (uint32_t)text.len);
                put_char(parser, '"');
        }
}

/* Which of the open containers are objects, one bit each. */
struct nesting {
        uint64_t objects[KVR_JSON_DEPTH_MAX / 64];
        uint32_t depth;
};

static void nest(struct nesting *nesting, bool object)
{
        uint64_t bit = 1ull << nesting->depth % 64;
        uint64_t *word = &nesting->objects[nesting->depth++ / 64];

        *word = object ? *word | bit : *word & ~bit;
}

static bool in_object(const struct nesting *nesting)
{
        uint32_t top = nesting->depth - 1;

        return nesting->depth && nesting->objects[top / 64] >> top % 64 & 1;
}

/* A container, token by token. */
static void walk(struct kvr_parser *parser, uint32_t token, bool digest)
{
        const struct kvr__json *json = &parser->json;
        uint32_t end = kvr__json_next(json, token);
        struct nesting nesting = {0};
        bool comma = false; /* a value stands before this one in its container */
        bool value = false; /* a key stands before */

        while (token < end) {
                enum kvr__json_type type = kvr__json_type(json, token);

                if (type == KVR__JSON_END && nesting.depth) {
                        put_char(parser, in_object(&nesting) ? '}' : ']');
                        nesting.depth--;
                        comma = true;
                        token++;
                        continue;
                }
                if (value)
                        put_char(parser, ':');
                else if (comma)
                        put_char(parser, ',');
                if (type > KVR__JSON_ARRAY) {
                        bool key = in_object(&nesting) && !value;

                        put_scalar(parser, token, digest && !key);
                        value = key;
                        comma = true;
                } else if (!digest && kvr__json_is_compact(json, token)) {
                        struct kvr_slice text = kvr__json_text(json, token);

                        kvr__stream_lend(&parser->stream, text.data, (uint32_t)text.len);
                        token = kvr__json_end(json, token);
                        value = false;
                        comma = true;
                } else {
                        put_char(parser, type == KVR__JSON_OBJECT ? '{' : '[');
                        nest(&nesting, type == KVR__JSON_OBJECT);
                        value = false;
                        comma = false;
                }
                token++;
        }
}

void kvr__canon_value(struct kvr_parser *parser, uint32_t token, bool digest)
{
        if (kvr__json_is_container(&parser->json, token))
                walk(parser, token, digest);
        else
                put_scalar(parser, token, digest);
}

/* ---- sorted ---- */

struct member {
        struct kvr_slice key; /* canonical */
        uint32_t value;
};

static bool is_named(const struct member *member, const char *name)
{
        return member->key.len == strlen(name) && !memcmp(member->key.data, name, member->key.len);
}

/* The key of the member at `token`, canonical; kept in parser->keys when it is spelled otherwise. */
static struct kvr_slice key_of(struct kvr_parser *parser, uint32_t token)
{
        struct kvr_slice raw = kvr__json_text(&parser->json, token);
        struct kvr__buffer *keys = &parser->keys;
        uint32_t len;

        if (kvr__json_type(&parser->json, token) == KVR__JSON_STRING)
                return raw;
        len = kvr__json_canonical(raw.data, (uint32_t)raw.len, keys->data + keys->len);
        raw = (struct kvr_slice){keys->data + keys->len, len};
        keys->len += len;
        return raw;
}

static bool is_before(const struct kvr_slice *a, const struct kvr_slice *b)
{
        int order = memcmp(a->data, b->data, a->len < b->len ? a->len : b->len);

        return order ? order < 0 : a->len < b->len;
}

/*
 * The members in the order to write them, without the skipped. Returns how many; all fit in KVR__SORTED_MAX.
 */
static uint32_t sort_members(struct kvr_parser *parser, uint32_t object, const struct kvr__canon_rule *rule,
                             struct member *members)
{
        const struct kvr__json *json = &parser->json;
        uint32_t end = kvr__json_end(json, object);
        uint32_t count = 0;

        for (uint32_t key = object + 1; key < end; key = kvr__json_next(json, key + 1)) {
                struct member member = {key_of(parser, key), key + 1};
                uint32_t at = count;
                bool skipped = false;

                for (const char *const *name = rule->skip; *name && !skipped; name++)
                        skipped = is_named(&member, *name);
                if (skipped)
                        continue;
                for (; at && is_before(&member.key, &members[at - 1].key); at--)
                        members[at] = members[at - 1];
                members[at] = member;
                count++;
        }
        return count;
}

static bool fits_sorting(const struct kvr__json *json, uint32_t object)
{
        uint32_t end = kvr__json_end(json, object);
        uint32_t count = 0;

        for (uint32_t key = object + 1; key < end; key = kvr__json_next(json, key + 1))
                if (++count > KVR__SORTED_MAX)
                        return false;
        return true;
}

static void put_sorted(struct kvr_parser *parser, uint32_t object, const struct kvr__canon_rule *rule)
{
        const struct kvr__canon_rule inner = {.digest = rule->digest};
        struct member members[KVR__SORTED_MAX];
        uint32_t count;

        if (!fits_sorting(&parser->json, object)) {
                walk(parser, object, rule->digest);
                return;
        }
        count = sort_members(parser, object, rule, members);
        put_char(parser, '{');
        for (uint32_t i = 0; i < count; i++) {
                struct kvr_slice key = members[i].key;
                uint32_t value = members[i].value;

                if (i)
                        put_char(parser, ',');
                put_char(parser, '"');
                kvr__stream_copy(&parser->stream, key.data, (uint32_t)key.len);
                kvr__stream_copy(&parser->stream, "\":", 2);
                if (rule->sub && kvr__json_type(&parser->json, value) == KVR__JSON_OBJECT &&
                    (rule->sub[0] == '*' || is_named(&members[i], rule->sub)))
                        put_sorted(parser, value, &inner);
                else
                        kvr__canon_value(parser, value, rule->digest);
        }
        put_char(parser, '}');
}

void kvr__canon_sorted(struct kvr_parser *parser, uint32_t token, const struct kvr__canon_rule *rule)
{
        if (kvr__json_type(&parser->json, token) != KVR__JSON_OBJECT) {
                kvr__canon_value(parser, token, rule->digest);
                return;
        }
        /* Room for all keys of this object and of the one level below, so that none of them moves. */
        parser->keys.len = 0;
        if (!kvr__buffer_reserve(&parser->keys, (uint32_t)kvr__json_text(&parser->json, token).len)) {
                parser->stream.failed = true;
                return;
        }
        put_sorted(parser, token, rule);
}
