/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prompt identity: from the bytes of a request to the keys of its prefixes.
 *
 * A prompt is the reusable part of a request in canonical order: namespace (model, adapter, salt), then
 * tools, then system prompt and messages (or text, or token ids) in order. The canonical stream is cut at
 * *points*; the key of a point is a chained 64-bit XXH3 over everything before it, so equal keys mean equal
 * prefixes (up to hash collisions) in the same namespace under the same seed.
 *
 * Where the points lie depends on the bytes before them alone, so two prompts that share a prefix share its
 * points:
 *   - on a grid over the stream whose step grows with the depth (1/32 of it, at least 256 bytes; 32 token
 * ids), so that resolution stays about constant and a prompt of any legal size has at most KVR_POINTS_MAX
 * points;
 *   - at the end of the tools, of each message, and of the prompt.
 *
 *     stream  |tools......|system...|user......|assistant....|user....|
 *     points   +  +  +  + +  +  +   +  +  +  + +   +   +   + +   +    +     (grid and ends)
 *
 * The same content in another JSON spelling (white space, order of object keys in messages, \u escapes, a
 * string or an array of one text part) gives the same keys; different content never does, short of a
 * collision of 64-bit hashes. docs/prompt-identity.md says which fields count, in which order, and what is
 * refused or passed on without keys.
 */
#ifndef KVROUTE_PROMPT_H
#define KVROUTE_PROMPT_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVR_POINTS_MAX \
        4096 /* points of one prompt; message ends beyond it are left out, grid points come first */
#define KVR_PROMPT_IDS_MAX  2097152          /* token ids of one prompt that are looked at */
#define KVR_JSON_DEPTH_MAX  512              /* nesting of a request body */
#define KVR_BODY_MAX        ((1u << 29) - 1) /* bytes of a request body */
#define KVR_GRID_MIN_BYTES  256              /* first step of the grid over text */
#define KVR_GRID_MIN_TOKENS 32               /* first step of the grid over token ids */
#define KVR_MEDIA_BYTES \
        4096 /* units that an image, audio or file counts besides its hash: about 1,000 tokens */
#define KVR_IGNORE_PATTERNS_MAX 16  /* of a kvr_ignore */
#define KVR_IGNORE_TEXT_MAX     64  /* bytes of an after:TEXT */
#define KVR_MEDIA_COUNTED_MAX   256 /* media of one prompt beyond this count only their hash */

/* The request forms whose prompts are understood. Others are routed by load (KVR_API_OTHER). */
enum kvr_api {
        KVR_API_OTHER,
        KVR_API_CHAT,        /* /v1/chat/completions */
        KVR_API_COMPLETIONS, /* /v1/completions: string, array of strings, token ids, array of token ids */
        KVR_API_RESPONSES,   /* /v1/responses */
        KVR_API_MESSAGES,    /* /v1/messages (Anthropic) */
        KVR_API_EMBEDDINGS,  /* /v1/embeddings */
        KVR_API_LLAMACPP,    /* /completion, /completions of llama.cpp */
        KVR_API_SGLANG,      /* /generate of SGLang */
};

/*
 * The form a request path (without query) stands for. "/chat/completions" and the like without /v1 count too.
 */
KVR_PUBLIC enum kvr_api kvr_api_of_path(struct kvr_slice path);
KVR_PUBLIC const char *kvr_api_name(enum kvr_api api);

enum kvr_unit {
        KVR_UNIT_BYTES,  /* `end` counts bytes of the canonical stream */
        KVR_UNIT_TOKENS, /* `end` counts token ids: the prompt came as ids */
};

/* One prefix of a prompt. */
struct kvr_point {
        uint64_t key; /* of the whole prefix that ends here; never 0 */
        uint32_t end; /* units of that prefix; strictly rising */
};

/* Where the text of a prompt lies. */
struct kvr_prompt_text;

