/* SPDX-License-Identifier: Apache-2.0 */
/* The command `kvroute simulate`: a trace, policies, fleets of several sizes, in virtual time. */
#include "commands.h"
#include "des.h"
#include "options.h"
#include "replay.h"
#include "simulate.h"

#include <kvroute/router.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FILES_MAX    8
#define POLICIES_MAX 32
#define OUTAGES_MAX  64
#define POLICY_LEN   64
#define CELLS_MAX    65536u

struct arguments {
        const char *policies, *replicas, *capacities, *loads, *from, *to, *preset, *prompts, *down, *requests;
        uint64_t block_tokens, threads, step_tokens, max_running, routers, seed;
        double spread, ttft_target, report_interval;
        bool reference, sessions, closed_loop, json, csv, progress;
};

#define RULE_NAME(name, function, counts, help)      " " name
#define REFERENCE_NAME(id, name, plain, queue, help) " " name
#define O(field, name, type, min, max, word, fallback, help) \
        SIM_OPTION(struct arguments, field, name, type, min, max, word, fallback, help)

static const struct sim_option options[] = {
        SIM_OPTION_GROUP("Grid (lists separated by commas; every combination is a row)"),
        O(policies, "policies", SIM_OPT_STRING, 0, 0, "NAME[,NAME...]", "",
          "rules to compare: those of kvroute serve (all of them if not given), and those of other "
          "routers:" SIM_DES_RULE_LIST(RULE_NAME) ". With --reference:" SIM_REPLAY_POLICY_LIST(
                  REFERENCE_NAME)),
        O(replicas, "replicas", SIM_OPT_STRING, 0, 0, "N[,N...]", "8", "fleet sizes"),
        O(capacities, "capacity-blocks", SIM_OPT_STRING, 0, 0, "N[,N...]", "4000",
          "cache of each replica in blocks of the trace; inf with --reference"),
        O(loads, "loads", SIM_OPT_STRING, 0, 0, "X[,X...]", "",
          "prefill work offered, if nothing were cached, over what the replicas can do: arrivals are sped up "
          "or "
          "slowed down to that. If not given, the trace keeps its pace, and with --reference there is no "
          "time, only "
          "caches"),
        SIM_OPTION_GROUP("Engines and routers"),
        O(preset, "preset", SIM_OPT_STRING, 0, 0, "NAME", "llama3-70b-h100",
          "how long an engine's work takes, as for kvroute mock"),
        O(step_tokens, "step-tokens", SIM_OPT_COUNT, 1, 16777216, "N", "2048", "token budget of a step"),
        O(max_running, "max-running", SIM_OPT_COUNT, 1, 65536, "N", "256", "requests in a step"),
        O(report_interval, "metrics-interval", SIM_OPT_SECONDS, 0, 3600, "TIME", "1s",
          "between two load reports of an engine; 0: none"),
        O(routers, "routers", SIM_OPT_COUNT, 1, SIM_DES_ROUTERS_MAX, "N", "1",
          "that get requests in turn and know but their own"),
        O(down, "down", SIM_OPT_STRING, 0, 0, "R@FROM-TO[,...]", "",
          "replica number R (from 0) is lost from FROM to TO seconds of the run and comes back empty; "
          "without -TO for "
          "good"),
        O(prompts, "prompts", SIM_OPT_CHOICE, 0, 0, "blocks|ids", "blocks",
          "what the router is given: the trace's blocks, or a body of token ids to parse, as in the proxy "
          "(slower)"),
        O(sessions, "session-affinity", SIM_OPT_FLAG, 0, 0, "", "off",
          "tell the router the trace's sessions"),
        O(closed_loop, "closed-loop", SIM_OPT_FLAG, 0, 0, "", "off",
          "a session's next request waits for the answer, then for the pause that the trace has"),
        O(seed, "seed", SIM_OPT_COUNT, 0, 1e19, "N", "1", "of what policies draw"),
        SIM_OPTION_GROUP("Trace"),
        O(from, "from", SIM_OPT_STRING, 0, 0, "SECONDS", "0", "leave out rows before"),
        O(to, "to", SIM_OPT_STRING, 0, 0, "SECONDS", "0", "leave out rows from here on; 0: to the end"),
        O(block_tokens, "block-tokens", SIM_OPT_COUNT, 0, 1048576, "N", "0",
          "tokens per block id; 0: found out (512 for tables of lengths)"),
        O(spread, "spread", SIM_OPT_SECONDS, 0, 3600, "TIME", "0",
          "rows with one time are spread evenly over so long: traces with rounded times"),
        SIM_OPTION_GROUP("Reference model (docs/simulate.md defines it)"),
        O(reference, "reference", SIM_OPT_FLAG, 0, 0, "", "off",
          "caches and a queue, no engine and no router"),
        O(ttft_target, "ttft-target", SIM_OPT_SECONDS, 0, 86400, "TIME", "0",
          "also find the greatest speed-up of the arrivals with p90 within this; 0: do not. Needs --loads"),
        SIM_OPTION_GROUP("Output"),
        O(json, "json", SIM_OPT_FLAG, 0, 0, "", "off", "results as one JSON object on stdout"),
        O(csv, "csv", SIM_OPT_FLAG, 0, 0, "", "off", "results as CSV on stdout"),
        O(requests, "requests", SIM_OPT_STRING, 0, 0, "FILE", "",
          "also what became of each request, as CSV; for a run with engines that makes one row"),
        O(threads, "threads", SIM_OPT_COUNT, 0, 256, "N", "0", "rows computed at once; 0: one per processor"),
        O(progress, "progress", SIM_OPT_FLAG, 0, 0, "", "on", "show progress on stderr"),
};
#undef O

