/* SPDX-License-Identifier: Apache-2.0 */
/* The scanners of json_scan.h that use vector instructions of x86-64. */
#ifndef KVROUTE_LIB_JSON_SCAN_X86_H
#define KVROUTE_LIB_JSON_SCAN_X86_H

#include "lib/json_scan.h"

#if defined(__x86_64__) && !defined(KVR_NO_SIMD)
#define KVR__SCAN_X86 1

struct kvr__scan kvr__scan_sse2(const unsigned char *data, uint32_t pos, uint32_t len);
struct kvr__scan kvr__scan_avx2(const unsigned char *data, uint32_t pos,
                                uint32_t len); /* only where the CPU has AVX2 */
struct kvr__scan kvr__scan_avx512(const unsigned char *data, uint32_t pos, uint32_t len); /* AVX-512 BW */

#endif

#endif
