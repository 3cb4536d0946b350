/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3's forms for long inputs, compiled for the vectors of x86-64 CPUs. The packaged library's own choice at
 * run time costs more per call. */
#ifndef KVROUTE_LIB_PROMPT_HASH_X86_H
#define KVROUTE_LIB_PROMPT_HASH_X86_H

#include "lib/prompt_hash.h"

#if defined(__x86_64__) && !defined(KVR_NO_SIMD)
#define KVR__HASH_X86 1

/* As kvr__hash64 and kvr__hash128, for inputs longer than XXH3's middle size. Only where the CPU has AVX2, or
 * AVX-512F. */
uint64_t kvr__hash64_avx2(const struct kvr__hash *hash, const void *data, size_t len);
struct kvr__digest kvr__hash128_avx2(const struct kvr__hash *hash, const void *data, size_t len);
uint64_t kvr__hash64_avx512(const struct kvr__hash *hash, const void *data, size_t len);
struct kvr__digest kvr__hash128_avx512(const struct kvr__hash *hash, const void *data, size_t len);

#endif

#endif
