/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/prompt_recall.h"

#include <stdlib.h>
#include <string.h>

#include "lib/pool.h"

#define ENTRY_ALIGN 16u
#define ENTRY_LINES 6u /* cache lines of an entry that are asked for when it is found */

void kvr__recall_init(struct kvr__recall *recall)
{
        recall->first = KVR__RECALL_FIRST;
        recall->step_min = KVR__RECALL_STEP_MIN;
        recall->rest = KVR__RECALL_REST;
}

void kvr__recall_fini(struct kvr__recall *recall)
{
        free(recall->ring);
        recall->ring = NULL;
}

void kvr__recall_clear(struct kvr__recall *recall)
{
        memset(recall->slots, 0, sizeof(recall->slots));
        memset(recall->seen, 0, sizeof(recall->seen));
        recall->known = NULL;
        recall->plan_count = 0;
}

/* ---- entries ---- */

static uint32_t entry_bytes(uint32_t tokens, uint32_t points)
{
        uint64_t bytes = sizeof(struct kvr__recall_entry) +
                         (uint64_t)tokens * sizeof(struct kvr__json_token) +
                         (uint64_t)points * sizeof(struct kvr_point);

        bytes = (bytes + ENTRY_ALIGN - 1) / ENTRY_ALIGN * ENTRY_ALIGN;
        return bytes > KVR__RECALL_ENTRY_BYTES ? 0 : (uint32_t)bytes;
}

/* Points come first behind the entry: they are aligned to 8 bytes. */
static const struct kvr_point *entry_points(const struct kvr__recall_entry *entry)
{
        return (const struct kvr_point *)(const void *)(entry + 1);
}

static uint32_t entry_point_count(const struct kvr__recall_chat *chat)
{
        return chat->there ? chat->mark.point_count - chat->first_point : 0;
}

const struct kvr__json_token *kvr__recall_tokens(const struct kvr__recall_entry *entry)
{
        return (const struct kvr__json_token *)(const void *)(entry_points(entry) +
                                                              entry_point_count(&entry->chat));
}

static struct kvr__recall_slot *set_of(struct kvr__recall *recall, const struct kvr__digest *digest)
{
        return recall->slots[digest->low % KVR__RECALL_SETS];
}

static bool same(const struct kvr__digest *a, const struct kvr__digest *b)
{
        return a->low == b->low && a->high == b->high;
}

/* The digest will be looked for soon. */
static void prefetch(struct kvr__recall *recall, const struct kvr__digest *digest)
{
        const struct kvr__recall_slot *set = set_of(recall, digest);

        __builtin_prefetch(set);
        __builtin_prefetch(set + KVR__RECALL_WAYS - 1);
        __builtin_prefetch(&recall->seen[digest->high % KVR__RECALL_SEEN], 1);
}

static const struct kvr__recall_entry *find(struct kvr__recall *recall, const struct kvr__digest *digest)
{
        const struct kvr__recall_slot *set = set_of(recall, digest);

        for (uint32_t way = 0; way < KVR__RECALL_WAYS; way++) {
                uint64_t at = set[way].at - 1;

                /* What lies a whole ring behind is overwritten. */
                if (set[way].at && same(&set[way].digest, digest) &&
                    recall->written - at <= KVR__RECALL_RING_BYTES)
                        return (const void *)(recall->ring + at % KVR__RECALL_RING_BYTES);
        }
        return NULL;
}

/* Room for an entry; NULL: none. */
static struct kvr__recall_entry *take(struct kvr__recall *recall, const struct kvr__digest *digest,
                                      uint32_t bytes)
{
        struct kvr__recall_slot *set = set_of(recall, digest);
        uint32_t left = KVR__RECALL_RING_BYTES - (uint32_t)(recall->written % KVR__RECALL_RING_BYTES);
        uint8_t *turn = &recall->turn[digest->low % KVR__RECALL_SETS];
        struct kvr__recall_slot *slot = &set[*turn];

        if (!recall->ring) {
                recall->ring = kvr__pages_new(KVR__RECALL_RING_BYTES);
                if (!recall->ring)
                        return NULL;
        }
        if (left < bytes)
                recall->written += left;
        *slot = (struct kvr__recall_slot){*digest, recall->written + 1};
        *turn = (uint8_t)((*turn + 1) % KVR__RECALL_WAYS);
        recall->written += bytes;
        return (void *)(recall->ring + (slot->at - 1) % KVR__RECALL_RING_BYTES);
}

/* ---- looking a body up ---- */

static uint32_t checkpoint_behind(const struct kvr__recall *recall, uint32_t place)
{
        uint32_t step;

        if (place == 0)
                return recall->first;
        step = 1u << (31 - __builtin_clz(place)) >> 2;
        return place + (step < recall->step_min ? recall->step_min : step);
}

/* The digest of a body up to a checkpoint, from the one before it and the bytes between. */
static struct kvr__digest digest_on(const struct kvr__hash *hash, const struct kvr__digest *before,
                                    const char *data, uint32_t len)
{
        const struct kvr__digest both[2] = {*before, kvr__hash128(hash, data, len)};

        return kvr__hash128(hash, both, sizeof(both));
}

