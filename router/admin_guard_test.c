/* SPDX-License-Identifier: Apache-2.0 */
#include "admin_guard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct row {
        const char *fields;
        enum admin_guard expected;
};

static enum admin_guard ask(const char *fields, bool has_body, bool token)
{
        char text[512];
        struct http1_parser parser;
        struct http1_head head;
        size_t used;
        struct admin_guard_source source = {
                .head = &head, .has_body = has_body, .token = token, .names = {"gpu-box.lan", NULL, ""}};

        snprintf(text, sizeof text, "POST /kvroute/replicas HTTP/1.1\r\n%s\r\n", fields);
        http1_init(&parser, HTTP1_REQUEST);
        assert_int_equal(http1_head(&parser, text, strlen(text), &head, &used), HTTP1_DONE);
        return admin_guard(&source);
}

static void check(const struct row *rows, size_t count, bool has_body, bool token)
{
        for (size_t i = 0; i < count; i++) {
                enum admin_guard got = ask(rows[i].fields, has_body, token);

                if (got != rows[i].expected)
                        fail_msg("%s: %d, not %d", rows[i].fields, got, rows[i].expected);
        }
}

#define CHECK(rows, has_body, token) check(rows, sizeof(rows) / sizeof *(rows), has_body, token)

static void names_that_are_not_ours_are_refused(void **state)
{
        static const struct row rows[] = {
                {"Host: 127.0.0.1:8081\r\n", ADMIN_GUARD_FINE},
                {"Host: 10.1.2.3\r\n", ADMIN_GUARD_FINE},
                {"Host: [::1]:8081\r\n", ADMIN_GUARD_FINE},
                {"Host: localhost:9000\r\n", ADMIN_GUARD_FINE},
                {"Host: LOCALHOST\r\n", ADMIN_GUARD_FINE},
                {"Host: kv.localhost:1\r\n", ADMIN_GUARD_FINE},
                {"Host: gpu-box.lan:8081\r\n", ADMIN_GUARD_FINE},
                {"Host: evil.example:8081\r\n", ADMIN_GUARD_HOST},
                {"Host: evil.example\r\nOrigin: http://evil.example\r\n", ADMIN_GUARD_HOST},
                {"Host: 127.0.0.1.evil.example\r\n", ADMIN_GUARD_HOST},
                {"Host: notlocalhost\r\n", ADMIN_GUARD_HOST},
                {"Host: localhost.evil.example\r\n", ADMIN_GUARD_HOST},
                {"Host: gpu-box.lan.evil\r\n", ADMIN_GUARD_HOST},
                {"Host: [evil]:1\r\n", ADMIN_GUARD_HOST},
                {"Host: .localhost\r\n", ADMIN_GUARD_HOST},
        };

        (void)state;
        CHECK(rows, false, false);
}

static void pages_of_other_origins_are_refused(void **state)
{
        static const struct row rows[] = {
                {"Host: 127.0.0.1:8081\r\nOrigin: http://127.0.0.1:8081\r\n", ADMIN_GUARD_FINE},
                {"Host: localhost:8081\r\nOrigin: http://LOCALHOST:8081\r\n", ADMIN_GUARD_FINE},
                {"Host: [::1]:8081\r\nOrigin: http://[::1]:8081\r\n", ADMIN_GUARD_FINE},
                {"Host: gpu-box.lan\r\nOrigin: https://gpu-box.lan\r\n", ADMIN_GUARD_FINE},
                {"Host: 127.0.0.1:8081\r\nOrigin: http://127.0.0.1:8080\r\n", ADMIN_GUARD_ORIGIN},
                {"Host: 127.0.0.1:8081\r\nOrigin: http://localhost:8081\r\n", ADMIN_GUARD_ORIGIN},
                {"Host: 127.0.0.1:8081\r\nOrigin: https://evil.example\r\n", ADMIN_GUARD_ORIGIN},
                {"Host: 127.0.0.1:8081\r\nOrigin: null\r\n", ADMIN_GUARD_ORIGIN},
                {"Host: 127.0.0.1:8081\r\nOrigin: \r\n", ADMIN_GUARD_ORIGIN},
                {"Host: 127.0.0.1:8081\r\nOrigin: ftp://127.0.0.1:8081\r\n", ADMIN_GUARD_ORIGIN},
        };

        (void)state;
        CHECK(rows, false, false);
        assert_int_equal(ask("Host: 127.0.0.1\r\nOrigin: http://127.0.0.1x\r\n", false, true),
                         ADMIN_GUARD_ORIGIN);
}

static void the_token_makes_any_name_ours(void **state)
{
        (void)state;
        assert_int_equal(ask("Host: kvroute.prod.svc:8081\r\n", false, false), ADMIN_GUARD_HOST);
        assert_int_equal(ask("Host: kvroute.prod.svc:8081\r\n", false, true), ADMIN_GUARD_FINE);
        assert_int_equal(ask("Host: a:1\r\nOrigin: http://b:1\r\n", false, true), ADMIN_GUARD_ORIGIN);
}

static void a_body_is_json_and_says_so(void **state)
{
        static const struct row rows[] = {
                {"Host: 127.0.0.1\r\nContent-Type: application/json\r\n", ADMIN_GUARD_FINE},
                {"Host: 127.0.0.1\r\nContent-Type: Application/JSON; charset=utf-8\r\n", ADMIN_GUARD_FINE},
                {"Host: 127.0.0.1\r\n", ADMIN_GUARD_TYPE},
                {"Host: 127.0.0.1\r\nContent-Type: text/plain\r\n", ADMIN_GUARD_TYPE},
                {"Host: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n", ADMIN_GUARD_TYPE},
                {"Host: 127.0.0.1\r\nContent-Type: application/jsonp\r\n", ADMIN_GUARD_TYPE},
                {"Host: 127.0.0.1\r\nContent-Type: text/plain; application/json\r\n", ADMIN_GUARD_TYPE},
        };

        (void)state;
        CHECK(rows, true, false);
        assert_int_equal(ask("Host: 127.0.0.1\r\n", false, false), ADMIN_GUARD_FINE);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(names_that_are_not_ours_are_refused),
                cmocka_unit_test(pages_of_other_origins_are_refused),
                cmocka_unit_test(the_token_makes_any_name_ours),
                cmocka_unit_test(a_body_is_json_and_says_so),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
