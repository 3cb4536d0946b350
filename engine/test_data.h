/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings for the tests of engine/, read from tests/data/engines (meson sets KVROUTE_SOURCE_ROOT). */
#ifndef KVROUTE_ENGINE_TEST_DATA_H
#define KVROUTE_ENGINE_TEST_DATA_H

#include <kvroute/base.h>
#include <stdio.h>
#include <stdlib.h>

static inline struct kvr_slice test_data_read(const char *name)
{
        const char *root = getenv("KVROUTE_SOURCE_ROOT");
        char path[1024];
        size_t cap = 256 * 1024;
        char *text = malloc(cap);

        snprintf(path, sizeof path, "%s/tests/data/engines/%s", root ? root : ".", name);
        FILE *file = fopen(path, "rb");
        if (!file || !text) {
                fprintf(stderr, "cannot read %s\n", path);
                abort();
        }
        size_t len = fread(text, 1, cap, file);
        fclose(file);
        return (struct kvr_slice){text, len};
}

static inline void test_data_free(struct kvr_slice data)
{
        free((void *)(uintptr_t)data.data);
}

#endif
