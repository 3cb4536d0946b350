/* SPDX-License-Identifier: Apache-2.0 */
/* Engines' events on their way into the block index: whose lanes are whose. */
#include "kvroute/events.h"

#include <stdlib.h>

#include "router_int.h"

#define PLACE_OF(id)  ((uint32_t)((id)&0xffff)) /* see kvr__fleet_add */
#define SOURCES_FIRST 16U
#define NOTICED_NS    30000000000ULL /* what events said of a loss is the same that the host finds out by then */

const char *kvr_canary_name(enum kvr_canary canary)
{
        switch (canary) {
#define CANARY_CASE(code, name) \
        case code:              \
                return name;
                KVR_CANARY_LIST(CANARY_CASE)
#undef CANARY_CASE
        }
        return "unknown";
}

/* ---- life ---- */

void kvr__events_free(struct kvr__events *events)
{
        if (!events)
                return;
        while (events->looks) {
                struct kvr__look *look = events->looks;

                events->looks = look->next_free;
                kvr__look_free(look);
        }
        kvr__blocks_free(events->blocks);
        kvr__token_map_free(events->map);
        free(events->sources);
        pthread_mutex_destroy(&events->lock);
        pthread_mutex_destroy(&events->learn_lock);
        free(events);
}

static struct kvr__events *events_new(const struct kvr_router *router)
{
        struct kvr__events *events = calloc(1, sizeof(*events));

        if (!events)
                return NULL;
        if (pthread_mutex_init(&events->lock, NULL)) {
                free(events);
                return NULL;
        }
        if (pthread_mutex_init(&events->learn_lock, NULL)) {
                pthread_mutex_destroy(&events->lock);
                free(events);
                return NULL;
        }
        events->blocks = kvr__blocks_new(router->block_memory_bytes, router->env.random64(router->env.ctx));
        events->map = kvr__token_map_new(router->token_map_bytes);
        if (events->blocks && events->map)
                return events;
        kvr__events_free(events);
        return NULL;
}

struct kvr__events *kvr__events_of(const struct kvr_router *router)
{
        return atomic_load_explicit(&router->events, memory_order_acquire);
}

static struct kvr__events *events_make(struct kvr_router *router)
{
        struct kvr__events *events = kvr__events_of(router), *other = NULL;

        if (events)
                return events;
        events = events_new(router);
        if (events && !atomic_compare_exchange_strong_explicit(&router->events, &other, events,
                                                               memory_order_acq_rel, memory_order_acquire)) {
                kvr__events_free(events);
                return other;
        }
        return events;
}

/* ---- sizes ---- */

static void size_leave(struct kvr__events *events, struct kvr__event_source *source)
{
        if (source->size == KVR__NO_SIZE)
                return;
        struct kvr__event_size *size = &events->sizes[source->size];
        uint16_t lane = source->lanes[KVR_TIER_GPU];

        atomic_fetch_and_explicit(&size->lanes[lane / 64], ~(1ULL << lane % 64), memory_order_acq_rel);
        if (--size->users == 0)
                atomic_store_explicit(&size->block_tokens, 0, memory_order_release);
        source->size = KVR__NO_SIZE;
}

/* Puts the source's GPU lane with those that have blocks of its size. */
static void size_enter(struct kvr__events *events, struct kvr__event_source *source)
{
        uint16_t lane = source->lanes[KVR_TIER_GPU];
        struct kvr__event_size *size = NULL;

        for (uint8_t i = 0; source->block_tokens && i < KVR__EVENT_SIZES; i++) {
                struct kvr__event_size *one = &events->sizes[i];

                if (one->users &&
                    atomic_load_explicit(&one->block_tokens, memory_order_relaxed) != source->block_tokens)
                        continue;
                /* One that is in use already comes before a free one. */
                if (!size || one->users) {
                        size = one;
                        source->size = i;
                }
                if (one->users)
                        break;
        }
        if (!size)
                return;
        size->users++;
        atomic_store_explicit(&size->block_tokens, source->block_tokens, memory_order_release);
        if (atomic_load_explicit(&size->words, memory_order_relaxed) < lane / 64 + 1U)
                atomic_store_explicit(&size->words, lane / 64 + 1U, memory_order_release);
        atomic_fetch_or_explicit(&size->lanes[lane / 64], 1ULL << lane % 64, memory_order_acq_rel);
}

