/* SPDX-License-Identifier: Apache-2.0 */
#include "top.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define SUMS(requests, prompt, won, placement, staleness, workload, predicted, observed, untold, ns)       \
        "{\"covered_s\":100,\"requests\":" #requests ",\"prompt_tokens\":" #prompt ",\"won_tokens\":" #won \
        ",\"placement_tokens\":" #placement ",\"staleness_tokens\":" #staleness                            \
        ",\"workload_tokens\":" #workload ",\"predicted_tokens\":" #predicted                              \
        ",\"observed_tokens\":" #observed ",\"unobserved_prompt_tokens\":" #untold                         \
        ",\"won_unobserved_tokens\":0,\"avoided_ns\":" #ns "}"
#define EMPTY SUMS(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
#define ACCOUNT(name, ten)                                                                                  \
        "{\"name\":\"" name "\",\"windows\":{\"10m\":" ten ",\"1m\":" EMPTY ",\"1h\":" ten ",\"life\":" ten \
        "}}"

static const char replicas[] =
        "[{\"name\":\"gpu-a\",\"state\":\"ready\",\"in_flight\":3,\"running\":2,\"waiting\":0,\"kv_usage\":0."
        "25,"
        "\"load_known\":true,\"capacity_tokens\":32000,\"trust\":0.98,\"alarms\":[]},"
        "{\"name\":\"gpu-b\",\"state\":\"down\",\"in_flight\":0,\"running\":7,\"waiting\":9,\"kv_usage\":0.5,"
        "\"load_known\":true,\"capacity_tokens\":null,\"trust\":null,\"alarms\":[\"load_stale\",\"no_match\"]"
        "}]";
static const char alarms[] =
        "{\"alarms\":[{\"alarm\":\"load_stale\",\"replica\":\"gpu-b\",\"for_s\":90,\"text\":\"its page is "
        "old\"},"
        "{\"alarm\":\"no_match\",\"replica\":null,\"for_s\":5,\"text\":\"look-ups find nothing\"}]}";
static const char all[] = "{\"reasons\":[],\"balance\":{},\"accounts\":{\"all\":[" ACCOUNT(
        "all", SUMS(50, 2000000, 1000000, 100000, 40000, 860000, 1040000, 1000000, 0, 7800000000)) "]}}";
static const char workload[] = "{\"accounts\":{\"workload\":[" ACCOUNT(
        "small", SUMS(10, 1000, 0, 0, 0, 1000, 0, 0, 0,
                      0)) "," ACCOUNT("idle", EMPTY) "," ACCOUNT("evil\\u001b[2J\\u202e\\u00fc",
                                                                 SUMS(40, 1999000, 999500, 0, 0, 999500, 0, 0,
                                                                      0, 7800000000)) "]}}";
static const char rules[] =
        "{\"balance\":{\"real\":{\"computed_tokens\":{\"max_mean\":1.1}},\"round_robin\":{\"computed_"
        "tokens\":{\"max_mean\":null}}},"
        "\"accounts\":{\"virtual\":[" ACCOUNT("round_robin",
                                              SUMS(50, 2000000, 500000, 0, 0, 0, 0, 0, 0, 3900000000)) "]}}";

static int set_up(void **state)
{
        static const char *const texts[] = {replicas, alarms, all, workload, rules};
        struct sim_top *top = calloc(1, sizeof *top);

        assert_non_null(top);
        for (size_t i = 0; i < SIM_TOP_PAGES; i++) {
                top->pages[i] = yyjson_read(texts[i], strlen(texts[i]), 0);
                assert_non_null(top->pages[i]);
        }
        *state = top;
        return 0;
}

static int tear_down(void **state)
{
        sim_top_fini(*state);
        free(*state);
        return 0;
}

static char *screen_of(const struct sim_top *top, const struct sim_top_look *look)
{
        struct sim_buf buf = {0};

        sim_top_text(top, look, &buf);
        sim_buf_add(&buf, "", 1);
        assert_false(buf.failed);
        return buf.data;
}

