/* SPDX-License-Identifier: Apache-2.0 */
/* Batches in all their forms, recorded ones, and bytes that are none. */
#include <math.h>
#include <yyjson.h>

#include "kv_events_test_util.h"

/* ---- worked examples ---- */

static void check_example(const struct list *list)
{
        const struct kvr_blocks_stored *stored = &list->items[0].event.stored;

        assert_int_equal(list->count, 1);
        assert_int_equal(list->items[0].event.kind, ENGINE_EVENT_STORED);
        assert_true(list->batch.at_s == 1789095808.5);
        assert_int_equal(list->batch.rank, 0);
        assert_int_equal(stored->count, 1);
        assert_true(list->items[0].hashes[0] == 3236607068019569386u);
        assert_false(stored->has_parent);
        assert_int_equal(stored->token_count, 16);
        assert_int_equal(stored->block_tokens, 16);
        for (uint32_t i = 0; i < 16; i++)
                assert_int_equal(list->items[0].tokens[i], i + 1);
        assert_int_equal(stored->tier, KVR_TIER_GPU);
        assert_int_equal(stored->adapter.len, 0);
        assert_int_equal(stored->salt.len, 0);
        assert_null(stored->extra);
}

/* The event of the map form, spelt by the writer. */
static void write_example(struct text *out, unsigned pairs_more)
{
        msgpack_write_map(out, 11 + pairs_more);
        msgpack_write_strs(out, "type");
        msgpack_write_strs(out, "BlockStored");
        msgpack_write_strs(out, "block_hashes");
        msgpack_write_array(out, 1);
        msgpack_write_uint(out, 3236607068019569386u);
        msgpack_write_strs(out, "parent_block_hash");
        msgpack_write_nil(out);
        msgpack_write_strs(out, "token_ids");
        msgpack_write_array(out, 16);
        for (uint32_t i = 1; i <= 16; i++)
                msgpack_write_uint(out, i);
        msgpack_write_strs(out, "block_size");
        msgpack_write_uint(out, 16);
        msgpack_write_strs(out, "lora_id");
        msgpack_write_nil(out);
        msgpack_write_strs(out, "medium");
        msgpack_write_strs(out, "GPU");
        msgpack_write_strs(out, "lora_name");
        msgpack_write_nil(out);
        msgpack_write_strs(out, "extra_keys");
        msgpack_write_array(out, 1);
        msgpack_write_nil(out);
        msgpack_write_strs(out, "group_idx");
        msgpack_write_uint(out, 0);
        msgpack_write_strs(out, "kv_cache_spec_kind");
        msgpack_write_strs(out, "full_attention");
}

static void test_map_example(void **state)
{
        (void)state;
        struct list *list = list_new();
        struct text out = {0};

        begin_batch(&out, 1);
        write_example(&out, 0);
        msgpack_write_uint(&out, 0);
        assert_int_equal(out.len, 202); /* as long as the engine's own */
        assert_true(decode_text(list, &out));
        check_example(list);
        /* Keys that are not known, whatever they hold. */
        begin_batch(&out, 1);
        write_example(&out, 2);
        msgpack_write_strs(&out, "session_id");
        msgpack_write_strs(&out, "s");
        msgpack_write_strs(&out, "ownership");
        msgpack_write_array(&out, 2);
        msgpack_write_map(&out, 0);
        msgpack_write_nil(&out);
        msgpack_write_uint(&out, 0);
        assert_true(decode_text(list, &out));
        check_example(list);
        text_free(&out);
        list_free(list);
}

