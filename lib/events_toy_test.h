/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A toy of an engine that tells by events: a tokenizer whose tokens depend on what follows them, a chat
 * template with special tokens, and a pool of blocks with the rules of vLLM: hits are whole blocks and never
 * the whole prompt, generated tokens are kept as their blocks fill, the least recently used block goes first
 * and of one request the last one. Its hashes are its own and change with every start.
 */
#ifndef KVROUTE_LIB_EVENTS_TOY_TEST_H
#define KVROUTE_LIB_EVENTS_TOY_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvroute/events.h"

#include "brain_test.h"

#define TOY_IDS_MAX    65536
#define TOY_BODY_MAX   (1U << 19)
#define TOY_TEXT_MAX   (1U << 16)
#define TOY_BLOCKS_MAX 65536
#define TOY_BUCKETS    65536

/* ---- texts ---- */

/* Words of small letters; the same for the same seed, longer ones go on where shorter ones end. */
static inline size_t toy_text(uint64_t seed, size_t bytes, char *ret)
{
        size_t at = 0;

        for (uint64_t word = 0; at < bytes; word++) {
                uint64_t letters = brain_mix(seed * 1000003 + word);
                size_t len = 2 + letters % 8;

                for (size_t i = 0; i < len && at < bytes; i++)
                        ret[at++] = (char)('a' + brain_mix(letters + i) % 26);
                if (at < bytes)
                        ret[at++] = ' ';
        }
        ret[at] = 0;
        return at;
}

struct toy_ids {
        uint32_t count;
        uint32_t ids[TOY_IDS_MAX];
};

enum { TOY_BEGIN = 9000001, TOY_END, TOY_LINE, TOY_ROLE };

static inline void toy_put(struct toy_ids *ids, uint32_t id)
{
        brain_must(ids->count < TOY_IDS_MAX);
        ids->ids[ids->count++] = id;
}

/* One token for three to five bytes: how many depends on the bytes behind, as merges do. */
static inline void toy_tokenize(struct toy_ids *ids, const char *text, size_t len)
{
        while (len) {
                uint64_t near = 0;

                for (size_t i = 0; i < 6 && i < len; i++)
                        near = near << 8 | (unsigned char)text[i];
                size_t take = 3 + brain_mix(near) % 3;

                if (take > len)
                        take = len;
                uint64_t piece = take;

                for (size_t i = 0; i < take; i++)
                        piece = piece << 8 | (unsigned char)text[i];
                toy_put(ids, (uint32_t)(brain_mix(piece) % 9000000));
                text += take;
                len -= take;
        }
}

/* ---- chats ---- */

struct toy_message {
        const char *role;
        const char *text;
};

static inline void toy_head(struct toy_ids *ids, const char *role)
{
        toy_put(ids, TOY_BEGIN);
        toy_put(ids, TOY_ROLE + (uint32_t)(unsigned char)role[0]);
        toy_put(ids, TOY_LINE);
}

/* The template: every message with its head and end, and the head of the answer. */
static inline void toy_render(struct toy_ids *ids, const struct toy_message *messages, uint32_t count)
{
        ids->count = 0;
        for (uint32_t i = 0; i < count; i++) {
                toy_head(ids, messages[i].role);
                toy_tokenize(ids, messages[i].text, strlen(messages[i].text));
                toy_put(ids, TOY_END);
                toy_put(ids, TOY_LINE);
        }
        toy_head(ids, "assistant");
}

static inline struct kvr_slice toy_body(char *room, const struct toy_message *messages, uint32_t count,
                                        const char *model, const char *salt)
{
        size_t len = (size_t)snprintf(room, TOY_BODY_MAX,
                                      "{\"model\":\"%s\",\"cache_salt\":\"%s\",\"messages\":[", model, salt);

        for (uint32_t i = 0; i < count; i++)
                len += (size_t)snprintf(room + len, TOY_BODY_MAX - len,
                                        "%s{\"role\":\"%s\",\"content\":\"%s\"}", i ? "," : "",
                                        messages[i].role, messages[i].text);
        len += (size_t)snprintf(room + len, TOY_BODY_MAX - len, "]}");
        brain_must(len < TOY_BODY_MAX);
        return (struct kvr_slice){room, len};
}

/* ---- the engine ---- */

struct toy_block {
        uint64_t hash; /* 0: free */
        uint32_t chain;
        uint32_t older, newer;
};

struct toy_engine {
        struct kvr_router *router; /* whom it tells; NULL: nobody */
        kvr_replica_id id;
        uint32_t block_tokens, capacity, used;
        uint64_t seed;
        struct toy_block *blocks; /* from 1 */
        uint32_t *buckets;
        uint32_t oldest, newest;
        uint32_t free_head;
        struct kvr_events_account account;
        uint64_t evictions;
        uint64_t hashes[TOY_IDS_MAX];
        uint32_t numbers[TOY_IDS_MAX];
};

static inline void toy_clear(struct toy_engine *engine, uint64_t seed)
{
        engine->seed = seed;
        engine->used = engine->oldest = engine->newest = 0;
        memset(engine->buckets, 0, TOY_BUCKETS * sizeof(*engine->buckets));
        engine->free_head = 0;
        for (uint32_t i = engine->capacity; i > 0; i--) {
                engine->blocks[i] = (struct toy_block){.chain = engine->free_head};
                engine->free_head = i;
        }
}

