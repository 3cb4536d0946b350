/* SPDX-License-Identifier: Apache-2.0 */
#include "edit.h"

#include <string.h>
#include <xxhash.h>

static const struct text *sent_body(const struct exchange *exchange)
{
        return exchange->send_decoded ? &exchange->decoded : &exchange->body;
}

static void add_edit(struct exchange *exchange, size_t at, size_t remove, const char *text, bool known)
{
        struct body_edit *edit;
        unsigned place = exchange->edit_count;

        if (exchange->edit_count == BODY_EDITS_MAX)
                return;
        while (place && exchange->edits[place - 1].at > at) {
                exchange->edits[place] = exchange->edits[place - 1];
                place--;
        }
        edit = &exchange->edits[place];
        *edit = (struct body_edit){at, remove, exchange->edit_text.len, strlen(text), known};
        text_adds(&exchange->edit_text, text);
        exchange->edit_count++;
}

/* The model's name is replaced where it stands in the body as it is, without escapes. */
static void plan_alias(struct exchange *exchange, const struct kvr_prompt *prompt)
{
        const char *at = prompt->model.data, *body = sent_body(exchange)->data;

        if (prompt->model.len == 0 || strcmp(exchange->model, exchange->real_model) == 0)
                return;
        if (at < body || at + prompt->model.len > body + sent_body(exchange)->len)
                return;
        add_edit(exchange, (size_t)(at - body), prompt->model.len, exchange->real_model, true);
}

/* Of `null` or `false`. */
static size_t literal_length(const struct exchange *exchange, size_t at)
{
        return sent_body(exchange)->data[at] == 'f' ? 5 : 4;
}

static void plan_usage(struct exchange *exchange, const struct kvr_prompt *prompt)
{
        if (!exchange->worker->config->inject_usage || !prompt->stream || prompt->usage_asked ||
            (exchange->api != KVR_API_CHAT && exchange->api != KVR_API_COMPLETIONS))
                return;
        if (prompt->usage_denied)
                add_edit(exchange, prompt->usage_denied, literal_length(exchange, prompt->usage_denied),
                         "true", false);
        else if (prompt->stream_options_null)
                add_edit(exchange, prompt->stream_options_null,
                         literal_length(exchange, prompt->stream_options_null), "{\"include_usage\":true}",
                         false);
        else if (prompt->has_stream_options && prompt->stream_options_insert)
                add_edit(exchange, prompt->stream_options_insert, 0,
                         prompt->stream_options_empty ? "\"include_usage\":true" : "\"include_usage\":true,",
                         false);
        else if (!prompt->has_stream_options && !prompt->body_empty_object)
                add_edit(exchange, prompt->body_insert, 0, "\"stream_options\":{\"include_usage\":true},",
                         false);
        else
                return;
        exchange->usage_injected = true;
}

/* The salt goes to the end: where a client sent its own, engines take the last one. */
static void plan_salt(struct exchange *exchange, const struct kvr_prompt *prompt)
{
        const struct text *body = sent_body(exchange);
        const char *end = body->len ? memrchr(body->data, '}', body->len) : NULL;
        char hash[33], text[64];

        if (!exchange->worker->config->tenant_salt || exchange->api == KVR_API_OTHER || !end)
                return;
        edit_salt_of_key(exchange_client_key(exchange), exchange->worker->proxy->seed, hash);
        snprintf(text, sizeof text, "%s\"cache_salt\":\"%s\"", prompt->body_empty_object ? "" : ",", hash);
        /* To every engine: one that refuses the request for it is better than a shared cache. */
        add_edit(exchange, (size_t)(end - body->data), 0, text, true);
}

void edit_plan(struct exchange *exchange, const struct kvr_prompt *prompt)
{
        plan_alias(exchange, prompt);
        plan_usage(exchange, prompt);
        plan_salt(exchange, prompt);
}

/* An engine that refuses unknown members gets those alone that must not be left out. */
static bool wanted(const struct exchange *exchange, const struct body_edit *edit)
{
        const struct engine_traits *traits =
                engine_traits((enum engine_kind)atomic_load(&exchange->replica->engine));

        return edit->known || !traits->rejects_unknown_fields;
}

size_t edit_body_length(const struct exchange *exchange)
{
        size_t length = sent_body(exchange)->len;

        for (unsigned i = 0; i < exchange->edit_count; i++) {
                if (wanted(exchange, &exchange->edits[i]))
                        length += exchange->edits[i].text_len - exchange->edits[i].remove;
        }
        return length;
}

unsigned edit_body_pieces(const struct exchange *exchange, uv_buf_t *ret)
{
        const struct text *body = sent_body(exchange);
        size_t at = 0;
        unsigned count = 0;

        for (unsigned i = 0; i < exchange->edit_count; i++) {
                const struct body_edit *edit = &exchange->edits[i];

                if (!wanted(exchange, edit))
                        continue;
                ret[count++] = uv_buf_init(body->data + at, (unsigned)(edit->at - at));
                ret[count++] =
                        uv_buf_init(exchange->edit_text.data + edit->text_at, (unsigned)edit->text_len);
                at = edit->at + edit->remove;
        }
        if (at < body->len)
                ret[count++] = uv_buf_init(body->data + at, (unsigned)(body->len - at));
        return count;
}

void edit_multipart_model(struct exchange *exchange)
{
        static const char name[] = "name=\"model\"";
        const char *at, *end, *stop;
        size_t len;

        if (exchange->body.len == 0)
                return;
        end = exchange->body.data + exchange->body.len;
        at = memmem(exchange->body.data, exchange->body.len, name, sizeof name - 1);
        at = at ? memmem(at, (size_t)(end - at), "\r\n\r\n", 4) : NULL;
        if (!at)
                return;
        at += 4;
        stop = memmem(at, (size_t)(end - at), "\r\n", 2);
        len = stop ? (size_t)(stop - at) : 0;
        if (len == 0 || len >= sizeof exchange->model)
                return;
        memcpy(exchange->model, at, len);
        exchange->model[len] = '\0';
        memcpy(exchange->real_model, exchange->model, sizeof exchange->real_model);
}

void edit_salt_of_key(struct kvr_slice key, uint64_t seed, char ret[33])
{
        static const char digits[] = "0123456789abcdef";
        XXH128_canonical_t canonical;

        XXH128_canonicalFromHash(&canonical, XXH3_128bits_withSeed(key.data, key.len, seed));
        for (size_t i = 0; i < sizeof canonical.digest; i++) {
                ret[2 * i] = digits[canonical.digest[i] >> 4];
                ret[2 * i + 1] = digits[canonical.digest[i] & 15];
        }
        ret[32] = '\0';
}
