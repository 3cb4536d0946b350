/* SPDX-License-Identifier: Apache-2.0 */
/* The grid of kvroute simulate: one cell after the other, on several threads. */
#include "simulate_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t sim__simulate_cells(const struct simulate *simulate)
{
        return (uint64_t)simulate->path_count * simulate->policy_count * simulate->replica_count *
               simulate->capacity_count * simulate->load_count;
}

/* ---- the grid ----------------------------------------------------------------------------------------- */

static bool cells_make(struct simulate *simulate)
{
        uint32_t at = 0;

        simulate->cell_count = (uint32_t)sim__simulate_cells(simulate);
        if (!simulate->cell_count)
                return false;
        simulate->cells = calloc(simulate->cell_count, sizeof(*simulate->cells));
        simulate->rows = calloc(simulate->cell_count, sizeof(*simulate->rows));
        if (simulate->arguments.requests)
                simulate->records = calloc(simulate->files[0].trace.row_count, sizeof(*simulate->records));
        if (!simulate->cells || !simulate->rows || (simulate->arguments.requests && !simulate->records))
                return false;
        for (uint32_t file = 0; file < simulate->path_count; file++)
                for (uint32_t load = 0; load < simulate->load_count; load++)
                        for (uint32_t replicas = 0; replicas < simulate->replica_count; replicas++)
                                for (uint32_t capacity = 0; capacity < simulate->capacity_count; capacity++)
                                        for (uint32_t policy = 0; policy < simulate->policy_count; policy++)
                                                simulate->cells[at++] = (struct cell){
                                                        .file = file,
                                                        .load = simulate->loads[load],
                                                        .replicas = simulate->replicas[replicas],
                                                        .capacity_blocks = simulate->capacities[capacity],
                                                        .policy = simulate->policies[policy],
                                                };
        return true;
}

static const char *base_name(const char *path)
{
        const char *slash = strrchr(path, '/');

        return slash && slash[1] ? slash + 1 : path;
}

/* Rows of one time come evenly within the given one; their order stays. */
static void spread(struct sim_trace *trace, double within_s)
{
        for (uint32_t first = 0, end; first < trace->row_count; first = end) {
                double time_s = trace->rows[first].time_s;

                for (end = first; end < trace->row_count && trace->rows[end].time_s <= time_s;)
                        end++;
                for (uint32_t i = first; i < end; i++)
                        trace->rows[i].time_s = time_s + within_s * (i - first) / (end - first);
        }
}

/* Caches by number of id: for the reference model, for what other routers believe, and to know how soon ids come
 * again. */
static bool caches_needed(const struct simulate *simulate)
{
        bool needed = simulate->arguments.reference || strcmp(simulate->arguments.index, "history") != 0 ||
                      simulate->arguments.restart;

        for (uint32_t i = 0; i < simulate->policy_count; i++)
                needed = needed || sim_des_rule_exists(simulate->policies[i]);
        return needed;
}

int sim__simulate_files_read(struct simulate *simulate)
{
        struct sim_trace_options how = {
                .block_tokens = (uint32_t)simulate->arguments.block_tokens,
                .from_s = simulate->from_s,
                .to_s = simulate->to_s,
                .session_gap_s = simulate->arguments.session_gap,
        };
        char message[512];

        for (unsigned i = 0; i < simulate->path_count; i++) {
                struct file *file = &simulate->files[i];

                if (!sim_trace_read(simulate->paths[i], &how, &file->trace, message, sizeof(message))) {
                        fprintf(stderr, "kvroute simulate: %s\n", message);
                        return 1;
                }
                spread(&file->trace, simulate->arguments.spread);
                file->replay = caches_needed(simulate) ? sim_replay_new(&file->trace) : NULL;
                if (caches_needed(simulate) && !file->replay) {
                        fprintf(stderr, "kvroute simulate: out of memory\n");
                        return 1;
                }
        }
        return -1;
}

/* ---- one cell ----------------------------------------------------------------------------------------- */

