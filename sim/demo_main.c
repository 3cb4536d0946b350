/* SPDX-License-Identifier: Apache-2.0 */
/* The command `kvroute demo`: one workload, several policies, the real router, mock engines. */
#include "commands.h"
#include "fleet.h"
#include "options.h"
#include "run.h"

#include <kvroute/router.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <yyjson.h>

#define POLICIES_MAX    32
#define PROCESSORS_FINE 1.5  /* of two */
#define LATE_FINE_S     0.02 /* p99 of sending after the intended time, wall clock */

struct arguments {
        const char *policies, *preset, *program;
        uint64_t replicas, requests, groups, prefix_tokens, question_tokens, output_tokens, turns, seed,
                capacity_blocks;
        uint64_t step_tokens;
        double rate, zipf, spread, turn_gap, speed;
        bool quick, json, progress;
};

#define O(field, name, type, min, max, word, fallback, help) \
        SIM_OPTION(struct arguments, field, name, type, min, max, word, fallback, help)

static const struct sim_option options[] = {
        SIM_OPTION_GROUP("Comparison"),
        O(policies, "policies", SIM_OPT_STRING, 0, 0, "NAME[,NAME...]",
          "kv,longest_prefix,consistent_hash,least_tokens,power_of_two,least_requests,round_robin,random",
          "policies to run, one after the other, on the same arrivals"),
        O(quick, "quick", SIM_OPT_FLAG, 0, 0, "", "off",
          "half of the requests: a first look in three quarters of a minute"),
        O(seed, "seed", SIM_OPT_COUNT, 0, 1e19, "N", "1", "of the workload"),
        SIM_OPTION_GROUP(
                "Fleet (times are those of the engine; the demo lets them pass --speed times faster)"),
        O(replicas, "replicas", SIM_OPT_COUNT, 1, SIM_FLEET_MAX, "N", "4", "mock engines"),
        O(preset, "preset", SIM_OPT_STRING, 0, 0, "NAME", "llama3-70b-h100",
          "how long their work takes, as for kvroute mock"),
        O(capacity_blocks, "capacity-blocks", SIM_OPT_COUNT, 16, 67108864, "N", "3000",
          "cache of each, in blocks of 16 tokens"),
        O(step_tokens, "step-tokens", SIM_OPT_COUNT, 1, 16777216, "N", "2048", "token budget of a step"),
        O(speed, "speed", SIM_OPT_NUMBER, 0.1, 1000, "X", "10", "time-lapse"),
        SIM_OPTION_GROUP("Workload"),
        O(rate, "rate", SIM_OPT_NUMBER, 0.001, 1000000, "PER-SECOND", "40",
          "requests per second, Poisson sessions"),
        O(requests, "requests", SIM_OPT_COUNT, 1, 100000000, "N", "2400", "per policy"),
        O(groups, "groups", SIM_OPT_COUNT, 1, 10000000, "N", "40",
          "applications, each with its own system prompt"),
        O(zipf, "zipf", SIM_OPT_NUMBER, 0, 10, "S", "1.5", "application n has a share of 1/n^S"),
        O(prefix_tokens, "prefix-tokens", SIM_OPT_COUNT, 0, 10000000, "N", "3072", "of a system prompt"),
        O(question_tokens, "question-tokens", SIM_OPT_COUNT, 1, 10000000, "N", "256", "of a question"),
        O(output_tokens, "output-tokens", SIM_OPT_COUNT, 1, 10000000, "N", "32", "of an answer"),
        O(spread, "spread", SIM_OPT_NUMBER, 0, 1, "X", "0.5", "lengths vary by up to this share"),
        O(turns, "turns", SIM_OPT_COUNT, 1, 100000, "N", "4", "of a session"),
        O(turn_gap, "turn-gap", SIM_OPT_SECONDS, 0, 86400, "TIME", "5s", "mean time between turns"),
        SIM_OPTION_GROUP("Output"),
        O(json, "json", SIM_OPT_FLAG, 0, 0, "", "off", "results as one JSON object on stdout"),
        O(progress, "progress", SIM_OPT_FLAG, 0, 0, "", "on", "show progress on stderr"),
        O(program, "program", SIM_OPT_STRING, 0, 0, "FILE", "/proc/self/exe",
          "the kvroute whose `serve` is run"),
};
#undef O

