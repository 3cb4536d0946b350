/* SPDX-License-Identifier: Apache-2.0 */
#include "kvroute/router.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "error.h"
#include "router_int.h"

#define INDEX_MEMORY_DEFAULT (512ULL << 20)
#define INDEX_MEMORY_MIN     (1ULL << 20)
#define TOKEN_MAP_SHARE      8 /* of the index memory */
#define PREFILL_DEFAULT      8000.0
#define RATIO_DEFAULT        0.25
#define BUSY_HINT_DEFAULT_MS 1000

uint64_t kvr__hash(struct kvr_slice bytes, uint64_t seed)
{
        uint64_t hash = XXH3_64bits_withSeed(bytes.data, bytes.len, seed);

        return hash | !hash;
}

const char *kvr_state_name(enum kvr_state state)
{
        switch (state) {
        case KVR_STARTING:
                return "starting";
        case KVR_READY:
                return "ready";
        case KVR_TRIAL:
                return "trial";
        case KVR_DOWN:
                return "down";
        case KVR_DRAINING:
                return "draining";
        }
        return "unknown";
}

const char *kvr_reason_name(enum kvr_reason reason)
{
        switch (reason) {
#define REASON_CASE(code, name) \
        case code:              \
                return name;
                KVR_REASON_LIST(REASON_CASE)
#undef REASON_CASE
        }
        return "unknown";
}

/* ---- life -----------------------------------------------------------------------------------------------
 */

static enum kvr_status settings_apply(struct kvr_router *router, const struct kvr_settings *settings,
                                      struct kvr_error *err)
{
        const struct kvr_settings none = {0};
        const struct kvr_settings *s = settings ? settings : &none;
        uint64_t memory = s->index_memory_bytes ? s->index_memory_bytes : INDEX_MEMORY_DEFAULT;
        double speed = s->default_prefill_tokens_per_second, ratio = s->default_tokens_per_byte;
        const char *policy = s->policy ? s->policy : kvr_policy_name(0);

        if (memory < INDEX_MEMORY_MIN)
                return kvr__error_set(err, KVR_E_ARGUMENT, 0, "index_memory_bytes",
                                      "%llu bytes of index memory are less than the least of 1 MiB",
                                      (unsigned long long)memory);
        if (!(speed >= 0) || isinf(speed))
                return kvr__error_set(err, KVR_E_ARGUMENT, 0, "default_prefill_tokens_per_second",
                                      "the default prefill speed must be a positive number");
        if (!(ratio >= 0) || isinf(ratio))
                return kvr__error_set(err, KVR_E_ARGUMENT, 0, "default_tokens_per_byte",
                                      "the default of tokens per byte must be a positive number");
        router->policy = kvr__policy_find(policy);
        if (!router->policy)
                return kvr__error_set(err, KVR_E_NOT_FOUND, 0, "policy", "there is no policy named '%.40s'",
                                      policy);
        router->block_memory_bytes = s->block_memory_bytes ? s->block_memory_bytes : memory;
        router->token_map_bytes = s->token_map_bytes ? s->token_map_bytes : memory / TOKEN_MAP_SHARE;
        if (router->block_memory_bytes < INDEX_MEMORY_MIN)
                return kvr__error_set(err, KVR_E_ARGUMENT, 0, "block_memory_bytes",
                                      "%llu bytes for the block index are less than the least of 1 MiB",
                                      (unsigned long long)router->block_memory_bytes);
        if (router->token_map_bytes < KVR__MAP_BYTES_MIN)
                return kvr__error_set(err, KVR_E_ARGUMENT, 0, "token_map_bytes",
                                      "%llu bytes for the token map are less than the least of 64 KiB",
                                      (unsigned long long)router->token_map_bytes);
        router->default_token_s = 1 / (speed > 0 ? speed : PREFILL_DEFAULT);
        router->busy_hint_ns =
                (uint64_t)(s->queue_wait_hint_ms ? s->queue_wait_hint_ms : BUSY_HINT_DEFAULT_MS) * 1000000;
        kvr__models_init(&router->models, ratio > 0 ? ratio : RATIO_DEFAULT);
        router->index = kvr__index_new(memory);
        if (!router->index)
                return kvr__error_set(err, KVR_E_NOMEM, 0, NULL, "no memory for the cache index");
        return KVR_OK;
}

