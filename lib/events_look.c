/* SPDX-License-Identifier: Apache-2.0 */
/* From a prompt to who holds its blocks, without a lock: token map, block index. */
#include <stdlib.h>
#include <string.h>

#include "prompt_cell.h"
#include "router_int.h"
#include "token_ends.h"

#define AHEAD      4    /* points behind the deepest one found that are tried, should its neighbour be lost */
#define KEYS_FIRST 4096 /* room for a chain at first */

void kvr__look_free(struct kvr__look *look)
{
        if (!look)
                return;
        free(look->keys);
        free(look);
}

static struct kvr__look *look_borrow(struct kvr_router *router, struct kvr__events *events)
{
        kvr__router_lock(router);
        struct kvr__look *look = events->looks;

        if (look)
                events->looks = look->next_free;
        kvr__router_unlock(router);
        return look ? look : calloc(1, sizeof(*look));
}

void kvr__look_give(struct kvr_router *router, struct kvr__look *look)
{
        struct kvr__events *events = kvr__events_of(router);

        if (!look)
                return;
        look->next_free = events->looks;
        events->looks = look;
}

static bool keys_reserve(struct kvr__look *look, uint32_t count)
{
        uint32_t room = look->key_room ? look->key_room : KEYS_FIRST;

        if (count <= look->key_room)
                return true;
        while (room < count)
                room *= 2;
        uint64_t *keys = malloc(room * sizeof(*keys));

        if (!keys)
                return false;
        free(look->keys);
        look->keys = keys;
        look->key_room = room;
        return true;
}

/* ---- the chain ---- */

static bool point_get(const struct kvr__token_map *map, const struct kvr__query *query, uint32_t block_tokens,
                      uint32_t point, struct kvr__mapped *ret)
{
        return kvr__token_map_get(
                map, kvr__token_map_key(map, query->points[point].key, block_tokens, query->model), ret);
}

/*
 * The deepest point that the map knows: number + 1, 0 if none. Whole prompts are learned, so what lies before
 * a known point is known too, but for single ones that had to make room.
 */
static uint32_t deepest_point(const struct kvr__token_map *map, const struct kvr__query *query,
                              uint32_t block_tokens, struct kvr__mapped *ret)
{
        uint32_t low = 0, high = query->point_count, behind;

        if (high && point_get(map, query, block_tokens, high - 1, ret))
                return high;
        while (low + 1 < high) {
                uint32_t middle = low + (high - low) / 2;

                if (point_get(map, query, block_tokens, middle - 1, ret))
                        low = middle;
                else
                        high = middle;
        }
        behind = low;
        for (uint32_t i = low; i < query->point_count && i < low + AHEAD; i++)
                if (point_get(map, query, block_tokens, i, ret))
                        behind = i + 1;
        /* `ret` may be of another one by now, or of none. */
        return behind && point_get(map, query, block_tokens, behind - 1, ret) ? behind : 0;
}

/* A text may begin with a whole earlier prompt that ended behind these points: units up to there, 0 if none. */
static uint32_t end_behind(const struct kvr__token_map *map, const struct kvr__query *query,
                           uint32_t block_tokens, uint32_t points, struct kvr__mapped *ret)
{
        uint32_t lengths[KVR__ENDS_MAX], most = 0;
        struct kvr__cell cell;

        if (points == query->point_count || !kvr__cell_behind(query->request->prompt, points, &cell))
                return 0;
        uint32_t count = kvr__token_ends_get(
                map, &(struct kvr__ends_of){cell.chain, block_tokens, query->model}, lengths);

        for (uint32_t i = 0; i < count; i++) {
                struct kvr__mapped mapped;

                if (lengths[i] <= most || lengths[i] >= cell.bytes.len ||
                    !kvr__token_map_get(map,
                                        kvr__token_map_key(map, kvr__cell_end_key(&cell, lengths[i]),
                                                           block_tokens, query->model),
                                        &mapped) ||
                    mapped.by != KVR__MAPPED_COUNT)
                        continue;
                most = lengths[i];
                *ret = mapped;
        }
        return most ? cell.start + most : 0;
}

static void chain_of_text(const struct kvr__events *events, const struct kvr__query *query,
                          struct kvr__look *look, struct kvr__look_size *size)
{
        struct kvr__mapped mapped;
        uint32_t points = deepest_point(events->map, query, size->block_tokens, &mapped);
        uint32_t end = end_behind(events->map, query, size->block_tokens, points, &mapped);

        if ((!points && !end) || !keys_reserve(look, mapped.blocks))
                return;
        kvr__token_map_chain(events->map, mapped.place, mapped.blocks, look->keys, &size->base);
        size->blocks = mapped.blocks;
        size->points = points;
        size->end = end ? end : query->points[points - 1].end;
        size->tokens = mapped.tokens;
        size->by = mapped.by;
}

