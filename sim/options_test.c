/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

struct fields {
        bool stream, json;
        uint64_t count, size;
        double rate, time;
        const char *name, *api;
};

static const struct sim_option options[] = {
        SIM_OPTION_GROUP("All"),
        SIM_OPTION(struct fields, stream, "stream", SIM_OPT_FLAG, 0, 0, "", "on", "a flag that is on"),
        SIM_OPTION(struct fields, json, "json", SIM_OPT_FLAG, 0, 0, "", "off", "a flag that is off"),
        SIM_OPTION(struct fields, count, "count", SIM_OPT_COUNT, 1, 100, "N", "7", "a number"),
        SIM_OPTION(struct fields, size, "size", SIM_OPT_SIZE, 0, 1e12, "SIZE", "2KiB", "a size"),
        SIM_OPTION(struct fields, rate, "rate", SIM_OPT_NUMBER, 0, 10, "X", "1.5", "a rate"),
        SIM_OPTION(struct fields, time, "time", SIM_OPT_SECONDS, 0, 3600, "TIME", "1500ms", "a time"),
        SIM_OPTION(struct fields, name, "name", SIM_OPT_STRING, 0, 0, "NAME", "", "a text"),
        SIM_OPTION(struct fields, api, "api", SIM_OPT_CHOICE, 0, 0, "chat|completions", "chat", "a choice"),
};

static const struct sim_command command = {
        .name = "test",
        .arguments = "URL [FILE]",
        .summary = "Tests.",
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
        .positional_min = 1,
        .positional_max = 2,
};

struct parsed {
        enum sim_parse_result result;
        struct fields fields;
        const char *positional[2];
        unsigned count;
        char message[256];
};

/* Splits at blanks. */
static struct parsed parse(const char *line)
{
        static char copy[256];
        char *argv[16] = {(char *)(uintptr_t) "test"}, *rest = copy, *word;
        struct parsed p = {.message = ""};
        int argc = 1;

        assert_true(strlen(line) < sizeof(copy));
        memcpy(copy, line, strlen(line) + 1);
        while ((word = strsep(&rest, " ")))
                argv[argc++] = word;
        p.result = sim_options_parse(&command, argc, argv, &p.fields, p.positional, &p.count, p.message,
                                     sizeof(p.message));
        return p;
}

static void defaults_come_from_the_table(void **state)
{
        struct parsed p = parse("url");

        (void)state;
        assert_int_equal(p.result, SIM_PARSE_OK);
        assert_true(p.fields.stream);
        assert_false(p.fields.json);
        assert_int_equal(p.fields.count, 7);
        assert_int_equal(p.fields.size, 2048);
        assert_true(p.fields.rate == 1.5 && p.fields.time == 1.5);
        assert_null(p.fields.name);
        assert_string_equal(p.fields.api, "chat");
        assert_int_equal(p.count, 1);
        assert_string_equal(p.positional[0], "url");
}

static void values_are_read_in_both_forms(void **state)
{
        struct parsed p = parse("--count 9 --size=3MiB --no-stream --json --time 2m a --name=x=y --rate=.5 "
                                "--api completions -- --b");

        (void)state;
        assert_int_equal(p.result, SIM_PARSE_OK);
        assert_int_equal(p.fields.count, 9);
        assert_int_equal(p.fields.size, 3145728);
        assert_false(p.fields.stream);
        assert_true(p.fields.json);
        assert_true(p.fields.time == 120 && p.fields.rate == 0.5);
        assert_string_equal(p.fields.name, "x=y");
        assert_string_equal(p.fields.api, "completions");
        assert_int_equal(p.count, 2);
        assert_string_equal(p.positional[1], "--b");
        p = parse("u --stream=off --json=false --time 0");
        assert_int_equal(p.result, SIM_PARSE_OK);
        assert_false(p.fields.stream || p.fields.json);
        assert_true(p.fields.time == 0);
}

