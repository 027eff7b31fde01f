/* Doubles, half as many as a vector of vector.h has floats. */
#ifndef CPU_KERNELS_DOUBLE_H
#define CPU_KERNELS_DOUBLE_H

#include "vector.h"

#define CPU_HALF (CPU_LANES / 2)
typedef float vhalf __attribute__((vector_size(4 * CPU_HALF)));
typedef double vd __attribute__((vector_size(8 * CPU_HALF)));
typedef int64_t vl __attribute__((vector_size(8 * CPU_HALF)));

/* One half of a's lanes. */
CPU_INLINE vd v_double(vf a, int half)
{
    float lane[CPU_LANES];
    vhalf part;

    v_store(lane, a);
    memcpy(&part, lane + half * CPU_HALF, sizeof(part));
    return __builtin_convertvector(part, vd);
}

#endif