/* ---- sources; with the writers' lock ---- */

static void lane_counted(struct kvr__events *events, uint16_t lane)
{
        uint64_t held = kvr__blocks_lane_count(events->blocks, lane);

        atomic_store_explicit(&events->held[lane], held < UINT32_MAX ? (uint32_t)held : UINT32_MAX,
                              memory_order_relaxed);
}

/* A blank lane; when none is left the debt of closed ones is paid now. */
static uint16_t lane_open(struct kvr__events *events)
{
        uint16_t lane;

        if (!kvr__blocks_lane_open(events->blocks, &lane)) {
                kvr__blocks_reclaim(events->blocks, UINT32_MAX);
                if (!kvr__blocks_lane_open(events->blocks, &lane))
                        return KVR__NO_LANE;
        }
        atomic_store_explicit(&events->lower[lane], (uint32_t)KVR__NO_LANE << 16 | KVR__NO_LANE,
                              memory_order_release);
        atomic_store_explicit(&events->held[lane], 0, memory_order_relaxed);
        kvr__unknown_open(events, lane);
        return lane;
}

static void lanes_close(struct kvr__events *events, struct kvr__event_source *source)
{
        size_leave(events, source);
        for (int tier = 0; tier < KVR_TIERS; tier++) {
                if (source->lanes[tier] != KVR__NO_LANE)
                        kvr__blocks_lane_close(events->blocks, source->lanes[tier]);
                source->lanes[tier] = KVR__NO_LANE;
        }
}

static struct kvr__event_source *source_find(struct kvr__events *events, kvr_replica_id id)
{
        uint32_t place = PLACE_OF(id);

        return place < events->source_room && events->sources[place].id == id && id ? &events->sources[place]
                                                                                    : NULL;
}

static bool sources_extend(struct kvr__events *events, uint32_t place)
{
        uint32_t room = events->source_room ? events->source_room : SOURCES_FIRST;

        if (place < events->source_room)
                return true;
        while (room <= place)
                room *= 2;
        struct kvr__event_source *sources = realloc(events->sources, room * sizeof(*sources));

        if (!sources)
                return false;
        for (uint32_t i = events->source_room; i < room; i++)
                sources[i] = (struct kvr__event_source){0};
        events->sources = sources;
        events->source_room = room;
        return true;
}

/* Tells the fleet where the replica's blocks are; false when it has gone. */
static bool source_tell(struct kvr_router *router, const struct kvr__event_source *source)
{
        kvr__router_lock(router);
        struct kvr__replica *replica = kvr__fleet_find(&router->fleet, source->id);

        if (replica) {
                if (replica->event_lane == KVR__NO_LANE)
                        kvr__young_open(router, replica);
                replica->event_lane = source->lanes[KVR_TIER_GPU];
                replica->event_size = source->size;
                replica->event_block_tokens = source->block_tokens;
        }
        kvr__router_unlock(router);
        return replica != NULL;
}

static enum kvr_status source_open(struct kvr_router *router, struct kvr__events *events, kvr_replica_id id,
                                   struct kvr__event_source **ret)
{
        struct kvr__event_source *source = source_find(events, id);

        if (source) {
                *ret = source;
                return KVR_OK;
        }
        kvr__router_lock(router);
        const struct kvr__replica *replica = kvr__fleet_find(&router->fleet, id);
        uint32_t block_tokens = replica ? replica->block_tokens : 0;

        kvr__router_unlock(router);
        if (!replica)
                return KVR_E_NOT_FOUND;
        if (!sources_extend(events, PLACE_OF(id)))
                return KVR_E_NOMEM;
        source = &events->sources[PLACE_OF(id)];
        /* Its forerunner at this place is gone and only not cleared away yet. */
        if (source->id)
                lanes_close(events, source);
        *source = (struct kvr__event_source){
                .id = id,
                .lanes = {lane_open(events), KVR__NO_LANE, KVR__NO_LANE},
                .block_tokens = block_tokens,
                .size = KVR__NO_SIZE,
        };
        if (source->lanes[KVR_TIER_GPU] == KVR__NO_LANE) {
                source->id = 0;
                return KVR_E_NOMEM;
        }
        size_enter(events, source);
        if (!source_tell(router, source)) {
                lanes_close(events, source);
                source->id = 0;
                return KVR_E_NOT_FOUND;
        }
        *ret = source;
        return KVR_OK;
}

