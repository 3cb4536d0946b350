/* SPDX-License-Identifier: Apache-2.0 */
/* The command `kvroute bench`. */
#include "commands.h"
#include "options.h"
#include "run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_REQUESTS      200
#define DEFAULT_CONCURRENCY   8
#define DEFAULT_OUTPUT_TOKENS 32

struct arguments {
        const char *workload, *model, *api, *header;
        uint64_t requests, concurrency, groups, prefix_tokens, question_tokens, output_tokens, turns, seed,
                block_tokens;
        double rate, zipf, spread, turn_gap, speed, from, to, timeout;
        bool stream, json, progress;
};

#define O(field, name, type, min, max, word, fallback, help) \
        SIM_OPTION(struct arguments, field, name, type, min, max, word, fallback, help)

static const struct sim_option options[] = {
        SIM_OPTION_GROUP("Load"),
        O(workload, "workload", SIM_OPT_STRING, 0, 0, "NAME", "shared_prefix",
          "shared_prefix, multi_turn, unique, or trace:FILE (Mooncake JSON Lines, also gzip)"),
        O(requests, "requests", SIM_OPT_COUNT, 0, 100000000, "N", "0",
          "in total; 0: 200, or the whole trace"),
        O(rate, "rate", SIM_OPT_NUMBER, 0, 1000000, "PER-SECOND", "0",
          "open loop: requests per second, Poisson; latencies count from the intended time"),
        O(concurrency, "concurrency", SIM_OPT_COUNT, 0, 65536, "N", "0",
          "closed loop: requests under way at a time; without --rate and --concurrency: 8"),
        O(seed, "seed", SIM_OPT_COUNT, 0, 1e19, "N", "1",
          "of everything that is drawn; equal seeds send equal requests"),
        O(timeout, "timeout", SIM_OPT_SECONDS, 0, 86400, "TIME", "5m", "of one request; 0 none"),
        SIM_OPTION_GROUP("Prompts"),
        O(groups, "groups", SIM_OPT_COUNT, 1, 10000000, "N", "16", "groups that share a system prompt"),
        O(zipf, "zipf", SIM_OPT_NUMBER, 0, 10, "S", "0", "group n is drawn with weight 1/n^S; 0: all alike"),
        O(prefix_tokens, "prefix-tokens", SIM_OPT_COUNT, 0, 10000000, "N", "1024",
          "of a system prompt (of a unique prompt: more)"),
        O(question_tokens, "question-tokens", SIM_OPT_COUNT, 1, 10000000, "N", "64", "of each question"),
        O(output_tokens, "output-tokens", SIM_OPT_COUNT, 0, 10000000, "N", "0",
          "asked for; 0: 32, or what the trace says"),
        O(spread, "spread", SIM_OPT_NUMBER, 0, 1, "X", "0",
          "questions and answers vary in length by up to this share"),
        O(turns, "turns", SIM_OPT_COUNT, 1, 100000, "N", "4",
          "of a multi_turn session; answers become history"),
        O(turn_gap, "turn-gap", SIM_OPT_SECONDS, 0, 86400, "TIME", "2s",
          "open loop: mean time between turns of a session"),
        SIM_OPTION_GROUP("Traces"),
        O(speed, "speed", SIM_OPT_NUMBER, 0.000001, 1000000, "X", "1", "play the trace X times faster"),
        O(from, "from", SIM_OPT_SECONDS, 0, 1e9, "TIME", "0", "leave out rows before"),
        O(to, "to", SIM_OPT_SECONDS, 0, 1e9, "TIME", "0", "leave out rows from here on; 0: to the end"),
        O(block_tokens, "block-tokens", SIM_OPT_COUNT, 0, 65536, "N", "0",
          "tokens per hash id; 0: found out"),
        SIM_OPTION_GROUP("Requests"),
        O(model, "model", SIM_OPT_STRING, 0, 0, "NAME", "", "without it, the first of GET /v1/models"),
        O(api, "api", SIM_OPT_CHOICE, 0, 0, "chat|completions", "chat", "which API"),
        O(stream, "stream", SIM_OPT_FLAG, 0, 0, "", "on",
          "ask for streams; without, there is no time to first token"),
        O(header, "header", SIM_OPT_STRING, 0, 0, "'NAME: VALUE'", "", "one more header field"),
        SIM_OPTION_GROUP("Output"),
        O(json, "json", SIM_OPT_FLAG, 0, 0, "", "off", "results as one JSON object on stdout"),
        O(progress, "progress", SIM_OPT_FLAG, 0, 0, "", "on", "show progress on stderr"),
};
#undef O

