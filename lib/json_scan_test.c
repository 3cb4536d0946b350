/* SPDX-License-Identifier: Apache-2.0 */
/* All scanners say the same about a string, at every length and place, and it is the right thing. */
#include "lib/json_scan.h"
#include "lib/prompt_test_util.h"

#define ROOM 400

/* The bytes between quotes, at the end of memory of exactly that size. */
static struct kvr__scan scan_with(size_t number, const char *bytes, size_t len, size_t before)
{
        unsigned char *exact = malloc(before + len);
        struct kvr__scan scan;

        assert_non_null(exact);
        memset(exact, 'x', before);
        memcpy(exact + before, bytes, len);
        scan = kvr__scanner_at(number)->scan(exact, (uint32_t)before, (uint32_t)(before + len));
        free(exact);
        scan.end -= (uint32_t)before;
        return scan;
}

static void assert_scan(const char *bytes, size_t len, uint32_t end, uint32_t flags)
{
        for (size_t s = 0; s < kvr__scanner_count(); s++) {
                struct kvr__scan scan = scan_with(s, bytes, len, 0);

                if (scan.end != end || scan.flags != flags)
                        fail_msg("%s: end %u flags %u instead of %u %u: %.*s", kvr__scanner_at(s)->name,
                                 scan.end, scan.flags, end, flags, (int)len, bytes);
        }
}

static void test_known_strings(void **state)
{
        static const struct {
                const char *text; /* up to and with the closing quote */
                uint32_t flags;
        } cases[] = {
                {"\"", 0},
                {"abc\"", 0},
                {"a\\\"b\"", 0},
                {"\\\\\"", 0},
                {"\\\\\\\"\"", 0},
                {"\\b\\f\\n\\r\\t\\\\\\\"\"", 0},
                {"\\/\"", KVR__SCAN_REWRITE},
                {"\\u0041\"", KVR__SCAN_REWRITE},
                {"\\u001f\"", 0},
                {"\\u000a\"", KVR__SCAN_REWRITE},
                {"\\u001F\"", KVR__SCAN_REWRITE},
                {"\\u007f\"", KVR__SCAN_REWRITE},
                {"\\ud83d\\ude00\"", KVR__SCAN_REWRITE},
                {"\\ud83d\"", KVR__SCAN_REWRITE | KVR__SCAN_LONE},
                {"\\ud83dx\\ude00\"", KVR__SCAN_REWRITE | KVR__SCAN_LONE},
                {"\\ude00\\ud83d\"", KVR__SCAN_REWRITE | KVR__SCAN_LONE},
                {"\x7F\"", 0},
                {"\xC3\xA9\"", 0},
                {"\xE2\x82\xAC\"", 0},
                {"\xF0\x9F\x98\x80\"", 0},
                {"\xC0\x80\"", KVR__SCAN_BAD_UTF8},
                {"\xF4\x90\x80\x80\"", KVR__SCAN_BAD_UTF8},
                {"\xE2\x82\"", KVR__SCAN_BAD_UTF8},
                {"\x80\"", KVR__SCAN_BAD_UTF8},
                {"\xE2\\n\x82\xAC\"", KVR__SCAN_BAD_UTF8},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                size_t len = strlen(cases[i].text);

                for (size_t pad = 0; pad < 140; pad++) {
                        char room[ROOM];

                        memset(room, 'a', sizeof(room));
                        memcpy(room + pad, cases[i].text, len);
                        /* At the end of memory, and with plenty behind it. */
                        assert_scan(room, pad + len, (uint32_t)(pad + len - 1), cases[i].flags);
                        assert_scan(room, sizeof(room), (uint32_t)(pad + len - 1), cases[i].flags);
                }
        }
}

static void test_errors_at_every_place(void **state)
{
        static const struct {
                const char *text;
                uint32_t at; /* of the bad byte, from the start of text */
        } cases[] = {{"\x01", 0},   {"\n\"", 0},      {"\\x\"", 1},
                     {"\\\n\"", 1}, {"\\u12x4\"", 4}, {"\\ud83d\\ux\"", 8}};

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                size_t len = strlen(cases[i].text);

                for (size_t pad = 0; pad < 140; pad++) {
                        char room[ROOM];

                        memset(room, 'a', sizeof(room));
                        memcpy(room + pad, cases[i].text, len);
                        for (size_t s = 0; s < kvr__scanner_count(); s++) {
                                struct kvr__scan scan = scan_with(s, room, sizeof(room), 0);

                                assert_true(scan.flags & KVR__SCAN_ERROR);
                                assert_int_equal(scan.end, pad + cases[i].at);
                        }
                }
        }
}

