/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_brain.h"
#include "rng.h"

#include <kvroute/router.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define START_NS          UINT64_C(1000000000000) /* clocks do not begin at 0 */
#define INDEX_BYTES_MIN   (UINT64_C(32) << 20)
#define INDEX_BYTES_MAX   (UINT64_C(4) << 30)
#define INDEX_BLOCK_BYTES 256u
#define SPACE             1u /* all prompts are for one model */

/* A prompt under way, in a heap by the time of its end. */
struct running {
        double finish_s;
        uint32_t row, replica, router, cached_tokens;
        struct kvr_ticket *ticket;
};

struct router {
        struct kvr_router *brain;
        kvr_replica_id *replicas; /* by number */
};

struct sim__replay_brain {
        uint64_t now_ns, random;
        struct router *routers;
        uint32_t router_count, replicas;
        struct kvr_point *points;
        struct running *heap;
        uint32_t count, room;
        uint32_t *in_flight; /* per replica, as of the last event */
        struct running last; /* the row before: its end is known only after it was chosen */
        double report_s, next_report_s;
};

static uint64_t now_ns(void *ctx)
{
        return ((const struct sim__replay_brain *)ctx)->now_ns;
}

static uint64_t random64(void *ctx)
{
        struct sim__replay_brain *brain = ctx;
        struct sim_rng rng = {brain->random};
        uint64_t number = sim_rng_next(&rng);

        brain->random = rng.state;
        return number;
}

static void clock_set(struct sim__replay_brain *brain, double now_s)
{
        uint64_t ns = START_NS + (uint64_t)(fmax(now_s, 0) * 1e9 + 0.5);

        if (ns > brain->now_ns)
                brain->now_ns = ns;
}

/* ---- making it ---------------------------------------------------------------------------------------- */

static bool router_init(struct sim__replay_brain *brain, const struct sim__replay_run *run,
                        struct router *router)
{
        const struct sim_replay_options *options = run->options;
        uint64_t capacity = options->capacity_blocks ? options->capacity_blocks : run->replay->distinct;
        double told = options->told > 0 ? options->told : 1;
        uint64_t bytes = INDEX_BLOCK_BYTES * capacity * run->replicas;
        struct kvr_settings settings = {
                .policy = "kv",
                .index_memory_bytes = bytes < INDEX_BYTES_MIN   ? INDEX_BYTES_MIN
                                      : bytes > INDEX_BYTES_MAX ? INDEX_BYTES_MAX
                                                                : bytes,
        };
        struct kvr_env env = {now_ns, random64, brain};
        struct kvr_replica_spec spec = {
                .cache = KVR_CACHE_BLOCKS,
                .block_tokens = 1,
                .capacity_tokens = options->capacity_blocks ? (uint64_t)((double)capacity * told) *
                                                                      run->replay->trace->block_tokens
                                                            : 0,
        };
        char name[16];

        router->replicas = calloc(run->replicas, sizeof(*router->replicas));
        if (!router->replicas || kvr_router_new(&settings, &env, &router->brain, NULL) != KVR_OK)
                return false;
        spec.name = name;
        for (uint32_t i = 0; i < run->replicas; i++) {
                snprintf(name, sizeof(name), "r%u", i);
                if (kvr_replica_add(router->brain, &spec, &router->replicas[i], NULL) != KVR_OK)
                        return false;
                (void)kvr_replica_set_state(router->brain, router->replicas[i], KVR_READY);
        }
        return true;
}

struct sim__replay_brain *sim__replay_brain_new(const struct sim__replay_run *run)
{
        struct sim__replay_brain *brain = calloc(1, sizeof(*brain));
        uint32_t longest = run->replay->longest < KVR_POINTS_MAX ? run->replay->longest : KVR_POINTS_MAX;

        if (!brain)
                return NULL;
        brain->now_ns = START_NS;
        brain->random = sim_rng_for(1, 0x706c6179, 0).state;
        brain->replicas = run->replicas;
        brain->router_count = run->options->routers ? run->options->routers : 1;
        brain->report_s = run->options->report_s;
        brain->next_report_s = brain->report_s > 0 ? brain->report_s : INFINITY;
        brain->points = malloc((longest ? longest : 1) * sizeof(*brain->points));
        brain->in_flight = calloc(run->replicas, sizeof(*brain->in_flight));
        brain->routers = calloc(brain->router_count, sizeof(*brain->routers));
        if (!brain->points || !brain->in_flight || !brain->routers)
                goto failed;
        for (uint32_t i = 0; i < brain->router_count; i++) {
                if (!router_init(brain, run, &brain->routers[i]))
                        goto failed;
        }
        return brain;
failed:
        sim__replay_brain_free(brain);
        return NULL;
}

static void settle(struct sim__replay_brain *brain, const struct running *running, int64_t prompt_tokens)
{
        struct kvr_outcome outcome = {
                .end = KVR_END_FINISHED,
                .prompt_tokens = prompt_tokens,
                .cached_tokens = running->cached_tokens,
                .completion_tokens = 1,
        };

        kvr_ticket_first_token(running->ticket);
        kvr_ticket_settle(running->ticket, &outcome, NULL);
        brain->in_flight[running->replica]--;
}

void sim__replay_brain_free(struct sim__replay_brain *brain)
{
        if (!brain)
                return;
        if (brain->last.ticket)
                settle(brain, &brain->last, -1);
        for (uint32_t i = 0; i < brain->count; i++)
                settle(brain, &brain->heap[i], -1);
        for (uint32_t i = 0; brain->routers && i < brain->router_count; i++) {
                kvr_router_free(brain->routers[i].brain);
                free(brain->routers[i].replicas);
        }
        free(brain->routers);
        free(brain->points);
        free(brain->heap);
        free(brain->in_flight);
        free(brain);
}

