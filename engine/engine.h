/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each inference engine says and wants: one row of traits and a few parsers per engine, one file per
 * engine. No I/O, no clock: the caller fetches pages and hands the bytes in. Everything here is constant or
 * on the caller's memory; any thread.
 *
 *   detect.h  base URL -> kind       models.h  /v1/models       paths.h  what a public listener must not
 * forward usage.h   tokens from an answer  this file: traits, health, load
 */
#ifndef KVROUTE_ENGINE_H
#define KVROUTE_ENGINE_H

#include <kvroute/base.h>
#include <kvroute/router.h>

enum engine_kind {
        ENGINE_AUTO, /* not known yet: find out (detect.h) */
        ENGINE_VLLM,
        ENGINE_SGLANG,
        ENGINE_LLAMACPP,
        ENGINE_TRTLLM,
        ENGINE_TGI,
        ENGINE_LMDEPLOY,
        ENGINE_OLLAMA,
        ENGINE_OPENAI, /* anything else that speaks OpenAI's API */
        ENGINE_KIND_COUNT
};

/* "auto", "vllm", "sglang", "llamacpp", "trtllm", "tgi", "lmdeploy", "ollama", "openai". Never NULL. */
const char *engine_kind_name(enum engine_kind kind);
/* False for an unknown name. */
bool engine_kind_parse(struct kvr_slice name, enum engine_kind *ret_kind);

/* ---- health ----------------------------------------------------------------------------------------- */

#define ENGINE_HEALTH_PATHS_MAX 3

enum engine_health {
        ENGINE_HEALTH_READY,    /* send requests */
        ENGINE_HEALTH_LOADING,  /* alive, not serving yet: 503 while a model loads. Ask again, no alarm */
        ENGINE_HEALTH_DRAINING, /* alive, finishing what it has: send nothing new (SGLang after SIGTERM) */
        ENGINE_HEALTH_DOWN,     /* says itself that it is broken, or answers nonsense */
        ENGINE_HEALTH_NEXT,     /* this path does not exist there: use the next of health_paths */
};

/* ---- load ------------------------------------------------------------------------------------------- */

#define ENGINE_POLLS_MAX 6
#define ENGINE_RANKS_MAX 64

/*
 * One page to poll. Paths of one group are alternatives in order: keep to the first that answers 200; on 404,
 * 405 or 501 go to the next; when a group has none left that works, its figures stay unknown (say so once,
 * visibly).
 */
struct engine_poll {
        const char *path;        /* below the replica's base URL */
        uint8_t group;           /* 0, 1, ...; every group is polled */
        uint8_t every;           /* each so many metrics intervals; 0: once after detection or restart */
        uint32_t body_bytes_max; /* larger answers are not worth reading */
};

/* What an engine said. Every figure is -1 when unknown, which is not 0. */
struct engine_rank_load {
        int rank;               /* data-parallel rank; -1: the engine names none */
        double running;         /* requests in the batch */
        double waiting;         /* requests queued inside */
        double kv_usage;        /* referenced share of the cache, 0..1 (idle but full caches say 0) */
        double waiting_tokens;  /* uncached prompt tokens queued inside */
        double capacity_tokens; /* what the KV cache of this rank holds */
};

struct engine_load {
        struct engine_rank_load sum; /* over the ranks (kv_usage: their mean); rank is -1 */
        struct engine_rank_load ranks[ENGINE_RANKS_MAX]; /* only where the page tells them apart */
        uint32_t rank_count;
        double block_tokens;    /* tokens per cache block (page); 1: token granularity */
        double max_running;     /* requests the engine batches at most */
        double slots;           /* llama.cpp: parallel sequences */
        double n_ctx;           /* longest sequence (llama.cpp: per slot; others max_model_len where told) */
        double prefix_caching;  /* 1 on, 0 off */
        double cache_report;    /* 1: answers tell cached tokens, 0: they do not (only SGLang tells) */
        double sleeping;        /* 1: weights or cache given up for a while, do not send */
        double measured_unix_s; /* when the engine took the figures, by its own clock */
};

/* All unknown. */
void engine_load_init(struct engine_load *load);

/* ---- traits ----------------------------------------------------------------------------------------- */

/* Whether answers of one API tell how many prompt tokens came from the cache. */
enum engine_report {
        ENGINE_REPORT_NEVER, /* a number there means nothing: unknown */
        ENGINE_REPORT_FLAG,  /* by a flag of the engine: absent is unknown until it is known to be on, then 0
                              */
        ENGINE_REPORT_FLAG_ZERO, /* by a flag, without it the answer says 0: unknown until it is known to be
                                    on */
        ENGINE_REPORT_ALWAYS,    /* by every answer; absent (an older version, a cut stream) is unknown */
        ENGINE_REPORT_GUESS,     /* unknown engine: a number is believed, absent is unknown */
};

struct engine_traits {
        enum engine_kind kind;
        const char *name;  /* as engine_kind_name */
        const char *title; /* for people: "vLLM" */
        enum kvr_cache_kind cache;
        uint32_t block_tokens_default; /* until told; 0 unknown */
        uint32_t idle_close_s; /* the engine closes idle connections after; 0: not known. Pool for less */
        uint32_t requests_per_connection; /* it closes after so many; 0: no limit known */
        bool closes_after_stream;         /* although it advertises keep-alive */
        bool rejects_unknown_fields;      /* add nothing to a body */
        bool any_model;                   /* serves any model name as its own: check names in the router */
        bool prefill_survives_close;      /* a client that leaves during prefill does not stop it */
        bool head_before_prefill;  /* the 200 of a stream comes before the first token: no proof of life */
        uint32_t slots_default;    /* of KVR_CACHE_SLOTS, until told; 0 elsewhere */
        const char *rank_header;   /* request header that pins a data-parallel rank, or NULL */
        enum engine_report report; /* chat, completions, messages and the engine's own API */
        enum engine_report report_responses;               /* /v1/responses */
        const char *health_paths[ENGINE_HEALTH_PATHS_MAX]; /* in order of preference, NULL ends */
        struct engine_poll polls[ENGINE_POLLS_MAX];        /* path NULL ends */
        /*
         * Judges an answer to health_paths[i]; status 0: no answer came (connection error, time-out).
         * Use engine_judge_health, which handles what all engines share.
         */
        enum engine_health (*judge_health)(const char *path, unsigned status, struct kvr_slice body);
        /* Use engine_parse_load. */
        bool (*parse_load)(const char *path, struct kvr_slice body, struct engine_load *load);
        const char *notes; /* one paragraph for docs/engines.md readers: what to switch on in the engine */
};

/* The row of a kind. ENGINE_AUTO gives the one of ENGINE_OPENAI. Never NULL. */
const struct engine_traits *engine_traits(enum engine_kind kind);

/* Judges one answer to path (one of the kind's health_paths). */
enum engine_health engine_judge_health(enum engine_kind kind, const char *path, unsigned status,
                                       struct kvr_slice body);
const char *engine_health_name(enum engine_health health);

/*
 * Reads one polled page (answered with 200) into *load: figures that the page tells are replaced, others
 * left. Returns false, with *load unchanged, if the page has nothing that is understood. Body is borrowed,
 * any bytes are safe.
 */
bool engine_parse_load(enum engine_kind kind, const char *path, struct kvr_slice body,
                       struct engine_load *load);

#endif
