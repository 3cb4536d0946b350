/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze_run.h"
#include "des_int.h"
#include "replay_int.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define CAPACITY_STEPS (SIM_RUNG_CAPACITY_RUNS - 1)
#define PERCENTILE     0.9
#define TIE            1e-9 /* seconds of backlog that a second of work done counts as */

struct rung {
        const struct sim_rung_options *options;
        struct sim_replay_options how; /* of the rule */
        struct sim__replay_run run;
        struct sim_windows requests; /* run.windows has the work */
        struct sim_des_options des_options;
        struct sim__des des; /* the brain's host; only what choosing and settling need is set */
        uint32_t late, late_max;
        uint32_t waited;
        double none_ms, saved_ms, predicted_off;
        double *own_s; /* per row */
        char *message;
        size_t message_size;
};

double sim_rung_work_s(const struct sim_trace *trace, const struct sim_cost *cost)
{
        double sum_ms = 0;

        for (uint32_t i = 0; i < trace->row_count; i++) {
                double tokens = trace->rows[i].input_tokens;

                sum_ms += sim_cost_prefill_ms(cost, tokens, tokens);
        }
        return sum_ms / 1e3;
}

/* ---- set up ------------------------------------------------------------------------------------------- */

static bool no_memory(struct rung *rung)
{
        snprintf(rung->message, rung->message_size, "out of memory");
        return false;
}

static bool brain_init(struct rung *rung)
{
        const struct sim_rung_options *options = rung->options;
        const struct sim_trace *trace = rung->run.replay->trace;

        rung->des_options = (struct sim_des_options){
                .policy = options->brain,
                .replicas = options->replicas,
                .routers = 1,
                .capacity_blocks = options->capacity_blocks,
                .seed = 1,
        };
        rung->des = (struct sim__des){
                .trace = trace,
                .options = &rung->des_options,
                .now_ns = SIM__DES_START_NS,
                .random = 1,
                .message = rung->message,
                .message_size = rung->message_size,
        };
        rung->des.requests = calloc(trace->row_count, sizeof(*rung->des.requests));
        return rung->des.requests ? sim__des_brain_init(&rung->des) : no_memory(rung);
}

static bool rung_init(struct rung *rung, const struct sim_replay *replay)
{
        const struct sim_rung_options *options = rung->options;
        const struct sim_trace *trace = replay->trace;
        uint32_t rows = trace->row_count;
        struct sim__replay_run *run = &rung->run;

        rung->how = (struct sim_replay_options){
                .policy = options->rule,
                .replicas = options->replicas,
                .capacity_blocks = options->capacity_blocks,
                .load = options->load,
                .speed = options->speed,
        };
        *run = (struct sim__replay_run){
                .replay = replay,
                .options = &rung->how,
                .replicas = options->replicas,
                .speed = options->speed,
                .rate = (double)(trace->id_count * trace->block_tokens) / sim__replay_span_s(trace) /
                        options->replicas / options->load,
        };
        rung->late_max = rows - (uint32_t)(PERCENTILE * rows);
        run->servers = calloc(run->replicas, sizeof(*run->servers));
        run->finish_s = malloc(rows * sizeof(*run->finish_s));
        run->ttft_s = malloc(rows * sizeof(*run->ttft_s));
        run->next = malloc(rows * sizeof(*run->next));
        rung->own_s = malloc(rows * sizeof(*rung->own_s));
        if (!run->servers || !rung->own_s || !run->finish_s || !run->ttft_s || !run->next ||
            !sim_windows_init(&run->windows, run->replicas) ||
            !sim_windows_init(&rung->requests, run->replicas) ||
            !sim__replay_caches_init(&run->caches, replay, run->replicas, options->capacity_blocks))
                return no_memory(rung);
        return !options->brain || brain_init(rung);
}

static void brain_settle(struct rung *rung, uint32_t row, enum kvr_end end)
{
        struct sim__des_request *request = &rung->des.requests[row];

        if (end == KVR_END_FINISHED)
                kvr_ticket_first_token(request->ticket);
        request->in_flight = false;
        sim__des_brain_settle(&rung->des, request, end);
}

static void rung_fini(struct rung *rung)
{
        struct sim__replay_run *run = &rung->run;

        for (uint32_t i = 0; rung->des.requests && i < run->replay->trace->row_count; i++) {
                if (rung->des.requests[i].in_flight)
                        brain_settle(rung, i, KVR_END_CLIENT);
        }
        if (rung->des.options)
                sim__des_brain_fini(&rung->des);
        free(rung->des.requests);
        sim__replay_caches_fini(&run->caches);
        sim_windows_fini(&run->windows);
        sim_windows_fini(&rung->requests);
        free(run->servers);
        free(run->finish_s);
        free(run->ttft_s);
        free(run->next);
        free(rung->own_s);
}

/* ---- the queue ---------------------------------------------------------------------------------------- */

static uint64_t virtual_ns(const struct rung *rung, double at_s)
{
        double since_s = at_s - rung->run.replay->trace->rows[0].time_s / rung->run.speed;

        return SIM__DES_START_NS + (uint64_t)(fmax(since_s, 0) * 1e9);
}

