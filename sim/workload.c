/* SPDX-License-Identifier: Apache-2.0 */
#include "workload.h"
#include "rng.h"
#include "words.h"

#include <math.h>
#include <stdlib.h>

/* Streams of the seed: what a random sequence is for. */
enum stream {
        STREAM_ARRIVAL = 1,
        STREAM_GROUP,
        STREAM_PREFIX,
        STREAM_QUESTION,
        STREAM_LENGTH,
        STREAM_GAP,
        STREAM_BLOCK,
};

struct sim_workload {
        struct sim_workload_options options;
        struct sim_session *sessions;
        uint32_t session_count, requests;
        double *group_weights; /* summed up; NULL: all alike */
};

void sim_workload_free(struct sim_workload *workload)
{
        if (!workload)
                return;
        free(workload->sessions);
        free(workload->group_weights);
        free(workload);
}

static bool weigh_groups(struct sim_workload *w)
{
        double sum = 0;

        if (w->options.zipf <= 0)
                return true;
        w->group_weights = malloc(w->options.groups * sizeof(*w->group_weights));
        if (!w->group_weights)
                return false;
        for (uint32_t g = 0; g < w->options.groups; g++) {
                sum += pow(g + 1, -w->options.zipf);
                w->group_weights[g] = sum;
        }
        return true;
}

static uint32_t group_of(const struct sim_workload *w, uint32_t session)
{
        struct sim_rng rng = sim_rng_for(w->options.seed, STREAM_GROUP, session);
        uint32_t low = 0, high = w->options.groups - 1;
        double at;

        if (!w->group_weights)
                return sim_rng_below(&rng, w->options.groups);
        at = sim_rng_unit(&rng) * w->group_weights[high];
        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (w->group_weights[middle] > at)
                        high = middle;
                else
                        low = middle + 1;
        }
        return low;
}

static void plan_trace(struct sim_workload *w)
{
        for (uint32_t i = 0; i < w->session_count; i++) {
                double time_s = w->options.trace->rows[i].time_s / w->options.speed;

                w->sessions[i] = (struct sim_session){.start_s = time_s, .turns = 1, .group = i};
        }
        w->requests = w->session_count;
}

static void plan_sessions(struct sim_workload *w)
{
        const struct sim_workload_options *o = &w->options;
        struct sim_rng arrivals = sim_rng_for(o->seed, STREAM_ARRIVAL, 0);
        uint32_t turns = o->kind == SIM_WORKLOAD_MULTI_TURN ? o->turns : 1, left = o->requests;
        double now = 0;

        for (uint32_t i = 0; i < w->session_count; i++) {
                w->sessions[i].turns = left < turns ? left : turns;
                left -= w->sessions[i].turns;
                w->sessions[i].group = group_of(w, i);
                w->sessions[i].start_s = now;
                if (o->rate > 0)
                        now += sim_rng_exp(&arrivals, turns / o->rate);
        }
        w->requests = o->requests;
}

struct sim_workload *sim_workload_new(const struct sim_workload_options *options)
{
        struct sim_workload *w = calloc(1, sizeof(*w));
        uint32_t turns = options->kind == SIM_WORKLOAD_MULTI_TURN ? options->turns : 1;

        if (!w)
                return NULL;
        w->options = *options;
        if (options->kind == SIM_WORKLOAD_TRACE)
                w->session_count = options->requests < options->trace->row_count ? options->requests
                                                                                 : options->trace->row_count;
        else
                w->session_count = options->requests / turns + (options->requests % turns != 0);
        w->sessions = calloc(w->session_count ? w->session_count : 1, sizeof(*w->sessions));
        if (!w->sessions || !weigh_groups(w)) {
                sim_workload_free(w);
                return NULL;
        }
        if (options->kind == SIM_WORKLOAD_TRACE)
                plan_trace(w);
        else
                plan_sessions(w);
        return w;
}

const struct sim_workload_options *sim_workload_options(const struct sim_workload *w)
{
        return &w->options;
}

uint32_t sim_workload_requests(const struct sim_workload *w)
{
        return w->requests;
}

uint32_t sim_workload_session_count(const struct sim_workload *w)
{
        return w->session_count;
}

const struct sim_session *sim_workload_session(const struct sim_workload *w, uint32_t session)
{
        return &w->sessions[session];
}

double sim_workload_turn_s(const struct sim_workload *w, uint32_t session, uint32_t turn)
{
        struct sim_rng rng = sim_rng_for(w->options.seed, STREAM_GAP, session);
        double at = w->sessions[session].start_s;

        for (uint32_t i = 0; i < turn && w->options.rate > 0; i++)
                at += 2 * sim_rng_unit(&rng) * w->options.turn_gap_s;
        return at;
}

static uint64_t item(uint32_t session, uint32_t turn)
{
        return ((uint64_t)session << 32) | turn;
}

static uint32_t spread(const struct sim_workload *w, uint32_t length, struct sim_rng *rng)
{
        double scaled = length * (1 + w->options.spread * (2 * sim_rng_unit(rng) - 1));

        return scaled < 1 ? 1 : (uint32_t)(scaled + 0.5);
}