static const struct sim_command command = {
        .name = "demo",
        .arguments = "",
        .summary = "Runs a fleet of mock engines and the real router on this machine, sends the same "
                   "workload through several\n"
                   "routing policies, and compares them. No GPU, nothing beyond the loopback interface; "
                   "under two minutes.",
        .examples = "  kvroute demo\n"
                    "  kvroute demo --quick --policies kv,round_robin\n"
                    "  kvroute demo --replicas 8 --rate 48 --seed 7 --json\n",
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
};

struct row {
        char policy[64];
        struct sim_result result;
        double cpu_load_s, cpu_fleet_s, cpu_router_s; /* processor time of generator, engines, router */
        double wall_s;
};

struct demo {
        struct arguments arguments;
        struct sim_mock_options mock;
        struct sim_workload *workload;
        struct row rows[POLICIES_MAX];
        size_t row_count;
        char message[1024];
};

/* ---- setting up --------------------------------------------------------------------------------------- */

static int parse_policies(struct demo *demo)
{
        const char *at = demo->arguments.policies ? demo->arguments.policies : "";

        while (*at) {
                size_t len = strcspn(at, ","), known = kvr_policy_count();
                struct row *row = &demo->rows[demo->row_count];

                if (demo->row_count == POLICIES_MAX)
                        return sim_usage_error(&command, "--policies: more than %d", POLICIES_MAX);
                snprintf(row->policy, sizeof(row->policy), "%.*s", (int)len, at);
                for (size_t i = 0; i < known; i++) {
                        if (strcmp(row->policy, kvr_policy_name(i)) == 0)
                                break;
                        if (i + 1 == known)
                                return sim_usage_error(
                                        &command,
                                        "--policies: there is no '%s'; kvroute serve --help lists them",
                                        row->policy);
                }
                demo->row_count++;
                at += len + (at[len] == ',');
        }
        if (demo->row_count == 0)
                return sim_usage_error(&command,
                                       "--policies: name at least one, as in --policies kv,round_robin");
        return -1;
}

static int set_up(struct demo *demo)
{
        const struct arguments *a = &demo->arguments;
        const struct sim_cost *cost = sim_cost_find(a->preset ? a->preset : "");
        struct sim_workload_options workload = {
                .kind = SIM_WORKLOAD_MULTI_TURN,
                .requests = (uint32_t)a->requests,
                .rate = a->rate * a->speed,
                .groups = (uint32_t)a->groups,
                .zipf = a->zipf,
                .prefix_tokens = (uint32_t)a->prefix_tokens,
                .question_tokens = (uint32_t)a->question_tokens,
                .output_tokens = (uint32_t)a->output_tokens,
                .spread = a->spread,
                .turns = (uint32_t)a->turns,
                .turn_gap_s = a->turn_gap / a->speed,
                .seed = a->seed,
                .speed = 1,
                .model = "mock",
                .stream = true,
        };

        if (!cost)
                return sim_usage_error(&command,
                                       "--preset: there is no '%s'; kvroute mock --help lists the presets",
                                       a->preset);
        sim_mock_defaults(&demo->mock);
        demo->mock.engine.cost = *cost;
        demo->mock.engine.capacity_blocks = (uint32_t)a->capacity_blocks;
        demo->mock.engine.step_tokens = (uint32_t)a->step_tokens;
        demo->mock.speed = a->speed;
        demo->mock.stream_interval = 8; /* fewer chunks: the processor belongs to the comparison */
        demo->mock.record_max = 1;
        demo->workload = sim_workload_new(&workload);
        if (!demo->workload) {
                fprintf(stderr, "kvroute demo: out of memory\n");
                return 1;
        }
        return -1;
}

/* ---- one policy --------------------------------------------------------------------------------------- */

