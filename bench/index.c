/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block index under the events of a fleet: how many blocks a second it takes in, how long a look-up waits
 * while it does, and how many bytes a block costs.
 *
 *     bench_index [REPLICAS [BLOCKS_PER_REPLICA]]      64 and 1000 replicas, if not told
 *
 * The fleet: sessions of many groups, each group with a system prompt of 64 to 319 blocks of 16 tokens; a turn
 * adds 100 to 400 blocks and is computed where the last one was, or (one in five) on another replica, which
 * stores the session from its beginning. A replica that is full removes its oldest blocks, tails first; two of
 * three system prompts that become the oldest have been used since and stay. Events are made outside of the
 * measured time, one after the other, as a decoder would hand them over.
 *
 * Samples during which the kernel ran something else on the core are counted ("left out") and not measured.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "lib/blocks_int.h"
#include "lib/blocks_test_util.h"

#define GROUPS        256
#define SESSIONS      40000
#define SESSION_MAX   1024 /* blocks */
#define EVENT_MAX     SESSION_MAX
#define RING          8192 /* runs of blocks a replica can hold */
#define PROMPTS       256
#define PROMPT_BLOCKS 512
#ifndef LOOKUPS
#define LOOKUPS 40000
#endif
#define MEMORY (512ULL << 20)

static uint64_t real_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static long interruptions(void)
{
        struct rusage usage;

        getrusage(RUSAGE_THREAD, &usage);
        return usage.ru_nivcsw;
}

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

/* ---- a fleet of engines ---- */

/* Blocks [from, to) of a session, or of a group's system prompt (session >= SESSIONS). */
struct run {
        uint32_t session;
        uint16_t from, to;
};

struct engine {
        uint16_t lane;
        uint32_t head, count, held;
        struct run runs[RING];
};

struct session {
        uint32_t group;
        uint32_t length, serial; /* with the system prompt */
        uint32_t replica, held;  /* there: leading blocks */
};

/* What events of one kind took. */
struct timing {
        uint64_t blocks, ns, events;
        uint64_t histogram[4096]; /* blocks by the tenth of nanoseconds that each of its event took */
};

struct fleet {
        struct kvr__blocks *blocks;
        struct engine *engines;
        struct session *sessions;
        uint32_t replicas, capacity;
        uint64_t random;
        struct kvr_events_account account;
        struct timing store, removal;
        uint64_t left_out;
        uint32_t ids[EVENT_MAX * TEXT_BLOCK_TOKENS];
        uint64_t handles[EVENT_MAX];
};

static uint64_t chance(struct fleet *fleet)
{
        return text_mix(fleet->random++);
}

static uint32_t group_length(uint32_t group)
{
        return 64 + (uint32_t)(text_mix(group) % 256);
}

/* Block `at` of a session: of the group while that lasts. */
static uint64_t block_number(const struct fleet *fleet, uint32_t session, uint32_t at)
{
        if (session >= SESSIONS)
                return (uint64_t)(session - SESSIONS) << 16 | at;
        const struct session *s = &fleet->sessions[session];

        if (at < group_length(s->group))
                return (uint64_t)s->group << 16 | at;
        return ((uint64_t)s->serial << 20 | session) << 16 | 1ULL << 63 | at;
}

/* Every engine has its own names: the chain's number there. */
static uint64_t handle_of(const struct fleet *fleet, uint32_t replica, uint32_t session, uint32_t at)
{
        return text_mix(block_number(fleet, session, at) ^ (uint64_t)replica << 44);
}

static void ids_make(uint64_t number, uint32_t *ret_ids)
{
        for (uint32_t i = 0; i < TEXT_BLOCK_TOKENS; i++)
                ret_ids[i] = (uint32_t)((number * TEXT_BLOCK_TOKENS + i) * 0x9e3779b97f4a7c15ULL >> 40);
}

struct watch {
        long interruptions;
        uint64_t from;
};

static struct watch watch_begin(void)
{
        return (struct watch){interruptions(), real_ns()};
}

static void watch_end(struct fleet *fleet, const struct watch *watch, struct timing *timing, uint32_t blocks)
{
        uint64_t took = real_ns() - watch->from, each = took * 10 / blocks;

        if (interruptions() != watch->interruptions) {
                fleet->left_out++;
                return;
        }
        timing->ns += took;
        timing->blocks += blocks;
        timing->events++;
        timing->histogram[each < 4095 ? each : 4095] += blocks;
}

