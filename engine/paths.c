/* SPDX-License-Identifier: Apache-2.0 */
#include "paths.h"

#include <string.h>

#define DECODE_ROUNDS 3 /* a proxy and an engine may each undo one layer of percent encoding */

enum {
        ANY = 1,    /* every method */
        CHANGE = 2, /* every method but GET, HEAD and OPTIONS */
        CLEARS = 4, /* the cache is empty afterwards */
};

/* A * at the end of a name stands for any continuation. Without a leading slash; /v1 and other prefixes are
 * ignored. */
static const struct {
        const char *name;
        unsigned flags;
} rules[] = {
        /* vLLM */
        {"reset_prefix_cache", ANY | CLEARS},
        {"reset_mm_cache", ANY},
        {"reset_encoder_cache", ANY},
        {"sleep", ANY | CLEARS},
        {"wake_up", ANY | CLEARS},
        {"is_sleeping", ANY},
        {"pause", ANY},
        {"resume", ANY},
        {"is_paused", ANY},
        {"collective_rpc", ANY | CLEARS},
        {"abort_requests", ANY},
        {"release_kv_cache_memory", ANY | CLEARS},
        {"load_lora_adapter*", ANY},
        {"unload_lora_adapter", ANY},
        {"adapters", CHANGE},
        {"adapters/*", CHANGE},
        {"scale_elastic_ep", ANY | CLEARS},
        {"is_scaling_elastic_ep", ANY},
        {"start_profile", ANY},
        {"stop_profile", ANY},
        {"get_world_size", ANY},
        {"kv_event_sources", ANY},
        {"inference/v1/abort_requests", ANY},
        /* weights, vLLM and SGLang */
        {"update_weight*", ANY | CLEARS},
        {"init_weight*", ANY | CLEARS},
        {"start_weight*", ANY | CLEARS},
        {"start_draft_weight*", ANY | CLEARS},
        {"finish_weight*", ANY | CLEARS},
        {"begin_weight*", ANY | CLEARS},
        {"end_weight*", ANY | CLEARS},
        {"destroy_weight*", ANY | CLEARS},
        {"shutdown_weight*", ANY | CLEARS},
        {"get_weight*", ANY},
        {"send_weight*", ANY},
        {"weight_info", ANY},
        {"weight_checker", ANY},
        {"weights_checker", ANY},
        {"init_weights_send_group*", ANY},
        {"get_remote_instance*", ANY},
        {"remote_instance_transfer_engine_info", ANY},
        /* what an engine says of itself is for the router's own polling */
        {"metrics", ANY},
        {"prometheus/metrics", ANY},
        /* SGLang */
        {"flush_cache", ANY | CLEARS},
        {"abort_request", ANY},
        {"pause_generation", ANY},
        {"continue_generation", ANY},
        {"release_memory*", ANY | CLEARS},
        {"resume_memory*", ANY | CLEARS},
        {"hicache/*", ANY | CLEARS},
        {"get_hicache*", ANY},
        {"set_internal_state", ANY},
        {"configure_logging", ANY},
        {"set_trace_level", ANY},
        {"freeze_gc", ANY},
        {"slow_down", ANY},
        {"pd_role_switch", ANY | CLEARS},
        {"add_external_corpus", ANY},
        {"remove_external_corpus", ANY},
        {"list_external_corpora", ANY},
        {"start_expert_distribution_record", ANY},
        {"stop_expert_distribution_record", ANY},
        {"dump_expert_distribution_record", ANY},
        /* settings of the process, paths and keys among them */
        {"server_info", ANY},
        {"get_server_info", ANY},
        /* llama.cpp: /slots shows other people's prompts */
        {"slots", ANY},
        {"slots/*", ANY | CLEARS},
        {"props", CHANGE},
        {"lora-adapters", CHANGE},
        {"models/load", CHANGE},
        {"models/unload", CHANGE},
        {"models", CHANGE},
        /* TensorRT-LLM: reading takes the events away from the one who needs them */
        {"kv_cache_events", ANY},
        {"perf_metrics", ANY},
        {"release_memory", ANY | CLEARS},
        {"resume_memory", ANY | CLEARS},
        /* LMDeploy */
        {"wakeup", ANY | CLEARS},
        {"distserve/*", ANY},
        {"terminate", ANY},
        /* Ollama */
        {"api/pull", CHANGE},
        {"api/push", CHANGE},
        {"api/create", CHANGE},
        {"api/copy", CHANGE},
        {"api/delete", ANY},
        {"api/blobs/*", ANY},
        /* the simulated engine */
        {"mock", ANY},
        {"mock/*", ANY | CLEARS},
};

