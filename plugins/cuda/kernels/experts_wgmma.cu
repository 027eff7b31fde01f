/*
 * Mixtures of experts in bfloat16: grouped products on Hopper's tensor cores. On other devices
 * these kernels are empty, and are not launched.
 */
#include "experts_tiles.cuh"
#include "wgmma.cuh"

KERNEL(experts_gated_wgmma, gpu_experts_gated, GPU_TENSOR_THREADS)
{
    ON_HOPPER(bfloat16 *slots = wgmma_slots(); gated_tile<wgmma_tiles>(a, slots);)
}

KERNEL(experts_product_wgmma, gpu_experts_tensor, GPU_TENSOR_THREADS)
{
    ON_HOPPER(bfloat16 *slots = wgmma_slots(); product_tile<wgmma_tiles COMMA false>(a, slots);)
}

KERNEL(experts_turned_wgmma, gpu_experts_tensor, GPU_TENSOR_THREADS)
{
    ON_HOPPER(bfloat16 *slots = wgmma_slots(); product_tile<wgmma_tiles COMMA true>(a, slots);)
}

KERNEL(experts_outer_wgmma, gpu_experts_outer, GPU_TENSOR_THREADS)
{
    ON_HOPPER(bfloat16 *slots = wgmma_slots(); outer_tile<wgmma_tiles>(a, slots);)
}
