/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of the block index: who holds a block, written by one thread and read by many. */
#include "blocks_int.h"

#include <string.h>

static inline uint64_t get64(const _Atomic uint64_t *at)
{
        return atomic_load_explicit(at, memory_order_relaxed);
}

static inline uint32_t get32(const _Atomic uint32_t *at)
{
        return atomic_load_explicit(at, memory_order_relaxed);
}

static inline void set64(_Atomic uint64_t *at, uint64_t value)
{
        atomic_store_explicit(at, value, memory_order_release);
}

static inline void set32(_Atomic uint32_t *at, uint32_t value)
{
        atomic_store_explicit(at, value, memory_order_release);
}

/* ---- nodes ---- */

uint32_t kvr__block_node_find(const struct kvr__blocks *blocks, uint64_t key, uint64_t hash)
{
        struct kvr__blocks_walk walk = kvr__blocks_walk_own(&blocks->by_key, hash);

        while (kvr__blocks_walk_next(&walk)) {
                uint32_t number = kvr__item_number(walk.item);

                if (get64(&block_node_at(blocks, number)->key) == key)
                        return number;
        }
        return 0;
}

uint32_t kvr__block_node_fresh(struct kvr__blocks *blocks)
{
        /* The table's numbers are shorter. */
        if (blocks->nodes.fresh > BLOCK_NODES_MAX)
                return 0;
        uint32_t number = kvr__pool_take(&blocks->nodes);

        if (number) {
                struct block_node *node = block_node_at(blocks, number);

                set64(&node->key, 0);
                set32(&node->state, 0);
                set32(&blocks->nodes_end, number + 1);
        }
        return number;
}

void kvr__block_node_drop(struct kvr__blocks *blocks, uint32_t number)
{
        struct block_node *node = block_node_at(blocks, number);
        uint64_t hash = block_key_hash(blocks, get64(&node->key));
        struct kvr__blocks_walk walk = kvr__blocks_walk_own(&blocks->by_key, hash);
        _Atomic uint64_t *place;

        while ((place = kvr__blocks_walk_next(&walk)))
                if (kvr__item_number(walk.item) == number) {
                        kvr__blocks_table_remove(&blocks->by_key, hash, place);
                        break;
                }
        kvr__block_node_give(blocks, number);
}

/* ---- chunks ---- */

static uint32_t chunk_take(struct kvr__blocks *blocks)
{
        uint32_t number = blocks->chunk_free;

        if (!number)
                return kvr__pool_take(&blocks->chunks);
        blocks->chunk_free = get32(&block_chunk_at(blocks, number)->next);
        blocks->chunks_free--;
        return number;
}

static void chunk_give(struct kvr__blocks *blocks, uint32_t number)
{
        set32(&block_chunk_at(blocks, number)->next, blocks->chunk_free);
        blocks->chunk_free = number;
        blocks->chunks_free++;
}

static inline void turn(struct block_node *node)
{
        set32(&node->state, get32(&node->state) + BLOCK_TURN);
}

/* A place for 64 lanes: bits in a node (chunk 0) or in a chunk. */
struct place {
        _Atomic uint64_t *bits;
        struct block_chunk *chunk; /* NULL: in the node */
        _Atomic uint32_t *link;    /* that leads to the chunk */
        uint32_t index;            /* in the chunk */
};

/* The place of this word. False if there is none; then *ret is an empty place, or has no bits either. */
static bool place_find(const struct kvr__blocks *blocks, struct block_node *node, uint32_t word,
                       struct place *ret)
{
        _Atomic uint32_t *link = &node->more;
        uint64_t bits = get64(&node->bits);

        *ret = (struct place){0};
        if (bits && (get32(&node->state) & BLOCK_WORD_MASK) == word) {
                ret->bits = &node->bits;
                return true;
        }
        if (!bits)
                ret->bits = &node->bits;
        for (uint32_t number = get32(link); number; number = get32(link)) {
                struct block_chunk *chunk = block_chunk_at(blocks, number);
                uint32_t words = get32(&chunk->words);

                for (uint32_t i = 0; i < BLOCK_CHUNK_WORDS; i++) {
                        bits = get64(&chunk->bits[i]);
                        if (bits && block_words_get(words, i) == word) {
                                *ret = (struct place){&chunk->bits[i], chunk, link, i};
                                return true;
                        }
                        if (!bits && !ret->bits)
                                *ret = (struct place){&chunk->bits[i], chunk, link, i};
                }
                link = &chunk->next;
        }
        return false;
}

static bool chunk_add(struct kvr__blocks *blocks, struct block_node *node, uint32_t word, uint64_t bit)
{
        uint32_t number = chunk_take(blocks);

        if (!number)
                return false;
        struct block_chunk *chunk = block_chunk_at(blocks, number);

        set32(&chunk->words, word);
        set32(&chunk->next, get32(&node->more));
        set64(&chunk->bits[0], bit);
        for (uint32_t i = 1; i < BLOCK_CHUNK_WORDS; i++)
                set64(&chunk->bits[i], 0);
        set32(&node->more, number);
        return true;
}

