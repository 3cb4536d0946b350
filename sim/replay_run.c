/* SPDX-License-Identifier: Apache-2.0 */
/* One replay of a trace under a rule, and the search for the pace that the replicas can keep. */
#include "replay_brain.h"
#include "replay_int.h"
#include "replay_toll.h"

#include <math.h>
#include <stdlib.h>

#define CAPACITY_STEPS 9

double sim__replay_span_s(const struct sim_trace *trace)
{
        return fmax(trace->rows[trace->row_count - 1].time_s - trace->rows[0].time_s, 1e-3);
}

static double rate_of(const struct sim_trace *trace, const struct sim_replay_options *options)
{
        /* A trace of one instant would ask for endless speed. */
        double span = sim__replay_span_s(trace);

        return (double)(trace->id_count * trace->block_tokens) / span / options->replicas / options->load;
}

static bool run_init(struct sim__replay_run *run, const struct sim_replay *replay,
                     const struct sim_replay_options *options)
{
        bool alone = options->policy == SIM_REPLAY_POOLED || options->policy == SIM_REPLAY_IDEAL;
        uint64_t capacity = options->capacity_blocks;
        uint32_t rows = replay->trace->row_count;

        if (options->policy == SIM_REPLAY_POOLED)
                capacity *= options->replicas;
        if (options->policy == SIM_REPLAY_IDEAL || capacity > SIM_REPLAY_CAPACITY_MAX)
                capacity = 0;
        *run = (struct sim__replay_run){
                .replay = replay,
                .options = options,
                .replicas = alone ? 1 : options->replicas,
                .speed = options->speed > 0 ? options->speed : 1,
        };
        run->servers = calloc(run->replicas, sizeof(*run->servers));
        if (!run->servers || !sim_windows_init(&run->windows, run->replicas) ||
            !sim__replay_caches_init(&run->caches, replay, run->replicas, (uint32_t)capacity))
                return false;
        if (options->load <= 0)
                return true;
        run->finish_s = malloc(rows * sizeof(*run->finish_s));
        run->ttft_s = malloc(rows * sizeof(*run->ttft_s));
        run->next = malloc(rows * sizeof(*run->next));
        if (!run->finish_s || !run->ttft_s || !run->next)
                return false;
        /* Both look at the rate. */
        run->rate = rate_of(replay->trace, options);
        switch (options->policy) {
        case SIM_REPLAY_TOLL:
        case SIM_REPLAY_TOLL_HOME:
        case SIM_REPLAY_TOLL_COUNT:
                run->toll = sim__replay_toll_new(run);
                return run->toll != NULL;
        case SIM_REPLAY_KV:
                run->brain = sim__replay_brain_new(run);
                return run->brain != NULL;
        default:
                return true;
        }
}

static void run_fini(struct sim__replay_run *run)
{
        sim__replay_toll_free(run->toll);
        sim__replay_brain_free(run->brain);
        sim__replay_caches_fini(&run->caches);
        sim_windows_fini(&run->windows);
        free(run->servers);
        free(run->finish_s);
        free(run->ttft_s);
        free(run->next);
}

/* ---- the queue ---------------------------------------------------------------------------------------- */

/* Lets the time pass up to a row's arrival. */
static void queue_arrive(struct sim__replay_run *run, double now_s)
{
        run->now_s = now_s;
        for (uint32_t i = 0; i < run->replicas; i++) {
                struct sim__replay_server *server = &run->servers[i];

                while (server->first && run->finish_s[server->first - 1] <= now_s) {
                        server->first = run->next[server->first - 1];
                        server->waiting--;
                }
                server->backlog_s = fmax(0, server->free_s - now_s);
        }
}

