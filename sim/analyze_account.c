/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze_account.h"
#include "replay_int.h"

#include <math.h>
#include <stdlib.h>

#define ZIPF_BLOCKS_MIN 10u
#define ZIPF_BLOCKS_MAX \
        10000u /* of the busiest; the many that were used once more say nothing of the slope */

struct pass {
        const struct sim_replay *replay;
        struct sim_account *account;
        uint32_t *place;                          /* per id: of its last use, from 1; 0: never used */
        uint32_t *id_at;                          /* per place: the id, for making room; may be stale */
        uint32_t *tree;                           /* Fenwick tree: 1 where a place is an id's last use */
        double *used_s;                           /* per id */
        uint32_t *user;                           /* per id: session of the last use */
        uint32_t *hits;                           /* per id */
        uint32_t *matched;                        /* per row, tokens */
        double *session_prompt, *session_matched; /* per session from 1, tokens */
        uint32_t places, next, live;
        struct sim_samples gaps;
};

/* ---- the tree ----------------------------------------------------------------------------------------- */

static void tree_add(struct pass *pass, uint32_t place, uint32_t by)
{
        for (; place <= pass->places; place += place & -place)
                pass->tree[place] += by;
}

/* Last uses at places up to this one. */
static uint32_t tree_sum(const struct pass *pass, uint32_t place)
{
        uint32_t sum = 0;

        for (; place; place -= place & -place)
                sum += pass->tree[place];
        return sum;
}

/* Moves the last uses to the front, in order, and builds the tree anew. */
static void make_room(struct pass *pass)
{
        uint32_t kept = 0;

        for (uint32_t place = 1; place < pass->next; place++) {
                uint32_t id = pass->id_at[place];

                if (pass->place[id] != place)
                        continue;
                pass->place[id] = ++kept;
                pass->id_at[kept] = id;
        }
        for (uint32_t place = 1; place <= pass->places; place++)
                pass->tree[place] = place <= kept;
        for (uint32_t place = 1; place <= pass->places; place++) {
                uint32_t above = place + (place & -place);

                if (above <= pass->places)
                        pass->tree[above] += pass->tree[place];
        }
        pass->next = kept + 1;
}

static void use(struct pass *pass, uint32_t id)
{
        if (pass->place[id])
                tree_add(pass, pass->place[id], UINT32_MAX); /* less one */
        else
                pass->live++;
        pass->place[id] = pass->next;
        pass->id_at[pass->next] = id;
        tree_add(pass, pass->next++, 1);
}

/* ---- one row ------------------------------------------------------------------------------------------ */

/* Tokens of block i; the last block has the rest. */
static double weight(const struct sim_trace *trace, const struct sim_trace_row *row, uint32_t i)
{
        double begin = (double)i * trace->block_tokens,
               end = fmin(begin + trace->block_tokens, row->input_tokens);

        return fmax(end - begin, 0);
}

static void take_hit(struct pass *pass, const struct sim_trace_row *row, uint32_t i, uint32_t id)
{
        struct sim_account *account = pass->account;
        double tokens = weight(pass->replay->trace, row, i), gap_s = row->time_s - pass->used_s[id];
        uint32_t distance = pass->live - tree_sum(pass, pass->place[id] - 1);

        account->curve_tokens[distance] += tokens;
        account->curve_blocks[distance]++;
        account->matched_tokens += tokens;
        account->matched_blocks++;
        if (row->session && row->session == pass->user[id])
                account->in_session_tokens += tokens;
        else
                account->cross_session_tokens += tokens;
        account->gap_bins[sim_account_bin(gap_s)]++;
        sim_samples_add(&pass->gaps, gap_s);
        pass->hits[id]++;
}

