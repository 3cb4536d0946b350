/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/1.1 messages as bytes in, spans out. No file descriptors, no allocation: spans point into the caller's
 * buffer. Parsing is llhttp's in its strict mode; on top of it this module bounds sizes, refuses what a proxy
 * must not guess about (both Content-Length and Transfer-Encoding, repeated Content-Length), and gathers what
 * the proxy acts on.
 *
 *   http1_init ──► http1_head (MORE* , DONE) ──► http1_body (MORE*, DONE) ──► http1_init for the next message
 *                                                  └► http1_eof when the peer closed
 */
#ifndef KVROUTE_HTTP1_H
#define KVROUTE_HTTP1_H

#include <kvroute/base.h>
#include <llhttp.h>
#include <string.h>
#include <strings.h>

#define HTTP1_FIELDS_MAX     128         /* header fields of one message */
#define HTTP1_HEAD_BYTES_MAX (64 * 1024) /* start line and header fields */

enum http1_kind {
        HTTP1_REQUEST,
        HTTP1_RESPONSE,
};

enum http1_result {
        HTTP1_DONE,      /* complete; *ret_used bytes belong to it */
        HTTP1_MORE,      /* fine so far, needs more bytes */
        HTTP1_BAD,       /* malformed: answer 400 (or 502 for a response) and close */
        HTTP1_TOO_LARGE, /* head over its limits: answer 431 and close */
};

struct http1_field {
        struct kvr_slice name; /* as written; compare with http1_is */
        struct kvr_slice value;
};

struct http1_head {
        struct kvr_slice method, target; /* request */
        struct kvr_slice path, query;    /* of the target: query without '?', may be empty */
        uint16_t status;                 /* response */
        struct kvr_slice reason;         /* response: reason phrase */
        uint8_t minor;                   /* HTTP/1.minor */
        bool chunked;
        bool keep_alive;        /* what the sender allows, by version and Connection */
        bool expect_continue;   /* request */
        bool upgrade;           /* Connection: upgrade with an Upgrade field (request), or 101 (response) */
        bool no_body;           /* response that has none by its status or request (204, 304, 1xx, HEAD) */
        bool has_connection;    /* a Connection field is there, which may name further hop-by-hop fields */
        int64_t content_length; /* -1: not given */
        uint32_t field_count;
        struct http1_field fields[HTTP1_FIELDS_MAX];
};

struct http1_parser {
        llhttp_t llhttp;         /* set up when a head is not plain (http1_plain.h) */
        struct http1_head *head; /* during http1_head only */
        void (*sink)(void *ctx, const char *data, size_t len);
        void *sink_ctx;
        const char *error; /* constant text after HTTP1_BAD or HTTP1_TOO_LARGE, else NULL */
        bool head_request; /* response to HEAD: has no body */
        bool complete;
        bool overflow;
        bool head_complete;
        bool plain;    /* the head was, and llhttp knows nothing of the message */
        bool no_plain; /* for tests: everything goes through llhttp; to be set behind http1_init */
        enum http1_kind kind;
        uint64_t left; /* bytes of body to come, if plain */
};

void http1_init(struct http1_parser *parser, enum http1_kind kind);
/* A parser knows its own address: a copy goes on in its place only after this. */
void http1_move(struct http1_parser *parser, const struct http1_parser *from);

/*
 * Parses a head that starts at buf. Needs it whole and contiguous: on HTTP1_MORE call again with more bytes
 * behind the same start. DONE: *ret_head points into buf, *ret_used is its length. A response parser must
 * have head_request set beforehand if the request was HEAD. Empty lines before a request are skipped (RFC
 * 9112 section 2.2).
 */
KVR_MUST_USE enum http1_result http1_head(struct http1_parser *parser, const char *buf, size_t len,
                                          struct http1_head *ret_head, size_t *ret_used);

/*
 * Feeds body bytes; calls sink(ctx, span) for each piece of content (chunk framing removed, trailers
 * dropped). DONE: the message ends after *ret_used bytes (which may be 0: a message without a body). MORE:
 * all were used.
 */
KVR_MUST_USE enum http1_result http1_body(struct http1_parser *parser, const char *buf, size_t len,
                                          void (*sink)(void *ctx, const char *data, size_t len), void *ctx,
                                          size_t *ret_used);

/* The peer closed: true if that ends the message properly (a response without length), false if it is cut. */
bool http1_eof(struct http1_parser *parser);

/* Whether four, or eight, bytes of a name are those of a lower-case one. Letters, digits and - alone have the bit
 * that is set here or get it without becoming another byte of a name. */
static inline bool http1_same4(const char *a, const char *lower)
{
        uint32_t x, y;

        memcpy(&x, a, sizeof x);
        memcpy(&y, lower, sizeof y);
        return (x | 0x20202020u) == y;
}
static inline bool http1_same8(const char *a, const char *lower)
{
        uint64_t x, y;

        memcpy(&x, a, sizeof x);
        memcpy(&y, lower, sizeof y);
        return (x | 0x2020202020202020u) == y;
}

/*
 * Field names compare without case. `name` is lower case, of letters, digits and -, and has two bytes at least.
 * Inline, so that a literal's length is known when it compiles: then a few comparisons of whole words are left.
 */
static inline bool http1_is(struct kvr_slice field_name, const char *name)
{
        const char *a = field_name.data;
        size_t len = strlen(name);

        if (field_name.len != len)
                return false;
        if (len < 4)
                return strncasecmp(a, name, len) == 0;
        if (len < 8)
                return http1_same4(a, name) && http1_same4(a + len - 4, name + len - 4);
        for (size_t at = 0; at + 8 <= len; at += 8)
                if (!http1_same8(a + at, name + at))
                        return false;
        return len % 8 == 0 || http1_same8(a + len - 8, name + len - 8);
}
/* First field of that name, or NULL. */
const struct http1_field *http1_find(const struct http1_head *head, const char *name);
/* Whether a comma-separated list (all fields of that name) has this token, without case. */
bool http1_list_has(const struct http1_head *head, const char *name, const char *token);
/* Fields between two hops only (RFC 9110 7.6.1), including those that Connection names: never forwarded. */
bool http1_hop_by_hop(const struct http1_head *head, struct kvr_slice name);

#endif