static void wrong_usage_names_option_value_and_fix(void **state)
{
        static const struct {
                const char *line, *message;
        } cases[] = {
                {"u --count 0", "--count: '0' is not a whole number from 1 to 100, as in --count 7"},
                {"u --count -3", "--count: '-3' is not a whole number from 1 to 100, as in --count 7"},
                {"u --count 101", "--count: '101' is not a whole number from 1 to 100, as in --count 7"},
                {"u --count 99999999999999999999999",
                 "--count: '99999999999999999999999' is not a whole number from 1 to 100, as in --count 7"},
                {"u --time 5", "--time: '5' is not a time like 500ms, 10s, 5m or 1h from 0 to 3600 seconds, "
                               "as in --time 1500ms"},
                {"u --size 1MB", "--size: '1MB' is not a size like 65536, 64KiB, 1MiB or 2GiB from 0 to "
                                 "1e+12, as in --size 2KiB"},
                {"u --rate nan", "--rate: 'nan' is not a number from 0 to 10, as in --rate 1.5"},
                {"u --api grpc", "--api: 'grpc' is not one of chat|completions, as in --api chat"},
                {"u --stream=maybe", "--stream: 'maybe' is not on or off, as in --stream on"},
                {"u --cuont 3", "unknown option --cuont; did you mean --count?"},
                {"u --zebra 3", "unknown option --zebra; kvroute test --help lists them all"},
                {"u --no-count", "unknown option --no-count; did you mean --count?"},
                {"u -x", "unknown option -x; options begin with two dashes"},
                {"u --name", "--name needs a value: text"},
                {"a b c", "'c' is one argument too many; usage: kvroute test [OPTIONS] URL [FILE]"},
                {"--json", "an argument is missing; usage: kvroute test [OPTIONS] URL [FILE]"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct parsed p = parse(cases[i].line);

                assert_int_equal(p.result, SIM_PARSE_USAGE);
                assert_string_equal(p.message, cases[i].message);
        }
}

static void help_shows_the_table(void **state)
{
        struct sim_buf page = {0};

        (void)state;
        assert_int_equal(parse("--help").result, SIM_PARSE_HELP);
        assert_int_equal(parse("--json -h --nonsense").result, SIM_PARSE_HELP);
        sim_options_help(&command, &page);
        sim_buf_add(&page, "", 1);
        assert_non_null(strstr(page.data, "Usage: kvroute test [OPTIONS] URL [FILE]\n"));
        assert_non_null(strstr(page.data, "\nAll:\n"));
        assert_non_null(strstr(page.data, "  --[no-]stream                 a flag that is on\n"));
        assert_non_null(strstr(page.data, "  --json                        a flag that is off\n"));
        assert_non_null(strstr(page.data, "  --time TIME                   a time (default: 1500ms)\n"));
        assert_non_null(strstr(page.data, "  --name NAME                   a text\n"));
        assert_null(strstr(page.data, " \n"));
        sim_buf_fini(&page);
}

static void endpoints(void **state)
{
        char host[32];
        uint16_t port = 0;

        (void)state;
        assert_true(sim_parse_endpoint("127.0.0.1:80", host, sizeof(host), &port));
        assert_string_equal(host, "127.0.0.1");
        assert_int_equal(port, 80);
        assert_true(sim_parse_endpoint("[::1]:0", host, sizeof(host), &port));
        assert_string_equal(host, "::1");
        assert_int_equal(port, 0);
        assert_true(sim_parse_endpoint(":8000", host, sizeof(host), &port));
        assert_string_equal(host, "0.0.0.0");
        assert_false(sim_parse_endpoint("localhost", host, sizeof(host), &port));
        assert_false(sim_parse_endpoint("::1:80", host, sizeof(host), &port));
        assert_false(sim_parse_endpoint("h:65536", host, sizeof(host), &port));
        assert_false(sim_parse_endpoint("h:", host, sizeof(host), &port));
        assert_false(sim_parse_endpoint("a-name-that-is-longer-than-the-room-for-it:1", host, sizeof(host),
                                        &port));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(defaults_come_from_the_table),
                cmocka_unit_test(values_are_read_in_both_forms),
                cmocka_unit_test(wrong_usage_names_option_value_and_fix),
                cmocka_unit_test(help_shows_the_table),
                cmocka_unit_test(endpoints),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
