/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the mock engine reads from a request body: the prompt as tokens in the order of a chat template
 * (tools, system, messages), and the few fields that change the answer. The four APIs give equal tokens
 * for equal conversations.
 */
#ifndef KVROUTE_SIM_REQUEST_H
#define KVROUTE_SIM_REQUEST_H

#include "answer.h"
#include "tokens.h"

struct sim_request {
        enum sim_api api;
        struct kvr_slice model; /* empty: the engine's own. Slices live until sim_request_fini */
        struct kvr_slice salt;
        struct kvr_slice previous_id;
        struct sim_tokens tokens;
        bool stream, include_usage, continuous, token_ids;
        bool store;            /* Responses: true unless the client says no */
        int64_t max_tokens;    /* -1: not given */
        uint32_t choices;      /* n times the number of prompts */
        uint32_t other_tokens; /* of further prompts of the same request: counted, not computed */
        double temperature, top_p;
        void *document; /* the parsed body */
};

struct sim_request_error {
        unsigned status;
        const char *type, *param; /* constant text */
        char message[256];
};

/*
 * Parses body (borrowed for the call). False: *ret_error is filled and there is nothing to free.
 */
KVR_MUST_USE bool sim_request_parse(struct sim_request *ret, enum sim_api api, struct kvr_slice body,
                                    struct sim_request_error *ret_error);
/* Only the prompt, for /tokenize and the like: `messages` (chat) or `prompt`. */
KVR_MUST_USE bool sim_request_parse_tokenize(struct sim_request *ret, struct kvr_slice body,
                                             struct sim_request_error *ret_error);
void sim_request_fini(struct sim_request *request);

#endif
