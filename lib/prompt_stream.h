/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The canonical stream: bytes (or token ids) go in, points come out.
 *
 *     stream   m"user"t What is ...................... t.......E m"assistant"t ..............E
 *     cuts             |      |      |      |      |          |             |      |        |
 *                     text  grid   grid   grid   grid        end          text   grid      end
 *
 * The stream is cut on the grid, at ends (of tools, messages, the prompt), behind every text tag and at
 * media. A piece between two cuts is hashed as a whole, and the chain goes on by chain = hash(chain,
 * hash(piece) + kind of cut). Grid cuts and ends are points. The cut behind a text tag is there so that a
 * text is hashed where it lies in the body. Where cuts lie depends on the bytes before them alone.
 *
 * Out of memory is remembered and told once, by kvr__stream_finish.
 */
#ifndef KVROUTE_LIB_PROMPT_STREAM_H
#define KVROUTE_LIB_PROMPT_STREAM_H

#include "kvroute/prompt.h"
#include "lib/prompt_buffer.h"
#include "lib/prompt_hash.h"

#define KVR__GRID_SHIFT 5

/* That is 64 points per doubling, over less than 2^31 units from the first step on; the rest of the points is
 * for ends. */
#define KVR__GRID_POINTS_MAX (20 << KVR__GRID_SHIFT)
#define KVR__END_POINTS_MAX \
        (KVR_POINTS_MAX - KVR__GRID_POINTS_MAX - 1) /* 1: the end of the prompt always has one */

/* Bytes of structure. Canonical texts have no byte below 0x20, so nothing in a text can be taken for one. */
enum kvr__tag {
        KVR__TAG_SETTING = 0x01, /* name, value: something that feeds the chat template */
        KVR__TAG_TOOL = 0x02,    /* value */
        KVR__TAG_MESSAGE = 0x03, /* role */
        KVR__TAG_FIELD = 0x04,   /* letter, value: a member of a message besides its content */
        KVR__TAG_TEXT = 0x05,    /* text */
        KVR__TAG_MEDIA = 0x06,   /* value with digests: an image, audio, a file */
        KVR__TAG_DIGEST = 0x07,  /* 16 bytes: XXH3-128 of a long string */
        KVR__TAG_PART = 0x08,    /* value: another content part */
        KVR__TAG_RESULT = 0x09,  /* value: what a tool result says besides its content, which follows */
        KVR__TAG_RESULT_END = 0x0A,
        KVR__TAG_EMPTY = 0x0B, /* content is an empty array */
        KVR__TAG_ITEM = 0x0C,  /* value: an input item that is no message */
        KVR__TAG_IDS = 0x0D,   /* decimal number: a token id between texts */
        KVR__TAG_VALUE = 0x0E, /* value: content of a form without a rule of its own */
};

/* Kinds of cuts, as they go into the chain. */
enum kvr__cut {
        KVR__CUT_GRID = 0,
        KVR__CUT_TEXT = 1,
        KVR__CUT_MEDIA = 2,
        KVR__CUT_TOOLS = 3,
        KVR__CUT_MESSAGE = 4,
        KVR__CUT_PROMPT = 5,
};

/* A stream between two pieces. */
struct kvr__stream_mark {
        uint64_t chain;
        uint32_t point_count, end_points, pos, next_grid, media_left;
};

struct kvr__stream {
        const struct kvr__hash *hash;
        struct kvr_point *points; /* room for KVR_POINTS_MAX, the owner's */
        uint32_t point_count;
        uint32_t grid_min; /* first step */
        uint64_t chain;
        uint32_t pos;       /* units so far */
        uint32_t next_grid; /* the grid position behind pos */
        /* Not beside point_count: both are raised at once, and a compiler that does it in one go stalls on
         * the write before. */
        uint32_t end_points;      /* points at ends */
        uint32_t media_left;      /* media that may still count KVR_MEDIA_BYTES */
        struct kvr__buffer carry; /* the piece begun, unless it lies in `lent` */
        const char *lent;         /* the piece begun, all of it in memory that stays */
        uint32_t lent_len;
        bool failed;
};

/* Begins a stream of bytes that follows `chain`. */
void kvr__stream_start(struct kvr__stream *stream, const struct kvr__hash *hash, uint64_t chain,
                       enum kvr_unit unit);
void kvr__stream_fini(struct kvr__stream *stream);

/* Appends bytes that stay where they are until kvr__stream_finish. */
void kvr__stream_lend(struct kvr__stream *stream, const char *data, uint32_t len);
/* Appends bytes that are gone afterwards. */
void kvr__stream_copy(struct kvr__stream *stream, const char *data, uint32_t len);
void kvr__stream_byte(struct kvr__stream *stream, char byte);
static inline void kvr__stream_tag(struct kvr__stream *stream, enum kvr__tag tag)
{
        kvr__stream_byte(stream, (char)tag);
}
/* A text tag, with its cut. */
void kvr__stream_text(struct kvr__stream *stream);
/* The same with what stands in front of it: `head` ends with the tag. */
void kvr__stream_text_behind(struct kvr__stream *stream, const char *head, uint32_t len);
/* Behind the bytes of a medium: a cut, and the units that an engine's tokens for it may stand for. */
void kvr__stream_media(struct kvr__stream *stream);
/* An end that is worth a point. Counts one unit. */
void kvr__stream_end(struct kvr__stream *stream, enum kvr__cut kind);

/* False, and no mark, when a piece is begun. */
bool kvr__stream_mark(const struct kvr__stream *stream, struct kvr__stream_mark *ret);
/* Back, or on, to a mark: that of a stream that would be here. The points are the caller's business. */
void kvr__stream_go(struct kvr__stream *stream, const struct kvr__stream_mark *mark);
/* Equal for streams that had the same bytes, whatever they are between. */
uint64_t kvr__stream_print(const struct kvr__stream *stream);

/* Token ids (KVR_UNIT_TOKENS). */
void kvr__stream_ids(struct kvr__stream *stream, const uint32_t *ids, uint32_t count);

/* Ends the prompt: what is left becomes the last point. False when memory ran out on the way. */
KVR_MUST_USE bool kvr__stream_finish(struct kvr__stream *stream);

#endif
