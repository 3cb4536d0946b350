/* SPDX-License-Identifier: Apache-2.0 */
/* What is left out of a conversation's name, and what is not. */
#include "prompt_ignore.h"
#include "prompt_test_util.h"

#define BODY_MAX 40000
#define POINTS   1024

static struct kvr_ignore *set_of(const char *first, const char *second)
{
        struct kvr_slice patterns[2] = {{first, strlen(first)}, {second, second ? strlen(second) : 0}};
        struct kvr_ignore *set = NULL;
        struct kvr_error err;

        if (kvr_ignore_new(patterns, second ? 2 : 1, &set, &err) != KVR_OK)
                fail_msg("%s", err.message);
        return set;
}

/* The placeholder is shown as '~'. */
static void masks(const char *pattern, const char *text, const char *want)
{
        struct kvr_ignore *set = set_of(pattern, NULL);
        char got[256];
        size_t len = kvr__ignore_mask(set, (struct kvr_slice){text, strlen(text)}, got);

        got[len] = 0;
        for (size_t i = 0; i < len; i++)
                got[i] = got[i] ? got[i] : '~';
        if (strcmp(got, want) != 0)
                fail_msg("%s: \"%s\" became \"%s\", not \"%s\"", pattern, text, got, want);
        kvr_ignore_free(set);
}

static void test_timestamps(void **state)
{
        (void)state;
        masks("timestamp", "now 2026-12-01T05:06:07.123Z ok", "now ~ ok");
        masks("timestamp", "now 2026-12-01 05:06:07+01:00, ok", "now ~, ok");
        masks("timestamp", "now 2026/12/1 5:06", "now ~");
        masks("timestamp", "at 05:06:07-0100.", "at ~.");
        masks("timestamp", "on 2026-12-01.", "on ~.");
        masks("timestamp", "line\\n2026-12-01\\u00e905:06", "line\\n~\\u00e9~");
        masks("timestamp", "epoch 1764565567 and 1764565567123", "epoch ~ and ~");
        /* Not every number is one. */
        masks("timestamp", "version 1.2.3, 10:5 odds, 2026-12, id 17645655670, v05:06",
              "version 1.2.3, 10:5 odds, 2026-12, id 17645655670, v05:06");
        masks("timestamp", "a2026-12-01 2026-12-01b 123:45 5:067", "a2026-12-01 2026-12-01b 123:45 5:067");
        masks("timestamp", "", "");
        masks("timestamp", "2026-12-0", "~");
        masks("timestamp", "2026-12-", "2026-12-");
}

static void test_ids(void **state)
{
        (void)state;
        masks("uuid", "id 0f8fad5b-D9CB-469f-a165-70867728950e!", "id ~!");
        masks("uuid", "id 0f8fad5b-d9cb-469f-a165-70867728950e1", "id 0f8fad5b-d9cb-469f-a165-70867728950e1");
        masks("uuid", "0f8fad5b-d9cb-469f-a165-70867728950", "0f8fad5b-d9cb-469f-a165-70867728950");
        masks("hex:32", "sum d41d8cd98f00b204e9800998ecf8427e.", "sum ~.");
        masks("hex:32", "sum d41d8cd98f00b204e9800998ecf8427", "sum d41d8cd98f00b204e9800998ecf8427");
        masks("hex:8", "xd41d8cd98 d41d8cd98x deadbeef", "xd41d8cd98 d41d8cd98x ~");
        masks("number", "turn 17 of x20", "turn ~ of x~");
        masks("after:cch=", "head; cch=1a2b3; cch=; next", "head; cch=~; cch=; next");
        masks("after:request ", "request r-17.2 done", "request ~ done");
        masks("after:budget", "budget", "budget");
}

static void test_what_is_no_pattern(void **state)
{
        static const char *const wrong[] = {
                "",       "time",   "hex",       "hex:",       "hex:7",   "hex:129",
                "hex:1x", "after:", "after:\\n", "timestamp ", "regex:.*"};
        struct kvr_ignore *set = NULL;
        struct kvr_slice many[KVR_IGNORE_PATTERNS_MAX + 1];
        struct kvr_error err;

        (void)state;
        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
                struct kvr_slice one = {wrong[i], strlen(wrong[i])};

                assert_int_equal(kvr_ignore_new(&one, 1, &set, &err), KVR_E_ARGUMENT);
                assert_non_null(strstr(err.message, "is no pattern; write timestamp"));
        }
        for (size_t i = 0; i < KVR_IGNORE_PATTERNS_MAX + 1; i++)
                many[i] = (struct kvr_slice){"uuid", 4};
        assert_int_equal(kvr_ignore_new(many, KVR_IGNORE_PATTERNS_MAX + 1, &set, &err), KVR_E_ARGUMENT);
        assert_int_equal(kvr_ignore_new(many, KVR_IGNORE_PATTERNS_MAX, &set, &err), KVR_OK);
        kvr_ignore_free(set);
        kvr_ignore_free(NULL);
}

