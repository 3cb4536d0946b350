/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server-sent events. First byte: the size of the pieces. Promises checked: events, their kinds and what a
 * filter lets out do not depend on how the bytes arrive, and a filter that hides nothing changes nothing.
 */
#include "fuzz.h"

#include "proto/sse.h"

#include <string.h>

struct seen {
        uint64_t events, kinds;
        bool truncated;
};

struct output {
        char *data;
        size_t len, cap;
        bool hide;
};

static void scan(const char *data, size_t len, size_t step, struct seen *seen)
{
        struct sse_scanner *scanner = malloc(sizeof *scanner);
        FUZZ_CHECK(scanner != NULL);
        sse_init(scanner);
        for (size_t at = 0; at < len;) {
                size_t piece = step > 0 && step < len - at ? step : len - at;
                size_t pos = 0, before = 0;
                struct sse_event event;
                while (sse_next(scanner, data + at, piece, &pos, &event)) {
                        FUZZ_CHECK(event.start >= before && event.start <= event.end && event.end <= piece);
                        FUZZ_CHECK(pos == event.end);
                        FUZZ_CHECK(!event.carried || event.start == 0);
                        before = pos;
                        seen->events++;
                        seen->kinds = seen->kinds * 31 + (uint64_t)event.kind + 1;
                        seen->truncated |= event.truncated;
                        /* Reading both ends makes the sanitizer look at where they point. */
                        for (size_t i = 0; i < event.data.len; i++)
                                seen->kinds += (uint64_t)(event.data.data[i] == '\n') << 40;
                        FUZZ_CHECK(event.name.len == 0 ||
                                   memchr(event.name.data, '\n', event.name.len) == NULL);
                }
                FUZZ_CHECK(pos == piece);
                at += piece;
        }
        FUZZ_CHECK(scanner->events == seen->events);
        free(scanner);
}

static void keep_output(void *ctx, const char *data, size_t len)
{
        struct output *output = ctx;
        FUZZ_CHECK(len <= output->cap - output->len);
        if (len > 0)
                memcpy(output->data + output->len, data, len);
        output->len += len;
}

static bool pass_or_hide(void *ctx, const struct sse_event *event)
{
        const struct output *output = ctx;
        return !output->hide || (event->kind != SSE_USAGE && event->kind != SSE_COMMENT);
}

static struct output filter(const char *data, size_t len, size_t step, bool hide)
{
        struct output output = {malloc(len + 1), 0, len, hide};
        struct sse_scanner *scanner = malloc(sizeof *scanner);
        FUZZ_CHECK(output.data != NULL && scanner != NULL);
        sse_init(scanner);
        for (size_t at = 0; at < len;) {
                size_t piece = step > 0 && step < len - at ? step : len - at;
                sse_filter(scanner, data + at, piece, pass_or_hide, keep_output, &output);
                at += piece;
        }
        sse_filter_end(scanner, keep_output, &output);
        free(scanner);
        return output;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        if (len < 1)
                return 0;
        size_t step = bytes[0] % 61 + 1u;
        const char *data = (const char *)bytes + 1;
        len--;

        struct seen whole = {0}, pieces = {0};
        scan(data, len, 0, &whole);
        scan(data, len, step, &pieces);
        FUZZ_CHECK(whole.events == pieces.events);
        FUZZ_CHECK(pieces.truncated || whole.truncated || whole.kinds == pieces.kinds);

        struct output all = filter(data, len, step, false);
        FUZZ_CHECK(all.len == len && (len == 0 || memcmp(all.data, data, len) == 0));
        struct output some = filter(data, len, step, true);
        struct output some_whole = filter(data, len, 0, true);
        if (!pieces.truncated && !whole.truncated && len <= SSE_KEEP_BYTES)
                FUZZ_CHECK(some.len == some_whole.len && memcmp(some.data, some_whole.data, some.len) == 0);
        free(all.data);
        free(some.data);
        free(some_whole.data);
        return 0;
}