static void store_run(struct fleet *fleet, uint32_t replica, struct run run)
{
        for (uint32_t at = run.from; at < run.to; at++) {
                fleet->handles[at - run.from] = handle_of(fleet, replica, run.session, at);
                ids_make(block_number(fleet, run.session, at),
                         fleet->ids + (size_t)(at - run.from) * TEXT_BLOCK_TOKENS);
        }
        struct kvr_blocks_stored stored = {
                .hashes = fleet->handles,
                .count = (uint32_t)(run.to - run.from),
                .has_parent = run.from > 0,
                .parent = run.from ? handle_of(fleet, replica, run.session, run.from - 1U) : 0,
                .tokens = fleet->ids,
                .token_count = (uint32_t)(run.to - run.from) * TEXT_BLOCK_TOKENS,
                .block_tokens = TEXT_BLOCK_TOKENS,
        };
        struct watch watch = watch_begin();

        kvr__blocks_store(fleet->blocks, fleet->engines[replica].lane, &stored, &fleet->account);
        watch_end(fleet, &watch, &fleet->store, stored.count);
}

static void remove_run(struct fleet *fleet, uint32_t replica, struct run run)
{
        uint32_t count = (uint32_t)(run.to - run.from);

        for (uint32_t i = 0; i < count; i++)
                fleet->handles[i] = handle_of(fleet, replica, run.session, run.to - 1U - i);
        struct watch watch = watch_begin();

        kvr__blocks_remove(fleet->blocks, fleet->engines[replica].lane, fleet->handles, count,
                           &fleet->account);
        watch_end(fleet, &watch, &fleet->removal, count);
}

static void run_push(struct fleet *fleet, uint32_t replica, struct run run)
{
        struct engine *engine = &fleet->engines[replica];

        if (engine->count == RING)
                abort();
        engine->runs[(engine->head + engine->count++) % RING] = run;
        engine->held += (uint32_t)(run.to - run.from);
}

static struct run run_pop(struct fleet *fleet, uint32_t replica)
{
        struct engine *engine = &fleet->engines[replica];
        struct run run = engine->runs[engine->head];

        engine->head = (engine->head + 1) % RING;
        engine->count--;
        engine->held -= (uint32_t)(run.to - run.from);
        return run;
}

static bool group_is_held(const struct fleet *fleet, uint32_t replica, uint32_t group)
{
        const struct engine *engine = &fleet->engines[replica];

        for (uint32_t i = 0; i < engine->count; i++)
                if (engine->runs[(engine->head + i) % RING].session == SESSIONS + group)
                        return true;
        return false;
}

/* Makes room first, as engines do: removals come before the store that needs them. */
static void room_make(struct fleet *fleet, uint32_t replica, uint32_t blocks)
{
        while (fleet->engines[replica].held + blocks > fleet->capacity) {
                struct run run = run_pop(fleet, replica);

                if (run.session >= SESSIONS && chance(fleet) % 3) {
                        run_push(fleet, replica, run);
                        continue;
                }
                remove_run(fleet, replica, run);
                struct session *session = run.session < SESSIONS ? &fleet->sessions[run.session] : NULL;

                /* The rest of a session whose beginning has gone is of no use, and goes soon. */
                if (session && session->replica == replica && session->held > run.from)
                        session->held = 0;
        }
}

static void session_begin(struct fleet *fleet, uint32_t number)
{
        struct session *session = &fleet->sessions[number];
        uint64_t draw = chance(fleet);
        /* low numbers often */
        uint64_t group = (draw % GROUPS) * (draw >> 20 & 0xff) >> 8;

        *session = (struct session){
                .group = (uint32_t)group,
                .length = group_length((uint32_t)group),
                .serial = session->serial + 1,
                .replica = (uint32_t)((draw >> 32) % fleet->replicas),
        };
        session->held = session->length;
}

static void turn(struct fleet *fleet)
{
        uint32_t number = (uint32_t)(chance(fleet) %
                                     (fleet->replicas * 24 < SESSIONS ? fleet->replicas * 24 : SESSIONS));
        struct session *session = &fleet->sessions[number];
        uint32_t more = 100 + (uint32_t)(chance(fleet) % 301);

        if (!session->serial || session->length + more > SESSION_MAX)
                session_begin(fleet, number);
        uint32_t prefix = group_length(session->group);

        if (chance(fleet) % 5 == 0) {
                session->replica = (uint32_t)(chance(fleet) % fleet->replicas);
                session->held = 0;
        }
        uint32_t replica = session->replica;

        if (!group_is_held(fleet, replica, session->group)) {
                struct run run = {SESSIONS + session->group, 0, (uint16_t)prefix};

                room_make(fleet, replica, prefix);
                store_run(fleet, replica, run);
                run_push(fleet, replica, run);
        }
        room_make(fleet, replica, SESSION_MAX);
        if (session->held < prefix)
                session->held = prefix;
        session->length += more;
        struct run run = {number, (uint16_t)session->held, (uint16_t)session->length};

        store_run(fleet, replica, run);
        run_push(fleet, replica, run);
        session->held = session->length;
}

