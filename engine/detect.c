/* SPDX-License-Identifier: Apache-2.0 */
#include "detect.h"

#include <string.h>

#include "rows.h"

/*
 *   MODELS ──owned_by or Server tells──► VERSION_OF that engine (one look, whatever it says) ──► decided
 *     └─ does not tell ─► SERVER_INFO ─► GET_SERVER_INFO ─► PROPS ─► INFO ─► API_VERSION ─► VERSION ─►
 * METRICS ─► OPENAI
 *
 * /v1/models comes first because every engine has it, and its answer names the engine; the rest are for
 * engines behind something that rewrites it. Each later step has one path that only one engine answers in
 * that form.
 */
enum step {
        STEP_MODELS,
        STEP_SERVER_INFO,
        STEP_GET_SERVER_INFO,
        STEP_PROPS,
        STEP_INFO,
        STEP_API_VERSION,
        STEP_VERSION,
        STEP_METRICS,
        STEP_VERSION_OF,
        STEP_END,
};

static const char *const paths[] = {
        [STEP_MODELS] = "/v1/models",
        [STEP_SERVER_INFO] = "/server_info",
        [STEP_GET_SERVER_INFO] = "/get_server_info",
        [STEP_PROPS] = "/props",
        [STEP_INFO] = "/info",
        [STEP_API_VERSION] = "/api/version",
        [STEP_VERSION] = "/version",
        [STEP_METRICS] = "/metrics",
};

/* Where a known engine tells its version, and by which member. */
static const struct {
        const char *path, *member;
} versions[ENGINE_KIND_COUNT] = {
        [ENGINE_VLLM] = {"/version", "version"},      [ENGINE_SGLANG] = {"/server_info", "version"},
        [ENGINE_LLAMACPP] = {"/props", "build_info"}, [ENGINE_TRTLLM] = {"/version", "version"},
        [ENGINE_TGI] = {"/info", "version"},          [ENGINE_OLLAMA] = {"/api/version", "version"},
};

void engine_detect_init(struct engine_detect *detect)
{
        *detect = (struct engine_detect){.kind = ENGINE_AUTO, .step = STEP_MODELS};
}

const char *engine_detect_next_path(const struct engine_detect *detect)
{
        if (detect->step == STEP_VERSION_OF)
                return versions[detect->hint].path;
        return detect->step < STEP_VERSION_OF ? paths[detect->step] : NULL;
}

static void decide(struct engine_detect *d, enum engine_kind kind)
{
        d->kind = kind;
        d->step = STEP_END;
}

/* The engine is known; its version is nice to have, unless this answer told it already. */
static void found(struct engine_detect *d, enum engine_kind kind)
{
        d->hint = kind;
        if (d->version[0] == 0 && versions[kind].path)
                d->step = STEP_VERSION_OF;
        else
                decide(d, kind);
}

static void copy_version(struct engine_detect *d, yyjson_val *val)
{
        size_t len = yyjson_get_len(val);

        if (!yyjson_is_str(val) || len == 0)
                return;
        if (len >= sizeof d->version)
                len = sizeof d->version - 1;
        /* It goes into logs and pages: printable ASCII only. */
        for (size_t i = 0; i < len; i++) {
                char c = yyjson_get_str(val)[i];

                d->version[i] = c > ' ' && c < 0x7f ? c : '?';
        }
        d->version[len] = 0;
}

static enum engine_kind kind_of_owner(yyjson_val *root)
{
        static const struct {
                const char *owner;
                enum engine_kind kind;
        } owners[] = {
                {"vllm", ENGINE_VLLM},         {"sglang", ENGINE_SGLANG},     {"tensorrt_llm", ENGINE_TRTLLM},
                {"llamacpp", ENGINE_LLAMACPP}, {"lmdeploy", ENGINE_LMDEPLOY},
        };
        yyjson_val *first = yyjson_arr_get_first(yyjson_obj_get(root, "data"));
        yyjson_val *owner = yyjson_obj_get(first, "owned_by");

        for (size_t i = 0; i < sizeof owners / sizeof *owners; i++)
                if (yyjson_equals_str(owner, owners[i].owner))
                        return owners[i].kind;
        return ENGINE_AUTO;
}

