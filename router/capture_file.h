/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file of lines that is kept to a size: when the next lines would go over it, FILE becomes FILE.1, FILE.1 becomes
 * FILE.2, ..., the oldest is deleted, and a new FILE begins. Readable by its owner alone (0600). Lines are in it
 * whole or not at all, also when the disk is full. A regular file is locked (flock) for as long as it is open, so
 * that two routers never write, nor rotate, the same one. One thread.
 */
#ifndef KVROUTE_ROUTER_CAPTURE_FILE_H
#define KVROUTE_ROUTER_CAPTURE_FILE_H

#include <kvroute/base.h>

struct capture_file {
        char *path;
        int fd;       /* -1: closed */
        bool regular; /* can be cut and renamed */
        uint64_t bytes;
};

/*
 * Opens it to append, and proves that it can be written. With `fresh` what is in it is put aside first, as by a
 * rotation that keeps `files` in all. 0, or an errno with nothing to close; EBUSY: another process has it.
 */
KVR_MUST_USE int capture_file_open(struct capture_file *file, const char *path, bool fresh, unsigned files);
/*
 * Appends lines. max: bytes of one file; less than one line is as much as that line. 0, or an errno: then
 * *ret_written bytes, all of them whole lines, are in the file.
 */
KVR_MUST_USE int capture_file_write(struct capture_file *file, struct kvr_slice lines, uint64_t max,
                                    unsigned files, size_t *ret_written);
/* Begins anew under the path's name, for whoever moved the file away. 0, or an errno: the old one stays in use. */
KVR_MUST_USE int capture_file_reopen(struct capture_file *file);
void capture_file_close(struct capture_file *file);

#endif
