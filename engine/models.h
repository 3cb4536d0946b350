/* SPDX-License-Identifier: Apache-2.0 */
/* Model lists: what /v1/models of one replica says, and the union that the router answers. Any thread;
 * immutable. */
#ifndef KVROUTE_ENGINE_MODELS_H
#define KVROUTE_ENGINE_MODELS_H

#include <kvroute/base.h>
#include <kvroute/router.h>

#define ENGINE_MODELS_BODY_MAX (4 * 1024 * 1024) /* larger answers are refused */
#define ENGINE_MODELS_MAX      KVR_MODELS_PER_REPLICA_MAX

struct engine_model {
        struct kvr_slice id; /* what clients write; 1 .. KVR_NAME_MAX - 1 bytes (longer ones are left out) */
        struct kvr_slice root;   /* path or name behind it; may be empty */
        struct kvr_slice parent; /* base model of an adapter; may be empty */
        int64_t max_model_len;   /* -1 unknown */
};

struct engine_models {
        size_t count;
        size_t left_out; /* entries without a usable id, duplicates, and those over ENGINE_MODELS_MAX */
        struct engine_model items[ENGINE_MODELS_MAX];
        void *doc; /* private: what the slices point into */
};

/*
 * Reads an answer to GET /v1/models (borrowed). Gives a list to free with engine_models_free. An empty list
 * is fine. KVR_E_JSON not JSON; KVR_E_REQUEST not a model list; KVR_E_LIMIT over ENGINE_MODELS_BODY_MAX;
 * KVR_E_NOMEM
 */
KVR_MUST_USE enum kvr_status engine_models_parse(struct kvr_slice body, struct engine_models **ret,
                                                 struct kvr_error *err);
void engine_models_free(struct engine_models *models); /* NULL is fine */
/* NULL when it is not in the list. */
const struct engine_model *engine_models_find(const struct engine_models *models, struct kvr_slice id);

/* A configured second name of a model. */
struct engine_alias {
        struct kvr_slice name, target;
};

/*
 * The union in OpenAI's form: entries keep their members as the engine sent them, the first list that has an
 * id wins, each alias whose target is in the union is added as a copy of the target's entry with its own id
 * (unless a model has that name). NULL lists are skipped. Gives JSON text to free() (terminated, *ret_len
 * without the terminator).
 */
KVR_MUST_USE enum kvr_status engine_models_merge(const struct engine_models *const *lists, size_t list_count,
                                                 const struct engine_alias *aliases, size_t alias_count,
                                                 char **ret_json, size_t *ret_len);

#endif
