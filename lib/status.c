/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/error.h"

#include <stdarg.h>
#include <stdio.h>

const char *kvr_status_name(enum kvr_status status)
{
        switch (status) {
#define KVR_STATUS_NAME(code, name, text) \
        case code:                        \
                return name;
                KVR_STATUS_LIST(KVR_STATUS_NAME)
#undef KVR_STATUS_NAME
        }
        return "unknown";
}

const char *kvr_status_text(enum kvr_status status)
{
        switch (status) {
#define KVR_STATUS_TEXT(code, name, text) \
        case code:                        \
                return text;
                KVR_STATUS_LIST(KVR_STATUS_TEXT)
#undef KVR_STATUS_TEXT
        }
        return "a status this version does not know";
}

enum kvr_status kvr__error_set(struct kvr_error *err, enum kvr_status status, size_t offset,
                               const char *field, const char *format, ...)
{
        va_list args;

        if (!err)
                return status;
        err->status = status;
        err->offset = offset;
        snprintf(err->field, sizeof(err->field), "%s", field ? field : "");
        va_start(args, format);
        vsnprintf(err->message, sizeof(err->message), format, args);
        va_end(args);
        return status;
}
