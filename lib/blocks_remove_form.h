/* SPDX-License-Identifier: Apache-2.0 */
/* Taking removed blocks out of the index: part of a form, see blocks_form.h. */

/* As groups of blocks to store, but with one stage more: it is the node that tells whether the table of keys
 * will be needed. */
struct removal {
        uint32_t count;
        uint32_t handle_changes, key_changes; /* of the tables, when the lines were found */
        uint64_t wants[BLOCK_GROUP];
        struct kvr__places *lines[BLOCK_GROUP];
        _Atomic uint64_t *places[BLOCK_GROUP]; /* of the handles; NULL: not found */
        uint64_t items[BLOCK_GROUP];
        uint64_t key_wants[BLOCK_GROUP];
        struct kvr__places *key_lines[BLOCK_GROUP]; /* NULL: not asked for */
};

struct remove {
        struct kvr__blocks *blocks;
        struct kvr__blocks_table *handles;
        const uint64_t *hashes;
        uint32_t left;
        struct kvr_events_account *account;
        uint16_t lane;
};

static void removal_prepare(struct remove *remove, struct removal *group)
{
        struct kvr__aim aim = kvr__aim_of(remove->handles);

        group->count = remove->left < BLOCK_GROUP ? remove->left : BLOCK_GROUP;
        group->handle_changes = kvr__blocks_table_changes(remove->handles);
        remove->left -= group->count;
        for (uint32_t i = 0; i < group->count; i++) {
                group->wants[i] = block_handle_want(remove->blocks, *remove->hashes++);
                group->lines[i] = kvr__aim_line(&aim, kvr__item_hash(group->wants[i]));
                KVR__PREFETCH_MANY(group->lines[i]);
        }
}

static void removal_touch(const struct remove *remove, struct removal *group)
{
        struct kvr__blocks_spot spot;

        for (uint32_t i = 0; i < group->count; i++) {
                group->places[i] = kvr__blocks_table_find_in(remove->handles, group->lines[i],
                                                             group->wants[i], &group->items[i], &spot);
                if (group->places[i])
                        __builtin_prefetch(block_node_at(remove->blocks, block_handle_node(group->items[i])),
                                           1);
        }
}

static void removal_touch_keys(const struct remove *remove, struct removal *group)
{
        struct kvr__blocks *blocks = remove->blocks;
        struct kvr__aim aim = kvr__aim_of(&blocks->by_key);

        group->key_changes = kvr__blocks_table_changes(&blocks->by_key);
        for (uint32_t i = 0; i < group->count; i++) {
                group->key_lines[i] = NULL;
                if (!group->places[i])
                        continue;
                const struct block_node *node = block_node_at(blocks, block_handle_node(group->items[i]));
                uint64_t bits = atomic_load_explicit(&node->bits, memory_order_relaxed);

                /* The last holder's going takes the node out of its line. */
                if (bits & (bits - 1))
                        continue;
                uint64_t key = atomic_load_explicit(&node->key, memory_order_relaxed);

                group->key_wants[i] = kvr__item_of(block_key_hash(blocks, key));
                group->key_lines[i] = kvr__aim_line(&aim, kvr__item_hash(group->key_wants[i]));
                KVR__PREFETCH_MANY(group->key_lines[i]);
        }
}

/* One copy is removed and the block stays. */
static bool copy_remove(const struct remove *remove, uint64_t want, uint64_t item, _Atomic uint64_t *place)
{
        uint32_t left;

        if (!kvr__block_count_down(&remove->blocks->copies,
                                   block_lane_hash(remove->blocks, remove->lane, kvr__item_hash(want),
                                                   block_handle_node(item)),
                                   &left))
                return false;
        if (!left)
                atomic_store_explicit(place, item & ~(uint64_t)BLOCK_COPIED, memory_order_relaxed);
        remove->account->copies_removed++;
        return true;
}

