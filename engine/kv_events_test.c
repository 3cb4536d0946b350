/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_events.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

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

static void *copy(const void *from, size_t len)
{
        void *to = malloc(len ? len : 1);

        assert_non_null(to);
        if (len)
                memcpy(to, from, len);
        return to;
}

static void collect(void *ctx, const struct engine_event *event)
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

static struct list *list_new(void)
{
        struct list *list = calloc(1, sizeof *list);

        assert_non_null(list);
        list->decoder = engine_event_decoder_new();
        assert_non_null(list->decoder);
        engine_event_view_init(&list->view);
        return list;
}

static void list_clear(struct list *list)
{
        for (size_t i = 0; i < list->count; i++) {
                free(list->items[i].hashes);
                free(list->items[i].extra);
                free(list->items[i].tokens);
        }
        list->count = 0;
}

static void list_free(struct list *list)
{
        list_clear(list);
        engine_event_decoder_free(list->decoder);
        free(list);
}

/* Decodes a copy that ends where the bytes end, so that the sanitizer sees a read beyond. */
static bool decode(struct list *list, const void *bytes, size_t len)
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

static bool decode_text(struct list *list, struct text *text)
{
        assert_false(text->failed);
        return decode(list, text->data, text->len);
}

static size_t from_hex(const char *hex, uint8_t *ret, size_t room)
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

static bool decode_hex(struct list *list, const char *hex)
{
        static uint8_t bytes[1 << 20];
        size_t len = from_hex(hex, bytes, sizeof bytes);

        return decode(list, bytes, len);
}

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

static void begin_batch(struct text *out, uint32_t events)
{
        text_clear(out);
        msgpack_write_array(out, 3);
        msgpack_write_float(out, 1789095808.5);
        msgpack_write_array(out, events);
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

/* ---- traps ---- */

/* One BlockStored of map form with what the caller wants to differ. */
struct shape {
        const char *medium, *kind, *adapter, *locality;
        uint32_t hashes, tokens, block;
        int group; /* -1: none */
        bool parent;
};

static void write_stored(struct text *out, const struct shape *shape)
{
        msgpack_write_map(out, 5u + (shape->medium != NULL) + (shape->kind != NULL) +
                                       (shape->adapter != NULL) + (shape->locality != NULL) +
                                       (shape->group >= 0));
        msgpack_write_strs(out, "block_hashes"); /* the tag need not come first */
        msgpack_write_array(out, shape->hashes);
        for (uint32_t i = 0; i < shape->hashes; i++)
                msgpack_write_uint(out, 100 + i);
        msgpack_write_strs(out, "type");
        msgpack_write_strs(out, "BlockStored");
        msgpack_write_strs(out, "parent_block_hash");
        if (shape->parent)
                msgpack_write_uint(out, 99);
        else
                msgpack_write_nil(out);
        msgpack_write_strs(out, "token_ids");
        msgpack_write_array(out, shape->tokens);
        for (uint32_t i = 0; i < shape->tokens; i++)
                msgpack_write_uint(out, i);
        msgpack_write_strs(out, "block_size");
        msgpack_write_uint(out, shape->block);
        if (shape->medium) {
                msgpack_write_strs(out, "medium");
                msgpack_write_strs(out, shape->medium);
        }
        if (shape->kind) {
                msgpack_write_strs(out, "kv_cache_spec_kind");
                msgpack_write_strs(out, shape->kind);
        }
        if (shape->adapter) {
                msgpack_write_strs(out, "lora_name");
                msgpack_write_strs(out, shape->adapter);
        }
        if (shape->locality) {
                msgpack_write_strs(out, "locality");
                msgpack_write_strs(out, shape->locality);
        }
        if (shape->group >= 0) {
                msgpack_write_strs(out, "group_idx");
                msgpack_write_uint(out, (uint64_t)shape->group);
        }
}

static const struct engine_event *decode_shape(struct list *list, const struct shape *shape)
{
        struct text out = {0};

        begin_batch(&out, 1);
        write_stored(&out, shape);
        msgpack_write_nil(&out);
        assert_true(decode_text(list, &out));
        assert_int_equal(list->count, 1);
        text_free(&out);
        return &list->items[0].event;
}

static void test_what_is_not_indexed(void **state)
{
        (void)state;
        static const struct {
                struct shape shape;
                enum engine_event_why why;
        } cases[] = {
                /* More tokens than hashes: masked blocks of a sliding window. */
                {{"GPU", "full_attention", NULL, NULL, 1, 32, 16, 0, false}, ENGINE_EVENT_LENGTH},
                {{"GPU", NULL, NULL, NULL, 2, 16, 16, -1, false}, ENGINE_EVENT_LENGTH},
                {{"GPU", "sliding_window", NULL, NULL, 1, 16, 16, 0, false}, ENGINE_EVENT_GROUP},
                {{"GPU", "mamba", NULL, NULL, 1, 16, 16, 1, false}, ENGINE_EVENT_GROUP},
                {{"GPU", NULL, NULL, NULL, 1, 16, 16, 1, false}, ENGINE_EVENT_GROUP},
                /* Hashes alone, from an offloading connector. */
                {{"CPU", NULL, NULL, NULL, 1, 0, 0, -1, false}, ENGINE_EVENT_OFFLOAD},
                {{"STORAGE", NULL, NULL, NULL, 3, 0, 0, -1, false}, ENGINE_EVENT_OFFLOAD},
                {{"GPU", NULL, NULL, "REMOTE", 1, 16, 16, -1, false}, ENGINE_EVENT_REMOTE},
                {{"TAPE", NULL, NULL, NULL, 1, 16, 16, -1, false}, ENGINE_EVENT_MEDIUM},
                {{"GPU", NULL, NULL, NULL, 0, 0, 16, -1, false}, ENGINE_EVENT_EMPTY},
        };
        struct list *list = list_new();

        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                const struct engine_event *event = decode_shape(list, &cases[i].shape);

                assert_int_equal(event->kind, ENGINE_EVENT_IGNORED);
                assert_string_equal(engine_event_why_name(event->why), engine_event_why_name(cases[i].why));
        }
        list_free(list);
}

