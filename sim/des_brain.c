/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of libkvroute: clock and chance, the fleet, prompts made of a trace's ids, tickets. */
#include "des_int.h"
#include "rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define INDEX_BYTES_MIN   (UINT64_C(32) << 20)
#define INDEX_BYTES_MAX   (UINT64_C(4) << 30)
#define INDEX_BLOCK_BYTES 256u
#define SPACE             1u /* all prompts are for one model */
#define MODEL             "m"

static uint64_t now_ns(void *ctx)
{
        return ((const struct sim__des *)ctx)->now_ns;
}

static uint64_t random64(void *ctx)
{
        struct sim__des *des = ctx;
        struct sim_rng rng = {des->random};
        uint64_t number = sim_rng_next(&rng);

        des->random = rng.state;
        return number;
}

uint64_t sim__des_key(uint64_t id)
{
        uint64_t key = sim_mix64(id + UINT64_C(0x9e3779b97f4a7c15));

        return key | (key == 0);
}

static bool router_init(struct sim__des *des, struct sim__des_router *router)
{
        const struct sim_des_options *options = des->options;
        uint64_t bytes = (uint64_t)INDEX_BLOCK_BYTES * options->capacity_blocks * options->replicas;
        struct kvr_settings settings = {
                .policy = options->policy,
                .index_memory_bytes = bytes < INDEX_BYTES_MIN   ? INDEX_BYTES_MIN
                                      : bytes > INDEX_BYTES_MAX ? INDEX_BYTES_MAX
                                                                : bytes,
        };
        struct kvr_env env = {now_ns, random64, des};
        struct kvr_replica_spec spec = {
                .cache = KVR_CACHE_BLOCKS,
                .block_tokens = des->trace->block_tokens,
                /* What vLLM tells of itself, and kvroute mock after it: its null block counts. */
                .capacity_tokens = ((uint64_t)options->capacity_blocks + 1) * des->trace->block_tokens - 1,
        };
        /* A llama.cpp server tells how many slots it has, and not what its memory holds. */
        struct kvr_replica_spec slots = {.cache = KVR_CACHE_SLOTS, .slots = options->slots};
        struct kvr_error error = {0};
        char name[16];

        router->replicas = calloc(options->replicas, sizeof(*router->replicas));
        if (!router->replicas)
                return sim__des_no_memory(des);
        if (kvr_router_new(&settings, &env, &router->brain, &error) != KVR_OK)
                goto failed;
        if (options->slots)
                spec = slots;
        spec.name = name;
        for (uint32_t i = 0; i < options->replicas; i++) {
                snprintf(name, sizeof(name), "r%u", i);
                if (kvr_replica_add(router->brain, &spec, &router->replicas[i], &error) != KVR_OK)
                        goto failed;
                (void)kvr_replica_set_state(router->brain, router->replicas[i], KVR_READY);
        }
        return true;
failed:
        snprintf(des->message, des->message_size, "%s", error.message);
        return false;
}

/* In ids that are looked at. */
static size_t longest_prompt(const struct sim__des *des)
{
        uint32_t most = 1;

        for (uint32_t i = 0; i < des->trace->row_count; i++) {
                if (des->trace->rows[i].input_tokens > most)
                        most = des->trace->rows[i].input_tokens;
        }
        return most < KVR_PROMPT_IDS_MAX ? most : KVR_PROMPT_IDS_MAX;
}

bool sim__des_brain_init(struct sim__des *des)
{
        uint32_t blocks = 1;

        for (uint32_t i = 0; i < des->trace->row_count; i++) {
                if (des->trace->rows[i].id_count > blocks)
                        blocks = des->trace->rows[i].id_count;
        }
        des->points = malloc((blocks < KVR_POINTS_MAX ? blocks : KVR_POINTS_MAX) * sizeof(*des->points));
        des->routers = calloc(des->options->routers, sizeof(*des->routers));
        des->parser = des->options->token_ids ? kvr_parser_new() : NULL;
        if (!des->points || !des->routers || (des->options->token_ids && !des->parser))
                return sim__des_no_memory(des);
        for (uint32_t i = 0; i < des->options->routers; i++) {
                if (!router_init(des, &des->routers[i]))
                        return false;
        }
        if (!des->options->events && !des->options->oracle)
                return true;
        des->prompt_ids = malloc(longest_prompt(des) * sizeof(*des->prompt_ids));
        if (!des->prompt_ids)
                return sim__des_no_memory(des);
        if (des->options->events)
                return sim__des_events_init(des);
        return sim__des_oracle_init(des) || sim__des_no_memory(des);
}

