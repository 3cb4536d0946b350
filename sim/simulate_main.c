/* SPDX-License-Identifier: Apache-2.0 */
/* The command `kvroute simulate`: a trace, policies, fleets of several sizes, in virtual time. */
#include "commands.h"
#include "options.h"
#include "simulate_int.h"

#include <kvroute/router.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELLS_MAX 65536u

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
        O(cost, "cost", SIM_OPT_STRING, 0, 0, "KEY=NUMBER[,...]", "",
          "other figures than the preset's: a to i, q, prefill_min, decode_min, in milliseconds "
          "(docs/mock.md)"),
        O(calibrate, "calibrate", SIM_OPT_STRING, 0, 0, "LOG", "",
          "fit a, b, c, d (first token) and e, f, g (the others) to this access log of kvroute serve "
          "instead; "
          "without FILE only tell the fit"),
        O(speeds, "speeds", SIM_OPT_STRING, 0, 0, "X[,X...]", "",
          "how fast replicas are, 1 as the preset says: 1,0.5 makes every other one half as fast"),
        O(processors, "processors", SIM_OPT_NUMBER, 0, 4096, "N", "0",
          "that all replicas share, as servers on one machine do: while more than N (1.5, say) compute at "
          "once each is that much slower; 0: each has its own"),
        O(slots, "slots", SIM_OPT_COUNT, 0, SIM_SLOTS_MAX, "N", "0",
          "engines like a llama.cpp server's with so many slots, which share --capacity-blocks; 0: a block "
          "cache like vLLM's"),
        O(slot_memory, "slot-memory-blocks", SIM_OPT_COUNT, 0, SIM_DES_CAPACITY_MAX, "N", "4000",
          "with --slots: blocks of whole prompts kept in host memory (--cache-ram)"),
        O(step_tokens, "step-tokens", SIM_OPT_COUNT, 1, 16777216, "N", "2048", "token budget of a step"),
        O(max_running, "max-running", SIM_OPT_COUNT, 1, 65536, "N", "256", "requests in a step"),
        O(report_interval, "metrics-interval", SIM_OPT_SECONDS, 0, 3600, "TIME", "1s",
          "between two load reports of an engine; 0: none"),
        O(report_delay, "metrics-delay", SIM_OPT_SECONDS, 0, 60, "TIME", "0",
          "so old is a load report when routers get it"),
        O(index, "index", SIM_OPT_CHOICE, 0, 0, "history|events|oracle", "history",
          "what routers go by: what they sent where, what engines tell of their caches, or what these really "
          "hold at that moment (the last two not with --slots)"),
        O(events_delay, "events-delay", SIM_OPT_SECONDS, 0, 60, "TIME", "0",
          "so old are the engines' events when routers get them"),
        O(events_lost, "events-lost", SIM_OPT_NUMBER, 0, 100, "PERCENT", "0",
          "of the messages that carry events, to each router on its own"),
        O(events_replay, "events-replay", SIM_OPT_SECONDS, 0, 3600, "TIME", "10ms",
          "from when a router asks for messages that are missing to when it has them; 0: it cannot ask"),
        O(events_buffer, "events-buffer", SIM_OPT_COUNT, 1, 16777216, "N", "10000",
          "messages that an engine keeps to be asked for again"),
        O(events_relearn, "events-relearn", SIM_OPT_SECONDS, 0.001, 86400, "TIME", "30s",
          "without a fault after a loss for good, then a router trusts an engine's events again"),
        O(routers, "routers", SIM_OPT_COUNT, 1, SIM_DES_ROUTERS_MAX, "N", "1",
          "that get requests in turn and know but their own"),
        O(down, "down", SIM_OPT_STRING, 0, 0, "R@FROM-TO[,...]", "",
          "replica number R (from 0) is lost from FROM to TO seconds of the run and comes back empty; "
          "without -TO for good, with FROM 0 it is new at TO"),
        O(restart, "restart", SIM_OPT_STRING, 0, 0, "R@TIME[,...]", "",
          "replica number R restarts at TIME of the run: it loses what it computes and holds, its messages "
          "begin anew, and nobody tells the routers"),
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
        O(session_gap, "session-gap", SIM_OPT_SECONDS, 0.001, 86400, "TIME", "20s",
          "mean time between the beginnings of JSON sessions, which have no common clock"),
        O(spread, "spread", SIM_OPT_SECONDS, 0, 3600, "TIME", "0",
          "rows with one time are spread evenly over so long: traces with rounded times"),
        SIM_OPTION_GROUP("Reference model (docs/simulate.md defines it)"),
        O(reference, "reference", SIM_OPT_FLAG, 0, 0, "", "off",
          "caches and a queue, no engine and no router"),
        O(told, "told-capacity", SIM_OPT_NUMBER, 0.01, 100, "X", "1",
          "kv is told that caches are so many times as large as they are"),
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
                   "FILE is JSON Lines in Mooncake's layout, JSON sessions of Claude Code (Weka; a file or a "
                   "directory),\n"
                   "an access log of kvroute serve, a CSV of lengths, or a CSV of sessions, also gzip; or\n"
                   "synthetic:KEY=NUMBER,... with requests, rate, groups, zipf, prefix, question, output, "
                   "turns, gap, "
                   "spread, seed.",
        .examples = "  kvroute simulate conversation.jsonl.gz\n"
                    "  kvroute simulate --policies kv,least_tokens,sglang_cache_aware --replicas 8,16 "
                    "--loads 0.5,1.0 "
                    "conversation.jsonl.gz\n"
                    "  kvroute simulate --loads 0.8 synthetic:requests=5000,groups=64,prefix=2048,turns=4\n"
                    "  kvroute simulate --reference --capacity-blocks 1000,4000,16000 conversation.jsonl.gz\n"
                    "  kvroute simulate --slots 4 --capacity-blocks 500 --closed-loop sessions/\n"
                    "  kvroute simulate --calibrate access.log access.log\n"
                    "  kvroute simulate --reference --loads 1.0 --ttft-target 10s conversation.jsonl.gz\n",
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
        .positional_max = FILES_MAX,
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
        if (a->speeds &&
            !sim_simulate_numbers(a->speeds, 0.01, 100, simulate->speeds, &simulate->speed_count))
                return sim_usage_error(&command,
                                       "--speeds: '%s' is not a list of numbers from 0.01 to 100, as in "
                                       "--speeds 1,1,0.5",
                                       a->speeds);
        if (a->reference && (a->speeds || a->processors > 0))
                return sim_usage_error(&command, "--%s: not with --reference, where all replicas are alike",
                                       a->speeds ? "speeds" : "processors");
        if (sim__simulate_cells(simulate) > CELLS_MAX)
                return sim_usage_error(&command,
                                       "--policies, --replicas, --capacity-blocks and --loads make more than "
                                       "%u rows",
                                       CELLS_MAX);
        return -1;
}

