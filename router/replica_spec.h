/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A replica as the user writes it: URL[,key=value...] on the command line, a map in YAML, JSON in the admin
 * API.
 *
 *     http://10.0.0.11:8000/llm,name=gpu-a,engine=vllm,models=small+large,max-running=64
 */
#ifndef KVROUTE_REPLICA_SPEC_H
#define KVROUTE_REPLICA_SPEC_H

#include "engine/engine.h"
#include "engine/kv_discover.h"

#define REPLICA_HOST_MAX   256
#define REPLICA_PREFIX_MAX 256
#define REPLICA_MODELS_MAX 64
#define REPLICA_SECRET_MAX 4096
#define REPLICA_RANKS_MAX  ENGINE_RANKS_MAX

/* Where its KV cache events come from. */
enum replica_events {
        REPLICA_EVENTS_OFFERED, /* from its own host, if the engine says that it publishes them */
        REPLICA_EVENTS_OFF,
        REPLICA_EVENTS_AUTO, /* the engine is asked, else the rule of ports */
        REPLICA_EVENTS_CONNECT,
        REPLICA_EVENTS_BIND, /* we listen, the engine connects */
        REPLICA_EVENTS_POLL, /* POST /kv_cache_events */
};

/* Same order as the words of --auth. */
enum replica_auth {
        REPLICA_AUTH_AUTO, /* decided by the configuration as a whole: see config_replica_auth */
        REPLICA_AUTH_PASS,
        REPLICA_AUTH_STRIP,
        REPLICA_AUTH_REPLACE, /* by api_key, or else --upstream-key */
};

struct replica_spec {
        char name[KVR_NAME_MAX];         /* default host:port (and prefix) */
        char host[REPLICA_HOST_MAX];     /* without brackets */
        uint16_t port;                   /* default 80 */
        char prefix[REPLICA_PREFIX_MAX]; /* path that goes before every target: "" or "/llm" (no slash at the
                                            end) */
        char authority[REPLICA_HOST_MAX + 8]; /* for the Host field: "10.0.0.11:8000", "[::1]:8000" */
        enum engine_kind engine;              /* ENGINE_AUTO: find out */
        enum replica_auth auth;
        char *api_key; /* owned, as written (config_load resolves env: and file:, the admin API must not);
                          NULL: none */
        uint64_t capacity_tokens; /* 0: told by the engine or learned */
        uint32_t block_tokens;    /* 0: told by the engine */
        uint32_t max_running;     /* requests in flight beyond which it counts as full; 0: no limit */
        uint32_t slots;           /* llama.cpp; 0: told by the engine */
        uint32_t ranks;           /* data-parallel ranks behind the URL, told apart; 1: it is one cache */
        /*
         * One rank of such a URL is a replica of its own (replica_spec_rank): its number, and the name as
         * written. -1 and empty where ranks are not told apart.
         */
        int32_t rank;
        char group[KVR_NAME_MAX];
        enum replica_events events;
        char events_endpoint[ENGINE_KV_ENDPOINT_MAX]; /* CONNECT, BIND; ports of rank 0 */
        char replay_endpoint[ENGINE_KV_ENDPOINT_MAX]; /* empty: none, or as the engine says */
        char events_topic[ENGINE_KV_TOPIC_MAX];       /* empty: all, or as the engine says */
        size_t model_count;                           /* 0: ask the engine */
        char *models[REPLICA_MODELS_MAX];             /* owned */
};

/* The keys that may follow a URL, for help and for suggestions. */
struct replica_key {
        const char *name, *argument, *help;
};
const struct replica_key *replica_keys(size_t *ret_count);

/* All fields at their defaults, nothing owned. */
void replica_spec_init(struct replica_spec *spec);
void replica_spec_fini(struct replica_spec *spec);
KVR_MUST_USE bool replica_spec_copy(const struct replica_spec *from,
                                    struct replica_spec *ret); /* false: no memory */

/*
 * Parsers fill why (bounded, terminated) on failure: one sentence that names the value and the fix, never a
 * secret. Whatever they return, replica_spec_fini is safe and needed.
 */
KVR_MUST_USE bool replica_spec_set_url(struct replica_spec *spec, struct kvr_slice url, char *why,
                                       size_t why_size);
KVR_MUST_USE bool replica_spec_set(struct replica_spec *spec, struct kvr_slice key, struct kvr_slice value,
                                   char *why, size_t why_size);
/* One model more; the key models takes several, separated by +. */
KVR_MUST_USE bool replica_spec_add_model(struct replica_spec *spec, struct kvr_slice model, char *why,
                                         size_t why_size);
/* URL[,key=value...], replica_spec_finish included */
KVR_MUST_USE bool replica_spec_parse(struct replica_spec *spec, struct kvr_slice text, char *why,
                                     size_t why_size);
/* After the last key: gives the name its default and refuses combinations that cannot work. */
KVR_MUST_USE bool replica_spec_finish(struct replica_spec *spec, char *why, size_t why_size);

/*
 * One of the ranks of a finished spec, as a spec of its own: "gpu-a" becomes "gpu-a.dp0", "gpu-a.dp1"... Of a
 * spec with ranks 1 it is a copy. False: the name is too long, or no memory.
 */
KVR_MUST_USE bool replica_spec_rank(const struct replica_spec *from, uint32_t rank, struct replica_spec *ret,
                                    char *why, size_t why_size);

/* Whether two specs say the same (then a reload leaves the replica alone). */
bool replica_spec_equal(const struct replica_spec *a, const struct replica_spec *b);

#endif
