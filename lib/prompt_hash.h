/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 under one seed, with what a seed costs per call prepared once. */
#ifndef KVROUTE_LIB_PROMPT_HASH_H
#define KVROUTE_LIB_PROMPT_HASH_H

#include <stddef.h>
#include <stdint.h>

#define KVR__HASH_SECRET_BYTES 192
#define KVR__HASH_NUMBERS_MAX  16

enum kvr__hash_form { KVR__HASH_ANY_CPU, KVR__HASH_AVX2, KVR__HASH_AVX512 };

struct kvr__hash {
        uint64_t seed;
        enum kvr__hash_form form; /* the widest that the CPU can do */
        unsigned char secret[KVR__HASH_SECRET_BYTES];
};

struct kvr__digest {
        uint64_t low, high;
};

void kvr__hash_init(struct kvr__hash *hash, uint64_t seed);

/* XXH3_64bits_withSeed and XXH3_128bits_withSeed of the bytes; the same on every machine. Any thread. */
uint64_t kvr__hash64(const struct kvr__hash *hash, const void *data, size_t len);
struct kvr__digest kvr__hash128(const struct kvr__hash *hash, const void *data, size_t len);

/* One link of a chain: the hash of two numbers, the link before and kvr__hash64 of the bytes plus `kind`. */
uint64_t kvr__hash_link(const struct kvr__hash *hash, uint64_t before, const void *data, size_t len,
                        uint64_t kind);

/* The 64-bit hash of a few numbers, each as 8 bytes, lowest byte first. At most KVR__HASH_NUMBERS_MAX. */
uint64_t kvr__hash_numbers(const struct kvr__hash *hash, const uint64_t *numbers, size_t count);

#endif
