/* SPDX-License-Identifier: Apache-2.0 */
/* Answers compared byte by byte with recordings of vLLM 0.32 (tests/data/vllm). */
#include "answer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static struct sim_buf recording(const char *name)
{
        struct sim_buf buf = {0};
        char path[512];
        char *room;
        FILE *file;

        snprintf(path, sizeof(path), "%s/vllm/%s", TEST_DATA, name);
        file = fopen(path, "rb");
        assert_non_null(file);
        room = sim_buf_room(&buf, 65536);
        assert_non_null(room);
        buf.len = fread(room, 1, 65535, file);
        fclose(file);
        room[buf.len] = 0;
        while (buf.len && room[buf.len - 1] == '\n' && !strstr(name, ".sse"))
                room[--buf.len] = 0;
        return buf;
}

static struct sim_answer answer(enum sim_api api, const char *id, int64_t created, uint32_t prompt,
                                uint32_t cached)
{
        return (struct sim_answer){
                .api = api,
                .id = id,
                .model_json = "\"tiny\"",
                .created = created,
                .details = true,
                .limited = true,
                .choices = 1,
                .prompt_tokens = prompt,
                .cached_tokens = cached,
                .block_tokens = 32,
                .max_output_tokens = 8,
                .top_p = 1,
        };
}

static void compare(struct sim_buf *got, const char *name)
{
        struct sim_buf want = recording(name);

        sim_buf_add(got, "", 1);
        assert_false(got->failed);
        assert_string_equal(got->data, want.data);
        sim_buf_fini(got);
        sim_buf_fini(&want);
}

static void whole(struct sim_answer a, const char *text, uint32_t tokens, const char *name)
{
        struct sim_buf got = {0};

        a.output_tokens = tokens;
        sim_buf_puts(&a.text, text);
        sim_answer_whole(&got, &a);
        sim_buf_fini(&a.text);
        compare(&got, name);
}

/* `pieces` are separated by '|'; the first may stand for more than one token. */
static void stream(struct sim_answer a, const char *pieces, uint32_t first_count, const char *name)
{
        struct sim_buf got = {0};
        bool first = true;

        sim_answer_begin(&got, &a);
        sim_answer_first(&got, &a);
        for (const char *at = pieces; *at;) {
                size_t len = strcspn(at, "|");
                struct kvr_slice piece = {.data = at, .len = len};
                uint32_t count = first ? first_count : 1;

                first = false;
                sim_buf_add(&a.text, at, len);
                a.output_tokens += count;
                at += len + (at[len] == '|');
                sim_answer_token(&got, &a, piece, count, !*at);
        }
        sim_answer_end(&got, &a);
        sim_buf_fini(&a.text);
        compare(&got, name);
}

static void whole_answers(void **state)
{
        struct sim_answer responses = answer(SIM_API_RESPONSES, "9d1684b791cac446", 1796068111, 1268, 1216);
        (void)state;

        whole(answer(SIM_API_CHAT, "99a1266e2f0536be", 1796068109, 1281, 0), "\xef\xbf\xbd- - - -", 8,
              "chat-1.json");
        whole(answer(SIM_API_CHAT, "85d55acabbaf1699", 1796068110, 1281, 1280), "\xef\xbf\xbd- - - -", 8,
              "chat-2.json");
        whole(answer(SIM_API_COMPLETIONS, "b9d7bcc4dcd6d9bc", 1796068111, 1233, 1216), "\xef\xbf\xbd- - - -",
              8, "completion-1.json");
        whole(answer(SIM_API_MESSAGES, "b63e2bd21982ed16", 0, 1268, 1216), "\xef\xbf\xbd- - - -", 8,
              "messages-1.json");
        /* The recorded message id differs from the response's; ours are equal, so the recording is adapted
         * here. */
        struct sim_buf want = recording("responses-1.json"), got = {0};
        char *at = strstr(want.data, "msg_9fca9bbe8df8a4dc");

        assert_non_null(at);
        memcpy(at, "msg_9d1684b791cac446", 20);
        responses.output_tokens = 8;
        sim_buf_puts(&responses.text, "\xef\xbf\xbd- - - -");
        sim_answer_whole(&got, &responses);
        sim_buf_add(&got, "", 1);
        assert_string_equal(got.data, want.data);
        sim_buf_fini(&responses.text);
        sim_buf_fini(&got);
        sim_buf_fini(&want);
}

