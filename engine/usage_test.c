/* SPDX-License-Identifier: Apache-2.0 */
#include "usage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "test_data.h"

/* Feeds text in pieces of `step` bytes, each in its own exactly sized allocation. */
static void feed(struct usage_tap *tap, struct kvr_slice text, size_t step)
{
        for (size_t at = 0; at < text.len; at += step) {
                size_t piece = text.len - at < step ? text.len - at : step;
                char *copy = malloc(piece);

                assert_non_null(copy);
                memcpy(copy, text.data + at, piece);
                usage_tap_feed(tap, copy, piece);
                free(copy);
        }
}

struct want {
        int64_t prompt, cached, completion;
        enum usage_finish finish;
        const char *id;
        bool proved;
};

static void check(enum engine_kind kind, enum kvr_api api, bool several, bool known, struct kvr_slice text,
                  const struct want *want)
{
        static const size_t steps[] = {1, 2, 3, 7, 16, 61, 250, 1000, 4096, 1 << 20};

        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
                struct usage_tap tap;
                struct usage usage;

                usage_tap_init(&tap, kind, api, several);
                feed(&tap, text, steps[i]);
                usage_tap_result(&tap, known, &usage);
                usage_tap_fini(&tap);
                assert_int_equal(usage.prompt_tokens, want->prompt);
                assert_int_equal(usage.cached_tokens, want->cached);
                assert_int_equal(usage.completion_tokens, want->completion);
                assert_int_equal(usage.finish, want->finish);
                assert_int_equal(usage.report_proved, want->proved);
                if (want->id)
                        assert_string_equal(usage.id, want->id);
        }
}

static void check_file(enum engine_kind kind, enum kvr_api api, const char *name, struct want want)
{
        struct kvr_slice text = test_data_read(name);

        check(kind, api, false, false, text, &want);
        test_data_free(text);
}

static void check_text(enum engine_kind kind, enum kvr_api api, bool known, const char *text,
                       struct want want)
{
        check(kind, api, false, known, (struct kvr_slice){text, strlen(text)}, &want);
}

#define STOP   USAGE_FINISH_STOP
#define LENGTH USAGE_FINISH_LENGTH

static void test_vllm_recordings(void **state)
{
        (void)state;
        check_file(ENGINE_VLLM, KVR_API_CHAT, "vllm/chat-1.json",
                   (struct want){1281, 0, 8, LENGTH, "chatcmpl-99a1266e2f0536be", true});
        check_file(ENGINE_VLLM, KVR_API_CHAT, "vllm/chat-2.json",
                   (struct want){1281, 1280, 8, LENGTH, NULL, true});
        check_file(ENGINE_VLLM, KVR_API_COMPLETIONS, "vllm/completion-2.json",
                   (struct want){1233, 1216, 8, LENGTH, NULL, true});
        check_file(ENGINE_VLLM, KVR_API_RESPONSES, "vllm/responses-1.json",
                   (struct want){1268, 1216, 8, LENGTH, "resp_9d1684b791cac446", true});
        check_file(ENGINE_VLLM, KVR_API_MESSAGES, "vllm/messages-1.json",
                   (struct want){1268, 1216, 8, LENGTH, "chatcmpl-b63e2bd21982ed16", true});
        check_file(ENGINE_VLLM, KVR_API_CHAT, "vllm/chat-stream-usage-2.sse",
                   (struct want){1272, 1248, 8, LENGTH, "chatcmpl-98f8caacf2a30063", true});
        check_file(ENGINE_VLLM, KVR_API_COMPLETIONS, "vllm/completion-stream-usage-2.sse",
                   (struct want){1232, 1216, 8, LENGTH, "cmpl-a1c1374ecc36c006", true});
        check_file(ENGINE_VLLM, KVR_API_CHAT, "vllm/chat-stream-continuous.sse",
                   (struct want){1272, 1248, 3, LENGTH, NULL, true});
        check_file(ENGINE_VLLM, KVR_API_RESPONSES, "vllm/responses-stream.sse",
                   (struct want){1268, 1248, 8, LENGTH, "resp_8080e37419d9f297", true});
        check_file(ENGINE_VLLM, KVR_API_MESSAGES, "vllm/messages-stream.sse",
                   (struct want){1268, 1248, 8, LENGTH, "chatcmpl-a4f50f526f365be2", true});
        check_file(ENGINE_VLLM, KVR_API_MESSAGES, "vllm/messages-stream-cold.sse",
                   (struct want){741, 0, 4, LENGTH, NULL, true});
        check_file(ENGINE_VLLM, KVR_API_CHAT, "vllm/chat-stream-engine-died.sse",
                   (struct want){-1, -1, -1, USAGE_FINISH_UNKNOWN, NULL, false});
        check_file(ENGINE_VLLM, KVR_API_CHAT, "vllm/error-malformed.json",
                   (struct want){-1, -1, -1, USAGE_FINISH_UNKNOWN, "", false});
}