static void test_array_example(void **state)
{
        (void)state;
        struct list *list = list_new();

        assert_true(decode_hex(
                list, "93 cb41daa8dbe0200000 91 99 ab426c6f636b53746f726564 91cf2ceabcfae6d332ea c0 dc0010 "
                      "0102030405060708090a0b0c0d0e0f10 10 c0 a3475055 c0 91c0 00"));
        check_example(list);
        /* As old as possible: no rank, nothing behind the block size. */
        assert_true(decode_hex(
                list, "92 cb41daa8dbe0200000 91 95 ab426c6f636b53746f726564 91cf2ceabcfae6d332ea c0 dc0010 "
                      "0102030405060708090a0b0c0d0e0f10 10"));
        assert_int_equal(list->batch.rank, -1);
        list->batch.rank = 0;
        check_example(list);
        assert_true(decode_hex(
                list, "93 cb41daa8dbe0400000 92 93 ac426c6f636b52656d6f766564 91cf2ceabcfae6d332ea a3475055 "
                      "91 b0416c6c426c6f636b73436c6561726564 00"));
        assert_int_equal(list->count, 2);
        assert_int_equal(list->items[0].event.kind, ENGINE_EVENT_REMOVED);
        assert_int_equal(list->items[0].event.count, 1);
        assert_true(list->items[0].hashes[0] == 3236607068019569386u);
        assert_int_equal(list->items[1].event.kind, ENGINE_EVENT_CLEARED);
        list_free(list);
}

static void test_batch_as_map(void **state)
{
        (void)state;
        struct list *list = list_new();
        struct text out = {0};

        /* The rank in front, the time behind, an unknown key between. */
        msgpack_write_map(&out, 4);
        msgpack_write_strs(&out, "data_parallel_rank");
        msgpack_write_uint(&out, 0);
        msgpack_write_strs(&out, "events");
        msgpack_write_array(&out, 1);
        write_example(&out, 0);
        msgpack_write_strs(&out, "new");
        msgpack_write_array(&out, 1);
        msgpack_write_nil(&out);
        msgpack_write_strs(&out, "ts");
        msgpack_write_float(&out, 1789095808.5);
        assert_true(decode_text(list, &out));
        check_example(list);
        text_free(&out);
        list_free(list);
}

/* ---- recordings, against the other decoder's reading ---- */

static uint64_t oracle_hash(yyjson_val *value)
{
        return yyjson_is_sint(value) ? (uint64_t)yyjson_get_sint(value) : yyjson_get_uint(value);
}

static void check_hashes(const uint64_t *got, uint32_t count, yyjson_val *want)
{
        yyjson_val *value;
        size_t i, max;

        assert_int_equal(count, yyjson_arr_size(want));
        yyjson_arr_foreach(want, i, max, value) assert_true(got[i] == oracle_hash(value));
}

static const char *oracle_text(yyjson_val *value)
{
        return yyjson_is_str(value) ? yyjson_get_str(value) : "";
}

static const char *oracle_salt(yyjson_val *want)
{
        const char *adapter = oracle_text(yyjson_obj_get(want, "lora_name"));
        yyjson_val *keys = yyjson_arr_get_first(yyjson_obj_get(want, "extra_keys")), *key;
        size_t i, max;

        if (yyjson_is_str(yyjson_obj_get(want, "cache_salt")))
                return yyjson_get_str(yyjson_obj_get(want, "cache_salt"));
        yyjson_arr_foreach(keys, i, max, key)
        {
                if (strcmp(yyjson_get_str(key), adapter) != 0)
                        return yyjson_get_str(key);
        }
        return "";
}

static void check_event(const struct seen *got, yyjson_val *want)
{
        const char *type = yyjson_get_str(yyjson_obj_get(want, "type"));
        const struct kvr_blocks_stored *stored = &got->event.stored;
        yyjson_val *value, *parent = yyjson_obj_get(want, "parent_block_hash");
        size_t i, max;

        if (strcmp(type, "AllBlocksCleared") == 0) {
                assert_int_equal(got->event.kind, ENGINE_EVENT_CLEARED);
                return;
        }
        if (strcmp(type, "BlockRemoved") == 0) {
                assert_int_equal(got->event.kind, ENGINE_EVENT_REMOVED);
                check_hashes(got->hashes, got->event.count, yyjson_obj_get(want, "block_hashes"));
                return;
        }
        assert_int_equal(got->event.kind, ENGINE_EVENT_STORED);
        check_hashes(got->hashes, stored->count, yyjson_obj_get(want, "block_hashes"));
        assert_int_equal(stored->token_count, yyjson_arr_size(yyjson_obj_get(want, "token_ids")));
        yyjson_arr_foreach(yyjson_obj_get(want, "token_ids"), i, max, value)
                assert_int_equal(got->tokens[i], yyjson_get_uint(value));
        assert_int_equal(stored->block_tokens, yyjson_get_uint(yyjson_obj_get(want, "block_size")));
        assert_int_equal(stored->has_parent, !yyjson_is_null(parent));
        if (stored->has_parent)
                assert_true(stored->parent == oracle_hash(parent));
        assert_string_equal(got->adapter, oracle_text(yyjson_obj_get(want, "lora_name")));
        if (!stored->has_parent)
                assert_string_equal(got->salt, oracle_salt(want));
        assert_null(got->extra);
}

