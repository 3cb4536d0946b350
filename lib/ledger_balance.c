/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger_balance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define P95 0.95

struct moments {
        double n, sum, squares, max;
};

static struct moments moments_of(const uint64_t *figures, const uint64_t *seen)
{
        struct moments moments = {0};

        for (uint32_t word = 0; word < KVR__SLOT_WORDS; word++)
                for (uint64_t bits = seen[word]; bits; bits &= bits - 1) {
                        double figure = (double)figures[word * 64 + (uint32_t)__builtin_ctzll(bits)];

                        moments.n++;
                        moments.sum += figure;
                        moments.squares += figure * figure;
                        moments.max = fmax(moments.max, figure);
                }
        return moments;
}

static double max_mean(const struct moments *moments)
{
        return moments->sum > 0 ? moments->max * moments->n / moments->sum : NAN;
}

static void window_end(struct kvr__balance *balance)
{
        struct moments requests = moments_of(balance->window_requests, balance->window_seen);
        struct moments tokens = moments_of(balance->window_tokens, balance->window_seen);

        if (requests.n > 0 && requests.sum >= KVR__BALANCE_REQUESTS * requests.n) {
                uint32_t at = (uint32_t)(balance->window % KVR__BALANCE_WINDOWS);

                balance->ended[at].stamp = balance->window + 1;
                balance->ended[at].requests = (float)max_mean(&requests);
                balance->ended[at].tokens = (float)max_mean(&tokens);
        }
        for (uint32_t word = 0; word < KVR__SLOT_WORDS; word++) {
                if (!balance->window_seen[word])
                        continue;
                memset(&balance->window_requests[word * 64], 0, 64 * sizeof(uint64_t));
                memset(&balance->window_tokens[word * 64], 0, 64 * sizeof(uint64_t));
                balance->window_seen[word] = 0;
        }
}

static void window_move(struct kvr__balance *balance, uint64_t now_ns)
{
        uint64_t window = now_ns / KVR__BALANCE_NS;

        if (window <= balance->window)
                return;
        window_end(balance);
        balance->window = window;
}

void kvr__balance_book(struct kvr__balance *balance, uint32_t slot, uint64_t tokens,
                       const uint64_t *candidates, uint64_t now_ns)
{
        window_move(balance, now_ns);
        for (uint32_t word = 0; word < KVR__SLOT_WORDS; word++) {
                balance->seen[word] |= candidates[word];
                balance->window_seen[word] |= candidates[word];
        }
        balance->requests[slot]++;
        balance->tokens[slot] += tokens;
        balance->window_requests[slot]++;
        balance->window_tokens[slot] += tokens;
}

void kvr__balance_clear(struct kvr__balance *balance, uint32_t slot)
{
        balance->requests[slot] = balance->tokens[slot] = 0;
        balance->window_requests[slot] = balance->window_tokens[slot] = 0;
        balance->seen[slot / 64] &= ~(1ULL << slot % 64);
        balance->window_seen[slot / 64] &= ~(1ULL << slot % 64);
}

static int float_compare(const void *a, const void *b)
{
        float x = *(const float *)a, y = *(const float *)b;

        return x < y ? -1 : x > y;
}

static double p95(float *figures, uint32_t count)
{
        if (!count)
                return NAN;
        qsort(figures, count, sizeof(*figures), float_compare);
        /* The least one that 95 % are not above. */
        return (double)figures[(uint32_t)ceil(P95 * count) - 1];
}

static struct kvr_ledger_spread spread_of(const struct moments *moments)
{
        struct kvr_ledger_spread spread = {NAN, NAN, NAN, NAN};

        if (moments->sum <= 0)
                return spread;
        double mean = moments->sum / moments->n;
        double variance = moments->squares / moments->n - mean * mean;

        spread.max_mean = max_mean(moments);
        spread.cv = variance > 0 ? sqrt(variance) / mean : 0;
        spread.jain = moments->sum * moments->sum / (moments->n * moments->squares);
        return spread;
}

void kvr__balance_read(struct kvr__balance *balance, uint64_t now_ns, struct kvr_ledger_balance *ret)
{
        float requests[KVR__BALANCE_WINDOWS], tokens[KVR__BALANCE_WINDOWS];
        uint32_t count = 0, count_tokens = 0;

        window_move(balance, now_ns);
        for (uint32_t i = 0; i < KVR__BALANCE_WINDOWS; i++) {
                if (!balance->ended[i].stamp ||
                    balance->ended[i].stamp + KVR__BALANCE_WINDOWS <= balance->window)
                        continue;
                requests[count++] = balance->ended[i].requests;
                if (!isnan(balance->ended[i].tokens))
                        tokens[count_tokens++] = balance->ended[i].tokens;
        }
        struct moments by_requests = moments_of(balance->requests, balance->seen);
        struct moments by_tokens = moments_of(balance->tokens, balance->seen);

        *ret = (struct kvr_ledger_balance){
                .replicas = (uint32_t)by_requests.n,
                .windows = count,
                .requests = spread_of(&by_requests),
                .computed_tokens = spread_of(&by_tokens),
        };
        ret->requests.p95_max_mean = p95(requests, count);
        ret->computed_tokens.p95_max_mean = p95(tokens, count_tokens);
}