/* ---- the host's say ---- */

static void trust_set(struct kvr__events *events, struct kvr__replica *replica, bool trusted)
{
        if (replica->events_trusted == trusted)
                return;
        replica->events_trusted = trusted;
        atomic_fetch_add_explicit(&events->trusted, trusted ? 1U : UINT32_MAX, memory_order_acq_rel);
        /* What it said before it was lost, or until then, is no evidence any more. */
        kvr__canary_reset(replica);
}

enum kvr_status kvr_events_trust(struct kvr_router *router, kvr_replica_id id, bool trusted)
{
        struct kvr__events *events = events_make(router);
        struct kvr__event_source *source;

        if (!events)
                return KVR_E_NOMEM;
        pthread_mutex_lock(&events->lock);
        enum kvr_status status = source_open(router, events, id, &source);

        if (status == KVR_OK) {
                kvr__router_lock(router);
                struct kvr__replica *replica = kvr__fleet_find(&router->fleet, id);

                if (replica)
                        trust_set(events, replica, trusted);
                else
                        status = KVR_E_NOT_FOUND;
                kvr__router_unlock(router);
        }
        pthread_mutex_unlock(&events->lock);
        return status;
}

void kvr__events_untrust(struct kvr_router *router, struct kvr__replica *replica)
{
        struct kvr__events *events = kvr__events_of(router);

        if (events)
                trust_set(events, replica, false);
        kvr__young_close(router, replica);
        replica->event_lane = KVR__NO_LANE;
        replica->event_size = KVR__NO_SIZE;
        replica->event_block_tokens = 0;
}

uint64_t kvr__events_held(const struct kvr_router *router, const struct kvr__replica *replica)
{
        struct kvr__events *events = kvr__events_of(router);
        uint16_t lane = replica->event_lane;

        if (!events || lane == KVR__NO_LANE)
                return 0;
        uint32_t lower = atomic_load_explicit(&events->lower[lane], memory_order_acquire);
        uint16_t lanes[KVR_TIERS] = {lane, (uint16_t)lower, (uint16_t)(lower >> 16)};
        uint64_t held = 0;

        for (int i = 0; i < KVR_TIERS; i++)
                if (lanes[i] != KVR__NO_LANE)
                        held += atomic_load_explicit(&events->held[lanes[i]], memory_order_relaxed);
        return held;
}

void kvr__events_leave(struct kvr_router *router, kvr_replica_id id)
{
        struct kvr__events *events = kvr__events_of(router);

        if (!events)
                return;
        pthread_mutex_lock(&events->lock);
        struct kvr__event_source *source = source_find(events, id);

        if (source) {
                lanes_close(events, source);
                source->id = 0;
        }
        pthread_mutex_unlock(&events->lock);
}

void kvr_events_stop(struct kvr_router *router, kvr_replica_id id)
{
        struct kvr__events *events = kvr__events_of(router);

        if (!events)
                return;
        kvr__router_lock(router);
        struct kvr__replica *replica = kvr__fleet_find(&router->fleet, id);

        if (replica)
                kvr__events_untrust(router, replica);
        kvr__router_unlock(router);
        kvr__events_leave(router, id);
}

/* ---- events ---- */

static void size_learn(struct kvr_router *router, struct kvr__events *events,
                       struct kvr__event_source *source, uint32_t block_tokens)
{
        size_leave(events, source);
        source->block_tokens = block_tokens;
        size_enter(events, source);
        (void)source_tell(router, source);
}

void kvr__events_size(struct kvr_router *router, kvr_replica_id id, uint32_t block_tokens)
{
        struct kvr__events *events = kvr__events_of(router);

        if (!events || !block_tokens)
                return;
        pthread_mutex_lock(&events->lock);
        struct kvr__event_source *source = source_find(events, id);

        if (source && !source->size_seen && source->block_tokens != block_tokens)
                size_learn(router, events, source, block_tokens);
        pthread_mutex_unlock(&events->lock);
}

