/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a parser has read before. Prompts begin alike: the turns of a conversation, requests with one system
 * prompt. A body that begins like earlier ones is read from where it may differ; before that it is only
 * hashed, which costs a fifth of reading.
 *
 *     body      |======4K======6K======8K=====10K=....     checkpoints: fixed places in the bytes
 *     digests         d0       d1      d2     d3           of all bytes before, 128 bits, under the seed
 *     entry                            tokens, points      of what lies before the checkpoint
 *
 * An entry is made when a digest is met the second time. It holds the JSON tokens up to the last value that
 * begins before the checkpoint and, for chats, the stream behind the last message that ends there. Going on
 * from there gives what reading from the start gives: tokens depend on the bytes before them alone, and so do
 * cuts, points and the chain once the stream in front of the messages (tools, settings) is the same, which is
 * checked.
 *
 * Entries lie in a ring that overwrites its oldest; no memory is asked for once the ring is there. The ring
 * not being there is no error, it is tried again with the next entry. Owner: the parser's.
 */
#ifndef KVROUTE_LIB_PROMPT_RECALL_H
#define KVROUTE_LIB_PROMPT_RECALL_H

#include "lib/json.h"
#include "lib/prompt_hash.h"
#include "lib/prompt_stream.h"

#define KVR__RECALL_RING_BYTES  (8u << 20)
#define KVR__RECALL_ENTRY_BYTES (128u << 10) /* an entry that would be larger is not made */
#define KVR__RECALL_FIRST       4096u        /* first checkpoint */
#define KVR__RECALL_STEP_MIN    2048u /* to the next; from 8 KB on a quarter of the power of two below */
#define KVR__RECALL_REST        1024u /* with less than this behind it a checkpoint is not worth having */
#define KVR__RECALL_SETS        512u
#define KVR__RECALL_WAYS        4u
#define KVR__RECALL_SEEN        4096u /* digests met once that are remembered */
#define KVR__RECALL_NEW_MAX     16u   /* checkpoints of one body that may become entries at once */
#define KVR__RECALL_AHEAD       2u    /* digests behind the last known one that are noted per body */

/* How far the messages were written. */
struct kvr__recall_chat {
        bool there;
        uint64_t from;                /* kvr__stream_print in front of the messages */
        uint32_t first_point;         /* points before the messages */
        uint32_t list;                /* token of the list */
        uint32_t next, index;         /* token and number of the first message not written */
        struct kvr__stream_mark mark; /* behind the one before it */
};

struct kvr__recall_entry {
        struct kvr__json_state state;
        struct kvr__recall_chat chat;
        /* The points of the messages follow, then state.token tokens. */
};

/* A checkpoint of the body being read that is to become an entry. */
struct kvr__recall_plan {
        struct kvr__digest digest;
        uint32_t place;
        struct kvr__json_state state;
        struct kvr__recall_chat chat;
};

struct kvr__recall {
        /* The constants of these names; tests set them lower. */
        uint32_t first, step_min, rest;
        unsigned char *ring;
        uint64_t written; /* bytes ever; place in the ring modulo its size */
        struct kvr__recall_slot {
                struct kvr__digest digest;
                uint64_t at; /* where `written` was, + 1; 0 empty */
        } slots[KVR__RECALL_SETS][KVR__RECALL_WAYS];
        uint8_t turn[KVR__RECALL_SETS]; /* the way that is replaced next */
        uint32_t seen[KVR__RECALL_SEEN];
        uint64_t known_bytes; /* ever, of bodies that were not read because of an entry; for tests and benches
                               */

        /* of the body being read */
        const struct kvr__recall_entry *known; /* the deepest entry, or NULL; void after kvr__recall_commit */
        struct kvr__recall_plan plan[KVR__RECALL_NEW_MAX];
        uint32_t plan_count, plan_next; /* next: the first whose messages have not been passed */
        struct kvr__recall_chat chat;   /* the messages' start */
};

/* From all zero. Takes no memory yet. */
void kvr__recall_init(struct kvr__recall *recall);
void kvr__recall_fini(struct kvr__recall *recall);
/* Forgets everything; to be called when the seed changes. */
void kvr__recall_clear(struct kvr__recall *recall);

/* Looks the body up: sets `known` and which checkpoints are to become entries. */
void kvr__recall_begin(struct kvr__recall *recall, const struct kvr__hash *hash, enum kvr_api api,
                       struct kvr_slice body);
/* Tokens of a known entry. */
const struct kvr__json_token *kvr__recall_tokens(const struct kvr__recall_entry *entry);
/* The body was read: what lies before each checkpoint. */
void kvr__recall_read(struct kvr__recall *recall, const struct kvr__json *json);

/*
 * In front of the messages: goes on behind those that are known, by setting the stream, *next and *index;
 * else leaves all three alone.
 */
void kvr__recall_messages(struct kvr__recall *recall, struct kvr__stream *stream, uint32_t list,
                          uint32_t *next, uint32_t *index);
/* To be called before each message is written (`message`: its token, `behind`: the token behind it) and at
 * the end of the list: notes where the stream is for the checkpoints in this message. */
void kvr__recall_note(struct kvr__recall *recall, const struct kvr__stream *stream, uint32_t message,
                      uint32_t index);
static inline void kvr__recall_pass(struct kvr__recall *recall, const struct kvr__stream *stream,
                                    uint32_t message, uint32_t index, uint32_t behind)
{
        while (recall->plan_next < recall->plan_count && recall->plan[recall->plan_next].state.token < behind)
                kvr__recall_note(recall, stream, message, index);
}

/* All went well: makes the entries. */
void kvr__recall_commit(struct kvr__recall *recall, const struct kvr__json *json,
                        const struct kvr_point *points);

#endif
