/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of KV cache events as vLLM 0.32 writes them (maps), or as it and SGLang did before (arrays, without
 * what came later). Pure: what happened in, bytes out.
 */
#ifndef KVROUTE_SIM_MOCK_EVENT_BATCH_H
#define KVROUTE_SIM_MOCK_EVENT_BATCH_H

#include "proto/text.h"

struct mock_event_format {
        bool arrays; /* else maps */
        bool bytes;  /* hashes as 32 bytes, else as numbers */
};

enum mock_event_kind { MOCK_EVENT_STORED, MOCK_EVENT_REMOVED, MOCK_EVENT_CLEARED };

struct mock_event {
        enum mock_event_kind kind;
        const uint64_t *hashes;
        uint32_t count;
        bool has_parent;
        uint64_t parent;
        const uint32_t *tokens; /* count * block_tokens */
        uint32_t block_tokens;
        struct kvr_slice adapter, salt; /* empty: none */
};

/* [time, [`events` of them, */
void mock_batch_begin(struct text *out, double unix_time, uint32_t events);
void mock_batch_event(struct text *out, const struct mock_event_format *format,
                      const struct mock_event *event);
/* ], rank] */
void mock_batch_end(struct text *out, uint32_t rank);

#endif
