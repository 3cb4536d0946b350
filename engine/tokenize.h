/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking an engine's own tokenizer for the ids of a prompt, template and tools included.
 *
 * A request is turned into the questions that may be put to an engine of that kind, best one first: an engine
 * may lack a path (404), or have it switched off (403). No I/O. Any thread.
 */
#ifndef KVROUTE_ENGINE_TOKENIZE_H
#define KVROUTE_ENGINE_TOKENIZE_H

#include "engine.h"
#include "kvroute/prompt.h"

#define ENGINE_IDS_BODY_MAX (64U << 20) /* larger answers are not worth reading */

/* Paths a replica may turn out not to have, as bits of a set. */
enum engine_tokenizer {
        ENGINE_TOKENIZE, /* POST /tokenize and its like */
        ENGINE_RENDER,   /* POST /v1/.../render: the request as it is */
        ENGINE_TOKENIZER_COUNT,
};

struct engine_question {
        enum engine_tokenizer tokenizer;
        const char *path; /* constant, below the base URL */
        char *body;       /* JSON, malloc'd: the caller's to free() */
        size_t len;
};

/* Whether engines of that kind have a tokenizer that can be asked over HTTP for prompts of this form. */
bool engine_tokenizes(enum engine_kind kind, enum kvr_api api);

/*
 * The best question that does not need a tokenizer of the set `lacking` (bits 1 << enum engine_tokenizer).
 * `body` is the request (borrowed), `model` the name the engine knows (empty: as the client wrote it).
 * KVR_E_NOT_FOUND  no way to ask for this prompt is left (wrong kind, several prompts, content that only a
 *                  missing path could turn into ids)
 * KVR_E_JSON       not a JSON object
 * KVR_E_NOMEM
 */
KVR_MUST_USE enum kvr_status engine_tokenize_ask(enum engine_kind kind, enum kvr_api api,
                                                 struct kvr_slice body, struct kvr_slice model,
                                                 unsigned lacking, struct engine_question *ret);

/*
 * Reads the ids out of an answer with status 200. *ret_ids is malloc'd: the caller's to free().
 * KVR_E_JSON no JSON; KVR_E_REQUEST no ids in it, or not ids; KVR_E_LIMIT more than KVR_PROMPT_IDS_MAX;
 * KVR_E_NOMEM
 */
KVR_MUST_USE enum kvr_status engine_tokenize_read(struct kvr_slice body, uint32_t **ret_ids,
                                                  uint32_t *ret_count);

#endif
