/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding of compressed request bodies, for routing: bounded in what it writes, whatever the input claims.
 */
#ifndef KVROUTE_ROUTER_DECODE_H
#define KVROUTE_ROUTER_DECODE_H

#include "proto/http1.h"
#include "proto/text.h"

enum decode_coding {
        DECODE_IDENTITY,
        DECODE_GZIP,
        DECODE_DEFLATE,
        DECODE_ZSTD,
        DECODE_UNKNOWN, /* another coding, or several */
};

/* Of a request's Content-Encoding fields. */
enum decode_coding decode_coding_of(const struct http1_head *head);

enum decode_result {
        DECODE_OK,
        DECODE_BAD,       /* not what the coding promises */
        DECODE_TOO_LARGE, /* over `limit` bytes */
        DECODE_NOMEM,
};
/* Appends the decoded bytes to *out. */
KVR_MUST_USE enum decode_result decode_body(enum decode_coding coding, struct kvr_slice in, size_t limit,
                                            struct text *out);

#endif
