/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block index under the events of a fleet: how many blocks a second it takes in, how long a look-up
 * waits while it does, and how many bytes a block costs.
 *
 *     bench_index [REPLICAS [BLOCKS_PER_REPLICA]]      64 and 1000 replicas, if not told
 *
 * The mix of events is what 64 replicas behind a router that goes by prefixes would announce for the
 * requests of mooncake-conversation, a public trace of an hour of a chat service (12,031 requests, 24
 * blocks of 512 tokens each on average), in blocks of 16 tokens:
 *
 *     63 % of requests begin a conversation behind the one system prompt of 32 blocks, and store 650 blocks
 *     on average (median 320); 37 % go on with one that is 690 blocks long on average, and store 220
 *     (median 64). FIRST_NEW, NEXT_NEW and NEXT_HIT are the means of sixteenths of the trace's requests, as
 *     they came out when each went to that of 64 caches of 1,000 trace blocks, least recently used out
 *     first, that had most of it. That one in 16 goes on at another replica, which stores it from its
 *     beginning, is an assumption.
 *
 * What a request adds comes in events of at most 512 blocks (8,192 tokens, as many as vLLM computes in one
 * step on large cards). A replica that is full removes its oldest blocks, tails first, as many as the next
 * request needs; those come in calls of up to 512. That is how SGLang announces them; vLLM does so one by
 * one, and who hands these on as they come pays for single calls. Blocks of an answer, 21 per request in
 * the trace, fill up one at a time with all engines. "full" has neither; what a call with one block costs
 * is measured by itself ("singles"), and what becomes of the rate with such calls in the mix is told beside
 * it ("with").
 *
 * Events are made outside of the measured time, one after the other, as a decoder would hand them over.
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

#define SYSTEM_BLOCKS 32
#define SESSIONS      40000
#define SESSION_MAX   6144 /* blocks */
#define EVENT_MAX     512
#define TRACE_BLOCKS  32 /* blocks of 16 tokens in one of the trace */
#define SINGLES       20000
#define ANSWER_BLOCKS 21
#define FIRST_PERCENT 63
#define TENTHS        20000 /* of nanoseconds that a block may take; more count as so much */
#define CANDIDATES    8
#define RING          8192 /* runs of blocks a replica can hold */
#define PROMPTS       256
#define PROMPT_BLOCKS 512
#ifndef LOOKUPS
#define LOOKUPS 40000
#endif
#define MEMORY (1ULL << 30)

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

/* Sixteenths of the trace's requests: blocks of 512 tokens, times ten. */
static const uint16_t FIRST_NEW[16] = {10,  10,  12,  20,  26,  45,  72,  89,
                                       109, 136, 172, 220, 284, 368, 524, 1166};
static const uint16_t NEXT_NEW[16] = {6, 10, 10, 13, 20, 20, 20, 20, 20, 22, 30, 50, 92, 138, 203, 411};
static const uint16_t NEXT_HIT[16] = {20,  24,  33,  45,  59,  75,  92,  110,
                                      131, 158, 191, 241, 300, 380, 515, 1090};

/* Blocks [from, to) of a session. */
struct run {
        uint32_t session, serial;
        uint16_t from, to;
};

struct engine {
        uint16_t lane;
        uint32_t head, count, held;
        struct run runs[RING];
};

struct session {
        uint32_t length, serial; /* with the system prompt */
        uint32_t replica, held;  /* there: leading blocks */
        bool moved, lost;        /* from another replica; some of it */
};

/* What events of one kind took. */
struct timing {
        uint64_t blocks, ns, events;
        uint64_t histogram[TENTHS]; /* blocks by the tenth of nanoseconds that each of its event took */
};

