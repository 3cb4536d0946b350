/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks_table.h"

#include <stdlib.h>

#define EXTENTS_FIRST  4
#define EXTENT_SEGMENT 16 /* extents, at least, that the pool grows by */
#define CHAIN_ITEMS    (KVR__CHAIN_LINES * KVR__PLACES)

/*
 * Readers may still be in what was given back, so all of it is written atomically: with release, so that who
 * sees the new content also sees what was done before it.
 */
static inline uint64_t item_get(const struct kvr__places *line, uint32_t place)
{
        return atomic_load_explicit(&line->items[place], memory_order_relaxed);
}

static inline void item_set(struct kvr__places *line, uint32_t place, uint64_t item)
{
        atomic_store_explicit(&line->items[place], item, memory_order_release);
}

static inline uint32_t count_of(const struct kvr__blocks_table *table)
{
        return atomic_load_explicit(&table->count, memory_order_relaxed);
}

static void count_set(struct kvr__blocks_table *table, uint32_t count)
{
        atomic_store_explicit(&table->count, count, memory_order_release);
        table->full = count / 2 * table->fill + count % 2 * table->fill / 2;
        table->spare = count > KVR__LINES_FIRST ? table->full / 2 : 0;
}

/* ---- lines ---- */

bool kvr__lines_init(struct kvr__lines *lines, struct kvr__budget *budget, size_t segment_bytes)
{
        *lines = (struct kvr__lines){0};
        return kvr__pool_init(&lines->extents, budget, sizeof(struct kvr__places) * KVR__EXTENT_LINES,
                              segment_bytes, false) &&
               kvr__pool_init(&lines->reserve, budget, sizeof(struct kvr__places), segment_bytes / 2, true);
}

void kvr__lines_fini(struct kvr__lines *lines)
{
        kvr__pool_fini(&lines->extents);
        kvr__pool_fini(&lines->reserve);
}

static void line_clear(struct kvr__places *line)
{
        for (uint32_t i = 0; i < KVR__PLACES; i++)
                item_set(line, i, 0);
}

/* A free extent has the next one's address in its first two places, as links, which no walk takes for items. */
static struct kvr__places *extent_next(const struct kvr__places *extent)
{
        uint64_t low = item_get(extent, 0) % KVR__ITEM_LINK, high = item_get(extent, 1) % KVR__ITEM_LINK;

        return (struct kvr__places *)(uintptr_t)(low | high << 31);
}

static struct kvr__places *extent_take(struct kvr__lines *lines)
{
        struct kvr__places *extent = lines->extent_free;

        if (extent) {
                lines->extent_free = extent_next(extent);
                lines->extents_free--;
        } else {
                uint32_t number = kvr__pool_take(&lines->extents);

                if (!number)
                        return NULL;
                extent = kvr__pool_at(&lines->extents, number);
        }
        for (uint32_t i = 0; i < KVR__EXTENT_LINES; i++)
                line_clear(&extent[i]);
        return extent;
}

static void extent_give(struct kvr__lines *lines, struct kvr__places *extent)
{
        uint64_t next = (uintptr_t)lines->extent_free;

        item_set(extent, 0, next % KVR__ITEM_LINK | KVR__ITEM_LINK);
        item_set(extent, 1, (next >> 31) % KVR__ITEM_LINK | KVR__ITEM_LINK);
        lines->extent_free = extent;
        lines->extents_free++;
}

static uint32_t reserve_take(struct kvr__lines *lines)
{
        uint32_t number = lines->reserve_free;

        if (number) {
                lines->reserve_free = (uint32_t)item_get(kvr__reserve_at(lines, number), 0) & ~KVR__ITEM_LINK;
                lines->reserves_free--;
        } else {
                number = kvr__pool_take(&lines->reserve);
        }
        if (number)
                line_clear(kvr__reserve_at(lines, number));
        return number;
}

static void reserve_give(struct kvr__lines *lines, uint32_t number)
{
        struct kvr__places *line = kvr__reserve_at(lines, number);

        line_clear(line);
        item_set(line, 0, lines->reserve_free | KVR__ITEM_LINK);
        lines->reserve_free = number;
        lines->reserves_free++;
}

