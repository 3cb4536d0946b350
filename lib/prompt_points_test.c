/* SPDX-License-Identifier: Apache-2.0 */
/* Where points lie and what their keys are: against a slow reading of the rules, byte by byte. */
#include "lib/prompt_stream.h"
#include "lib/prompt_test_util.h"

#include <xxhash.h>

#define SEED 7

static struct kvr_parser *parser;

static int setup(void **state)
{
        (void)state;
        parser = kvr_parser_new();
        return parser ? 0 : -1;
}

static int teardown(void **state)
{
        (void)state;
        kvr_parser_free(parser);
        return 0;
}

/* ---- the rules once more, as simple as can be ---- */

struct slow {
        uint64_t chain;
        uint32_t pos, step_min;
        struct text piece;
        struct kvr_point points[KVR_POINTS_MAX * 2];
        uint32_t count;
};

static uint64_t number_hash(const uint64_t *numbers, size_t count)
{
        unsigned char bytes[128];

        for (size_t i = 0; i < count; i++)
                for (unsigned b = 0; b < 8; b++)
                        bytes[8 * i + b] = (unsigned char)(numbers[i] >> 8 * b);
        return XXH3_64bits_withSeed(bytes, 8 * count, SEED);
}

/* No model, no salt, no adapter. */
static uint64_t empty_space(void)
{
        static const uint64_t zeros[15];

        return number_hash(zeros, 15);
}

static void slow_start(struct slow *slow, enum kvr_api form, uint32_t step_min)
{
        memset(slow, 0, sizeof(*slow));
        slow->chain = number_hash((const uint64_t[]){empty_space(), form}, 2);
        slow->step_min = step_min;
        put_string(&slow->piece, "");
}

static void slow_cut(struct slow *slow, unsigned kind, bool point)
{
        uint64_t hash = XXH3_64bits_withSeed(slow->piece.data, slow->piece.len, SEED);

        slow->chain = number_hash((const uint64_t[]){slow->chain, hash + kind}, 2);
        slow->piece.len = 0;
        if (point)
                slow->points[slow->count++] = (struct kvr_point){slow->chain, slow->pos};
}

static bool on_grid(uint32_t pos, uint32_t step_min)
{
        uint32_t step = step_min;

        /* The step in force just before pos. */
        while (step * 2 <= (pos - 1) >> KVR__GRID_SHIFT)
                step *= 2;
        return pos % step == 0;
}

static void slow_bytes(struct slow *slow, const char *bytes, size_t len)
{
        for (size_t i = 0; i < len; i++) {
                put_bytes(&slow->piece, bytes + i, 1);
                slow->pos++;
                if (on_grid(slow->pos, slow->step_min))
                        slow_cut(slow, KVR__CUT_GRID, true);
        }
}

static void slow_end(struct slow *slow, unsigned kind)
{
        slow->pos++;
        slow_cut(slow, kind, true);
}

static void slow_text(struct slow *slow, const char *text, size_t len)
{
        slow_bytes(slow, "\x05", 1);
        if (slow->piece.len)
                slow_cut(slow, KVR__CUT_TEXT, false);
        slow_bytes(slow, text, len);
}

static void slow_message(struct slow *slow, const char *role, const char *canonical, size_t len)
{
        slow_bytes(slow, "\x03", 1);
        slow_bytes(slow, role, strlen(role));
        slow_text(slow, canonical, len);
        slow_end(slow, KVR__CUT_MESSAGE);
}

static void assert_as_slow(const struct parsed *parsed, struct slow *slow)
{
        assert_int_equal(parsed->status, KVR_OK);
        check_points(parsed);
        for (uint32_t i = 0; i < slow->count && i < parsed->prompt.point_count; i++) {
                if (parsed->points[i].end != slow->points[i].end ||
                    parsed->points[i].key != slow->points[i].key)
                        fail_msg("point %u: end %u, should be %u (of %u)", i, parsed->points[i].end,
                                 slow->points[i].end, slow->count);
        }
        assert_int_equal(parsed->prompt.point_count, slow->count);
        free_text(&slow->piece);
}