struct fleet {
        struct kvr__blocks *blocks;
        struct engine *engines;
        struct session *sessions;
        uint32_t replicas, capacity;
        uint32_t active; /* sessions */
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

/* Block `at` of a session. */
static uint64_t block_number(uint32_t session, uint32_t serial, uint32_t at)
{
        if (at < SYSTEM_BLOCKS)
                return at;
        return ((uint64_t)serial << 20 | session) << 16 | 1ULL << 63 | at;
}

/* Every engine has its own names: the chain's number there. */
static uint64_t handle_of(uint32_t replica, uint64_t number)
{
        return text_mix(number ^ (uint64_t)replica << 44);
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
        timing->histogram[each < TENTHS - 1 ? each : TENTHS - 1] += blocks;
}

static void store_event(struct fleet *fleet, uint32_t replica, struct run run, struct timing *timing)
{
        uint32_t count = (uint32_t)(run.to - run.from);

        for (uint32_t i = 0; i < count; i++) {
                uint64_t number = block_number(run.session, run.serial, run.from + i);

                fleet->handles[i] = handle_of(replica, number);
                ids_make(number, fleet->ids + (size_t)i * TEXT_BLOCK_TOKENS);
        }
        struct kvr_blocks_stored stored = {
                .hashes = fleet->handles,
                .count = count,
                .has_parent = run.from > 0,
                .tokens = fleet->ids,
                .token_count = count * TEXT_BLOCK_TOKENS,
                .block_tokens = TEXT_BLOCK_TOKENS,
        };

        if (run.from)
                stored.parent = handle_of(replica, block_number(run.session, run.serial, run.from - 1U));
        struct watch watch = watch_begin();

        kvr__blocks_store(fleet->blocks, fleet->engines[replica].lane, &stored, &fleet->account);
        watch_end(fleet, &watch, timing, count);
}

static void remove_run(struct fleet *fleet, uint32_t replica, struct run run, struct timing *timing)
{
        while (run.to > run.from) {
                uint32_t left = (uint32_t)(run.to - run.from), count = left < EVENT_MAX ? left : EVENT_MAX;

                for (uint32_t i = 0; i < count; i++)
                        fleet->handles[i] =
                                handle_of(replica, block_number(run.session, run.serial, run.to - 1U - i));
                struct watch watch = watch_begin();

                kvr__blocks_remove(fleet->blocks, fleet->engines[replica].lane, fleet->handles, count,
                                   &fleet->account);
                watch_end(fleet, &watch, timing, count);
                run.to = (uint16_t)(run.to - count);
        }
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

/* Makes room first, as engines do: removals come before the store that needs them. */
static void room_make(struct fleet *fleet, uint32_t replica, uint32_t blocks)
{
        struct engine *engine = &fleet->engines[replica];

        while (engine->held + blocks > fleet->capacity) {
                struct run run = run_pop(fleet, replica), kept = run;
                uint32_t over = engine->held + (uint32_t)(run.to - run.from) + blocks - fleet->capacity;

                /* Of the oldest request only as much as is needed, from its end. */
                if (over < (uint32_t)(run.to - run.from)) {
                        run.from = (uint16_t)(run.to - over);
                        kept.to = run.from;
                        engine->head = (engine->head + RING - 1) % RING;
                        engine->runs[engine->head] = kept;
                        engine->count++;
                        engine->held += (uint32_t)(kept.to - kept.from);
                }
                remove_run(fleet, replica, run, &fleet->removal);
                struct session *session = &fleet->sessions[run.session];

                session->lost |= session->serial == run.serial && session->replica == replica;
        }
}

static void session_begin(struct fleet *fleet, uint32_t number)
{
        struct session *session = &fleet->sessions[number];

        *session = (struct session){
                .length = SYSTEM_BLOCKS,
                .serial = session->serial + 1,
                .replica = (uint32_t)(chance(fleet) % fleet->replicas),
                .held = SYSTEM_BLOCKS,
        };
}

static uint32_t drawn(struct fleet *fleet, const uint16_t *sixteenths)
{
        uint64_t draw = chance(fleet);
        uint32_t blocks = (uint32_t)sixteenths[draw % 16] * TRACE_BLOCKS / 10;
        uint32_t cut = (uint32_t)(draw >> 8) % TRACE_BLOCKS;

        return blocks > cut ? blocks - cut : 1;
}

/* A session of about this length, among some. */
static uint32_t session_pick(struct fleet *fleet, uint32_t length)
{
        uint32_t best = 0, least = UINT32_MAX;

        for (uint32_t i = 0; i < CANDIDATES; i++) {
                uint32_t number = (uint32_t)(chance(fleet) % fleet->active);
                uint32_t held = fleet->sessions[number].length;
                uint32_t apart = held > length ? held - length : length - held;

                if (apart < least && held > SYSTEM_BLOCKS) {
                        least = apart;
                        best = number;
                }
        }
        return best;
}

static void turn(struct fleet *fleet)
{
        bool first = chance(fleet) % 100 < FIRST_PERCENT;
        uint32_t number = first ? (uint32_t)(chance(fleet) % fleet->active)
                                : session_pick(fleet, drawn(fleet, NEXT_HIT));
        struct session *session = &fleet->sessions[number];
        uint32_t more = drawn(fleet, first ? FIRST_NEW : NEXT_NEW);

        if (first || session->length <= SYSTEM_BLOCKS || session->length + more > SESSION_MAX) {
                session_begin(fleet, number);
        } else if (chance(fleet) % 16 == 0 && !session->moved && fleet->replicas > 1) {
                session->replica =
                        (session->replica + 1 + (uint32_t)(chance(fleet) % (fleet->replicas - 1))) %
                        fleet->replicas;
                session->held = SYSTEM_BLOCKS;
                session->moved = true;
        }
        uint32_t end = session->length + more < SESSION_MAX ? session->length + more : SESSION_MAX;

        session->length = end;
        room_make(fleet, session->replica, end - SYSTEM_BLOCKS);
        if (session->lost) {
                /* What is left of it there is not told from new text here, and will go. */
                session->serial++;
                session->held = SYSTEM_BLOCKS;
                session->moved = session->lost = false;
        }
        uint32_t from = session->held;

        while (from < end) {
                uint32_t to = end - from < EVENT_MAX ? end : from + EVENT_MAX;
                struct run run = {number, session->serial, (uint16_t)from, (uint16_t)to};

                store_event(fleet, session->replica, run, &fleet->store);
                run_push(fleet, session->replica, run);
                from = to;
        }
        session->held = end;
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
        fleet->active = replicas * 40 < SESSIONS ? replicas * 40 : SESSIONS;
        for (uint32_t i = 0; i < replicas; i++) {
                struct run system = {0, 0, 0, SYSTEM_BLOCKS};

                if (!kvr__blocks_lane_open(fleet->blocks, &fleet->engines[i].lane))
                        abort();
                store_event(fleet, i, system, &fleet->store);
        }
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

        while (i < TENTHS - 1 && (sum += timing->histogram[i]) < (uint64_t)(part * (double)timing->blocks))
                i++;
        return (double)i / 10;
}

static void timing_print(const char *when, const char *what, const struct timing *timing)
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
        printf("  %-8s together %5.1f M blocks/s (p10 %5.1f, p50 %5.1f); %llu events "
               "left out\n",
               when, 1e3 * (double)fleet_done(fleet) / (double)(fleet->store.ns + fleet->removal.ns),
               rate_at(fleet, .1), rate_at(fleet, .5), (unsigned long long)fleet->left_out);
        timings_clear(fleet);
}

static double mean_of(const uint16_t *sixteenths)
{
        double sum = 0;

        for (int i = 0; i < 16; i++)
                sum += sixteenths[i];
        return sum / 16 * TRACE_BLOCKS / 10;
}

static double each_ns(const struct timing *timing)
{
        return (double)timing->ns / (double)timing->blocks;
}

static void fleet_fill(struct fleet *fleet, double *ret_store_ns, double *ret_removal_ns)
{
        uint64_t all = (uint64_t)fleet->replicas * fleet->capacity;
        struct kvr__blocks_stats stats;

        do
                turn(fleet);
        while (fleet->removal.blocks < all);
        rate_print(fleet, "filling");
        memset(&fleet->account, 0, sizeof(fleet->account));
        for (uint64_t done = 0; done < 3 * all && done < 12000000;) {
                turn(fleet);
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
static void singles_weigh(double store_ns, double removal_ns, const struct fleet *fleet)
{
        double prompt =
                (FIRST_PERCENT * mean_of(FIRST_NEW) + (100 - FIRST_PERCENT) * mean_of(NEXT_NEW)) / 100;
        double blocks = prompt + ANSWER_BLOCKS;
        double stores_ns = prompt * store_ns + ANSWER_BLOCKS * each_ns(&fleet->store);

        printf("  with     answers stored singly %.1f M blocks/s; with removals one by one too %.1f M "
               "blocks/s\n",
               2e3 * blocks / (stores_ns + blocks * removal_ns),
               2e3 * blocks / (stores_ns + blocks * each_ns(&fleet->removal)));
}

/* Calls with one block each: sessions get one block longer, and then shorter again. */
static void singles_measure(struct fleet *fleet, double store_ns, double removal_ns)
{
        struct run *runs = calloc(SINGLES, sizeof(*runs));
        uint32_t count = 0;

        if (!runs)
                abort();
        while (count < SINGLES) {
                uint32_t number = (uint32_t)(chance(fleet) % fleet->active);
                struct session *session = &fleet->sessions[number];

                if (session->lost || session->held < session->length || session->length >= SESSION_MAX ||
                    !session->serial)
                        continue;
                struct run run = {number, session->serial, (uint16_t)session->length,
                                  (uint16_t)(session->length + 1)};

                store_event(fleet, session->replica, run, &fleet->store);
                session->length++;
                session->held++;
                runs[count++] = run;
        }
        while (count--) {
                struct session *session = &fleet->sessions[runs[count].session];

                remove_run(fleet, session->replica, runs[count], &fleet->removal);
                session->length--;
                session->held--;
        }
        free(runs);
        singles_weigh(store_ns, removal_ns, fleet);
        rate_print(fleet, "singles");
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

                        ids_make(block_number(session, fleet->sessions[session].serial, at), ids);
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
        struct fleet *fleet = fleet_new(replicas, capacity);
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