static const struct sim_command command = {
        .name = "bench",
        .arguments = "URL",
        .summary =
                "Sends load to an OpenAI-compatible server or router and measures time to first token, "
                "latencies,\n"
                "cache hits (from usage) and, behind kvroute, predicted hits and the spread over replicas.",
        .examples = "  kvroute bench http://127.0.0.1:8080 --rate 20 --requests 1000\n"
                    "  kvroute bench http://127.0.0.1:8080 --workload multi_turn --concurrency 32 --turns 6\n"
                    "  kvroute bench http://127.0.0.1:8080 --workload trace:conversation.jsonl.gz --speed 2 "
                    "--to 10m\n",
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
        .positional_min = 1,
        .positional_max = 1,
};

/* -1, or an exit status after a message. */
static int to_kind(const struct arguments *a, enum sim_workload_kind *ret, const char **ret_file)
{
        static const char *const names[] = {"shared_prefix", "multi_turn", "unique"};

        for (size_t i = 0; i < 3; i++) {
                if (a->workload && strcmp(a->workload, names[i]) == 0) {
                        *ret = (enum sim_workload_kind)i;
                        return -1;
                }
        }
        if (a->workload && strncmp(a->workload, "trace:", 6) == 0 && a->workload[6]) {
                *ret = SIM_WORKLOAD_TRACE;
                *ret_file = a->workload + 6;
                if (a->rate > 0)
                        return sim_usage_error(
                                &command,
                                "--rate: a trace has its own times; use --speed to change its pace");
                return -1;
        }
        return sim_usage_error(&command,
                               "--workload: '%s' is not shared_prefix, multi_turn, unique or trace:FILE",
                               a->workload ? a->workload : "");
}

static int check(const struct arguments *a)
{
        if (a->rate > 0 && a->concurrency)
                return sim_usage_error(
                        &command, "--rate (open loop) and --concurrency (closed loop) exclude each other");
        if (a->header && (!strchr(a->header, ':') || strpbrk(a->header, "\r\n")))
                return sim_usage_error(&command, "--header: '%s' is not 'NAME: VALUE'", a->header);
        if (a->to > 0 && a->to <= a->from)
                return sim_usage_error(&command, "--to: %g s is not after --from %g s", a->to, a->from);
        return -1;
}

static void to_workload(const struct arguments *a, enum sim_workload_kind kind, const struct sim_trace *trace,
                        struct sim_workload_options *ret)
{
        bool is_trace = kind == SIM_WORKLOAD_TRACE;

        *ret = (struct sim_workload_options){
                .kind = kind,
                .requests = a->requests ? (uint32_t)a->requests
                            : is_trace  ? UINT32_MAX
                                        : DEFAULT_REQUESTS,
                .rate = a->rate,
                .groups = (uint32_t)a->groups,
                .zipf = a->zipf,
                .prefix_tokens = (uint32_t)a->prefix_tokens,
                .question_tokens = (uint32_t)a->question_tokens,
                .output_tokens = a->output_tokens ? (uint32_t)a->output_tokens
                                 : is_trace       ? 0
                                                  : DEFAULT_OUTPUT_TOKENS,
                .spread = a->spread,
                .turns = (uint32_t)a->turns,
                .turn_gap_s = a->turn_gap,
                .seed = a->seed,
                .trace = trace,
                .speed = a->speed,
                .stream = a->stream,
                .completions = strcmp(a->api, "completions") == 0,
        };
}

static bool find_model(const struct sockaddr_storage *addr, const struct sim_url *url, const char *headers,
                       char *ret, size_t size)
{
        struct sim_buf body = {0};
        char target[600], message[1200] = "";
        unsigned status = 0;
        bool good;

        snprintf(target, sizeof(target), "%s/v1/models", url->base);
        good = sim_run_get(addr, url->authority, target, headers, &body, &status, message, sizeof(message));
        if (good && status == 200)
                sim_first_model(sim_buf_slice(&body), ret, size);
        if (good && !ret[0] && (status == 401 || status == 403)) {
                snprintf(
                        message, sizeof(message),
                        "GET http://%s%s answered %u; give a key, as in --header 'Authorization: Bearer KEY'",
                        url->authority, target, status);
                good = false;
        } else if (good && !ret[0]) {
                snprintf(message, sizeof(message),
                         "GET http://%s%s answered %u and names no model; give one with --model",
                         url->authority, target, status);
                good = false;
        }
        if (!good)
                fprintf(stderr, "kvroute bench: %s\n", message);
        sim_buf_fini(&body);
        return good;
}