static const struct sim_command command = {
        .name = "simulate",
        .arguments = "FILE...",
        .summary = "Replays traces in virtual time under routing policies, and compares what they would have "
                   "done to a "
                   "fleet.\n"
                   "FILE is JSON Lines in Mooncake's layout, a CSV of lengths, or a CSV of sessions, also "
                   "gzip; or\n"
                   "synthetic:KEY=NUMBER,... with requests, rate, groups, zipf, prefix, question, output, "
                   "turns, gap, "
                   "spread, seed.",
        .examples = "  kvroute simulate conversation.jsonl.gz\n"
                    "  kvroute simulate --policies kv,least_tokens,sglang_cache_aware --replicas 8,16 "
                    "--loads 0.5,1.0 "
                    "conversation.jsonl.gz\n"
                    "  kvroute simulate --loads 0.8 synthetic:requests=5000,groups=64,prefix=2048,turns=4\n"
                    "  kvroute simulate --reference --capacity-blocks 1000,4000,16000 conversation.jsonl.gz\n"
                    "  kvroute simulate --reference --loads 1.0 --ttft-target 10s conversation.jsonl.gz\n",
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
        .positional_min = 1,
        .positional_max = FILES_MAX,
};

struct file {
        struct sim_trace trace;
        struct sim_replay *replay;
};

/* One row to compute. */
struct cell {
        uint32_t file, replicas, capacity_blocks;
        double load; /* 0: no queue, or the trace's own pace */
        const char *policy;
};

struct simulate {
        struct arguments arguments;
        const char *paths[FILES_MAX];
        unsigned path_count;
        struct file files[FILES_MAX];
        char policies[POLICIES_MAX][POLICY_LEN];
        const struct sim_cost *cost;
        uint32_t replicas[SIM_SIMULATE_LIST_MAX], capacities[SIM_SIMULATE_LIST_MAX];
        double loads[SIM_SIMULATE_LIST_MAX];
        uint32_t policy_count, replica_count, capacity_count, load_count;
        double from_s, to_s;
        struct cell *cells;
        struct sim_simulate_row *rows;
        uint32_t cell_count;
        struct sim_des_record *records; /* with --requests */
        struct sim_des_outage outages[OUTAGES_MAX];
        uint32_t outage_count;
};

