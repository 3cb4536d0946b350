/* SPDX-License-Identifier: Apache-2.0 */
#include "des_rules.h"
#include "des_int.h"
#include "replay_int.h"
#include "rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_MATCH  0.3  /* sglang: share of the prompt from which a match decides */
#define GUARD_APART  64   /* and requests apart ... */
#define GUARD_RATIO  1.5  /* ... by this factor, from which only load decides */
#define BOUND        1.25 /* bounded_hash: of the mean number of requests */
#define WEIGHT_MATCH 3.0  /* llmd: of the three scores */
#define WEIGHT_QUEUE 2.0
#define WEIGHT_USAGE 2.0
#define SCRAPE_NS    UINT64_C(50000000) /* llmd: how old the figures of the engines may be */

#define WINDOW_NS UINT64_C(10000000000) /* preble: work is summed in pieces of so long ... */
#define WINDOWS   18                    /* ... over three minutes */
#define APART     2.0 /* preble: from this ratio of work on the idlest replica relieves the busiest */

/* preble: what was sent within one piece of the last minutes. */
struct window {
        uint64_t number; /* of the piece, from the beginning of time */
        double work_s, prompt_tokens, cached_tokens;
};

struct server {
        struct window windows[WINDOWS]; /* by number modulo WINDOWS */
        uint32_t match;                 /* of the prompt in question, in blocks */
        uint32_t in_flight;             /* requests not finished */
        uint64_t tokens;       /* prompt tokens of those without a first token that had to be computed */
        uint64_t active;       /* dynamo: distinct blocks of the requests in flight */
        double waiting, usage; /* llmd: as last scraped */
};

struct sim__des_rules {
        struct sim__des *des;
        const struct rule *rule;
        struct sim__replay_caches history;
        struct server *servers;
        uint32_t *missing;    /* per row: tokens booked until the first token */
        uint16_t *references; /* dynamo: requests in flight per (replica, id) */
        uint64_t scraped_ns;
        double answers, answer_tokens; /* preble: finished so far */
};

struct rule {
        const char *name, *help;
        uint32_t (*choose)(struct sim__des_rules *rules, uint32_t row);
        bool counts_blocks;
};

static uint32_t replicas_of(const struct sim__des_rules *rules)
{
        return rules->des->options->replicas;
}

static const struct sim_trace_row *row_of(const struct sim__des_rules *rules, uint32_t row)
{
        return &rules->des->trace->rows[row];
}

static uint32_t missing_tokens(const struct sim__des_rules *rules, uint32_t row, uint32_t replica)
{
        uint64_t have = (uint64_t)rules->servers[replica].match * rules->des->trace->block_tokens;
        uint32_t tokens = row_of(rules, row)->input_tokens;

        return have < tokens ? tokens - (uint32_t)have : 1; /* the last token is always computed */
}

/* ---- rules -------------------------------------------------------------------------------------------- */

/* Of equals the first, or any one where the router draws. */
static uint32_t least_of(struct sim__des_rules *rules, const double *figures, bool draw)
{
        uint32_t best = 0, equals = 1;

        for (uint32_t i = 1; i < replicas_of(rules); i++) {
                struct sim_rng rng = {rules->des->random};

                if (figures[i] > figures[best])
                        continue;
                if (figures[i] < figures[best]) {
                        best = i;
                        equals = 1;
                } else if (draw) {
                        if (sim_rng_below(&rng, ++equals) == 0)
                                best = i;
                        rules->des->random = rng.state;
                }
        }
        return best;
}

static uint32_t least_requests(const struct sim__des_rules *rules)
{
        uint32_t best = 0;

        for (uint32_t i = 1; i < replicas_of(rules); i++) {
                if (rules->servers[i].in_flight < rules->servers[best].in_flight)
                        best = i;
        }
        return best;
}

static uint32_t longest_match(const struct sim__des_rules *rules)
{
        uint32_t longest = 0;

        for (uint32_t i = 0; i < replicas_of(rules); i++)
                longest = rules->servers[i].match > longest ? rules->servers[i].match : longest;
        return longest;
}

