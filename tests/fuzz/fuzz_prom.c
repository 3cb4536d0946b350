/* SPDX-License-Identifier: Apache-2.0 */
/* Pages in Prometheus' text format. Promises checked: everything a sample says lies in the page, and reading
 * ends. */
#include "fuzz.h"

#include "proto/prom.h"

#include <math.h>
#include <string.h>

static void check_inside(struct kvr_slice slice, struct kvr_slice page)
{
        FUZZ_CHECK(slice.len == 0 ||
                   (slice.data >= page.data && slice.data + slice.len <= page.data + page.len));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        struct kvr_slice page = {(const char *)bytes, len};
        struct prom_reader reader;
        struct prom_sample sample;
        uint64_t samples = 0;

        prom_init(&reader, page);
        while (prom_next(&reader, &sample)) {
                samples++;
                FUZZ_CHECK(sample.name.len > 0 && sample.label_count <= PROM_LABELS_MAX);
                check_inside(sample.name, page);
                for (uint32_t i = 0; i < sample.label_count; i++) {
                        char plain[16];
                        check_inside(sample.labels[i].name, page);
                        check_inside(sample.labels[i].value, page);
                        memset(plain, 'x', sizeof plain);
                        (void)prom_unescape(sample.labels[i].value, plain, sizeof plain);
                        FUZZ_CHECK(memchr(plain, '\0', sizeof plain) != NULL);
                }
                check_inside(prom_label(&sample, "engine"), page);
                double rank = prom_label_number(&sample, "dp_rank");
                FUZZ_CHECK(rank == -1 || (rank >= 0 && rank <= 0x1.0p53));
                /* Every sample takes at least a name, a space and a digit. */
                FUZZ_CHECK(samples * 3 <= len + 3);
        }
        FUZZ_CHECK(reader.samples == samples && reader.skipped <= len);
        return 0;
}