static void test_tiers(void **state)
{
        (void)state;
        static const struct {
                const char *medium;
                enum kvr_tier tier;
        } cases[] = {{NULL, KVR_TIER_GPU},         {"GPU", KVR_TIER_GPU},   {"CPU", KVR_TIER_CPU},
                     {"CPU_PINNED", KVR_TIER_CPU}, {"DISK", KVR_TIER_DISK}, {"STORAGE", KVR_TIER_DISK},
                     {"EXTERNAL", KVR_TIER_DISK}};
        struct list *list = list_new();

        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                struct shape shape = {cases[i].medium, NULL, NULL, "LOCAL", 2, 32, 16, -1, true};
                const struct engine_event *event = decode_shape(list, &shape);

                assert_int_equal(event->kind, ENGINE_EVENT_STORED);
                assert_int_equal(event->stored.tier, cases[i].tier);
                assert_true(event->stored.has_parent && event->stored.parent == 99);
        }
        list_free(list);
}

static enum engine_event_kind removal_of_group(struct list *list, int group)
{
        struct text out = {0};
        enum engine_event_kind kind;

        begin_batch(&out, 1);
        msgpack_write_map(&out, group < 0 ? 2 : 3);
        msgpack_write_strs(&out, "type");
        msgpack_write_strs(&out, "BlockRemoved");
        msgpack_write_strs(&out, "block_hashes");
        msgpack_write_array(&out, 1);
        msgpack_write_uint(&out, 100);
        if (group >= 0) {
                msgpack_write_strs(&out, "group_idx");
                msgpack_write_uint(&out, (uint64_t)group);
        }
        msgpack_write_uint(&out, 0);
        assert_true(decode_text(list, &out));
        kind = list->items[0].event.kind;
        text_free(&out);
        return kind;
}

