/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the answer of a chat or completions request as a load generator must: when content came, what it
 * said, what usage tells, whether it ended well. Bytes in, facts out; no I/O.
 */
#ifndef KVROUTE_SIM_REPLY_H
#define KVROUTE_SIM_REPLY_H

#include "buf.h"

#define SIM_REPLY_BYTES_MAX (64u * 1024 * 1024) /* of one answer's text, or of one line of a stream */

struct sim_reply {
        bool stream;
        struct sim_buf line; /* an unfinished line, or the whole document */
        struct sim_buf text; /* the answer */
        bool keep_text;      /* else text stays empty */
        uint32_t pieces;     /* pieces of content */
        bool finished;       /* a finish_reason or [DONE] was seen */
        bool error;          /* an error object, or what is no JSON */
        int64_t prompt_tokens, cached_tokens, completion_tokens; /* -1: unknown */
        void (*on_piece)(void *ctx);                             /* a piece of content came; may be NULL */
        void *ctx;
};

void sim_reply_init(struct sim_reply *reply, bool stream, bool keep_text);
void sim_reply_fini(struct sim_reply *reply);
void sim_reply_feed(struct sim_reply *reply, const char *data, size_t len);
/* The body is complete. */
void sim_reply_end(struct sim_reply *reply);

#endif
