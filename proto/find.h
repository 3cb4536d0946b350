/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Search for a short text whose first and last bytes rarely stand in the right distance, such as a JSON key
 * with its quote and colon. Answers pass through it chunk by chunk: the C library's memmem took 4
 * instructions a byte and several hundred per call there, this takes about one instruction per byte.
 */
#ifndef KVROUTE_FIND_H
#define KVROUTE_FIND_H

#include <kvroute/base.h>

#define FIND_NEEDLE_MAX 64

/* First place of needle (2 .. FIND_NEEDLE_MAX bytes) in text, NULL if it is not there. Any thread. */
const char *find_text(const char *text, size_t len, const char *needle, size_t needle_len);

#endif