static void test_sglang_recordings(void **state)
{
        (void)state;
        check_file(ENGINE_SGLANG, KVR_API_CHAT, "sglang/chat-1.json",
                   (struct want){89, 0, 4, LENGTH, NULL, true});
        check_file(ENGINE_SGLANG, KVR_API_CHAT, "sglang/chat-2.json",
                   (struct want){89, 80, 4, LENGTH, NULL, true});
        check_file(ENGINE_SGLANG, KVR_API_CHAT, "sglang/chat-stream-usage-2.sse",
                   (struct want){89, 80, 4, LENGTH, "dd7602542b8245f4b64f4d73f4fe93b2", true});
        check_file(ENGINE_SGLANG, KVR_API_CHAT, "sglang/chat-stream-continuous.sse",
                   (struct want){89, 80, 4, LENGTH, NULL, true});
        check_file(ENGINE_SGLANG, KVR_API_CHAT, "sglang/chat-stream.sse",
                   (struct want){-1, -1, -1, LENGTH, NULL, false});
        check_file(ENGINE_SGLANG, KVR_API_COMPLETIONS, "sglang/completion-stream.sse",
                   (struct want){-1, -1, -1, LENGTH, NULL, false});
        check_file(ENGINE_SGLANG, KVR_API_COMPLETIONS, "sglang/completion-stream-usage-2.sse",
                   (struct want){70, 64, 4, LENGTH, NULL, true});
        check_file(ENGINE_SGLANG, KVR_API_RESPONSES, "sglang/responses-1.json",
                   (struct want){79, 0, 2, LENGTH, "resp_4aac77fab52d47e49962d9eefb0e8a37", false});
        check_file(ENGINE_SGLANG, KVR_API_RESPONSES, "sglang/responses-stream.sse",
                   (struct want){79, 64, 2, LENGTH, "resp_296890be8e7b47ce9c2e2e4130cc4434", false});
        check_file(ENGINE_SGLANG, KVR_API_MESSAGES, "sglang/messages-stream.sse",
                   (struct want){79, 64, 4, LENGTH, "msg_5a118cd65b344b649c357413fec193ac", true});
        check_file(ENGINE_SGLANG, KVR_API_MESSAGES, "sglang/messages-1.json",
                   (struct want){79, 64, 4, LENGTH, NULL, true});
        check_file(ENGINE_SGLANG, KVR_API_SGLANG, "sglang/generate-1.json",
                   (struct want){60, 0, 4, LENGTH, "fd61d00808714040868f229f1fd48779", false});
        check_file(ENGINE_SGLANG, KVR_API_SGLANG, "sglang/generate-stream.sse",
                   (struct want){60, 48, 3, LENGTH, "a9d050b131b543a5b23643606958865c", false});
}

