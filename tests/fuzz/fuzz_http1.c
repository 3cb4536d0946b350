/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/1.1 messages. First byte: bit 0 chooses request or response, bit 1 a response to HEAD; the second
 * tells in which pieces the body is fed. The promises checked besides memory safety: content does not depend
 * on how the bytes arrive, nor on whether a plain head is read by llhttp or not.
 */
#include "fuzz.h"

#include "proto/http1.h"

#include <string.h>

struct content {
        size_t len;
        uint64_t sum; /* order-dependent, so that equal sums mean equal content for our purpose */
};

static void collect(void *ctx, const char *data, size_t len)
{
        struct content *content = ctx;
        for (size_t i = 0; i < len; i++)
                content->sum = content->sum * 1099511628211u + (uint8_t)data[i] + 1;
        content->len += len;
}

static bool inside(struct kvr_slice slice, const char *buf, size_t len)
{
        return slice.len == 0 || (slice.data >= buf && slice.data + slice.len <= buf + len);
}

static void check_head(const struct http1_head *head, const char *buf, size_t used)
{
        FUZZ_CHECK(head->field_count <= HTTP1_FIELDS_MAX);
        FUZZ_CHECK(inside(head->method, buf, used) && inside(head->target, buf, used));
        FUZZ_CHECK(inside(head->path, head->target.data, head->target.len));
        FUZZ_CHECK(inside(head->query, head->target.data, head->target.len));
        for (uint32_t i = 0; i < head->field_count; i++) {
                FUZZ_CHECK(inside(head->fields[i].name, buf, used) &&
                           inside(head->fields[i].value, buf, used));
                (void)http1_hop_by_hop(head, head->fields[i].name);
        }
        /* Two framings at once is how requests are smuggled. */
        FUZZ_CHECK(!(head->chunked && head->content_length >= 0));
        (void)http1_list_has(head, "connection", "close");
}

/* Feeds the message in pieces of `step` bytes (0: at once). Returns the last result; *ret_end tells where it
 * ended. */
static enum http1_result message(const char *buf, size_t len, uint8_t mode, size_t step, bool no_plain,
                                 struct content *content, size_t *ret_end)
{
        static const struct http1_head empty;
        struct http1_head head = empty;
        struct http1_parser parser;
        size_t used = 0;

        http1_init(&parser, mode & 1 ? HTTP1_RESPONSE : HTTP1_REQUEST);
        parser.head_request = (mode & 2) != 0;
        parser.no_plain = no_plain;
        *ret_end = 0;
        enum http1_result result = http1_head(&parser, buf, len, &head, &used);
        if (result != HTTP1_DONE)
                return result;
        FUZZ_CHECK(used <= len);
        check_head(&head, buf, used);
        /* What the head says counts as content: it is compared like that. */
        collect(content, (const char *)&head.content_length, sizeof head.content_length);
        for (uint32_t i = 0; i < head.field_count; i++) {
                collect(content, head.fields[i].name.data, head.fields[i].name.len);
                collect(content, head.fields[i].value.data, head.fields[i].value.len);
        }
        const uint16_t said[] = {head.status,          head.minor,   head.chunked, head.keep_alive,
                                 head.expect_continue, head.upgrade, head.no_body, head.has_connection};

        collect(content, (const char *)said, sizeof said);
        collect(content, head.path.data, head.path.len);
        size_t at = used;
        do {
                size_t piece = step > 0 && step < len - at ? step : len - at;
                result = http1_body(&parser, buf + at, piece, collect, content, &used);
                if (result != HTTP1_MORE && result != HTTP1_DONE)
                        return result;
                FUZZ_CHECK(used <= piece);
                FUZZ_CHECK(result == HTTP1_DONE || used == piece);
                at += used;
        } while (result == HTTP1_MORE && at < len);
        *ret_end = at;
        if (result == HTTP1_MORE)
                (void)http1_eof(&parser);
        return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        if (len < 2)
                return 0;
        uint8_t mode = bytes[0];
        size_t step = bytes[1] % 17 + 1u;
        const char *buf = (const char *)bytes + 2;
        struct content whole = {0, 0}, pieces = {0, 0}, other = {0, 0};
        size_t whole_end, pieces_end, other_end;

        enum http1_result a = message(buf, len - 2, mode, 0, false, &whole, &whole_end);
        enum http1_result b = message(buf, len - 2, mode, step, false, &pieces, &pieces_end);
        enum http1_result c = message(buf, len - 2, mode, 0, true, &other, &other_end);
        FUZZ_CHECK(a == b && a == c);
        if (a == HTTP1_DONE || a == HTTP1_MORE) {
                FUZZ_CHECK(whole_end == pieces_end && whole.len == pieces.len && whole.sum == pieces.sum);
                FUZZ_CHECK(whole_end == other_end && whole.len == other.len && whole.sum == other.sum);
        }
        return 0;
}
