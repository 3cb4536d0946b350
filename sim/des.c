/* SPDX-License-Identifier: Apache-2.0 */
#include "des.h"
#include "des_int.h"
#include "rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define PROGRESS_ROWS 64u
#define RNG_STREAM    0x646573u

/* A replica goes or comes back. */
struct change {
        uint64_t at_ns;
        uint32_t replica;
        enum { DOWN, UP, RESTART } what;
};

struct run {
        struct sim__des des;
        struct change *changes; /* by time */
        uint32_t change_count, next_change;
        uint64_t report_ns, next_report_ns;
        uint32_t in_flight, done;
        _Atomic uint64_t *progress;
};

bool sim__des_no_memory(const struct sim__des *des)
{
        snprintf(des->message, des->message_size, "out of memory");
        return false;
}

/* ---- load --------------------------------------------------------------------------------------------- */

static double alone_ms(const struct sim_cost *cost, uint32_t step_tokens, uint32_t tokens)
{
        double sum = 0;

        for (uint32_t at = 0; at < tokens;) {
                uint32_t chunk = tokens - at < step_tokens ? tokens - at : step_tokens;

                sum += sim_cost_prefill_ms(cost, chunk, at);
                at += chunk;
        }
        return sum;
}

static double speed_at(const double *speeds, uint32_t speed_count, uint32_t replica)
{
        return speed_count ? speeds[replica % speed_count] : 1;
}

double sim_des_strength(const double *speeds, uint32_t speed_count, uint32_t replicas, double processors)
{
        double strength = 0;

        for (uint32_t i = 0; i < replicas; i++)
                strength += speed_at(speeds, speed_count, i);
        return processors > 0 && processors < replicas ? strength * processors / replicas : strength;
}

double sim_des_load(const struct sim_trace *trace, const struct sim_cost *cost, uint32_t step_tokens,
                    double strength)
{
        double span_s = trace->rows[trace->row_count - 1].time_s - trace->rows[0].time_s, sum_ms = 0;

        for (uint32_t i = 0; i < trace->row_count; i++)
                sum_ms += alone_ms(cost, step_tokens, trace->rows[i].input_tokens);
        return sum_ms / 1e3 / fmax(span_s, 1e-3) / strength;
}

/* ---- who decides: the routers' brains, or another router's rule -----------------------------------------
 */

static bool choose(struct sim__des *des, struct sim__des_request *request)
{
        if (!des->rules)
                return sim__des_brain_choose(des, request);
        sim__des_rules_choose(des->rules, request);
        return true;
}

static void first_token(struct sim__des *des, struct sim__des_request *request)
{
        request->first_ns = des->now_ns;
        if (des->rules)
                sim__des_rules_first_token(des->rules, request);
        else
                kvr_ticket_first_token(request->ticket);
}

/* Its prompt is being computed, or never will. */
static void starts(struct sim__des *des, struct sim__des_request *request)
{
        if (request->waits)
                sim__des_oracle_wait(des, request, false);
        request->waits = false;
}

static void settle(struct sim__des *des, struct sim__des_request *request, enum kvr_end end)
{
        request->in_flight = false;
        starts(des, request);
        if (des->rules)
                sim__des_rules_end(des->rules, request);
        else
                sim__des_brain_settle(des, request, end);
}

/* ---- events ------------------------------------------------------------------------------------------- */

static void record(const struct sim__des *des, const struct sim__des_request *request, bool finished)
{
        double never = (double)NAN;

        if (!des->options->records)
                return;
        des->options->records[request->row] = (struct sim_des_record){
                .arrival_s = (double)(request->arrival_ns - SIM__DES_START_NS) * 1e-9,
                .ttft_s = finished ? (double)(request->first_ns - request->arrival_ns) * 1e-9 : never,
                .e2e_s = finished ? (double)(des->now_ns - request->arrival_ns) * 1e-9 : never,
                .replica = request->replica,
                .predicted = request->predicted,
                .cached = request->cached,
        };
}

static void row_done(struct run *run, uint32_t row)
{
        run->done++;
        if (run->done % PROGRESS_ROWS == 0)
                atomic_fetch_add(run->progress, PROGRESS_ROWS);
        sim__des_arrivals_answered(&run->des, row);
}

