/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3 for one instruction set: the body of prompt_hash_avx2.c and prompt_hash_avx512.c, which define
 *
 *     FORM_VECTOR           xxhash.h's number of the form
 *     FORM_64, FORM_128     names of the two functions
 *
 * and have switched the instruction set on. What xxhash.h includes itself must come before that switch: only
 * its own functions are to be compiled for it.
 */
#define XXH_INLINE_ALL
#define XXH_VECTOR FORM_VECTOR
#include <xxhash.h>

/*
 * Each frees the upper halves of the vector registers on return, by itself: compilers forget it here. On most
 * CPUs every SSE instruction would wait for them otherwise, which costs more than the hash.
 */
uint64_t FORM_64(const struct kvr__hash *hash, const void *data, size_t len)
{
        uint64_t h = XXH3_64bits_withSecret(data, len, hash->secret, sizeof(hash->secret));

        _mm256_zeroupper();
        return h;
}

struct kvr__digest FORM_128(const struct kvr__hash *hash, const void *data, size_t len) {
        XXH128_hash_t h = XXH3_128bits_withSecret(data, len, hash->secret, sizeof(hash->secret));

        _mm256_zeroupper();
        return (struct kvr__digest){h.low64, h.high64};
}