static bool lock_init(pthread_mutex_t *lock)
{
        pthread_mutexattr_t attributes;

        if (pthread_mutexattr_init(&attributes))
                return false;
#ifdef PTHREAD_MUTEX_ADAPTIVE_NP
        /* Held for microseconds: spinning a little is cheaper than sleeping. */
        pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
        bool done = pthread_mutex_init(lock, &attributes) == 0;

        pthread_mutexattr_destroy(&attributes);
        return done;
}

enum kvr_status kvr_router_new(const struct kvr_settings *settings, const struct kvr_env *env,
                               struct kvr_router **ret, struct kvr_error *err)
{
        struct kvr_router *router = calloc(1, sizeof(*router));

        if (!router)
                return kvr__error_set(err, KVR_E_NOMEM, 0, NULL, "no memory for a router");
        router->env = *env;
        kvr__fleet_init(&router->fleet);
        kvr__owners_init(&router->sessions, KVR__OWNERS_MAX);
        kvr__owners_init(&router->responses, KVR__OWNERS_MAX);
        enum kvr_status status = settings_apply(router, settings, err);

        if (status == KVR_OK && !lock_init(&router->lock))
                status = kvr__error_set(err, KVR_E_NOMEM, 0, NULL, "no resources for a lock");
        if (status != KVR_OK) {
                kvr__index_free(router->index);
                free(router);
                return status;
        }
        *ret = router;
        return KVR_OK;
}

void kvr_router_free(struct kvr_router *router)
{
        if (!router)
                return;
        pthread_mutex_destroy(&router->lock);
        kvr__fleet_fini(&router->fleet);
        kvr__index_free(router->index);
        kvr__events_free(kvr__events_of(router));
        kvr__tickets_fini(&router->tickets);
        kvr__owners_fini(&router->sessions);
        kvr__owners_fini(&router->responses);
        free(router->candidates);
        free(router);
}

enum kvr_status kvr_router_set_policy(struct kvr_router *router, const char *name, struct kvr_error *err)
{
        const struct kvr__policy *policy = kvr__policy_find(name);

        if (!policy)
                return kvr__error_set(err, KVR_E_NOT_FOUND, 0, "policy", "there is no policy named '%.40s'",
                                      name);
        kvr__router_lock(router);
        router->policy = policy;
        kvr__router_unlock(router);
        return KVR_OK;
}

/* ---- fleet ----------------------------------------------------------------------------------------------
 */

static enum kvr_status spec_check(const struct kvr_replica_spec *spec, bool with_name, struct kvr_error *err)
{
        if (with_name && (!spec->name || !*spec->name))
                return kvr__error_set(err, KVR_E_ARGUMENT, 0, "name", "a replica needs a name");
        if (with_name && strnlen(spec->name, KVR_NAME_MAX) == KVR_NAME_MAX)
                return kvr__error_set(err, KVR_E_LIMIT, 0, "name",
                                      "the name of a replica is longer than %d bytes", KVR_NAME_MAX - 1);
        if (spec->cache != KVR_CACHE_BLOCKS && spec->cache != KVR_CACHE_SLOTS)
                return kvr__error_set(err, KVR_E_ARGUMENT, 0, "cache", "%d is no kind of cache",
                                      (int)spec->cache);
        if (spec->slots > KVR__SLOTS_MAX)
                return kvr__error_set(err, KVR_E_LIMIT, 0, "slots", "%u slots are more than the limit of %d",
                                      spec->slots, KVR__SLOTS_MAX);
        return KVR_OK;
}

/* Nobody waits for a slot any more, and slots that running tickets have are no longer theirs. */
static void slots_detach(struct kvr__replica *replica)
{
        for (struct kvr_ticket *ticket = replica->deferred_head; ticket; ticket = ticket->next_deferred)
                ticket->deferred = false;
        replica->deferred_head = replica->deferred_tail = NULL;
        kvr__slots_free(replica->slots);
        replica->slots = NULL;
        replica->slots_epoch++;
}

/* Brings the slot model in line with the kind of cache; false when out of memory. */
static bool slots_apply(struct kvr_router *router, struct kvr__replica *replica,
                        const struct kvr_replica_spec *spec)
{
        uint64_t capacity_tokens = spec->capacity_tokens ? spec->capacity_tokens : replica->capacity_told;

        if (spec->cache != KVR_CACHE_SLOTS) {
                slots_detach(replica);
                return true;
        }
        if (!replica->slots || (spec->slots && spec->slots != kvr__slots_count(replica->slots))) {
                struct kvr__slots *slots =
                        kvr__slots_new(kvr__index_budget(router->index), spec->slots, capacity_tokens);

                if (!slots)
                        return false;
                slots_detach(replica);
                replica->slots = slots;
        }
        if (spec->capacity_tokens && spec->capacity_tokens != replica->capacity_told)
                kvr__slots_set_capacity(replica->slots, spec->capacity_tokens);
        return true;
}

