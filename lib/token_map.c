/* SPDX-License-Identifier: Apache-2.0 */
#include "token_map.h"

#include <stdatomic.h>
#include <stdlib.h>

#define BUCKET_SLOTS 4
#define HEADER_WORDS 3
#define RECORD_SHARE 4 /* a record is at most this part of the ring, so that it cannot overwrite itself */
#define READ_TRIES   4
#define DEPTH_SHIFT  56
#define PLACE_MASK   ((1ULL << DEPTH_SHIFT) - 1)

/* 32 bytes. `turn` is odd while the others are being changed. */
struct slot {
        _Atomic uint64_t key; /* 0: free */
        _Atomic uint64_t place;
        _Atomic uint32_t blocks, tokens, by, turn;
};

struct bucket {
        struct slot slots[BUCKET_SLOTS];
};

struct kvr__token_map {
        struct bucket *buckets;
        uint64_t bucket_count;
        _Atomic uint64_t *ring;
        uint64_t ring_words;
        _Atomic uint64_t head; /* words ever written; starts at ring_words, so that 0 is no place */
        _Atomic uint64_t tail; /* what is before it is overwritten, or will be in a moment */
        _Atomic uint64_t points;
        uint64_t bytes_max;
        _Atomic uint32_t generations[KVR__MAP_GENERATIONS];
};

/* The readers' side of every check: what is loaded before stays before. */
#define LOAD(object)         atomic_load_explicit(&(object), memory_order_acquire)
#define STORE(object, value) atomic_store_explicit(&(object), (value), memory_order_release)

struct kvr__token_map *kvr__token_map_new(uint64_t bytes_max)
{
        struct kvr__token_map *map = calloc(1, sizeof(*map));

        if (!map)
                return NULL;
        uint64_t room = bytes_max - sizeof(*map);

        map->bytes_max = bytes_max;
        map->bucket_count = room / 2 / sizeof(struct bucket);
        map->ring_words = room / 2 / sizeof(uint64_t);
        /* Not touched before they are used, so unused ones take no memory. */
        map->buckets = calloc(map->bucket_count, sizeof(struct bucket));
        map->ring = calloc(map->ring_words, sizeof(*map->ring));
        if (!map->buckets || !map->ring) {
                kvr__token_map_free(map);
                return NULL;
        }
        atomic_init(&map->head, map->ring_words);
        return map;
}

void kvr__token_map_free(struct kvr__token_map *map)
{
        if (!map)
                return;
        free(map->buckets);
        free((void *)map->ring);
        free(map);
}

static uint64_t mix(uint64_t x)
{
        x = (x ^ x >> 32) * 0xd6e8feb86659fd93ULL;
        x = (x ^ x >> 32) * 0xd6e8feb86659fd93ULL;
        return x ^ x >> 32;
}

uint64_t kvr__token_map_key(const struct kvr__token_map *map, uint64_t point, uint32_t block_tokens,
                            uint64_t model)
{
        uint64_t generation = LOAD(map->generations[mix(model) % KVR__MAP_GENERATIONS]);
        uint64_t key = mix(point ^ mix(generation << 32 | block_tokens));

        return key | !key;
}

static struct bucket *bucket_of(const struct kvr__token_map *map, uint64_t key)
{
        return &map->buckets[(uint64_t)((unsigned __int128)key * map->bucket_count >> 64)];
}

void kvr__token_map_prefetch(const struct kvr__token_map *map, uint64_t key)
{
        const char *bucket = (const char *)bucket_of(map, key);

        __builtin_prefetch(bucket);
        __builtin_prefetch(bucket + 64);
}

static bool place_alive(const struct kvr__token_map *map, uint64_t place)
{
        return place && place >= LOAD(map->tail);
}

/* False when it was being changed all the time, or holds another key by now. */
static bool slot_read(struct slot *slot, uint64_t key, struct kvr__mapped *ret)
{
        for (int i = 0; i < READ_TRIES; i++) {
                uint32_t turn = LOAD(slot->turn);

                if (LOAD(slot->key) != key)
                        return false;
                *ret = (struct kvr__mapped){
                        .place = LOAD(slot->place),
                        .blocks = LOAD(slot->blocks),
                        .tokens = LOAD(slot->tokens),
                        .by = (enum kvr__mapped_by)LOAD(slot->by),
                };
                if (!(turn & 1) && LOAD(slot->turn) == turn)
                        return true;
        }
        return false;
}

bool kvr__token_map_get(const struct kvr__token_map *map, uint64_t key, struct kvr__mapped *ret)
{
        struct bucket *bucket = bucket_of(map, key);

        for (int i = 0; i < BUCKET_SLOTS; i++) {
                struct kvr__mapped mapped;

                if (LOAD(bucket->slots[i].key) != key || !slot_read(&bucket->slots[i], key, &mapped))
                        continue;
                if (!place_alive(map, mapped.place))
                        return false;
                *ret = mapped;
                return true;
        }
        return false;
}

/* ---- records ---- */

struct record {
        uint64_t parent; /* place, 0 none */
        uint32_t depth;  /* records above it */
        uint32_t from, count;
        uint64_t base;
};

static uint64_t word(const struct kvr__token_map *map, uint64_t place)
{
        return LOAD(map->ring[place % map->ring_words]);
}

static bool record_read(const struct kvr__token_map *map, uint64_t place, struct record *ret)
{
        if (!place_alive(map, place))
                return false;
        uint64_t parent = word(map, place), blocks = word(map, place + 1);

        ret->base = word(map, place + 2);
        ret->parent = parent & PLACE_MASK;
        ret->depth = (uint32_t)(parent >> DEPTH_SHIFT);
        ret->from = (uint32_t)(blocks >> 32);
        ret->count = (uint32_t)blocks;
        return place_alive(map, place);
}