/* False when more than this lane and this line of the table of keys have to do with it; nothing is done then. */
static inline bool node_end_quickly(struct kvr__blocks *blocks, uint16_t lane, uint32_t number,
                                    uint64_t key_want, struct kvr__places *line)
{
        struct block_node *node = block_node_at(blocks, number);
        uint64_t only = 1ULL << (lane % 64), item = key_want | number;
        uint32_t word = atomic_load_explicit(&node->state, memory_order_relaxed) & BLOCK_WORD_MASK, room;

        if (word != lane / 64U || atomic_load_explicit(&node->bits, memory_order_relaxed) != only ||
            atomic_load_explicit(&node->more, memory_order_relaxed))
                return false;
        uint32_t hits = kvr__line_hits_own(line, key_want, &room);

        if (!hits)
                return false;
        _Atomic uint64_t *place = &line->items[__builtin_ctz(hits)];

        if (atomic_load_explicit(place, memory_order_relaxed) != item)
                return false;
        atomic_store_explicit(&node->bits, 0, memory_order_release);
        kvr__blocks_table_take(&blocks->by_key, line, place);
        kvr__block_node_give(blocks, number);
        return true;
}

/* The same, where lines have moved meanwhile, or the block has more to do with. */
static __attribute__((noinline)) void step_remove_slowly(const struct remove *remove, uint64_t want)
{
        struct kvr__places *line = kvr__blocks_table_line(remove->handles, kvr__item_hash(want));
        struct kvr__blocks_spot spot;
        uint64_t item;
        _Atomic uint64_t *place = kvr__blocks_table_find_in(remove->handles, line, want, &item, &spot);

        if (!place) {
                remove->account->unknown++;
                return;
        }
        if (kvr__item_number(item) & BLOCK_COPIED && copy_remove(remove, want, item, place))
                return;
        kvr__blocks_table_take(remove->handles, line, place);
        kvr__block_handle_end(remove->blocks, remove->lane, kvr__item_hash(want), kvr__item_number(item));
        remove->blocks->holders--;
        remove->account->removed++;
}

static inline bool step_remove_quickly(const struct remove *remove, const struct removal *group, uint32_t i)
{
        struct kvr__blocks *blocks = remove->blocks;
        _Atomic uint64_t *place = group->places[i];
        uint64_t item = group->items[i];

        /* Without a line of its key the block has other holders, or is none. */
        if (group->handle_changes != kvr__blocks_table_changes(remove->handles) || !group->key_lines[i] ||
            group->key_changes != kvr__blocks_table_changes(&blocks->by_key) ||
            atomic_load_explicit(place, memory_order_relaxed) != item || item & BLOCK_COPIED)
                return false;
        if (!node_end_quickly(blocks, remove->lane, kvr__item_number(item), group->key_wants[i],
                              group->key_lines[i]))
                return false;
        kvr__blocks_table_take(remove->handles, group->lines[i], place);
        return true;
}

static void group_remove(const struct remove *remove, const struct removal *group)
{
        bool plain = !remove->blocks->aliases.items;
        uint32_t quick = 0;

        for (uint32_t i = 0; i < group->count; i++)
                if (plain && step_remove_quickly(remove, group, i))
                        quick++;
                else
                        step_remove_slowly(remove, group->wants[i]);
        remove->blocks->holders -= quick;
        remove->account->removed += quick;
}

static void form_remove(struct kvr__blocks *blocks, uint16_t lane, const uint64_t *hashes, uint32_t count,
                        struct kvr_events_account *account)
{
        struct remove remove = {blocks, &block_lane_at(blocks, lane)->handles, hashes, count, account, lane};
        struct removal groups[4];
        uint32_t now = 0;

        if (!remove.handles->items) {
                account->unknown += count;
                return;
        }
        removal_prepare(&remove, &groups[0]);
        removal_touch(&remove, &groups[0]);
        removal_prepare(&remove, &groups[1]);
        removal_touch_keys(&remove, &groups[0]);
        removal_touch(&remove, &groups[1]);
        removal_prepare(&remove, &groups[2]);
        while (groups[now].count) {
                removal_touch_keys(&remove, &groups[(now + 1) % 4]);
                removal_touch(&remove, &groups[(now + 2) % 4]);
                removal_prepare(&remove, &groups[(now + 3) % 4]);
                group_remove(&remove, &groups[now]);
                now = (now + 1) % 4;
        }
}