static void take_replay(const struct sim_replay_result *result, bool queue, struct sim_simulate_row *row)
{
        row->hit_rate = result->token_hit;
        row->block_hit_rate = result->block_hit;
        row->request_hit_rate = result->request_hit;
        row->max_over_mean = result->request_max_over_mean;
        row->cv = result->request_cv;
        row->work_max_over_mean = result->work_max_over_mean;
        row->work_cv = result->work_cv;
        row->hot_p95 = result->hot_p95;
        row->dropped = (double)result->dropped;
        if (!queue)
                return;
        row->ttft_mean = result->ttft_mean;
        row->ttft_p50 = result->ttft_p50;
        row->ttft_p90 = result->ttft_p90;
        row->ttft_p99 = result->ttft_p99;
        row->busy_mean = result->busy_mean;
        row->busy_max = result->busy_max;
}

static bool run_reference(const struct simulate *simulate, const struct cell *cell,
                          struct sim_simulate_row *row)
{
        const struct file *file = &simulate->files[cell->file];
        struct sim_replay_options how = {
                .replicas = cell->replicas,
                .capacity_blocks = cell->capacity_blocks,
                .load = cell->load,
                .routers = (uint32_t)simulate->arguments.routers,
                .told = simulate->arguments.told,
                .report_s = simulate->arguments.routers > 1 ? simulate->arguments.report_interval : 0,
        };
        struct sim_replay_result result, at_capacity;

        if (!sim_replay_policy_find(cell->policy, &how.policy) ||
            !sim_replay_run(file->replay, &how, &result))
                return false;
        take_replay(&result, cell->load > 0, row);
        if (cell->load > 0) {
                row->load = cell->load;
                row->speed = 1;
        }
        return simulate->arguments.ttft_target <= 0 ||
               sim_replay_capacity(file->replay, &how, simulate->arguments.ttft_target, &row->capacity,
                                   &at_capacity);
}

static void take_des(struct sim_des_result *result, struct sim_simulate_row *row)
{
        row->requests = (double)result->requests;
        row->rejected = (double)result->rejected;
        row->failed = (double)result->failed;
        row->retried = (double)result->retried;
        if (result->prompt_tokens) {
                row->hit_rate = (double)result->cached_tokens / (double)result->prompt_tokens;
                row->predicted_hit_rate = (double)result->predicted_tokens / (double)result->prompt_tokens;
                row->block_hit_rate = (double)result->cached_blocks / (double)result->blocks;
                row->request_hit_rate = (double)result->hits / (double)result->requests;
        }
        row->ttft_mean = sim_samples_mean(&result->ttft);
        row->ttft_p50 = sim_samples_percentile(&result->ttft, 0.5);
        row->ttft_p90 = sim_samples_percentile(&result->ttft, 0.9);
        row->ttft_p99 = sim_samples_percentile(&result->ttft, 0.99);
        row->tpot_mean = sim_samples_mean(&result->tpot);
        row->tpot_p99 = sim_samples_percentile(&result->tpot, 0.99);
        row->e2e_mean = sim_samples_mean(&result->e2e);
        row->e2e_p50 = sim_samples_percentile(&result->e2e, 0.5);
        row->e2e_p90 = sim_samples_percentile(&result->e2e, 0.9);
        row->e2e_p99 = sim_samples_percentile(&result->e2e, 0.99);
        row->max_over_mean = result->request_max_over_mean;
        row->cv = result->request_cv;
        row->work_max_over_mean = result->work_max_over_mean;
        row->work_cv = result->work_cv;
        row->hot_p95 = result->hot_p95;
        row->busy_mean = result->busy_mean;
        row->busy_max = result->busy_max;
        row->dropped = (double)result->evicted_blocks;
        row->preempted = (double)result->preempted;
}

/* What shows only where what routers know is old. */
static bool stale_fill(const struct sim_replay *replay, const struct sim_des_result *result,
                       struct sim_simulate_row *row)
{
        if (result->requests)
                row->overpredicted = (double)result->overpredicted / (double)result->requests;
        if (!sim_replay_reuse(replay, &row->reuse_s))
                return false;
        row->reuse_s /= row->speed;
        return true;
}

