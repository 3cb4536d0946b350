/* SPDX-License-Identifier: Apache-2.0 */
#include "decode.h"

#include <limits.h>
#include <strings.h>
#include <zlib.h>
#include <zstd.h>

#define STEP_BYTES      ((size_t)64 * 1024) /* output is grown by at least this much */
#define ZSTD_WINDOW_LOG 24                  /* 16 MiB; RFC 8878 asks decoders for 8 MiB at least */

static enum decode_coding coding_of(struct kvr_slice name)
{
        static const struct {
                const char *name;
                size_t len;
                enum decode_coding coding;
        } known[] = {
                {"identity", 8, DECODE_IDENTITY}, {"", 0, DECODE_IDENTITY},       {"gzip", 4, DECODE_GZIP},
                {"x-gzip", 6, DECODE_GZIP},       {"deflate", 7, DECODE_DEFLATE}, {"zstd", 4, DECODE_ZSTD},
        };

        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
                if (name.len == known[i].len && strncasecmp(name.data, known[i].name, name.len) == 0)
                        return known[i].coding;
        }
        return DECODE_UNKNOWN;
}

enum decode_coding decode_coding_of(const struct http1_head *head)
{
        const struct http1_field *found = NULL;

        for (uint32_t i = 0; i < head->field_count; i++) {
                if (!http1_is(head->fields[i].name, "content-encoding"))
                        continue;
                if (found)
                        return DECODE_UNKNOWN;
                found = &head->fields[i];
        }
        return found ? coding_of(found->value) : DECODE_IDENTITY;
}

static enum decode_result make_room(struct text *out, size_t start, size_t limit, size_t *ret_room)
{
        size_t used = out->len - start;
        size_t room = limit - used + 1; /* one byte more than allowed shows that there is more */

        if (used > limit)
                return DECODE_TOO_LARGE;
        if (room > STEP_BYTES)
                room = used > STEP_BYTES && used < room ? used : STEP_BYTES;
        if (!text_room(out, room))
                return DECODE_NOMEM;
        *ret_room = room;
        return DECODE_OK;
}

static enum decode_result inflate_body(int window_bits, struct kvr_slice in, size_t limit, struct text *out)
{
        z_stream stream = {0};
        size_t start = out->len, room;
        enum decode_result result = DECODE_OK;
        int status = Z_OK;

        if (inflateInit2(&stream, window_bits) != Z_OK)
                return DECODE_NOMEM;
        stream.next_in = (Bytef *)(uintptr_t)in.data;
        stream.avail_in = (uInt)in.len;
        while (status != Z_STREAM_END) {
                result = make_room(out, start, limit, &room);
                if (result != DECODE_OK)
                        break;
                stream.next_out = (Bytef *)out->data + out->len;
                stream.avail_out = (uInt)room;
                status = inflate(&stream, Z_NO_FLUSH);
                out->len += room - stream.avail_out;
                if (status != Z_OK && status != Z_STREAM_END) {
                        result = DECODE_BAD;
                        break;
                }
        }
        if (result == DECODE_OK && out->len - start > limit)
                result = DECODE_TOO_LARGE;
        if (result == DECODE_OK && stream.avail_in)
                result = DECODE_BAD;
        inflateEnd(&stream);
        return result;
}

static enum decode_result zstd_body(struct kvr_slice in, size_t limit, struct text *out)
{
        ZSTD_DStream *stream = ZSTD_createDStream();
        ZSTD_inBuffer input = {in.data, in.len, 0};
        size_t start = out->len, room, left = 1;
        enum decode_result result = DECODE_OK;

        if (!stream)
                return DECODE_NOMEM;
        (void)ZSTD_DCtx_setParameter(stream, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG);
        while (left) {
                result = make_room(out, start, limit, &room);
                if (result != DECODE_OK)
                        break;
                ZSTD_outBuffer output = {out->data + out->len, room, 0};
                size_t before = input.pos;

                left = ZSTD_decompressStream(stream, &output, &input);
                out->len += output.pos;
                if (ZSTD_isError(left) || (left && output.pos == 0 && input.pos == before)) {
                        result = DECODE_BAD;
                        break;
                }
        }
        if (result == DECODE_OK && out->len - start > limit)
                result = DECODE_TOO_LARGE;
        if (result == DECODE_OK && input.pos < input.size)
                result = DECODE_BAD;
        ZSTD_freeDStream(stream);
        return result;
}

enum decode_result decode_body(enum decode_coding coding, struct kvr_slice in, size_t limit, struct text *out)
{
        if (in.len > UINT_MAX)
                return DECODE_TOO_LARGE;
        switch (coding) {
        case DECODE_IDENTITY:
                text_add_slice(out, in);
                return out->failed ? DECODE_NOMEM : DECODE_OK;
        case DECODE_GZIP:
                return inflate_body(15 + 16, in, limit, out);
        case DECODE_DEFLATE:
                return inflate_body(15, in, limit, out);
        case DECODE_ZSTD:
                return zstd_body(in, limit, out);
        case DECODE_UNKNOWN:
                break;
        }
        return DECODE_BAD;
}