static double thread_cpu_s(void)
{
        struct rusage usage;

        if (getrusage(RUSAGE_THREAD, &usage))
                return 0;
        return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static bool start_router(struct demo *demo, const struct row *row, const struct sim_fleet *fleet,
                         struct sim_router *router)
{
        const char *args[SIM_FLEET_MAX + 24];
        char urls[SIM_FLEET_MAX][48], interval[32];
        size_t count = 0;
        double poll_ms = fmax(1000 / demo->arguments.speed, 50);

        /* The router lives on the wall clock, so what it does once a second is done more often here. */
        snprintf(interval, sizeof(interval), "%.0fms", poll_ms);
        args[count++] = "--listen";
        args[count++] = "127.0.0.1:0";
        args[count++] = "--admin";
        args[count++] = "127.0.0.1:0";
        args[count++] = "--threads";
        args[count++] = "1";
        args[count++] = "--policy";
        args[count++] = row->policy;
        args[count++] = "--metrics-interval";
        args[count++] = interval;
        args[count++] = "--seed";
        args[count++] = "1";
        args[count++] = "--log-level";
        args[count++] = "warn";
        for (uint32_t i = 0; i < demo->arguments.replicas; i++) {
                snprintf(urls[i], sizeof(urls[i]), "http://127.0.0.1:%u", sim_fleet_port(fleet, i));
                args[count++] = urls[i];
        }
        args[count] = NULL;
        return sim_router_start(router, demo->arguments.program, args, demo->message, sizeof(demo->message));
}

/* Whether the admin listener says that every replica is ready. */
static bool all_ready(struct sim_buf *body, uint64_t replicas)
{
        yyjson_doc *doc = body->len ? yyjson_read(body->data, body->len, 0) : NULL;
        yyjson_val *list = yyjson_doc_get_root(doc), *item;
        size_t ready = 0, i, max;

        if (yyjson_is_obj(list))
                list = yyjson_obj_get(list, "replicas");
        yyjson_arr_foreach(list, i, max, item) ready +=
                yyjson_equals_str(yyjson_obj_get(item, "state"), "ready");
        yyjson_doc_free(doc);
        return ready == replicas;
}

static bool wait_ready(struct demo *demo, const struct sim_router *router,
                       const struct sockaddr_storage *admin, const char *authority)
{
        uint64_t began = uv_hrtime();
        bool good = false;

        while (!good && uv_hrtime() - began < 15000000000u) {
                struct sim_buf body = {0};
                unsigned status = 0;

                if (!sim_run_get(admin, authority, "/kvroute/replicas", NULL, &body, &status, demo->message,
                                 sizeof(demo->message))) {
                        sim_buf_fini(&body);
                        return false;
                }
                good = status == 200 && all_ready(&body, demo->arguments.replicas);
                sim_buf_fini(&body);
                if (!good)
                        uv_sleep(10);
        }
        if (!good)
                snprintf(demo->message, sizeof(demo->message), "%s: not all replicas became ready",
                         router->admin);
        return good;
}

static bool run_load(struct demo *demo, struct row *row, const struct sim_router *router,
                     bool *ret_interrupted)
{
        struct sim_load_options load = {
                .workload = demo->workload,
                .target = "/v1/chat/completions",
                .headers = "content-type: application/json\r\n",
                .timeout_ms = 60000,
                .time_scale = demo->arguments.speed,
        };
        struct sim_url url, admin;
        struct sockaddr_storage admin_addr;
        struct sim_progress progress;
        double cpu_s = thread_cpu_s();
        uint64_t began;
        enum sim_run_status status;

        if (!sim_url_parse(router->url, &url, demo->message, sizeof(demo->message)) ||
            !sim_url_parse(router->admin, &admin, demo->message, sizeof(demo->message)) ||
            net_resolve(url.host, url.port, &load.addr) || net_resolve(admin.host, admin.port, &admin_addr) ||
            !wait_ready(demo, router, &admin_addr, admin.authority))
                return false;
        load.host = url.authority;
        sim_progress_init(&progress, row->policy, !demo->arguments.progress);
        began = uv_hrtime();
        status = sim_run_load(&load, &progress, &row->result);
        sim_progress_end(&progress);
        row->wall_s = (double)(uv_hrtime() - began) * 1e-9;
        row->cpu_load_s = thread_cpu_s() - cpu_s;
        if (status == SIM_RUN_NO_MEMORY)
                snprintf(demo->message, sizeof(demo->message), "out of memory");
        *ret_interrupted = status == SIM_RUN_INTERRUPTED;
        return status != SIM_RUN_NO_MEMORY;
}

static bool run_policy(struct demo *demo, struct row *row, bool *ret_interrupted)
{
        struct sim_router router;
        struct sim_fleet *fleet;
        char log[600];
        bool good;

        fleet = sim_fleet_start(&demo->mock, (uint32_t)demo->arguments.replicas, demo->message,
                                sizeof(demo->message));
        if (!fleet)
                return false;
        good = start_router(demo, row, fleet, &router);
        if (good) {
                good = run_load(demo, row, &router, ret_interrupted);
                if (!sim_router_stop(&router, &row->cpu_router_s, log, sizeof(log))) {
                        snprintf(demo->message, sizeof(demo->message), "the router died; it said: %s", log);
                        good = false;
                }
        }
        sim_fleet_stop(fleet, &row->cpu_fleet_s);
        return good;
}

/* ---- results ------------------------------------------------------------------------------------------ */

static void print_json(struct demo *demo)
{
        struct sim_buf buf = {0};

        sim_buf_puts(&buf, "{\"policies\":[");
        for (size_t i = 0; i < demo->row_count; i++) {
                sim_buf_puts(&buf, i ? ",\n{\"policy\":" : "{\"policy\":");
                sim_buf_json(&buf, sim_slice(demo->rows[i].policy));
                sim_buf_puts(&buf, ",");
                sim_result_json(&demo->rows[i].result, &buf);
                sim_buf_puts(&buf, "}");
        }
        sim_buf_puts(&buf, "]}\n");
        fwrite(buf.data, 1, buf.len, stdout);
        sim_buf_fini(&buf);
}

static void print_head(const struct demo *demo)
{
        const struct arguments *a = &demo->arguments;
        uint32_t requests = sim_workload_requests(demo->workload);

        printf("%llu mock replicas (%s), each with a cache of %.0f thousand tokens; %llu applications with "
               "system prompts of %llu\n"
               "tokens and Zipf shares; sessions of %llu turns; %.3g requests a second, %u in all. Every "
               "policy gets the same\n"
               "requests at the same times, through the real router. Seconds are the engines' (time-lapse x "
               "%.3g).\n\n",
               (unsigned long long)a->replicas, a->preset, (double)a->capacity_blocks * 16 / 1000,
               (unsigned long long)a->groups, (unsigned long long)a->prefix_tokens,
               (unsigned long long)a->turns, a->rate, requests, a->speed);
        printf("%-16s %8s %14s %9s %8s %8s %8s %9s %7s\n", "policy", "token", "prefill tokens", "TTFT mean",
               "p50", "p90", "p99", "requests", "errors");
        printf("%-16s %8s %14s %9s %8s %8s %8s %9s %7s\n", "", "hit rate", "avoided", "s", "s", "s", "s",
               "max/mean", "");
}

static void print_row(const struct demo *demo, struct row *row)
{
        struct sim_result *r = &row->result;

        printf("%-16s %7.1f%% %14" PRIu64 " %9.3f %8.3f %8.3f %8.3f %9.2f %7" PRIu64 "\n", row->policy,
               100 * sim_result_hit_rate(r), r->observed_cached_tokens, sim_samples_mean(&r->ttft),
               sim_samples_percentile(&r->ttft, 0.5), sim_samples_percentile(&r->ttft, 0.9),
               sim_samples_percentile(&r->ttft, 0.99), sim_result_max_over_mean(r, demo->arguments.replicas),
               r->errors + r->rejected);
        fflush(stdout);
}

static struct row *best_row(struct demo *demo, const struct row *except)
{
        struct row *best = NULL;

        for (size_t i = 0; i < demo->row_count; i++) {
                struct row *row = &demo->rows[i];

                if (row != except && row->result.ttft.seen &&
                    (!best || sim_samples_mean(&row->result.ttft) < sim_samples_mean(&best->result.ttft)))
                        best = row;
        }
        return best;
}

static void print_verdict(struct demo *demo)
{
        struct row *best = best_row(demo, NULL), *second = best ? best_row(demo, best) : NULL;

        if (second)
                printf("\nLowest mean time to first token: %s with %.2f s at a hit rate of %.0f %%; next is "
                       "%s with %.2f s and %.0f %%.\n",
                       best->policy, sim_samples_mean(&best->result.ttft),
                       100 * sim_result_hit_rate(&best->result), second->policy,
                       sim_samples_mean(&second->result.ttft), 100 * sim_result_hit_rate(&second->result));
        printf("For your own replicas: kvroute serve http://HOST:8000 http://HOST:8001, then kvroute bench "
               "http://127.0.0.1:8080.\n");
}

/* Figures of a busy machine are worth little: say so. */
static void warn_if_busy(struct demo *demo)
{
        double processors = 0, late_s = 0;

        for (size_t i = 0; i < demo->row_count; i++) {
                struct row *row = &demo->rows[i];

                if (row->wall_s > 0)
                        processors =
                                fmax(processors,
                                     (row->cpu_load_s + row->cpu_fleet_s + row->cpu_router_s) / row->wall_s);
                if (row->result.late.seen)
                        late_s = fmax(late_s, sim_samples_percentile(&row->result.late, 0.99));
        }
        if (demo->arguments.progress)
                fprintf(stderr,
                        "kvroute demo: generator, engines and router together used up to %.2f processors\n",
                        processors);
        if (processors > PROCESSORS_FINE || late_s > LATE_FINE_S)
                fprintf(stderr,
                        "kvroute demo: this machine is too busy for trustworthy times (requests went out up "
                        "to %.0f ms late); "
                        "try again when it is idle, or with a smaller --speed\n",
                        late_s * 1000);
}

static void clean_up(struct demo *demo)
{
        for (size_t i = 0; i < POLICIES_MAX; i++)
                sim_result_fini(&demo->rows[i].result);
        sim_workload_free(demo->workload);
        free(demo);
}

static int run_all(struct demo *demo)
{
        bool interrupted = false;

        if (!demo->arguments.json)
                print_head(demo);
        for (size_t i = 0; i < demo->row_count; i++) {
                struct row *row = &demo->rows[i];

                if (!run_policy(demo, row, &interrupted)) {
                        fprintf(stderr, "kvroute demo: %s: %s\n", row->policy, demo->message);
                        return 1;
                }
                if (interrupted) {
                        fprintf(stderr, "kvroute demo: interrupted\n");
                        return 1;
                }
                if (!demo->arguments.json)
                        print_row(demo, row);
        }
        if (demo->arguments.json)
                print_json(demo);
        else
                print_verdict(demo);
        warn_if_busy(demo);
        return 0;
}

int sim_demo_main(int argc, char **argv)
{
        struct demo *demo = calloc(1, sizeof(*demo));
        unsigned positional = 0;
        int status;

        if (!demo) {
                fprintf(stderr, "kvroute demo: out of memory\n");
                return 1;
        }
        status = sim_options_main(&command, argc, argv, &demo->arguments, NULL, &positional);
        if (status < 0)
                status = parse_policies(demo);
        if (demo->arguments.quick)
                demo->arguments.requests = (demo->arguments.requests + 1) / 2;
        if (status < 0)
                status = set_up(demo);
        if (status < 0) {
                (void)signal(SIGPIPE, SIG_IGN);
                sim_raise_descriptor_limit();
                status = run_all(demo);
        }
        clean_up(demo);
        return status;
}
