/* SPDX-License-Identifier: Apache-2.0 */
/* The list that TensorRT-LLM gives out over HTTP. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv_events.h"

#define SEEN_MAX   16
#define BLOCKS_MAX 16

struct seen {
        struct engine_event event;
        uint64_t hashes[BLOCKS_MAX], extra[BLOCKS_MAX];
        uint32_t tokens[BLOCKS_MAX];
        bool has_extra;
};

struct list {
        struct seen items[SEEN_MAX];
        size_t count;
        struct engine_event_decoder *decoder;
        struct engine_event_view view;
        const char *why;
};

static void collect(void *ctx, const struct engine_event *event)
{
        struct list *list = ctx;
        struct seen *seen = &list->items[list->count++];
        const struct kvr_blocks_stored *stored = &event->stored;

        assert_true(list->count <= SEEN_MAX);
        *seen = (struct seen){.event = *event};
        if (event->kind == ENGINE_EVENT_REMOVED) {
                assert_true(event->count <= BLOCKS_MAX);
                memcpy(seen->hashes, event->hashes, event->count * sizeof *seen->hashes);
        } else if (event->kind == ENGINE_EVENT_STORED) {
                assert_true(stored->count <= BLOCKS_MAX && stored->token_count <= BLOCKS_MAX);
                memcpy(seen->hashes, stored->hashes, stored->count * sizeof *seen->hashes);
                memcpy(seen->tokens, stored->tokens, stored->token_count * sizeof *seen->tokens);
                seen->has_extra = stored->extra != NULL;
                if (stored->extra)
                        memcpy(seen->extra, stored->extra, stored->count * sizeof *seen->extra);
        }
}

static bool decode_list(struct list *list, const char *json)
{
        list->count = 0;
        return engine_events_decode_json(list->decoder, &list->view, (struct kvr_slice){json, strlen(json)},
                                         collect, list, &list->why);
}

static void test_json(void **state)
{
        (void)state;
        struct list *list = calloc(1, sizeof *list);

        assert_non_null(list);
        list->decoder = engine_event_decoder_new();
        assert_non_null(list->decoder);
        engine_event_view_init(&list->view);

        assert_true(decode_list(
                list,
                "[{\"event_id\":0,\"data\":{\"type\":\"created\",\"num_blocks_per_cache_level\":[10,0]},"
                "\"window_size\":64},"
                "{\"event_id\":1,\"data\":{\"type\":\"stored\",\"parent_hash\":null,\"blocks\":["
                "{\"type\":\"stored_block\",\"block_hash\":11,\"tokens\":[{\"token_id\":1},{\"token_id\":2}],"
                "\"cache_level\":0},"
                "{\"block_hash\":12,\"tokens\":[{\"token_id\":3},{\"token_id\":\"4\"}],\"mm_keys\":[]},"
                "{\"block_hash\":13,\"tokens\":[{\"token_id\":5}]}]},\"window_size\":64},"
                "{\"event_id\":2,\"data\":{\"type\":\"stored\",\"parent_hash\":-12,\"blocks\":["
                "{\"block_hash\":14,\"tokens\":[7,8],\"mm_keys\":[{\"hash\":\"x\"}]}]},\"window_size\":64},"
                "{\"event_id\":3,\"data\":{\"type\":\"removed\",\"block_hashes\":[12,-5]}},"
                "{\"event_id\":4,\"data\":{\"type\":\"removed\",\"block_hashes\":[12]},\"window_size\":8},"
                "{\"event_id\":5,\"data\":{\"type\":\"stored\",\"parent_hash\":1,\"blocks\":[{\"block_hash\":"
                "1,\"tokens\":[1]}]}},"
                "{\"event_id\":6,\"data\":{\"type\":\"stored\",\"blocks\":7}},"
                "{\"event_id\":7,\"data\":{\"type\":\"updated\",\"block_hash\":12}}]"));
        assert_int_equal(list->count, 8);
        for (size_t i = 0; i < 8; i++)
                assert_int_equal(list->items[i].event.number, i);

        const struct kvr_blocks_stored *stored = &list->items[1].event.stored;
        assert_int_equal(list->items[1].event.kind, ENGINE_EVENT_STORED);
        assert_int_equal(stored->count, 2); /* without the one that is not full */
        assert_int_equal(stored->block_tokens, 2);
        assert_false(stored->has_parent);
        assert_int_equal(list->items[1].tokens[3], 4);
        assert_int_equal(list->items[1].hashes[1], 12);
        assert_false(list->items[1].has_extra);
        stored = &list->items[2].event.stored;
        assert_true(stored->has_parent && stored->parent == (uint64_t)-12);
        assert_true(list->items[2].extra[0] != 0);
        assert_int_equal(list->items[3].event.kind, ENGINE_EVENT_REMOVED);
        assert_int_equal(list->items[3].event.count, 2);
        assert_true(list->items[3].hashes[1] == (uint64_t)-5);
        assert_int_equal(list->items[4].event.why, ENGINE_EVENT_GROUP);
        assert_int_equal(list->items[5].event.why, ENGINE_EVENT_PARTIAL);
        assert_int_equal(list->items[6].event.kind, ENGINE_EVENT_BAD);
        assert_int_equal(list->items[7].event.why, ENGINE_EVENT_TAG);
        assert_true(decode_list(list, "[]"));
        assert_int_equal(list->count, 0);
        assert_false(decode_list(list, "{}"));
        assert_false(decode_list(list, "[{"));
        assert_true(decode_list(list, "[1,null,{\"event_id\":-7}]"));
        assert_int_equal(list->count, 3);
        assert_int_equal(list->items[2].event.number, -1);
        engine_event_decoder_free(list->decoder);
        free(list);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_json),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
