/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/json.h"
#include "lib/prompt_test_util.h"

static struct kvr__json json;
static enum kvr_status last_status;
static size_t last_offset;

static int setup(void **state)
{
        (void)state;
        json.scan = kvr__scanner_at(kvr__scanner_count() - 1)->scan;
        return 0;
}

static int teardown(void **state)
{
        (void)state;
        kvr__json_fini(&json);
        return 0;
}

/* Reads from a copy of exactly this size, which then stays until the next call. */
static void read_bytes(const char *bytes, size_t len)
{
        static char *copy;

        free(copy);
        copy = malloc(len ? len : 1);
        assert_non_null(copy);
        memcpy(copy, bytes, len);
        last_status = kvr__json_read(&json, (struct kvr_slice){copy, len}, &last_offset);
}

static void read_text(const char *text)
{
        read_bytes(text, strlen(text));
}

static void assert_slice(struct kvr_slice slice, const char *text)
{
        assert_int_equal(slice.len, strlen(text));
        assert_memory_equal(slice.data, text, slice.len);
}

static void test_tokens_follow_the_text(void **state)
{
        static const enum kvr__json_type types[] = {KVR__JSON_OBJECT, KVR__JSON_STRING,   KVR__JSON_ARRAY,
                                                    KVR__JSON_NUMBER, KVR__JSON_NUMBER,   KVR__JSON_END,
                                                    KVR__JSON_STRING, KVR__JSON_STRING_X, KVR__JSON_END};

        (void)state;
        read_text("{\"a\": [1,-2.5e3],\"b\":\"x\\u0041\"}");
        assert_int_equal(last_status, KVR_OK);
        assert_int_equal(json.count, 9);
        for (uint32_t i = 0; i < json.count; i++)
                assert_int_equal(kvr__json_type(&json, i), types[i]);
        assert_int_equal(kvr__json_end(&json, 0), 8);
        assert_int_equal(kvr__json_end(&json, 2), 5);
        assert_int_equal(kvr__json_next(&json, 2), 6);
        assert_int_equal(kvr__json_next(&json, 1), 2);
        assert_slice(kvr__json_text(&json, 1), "a");
        assert_slice(kvr__json_text(&json, 2), "[1,-2.5e3]");
        assert_slice(kvr__json_text(&json, 4), "-2.5e3");
        assert_slice(kvr__json_text(&json, 7), "x\\u0041");
        assert_slice(kvr__json_text(&json, 0), "{\"a\": [1,-2.5e3],\"b\":\"x\\u0041\"}");
        /* White space and the escape make the object not canonical, the array is. */
        assert_true(kvr__json_is_compact(&json, 2));
        assert_false(kvr__json_is_compact(&json, 0));
}

static void test_compact_containers(void **state)
{
        static const struct {
                const char *text;
                int compact;
        } cases[] = {
                {"[]", 1},
                {"[ ]", 0},
                {"[1,2]", 1},
                {"[1, 2]", 0},
                {"[1 ,2]", 0},
                {"{\"a\":1}", 1},
                {"{\"a\" :1}", 0},
                {"{\"a\": 1}", 0},
                {"{ \"a\":1}", 0},
                {"{\"a\":1 }", 0},
                {"[\"\\n\"]", 1},
                {"[\"\\u000a\"]", 0},
                {"[\"\\/\"]", 0},
                {"[\"\\\"\"]", 1},
                {"[\"\\u001f\"]", 1},
                {"[\"\\u001F\"]", 0},
                {"[[1],[2]]", 1},
                {"[[1],[ 2]]", 0},
                {"[\"\xC3\xA9\"]", 1},
                {" [1] ", 1},
                {"[\"\\u0008\"]", 0},
                {"[\"\\u0000\"]", 1},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                read_text(cases[i].text);
                assert_int_equal(last_status, KVR_OK);
                if (kvr__json_is_compact(&json, 0) != cases[i].compact)
                        fail_msg("%s", cases[i].text);
        }
        read_text("[[1],[ 2],[3]]");
        assert_true(kvr__json_is_compact(&json, 1));
        assert_false(kvr__json_is_compact(&json, kvr__json_next(&json, 1)));
        assert_true(kvr__json_is_compact(&json, kvr__json_next(&json, kvr__json_next(&json, 1))));
}