static char *read_file(const char *name, size_t *ret_len)
{
        char path[512], *text;
        size_t cap = 1 << 20;
        FILE *file;

        snprintf(path, sizeof path, TEST_DATA "/events/%s", name);
        file = fopen(path, "rb");
        text = malloc(cap);
        assert_non_null(file);
        assert_non_null(text);
        *ret_len = fread(text, 1, cap, file);
        assert_true(*ret_len < cap);
        fclose(file);
        return text;
}

static yyjson_doc *read_line(char **at, const char *end)
{
        char *newline = memchr(*at, '\n', (size_t)(end - *at)),
             *stop = newline ? newline : (char *)(uintptr_t)end;
        yyjson_doc *doc = yyjson_read(*at, (size_t)(stop - *at), 0);

        assert_non_null(doc);
        *at = newline ? newline + 1 : stop;
        return doc;
}

static void check_recording(const char *recorded, const char *oracle, unsigned batches)
{
        size_t len, oracle_len;
        char *text = read_file(recorded, &len), *decoded = read_file(oracle, &oracle_len);
        char *at = text, *oracle_at = decoded;
        struct list *list = list_new();
        unsigned count = 0;

        for (; at < text + len && oracle_at < decoded + oracle_len; count++) {
                yyjson_doc *raw = read_line(&at, text + len),
                           *want = read_line(&oracle_at, decoded + oracle_len);
                yyjson_val *root = yyjson_doc_get_root(want), *event;
                yyjson_val *frames = yyjson_obj_get(yyjson_doc_get_root(raw), "frames");
                yyjson_val *batch = yyjson_obj_get(root, "batch"); /* of SGLang's */
                yyjson_val *events = batch ? yyjson_arr_get(batch, 1) : yyjson_obj_get(root, "events");
                yyjson_val *rank =
                        batch ? yyjson_arr_get(batch, 2) : yyjson_obj_get(root, "data_parallel_rank");
                size_t i, max;

                assert_true(decode_hex(list, yyjson_get_str(yyjson_arr_get(frames, 2))));
                assert_int_equal(list->count, yyjson_arr_size(events));
                assert_true(list->batch.at_s ==
                            yyjson_get_num(batch ? yyjson_arr_get(batch, 0) : yyjson_obj_get(root, "ts")));
                assert_int_equal(list->batch.rank, yyjson_get_int(rank));
                yyjson_arr_foreach(events, i, max, event) check_event(&list->items[i], event);
                yyjson_doc_free(raw);
                yyjson_doc_free(want);
        }
        assert_int_equal(count, batches);
        assert_true(at == text + len && oracle_at == decoded + oracle_len);
        list_free(list);
        free(text);
        free(decoded);
}

static void test_recordings(void **state)
{
        (void)state;
        check_recording("vllm/events.jsonl", "vllm/events.decoded.jsonl", 13);
        check_recording("vllm/events-dp2.jsonl", "vllm/events-dp2.decoded.jsonl", 6);
        check_recording("sglang/events.jsonl", "sglang/events.decoded.jsonl", 41);
        check_recording("sglang/events-page1.jsonl", "sglang/events-page1.decoded.jsonl", 10);
        check_recording("sglang/events-dp2.jsonl", "sglang/events-dp2.decoded.jsonl", 7);
}

