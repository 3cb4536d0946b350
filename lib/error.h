/* SPDX-License-Identifier: Apache-2.0 */
/* Filling struct kvr_error, for every module of the library. */
#ifndef KVROUTE_LIB_ERROR_H
#define KVROUTE_LIB_ERROR_H

#include "kvroute/base.h"

/*
 * Fills *err (NULL is fine) and gives `status` back, so that a failing function can end with one statement.
 * `field` may be NULL for none; what does not fit is cut. The message must not quote prompt text. Any thread.
 */
__attribute__((cold)) enum kvr_status kvr__error_set(struct kvr_error *err, enum kvr_status status,
                                                     size_t offset, const char *field, const char *format,
                                                     ...) KVR_PRINTF(5, 6);

#endif
