/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include "kvroute/events.h"
#include "test_data.h"

static struct kvr_slice slice(const char *text)
{
        return (struct kvr_slice){text, strlen(text)};
}

/* The question as "path body", to be freed; NULL when there is none. */
static char *ask(enum engine_kind kind, enum kvr_api api, const char *body, const char *model,
                 unsigned lacking)
{
        struct engine_question question;
        enum kvr_status status =
                engine_tokenize_ask(kind, api, slice(body), slice(model), lacking, &question);

        if (status == KVR_E_NOT_FOUND)
                return NULL;
        assert_int_equal(status, KVR_OK);
        size_t path = strlen(question.path);
        char *text = malloc(path + question.len + 2);

        assert_non_null(text);
        memcpy(text, question.path, path);
        text[path] = ' ';
        memcpy(text + path + 1, question.body, question.len);
        text[path + 1 + question.len] = '\0';
        free(question.body);
        return text;
}

static void expect(enum engine_kind kind, enum kvr_api api, const char *body, unsigned lacking,
                   const char *want)
{
        char *text = ask(kind, api, body, "m", lacking);

        if (want)
                assert_string_equal(text, want);
        else
                assert_null(text);
        free(text);
}

#define TURN      "[{\"role\":\"user\",\"content\":\"hi\"}]"
#define NO_RENDER (1U << ENGINE_RENDER)

static void test_chat(void **state)
{
        (void)state;
        /* what the template is fed with goes along, what only says how to answer does not */
        expect(ENGINE_VLLM, KVR_API_CHAT,
               "{\"model\":\"alias\",\"messages\":" TURN ",\"temperature\":0,\"stream\":true,"
               "\"tools\":[{\"type\":\"function\"}],\"chat_template_kwargs\":{\"x\":1},\"tool_choice\":"
               "\"auto\"}",
               0,
               "/tokenize {\"messages\":" TURN ",\"tools\":[{\"type\":\"function\"}],"
               "\"chat_template_kwargs\":{\"x\":1},\"model\":\"m\"}");
        expect(ENGINE_SGLANG, KVR_API_CHAT,
               "{\"messages\":" TURN ",\"reasoning_effort\":\"low\",\"add_generation_prompt\":false}", 0,
               "/tokenize {\"messages\":" TURN ",\"reasoning_effort\":\"low\",\"model\":\"m\"}");
}

static void test_render_where_needed(void **state)
{
        (void)state;
        expect(ENGINE_VLLM, KVR_API_CHAT,
               "{\"messages\":" TURN ",\"stream\":true,\"stream_options\":{},\"tool_choice\":\"required\"}",
               0,
               "/v1/chat/completions/render {\"messages\":" TURN
               ",\"stream\":false,\"stream_options\":null,\"tool_choice\":\"required\",\"model\":\"m\"}");
        /* and nothing that would be wrong where that path is off */
        expect(ENGINE_VLLM, KVR_API_CHAT, "{\"messages\":" TURN ",\"documents\":[]}", NO_RENDER, NULL);
        expect(ENGINE_VLLM, KVR_API_CHAT, "{\"messages\":" TURN ",\"reasoning_effort\":\"high\"}", NO_RENDER,
               NULL);
        expect(ENGINE_VLLM, KVR_API_CHAT, "{\"messages\":" TURN ",\"reasoning_effort\":null}", NO_RENDER,
               "/tokenize {\"messages\":" TURN ",\"model\":\"m\"}");
}

static void test_text(void **state)
{
        (void)state;
        expect(ENGINE_VLLM, KVR_API_COMPLETIONS, "{\"prompt\":\"a b\",\"add_special_tokens\":false}", 0,
               "/tokenize {\"prompt\":\"a b\",\"add_special_tokens\":false,\"model\":\"m\"}");
        expect(ENGINE_SGLANG, KVR_API_COMPLETIONS, "{\"prompt\":[\"a\"]}", 0,
               "/tokenize {\"prompt\":\"a\",\"model\":\"m\"}");
        expect(ENGINE_SGLANG, KVR_API_SGLANG, "{\"text\":\"a\"}", 0,
               "/tokenize {\"prompt\":\"a\",\"model\":\"m\"}");
        expect(ENGINE_TRTLLM, KVR_API_COMPLETIONS, "{\"prompt\":\"a\"}", 0,
               "/_internal/tokenize {\"prompt\":\"a\",\"model\":\"m\"}");
        expect(ENGINE_VLLM, KVR_API_COMPLETIONS, "{\"prompt\":[\"a\",\"b\"]}", 0, NULL);
        expect(ENGINE_VLLM, KVR_API_COMPLETIONS, "{\"prompt\":[1,2]}", 0, NULL);
        expect(ENGINE_TRTLLM, KVR_API_CHAT, "{\"messages\":" TURN "}", 0, NULL);
        expect(ENGINE_LLAMACPP, KVR_API_CHAT, "{\"messages\":" TURN "}", 0, NULL);
}

