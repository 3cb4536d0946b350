/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SipHash-2-4 (Aumasson and Bernstein, 2012): a hash under a secret key of 128 bits, from whose values neither the
 * key nor the input can be found by less than trying. Pure; any thread.
 */
#ifndef KVROUTE_ROUTER_SIPHASH_H
#define KVROUTE_ROUTER_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

struct siphash_key {
        uint64_t low, high; /* the key's bytes 0 to 7 and 8 to 15, least significant first */
};

uint64_t siphash(const struct siphash_key *key, const void *bytes, size_t len);
/* The same of the two numbers' bytes, least significant first. */
uint64_t siphash_pair(const struct siphash_key *key, uint64_t a, uint64_t b);

#endif
