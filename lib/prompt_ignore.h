/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A name for a conversation whose beginning changes with every request: a clock, a counter, a checksum near
 * the top. What the patterns match is left out of the name; keys and bytes stay as they are.
 *
 *     |system: You are ... 05:06:07 ... cch=1a2b3; ...|user: first question|assistant ...|user ...
 *      └──────────── masked, then hashed ────────────────────────────────┘ the name of all its turns
 *
 * Keys are not masked, for an engine does not share its cache beyond the spot that changes: a match that went
 * on behind it would be promised and not kept. The name stands where a session key would (kvr_prompt.hint):
 * it keeps the turns together, which is worth something where the engine can use text again behind a
 * difference, and decides between equals elsewhere. Only the beginning is looked at.
 */
#ifndef KVROUTE_LIB_PROMPT_IGNORE_H
#define KVROUTE_LIB_PROMPT_IGNORE_H

#include "lib/prompt_parser.h"

#define KVR__IGNORE_BYTES      65536u /* of a conversation's beginning that are looked at */
#define KVR__IGNORE_TEXT_BYTES 4096u  /* of a prompt that is one text: it may grow at its end */

enum kvr__ignore_kind {
        KVR__IGNORE_TIMESTAMP,
        KVR__IGNORE_UUID,
        KVR__IGNORE_NUMBER,
        KVR__IGNORE_HEX,
        KVR__IGNORE_AFTER,
};

struct kvr__ignore_pattern {
        enum kvr__ignore_kind kind;
        uint32_t len; /* HEX: least number of digits; AFTER: of the text */
        char text[KVR_IGNORE_TEXT_MAX];
};

struct kvr_ignore {
        struct kvr__ignore_pattern patterns[KVR_IGNORE_PATTERNS_MAX];
        uint32_t count;
        bool begins[256]; /* bytes that some pattern can begin with */
};

/* The text without what the patterns match, a zero byte in its place. ret has room for text.len + 1 bytes. */
size_t kvr__ignore_mask(const struct kvr_ignore *ignore, struct kvr_slice text, char *ret);

/* Sets ret->hint, if the request has something to make a name of. False when out of memory. */
KVR_MUST_USE bool kvr__ignore_hint(struct kvr_parser *parser, const struct kvr_ignore *ignore,
                                   struct kvr_prompt *ret);

#endif
