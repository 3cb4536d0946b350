/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <string.h>

#define FIRST_LINES 16
#define TAG_SHIFT   16
#define FILL_NUM    13 /* a line is split off for every 13/2 items: little overflows, 10 bytes an item */
#define FILL_DEN    2

_Static_assert(sizeof(struct kvr__line) == 64, "a bucket is a cache line");

bool kvr__table_init(struct kvr__table *table, struct kvr__budget *budget, size_t segment_bytes, bool vital,
                     const struct kvr__table_items *ask, const void *ctx)
{
        *table = (struct kvr__table){.count = FIRST_LINES, .mask = FIRST_LINES - 1, .ask = ask, .ctx = ctx};
        if (!kvr__pool_init(&table->lines, budget, sizeof(struct kvr__line), segment_bytes, vital) ||
            !kvr__pool_init(&table->reserve, budget, sizeof(struct kvr__line), segment_bytes / 4, true) ||
            !kvr__pool_grow(&table->lines))
                return false;
        memset(kvr__pool_at(&table->lines, 0), 0, FIRST_LINES * sizeof(struct kvr__line));
        return true;
}

void kvr__table_fini(struct kvr__table *table)
{
        kvr__pool_fini(&table->lines);
        kvr__pool_fini(&table->reserve);
}

/* The last line of a bucket, and how much of it is used. */
struct end {
        struct kvr__line *line;
        uint32_t used;
};

/* Without a branch per place: where the first free one is cannot be foretold, and a wrong guess costs more than
 * looking at all of them. */
static struct end end_of(const struct kvr__table *table, struct kvr__line *line)
{
        uint32_t used = 0;

        while (line->more)
                line = kvr__pool_at(&table->reserve, line->more);
        for (uint32_t i = 0; i < KVR__LINE_ITEMS; i++)
                used += line->numbers[i] != 0;
        return (struct end){line, used};
}

static inline bool end_put(struct kvr__table *table, struct end *end, uint16_t tag, uint32_t number)
{
        if (end->used == KVR__LINE_ITEMS) {
                uint32_t more = kvr__pool_take(&table->reserve);

                if (!more)
                        return false;
                end->line->more = more;
                *end = (struct end){kvr__pool_at(&table->reserve, more), 0};
                memset(end->line, 0, sizeof(*end->line));
        }
        end->line->numbers[end->used] = number;
        end->line->tags[end->used++] = tag;
        return true;
}

/* Is it the upper half of the split that the item belongs to? `bit` is the bit of the hash that decides. */
static bool item_moves(const struct kvr__table *table, uint16_t tag, uint32_t number, uint32_t bit)
{
        uint32_t hash =
                bit >> TAG_SHIFT ? (uint32_t)tag << TAG_SHIFT : table->ask->hash_of(table->ctx, number);

        return hash & bit;
}

/*
 * Lines are split in the order of their numbers, so what the next splits read is known: the line after the
 * next is asked for, and of the next, which came with the split before, the items, as long as their hashes
 * are needed.
 */
static void split_prefetch(const struct kvr__table *table)
{
        uint32_t half = (table->mask >> 1) + 1;
        const struct kvr__line *next = kvr__pool_at(&table->lines, (table->count & (half - 1)));

        __builtin_prefetch(kvr__pool_at(&table->lines, (table->count + 1) & (half - 1)), 1);
        if (half >> TAG_SHIFT)
                return;
        for (uint32_t i = 0; i < KVR__LINE_ITEMS && next->numbers[i]; i++)
                table->ask->prefetch(table->ctx, next->numbers[i]);
}

static void table_split(struct kvr__table *table)
{
        if (table->count >= kvr__pool_room(&table->lines) && !kvr__pool_grow(&table->lines))
                return; /* lines just get longer */
        uint32_t fresh = table->count++;

        if (fresh > table->mask)
                table->mask = table->mask * 2 + 1;
        uint32_t bit = (table->mask >> 1) + 1;
        struct kvr__line *from = kvr__pool_at(&table->lines, fresh & (table->mask >> 1));
        struct kvr__line *to = kvr__pool_at(&table->lines, fresh);
        struct kvr__line old = *from;
        struct end ends[] = {{from, 0}, {to, 0}};

        memset(from, 0, sizeof(*from));
        memset(to, 0, sizeof(*to));
        for (;;) {
                for (uint32_t i = 0; i < KVR__LINE_ITEMS && old.numbers[i]; i++) {
                        bool moves = item_moves(table, old.tags[i], old.numbers[i], bit);

                        /* As many lines as were given back are there to be taken. */
                        if (!end_put(table, &ends[moves], old.tags[i], old.numbers[i]))
                                __builtin_trap();
                }
                uint32_t freed = old.more;

                if (!freed)
                        break;
                old = *(struct kvr__line *)kvr__pool_at(&table->reserve, freed);
                kvr__pool_give(&table->reserve, freed);
        }
        split_prefetch(table);
}

bool kvr__table_insert(struct kvr__table *table, uint32_t hash, uint32_t number)
{
        struct end end = end_of(table, kvr__table_line(table, hash));

        if (!end_put(table, &end, (uint16_t)(hash >> TAG_SHIFT), number))
                return false;
        table->items++;
        if ((uint64_t)table->items * FILL_DEN > (uint64_t)table->count * FILL_NUM)
                table_split(table);
        return true;
}

void kvr__table_remove(struct kvr__table *table, uint32_t hash, uint32_t number)
{
        struct kvr__line *line = kvr__table_line(table, hash), *before = NULL;
        uint32_t hole = 0, at = KVR__LINE_ITEMS;

        while (line->numbers[hole] != number) {
                if (++hole < KVR__LINE_ITEMS)
                        continue;
                before = line;
                line = kvr__pool_at(&table->reserve, line->more);
                hole = 0;
        }
        /* The very last item fills the hole: items lie without gaps from the first place of the first line
         * on. */
        struct kvr__line *last = line;

        while (last->more) {
                before = last;
                last = kvr__pool_at(&table->reserve, last->more);
        }
        while (!last->numbers[at - 1])
                at--;
        at--;
        line->numbers[hole] = last->numbers[at];
        line->tags[hole] = last->tags[at];
        last->numbers[at] = 0;
        if (at == 0 && before) {
                kvr__pool_give(&table->reserve, before->more);
                before->more = 0;
        }
        table->items--;
}