/* Text with a bit of everything that is canonical as it stands. */
static void put_prose(struct text *text, size_t len, uint64_t *rng)
{
        static const char *const bits[] = {"cache ",   "the ",         "\\n",  "\\\"x\\\" ",
                                           "\xC3\xA9", "\xE4\xBD\xA0", "\\\\", "0123456789"};
        size_t end = text->len + len;

        while (text->len < end)
                put_string(text, bits[chance(rng) % 8]);
}

/* ---- tests ---- */

static void test_chat_by_the_rules(void **state)
{
        static const size_t lengths[] = {0, 1, 100, 126, 127, 128, 129, 500, 3000, 9000, 40000, 200000};
        uint64_t rng = 5;
        struct slow *slow = malloc(sizeof(*slow));

        (void)state;
        assert_non_null(slow);
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
                struct text body = {0};
                struct parsed parsed;

                slow_start(slow, KVR_API_CHAT, KVR_GRID_MIN_BYTES);
                put_string(&body, "{\"messages\":[");
                for (int m = 0; m < 7; m++) {
                        struct text prose = {0};

                        put_string(&prose, "");
                        put_prose(&prose, m == 3 ? lengths[i] : chance(&rng) % (lengths[i] + 10), &rng);
                        put_string(&body, m ? ",{\"role\":\"user\",\"content\":\""
                                            : "{\"role\":\"user\",\"content\":\"");
                        put_bytes(&body, prose.data, prose.len);
                        put_string(&body, "\"}");
                        slow_message(slow, "\"user\"", prose.data, prose.len);
                        free_text(&prose);
                }
                put_string(&body, "]}");
                parsed = parse(parser, KVR_API_CHAT, body.data);
                assert_as_slow(&parsed, slow);
                free_parsed(&parsed);
                free_text(&body);
        }
        free(slow);
}

static void test_tools_settings_and_media_by_the_rules(void **state)
{
        static const char tool[] = "{\"function\":{\"description\":\"say "
                                   "\xC3\xA9\",\"name\":\"f\",\"parameters\":{\"z\":[1,2],\"a\":{}}},"
                                   "\"type\":\"function\"}";
        struct slow *slow = malloc(sizeof(*slow));
        char url[600], body[1500];
        XXH128_hash_t digest;
        struct parsed parsed;

        (void)state;
        assert_non_null(slow);
        memset(url, 'A', sizeof(url));
        url[sizeof(url) - 1] = 0;
        snprintf(body, sizeof(body),
                 "{\"reasoning_effort\":\"low\",\"add_generation_prompt\":false,\"tools\":[{\"type\":"
                 "\"function\",\"function\":{\"name\": "
                 "\"f\",\"parameters\":{\"z\":[1, 2],\"a\":{}},\"description\":\"say \\u00e9\"}}],"
                 "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{"
                 "\"url\":\"%s\"}},"
                 "{\"type\":\"text\",\"text\":\"what?\"}]}]}",
                 url);
        slow_start(slow, KVR_API_CHAT, KVR_GRID_MIN_BYTES);
        slow_bytes(slow, "\x01reasoning_effort\"low\"", 22);
        slow_bytes(slow, "\x02", 1);
        slow_bytes(slow, tool, strlen(tool));
        slow_end(slow, KVR__CUT_TOOLS);
        slow_bytes(slow, "\x03\"user\"\x06{\"image_url\":{\"url\":\x07", 29);
        digest = XXH3_128bits_withSeed(url, strlen(url), SEED);
        for (unsigned b = 0; b < 8; b++)
                slow_bytes(slow, &(const char){(char)(digest.low64 >> 8 * b)}, 1);
        for (unsigned b = 0; b < 8; b++)
                slow_bytes(slow, &(const char){(char)(digest.high64 >> 8 * b)}, 1);
        slow_bytes(slow, "},\"type\":\"image_url\"}", 21);
        slow_cut(slow, KVR__CUT_MEDIA, false);
        slow->pos += KVR_MEDIA_BYTES;
        slow_text(slow, "what?", 5);
        slow_end(slow, KVR__CUT_MESSAGE);
        slow_bytes(slow,
                   "\x01"
                   "add_generation_promptfalse",
                   27);
        slow_cut(slow, KVR__CUT_PROMPT, true);
        parsed = parse(parser, KVR_API_CHAT, body);
        assert_as_slow(&parsed, slow);
        free_parsed(&parsed);
        free(slow);
}

