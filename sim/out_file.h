/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that is written when a long run has ended, but opened before it begins: a name that cannot be written is
 * told at once. Until it is written, what was in it stays; a file that is not written is not left behind.
 */
#ifndef KVROUTE_SIM_OUT_FILE_H
#define KVROUTE_SIM_OUT_FILE_H

#include "buf.h"

struct sim_out_file {
        const char *path; /* borrowed; NULL: closed, or none was wanted */
        int fd;
        bool made; /* by us */
};

/* path NULL: none is wanted, and what follows does nothing. 0, or an errno. */
KVR_MUST_USE int sim_out_file_open(struct sim_out_file *file, const char *path);
/* The buffer instead of what was in it; closes it. 0, or an errno (ENOMEM: the buffer has failed). */
KVR_MUST_USE int sim_out_file_write(struct sim_out_file *file, const struct sim_buf *buf);
/* If it is still open: nothing was written. */
void sim_out_file_drop(struct sim_out_file *file);

#endif