static void token_ids_are_returned(void **state)
{
        struct sim_answer a = answer(SIM_API_CHAT, "94fa92897b2b2eb7", 1796068111, 283, 0);
        struct sim_buf want = recording("chat-return-token-ids.json");
        const char *at = strstr(want.data, "\"prompt_token_ids\":[");
        const uint32_t output[] = {12, 120};
        uint32_t ids[283];
        char *end;

        (void)state;
        assert_non_null(at);
        at += strlen("\"prompt_token_ids\":[");
        for (size_t i = 0; i < 283; i++, at = end + 1)
                ids[i] = (uint32_t)strtoul(at, &end, 10);
        a.token_ids = true;
        a.prompt_ids = ids;
        a.prompt_id_count = 283;
        a.output_ids = output;
        sim_buf_fini(&want);
        whole(a, "-", 2, "chat-return-token-ids.json");
}

static void streams(void **state)
{
        struct sim_answer a = answer(SIM_API_CHAT, "98f8caacf2a30063", 1796068110, 1272, 1248);

        (void)state;
        a.include_usage = true;
        stream(a, "-| |-| |-| |-| ", 1, "chat-stream-usage-2.sse");
        a = answer(SIM_API_CHAT, "ba9f474bce862d7a", 1796068110, 1272, 1248);
        a.include_usage = a.continuous = true;
        stream(a, "-| |-", 1, "chat-stream-continuous.sse");
        a = answer(SIM_API_COMPLETIONS, "a1c1374ecc36c006", 1796068110, 1232, 1216);
        a.include_usage = true;
        stream(a, "-| |-| |-| |-| ", 1, "completion-stream-usage-2.sse");
        a = answer(SIM_API_MESSAGES, "a4f50f526f365be2", 0, 1268, 1248);
        stream(a, "\xef\xbf\xbd-| |-| |-| |-", 2, "messages-stream.sse");
        a = answer(SIM_API_MESSAGES, "a4e65e706699f526", 0, 741, 0);
        stream(a, "8|5|\x01|5", 1, "messages-stream-cold.sse");
}

static void a_responses_stream(void **state)
{
        struct sim_answer a = answer(SIM_API_RESPONSES, "8080e37419d9f297", 1796068111, 1268, 1248);
        struct sim_buf want = recording("responses-stream.sse"), got = {0};
        static const char *const pieces[] = {"\xef\xbf\xbd-", " ", "-", " ", "-", " ", "-"};

        (void)state;
        for (char *at = want.data; (at = strstr(at, "msg_aee28fcd48b2bd42"));)
                memcpy(at, "msg_8080e37419d9f297", 20);
        sim_answer_begin(&got, &a);
        sim_answer_first(&got, &a);
        for (size_t i = 0; i < 7; i++) {
                sim_buf_puts(&a.text, pieces[i]);
                a.output_tokens += i == 0 ? 2 : 1;
                sim_answer_token(&got, &a, sim_slice(pieces[i]), i == 0 ? 2 : 1, i == 6);
        }
        sim_answer_end(&got, &a);
        sim_buf_add(&got, "", 1);
        assert_string_equal(got.data, want.data);
        sim_buf_fini(&a.text);
        sim_buf_fini(&got);
        sim_buf_fini(&want);
}