/* The words behind the header that stand for blocks [from, to) of the chain. */
static void record_copy(const struct kvr__token_map *map, uint64_t place, uint32_t from, uint32_t to,
                        uint64_t *ret_keys)
{
        uint64_t at = (place + HEADER_WORDS) % map->ring_words;

        for (uint32_t i = from; i < to; i++) {
                ret_keys[i] = LOAD(map->ring[at]);
                if (++at == map->ring_words)
                        at = 0;
        }
}

void kvr__token_map_chain(const struct kvr__token_map *map, uint64_t place, uint32_t blocks,
                          uint64_t *ret_keys, uint64_t *ret_base)
{
        struct record record;
        uint32_t known = blocks; /* [known, blocks) are copied */

        if (ret_base)
                *ret_base = 0;
        for (uint32_t i = 0; known && i <= KVR__MAP_DEPTH_MAX && record_read(map, place, &record); i++) {
                uint32_t to = known < record.count ? known : record.count;

                if (ret_base && i == 0)
                        *ret_base = record.base;
                for (; known > to; known--)
                        ret_keys[known - 1] = 0;
                if (record.from < to) {
                        record_copy(map, place, record.from, to, ret_keys);
                        /* Overwritten while it was copied: of no use. */
                        if (!place_alive(map, place))
                                break;
                        known = record.from;
                }
                place = record.parent;
        }
        while (known)
                ret_keys[--known] = 0;
}

uint32_t kvr__token_map_blocks(const struct kvr__token_map *map, uint64_t place)
{
        struct record record;

        return record_read(map, place, &record) ? record.count : 0;
}

bool kvr__token_map_old(const struct kvr__token_map *map, uint64_t place)
{
        uint64_t head = LOAD(map->head);
        struct record record;

        for (uint32_t i = 0; i <= KVR__MAP_DEPTH_MAX && place; i++) {
                if (place + map->ring_words / 2 < head || !record_read(map, place, &record))
                        return true;
                place = record.parent;
        }
        return false;
}

uint32_t kvr__token_map_room(const struct kvr__token_map *map)
{
        uint64_t words = map->ring_words / RECORD_SHARE - HEADER_WORDS;

        return words < KVR__MAP_BLOCKS_MAX ? (uint32_t)words : KVR__MAP_BLOCKS_MAX;
}

uint64_t kvr__token_map_append(struct kvr__token_map *map, uint64_t parent, uint32_t from,
                               const uint64_t *keys, uint32_t count, uint64_t base)
{
        uint64_t place = LOAD(map->head), words = HEADER_WORDS + (uint64_t)count;
        struct record above = {0};

        if (count > kvr__token_map_room(map) || from + (uint64_t)count > KVR__MAP_BLOCKS_MAX)
                return 0;
        if (parent && (!record_read(map, parent, &above) || above.depth + 1 >= KVR__MAP_DEPTH_MAX))
                return 0;
        uint64_t end = place + words;

        /* In this order: nobody may take a word of the new record for one of an old one that is still alive. */
        STORE(map->tail, end - map->ring_words);
        STORE(map->ring[place % map->ring_words], parent | (uint64_t)(parent ? above.depth + 1 : 0)
                                                                   << DEPTH_SHIFT);
        STORE(map->ring[(place + 1) % map->ring_words], (uint64_t)from << 32 | (from + count));
        STORE(map->ring[(place + 2) % map->ring_words], base);
        for (uint32_t i = 0; i < count; i++)
                STORE(map->ring[(place + HEADER_WORDS + i) % map->ring_words], keys[i]);
        STORE(map->head, end);
        return place;
}

/* ---- slots ---- */

void kvr__token_map_put(struct kvr__token_map *map, uint64_t key, const struct kvr__mapped *mapped)
{
        struct bucket *bucket = bucket_of(map, key);
        struct slot *slot = NULL;

        for (int i = 0; i < BUCKET_SLOTS && !slot; i++)
                if (LOAD(bucket->slots[i].key) == key)
                        slot = &bucket->slots[i];
        for (int i = 0; i < BUCKET_SLOTS && !slot; i++)
                if (!LOAD(bucket->slots[i].key)) {
                        slot = &bucket->slots[i];
                        atomic_fetch_add_explicit(&map->points, 1, memory_order_relaxed);
                }
        if (!slot) {
                slot = &bucket->slots[0];
                for (int i = 1; i < BUCKET_SLOTS; i++)
                        if (LOAD(bucket->slots[i].place) < LOAD(slot->place))
                                slot = &bucket->slots[i];
        }
        uint32_t turn = LOAD(slot->turn);

        STORE(slot->turn, turn + 1);
        STORE(slot->key, key);
        STORE(slot->place, mapped->place);
        STORE(slot->blocks, mapped->blocks);
        STORE(slot->tokens, mapped->tokens);
        STORE(slot->by, (uint32_t)mapped->by);
        STORE(slot->turn, turn + 2);
}

void kvr__token_map_forget(struct kvr__token_map *map, uint64_t model)
{
        atomic_fetch_add_explicit(&map->generations[mix(model) % KVR__MAP_GENERATIONS], 1,
                                  memory_order_acq_rel);
}

void kvr__token_map_stats(const struct kvr__token_map *map, struct kvr__token_map_stats *ret)
{
        *ret = (struct kvr__token_map_stats){
                .bytes = sizeof(*map) + map->bucket_count * sizeof(struct bucket) +
                         map->ring_words * sizeof(uint64_t),
                .bytes_max = map->bytes_max,
                .points = atomic_load_explicit(&map->points, memory_order_relaxed),
        };
}
