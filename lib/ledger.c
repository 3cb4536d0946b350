/* SPDX-License-Identifier: Apache-2.0 */
/* Life of the ledger, and booking of one settled ticket. */
#include "ledger_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

#define VIRTUAL_RUNS_MAX (1U << 24)
#define VIRTUAL_RUNS_MIN 1024U
#define CURVE_DEFAULT    (1ULL << 28)
#define CURVE_MIN        (1ULL << 10)
#define CURVE_MAX        (1ULL << 32)
#define PAUSE_CALM_S     10
#define BLOCK_NOMINAL    16 /* tokens, of replicas that do not tell */

/* ---- life ---- */

static bool parts_make(struct kvr_ledger *ledger, const struct kvr_ledger_settings *settings)
{
        uint64_t tokens = settings->curve_tokens ? settings->curve_tokens : CURVE_DEFAULT;
        uint32_t wish = settings->virtual_runs ? settings->virtual_runs : KVR_LEDGER_VIRTUAL_RUNS;
        uint32_t runs = VIRTUAL_RUNS_MIN;

        while (runs < wish)
                runs *= 2;
        ledger->bytes = sizeof(*ledger) + sizeof(*ledger->stack);
        ledger->pause.rate_max = settings->detail_rate ? settings->detail_rate : KVR_LEDGER_DETAIL_RATE;
        memcpy(ledger->all.name, "all", 3);
        memcpy(ledger->others.name, "(other)", 7);
        ledger->stack = kvr__stack_new(tokens);
        if (!ledger->stack ||
            !kvr__accounts_init(&ledger->workloads, KVR_LEDGER_WORKLOADS_MAX, &ledger->bytes) ||
            !kvr__accounts_init(&ledger->models, KVR_LEDGER_MODELS_MAX, &ledger->bytes) ||
            !kvr__families_init(&ledger->families, &ledger->bytes))
                return false;
        if (!settings->without_counterfactual)
                ledger->virtuals = kvr__virtuals_new(runs, &ledger->bytes);
        return settings->without_counterfactual || ledger->virtuals;
}

static void parts_free(struct kvr_ledger *ledger)
{
        kvr__accounts_fini(&ledger->workloads);
        kvr__accounts_fini(&ledger->models);
        kvr__families_fini(&ledger->families);
        kvr__virtuals_free(ledger->virtuals);
        free(ledger->stack);
        free(ledger);
}

enum kvr_status kvr_ledger_new(const struct kvr_ledger_settings *settings, struct kvr_ledger **ret,
                               struct kvr_error *err)
{
        const struct kvr_ledger_settings none = {0};
        const struct kvr_ledger_settings *s = settings ? settings : &none;

        if (s->virtual_runs > VIRTUAL_RUNS_MAX)
                return kvr__error_set(err, KVR_E_ARGUMENT, 0, "virtual_runs",
                                      "%u runs of a virtual fleet are more than the limit of %u",
                                      s->virtual_runs, VIRTUAL_RUNS_MAX);
        if (s->curve_tokens && (s->curve_tokens < CURVE_MIN || s->curve_tokens > CURVE_MAX))
                return kvr__error_set(err, KVR_E_ARGUMENT, 0, "curve_tokens",
                                      "the largest cache of the curve must be between 2^10 and 2^32 tokens");
        struct kvr_ledger *ledger = calloc(1, sizeof(*ledger));

        if (!ledger)
                return kvr__error_set(err, KVR_E_NOMEM, 0, NULL, "no memory for a ledger");
        if (!parts_make(ledger, s) || pthread_mutex_init(&ledger->lock, NULL)) {
                parts_free(ledger);
                return kvr__error_set(err, KVR_E_NOMEM, 0, NULL, "no memory for a ledger");
        }
        *ret = ledger;
        return KVR_OK;
}

void kvr_ledger_free(struct kvr_ledger *ledger)
{
        if (!ledger)
                return;
        pthread_mutex_destroy(&ledger->lock);
        parts_free(ledger);
}

uint64_t kvr_ledger_bytes(const struct kvr_ledger *ledger)
{
        return ledger->bytes;
}

/* ---- replicas ---- */

/* A slot nobody had, else the one that was given up longest ago. */
static uint32_t slot_take(struct kvr_ledger *ledger)
{
        uint32_t best = KVR__NO_SLOT_BIT;

        for (uint32_t i = 0; i < KVR_LEDGER_REPLICAS_MAX; i++) {
                if (!ledger->slots[i].id)
                        return i;
                if (!kvr__ledger_present(ledger, i) &&
                    (best == KVR__NO_SLOT_BIT ||
                     ledger->replicas[i].last_ns < ledger->replicas[best].last_ns))
                        best = i;
        }
        if (best == KVR__NO_SLOT_BIT)
                return best;
        kvr__account_fold(&ledger->others, &ledger->replicas[best], ledger->latest_ns);
        kvr__balance_clear(&ledger->balance, best);
        if (ledger->virtuals)
                kvr__virtuals_clear(ledger->virtuals, best);
        memset(&ledger->replicas[best], 0, sizeof(ledger->replicas[best]));
        return best;
}

