/*
 * A random order of 0 .. size-1 without a table: a keyed Feistel network on the smallest even
 * number of bits that holds size, applied again while the result is out of range (Black and Rogaway
 * 2002).
 */
#ifndef PERMUTATION_H
#define PERMUTATION_H

#include <ctitan/rng.h>

#define PERMUTATION_ROUNDS 6

struct permutation {
    uint64_t size;
    int half; /* bits in each half */
    uint32_t key[PERMUTATION_ROUNDS];
};

/* The permutation for a seed and a stream. size is at least 1. */
static inline struct permutation permutation_make(uint64_t size, uint64_t seed, uint64_t stream)
{
    struct permutation p = {.size = size, .half = 1};

    while (p.half < 32 && (size - 1) >> 2 * p.half)
        p.half++;
    for (int i = 0; i < PERMUTATION_ROUNDS; i++)
        p.key[i] = ct_philox(seed, stream, (uint64_t)i / 4).v[i % 4];
    return p;
}

static inline uint64_t permutation_at(const struct permutation *p, uint64_t index)
{
    uint32_t mask = (uint32_t)((UINT64_C(1) << p->half) - 1);

    do {
        uint32_t left = (uint32_t)(index >> p->half) & mask, right = (uint32_t)index & mask;

        for (int i = 0; i < PERMUTATION_ROUNDS; i++) {
            uint32_t h = (right ^ p->key[i]) * 0x9E3779B1u;
            uint32_t next = left ^ (((h ^ h >> 15) * 0x85EBCA77u) >> (32 - p->half));

            left = right;
            right = next;
        }
        index = (uint64_t)left << p->half | right;
    } while (index >= p->size);
    return index;
}

#endif