static inline struct toy_engine *toy_new(struct kvr_router *router, kvr_replica_id id, uint32_t block_tokens,
                                         uint32_t capacity)
{
        struct toy_engine *engine = calloc(1, sizeof(*engine));

        brain_must(engine && capacity < TOY_BLOCKS_MAX);
        engine->router = router;
        engine->id = id;
        engine->block_tokens = block_tokens;
        engine->capacity = capacity;
        engine->blocks = calloc(capacity + 1, sizeof(*engine->blocks));
        engine->buckets = calloc(TOY_BUCKETS, sizeof(*engine->buckets));
        brain_must(engine->blocks && engine->buckets);
        toy_clear(engine, id);
        return engine;
}

static inline void toy_free(struct toy_engine *engine)
{
        free(engine->blocks);
        free(engine->buckets);
        free(engine);
}

static inline uint32_t toy_find(const struct toy_engine *engine, uint64_t hash)
{
        uint32_t at = engine->buckets[hash % TOY_BUCKETS];

        while (at && engine->blocks[at].hash != hash)
                at = engine->blocks[at].chain;
        return at;
}

static inline void toy_unlink(struct toy_engine *engine, uint32_t at)
{
        struct toy_block *block = &engine->blocks[at];

        if (block->older)
                engine->blocks[block->older].newer = block->newer;
        else
                engine->oldest = block->newer;
        if (block->newer)
                engine->blocks[block->newer].older = block->older;
        else
                engine->newest = block->older;
}

static inline void toy_link(struct toy_engine *engine, uint32_t at)
{
        struct toy_block *block = &engine->blocks[at];

        block->older = engine->newest;
        block->newer = 0;
        if (engine->newest)
                engine->blocks[engine->newest].newer = at;
        else
                engine->oldest = at;
        engine->newest = at;
}

static inline void toy_evict(struct toy_engine *engine)
{
        uint32_t at = engine->oldest;
        uint64_t hash = engine->blocks[at].hash;
        uint32_t *link = &engine->buckets[hash % TOY_BUCKETS];

        toy_unlink(engine, at);
        while (*link != at)
                link = &engine->blocks[*link].chain;
        *link = engine->blocks[at].chain;
        engine->blocks[at] = (struct toy_block){.chain = engine->free_head};
        engine->free_head = at;
        engine->used--;
        engine->evictions++;
        if (engine->router)
                (void)kvr_events_removed(engine->router, engine->id, &hash, 1, KVR_TIER_GPU,
                                         &engine->account);
}

static inline uint32_t toy_take(struct toy_engine *engine, uint64_t hash)
{
        if (!engine->free_head)
                toy_evict(engine);
        uint32_t at = engine->free_head;

        engine->free_head = engine->blocks[at].chain;
        engine->blocks[at] = (struct toy_block){.hash = hash, .chain = engine->buckets[hash % TOY_BUCKETS]};
        engine->buckets[hash % TOY_BUCKETS] = at;
        engine->used++;
        return at;
}

/* Runs a prompt of which `prompt` ids are given and the rest is generated; tokens found in the cache. */
static inline uint32_t toy_run(struct toy_engine *engine, const struct toy_ids *ids, uint32_t prompt,
                               const char *adapter, const char *salt)
{
        uint32_t size = engine->block_tokens, whole = (ids->count - 1) / size, hit = 0, from;
        uint64_t hash = engine->seed;

        for (const char *c = adapter; *c; c++)
                hash = brain_mix(hash ^ (unsigned char)*c);
        for (const char *c = salt; *c; c++)
                hash = brain_mix(hash * 31 ^ (unsigned char)*c);
        /* What is generated last is not computed, but a prompt alone is. */
        if (prompt == ids->count)
                whole = ids->count / size;
        brain_must(whole <= engine->capacity);
        for (uint32_t i = 0; i < whole; i++) {
                for (uint32_t t = 0; t < size; t++)
                        hash = brain_mix(hash ^ ids->ids[i * size + t]);
                engine->hashes[i] = hash;
                engine->numbers[i] = toy_find(engine, hash);
        }
        while (hit < whole && engine->numbers[hit])
                hit++;
        /* In use: not to be evicted for the rest of the prompt. */
        for (uint32_t i = 0; i < hit; i++)
                toy_unlink(engine, engine->numbers[i]);
        for (from = hit; from < whole; from++)
                engine->numbers[from] = toy_take(engine, engine->hashes[from]);
        if (engine->router && hit < whole) {
                struct kvr_blocks_stored stored = {
                        .hashes = engine->hashes + hit,
                        .count = whole - hit,
                        .has_parent = hit > 0,
                        .parent = hit ? engine->hashes[hit - 1] : 0,
                        .tokens = ids->ids + (size_t)hit * size,
                        .token_count = (whole - hit) * size,
                        .block_tokens = size,
                        .adapter = brain_slice(adapter),
                        .salt = brain_slice(salt),
                };

                (void)kvr_events_stored(engine->router, engine->id, &stored, &engine->account);
        }
        for (uint32_t i = whole; i-- > 0;)
                toy_link(engine, engine->numbers[i]);
        hit = hit < (prompt - 1) / size ? hit : (prompt - 1) / size;
        return hit * size;
}

#endif