/* No answer, and no further try. */
static void give_up(struct run *run, const struct sim__des_request *request, uint64_t *counter)
{
        (*counter)++;
        record(&run->des, request, false);
        row_done(run, request->row);
}

static double speed_of(const struct sim_des_options *options, uint32_t replica)
{
        return speed_at(options->speeds, options->speed_count, replica);
}

/* Before an engine may begin a step: those that compute share the processors. */
static void pace(struct sim__des *des, uint32_t number)
{
        const struct sim_des_options *options = des->options;
        uint32_t busy = 1;

        if (options->processors <= 0)
                return;
        for (uint32_t i = 0; i < options->replicas; i++)
                busy += i != number && des->next_ns[i] != SIM_NEVER;
        des->slow[number] = fmax(1, busy / options->processors) / speed_of(options, number);
}

static bool dispatch(struct run *run, struct sim__des_request *request)
{
        struct sim__des *des = &run->des;
        const struct sim_trace_row *row = &des->trace->rows[request->row];
        const uint64_t *ids = sim_trace_ids(des->trace, request->row);
        struct sim_submit submit = {
                .tag = request,
                .prompt_tokens = row->input_tokens,
                .output_tokens = row->output_tokens ? row->output_tokens : 1,
                .keys = des->keys,
                .key_count =
                        des->options->slots ? row->id_count : row->input_tokens / des->trace->block_tokens,
        };
        struct sim_job *job;
        enum kvr_status status;

        if (!choose(des, request))
                return false;
        if (request->replica == SIM__DES_NOWHERE) {
                request->replica = 0;
                give_up(run, request, &des->result.failed);
                return true;
        }
        des->sent[request->replica]++;
        for (uint32_t i = 0; i < submit.key_count; i++)
                des->keys[i] = sim__des_key(ids[i]);
        pace(des, request->replica);
        status = sim_engine_submit(des->engines[request->replica], des->now_ns, &submit, &job);
        if (status == KVR_OK) {
                run->in_flight++;
                request->in_flight = request->waits = true;
                sim__des_oracle_wait(des, request, true);
                des->next_ns[request->replica] = sim_engine_next_ns(des->engines[request->replica]);
                return true;
        }
        settle(des, request, KVR_END_REFUSED);
        if (status == KVR_E_NOMEM)
                return sim__des_no_memory(des);
        give_up(run, request, &des->result.rejected);
        return true;
}

static bool on_arrival(struct run *run, uint32_t row)
{
        struct sim__des_request *request = &run->des.requests[row];

        *request = (struct sim__des_request){.arrival_ns = run->des.now_ns, .row = row};
        return dispatch(run, request);
}

static void on_end(struct run *run, struct sim__des_request *request)
{
        struct sim__des *des = &run->des;
        const struct sim_trace_row *row = &des->trace->rows[request->row];
        struct sim_des_result *result = &des->result;
        uint32_t block = des->trace->block_tokens;

        settle(des, request, KVR_END_FINISHED);
        result->requests++;
        result->prompt_tokens += row->input_tokens;
        result->cached_tokens += request->cached;
        result->predicted_tokens += request->predicted;
        if (request->predicted >= request->cached + block) {
                result->overpredicted++;
                result->overpredicted_tokens += request->predicted - request->cached;
        }
        result->blocks += row->id_count;
        result->cached_blocks += request->cached / block;
        result->hits += request->cached > 0;
        sim_samples_add(&result->ttft, (double)(request->first_ns - request->arrival_ns) * 1e-9);
        sim_samples_add(&result->e2e, (double)(des->now_ns - request->arrival_ns) * 1e-9);
        if (row->output_tokens > 1)
                sim_samples_add(&result->tpot,
                                (double)(des->now_ns - request->first_ns) * 1e-9 / (row->output_tokens - 1));
        run->in_flight--;
        record(des, request, true);
        row_done(run, request->row);
}

static bool on_engine(struct run *run, uint32_t number)
{
        struct sim__des *des = &run->des;
        struct sim_event event;

        pace(des, number);
        while (sim_engine_next(des->engines[number], des->next_ns[number], &event)) {
                struct sim__des_request *request = event.tag;

                des->now_ns = event.at_ns;
                switch (event.kind) {
                case SIM_EVENT_START:
                        starts(des, request);
                        request->cached = event.cached_tokens;
                        sim_windows_add(&des->windows, (double)(event.at_ns - SIM__DES_START_NS) * 1e-9,
                                        number,
                                        des->trace->rows[request->row].input_tokens - event.cached_tokens);
                        break;
                case SIM_EVENT_TOKEN:
                        if (event.token == 0)
                                first_token(des, request);
                        break;
                case SIM_EVENT_END:
                        on_end(run, request);
                        break;
                }
        }
        des->next_ns[number] = sim_engine_next_ns(des->engines[number]);
        return sim__des_events_collect(des, number);
}

