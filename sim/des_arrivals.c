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

static void skip_waiting(struct sim__des *des)
{
        struct sim__des_arrivals *arrivals = &des->arrivals;

        while (arrivals->waits && arrivals->next_row < des->trace->row_count &&
               arrivals->later[arrivals->next_row])
                arrivals->next_row++;
}

/* ---- who waits for whom ------------------------------------------------------------------------------- */

/* Per session, while its rows are gone through by time. */
struct chain {
        uint32_t last;       /* its last row so far + 1 */
        uint32_t agents;     /* the first session that it began and that has had rows since `last` */
        uint32_t next_agent; /* the next one of its parent's */
        bool listed;         /* it is among its parent's */
};

/* `row` waits for `before`. There are at most two edges a row: into it, and out of it to its parent. */
static void edge_add(struct sim__des_arrivals *arrivals, uint32_t before_row, uint32_t row)
{
        arrivals->edges[arrivals->edge_count++] =
                (struct sim__des_edge){.row = row, .next = arrivals->edge_of[before_row]};
        arrivals->edge_of[before_row] = arrivals->edge_count;
        arrivals->waits[row]++;
        arrivals->later[row] = true;
}

/* A session goes on when its last answer is there, and those of the sub-agents it began meanwhile. */
static void chain_row(struct sim__des_arrivals *arrivals, struct chain *chains,
                      const struct sim_trace_row *trace_row, uint32_t row)
{
        struct chain *chain = &chains[trace_row->session], *parent = &chains[trace_row->parent];

        if (chain->last)
                edge_add(arrivals, chain->last - 1, row);
        else if (trace_row->parent && parent->last)
                edge_add(arrivals, parent->last - 1, row);
        for (uint32_t agent = chain->agents; agent; agent = chains[agent].next_agent) {
                edge_add(arrivals, chains[agent].last - 1, row);
                chains[agent].listed = false;
        }
        chain->agents = 0;
        chain->last = row + 1;
        if (trace_row->parent && !chain->listed) {
                chain->listed = true;
                chain->next_agent = parent->agents;
                parent->agents = trace_row->session;
        }
}

bool sim__des_arrivals_init(struct sim__des *des)
{
        const struct sim_trace *trace = des->trace;
        struct sim__des_arrivals *arrivals = &des->arrivals;
        struct chain *chains;

        arrivals->left = trace->row_count;
        if (!des->options->closed_loop)
                return true;
        arrivals->heap = malloc(trace->row_count * sizeof(*arrivals->heap));
        arrivals->waits = calloc(trace->row_count, sizeof(*arrivals->waits));
        arrivals->later = calloc(trace->row_count, sizeof(*arrivals->later));
        arrivals->edge_of = calloc(trace->row_count, sizeof(*arrivals->edge_of));
        arrivals->edges = malloc(2 * (size_t)trace->row_count * sizeof(*arrivals->edges));
        chains = calloc((size_t)trace->session_count + 1, sizeof(*chains));
        if (!arrivals->heap || !arrivals->waits || !arrivals->later || !arrivals->edge_of ||
            !arrivals->edges || !chains) {
                free(chains);
                return false;
        }
        for (uint32_t row = 0; row < trace->row_count; row++) {
                if (trace->rows[row].session)
                        chain_row(arrivals, chains, &trace->rows[row], row);
        }
        free(chains);
        skip_waiting(des);
        return true;
}

/* ---- one after the other ------------------------------------------------------------------------------ */

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
                skip_waiting(des);
        } else {
                return false;
        }
        arrivals->left--;
        return true;
}

/*
 * How long the user took from this answer to the next request: as the trace says, or else the time between the
 * two in it, less what an idle engine that holds all it can needs for the first.
 */
static double pause_s(const struct sim__des *des, uint32_t row, uint32_t next)
{
        const struct sim_trace_row *rows = des->trace->rows;
        const struct sim_cost *cost = &des->options->cost;
        double service_ms;

        if (rows[next].pause_s > 0)
                return (double)rows[next].pause_s;
        service_ms =
                sim_cost_prefill_ms(cost, des->trace->block_tokens, rows[row].input_tokens) +
                rows[row].output_tokens *
                        sim_cost_step_ms(cost, &(struct sim_step){.decodes = 1,
                                                                  .decode_context = rows[row].input_tokens});
        return fmax(rows[next].time_s - rows[row].time_s - service_ms / 1e3, 0);
}

void sim__des_arrivals_answered(struct sim__des *des, uint32_t row)
{
        struct sim__des_arrivals *arrivals = &des->arrivals;

        for (uint32_t at = arrivals->waits ? arrivals->edge_of[row] : 0; at;) {
                const struct sim__des_edge *edge = &arrivals->edges[at - 1];

                if (--arrivals->waits[edge->row] == 0)
                        heap_push(arrivals,
                                  (struct sim__des_due){des->now_ns +
                                                                (uint64_t)(pause_s(des, row, edge->row) /
                                                                                   des->options->speed * 1e9 +
                                                                           0.5),
                                                        edge->row});
                at = edge->next;
        }
}

void sim__des_arrivals_fini(struct sim__des_arrivals *arrivals)
{
        free(arrivals->heap);
        free(arrivals->waits);
        free(arrivals->later);
        free(arrivals->edge_of);
        free(arrivals->edges);
}