static void finish_first(struct rung *rung, uint32_t replica)
{
        struct sim__replay_server *server = &rung->run.servers[replica];
        uint32_t row = server->first - 1;

        server->first = rung->run.next[row];
        server->waiting--;
        if (!rung->options->brain)
                return;
        rung->des.now_ns = virtual_ns(rung, rung->run.finish_s[row]);
        brain_settle(rung, row, KVR_END_FINISHED);
}

/*
 * Ends what has ended by now. The brain's clock must not go back, so in the order of time over all replicas.
 */
static void finish_until(struct rung *rung, double now_s)
{
        struct sim__replay_run *run = &rung->run;

        for (;;) {
                uint32_t soonest = run->replicas;
                double least = now_s;

                for (uint32_t i = 0; i < run->replicas; i++) {
                        const struct sim__replay_server *server = &run->servers[i];

                        if (server->first && run->finish_s[server->first - 1] <= least) {
                                least = run->finish_s[server->first - 1];
                                soonest = i;
                        }
                }
                if (soonest == run->replicas)
                        return;
                finish_first(rung, soonest);
        }
}

static void arrive(struct rung *rung, double now_s)
{
        struct sim__replay_run *run = &rung->run;

        finish_until(rung, now_s);
        run->now_s = now_s;
        /*
         * Balancers take idle replicas in turn. Were it always the first, all would go there, and its cache would look
         * like the rule's merit.
         */
        double tie = rung->options->spread_idle ? TIE : 0;

        for (uint32_t i = 0; i < run->replicas; i++)
                run->servers[i].backlog_s =
                        fmax(0, run->servers[i].free_s - now_s) + tie * run->servers[i].busy_s;
        if (rung->options->brain)
                rung->des.now_ns = virtual_ns(rung, now_s);
}

static void enter(struct rung *rung, uint32_t row, uint32_t replica, uint32_t missing)
{
        struct sim__replay_run *run = &rung->run;
        struct sim__replay_server *server = &run->servers[replica];
        double work_s = (double)((uint64_t)run->replay->trace->block_tokens * missing) / run->rate;

        rung->waited += server->free_s > run->now_s;
        server->free_s = fmax(server->free_s, run->now_s) + work_s;
        server->busy_s += work_s;
        rung->own_s[row] = work_s;
        run->finish_s[row] = server->free_s;
        run->ttft_s[row] = server->free_s - run->now_s;
        run->next[row] = 0;
        if (server->first)
                run->next[server->last - 1] = row + 1;
        else
                server->first = row + 1;
        server->last = row + 1;
        server->waiting++;
        rung->late += rung->options->ttft_limit_s > 0 && run->ttft_s[row] > rung->options->ttft_limit_s;
}

static bool choose(struct rung *rung, uint32_t row, uint32_t *ret)
{
        struct sim__des_request *request;

        if (!rung->options->brain) {
                *ret = sim__replay_choose(&rung->run, row);
                return true;
        }
        request = &rung->des.requests[row];
        *request = (struct sim__des_request){.arrival_ns = rung->des.now_ns, .row = row};
        if (!sim__des_brain_choose(&rung->des, request))
                return false;
        request->in_flight = true;
        *ret = request->replica;
        return true;
}

static bool play_row(struct rung *rung, uint32_t number)
{
        struct sim__replay_run *run = &rung->run;
        const struct sim_trace *trace = run->replay->trace;
        const struct sim_trace_row *row = &trace->rows[number];
        const uint32_t *ids = run->replay->ids + row->first_id;
        double prompt = row->input_tokens, cached;
        uint32_t replica, match;

        arrive(rung, row->time_s / run->speed);
        if (!choose(rung, number, &replica))
                return false;
        match = sim__replay_match(&run->caches, replica, ids, row->id_count);
        sim__replay_caches_touch(&run->caches, replica, ids, row->id_count);
        run->servers[replica].work += row->id_count - match;
        run->servers[replica].requests++;
        sim_windows_add(&run->windows, run->now_s, replica, row->id_count - match);
        sim_windows_add(&rung->requests, run->now_s, replica, 1);
        cached = fmin((double)match * trace->block_tokens, prompt);
        run->hit_blocks += match;
        run->hit_tokens += (uint64_t)cached;
        run->hit_requests += match > 0;
        run->blocks += row->id_count;
        run->tokens += row->input_tokens;
        rung->none_ms += sim_cost_prefill_ms(rung->options->cost, prompt, prompt);
        if (match)
                rung->saved_ms += sim_cost_prefill_ms(rung->options->cost, prompt, prompt) -
                                  sim_cost_prefill_ms(rung->options->cost, prompt - cached, prompt);
        if (rung->options->brain) { /* engines compute the last token always */
                struct sim__des_request *request = &rung->des.requests[number];

                request->cached = (uint32_t)fmin(cached, prompt - 1);
                rung->predicted_off += fabs((double)request->predicted - request->cached);
        }
        enter(rung, number, replica, row->id_count - match);
        return true;
}

