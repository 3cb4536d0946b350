/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded streams through the event scanner: what each engine sends, in which order, and which event is the
 * first token. */
#include "proto/sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "test_data.h"

/* Kinds of events as letters: c d e(arly) u D(one) E(rror); T follows the first token. */
static void check(const char *name, const char *want)
{
        static const char letters[] = "cdeuDE";
        struct kvr_slice text = test_data_read(name);

        for (size_t step = 1; step <= 2 * text.len; step = step * 3 / 2 + 1) {
                struct sse_scanner scanner;
                char kinds[64] = "";
                size_t count = 0;

                sse_init(&scanner);
                for (size_t at = 0; at < text.len; at += step) {
                        size_t len = text.len - at < step ? text.len - at : step, pos = 0;
                        struct sse_event event;

                        while (sse_next(&scanner, text.data + at, len, &pos, &event)) {
                                assert_true(count + 2 < sizeof kinds);
                                kinds[count++] = letters[event.kind];
                                if (event.first_token)
                                        kinds[count++] = 'T';
                        }
                }
                assert_string_equal(kinds, want);
                assert_true(sse_at_boundary(&scanner));
        }
        test_data_free(text);
}

static void test_vllm(void **state)
{
        (void)state;
        check("vllm/chat-stream-usage-2.sse", "dTdddddddduD");
        check("vllm/chat-stream-continuous.sse", "dTddduD");
        check("vllm/completion-stream-usage-2.sse", "dTddddddduD");
        check("vllm/messages-stream-cold.sse", "dTdddddddd");
        /* created and in_progress come before the prefill, the item and its part with the first token */
        check("vllm/responses-stream.sse", "eedddTdddddddddd");
        /* a stream that ended well is not a success */
        check("vllm/chat-stream-engine-died.sse", "dTdddED");
}

static void test_sglang(void **state)
{
        (void)state;
        check("sglang/chat-stream.sse", "dTddddD");
        check("sglang/chat-stream-usage-2.sse", "dTdddduD");
        check("sglang/completion-stream-usage-2.sse", "dTddduD");
        check("sglang/generate-stream.sse", "dTddD");
        check("sglang/messages-stream.sse", "dTddddddd");
        check("sglang/responses-stream.sse", "eedddTdddd");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_vllm),
                cmocka_unit_test(test_sglang),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