/* The lane of a tier below the GPU is opened when something is first said of it. */
static uint16_t tier_open(struct kvr__events *events, struct kvr__event_source *source, enum kvr_tier tier)
{
        if (source->lanes[tier] == KVR__NO_LANE) {
                source->lanes[tier] = lane_open(events);
                atomic_store_explicit(&events->lower[source->lanes[KVR_TIER_GPU]],
                                      (uint32_t)source->lanes[KVR_TIER_DISK] << 16 |
                                              source->lanes[KVR_TIER_CPU],
                                      memory_order_release);
        }
        return source->lanes[tier];
}

static enum kvr_status stored_check(const struct kvr_blocks_stored *blocks)
{
        if (blocks->count > KVR_EVENT_BLOCKS_MAX)
                return KVR_E_LIMIT;
        if (!blocks->block_tokens || blocks->block_tokens > KVR_BLOCK_TOKENS_MAX ||
            (uint64_t)blocks->count * blocks->block_tokens != blocks->token_count ||
            (unsigned)blocks->tier >= KVR_TIERS)
                return KVR_E_ARGUMENT;
        return KVR_OK;
}

enum kvr_status kvr_events_stored(struct kvr_router *router, kvr_replica_id id,
                                  const struct kvr_blocks_stored *blocks, struct kvr_events_account *account)
{
        struct kvr__events *events = events_make(router);
        struct kvr_events_account unasked = {0};
        struct kvr__event_source *source;
        enum kvr_status status = stored_check(blocks);

        if (status != KVR_OK)
                return status;
        if (!events)
                return KVR_E_NOMEM;
        account = account ? account : &unasked;
        pthread_mutex_lock(&events->lock);
        status = source_open(router, events, id, &source);
        if (status == KVR_OK && blocks->count) {
                uint16_t lane = tier_open(events, source, blocks->tier);

                if (blocks->tier == KVR_TIER_GPU && blocks->block_tokens != source->block_tokens)
                        size_learn(router, events, source, blocks->block_tokens);
                source->size_seen |= blocks->tier == KVR_TIER_GPU;
                if (lane == KVR__NO_LANE) {
                        account->refused += blocks->count;
                } else {
                        uint64_t before = account->orphans;

                        kvr__blocks_store(events->blocks, lane, blocks, account);
                        lane_counted(events, lane);
                        if (blocks->tier == KVR_TIER_GPU)
                                kvr__unknown_add(events, lane, account->orphans - before);
                }
        }
        pthread_mutex_unlock(&events->lock);
        return status;
}

enum kvr_status kvr_events_removed(struct kvr_router *router, kvr_replica_id id, const uint64_t *hashes,
                                   uint32_t count, enum kvr_tier tier, struct kvr_events_account *account)
{
        struct kvr__events *events = events_make(router);
        struct kvr_events_account unasked = {0};
        struct kvr__event_source *source;

        if (count > KVR_EVENT_BLOCKS_MAX)
                return KVR_E_LIMIT;
        if ((unsigned)tier >= KVR_TIERS)
                return KVR_E_ARGUMENT;
        if (!events)
                return KVR_E_NOMEM;
        account = account ? account : &unasked;
        pthread_mutex_lock(&events->lock);
        enum kvr_status status = source_open(router, events, id, &source);

        if (status == KVR_OK && source->lanes[tier] == KVR__NO_LANE) {
                account->unknown += count;
        } else if (status == KVR_OK) {
                uint64_t before = account->unknown;

                kvr__blocks_remove(events->blocks, source->lanes[tier], hashes, count, account);
                lane_counted(events, source->lanes[tier]);
                if (tier == KVR_TIER_GPU)
                        kvr__unknown_drop(events, source->lanes[tier], account->unknown - before);
        }
        pthread_mutex_unlock(&events->lock);
        return status;
}

