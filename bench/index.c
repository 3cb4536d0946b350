/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block index under the events of a fleet: how many blocks a second it takes in, how long a look-up
 * waits while it does, and how many bytes a block costs.
 *
 *     bench_index [REPLICAS [BLOCKS_PER_REPLICA]]      64 and 1000 replicas, if not told
 *
 * index_fleet.h has the mix of events and where it comes from. Events are made outside of the measured time, one
 * after the other, as a decoder would hand them over.
 *
 * Samples during which the kernel ran something else on the core are counted ("left out") and not measured.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "index_fleet.h"

#include "lib/blocks_int.h"

#define SINGLES       20000
#define ANSWER_BLOCKS 21
#define PROMPTS       256
#define PROMPT_BLOCKS 512
#ifndef LOOKUPS
#define LOOKUPS 40000
#endif

static void pin(int core)
{
        cpu_set_t set;

        CPU_ZERO(&set);
        CPU_SET((size_t)core, &set);
        (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static int compare(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return x < y ? -1 : x > y;
}

/* Nanoseconds per block, of the event that this part of the blocks came in or faster ones. */
static double timing_at(const struct bench_timing *timing, double part)
{
        uint64_t sum = 0, i = 0;

        while (i < BENCH_TENTHS - 1 &&
               (sum += timing->histogram[i]) < (uint64_t)(part * (double)timing->blocks))
                i++;
        return (double)i / 10;
}

static void timing_print(const char *when, const char *what, const struct bench_timing *timing)
{
        if (!timing->blocks)
                return;
        printf("  %-8s %-7s %6.1f ns a block (p10 %5.1f, p50 %5.1f, p90 %5.1f) in "
               "%4.0f k events of %3.0f\n",
               when, what, (double)timing->ns / (double)timing->blocks, timing_at(timing, .1),
               timing_at(timing, .5), timing_at(timing, .9), (double)timing->events / 1e3,
               (double)timing->blocks / (double)timing->events);
}

/* M blocks a second, when all events take as long per block as those at this part. */
static double rate_at(const struct bench_fleet *fleet, double part)
{
        double stores = (double)fleet->store.blocks, removals = (double)fleet->removal.blocks;

        return 1e3 * (stores + removals) /
               (stores * timing_at(&fleet->store, part) + removals * timing_at(&fleet->removal, part));
}

static uint64_t fleet_done(const struct bench_fleet *fleet)
{
        return fleet->store.blocks + fleet->removal.blocks;
}

static void timings_clear(struct bench_fleet *fleet)
{
        memset(&fleet->store, 0, sizeof(fleet->store));
        memset(&fleet->removal, 0, sizeof(fleet->removal));
        fleet->left_out = 0;
}

static void rate_print(struct bench_fleet *fleet, const char *when)
{
        timing_print(when, "store", &fleet->store);
        timing_print(when, "remove", &fleet->removal);
        printf("  %-8s together %5.1f M blocks/s (p10 %5.1f, p50 %5.1f); %llu events "
               "left out\n",
               when, 1e3 * (double)fleet_done(fleet) / (double)(fleet->store.ns + fleet->removal.ns),
               rate_at(fleet, .1), rate_at(fleet, .5), (unsigned long long)fleet->left_out);
        timings_clear(fleet);
}

static double each_ns(const struct bench_timing *timing)
{
        return (double)timing->ns / (double)timing->blocks;
}

static void fleet_fill(struct bench_fleet *fleet, double *ret_store_ns, double *ret_removal_ns)
{
        uint64_t all = (uint64_t)fleet->replicas * fleet->capacity;
        struct kvr__blocks_stats stats;

        do
                bench_turn(fleet);
        while (fleet->removal.blocks < all);
        rate_print(fleet, "filling");
        memset(&fleet->account, 0, sizeof(fleet->account));
        for (uint64_t done = 0; done < 3 * all && done < 12000000;) {
                bench_turn(fleet);
                done = fleet_done(fleet);
        }
        /* One in a million is taken for another; see lib/blocks.h. */
        if (fleet->account.unknown + fleet->account.repeated + fleet->account.orphans +
                    fleet->account.refused >
            fleet_done(fleet) / 100000) {
                fprintf(stderr,
                        "events that no engine sends: %u unknown, %u repeated, %u orphans, "
                        "%u refused\n",
                        (unsigned)fleet->account.unknown, (unsigned)fleet->account.repeated,
                        (unsigned)fleet->account.orphans, (unsigned)fleet->account.refused);
                abort();
        }
        *ret_store_ns = each_ns(&fleet->store);
        *ret_removal_ns = each_ns(&fleet->removal);
        rate_print(fleet, "full");
        kvr__blocks_stats(fleet->blocks, &stats);
        printf("  memory   %.1f MiB: %llu blocks with %.1f holders each, %.1f bytes "
               "per (block, replica)\n",
               (double)stats.bytes / (1 << 20), (unsigned long long)stats.nodes,
               (double)stats.holders / (double)stats.nodes, (double)stats.bytes / (double)stats.holders);
}

/* The rate, when blocks of answers are stored one by one; and when all removals are single too. Times per block
 * are those of the steady state and of single calls. */
static void singles_weigh(double store_ns, double removal_ns, const struct bench_fleet *fleet)
{
        double prompt = bench_turn_blocks();
        double blocks = prompt + ANSWER_BLOCKS;
        double stores_ns = prompt * store_ns + ANSWER_BLOCKS * each_ns(&fleet->store);

        printf("  with     answers stored singly %.1f M blocks/s; with removals one by one too %.1f M "
               "blocks/s\n",
               2e3 * blocks / (stores_ns + blocks * removal_ns),
               2e3 * blocks / (stores_ns + blocks * each_ns(&fleet->removal)));
}

/* Calls with one block each: sessions get one block longer, and then shorter again. */
static void singles_measure(struct bench_fleet *fleet, double store_ns, double removal_ns)
{
        struct bench_run *runs = calloc(SINGLES, sizeof(*runs));
        uint32_t count = 0;

        if (!runs)
                abort();
        while (count < SINGLES) {
                uint32_t number = (uint32_t)(bench_chance(fleet) % fleet->active);
                struct bench_session *session = &fleet->sessions[number];

                if (session->lost || session->held < session->length ||
                    session->length >= BENCH_SESSION_MAX || !session->serial)
                        continue;
                struct bench_run run = {number, session->serial, (uint16_t)session->length,
                                        (uint16_t)(session->length + 1)};

                bench_store(fleet, session->replica, run, &fleet->store);
                session->length++;
                session->held++;
                runs[count++] = run;
        }
        while (count--) {
                struct bench_session *session = &fleet->sessions[runs[count].session];

                bench_remove(fleet, session->replica, runs[count], &fleet->removal);
                session->length--;
                session->held--;
        }
        free(runs);
        singles_weigh(store_ns, removal_ns, fleet);
        rate_print(fleet, "singles");
}

/* ---- look-ups, with a writer at work ---- */

struct writer {
        struct bench_fleet *fleet;
        uint64_t rate; /* blocks per second; 0: none, UINT64_MAX: all it can */
        uint64_t blocks, ns;
        int core;
        _Atomic bool stop;
};

static void *writer_run(void *arg)
{
        struct writer *writer = arg;
        struct bench_fleet *fleet = writer->fleet;
        uint64_t begin = bench_now_ns();

        pin(writer->core);
        while (!writer->stop && writer->rate) {
                bench_turn(fleet);
                writer->blocks = fleet_done(fleet);
                writer->ns = bench_now_ns() - begin;
                if (writer->rate != UINT64_MAX) {
                        double ahead =
                                1e9 * (double)writer->blocks / (double)writer->rate - (double)writer->ns;
                        struct timespec pause = {0, ahead > 0 ? (long)ahead % 1000000000 : 0};

                        if (ahead > 50000)
                                nanosleep(&pause, NULL);
                }
        }
        return NULL;
}

struct prompts {
        uint64_t keys[PROMPTS][PROMPT_BLOCKS];
};

/* Prompts as clients send them: the next turn of sessions that are there. */
static void prompts_make(struct bench_fleet *fleet, struct prompts *ret)
{
        uint32_t session = 0;

        for (uint32_t p = 0; p < PROMPTS; p++) {
                uint64_t key =
                        kvr__chain_root((struct kvr_slice){0}, (struct kvr_slice){0}, TEXT_BLOCK_TOKENS);

                while (!fleet->sessions[session].serial ||
                       fleet->sessions[session].length < PROMPT_BLOCKS * 3 / 4)
                        session = (session + 1) % BENCH_SESSIONS;
                for (uint32_t at = 0; at < PROMPT_BLOCKS; at++) {
                        uint32_t ids[TEXT_BLOCK_TOKENS];

                        bench_ids_make(bench_block_number(session, fleet->sessions[session].serial, at), ids);
                        ret->keys[p][at] = key = kvr__chain_next(key, ids, TEXT_BLOCK_TOKENS, 0);
                }
                session = (session + 1) % BENCH_SESSIONS;
        }
}

static void lookups_measure(struct bench_fleet *fleet, const struct prompts *prompts, uint64_t rate,
                            const char *what)
{
        struct writer writer = {.fleet = fleet, .rate = rate, .core = 0};
        static uint64_t took[LOOKUPS];
        static uint32_t depths[KVR__BLOCK_LANES_MAX];
        uint64_t want[KVR__BLOCK_LANE_WORDS] = {0}, matched = 0;
        uint32_t words = (fleet->replicas + 63) / 64, count = 0, left_out = 0;
        pthread_t thread;

        for (uint32_t i = 0; i < fleet->replicas; i++)
                want[i / 64] |= 1ULL << (i % 64);
        if (pthread_create(&thread, NULL, writer_run, &writer))
                abort();
        pin(1);
        while (count < LOOKUPS && left_out < 10 * LOOKUPS) {
                struct kvr__chain chain = {prompts->keys[text_mix(count) % PROMPTS], PROMPT_BLOCKS};
                long before = bench_interruptions();
                uint64_t from = bench_now_ns();

                kvr__blocks_depths(fleet->blocks, &chain, want, words, depths);
                uint64_t ns = bench_now_ns() - from;

                if (bench_interruptions() != before) {
                        left_out++;
                        continue;
                }
                took[count++] = ns;
                uint32_t most = 0;

                for (uint32_t i = 0; i < fleet->replicas; i++)
                        most = depths[i] > most ? depths[i] : most;
                matched += most;
        }
        writer.stop = true;
        pthread_join(thread, NULL);
        qsort(took, count, sizeof(took[0]), compare);
        printf("  look-up  %-15s p50 %5.2f us, p99 %5.2f us, p99.9 %5.2f us; best "
               "match %3.0f of %u blocks; "
               "writer"
               " %5.2f M blocks/s  (%u left out)\n",
               what, (double)took[count / 2] / 1e3, (double)took[count / 100 * 99] / 1e3,
               (double)took[count / 1000 * 999] / 1e3, (double)matched / (double)count, PROMPT_BLOCKS,
               writer.ns ? 1e3 * (double)writer.blocks / (double)writer.ns : 0.0, left_out);
        timings_clear(fleet);
}

static void fleet_measure(uint32_t replicas, uint32_t capacity)
{
        struct bench_fleet *fleet = bench_fleet_new(replicas, capacity);
        struct prompts *prompts = malloc(sizeof(*prompts));

        if (!prompts)
                abort();
        double store_ns, removal_ns;

        printf("%u replicas of %u blocks\n", replicas, capacity);
        pin(0);
        fleet_fill(fleet, &store_ns, &removal_ns);
        singles_measure(fleet, store_ns, removal_ns);
        prompts_make(fleet, prompts);
        lookups_measure(fleet, prompts, 0, "no writer");
        lookups_measure(fleet, prompts, replicas * 3000ULL, "3000/s/replica");
        lookups_measure(fleet, prompts, UINT64_MAX, "flat out");
        free(prompts);
        bench_fleet_free(fleet);
}

/* ---- the plain figures ---- */

/* Each block on `holders` replicas: what one costs, in a full table. */
static void bytes_measure(uint32_t holders, uint32_t blocks)
{
        struct kvr__blocks *index = kvr__blocks_new(BENCH_MEMORY, 1);
        static struct text text;
        struct kvr_events_account account = {0};
        struct kvr__blocks_stats stats;
        uint16_t lane;

        if (!index)
                abort();
        for (uint32_t i = 0; i < holders; i++) {
                if (!kvr__blocks_lane_open(index, &lane))
                        abort();
                for (uint32_t at = 0; at < blocks; at += 500) {
                        text_of(&text, 1000 + at, 500);
                        text_store(index, lane, &text, 0, 500, &account);
                }
        }
        kvr__blocks_stats(index, &stats);
        printf("  %7u blocks held by %3u: %6.1f bytes per block, %5.1f per (block, "
               "replica)\n",
               blocks, holders, (double)stats.bytes / (double)stats.nodes,
               (double)stats.bytes / (double)stats.holders);
        kvr__blocks_free(index);
}

int main(int argc, char **argv)
{
        uint32_t replicas = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
        uint32_t capacity = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 30000;

        if (replicas > KVR__BLOCK_LANES_MAX)
                return 2;
        if (replicas) {
                fleet_measure(replicas, capacity);
                return 0;
        }
        fleet_measure(64, 30000);
        fleet_measure(1000, 8000);
        printf("alone and shared\n");
        for (uint32_t holders = 1; holders <= 64; holders *= 4)
                bytes_measure(holders, holders > 4 ? 100000 : 400000);
        return 0;
}
