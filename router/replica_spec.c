/* SPDX-License-Identifier: Apache-2.0 */
#include "replica_spec.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

static const struct replica_key keys[] = {
        {"name", "NAME", "name in metrics, headers and the admin API; HOST:PORT by default"},
        {"engine", "KIND",
         "auto, vllm, sglang, llamacpp, trtllm, tgi, lmdeploy, ollama or openai; auto asks the engine"},
        {"models", "A+B",
         "models it serves, separated by + (a list in YAML); asked of the engine by default"},
        {"max-running", "N", "requests in flight beyond which it counts as full; 0: no limit"},
        {"capacity-tokens", "N", "tokens its KV cache holds; 0: as the engine says, or learned"},
        {"block-tokens", "N", "tokens of a cache block; 0: as the engine says"},
        {"slots", "N", "llama.cpp and Ollama: parallel sequences; 0: as the engine says"},
        {"auth", "auto|pass|strip|replace", "what it gets of the client's credentials; see --auth"},
        {"api-key", "SECRET",
         "key for auth=replace, health checks and polls (env:NAME and file:PATH as elsewhere)"},
        {"events", "ENDPOINT|offered|auto|poll|off",
         "where its KV cache events come from: offered (the default) as the engine says, if it says that it "
         "publishes them on its own host; auto as it says, or else ports 5557 and 5558; tcp://HOST:PORT (* "
         "is "
         "the replica's host); bind:tcp://HOST:PORT to listen for an engine that connects; poll for "
         "TensorRT-LLM's POST /kv_cache_events, which only one router may do; off"},
        {"replay", "ENDPOINT|off", "where lost events can be had again; with events=auto as the engine says"},
        {"events-topic", "TEXT", "only events whose topic begins so; all by default"},
        {"ranks", "N",
         "data-parallel ranks behind the URL (vLLM, SGLang), each routed to as a replica of its own, "
         "NAME.dp0 and so on; 1: not told apart"},
};

const struct replica_key *replica_keys(size_t *ret_count)
{
        *ret_count = sizeof keys / sizeof *keys;
        return keys;
}

static bool fail(char *why, size_t size, const char *format, ...) KVR_PRINTF(3, 4);

static bool fail(char *why, size_t size, const char *format, ...)
{
        va_list args;

        va_start(args, format);
        vsnprintf(why, size, format, args);
        va_end(args);
        return false;
}

#define SHOW(slice) (int)((slice).len < 200 ? (slice).len : 200), (slice).data

static bool is_word(struct kvr_slice text, const char *word)
{
        return text.len == strlen(word) && memcmp(text.data, word, text.len) == 0;
}

/* Printable ASCII without space and the bytes that separate lists and header fields. */
static bool is_plain(struct kvr_slice text, const char *except)
{
        for (size_t i = 0; i < text.len; i++)
                if (text.data[i] <= ' ' || text.data[i] >= 0x7f || strchr(except, text.data[i]))
                        return false;
        return text.len > 0;
}

void replica_spec_init(struct replica_spec *spec)
{
        memset(spec, 0, sizeof *spec);
        spec->ranks = 1;
        spec->rank = -1;
}

static void wipe_free(char *secret)
{
        if (secret)
                explicit_bzero(secret, strlen(secret));
        free(secret);
}

void replica_spec_fini(struct replica_spec *spec)
{
        for (size_t i = 0; i < spec->model_count; i++)
                free(spec->models[i]);
        wipe_free(spec->api_key);
        replica_spec_init(spec);
}

bool replica_spec_copy(const struct replica_spec *from, struct replica_spec *ret)
{
        struct replica_spec copy = *from;

        copy.api_key = NULL;
        copy.model_count = 0;
        if (from->api_key && !(copy.api_key = strdup(from->api_key)))
                return false;
        for (size_t i = 0; i < from->model_count; i++) {
                copy.models[i] = strdup(from->models[i]);
                if (!copy.models[i]) {
                        replica_spec_fini(&copy);
                        return false;
                }
                copy.model_count++;
        }
        *ret = copy;
        return true;
}

bool replica_spec_rank(const struct replica_spec *from, uint32_t rank, struct replica_spec *ret, char *why,
                       size_t why_size)
{
        struct replica_spec copy;

        if (!replica_spec_copy(from, &copy))
                return fail(why, why_size, "out of memory");
        if (from->ranks > 1) {
                int n = snprintf(copy.name, sizeof copy.name, "%s.dp%u", from->name, rank);

                if (n < 0 || (size_t)n >= sizeof copy.name) {
                        replica_spec_fini(&copy);
                        return fail(why, why_size, "name: \"%s\" leaves no room for .dp%u", from->name, rank);
                }
                memcpy(copy.group, from->name, sizeof copy.group);
                copy.rank = (int32_t)rank;
        }
        *ret = copy;
        return true;
}