/* ---- time passes -------------------------------------------------------------------------------------- */

static bool heap_push(struct sim__replay_brain *brain, const struct running *running)
{
        uint32_t at = brain->count;

        if (brain->count == brain->room) {
                uint32_t room = brain->room ? 2 * brain->room : 256;
                struct running *heap = realloc(brain->heap, room * sizeof(*heap));

                if (!heap)
                        return false;
                brain->heap = heap;
                brain->room = room;
        }
        brain->count++;
        for (; at && brain->heap[(at - 1) / 2].finish_s > running->finish_s; at = (at - 1) / 2)
                brain->heap[at] = brain->heap[(at - 1) / 2];
        brain->heap[at] = *running;
        return true;
}

static struct running heap_pop(struct sim__replay_brain *brain)
{
        struct running top = brain->heap[0], moved = brain->heap[--brain->count];
        uint32_t at = 0;

        for (uint32_t child; (child = 2 * at + 1) < brain->count; at = child) {
                if (child + 1 < brain->count && brain->heap[child + 1].finish_s < brain->heap[child].finish_s)
                        child++;
                if (brain->heap[child].finish_s >= moved.finish_s)
                        break;
                brain->heap[at] = brain->heap[child];
        }
        brain->heap[at] = moved;
        return top;
}

/* What an engine's metrics have: requests, no tokens. */
static void report(struct sim__replay_brain *brain)
{
        for (uint32_t i = 0; i < brain->replicas; i++) {
                uint32_t in_flight = brain->in_flight[i];
                struct kvr_load_report load = {
                        .at_ns = brain->now_ns,
                        .running = in_flight ? 1 : 0,
                        .waiting = in_flight ? in_flight - 1 : 0,
                        .kv_usage = (double)NAN,
                        .waiting_tokens = (double)NAN,
                };

                for (uint32_t at = 0; at < brain->router_count; at++)
                        (void)kvr_replica_report(brain->routers[at].brain, brain->routers[at].replicas[i],
                                                 &load);
        }
}

static void time_pass(struct sim__replay_run *run, double now_s)
{
        struct sim__replay_brain *brain = run->brain;
        const struct sim_trace *trace = run->replay->trace;

        for (;;) {
                double end_s = brain->count ? brain->heap[0].finish_s : INFINITY;

                if (end_s > now_s && brain->next_report_s > now_s)
                        break;
                if (brain->next_report_s < end_s) {
                        clock_set(brain, brain->next_report_s);
                        brain->next_report_s += brain->report_s;
                        report(brain);
                } else {
                        struct running running = heap_pop(brain);

                        clock_set(brain, running.finish_s);
                        settle(brain, &running,
                               (int64_t)trace->rows[running.row].id_count * trace->block_tokens);
                }
        }
        clock_set(brain, now_s);
}

/* ---- deciding ----------------------------------------------------------------------------------------- */

/* A point at every block's end; with more blocks than a prompt may have points, at every second one, ... The
 * model computes whole blocks, so the last one counts as whole too. */
static void prompt_make(struct sim__replay_run *run, uint32_t number, struct kvr_prompt *ret)
{
        const struct sim_trace_row *row = &run->replay->trace->rows[number];
        const uint32_t *ids = run->replay->ids + row->first_id;
        uint32_t block = run->replay->trace->block_tokens, stride = (row->id_count - 1) / KVR_POINTS_MAX + 1;
        uint32_t count = 0;

        for (uint32_t i = stride - 1; i < row->id_count; i += stride)
                run->brain->points[count++] = (struct kvr_point){
                        .key = sim_mix64(ids[i] + UINT64_C(1)),
                        .end = (i + 1) * block,
                };
        *ret = (struct kvr_prompt){
                .api = KVR_API_COMPLETIONS,
                .unit = KVR_UNIT_TOKENS,
                .units = row->id_count * block,
                .point_count = count,
                .points = run->brain->points,
                .space = SPACE,
                .max_tokens = 1,
                .prompt_count = 1,
                .choices = 1,
                .stream = true,
                .usage_asked = true,
        };
}

uint32_t sim__replay_brain_choose(struct sim__replay_run *run, uint32_t row)
{
        struct sim__replay_brain *brain = run->brain;
        uint32_t router = row % brain->router_count, block = run->replay->trace->block_tokens;
        const struct router *with = &brain->routers[router];
        struct kvr_prompt prompt;
        struct kvr_request request = {.prompt = &prompt};
        struct kvr_decision decision;
        struct kvr_ticket *ticket;
        uint32_t chosen = 0, tokens;

        if (brain->last.ticket) {
                brain->last.finish_s = run->finish_s[brain->last.row];
                if (!heap_push(brain, &brain->last))
                        return run->replicas;
                brain->last.ticket = NULL;
        }
        time_pass(run, run->now_s);
        prompt_make(run, row, &prompt);
        if (kvr_decide(with->brain, &request, &decision, &ticket, NULL) != KVR_OK)
                return run->replicas;
        while (with->replicas[chosen] != decision.replica)
                chosen++;
        tokens = run->servers[chosen].match * block;
        brain->in_flight[chosen]++;
        brain->last = (struct running){
                .row = row,
                .replica = chosen,
                .router = router,
                .cached_tokens = tokens < prompt.units ? tokens : prompt.units - 1,
                .ticket = ticket,
        };
        return chosen;
}