/* A miss on /v1/messages of SGLang leaves the field out: 0 only where the flag is known to be on. */
static void test_absent_is_zero_only_when_known(void **state)
{
        (void)state;
        struct kvr_slice text = test_data_read("sglang/messages-stream-cold.sse");
        struct want want = {79, -1, 4, LENGTH, NULL, false};

        check(ENGINE_SGLANG, KVR_API_MESSAGES, false, false, text, &want);
        want.cached = 0;
        check(ENGINE_SGLANG, KVR_API_MESSAGES, false, true, text, &want);
        test_data_free(text);

        check_text(ENGINE_VLLM, KVR_API_CHAT, false,
                   "{\"choices\":[{\"finish_reason\":\"stop\"}],\"usage\" \n: {\"prompt_tokens\" : 9, "
                   "\"completion_tokens\":1,"
                   "\"prompt_tokens_details\" : {\"cached_tokens\":8}}}",
                   (struct want){9, 8, 1, STOP, NULL, true});

        const char *null_details =
                "{\"choices\":[{\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9,"
                "\"completion_tokens\":1,\"prompt_tokens_details\":null}}";
        check_text(ENGINE_VLLM, KVR_API_CHAT, false, null_details,
                   (struct want){9, -1, 1, STOP, NULL, false});
        check_text(ENGINE_VLLM, KVR_API_CHAT, true, null_details, (struct want){9, 0, 1, STOP, NULL, false});
        check_text(ENGINE_OPENAI, KVR_API_CHAT, true, null_details,
                   (struct want){9, -1, 1, STOP, NULL, false});
        /* a stream with continuous usage that was cut has not come to its count */
        check_text(ENGINE_VLLM, KVR_API_CHAT, true,
                   "data: "
                   "{\"choices\":[{\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":9,\"completion_"
                   "tokens\":1}}\n\n",
                   (struct want){9, -1, 1, USAGE_FINISH_UNKNOWN, NULL, false});
}

/* vLLM's Responses says 0 when its flag is off. */
static void test_vllm_responses_zero(void **state)
{
        (void)state;
        const char *zero = "{\"id\":\"resp_1\",\"status\":\"completed\",\"usage\":{\"input_tokens\":100,"
                           "\"input_tokens_details\":{\"cached_tokens\":0},\"output_tokens\":2}}";
        check_text(ENGINE_VLLM, KVR_API_RESPONSES, false, zero,
                   (struct want){100, -1, 2, STOP, "resp_1", false});
        check_text(ENGINE_VLLM, KVR_API_RESPONSES, true, zero,
                   (struct want){100, 0, 2, STOP, "resp_1", false});
        check_text(ENGINE_SGLANG, KVR_API_RESPONSES, false, zero,
                   (struct want){100, 0, 2, STOP, NULL, false});
        check_text(ENGINE_LMDEPLOY, KVR_API_RESPONSES, true, zero,
                   (struct want){100, -1, 2, STOP, NULL, false});
}

