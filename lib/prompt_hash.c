/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3 is compiled in, because most pieces are short and a call into the library would cost as much as the
 * hash. With a secret made from the seed beforehand the long forms give what XXH3_64bits_withSeed gives.
 */
#include "lib/prompt_hash.h"
#include "lib/prompt_hash_x86.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MIDDLE_MAX 240 /* XXH3's border between its forms for middle-sized and for long inputs */

_Static_assert(KVR__HASH_SECRET_BYTES == XXH3_SECRET_DEFAULT_SIZE, "the secret that a seed stands for");

void kvr__hash_init(struct kvr__hash *hash, uint64_t seed)
{
        hash->seed = seed;
        XXH3_generateSecret_fromSeed(hash->secret, seed);
        hash->form = KVR__HASH_ANY_CPU;
#ifdef KVR__HASH_X86
        if (__builtin_cpu_supports("avx512f"))
                hash->form = KVR__HASH_AVX512;
        else if (__builtin_cpu_supports("avx2"))
                hash->form = KVR__HASH_AVX2;
#endif
}

static inline uint64_t hash_long(const struct kvr__hash *hash, const void *data, size_t len)
{
#ifdef KVR__HASH_X86
        if (hash->form == KVR__HASH_AVX512)
                return kvr__hash64_avx512(hash, data, len);
        if (hash->form == KVR__HASH_AVX2)
                return kvr__hash64_avx2(hash, data, len);
#endif
        return XXH3_64bits_withSecret(data, len, hash->secret, sizeof(hash->secret));
}

uint64_t kvr__hash64(const struct kvr__hash *hash, const void *data, size_t len)
{
        if (len > MIDDLE_MAX)
                return hash_long(hash, data, len);
        return XXH3_64bits_withSeed(data, len, hash->seed);
}

struct kvr__digest kvr__hash128(const struct kvr__hash *hash, const void *data, size_t len)
{
        XXH128_hash_t h;

#ifdef KVR__HASH_X86
        if (len > MIDDLE_MAX && hash->form == KVR__HASH_AVX512)
                return kvr__hash128_avx512(hash, data, len);
        if (len > MIDDLE_MAX && hash->form == KVR__HASH_AVX2)
                return kvr__hash128_avx2(hash, data, len);
#endif
        h = XXH3_128bits_withSeed(data, len, hash->seed);
        return (struct kvr__digest){h.low64, h.high64};
}

uint64_t kvr__hash_numbers(const struct kvr__hash *hash, const uint64_t *numbers, size_t count)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        return XXH3_64bits_withSeed(numbers, count * sizeof(*numbers), hash->seed);
#else
        unsigned char bytes[8 * KVR__HASH_NUMBERS_MAX];

        for (size_t i = 0; i < count; i++)
                for (unsigned b = 0; b < 8; b++)
                        bytes[i * 8 + b] = (unsigned char)(numbers[i] >> 8 * b);
        return XXH3_64bits_withSeed(bytes, count * 8, hash->seed);
#endif
}

/* The core of keying, called for each piece of a prompt: one function with everything short in it. */
__attribute__((flatten)) uint64_t kvr__hash_link(const struct kvr__hash *hash, uint64_t before,
                                                 const void *data, size_t len, uint64_t kind)
{
        uint64_t piece =
                len > MIDDLE_MAX ? hash_long(hash, data, len) : XXH3_64bits_withSeed(data, len, hash->seed);
        const uint64_t link[] = {before, piece + kind};

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        return XXH3_64bits_withSeed(link, sizeof(link), hash->seed);
#else
        return kvr__hash_numbers(hash, link, 2);
#endif
}