/* Empties the source's lanes; false when no lane is left for what comes. */
static bool source_clear(struct kvr_router *router, struct kvr__events *events,
                         struct kvr__event_source *source)
{
        lanes_close(events, source);
        source->lanes[KVR_TIER_GPU] = lane_open(events);
        if (source->lanes[KVR_TIER_GPU] == KVR__NO_LANE) {
                source->id = 0;
                return false;
        }
        size_enter(events, source);
        return source_tell(router, source);
}

static void replica_void(struct kvr_router *router, struct kvr__replica *replica, bool by_engine)
{
        kvr__canary_reset(replica);
        if (!by_engine)
                return;
        kvr__young_drop(router, replica);
        /* Of one that is not trusted it is not certain that the engine means now. */
        if (replica->events_trusted)
                kvr__router_forget(router, replica);
}

static enum kvr_status events_void(struct kvr_router *router, kvr_replica_id id, bool by_engine,
                                   struct kvr_events_account *account)
{
        struct kvr__events *events = events_make(router);
        struct kvr__event_source *source;
        uint64_t now_ns = kvr__router_now(router);
        uint64_t unknown = 0;

        if (!events)
                return KVR_E_NOMEM;
        pthread_mutex_lock(&events->lock);
        enum kvr_status status = source_open(router, events, id, &source);

        if (status == KVR_OK && !by_engine)
                unknown = kvr__unknown_after_loss(events, source->lanes[KVR_TIER_GPU]);
        if (status == KVR_OK && !source_clear(router, events, source))
                status = KVR_E_NOMEM;
        else if (status == KVR_OK && by_engine)
                source->cleared_ns = now_ns;
        else if (status == KVR_OK)
                kvr__unknown_add(events, source->lanes[KVR_TIER_GPU], unknown);
        kvr__router_lock(router);
        struct kvr__replica *replica = kvr__fleet_find(&router->fleet, id);

        if (!replica)
                status = KVR_E_NOT_FOUND;
        else if (status != KVR_OK)
                kvr__events_untrust(router, replica);
        else
                replica_void(router, replica, by_engine);
        kvr__router_unlock(router);
        pthread_mutex_unlock(&events->lock);
        if (status == KVR_OK && account)
                account->cleared++;
        return status;
}

enum kvr_status kvr_events_cleared(struct kvr_router *router, kvr_replica_id id,
                                   struct kvr_events_account *account)
{
        return events_void(router, id, true, account);
}

enum kvr_status kvr_events_lost(struct kvr_router *router, kvr_replica_id id,
                                struct kvr_events_account *account)
{
        return events_void(router, id, false, account);
}

/*
 * A host that notices a restart late must not throw away what the new process has told since: nobody would tell
 * it again.
 */
void kvr__events_forget(struct kvr_router *router, kvr_replica_id id)
{
        struct kvr__events *events = kvr__events_of(router);
        uint64_t now_ns = kvr__router_now(router);

        if (!events)
                return;
        pthread_mutex_lock(&events->lock);
        struct kvr__event_source *source = source_find(events, id);

        if (source && (!source->cleared_ns || now_ns >= source->cleared_ns + NOTICED_NS))
                (void)source_clear(router, events, source);
        pthread_mutex_unlock(&events->lock);
}

/* ---- figures ---- */

void kvr_router_events_info(struct kvr_router *router, struct kvr_events_info *ret)
{
        struct kvr__events *events = kvr__events_of(router);
        struct kvr__blocks_stats blocks;
        struct kvr__token_map_stats map;

        if (!events) {
                *ret = (struct kvr_events_info){.bytes_max = router->block_memory_bytes,
                                                .map_bytes_max = router->token_map_bytes};
                return;
        }
        pthread_mutex_lock(&events->lock);
        kvr__blocks_stats(events->blocks, &blocks);
        pthread_mutex_unlock(&events->lock);
        kvr__token_map_stats(events->map, &map);
        *ret = (struct kvr_events_info){
                .blocks = blocks.nodes,
                .holders = blocks.holders,
                .bytes = blocks.bytes,
                .bytes_max = blocks.bytes_max,
                .map_points = map.points,
                .map_bytes = map.bytes,
                .map_bytes_max = map.bytes_max,
                .map_hits = atomic_load_explicit(&events->map_hits, memory_order_relaxed),
                .map_misses = atomic_load_explicit(&events->map_misses, memory_order_relaxed),
        };
}
