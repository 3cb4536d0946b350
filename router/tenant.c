/* SPDX-License-Identifier: Apache-2.0 */
#include "tenant.h"

#include <yyjson.h>

#include "decode.h"

static bool refuse(struct exchange *exchange, const char *message, const char *field)
{
        reply_error_field(exchange, 400, "invalid_request", message, field);
        return true;
}

bool tenant_refuses_head(struct exchange *exchange)
{
        if (!exchange->worker->config->tenant_salt || !exchange->upgrade)
                return false;
        return refuse(exchange, "no upgrade is forwarded, as what passes then cannot be salted (tenant-salt)",
                      NULL);
}

static bool is_blank(char byte)
{
        return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

/*
 * Whether some reader may take it for a JSON object; *ret_at is where that begins. Python's reader knows
 * UTF-16 and UTF-32 by their zero bytes or marks: there is nothing of that in an object that we can read.
 */
static bool may_be_object(struct kvr_slice body, size_t *ret_at, bool *ret_wide)
{
        size_t at = body.len >= 3 && memcmp(body.data, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
        bool wide = false;

        for (; at < body.len; at++) {
                unsigned char byte = (unsigned char)body.data[at];

                if (byte == 0 || byte >= 0xFE)
                        wide = true;
                else if (!is_blank(body.data[at]))
                        break;
        }
        if (at == body.len || body.data[at] != '{')
                return false;
        *ret_at = at;
        *ret_wide = wide;
        return true;
}

enum look { LOOK_FREE, LOOK_SALTED, LOOK_UNREADABLE };

/* Whether a member of the object itself is a salt, in whatever spelling of its name. */
static enum look look_for_salt(struct kvr_slice object)
{
        yyjson_doc *doc = yyjson_read(object.data, object.len,
                                      YYJSON_READ_NUMBER_AS_RAW | YYJSON_READ_ALLOW_INF_AND_NAN);
        enum look look = LOOK_FREE;
        yyjson_obj_iter iter;
        yyjson_val *key;

        if (!doc)
                return LOOK_UNREADABLE;
        iter = yyjson_obj_iter_with(yyjson_doc_get_root(doc));
        while ((key = yyjson_obj_iter_next(&iter))) {
                if (yyjson_equals_str(key, "cache_salt"))
                        look = LOOK_SALTED;
        }
        yyjson_doc_free(doc);
        return look;
}

bool tenant_refuses_body(struct exchange *exchange)
{
        bool encoded = exchange->encoding != DECODE_IDENTITY;
        struct kvr_slice body = text_slice(encoded ? &exchange->decoded : &exchange->body);
        bool wide;
        size_t at;

        if (!exchange->worker->config->tenant_salt || exchange->body.len == 0)
                return false;
        if (encoded && !exchange->send_decoded)
                return refuse(
                        exchange,
                        "the Content-Encoding cannot be undone, and a body that cannot be read cannot be "
                        "salted (tenant-salt)",
                        NULL);
        /* The APIs that are known are read in full, and get the salt. */
        if (exchange->api != KVR_API_OTHER || !may_be_object(body, &at, &wide))
                return false;
        enum look found = LOOK_UNREADABLE;

        if (!wide)
                found = look_for_salt((struct kvr_slice){body.data + at, body.len - at});
        switch (found) {
        case LOOK_SALTED:
                return refuse(exchange,
                              "cache_salt is for the router to set (tenant-salt), and on this path it cannot",
                              "cache_salt");
        case LOOK_UNREADABLE:
                return refuse(exchange,
                              "the body looks like a JSON object and cannot be read as one, so it may hold a "
                              "cache_salt (tenant-salt)",
                              NULL);
        case LOOK_FREE:
                break;
        }
        return false;
}