/* ---- arguments: -1 to go on, else the exit status ----------------------------------------------------- */

static bool serves(const char *word)
{
        for (size_t i = 0; i < kvr_policy_count(); i++) {
                if (strcmp(kvr_policy_name(i), word) == 0)
                        return true;
        }
        return sim_des_rule_exists(word);
}

static int check_policy(const struct simulate *simulate, const char *word)
{
        bool queue = simulate->arguments.loads != NULL;
        enum sim_replay_policy rule;

        if (!simulate->arguments.reference) {
                if (serves(word))
                        return -1;
                return sim_usage_error(
                        &command,
                        "--policies: there is no '%s'; kvroute serve --help lists the router's, "
                        "kvroute simulate --help the others",
                        word);
        }
        if (!sim_replay_policy_find(word, &rule))
                return sim_usage_error(
                        &command,
                        "--policies: there is no '%s' with --reference; kvroute simulate --help "
                        "lists them",
                        word);
        if (!sim_replay_policy_fits(rule, queue))
                return sim_usage_error(&command, "--policies: '%s' is a rule for runs %s --loads", word,
                                       queue ? "without" : "with");
        return -1;
}

static void add_policy(struct simulate *simulate, const char *word)
{
        snprintf(simulate->policies[simulate->policy_count++], POLICY_LEN, "%s", word);
}

static void all_policies(struct simulate *simulate)
{
        bool queue = simulate->arguments.loads != NULL, reference = simulate->arguments.reference;

        for (unsigned i = 0; reference && i < SIM_REPLAY_POLICIES; i++) {
                if (sim_replay_policy_fits((enum sim_replay_policy)i, queue))
                        add_policy(simulate, sim_replay_policy_name((enum sim_replay_policy)i));
        }
        for (size_t i = 0; !reference && i < kvr_policy_count() && i < POLICIES_MAX; i++)
                add_policy(simulate, kvr_policy_name(i));
}

static int parse_policies(struct simulate *simulate)
{
        const char *at = simulate->arguments.policies;

        if (!at)
                all_policies(simulate);
        while (at && *at) {
                size_t len = strcspn(at, ",");
                char word[POLICY_LEN];
                int status;

                snprintf(word, sizeof(word), "%.*s", (int)len, at);
                status = check_policy(simulate, word);
                if (status >= 0)
                        return status;
                if (simulate->policy_count == POLICIES_MAX)
                        return sim_usage_error(&command, "--policies: more than %d", POLICIES_MAX);
                add_policy(simulate, word);
                at += len + (at[len] == ',');
        }
        return -1;
}

static uint64_t cells_of(const struct simulate *simulate)
{
        return (uint64_t)simulate->path_count * simulate->policy_count * simulate->replica_count *
               simulate->capacity_count * simulate->load_count;
}

static int parse_lists(struct simulate *simulate)
{
        const struct arguments *a = &simulate->arguments;
        uint32_t capacity_max = a->reference ? SIM_REPLAY_CAPACITY_MAX : SIM_DES_CAPACITY_MAX;

        if (!a->replicas || !sim_simulate_counts(a->replicas, 1, SIM_REPLAY_REPLICAS_MAX, false,
                                                 simulate->replicas, &simulate->replica_count))
                return sim_usage_error(&command,
                                       "--replicas: '%s' is not a list of numbers from 1 to %u, as in "
                                       "--replicas 8,16",
                                       a->replicas ? a->replicas : "", SIM_REPLAY_REPLICAS_MAX);
        if (!a->capacities || !sim_simulate_counts(a->capacities, 1, capacity_max, a->reference,
                                                   simulate->capacities, &simulate->capacity_count))
                return sim_usage_error(&command,
                                       "--capacity-blocks: '%s' is not a list of numbers from 1 to %u, as in "
                                       "--capacity-blocks 1000,4000",
                                       a->capacities ? a->capacities : "", capacity_max);
        if (a->loads && !sim_simulate_numbers(a->loads, 0.001, 1000, simulate->loads, &simulate->load_count))
                return sim_usage_error(&command,
                                       "--loads: '%s' is not a list of numbers from 0.001 to 1000, as in "
                                       "--loads 0.5,1.0",
                                       a->loads);
        if (!a->loads)
                simulate->load_count = 1;
        if (cells_of(simulate) > CELLS_MAX)
                return sim_usage_error(&command,
                                       "--policies, --replicas, --capacity-blocks and --loads make more than "
                                       "%u rows",
                                       CELLS_MAX);
        return -1;
}

