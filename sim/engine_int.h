/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's inside, for its two files: requests and queries in engine.c, steps in engine_step.c. */
#ifndef KVROUTE_SIM_ENGINE_INT_H
#define KVROUTE_SIM_ENGINE_INT_H

#include "blocks.h"
#include "engine.h"
#include "slots.h"

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
        uint32_t slot;
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
        struct sim_blocks *blocks; /* or */
        struct sim_slots *slots;
        struct job_list waiting, running;
        uint32_t aborted_running; /* aborted jobs that the step under way still holds */
        uint64_t clock_ns;        /* how far the model has run */
        uint64_t step_end_ns;
        struct sim_step step; /* the running one, or the first of the running ones */
        uint32_t step_count;  /* that run until step_end_ns: more than one with `quiet` */
        bool in_step;
        struct queued_event *events;
        size_t event_head, event_count, event_cap;
        struct sim_engine_counters counters;
        struct sim_change *changes;
        uint32_t change_count, change_cap;
        uint32_t changes_timed; /* those that have their time */
        bool changes_lost;
};

static inline uint32_t sim__engine_blocks_for(const struct sim_engine *engine, uint32_t tokens)
{
        return (tokens + engine->options.block_tokens - 1) / engine->options.block_tokens;
}

static inline uint32_t sim__engine_missing(const struct sim_job *job)
{
        return job->prompt_tokens + job->produced - job->computed;
}

static inline bool sim__engine_decodes(const struct sim_job *job)
{
        return job->produced > 0 && sim__engine_missing(job) == 1;
}

void sim__engine_list_append(struct job_list *list, struct sim_job *job);
void sim__engine_list_prepend(struct job_list *list, struct sim_job *job);
void sim__engine_list_remove(struct job_list *list, struct sim_job *job);
/* Gives back what of the cache the request holds. */
void sim__engine_release(struct sim_engine *engine, struct sim_job *job);
void sim__engine_push_event(struct sim_engine *engine, enum sim_event_kind kind, uint64_t at_ns,
                            struct sim_job *job);
void sim__engine_change(struct sim_engine *engine, struct sim_change change);

/* Puts a step together, or several that do the same, and says when they end. */
void sim__engine_step_start(struct sim_engine *engine);
/* They are over: tokens, ends. */
void sim__engine_step_end(struct sim_engine *engine);

#endif