static void test_literals(void **state)
{
        (void)state;
        read_text("[true,false,null,0,\"true\"]");
        assert_int_equal(kvr__json_bool(&json, 1), 1);
        assert_int_equal(kvr__json_bool(&json, 2), 0);
        assert_int_equal(kvr__json_bool(&json, 3), -1);
        assert_int_equal(kvr__json_bool(&json, 4), -1);
        assert_int_equal(kvr__json_bool(&json, 5), -1);
        assert_true(kvr__json_is_null(&json, 3));
        assert_false(kvr__json_is_null(&json, 2));
        assert_false(kvr__json_is_null(&json, 5));
        assert_int_equal(json.flags, 0);
}

static void test_errors_tell_where(void **state)
{
        static const struct {
                const char *text;
                size_t offset;
        } cases[] = {
                {"", 0},          {"  ", 2},    {"{", 1},         {"[", 1},         {"[1", 2},
                {"[1,]", 3},      {"[,1]", 1},  {"{\"a\"}", 4},   {"{\"a\":}", 5},  {"{\"a\":1,}", 7},
                {"{a:1}", 1},     {"[1}", 2},   {"{\"a\":1]", 6}, {"[1] x", 4},     {"nul", 3},
                {"nulL", 3},      {"tru", 3},   {"01", 1},        {"-", 1},         {"-a", 1},
                {"1.", 2},        {"1.e5", 2},  {"1e", 2},        {"1e+", 3},       {"+1", 0},
                {".5", 0},        {"\"abc", 4}, {"\"a\nb\"", 2},  {"\"\\x\"", 2},   {"\"\\u12g4\"", 5},
                {"\"\\u12", 5},   {"\"\\", 2},  {"[1 2]", 3},     {"{\"a\" 1}", 5}, {"'a'", 0},
                {"[\"a\":1]", 4}, {"{1:2}", 1}, {"// c\n1", 0},   {"[1,,2]", 3},    {"\"\x01\"", 1},
                {"nan", 1},       {"-Inf", 4},  {"]", 0},         {"}", 0},         {",", 0},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                read_text(cases[i].text);
                if (last_status != KVR_E_JSON || last_offset != cases[i].offset)
                        fail_msg("%s: status %d at %zu, expected at %zu", cases[i].text, (int)last_status,
                                 last_offset, cases[i].offset);
        }
        read_bytes("[0]\0", 4);
        assert_int_equal(last_status, KVR_E_JSON);
        assert_int_equal(last_offset, 3);
}

static void test_what_only_some_readers_take(void **state)
{
        static const struct {
                const char *text;
                uint32_t flags;
        } cases[] = {
                {"[NaN]", KVR__JSON_NOT_FINITE},
                {"[Infinity,1]", KVR__JSON_NOT_FINITE},
                {"{\"a\":-Infinity}", KVR__JSON_NOT_FINITE},
                {"\"\\ud800\"", KVR__JSON_LONE_SURROGATE},
                {"\"\\udc00\"", KVR__JSON_LONE_SURROGATE},
                {"\"\\ud800\\ud800\\udc00\"", KVR__JSON_LONE_SURROGATE},
                {"\"\\ud800\\n\"", KVR__JSON_LONE_SURROGATE},
                {"\"\\ud83d\\ude00\"", 0},
                {"\"\xFF\"", KVR__JSON_BAD_UTF8},
                {"\"\xED\xA0\x80\"", KVR__JSON_BAD_UTF8},
                {"\"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz\xC3\"", KVR__JSON_BAD_UTF8},
                {"\xEF\xBB\xBF{}", KVR__JSON_BOM},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                read_text(cases[i].text);
                if (last_status != KVR_OK || json.flags != cases[i].flags)
                        fail_msg("case %zu: status %d flags %u", i, (int)last_status, json.flags);
        }
}