uint16_t kvr__ledger_replica_add(struct kvr_ledger *ledger, kvr_replica_id id, const char *name,
                                 uint64_t name_hash)
{
        kvr__ledger_lock(ledger);
        uint32_t slot = slot_take(ledger);

        if (slot != KVR__NO_SLOT_BIT) {
                struct kvr__account *account = &ledger->replicas[slot];

                ledger->slots[slot].id = id;
                ledger->present[slot / 64] |= 1ULL << slot % 64;
                memcpy(account->name, name, strnlen(name, sizeof(account->name) - 1));
                if (ledger->virtuals)
                        ledger->virtuals->twins[slot].name_hash = name_hash;
        }
        kvr__ledger_unlock(ledger);
        return (uint16_t)slot;
}

void kvr__ledger_replica_remove(struct kvr_ledger *ledger, kvr_replica_id id, uint16_t slot)
{
        if (slot == KVR__NO_SLOT_BIT)
                return;
        kvr__ledger_lock(ledger);
        if (ledger->slots[slot].id == id) {
                ledger->present[slot / 64] &= ~(1ULL << slot % 64);
                kvr__balance_clear(&ledger->balance, slot);
        }
        kvr__ledger_unlock(ledger);
}

/* ---- booking ---- */

void kvr__ledger_enter(struct kvr_ledger *ledger, uint64_t workload, struct kvr_slice workload_name,
                       uint64_t model, struct kvr_slice model_name, uint64_t now_ns)
{
        kvr__ledger_lock(ledger);
        kvr__accounts_make(&ledger->workloads, workload, workload_name, now_ns);
        kvr__accounts_make(&ledger->models, model, model_name, now_ns);
        kvr__ledger_unlock(ledger);
}

/* The hit account: every token of the prompt is won, or lost for one reason. */
static void tokens_split(const struct kvr__ledger_entry *entry, struct kvr_ledger_sums *sums)
{
        uint64_t prompt = entry->prompt, predicted = entry->predicted;
        uint64_t best = entry->best > predicted ? entry->best : predicted;
        uint64_t won = entry->cached < 0 ? predicted : (uint64_t)entry->cached;
        uint64_t held = predicted > won ? predicted : won;

        sums->won_tokens = won;
        sums->staleness_tokens = held - won;
        sums->placement_tokens = best > held ? best - held : 0;
        sums->workload_tokens = prompt - (best > held ? best : held);
        sums->surplus_tokens = won > predicted ? won - predicted : 0;
}

static void sums_fill(const struct kvr__ledger_entry *entry, struct kvr_ledger_sums *sums)
{
        uint32_t block = entry->twin.block_tokens > 1 ? entry->twin.block_tokens : BLOCK_NOMINAL;
        double token_s = entry->twin.token_s;

        *sums = (struct kvr_ledger_sums){.requests = 1};
        if (!entry->computed)
                return;
        sums->computed = 1;
        sums->prompt_tokens = entry->prompt;
        sums->best_tokens = entry->best > entry->predicted ? entry->best : entry->predicted;
        sums->predicted_tokens = entry->predicted;
        sums->reused_requests = entry->known > 0;
        tokens_split(entry, sums);
        if (entry->cached < 0) {
                sums->unobserved_prompt_tokens = entry->prompt;
                sums->won_unobserved_tokens = sums->won_tokens;
        } else {
                sums->observed = 1;
                sums->observed_tokens = (uint64_t)entry->cached;
                sums->hit_requests = entry->cached > 0;
                sums->prompt_blocks = entry->prompt / block;
                sums->hit_blocks = (uint64_t)entry->cached / block;
        }
        if (token_s > 0)
                sums->avoided_ns = (uint64_t)((double)sums->won_tokens * token_s * 1e9);
        else
                sums->untimed_tokens = sums->won_tokens;
}

/* Whether the costly parts leave this request out. */
static bool pause_takes(struct kvr__pause *pause, uint64_t now_ns)
{
        uint64_t second = now_ns / 1000000000;

        if (second > pause->second) {
                uint64_t silent = second - pause->second - 1;

                pause->calm = pause->count < pause->rate_max / 2 ? pause->calm + 1 : 0;
                pause->calm += silent < PAUSE_CALM_S ? (uint32_t)silent : PAUSE_CALM_S;
                if (pause->calm >= PAUSE_CALM_S)
                        pause->paused = false;
                pause->second = second;
                pause->count = 0;
        }
        if (++pause->count > pause->rate_max)
                pause->paused = true;
        pause->left_out += pause->paused;
        return pause->paused;
}

/* What comes from the points of the prompt. Returns the number of its family. */
static uint32_t points_see(struct kvr_ledger *ledger, const struct kvr__ledger_entry *entry, bool detail,
                           struct kvr__booking *booking)
{
        double tokens_per_unit = (double)entry->prompt / entry->units;
        struct kvr__sighting sighting = {entry->points, entry->point_count, entry->known, tokens_per_unit,
                                         entry->sent_ns};
        struct kvr__sighted sighted;