static void test_llamacpp(void **state)
{
        (void)state;
        /* timings in the last choice chunk, no usage */
        check_text(
                ENGINE_LLAMACPP, KVR_API_CHAT, false,
                "data: "
                "{\"choices\":[{\"finish_reason\":null,\"delta\":{\"content\":\"a\"}}],\"id\":\"chatcmpl-q\"}"
                "\n\n"
                "data: "
                "{\"choices\":[{\"finish_reason\":\"stop\",\"delta\":{}}],\"id\":\"chatcmpl-q\",\"timings\":"
                "{\"cache_n\":236,\"prompt_n\":1,\"prompt_ms\":30.9,\"predicted_n\":35}}\n\ndata: [DONE]\n\n",
                (struct want){237, 236, 35, STOP, "chatcmpl-q", false});
        /* both, in the usage chunk */
        check_text(ENGINE_LLAMACPP, KVR_API_CHAT, false,
                   "data: {\"choices\":[],\"usage\":{\"completion_tokens\":3,\"prompt_tokens\":10,"
                   "\"prompt_tokens_details\":{\"cached_tokens\":9}},\"timings\":{\"cache_n\":9,\"prompt_n\":"
                   "1}}\n\n",
                   (struct want){10, 9, 3, USAGE_FINISH_UNKNOWN, NULL, false});
        /* before cache_n existed: what was not evaluated had been there */
        check_text(ENGINE_LLAMACPP, KVR_API_CHAT, false,
                   "{\"choices\":[{\"finish_reason\":\"length\"}],\"usage\":{\"completion_tokens\":3,"
                   "\"prompt_tokens\":10},"
                   "\"timings\":{\"prompt_n\":4,\"predicted_n\":3}}",
                   (struct want){10, 6, 3, LENGTH, NULL, false});
        /* neither: unknown, not 0 */
        check_text(ENGINE_LLAMACPP, KVR_API_CHAT, true,
                   "{\"usage\":{\"completion_tokens\":3,\"prompt_tokens\":10}}",
                   (struct want){10, -1, 3, USAGE_FINISH_UNKNOWN, NULL, false});
        /* Anthropic form */
        check_text(
                ENGINE_LLAMACPP, KVR_API_MESSAGES, false,
                "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":"
                "{\"cache_read_input_tokens\":30,\"input_tokens\":12,\"output_tokens\":0}}}\n\n"
                "event: message_delta\ndata: "
                "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},"
                "\"usage\":{\"output_tokens\":7}}\n\n",
                (struct want){42, 30, 7, STOP, "m", false});
}

static void test_engines_that_do_not_tell(void **state)
{
        (void)state;
        const char *zero =
                "{\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1,\"prompt_tokens_details\":"
                "{\"cached_tokens\":0}}}";
        check_text(ENGINE_OLLAMA, KVR_API_CHAT, true, zero, (struct want){5, -1, 1, 0, NULL, false});
        check_text(ENGINE_TGI, KVR_API_CHAT, true, zero, (struct want){5, -1, 1, 0, NULL, false});
        check_text(ENGINE_OPENAI, KVR_API_CHAT, false, zero, (struct want){5, 0, 1, 0, NULL, false});
        check_text(ENGINE_TRTLLM, KVR_API_CHAT, false, zero, (struct want){5, 0, 1, 0, NULL, false});
}

/* Several prompts or choices: one cached count for many, or a hit on a cold prompt. */
static void test_several(void **state)
{
        (void)state;
        struct kvr_slice text = test_data_read("sglang/completion-n2.json");
        struct want want = {50, -1, 4, LENGTH, NULL, false};

        check(ENGINE_SGLANG, KVR_API_COMPLETIONS, true, true, text, &want);
        test_data_free(text);
}

static void test_text_is_not_a_key(void **state)
{
        (void)state;
        /* quoted by the model in its text, real in a tool's arguments, and behind the real one in an echoed
         * schema */
        check_text(ENGINE_VLLM, KVR_API_CHAT, false,
                   "{\"choices\":[{\"message\":{\"content\":\"\\\"usage\\\":{\\\"prompt_tokens\\\":1}\"}}],"
                   "\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":8}}}",
                   (struct want){9, 8, -1, 0, NULL, true});
        check_text(ENGINE_VLLM, KVR_API_MESSAGES, false,
                   "{\"content\":[{\"type\":\"tool_use\",\"input\":{\"usage\":{\"input_tokens\":1,"
                   "\"cache_read_input_tokens\":1}}}],\"stop_reason\":\"tool_use\","
                   "\"usage\":{\"input_tokens\":9,\"output_tokens\":3,\"cache_read_input_tokens\":2}}",
                   (struct want){11, 2, 3, USAGE_FINISH_TOOL, NULL, true});
        check_text(ENGINE_SGLANG, KVR_API_RESPONSES, false,
                   "{\"status\":\"completed\",\"usage\":{\"input_tokens\":9,\"input_tokens_details\":{"
                   "\"cached_tokens\":4},"
                   "\"output_tokens\":3},\"tools\":[{\"parameters\":{\"properties\":{\"usage\":{\"type\":"
                   "\"string\"}}}}]}",
                   (struct want){9, 4, 3, STOP, NULL, false});
}