/* What one request says about itself. Slices and points live in the parser until its next use. */
struct kvr_prompt {
        enum kvr_api api;
        enum kvr_unit unit;
        uint32_t units;       /* size of the prompt: end of the last point */
        uint32_t point_count; /* 0: nothing to match, route by load and hint */
        const struct kvr_point *points;
        uint64_t space; /* hash of the namespace */
        /* The prompt as ids, when it came so (KVR_UNIT_TOKENS): the first of them, as far as they are kept. */
        const uint32_t *ids;
        uint32_t id_count; /* at most KVR_PROMPT_IDS_MAX */
        /* Of a prompt that is one text: lets a decision by engine events look between the points. Lives as they do,
         * and needs the body. NULL: none. */
        const struct kvr_prompt_text *text;
        /*
         * False: equal keys may stand for different token ids, or the same ids for different cache entries,
         * so that nothing can be learned of its tokens (images and other media, extra_key, adapters by list).
         */
        bool mappable;
        struct kvr_slice salt;        /* as the engine gets it: the options' salt, else cache_salt */
        struct kvr_slice adapter;     /* lora_path, the first one; empty if absent */
        struct kvr_slice model;       /* as the client wrote it (decoded); empty if absent or null */
        struct kvr_slice hint;        /* prompt_cache_key, else session_id, else user (metadata.user_id for
                                         messages), else made with kvr_prompt_options.ignore; may be
                                         empty */
        struct kvr_slice previous_id; /* previous_response_id or conversation id; may be empty */
        uint32_t max_tokens;          /* the request's own output limit; 0 unknown */
        uint32_t prompt_count; /* prompts in the request (an array has several, or none); points are the
                                  first's */
        uint32_t choices; /* n; 1 by default. With choices or prompt_count > 1 usage says nothing of hits */
        bool stream;
        bool usage_asked;        /* stream_options.include_usage is true */
        bool has_stream_options; /* stream_options is present and not null */
        uint32_t body_insert; /* offset just behind the body's first '{': where a member may be inserted; 0:
                               * no object (KVR_API_OTHER only) */
        uint32_t stream_options_null; /* offset of the `null` that stands for stream_options, else 0 */
        uint32_t usage_denied; /* offset of the `false` or `null` that stands for include_usage, else 0 */
        uint32_t stream_options_insert; /* offset just behind the '{' of stream_options; 0: absent, or no
                                           object (leave it) */
        bool body_empty_object;         /* the body is {} (no comma after an inserted member) */
        bool stream_options_empty;
        int32_t priority; /* `priority`, lower is more urgent; 0 by default */
};

/*
 * Patterns of what changes with every request near the top of prompts and says nothing of whose they are. Where
 * the request names no session itself, kvr_prompt.hint is then made from the beginning of the conversation, up to
 * the user's first message, without what they match, so that its turns can be kept together. Keys do not
 * depend on it, as engines do not share their caches beyond such a place, nor do the request's bytes.
 *
 *     timestamp    2026-12-01, 05:06:07.123Z, both with T or a blank between, seconds or ms since 1970
 *     uuid         8-4-4-4-12 hex digits
 *     number       every run of digits
 *     hex:N        a word of N hex digits or more; N is at least 8
 *     after:TEXT   letters, digits and any of - _ . + behind TEXT, as it stands in JSON
 */
struct kvr_ignore;

/* Gives a set to free with kvr_ignore_free; any number of threads may use it. KVR_E_ARGUMENT: err says which
 * is no pattern. KVR_E_NOMEM. */
KVR_PUBLIC KVR_MUST_USE enum kvr_status kvr_ignore_new(const struct kvr_slice *patterns, size_t count,
                                                       struct kvr_ignore **ret, struct kvr_error *err);
KVR_PUBLIC void kvr_ignore_free(struct kvr_ignore *ignore); /* NULL is fine */

struct kvr_prompt_options {
        const struct kvr_ignore *ignore; /* NULL: none. Costs nothing then */
        uint64_t seed;                   /* of the deployment: equal seeds give equal keys */
        struct kvr_slice
                salt; /* when set, stands in place of the request's cache_salt (per-tenant separation) */
        /*
         * Maps the client's model name to the one that caches are kept under (an alias to its target). NULL:
         * identity. Borrows `model`; the result must live until the call returns.
         */
        struct kvr_slice (*resolve_model)(void *ctx, struct kvr_slice model);
        void *resolve_ctx;
};

/*
 * A parser owns reusable memory; after a few requests it allocates no more. Owner thread only; make one per
 * thread. Its memory is bounded by a small multiple of the largest body it was given, and 8 MiB of what it
 * has read: where a body begins like earlier ones, that part is hashed and not read again. What comes out
 * does not depend on it.
 */
struct kvr_parser;

KVR_PUBLIC KVR_MUST_USE struct kvr_parser *kvr_parser_new(void); /* NULL when out of memory */
KVR_PUBLIC void kvr_parser_free(struct kvr_parser *parser);      /* NULL is fine */

/*
 * Reads one request body (borrowed for the call and, for slices of the result, until the next call: keep it
 * alive). Cost: one pass over the body, about 0.1 ns a byte for long strings plus the hash. KVR_OK
 * *ret_prompt is filled. A body that the engine might accept but that cannot be keyed
 *                       (docs/prompt-identity.md lists the cases) gives point_count 0. KVR_API_OTHER always
 * ends here (or with KVR_E_NOMEM): its body may be anything, and is read as far as it is a JSON object.
 * KVR_E_JSON            not one JSON document, or not an object; err->offset tells where.
 * KVR_E_REQUEST         a field that is read is there twice or has a type no engine accepts; err->field names
 * it. KVR_E_LIMIT           nesting or size over the limits above; err->offset tells where the nesting is.
 * KVR_E_ARGUMENT        api is none of the enum. `options` may be NULL for all zero.
 * KVR_E_NOMEM
 */
KVR_PUBLIC KVR_MUST_USE enum kvr_status kvr_prompt_parse(struct kvr_parser *parser, enum kvr_api api,
                                                         struct kvr_slice body,
                                                         const struct kvr_prompt_options *options,
                                                         struct kvr_prompt *ret_prompt,
                                                         struct kvr_error *err);

#ifdef __cplusplus
}
#endif

#endif
