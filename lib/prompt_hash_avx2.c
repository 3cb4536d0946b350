/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/prompt_hash_avx2.h"

#ifdef KVR__HASH_AVX2

/* All that xxhash.h includes comes before the switch of instruction sets: only its own functions are to be
 * switched. */
#include <assert.h>
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define XXH_INLINE_ALL
#define XXH_VECTOR 2 /* XXH_AVX2, which is defined only later */
#include <xxhash.h>

_Static_assert(XXH_VECTOR == XXH_AVX2, "the number of the AVX2 form");

/*
 * Each frees the upper halves of the vector registers on return, by itself: compilers forget it here. On most
 * CPUs every SSE instruction would wait for them otherwise, which costs more than the hash.
 */
uint64_t kvr__hash64_avx2(const struct kvr__hash *hash, const void *data, size_t len)
{
        uint64_t h = XXH3_64bits_withSecret(data, len, hash->secret, sizeof(hash->secret));

        _mm256_zeroupper();
        return h;
}

struct kvr__digest kvr__hash128_avx2(const struct kvr__hash *hash, const void *data, size_t len)
{
        XXH128_hash_t h = XXH3_128bits_withSecret(data, len, hash->secret, sizeof(hash->secret));

        _mm256_zeroupper();
        return (struct kvr__digest){h.low64, h.high64};
}

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
