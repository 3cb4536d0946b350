/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever an engine may answer to the router's own requests: load and health pages, detection, model lists, token
 * ids; and a client's request that becomes a question to a tokenizer.
 * First byte: the engine; second: which of its pages. Any bytes must be safe, and a page that is not
 * understood changes nothing.
 */
#include "fuzz.h"

#include "engine/detect.h"
#include "engine/engine.h"
#include "engine/models.h"
#include "engine/paths.h"
#include "engine/tokenize.h"

#include <stdlib.h>
#include <string.h>

static void feed_load(enum engine_kind kind, uint8_t number, struct kvr_slice body)
{
        const struct engine_traits *traits = engine_traits(kind);
        size_t polls = 0;
        static struct engine_load before, after;

        while (polls < ENGINE_POLLS_MAX && traits->polls[polls].path)
                polls++;
        if (polls == 0)
                return;
        engine_load_init(&before);
        memcpy(&after, &before, sizeof after);
        const char *path = traits->polls[number % polls].path;
        if (!engine_parse_load(kind, path, body, &after))
                FUZZ_CHECK(memcmp(&before, &after, sizeof after) == 0);
        FUZZ_CHECK(after.rank_count <= ENGINE_RANKS_MAX);
        const double figures[] = {
                after.sum.running,         after.sum.waiting,  after.sum.kv_usage, after.sum.waiting_tokens,
                after.sum.capacity_tokens, after.block_tokens, after.max_running,  after.slots};
        for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
                FUZZ_CHECK(figures[i] >= 0 || figures[i] == -1); /* not NAN either: unknown has one form */
}

static void feed_health(enum engine_kind kind, uint8_t number, struct kvr_slice body)
{
        static const unsigned statuses[] = {0, 200, 204, 404, 500, 503};
        const struct engine_traits *traits = engine_traits(kind);

        for (size_t i = 0; i < ENGINE_HEALTH_PATHS_MAX && traits->health_paths[i]; i++) {
                unsigned status = statuses[number % (sizeof statuses / sizeof statuses[0])];
                FUZZ_CHECK(
                        engine_health_name(engine_judge_health(kind, traits->health_paths[i], status, body)));
        }
}

static void feed_detect(uint8_t number, struct kvr_slice body)
{
        struct engine_detect detect;
        unsigned steps = 0;

        engine_detect_init(&detect);
        while (engine_detect_next_path(&detect)) {
                FUZZ_CHECK(steps++ < ENGINE_DETECT_STEPS_MAX);
                engine_detect_feed(&detect, number & 1 ? 200 : 404, (struct kvr_slice){"server", 6}, body);
                number >>= 1;
        }
        FUZZ_CHECK(memchr(detect.version, '\0', sizeof detect.version) != NULL);
}

static void feed_models(struct kvr_slice body)
{
        struct engine_models *models = NULL;
        struct kvr_error err;

        if (engine_models_parse(body, &models, &err) != KVR_OK)
                return;
        FUZZ_CHECK(models->count <= ENGINE_MODELS_MAX);
        for (size_t i = 0; i < models->count; i++)
                FUZZ_CHECK(engine_models_find(models, models->items[i].id) == &models->items[i]);
        const struct engine_models *lists[] = {models, NULL, models};
        struct engine_alias alias = {{"alias", 5},
                                     models->count ? models->items[0].id : (struct kvr_slice){0}};
        char *json = NULL;
        size_t len = 0;
        struct engine_models *merged = NULL;
        FUZZ_CHECK(engine_models_merge(lists, 3, &alias, 1, &json, &len) == KVR_OK);
        FUZZ_CHECK(json && json[len] == '\0');
        FUZZ_CHECK(engine_models_parse((struct kvr_slice){json, len}, &merged, &err) == KVR_OK);
        FUZZ_CHECK(merged->count >= models->count);
        engine_models_free(merged);
        free(json);
        engine_models_free(models);
}

/* The same bytes as a client's request and as a tokenizer's answer. */
static void feed_tokenizer(enum engine_kind kind, uint8_t number, struct kvr_slice body)
{
        enum kvr_api api = (enum kvr_api)(number % (KVR_API_SGLANG + 1));
        struct engine_question question;
        uint32_t *ids = NULL, count = 0;

        if (engine_tokenize_ask(kind, api, body, (struct kvr_slice){"m", 1}, number >> 6, &question) ==
            KVR_OK) {
                FUZZ_CHECK(question.len && question.body[0] == '{');
                FUZZ_CHECK(!(number >> 6 & 1U << question.tokenizer));
                free(question.body);
        }
        if (engine_tokenize_read(body, &ids, &count) == KVR_OK)
                FUZZ_CHECK(ids && count > 0);
        free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        if (len < 2)
                return 0;
        enum engine_kind kind = (enum engine_kind)(bytes[0] % ENGINE_KIND_COUNT);
        struct kvr_slice body = {(const char *)bytes + 2, len - 2};

        feed_load(kind, bytes[1], body);
        feed_health(kind, bytes[1], body);
        feed_detect(bytes[1], body);
        feed_models(body);
        feed_tokenizer(kind, bytes[1], body);
        if (engine_path_clears_cache(body))
                FUZZ_CHECK(engine_path_is_admin((struct kvr_slice){"POST", 4}, body));
        (void)engine_path_is_admin((struct kvr_slice){"GET", 3}, body);
        return 0;
}
