/* SPDX-License-Identifier: Apache-2.0 */
/* What the mock publishes, byte by byte against what a real engine published. */
#include "mock_event_batch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <yyjson.h>

#include <cmocka.h>

static char *read_file(const char *name, size_t *ret_len)
{
        char path[512], *text = malloc(1 << 20);
        FILE *file;

        snprintf(path, sizeof path, TEST_DATA "/events/vllm/%s", name);
        file = fopen(path, "rb");
        assert_non_null(file);
        assert_non_null(text);
        *ret_len = fread(text, 1, 1 << 20, file);
        fclose(file);
        return text;
}

static struct kvr_slice text_of(yyjson_val *value)
{
        return (struct kvr_slice){yyjson_get_str(value), yyjson_get_len(value)};
}

static void write_event(struct text *out, const struct mock_event_format *format, yyjson_val *want)
{
        static uint64_t hashes[256];
        static uint32_t tokens[8192];
        const char *type = yyjson_get_str(yyjson_obj_get(want, "type"));
        yyjson_val *value, *parent = yyjson_obj_get(want, "parent_block_hash"),
                           *keys = yyjson_arr_get_first(yyjson_obj_get(want, "extra_keys"));
        struct mock_event event = {.kind = MOCK_EVENT_CLEARED, .hashes = hashes, .tokens = tokens};
        size_t i, max;

        if (strcmp(type, "AllBlocksCleared") != 0)
                event.kind = strcmp(type, "BlockStored") == 0 ? MOCK_EVENT_STORED : MOCK_EVENT_REMOVED;
        yyjson_arr_foreach(yyjson_obj_get(want, "block_hashes"), i, max, value) hashes[i] =
                yyjson_get_uint(value);
        event.count = (uint32_t)yyjson_arr_size(yyjson_obj_get(want, "block_hashes"));
        yyjson_arr_foreach(yyjson_obj_get(want, "token_ids"), i, max, value) tokens[i] =
                (uint32_t)yyjson_get_uint(value);
        event.block_tokens = (uint32_t)yyjson_get_uint(yyjson_obj_get(want, "block_size"));
        event.has_parent = parent && !yyjson_is_null(parent);
        event.parent = yyjson_get_uint(parent);
        if (yyjson_is_str(yyjson_obj_get(want, "lora_name")))
                event.adapter = text_of(yyjson_obj_get(want, "lora_name"));
        if (yyjson_arr_size(keys) > (event.adapter.len > 0))
                event.salt = text_of(yyjson_arr_get(keys, event.adapter.len > 0));
        mock_batch_event(out, format, &event);
}

static void check_hex(const struct text *out, const char *hex)
{
        assert_int_equal(strlen(hex), 2 * out->len);
        for (size_t i = 0; i < out->len; i++) {
                char byte[3];

                snprintf(byte, sizeof byte, "%02x", (uint8_t)out->data[i]);
                assert_memory_equal(byte, hex + 2 * i, 2);
        }
}

static void check_line(const struct mock_event_format *format, char *raw, size_t raw_len, char *decoded,
                       size_t decoded_len)
{
        yyjson_doc *frames = yyjson_read(raw, raw_len, 0), *want = yyjson_read(decoded, decoded_len, 0);
        yyjson_val *root = yyjson_doc_get_root(want), *events = yyjson_obj_get(root, "events"), *event;
        struct text out = {0};
        size_t i, max;

        assert_non_null(frames);
        assert_non_null(want);
        mock_batch_begin(&out, yyjson_get_real(yyjson_obj_get(root, "ts")),
                         (uint32_t)yyjson_arr_size(events));
        yyjson_arr_foreach(events, i, max, event) write_event(&out, format, event);
        mock_batch_end(&out, (uint32_t)yyjson_get_uint(yyjson_obj_get(root, "data_parallel_rank")));
        if (!yyjson_obj_get(yyjson_arr_get_last(events), "session_id")) /* the mock names no sessions */
                check_hex(&out, yyjson_get_str(yyjson_arr_get(
                                        yyjson_obj_get(yyjson_doc_get_root(frames), "frames"), 2)));
        text_free(&out);
        yyjson_doc_free(frames);
        yyjson_doc_free(want);
}

/* Thirteen batches of a real run: salt, adapter, repeated stores, evictions, a clear. */
static void test_as_recorded(void **state)
{
        (void)state;
        const struct mock_event_format format = {0};
        size_t raw_len, decoded_len;
        char *raw = read_file("events.jsonl", &raw_len),
             *decoded = read_file("events.decoded.jsonl", &decoded_len);
        char *at = raw, *oracle = decoded;
        unsigned batches = 0;

        while (at < raw + raw_len && oracle < decoded + decoded_len) {
                char *end = memchr(at, '\n', (size_t)(raw + raw_len - at));
                char *oracle_end = memchr(oracle, '\n', (size_t)(decoded + decoded_len - oracle));

                assert_non_null(end);
                assert_non_null(oracle_end);
                check_line(&format, at, (size_t)(end - at), oracle, (size_t)(oracle_end - oracle));
                at = end + 1;
                oracle = oracle_end + 1;
                batches++;
        }
        assert_int_equal(batches, 13);
        free(raw);
        free(decoded);
}

/* The oldest form, as documented. */
static void test_arrays(void **state)
{
        (void)state;
        const struct mock_event_format format = {.arrays = true};
        uint64_t hash = 3236607068019569386u;
        uint32_t tokens[16];
        struct mock_event event = {
                .kind = MOCK_EVENT_STORED, .hashes = &hash, .count = 1, .tokens = tokens, .block_tokens = 16};
        struct text out = {0};

        for (uint32_t i = 0; i < 16; i++)
                tokens[i] = i + 1;
        mock_batch_begin(&out, 1789095808.5, 1);
        mock_batch_event(&out, &format, &event);
        mock_batch_end(&out, 0);
        check_hex(&out, "93cb41daa8dbe02000009199ab426c6f636b53746f72656491cf2ceabcfae6d332eac0dc0010"
                        "0102030405060708090a0b0c0d0e0f1010c0a3475055c091c000");
        text_clear(&out);
        mock_batch_begin(&out, 1789095809.0, 2);
        event.kind = MOCK_EVENT_REMOVED;
        mock_batch_event(&out, &format, &event);
        event.kind = MOCK_EVENT_CLEARED;
        mock_batch_event(&out, &format, &event);
        mock_batch_end(&out, 0);
        check_hex(&out, "93cb41daa8dbe04000009293ac426c6f636b52656d6f76656491cf2ceabcfae6d332eaa3475055"
                        "91b0416c6c426c6f636b73436c656172656400");
        text_free(&out);
}

static void test_hashes_as_bytes(void **state)
{
        (void)state;
        const struct mock_event_format format = {.arrays = true, .bytes = true};
        uint64_t hash = 0x0102030405060708u;
        struct mock_event event = {.kind = MOCK_EVENT_REMOVED, .hashes = &hash, .count = 1};
        struct text out = {0};

        mock_batch_event(&out, &format, &event);
        check_hex(&out, "93ac426c6f636b52656d6f76656491c420"
                        "0102030405060708010203040506070801020304050607080102030405060708a3475055");
        text_free(&out);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_as_recorded),
                cmocka_unit_test(test_arrays),
                cmocka_unit_test(test_hashes_as_bytes),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
