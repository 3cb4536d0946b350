/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed request bodies. First byte: the coding. Promise checked: whatever the input claims, no more
 * comes out than the limit, and bytes that are already there stay.
 */
#include "fuzz.h"

#include "router/decode.h"

#include <string.h>

#define LIMIT 65536

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        static const enum decode_coding codings[] = {DECODE_GZIP, DECODE_DEFLATE, DECODE_ZSTD};
        struct text out = {0};

        if (len < 1)
                return 0;
        text_adds(&out, "before");
        enum decode_result result = decode_body(
                codings[bytes[0] % 3], (struct kvr_slice){(const char *)bytes + 1, len - 1}, LIMIT, &out);
        FUZZ_CHECK(result != DECODE_NOMEM || out.len <= LIMIT + 6);
        if (result == DECODE_OK)
                FUZZ_CHECK(out.len >= 6 && out.len <= LIMIT + 6 && memcmp(out.data, "before", 6) == 0);
        text_free(&out);
        return 0;
}