/* --down and --restart */
static int parse_outages(struct simulate *simulate, const char *at, bool restart)
{
        const char *name = restart ? "--restart" : "--down";
        const char *form = restart ? "R@TIME, as in --restart 3@600" : "R@FROM-TO, as in --down 3@600-900";
        uint32_t least = UINT32_MAX;

        for (uint32_t i = 0; i < simulate->replica_count; i++)
                least = simulate->replicas[i] < least ? simulate->replicas[i] : least;
        while (at && *at) {
                size_t len = strcspn(at, ",");
                struct sim_des_outage *outage = &simulate->outages[simulate->outage_count];

                if (simulate->outage_count == OUTAGES_MAX)
                        return sim_usage_error(&command, "%s: more than %d", name, OUTAGES_MAX);
                if (!(restart ? sim_simulate_restart : sim_simulate_outage)(at, len, outage))
                        return sim_usage_error(&command, "%s: '%.*s' is not of the form %s", name, (int)len,
                                               at, form);
                if (outage->replica >= least)
                        return sim_usage_error(&command, "%s: there is no replica %u in a fleet of %u", name,
                                               outage->replica, least);
                simulate->outage_count++;
                at += len + (at[len] == ',');
        }
        for (uint32_t i = 0; i < simulate->policy_count && simulate->outage_count; i++) {
                if (simulate->arguments.reference || sim_des_rule_exists(simulate->policies[i]))
                        return sim_usage_error(&command, "%s: only for policies of kvroute serve, not '%s'",
                                               name, simulate->policies[i]);
        }
        return -1;
}