/* Of those with a match of at least so many blocks the one with the least to compute. */
static uint32_t least_tokens(const struct sim__des_rules *rules, uint32_t least_match)
{
        uint32_t best = replicas_of(rules);

        for (uint32_t i = 0; i < replicas_of(rules); i++) {
                if (rules->servers[i].match >= least_match &&
                    (best == replicas_of(rules) || rules->servers[i].tokens < rules->servers[best].tokens))
                        best = i;
        }
        return best;
}

static uint32_t choose_sglang(struct sim__des_rules *rules, uint32_t row)
{
        uint32_t longest = longest_match(rules), least = least_requests(rules), most = 0, best;

        for (uint32_t i = 0; i < replicas_of(rules); i++)
                most = rules->servers[i].in_flight > most ? rules->servers[i].in_flight : most;
        if (most - rules->servers[least].in_flight > GUARD_APART &&
            most > GUARD_RATIO * rules->servers[least].in_flight)
                return least;
        if (longest <= GUARD_MATCH * row_of(rules, row)->id_count)
                return least;
        for (best = 0; rules->servers[best].match < longest;)
                best++;
        return best;
}

static uint32_t choose_lmetric(struct sim__des_rules *rules, uint32_t row)
{
        double figures[SIM_DES_REPLICAS_MAX];

        for (uint32_t i = 0; i < replicas_of(rules); i++)
                figures[i] = (double)(rules->servers[i].tokens + missing_tokens(rules, row, i)) *
                             (rules->servers[i].in_flight + 1.0);
        return least_of(rules, figures, false);
}

static uint32_t choose_longest_prefix_50(struct sim__des_rules *rules, uint32_t row)
{
        uint32_t longest = longest_match(rules);

        return least_tokens(rules, 2 * (uint64_t)longest >= row_of(rules, row)->id_count ? longest : 0);
}

static uint32_t choose_hash_block2(struct sim__des_rules *rules, uint32_t row)
{
        const uint64_t *ids = sim_trace_ids(rules->des->trace, row);

        return (uint32_t)(sim__des_key(ids[row_of(rules, row)->id_count > 1 ? 1 : 0]) % replicas_of(rules));
}

static uint32_t choose_bounded_hash(struct sim__des_rules *rules, uint32_t row)
{
        uint32_t home = choose_hash_block2(rules, row);
        uint64_t all = 0;
        double bound;

        for (uint32_t i = 0; i < replicas_of(rules); i++)
                all += rules->servers[i].in_flight;
        bound = ceil(BOUND * (double)(all + 1) / replicas_of(rules));
        for (uint32_t i = 0; i < replicas_of(rules); i++) {
                uint32_t at = (home + i) % replicas_of(rules);

                if (rules->servers[at].in_flight + 1.0 <= bound)
                        return at;
        }
        return least_requests(rules);
}

/* Distinct blocks in flight, and prefill in blocks, both as they would be with this request. */
static uint32_t choose_dynamo(struct sim__des_rules *rules, uint32_t row)
{
        const struct sim_trace_row *at = row_of(rules, row);
        const uint32_t *ids = rules->des->options->replay->ids + at->first_id;
        double figures[SIM_DES_REPLICAS_MAX], block = rules->des->trace->block_tokens;

        for (uint32_t i = 0; i < replicas_of(rules); i++) {
                const uint16_t *references = rules->references + (size_t)i * rules->history.distinct;
                uint32_t shared = 0;

                while (shared < at->id_count && references[ids[shared]])
                        shared++;
                figures[i] = (double)(rules->servers[i].active + at->id_count - shared) +
                             (double)(rules->servers[i].tokens + missing_tokens(rules, row, i)) / block;
        }
        return least_of(rules, figures, true);
}

static void scrape(struct sim__des_rules *rules)
{
        struct sim__des *des = rules->des;

        if (rules->scraped_ns && des->now_ns < rules->scraped_ns + SCRAPE_NS)
                return;
        for (uint32_t i = 0; i < replicas_of(rules); i++) {
                rules->servers[i].waiting = sim_engine_waiting(des->engines[i]);
                rules->servers[i].usage = sim_engine_usage(des->engines[i]);
        }
        rules->scraped_ns = des->now_ns;
}

