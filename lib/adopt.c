/* SPDX-License-Identifier: Apache-2.0 */
/* What one router has learned, taken over by another that sees no answers. */
#include <stdlib.h>

#include "router_int.h"

struct lesson {
        uint64_t name_hash;
        uint64_t model;
        struct kvr__speed speed;
        double capacity; /* learned; 0: told, or unknown */
};

struct lessons {
        struct kvr__model *models;
        struct lesson *replicas;
        uint32_t model_count, replica_count, replica_room;
};

static void replicas_note(const struct kvr_router *from, struct lessons *lessons)
{
        for (uint32_t i = 0; i < from->fleet.count && i < lessons->replica_room; i++) {
                const struct kvr__replica *replica = from->fleet.order[i];

                lessons->replicas[lessons->replica_count++] = (struct lesson){
                        .name_hash = replica->name_hash,
                        .model = replica->model,
                        .speed = replica->speed,
                        .capacity = replica->capacity_learned ? replica->capacity : 0,
                };
        }
}

/* The two locks are never held together, so that two routers may adopt from each other. */
static bool lessons_take(struct kvr_router *from, struct lessons *ret)
{
        struct lessons lessons = {.models = malloc(KVR__MODELS * sizeof(*lessons.models))};

        kvr__router_lock(from);
        lessons.replica_room = from->fleet.count;
        kvr__router_unlock(from);
        lessons.replicas = malloc((lessons.replica_room + 1) * sizeof(*lessons.replicas));
        if (!lessons.models || !lessons.replicas) {
                free(lessons.models);
                free(lessons.replicas);
                return false;
        }
        kvr__router_lock(from);
        for (uint32_t i = 0; i < KVR__MODELS; i++)
                if (from->models.places[i].key)
                        lessons.models[lessons.model_count++] = from->models.places[i];
        replicas_note(from, &lessons);
        kvr__router_unlock(from);
        *ret = lessons;
        return true;
}

static void model_adopt(struct kvr_router *router, const struct kvr__model *theirs)
{
        struct kvr__model *model = kvr__models_get(&router->models, theirs->key);

        model->answer_yield = theirs->answer_yield;
        model->curve = theirs->curve;
        if (theirs->units > 0) {
                model->tokens = theirs->tokens;
                model->units = theirs->units;
        }
}

/* Two fleets that are told of the same replicas have them in the same order: then `place` is right at once. */
static struct kvr__replica *replica_named(const struct kvr_router *router, uint64_t name_hash, uint32_t place)
{
        if (place < router->fleet.count && router->fleet.order[place]->name_hash == name_hash)
                return router->fleet.order[place];
        for (uint32_t i = 0; i < router->fleet.count; i++)
                if (router->fleet.order[i]->name_hash == name_hash)
                        return router->fleet.order[i];
        return NULL;
}

static void replica_adopt(struct kvr_router *router, const struct lesson *lesson, uint32_t place)
{
        struct kvr__replica *replica = replica_named(router, lesson->name_hash, place);

        if (!replica)
                return;
        replica->speed = lesson->speed;
        replica->model = lesson->model;
        if (lesson->capacity > 0 && !replica->slots) {
                replica->capacity = lesson->capacity;
                replica->capacity_learned = true;
        }
}

enum kvr_status kvr_router_adopt(struct kvr_router *router, struct kvr_router *from)
{
        struct lessons lessons;

        if (!lessons_take(from, &lessons))
                return KVR_E_NOMEM;
        kvr__router_lock(router);
        for (uint32_t i = 0; i < lessons.model_count; i++)
                model_adopt(router, &lessons.models[i]);
        for (uint32_t i = 0; i < lessons.replica_count; i++)
                replica_adopt(router, &lessons.replicas[i], i);
        kvr__router_unlock(router);
        free(lessons.models);
        free(lessons.replicas);
        return KVR_OK;
}
