/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of the cache index and the sets of their holders. */
#include "index_int.h"

/* ---- tables ---- */

static uint32_t node_hash(const void *ctx, uint32_t number)
{
        return key_hash(node_at(ctx, number)->key);
}

static void node_prefetch(const void *ctx, uint32_t number)
{
        __builtin_prefetch(node_at(ctx, number));
}

static uint32_t pair_hash(const void *ctx, uint32_t number)
{
        const struct pair *pair = pair_at(ctx, number);

        return holder_hash(pair->node, pair->lane);
}

static void pair_prefetch(const void *ctx, uint32_t number)
{
        __builtin_prefetch(pair_at(ctx, number));
}

const struct kvr__table_items kvr__node_items = {node_hash, node_prefetch};
const struct kvr__table_items kvr__pair_items = {pair_hash, pair_prefetch};

static bool shared_insert(struct kvr__index *index, uint32_t number)
{
        return kvr__table_insert(&index->by_holder, pair_hash(index, number), number);
}

static void shared_remove(struct kvr__index *index, uint32_t number)
{
        kvr__table_remove(&index->by_holder, pair_hash(index, number), number);
}

static uint32_t shared_find(const struct kvr__index *index, uint32_t node, uint16_t lane)
{
        struct kvr__table_walk walk = kvr__table_begin(&index->by_holder, holder_hash(node, lane));
        uint32_t number;

        while ((number = kvr__table_next(&index->by_holder, &walk)) != 0) {
                const struct pair *pair = pair_at(index, number);

                if (pair->node == node && pair->lane == lane)
                        break;
        }
        return number;
}

/* ---- nodes ---- */

uint32_t kvr__node_find(const struct kvr__index *index, uint64_t key)
{
        struct kvr__table_walk walk = kvr__table_begin(&index->by_key, key_hash(key));
        uint32_t number;

        while ((number = kvr__table_next(&index->by_key, &walk)) != 0)
                if (node_at(index, number)->key == key)
                        break;
        return number;
}

/*
 * Chains are to stay runs of numbers. So free nodes are in a list from which any can be taken, and a chain goes on
 * with the number behind its last one if that is free. Else it begins anew at a run of those that are free for longest:
 * what was given back piece by piece is whole again by then.
 */
static bool node_is_free(const struct kvr__index *index, uint32_t number)
{
        return number && number < index->nodes.fresh && !(node_at(index, number)->size & NODE_LIVE);
}

static uint32_t node_take(struct kvr__index *index, uint32_t before)
{
        uint32_t number = before ? before + 1 : 0, fresh = index->nodes.fresh;
        bool more = fresh < kvr__pool_room(&index->nodes);

        if (more && number == fresh)
                return kvr__pool_take(&index->nodes);
        if (!node_is_free(index, number)) {
                number = index->node_free;
                if (!number || (more && index->nodes_free <= fresh / NODES_SLACK))
                        return kvr__pool_take(&index->nodes);
                for (int back = 0; back < RUN_BACK && node_is_free(index, number - 1); back++)
                        number--;
        }
        const struct node *node = node_at(index, number);

        *(node->note ? &node_at(index, node->note)->holder : &index->node_free) = node->holder;
        *(node->holder ? &node_at(index, node->holder)->note : &index->node_freed) = node->note;
        index->nodes_free--;
        return number;
}

static void node_give(struct kvr__index *index, uint32_t number)
{
        uint32_t before = index->node_freed;

        *node_at(index, number) = (struct node){.note = before};
        *(before ? &node_at(index, before)->holder : &index->node_free) = number;
        index->node_freed = number;
        index->nodes_free++;
}

uint32_t kvr__node_make(struct kvr__index *index, uint64_t key, uint32_t size, uint32_t before)
{
        uint32_t number = node_take(index, before);

        if (!number)
                return 0;
        *node_at(index, number) = (struct node){.key = key, .size = size | NODE_LIVE};
        if (!before || number != before + 1) {
                if (!kvr__table_insert(&index->by_key, key_hash(key), number)) {
                        node_give(index, number);
                        return 0;
                }
                node_at(index, number)->size |= NODE_LISTED;
        }
        index->node_count++;
        return number;
}