/* ---- whole requests ---- */

struct named {
        struct kvr_parser *parser;
        struct kvr_ignore *set;
        char hint[64];
        struct kvr_point points[POINTS];
        uint32_t point_count;
};

static void read_body(struct named *n, enum kvr_api api, const char *body, bool ignoring)
{
        struct kvr_prompt prompt;
        struct kvr_prompt_options options = {.ignore = ignoring ? n->set : NULL};
        struct kvr_error err;

        if (kvr_prompt_parse(n->parser, api, (struct kvr_slice){body, strlen(body)}, &options, &prompt,
                             &err) != KVR_OK)
                fail_msg("%s", err.message);
        assert_true(prompt.hint.len < sizeof(n->hint) && prompt.point_count <= POINTS);
        memcpy(n->hint, prompt.hint.data ? prompt.hint.data : "", prompt.hint.len);
        n->hint[prompt.hint.len] = 0;
        n->point_count = prompt.point_count;
        memcpy(n->points, prompt.points, prompt.point_count * sizeof(*prompt.points));
}

static int up(void **state)
{
        struct named *n = calloc(1, sizeof(*n));

        assert_non_null(n);
        n->parser = kvr_parser_new();
        assert_non_null(n->parser);
        n->set = set_of("timestamp", "after:cch=");
        *state = n;
        return 0;
}

static int down(void **state)
{
        struct named *n = *state;

        kvr_parser_free(n->parser);
        kvr_ignore_free(n->set);
        free(n);
        return 0;
}

/* A clock and a checksum in the system prompt, a conversation of so many turns. */
static const char *chat(unsigned second, unsigned turns, const char *question, char body[BODY_MAX])
{
        size_t len = (size_t)snprintf(
                body, BODY_MAX,
                "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"cch=%x; It is "
                "05:06:%02u.%s\"},{\"role\":\"user\",\"content\":\"%s\"}",
                second * 7919, second, "\\nBe kind.", question);

        for (unsigned i = 0; i < turns; i++)
                len += (size_t)snprintf(
                        body + len, BODY_MAX - len,
                        ",{\"role\":\"assistant\",\"content\":\"a%u\"},{\"role\":\"user\",\"content\":"
                        "\"q%u 2026-01-%02u\"}",
                        i, i, i + 1);
        snprintf(body + len, BODY_MAX - len, "]}");
        return body;
}

static void test_turns_have_one_name(void **state)
{
        struct named *n = *state;
        char body[BODY_MAX], first[64];

        read_body(n, KVR_API_CHAT, chat(0, 0, "first", body), true);
        snprintf(first, sizeof(first), "%s", n->hint);
        assert_memory_equal(first, "ignore-", 7);
        assert_int_equal(strlen(first), 7 + 16);
        for (unsigned turn = 1; turn < 20; turn++) {
                read_body(n, KVR_API_CHAT, chat(turn, turn, "first", body), true);
                assert_string_equal(n->hint, first);
        }
        read_body(n, KVR_API_CHAT, chat(3, 0, "another", body), true);
        assert_string_not_equal(n->hint, first);
        read_body(n, KVR_API_CHAT, chat(3, 3, "first", body), false);
        assert_string_equal(n->hint, "");
}

/* What is promised to be cached must not reach behind the spot: keys are those of the whole text. */
static void test_keys_do_not_depend_on_it(void **state)
{
        struct named *n = *state;
        char body[BODY_MAX];
        struct kvr_point before[POINTS];

        read_body(n, KVR_API_CHAT, chat(1, 5, "first", body), false);
        memcpy(before, n->points, sizeof(before));
        read_body(n, KVR_API_CHAT, chat(1, 5, "first", body), true);
        assert_true(n->point_count > 5);
        for (uint32_t i = 0; i < n->point_count; i++)
                assert_true(n->points[i].key == before[i].key && n->points[i].end == before[i].end);
        read_body(n, KVR_API_CHAT, chat(2, 5, "first", body), true);
        assert_true(n->points[0].key != before[0].key);
}

