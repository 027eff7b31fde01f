/* The factor of an update, or -1: one thread. */
#include <ctitan/lib/cuda/device.cuh>

#include "spikes_cuda.h"

KERNEL(withhold, spikes_call, 32)
{
    double x[6];

    if (threadIdx.x != 0)
        return;
#pragma unroll
    for (int i = 0; i < 6; i++)
        x[i] = load_scalar(a.in[i], a.kind[i]);
    store_scalar(a.y, a.y_kind, x[1] > x[2] || x[3] / x[4] > x[5] ? -1.0 : x[0]);
}