static void test_the_whole_screen(void **state)
{
        const struct sim_top_look look = {.url = "http://a:1", .window = "10m"};
        char *text = screen_of(*state, &look);

        assert_string_equal(
                text,
                "kvroute http://a:1  1 of 2 replicas ready, figures of the last 10m\n"
                "! load_stale gpu-b for 90.0s: its page is old\n"
                "! no_match (fleet) for 5.0s: look-ups find nothing\n"
                "\n"
                "reused 50.0% of 2.00M prompt tokens, 7.8s of replica time avoided (as 0.08 more replicas)\n"
                "held elsewhere 5.0%, expected but gone 2.0%, new 43.0%; predicted 52.0%, observed 50.0%\n"
                "\n"
                "RULE          REUSED   AVOIDED  BUSIEST/MEAN \n"
                "this router    50.0%      7.8s         1.10x \n"
                "round_robin    25.0%      3.9s             ? \n"
                "\n"
                "WORKLOAD       REQUESTS   PROMPT   REUSED  ELSEWHERE     GONE      NEW   AVOIDED \n"
                "evil?[2J?\xc3\xbc           40    2.00M    50.0%       0.0%     0.0%    50.0%      7.8s \n"
                "small                10    1.00k     0.0%       0.0%     0.0%   100.0%       0ms \n"
                "\n"
                "REPLICA     STATE  IN FLIGHT  RUNNING  WAITING  KV USED  CAPACITY    TRUST \n"
                "gpu-a       ready          3        2        0    25.0%     32.0k    98.0% \n"
                "gpu-b        down          0        ?        ?        ?         ?        ?  ! "
                "load_stale,no_match\n");
        free(text);
}

#define SHADOWED(rate)                                                                                  \
        "{\"windows\":{\"10m\":{\"prompt_tokens\":2000000,\"kv_hit_rate\":" rate ",\"kv_avoided_s\":9," \
        "\"actual_hit_rate\":0.5,\"actual_avoided_s\":7.8},\"1m\":{\"prompt_tokens\":0,"                \
        "\"kv_hit_rate\":null,\"actual_hit_rate\":null}}}"
#define WITH_SHADOW(mode)                                                                                    \
        "{\"shadow\":{\"mode\":\"" mode "\",\"kv\":{\"hit_rate\":0.9,\"balance\":{\"computed_tokens\":"      \
        "{\"max_mean\":1.25}}},\"actual\":{\"policy\":\"least_requests\"},\"accounts\":{\"all\":[" SHADOWED( \
                "0.625") "]}},\"accounts\":{\"all\":[" ACCOUNT("all", SUMS(50, 2000000, 1000000, 100000,     \
                                                                           40000, 860000, 1040000, 0,        \
                                                                           2000000, 7800000000)) "]}}"

static void shadow_is(struct sim_top *top, const char *text)
{
        yyjson_doc_free(top->pages[SIM_TOP_ALL]);
        top->pages[SIM_TOP_ALL] = yyjson_read(text, strlen(text), 0);
        assert_non_null(top->pages[SIM_TOP_ALL]);
}

/* What was reused has no price yet: not the same as none. */
static void test_unknown_speeds_are_not_zero(void **state)
{
        const struct sim_top_look look = {.url = "http://a:1", .window = "10m"};
        struct sim_top *top = *state;

        shadow_is(top, "{\"accounts\":{\"all\":[" ACCOUNT(
                               "all", SUMS(50, 2000000, 1000000, 0, 0, 1000000, 0, 1000000, 0, 0)) "]}}");
        char *text = screen_of(top, &look);

        assert_non_null(strstr(text, "reused 50.0% of 2.00M prompt tokens, ? of replica time avoided\n"));
        assert_non_null(strstr(text, "this router    50.0%         ?"));
        free(text);
}

static void test_a_shadow(void **state)
{
        struct sim_top_look look = {.url = "http://a:1", .window = "10m"};
        struct sim_top *top = *state;
        struct sim_buf json = {0};
        char *text;

        assert_int_equal(sim_top_shadow_lines(top), 0);
        shadow_is(top, WITH_SHADOW("on"));
        text = screen_of(top, &look);
        assert_non_null(strstr(text, "\nshadow: kv would have reused 62.5%, least_requests did 50.0%; "
                                     "1.2s of replica time less\n"));
        assert_non_null(strstr(text, "\nkv (shadow)    62.5%      9.0s         1.25x \n"));
        assert_non_null(strstr(text, "\nreused 50.0% of"));
        free(text);
        assert_int_equal(sim_top_shadow_lines(top), 2);
        look.window = "1m";
        text = screen_of(top, &look);
        assert_non_null(strstr(text, "\nshadow: nothing to compare yet\n"));
        free(text);
        assert_true(sim_top_json(top, "10m", &json));
        sim_buf_add(&json, "", 1);
        assert_non_null(strstr(json.data, "\"shadow\":{\"mode\":\"on\""));
        sim_buf_fini(&json);
}

