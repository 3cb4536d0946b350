/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <yyjson.h>

#define SECOND 1000000000ull

struct fake {
        uint64_t now_ns, unix_ms;
        int fds[2];
        struct logger *logger;
        char text[16384];
};

static uint64_t fake_now(void *ctx)
{
        return ((struct fake *)ctx)->now_ns;
}

static uint64_t fake_unix(void *ctx)
{
        return ((struct fake *)ctx)->unix_ms;
}

static struct fake *fake_new(enum log_level level, bool json)
{
        struct fake *f = calloc(1, sizeof *f);

        assert_non_null(f);
        assert_int_equal(pipe(f->fds), 0);
        f->now_ns = 5 * SECOND;
        f->unix_ms = 1796069232007ull;
        struct log_options options = {level, json, f->fds[1], fake_now, fake_unix, f};
        f->logger = log_new(&options);
        assert_non_null(f->logger);
        return f;
}

/* Everything said so far; the logger's end of the pipe is closed. */
static const char *fake_end(struct fake *f)
{
        size_t len = 0;
        ssize_t n;

        close(f->fds[1]);
        while ((n = read(f->fds[0], f->text + len, sizeof f->text - 1 - len)) > 0)
                len += (size_t)n;
        close(f->fds[0]);
        log_free(f->logger);
        f->text[len] = 0;
        return f->text;
}

static void test_text(void **state)
{
        (void)state;
        struct fake *f = fake_new(LOG_INFO, false);

        log_say(f->logger, LOG_WARN, NULL, "replica %s: %d", "gpu-a", 7);
        log_say(f->logger, LOG_DEBUG, NULL, "not shown");
        log_say(f->logger, LOG_ERROR, NULL, "a\nb\x1b[1m");
        log_say(NULL, LOG_ERROR, NULL, "nowhere");
        log_set_level(f->logger, LOG_ERROR);
        log_say(f->logger, LOG_WARN, NULL, "not shown");
        assert_false(log_enabled(f->logger, LOG_WARN));
        assert_true(log_enabled(f->logger, LOG_ERROR));
        assert_string_equal(fake_end(f), "2026-11-30T20:07:12.007Z warn  replica gpu-a: 7\n"
                                         "2026-11-30T20:07:12.007Z error a b [1m\n");
        free(f);
}

static void test_json(void **state)
{
        (void)state;
        struct fake *f = fake_new(LOG_INFO, true);

        log_say(f->logger, LOG_INFO, NULL, "a \"b\"\n\xff %s", "c");
        const char *text = fake_end(f);
        yyjson_doc *doc = yyjson_read(text, strlen(text), 0);
        assert_non_null(doc);
        yyjson_val *root = yyjson_doc_get_root(doc);
        assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "time")), "2026-11-30T20:07:12.007Z");
        assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "level")), "info");
        assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "message")), "a \"b\"\n\xef\xbf\xbd c");
        yyjson_doc_free(doc);
        free(f);
}

static void test_repeats_are_counted(void **state)
{
        (void)state;
        struct fake *f = fake_new(LOG_INFO, false);

        for (int i = 0; i < 100; i++)
                log_say(f->logger, LOG_INFO, "a", "down %d", i);
        log_say(f->logger, LOG_INFO, "b", "down %d", -1);     /* another key */
        log_say(f->logger, LOG_INFO, "a", "another message"); /* another text */
        f->now_ns += LOG_REPEAT_NS - 1;
        log_say(f->logger, LOG_INFO, "a", "down %d", 200);
        f->now_ns += 1;
        log_say(f->logger, LOG_INFO, "a", "down %d", 201);
        log_say(f->logger, LOG_INFO, "a", "down %d", 202);
        log_clear(f->logger, "a", "down %d");
        log_clear(f->logger, "unknown", "down %d");
        log_say(f->logger, LOG_INFO, "a", "down %d", 203);
        const char *t = "2026-11-30T20:07:12.007Z info  ";
        char want[1024];
        snprintf(
                want, sizeof want,
                "%sdown 0\n%sdown -1\n%sanother message\n%sdown 201 (100 more like this since)\n%sdown 203\n",
                t, t, t, t, t);
        assert_string_equal(fake_end(f), want);
        free(f);
}

/* More keys than are remembered: the oldest makes room, the table does not grow. */
static void test_many_keys(void **state)
{
        (void)state;
        struct fake *f = fake_new(LOG_ERROR, false);
        char key[32];

        for (int round = 0; round < 2; round++)
                for (int i = 0; i < 2 * LOG_KEYS_MAX; i++) {
                        snprintf(key, sizeof key, "%d", i);
                        f->now_ns++;
                        log_say(f->logger, LOG_INFO, key,
                                "x"); /* below the level: must not push others out */
                }
        log_say(f->logger, LOG_ERROR, "first", "e%d", 1);
        log_say(f->logger, LOG_ERROR, "first", "e%d", 2);
        for (int i = 0; i < LOG_KEYS_MAX; i++) {
                snprintf(key, sizeof key, "%d", i);
                f->now_ns++;
                log_say(f->logger, LOG_ERROR, key, "k");
        }
        log_say(f->logger, LOG_ERROR, "first", "e%d", 3);
        char buf[4096];
        size_t lines = 0, bytes = 0;
        ssize_t n;
        bool third = false;
        close(f->fds[1]);
        while ((n = read(f->fds[0], buf, sizeof buf - 1)) > 0) {
                buf[n] = 0;
                for (ssize_t i = 0; i < n; i++)
                        lines += buf[i] == '\n';
                bytes += (size_t)n;
                third |= strstr(buf, "error e3") != NULL;
        }
        close(f->fds[0]);
        log_free(f->logger);
        free(f);
        assert_int_equal(lines, LOG_KEYS_MAX + 2);
        assert_true(bytes > 0);
        assert_true(third);
}

static void test_long_message(void **state)
{
        (void)state;
        struct fake *f = fake_new(LOG_INFO, false);
        char text[3 * LOG_LINE_MAX];

        memset(text, 'x', sizeof text - 1);
        text[sizeof text - 1] = 0;
        log_say(f->logger, LOG_INFO, NULL, "%s", text);
        const char *said = fake_end(f);
        assert_int_equal(strlen(said), 31 + LOG_LINE_MAX - 1 + 1);
        assert_int_equal(said[strlen(said) - 1], '\n');
        free(f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_text),
                cmocka_unit_test(test_json),
                cmocka_unit_test(test_repeats_are_counted),
                cmocka_unit_test(test_many_keys),
                cmocka_unit_test(test_long_message),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
