/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chance that repeats: every random number of a workload or a model comes from one of these, so equal
 * seeds give equal runs. The generator is splitmix64: one addition and three multiplications, state of
 * one word, any seed is good.
 */
#ifndef KVROUTE_SIM_RNG_H
#define KVROUTE_SIM_RNG_H

#include <math.h>
#include <stdint.h>

struct sim_rng {
        uint64_t state;
};

/* A bijective mix of 64 bits; also used to derive independent seeds from (seed, number). */
static inline uint64_t sim_mix64(uint64_t x)
{
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
}

/*
 * The generator for item `number` of kind `stream` under `seed`; items do not depend on each other's order.
 */
static inline struct sim_rng sim_rng_for(uint64_t seed, uint64_t stream, uint64_t number)
{
        uint64_t state = sim_mix64(seed + 0x9e3779b97f4a7c15u);

        state = sim_mix64(state ^ (stream + 0x632be59bd9b4e019u));
        return (struct sim_rng){.state = sim_mix64(state ^ (number + 0xd1b54a32d192ed03u))};
}

static inline uint64_t sim_rng_next(struct sim_rng *rng)
{
        rng->state += 0x9e3779b97f4a7c15u;
        return sim_mix64(rng->state);
}

/* Uniform in [0, 1). */
static inline double sim_rng_unit(struct sim_rng *rng)
{
        return (double)(sim_rng_next(rng) >> 11) * 0x1.0p-53;
}

/* Uniform in 0 .. n-1; n > 0. The bias of the multiply method is below n / 2^32 and of no concern here. */
static inline uint32_t sim_rng_below(struct sim_rng *rng, uint32_t n)
{
        return (uint32_t)(((sim_rng_next(rng) >> 32) * n) >> 32);
}

/* Exponential with the given mean: the gaps of a Poisson stream. */
static inline double sim_rng_exp(struct sim_rng *rng, double mean)
{
        return -mean * log1p(-sim_rng_unit(rng));
}

#endif