static struct fleet *fleet_new(uint32_t replicas, uint32_t capacity)
{
        struct fleet *fleet = calloc(1, sizeof(*fleet));

        if (!fleet)
                abort();
        fleet->blocks = kvr__blocks_new(MEMORY, 1);
        fleet->engines = calloc(replicas, sizeof(*fleet->engines));
        fleet->sessions = calloc(SESSIONS, sizeof(*fleet->sessions));
        fleet->replicas = replicas;
        fleet->capacity = capacity;
        if (!fleet->blocks || !fleet->engines || !fleet->sessions)
                abort();
        for (uint32_t i = 0; i < replicas; i++)
                if (!kvr__blocks_lane_open(fleet->blocks, &fleet->engines[i].lane))
                        abort();
        return fleet;
}

static void fleet_free(struct fleet *fleet)
{
        kvr__blocks_free(fleet->blocks);
        free(fleet->engines);
        free(fleet->sessions);
        free(fleet);
}

/* Nanoseconds per block, of the event that this part of the blocks came in or faster ones. */
static double timing_at(const struct timing *timing, double part)
{
        uint64_t sum = 0, i = 0;

        while (i < 4095 && (sum += timing->histogram[i]) < (uint64_t)(part * (double)timing->blocks))
                i++;
        return (double)i / 10;
}

static void timing_print(const char *when, const char *what, const struct timing *timing)
{
        if (!timing->blocks)
                return;
        printf("  %-8s %-7s %6.1f ns a block (p10 %5.1f, p50 %5.1f, p90 %5.1f) in %4.0f k events of %3.0f\n",
               when, what, (double)timing->ns / (double)timing->blocks, timing_at(timing, .1),
               timing_at(timing, .5), timing_at(timing, .9), (double)timing->events / 1e3,
               (double)timing->blocks / (double)timing->events);
}

/* M blocks a second, when all events take as long per block as those at this part. */
static double rate_at(const struct fleet *fleet, double part)
{
        double stores = (double)fleet->store.blocks, removals = (double)fleet->removal.blocks;

        return 1e3 * (stores + removals) /
               (stores * timing_at(&fleet->store, part) + removals * timing_at(&fleet->removal, part));
}

static uint64_t fleet_done(const struct fleet *fleet)
{
        return fleet->store.blocks + fleet->removal.blocks;
}

static void timings_clear(struct fleet *fleet)
{
        memset(&fleet->store, 0, sizeof(fleet->store));
        memset(&fleet->removal, 0, sizeof(fleet->removal));
        fleet->left_out = 0;
}

static void rate_print(struct fleet *fleet, const char *when)
{
        timing_print(when, "store", &fleet->store);
        timing_print(when, "remove", &fleet->removal);
        printf("  %-8s together %5.1f M blocks/s (p10 %5.1f, p50 %5.1f); %llu events left out\n", when,
               1e3 * (double)fleet_done(fleet) / (double)(fleet->store.ns + fleet->removal.ns),
               rate_at(fleet, .1), rate_at(fleet, .5), (unsigned long long)fleet->left_out);
        timings_clear(fleet);
}

static void fleet_fill(struct fleet *fleet)
{
        uint64_t all = (uint64_t)fleet->replicas * fleet->capacity;
        struct kvr__blocks_stats stats;

        do {
                turn(fleet);
                kvr__blocks_stats(fleet->blocks, &stats);
        } while (fleet->removal.blocks < all / 20);
        rate_print(fleet, "filling");
        for (uint64_t done = 0; done < 2 * all && done < 8000000;) {
                turn(fleet);
                done = fleet_done(fleet);
        }
        rate_print(fleet, "full");
        kvr__blocks_stats(fleet->blocks, &stats);
        printf("  memory   %.1f MiB: %llu blocks with %.1f holders each, %.1f bytes per (block, replica)\n",
               (double)stats.bytes / (1 << 20), (unsigned long long)stats.nodes,
               (double)stats.holders / (double)stats.nodes, (double)stats.bytes / (double)stats.holders);
}

/* ---- look-ups, with a writer at work ---- */

