/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that grow and are kept for reuse. All zero is the empty buffer. */
#ifndef KVROUTE_LIB_PROMPT_BUFFER_H
#define KVROUTE_LIB_PROMPT_BUFFER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define KVR__BUFFER_MIN 1024

struct kvr__buffer {
        char *data;
        uint32_t len;
        uint32_t capacity;
};

/* Room for `more` bytes behind len; false when out of memory. May move data. Sizes stay below 2^31. */
static inline bool kvr__buffer_reserve(struct kvr__buffer *buffer, uint32_t more)
{
        uint64_t want = (uint64_t)buffer->len + more;
        char *data;

        if (want <= buffer->capacity)
                return true;
        want = want + want / 2 < KVR__BUFFER_MIN ? KVR__BUFFER_MIN : want + want / 2;
        data = realloc(buffer->data, (size_t)want);
        if (!data)
                return false;
        buffer->data = data;
        buffer->capacity = (uint32_t)want;
        return true;
}

static inline void kvr__buffer_fini(struct kvr__buffer *buffer)
{
        free(buffer->data);
        *buffer = (struct kvr__buffer){0};
}

#endif