static bool spec_apply(struct kvr_router *router, struct kvr__replica *replica,
                       const struct kvr_replica_spec *spec)
{
        if (!slots_apply(router, replica, spec))
                return false;
        replica->cache = spec->cache;
        replica->max_running = spec->max_running;
        if (spec->block_tokens)
                replica->block_tokens = spec->block_tokens;
        if (spec->capacity_tokens && spec->capacity_tokens != replica->capacity_told) {
                replica->capacity_told = spec->capacity_tokens;
                replica->capacity = fmin((double)spec->capacity_tokens, KVR__CAPACITY_MAX);
                replica->capacity_learned = false;
        }
        return true;
}

/* Room for one more candidate than there are replicas. */
static bool candidates_extend(struct kvr_router *router)
{
        if (router->fleet.count < router->candidate_room)
                return true;
        uint32_t room = router->candidate_room ? router->candidate_room * 2 : 16;
        struct kvr__candidate *fresh = realloc(router->candidates, room * sizeof(*fresh));

        if (!fresh)
                return false;
        router->candidates = fresh;
        router->candidate_room = room;
        return true;
}

static enum kvr_status replica_enter(struct kvr_router *router, struct kvr__replica *replica,
                                     const struct kvr_replica_spec *spec)
{
        if (kvr__fleet_find_name(&router->fleet, spec->name))
                return KVR_E_EXISTS;
        if (!candidates_extend(router) || !spec_apply(router, replica, spec))
                return KVR_E_NOMEM;
        if (!kvr__lane_open(router->index, &replica->lane))
                return KVR_E_NOMEM;
        enum kvr_status status = kvr__fleet_add(&router->fleet, replica);

        if (status != KVR_OK)
                kvr__lane_close(router->index, replica->lane);
        else
                kvr__ledger_fleet_add(router, replica);
        return status;
}

enum kvr_status kvr_replica_add(struct kvr_router *router, const struct kvr_replica_spec *spec,
                                kvr_replica_id *ret_id, struct kvr_error *err)
{
        enum kvr_status status = spec_check(spec, true, err);

        if (status != KVR_OK)
                return status;
        struct kvr__replica *replica = kvr__replica_new(spec->name);

        if (!replica)
                return kvr__error_set(err, KVR_E_NOMEM, 0, NULL, "no memory for a replica");
        replica->name_hash = kvr__hash((struct kvr_slice){replica->name, strlen(replica->name)}, 0);
        kvr__router_lock(router);
        status = replica_enter(router, replica, spec);
        if (status != KVR_OK)
                kvr__replica_free(replica);
        else
                *ret_id = replica->id;
        kvr__router_unlock(router);
        if (status == KVR_E_EXISTS)
                return kvr__error_set(err, status, 0, "name", "there is a replica named '%.80s' already",
                                      spec->name);
        if (status == KVR_E_LIMIT)
                return kvr__error_set(err, status, 0, NULL, "more than %d replicas", KVR_REPLICAS_MAX);
        if (status != KVR_OK)
                return kvr__error_set(err, status, 0, NULL, "no memory for a replica");
        return KVR_OK;
}

void kvr__router_forget(struct kvr_router *router, struct kvr__replica *replica)
{
        uint16_t fresh;

        replica->epoch++;
        replica->misses = 0;
        if (replica->slots)
                kvr__slots_clear(replica->slots);
        if (!kvr__lane_pairs(router->index, replica->lane))
                return;
        if (kvr__lane_open(router->index, &fresh)) {
                kvr__lane_close(router->index, replica->lane);
                replica->lane = fresh;
                return;
        }
        /* No lane is left: thousands were forgotten without a decision in between. Pay the debt now. */
        kvr__lane_close(router->index, replica->lane);
        kvr__index_reclaim(router->index, UINT32_MAX);
        if (!kvr__lane_open(router->index, &replica->lane))
                __builtin_trap(); /* at least the one just closed is free */
}