static bool same_text(const char *a, const char *b)
{
        return a == b || (a && b && strcmp(a, b) == 0);
}

bool replica_spec_equal(const struct replica_spec *a, const struct replica_spec *b)
{
        if (strcmp(a->name, b->name) != 0 || strcmp(a->host, b->host) != 0 || a->port != b->port ||
            strcmp(a->prefix, b->prefix) != 0 || a->engine != b->engine || a->auth != b->auth ||
            !same_text(a->api_key, b->api_key) || a->capacity_tokens != b->capacity_tokens ||
            a->block_tokens != b->block_tokens || a->max_running != b->max_running || a->slots != b->slots ||
            a->events != b->events || strcmp(a->events_endpoint, b->events_endpoint) != 0 ||
            strcmp(a->replay_endpoint, b->replay_endpoint) != 0 ||
            strcmp(a->events_topic, b->events_topic) != 0 || a->ranks != b->ranks || a->rank != b->rank ||
            a->model_count != b->model_count)
                return false;
        for (size_t i = 0; i < a->model_count; i++)
                if (strcmp(a->models[i], b->models[i]) != 0)
                        return false;
        return true;
}

/* ---- URL ---- */

static bool parse_port(struct kvr_slice text, uint16_t *ret)
{
        const char *unused;
        uint64_t n;

        if (text.len > 5 || !option_parse_count(text, &n, &unused) || n == 0 || n > 65535)
                return false;
        *ret = (uint16_t)n;
        return true;
}

/* host, host:port, [v6], [v6]:port; *ret_v6 tells which kind of host it is. */
static bool split_authority(struct kvr_slice text, struct kvr_slice *ret_host, struct kvr_slice *ret_port,
                            bool *ret_v6)
{
        const char *end = text.data + text.len, *colon;

        *ret_port = (struct kvr_slice){0};
        *ret_v6 = text.len > 0 && text.data[0] == '[';
        if (*ret_v6) {
                const char *close = memchr(text.data, ']', text.len);

                if (!close)
                        return false;
                *ret_host = (struct kvr_slice){text.data + 1, (size_t)(close - text.data) - 1};
                colon = close + 1;
                if (colon < end && *colon != ':')
                        return false;
        } else {
                colon = memchr(text.data, ':', text.len);
                if (!colon)
                        colon = end;
                *ret_host = (struct kvr_slice){text.data, (size_t)(colon - text.data)};
        }
        if (colon < end)
                *ret_port = (struct kvr_slice){colon + 1, (size_t)(end - colon) - 1};
        return colon == end || ret_port->len > 0;
}

static bool valid_host(struct kvr_slice host, bool v6)
{
        bool zone = false; /* behind the % of fe80::1%eth0 */

        if (host.len == 0 || host.len >= REPLICA_HOST_MAX)
                return false;
        for (size_t i = 0; i < host.len; i++) {
                char c = host.data[i];
                bool hex = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
                bool name =
                        hex || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '-' || c == '.' || c == '_';

                if (v6 && !zone ? !(hex || c == ':' || c == '.' || c == '%') : !name)
                        return false;
                zone |= c == '%';
        }
        return true;
}

static bool take_scheme(struct kvr_slice *url, char *why, size_t why_size)
{
        struct kvr_slice whole = *url;

        if (url->len >= 8 && strncasecmp(url->data, "https://", 8) == 0)
                return fail(why, why_size,
                            "\"%.*s\": https to replicas is not supported yet; use http:// and end TLS in "
                            "front of the engine",
                            SHOW(whole));
        if (url->len < 7 || strncasecmp(url->data, "http://", 7) != 0)
                return fail(why, why_size, "\"%.*s\" is not a replica's URL; write http://HOST:PORT",
                            SHOW(whole));
        url->data += 7;
        url->len -= 7;
        return true;
}

