/* SPDX-License-Identifier: Apache-2.0 */
/* When requests come: as the trace says, or a session's turns one after the other. */
#include "des_int.h"

#include <math.h>
#include <stdlib.h>

static uint64_t row_ns(const struct sim__des *des, uint32_t row)
{
        const struct sim_trace *trace = des->trace;

        return SIM__DES_START_NS +
               (uint64_t)((trace->rows[row].time_s - trace->rows[0].time_s) / des->options->speed * 1e9 +
                          0.5);
}

static bool before(const struct sim__des_due *a, const struct sim__des_due *b)
{
        return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->row < b->row;
}

static void heap_push(struct sim__des_arrivals *arrivals, struct sim__des_due due)
{
        uint32_t at = arrivals->count++;

        for (; at && before(&due, &arrivals->heap[(at - 1) / 2]); at = (at - 1) / 2)
                arrivals->heap[at] = arrivals->heap[(at - 1) / 2];
        arrivals->heap[at] = due;
}

static struct sim__des_due heap_pop(struct sim__des_arrivals *arrivals)
{
        struct sim__des_due first = arrivals->heap[0], last = arrivals->heap[--arrivals->count];
        uint32_t at = 0, child;

        while ((child = 2 * at + 1) < arrivals->count) {
                if (child + 1 < arrivals->count && before(&arrivals->heap[child + 1], &arrivals->heap[child]))
                        child++;
                if (!before(&arrivals->heap[child], &last))
                        break;
                arrivals->heap[at] = arrivals->heap[child];
                at = child;
        }
        arrivals->heap[at] = last;
        return first;
}

static void skip_later(struct sim__des *des)
{
        struct sim__des_arrivals *arrivals = &des->arrivals;

        while (arrivals->later && arrivals->next_row < des->trace->row_count &&
               arrivals->later[arrivals->next_row])
                arrivals->next_row++;
}

/* Chains the rows of each session. */
bool sim__des_arrivals_init(struct sim__des *des)
{
        const struct sim_trace *trace = des->trace;
        struct sim__des_arrivals *arrivals = &des->arrivals;
        uint32_t *last;

        arrivals->left = trace->row_count;
        if (!des->options->closed_loop)
                return true;
        arrivals->heap = malloc(trace->row_count * sizeof(*arrivals->heap));
        arrivals->next_of = calloc(trace->row_count, sizeof(*arrivals->next_of));
        arrivals->later = calloc(trace->row_count, sizeof(*arrivals->later));
        last = calloc((size_t)trace->session_count + 1, sizeof(*last));
        if (!arrivals->heap || !arrivals->next_of || !arrivals->later || !last) {
                free(last);
                return false;
        }
        for (uint32_t row = 0; row < trace->row_count; row++) {
                uint32_t session = trace->rows[row].session;

                if (!session)
                        continue;
                if (last[session]) {
                        arrivals->next_of[last[session] - 1] = row + 1;
                        arrivals->later[row] = true;
                }
                last[session] = row + 1;
        }
        free(last);
        skip_later(des);
        return true;
}

uint64_t sim__des_arrivals_next_ns(const struct sim__des *des)
{
        const struct sim__des_arrivals *arrivals = &des->arrivals;
        uint64_t at_ns = SIM_NEVER;

        if (arrivals->next_row < des->trace->row_count)
                at_ns = row_ns(des, arrivals->next_row);
        if (arrivals->count && arrivals->heap[0].at_ns < at_ns)
                at_ns = arrivals->heap[0].at_ns;
        return at_ns;
}

/* The next row that is due by now; false: none. */
bool sim__des_arrivals_take(struct sim__des *des, uint32_t *ret_row)
{
        struct sim__des_arrivals *arrivals = &des->arrivals;
        uint64_t listed_ns =
                arrivals->next_row < des->trace->row_count ? row_ns(des, arrivals->next_row) : SIM_NEVER;

        if (arrivals->count && arrivals->heap[0].at_ns <= des->now_ns &&
            arrivals->heap[0].at_ns <= listed_ns) {
                *ret_row = heap_pop(arrivals).row;
        } else if (listed_ns <= des->now_ns) {
                *ret_row = arrivals->next_row++;
                skip_later(des);
        } else {
                return false;
        }
        arrivals->left--;
        return true;
}

/*
 * The session's next request comes as long after this answer as its user took: the time between the two in
 * the trace, less what an idle engine that holds all it can needs for the first.
 */
void sim__des_arrivals_answered(struct sim__des *des, uint32_t row)
{
        const struct sim_trace_row *rows = des->trace->rows;
        const struct sim_des_options *options = des->options;
        uint32_t next = des->arrivals.next_of ? des->arrivals.next_of[row] : 0;
        double pause_s, service_ms;

        if (!next)
                return;
        service_ms = sim_cost_prefill_ms(&options->cost, des->trace->block_tokens, rows[row].input_tokens) +
                     rows[row].output_tokens *
                             sim_cost_step_ms(&options->cost,
                                              &(struct sim_step){.decodes = 1,
                                                                 .decode_context = rows[row].input_tokens});
        pause_s = fmax(rows[next - 1].time_s - rows[row].time_s - service_ms / 1e3, 0);
        heap_push(&des->arrivals,
                  (struct sim__des_due){des->now_ns + (uint64_t)(pause_s / options->speed * 1e9 + 0.5),
                                        next - 1});
}

void sim__des_arrivals_fini(struct sim__des_arrivals *arrivals)
{
        free(arrivals->heap);
        free(arrivals->next_of);
        free(arrivals->later);
}