static void test_hostile_values(void **state)
{
        (void)state;
        static const char *const texts[] = {
                "{\"usage\":{\"prompt_tokens\":-5,\"completion_tokens\":1e300}}",
                "{\"usage\":{\"prompt_tokens\":18446744073709551615}}",
                "{\"usage\":{\"prompt_tokens\":\"9\"}}",
                "{\"usage\":{\"prompt_tokens\":9.5}}",
                "{\"usage\":[{\"prompt_tokens\":9}]}",
                "{\"usage\":{\"prompt_tokens\":9,}}",
                "{\"usage\":{\"prompt_tokens\":9",
                "{\"usage\":null,\"usage\":3,\"usage\":\"{\"}",
                "\"usage\":\"usage\":\"usage\":",
        };
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
                check_text(ENGINE_VLLM, KVR_API_CHAT, false, texts[i],
                           (struct want){-1, -1, -1, 0, NULL, false});
        /* more cached than there is */
        check_text(ENGINE_VLLM, KVR_API_CHAT, false,
                   "{\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":10}}}",
                   (struct want){9, -1, -1, 0, NULL, true});
        /* spaces as json.dumps writes them, and 12.0 */
        check_text(ENGINE_VLLM, KVR_API_CHAT, false,
                   "{\"usage\": \n {\"prompt_tokens\": 12.0, \"prompt_tokens_details\": {\"cached_tokens\": "
                   "1}}}",
                   (struct want){12, 1, -1, 0, NULL, true});
}

/* The object may stand anywhere in a long answer, also far from its end. */
static void test_long_answers(void **state)
{
        (void)state;
        const char *usage = "\"usage\":{\"prompt_tokens\":77,\"completion_tokens\":5,"
                            "\"prompt_tokens_details\":{\"cached_tokens\":66}}";
        size_t len = 200 * 1024, n = strlen(usage);
        char *text = malloc(len);

        assert_non_null(text);
        for (size_t at = 0; at + n < len; at += 12289) {
                static const size_t steps[] = {13, 1000, 16384, 1 << 20};

                memset(text, 'x', len);
                memcpy(text + at, usage, n);
                for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
                        struct usage_tap tap;
                        struct usage result;

                        usage_tap_init(&tap, ENGINE_VLLM, KVR_API_CHAT, false);
                        feed(&tap, (struct kvr_slice){text, len}, steps[i]);
                        usage_tap_result(&tap, false, &result);
                        assert_true(tap.cap <= USAGE_WINDOW_BYTES);
                        usage_tap_fini(&tap);
                        assert_int_equal(result.prompt_tokens, 77);
                        assert_int_equal(result.cached_tokens, 66);
                }
        }
        free(text);
}

/* An object that never ends, or is too large, must not hide the one behind it for ever. */
static void test_too_large_object(void **state)
{
        (void)state;
        size_t len = 100 * 1024;
        char *text = malloc(len);
        const char *head = "{\"usage\":{\"prompt_tokens\":1,\"x\":\"",
                   *tail = "\"usage\":{\"prompt_tokens\":7}";

        assert_non_null(text);
        memset(text, 'y', len);
        memcpy(text, head, strlen(head));
        memcpy(text + len - strlen(tail), tail, strlen(tail));
        for (size_t step = 1; step <= len; step *= 10) {
                struct usage_tap tap;
                struct usage result;

                usage_tap_init(&tap, ENGINE_VLLM, KVR_API_CHAT, false);
                feed(&tap, (struct kvr_slice){text, len}, step);
                usage_tap_result(&tap, false, &result);
                usage_tap_fini(&tap);
                assert_int_equal(result.prompt_tokens, 7);
        }
        free(text);
}