static int parse_down(struct simulate *simulate)
{
        const char *at = simulate->arguments.down;
        uint32_t least = UINT32_MAX;

        for (uint32_t i = 0; i < simulate->replica_count; i++)
                least = simulate->replicas[i] < least ? simulate->replicas[i] : least;
        while (at && *at) {
                size_t len = strcspn(at, ",");
                struct sim_des_outage *outage = &simulate->outages[simulate->outage_count];

                if (simulate->outage_count == OUTAGES_MAX)
                        return sim_usage_error(&command, "--down: more than %d", OUTAGES_MAX);
                if (!sim_simulate_outage(at, len, outage))
                        return sim_usage_error(&command,
                                               "--down: '%.*s' is not of the form R@FROM-TO, as in --down "
                                               "3@600-900",
                                               (int)len, at);
                if (outage->replica >= least)
                        return sim_usage_error(&command, "--down: there is no replica %u in a fleet of %u",
                                               outage->replica, least);
                simulate->outage_count++;
                at += len + (at[len] == ',');
        }
        for (uint32_t i = 0; i < simulate->policy_count && simulate->outage_count; i++) {
                if (simulate->arguments.reference || sim_des_rule_exists(simulate->policies[i]))
                        return sim_usage_error(&command,
                                               "--down: only for policies of kvroute serve, not '%s'",
                                               simulate->policies[i]);
        }
        return -1;
}

static int parse_rest(struct simulate *simulate)
{
        const struct arguments *a = &simulate->arguments;

        if (!a->from || !sim_simulate_seconds(a->from, &simulate->from_s))
                return sim_usage_error(&command, "--from: '%s' is not a time like 7200 or 2h",
                                       a->from ? a->from : "");
        if (!a->to || !sim_simulate_seconds(a->to, &simulate->to_s))
                return sim_usage_error(&command, "--to: '%s' is not a time like 14400 or 4h",
                                       a->to ? a->to : "");
        if (simulate->to_s > 0 && simulate->to_s <= simulate->from_s)
                return sim_usage_error(&command, "--to: %s is not behind --from %s", a->to, a->from);
        if (a->json && a->csv)
                return sim_usage_error(&command, "--csv: not together with --json");
        simulate->cost = sim_cost_find(a->preset ? a->preset : "");
        if (!simulate->cost)
                return sim_usage_error(&command,
                                       "--preset: there is no '%s'; kvroute mock --help lists the presets",
                                       a->preset ? a->preset : "");
        if (a->requests && (a->reference || cells_of(simulate) != 1))
                return sim_usage_error(
                        &command, "--requests: for one policy, fleet size, cache size, load and file, and "
                                  "not with --reference");
        if (a->ttft_target > 0 && !(a->reference && a->loads))
                return sim_usage_error(&command, "--ttft-target: needs --reference and --loads");
        return -1;
}

/* ---- the grid ----------------------------------------------------------------------------------------- */

