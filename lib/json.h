/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A JSON document as a flat array of tokens, in the order of the text. Nothing is copied: a token says where
 * its bytes are. A container's token knows its END token, so that a reader can step over it.
 *
 *     {"a":[1,2],"b":"x"}    OBJECT→9  STRING a  ARRAY→5  NUMBER 1  NUMBER 2  END  STRING b  STRING x  END
 *
 * The grammar is RFC 8259's, with four things more that an engine behind may read, each of which sets a flag:
 * raw bytes that are not UTF-8, \u escapes of half a surrogate pair, NaN and the infinities, and a byte order
 * mark in front.
 */
#ifndef KVROUTE_LIB_JSON_H
#define KVROUTE_LIB_JSON_H

#include "kvroute/base.h"
#include "lib/json_scan.h"

#define KVR__JSON_LENGTH_MAX (1u << 29) /* offsets must leave three bits for the type */

enum kvr__json_type {
        KVR__JSON_OBJECT,
        KVR__JSON_ARRAY,
        KVR__JSON_STRING,   /* in canonical spelling (json_scan.h) */
        KVR__JSON_STRING_X, /* needs kvr__json_canonical */
        KVR__JSON_NUMBER,
        KVR__JSON_LITERAL, /* true, false, null, NaN, Infinity, -Infinity */
        KVR__JSON_END,     /* of an object or array */
};

struct kvr__json_token {
        uint32_t head; /* offset of the first byte (strings: behind the quote) and, in the upper three bits,
                          the type */
        uint32_t arg;  /* containers: number of the END token; END: 1 when the container's text is canonical,
                        * without  white space; else length in bytes */
};

enum {
        KVR__JSON_BAD_UTF8 = 1,
        KVR__JSON_LONE_SURROGATE = 2,
        KVR__JSON_NOT_FINITE = 4,
        KVR__JSON_BOM = 8,
};

/*
 * The reader in front of a value: enough to go on from there in a text that begins alike.
 */
#define KVR__JSON_OPEN_KEPT 8

struct kvr__json_state {
        uint32_t token; /* number of the value's token */
        uint32_t pos;   /* offset of its first byte */
        uint32_t depth; /* containers around it */
        bool dirty;     /* something in the document was not canonical; perhaps only further on */
        uint32_t open[KVR__JSON_OPEN_KEPT]; /* their tokens */
};

/* Zero with `scan` set is ready for use. The token memory is kept for the next document. */
struct kvr__json {
        kvr__scan_fn scan;
        const char *text; /* of the last document, borrowed */
        struct kvr__json_token *tokens;
        uint32_t count;
        uint32_t capacity;
        uint32_t flags;
        bool dirty; /* white space, or strings that are not canonical */
};

/*
 * Reads one document; text must live as long as its tokens are used. No recursion; at most 8 bytes of tokens
 * per 3/2 bytes of text. Fails with
 *     KVR_E_JSON   *ret_offset is where the text stops being JSON
 *     KVR_E_LIMIT  longer than KVR__JSON_LENGTH_MAX, or nested deeper than KVR_JSON_DEPTH_MAX, at *ret_offset
 *     KVR_E_NOMEM
 */
KVR_MUST_USE enum kvr_status kvr__json_read(struct kvr__json *json, struct kvr_slice text,
                                            size_t *ret_offset);
/*
 * The same for a text that begins, up to from->pos, like one that was read without an error or a flag, and of
 * which `tokens` are the first from->token. It gives what kvr__json_read gives, but that containers open at
 * `from` may be said not to be canonical though they are.
 */
KVR_MUST_USE enum kvr_status kvr__json_read_on(struct kvr__json *json, struct kvr_slice text,
                                               const struct kvr__json_state *from,
                                               const struct kvr__json_token *tokens, size_t *ret_offset);
/*
 * Moves *state on to the last value of the document read that begins before `pos` and is not nested
 * deeper than KVR__JSON_OPEN_KEPT. The state all zero is the start.
 */
void kvr__json_state_move(const struct kvr__json *json, struct kvr__json_state *state, uint32_t pos);
void kvr__json_fini(struct kvr__json *json);

static inline enum kvr__json_type kvr__json_type(const struct kvr__json *json, uint32_t token)
{
        return (enum kvr__json_type)(json->tokens[token].head >> 29);
}

static inline uint32_t kvr__json_offset(const struct kvr__json *json, uint32_t token)
{
        return json->tokens[token].head & (KVR__JSON_LENGTH_MAX - 1);
}

static inline int kvr__json_is_container(const struct kvr__json *json, uint32_t token)
{
        return kvr__json_type(json, token) <= KVR__JSON_ARRAY;
}

static inline int kvr__json_is_string(const struct kvr__json *json, uint32_t token)
{
        return (kvr__json_type(json, token) | 1u) == KVR__JSON_STRING_X;
}

/* Number of the END token of a container. Its first member or element is token + 1. */
static inline uint32_t kvr__json_end(const struct kvr__json *json, uint32_t token)
{
        return json->tokens[token].arg;
}

/* The token behind this value. */
static inline uint32_t kvr__json_next(const struct kvr__json *json, uint32_t token)
{
        return (kvr__json_is_container(json, token) ? json->tokens[token].arg : token) + 1;
}

/* The bytes of a value: strings without quotes, as written; containers with both brackets. */
static inline struct kvr_slice kvr__json_text(const struct kvr__json *json, uint32_t token)
{
        uint32_t offset = kvr__json_offset(json, token);

        if (kvr__json_is_container(json, token))
                return (struct kvr_slice){json->text + offset,
                                          kvr__json_offset(json, json->tokens[token].arg) + 1 - offset};
        return (struct kvr_slice){json->text + offset, json->tokens[token].arg};
}

/* True when the container's bytes are its canonical spelling already. */
static inline int kvr__json_is_compact(const struct kvr__json *json, uint32_t token)
{
        return (int)json->tokens[json->tokens[token].arg].arg;
}

static inline int kvr__json_is_null(const struct kvr__json *json, uint32_t token)
{
        return kvr__json_type(json, token) == KVR__JSON_LITERAL &&
               json->text[kvr__json_offset(json, token)] == 'n';
}

/* 1 for true, 0 for false, -1 for anything else. */
static inline int kvr__json_bool(const struct kvr__json *json, uint32_t token)
{
        char c = json->text[kvr__json_offset(json, token)];

        if (kvr__json_type(json, token) != KVR__JSON_LITERAL)
                return -1;
        return c == 't' ? 1 : c == 'f' ? 0 : -1;
}

#endif