/* A backslash and any byte: nine letters are fine (u with four digits behind it), the rest is wrong there. */
static void test_every_escaped_byte(void **state)
{
        (void)state;
        for (unsigned c = 0; c < 256; c++) {
                bool fine = c && strchr("\"\\/bfnrtu", (int)c) != NULL;

                for (size_t pad = 0; pad < 70; pad++) {
                        char room[ROOM];

                        memset(room, 'a', sizeof(room));
                        room[pad] = '\\';
                        room[pad + 1] = (char)c;
                        room[pad + 100] = '"';
                        for (size_t s = 0; s < kvr__scanner_count(); s++) {
                                struct kvr__scan scan = scan_with(s, room, sizeof(room), 0);

                                assert_int_equal(!(scan.flags & KVR__SCAN_ERROR), fine);
                                assert_int_equal(scan.end, fine ? pad + 100 : pad + 1);
                        }
                }
        }
}

static void test_no_closing_quote(void **state)
{
        (void)state;
        for (size_t len = 0; len < 200; len++) {
                char room[ROOM];

                memset(room, 'a', sizeof(room));
                for (size_t s = 0; s < kvr__scanner_count(); s++) {
                        struct kvr__scan scan = scan_with(s, room, len, 0);

                        assert_int_equal(scan.flags, KVR__SCAN_ERROR);
                        assert_int_equal(scan.end, len);
                        if (!len)
                                continue;
                        room[len - 1] = '\\';
                        scan = scan_with(s, room, len, 0);
                        assert_true(scan.flags & KVR__SCAN_ERROR);
                        assert_int_equal(scan.end, len);
                        room[len - 1] = 'a';
                }
        }
}

/* Random strings out of bytes that matter, so that runs of backslashes and characters lie across every
 * border. */
static void test_all_scanners_agree(void **state)
{
        static const char bytes[] = "aaaaaaaaaaaa\\\\\\\"\"nrtbfu/"
                                    "0123dD8cCeEfF\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\x80\xED\xA0\n";
        uint64_t rng = 3;

        (void)state;
        for (int round = 0; round < 60000; round++) {
                char room[ROOM] = {0};
                size_t len = chance(&rng) % 260;
                size_t before = chance(&rng) % 3;
                unsigned plain = chance(&rng) % 8; /* how rare the special bytes are */
                struct kvr__scan first;

                for (size_t i = 0; i < len; i++)
                        room[i] = bytes[chance(&rng) % (chance(&rng) % 8 < plain ? 12 : sizeof(bytes) - 1)];
                first = scan_with(0, room, len, before);
                for (size_t s = 1; s < kvr__scanner_count(); s++) {
                        struct kvr__scan scan = scan_with(s, room, len, before);

                        assert_int_equal(scan.end, first.end);
                        /* Where an error ends the string early, the other flags are of no use to anybody. */
                        if (!(first.flags & KVR__SCAN_ERROR))
                                assert_int_equal(scan.flags, first.flags);
                        else
                                assert_true(scan.flags & KVR__SCAN_ERROR);
                }
        }
}

/* Every sequence of one to four bytes from the borders of UTF-8's tables, against the definition. */
static int utf8_by_definition(const unsigned char *p, size_t len)
{
        for (size_t i = 0; i < len;) {
                uint32_t v;
                size_t size = p[i] < 0x80       ? 1
                              : p[i] >> 5 == 6  ? 2
                              : p[i] >> 4 == 14 ? 3
                              : p[i] >> 3 == 30 ? 4
                                                : 0;

                if (!size || i + size > len)
                        return 0;
                v = size == 1 ? p[i] : p[i] & (0x7Fu >> size);
                for (size_t k = 1; k < size; k++) {
                        if (p[i + k] >> 6 != 2)
                                return 0;
                        v = v << 6 | (p[i + k] & 0x3Fu);
                }
                if (v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF) || (size == 2 && v < 0x80) ||
                    (size == 3 && v < 0x800) || (size == 4 && v < 0x10000))
                        return 0;
                i += size;
        }
        return 1;
}