bool replica_spec_set_url(struct replica_spec *spec, struct kvr_slice url, char *why, size_t why_size)
{
        struct kvr_slice rest = url, host, port;
        bool v6;

        if (!take_scheme(&rest, why, why_size))
                return false;
        const char *slash = memchr(rest.data, '/', rest.len);
        struct kvr_slice authority = {rest.data, slash ? (size_t)(slash - rest.data) : rest.len};
        struct kvr_slice prefix = {rest.data + authority.len, rest.len - authority.len};
        if (authority.len > 0 && memchr(authority.data, '@', authority.len))
                return fail(
                        why, why_size,
                        "a replica's URL must not hold credentials; use the keys auth=replace and api-key");
        spec->port = 80;
        if (!split_authority(authority, &host, &port, &v6) || !valid_host(host, v6) ||
            (port.len > 0 && !parse_port(port, &spec->port)))
                return fail(why, why_size, "\"%.*s\" has no valid host and port; write http://HOST:PORT",
                            SHOW(url));
        while (prefix.len > 0 && prefix.data[prefix.len - 1] == '/')
                prefix.len--;
        if (prefix.len >= REPLICA_PREFIX_MAX || (prefix.len > 0 && !is_plain(prefix, "?#\"<>\\^`{|}")))
                return fail(why, why_size,
                            "\"%.*s\": what follows the port must be a plain path, without query", SHOW(url));
        /* As clients' base_url does. Paths here are the clients', which begin with /v1 themselves. */
        if (prefix.len >= 3 && memcmp(prefix.data + prefix.len - 3, "/v1", 3) == 0) {
                struct kvr_slice meant = {url.data, (size_t)(prefix.data + prefix.len - 3 - url.data)};

                return fail(why, why_size, "\"%.*s\" ends in /v1; did you mean %.*s?", SHOW(url),
                            SHOW(meant));
        }
        memcpy(spec->host, host.data, host.len);
        spec->host[host.len] = 0;
        if (prefix.len > 0)
                memcpy(spec->prefix, prefix.data, prefix.len);
        spec->prefix[prefix.len] = 0;
        snprintf(spec->authority, sizeof spec->authority, v6 ? "[%s]:%u" : "%s:%u", spec->host,
                 (unsigned)spec->port);
        return true;
}

/* ---- keys ------------------------------------------------------------------------------------------- */

static bool set_number(uint64_t max, struct kvr_slice value, const char *key, uint64_t *ret, char *why,
                       size_t why_size)
{
        const char *what;

        if (!option_parse_count(value, ret, &what) || *ret > max)
                return fail(why, why_size, "%s: \"%.*s\" is not a whole number up to %llu", key, SHOW(value),
                            (unsigned long long)max);
        return true;
}

static bool set_number32(struct kvr_slice value, const char *key, uint32_t *ret, char *why, size_t why_size)
{
        uint64_t n;

        if (!set_number(1000000000, value, key, &n, why, why_size))
                return false;
        *ret = (uint32_t)n;
        return true;
}

bool replica_spec_add_model(struct replica_spec *spec, struct kvr_slice model, char *why, size_t why_size)
{
        if (model.len == 0 || model.len >= KVR_NAME_MAX || memchr(model.data, 0, model.len))
                return fail(why, why_size, "models: \"%.*s\" is not a model name of 1 to %d bytes",
                            SHOW(model), KVR_NAME_MAX - 1);
        for (size_t i = 0; i < spec->model_count; i++)
                if (is_word(model, spec->models[i]))
                        return fail(why, why_size, "models: \"%.*s\" is there twice", SHOW(model));
        if (spec->model_count == REPLICA_MODELS_MAX)
                return fail(why, why_size, "models: more than %d", REPLICA_MODELS_MAX);
        spec->models[spec->model_count] = strndup(model.data, model.len);
        if (!spec->models[spec->model_count])
                return fail(why, why_size, "models: out of memory");
        spec->model_count++;
        return true;
}

static bool set_models(struct replica_spec *spec, struct kvr_slice value, char *why, size_t why_size)
{
        if (spec->model_count > 0)
                return fail(why, why_size, "models: given twice; separate names with +");
        for (;;) {
                const char *plus = value.len > 0 ? memchr(value.data, '+', value.len) : NULL;
                struct kvr_slice one = {value.data, plus ? (size_t)(plus - value.data) : value.len};

                if (!replica_spec_add_model(spec, one, why, why_size))
                        return false;
                if (!plus)
                        return true;
                value.data += one.len + 1;
                value.len -= one.len + 1;
        }
}

static bool set_name(struct replica_spec *spec, struct kvr_slice value, char *why, size_t why_size)
{
        if (value.len >= sizeof spec->name || !is_plain(value, ",\"\\"))
                return fail(why, why_size,
                            "name: \"%.*s\" is not a name of 1 to %zu printable characters without space",
                            SHOW(value), sizeof spec->name - 1);
        memcpy(spec->name, value.data, value.len);
        spec->name[value.len] = 0;
        return true;
}

