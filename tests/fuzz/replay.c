/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for the fuzzer's main() where there is no fuzzer: runs a fuzz target once over every file of the
 * given folders and prints TAP. So every compiler builds the targets, and inputs that once crashed stay
 * tested everywhere.
 */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_BYTES_MAX (16u << 20)

/* Gives the file's bytes in a buffer of exactly their size, so that a read past the end is seen. NULL on
 * failure. */
static uint8_t *read_file(const char *path, size_t *ret_len)
{
        FILE *file = fopen(path, "rb");
        if (!file)
                return NULL;
        uint8_t *bytes = NULL;
        long len = -1;
        if (fseek(file, 0, SEEK_END) == 0)
                len = ftell(file);
        if (len >= 0 && (size_t)len <= INPUT_BYTES_MAX && fseek(file, 0, SEEK_SET) == 0) {
                bytes = malloc(len > 0 ? (size_t)len : 1);
                if (bytes && fread(bytes, 1, (size_t)len, file) != (size_t)len) {
                        free(bytes);
                        bytes = NULL;
                }
        }
        fclose(file);
        if (bytes)
                *ret_len = (size_t)len;
        return bytes;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
        return strcmp((*a)->d_name, (*b)->d_name);
}

/* Cases are numbered on from *cases. Returns how many of them could not be read. */
static unsigned replay_folder(const char *folder, unsigned *cases)
{
        struct dirent **entries;
        int count = scandir(folder, &entries, NULL, by_name);
        if (count < 0) {
                printf("not ok %u - %s cannot be read\n", ++*cases, folder);
                return 1;
        }
        unsigned failed = 0;
        for (int i = 0; i < count; i++) {
                char path[4096];
                int n = snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
                bool hidden = entries[i]->d_name[0] == '.';
                free(entries[i]);
                if (hidden)
                        continue;
                size_t len = 0;
                uint8_t *bytes = n > 0 && (size_t)n < sizeof path ? read_file(path, &len) : NULL;
                ++*cases;
                if (!bytes) {
                        printf("not ok %u - %s cannot be read\n", *cases, path);
                        failed++;
                        continue;
                }
                LLVMFuzzerTestOneInput(bytes, len);
                free(bytes);
                printf("ok %u - %s\n", *cases, path);
                fflush(stdout);
        }
        free(entries);
        return failed;
}

int main(int argc, char **argv)
{
        unsigned cases = 1;
        unsigned failed = 0;
        const uint8_t nothing = 0;

        LLVMFuzzerTestOneInput(&nothing, 0);
        printf("ok 1 - nothing\n");
        for (int i = 1; i < argc; i++)
                failed += replay_folder(argv[i], &cases);
        printf("1..%u\n", cases);
        return failed > 0;
}
