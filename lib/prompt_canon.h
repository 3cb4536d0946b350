/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON values in one spelling, into the stream: no white space, strings canonical (json_scan.h), numbers as
 * written, members in the order written or sorted by key.
 */
#ifndef KVROUTE_LIB_PROMPT_CANON_H
#define KVROUTE_LIB_PROMPT_CANON_H

#include "lib/prompt_parser.h"

#define KVR__SORTED_MAX   32 /* objects with more members keep the order written */
#define KVR__DIGEST_ABOVE 64 /* in media, strings longer than this stand as a digest */

/* How to write an object whose member order says nothing. */
struct kvr__canon_rule {
        const char *skip[4]; /* members left out; ends with NULL */
        const char *sub;     /* the member whose object is sorted too; "*": all of them */
        bool digest;         /* long strings as KVR__TAG_DIGEST and 16 bytes */
};

/* The text of a string, without quotes. What was written: it lies in the body, or in the parser until the next
 * string. */
struct kvr_slice kvr__canon_text(struct kvr_parser *parser, uint32_t token);
/* Any value, members in the order written. */
void kvr__canon_value(struct kvr_parser *parser, uint32_t token, bool digest);
/* Any value; if it is an object, its members by key. Equal keys keep their order. */
void kvr__canon_sorted(struct kvr_parser *parser, uint32_t token, const struct kvr__canon_rule *rule);

#endif