static bool run_engines(const struct simulate *simulate, const struct cell *cell,
                        struct sim_simulate_row *row, _Atomic uint64_t *progress)
{
        const struct sim_trace *trace = &simulate->files[cell->file].trace;
        const struct arguments *a = &simulate->arguments;
        double own_load = sim_des_load(
                trace, &simulate->cost, (uint32_t)a->step_tokens,
                sim_des_strength(simulate->speeds, simulate->speed_count, cell->replicas, a->processors));
        struct sim_des_options how = {
                .policy = cell->policy,
                .replay = simulate->files[cell->file].replay,
                .replicas = cell->replicas,
                .routers = (uint32_t)a->routers,
                .capacity_blocks = cell->capacity_blocks,
                .speed = cell->load > 0 ? cell->load / own_load : 1,
                .cost = simulate->cost,
                .speeds = simulate->speeds,
                .speed_count = simulate->speed_count,
                .processors = a->processors,
                .slots = (uint32_t)a->slots,
                .slot_memory_blocks = (uint32_t)a->slot_memory,
                .step_tokens = (uint32_t)a->step_tokens,
                .max_running = (uint32_t)a->max_running,
                .report_s = a->report_interval,
                .report_delay_s = a->report_delay,
                .events = strcmp(a->index, "events") == 0 && !sim_des_rule_exists(cell->policy),
                .oracle = strcmp(a->index, "oracle") == 0 && !sim_des_rule_exists(cell->policy),
                .events_delay_s = a->events_delay,
                .events_lost = a->events_lost / 100,
                .events_replay_s = a->events_replay,
                .events_relearn_s = a->events_relearn,
                .events_buffer = (uint32_t)a->events_buffer,
                .token_ids = strcmp(a->prompts, "ids") == 0,
                .sessions = a->sessions,
                .closed_loop = a->closed_loop,
                .seed = a->seed,
                .records = simulate->records,
                .outages = simulate->outages,
                .outage_count = simulate->outage_count,
        };
        struct sim_des_result result;
        char message[256] = "";

        if (!sim_des_run(trace, &how, progress, &result, message, sizeof(message))) {
                fprintf(stderr, "kvroute simulate: %s with %u replicas: %s\n", cell->policy, cell->replicas,
                        message);
                return false;
        }
        row->load = cell->load > 0 ? cell->load : own_load;
        row->speed = how.speed;
        take_des(&result, row);
        if (how.events) {
                row->messages = (double)result.messages;
                row->messages_lost = (double)result.messages_lost;
                row->messages_replayed = (double)result.messages_replayed;
                row->gaps = (double)result.gaps;
                row->replays = (double)result.replays;
                row->clears = (double)result.clears;
                row->restarts = (double)result.restarts_seen;
                row->untrusted = result.untrusted;
        }
        if (how.replay && (how.events || how.oracle || a->restart) && !stale_fill(how.replay, &result, row))
                fprintf(stderr, "kvroute simulate: no memory for how soon blocks come again\n");
        sim_des_result_fini(&result);
        return true;
}

static bool run_cell(void *ctx, uint32_t number, _Atomic uint64_t *progress)
{
        struct simulate *simulate = ctx;
        const struct cell *cell = &simulate->cells[number];
        const struct file *file = &simulate->files[cell->file];
        struct sim_simulate_row *row = &simulate->rows[number];
        bool good;

        sim_simulate_row_init(row);
        row->trace = base_name(simulate->paths[cell->file]);
        row->policy = cell->policy;
        row->replicas = cell->replicas;
        row->capacity_blocks = cell->capacity_blocks;
        row->block_tokens = file->trace.block_tokens;
        if (!simulate->arguments.reference)
                return run_engines(simulate, cell, row, progress);
        row->requests = file->trace.row_count;
        good = run_reference(simulate, cell, row);
        if (!good)
                fprintf(stderr, "kvroute simulate: out of memory\n");
        atomic_fetch_add(progress, file->trace.row_count);
        return good;
}

int sim__simulate_run(struct simulate *simulate)
{
        long processors = sysconf(_SC_NPROCESSORS_ONLN);
        uint64_t threads = simulate->arguments.threads;
        struct sim_pool pool = {
                .threads = (uint32_t)(threads          ? threads
                                      : processors > 0 ? (uint64_t)processors
                                                       : 1),
                .run = run_cell,
                .ctx = simulate,
                .title = "simulate",
                .quiet = !simulate->arguments.progress,
        };

        if (!cells_make(simulate)) {
                fprintf(stderr, "kvroute simulate: out of memory\n");
                return 1;
        }
        pool.tasks = simulate->cell_count;
        for (uint32_t i = 0; i < simulate->cell_count; i++)
                pool.total += simulate->files[simulate->cells[i].file].trace.row_count;
        return sim_pool_run(&pool) ? -1 : 1; /* whoever failed has said why */
}
