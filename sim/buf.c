/* SPDX-License-Identifier: Apache-2.0 */
#include "buf.h"
#include "proto/text.h"

#include <stdio.h>
#include <stdlib.h>

void sim_buf_fini(struct sim_buf *buf)
{
        free(buf->data);
        *buf = (struct sim_buf){.max = buf->max};
}

void sim_buf_reset(struct sim_buf *buf)
{
        buf->len = 0;
        buf->failed = false;
}

char *sim_buf_room(struct sim_buf *buf, size_t len)
{
        size_t max = buf->max ? buf->max : SIM_BUF_BYTES_MAX, cap;
        char *data;

        if (buf->failed)
                return NULL;
        if (buf->cap - buf->len >= len)
                return buf->data + buf->len;
        if (len > max || buf->len > max - len) {
                buf->failed = true;
                return NULL;
        }
        cap = buf->cap ? buf->cap : 256;
        while (cap < buf->len + len)
                cap *= 2;
        data = realloc(buf->data, cap);
        if (!data) {
                buf->failed = true;
                return NULL;
        }
        buf->data = data;
        buf->cap = cap;
        return data + buf->len;
}

void sim_buf_add(struct sim_buf *buf, const char *data, size_t len)
{
        char *room = len ? sim_buf_room(buf, len) : NULL;

        if (room) {
                memcpy(room, data, len);
                buf->len += len;
        }
}

void sim_buf_puts(struct sim_buf *buf, const char *text)
{
        sim_buf_add(buf, text, strlen(text));
}

void sim_buf_printf(struct sim_buf *buf, const char *format, ...)
{
        va_list args, again;
        int len;
        char *room;

        va_start(args, format);
        va_copy(again, args);
        len = vsnprintf(NULL, 0, format, args);
        va_end(args);
        room = len >= 0 ? sim_buf_room(buf, (size_t)len + 1) : NULL;
        if (room) {
                vsnprintf(room, (size_t)len + 1, format, again);
                buf->len += (size_t)len;
        } else {
                buf->failed = true;
        }
        va_end(again);
}

void sim_buf_json(struct sim_buf *buf, struct kvr_slice text)
{
        struct text escaped = {0};

        text_add_json(&escaped, text);
        sim_buf_add(buf, "\"", 1);
        sim_buf_add(buf, escaped.data, escaped.len);
        sim_buf_add(buf, "\"", 1);
        buf->failed |= escaped.failed;
        text_free(&escaped);
}
