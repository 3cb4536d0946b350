/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"
#include "blocks.h"

#include <stdlib.h>
#include <string.h>

struct sim_job {
        struct sim_job *prev, *next; /* waiting queue or running list */
        void *tag;
        uint32_t prompt_tokens, output_tokens, key_count;
        uint32_t produced;    /* answer tokens so far */
        uint32_t computed;    /* tokens whose state is in blocks */
        uint32_t chunk;       /* tokens computed in the step under way */
        uint32_t cached;      /* hit tokens of the first admission */
        uint32_t block_count; /* blocks held */
        uint32_t named;       /* leading blocks that have their key */
        bool started, running, aborted;
        uint32_t *blocks; /* behind keys, in the same allocation */
        uint64_t keys[];
};

struct job_list {
        struct sim_job *first, *last;
        uint32_t count;
};

struct queued_event {
        struct sim_event event;
        struct sim_job *job; /* NULL: cancelled. Only compared, and freed behind its END */
};

struct sim_engine {
        struct sim_engine_options options;
        struct sim_blocks *blocks;
        struct job_list waiting, running;
        uint32_t aborted_running; /* aborted jobs that the step under way still holds */
        uint64_t clock_ns;        /* how far the model has run */
        uint64_t step_end_ns;
        bool in_step;
        struct queued_event *events;
        size_t event_head, event_count, event_cap;
        struct sim_engine_counters counters;
};

static void list_append(struct job_list *list, struct sim_job *job)
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

static void list_prepend(struct job_list *list, struct sim_job *job)
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

static void list_remove(struct job_list *list, struct sim_job *job)
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

struct sim_engine *sim_engine_new(const struct sim_engine_options *options)
{
        struct sim_engine *engine = calloc(1, sizeof(*engine));

        if (!engine)
                return NULL;
        engine->options = *options;
        engine->blocks = sim_blocks_new(options->capacity_blocks);
        /* Room for every event a step can give, so that a step never fails half-way. */
        engine->event_cap = 4 * (size_t)options->max_running + 16;
        engine->events = calloc(engine->event_cap, sizeof(*engine->events));
        if (!engine->blocks || !engine->events) {
                sim_engine_free(engine);
                return NULL;
        }
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
        free(engine->events);
        free(engine);
}

static void push_event(struct sim_engine *engine, enum sim_event_kind kind, uint64_t at_ns,
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

static uint32_t blocks_for(const struct sim_engine *engine, uint32_t tokens)
{
        return (tokens + engine->options.block_tokens - 1) / engine->options.block_tokens;
}

enum kvr_status sim_engine_submit(struct sim_engine *engine, uint64_t now_ns, const struct sim_submit *submit,
                                  struct sim_job **ret_job)
{
        uint64_t tokens = (uint64_t)submit->prompt_tokens + submit->output_tokens;
        uint32_t max_blocks, keys;
        struct sim_job *job;

        if (submit->prompt_tokens == 0 || submit->output_tokens == 0 ||
            tokens > (uint64_t)engine->options.capacity_blocks * engine->options.block_tokens)
                return KVR_E_LIMIT;
        if (engine->options.max_waiting && engine->waiting.count >= engine->options.max_waiting) {
                engine->counters.refused++;
                return KVR_E_BUSY;
        }
        max_blocks = blocks_for(engine, (uint32_t)tokens);
        keys = submit->key_count < max_blocks ? submit->key_count : max_blocks;
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
        list_append(&engine->waiting, job);
        engine->counters.submitted++;
        *ret_job = job;
        return KVR_OK;
}

static void release(struct sim_engine *engine, struct sim_job *job)
{
        sim_blocks_release(engine->blocks, job->blocks, job->block_count);
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
                list_remove(&engine->waiting, job);
                free(job);
        } else if (engine->in_step && job->chunk) {
                job->aborted = true;
                engine->aborted_running++;
        } else {
                release(engine, job);
                list_remove(&engine->running, job);
                free(job);
        }
}

/* ---- one step ----------------------------------------------------------------------------------------- */

static bool grow(struct sim_engine *engine, struct sim_job *job, uint32_t tokens)
{
        uint32_t need = blocks_for(engine, tokens);

        if (need <= job->block_count)
                return true;
        if (!sim_blocks_take(engine->blocks, NULL, 0, need - job->block_count,
                             job->blocks + job->block_count))
                return false;
        job->block_count = need;
        return true;
}

