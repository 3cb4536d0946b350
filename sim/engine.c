/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"
#include "engine_int.h"

#include <stdlib.h>
#include <string.h>

void sim__engine_list_append(struct job_list *list, struct sim_job *job)
{
        job->prev = list->last;
        job->next = NULL;
        if (list->last)
                list->last->next = job;
        else
                list->first = job;
        list->last = job;
        list->count++;
}

void sim__engine_list_prepend(struct job_list *list, struct sim_job *job)
{
        job->prev = NULL;
        job->next = list->first;
        if (list->first)
                list->first->prev = job;
        else
                list->last = job;
        list->first = job;
        list->count++;
}

void sim__engine_list_remove(struct job_list *list, struct sim_job *job)
{
        if (job->prev)
                job->prev->next = job->next;
        else
                list->first = job->next;
        if (job->next)
                job->next->prev = job->prev;
        else
                list->last = job->prev;
        list->count--;
}

/* ---- changes of the cache ----------------------------------------------------------------------------- */

void sim__engine_change(struct sim_engine *engine, struct sim_change change)
{
        if (engine->change_count == engine->change_cap) {
                uint32_t cap = engine->change_cap ? engine->change_cap * 2 : 256;
                struct sim_change *grown = realloc(engine->changes, cap * sizeof(*grown));

                if (!grown) {
                        engine->changes_lost = true;
                        return;
                }
                engine->changes = grown;
                engine->change_cap = cap;
        }
        engine->changes[engine->change_count++] = change;
}

static void block_gone(void *ctx, uint64_t key)
{
        sim__engine_change(ctx, (struct sim_change){.key = key, .removed = true});
}

uint32_t sim_engine_changes(struct sim_engine *engine, const struct sim_change **ret, bool *ret_lost)
{
        uint32_t count = engine->change_count;

        *ret = engine->changes;
        *ret_lost = engine->changes_lost;
        engine->change_count = engine->changes_timed = 0;
        engine->changes_lost = false;
        return count;
}

struct sim_engine *sim_engine_new(const struct sim_engine_options *options)
{
        struct sim_engine *engine = calloc(1, sizeof(*engine));

        if (!engine)
                return NULL;
        engine->options = *options;
        if (options->slots)
                engine->slots =
                        sim_slots_new(options->slots, options->block_tokens, options->slot_memory_tokens);
        else
                engine->blocks = sim_blocks_new(options->capacity_blocks);
        /* Room for every event a step can give, so that a step never fails half-way. */
        engine->event_cap = 4 * (size_t)options->max_running + 16;
        engine->events = calloc(engine->event_cap, sizeof(*engine->events));
        if ((!engine->blocks && !engine->slots) || !engine->events) {
                sim_engine_free(engine);
                return NULL;
        }
        if (options->changes && engine->blocks)
                sim_blocks_watch(engine->blocks, block_gone, engine);
        return engine;
}

static void list_free(struct job_list *list)
{
        struct sim_job *next;

        for (struct sim_job *job = list->first; job; job = next) {
                next = job->next;
                free(job);
        }
        *list = (struct job_list){0};
}

/* Jobs that have ended but whose END was not fetched are in the queue only. */
static void events_drop(struct sim_engine *engine)
{
        for (; engine->event_head < engine->event_count; engine->event_head++) {
                struct queued_event *queued = &engine->events[engine->event_head];

                if (queued->job && queued->event.kind == SIM_EVENT_END)
                        free(queued->job);
        }
        engine->event_head = engine->event_count = 0;
}

void sim_engine_free(struct sim_engine *engine)
{
        if (!engine)
                return;
        if (engine->events)
                events_drop(engine);
        list_free(&engine->waiting);
        list_free(&engine->running);
        sim_blocks_free(engine->blocks);
        sim_slots_free(engine->slots);
        free(engine->events);
        free(engine->changes);
        free(engine);
}

void sim__engine_push_event(struct sim_engine *engine, enum sim_event_kind kind, uint64_t at_ns,
                            struct sim_job *job)
{
        struct queued_event *queued = &engine->events[engine->event_count++];

