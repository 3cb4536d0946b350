/* SPDX-License-Identifier: Apache-2.0 */
#include "token_learn.h"
#include "token_ends.h"

#include <stdlib.h>

#define SLACK_SHARE  32 /* a guess is off by so little of the way to the next place that is known, */
#define SLACK_TOKENS 2  /* and by at least so much: the last tokens of a prefix may merge with what follows */

struct place {
        struct kvr__mapped mapped;
        bool found;
        uint32_t common; /* leading blocks of its record's chain that this prompt has too */
        uint32_t length; /* blocks of that chain */
};

struct study {
        struct kvr__token_map *map;
        const struct kvr__lesson *lesson;
        struct place *places;
        uint64_t *room; /* a chain to compare with */
};

static uint64_t slot_key(const struct study *study, uint32_t point)
{
        const struct kvr__lesson *lesson = study->lesson;

        return kvr__token_map_key(study->map, lesson->points[point].key, lesson->block_tokens, lesson->model);
}

/* Keys are chained: where one is equal, all before it are. */
static uint32_t common_blocks(const struct study *study, uint64_t place, uint32_t length)
{
        const struct kvr__lesson *lesson = study->lesson;
        uint32_t common = length < lesson->blocks ? length : lesson->blocks;

        kvr__token_map_chain(study->map, place, common, study->room, NULL);
        while (common && study->room[common - 1] != lesson->keys[common - 1])
                common--;
        return common;
}

static void places_find(struct study *study)
{
        const struct place *before = NULL;

        for (uint32_t i = 0; i < study->lesson->point_count; i++) {
                struct place *place = &study->places[i];

                *place = (struct place){.found = false};
                place->found = kvr__token_map_get(study->map, slot_key(study, i), &place->mapped);
                if (!place->found)
                        continue;
                if (before && before->mapped.place == place->mapped.place) {
                        place->common = before->common;
                        place->length = before->length;
                } else {
                        place->length = kvr__token_map_blocks(study->map, place->mapped.place);
                        place->common = common_blocks(study, place->mapped.place, place->length);
                }
                before = place;
        }
}

/*
 * The last point in common with an earlier prompt, which went on otherwise behind it: it has what the two have
 * in common. That may be a little too much, if their texts part only some way behind the point, and is cut by
 * the next prompt that shows it.
 */
static void fork_settle(struct study *study)
{
        const struct kvr__lesson *lesson = study->lesson;
        uint32_t fork = lesson->point_count;

        for (uint32_t i = 0; i + 1 < lesson->point_count; i++)
                if (study->places[i].found)
                        fork = i;
        if (fork == lesson->point_count)
                return;
        struct place *place = &study->places[fork];
        struct kvr__mapped *mapped = &place->mapped;

        if (mapped->by != KVR__MAPPED_GUESS || place->common >= place->length ||
            place->common >= lesson->blocks || place->common < mapped->blocks)
                return;
        mapped->blocks = place->common;
        mapped->by = KVR__MAPPED_FORK;
        if (mapped->tokens < place->common * lesson->block_tokens)
                mapped->tokens = place->common * lesson->block_tokens;
        if (mapped->tokens >= (place->common + 1) * lesson->block_tokens)
                mapped->tokens = (place->common + 1) * lesson->block_tokens - 1;
}

/* Is it known, and true of this prompt, where in the tokens this point lies? */
static bool anchored(const struct study *study, uint32_t point, double *ret_tokens)
{
        const struct kvr__lesson *lesson = study->lesson;
        const struct place *place = &study->places[point];

        if (place->found && place->mapped.by != KVR__MAPPED_GUESS && place->mapped.blocks <= place->common &&
            place->mapped.tokens <= lesson->tokens) {
                *ret_tokens = place->mapped.tokens;
                return true;
        }
        if (!lesson->marks || !lesson->marks[point] || place->found)
                return false;
        *ret_tokens = lesson->marks[point];
        return true;
}

static uint32_t least(uint32_t a, uint32_t b)
{
        return a < b ? a : b;
}

/* What a point is sure to have when it lies at about `tokens`, so far from the next place that is known. */
static uint32_t blocks_of(const struct study *study, double tokens, double from_known)
{
        double slack = from_known / SLACK_SHARE;

        tokens -= slack > SLACK_TOKENS ? slack : SLACK_TOKENS;
        return tokens > 0 ? least((uint32_t)(tokens / study->lesson->block_tokens), study->lesson->blocks)
                          : 0;
}