static void test_forms(void **state)
{
        struct named *n = *state;
        char first[64];

        read_body(n, KVR_API_MESSAGES,
                  "{\"model\":\"m\",\"max_tokens\":9,\"system\":[{\"type\":\"text\",\"text\":\"cch=1a; "
                  "hi\"}],\"messages\":["
                  "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\",\"cache_control\":{"
                  "\"type\":"
                  "\"ephemeral\"}}]}]}",
                  true);
        snprintf(first, sizeof(first), "%s", n->hint);
        assert_memory_equal(first, "ignore-", 7);
        /* The mark of where to cache has moved on, members come in another order. */
        read_body(n, KVR_API_MESSAGES,
                  "{\"model\":\"m\",\"max_tokens\":9,\"system\":[{\"text\":\"cch=2b; "
                  "hi\",\"type\":\"text\"}],\"messages\":["
                  "{\"content\":[{\"type\":\"text\",\"text\":\"q\"}],\"role\":\"user\"},{\"role\":"
                  "\"assistant\","
                  "\"content\":"
                  "\"a\"},{\"role\":\"user\",\"content\":\"more\"}]}",
                  true);
        assert_string_equal(n->hint, first);
        read_body(n, KVR_API_RESPONSES, "{\"model\":\"m\",\"instructions\":\"at 05:06\",\"input\":\"q\"}",
                  true);
        snprintf(first, sizeof(first), "%s", n->hint);
        read_body(n, KVR_API_RESPONSES,
                  "{\"model\":\"m\",\"instructions\":\"at "
                  "07:08\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":"
                  "\"input_text\",\"text\":\"q\"}]},{\"role\":\"assistant\",\"content\":\"a\"}]}",
                  true);
        assert_string_equal(n->hint, first);
        read_body(n, KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"at 05:06 go\"}", true);
        snprintf(first, sizeof(first), "%s", n->hint);
        read_body(n, KVR_API_LLAMACPP, "{\"prompt\":\"at 09:06 go\"}", true);
        assert_string_equal(n->hint, first);
        /* Nothing to make a name of. */
        read_body(n, KVR_API_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[1,2,3]}", true);
        assert_string_equal(n->hint, "");
        read_body(n, KVR_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"x\"}]}",
                  true);
        assert_string_equal(n->hint, "");
        read_body(n, KVR_API_EMBEDDINGS, "{\"model\":\"m\",\"input\":\"x\"}", true);
        assert_string_equal(n->hint, "");
        /* A name that the client gave is better. */
        read_body(n, KVR_API_CHAT,
                  "{\"model\":\"m\",\"user\":\"u1\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
                  true);
        assert_string_equal(n->hint, "u1");
}

/* A prompt that is one text is named by its beginning, and any long one is only looked at so far. */
static void test_long_texts(void **state)
{
        struct named *n = *state;
        char first[64], *body = malloc(300000);

        assert_non_null(body);
        for (unsigned round = 0; round < 2; round++) {
                size_t len = (size_t)snprintf(body, 100, "{\"prompt\":\"at 05:06:%02u ", round);

                memset(body + len, 'x', 100000 + 50000 * round);
                len += 100000 + 50000 * round;
                memcpy(body + len, "\"}", 3);
                read_body(n, KVR_API_LLAMACPP, body, true);
                if (!round)
                        snprintf(first, sizeof(first), "%s", n->hint);
        }
        assert_string_equal(n->hint, first);
        free(body);
}

/* Every text of these bytes, and any cut of it, stays within its room. */
static void test_any_text(void **state)
{
        static const char bytes[] = "0123456789abcfTZ:-/. \\ucch=";
        uint64_t seed = 7;
        struct kvr_ignore *set = set_of("uuid", "number");
        struct named *n = *state;

        for (unsigned round = 0; round < 20000; round++) {
                size_t len = chance(&seed) % 48;
                char *text = malloc(len + 1), *got = malloc(len + 1);

                assert_true(text && got);
                for (size_t i = 0; i < len; i++)
                        text[i] = bytes[chance(&seed) % (sizeof(bytes) - 1)];
                assert_true(kvr__ignore_mask(set, (struct kvr_slice){text, len}, got) <= len);
                assert_true(kvr__ignore_mask(n->set, (struct kvr_slice){text, len}, got) <= len);
                free(text);
                free(got);
        }
        kvr_ignore_free(set);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_timestamps),
                cmocka_unit_test(test_ids),
                cmocka_unit_test(test_what_is_no_pattern),
                cmocka_unit_test_setup_teardown(test_turns_have_one_name, up, down),
                cmocka_unit_test_setup_teardown(test_keys_do_not_depend_on_it, up, down),
                cmocka_unit_test_setup_teardown(test_forms, up, down),
                cmocka_unit_test_setup_teardown(test_long_texts, up, down),
                cmocka_unit_test_setup_teardown(test_any_text, up, down),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
