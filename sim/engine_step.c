/* SPDX-License-Identifier: Apache-2.0 */
/* One step after the other. */
#include "engine_int.h"

#include <stdlib.h>

static bool grow(struct sim_engine *engine, struct sim_job *job, uint32_t tokens)
{
        uint32_t need;

        if (engine->slots || (uint64_t)job->block_count * engine->options.block_tokens >= tokens)
                return true;
        need = sim__engine_blocks_for(engine, tokens);
        if (!sim_blocks_take(engine->blocks, NULL, 0, need - job->block_count,
                             job->blocks + job->block_count))
                return false;
        job->block_count = need;
        return true;
}

static void name_blocks(struct sim_engine *engine, struct sim_job *job, uint32_t tokens)
{
        uint32_t full;

        if (engine->options.no_prefix_cache || engine->slots || job->named >= job->key_count)
                return;
        full = tokens / engine->options.block_tokens;
        for (; job->named < full && job->named < job->key_count; job->named++) {
                sim_blocks_name(engine->blocks, job->blocks[job->named], job->keys[job->named]);
                if (engine->options.changes)
                        sim__engine_change(engine,
                                           (struct sim_change){
                                                   .key = job->keys[job->named],
                                                   .parent = job->named ? job->keys[job->named - 1] : 0,
                                           });
        }
}

