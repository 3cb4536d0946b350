/* SPDX-License-Identifier: Apache-2.0 */
#include "capture_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODE       0600
#define OPEN_TRIES 8 /* another router would have to begin a new file in each of them */

static bool is_same(const struct stat *a, const struct stat *b)
{
        return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/*
 * A file system without locks is no reason not to write. ESTALE: while it was opened, whoever had it put it aside,
 * and the path names another file now.
 */
static int lock(const char *path, int fd, const struct stat *opened)
{
        struct stat named;

        if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
                return EBUSY;
        return stat(path, &named) || !is_same(&named, opened) ? ESTALE : 0;
}

/*
 * Into *file, whose old descriptor stays as it is; it is kept if the path still names the same file, for a second
 * one could not lock it. Not waiting: a pipe that nobody reads must not hold up the router.
 */
static int open_once(struct capture_file *file)
{
        int fd = open(file->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, MODE), error = 0;
        struct stat opened, old;
        bool kept;

        if (fd < 0)
                return errno;
        /* It may have been there with a wider mode. */
        if (fstat(fd, &opened) ||
            (S_ISREG(opened.st_mode) && (opened.st_mode & 0777) != MODE && fchmod(fd, MODE)))
                error = errno;
        kept = !error && file->fd >= 0 && !fstat(file->fd, &old) && is_same(&old, &opened);
        if (!error && !kept && S_ISREG(opened.st_mode))
                error = lock(file->path, fd, &opened);
        if (error || kept)
                close(fd);
        if (error)
                return error;
        file->fd = kept ? file->fd : fd;
        file->regular = S_ISREG(opened.st_mode);
        file->bytes = file->regular ? (uint64_t)opened.st_size : 0;
        return 0;
}

static int open_path(struct capture_file *file)
{
        int error = ESTALE;

        for (int i = 0; error == ESTALE && i < OPEN_TRIES; i++)
                error = open_once(file);
        return error;
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

/* Nobody moved it away, and so perhaps put another one there. */
static bool is_in_place(const struct capture_file *file)
{
        struct stat opened, named;

        return !fstat(file->fd, &opened) && !stat(file->path, &named) && is_same(&opened, &named);
}

/*
 * The file stays open until there is another one. What was moved once is not moved again when there was none: each
 * try would delete the oldest.
 */
static int rotate(struct capture_file *file, unsigned files)
{
        struct capture_file old;
        int error = 0;

        for (unsigned number = files ? files - 1 : 0; !error && is_in_place(file); number--) {
                error = push(file, number, files);
                if (!number)
                        break;
        }
        old = *file;
        if (!error)
                error = open_path(file);
        if (error)
                *file = old;
        else if (old.fd >= 0 && old.fd != file->fd)
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
        else if (old.fd >= 0 && old.fd != file->fd)
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
