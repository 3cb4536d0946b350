/* SPDX-License-Identifier: Apache-2.0 */
#include "models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "test_data.h"

static struct kvr_slice slice(const char *text)
{
        return (struct kvr_slice){text, strlen(text)};
}

static void check_slice(struct kvr_slice got, const char *want)
{
        assert_int_equal(got.len, strlen(want));
        assert_memory_equal(got.data, want, got.len);
}

static struct engine_models *parse(const char *text)
{
        struct engine_models *models = NULL;
        struct kvr_error err;

        assert_int_equal(engine_models_parse(slice(text), &models, &err), KVR_OK);
        return models;
}

static void test_vllm_list(void **state)
{
        (void)state;
        struct kvr_slice text = test_data_read("vllm/models.json");
        struct engine_models *models;

        assert_int_equal(engine_models_parse(text, &models, NULL), KVR_OK);
        test_data_free(text);
        assert_int_equal(models->count, 2);
        check_slice(models->items[0].id, "tiny");
        check_slice(models->items[0].root, "/models/tiny");
        check_slice(models->items[0].parent, "");
        assert_int_equal(models->items[0].max_model_len, 1024);
        check_slice(models->items[1].id, "ad1");
        check_slice(models->items[1].parent, "tiny");
        assert_int_equal(models->items[1].max_model_len, -1);
        assert_ptr_equal(engine_models_find(models, slice("ad1")), &models->items[1]);
        assert_null(engine_models_find(models, slice("ad")));
        engine_models_free(models);
}

static void test_refused(void **state)
{
        (void)state;
        struct engine_models *models = NULL;
        struct kvr_error err = {0};

        assert_int_equal(engine_models_parse(slice("{\"data\":[}"), &models, &err), KVR_E_JSON);
        assert_int_equal(err.offset, 9);
        assert_int_equal(engine_models_parse(slice("{}"), &models, &err), KVR_E_REQUEST);
        assert_int_equal(engine_models_parse(slice("[]"), &models, &err), KVR_E_REQUEST);
        assert_int_equal(engine_models_parse(slice(""), &models, &err), KVR_E_JSON);
        assert_int_equal(
                engine_models_parse((struct kvr_slice){"", ENGINE_MODELS_BODY_MAX + 1}, &models, &err),
                KVR_E_LIMIT);
        assert_null(models);
        models = parse("{\"data\":[]}");
        assert_int_equal(models->count, 0);
        engine_models_free(models);
        engine_models_free(NULL);
}

static void test_odd_entries_are_left_out(void **state)
{
        (void)state;
        struct engine_models *models =
                parse("{\"data\":[1,null,{},{\"id\":\"\"},{\"id\":7},{\"id\":\"a\",\"max_model_len\":-4},"
                      "{\"id\":\"a\",\"root\":\"second\"},{\"id\":\"b\",\"max_model_len\":1.5},"
                      "{\"id\":\"c\",\"max_model_len\":99999999999999999999}]}");
        assert_int_equal(models->count, 3);
        assert_int_equal(models->left_out, 6);
        for (size_t i = 0; i < 3; i++)
                assert_int_equal(models->items[i].max_model_len, -1);
        engine_models_free(models);

        char *text = malloc(100000);
        size_t len = (size_t)snprintf(text, 100000, "{\"data\":[{\"id\":\"%0*d\"}", KVR_NAME_MAX, 1);
        for (int i = 0; i < ENGINE_MODELS_MAX + 5; i++)
                len += (size_t)snprintf(text + len, 100000 - len, ",{\"id\":\"m%d\"}", i);
        memcpy(text + len, "]}", 3);
        models = parse(text);
        assert_int_equal(models->count, ENGINE_MODELS_MAX);
        assert_int_equal(models->left_out, 6);
        free(text);
        engine_models_free(models);
}

static void test_union(void **state)
{
        (void)state;
        struct engine_models *a =
                parse("{\"data\":[{\"id\":\"m1\",\"created\":1796069232,\"x\":[1.50,{\"y\":null}]},"
                      "{\"id\":\"m2\",\"owned_by\":\"vllm\"}]}");
        struct engine_models *b =
                parse("{\"data\":[{\"id\":\"m2\",\"owned_by\":\"sglang\"},{\"id\":\"m3\\u00e9\"}]}");
        const struct engine_models *lists[] = {a, NULL, b};
        const struct engine_alias aliases[] = {
                {slice("big"), slice("m2")}, {slice("none"), slice("absent")}, {slice("m1"), slice("m2")},
                {slice("big"), slice("m1")}, {slice("chain"), slice("big")},
        };
        char *json = NULL;
        size_t len = 0;

        assert_int_equal(engine_models_merge(lists, 3, aliases, 5, &json, &len), KVR_OK);
        assert_string_equal(
                json, "{\"object\":\"list\",\"data\":["
                      "{\"id\":\"m1\",\"created\":1796069232,\"x\":[1.50,{\"y\":null}]},"
                      "{\"id\":\"m2\",\"owned_by\":\"vllm\"},{\"id\":\"m3\xc3\xa9\"},"
                      "{\"id\":\"big\",\"owned_by\":\"vllm\"},{\"id\":\"chain\",\"owned_by\":\"vllm\"}]}");
        assert_int_equal(len, strlen(json));
        free(json);
        assert_int_equal(engine_models_merge(NULL, 0, NULL, 0, &json, &len), KVR_OK);
        assert_string_equal(json, "{\"object\":\"list\",\"data\":[]}");
        free(json);
        engine_models_free(a);
        engine_models_free(b);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_vllm_list),
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_odd_entries_are_left_out),
                cmocka_unit_test(test_union),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