        kvr__families_see(&ledger->families, &sighting, &sighted);
        booking->reuse_known = sighted.reuse_known;
        booking->reuse_bucket = kvr__log_bucket(sighted.reuse_ns / 1000000);
        if (entry->known)
                booking->shared_bucket =
                        kvr__log_bucket((uint64_t)(entry->points[entry->known - 1].end * tokens_per_unit));
        if (!detail)
                return sighted.family;
        kvr__stack_book(ledger->stack, entry->points, entry->point_count, entry->known, tokens_per_unit,
                        entry->now_ns);
        struct kvr__layout_ask ask = {
                .points = entry->points,
                .count = entry->point_count,
                .known = entry->known,
                .by_tokens = entry->by_tokens,
                .tokens_per_unit = tokens_per_unit,
                .model = entry->model,
                .family = ledger->families.accounts.items[sighted.family].key,
                .now_ns = entry->now_ns,
        };

        kvr__spoilers_see(&ledger->spoilers, &ask);
        return sighted.family;
}

static void virtuals_see(struct kvr_ledger *ledger, const struct kvr__ledger_entry *entry,
                         const uint64_t *candidates)
{
        struct kvr__virtuals *virtuals = ledger->virtuals;
        struct kvr__twin *twin = &virtuals->twins[entry->slot];
        struct kvr__arrival arrival = {
                .points = entry->points,
                .count = entry->point_count,
                .prompt_tokens = entry->prompt,
                .tokens_per_unit = entry->units ? (double)entry->prompt / entry->units : 0,
                .candidates = candidates,
                .turn = entry->turn,
                .at_ns = entry->sent_ns,
                .now_ns = entry->now_ns,
        };

        if (twin->epoch != entry->twin.epoch)
                kvr__virtuals_forget(virtuals, entry->slot);
        *twin = entry->twin;
        if (entry->twin.token_s > 0)
                virtuals->token_s = entry->twin.token_s;
        kvr__virtuals_see(virtuals, &arrival);
}

/* The real fleet's balance and the virtual fleets. */
static void fleets_see(struct kvr_ledger *ledger, const struct kvr__ledger_entry *entry, bool detail,
                       uint64_t won)
{
        uint64_t candidates[KVR__SLOT_WORDS];

        /* Some may have left since it was decided. */
        for (uint32_t i = 0; i < KVR__SLOT_WORDS; i++)
                candidates[i] = entry->candidates[i] & ledger->present[i];
        candidates[entry->slot / 64] |= 1ULL << entry->slot % 64;
        kvr__balance_book(&ledger->balance, entry->slot, entry->prompt - won, candidates, entry->now_ns);
        if (ledger->virtuals && detail)
                virtuals_see(ledger, entry, candidates);
}

void kvr__ledger_prefetch(const struct kvr_ledger *ledger, const struct kvr_point *points, uint32_t count,
                          uint32_t known)
{
        if (count)
                kvr__families_prefetch(&ledger->families, points[count - 1].key);
        if (known)
                kvr__families_prefetch(&ledger->families, points[known - 1].key);
}

void kvr__ledger_book(const struct kvr__ledger_entry *entry)
{
        struct kvr_ledger *ledger = entry->ledger;
        struct kvr__booking booking = {.computed = entry->computed};
        uint32_t family = KVR__ACCOUNT_NONE, slot = entry->slot;
        uint64_t now_ns = entry->now_ns;

        sums_fill(entry, &booking.sums);
        kvr__ledger_lock(ledger);
        ledger->entries++;
        if (now_ns > ledger->latest_ns)
                ledger->latest_ns = now_ns;
        /* A slot may have got another replica while the ticket was out. */
        if (slot != KVR__NO_SLOT_BIT && ledger->slots[slot].id != entry->replica)
                slot = KVR__NO_SLOT_BIT;
        bool detail = !pause_takes(&ledger->pause, now_ns);

        if (entry->computed && entry->point_count)
                family = points_see(ledger, entry, detail, &booking);
        kvr__account_book(&ledger->all, &booking, now_ns);
        kvr__account_book(&ledger->workloads.items[kvr__accounts_find(&ledger->workloads, entry->workload)],
                          &booking, now_ns);
        kvr__account_book(&ledger->families.accounts.items[family], &booking, now_ns);
        kvr__account_book(&ledger->models.items[kvr__accounts_find(&ledger->models, entry->model)], &booking,
                          now_ns);
        kvr__account_book(slot == KVR__NO_SLOT_BIT ? &ledger->others : &ledger->replicas[slot], &booking,
                          now_ns);
        if (slot != KVR__NO_SLOT_BIT && kvr__ledger_present(ledger, slot) && entry->computed)
                fleets_see(ledger, entry, detail, booking.sums.won_tokens);
        kvr__ledger_unlock(ledger);
}