/* ---- replicas that go and come --------------------------------------------------------------------------- */

static void counters_keep(struct sim__des *des, uint32_t replica)
{
        struct sim_engine_counters now, *sum = &des->before[replica];

        sim_engine_catch_up(des->engines[replica], des->now_ns);
        sim_engine_counters(des->engines[replica], &now);
        sum->preempted += now.preempted;
        sum->steps += now.steps;
        sum->busy_ns += now.busy_ns;
        sum->computed_tokens += now.computed_tokens;
}

/* A request that nobody has seen a token of is tried elsewhere; the others have lost their answer. */
static bool on_lost(struct run *run, struct sim__des_request *request)
{
        struct sim__des *des = &run->des;

        settle(des, request, KVR_END_FAILED);
        run->in_flight--;
        if (request->first_ns || request->tried_count == KVR_TRIED_MAX) {
                give_up(run, request, &des->result.failed);
                return true;
        }
        request->tried[request->tried_count++] = (uint16_t)request->replica;
        des->result.retried++;
        return dispatch(run, request);
}

static bool on_change(struct run *run, const struct change *change)
{
        struct sim__des *des = &run->des;

        des->now_ns = change->at_ns;
        if (change->what != RESTART)
                sim__des_brain_change(des, change->replica, change->what == UP);
        if (change->what == UP)
                return sim__des_events_up(des, change->replica);
        counters_keep(des, change->replica);
        if (!sim__des_events_collect(des, change->replica))
                return false;
        if (change->what == RESTART)
                sim__des_events_restart(des, change->replica);
        else if (!sim__des_events_down(des, change->replica))
                return false;
        sim_engine_restart(des->engines[change->replica], des->now_ns);
        des->next_ns[change->replica] = SIM_NEVER;
        for (uint32_t i = 0; i < des->trace->row_count; i++) {
                struct sim__des_request *request = &des->requests[i];

                if (request->in_flight && request->replica == change->replica && !on_lost(run, request))
                        return false;
        }
        return true;
}

static int by_time(const void *a, const void *b)
{
        const struct change *x = a, *y = b;

        return x->at_ns != y->at_ns ? (x->at_ns > y->at_ns) - (x->at_ns < y->at_ns)
                                    : (int)x->what - (int)y->what;
}

static bool changes_init(struct run *run)
{
        const struct sim_des_options *options = run->des.options;

        run->changes = calloc(2 * (size_t)options->outage_count + 1, sizeof(*run->changes));
        if (!run->changes)
                return false;
        for (uint32_t i = 0; i < options->outage_count; i++) {
                const struct sim_des_outage *outage = &options->outages[i];
                uint64_t from_ns = SIM__DES_START_NS + (uint64_t)(outage->from_s * 1e9 + 0.5);
                uint64_t to_ns = SIM__DES_START_NS + (uint64_t)(outage->to_s * 1e9 + 0.5);

                run->changes[run->change_count++] =
                        (struct change){from_ns, outage->replica, outage->restart ? RESTART : DOWN};
                if (!outage->restart && outage->to_s > outage->from_s)
                        run->changes[run->change_count++] = (struct change){to_ns, outage->replica, UP};
        }
        qsort(run->changes, run->change_count, sizeof(*run->changes), by_time);
        return true;
}

