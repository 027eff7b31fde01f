/*
 * The images of kernels: lib/cuda/image.S, once for each source, GPU_IMAGES(X). None without nvcc
 * (GPU_TOOLKIT 0).
 */
#include "gpu.h"

#if GPU_TOOLKIT == 0
#define GPU_IMAGES(X)
#endif

#define X(name) extern const char gpu_image_##name[];
GPU_IMAGES(X)
#undef X

static const struct ct_cuda_image images[] = {
#define X(name) {#name, gpu_image_##name},
    GPU_IMAGES(X)
#undef X
        {0}};

const struct ct_cuda_code gpu_code = {
    .size = sizeof(struct ct_cuda_code), .toolkit = GPU_TOOLKIT, .images = images};
