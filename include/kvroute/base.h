/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words that every part of the C API shares: byte slices, status codes, errors, and the environment (clock
 * and chance) that a host passes in. The library has no clock, no randomness, no sockets, no logging and no
 * threads of its own.
 */
#ifndef KVROUTE_BASE_H
#define KVROUTE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVR_MUST_USE          __attribute__((warn_unused_result))
#define KVR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define KVR_PUBLIC            __attribute__((visibility("default")))
#else
#define KVR_MUST_USE
#define KVR_PRINTF(fmt, args)
#define KVR_PUBLIC
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes somebody else owns. All zero is the empty slice. Not terminated. */
struct kvr_slice {
        const char *data;
        size_t len;
};

/* Every status a function of this library can return. One list gives the enum, the names and the texts. */
#define KVR_STATUS_LIST(X)                                                                                 \
        X(KVR_OK, "ok", "success")                                                                         \
        X(KVR_E_NOMEM, "no_memory", "an allocation failed, nothing was changed")                           \
        X(KVR_E_ARGUMENT, "invalid_argument", "an argument is outside its documented range")               \
        X(KVR_E_LIMIT, "limit_exceeded", "a documented limit was reached")                                 \
        X(KVR_E_JSON, "invalid_json", "the bytes are not one JSON document")                               \
        X(KVR_E_REQUEST, "invalid_request", "well-formed JSON, but a field that is read has a wrong form") \
        X(KVR_E_NOT_FOUND, "not_found", "no such replica, policy or entry")                                \
        X(KVR_E_EXISTS, "exists", "the name is taken")                                                     \
        X(KVR_E_NO_MODEL, "model_not_found", "no replica serves this model")                               \
        X(KVR_E_NO_REPLICA, "no_replica", "no replica can be tried")                                       \
        X(KVR_E_BUSY, "busy", "every candidate is at its limit or asked to be left alone for a while")

enum kvr_status {
#define KVR_STATUS_ENUM(code, name, text) code,
        KVR_STATUS_LIST(KVR_STATUS_ENUM)
#undef KVR_STATUS_ENUM
};

/* The stable name ("invalid_json") and one-line meaning of a status. Never NULL. Any thread. */
KVR_PUBLIC const char *kvr_status_name(enum kvr_status status);
KVR_PUBLIC const char *kvr_status_text(enum kvr_status status);

/* Why a call failed. Functions fill it only on failure and leave it untouched on success. Optional everywhere
 * (NULL). */
struct kvr_error {
        enum kvr_status status;
        size_t offset;     /* byte position in the input, where that makes sense, else 0 */
        char field[64];    /* the field concerned ("messages[3].content"), or empty */
        char message[256]; /* one sentence, bounded, terminated; never quotes prompt text */
};

/* Clock and chance, kept by every object made with it: must outlive them and be callable from any thread. */
struct kvr_env {
        uint64_t (*now_ns)(void *ctx);   /* monotonic, nanoseconds */
        uint64_t (*random64)(void *ctx); /* uniform */
        void *ctx;
};

#ifdef __cplusplus
}
#endif

#endif