static void test_nesting_limit(void **state)
{
        struct text text = {0};

        (void)state;
        for (int depth = KVR_JSON_DEPTH_MAX; depth <= KVR_JSON_DEPTH_MAX + 1; depth++) {
                text.len = 0;
                for (int i = 0; i < depth; i++)
                        put_string(&text, i % 2 ? "{\"a\":" : "[");
                put_string(&text, depth % 2 ? "[]" : "{}");
                /* The innermost container is the last level. */
                text.len -= 2;
                put_string(&text, depth % 2 ? "1" : "2");
                for (int i = depth; i-- > 0;)
                        put_string(&text, i % 2 ? "}" : "]");
                read_bytes(text.data, text.len);
                assert_int_equal(last_status, depth <= KVR_JSON_DEPTH_MAX ? KVR_OK : KVR_E_LIMIT);
        }
        text.len = 0;
        for (int i = 0; i < 100000; i++)
                put_string(&text, "[");
        read_bytes(text.data, text.len);
        assert_int_equal(last_status, KVR_E_LIMIT);
        assert_int_equal(last_offset, KVR_JSON_DEPTH_MAX);
        free_text(&text);
}

static void compare_with_oracle(const char *bytes, size_t len);

/* Lists of integers have a way of their own: at every length and place, with each kind of oddity at each
 * place. */
static void test_lists_of_numbers(void **state)
{
        static const char *const oddities[] = {"",
                                               " ",
                                               "  ",
                                               "\n",
                                               "-1",
                                               "1.5",
                                               "1e3",
                                               "01",
                                               "00",
                                               ",",
                                               "x",
                                               "null",
                                               "\"a\"",
                                               "[1]",
                                               "0",
                                               "]",
                                               "[",
                                               ", ",
                                               "12345678901234567890"};
        uint64_t rng = 4;
        struct text text = {0};

        (void)state;
        for (int round = 0; round < 20000; round++) {
                const char *odd = oddities[(size_t)round % (sizeof(oddities) / sizeof(oddities[0]))];
                uint64_t count = chance(&rng) % 40, at = chance(&rng) % 40;
                const char *comma = chance(&rng) % 3 ? "," : ", ";

                text.len = 0;
                put_string(&text, chance(&rng) % 4 ? "[" : "{\"k\":[");
                for (uint64_t i = 0; i < count; i++) {
                        put_string(&text, i ? comma : "");
                        if (i == at)
                                put_string(&text, odd);
                        else
                                put_format(&text, "%u", (unsigned)(chance(&rng) >> (32 + chance(&rng) % 32)));
                }
                put_string(&text, text.data[0] == '[' ? "]" : "]}");
                compare_with_oracle(text.data, text.len);
        }
        free_text(&text);
}

static void test_spaces_between_numbers_are_noticed(void **state)
{
        (void)state;
        read_text("[1,2,3,4,5,6,7,8,9,10,11,12,13,14]");
        assert_true(kvr__json_is_compact(&json, 0));
        read_text("[1,2,3,4,5,6,7,8, 9,10,11,12,13,14]");
        assert_false(kvr__json_is_compact(&json, 0));
        read_text("[[1,2,3,4,5, 6,7,8,9,10,11,12],[13,14,15,16,17,18,19,20,21,22]]");
        assert_false(kvr__json_is_compact(&json, 1));
        assert_true(kvr__json_is_compact(&json, kvr__json_next(&json, 1)));
}

/* Every number of tokens before and behind a run of ends, so that the array is full at every place once. */
static void test_room_for_tokens_at_every_place(void **state)
{
        (void)state;
        for (int before = 0; before < 140; before++) {
                for (int depth = 1; depth < 8; depth++) {
                        struct kvr__json fresh = {.scan = kvr__scanner_at(0)->scan};
                        struct text text = {0};
                        size_t offset;

                        put_string(&text, "{\"a\":[0");
                        for (int i = 0; i < before; i++)
                                put_string(&text, ",1");
                        for (int i = 0; i < depth; i++)
                                put_string(&text, i % 2 ? "{\"b\":" : i ? "[" : ",[");
                        put_string(&text, "2");
                        for (int i = depth; i-- > 0;)
                                put_string(&text, i % 2 ? "}" : "]");
                        put_string(&text, "],\"c\":{}}");
                        assert_int_equal(
                                kvr__json_read(&fresh, (struct kvr_slice){text.data, text.len}, &offset),
                                KVR_OK);
                        assert_true(fresh.count <= fresh.capacity);
                        assert_int_equal(kvr__json_end(&fresh, 0), fresh.count - 1);
                        kvr__json_fini(&fresh);
                        free_text(&text);
                }
        }
}

