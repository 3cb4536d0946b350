/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs while the program is built: writes the files of the dashboard as one C file of arrays.
 *
 *     embed OUTPUT [SERVED-PATH CONTENT-TYPE FILE]...
 *
 * Each gets a tag made of its bytes (FNV-1a), so that a browser need not fetch again what did not change.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PER_LINE 24

static uint64_t write_bytes(FILE *out, FILE *in)
{
        uint64_t hash = UINT64_C(14695981039346656037);
        unsigned count = 0;

        for (int c; (c = getc(in)) != EOF; count++) {
                hash = (hash ^ (unsigned)c) * UINT64_C(1099511628211);
                fprintf(out, "%s%d,", count % PER_LINE ? "" : "\n", c);
        }
        return hash;
}

/* C has no empty arrays: a byte that does not count stands at the end. */
static int write_file(FILE *out, const char *name, int number, uint64_t *ret_hash)
{
        FILE *in = fopen(name, "rb");
        int bad;

        if (!in) {
                perror(name);
                return 1;
        }
        fprintf(out, "static const unsigned char file_%d[] = {", number);
        *ret_hash = write_bytes(out, in);
        fprintf(out, "0};\n");
        bad = ferror(in);
        fclose(in);
        return bad;
}

int main(int argc, char **argv)
{
        int count = (argc - 2) / 3, bad = 0;
        uint64_t *hashes = calloc((size_t)count + 1, sizeof *hashes);
        FILE *out;

        if (argc < 2 || (argc - 2) % 3 || !hashes) {
                fprintf(stderr, "usage: embed OUTPUT [SERVED-PATH CONTENT-TYPE FILE]...\n");
                free(hashes);
                return 2;
        }
        out = fopen(argv[1], "w");
        if (!out) {
                perror(argv[1]);
                free(hashes);
                return 1;
        }
        fprintf(out, "/* Made by router/web/embed.c. */\n#include \"admin_page.h\"\n");
        for (int i = 0; i < count && !bad; i++)
                bad = write_file(out, argv[2 + 3 * i + 2], i, &hashes[i]);
        fprintf(out, "const struct page_file page_files[] = {\n");
        for (int i = 0; i < count; i++)
                fprintf(out, "{\"%s\", \"%s\", \"\\\"%016" PRIx64 "\\\"\", file_%d, sizeof file_%d - 1},\n",
                        argv[2 + 3 * i], argv[3 + 3 * i], hashes[i], i, i);
        fprintf(out, "};\nconst unsigned page_file_count = %d;\n", count);
        free(hashes);
        bad |= ferror(out);
        bad |= fclose(out) != 0;
        if (bad)
                remove(argv[1]);
        return bad ? 1 : 0;
}