/* Was the digest met before? It is from now on. */
static bool seen(struct kvr__recall *recall, const struct kvr__digest *digest)
{
        uint32_t *place = &recall->seen[digest->high % KVR__RECALL_SEEN];
        uint32_t print = (uint32_t)(digest->low >> 32) | 1;
        bool there = *place == print;

        *place = print;
        return there;
}

void kvr__recall_begin(struct kvr__recall *recall, const struct kvr__hash *hash, enum kvr_api api,
                       struct kvr_slice body)
{
        struct kvr__digest digests[KVR__RECALL_AHEAD], digest = {api, 0};
        uint32_t places[KVR__RECALL_AHEAD], done = 0, count = 0, place = 0, unknown = 0;

        recall->known = NULL;
        recall->plan_count = recall->plan_next = 0;
        if (body.len >= KVR__JSON_LENGTH_MAX)
                return;
        while (unknown < KVR__RECALL_AHEAD && recall->plan_count < KVR__RECALL_NEW_MAX) {
                const struct kvr__recall_entry *entry;

                /* So many digests are made in any case, and while one is made what the one before needs comes. */
                while (count - done + unknown < KVR__RECALL_AHEAD) {
                        uint32_t next = checkpoint_behind(recall, place);

                        if (next + recall->rest > body.len)
                                break;
                        digest = digest_on(hash, &digest, body.data + place, next - place);
                        prefetch(recall, &digest);
                        digests[count % KVR__RECALL_AHEAD] = digest;
                        places[count++ % KVR__RECALL_AHEAD] = place = next;
                }
                if (done == count)
                        break;
                const struct kvr__digest *at = &digests[done % KVR__RECALL_AHEAD];

                entry = find(recall, at);
                if (entry) {
                        for (uint32_t line = 0; line < ENTRY_LINES; line++)
                                __builtin_prefetch((const char *)entry + (size_t)64 * line);
                        recall->known = entry;
                } else if (seen(recall, at)) {
                        recall->plan[recall->plan_count++] = (struct kvr__recall_plan){
                                .digest = *at, .place = places[done % KVR__RECALL_AHEAD]};
                } else {
                        unknown++;
                }
                done++;
        }
        if (recall->known)
                recall->known_bytes += recall->known->state.pos;
}

void kvr__recall_read(struct kvr__recall *recall, const struct kvr__json *json)
{
        struct kvr__json_state state = {0};
        uint32_t count = 0;

        if (json->flags) /* where in the document they belong is not known */
                recall->plan_count = 0;
        if (recall->known)
                state = recall->known->state;
        for (uint32_t i = 0; i < recall->plan_count; i++) {
                struct kvr__recall_plan *plan = &recall->plan[i];
                uint32_t token = state.token;

                if (recall->known && plan->place < state.pos)
                        continue; /* a checkpoint before one that is known: its entry was overwritten */
                kvr__json_state_move(json, &state, plan->place);
                if (state.token == token)
                        continue; /* one long string: nothing more is known than at the checkpoint before */
                plan->state = state;
                recall->plan[count++] = *plan;
        }
        recall->plan_count = count;
}

/* ---- messages ---- */

void kvr__recall_messages(struct kvr__recall *recall, struct kvr__stream *stream, uint32_t list,
                          uint32_t *next, uint32_t *index)
{
        const struct kvr__recall_chat *chat = recall->known ? &recall->known->chat : NULL;

        if (!chat && !recall->plan_count)
                return;
        recall->chat.from = kvr__stream_print(stream);
        recall->chat.first_point = stream->point_count;
        recall->chat.list = list;
        if (!chat || !chat->there || chat->list != list || chat->from != recall->chat.from ||
            chat->first_point != stream->point_count)
                return;
        memcpy(stream->points + stream->point_count, entry_points(recall->known),
               entry_point_count(chat) * sizeof(*stream->points));
        kvr__stream_go(stream, &chat->mark);
        *next = chat->next;
        *index = chat->index;
}

void kvr__recall_note(struct kvr__recall *recall, const struct kvr__stream *stream, uint32_t message,
                      uint32_t index)
{
        struct kvr__recall_plan *plan = &recall->plan[recall->plan_next++];
        struct kvr__recall_chat *chat = &plan->chat;

        *chat = recall->chat;
        chat->there = plan->state.token > chat->list && kvr__stream_mark(stream, &chat->mark);
        chat->next = message;
        chat->index = index;
}

void kvr__recall_commit(struct kvr__recall *recall, const struct kvr__json *json,
                        const struct kvr_point *points)
{
        recall->known = NULL;
        for (uint32_t i = 0; i < recall->plan_count; i++) {
                const struct kvr__recall_plan *plan = &recall->plan[i];
                uint32_t point_count = entry_point_count(&plan->chat);
                uint32_t bytes = entry_bytes(plan->state.token, point_count);
                struct kvr__recall_entry *entry = bytes ? take(recall, &plan->digest, bytes) : NULL;
                struct kvr_point *at;

                if (!entry)
                        continue;
                at = (void *)(entry + 1);
                *entry = (struct kvr__recall_entry){plan->state, plan->chat};
                if (point_count)
                        memcpy(at, points + plan->chat.first_point, point_count * sizeof(*points));
                memcpy(at + point_count, json->tokens, plan->state.token * sizeof(*json->tokens));
        }
        recall->plan_count = 0;
}
