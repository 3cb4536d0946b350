/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a simulation costs: reading a trace, the reference model's table of caches (every rule that needs no
 * queue, caches of 1,000, 4,000 and 16,000 blocks, 8 replicas), the whole engines with the router's brain, and
 * a million requests of the same trace in either way.
 *
 *     bench_simulate [FILE]
 *
 * FILE is mooncake-conversation.jsonl.gz in the directory KVROUTE_TRACES by default, or else the extract of
 * it that the tests use.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim/des.h"
#include "sim/replay.h"

#define REQUESTS 1000000u

static double now_s(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(bool good, const char *what)
{
        if (good)
                return;
        fprintf(stderr, "bench_simulate: %s\n", what);
        exit(1);
}

static void read_trace(const char *path, struct sim_trace *ret)
{
        struct sim_trace_options any = {0};
        char message[512] = "";
        double began = now_s();

        must(sim_trace_read(path, &any, ret, message, sizeof(message)), message);
        printf("%s: %u requests, %" PRIu64 " blocks of %u tokens\n", path, ret->row_count, ret->id_count,
               ret->block_tokens);
        printf("read                       %8.1f ms\n", (now_s() - began) * 1e3);
}

/* Returns the number of replays. */
static uint32_t table(const struct sim_replay *replay)
{
        static const uint32_t capacities[] = {1000, 4000, 16000};
        uint32_t replays = 0;

        for (size_t i = 0; i < 3; i++) {
                for (unsigned policy = 0; policy < SIM_REPLAY_POLICIES; policy++) {
                        struct sim_replay_options options = {
                                .policy = (enum sim_replay_policy)policy,
                                .replicas = 8,
                                .capacity_blocks = capacities[i],
                        };
                        struct sim_replay_result result;

                        if (!sim_replay_policy_fits(options.policy, false))
                                continue;
                        must(sim_replay_run(replay, &options, &result), "out of memory");
                        replays++;
                }
        }
        return replays;
}

static void bench_table(const struct sim_trace *trace)
{
        double began = now_s(), ended;
        struct sim_replay *replay = sim_replay_new(trace);
        uint32_t replays;

        must(replay != NULL, "out of memory");
        replays = table(replay);
        ended = now_s();
        printf("reference, %2u replays      %8.1f ms   %.0f ns a request\n", replays, (ended - began) * 1e3,
               (ended - began) * 1e9 / replays / trace->row_count);
        sim_replay_free(replay);
}

/* The trace over and over, one hour after the other, until there are a million requests. */
static void repeat(const struct sim_trace *trace, struct sim_trace *ret)
{
        uint32_t times = (REQUESTS + trace->row_count - 1) / trace->row_count;
        double span = trace->rows[trace->row_count - 1].time_s + 1;

        *ret = *trace;
        ret->rows = malloc((size_t)times * trace->row_count * sizeof(*ret->rows));
        ret->ids = malloc(times * trace->id_count * sizeof(*ret->ids));
        must(ret->rows && ret->ids, "out of memory");
        for (uint32_t i = 0; i < times; i++) {
                struct sim_trace_row *rows = ret->rows + (size_t)i * trace->row_count;

                memcpy(ret->ids + i * trace->id_count, trace->ids, trace->id_count * sizeof(*ret->ids));
                memcpy(rows, trace->rows, trace->row_count * sizeof(*rows));
                for (uint32_t at = 0; at < trace->row_count; at++) {
                        rows[at].time_s += i * span;
                        rows[at].first_id += i * trace->id_count;
                }
        }
        ret->row_count = REQUESTS;
        ret->id_count *= times;
}

/* The trace at its own pace on eight engines, by the router's brain. */
static void bench_engines(const struct sim_trace *trace, size_t policies)
{
        static const char *const names[] = {"kv", "round_robin"};

        for (size_t i = 0; i < policies; i++) {
                struct sim_des_options options = {
                        .policy = names[i],
                        .replicas = 8,
                        .routers = 1,
                        .capacity_blocks = 4000,
                        .speed = 1,
                        .cost = *sim_cost_preset(0),
                        .step_tokens = 2048,
                        .max_running = 256,
                        .report_s = 1,
                        .seed = 1,
                };
                _Atomic uint64_t progress = 0;
                struct sim_des_result result;
                char message[256] = "";
                double began = now_s(), took;

                must(sim_des_run(trace, &options, &progress, &result, message, sizeof(message)), message);
                took = now_s() - began;
                printf("engines, %7u %-11s %6.0f ms   %.1f us a request, %" PRIu64
                       " steps, %.0f times as fast as the clock\n",
                       trace->row_count, names[i], took * 1e3, took * 1e6 / trace->row_count, result.steps,
                       result.end_s / took);
                sim_des_result_fini(&result);
        }
}

static void bench_million(const struct sim_trace *trace)
{
        struct sim_trace million;
        struct sim_replay *replay;
        struct sim_replay_options options = {.replicas = 8, .capacity_blocks = 4000, .load = 1};
        struct sim_replay_result result;
        double began;

        repeat(trace, &million);
        began = now_s();
        replay = sim_replay_new(&million);
        must(replay != NULL, "out of memory");
        options.policy = SIM_REPLAY_COST_T;
        must(sim_replay_run(replay, &options, &result), "out of memory");
        printf("a million requests, queue  %8.1f ms   block hit %.4f\n", (now_s() - began) * 1e3,
               result.block_hit);
        sim_replay_free(replay);
        bench_engines(&million, 1);
        sim_trace_fini(&million);
}

int main(int argc, char **argv)
{
        const char *folder = getenv("KVROUTE_TRACES");
        struct sim_trace trace;
        char path[1024];

        if (argc > 1)
                snprintf(path, sizeof(path), "%s", argv[1]);
        else if (folder && *folder)
                snprintf(path, sizeof(path), "%s/mooncake-conversation.jsonl.gz", folder);
        else
                snprintf(path, sizeof(path), "%s/traces/conversation.jsonl.gz", TEST_DATA);
        read_trace(path, &trace);
        bench_table(&trace);
        bench_engines(&trace, 2);
        bench_million(&trace);
        sim_trace_fini(&trace);
        return 0;
}
