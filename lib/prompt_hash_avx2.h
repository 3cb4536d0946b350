/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3's forms for long inputs, compiled for AVX2. The packaged library's own choice at run time costs more
 * per call. */
#ifndef KVROUTE_LIB_PROMPT_HASH_AVX2_H
#define KVROUTE_LIB_PROMPT_HASH_AVX2_H

#include "lib/prompt_hash.h"

#if defined(__x86_64__) && !defined(KVR_NO_SIMD)
#define KVR__HASH_AVX2 1

/* As kvr__hash64 and kvr__hash128, for inputs longer than XXH3's middle size. Only where the CPU has AVX2. */
uint64_t kvr__hash64_avx2(const struct kvr__hash *hash, const void *data, size_t len);
struct kvr__digest kvr__hash128_avx2(const struct kvr__hash *hash, const void *data, size_t len);

#endif

#endif