/* A removal does not say of which kind its group is: only the one that is indexed may count. */
static void test_groups(void **state)
{
        (void)state;
        struct list *list = list_new();
        struct shape window = {"GPU", "sliding_window", NULL, NULL, 1, 16, 16, 0, false};
        struct shape full = {"GPU", "full_attention", NULL, NULL, 1, 16, 16, 1, false};
        struct shape second = {"GPU", "full_attention", NULL, NULL, 1, 16, 16, 2, false};

        assert_int_equal(decode_shape(list, &window)->kind, ENGINE_EVENT_IGNORED);
        assert_int_equal(decode_shape(list, &full)->kind, ENGINE_EVENT_STORED);
        assert_int_equal(decode_shape(list, &second)->kind, ENGINE_EVENT_IGNORED);
        assert_int_equal(removal_of_group(list, 0), ENGINE_EVENT_IGNORED);
        assert_int_equal(removal_of_group(list, 1), ENGINE_EVENT_REMOVED);
        assert_int_equal(removal_of_group(list, 2), ENGINE_EVENT_IGNORED);
        assert_int_equal(removal_of_group(list, -1), ENGINE_EVENT_REMOVED);
        list_free(list);
}

/* ---- extra keys ---- */

enum key { END, TEXT_A, TEXT_B, BYTES, IMAGE, IMAGE_ELSEWHERE };

static void write_key(struct text *out, enum key key)
{
        switch (key) {
        case TEXT_A:
                msgpack_write_strs(out, "a");
                break;
        case TEXT_B:
                msgpack_write_strs(out, "b");
                break;
        case BYTES:
                msgpack_write_bin(out, "digest", 6);
                break;
        default:
                msgpack_write_array(out, 2);
                msgpack_write_strs(out, "img");
                msgpack_write_int(out, key == IMAGE ? 4 : -12);
        }
}

static struct seen *decode_keys(struct list *list, const char *adapter, bool parent, const enum key first[4],
                                const enum key second[4])
{
        struct shape shape = {NULL, NULL, adapter, NULL, 2, 32, 16, -1, parent};
        const enum key *keys[] = {first, second};
        struct text out = {0}, event = {0};

        write_stored(&event, &shape);
        event.data[0] = (char)(event.data[0] + 1); /* one pair more */
        msgpack_write_strs(&event, "extra_keys");
        msgpack_write_array(&event, 2);
        for (size_t block = 0; block < 2; block++) {
                uint32_t count = 0;

                while (count < 4 && keys[block][count] != END)
                        count++;
                if (count == 0)
                        msgpack_write_nil(&event);
                else
                        msgpack_write_array(&event, count);
                for (uint32_t i = 0; i < count; i++)
                        write_key(&event, keys[block][i]);
        }
        begin_batch(&out, 1);
        text_add_slice(&out, text_slice(&event));
        msgpack_write_uint(&out, 0);
        assert_true(decode_text(list, &out));
        assert_int_equal(list->count, 1);
        assert_int_equal(list->items[0].event.kind, ENGINE_EVENT_STORED);
        text_free(&out);
        text_free(&event);
        return &list->items[0];
}

#define KEYS(...) ((const enum key[4]){__VA_ARGS__})

static void test_salt_or_adapter(void **state)
{
        (void)state;
        struct list *list = list_new();
        struct seen *seen = decode_keys(list, NULL, false, KEYS(TEXT_A), KEYS(END));

        assert_string_equal(seen->salt, "a");
        assert_string_equal(seen->adapter, "");
        assert_null(seen->extra);
        seen = decode_keys(list, "a", false, KEYS(TEXT_A), KEYS(TEXT_A));
        assert_string_equal(seen->salt, "");
        assert_string_equal(seen->adapter, "a");
        assert_null(seen->extra);
        seen = decode_keys(list, "a", false, KEYS(TEXT_A, TEXT_A), KEYS(TEXT_A));
        assert_string_equal(seen->salt, "a");
        assert_string_equal(seen->adapter, "a");
        assert_null(seen->extra);
        seen = decode_keys(list, "a", false, KEYS(TEXT_A, TEXT_B), KEYS(TEXT_A));
        assert_string_equal(seen->salt, "b");
        /* In the middle of a prompt there is no salt; what is there all the same is another key. */
        seen = decode_keys(list, NULL, true, KEYS(TEXT_A), KEYS(END));
        assert_string_equal(seen->salt, "");
        assert_non_null(seen->extra);
        assert_true(seen->extra[0] != 0 && seen->extra[1] == 0);
        list_free(list);
}