void kvr__node_drop(struct kvr__index *index, uint32_t number)
{
        struct node *node = node_at(index, number);

        if (node->size & NODE_LISTED)
                kvr__table_remove(&index->by_key, key_hash(node->key), number);
        if (node->note) {
                kvr__pool_give(&index->notes, node->note);
                index->note_count--;
        }
        node_give(index, number);
        index->node_count--;
}

/* ---- holders ---- */

bool kvr__node_has(const struct kvr__index *index, const struct node *node, uint16_t lane)
{
        if (!node->holder)
                return false;
        if (!(node->size & NODE_SHARED))
                return pair_at(index, node->holder)->lane == lane;
        for (uint32_t at = node->holder; at; at = chunk_at(index, at)->next) {
                const struct chunk *chunk = chunk_at(index, at);

                if (chunk->word == lane / 64)
                        return chunk->bits >> (lane % 64) & 1;
        }
        return false;
}

uint32_t kvr__pair_find_shared(const struct kvr__index *index, uint32_t number, uint16_t lane)
{
        return kvr__node_has(index, node_at(index, number), lane) ? shared_find(index, number, lane) : 0;
}

static bool set_add(struct kvr__index *index, struct node *node, uint16_t lane)
{
        for (uint32_t at = node->holder; at; at = chunk_at(index, at)->next) {
                struct chunk *chunk = chunk_at(index, at);

                if (chunk->word == lane / 64) {
                        chunk->bits |= 1ULL << (lane % 64);
                        return true;
                }
        }
        uint32_t fresh = kvr__pool_take(&index->chunks);

        if (!fresh)
                return false;
        *chunk_at(index, fresh) = (struct chunk){
                .next = node->holder,
                .word = (uint16_t)(lane / 64),
                .bits = 1ULL << (lane % 64),
        };
        node->holder = fresh;
        return true;
}

static void set_drop(struct kvr__index *index, struct node *node, uint16_t lane)
{
        uint32_t *link = &node->holder;

        while (chunk_at(index, *link)->word != lane / 64)
                link = &chunk_at(index, *link)->next;
        uint32_t at = *link;
        struct chunk *chunk = chunk_at(index, at);

        chunk->bits &= ~(1ULL << (lane % 64));
        if (!chunk->bits) {
                *link = chunk->next;
                kvr__pool_give(&index->chunks, at);
        }
}

/* From one holder to a set of one, so that a second can be added. */
static bool holder_share(struct kvr__index *index, struct node *node)
{
        uint32_t only = node->holder;

        node->holder = 0;
        if (!set_add(index, node, pair_at(index, only)->lane)) {
                node->holder = only;
                return false;
        }
        if (!shared_insert(index, only)) {
                kvr__pool_give(&index->chunks, node->holder);
                node->holder = only;
                return false;
        }
        node->size |= NODE_SHARED;
        return true;
}

/* Back to one holder, if the set has come down to that. */
static void holder_unshare(struct kvr__index *index, uint32_t number)
{
        struct node *node = node_at(index, number);
        uint32_t at = node->holder;
        const struct chunk *chunk = chunk_at(index, at);

        if (chunk->next || (chunk->bits & (chunk->bits - 1)))
                return;
        uint16_t lane = (uint16_t)(chunk->word * 64 + __builtin_ctzll(chunk->bits));
        uint32_t last = shared_find(index, number, lane);

        shared_remove(index, last);
        kvr__pool_give(&index->chunks, at);
        node->size &= ~NODE_SHARED;
        node->holder = last;
}

bool kvr__holder_add_second(struct kvr__index *index, uint32_t number)
{
        const struct pair *pair = pair_at(index, number);
        struct node *node = node_at(index, pair->node);

        if (!(node->size & NODE_SHARED) && !holder_share(index, node))
                return false;
        if (set_add(index, node, pair->lane)) {
                if (shared_insert(index, number))
                        return true;
                set_drop(index, node, pair->lane);
        }
        holder_unshare(index, pair->node);
        return false;
}

void kvr__holder_drop(struct kvr__index *index, uint32_t number)
{
        const struct pair *pair = pair_at(index, number);
        struct node *node = node_at(index, pair->node);

        if (!(node->size & NODE_SHARED)) {
                kvr__node_drop(index, pair->node);
                return;
        }
        shared_remove(index, number);
        set_drop(index, node, pair->lane);
        holder_unshare(index, pair->node);
}