/* Runs `body` with `replica` found under the lock; the value of the function is whether it was. */
#define WITH_REPLICA(router, id, body)                                                \
        do {                                                                          \
                kvr__router_lock(router);                                             \
                struct kvr__replica *replica = kvr__fleet_find(&(router)->fleet, id); \
                if (replica) {                                                        \
                        body;                                                         \
                }                                                                     \
                kvr__router_unlock(router);                                           \
                return replica ? KVR_OK : KVR_E_NOT_FOUND;                            \
        } while (0)

static void replica_leave(struct kvr_router *router, struct kvr__replica *replica)
{
        kvr__ledger_fleet_remove(router, replica);
        kvr__lane_close(router->index, replica->lane);
        kvr__events_untrust(router, replica);
        replica->lane = KVR__NO_LANE;
        replica->epoch++;
        kvr__fleet_remove(&router->fleet, replica);
        kvr__fleet_release(&router->fleet, replica);
}

static enum kvr_status replica_leave_by_id(struct kvr_router *router, kvr_replica_id id)
{
        WITH_REPLICA(router, id, replica_leave(router, replica));
}

enum kvr_status kvr_replica_remove(struct kvr_router *router, kvr_replica_id id)
{
        enum kvr_status status = replica_leave_by_id(router, id);

        /* Events may be on their way into the block index: not with the router's lock. */
        if (status == KVR_OK)
                kvr__events_leave(router, id);
        return status;
}

/* What was measured before may not hold for what has started there now; and who is never asked is never
 * measured. */
static void restart(struct kvr_router *router, struct kvr__replica *replica)
{
        kvr__router_forget(router, replica);
        if (replica->event_lane != KVR__NO_LANE)
                kvr__young_drop(router, replica);
        replica->speed = (struct kvr__speed){0};
        replica->work = 0;
}

static enum kvr_status restart_by_id(struct kvr_router *router, kvr_replica_id id)
{
        WITH_REPLICA(router, id, restart(router, replica));
}

enum kvr_status kvr_replica_forget(struct kvr_router *router, kvr_replica_id id)
{
        enum kvr_status status = restart_by_id(router, id);

        if (status == KVR_OK)
                kvr__events_forget(router, id);
        return status;
}

enum kvr_status kvr_replica_set_state(struct kvr_router *router, kvr_replica_id id, enum kvr_state state)
{
        uint64_t now_ns = kvr__router_now(router);

        WITH_REPLICA(router, id, kvr__replica_set_state(replica, state, now_ns));
}

enum kvr_status kvr_replica_configure(struct kvr_router *router, kvr_replica_id id,
                                      const struct kvr_replica_spec *spec)
{
        enum kvr_status status = spec_check(spec, false, NULL);

        if (status != KVR_OK)
                return status;
        kvr__router_lock(router);
        struct kvr__replica *replica = kvr__fleet_find(&router->fleet, id);

        if (!replica)
                status = KVR_E_NOT_FOUND;
        else if (!spec_apply(router, replica, spec))
                status = KVR_E_NOMEM;
        kvr__router_unlock(router);
        if (status == KVR_OK)
                kvr__events_size(router, id, spec->block_tokens);
        return status;
}

static int hash_compare(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return x < y ? -1 : x > y;
}

enum kvr_status kvr_replica_set_models(struct kvr_router *router, kvr_replica_id id,
                                       const struct kvr_slice *models, size_t count)
{
        uint64_t *hashes = NULL;

        if (count > KVR_MODELS_PER_REPLICA_MAX)
                return KVR_E_LIMIT;
        if (count) {
                hashes = malloc(count * sizeof(*hashes));
                if (!hashes)
                        return KVR_E_NOMEM;
                for (size_t i = 0; i < count; i++)
                        hashes[i] = kvr__hash(models[i], 0);
                qsort(hashes, count, sizeof(*hashes), hash_compare);
        }
        kvr__router_lock(router);
        struct kvr__replica *replica = kvr__fleet_find(&router->fleet, id);
        uint64_t *old = hashes;

        if (replica) {
                old = replica->models;
                replica->models = hashes;
                replica->model_count = (uint32_t)count;
        }
        kvr__router_unlock(router);
        free(old);
        return replica ? KVR_OK : KVR_E_NOT_FOUND;
}

enum kvr_status kvr_replica_pause(struct kvr_router *router, kvr_replica_id id, uint64_t until_ns)
{
        WITH_REPLICA(router, id, replica->paused_until_ns = until_ns);
}