        queued->job = job;
        queued->event = (struct sim_event){
                .kind = kind,
                .at_ns = at_ns,
                .tag = job->tag,
                .cached_tokens = job->cached,
                .token = kind == SIM_EVENT_TOKEN ? job->produced - 1 : job->produced,
        };
}

/* What one request may have of the cache. */
static uint64_t tokens_most(const struct sim_engine *engine)
{
        uint64_t tokens = (uint64_t)engine->options.capacity_blocks * engine->options.block_tokens;

        return engine->slots ? tokens / engine->options.slots : tokens;
}

enum kvr_status sim_engine_submit(struct sim_engine *engine, uint64_t now_ns, const struct sim_submit *submit,
                                  struct sim_job **ret_job)
{
        uint64_t tokens = (uint64_t)submit->prompt_tokens + submit->output_tokens;
        uint32_t max_blocks, keys;
        struct sim_job *job;

        if (submit->prompt_tokens == 0 || submit->output_tokens == 0 || tokens > tokens_most(engine))
                return KVR_E_LIMIT;
        if (engine->options.max_waiting && engine->waiting.count >= engine->options.max_waiting) {
                engine->counters.refused++;
                return KVR_E_BUSY;
        }
        sim_engine_catch_up(engine, now_ns);
        max_blocks = sim__engine_blocks_for(engine, (uint32_t)tokens);
        keys = submit->key_count < max_blocks ? submit->key_count : max_blocks;
        if (engine->slots)
                max_blocks = 0;
        job = calloc(1, sizeof(*job) + keys * sizeof(job->keys[0]) + max_blocks * sizeof(job->blocks[0]));
        if (!job)
                return KVR_E_NOMEM;
        job->tag = submit->tag;
        job->prompt_tokens = submit->prompt_tokens;
        job->output_tokens = submit->output_tokens;
        job->key_count = keys;
        job->blocks = (uint32_t *)(void *)(job->keys + keys);
        if (keys)
                memcpy(job->keys, submit->keys, keys * sizeof(job->keys[0]));
        if (!engine->in_step && engine->running.count == 0 && engine->waiting.count == 0 &&
            engine->clock_ns < now_ns)
                engine->clock_ns = now_ns;
        sim__engine_list_append(&engine->waiting, job);
        engine->counters.submitted++;
        *ret_job = job;
        return KVR_OK;
}

void sim__engine_release(struct sim_engine *engine, struct sim_job *job)
{
        if (!engine->slots)
                sim_blocks_release(engine->blocks, job->blocks, job->block_count);
        else if (job->running)
                sim_slots_finish(engine->slots, job->slot, job->computed);
        job->block_count = 0;
        job->named = 0;
        job->computed = 0;
}

void sim_engine_abort(struct sim_engine *engine, struct sim_job *job)
{
        bool ended = false;

        for (size_t i = engine->event_head; i < engine->event_count; i++) {
                if (engine->events[i].job != job)
                        continue;
                ended = ended || engine->events[i].event.kind == SIM_EVENT_END;
                engine->events[i].job = NULL;
        }
        if (ended) { /* it was in no list any more */
                free(job);
                return;
        }
        engine->counters.aborted++;
        if (!job->running) {
                sim__engine_list_remove(&engine->waiting, job);
                free(job);
        } else if (engine->in_step && job->chunk) {
                job->aborted = true;
                engine->aborted_running++;
        } else {
                sim__engine_release(engine, job);
                sim__engine_list_remove(&engine->running, job);
                free(job);
        }
}

static bool has_work(const struct sim_engine *engine)
{
        return engine->running.count || engine->waiting.count;
}

bool sim_engine_next(struct sim_engine *engine, uint64_t until_ns, struct sim_event *ret)
{
        for (;;) {
                while (engine->event_head < engine->event_count) {
                        struct queued_event *queued = &engine->events[engine->event_head++];

                        if (!queued->job)
                                continue;
                        *ret = queued->event;
                        if (ret->kind == SIM_EVENT_END)
                                free(queued->job);
                        return true;
                }
                engine->event_head = engine->event_count = 0;
                if (!engine->in_step && has_work(engine) && engine->clock_ns <= until_ns)
                        sim__engine_step_start(engine);
                else if (engine->in_step && engine->step_end_ns <= until_ns)
                        sim__engine_step_end(engine);
                else
                        break;
        }
        if (!has_work(engine) && engine->clock_ns < until_ns && until_ns != SIM_NEVER)
                engine->clock_ns = until_ns;
        return false;
}

