/* SPDX-License-Identifier: Apache-2.0 */
#include "out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODE 0666 /* less the umask, as fopen has it */

int sim_out_file_open(struct sim_out_file *file, const char *path)
{
        *file = (struct sim_out_file){.fd = -1};
        if (!path)
                return 0;
        file->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, MODE);
        file->made = file->fd >= 0;
        if (!file->made && errno == EEXIST)
                file->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, MODE);
        if (file->fd < 0)
                return errno;
        file->path = path;
        return 0;
}

static int write_all(int fd, const struct sim_buf *buf)
{
        struct stat stat;

        if (fstat(fd, &stat) || (S_ISREG(stat.st_mode) && ftruncate(fd, 0)))
                return errno;
        for (size_t done = 0; done < buf->len;) {
                ssize_t got = write(fd, buf->data + done, buf->len - done);

                if (got < 0 && errno != EINTR)
                        return errno;
                done += got > 0 ? (size_t)got : 0;
        }
        return 0;
}

int sim_out_file_write(struct sim_out_file *file, const struct sim_buf *buf)
{
        int error;

        if (!file->path)
                return 0;
        error = buf->failed ? ENOMEM : write_all(file->fd, buf);
        if (error) {
                sim_out_file_drop(file);
                return error;
        }
        error = close(file->fd) ? errno : 0;
        file->path = NULL;
        return error;
}

void sim_out_file_drop(struct sim_out_file *file)
{
        if (!file->path)
                return;
        close(file->fd);
        if (file->made)
                unlink(file->path);
        file->path = NULL;
}
