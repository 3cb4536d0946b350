/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much of a chain each lane holds.
 *
 *     blocks   0 . . . 15 | 16 . . . 31 | 32 . . . 47 | ...        every sixteenth is looked at, all at once
 *     holders        abcd          abc             a               d fell out in the second part, b and c in
 *                                                                  the third: those parts are looked into
 *
 * Up to 32 places are looked at in one go, so that their cache misses overlap; longer chains take steps of
 * 256, 4096... first. The part in which a lane's blocks end is always walked block by block, so what is
 * reported ends where the lane was seen to hold the last and not to hold the next; holes before that part are
 * seen where a step meets them.
 *
 * Blocks that were stored in one go have nodes one after the other, so a walk asks for the nodes that follow
 * the one before the part, and looks a key up only where another is found there.
 */
#include "blocks_int.h"

#define FAN        32 /* places looked at in one go */
#define STEP       16
#define ROOM       4096 /* words for the sets of one call */
#define RETRIES    64   /* per call, of look-ups that a moving line disturbed */
#define NODES_LINE 2    /* nodes that lie in one cache line, at least */

struct reader {
        const struct kvr__blocks *blocks;
        const uint64_t *keys;
        uint32_t *depth;
        uint32_t words;
        uint32_t retries;
        uint32_t nodes_end;
};

/* The number of the node with that key; 0 if there is none, or if it was missed for being moved about. */
static uint32_t node_find(struct reader *reader, uint64_t key, uint64_t hash)
{
        const struct kvr__blocks_table *by_key = &reader->blocks->by_key;

        for (;;) {
                uint32_t changes = atomic_load_explicit(&by_key->changes, memory_order_acquire);
                struct kvr__blocks_walk walk = kvr__blocks_walk_begin(by_key, hash);

                while (kvr__blocks_walk_next(&walk)) {
                        uint32_t number = kvr__item_number(walk.item);

                        if (number && atomic_load_explicit(&block_node_at(reader->blocks, number)->key,
                                                           memory_order_acquire) == key)
                                return number;
                }
                if (!kvr__blocks_table_moved(by_key, changes, walk.at) || !reader->retries)
                        return 0;
                reader->retries--;
        }
}

struct probe {
        uint32_t at;   /* index of the block */
        uint32_t node; /* or 0; most likely the block's */
        uint64_t hash;
};

/* What the line of a probe's key says of it; most likely the node, or 0. */
static inline uint32_t line_node(const struct kvr__blocks_table *by_key, const struct kvr__places *line,
                                 uint64_t hash)
{
        uint32_t hits = kvr__line_hits(line, (uint32_t)hash);

        if (hits) {
                uint64_t item = atomic_load_explicit(&line->items[__builtin_ctz(hits)], memory_order_acquire);

                if ((item & ~(uint64_t)KVR__NUMBER_MAX) == kvr__item_of(hash))
                        return kvr__item_number(item);
        } else if (!kvr__is_link(atomic_load_explicit(&line->items[KVR__LINK_PLACE], memory_order_acquire))) {
                return 0;
        }
        struct kvr__blocks_walk walk = kvr__blocks_walk_begin(by_key, hash);

        return kvr__blocks_walk_next(&walk) ? kvr__item_number(walk.item) : 0;
}

static void probes_find(const struct reader *reader, struct probe *probes, uint32_t count)
{
        const struct kvr__blocks *blocks = reader->blocks;
        struct kvr__aim aim = kvr__aim_of(&blocks->by_key);
        const struct kvr__places *lines[FAN + 1];

        for (uint32_t i = 0; i < count; i++) {
                probes[i].node = 0;
                probes[i].hash = block_key_hash(blocks, reader->keys[probes[i].at]);
                if (!aim.count)
                        continue;
                lines[i] = kvr__aim_line(&aim, probes[i].hash);
                KVR__PREFETCH_MANY(lines[i]);
        }
        for (uint32_t i = 0; i < count && aim.count; i++) {
                probes[i].node = line_node(&blocks->by_key, lines[i], probes[i].hash);
                if (probes[i].node)
                        KVR__PREFETCH_MANY(block_node_at(blocks, probes[i].node));
        }
}