/* Lines that can be had for certain. */
static uint32_t reserve_ready(const struct kvr__lines *lines)
{
        uint32_t room = kvr__pool_room(&lines->reserve), fresh = lines->reserve.fresh;

        return lines->reserves_free + (room > fresh ? room - fresh : 0);
}

/* Puts an item into the first free place of a line and those that follow it. */
static bool line_put(struct kvr__lines *lines, struct kvr__places *line, uint64_t item)
{
        for (uint32_t length = 1; length <= KVR__CHAIN_LINES; length++) {
                for (uint32_t i = 0; i < KVR__PLACES; i++)
                        if (!item_get(line, i)) {
                                item_set(line, i, item);
                                return true;
                        }
                uint64_t last = item_get(line, KVR__LINK_PLACE);

                if (kvr__is_link(last)) {
                        line = kvr__reserve_at(lines, last);
                        continue;
                }
                uint32_t more = length < KVR__CHAIN_LINES ? reserve_take(lines) : 0;

                if (!more)
                        return false;
                item_set(kvr__reserve_at(lines, more), 0, last);
                item_set(kvr__reserve_at(lines, more), 1, item);
                item_set(line, KVR__LINK_PLACE, more | KVR__ITEM_LINK);
                return true;
        }
        return false;
}

/* Empties a line and those that follow it, which are given back. */
static uint32_t line_drain(struct kvr__lines *lines, struct kvr__places *line, uint64_t *ret_items)
{
        uint32_t count = 0;
        uint64_t link = 0;

        for (;;) {
                uint64_t last = item_get(line, KVR__LINK_PLACE);
                uint32_t places = kvr__is_link(last) ? KVR__LINK_PLACE : KVR__PLACES;

                for (uint32_t i = 0; i < places; i++)
                        if (item_get(line, i))
                                ret_items[count++] = item_get(line, i);
                if (link)
                        reserve_give(lines, (uint32_t)link & ~KVR__ITEM_LINK);
                else
                        line_clear(line);
                if (!kvr__is_link(last))
                        return count;
                link = last;
                line = kvr__reserve_at(lines, link);
        }
}

/* ---- a table ---- */

void kvr__blocks_table_init(struct kvr__blocks_table *table, struct kvr__lines *lines)
{
        *table = (struct kvr__blocks_table){.lines = lines, .fill = KVR__FILL_LANES};
}

bool kvr__blocks_table_init_fixed(struct kvr__blocks_table *table, struct kvr__lines *lines, uint32_t extents)
{
        kvr__blocks_table_init(table, lines);
        table->fill = KVR__FILL_KEYS;
        table->extents = calloc(extents, sizeof(*table->extents));
        if (!table->extents)
                return false;
        table->extent_room = extents;
        table->fixed = true;
        lines->extents.budget->bytes += extents * sizeof(*table->extents);
        return true;
}

void kvr__blocks_table_fini(struct kvr__blocks_table *table)
{
        uint64_t items[KVR__PLACES_TAKEN];

        if (!table->lines)
                return;
        while (count_of(table))
                kvr__blocks_table_pop(table, items);
        free(table->extents);
        table->lines->extents.budget->bytes -= table->extent_room * sizeof(*table->extents);
        kvr__blocks_table_init(table, table->lines);
}

static bool directory_grow(struct kvr__blocks_table *table)
{
        struct kvr__budget *budget = table->lines->extents.budget;
        uint32_t room = table->extent_room ? table->extent_room * 2 : EXTENTS_FIRST;
        uint64_t more = (room - table->extent_room) * sizeof(*table->extents);

        if (table->fixed || budget->bytes + more > budget->bytes_max)
                return false;
        kvr__extent *grown = realloc(table->extents, room * sizeof(*table->extents));

        if (!grown)
                return false;
        table->extents = grown;
        table->extent_room = room;
        budget->bytes += more;
        return true;
}