static void test_tokens_stay_within_their_bound(void **state)
{
        struct text text = {0};

        (void)state;
        put_string(&text, "[[]");
        for (int i = 0; i < 20000; i++)
                put_string(&text, ",[]");
        put_string(&text, "]");
        read_bytes(text.data, text.len);
        assert_int_equal(last_status, KVR_OK);
        assert_int_equal(json.count, 2 + 2 * 20001);
        assert_true((size_t)json.count * 3 <= text.len * 2 + 6);
        free_text(&text);
}

/* ---- the same documents as yyjson ---- */

/* What yyjson says of the bytes: 1 they are JSON. A byte order mark is taken off first; yyjson knows none. */
static int oracle_accepts(const char *bytes, size_t len, yyjson_doc **ret_doc)
{
        char *copy;

        if (len >= 3 && !memcmp(bytes, "\xEF\xBB\xBF", 3)) {
                bytes += 3;
                len -= 3;
        }
        copy = malloc(len ? len : 1);
        assert_non_null(copy);
        memcpy(copy, bytes, len);
        *ret_doc = yyjson_read_opts(copy, len, YYJSON_READ_NUMBER_AS_RAW, NULL, NULL);
        free(copy);
        return *ret_doc != NULL;
}

/* The token tree and yyjson's tree say the same. Returns the token behind the value. */
static uint32_t assert_same_value(uint32_t token, yyjson_val *val)
{
        struct kvr_slice text = kvr__json_text(&json, token);
        size_t i, max;
        yyjson_val *key, *one;
        char *decoded;

        switch (yyjson_get_type(val)) {
        case YYJSON_TYPE_OBJ:
                assert_int_equal(kvr__json_type(&json, token), KVR__JSON_OBJECT);
                token++;
                yyjson_obj_foreach(val, i, max, key, one) token =
                        assert_same_value(assert_same_value(token, key), one);
                assert_int_equal(kvr__json_type(&json, token), KVR__JSON_END);
                return token + 1;
        case YYJSON_TYPE_ARR:
                assert_int_equal(kvr__json_type(&json, token), KVR__JSON_ARRAY);
                token++;
                yyjson_arr_foreach(val, i, max, one) token = assert_same_value(token, one);
                assert_int_equal(kvr__json_type(&json, token), KVR__JSON_END);
                return token + 1;
        case YYJSON_TYPE_STR:
                assert_true(kvr__json_is_string(&json, token));
                decoded = malloc(text.len + 1);
                assert_non_null(decoded);
                assert_int_equal(kvr__json_decode(text.data, (uint32_t)text.len, decoded),
                                 yyjson_get_len(val));
                assert_memory_equal(decoded, yyjson_get_str(val), yyjson_get_len(val));
                free(decoded);
                return token + 1;
        case YYJSON_TYPE_RAW:
                assert_int_equal(kvr__json_type(&json, token), KVR__JSON_NUMBER);
                assert_int_equal(text.len, yyjson_get_len(val));
                assert_memory_equal(text.data, yyjson_get_raw(val), text.len);
                return token + 1;
        default:
                assert_int_equal(kvr__json_type(&json, token), KVR__JSON_LITERAL);
                assert_int_equal(kvr__json_is_null(&json, token), yyjson_is_null(val));
                return token + 1;
        }
}

static void compare_with_oracle(const char *bytes, size_t len)
{
        yyjson_doc *doc;
        int theirs = oracle_accepts(bytes, len, &doc);
        int ours;

        for (size_t s = 0; s < kvr__scanner_count(); s++) {
                json.scan = kvr__scanner_at(s)->scan;
                read_bytes(bytes, len);
                ours = last_status == KVR_OK && !(json.flags & ~(uint32_t)KVR__JSON_BOM);
                if (ours != theirs)
                        fail_msg("%s: we say %d (flags %u, offset %zu), yyjson %d: %.*s",
                                 kvr__scanner_at(s)->name, (int)last_status, json.flags, last_offset, theirs,
                                 (int)len, bytes);
                if (ours)
                        assert_int_equal(assert_same_value(0, yyjson_doc_get_root(doc)), json.count);
        }
        yyjson_doc_free(doc);
}

