/* SPDX-License-Identifier: Apache-2.0 */
#include "siphash.h"

struct state {
        uint64_t v0, v1, v2, v3;
};

static uint64_t turn(uint64_t x, unsigned by)
{
        return x << by | x >> (64 - by);
}

static void rounds(struct state *s, unsigned count)
{
        while (count--) {
                s->v0 += s->v1;
                s->v2 += s->v3;
                s->v1 = turn(s->v1, 13) ^ s->v0;
                s->v3 = turn(s->v3, 16) ^ s->v2;
                s->v0 = turn(s->v0, 32);
                s->v2 += s->v1;
                s->v0 += s->v3;
                s->v1 = turn(s->v1, 17) ^ s->v2;
                s->v3 = turn(s->v3, 21) ^ s->v0;
                s->v2 = turn(s->v2, 32);
        }
}

static struct state begin(const struct siphash_key *key)
{
        return (struct state){
                .v0 = key->low ^ 0x736f6d6570736575ull,
                .v1 = key->high ^ 0x646f72616e646f6dull,
                .v2 = key->low ^ 0x6c7967656e657261ull,
                .v3 = key->high ^ 0x7465646279746573ull,
        };
}

static void take(struct state *s, uint64_t word)
{
        s->v3 ^= word;
        rounds(s, 2);
        s->v0 ^= word;
}

static uint64_t end(struct state *s)
{
        s->v2 ^= 0xff;
        rounds(s, 4);
        return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

/* Up to eight bytes as a number, least significant first. */
static uint64_t word_of(const unsigned char *bytes, size_t len)
{
        uint64_t word = 0;

        for (size_t i = 0; i < len; i++)
                word |= (uint64_t)bytes[i] << 8 * i;
        return word;
}

uint64_t siphash(const struct siphash_key *key, const void *bytes, size_t len)
{
        const unsigned char *at = bytes;
        struct state s = begin(key);
        uint64_t last = (uint64_t)len << 56;

        for (; len >= 8; len -= 8, at += 8)
                take(&s, word_of(at, 8));
        take(&s, last | word_of(at, len));
        return end(&s);
}

uint64_t siphash_pair(const struct siphash_key *key, uint64_t a, uint64_t b)
{
        struct state s = begin(key);

        take(&s, a);
        take(&s, b);
        take(&s, (uint64_t)16 << 56);
        return end(&s);
}