static bool cells_make(struct simulate *simulate)
{
        uint32_t at = 0;

        simulate->cell_count = (uint32_t)cells_of(simulate);
        if (!simulate->cell_count)
                return false;
        simulate->cells = calloc(simulate->cell_count, sizeof(*simulate->cells));
        simulate->rows = calloc(simulate->cell_count, sizeof(*simulate->rows));
        if (simulate->arguments.requests)
                simulate->records = calloc(simulate->files[0].trace.row_count, sizeof(*simulate->records));
        if (!simulate->cells || !simulate->rows || (simulate->arguments.requests && !simulate->records))
                return false;
        for (uint32_t file = 0; file < simulate->path_count; file++)
                for (uint32_t load = 0; load < simulate->load_count; load++)
                        for (uint32_t replicas = 0; replicas < simulate->replica_count; replicas++)
                                for (uint32_t capacity = 0; capacity < simulate->capacity_count; capacity++)
                                        for (uint32_t policy = 0; policy < simulate->policy_count; policy++)
                                                simulate->cells[at++] = (struct cell){
                                                        .file = file,
                                                        .load = simulate->loads[load],
                                                        .replicas = simulate->replicas[replicas],
                                                        .capacity_blocks = simulate->capacities[capacity],
                                                        .policy = simulate->policies[policy],
                                                };
        return true;
}

static const char *base_name(const char *path)
{
        const char *slash = strrchr(path, '/');

        return slash && slash[1] ? slash + 1 : path;
}

/* Rows of one time come evenly within the given one; their order stays. */
static void spread(struct sim_trace *trace, double within_s)
{
        for (uint32_t first = 0, end; first < trace->row_count; first = end) {
                double time_s = trace->rows[first].time_s;

                for (end = first; end < trace->row_count && trace->rows[end].time_s <= time_s;)
                        end++;
                for (uint32_t i = first; i < end; i++)
                        trace->rows[i].time_s = time_s + within_s * (i - first) / (end - first);
        }
}

static int files_read(struct simulate *simulate)
{
        struct sim_trace_options how = {
                .block_tokens = (uint32_t)simulate->arguments.block_tokens,
                .from_s = simulate->from_s,
                .to_s = simulate->to_s,
        };
        char message[512];

        for (unsigned i = 0; i < simulate->path_count; i++) {
                struct file *file = &simulate->files[i];

                if (!sim_trace_read(simulate->paths[i], &how, &file->trace, message, sizeof(message))) {
                        fprintf(stderr, "kvroute simulate: %s\n", message);
                        return 1;
                }
                spread(&file->trace, simulate->arguments.spread);
                file->replay = sim_replay_new(&file->trace);
                if (!file->replay) {
                        fprintf(stderr, "kvroute simulate: out of memory\n");
                        return 1;
                }
        }
        return -1;
}

/* ---- one cell ----------------------------------------------------------------------------------------- */

static void take_replay(const struct sim_replay_result *result, bool queue, struct sim_simulate_row *row)
{
        row->hit_rate = result->token_hit;
        row->block_hit_rate = result->block_hit;
        row->request_hit_rate = result->request_hit;
        row->max_over_mean = result->request_max_over_mean;
        row->cv = result->request_cv;
        row->work_max_over_mean = result->work_max_over_mean;
        row->work_cv = result->work_cv;
        row->hot_p95 = result->hot_p95;
        row->dropped = (double)result->dropped;
        if (!queue)
                return;
        row->ttft_mean = result->ttft_mean;
        row->ttft_p50 = result->ttft_p50;
        row->ttft_p90 = result->ttft_p90;
        row->ttft_p99 = result->ttft_p99;
        row->busy_mean = result->busy_mean;
        row->busy_max = result->busy_max;
}

static bool run_reference(const struct simulate *simulate, const struct cell *cell,
                          struct sim_simulate_row *row)
{
        const struct file *file = &simulate->files[cell->file];
        struct sim_replay_options how = {
                .replicas = cell->replicas,
                .capacity_blocks = cell->capacity_blocks,
                .load = cell->load,
        };
        struct sim_replay_result result, at_capacity;

        if (!sim_replay_policy_find(cell->policy, &how.policy) ||
            !sim_replay_run(file->replay, &how, &result))
                return false;
        take_replay(&result, cell->load > 0, row);
        if (cell->load > 0) {
                row->load = cell->load;
                row->speed = 1;
        }
        return simulate->arguments.ttft_target <= 0 ||
               sim_replay_capacity(file->replay, &how, simulate->arguments.ttft_target, &row->capacity,
                                   &at_capacity);
}

