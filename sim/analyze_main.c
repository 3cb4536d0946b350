/* SPDX-License-Identifier: Apache-2.0 */
/* The command `kvroute analyze`: is cache-aware routing worth it for this traffic? */
#include "analyze.h"
#include "analyze_log.h"
#include "commands.h"
#include "des.h"
#include "options.h"
#include "out_file.h"
#include "simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FILES_MAX 8

struct arguments {
        const char *preset, *from, *to, *target, *html;
        uint64_t replicas, capacity_tokens, block_tokens, threads;
        double price, load;
        bool json, progress;
};

#define O(field, name, type, min, max, word, fallback, help) \
        SIM_OPTION(struct arguments, field, name, type, min, max, word, fallback, help)

static const struct sim_option options[] = {
        SIM_OPTION_GROUP("The fleet"),
        O(replicas, "replicas", SIM_OPT_COUNT, 1, SIM_ANALYZE_SHARES_MAX, "N", "8",
          "that serve this traffic"),
        O(capacity_tokens, "capacity-tokens", SIM_OPT_COUNT, 1, 1e12, "N", "2048000",
          "that the cache of each replica holds"),
        O(preset, "preset", SIM_OPT_STRING, 0, 0, "NAME", "llama3-70b-h100",
          "how long an engine's work takes, as for kvroute mock"),
        O(load, "load", SIM_OPT_NUMBER, 0, 1000, "X", "0",
          "prefill work offered, if nothing were cached, over what the replicas can do; 0: what the preset "
          "and the "
          "trace's own pace make it"),
        SIM_OPTION_GROUP("The judgement"),
        O(target, "ttft-target", SIM_OPT_STRING, 0, 0, "TIME", "auto",
          "to keep the 90th percentile of the time to first token within; auto: 10s, or more where an idle "
          "fleet "
          "already needs more than half of that"),
        O(price, "price", SIM_OPT_NUMBER, 0, 1e9, "X", "0",
          "of a replica for an hour, in any currency; 0: none"),
        SIM_OPTION_GROUP("Trace"),
        O(from, "from", SIM_OPT_STRING, 0, 0, "SECONDS", "0", "leave out rows before"),
        O(to, "to", SIM_OPT_STRING, 0, 0, "SECONDS", "0", "leave out rows from here on; 0: to the end"),
        O(block_tokens, "block-tokens", SIM_OPT_COUNT, 0, 1048576, "N", "0",
          "tokens per block id; 0: found out (512 for tables of lengths)"),
        SIM_OPTION_GROUP("Output"),
        O(json, "json", SIM_OPT_FLAG, 0, 0, "", "off", "results as JSON on stdout"),
        O(html, "html", SIM_OPT_STRING, 0, 0, "FILE", "",
          "also a page with the verdict and plots, self-contained"),
        O(threads, "threads", SIM_OPT_COUNT, 0, 256, "N", "0",
          "rules computed at once; 0: one per processor"),
        O(progress, "progress", SIM_OPT_FLAG, 0, 0, "", "on", "show progress on stderr"),
};
#undef O

static const struct sim_command command = {
        .name = "analyze",
        .arguments = "FILE...",
        .summary =
                "Says whether cache-aware routing is worth it for the traffic of a trace: what can be "
                "reused, what "
                "each\n"
                "rule from round robin to engine events would make of it, and what each step up is worth.\n"
                "FILE is any trace that kvroute simulate reads, or an access log of kvroute serve: that "
                "has no keys, so\n"
                "there is an account and a bound, and no ladder.",
        .examples = "  kvroute analyze conversation.jsonl.gz\n"
                    "  kvroute analyze --replicas 16 --price 7.50 --html report.html conversation.jsonl.gz\n"
                    "  kvroute analyze --load 1.0 --ttft-target 5s lengths.csv\n",
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
        .positional_min = 1,
        .positional_max = FILES_MAX,
};

struct analyze {
        struct arguments arguments;
        const char *paths[FILES_MAX];
        unsigned path_count;
        struct sim_analyze_options how;
        struct sim_trace_options trace_how;
        /* One per file, either of a trace or of an access log. */
        struct sim_report *reports;
        struct sim_log *logs;
        struct sim_out_file page;
        bool is_log[FILES_MAX];
        unsigned count;
};

/* ---- arguments: -1 to go on, else the exit status ----------------------------------------------------- */

static int parse_target(struct analyze *analyze)
{
        const char *text = analyze->arguments.target ? analyze->arguments.target : "";

        if (strcmp(text, "auto") == 0)
                return -1;
        if (!sim_simulate_seconds(text, &analyze->how.ttft_target_s) || analyze->how.ttft_target_s <= 0)
                return sim_usage_error(&command, "--ttft-target: '%s' is not auto or a time like 10s", text);
        return -1;
}

static int parse_times(struct analyze *analyze)
{
        const struct arguments *a = &analyze->arguments;
        struct sim_trace_options *how = &analyze->trace_how;

        if (!a->from || !sim_simulate_seconds(a->from, &how->from_s))
                return sim_usage_error(&command, "--from: '%s' is not a time like 7200 or 2h",
                                       a->from ? a->from : "");
        if (!a->to || !sim_simulate_seconds(a->to, &how->to_s))
                return sim_usage_error(&command, "--to: '%s' is not a time like 14400 or 4h",
                                       a->to ? a->to : "");
        if (how->to_s > 0 && how->to_s <= how->from_s)
                return sim_usage_error(&command, "--to: %s is not behind --from %s", a->to, a->from);
        how->block_tokens = (uint32_t)a->block_tokens;
        return -1;
}