static void queue_enter(struct sim__replay_run *run, uint32_t row, uint32_t replica, uint32_t missing)
{
        struct sim__replay_server *server = &run->servers[replica];
        double work_s = (double)((uint64_t)run->replay->trace->block_tokens * missing) / run->rate;

        server->free_s = fmax(server->free_s, run->now_s) + work_s;
        server->busy_s += work_s;
        run->finish_s[row] = server->free_s;
        run->ttft_s[row] = server->free_s - run->now_s;
        run->next[row] = 0;
        if (server->first)
                run->next[server->last - 1] = row + 1;
        else
                server->first = row + 1;
        server->last = row + 1;
        server->waiting++;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

void sim__replay_sort(double *figures, uint32_t count)
{
        qsort(figures, count, sizeof(*figures), compare);
}

double sim__replay_percentile(const double *sorted, uint32_t count, double p)
{
        uint32_t at = (uint32_t)(p * count);

        return sorted[at < count ? at : count - 1];
}

static void queue_result(struct sim__replay_run *run, struct sim_replay_result *ret)
{
        uint32_t count = run->replay->trace->row_count;
        double span = sim__replay_span_s(run->replay->trace), busy = 0, most = 0, sum = 0;

        sim__replay_sort(run->ttft_s, count);
        for (uint32_t i = 0; i < count; i++)
                sum += run->ttft_s[i];
        for (uint32_t i = 0; i < run->replicas; i++) {
                busy += run->servers[i].busy_s;
                most = fmax(most, run->servers[i].busy_s);
        }
        ret->rate = run->rate;
        ret->ttft_mean = sum / count;
        ret->ttft_p50 = sim__replay_percentile(run->ttft_s, count, 0.5);
        ret->ttft_p90 = sim__replay_percentile(run->ttft_s, count, 0.9);
        ret->ttft_p99 = sim__replay_percentile(run->ttft_s, count, 0.99);
        ret->busy_mean = busy / run->replicas / span;
        ret->busy_max = most / span;
}

/* ---- the replay --------------------------------------------------------------------------------------- */

static bool replay_row(struct sim__replay_run *run, uint32_t number)
{
        const struct sim_trace *trace = run->replay->trace;
        const struct sim_trace_row *row = &trace->rows[number];
        const uint32_t *ids = run->replay->ids + row->first_id;
        uint32_t replica, match;
        uint64_t tokens;

        if (run->options->load > 0)
                queue_arrive(run, row->time_s / run->speed);
        replica = sim__replay_choose(run, number);
        if (replica == run->replicas)
                return false;
        match = sim__replay_match(&run->caches, replica, ids, row->id_count);
        sim__replay_caches_touch(&run->caches, replica, ids, row->id_count);
        run->servers[replica].work += row->id_count - match;
        run->servers[replica].requests++;
        sim_windows_add(&run->windows, row->time_s / run->speed, replica, row->id_count - match);
        tokens = (uint64_t)match * trace->block_tokens;
        run->hit_blocks += match;
        run->hit_tokens += tokens < row->input_tokens ? tokens : row->input_tokens;
        run->hit_requests += match > 0;
        run->blocks += row->id_count;
        run->tokens += row->input_tokens;
        if (run->options->load > 0)
                queue_enter(run, number, replica, row->id_count - match);
        return true;
}

static void imbalance(const struct sim__replay_run *run, bool of_work, double *ret_max_over_mean,
                      double *ret_cv)
{
        double sum = 0, most = 0, squares = 0, mean;

        for (uint32_t i = 0; i < run->replicas; i++) {
                double figure = (double)(of_work ? run->servers[i].work : run->servers[i].requests);

                sum += figure;
                most = fmax(most, figure);
        }
        mean = sum / run->replicas;
        for (uint32_t i = 0; i < run->replicas; i++) {
                double figure = (double)(of_work ? run->servers[i].work : run->servers[i].requests);

                squares += (figure - mean) * (figure - mean);
        }
        *ret_max_over_mean = mean > 0 ? most / mean : 0;
        *ret_cv = mean > 0 ? sqrt(squares / run->replicas) / mean : 0;
}

bool sim_replay_run(const struct sim_replay *replay, const struct sim_replay_options *options,
                    struct sim_replay_result *ret)
{
        uint32_t rows = replay->trace->row_count;
        struct sim_replay_result result = {0};
        struct sim__replay_run run;

        if (!run_init(&run, replay, options)) {
                run_fini(&run);
                return false;
        }
        for (uint32_t row = 0; row < rows; row++) {
                if (!replay_row(&run, row)) {
                        run_fini(&run);
                        return false;
                }
        }
        result.block_hit = (double)run.hit_blocks / (double)run.blocks;
        result.token_hit = (double)run.hit_tokens / (double)run.tokens;
        result.request_hit = (double)run.hit_requests / rows;
        imbalance(&run, false, &result.request_max_over_mean, &result.request_cv);
        imbalance(&run, true, &result.work_max_over_mean, &result.work_cv);
        result.hot_p95 = sim_windows_p95(&run.windows);
        result.dropped = run.caches.dropped;
        result.resident = sim__replay_caches_resident(&run.caches);
        if (options->load > 0)
                queue_result(&run, &result);
        run_fini(&run);
        *ret = result;
        return true;
}

bool sim_replay_capacity(const struct sim_replay *replay, const struct sim_replay_options *options,
                         double ttft_s, double *ret_speed, struct sim_replay_result *ret)
{
        double low = SIM_REPLAY_SPEED_MIN, high = SIM_REPLAY_SPEED_MAX;
        struct sim_replay_options at = *options;
        struct sim_replay_result best, tried;

        at.speed = low;
        if (!sim_replay_run(replay, &at, &best))
                return false;
        if (best.ttft_p90 > ttft_s) {
                *ret_speed = 0;
                *ret = best;
                return true;
        }
        for (unsigned i = 0; i < CAPACITY_STEPS; i++) {
                at.speed = sqrt(low * high);
                if (!sim_replay_run(replay, &at, &tried))
                        return false;
                if (tried.ttft_p90 <= ttft_s) {
                        low = at.speed;
                        best = tried;
                } else {
                        high = at.speed;
                }
        }
        *ret_speed = low;
        *ret = best;
        return true;
}