/* Makes room for a line with this number. */
static bool line_ready(struct kvr__blocks_table *table, uint32_t at)
{
        uint32_t place = at >> KVR__EXTENT_SHIFT;

        if (at >= KVR__LINES_MAX)
                return false;
        if (at & (KVR__EXTENT_LINES - 1))
                return true;
        if (place >= table->extent_room && !directory_grow(table))
                return false;
        struct kvr__places *extent = extent_take(table->lines);

        if (!extent)
                return false;
        atomic_store_explicit(&table->extents[place], extent, memory_order_release);
        return true;
}

/* The last line, empty already, is used no longer. */
static void line_leave(struct kvr__blocks_table *table, uint32_t at)
{
        if (!(at & (KVR__EXTENT_LINES - 1)))
                extent_give(table->lines, atomic_load_explicit(&table->extents[at >> KVR__EXTENT_SHIFT],
                                                               memory_order_relaxed));
}

static void change_begin(struct kvr__blocks_table *table, uint32_t low)
{
        uint32_t changes = atomic_load_explicit(&table->changes, memory_order_relaxed);

        atomic_store_explicit(&table->changing, low, memory_order_release);
        atomic_store_explicit(&table->changes, changes + 1, memory_order_release);
}

static void change_end(struct kvr__blocks_table *table)
{
        uint32_t changes = atomic_load_explicit(&table->changes, memory_order_relaxed);

        atomic_store_explicit(&table->changes, changes + 1, memory_order_release);
}

/* The line that was divided into itself and `fresh`, or will be. */
static inline uint32_t partner_of(uint32_t fresh)
{
        return fresh - (1U << (31 - __builtin_clz(fresh)));
}

void kvr__blocks_table_divide(struct kvr__blocks_table *table)
{
        uint32_t fresh = count_of(table), low = partner_of(fresh), bit = fresh - low;
        uint64_t items[CHAIN_ITEMS];

        if (!line_ready(table, fresh))
                return; /* lines just get longer */
        struct kvr__places *from = kvr__line_at(table, low), *to = kvr__line_at(table, fresh);

        change_begin(table, low);
        if (kvr__is_link(item_get(from, KVR__LINK_PLACE))) {
                uint32_t count = line_drain(table->lines, from, items);

                /* As many lines of the reserve as both need were given back. */
                for (uint32_t i = 0; i < count; i++)
                        if (!line_put(table->lines, kvr__item_hash(items[i]) & bit ? to : from, items[i]))
                                __builtin_trap();
        } else {
                uint32_t count = 0;

                for (uint32_t i = 0; i < KVR__PLACES; i++) {
                        uint64_t item = item_get(from, i);

                        if (!(kvr__item_hash(item) & bit))
                                continue;
                        item_set(to, count++, item);
                        item_set(from, i, 0);
                }
        }
        count_set(table, fresh + 1);
        change_end(table);
        /* The next to be divided was asked for when the one before was. */
        kvr__line_prefetch_more(table->lines, kvr__line_at(table, partner_of(fresh + 1)));
        __builtin_prefetch(kvr__line_at(table, partner_of(fresh + 2)), 1);
}

/* A line and those that follow it. */
static uint32_t chain_length(const struct kvr__lines *lines, const struct kvr__places *line)
{
        uint32_t length = 1;

        for (uint64_t last = item_get(line, KVR__LINK_PLACE); kvr__is_link(last); length++)
                last = item_get(kvr__reserve_at(lines, last), KVR__LINK_PLACE);
        return length;
}

static void table_join(struct kvr__blocks_table *table)
{
        uint32_t high = count_of(table) - 1, low = partner_of(high);
        struct kvr__places *from = kvr__line_at(table, high), *to = kvr__line_at(table, low);
        uint64_t items[CHAIN_ITEMS];

        /* The lines that follow `from` come free; a first line's items, and the item that gives way to the
         * link, may take two more. */
        if (chain_length(table->lines, from) + chain_length(table->lines, to) >= KVR__CHAIN_LINES ||
            reserve_ready(table->lines) < 2)
                return;
        change_begin(table, low);
        uint32_t count = line_drain(table->lines, from, items);

        for (uint32_t i = 0; i < count; i++)
                if (!line_put(table->lines, to, items[i]))
                        __builtin_trap();
        count_set(table, high);
        change_end(table);
        line_leave(table, high);
}

