/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_discover.h"

#include <stdio.h>
#include <string.h>
#include <yyjson.h>

const char *engine_kv_path(enum engine_kind kind)
{
        return kind == ENGINE_VLLM ? "/kv_event_sources" : kind == ENGINE_SGLANG ? "/server_info" : NULL;
}

void engine_kv_guess(uint32_t rank, struct engine_kv_source *ret)
{
        memset(ret, 0, sizeof *ret);
        snprintf(ret->events, sizeof ret->events, "tcp://*:%u", ENGINE_KV_PORT + rank);
        snprintf(ret->replay, sizeof ret->replay, "tcp://*:%u", ENGINE_KV_REPLAY_PORT + rank);
}

/* Text or nothing; what does not fit counts as nothing. */
static void copy_text(yyjson_val *value, char *ret, size_t size)
{
        ret[0] = '\0';
        if (yyjson_is_str(value) && yyjson_get_len(value) < size &&
            strlen(yyjson_get_str(value)) == yyjson_get_len(value))
                memcpy(ret, yyjson_get_str(value), yyjson_get_len(value) + 1);
}

/* {"0": {"enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "topic"}, "1": ...} */
static enum engine_kv_answer read_vllm(yyjson_val *root, uint32_t rank, struct engine_kv_source *ret)
{
        char key[16];
        yyjson_val *source;

        snprintf(key, sizeof key, "%u", rank);
        source = yyjson_obj_get(root, key);
        ret->ranks = (uint32_t)yyjson_obj_size(root);
        if (!yyjson_is_obj(source))
                return yyjson_obj_size(root) == 0 ? ENGINE_KV_OFF : ENGINE_KV_NO_RANK;
        copy_text(yyjson_obj_get(source, "endpoint"), ret->events, sizeof ret->events);
        copy_text(yyjson_obj_get(source, "replay_endpoint"), ret->replay, sizeof ret->replay);
        copy_text(yyjson_obj_get(source, "topic"), ret->topic, sizeof ret->topic);
        return yyjson_is_false(yyjson_obj_get(source, "enable_kv_cache_events")) ||
                               yyjson_equals_str(yyjson_obj_get(source, "publisher"), "null") ||
                               !ret->events[0]
                       ? ENGINE_KV_OFF
                       : ENGINE_KV_FOUND;
}

static bool port_plus(yyjson_val *port, uint32_t rank, unsigned *ret)
{
        uint64_t number = yyjson_is_uint(port) ? yyjson_get_uint(port) + rank : 0;

        *ret = (unsigned)number;
        return number > 0 && number < 65536;
}

/* "kv_events": {"publisher", "endpoint_host", "endpoint_port_base", "replay_endpoint_port_base", "dp_size"} or null */
static enum engine_kv_answer read_sglang(yyjson_val *root, uint32_t rank, struct engine_kv_source *ret)
{
        yyjson_val *events = yyjson_obj_get(root, "kv_events"), *host, *size;
        unsigned port;

        if (!events)
                return ENGINE_KV_UNKNOWN;
        if (!yyjson_is_obj(events))
                return ENGINE_KV_OFF;
        host = yyjson_obj_get(events, "endpoint_host");
        size = yyjson_obj_get(events, "dp_size");
        ret->ranks = yyjson_is_uint(size) ? (uint32_t)yyjson_get_uint(size) : 1;
        if (rank >= ret->ranks)
                return ENGINE_KV_NO_RANK;
        if (!port_plus(yyjson_obj_get(events, "endpoint_port_base"), rank, &port))
                return ENGINE_KV_OFF;
        snprintf(ret->events, sizeof ret->events, "tcp://%.200s:%u",
                 yyjson_is_str(host) ? yyjson_get_str(host) : "*", port);
        if (port_plus(yyjson_obj_get(events, "replay_endpoint_port_base"), rank, &port))
                snprintf(ret->replay, sizeof ret->replay, "tcp://%.200s:%u",
                         yyjson_is_str(host) ? yyjson_get_str(host) : "*", port);
        copy_text(yyjson_obj_get(events, "topic"), ret->topic, sizeof ret->topic);
        return ENGINE_KV_FOUND;
}

enum engine_kv_answer engine_kv_read(enum engine_kind kind, struct kvr_slice body, uint32_t rank,
                                     struct engine_kv_source *ret)
{
        yyjson_doc *doc = yyjson_read(body.data, body.len, 0);
        yyjson_val *root = yyjson_doc_get_root(doc);
        enum engine_kv_answer answer = ENGINE_KV_UNKNOWN;

        memset(ret, 0, sizeof *ret);
        if (yyjson_is_obj(root) && kind == ENGINE_VLLM)
                answer = read_vllm(root, rank, ret);
        else if (yyjson_is_obj(root) && kind == ENGINE_SGLANG)
                answer = read_sglang(root, rank, ret);
        yyjson_doc_free(doc);
        return answer;
}

/* ---- endpoints ---- */

static bool is_any_host(const char *host, size_t len)
{
        static const char *const words[] = {"", "*", "0.0.0.0", "::", "[::]"};

        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
                if (len == strlen(words[i]) && memcmp(host, words[i], len) == 0)
                        return true;
        }
        return false;
}

static bool port_of(const char *text, uint32_t rank, unsigned *ret)
{
        uint64_t port = 0;

        for (; *text >= '0' && *text <= '9' && port < 65536; text++)
                port = port * 10 + (uint64_t)(*text - '0');
        *ret = (unsigned)(port + rank);
        return *text == '\0' && port > 0 && port + rank < 65536;
}

bool engine_kv_same_host(const char *endpoint, const char *host)
{
        const char *at, *colon;
        size_t len;

        if (strncmp(endpoint, "tcp://", 6) != 0)
                return false;
        at = endpoint + 6;
        colon = strrchr(at, ':');
        if (!colon)
                return false;
        len = (size_t)(colon - at);
        if (is_any_host(at, len))
                return true;
        if (len > 2 && at[0] == '[' && at[len - 1] == ']') {
                at++;
                len -= 2;
        }
        return len == strlen(host) && memcmp(at, host, len) == 0;
}

bool engine_kv_endpoint(const char *text, const char *host, uint32_t rank, char ret[ENGINE_KV_ENDPOINT_MAX])
{
        const char *at, *colon;
        unsigned port;
        int len;

        if (strncmp(text, "ipc://", 6) == 0) {
                len = rank ? snprintf(ret, ENGINE_KV_ENDPOINT_MAX, "%s_dp%u", text, rank)
                           : snprintf(ret, ENGINE_KV_ENDPOINT_MAX, "%s", text);
                return text[6] && len < ENGINE_KV_ENDPOINT_MAX;
        }
        if (strncmp(text, "tcp://", 6) != 0)
                return false;
        at = text + 6;
        colon = strrchr(at, ':');
        if (!colon || !port_of(colon + 1, rank, &port))
                return false;
        for (const char *c = at; c < colon; c++) {
                if (*c <= ' ' || *c >= 0x7f || strchr("/;,\"\\", *c))
                        return false;
        }
        if (is_any_host(at, (size_t)(colon - at)))
                len = snprintf(ret, ENGINE_KV_ENDPOINT_MAX,
                               strchr(host, ':') ? "tcp://[%s]:%u" : "tcp://%s:%u", host, port);
        else
                len = snprintf(ret, ENGINE_KV_ENDPOINT_MAX, "tcp://%.*s:%u", (int)(colon - at), at, port);
        return len > 0 && len < ENGINE_KV_ENDPOINT_MAX;
}