static void take_row(struct pass *pass, uint32_t number)
{
        const struct sim_trace *trace = pass->replay->trace;
        const struct sim_trace_row *row = &trace->rows[number];
        const uint32_t *ids = pass->replay->ids + row->first_id;
        struct sim_account *account = pass->account;
        double before = account->matched_tokens;
        uint32_t i = 0;

        if (pass->next + row->id_count > pass->places)
                make_room(pass);
        for (; i < row->id_count && pass->place[ids[i]]; i++)
                take_hit(pass, row, i, ids[i]);
        for (i = row->id_count; i-- > 0;) {
                use(pass, ids[i]);
                pass->used_s[ids[i]] = row->time_s;
                pass->user[ids[i]] = row->session;
        }
        pass->matched[number] = (uint32_t)(account->matched_tokens - before);
        account->matched_requests += pass->matched[number] > 0;
        account->prefix_bins[sim_account_bin(pass->matched[number])]++;
        pass->session_prompt[row->session] += row->input_tokens;
        pass->session_matched[row->session] += account->matched_tokens - before;
        account->prompt_tokens += row->input_tokens;
        account->output_tokens += row->output_tokens;
        account->blocks += row->id_count;
}

/* ---- what is sorted at the end ------------------------------------------------------------------------ */

static int ascending(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

        return (x > y) - (x < y);
}

static int descending(const void *a, const void *b)
{
        return ascending(b, a);
}

static double rank(const uint32_t *sorted, uint32_t count, double p)
{
        uint32_t at = (uint32_t)(p * count);

        return sorted[at < count ? at : count - 1];
}

static void take_lengths(struct pass *pass)
{
        const struct sim_trace *trace = pass->replay->trace;
        struct sim_account *account = pass->account;
        uint32_t count = trace->row_count;
        uint32_t *sorted = pass->matched;

        qsort(sorted, count, sizeof(*sorted), ascending);
        account->matched_p10 = rank(sorted, count, 0.1);
        account->matched_p25 = rank(sorted, count, 0.25);
        account->matched_p50 = rank(sorted, count, 0.5);
        account->matched_p75 = rank(sorted, count, 0.75);
        account->matched_p90 = rank(sorted, count, 0.9);
        account->matched_p99 = rank(sorted, count, 0.99);
        for (uint32_t i = 0; i < count; i++)
                sorted[i] = trace->rows[i].input_tokens;
        qsort(sorted, count, sizeof(*sorted), ascending);
        account->input_mean = account->prompt_tokens / count;
        account->input_p50 = rank(sorted, count, 0.5);
        account->input_p90 = rank(sorted, count, 0.9);
        account->input_p99 = rank(sorted, count, 0.99);
}

/* Least squares through (log rank, log hits) of the busiest blocks; positive when hits fall with the rank. */
static double zipf_of(const uint32_t *hits, uint32_t count)
{
        double n = 0, x = 0, y = 0, xx = 0, xy = 0, spread;

        for (uint32_t i = 0; i < count && i < ZIPF_BLOCKS_MAX && hits[i]; i++) {
                double at = log(i + 1.0), height = log(hits[i]);

                n++;
                x += at;
                y += height;
                xx += at * at;
                xy += at * height;
        }
        spread = n * xx - x * x;
        return n >= ZIPF_BLOCKS_MIN && spread > 0 ? -(n * xy - x * y) / spread : (double)NAN;
}

static void take_top(struct pass *pass)
{
        struct sim_account *account = pass->account;
        uint32_t count = pass->replay->distinct;
        double sum = 0;

        qsort(pass->hits, count, sizeof(*pass->hits), descending);
        for (uint32_t i = 0, at = 0, next = 1; at < SIM_ACCOUNT_TOP; i++) {
                sum += i < count ? pass->hits[i] : 0;
                if (i + 1 < next)
                        continue;
                account->top_share[at++] =
                        account->matched_blocks > 0 ? sum / account->matched_blocks : (double)NAN;
                next *= 10;
        }
        account->zipf = zipf_of(pass->hits, count);
}

/* Every session counts the same, however long. Sessions outside the stretch of time have no rows. */
static void take_sessions(struct pass *pass)
{
        uint32_t count = pass->replay->trace->session_count, seen = 0;
        double sum = 0;

        for (uint32_t i = 1; i <= count; i++) {
                if (pass->session_prompt[i] <= 0)
                        continue;
                sum += pass->session_matched[i] / pass->session_prompt[i];
                seen++;
        }
        pass->account->sessions = seen;
        pass->account->session_hit = seen ? sum / seen : (double)NAN;
}

/* ---- all of it ---------------------------------------------------------------------------------------- */