/* Pieces that make mostly valid documents when put together by the grammar, and mostly invalid ones
 * otherwise. */
static const char *const atoms[] = {
        "1",
        "-0",
        "0.5",
        "1e9",
        "12345678901234567890",
        "true",
        "false",
        "null",
        "\"\"",
        "\"a\"",
        "\"\\n\"",
        "\"\xC3\xA9\"",
        "\"\\u00e9\"",
        "\"\\ud83d\\ude00\"",
        "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"",
        "\"0123456789\\\\\\\"abcdef\\/0123456789abcdef0123456789abcdef01234567\xE4\xBD\xA0\""};

static void put_random_value(struct text *text, uint64_t *rng, int depth)
{
        uint64_t r = chance(rng) % (depth > 4 ? 16 : 24);

        if (r < 16) {
                put_string(text, atoms[r]);
                return;
        }
        put_string(text, r < 20 ? "[" : "{");
        for (uint64_t n = chance(rng) % 5; n > 0; n--) {
                put_space(text, rng);
                if (r >= 20) {
                        put_string(text, atoms[8 + chance(rng) % 8]);
                        put_space(text, rng);
                        put_string(text, ":");
                }
                put_random_value(text, rng, depth + 1);
                if (n > 1)
                        put_string(text, ",");
        }
        put_string(text, r < 20 ? "]" : "}");
}

static void test_same_verdict_as_yyjson(void **state)
{
        uint64_t rng = 1;
        struct text text = {0};

        (void)state;
        for (int round = 0; round < 4000; round++) {
                text.len = 0;
                put_random_value(&text, &rng, 0);
                compare_with_oracle(text.data, text.len);
                /* Then damaged in one to three places. */
                for (uint64_t n = chance(&rng) % 3 + 1; n > 0 && text.len; n--) {
                        static const char bytes[] =
                                "{}[]\",:\\/ \n0123456789.eE+-truefalsn\x00\x1F\x7F\x80\xBF\xC3\xE4\xF0\xFF"
                                "ud";
                        size_t at = chance(&rng) % text.len;

                        switch (chance(&rng) % 3) {
                        case 0:
                                text.data[at] = bytes[chance(&rng) % (sizeof(bytes) - 1)];
                                break;
                        case 1:
                                memmove(text.data + at, text.data + at + 1, text.len - at - 1);
                                text.len--;
                                break;
                        default:
                                text.len = at;
                        }
                }
                compare_with_oracle(text.data, text.len);
        }
        free_text(&text);
}

static void test_every_cut_of_a_document(void **state)
{
        static const char text[] =
                "{\"k\\u0065y\":[1.5e-3,\"a\\\"b\xE2\x82\xAC\",{\"x\":null,\"y\":[true,false]}],\"long\":"
                "\"0123456789012345678901234567890123456789012345678901234567890123456789\\n\"}";

        (void)state;
        for (size_t len = 0; len <= strlen(text); len++)
                compare_with_oracle(text, len);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_tokens_follow_the_text),
                cmocka_unit_test(test_compact_containers),
                cmocka_unit_test(test_literals),
                cmocka_unit_test(test_errors_tell_where),
                cmocka_unit_test(test_what_only_some_readers_take),
                cmocka_unit_test(test_nesting_limit),
                cmocka_unit_test(test_room_for_tokens_at_every_place),
                cmocka_unit_test(test_tokens_stay_within_their_bound),
                cmocka_unit_test(test_lists_of_numbers),
                cmocka_unit_test(test_spaces_between_numbers_are_noticed),
                cmocka_unit_test(test_same_verdict_as_yyjson),
                cmocka_unit_test(test_every_cut_of_a_document),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, setup, teardown);
}
