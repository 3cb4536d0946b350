/* SPDX-License-Identifier: Apache-2.0 */
#include "fleet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PLACE_BITS    16
#define PLACES_MAX    (2 * KVR_REPLICAS_MAX) /* removed ones with running tickets included */
#define PLACES_FIRST  16
#define WORK_S        60.0  /* recent work fades with this time constant */
#define WORK_REBASE_S 600.0 /* before exp() gets large */

void kvr__fleet_init(struct kvr__fleet *fleet)
{
        *fleet = (struct kvr__fleet){0};
}

void kvr__fleet_fini(struct kvr__fleet *fleet)
{
        for (uint32_t i = 0; i < fleet->place_count; i++)
                kvr__replica_free(fleet->places[i]);
        free(fleet->places);
        free(fleet->order);
        *fleet = (struct kvr__fleet){0};
}

static enum kvr_status fleet_extend(struct kvr__fleet *fleet)
{
        uint32_t count = fleet->place_count ? fleet->place_count * 2 : PLACES_FIRST;

        if (count > PLACES_MAX)
                return KVR_E_LIMIT;
        struct kvr__replica **places = realloc(fleet->places, count * sizeof(struct kvr__replica *));

        if (!places)
                return KVR_E_NOMEM;
        fleet->places = places;
        struct kvr__replica **order = realloc(fleet->order, count * sizeof(struct kvr__replica *));

        if (!order)
                return KVR_E_NOMEM;
        fleet->order = order;
        for (uint32_t i = fleet->place_count; i < count; i++)
                places[i] = NULL;
        fleet->place_count = count;
        fleet->room = count;
        return KVR_OK;
}

enum kvr_status kvr__fleet_add(struct kvr__fleet *fleet, struct kvr__replica *replica)
{
        uint32_t at = 0;

        if (fleet->count == KVR_REPLICAS_MAX)
                return KVR_E_LIMIT;
        while (at < fleet->place_count && fleet->places[at])
                at++;
        if (at == fleet->place_count) {
                enum kvr_status status = fleet_extend(fleet);

                if (status != KVR_OK)
                        return status;
        }
        replica->place = at;
        replica->id = ++fleet->serial << PLACE_BITS | at;
        fleet->places[at] = replica;
        fleet->order[fleet->count++] = replica;
        return KVR_OK;
}

void kvr__fleet_remove(struct kvr__fleet *fleet, struct kvr__replica *replica)
{
        uint32_t at = 0;

        while (fleet->order[at] != replica)
                at++;
        fleet->count--;
        memmove(&fleet->order[at], &fleet->order[at + 1],
                (fleet->count - at) * sizeof(struct kvr__replica *));
        replica->removed = true;
}

void kvr__fleet_release(struct kvr__fleet *fleet, struct kvr__replica *replica)
{
        if (!replica->removed || replica->in_flight)
                return;
        fleet->places[replica->place] = NULL;
        kvr__replica_free(replica);
}

struct kvr__replica *kvr__fleet_find(const struct kvr__fleet *fleet, kvr_replica_id id)
{
        uint32_t at = (uint32_t)(id & ((1U << PLACE_BITS) - 1));
        struct kvr__replica *replica = at < fleet->place_count ? fleet->places[at] : NULL;

        return replica && replica->id == id && !replica->removed ? replica : NULL;
}

struct kvr__replica *kvr__fleet_find_name(const struct kvr__fleet *fleet, const char *name)
{
        for (uint32_t i = 0; i < fleet->count; i++)
                if (strcmp(fleet->order[i]->name, name) == 0)
                        return fleet->order[i];
        return NULL;
}

void kvr__fleet_work(struct kvr__fleet *fleet, struct kvr__replica *replica, double tokens, uint64_t now_ns)
{
        if (!fleet->work_epoch_ns || now_ns < fleet->work_epoch_ns)
                fleet->work_epoch_ns = now_ns;
        double since_s = (double)(now_ns - fleet->work_epoch_ns) / 1e9;

        if (since_s > WORK_REBASE_S) {
                double fade = exp(-since_s / WORK_S);

                for (uint32_t i = 0; i < fleet->count; i++)
                        fleet->order[i]->work *= fade;
                fleet->work_epoch_ns = now_ns;
                since_s = 0;
        }
        replica->work += tokens * exp(since_s / WORK_S);
}

/* ---- one replica ---- */

struct kvr__replica *kvr__replica_new(const char *name)
{
        size_t size = (sizeof(struct kvr__replica) + KVR__LINE - 1) / KVR__LINE * KVR__LINE;
        struct kvr__replica *replica = aligned_alloc(KVR__LINE, size);

        if (!replica)
                return NULL;
        *replica = (struct kvr__replica){0};
        memcpy(replica->name, name, strnlen(name, KVR_NAME_MAX - 1));
        replica->state = KVR_STARTING;
        replica->lane = KVR__NO_LANE;
        replica->event_lane = KVR__NO_LANE;
        replica->event_size = UINT8_MAX;
        replica->young.lanes[0] = replica->young.lanes[1] = KVR__NO_LANE;
        replica->trust = 1;
        replica->error = NAN;
        replica->report = (struct kvr_load_report){0, NAN, NAN, NAN, NAN};
        replica->foreign_waiting = replica->foreign_tokens = replica->foreign_flight = NAN;
        return replica;
}

void kvr__replica_free(struct kvr__replica *replica)
{
        if (!replica)
                return;
        kvr__slots_free(replica->slots);
        free(replica->models);
        free(replica);
}

bool kvr__replica_serves(const struct kvr__replica *replica, uint64_t model)
{
        uint32_t low = 0, high = replica->model_count;

        if (!model || !replica->models)
                return true;
        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (replica->models[middle] < model)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low < replica->model_count && replica->models[low] == model;
}

void kvr__replica_set_state(struct kvr__replica *replica, enum kvr_state state, uint64_t now_ns)
{
        bool was_out = replica->state == KVR_STARTING || replica->state == KVR_DOWN;

        if (was_out && (state == KVR_READY || state == KVR_TRIAL))
                replica->ready_since_ns = now_ns;
        replica->state = state;
}
