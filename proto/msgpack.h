/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MessagePack: a reader that goes over bytes it borrows, item by item, and a writer that appends to a text. No
 * trees, no allocation by the reader, no recursion: how deep the input nests cannot matter.
 *
 *     item = array of 3        the header is one item; its contents are the next items
 *       item = 1
 *       item = map of 1        key and value are two items
 *         item = "a"
 *         item = nil
 *       item = 2.5
 *
 * A header never promises more items than there are bytes left, so whoever reserves room by a count reserves
 * no more than the sender paid for.
 */
#ifndef KVROUTE_PROTO_MSGPACK_H
#define KVROUTE_PROTO_MSGPACK_H

#include "text.h"

enum msgpack_type {
        MSGPACK_NIL,
        MSGPACK_BOOL,
        MSGPACK_UINT,
        MSGPACK_INT, /* a negative one */
        MSGPACK_FLOAT,
        MSGPACK_STR,
        MSGPACK_BIN,
        MSGPACK_EXT, /* its content is in `bytes`, its kind is not kept */
        MSGPACK_ARRAY,
        MSGPACK_MAP,
};

struct msgpack_item {
        enum msgpack_type type;
        union {
                bool yes;
                uint64_t u;
                int64_t i;
                double f;
                struct kvr_slice bytes; /* STR (any bytes, not checked for UTF-8), BIN, EXT; borrowed */
                uint32_t count;         /* ARRAY: items; MAP: pairs */
        };
};

/* A place in the input. Copied freely, to come back to it. */
struct msgpack_cursor {
        const uint8_t *at, *end;
};

static inline struct msgpack_cursor msgpack_begin(struct kvr_slice bytes)
{
        const uint8_t *at = (const uint8_t *)bytes.data;

        return (struct msgpack_cursor){at, at ? at + bytes.len : at};
}

/* The next item. False: the input ends within it, or it is none; the cursor stays where it was. */
KVR_MUST_USE bool msgpack_next(struct msgpack_cursor *cursor, struct msgpack_item *ret);
/* Passes over one item and all that is in it. False as above. */
KVR_MUST_USE bool msgpack_skip(struct msgpack_cursor *cursor);
static inline bool msgpack_is(const struct msgpack_item *item, const char *word)
{
        return item->type == MSGPACK_STR && item->bytes.len == strlen(word) &&
               memcmp(item->bytes.data, word, item->bytes.len) == 0;
}

/* ---- writing: each item in its shortest form ---- */

void msgpack_write_nil(struct text *out);
void msgpack_write_uint(struct text *out, uint64_t value);
void msgpack_write_int(struct text *out, int64_t value);
void msgpack_write_float(struct text *out, double value);
void msgpack_write_str(struct text *out, struct kvr_slice value);
void msgpack_write_strs(struct text *out, const char *value);
void msgpack_write_bin(struct text *out, const void *value, uint32_t len);
void msgpack_write_array(struct text *out, uint32_t count);
void msgpack_write_map(struct text *out, uint32_t pairs);

#endif
