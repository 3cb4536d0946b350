/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the event decoder: what it gave, copied, and how bytes get in. */
#ifndef KVROUTE_ENGINE_KV_EVENTS_TEST_UTIL_H
#define KVROUTE_ENGINE_KV_EVENTS_TEST_UTIL_H

#include "kv_events.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/msgpack.h"

#define SEEN_MAX 4096

/* What the decoder gave, copied. */
struct seen {
        struct engine_event event;
        uint64_t *hashes, *extra;
        uint32_t *tokens;
        char adapter[64], salt[64];
};

struct list {
        struct seen items[SEEN_MAX];
        size_t count;
        struct engine_event_decoder *decoder;
        struct engine_event_view view;
        struct engine_event_batch batch;
        const char *why;
};

static inline void *copy(const void *from, size_t len)
{
        void *to = malloc(len ? len : 1);

        assert_non_null(to);
        if (len)
                memcpy(to, from, len);
        return to;
}

static inline void collect(void *ctx, const struct engine_event *event)
{
        struct list *list = ctx;
        struct seen *seen = &list->items[list->count++];
        const struct kvr_blocks_stored *stored = &event->stored;

        assert_true(list->count < SEEN_MAX);
        *seen = (struct seen){.event = *event};
        if (event->kind == ENGINE_EVENT_STORED) {
                seen->hashes = copy(stored->hashes, stored->count * sizeof(uint64_t));
                seen->tokens = copy(stored->tokens, stored->token_count * sizeof(uint32_t));
                if (stored->extra)
                        seen->extra = copy(stored->extra, stored->count * sizeof(uint64_t));
                assert_true(stored->adapter.len < 64 && stored->salt.len < 64);
                memcpy(seen->adapter, stored->adapter.data ? stored->adapter.data : "", stored->adapter.len);
                memcpy(seen->salt, stored->salt.data ? stored->salt.data : "", stored->salt.len);
        } else if (event->kind == ENGINE_EVENT_REMOVED) {
                seen->hashes = copy(event->hashes, event->count * sizeof(uint64_t));
        }
}

static inline struct list *list_new(void)
{
        struct list *list = calloc(1, sizeof *list);

        assert_non_null(list);
        list->decoder = engine_event_decoder_new();
        assert_non_null(list->decoder);
        engine_event_view_init(&list->view);
        return list;
}

static inline void list_clear(struct list *list)
{
        for (size_t i = 0; i < list->count; i++) {
                free(list->items[i].hashes);
                free(list->items[i].extra);
                free(list->items[i].tokens);
        }
        list->count = 0;
}

static inline void list_free(struct list *list)
{
        list_clear(list);
        engine_event_decoder_free(list->decoder);
        free(list);
}

/* Decodes a copy that ends where the bytes end, so that the sanitizer sees a read beyond. */
static inline bool decode(struct list *list, const void *bytes, size_t len)
{
        char *exact = copy(bytes, len);
        bool ok;

        list_clear(list);
        list->why = NULL;
        ok = engine_events_decode(list->decoder, &list->view, (struct kvr_slice){exact, len}, &list->batch,
                                  collect, list, &list->why);
        assert_true(ok == (list->why == NULL));
        free(exact);
        return ok;
}

static inline bool decode_text(struct list *list, struct text *text)
{
        assert_false(text->failed);
        return decode(list, text->data, text->len);
}

static inline size_t from_hex(const char *hex, uint8_t *ret, size_t room)
{
        size_t len = 0;
        unsigned byte;

        for (; *hex; hex++) {
                if (*hex == ' ')
                        continue;
                assert_int_equal(sscanf(hex, "%2x", &byte), 1);
                assert_true(len < room);
                ret[len++] = (uint8_t)byte;
                hex++;
        }
        return len;
}

static inline bool decode_hex(struct list *list, const char *hex)
{
        static uint8_t bytes[1 << 20];
        size_t len = from_hex(hex, bytes, sizeof bytes);

        return decode(list, bytes, len);
}

static inline void begin_batch(struct text *out, uint32_t events)
{
        text_clear(out);
        msgpack_write_array(out, 3);
        msgpack_write_float(out, 1789095808.5);
        msgpack_write_array(out, events);
}

#endif