/* ret = those of `set` that hold the block. Returns its node; 0 when nobody holds it. */
static uint32_t probe_meet(struct reader *reader, const struct probe *probe, const uint64_t *set,
                           uint64_t *ret)
{
        uint64_t key = reader->keys[probe->at];
        uint32_t node = probe->node;

        for (uint32_t tries = 0; tries < 3; tries++) {
                if (node && kvr__block_node_meet(reader->blocks, node, key, set, reader->words, ret))
                        return node;
                node = node_find(reader, key, probe->hash);
                if (!node)
                        break;
        }
        for (uint32_t w = 0; w < reader->words; w++)
                ret[w] = 0;
        return 0;
}

/* Takes those who are not in `kept` out of the set, into `gone`. */
static void set_divide(uint64_t *set, const uint64_t *kept, uint64_t *gone, uint32_t words,
                       bool *ret_any_gone, bool *ret_any_left)
{
        uint64_t all_gone = 0, all_left = 0;

        for (uint32_t w = 0; w < words; w++) {
                /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): all words were filled in */
                gone[w] = set[w] & ~kept[w];
                set[w] = kept[w];
                all_gone |= gone[w];
                all_left |= kept[w];
        }
        *ret_any_gone = all_gone != 0;
        *ret_any_left = all_left != 0;
}

static inline void word_assign(struct reader *reader, uint32_t word, uint64_t bits, uint32_t depth)
{
        for (; bits; bits &= bits - 1)
                reader->depth[word * 64 + (uint32_t)__builtin_ctzll(bits)] = depth;
}

static void depth_assign(struct reader *reader, const uint64_t *set, uint32_t depth)
{
        for (uint32_t w = 0; w < reader->words; w++)
                /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): all words were filled in */
                word_assign(reader, w, set[w], depth);
}

static uint32_t step_of(uint32_t count)
{
        uint32_t step = 1;

        while (count / step > FAN)
                step *= STEP;
        return step;
}

/* The last block with a key of each step within [from, high). Returns how many; *ret_next is where the
 * steps end: past the last whole one, as the end of the part is looked into, not looked at. */
static uint32_t probes_place(const struct reader *reader, uint32_t from, uint32_t high, uint32_t step,
                             struct probe *ret_probes, uint32_t *ret_next)
{
        uint32_t count = 0;

        while (high - from > step || (step == 1 && from < high)) {
                uint32_t at = from + step;

                while (at > from && !block_key_is(reader->keys[at - 1]))
                        at--;
                if (at > from)
                        ret_probes[count++].at = at - 1;
                from += step;
        }
        *ret_next = from;
        return count;
}

/* A stretch of blocks of which it is not known yet how much the lanes of the set hold. */
struct part {
        uint64_t *set;
        uint32_t depth;      /* blocks that all of them hold */
        uint32_t from, high; /* the blocks in question */
        uint32_t node;       /* of the block before `from`, or 0 */
};

static void part_prefetch(const struct reader *reader, const struct part *part)
{
        uint32_t count = part->high - part->from < STEP ? part->high - part->from : STEP;

        if (part->node && reader->nodes_end - part->node > count)
                for (uint32_t i = 1; i <= count; i += NODES_LINE)
                        __builtin_prefetch(block_node_at(reader->blocks, part->node + i));
}