static void a_stream_whose_engine_died(void **state)
{
        struct sim_answer a = answer(SIM_API_CHAT, "9acd9371419f843e", 1796069252, 100, 0);
        struct sim_buf got = {0};
        static const char *const pieces[] = {"9", "d", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdR"};

        (void)state;
        sim_answer_first(&got, &a);
        for (size_t i = 0; i < 3; i++) {
                a.output_tokens++;
                sim_answer_token(&got, &a, sim_slice(pieces[i]), 1, false);
        }
        assert_true(sim_answer_died(&got, &a));
        sim_buf_fini(&a.text);
        compare(&got, "chat-stream-engine-died.sse");
        a.api = SIM_API_RESPONSES;
        assert_false(sim_answer_died(&got, &a));
        sim_buf_fini(&got);
}

static void errors(void **state)
{
        struct sim_buf got = {0};

        (void)state;
        sim_answer_error(&got, SIM_API_CHAT, 400, "BadRequestError", "input_tokens",
                         "This model's maximum context length is 32000 tokens. However, your prompt contains "
                         "at least 32001 "
                         "input tokens, which exceeds this limit even without any output tokens. Please "
                         "reduce the length of "
                         "the input prompt. (parameter=input_tokens, value=32001)");
        compare(&got, "error-too-long.json");
        sim_answer_error(&got, SIM_API_MESSAGES, 404, "not_found_error", NULL, "no \"x\"");
        sim_buf_add(&got, "", 1);
        assert_string_equal(
                got.data,
                "{\"type\":\"error\",\"error\":{\"type\":\"not_found_error\",\"message\":\"no \\\"x\\\"\"}}");
        sim_buf_fini(&got);
}

static void unknown_hits_are_not_reported(void **state)
{
        struct sim_answer a = answer(SIM_API_CHAT, "1", 0, 100, 64);
        struct sim_buf got = {0};

        (void)state;
        a.details = false;
        a.include_usage = true;
        sim_answer_whole(&got, &a);
        sim_buf_add(&got, "", 1);
        assert_non_null(strstr(got.data, "\"prompt_tokens_details\":null"));
        sim_buf_reset(&got);
        sim_answer_end(&got, &a);
        sim_buf_add(&got, "", 1);
        assert_null(strstr(got.data, "prompt_tokens_details"));
        a.api = SIM_API_MESSAGES;
        sim_buf_reset(&got);
        sim_answer_whole(&got, &a);
        sim_buf_add(&got, "", 1);
        assert_non_null(strstr(got.data, "\"usage\":{\"input_tokens\":100,\"output_tokens\":0}"));
        a.api = SIM_API_RESPONSES; /* here vLLM says 0 */
        sim_buf_reset(&got);
        sim_answer_whole(&got, &a);
        sim_buf_add(&got, "", 1);
        assert_non_null(strstr(got.data, "\"cached_tokens\":0"));
        sim_buf_fini(&got);
}

static void several_choices(void **state)
{
        struct sim_answer a = answer(SIM_API_COMPLETIONS, "1", 0, 100, 64);
        struct sim_buf got = {0};

        (void)state;
        a.choices = 2;
        a.output_tokens = 3;
        sim_answer_whole(&got, &a);
        sim_buf_add(&got, "", 1);
        assert_non_null(strstr(got.data, "{\"index\":1,\"text\":\"\""));
        assert_non_null(
                strstr(got.data, "\"prompt_tokens\":100,\"total_tokens\":106,\"completion_tokens\":6"));
        sim_buf_fini(&got);
}

static void json_strings(void **state)
{
        struct sim_buf got = {0};

        (void)state;
        sim_buf_json(&got, (struct kvr_slice){.data = "a\"\\\n\x01\xc3\xa4\xff\xed\xa0\x80z", .len = 12});
        sim_buf_add(&got, "", 1);
        assert_string_equal(got.data, "\"a\\\"\\\\\\u000a\\u0001\xc3\xa4\\ufffd\\ufffd\\ufffd\\ufffdz\"");
        sim_buf_fini(&got);
        got.max = 8;
        sim_buf_puts(&got, "123456789");
        assert_true(got.failed);
        sim_buf_fini(&got);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(whole_answers),
                cmocka_unit_test(token_ids_are_returned),
                cmocka_unit_test(streams),
                cmocka_unit_test(a_responses_stream),
                cmocka_unit_test(a_stream_whose_engine_died),
                cmocka_unit_test(errors),
                cmocka_unit_test(unknown_hits_are_not_reported),
                cmocka_unit_test(several_choices),
                cmocka_unit_test(json_strings),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
