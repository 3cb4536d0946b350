/* SPDX-License-Identifier: Apache-2.0 */
/* Taking stored blocks into the index: part of a form, see blocks_form.h. */

/*
 * Memory is slow beside everything else here, so blocks go through in groups, and of three groups that follow
 * one another, each is at another stage:
 *
 *     prepare   hashes and keys; the lines of both tables are asked for
 *     touch     the lines are there; what they point to is asked for
 *     apply     all is there
 *
 * Chains are mostly stored in one go and their nodes made one after the other, so where another replica has
 * stored a chain before, the next block's node is the next node, and the table of keys is not asked at all.
 */
struct group {
        uint32_t from, count;
        uint32_t ahead; /* node that the first block should have, and so on; 0 nobody knows */
        uint32_t handle_changes, key_changes; /* of the tables, when the lines were found */
        uint64_t handle_wants[BLOCK_GROUP], key_wants[BLOCK_GROUP], keys[BLOCK_GROUP];
        struct kvr__places *handle_lines[BLOCK_GROUP], *key_lines[BLOCK_GROUP];
        uint32_t nodes[BLOCK_GROUP];          /* most likely; 0 nobody knows */
        _Atomic uint64_t *frees[BLOCK_GROUP]; /* where a key's item goes, as there is none yet; NULL: ask */
};

struct store {
        struct kvr__blocks *blocks;
        struct kvr__blocks_table *handles;
        const struct kvr_blocks_stored *stored;
        struct kvr_events_account *account;
        uint64_t key;   /* of the block before the next group */
        uint32_t ahead; /* its node's successor, or 0 */
        uint32_t at;    /* first block of the next group */
        uint16_t lane;
};

static inline void key_ask(const struct store *store, const struct kvr__aim *aim, struct group *group,
                           uint32_t i)
{
        group->key_wants[i] = kvr__item_of(block_key_hash(store->blocks, group->keys[i]));
        group->key_lines[i] = kvr__aim_line(aim, kvr__item_hash(group->key_wants[i]));
        KVR__PREFETCH_MANY(group->key_lines[i]);
}

static void group_prepare(struct store *store, struct group *group)
{
        const struct kvr_blocks_stored *stored = store->stored;
        uint32_t left = stored->count - store->at, size = stored->block_tokens, at = store->at;
        uint32_t end = atomic_load_explicit(&store->blocks->nodes_end, memory_order_relaxed);
        struct kvr__aim aim = kvr__aim_of(store->handles);

        group->from = at;
        group->count = left < BLOCK_GROUP ? left : BLOCK_GROUP;
        group->ahead = 0;
        if (!group->count)
                return;
        group->handle_changes = kvr__blocks_table_changes(store->handles);
        for (uint32_t i = 0; i < group->count; i++) {
                group->handle_wants[i] = block_handle_want(store->blocks, stored->hashes[at + i]);
                group->handle_lines[i] = kvr__aim_line(&aim, kvr__item_hash(group->handle_wants[i]));
                KVR__PREFETCH_MANY(group->handle_lines[i]);
        }
        store->key = kvr__chain_run(store->key, stored->tokens + (size_t)at * size, size, group->count,
                                    stored->extra ? stored->extra + at : NULL, group->keys);
        store->at += group->count;
        if (store->ahead && store->ahead < end && end - store->ahead > group->count) {
                group->ahead = store->ahead;
                for (uint32_t i = 0; i < group->count; i++)
                        KVR__PREFETCH_MANY(block_node_at(store->blocks, group->ahead + i));
                return;
        }
        aim = kvr__aim_of(&store->blocks->by_key);
        group->key_changes = kvr__blocks_table_changes(&store->blocks->by_key);
        for (uint32_t i = 0; i < group->count; i++)
                key_ask(store, &aim, group, i);
}

/* What the line of a block's key says of it. */
static inline void key_touch(const struct kvr__blocks *blocks, struct group *group, uint32_t i)
{
        const struct kvr__places *line = group->key_lines[i];
        uint32_t room, hits = kvr__line_hits_own(line, group->key_wants[i], &room);
        uint64_t last = atomic_load_explicit(&line->items[KVR__LINK_PLACE], memory_order_relaxed);

        if (hits) {
                uint64_t item = atomic_load_explicit(&line->items[__builtin_ctz(hits)], memory_order_relaxed);

                group->nodes[i] = kvr__is_link(item) ? 0 : kvr__item_number(item);
                __builtin_prefetch(block_node_at(blocks, group->nodes[i]), 1);
        } else if (kvr__is_link(last)) {
                __builtin_prefetch(kvr__reserve_at(&blocks->lines, last));
        } else if (room) {
                group->frees[i] = (_Atomic uint64_t *)&line->items[__builtin_ctz(room)];
        }
}