static void test_utf8_borders(void **state)
{
        static const unsigned char borders[] = {0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                                0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED,
                                                0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
        const size_t n = sizeof(borders);

        (void)state;
        for (size_t code = 0; code < n * n * n * n; code++) {
                unsigned char seq[4] = {borders[code % n], borders[code / n % n], borders[code / n / n % n],
                                        borders[code / n / n / n]};
                size_t pad = code % 70;
                char room[ROOM];
                int good = utf8_by_definition(seq, 4);

                assert_int_equal(kvr__utf8_valid(seq, 4), good);
                memset(room, 'a', sizeof(room));
                memcpy(room + pad, seq, 4);
                room[pad + 4] = '"';
                assert_scan(room, pad + 5 + code % 60, (uint32_t)pad + 4, good ? 0 : KVR__SCAN_BAD_UTF8);
        }
}

static void test_canonical_and_decoded(void **state)
{
        static const struct {
                const char *body, *canonical, *decoded;
        } cases[] = {
                {"abc", "abc", "abc"},
                {"\\/", "/", "/"},
                {"\\u0041\\u00e9\\u20AC", "A\xC3\xA9\xE2\x82\xAC", "A\xC3\xA9\xE2\x82\xAC"},
                {"\\ud83d\\ude00", "\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
                {"\\u000a\\n", "\\n\\n", "\n\n"},
                {"\\u001F", "\\u001f", "\x1F"},
                {"\\u0022\\u005c", "\\\"\\\\", "\"\\"},
                {"\\u0008\\u000C\\u000d\\u0009", "\\b\\f\\r\\t", "\b\f\r\t"},
                {"\\u007f", "\x7F", "\x7F"},
                {"\\ud800", "\xED\xA0\x80", "\xED\xA0\x80"},
                {"\\ud800\\ud83d\\ude00\\udc00", "\xED\xA0\x80\xF0\x9F\x98\x80\xED\xB0\x80",
                 "\xED\xA0\x80\xF0\x9F\x98\x80\xED\xB0\x80"},
                {"\xC3\xA9\\t", "\xC3\xA9\\t", "\xC3\xA9\t"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                char out[64];
                uint32_t len = (uint32_t)strlen(cases[i].body);

                assert_int_equal(kvr__json_canonical(cases[i].body, len, out), strlen(cases[i].canonical));
                assert_memory_equal(out, cases[i].canonical, strlen(cases[i].canonical));
                assert_int_equal(kvr__json_decode(cases[i].body, len, out), strlen(cases[i].decoded));
                assert_memory_equal(out, cases[i].decoded, strlen(cases[i].decoded));
        }
}

/* A text in any spelling has one canonical form, which scans as canonical and decodes to the text. */
static void test_one_canonical_form(void **state)
{
        static const char *const bits[] = {"a",
                                           "\"",
                                           "\\",
                                           "/",
                                           "\n",
                                           "\x01",
                                           "\x1F",
                                           "\x7F",
                                           "\xC3\xA9",
                                           "\xE2\x82\xAC",
                                           "\xF0\x9F\x98\x80",
                                           "\t",
                                           "u",
                                           "0"};
        uint64_t rng = 9;

        (void)state;
        for (int round = 0; round < 3000; round++) {
                struct text plain = {0}, one = {0}, other = {0};
                char *a, *b;
                uint32_t len, len_b;

                put_string(&plain, "");
                for (uint64_t n = chance(&rng) % 100; n > 0; n--)
                        put_string(&plain, bits[chance(&rng) % (sizeof(bits) / sizeof(bits[0]))]);
                respell_string(&one, plain.data, plain.len, &rng, 0);
                respell_string(&other, plain.data, plain.len, &rng, 1);
                a = malloc(one.len);
                b = malloc(other.len);
                assert_non_null(a);
                assert_non_null(b);
                len = kvr__json_canonical(one.data + 1, (uint32_t)one.len - 2, a);
                len_b = kvr__json_canonical(other.data + 1, (uint32_t)other.len - 2, b);
                assert_int_equal(len, len_b);
                assert_memory_equal(a, b, len);
                a[len] = '"';
                assert_scan(a, len + 1, len, 0);
                assert_int_equal(kvr__json_decode(a, len, b), plain.len);
                assert_memory_equal(b, plain.data, plain.len);
                free(a);
                free(b);
                free_text(&plain);
                free_text(&one);
                free_text(&other);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_known_strings),         cmocka_unit_test(test_errors_at_every_place),
                cmocka_unit_test(test_every_escaped_byte),    cmocka_unit_test(test_no_closing_quote),
                cmocka_unit_test(test_all_scanners_agree),    cmocka_unit_test(test_utf8_borders),
                cmocka_unit_test(test_canonical_and_decoded), cmocka_unit_test(test_one_canonical_form),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