void sim__des_brain_fini(struct sim__des *des)
{
        sim__des_events_fini(des);
        sim__des_oracle_fini(des);
        free(des->prompt_ids);
        for (uint32_t i = 0; des->routers && i < des->options->routers; i++) {
                kvr_router_free(des->routers[i].brain);
                free(des->routers[i].replicas);
        }
        free(des->routers);
        free(des->points);
        kvr_parser_free(des->parser);
        sim_buf_fini(&des->body);
        for (uint32_t i = 0; i < des->reports.room; i++)
                free(des->reports.ring[i]);
        free(des->reports.ring);
}

/* Token ids as the engines' events have them. */
static void fill_ids(const struct sim__des *des, const struct sim_trace_row *row, const uint64_t *ids)
{
        uint32_t block = des->trace->block_tokens;

        for (uint32_t i = 0; i < row->id_count && (uint64_t)i * block < KVR_PROMPT_IDS_MAX; i++) {
                uint32_t at = i * block, left = row->input_tokens - at, room = KVR_PROMPT_IDS_MAX - at;

                left = left < room ? left : room;
                sim__des_block_tokens(sim__des_key(ids[i]), left < block ? left : block,
                                      des->prompt_ids + at);
        }
}

/* A point at every block's end; with more blocks than a prompt may have points, at every second one, ... */
static void prompt_make(struct sim__des *des, uint32_t number, struct kvr_prompt *ret)
{
        const struct sim_trace_row *row = &des->trace->rows[number];
        const uint64_t *ids = sim_trace_ids(des->trace, number);
        uint32_t block = des->trace->block_tokens, stride = (row->id_count - 1) / KVR_POINTS_MAX + 1;
        uint32_t count = 0;

        for (uint32_t i = stride - 1; i < row->id_count; i += stride) {
                uint64_t end = (uint64_t)(i + 1) * block;

                des->points[count++] = (struct kvr_point){
                        .key = sim__des_key(ids[i]),
                        .end = end < row->input_tokens ? (uint32_t)end : row->input_tokens,
                };
        }
        if (des->prompt_ids)
                fill_ids(des, row, ids);
        *ret = (struct kvr_prompt){
                .api = KVR_API_COMPLETIONS,
                .unit = KVR_UNIT_TOKENS,
                .units = row->input_tokens,
                .ids = des->prompt_ids,
                .id_count = !des->prompt_ids                         ? 0
                            : row->input_tokens < KVR_PROMPT_IDS_MAX ? row->input_tokens
                                                                     : KVR_PROMPT_IDS_MAX,
                .mappable = true,
                .point_count = count,
                .points = des->points,
                .space = SPACE,
                .max_tokens = row->output_tokens,
                .prompt_count = 1,
                .choices = 1,
                .stream = true,
                .usage_asked = true,
        };
}

static void add_number(struct sim_buf *buf, uint32_t number)
{
        char digits[10], *at = digits + sizeof(digits);

        do
                *--at = (char)('0' + number % 10);
        while (number /= 10);
        sim_buf_add(buf, at, (size_t)(digits + sizeof(digits) - at));
}

/* The same prompt as a body of token ids, read by the parser. */
static bool prompt_parse(struct sim__des *des, uint32_t number, struct kvr_prompt *ret)
{
        const struct sim_trace_row *row = &des->trace->rows[number];
        const uint64_t *ids = sim_trace_ids(des->trace, number);
        uint32_t block = des->trace->block_tokens;
        struct kvr_prompt_options options = {.seed = des->options->seed};
        struct sim_buf *body = &des->body;
        struct kvr_error error = {0};

        sim_buf_reset(body);
        sim_buf_printf(body, "{\"model\":\"" MODEL "\",\"max_tokens\":%u,\"stream\":true,\"prompt\":",
                       row->output_tokens);
        for (uint32_t i = 0; i < row->input_tokens; i++) {
                sim_buf_add(body, i ? "," : "[", 1);
                add_number(body, (uint32_t)(ids[i / block] * block + i % block) & INT32_MAX);
        }
        sim_buf_puts(body, "]}");
        if (body->failed)
                return sim__des_no_memory(des);
        if (kvr_prompt_parse(des->parser, KVR_API_COMPLETIONS, sim_buf_slice(body), &options, ret, &error) ==
            KVR_OK)
                return true;
        snprintf(des->message, des->message_size, "%s", error.message);
        return false;
}

static uint32_t number_of(const struct sim__des *des, const struct sim__des_router *router,
                          kvr_replica_id replica)
{
        uint32_t i = 0;

        while (i + 1 < des->options->replicas && router->replicas[i] != replica)
                i++;
        return i;
}