/* One tap for one answer after the other: nothing of the one before is left. */
static void test_used_again(void **state)
{
        static const char with[] = "{\"id\":\"a\",\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":3}}";
        static const char without[] = "{\"x\":1}";
        struct usage_tap tap = {0};
        struct usage usage;

        (void)state;
        for (int i = 0; i < 3; i++) {
                usage_tap_again(&tap, ENGINE_VLLM, KVR_API_CHAT, false);
                usage_tap_feed(&tap, with, sizeof with - 1);
                usage_tap_result(&tap, false, &usage);
                assert_int_equal(usage.prompt_tokens, 10);
                assert_string_equal(usage.id, "a");
                usage_tap_rest(&tap);
                usage_tap_again(&tap, ENGINE_VLLM, KVR_API_CHAT, false);
                usage_tap_feed(&tap, without, sizeof without - 1);
                for (int more = 0; more < (i == 1 ? 5000 : 0); more++)
                        usage_tap_feed(&tap, without, sizeof without - 1);
                usage_tap_result(&tap, false, &usage);
                assert_int_equal(usage.prompt_tokens, -1);
                assert_string_equal(usage.id, "");
                usage_tap_rest(&tap);
        }
        usage_tap_fini(&tap);
}

/* What is read without yyjson and what is read with it: a member that only yyjson takes must change nothing. */
static void test_plain_objects_are_read_alike(void **state)
{
        /* Without the closing brace. */
        static const char *const objects[] = {
                "{\"prompt_tokens\":10,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":"
                "7}",
                "{ \"prompt_tokens\" : 10 ,\n\"completion_tokens\":3,\"prompt_tokens_details\": { } ",
                "{\"prompt_tokens\":10,\"prompt_tokens_details\":null,\"completion_tokens\":null",
                "{\"a\":{\"prompt_tokens\":99,\"cached_tokens\":98},\"prompt_tokens\":10",
                "{\"prompt_tokens\":10,\"prompt_tokens\":11,\"prompt_tokens_details\":{\"x\":1,\"cached_"
                "tokens\":0}",
                "{\"input_tokens\":5,\"cache_read_input_tokens\":20,\"cache_creation_input_tokens\":0,"
                "\"output_tokens\":2",
                "{\"prompt_tokens\":999999999999999,\"completion_tokens\":0",
                "{\"prompt_tokens\":0123",
                "{\"prompt_tokens\":12 3",
                "{\"prompt_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":{\"cached_tokens\":4}}",
                "{\"prompt_tokens\":10,",
                "{",
        };

        (void)state;
        for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
                struct usage usage[2];

                for (int with = 0; with < 2; with++) {
                        struct usage_tap tap;
                        const char *more = with ? ",\"z\":[1.5,\"\\u0041\"]" : "";
                        char text[500];
                        int len = snprintf(text, sizeof text, "{\"id\":\"a\",\"usage\":%s%s}}", objects[i],
                                           more);

                        usage_tap_init(&tap, ENGINE_VLLM, KVR_API_CHAT, false);
                        usage_tap_feed(&tap, text, (size_t)len);
                        usage_tap_result(&tap, true, &usage[with]);
                        usage_tap_fini(&tap);
                }
                if (usage[0].prompt_tokens != usage[1].prompt_tokens ||
                    usage[0].cached_tokens != usage[1].cached_tokens ||
                    usage[0].completion_tokens != usage[1].completion_tokens)
                        fail_msg("read differently: %s", objects[i]);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_vllm_recordings),
                cmocka_unit_test(test_sglang_recordings),
                cmocka_unit_test(test_absent_is_zero_only_when_known),
                cmocka_unit_test(test_vllm_responses_zero),
                cmocka_unit_test(test_llamacpp),
                cmocka_unit_test(test_engines_that_do_not_tell),
                cmocka_unit_test(test_several),
                cmocka_unit_test(test_plain_objects_are_read_alike),
                cmocka_unit_test(test_used_again),
                cmocka_unit_test(test_text_is_not_a_key),
                cmocka_unit_test(test_hostile_values),
                cmocka_unit_test(test_long_answers),
                cmocka_unit_test(test_too_large_object),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