static int parse(struct analyze *analyze)
{
        const struct arguments *a = &analyze->arguments;
        long processors = sysconf(_SC_NPROCESSORS_ONLN);
        int status = parse_times(analyze);

        if (status < 0)
                status = parse_target(analyze);
        if (status >= 0)
                return status;
        analyze->how.cost = sim_cost_find(a->preset ? a->preset : "");
        if (!analyze->how.cost)
                return sim_usage_error(&command,
                                       "--preset: there is no '%s'; kvroute mock --help lists the presets",
                                       a->preset ? a->preset : "");
        analyze->how.replicas = (uint32_t)a->replicas;
        analyze->how.capacity_tokens = a->capacity_tokens;
        analyze->how.load = a->load;
        analyze->how.price = a->price;
        analyze->how.threads = (uint32_t)(a->threads       ? a->threads
                                          : processors > 0 ? (uint64_t)processors
                                                           : 1);
        analyze->how.plots = a->html != NULL;
        analyze->how.quiet = !a->progress;
        return -1;
}

/* ---- reports ------------------------------------------------------------------------------------------ */

static const char *base_name(const char *path)
{
        const char *slash = strrchr(path, '/');

        return slash && slash[1] ? slash + 1 : path;
}

static int complain(const char *what)
{
        fprintf(stderr, "kvroute analyze: %s\n", what);
        return 1;
}

static int report_file(struct analyze *analyze, const char *path)
{
        unsigned at = analyze->count;
        struct sim_trace trace;
        char message[512];
        bool good;

        if (sim_log_is(path)) {
                if (!sim_log_read(path, base_name(path), &analyze->trace_how, analyze->how.cost,
                                  &analyze->logs[at], message, sizeof(message)))
                        return complain(message);
                analyze->is_log[analyze->count++] = true;
                return -1;
        }
        if (!sim_trace_read(path, &analyze->trace_how, &trace, message, sizeof(message)))
                return complain(message);
        good = sim_report_make(&trace, base_name(path), &analyze->how, &analyze->reports[at], message,
                               sizeof(message));
        sim_trace_fini(&trace);
        if (!good)
                return complain(message);
        analyze->count++;
        return -1;
}

static void build_one(const struct analyze *analyze, unsigned at, struct sim_buf *buf)
{
        if (analyze->is_log[at] && analyze->arguments.json)
                sim_log_json(&analyze->logs[at], buf);
        else if (analyze->is_log[at])
                sim_log_text(&analyze->logs[at], buf);
        else if (analyze->arguments.json)
                sim_report_json(&analyze->reports[at], buf);
        else
                sim_report_text(&analyze->reports[at], buf);
}

static void build_output(const struct analyze *analyze, struct sim_buf *buf)
{
        bool json = analyze->arguments.json, many = analyze->count > 1;

        if (json && many)
                sim_buf_puts(buf, "{\"reports\":[");
        for (unsigned i = 0; i < analyze->count; i++) {
                if (!json && i)
                        sim_buf_puts(buf, "\n");
                build_one(analyze, i, buf);
        }
        if (json)
                sim_buf_puts(buf, many ? "]}\n" : "\n");
}

static int write_output(const struct analyze *analyze)
{
        struct sim_buf buf = {0};
        bool good;

        build_output(analyze, &buf);
        good = !buf.failed && fwrite(buf.data, 1, buf.len, stdout) == buf.len && fflush(stdout) == 0;
        sim_buf_fini(&buf);
        return good ? -1 : complain("cannot write the results");
}

static int page_error(const struct analyze *analyze, int error)
{
        char message[512];

        snprintf(message, sizeof(message), "--html: cannot write %s: %s", analyze->arguments.html,
                 strerror(error));
        return complain(message);
}

/* Before the work, which may take a while. */
static int open_page(struct analyze *analyze)
{
        int error;

        for (unsigned i = 0; analyze->arguments.html && i < analyze->path_count; i++) {
                if (sim_log_is(analyze->paths[i]))
                        return complain("--html: a page needs a trace, and an access log has no keys");
        }
        error = sim_out_file_open(&analyze->page, analyze->arguments.html);
        return error ? page_error(analyze, error) : -1;
}

static int write_page(struct analyze *analyze)
{
        struct sim_buf buf = {0};
        int error;

        if (!analyze->arguments.html)
                return -1;
        sim_report_html(analyze->reports, analyze->count, &buf);
        error = sim_out_file_write(&analyze->page, &buf);
        sim_buf_fini(&buf);
        return error ? page_error(analyze, error) : -1;
}

int sim_analyze_main(int argc, char **argv)
{
        struct analyze *analyze = calloc(1, sizeof(*analyze));
        int status;

        if (!analyze)
                return complain("out of memory");
        status = sim_options_main(&command, argc, argv, &analyze->arguments, analyze->paths,
                                  &analyze->path_count);
        if (status < 0)
                status = parse(analyze);
        if (status < 0) {
                analyze->reports = calloc(analyze->path_count, sizeof(*analyze->reports));
                analyze->logs = calloc(analyze->path_count, sizeof(*analyze->logs));
                if (!analyze->reports || !analyze->logs)
                        status = complain("out of memory");
        }
        if (status < 0)
                status = open_page(analyze);
        for (unsigned i = 0; status < 0 && i < analyze->path_count; i++)
                status = report_file(analyze, analyze->paths[i]);
        if (status < 0)
                status = write_output(analyze);
        if (status < 0)
                status = write_page(analyze);
        sim_out_file_drop(&analyze->page);
        for (unsigned i = 0; i < analyze->count; i++) {
                if (analyze->is_log[i])
                        sim_log_fini(&analyze->logs[i]);
                else
                        sim_report_fini(&analyze->reports[i]);
        }
        free(analyze->logs);
        free(analyze->reports);
        free(analyze);
        return status < 0 ? 0 : status;
}
