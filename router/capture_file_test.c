/* SPDX-License-Identifier: Apache-2.0 */
/* Files of a capture: sizes, numbers, modes, and disks that are full. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "capture_file.h"
#include "proto/text.h"

static char dir[64], path[96];

static int up(void **state)
{
        (void)state;
        snprintf(dir, sizeof dir, "/tmp/capture_file_test.XXXXXX");
        if (!mkdtemp(dir))
                return -1;
        snprintf(path, sizeof path, "%s/file", dir);
        return 0;
}

static void numbered(char *ret, size_t size, unsigned number)
{
        if (number)
                snprintf(ret, size, "%s.%u", path, number);
        else
                snprintf(ret, size, "%s", path);
}

static int down(void **state)
{
        char name[128];

        (void)state;
        for (unsigned i = 0; i < 8; i++) {
                numbered(name, sizeof name, i);
                (void)unlink(name);
        }
        return rmdir(dir);
}

/* The content of FILE.number; "-": there is none. */
static const char *content(unsigned number)
{
        static char text[4096];
        char name[128];
        FILE *file;
        size_t len;

        numbered(name, sizeof name, number);
        file = fopen(name, "r");
        if (!file)
                return "-";
        len = fread(text, 1, sizeof text - 1, file);
        text[len] = '\0';
        fclose(file);
        return text;
}

static void put(struct capture_file *file, const char *lines, uint64_t max, unsigned files)
{
        size_t written;

        assert_int_equal(
                capture_file_write(file, (struct kvr_slice){lines, strlen(lines)}, max, files, &written), 0);
        assert_int_equal(written, strlen(lines));
}

static void test_up_to_its_size_to_the_byte(void **state)
{
        struct capture_file file;

        (void)state;
        assert_int_equal(capture_file_open(&file, path, true, 3), 0);
        put(&file, "aaaaaaaaa\n", 20, 3);
        put(&file, "bbbbbbbbb\n", 20, 3); /* just fits */
        assert_string_equal(content(0), "aaaaaaaaa\nbbbbbbbbb\n");
        assert_string_equal(content(1), "-");
        put(&file, "c\n", 20, 3);
        assert_string_equal(content(0), "c\n");
        assert_string_equal(content(1), "aaaaaaaaa\nbbbbbbbbb\n");
        /* Several lines at once are parted where they must be. */
        put(&file, "ddddddddd\neeeeeee\nfffffffff\n", 20, 3);
        assert_string_equal(content(0), "fffffffff\n");
        assert_string_equal(content(1), "c\nddddddddd\neeeeeee\n");
        assert_string_equal(content(2), "aaaaaaaaa\nbbbbbbbbb\n");
        put(&file, "ggggggggggg\n", 20, 3); /* the oldest goes */
        assert_string_equal(content(2), "c\nddddddddd\neeeeeee\n");
        assert_string_equal(content(3), "-");
        /* One that is longer than a file may be has one of its own. */
        put(&file, "hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh\ni\n", 20, 3);
        assert_string_equal(content(0), "i\n");
        assert_string_equal(content(1), "hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh\n");
        capture_file_close(&file);
}

/* Whoever comes second is told, whatever the first one does with its file; and nothing of it is touched. */
static void test_one_at_a_time(void **state)
{
        struct capture_file file, second;
        char moved[128];

        (void)state;
        assert_int_equal(capture_file_open(&file, path, true, 3), 0);
        put(&file, "aaaaaaaaa\n", 20, 3);
        assert_int_equal(capture_file_open(&second, path, true, 3), EBUSY);
        assert_string_equal(content(0), "aaaaaaaaa\n");
        assert_string_equal(content(1), "-");
        /* After a rotation, */
        put(&file, "bbbbbbbbbb\n", 20, 3);
        assert_string_equal(content(1), "aaaaaaaaa\n");
        assert_int_equal(capture_file_open(&second, path, true, 3), EBUSY);
        /* when it is opened again where it is, */
        assert_int_equal(capture_file_reopen(&file), 0);
        assert_int_equal(file.bytes, 11);
        assert_int_equal(capture_file_open(&second, path, true, 3), EBUSY);
        put(&file, "c\n", 20, 3);
        assert_string_equal(content(0), "bbbbbbbbbb\nc\n");
        /* and when it was moved away: then the new one is ours, and the old one nobody's. */
        numbered(moved, sizeof moved, 7);
        assert_int_equal(rename(path, moved), 0);
        assert_int_equal(capture_file_reopen(&file), 0);
        put(&file, "d\n", 20, 3);
        assert_string_equal(content(0), "d\n");
        assert_int_equal(capture_file_open(&second, path, true, 3), EBUSY);
        assert_int_equal(capture_file_open(&second, moved, false, 3), 0);
        capture_file_close(&second);
        capture_file_close(&file);
        assert_int_equal(capture_file_open(&second, path, true, 3), 0);
        assert_string_equal(content(1), "d\n");
        capture_file_close(&second);
}

