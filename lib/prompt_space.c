/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The namespace: what keeps caches apart although the prompts are the same. Each part goes in as "there or
 * not" and a 128-bit hash of its own, so no two namespaces can be made equal by moving bytes from one part to
 * the next.
 */
#include "lib/prompt_canon.h"

enum part { MODEL, SALT, EXTRA_KEY, ADAPTER_PATH, ADAPTER_LIST, PART_COUNT };

struct space {
        uint64_t numbers[PART_COUNT * 3];
};

_Static_assert(PART_COUNT * 3 <= KVR__HASH_NUMBERS_MAX, "a namespace must fit one hash");

static void put_text(struct kvr_parser *parser, struct space *space, enum part part, struct kvr_slice text)
{
        struct kvr__digest digest = kvr__hash128(&parser->hash, text.data, text.len);

        space->numbers[part * 3] = 1;
        space->numbers[part * 3 + 1] = digest.low;
        space->numbers[part * 3 + 2] = digest.high;
}

/*
 * A field that is a string, or (SGLang's batches) a list with one for each prompt, of which the first counts.
 */
static enum kvr_status put_field(struct kvr_parser *parser, struct space *space, enum part part,
                                 enum kvr__field field, struct kvr_slice *ret_text)
{
        const struct kvr__json *json = &parser->json;
        uint32_t token = parser->field[field];
        struct kvr_slice text;

        if (kvr__given(parser, token) && kvr__json_type(json, token) == KVR__JSON_ARRAY && part != SALT) {
                if (token + 1 == kvr__json_end(json, token)) {
                        parser->unkeyed = true;
                        return KVR_OK;
                }
                token++;
        }
        if (!kvr__given(parser, token))
                return KVR_OK;
        if (!kvr__json_is_string(json, token)) {
                parser->unkeyed = true;
                return KVR_OK;
        }
        if (!kvr__decoded(parser, token, &text))
                return KVR_E_NOMEM;
        /* An empty salt is none. */
        if (text.len || part != SALT)
                put_text(parser, space, part, text);
        *ret_text = text;
        return KVR_OK;
}

/* llama.cpp's list of adapters and scales. Borrows the stream, which has not begun yet. */
static enum kvr_status put_adapter_list(struct kvr_parser *parser, struct space *space)
{
        uint32_t token = parser->field[KVR__FIELD_LORA];

        if (!kvr__given(parser, token))
                return KVR_OK;
        kvr__stream_start(&parser->stream, &parser->hash, 0, KVR_UNIT_BYTES);
        kvr__canon_value(parser, token, false);
        if (!kvr__stream_finish(&parser->stream))
                return KVR_E_NOMEM;
        space->numbers[ADAPTER_LIST * 3] = 1;
        space->numbers[ADAPTER_LIST * 3 + 1] = parser->stream.chain;
        return KVR_OK;
}

enum kvr_status kvr__space(struct kvr_parser *parser, const struct kvr_prompt_options *options,
                           struct kvr_slice model, struct kvr_prompt *ret)
{
        struct space space = {0};
        struct kvr_slice extra_key = {0};
        enum kvr_status status = KVR_OK;

        if (model.len && options->resolve_model)
                model = options->resolve_model(options->resolve_ctx, model);
        if (model.len)
                put_text(parser, &space, MODEL, model);
        if (options->salt.len) {
                put_text(parser, &space, SALT, options->salt);
                ret->salt = options->salt;
        } else {
                status = put_field(parser, &space, SALT, KVR__FIELD_CACHE_SALT, &ret->salt);
        }
        if (!status)
                status = put_field(parser, &space, EXTRA_KEY, KVR__FIELD_EXTRA_KEY, &extra_key);
        if (!status)
                status = put_field(parser, &space, ADAPTER_PATH, KVR__FIELD_LORA_PATH, &ret->adapter);
        if (!status)
                status = put_adapter_list(parser, &space);
        if (status)
                return status;
        ret->space = kvr__hash_numbers(&parser->hash, space.numbers, PART_COUNT * 3);
        /* SGLang's events do not tell an extra key, and what has one is never shared. */
        parser->unmappable = extra_key.len || space.numbers[ADAPTER_LIST * 3];
        return KVR_OK;
}
