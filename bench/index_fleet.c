/* SPDX-License-Identifier: Apache-2.0 */
#include "index_fleet.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#define TRACE_BLOCKS  32 /* blocks of 16 tokens in one of the trace */
#define FIRST_PERCENT 63
#define CANDIDATES    8

/* Sixteenths of the trace's requests: blocks of 512 tokens, times ten. */
static const uint16_t FIRST_NEW[16] = {10,  10,  12,  20,  26,  45,  72,  89,
                                       109, 136, 172, 220, 284, 368, 524, 1166};
static const uint16_t NEXT_NEW[16] = {6, 10, 10, 13, 20, 20, 20, 20, 20, 22, 30, 50, 92, 138, 203, 411};
static const uint16_t NEXT_HIT[16] = {20,  24,  33,  45,  59,  75,  92,  110,
                                      131, 158, 191, 241, 300, 380, 515, 1090};

uint64_t bench_now_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

long bench_interruptions(void)
{
        struct rusage usage;

        getrusage(RUSAGE_THREAD, &usage);
        return usage.ru_nivcsw;
}

uint64_t bench_chance(struct bench_fleet *fleet)
{
        return text_mix(fleet->random++);
}

uint64_t bench_block_number(uint32_t session, uint32_t serial, uint32_t at)
{
        if (at < BENCH_SYSTEM_BLOCKS)
                return at;
        return ((uint64_t)serial << 20 | session) << 16 | 1ULL << 63 | at;
}

/* Every engine has its own names: the chain's number there. */
static uint64_t handle_of(uint32_t replica, uint64_t number)
{
        return text_mix(number ^ (uint64_t)replica << 44);
}

void bench_ids_make(uint64_t number, uint32_t *ret_ids)
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
        return (struct watch){bench_interruptions(), bench_now_ns()};
}

static void watch_end(struct bench_fleet *fleet, const struct watch *watch, struct bench_timing *timing,
                      uint32_t blocks)
{
        uint64_t took = bench_now_ns() - watch->from, each = took * 10 / blocks;

        if (bench_interruptions() != watch->interruptions) {
                fleet->left_out++;
                return;
        }
        timing->ns += took;
        timing->blocks += blocks;
        timing->events++;
        timing->histogram[each < BENCH_TENTHS - 1 ? each : BENCH_TENTHS - 1] += blocks;
}

void bench_store(struct bench_fleet *fleet, uint32_t replica, struct bench_run run,
                 struct bench_timing *timing)
{
        uint32_t count = (uint32_t)(run.to - run.from);

        for (uint32_t i = 0; i < count; i++) {
                uint64_t number = bench_block_number(run.session, run.serial, run.from + i);

                fleet->handles[i] = handle_of(replica, number);
                bench_ids_make(number, fleet->ids + (size_t)i * TEXT_BLOCK_TOKENS);
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
                stored.parent =
                        handle_of(replica, bench_block_number(run.session, run.serial, run.from - 1U));
        struct watch watch = watch_begin();

        kvr__blocks_store(fleet->blocks, fleet->engines[replica].lane, &stored, &fleet->account);
        watch_end(fleet, &watch, timing, count);
}

void bench_remove(struct bench_fleet *fleet, uint32_t replica, struct bench_run run,
                  struct bench_timing *timing)
{
        while (run.to > run.from) {
                uint32_t left = (uint32_t)(run.to - run.from),
                         count = left < BENCH_EVENT_MAX ? left : BENCH_EVENT_MAX;

                for (uint32_t i = 0; i < count; i++)
                        fleet->handles[i] = handle_of(
                                replica, bench_block_number(run.session, run.serial, run.to - 1U - i));
                struct watch watch = watch_begin();

                kvr__blocks_remove(fleet->blocks, fleet->engines[replica].lane, fleet->handles, count,
                                   &fleet->account);
                watch_end(fleet, &watch, timing, count);
                run.to = (uint16_t)(run.to - count);
        }
}

static void run_push(struct bench_fleet *fleet, uint32_t replica, struct bench_run run)
{
        struct bench_engine *engine = &fleet->engines[replica];

        if (engine->count == BENCH_RING)
                abort();
        engine->runs[(engine->head + engine->count++) % BENCH_RING] = run;
        engine->held += (uint32_t)(run.to - run.from);
}

static struct bench_run run_pop(struct bench_fleet *fleet, uint32_t replica)
{
        struct bench_engine *engine = &fleet->engines[replica];
        struct bench_run run = engine->runs[engine->head];