bool sim__des_brain_choose(struct sim__des *des, struct sim__des_request *request)
{
        uint32_t number = request->row % des->options->routers;
        struct sim__des_router *router = &des->routers[number];
        const struct sim_trace_row *row = &des->trace->rows[request->row];
        struct kvr_prompt prompt;
        struct kvr_request ask = {.prompt = &prompt};
        struct kvr_decision decision;
        struct kvr_error error = {0};
        enum kvr_status status;
        char session[16];

        if (!des->options->token_ids) {
                prompt_make(des, request->row, &prompt);
        } else if (prompt_parse(des, request->row, &prompt)) {
                ask.model = prompt.model;
        } else {
                return false;
        }
        if (des->options->sessions && row->session) {
                int len = snprintf(session, sizeof(session), "s%u", row->session);

                ask.affinity = (struct kvr_slice){session, (size_t)len};
        }
        for (; ask.tried_count < request->tried_count; ask.tried_count++)
                ask.tried[ask.tried_count] = router->replicas[request->tried[ask.tried_count]];
        if (des->oracle && !sim__des_oracle_tell(des, number, request->row))
                return sim__des_no_memory(des);
        status = kvr_decide(router->brain, &ask, &decision, &request->ticket, &error);
        if (status == KVR_E_NO_REPLICA) {
                request->replica = SIM__DES_NOWHERE;
                return true;
        }
        if (status != KVR_OK) {
                snprintf(des->message, des->message_size, "%s", error.message);
                return false;
        }
        request->replica = number_of(des, router, decision.replica);
        request->predicted = decision.match_tokens;
        return true;
}

void sim__des_brain_settle(const struct sim__des *des, struct sim__des_request *request, enum kvr_end end)
{
        const struct sim_trace_row *row = &des->trace->rows[request->row];
        struct kvr_outcome outcome = {
                .end = end, .prompt_tokens = -1, .cached_tokens = -1, .completion_tokens = -1};

        if (end == KVR_END_FINISHED)
                outcome = (struct kvr_outcome){
                        .end = end,
                        .prompt_tokens = row->input_tokens,
                        .cached_tokens = request->cached,
                        .completion_tokens = row->output_tokens,
                };
        kvr_ticket_settle(request->ticket, &outcome, NULL);
        request->ticket = NULL;
}

void sim__des_brain_change(const struct sim__des *des, uint32_t replica, bool up)
{
        for (uint32_t i = 0; i < des->options->routers; i++) {
                const struct sim__des_router *router = &des->routers[i];

                if (up)
                        (void)kvr_replica_forget(router->brain, router->replicas[replica]);
                (void)kvr_replica_set_state(router->brain, router->replicas[replica],
                                            up ? KVR_READY : KVR_DOWN);
        }
}

/* ---- load reports ------------------------------------------------------------------------------------- */

static uint64_t delay_ns(const struct sim__des *des)
{
        return (uint64_t)(des->options->report_delay_s * 1e9 + 0.5);
}

static struct sim__des_report *reports_add(struct sim__des *des)
{
        struct sim__des_reports *reports = &des->reports;
        uint32_t most = (uint32_t)(des->options->report_delay_s / des->options->report_s) + 2;
        struct sim__des_report **place;

        if (!reports->ring) {
                reports->ring = calloc(most, sizeof(*reports->ring));
                reports->room = reports->ring ? most : 0;
        }
        if (reports->count >= reports->room)
                return NULL;
        place = &reports->ring[(reports->head + reports->count) % reports->room];
        if (!*place)
                *place = malloc(sizeof(**place) + des->options->replicas * sizeof((*place)->of[0]));
        reports->count += *place != NULL;
        return *place;
}

bool sim__des_brain_measure(struct sim__des *des)
{
        struct sim__des_report *report = reports_add(des);

        if (!report)
                return false;
        report->at_ns = des->now_ns;
        for (uint32_t i = 0; i < des->options->replicas; i++)
                report->of[i] = (struct sim__des_load){
                        .running = sim_engine_running(des->engines[i]),
                        .waiting = sim_engine_waiting(des->engines[i]),
                        /* A llama.cpp server does not tell. */
                        .usage = des->options->slots ? (double)NAN : sim_engine_usage(des->engines[i]),
                };
        return true;
}

uint64_t sim__des_brain_report_ns(const struct sim__des *des)
{
        const struct sim__des_reports *reports = &des->reports;

        return reports->count ? reports->ring[reports->head]->at_ns + delay_ns(des) : SIM_NEVER;
}

void sim__des_brain_report(struct sim__des *des)
{
        struct sim__des_reports *reports = &des->reports;
        const struct sim__des_report *measured = reports->ring[reports->head];

        reports->head = (reports->head + 1) % reports->room;
        reports->count--;
        for (uint32_t i = 0; i < des->options->replicas; i++) {
                const struct sim__des_load *load = &measured->of[i];
                /* What vLLM's metrics have; the tokens that wait are not among them. */
                struct kvr_load_report report = {
                        .at_ns = measured->at_ns,
                        .running = load->running,
                        .waiting = load->waiting,
                        .kv_usage = load->usage,
                        .waiting_tokens = (double)NAN,
                };

                for (uint32_t at = 0; at < des->options->routers; at++)
                        (void)kvr_replica_report(des->routers[at].brain, des->routers[at].replicas[i],
                                                 &report);
        }
}
