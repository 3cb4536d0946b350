/* SPDX-License-Identifier: Apache-2.0 */
/* The command `kvroute demo`: one workload, several policies, the real router, mock engines. */
#include "commands.h"
#include "demo_int.h"
#include "options.h"
#include "run.h"
#include "wait.h"

#include <kvroute/router.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include <yyjson.h>

#define OVERLOAD 2 /* times the rate */

#define O(field, name, type, min, max, word, fallback, help) \
        SIM_OPTION(struct demo_arguments, field, name, type, min, max, word, fallback, help)

static const struct sim_option options[] = {
        SIM_OPTION_GROUP("Comparison"),
        O(policies, "policies", SIM_OPT_STRING, 0, 0, "NAME[,NAME...]",
          "kv,longest_prefix,consistent_hash,least_tokens,power_of_two,least_requests,round_robin,random",
          "policies to run, one after the other, on the same arrivals"),
        O(quick, "quick", SIM_OPT_FLAG, 0, 0, "", "off", "half of the requests: a first look"),
        O(seed, "seed", SIM_OPT_COUNT, 0, 1e19, "N", "1",
          "of the workload, and of all that the router draws"),
        SIM_OPTION_GROUP(
                "Fleet (times are those of the engine; the demo lets them pass --speed times faster)"),
        O(replicas, "replicas", SIM_OPT_COUNT, 1, SIM_FLEET_MAX, "N", "4", "mock engines"),
        O(preset, "preset", SIM_OPT_STRING, 0, 0, "NAME", "llama3-70b-h100",
          "how long their work takes, as for kvroute mock"),
        O(capacity_blocks, "capacity-blocks", SIM_OPT_COUNT, 16, 67108864, "N", "4000",
          "cache of each, in blocks of 16 tokens"),
        O(step_tokens, "step-tokens", SIM_OPT_COUNT, 1, 16777216, "N", "2048", "token budget of a step"),
        O(speed, "speed", SIM_OPT_NUMBER, 0.1, 1000, "X", "10", "time-lapse"),
        SIM_OPTION_GROUP("Workload"),
        O(rate, "rate", SIM_OPT_NUMBER, 0.001, 1000000, "PER-SECOND", "15",
          "requests per second, Poisson sessions; with the default every policy keeps up"),
        O(overload, "overload", SIM_OPT_FLAG, 0, 0, "", "off",
          "twice the rate: what becomes of each policy when it is more than the fleet takes"),
        O(requests, "requests", SIM_OPT_COUNT, 1, 100000000, "N", "1300", "per policy"),
        O(groups, "groups", SIM_OPT_COUNT, 1, 10000000, "N", "40",
          "applications, each with its own system prompt"),
        O(zipf, "zipf", SIM_OPT_NUMBER, 0, 10, "S", "1.7", "application n has a share of 1/n^S"),
        O(prefix_tokens, "prefix-tokens", SIM_OPT_COUNT, 0, 10000000, "N", "3072", "of a system prompt"),
        O(question_tokens, "question-tokens", SIM_OPT_COUNT, 1, 10000000, "N", "512", "of a question"),
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
                    "  kvroute demo --overload\n"
                    "  kvroute demo --replicas 8 --rate 30 --seed 7 --json\n",
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
};

/* ---- setting up --------------------------------------------------------------------------------------- */

static bool is_policy(const char *name)
{
        for (size_t i = 0; i < kvr_policy_count(); i++) {
                if (strcmp(name, kvr_policy_name(i)) == 0)
                        return true;
        }
        return false;
}

/* "kv, round_robin and random" */
static void policy_names(char *ret, size_t size)
{
        size_t count = kvr_policy_count(), used = 0;

        ret[0] = 0;
        for (size_t i = 0; i < count && used < size; i++)
                used += (size_t)snprintf(ret + used, size - used, "%s%s",
                                         i == 0           ? ""
                                         : i + 1 == count ? " and "
                                                          : ", ",
                                         kvr_policy_name(i));
}

