/* Kernels with races, and without: each is launched on its own by test_races.c. */
#include <ctitan/lib/cuda/device.cuh>

struct numbers {
    int *to;
};

#define TO(i) a.to[blockIdx.x * 64 + (i)]
#define ME ((int)threadIdx.x)

KERNEL(right_barrier, numbers, 64)
{
    __shared__ int at[64];

    at[ME] = ME;
    __syncthreads();
    TO(ME) = at[63 - ME];
}

KERNEL(right_warp, numbers, 64)
{
    __shared__ int at[64];

    at[ME] = ME;
    __syncwarp();
    TO(ME) = at[ME ^ 1];
}

KERNEL(right_atomic, numbers, 64)
{
    atomicAdd(a.to, 1);
}

KERNEL(wrong_read, numbers, 64)
{
    __shared__ int at[64];

    at[ME] = ME;
    TO(ME) = at[63 - ME];
}

KERNEL(wrong_shuffle, numbers, 64)
{
    __shared__ int at[64];

    at[ME] = ME;
    TO(ME) = __shfl_xor_sync(ALL_LANES, ME, 1) + at[ME ^ 1];
}

KERNEL(wrong_warps, numbers, 64)
{
    __shared__ int at[64];

    at[ME] = ME;
    __syncwarp();
    TO(ME) = at[ME ^ 32];
}

KERNEL(wrong_overwritten, numbers, 64)
{
    __shared__ int at[64];

    at[ME] = ME;
    __syncthreads();
    TO(ME) = at[0] + at[1];
    if (ME == 1)
        at[0] = at[1] = 0;
}

KERNEL(wrong_both_write, numbers, 64)
{
    TO(ME / 2) = 1;
}

KERNEL(wrong_blocks, numbers, 64)
{
    if (ME == 0)
        a.to[0] = 1;
}

KERNEL(wrong_unwritten, numbers, 64)
{
    DYNAMIC_SHARED(int, at);

    TO(ME) = at[ME];
}
