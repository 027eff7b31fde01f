/*
 * The images of kernels: image.S, once for each source, GPU_IMAGES(X). None without nvcc
 * (GPU_TOOLKIT 0).
 */
#include "functions.h"

#if GPU_TOOLKIT == 0

const struct gpu_image gpu_images[] = {{0}};

#else

#define X(name) extern const char gpu_image_##name[];
GPU_IMAGES(X)
#undef X

const struct gpu_image gpu_images[] = {
#define X(name) {#name, gpu_image_##name},
    GPU_IMAGES(X)
#undef X
        {0}};

#endif

const int gpu_images_toolkit = GPU_TOOLKIT;