static void test_text_by_the_rules(void **state)
{
        uint64_t rng = 6;
        struct slow *slow = malloc(sizeof(*slow));

        (void)state;
        assert_non_null(slow);
        for (size_t len = 0; len < 70000; len = len * 5 / 4 + 1) {
                struct text prose = {0}, body = {0};
                struct parsed parsed;

                put_string(&prose, "");
                put_prose(&prose, len, &rng);
                put_string(&body, "{\"prompt\":\"");
                put_bytes(&body, prose.data, prose.len);
                put_string(&body, "\"}");
                slow_start(slow, KVR_API_COMPLETIONS, KVR_GRID_MIN_BYTES);
                slow_text(slow, prose.data, prose.len);
                if (slow->piece.len)
                        slow_cut(slow, KVR__CUT_PROMPT, true);
                else if (!slow->count)
                        slow->points[slow->count++] = (struct kvr_point){slow->chain, slow->pos};
                parsed = parse(parser, KVR_API_COMPLETIONS, body.data);
                assert_as_slow(&parsed, slow);
                assert_int_equal(parsed.prompt.unit, KVR_UNIT_BYTES);
                assert_int_equal(parsed.prompt.units, prose.len + 1);
                free_parsed(&parsed);
                free_text(&prose);
                free_text(&body);
        }
        free(slow);
}

static void test_ids_by_the_rules(void **state)
{
        uint64_t rng = 8;
        struct slow *slow = malloc(sizeof(*slow));

        (void)state;
        assert_non_null(slow);
        for (size_t len = 1; len < 40000; len = len * 5 / 4 + 1) {
                struct text body = {0};
                struct parsed parsed;

                put_string(&body, "{\"prompt\":[");
                slow_start(slow, KVR_API_COMPLETIONS, KVR_GRID_MIN_TOKENS);
                slow->chain = number_hash((const uint64_t[]){slow->chain, KVR_UNIT_TOKENS}, 2);
                for (size_t i = 0; i < len; i++) {
                        uint32_t id = (uint32_t)(chance(&rng) >> (32 + chance(&rng) % 32));

                        put_format(&body, i ? ",%u" : "%u", id);
                        for (unsigned b = 0; b < 4; b++)
                                put_bytes(&slow->piece, &(const char){(char)(id >> 8 * b)}, 1);
                        slow->pos++;
                        if (on_grid(slow->pos, slow->step_min))
                                slow_cut(slow, KVR__CUT_GRID, true);
                }
                if (slow->piece.len)
                        slow_cut(slow, KVR__CUT_PROMPT, true);
                put_string(&body, "]}");
                parsed = parse(parser, KVR_API_COMPLETIONS, body.data);
                assert_as_slow(&parsed, slow);
                assert_int_equal(parsed.prompt.unit, KVR_UNIT_TOKENS);
                assert_int_equal(parsed.prompt.units, len);
                free_parsed(&parsed);
                free_text(&body);
        }
        free(slow);
}