enum kvr_status kvr_replica_report(struct kvr_router *router, kvr_replica_id id,
                                   const struct kvr_load_report *report)
{
        WITH_REPLICA(router, id, kvr__load_report(replica, report));
}

/* ---- status ---------------------------------------------------------------------------------------------
 */

static void info_fill(const struct kvr_router *router, const struct kvr__replica *replica, uint64_t now_ns,
                      struct kvr_replica_info *ret)
{
        const struct kvr__model *model = kvr__models_find(&router->models, replica->model);
        double token_s = model ? kvr__speed_token_s(&model->curve, &replica->speed) : 0;

        *ret = (struct kvr_replica_info){
                .id = replica->id,
                .state = replica->state,
                .cache = replica->cache,
                .in_flight = replica->in_flight,
                .prefilling = replica->prefilling,
                .uncached_tokens_booked = replica->booked_tokens,
                .capacity_tokens = (uint64_t)replica->capacity,
                .capacity_learned = replica->capacity_learned,
                .cached_tokens = replica->slots ? kvr__slots_tokens(replica->slots)
                                                : kvr__lane_tokens(router->index, replica->lane),
                .prefill_tokens_per_second = token_s > 0 ? 1 / token_s : NAN,
                .load = {replica->report.at_ns, NAN, NAN, NAN, NAN},
                .paused_until_ns = replica->paused_until_ns,
                .decisions = replica->decisions,
                .prompt_tokens = replica->prompt_tokens,
                .predicted_tokens = replica->predicted_tokens,
                .observed_tokens = replica->observed_tokens,
                .unobserved_tokens = replica->unobserved_tokens,
                .overpredicted_tokens = replica->overpredicted_tokens,
                .prediction_error = replica->error,
                .trust = replica->trust,
                .resets = replica->resets,
                .events_trusted = replica->events_trusted,
                .event_block_tokens = replica->event_block_tokens,
                .event_blocks = kvr__events_held(router, replica),
                .events_matched = replica->canary.matched,
                .events_missed = replica->canary.missed,
                .canary = replica->canary.verdict,
        };
        if (replica->events_trusted && replica->event_size != KVR__NO_SIZE && !replica->canary.doubted)
                ret->residency = KVR_BY_EVENTS;
        memcpy(ret->name, replica->name, sizeof(ret->name));
        if (kvr__load_report_fresh(replica, now_ns))
                ret->load = replica->report;
}

size_t kvr_router_replicas(struct kvr_router *router, struct kvr_replica_info *ret, size_t max)
{
        uint64_t now_ns = kvr__router_now(router);

        kvr__router_lock(router);
        size_t count = router->fleet.count;

        for (size_t i = 0; i < count && i < max; i++)
                info_fill(router, router->fleet.order[i], now_ns, &ret[i]);
        kvr__router_unlock(router);
        return count;
}

enum kvr_status kvr_replica_info(struct kvr_router *router, kvr_replica_id id, struct kvr_replica_info *ret)
{
        uint64_t now_ns = kvr__router_now(router);

        WITH_REPLICA(router, id, info_fill(router, replica, now_ns, ret));
}

kvr_replica_id kvr_response_owner(struct kvr_router *router, struct kvr_slice response_id)
{
        uint64_t key = kvr__hash(response_id, 0);

        kvr__router_lock(router);
        const struct kvr__owner *owner = response_id.len ? kvr__owners_get(&router->responses, key) : NULL;
        kvr_replica_id id = owner && kvr__fleet_find(&router->fleet, owner->replica) ? owner->replica : 0;

        kvr__router_unlock(router);
        return id;
}

void kvr_router_index_info(struct kvr_router *router, struct kvr_index_info *ret)
{
        struct kvr__index_stats stats;

        kvr__router_lock(router);
        kvr__index_stats(router->index, &stats);
        *ret = (struct kvr_index_info){
                .bytes = stats.bytes,
                .bytes_max = stats.bytes_max,
                .entries = stats.pairs - stats.pairs_closed,
                .evictions = stats.evictions,
                .lookups = router->lookups,
                .lookups_without_match = router->lookups_without_match,
                .partial = router->partial,
        };
        kvr__router_unlock(router);
}

void kvr_router_account(struct kvr_router *router, enum kvr_reason reason, struct kvr_reason_account *ret)
{
        kvr__router_lock(router);
        *ret = (unsigned)reason < KVR__REASONS ? router->accounts[reason] : (struct kvr_reason_account){0};
        kvr__router_unlock(router);
}
