/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A made-up fleet of engines, whose events the block index is measured with.
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
 * What cannot be made ends the program: it is a benchmark. One thread at a time.
 */
#ifndef KVROUTE_BENCH_INDEX_FLEET_H
#define KVROUTE_BENCH_INDEX_FLEET_H

#include "lib/blocks_test_util.h"

#define BENCH_SYSTEM_BLOCKS 32
#define BENCH_SESSIONS      40000
#define BENCH_SESSION_MAX   6144 /* blocks */
#define BENCH_EVENT_MAX     512
#define BENCH_TENTHS        20000 /* of nanoseconds that a block may take; more count as so much */
#define BENCH_RING          8192  /* runs of blocks a replica can hold */
#define BENCH_MEMORY        (1ULL << 30)

/* Blocks [from, to) of a session. */
struct bench_run {
        uint32_t session, serial;
        uint16_t from, to;
};

struct bench_engine {
        uint16_t lane;
        uint32_t head, count, held;
        struct bench_run runs[BENCH_RING];
};

struct bench_session {
        uint32_t length, serial; /* with the system prompt */
        uint32_t replica, held;  /* there: leading blocks */
        bool moved, lost;        /* from another replica; some of it */
};

/* What events of one kind took. */
struct bench_timing {
        uint64_t blocks, ns, events;
        uint64_t histogram[BENCH_TENTHS]; /* blocks by the tenth of nanoseconds that each of its event took */
};

struct bench_fleet {
        struct kvr__blocks *blocks;
        struct bench_engine *engines;
        struct bench_session *sessions;
        uint32_t replicas, capacity;
        uint32_t active; /* sessions */
        uint64_t random;
        struct kvr_events_account account;
        struct bench_timing store, removal;
        uint64_t left_out;
        uint32_t ids[BENCH_EVENT_MAX * TEXT_BLOCK_TOKENS];
        uint64_t handles[BENCH_EVENT_MAX];
};

uint64_t bench_now_ns(void);
long bench_interruptions(void); /* times that the kernel took the core from this thread */

struct bench_fleet *bench_fleet_new(uint32_t replicas, uint32_t capacity);
void bench_fleet_free(struct bench_fleet *fleet);
/* The next request of some session: removals to make room for it, and the stores of what it adds. */
void bench_turn(struct bench_fleet *fleet);
/* Blocks that a request adds on average. */
double bench_turn_blocks(void);

/* Single events; `timing` gets what they took. The replica's own list of runs is not changed. */
void bench_store(struct bench_fleet *fleet, uint32_t replica, struct bench_run run,
                 struct bench_timing *timing);
void bench_remove(struct bench_fleet *fleet, uint32_t replica, struct bench_run run,
                  struct bench_timing *timing);

uint64_t bench_chance(struct bench_fleet *fleet);
/* Block `at` of a session, and the TEXT_BLOCK_TOKENS ids that are in a block. */
uint64_t bench_block_number(uint32_t session, uint32_t serial, uint32_t at);
void bench_ids_make(uint64_t number, uint32_t *ret_ids);

#endif
