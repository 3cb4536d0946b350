/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Request bodies. First byte: the API; second: how much of the body a second parser sees first, so that its
 * memory is not fresh. Promises checked: points rise, keys are never 0, places for insertion are places,
 * equal bodies give equal keys whatever the parser saw before, and so does the body as another writer spells
 * it.
 */
#include "fuzz.h"

#include <kvroute/prompt.h>

#include "lib/prompt_parser.h"

#include <string.h>
#include <yyjson.h>

static void check_prompt(const struct kvr_prompt *prompt, struct kvr_slice body)
{
        uint32_t before = 0;

        FUZZ_CHECK(prompt->point_count <= KVR_POINTS_MAX);
        for (uint32_t i = 0; i < prompt->point_count; i++) {
                FUZZ_CHECK(prompt->points[i].key != 0);
                FUZZ_CHECK(prompt->points[i].end > before);
                before = prompt->points[i].end;
        }
        FUZZ_CHECK(prompt->units == before);
        FUZZ_CHECK(prompt->choices >= 1);
        /* Only a path without a rule lets bodies through that are no objects. */
        if (prompt->body_insert || prompt->api != KVR_API_OTHER) {
                FUZZ_CHECK(prompt->body_insert >= 1 && prompt->body_insert <= body.len);
                FUZZ_CHECK(body.data[prompt->body_insert - 1] == '{');
        }
        if (prompt->stream_options_insert) {
                FUZZ_CHECK(prompt->stream_options_insert <= body.len);
                FUZZ_CHECK(body.data[prompt->stream_options_insert - 1] == '{');
        }
        FUZZ_CHECK(prompt->model.len <= body.len && prompt->hint.len <= body.len);
}

static bool same_keys(const struct kvr_prompt *a, const struct kvr_prompt *b)
{
        if (a->point_count != b->point_count || a->space != b->space || a->unit != b->unit)
                return false;
        for (uint32_t i = 0; i < a->point_count; i++)
                if (a->points[i].key != b->points[i].key || a->points[i].end != b->points[i].end)
                        return false;
        return true;
}

/*
 * The document once more, as yyjson writes it. False when yyjson has another idea of JSON than some engines.
 */
static bool respelled(struct kvr_slice body, uint32_t flags, char **ret_text, size_t *ret_len)
{
        char *copy = malloc(body.len + 1);
        yyjson_doc *doc;

        FUZZ_CHECK(copy != NULL);
        memcpy(copy, body.data, body.len);
        doc = yyjson_read_opts(copy, body.len, YYJSON_READ_NUMBER_AS_RAW, NULL, NULL);
        free(copy);
        *ret_text = doc ? yyjson_write(doc, flags, ret_len) : NULL;
        yyjson_doc_free(doc);
        return *ret_text != NULL;
}

static void check_respelled(struct kvr_parser *parser, enum kvr_api api, struct kvr_slice body,
                            const struct kvr_prompt_options *options, enum kvr_status status,
                            const struct kvr_prompt *prompt)
{
        static const uint32_t spellings[] = {YYJSON_WRITE_NOFLAG, YYJSON_WRITE_PRETTY |
                                                                          YYJSON_WRITE_ESCAPE_UNICODE |
                                                                          YYJSON_WRITE_ESCAPE_SLASHES};

        for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
                struct kvr_prompt other;
                char *text;
                size_t len;

                if (!respelled(body, spellings[i], &text, &len))
                        return;
                FUZZ_CHECK(kvr_prompt_parse(parser, api, (struct kvr_slice){text, len}, options, &other,
                                            NULL) == status);
                FUZZ_CHECK(status != KVR_OK || same_keys(prompt, &other));
                free(text);
        }
}

/* Patterns to ignore make a name, and change nothing else. */
static void check_ignoring(struct kvr_parser *parser, enum kvr_api api, struct kvr_slice body,
                           enum kvr_status status, const struct kvr_prompt *prompt)
{
        static const struct kvr_slice patterns[] = {
                {"timestamp", 9}, {"uuid", 4}, {"number", 6}, {"hex:8", 5}, {"after:a", 7}};
        struct kvr_prompt_options options = {.seed = 7};
        struct kvr_ignore *ignore = NULL;
        struct kvr_prompt other;

        FUZZ_CHECK(kvr_ignore_new(patterns, sizeof patterns / sizeof *patterns, &ignore, NULL) == KVR_OK);
        options.ignore = ignore;
        FUZZ_CHECK(kvr_prompt_parse(parser, api, body, &options, &other, NULL) == status);
        if (status == KVR_OK) {
                FUZZ_CHECK(same_keys(prompt, &other));
                FUZZ_CHECK(!prompt->hint.len || other.hint.len == prompt->hint.len);
                FUZZ_CHECK(prompt->hint.len || !other.hint.len || memcmp(other.hint.data, "ignore-", 7) == 0);
        }
        kvr_ignore_free(ignore);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        if (len < 2)
                return 0;
        enum kvr_api api = (enum kvr_api)(bytes[0] % (KVR_API_SGLANG + 1));
        struct kvr_slice body = {(const char *)bytes + 2, len - 2};
        struct kvr_slice part = {body.data, body.len * bytes[1] / 255};
        struct kvr_prompt_options options = {.seed = 7};
        struct kvr_prompt fresh, used, ignored;
        struct kvr_error err = {0};
        struct kvr_parser *a = kvr_parser_new();
        struct kvr_parser *b = kvr_parser_new();

        FUZZ_CHECK(a != NULL && b != NULL);
        b->recall.first = 4;
        b->recall.step_min = 4;
        b->recall.rest = 1;
        enum kvr_status status = kvr_prompt_parse(a, api, body, &options, &fresh, &err);
        if (kvr_prompt_parse(b, api, part, &options, &ignored, NULL) == KVR_OK)
                check_prompt(&ignored, part);
        /* Again and again, as what was met before is not read anew: with many checkpoints in few bytes. */
        for (int i = 0; i < 4; i++) {
                FUZZ_CHECK(kvr_prompt_parse(b, api, body, &options, &used, NULL) == status);
                if (status == KVR_OK)
                        FUZZ_CHECK(same_keys(&fresh, &used));
                if (kvr_prompt_parse(b, api, part, &options, &ignored, NULL) == KVR_OK)
                        check_prompt(&ignored, part);
        }
        FUZZ_CHECK(kvr_prompt_parse(b, api, body, &options, &used, NULL) == status);
        if (status == KVR_OK) {
                check_prompt(&fresh, body);
                FUZZ_CHECK(same_keys(&fresh, &used));
        } else {
                FUZZ_CHECK(err.status == status && err.message[0] != '\0' && err.offset <= body.len);
                FUZZ_CHECK(memchr(err.message, '\0', sizeof err.message) != NULL);
        }
        check_respelled(b, api, body, &options, status, &fresh);
        check_ignoring(b, api, body, status, &fresh);
        kvr_parser_free(a);
        kvr_parser_free(b);
        return 0;
}
