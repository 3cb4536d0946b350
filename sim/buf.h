/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growing byte buffer for building bodies, chunks and pages. It never grows past its limit: then, and
 * when memory runs out, `failed` is set and stays set, later appends do nothing, and the caller checks
 * once at the end.
 */
#ifndef KVROUTE_SIM_BUF_H
#define KVROUTE_SIM_BUF_H

#include <kvroute/base.h>
#include <stdarg.h>
#include <string.h>

#define SIM_BUF_BYTES_MAX (256u * 1024 * 1024) /* limit of a buffer whose `max` is 0 */

/* All zero is an empty buffer with the default limit. */
struct sim_buf {
        char *data;
        size_t len, cap;
        size_t max; /* 0: SIM_BUF_BYTES_MAX */
        bool failed;
};

void sim_buf_fini(struct sim_buf *buf);  /* frees; the buffer is empty and usable afterwards */
void sim_buf_reset(struct sim_buf *buf); /* empties, keeps the memory, clears `failed` */
/* Room for `len` more bytes at data + len, or NULL (failed). The caller adds what it wrote to len. */
char *sim_buf_room(struct sim_buf *buf, size_t len);
void sim_buf_add(struct sim_buf *buf, const char *data, size_t len);
void sim_buf_puts(struct sim_buf *buf, const char *text);
void sim_buf_printf(struct sim_buf *buf, const char *format, ...) KVR_PRINTF(2, 3);
/* A JSON string with its quotes. Bytes that are not UTF-8 are written as U+FFFD. */
void sim_buf_json(struct sim_buf *buf, struct kvr_slice text);

static inline struct kvr_slice sim_buf_slice(const struct sim_buf *buf)
{
        return (struct kvr_slice){.data = buf->data, .len = buf->len};
}

static inline struct kvr_slice sim_slice(const char *text)
{
        return (struct kvr_slice){.data = text, .len = strlen(text)};
}

static inline bool sim_slice_is(struct kvr_slice slice, const char *text)
{
        size_t len = strlen(text);

        return slice.len == len && (len == 0 || memcmp(slice.data, text, len) == 0);
}

#endif