enum block_holder kvr__block_holder_add(struct kvr__blocks *blocks, uint32_t number, uint16_t lane)
{
        struct block_node *node = block_node_at(blocks, number);
        uint64_t bit = 1ULL << (lane % 64), held = get64(&node->bits);
        uint32_t word = lane / 64U;
        struct place place;

        if (held && (get32(&node->state) & BLOCK_WORD_MASK) == word) {
                if (held & bit)
                        return BLOCK_HOLDER_KNOWN;
                set64(&node->bits, held | bit);
                return BLOCK_HOLDER_NEW;
        }
        if (place_find(blocks, node, word, &place)) {
                uint64_t bits = get64(place.bits);

                if (bits & bit)
                        return BLOCK_HOLDER_KNOWN;
                set64(place.bits, bits | bit);
                return BLOCK_HOLDER_NEW;
        }
        if (!place.bits)
                return chunk_add(blocks, node, word, bit) ? BLOCK_HOLDER_NEW : BLOCK_HOLDER_NO_ROOM;
        if (place.chunk) {
                uint32_t words = get32(&place.chunk->words) & ~(0xffU << 8 * place.index);

                set32(&place.chunk->words, words | word << 8 * place.index);
                turn(node);
        } else {
                set32(&node->state, ((get32(&node->state) & ~BLOCK_WORD_MASK) | word) + BLOCK_TURN);
        }
        set64(place.bits, bit);
        return BLOCK_HOLDER_NEW;
}

bool kvr__block_holder_drop(struct kvr__blocks *blocks, uint32_t number, uint16_t lane)
{
        struct block_node *node = block_node_at(blocks, number);
        uint64_t left = 0, held = get64(&node->bits), bit = 1ULL << (lane % 64);
        struct place place;

        if (held && (get32(&node->state) & BLOCK_WORD_MASK) == lane / 64U) {
                set64(&node->bits, held & ~bit);
                return !(held & ~bit) && !get32(&node->more);
        }
        if (!place_find(blocks, node, lane / 64U, &place))
                return !held && !get32(&node->more);
        set64(place.bits, get64(place.bits) & ~bit);
        for (uint32_t i = 0; i < BLOCK_CHUNK_WORDS; i++)
                left |= get64(&place.chunk->bits[i]);
        if (left)
                return false;
        uint32_t empty = get32(place.link);

        set32(place.link, get32(&place.chunk->next));
        turn(node);
        chunk_give(blocks, empty);
        return !held && !get32(&node->more);
}

bool kvr__block_holder_is(const struct kvr__blocks *blocks, uint32_t number, uint16_t lane)
{
        struct place place;

        return place_find(blocks, block_node_at(blocks, number), lane / 64U, &place) &&
               get64(place.bits) >> (lane % 64) & 1;
}

/* ---- reading ---- */

/* Adds what the chunks say. False when the walk was led astray. */
static bool chunks_meet(const struct kvr__blocks *blocks, uint32_t number, const uint64_t *set,
                        uint32_t words, uint64_t *ret)
{
        for (uint32_t left = BLOCK_CHUNKS_MAX; number; left--) {
                const struct block_chunk *chunk = block_chunk_at(blocks, number);
                uint32_t names = atomic_load_explicit(&chunk->words, memory_order_acquire);

                if (!left)
                        return false;
                for (uint32_t i = 0; i < BLOCK_CHUNK_WORDS; i++) {
                        uint64_t bits = atomic_load_explicit(&chunk->bits[i], memory_order_acquire);
                        uint32_t word = block_words_get(names, i);

                        if (bits && word < words)
                                ret[word] |= set[word] & bits;
                }
                number = atomic_load_explicit(&chunk->next, memory_order_acquire);
        }
        return true;
}

bool kvr__block_node_meet(const struct kvr__blocks *blocks, uint32_t number, uint64_t key,
                          const uint64_t *set, uint32_t words, uint64_t *ret)
{
        const struct block_node *node = block_node_at(blocks, number);

        for (uint32_t tries = 0; tries < 4; tries++) {
                uint32_t state = atomic_load_explicit(&node->state, memory_order_acquire);

                if (atomic_load_explicit(&node->key, memory_order_acquire) != key)
                        return false;
                uint64_t bits = atomic_load_explicit(&node->bits, memory_order_acquire);
                uint32_t word = state & BLOCK_WORD_MASK;
                uint32_t more = atomic_load_explicit(&node->more, memory_order_acquire);

                if (words == 1)
                        ret[0] = 0;
                else
                        memset(ret, 0, words * sizeof(*ret));
                if (word < words)
                        ret[word] = set[word] & bits;
                if (more && !chunks_meet(blocks, more, set, words, ret))
                        continue;
                if (atomic_load_explicit(&node->state, memory_order_relaxed) == state)
                        return true;
        }
        memset(ret, 0, words * sizeof(*ret));
        return true;
}