        engine->head = (engine->head + 1) % BENCH_RING;
        engine->count--;
        engine->held -= (uint32_t)(run.to - run.from);
        return run;
}

/* Makes room first, as engines do: removals come before the store that needs them. */
static void room_make(struct bench_fleet *fleet, uint32_t replica, uint32_t blocks)
{
        struct bench_engine *engine = &fleet->engines[replica];

        while (engine->held + blocks > fleet->capacity) {
                struct bench_run run = run_pop(fleet, replica), kept = run;
                uint32_t over = engine->held + (uint32_t)(run.to - run.from) + blocks - fleet->capacity;

                /* Of the oldest request only as much as is needed, from its end. */
                if (over < (uint32_t)(run.to - run.from)) {
                        run.from = (uint16_t)(run.to - over);
                        kept.to = run.from;
                        engine->head = (engine->head + BENCH_RING - 1) % BENCH_RING;
                        engine->runs[engine->head] = kept;
                        engine->count++;
                        engine->held += (uint32_t)(kept.to - kept.from);
                }
                bench_remove(fleet, replica, run, &fleet->removal);
                struct bench_session *session = &fleet->sessions[run.session];

                session->lost |= session->serial == run.serial && session->replica == replica;
        }
}

static void session_begin(struct bench_fleet *fleet, uint32_t number)
{
        struct bench_session *session = &fleet->sessions[number];

        *session = (struct bench_session){
                .length = BENCH_SYSTEM_BLOCKS,
                .serial = session->serial + 1,
                .replica = (uint32_t)(bench_chance(fleet) % fleet->replicas),
                .held = BENCH_SYSTEM_BLOCKS,
        };
}

static uint32_t drawn(struct bench_fleet *fleet, const uint16_t *sixteenths)
{
        uint64_t draw = bench_chance(fleet);
        uint32_t blocks = (uint32_t)sixteenths[draw % 16] * TRACE_BLOCKS / 10;
        uint32_t cut = (uint32_t)(draw >> 8) % TRACE_BLOCKS;

        return blocks > cut ? blocks - cut : 1;
}

/* A session of about this length, among some. */
static uint32_t session_pick(struct bench_fleet *fleet, uint32_t length)
{
        uint32_t best = 0, least = UINT32_MAX;

        for (uint32_t i = 0; i < CANDIDATES; i++) {
                uint32_t number = (uint32_t)(bench_chance(fleet) % fleet->active);
                uint32_t held = fleet->sessions[number].length;
                uint32_t apart = held > length ? held - length : length - held;

                if (apart < least && held > BENCH_SYSTEM_BLOCKS) {
                        least = apart;
                        best = number;
                }
        }
        return best;
}

void bench_turn(struct bench_fleet *fleet)
{
        bool first = bench_chance(fleet) % 100 < FIRST_PERCENT;
        uint32_t number = first ? (uint32_t)(bench_chance(fleet) % fleet->active)
                                : session_pick(fleet, drawn(fleet, NEXT_HIT));
        struct bench_session *session = &fleet->sessions[number];
        uint32_t more = drawn(fleet, first ? FIRST_NEW : NEXT_NEW);

        if (first || session->length <= BENCH_SYSTEM_BLOCKS || session->length + more > BENCH_SESSION_MAX) {
                session_begin(fleet, number);
        } else if (bench_chance(fleet) % 16 == 0 && !session->moved && fleet->replicas > 1) {
                session->replica =
                        (session->replica + 1 + (uint32_t)(bench_chance(fleet) % (fleet->replicas - 1))) %
                        fleet->replicas;
                session->held = BENCH_SYSTEM_BLOCKS;
                session->moved = true;
        }
        uint32_t end =
                session->length + more < BENCH_SESSION_MAX ? session->length + more : BENCH_SESSION_MAX;

        session->length = end;
        room_make(fleet, session->replica, end - BENCH_SYSTEM_BLOCKS);
        if (session->lost) {
                /* What is left of it there is not told from new text here, and will go. */
                session->serial++;
                session->held = BENCH_SYSTEM_BLOCKS;
                session->moved = session->lost = false;
        }
        uint32_t from = session->held;

        while (from < end) {
                uint32_t to = end - from < BENCH_EVENT_MAX ? end : from + BENCH_EVENT_MAX;
                struct bench_run run = {number, session->serial, (uint16_t)from, (uint16_t)to};

                bench_store(fleet, session->replica, run, &fleet->store);
                run_push(fleet, session->replica, run);
                from = to;
        }
        session->held = end;
}

struct bench_fleet *bench_fleet_new(uint32_t replicas, uint32_t capacity)
{
        struct bench_fleet *fleet = calloc(1, sizeof(*fleet));

        if (!fleet)
                abort();
        fleet->blocks = kvr__blocks_new(BENCH_MEMORY, 1);
        fleet->engines = calloc(replicas, sizeof(*fleet->engines));
        fleet->sessions = calloc(BENCH_SESSIONS, sizeof(*fleet->sessions));
        fleet->replicas = replicas;
        fleet->capacity = capacity;
        if (!fleet->blocks || !fleet->engines || !fleet->sessions)
                abort();
        fleet->active = replicas * 40 < BENCH_SESSIONS ? replicas * 40 : BENCH_SESSIONS;
        for (uint32_t i = 0; i < replicas; i++) {
                struct bench_run system = {0, 0, 0, BENCH_SYSTEM_BLOCKS};

                if (!kvr__blocks_lane_open(fleet->blocks, &fleet->engines[i].lane))
                        abort();
                bench_store(fleet, i, system, &fleet->store);
        }
        return fleet;
}

void bench_fleet_free(struct bench_fleet *fleet)
{
        kvr__blocks_free(fleet->blocks);
        free(fleet->engines);
        free(fleet->sessions);
        free(fleet);
}

static double mean_of(const uint16_t *sixteenths)
{
        double sum = 0;

        for (int i = 0; i < 16; i++)
                sum += sixteenths[i];
        return sum / 16 * TRACE_BLOCKS / 10;
}

double bench_turn_blocks(void)
{
        return (FIRST_PERCENT * mean_of(FIRST_NEW) + (100 - FIRST_PERCENT) * mean_of(NEXT_NEW)) / 100;
}