static bool set_secret(struct replica_spec *spec, struct kvr_slice value, char *why, size_t why_size)
{
        /* It becomes part of a header field. */
        if (value.len > REPLICA_SECRET_MAX || !is_plain(value, ""))
                return fail(why, why_size, "api-key: must be 1 to %d printable characters without space",
                            REPLICA_SECRET_MAX);
        wipe_free(spec->api_key);
        spec->api_key = strndup(value.data, value.len);
        return spec->api_key || fail(why, why_size, "api-key: out of memory");
}

static bool set_engine(struct replica_spec *spec, struct kvr_slice value, char *why, size_t why_size)
{
        if (engine_kind_parse(value, &spec->engine))
                return true;
        return fail(why, why_size,
                    "engine: \"%.*s\" is not known; write auto, vllm, sglang, llamacpp, trtllm, tgi, "
                    "lmdeploy, ollama or openai",
                    SHOW(value));
}

/* *ret keeps what is written; whether it makes sense is tried with some host. */
static bool set_endpoint(struct kvr_slice value, const char *key, char ret[ENGINE_KV_ENDPOINT_MAX], char *why,
                         size_t why_size)
{
        char text[ENGINE_KV_ENDPOINT_MAX] = "", unused[ENGINE_KV_ENDPOINT_MAX];

        if (value.len < sizeof text && !memchr(value.data, 0, value.len))
                memcpy(text, value.data, value.len);
        if (!engine_kv_endpoint(text, "h", 0, unused))
                return fail(why, why_size,
                            "%s: \"%.*s\" is not an endpoint; write tcp://HOST:PORT or ipc://PATH", key,
                            SHOW(value));
        memcpy(ret, text, sizeof text);
        return true;
}

static bool set_events(struct replica_spec *spec, struct kvr_slice value, char *why, size_t why_size)
{
        static const struct {
                const char *word;
                enum replica_events events;
        } words[] = {
                {"offered", REPLICA_EVENTS_OFFERED},
                {"off", REPLICA_EVENTS_OFF},
                {"auto", REPLICA_EVENTS_AUTO},
                {"poll", REPLICA_EVENTS_POLL},
        };
        const char bind[] = "bind:";

        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
                if (is_word(value, words[i].word)) {
                        spec->events = words[i].events;
                        return true;
                }
        }
        spec->events = REPLICA_EVENTS_CONNECT;
        if (value.len > sizeof bind - 1 && memcmp(value.data, bind, sizeof bind - 1) == 0) {
                spec->events = REPLICA_EVENTS_BIND;
                value.data += sizeof bind - 1;
                value.len -= sizeof bind - 1;
        }
        return set_endpoint(value, "events", spec->events_endpoint, why, why_size);
}

static bool set_replay(struct replica_spec *spec, struct kvr_slice value, char *why, size_t why_size)
{
        spec->replay_endpoint[0] = 0;
        return is_word(value, "off") || set_endpoint(value, "replay", spec->replay_endpoint, why, why_size);
}

static bool set_topic(struct replica_spec *spec, struct kvr_slice value, char *why, size_t why_size)
{
        if (value.len >= sizeof spec->events_topic || (value.len > 0 && memchr(value.data, 0, value.len)))
                return fail(why, why_size, "events-topic: must be at most %zu bytes of text",
                            sizeof spec->events_topic - 1);
        if (value.len > 0)
                memcpy(spec->events_topic, value.data, value.len);
        spec->events_topic[value.len] = 0;
        return true;
}

static bool set_ranks(struct replica_spec *spec, struct kvr_slice value, char *why, size_t why_size)
{
        const char *unused;
        uint64_t n;

        if (!option_parse_count(value, &n, &unused) || n == 0 || n > REPLICA_RANKS_MAX)
                return fail(why, why_size, "ranks: \"%.*s\" is not a number from 1 to %d", SHOW(value),
                            REPLICA_RANKS_MAX);
        spec->ranks = (uint32_t)n;
        return true;
}

static bool unknown_key(struct kvr_slice key, char *why, size_t why_size)
{
        const char *words[sizeof keys / sizeof *keys + 1];
        size_t n = 0;

        for (; n < sizeof keys / sizeof *keys; n++)
                words[n] = keys[n].name;
        words[n++] = "url";
        const char *near = words_nearest(key, words, n);
        if (near)
                return fail(why, why_size, "\"%.*s\" is not a replica's key; did you mean %s?", SHOW(key),
                            near);
        return fail(why, why_size, "\"%.*s\" is not a replica's key", SHOW(key));
}

