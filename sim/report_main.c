/* SPDX-License-Identifier: Apache-2.0 */
/* The command `kvroute report`. */
#include "ask.h"
#include "commands.h"
#include "options.h"
#include "out_file.h"
#include "report.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct arguments {
        const char *window, *html, *token_file;
        uint64_t min_requests;
        double price;
        bool json;
};

#define O(field, name, type, min, max, word, fallback, help) \
        SIM_OPTION(struct arguments, field, name, type, min, max, word, fallback, help)

static const struct sim_option options[] = {
        SIM_OPTION_GROUP("Figures"),
        O(window, "window", SIM_OPT_CHOICE, 0, 0, "1m|10m|1h|life", "life",
          "how far back the account reaches"),
        O(min_requests, "min-requests", SIM_OPT_COUNT, 1, 1000000000, "N", "200",
          "with a known prompt that a report needs: fewer say little"),
        O(price, "price", SIM_OPT_NUMBER, 0, 1e9, "X", "0",
          "of a replica for an hour, in any currency; 0: none"),
        O(token_file, "token-file", SIM_OPT_STRING, 0, 0, "FILE", "",
          "holds the router's admin token; without, the environment's KVROUTE_ADMIN_TOKEN"),
        SIM_OPTION_GROUP("Output"),
        O(json, "json", SIM_OPT_FLAG, 0, 0, "", "off", "results as JSON on stdout"),
        O(html, "html", SIM_OPT_STRING, 0, 0, "FILE", "",
          "also a page with the verdict and plots, self-contained"),
};
#undef O

static const struct sim_command command = {
        .name = "report",
        .arguments = "[ADMIN-URL]",
        .summary =
                "Says of a running router whether cache-aware routing is worth it for the traffic that it "
                "has\n"
                "seen: what was reused, what simpler rules would have reused of the same requests, and what\n"
                "the difference may cost. ADMIN-URL is " SIM_ASK_URL " if not given.",
        .examples = "  kvroute report\n"
                    "  kvroute report http://router-1:8081 --window 1h --price 7.50 --html report.html\n"
                    "  kvroute report --json | jq '.workloads[] | {name, predicted_share, observed_share}'\n",
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
        .positional_min = 0,
        .positional_max = 1,
};

static int complain(const char *what)
{
        fprintf(stderr, "kvroute report: %s\n", what);
        return 1;
}

static bool fetch(const struct sim_ask *ask, struct sim_live *live, char *message, size_t size)
{
        enum sim_ask_status status = SIM_ASK_OK;

        for (int i = 0; status == SIM_ASK_OK && i < SIM_LIVE_PAGES; i++)
                status = sim_ask_get(ask, sim_live_path((enum sim_live_page)i), &live->pages[i], message,
                                     size);
        return status == SIM_ASK_OK;
}

static int page_error(const char *path, int error)
{
        char message[512];

        snprintf(message, sizeof message, "--html: cannot write %s: %s", path, strerror(error));
        return complain(message);
}

static int write_page(const struct sim_live *live, const struct arguments *a, struct sim_out_file *page)
{
        struct sim_buf buf = {0};
        int error;

        if (!a->html)
                return 0;
        sim_live_html(live, &buf);
        error = sim_out_file_write(page, &buf);
        sim_buf_fini(&buf);
        return error ? page_error(a->html, error) : 0;
}

static int write_output(const struct sim_live *live, const struct arguments *a, struct sim_out_file *page)
{
        struct sim_buf buf = {0};
        bool good;

        if (a->json)
                sim_live_json(live, &buf);
        else
                sim_live_text(live, &buf);
        good = !buf.failed && fwrite(buf.data, 1, buf.len, stdout) == buf.len && fflush(stdout) == 0;
        sim_buf_fini(&buf);
        if (!good)
                return complain("cannot write the results");
        return write_page(live, a, page);
}

int sim_report_main(int argc, char **argv)
{
        struct arguments arguments;
        struct sim_live live = {0};
        struct sim_ask ask;
        const char *positional[1] = {NULL};
        unsigned count = 0;
        char message[1600] = "";
        int status = sim_options_main(&command, argc, argv, &arguments, positional, &count);
        enum sim_ask_status asked;
        struct sim_out_file page;
        int error;

        if (status >= 0)
                return status;
        live.url = count ? positional[0] : SIM_ASK_URL;
        live.window = arguments.window;
        live.price = arguments.price;
        live.made_at = (int64_t)time(NULL);
        asked = sim_ask_begin(live.url, arguments.token_file, &ask, message, sizeof message);
        if (asked == SIM_ASK_USAGE)
                return sim_usage_error(&command, "%s", message);
        (void)signal(SIGPIPE, SIG_IGN);
        error = sim_out_file_open(&page, arguments.html);
        if (error)
                return page_error(arguments.html, error);
        if (asked == SIM_ASK_OK && fetch(&ask, &live, message, sizeof message) &&
            sim_live_read(&live, arguments.min_requests, message, sizeof message) == SIM_LIVE_OK)
                status = write_output(&live, &arguments, &page);
        else
                status = complain(message);
        sim_out_file_drop(&page);
        sim_live_fini(&live);
        return status;
}
