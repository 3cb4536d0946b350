/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the mock engine does wrong, on purpose. One JSON object sets everything; what it does not name is as
 * usual.
 *
 *     generating requests, `count` of them after the first `skip`:
 *         delay_head_ms, chunk_delay_ms, hang
 *         stall_after_tokens, with stall_ms: goes on afterwards
 *         status, with body and retry_after
 *         error_after_tokens
 *         cut "reset" | "close" | "mid_chunk", cut_at "request" | "head" | "tokens", cut_after_tokens
 *     the whole engine:
 *         health, models "ok" | "error" | "hang"; metrics also "frozen"
 *         refuse_ms
 */
#ifndef KVROUTE_SIM_FAULT_H
#define KVROUTE_SIM_FAULT_H

#include "buf.h"

enum sim_probe {
        SIM_PROBE_OK,
        SIM_PROBE_ERROR, /* 503 */
        SIM_PROBE_HANG,
        SIM_PROBE_FROZEN, /* the page as it was when the fault was set */
};

enum sim_cut {
        SIM_CUT_NONE,
        SIM_CUT_RESET,
        SIM_CUT_CLOSE,     /* a FIN between two chunks */
        SIM_CUT_MID_CHUNK, /* a FIN inside one */
};

enum sim_cut_at {
        SIM_CUT_AT_REQUEST, /* nothing is answered */
        SIM_CUT_AT_HEAD,    /* behind the head */
        SIM_CUT_AT_TOKENS,  /* behind cut_after_tokens of them */
};

#define SIM_FAULT_NEVER    UINT32_MAX
#define SIM_FAULT_BODY_MAX 4096

struct sim_fault {
        uint32_t skip, count; /* count SIM_FAULT_NEVER: without end */
        uint32_t delay_head_ms, chunk_delay_ms;
        uint32_t stall_after_tokens, stall_ms; /* SIM_FAULT_NEVER: no stall; stall_ms 0: for ever */
        uint32_t error_after_tokens;           /* SIM_FAULT_NEVER: no */
        uint32_t status;                       /* 0: none */
        uint32_t retry_after;                  /* seconds; SIM_FAULT_NEVER: no such field */
        enum sim_cut cut;
        enum sim_cut_at cut_at;
        uint32_t cut_after_tokens;
        bool hang;
        enum sim_probe health, metrics, models;
        uint32_t refuse_ms;
        char body[SIM_FAULT_BODY_MAX]; /* of `status`; empty: an error document */
};

/* Nothing wrong. */
void sim_fault_init(struct sim_fault *fault);
/* False with a sentence in message: unknown name, wrong type, out of range. *ret is untouched then. */
KVR_MUST_USE bool sim_fault_parse(struct sim_fault *ret, struct kvr_slice json, char *message,
                                  size_t message_size);
/* Whether it touches generating requests at all. */
bool sim_fault_active(const struct sim_fault *fault);
/* The present setting as JSON, in the form that sim_fault_parse reads. */
void sim_fault_write(const struct sim_fault *fault, struct sim_buf *buf);

#endif