bool replica_spec_set(struct replica_spec *spec, struct kvr_slice key, struct kvr_slice value, char *why,
                      size_t why_size)
{
        if (is_word(key, "url"))
                return replica_spec_set_url(spec, value, why, why_size);
        if (is_word(key, "name"))
                return set_name(spec, value, why, why_size);
        if (is_word(key, "engine"))
                return set_engine(spec, value, why, why_size);
        if (is_word(key, "models"))
                return set_models(spec, value, why, why_size);
        if (is_word(key, "max-running"))
                return set_number32(value, "max-running", &spec->max_running, why, why_size);
        if (is_word(key, "block-tokens"))
                return set_number32(value, "block-tokens", &spec->block_tokens, why, why_size);
        if (is_word(key, "slots"))
                return set_number32(value, "slots", &spec->slots, why, why_size);
        if (is_word(key, "capacity-tokens"))
                return set_number(1ull << 50, value, "capacity-tokens", &spec->capacity_tokens, why,
                                  why_size);
        if (is_word(key, "api-key"))
                return set_secret(spec, value, why, why_size);
        if (is_word(key, "auth")) {
                unsigned auth;

                if (!value_choice(value, "auto|pass|strip|replace", &auth))
                        return fail(why, why_size, "auth: \"%.*s\" is not auto, pass, strip or replace",
                                    SHOW(value));
                spec->auth = (enum replica_auth)auth;
                return true;
        }
        if (is_word(key, "events"))
                return set_events(spec, value, why, why_size);
        if (is_word(key, "replay"))
                return set_replay(spec, value, why, why_size);
        if (is_word(key, "events-topic"))
                return set_topic(spec, value, why, why_size);
        if (is_word(key, "ranks"))
                return set_ranks(spec, value, why, why_size);
        return unknown_key(key, why, why_size);
}

bool replica_spec_parse(struct replica_spec *spec, struct kvr_slice text, char *why, size_t why_size)
{
        uint64_t seen = 0;
        bool first = true;

        for (;;) {
                const char *comma = text.len > 0 ? memchr(text.data, ',', text.len) : NULL;
                struct kvr_slice part = {text.data, comma ? (size_t)(comma - text.data) : text.len};
                const char *equals = part.len > 0 ? memchr(part.data, '=', part.len) : NULL;

                if (first) {
                        if (!replica_spec_set_url(spec, part, why, why_size))
                                return false;
                } else if (!equals) {
                        return fail(why, why_size, "\"%.*s\" is not KEY=VALUE", SHOW(part));
                } else {
                        struct kvr_slice key = {part.data, (size_t)(equals - part.data)};
                        struct kvr_slice value = {equals + 1, part.len - key.len - 1};

                        for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++) {
                                if (!is_word(key, keys[i].name))
                                        continue;
                                if (seen & 1ull << i)
                                        return fail(why, why_size, "\"%s\" is given twice", keys[i].name);
                                seen |= 1ull << i;
                        }
                        if (!replica_spec_set(spec, key, value, why, why_size))
                                return false;
                }
                first = false;
                if (!comma)
                        return replica_spec_finish(spec, why, why_size);
                text.data += part.len + 1;
                text.len -= part.len + 1;
        }
}

bool replica_spec_finish(struct replica_spec *spec, char *why, size_t why_size)
{
        if (spec->host[0] == 0)
                return fail(why, why_size, "a replica needs a url; write http://HOST:PORT");
        if ((spec->events == REPLICA_EVENTS_OFF || spec->events == REPLICA_EVENTS_OFFERED) &&
            (spec->replay_endpoint[0] || spec->events_topic[0]))
                return fail(why, why_size, "%s means nothing without events; add events=auto or an endpoint",
                            spec->replay_endpoint[0] ? "replay" : "events-topic");
        if (spec->name[0] == 0) {
                int n = snprintf(spec->name, sizeof spec->name, "%s%s", spec->authority, spec->prefix);

                if (n < 0 || (size_t)n >= sizeof spec->name)
                        return fail(why, why_size,
                                    "the URL of %s is too long to be a name; give it one with the key name",
                                    spec->host);
        }
        if (spec->ranks > 1 && spec->engine != ENGINE_AUTO && !engine_traits(spec->engine)->rank_header)
                return fail(why, why_size, "ranks: %s has none that a request could be sent to; leave it out",
                            engine_traits(spec->engine)->title);
        if (spec->api_key && spec->auth == REPLICA_AUTH_AUTO)
                spec->auth = REPLICA_AUTH_REPLACE;
        return true;
}
