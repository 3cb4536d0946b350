/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of prompts: which are worth asking for, and what is learned from the answers. */
#include <stdlib.h>
#include <string.h>

#include "prompt_cell.h"
#include "router_int.h"
#include "token_learn.h"

#define QUESTION_PROBES  8
#define QUESTION_LIFE_NS 120000000000ULL /* nobody answers any more */

struct kvr_outline {
        uint64_t model;
        bool mappable;
        struct kvr_slice adapter, salt; /* behind the points */
        uint64_t cell;                  /* see struct kvr__lesson */
        uint32_t cell_bytes;
        uint32_t point_count;
        struct kvr_point points[];
};

static uint64_t model_of(struct kvr_slice model)
{
        return model.len ? kvr__hash(model, 0) : 0;
}

/* Text whose keys stand for its tokens and nothing else. */
static bool is_mappable(const struct kvr_prompt *prompt)
{
        return prompt->mappable && prompt->point_count && prompt->unit == KVR_UNIT_BYTES;
}

static void cell_find(const struct kvr_prompt *prompt, struct kvr_outline *outline)
{
        uint32_t last = prompt->point_count - 1;
        struct kvr__cell cell;

        /* An end on the grid is a point of longer prompts too. */
        if (!kvr__cell_behind(prompt, last, &cell) ||
            kvr__cell_end_key(&cell, (uint32_t)cell.bytes.len) != prompt->points[last].key)
                return;
        outline->cell = cell.chain;
        outline->cell_bytes = (uint32_t)cell.bytes.len;
}

struct kvr_outline *kvr_outline_new(const struct kvr_prompt *prompt, struct kvr_slice model,
                                    struct kvr_slice adapter, struct kvr_slice salt)
{
        size_t points = prompt->point_count * sizeof(struct kvr_point);
        struct kvr_outline *outline = malloc(sizeof(*outline) + points + adapter.len + salt.len);

        if (!outline)
                return NULL;
        char *names = (char *)outline->points + points;

        outline->model = model_of(model);
        outline->mappable = is_mappable(prompt);
        outline->cell_bytes = 0;
        if (outline->mappable)
                cell_find(prompt, outline);
        outline->point_count = prompt->point_count;
        if (points)
                memcpy(outline->points, prompt->points, points);
        if (adapter.len)
                memcpy(names, adapter.data, adapter.len);
        if (salt.len)
                memcpy(names + adapter.len, salt.data, salt.len);
        outline->adapter = (struct kvr_slice){names, adapter.len};
        outline->salt = (struct kvr_slice){names + adapter.len, salt.len};
        return outline;
}

void kvr_outline_free(struct kvr_outline *outline)
{
        free(outline);
}

/* ---- questions ---- */

static uint64_t question_key(uint64_t last_point, uint64_t model)
{
        uint64_t key = last_point ^ model * 0x9e3779b97f4a7c15ULL;

        return key | !key;
}

/* False when it is being asked, or when so many others are. */
static bool question_put(struct kvr__events *events, uint64_t key, uint64_t now_ns)
{
        for (uint64_t i = 0; i < QUESTION_PROBES; i++) {
                struct kvr__question *question = &events->questions[(key + i) % KVR__QUESTIONS];

                uint64_t at_ns = atomic_load_explicit(&question->at_ns, memory_order_relaxed);

                if (atomic_load_explicit(&question->key, memory_order_acquire) == key)
                        return now_ns >= at_ns + QUESTION_LIFE_NS &&
                               atomic_compare_exchange_strong_explicit(&question->at_ns, &at_ns, now_ns,
                                                                       memory_order_relaxed,
                                                                       memory_order_relaxed);
        }
        for (uint64_t i = 0; i < QUESTION_PROBES; i++) {
                struct kvr__question *question = &events->questions[(key + i) % KVR__QUESTIONS];
                uint64_t there = atomic_load_explicit(&question->key, memory_order_acquire);

                if (there &&
                    now_ns < atomic_load_explicit(&question->at_ns, memory_order_relaxed) + QUESTION_LIFE_NS)
                        continue;
                if (!atomic_compare_exchange_strong_explicit(&question->key, &there, key,
                                                             memory_order_acq_rel, memory_order_acquire)) {
                        if (there == key)
                                return false;
                        continue;
                }
                atomic_store_explicit(&question->at_ns, now_ns, memory_order_relaxed);
                return true;
        }
        return false;
}

static void question_drop(struct kvr__events *events, uint64_t key)
{
        for (uint64_t i = 0; i < QUESTION_PROBES; i++) {
                uint64_t there = key;

                if (atomic_compare_exchange_strong_explicit(
                            &events->questions[(key + i) % KVR__QUESTIONS].key, &there, 0,
                            memory_order_acq_rel, memory_order_acquire))
                        return;
        }
}

static uint64_t outline_key(const struct kvr_outline *outline)
{
        return question_key(outline->points[outline->point_count - 1].key, outline->model);
}

