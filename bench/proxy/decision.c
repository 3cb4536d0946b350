/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What routing adds to a request, through the public API alone: the prompt's keys out of the body
 * (kvr_prompt_parse), the choice (kvr_decide), and first token and settlement together; median and 99th
 * percentile by body size and fleet.
 *
 *     decision [ROUNDS [ENTRIES]]
 *
 * "group": prompts of 64 groups, 75 % of each is its group's. "unseen": nothing of the prompt was ever sent.
 * Before that the index is filled with ENTRIES (prefix, replica) pairs of other traffic; 64 requests are
 * always in flight.
 */
#include <kvroute/kvroute.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "bodies.h"

#define IN_FLIGHT  64
#define WARM_BYTES 32768

enum step { PARSE, DECIDE, SETTLE, TOTAL, STEPS };

struct flight {
        struct kvr_ticket *ticket;
        int64_t prompt_tokens, cached_tokens;
};

struct bench {
        struct kvr_router *router;
        struct kvr_parser *parser;
        uint64_t random;
        struct flight flights[IN_FLIGHT];
        unsigned at;
        char *body;
        size_t body_len;
        uint64_t *took[STEPS];
};

static uint64_t now_ns(void *ctx)
{
        struct timespec t;

        (void)ctx;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t random64(void *ctx)
{
        struct bench *bench = ctx;
        uint64_t z = bench->random += 0x9E3779B97F4A7C15ull;

        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        return z ^ (z >> 31);
}

static void must(bool fine, const char *what)
{
        if (fine)
                return;
        fprintf(stderr, "decision: %s failed\n", what);
        exit(1);
}

static void fleet_open(struct bench *bench, unsigned replicas)
{
        struct kvr_settings settings = {.index_memory_bytes = 512u << 20};
        struct kvr_env env = {now_ns, random64, bench};

        must(kvr_router_new(&settings, &env, &bench->router, NULL) == KVR_OK, "kvr_router_new");
        for (unsigned i = 0; i < replicas; i++) {
                char name[16];
                struct kvr_replica_spec spec = {
                        .name = name, .block_tokens = 16, .capacity_tokens = 20000000};
                kvr_replica_id id;

                snprintf(name, sizeof name, "r%u", i);
                must(kvr_replica_add(bench->router, &spec, &id, NULL) == KVR_OK &&
                             kvr_replica_set_state(bench->router, id, KVR_READY) == KVR_OK,
                     "kvr_replica_add");
        }
}

static void settle(struct flight *flight)
{
        struct kvr_outcome outcome = {
                .end = KVR_END_FINISHED,
                .prompt_tokens = flight->prompt_tokens,
                .cached_tokens = flight->cached_tokens,
                .completion_tokens = 100,
        };

        if (!flight->ticket)
                return;
        kvr_ticket_first_token(flight->ticket);
        kvr_ticket_settle(flight->ticket, &outcome, NULL);
        flight->ticket = NULL;
}

static void fleet_close(struct bench *bench)
{
        for (unsigned i = 0; i < IN_FLIGHT; i++)
                settle(&bench->flights[i]);
        kvr_router_free(bench->router);
}

/* One request; its times go to row `round` of took[]. A request sent IN_FLIGHT ago is settled. */
static void request(struct bench *bench, size_t round)
{
        struct flight *flight = &bench->flights[bench->at++ % IN_FLIGHT];
        struct kvr_prompt_options options = {.seed = 42};
        struct kvr_prompt prompt;
        struct kvr_request request = {.prompt = &prompt};
        struct kvr_decision decision;
        struct kvr_slice body = {bench->body, bench->body_len};
        uint64_t start, parsed, decided, settled;
        struct kvr_ticket *ticket;

        start = now_ns(NULL);
        must(kvr_prompt_parse(bench->parser, KVR_API_CHAT, body, &options, &prompt, NULL) == KVR_OK,
             "kvr_prompt_parse");
        parsed = now_ns(NULL);
        must(kvr_decide(bench->router, &request, &decision, &ticket, NULL) == KVR_OK, "kvr_decide");
        decided = now_ns(NULL);
        settle(flight);
        settled = now_ns(NULL);
        *flight = (struct flight){ticket, decision.prompt_tokens, decision.match_tokens};
        bench->took[PARSE][round] = parsed - start;
        bench->took[DECIDE][round] = decided - parsed;
        bench->took[SETTLE][round] = settled - decided;
        bench->took[TOTAL][round] = settled - start;
}

static void take_body(struct bench *bench, const struct bodies *bodies, uint64_t number, bool unseen)
{
        struct body body = {0};
        char *group;

        bodies_get(bodies, number, &body);
        bench->body_len = 0;
        for (unsigned i = 0; i < BODIES_PIECES; i++) {
                memcpy(bench->body + bench->body_len, body.pieces[i].iov_base, body.pieces[i].iov_len);
                bench->body_len += body.pieces[i].iov_len;
        }
        if (!unseen)
                return;
        /* Another beginning of the first message makes every key another one. */
        group = memmem(bench->body, bench->body_len, "Group", 5);
        must(group, "bodies");
        for (unsigned i = 0; i < 5; i++, number /= 26)
                group[i] = (char)('a' + number % 26);
}

static void fill_index(struct bench *bench, uint64_t entries)
{
        struct bodies_settings settings = {
                .bytes = WARM_BYTES, .groups = 64, .share_percent = 50, .seed = 99};
        struct bodies *bodies = bodies_new(&settings);
        struct kvr_index_info info;

        must(bodies, "bodies");
        for (uint64_t number = 0;; number++) {
                take_body(bench, bodies, number, number % 2);
                request(bench, 0);
                if (number % 64)
                        continue;
                kvr_router_index_info(bench->router, &info);
                if (info.entries >= entries || info.evictions)
                        break;
        }
        bodies_free(bodies);
}

/* How often this thread lost the processor against its will. */
static long preemptions(void)
{
        struct rusage usage;

        must(getrusage(RUSAGE_THREAD, &usage) == 0, "getrusage");
        return usage.ru_nivcsw;
}

static int by_value(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return x < y ? -1 : x > y;
}

static void measure(struct bench *bench, unsigned replicas, size_t bytes, bool unseen, size_t rounds)
{
        struct bodies_settings settings = {
                .bytes = bytes, .groups = 64, .share_percent = 75, .seed = 7 + bytes};
        struct bodies *bodies = bodies_new(&settings);
        size_t kept = 0, lost = 0;

        must(bodies, "bodies");
        for (size_t i = 0; i < 256; i++) {
                take_body(bench, bodies, i, unseen);
                request(bench, 0);
        }
        while (kept < rounds && lost < rounds) {
                long before = preemptions();

                take_body(bench, bodies, kept + lost + 256, unseen);
                request(bench, kept);
                if (preemptions() == before)
                        kept++;
                else
                        lost++;
        }
        must(kept == rounds, "to get the processor for half of the time");
        for (unsigned s = 0; s < STEPS; s++)
                qsort(bench->took[s], rounds, sizeof **bench->took, by_value);
        printf("%8u %7zu KB  %-6s", replicas, bytes / 1024, unseen ? "unseen" : "group");
        for (unsigned s = 0; s < STEPS; s++) {
                size_t middle = rounds / 2, late = rounds * 99 / 100;

                printf("  %8.1f %8.1f", (double)bench->took[s][middle] / 1e3,
                       (double)bench->took[s][late] / 1e3);
        }
        printf("  %6zu\n", lost);
        bodies_free(bodies);
}

static void measure_fleet(struct bench *bench, unsigned replicas, uint64_t entries, size_t rounds)
{
        static const size_t sizes[] = {1, 8, 32, 128, 512};
        struct kvr_index_info info;

        fleet_open(bench, replicas);
        fill_index(bench, entries);
        for (unsigned unseen = 0; unseen < 2; unseen++) {
                for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                        measure(bench, replicas, sizes[i] * 1024, unseen, rounds);
        }
        kvr_router_index_info(bench->router, &info);
        printf("         index: %llu entries in %.1f MiB\n", (unsigned long long)info.entries,
               (double)info.bytes / 1048576);
        fleet_close(bench);
}

int main(int argc, char **argv)
{
        size_t rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 2000;
        uint64_t entries = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000000;
        static struct bench bench;

        if (rounds == 0)
                return 2;
        bench.parser = kvr_parser_new();
        bench.body = malloc(BODIES_BYTES_MAX);
        must(bench.parser && bench.body, "malloc");
        for (unsigned s = 0; s < STEPS; s++) {
                bench.took[s] = malloc(rounds * sizeof **bench.took);
                must(bench.took[s], "malloc");
        }
        printf("microseconds                      parse             decide             settle              "
               "total    left\n"
               "replicas       body  prompts   p50      p99       p50      p99       p50      p99       p50  "
               "    p99     out\n");
        measure_fleet(&bench, 8, entries, rounds);
        measure_fleet(&bench, 64, entries, rounds);
        for (unsigned s = 0; s < STEPS; s++)
                free(bench.took[s]);
        kvr_parser_free(bench.parser);
        free(bench.body);
        return 0;
}