static void name_blocks(struct sim_engine *engine, struct sim_job *job, uint32_t tokens)
{
        uint32_t full = tokens / engine->options.block_tokens;

        if (engine->options.no_prefix_cache)
                return;
        for (; job->named < full && job->named < job->key_count; job->named++)
                sim_blocks_name(engine->blocks, job->blocks[job->named], job->keys[job->named]);
}

static void preempt(struct sim_engine *engine, struct sim_job *job)
{
        release(engine, job);
        job->running = false;
        job->chunk = 0;
        list_remove(&engine->running, job);
        list_prepend(&engine->waiting, job);
        engine->counters.preempted++;
}

/* Room for `tokens` of a running job; takes it from younger ones, at last from the job itself: then false. */
static bool make_room(struct sim_engine *engine, struct sim_job *job, uint32_t tokens)
{
        struct sim_job *victim = engine->running.last;

        while (!grow(engine, job, tokens)) {
                struct sim_job *elder = victim ? victim->prev : NULL;

                if (!victim || victim == job) {
                        preempt(engine, job);
                        return false;
                }
                preempt(engine, victim);
                victim = elder;
        }
        return true;
}

static uint32_t missing_tokens(const struct sim_job *job)
{
        return job->prompt_tokens + job->produced - job->computed;
}

static bool is_decoding(const struct sim_job *job)
{
        return job->produced > 0 && missing_tokens(job) == 1;
}

static uint32_t schedule_running(struct sim_engine *engine, uint32_t budget)
{
        for (struct sim_job *job = engine->running.first; job;) {
                struct sim_job *next;
                uint32_t chunk = missing_tokens(job);

                chunk = chunk < budget ? chunk : budget;
                if (chunk && make_room(engine, job, job->computed + chunk)) {
                        name_blocks(engine, job, job->computed + chunk);
                        job->chunk = chunk;
                        budget -= chunk;
                        next = job->next;
                } else {
                        /* No budget: later ones may not overtake. Preempted: it was the last. */
                        next = NULL;
                }
                job = next;
        }
        return budget;
}

uint32_t sim_engine_match(const struct sim_engine *engine, const uint64_t *keys, uint32_t key_count,
                          uint32_t prompt_tokens)
{
        uint32_t most = (prompt_tokens - 1) / engine->options.block_tokens;

        if (engine->options.no_prefix_cache)
                return 0;
        most = most < key_count ? most : key_count;
        return sim_blocks_match(engine->blocks, keys, most) * engine->options.block_tokens;
}

/* True if the request at the head of the queue could be admitted. */
static bool admit(struct sim_engine *engine, struct sim_job *job, uint32_t *budget)
{
        uint32_t tokens = job->prompt_tokens + job->produced;
        uint32_t hit = sim_engine_match(engine, job->keys, job->key_count, tokens);
        uint32_t chunk = tokens - hit, hit_blocks = hit / engine->options.block_tokens;

        chunk = chunk < *budget ? chunk : *budget;
        if (!sim_blocks_take(engine->blocks, job->keys, hit_blocks,
                             blocks_for(engine, hit + chunk) - hit_blocks, job->blocks))
                return false;
        job->block_count = blocks_for(engine, hit + chunk);
        job->named = hit_blocks;
        job->computed = hit;
        job->chunk = chunk;
        job->running = true;
        list_remove(&engine->waiting, job);
        list_append(&engine->running, job);
        name_blocks(engine, job, hit + chunk);
        *budget -= chunk;
        if (!job->started) {
                job->started = true;
                job->cached = hit < job->prompt_tokens ? hit : job->prompt_tokens - 1;
                engine->counters.prompt_tokens += job->prompt_tokens;
                engine->counters.cached_tokens += job->cached;
                push_event(engine, SIM_EVENT_START, engine->clock_ns, job);
        }
        return true;
}

