/* SPDX-License-Identifier: Apache-2.0 */
/* Where messages end in the tokens, from the pattern that chat templates leave. */
#include "token_learn.h"

#define TAIL_IDS    16  /* a template puts fewer ids behind the last message */
#define PATTERN     2   /* ids that follow one another at every end of a message */
#define SHIFT_SHARE 0.2 /* an end may be off its share of the text by this part of the prompt, */
#define SHIFT_IDS   32  /* or by so many ids */

struct text {
        const struct kvr_point *points;
        uint32_t point_count;
        uint32_t ends; /* points that end something, the prompt's end included */
        const uint32_t *ids;
        uint32_t count;
};

/* Ends of messages are told from points of the grid by their place: its steps are multiples of the first. */
static bool is_end(const struct text *text, uint32_t point)
{
        return point + 1 == text->point_count || text->points[point].end % KVR_GRID_MIN_BYTES != 0;
}

static uint32_t end_behind(const struct text *text, uint32_t point)
{
        while (!is_end(text, point))
                point++;
        return point;
}

static bool pattern_at(const struct text *text, uint32_t at, const uint32_t *pattern)
{
        for (uint32_t i = 0; i < PATTERN; i++)
                if (at + i >= text->count || text->ids[at + i] != pattern[i])
                        return false;
        return true;
}

/*
 * Does the pattern that begins at `last` come once for every end, near where its text is? The template may
 * have put a message of its own in front of all (`own`), or joined the first two ends (`joined`: the tools' and
 * that of the system prompt). Fills ret_marks with the places if there is one to fill.
 */
static bool pattern_fits(const struct text *text, uint32_t last, bool own, bool joined, uint32_t *ret_marks)
{
        double slope = (double)text->count / text->points[text->point_count - 1].end;
        uint32_t found = 0, want = text->ends + own - joined, point = end_behind(text, 0);

        if (joined)
                point = end_behind(text, point + 1);
        for (uint32_t at = 0; at < text->count; at++) {
                if (text->ids[at] != text->ids[last])
                        continue;
                if (found == want || !pattern_at(text, at, text->ids + last))
                        return false;
                if (found++ == 0 && own)
                        continue;
                double off = at - text->points[point].end * slope;

                if (off < 0)
                        off = -off;
                if (off > SHIFT_IDS && off > SHIFT_SHARE * text->count)
                        return false;
                if (ret_marks)
                        ret_marks[point] = at + PATTERN;
                if (point + 1 < text->point_count)
                        point = end_behind(text, point + 1);
        }
        return found == want;
}

uint32_t kvr__token_marks(const struct kvr_point *points, uint32_t point_count, const uint32_t *ids,
                          uint32_t count, uint32_t *ret_marks)
{
        struct text text = {.points = points, .point_count = point_count, .ids = ids, .count = count};
        uint32_t first = count > TAIL_IDS ? count - TAIL_IDS : 0;

        for (uint32_t i = 0; i < point_count; i++) {
                ret_marks[i] = 0;
                text.ends += is_end(&text, i);
        }
        for (uint32_t last = first; text.ends > 1 && last + PATTERN <= count; last++)
                for (int way = 0; way < 3; way++) {
                        bool own = way == 1, joined = way == 2;

                        if ((joined && text.ends < 3) || !pattern_fits(&text, last, own, joined, NULL))
                                continue;
                        (void)pattern_fits(&text, last, own, joined, ret_marks);
                        ret_marks[point_count - 1] = 0; /* known by count */
                        return text.ends - joined - 1;
                }
        return 0;
}
