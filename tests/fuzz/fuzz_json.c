/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON documents. Promises checked: every scanner gives the same tokens, and accepts what yyjson accepts,
 * with the same strings and numbers, but for the four extensions that set a flag.
 */
#include "fuzz.h"

#include "lib/json.h"
#include "kvroute/prompt.h"

#include <string.h>
#include <yyjson.h>

/* Python's reader takes a byte order mark, yyjson does not. */
static yyjson_doc *read_oracle(const uint8_t *bytes, size_t len)
{
        char *copy;
        yyjson_doc *doc;

        if (len >= 3 && !memcmp(bytes, "\xEF\xBB\xBF", 3)) {
                bytes += 3;
                len -= 3;
        }
        copy = malloc(len + 1);
        FUZZ_CHECK(copy != NULL);
        memcpy(copy, bytes, len);
        doc = yyjson_read_opts(copy, len, YYJSON_READ_NUMBER_AS_RAW, NULL, NULL);
        free(copy);
        return doc;
}

static void check_string(struct kvr_slice text, const char *want, size_t len)
{
        char *room = malloc(text.len + 1), *again = malloc(text.len + 1);
        uint32_t canonical;

        FUZZ_CHECK(room != NULL && again != NULL);
        FUZZ_CHECK(kvr__json_decode(text.data, (uint32_t)text.len, room) == len);
        FUZZ_CHECK(memcmp(room, want, len) == 0);
        /* The canonical spelling decodes to the same. */
        canonical = kvr__json_canonical(text.data, (uint32_t)text.len, room);
        FUZZ_CHECK(canonical <= text.len);
        FUZZ_CHECK(kvr__json_decode(room, canonical, again) == len && memcmp(again, want, len) == 0);
        free(room);
        free(again);
}

/* The value at `token` is the one of yyjson; gives the token behind it. */
static uint32_t check_value(const struct kvr__json *json, uint32_t token, yyjson_val *val)
{
        struct kvr_slice text = kvr__json_text(json, token);
        size_t i, max;
        yyjson_val *key, *one;

        switch (yyjson_get_type(val)) {
        case YYJSON_TYPE_OBJ:
                FUZZ_CHECK(kvr__json_type(json, token) == KVR__JSON_OBJECT);
                token++;
                yyjson_obj_foreach(val, i, max, key, one) token =
                        check_value(json, check_value(json, token, key), one);
                FUZZ_CHECK(kvr__json_type(json, token) == KVR__JSON_END);
                break;
        case YYJSON_TYPE_ARR:
                FUZZ_CHECK(kvr__json_type(json, token) == KVR__JSON_ARRAY);
                token++;
                yyjson_arr_foreach(val, i, max, one) token = check_value(json, token, one);
                FUZZ_CHECK(kvr__json_type(json, token) == KVR__JSON_END);
                break;
        case YYJSON_TYPE_STR:
                FUZZ_CHECK(kvr__json_is_string(json, token));
                check_string(text, yyjson_get_str(val), yyjson_get_len(val));
                break;
        case YYJSON_TYPE_RAW:
                FUZZ_CHECK(kvr__json_type(json, token) == KVR__JSON_NUMBER);
                FUZZ_CHECK(text.len == yyjson_get_len(val) &&
                           !memcmp(text.data, yyjson_get_raw(val), text.len));
                break;
        case YYJSON_TYPE_BOOL:
                FUZZ_CHECK(kvr__json_bool(json, token) == (yyjson_get_bool(val) ? 1 : 0));
                break;
        default:
                FUZZ_CHECK(kvr__json_is_null(json, token));
        }
        return token + 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        struct kvr_slice text = {(const char *)bytes, len};
        yyjson_doc *doc = read_oracle(bytes, len);
        struct kvr__json first = {.scan = kvr__scanner_at(0)->scan};
        size_t where, offset;
        enum kvr_status status = kvr__json_read(&first, text, &where);

        FUZZ_CHECK(where <= len);
        for (size_t s = 1; s < kvr__scanner_count(); s++) {
                struct kvr__json other = {.scan = kvr__scanner_at(s)->scan};

                FUZZ_CHECK(kvr__json_read(&other, text, &offset) == status && offset == where);
                if (status == KVR_OK) {
                        FUZZ_CHECK(other.flags == first.flags && other.count == first.count);
                        FUZZ_CHECK(!memcmp(first.tokens, other.tokens, first.count * sizeof *first.tokens));
                }
                kvr__json_fini(&other);
        }
        /* Nesting is limited here and not there. */
        if (status != KVR_E_LIMIT) {
                bool plain = status == KVR_OK && !(first.flags & ~(uint32_t)KVR__JSON_BOM);

                FUZZ_CHECK(plain == (doc != NULL));
                if (plain)
                        FUZZ_CHECK(check_value(&first, 0, yyjson_doc_get_root(doc)) == first.count);
        }
        yyjson_doc_free(doc);
        kvr__json_fini(&first);
        return 0;
}