static int parse_policies(struct demo *demo)
{
        const char *at = demo->arguments.policies ? demo->arguments.policies : "";
        char names[600];

        while (*at) {
                size_t len = strcspn(at, ",");
                struct demo_row *row = &demo->rows[demo->row_count];

                if (demo->row_count == DEMO_POLICIES_MAX)
                        return sim_usage_error(&command, "--policies: more than %d", DEMO_POLICIES_MAX);
                snprintf(row->policy, sizeof(row->policy), "%.*s", (int)len, at);
                if (!is_policy(row->policy)) {
                        policy_names(names, sizeof(names));
                        return sim_usage_error(&command, "--policies: there is no '%s'; there are %s",
                                               row->policy, names);
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
        const struct demo_arguments *a = &demo->arguments;
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

static bool start_router(struct demo *demo, const struct demo_row *row, const struct sim_fleet *fleet,
                         struct sim_router *router)
{
        const char *args[2 * SIM_FLEET_MAX + 24];
        char replicas[SIM_FLEET_MAX][64], interval[32], seed[20];
        size_t count = 0;
        double poll_ms = fmax(1000 / demo->arguments.speed, 50);

        /* The router lives on the wall clock, so what it does once a second is done more often here. */
        snprintf(interval, sizeof(interval), "%.0fms", poll_ms);
        snprintf(seed, sizeof(seed), "%" PRIx64, demo->arguments.seed);
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
        args[count++] = seed;
        args[count++] = "--log-level";
        args[count++] = "warn";
        for (uint32_t i = 0; i < demo->arguments.replicas; i++) {
                /* Hashes are taken of names, so these must not be the ports that happened to be free. */
                snprintf(replicas[i], sizeof(replicas[i]), "http://127.0.0.1:%u,name=mock-%u",
                         sim_fleet_port(fleet, i), i + 1);
                args[count++] = "--replica";
                args[count++] = replicas[i];
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

static bool run_load(struct demo *demo, struct demo_row *row, const struct sim_router *router,
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
        double cpu_s = thread_cpu_s(), waited_s = sim_wait_thread_s();
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
        row->load.used_s = thread_cpu_s() - cpu_s;
        row->load.waited_s = sim_wait_thread_s() - waited_s;
        if (status == SIM_RUN_NO_MEMORY)
                snprintf(demo->message, sizeof(demo->message), "out of memory");
        *ret_interrupted = status == SIM_RUN_INTERRUPTED;
        return status != SIM_RUN_NO_MEMORY;
}

static bool run_policy(struct demo *demo, struct demo_row *row, bool *ret_interrupted)
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
                if (!sim_router_stop(&router, &row->router, log, sizeof(log))) {
                        snprintf(demo->message, sizeof(demo->message), "the router died; it said: %s", log);
                        good = false;
                }
        }
        sim_fleet_stop(fleet, &row->engines);
        return good;
}

/* ---- all of them -------------------------------------------------------------------------------------- */

/* Figures of a busy machine are worth little: say so. */
static void warn_if_busy(struct demo *demo)
{
        double speed = demo->arguments.speed;
        struct demo_busy busy;

        demo_busy(demo, (double)sysconf(_SC_NPROCESSORS_ONLN), &busy);
        if (demo->arguments.progress)
                fprintf(stderr,
                        "kvroute demo: generator, engines and router together used up to %.2f processors\n",
                        busy.used);
        if (!busy.too_busy)
                return;
        fprintf(stderr,
                "kvroute demo: this machine is too busy for trustworthy times: requests were sent %.1f ms "
                "late "
                "(99th percentile %.0f ms)",
                busy.late_s * 1000, busy.late_p99_s * 1000);
        if (isfinite(busy.waited_s))
                fprintf(stderr, ", and each waited %.1f ms for processors", busy.waited_s * 1000);
        fprintf(stderr,
                " in the worst run, which the time-lapse makes %g times as long; try again when it is "
                "idle, or with a smaller --speed\n",
                speed);
}

static void clean_up(struct demo *demo)
{
        for (size_t i = 0; i < DEMO_POLICIES_MAX; i++)
                sim_result_fini(&demo->rows[i].result);
        sim_workload_free(demo->workload);
        free(demo);
}

static int run_all(struct demo *demo)
{
        bool interrupted = false;

        if (!demo->arguments.json)
                demo_print_head(demo);
        for (size_t i = 0; i < demo->row_count; i++) {
                struct demo_row *row = &demo->rows[i];

                if (!run_policy(demo, row, &interrupted)) {
                        fprintf(stderr, "kvroute demo: %s: %s\n", row->policy, demo->message);
                        return 1;
                }
                if (interrupted) {
                        fprintf(stderr, "kvroute demo: interrupted\n");
                        return 1;
                }
                if (!demo->arguments.json)
                        demo_print_row(row, demo->arguments.replicas);
        }
        if (demo->arguments.json)
                demo_print_json(demo);
        else
                demo_print_end(demo);
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
        if (demo->arguments.overload)
                demo->arguments.rate *= OVERLOAD;
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
