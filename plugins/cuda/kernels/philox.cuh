/* Random numbers by their place in a stream: the generator of ctitan/rng.h. */
#ifndef GPU_PHILOX_CUH
#define GPU_PHILOX_CUH

#include <ctitan/lib/cuda/device.cuh>

struct philox {
    uint32_t v[4];
};

DEVICE philox draw(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    philox c = {
        {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};

    for (int round = 0; round < 10; round++) {
        uint64_t x = (uint64_t)0xD2511F53u * c.v[0], y = (uint64_t)0xCD9E8D57u * c.v[2];

        c = {{(uint32_t)(y >> 32) ^ c.v[1] ^ k0, (uint32_t)y, (uint32_t)(x >> 32) ^ c.v[3] ^ k1,
              (uint32_t)x}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

DEVICE float uniform(uint32_t bits)
{
    return fminf(((float)(bits >> 8) + 0.5f) * 0x1p-24f, 0x0.ffffffp0f);
}

#endif