uint64_t sim_engine_next_ns(struct sim_engine *engine)
{
        if (engine->event_head < engine->event_count)
                return engine->clock_ns;
        if (!engine->in_step && !has_work(engine))
                return SIM_NEVER;
        return engine->in_step ? engine->step_end_ns : engine->clock_ns;
}

void sim_engine_drop_cache(struct sim_engine *engine)
{
        if (engine->slots)
                sim_slots_clear(engine->slots);
        else
                sim_blocks_flush(engine->blocks);
}

bool sim_engine_flush(struct sim_engine *engine)
{
        if (engine->slots ? sim_slots_busy(engine->slots) : sim_blocks_in_use(engine->blocks))
                return false;
        sim_engine_drop_cache(engine);
        return true;
}

void sim_engine_restart(struct sim_engine *engine, uint64_t now_ns)
{
        struct job_list *lists[] = {&engine->waiting, &engine->running};

        events_drop(engine);
        for (size_t i = 0; i < 2; i++) {
                for (struct sim_job *job = lists[i]->first; job; job = job->next)
                        sim__engine_release(engine, job);
                list_free(lists[i]);
        }
        sim_engine_drop_cache(engine);
        engine->aborted_running = 0;
        engine->in_step = false;
        engine->clock_ns = engine->clock_ns > now_ns ? engine->clock_ns : now_ns;
        engine->counters = (struct sim_engine_counters){0};
}

uint32_t sim_engine_running(const struct sim_engine *engine)
{
        return engine->running.count - engine->aborted_running;
}

uint32_t sim_engine_waiting(const struct sim_engine *engine)
{
        return engine->waiting.count;
}

uint32_t sim_engine_match(const struct sim_engine *engine, const uint64_t *keys, uint32_t key_count,
                          uint32_t prompt_tokens)
{
        uint32_t most = (prompt_tokens - 1) / engine->options.block_tokens;

        if (engine->options.no_prefix_cache)
                return 0;
        if (engine->slots)
                return sim_slots_match(engine->slots, keys, key_count, prompt_tokens);
        most = most < key_count ? most : key_count;
        return sim_blocks_match(engine->blocks, keys, most) * engine->options.block_tokens;
}

/* Slots in use, of the context that each of them has. */
static double slots_usage(const struct sim_engine *engine)
{
        uint64_t tokens = 0;

        for (const struct sim_job *job = engine->running.first; job; job = job->next)
                tokens += job->computed;
        return (double)tokens / ((double)engine->options.capacity_blocks * engine->options.block_tokens);
}

double sim_engine_usage(const struct sim_engine *engine)
{
        if (engine->slots)
                return slots_usage(engine);
        return (double)sim_blocks_in_use(engine->blocks) / sim_blocks_count(engine->blocks);
}

uint64_t sim_engine_pending_tokens(const struct sim_engine *engine)
{
        uint64_t tokens = 0;

        for (const struct sim_job *job = engine->waiting.first; job; job = job->next)
                tokens += sim__engine_missing(job);
        for (const struct sim_job *job = engine->running.first; job; job = job->next)
                tokens += sim__engine_decodes(job) ? 0 : sim__engine_missing(job);
        return tokens;
}

uint32_t sim_engine_cached_blocks(const struct sim_engine *engine)
{
        if (engine->slots)
                return (uint32_t)(sim_slots_tokens(engine->slots) / engine->options.block_tokens);
        return sim_blocks_named(engine->blocks);
}

uint64_t sim_engine_evictions(const struct sim_engine *engine)
{
        return engine->slots ? sim_slots_dropped(engine->slots) : sim_blocks_evictions(engine->blocks);
}

void sim_engine_counters(const struct sim_engine *engine, struct sim_engine_counters *ret)
{
        *ret = engine->counters;
}