static void take_des(struct sim_des_result *result, struct sim_simulate_row *row)
{
        row->requests = (double)result->requests;
        row->rejected = (double)result->rejected;
        row->failed = (double)result->failed;
        row->retried = (double)result->retried;
        if (result->prompt_tokens) {
                row->hit_rate = (double)result->cached_tokens / (double)result->prompt_tokens;
                row->predicted_hit_rate = (double)result->predicted_tokens / (double)result->prompt_tokens;
                row->block_hit_rate = (double)result->cached_blocks / (double)result->blocks;
                row->request_hit_rate = (double)result->hits / (double)result->requests;
        }
        row->ttft_mean = sim_samples_mean(&result->ttft);
        row->ttft_p50 = sim_samples_percentile(&result->ttft, 0.5);
        row->ttft_p90 = sim_samples_percentile(&result->ttft, 0.9);
        row->ttft_p99 = sim_samples_percentile(&result->ttft, 0.99);
        row->tpot_mean = sim_samples_mean(&result->tpot);
        row->tpot_p99 = sim_samples_percentile(&result->tpot, 0.99);
        row->e2e_mean = sim_samples_mean(&result->e2e);
        row->e2e_p50 = sim_samples_percentile(&result->e2e, 0.5);
        row->e2e_p90 = sim_samples_percentile(&result->e2e, 0.9);
        row->e2e_p99 = sim_samples_percentile(&result->e2e, 0.99);
        row->max_over_mean = result->request_max_over_mean;
        row->cv = result->request_cv;
        row->work_max_over_mean = result->work_max_over_mean;
        row->work_cv = result->work_cv;
        row->hot_p95 = result->hot_p95;
        row->busy_mean = result->busy_mean;
        row->busy_max = result->busy_max;
        row->dropped = (double)result->evicted_blocks;
        row->preempted = (double)result->preempted;
}

static bool run_engines(const struct simulate *simulate, const struct cell *cell,
                        struct sim_simulate_row *row, _Atomic uint64_t *progress)
{
        const struct sim_trace *trace = &simulate->files[cell->file].trace;
        const struct arguments *a = &simulate->arguments;
        double own_load = sim_des_load(trace, simulate->cost, (uint32_t)a->step_tokens, cell->replicas);
        struct sim_des_options how = {
                .policy = cell->policy,
                .replay = simulate->files[cell->file].replay,
                .replicas = cell->replicas,
                .routers = (uint32_t)a->routers,
                .capacity_blocks = cell->capacity_blocks,
                .speed = cell->load > 0 ? cell->load / own_load : 1,
                .cost = *simulate->cost,
                .step_tokens = (uint32_t)a->step_tokens,
                .max_running = (uint32_t)a->max_running,
                .report_s = a->report_interval,
                .token_ids = strcmp(a->prompts, "ids") == 0,
                .sessions = a->sessions,
                .closed_loop = a->closed_loop,
                .seed = a->seed,
                .records = simulate->records,
                .outages = simulate->outages,
                .outage_count = simulate->outage_count,
        };
        struct sim_des_result result;
        char message[256] = "";

        if (!sim_des_run(trace, &how, progress, &result, message, sizeof(message))) {
                fprintf(stderr, "kvroute simulate: %s with %u replicas: %s\n", cell->policy, cell->replicas,
                        message);
                return false;
        }
        row->load = cell->load > 0 ? cell->load : own_load;
        row->speed = how.speed;
        take_des(&result, row);
        sim_des_result_fini(&result);
        return true;
}