/* Block by block. */
static void part_walk(struct reader *reader, const struct part *part, uint64_t *room)
{
        uint64_t *kept = room, *gone = room + reader->words;
        struct probe probes[FAN + 1];
        uint32_t next, depth = part->depth, strays = 0, looked = 0, ahead = part->node;
        uint32_t count = probes_place(reader, part->from, part->high, 1, probes, &next);
        bool any_gone, any_left;

        for (uint32_t i = 0; i < count; i++) {
                struct probe *probe = &probes[i];
                uint32_t follows = ahead ? ahead + 1 : 0;

                if (i >= looked && follows && follows < reader->nodes_end &&
                    atomic_load_explicit(&block_node_at(reader->blocks, follows)->key,
                                         memory_order_acquire) == reader->keys[probe->at]) {
                        probe->node = follows;
                        probe->hash = block_key_hash(reader->blocks, reader->keys[probe->at]);
                } else if (i >= looked) {
                        /* Once is where another request went on from here; more often, they lie scattered. */
                        looked = !ahead || strays++ ? count : i + 1;
                        probes_find(reader, probe, looked - i);
                }
                ahead = probe_meet(reader, probe, part->set, kept);
                set_divide(part->set, kept, gone, reader->words, &any_gone, &any_left);
                if (any_gone)
                        depth_assign(reader, gone, depth);
                if (!any_left)
                        return;
                depth = probe->at + 1;
        }
        depth_assign(reader, part->set, depth);
}

static void part_split(struct reader *reader, struct part *part, uint64_t *room, uint32_t sets);

static void part_resolve(struct reader *reader, struct part *part, uint64_t *room, uint32_t sets)
{
        if (step_of(part->high - part->from) == 1)
                part_walk(reader, part, room);
        else
                part_split(reader, part, room, sets);
}

/* `sets` sets have room at `room`. */
static void part_split(struct reader *reader, struct part *part, uint64_t *room, uint32_t sets)
{
        uint32_t step = step_of(part->high - part->from), next, waiting = 0, levels = 1;
        struct probe probes[FAN + 1];
        struct part parts[FAN + 1];
        uint32_t count = probes_place(reader, part->from, part->high, step, probes, &next);
        uint64_t *kept = room;
        bool any_gone, any_left = true;

        for (uint32_t s = step; s > STEP; s /= STEP)
                levels++;
        uint32_t own = sets / (levels + 1) < FAN + 2 ? sets / (levels + 1) : FAN + 2;
        uint64_t *room_left = room + (size_t)own * reader->words;

        probes_find(reader, probes, count);
        for (uint32_t i = 0; i < count && any_left; i++) {
                uint32_t node = probe_meet(reader, &probes[i], part->set, kept);
                uint64_t *gone = room + (size_t)(waiting + 1) * reader->words;

                set_divide(part->set, kept, gone, reader->words, &any_gone, &any_left);
                if (any_gone) {
                        parts[waiting] =
                                (struct part){gone, part->depth, part->from, probes[i].at, part->node};
                        part_prefetch(reader, &parts[waiting++]);
                }
                part->depth = part->from = probes[i].at + 1;
                part->node = node;
                if (waiting + 1 < own)
                        continue;
                while (waiting)
                        part_resolve(reader, &parts[--waiting], room_left, sets - own);
        }
        if (any_left) {
                /* Skipped steps were gaps. */
                part->node = part->from == next ? part->node : 0;
                part->from = next;
                part_prefetch(reader, part);
        }
        for (uint32_t i = 0; i < waiting; i++)
                part_resolve(reader, &parts[i], room_left, sets - own);
        if (any_left)
                part_resolve(reader, part, room, sets);
}

void kvr__blocks_depths(const struct kvr__blocks *blocks, const struct kvr__chain *chain,
                        const uint64_t *want, uint32_t words, uint32_t *ret_depth)
{
        uint64_t room[ROOM], any = 0;
        struct reader reader = {
                blocks, chain->keys, ret_depth,
                words,  RETRIES,     atomic_load_explicit(&blocks->nodes_end, memory_order_acquire),
        };

        for (uint32_t w = 0; w < words; w++) {
                room[w] = want[w] & atomic_load_explicit(&blocks->open[w], memory_order_acquire);
                word_assign(&reader, w, want[w] & ~room[w], 0);
                any |= room[w];
        }
        struct part all = {room, 0, 0, chain->count, 0};

        if (any)
                part_resolve(&reader, &all, room + words, ROOM / words - 1);
}