/* The preset, or what was fitted, and over that what is given by hand. */
static int parse_cost(struct simulate *simulate)
{
        const struct arguments *a = &simulate->arguments;
        const struct sim_cost *preset = sim_cost_find(a->preset ? a->preset : "");
        char message[512] = "";

        if (!preset)
                return sim_usage_error(&command,
                                       "--preset: there is no '%s'; kvroute mock --help lists the presets",
                                       a->preset ? a->preset : "");
        simulate->cost = *preset;
        if (a->calibrate) {
                if (!sim_calibrate(a->calibrate, (uint32_t)a->step_tokens, &simulate->fit, message,
                                   sizeof(message))) {
                        fprintf(stderr, "kvroute simulate: --calibrate: %s\n", message);
                        return 1;
                }
                simulate->cost = simulate->fit.cost;
        }
        if (a->cost && !sim_simulate_cost(a->cost, &simulate->cost))
                return sim_usage_error(&command,
                                       "--cost: '%s' is not of the form KEY=NUMBER,..., as in --cost "
                                       "a=18.7,b=0.08 (keys: a to i, q, prefill_min, decode_min)",
                                       a->cost);
        return -1;
}

/* What the fit is: the result itself when there is no trace, else beside it. */
static int tell_fit(const struct simulate *simulate)
{
        const struct arguments *a = &simulate->arguments;
        FILE *file = simulate->path_count ? stderr : stdout;
        struct sim_buf buf = {0};
        bool good;

        if (!a->calibrate)
                return -1;
        if (simulate->path_count && a->json)
                return -1; /* it is in the object */
        if (a->json) {
                sim_buf_puts(&buf, "{\"calibration\":");
                sim_calibration_json(&simulate->fit, &buf);
                sim_buf_puts(&buf, "}\n");
        } else {
                sim_calibration_text(&simulate->fit, a->calibrate, &buf);
        }
        good = !buf.failed && fwrite(buf.data, 1, buf.len, file) == buf.len && fflush(file) == 0;
        sim_buf_fini(&buf);
        if (!good)
                fprintf(stderr, "kvroute simulate: cannot write the results\n");
        return !good ? 1 : simulate->path_count ? -1 : 0;
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
        if (a->report_delay > 0 && a->report_interval > 0 &&
            a->report_delay / a->report_interval > SIM_DES_REPORTS_MAX)
                return sim_usage_error(&command, "--metrics-delay: more than %u times the --metrics-interval",
                                       SIM_DES_REPORTS_MAX);
        if (a->slots && a->reference)
                return sim_usage_error(&command, "--slots: not with --reference");
        if (strcmp(a->index, "history") != 0 && (a->slots || a->reference || strcmp(a->prompts, "ids") == 0))
                return sim_usage_error(&command, "--index %s: not with --slots, --prompts ids or --reference",
                                       a->index);
        if (!simulate->path_count && !a->calibrate)
                return sim_usage_error(&command,
                                       "an argument is missing; usage: kvroute simulate [OPTIONS] FILE...");
        if (a->requests && (a->reference || sim__simulate_cells(simulate) != 1))
                return sim_usage_error(
                        &command, "--requests: for one policy, fleet size, cache size, load and file, and "
                                  "not with --reference");
        if (a->ttft_target > 0 && !(a->reference && a->loads))
                return sim_usage_error(&command, "--ttft-target: needs --reference and --loads");
        return -1;
}

/* ---- results ------------------------------------------------------------------------------------------ */

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
        size_t from = 0;
        bool good;

        if (simulate->arguments.calibrate && simulate->arguments.json) {
                sim_buf_puts(&buf, "{\"calibration\":");
                sim_calibration_json(&simulate->fit, &buf);
                sim_buf_puts(&buf, ",");
                from = buf.len;
        }
        sim_simulate_print(simulate->rows, simulate->cell_count,
                           simulate->arguments.json  ? SIM_SIMULATE_JSON
                           : simulate->arguments.csv ? SIM_SIMULATE_CSV
                                                     : SIM_SIMULATE_TABLE,
                           &buf);
        if (!buf.failed && from) /* the rows' object goes on with the fit's */
                buf.data[from] = ' ';
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
                status = parse_outages(simulate, simulate->arguments.down, false);
        if (status < 0)
                status = parse_outages(simulate, simulate->arguments.restart, true);
        if (status < 0)
                status = parse_rest(simulate);
        if (status < 0)
                status = parse_cost(simulate);
        if (status < 0)
                status = tell_fit(simulate);
        if (status < 0)
                status = sim__simulate_files_read(simulate);
        if (status < 0)
                status = sim__simulate_run(simulate);
        if (status < 0)
                status = write_requests(simulate);
        if (status < 0)
                status = print_all(simulate);
        clean_up(simulate);
        return status;
}
