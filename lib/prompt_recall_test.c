/* SPDX-License-Identifier: Apache-2.0 */
/* What a parser remembers of earlier bodies changes what reading costs, never what it gives. */
#include "lib/prompt_parser.h"
#include "lib/prompt_test_util.h"

static const struct kvr_prompt_options options = {.seed = 7};

static const char *const texts[] = {
        "the cache ",
        "of a replica\\n",
        "gr\xC3\xBC\xC3\x9F \xE2\x86\x92 ",
        "\\\"key\\\": [1]",
        "a\\\\b\\t",
        "so long, ",
        "\\u00e9\\/",
        "\xF0\x9F\x98\x80 yes ",
};

static unsigned pick(uint64_t *rng, unsigned from, unsigned below)
{
        return from + (unsigned)(chance(rng) % (below - from));
}

/* JSON string content of about `len` bytes. */
static void put_content(struct text *out, size_t len, uint64_t *rng)
{
        size_t end = out->len + len;
        bool odd = chance(rng) % 4 == 0; /* with spellings that are not canonical */

        while (out->len < end)
                put_string(out, texts[chance(rng) % (odd ? 8 : 6)]);
}

static void put_message(struct text *out, uint64_t *rng)
{
        const char *const roles[] = {"user", "assistant", "system", "tool"};
        const char *gap = chance(rng) % 3 ? "" : " ";
        size_t len = chance(rng) % 8 ? chance(rng) % 900 : chance(rng) % 9000;

        put_format(out, "{\"role\":%s\"%s\",", gap, roles[chance(rng) % 4]);
        switch (chance(rng) % 7) {
        case 6:
                put_string(out, chance(rng) % 2 ? "\"content\":[]}"
                                                : "\"content\":\"\",\"x\":[{},[],[[]],{\"a\":[]}]}");
                break;
        case 0:
                put_string(
                        out,
                        "\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                        "\"arguments\":\"");
                put_content(out, len, rng);
                put_string(out, "\"}}],\"content\":null}");
                break;
        case 1:
                put_string(out, "\"content\":[{\"type\":\"text\",\"text\":\"");
                put_content(out, len, rng);
                put_string(out, "\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:");
                put_content(out, 100, rng);
                put_string(out, "\"}}],\"name\":\"n\"}");
                break;
        default:
                put_string(out, "\"content\":\"");
                put_content(out, len, rng);
                put_string(out, "\"}");
        }
}

/* A chat whose messages come first or last in the body, or between. */
static struct text make_chat(unsigned messages, uint64_t *rng)
{
        struct text out = {0};
        unsigned order = pick(rng, 0, 3);

        put_string(&out, "{");
        if (order)
                put_format(&out, "\"model\":\"m%u\",\"temperature\":0.5,", (unsigned)(chance(rng) % 2));
        if (order == 2)
                put_string(&out,
                           "\"reasoning_effort\":\"low\",\"tools\":[{\"type\":\"function\",\"function\":"
                           "{\"name\":\"f\",\"parameters\":{\"x\":[1,2, 3]}}}],");
        put_string(&out, "\"messages\":[");
        for (unsigned i = 0; i < messages; i++) {
                put_string(&out, i ? "," : "");
                put_message(&out, rng);
        }
        put_string(&out, "]");
        if (!order)
                put_string(
                        &out,
                        ",\"model\":\"m\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]");
        put_string(&out, ",\"stream\":true}");
        return out;
}

static void assert_same(const struct parsed *a, const struct parsed *b)
{
        assert_int_equal(a->status, b->status);
        assert_string_equal(a->err.message, b->err.message);
        assert_int_equal(a->err.offset, b->err.offset);
        assert_string_equal(a->err.field, b->err.field);
        assert_int_equal(a->prompt.point_count, b->prompt.point_count);
        assert_memory_equal(&a->prompt.space, &b->prompt.space, sizeof(a->prompt.space));
        assert_int_equal(a->prompt.units, b->prompt.units);
        assert_int_equal(a->prompt.stream, b->prompt.stream);
        for (uint32_t i = 0; i < a->prompt.point_count; i++) {
                assert_int_equal(a->points[i].key, b->points[i].key);
                assert_int_equal(a->points[i].end, b->points[i].end);
        }
}

/* The body through a parser with a past and through a fresh one. */
static void check(struct kvr_parser *parser, enum kvr_api api, struct kvr_slice body)
{
        struct kvr_parser *fresh = kvr_parser_new();
        struct parsed expected, got;

        assert_non_null(fresh);
        expected = parse_with(fresh, api, body, &options);
        got = parse_with(parser, api, body, &options);
        assert_same(&expected, &got);
        free(expected.points);
        free(got.points);
        kvr_parser_free(fresh);
}