static void preempt(struct sim_engine *engine, struct sim_job *job)
{
        sim__engine_release(engine, job);
        job->running = false;
        job->chunk = 0;
        sim__engine_list_remove(&engine->running, job);
        sim__engine_list_prepend(&engine->waiting, job);
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

/* Slots: answers go on first, then prompts in their order. Nobody has to give way. */
static uint32_t schedule_slots(struct sim_engine *engine, uint32_t budget)
{
        for (struct sim_job *job = engine->running.first; job && budget; job = job->next) {
                job->chunk = sim__engine_decodes(job);
                budget -= job->chunk;
        }
        for (struct sim_job *job = engine->running.first; job && budget; job = job->next) {
                if (job->chunk)
                        continue;
                job->chunk = sim__engine_missing(job) < budget ? sim__engine_missing(job) : budget;
                budget -= job->chunk;
        }
        return budget;
}

static uint32_t schedule_running(struct sim_engine *engine, uint32_t budget)
{
        for (struct sim_job *job = engine->running.first; job;) {
                struct sim_job *next;
                uint32_t chunk = sim__engine_missing(job);

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

/* What is there of the request, and room for a first chunk; false: not now. */
static bool take_blocks(struct sim_engine *engine, struct sim_job *job, uint32_t tokens, uint32_t budget,
                        uint32_t *ret_hit)
{
        uint32_t hit = sim_engine_match(engine, job->keys, job->key_count, tokens);
        uint32_t chunk = tokens - hit < budget ? tokens - hit : budget;
        uint32_t hit_blocks = hit / engine->options.block_tokens,
                 count = sim__engine_blocks_for(engine, hit + chunk);

        if (!sim_blocks_take(engine->blocks, job->keys, hit_blocks, count - hit_blocks, job->blocks))
                return false;
        job->block_count = count;
        job->named = hit_blocks;
        *ret_hit = hit;
        return true;
}

static bool take_slot(struct sim_engine *engine, struct sim_job *job, uint32_t *ret_hit)
{
        uint32_t keys = engine->options.no_prefix_cache ? 0 : job->key_count;

        return sim_slots_start(engine->slots, job->keys, keys, job->prompt_tokens, &job->slot, ret_hit);
}

/* True if the request at the head of the queue could be admitted. */
static bool admit(struct sim_engine *engine, struct sim_job *job, uint32_t *budget)
{
        uint32_t tokens = job->prompt_tokens + job->produced, hit, chunk;

        if (engine->slots ? !take_slot(engine, job, &hit) : !take_blocks(engine, job, tokens, *budget, &hit))
                return false;
        chunk = tokens - hit < *budget ? tokens - hit : *budget;
        job->computed = hit;
        job->chunk = chunk;
        job->running = true;
        sim__engine_list_remove(&engine->waiting, job);
        sim__engine_list_append(&engine->running, job);
        name_blocks(engine, job, hit + chunk);
        *budget -= chunk;
        if (!job->started) {
                job->started = true;
                job->cached = hit < job->prompt_tokens ? hit : job->prompt_tokens - 1;
                engine->counters.prompt_tokens += job->prompt_tokens;
                engine->counters.cached_tokens += job->cached;
                sim__engine_push_event(engine, SIM_EVENT_START, engine->clock_ns, job);
        }
        return true;
}

/*
 * What the step computes, and how many steps from here do the same: all running requests decode, nobody waits, no
 * answer ends but in the last step, and no block is taken or filled.
 */
static uint32_t step_sum_up(struct sim_engine *engine)
{
        const struct sim_cost *cost = &engine->options.cost;
        struct sim_step step = {.usage = sim_engine_usage(engine)};
        uint64_t most = UINT32_MAX, context = 0;
        bool equal = engine->options.quiet && !engine->options.apart && !engine->waiting.count &&
                     engine->changes_timed == engine->change_count;

        /* Slots grow with every token, and with them the usage that some models ask for. */
        if (engine->slots && (cost->h > 0 || cost->h < 0 || cost->i > 0 || cost->i < 0))
                equal = false;
        for (const struct sim_job *job = engine->running.first; job; job = job->next) {
                if (job->chunk && sim__engine_decodes(job)) {
                        uint64_t left = job->output_tokens - job->produced;
                        uint64_t room =
                                (uint64_t)job->block_count * engine->options.block_tokens - job->computed;

                        step.decodes++;
                        context += job->computed;
                        most = left < most ? left : most;
                        if (engine->slots)
                                continue;
                        most = room < most ? room : most;
                        equal = equal && job->named >= job->key_count;
                } else if (job->chunk) {
                        step.chunks++;
                        step.new_tokens += job->chunk;
                        step.context_tokens += job->computed;
                        step.cross += (double)job->chunk * job->computed;
                }
        }
        step.decode_context = (double)context;
        engine->step = step;
        return equal && step.decodes == engine->running.count && !engine->aborted_running ? (uint32_t)most
                                                                                          : 1;
}

/* A model without a base time could give 0, and a host that waits for an event would never see time pass. */
static uint64_t in_ns(double ms)
{
        uint64_t duration = (uint64_t)(ms * 1e6 + 0.5);

        return duration ? duration : 1;
}

/* Runs `count` steps that do the same from start_ns on, or fewer: until the first that ends behind until_ns. */
static uint64_t run_equal(const struct sim_engine *engine, uint64_t start_ns, uint32_t count,
                          uint64_t until_ns, uint32_t *ret_count, uint64_t *ret_last_start_ns)
{
        const struct sim_step *step = &engine->step;
        double context = step->decode_context;
        struct sim_cost_decode decode;
        uint64_t end_ns = start_ns;
        double slow = engine->options.slow ? *engine->options.slow : 1;
        uint32_t done = 0;

        if (count == 1) {
                *ret_count = 1;
                *ret_last_start_ns = start_ns;
                return start_ns + in_ns(sim_cost_step_ms(&engine->options.cost, step) * slow);
        }
        sim_cost_decode_init(&engine->options.cost, step, &decode);
        do {
                *ret_last_start_ns = end_ns;
                end_ns += in_ns(sim_cost_decode_ms(&decode, context) * slow);
                context += step->decodes;
                done++;
        } while (done < count && end_ns <= until_ns);
        *ret_count = done;
        return end_ns;
}

void sim__engine_step_start(struct sim_engine *engine)
{
        uint32_t preempted = (uint32_t)engine->counters.preempted;
        uint32_t budget = engine->slots ? schedule_slots(engine, engine->options.step_tokens)
                                        : schedule_running(engine, engine->options.step_tokens);
        uint64_t last_start_ns;

        /*
         * As in vLLM: when requests had to give way, nobody new comes in. A slot is taken whether or not there
         * is budget for its prompt in this step.
         */
        if (preempted == (uint32_t)engine->counters.preempted) {
                while ((budget || engine->slots) && engine->waiting.first &&
                       engine->running.count < engine->options.max_running) {
                        if (!admit(engine, engine->waiting.first, &budget))
                                break;
                }
        }
        engine->step_end_ns = run_equal(engine, engine->clock_ns, step_sum_up(engine), SIM_NEVER,
                                        &engine->step_count, &last_start_ns);
        for (; engine->changes_timed < engine->change_count; engine->changes_timed++)
                engine->changes[engine->changes_timed].at_ns = engine->step_end_ns;
        engine->in_step = true;
        engine->counters.steps += engine->step_count;
        engine->counters.busy_ns += engine->step_end_ns - engine->clock_ns;
}

/* Of steps that do the same, `count` are over and leave nothing to tell. */
static void steps_over(struct sim_engine *engine, uint32_t count)
{
        if (!count)
                return;
        for (struct sim_job *job = engine->running.first; job; job = job->next) {
                job->computed += count;
                job->produced += count;
                engine->counters.output_tokens += count;
        }
        engine->step.decode_context += (double)count * engine->step.decodes;
}

void sim_engine_catch_up(struct sim_engine *engine, uint64_t now_ns)
{
        uint64_t end_ns, last_start_ns;
        uint32_t count;

        if (!engine->in_step || engine->step_count == 1)
                return;
        end_ns = run_equal(engine, engine->clock_ns, engine->step_count, now_ns, &count, &last_start_ns);
        engine->counters.steps -= engine->step_count - count;
        engine->counters.busy_ns -= engine->step_end_ns - end_ns;
        engine->step_end_ns = end_ns;
        steps_over(engine, count - 1);
        engine->clock_ns = last_start_ns;
        engine->step_count = 1;
}

static void finish(struct sim_engine *engine, struct sim_job *job)
{
        sim__engine_release(engine, job);
        sim__engine_list_remove(&engine->running, job);
        engine->counters.finished++;
        sim__engine_push_event(engine, SIM_EVENT_END, engine->clock_ns, job);
}

void sim__engine_step_end(struct sim_engine *engine)
{
        uint32_t over = engine->step_count - 1; /* that did the same, and left nothing to tell */
        struct sim_job *next;

        engine->clock_ns = engine->step_end_ns;
        engine->in_step = false;
        for (struct sim_job *job = engine->running.first; job; job = next) {
                next = job->next;
                if (job->chunk == 0)
                        continue;
                if (!sim__engine_decodes(job))
                        engine->counters.computed_tokens += job->chunk;
                job->computed += job->chunk + over;
                job->produced += over;
                engine->counters.output_tokens += over;
                job->chunk = 0;
                if (job->aborted) {
                        sim__engine_release(engine, job);
                        sim__engine_list_remove(&engine->running, job);
                        free(job);
                        continue;
                }
                if (sim__engine_missing(job) > 0)
                        continue;
                job->produced++;
                engine->counters.output_tokens++;
                if (job->produced == 1 || !engine->options.quiet)
                        sim__engine_push_event(engine, SIM_EVENT_TOKEN, engine->clock_ns, job);
                if (job->produced == job->output_tokens)
                        finish(engine, job);
        }
        engine->aborted_running = 0;
}
