/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of the cache index and the sets of their holders. */
#include "index_int.h"

#define SPLIT_AHEAD 6

/* ---- tables ---- */

/* Takes one more bucket into use if the budget allows; chains just get longer otherwise. Returns the one to split. */
static uint32_t *buckets_extend(struct buckets *buckets)
{
        if (buckets->count >= kvr__pool_room(&buckets->pool) && !kvr__pool_grow(&buckets->pool))
                return NULL;
        uint32_t fresh = buckets->count++;

        if (fresh > buckets->mask)
                buckets->mask = buckets->mask * 2 + 1;
        *(uint32_t *)kvr__pool_at(&buckets->pool, fresh) = 0;
        return kvr__pool_at(&buckets->pool, fresh & (buckets->mask >> 1));
}

static void chain_push(struct kvr__index *index, uint32_t *first, uint32_t number, struct node *node)
{
        node->chain = *first;
        node->back = 0;
        if (*first)
                node_at(index, *first)->back = number;
        *first = number;
}

static void nodes_split(struct kvr__index *index)
{
        uint32_t *old = buckets_extend(&index->by_key);

        if (!old)
                return;
        uint32_t number = *old, kept = 0, moved = 0, soon = ((index->by_key.count - 1) & (index->by_key.mask >> 1)) + SPLIT_AHEAD;

        /* Buckets are split in their order, so the nodes that will have to be read are known. */
        if (soon < index->by_key.count)
                node_prefetch(index, *(uint32_t *)kvr__pool_at(&index->by_key.pool, soon));

        uint32_t *fresh = kvr__pool_at(&index->by_key.pool, index->by_key.count - 1);

        while (number) {
                struct node *node = node_at(index, number);
                uint32_t next = node->chain;
                bool moves = bucket_of(&index->by_key, key_hash(node->key)) == fresh;
                uint32_t *first = moves ? &moved : &kept;

                chain_push(index, first, number, node);
                number = next;
        }
        *old = kept;
        *fresh = moved;
}

static void pairs_split(struct kvr__index *index)
{
        uint32_t *old = buckets_extend(&index->by_holder);

        if (!old)
                return;
        uint32_t number = *old;

        *old = 0;
        while (number) {
                struct pair *pair = pair_at(index, number);
                uint32_t next = pair->chain;
                uint32_t *bucket = bucket_of(&index->by_holder, holder_hash(pair->node, pair->lane));

                pair->chain = *bucket;
                *bucket = number;
                number = next;
        }
}

static void shared_insert(struct kvr__index *index, uint32_t number)
{
        struct pair *pair = pair_at(index, number);
        uint32_t *bucket = bucket_of(&index->by_holder, holder_hash(pair->node, pair->lane));

        pair->chain = *bucket;
        *bucket = number;
        if (++index->shared_pairs > index->by_holder.count)
                pairs_split(index);
}

static void shared_remove(struct kvr__index *index, uint32_t number)
{
        const struct pair *pair = pair_at(index, number);
        uint32_t *link = bucket_of(&index->by_holder, holder_hash(pair->node, pair->lane));

        while (*link != number)
                link = &pair_at(index, *link)->chain;
        *link = pair->chain;
        index->shared_pairs--;
}

static uint32_t shared_find(const struct kvr__index *index, uint32_t node, uint16_t lane)
{
        uint32_t number = *bucket_of(&index->by_holder, holder_hash(node, lane));

        while (number) {
                const struct pair *pair = pair_at(index, number);

                if (pair->node == node && pair->lane == lane)
                        return number;
                number = pair->chain;
        }
        return 0;
}

/* ---- nodes ---- */

uint32_t kvr__node_find(const struct kvr__index *index, uint64_t key)
{
        uint32_t number = *bucket_of(&index->by_key, key_hash(key));

        while (number) {
                const struct node *node = node_at(index, number);

                if (node->key == key)
                        return number;
                number = node->chain;
        }
        return 0;
}

uint32_t kvr__node_make(struct kvr__index *index, uint64_t key, uint32_t size)
{
        uint32_t number = kvr__pool_take(&index->nodes);

        if (!number)
                return 0;
        struct node *node = node_at(index, number);

        *node = (struct node){.key = key, .size = size | NODE_LIVE};
        chain_push(index, bucket_of(&index->by_key, key_hash(key)), number, node);
        if (++index->node_count > index->by_key.count)
                nodes_split(index);
        return number;
}

void kvr__node_drop(struct kvr__index *index, uint32_t number)
{
        struct node *node = node_at(index, number);

        if (node->back)
                node_at(index, node->back)->chain = node->chain;
        else
                *bucket_of(&index->by_key, key_hash(node->key)) = node->chain;
        if (node->chain)
                node_at(index, node->chain)->back = node->back;
        if (node->note) {
                kvr__pool_give(&index->notes, node->note);
                index->note_count--;
        }
        node->size = 0;
        node->note = 0;
        index->node_count--;
        kvr__pool_give(&index->nodes, number);
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

uint32_t kvr__pair_find(const struct kvr__index *index, uint32_t number, uint16_t lane, uint32_t guess)
{
        const struct node *node = node_at(index, number);

        if (!(node->size & NODE_SHARED))
                return node->holder && pair_at(index, node->holder)->lane == lane ? node->holder : 0;
        if (guess && guess < index->pairs.fresh) {
                const struct pair *pair = pair_at(index, guess);

                if (pair->lane == lane && pair->node == number)
                        return guess;
        }
        return kvr__node_has(index, node, lane) ? shared_find(index, number, lane) : 0;
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
        node->size |= NODE_SHARED;
        shared_insert(index, only);
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

bool kvr__holder_add(struct kvr__index *index, uint32_t number)
{
        const struct pair *pair = pair_at(index, number);
        struct node *node = node_at(index, pair->node);

        if (!node->holder) {
                node->holder = number;
                return true;
        }
        if (!(node->size & NODE_SHARED) && !holder_share(index, node))
                return false;
        if (!set_add(index, node, pair->lane)) {
                holder_unshare(index, pair->node);
                return false;
        }
        shared_insert(index, number);
        return true;
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