static void test_images_and_embeddings(void **state)
{
        (void)state;
        struct list *list = list_new();
        uint64_t image, elsewhere, digest, both;

        struct seen *seen = decode_keys(list, NULL, false, KEYS(IMAGE, TEXT_A), KEYS(IMAGE_ELSEWHERE));

        assert_string_equal(seen->salt, "a");
        image = seen->extra[0];
        elsewhere = seen->extra[1];
        assert_true(image != 0 && elsewhere != 0 && image != elsewhere);
        /* The same keys give the same hash wherever they are, and whatever the salt. */
        seen = decode_keys(list, "b", true, KEYS(TEXT_B, IMAGE), KEYS(TEXT_B, IMAGE, BYTES));
        assert_true(seen->extra[0] == image);
        both = seen->extra[1];
        seen = decode_keys(list, NULL, false, KEYS(BYTES), KEYS(END));
        assert_string_equal(seen->salt, "");
        digest = seen->extra[0];
        assert_true(digest != 0 && digest != image && both != digest && both != image);
        list_free(list);
}

/* ---- SGLang's eighth element, old adapters ---- */

static const struct seen *decode_eighth(struct list *list, bool as_map, uint64_t adapter_id)
{
        struct text out = {0};

        begin_batch(&out, 1);
        msgpack_write_array(&out, 8);
        msgpack_write_strs(&out, "BlockStored");
        msgpack_write_array(&out, 1);
        msgpack_write_int(&out, -3595798917573138881);
        msgpack_write_int(&out, -2);
        msgpack_write_array(&out, 1);
        msgpack_write_strs(&out, "17"); /* TensorRT-LLM may send ids as text */
        msgpack_write_uint(&out, 1);
        if (adapter_id)
                msgpack_write_uint(&out, adapter_id);
        else
                msgpack_write_nil(&out);
        msgpack_write_strs(&out, "GPU");
        if (as_map) {
                msgpack_write_map(&out, 2);
                msgpack_write_strs(&out, "cache_salt");
                msgpack_write_strs(&out, "s1");
                msgpack_write_strs(&out, "whatever");
                msgpack_write_nil(&out);
        } else if (adapter_id) {
                msgpack_write_nil(&out);
        } else {
                msgpack_write_strs(&out, "ad");
        }
        msgpack_write_uint(&out, 3);
        assert_true(decode_text(list, &out));
        assert_int_equal(list->count, 1);
        assert_int_equal(list->items[0].event.kind, ENGINE_EVENT_STORED);
        text_free(&out);
        return &list->items[0];
}

static void test_eighth_element(void **state)
{
        (void)state;
        struct list *list = list_new();
        const struct seen *seen = decode_eighth(list, true, 0);

        assert_string_equal(seen->salt, "s1");
        assert_string_equal(seen->adapter, "");
        assert_true(seen->hashes[0] == (uint64_t)-3595798917573138881);
        assert_true(seen->event.stored.parent == (uint64_t)-2);
        assert_int_equal(seen->tokens[0], 17);
        assert_int_equal(list->batch.rank, 3);
        seen = decode_eighth(list, false, 0);
        assert_string_equal(seen->salt, "");
        assert_string_equal(seen->adapter, "ad");
        /* An adapter known by number only must not count as the base model. */
        seen = decode_eighth(list, false, 120);
        assert_string_equal(seen->adapter, "#120");
        list_free(list);
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
                cmocka_unit_test(test_what_is_not_indexed),
                cmocka_unit_test(test_tiers),
                cmocka_unit_test(test_groups),
                cmocka_unit_test(test_salt_or_adapter),
                cmocka_unit_test(test_images_and_embeddings),
                cmocka_unit_test(test_eighth_element),
                cmocka_unit_test(test_one_bad_event_costs_itself),
                cmocka_unit_test(test_no_batch),
                cmocka_unit_test(test_large_events),
                cmocka_unit_test(test_truncated_and_mutated),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
