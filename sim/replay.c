/* SPDX-License-Identifier: Apache-2.0 */
#include "replay.h"
#include "replay_int.h"
#include "rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_SLOTS 4096u

/* ---- numbering ---------------------------------------------------------------------------------------- */

/* Numbers for ids: open addressing, at most half full; a free slot has number 0. */
struct numbers {
        uint64_t *ids;
        uint32_t *numbers;
        uint32_t mask, count;
};

static bool numbers_grow(struct numbers *table)
{
        uint32_t size = table->ids ? (table->mask + 1) * 2 : FIRST_SLOTS;
        struct numbers grown = {
                .ids = malloc(size * sizeof(*grown.ids)),
                .numbers = calloc(size, sizeof(*grown.numbers)),
                .mask = size - 1,
                .count = table->count,
        };

        if (!grown.ids || !grown.numbers) {
                free(grown.ids);
                free(grown.numbers);
                return false;
        }
        for (uint32_t i = 0; table->ids && i <= table->mask; i++) {
                uint32_t at = (uint32_t)sim_mix64(table->ids[i]) & grown.mask;

                if (!table->numbers[i])
                        continue;
                while (grown.numbers[at])
                        at = (at + 1) & grown.mask;
                grown.ids[at] = table->ids[i];
                grown.numbers[at] = table->numbers[i];
        }
        free(table->ids);
        free(table->numbers);
        *table = grown;
        return true;
}

/* From 1; 0: out of memory. */
static uint32_t number_of(struct numbers *table, uint64_t id)
{
        uint32_t at;

        if ((!table->ids || table->count >= table->mask / 2) && !numbers_grow(table))
                return 0;
        for (at = (uint32_t)sim_mix64(id) & table->mask; table->numbers[at]; at = (at + 1) & table->mask) {
                if (table->ids[at] == id)
                        return table->numbers[at];
        }
        table->ids[at] = id;
        table->numbers[at] = ++table->count;
        return table->count;
}

static bool number_all(struct sim_replay *replay)
{
        const struct sim_trace *trace = replay->trace;
        struct numbers table = {0};
        bool good = true;

        for (uint32_t row = 0; row < trace->row_count && good; row++) {
                const uint64_t *ids = sim_trace_ids(trace, row);
                uint32_t *numbered = replay->ids + trace->rows[row].first_id;

                for (uint32_t i = 0; i < trace->rows[row].id_count && good; i++) {
                        uint32_t number = number_of(&table, ids[i]);

                        good = number != 0;
                        numbered[i] = number - 1;
                }
                if (trace->rows[row].id_count > replay->longest)
                        replay->longest = trace->rows[row].id_count;
        }
        replay->distinct = table.count;
        free(table.ids);
        free(table.numbers);
        return good;
}

struct sim_replay *sim_replay_new(const struct sim_trace *trace)
{
        struct sim_replay *replay = calloc(1, sizeof(*replay));

        if (!replay)
                return NULL;
        replay->trace = trace;
        replay->ids = malloc((trace->id_count ? trace->id_count : 1) * sizeof(*replay->ids));
        if (!replay->ids || !number_all(replay)) {
                sim_replay_free(replay);
                return NULL;
        }
        return replay;
}

void sim_replay_free(struct sim_replay *replay)
{
        if (!replay)
                return;
        free(replay->ids);
        free(replay);
}

uint32_t sim_replay_distinct(const struct sim_replay *replay)
{
        return replay->distinct;
}

/* ---- caches ------------------------------------------------------------------------------------------- */

bool sim__replay_caches_init(struct sim__replay_caches *caches, const struct sim_replay *replay,
                             uint32_t replicas, uint32_t capacity)
{
        /* What can never be full needs no order of use. */
        if (capacity >= replay->distinct)
                capacity = 0;
        *caches = (struct sim__replay_caches){
                .replicas = replicas,
                .distinct = replay->distinct,
                .capacity = capacity,
                .log_cap = 4 * capacity + replay->longest,
                .words = (replicas + 63) / 64,
        };
        caches->holders = calloc((size_t)replay->distinct * caches->words, sizeof(*caches->holders));
        caches->logs = calloc(replicas, sizeof(*caches->logs));
        if (!caches->holders || !caches->logs)
                goto failed;
        for (uint32_t i = 0; i < replicas && capacity; i++) {
                caches->logs[i].last = calloc(replay->distinct, sizeof(*caches->logs[i].last));
                caches->logs[i].ids = malloc(caches->log_cap * sizeof(*caches->logs[i].ids));
                if (!caches->logs[i].last || !caches->logs[i].ids)
                        goto failed;
        }
        return true;
failed:
        sim__replay_caches_fini(caches);
        return false;
}

void sim__replay_caches_fini(struct sim__replay_caches *caches)
{
        for (uint32_t i = 0; caches->logs && i < caches->replicas; i++) {
                free(caches->logs[i].ids);
                free(caches->logs[i].last);
        }
        free(caches->logs);
        free(caches->holders);
        *caches = (struct sim__replay_caches){0};
}

/* Moves the touches that count to the front. */
static void log_compact(struct sim__replay_log *log)
{
        uint32_t kept = 0;

        for (uint32_t at = log->tail; at < log->head; at++) {
                uint32_t id = log->ids[at];

                if (log->last[id] != at + 1)
                        continue;
                log->ids[kept] = id;
                log->last[id] = ++kept;
        }
        log->tail = 0;
        log->head = kept;
}

static void touch_unlimited(struct sim__replay_caches *caches, uint32_t replica, const uint32_t *ids,
                            uint32_t count)
{
        struct sim__replay_log *log = &caches->logs[replica];
        uint64_t bit = UINT64_C(1) << (replica % 64);

        for (uint32_t i = 0; i < count; i++) {
                uint64_t *word = &caches->holders[(size_t)ids[i] * caches->words + replica / 64];

                log->count += !(*word & bit);
                *word |= bit;
        }
}

void sim__replay_caches_touch(struct sim__replay_caches *caches, uint32_t replica, const uint32_t *ids,
                              uint32_t count)
{
        struct sim__replay_log *log = &caches->logs[replica];
        uint64_t bit = UINT64_C(1) << (replica % 64), *holders = caches->holders + replica / 64;

        if (!caches->capacity) {
                touch_unlimited(caches, replica, ids, count);
                return;
        }
        if (log->head + count > caches->log_cap)
                log_compact(log);
        for (uint32_t i = count; i-- > 0;) {
                uint32_t id = ids[i];

                if (!log->last[id]) {
                        log->count++;
                        holders[(size_t)id * caches->words] |= bit;
                }
                log->ids[log->head] = id;
                log->last[id] = ++log->head;
        }
        while (log->count > caches->capacity) {
                uint32_t id = log->ids[log->tail++];

                if (log->last[id] != log->tail)
                        continue;
                log->last[id] = 0;
                holders[(size_t)id * caches->words] &= ~bit;
                log->count--;
                caches->dropped++;
        }
}

uint64_t sim__replay_caches_resident(const struct sim__replay_caches *caches)
{
        uint64_t sum = 0;

        for (uint32_t i = 0; i < caches->replicas; i++)
                sum += caches->logs[i].count;
        return sum;
}
