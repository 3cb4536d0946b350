/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/prompt_stream.h"

#include <string.h>

/* The grid position behind `pos`. Steps are powers of two and change at powers of two, so the grid is one. */
static uint32_t grid_behind(uint32_t pos, uint32_t step_min)
{
        uint32_t step = step_min;

        if (pos >> KVR__GRID_SHIFT > step_min)
                step = 1u << (31 - __builtin_clz(pos >> KVR__GRID_SHIFT));
        return (pos & ~(step - 1)) + step;
}

void kvr__stream_start(struct kvr__stream *stream, const struct kvr__hash *hash, uint64_t chain,
                       enum kvr_unit unit)
{
        stream->hash = hash;
        stream->chain = chain;
        stream->point_count = 0;
        stream->end_points = 0;
        stream->pos = 0;
        stream->grid_min = unit == KVR_UNIT_TOKENS ? KVR_GRID_MIN_TOKENS : KVR_GRID_MIN_BYTES;
        stream->next_grid = stream->grid_min;
        stream->media_left = KVR_MEDIA_COUNTED_MAX;
        stream->carry.len = 0;
        stream->lent = NULL;
        stream->lent_len = 0;
        stream->failed = false;
}

void kvr__stream_fini(struct kvr__stream *stream)
{
        kvr__buffer_fini(&stream->carry);
}

static inline void emit(struct kvr__stream *stream)
{
        /* 0 is no key; that one key in 2^64 stands for two prefixes is within the odds of the hash. */
        stream->points[stream->point_count++] =
                (struct kvr_point){.key = stream->chain ? stream->chain : 1, .end = stream->pos};
}

static inline void chain_piece(struct kvr__stream *stream, const char *data, uint32_t len, enum kvr__cut kind)
{
        stream->chain = kvr__hash_link(stream->hash, stream->chain, data, len, kind);
}

/* Takes the piece begun, which ends here, into the chain. */
static void cut(struct kvr__stream *stream, enum kvr__cut kind)
{
        if (stream->lent_len)
                chain_piece(stream, stream->lent, stream->lent_len, kind);
        else
                chain_piece(stream, stream->carry.data, stream->carry.len, kind);
        stream->lent_len = 0;
        stream->carry.len = 0;
}

/* To the carry buffer, with what was lent before it. */
static bool gather(struct kvr__stream *stream, const char *data, uint32_t len)
{
        struct kvr__buffer *carry = &stream->carry;

        if (!kvr__buffer_reserve(carry, stream->lent_len + len)) {
                stream->failed = true;
                return false;
        }
        if (stream->lent_len) {
                memcpy(carry->data + carry->len, stream->lent, stream->lent_len);
                carry->len += stream->lent_len;
                stream->lent_len = 0;
        }
        memcpy(carry->data + carry->len, data, len);
        carry->len += len;
        return true;
}

static inline void append(struct kvr__stream *stream, const char *data, uint32_t len, bool stays)
{
        if (stream->failed)
                return;
        while (len >= stream->next_grid - stream->pos) {
                uint32_t part = stream->next_grid - stream->pos;

                if (stream->carry.len | stream->lent_len) {
                        if (!gather(stream, data, part))
                                return;
                        cut(stream, KVR__CUT_GRID);
                } else {
                        chain_piece(stream, data, part, KVR__CUT_GRID);
                }
                data += part;
                len -= part;
                stream->pos = stream->next_grid;
                stream->next_grid = grid_behind(stream->pos, stream->grid_min);
                emit(stream);
        }
        if (!len)
                return;
        stream->pos += len;
        if (stays && !(stream->carry.len | stream->lent_len)) {
                stream->lent = data;
                stream->lent_len = len;
        } else {
                gather(stream, data, len);
        }
}

void kvr__stream_lend(struct kvr__stream *stream, const char *data, uint32_t len)
{
        append(stream, data, len, true);
}

void kvr__stream_copy(struct kvr__stream *stream, const char *data, uint32_t len)
{
        append(stream, data, len, false);
}

void kvr__stream_byte(struct kvr__stream *stream, char byte)
{
        struct kvr__buffer *carry = &stream->carry;

        /* Mostly there is room, nothing lent, and no cut. */
        if (!stream->lent_len && carry->len < carry->capacity && stream->pos + 1 < stream->next_grid) {
                carry->data[carry->len++] = byte;
                stream->pos++;
        } else {
                append(stream, &byte, 1, false);
        }
}

