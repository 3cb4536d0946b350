/* SPDX-License-Identifier: Apache-2.0 */
/* Secrets: given as they are, by an environment variable, or by a file. Errors never show them. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_int.h"

#define SECRET_FILE_MAX (1024 * 1024)
#define SHOW(slice)     (int)((slice).len < 200 ? (slice).len : 200), (slice).data

char *config_read_file(struct config_builder *b, const char *path, const char *place, size_t max,
                       size_t *ret_len)
{
        size_t len = 0, cap = 4096;
        char *text = NULL;
        struct stat st;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a named pipe must not hang the start */

        if (fd < 0 || fstat(fd, &st) != 0) {
                config_fail(b, place, "cannot read %s: %s", path, strerror(errno));
                goto fail;
        }
        if (!S_ISREG(st.st_mode)) {
                config_fail(b, place, "cannot read %s: not a regular file", path);
                goto fail;
        }
        for (;;) {
                char *more = len + 1 < cap && text ? text : realloc(text, cap *= 2);

                if (!more) {
                        config_no_memory(b, place);
                        goto fail;
                }
                text = more;
                ssize_t n = read(fd, text + len, cap - len - 1);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0) {
                        config_fail(b, place, "cannot read %s: %s", path, strerror(errno));
                        goto fail;
                }
                len += (size_t)n;
                if (len > max) {
                        config_fail(b, place, "%s is larger than %zu bytes", path, max);
                        goto fail;
                }
                if (n == 0)
                        break;
        }
        close(fd);
        text[len] = 0;
        *ret_len = len;
        return text;
fail:
        free(text);
        if (fd >= 0)
                close(fd);
        return NULL;
}

static const char *find_environment(const struct config_builder *b, struct kvr_slice name)
{
        for (char *const *entry = b->environment; entry && *entry; entry++)
                if (strncmp(*entry, name.data, name.len) == 0 && (*entry)[name.len] == '=')
                        return *entry + name.len + 1;
        return NULL;
}

static bool starts_with(struct kvr_slice *text, const char *with)
{
        size_t n = strlen(with);

        if (text->len < n || memcmp(text->data, with, n) != 0)
                return false;
        text->data += n;
        text->len -= n;
        return true;
}

/* All that env: or file: lead to; plain values as they are. The caller wipes it. */
static char *secret_source(struct config_builder *b, struct kvr_slice value, const char *place,
                           size_t *ret_len)
{
        char path[CONFIG_PLACE_MAX];

        if (starts_with(&value, "env:")) {
                const char *found = value.len > 0 ? find_environment(b, value) : NULL;

                if (!found) {
                        config_fail(b, place, "environment variable %.*s is not set", SHOW(value));
                        return NULL;
                }
                value = (struct kvr_slice){found, strlen(found)};
        } else if (starts_with(&value, "file:")) {
                if (value.len >= sizeof path || (value.len > 0 && memchr(value.data, 0, value.len))) {
                        config_fail(b, place, "the path after file: is too long");
                        return NULL;
                }
                snprintf(path, sizeof path, "%.*s", (int)value.len, value.data);
                return config_read_file(b, path, place, SECRET_FILE_MAX, ret_len);
        }
        *ret_len = value.len;
        return config_copy_text(b, value, place);
}

static bool check_secret(struct config_builder *b, struct kvr_slice value, const char *place)
{
        bool plain = value.len > 0 && value.len <= REPLICA_SECRET_MAX;

        for (size_t i = 0; plain && i < value.len; i++)
                plain = value.data[i] > ' ' && value.data[i] < 0x7f;
        return plain ||
               config_fail(b, place,
                           "the secret must be 1 to %d printable characters without space (value not shown)",
                           REPLICA_SECRET_MAX);
}

/* The next line that is neither empty nor a comment, without surrounding space. */
static bool next_line(struct kvr_slice *text, struct kvr_slice *ret)
{
        while (text->len > 0) {
                const char *nl = memchr(text->data, '\n', text->len);
                struct kvr_slice line = {text->data, nl ? (size_t)(nl - text->data) : text->len};

                text->data += line.len + (nl != NULL);
                text->len -= line.len + (nl != NULL);
                while (line.len > 0 && (unsigned char)line.data[line.len - 1] <= ' ')
                        line.len--;
                while (line.len > 0 && (unsigned char)*line.data <= ' ')
                        line = (struct kvr_slice){line.data + 1, line.len - 1};
                if (line.len > 0 && *line.data != '#') {
                        *ret = line;
                        return true;
                }
        }
        return false;
}

char *config_secret(struct config_builder *b, struct kvr_slice value, const char *place)
{
        size_t len = 0;
        char *source = secret_source(b, value, place, &len), *secret = NULL;
        struct kvr_slice rest = {source, len}, line = {"", 0};

        if (!source)
                return NULL;
        (void)next_line(&rest, &line);
        if (check_secret(b, line, place))
                secret = config_copy_text(b, line, place);
        config_wipe_free(source, len);
        return secret;
}

bool config_add_secrets(struct config_builder *b, struct config_strings *list, struct kvr_slice value,
                        const char *place)
{
        size_t len = 0, before = list->count;
        char *source = secret_source(b, value, place, &len);
        struct kvr_slice rest = {source, len}, line;
        bool ok = source != NULL;

        while (ok && next_line(&rest, &line))
                ok = check_secret(b, line, place) &&
                     config_add_string(b, list, config_copy_text(b, line, place), place);
        if (ok && list->count == before)
                ok = check_secret(b, (struct kvr_slice){"", 0}, place);
        config_wipe_free(source, len);
        return ok;
}

bool config_same_secret(struct kvr_slice given, const char *secret)
{
        size_t len = strlen(secret);
        unsigned char difference = (unsigned char)(given.len != len);

        for (size_t i = 0; i < given.len && len; i++)
                difference |= (unsigned char)(given.data[i] ^ secret[i % len]);
        return difference == 0;
}
