/* SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "options.h"

static char *capture(void (*print)(FILE *out))
{
        char *text = NULL;
        size_t len = 0;
        FILE *out = open_memstream(&text, &len);

        assert_non_null(out);
        print(out);
        fclose(out);
        return text;
}

static void print_options(FILE *out)
{
        assert_true(help_docs(out, "options"));
}

static void print_metrics(FILE *out)
{
        assert_true(help_docs(out, "metrics"));
}

/* The committed page must be what the tables give. */
static void check_page(const char *name, void (*print)(FILE *out))
{
        const char *root = getenv("KVROUTE_SOURCE_ROOT");
        char path[1024];
        char *want = capture(print), *got = calloc(1, 256 * 1024);

        assert_non_null(got);
        snprintf(path, sizeof path, "%s/docs/%s.md", root ? root : ".", name);
        FILE *file = fopen(path, "rb");
        if (!file)
                fail_msg("cannot read %s", path);
        (void)!fread(got, 1, 256 * 1024 - 1, file);
        fclose(file);
        if (strcmp(want, got) != 0)
                fail_msg("docs/%s.md is out of date: kvroute --dump-docs %s > docs/%s.md", name, name, name);
        free(want);
        free(got);
}

static void test_docs_are_up_to_date(void **state)
{
        (void)state;
        check_page("options", print_options);
        check_page("metrics", print_metrics);
        assert_false(help_docs(stdout, "nothing"));
}

static void test_serve_help_has_every_option(void **state)
{
        (void)state;
        char *help = capture(help_serve), *man = capture(help_man);
        size_t count, longest = 0;
        const struct option_row *table = options_table(&count);

        for (size_t i = 0; i < count; i++) {
                char text[80];

                if (!table[i].name)
                        continue;
                snprintf(text, sizeof text, "  --%s", table[i].name);
                assert_non_null(strstr(help, text));
        }
        for (const char *line = help; *line; line += strcspn(line, "\n") + 1)
                longest = strcspn(line, "\n") > longest ? strcspn(line, "\n") : longest;
        assert_true(longest <= 100);
        assert_non_null(strstr(help, "POLICIES:\n  kv\n"));
        assert_non_null(strstr(man, ".SH NAME\nkvroute \\- "));
        assert_non_null(strstr(man, "\\fB\\-\\-max\\-body\\fR \\fISIZE\\fR\n"));
        free(help);
        free(man);
        help = capture(help_main);
        assert_non_null(strstr(help, "kvroute serve"));
        free(help);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_docs_are_up_to_date),
                cmocka_unit_test(test_serve_help_has_every_option),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
