/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token counts in the bytes of an answer. First three bytes: engine, API, size of the pieces. Promise
 * checked: the figures do not depend on how the bytes arrive, and unknown stays distinguishable from every
 * count.
 */
#include "fuzz.h"

#include "engine/usage.h"

#include <string.h>

static void read_all(const char *data, size_t len, size_t step, uint8_t kind, uint8_t api, struct usage *ret)
{
        struct usage_tap tap;

        usage_tap_init(&tap, (enum engine_kind)(kind % ENGINE_KIND_COUNT),
                       (enum kvr_api)(api % (KVR_API_SGLANG + 1)), (kind & 0x80) != 0);
        for (size_t at = 0; at < len;) {
                size_t piece = step > 0 && step < len - at ? step : len - at;
                usage_tap_feed(&tap, data + at, piece);
                at += piece;
        }
        memset(ret, 0, sizeof *ret);
        usage_tap_result(&tap, (api & 0x80) != 0, ret);
        usage_tap_fini(&tap);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        if (len < 3)
                return 0;
        const char *data = (const char *)bytes + 3;
        struct usage whole, pieces;

        read_all(data, len - 3, 0, bytes[0], bytes[1], &whole);
        read_all(data, len - 3, bytes[2] % 61 + 1u, bytes[0], bytes[1], &pieces);
        FUZZ_CHECK(whole.prompt_tokens >= -1 && whole.cached_tokens >= -1 && whole.completion_tokens >= -1);
        FUZZ_CHECK(memchr(whole.id, '\0', sizeof whole.id) != NULL);
        FUZZ_CHECK(usage_finish_name(whole.finish) != NULL);
        FUZZ_CHECK(whole.prompt_tokens == pieces.prompt_tokens &&
                   whole.cached_tokens == pieces.cached_tokens);
        FUZZ_CHECK(whole.completion_tokens == pieces.completion_tokens && whole.finish == pieces.finish);
        FUZZ_CHECK(strcmp(whole.id, pieces.id) == 0 && whole.report_proved == pieces.report_proved);
        return 0;
}