static void test_other_chats(void **state)
{
        (void)state;
        const char *messages =
                "{\"system\":\"be brief\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\","
                "\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]}";
        const char *responses = "{\"instructions\":\"be brief\",\"input\":\"hi\"}";
        const char *as_chat = "/tokenize {\"messages\":[{\"role\":\"system\",\"content\":\"be brief\"},"
                              "{\"role\":\"user\",\"content\":\"a\\nb\"}],\"model\":\"m\"}";

        /* vLLM renders them itself */
        char *text = ask(ENGINE_VLLM, KVR_API_MESSAGES, messages, "", 0);
        assert_memory_equal(text, "/v1/messages/render {", 21);
        free(text);
        text = ask(ENGINE_VLLM, KVR_API_RESPONSES, responses, "", 0);
        assert_memory_equal(text, "/v1/responses/render {", 22);
        free(text);
        /* elsewhere they are put as the chat that the engine makes of them */
        expect(ENGINE_VLLM, KVR_API_MESSAGES, messages, NO_RENDER, as_chat);
        expect(ENGINE_SGLANG, KVR_API_MESSAGES, messages, 0, as_chat);
        expect(ENGINE_SGLANG, KVR_API_RESPONSES, responses, 0,
               "/tokenize {\"messages\":[{\"role\":\"system\",\"content\":\"be brief\"},"
               "{\"role\":\"user\",\"content\":\"hi\"}],\"model\":\"m\"}");
        /* as far as they are text */
        expect(ENGINE_SGLANG, KVR_API_MESSAGES,
               "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{}}]}]}", 0,
               NULL);
        expect(ENGINE_SGLANG, KVR_API_MESSAGES, "{\"tools\":[{}],\"messages\":" TURN "}", 0, NULL);
        expect(ENGINE_SGLANG, KVR_API_RESPONSES, "{\"previous_response_id\":\"r\",\"input\":\"hi\"}", 0,
               NULL);
        expect(ENGINE_SGLANG, KVR_API_RESPONSES, "{\"input\":[{\"type\":\"reasoning\"}]}", 0, NULL);
}

static void test_ask_bad_bodies(void **state)
{
        (void)state;
        static const char *const bodies[] = {"", "[]", "{", "7", "{\"messages\":[}"};
        struct engine_question question;

        for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
                assert_int_equal(engine_tokenize_ask(ENGINE_VLLM, KVR_API_CHAT, slice(bodies[i]), slice(""),
                                                     0, &question),
                                 KVR_E_JSON);
        expect(ENGINE_VLLM, KVR_API_CHAT, "{}", 0, NULL);
        expect(ENGINE_VLLM, KVR_API_CHAT, "{\"messages\":7}", 0, NULL);
        expect(ENGINE_VLLM, KVR_API_CHAT, "{\"messages\":" TURN "}", 1U << ENGINE_TOKENIZE | NO_RENDER, NULL);
}

static uint32_t *read_file(const char *name, uint32_t *ret_count)
{
        struct kvr_slice text = test_data_read(name);
        uint32_t *ids = NULL;

        assert_int_equal(engine_tokenize_read(text, &ids, ret_count), KVR_OK);
        test_data_free(text);
        return ids;
}

static void test_recordings(void **state)
{
        (void)state;
        uint32_t count, rendered;
        uint32_t *ids = read_file("vllm/tokenize-chat.json", &count);
        uint32_t *same = read_file("vllm/render-chat.json", &rendered);

        assert_int_equal(count, 283);
        assert_int_equal(rendered, 283);
        assert_memory_equal(ids, same, count * sizeof *ids);
        assert_int_equal(ids[0], 257);
        free(ids);
        free(same);
        ids = read_file("sglang/tokenize-chat.json", &count);
        assert_int_equal(count, 236);
        free(ids);
        ids = read_file("sglang/tokenize-prompt.json", &count);
        assert_int_equal(count, 5);
        assert_int_equal(ids[0], 71);
        assert_int_equal(ids[4], 78);
        free(ids);
}

static void test_answers(void **state)
{
        (void)state;
        static const struct {
                const char *body;
                enum kvr_status status;
        } rows[] = {
                {"[{\"token_ids\":[1]}]", KVR_OK},
                {"{\"tokens\":[[1,2],[3]]}", KVR_OK},
                {"{\"tokens\":[4294967295]}", KVR_OK},
                {"{\"tokens\":[4294967296]}", KVR_E_REQUEST},
                {"{\"tokens\":[-1]}", KVR_E_REQUEST},
                {"{\"tokens\":[1.5]}", KVR_E_REQUEST},
                {"{\"tokens\":[\"a\"]}", KVR_E_REQUEST},
                {"{\"tokens\":[]}", KVR_E_REQUEST}, /* an engine that does not know the member `prompt` */
                {"{\"count\":3}", KVR_E_REQUEST},
                {"[]", KVR_E_REQUEST},
                {"3", KVR_E_REQUEST},
                {"", KVR_E_JSON},
                {"{\"tokens\":[1", KVR_E_JSON},
        };

        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                uint32_t *ids = NULL, count = 0;

                assert_int_equal(engine_tokenize_read(slice(rows[i].body), &ids, &count), rows[i].status);
                assert_int_equal(ids != NULL, rows[i].status == KVR_OK);
                free(ids);
        }
}

static void test_limit(void **state)
{
        (void)state;
        static const uint32_t counts[] = {KVR_PROMPT_IDS_MAX, KVR_PROMPT_IDS_MAX + 1};

        for (size_t i = 0; i < 2; i++) {
                char *body = malloc(2 * (size_t)counts[i] + 32), *at = body;
                uint32_t *ids = NULL, count = 0;

                assert_non_null(body);
                memcpy(at, "{\"tokens\":[", 11);
                at += 11;
                for (uint32_t n = 0; n < counts[i]; n++) {
                        *at++ = '7';
                        *at++ = ',';
                }
                memcpy(at - 1, "]}", 3);
                assert_int_equal(engine_tokenize_read(slice(body), &ids, &count), i ? KVR_E_LIMIT : KVR_OK);
                assert_int_equal(count, i ? 0 : counts[i]);
                free(ids);
                free(body);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_chat),           cmocka_unit_test(test_render_where_needed),
                cmocka_unit_test(test_text),           cmocka_unit_test(test_other_chats),
                cmocka_unit_test(test_ask_bad_bodies), cmocka_unit_test(test_recordings),
                cmocka_unit_test(test_answers),        cmocka_unit_test(test_limit),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
