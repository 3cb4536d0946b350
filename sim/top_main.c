/* SPDX-License-Identifier: Apache-2.0 */
/* The command `kvroute top`. */
#include "ask.h"
#include "commands.h"
#include "options.h"
#include "top.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define OTHER_LINES  12 /* of a screen, besides alarms, replicas and workloads */
#define ENTER_SCREEN "\033[?1049h\033[?25l"
#define LEAVE_SCREEN "\033[?25h\033[?1049l"

struct arguments {
        const char *window, *token_file;
        double interval;
        bool once, json;
};

#define O(field, name, type, min, max, word, fallback, help) \
        SIM_OPTION(struct arguments, field, name, type, min, max, word, fallback, help)

static const struct sim_option options[] = {
        SIM_OPTION_GROUP("Figures"),
        O(window, "window", SIM_OPT_CHOICE, 0, 0, "1m|10m|1h|life", "10m",
          "how far back the account reaches"),
        O(interval, "interval", SIM_OPT_SECONDS, 0.1, 3600, "TIME", "1s", "between two looks"),
        O(token_file, "token-file", SIM_OPT_STRING, 0, 0, "FILE", "",
          "holds the router's admin token; without, the environment's KVROUTE_ADMIN_TOKEN"),
        SIM_OPTION_GROUP("Output"),
        O(once, "once", SIM_OPT_FLAG, 0, 0, "", "off", "one look, for scripts"),
        O(json, "json", SIM_OPT_FLAG, 0, 0, "", "off",
          "one JSON object per look and line, with the admin API's own fields"),
};
#undef O

static const struct sim_command command = {
        .name = "top",
        .arguments = "[ADMIN-URL]",
        .summary = "Shows a running router in the terminal: alarms, what was reused and what simpler rules\n"
                   "would have reused, workloads, replicas. ADMIN-URL is " SIM_ASK_URL " if not given.",
        .examples = "  kvroute top\n"
                    "  kvroute top http://router-1:8081 --window 1h\n"
                    "  kvroute top --once --json | jq '.accounts.all[0].windows[\"10m\"].won_tokens'\n",
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
        .positional_min = 0,
        .positional_max = 1,
};

/* ---- asking ---- */

/* ret: what came, also on failure. */
static enum sim_ask_status look(const struct sim_ask *ask, struct sim_top *ret, char *message, size_t size)
{
        enum sim_ask_status status = SIM_ASK_OK;

        for (int i = 0; status == SIM_ASK_OK && i < SIM_TOP_PAGES; i++)
                status = sim_ask_get(ask, sim_top_path((enum sim_top_page)i), &ret->pages[i], message, size);
        return status;
}

/* ---- showing ---- */

static void fit_terminal(const struct sim_top *top, struct sim_top_look *ret)
{
        struct winsize size = {0};
        size_t used =
                OTHER_LINES + sim_top_shadow_lines(top) +
                yyjson_arr_size(yyjson_doc_get_root(top->pages[SIM_TOP_REPLICAS])) +
                yyjson_arr_size(yyjson_obj_get(yyjson_doc_get_root(top->pages[SIM_TOP_ALARMS]), "alarms"));

        if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
                return;
        ret->width = size.ws_col - 1u; /* behind the last column the rest of a line cannot be cleared */
        ret->workloads = size.ws_row > used + 3 ? (unsigned)(size.ws_row - used) : 3;
}

/* Over what is there, so that nothing flickers: each line clears its rest, the last one what is below. */
static void draw(const struct sim_buf *text)
{
        const char *at = text->data, *end = text->data + text->len;

        fputs("\033[H", stdout);
        while (at < end) {
                const char *line = memchr(at, '\n', (size_t)(end - at));

                fwrite(at, 1, (size_t)((line ? line : end) - at), stdout);
                fputs("\033[K", stdout);
                /* Without the last line's end: it would scroll a full screen. */
                if (line && line + 1 < end)
                        putchar('\n');
                at = line ? line + 1 : end;
        }
        fputs("\033[J", stdout);
}

static bool show(const struct sim_top *top, const struct arguments *a, const char *url, bool screen)
{
        struct sim_top_look view = {.url = url, .window = a->window, .colour = screen};
        struct sim_buf text = {0};
        bool good = true;

        if (a->json) {
                good = sim_top_json(top, a->window, &text);
        } else {
                if (screen)
                        fit_terminal(top, &view);
                sim_top_text(top, &view, &text);
        }
        good = good && !text.failed;
        if (good && screen)
                draw(&text);
        else if (good)
                good = fwrite(text.data, 1, text.len, stdout) == text.len &&
                       (a->json || a->once || puts("") >= 0);
        good = good && fflush(stdout) == 0;
        sim_buf_fini(&text);
        return good;
}

/* ---- running ---- */

/* SIGINT and SIGTERM are blocked but for this wait. True: one came. */
static bool wait_or_signal(const sigset_t *signals, double s)
{
        struct timespec time = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
        int number;

        do
                number = sigtimedwait(signals, NULL, &time);
        while (number < 0 && errno == EINTR);
        return number >= 0;
}

/* Looks until a signal comes, or once; returns the exit status. */
static int watch(const struct sim_ask *ask, const struct arguments *a, const char *url, bool screen,
                 char *message, size_t size)
{
        bool final = false, seen = false;
        sigset_t signals;

        sigemptyset(&signals);
        sigaddset(&signals, SIGINT);
        sigaddset(&signals, SIGTERM);
        sigprocmask(SIG_BLOCK, &signals, NULL);
        do {
                struct sim_top top = {0};
                enum sim_ask_status status = look(ask, &top, message, size);
                bool good = status == SIM_ASK_OK;

                final = status == SIM_ASK_FINAL;
                if (good && !show(&top, a, url, screen)) {
                        snprintf(message, size, "cannot write: %s", strerror(errno));
                        good = false;
                        final = true;
                }
                sim_top_fini(&top);
                if (!good && (final || a->once || !seen))
                        return 1;
                if (!good && screen) {
                        printf("\033[H\033[7m%s\033[0m\033[K", message);
                        fflush(stdout);
                } else if (!good) {
                        fprintf(stderr, "kvroute top: %s\n", message);
                }
                seen = true;
        } while (!a->once && !wait_or_signal(&signals, a->interval));
        return 0;
}

int sim_top_main(int argc, char **argv)
{
        struct arguments arguments;
        struct sim_ask ask;
        const char *positional[1] = {NULL};
        unsigned count = 0;
        char message[1600] = "";
        bool screen;
        int status = sim_options_main(&command, argc, argv, &arguments, positional, &count);
        const char *url = count ? positional[0] : SIM_ASK_URL;
        enum sim_ask_status asked;

        if (status >= 0)
                return status;
        asked = sim_ask_begin(url, arguments.token_file, &ask, message, sizeof message);
        if (asked == SIM_ASK_USAGE)
                return sim_usage_error(&command, "%s", message);
        if (asked != SIM_ASK_OK) {
                fprintf(stderr, "kvroute top: %s\n", message);
                return 1;
        }
        (void)signal(SIGPIPE, SIG_IGN);
        screen = !arguments.once && !arguments.json && isatty(STDOUT_FILENO);
        if (screen)
                fputs(ENTER_SCREEN, stdout);
        status = watch(&ask, &arguments, url, screen, message, sizeof message);
        if (screen) {
                fputs(LEAVE_SCREEN, stdout);
                fflush(stdout);
        }
        if (status)
                fprintf(stderr, "kvroute top: %s\n", message);
        return status;
}
