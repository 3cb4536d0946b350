/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/prompt_cell.h"

#include "lib/prompt_stream.h"

bool kvr__cell_behind(const struct kvr_prompt *prompt, uint32_t points, struct kvr__cell *ret)
{
        const struct kvr_prompt_text *text = prompt->text;

        if (!text)
                return false;
        *ret = (struct kvr__cell){text->hash, text->chain, text->start, text->bytes};
        if (!points || prompt->points[points - 1].end <= text->start)
                return true;
        /* All cuts in a text are on the grid, and points. */
        uint32_t from = prompt->points[points - 1].end - text->start;

        if (from >= text->bytes.len)
                return false;
        ret->chain = prompt->points[points - 1].key;
        ret->start += from;
        ret->bytes.data += from;
        ret->bytes.len -= from;
        return true;
}

uint64_t kvr__cell_end_key(const struct kvr__cell *cell, uint32_t len)
{
        uint64_t key = kvr__hash_link(cell->hash, cell->chain, cell->bytes.data, len, KVR__CUT_PROMPT);

        return key ? key : 1;
}