static void lengths(const struct sim_workload *w, uint32_t session, uint32_t turn, uint32_t *question,
                    uint32_t *output)
{
        struct sim_rng rng = sim_rng_for(w->options.seed, STREAM_LENGTH, item(session, turn));

        *question = spread(w, w->options.question_tokens, &rng);
        *output = spread(w, w->options.output_tokens, &rng);
}

uint32_t sim_workload_output_tokens(const struct sim_workload *w, uint32_t session, uint32_t turn)
{
        uint32_t question, output;

        if (w->options.kind == SIM_WORKLOAD_TRACE && w->options.output_tokens == 0) {
                output = w->options.trace->rows[session].output_tokens;
                return output ? output : 1;
        }
        lengths(w, session, turn, &question, &output);
        return output;
}

static void add_words(const struct sim_workload *w, enum stream stream, uint64_t number, uint32_t count,
                      struct sim_buf *buf)
{
        struct sim_rng rng = sim_rng_for(w->options.seed, stream, number);

        sim_words_add(buf, &rng, count);
}

static void add_question(const struct sim_workload *w, uint32_t session, uint32_t turn, struct sim_buf *buf)
{
        uint32_t question, output;

        lengths(w, session, turn, &question, &output);
        add_words(w, STREAM_QUESTION, item(session, turn), question, buf);
}

/* The last block of a row may be shorter than a block: its text is then the beginning of that block's. */
static void add_trace_text(const struct sim_workload *w, uint32_t row_number, struct sim_buf *buf)
{
        const struct sim_trace *trace = w->options.trace;
        const struct sim_trace_row *row = &trace->rows[row_number];
        const uint64_t *ids = sim_trace_ids(trace, row_number);
        uint32_t left = row->input_tokens;

        for (uint32_t i = 0; i < row->id_count; i++) {
                uint32_t tokens = left < trace->block_tokens ? left : trace->block_tokens;

                add_words(w, STREAM_BLOCK, ids[i], tokens, buf);
                left -= tokens;
        }
}

/* The whole prompt as one text: trace rows, and everything for /v1/completions. No character in it needs
 * escaping. */
static void add_text(const struct sim_workload *w, uint32_t session, uint32_t turn,
                     const struct kvr_slice *answers, struct sim_buf *buf)
{
        uint32_t group = w->sessions[session].group;

        if (w->options.kind == SIM_WORKLOAD_TRACE) {
                add_trace_text(w, group, buf);
                return;
        }
        if (w->options.kind == SIM_WORKLOAD_UNIQUE)
                add_words(w, STREAM_PREFIX, ~(uint64_t)session, w->options.prefix_tokens, buf);
        else
                add_words(w, STREAM_PREFIX, group, w->options.prefix_tokens, buf);
        for (uint32_t i = 0; i <= turn; i++) {
                add_question(w, session, i, buf);
                if (i < turn) {
                        struct sim_buf quoted = {0};

                        sim_buf_json(&quoted, answers[i]);
                        if (quoted.failed)
                                buf->failed = true;
                        else
                                sim_buf_add(buf, quoted.data + 1, quoted.len - 2);
                        sim_buf_fini(&quoted);
                }
        }
}

static void add_messages(const struct sim_workload *w, uint32_t session, uint32_t turn,
                         const struct kvr_slice *answers, struct sim_buf *buf)
{
        bool system = w->options.prefix_tokens > 0 && w->options.kind != SIM_WORKLOAD_TRACE;
        uint64_t prefix =
                w->options.kind == SIM_WORKLOAD_UNIQUE ? ~(uint64_t)session : w->sessions[session].group;

        sim_buf_puts(buf, "\"messages\":[");
        if (system) {
                sim_buf_puts(buf, "{\"role\":\"system\",\"content\":\"");
                add_words(w, STREAM_PREFIX, prefix, w->options.prefix_tokens, buf);
                sim_buf_puts(buf, "\"},");
        }
        for (uint32_t i = 0; i <= turn; i++) {
                sim_buf_puts(buf, "{\"role\":\"user\",\"content\":\"");
                if (w->options.kind == SIM_WORKLOAD_TRACE)
                        add_trace_text(w, w->sessions[session].group, buf);
                else
                        add_question(w, session, i, buf);
                sim_buf_puts(buf, "\"}");
                if (i < turn) {
                        sim_buf_puts(buf, ",{\"role\":\"assistant\",\"content\":");
                        sim_buf_json(buf, answers[i]);
                        sim_buf_puts(buf, "},");
                }
        }
        sim_buf_puts(buf, "]");
}

void sim_workload_body(const struct sim_workload *w, uint32_t session, uint32_t turn,
                       const struct kvr_slice *answers, struct sim_buf *buf)
{
        sim_buf_puts(buf, "{\"model\":");
        sim_buf_json(buf, sim_slice(w->options.model));
        sim_buf_puts(buf, ",");
        if (w->options.completions) {
                sim_buf_puts(buf, "\"prompt\":\"");
                add_text(w, session, turn, answers, buf);
                sim_buf_puts(buf, "\"");
        } else {
                add_messages(w, session, turn, answers, buf);
        }
        sim_buf_printf(buf, ",\"max_tokens\":%u,\"temperature\":0",
                       sim_workload_output_tokens(w, session, turn));
        if (w->options.stream)
                sim_buf_puts(buf, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
        sim_buf_puts(buf, "}");
}