struct writer {
        struct fleet *fleet;
        uint64_t rate; /* blocks per second; 0: none, UINT64_MAX: all it can */
        uint64_t blocks, ns;
        int core;
        _Atomic bool stop;
};

static void *writer_run(void *arg)
{
        struct writer *writer = arg;
        struct fleet *fleet = writer->fleet;
        uint64_t begin = real_ns();

        pin(writer->core);
        while (!writer->stop && writer->rate) {
                turn(fleet);
                writer->blocks = fleet_done(fleet);
                writer->ns = real_ns() - begin;
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
static void prompts_make(struct fleet *fleet, struct prompts *ret)
{
        uint32_t session = 0;

        for (uint32_t p = 0; p < PROMPTS; p++) {
                uint64_t key =
                        kvr__chain_root((struct kvr_slice){0}, (struct kvr_slice){0}, TEXT_BLOCK_TOKENS);

                while (!fleet->sessions[session].serial ||
                       fleet->sessions[session].length < PROMPT_BLOCKS * 3 / 4)
                        session = (session + 1) % SESSIONS;
                for (uint32_t at = 0; at < PROMPT_BLOCKS; at++) {
                        uint32_t ids[TEXT_BLOCK_TOKENS];

                        ids_make(block_number(fleet, session, at), ids);
                        ret->keys[p][at] = key = kvr__chain_next(key, ids, TEXT_BLOCK_TOKENS, 0);
                }
                session = (session + 1) % SESSIONS;
        }
}

static void lookups_measure(struct fleet *fleet, const struct prompts *prompts, uint64_t rate,
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
                long before = interruptions();
                uint64_t from = real_ns();

                kvr__blocks_depths(fleet->blocks, &chain, want, words, depths);
                uint64_t ns = real_ns() - from;

                if (interruptions() != before) {
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
        printf("  look-up  %-15s p50 %5.2f us, p99 %5.2f us, p99.9 %5.2f us; best match %3.0f of %u blocks; "
               "writer"
               " %5.2f M blocks/s  (%u left out)\n",
               what, (double)took[count / 2] / 1e3, (double)took[count / 100 * 99] / 1e3,
               (double)took[count / 1000 * 999] / 1e3, (double)matched / (double)count, PROMPT_BLOCKS,
               writer.ns ? 1e3 * (double)writer.blocks / (double)writer.ns : 0.0, left_out);
        timings_clear(fleet);
}

static void fleet_measure(uint32_t replicas, uint32_t capacity)
{
        struct fleet *fleet = fleet_new(replicas, capacity);
        struct prompts *prompts = malloc(sizeof(*prompts));

        if (!prompts)
                abort();
        printf("%u replicas of %u blocks\n", replicas, capacity);
        pin(0);
        fleet_fill(fleet);
        prompts_make(fleet, prompts);
        lookups_measure(fleet, prompts, 0, "no writer");
        lookups_measure(fleet, prompts, replicas * 3000ULL, "3000/s/replica");
        lookups_measure(fleet, prompts, UINT64_MAX, "flat out");
        free(prompts);
        fleet_free(fleet);
}

/* ---- the plain figures ---- */

/* Each block on `holders` replicas: what one costs, in a full table. */
static void bytes_measure(uint32_t holders, uint32_t blocks)
{
        struct kvr__blocks *index = kvr__blocks_new(MEMORY, 1);
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
        printf("  %7u blocks held by %3u: %6.1f bytes per block, %5.1f per (block, replica)\n", blocks,
               holders, (double)stats.bytes / (double)stats.nodes,
               (double)stats.bytes / (double)stats.holders);
        kvr__blocks_free(index);
}

/* vLLM announces each removed block in an event of its own. */
static void single_measure(void)
{
        struct fleet *fleet = fleet_new(1, 1);
        static struct text text;
        struct kvr_events_account account = {0};
        uint32_t blocks = 400000;
        uint64_t ns = 0, removed = 0;

        for (uint32_t at = 0; at < blocks; at += 500) {
                text_of(&text, 1000 + at, 500);
                text_store(fleet->blocks, 0, &text, 0, 500, &account);
        }
        for (uint32_t at = 0; at < blocks; at += 500) {
                text_of(&text, 1000 + at, 500);
                uint64_t from = real_ns();

                for (uint32_t i = 500; i-- > 0;)
                        kvr__blocks_remove(fleet->blocks, 0, &text.handles[i], 1, &account);
                ns += real_ns() - from;
                removed += 500;
        }
        printf("  removals one by one: %.1f ns each\n", (double)ns / (double)removed);
        fleet_free(fleet);
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
        single_measure();
        return 0;
}