static void group_touch(struct store *store, struct group *group)
{
        struct kvr__blocks *blocks = store->blocks;
        struct kvr__aim aim = kvr__aim_of(&blocks->by_key);
        uint32_t followed = 0;

        for (uint32_t i = 0; i < group->count; i++)
                kvr__line_prefetch_more(&blocks->lines, group->handle_lines[i]);
        if (group->ahead) {
                while (followed < group->count &&
                       block_node_key(blocks, group->ahead + followed) == group->keys[followed]) {
                        group->nodes[followed] = group->ahead + followed;
                        group->frees[followed] = NULL; /* by its turn the node may be another block's */
                        followed++;
                }
                /* Not asked for yet. */
                group->key_changes = kvr__blocks_table_changes(&blocks->by_key);
                for (uint32_t i = followed; i < group->count; i++) {
                        group->nodes[i] = 0;
                        group->frees[i] = NULL;
                        key_ask(store, &aim, group, i);
                }
        } else {
                for (uint32_t i = 0; i < group->count; i++) {
                        group->nodes[i] = 0;
                        group->frees[i] = NULL;
                        key_touch(blocks, group, i);
                }
        }
        if (group->count)
                store->ahead = group->nodes[group->count - 1] ? group->nodes[group->count - 1] + 1 : 0;
}

/* False when there is no room. */
static bool copy_add(const struct store *store, _Atomic uint64_t *place, uint64_t item, uint64_t handle_want)
{
        struct kvr__blocks *blocks = store->blocks;
        uint32_t node = block_handle_node(item);
        uint64_t hash = block_lane_hash(blocks, store->lane, kvr__item_hash(handle_want), node);

        if (!kvr__block_count_up(&blocks->copies, hash))
                return false;
        atomic_store_explicit(place, item | BLOCK_COPIED, memory_order_relaxed);
        store->account->repeated++;
        return true;
}

/* The node of a block that other lanes hold, held by this one too; 0 when there is no room. */
static uint32_t node_share(const struct store *store, uint32_t node)
{
        struct kvr__blocks *blocks = store->blocks;

        switch (kvr__block_holder_add(blocks, node, store->lane)) {
        case BLOCK_HOLDER_NEW:
                return node;
        case BLOCK_HOLDER_KNOWN:
                return kvr__block_count_up(&blocks->aliases, block_lane_hash(blocks, store->lane, 0, node))
                               ? node
                               : 0;
        case BLOCK_HOLDER_NO_ROOM:
                break;
        }
        return 0;
}

/* The same, where more has to be asked. */
static uint32_t node_hold_slowly(const struct store *store, const struct group *group, uint32_t i)
{
        struct kvr__blocks *blocks = store->blocks;
        uint64_t key = group->keys[i], hash = block_key_hash(blocks, key), item;
        struct kvr__blocks_spot spot;

        if (kvr__blocks_table_find(&blocks->by_key, hash, &item, &spot)) {
                uint32_t node = kvr__block_node_find(blocks, key, hash);

                if (node)
                        return node_share(store, node);
        }
        uint32_t node = kvr__block_node_new(blocks, key, store->lane);

        if (node && !kvr__blocks_table_put_at(&blocks->by_key, &spot, kvr__item_of(hash), node)) {
                kvr__block_node_give(blocks, node);
                return 0;
        }
        return node;
}

/* The node of a block, held by the lane from now on; 0 when there is no room. */
static __attribute__((noinline)) uint32_t node_hold(const struct store *store, const struct group *group,
                                                    uint32_t i)
{
        uint32_t node = group->nodes[i];

        return node && block_node_key(store->blocks, node) == group->keys[i]
                       ? node_share(store, node)
                       : node_hold_slowly(store, group, i);
}

/* The same for a block that nobody holds, if all is as it was when its line was looked at; else 0. */
static inline uint32_t node_hold_new(const struct store *store, const struct group *group, uint32_t i)
{
        struct kvr__blocks *blocks = store->blocks;
        _Atomic uint64_t *place = group->frees[i];

        if (!place || group->key_changes != kvr__blocks_table_changes(&blocks->by_key) ||
            atomic_load_explicit(place, memory_order_relaxed))
                return 0;
        uint32_t node = kvr__block_node_new(blocks, group->keys[i], store->lane);

        if (node)
                kvr__blocks_table_put_free(&blocks->by_key, place, group->key_wants[i], node);
        return node;
}