static uint32_t choose_llmd(struct sim__des_rules *rules, uint32_t row)
{
        double figures[SIM_DES_REPLICAS_MAX], most = 0, least = INFINITY;

        scrape(rules);
        for (uint32_t i = 0; i < replicas_of(rules); i++) {
                most = fmax(most, rules->servers[i].waiting);
                least = fmin(least, rules->servers[i].waiting);
        }
        for (uint32_t i = 0; i < replicas_of(rules); i++) {
                const struct server *server = &rules->servers[i];
                double queue = most > least ? (most - server->waiting) / (most - least) : 1;

                figures[i] = -(WEIGHT_MATCH * server->match / row_of(rules, row)->id_count +
                               WEIGHT_QUEUE * queue + WEIGHT_USAGE * (1 - server->usage));
        }
        return least_of(rules, figures, true);
}

static double prefill_s(const struct sim__des_rules *rules, double tokens)
{
        return sim_cost_prefill_ms(&rules->des->options->cost, tokens, 0) * 1e-3;
}

/* Sums over the last minutes. */
static struct window recent(const struct sim__des_rules *rules, uint32_t replica)
{
        uint64_t now = rules->des->now_ns / WINDOW_NS;
        struct window sum = {.number = now};

        for (uint32_t i = 0; i < WINDOWS; i++) {
                const struct window *window = &rules->servers[replica].windows[i];

                if (window->number + WINDOWS <= now)
                        continue;
                sum.work_s += window->work_s;
                sum.prompt_tokens += window->prompt_tokens;
                sum.cached_tokens += window->cached_tokens;
        }
        return sum;
}

/* What has to be dropped for this prompt would have to be computed again as often as prompts hit there. */
static double eviction_s(const struct sim__des_rules *rules, const struct window *sum, uint32_t missing,
                         uint32_t replica)
{
        uint32_t block = rules->des->trace->block_tokens, held = rules->history.logs[replica].count;
        uint64_t after = held + (uint64_t)missing / block;
        double share = sum->prompt_tokens > 0 ? sum->cached_tokens / sum->prompt_tokens : 0;

        if (!rules->history.capacity || after <= rules->history.capacity)
                return 0;
        return share * prefill_s(rules, (double)(after - rules->history.capacity) * block);
}

static uint32_t choose_preble(struct sim__des_rules *rules, uint32_t row)
{
        uint32_t longest = longest_match(rules), busiest = 0, idlest = 0, best = replicas_of(rules);
        double work[SIM_DES_REPLICAS_MAX], figures[SIM_DES_REPLICAS_MAX];

        work[0] = 0;
        for (uint32_t i = 0; i < replicas_of(rules); i++) {
                struct window sum = recent(rules, i);
                uint32_t missing = missing_tokens(rules, row, i);

                work[i] = sum.work_s;
                figures[i] = sum.work_s + prefill_s(rules, missing) + eviction_s(rules, &sum, missing, i);
                busiest = work[i] > work[busiest] ? i : busiest;
                idlest = work[i] < work[idlest] ? i : idlest;
        }
        if (2 * (uint64_t)longest <= row_of(rules, row)->id_count)
                return least_of(rules, figures, false);
        for (uint32_t i = 0; i < replicas_of(rules); i++) {
                if (rules->servers[i].match == longest &&
                    (best == replicas_of(rules) || work[i] < work[best]))
                        best = i;
        }
        return best == busiest && work[busiest] > APART * work[idlest] ? idlest : best;
}

/* Books what was sent to a replica. */
static void recent_add(struct sim__des_rules *rules, const struct sim__des_request *request)
{
        const struct sim_cost *cost = &rules->des->options->cost;
        uint64_t now = rules->des->now_ns / WINDOW_NS;
        struct window *window = &rules->servers[request->replica].windows[now % WINDOWS];
        double answer = rules->answers > 0 ? rules->answer_tokens / rules->answers : 0;
        struct sim_step step = {.decodes = 1};

        if (window->number != now)
                *window = (struct window){.number = now};
        window->work_s += prefill_s(rules, rules->missing[request->row]) +
                          answer * sim_cost_step_ms(cost, &step) * 1e-3;
        window->prompt_tokens += row_of(rules, request->row)->input_tokens;
        window->cached_tokens += request->predicted;
}