/* A digest as bytes means what the engine sends as a number by default. */
static void test_hashes_as_bytes(void **state)
{
        (void)state;
        size_t len;
        char *text = read_file("vllm/events-bytes-hash.jsonl", &len), *at = text;
        yyjson_doc *doc = read_line(&at, text + len);
        struct list *list = list_new();

        assert_true(decode_hex(
                list, yyjson_get_str(yyjson_arr_get(yyjson_obj_get(yyjson_doc_get_root(doc), "frames"), 2))));
        assert_int_equal(list->count, 1);
        assert_true(list->items[0].hashes[0] == 16884408276749910423u);
        assert_true(list->items[0].hashes[1] == 11994141271686408032u);
        yyjson_doc_free(doc);
        list_free(list);
        free(text);
}

/* ---- trouble ---- */

static void test_one_bad_event_costs_itself(void **state)
{
        (void)state;
        struct list *list = list_new();
        struct text out = {0};

        begin_batch(&out, 9);
        write_example(&out, 0);
        msgpack_write_uint(&out, 7); /* no event at all */
        msgpack_write_map(&out, 1);
        msgpack_write_strs(&out, "type");
        msgpack_write_uint(&out, 1);
        msgpack_write_array(&out, 2);
        msgpack_write_strs(&out, "BlockRemoved");
        msgpack_write_array(&out, 2);
        msgpack_write_float(&out, 1);
        msgpack_write_map(&out, 1);
        msgpack_write_map(&out, 0);
        msgpack_write_map(&out, 0);
        msgpack_write_array(&out, 2);
        msgpack_write_strs(&out, "BlockMoved");
        msgpack_write_array(&out, 1);
        msgpack_write_nil(&out);
        msgpack_write_array(&out, 0);
        msgpack_write_map(&out, 1); /* a map in the place of a name, as deep as one likes */
        msgpack_write_strs(&out, "lora_name");
        msgpack_write_map(&out, 1);
        msgpack_write_strs(&out, "lora_name");
        msgpack_write_map(&out, 0);
        msgpack_write_array(&out, 1);
        msgpack_write_strs(&out, "AllBlocksCleared");
        msgpack_write_array(&out, 3); /* surplus elements */
        msgpack_write_strs(&out, "AllBlocksCleared");
        msgpack_write_map(&out, 0);
        msgpack_write_nil(&out);
        msgpack_write_uint(&out, 0);
        assert_true(decode_text(list, &out));

        static const enum engine_event_kind want[] = {
                ENGINE_EVENT_STORED, ENGINE_EVENT_BAD,     ENGINE_EVENT_BAD,
                ENGINE_EVENT_BAD,    ENGINE_EVENT_IGNORED, ENGINE_EVENT_BAD,
                ENGINE_EVENT_BAD,    ENGINE_EVENT_CLEARED, ENGINE_EVENT_CLEARED};
        assert_int_equal(list->count, 9);
        for (size_t i = 0; i < 9; i++)
                assert_int_equal(list->items[i].event.kind, want[i]);
        assert_int_equal(list->items[4].event.why, ENGINE_EVENT_TAG);
        text_free(&out);
        list_free(list);
}

static void test_no_batch(void **state)
{
        (void)state;
        static const char *const inputs[] = {"",
                                             "c0",
                                             "00",
                                             "90",
                                             "91 cb41daa8dbe0200000",
                                             "92 c0",
                                             "92 90 90",
                                             "92 c0 c0",
                                             "92 c0 91",
                                             "82 a26473",
                                             "81 01 90",
                                             "a5 68656c6c6f",
                                             "c1",
                                             "dd ffffffff"};
        struct list *list = list_new();

        for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
                assert_false(decode_hex(list, inputs[i]));
                assert_non_null(list->why);
        }
        assert_true(decode_hex(list, "92 c0 90"));
        assert_true(isnan(list->batch.at_s));
        list_free(list);
}

