/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers in the very form in which vLLM 0.32 gives them (key order, nulls and all), for the four
 * generating APIs. Pure: state in, bytes out. A stream is begin, first, token..., end; begin is what goes
 * out before the prompt was computed.
 */
#ifndef KVROUTE_SIM_ANSWER_H
#define KVROUTE_SIM_ANSWER_H

#include "buf.h"

enum sim_api {
        SIM_API_CHAT,
        SIM_API_COMPLETIONS,
        SIM_API_RESPONSES,
        SIM_API_MESSAGES,
};

#define SIM_FINGERPRINT "vllm-0.32.0-5496c559"

struct sim_answer {
        enum sim_api api;
        const char *id;         /* hexadecimal or the client's x-request-id, without prefix */
        const char *model_json; /* as a JSON string, quotes included */
        int64_t created;        /* Unix seconds */
        bool include_usage;     /* stream_options */
        bool continuous;        /* stream_options.continuous_usage_stats */
        bool details;           /* the engine reports cached tokens */
        bool token_ids;         /* return_token_ids */
        bool limited;           /* the client gave a limit and the answer reached it: finish_reason length */
        uint32_t choices;       /* n; every choice has the same text */
        uint32_t prompt_tokens, cached_tokens, output_tokens; /* output_tokens: of one choice, so far */
        uint32_t block_tokens;
        int64_t max_output_tokens;  /* Responses echo it; -1 none */
        double temperature, top_p;  /* Responses echo them */
        const char *previous_json;  /* previous_response_id as JSON, or "null" */
        const uint32_t *prompt_ids; /* for token_ids */
        size_t prompt_id_count;
        const uint32_t *output_ids; /* of output_tokens so far */
        uint32_t sequence;          /* Responses: number of the next event */
        struct sim_buf text;        /* the answer so far */
};

void sim_answer_begin(struct sim_buf *buf, struct sim_answer *answer);
void sim_answer_first(struct sim_buf *buf, struct sim_answer *answer);
/*
 * The next piece of text, of `count` tokens. The caller has added it to answer->text and its tokens to
 * output_tokens already. `last`: nothing follows but the end.
 */
void sim_answer_token(struct sim_buf *buf, struct sim_answer *answer, struct kvr_slice piece, uint32_t count,
                      bool last);
void sim_answer_end(struct sim_buf *buf, struct sim_answer *answer);
/* The whole answer as one JSON document. */
void sim_answer_whole(struct sim_buf *buf, struct sim_answer *answer);
/* What a stream says when the engine behind it died; false: this API's streams are cut instead. */
bool sim_answer_died(struct sim_buf *buf, const struct sim_answer *answer);

/* An error document; Anthropic's form for SIM_API_MESSAGES. param may be NULL. */
void sim_answer_error(struct sim_buf *buf, enum sim_api api, unsigned status, const char *type,
                      const char *param, const char *message);

#endif