/* A handle for a node that the lane holds by now. False when there is no room. */
static inline bool handle_put(const struct store *store, const struct kvr__blocks_spot *spot, uint64_t want,
                              uint32_t node)
{
        if (kvr__blocks_table_put_at(store->handles, spot, want, node))
                return true;
        kvr__block_handle_end(store->blocks, store->lane, 0, node);
        return false;
}

/* A handle that is known: one copy more, or another block from now on. False when there is no room. */
static __attribute__((noinline)) bool step_known(const struct store *store, const struct group *group,
                                                 uint32_t i, uint64_t item, _Atomic uint64_t *place)
{
        static const struct kvr__blocks_spot anywhere = {NULL, 0};
        uint64_t want = group->handle_wants[i];

        if (block_node_key(store->blocks, block_handle_node(item)) == group->keys[i])
                return copy_add(store, place, item, want);
        /* The engine means another block by it now: it began anew, or two of its hashes are alike. */
        kvr__blocks_table_remove(store->handles, kvr__item_hash_of(want), place);
        kvr__block_handle_end(store->blocks, store->lane, kvr__item_hash(want), kvr__item_number(item));
        store->blocks->holders--;
        store->account->removed++;
        uint32_t node = node_hold(store, group, i);

        if (!node || !handle_put(store, &anywhere, want, node))
                return false;
        store->blocks->holders++;
        store->account->stored++;
        return true;
}

/* Takes blocks until there is no room; returns how many. */
static uint32_t group_apply(const struct store *store, const struct group *group)
{
        uint32_t fresh = 0, i;

        for (i = 0; i < group->count; i++) {
                struct kvr__blocks_spot spot;
                uint64_t item, want = group->handle_wants[i];
                bool moved = group->handle_changes != kvr__blocks_table_changes(store->handles);
                struct kvr__places *line =
                        moved ? kvr__blocks_table_line(store->handles, kvr__item_hash(want))
                              : group->handle_lines[i];
                _Atomic uint64_t *place = kvr__blocks_table_find_in(store->handles, line, want, &item, &spot);

                if (__builtin_expect(place != NULL, 0)) {
                        if (!step_known(store, group, i, item, place))
                                break;
                        continue;
                }
                uint32_t node = node_hold_new(store, group, i);

                if (!node)
                        node = node_hold(store, group, i);
                if (!node || !handle_put(store, &spot, want, node))
                        break;
                fresh++;
        }
        store->blocks->holders += fresh;
        store->account->stored += fresh;
        return i;
}

static void stored_take(struct store *store)
{
        struct group groups[3];
        uint32_t now = 0;

        group_prepare(store, &groups[0]);
        group_touch(store, &groups[0]);
        group_prepare(store, &groups[1]);
        while (groups[now].count) {
                struct group *next = &groups[(now + 1) % 3], *later = &groups[(now + 2) % 3];

                group_touch(store, next);
                group_prepare(store, later);
                uint32_t taken = group_apply(store, &groups[now]);

                if (taken < groups[now].count) {
                        /* What follows could not be reached over the gap. */
                        store->account->refused += store->stored->count - groups[now].from - taken;
                        return;
                }
                now = (now + 1) % 3;
        }
}

static bool parent_find(struct store *store)
{
        uint64_t hash = block_handle_hash(store->blocks, store->stored->parent);
        struct kvr__blocks_walk walk = kvr__blocks_walk_own(store->handles, hash);

        if (!kvr__blocks_walk_next(&walk))
                return false;
        uint32_t node = block_handle_node(walk.item);

        store->key = block_node_key(store->blocks, node);
        store->ahead = node + 1;
        return true;
}

static void form_store(struct kvr__blocks *blocks, uint16_t lane, const struct kvr_blocks_stored *stored,
                       struct kvr_events_account *account)
{
        struct store store = {.blocks = blocks,
                              .handles = &block_lane_at(blocks, lane)->handles,
                              .stored = stored,
                              .account = account,
                              .lane = lane};

        if (!stored->block_tokens || (uint64_t)stored->count * stored->block_tokens != stored->token_count) {
                account->orphans += stored->count;
                return;
        }
        if (!stored->has_parent) {
                store.key = kvr__chain_root(stored->adapter, stored->salt, stored->block_tokens);
        } else if (!parent_find(&store)) {
                account->orphans += stored->count;
                return;
        }
        if (kvr__blocks_table_begin(store.handles) && kvr__blocks_table_begin(&blocks->by_key))
                stored_take(&store);
        else
                account->refused += stored->count;
}