/* What a JSON answer to this step's path proves; ENGINE_AUTO: nothing. */
static enum engine_kind kind_of_json(struct engine_detect *d, yyjson_val *root)
{
        bool version = yyjson_is_str(yyjson_obj_get(root, "version"));

        switch (d->step) {
        case STEP_MODELS:
                return kind_of_owner(root);
        case STEP_SERVER_INFO:
        case STEP_GET_SERVER_INFO:
                /* vLLM in dev mode answers here too, without these members. */
                if (version && yyjson_obj_get(root, "tokenizer_path")) {
                        copy_version(d, yyjson_obj_get(root, "version"));
                        return ENGINE_SGLANG;
                }
                return ENGINE_AUTO;
        case STEP_PROPS:
                if (yyjson_is_str(yyjson_obj_get(root, "build_info")) &&
                    yyjson_obj_get(root, "total_slots")) {
                        copy_version(d, yyjson_obj_get(root, "build_info"));
                        return ENGINE_LLAMACPP;
                }
                return ENGINE_AUTO;
        case STEP_INFO:
                if (yyjson_obj_get(root, "model_id") && yyjson_obj_get(root, "max_total_tokens")) {
                        copy_version(d, yyjson_obj_get(root, "version"));
                        return ENGINE_TGI;
                }
                return ENGINE_AUTO;
        case STEP_API_VERSION:
                if (version)
                        copy_version(d, yyjson_obj_get(root, "version"));
                return version ? ENGINE_OLLAMA : ENGINE_AUTO;
        case STEP_VERSION:
                /* vLLM and TensorRT-LLM both have it: the metrics tell which. */
                copy_version(d, yyjson_obj_get(root, "version"));
                return ENGINE_AUTO;
        default:
                return ENGINE_AUTO;
        }
}

static enum engine_kind kind_of_metrics(struct kvr_slice page)
{
        static const struct {
                const char *text;
                enum engine_kind kind;
        } marks[] = {
                {"vllm:num_requests_", ENGINE_VLLM},     {"sglang:num_", ENGINE_SGLANG},
                {"llamacpp:requests_", ENGINE_LLAMACPP}, {"trtllm_", ENGINE_TRTLLM},
                {"\"kvCacheStats\"", ENGINE_TRTLLM},     {"nv_trt_llm_", ENGINE_TRTLLM},
                {"tgi_queue_size", ENGINE_TGI},          {"lmdeploy:", ENGINE_LMDEPLOY},
        };

        for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
                if (engine_text_has(page, marks[i].text))
                        return marks[i].kind;
        return ENGINE_AUTO;
}

static enum engine_kind judge(struct engine_detect *d, struct kvr_slice body)
{
        if (d->step == STEP_METRICS)
                return kind_of_metrics(body);
        yyjson_doc *doc = engine_json_read(body);
        enum engine_kind kind = ENGINE_AUTO;

        if (d->step == STEP_VERSION_OF)
                copy_version(d, yyjson_obj_get(yyjson_doc_get_root(doc), versions[d->hint].member));
        else if (doc)
                kind = kind_of_json(d, yyjson_doc_get_root(doc));
        yyjson_doc_free(doc);
        return kind;
}

void engine_detect_feed(struct engine_detect *d, unsigned status, struct kvr_slice server,
                        struct kvr_slice body)
{
        enum engine_kind kind = ENGINE_AUTO;

        if (d->step >= STEP_END)
                return;
        if (status == 0 && d->step == STEP_MODELS) {
                d->failed = true;
                d->step = STEP_END;
                return;
        }
        if (status == 401 || status == 403)
                d->unauthorized = true;
        if (body.len > ENGINE_DETECT_BODY_BYTES)
                body.len = ENGINE_DETECT_BODY_BYTES;
        if (status >= 200 && status < 300)
                kind = judge(d, body);
        if (d->step == STEP_VERSION_OF) {
                decide(d, d->hint);
                return;
        }
        if (kind == ENGINE_AUTO && server.len >= 9 && memcmp(server.data, "llama.cpp", 9) == 0)
                kind = ENGINE_LLAMACPP;
        if (kind != ENGINE_AUTO)
                found(d, kind);
        else if (++d->step == STEP_VERSION_OF)
                decide(d, ENGINE_OPENAI);
}