static bool pass_init(struct pass *pass)
{
        const struct sim_replay *replay = pass->replay;
        uint32_t distinct = replay->distinct, rows = replay->trace->row_count;
        struct sim_account *account = pass->account;

        /* Room for at least as many uses as there are ids before the tree is built anew. */
        pass->places = 2 * distinct + replay->longest + 1;
        pass->next = 1;
        pass->place = calloc(distinct, sizeof(*pass->place));
        pass->id_at = calloc(pass->places + 1u, sizeof(*pass->id_at));
        pass->tree = calloc(pass->places + 1u, sizeof(*pass->tree));
        pass->used_s = calloc(distinct, sizeof(*pass->used_s));
        pass->user = calloc(distinct, sizeof(*pass->user));
        pass->hits = calloc(distinct, sizeof(*pass->hits));
        pass->matched = calloc(rows, sizeof(*pass->matched));
        pass->session_prompt = calloc(replay->trace->session_count + 1u, sizeof(*pass->session_prompt));
        pass->session_matched = calloc(replay->trace->session_count + 1u, sizeof(*pass->session_matched));
        account->curve_tokens = calloc(distinct + 1u, sizeof(*account->curve_tokens));
        account->curve_blocks = calloc(distinct + 1u, sizeof(*account->curve_blocks));
        account->curve_count = distinct + 1;
        return pass->session_prompt && pass->session_matched && pass->place && pass->id_at && pass->tree &&
               pass->used_s && pass->user && pass->hits && pass->matched && account->curve_tokens &&
               account->curve_blocks;
}

static void pass_fini(struct pass *pass)
{
        free(pass->place);
        free(pass->id_at);
        free(pass->tree);
        free(pass->used_s);
        free(pass->user);
        free(pass->hits);
        free(pass->matched);
        free(pass->session_prompt);
        free(pass->session_matched);
        sim_samples_fini(&pass->gaps);
}

bool sim_account_make(const struct sim_replay *replay, struct sim_account *ret)
{
        const struct sim_trace *trace = replay->trace;
        struct sim_account account = {
                .requests = trace->row_count,
                .distinct_blocks = replay->distinct,
                .span_s = trace->rows[trace->row_count - 1].time_s - trace->rows[0].time_s,
        };
        struct pass pass = {.replay = replay, .account = &account};

        if (!pass_init(&pass)) {
                pass_fini(&pass);
                sim_account_fini(&account);
                return false;
        }
        for (uint32_t row = 0; row < trace->row_count; row++)
                take_row(&pass, row);
        for (uint32_t i = 1; i < account.curve_count; i++) {
                account.curve_tokens[i] += account.curve_tokens[i - 1];
                account.curve_blocks[i] += account.curve_blocks[i - 1];
        }
        take_sessions(&pass);
        if (account.sessions <= 0)
                account.in_session_tokens = account.cross_session_tokens = (double)NAN;
        account.gap_p50_s = sim_samples_percentile(&pass.gaps, 0.5);
        account.gap_p90_s = sim_samples_percentile(&pass.gaps, 0.9);
        take_lengths(&pass);
        take_top(&pass);
        pass_fini(&pass);
        *ret = account;
        return true;
}

void sim_account_fini(struct sim_account *account)
{
        free(account->curve_tokens);
        free(account->curve_blocks);
        account->curve_tokens = account->curve_blocks = NULL;
}

static double curve_at(const struct sim_account *account, const double *curve, uint64_t capacity_blocks)
{
        uint64_t last = account->curve_count - 1;

        return curve[capacity_blocks < last ? capacity_blocks : last];
}

uint32_t sim_account_bin(double figure)
{
        uint64_t whole = figure >= 1 ? (uint64_t)figure : 0;
        uint32_t bin = 0;

        for (; whole && bin + 1 < SIM_ACCOUNT_BINS; whole >>= 1)
                bin++;
        return bin;
}

double sim_account_token_hit(const struct sim_account *account, uint64_t capacity_blocks)
{
        return curve_at(account, account->curve_tokens, capacity_blocks) / account->prompt_tokens;
}

double sim_account_block_hit(const struct sim_account *account, uint64_t capacity_blocks)
{
        return curve_at(account, account->curve_blocks, capacity_blocks) / account->blocks;
}