/* Does the map lack this prompt for a block size in use, or will it before long? */
static bool is_unknown(struct kvr__events *events, uint64_t last_point, uint64_t model)
{
        for (int i = 0; i < KVR__EVENT_SIZES; i++) {
                uint32_t size = atomic_load_explicit(&events->sizes[i].block_tokens, memory_order_acquire);
                struct kvr__mapped mapped;

                if (!size)
                        continue;
                if (!kvr__token_map_get(events->map, kvr__token_map_key(events->map, last_point, size, model),
                                        &mapped) ||
                    mapped.by != KVR__MAPPED_COUNT || kvr__token_map_old(events->map, mapped.place))
                        return true;
        }
        return false;
}

static bool somebody_tells(struct kvr_router *router, uint64_t model)
{
        bool found = false;

        kvr__router_lock(router);
        for (uint32_t i = 0; i < router->fleet.count && !found; i++) {
                const struct kvr__replica *replica = router->fleet.order[i];

                found = replica->events_trusted && kvr__replica_serves(replica, model);
        }
        kvr__router_unlock(router);
        return found;
}

bool kvr_tokens_wanted(struct kvr_router *router, const struct kvr_request *request)
{
        struct kvr__events *events = kvr__events_of(router);
        const struct kvr_prompt *prompt = request->prompt;

        if (!events || !prompt || !is_mappable(prompt) ||
            !atomic_load_explicit(&events->trusted, memory_order_acquire))
                return false;
        uint64_t model = model_of(request->model);
        uint64_t last = prompt->points[prompt->point_count - 1].key;

        return is_unknown(events, last, model) && somebody_tells(router, model) &&
               question_put(events, question_key(last, model), kvr__router_now(router));
}

void kvr_tokens_drop(struct kvr_router *router, const struct kvr_outline *outline)
{
        struct kvr__events *events = kvr__events_of(router);

        if (events && outline->point_count)
                question_drop(events, outline_key(outline));
}

void kvr_tokens_forget(struct kvr_router *router, struct kvr_slice model)
{
        struct kvr__events *events = kvr__events_of(router);

        if (events)
                kvr__token_map_forget(events->map, model_of(model));
}

/* ---- learning ---- */

static void keys_fill(const struct kvr_outline *outline, const uint32_t *ids, struct kvr__lesson *lesson,
                      uint64_t *keys)
{
        uint32_t size = lesson->block_tokens;
        uint64_t key = kvr__chain_root(outline->adapter, outline->salt, size);

        for (uint32_t i = 0; i < lesson->blocks; i++) {
                key = kvr__chain_next(key, ids + (size_t)i * size, size, 0);
                keys[i] = key;
        }
        if (lesson->blocks && (outline->adapter.len || outline->salt.len))
                lesson->base = kvr__chain_next(
                        kvr__chain_root((struct kvr_slice){0}, (struct kvr_slice){0}, size), ids, size, 0);
}

static bool size_learn(struct kvr__events *events, const struct kvr_outline *outline, const uint32_t *ids,
                       struct kvr__lesson *lesson)
{
        uint32_t blocks = lesson->tokens / lesson->block_tokens;

        lesson->blocks = blocks < KVR__MAP_BLOCKS_MAX ? blocks : KVR__MAP_BLOCKS_MAX;
        uint64_t *keys = malloc((lesson->blocks + 1) * sizeof(*keys));

        if (!keys)
                return false;
        keys_fill(outline, ids, lesson, keys);
        lesson->keys = keys;
        pthread_mutex_lock(&events->learn_lock);
        bool done = kvr__token_learn(events->map, lesson);

        pthread_mutex_unlock(&events->learn_lock);
        free(keys);
        return done;
}

static enum kvr_status learn(struct kvr__events *events, const struct kvr_outline *outline,
                             const uint32_t *ids, uint32_t count)
{
        uint32_t *marks = malloc(outline->point_count * sizeof(*marks));
        bool done = marks != NULL;

        if (done)
                kvr__token_marks(outline->points, outline->point_count, ids, count, marks);
        for (int i = 0; done && i < KVR__EVENT_SIZES; i++) {
                struct kvr__lesson lesson = {
                        .points = outline->points,
                        .point_count = outline->point_count,
                        .model = outline->model,
                        .tokens = count,
                        .marks = marks,
                        .cell = outline->cell,
                        .cell_bytes = outline->cell_bytes,
                        .block_tokens =
                                atomic_load_explicit(&events->sizes[i].block_tokens, memory_order_acquire),
                };

                if (lesson.block_tokens)
                        done = size_learn(events, outline, ids, &lesson);
        }
        free(marks);
        return done ? KVR_OK : KVR_E_NOMEM;
}

enum kvr_status kvr_tokens_learn(struct kvr_router *router, const struct kvr_outline *outline,
                                 const uint32_t *ids, uint32_t count)
{
        struct kvr__events *events = kvr__events_of(router);
        enum kvr_status status = KVR_OK;

        if (!outline->mappable || !count)
                return KVR_E_ARGUMENT;
        if (!events)
                return KVR_OK;
        if (count > KVR_PROMPT_IDS_MAX)
                status = KVR_E_LIMIT;
        else
                status = learn(events, outline, ids, count);
        question_drop(events, outline_key(outline));
        return status;
}