static uint64_t next_change_ns(const struct run *run)
{
        return run->next_change < run->change_count ? run->changes[run->next_change].at_ns : SIM_NEVER;
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

static uint32_t soonest_engine(const struct sim__des *des)
{
        uint32_t best = 0;

        for (uint32_t i = 1; i < des->options->replicas; i++) {
                if (des->next_ns[i] < des->next_ns[best])
                        best = i;
        }
        return best;
}

/* All of one instant before the engines go on, so that they share a step. */
static bool on_arrivals(struct run *run, uint64_t at_ns)
{
        uint32_t row;

        run->des.now_ns = at_ns;
        while (sim__des_arrivals_take(&run->des, &row)) {
                if (!on_arrival(run, row))
                        return false;
        }
        return true;
}

/* Routers hear what was measured a while ago, or now. */
static bool on_report(struct run *run, uint64_t heard_ns, uint64_t at_ns)
{
        struct sim__des *des = &run->des;

        des->now_ns = at_ns;
        if (heard_ns <= at_ns) {
                sim__des_brain_report(des);
                return true;
        }
        run->next_report_ns += run->report_ns;
        return sim__des_brain_measure(des) || sim__des_no_memory(des);
}

static bool run_all(struct run *run)
{
        struct sim__des *des = &run->des;
        bool good = true;

        while (good && (des->arrivals.left || run->in_flight)) {
                uint32_t engine = soonest_engine(des);
                uint64_t engine_ns = des->next_ns[engine], arrival_ns = sim__des_arrivals_next_ns(des);
                uint64_t change_ns = next_change_ns(run), heard_ns = sim__des_brain_report_ns(des);
                uint64_t report_ns = heard_ns < run->next_report_ns ? heard_ns : run->next_report_ns;
                uint64_t other_ns = change_ns < arrival_ns ? change_ns : arrival_ns;
                uint64_t event_ns = sim__des_events_next_ns(des);

                if (engine_ns <= other_ns && engine_ns <= report_ns && engine_ns <= event_ns) {
                        good = on_engine(run, engine);
                } else if (event_ns <= report_ns && event_ns <= other_ns) {
                        good = sim__des_events_deliver(des);
                } else if (report_ns <= other_ns) {
                        good = on_report(run, heard_ns, report_ns);
                } else if (change_ns <= arrival_ns) {
                        good = on_change(run, &run->changes[run->next_change++]);
                } else {
                        good = on_arrivals(run, arrival_ns);
                }
        }
        return good;
}

/* ---- the result --------------------------------------------------------------------------------------- */

static void spread_of(const double *figures, uint32_t count, double *ret_max_over_mean, double *ret_cv)
{
        double sum = 0, most = 0, squares = 0, mean;

        for (uint32_t i = 0; i < count; i++) {
                sum += figures[i];
                most = fmax(most, figures[i]);
        }
        mean = sum / count;
        for (uint32_t i = 0; i < count; i++)
                squares += (figures[i] - mean) * (figures[i] - mean);
        *ret_max_over_mean = mean > 0 ? most / mean : 0;
        *ret_cv = mean > 0 ? sqrt(squares / count) / mean : 0;
}

static bool result_fill(struct run *run)
{
        struct sim__des *des = &run->des;
        struct sim_des_result *result = &des->result;
        uint32_t count = des->options->replicas;
        double *requests = calloc(count, sizeof(*requests)), *work = calloc(count, sizeof(*work));
        double span = fmax((double)(des->now_ns - SIM__DES_START_NS) * 1e-9, 1e-9);

        if (!requests || !work) {
                free(requests);
                free(work);
                return false;
        }
        for (uint32_t i = 0; i < count; i++) {
                const struct sim_engine_counters *sum = &des->before[i];
                double busy;

                counters_keep(des, i);
                busy = (double)sum->busy_ns * 1e-9 / span;
                requests[i] = (double)des->sent[i];
                work[i] = (double)sum->computed_tokens;
                result->preempted += sum->preempted;
                result->steps += sum->steps;
                result->evicted_blocks += sim_engine_evictions(des->engines[i]);
                result->busy_mean += busy / count;
                result->busy_max = fmax(result->busy_max, busy);
        }
        spread_of(requests, count, &result->request_max_over_mean, &result->request_cv);
        spread_of(work, count, &result->work_max_over_mean, &result->work_cv);
        sim__des_events_result(des);
        result->hot_p95 = sim_windows_p95(&des->windows);
        result->end_s = span;
        free(requests);
        free(work);
        return true;
}

void sim_des_result_fini(struct sim_des_result *result)
{
        sim_samples_fini(&result->ttft);
        sim_samples_fini(&result->tpot);
        sim_samples_fini(&result->e2e);
}

/* ---- from beginning to end ---------------------------------------------------------------------------- */

static bool engines_init(struct sim__des *des)
{
        const struct sim_des_options *options = des->options;
        struct sim_engine_options engine = {
                .block_tokens = des->trace->block_tokens,
                .capacity_blocks = options->capacity_blocks,
                .max_running = options->max_running,
                .step_tokens = options->step_tokens,
                .changes = options->events,
                .quiet = true,
                .slots = options->slots,
                .slot_memory_tokens = (uint64_t)options->slot_memory_blocks * des->trace->block_tokens,
                .cost = options->cost,
                .apart = options->processors > 0,
        };

        des->engines = calloc(options->replicas, sizeof(struct sim_engine *));
        des->next_ns = malloc(options->replicas * sizeof(*des->next_ns));
        des->slow = malloc(options->replicas * sizeof(*des->slow));
        des->sent = calloc(options->replicas, sizeof(*des->sent));
        des->before = calloc(options->replicas, sizeof(*des->before));
        if (!des->engines || !des->next_ns || !des->slow || !des->sent || !des->before)
                return false;
        for (uint32_t i = 0; i < options->replicas; i++) {
                des->next_ns[i] = SIM_NEVER;
                des->slow[i] = 1 / speed_of(options, i);
                engine.slow = &des->slow[i];
                des->engines[i] = sim_engine_new(&engine);
                if (!des->engines[i])
                        return false;
        }
        return true;
}

static bool run_init(struct run *run)
{
        struct sim__des *des = &run->des;
        uint32_t blocks = 1;

        for (uint32_t i = 0; i < des->trace->row_count; i++) {
                if (des->trace->rows[i].id_count > blocks)
                        blocks = des->trace->rows[i].id_count;
        }
        des->keys = malloc(blocks * sizeof(*des->keys));
        des->requests = calloc(des->trace->row_count, sizeof(*des->requests));
        if (!des->keys || !des->requests || !engines_init(des) || !changes_init(run) ||
            !sim_windows_init(&des->windows, des->options->replicas) || !sim__des_arrivals_init(des))
                return sim__des_no_memory(des);
        run->next_report_ns = SIM_NEVER;
        if (sim_des_rule_exists(des->options->policy)) {
                des->rules = sim__des_rules_new(des);
                return des->rules || sim__des_no_memory(des);
        }
        run->report_ns = (uint64_t)(des->options->report_s * 1e9 + 0.5);
        if (run->report_ns)
                run->next_report_ns = SIM__DES_START_NS + run->report_ns;
        return sim__des_brain_init(des);
}

static void run_fini(struct run *run)
{
        struct sim__des *des = &run->des;

        /* After a failure tickets may be left; a brain wants them all back. */
        for (uint32_t i = 0; des->requests && i < des->trace->row_count; i++) {
                if (des->requests[i].ticket)
                        sim__des_brain_settle(des, &des->requests[i], KVR_END_FAILED);
        }
        sim__des_brain_fini(des);
        sim__des_rules_free(des->rules);
        for (uint32_t i = 0; des->engines && i < des->options->replicas; i++)
                sim_engine_free(des->engines[i]);
        free(des->engines);
        free(des->next_ns);
        free(des->slow);
        free(des->sent);
        free(des->keys);
        free(des->requests);
        free(des->before);
        free(run->changes);
        sim__des_arrivals_fini(&des->arrivals);
        sim_windows_fini(&des->windows);
}

bool sim_des_run(const struct sim_trace *trace, const struct sim_des_options *options,
                 _Atomic uint64_t *progress, struct sim_des_result *ret, char *message, size_t message_size)
{
        struct run run = {
                .des =
                        {
                                .trace = trace,
                                .options = options,
                                .now_ns = SIM__DES_START_NS,
                                .random = sim_rng_for(options->seed, RNG_STREAM, 0).state,
                                .message = message,
                                .message_size = message_size,
                        },
                .progress = progress,
        };
        bool good;

        if (!options->replicas || !options->routers || !trace->row_count) {
                snprintf(message, message_size, "no replica, no router, or no rows");
                return false;
        }
        good = run_init(&run) && run_all(&run);
        if (good && !result_fill(&run)) {
                snprintf(message, message_size, "out of memory");
                good = false;
        }
        atomic_fetch_add(progress, run.done % PROGRESS_ROWS);
        run_fini(&run);
        if (good)
                *ret = run.des.result;
        else
                sim_des_result_fini(&run.des.result);
        return good;
}