static int hex_digit(char c)
{
        if (c >= '0' && c <= '9')
                return c - '0';
        c |= 0x20;
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Undoes one layer of percent encoding in place; false for a bad escape. */
static bool decode_once(char *text, size_t *len, bool *ret_changed)
{
        size_t out = 0;

        *ret_changed = false;
        for (size_t i = 0; i < *len; i++) {
                char c = text[i];

                if (c == '%') {
                        if (i + 2 >= *len || hex_digit(text[i + 1]) < 0 || hex_digit(text[i + 2]) < 0)
                                return false;
                        c = (char)(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
                        i += 2;
                        *ret_changed = true;
                }
                text[out++] = c;
        }
        *len = out;
        return true;
}

/* False if it cannot be undone, or if there are more layers than anybody has a use for. */
static bool decode(char *text, size_t *len)
{
        bool changed = true;

        for (unsigned round = 0; changed && round < DECODE_ROUNDS; round++)
                if (!decode_once(text, len, &changed))
                        return false;
        return !changed || memchr(text, '%', *len) == NULL;
}

/*
 * To lower case, without parameters, empty and dot segments: "a/b/c", no slashes at the ends. False if it
 * holds control bytes or climbs above the root.
 */
static bool normalise(char *text, size_t *len)
{
        size_t out = 0, i = 0;

        while (i < *len) {
                size_t start = i, end, params;

                while (i < *len && text[i] != '/' && text[i] != '\\')
                        i++;
                end = i++;
                for (params = start;
                     params < end && text[params] != ';' && text[params] != '?' && text[params] != '#';)
                        params++;
                size_t n = params - start;
                if (n == 0 || (n == 1 && text[start] == '.'))
                        continue;
                if (n == 2 && text[start] == '.' && text[start + 1] == '.') {
                        if (out == 0)
                                return false;
                        while (out > 0 && text[out - 1] != '/')
                                out--;
                        out -= out > 0;
                        continue;
                }
                if (out > 0)
                        text[out++] = '/';
                for (size_t k = 0; k < n; k++) {
                        unsigned char c = (unsigned char)text[start + k];

                        if (c < 0x20 || c == 0x7f)
                                return false;
                        text[out++] = (char)(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
                }
        }
        *len = out;
        return true;
}

static bool rule_fits(const char *rule, const char *text, size_t len)
{
        size_t n = strlen(rule);

        if (rule[n - 1] == '*')
                return len >= n - 1 && memcmp(rule, text, n - 1) == 0;
        return len == n && memcmp(rule, text, n) == 0;
}

static unsigned flags_of(const char *text, size_t len)
{
        unsigned flags = 0;

        for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
                if (rule_fits(rules[i].name, text, len))
                        flags |= rules[i].flags;
        return flags;
}

static bool starts_with(const char *text, size_t len, const char *with)
{
        size_t n = strlen(with);

        return len >= n && memcmp(text, with, n) == 0;
}

/*
 * The rules that fit the path itself or, because a server may be mounted below a prefix, what is left of it
 * behind any slash. Behind /v1/ only the remainder as a whole: names of models and ids of responses follow
 * there.
 */
static unsigned flags_of_path(const char *text, size_t len)
{
        unsigned flags = flags_of(text, len);

        for (;;) {
                const char *slash = memchr(text, '/', len);
                bool version;

                if (!slash)
                        return flags;
                version = starts_with(text, len, "v1/") || starts_with(text, len, "v2/");
                len -= (size_t)(slash - text) + 1;
                text = slash + 1;
                flags |= flags_of(text, len);
                if (version)
                        return flags;
        }
}

bool engine_path_normalise(struct kvr_slice path, char ret[ENGINE_PATH_ROOM], size_t *ret_len)
{
        size_t len = path.len;

        if (len == 0 || len > ENGINE_PATH_MAX || memchr(path.data, 0, len))
                return false;
        memcpy(ret + 1, path.data, len);
        if (!decode(ret + 1, &len) || !normalise(ret + 1, &len))
                return false;
        ret[0] = '/';
        *ret_len = len + 1;
        return true;
}

/* False: cannot be read safely. */
static bool read_path(struct kvr_slice path, unsigned *ret_flags)
{
        char text[ENGINE_PATH_ROOM];
        size_t len;

        if (!engine_path_normalise(path, text, &len))
                return false;
        *ret_flags = flags_of_path(text + 1, len - 1);
        return true;
}

static bool is_reading(struct kvr_slice method)
{
        return (method.len == 3 && memcmp(method.data, "GET", 3) == 0) ||
               (method.len == 4 && memcmp(method.data, "HEAD", 4) == 0) ||
               (method.len == 7 && memcmp(method.data, "OPTIONS", 7) == 0);
}

bool engine_path_is_admin(struct kvr_slice method, struct kvr_slice path)
{
        unsigned flags;

        if (path.len == 0)
                return false;
        if (!read_path(path, &flags))
                return true;
        return (flags & ANY) || ((flags & CHANGE) && !is_reading(method));
}

bool engine_path_clears_cache(struct kvr_slice path)
{
        unsigned flags;

        return path.len > 0 && read_path(path, &flags) && (flags & CLEARS);
}