/* Steps stay within their part of the depth, and their number within what is set aside for them. */
static void test_grid(void **state)
{
        static const enum kvr_unit units[] = {KVR_UNIT_BYTES, KVR_UNIT_TOKENS};
        struct kvr_point *points = calloc(KVR_POINTS_MAX, sizeof(*points));
        char *megabyte = calloc(1, 1 << 20);

        (void)state;
        assert_non_null(points);
        assert_non_null(megabyte);
        for (size_t u = 0; u < 2; u++) {
                uint32_t min = u ? KVR_GRID_MIN_TOKENS : KVR_GRID_MIN_BYTES, before = 0;
                struct kvr__stream stream = {.points = points};
                struct kvr__hash hash;

                kvr__hash_init(&hash, 1);
                kvr__stream_start(&stream, &hash, 1, units[u]);
                for (int i = 0; i < 256; i++)
                        kvr__stream_lend(&stream, megabyte, 1 << 20);
                assert_true(kvr__stream_finish(&stream));
                assert_true(stream.point_count <= KVR__GRID_POINTS_MAX);
                for (uint32_t i = 0; i < stream.point_count; i++) {
                        uint32_t step = points[i].end - before;

                        assert_true(step >= min);
                        assert_true(step == min || step << KVR__GRID_SHIFT <= before);
                        assert_true((step & (step - 1)) == 0);
                        assert_int_equal(points[i].end % step, 0);
                        before = points[i].end;
                }
                assert_int_equal(before, 256u << 20);
                kvr__stream_fini(&stream);
        }
        free(megabyte);
        free(points);
}

/* A conversation that grows keeps all its points; so does a text that grows, up to the grid. */
static void test_growth(void **state)
{
        uint64_t rng = 11;
        struct text body = {0};
        struct parsed before = {0};

        (void)state;
        put_string(&body, "{\"model\":\"m\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
                          ",\"messages\":["
                          "{\"role\":\"system\",\"content\":\"");
        put_prose(&body, 3000, &rng);
        put_string(&body, "\"}");
        for (int turn = 0; turn < 40; turn++) {
                struct parsed now;
                size_t len = body.len;

                put_string(&body, "]}");
                now = parse(parser, KVR_API_CHAT, body.data);
                assert_int_equal(now.status, KVR_OK);
                assert_int_equal(common_points(&before, &now), before.prompt.point_count);
                assert_true(now.prompt.point_count > before.prompt.point_count);
                free_parsed(&before);
                before = now;
                body.len = len;
                put_string(&body, turn % 2 ? ",{\"role\":\"user\",\"content\":\""
                                           : ",{\"role\":\"assistant\",\"content\":\"");
                put_prose(&body, chance(&rng) % 3000, &rng);
                put_string(&body, "\"}");
        }
        free_parsed(&before);
        free_text(&body);
}

