/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block index under any events: hashes of a few values, so that names collide, come back and are taken
 * over; ids of a few values, so that chains meet; counts that do not fit. Promises: every block is accounted
 * for once, memory stays below the cap, nothing is reported for what a lane does not hold, and all links and
 * counts are right at the end.
 */
#include "fuzz.h"

#include "lib/blocks.h"

#define LANES  70
#define EVENT  40
#define TOKENS 4U
#define MEMORY (1U << 20)

struct run {
        struct kvr__blocks *blocks;
        uint16_t lanes[LANES];
        uint64_t held[LANES]; /* stored and not removed since the lane was opened */
        const uint8_t *bytes;
        size_t left;
};

static uint8_t next(struct run *run)
{
        if (!run->left)
                return 0;
        run->left--;
        return *run->bytes++;
}

static void store(struct run *run, unsigned lane)
{
        struct kvr_events_account account = {0};
        uint64_t hashes[EVENT], extra[EVENT];
        uint32_t tokens[EVENT * TOKENS];
        uint8_t shape = next(run), count = next(run) % (EVENT + 1), seed = next(run), name = next(run);

        for (unsigned i = 0; i < count; i++) {
                hashes[i] = shape & 1 ? (uint64_t)(uint8_t)(name + i) : next(run) % 16;
                extra[i] = shape & 2 ? next(run) % 3 : 0;
        }
        for (unsigned i = 0; i < EVENT * TOKENS; i++)
                tokens[i] = shape & 4 ? seed : i / TOKENS / (1 + seed % 3);
        struct kvr_blocks_stored stored = {
                .hashes = hashes,
                .count = count,
                .has_parent = shape & 8,
                .parent = name ? name - 1U : 0,
                .tokens = tokens,
                .token_count = count * TOKENS + (shape >> 4 == 15 ? 1U : 0U),
                .block_tokens = shape >> 4 == 14 ? 0 : TOKENS,
                .extra = shape & 2 ? extra : NULL,
                .adapter = {"ab", shape >> 4 & 2},
                .salt = {"ab", shape >> 5 & 2},
        };

        kvr__blocks_store(run->blocks, run->lanes[lane], &stored, &account);
        FUZZ_CHECK(account.stored + account.repeated + account.orphans + account.refused == count);
        FUZZ_CHECK(account.removed <= account.stored + account.refused && account.copies_removed == 0 &&
                   account.unknown == 0);
        run->held[lane] += account.stored - account.removed;
        FUZZ_CHECK(kvr__blocks_lane_count(run->blocks, run->lanes[lane]) == run->held[lane]);
}

static void remove_some(struct run *run, unsigned lane)
{
        struct kvr_events_account account = {0};
        uint64_t hashes[EVENT];
        uint8_t count = next(run) % (EVENT + 1), name = next(run);

        for (unsigned i = 0; i < count; i++)
                hashes[i] = (uint8_t)(name + i);
        kvr__blocks_remove(run->blocks, run->lanes[lane], hashes, count, &account);
        FUZZ_CHECK(account.removed + account.copies_removed + account.unknown == count);
        run->held[lane] -= account.removed;
        FUZZ_CHECK(kvr__blocks_lane_count(run->blocks, run->lanes[lane]) == run->held[lane]);
}

static void look(struct run *run)
{
        uint32_t depths[KVR__BLOCK_LANES_MAX], tokens[TOKENS] = {0};
        uint64_t want[KVR__BLOCK_LANE_WORDS], keys[200];
        uint64_t key = kvr__chain_root((struct kvr_slice){0}, (struct kvr_slice){0}, TOKENS);
        uint8_t seed = next(run), gaps = next(run);
        struct kvr__chain chain = {keys, next(run) % 200U};

        for (unsigned i = 0; i < chain.count; i++) {
                for (unsigned t = 0; t < TOKENS; t++)
                        tokens[t] = seed & 1 ? seed : i / (1 + seed % 3);
                key = kvr__chain_next(key, tokens, TOKENS, 0);
                keys[i] = gaps && i % gaps == gaps - 1U ? 0 : key;
        }
        for (unsigned w = 0; w < KVR__BLOCK_LANE_WORDS; w++)
                want[w] = UINT64_MAX;
        kvr__blocks_depths(run->blocks, &chain, want, KVR__BLOCK_LANE_WORDS, depths);
        for (unsigned i = 0; i < LANES; i++) {
                FUZZ_CHECK(depths[run->lanes[i]] <= chain.count);
                FUZZ_CHECK(depths[run->lanes[i]] == 0 || run->held[i] > 0);
        }
}

static void clear(struct run *run, unsigned lane)
{
        kvr__blocks_lane_close(run->blocks, run->lanes[lane]);
        kvr__blocks_reclaim(run->blocks, next(run));
        run->held[lane] = 0;
        FUZZ_CHECK(kvr__blocks_lane_open(run->blocks, &run->lanes[lane]));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        struct run run = {.blocks = kvr__blocks_new(MEMORY, len), .bytes = bytes, .left = len};
        struct kvr__blocks_stats stats;

        FUZZ_CHECK(run.blocks);
        for (unsigned i = 0; i < LANES; i++)
                FUZZ_CHECK(kvr__blocks_lane_open(run.blocks, &run.lanes[i]));
        while (run.left) {
                uint8_t what = next(&run);
                unsigned lane = what & 1 ? next(&run) % LANES : 0;

                if (what % 16 < 9)
                        store(&run, lane);
                else if (what % 16 < 13)
                        remove_some(&run, lane);
                else if (what % 16 < 15)
                        look(&run);
                else
                        clear(&run, lane);
                kvr__blocks_stats(run.blocks, &stats);
                FUZZ_CHECK(stats.bytes <= stats.bytes_max);
        }
        FUZZ_CHECK(kvr__blocks_check(run.blocks));
        kvr__blocks_free(run.blocks);
        return 0;
}