/* Another one took the name while it was free: the old file stays in use, and is not lost. */
static void test_a_name_that_another_took(void **state)
{
        struct capture_file file, second;
        char moved[128];

        (void)state;
        assert_int_equal(capture_file_open(&file, path, true, 3), 0);
        put(&file, "a\n", 20, 3);
        numbered(moved, sizeof moved, 7);
        assert_int_equal(rename(path, moved), 0);
        assert_int_equal(capture_file_open(&second, path, true, 3), 0);
        assert_int_equal(capture_file_reopen(&file), EBUSY);
        put(&file, "b\n", 20, 3);
        assert_string_equal(content(7), "a\nb\n");
        assert_string_equal(content(0), "");
        capture_file_close(&second);
        capture_file_close(&file);
}

/* The same, and then the old one is full: the other's file is not put aside for it. */
static void test_the_file_of_another_is_not_moved(void **state)
{
        struct capture_file file, second;
        char moved[128];
        size_t written;

        (void)state;
        assert_int_equal(capture_file_open(&file, path, true, 3), 0);
        put(&file, "a\n", 4, 3);
        numbered(moved, sizeof moved, 7);
        assert_int_equal(rename(path, moved), 0);
        assert_int_equal(capture_file_open(&second, path, true, 3), 0);
        put(&second, "s\n", 4, 3);
        assert_int_equal(capture_file_write(&file, KVR_SLICE("bcd\n"), 4, 3, &written), EBUSY);
        assert_string_equal(content(0), "s\n");
        assert_string_equal(content(1), "-");
        capture_file_close(&second);
        capture_file_close(&file);
}

/* There is no new one to be had, however often it is tried: what was put aside stays where it is. */
static void test_no_new_file_to_be_had(void **state)
{
        struct rlimit limit, none;
        struct capture_file file;
        size_t written;

        (void)state;
        assert_int_equal(capture_file_open(&file, path, true, 3), 0);
        put(&file, "a\nb\nc\n", 2, 3);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
        none = limit;
        none.rlim_cur = 0;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        for (int i = 0; i < 5; i++)
                assert_int_equal(capture_file_write(&file, KVR_SLICE("d\n"), 2, 3, &written), EMFILE);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        assert_string_equal(content(0), "-");
        assert_string_equal(content(1), "c\n");
        assert_string_equal(content(2), "b\n");
        put(&file, "d\n", 2, 3);
        assert_string_equal(content(0), "d\n");
        assert_string_equal(content(1), "c\n");
        capture_file_close(&file);
}

static void test_one_file_is_begun_anew(void **state)
{
        struct capture_file file;

        (void)state;
        assert_int_equal(capture_file_open(&file, path, true, 1), 0);
        put(&file, "aaaaaaaaa\nbbbbbbbbb\nc\n", 20, 1);
        assert_string_equal(content(0), "c\n");
        assert_string_equal(content(1), "-");
        capture_file_close(&file);
}

static void test_an_earlier_one_is_put_aside(void **state)
{
        struct capture_file file;
        struct stat stat_of;

        (void)state;
        assert_int_equal(capture_file_open(&file, path, true, 4), 0);
        put(&file, "old\n", 100, 4);
        capture_file_close(&file);
        assert_int_equal(chmod(path, 0644), 0);
        assert_int_equal(capture_file_open(&file, path, true, 4), 0);
        put(&file, "new\n", 100, 4);
        assert_string_equal(content(0), "new\n");
        assert_string_equal(content(1), "old\n");
        assert_int_equal(stat(path, &stat_of), 0);
        assert_int_equal(stat_of.st_mode & 0777, 0600);
        capture_file_close(&file);
        /* Without `fresh` it goes on, and nobody else may read it any more. */
        assert_int_equal(chmod(path, 0666), 0);
        assert_int_equal(capture_file_open(&file, path, false, 4), 0);
        put(&file, "more\n", 100, 4);
        assert_string_equal(content(0), "new\nmore\n");
        assert_int_equal(stat(path, &stat_of), 0);
        assert_int_equal(stat_of.st_mode & 0777, 0600);
        capture_file_close(&file);
}