static void test_growing_last_message(void **state)
{
        uint64_t rng = 12;
        struct text prose = {0};
        struct parsed before = {0};

        (void)state;
        put_string(&prose, "");
        for (int step = 0; step < 60; step++) {
                struct text body = {0};
                struct parsed now;
                uint32_t grid_points = 0;

                put_string(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
                put_bytes(&body, prose.data, prose.len);
                put_string(&body, "\"}]}");
                now = parse(parser, KVR_API_CHAT, body.data);
                assert_int_equal(now.status, KVR_OK);
                /* All but the end of the message. */
                grid_points = before.prompt.point_count ? before.prompt.point_count - 1 : 0;
                assert_int_equal(common_points(&before, &now), grid_points);
                free_parsed(&before);
                before = now;
                free_text(&body);
                put_prose(&prose, 1 + chance(&rng) % 400, &rng);
        }
        free_parsed(&before);
        free_text(&prose);
}

static void test_namespace_comes_first(void **state)
{
        struct text body = {0};
        struct parsed a, b;
        uint64_t rng = 13;

        (void)state;
        put_string(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
        put_prose(&body, 4000, &rng);
        put_string(&body, "\"}],\"model\":\"x\"}");
        a = parse(parser, KVR_API_CHAT, body.data);
        body.data[body.len - 3] = 'y';
        b = parse(parser, KVR_API_CHAT, body.data);
        assert_int_equal(a.prompt.point_count, b.prompt.point_count);
        for (uint32_t i = 0; i < a.prompt.point_count; i++) {
                assert_int_equal(a.points[i].end, b.points[i].end);
                assert_true(a.points[i].key != b.points[i].key);
        }
        free_parsed(&a);
        free_parsed(&b);
        free_text(&body);
}

/* A seed changes all keys and no place. */
static void test_seed(void **state)
{
        static const char body[] = "{\"prompt\":\"some text\"}";
        struct kvr_prompt_options one = {.seed = 1}, two = {.seed = 2};
        struct parsed a = parse_with(parser, KVR_API_COMPLETIONS, slice_of(body), &one);
        struct parsed b = parse_with(parser, KVR_API_COMPLETIONS, slice_of(body), &two);
        struct parsed c = parse_with(parser, KVR_API_COMPLETIONS, slice_of(body), &one);

        (void)state;
        assert_true(last_key(&a) != last_key(&b));
        assert_true(last_key(&a) == last_key(&c));
        assert_true(a.prompt.space != b.prompt.space);
        assert_int_equal(a.prompt.units, b.prompt.units);
        free_parsed(&a);
        free_parsed(&b);
        free_parsed(&c);
}

/* More messages than points: ends are left out behind a limit, grid points never, the last point never. */
static void test_points_max(void **state)
{
        struct text body = {0};
        struct parsed few, many;
        uint32_t grid = 0;

        (void)state;
        put_string(&body, "{\"messages\":[{}");
        for (int i = 0; i < 100000; i++)
                put_string(&body, ",{\"role\":\"user\",\"content\":\"abcdefghijklmnopqrstuvwxyz\"}");
        put_string(&body, "]}");
        many = parse(parser, KVR_API_CHAT, body.data);
        assert_int_equal(many.status, KVR_OK);
        check_points(&many);
        assert_true(many.prompt.point_count > KVR__END_POINTS_MAX);
        for (uint32_t i = 0; i < many.prompt.point_count; i++)
                grid += many.points[i].end >= 1 << 20 && on_grid(many.points[i].end, KVR_GRID_MIN_BYTES);
        assert_true(grid > 40);
        /* The prompt's own end is there: tag, "user", tag, 26 letters and end for each message, 2 for the
         * empty one. */
        assert_int_equal(many.prompt.units, 100000 * (1 + 6 + 1 + 26 + 1) + 2);
        /* A shorter list shares all but its end. */
        body.len = strlen("{\"messages\":[{}") +
                   60000 * strlen(",{\"role\":\"user\",\"content\":\"abcdefghijklmnopqrstuvwxyz\"}");
        put_string(&body, "]}");
        few = parse(parser, KVR_API_CHAT, body.data);
        assert_int_equal(common_points(&few, &many), few.prompt.point_count - 1);
        free_parsed(&few);
        free_parsed(&many);
        free_text(&body);
}

/* Multi-byte characters across every grid position, raw and escaped. */
static void test_characters_across_borders(void **state)
{
        static const struct {
                const char *raw, *escaped;
        } characters[] = {{"\xC3\x97", "\\u00d7"},     {"\xCE\xB1", "\\u03B1"},
                          {"\xE4\xBD\xA0", "\\u4f60"}, {"\xF0\x9F\x98\x80", "\\ud83d\\uDE00"},
                          {"\\n", "\\u000a"},          {"\\u0001", "\\u0001"}};

        (void)state;
        for (size_t c = 0; c < sizeof(characters) / sizeof(characters[0]); c++) {
                for (int pad = 100; pad < 140; pad++) {
                        struct text raw = {0}, escaped = {0};
                        struct parsed a, b;

                        put_format(&raw, "{\"messages\":[{\"role\":\"user\",\"content\":\"%*s", pad, "");
                        put_format(&escaped, "{\"messages\":[{\"role\":\"user\",\"content\":\"%*s", pad, "");
                        for (int i = 0; i < 200; i++) {
                                put_string(&raw, characters[c].raw);
                                put_string(&escaped, characters[c].escaped);
                        }
                        put_string(&raw, "\"}]}");
                        put_string(&escaped, "\"}]}");
                        a = parse(parser, KVR_API_CHAT, raw.data);
                        b = parse(parser, KVR_API_CHAT, escaped.data);
                        assert_int_equal(a.status, KVR_OK);
                        assert_int_equal(a.prompt.point_count, b.prompt.point_count);
                        assert_int_equal(common_points(&a, &b), a.prompt.point_count);
                        assert_int_equal(a.prompt.units, 9 + (uint32_t)pad + 200 * strlen(characters[c].raw));
                        free_parsed(&a);
                        free_parsed(&b);
                        free_text(&raw);
                        free_text(&escaped);
                }
        }
}

static void test_media_count_the_same_whatever_their_size(void **state)
{
        struct text small = {0}, big = {0};
        struct parsed a, b;

        (void)state;
        for (int i = 0; i < 2; i++) {
                struct text *body = i ? &big : &small;

                put_string(body, "{\"messages\":[{\"role\":\"user\",\"content\":[\"look\",{\"type\":\"image_"
                                 "url\",\"image_url\":{\"url\":\"");
                for (int n = 0; n < (i ? 300000 : 30); n++)
                        put_string(body, "AbC/");
                put_string(body, "\"}},\"and say\"]}]}");
        }
        a = parse(parser, KVR_API_CHAT, small.data);
        b = parse(parser, KVR_API_CHAT, big.data);
        check_points(&a);
        check_points(&b);
        assert_int_equal(a.prompt.units, b.prompt.units);
        assert_true(a.prompt.units > KVR_MEDIA_BYTES && a.prompt.units < KVR_MEDIA_BYTES + 128);
        assert_true(last_key(&a) != last_key(&b));
        free_parsed(&a);
        free_parsed(&b);
        free_text(&small);
        free_text(&big);
}

/* Text before an image is common to prompts with different images. */
static void test_text_before_a_picture_is_shared(void **state)
{
        struct text bodies[2] = {{0}, {0}};
        struct parsed a, b;
        uint64_t rng;

        (void)state;
        for (int i = 0; i < 2; i++) {
                rng = 21;
                put_string(&bodies[i], "{\"messages\":[{\"role\":\"system\",\"content\":\"");
                put_prose(&bodies[i], 2000, &rng);
                put_format(&bodies[i],
                           "\"},{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{"
                           "\"url\":\"http://%d\"}}]}]}",
                           i);
        }
        a = parse(parser, KVR_API_CHAT, bodies[0].data);
        b = parse(parser, KVR_API_CHAT, bodies[1].data);
        /* Everything but the last message's end. */
        assert_int_equal(common_points(&a, &b), a.prompt.point_count - 1);
        assert_true(a.points[a.prompt.point_count - 2].end > 2000);
        free_parsed(&a);
        free_parsed(&b);
        free_text(&bodies[0]);
        free_text(&bodies[1]);
}

static void test_media_beyond_the_limit_count_little(void **state)
{
        struct text body = {0};
        struct parsed parsed;

        (void)state;
        put_string(&body, "{\"messages\":[{\"role\":\"user\",\"content\":[\"\"");
        for (int i = 0; i < 3 * KVR_MEDIA_COUNTED_MAX; i++)
                put_string(&body, ",{}");
        put_string(&body, "]}]}");
        parsed = parse(parser, KVR_API_CHAT, body.data);
        check_points(&parsed);
        assert_int_equal(parsed.prompt.units, 1 + 6 + 1 + KVR_MEDIA_COUNTED_MAX * KVR_MEDIA_BYTES +
                                                      3 * 3 * KVR_MEDIA_COUNTED_MAX + 1);
        free_parsed(&parsed);
        free_text(&body);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_chat_by_the_rules),
                cmocka_unit_test(test_tools_settings_and_media_by_the_rules),
                cmocka_unit_test(test_text_by_the_rules),
                cmocka_unit_test(test_ids_by_the_rules),
                cmocka_unit_test(test_grid),
                cmocka_unit_test(test_growth),
                cmocka_unit_test(test_growing_last_message),
                cmocka_unit_test(test_namespace_comes_first),
                cmocka_unit_test(test_seed),
                cmocka_unit_test(test_points_max),
                cmocka_unit_test(test_characters_across_borders),
                cmocka_unit_test(test_media_count_the_same_whatever_their_size),
                cmocka_unit_test(test_text_before_a_picture_is_shared),
                cmocka_unit_test(test_media_beyond_the_limit_count_little),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, setup, teardown);
}
