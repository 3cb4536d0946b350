/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cost of the ledger per settled request, by prompt size, with and without the counterfactual, and what a
 * reader of it costs.
 *
 *     bench_ledger [ROUNDS]
 *
 * Entries are booked as a settled ticket books them: sessions that go on, half of them groups with a system
 * prompt. The keys are made before the clock starts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/brain_test.h"
#include "lib/ledger_int.h"

#define REPLICAS 8
#define GROUPS   20
#define SESSIONS 400
#define TURNS    8
#define BATCH    64

static uint64_t real_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return x < y ? -1 : x > y;
}

struct bench {
        struct kvr_ledger *ledger;
        uint64_t candidates[KVR__SLOT_WORDS];
        uint64_t now_ns, serial;
        struct brain_prompt prompts[BATCH];
        struct kvr__ledger_entry entries[BATCH];
};

/* A turn of one of many sessions: a group's system prompt, what the session has grown to, a little that is
 * new. After some turns it is another session. Fresh: nothing anybody knows. */
static void prompt_make(struct bench *bench, uint32_t at, uint64_t bytes, bool fresh)
{
        struct brain_prompt *p = &bench->prompts[at];
        uint64_t serial = ++bench->serial, place = serial % SESSIONS, turn = serial / SESSIONS % TURNS;
        uint64_t session = place + SESSIONS * (serial / SESSIONS / TURNS), chance = brain_mix(serial);
        uint32_t known = 0;

        brain_prompt_init(p);
        if (fresh) {
                brain_message(p, serial << 20, bytes);
        } else {
                brain_message(p, session % GROUPS, bytes / 8);
                known = p->count;
                brain_message(p, (session << 24 | bytes) * 2 + 1, bytes - bytes / 8 - bytes / 64);
                for (uint64_t t = 0; t <= turn; t++) {
                        known = t ? p->count : known;
                        brain_message(p, session << 8 | t, bytes / 64);
                }
        }
        brain_prompt_done(p);
        uint32_t prompt = (uint32_t)(p->length / 4), cached = known ? p->points[known - 1].end / 4 : 0;

        bench->now_ns += BRAIN_MS(1);
        bench->entries[at] = (struct kvr__ledger_entry){
                .ledger = bench->ledger,
                .sent_ns = bench->now_ns - BRAIN_MS(500),
                .now_ns = bench->now_ns,
                .workload = 1 + serial % 5,
                .model = 9,
                .turn = serial,
                .replica = 1 + chance % REPLICAS,
                .slot = (uint32_t)(chance % REPLICAS),
                .twin = {.name_hash = brain_mix(chance % REPLICAS),
                         .capacity = 1e6,
                         .token_s = 1e-4,
                         .block_tokens = 16},
                .computed = true,
                .prompt = prompt,
                .best = cached,
                .predicted = cached,
                .cached = cached,
                .units = (uint32_t)p->length,
                .point_count = p->count,
                .known = known,
                .points = p->points,
                .candidates = bench->candidates,
        };
}

struct took {
        double p10, p50, p99;
};

static struct took measure(struct bench *bench, uint64_t bytes, int rounds, bool fresh)
{
        double *took = calloc((size_t)rounds, sizeof(*took));

        if (!took)
                abort();
        for (int i = 0; i < rounds + 100; i++) {
                for (uint32_t j = 0; j < BATCH; j++)
                        prompt_make(bench, j, bytes, fresh);
                uint64_t from = real_ns();

                for (uint32_t j = 0; j < BATCH; j++)
                        kvr__ledger_book(&bench->entries[j]);
                if (i >= 100)
                        took[i - 100] = (double)(real_ns() - from) / BATCH;
        }
        qsort(took, (size_t)rounds, sizeof(*took), compare);
        struct took ret = {took[rounds / 10], took[rounds / 2], took[rounds * 99 / 100]};

        free(took);
        return ret;
}

static void ledger_up(struct bench *bench, bool without)
{
        struct kvr_ledger_settings settings = {.without_counterfactual = without};

        if (kvr_ledger_new(&settings, &bench->ledger, NULL) != KVR_OK)
                abort();
        bench->candidates[0] = (1ULL << REPLICAS) - 1;
        bench->now_ns = BRAIN_S(1000);
        for (uint32_t i = 0; i < REPLICAS; i++) {
                char name[16];

                snprintf(name, sizeof(name), "r%u", i);
                kvr__ledger_replica_add(bench->ledger, 1 + i, name, brain_mix(i));
        }
        for (uint64_t i = 1; i < 6; i++)
                kvr__ledger_enter(bench->ledger, i, (struct kvr_slice){"workload", 8}, 9,
                                  (struct kvr_slice){"m", 1}, bench->now_ns);
}

static void reader_measure(struct bench *bench)
{
        struct kvr_ledger_account account;
        struct kvr_ledger_curve curve;
        uint32_t accounts = 0;
        uint64_t from = real_ns();

        for (int by = KVR_LEDGER_ALL; by <= KVR_LEDGER_VIRTUAL; by++) {
                uint32_t cursor = 0;

                while (kvr_ledger_account(bench->ledger, (enum kvr_ledger_by)by, bench->now_ns, &cursor,
                                          &account))
                        accounts++;
        }
        double each = (double)(real_ns() - from) / accounts;

        from = real_ns();
        kvr_ledger_curve(bench->ledger, KVR_LEDGER_LIFE, bench->now_ns, &curve);
        printf("reading: %.0f ns for each of %u accounts, %.1f us for the curve (sample rate %.4f)\n", each,
               accounts, (double)(real_ns() - from) / 1e3, curve.sample_rate);
}

int main(int argc, char **argv)
{
        int rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 400;
        static const uint64_t sizes[] = {1024, 8192, 32768, 65536, 131072, 524288};
        static struct bench bench;

        for (int without = 1; without >= 0; without--) {
                ledger_up(&bench, without);
                printf("%s counterfactual: %.1f MB\n", without ? "without" : "with",
                       (double)kvr_ledger_bytes(bench.ledger) / 1e6);
                for (int fresh = 0; fresh < 2; fresh++)
                        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
                                struct took took = measure(&bench, sizes[s], rounds, fresh);

                                /* The tenth percentile too: on a machine that others use, it can be compared.
                                 */
                                printf("  %-9s %4llu KB %4u points   p10 %6.0f   p50 %6.0f   p99 %6.0f ns "
                                       "per settled request\n",
                                       fresh ? "all new" : "next turn", (unsigned long long)sizes[s] / 1024,
                                       bench.prompts[0].count, took.p10, took.p50, took.p99);
                        }
                reader_measure(&bench);
                kvr_ledger_free(bench.ledger);
        }
        return 0;
}
