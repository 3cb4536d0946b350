/* SPDX-License-Identifier: Apache-2.0 */
#include "capture_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODE 0600

/* Not waiting: a pipe that nobody reads must not hold up the router. */
static int open_path(struct capture_file *file)
{
        int fd = open(file->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, MODE);
        struct stat stat;
        int error = 0;

        if (fd < 0)
                return errno;
        /* It may have been there with a wider mode. */
        if (fstat(fd, &stat) || (S_ISREG(stat.st_mode) && (stat.st_mode & 0777) != MODE && fchmod(fd, MODE)))
                error = errno;
        if (error) {
                close(fd);
                return error;
        }
        file->fd = fd;
        file->regular = S_ISREG(stat.st_mode);
        file->bytes = file->regular ? (uint64_t)stat.st_size : 0;
        return 0;
}

/* All of it, or what an earlier call left. */
static int append(struct capture_file *file, struct kvr_slice bytes)
{
        size_t done = 0;

        while (done < bytes.len) {
                ssize_t got = write(file->fd, bytes.data + done, bytes.len - done);

                if (got < 0 && errno == EINTR)
                        continue;
                if (got <= 0) {
                        int error = got < 0 ? errno : EIO;

                        if (done && file->regular && ftruncate(file->fd, (off_t)file->bytes))
                                file->bytes +=
                                        done; /* a torn line is in it now, and no way to take it back */
                        return error;
                }
                done += (size_t)got;
        }
        file->bytes += bytes.len;
        return 0;
}

static int name_of(const struct capture_file *file, unsigned number, char **ret)
{
        size_t size = strlen(file->path) + 16;

        *ret = malloc(size);
        if (!*ret)
                return ENOMEM;
        if (number)
                snprintf(*ret, size, "%s.%u", file->path, number);
        else
                snprintf(*ret, size, "%s", file->path);
        return 0;
}

/* FILE.number is free afterwards; what is beyond the last number is deleted. */
static int push(const struct capture_file *file, unsigned number, unsigned files)
{
        char *from, *to = NULL;
        int error = name_of(file, number, &from);

        if (error)
                return error;
        if (number + 1 >= files) {
                if (unlink(from) && errno != ENOENT)
                        error = errno;
        } else {
                error = name_of(file, number + 1, &to);
                if (!error && rename(from, to) && errno != ENOENT)
                        error = errno;
        }
        free(from);
        free(to);
        return error;
}

/* The file stays open until there is another one. */
static int rotate(struct capture_file *file, unsigned files)
{
        struct capture_file old = *file;
        int error = 0;

        for (unsigned number = files ? files - 1 : 0; !error; number--) {
                error = push(file, number, files);
                if (!number)
                        break;
        }
        if (!error)
                error = open_path(file);
        if (error)
                *file = old;
        else if (old.fd >= 0)
                close(old.fd);
        return error;
}

int capture_file_open(struct capture_file *file, const char *path, bool fresh, unsigned files)
{
        struct kvr_slice proof = {"\n", 1};
        int error;

        *file = (struct capture_file){.path = strdup(path), .fd = -1};
        if (!file->path)
                return ENOMEM;
        error = open_path(file);
        if (!error && fresh && file->bytes)
                error = rotate(file, files);
        if (!error)
                error = append(file, proof);
        if (!error && file->regular) {
                if (ftruncate(file->fd, (off_t)(file->bytes - proof.len)))
                        error = errno;
                file->bytes -= proof.len;
        }
        if (error)
                capture_file_close(file);
        return error;
}

int capture_file_write(struct capture_file *file, struct kvr_slice lines, uint64_t max, unsigned files,
                       size_t *ret_written)
{
        *ret_written = 0;
        while (lines.len) {
                const char *end = memchr(lines.data, '\n', lines.len);
                size_t take = end ? (size_t)(end - lines.data) + 1 : lines.len;
                int error;

                /* As many lines as fit; in an empty file one always does. */
                while (take < lines.len) {
                        end = memchr(lines.data + take, '\n', lines.len - take);
                        size_t more = end ? (size_t)(end - lines.data) + 1 : lines.len;

                        if (file->regular && file->bytes + more > max)
                                break;
                        take = more;
                }
                if (file->regular && file->bytes && file->bytes + take > max) {
                        error = rotate(file, files);
                        if (error)
                                return error;
                        continue;
                }
                error = append(file, (struct kvr_slice){lines.data, take});
                if (error)
                        return error;
                *ret_written += take;
                lines.data += take;
                lines.len -= take;
        }
        return 0;
}

int capture_file_reopen(struct capture_file *file)
{
        struct capture_file old = *file;
        int error = open_path(file);

        if (error)
                *file = old;
        else if (old.fd >= 0)
                close(old.fd);
        return error;
}

void capture_file_close(struct capture_file *file)
{
        if (file->fd >= 0)
                close(file->fd);
        free(file->path);
        *file = (struct capture_file){.fd = -1};
}
