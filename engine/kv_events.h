/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decodes batches of KV cache events: msgpack as vLLM, SGLang and TensorRT-LLM publish it over ZeroMQ (arrays
 * and maps, all known ages of them), and the JSON list that TensorRT-LLM gives out over HTTP.
 *
 *     payload ──► batch [ts, events, rank] ──► one call per event:  STORED   to be indexed
 *                                                                   REMOVED, CLEARED
 *                                                                   IGNORED  well-formed, of no use
 *                                                                   BAD      cannot be read
 *
 * Lenient on additions (unknown tags, keys, surplus elements are skipped), bounded on everything (the ports
 * are unauthenticated), and one event that cannot be read never costs its batch. No I/O, no allocation but the
 * decoder's own arrays, which grow to a limit and are used again. Owner thread only.
 *
 * What is indexed is what a request can reuse: blocks of full attention whose tokens are told. A model with
 * several groups of layers tells about each of them; the first full-attention group seen is the one that
 * counts, since a removal names a group but not its kind (struct engine_event_view keeps which that is).
 */
#ifndef KVROUTE_ENGINE_KV_EVENTS_H
#define KVROUTE_ENGINE_KV_EVENTS_H

#include "kvroute/events.h"

#define ENGINE_EVENT_BATCH_MAX  (64U << 20) /* bytes of one batch */
#define ENGINE_EVENTS_MAX       1000000     /* events of one batch */
#define ENGINE_EVENT_HASHES_MAX 1048576     /* blocks of one event; told in parts of KVR_EVENT_BLOCKS_MAX */
#define ENGINE_EVENT_TOKENS_MAX KVR_PROMPT_IDS_MAX
#define ENGINE_EVENT_NAME_MAX   1024 /* bytes of a tag, adapter or salt */

enum engine_event_kind {
        ENGINE_EVENT_STORED,
        ENGINE_EVENT_REMOVED,
        ENGINE_EVENT_CLEARED,
        ENGINE_EVENT_IGNORED,
        ENGINE_EVENT_BAD,
};

/* Reasons for IGNORED and BAD, as words for a metric's label. */
#define ENGINE_EVENT_WHY_LIST(X)                                                                \
        X(TAG, "tag")         /* ignored: a kind of event that is not known */                  \
        X(GROUP, "group")     /* ignored: layers from which alone nothing can be resumed */     \
        X(OFFLOAD, "offload") /* ignored: a lower tier told hashes without tokens */            \
        X(REMOTE, "remote")   /* ignored: lies on another machine */                            \
        X(MEDIUM, "medium")   /* ignored: lies on something unknown */                          \
        X(LENGTH, "length")   /* ignored: tokens are not hashes times block size */             \
        X(PARTIAL, "partial") /* ignored: a block that is not full (TensorRT-LLM) */            \
        X(EMPTY, "empty")     /* ignored: of no block */                                        \
        X(TYPE, "type")       /* bad: something is not of the type it must be, or is missing */ \
        X(LIMIT, "limit")     /* bad: more of something than the limits above */                \
        X(MEMORY, "memory")   /* bad: none left */
enum engine_event_why {
        ENGINE_EVENT_FINE,
#define ENGINE_EVENT_WHY_ENUM(code, name) ENGINE_EVENT_##code,
        ENGINE_EVENT_WHY_LIST(ENGINE_EVENT_WHY_ENUM)
#undef ENGINE_EVENT_WHY_ENUM
                ENGINE_EVENT_WHYS,
};
const char *engine_event_why_name(enum engine_event_why why);

struct engine_event {
        enum engine_event_kind kind;
        struct kvr_blocks_stored stored; /* STORED; borrows from decoder and payload until the call returns */
        const uint64_t *hashes;          /* REMOVED */
        uint32_t count;
        enum kvr_tier tier;
        enum engine_event_why why; /* IGNORED, BAD */
        int64_t number;            /* of the event (TensorRT-LLM over HTTP), else -1 */
};

struct engine_event_batch {
        double at_s;  /* Unix time; NAN unknown */
        int32_t rank; /* -1 unknown */
};

/* What must be remembered of one stream from batch to batch. */
struct engine_event_view {
        int32_t group;         /* the group that is indexed; -1: none seen yet */
        int64_t window;        /* TensorRT-LLM: the largest attention window seen */
        uint32_t block_tokens; /* TensorRT-LLM: tokens of a full block, as far as seen */
};
static inline void engine_event_view_init(struct engine_event_view *view)
{
        *view = (struct engine_event_view){.group = -1};
}

struct engine_event_decoder;
KVR_MUST_USE struct engine_event_decoder *engine_event_decoder_new(void);
void engine_event_decoder_free(struct engine_event_decoder *decoder);

typedef void engine_event_fn(void *ctx, const struct engine_event *event);
/*
 * Calls `fn` for each event in order. False: the batch itself cannot be read (*ret_why, a constant, tells);
 * events before the place were given, and *ret_batch is untouched.
 */
bool engine_events_decode(struct engine_event_decoder *decoder, struct engine_event_view *view,
                          struct kvr_slice payload, struct engine_event_batch *ret_batch, engine_event_fn *fn,
                          void *ctx, const char **ret_why);
/* TensorRT-LLM's POST /kv_cache_events answer; each event has its number. */
bool engine_events_decode_json(struct engine_event_decoder *decoder, struct engine_event_view *view,
                               struct kvr_slice body, engine_event_fn *fn, void *ctx, const char **ret_why);

#endif