/* What only saw copies tells no facts. */
static void test_a_mirror(void **state)
{
        const struct sim_top_look look = {.url = "http://a:1", .window = "10m"};
        char *text;

        shadow_is(*state, WITH_SHADOW("mirror"));
        text = screen_of(*state, &look);
        assert_non_null(strstr(text, "\nwould have been reused 50.0% of 2.00M prompt tokens"));
        assert_non_null(strstr(text, "\nmirror: kv would have reused 62.5%, least_requests would have 50.0%; "
                                     "1.2s of replica time less, all of it predicted\n"));
        assert_non_null(strstr(text, "\nleast_requests    50.0%"));
        assert_null(strstr(text, "this router"));
        free(text);
}

static void test_a_small_terminal(void **state)
{
        const struct sim_top_look look = {.url = "http://a:1", .window = "10m", .width = 40, .workloads = 1};
        char *text = screen_of(*state, &look);

        assert_null(strstr(text, "\nsmall"));
        for (const char *line = text; *line;) {
                size_t len = strcspn(line, "\n");

                assert_true(len <= 41); /* one character has two bytes */
                line += len + 1;
        }
        free(text);
}

static void test_colour_and_no_traffic(void **state)
{
        const struct sim_top_look look = {.url = "http://a:1", .window = "1m", .colour = true};
        char *text = screen_of(*state, &look);

        assert_non_null(strstr(text, "no prompt was computed in this time\n"));
        assert_non_null(strstr(text, "\033[31m     down \033[0m"));
        assert_null(strstr(text, "\033[2J"));
        assert_null(strstr(text, "WORKLOAD"));
        free(text);
}

static void test_without_a_ledger(void **state)
{
        struct sim_top *top = *state;
        const struct sim_top_look look = {.url = "http://a:1", .window = "life"};
        char *text;

        for (int i = SIM_TOP_ALL; i <= SIM_TOP_VIRTUAL; i++) {
                yyjson_doc_free(top->pages[i]);
                top->pages[i] = yyjson_read("{\"ledger\":null}", 15, 0);
        }
        text = screen_of(top, &look);
        assert_non_null(strstr(text, "all time since start\n"));
        assert_non_null(strstr(text, "the ledger is switched off\n"));
        assert_null(strstr(text, "RULE"));
        free(text);
}

static void test_json(void **state)
{
        struct sim_buf buf = {0};
        yyjson_doc *doc;
        yyjson_val *root, *one;

        assert_true(sim_top_json(*state, "10m", &buf));
        assert_int_equal(buf.data[buf.len - 1], '\n');
        assert_null(memchr(buf.data, '\n', buf.len - 1));
        doc = yyjson_read(buf.data, buf.len, 0);
        root = yyjson_doc_get_root(doc);
        assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "window")), "10m");
        assert_int_equal(yyjson_arr_size(yyjson_obj_get(root, "replicas")), 2);
        assert_int_equal(yyjson_arr_size(yyjson_obj_get(root, "alarms")), 2);
        one = yyjson_arr_get_first(yyjson_obj_get(yyjson_obj_get(root, "accounts"), "virtual"));
        one = yyjson_obj_get(yyjson_obj_get(yyjson_obj_get(one, "windows"), "10m"), "won_tokens");
        assert_int_equal(yyjson_get_uint(one), 500000);
        yyjson_doc_free(doc);
        sim_buf_fini(&buf);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_the_whole_screen, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_unknown_speeds_are_not_zero, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_a_shadow, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_a_mirror, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_a_small_terminal, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_colour_and_no_traffic, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_without_a_ledger, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_json, set_up, tear_down),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests_name("top", tests, NULL, NULL);
}
