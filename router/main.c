/* SPDX-License-Identifier: Apache-2.0 */
/* The program: one command each for what kvroute can do. */
#include <stdio.h>
#include <string.h>

#include "config.h"
#include "help.h"
#include "serve.h"
#include "sim/commands.h"

static int run_serve(int argc, char **argv)
{
        return serve_main(argc - 1, argv + 1);
}

static int run_check(int argc, char **argv)
{
        return config_check_main(argc - 1, argv + 1);
}

static const struct {
        const char *name;
        int (*run)(int argc, char **argv); /* argv[0] is the command */
} commands[] = {
        {"serve", run_serve},      {"check", run_check},        {"mock", sim_mock_main},
        {"bench", sim_bench_main}, {"demo", sim_demo_main},     {"simulate", sim_simulate_main},
        {"top", sim_top_main},     {"report", sim_report_main}, {"analyze", sim_analyze_main},
};

int main(int argc, char **argv)
{
        const char *word = argc > 1 ? argv[1] : "", *near;
        const char *names[sizeof commands / sizeof *commands];

        for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
                if (strcmp(word, commands[i].name) == 0)
                        return commands[i].run(argc - 1, argv + 1);
        }
        if (argc < 2) {
                fputs("kvroute: a command is missing: serve, check, mock, bench, demo, "
                      "simulate, analyze, top or report; see kvroute --help\n",
                      stderr);
                return 2;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
                help_main(stdout);
                return 0;
        }
        if (strcmp(word, "--version") == 0) {
                printf("kvroute %s\n", KVROUTE_VERSION);
                return 0;
        }
        if (strcmp(word, "--dump-man") == 0) {
                help_man(stdout);
                return 0;
        }
        if (strcmp(word, "--dump-docs") == 0 && argc > 2 && help_docs(stdout, argv[2]))
                return 0;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
                names[i] = commands[i].name;
        near = words_nearest((struct kvr_slice){word, strlen(word)}, names, sizeof names / sizeof *names);
        if (near)
                fprintf(stderr, "kvroute: no such command: %s; did you mean %s?\n", word, near);
        else
                fprintf(stderr, "kvroute: no such command: %s; see kvroute --help\n", word);
        return 2;
}