static bool run_cell(void *ctx, uint32_t number, _Atomic uint64_t *progress)
{
        struct simulate *simulate = ctx;
        const struct cell *cell = &simulate->cells[number];
        const struct file *file = &simulate->files[cell->file];
        struct sim_simulate_row *row = &simulate->rows[number];
        bool good;

        sim_simulate_row_init(row);
        row->trace = base_name(simulate->paths[cell->file]);
        row->policy = cell->policy;
        row->replicas = cell->replicas;
        row->capacity_blocks = cell->capacity_blocks;
        row->block_tokens = file->trace.block_tokens;
        if (!simulate->arguments.reference)
                return run_engines(simulate, cell, row, progress);
        row->requests = file->trace.row_count;
        good = run_reference(simulate, cell, row);
        if (!good)
                fprintf(stderr, "kvroute simulate: out of memory\n");
        atomic_fetch_add(progress, file->trace.row_count);
        return good;
}

static int run_all(struct simulate *simulate)
{
        long processors = sysconf(_SC_NPROCESSORS_ONLN);
        uint64_t threads = simulate->arguments.threads;
        struct sim_pool pool = {
                .tasks = simulate->cell_count,
                .threads = (uint32_t)(threads          ? threads
                                      : processors > 0 ? (uint64_t)processors
                                                       : 1),
                .run = run_cell,
                .ctx = simulate,
                .title = "simulate",
                .quiet = !simulate->arguments.progress,
        };

        for (uint32_t i = 0; i < simulate->cell_count; i++)
                pool.total += simulate->files[simulate->cells[i].file].trace.row_count;
        return sim_pool_run(&pool) ? -1 : 1; /* whoever failed has said why */
}

static int write_requests(const struct simulate *simulate)
{
        const char *path = simulate->arguments.requests;
        FILE *file = path ? fopen(path, "we") : NULL;
        bool good;

        if (!path)
                return -1;
        if (!file) {
                fprintf(stderr, "kvroute simulate: --requests: cannot write %s\n", path);
                return 1;
        }
        sim_simulate_requests(&simulate->files[0].trace, simulate->records, file);
        good = !ferror(file);
        if (fclose(file) == 0 && good)
                return -1;
        fprintf(stderr, "kvroute simulate: --requests: cannot write %s\n", path);
        return 1;
}

static int print_all(const struct simulate *simulate)
{
        struct sim_buf buf = {0};
        bool good;

        sim_simulate_print(simulate->rows, simulate->cell_count,
                           simulate->arguments.json  ? SIM_SIMULATE_JSON
                           : simulate->arguments.csv ? SIM_SIMULATE_CSV
                                                     : SIM_SIMULATE_TABLE,
                           &buf);
        good = !buf.failed && fwrite(buf.data, 1, buf.len, stdout) == buf.len && fflush(stdout) == 0;
        sim_buf_fini(&buf);
        if (!good)
                fprintf(stderr, "kvroute simulate: cannot write the results\n");
        return good ? 0 : 1;
}

static void clean_up(struct simulate *simulate)
{
        for (unsigned i = 0; i < FILES_MAX; i++) {
                sim_replay_free(simulate->files[i].replay);
                sim_trace_fini(&simulate->files[i].trace);
        }
        free(simulate->records);
        free(simulate->cells);
        free(simulate->rows);
        free(simulate);
}

int sim_simulate_main(int argc, char **argv)
{
        struct simulate *simulate = calloc(1, sizeof(*simulate));
        int status;

        if (!simulate) {
                fprintf(stderr, "kvroute simulate: out of memory\n");
                return 1;
        }
        status = sim_options_main(&command, argc, argv, &simulate->arguments, simulate->paths,
                                  &simulate->path_count);
        if (status < 0)
                status = parse_policies(simulate);
        if (status < 0)
                status = parse_lists(simulate);
        if (status < 0)
                status = parse_down(simulate);
        if (status < 0)
                status = parse_rest(simulate);
        if (status < 0)
                status = files_read(simulate);
        if (status < 0 && !cells_make(simulate)) {
                fprintf(stderr, "kvroute simulate: out of memory\n");
                status = 1;
        }
        if (status < 0)
                status = run_all(simulate);
        if (status < 0)
                status = write_requests(simulate);
        if (status < 0)
                status = print_all(simulate);
        clean_up(simulate);
        return status;
}
