/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces in all their forms, and access logs to calibrate with. Promises checked: rows by time, as many ids as a
 * prompt has blocks, numbers of sessions that exist, and a message for everything that is refused.
 */
#include "fuzz.h"

#include "sim/calibrate.h"
#include "sim/trace.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGE  (1u << 20) /* tokens of a block: even the longest prompt has few of them */
#define DIGITS 6          /* in a row; with small blocks longer numbers would be prompts of many megabytes */

static bool long_number(const uint8_t *bytes, size_t len)
{
        size_t run = 0;

        for (size_t i = 0; i < len; i++) {
                run = bytes[i] >= '0' && bytes[i] <= '9' ? run + 1 : 0;
                if (run > DIGITS || (run && i + 1 < len && (bytes[i + 1] | 0x20) == 'e'))
                        return true;
        }
        return false;
}

static void check_trace(const struct sim_trace *trace)
{
        FUZZ_CHECK(trace->row_count > 0 && trace->block_tokens > 0);
        for (uint32_t i = 0; i < trace->row_count; i++) {
                const struct sim_trace_row *row = &trace->rows[i];

                FUZZ_CHECK(isfinite(row->time_s) && row->time_s >= 0);
                FUZZ_CHECK(i == 0 || row->time_s >= trace->rows[i - 1].time_s);
                FUZZ_CHECK(row->input_tokens > 0 && row->input_tokens <= SIM_TRACE_TOKENS_MAX);
                FUZZ_CHECK(row->output_tokens <= SIM_TRACE_TOKENS_MAX);
                FUZZ_CHECK(row->id_count == (row->input_tokens - 1) / trace->block_tokens + 1);
                FUZZ_CHECK(row->first_id + row->id_count <= trace->id_count);
                FUZZ_CHECK(row->session <= trace->session_count && row->parent <= trace->session_count);
                FUZZ_CHECK(row->parent == 0 || row->parent != row->session);
                FUZZ_CHECK(row->pause_s >= 0 && isfinite(row->pause_s));
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        struct sim_trace_options options = {.block_tokens = long_number(bytes, len) ? LARGE : 0};
        struct sim_calibration fit;
        struct sim_trace trace;
        char path[64], message[512] = "";
        int fd = memfd_create("trace", MFD_CLOEXEC);

        FUZZ_CHECK(fd >= 0);
        FUZZ_CHECK(write(fd, bytes, len) == (ssize_t)len);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (sim_trace_read(path, &options, &trace, message, sizeof message)) {
                check_trace(&trace);
                sim_trace_fini(&trace);
        } else {
                FUZZ_CHECK(strncmp(message, path, strlen(path)) == 0);
        }
        message[0] = 0;
        if (sim_calibrate(path, 2048, &fit, message, sizeof message))
                FUZZ_CHECK(fit.cost.a >= 0 && fit.cost.b >= 0 && fit.cost.c >= 0 && fit.cost.d >= 0 &&
                           fit.cost.e >= 0 && fit.cost.f >= 0 && fit.cost.g >= 0);
        else
                FUZZ_CHECK(strncmp(message, path, strlen(path)) == 0);
        close(fd);
        return 0;
}