static void print_result(struct sim_result *result, bool json)
{
        struct sim_buf buf = {0};

        if (json) {
                sim_buf_puts(&buf, "{");
                sim_result_json(result, &buf);
                sim_buf_puts(&buf, "}\n");
        } else {
                sim_result_text(result, &buf);
        }
        fwrite(buf.data, 1, buf.len, stdout);
        fflush(stdout);
        sim_buf_fini(&buf);
}

static int run(const struct arguments *a, const struct sim_url *url, const struct sim_workload_options *given)
{
        struct sim_workload_options workload_options = *given;
        struct sim_load_options load = {.host = url->authority, .time_scale = 1};
        char model[256] = "", headers[600] = "content-type: application/json\r\n", target[600];
        struct sim_workload *workload;
        struct sim_progress progress;
        struct sim_result result = {0};
        enum sim_run_status status;
        int error = net_resolve(url->host, url->port, &load.addr), code = 1;

        if (error) {
                fprintf(stderr, "kvroute bench: cannot resolve '%s': %s\n", url->host, uv_strerror(error));
                return 1;
        }
        if (a->header)
                snprintf(headers + strlen(headers), sizeof(headers) - strlen(headers), "%.500s\r\n",
                         a->header);
        if (a->model)
                snprintf(model, sizeof(model), "%s", a->model);
        else if (!find_model(&load.addr, url, headers, model, sizeof(model)))
                return 1;
        workload_options.model = model;
        workload = sim_workload_new(&workload_options);
        if (!workload) {
                fprintf(stderr, "kvroute bench: out of memory\n");
                return 1;
        }
        snprintf(target, sizeof(target), "%s/v1/%s", url->base,
                 workload_options.completions ? "completions" : "chat/completions");
        load.workload = workload;
        load.target = target;
        load.headers = headers;
        load.timeout_ms = (uint32_t)(a->timeout * 1000);
        load.concurrency = (uint32_t)a->concurrency;
        if (a->rate <= 0 && !a->concurrency && workload_options.kind != SIM_WORKLOAD_TRACE)
                load.concurrency = DEFAULT_CONCURRENCY;
        sim_progress_init(&progress, "bench", !a->progress);
        status = sim_run_load(&load, &progress, &result);
        sim_progress_end(&progress);
        if (status == SIM_RUN_NO_MEMORY) {
                fprintf(stderr, "kvroute bench: out of memory\n");
        } else {
                print_result(&result, a->json);
                code = status == SIM_RUN_DONE && result.requests > result.errors + result.rejected ? 0 : 1;
                if (status == SIM_RUN_INTERRUPTED)
                        fprintf(stderr, "kvroute bench: interrupted; the figures are of the requests that "
                                        "had ended\n");
                else if (code)
                        fprintf(stderr, "kvroute bench: no request was answered; first error: %s\n",
                                result.first_error[0] ? result.first_error : "rejected");
        }
        sim_result_fini(&result);
        sim_workload_free(workload);
        return code;
}

int sim_bench_main(int argc, char **argv)
{
        struct arguments arguments;
        struct sim_workload_options workload;
        struct sim_trace trace = {0};
        struct sim_url url;
        enum sim_workload_kind kind = SIM_WORKLOAD_UNIQUE;
        const char *positional[1], *file = NULL;
        unsigned count = 0;
        char message[512];
        int status = sim_options_main(&command, argc, argv, &arguments, positional, &count);

        if (status < 0)
                status = to_kind(&arguments, &kind, &file);
        if (status < 0)
                status = check(&arguments);
        if (status >= 0)
                return status;
        if (!sim_url_parse(positional[0], &url, message, sizeof(message)))
                return sim_usage_error(&command, "%s", message);
        if (file) {
                struct sim_trace_options trace_options = {
                        .block_tokens = (uint32_t)arguments.block_tokens,
                        .from_s = arguments.from,
                        .to_s = arguments.to,
                };

                if (!sim_trace_read(file, &trace_options, &trace, message, sizeof(message)))
                        return sim_usage_error(&command, "--workload: %s", message);
        }
        (void)signal(SIGPIPE, SIG_IGN);
        sim_raise_descriptor_limit();
        to_workload(&arguments, kind, &trace, &workload);
        status = run(&arguments, &url, &workload);
        sim_trace_fini(&trace);
        return status;
}
