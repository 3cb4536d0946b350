/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct sim_fault parse(const char *json)
{
        struct sim_fault fault;
        char message[200] = "";

        if (!sim_fault_parse(&fault, sim_slice(json), message, sizeof(message)))
                fail_msg("%s", message);
        return fault;
}

static void expect_text(const struct sim_fault *fault, const char *json)
{
        struct sim_buf buf = {0};

        sim_fault_write(fault, &buf);
        sim_buf_add(&buf, "", 1);
        assert_string_equal(buf.data, json);
        sim_buf_fini(&buf);
}

static void what_is_not_named_is_well(void **state)
{
        struct sim_fault fault = parse("{}"), fresh;

        (void)state;
        sim_fault_init(&fresh);
        assert_false(sim_fault_active(&fault));
        assert_int_equal(fault.count, SIM_FAULT_NEVER);
        assert_int_equal(fault.stall_after_tokens, SIM_FAULT_NEVER);
        expect_text(&fault, "{}");
        expect_text(&fresh, "{}");
}

static void everything_comes_back_as_it_went_in(void **state)
{
        static const char all[] = "{\"skip\":1,\"count\":2,\"delay_head_ms\":3,\"chunk_delay_ms\":4,\"stall_"
                                  "after_tokens\":0,\"stall_ms\":6,"
                                  "\"error_after_tokens\":0,\"status\":503,\"retry_after\":0,\"cut\":\"mid_"
                                  "chunk\",\"cut_at\":\"tokens\","
                                  "\"cut_after_tokens\":9,\"hang\":true,\"health\":\"hang\",\"metrics\":"
                                  "\"frozen\",\"models\":\"error\","
                                  "\"refuse_ms\":10,\"body\":\"a \\\"b\\\"\"}";
        struct sim_fault fault = parse(all);

        (void)state;
        assert_int_equal(fault.cut, SIM_CUT_MID_CHUNK);
        assert_int_equal(fault.cut_at, SIM_CUT_AT_TOKENS);
        assert_int_equal(fault.metrics, SIM_PROBE_FROZEN);
        assert_int_equal(fault.health, SIM_PROBE_HANG);
        assert_int_equal(fault.models, SIM_PROBE_ERROR);
        assert_string_equal(fault.body, "a \"b\"");
        expect_text(&fault, all);
}

static void each_of_them_makes_requests_suffer(void **state)
{
        static const char *const active[] = {"{\"delay_head_ms\":1}",
                                             "{\"chunk_delay_ms\":1}",
                                             "{\"stall_after_tokens\":0}",
                                             "{\"error_after_tokens\":0}",
                                             "{\"status\":500}",
                                             "{\"cut\":\"close\"}",
                                             "{\"hang\":true}"};
        static const char *const idle[] = {"{\"health\":\"error\"}", "{\"metrics\":\"frozen\"}",
                                           "{\"refuse_ms\":5}", "{\"skip\":3}", "{\"hang\":false}"};

        (void)state;
        for (size_t i = 0; i < sizeof(active) / sizeof(active[0]); i++) {
                struct sim_fault fault = parse(active[i]);

                assert_true(sim_fault_active(&fault));
        }
        for (size_t i = 0; i < sizeof(idle) / sizeof(idle[0]); i++) {
                struct sim_fault fault = parse(idle[i]);

                assert_false(sim_fault_active(&fault));
        }
}

static void mistakes_are_named_and_change_nothing(void **state)
{
        static const struct {
                const char *json, *message;
        } cases[] = {
                {"", "a fault is a JSON object, for example {\"delay_head_ms\":500}"},
                {"[]", "a fault is a JSON object, for example {\"delay_head_ms\":500}"},
                {"{\"stauts\":500}", "there is no fault named 'stauts'"},
                {"{\"status\":600}", "status must be a whole number up to 599"},
                {"{\"status\":-1}", "status must be a whole number up to 599"},
                {"{\"hang\":1}", "hang must be true or false"},
                {"{\"health\":\"frozen\"}", "health must be one of ok|error|hang"},
                {"{\"body\":7}", "body must be a short string"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct sim_fault fault = parse("{\"status\":418}");
                char message[200] = "";

                assert_false(sim_fault_parse(&fault, sim_slice(cases[i].json), message, sizeof(message)));
                assert_string_equal(message, cases[i].message);
                assert_int_equal(fault.status, 418);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_is_not_named_is_well),
                cmocka_unit_test(everything_comes_back_as_it_went_in),
                cmocka_unit_test(each_of_them_makes_requests_suffer),
                cmocka_unit_test(mistakes_are_named_and_change_nothing),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