/* The point's claim from its place at `tokens`, and what was claimed for it so far. */
static void place_settle(struct study *study, uint32_t point, double tokens, double from_known)
{
        struct place *place = &study->places[point];
        struct kvr__mapped *mapped = &place->mapped;
        uint32_t size = study->lesson->block_tokens, guess = blocks_of(study, tokens, from_known);

        if (!place->found) {
                /* What was marked needs no slack. */
                if (study->lesson->marks && study->lesson->marks[point])
                        guess = least((uint32_t)tokens / size, study->lesson->blocks);
                *mapped = (struct kvr__mapped){.blocks = guess, .tokens = (uint32_t)tokens};
                return;
        }
        if (mapped->blocks > place->common) {
                mapped->blocks = place->common;
                mapped->by = KVR__MAPPED_FORK;
                if (tokens < (double)place->common * size)
                        tokens = (double)place->common * size;
                if (tokens > (place->common + 1.0) * size - 1)
                        tokens = (place->common + 1.0) * size - 1;
                mapped->tokens = (uint32_t)tokens;
        } else if (mapped->by == KVR__MAPPED_GUESS) {
                if (guess > mapped->blocks)
                        mapped->blocks = least(guess, place->common);
                mapped->tokens = (uint32_t)tokens;
        }
}

/* Points between two places that are known, and the second one itself. */
static void stretch_settle(struct study *study, uint32_t first, uint32_t last, double first_end,
                           double first_tokens, double last_tokens)
{
        const struct kvr_point *points = study->lesson->points;
        double slope = (last_tokens - first_tokens) / (points[last].end - first_end);

        for (uint32_t i = first; i <= last; i++) {
                double ahead = (points[i].end - first_end) * slope;
                double back = last_tokens - first_tokens - ahead;

                place_settle(study, i, first_tokens + ahead, ahead < back ? ahead : back);
        }
}

static void points_settle(struct study *study)
{
        const struct kvr__lesson *lesson = study->lesson;
        uint32_t last = lesson->point_count - 1, from = 0;
        double end = 0, tokens = 0, known;

        for (uint32_t i = 0; i < last; i++) {
                if (!anchored(study, i, &known) || known < tokens || lesson->points[i].end <= end)
                        continue;
                stretch_settle(study, from, i, end, tokens, known);
                from = i + 1;
                end = lesson->points[i].end;
                tokens = known;
        }
        stretch_settle(study, from, last, end, tokens, lesson->tokens);
        study->places[last].mapped = (struct kvr__mapped){
                .place = study->places[last].mapped.place,
                .blocks = lesson->blocks,
                .tokens = lesson->tokens,
                .by = KVR__MAPPED_COUNT,
        };
}

/* The chain's own record, or one that has it all already. */
static uint64_t record_find(struct study *study)
{
        const struct kvr__lesson *lesson = study->lesson;
        uint32_t blocks = lesson->blocks, best = 0;
        uint64_t parent = 0;

        for (uint32_t i = 0; i < lesson->point_count; i++) {
                const struct place *place = &study->places[i];

                if (place->found && place->common > best && place->mapped.place != parent &&
                    !kvr__token_map_old(study->map, place->mapped.place)) {
                        best = place->common;
                        parent = place->mapped.place;
                }
        }
        if (parent && best == blocks)
                return parent;
        uint64_t place = kvr__token_map_append(study->map, parent, best, lesson->keys + best, blocks - best,
                                               lesson->base);

        return place || !parent ? place
                                : kvr__token_map_append(study->map, 0, 0, lesson->keys, blocks, lesson->base);
}

static void slots_fill(struct study *study, uint64_t place)
{
        const struct kvr__lesson *lesson = study->lesson;
        uint32_t sure = 0, most = lesson->blocks;

        /* A shorter prefix has at most what a longer one is known to have; */
        for (uint32_t i = lesson->point_count; i-- > 0;) {
                struct kvr__mapped *mapped = &study->places[i].mapped;

                mapped->blocks = least(mapped->blocks, most);
                if (mapped->by != KVR__MAPPED_GUESS)
                        most = mapped->blocks;
        }
        /* and a longer one has at least what a shorter one has. */
        for (uint32_t i = 0; i < lesson->point_count; i++) {
                struct kvr__mapped *mapped = &study->places[i].mapped;

                if (mapped->blocks < sure)
                        mapped->blocks = sure;
                sure = mapped->blocks;
                mapped->place = place;
                kvr__token_map_put(study->map, slot_key(study, i), mapped);
        }
}

bool kvr__token_learn(struct kvr__token_map *map, const struct kvr__lesson *lesson)
{
        struct kvr__lesson short_one = *lesson;
        uint32_t room = kvr__token_map_room(map);

        if (short_one.blocks > room)
                short_one.blocks = room;
        struct study study = {
                .map = map,
                .lesson = &short_one,
                .places = calloc(lesson->point_count, sizeof(struct place)),
                .room = malloc((short_one.blocks + 1) * sizeof(uint64_t)),
        };
        bool done = study.places && study.room;

        if (done) {
                places_find(&study);
                fork_settle(&study);
                points_settle(&study);
                uint64_t place = record_find(&study);

                if (place)
                        slots_fill(&study, place);
                if (place && lesson->cell_bytes)
                        kvr__token_ends_put(
                                map,
                                &(struct kvr__ends_of){lesson->cell, lesson->block_tokens, lesson->model},
                                lesson->cell_bytes, place);
        }
        free(study.places);
        free(study.room);
        return done;
}
