/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A router that knows everything: before each decision it is told which blocks of the prompt each engine holds at
 * that moment, or will have because it was given a prompt that begins so. No router can; what others lose
 * against it is the price of what they do not know, or know late.
 */
#include "des_int.h"
#include "replay_int.h"

#include <kvroute/events.h>
#include <stdlib.h>

struct sim__des_oracle {
        uint32_t *accepted; /* per replica and distinct id: requests that wait there and have it */
        uint64_t *hashes;
        uint32_t *tokens;
};

static uint32_t *accepted_at(const struct sim__des *des, uint32_t replica)
{
        return des->oracle->accepted + (size_t)replica * des->options->replay->distinct;
}

bool sim__des_oracle_init(struct sim__des *des)
{
        const struct sim_des_options *options = des->options;
        uint32_t longest = options->replay->longest ? options->replay->longest : 1;
        struct sim__des_oracle *oracle = calloc(1, sizeof(*oracle));

        des->oracle = oracle;
        if (!oracle)
                return false;
        oracle->accepted = calloc((size_t)options->replicas * options->replay->distinct, sizeof(uint32_t));
        oracle->hashes = malloc(longest * sizeof(*oracle->hashes));
        oracle->tokens = malloc((size_t)longest * des->trace->block_tokens * sizeof(*oracle->tokens));
        if (!oracle->accepted || !oracle->hashes || !oracle->tokens)
                return false;
        for (uint32_t at = 0; at < options->routers; at++) {
                for (uint32_t i = 0; i < options->replicas; i++) {
                        if (kvr_events_trust(des->routers[at].brain, des->routers[at].replicas[i], true) !=
                            KVR_OK)
                                return false;
                }
        }
        return true;
}

void sim__des_oracle_fini(struct sim__des *des)
{
        if (!des->oracle)
                return;
        free(des->oracle->accepted);
        free(des->oracle->hashes);
        free(des->oracle->tokens);
        free(des->oracle);
        des->oracle = NULL;
}

void sim__des_oracle_wait(struct sim__des *des, const struct sim__des_request *request, bool waits)
{
        const struct sim_trace_row *row = &des->trace->rows[request->row];
        const uint32_t *ids;
        uint32_t *accepted;

        if (!des->oracle)
                return;
        ids = des->options->replay->ids + row->first_id;
        accepted = accepted_at(des, request->replica);
        for (uint32_t i = 0; i < row->id_count; i++)
                accepted[ids[i]] += waits ? 1 : UINT32_MAX;
}

/* Leading whole blocks that the engine has, or has been given. */
static uint32_t held_by(const struct sim__des *des, uint32_t replica, const struct sim_trace_row *row)
{
        uint32_t block = des->trace->block_tokens, most = row->input_tokens / block, count = 0;
        const uint32_t *ids = des->options->replay->ids + row->first_id;
        const uint32_t *accepted = accepted_at(des, replica);
        uint32_t cached =
                sim_engine_match(des->engines[replica], des->oracle->hashes, most, (most + 1) * block) /
                block;

        while (count < most && accepted[ids[count]])
                count++;
        return cached > count ? cached : count;
}

bool sim__des_oracle_tell(struct sim__des *des, uint32_t router, uint32_t row_number)
{
        const struct sim__des_router *to = &des->routers[router];
        const struct sim_trace_row *row = &des->trace->rows[row_number];
        const uint64_t *ids = sim_trace_ids(des->trace, row_number);
        struct sim__des_oracle *oracle = des->oracle;
        uint32_t block = des->trace->block_tokens;

        for (uint32_t i = 0; i < row->id_count; i++) {
                oracle->hashes[i] = sim__des_key(ids[i]);
                sim__des_block_tokens(oracle->hashes[i], block, oracle->tokens + (size_t)i * block);
        }
        for (uint32_t i = 0; i < des->options->replicas; i++) {
                uint32_t count = held_by(des, i, row);
                struct kvr_blocks_stored stored = {
                        .hashes = oracle->hashes,
                        .tokens = oracle->tokens,
                        .count = count,
                        .token_count = count * block,
                        .block_tokens = block,
                        .tier = KVR_TIER_GPU,
                };

                /* A blank view; what was sent there meanwhile is among what it was given. */
                kvr_events_stop(to->brain, to->replicas[i]);
                if (kvr_events_trust(to->brain, to->replicas[i], true) != KVR_OK)
                        return false;
                if (count)
                        (void)kvr_events_stored(to->brain, to->replicas[i], &stored, NULL);
        }
        return true;
}
