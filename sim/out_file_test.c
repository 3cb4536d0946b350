/* SPDX-License-Identifier: Apache-2.0 */
#include "out_file.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64], path[96];

static int up(void **state)
{
        (void)state;
        snprintf(dir, sizeof(dir), "/tmp/out_file_test.XXXXXX");
        if (!mkdtemp(dir))
                return -1;
        snprintf(path, sizeof(path), "%s/page.html", dir);
        return 0;
}

static int down(void **state)
{
        (void)state;
        (void)unlink(path);
        return rmdir(dir);
}

/* "-": there is none. */
static const char *content(void)
{
        static char text[256];
        FILE *file = fopen(path, "r");

        if (!file)
                return "-";
        text[fread(text, 1, sizeof(text) - 1, file)] = 0;
        fclose(file);
        return text;
}

static void put(const char *text)
{
        struct sim_out_file file;
        struct sim_buf buf = {0};

        sim_buf_puts(&buf, text);
        assert_int_equal(sim_out_file_open(&file, path), 0);
        assert_int_equal(sim_out_file_write(&file, &buf), 0);
        sim_out_file_drop(&file);
        sim_buf_fini(&buf);
}

static void what_was_there_stays_until_it_is_written(void **state)
{
        struct sim_out_file file;

        (void)state;
        put("a long first page");
        assert_string_equal(content(), "a long first page");
        assert_int_equal(sim_out_file_open(&file, path), 0);
        assert_string_equal(content(), "a long first page");
        sim_out_file_drop(&file);
        assert_string_equal(content(), "a long first page");
        put("short");
        assert_string_equal(content(), "short");
}

static void a_new_one_that_is_not_written_goes(void **state)
{
        struct sim_out_file file;
        struct sim_buf failed = {.failed = true};

        (void)state;
        assert_int_equal(sim_out_file_open(&file, path), 0);
        assert_string_equal(content(), "");
        sim_out_file_drop(&file);
        assert_string_equal(content(), "-");
        assert_int_equal(sim_out_file_open(&file, path), 0);
        assert_int_equal(sim_out_file_write(&file, &failed), ENOMEM);
        assert_string_equal(content(), "-");
}

static void what_cannot_be_written_is_told_at_once(void **state)
{
        struct sim_out_file file;
        struct sim_buf buf = {0};

        (void)state;
        assert_int_equal(sim_out_file_open(&file, dir), EISDIR);
        assert_int_equal(sim_out_file_open(&file, "/no/such/page.html"), ENOENT);
        sim_out_file_drop(&file);
        assert_int_equal(sim_out_file_open(&file, NULL), 0);
        assert_int_equal(sim_out_file_write(&file, &buf), 0);
        sim_buf_puts(&buf, "text");
        assert_int_equal(sim_out_file_open(&file, "/dev/full"), 0);
        assert_int_equal(sim_out_file_write(&file, &buf), ENOSPC);
        sim_buf_fini(&buf);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(what_was_there_stays_until_it_is_written, up, down),
                cmocka_unit_test_setup_teardown(a_new_one_that_is_not_written_goes, up, down),
                cmocka_unit_test_setup_teardown(what_cannot_be_written_is_told_at_once, up, down),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