static void check_text(struct kvr_parser *parser, const struct text *body)
{
        check(parser, KVR_API_CHAT, (struct kvr_slice){body->data, body->len});
}

static struct kvr_parser *parser_new(void)
{
        struct kvr_parser *parser = kvr_parser_new();

        assert_non_null(parser);
        return parser;
}

/* One with checkpoints so dense that they fall on every kind of byte. */
static struct kvr_parser *dense_parser_new(void)
{
        struct kvr_parser *parser = parser_new();

        parser->recall.first = 8;
        parser->recall.step_min = 8;
        parser->recall.rest = 1;
        return parser;
}

static void test_a_repeated_body_is_mostly_not_read(void **state)
{
        struct kvr_parser *parser = parser_new();
        uint64_t rng = 1, before;
        struct text body = make_chat(200, &rng);

        (void)state;
        /* Two digests are noted and met again each time. */
        for (int i = 0; i < 40; i++)
                check_text(parser, &body);
        before = parser->recall.known_bytes;
        check_text(parser, &body);
        /* A checkpoint is at most a quarter away. */
        assert_in_range(parser->recall.known_bytes - before, body.len * 3 / 5, body.len);
        free_text(&body);
        kvr_parser_free(parser);
}

static void test_what_is_met_once_is_not_kept(void **state)
{
        struct kvr_parser *parser = parser_new();
        uint64_t rng = 2;

        (void)state;
        for (int i = 0; i < 50; i++) {
                struct text body = make_chat(30, &rng);

                check_text(parser, &body);
                free_text(&body);
        }
        assert_int_equal(parser->recall.written, 0);
        assert_int_equal(parser->recall.known_bytes, 0);
        kvr_parser_free(parser);
}

/* Bodies that part from a known one at any byte, in what follows or in length. */
static void check_parting(struct kvr_parser *parser)
{
        uint64_t rng = 3;

        for (int round = 0; round < 60; round++) {
                struct text first = make_chat(pick(&rng, 5, 65), &rng);
                struct text second = make_chat(pick(&rng, 5, 65), &rng);

                for (int i = 0; i < 12; i++)
                        check_text(parser, &first);
                for (int i = 0; i < 12; i++) {
                        struct text mixed = {0};
                        size_t at = chance(&rng) % first.len, from = chance(&rng) % second.len;

                        put_bytes(&mixed, first.data, at);
                        /* Mostly broken JSON, sometimes only another byte or an end too early. */
                        if (i % 3 == 0) {
                                put_bytes(&mixed, first.data + at, first.len - at);
                                mixed.data[at] = (char)(chance(&rng) % 256);
                        } else if (i % 3 == 1) {
                                put_bytes(&mixed, second.data + from, second.len - from);
                        }
                        check_text(parser, &mixed);
                        check_text(parser, &mixed);
                        free_text(&mixed);
                }
                check_text(parser, &first);
                free_text(&first);
                free_text(&second);
        }
        assert_true(parser->recall.known_bytes > 0);
        kvr_parser_free(parser);
}

static void test_bodies_that_part_anywhere(void **state)
{
        (void)state;
        check_parting(parser_new());
        check_parting(dense_parser_new());
}

/* What was a first element may be the end of its array this time, and a value another kind of value. */
static void test_another_value_at_the_checkpoint(void **state)
{
        static const char *const values[] = {"[\"x\"]", "[]", "[ ]",  "[[1]]", "{}",     "{\"a\":1}",
                                             "1",       "12", "\"\"", "[1,2]", "true",   "null",
                                             "[}",      "{]", "[,",   "-",     "\"\\n\""};

        (void)state;
        for (unsigned pad = 0; pad < 24; pad++) {
                struct kvr_parser *parser = dense_parser_new();

                for (unsigned round = 0; round < 200; round++) {
                        struct text body = {0};

                        put_format(&body,
                                   "{\"a\":\"%.*s\",\"stop\":%s,\"messages\":[{\"role\":\"user\",\"content\":"
                                   "%s},"
                                   "{\"role\":\"user\",\"content\":\"bbbbbbbbbbbbbbbbbbbb\"}]}",
                                   (int)pad, "aaaaaaaaaaaaaaaaaaaaaaaa", values[round / 5 % 17],
                                   values[round * 7 / 5 % 17]);
                        check_text(parser, &body);
                        free_text(&body);
                }
                assert_true(parser->recall.known_bytes > 0);
                kvr_parser_free(parser);
        }
}