static void write_many(struct text *out, uint32_t hashes, uint32_t tokens_each, bool removal)
{
        begin_batch(out, 1);
        msgpack_write_array(out, removal ? 2 : 5);
        msgpack_write_strs(out, removal ? "BlockRemoved" : "BlockStored");
        msgpack_write_array(out, hashes);
        for (uint32_t i = 0; i < hashes; i++)
                msgpack_write_uint(out, i);
        if (!removal) {
                msgpack_write_nil(out);
                msgpack_write_array(out, hashes * tokens_each);
                for (uint32_t i = 0; i < hashes * tokens_each; i++)
                        msgpack_write_uint(out, i & 127);
                msgpack_write_uint(out, tokens_each);
        }
        msgpack_write_uint(out, 0);
}

/* More blocks than the library takes at once are told in parts that belong together; beyond the limits it is bad. */
static void test_large_events(void **state)
{
        (void)state;
        struct list *list = list_new();
        struct text out = {0};

        write_many(&out, 150000, 1, false);
        assert_true(decode_text(list, &out));
        assert_int_equal(list->count, 3);
        for (size_t i = 0; i < 3; i++) {
                const struct kvr_blocks_stored *stored = &list->items[i].event.stored;

                assert_int_equal(stored->count, i < 2 ? 65536 : 150000 - 2 * 65536);
                assert_int_equal(stored->token_count, stored->count);
                assert_int_equal(stored->has_parent, i > 0);
                if (i > 0)
                        assert_int_equal(stored->parent, i * 65536 - 1);
                assert_int_equal(list->items[i].hashes[0], i * 65536);
                assert_int_equal(list->items[i].tokens[1], (i * 65536 + 1) & 127);
        }
        write_many(&out, 70000, 0, true);
        assert_true(decode_text(list, &out));
        assert_int_equal(list->count, 2);
        assert_int_equal(list->items[1].event.count, 70000 - 65536);
        write_many(&out, ENGINE_EVENT_HASHES_MAX + 1, 0, true);
        assert_true(decode_text(list, &out));
        assert_int_equal(list->items[0].event.kind, ENGINE_EVENT_BAD);
        assert_int_equal(list->items[0].event.why, ENGINE_EVENT_LIMIT);
        text_free(&out);
        list_free(list);
}

/* Every truncation, and many mutations, of every batch of a recording: no crash, and batches cut off say so. */
static void test_truncated_and_mutated(void **state)
{
        (void)state;
        static uint8_t bytes[1 << 16], changed[1 << 16];
        size_t len;
        char *text = read_file("vllm/events.jsonl", &len), *at = text;
        struct list *list = list_new();
        uint64_t seed = 7;

        while (at < text + len) {
                yyjson_doc *doc = read_line(&at, text + len);
                yyjson_val *frames = yyjson_obj_get(yyjson_doc_get_root(doc), "frames");
                size_t size = from_hex(yyjson_get_str(yyjson_arr_get(frames, 2)), bytes, sizeof bytes);

                for (size_t cut = 0; cut < size; cut++)
                        assert_false(decode(list, bytes, cut));
                for (unsigned round = 0; round < 2000; round++) {
                        memcpy(changed, bytes, size);
                        for (unsigned n = 0; n <= round % 4; n++) {
                                seed = seed * 6364136223846793005u + 1442695040888963407u;
                                changed[(seed >> 33) % size] = (uint8_t)(seed >> 20);
                        }
                        (void)decode(list, changed, size);
                }
                yyjson_doc_free(doc);
        }
        list_free(list);
        free(text);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_map_example),
                cmocka_unit_test(test_array_example),
                cmocka_unit_test(test_batch_as_map),
                cmocka_unit_test(test_recordings),
                cmocka_unit_test(test_hashes_as_bytes),
                cmocka_unit_test(test_one_bad_event_costs_itself),
                cmocka_unit_test(test_no_batch),
                cmocka_unit_test(test_large_events),
                cmocka_unit_test(test_truncated_and_mutated),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