bool kvr__blocks_table_begin(struct kvr__blocks_table *table)
{
        if (count_of(table))
                return true;
        if (!line_ready(table, 0))
                return false;
        count_set(table, KVR__LINES_FIRST);
        return true;
}

bool kvr__blocks_table_put(struct kvr__blocks_table *table, uint64_t hash, uint32_t number)
{
        if (!kvr__blocks_table_begin(table) ||
            !line_put(table->lines, kvr__blocks_table_line(table, hash), kvr__item_of(hash) | number))
                return false;
        if (++table->items > table->full)
                kvr__blocks_table_divide(table);
        return true;
}

_Atomic uint64_t *kvr__blocks_table_find_slowly(const struct kvr__blocks_table *table, uint64_t hash,
                                                uint64_t *ret_item)
{
        struct kvr__blocks_walk walk = kvr__blocks_walk_own(table, hash);
        _Atomic uint64_t *place = kvr__blocks_walk_next(&walk);

        *ret_item = walk.item;
        return place;
}

/* Takes lines without items, other than the first, out of the chain. */
static void chain_tidy(struct kvr__lines *lines, struct kvr__places *line)
{
        for (;;) {
                uint64_t link = item_get(line, KVR__LINK_PLACE);
                uint32_t used = 0;

                if (!kvr__is_link(link))
                        return;
                struct kvr__places *next = kvr__reserve_at(lines, link);
                uint64_t last = item_get(next, KVR__LINK_PLACE);

                for (uint32_t i = 0; i < KVR__LINK_PLACE; i++)
                        used += item_get(next, i) != 0;
                if (used || (last && !kvr__is_link(last))) {
                        line = next;
                        continue;
                }
                item_set(line, KVR__LINK_PLACE, last);
                reserve_give(lines, (uint32_t)link & ~KVR__ITEM_LINK);
        }
}

void kvr__blocks_table_tidy(struct kvr__blocks_table *table, struct kvr__places *line, bool follows)
{
        if (follows)
                chain_tidy(table->lines, line);
        if (table->items < table->spare)
                table_join(table);
}

void kvr__blocks_table_remove(struct kvr__blocks_table *table, uint64_t hash, _Atomic uint64_t *place)
{
        kvr__blocks_table_take(table, kvr__blocks_table_line(table, hash), place);
}

uint32_t kvr__blocks_table_pop(struct kvr__blocks_table *table, uint64_t *ret_items)
{
        uint32_t at = count_of(table) - 1;
        uint32_t count = line_drain(table->lines, kvr__line_at(table, at), ret_items);

        table->items -= count;
        count_set(table, at);
        line_leave(table, at);
        return count;
}

bool kvr__blocks_table_check(const struct kvr__blocks_table *table,
                             void (*each)(void *ctx, uint32_t number, uint32_t hash_low), void *ctx,
                             uint64_t *extents, uint64_t *reserve)
{
        uint32_t lines = count_of(table), items = 0;

        *extents += (lines + KVR__EXTENT_LINES - 1) / KVR__EXTENT_LINES;
        for (uint32_t at = 0; at < lines; at++) {
                const struct kvr__places *line = kvr__line_at(table, at);
                uint64_t item = 0;

                for (uint32_t length = 1; line; length++) {
                        if (length > KVR__CHAIN_LINES)
                                return false;
                        for (uint32_t i = 0; i < KVR__PLACES; i++) {
                                item = item_get(line, i);
                                if (!item || kvr__is_link(item))
                                        continue;
                                items++;
                                if (!kvr__item_number(item) || (at ^ kvr__item_hash(item)) % KVR__LINES_FIRST)
                                        return false;
                                if (each)
                                        each(ctx, kvr__item_number(item), kvr__item_hash(item));
                        }
                        *reserve += kvr__is_link(item);
                        line = kvr__is_link(item) ? kvr__reserve_at(table->lines, item) : NULL;
                }
        }
        return items == table->items && table->changes % 2 == 0;
}
