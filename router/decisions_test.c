/* SPDX-License-Identifier: Apache-2.0 */
#include "decisions.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <yyjson.h>

static void add(struct decisions *decisions, uint64_t at_ns, const char *model, int64_t observed)
{
        const struct decision_note note = {.at_ns = at_ns,
                                           .model = model,
                                           .workload = "w\"1",
                                           .replica = "gpu-a",
                                           .reason = KVR_REASON_SPREAD,
                                           .prompt_tokens = 100,
                                           .predicted_tokens = 64,
                                           .best_tokens = 80,
                                           .due_tokens = 16,
                                           .wait_s = 0.25,
                                           .own_s = 0.5,
                                           .toll_s = (double)NAN,
                                           .observed_tokens = observed,
                                           .status = 200};

        decisions_add(decisions, &note);
}

static yyjson_doc *json_of(struct decisions *decisions, uint64_t now_ns)
{
        struct text text = {0};
        yyjson_doc *doc;

        decisions_json(decisions, now_ns, &text);
        assert_false(text.failed);
        doc = yyjson_read(text.data, text.len, 0);
        assert_non_null(doc);
        text_free(&text);
        return doc;
}

static yyjson_val *list_of(yyjson_doc *doc)
{
        return yyjson_obj_get(yyjson_doc_get_root(doc), "decisions");
}

static void test_one(void **state)
{
        struct decisions *decisions = decisions_new();
        struct text text = {0};

        (void)state;
        assert_non_null(decisions);
        decisions_json(decisions, 0, &text);
        assert_string_equal(text_string(&text), "{\"decisions\":[]}");
        text_clear(&text);
        add(decisions, 1000000000, "m", -1);
        decisions_json(decisions, 3500000000, &text);
        assert_string_equal(
                text_string(&text),
                "{\"decisions\":[{\"age_s\":2.500,\"model\":\"m\",\"workload\":\"w\\\"1\","
                "\"replica\":\"gpu-a\","
                "\"reason\":\"spread\",\"wait_s\":0.25,\"own_s\":0.5,\"toll_s\":null,\"due_tokens\":16,"
                "\"status\":200,\"prompt_tokens\":100,\"best_tokens\":80,"
                "\"predicted_tokens\":64,\"observed_tokens\":null}]}");
        text_free(&text);
        decisions_free(decisions);
}

static void test_the_last_ones_stay(void **state)
{
        struct decisions *decisions = decisions_new();
        char name[KVR_NAME_MAX + 40];
        yyjson_doc *doc;

        (void)state;
        for (unsigned i = 0; i < DECISIONS_KEPT + 10; i++) {
                snprintf(name, sizeof name, "m%u", i);
                add(decisions, i, name, i);
        }
        doc = json_of(decisions, 0);
        assert_int_equal(yyjson_arr_size(list_of(doc)), DECISIONS_KEPT);
        for (unsigned i = 0; i < DECISIONS_KEPT; i++) {
                yyjson_val *one = yyjson_arr_get(list_of(doc), i);

                snprintf(name, sizeof name, "m%u", DECISIONS_KEPT + 9 - i);
                assert_string_equal(yyjson_get_str(yyjson_obj_get(one, "model")), name);
                assert_int_equal(yyjson_get_sint(yyjson_obj_get(one, "observed_tokens")),
                                 DECISIONS_KEPT + 9 - i);
        }
        yyjson_doc_free(doc);
        memset(name, 'x', sizeof name - 1);
        name[sizeof name - 1] = 0;
        add(decisions, 0, name, 0);
        doc = json_of(decisions, 0);
        assert_int_equal(yyjson_get_len(yyjson_obj_get(yyjson_arr_get_first(list_of(doc)), "model")),
                         KVR_NAME_MAX - 1);
        yyjson_doc_free(doc);
        decisions_free(decisions);
}

static void *add_many(void *ctx)
{
        for (unsigned i = 0; i < 5000; i++)
                add(ctx, i, "a name that is written while others read and write", 7);
        return NULL;
}

static void test_many_threads(void **state)
{
        struct decisions *decisions = decisions_new();
        pthread_t threads[3];

        (void)state;
        for (size_t i = 0; i < 3; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, add_many, decisions), 0);
        for (size_t i = 0; i < 50; i++) {
                yyjson_doc *doc = json_of(decisions, 0);
                yyjson_val *first = yyjson_arr_get_first(list_of(doc));

                if (first)
                        assert_string_equal(yyjson_get_str(yyjson_obj_get(first, "model")),
                                            "a name that is written while others read and write");
                yyjson_doc_free(doc);
        }
        for (size_t i = 0; i < 3; i++)
                assert_int_equal(pthread_join(threads[i], NULL), 0);
        decisions_free(decisions);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_one),
                cmocka_unit_test(test_the_last_ones_stay),
                cmocka_unit_test(test_many_threads),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests_name("decisions", tests, NULL, NULL);
}
