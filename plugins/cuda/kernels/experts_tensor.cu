/*
 * Mixtures of experts in bfloat16: grouped products on the tensor cores of all devices, and what
 * lies between them.
 */
#include "experts_tiles.cuh"
#include "tensor.cuh"

/* ---- products ---- */

KERNEL(experts_gated_mma, gpu_experts_gated, GPU_TENSOR_THREADS)
{
    __shared__ tensor_slices slices;

    gated_tile<mma_tiles>(a, slices);
}

KERNEL(experts_product_mma, gpu_experts_tensor, GPU_TENSOR_THREADS)
{
    __shared__ tensor_slices slices;

    product_tile<mma_tiles, false>(a, slices);
}

KERNEL(experts_turned_mma, gpu_experts_tensor, GPU_TENSOR_THREADS)
{
    __shared__ tensor_slices slices;

    product_tile<mma_tiles, true>(a, slices);
}

KERNEL(experts_outer_mma, gpu_experts_outer, GPU_TENSOR_THREADS)
{
    __shared__ tensor_slices slices;

    outer_tile<mma_tiles>(a, slices);
}

/* ---- between them ---- */

/* Makes, from dh, from_g and from_u: dg to g, du to u, the weighted hidden layer over dh, and the
   gradient of the choice's weight. A warp for each row. */
KERNEL(experts_gated_grad, gpu_experts_rows, 256)
{
    int64_t row = warp_row(), choice, at = row * a.f;
    bfloat16 *dh_row = (bfloat16 *)a.dh + at;
    float weight, sum = 0;

    if (row >= rows_before(a.all.counts, a.all.experts))
        return;
    choice = a.all.order[row];
    weight = a.weights[choice];
    for (int64_t i = threadIdx.x % 32 * 8; i < a.f; i += 256) {
        float g[8], u[8], dh[8];

        load<8>((const bfloat16 *)a.from_g + at + i, g);
        load<8>((const bfloat16 *)a.from_u + at + i, u);
        load<8>(dh_row + i, dh);
#pragma unroll
        for (int w = 0; w < 8; w++) {
            gated_layer l = gated(a.how, g[w], u[w]);
            float h = l.g * l.s * l.u, d = weight * dh[w];

            sum += dh[w] * h;
            dh[w] = weight * h;
            g[w] = gradient_by_g(a.how, l, g[w], d);
            u[w] = gradient_by_u(a.how, l, u[w], d);
        }
        store<8>((bfloat16 *)a.g + at + i, g);
        store<8>((bfloat16 *)a.u + at + i, u);
        store<8>(dh_row + i, dh);
    }
    sum = warp_sum(sum);
    if (a.dweights && threadIdx.x % 32 == 0)
        a.dweights[choice] = a.accumulate ? a.dweights[choice] + sum : sum;
}

/* Rows in bfloat16, summed by token. */
KERNEL(experts_combine_tensor, gpu_experts_combine, 256)
{
    combine_rows<8>((const bfloat16 *)a.rows, a);
}