void kvr__stream_text(struct kvr__stream *stream)
{
        kvr__stream_byte(stream, KVR__TAG_TEXT);
        if (stream->carry.len)
                cut(stream, KVR__CUT_TEXT);
}

void kvr__stream_text_behind(struct kvr__stream *stream, const char *head, uint32_t len)
{
        if (!(stream->carry.len | stream->lent_len) && len < stream->next_grid - stream->pos) {
                chain_piece(stream, head, len, KVR__CUT_TEXT);
                stream->pos += len;
                return;
        }
        append(stream, head, len, false);
        if (stream->carry.len)
                cut(stream, KVR__CUT_TEXT);
}

void kvr__stream_media(struct kvr__stream *stream)
{
        if (stream->failed || !stream->media_left)
                return;
        stream->media_left--;
        cut(stream, KVR__CUT_MEDIA);
        stream->pos += KVR_MEDIA_BYTES;
        stream->next_grid = grid_behind(stream->pos, stream->grid_min);
}

void kvr__stream_end(struct kvr__stream *stream, enum kvr__cut kind)
{
        if (stream->failed)
                return;
        cut(stream, kind);
        stream->pos++;
        stream->next_grid = grid_behind(stream->pos, stream->grid_min);
        if (stream->end_points < KVR__END_POINTS_MAX) {
                stream->end_points++;
                emit(stream);
        }
}

bool kvr__stream_mark(const struct kvr__stream *stream, struct kvr__stream_mark *ret)
{
        if (stream->carry.len | stream->lent_len)
                return false;
        *ret = (struct kvr__stream_mark){
                .chain = stream->chain,
                .point_count = stream->point_count,
                .end_points = stream->end_points,
                .pos = stream->pos,
                .next_grid = stream->next_grid,
                .media_left = stream->media_left,
        };
        return true;
}

void kvr__stream_go(struct kvr__stream *stream, const struct kvr__stream_mark *mark)
{
        stream->chain = mark->chain;
        stream->point_count = mark->point_count;
        stream->end_points = mark->end_points;
        stream->pos = mark->pos;
        stream->next_grid = mark->next_grid;
        stream->media_left = mark->media_left;
        stream->carry.len = 0;
        stream->lent_len = 0;
}

uint64_t kvr__stream_print(const struct kvr__stream *stream)
{
        uint64_t begun = stream->lent_len ? kvr__hash64(stream->hash, stream->lent, stream->lent_len)
                                          : kvr__hash64(stream->hash, stream->carry.data, stream->carry.len);

        return kvr__hash_numbers(stream->hash, (const uint64_t[]){stream->chain, stream->pos, begun}, 3);
}

/* Each id as 4 bytes, lowest first. */
static void put_ids(char *ret, const uint32_t *ids, uint32_t count)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        memcpy(ret, ids, count * sizeof(*ids));
#else
        for (uint32_t i = 0; i < count; i++)
                for (unsigned b = 0; b < 4; b++)
                        *ret++ = (char)(ids[i] >> 8 * b);
#endif
}

void kvr__stream_ids(struct kvr__stream *stream, const uint32_t *ids, uint32_t count)
{
        struct kvr__buffer *carry = &stream->carry;

        while (count && !stream->failed) {
                uint32_t room = stream->next_grid - stream->pos;
                uint32_t part = count < room ? count : room;

                if (!kvr__buffer_reserve(carry, part * (uint32_t)sizeof(*ids))) {
                        stream->failed = true;
                        return;
                }
                put_ids(carry->data + carry->len, ids, part);
                carry->len += part * (uint32_t)sizeof(*ids);
                stream->pos += part;
                ids += part;
                count -= part;
                if (part == room) {
                        cut(stream, KVR__CUT_GRID);
                        stream->next_grid = grid_behind(stream->pos, stream->grid_min);
                        emit(stream);
                }
        }
}

bool kvr__stream_finish(struct kvr__stream *stream)
{
        uint32_t last = stream->point_count ? stream->points[stream->point_count - 1].end : 0;

        if (stream->failed)
                return false;
        if (stream->carry.len | stream->lent_len)
                cut(stream, KVR__CUT_PROMPT);
        if (stream->pos > last)
                emit(stream);
        return true;
}