static uint64_t step_ns(const struct sim_engine *engine)
{
        struct sim_step step = {.usage = sim_engine_usage(engine)};

        for (const struct sim_job *job = engine->running.first; job; job = job->next) {
                if (job->chunk == 0)
                        continue;
                if (is_decoding(job)) {
                        step.decodes++;
                        step.decode_context += job->computed;
                } else {
                        step.chunks++;
                        step.new_tokens += job->chunk;
                        step.context_tokens += job->computed;
                        step.cross += (double)job->chunk * job->computed;
                }
        }
        return (uint64_t)(sim_cost_step_ms(&engine->options.cost, &step) * 1e6 + 0.5);
}

static void step_start(struct sim_engine *engine)
{
        uint32_t preempted = (uint32_t)engine->counters.preempted;
        uint32_t budget = schedule_running(engine, engine->options.step_tokens);
        uint64_t duration;

        /* As in vLLM: when requests had to give way, nobody new comes in. */
        if (preempted == (uint32_t)engine->counters.preempted) {
                while (budget && engine->waiting.first &&
                       engine->running.count < engine->options.max_running) {
                        if (!admit(engine, engine->waiting.first, &budget))
                                break;
                }
        }
        duration = step_ns(engine);
        /* A model without a base time could give 0, and a host that waits for an event would never see time
         * pass. */
        engine->step_end_ns = engine->clock_ns + (duration ? duration : 1);
        engine->in_step = true;
        engine->counters.steps++;
        engine->counters.busy_ns += engine->step_end_ns - engine->clock_ns;
}

static void finish(struct sim_engine *engine, struct sim_job *job)
{
        release(engine, job);
        list_remove(&engine->running, job);
        engine->counters.finished++;
        push_event(engine, SIM_EVENT_END, engine->clock_ns, job);
}

static void step_end(struct sim_engine *engine)
{
        struct sim_job *next;

        engine->clock_ns = engine->step_end_ns;
        engine->in_step = false;
        for (struct sim_job *job = engine->running.first; job; job = next) {
                next = job->next;
                if (job->chunk == 0)
                        continue;
                if (!is_decoding(job))
                        engine->counters.computed_tokens += job->chunk;
                job->computed += job->chunk;
                job->chunk = 0;
                if (job->aborted) {
                        release(engine, job);
                        list_remove(&engine->running, job);
                        free(job);
                        continue;
                }
                if (missing_tokens(job) > 0)
                        continue;
                job->produced++;
                engine->counters.output_tokens++;
                push_event(engine, SIM_EVENT_TOKEN, engine->clock_ns, job);
                if (job->produced == job->output_tokens)
                        finish(engine, job);
        }
        engine->aborted_running = 0;
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
                        step_start(engine);
                else if (engine->in_step && engine->step_end_ns <= until_ns)
                        step_end(engine);
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

bool sim_engine_flush(struct sim_engine *engine)
{
        if (sim_blocks_in_use(engine->blocks))
                return false;
        sim_blocks_flush(engine->blocks);
        return true;
}

void sim_engine_drop_cache(struct sim_engine *engine)
{
        sim_blocks_flush(engine->blocks);
}

void sim_engine_restart(struct sim_engine *engine, uint64_t now_ns)
{
        struct job_list *lists[] = {&engine->waiting, &engine->running};

        events_drop(engine);
        for (size_t i = 0; i < 2; i++) {
                for (struct sim_job *job = lists[i]->first; job; job = job->next)
                        release(engine, job);
                list_free(lists[i]);
        }
        sim_blocks_flush(engine->blocks);
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

double sim_engine_usage(const struct sim_engine *engine)
{
        return (double)sim_blocks_in_use(engine->blocks) / sim_blocks_count(engine->blocks);
}

uint64_t sim_engine_pending_tokens(const struct sim_engine *engine)
{
        uint64_t tokens = 0;

        for (const struct sim_job *job = engine->waiting.first; job; job = job->next)
                tokens += missing_tokens(job);
        for (const struct sim_job *job = engine->running.first; job; job = job->next)
                tokens += is_decoding(job) ? 0 : missing_tokens(job);
        return tokens;
}

uint32_t sim_engine_cached_blocks(const struct sim_engine *engine)
{
        return sim_blocks_named(engine->blocks);
}

uint64_t sim_engine_evictions(const struct sim_engine *engine)
{
        return sim_blocks_evictions(engine->blocks);
}

void sim_engine_counters(const struct sim_engine *engine, struct sim_engine_counters *ret)
{
        *ret = engine->counters;
}