/* ---- the result --------------------------------------------------------------------------------------- */

static void spread_of(const struct sim__replay_run *run, bool of_work, struct sim_rung_spread *ret)
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
        ret->max_over_mean = mean > 0 ? most / mean : 0;
        ret->cv = mean > 0 ? sqrt(squares / run->replicas) / mean : 0;
        ret->jain = 1 / (1 + ret->cv * ret->cv);
}

static void take_times(struct rung *rung, struct sim_rung_result *ret)
{
        struct sim__replay_run *run = &rung->run;
        uint32_t count = run->replay->trace->row_count;
        double span = sim__replay_span_s(run->replay->trace) / run->speed, sum = 0;

        sim__replay_sort(run->ttft_s, count);
        sim__replay_sort(rung->own_s, count);
        for (uint32_t i = 0; i < count; i++)
                sum += run->ttft_s[i];
        for (uint32_t i = 0; i < run->replicas; i++) {
                ret->busy_mean += run->servers[i].busy_s / run->replicas / span;
                ret->busy_max = fmax(ret->busy_max, run->servers[i].busy_s / span);
        }
        ret->ttft_mean = sum / count;
        ret->ttft_p50 = sim__replay_percentile(run->ttft_s, count, 0.5);
        ret->ttft_p90 = sim__replay_percentile(run->ttft_s, count, PERCENTILE);
        ret->own_p90 = sim__replay_percentile(rung->own_s, count, PERCENTILE);
        ret->ttft_p99 = sim__replay_percentile(run->ttft_s, count, 0.99);
}

static void take_result(struct rung *rung, double *ret_share, struct sim_rung_result *ret)
{
        struct sim__replay_run *run = &rung->run;
        uint64_t work = run->blocks - run->hit_blocks;
        struct kvr_index_info index;

        *ret = (struct sim_rung_result){
                .token_hit = (double)run->hit_tokens / (double)run->tokens,
                .block_hit = (double)run->hit_blocks / (double)run->blocks,
                .request_hit = (double)run->hit_requests / run->replay->trace->row_count,
                .hit_tokens = (double)run->hit_tokens,
                .prompt_tokens = (double)run->tokens,
                .none_s = rung->none_ms / 1e3,
                .saved_s = rung->saved_ms / 1e3,
                .predicted_off = rung->predicted_off / (double)run->tokens,
                .waited = (double)rung->waited / run->replay->trace->row_count,
        };
        spread_of(run, false, &ret->requests);
        spread_of(run, true, &ret->work);
        ret->requests.hot_p95 = sim_windows_p95(&rung->requests);
        ret->work.hot_p95 = sim_windows_p95(&run->windows);
        take_times(rung, ret);
        for (uint32_t i = 0; ret_share && i < run->replicas; i++)
                ret_share[i] = work ? (double)run->servers[i].work / (double)work : 0;
        if (rung->options->brain) {
                kvr_router_index_info(rung->des.routers[0].brain, &index);
                ret->state_bytes = (double)index.bytes;
        }
}

bool sim_rung_run(const struct sim_replay *replay, const struct sim_rung_options *options, double *ret_share,
                  struct sim_rung_result *ret, char *message, size_t message_size)
{
        struct rung rung = {.options = options, .message = message, .message_size = message_size};
        bool good = rung_init(&rung, replay), over = false;

        for (uint32_t row = 0; good && !over && row < replay->trace->row_count; row++) {
                good = play_row(&rung, row);
                over = rung.late >= rung.late_max;
        }
        if (good && over)
                *ret = (struct sim_rung_result){.over = true};
        else if (good)
                take_result(&rung, ret_share, ret);
        rung_fini(&rung);
        return good;
}

bool sim_rung_capacity(const struct sim_replay *replay, const struct sim_rung_options *options, double ttft_s,
                       _Atomic uint64_t *progress, double *ret_speed, bool *ret_open, char *message,
                       size_t message_size)
{
        double low = SIM_RUNG_LOAD_MIN / options->load, high = SIM_RUNG_LOAD_MAX / options->load;
        struct sim_rung_options at = *options;
        struct sim_rung_result tried;
        bool open = true;

        at.ttft_limit_s = ttft_s;
        at.speed = low;
        if (!sim_rung_run(replay, &at, NULL, &tried, message, message_size))
                return false;
        if (tried.over) {
                atomic_fetch_add(progress, SIM_RUNG_CAPACITY_RUNS);
                *ret_speed = 0;
                *ret_open = false;
                return true;
        }
        atomic_fetch_add(progress, 1);
        for (unsigned i = 0; i < CAPACITY_STEPS; i++) {
                at.speed = sqrt(low * high);
                if (!sim_rung_run(replay, &at, NULL, &tried, message, message_size))
                        return false;
                if (tried.over)
                        high = at.speed;
                else
                        low = at.speed;
                open = open && !tried.over;
                atomic_fetch_add(progress, 1);
        }
        *ret_speed = low;
        *ret_open = open;
        return true;
}
