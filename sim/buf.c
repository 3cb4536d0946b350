/* SPDX-License-Identifier: Apache-2.0 */
#include "buf.h"

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

/* Length of the valid UTF-8 sequence at p, 0 if there is none (RFC 3629: no surrogates, nothing overlong). */
static size_t utf8_sequence(const unsigned char *p, size_t len)
{
        size_t need = p[0] >= 0xc2 && p[0] <= 0xdf   ? 2
                      : (p[0] & 0xf0) == 0xe0        ? 3
                      : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
                                                     : 0;

        if (need == 0 || need > len)
                return 0;
        for (size_t i = 1; i < need; i++) {
                if ((p[i] & 0xc0) != 0x80)
                        return 0;
        }
        if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
            (p[0] == 0xf4 && p[1] > 0x8f))
                return 0;
        return need;
}

void sim_buf_json(struct sim_buf *buf, struct kvr_slice text)
{
        const unsigned char *p = (const unsigned char *)text.data;

        sim_buf_add(buf, "\"", 1);
        for (size_t i = 0, run = 0; i < text.len; i += run) {
                run = 0;
                while (i + run < text.len && p[i + run] >= 0x20 && p[i + run] < 0x80 && p[i + run] != '"' &&
                       p[i + run] != '\\')
                        run++;
                if (run) {
                        sim_buf_add(buf, text.data + i, run);
                        continue;
                }
                if (p[i] == '"' || p[i] == '\\') {
                        sim_buf_printf(buf, "\\%c", p[i]);
                        run = 1;
                } else if (p[i] == '\n') {
                        sim_buf_add(buf, "\\n", 2);
                        run = 1;
                } else if (p[i] < 0x20) {
                        sim_buf_printf(buf, "\\u%04x", p[i]);
                        run = 1;
                } else if ((run = utf8_sequence(p + i, text.len - i)) > 0) {
                        sim_buf_add(buf, text.data + i, run);
                } else {
                        sim_buf_add(buf, "\xef\xbf\xbd", 3);
                        run = 1;
                }
        }
        sim_buf_add(buf, "\"", 1);
}