static const struct rule table[] = {
#define RULE(rule, function, counts, text) \
        {.name = (rule), .help = (text), .choose = choose_##function, .counts_blocks = (counts)},
        SIM_DES_RULE_LIST(RULE)
#undef RULE
};

#define RULE_COUNT (sizeof(table) / sizeof(table[0]))

static const struct rule *find(const char *name)
{
        for (size_t i = 0; i < RULE_COUNT; i++) {
                if (strcmp(table[i].name, name) == 0)
                        return &table[i];
        }
        return NULL;
}

size_t sim_des_rule_count(void)
{
        return RULE_COUNT;
}

const char *sim_des_rule_name(size_t number)
{
        return number < RULE_COUNT ? table[number].name : NULL;
}

const char *sim_des_rule_help(size_t number)
{
        return number < RULE_COUNT ? table[number].help : NULL;
}

bool sim_des_rule_exists(const char *name)
{
        return find(name) != NULL;
}

/* ---- books -------------------------------------------------------------------------------------------- */

struct sim__des_rules *sim__des_rules_new(struct sim__des *des)
{
        struct sim__des_rules *rules = calloc(1, sizeof(*rules));
        const struct sim_des_options *options = des->options;

        if (!rules)
                return NULL;
        rules->des = des;
        rules->rule = find(options->policy);
        rules->servers = calloc(options->replicas, sizeof(*rules->servers));
        rules->missing = calloc(des->trace->row_count, sizeof(*rules->missing));
        if (rules->rule->counts_blocks)
                rules->references = calloc((size_t)options->replicas * options->replay->distinct,
                                           sizeof(*rules->references));
        if (!rules->servers || !rules->missing || (rules->rule->counts_blocks && !rules->references) ||
            !sim__replay_caches_init(&rules->history, options->replay, options->replicas,
                                     options->capacity_blocks)) {
                sim__des_rules_free(rules);
                return NULL;
        }
        return rules;
}

void sim__des_rules_free(struct sim__des_rules *rules)
{
        if (!rules)
                return;
        if (rules->history.logs)
                sim__replay_caches_fini(&rules->history);
        free(rules->servers);
        free(rules->missing);
        free(rules->references);
        free(rules);
}

static void blocks_count(struct sim__des_rules *rules, const struct sim__des_request *request, bool comes)
{
        const struct sim_trace_row *row = row_of(rules, request->row);
        const uint32_t *ids = rules->des->options->replay->ids + row->first_id;
        uint16_t *references;

        if (!rules->references)
                return;
        references = rules->references + (size_t)request->replica * rules->history.distinct;
        for (uint32_t i = 0; i < row->id_count; i++) {
                uint16_t *at = &references[ids[i]];

                if (comes) {
                        rules->servers[request->replica].active += *at == 0;
                        *at = (uint16_t)(*at + 1);
                } else {
                        *at = (uint16_t)(*at - 1);
                        rules->servers[request->replica].active -= *at == 0;
                }
        }
}

void sim__des_rules_choose(struct sim__des_rules *rules, struct sim__des_request *request)
{
        const struct sim_trace_row *row = row_of(rules, request->row);
        const uint32_t *ids = rules->des->options->replay->ids + row->first_id;
        struct server *server;

        for (uint32_t i = 0; i < replicas_of(rules); i++)
                rules->servers[i].match = sim__replay_match(&rules->history, i, ids, row->id_count);
        request->replica = rules->rule->choose(rules, request->row);
        server = &rules->servers[request->replica];
        rules->missing[request->row] = missing_tokens(rules, request->row, request->replica);
        request->predicted = row->input_tokens - rules->missing[request->row];
        server->tokens += rules->missing[request->row];
        server->in_flight++;
        blocks_count(rules, request, true);
        recent_add(rules, request);
        sim__replay_caches_touch(&rules->history, request->replica, ids, row->id_count);
}

void sim__des_rules_first_token(struct sim__des_rules *rules, const struct sim__des_request *request)
{
        rules->servers[request->replica].tokens -= rules->missing[request->row];
        rules->missing[request->row] = 0;
}

void sim__des_rules_end(struct sim__des_rules *rules, const struct sim__des_request *request)
{
        sim__des_rules_first_token(rules, request);
        rules->servers[request->replica].in_flight--;
        rules->answers++;
        rules->answer_tokens += row_of(rules, request->row)->output_tokens;
        blocks_count(rules, request, false);
}