static void test_moved_away_and_opened_again(void **state)
{
        struct capture_file file;
        char name[128];

        (void)state;
        assert_int_equal(capture_file_open(&file, path, true, 4), 0);
        put(&file, "a\n", 100, 4);
        numbered(name, sizeof name, 7);
        assert_int_equal(rename(path, name), 0);
        put(&file, "b\n", 100, 4);
        assert_int_equal(capture_file_reopen(&file), 0);
        put(&file, "c\n", 100, 4);
        assert_string_equal(content(7), "a\nb\n");
        assert_string_equal(content(0), "c\n");
        capture_file_close(&file);
}

static void test_where_nothing_can_be_written(void **state)
{
        struct capture_file file;
        char name[128];

        (void)state;
        assert_int_equal(capture_file_open(&file, "/dev/full", true, 4), ENOSPC);
        assert_int_equal(capture_file_open(&file, dir, true, 4), EISDIR);
        snprintf(name, sizeof name, "%s/none/file", dir);
        assert_int_equal(capture_file_open(&file, name, true, 4), ENOENT);
        assert_int_equal(mkfifo(path, 0600), 0);
        assert_int_equal(capture_file_open(&file, path, true, 4), ENXIO); /* nobody reads, and nobody waits */
}

/* The disk is full in the middle of a line: it is taken back. */
static void test_no_torn_lines(void **state)
{
        struct capture_file file;
        struct rlimit before, limit;
        size_t written;

        (void)state;
        assert_int_equal(capture_file_open(&file, path, true, 4), 0);
        put(&file, "whole\n", 100, 4);
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        limit = (struct rlimit){10, before.rlim_max};
        (void)signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_int_equal(capture_file_write(&file, KVR_SLICE("longer\nthan\n"), 100, 4, &written), EFBIG);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(written, 0);
        assert_string_equal(content(0), "whole\n");
        put(&file, "again\n", 100, 4);
        assert_string_equal(content(0), "whole\nagain\n");
        capture_file_close(&file);
}

static void test_a_full_disk_and_room_again(void **state)
{
        struct capture_file file;
        size_t written;
        int full;

        (void)state;
        assert_int_equal(capture_file_open(&file, path, true, 4), 0);
        put(&file, "whole\n", 100, 4);
        full = open("/dev/full", O_WRONLY | O_CLOEXEC);
        assert_true(full >= 0);
        close(file.fd);
        file.fd = full;
        assert_int_equal(capture_file_write(&file, KVR_SLICE("lost\n"), 100, 4, &written), ENOSPC);
        assert_int_equal(written, 0);
        assert_int_equal(file.bytes, 6);
        assert_string_equal(content(0), "whole\n");
        assert_int_equal(capture_file_reopen(&file), 0);
        put(&file, "again\n", 100, 4);
        assert_string_equal(content(0), "whole\nagain\n");
        capture_file_close(&file);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_up_to_its_size_to_the_byte, up, down),
                cmocka_unit_test_setup_teardown(test_one_at_a_time, up, down),
                cmocka_unit_test_setup_teardown(test_a_name_that_another_took, up, down),
                cmocka_unit_test_setup_teardown(test_the_file_of_another_is_not_moved, up, down),
                cmocka_unit_test_setup_teardown(test_no_new_file_to_be_had, up, down),
                cmocka_unit_test_setup_teardown(test_one_file_is_begun_anew, up, down),
                cmocka_unit_test_setup_teardown(test_an_earlier_one_is_put_aside, up, down),
                cmocka_unit_test_setup_teardown(test_moved_away_and_opened_again, up, down),
                cmocka_unit_test_setup_teardown(test_where_nothing_can_be_written, up, down),
                cmocka_unit_test_setup_teardown(test_no_torn_lines, up, down),
                cmocka_unit_test_setup_teardown(test_a_full_disk_and_room_again, up, down),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
