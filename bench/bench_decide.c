/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cost of one decision with settlement, over a warm index: latency by prompt size and fleet size, and memory
 * per entry.
 *
 *     bench_decide [ENTRIES [ROUNDS [REPLICAS]]]
 *
 * With more ENTRIES than fit into 512 MiB it measures at the cap, where every new entry evicts an old one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/brain_test.h"
#include "lib/index_int.h"
#include "lib/router_int.h"

static uint64_t real_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return x < y ? -1 : x > y;
}

struct bench {
        struct brain_env env;
        struct kvr_router *router;
        uint32_t replicas;
        struct brain_prompt prompt;
};

static void fleet_make(struct bench *bench, uint32_t replicas, uint64_t memory)
{
        struct kvr_settings settings = {.index_memory_bytes = memory};
        struct kvr_env env = brain_env_of(&bench->env);

        bench->env = (struct brain_env){.now_ns = BRAIN_S(1000), .random = 1};
        bench->replicas = replicas;
        if (kvr_router_new(&settings, &env, &bench->router, NULL) != KVR_OK)
                abort();
        for (uint32_t i = 0; i < replicas; i++) {
                char name[32];
                kvr_replica_id id;

                snprintf(name, sizeof(name), "r%u", i);
                struct kvr_replica_spec spec = {.name = name, .block_tokens = 16};

                if (kvr_replica_add(bench->router, &spec, &id, NULL) != KVR_OK ||
                    kvr_replica_set_state(bench->router, id, KVR_READY) != KVR_OK)
                        abort();
        }
        bench->env.now_ns += BRAIN_S(60);
}

/* One request, from the decision to the settlement. Returns the nanoseconds that the library took. */
static uint64_t request_run(struct bench *bench, const struct kvr_prompt *prompt)
{
        struct kvr_request request = {.prompt = prompt};
        struct kvr_decision decision;
        struct kvr_ticket *ticket;
        uint64_t from = real_ns();

        if (kvr_decide(bench->router, &request, &decision, &ticket, NULL) != KVR_OK)
                abort();
        uint64_t took = real_ns() - from;
        struct kvr_outcome outcome = {
                .end = KVR_END_FINISHED,
                .prompt_tokens = decision.prompt_tokens,
                .cached_tokens = decision.match_tokens,
                .completion_tokens = 100,
        };

        bench->env.now_ns += BRAIN_MS(2);
        from = real_ns();
        kvr_ticket_first_token(ticket);
        bench->env.now_ns += BRAIN_MS(2);
        kvr_ticket_settle(ticket, &outcome, NULL);
        return took + (real_ns() - from);
}

/*
 * A shared preamble of an eighth, then a session that has grown to `bytes`; `turn` adds a little at the end.
 */
static const struct kvr_prompt *session_prompt(struct bench *bench, uint64_t session, uint64_t bytes,
                                               uint64_t turn)
{
        struct brain_prompt *p = &bench->prompt;

        brain_prompt_init(p);
        brain_message(p, 1, bytes / 8);
        brain_message(p, session * 2 + 1000, bytes - bytes / 8 - bytes / 64);
        brain_message(p, session * 1000 + turn, bytes / 64);
        return brain_prompt_done(p);
}

static void memory_print(const struct bench *bench)
{
        const struct kvr__index *index = bench->router->index;
        const struct kvr__table *table = &index->by_key;
        uint64_t lines = table->count + table->reserve.fresh - 1 - table->reserve.free_count;

        printf("%5u replicas  %llu pairs of %zu bytes, %llu nodes of %zu and %.1f of their table, %llu bytes "
               "in all\n",
               bench->replicas, (unsigned long long)index->pair_count, sizeof(struct pair),
               (unsigned long long)index->node_count, sizeof(struct node),
               (double)lines * sizeof(struct kvr__line) / (double)index->node_count,
               (unsigned long long)index->budget.bytes);
}

static void warm(struct bench *bench, uint64_t entries)
{
        struct kvr_index_info info;
        uint64_t session = 1 << 20;

        for (;;) {
                for (int i = 0; i < 64; i++)
                        request_run(bench, session_prompt(bench, session++, 32768, 0));
                kvr_router_index_info(bench->router, &info);
                if (info.entries >= entries || info.evictions)
                        return;
        }
}

static double percentile_us(const uint64_t *sorted_ns, int count, int percent)
{
        int at = count * percent / 100;

        return (double)sorted_ns[at] / 1e3;
}

static void measure(struct bench *bench, const char *what, uint64_t bytes, int rounds, int kind)
{
        uint64_t *took = calloc((size_t)rounds, sizeof(*took));
        uint64_t sessions = 200, base = bytes << 24;
        uint32_t points = 0;

        if (!took)
                abort();
        for (uint64_t s = 0; kind == 0 && s < sessions; s++)
                request_run(bench, session_prompt(bench, base + s, bytes, 0));
        for (int i = 0; i < rounds; i++) {
                uint64_t session =
                        kind == 0 ? brain_mix((uint64_t)i) % sessions : ((uint64_t)1 << 40) + (uint64_t)i;

                if (kind == 2)
                        took[i] = request_run(bench, brain_prompt_of(&bench->prompt, base + session, bytes));
                else
                        took[i] = request_run(bench,
                                              session_prompt(bench, base + session, bytes, (uint64_t)i + 1));
                points = bench->prompt.count;
        }
        qsort(took, (size_t)rounds, sizeof(*took), compare);
        /* The tenth percentile too: on a machine that others use, it is the one that can be compared. */
        printf("%5u replicas  %-14s %7llu KB %4u points   p10 %7.2f   p50 %7.2f   p99 %7.2f us\n",
               bench->replicas, what, (unsigned long long)bytes / 1024, points,
               percentile_us(took, rounds, 10), percentile_us(took, rounds, 50),
               percentile_us(took, rounds, 99));
        free(took);
}

int main(int argc, char **argv)
{
        uint64_t entries = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
        int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 5000;
        uint32_t only = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
        static const uint32_t fleets[] = {8, 64, 1000};
        static const uint64_t sizes[] = {1, 8, 128, 512};
        static struct bench bench;

        for (size_t f = 0; f < sizeof(fleets) / sizeof(fleets[0]); f++) {
                if (only && fleets[f] != only)
                        continue;
                fleet_make(&bench, fleets[f], 512ULL << 20);
                warm(&bench, entries);
                memory_print(&bench);
                for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
                        measure(&bench, "next turn", sizes[s] * 1024, rounds, 0);
                for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
                        measure(&bench, "new session", sizes[s] * 1024, rounds, 1);
                for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
                        measure(&bench, "all new", sizes[s] * 1024, rounds, 2);
                kvr_router_free(bench.router);
        }
        return 0;
}