static void chain_of_ids(const struct kvr__query *query, struct kvr__look *look, struct kvr__look_size *size)
{
        const struct kvr_prompt *prompt = query->request->prompt;
        struct kvr_slice adapter = query->request->adapter.len ? query->request->adapter : prompt->adapter;
        uint32_t blocks = prompt->id_count / size->block_tokens;
        uint64_t key = kvr__chain_root(adapter, prompt->salt, size->block_tokens);

        if (blocks > KVR__MAP_BLOCKS_MAX)
                blocks = KVR__MAP_BLOCKS_MAX;
        if (!keys_reserve(look, blocks))
                return;
        for (uint32_t i = 0; i < blocks; i++) {
                key = kvr__chain_next(key, prompt->ids + (size_t)i * size->block_tokens, size->block_tokens,
                                      0);
                look->keys[i] = key;
        }
        if (blocks && (adapter.len || prompt->salt.len))
                size->base = kvr__chain_next(
                        kvr__chain_root((struct kvr_slice){0}, (struct kvr_slice){0}, size->block_tokens),
                        prompt->ids, size->block_tokens, 0);
        size->blocks = blocks;
        size->points = query->point_count;
        size->end = size->tokens = query->units;
        size->by = KVR__MAPPED_COUNT;
}

/* ---- the depths ---- */

static uint32_t tier_depth(const struct kvr__events *events, struct kvr__look *look,
                           const struct kvr__look_size *size, uint16_t lane, uint32_t from)
{
        uint64_t want[KVR__BLOCK_LANE_WORDS];
        uint32_t words = lane / 64 + 1U;

        if (lane == KVR__NO_LANE || from >= size->blocks)
                return 0;
        struct kvr__chain rest = {look->keys + from, size->blocks - from};

        memset(want, 0, words * sizeof(*want));
        want[lane / 64] = 1ULL << lane % 64;
        look->depths[lane] = 0;
        kvr__blocks_depths(events->blocks, &rest, want, words, look->depths);
        return look->depths[lane];
}

/* What a replica holds: on the GPU, behind that in its host's memory, behind that on its disk. */
static void lane_look(const struct kvr__events *events, struct kvr__look *look,
                      const struct kvr__look_size *size, uint16_t lane)
{
        struct kvr__look_depth *depth = &look->lanes[lane];
        uint32_t lower = atomic_load_explicit(&events->lower[lane], memory_order_acquire);

        *depth = (struct kvr__look_depth){.gpu = look->depths[lane]};
        if (lower == ((uint32_t)KVR__NO_LANE << 16 | KVR__NO_LANE))
                return;
        depth->cpu = tier_depth(events, look, size, (uint16_t)lower, depth->gpu);
        depth->disk = tier_depth(events, look, size, (uint16_t)(lower >> 16), depth->gpu + depth->cpu);
}

static void size_look(const struct kvr__events *events, struct kvr__look *look,
                      const struct kvr__look_size *size, const uint64_t *want, uint32_t words)
{
        struct kvr__chain chain = {look->keys, size->blocks};

        for (uint32_t w = 0; w < words; w++)
                for (uint64_t bits = want[w]; bits; bits &= bits - 1)
                        look->depths[w * 64 + (uint32_t)__builtin_ctzll(bits)] = 0;
        if (chain.count)
                kvr__blocks_depths(events->blocks, &chain, want, words, look->depths);
        for (uint32_t w = 0; w < words; w++) {
                look->want[w] |= want[w];
                for (uint64_t bits = want[w]; bits; bits &= bits - 1)
                        lane_look(events, look, size, (uint16_t)(w * 64 + (uint32_t)__builtin_ctzll(bits)));
        }
}

/* True when the tokens of some leading part are known. */
static bool sizes_look(struct kvr__events *events, const struct kvr__query *query, struct kvr__look *look)
{
        bool by_ids = query->by_tokens && query->request->prompt->ids && query->request->prompt->mappable;
        bool hit = false;

        memset(look->want, 0, sizeof(look->want));
        for (int i = 0; i < KVR__EVENT_SIZES; i++) {
                struct kvr__event_size *from = &events->sizes[i];
                struct kvr__look_size *size = &look->sizes[i];
                uint64_t want[KVR__BLOCK_LANE_WORDS];
                uint32_t words = atomic_load_explicit(&from->words, memory_order_acquire);

                *size = (struct kvr__look_size){
                        .block_tokens = atomic_load_explicit(&from->block_tokens, memory_order_acquire)};
                if (!size->block_tokens)
                        continue;
                for (uint32_t w = 0; w < words; w++)
                        want[w] = atomic_load_explicit(&from->lanes[w], memory_order_acquire);
                if (by_ids)
                        chain_of_ids(query, look, size);
                else if (!query->by_tokens)
                        chain_of_text(events, query, look, size);
                hit |= size->blocks > 0;
                size_look(events, look, size, want, words);
        }
        return hit;
}

struct kvr__look *kvr__look_take(struct kvr_router *router, const struct kvr__query *query, bool counted)
{
        struct kvr__events *events = kvr__events_of(router);

        if (!events || !query->point_count || !atomic_load_explicit(&events->trusted, memory_order_acquire))
                return NULL;
        struct kvr__look *look = look_borrow(router, events);

        if (look) {
                bool hit = sizes_look(events, query, look);

                if (counted)
                        atomic_fetch_add_explicit(hit ? &events->map_hits : &events->map_misses, 1,
                                                  memory_order_relaxed);
        }
        return look;
}
