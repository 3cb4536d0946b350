/* SPDX-License-Identifier: Apache-2.0 */
/* Events whose meaning is not what it seems: layers of other kinds, tiers, salts and adapters, images. */
#include "kv_events_test_util.h"

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

/* A block that leaves one tier may still lie in another. `as_array`: the old form. */
static const struct engine_event *removal_from(struct list *list, const char *medium, const char *locality,
                                               bool as_array)
{
        struct text out = {0};

        begin_batch(&out, 1);
        if (as_array) {
                msgpack_write_array(&out, medium ? 3 : 2);
                msgpack_write_strs(&out, "BlockRemoved");
        } else {
                msgpack_write_map(&out, 2u + (medium != NULL) + (locality != NULL));
                msgpack_write_strs(&out, "type");
                msgpack_write_strs(&out, "BlockRemoved");
                msgpack_write_strs(&out, "block_hashes");
        }
        msgpack_write_array(&out, 1);
        msgpack_write_uint(&out, 100);
        if (medium && !as_array)
                msgpack_write_strs(&out, "medium");
        if (medium)
                msgpack_write_strs(&out, medium);
        if (locality) {
                msgpack_write_strs(&out, "locality");
                msgpack_write_strs(&out, locality);
        }
        msgpack_write_uint(&out, 0);
        assert_true(decode_text(list, &out));
        assert_int_equal(list->count, 1);
        text_free(&out);
        return &list->items[0].event;
}

static void test_removals_by_tier(void **state)
{
        (void)state;
        static const struct {
                const char *medium, *locality;
                enum engine_event_kind kind;
                enum kvr_tier tier;
        } cases[] = {
                {NULL, NULL, ENGINE_EVENT_REMOVED, KVR_TIER_GPU},
                {"GPU", "LOCAL", ENGINE_EVENT_REMOVED, KVR_TIER_GPU},
                {"CPU", NULL, ENGINE_EVENT_REMOVED, KVR_TIER_CPU},
                {"CPU_PINNED", NULL, ENGINE_EVENT_REMOVED, KVR_TIER_CPU},
                {"STORAGE", NULL, ENGINE_EVENT_REMOVED, KVR_TIER_DISK},
                {"DISK", NULL, ENGINE_EVENT_REMOVED, KVR_TIER_DISK},
                {"TAPE", NULL, ENGINE_EVENT_IGNORED, KVR_TIER_GPU},
                {"GPU", "REMOTE", ENGINE_EVENT_IGNORED, KVR_TIER_GPU}, /* another machine's */
        };
        struct list *list = list_new();

        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
                for (int as_array = 0; as_array < (cases[i].locality ? 1 : 2); as_array++) {
                        const struct engine_event *event =
                                removal_from(list, cases[i].medium, cases[i].locality, as_array);

                        assert_int_equal(event->kind, cases[i].kind);
                        if (event->kind == ENGINE_EVENT_REMOVED)
                                assert_int_equal(event->tier, cases[i].tier);
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

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_what_is_not_indexed), cmocka_unit_test(test_tiers),
                cmocka_unit_test(test_removals_by_tier),    cmocka_unit_test(test_groups),
                cmocka_unit_test(test_salt_or_adapter),     cmocka_unit_test(test_images_and_embeddings),
                cmocka_unit_test(test_eighth_element),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