/* The turns of a conversation: each body is the one before with two messages more. */
static void test_a_conversation_that_grows(void **state)
{
        struct kvr_parser *parser = parser_new();
        uint64_t rng = 4;
        struct text said = {0};
        uint64_t all = 0;

        (void)state;
        put_string(&said, "{\"model\":\"m\",\"messages\":[");
        put_message(&said, &rng);
        for (int turn = 0; turn < 120; turn++) {
                size_t len = said.len;

                put_string(&said, "]}");
                check_text(parser, &said);
                all += said.len;
                said.len = len;
                put_string(&said, ",");
                put_message(&said, &rng);
                put_string(&said, ",");
                put_message(&said, &rng);
        }
        assert_true(parser->recall.known_bytes > all / 2);
        free_text(&said);
        kvr_parser_free(parser);
}

/* The same messages behind other tools, another model or for another API are another prompt. */
static void test_what_stands_around_the_messages_counts(void **state)
{
        static const char *const behind[] = {
                "}",
                ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]}",
                ",\"model\":\"other\"}",
                ",\"reasoning_effort\":\"high\"}",
                ",\"system\":\"be brief\"}",
                ",\"messages\":[]}"};
        struct kvr_parser *parser = parser_new();
        struct text messages = {0};
        uint64_t rng = 5;

        (void)state;
        put_string(&messages, "{\"messages\":[");
        for (int i = 0; i < 60; i++) {
                put_string(&messages, i ? "," : "");
                put_message(&messages, &rng);
        }
        put_string(&messages, "]");
        for (int i = 0; i < 200; i++) {
                const char *end = behind[chance(&rng) % 6];
                enum kvr_api api = chance(&rng) % 2 ? KVR_API_CHAT : KVR_API_MESSAGES;
                size_t len = messages.len;

                put_string(&messages, end);
                check(parser, api, (struct kvr_slice){messages.data, messages.len});
                messages.len = len;
        }
        assert_true(parser->recall.known_bytes > 0);
        free_text(&messages);
        kvr_parser_free(parser);
}

static void test_another_seed_is_another_past(void **state)
{
        const struct kvr_prompt_options other = {.seed = 8};
        struct kvr_parser *parser = parser_new(), *fresh = parser_new();
        uint64_t rng = 6;
        struct text body = make_chat(60, &rng);
        struct kvr_slice bytes = {body.data, body.len};

        (void)state;
        for (int i = 0; i < 30; i++)
                check_text(parser, &body);
        struct parsed expected = parse_with(fresh, KVR_API_CHAT, bytes, &other);
        struct parsed got = parse_with(parser, KVR_API_CHAT, bytes, &other);

        assert_same(&expected, &got);
        free(expected.points);
        free(got.points);
        check_text(parser, &body);
        free_text(&body);
        kvr_parser_free(parser);
        kvr_parser_free(fresh);
}

/* More than the ring holds: old entries are overwritten, and nothing else changes. */
static void test_the_ring_goes_round(void **state)
{
        enum { BODIES = 160 };
        struct kvr_parser *parser = parser_new();
        struct text bodies[BODIES];
        uint64_t rng = 7;

        (void)state;
        for (int i = 0; i < BODIES; i++)
                bodies[i] = make_chat(700, &rng);
        for (int round = 0; round < 40; round++)
                for (int i = 0; i < BODIES; i++) {
                        struct parsed got =
                                parse_with(parser, KVR_API_CHAT,
                                           (struct kvr_slice){bodies[i].data, bodies[i].len}, &options);

                        assert_int_equal(got.status, KVR_OK);
                        free(got.points);
                }
        assert_true(parser->recall.written > 2ull * KVR__RECALL_RING_BYTES);
        for (int i = 0; i < BODIES; i++) {
                check_text(parser, &bodies[i]);
                free_text(&bodies[i]);
        }
        kvr_parser_free(parser);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_a_repeated_body_is_mostly_not_read),
                cmocka_unit_test(test_what_is_met_once_is_not_kept),
                cmocka_unit_test(test_bodies_that_part_anywhere),
                cmocka_unit_test(test_another_value_at_the_checkpoint),
                cmocka_unit_test(test_a_conversation_that_grows),
                cmocka_unit_test(test_what_stands_around_the_messages_counts),
                cmocka_unit_test(test_another_seed_is_another_past),
                cmocka_unit_test(test_the_ring_goes_round),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
