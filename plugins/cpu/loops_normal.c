/*
 * ct_normal of rng.h over ranges. A block of four numbers shares one Philox call, and a vector of
 * blocks is computed at once. Elements beyond the truncation limit are redrawn one by one.
 */
#include <ctitan/rng.h>

#include "loops.h"

#include "kernels/vector.h"

#define REDRAW 0x9E3779B97F4A7C15u
typedef uint64_t vw __attribute__((vector_size(8 * CPU_LANES)));

/* sin and cos of 2 pi u for u in (0, 1); the angle is reduced to an eighth of the circle. */
CPU_INLINE void v_circle(vf u, vf *sine, vf *cosine)
{
    vi octant = (__builtin_convertvector(u * 8.0f, vi) + 1) & ~1; /* nearest even eighth */
    vf a = (u - __builtin_convertvector(octant, vf) * 0.125f) * 6.28318530717958647692f;
    vf z = a * a, s, c;
    vi swap = -(octant >> 1 & 1), s_sign = (octant & 4) << 29, c_sign = ((octant + 2) & 4) << 29;

    s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * a + a;
    c = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z -
        0.5f * z + 1.0f;
    *sine = (vf)((vi)v_select(swap, c, s) ^ s_sign);
    *cosine = (vf)((vi)v_select(swap, s, c) ^ c_sign);
}

CPU_INLINE void multiply_wide(vu a, uint32_t b, vu *high, vu *low)
{
    vw product = __builtin_convertvector(a, vw) * b;

    *low = a * b;
    *high = __builtin_convertvector(product >> 32, vu);
}

/* CPU_LANES blocks starting at `block`: lane i of c[j] is number j of block + i. */
CPU_INLINE void philox_blocks(uint64_t seed, uint64_t stream, uint64_t block, vu c[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t low[CPU_LANES], high[CPU_LANES];

    for (int i = 0; i < CPU_LANES; i++) {
        low[i] = (uint32_t)(block + (uint64_t)i);
        high[i] = (uint32_t)((block + (uint64_t)i) >> 32);
    }
    memcpy(&c[0], low, sizeof(low));
    memcpy(&c[1], high, sizeof(high));
    c[2] = (uint32_t)stream - (vu){0};
    c[3] = (uint32_t)(stream >> 32) - (vu){0};
    for (int round = 0; round < 10; round++) {
        vu a_high, a_low, b_high, b_low;

        multiply_wide(c[0], 0xD2511F53u, &a_high, &a_low);
        multiply_wide(c[2], 0xCD9E8D57u, &b_high, &b_low);
        c[0] = b_high ^ c[1] ^ k0;
        c[2] = a_high ^ c[3] ^ k1;
        c[1] = b_low;
        c[3] = a_low;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

CPU_INLINE vf v_uniform(vu bits)
{
    vf u = (__builtin_convertvector((vi)(bits >> 8), vf) + 0.5f) * 0x1p-24f;
    vf most = v_set(0x0.ffffffp0f);

    return v_select(u < most, u, most);
}

static float redrawn(const struct cpu_normal *n, uint64_t index)
{
    uint64_t stream = n->stream;
    float value;

    do {
        stream += REDRAW;
        value = ct_normal(n->seed, stream, index);
    } while (fabsf(value) > n->truncate);
    return value;
}

/* 4 CPU_LANES numbers, starting at element 4 * block. */
static void fill(const struct cpu_normal *n, uint64_t block, float *out)
{
    float part[4][CPU_LANES];
    vu c[4];

    philox_blocks(n->seed, n->stream, block, c);
    for (int pair = 0; pair < 2; pair++) {
        vf radius = v_sqrt(v_log(v_uniform(c[2 * pair])) * -2.0f), sine, cosine;

        v_circle(v_uniform(c[2 * pair + 1]), &sine, &cosine);
        v_store(part[2 * pair], radius * cosine);
        v_store(part[2 * pair + 1], radius * sine);
    }
    for (int i = 0; i < 4 * CPU_LANES; i++)
        out[i] = part[i % 4][i / 4];
    for (int i = 0; i < 4 * CPU_LANES && n->truncate > 0; i++)
        if (fabsf(out[i]) > n->truncate)
            out[i] = redrawn(n, 4 * block + (uint64_t)i);
}

void CPU_ISA(cpu_normal)(const struct cpu_normal *normal, enum ct_dtype dtype, void *out,
                         uint64_t first, int64_t n)
{
    float number[4 * CPU_LANES];
    uint64_t size = 4 * CPU_LANES;
    int64_t done = 0;

    while (done < n) {
        uint64_t index = first + (uint64_t)done, skip = index % size;
        int64_t count = (int64_t)(size - skip) < n - done ? (int64_t)(size - skip) : n - done;

        fill(normal, (index - skip) / 4, number);
        for (int64_t i = 0; i < count; i += CPU_LANES) {
            vf v = v_get(CT_F32, number + skip, i, count) * normal->std;

            v_put(dtype, (char *)out + (size_t)done * ct_dtype_size(dtype), i, count, v);
        }
        done += count;
    }
}
