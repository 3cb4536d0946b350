/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine events: what a replica itself says its KV cache holds, block by block (vLLM, SGLang, TensorRT-LLM).
 *
 * A host that can hear them (router/events.c over ZeroMQ; a simulator) feeds them in here. For such a replica
 * a match is what the engine holds, not what this router remembers having sent. Three things meet:
 *
 *     prompt in text ──(token map)──► chain of block keys ──(block index)──► who holds how much of it
 *            ▲                                                    ▲
 *     kvr_tokens_learn: ids of a prompt that was           kvr_events_stored, _removed, _cleared
 *     dispatched, from the engine's tokenizer
 *
 * A block's key is our own: XXH3 chained over the token ids of all blocks before it, beginning from its
 * namespace (adapter, salt). The engines' own hashes are handles: they name a parent or what is removed, and
 * are compared with nothing else. A prompt that nobody tokenized yet is not found in the map; nobody can hold
 * it then but by what was sent there just now, which short-lived predictions cover.
 *
 * Threads: events of one replica come from one thread at a time; different replicas' and all other calls may
 * come from any thread. Nothing here waits for a decision or makes one wait: deciding threads read the block
 * index and the token map without a lock and may at worst see less than there is.
 */
#ifndef KVROUTE_EVENTS_H
#define KVROUTE_EVENTS_H

#include "kvroute/base.h"
#include "kvroute/prompt.h"
#include "kvroute/router.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVR_EVENT_BLOCKS_MAX 65536 /* blocks of one event; more is KVR_E_LIMIT */
#define KVR_BLOCK_TOKENS_MAX 65536 /* tokens of a block */

/* Where a block lies. Reading one back from a slower tier costs a part of computing it (docs/events.md). */
enum kvr_tier { KVR_TIER_GPU, KVR_TIER_CPU, KVR_TIER_DISK };
#define KVR_TIERS (KVR_TIER_DISK + 1)

/* Blocks that follow one another. All is borrowed for the call. */
struct kvr_blocks_stored {
        const uint64_t *hashes; /* the engine's, first block to last */
        uint32_t count;
        bool has_parent; /* else the first block begins a prompt */
        uint64_t parent; /* hash of the block before the first one */
        const uint32_t *tokens;
        uint32_t token_count; /* count * block_tokens; anything else is KVR_E_ARGUMENT */
        uint32_t block_tokens;
        enum kvr_tier tier;
        struct kvr_slice adapter; /* LoRA name; empty: base model */
        struct kvr_slice salt;    /* cache salt; empty: none. Matters for a block that begins a prompt only */
        const uint64_t *extra;    /* one per block, hash of its other extra keys (images), 0 none; or NULL */
};

/* What became of blocks, added up into the caller's counters. */
struct kvr_events_account {
        uint64_t stored;         /* new to the index */
        uint64_t repeated;       /* held already: one more copy */
        uint64_t removed;        /* last copy gone */
        uint64_t copies_removed; /* a copy gone, another is left */
        uint64_t unknown;        /* removal of what was not known */
        uint64_t orphans;        /* parent not known: of no use */
        uint64_t refused;        /* no memory left below the cap */
        uint64_t cleared;        /* times everything was cleared */
};

/*
 * Marks the replica as one that tells by events, from now on or no longer. While `trusted` is false its
 * events are still taken in, but matches come from history. The first call, or the first event, opens its place
 * in the block index; kvr_events_stop gives that back, O(1) on the spot. A new replica has none. A trusted
 * replica whose events are contradicted by what it reports goes by history until they agree again: see
 * kvr_replica_info.
 */
KVR_PUBLIC KVR_MUST_USE enum kvr_status kvr_events_trust(struct kvr_router *router, kvr_replica_id id,
                                                         bool trusted);
KVR_PUBLIC void kvr_events_stop(struct kvr_router *router, kvr_replica_id id);

/* KVR_E_NOT_FOUND: no such replica (removed meanwhile). Accounts may be NULL. */
KVR_PUBLIC enum kvr_status kvr_events_stored(struct kvr_router *router, kvr_replica_id id,
                                             const struct kvr_blocks_stored *blocks,
                                             struct kvr_events_account *account);
KVR_PUBLIC enum kvr_status kvr_events_removed(struct kvr_router *router, kvr_replica_id id,
                                              const uint64_t *hashes, uint32_t count, enum kvr_tier tier,
                                              struct kvr_events_account *account);
/*
 * The engine says that it holds nothing any more, or has started anew: all tiers, and of a trusted replica what
 * was sent there too. O(1).
 */
KVR_PUBLIC enum kvr_status kvr_events_cleared(struct kvr_router *router, kvr_replica_id id,
                                              struct kvr_events_account *account);
/* Events were missed: what was said before is void, all tiers. The engine may well hold what it held, so what was
 * sent there is kept. O(1). */
KVR_PUBLIC enum kvr_status kvr_events_lost(struct kvr_router *router, kvr_replica_id id,
                                           struct kvr_events_account *account);

/* ---- tokens of prompts ---- */

/*
 * What the token map needs to know of a prompt after its request has gone: its points and namespace, without
 * its text. Owned by the caller.
 */
struct kvr_outline;
/* NULL when out of memory. `adapter` as in the events: empty for the base model. */
KVR_PUBLIC KVR_MUST_USE struct kvr_outline *kvr_outline_new(const struct kvr_prompt *prompt,
                                                            struct kvr_slice model, struct kvr_slice adapter,
                                                            struct kvr_slice salt);
KVR_PUBLIC void kvr_outline_free(struct kvr_outline *outline);

/*
 * Is it worth asking a tokenizer for the ids of this prompt? False when the map has its last point, when a
 * question about it is on its way (true is given once, until kvr_tokens_learn or kvr_tokens_drop), when no
 * replica that serves the model tells by trusted events, or when its keys say too little (images, token ids).
 * Never waits, never allocates.
 */
KVR_PUBLIC bool kvr_tokens_wanted(struct kvr_router *router, const struct kvr_request *request);
/* The ids of the whole prompt as the engine sees it, template included. */
KVR_PUBLIC enum kvr_status kvr_tokens_learn(struct kvr_router *router, const struct kvr_outline *outline,
                                            const uint32_t *ids, uint32_t count);
/* No answer came; it may be wanted again. */
KVR_PUBLIC void kvr_tokens_drop(struct kvr_router *router, const struct kvr_outline *outline);
/* The template or the model behind the name has changed: nothing learned holds any more. O(1). */
KVR_PUBLIC void kvr_tokens_forget(struct kvr_router *router, struct kvr_slice model);

/* ---- figures ---- */

struct kvr_events_info {
        uint64_t blocks, holders; /* different blocks known; (block, replica) pairs */
        uint64_t bytes, bytes_max;
        uint64_t map_points, map_bytes, map_bytes_max;
        uint64_t map_hits, map_misses; /* decisions whose prompt was found in the map in part, not at all */
};
KVR_PUBLIC void kvr_router_events_info(struct kvr_router *router, struct kvr_events_info *ret);

#ifdef __cplusplus
}
#endif

#endif
