/*
 * Counter-based random numbers (Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011). A number depends on (seed, stream, index) only, so an element of a weight is
 * the same on any mesh and with any number of threads.
 */
#ifndef CT_RNG_H
#define CT_RNG_H

#include <math.h>

#include <ctitan/base.h>

CT_BEGIN_DECLS

struct ct_philox {
    uint32_t v[4];
};

/* Four 32-bit numbers for block `index` of `stream` under `seed`. */
static inline struct ct_philox ct_philox(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    struct ct_philox c = {
        {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};

    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c.v[0], b = (uint64_t)0xCD9E8D57u * c.v[2];
        struct ct_philox next = {{(uint32_t)(b >> 32) ^ c.v[1] ^ k0, (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ c.v[3] ^ k1, (uint32_t)a}};

        c = next;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* Uniform in (0, 1): never 0, never 1. */
static inline float ct_uniform(uint32_t bits)
{
    return fminf(((float)(bits >> 8) + 0.5f) * 0x1p-24f, 0x0.ffffffp0f);
}

/*
 * Standard normal number `index` of a stream (Box-Muller): elements 2i and 2i+1 share one pair of
 * uniforms, blocks of four share one Philox call.
 */
static inline float ct_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    struct ct_philox c = ct_philox(seed, stream, index / 4);
    int pair = (int)(index % 4) & 2;
    float radius = sqrtf(-2.0f * logf(ct_uniform(c.v[pair])));
    float angle = 6.28318530717958647692f * ct_uniform(c.v[pair + 1]);

    return radius * (index & 1 ? sinf(angle) : cosf(angle));
}

/* The stream of a parameter. */
static inline uint64_t ct_rng_stream(const char *name)
{
    return ct_hash(name);
}

CT_END_DECLS

#endif
